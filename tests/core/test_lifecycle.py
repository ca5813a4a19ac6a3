"""Every (standing, event) pair of a lease, walked through the public functions and held against the table.

A lease is brought into each standing by ordinary requests, then the event happens, and the whole entry, the standing
afterwards and every record of the lease are compared: a refused step leaves the lease as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from gateway.core.lifecycle import LIFECYCLE, Event, Standing, lifecycle_table
from gateway.core.opening import start_steps
from gateway.core.refusal import LEASE_HELD, LEASE_UNKNOWN, NOT_HOLDER
from gateway.core.state import Ended, Record, ended_key
from tests.core.book import Book
from tests.core.requests import NOW_MS, Ask, acquire, release, renew

SET = ("repo:a", "repo:b")
TTL_MS = 30_000
SIGNED_EARLY_MS = NOW_MS - 1_000
# The lease id that every scene is about: entry 5 is the first after the ledger's opening.
LEASE_ID = "L5"
SOON_MS, LATER_MS = NOW_MS + 10_000, NOW_MS + TTL_MS


def scene(standing: Standing) -> tuple[Book, int]:
    """Return a ledger in which L5 of agent A on SET has this standing, and the time of the next event."""
    book = Book()
    if standing is Standing.ABSENT:
        return book, SOON_MS
    book.play(NOW_MS, acquire("A", *SET, ttlMs=TTL_MS))
    assert list(book.leases()) == [LEASE_ID]
    if standing is Standing.RELEASED:
        book.play(NOW_MS, release("A", *SET, leaseId=LEASE_ID))
    if standing is Standing.EXPIRED:
        book.run(LATER_MS)
        return book, LATER_MS
    return book, SOON_MS


REQUESTS: dict[Event, Callable[[int], Ask]] = {
    Event.ACQUIRE_BY_HOLDER: lambda t: acquire("A", *SET, at_ms=t),
    Event.ACQUIRE_OVERLAP_BY_HOLDER: lambda t: acquire("A", "repo:b", "repo:c", at_ms=t),
    Event.ACQUIRE_BY_OTHER: lambda t: acquire("B", "repo:b", "repo:c", at_ms=t),
    Event.RENEW_BY_HOLDER: lambda t: renew("A", LEASE_ID, at_ms=t),
    Event.RENEW_BY_OTHER: lambda t: renew("B", LEASE_ID, at_ms=t),
    Event.RELEASE_ID_BY_HOLDER: lambda t: release("A", *SET, at_ms=t, leaseId=LEASE_ID),
    Event.RELEASE_ID_OTHER_SET: lambda t: release("A", "repo:b", at_ms=t, leaseId=LEASE_ID),
    Event.RELEASE_ID_BY_OTHER: lambda t: release("B", *SET, at_ms=t, leaseId=LEASE_ID),
    Event.RELEASE_BY_HOLDER: lambda t: release("A", *SET, at_ms=t),
    Event.RELEASE_SIGNED_EARLY: lambda t: release("A", *SET, at_ms=SIGNED_EARLY_MS),
    Event.RELEASE_BY_OTHER: lambda t: release("B", *SET, at_ms=t),
}


def happen(book: Book, event: Event, t_ms: int) -> list[str]:
    """Let the event happen and return the types of the entries it wrote."""
    first = len(book.leaves)
    if event is Event.END_REACHED:
        book.run(LATER_MS)
    elif event is Event.HOLIDAY:
        book.run(t_ms, steps=start_steps("start", is_clean=True, before_ms=t_ms - 5_000), epoch=1)
    else:
        book.play(t_ms, REQUESTS[event](t_ms))
    return book.types(first)


def standing_of(book: Book) -> Standing:
    if LEASE_ID in book.leases():
        return Standing.LIVE
    ended = book.shelf.get(ended_key(LEASE_ID))
    if ended is None:
        return Standing.ABSENT
    assert isinstance(ended, Ended)
    return {"released": Standing.RELEASED, "expired": Standing.EXPIRED}[ended.how]


def about_leases(book: Book) -> dict[str, Record]:
    return {key: r for key, r in book.shelf.records.items() if key.startswith(("lease/", "held/", "ended/"))}


PAIRS = list(product(Standing, Event))


@pytest.mark.parametrize(("standing", "event"), PAIRS, ids=[f"{s.name}-{e.name}" for s, e in PAIRS])
def test_the_table_says_what_happens(standing: Standing, event: Event) -> None:
    step = LIFECYCLE[standing, event]
    book, t_ms = scene(standing)
    assert standing_of(book) is standing
    before = about_leases(book)
    written = happen(book, event, t_ms)
    book.audit()
    if event is Event.HOLIDAY:
        assert written == ["service.started", "lease.holiday"]
    else:
        assert written == ([step.entry] if step.entry else [])
    if step.entry == "lease.granted" and standing is not Standing.ABSENT:
        # A new lease stands beside the old one, which is as it was.
        assert set(book.leases()) - {LEASE_ID} == {f"L{len(book.leaves) - 1}"}
        assert (standing_of(book), step.after) == (standing, Standing.LIVE)
    else:
        assert standing_of(book) is step.after
    if step.refusal is not None:
        leaf = book.leaf(len(book.leaves) - 1)
        assert (leaf.value["error"], leaf.value["number"]) == (step.refusal.name, step.refusal.number)
    if step.refusal is not None or step.entry is None or step.entry == "release.repeated":
        assert about_leases(book) == before


def test_the_table_is_complete_and_refuses_what_the_protocol_refuses() -> None:
    assert set(LIFECYCLE) == set(PAIRS)
    assert LIFECYCLE[Standing.LIVE, Event.ACQUIRE_BY_OTHER].refusal is LEASE_HELD
    assert LIFECYCLE[Standing.ABSENT, Event.RENEW_BY_HOLDER].refusal is LEASE_UNKNOWN
    assert {LIFECYCLE[s, Event.RELEASE_BY_OTHER].refusal for s in Standing} == {NOT_HOLDER}


def test_only_a_grant_brings_a_lease_and_only_two_events_end_one() -> None:
    born = {step.entry for (s, _), step in LIFECYCLE.items() if s is not Standing.LIVE and step.after is Standing.LIVE}
    ended = {e for (s, e), step in LIFECYCLE.items() if s is Standing.LIVE and step.after is not Standing.LIVE}
    assert born == {"lease.granted"}
    assert ended == {Event.RELEASE_ID_BY_HOLDER, Event.RELEASE_BY_HOLDER, Event.END_REACHED}


def test_the_printed_table_has_a_row_for_each_event() -> None:
    lines = lifecycle_table().splitlines()
    assert lines[0] == "| event | no lease | live | released | expired |"
    assert len(lines) == 2 + len(Event)
    assert (
        "| the holder renews | refused: `lease_unknown` | `lease.renewed` | refused: `lease_released` |"
        " refused: `lease_expired` |"
    ) in lines
    assert "| a holiday begins | – | – | – | – |" in lines
