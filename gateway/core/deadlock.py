"""Who waits for whom, and whether a new wait would close a circle.

House rules of this file:

* Nodes are actors. An actor counts while it holds something, or while somebody can't do without its approval; it waits
  with each of its queued tickets, when the question is about a plain refusal with the last acquire that a lease
  refused, and with each approval it asked for.
* A *hard* edge leads to whoever holds what is waited for, or has to approve; a *soft* one to whoever stands before in
  line. The order of edges is part of the protocol, because it says which of several circles is told: the hard ones of
  all waits, those of all asks for approval, then the soft ones of all waits; waits by ticket number, then the plain
  one; asks by number; of one wait by token, or by ticket number, of one ask by approver.
* Offers are tested without asks: whoever is offered something may still be approved by those who wait for it, and an
  ask lapses without an entry after which the line could be looked at again.
* Depth first, each actor once, `deadlock_nodes` actors in all, and only a way back to the asker is a circle. So nobody
  is refused for a ring of others, and no question takes longer than the bound allows.

Source: docs/protocol.md 24, 38.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gateway.core.draft import Draft, View
from gateway.core.lookup import edge_at, ticket_at
from gateway.core.outcome import Context
from gateway.core.records import Lease, Pending, Ticket
from gateway.core.resource import Ask, Way, ask_again, ask_of, meeting, own_leases, own_tickets, way_of
from gateway.core.terms import asked_by, asked_of
from verifier.entries import CYCLE_NAME_BYTES_MAX, CYCLE_ROWS_MAX, byte_length
from verifier.wire import JsonObject, JsonValue

NOBODY = ""  # asks in the place of an actor: everybody's things are in its way
Place: TypeAlias = tuple[tuple[str, ...], str]  # names and mode: whoever asks for these meets the same things
Found = TypeVar("Found", Lease, Ticket)


class Plea(NamedTuple):
    """An ask for approval that can't have enough without `holder`, who is waited for as the holder of a lease is."""

    pending: Pending
    holder: str


Ahead: TypeAlias = Lease | Ticket | Plea


class Search(NamedTuple):
    """The first circle in the protocol's order, as rows of `cycle`; whether the search ran into its bound instead."""

    rows: list[JsonObject]
    is_bounded: bool


NO_CYCLE = Search([], False)


class Wait(NamedTuple):
    """What somebody waits for; `ticket_id` is None for a plain wait, and for a ticket that is not written yet."""

    ask: Ask
    ticket_id: str | None


class Step(NamedTuple):
    """An edge: this wait leads to the actor of `ahead`, whose lease, place in line or approval it waits for."""

    wait: Wait
    ahead: Ahead


def find_cycle(
    draft: Draft,
    ask: Ask,
    context: Context,
    *,
    plain: bool,
    soft: bool,
    leases: list[Lease] | None = None,
    graph: Graph | None = None,
) -> Search:
    """Return the circle that `ask` would close if its actor waited for it now, at the end of every line.

    `plain` lets refused acquires count as waits, `soft` counts those who stand before in line. `leases` are those in
    the way of the ask, where they are known already; `graph` is that of an earlier question about the same moment.
    """
    graph = Graph(draft, context) if graph is None else graph
    if not graph.holds(ask.actor):
        return NO_CYCLE

    walk = Walk(ask.actor)

    def onward(actor: str) -> Iterator[Step]:
        waits = graph.waits(actor, plain=plain)
        yield from graph.hard(waits, walk)
        yield from graph.pleas(actor, walk)
        if soft:
            yield from graph.soft(waits, walk)

    def first() -> Iterator[Step]:
        wait = Wait(ask, None)
        if leases is not None:
            yield from (Step(wait, lease) for lease in sorted(leases, key=attrgetter("fencing_token")))
            return
        yield from graph.hard([wait], walk)
        if soft:
            yield from graph.soft([wait], walk)

    return _told(*walk.to(walk.is_back, first(), onward, context.parameters.deadlock_nodes))


def find_plea_cycle(draft: Draft, pending: Pending, context: Context) -> Search:
    """Return the circle that an ask for approval would close now: one of its approvers waits for its asker, for real.

    Those who might be passed in line, and acquires that were refused, keep nobody from asking.
    """
    graph = Graph(draft, context)
    if not graph.holds(pending.actor):
        return NO_CYCLE

    walk = Walk(pending.actor)

    def onward(actor: str) -> Iterator[Step]:
        yield from graph.hard(graph.waits(actor, plain=False), walk)
        yield from graph.pleas(actor, walk)

    first = iter([_plea_step(Plea(pending, approver)) for approver in pending.needed])
    return _told(*walk.to(walk.is_back, first, onward, context.parameters.deadlock_nodes))


def circle_members(search: Search) -> JsonObject:
    """Return what a refusal tells of a circle that was found, and in which order to acquire instead."""
    order: list[JsonValue] = [*sorted({str(row["resource"]) for row in search.rows})]
    return {"waitingOn": search.rows[1]["resource"], "cycle": [*search.rows], "acquireOrder": order}


