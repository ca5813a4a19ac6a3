"""What a stranger may cost: slow, oversized, lying and doubled requests end quickly, and nothing is decided."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import http_parser

from gateway.config import Settings
from gateway.service import decision_cost
from gateway.web.limits import (
    BODY_BYTES_MAX,
    HEADERS_MAX,
    Buckets,
    Deadlines,
    RateLimited,
    UnsafeParser,
    require_c_parser,
)
from tests.web.test_problems import check_problem
from tests.web.world import AUTHORITY, Message, World, make, parse_reply, send_raw, world

PATH = "/api/v1/acp/coordination/lease"
MANY_FIELDS = "".join(f"X{number}: 1\r\n" for number in range(HEADERS_MAX + 1))
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: {AUTHORITY}\r\nContent-Type: application/json\r\n"


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway that waits one second for anything."""
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, body_seconds=1, keepalive_seconds=1) as found:
        yield found


async def connect(place: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = place.gateway.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def test_a_body_that_trickles_is_cut_off_at_its_deadline(impatient: World) -> None:
    reader, writer = await connect(impatient)
    writer.write((HEAD + "Content-Length: 100\r\n\r\n").encode() + b"{")
    reply = parse_reply(await asyncio.wait_for(reader.read(), 30))
    check_problem(reply, "body_too_slow", 408)
    writer.close()


@pytest.mark.parametrize("beginning", [b"", b"POST /x HT", HEAD.encode()])
async def test_a_silent_connection_is_closed(impatient: World, beginning: bytes) -> None:
    reader, writer = await connect(impatient)
    writer.write(beginning)
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


async def test_a_body_over_the_bound_is_refused_unread(public: World) -> None:
    """Scenario 48."""
    body = b"x" * (BODY_BYTES_MAX + 1)
    check_problem(await public.send(Message("POST", PATH, (("host", AUTHORITY),), body)), "body_too_large", 413)


async def test_a_chunked_body_over_the_bound_is_refused(public: World) -> None:
    """Scenario 48."""
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    content = (HEAD + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n").encode() + chunk * 5 + b"0\r\n\r\n"
    check_problem(await send_raw(public.gateway.url, content), "body_too_large", 413)


async def test_a_signed_body_in_chunks_is_the_same_body(public: World) -> None:
    message = public.signed(await public.agent("a"), "lease.acquire", resource="lock:x")
    fields = "".join(f"{name}: {value}\r\n" for name, value in message.fields)
    half = len(message.body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (message.body[:half], message.body[half:]))
    head = f"POST {PATH} HTTP/1.1\r\n{fields}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert (await send_raw(public.gateway.url, head.encode() + chunks + b"0\r\n\r\n")).status == 200


async def test_a_content_length_that_promises_too_much_ends_at_the_deadline(impatient: World) -> None:
    """Scenario 48."""
    message = impatient.signed(await impatient.agent("a"), "lease.acquire", resource="lock:x")
    content = message.encode().replace(b"content-length: %d" % len(message.body), b"content-length: 5000")
    check_problem(await send_raw(impatient.gateway.url, content), "body_too_slow", 408)


async def test_a_content_length_that_promises_too_little_is_no_http(public: World) -> None:
    """The rest of the body would be the next request; the parser refuses both."""
    message = public.signed(await public.agent("a"), "lease.acquire", resource="lock:x")
    content = message.encode().replace(b"content-length: %d" % len(message.body), b"content-length: 5")
    check_problem(await send_raw(public.gateway.url, content), "bad_http", 400)


@pytest.mark.parametrize(
    "content",
    [
        f"GET /livez HTTP/1.1\r\nHost: {AUTHORITY}\r\nHost: evil.example\r\n\r\n",
        f"{HEAD}Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        f"{HEAD}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"GET /{'x' * 5_000} HTTP/1.1\r\nHost: {AUTHORITY}\r\n\r\n",
        f"GET /livez HTTP/1.1\r\nHost: {AUTHORITY}\r\nX: {'x' * 9_000}\r\n\r\n",
        f"GET /livez HTTP/1.1\r\nHost: {AUTHORITY}\r\n{MANY_FIELDS}\r\n",
        "GET /livez HTTP/1.1\r\nBad Name: x\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        "GET /livez HTTP/1.1\r\nHost : x\r\n\r\n",
    ],
    ids=[
        "two hosts",
        "two lengths",
        "length and chunks",
        "long line",
        "long field",
        "many fields",
        "space in a name",
        "tls",
        "space before colon",
    ],
)
async def test_what_is_not_http_gets_a_problem_and_nothing_else(public: World, content: str) -> None:
    """aiohttp's own answer would carry its version and its exception's text."""
    reply = await asyncio.wait_for(send_raw(public.gateway.url, content.encode("latin-1")), 30)
    assert (reply.status, reply.json["code"]) == (400, "bad_http")
    assert reply.headers["server"] == "tallystick"
    assert "date" in reply.headers


async def test_one_connection_too_many_is_closed_at_once(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, connections_max=2) as place:
        first, second, third = [await connect(place) for _ in range(3)]
        third[1].write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            assert await asyncio.wait_for(third[0].read(), 30) == b""
        except ConnectionResetError:
            pass
        first[1].write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert parse_reply(await first[0].read()).status == 200
        for _, writer in (first, second, third):
            writer.close()


def test_the_gateway_refuses_to_start_without_the_c_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    require_c_parser()
    monkeypatch.setattr(http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(UnsafeParser, match="C parser"):
        require_c_parser()


async def test_a_deadline_can_be_moved_for_a_route_that_keeps_its_client_waiting() -> None:
    deadlines, reached = Deadlines(0.05), []

    async def work(name: str, more_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        deadlines.begin(task)
        deadlines.extend(task, more_s)
        try:
            await asyncio.sleep(0.4)
            reached.append(name)
        finally:
            deadlines.end(task)

    await asyncio.gather(work("long", 60), work("short", 0), return_exceptions=True)
    assert reached == ["long"]


class ManualClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    clock = ManualClock()
    buckets = Buckets(rate_per_s=2, burst=3, clock=clock)
    assert [buckets.take("a") for _ in range(3)] == [2, 1, 0]
    with pytest.raises(RateLimited) as limited:
        buckets.take("a")
    assert limited.value.retry_after_s == 0.5
    buckets.take("b")
    clock.now_s = 0.5
    buckets.take("a")
    with pytest.raises(RateLimited):
        buckets.take("a")


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    clock = ManualClock()
    buckets = Buckets(rate_per_s=100, burst=2, clock=clock)
    clock.now_s = 1_000.0
    buckets.take("a", 2)
    with pytest.raises(RateLimited):
        buckets.take("a")


def test_a_command_dearer_than_the_burst_needs_all_of_it_and_leaves_a_debt() -> None:
    clock = ManualClock()
    buckets = Buckets(rate_per_s=1, burst=3, clock=clock)
    assert buckets.take("a") == 2
    with pytest.raises(RateLimited) as limited:
        buckets.take("a", 10)
    assert limited.value.retry_after_s == 1.0
    clock.now_s = 1.0
    assert buckets.take("a", 10) == 0
    with pytest.raises(RateLimited) as limited:
        buckets.take("a")
    assert limited.value.retry_after_s == 8.0, "seven that it owes, and one"
    clock.now_s = 9.0
    assert buckets.take("a") == 0


def test_a_debt_is_not_forgotten_with_the_full_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.web.limits.PRINCIPALS_MAX", 3)
    clock = ManualClock()
    buckets = Buckets(rate_per_s=1, burst=3, clock=clock)
    buckets.take("a", 100)
    clock.now_s = 50.0
    for name in "bcd":
        buckets.take(name)
    assert len(buckets) <= 4
    with pytest.raises(RateLimited):
        buckets.take("a")


def test_buckets_of_strangers_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.web.limits.PRINCIPALS_MAX", 10)
    clock = ManualClock()
    buckets = Buckets(rate_per_s=1, burst=5, clock=clock)
    for number in range(1_000):
        buckets.take(f"stranger {number}")
        assert len(buckets) <= 11
    clock.now_s = 100.0
    for number in range(11):
        buckets.take(f"later {number}")
    with pytest.raises(RateLimited):
        buckets.take("later 10", 5)


@pytest.mark.parametrize(("resources", "cost"), [(0, 1), (1, 1), (64, 1), (65, 2), (128, 2), (256, 4)])
def test_every_64_resources_are_one_decision(resources: int, cost: int) -> None:
    assert decision_cost(resources) == cost


def test_the_limits_are_those_of_the_design() -> None:
    assert Settings().keepalive_seconds == 20 and Settings().body_seconds == 5 and Settings().handler_seconds == 30
    assert replace(Settings(), body_seconds=1).keepalive_seconds == 20
