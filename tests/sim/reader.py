"""What people are shown, against what the checker knows: the picture of leases and queues at a confirmed head (I13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.core.parameters import Parameters
from gateway.core.records import Record, Session, Usage
from gateway.core.usage import in_windows
from gateway.core.waitview import look, wait_view
from gateway.ledger.live import Live
from tests.sim.admissions import windows
from tests.sim.book import Book, Violation


class Shelf:
    """The live records as the pictures read them."""

    def __init__(self, live: Live) -> None:
        self.get = live.get
        self.due = live.due
        self.near = live.near
        self._live = live

    def scan(self, prefix: str) -> Iterator[Record]:
        return (record for _, record in self._live.scan(prefix))


def check_picture(live: Live, book: Book, t_ms: int, parameters: Parameters) -> None:
    """Demand that the picture at `t_ms` shows exactly what lives by the checker's book."""
    rows: Any = wait_view(look(Shelf(live), t_ms, parameters))["resources"]
    leases = {
        (one["leaseId"], one["holder"], one["fencingToken"], one["mode"]) for row in rows for one in row["leases"]
    }
    gone = {one.did for one in book.open_sessions() if t_ms >= book.session_end_ms(one)}
    wanted = {
        (one.lease_id, one.actor, one.token, one.mode)
        for one in book.leases
        if t_ms < book.end_ms(one) and one.actor not in gone
    }
    if leases != wanted:
        raise Violation("I13", f"the picture shows leases {sorted(leases)}, not {sorted(wanted)}")
    _check_sessions(live, book)
    _check_usage(live, book, t_ms)
    told = {(one["ticketId"], one["actor"], one["endsAtMs"], one["passes"]) for row in rows for one in row["queue"]}
    waiting = {
        (one.ticket_id, one.actor, book.deadline_ms(one), one.passes)
        for one in book.tickets
        if t_ms < book.deadline_ms(one) and one.actor not in gone
    }
    if told != waiting:
        raise Violation("I13", f"the picture shows tickets {sorted(told)}, not {sorted(waiting)}")


def _check_sessions(live: Live, book: Book) -> None:
    """Demand that every open session is known with its end, and whether two processes use its key."""
    found = (record for _, record in live.scan("session/") if isinstance(record, Session) and record.is_open)
    told = {(one.did, one.principal, one.opened_seq, one.due_at_ms, one.shared_seq) for one in found}
    wanted = {
        (one.did, one.principal, one.seq, min(one.idle_by_ms, one.expires_ms), one.shared_seq)
        for one in book.open_sessions()
    }
    if told != wanted:
        raise Violation("I13", f"the picture shows sessions {told - wanted}, not {wanted - told}")


def _check_usage(live: Live, book: Book, t_ms: int) -> None:
    """Demand that what is counted is the sum of the leaves, and what was denied apart from it (I16)."""
    told: dict[tuple[str, str], tuple[int, ...]] = {}
    for key, record in live.scan("usage/"):
        assert isinstance(record, Usage), "it is filed as one"
        _, of, who = key.split("/", 2)
        now = in_windows(record, t_ms)
        counts = (now.minute_count, now.day_count, now.day_cost, now.total, now.total_cost)
        told[of, who] = (*counts, record.denied)
    whose = {(what.split(" ")[-1], who) for what, who, _ in book.used_up}
    wanted = {
        (of, who): tuple(book.used_up[place] for place in (*windows(of, who, t_ms), (f"denied {of}", who, 0)))
        for of, who in whose
    }
    if _kept(told) != _kept(wanted):
        raise Violation("I16", f"counted is {told}, not {wanted}")


def _kept(counted: dict[tuple[str, str], tuple[int, ...]]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return what has to be known: of a scheme the windows of the day, and nothing when that is over."""
    rows = {place: row[:3] if place[0] == "scheme" else row for place, row in counted.items()}
    return {place: row for place, row in rows.items() if place[0] != "scheme" or any(row)}
