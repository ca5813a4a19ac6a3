"""The pictures: who holds, who waits, who is deadlocked; nothing that is over, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.core.opening import start_steps
from gateway.core.state import Held, Lease, Parameters, Record, Waits, held_key, lease_key, wait_key
from gateway.core.waitview import ROWS_MAX, WAITS_MAX, Scene, leases_view, look, wait_view
from tests.core.book import Book, Shelf
from tests.core.requests import NOW_MS, acquire, add, did_of, release
from verifier.wire import JsonObject, encode_canonical

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
    assert wait_view(look(book.shelf, NOW_MS + 3, book.parameters)) == {
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
        "isTruncated": False,
        "counts": {"leases": 1, "held": 1, "waiting": 2},
    }
    assert book.snapshot() == before


def waiting(book: Book, t_ms: int) -> list[Any]:
    view = wait_view(look(book.shelf, t_ms, book.parameters))
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
    assert leases_view(look(book.shelf, NOW_MS + 5_000, book.parameters), A)["leases"] == []


def test_a_holiday_shows_in_the_end_that_holds() -> None:
    book = named_book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    t_ms = NOW_MS + 20_000
    book.run(t_ms, steps=start_steps("start", is_clean=True, before_ms=NOW_MS), epoch=1)
    assert leases_view(look(book.shelf, t_ms, book.parameters), A) == {
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
        "isTruncated": False,
        "counts": {"leases": 1},
    }


def test_the_leases_of_a_holder_are_its_own_oldest_token_first() -> None:
    book = named_book()
    for name, resource in (("A", "repo:z"), ("B", "repo:y"), ("A", "repo:x")):
        book.play(NOW_MS, acquire(name, resource))
    leases = leases_view(look(book.shelf, NOW_MS, book.parameters), A)["leases"]
    assert isinstance(leases, list)
    assert [lease["resources"] for lease in leases] == [["repo:z"], ["repo:x"]]  # type: ignore[index, call-overload]
    assert leases_view(look(book.shelf, NOW_MS, book.parameters), C)["leases"] == []


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
    assert wait_view(look(book.shelf, NOW_MS, book.parameters))["deadlocks"] == [pair]
    assert wait_view(look(book.shelf, NOW_MS, book.parameters), "repo:x")["deadlocks"] == [pair]
    assert wait_view(look(book.shelf, NOW_MS, book.parameters), "repo:other")["deadlocks"] == []


def test_a_pair_is_no_longer_deadlocked_when_one_edge_is_gone() -> None:
    released, later = crossed(), crossed()
    released.play(NOW_MS, release("B", "repo:y"))
    assert wait_view(look(released.shelf, NOW_MS, released.parameters))["deadlocks"] == []
    assert wait_view(look(later.shelf, NOW_MS + 10_000, later.parameters))["deadlocks"] == []
    assert wait_view(look(later.shelf, NOW_MS + 30_000, later.parameters))["deadlocks"] == []


def test_one_resource_can_be_asked_for_alone() -> None:
    book = crossed()
    rows = wait_view(look(book.shelf, NOW_MS, book.parameters), "repo:y")["resources"]
    assert isinstance(rows, list)
    assert [row["resource"] for row in rows] == ["repo:y"]  # type: ignore[index, call-overload]
    assert wait_view(look(book.shelf, NOW_MS, book.parameters), "repo:none")["resources"] == []


def test_the_pictures_are_plain_json() -> None:
    book = crossed()
    assert encode_canonical(wait_view(look(book.shelf, NOW_MS, book.parameters)))
    assert encode_canonical(leases_view(look(book.shelf, NOW_MS, book.parameters), A))


# -- what a stranger may cost ------------------------------------------------------------------------------------------


class CountingShelf(Shelf):
    """Counts what is walked through and what is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.walked = self.looked_up = 0

    def get(self, key: str) -> Record | None:
        self.looked_up += 1
        return super().get(key)

    def scan(self, prefix: str) -> Iterable[Record]:
        for record in super().scan(prefix):
            self.walked += 1
            yield record

    def hold(self, leases: int, each: int, holder: str = A) -> None:
        first = sum(isinstance(record, Lease) for record in self.records.values())
        for number in range(first, first + leases):
            lease_id, names = f"L{number}", tuple(f"repo:{number:06}/{at:03}" for at in range(each))
            self.records[lease_key(lease_id)] = Lease(
                lease_id, holder, holder, holder, names, "write", number, number, NOW_MS, 1, NOW_MS + 1, NOW_MS + 1
            )
            self.records.update((held_key(name), Held((lease_id,))) for name in names)

    def wait(self, principal: str, resource: str, since_ms: int = NOW_MS) -> None:
        record = Waits(principal, principal, resource, 1, since_ms, NOW_MS, "L0", NOW_MS + 60_000)
        self.records[wait_key(principal, resource)] = record

    def look(self) -> Scene:
        return look(self, NOW_MS, Parameters())


