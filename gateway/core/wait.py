"""Standing in line: a request that can't be granted now becomes a ticket, which is claimed when its turn comes.

A ticket has absolute deadlines and never moves others': to poll by, to give up by, to claim by. Whose turn it is, is
decided in `settle.py`; here one joins, asks, takes what is offered, and leaves.

Source: docs/protocol.md 23.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gateway.core import refusal
from gateway.core.authority import is_outside_scope, operator_share
from gateway.core.deadlock import Graph, find_cycle
from gateway.core.denial import held, queue_full_members
from gateway.core.draft import Draft
from gateway.core.holding import begin_lease, is_too_many, lease_members
from gateway.core.intake import SignedRequest
from gateway.core.lookup import counter_at, ended_at, ticket_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import DISPUTE_KEY, TICKETS_KEY, ticket_key
from gateway.core.records import Counter, Ended, Ticket
from gateway.core.refusal import Refusal
from gateway.core.resource import Ask, ask_again, claims_near, end_ms, keys_of, max_hold_ms, own_tickets, way_of
from gateway.core.settle import end_ticket, position
from gateway.core.terms import TICKETS, filed_under, of_operator, waited_behind, waited_by
from verifier.wire import JsonObject

ACCEPTED = 202
_NOTHING: JsonObject = {}


def queue(draft: Draft, request: SignedRequest, ask: Ask, context: Context) -> Decision:
    """Let an ask that something is in the way of stand in line, unless it does already or would wait for itself."""
    double = _double(draft, ask, context)
    if double is not None:
        return _not_queued(request, ask, refusal.ALREADY_WAITING, {"ticketId": double.ticket_id})
    if _is_full(draft, request, ask, context):
        return _not_queued(request, ask, refusal.QUEUE_FULL, queue_full_members(draft, request, ask, context))
    graph = Graph(draft, context)
    hard = find_cycle(draft, ask, context, plain=False, soft=False, graph=graph)
    if hard.rows and request.text("onDeadlock") == "refuse":
        leases = way_of(draft, ask, context.t_ms).leases
        return _not_queued(request, ask, *held(draft, request, ask, leases, hard, context, is_edge=False))
    soft = hard if hard.rows else find_cycle(draft, ask, context, plain=False, soft=True, graph=graph)
    ticket = _join(draft, request, ask, context)
    told: JsonObject = {}
    if soft.rows:
        told["cycle"] = [soft.rows[0] | {"ticketId": ticket.ticket_id}, *soft.rows[1:]]
    if soft.rows and not hard.rows:
        told["softCycle"] = True
    if hard.is_bounded or soft.is_bounded:
        told["searchBounded"] = True
    return granted("wait.queued", _ticket_members(draft, request, ticket, ask, context) | told, ACCEPTED)


def claim(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Take what was offered, or say that one still waits."""
    if is_outside_scope(draft, request, "lease", (), None, context):
        return _not_claimed(request, refusal.OUTSIDE_SCOPE)
    if draft.get(DISPUTE_KEY) is not None:
        return _not_claimed(request, refusal.LEDGER_DISPUTED)
    found = _find(draft, request, context)
    if found.why is not None:
        return _not_claimed(request, found.why, found.told)
    ticket = found.ticket
    assert ticket is not None, "a ticket that was found"
    ask = ask_again(draft, ticket)
    if not _is_claimable(draft, ticket, ask, context):
        return _poll(draft, ticket, ask, context)
    if is_too_many(draft, request.principal, len(ticket.resources), context):
        return _not_claimed(request, refusal.TOO_MANY_HELD)
    end_ticket(draft, ticket, "claimed", context)
    lease = begin_lease(
        draft,
        ask,
        context,
        principal=request.principal,
        on_behalf_of=request.on_behalf_of,
        ttl_ms=ticket.ttl_ms,
        hold_until_ms=context.t_ms + max_hold_ms(ask, context.parameters),
    )
    return granted("lease.claimed", lease_members(draft, lease, ask, context) | _named(ticket))


