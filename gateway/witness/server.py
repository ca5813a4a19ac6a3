"""The witness over HTTP: two routes, one line of log per request, and a stop that loses nothing.

Cosigning runs in threads of its own: a write waits for the disk, and meanwhile the loop must answer others. A client
that goes away takes nothing with it: what was begun is finished and kept.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import ceil
from time import monotonic

from aiohttp import web

from gateway.witness.limits import HANDLER_SECONDS, BodyTooLarge, Buckets, Server, read_body
from gateway.witness.shelf import Shelf
from gateway.witness.submission import BODY_BYTES_MAX
from gateway.witness.witness import Answer, Witness

ADD_PATH = "/add-checkpoint"
THREADS = 8  # origins that may wait for the disk at one time
CONNECTIONS_MAX = 512
REQUESTS_PER_SECOND = 20.0  # of one address: a log shows itself every second or so
REQUESTS_BURST = 100.0
STOP_SECONDS = 10.0
_MONITOR = re.compile(r"/([0-9a-f]{64})/checkpoint")
_access = logging.getLogger("tallystick.access")
_log = logging.getLogger("tallystick.witness")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator may set: connections in all, and requests per second of one address (0: no limit)."""

    connections_max: int = CONNECTIONS_MAX
    requests_per_second: float = REQUESTS_PER_SECOND


class Door:
    """Routes a request to the witness and writes its answer."""

    def __init__(self, witness: Witness, limits: Limits, *, failed: asyncio.Event, is_lost: Callable[[], bool]) -> None:
        self._witness = witness
        self._failed = failed
        self._is_lost = is_lost
        rate = limits.requests_per_second
        self._buckets = Buckets(rate_per_s=rate, burst=REQUESTS_BURST, clock=monotonic) if rate > 0 else None
        self._threads = ThreadPoolExecutor(THREADS, "tallystick-witness")
        self.server = Server(self.handle, connections_max=limits.connections_max)

    def close(self) -> None:
        """Wait for what was begun."""
        self._threads.shutdown(wait=True)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; whatever goes wrong is a 500 without a word about it."""
        begun_s = monotonic()
        self.server.has_spoken(request.transport)
        try:
            answer = await self._answer(request)
        except (ConnectionError, web.RequestPayloadError):
            raise
        except Exception:
            _log.exception("handler_failed")
            answer = Answer(500, "the witness failed\n", "failed")
        _log_access(request, answer, begun_s)
        return _response(request, answer)

    async def _answer(self, request: web.BaseRequest) -> Answer:
        wait_s = self._buckets.wait_s(request.remote or "") if self._buckets else 0.0
        if wait_s > 0:
            return Answer(429, "too many requests from this address\n", "rate_limited", retry_after_s=ceil(wait_s))
        if request.path == ADD_PATH:
            return await self._add(request) if request.method == "POST" else _wrong_method("POST")
        match = _MONITOR.fullmatch(request.path)
        if match is None:
            return Answer(404, "there is nothing here\n", "no_such_path")
        if request.method not in ("GET", "HEAD"):
            return _wrong_method("GET")
        note = self._witness.newest(match[1])
        if note is None:
            return Answer(404, "nothing was cosigned for this origin\n", "never_cosigned")
        return Answer(200, note.decode(), "shown")

    async def _add(self, request: web.BaseRequest) -> Answer:
        try:
            body = await read_body(request.content, request.content_length, BODY_BYTES_MAX)
        except BodyTooLarge:
            return Answer(413, f"a request has at most {BODY_BYTES_MAX} bytes\n", "body_too_large")
        except TimeoutError:
            return Answer(408, "the body did not come in time\n", "body_too_slow")
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._witness.add, body)
        try:
            answer = await asyncio.wait_for(asyncio.shield(work), HANDLER_SECONDS)
        except TimeoutError:
            return Answer(503, "the witness is too slow at the moment\n", "too_slow", retry_after_s=10)
        if self._is_lost():
            self._failed.set()
        return answer


def _wrong_method(allowed: str) -> Answer:
    return Answer(405, f"this path is asked with {allowed}\n", "method_wrong")


def _response(request: web.BaseRequest, answer: Answer) -> web.Response:
    kind, _, charset = answer.kind.partition("; charset=")
    response = web.Response(status=answer.status, body=answer.text.encode(), content_type=kind, charset=charset or None)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    if answer.retry_after_s is not None:
        response.headers["Retry-After"] = str(answer.retry_after_s)
    if answer.status == 405:
        response.headers["Allow"] = "POST" if request.path == ADD_PATH else "GET, HEAD"
    if not request.content.is_eof():
        response.force_close()  # a body that nobody read must not be taken for the next request
    return response


def _log_access(request: web.BaseRequest, answer: Answer, begun_s: float) -> None:
    known = request.path == ADD_PATH or _MONITOR.fullmatch(request.path) is not None
    fields = {
        "method": request.method if request.method in ("GET", "HEAD", "POST") else "other",
        "path": request.path if known else "other",
        "status": answer.status,
        "code": answer.code,
        "remote": request.remote,
        "ms": round((monotonic() - begun_s) * 1_000, 1),
    }
    _access.info("request", extra={"fields": fields})


@asynccontextmanager
async def running(
    witness: Witness, shelf: Shelf, limits: Limits, host: str, port: int
) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Yield the address of a witness that answers, and the event that says it can't go on; leaving stops it."""
    failed = asyncio.Event()
    door = Door(witness, limits, failed=failed, is_lost=lambda: shelf.is_lost)
    runner = web.ServerRunner(door.server, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        where = runner.addresses[0]
        yield f"http://{where[0]}:{where[1]}", failed
    finally:
        await runner.cleanup()
        door.close()


async def serve(witness: Witness, shelf: Shelf, limits: Limits, host: str, port: int) -> bool:
    """Serve until SIGTERM or SIGINT, or until the disk fails; return whether it ended well."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(witness, shelf, limits, host, port) as (url, failed):
        _log.info("serving", extra={"fields": {"url": url}})
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    _log.info("stopped")
    return not failed.is_set()