def closes_cycle(draft: Draft, ticket: Ticket, context: Context, graph: Graph | None = None) -> bool:
    """Say whether granting a ticket leaves its actor waiting, by another one, for somebody who waits for this one.

    What is offered counts as held already. A search that runs into its bound has found nothing. `graph` is that of an
    earlier question, since which nothing but offers was made.
    """
    if next((one for one in _queued(draft, ticket.actor, context.t_ms) if one.seq != ticket.seq), None) is None:
        return False
    graph = Graph(draft, context) if graph is None else graph
    kept_out = {one.actor for one in graph.line(ask_again(draft, ticket)) if one.claim_by_ms is None}
    kept_out.discard(ticket.actor)
    if not kept_out:
        return False

    def onward(actor: str) -> Iterator[Step]:
        waits = [wait for wait in graph.waits(actor, plain=False) if wait.ticket_id != ticket.ticket_id]
        return graph.held_or_offered(waits, walk)

    walk = Walk(ticket.actor)
    nodes_max = context.parameters.deadlock_nodes
    path, _ = walk.to(lambda step: step.ahead.holder in kept_out, onward(ticket.actor), onward, nodes_max)
    return bool(path)


class Graph:
    """The waits of one moment. Who waits for the same names in the same mode meets the same things: looked up once.

    Tickets may be offered meanwhile; nothing begins, ends, joins or leaves.
    """

    def __init__(self, draft: Draft, context: Context) -> None:
        self._draft = draft
        self._t_ms = context.t_ms
        self._met: dict[Place, Way] = {}
        self._before: dict[Place, list[Ticket]] = {}
        self._asks: dict[str, Ask] = {}
        self._holds: dict[str, bool] = {}

    def holds(self, actor: str) -> bool:
        """Say whether an actor has a live lease, or somebody can't do without its approval; else it keeps nobody
        waiting, and its waits do not count."""
        if actor not in self._holds:
            is_holder = next(own_leases(self._draft, actor, self._t_ms), None) is not None
            self._holds[actor] = is_holder or is_needed(self._draft, actor, self._t_ms)
        return self._holds[actor]

    def waits(self, actor: str, *, plain: bool) -> list[Wait]:
        """Return the waits of an actor: its queued tickets by number, then the plain one."""
        draft = self._draft
        waits = [Wait(self._ask(one), one.ticket_id) for one in _queued(draft, actor, self._t_ms)]
        edge = edge_at(draft, actor, self._t_ms) if plain else None
        if edge is not None:
            waits.append(Wait(ask_of(draft, actor, (edge.resource,), edge.mode), None))
        return waits

    def _ask(self, ticket: Ticket) -> Ask:
        ask = self._asks.get(ticket.ticket_id)
        if ask is None:
            ask = self._asks[ticket.ticket_id] = ask_again(self._draft, ticket)
        return ask

    def met(self, ask: Ask) -> Way:
        """Return what excludes an ask, the asker's own among it: leases by token, tickets by number.

        Of several leases of one holder there is the first alone: the others lead where that does.
        """
        place = ask.resources, ask.mode
        way = self._met.get(place)
        if way is None:
            found = way_of(self._draft, ask._replace(actor=NOBODY), self._t_ms)
            first: dict[str, Lease] = {}
            for lease in sorted(found.leases, key=attrgetter("fencing_token")):
                first.setdefault(lease.holder, lease)
            way = self._met[place] = Way([*first.values()], [], sorted(found.tickets, key=attrgetter("seq")))
        return way

    def line(self, ask: Ask) -> Iterator[Ticket]:
        """Yield the tickets that exclude an ask, by number, as they are now."""
        for one in self.met(ask).tickets:
            yield ticket_at(self._draft, one.ticket_id) or one

    def before(self, ask: Ask) -> list[Ticket]:
        """Return the tickets that exclude an ask, by number: of each actor its first, and its first that is offered."""
        place = ask.resources, ask.mode
        if place not in self._before:
            first: dict[tuple[str, bool], Ticket] = {}
            for one in self.met(ask).tickets:
                first.setdefault((one.actor, one.claim_by_ms is not None), one)
            self._before[place] = [*first.values()]
        return self._before[place]

    def hard(self, waits: Iterable[Wait], walk: Walk) -> Iterator[Step]:
        """Yield the edges to those who hold what is waited for."""
        return _steps(waits, lambda wait: walk.left(wait.ask, self.met(wait.ask).leases))

    def pleas(self, actor: str, walk: Walk) -> Iterator[Step]:
        """Yield the edges to those without whom an ask of this actor can't have enough."""
        for pending in asks_near(self._draft, asked_by(actor), self._t_ms):
            yield from (_plea_step(Plea(pending, one)) for one in pending.needed if walk.is_open(one))

    def soft(self, waits: Iterable[Wait], walk: Walk) -> Iterator[Step]:
        """Yield the edges to those who stand before in line and hold anything; before a new ticket stand all."""

        def before(wait: Wait) -> Iterator[Ticket]:
            number = None if wait.ticket_id is None else int(wait.ticket_id[1:])
            for one in walk.left(wait.ask, self.before(wait.ask), "ahead"):
                is_before = number is None or one.seq < number or one.claim_by_ms is not None
                if is_before and self.holds(one.actor):
                    yield one

        return _steps(waits, before)

    def held_or_offered(self, waits: Iterable[Wait], walk: Walk) -> Iterator[Step]:
        """Yield the hard edges as they are once what was offered is claimed."""

        def holding(wait: Wait) -> Iterator[Ahead]:
            yield from walk.left(wait.ask, self.met(wait.ask).leases)
            yield from (one for one in self.line(wait.ask) if one.claim_by_ms is not None)

        return _steps(waits, holding)


