"""What the entries before a request call for: a success by name, or one refusal with everything that it tells.

Source: docs/protocol.md 7, 10.3, 23, 24.
"""

from __future__ import annotations

from typing import NamedTuple

from verifier.replay.graph import Found, circle, search_plain, search_ticket
from verifier.replay.people import operators
from verifier.replay.stampede import full_retry_ms
from verifier.replay.state import State
from verifier.replay.things import Ask, Lease, Ticket
from verifier.replay.ways import Way, meeting, others, way_of
from verifier.wire import JsonObject

_NOTHING: JsonObject = {}
_NO_SEARCH = Found(None, False)


class Refused(NamedTuple):
    """A refusal that is called for. `told` are the members that explain it; it counts as one more on `counted_on`."""

    error: str
    told: JsonObject = _NOTHING
    counted_on: str = ""
    mode: str = ""  # of the plain wait that a lease refused


def acquire(state: State, ask: Ask) -> str | Way | Lease:
    """Return lease.granted, an error, the lease that is to be extended, or what is in the way."""
    error = "ledger_disputed" if state.is_disputed else state.schemes.name_error(ask.names, ask.mode)
    if error is not None:
        return error
    own = state.own(ask)
    if own is not None:
        return "hold_exceeded" if is_hold_exceeded(state, own) else own
    if is_too_much(state, ask):
        return "too_many_held"
    way = way_of(state, ask)
    return "lease.granted" if way.error is None else way


def is_hold_exceeded(state: State, lease: Lease) -> bool:
    """Say whether a lease was held for its longest and somebody waits for it."""
    if state.now_ms < lease.hold_until_ms:
        return False
    return any(state.is_live(it) for it in others(state, state.tickets, lease_ask(lease)))


def is_too_much(state: State, ask: Ask, giver: str = "") -> bool:
    """Say whether a principal would hold more names than anybody may, or keep them closed for others.

    What it gives from one of its keys to another it holds already.
    """
    principal = state.people.principal(ask.actor)
    more = 0 if principal == giver else len(ask.names)
    return state.held(principal) + more > state.numbers["heldPerPrincipal"]


def lease_ask(lease: Lease, mode: str = "") -> Ask:
    """Return what a lease stands for, perhaps in another mode, as an ask of its holder."""
    return Ask(lease.actor, lease.names, lease.keys, mode or lease.mode)


def late(state: State, actor: str, lease_seq: int, *, by_anyone: bool = False) -> Lease | Refused:
    """Return the lease of an id, or what is told when it is nobody's, another's or over."""
    lease, ended = state.lease.get(lease_seq), state.ended(f"L{lease_seq}")
    found = lease or ended
    if found is None:
        return Refused("lease_unknown")
    if found.actor != actor and not by_anyone:
        return Refused("lease_not_yours")
    if lease is not None:
        return lease
    assert ended is not None, "it is live or has ended"
    return Refused(f"lease_{ended.how}", {"endedSeq": ended.seq} if ended.actor == actor else {})


def late_ticket(state: State, actor: str, ticket_seq: int) -> Ticket | Refused:
    """The same for a ticket."""
    ticket, ended = state.ticket.get(ticket_seq), state.ended(f"T{ticket_seq}")
    found = ticket or ended
    if found is None:
        return Refused("ticket_unknown")
    if found.actor != actor:
        return Refused("ticket_not_yours")
    if ticket is not None:
        return ticket
    assert ended is not None, "it is live or has ended"
    return Refused("ticket_ended", {"endedSeq": ended.seq})


def refused(state: State, ask: Ask, way: Way, *, may_deadlock: bool = True) -> Refused:
    """Return the refusal of a request that does not wait, with something in its way."""
    if way.leases:
        return _held(state, ask, way.leases, search_plain(state, ask, way.leases) if may_deadlock else _NO_SEARCH)
    if way.delays:
        delay = way.delays[0]
        told = _advice(state, ask, ask.names[0], state.end_ms(delay) - state.now_ms, is_always=True)
        told |= {"holder": delay.actor, "delayUntilMs": state.end_ms(delay), "endedSeq": delay.seq}
        return Refused("lock_delayed", told, ask.names[0])
    ticket = way.tickets[0]
    name = meeting(state, ask, ticket)[0]
    ahead: JsonObject = {"ticketId": f"T{ticket.seq}", "actor": ticket.actor, "resource": name}
    ahead |= {"mode": ticket.mode, "queuedAtMs": ticket.queued_at_ms}
    told = {"ahead": ahead, **_advice(state, ask, name, state.end_ms(ticket) - state.now_ms)}
    return Refused("queued", told, name)


