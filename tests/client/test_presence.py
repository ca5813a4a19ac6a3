"""Until when a session counts as present: arithmetic over what its entries say."""

from __future__ import annotations

import pytest

from gateway.client.presence import Presence
from tests.client.world import ALICE, NOW_MS, Book, key
from verifier.entries import Leaf, parse_leaf
from verifier.wire import JsonObject

IDLE_MS, HOUR_MS = 120_000, 3_600_000


def opened(lasts_ms: int = HOUR_MS, idle_ms: int = IDLE_MS) -> Leaf:
    book = Book()
    ends_ms = min(lasts_ms, idle_ms)
    members: JsonObject = {"verbs": ["lease"], "expiresAtMs": NOW_MS + lasts_ms, "endsIfIdleAtMs": NOW_MS + ends_ms}
    seq = book.append("session.opened", members, actor=key(5).did, time_ms=NOW_MS, behind=(ALICE.did, key(9).did))
    return parse_leaf(book.leaves[seq])


def test_each_entry_gives_trust_for_the_span_that_it_states_less_a_margin() -> None:
    presence = Presence(opened())
    presence.note(NOW_MS, 1_000)
    assert presence.ends_ms == 1_000 + 108_000
    presence.note(NOW_MS + 50_000, 50_000)
    assert presence.ends_ms == 50_000 + 108_000


def test_an_entry_that_is_heard_of_late_takes_no_trust_away() -> None:
    presence = Presence(opened())
    presence.note(NOW_MS + 60_000, 60_000)
    presence.note(NOW_MS + 59_000, 1_000)
    assert presence.ends_ms == 60_000 + 108_000
    assert presence.due_ms == 60_000 + 41_000


@pytest.mark.parametrize("left_ms", [100_000, 10_000, 1_500, 0, -5_000])
def test_near_the_end_of_the_delegation_only_that_counts(left_ms: int) -> None:
    presence = Presence(opened())
    presence.note(NOW_MS + HOUR_MS - left_ms, 7_000)
    assert presence.ends_ms <= 7_000 + max(0, left_ms - 1_000)
    assert presence.due_ms is None, "no beat would help"


def test_a_short_delegation_needs_no_beats_at_all() -> None:
    presence = Presence(opened(lasts_ms=60_000))
    presence.note(NOW_MS, 0)
    assert (presence.ends_ms, presence.due_ms) == (54_000, None)


@pytest.mark.parametrize("idle_ms", [3_000, 10_000, IDLE_MS, 900_000])
def test_two_beats_may_be_lost(idle_ms: int) -> None:
    presence = Presence(opened(idle_ms=idle_ms))
    presence.note(NOW_MS, 0)
    assert 2 * presence.period_ms <= presence.ends_ms * 1.25
    assert presence.period_ms < presence.ends_ms


def test_what_is_over_stays_over_and_the_first_reason_counts() -> None:
    presence = Presence(opened())
    presence.end("session_ended")
    presence.note(NOW_MS + 1, 1)
    presence.end("session_expired")
    assert (presence.ended, presence.due_ms) == ("session_ended", None)
