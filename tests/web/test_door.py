"""The door by itself: routes by exact path and by prefix, one deadline, one answer for whatever is raised."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gateway.config import Settings
from gateway.errors import Busy
from gateway.web.connection import Reply as Answer
from gateway.web.connection import Server
from gateway.web.limits import Deadlines
from gateway.web.metrics import Metrics
from gateway.web.problem import BASE_HEADERS
from gateway.web.routes import Call, Door, Route, plain
from tests.web.test_problems import check_problem
from tests.web.world import Message, Reply, send_raw

NOW_MS = 1_800_000_000_000


class Clock:
    def now_ms(self) -> int:
        return NOW_MS


async def echo(call: Call) -> Answer:
    return plain(f"{call.path}|{call.query}|{call.rest}".encode(), "text/plain")


ROUTES = (
    Route("exact", "GET", "/exact", echo),
    Route("exact", "POST", "/exact", echo),
    Route("prefix", "GET", "/files/", echo, is_prefix=True),
)


@asynccontextmanager
async def serving(door: Door) -> AsyncIterator[Callable[[str, str], "asyncio.Future[Reply]"]]:
    """Yield a function that sends one request to the door."""
    runner = web.ServerRunner(Server(door, error_reply=door.error_reply, settings=Settings(), clock=Clock()))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]

    def ask(method: str, target: str) -> "asyncio.Future[Reply]":
        message = Message(method, target, (("host", "x"),))
        return asyncio.ensure_future(send_raw(f"http://{host}:{port}", message.encode()))

    yield ask
    await runner.cleanup()


def door_with(*routes: Route, seconds: float = 30) -> Door:
    return Door((*ROUTES, *routes), clock=Clock(), metrics=Metrics(), handler_seconds=seconds)


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        ("/exact", "/exact||"),
        ("/exact?a=%2F&b", "/exact|a=%2F&b|"),
        ("/exact??", "/exact|?|"),
        ("/files/a/b?c", "/files/a/b|c|a/b"),
        ("/files/../x", "/files/../x||../x"),
        ("/files/%2e%2E", "/files/%2e%2E||%2e%2E"),
    ],
)
async def test_a_target_reaches_its_handler_as_it_came(target: str, seen: str) -> None:
    async with serving(door_with()) as ask:
        reply = await ask("GET", target)
    assert (reply.status, reply.body.decode()) == (200, seen)


@pytest.mark.parametrize("target", ["/", "/Exact", "/exact/", "//exact", "/files", "/%65xact", "/exact%20"])
async def test_what_only_looks_like_a_path_is_not_found(target: str) -> None:
    async with serving(door_with()) as ask:
        check_problem(await ask("GET", target), "not_found", 404)


async def test_a_wrong_method_names_the_right_ones() -> None:
    async with serving(door_with()) as ask:
        reply = await ask("DELETE", "/exact")
        check_problem(reply, "method_not_allowed", 405)
        assert reply.headers["allow"] == "GET, POST"
        check_problem(await ask("POST", "/files/x"), "method_not_allowed", 405)


async def test_every_answer_has_the_headers_and_an_id_of_its_own() -> None:
    async with serving(door_with()) as ask:
        replies = [await ask("GET", target) for target in ("/exact", "/exact", "/nowhere")]
    for reply in replies:
        assert {name: reply.headers[name.lower()] for name in BASE_HEADERS} == dict(BASE_HEADERS)
    assert len({reply.headers["x-request-id"] for reply in replies}) == 3


async def test_a_handler_over_its_deadline_is_ended_and_one_within_it_is_not() -> None:
    cancelled = asyncio.Event()

    async def slow(call: Call) -> Answer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("unreachable")

    async with serving(door_with(Route("slow", "GET", "/slow", slow), seconds=0.1)) as ask:
        waiting = ask("GET", "/slow")
        assert (await ask("GET", "/exact")).status == 200
        check_problem(await waiting, "timed_out", 503)
        assert cancelled.is_set()
        assert (await ask("GET", "/exact")).status == 200


async def test_a_handler_that_answers_in_spite_of_its_deadline_is_heard() -> None:
    async def stubborn(call: Call) -> Answer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return plain(b"all the same", "text/plain")
        raise AssertionError("unreachable")

    async with serving(door_with(Route("slow", "GET", "/slow", stubborn), seconds=0.1)) as ask:
        assert (await ask("GET", "/slow")).body == b"all the same"


async def test_a_cancellation_by_anybody_else_goes_on() -> None:
    deadlines = Deadlines(30)
    task = asyncio.current_task()
    assert task is not None
    deadlines.begin(task)
    assert not deadlines.has_passed(task)
    deadlines.end(task)


async def test_what_a_handler_raises_becomes_a_problem_and_the_next_request_is_served() -> None:
    async def busy(call: Call) -> Answer:
        raise Busy("disk_full", 5)

    async def broken(call: Call) -> Answer:
        raise KeyError("a bug")

    extra = (Route("busy", "GET", "/busy", busy), Route("broken", "GET", "/broken", broken))
    async with serving(door_with(*extra)) as ask:
        reply = await ask("GET", "/busy")
        check_problem(reply, "busy", 503)
        assert (reply.headers["retry-after"], reply.json["detail"]) == ("5", "disk_full")
        check_problem(await ask("GET", "/broken"), "internal_error", 500)
        assert (await ask("GET", "/exact")).status == 200
