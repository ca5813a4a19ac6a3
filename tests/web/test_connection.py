"""The connection by itself, on both event loops: what aiohttp's own answer path did for us is still done."""

import asyncio
import hashlib
import inspect
import logging
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime

import pytest
import uvloop
from aiohttp import web

from gateway.config import Settings
from gateway.web.connection import Connection, Reply, Request, Server, head_of
from gateway.web.metrics import Metrics
from gateway.web.problem import Refusable
from gateway.web.routes import Call, Door, Route, plain
from tests.web.test_door import NOW_MS, Clock
from tests.web.world import parse_reply

BIG = b"0123456789abcdef" * 500_000
GET = b"GET /echo?%d HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@dataclass
class House:
    """A server with routes for every scene, and what its handlers saw."""

    server: Server
    host: str
    port: int
    runner: web.ServerRunner
    entered: list[str]
    left: list[str]
    gate: asyncio.Event

    async def connect(self, *, is_slow: bool = False) -> tuple[StreamReader, StreamWriter]:
        """Return a new connection; a slow one takes only what is read from it, and a little more."""
        client = socket.socket()
        if is_slow:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (self.host, self.port))
        return await asyncio.open_connection(sock=client, limit=1_024 if is_slow else 2 * len(BIG))


@dataclass
class Handlers:
    body_seconds: float
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    entered: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    async def echo(self, call: Call) -> Reply:
        self.entered.append(call.query)
        return plain(call.query.encode(), "text/plain")

    async def big(self, call: Call) -> Reply:
        self.entered.append(call.query)
        return plain(BIG, "text/plain")

    async def read(self, call: Call) -> Reply:
        self.entered.append(call.query)
        try:
            return plain(await call.request.read(self.body_seconds), "text/plain")
        finally:
            self.left.append(call.query)

    async def wait(self, call: Call) -> Reply:
        self.entered.append(call.query)
        await self.gate.wait()
        self.left.append(call.query)
        return plain(b"waited", "text/plain")

    async def hold(self, call: Call) -> Reply:
        self.entered.append(call.query)
        call.request.is_abandonable = True
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.left.append(f"{call.query} ended")
            raise
        return plain(b"held", "text/plain")

    async def last(self, call: Call) -> Reply:
        raise Refusable("draining", "Going.", {"Connection": "close"})


