"""The pictures: who holds, who stands in line, who is deadlocked; nothing that is over, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterable
from time import process_time
from typing import Any

import pytest

from gateway.core.filing import terms_of
from gateway.core.opening import start_steps
from gateway.core.parameters import Parameters
from gateway.core.record_keys import (
    HOLIDAY_KEY,
    agent_key,
    delay_key,
    edge_key,
    handover_key,
    lease_key,
    principal_key,
    scheme_key,
    session_key,
    ticket_key,
    wait_key,
)
from gateway.core.records import (
    Agent,
    Counter,
    Delay,
    Edge,
    Handover,
    Lease,
    Principal,
    Record,
    Scheme,
    Session,
    Ticket,
    Waits,
)
from gateway.core.terms import met_by
from gateway.core.waitview import (
    ITEMS_MAX,
    LOOKS_MAX,
    ROW_ITEMS_MAX,
    ROWS_MAX,
    WAITS_MAX,
    Scene,
    leases_view,
    look,
    trust_view,
    wait_view,
)
from tests.core.book import Book, Shelf
from tests.core.hall import Hall
from tests.core.requests import NOW_MS, acquire, add, did_of, release, transfer
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
                "leases": [lease_row("L4", NOW_MS * 1_000)],
                "delays": [],
                "queue": [],
                "waiting": [
                    {"actor": C, "waits": 2, "sinceMs": NOW_MS + 1, "refusedAtMs": NOW_MS + 3},
                    {"actor": B, "waits": 1, "sinceMs": NOW_MS + 2, "refusedAtMs": NOW_MS + 2},
                ],
            }
        ],
        "approvals": [],
        "deadlocks": [],
        "isTruncated": False,
        "counts": {"leases": 1, "held": 1, "delays": 0, "waiting": 2, "queued": 0, "offered": 0, "asked": 0},
    }
    assert book.snapshot() == before


def waiting(book: Book, t_ms: int) -> list[Any]:
    view = wait_view(look(book.shelf, t_ms, book.parameters))
    rows = view["resources"]
    assert isinstance(rows, list)
    return [(row["resource"], row["leases"] != [], len(row["waiting"])) for row in rows]  # type: ignore[index, call-overload, arg-type]


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
        "offered": [],
        "isTruncated": False,
        "counts": {"leases": 1, "offered": 0},
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


# -- lines, sub-trees, sharing ----------------------------------------------------------------------------------------


class Stage(Shelf):
    """Records of our own, found by their words; counts what is walked through and what is looked up."""

    def __init__(self, *records: Record) -> None:
        super().__init__()
        self.walked = self.looked_up = 0
        self._filed: dict[str, list[str]] = {}
        for record in records:
            self.put(record)

    def put(self, record: Record) -> None:
        match record:
            case Lease():
                key = lease_key(record.lease_id)
            case Ticket():
                key = ticket_key(record.ticket_id)
            case Delay():
                key = delay_key(record.lease_id)
            case Waits():
                key = wait_key(record.principal, record.resource)
            case Edge():
                key = edge_key(record.actor)
            case Scheme():
                key = scheme_key(record.name)
            case _:
                raise AssertionError(record)
        self.records[key] = record
        for term in terms_of(record):
            self._filed.setdefault(term, []).append(key)

    def get(self, key: str) -> Record | None:
        self.looked_up += 1
        return super().get(key)

    def near(self, term: str) -> list[str]:
        return self._filed.get(term, [])

    def scan(self, prefix: str) -> Iterable[Record]:
        for record in super().scan(prefix):
            self.walked += 1
            yield record

    def look(self) -> Scene:
        return look(self, NOW_MS, Parameters())


def lease(number: int, holder: str, *names: str, mode: str = "write", ends_ms: int = NOW_MS + 30_000) -> Lease:
    return Lease(
        f"L{number}", holder, holder, holder, names, mode, number, number, NOW_MS, 30_000, ends_ms, ends_ms + 1
    )


def ticket(number: int, actor: str, *names: str, mode: str = "write", **members: Any) -> Ticket:
    found = Ticket(
        f"T{number}", actor, actor, actor, names, mode, 30_000, number, NOW_MS - 10,
        poll_by_ms=NOW_MS + 20_000, give_up_by_ms=NOW_MS + 90_000,
    )  # fmt: skip
    return found._replace(**members)


def refusal(principal: str, resource: str, since_ms: int = NOW_MS) -> Waits:
    return Waits(principal, principal, resource, 1, since_ms, NOW_MS, "L0", NOW_MS + 60_000)


def rows_of(view: JsonObject, member: str = "resources") -> list[Any]:
    rows = view[member]
    assert isinstance(rows, list)
    return rows


def row_of(view: JsonObject, resource: str) -> Any:
    return next(row for row in rows_of(view) if row["resource"] == resource)


def test_a_row_shows_all_who_share_and_the_line_behind_them() -> None:
    """Scenario 32: everybody sees their place."""
    stage = Stage(
        Scheme("doc", "read-safe", False, False, 0, 3_600_000, 1),
        lease(5, B, "doc:x", mode="read"), lease(4, A, "doc:x", mode="read"),
        ticket(8, "w2", "doc:x", mode="read", passes=3, reserve_until_ms=NOW_MS + 5_000),
        ticket(7, "w1", "doc:x", claim_by_ms=NOW_MS + 25_000), ticket(9, "w3", "doc:x", is_passed=True),
        ticket(10, "w4", "doc:x", "doc:y", reserve_until_ms=0), ticket(11, "gone", "doc:x", poll_by_ms=NOW_MS),
    )  # fmt: skip
    row = row_of(wait_view(stage.look()), "doc:x")
    assert [(one["leaseId"], one["holder"], one["mode"]) for one in row["leases"]] == [
        ("L4", A, "read"), ("L5", B, "read"),
    ]  # fmt: skip
    assert row["queue"] == [
        {
            "position": 1, "ticketId": "T7", "actor": "w1", "mode": "write", "state": "offered",
            "queuedAtMs": NOW_MS - 10, "pollByMs": NOW_MS + 20_000, "giveUpByMs": NOW_MS + 90_000,
            "endsAtMs": NOW_MS + 25_000, "passes": 0, "claimByMs": NOW_MS + 25_000,
        },
        {
            "position": 2, "ticketId": "T8", "actor": "w2", "mode": "read", "state": "reserved",
            "queuedAtMs": NOW_MS - 10, "pollByMs": NOW_MS + 20_000, "giveUpByMs": NOW_MS + 90_000,
            "endsAtMs": NOW_MS + 20_000, "passes": 3,
        },
        {
            "position": 3, "ticketId": "T9", "actor": "w3", "mode": "write", "state": "passed",
            "queuedAtMs": NOW_MS - 10, "pollByMs": NOW_MS + 20_000, "giveUpByMs": NOW_MS + 90_000,
            "endsAtMs": NOW_MS + 20_000, "passes": 0,
        },
        {
            "position": 4, "ticketId": "T10", "actor": "w4", "mode": "write", "state": "queued",
            "queuedAtMs": NOW_MS - 10, "pollByMs": NOW_MS + 20_000, "giveUpByMs": NOW_MS + 90_000,
            "endsAtMs": NOW_MS + 20_000, "passes": 0,
        },
    ]  # fmt: skip
    view = wait_view(stage.look())
    assert view["counts"] == {"leases": 2, "held": 2, "delays": 0, "waiting": 0, "queued": 3, "offered": 1, "asked": 0}
    assert [one["ticketId"] for one in row_of(view, "doc:y")["queue"]] == ["T10"]


def test_a_holiday_keeps_those_in_line_as_it_keeps_leases() -> None:
    stage = Stage(ticket(7, A, "lock:x", poll_by_ms=NOW_MS - 1))
    assert rows_of(wait_view(stage.look())) == []
    stage.records[HOLIDAY_KEY] = Counter(NOW_MS + 500)
    (row,) = rows_of(wait_view(stage.look()))
    assert (row["queue"][0]["pollByMs"], row["queue"][0]["endsAtMs"]) == (NOW_MS - 1, NOW_MS + 500)


def test_who_holds_a_sub_tree_is_shown_for_every_name_in_it() -> None:
    """Scenario 26's kind: overlap is exact, and seen from both sides."""
    stage = Stage(
        lease(4, A, "repo:app/**"), lease(5, B, "repo:apple"), ticket(7, "w", "repo:app/src/a.py"),
        refusal("r", "repo:app/b"),
    )  # fmt: skip
    scene = stage.look()
    view = wait_view(scene)
    inside = row_of(view, "repo:app/src/a.py")
    assert [(one["leaseId"], one["heldAs"]) for one in inside["leases"]] == [("L4", "repo:app/**")]
    assert [one["leaseId"] for one in row_of(view, "repo:app/b")["leases"]] == ["L4"]
    assert row_of(view, "repo:app/**")["queue"] == [], "each name in a tree has its own row"
    (row,) = rows_of(wait_view(scene, "repo:app/src/a.py"))
    assert row == inside
    (row,) = rows_of(wait_view(scene, "repo:app/src/other.py"))
    assert ([one["leaseId"] for one in row["leases"]], row["queue"], row["waiting"]) == (["L4"], [], [])
    (row,) = rows_of(wait_view(scene, "repo:app/src/**"))
    assert [(one["ticketId"], one["resource"]) for one in row["queue"]] == [("T7", "repo:app/src/a.py")]
    (row,) = rows_of(wait_view(scene, "repo:**"))
    assert [one["leaseId"] for one in row["leases"]] == ["L4", "L5"]
    assert [one["resource"] for one in row["waiting"]] == ["repo:app/b"]
    assert "resource" not in rows_of(wait_view(scene, "repo:app/b"))[0]["waiting"][0]
    assert rows_of(wait_view(scene, "repo:appl")) == []


