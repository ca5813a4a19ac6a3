"""The pictures: who holds, who waits, who is deadlocked; nothing that is over, and nothing is written."""

from __future__ import annotations

from typing import Any

from gateway.core.opening import start_steps
from gateway.core.waitview import leases_view, wait_view
from tests.core.book import Book
from tests.core.requests import NOW_MS, acquire, add, did_of, release
from verifier.wire import encode_canonical

A, B, C = did_of("A"), did_of("B"), did_of("C")


def named_book() -> Book:
    book = Book(agents=("B", "C"))
    book.play(NOW_MS, add("op", "A", NOW_MS, name="worker-1"))
    return book


def lease_row(lease_id: str, token: int, ttl_ms: int = 30_000) -> dict[str, Any]:
    return {
        "leaseId": lease_id, "holder": A, "holderName": "worker-1", "fencingToken": token, "mode": "write",
        "grantedAtMs": NOW_MS, "expiresAtMs": NOW_MS + ttl_ms, "endsAtMs": NOW_MS + ttl_ms,
    }  # fmt: skip


def test_each_resource_shows_its_lease_and_its_waiters_the_longest_first() -> None:
    book = named_book()
    book.play(NOW_MS, acquire("A", "repo:x"))
    book.play(NOW_MS + 1, acquire("C", "repo:x"))
    book.play(NOW_MS + 2, acquire("B", "repo:x"))
    book.play(NOW_MS + 3, acquire("C", "repo:x"))
    before = book.snapshot()
    assert wait_view(book.shelf, NOW_MS + 3, book.parameters) == {
        "nowMs": NOW_MS + 3,
        "resources": [
            {
                "resource": "repo:x",
                "lease": lease_row("L4", NOW_MS * 1_000),
                "waiting": [
                    {"actor": C, "waits": 2, "sinceMs": NOW_MS + 1, "refusedAtMs": NOW_MS + 3},
                    {"actor": B, "waits": 1, "sinceMs": NOW_MS + 2, "refusedAtMs": NOW_MS + 2},
                ],
            }
        ],
        "deadlocks": [],
    }
    assert book.snapshot() == before


def waiting(book: Book, t_ms: int) -> list[Any]:
    view = wait_view(book.shelf, t_ms, book.parameters)
    rows = view["resources"]
    assert isinstance(rows, list)
    return [(row["resource"], row["lease"] is not None, len(row["waiting"])) for row in rows]  # type: ignore[index, call-overload, arg-type]


def test_a_refusal_counts_as_waiting_for_ten_seconds() -> None:
    book = named_book()
    book.play(NOW_MS, acquire("A", "repo:x"))
    book.play(NOW_MS, acquire("B", "repo:x"))
    assert waiting(book, NOW_MS + 9_999) == [("repo:x", True, 1)]
    assert waiting(book, NOW_MS + 10_000) == [("repo:x", True, 0)]


def test_a_waiter_is_shown_after_the_release_and_gone_with_its_grant() -> None:
    """Scenario 36 (bernstein#4706): waits never leak."""
    book = named_book()
    book.play(NOW_MS, acquire("A", "repo:x"))
    book.play(NOW_MS, acquire("B", "repo:x"))
    book.play(NOW_MS, release("A", "repo:x"))
    assert waiting(book, NOW_MS) == [("repo:x", False, 1)]
    book.play(NOW_MS, acquire("B", "repo:x"))
    assert waiting(book, NOW_MS) == [("repo:x", True, 0)]


def test_a_lease_whose_time_has_come_is_left_out_before_its_entry_is_written() -> None:
    book = named_book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    assert waiting(book, NOW_MS + 4_999) == [("repo:x", True, 0)]
    assert waiting(book, NOW_MS + 5_000) == []
    assert leases_view(book.shelf, NOW_MS + 5_000, A)["leases"] == []


def test_a_holiday_shows_in_the_end_that_holds() -> None:
    book = named_book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    t_ms = NOW_MS + 20_000
    book.run(t_ms, steps=start_steps("start", is_clean=True, before_ms=NOW_MS), epoch=1)
    assert leases_view(book.shelf, t_ms, A) == {
        "nowMs": t_ms,
        "holder": A,
        "leases": [
            {
                **lease_row("L4", NOW_MS * 1_000, 5_000),
                "resources": ["repo:x"],
                "ttlMs": 5_000,
                "holdUntilMs": NOW_MS + 3_600_000,
                "endsAtMs": t_ms + 20_000,
            }
        ],
    }


def test_the_leases_of_a_holder_are_its_own_oldest_token_first() -> None:
    book = named_book()
    for name, resource in (("A", "repo:z"), ("B", "repo:y"), ("A", "repo:x")):
        book.play(NOW_MS, acquire(name, resource))
    leases = leases_view(book.shelf, NOW_MS, A)["leases"]
    assert isinstance(leases, list)
    assert [lease["resources"] for lease in leases] == [["repo:z"], ["repo:x"]]  # type: ignore[index, call-overload]
    assert leases_view(book.shelf, NOW_MS, C)["leases"] == []


def crossed() -> Book:
    """A holds x and wants y, B holds y and wants x; C wants both and is wanted by nobody."""
    book = Book()
    for name, resource in (("A", "repo:x"), ("B", "repo:y")):
        book.play(NOW_MS, acquire(name, resource))
    for name, resource in (("A", "repo:y"), ("B", "repo:x"), ("C", "repo:x"), ("C", "repo:y")):
        book.play(NOW_MS, acquire(name, resource))
    return book


def test_two_who_wait_for_each_other_are_a_deadlocked_pair() -> None:
    """Scenario 35 (bernstein#4673): A holds x wants y, B holds y wants x."""
    book = crossed()
    pair = {"actors": sorted([A, B]), "resources": ["repo:x", "repo:y"]}
    assert wait_view(book.shelf, NOW_MS, book.parameters)["deadlocks"] == [pair]
    assert wait_view(book.shelf, NOW_MS, book.parameters, "repo:x")["deadlocks"] == [pair]
    assert wait_view(book.shelf, NOW_MS, book.parameters, "repo:other")["deadlocks"] == []


def test_a_pair_is_no_longer_deadlocked_when_one_edge_is_gone() -> None:
    released, later = crossed(), crossed()
    released.play(NOW_MS, release("B", "repo:y"))
    assert wait_view(released.shelf, NOW_MS, released.parameters)["deadlocks"] == []
    assert wait_view(later.shelf, NOW_MS + 10_000, later.parameters)["deadlocks"] == []
    assert wait_view(later.shelf, NOW_MS + 30_000, later.parameters)["deadlocks"] == []


def test_one_resource_can_be_asked_for_alone() -> None:
    book = crossed()
    rows = wait_view(book.shelf, NOW_MS, book.parameters, "repo:y")["resources"]
    assert isinstance(rows, list)
    assert [row["resource"] for row in rows] == ["repo:y"]  # type: ignore[index, call-overload]
    assert wait_view(book.shelf, NOW_MS, book.parameters, "repo:none")["resources"] == []


def test_the_pictures_are_plain_json() -> None:
    book = crossed()
    assert encode_canonical(wait_view(book.shelf, NOW_MS, book.parameters))
    assert encode_canonical(leases_view(book.shelf, NOW_MS, A))
