"""The entries about a place in line: queueing, claims that are not granted yet, offers, its reservation, and its end.

Source: docs/protocol.md 23.
"""

from __future__ import annotations

from sys import intern

from verifier.entries import Leaf
from verifier.replay.decide import Refused, acquire, is_too_much, wait
from verifier.replay.graph import closes_cycle
from verifier.replay.leases import against, begin, grant_faults, ttl_faults, way_faults
from verifier.replay.settle import has_reserved_in_vain, may_reserve, pass_by
from verifier.replay.state import State
from verifier.replay.things import Ask, Faults, Lease, Ticket, names_in
from verifier.replay.ways import Way, is_behind, is_claimable, is_free, others, way_of

_CYCLE = ("softCycle", "cycle", "searchBounded")


def queued_faults(state: State, leaf: Leaf, nonce: str) -> Faults:
    """`wait.queued`: something is in the way, nothing refuses, and the graph of waits says the same."""
    ask = state.ask(leaf.actor, names_in(leaf), leaf.text("mode"))
    wanted = acquire(state, ask)
    if not isinstance(wanted, Way):
        name = "lease.extended" if isinstance(wanted, Lease) else wanted
        yield "queued_needlessly", f"queued, but the entries before call for {name} (7.2)"
    else:
        waits = wait(state, ask, wanted, nonce, leaf.seq)
        if isinstance(waits, Refused):
            yield "refusal_due", f"queued, but the entries before call for {waits.error} (23.1)"
        elif {name: leaf.value[name] for name in _CYCLE if name in leaf.value} != waits:
            yield "cycle_wrong", f"cycle, softCycle or searchBounded are not {waits or 'absent'} (24.4)"
    if leaf.number("giveUpMs") > state.numbers["waitMaxMs"]:
        yield "deadline_wrong", "giveUpMs is above waitMaxMs of entry 0 (5.3)"
    yield from ttl_faults(state, leaf)
    yield from _poll_faults(state, leaf, position(state, ask, None))
    ticket = Ticket(
        seq=leaf.seq,
        actor=intern(leaf.actor),
        principal=intern(leaf.principal),
        operator=intern(leaf.on_behalf_of),
        names=ask.names,
        keys=ask.keys,
        mode=intern(ask.mode),
        ttl_ms=leaf.number("ttlMs"),
        queued_at_ms=leaf.time_ms,
        give_up_by_ms=leaf.number("giveUpByMs"),
        poll_by_ms=leaf.number("pollByMs"),
    )
    state.queue(ticket)


def polled_faults(state: State, leaf: Leaf) -> Faults:
    """`wait.polled`: the actor's ticket, live and not offered."""
    ticket = state.ticket.get(leaf.number("ticketSeq"))
    if ticket is None or ticket.actor != leaf.actor:
        yield "citation_wrong", "ticketSeq is not a live ticket of the actor (23.6)"
        return
    yield from _live_faults(state, ticket)
    if state.is_disputed:
        yield "refusal_due", "in a dispute a claim is refused (23.6)"
    elif is_claimable(state, ticket):
        yield "claim_denied", "the ticket was offered, so its claim is granted (23.6)"
    yield from _poll_faults(state, leaf, position(state, ticket.ask, ticket.seq))
    ticket.poll_by_ms = leaf.number("pollByMs")


def claimed_faults(state: State, leaf: Leaf) -> Faults:
    """`lease.claimed`: the ticket was offered, is what it asked for, and nothing has come in its way since."""
    ticket = state.ticket.get(leaf.number("ticketSeq"))
    if ticket is None or ticket.actor != leaf.actor:
        yield "citation_wrong", "ticketSeq is not a live ticket of the actor (23.6)"
        return
    yield from grant_faults(state, leaf, leaf.time_ms + state.schemes.max_hold_ms(ticket.names))
    if (names_in(leaf), leaf.text("mode"), leaf.number("ttlMs")) != (
        ticket.names,
        ticket.mode,
        ticket.ttl_ms,
    ):
        yield "ticket_differs", "resources, mode or ttlMs are not the ticket's (23.6)"
    yield from _live_faults(state, ticket)
    if not ticket.is_offered:
        yield "not_offered", "a lease is claimed only by a ticket that was offered (23.6)"
    if state.is_disputed:
        yield against("ledger_disputed")
    if is_too_much(state, ticket.ask):
        yield against("too_many_held")
    yield from way_faults(way_of(state, ticket.ask)._replace(tickets=[]))
    state.unqueue(ticket, "claimed", leaf.seq)
    begin(state, leaf, ticket.ask)


def cancelled_faults(state: State, leaf: Leaf) -> Faults:
    """`wait.cancelled`: the actor's own live ticket."""
    ticket = state.ticket.get(leaf.number("ticketSeq"))
    if ticket is None or ticket.actor != leaf.actor:
        yield "citation_wrong", "ticketSeq is not a live ticket of the actor (23.7)"
        return
    yield from _live_faults(state, ticket)
    state.unqueue(ticket, "cancelled", leaf.seq)


