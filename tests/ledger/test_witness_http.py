"""The network of the client of witnesses: whatever a peer does on its socket ends in an answer or in Unanswered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from gateway.ledger.witness_http import ANSWER_BYTES_MAX, RETRY_AFTER_S_MAX, Answer, HttpWeb, Unanswered
from tests.ledger.witness_fake import serving
from tests.system.process import free_port

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def http() -> AsyncIterator[HttpWeb]:
    found = HttpWeb()
    yield found
    await found.close()


@contextlib.asynccontextmanager
async def talking(talk: Talk) -> AsyncIterator[str]:
    """Yield the URL of a peer that does on its socket what the test says."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await talk(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_body_status_and_header_come_and_go_as_they_are(http: HttpWeb) -> None:
    seen: list[tuple[str, str, bytes]] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        seen.append((request.method, request.raw_path, await request.read()))
        return web.Response(status=429, body=b"later\n", headers={"Retry-After": "9"})

    async with serving(handle) as url:
        answer = await http.ask("POST", f"{url}/a%2Fb/add-checkpoint", b"old 0\n\n", 5_000)
    assert answer == Answer(429, b"later\n", 9)
    assert seen == [("POST", "/a%2Fb/add-checkpoint", b"old 0\n\n")]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5), ("0", 0), ("", 0), ("-5", 0), ("soon", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0),
     ("9" * 9, RETRY_AFTER_S_MAX), ("9" * 5_000, 0), ("٥", 0)],
    ids=["5", "0", "none", "negative", "word", "date", "large", "huge", "other digits"],
)  # fmt: skip
async def test_a_time_to_wait_is_whole_seconds_and_at_most_an_hour(http: HttpWeb, text: str, seconds: int) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(status=503, headers={"Retry-After": text} if text else {})

    async with serving(handle) as url:
        assert (await http.ask("GET", url + "/", None, 5_000)).retry_after_s == seconds


async def test_a_redirect_is_an_answer_and_is_not_followed(http: HttpWeb) -> None:
    asked: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        asked.append(request.raw_path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with serving(handle) as url:
        assert (await http.ask("POST", f"{url}/add-checkpoint", b"x", 5_000)).status == 307
    assert asked == ["/add-checkpoint"]


async def test_who_does_not_answer_in_time_is_unanswered(http: HttpWeb) -> None:
    async def sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with talking(sleep) as url:
        with pytest.raises(Unanswered, match="within 50 ms"):
            await http.ask("POST", f"{url}/add-checkpoint", b"x", 50)


async def test_a_drip_of_bytes_ends_with_the_time_that_one_request_may_take(http: HttpWeb) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with talking(drip) as url:
        with pytest.raises(Unanswered, match="within 200 ms"):
            await http.ask("POST", f"{url}/add-checkpoint", b"x", 200)


@pytest.mark.parametrize(
    "sent",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhalf", b"HTTP/1.1 200 OK\r\nContent-Le", b"SSH-2.0-x\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"\x00" * 200,
     b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n"],
    ids=["closed at once", "half a body", "half a head", "no HTTP", "bad chunk", "zeros", "endless head"],
)  # fmt: skip
async def test_what_breaks_off_or_is_no_http_is_unanswered(http: HttpWeb, sent: bytes) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()

    async with talking(break_off) as url:
        with pytest.raises(Unanswered):
            await http.ask("GET", url + "/", None, 5_000)


@pytest.mark.parametrize("is_said", [True, False])
async def test_an_endless_answer_is_cut_off_unread(http: HttpWeb, is_said: bool) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        length = b"Content-Length: 999999999\r\n" if is_said else b""
        writer.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n")
        while sent < 1 << 30:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    async with talking(flood) as url:
        with pytest.raises(Unanswered, match=f"longer than {ANSWER_BYTES_MAX} bytes"):
            await http.ask("GET", url + "/", None, 5_000)
    assert sent < 1 << 25, "what the sockets held, and no more"


async def test_a_compressed_answer_stays_as_it_came(http: HttpWeb) -> None:
    """A few kilobytes can stand for gigabytes; nobody asked for it."""

    async def handle(request: web.BaseRequest) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=b"\x1f\x8bnot unpacked", headers={"Content-Encoding": "gzip"})

    async with serving(handle) as url:
        assert (await http.ask("GET", url + "/", None, 5_000)).body == b"\x1f\x8bnot unpacked"


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/", "http://no-such-host.invalid/", "http://[::1/", "http://"])
async def test_nobody_there_is_unanswered(http: HttpWeb, url: str) -> None:
    with pytest.raises(Unanswered):
        await http.ask("GET", url.format(port=free_port()), None, 5_000)


async def test_one_connection_serves_one_witness_after_the_other_request(http: HttpWeb) -> None:
    peers: set[object] = set()

    async def handle(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response(body=b"ok")

    async with serving(handle) as url:
        for _ in range(5):
            await http.ask("POST", f"{url}/add-checkpoint", b"x", 5_000)
    assert len(peers) == 1
