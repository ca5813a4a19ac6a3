"""Who is next: after every entry, those in line for what has changed are looked at, the lowest number first.

House rules of this file:

* After `settle` nobody in line could be offered anything: what is free belongs to somebody or is not waited for. That
  is the one rule; everything else here is about finding the few who may be concerned.
* One pass, upwards. A look at a ticket may concern later ones (a ticket that is passed over no longer stops them),
  never earlier ones: an offer frees nothing.
* An offer touches the names of its ticket. So a lease, ticket or reservation counts here until the entry that ends it,
  even when its time has come; only a delay, which ends without an entry, goes by time.

Source: docs/protocol.md 23.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias

from gateway.core.deadlock import Graph, closes_cycle
from gateway.core.draft import Draft
from gateway.core.lookup import counter_at, ticket_at
from gateway.core.outcome import Context, Decision, granted
from gateway.core.record_keys import TICKETS_KEY, claim_key, ended_key, ticket_key
from gateway.core.records import Claim, Counter, Delay, Ended, Record, Ticket
from gateway.core.resource import (
    Ask,
    ask_again,
    claims_on,
    end_ms,
    exclusions,
)
from gateway.core.terms import PASSED
from verifier.wire import JsonObject

RESERVED_CLAIMS = 3  # a reservation lasts for as many claim windows
IN_LINE, HOLDING = ("ticket/",), ("lease/", "delay/")  # how keys of records begin
Place: TypeAlias = tuple[tuple[str, ...], str]  # names and mode: whoever asks for these meets the same things


def settle(draft: Draft, context: Callable[[], Context]) -> Iterator[Decision]:
    """Offer what is free to whom it belongs, and yield each entry of it; `context` gives the number of the next one."""
    stirred = draft.take_stirred()
    if counter_at(draft, TICKETS_KEY) == 0:
        return
    line, concern, graph = Line(draft, context().t_ms), _Concern(draft), Graph(draft, context())
    numbers = sorted(concern.of(stirred))
    while numbers:
        number = heapq.heappop(numbers)
        ticket = ticket_at(draft, f"T{number}")
        if ticket is None or ticket.claim_by_ms is not None or not line.is_live(ticket):
            continue
        yield from _look(line, graph, ticket, context)
        for later in concern.of(draft.take_stirred()):
            if later > number:
                heapq.heappush(numbers, later)


def lapse_ticket(draft: Draft, ticket: Ticket, context: Context) -> Decision:
    """Do what time has come for: remove a ticket that lapsed, else end its reservation or begin the only one."""
    if context.t_ms < ticket.deadline_ms:
        return _resume(draft, ticket) if ticket.is_reserved else _reserve(draft, ticket, context)
    end_ticket(draft, ticket, "removed", context)
    return granted("wait.removed", waiter_members(ticket) | {"reason": _why_removed(ticket)})


def standing(draft: Draft, ask: Ask, t_ms: int, number: int | None) -> list[Ticket]:
    """Return the tickets that stand in the way of an ask, lowest number first; without a `number` it is a plain one."""
    if counter_at(draft, TICKETS_KEY) == 0:
        return []
    return list(Line(draft, t_ms).standing(ask, number))


def position(draft: Draft, ask: Ask, number: int, t_ms: int) -> int:
    """Return the place in line: 1, and one for each earlier live ticket of another that excludes this one."""
    line = Line(draft, t_ms)
    return 1 + sum(one.seq < number and line.is_live(one) for one in line.others(ask))


def count_passes(draft: Draft, ask: Ask, number: int, context: Context) -> list[Ticket]:
    """Count for every earlier ticket of several names that `ask` goes before it; return these, lowest number first."""
    if counter_at(draft, TICKETS_KEY) == 0:
        return []
    return _pass(Line(draft, context.t_ms), ask, number)


def end_ticket(draft: Draft, ticket: Ticket, how: Literal["claimed", "cancelled", "removed"], context: Context) -> None:
    """Take a ticket out of every line and remember how it ended."""
    until_ms = context.t_ms + context.parameters.idempotency_ms
    draft.delete(ticket_key(ticket.ticket_id))
    draft.put(TICKETS_KEY, Counter(counter_at(draft, TICKETS_KEY) - 1))
    draft.put(ended_key(ticket.ticket_id), Ended(ticket.actor, how, context.seq, until_ms))


class Line:
    """Those in line at one moment, while nobody joins or leaves; what each meets is looked up once for all alike."""

    def __init__(self, draft: Draft, t_ms: int) -> None:
        self.draft = draft
        self._t_ms = t_ms
        self._holders: dict[Place, tuple[str, ...]] = {}
        self._tickets: dict[Place, list[str]] = {}

    def standing(self, ask: Ask, number: int | None) -> Iterator[Ticket]:
        """Yield the tickets that stand in the way of an ask, lowest number first.

        A plain ask has no number, and for it those whose time has come do not count. A queued ticket that is passed
        over stands in the way of plain asks only; one of several names only when it is reserved or nothing else is in
        its own way, so that it never keeps idle what it can't use.
        """
        for one in self.others(ask):
            if one.claim_by_ms is None:
                if number is not None and (one.seq > number or one.is_passed):
                    continue
                if len(one.resources) > 1 and not one.is_reserved and not self.is_clear(one):
                    continue
            if number is not None or self.is_live(one):
                yield one

    def is_live(self, ticket: Ticket) -> bool:
        return self._t_ms < end_ms(self.draft, ticket)

    def others(self, ask: Ask) -> Iterator[Ticket]:
        """Yield the tickets of other actors that exclude an ask, as they are now, lowest number first."""
        place = ask.resources, ask.mode
        if place not in self._tickets:
            found = {one.ticket_id: one.seq for one in exclusions(self.draft, ask, IN_LINE) if isinstance(one, Ticket)}
            self._tickets[place] = sorted(found, key=found.__getitem__)
        for ticket_id in self._tickets[place]:
            ticket = ticket_at(self.draft, ticket_id)
            if ticket is not None and ticket.actor != ask.actor:
                yield ticket

    def is_clear(self, ticket: Ticket) -> bool:
        """Say whether no lease and no delay is in the way of a ticket."""
        place = ticket.resources, ticket.mode
        if place not in self._holders:
            self._holders[place] = self._holders_of(ask_again(self.draft, ticket))
        return all(holder == ticket.actor for holder in self._holders[place])

    def _holders_of(self, ask: Ask) -> tuple[str, ...]:
        """Return whose leases and delays exclude an ask: two are enough to know that it is not clear for anybody."""
        holders: set[str] = set()
        for claim in exclusions(self.draft, ask, HOLDING):
            if isinstance(claim, Delay) and self._t_ms >= end_ms(self.draft, claim):
                continue
            holders.add(claim.holder)
            if len(holders) == 2:
                break
        return tuple(holders)


class _Concern:
    """Whom a change concerns; each name is looked up once while one entry is settled, and each ticket is told once.

    These are the tickets on its names; those on the names of a ticket of several names among these, because what that
    lacks now it no longer keeps from others; and all that are passed over.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._names: set[str] = set()
        self._wide: set[str] = set()
        self._told: set[int] = set()

    def of(self, stirred: list[Claim]) -> set[int]:
        """Return the numbers of the tickets that `stirred` concerns and that were not told before."""
        draft = self._draft
        first = {claim_key(claim): claim for claim in reversed(stirred)}
        now = {key: draft.get(key) for key in first}
        changed = [one for key, one in first.items() if _is_change(one, now[key])]
        # Whoever joins stands behind all others, so that is nobody's concern but its own.
        moved = [one for one in changed if not isinstance(one, Ticket) or now[claim_key(one)] != one]
        names = {name for one in moved for name in one.resources}
        near = _tickets_on(draft, names - self._names)
        wide = {one.ticket_id: one for one in near if len(one.resources) > 1 and one.ticket_id not in self._wide}
        further = _tickets_on(draft, {name for one in wide.values() for name in one.resources} - names)
        self._names |= names
        self._wide |= wide.keys()
        itself = [one for key, was in first.items() if isinstance(one := now[key], Ticket) and not _is_poll(was, one)]
        passed = _passed_over(draft) if changed else ()
        told = {one.seq for one in (*itself, *near, *further, *passed)} - self._told
        self._told |= told
        return told