class Walk:
    """One search: who was met so far, and what of each place may still lead to somebody else."""

    def __init__(self, start: str) -> None:
        self._start = start
        self._seen = {start}
        self._left: dict[tuple[str, Place], list[Any]] = {}

    def left(self, ask: Ask, ahead: list[Found], kind: str = "held") -> list[Found]:
        """Return what of `ahead` leads back to the start or to somebody new; the rest of it is not looked at again."""
        place = kind, (ask.resources, ask.mode)
        left = [one for one in self._left.get(place, ahead) if self.is_open(one.holder)]
        self._left[place] = left
        return left

    def is_open(self, actor: str) -> bool:
        """Say whether this is the start or somebody new."""
        return actor not in self._seen or actor == self._start

    def is_back(self, step: Step) -> bool:
        """Say whether a step leads back to the start; nobody is behind a ticket that does not stand in line yet."""
        return step.ahead.holder == self._start and not isinstance(step.ahead, Ticket)

    def to(
        self,
        is_goal: Callable[[Step], bool],
        first: Iterator[Step],
        onward: Callable[[str], Iterator[Step]],
        nodes_max: int,
    ) -> tuple[list[Step], bool]:
        """Return the path to the first goal, empty without one, and whether the search ended at its bound."""
        seen = self._seen
        path: list[Step] = []
        open_steps = [first]  # of the start and of each actor on the path
        while open_steps:
            step = next(open_steps[-1], None)
            if step is None:
                open_steps.pop()
                del path[len(open_steps) - 1 :]
                continue
            if is_goal(step):
                return [*path, step], False
            actor = step.ahead.holder
            if actor in seen:
                continue
            if len(seen) >= nodes_max:
                return [], True
            seen.add(actor)
            path.append(step)
            open_steps.append(onward(actor))
        return [], False


def asks_near(view: Draft | View, term: str, t_ms: int) -> list[Pending]:
    """Return the live asks for approval filed under a word, the lowest number first."""
    found = (view.get(key) for key in {*view.near(term)})
    return sorted((one for one in found if isinstance(one, Pending) and one.is_live(t_ms)), key=attrgetter("seq"))


def is_needed(view: Draft | View, approver: str, t_ms: int) -> bool:
    """Say whether a live ask can't have enough without this approver."""
    return any(approver in pending.needed for pending in asks_near(view, asked_of(approver), t_ms))


def _plea_step(plea: Plea) -> Step:
    pending = plea.pending
    return Step(Wait(Ask(pending.actor, pending.resources, (), pending.mode, {}), None), plea)


def _steps(waits: Iterable[Wait], ahead_of: Callable[[Wait], Iterable[Ahead]]) -> Iterator[Step]:
    return (Step(wait, ahead) for wait in waits for ahead in ahead_of(wait) if ahead.holder != wait.ask.actor)


def _queued(draft: Draft, actor: str, t_ms: int) -> Iterator[Ticket]:
    """Yield the tickets with which an actor still waits, lowest number first."""
    return (ticket for ticket in own_tickets(draft, actor, t_ms) if ticket.claim_by_ms is None)


def _told(path: list[Step], is_bounded: bool) -> Search:
    """Return a circle as it is told; one that is too long to be told is as none."""
    rows = [_row(step) for step in path] if len(path) <= CYCLE_ROWS_MAX else []
    is_long = bool(path) and (not rows or _name_bytes(rows) > CYCLE_NAME_BYTES_MAX)
    return Search([] if is_long else rows, is_bounded or is_long)


def _row(step: Step) -> JsonObject:
    """Return one row of `cycle`: who waits for which name, and for which lease, behind which ticket, or by which ask
    for whose approval; that is told by its first name alone."""
    (ask, ticket_id), ahead = step
    if isinstance(ahead, Plea):
        return {"actor": ask.actor, "resource": ask.resources[0], "mode": ask.mode, "askId": ahead.pending.ask_id}
    what: JsonObject = (
        {"fencingToken": ahead.fencing_token} if isinstance(ahead, Lease) else {"aheadId": ahead.ticket_id}
    )
    ticket: JsonObject = {} if ticket_id is None else {"ticketId": ticket_id}
    return {"actor": ask.actor, "resource": meeting(ask, ahead)[0], "mode": ask.mode, **what, **ticket}


def _name_bytes(rows: list[JsonObject]) -> int:
    return sum(byte_length(str(row["resource"])) for row in rows)
