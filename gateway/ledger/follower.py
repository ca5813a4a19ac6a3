"""Keeps a node up to date while nobody asks it for anything.

It polls, between half of `follow_ms` and all of it, so that nodes don't ask in step. A hint (some engines tell when
another node wrote) makes it look at once while a claim is parked here, and is worth nothing otherwise: a node that
nobody waits at is told of every batch of every other one. That a hint gets lost costs a poll and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from gateway.errors import Busy, Fatal

HINT_GAP_S = 0.025  # a follow may cost the store a commit; a busy one would be hinted at hundreds of times a second
_log = logging.getLogger("tallystick.follower")


class Follower:
    """`run` it as a task on the loop that made it. `is_awaited` says whether somebody is parked here."""

    def __init__(self, catch_up: Callable[[], Awaitable[None]], is_awaited: Callable[[], bool], follow_ms: int) -> None:
        self._catch_up = catch_up
        self._is_awaited = is_awaited
        self._follow_s = follow_ms / 1_000
        self._hinted = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def hint(self) -> None:
        """Say that another node may have written; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._hear)
        except RuntimeError:  # the loop is closed: nobody is left who would follow
            return

    def _hear(self) -> None:
        if self._is_awaited():
            self._hinted.set()

    async def run(self) -> None:
        """Follow until cancelled. A store that is busy is asked again at the next poll."""
        while True:
            await self._pause(self._follow_s * random.uniform(0.5, 1.0))
            self._hinted.clear()
            try:
                await self._catch_up()
            except Busy as busy:
                _log.debug("what other nodes wrote is not known yet: %s", busy)
            except Fatal:
                return  # the sequencer has said why

    async def _pause(self, seconds: float) -> None:
        """Wait for a hint, for `seconds` at most."""
        gap = min(HINT_GAP_S, seconds)
        await asyncio.sleep(gap)
        try:
            async with asyncio.timeout(seconds - gap):
                await self._hinted.wait()
        except TimeoutError:
            return
