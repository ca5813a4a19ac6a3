"""Who waits for whom, by walking over everything: edges, reachability, and whether a printed cycle is one.

The checker does not search in the gateway's order. It asks whether a cycle through the newcomer exists at all, and
looks at each row of one that is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.sim.book import Book, Lease, Ticket
from tests.sim.pleas import Plea

CYCLE_BYTES_MAX = 2_048
CYCLE_ROWS_MAX = 64


@dataclass(frozen=True)
class Wait:
    """What somebody waits for; `ticket` when it is one."""

    actor: str
    names: tuple[str, ...]
    mode: str
    ticket: Ticket | None = None


def counts(book: Book, actor: str, *, with_offers: bool = False) -> bool:
    """Say whether an actor keeps anybody waiting: by a live lease, an offered ticket where those count as held, or
    because an ask for approval can't do without it."""
    holds = any(lease.actor == actor and book.t_ms < book.end_ms(lease) for lease in book.leases)
    offered = with_offers and any(one.actor == actor and one.is_offered and book.is_live(one) for one in book.tickets)
    return holds or offered or any(actor in plea.needed() for plea in book.live_pleas())


def waits_of(book: Book, actor: str, *, with_plain: bool) -> list[Wait]:
    """Return the waits of an actor: its live queued tickets, and its latest plain refusal."""
    waits = [
        Wait(actor, tuple(ticket.names), ticket.mode, ticket)
        for ticket in book.tickets
        if ticket.actor == actor and not ticket.is_offered and book.is_live(ticket)
    ]
    edge = book.edges.get(actor)
    if with_plain and edge is not None and book.t_ms < edge[2] + book.rules["waitEdgeMs"]:
        waits.append(Wait(actor, (edge[0],), edge[1]))
    return waits


def holders(book: Book, wait: Wait, *, with_offers: bool = False) -> list[str]:
    """Return the actors at the end of the hard edges of a wait."""
    names = list(wait.names)
    leases = book.leases_in_the_way(wait.actor, names, wait.mode)
    found = [lease.actor for lease in leases if book.t_ms < book.end_ms(lease)]
    if with_offers:
        found += [one.actor for one in offered_in_the_way(book, wait)]
    return found


def offered_in_the_way(book: Book, wait: Wait) -> list[Ticket]:
    return [
        one
        for one in book.tickets
        if one.is_offered
        and one.actor != wait.actor
        and book.is_live(one)
        and book.clashes(list(wait.names), wait.mode, one.names, one.mode)
    ]


def ahead(book: Book, wait: Wait) -> list[Ticket]:
    """Return the tickets at the end of the soft edges of a ticket's wait."""
    own = wait.ticket
    return [
        one
        for one in book.tickets
        if own is not None
        and one.actor != wait.actor
        and book.is_live(one)
        and (one.seq < own.seq or one.is_offered)
        and book.clashes(own.names, own.mode, one.names, one.mode)
    ]


def closes(book: Book, newcomer: Wait, *, with_plain: bool, with_soft: bool) -> bool:
    """Say whether some path of edges leads from the newcomer's wait back to it."""
    todo = holders(book, newcomer) + (standing_before(book, newcomer) if with_soft else [])
    return _leads_back(book, newcomer.actor, todo, with_plain=with_plain, with_soft=with_soft)


def plea_closes(book: Book, plea: Plea) -> bool:
    """Say whether somebody that an ask can't do without waits, by tickets and asks, for the asker."""
    return _leads_back(book, plea.actor, plea.needed(), with_plain=False, with_soft=False)


def _leads_back(book: Book, start: str, todo: list[str], *, with_plain: bool, with_soft: bool) -> bool:
    if not counts(book, start):
        return False
    seen: list[str] = []
    while todo:
        actor = todo.pop()
        if actor in seen or actor == start:
            continue
        seen.append(actor)
        waits = waits_of(book, actor, with_plain=with_plain)
        found = [one for wait in waits for one in holders(book, wait)] + pleaded(book, actor)
        if start in found:  # the last edge is always a hard one
            return True
        todo += found
        todo += [one for wait in waits for one in standing_before(book, wait)] if with_soft else []
    return False


def standing_before(book: Book, wait: Wait) -> list[str]:
    """Return the actors at the end of the soft edges of a wait, of those that count."""
    return [one.actor for one in ahead(book, wait) if counts(book, one.actor)]


def pleaded(book: Book, actor: str) -> list[str]:
    """Return the actors without whom what an actor asked for can't be approved."""
    return [one for plea in book.live_pleas() if plea.actor == actor for one in plea.needed()]


