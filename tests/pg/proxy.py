"""A wire to a server that fails as wires do: the acknowledgement of a COMMIT is lost, or everything, or it is late.

It runs in a thread of its own, so that a scene may block. A fault strikes once, at the next COMMIT of a transaction in
which the client sent certain bytes; `struck` says that it did. Freezing is for all connections until `thaw`.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.pg.frames import Frames, ends_request, is_begin, is_commit, is_committed

CHUNK_BYTES = 65_536


def _nothing() -> None:
    pass


class Fault(enum.Enum):
    """What happens to a COMMIT, and with it to its connection."""

    LOSE_ACK = "it is done, its acknowledgement is dropped, and the client's end is cut"
    SWALLOW_ACK = "it is done, its acknowledgement is dropped, and the connection stays open and silent"
    CUT_AFTER_SENT = "both ends are cut as soon as it was passed on"
    CUT_BEFORE_SENT = "both ends are cut, and it was not passed on"


@dataclass(eq=False, slots=True)
class Wire:
    """One connection through the proxy, and whether the transaction on it is the one that the fault is for."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    asked: Frames = field(default_factory=lambda: Frames(is_client=True))
    answered: Frames = field(default_factory=lambda: Frames(is_client=False))
    is_meant: bool = False
    is_silent: bool = False
    fate: Fault | None = None

    def cut(self) -> None:
        for end in (self.client, self.server):
            end.transport.abort()


class Proxy:
    """Listens on a port of its own and passes on to `target`, which may be changed for connections to come."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay_seconds = 0.0
        self.struck = threading.Event()
        self._fault: Fault | None = None
        self._about = b""
        self._then: Callable[[], object] = _nothing
        self._at_begin: Callable[[], object] = _nothing
        self._is_frozen = False
        self._wires: set[Wire] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def strike(self, fault: Fault, about: bytes = b"", then: Callable[[], object] | None = None) -> threading.Event:
        """Let the fault happen to the next COMMIT of a transaction that sent these bytes; the event says it did.

        `then` is called at that moment, before anything of the fault can be seen by the client; it must not block.
        """
        self.struck.clear()
        self._about, self._then = about, then or _nothing
        self._fault = fault
        return self.struck

    def at_begin(self, then: Callable[[], object]) -> threading.Event:
        """Call this once, just before the next beginning of a transaction is passed on; the event says it was."""
        called = threading.Event()

        def once() -> None:
            self._at_begin = _nothing
            then()
            called.set()

        self._at_begin = once
        return called

    def freeze(self) -> None:
        """Go half-open: whatever is sent is swallowed, nothing is closed, and new connections get no answer either."""
        self._is_frozen = True
        self._loop.call_soon_threadsafe(self._silence)

    def thaw(self) -> None:
        """Serve new connections again. Those that were silent stay so, as behind a router that forgot them."""
        self._is_frozen = False

    def cut(self) -> None:
        """Reset every connection."""
        self._loop.call_soon_threadsafe(self._cut)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def _silence(self) -> None:
        for wire in self._wires:
            wire.is_silent = True

    def _cut(self) -> None:
        for wire in list(self._wires):
            wire.cut()

    async def _close(self) -> None:
        self._server.close()
        self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        wire = Wire(writer, to_server, is_silent=self._is_frozen)
        self._wires.add(wire)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_asked(reader, wire))
                group.create_task(self._pass_answered(from_server, wire))
        except* OSError:
            pass  # an end was cut, which is what a proxy is for
        finally:
            self._wires.discard(wire)
            wire.cut()

    async def _pass_asked(self, reader: asyncio.StreamReader, wire: Wire) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await asyncio.sleep(self.delay_seconds)
            for frame in wire.asked.feed(chunk):
                self._note(frame, wire)
                if wire.is_silent:
                    continue
                if wire.fate is Fault.CUT_BEFORE_SENT:
                    self._lose(wire)
                wire.server.write(frame)
                if wire.fate is Fault.CUT_AFTER_SENT and ends_request(frame):
                    await wire.server.drain()
                    wire.server.close()  # what was written is sent first
                    self._lose(wire)
            await wire.server.drain()
        raise ConnectionAbortedError("the client left")

    def _note(self, frame: bytes, wire: Wire) -> None:
        """Follow the transaction of a wire, and take the fault when it is the one that is meant."""
        if wire.asked.asks_encryption:
            wire.answered.single_bytes += 1
            wire.asked.asks_encryption = False
        if is_begin(frame):
            wire.is_meant = False
            self._at_begin()
        wire.is_meant = wire.is_meant or (self._about in frame)
        if is_commit(frame) and wire.is_meant and self._fault is not None:
            wire.fate, self._fault = self._fault, None

    async def _pass_answered(self, reader: asyncio.StreamReader, wire: Wire) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await asyncio.sleep(self.delay_seconds)
            for frame in wire.answered.feed(chunk):
                if wire.fate in (Fault.LOSE_ACK, Fault.SWALLOW_ACK) and is_committed(frame):
                    self._lose(wire)
                if not wire.is_silent:
                    wire.client.write(frame)
            await wire.client.drain()
        if not wire.is_silent:
            raise ConnectionAbortedError("the server left")

    def _lose(self, wire: Wire) -> None:
        """Do to a wire what its fate says: the client learns nothing any more."""
        self._then()
        self.struck.set()
        wire.is_silent = True
        if wire.fate is not Fault.SWALLOW_ACK:
            raise ConnectionAbortedError("the fault that was asked for")