def rows_of(view: JsonObject, member: str = "resources") -> list[Any]:
    rows = view[member]
    assert isinstance(rows, list)
    return rows


def test_one_walk_for_a_scene_and_none_for_what_is_asked_of_it() -> None:
    """One agent held 11,520 resources, and every picture walked through them all."""
    shelf = CountingShelf()
    shelf.hold(45, 256)
    for number in range(30):
        shelf.wait(f"agent-{number:02}", "repo:000000/007", NOW_MS - number)
    scene = shelf.look()
    assert shelf.walked == 45 + 30
    assert shelf.looked_up < 10
    for ask in (wait_view(scene), wait_view(scene, "repo:000000/007"), wait_view(scene, "repo:none")):
        assert ask["counts"] == {"leases": 45, "held": 11_520, "waiting": 30}
    assert leases_view(scene, A)["counts"] == {"leases": 45}
    assert shelf.walked == 45 + 30
    assert shelf.looked_up < 4 * ROWS_MAX, "a row looks up its lease and a label"


def test_a_question_about_one_resource_looks_up_that_one() -> None:
    shelf = CountingShelf()
    shelf.hold(10_000, 1)
    scene = shelf.look()
    before = shelf.looked_up
    (row,) = rows_of(wait_view(scene, "repo:000000/000"))
    assert row["lease"]["leaseId"] == "L0"
    assert shelf.looked_up - before <= 4


def test_a_picture_is_bounded_and_says_so_and_shows_first_what_somebody_waits_for() -> None:
    shelf = CountingShelf()
    shelf.hold(45, 256)
    last = max(key for key in shelf.records if key.startswith("held/")).removeprefix("held/")
    shelf.wait(B, last)
    view = wait_view(shelf.look())
    rows = rows_of(view)
    names = [row["resource"] for row in rows]
    assert (len(names), view["isTruncated"]) == (ROWS_MAX, True)
    assert names == sorted(names)
    assert names[-1] == last and rows[-1]["waiting"][0]["actor"] == B
    assert len(encode_canonical(view)) < 500_000


def test_a_picture_of_exactly_as_much_as_fits_is_whole() -> None:
    shelf = CountingShelf()
    shelf.hold(4, 250)
    view = wait_view(shelf.look())
    assert (len(rows_of(view)), view["isTruncated"]) == (ROWS_MAX, False)
    shelf.hold(1, 1)
    view = wait_view(shelf.look())
    assert (len(rows_of(view)), view["isTruncated"]) == (ROWS_MAX, True)


def test_the_leases_of_one_holder_are_bounded_and_the_oldest_come_first() -> None:
    shelf = CountingShelf()
    shelf.hold(45, 256)
    shelf.hold(3, 1, B)
    scene = shelf.look()
    view = leases_view(scene, A)
    rows = rows_of(view, "leases")
    assert [row["leaseId"] for row in rows] == ["L0", "L1", "L2"]
    assert (len(rows), view["isTruncated"], view["counts"]) == (3, True, {"leases": 45})
    assert leases_view(scene, B)["isTruncated"] is False
    assert len(rows_of(leases_view(scene, B), "leases")) == 3


def test_more_who_wait_than_are_looked_at_are_counted_and_the_longest_are_shown() -> None:
    shelf = CountingShelf()
    for number in range(WAITS_MAX + 5):
        shelf.wait(f"agent-{number:04}", "repo:x", NOW_MS - number)
    view = wait_view(shelf.look(), "repo:x")
    (row,) = rows_of(view)
    waiting = row["waiting"]
    assert (len(waiting), view["isTruncated"]) == (WAITS_MAX, True)
    assert waiting[0]["actor"] == f"agent-{WAITS_MAX + 4:04}"
    assert view["counts"] == {"leases": 0, "held": 0, "waiting": WAITS_MAX + 5}