def test_names_are_compared_as_their_scheme_says() -> None:
    """Scenario 24."""
    stage = Stage(
        Scheme("win", "exclusive", True, False, 0, 3_600_000, 1), lease(4, A, "win:Src/**"), lease(5, B, "repo:Src/A")
    )
    scene = stage.look()
    assert [one["heldAs"] for one in rows_of(wait_view(scene, "win:sRC/a"))[0]["leases"]] == ["win:Src/**"]
    assert rows_of(wait_view(scene, "repo:src/A")) == []
    assert len(rows_of(wait_view(scene, "repo:Src/A"))) == 1


def test_what_is_kept_free_shows_for_whom_and_until_when_and_is_not_held() -> None:
    """A name under a lock-delay looked free, and an acquire was refused."""
    stage = Stage(
        Delay("L4", A, A, ("lock:x", "lock:y/**"), "write", 9, NOW_MS + 5_000),
        Delay("L3", B, B, ("lock:x",), "read", 7, NOW_MS + 1_000), Delay("L2", C, C, ("lock:x",), "read", 5, NOW_MS),
    )  # fmt: skip
    scene = stage.look()
    own = {"holder": A, "mode": "write", "endsAtMs": NOW_MS + 5_000, "endedSeq": 9}
    (row,) = rows_of(wait_view(scene, "lock:x"))
    assert row == {
        "resource": "lock:x", "leases": [], "queue": [], "waiting": [],
        "delays": [{"holder": B, "mode": "read", "endsAtMs": NOW_MS + 1_000, "endedSeq": 7}, own],
    }  # fmt: skip
    (row,) = rows_of(wait_view(scene, "lock:y/z"))
    assert (row["leases"], row["delays"]) == ([], [own | {"heldAs": "lock:y/**"}])
    view = wait_view(scene)
    assert [row["resource"] for row in rows_of(view)] == ["lock:x", "lock:y/**"]
    assert view["counts"] == {"leases": 0, "held": 0, "delays": 2, "waiting": 0, "queued": 0, "offered": 0, "asked": 0}
    stage.records[HOLIDAY_KEY] = Counter(NOW_MS + 9_000)
    (row,) = rows_of(wait_view(stage.look(), "lock:y/z"))
    assert row["delays"][0]["endsAtMs"] == NOW_MS + 9_000