def wait(state: State, ask: Ask, way: Way, nonce: str, number: int | None) -> Refused | JsonObject:
    """Return the refusal of a request that waits, or what `wait.queued` says of cycles; `number` is its ticket's."""
    own = [it for it in state.waiting(ask.actor) if not set(it.keys).isdisjoint(ask.keys)]
    if own:
        return Refused("already_waiting", {"ticketId": f"T{own[0].seq}"})
    if is_full(state, ask):
        name = ask.names[0]
        waits = state.stampede.waits(state.people.principal(ask.actor), name, state.now_ms)
        told: JsonObject = {"stampede": state.stampede.advice(waits), "retryAfterMs": full_retry_ms(waits, nonce)}
        return Refused("queue_full", told, name)
    hard = search_ticket(state, ask, number, is_soft=False)
    if hard.cycle is not None:
        return {"cycle": [*hard.cycle]} if number is not None else _held(state, ask, way.leases, hard)._replace(mode="")
    soft = search_ticket(state, ask, number, is_soft=True)
    bounded: JsonObject = {"searchBounded": True} if hard.is_bounded or soft.is_bounded else {}
    return bounded if soft.cycle is None else {**bounded, "softCycle": True, "cycle": [*soft.cycle]}


def is_full(state: State, ask: Ask) -> bool:
    """Say whether one of the bounds of the queue is reached; what has lapsed does not count.

    They are those of the principal, of all together and of each name, and of the last two the operator's share.
    """
    numbers, people = state.numbers, state.people
    on_one, in_all = numbers["queuePerResource"], numbers["queueTotal"]
    who = people.who(ask.actor)
    principal, operator = (ask.actor, "") if who is None else who[:2]
    if state.are_waiting(principal, numbers["queuePerPrincipal"]):
        return True
    if state.are_waiting(operators(operator), max(1, in_all // people.shares)):
        return True
    if len(state.ticket) >= in_all and sum(map(state.is_live, state.ticket.values())) >= in_all:
        return True
    for key in ask.keys:
        live = [it.operator for it in state.tickets.on(key) if state.is_live(it)]
        if len(live) >= on_one or live.count(operator) >= max(1, on_one // people.shares):
            return True
    return False


def naming(state: State, ask: Ask, lease: Lease, *, is_any_mode: bool = False) -> JsonObject:
    """Return how a refusal names a lease: `holder`, `holderName` where it has one, `conflict`."""
    name, held_as = meeting(state, ask, lease, is_any_mode=is_any_mode)
    conflict: JsonObject = {
        "leaseId": f"L{lease.seq}",
        "resource": name,
        "heldAs": held_as,
        "fencingToken": lease.token,
        "mode": lease.mode,
        "grantedAtMs": lease.granted_at_ms,
        "expiresAtMs": lease.expires_at_ms,
    }
    label = state.people.label(lease.actor)
    return {"holder": lease.actor, "conflict": conflict, **({} if label is None else {"holderName": label})}


def _held(state: State, ask: Ask, leases: list[Lease], found: Found) -> Refused:
    lease = leases[0]
    told = naming(state, ask, lease)
    name = meeting(state, ask, lease)[0]
    told |= {"conflicts": len(leases), **_advice(state, ask, name, state.end_ms(lease) - state.now_ms)}
    if found.cycle is None:
        return Refused("lease_held", told | ({"searchBounded": True} if found.is_bounded else {}), name, ask.mode)
    return Refused("deadlock", told | circle(found.cycle), name, ask.mode)


def _advice(state: State, ask: Ask, name: str, rest_ms: int, *, is_always: bool = False) -> JsonObject:
    """Return `stampede` and `retryAfterMs`; `rest_ms` is left of what stands in the way."""
    waits = state.stampede.waits(state.people.principal(ask.actor), name, state.now_ms)
    advice = state.stampede.advice(waits)
    wait_ms = advice["waitMs"]
    assert isinstance(wait_ms, int), "a number"
    is_short = advice["admitted"] is True and not is_always
    return {"stampede": advice, "retryAfterMs": wait_ms if is_short else max(wait_ms, rest_ms)}
