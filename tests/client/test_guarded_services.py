"""Services behind a guard: a real aiohttp server, and an ASGI application that is driven by hand."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from gateway.client.admission_guard import AdmissionGuard
from gateway.client.agent import Agent
from gateway.client.errors import AdmissionDenied, AnswerRefused, Fenced, NotWitnessed
from gateway.client.fence import FenceGuard
from gateway.client.guards import (
    PASSED,
    Call,
    Door,
    Guarded,
    GuardedApp,
    GuardedRequest,
    arguments_of,
    fenced_request,
    guard_middleware,
    guarded_request,
)
from gateway.client.guards.carrier import HEADER
from gateway.client.guards.refusing import ROWS
from tests.client.test_admission_guard import LEASES, policy_of
from tests.client.world import ALICE, BOB, ORIGIN, Book, LocalGateway, ManualClock
from verifier.wire import Malformed, encode_canonical

BODY = bytes(range(256)) * 40
NAME = "repo:app/a.py"
BODY_MAX = 65_536


@pytest.fixture
def gateway() -> LocalGateway:
    found = LocalGateway(Book(), ManualClock())
    found.views[LEASES] = {"ok": True, "leases": []}
    return found


def describe(call: Call) -> Guarded | None:
    """PUT writes a file, POST /many what its body names, GET of a file reads it; all else is open."""
    if call.path == "/many":
        return Guarded("file.write", names_in)
    if not call.path.startswith("/files/"):
        return None
    name = f"repo:app/{call.path.removeprefix('/files/')}"
    return Guarded("file.read", name, "read") if call.method == "GET" else Guarded("file.write", [name])


def names_in(body: bytes) -> list[str]:
    return [str(name) for name in json.loads(body)["names"]]


@dataclass
class Ran:
    """What handlers have seen; `during` is what the next one does."""

    bodies: list[bytes] = field(default_factory=list)
    actors: list[str] = field(default_factory=list)
    during: Callable[[], Awaitable[None]] | None = None
    under_way: int = 0
    most: int = 0

    async def begun(self) -> None:
        """Return once a handler runs."""
        for _ in range(200):
            if self.under_way:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("no handler ran")

    async def note(self, body: bytes, actor: str) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self.during is not None:
                await self.during()
            self.bodies.append(body)
            self.actors.append(actor)
        finally:
            self.under_way -= 1


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"])


Sender = Callable[[GuardedRequest], Awaitable[Answer]]


@dataclass
class Service:
    """One guarded service, whichever way it is served."""

    url: str
    send: Sender
    door: Door
    ran: Ran

    async def call(self, agent: Agent, path: str = "/files/a.py", body: bytes = BODY, **options: Any) -> GuardedRequest:
        wanted: dict[str, Any] = {"operation": "file.write", "resources": NAME, **options}
        return await guarded_request(agent, "PUT", self.url + path, body, **wanted)

    async def refuses(self, code: str, call: GuardedRequest) -> Answer:
        """Send it; it is refused with this code, as a problem, and no handler ran."""
        before = len(self.ran.bodies)
        answer = await self.send(call)
        assert (answer.code, answer.status) == (code, ROWS[code].status), answer.body
        assert answer.headers["content-type"] == "application/problem+json"
        document = json.loads(answer.body)
        assert document["type"] == f"urn:tallystick:problem:{code}"
        assert document["advice"] and document["detail"]
        assert len(self.ran.bodies) == before
        return answer


def changed(call: GuardedRequest, name: str, *values: str) -> GuardedRequest:
    """Return it with other lines of one header."""
    kept = [pair for pair in call.headers if pair[0] != name]
    return replace(call, headers=(*kept, *((name, value) for value in values)))


def value_of(call: GuardedRequest, name: str) -> str:
    return next(value for known, value in call.headers if known == name)


# -- the two servers ---------------------------------------------------------------------------------------------------


async def aiohttp_service(door: Door, ran: Ran) -> tuple[web.AppRunner, str]:
    async def handle(request: web.Request) -> web.Response:
        chunks = [chunk async for chunk in request.content.iter_chunked(1_000)]
        passed = request.get(PASSED)
        await ran.note(b"".join(chunks), passed.actor if passed else "")
        return web.Response(text="done")

    app = web.Application(middlewares=[guard_middleware(door)])
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def over_http(call: GuardedRequest) -> Answer:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        async with session.request(
            call.method, call.url, headers=call.headers, data=call.body, allow_redirects=False
        ) as answer:
            return Answer(answer.status, await answer.read(), {k.lower(): v for k, v in answer.headers.items()})


def asgi_app(ran: Ran) -> Callable[..., Awaitable[None]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await send({"type": "lifespan.startup.complete"})
            return
        body, is_more = b"", True
        while is_more:
            message = await receive()
            body, is_more = body + message.get("body", b""), message.get("more_body", False)
        passed = scope.get("tallystick.passed")
        await ran.note(body, passed.actor if passed else "")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    return app


def scope_of(call: GuardedRequest, kind: str = "http", **more: Any) -> dict[str, Any]:
    return {
        "type": kind, "asgi": {"version": "3.0"}, "http_version": "1.1", "method": call.method, "scheme": "http",
        "path": call.url.path, "raw_path": call.url.raw_path.encode(), "root_path": "",
        "query_string": call.url.raw_query_string.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in call.headers], **more,
    }  # fmt: skip


async def run_asgi(app: Any, scope: Any, messages: Iterable[Any]) -> list[Any]:
    """Drive an application by hand; a message that is a coroutine function is awaited for its message."""
    sent: list[Any] = []
    pending = iter(messages)

    async def receive() -> Any:
        message = next(pending, {"type": "http.disconnect"})
        return await message() if callable(message) else message

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def chunked(body: bytes, size: int = 3_000) -> list[Any]:
    parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    return [{"type": "http.request", "body": part, "more_body": at + 1 < len(parts)} for at, part in enumerate(parts)]


def answer_in(sent: list[Any]) -> Answer:
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]), headers)


def new_door(gateway: LocalGateway, url: str, guard: AdmissionGuard | FenceGuard | None = None, **more: Any) -> Door:
    if guard is None:
        guard = AdmissionGuard(gateway.book.keyring, ORIGIN, rules="any", wall_ms=gateway.clock.wall_ms)
    return Door(guard, describe, [URL(url).host_port_subcomponent or ""], body_bytes_max=BODY_MAX, **more)


async def served(kind: str, gateway: LocalGateway, **options: Any) -> AsyncIterator[Service]:
    ran, door = Ran(), new_door(gateway, "http://store.example", **options)
    if kind == "asgi":
        app = GuardedApp(asgi_app(ran), door)

        async def by_hand(call: GuardedRequest) -> Answer:
            return answer_in(await run_asgi(app, scope_of(call), chunked(call.body or b"")))

        yield Service("http://store.example", by_hand, door, ran)
    else:
        runner, url = await aiohttp_service(door, ran)
        door._authorities = frozenset([URL(url).host_port_subcomponent or ""])
        yield Service(url, over_http, door, ran)
        await runner.cleanup()
    door.guard.close()


@pytest.fixture(params=["aiohttp", "asgi"])
async def service(request: pytest.FixtureRequest, gateway: LocalGateway) -> AsyncIterator[Service]:
    async for made in served(request.param, gateway):
        yield made


@pytest.fixture(params=["aiohttp", "asgi"])
async def fenced(request: pytest.FixtureRequest, gateway: LocalGateway) -> AsyncIterator[Service]:
    guard = FenceGuard(gateway.book.keyring, ORIGIN, wall_ms=gateway.clock.wall_ms)
    async for made in served(request.param, gateway, guard=guard):
        yield made


@pytest.fixture
async def alice(gateway: LocalGateway) -> AsyncIterator[Agent]:
    async with gateway.agent(ALICE) as agent:
        await agent.acquire([NAME, "repo:app/b.py"])
        yield agent


# -- what passes -------------------------------------------------------------------------------------------------------


async def test_an_admitted_request_runs_once_with_its_body_as_it_came(service: Service, alice: Agent) -> None:
    call = await service.call(alice)
    answer = await service.send(call)
    assert (answer.status, answer.body) == (200, b"done")
    assert (service.ran.bodies, service.ran.actors) == ([BODY], [ALICE.did])
    await service.refuses("used", call)


async def test_what_is_not_guarded_passes_unread_and_unsigned(service: Service) -> None:
    open_call = GuardedRequest(
        "POST", URL(f"{service.url}/open"), (("host", URL(service.url).host_port_subcomponent or ""),), b"hello"
    )
    assert (await service.send(open_call)).status == 200
    assert (service.ran.bodies, service.ran.actors) == ([b"hello"], [""])


async def test_what_is_read_needs_neither_body_nor_lease(service: Service, alice: Agent) -> None:
    call = await guarded_request(
        alice, "GET", f"{service.url}/files/a.py?part=2&x=%20", operation="file.read", resources=NAME, mode="read"
    )
    assert call.body is None
    await service.refuses("digest_wrong", replace(call, body=b"a body that nobody signed"))
    assert (await service.send(call)).status == 200
    assert service.ran.bodies == [b""]


async def test_names_may_stand_in_the_body(service: Service, alice: Agent) -> None:
    names = [NAME, "repo:app/b.py"]
    for body, code in (
        ({"names": names}, ""),
        ({"names": [*names, "repo:app/c.py"]}, "other_act"),
        ({"names": []}, "other_act"),
        ({"names": ["no name"]}, "act_malformed"),
    ):
        call = await service.call(alice, "/many", json.dumps(body).encode(), resources=names)
        if code:
            await service.refuses(code, call)
        else:
            assert (await service.send(call)).status == 200
    call = await service.call(alice, "/many", b"no JSON", resources=names)
    await service.refuses("act_malformed", call)


async def test_an_empty_body_is_a_body(service: Service, alice: Agent) -> None:
    assert (await service.send(await service.call(alice, body=b""))).status == 200
    assert service.ran.bodies == [b""]


async def test_the_helper_asks_for_exactly_what_is_sent(service: Service, alice: Agent) -> None:
    call = await service.call(alice, "/files/a.py?v=2")
    said = {"bodySha256": sha256(BODY).hexdigest(), "method": "PUT", "path": "/files/a.py", "query": "v=2"}
    assert arguments_of("PUT", "/files/a.py", "v=2", BODY) == encode_canonical({**said})
    assert call.admission is not None
    assert call.admission.arguments_digest == sha256(encode_canonical({**said})).hexdigest()
    with pytest.raises(Malformed):
        await service.call(alice, "/files/a%2Fb")


# -- what is refused ---------------------------------------------------------------------------------------------------


async def test_another_body_path_query_or_method_than_was_admitted(service: Service, alice: Agent) -> None:
    receipt = (await service.call(alice)).admission
    assert receipt is not None
    data = receipt.receipt.data
    for method, path, body in (
        ("PUT", "/files/a.py", BODY + b"!"),
        ("PUT", "/files/a.py", b""),
        ("PUT", "/files/a.py?force=1", BODY),
        ("DELETE", "/files/a.py", BODY),
    ):
        await service.refuses("other_content", fenced_request(alice, method, service.url + path, body, receipt=data))
    elsewhere = fenced_request(alice, "PUT", f"{service.url}/files/b.py", BODY, receipt=data)
    await service.refuses("other_act", elsewhere)
    assert (
        await service.send(fenced_request(alice, "PUT", f"{service.url}/files/a.py", BODY, receipt=data))
    ).status == 200


async def test_a_body_that_is_not_the_signed_one(service: Service, alice: Agent) -> None:
    call = await service.call(alice)
    await service.refuses("digest_wrong", replace(call, body=BODY + b"!"))
    await service.refuses("digest_wrong", replace(call, body=b""))
    assert (await service.send(call)).status == 200


async def test_somebody_elses_receipt(service: Service, gateway: LocalGateway, alice: Agent) -> None:
    call = await service.call(alice)
    assert call.admission is not None
    async with gateway.agent(BOB) as bob:
        stolen = fenced_request(bob, "PUT", str(call.url), BODY, receipt=call.admission.receipt.data)
    await service.refuses("not_proven", stolen)
    assert (await service.send(call)).status == 200


async def test_nothing_passes_unsigned_or_signed_otherwise(service: Service, alice: Agent) -> None:
    call = await service.call(alice)
    signed = value_of(call, "signature-input")
    for name, values, code in (
        ("signature", (), "signature_missing"),
        ("signature-input", (), "signature_missing"),
        ("signature", (value_of(call, "signature"),) * 2, "header_repeated"),
        ("signature", ("sig=:" + "A" * 86 + "==:",), "signature_invalid"),
        ("signature-input", (signed.replace(' "@query"', ""),), "signature_malformed"),
        ("signature-input", (signed.replace(ALICE.did, BOB.did),), "signature_invalid"),
        ("signature-input", (signed + ";x=1",), "signature_malformed"),
        ("content-digest", (value_of(call, "content-digest").replace("sha-256", "sha-512"),), "signature_invalid"),
        ("content-type", ("text/plain",), "signature_invalid"),
        ("content-encoding", ("gzip",), "encoded_body"),
        ("tallystick-anchor", (value_of(call, "tallystick-anchor").replace(ORIGIN, "other.example/main"),),
         "other_ledger"),
        ("idempotency-key", (), "signature_missing"),
        ("host", ("other.example",), "authority_wrong"),
        ("upgrade", ("websocket",), "websocket_refused"),
    ):  # fmt: skip
        await service.refuses(code, changed(call, name, *values))
    assert (await service.send(call)).status == 200


async def test_a_signature_is_of_its_time(service: Service, gateway: LocalGateway, alice: Agent) -> None:
    call = await service.call(alice)
    gateway.clock.jump(91_000)
    await service.refuses("outside_window", call)
    gateway.clock.jump(-35_000)
    await service.refuses("expired", call)
    gateway.clock.jump(-56_000)
    assert (await service.send(call)).status == 200


async def test_the_receipt_is_read_as_it_is(service: Service, alice: Agent) -> None:
    call = await service.call(alice)
    line = value_of(call, HEADER)
    await service.refuses("receipt_missing", changed(call, HEADER))
    await service.refuses("receipt_malformed", changed(call, HEADER, line[:-9]))
    await service.refuses("receipt_malformed", changed(call, HEADER, line, line))
    await service.refuses("receipt_malformed", changed(call, HEADER, "?"))
    await service.refuses("receipt_too_large", changed(call, HEADER, *["A" * 7_000] * 5))
    for at in range(0, len(line), 97):
        flipped = line[:at] + ("A" if line[at] != "A" else "B") + line[at + 1 :]
        assert (await service.send(changed(call, HEADER, flipped))).code in ("receipt_malformed", "receipt_invalid")
    assert (await service.send(changed(call, HEADER, line[:500], line[500:]))).status == 200
    assert service.ran.bodies == [BODY]


async def test_a_lease_is_no_admission_here(service: Service, alice: Agent) -> None:
    grant = await alice.acquire("repo:app/c.py")
    call = fenced_request(alice, "PUT", f"{service.url}/files/c.py", BODY, receipt=grant.receipt.data)
    await service.refuses("not_admitted", call)


async def test_a_body_beyond_its_bound(service: Service, alice: Agent) -> None:
    await service.refuses("body_too_large", await service.call(alice, body=bytes(BODY_MAX + 1)))
    assert (await service.send(await service.call(alice, body=bytes(BODY_MAX)))).status == 200


async def test_what_was_denied_is_not_sent(service: Service, gateway: LocalGateway) -> None:
    async with gateway.agent(BOB) as bob:
        with pytest.raises(AdmissionDenied):
            await service.call(bob)


async def test_a_newer_lease_of_another_shown_here_stops_the_older(
    service: Service, gateway: LocalGateway, alice: Agent
) -> None:
    """Scenario 11 over HTTP: A's admission of before still runs, B took over and wrote."""
    old = await service.call(alice)
    await alice.release([NAME, "repo:app/b.py"])
    async with gateway.agent(BOB) as bob:
        await bob.acquire(NAME)
        assert (await service.send(await service.call(bob))).status == 200
    await service.refuses("stale_fence", old)