def test_delays_are_cut_like_leases_in_a_picture_of_everything() -> None:
    delays = [Delay(f"L{n}", A, A, ("lock:x",), "write", n, NOW_MS + 5_000) for n in reversed(range(10, 90))]
    scene = Stage(*delays).look()
    view = wait_view(scene)
    (row,) = rows_of(view)
    assert [one["endedSeq"] for one in row["delays"]] == list(range(10, 10 + ROW_ITEMS_MAX))
    assert (view["isTruncated"], len(rows_of(wait_view(scene, "lock:x"))[0]["delays"])) == (True, 80)


def test_an_offer_shows_in_the_row_of_its_lease_and_to_its_receiver() -> None:
    book = named_book()
    for name in ("repo:x", "repo:y"):
        book.play(NOW_MS, acquire("A", name))
    book.play(NOW_MS, transfer("A", "L4", NOW_MS * 1_000, "B"))
    scene = look(book.shelf, NOW_MS, book.parameters)
    offer = {"offeredTo": B, "byOperator": False, "seq": 6}
    (row,) = rows_of(wait_view(scene, "repo:x"))
    assert row["leases"] == [lease_row("L4", NOW_MS * 1_000) | {"offer": offer}]
    (row,) = rows_of(wait_view(scene, "repo:y"))
    assert "offer" not in row["leases"][0]
    view = leases_view(scene, B)
    assert [(one["leaseId"], one["resources"], one["offer"]) for one in rows_of(view, "offered")] == [
        ("L4", ["repo:x"], offer)
    ]
    assert (view["leases"], view["counts"], view["isTruncated"]) == ([], {"leases": 0, "offered": 1}, False)
    assert leases_view(scene, A)["offered"] == []
    assert leases_view(look(book.shelf, NOW_MS + 30_000, book.parameters), B)["offered"] == [], "it dies with its lease"


