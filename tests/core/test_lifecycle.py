"""Every (standing, event) pair of a lease, walked through the public functions and held against the table.

A lease is brought into each standing by ordinary requests, then the event happens, and the whole entry, the standing
afterwards and every record of the lease are compared: a refused step leaves the lease as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from gateway.core.lifecycle import LIFECYCLE, Event, Standing
from gateway.core.opening import start_steps
from gateway.core.record_keys import ended_key
from gateway.core.records import Ended, Record
from gateway.core.refusal import LEASE_HELD, LEASE_UNKNOWN, NOT_HOLDER, OPERATOR_REQUIRED
from tests.core.book import Book
from tests.core.hall import Hall
from tests.core.requests import (
    NOW_MS,
    Ask,
    accept,
    acquire,
    add,
    break_,
    release,
    remove,
    renew,
    set_scheme,
    transfer,
)

SET = ("doc:a", "doc:b")
TTL_MS = 30_000
DELAY_MS = 5_000
SIGNED_EARLY_MS = NOW_MS - 1_000
# The lease id that every scene is about: entry 5 sets the scheme, in which reading is shared and bad ends delay.
LEASE_ID, TOKEN = "L6", NOW_MS * 1_000
SOON_MS, LATER_MS = NOW_MS + 10_000, NOW_MS + TTL_MS
SHARED = {Event.ACQUIRE_SHARING_BY_OTHER}  # of a lease in the mode read; all others are of one in the mode write


def scene(standing: Standing, mode: str) -> tuple[Hall, int]:
    """Return a ledger in which L6 of agent A on SET has this standing, and when it came to it.

    What took the place of a transferred or changed lease lives longer than L6 would have.
    """
    book = Hall("ABCD")
    book.play(NOW_MS, set_scheme("op", "doc", "read-safe", lockDelayMs=DELAY_MS))
    if standing is Standing.ABSENT:
        return book, NOW_MS
    book.play(NOW_MS, acquire("A", *SET, ttlMs=TTL_MS, mode=mode))
    assert list(book.leases()) == [LEASE_ID]
    other_mode = "read" if mode == "write" else "write"
    match standing:
        case Standing.RELEASED:
            book.play(NOW_MS, release("A", *SET, leaseId=LEASE_ID))
        case Standing.BROKEN:
            book.play(NOW_MS, break_("op", SET[0], TOKEN))
        case Standing.TRANSFERRED:
            book.play(NOW_MS, transfer("A", LEASE_ID, TOKEN, "C"))
            book.play(NOW_MS, accept("C", LEASE_ID, ttlMs=5 * TTL_MS))
        case Standing.CHANGED:
            book.play(NOW_MS, renew("A", LEASE_ID, mode=other_mode, ttlMs=5 * TTL_MS))
        case Standing.RETURNED:
            book.play(NOW_MS, remove("op", "A"))
            book.play(NOW_MS, add("op", "A"))
        case Standing.EXPIRED:
            book.run(LATER_MS)
            return book, LATER_MS
    return book, NOW_MS


REQUESTS: dict[Event, Callable[[int], Ask]] = {
    Event.ACQUIRE_BY_HOLDER: lambda t: acquire("A", *SET, at_ms=t),
    Event.ACQUIRE_OTHER_MODE_BY_HOLDER: lambda t: acquire("A", *SET, at_ms=t, mode="delete"),
    Event.ACQUIRE_OVERLAP_BY_HOLDER: lambda t: acquire("A", "doc:b", "doc:c", at_ms=t),
    Event.ACQUIRE_BY_OTHER: lambda t: acquire("B", "doc:b", "doc:c", at_ms=t),
    Event.ACQUIRE_SHARING_BY_OTHER: lambda t: acquire("B", "doc:b", "doc:c", at_ms=t, mode="read"),
    Event.ACQUIRE_DELAYED_BY_OTHER: lambda t: acquire("B", "doc:b", "doc:c", at_ms=t),
    Event.RENEW_BY_HOLDER: lambda t: renew("A", LEASE_ID, at_ms=t),
    Event.CHANGE_BY_HOLDER: lambda t: renew("A", LEASE_ID, at_ms=t, mode="delete"),
    Event.RENEW_BY_OTHER: lambda t: renew("B", LEASE_ID, at_ms=t),
    Event.RELEASE_ID_BY_HOLDER: lambda t: release("A", *SET, at_ms=t, leaseId=LEASE_ID),
    Event.RELEASE_ID_OTHER_SET: lambda t: release("A", "doc:b", at_ms=t, leaseId=LEASE_ID),
    Event.RELEASE_ID_BY_OTHER: lambda t: release("B", *SET, at_ms=t, leaseId=LEASE_ID),
    Event.RELEASE_BY_HOLDER: lambda t: release("A", *SET, at_ms=t),
    Event.RELEASE_SIGNED_EARLY: lambda t: release("A", *SET, at_ms=SIGNED_EARLY_MS),
    Event.RELEASE_BY_OTHER: lambda t: release("B", *SET, at_ms=t),
    Event.TRANSFER: lambda t: transfer("A", LEASE_ID, TOKEN, "B", at_ms=t),
    Event.TRANSFER_STALE: lambda t: transfer("A", LEASE_ID, TOKEN + 9, "B", at_ms=t),
    Event.TRANSFER_TO_HOLDER: lambda t: transfer("A", LEASE_ID, TOKEN, "A", at_ms=t),
    Event.TRANSFER_BY_OTHER: lambda t: transfer("B", LEASE_ID, TOKEN, "B", at_ms=t),
    Event.ACCEPT: lambda t: accept("B", LEASE_ID, at_ms=t),
    Event.ACCEPT_UNOFFERED: lambda t: accept("D", LEASE_ID, at_ms=t),
    Event.BREAK: lambda t: break_("op", SET[1], TOKEN, at_ms=t),
    Event.BREAK_STALE: lambda t: break_("op", SET[1], TOKEN + 9, at_ms=t),
    Event.BREAK_BY_OTHER: lambda t: break_("A", SET[1], TOKEN, at_ms=t),
}


def happen(book: Book, standing: Standing, event: Event, since_ms: int) -> list[str]:
    """Let the event happen and return the types of the entries it wrote, beside that of the removal of an agent."""
    first = len(book.leaves)
    t_ms = max(since_ms, SOON_MS)  # after any lock-delay of L6, but for the one that just expired
    if event is Event.END_REACHED:
        book.run(LATER_MS)
        return book.types(first)
    if event is Event.HOLDER_ENDED:
        book.play(t_ms, remove("op", "A", at_ms=t_ms))
        leaves = [book.leaf(seq) for seq in range(first + 1, len(book.leaves))]
        return [leaf.type.split("/")[1] for leaf in leaves if leaf.text("leaseId") == LEASE_ID]
    if event is Event.HOLIDAY:
        assert book.head is not None
        book.run(t_ms, steps=start_steps("start", is_clean=True, before_ms=book.head.time_ms), epoch=1)
        return book.types(first)
    if event is Event.ACQUIRE_DELAYED_BY_OTHER:
        t_ms = since_ms + DELAY_MS - 1
    elif standing is Standing.EXPIRED:
        t_ms = since_ms + DELAY_MS
    if event is Event.ACCEPT and standing is Standing.LIVE:
        book.play(t_ms, transfer("A", LEASE_ID, TOKEN, "B", at_ms=t_ms))
        first += 1
    book.play(t_ms, REQUESTS[event](t_ms))
    return book.types(first)


def standing_of(book: Book) -> Standing:
    if LEASE_ID in book.leases():
        return Standing.LIVE
    ended = book.shelf.get(ended_key(LEASE_ID))
    if ended is None:
        return Standing.ABSENT
    assert isinstance(ended, Ended)
    return Standing(ended.how)


def about_leases(book: Book) -> dict[str, Record]:
    kinds = ("lease/", "ended/", "handover/")
    return {key: record for key, record in book.shelf.records.items() if key.startswith(kinds)}


def about_this_one(records: dict[str, Record]) -> dict[str, Record]:
    return {key: record for key, record in records.items() if key.endswith(f"/{LEASE_ID}")}


PAIRS = list(product(Standing, Event))


@pytest.mark.parametrize(("standing", "event"), PAIRS, ids=[f"{s.name}-{e.name}" for s, e in PAIRS])
def test_the_table_says_what_happens(standing: Standing, event: Event) -> None:
    step = LIFECYCLE[standing, event]
    book, since_ms = scene(standing, "read" if event in SHARED else "write")
    assert standing_of(book) is standing
    before = about_leases(book)
    written = happen(book, standing, event, since_ms)
    assert book.audited() == []
    if event is Event.HOLIDAY:
        assert written == ["service.started", "lease.holiday"]
    else:
        assert written == ([step.entry] if step.entry else [])
    if step.entry == "lease.granted" and standing is not Standing.ABSENT:
        # A new lease stands beside the old one, which is as it was.
        assert set(book.leases()) - {key.removeprefix("lease/") for key in before} == {f"L{len(book.leaves) - 1}"}
        assert (standing_of(book), step.after) == (standing, Standing.LIVE)
    else:
        assert standing_of(book) is step.after
    if step.refusal is not None:
        leaf = book.leaf(len(book.leaves) - 1)
        assert (leaf.value["error"], leaf.value["number"]) == (step.refusal.name, step.refusal.number)
    if event is Event.HOLDER_ENDED and step.entry is None:  # what took its place is given back
        assert about_this_one(about_leases(book)) == about_this_one(before)
    elif step.refusal is not None or step.entry in (None, "release.repeated", "break.repeated"):
        assert about_leases(book) == before


def test_the_table_is_complete_and_refuses_what_the_protocol_refuses() -> None:
    assert set(LIFECYCLE) == set(PAIRS)
    assert LIFECYCLE[Standing.LIVE, Event.ACQUIRE_BY_OTHER].refusal is LEASE_HELD
    assert LIFECYCLE[Standing.ABSENT, Event.RENEW_BY_HOLDER].refusal is LEASE_UNKNOWN
    assert {LIFECYCLE[s, Event.RELEASE_BY_OTHER].refusal for s in Standing} == {NOT_HOLDER}
    assert {LIFECYCLE[s, Event.BREAK_BY_OTHER].refusal for s in Standing} == {OPERATOR_REQUIRED}


def test_only_a_grant_brings_a_lease_and_each_other_standing_is_the_end_of_some_event() -> None:
    born = {step.entry for (s, _), step in LIFECYCLE.items() if s is not Standing.LIVE and step.after is Standing.LIVE}
    ended: dict[Standing, set[Event]] = {}
    for (standing, event), step in LIFECYCLE.items():
        if standing is Standing.LIVE and step.after is not Standing.LIVE:
            ended.setdefault(step.after, set()).add(event)
        elif step.after not in (standing, Standing.LIVE):
            pytest.fail(f"{event} moves a lease that has ended")
    assert born == {"lease.granted"}
    assert ended == {
        Standing.RELEASED: {Event.RELEASE_ID_BY_HOLDER, Event.RELEASE_BY_HOLDER},
        Standing.EXPIRED: {Event.END_REACHED},
        Standing.BROKEN: {Event.BREAK},
        Standing.TRANSFERRED: {Event.ACCEPT},
        Standing.CHANGED: {Event.CHANGE_BY_HOLDER},
        Standing.RETURNED: {Event.HOLDER_ENDED},
    }


@pytest.mark.parametrize("standing", [s for s in Standing if s not in (Standing.ABSENT, Standing.LIVE)])
def test_how_a_lease_ended_is_told_with_its_entry_to_who_held_it_and_nobody_else(standing: Standing) -> None:
    book, since_ms = scene(standing, "write")
    late = renew("A", LEASE_ID, at_ms=since_ms)
    ended = book.shelf.get(ended_key(LEASE_ID))
    assert isinstance(ended, Ended)
    assert book.entry(since_ms, late).value["endedSeq"] == ended.seq
    for ask in (renew("B", LEASE_ID, at_ms=since_ms), accept("B", LEASE_ID, at_ms=since_ms)):
        assert "endedSeq" not in book.entry(since_ms, ask).value
    offer = book.entry(since_ms, transfer("op", LEASE_ID, TOKEN, "B", at_ms=since_ms))
    assert (offer.value["error"], "endedSeq" in offer.value) == (f"lease_{standing.value}", False)
    assert book.audited() == []
