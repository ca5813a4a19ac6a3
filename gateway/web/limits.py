"""What a stranger may cost us: sizes, deadlines, connections and rates, each with its reason.

The figures are those of docs/protocol.md (limits of the door). aiohttp limits lines, fields and headers, but leaves a
trickled body open for ever and caps no connections; both are closed here and in connection.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from aiohttp import http_parser
from aiohttp.streams import StreamReader

# The core allows less (24 KiB, a batch 40); this bound is for what is read before anything is understood.
BODY_BYTES_MAX = 65_536
LINE_BYTES_MAX = 4_096  # method and target
FIELD_BYTES_MAX = 8_190
HEADERS_MAX = 64
LINGERING_SECONDS = 5  # how long an unread rest of a refused body is read and thrown away
PRINCIPALS_MAX = 65_536  # buckets kept; a full bucket is as good as none


class BodyTooLarge(Exception):
    """More than BODY_BYTES_MAX bytes came, whatever Content-Length said."""


class BodyTooSlow(Exception):
    """The body was not there within its deadline."""


class UnsafeParser(Exception):
    """aiohttp would parse HTTP with its pure-Python parser."""


class RateLimited(Exception):
    """This principal asks faster than entry 0 allows; nothing happened."""

    def __init__(self, retry_after_s: float, policy: str = "") -> None:
        super().__init__(f"retry after {retry_after_s:.3f} s")
        self.retry_after_s = retry_after_s
        self.policy = policy  # the allowance that is used up, if clients know it by a name


def require_c_parser() -> None:
    """Refuse to start on aiohttp's pure-Python parser, where most request-smuggling bugs were found."""
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise UnsafeParser("aiohttp runs without its C parser; install its wheel, or unset AIOHTTP_NO_EXTENSIONS")


async def read_body(stream: StreamReader, deadline_s: float) -> bytes:
    """Return the body as it came over the wire, read once; raises BodyTooLarge or BodyTooSlow.

    A body that arrived in one packet with its header, nearly every one, costs neither a timer nor a loop turn.
    """
    if stream.is_eof():
        body = stream.read_nowait()
        if len(body) > BODY_BYTES_MAX:
            raise BodyTooLarge
        return body
    try:
        async with asyncio.timeout(deadline_s):
            return await _read_to_end(stream)
    except TimeoutError:
        raise BodyTooSlow from None


async def _read_to_end(stream: StreamReader) -> bytes:
    body = bytearray()
    while chunk := await stream.readany():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise BodyTooLarge
    return bytes(body)


class Deadlines:
    """Ends handlers that take too long; looked after at most once a second.

    A timer per request costs a tenth of what a request costs, and nobody needs thirty seconds to the millisecond.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until_s: dict[asyncio.Task[object], float] = {}
        self._is_looking = False

    def begin(self, task: asyncio.Task[object]) -> None:
        """Give `task` its deadline from now on."""
        self._until_s[task] = monotonic() + self._seconds
        if not self._is_looking:
            self._look_later()

    def extend(self, task: asyncio.Task[object], seconds: float) -> None:
        """Give `task` more time, because its route may keep a request waiting before anything is done for it."""
        self._until_s[task] += seconds

    def end(self, task: asyncio.Task[object]) -> None:
        """Forget a task that is done."""
        del self._until_s[task]

    def has_passed(self, task: asyncio.Task[object]) -> bool:
        """Say whether `task` was cancelled because of its deadline, rather than by anybody else."""
        return self._until_s[task] <= monotonic()

    def _look_later(self) -> None:
        self._is_looking = True
        asyncio.get_running_loop().call_later(min(1.0, self._seconds), self._look)

    def _look(self) -> None:
        """Cancel who is over time; look again while somebody is left."""
        self._is_looking = False
        for task in self._until_s:
            if self.has_passed(task):
                task.cancel()
        if self._until_s:
            self._look_later()


class Buckets:
    """A token bucket per principal on a monotonic clock, in memory only: a restart forgives.

    `rate_per_s` tokens flow in per second up to `burst`. `clock` gives seconds that never go back. `policy` is what
    clients are told that this allowance is called.
    """

    def __init__(self, *, rate_per_s: float, burst: float, clock: Callable[[], float], policy: str = "") -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._policy = policy
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, principal: str, cost: int = 1) -> int:
        """Take `cost` tokens and return how many are left, or raise RateLimited with the time until they are there.

        What costs more than a bucket holds needs a full one and leaves a debt, so that a batch is possible at all and
        its principal waits for it afterwards, as long as it would have for its commands one by one.
        """
        now_s = self._clock()
        level = self._level(principal, now_s)
        needed = min(cost, int(self._burst))
        if level < needed:
            raise RateLimited((needed - level) / self._rate_per_s, self._policy)
        self._levels[principal] = (level - cost, now_s)
        if len(self._levels) > PRINCIPALS_MAX:
            self._forget(now_s)
        return max(0, int(level - cost))

    def __len__(self) -> int:
        return len(self._levels)

    def _level(self, principal: str, now_s: float) -> float:
        level, seen_s = self._levels.get(principal, (self._burst, now_s))
        return min(self._burst, level + (now_s - seen_s) * self._rate_per_s)

    def _forget(self, now_s: float) -> None:
        """Drop the full buckets; if strangers fill the table with others, drop the half that has most left, who gain
        least by it: neither a debt nor an empty bucket is forgotten because of a crowd."""
        levels = {who: self._level(who, now_s) for who in self._levels}
        if sum(level < self._burst for level in levels.values()) <= PRINCIPALS_MAX // 2:
            self._levels = {who: row for who, row in self._levels.items() if levels[who] < self._burst}
            return
        newest_first = list(self._levels)[::-1]
        kept = sorted(newest_first, key=levels.__getitem__)[: len(newest_first) // 2]
        self._levels = {who: self._levels[who] for who in reversed(kept)}