@asynccontextmanager
async def house(**changes: float) -> AsyncIterator[House]:
    chosen = replace(Settings(), **changes)  # type: ignore[arg-type]
    handlers = Handlers(chosen.body_seconds)
    routes = (
        Route("echo", "GET", "/echo", handlers.echo),
        Route("big", "GET", "/big", handlers.big),
        Route("read", "POST", "/read", handlers.read),
        Route("wait", "GET", "/wait", handlers.wait),
        Route("hold", "GET", "/hold", handlers.hold),
        Route("last", "GET", "/last", handlers.last),
    )
    door = Door(routes, clock=Clock(), metrics=Metrics(), handler_seconds=30)
    server = Server(door, error_reply=door.error_reply, settings=chosen, clock=Clock())
    runner = web.ServerRunner(server, shutdown_timeout=5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield House(server, host, port, runner, handlers.entered, handlers.left, handlers.gate)
    finally:
        handlers.gate.set()
        await runner.cleanup()


@pytest.fixture(autouse=True)
def _nothing_is_logged_as_an_error(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "a_bug" not in request.node.name:
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def answer(reader: StreamReader, *, has_body: bool = True) -> tuple[bytes, bytes]:
    """Return head and body of one answer on a connection that may go on."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await asyncio.wait_for(reader.readexactly(length), 30) if has_body else b""


async def rest(reader: StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), 30)


async def until(seen: list[str], count: int) -> None:
    async with asyncio.timeout(30):
        while len(seen) < count:  # noqa: ASYNC110 (nobody can set an event from the other side)
            await asyncio.sleep(0.01)


# -- the head ----------------------------------------------------------------------------------------------------------


async def test_an_answer_has_exactly_these_lines() -> None:
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(GET % 7)
        head, body = await answer(reader)
        writer.close()
    first, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    assert (first, body) == ("HTTP/1.1 200 OK", b"7")
    assert parsedate_to_datetime(fields.pop("Date")).timestamp() == NOW_MS // 1_000
    assert fields.pop("X-Request-Id")
    assert fields == {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Server": "tallystick",
        "Content-Type": "text/plain",
        "Content-Length": "1",
    }


def test_the_date_is_that_of_the_second_in_which_it_is_written() -> None:
    reply = Reply(200, b"", (("A", "b"),), "id")
    for second, date in ((784111777, b"06 Nov 1994 08:49:37"), (784111778, b"08:49:38"), (784111777, b"08:49:37")):
        assert date + b" GMT\r\n" in head_of(reply, second, is_old=False, is_kept=True)


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "a\nb", "a\x00b", "a\x7f"])
def test_no_header_can_become_two(value: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        head_of(Reply(200, b"", (("A", value),)), 0, is_old=False, is_kept=True)


async def test_head_is_answered_like_get_without_its_body() -> None:
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(b"HEAD /big HTTP/1.1\r\nHost: x\r\n\r\n" + GET % 1)
        head, _ = await answer(reader, has_body=False)
        assert f"Content-Length: {len(BIG)}\r\n".encode() in head
        assert (await answer(reader))[1] == b"1"
        writer.close()


# -- how long a connection lasts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "asked", "is_kept", "said"),
    [
        ("1.1", None, True, None),
        ("1.1", "close", False, b"close"),
        ("1.1", "keep-alive", True, None),
        ("1.0", None, False, None),
        ("1.0", "close", False, None),
        ("1.0", "keep-alive", True, b"keep-alive"),
    ],
)
async def test_a_connection_lasts_as_version_and_header_say(
    version: str, asked: str | None, is_kept: bool, said: bytes | None
) -> None:
    line = f"Connection: {asked}\r\n" if asked else ""
    content = f"GET /echo?a HTTP/{version}\r\nHost: x\r\n{line}\r\n".encode()
    async with house() as place:
        reader, writer = await place.connect()
        for _ in range(2 if is_kept else 1):
            writer.write(content)
            head, body = await answer(reader)
            assert head.startswith(f"HTTP/{version} 200 OK\r\n".encode()) and body == b"a"
            assert head.count(b"Connection:") == (said is not None)
            assert said is None or b"\r\nConnection: " + said + b"\r\n" in head
        if not is_kept:
            assert await rest(reader) == b""
        writer.close()


async def test_a_connection_goes_on_after_problems() -> None:
    async with house() as place:
        reader, writer = await place.connect()
        for target, status in ((b"/nowhere", 404), (b"/read", 405), (b"//", 404), (b"/echo?a", 200)):
            writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
            head, _ = await answer(reader)
            assert head.startswith(b"HTTP/1.1 %d " % status) and b"Connection:" not in head
        writer.close()


async def test_an_answer_that_says_close_closes_and_says_it_once() -> None:
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n" + GET % 1)
        reply = parse_reply(await rest(reader))
        writer.close()
    assert (reply.status, reply.headers["connection"]) == (503, "close")
    assert place.entered == []


async def test_an_idle_connection_is_closed_after_its_time_and_a_busy_one_is_not() -> None:
    async with house(keepalive_seconds=1) as place:
        idle, busy = await place.connect(), await place.connect()
        idle[1].write(GET % 1)
        busy[1].write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await answer(idle[0])
        assert await rest(idle[0]) == b""
        place.gate.set()
        assert (await answer(busy[0]))[1] == b"waited"
        for _, writer in (idle, busy):
            writer.close()


async def test_a_request_under_way_at_the_stop_is_answered_and_told_that_it_was_the_last() -> None:
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(place.entered, 1)
        stopping = asyncio.create_task(place.runner.cleanup())
        await asyncio.sleep(0.05)
        place.gate.set()
        head, body = await answer(reader)
        assert b"\r\nConnection: close\r\n" in head and body == b"waited"
        assert await rest(reader) == b""
        await asyncio.wait_for(stopping, 5)
        writer.close()


# -- what comes in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 31, 32, 33, 200])
async def test_pipelined_requests_are_answered_in_order(count: int) -> None:
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(b"".join(GET % number for number in range(count)))
        assert [(await answer(reader))[1] for _ in range(count)] == [b"%d" % number for number in range(count)]
        writer.close()


async def test_many_requests_behind_a_large_body_are_all_answered() -> None:
    """The parser stops when too many wait; it must be asked again, also when no further byte ever comes."""
    async with house() as place:
        reader, writer = await place.connect()
        large = b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000
        sent = b"".join(GET % number for number in range(15)) + large + b"".join(GET % number for number in range(33))
        for start in range(0, len(sent), 3_000):
            writer.write(sent[start : start + 3_000])
            await writer.drain()
        answers = [(await answer(reader))[1] for _ in range(49)]
        assert answers[:15] + answers[16:] == [b"%d" % number for number in [*range(15), *range(33)]]
        writer.close()


async def test_bad_http_behind_a_good_request_is_refused_and_ends_the_connection() -> None:
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(GET % 1)
        assert (await answer(reader))[1] == b"1"
        writer.write(b"GET /echo?2 HTTP/1.1\r\nHost: x\r\nBad Name: x\r\n\r\n" + GET % 3)
        reply = parse_reply(await rest(reader))
        assert (reply.status, reply.json["code"]) == (400, "bad_http")
        assert place.entered == ["1"]
        writer.close()


async def test_a_request_may_come_byte_by_byte() -> None:
    content = b"POST /read?x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    async with house() as place:
        reader, writer = await place.connect()
        for at in range(len(content)):
            writer.write(content[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await answer(reader))[1] == b"abc"
        writer.close()


async def test_many_bodies_on_one_connection_each_at_once_or_in_two_parts() -> None:
    async with house() as place:
        reader, writer = await place.connect()
        for number in range(20):
            body = b"%d" % number * 3_000
            head = b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head + body[:1_000])
            if number % 2:
                await asyncio.sleep(0.01)
            writer.write(body[1_000:])
            assert (await answer(reader))[1] == body
        writer.close()


async def test_the_rest_of_an_unread_body_is_thrown_away_and_the_connection_goes_on() -> None:
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"x" * 100_000)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 405 ")
        writer.write(b"x" * 200_000 + GET % 1)
        assert (await answer(reader))[1] == b"1"
        writer.close()


async def test_a_body_with_broken_chunks_ends_at_its_deadline() -> None:
    async with house(body_seconds=1) as place:
        reader, writer = await place.connect()
        writer.write(b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await until(place.entered, 1)
        writer.write(b"zz\r\n")
        assert b"body_too_slow" in (await answer(reader))[1]
        writer.close()


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"TLS/1.0"])
async def test_an_upgrade_is_answered_and_what_follows_is_not_taken_for_a_request(protocol: bytes) -> None:
    async with house() as place:
        reader, writer = await place.connect()
        fields = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: " + protocol + b"\r\n"
        writer.write(GET % 1 + b"GET /echo?2 HTTP/1.1\r\n" + fields + b"\r\n" + GET % 3)
        assert (await answer(reader))[1] == b"1"
        head, body = await answer(reader)
        assert body == b"2" and b"\r\nConnection: close\r\n" in head
        assert await rest(reader) == b""
        assert place.entered == ["1", "2"]
        writer.close()


ASKING = b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_a_client_that_asks_first_is_told_to_go_on_before_its_body_is_waited_for() -> None:
    """curl waits a second for this before it sends a larger body."""
    async with house() as place:
        reader, writer = await place.connect()
        for _ in range(2):
            writer.write(ASKING)
            assert await asyncio.wait_for(reader.readexactly(len(GO_ON)), 30) == GO_ON
            writer.write(b"abc")
            head, body = await answer(reader)
            assert (head[:13], body) == (b"HTTP/1.1 200 ", b"abc") and b"Connection:" not in head
        writer.close()


async def test_a_client_that_asks_and_does_not_wait_is_answered_at_once() -> None:
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(ASKING + b"abc" + GET % 1)
        assert (await answer(reader))[1] == b"abc"
        assert (await answer(reader))[1] == b"1"
        writer.close()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (ASKING.replace(b"/read", b"/nowhere"), 404),
        (ASKING.replace(b"/read", b"/echo"), 405),
        (ASKING.replace(b"Length: 3", b"Length: 65537"), 413),
        (ASKING.replace(b"100-continue", b"a-miracle"), 417),
        (ASKING.replace(b"1.1", b"1.0").replace(b"100-continue", b"a-miracle"), 417),
    ],
)
async def test_a_head_that_is_refused_asks_for_no_body_and_ends_the_connection(head: bytes, status: int) -> None:
    """The body may come or not, so what follows can't be told from it."""
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(head)
        line, body = await answer(reader)
        assert line.startswith(b"HTTP/1.") and int(line[9:12]) == status
        assert body.startswith(b'{"type":"urn:tallystick:problem:')
        assert b"1.1" not in head or b"\r\nConnection: close\r\n" in line
        writer.write_eof()
        assert await rest(reader) == b""
        assert place.entered == [""] * (status == 413)
        writer.close()


async def test_an_old_client_is_never_told_to_go_on() -> None:
    async with house(body_seconds=1) as place:
        reader, writer = await place.connect()
        writer.write(ASKING.replace(b"HTTP/1.1", b"HTTP/1.0"))
        await until(place.entered, 1)
        writer.write(b"abc")
        assert (await answer(reader))[0].startswith(b"HTTP/1.0 200 ")
        writer.close()


@pytest.mark.parametrize("version", ["2.0", "3.0", "1.2", "0.9"])
async def test_another_version_of_http_is_refused(version: str) -> None:
    async with house() as place:
        reader, writer = await place.connect()
        writer.write(f"GET /echo?a HTTP/{version}\r\nHost: x\r\n\r\n".encode() + GET % 1)
        reply = parse_reply(await rest(reader))
        assert (reply.status, reply.json["code"]) == (400, "bad_http")
        assert place.entered == []
        writer.close()


# -- clients that go away, or read slowly ------------------------------------------------------------------------------


async def test_a_client_that_goes_away_disturbs_neither_its_handler_nor_others() -> None:
    async with house() as place:
        gone, there = await place.connect(), await place.connect()
        gone[1].write(b"GET /wait?gone HTTP/1.1\r\nHost: x\r\n\r\n")
        there[1].write(b"GET /wait?there HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(place.entered, 2)
        gone[1].transport.abort()
        await asyncio.sleep(0.05)
        place.gate.set()
        assert (await answer(there[0]))[1] == b"waited"
        await until(place.left, 2)
        there[1].close()


async def test_work_that_is_only_for_a_client_ends_when_it_goes_away() -> None:
    """Scenario L32; a client that stays, or another one, is not disturbed."""
    async with house() as place:
        gone, there = await place.connect(), await place.connect()
        gone[1].write(b"GET /hold?gone HTTP/1.1\r\nHost: x\r\n\r\n")
        there[1].write(b"GET /hold?there HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(place.entered, 2)
        gone[1].transport.abort()
        await until(place.left, 1)
        assert place.left == ["gone ended"]
        place.gate.set()
        assert (await answer(there[0]))[1] == b"held"
        there[1].write(GET % 1)
        assert (await answer(there[0]))[1] == b"1"
        there[1].close()


async def test_a_client_that_goes_away_within_its_body_ends_the_wait_for_it() -> None:
    async with house() as place:
        _, writer = await place.connect()
        writer.write(b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        await until(place.entered, 1)
        writer.transport.abort()
        await until(place.left, 1)
        await until_nobody_is_left(place)


async def test_a_client_that_goes_away_while_it_is_written_to_is_forgotten() -> None:
    async with house() as place:
        _, writer = await place.connect(is_slow=True)
        writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        await until(place.entered, 1)
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await until_nobody_is_left(place)
        assert len(place.entered) == 1, "the next one waits until the first answer is taken"


async def test_a_slow_reader_gets_everything_and_is_asked_nothing_new_meanwhile() -> None:
    async with house(keepalive_seconds=2) as place:
        reader, writer = await place.connect(is_slow=True)
        writer.write(b"GET /big?1 HTTP/1.1\r\nHost: x\r\n\r\nGET /big?2 HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.5)
        assert place.entered == ["1"]
        head = await reader.readuntil(b"\r\n\r\n")
        got = b""
        for _ in range(4):
            await asyncio.sleep(0.6)
            got += await reader.readexactly(len(BIG) // 5)
        got += await reader.readexactly(len(BIG) - len(got))
        assert head.startswith(b"HTTP/1.1 200 ") and got == BIG
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(len(BIG)) == BIG
        writer.close()


async def test_who_takes_nothing_at_all_is_cut_off() -> None:
    async with house(keepalive_seconds=1) as place:
        reader, writer = await place.connect(is_slow=True)
        writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(place.entered, 1)
        await until_nobody_is_left(place)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(len(BIG))
        writer.close()


async def until_nobody_is_left(place: House) -> None:
    async with asyncio.timeout(30):
        while place.server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# -- bugs, and aiohttp's next version ----------------------------------------------------------------------------------


async def test_a_bug_in_the_door_itself_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with house() as place:
        door = place.server.answer

        async def broken(request: Request) -> Reply:
            if request.raw_path == "/bug":
                raise KeyError("a bug")
            return await door(request)

        place.server.answer = broken
        one, other = await place.connect(), await place.connect()
        one[1].write(b"GET /bug HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await rest(one[0]) == b""
        other[1].write(GET % 1)
        assert (await answer(other[0]))[1] == b"1"
        for _, writer in (one, other):
            writer.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["a connection failed"]


def test_what_start_stands_for_in_aiohttp_is_what_was_read() -> None:
    """If this fails, aiohttp changed: read its change, do the same in `Connection` if it matters, then pin it anew."""
    replaced = (web.RequestHandler.start, web.RequestHandler._handle_request, web.RequestHandler.finish_response)
    source = "".join(inspect.getsource(function) for function in replaced)
    assert hashlib.sha256(source.encode()).hexdigest()[:16] == "a35d25caad3d905c"
    assert Connection.data_received is web.RequestHandler.data_received, "parsing, queueing and pausing are aiohttp's"