def _is_change(was: Claim, now: Record | None) -> bool:
    """Say whether something began or ended, or a ticket got another standing; not that something lasts longer."""
    if isinstance(was, Ticket) and isinstance(now, Ticket) and was != now:
        return _standing_of(was) != _standing_of(now)
    return now is None or now == was


def _is_poll(was: Claim, now: Ticket) -> bool:
    """Say whether a ticket was kept alive and nothing else: that is no reason to look at it (23.5)."""
    return was != now and was == now._replace(poll_by_ms=was.poll_by_ms) if isinstance(was, Ticket) else False


def _standing_of(ticket: Ticket) -> tuple[bool, bool, bool]:
    return ticket.claim_by_ms is not None, ticket.is_reserved, ticket.is_passed


def _passed_over(draft: Draft) -> Iterator[Ticket]:
    for key in draft.near(PASSED):
        ticket = draft.get(key)
        if isinstance(ticket, Ticket) and ticket.is_passed:
            yield ticket


def _tickets_on(draft: Draft, names: Iterable[str]) -> list[Ticket]:
    """Return the tickets whose names may overlap any of `names`."""
    return [one for one in claims_on(draft, names) if isinstance(one, Ticket)]


def _look(line: Line, graph: Graph, ticket: Ticket, context: Callable[[], Context]) -> Iterator[Decision]:
    """Offer a queued ticket what it waits for, if nothing is in its way; else note what its standing is now."""
    draft, ask = line.draft, ask_again(line.draft, ticket)
    if len(ticket.resources) > 1:
        ticket = _noted_first(line, ticket, ask, context())
        if _may_reserve(ticket, context()):
            yield _reserve(draft, ticket, context())
            ticket = ticket_at(draft, ticket.ticket_id) or ticket
    is_free = line.is_clear(ticket) and next(line.standing(ask, ticket.seq), None) is None
    is_passed = is_free and closes_cycle(draft, ticket, context(), graph)
    if is_free and not is_passed:
        yield _offer(draft, ticket, context())
        for wide in _pass(line, ask, ticket.seq):
            if _may_reserve(wide, context()):
                yield _reserve(draft, wide, context())
    elif is_passed != ticket.is_passed:
        draft.put(ticket_key(ticket.ticket_id), ticket._replace(is_passed=is_passed))


