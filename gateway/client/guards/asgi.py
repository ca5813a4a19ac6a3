"""A door in front of an ASGI application, for any server and any framework of that kind.

    app = GuardedApp(app, door)

A guarded application receives the body whole, as one message, and finds what was admitted in
`scope["tallystick.passed"]`. Lifespan passes through. A websocket that `describe` calls guarded is refused, for nobody
could admit what is said over it one by one; one that it calls unguarded passes.
Source: docs/protocol.md 41; ASGI 3.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.client.errors import AnswerRefused, Fenced
from gateway.client.guards.door import NO_WEBSOCKET, Door, Run
from gateway.client.guards.refusing import problem
from gateway.client.guards.request import Call

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PASSED = "tallystick.passed"
POLICY_VIOLATION = 1008
_WEBSOCKET = "websocket.http.response"  # the extension by which a refusal can say why


class _Gone(Exception):
    """The caller left before its request was whole."""


class GuardedApp:
    """An ASGI application that runs `app` for what `door` lets in."""

    def __init__(self, app: App, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            return await self._app(scope, receive, send)
        if kind == "http":
            return await self._http(scope, receive, send)
        if kind == "websocket":
            return await self._websocket(scope, receive, send)
        raise ValueError(f"a guard knows no scope {kind!r}, and lets through what it knows only")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer, run = _Answer(send), Run(self._app)
        try:
            knock = self._door.knock(_call(scope, scope["method"]))
            if knock is not None:
                body = await self._body(receive)
                async with self._door.passing(knock, body) as passed:
                    return await run({**scope, PASSED: passed}, _again(body, receive), answer.send)
        except (Fenced, AnswerRefused) as error:
            if run.is_own(error) or answer.has_begun:
                raise
            await _refuse(error, "http.response", send)
            return
        except _Gone:
            return
        await self._app(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._door.describe(_call(scope, "GET")) is None:
            return await self._app(scope, receive, send)
        await receive()  # websocket.connect
        if _WEBSOCKET in (scope.get("extensions") or {}):
            return await _refuse(Fenced(NO_WEBSOCKET, "websocket_refused"), _WEBSOCKET, send)
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": NO_WEBSOCKET})

    async def _body(self, receive: Receive) -> bytes:
        """Return the body, read once, within its bounds of size and time."""
        body = bytearray()
        limit = asyncio.timeout(self._door.body_ms / 1_000)
        try:
            async with limit:
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _Gone
                    body += message.get("body", b"")
                    self._door.check_size(len(body))
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise Fenced(f"the body did not arrive within {self._door.body_ms} ms", "body_too_slow") from error


class _Answer:
    """Notes whether an answer has begun: then there is no second one."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def send(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body, and then whatever comes."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again


async def _refuse(error: Fenced | AnswerRefused, kind: str, send: Send) -> None:
    status, headers, body = problem(error)
    pairs = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
    length = (b"content-length", str(len(body)).encode("ascii"))
    await send({"type": f"{kind}.start", "status": status, "headers": [*pairs, length]})
    await send({"type": f"{kind}.body", "body": body, "more_body": False})


def _call(scope: Scope, method: str) -> Call:
    """Return the head of a scope; the path as it was sent, where the server says so."""
    raw = scope.get("raw_path")
    path = scope["path"] if raw is None else raw.decode("latin-1").partition("?")[0]
    query = scope.get("query_string", b"").decode("latin-1")
    fields = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"])
    hosts = [value for name, value in fields if name == "host"]
    return Call(method, hosts[0] if len(hosts) == 1 else "", path, query, fields)
