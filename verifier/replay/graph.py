"""The graph of waits, and the one search that says whether a new wait closes a cycle in it.

Nodes are actors. An actor counts only while it holds a live lease; its waits are its live queued tickets and, when the
question is about a plain refusal, the acquire that a lease refused last. The order of edges is part of the protocol, so
that there is one cycle to tell.
Source: docs/protocol.md 24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from verifier.entries import CYCLE_NAME_BYTES_MAX, CYCLE_ROWS_MAX, byte_length
from verifier.replay.state import State
from verifier.replay.things import Ask, Lease, Ticket
from verifier.replay.ways import leases_in, meeting, others
from verifier.wire import JsonObject


class Wait(NamedTuple):
    """Somebody's wait; `number` is that of its ticket, None for a plain one."""

    ask: Ask
    number: int | None = None


class Found(NamedTuple):
    """The first cycle by the order of the protocol, if any; whether the search ran into its bound."""

    cycle: list[JsonObject] | None
    is_bounded: bool


class Edge(NamedTuple):
    """A wait leads to the actor whose lease, or whose ticket, stands in its way."""

    wait: Wait
    to: Lease | Ticket


Edges = Callable[[list[Wait]], Iterator[Edge]]


def search_plain(state: State, ask: Ask, leases: list[Lease]) -> Found:
    """Would a plain refusal by `leases` be a deadlock? Tickets and refused acquires count, behind leases only."""
    if not state.ticket and len(leases) < state.numbers["deadlockNodes"]:
        if state.edges.keys().isdisjoint([lease.actor for lease in leases]):  # nobody reached waits for anything
            return Found(None, False)
    return _search(state, Wait(ask), lambda waits: _hard(state, waits), is_plain=True)


def search_ticket(state: State, ask: Ask, number: int | None, *, is_soft: bool) -> Found:
    """Would a new ticket close a cycle? `number` is None when it is refused. Soft edges lead behind earlier tickets."""

    def edges(waits: list[Wait]) -> Iterator[Edge]:
        yield from _hard(state, waits)
        if is_soft:
            yield from _soft(state, waits)

    return _search(state, Wait(ask, number), edges, is_plain=False)


def closes_cycle(state: State, ticket: Ticket) -> bool:
    """Would granting a ticket leave its actor waiting, over leases and offers, for somebody who waits for it?"""

    def onward(actor: str) -> Iterator[Edge]:
        for wait in _waits(state, actor, is_plain=False):
            if wait.number != ticket.seq:
                yield from _hard(state, [wait])
                yield from (Edge(wait, other) for other in _tickets(state, wait) if other.is_offered)

    if len(state.tickets_of.get(ticket.actor, ())) < 2:
        return False
    kept_out = {it.actor for it in _tickets(state, Wait(ticket.ask)) if not it.is_offered}
    if not kept_out:
        return False
    path, _ = _walk(state, ticket.actor, onward, onward(ticket.actor), lambda edge: edge.to.actor in kept_out)
    return path is not None


def _search(state: State, newcomer: Wait, edges: Edges, *, is_plain: bool) -> Found:
    """Look for a way back to the newcomer, over actors that hold a lease; the last step is to a lease of its own."""
    start = newcomer.ask.actor
    if not state.holds(start):
        return Found(None, False)

    def onward(actor: str) -> Iterator[Edge] | None:
        return edges(_waits(state, actor, is_plain=is_plain)) if state.holds(actor) else None

    def is_back(edge: Edge) -> bool:
        return edge.to.actor == start and isinstance(edge.to, Lease)

    cycle, is_bounded = _walk(state, start, onward, edges([newcomer]), is_back)
    return Found(None, is_bounded) if cycle is None else _told(state, cycle)


def _walk(
    state: State,
    start: str,
    onward: Callable[[str], Iterator[Edge] | None],
    first: Iterator[Edge],
    is_goal: Callable[[Edge], bool],
) -> tuple[list[Edge] | None, bool]:
    """Go depth-first, each actor once; return the path to the first goal, and whether the bound ended it."""
    seen = {start}
    path: list[Edge] = []
    ahead = [first]
    while ahead:
        edge = next(ahead[-1], None)
        if edge is None:
            ahead.pop()
            if path:
                path.pop()
            continue
        if is_goal(edge):
            return [*path, edge], False
        actor = edge.to.actor
        edges = None if actor in seen else onward(actor)
        if edges is None:  # expanded before, or an actor that does not count
            continue
        if len(seen) >= state.numbers["deadlockNodes"]:
            return None, True
        seen.add(actor)
        path.append(edge)
        ahead.append(edges)
    return None, False


def _told(state: State, cycle: list[Edge]) -> Found:
    rows = [_row(state, edge) for edge in cycle] if len(cycle) <= CYCLE_ROWS_MAX else []
    if not rows or byte_length("".join(str(row["resource"]) for row in rows)) > CYCLE_NAME_BYTES_MAX:
        return Found(None, True)
    return Found(rows, False)


def _row(state: State, edge: Edge) -> JsonObject:
    (ask, number), to = edge
    behind: JsonObject = {"fencingToken": to.token} if isinstance(to, Lease) else {"aheadId": f"T{to.seq}"}
    ticket: JsonObject = {} if number is None else {"ticketId": f"T{number}"}
    return {"actor": ask.actor, "resource": meeting(state, ask, to)[0], "mode": ask.mode, **behind, **ticket}


def _waits(state: State, actor: str, *, is_plain: bool) -> list[Wait]:
    """Return the waits of an actor: its tickets by number, then the plain one."""
    waits = [Wait(ticket.ask, ticket.seq) for ticket in state.waiting(actor) if not ticket.is_offered]
    edge = state.edges.get(actor) if is_plain else None
    if edge is not None and state.now_ms < edge.until_ms:
        waits.append(Wait(state.ask(actor, (edge.name,), edge.mode)))
    return waits


def _hard(state: State, waits: list[Wait]) -> Iterator[Edge]:
    for wait in waits:
        for lease in sorted(leases_in(state, wait.ask), key=lambda lease: lease.token):
            yield Edge(wait, lease)


def _soft(state: State, waits: list[Wait]) -> Iterator[Edge]:
    for wait in waits:
        for ticket in _tickets(state, wait):
            if wait.number is None or ticket.seq < wait.number or ticket.is_offered:
                yield Edge(wait, ticket)


def _tickets(state: State, wait: Wait) -> list[Ticket]:
    """Return the live tickets that exclude a wait, the lowest number first."""
    found = (ticket for ticket in others(state, state.tickets, wait.ask) if state.is_live(ticket))
    return sorted(found, key=lambda ticket: ticket.seq)
