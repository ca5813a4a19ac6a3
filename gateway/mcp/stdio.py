"""The Model Context Protocol over standard input and output: one message a line, any number of calls at once.

House rules of this file:

* Nothing but messages leaves on standard output. The stream is taken away first and what anybody prints goes to
  standard error, because one stray line would end the conversation.
* The end of input is the end: what merely waits is called off, what was asked of the ledger has FINISH_S to be
  answered, then the process goes. So a host that is killed leaves nothing behind.
* A call that is called off gets no answer. Reading and writing have threads of their own, which end with the process:
  a host that stops reading holds up its own answers and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread

from gateway.mcp.protocol import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MESSAGE_BYTES_MAX,
    TOO_MANY,
    Fault,
    Id,
    Notification,
    Request,
    cancelled_id,
    check_revision,
    error_response,
    read,
    response,
)
from gateway.mcp.tools import is_held
from verifier.wire import JsonObject

CALLS_MAX = 64  # at once
ANSWERS_MAX = 64  # more than that, which the host has not taken
FINISH_S = 1.5  # hosts wait some two seconds for the process to end by itself
UNDO_S = 0.3  # for what is called off then, to take back what it can
LINES_MAX = 16  # read ahead
Answer = Callable[[Request], Awaitable[JsonObject]]
_log = logging.getLogger("tallystick.mcp")


@dataclass(frozen=True, slots=True)
class Streams:
    """Where messages come from and go to, as descriptors: a file object that a thread is blocked in can't be closed."""

    source: int
    sink: int


def take_streams() -> Streams:
    """Return the process's own streams; from now on what is printed goes to standard error."""
    streams = Streams(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return streams


async def serve(streams: Streams, answer: Answer) -> None:
    """Answer message after message until the input ends or nobody takes the output any more."""
    conversation = _Conversation(answer, _Writer(streams.sink))
    reader = _Reader(streams.source)
    reading = asyncio.ensure_future(conversation.listen(reader))
    gone = asyncio.ensure_future(conversation.writer.is_closed.wait())
    try:
        await asyncio.wait((reading, gone), return_when=asyncio.FIRST_COMPLETED)
        await conversation.finish(0.0 if gone.done() else FINISH_S)
    finally:
        reading.cancel()
        gone.cancel()


class _Conversation:
    """The calls under way; all on one event loop."""

    def __init__(self, answer: Answer, writer: _Writer) -> None:
        self.writer = writer
        self._answer = answer
        self._calls: set[asyncio.Task[None]] = set()  # until the host has the answer
        self._asked: dict[Id, asyncio.Task[None]] = {}  # until there is an answer
        self._held: set[Id] = set()

    async def listen(self, reader: _Reader) -> None:
        """Take messages until there are no more."""
        while (line := await reader.next()) is not None:
            if line.strip():
                await self._take(line)

    async def finish(self, seconds: float) -> None:
        """Call off what waits, and give the rest its time."""
        for request_id in self._held:
            self._asked[request_id].cancel()
        calls = set(self._calls)
        for patience in (seconds, UNDO_S):
            if calls:
                _, calls = await asyncio.wait(calls, timeout=patience)
            for call in calls:
                call.cancel()

    async def _take(self, line: bytes) -> None:
        try:
            message = read(line)
            if isinstance(message, Request):
                self._begin(message)
            else:
                self._note(message)
        except Fault as fault:
            await self.writer.write(error_response(fault))

    def _begin(self, request: Request) -> None:
        if request.id in self._asked:
            raise Fault(INVALID_REQUEST, "A request with this id is under way.", request.id)
        if len(self._asked) >= CALLS_MAX or len(self._calls) >= CALLS_MAX + ANSWERS_MAX:
            raise Fault(TOO_MANY, f"{CALLS_MAX} requests are under way; send it when one is answered.", request.id)
        call = self._asked[request.id] = asyncio.ensure_future(self._respond(request))
        self._calls.add(call)
        call.add_done_callback(partial(self._ended, request.id))
        if is_held(request):
            self._held.add(request.id)

    def _note(self, notification: Notification) -> None:
        request_id = cancelled_id(notification)
        call = None if request_id is None else self._asked.get(request_id)
        if call is not None:
            call.cancel()

    async def _respond(self, request: Request) -> None:
        answer = await self._response(request)
        self._free(request.id, asyncio.current_task())  # a host may use the id again as soon as it reads the answer
        await self.writer.write(answer)

    def _ended(self, request_id: Id, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._free(request_id, call)

    def _free(self, request_id: Id, call: asyncio.Task[None] | None) -> None:
        if self._asked.get(request_id) is call:
            del self._asked[request_id]
            self._held.discard(request_id)

    async def _response(self, request: Request) -> bytes:
        try:
            check_revision(request)
            return response(request, await self._answer(request))
        except Fault as fault:
            return error_response(fault)
        except Exception:
            _log.exception("internal_error")
            return error_response(Fault(INTERNAL_ERROR, "This server failed; its log has the cause.", request.id))


class _Reader:
    """Lines of a stream, read in a thread; a line that is too long comes cut off, which is too long still."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(LINES_MAX)
        Thread(target=self._pump, name="tallystick-stdin", daemon=True).start()

    async def next(self) -> bytes | None:
        """Return the next line, None at the end."""
        return await self._lines.get()

    def _pump(self) -> None:
        try:
            for line in _lines(self._source):
                self._put(line)
            self._put(None)
        except RuntimeError:
            return  # the loop has ended before the input

    def _put(self, line: bytes | None) -> None:
        asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()


def _lines(source: int) -> Iterator[bytes]:
    """Yield line after line, none longer than is refused anyway; the last may lack its end."""
    line, is_cut = bytearray(), False
    while chunk := _chunk(source):
        first, *others = chunk.split(b"\n")
        line += first
        for rest in others:
            if not is_cut:
                yield bytes(line)
            line, is_cut = bytearray(rest), False
        if len(line) > MESSAGE_BYTES_MAX:
            if not is_cut:
                yield bytes(line)
            line, is_cut = bytearray(), True
    if line and not is_cut:
        yield bytes(line)


def _chunk(source: int) -> bytes:
    try:
        return os.read(source, MESSAGE_BYTES_MAX)
    except OSError:
        return b""


class _Writer:
    """Lines for a stream, written in a thread, one after the other."""

    def __init__(self, sink: int) -> None:
        self.is_closed = asyncio.Event()
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._lines: SimpleQueue[tuple[bytes, asyncio.Future[None]]] = SimpleQueue()
        Thread(target=self._pump, name="tallystick-stdout", daemon=True).start()

    async def write(self, message: bytes) -> None:
        """Return when the message was taken, or when nobody takes any more."""
        if self.is_closed.is_set():
            return
        written: asyncio.Future[None] = self._loop.create_future()
        self._lines.put((message + b"\n", written))
        await written

    def _pump(self) -> None:
        while True:
            line, written = self._lines.get()
            try:
                while line:
                    line = line[os.write(self._sink, line) :]
                tell = _done
            except OSError:
                tell = self._close
            try:
                self._loop.call_soon_threadsafe(tell, written)
            except RuntimeError:
                return  # the loop has ended

    def _close(self, written: asyncio.Future[None]) -> None:
        self.is_closed.set()
        _done(written)


def _done(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_result(None)