def cancel(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Leave the line; what was offered goes to the next. Giving back works in a dispute too."""
    if is_outside_scope(draft, request, "lease", (), None, context):
        return refused("cancel.refused", refusal.OUTSIDE_SCOPE, request.repeat("ticketId"))
    found = _find(draft, request, context)
    if found.why is not None:
        return refused("cancel.refused", found.why, request.repeat("ticketId") | found.told)
    assert found.ticket is not None, "a ticket that was found"
    end_ticket(draft, found.ticket, "cancelled", context)
    return granted("wait.cancelled", _named(found.ticket))


def _not_queued(request: SignedRequest, ask: Ask, why: Refusal, members: JsonObject) -> Decision:
    asked: JsonObject = {"resources": list(ask.resources), **request.repeat("mode", "ttlMs", "wait")}
    return refused("lease.refused", why, asked | members)


def _double(draft: Draft, ask: Ask, context: Context) -> Ticket | None:
    """Return the actor's first live ticket that names one of the same keys."""
    keys = set(ask.keys)
    own = own_tickets(draft, ask.actor, context.t_ms)
    return next((one for one in own if not keys.isdisjoint(keys_of(draft, one.resources))), None)


def _is_full(draft: Draft, request: SignedRequest, ask: Ask, context: Context) -> bool:
    """Say whether a bound of the line is reached: of a name, of the principal, of its operator, or of all together."""
    numbers, operator = context.parameters, request.on_behalf_of
    share = operator_share(draft, numbers.queue_total)
    name_share = operator_share(draft, numbers.queue_per_resource)
    if sum(1 for _ in _behind(draft, request.principal, context)) >= numbers.queue_per_principal:
        return True
    if _has(draft, TICKETS, numbers.queue_total, context) or _has(draft, of_operator(operator), share, context):
        return True
    for name, key in zip(ask.resources, ask.keys, strict=True):
        term = filed_under(name)[0]
        if len(draft.near(term)) < min(name_share, numbers.queue_per_resource):
            continue
        named = [one for one in _live(draft, term, context) if key in keys_of(draft, one.resources)]
        theirs = sum(one.on_behalf_of == operator for one in named)
        if len(named) >= numbers.queue_per_resource or theirs >= name_share:
            return True
    return False


def _has(draft: Draft, term: str, bound: int, context: Context) -> bool:
    """Say whether `bound` live tickets are filed under a word; counted one by one only when that may be."""
    return len(draft.near(term)) >= bound and sum(1 for _ in _live(draft, term, context)) >= bound


def _behind(draft: Draft, principal: str, context: Context) -> Iterator[Ticket]:
    """Yield the live tickets of a principal and of its sessions."""
    for term in (waited_by(principal), waited_behind(principal)):
        yield from (one for one in _live(draft, term, context) if one.principal == principal)


def _live(draft: Draft, term: str, context: Context) -> Iterator[Ticket]:
    for claim in claims_near(draft, term):
        if isinstance(claim, Ticket) and context.t_ms < end_ms(draft, claim):
            yield claim


def _join(draft: Draft, request: SignedRequest, ask: Ask, context: Context) -> Ticket:
    ticket = Ticket(
        ticket_id=f"T{context.seq}",
        actor=ask.actor,
        principal=request.principal,
        on_behalf_of=request.on_behalf_of,
        resources=ask.resources,
        mode=ask.mode,
        ttl_ms=request.number("ttlMs"),
        seq=context.seq,
        queued_at_ms=context.t_ms,
        poll_by_ms=context.t_ms + context.parameters.poll_ms,
        give_up_by_ms=context.t_ms + request.number("giveUpMs"),
    )
    draft.put(ticket_key(ticket.ticket_id), ticket)
    draft.put(TICKETS_KEY, Counter(counter_at(draft, TICKETS_KEY) + 1))
    return ticket


def _ticket_members(draft: Draft, request: SignedRequest, ticket: Ticket, ask: Ask, context: Context) -> JsonObject:
    return {
        "resources": list(ticket.resources),
        **request.repeat("mode", "ttlMs", "giveUpMs"),
        "ticketId": ticket.ticket_id,
        "pollByMs": ticket.poll_by_ms,
        "giveUpByMs": ticket.give_up_by_ms,
        "position": position(draft, ask, ticket.seq, context.t_ms),
    }


class _Found(NamedTuple):
    """The actor's own live ticket, or why there is none and what a refusal tells about it."""

    ticket: Ticket | None
    why: Refusal | None
    told: JsonObject = _NOTHING


def _find(draft: Draft, request: SignedRequest, context: Context) -> _Found:
    ticket_id = request.text("ticketId")
    ticket = ticket_at(draft, ticket_id)
    ended: Ended | None = None if ticket is not None else ended_at(draft, ticket_id, context.t_ms)
    known = ticket or ended
    if known is None:
        return _Found(None, refusal.TICKET_UNKNOWN)
    if known.actor != request.actor:
        return _Found(None, refusal.TICKET_NOT_YOURS)
    return _Found(ticket, None) if ended is None else _Found(None, refusal.TICKET_ENDED, {"endedSeq": ended.seq})


def _not_claimed(request: SignedRequest, why: Refusal, members: JsonObject = _NOTHING) -> Decision:
    return refused("claim.refused", why, request.repeat("ticketId") | members)


def _is_claimable(draft: Draft, ticket: Ticket, ask: Ask, context: Context) -> bool:
    """Say whether a ticket was offered and is still free: its own actor may have handed a lease on it to another."""
    if ticket.claim_by_ms is None:
        return False
    way = way_of(draft, ask, context.t_ms)
    return not way.leases and not way.delays


def _poll(draft: Draft, ticket: Ticket, ask: Ask, context: Context) -> Decision:
    """Keep the place in line for another while."""
    poll_by_ms = context.t_ms + context.parameters.poll_ms
    if poll_by_ms != ticket.poll_by_ms:  # what is put as it was would count as one that joins
        draft.put(ticket_key(ticket.ticket_id), ticket._replace(poll_by_ms=poll_by_ms))
    place = position(draft, ask, ticket.seq, context.t_ms)
    return granted("wait.polled", {**_named(ticket), "pollByMs": poll_by_ms, "position": place}, ACCEPTED)


def _named(ticket: Ticket) -> JsonObject:
    return {"ticketId": ticket.ticket_id, "ticketSeq": ticket.seq}