# -- at the same time --------------------------------------------------------------------------------------------------


async def test_the_same_admission_twice_at_once_runs_once(service: Service, alice: Agent) -> None:
    call = await service.call(alice)
    service.ran.during = lambda: asyncio.sleep(0.05)
    answers = await asyncio.gather(*(service.send(call) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409]
    assert service.ran.bodies == [BODY]


async def test_guarded_handlers_take_turns(service: Service, alice: Agent) -> None:
    calls = [await service.call(alice, body=bytes([at])) for at in range(4)]
    service.ran.during = lambda: asyncio.sleep(0.02)
    answers = await asyncio.gather(*map(service.send, calls))
    assert [answer.status for answer in answers] == [200] * 4
    assert (service.ran.most, len(service.ran.bodies)) == (1, 4)


@pytest.mark.parametrize("kind", ["aiohttp", "asgi"])
async def test_who_waits_too_long_for_its_turn_has_used_nothing(kind: str, gateway: LocalGateway, alice: Agent) -> None:
    async for service in served(kind, gateway, wait_ms=50):
        first, second = await service.call(alice, body=b"1"), await service.call(alice, body=b"2")
        gate = asyncio.Event()
        service.ran.during = lambda gate=gate: asyncio.wait_for(gate.wait(), 5)
        running = asyncio.ensure_future(service.send(first))
        await service.ran.begun()
        answer = await service.send(second)
        assert (answer.code, answer.headers["retry-after"]) == ("busy", "1")
        gate.set()
        assert (await running).status == 200
        assert (await service.send(second)).status == 200


async def test_another_process_on_the_file_has_its_turn(gateway: LocalGateway, alice: Agent, tmp_path: Path) -> None:
    path, keyring = tmp_path / "guard.sqlite3", gateway.book.keyring
    here = AdmissionGuard(keyring, ORIGIN, path, rules="any", wall_ms=gateway.clock.wall_ms)
    there = FenceGuard(keyring, ORIGIN, path)
    async for service in served("aiohttp", gateway, guard=here, wait_ms=400):
        call = await service.call(alice)
        with there.memory.admitted(()):
            await service.refuses("busy", call)
        with there.memory.admitted(()):
            sending = asyncio.ensure_future(service.send(call))
            await asyncio.sleep(0.1)
            assert not sending.done()
        assert (await sending).status == 200
    there.close()


@pytest.mark.parametrize("kind", ["aiohttp", "asgi"])
async def test_a_handler_that_takes_too_long_is_stopped_and_lets_go(
    kind: str, gateway: LocalGateway, alice: Agent
) -> None:
    async for service in served(kind, gateway, run_ms=50):
        call = await service.call(alice)
        service.ran.during = lambda: asyncio.sleep(5)
        await service.refuses("too_slow", call)
        service.ran.during = None
        await service.refuses("used", call)
        assert (await service.send(await service.call(alice))).status == 200


async def test_a_handler_that_is_cancelled_has_used_its_admission_and_lets_go(
    gateway: LocalGateway, alice: Agent
) -> None:
    async for service in served("asgi", gateway):
        call = await service.call(alice)
        service.ran.during = lambda: asyncio.sleep(5)
        running = asyncio.ensure_future(service.send(call))
        await service.ran.begun()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        service.ran.during = None
        await service.refuses("used", call)
        assert (await service.send(await service.call(alice))).status == 200


async def test_a_caller_that_hangs_up_while_it_waits_has_used_nothing(gateway: LocalGateway, alice: Agent) -> None:
    async for service in served("asgi", gateway):
        first, second = await service.call(alice, body=b"1"), await service.call(alice, body=b"2")
        gate = asyncio.Event()
        service.ran.during = lambda gate=gate: asyncio.wait_for(gate.wait(), 5)
        running, waiting = (asyncio.ensure_future(service.send(call)) for call in (first, second))
        await service.ran.begun()
        waiting.cancel()
        gate.set()
        assert (await running).status == 200
        assert (await service.send(second)).status == 200


@pytest.mark.parametrize("error", [TimeoutError("of its own"), Fenced("of its own"), AnswerRefused("of its own")])
async def test_what_a_handler_raises_is_the_applications_own_matter(
    gateway: LocalGateway, alice: Agent, error: Exception
) -> None:
    """A handler may well ask other guards; what they say is not taken for a refusal of this one."""

    async def fail() -> None:
        raise error

    async for service in served("asgi", gateway):
        call = await service.call(alice)
        service.ran.during = fail
        with pytest.raises(type(error), match="of its own"):
            await service.send(call)
        service.ran.during = None
        await service.refuses("used", call)


async def test_an_answer_that_has_begun_is_not_followed_by_another(gateway: LocalGateway, alice: Agent) -> None:
    """The handler is stopped in the middle of its answer: the connection breaks, and no problem is written into it."""

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        await asyncio.sleep(5)
        return response

    door = new_door(gateway, "http://store.example", run_ms=50)
    app = web.Application(middlewares=[guard_middleware(door)])
    app.router.add_put("/files/a.py", slowly)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/files/a.py"
    door._authorities = frozenset([URL(url).host_port_subcomponent or ""])
    call = await guarded_request(alice, "PUT", url, BODY, operation="file.write", resources=NAME)
    with pytest.raises(aiohttp.ClientPayloadError):
        await over_http(call)
    await runner.cleanup()
    door.guard.close()


@pytest.mark.parametrize("how", ["read", "json", "post", "multipart", "after"])
async def test_a_handler_reads_its_body_by_whichever_way(gateway: LocalGateway, alice: Agent, how: str) -> None:
    form = b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n'
    types = {"post": "application/x-www-form-urlencoded", "multipart": "multipart/form-data; boundary=x"}
    body = {"read": b"1", "json": b'{"a": "1"}', "post": b"a=1", "multipart": form, "after": b"1"}[how]
    seen: list[object] = []

    async def handle(request: web.Request) -> web.Response:
        if how in ("read", "after"):
            seen.append((await request.read()).decode())
        else:
            seen.append((await request.json() if how == "json" else await request.post())["a"])
        assert await request.read() in (body, b"")
        return web.Response()

    @web.middleware
    async def before(request: web.Request, handler: Any) -> web.StreamResponse:
        if how == "after":
            await request.read()
        return await handler(request)  # type: ignore[no-any-return]

    door = new_door(gateway, "http://store.example")
    app = web.Application(middlewares=[before, guard_middleware(door)])
    app.router.add_put("/files/a.py", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/files/a.py"
    door._authorities = frozenset([URL(url).host_port_subcomponent or ""])
    call = await guarded_request(
        alice, "PUT", url, body, operation="file.write", resources=NAME,
        content_type=types.get(how, "application/json"),
    )  # fmt: skip
    assert (await over_http(call)).status == 200
    assert seen == ["1"]
    await runner.cleanup()
    door.guard.close()


# -- bodies that trickle, and other scopes -----------------------------------------------------------------------------


async def test_a_body_that_trickles_ends_by_itself(gateway: LocalGateway, alice: Agent) -> None:
    async def never() -> Any:
        await asyncio.sleep(5)

    async for service in served("asgi", gateway, body_ms=50):
        call = await service.call(alice)
        app = GuardedApp(asgi_app(service.ran), service.door)
        begun = {"type": "http.request", "body": BODY[:10], "more_body": True}
        assert answer_in(await run_asgi(app, scope_of(call), [begun, never])).code == "body_too_slow"
        assert await run_asgi(app, scope_of(call), [begun, {"type": "http.disconnect"}]) == []
        assert service.ran.bodies == []
    async for service in served("aiohttp", gateway, body_ms=50):
        call = await service.call(alice)
        reader, writer = await asyncio.open_connection("127.0.0.1", call.url.port)
        head = "".join(f"{name}: {value}\r\n" for name, value in call.headers)
        writer.write(
            f"PUT {call.url.raw_path} HTTP/1.1\r\n{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY[:9]
        )
        assert b" 408 " in await reader.readline()
        writer.close()
        assert service.ran.bodies == []


async def test_a_stranger_is_refused_before_its_body_is_read(gateway: LocalGateway, alice: Agent) -> None:
    async def read() -> Any:
        raise AssertionError("the body was read")

    async for service in served("asgi", gateway):
        call = changed(await service.call(alice), "signature")
        app = GuardedApp(asgi_app(service.ran), service.door)
        assert answer_in(await run_asgi(app, scope_of(call), [read])).code == "signature_missing"


async def test_websockets_are_refused_in_words_where_that_can_be_said(gateway: LocalGateway, alice: Agent) -> None:
    async for service in served("asgi", gateway):
        app = GuardedApp(asgi_app(service.ran), service.door)
        call = await service.call(alice)
        (closed,) = await run_asgi(app, scope_of(call, "websocket"), [{"type": "websocket.connect"}])
        assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
        assert "one by one" in closed["reason"]
        scope = scope_of(call, "websocket", extensions={"websocket.http.response": {}})
        sent = await run_asgi(app, scope, [{"type": "websocket.connect"}])
        assert [message["type"] for message in sent] == [
            "websocket.http.response.start",
            "websocket.http.response.body",
        ]
        assert answer_in(sent).code == "websocket_refused"
        assert service.ran.bodies == []
        unguarded = replace(call, url=URL("http://store.example/chat"))
        await run_asgi(app, scope_of(unguarded, "websocket"), [{"type": "websocket.connect"}])
        assert service.ran.bodies == [b""]  # it reached the application


async def test_lifespan_passes_and_what_is_unknown_does_not(gateway: LocalGateway) -> None:
    async for service in served("asgi", gateway):
        app = GuardedApp(asgi_app(service.ran), service.door)
        started = await run_asgi(app, {"type": "lifespan"}, [{"type": "lifespan.startup"}])
        assert started == [{"type": "lifespan.startup.complete"}]
        with pytest.raises(ValueError, match="knows no scope"):
            await run_asgi(app, {"type": "datagram"}, [])


async def test_without_a_raw_path_the_path_has_to_be_plain(gateway: LocalGateway, alice: Agent) -> None:
    async for service in served("asgi", gateway):
        app = GuardedApp(asgi_app(service.ran), service.door)
        call = await service.call(alice)
        scope = scope_of(call) | {"raw_path": None}
        assert answer_in(await run_asgi(app, {**scope, "path": "/files/a b"}, [])).code == "signature_malformed"
        assert answer_in(await run_asgi(app, scope, chunked(BODY))).status == 200


async def test_behind_a_server_and_a_framework_that_others_made(gateway: LocalGateway, alice: Agent) -> None:
    """Starlette under uvicorn: both come with a tool of the tests, and neither knows of guards."""
    uvicorn, starlette = pytest.importorskip("uvicorn"), pytest.importorskip("starlette.applications")
    routing, responses = pytest.importorskip("starlette.routing"), pytest.importorskip("starlette.responses")

    async def put(request: Any) -> Any:
        actor = request.scope["tallystick.passed"].actor
        return responses.JSONResponse({"size": len(await request.body()), "actor": actor})

    door = new_door(gateway, "http://store.example")
    app = GuardedApp(starlette.Starlette(routes=[routing.Route("/files/{name}", put, methods=["PUT"])]), door)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_level="critical"))
        serving = asyncio.ensure_future(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        door._authorities = frozenset([URL(url).host_port_subcomponent or ""])
        call = await guarded_request(alice, "PUT", f"{url}/files/a.py", BODY, operation="file.write", resources=NAME)
        assert (await over_http(replace(call, body=b"?"))).code == "digest_wrong"
        answer = await over_http(call)
        assert json.loads(answer.body) == {"size": len(BODY), "actor": ALICE.did}
        assert (await over_http(call)).code == "used"
        server.should_exit = True
        await serving
    door.guard.close()


# -- a FenceGuard behind the same door ---------------------------------------------------------------------------------


async def test_a_lease_opens_a_fence_guard_and_each_request_is_good_once(
    fenced: Service, gateway: LocalGateway, alice: Agent
) -> None:
    """Who sees a signed request go by can't send it again, though the lease is good for many."""
    grant = await alice.acquire("repo:app/c.py")
    url = f"{fenced.url}/files/c.py"
    first = fenced_request(alice, "PUT", url, b"1", receipt=grant.receipt.data)
    assert (await fenced.send(first)).status == 200
    await fenced.refuses("used", first)
    assert (await fenced.send(fenced_request(alice, "PUT", url, b"2", receipt=grant.receipt.data))).status == 200
    assert fenced.ran.bodies == [b"1", b"2"]
    other = fenced_request(alice, "PUT", f"{fenced.url}/files/d.py", b"3", receipt=grant.receipt.data)
    await fenced.refuses("other_act", other)
    async with gateway.agent(BOB) as bob:
        stolen = fenced_request(bob, "PUT", url, b"4", receipt=grant.receipt.data)
    await fenced.refuses("not_proven", stolen)


async def test_41_after_42_behind_a_fence_guard(fenced: Service, gateway: LocalGateway, alice: Agent) -> None:
    url, old = f"{fenced.url}/files/c.py", await alice.acquire("repo:app/c.py")
    await alice.release("repo:app/c.py")
    async with gateway.agent(BOB) as bob:
        new = await bob.acquire("repo:app/c.py")
        assert (await fenced.send(fenced_request(bob, "PUT", url, b"new", receipt=new.receipt.data))).status == 200
    await fenced.refuses("stale_fence", fenced_request(alice, "PUT", url, b"old", receipt=old.receipt.data))
    assert fenced.ran.bodies == [b"new"]


# -- the helper and the table ------------------------------------------------------------------------------------------


async def test_the_helper_waits_for_witnesses_as_long_as_the_admission_lasts(
    gateway: LocalGateway, alice: Agent
) -> None:
    gateway.clock.is_automatic = True
    policy = policy_of(gateway).policy
    with pytest.raises(NotWitnessed, match="before the admission ended"):
        await guarded_request(
            alice, "PUT", "http://store.example/files/a.py", BODY, operation="file.write", resources=NAME, policy=policy
        )


def test_every_code_that_is_raised_has_a_row() -> None:
    root = Path(__file__).parents[2] / "gateway/client"
    files = [*root.glob("guards/*.py"), *(root / f"{name}.py" for name in ("fence", "fence_memory", "guarding"))]
    text = "\n".join(path.read_text("utf-8") for path in [*files, root / "admission_guard.py"])
    assert [code for code in ROWS if f'"{code}"' not in text] == []
    assert Fenced("x").code in ROWS
