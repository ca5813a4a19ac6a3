"""The one caller of time. Everything below the doors takes its moment as an argument.

Log time is what decisions are made at and what entries carry. It follows the wall clock, but it is not the wall
clock: it never goes back, and it never runs ahead faster than this machine's own elapsed time plus a little. So
whoever can set the wall clock (an attacker on NTP, a restored snapshot) can't end everybody's leases at once.
Source: docs/protocol.md, time; security.md §7.
"""

from __future__ import annotations

import time
from typing import Protocol

from gateway.errors import Fatal

STEP_MS_MAX = 2_000  # how far the wall clock may be from what elapsed time makes of the last trusted head
HEARD_MS_MAX = 3 * STEP_MS_MAX  # how far ahead of ours the head of a node may be whose clock is bounded as ours is
BEHIND_MS_MAX = 2_000  # how far behind the head a wall clock may start


class Clocks(Protocol):
    """A wall clock and a clock that only counts forward, both in ms. Tests have one that stands still."""

    def now_ms(self) -> int:
        """Return the wall clock: ms since 1970 UTC."""

    def boottime_ms(self) -> int:
        """Return ms since some fixed moment, counting while the machine sleeps, never set."""


class Clock:
    """This machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boottime_ms(self) -> int:
        # CLOCK_MONOTONIC stands still while a machine is suspended; leases must not.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class StoreClock:
    """The wall clock of a store that several nodes write, in place of their own: as it was told last, and from there on
    by this machine's elapsed time. Before it was told anything, this machine's own.
    """

    __slots__ = ("_ahead_ms", "_clock")

    def __init__(self, clock: Clocks) -> None:
        self._clock = clock
        self._ahead_ms: int | None = None  # of boot time

    def told(self, wall_ms: int | None) -> None:
        """Take over what the store's clock says now; None: it has none."""
        if wall_ms is not None:
            self._ahead_ms = wall_ms - self._clock.boottime_ms()

    def now_ms(self) -> int:
        return self._clock.now_ms() if self._ahead_ms is None else self._ahead_ms + self._clock.boottime_ms()

    def boottime_ms(self) -> int:
        return self._clock.boottime_ms()


class LogClock:
    """Gives log time: `start` once per process, then `next` for each batch, `seen` after each commit, and `heard` for
    each batch that another node committed. `whose` wall clock it is, for people.

    A wall clock within STEP_MS_MAX of what elapsed time makes of the last trusted head is followed, and each commit at
    such a time is the next trusted head. One that was set further away, forward or back, is an alarm: log time goes on
    by elapsed time from the last trusted head, so no number of batches ever adds up to the step.
    """

    __slots__ = ("_boot_ms", "_clock", "_head_ms", "_is_followed", "_whose", "alarms")

    def __init__(self, clock: Clocks, whose: str = "this machine's") -> None:
        self._clock = clock
        self._whose = whose
        self._boot_ms: int | None = None  # None: no head was seen yet, there is nothing to measure against
        self._head_ms = 0
        self._is_followed = True
        self.alarms = 0
        """How often the wall clock was further away than can be; a metric."""

    def start(self, head_ms: int, *, is_accepted: bool = False) -> None:
        """Compare the wall clock with the ledger's. Fatal when it is behind, unless an operator accepted that."""
        behind_ms = head_ms - self._clock.now_ms()
        if behind_ms > BEHIND_MS_MAX and not is_accepted:
            raise Fatal(
                f"{self._whose} clock is {behind_ms / 1000:.1f} s behind the ledger's last entry; set the clock,"
                " or, if the ledger's time is the wrong one, start once with the clock accepted"
            )

    def next(self, head_ms: int) -> int:
        """Return the log time of the next batch, not before `head_ms`, the time of the last entry."""
        wall_ms, now_ms = self._clock.now_ms(), self._clamped_ms()
        self._is_followed = now_ms == wall_ms
        self.alarms += not self._is_followed
        return max(head_ms, now_ms)

    def peek(self, head_ms: int) -> int:
        """Return what log time would be now, for those who only look."""
        return max(head_ms, self._clamped_ms())

    def _clamped_ms(self) -> int:
        """Return the wall clock, moved to within STEP_MS_MAX of what elapsed time allows."""
        wall_ms = self._clock.now_ms()
        if self._boot_ms is None:
            return wall_ms
        elapsed_ms = self._elapsed_ms(self._boot_ms)
        return min(max(wall_ms, elapsed_ms - STEP_MS_MAX), elapsed_ms + STEP_MS_MAX)

    def _elapsed_ms(self, boot_ms: int) -> int:
        """Return what elapsed time makes of the last trusted head."""
        return self._head_ms + self._clock.boottime_ms() - boot_ms

    def seen(self, head_ms: int) -> None:
        """Note a commit at `head_ms`; it is the new trusted head if the wall clock was followed."""
        if self._is_followed or self._boot_ms is None:
            self._head_ms = head_ms
            self._boot_ms = self._clock.boottime_ms()

    def heard(self, head_ms: int) -> None:
        """Note that another node committed at `head_ms`, so that log time is there, whatever is elapsed here.

        It is the new trusted head only when it is further ahead than the other node's bounds and ours allow together:
        then that node started at such a time. Else two nodes would lend each other their two seconds again and again,
        and a step of the wall clock would become log time after all.
        """
        if self._boot_ms is not None and head_ms > self._elapsed_ms(self._boot_ms) + HEARD_MS_MAX:
            self._head_ms = head_ms
            self._boot_ms = self._clock.boottime_ms()