def test_what_a_holder_has_and_is_offered_is_bounded_together_its_own_first() -> None:
    own = [lease(number, B, *(f"lock:{number}/{at}" for at in range(250))) for number in range(1, 4)]
    stage = Stage(*own, lease(8, A, *(f"repo:{at}" for at in range(250))), lease(9, A, "repo:more"))
    for seq, lease_id in ((20, "L8"), (21, "L9")):
        stage.records[handover_key(lease_id)] = Handover(lease_id, B, "op", seq, True)
    view = leases_view(stage.look(), B)
    assert [row["leaseId"] for row in rows_of(view, "leases")] == ["L1", "L2", "L3"]
    assert [(row["leaseId"], row["offer"]["byOperator"]) for row in rows_of(view, "offered")] == [("L8", True)]
    assert (view["isTruncated"], view["counts"]) == (True, {"leases": 3, "offered": 2})


def pairs_of(stage: Stage) -> list[Any]:
    return rows_of(wait_view(stage.look()), "deadlocks")


def test_two_in_line_for_what_the_other_holds_are_a_deadlocked_pair() -> None:
    """Scenarios 35, 37: tickets and refusals are one graph."""
    both = {"actors": ["a", "b"], "resources": ["lock:x", "lock:y"]}
    held = (lease(4, "a", "lock:x"), lease(5, "b", "lock:y"))
    assert pairs_of(Stage(*held, ticket(7, "a", "lock:y"), ticket(8, "b", "lock:x"))) == [both]
    edge = Edge("b", "lock:x", "write", 8, NOW_MS + 1)
    assert pairs_of(Stage(*held, ticket(7, "a", "lock:y"), edge)) == [both]
    assert pairs_of(Stage(*held, ticket(7, "a", "lock:y"), edge._replace(until_ms=NOW_MS))) == []
    assert pairs_of(Stage(*held, ticket(7, "a", "lock:y", claim_by_ms=NOW_MS + 9), edge)) == [], "its turn has come"
    assert pairs_of(Stage(*held, ticket(7, "a", "lock:y"), ticket(8, "c", "lock:x"))) == []


def test_a_pair_may_meet_in_a_sub_tree_and_is_shown_for_every_name_it_touches() -> None:
    stage = Stage(
        lease(4, "a", "repo:a/x"), lease(5, "b", "repo:b/**"), ticket(7, "a", "repo:b/y"), ticket(8, "b", "repo:a/**")
    )
    pair = {"actors": ["a", "b"], "resources": ["repo:a/**", "repo:b/y"]}
    assert pairs_of(stage) == [pair]
    scene = stage.look()
    assert rows_of(wait_view(scene, "repo:a/z"), "deadlocks") == [pair]
    assert rows_of(wait_view(scene, "repo:b/z"), "deadlocks") == []


def test_who_may_share_does_not_wait_for_each_other() -> None:
    rows: list[Record] = [
        Scheme("doc", "read-safe", False, False, 0, 3_600_000, 1),
        lease(4, "a", "doc:x", mode="read"), lease(5, "b", "doc:y"), ticket(7, "a", "doc:y"),
    ]  # fmt: skip
    assert pairs_of(Stage(*rows, ticket(8, "b", "doc:x", mode="read"))) == []
    assert len(pairs_of(Stage(*rows, ticket(8, "b", "doc:x", mode="write")))) == 1


