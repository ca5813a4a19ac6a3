"""Schemes: an operator sets them, and never under what somebody holds or waits for."""

from __future__ import annotations

import unicodedata

import pytest

from gateway.core.expiry import EXPIRIES_MAX
from gateway.core.lookup import scheme_at
from gateway.core.records import Scheme
from tests.core.book import own_members
from tests.core.hall import Hall
from tests.core.requests import NOW_MS, acquire, did_of, set_scheme


def test_a_scheme_says_all_of_itself_and_what_is_left_out_is_entry_0s() -> None:
    one = Hall(lock_delay_ms=700, max_hold_ms=90_000)
    leaf = one.say(set_scheme("op", "doc", "read-safe", isFolding=True))
    assert (leaf.type.split("/")[1], leaf.actor, own_members(leaf)) == (
        "scheme.set",
        did_of("op"),
        {
            "name": "doc",
            "class": "read-safe",
            "isFolding": True,
            "isUnicode": False,
            "lockDelayMs": 700,
            "maxHoldMs": 90_000,
            "unicodeVersion": unicodedata.unidata_version,
        },
    )
    assert scheme_at(one.shelf, "doc") == Scheme("doc", "read-safe", True, False, 700, 90_000, leaf.seq)
    assert one.audited() == []


def test_only_an_operator_sets_one() -> None:
    one = Hall()
    leaf = one.say(set_scheme("A", "doc", "read-safe"))
    assert own_members(leaf) == {"name": "doc", "error": "operator_required", "number": 105}


@pytest.mark.parametrize("what", ["lease", "delay", "ticket", "sub-tree"])
def test_what_lives_in_a_scheme_keeps_it_as_it_is(what: str) -> None:
    """Security rules 4: a scheme can't be loosened while a lease or ticket of it lives."""
    one = Hall(lock_delay_ms=5_000)
    held = "doc:**" if what == "sub-tree" else "doc:a/x"
    lease_id = one.hold("A", held, ttlMs=3_000)
    if what == "delay":
        one.later(3_000)
    if what == "ticket":
        one.line("B", "doc:b", "doc:a/x", giveUpMs=10_000)
        one.free("A", lease_id)
    changed = set_scheme("op", "doc", "read-safe", lockDelayMs=5_000)
    leaf = one.say(changed)
    assert own_members(leaf) == {"name": "doc", "error": "scheme_busy", "number": 303}
    same = set_scheme("op", "doc", "exclusive", lockDelayMs=5_000)
    assert one.say(same).text("error") == "", "the values that stand may be set at any time"
    assert one.say(set_scheme("op", "docs", "read-safe")).text("error") == "", "another scheme is free"
    one.later(100_000)
    one.later(5_000)
    assert one.say(set_scheme("op", "doc", "read-safe", lockDelayMs=5_000)).text("error") == ""
    assert one.audited() == []


def test_each_value_counts_as_a_change() -> None:
    one = Hall()
    one.hold("A", "doc:x")
    changes = ({"isFolding": True}, {"isUnicode": True}, {"lockDelayMs": 1}, {"maxHoldMs": 1_000})
    for change in changes:
        assert one.say(set_scheme("op", "doc", "exclusive", **change)).text("error") == "scheme_busy", change
    assert one.say(set_scheme("op", "doc", "irreversible")).text("error") == "scheme_busy"
    assert one.say(set_scheme("op", "doc", "exclusive")).text("error") == ""


def test_what_is_over_in_a_scheme_ends_before_it_changes_however_much_is_due() -> None:
    one = Hall()
    for start in range(0, EXPIRIES_MAX + 20, 138):
        one.run(NOW_MS, *(acquire("A", f"repo:{n}", ttlMs=1_000) for n in range(start, start + 138)))
    one.hold("A", "doc:x", ttlMs=2_000)
    one.t_ms += 2_000
    mark = len(one.leaves)
    assert one.say(set_scheme("op", "doc", "read-safe")).text("error") == ""
    assert one.types(mark)[-2:] == ["lease.expired", "scheme.set"]
    assert one.leaf(len(one.leaves) - 2).value["resources"] == ["doc:x"]
