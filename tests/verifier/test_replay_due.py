"""What is over and not ended: an auditor finds it at the next request, unless the gateway had its hands full."""

from __future__ import annotations

import pytest

from tests.verifier import maker
from tests.verifier.judging import audit, of_ledger, pins, remarks
from tests.verifier.maker import ALICE, BOB, Ledger
from verifier.replay import due
from verifier.replay.due import Due
from verifier.replay.state import State
from verifier.replay.things import Lease


def with_leases() -> Ledger:
    """Three leases of a second, and one that goes on."""
    ledger = maker.opened()
    for name in "abc":
        ledger.grant(ALICE, f"lock:{name}", ttl_ms=1_000)
    ledger.grant(BOB, "lock:d", ttl_ms=100_000)
    return ledger


def test_who_forgets_a_lease_is_found_at_the_next_request_on_any_name() -> None:
    ledger = with_leases()
    ledger.time_ms += 1_000
    ledger.grant(BOB, "lock:e")
    found = of_ledger(ledger)
    assert [code for _, _, code in found] == ["expiry_overdue"] and found[0][1] == len(ledger.leaves) - 1


def test_more_than_a_batch_ends_may_wait_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """By two a batch: the third is ended after a request, and must be before the one after that."""
    monkeypatch.setattr(due, "ENDS_MAX", 2)
    ledger = with_leases()
    first = len(ledger.leaves) - 4
    ledger.time_ms += 1_000
    ledger.expire(first)
    ledger.expire(first + 1)
    ledger.grant(BOB, "lock:e")
    assert of_ledger(ledger) == []
    ledger.time_ms += 1
    ledger.grant(BOB, "lock:f")
    assert [code for _, _, code in of_ledger(ledger)] == ["expiry_overdue"]


def test_a_minute_after_its_end_a_report_remarks_what_was_not_ended() -> None:
    for over_ms, wanted in ((60_000, False), (60_001, True)):
        ledger = maker.opened()
        ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
        lease = ledger.grant(BOB, "lock:b", ttl_ms=1_000 + over_ms)
        ledger.time_ms += 1_000 + over_ms
        ledger.expire(lease)
        report = audit(ledger.export(), pins(ledger))
        assert report.facts["outstanding"] == {"count": 1, "oldestMs": over_ms}
        assert (report.exit_code, "ends_outstanding" in remarks(report)) == (0, wanted)


def over(delays: int) -> tuple[State, Due]:
    """A state in which a lease of entry 5, and so many delays, are over since 1,000."""
    state, follower = State(), Due()
    state.place(Lease(5, "a", "a", ("lock:a",), ("lock:a",), "write", 1, 0, 1_000, 9_000))
    follower._ends.append((1_000, 5))
    follower._delays += [1_000] * delays
    return state, follower


def codes(state: State, follower: Due, now_ms: int, own_entries: int = 0) -> list[str]:
    """Return what is found at a request before which the gateway wrote so many entries of its own."""
    state.now_ms = now_ms
    return [code for code, _ in follower.faults(state, own_entries)]


def test_delays_that_are_over_excuse_as_many_ends_once() -> None:
    state, follower = over(300)
    assert codes(state, follower, 1_000) == []  # 256 of them came first
    assert codes(state, follower, 1_001) == ["expiry_overdue"]


def test_a_full_batch_of_ends_excuses_what_it_leaves() -> None:
    state, follower = over(0)
    assert codes(state, follower, 1_000, own_entries=256) == []
    assert codes(state, follower, 1_001, own_entries=255) == ["expiry_overdue"]


def test_nothing_is_overdue_before_its_end_or_in_a_holiday() -> None:
    state, follower = over(0)
    assert codes(state, follower, 999) == []
    state.holiday_ms = 5_000
    assert codes(state, follower, 4_999) == []
    assert codes(state, follower, 5_000) == ["expiry_overdue"]


def test_delays_alone_are_all_looked_at_in_one_batch() -> None:
    state, follower = over(300)
    state.displace(state.lease[5])
    assert codes(state, follower, 1_000) == []
    assert follower._unswept == 0
