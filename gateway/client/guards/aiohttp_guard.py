"""A door in front of the handlers of an aiohttp application.

    app = web.Application(middlewares=[guard_middleware(door)])

A guarded handler finds the body where it always does (`read`, `json`, `post`, `content`), whole and as it came, and
what was admitted in `request[PASSED]`. Refusals are answered here and the handler never runs. What a handler did before
it failed is its own matter: the admission is used up.
Source: docs/protocol.md 41.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.streams import StreamReader
from aiohttp.typedefs import Handler, Middleware

from gateway.client.errors import AnswerRefused, Fenced
from gateway.client.guards.door import Door, Knock, Passed, Run
from gateway.client.guards.refusing import problem
from gateway.client.guards.request import Call

PASSED = web.RequestKey("tallystick.passed", Passed)


def guard_middleware(door: Door) -> Middleware:
    """Return the middleware; put it behind those that must see refused requests too."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        run = Run(handler)
        try:
            knock = door.knock(_call(request))
            if knock is not None:
                return await _passed(door, knock, request, run)
        except (Fenced, AnswerRefused) as error:
            if run.is_own(error) or request.writer.output_size > 0:
                raise
            status, headers, body = problem(error)
            return web.Response(status=status, headers=dict(headers), body=body)
        return await handler(request)

    return guarded


async def _passed(door: Door, knock: Knock, request: web.Request, run: Run[web.StreamResponse]) -> web.StreamResponse:
    body = await _body(door, request)
    async with door.passing(knock, body) as passed:
        _put_back(request, body)
        request[PASSED] = passed
        return await run(request)


async def _body(door: Door, request: web.Request) -> bytes:
    """Return the body, read once, within its bounds of size and time."""
    if request._read_bytes is not None:  # by a middleware before this one
        door.check_size(len(request._read_bytes))
        return request._read_bytes
    body = bytearray()
    limit = asyncio.timeout(door.body_ms / 1_000)
    try:
        async with limit:
            while chunk := await request.content.readany():
                body += chunk
                door.check_size(len(body))
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise Fenced(f"the body did not arrive within {door.body_ms} ms", "body_too_slow") from error
    return bytes(body)


def _put_back(request: web.Request, body: bytes) -> None:
    """Let the handler read the body again, by whichever way; aiohttp has no public one to say so."""
    stream = StreamReader(request.protocol, len(body) + 1, loop=asyncio.get_running_loop())
    if body:
        stream.feed_data(body)
    stream.feed_eof()
    request._payload = request._cache["content"] = stream


def _call(request: web.Request) -> Call:
    path, _, query = request.raw_path.partition("?")
    fields = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.raw_headers)
    hosts = [value for name, value in fields if name == "host"]
    return Call(request.method, hosts[0] if len(hosts) == 1 else "", path, query, fields)
