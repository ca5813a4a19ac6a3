"""The conversation over standard input and output by itself: a stand-in answers, a pipe stands for each stream."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.mcp import stdio
from gateway.mcp.protocol import INVALID_REQUEST, TOO_MANY, Request
from gateway.mcp.stdio import ANSWERS_MAX, CALLS_MAX, Streams, serve
from tests.mcp.test_http import until
from tests.mcp.world import legacy
from verifier.wire import JsonObject


class Host:
    """The other end of both pipes; `asked` has the ids that reached the stand-in, which answers once it `may`."""

    def __init__(self, sink: int, source: int) -> None:
        self.sink, self.source = sink, source
        self.may = asyncio.Event()
        self.asked: list[object] = []
        self._rest = b""

    async def answer(self, request: Request) -> JsonObject:
        self.asked.append(request.id)
        await self.may.wait()
        return {}

    def send(self, *messages: dict[str, Any]) -> None:
        """Write all messages at once, so that the reader finds them together."""
        os.write(self.sink, b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    async def receive(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            self._rest += await asyncio.wait_for(asyncio.to_thread(os.read, self.source, 65_536), 30)
        line, self._rest = self._rest.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()
    host = Host(ours_out, ours_in)
    serving = asyncio.ensure_future(serve(Streams(theirs_in, theirs_out), host.answer))
    yield host
    os.close(ours_out)
    await asyncio.wait_for(serving, 30)
    for end in (ours_in, theirs_in, theirs_out):
        os.close(end)


def ping(request_id: int | str) -> dict[str, Any]:
    return legacy("ping") | {"id": request_id}


def called_off(request_id: int | str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}


async def test_an_id_is_free_again_as_soon_as_its_answer_can_be_read(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host is quicker than the thread that wrote: the writer learns of its own success late, or never."""
    monkeypatch.setattr(stdio, "_done", lambda written: None)
    host.may.set()
    for _ in range(3):
        host.send(ping(7))
        assert (await host.receive())["result"] == {}


async def test_a_call_that_is_called_off_leaves_its_id_and_its_place(host: Host) -> None:
    for _ in range(CALLS_MAX + ANSWERS_MAX):
        host.send(ping("w"), called_off("w"))
    host.may.set()
    host.send(ping("w"))
    assert await host.receive() == {"jsonrpc": "2.0", "id": "w", "result": {}}


async def test_so_many_at_once_and_an_answered_one_makes_room(host: Host) -> None:
    host.send(*(ping(at) for at in range(CALLS_MAX)))
    await until(lambda: len(host.asked) == CALLS_MAX)
    host.send(ping("more"), ping(0))
    refused = [await host.receive(), await host.receive()]
    assert [(told["id"], told["error"]["code"]) for told in refused] == [("more", TOO_MANY), (0, INVALID_REQUEST)]
    host.may.set()
    assert (await host.receive())["result"] == {}
    host.send(ping("more"))
    assert [(await host.receive())["id"] for _ in range(CALLS_MAX)][-1] == "more"


async def test_answers_that_the_host_does_not_take_are_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.may.set()
    with monkeypatch.context() as patch:
        patch.setattr(stdio, "_done", lambda written: None)  # as if nobody had taken anything
        for at in range(CALLS_MAX + ANSWERS_MAX):
            host.send(ping(at))
            assert "result" in await host.receive()
    host.send(ping("more"))
    assert (await host.receive())["error"]["code"] == TOO_MANY
