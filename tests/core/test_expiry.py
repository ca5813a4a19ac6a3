"""Ends: never early, in order, before anything else touches the resource, and not during a holiday."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache

import pytest

from gateway.core.draft import Draft
from gateway.core.expiry import EXPIRIES_MAX, expire
from gateway.core.opening import start_steps
from gateway.core.outcome import Context, Recorded
from gateway.core.parameters import Parameters
from gateway.core.record_keys import ended_key
from gateway.core.records import Ended
from tests.core.book import Book, own_members
from tests.core.crew import Crew
from tests.core.requests import (
    NOW_MS,
    Ask,
    accept,
    acquire,
    batch,
    beat,
    break_,
    close,
    did_of,
    release,
    remove,
    remove_operator,
    renew,
    transfer,
)


def holiday(book: Book, t_ms: int, away_ms: int) -> None:
    """Start the service at `t_ms` after `away_ms` without an entry."""
    assert book.head is not None
    book.run(t_ms, steps=start_steps("recovery", is_clean=False, before_ms=t_ms - away_ms), epoch=book.head.epoch + 1)


@pytest.mark.parametrize(("t_ms", "written"), [(NOW_MS + 4_999, []), (NOW_MS + 5_000, ["lease.expired"])])
def test_a_lease_ends_when_log_time_reaches_its_end_and_never_before(t_ms: int, written: list[str]) -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    book.run(t_ms)
    assert book.types(6) == written
    book.audit()


def test_an_expiry_names_the_lease_its_holder_and_its_stated_end() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", "repo:y", ttlMs=5_000))
    book.run(NOW_MS + 7_000)
    leaf = book.leaf(6)
    assert (leaf.type, leaf.actor, leaf.request) == ("tallystick/lease.expired/1", "gateway", None)
    assert own_members(leaf) == {
        "resources": ["repo:x", "repo:y"],
        "leaseId": "L5",
        "fencingToken": NOW_MS * 1_000,
        "holder": did_of("A"),
        "grantSeq": 5,
        "expiresAtMs": NOW_MS + 5_000,
        "trust": [{"did": did_of("A"), "change": -5_000, "after": 45_000}],
    }
    assert book.leases() == {}
    assert book.shelf.get(ended_key("L5")) == Ended(did_of("A"), "expired", 6, NOW_MS + 7_000 + 86_400_000)


def test_a_sweep_goes_by_end_then_token_and_stops_at_its_bound() -> None:
    """Scenario L39 (river#1105): a full page makes progress, and the rest comes with the next one."""
    book = Book()
    for start in range(0, 300, 150):
        ttls = [9_000 - 10 * n if n % 3 else 5_000 for n in range(start, start + 150)]
        book.run(NOW_MS, *(acquire("A", f"repo:{start + n}", ttlMs=ttl) for n, ttl in enumerate(ttls)))
    expected = sorted((r.expires_at_ms, r.fencing_token, r.lease_id) for r in book.leases().values())
    first = len(book.leaves)
    for written in (EXPIRIES_MAX, 300 - EXPIRIES_MAX, 0):
        size = len(book.leaves)
        book.run(NOW_MS + 9_000)
        assert len(book.leaves) - size == written
    assert [book.leaf(seq).text("leaseId") for seq in range(first, first + 300)] == [row[2] for row in expected]


def crowded_book() -> tuple[Book, int]:
    """Return a ledger with so many due leases that a sweep is full, and the time at which those of B are due too.

    B's leases L305 (repo:late) and L306 (repo:later) are due last, the second one before the first.
    """
    return deepcopy(_crowded_book()), NOW_MS + 2_001


@cache
def _crowded_book() -> Book:
    book = Book()
    for start in range(0, 300, 150):
        book.run(NOW_MS, *(acquire("A", f"repo:{n}", ttlMs=1_000) for n in range(start, start + 150)))
    book.play(NOW_MS, acquire("B", "repo:late", ttlMs=2_001))
    book.play(NOW_MS, acquire("B", "repo:later", ttlMs=2_000))
    return book


def ended_after_the_sweep(book: Book, size: int) -> list[str]:
    """Return the lease of each expiry beyond the full sweep that began at `size`, then the types of what follows."""
    leaves = [book.leaf(seq) for seq in range(size + EXPIRIES_MAX, len(book.leaves))]
    return [leaf.text("leaseId") if "expired" in leaf.type else leaf.type.split("/")[1] for leaf in leaves]


TOUCHING = {
    "acquire": (lambda t: acquire("C", "repo:late", at_ms=t), ["L305", "lease.granted"]),
    "acquire both": (lambda t: acquire("C", "repo:late", "repo:later", at_ms=t), ["L306", "L305", "lease.granted"]),
    "acquire a sub-tree": (lambda t: acquire("C", "repo:late/**", at_ms=t), ["L305", "lease.granted"]),
    "transfer": (lambda t: transfer("B", "L305", 7, "C", at_ms=t), ["L305", "transfer.refused"]),
    "accept": (lambda t: accept("C", "L305", at_ms=t), ["L305", "acceptance.refused"]),
    "break": (lambda t: break_("op", "repo:late", 7, at_ms=t), ["L305", "break.refused"]),
    "renew": (lambda t: renew("B", "L305", at_ms=t), ["L305", "renewal.refused"]),
    "release": (lambda t: release("B", "repo:late", at_ms=t), ["L305", "release.refused"]),
    "release by id": (lambda t: release("B", "repo:x", at_ms=t, leaseId="L306"), ["L306", "release.refused"]),
}


@pytest.mark.parametrize(("make", "written"), TOUCHING.values(), ids=TOUCHING)
def test_a_command_never_meets_a_lease_whose_time_has_come_however_many_are_due(
    make: Callable[[int], Ask], written: list[str]
) -> None:
    """The lease it touches is beyond the sweep's bound, and still ends before the decision, oldest end first."""
    book, t_ms = crowded_book()
    size = len(book.leaves)
    book.run(t_ms, make(t_ms))
    assert ended_after_the_sweep(book, size) == written
    book.audit()


# --- sessions -------------------------------------------------------------------------------------------------------

IDLE_MS = 120_000


def test_a_sweep_goes_by_due_time_and_then_by_number_whatever_it_is() -> None:
    """A session is due when it was idle for too long; what it holds may be due before, with it, or only through it."""
    one = Crew()
    one.hold("B", "repo:of-b", ttlMs=IDLE_MS)  # due with the session, and has the lower number
    one.open("s", "A")
    one.hold("s", "repo:first", ttlMs=IDLE_MS - 1)
    one.hold("s", "repo:with", ttlMs=IDLE_MS)  # the session has the lower number and takes it along
    one.hold("s", "repo:after", ttlMs=IDLE_MS + 1)
    one.hold("B", "repo:last", ttlMs=IDLE_MS)
    mark = len(one.leaves)
    one.later(IDLE_MS)
    told = [(one.leaf(seq).type.split("/")[1], one.leaf(seq).value.get("resources")) for seq in range(mark, mark + 6)]
    assert told == [
        ("lease.expired", ["repo:first"]), ("lease.expired", ["repo:of-b"]), ("session.ended", None),
        ("lease.returned", ["repo:with"]), ("lease.returned", ["repo:after"]), ("lease.expired", ["repo:last"]),
    ]  # fmt: skip
    assert one.leaf(mark + 2).value["trust"] == [
        {"did": did_of("A"), "change": -5_000, "after": 40_000, "previousSeq": mark},
    ]  # fmt: skip


def crowd_with_a_session() -> tuple[Crew, int]:
    """Return a ledger with so many due leases that a sweep is full, and then session `s` of A, with a lease, is due."""
    one = deepcopy(_crowd_with_a_session())
    Crew.made.append(one)
    return one, len(one.leaves)


@cache
def _crowd_with_a_session() -> Crew:
    one = Crew(session_idle_ms=2_000)
    for start in range(0, 300, 150):
        one.run(NOW_MS, *(acquire("X", f"repo:{n}", ttlMs=1_000) for n in range(start, start + 150)))
    one.open("s", "A")
    one.hold("s", "repo:late")
    one.t_ms += 2_000
    Crew.made.remove(one)  # each copy is audited
    return one


OVERDUE: dict[str, tuple[Callable[[], Ask], list[str]]] = {
    "its own": (lambda: beat("s"), []),
    "its own release": (lambda: release("s", "repo:late"), []),
    "another's acquire": (lambda: acquire("B", "repo:late"), ["lease.granted"]),
    "its agent closes it": (lambda: close("A", "s"), ["closing.repeated"]),
    "its agent is removed": (lambda: remove("op", "A"), ["agent.removed"]),
    "its operator is removed": (lambda: remove_operator("op2", "op"), ["operator.removed"]),
    "its agent's batch": (lambda: batch("A", acquire("A", "repo:late")), ["batch.received", "lease.granted"]),
}


@pytest.mark.parametrize(("make", "written"), OVERDUE.values(), ids=OVERDUE)
def test_a_command_never_meets_a_session_whose_time_has_come_however_many_are_due(
    make: Callable[[], Ask], written: list[str]
) -> None:
    one, size = crowd_with_a_session()
    one.tell(make())
    assert one.types(size + EXPIRIES_MAX) == ["session.ended", "lease.returned", *written]
    ended = one.leaf(size + EXPIRIES_MAX)
    assert (ended.value["reason"], ended.value["leases"]) == ("idle", 1)


def test_what_had_lapsed_of_an_agent_is_not_given_back_by_its_removal_however_much_is_due() -> None:
    one, size = crowd_with_a_session()
    one.tell(remove("op2", "X"))
    assert one.types(size) == ["lease.expired"] * 300 + ["agent.removed"]


def test_a_session_that_is_not_touched_waits_for_the_next_sweep() -> None:
    one, size = crowd_with_a_session()
    assert one.tell(acquire("B", "repo:other")) == "lease.granted"
    assert one.types(size + EXPIRIES_MAX) == ["lease.granted"] and one.session("s").is_open
    one.run(one.t_ms)
    assert one.types(-2) == ["session.ended", "lease.returned"]


@pytest.mark.parametrize("how", ["renew", "release", "release by id"])
def test_every_call_that_touches_an_ended_lease_ends_it_first(how: str) -> None:
    book = Book(parameters=Parameters())
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=1_000))
    t_ms = NOW_MS + 1_000
    ask = {
        "renew": renew("A", "L5", at_ms=t_ms),
        "release": release("A", "repo:x", at_ms=t_ms),
        "release by id": release("A", "repo:x", at_ms=t_ms, leaseId="L5"),
    }[how]
    book.play(t_ms, ask)
    assert book.types(6)[0] == "lease.expired"
    assert book.leaf(7).value["error"] in ("lease_expired", "not_holder")