def test_what_sessions_hold_and_wait_for_is_shown_with_whom_they_act_for_and_how_it_is_called() -> None:
    hall = Hall("BC", lock_delay_ms=5_000)
    hall.say(add("op", "A", name="worker-1"))
    hall.open("s", "A", label="shell")
    hall.open("t", "A")
    hall.hold("s", "repo:x", ttlMs=600_000)
    hall.hold("t", "repo:y", ttlMs=1_000)
    hall.line("t", "repo:x", giveUpMs=600_000)
    hall.ask_for("t", "repo:x")
    hall.later(1_000)
    scene = look(hall.shelf, hall.t_ms, hall.parameters)
    row = row_of(wait_view(scene), "repo:x")
    picked = ("holder", "actor", "principal", "holderName", "actorName", "endsIfIdleAtMs")
    seen = [
        {name: one[name] for name in picked if name in one}
        for kind in ("leases", "queue", "waiting")
        for one in row[kind]
    ]
    of_t = {"actor": did_of("t"), "principal": A, "actorName": "worker-1"}
    assert seen == [
        {"holder": did_of("s"), "principal": A, "holderName": "shell", "endsIfIdleAtMs": NOW_MS + 120_000}, of_t, of_t,
    ]  # fmt: skip
    (delay,) = row_of(wait_view(scene), "repo:y")["delays"]
    assert (delay["holder"], delay["principal"], delay["holderName"]) == (did_of("t"), A, "worker-1")
    (lease,) = rows_of(leases_view(scene, did_of("s")), "leases")
    assert (lease["principal"], lease["endsIfIdleAtMs"]) == (A, NOW_MS + 120_000)
    assert rows_of(leases_view(scene, A), "leases") == [], "each key has its own"
    assert hall.audited() == []


def test_the_least_end_of_a_sessions_lease_is_shown_and_a_holiday_moves_it() -> None:
    hall = Hall("A")
    hall.open("s", "A", expiresAtMs=NOW_MS + 90_000)
    hall.hold("s", "repo:short", ttlMs=5_000)
    hall.hold("s", "repo:long")
    leases = rows_of(leases_view(look(hall.shelf, NOW_MS, hall.parameters), did_of("s")), "leases")
    assert [one["endsIfIdleAtMs"] - NOW_MS for one in leases] == [5_000, 90_000]
    hall.shelf.records[HOLIDAY_KEY] = Counter(NOW_MS + 30_000)
    leases = rows_of(leases_view(look(hall.shelf, NOW_MS, hall.parameters), did_of("s")), "leases")
    assert [one["endsIfIdleAtMs"] - NOW_MS for one in leases] == [30_000, 90_000]


def test_what_a_session_had_is_left_out_when_its_time_has_come_but_for_what_it_left_closed() -> None:
    hall = Hall("AB", lock_delay_ms=200_000)
    hall.open("s", "A")
    hall.hold("s", "repo:closed", ttlMs=1_000)
    hall.later(1_000)
    hall.hold("s", "repo:x")
    hall.hold("B", "repo:y")
    hall.line("s", "repo:y", giveUpMs=600_000)
    ticket = next(iter(hall.tickets().values()))
    hall.shelf.records[ticket_key(ticket.ticket_id)] = ticket._replace(poll_by_ms=NOW_MS + 600_000)
    for at_ms, counts in ((120_999, [2, 1, 1]), (121_000, [1, 1, 0])):
        view = wait_view(look(hall.shelf, NOW_MS + at_ms, hall.parameters))
        shown: Any = view["counts"]
        assert [shown["leases"], shown["delays"], shown["queued"]] == counts
    assert [row["resource"] for row in rows_of(view)] == ["repo:closed", "repo:y"]
    assert row_of(view, "repo:y")["queue"] == []
    hall.shelf.records[HOLIDAY_KEY] = Counter(NOW_MS + 121_001)
    shown = wait_view(look(hall.shelf, NOW_MS + 121_000, hall.parameters))["counts"]
    assert (shown["leases"], shown["queued"]) == (2, 1), "a holiday keeps what a session has"


def test_a_session_has_the_trust_of_its_agent() -> None:
    hall = Hall("A")
    hall.open("s", "A")
    hall.hold("s", "repo:x", ttlMs=1_000)
    hall.later(1_000)
    seq = len(hall.leaves) - 1
    seen = {"nowMs": hall.t_ms, "trust": 45_000, "lastSeq": seq}
    assert trust_view(hall.shelf, did_of("s"), hall.t_ms, hall.parameters) == seen | {
        "did": did_of("s"),
        "principal": A,
    }
    assert trust_view(hall.shelf, A, hall.t_ms, hall.parameters) == seen | {"did": A}


