"""Who waits for whom, by walking over everything: edges, reachability, and whether a printed cycle is one.

The checker does not search in the gateway's order. It asks whether a cycle through the newcomer exists at all, and
looks at each row of one that is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.sim.book import Book, Lease, Ticket

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
    """Say whether an actor holds something: a live lease, or an offered ticket where those count as held."""
    holds = any(lease.actor == actor and book.t_ms < book.end_ms(lease) for lease in book.leases)
    offered = with_offers and any(one.actor == actor and one.is_offered and book.is_live(one) for one in book.tickets)
    return holds or offered


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
    if not counts(book, newcomer.actor):
        return False
    seen: list[str] = []
    todo = holders(book, newcomer) + ([one.actor for one in ahead(book, newcomer)] if with_soft else [])
    while todo:
        actor = todo.pop()
        if actor in seen or actor == newcomer.actor or not counts(book, actor):
            continue
        seen.append(actor)
        for wait in waits_of(book, actor, with_plain=with_plain):
            found = holders(book, wait)
            if newcomer.actor in found:  # the last edge is always a hard one
                return True
            todo += found + ([one.actor for one in ahead(book, wait)] if with_soft else [])
    return False


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
    return None if "fencingToken" in rows[-1] else "the last edge is not hard"


def _fault_of_row(
    book: Book, row: dict[str, Any], following: str, newcomer: Wait | None, *, is_plain: bool
) -> str | None:
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


def _told_wait(book: Book, row: dict[str, Any], *, is_plain: bool) -> Wait | None:
    for wait in waits_of(book, row["actor"], with_plain=is_plain):
        if row.get("ticketId") == (wait.ticket.ticket_id if wait.ticket else None) and wait.mode == row["mode"]:
            return wait
    return None


def _lease(book: Book, token: int) -> Lease | None:
    return next((lease for lease in book.leases if lease.token == token and book.t_ms < book.end_ms(lease)), None)
