"""Log time: never back, never ahead of elapsed time by more than two seconds."""

from __future__ import annotations

import pytest

from gateway.clock import Clock, LogClock
from gateway.errors import Fatal
from tests.world import StillClock

T = 1_780_000_000_000


def test_before_the_first_commit_the_wall_clock_is_taken_but_never_behind_the_head() -> None:
    clock = LogClock(StillClock(T))
    assert clock.next(T - 5_000) == T
    assert clock.next(T + 1_500) == T + 1_500
    assert clock.alarms == 0


def test_it_follows_a_wall_clock_that_runs_as_it_should() -> None:
    still = StillClock(T)
    clock = LogClock(still)
    clock.seen(T)
    still.advance(3_600_000)
    assert clock.next(T) == T + 3_600_000
    assert clock.alarms == 0


def test_a_wall_clock_set_forward_gains_two_seconds_and_an_alarm() -> None:
    still = StillClock(T)
    clock = LogClock(still)
    clock.seen(T)
    still.advance(10)
    still.jump(86_400_000)
    assert (clock.peek(T), clock.alarms) == (T + 2_010, 0)
    assert (clock.next(T), clock.alarms) == (T + 2_010, 1)


def run(clock: LogClock, still: StillClock, head_ms: int, batches: int, each_ms: int) -> int:
    """Commit `batches` batches, `each_ms` apart; return the time of the last."""
    for _ in range(batches):
        still.advance(each_ms)
        head_ms = clock.next(head_ms)
        clock.seen(head_ms)
    return head_ms


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_stepped_wall_clock_never_becomes_log_time_however_many_batches_follow(step_ms: int) -> None:
    """Scenario 16: leases go on by elapsed time; without the anchor 1,800 batches would swallow the hour."""
    still = StillClock(T)
    clock = LogClock(still)
    head_ms = run(clock, still, T, 10, 10)
    still.jump(step_ms)
    after_ms = run(clock, still, head_ms, 2_000, 10)
    assert head_ms + 20_000 - 2_000 <= after_ms <= head_ms + 20_000 + 2_000
    assert clock.alarms == 2_000


def test_a_wall_clock_that_was_set_right_again_is_followed_again() -> None:
    still = StillClock(T)
    clock = LogClock(still)
    head_ms = run(clock, still, T, 10, 10)
    still.jump(60_000)
    head_ms = run(clock, still, head_ms, 10, 10)
    still.jump(-60_000)
    head_ms = run(clock, still, head_ms, 500, 10)
    assert (head_ms, clock.alarms) == (still.now_ms(), 10)


def test_a_clock_that_drifts_slowly_is_followed_for_ever() -> None:
    """One per cent fast, far beyond any crystal: each step is small, so none is an alarm."""
    still = StillClock(T)
    clock = LogClock(still)
    head_ms = T
    for _ in range(1_000):
        still.jump(1)
        head_ms = run(clock, still, head_ms, 1, 100)
    assert (head_ms, clock.alarms) == (T + 101_000, 0)


def test_a_step_of_two_seconds_is_no_alarm() -> None:
    still = StillClock(T)
    clock = LogClock(still)
    clock.seen(T)
    still.jump(2_000)
    assert (clock.next(T), clock.alarms) == (T + 2_000, 0)


def test_a_wall_clock_set_back_a_little_stops_log_time_until_it_has_caught_up() -> None:
    still = StillClock(T)
    clock = LogClock(still)
    clock.seen(T)
    still.jump(-1_500)
    assert (clock.next(T), clock.alarms) == (T, 0)
    still.advance(1_501)
    assert (clock.next(T), clock.alarms) == (T + 1, 0)


@pytest.mark.parametrize(("behind_ms", "is_refused"), [(-1, False), (0, False), (2_000, False), (2_001, True)])
def test_a_start_behind_the_head_needs_an_operators_word(behind_ms: int, is_refused: bool) -> None:
    clock = LogClock(StillClock(T))
    if is_refused:
        with pytest.raises(Fatal, match=r"2\.0 s behind"):
            clock.start(T + behind_ms)
    else:
        clock.start(T + behind_ms)
    clock.start(T + behind_ms, is_accepted=True)


def test_the_real_clocks_count_in_milliseconds() -> None:
    clock = Clock()
    assert 1_700_000_000_000 < clock.now_ms() < 4_000_000_000_000
    assert 0 < clock.boottime_ms() <= clock.boottime_ms()