def _noted_first(line: Line, ticket: Ticket, ask: Ask, context: Context) -> Ticket:
    """Return the ticket with the time from which it may reserve, once no earlier one of another excludes it."""
    if ticket.reserve_at_ms is not None or any(one.seq < ticket.seq for one in line.others(ask)):
        return ticket
    first = ticket._replace(reserve_at_ms=context.t_ms + context.parameters.reserve_after_ms)
    line.draft.put(ticket_key(ticket.ticket_id), first)
    return first


def _pass(line: Line, ask: Ask, number: int) -> list[Ticket]:
    """Count one pass for each earlier live queued ticket of several names that excludes `ask`; return these."""
    passed: list[Ticket] = []
    for one in line.others(ask):
        if one.seq < number and len(one.resources) > 1 and one.claim_by_ms is None and line.is_live(one):
            passed.append(one._replace(passes=one.passes + 1))
            line.draft.put(ticket_key(one.ticket_id), passed[-1])
    return passed


def _may_reserve(ticket: Ticket, context: Context) -> bool:
    return ticket.passes >= context.parameters.passes_max and ticket.reserve_until_ms is None


def _reserve(draft: Draft, ticket: Ticket, context: Context) -> Decision:
    """Let a ticket of several names keep what is free of them, once and for a while."""
    until_ms = context.t_ms + RESERVED_CLAIMS * context.parameters.claim_ms
    draft.put(ticket_key(ticket.ticket_id), ticket._replace(reserve_until_ms=until_ms))
    return granted("wait.reserved", waiter_members(ticket) | {"untilMs": until_ms})


def _resume(draft: Draft, ticket: Ticket) -> Decision:
    """End a reservation that was in vain: the ticket waits on in its place, as before, and never reserves again."""
    draft.put(ticket_key(ticket.ticket_id), ticket._replace(reserve_until_ms=0))
    return granted("wait.resumed", waiter_members(ticket))


def _offer(draft: Draft, ticket: Ticket, context: Context) -> Decision:
    """Hold what a ticket waits for until it claims that, or its time to do so is over."""
    claim_by_ms = max(context.t_ms + context.parameters.claim_ms, ticket.poll_by_ms)
    draft.put(ticket_key(ticket.ticket_id), ticket._replace(claim_by_ms=claim_by_ms, is_passed=False))
    return granted("wait.offered", waiter_members(ticket) | {"claimByMs": claim_by_ms})


def waiter_members(ticket: Ticket) -> JsonObject:
    """Return the members that name a ticket in an entry of the gateway about it."""
    return {"ticketId": ticket.ticket_id, "ticketSeq": ticket.seq, "waiter": ticket.actor}


def _why_removed(ticket: Ticket) -> str:
    """Return which of its deadlines a ticket has missed: the least, among equals giving up first."""
    if ticket.deadline_ms == ticket.give_up_by_ms:
        return "given_up"
    return "poll_lapsed" if ticket.claim_by_ms is None else "claim_lapsed"
