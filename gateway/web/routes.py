"""From a request line to a handler, and from a handler back to one reply, one log line and one metric.

House rules: the target is taken as it came (`raw_path`), never decoded or normalised, because it is what was signed;
every request gets a deadline; whatever is raised becomes a problem in one place; headers that must stand on every
reply are put there, once.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from time import perf_counter
from typing import TypeAlias

from gateway.service import WallClock
from gateway.web import logs
from gateway.web.connection import Reply, Request
from gateway.web.limits import Deadlines
from gateway.web.metrics import Metrics
from gateway.web.problem import BASE_HEADERS, ROWS, Problem, Refusable, problem_of, render_problem

_METHODS_LIKE_GET = {"HEAD": "GET"}


@dataclass(slots=True)
class Call:
    """One request on its way: its target in two parts, and what handlers fill in for its log line.

    `code` is the name of a refusal that has a receipt; a problem's code is found by the door itself.
    """

    request: Request
    path: str
    query: str
    rest: str = ""
    code: str = ""
    fields: dict[str, object] = dataclass_field(default_factory=dict)


Handler: TypeAlias = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """A handler under a name from our tables; the name labels metrics and logs.

    `held_seconds` is how long it may keep a request waiting on purpose; its deadline is that much later.
    """

    name: str
    method: str
    path: str
    handler: Handler
    is_prefix: bool = False
    held_seconds: float = 0.0


class Door:
    """The one callable that aiohttp hands every request to."""

    def __init__(
        self, routes: tuple[Route, ...], *, clock: WallClock, metrics: Metrics, handler_seconds: float
    ) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefixes: dict[str, dict[str, Route]] = {}
        for route in routes:
            (self._prefixes if route.is_prefix else self._exact).setdefault(route.path, {})[route.method] = route
        self._clock = clock
        self._metrics = metrics
        self._deadlines = Deadlines(handler_seconds)
        self._request_prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    async def __call__(self, request: Request) -> Reply:
        """Answer one request, whatever happens."""
        started_s = perf_counter()
        request_id = f"{self._request_prefix}-{next(self._numbers)}"
        call = Call(request, "", "")
        route_name, code = "none", ""
        task = request.task
        self._deadlines.begin(task)
        try:
            route = self._route(call)
            route_name = route.name
            if route.held_seconds:
                self._deadlines.extend(task, route.held_seconds)
            reply = await route.handler(call)
            reply.request_id, code = request_id, call.code
        except (Exception, asyncio.CancelledError) as error:
            problem = problem_of(self._overdue(task, error))
            code = problem.row.code
            reply = render_problem(problem, request_id, self._clock.now_ms())
        finally:
            self._deadlines.end(task)
        self._note(call, request_id, route_name, reply.status, code, perf_counter() - started_s)
        return reply

    def _overdue(self, task: asyncio.Task[object], error: BaseException) -> BaseException:
        """Return what ended the handler: a TimeoutError for its deadline; a cancellation by anybody else goes on."""
        if not isinstance(error, asyncio.CancelledError):
            return error
        if not self._deadlines.has_passed(task):
            raise error
        task.uncancel()
        return TimeoutError()

    def error_reply(self, status: int) -> Reply:
        """Return the answer to a message that is not HTTP, so has no route and no call."""
        self._metrics.observe("none", status, "bad_http", 0.0)
        problem = Problem(ROWS["bad_http"], "The message could not be read as HTTP/1.1 within the limits.")
        return render_problem(problem, f"{self._request_prefix}-{next(self._numbers)}", self._clock.now_ms())

    def _route(self, call: Call) -> Route:
        target = call.request.raw_path
        if not target.startswith("/"):
            raise Refusable("target_malformed", "An absolute or empty target is not served; name the host in Host.")
        if call.request.expects not in ("", "100-continue"):
            raise Refusable("expectation_failed", "Expect may say 100-continue and nothing else.")
        call.path, _, call.query = target.partition("?")
        methods = self._exact.get(call.path) or self._prefixed(call)
        if methods is None:
            raise Refusable("not_found", "No path of this gateway.")
        method = call.request.method
        route = methods.get(_METHODS_LIKE_GET.get(method, method))
        if route is None:
            raise Refusable("method_not_allowed", "Not with this method.", {"Allow": ", ".join(sorted(methods))})
        return route

    def _prefixed(self, call: Call) -> Mapping[str, Route] | None:
        for prefix, methods in self._prefixes.items():
            if call.path.startswith(prefix):
                call.rest = call.path[len(prefix) :]
                return methods
        return None

    def _note(self, call: Call, request_id: str, route: str, status: int, code: str, seconds: float) -> None:
        self._metrics.observe(route, status, code, seconds)
        call.fields.update(
            requestId=request_id, route=route, status=status, code=code, durationMs=round(seconds * 1000, 3)
        )
        logs.access_line(self._clock.now_ms(), call.fields, call.request.task.get_loop())


def plain(body: bytes, content_type: str, **headers: str) -> Reply:
    """Return 200 with the headers of every reply; a keyword such as Cache_Control replaces one of them."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(200, body, tuple({**BASE_HEADERS, "Content-Type": content_type, **named}.items()))