def test_an_expiry_comes_before_a_command_that_is_turned_away_and_is_true_all_the_same() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=1_000))
    t_ms = NOW_MS + 1_000
    batch = book.run(t_ms, acquire("nobody", "repo:x", at_ms=t_ms))
    assert not isinstance(batch.answers[0], Recorded)
    assert book.types(6) == ["lease.expired"]


def test_no_lease_ends_during_a_holiday_and_each_ends_right_after_it() -> None:
    """Scenario L7 (etcd#9496): an outage never ends leases in a mass, and costs one entry for all of them."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    book.play(NOW_MS, acquire("A", "repo:y", ttlMs=60_000))
    t_ms = NOW_MS + 20_000
    holiday(book, t_ms, away_ms=20_000)
    until = t_ms + 20_000
    size = len(book.leaves)
    book.run(until - 1)
    refused = book.entry(until - 1, acquire("B", "repo:x", at_ms=until - 1))
    assert refused.value["error"] == "lease_held"
    assert book.entry(until - 1, renew("A", "L5", at_ms=until - 1, ttlMs=1_000)).type == "tallystick/lease.renewed/1"
    assert "lease.expired" not in book.types(size)
    book.run(until + 998)
    assert book.types(-2) == ["lease.refused", "lease.renewed"] and sorted(book.leases()) == ["L5", "L6"]
    book.run(until + 999)
    assert book.types(-1) == ["lease.expired"] and list(book.leases()) == ["L6"]


def test_what_fell_due_in_a_holiday_ends_with_it() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    t_ms = NOW_MS + 4_000
    holiday(book, t_ms, away_ms=4_000)
    book.run(t_ms + 3_999)
    assert list(book.leases()) == ["L5"]
    book.run(t_ms + 4_000)
    assert book.types(-1) == ["lease.expired"]
    assert book.leaf(len(book.leaves) - 1).value["expiresAtMs"] == NOW_MS + 5_000


def test_a_refusal_in_a_holiday_counts_the_rest_from_the_effective_end() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    t_ms = NOW_MS + 4_000
    holiday(book, t_ms, away_ms=20_000)
    for _ in range(9):
        leaf = book.entry(t_ms, acquire("B", "repo:x", at_ms=t_ms))
    assert leaf.value["retryAfterMs"] == 20_000
    assert leaf.value["conflict"]["expiresAtMs"] == NOW_MS + 5_000  # type: ignore[index, call-overload]


def test_ending_a_lease_early_is_a_broken_invariant() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    draft = Draft(book.shelf)
    with pytest.raises(AssertionError, match="before its time"):
        expire(draft, book.leases()["L5"], Context(NOW_MS + 4_999, 6, Parameters()))
    assert draft.changes() == ()
