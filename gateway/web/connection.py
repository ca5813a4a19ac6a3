"""One connection: aiohttp's parser and limits, our own few lines from a parsed message to the bytes of its answer.

aiohttp parses, queues, pauses, times idle connections out and shuts down, as before. What is not used is its path for
general answers (a task, a request object, a header map and a stream writer per message), which cost more than parsing
and writing together: our answers are finished bytes with headers from our own tables. ADR 22 says what that saves and
what it binds us to; a test pins the two methods of aiohttp that `start` stands for.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from gateway.service import WallClock
from gateway.web.limits import (
    BODY_BYTES_MAX,
    FIELD_BYTES_MAX,
    HEADERS_MAX,
    LINE_BYTES_MAX,
    LINGERING_SECONDS,
    BodyTooLarge,
    read_body,
    require_c_parser,
)

if TYPE_CHECKING:
    from gateway.config import Settings

Fields = tuple[tuple[str, str], ...]
CLOSE = ("Connection", "close")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_VERSIONS = (HttpVersion10, HttpVersion11)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_log = logging.getLogger("tallystick.web")


@dataclass(slots=True)
class Reply:
    """A finished answer. `fields` are its own headers; length, date, id and connection are added when it is written.

    `allowance` is the one header line that differs from answer to answer, made of a number of ours and ended like a
    line; `fields` come from our tables, so that each combination of them is put together once.
    """

    status: int
    body: bytes
    fields: Fields
    request_id: str = ""
    allowance: str = ""


class Request:
    """A parsed message, nothing decoded: `raw_path` and `raw_headers` as they came, `content` the body's stream.

    `task` is the one that answers it. Asking asyncio who runs costs a system call before Python 3.12.
    `expects` is what the client wants to be told before it sends the body, in lower case. `is_abandonable`: what is
    done for it may end when the connection does, because it is worth nothing to anybody else.
    """

    __slots__ = (
        "_transport",
        "content",
        "expects",
        "headers",
        "is_abandonable",
        "is_last",
        "is_old",
        "method",
        "raw_headers",
        "raw_path",
        "remote",
        "task",
    )

    def __init__(
        self,
        message: RawRequestMessage,
        content: StreamReader,
        task: asyncio.Task[None],
        remote: str,
        transport: asyncio.WriteTransport | None,
    ) -> None:
        self._transport = transport
        self.content = content
        self.method = message.method
        self.raw_path = message.path
        self.headers: Mapping[str, str] = message.headers
        self.raw_headers = message.raw_headers
        self.is_last = message.should_close
        self.is_old = message.version == HttpVersion10
        self.expects = message.headers.get("Expect", "").lower()
        self.is_abandonable = False
        self.task = task
        self.remote = remote

    @property
    def is_held_back(self) -> bool:
        """Say whether the client still waits to be asked for its body, and may never send it."""
        return self.expects != "" and not self.is_old and not self.content.is_eof()

    async def read(self, deadline_s: float) -> bytes:
        """Return the body; a client that waits to be asked is asked now, so only when its head was acceptable."""
        if self.is_held_back:
            if int(self.headers.get("Content-Length", "0")) > BODY_BYTES_MAX:
                raise BodyTooLarge
            self.expects = ""
            if self._transport is not None:
                self._transport.write(_CONTINUE)
        return await read_body(self.content, deadline_s)

    def _cancel(self, error: BaseException) -> None:
        """Let nobody wait for the rest of a body that will not come; aiohttp calls this when a connection ends."""
        if not isinstance(error, asyncio.CancelledError):
            error = web.RequestPayloadError("the connection was lost")
            if self.is_abandonable:
                self.task.cancel()
        self.content.set_exception(error)


ErrorReply = Callable[[int], Reply]
Handler = Callable[[Request], Awaitable[Reply]]


@lru_cache(maxsize=256)
def _opening(status: int, fields: Fields, is_old: bool) -> str:
    """Return the status line and an answer's own headers; a few dozen exist, all from our tables."""
    lines = [f"HTTP/1.{0 if is_old else 1} {status} {HTTPStatus(status).phrase}", *map(": ".join, fields)]
    if any(map(_CONTROL.search, lines)):
        raise ValueError("a control character in a header")
    return "\r\n".join(lines)


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def head_of(reply: Reply, now_s: int, *, is_old: bool, is_kept: bool) -> bytes:
    """Return the head of an answer. Only what differs from the default of the version is said of the connection."""
    connection = ""
    if is_kept == is_old and CLOSE not in reply.fields:
        connection = f"Connection: {'keep-alive' if is_kept else 'close'}\r\n"
    return (
        f"{_opening(reply.status, reply.fields, is_old)}\r\nX-Request-Id: {reply.request_id}\r\n"
        f"{reply.allowance}Content-Length: {len(reply.body)}\r\nDate: {_date(now_s)}\r\n{connection}\r\n"
    ).encode("ascii")


