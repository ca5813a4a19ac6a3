"""The one file of the client that asks what time it is, and the one that sleeps.

Three clocks, never mixed: `wall_ms` stands in signatures and is what the gateway compares with its own; `steady_ms`
decides how long a lease is trusted; a sleep only bounds how soon somebody looks again. A suspended laptop is why
`steady_ms` is CLOCK_BOOTTIME where the system has it: CLOCK_MONOTONIC stands still while the lid is closed, and a lease
that ran out meanwhile would still look fresh.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

_STEADY_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the client may know about time; tests bring one they can move by hand."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 as this machine believes them; may jump."""

    def steady_ms(self) -> int:
        """Return milliseconds that never go back and go on while the machine sleeps; the zero means nothing."""

    async def sleep(self, duration_ms: int) -> None:
        """Return after at least `duration_ms`; much later when the event loop was blocked or the machine slept."""


class SystemClock:
    """The clocks of this machine."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.clock_gettime_ns(_STEADY_CLOCK) // 1_000_000

    async def sleep(self, duration_ms: int) -> None:
        await asyncio.sleep(max(duration_ms, 0) / 1000)