def offered_faults(state: State, leaf: Leaf) -> Faults:
    """`wait.offered`: nothing stands in the way of the ticket, and granting it closes no cycle."""
    ticket = state.ticket.get(leaf.number("ticketSeq"))
    yield from _waiter_faults(leaf, ticket)
    if ticket is None:
        return
    yield from _live_faults(state, ticket)
    if ticket.is_offered:
        yield "offered_twice", "the ticket was offered before (23.5)"
    elif not is_free(state, ticket):
        yield "offer_wrong", "a lease or a delay is in the way of the ticket (23.5)"
    elif is_behind(state, ticket):
        yield "queue_jumped", "another ticket is in the way of this one (23.4)"
    elif closes_cycle(state, ticket):
        yield "cycle_wrong", "granting the ticket would close a cycle, so it is passed over (24.6)"
    if leaf.number("claimByMs") != max(leaf.time_ms + state.numbers["claimMs"], ticket.poll_by_ms):
        yield "deadline_wrong", "claimByMs is not the later of timeMs + claimMs and pollByMs (23.5)"
    pass_by(state, ticket.ask, ticket.seq)
    ticket.claim_by_ms, ticket.is_passed = leaf.number("claimByMs"), False
    state.passed.pop(ticket, None)
    state.stir(ticket)


def reserved_faults(state: State, leaf: Leaf) -> Faults:
    """`wait.reserved`: passed over too often, or first too long, once in the life of a ticket for several names."""
    ticket = state.ticket.get(leaf.number("ticketSeq"))
    yield from _waiter_faults(leaf, ticket)
    if ticket is None:
        return
    yield from _live_faults(state, ticket)
    if not may_reserve(state, ticket):
        yield "reservation_wrong", "neither passed passesMax times nor first for reserveAfterMs, or again (23.8)"
    if leaf.number("untilMs") != leaf.time_ms + 3 * state.numbers["claimMs"]:
        yield "deadline_wrong", "untilMs is not timeMs + 3 claimMs (23.8)"
    ticket.reserve_until_ms, ticket.has_reserved = leaf.number("untilMs"), True
    state.stir(ticket)


def resumed_faults(state: State, leaf: Leaf) -> Faults:
    """`wait.resumed`: a reservation in vain is over, not before its time; the ticket keeps its place."""
    ticket = state.ticket.get(leaf.number("ticketSeq"))
    yield from _waiter_faults(leaf, ticket)
    if ticket is None:
        return
    yield from _live_faults(state, ticket)
    if ticket.reserve_until_ms is None or ticket.is_offered:
        yield "resumption_wrong", "the ticket is not queued and reserved (23.8)"
    elif not has_reserved_in_vain(state, ticket):
        until_ms = max(ticket.reserve_until_ms, state.holiday_ms)
        yield "resumed_early", f"the reservation lasts until {until_ms} (23.8)"
    ticket.reserve_until_ms = None
    state.stir(ticket)


def removed_faults(state: State, leaf: Leaf, *, is_gone: bool) -> Faults:
    """`wait.removed`: when the waiter `is_gone`; else not before the deadline, and for the one that came first."""
    ticket = state.ticket.get(leaf.number("ticketSeq"))
    yield from _waiter_faults(leaf, ticket)
    if ticket is None:
        return
    if is_gone or leaf.text("reason") == "holder_gone":
        if not is_gone or leaf.text("reason") != "holder_gone":
            yield "removal_wrong", "reason is holder_gone exactly when the waiter has ended (29.4)"
    elif state.is_live(ticket):
        yield "removed_early", f"the ticket lives until {state.end_ms(ticket)} (23.3)"
    elif leaf.text("reason") != ticket.lapse:
        yield "removal_wrong", f"reason is not {ticket.lapse}, the deadline that came first (23.3)"
    if not is_gone:
        state.endings.lapse(state.now_ms - state.end_ms(ticket))
    state.unqueue(ticket, "removed", leaf.seq)


def position(state: State, ask: Ask, number: int | None) -> int:
    """Return 1 and the live tickets of others with a lower number that exclude this one."""
    found = (it for it in others(state, state.tickets, ask) if state.is_live(it))
    return 1 + sum(number is None or it.seq < number for it in found)


def _poll_faults(state: State, leaf: Leaf, place: int) -> Faults:
    if leaf.number("pollByMs") != leaf.time_ms + state.numbers["pollMs"]:
        yield "deadline_wrong", "pollByMs is not timeMs + pollMs (23.1, 23.6)"
    if leaf.number("position") != place:
        yield "position_wrong", f"position is not {place} (23.1)"


def _live_faults(state: State, ticket: Ticket) -> Faults:
    if not state.is_live(ticket):
        yield "ticket_over", f"the ticket was over at {state.end_ms(ticket)}; first comes its wait.removed (23.3)"


def _waiter_faults(leaf: Leaf, ticket: Ticket | None) -> Faults:
    if ticket is None or ticket.actor != leaf.text("waiter"):
        yield "citation_wrong", "ticketSeq is not a live ticket of the waiter (12.6)"
