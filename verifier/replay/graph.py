"""The graph of waits, and the one search that says whether a new wait closes a cycle in it.

Nodes are actors. An actor counts only while it holds a live lease, or a live ask can't have enough without its
approval; its waits are its live queued tickets, when the question is about a plain refusal the acquire that a lease
refused last, and the approvals it asked for. The order of edges is part of the protocol, so that there is one cycle to
tell.
Source: docs/protocol.md 24, 38.8.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from verifier.entries import CYCLE_NAME_BYTES_MAX, CYCLE_ROWS_MAX, byte_length
from verifier.replay.pleas import Plea
from verifier.replay.state import State
from verifier.replay.things import Ask, Lease, Ticket
from verifier.replay.ways import leases_in, meeting, others
from verifier.wire import JsonObject, JsonValue


class Wait(NamedTuple):
    """Somebody's wait; `number` is that of its ticket, None for a plain one."""

    ask: Ask
    number: int | None = None


class Found(NamedTuple):
    """The first cycle by the order of the protocol, if any; whether the search ran into its bound."""

    cycle: list[JsonObject] | None
    is_bounded: bool


class Needed(NamedTuple):
    """One without whose approval an ask can't have enough: `actor` is that approver."""

    plea: Plea
    actor: str


class Edge(NamedTuple):
    """A wait leads to the actor whose lease or ticket stands in its way, or whose approval is needed."""

    wait: Wait
    to: Lease | Ticket | Needed


def search_plain(state: State, ask: Ask, leases: list[Lease]) -> Found:
    """Would a plain refusal by `leases` be a deadlock? Tickets and refused acquires count, behind leases only."""
    if not state.ticket and not state.pleas and len(leases) < state.numbers["deadlockNodes"]:
        if state.edges.keys().isdisjoint([lease.actor for lease in leases]):  # nobody reached waits for anything
            return Found(None, False)
    return _search(state, ask.actor, _hard(state, [Wait(ask)]), is_plain=True)


def search_ticket(state: State, ask: Ask, number: int | None, *, is_soft: bool) -> Found:
    """Would a new ticket close a cycle? `number` is None when it is refused. Soft edges lead behind earlier tickets."""

    first = [Wait(ask, number)]
    ahead = chain(_hard(state, first), _soft(state, first) if is_soft else ())
    return _search(state, ask.actor, ahead, is_soft=is_soft)


def search_plea(state: State, plea: Plea) -> Found:
    """Would an ask for approval close a cycle? Over what is held and other asks alone; whom it needs counts."""
    return _search(state, plea.actor, _needed([plea]), needed=plea.awaited())


def circle(cycle: list[JsonObject]) -> JsonObject:
    """Return what a refusal tells of a cycle."""
    order: list[JsonValue] = [*sorted({str(row["resource"]) for row in cycle})]
    return {"waitingOn": cycle[1]["resource"], "cycle": [*cycle], "acquireOrder": order}


def closes_cycle(state: State, ticket: Ticket) -> bool:
    """Would granting a ticket leave its actor waiting, over leases and offers, for somebody who waits for it?

    Asks do not count: whoever waits for the ticket's names may still approve.
    """

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


def _search(
    state: State,
    start: str,
    first: Iterator[Edge],
    *,
    is_plain: bool = False,
    is_soft: bool = False,
    needed: Collection[str] = (),
) -> Found:
    """Look for a way back to the newcomer, over actors that count; the last step is to a lease or approval of its
    own."""
    if not _counts(state, start):
        return Found(None, False)

    def onward(actor: str) -> Iterator[Edge] | None:
        if actor not in needed and not _counts(state, actor):
            return None
        waits = _waits(state, actor, is_plain=is_plain)
        pleas = _needed(state.pleas.by(actor, state.now_ms))
        return chain(_hard(state, waits), pleas, _soft(state, waits) if is_soft else ())

    def is_back(edge: Edge) -> bool:
        return edge.to.actor == start and not isinstance(edge.to, Ticket)

    cycle, is_bounded = _walk(state, start, onward, first, is_back)
    return Found(None, is_bounded) if cycle is None else _told(state, cycle)


def _counts(state: State, actor: str) -> bool:
    return state.holds(actor) or state.pleas.is_awaited(actor, state.now_ms)


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
    if isinstance(to, Needed):
        return {"actor": ask.actor, "resource": ask.names[0], "mode": ask.mode, "askId": f"A{to.plea.seq}"}
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


def _needed(pleas: Iterable[Plea]) -> Iterator[Edge]:
    for plea in pleas:
        wait = Wait(Ask(plea.actor, (plea.name,), (), plea.mode))
        yield from (Edge(wait, Needed(plea, did)) for did in plea.awaited())


def _soft(state: State, waits: list[Wait]) -> Iterator[Edge]:
    for wait in waits:
        for ticket in _tickets(state, wait):
            if wait.number is None or ticket.seq < wait.number or ticket.is_offered:
                yield Edge(wait, ticket)


def _tickets(state: State, wait: Wait) -> list[Ticket]:
    """Return the live tickets that exclude a wait, the lowest number first."""
    found = (ticket for ticket in others(state, state.tickets, wait.ask) if state.is_live(ticket))
    return sorted(found, key=lambda ticket: ticket.seq)