def test_trust_is_shown_with_the_entry_that_changed_it_last() -> None:
    stage = Stage()
    assert trust_view(stage, A, NOW_MS, Parameters()) == {"nowMs": NOW_MS, "did": A, "trust": 50_000, "lastSeq": None}
    stage.records[principal_key(A)] = Principal(A, 45_000, 9, 0, 0, 0)
    assert trust_view(stage, A, NOW_MS, Parameters()) == {"nowMs": NOW_MS, "did": A, "trust": 45_000, "lastSeq": 9}


# -- what a stranger may cost ------------------------------------------------------------------------------------------


def crowd(leases: int, each: int, holder: str = A) -> list[Lease]:
    names = [tuple(f"repo:{number:06}/{at:03}" for at in range(each)) for number in range(leases)]
    return [lease(number, holder, *names[number], ends_ms=NOW_MS + 1) for number in range(leases)]


def test_one_walk_for_a_scene_and_none_for_what_is_asked_of_it() -> None:
    """One agent held 11,520 resources, and every picture walked through them all."""
    waits = [refusal(f"agent-{number:02}", "repo:000000/007", NOW_MS - number) for number in range(30)]
    stage = Stage(*crowd(45, 256), *waits)
    stage.records[agent_key(A)] = Agent(A, "worker-1", 1, None, "op")
    scene = stage.look()
    assert stage.walked == 45 + 30
    for asked in (wait_view(scene), wait_view(scene, "repo:000000/007"), wait_view(scene, "repo:none")):
        assert asked["counts"] == {
            "leases": 45,
            "held": 11_520,
            "delays": 0,
            "waiting": 30,
            "queued": 0,
            "offered": 0,
            "asked": 0,
        }
    assert leases_view(scene, A)["counts"] == {"leases": 45, "offered": 0}
    assert stage.walked == 45 + 30
    assert stage.looked_up < 5 * ROWS_MAX, "a row looks up its scheme, its lease and a label"


def test_sessions_that_are_over_make_no_picture_dearer() -> None:
    """They are remembered for a week; who holds nothing is nobody's business here."""
    stage = Stage(lease(1, "S", "repo:x"), ticket(2, "T", "repo:x"))
    for number, did in enumerate(["S", "T", *map(str, range(500))], 3):
        over = Session(did, None, A, "op", ("lease",), (), number, NOW_MS + 1, NOW_MS + 1, ended_seq=number + 600)
        stage.records[session_key(did)] = over._replace(ended_seq=None) if did in "ST" else over
    scene = stage.look()
    assert (stage.walked, stage.looked_up < 20, sorted(scene.sessions)) == (1, True, ["S", "T"])


def test_a_question_about_one_resource_looks_up_that_one() -> None:
    stage = Stage(*crowd(10_000, 1))
    scene = stage.look()
    before = stage.looked_up
    (row,) = rows_of(wait_view(scene, "repo:000000/000"))
    assert row["leases"][0]["leaseId"] == "L0"
    assert stage.looked_up - before <= 5


def test_a_picture_is_bounded_and_says_so_and_shows_first_what_somebody_waits_for() -> None:
    stage = Stage(*crowd(45, 256), refusal(B, "repo:000044/255"), ticket(99, "w", "repo:000044/254"))
    view = wait_view(stage.look())
    rows = rows_of(view)
    names = [row["resource"] for row in rows]
    assert (len(names), view["isTruncated"]) == (ROWS_MAX, True)
    assert names == sorted(names)
    assert names[-2:] == ["repo:000044/254", "repo:000044/255"]
    assert rows[-1]["waiting"][0]["actor"] == B and rows[-2]["queue"][0]["actor"] == "w"
    assert len(encode_canonical(view)) < 500_000


def test_a_picture_of_exactly_as_much_as_fits_is_whole() -> None:
    stage = Stage(*crowd(4, 250))
    view = wait_view(stage.look())
    assert (len(rows_of(view)), view["isTruncated"]) == (ROWS_MAX, False)
    stage.put(lease(99, A, "repo:more"))
    view = wait_view(stage.look())
    assert (len(rows_of(view)), view["isTruncated"]) == (ROWS_MAX, True)


