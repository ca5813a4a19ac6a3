"""What other nodes wrote, for doors that would otherwise refuse what they only do not know yet.

A node knows the ledger as of its last batch, and of its last look at what others wrote. An agent that was enrolled a
moment ago at another node is a stranger here until then, so a door looks again before it turns somebody away. Where
nobody else writes there is nothing to know, and asking costs nothing.

Anybody can ask for what is unknown. So at most one look is under way, at most one begins in LOOK_SECONDS, and everybody
who came before it began shares it: strangers can't make a node ask its database more often than that.
Source: docs/architecture.md, several nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol, TypeVar

from gateway.errors import Busy
from gateway.ledger.history import Confirmed

LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 3.0  # the sequencer's own bound is 2 s
T = TypeVar("T")


class Follows(Protocol):
    """A sequencer, as far as this needs it."""

    @property
    def confirmed(self) -> Confirmed: ...
    async def catch_up(self) -> None: ...


class News:
    """Looks at what others wrote. `is_shared`: there may be others."""

    def __init__(self, ledger: Follows, *, is_shared: bool, seconds: float = LOOK_SECONDS) -> None:
        self._ledger = ledger
        self._is_shared = is_shared
        self._seconds = seconds
        self._next: asyncio.Task[None] | None = None  # has not begun to look: who comes now may share it
        self._latest: asyncio.Task[None] | None = None
        self._begun_s = 0.0
        self.looks = 0
        """How often it looked because somebody was unknown; a metric."""

    async def catch_up(self) -> bool:
        """Return when all that others wrote before this call is known; say whether anything came. Busy: it is not."""
        if not self._is_shared:
            return False
        size = self._ledger.confirmed.size
        if self._next is None:
            self._next = asyncio.create_task(self._look(self._latest), name="news")
            self._next.add_done_callback(_heard)
        try:
            await asyncio.wait_for(asyncio.shield(self._next), PATIENCE_SECONDS)
        except TimeoutError:
            raise Busy("store_busy") from None
        return self._ledger.confirmed.size > size

    async def _look(self, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        await asyncio.sleep(max(0.0, self._begun_s + self._seconds - monotonic()))
        self._latest, self._next, self._begun_s = self._next, None, monotonic()
        self.looks += 1
        await self._ledger.catch_up()

    async def known(self, look: Callable[[], T], *unknown: type[Exception]) -> T:
        """Return what `look` finds; where it says that something is `unknown`, look again after catching up."""
        try:
            return look()
        except unknown:
            if not await self.catch_up():
                raise
        return look()

    async def reached(self, size: int) -> bool:
        """Say whether the ledger has `size` entries that may be shown, after catching up if it seems shorter."""
        return self._ledger.confirmed.size >= size or (await self.catch_up() and self._ledger.confirmed.size >= size)


def _heard(task: asyncio.Task[None]) -> None:
    """Nobody need wait for the end of a look."""
    if not task.cancelled():
        task.exception()
