"""The Model Context Protocol as far as a server of tools needs it: messages in, results out. Pure.

House rules of this file:

* Nothing is remembered. Every request says itself which revision it speaks: from 2026-07-28 on in `params._meta`, in
  the two revisions before it by having no such member. So a restart in the middle of a conversation is not noticed.
* Bounds come first: bytes, then nesting, then JSON, each before the step that it protects. An array of messages (a
  batch, which the revisions here do not have) is refused.
* A Fault is the protocol's own error. What a tool has to say, a refusal or a bad argument, is a result (tools.py), so
  that the model reads it.
* What leaves is ASCII on one line, whatever came in: it is a line of stdio as well as a body of HTTP.

Source: the specification's revisions 2026-07-28, 2025-11-25 and 2025-06-18; JSON-RPC 2.0; docs/mcp.md; ADR 32.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from binascii import Error, a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from itertools import accumulate
from typing import NoReturn

from verifier.wire import INT_MAX, JsonObject, JsonValue

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18")  # begun by `initialize`; the newest first
REVISIONS = (MODERN, *LEGACY)
MESSAGE_BYTES_MAX = 65_536  # as the door's own bound; the largest body that a tool sends has 40,960
DEPTH_MAX = 24  # a batch of commands has 6, and hosts describe themselves in `_meta`
TOOLS_TTL_MS = 300_000  # how long a client may keep the list of tools, which changes with the gateway's version only

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
UNAUTHORIZED, TOO_MANY = -32006, -32005  # of the range that every server may use for its own
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022
_HTTP_STATUS: Mapping[int, int] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
    UNAUTHORIZED: 401,
}
_MESSAGE_STATUSES = frozenset((PARSE_ERROR, INVALID_REQUEST, UNSUPPORTED_VERSION, HEADER_MISMATCH, UNAUTHORIZED))

_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_SERVER_KEY = "io.modelcontextprotocol/serverInfo"
_CAPABILITIES: JsonObject = {"tools": {}}
INSTRUCTIONS = (
    "Leases on named resources, each decision with a signed receipt. Before you change something that others may "
    "change too, acquire a lease on its name (scheme:path, or scheme:path/** for a sub-tree); keep the fencing token; "
    "renew before the lease runs out; release when you are done. When a name is held, acquire with wait true and claim "
    "the ticket with waitSeconds 20 until it is your turn. A refusal says in `message` what to do next. Send the same "
    "idempotencyKey again when you do not know whether a call took effect."
)

# Strings (perhaps unclosed, so that the scan stays linear) and everything else that is no bracket.
_NO_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[^"\[\]{}]++', re.DOTALL)
_WRAPPED = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)

Id = int | str


class Fault(Exception):
    """An error of the protocol: `request_id` is None when it could not be read."""

    def __init__(self, code: int, text: str, request_id: Id | None = None, data: JsonObject | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.request_id = request_id
        self.data = data

    def status(self, *, is_modern: bool) -> int:
        """Return the HTTP status; before 2026-07-28 a request that could be read is answered with 200."""
        return _HTTP_STATUS.get(self.code, 200) if is_modern or self.code in _MESSAGE_STATUSES else 200


@dataclass(frozen=True, slots=True)
class Request:
    """A message that wants an answer. `params` is {} when there are none."""

    id: Id
    method: str
    params: JsonObject

    @property
    def meta(self) -> JsonObject:
        """What is said about the request itself."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    @property
    def is_modern(self) -> bool:
        """Whether it says its own revision; the handshake belongs to the older ones, whatever it carries."""
        return _VERSION_KEY in self.meta and self.method != "initialize"


@dataclass(frozen=True, slots=True)
class Notification:
    """A message that wants none."""

    method: str
    params: JsonObject


@dataclass(frozen=True, slots=True)
class Routing:
    """What the headers of an HTTP request say about its body, for those who route without reading it; "" if absent.

    `repeated` names a header that stands there twice.
    """

    version: str = ""
    method: str = ""
    name: str = ""
    repeated: str = field(default="", kw_only=True)


