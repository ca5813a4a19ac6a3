"""Trust: what releases earn, what expiries cost, and that no trick buys it back."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.record_keys import principal_key
from gateway.core.records import Principal
from tests.core.hall import Hall
from tests.core.requests import did_of
from verifier.entries import Leaf

A = did_of("A")
HOUR_MS = 3_600_000


def trust_of(one: Hall, name: str = "A") -> int:
    record = one.shelf.get(principal_key(did_of(name)))
    assert isinstance(record, Principal)
    return record.trust


def last(one: Hall) -> Leaf:
    return one.leaf(len(one.leaves) - 1)


def work(one: Hall, held_ms: int = 1_000) -> Any:
    """Hold something for a while and give it back; return what the release says about trust."""
    lease_id = one.hold("A", "repo:x")
    one.later(held_ms)
    one.free("A", lease_id)
    return last(one).value.get("trust")


def lose(one: Hall) -> Any:
    """Let something run out; return what the expiry says about trust."""
    one.hold("A", "repo:lost", ttlMs=1_000)
    one.later(1_000)
    return last(one).value.get("trust")


@pytest.mark.parametrize(("held_ms", "change"), [(999, None), (1_000, 500)])
def test_a_release_earns_after_a_real_hold(held_ms: int, change: int | None) -> None:
    one = Hall()
    rows = work(one, held_ms)
    assert rows == (None if change is None else [{"did": A, "change": change, "after": 50_000 + change}])


def test_each_change_names_the_entry_of_the_one_before() -> None:
    one = Hall()
    work(one)
    first = last(one).seq
    assert work(one) == [{"did": A, "change": 500, "after": 51_000, "previousSeq": first}]
    second = last(one).seq
    assert lose(one) == [{"did": A, "change": -5_000, "after": 46_000, "previousSeq": second}]
    assert one.audited() == []


def test_a_window_earns_so_much_and_no_more_and_begins_with_its_first_gain() -> None:
    """Ten empty pairs of acquire and release never buy back a lease that was left to run out."""
    one = Hall()
    lose(one)
    for _ in range(10):
        work(one)
    assert trust_of(one) == 46_000
    begun = one.t_ms - 9 * 1_000
    one.later(begun + HOUR_MS - 1_000 - one.t_ms - 1)
    assert work(one) is None, "the window is not over"
    assert work(one) is not None
    assert trust_of(one) == 46_500


def test_trust_has_a_top_and_a_bottom_and_says_nothing_when_it_does_not_move() -> None:
    one = Hall(trust_max=50_300, trust_loss=40_000)
    assert work(one)[0]["change"] == 300
    assert work(one) is None
    assert [lose(one)[0]["after"], lose(one)[0]["after"], lose(one)] == [10_300, 0, None]
    assert one.audited() == []


def test_what_cannot_be_earned_at_the_top_begins_no_window() -> None:
    one = Hall(trust_max=50_000)
    assert work(one) is None
    record = one.shelf.get(principal_key(A))
    assert isinstance(record, Principal) and (record.gained, record.trust_seq) == (0, None)


def test_trust_belongs_to_the_principal_and_a_break_costs_nothing() -> None:
    one = Hall()
    lose(one)
    assert (trust_of(one), one.shelf.get(principal_key(did_of("B")))) == (45_000, None)
    one.hold("B", "repo:x")
    assert trust_of(one, "B") == 50_000
