"""The Model Context Protocol over HTTP: one message in, one out, nothing kept between two.

House rules of this file:

* Order: where the page comes from, what is sent and accepted, the size, the message, who calls. A web page that was
  tricked into asking is stopped by its Origin before anything is read.
* To list tools needs no token; to call one does. A token decides nothing (gateway/bearer.py): what it asks for becomes
  an ordinary signed request.
* There are no sessions and no stream: GET and DELETE are refused, and a restart in between is not noticed.
* Who hangs up calls off what is being waited for; what was already asked of the ledger is finished without them.

Source: docs/mcp.md; ADR 32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import orjson

from gateway.actions import ACTIONS
from gateway.core.admissionview import ask_view, usage_view
from gateway.core.intake import Rejection
from gateway.core.refusal import SESSION_REQUIRED
from gateway.core.waitview import trust_view
from gateway.ledger.parking import PARK_MS_MAX, Draining
from gateway.mcp.protocol import (
    INVALID_REQUEST,
    MODERN,
    UNAUTHORIZED,
    Fault,
    Notification,
    Request,
    Routing,
    check_revision,
    error_response,
    read,
    response,
)
from gateway.mcp.tools import Spelling, Trouble, find_call, is_held, result_of
from gateway.web.access import bearer_token
from gateway.web.connection import Reply
from gateway.web.house import JSON, House, receipt_at
from gateway.web.pictures import with_statements
from gateway.web.problem import BASE_HEADERS, BEARER_CHALLENGE, problem_of
from gateway.web.routes import Call, Route
from verifier.wire import JsonObject

PATHS: Mapping[str, Spelling] = {"/mcp": "dotted", "/mcp/u": "underscored"}
LOOK_S = 0.5  # between two looks at a picture; an agent may look 50 times in a second
LOOPBACK = frozenset(("localhost", "127.0.0.1", "[::1]"))
_FIELDS = (*BASE_HEADERS.items(), ("Content-Type", JSON))
_ROUTED_BY = {b"mcp-protocol-version": "version", b"mcp-method": "method", b"mcp-name": "name"}


def mcp_routes(house: House) -> tuple[Route, ...]:
    """Return the two endpoints, which differ in how tools are listed."""
    held_seconds = PARK_MS_MAX / 1_000
    return tuple(
        Route("mcp", "POST", path, partial(answer, house, spelling), held_seconds=held_seconds)
        for path, spelling in PATHS.items()
    )


async def answer(house: House, spelling: Spelling, call: Call) -> Reply:
    """Answer one message: over the bounds with an error of HTTP, otherwise with one of the protocol."""
    refusal = _check_head(house, call.request.headers)
    if refusal is not None:
        return refusal
    body = await call.request.read(house.body_seconds)
    try:
        message = read(body)
    except Fault as fault:
        return _fault(fault, is_modern=True)
    if isinstance(message, Notification):
        return Reply(202, b"", tuple(BASE_HEADERS.items()))
    routing = _routing(call.request.raw_headers)
    try:
        check_revision(message, routing)
        return await _respond(house, message, spelling, call)
    except Fault as fault:
        return _fault(fault, is_modern=message.is_modern or routing.version == MODERN)


async def _respond(house: House, request: Request, spelling: Spelling, call: Call) -> Reply:
    caller = None
    if request.method == "tools/call":
        token = bearer_token(call)
        if token is None:
            return _unauthorized(request, "Bearer")
        try:
            caller = HttpCaller(house, token, await house.bearer.known(token, house.bearer.agent_of))
        except Rejection:
            return _unauthorized(request, BEARER_CHALLENGE)
        tool, _, _ = find_call(request)
        call.fields.update(actor=caller.did, tool=tool.action.name)
        call.request.is_abandonable = is_held(request)
    else:
        house.pictures.take(call.request.remote)  # the list is as large as a picture, and strangers may ask for it
    result = await result_of(request, caller, spelling)
    call.code = _code(result)
    return Reply(200, response(request, result), _FIELDS)


# -- the head of a request ---------------------------------------------------------------------------------------------


def _check_head(house: House, headers: Mapping[str, str]) -> Reply | None:
    """Return the reply to a request that is not to be read, else None."""
    if "Origin" in headers and not _is_ours(headers["Origin"], house.ledger.authorities):
        return _refusal(403, "Web pages of this origin may not ask here.")
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() != JSON:
        return _refusal(415, f"Send {JSON}.")
    accepted = {kind.partition(";")[0].strip().lower() for kind in headers.get("Accept", "*/*").split(",")}
    if not accepted & {JSON, "application/*", "*/*"}:
        return _refusal(406, f"Accept {JSON}: that is what is answered.")
    return None


def _is_ours(origin: str, authorities: Iterable[str]) -> bool:
    """Say whether a page may ask: it comes from a name of this ledger, or from this machine and so does the ledger."""
    scheme, _, authority = origin.partition("://")
    if scheme not in ("http", "https"):
        return False
    return authority in authorities or (
        _host(authority) in LOOPBACK and any(_host(ours) in LOOPBACK for ours in authorities)
    )


def _host(authority: str) -> str:
    host, colon, port = authority.rpartition(":")
    return host if colon and port.isdigit() else authority


def _routing(raw_headers: Iterable[tuple[bytes, bytes]]) -> Routing:
    """Return what the headers say about the body."""
    found: dict[str, str] = {}
    repeated = ""
    for raw, value in raw_headers:
        name = _ROUTED_BY.get(raw.lower())
        if name is not None:
            repeated = raw.decode("latin-1") if name in found else repeated
            found[name] = value.decode("latin-1")
    return Routing(**found, repeated=repeated)


# -- replies -----------------------------------------------------------------------------------------------------------


def _refusal(status: int, text: str) -> Reply:
    return Reply(status, error_response(Fault(INVALID_REQUEST, text)), _FIELDS)


def _fault(fault: Fault, *, is_modern: bool) -> Reply:
    return Reply(fault.status(is_modern=is_modern), error_response(fault), _FIELDS)


def _unauthorized(request: Request, challenge: str) -> Reply:
    text = "To call a tool send Authorization: Bearer tsk_live_…, an agent's API key in force; an operator issues it."
    body = error_response(Fault(UNAUTHORIZED, text, request.id))
    return Reply(401, body, (*_FIELDS, ("WWW-Authenticate", challenge)))


def _code(result: JsonObject) -> str:
    """Return the name of a refusal for the log line, else ""."""
    said = result.get("structuredContent")
    return str(said.get("error", "")) if isinstance(said, dict) else ""


# -- who calls ---------------------------------------------------------------------------------------------------------


class HttpCaller:
    """The agent behind a token, for the length of one call (gateway/mcp/tools.py)."""

    def __init__(self, house: House, token: str, did: str) -> None:
        self._house = house
        self._token = token
        self.did = did
        self.ledger = house.ledger.origin
        self.look_s = LOOK_S

    async def decide(self, action: str, members: JsonObject, *, idempotency_key: str, wait_ms: int) -> JsonObject:
        """Let the desk decide; the answer is made of the stored bytes."""
        if ACTIONS[action].signer == "session":  # a token speaks for an agent, which needs no sign of life
            raise Trouble(SESSION_REQUIRED.name, SESSION_REQUIRED.advice, SESSION_REQUIRED.retry)
        with _told():
            if self._house.is_draining():
                raise Draining
            answered = await self._house.bearer.decide(
                self._token, ACTIONS[action], members, idempotency_key=idempotency_key, wait_ms=wait_ms
            )
        said: JsonObject = orjson.loads(answered.body)
        return {"seq": answered.seq, **said}

    async def read(self, action: str, arguments: JsonObject) -> JsonObject:
        """Look, at the cost of the agent."""
        with _told():
            self._house.pictures.take(self.did)
            return await self._picture(action, arguments)

    async def _picture(self, action: str, arguments: JsonObject) -> JsonObject:
        house, scenes = self._house, self._house.scenes
        match action:
            case "coordination.wait":
                name = arguments.get("resource")
                return _parsed(await (scenes.everything() if name is None else scenes.resource(str(name))))
            case "lease.list":
                return _parsed(await scenes.holder(str(arguments.get("holder", self.did))))
            case "trust.get":
                did = str(arguments.get("did", self.did))
                return {"ok": True, **trust_view(house.shelf, did, house.sequencer.time_ms, house.ledger.parameters)}
            case "usage.get":
                did = str(arguments.get("did", self.did))
                return {"ok": True, **usage_view(house.shelf, did, house.sequencer.time_ms)}
            case "approval.list" if "askId" in arguments:
                found = ask_view(house.shelf, str(arguments["askId"]), house.sequencer.time_ms)
                return {"ok": True, **await with_statements(house, found)}
            case "approval.list":
                return _parsed(await scenes.asks(self.did, ""))
            case _:
                assert action == "receipt.get", "tools.py offers six reads"
                seq = arguments["seq"]
                assert isinstance(seq, int), "the table says so"
                return {"ok": True, "seq": seq, "receipt": _parsed(await receipt_at(house, seq))}


def _parsed(body: bytes) -> JsonObject:
    value: JsonObject = orjson.loads(body)
    return value


@contextmanager
def _told() -> Iterator[None]:
    """Turn what the rooms raise into what a model is told; the map is that of every other door (problem.py)."""
    try:
        yield
    except Trouble:
        raise
    except Exception as error:
        problem = problem_of(error)
        row = problem.row
        more: JsonObject = {}
        if problem.headers.get("Retry-After", "").isdigit():
            more["retryAfterMs"] = 1_000 * int(problem.headers["Retry-After"])
        if "number" in problem.members:
            more["number"] = int(str(problem.members["number"]))
        detail = problem.detail if problem.detail.endswith(".") else f"{problem.detail}."
        raise Trouble(row.code, f"{row.title}: {detail} {row.advice}", row.retry, more) from error