# -- reading -----------------------------------------------------------------------------------------------------------


def read(data: bytes) -> Request | Notification:
    """Return the one message in `data`; Fault for anything else, a response and an array of messages included."""
    value = _decoded(data)
    if not isinstance(value, dict):
        raise Fault(INVALID_REQUEST, "Send one JSON-RPC request or notification, an object; arrays are not taken.")
    request_id = _id_in(value)
    method, params = value.get("method"), value.get("params")
    params = {} if params is None else params
    if value.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, dict):
        raise Fault(
            INVALID_REQUEST, 'A message has jsonrpc "2.0", a method, and params that are an object.', request_id
        )
    if "id" not in value:
        return Notification(method, params)
    if request_id is None:
        raise Fault(INVALID_REQUEST, "An id is an integer or a string.")
    return Request(request_id, method, params)


def _id_in(value: JsonObject) -> Id | None:
    found = value.get("id")
    return found if isinstance(found, int | str) and not isinstance(found, bool) else None


def _decoded(data: bytes) -> object:
    if len(data) > MESSAGE_BYTES_MAX:
        raise Fault(INVALID_REQUEST, f"At most {MESSAGE_BYTES_MAX:,} bytes are read.")
    if _depth(data) > DEPTH_MAX:
        raise Fault(INVALID_REQUEST, f"At most {DEPTH_MAX} levels of nesting are read.")
    try:
        value: object = _DECODER.decode(data.decode("utf-8"))
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a character is none
        return value
    except (ValueError, RecursionError) as error:
        raise Fault(PARSE_ERROR, "This is not JSON in UTF-8 with each member once.") from error


def _depth(data: bytes) -> int:
    brackets = _NO_BRACKET.sub(b"", data)
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member stands twice")
    return members


