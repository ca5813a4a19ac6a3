"""What a stranger may cost a witness: connections, time, bytes and rate, each with its reason.

A request is one packet as a rule. Logs keep their connection open, so an idle one is no sign of anything; a connection
that never sends a whole request is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.streams import StreamReader
from aiohttp.web_log import AccessLogger

LINE_BYTES_MAX = 1_024  # the longest path is 76 bytes
FIELD_BYTES_MAX = 4_096
HEADERS_MAX = 64
HEAD_SECONDS = 10.0  # until a new connection has sent its first whole head
BODY_SECONDS = 10.0
LINGERING_SECONDS = 1.0  # how long the rest of a refused body is read and thrown away, so that the answer gets there
KEEPALIVE_SECONDS = 75.0  # longer than the minute after which a quiet log shows its checkpoint again
HANDLER_SECONDS = 30.0  # a replay may take a few; the disk is allowed to be slow, not to hang
ADDRESSES_MAX = 4_096


class BodyTooLarge(Exception):
    """More bytes came than any request has."""


class Server(web.Server):
    """aiohttp's low-level server with a cap on connections and a deadline for the first request of each."""

    def __init__(self, handler: Callable[[web.BaseRequest], object], *, connections_max: int) -> None:
        super().__init__(
            handler,  # type: ignore[arg-type]  # a coroutine function; aiohttp's name for that type is private
            handler_cancellation=False,
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=LINGERING_SECONDS,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=HEADERS_MAX,
            auto_decompress=False,
            access_log_class=AccessLogger,
            access_log=None,
        )
        self._connections_max = connections_max
        self._silent: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Note a new connection, or close it when there are too many."""
        super().connection_made(handler, transport)
        if len(self._connections) > self._connections_max:
            transport.abort()
            return
        self._silent[transport] = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._give_up, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection; one whose transport is gone already was forgotten when it spoke or was given up."""
        if handler.transport is not None:
            self.has_spoken(handler.transport)
        super().connection_lost(handler, exc)

    def has_spoken(self, transport: asyncio.BaseTransport | None) -> None:
        """Let a connection live on: its first request came whole."""
        timer = self._silent.pop(transport, None) if transport is not None else None
        if timer is not None:
            timer.cancel()

    def _give_up(self, transport: asyncio.Transport) -> None:
        self._silent.pop(transport, None)
        transport.abort()


async def read_body(stream: StreamReader, length: int | None, bytes_max: int) -> bytes:
    """Return a body of at most `bytes_max` bytes; BodyTooLarge, or TimeoutError when it trickles."""
    if length is not None and length > bytes_max:
        raise BodyTooLarge
    body = bytearray()
    async with asyncio.timeout(BODY_SECONDS):
        while chunk := await stream.readany():
            body += chunk
            if len(body) > bytes_max:
                raise BodyTooLarge
    return bytes(body)


class Buckets:
    """A token bucket per address, in memory only: a restart forgives, and so does a crowd of other addresses."""

    def __init__(self, *, rate_per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}

    def wait_s(self, address: str) -> float:
        """Take a token and return 0, or return in how many seconds there is one."""
        now_s = self._clock()
        level, seen_s = self._levels.pop(address, (self._burst, now_s))
        level = min(self._burst, level + (now_s - seen_s) * self._rate_per_s)
        is_allowed = level >= 1
        self._levels[address] = (level - is_allowed, now_s)
        if len(self._levels) > ADDRESSES_MAX:
            del self._levels[next(iter(self._levels))]  # who asked last is at the end
        return 0.0 if is_allowed else (1 - level) / self._rate_per_s
