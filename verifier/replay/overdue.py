"""What should have happened by time alone before a request was decided that touches the same names.

Leases, tickets, sessions and reservations whose time is up, reservations that are due, and offers after a delay that
ended without an entry.
Source: docs/protocol.md 6.3, 7.7, 23.3, 23.5, 23.8, 29.2.
"""

from __future__ import annotations

from verifier.entries import Leaf, rows_of, scheme_of
from verifier.replay.judged import Judged
from verifier.replay.returns import removal
from verifier.replay.settle import Line, has_reserved_in_vain, reserve_at_ms
from verifier.replay.state import State
from verifier.replay.things import Faults, Lease, Ticket
from verifier.replay.under import are_overlapping
from verifier.wire import JsonObject

_ENDING = ("session.closed", "agent.removed", "operator.removed")


def overdue_faults(state: State, line: Line, name: str, leaf: Leaf, entry: Judged) -> Faults:
    """Yield what a request of type `name` found undone on its names. In a holiday nothing is due."""
    if state.now_ms < state.holiday_ms:
        return
    is_batch = entry.asked is not None and name in ("batch.received", "batch.refused")
    asked = rows_of(entry.asked["commands"]) if is_batch and entry.asked is not None else [leaf.value]
    gone = _ended_by(state, name, leaf) if name in _ENDING else []
    if gone:
        yield from _gone_faults(state, gone)
    if state.people.open:
        yield from _session_faults(state, leaf, asked, gone)
    if name.startswith("scheme."):
        yield from _scheme_faults(state, leaf.text("name"))
        return
    keys = _touched(state, asked[0]) if len(asked) == 1 else tuple(k for one in asked for k in _touched(state, one))
    over = [it for key in keys for it in state.leases.near(key) if not state.is_live(it)]
    # That the lease or ticket it is about was over is a finding of its own.
    if over and any(it.seq not in (leaf.number("grantSeq"), leaf.number("fromSeq")) for it in over):
        yield "expiry_missing", "a lease on these names was over, and its lease.expired comes first (7.7)"
    if state.ticket:
        near = {ticket: None for key in keys for ticket in state.tickets.near(key)}
        if not all(state.is_live(it) or it.seq == leaf.number("ticketSeq") for it in near):
            yield "removal_missing", "a ticket on these names was over, and its wait.removed comes first (23.3)"
        if any(state.is_live(it) and has_reserved_in_vain(state, it) for it in near):
            yield "resumption_missing", "a reservation on these names was over, and its wait.resumed comes first (23.8)"
        if any(_is_reserving(state, ticket) for ticket in near):
            yield "reservation_missing", "a ticket on these names had to reserve first (23.8)"
    if state.delays:
        yield from delay_faults(state, line, keys)


def _scheme_faults(state: State, name: str) -> Faults:
    """A scheme is touched as a whole."""
    things: list[Lease | Ticket] = [*state.lease.values(), *state.ticket.values()]
    things = [it for it in things if name in map(scheme_of, it.keys)]
    over = [it for it in things if not state.is_live(it)]
    if any(isinstance(it, Lease) for it in over):
        yield "expiry_missing", "a lease of this scheme was over, and its lease.expired comes first (7.7)"
    if any(isinstance(it, Ticket) for it in over):
        yield "removal_missing", "a ticket of this scheme was over, and its wait.removed comes first (23.3)"
    if any(isinstance(it, Ticket) and state.is_live(it) and has_reserved_in_vain(state, it) for it in things):
        yield "resumption_missing", "a reservation in this scheme was over, and its wait.resumed comes first (23.8)"


def _gone_faults(state: State, gone: list[str]) -> Faults:
    """What ends somebody touches all that they have."""
    if not all(state.is_live(lease) for did in gone for lease in state.leases_of.get(did, ())):
        yield "expiry_missing", "a lease of whom this ends was over, and its lease.expired comes first (7.7)"
    if not all(state.is_live(ticket) for did in gone for ticket in state.tickets_of.get(did, ())):
        yield "removal_missing", "a ticket of whom this ends was over, and its wait.removed comes first (23.3)"


def _session_faults(state: State, leaf: Leaf, asked: list[JsonObject], gone: list[str]) -> Faults:
    """A session is touched with anything of its own, by its own request, and by what ends it."""
    keys = tuple(key for one in asked for key in _touched(state, one))
    touched = {leaf.actor, *gone}
    touched.update(it.actor for key in keys for it in state.leases.near(key))
    touched.update(it.actor for key in keys for it in state.tickets.near(key))
    if leaf.action == "scheme.set":
        scheme = leaf.text("name")
        things: list[Lease | Ticket] = [*state.lease.values(), *state.ticket.values()]
        touched.update(it.actor for it in things if scheme in map(scheme_of, it.keys))
    found = (state.people.sessions.get(did) for did in touched)
    if any(it is not None and it.ended_seq is None and state.now_ms >= it.due_at_ms for it in found):
        yield "ending_missing", "a session that this touches was over, and its session.ended comes first (29.2)"


def _ended_by(state: State, name: str, leaf: Leaf) -> list[str]:
    """Return whom a request of a type in _ENDING ends."""
    if name == "session.closed":
        return [leaf.text("session")]
    actors, sessions = removal(state, leaf)
    return [*actors, *(session.did for session in sessions)]


def _touched(state: State, value: JsonObject) -> tuple[str, ...]:
    """Return the keys that a request names, by itself or by the id of a lease or ticket."""
    names = value.get("resources", [value["resource"]] if "resource" in value else None)
    keys = state.schemes.keys(tuple(map(str, names))) if isinstance(names, list) else ()
    if "leaseId" in value:
        lease = state.lease.get(int(str(value["leaseId"])[1:]))
        keys += () if lease is None else lease.keys
    if "ticketId" in value:
        ticket = state.ticket.get(int(str(value["ticketId"])[1:]))
        keys += () if ticket is None else ticket.keys
    return keys


def _is_reserving(state: State, ticket: Ticket) -> bool:
    if ticket.is_single or ticket.is_offered or ticket.has_reserved:
        return False
    return state.now_ms >= reserve_at_ms(state, ticket)


def delay_faults(state: State, line: Line, keys: tuple[str, ...] = ()) -> Faults:
    """Let go the delays that have ended; offers come before a request that touches their names."""
    left = []
    while (delay := state.undelay()) is not None:
        call = line.next()
        line.rest()
        if call is not None and not are_overlapping(keys, delay.keys):
            left.append(delay)  # the sweeper's, or of a later request
        elif call is not None:
            yield call.code, f"a delay has ended, so {call.entry} of T{call.ticket.seq} comes first (23.5)"
    for delay in left:
        state.delay(delay)


def end_delays(state: State, line: Line, number: int) -> None:
    """Nothing calls for the offer of this ticket, so a delay that has ended does: look at whom each kept out."""
    left = []
    while (delay := state.undelay()) is not None:
        call = line.next()
        if call is not None and call.ticket.seq == number:
            break
        line.rest()
        if call is not None:
            left.append(delay)
    for delay in left:
        state.delay(delay)