def test_the_leases_of_one_holder_are_bounded_and_the_oldest_come_first() -> None:
    stage = Stage(*crowd(45, 256), *(lease(50 + number, B, f"lock:{number}") for number in range(3)))
    scene = stage.look()
    view = leases_view(scene, A)
    rows = rows_of(view, "leases")
    assert [row["leaseId"] for row in rows] == ["L0", "L1", "L2"]
    assert (len(rows), view["isTruncated"], view["counts"]) == (3, True, {"leases": 45, "offered": 0})
    assert leases_view(scene, B)["isTruncated"] is False
    assert len(rows_of(leases_view(scene, B), "leases")) == 3


def test_more_who_wait_than_are_looked_at_are_counted_and_the_longest_are_shown() -> None:
    waits = [refusal(f"agent-{number:04}", "repo:x", NOW_MS - number) for number in range(WAITS_MAX + 5)]
    view = wait_view(Stage(*waits).look(), "repo:x")
    (row,) = rows_of(view)
    waiting = row["waiting"]
    assert (len(waiting), view["isTruncated"]) == (WAITS_MAX, True)
    assert waiting[0]["actor"] == f"agent-{WAITS_MAX + 4:04}"
    assert view["counts"] == {
        "leases": 0,
        "held": 0,
        "delays": 0,
        "waiting": WAITS_MAX + 5,
        "queued": 0,
        "offered": 0,
        "asked": 0,
    }


def test_a_long_line_is_cut_in_a_picture_of_everything_and_longer_where_it_is_asked_for() -> None:
    line = [ticket(number, f"w{number}", "lock:x") for number in reversed(range(10, 310))]
    stage = Stage(*line, lease(999, A, "lock:x"))
    scene = stage.look()
    view = wait_view(scene)
    (row,) = rows_of(view)
    assert [one["ticketId"] for one in row["queue"]] == [f"T{number}" for number in range(10, 10 + ROW_ITEMS_MAX)]
    assert ([one["leaseId"] for one in row["leases"]], view["isTruncated"]) == (["L999"], True), "found behind them all"
    view = wait_view(scene, "lock:x")
    (row,) = rows_of(view)
    assert ([one["position"] for one in row["queue"]], view["isTruncated"]) == (list(range(1, 301)), False)


def forest(trees: int, leaves: int) -> list[Record]:
    """Sub-trees one inside the other, and names in the innermost: everything overlaps everything."""
    depth = "/".join(["d"] * 29)
    rows: list[Record] = [Scheme("doc", "read-safe", False, False, 0, 3_600_000, 1)]
    rows += [lease(n, f"t{n}", f"doc:{'d/' * (n % 29)}**", mode="read") for n in range(1, trees + 1)]
    rows += [lease(10_000 + n, f"l{n}", f"doc:{depth}/{n}", mode="read") for n in range(leaves)]
    rows += [ticket(90_000 + n, f"l{n}", f"doc:{'d/' * (n % 29)}**") for n in range(leaves // 4)]
    return rows


def mixed(count: int) -> list[Record]:
    """Names that are found for each other and then differ in case: each look finds nothing."""
    leases = [lease(n, f"a{n}", f"repo:D/{n}") for n in range(count)]
    return [*leases, *(ticket(90_000 + n, f"a{n}", f"repo:d/{n}/**", "repo:d/**") for n in range(count // 10))]


@pytest.mark.parametrize("records", [forest(400, 4_000), mixed(4_000)], ids=["forest", "mixed"])
def test_names_that_all_overlap_cost_no_more_than_so_many_looks(records: list[Record]) -> None:
    """Four thousand leases in nested sub-trees: what is left out is said."""
    stage = Stage(*records)
    started_s = process_time()
    scene = stage.look()
    looked_s, before = process_time() - started_s, stage.looked_up
    name = "doc:**" if records[0].__class__ is Scheme else "repo:d/**"
    for asked in (None, name):
        view = wait_view(scene, asked)
        assert view["isTruncated"] is True
        assert sum(len(row["leases"]) + len(row["queue"]) for row in rows_of(view)) <= ITEMS_MAX
        assert stage.looked_up - before < 6 * LOOKS_MAX
        before = stage.looked_up
    assert looked_s < 1 and process_time() - started_s < 2


def test_what_strangers_ask_for_stays_in_no_cache() -> None:
    met_by.cache_clear()
    scene = Stage().look()
    for number in range(100):
        wait_view(scene, f"lock:{number}")
    assert met_by.cache_info().currsize == 0