class Connection(web.RequestHandler):
    """aiohttp's connection; its one task also runs the handlers, one message after the other."""

    __slots__ = ("_is_pipelined", "_remote", "_server", "_task")

    def __init__(self, server: Server, *, loop: asyncio.AbstractEventLoop, keepalive_seconds: float) -> None:
        # Named one by one: a wrong limit must fail, never fall back to aiohttp's own.
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=keepalive_seconds,
            lingering_time=LINGERING_SECONDS,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=HEADERS_MAX,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]  # aiohttp: None turns its own log off
        )
        self._server = server
        self._is_pipelined = False

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on reading if reading was paused; aiohttp also parses nothing and asks the transport, for every body."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    async def start(self) -> None:
        """Answer message after message until somebody closes."""
        task, peer = asyncio.current_task(), self.peername
        assert task is not None, "aiohttp runs this in a task"
        self._task, self._remote = task, str(peer[0]) if peer else ""
        try:
            while not self._force_close:
                message, content = await self._next()
                if not await self._serve(message, content):
                    break
                self._expect_next()
        except asyncio.CancelledError:
            self.force_close()
            raise
        except Exception:
            _log.exception("a connection failed")
            self.force_close()
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    async def _next(self) -> tuple[object, StreamReader]:
        """Return the next message, and let the parser go on where it stopped because of too many."""
        if self._is_pipelined and not self._messages and not self._upgraded and self._parser is not None:
            self.data_received(b"")  # the parser may hold whole messages that came while there were too many
        if not self._messages:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message, content = self._messages.popleft()
        self._is_pipelined = self._is_pipelined or bool(self._messages)
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()
        return message, content

    def _expect_next(self) -> None:
        """Let the connection idle from now on, for no longer than its time; both loops count by the monotonic clock."""
        close_time = monotonic() + self._keepalive_timeout
        self._next_keepalive_close_time = close_time
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_time, self._process_keepalive)

    async def _serve(self, message: object, content: StreamReader) -> bool:
        """Answer one message; False when it was the last of this connection."""
        if not isinstance(message, RawRequestMessage) or message.version not in _VERSIONS:
            await self._refuse(message)
            return False
        request = Request(message, content, self._task, self._remote, self.transport)
        self._request_in_progress = True
        self._current_request = request  # type: ignore[assignment]  # aiohttp calls its `_cancel`, nothing else
        try:
            reply = await self._server.answer(request)
            self._current_request = None
            is_kept = self._is_kept(request, reply)
            is_sent = await self._send(reply, is_old=request.is_old, is_kept=is_kept, is_bare=request.method == "HEAD")
        finally:
            self._current_request = None
            self._request_in_progress = False
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)
        self._keepalive = is_kept
        if is_sent and not content.is_eof():
            is_sent = await self._swallow(content)
        return is_sent and is_kept and not self._close

    def _is_kept(self, request: Request, reply: Reply) -> bool:
        """Say whether the connection goes on after this answer.

        Not after `Upgrade`, which nobody here takes up: the parser has stopped, and what follows may not be HTTP. Not
        after a body that was not asked for: it may come or not, and must not be taken for the next request.
        """
        if request.is_held_back or request.is_last or self._close or self._force_close or CLOSE in reply.fields:
            return False
        if "Upgrade" in request.headers:  # aiohttp drops the rest of such a packet, and does not always say so
            return False
        return not self._upgraded or bool(self._messages)

    async def _refuse(self, fault: object) -> None:
        """Answer what is not HTTP in our words, logged without a traceback."""
        status = int(getattr(fault, "status", 400))
        error = type(getattr(fault, "exc", None)).__name__
        _log.info("bad_http", extra={"fields": {"status": status, "error": error}})
        self._keepalive = False
        await self._send(self._server.error_reply(status), is_old=True, is_kept=False, is_bare=False)

    async def _send(self, reply: Reply, *, is_old: bool, is_kept: bool, is_bare: bool) -> bool:
        """Write an answer and wait until the client takes it; False when the client has gone."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        head = head_of(reply, self._server.clock.now_ms() // 1_000, is_old=is_old, is_kept=is_kept)
        if is_bare:
            transport.write(head)
        elif len(reply.body) <= BODY_BYTES_MAX:
            transport.write(head + reply.body)
        else:
            transport.write(head)
            transport.write(reply.body)
        return not self._paused or await self._is_taken(transport)

    async def _is_taken(self, transport: asyncio.Transport) -> bool:
        """Wait for a slow reader as long as it reads at all; who takes nothing for a keep-alive time is cut off."""
        left = transport.get_write_buffer_size()
        while True:
            try:
                async with asyncio.timeout(self._keepalive_timeout):
                    await self._drain_helper()
                return self.transport is not None
            except ConnectionError:
                return False
            except TimeoutError:
                self._drain_waiter = None
                if transport.get_write_buffer_size() >= left:
                    transport.abort()
                    return False
                left = transport.get_write_buffer_size()

    async def _swallow(self, content: StreamReader) -> bool:
        """Read the rest of a refused body for a while and throw it away: a reset would overtake the answer."""
        if self._force_close:
            return False
        try:
            async with asyncio.timeout(self._lingering_time):
                while not content.is_eof():
                    await content.readany()
        except (TimeoutError, ConnectionError, web.RequestPayloadError):
            return False
        return True


class Server(web.Server):
    """The low-level aiohttp server with a cap on connections: `answer` gets every request, parsed and unrouted."""

    def __init__(self, answer: Handler, *, error_reply: ErrorReply, settings: Settings, clock: WallClock) -> None:
        require_c_parser()
        super().__init__(_never, handler_cancellation=False)
        self.answer = answer
        self.error_reply = error_reply
        self.clock = clock
        self._connections_max = settings.connections_max
        self._keepalive_seconds = settings.keepalive_seconds

    def __call__(self) -> web.RequestHandler:
        """Make the protocol of one new connection."""
        return Connection(self, loop=self._loop, keepalive_seconds=self._keepalive_seconds)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Note a new connection, or close it when there are too many."""
        super().connection_made(handler, transport)
        if len(self._connections) > self._connections_max:
            transport.abort()


async def _never(request: web.BaseRequest) -> web.StreamResponse:
    raise AssertionError("a connection of ours calls `answer`, not aiohttp's handler")