def _number(text: str) -> int | float:
    """Return a whole number as an integer, however it is spelled: to JSON Schema 20.0 is one."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= INT_MAX else number


def _refuse(_text: str) -> NoReturn:
    raise ValueError("not a number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_float=_number, parse_constant=_refuse)


# -- revisions ---------------------------------------------------------------------------------------------------------


def check_revision(request: Request, routing: Routing | None = None) -> None:
    """Raise Fault unless the request speaks a revision of ours and, over HTTP, its headers say the same as its body."""
    if request.is_modern:
        _check_envelope(request)
        if routing is not None:
            _check_routing(request, routing)
        _check_served(str(request.meta[_VERSION_KEY]), (MODERN,), request.id)
    elif routing is not None and routing.version and request.method != "initialize":
        if routing.version == MODERN:
            raise Fault(INVALID_PARAMS, f"params._meta has no {_VERSION_KEY}, which {MODERN} demands.", request.id)
        _check_served(routing.version, LEGACY, request.id)


def _check_envelope(request: Request) -> None:
    if not isinstance(request.meta[_VERSION_KEY], str):
        raise Fault(INVALID_PARAMS, f"params._meta: {_VERSION_KEY} is a string.", request.id)
    if not isinstance(request.meta.get(_CAPABILITIES_KEY), dict):
        raise Fault(INVALID_PARAMS, f"params._meta has no object {_CAPABILITIES_KEY}.", request.id)


def _check_routing(request: Request, routing: Routing) -> None:
    """Who routes by a header and who answers by the body must see the same request."""
    wrong = routing.repeated
    if not wrong and routing.version != request.meta[_VERSION_KEY]:
        wrong = "MCP-Protocol-Version"
    if not wrong and routing.method != request.method:
        wrong = "Mcp-Method"
    if not wrong and request.method == "tools/call" and _unwrapped(routing.name) != request.params.get("name"):
        wrong = "Mcp-Name"
    if wrong:
        raise Fault(HEADER_MISMATCH, f"The header {wrong} does not say what the body says, once.", request.id)


def _unwrapped(value: str) -> str | None:
    """Return what a header value stands for: it may be base64 of UTF-8, spelled in one way only."""
    match = _WRAPPED.fullmatch(value)
    if match is None:
        return value
    try:
        content = a2b_base64(match[1], strict_mode=True)
        return content.decode("utf-8") if b64encode(content).decode() == match[1] else None
    except (Error, ValueError):
        return None


def _check_served(version: str, served: tuple[str, ...], request_id: Id | None) -> None:
    if version not in served:
        data: JsonObject = {"supported": list(REVISIONS), "requested": version}
        raise Fault(UNSUPPORTED_VERSION, "This revision of the protocol is not served.", request_id, data)


# -- answers -----------------------------------------------------------------------------------------------------------


def plain_result(request: Request, tools: list[JsonValue]) -> JsonObject:
    """Return the result of a request that needs no caller; Fault for a method that is not served.

    `tools` are the definitions to list. `tools/call` is not answered here.
    """
    match request.method, request.is_modern:
        case "tools/list", is_modern:
            return _listed(request, tools, is_modern=is_modern)
        case "server/discover", True:
            return _discovered()
        case "initialize", False:
            return _initialized(request)
        case "ping", False:
            return {}
        case _:
            text = "This method is not served; there are tools here and nothing else."
            raise Fault(METHOD_NOT_FOUND, text, request.id)


def _discovered() -> JsonObject:
    return {
        "supportedVersions": list(REVISIONS),
        "capabilities": _CAPABILITIES,
        "instructions": INSTRUCTIONS,
        **_kept(),
    }


def _initialized(request: Request) -> JsonObject:
    """Agree on what the client asks for if it is one of the older revisions, else offer the newest of them."""
    asked = request.params.get("protocolVersion")
    if not isinstance(asked, str):
        raise Fault(INVALID_PARAMS, "initialize names a protocolVersion.", request.id)
    return {
        "protocolVersion": asked if asked in LEGACY else LEGACY[0],
        "capabilities": _CAPABILITIES,
        "serverInfo": _server(),
        "instructions": INSTRUCTIONS,
    }


def _listed(request: Request, tools: list[JsonValue], *, is_modern: bool) -> JsonObject:
    if request.params.get("cursor") is not None:
        raise Fault(INVALID_PARAMS, "All tools are on one page, which has no cursor.", request.id)
    return {"tools": tools, **(_kept() if is_modern else {})}


def _kept() -> JsonObject:
    return {"ttlMs": TOOLS_TTL_MS, "cacheScope": "public"}


def called(request: Request) -> tuple[str, JsonObject]:
    """Return the name and the arguments of a `tools/call`."""
    name, arguments = request.params.get("name"), request.params.get("arguments")
    if not isinstance(name, str) or not (arguments is None or isinstance(arguments, dict)):
        raise Fault(INVALID_PARAMS, "tools/call has a name, and arguments that are an object.", request.id)
    return name, arguments or {}


def response(request: Request, result: JsonObject) -> bytes:
    """Return the message that answers a request."""
    if request.is_modern:
        meta: JsonObject = {_SERVER_KEY: _server()}
        result = {**result, "resultType": "complete", "_meta": meta}
    return _encoded({"jsonrpc": "2.0", "id": request.id, "result": result})


def error_response(fault: Fault) -> bytes:
    """Return the message that tells a fault."""
    error: JsonObject = {"code": fault.code, "message": fault.text}
    if fault.data is not None:
        error["data"] = fault.data
    return _encoded({"jsonrpc": "2.0", "id": fault.request_id, "error": error})


def cancelled_id(notification: Notification) -> Id | None:
    """Return which request a notification calls off, if it is one that does."""
    if notification.method != "notifications/cancelled":
        return None
    return _id_in({"id": notification.params.get("requestId")})


def _server() -> JsonObject:
    return {"name": "tallystick", "title": "Tallystick", "version": _VERSION}


def _encoded(message: JsonObject) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def _version() -> str:
    try:
        return metadata.version("tallystick")
    except metadata.PackageNotFoundError:
        return "0"


_VERSION = _version()