def offer_closes(book: Book, ticket: Ticket, *, doubt: bool) -> bool:
    """Say whether granting a ticket would close a hard cycle (the offer test).

    `doubt` is what is said when there is one and a search may have come to its bound before it.
    """
    own = [wait for wait in waits_of(book, ticket.actor, with_plain=False) if wait.ticket is not ticket]
    if not own:
        return False
    is_closing, seen = False, [ticket.actor]
    todo = [actor for wait in own for actor in holders(book, wait, with_offers=True)]
    while todo:
        actor = todo.pop()
        if actor in seen:
            continue
        waits = waits_of(book, actor, with_plain=False)
        if any(book.clashes(list(wait.names), wait.mode, ticket.names, ticket.mode) for wait in waits):
            is_closing = True
            continue
        seen.append(actor)
        todo += [other for wait in waits for other in holders(book, wait, with_offers=True)]
    is_doubtful = is_closing and len(seen) > book.rules["deadlockNodes"]
    return doubt if is_doubtful else is_closing


def fault_of_cycle(book: Book, rows: list[dict[str, Any]], newcomer: Wait, *, is_plain: bool) -> str | None:
    """Return what is wrong with a cycle that an entry tells, or None."""
    if not 2 <= len(rows) <= CYCLE_ROWS_MAX or len({row["actor"] for row in rows}) != len(rows):
        return "it has another number of rows than of actors"
    if rows[0]["actor"] != newcomer.actor:
        return "the newcomer is not first"
    for at, row in enumerate(rows):
        following = rows[(at + 1) % len(rows)]["actor"]
        fault = _fault_of_row(book, row, following, newcomer if at == 0 else None, is_plain=is_plain)
        if fault is not None:
            return f"row {at}: {fault}"
    return None if "aheadId" not in rows[-1] else "the last edge is not hard"


def fault_of_plea_cycle(book: Book, rows: list[dict[str, Any]], plea: Plea) -> str | None:
    """Return what is wrong with a cycle by which an ask was refused, or None."""
    book.pleas[plea.ask_id] = plea
    try:
        is_its = rows[0].get("askId") == plea.ask_id
        return fault_of_cycle(book, rows, Wait(plea.actor, (), ""), is_plain=False) if is_its else "it is another ask"
    finally:
        del book.pleas[plea.ask_id]


def _fault_of_row(
    book: Book, row: dict[str, Any], following: str, newcomer: Wait | None, *, is_plain: bool
) -> str | None:
    if "askId" in row and (newcomer is None or not newcomer.names):
        return _fault_of_plea(book, row, following)
    wait = newcomer or _told_wait(book, row, is_plain=is_plain)
    if wait is None:
        return f"{row['actor'][-6:]} has no such wait"
    if not counts(book, row["actor"]):
        return f"{row['actor'][-6:]} holds nothing"
    if wait.mode != row["mode"]:
        return f"the mode is {wait.mode}"
    if (row.get("ticketId") is not None) != (wait.ticket is not None):
        return "ticketId is there or not, and should be the other way"
    if "fencingToken" in row:
        lease = _lease(book, row["fencingToken"])
        if lease is None or lease.actor != following:
            return "the token is not the next actor's"
        if lease not in book.leases_in_the_way(wait.actor, list(wait.names), wait.mode):
            return f"{lease.lease_id} is not in the way"
        other: Lease | Ticket = lease
    else:
        found = [one for one in ahead(book, wait) if one.ticket_id == row["aheadId"] and one.actor == following]
        if not found:
            return "the ticket is not ahead"
        other = found[0]
    least = book.least(list(wait.names), wait.mode, other)
    return None if row["resource"] == least else f"the resource is not {least}"


def _fault_of_plea(book: Book, row: dict[str, Any], following: str) -> str | None:
    plea = next((one for one in book.live_pleas() if one.ask_id == row["askId"]), None)
    if plea is None or plea.actor != row["actor"]:
        return f"{row['actor'][-6:]} has no such ask"
    if not counts(book, row["actor"]):
        return f"{row['actor'][-6:]} holds nothing"
    if following not in plea.needed():
        return "the ask can do without the next actor"
    is_so = (row["resource"], row["mode"]) == (min(plea.names), plea.mode) and "ticketId" not in row
    return None if is_so else "it is told of another name or mode"


def _told_wait(book: Book, row: dict[str, Any], *, is_plain: bool) -> Wait | None:
    for wait in waits_of(book, row["actor"], with_plain=is_plain):
        if row.get("ticketId") == (wait.ticket.ticket_id if wait.ticket else None) and wait.mode == row["mode"]:
            return wait
    return None


def _lease(book: Book, token: int) -> Lease | None:
    return next((lease for lease in book.leases if lease.token == token and book.t_ms < book.end_ms(lease)), None)
