"""Messages by themselves: what is read, what is refused, what each revision is answered."""

import json
from typing import Any

import pytest
from mcp_types import DiscoverResult, InitializeResult, ListToolsResult
from mcp_types import version as official

from gateway.mcp import protocol
from gateway.mcp.protocol import (
    DEPTH_MAX,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LEGACY,
    MESSAGE_BYTES_MAX,
    METHOD_NOT_FOUND,
    MODERN,
    PARSE_ERROR,
    REVISIONS,
    UNSUPPORTED_VERSION,
    Fault,
    Notification,
    Request,
    Routing,
)
from tests.mcp.world import META, modern

TOOLS: list[Any] = [{"name": "a_tool", "inputSchema": {"type": "object"}}]


def encoded(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", **members}).encode()


def fault_of(data: bytes) -> Fault:
    with pytest.raises(Fault) as raised:
        protocol.read(data)
    return raised.value


NESTED = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}}"
UNREADABLE: list[tuple[str, bytes, int]] = [
    ("nothing", b"", PARSE_ERROR),
    ("no JSON", b"hello", PARSE_ERROR),
    ("half of it", encoded()[:-1], PARSE_ERROR),
    ("a tail", encoded() + b"x", PARSE_ERROR),
    ("a byte order mark", b"\xef\xbb\xbf" + encoded(), PARSE_ERROR),
    ("not UTF-8", b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', PARSE_ERROR),
    ("UTF-16", encoded().decode().encode("utf-16"), PARSE_ERROR),
    ("half a character", b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', PARSE_ERROR),
    ("a member twice", b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', PARSE_ERROR),
    ("no number of JSON", b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":NaN}}', PARSE_ERROR),
    (
        "a number without end",
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":' + b"9" * 9_000 + b"}}",
        PARSE_ERROR,
    ),
    ("too deep", NESTED, INVALID_REQUEST),
    ("brackets without end", b"[" * 60_000, INVALID_REQUEST),
    ("too large", encoded(params={"a": "x" * MESSAGE_BYTES_MAX}), INVALID_REQUEST),
    ("several at once", b"[" + encoded() + b"," + encoded() + b"]", INVALID_REQUEST),
    ("an empty list", b"[]", INVALID_REQUEST),
    ("a text", b'"ping"', INVALID_REQUEST),
    ("another JSON-RPC", encoded(jsonrpc="1.0"), INVALID_REQUEST),
    ("no method", b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST),
    ("a method that is none", encoded(method=1), INVALID_REQUEST),
    ("an answer", b'{"jsonrpc":"2.0","id":1,"result":{}}', INVALID_REQUEST),
    ("params in a list", encoded(params=[1]), INVALID_REQUEST),
    ("null as id", encoded(id=None), INVALID_REQUEST),
    ("a broken id", encoded(id=1.5), INVALID_REQUEST),
    ("true as id", encoded(id=True), INVALID_REQUEST),
]


@pytest.mark.parametrize(("case", "data", "code"), UNREADABLE, ids=[case for case, _, _ in UNREADABLE])
def test_what_is_no_message_is_a_fault(case: str, data: bytes, code: int) -> None:
    assert fault_of(data).code == code


def test_a_fault_names_the_request_as_far_as_it_could_be_read() -> None:
    assert fault_of(encoded(jsonrpc="1.0")).request_id == 1
    assert fault_of(encoded(id=None)).request_id is None


def test_what_may_look_wrong_is_read() -> None:
    assert protocol.read(encoded(params=None)) == Request(1, "ping", {})
    assert protocol.read(b'  {"id":"a","method":"m","jsonrpc":"2.0"}\r') == Request("a", "m", {})
    assert protocol.read(b'{"jsonrpc":"2.0","method":"m"}') == Notification("m", {})
    numbers = protocol.read(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":20.0,"b":1.5,"c":1e2}}')
    assert isinstance(numbers, Request) and repr(numbers.params) == "{'a': 20, 'b': 1.5, 'c': 100}"


def test_every_cut_of_a_message_is_a_fault_or_a_message() -> None:
    data = json.dumps(modern("tools/call", name="x", arguments={"é": ["\\", {"a": "\u2028"}]})).encode()
    for end in range(len(data)):
        assert fault_of(data[:end]).code == PARSE_ERROR


def test_the_revisions_are_known_to_the_official_client() -> None:
    assert set(REVISIONS) <= set(official.KNOWN_PROTOCOL_VERSIONS)
    assert official.LATEST_MODERN_VERSION == MODERN == REVISIONS[0]
    assert official.LATEST_HANDSHAKE_VERSION == LEGACY[0]


# -- revisions ---------------------------------------------------------------------------------------------------------

CALL = Request(1, "tools/call", {"name": "a_tool", "_meta": META})
AGREEING = Routing(MODERN, "tools/call", "a_tool")


def without(name: str) -> Request:
    return Request(1, "tools/list", {"_meta": {key: value for key, value in META.items() if not key.endswith(name)}})


def saying(version: int | str) -> Request:
    return Request(1, "tools/list", {"_meta": {**META, "io.modelcontextprotocol/protocolVersion": version}})


WRONG: list[tuple[str, Request, Routing | None, int]] = [
    ("no capabilities", without("clientCapabilities"), None, INVALID_PARAMS),
    ("a version that is no text", saying(3), None, INVALID_PARAMS),
    ("a version of tomorrow", saying("2030-01-01"), None, UNSUPPORTED_VERSION),
    ("an old version in the new way", saying(LEGACY[0]), None, UNSUPPORTED_VERSION),
    ("the new version without saying it", Request(1, "tools/list", {}), Routing(MODERN), INVALID_PARAMS),
    ("a version before ours", Request(1, "tools/list", {}), Routing("2025-03-26"), UNSUPPORTED_VERSION),
    ("no headers", CALL, Routing(), HEADER_MISMATCH),
    ("another version", CALL, Routing(LEGACY[0], "tools/call", "a_tool"), HEADER_MISMATCH),
    ("another method", CALL, Routing(MODERN, "tools/list", "a_tool"), HEADER_MISMATCH),
    ("another tool", CALL, Routing(MODERN, "tools/call", "b_tool"), HEADER_MISMATCH),
    ("no tool", CALL, Routing(MODERN, "tools/call"), HEADER_MISMATCH),
    ("a tool in broken base64", CALL, Routing(MODERN, "tools/call", "=?base64?YV90b29s====?="), HEADER_MISMATCH),
    ("a header twice", CALL, Routing(MODERN, "tools/call", "a_tool", repeated="mcp-name"), HEADER_MISMATCH),
]


@pytest.mark.parametrize(("case", "request_", "routing", "code"), WRONG, ids=[case for case, *_ in WRONG])
def test_a_request_that_contradicts_itself_or_us_is_a_fault(
    case: str, request_: Request, routing: Routing | None, code: int
) -> None:
    with pytest.raises(Fault) as raised:
        protocol.check_revision(request_, routing)
    assert (raised.value.code, raised.value.request_id) == (code, 1)


def test_an_unsupported_version_is_told_the_supported_ones() -> None:
    with pytest.raises(Fault) as raised:
        protocol.check_revision(saying("2030-01-01"))
    assert raised.value.data == {"supported": list(REVISIONS), "requested": "2030-01-01"}


@pytest.mark.parametrize(
    ("request_", "routing"),
    [
        (CALL, None),
        (CALL, AGREEING),
        (CALL, Routing(MODERN, "tools/call", "=?base64?YV90b29s?=")),
        (Request(1, "tools/list", {"_meta": META}), Routing(MODERN, "tools/list")),
        (Request(1, "tools/list", {}), Routing()),
        (Request(1, "tools/list", {"_meta": {"progressToken": 1}}), Routing(LEGACY[1])),
        (Request(1, "initialize", {"_meta": META}), Routing("2030-01-01")),
    ],
)
def test_who_agrees_with_itself_is_served(request_: Request, routing: Routing | None) -> None:
    protocol.check_revision(request_, routing)


# -- answers -----------------------------------------------------------------------------------------------------------


def result(request: Request) -> dict[str, Any]:
    message = json.loads(protocol.response(request, protocol.plain_result(request, TOOLS)))
    assert message.keys() == {"jsonrpc", "id", "result"}
    found: dict[str, Any] = message["result"]
    return found


def test_discovery_says_what_the_official_types_demand() -> None:
    found = result(Request(1, "server/discover", {"_meta": META}))
    assert DiscoverResult.model_validate(found).supported_versions == list(REVISIONS)
    assert (found["resultType"], found["ttlMs"] > 0, found["cacheScope"]) == ("complete", True, "public")
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "tallystick"


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [("2025-11-25", "2025-11-25"), ("2025-06-18", "2025-06-18"), ("2024-11-05", "2025-11-25"), (MODERN, "2025-11-25")],
)
def test_a_handshake_agrees_on_an_older_revision(asked: str, agreed: str) -> None:
    found = result(Request(1, "initialize", {"protocolVersion": asked, "capabilities": {}}))
    assert InitializeResult.model_validate(found | {"serverInfo": found["serverInfo"]}).protocol_version == agreed
    assert "resultType" not in found


def test_tools_are_listed_for_every_revision_and_kept_only_where_that_is_known() -> None:
    new, old = result(Request(1, "tools/list", {"_meta": META})), result(Request(1, "tools/list", {}))
    assert ListToolsResult.model_validate(new).tools[0].name == "a_tool"
    assert new.keys() - old.keys() == {"ttlMs", "cacheScope", "resultType", "_meta"}
    assert old == {"tools": TOOLS}


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("resources/list", {}, METHOD_NOT_FOUND),
        ("server/discover", {}, METHOD_NOT_FOUND),
        ("ping", {"_meta": META}, METHOD_NOT_FOUND),
        ("subscriptions/listen", {"_meta": META}, METHOD_NOT_FOUND),
        ("tools/list", {"cursor": "2"}, INVALID_PARAMS),
        ("initialize", {}, INVALID_PARAMS),
    ],
)
def test_what_is_not_served_is_a_fault(method: str, params: dict[str, Any], code: int) -> None:
    with pytest.raises(Fault) as raised:
        protocol.plain_result(Request(1, method, params), TOOLS)
    assert raised.value.code == code


def test_a_ping_is_answered_where_there_is_one() -> None:
    assert result(Request(1, "ping", {})) == {}


def test_what_leaves_is_one_line_of_ascii() -> None:
    request = Request("é\n", "tools/list", {})
    assert protocol.response(request, {"text": "\u2028\nü"}).isascii()
    assert b"\n" not in protocol.response(request, {"text": "\u2028\nü"})
    assert b"\n" not in protocol.error_response(Fault(INVALID_REQUEST, "a\nb", "é\n"))


@pytest.mark.parametrize(
    ("notification", "request_id"),
    [
        (Notification("notifications/cancelled", {"requestId": 3}), 3),
        (Notification("notifications/cancelled", {"requestId": "3"}), "3"),
        (Notification("notifications/cancelled", {"requestId": None}), None),
        (Notification("notifications/cancelled", {}), None),
        (Notification("notifications/initialized", {"requestId": 3}), None),
    ],
)
def test_only_a_cancellation_names_what_is_called_off(notification: Notification, request_id: object) -> None:
    assert protocol.cancelled_id(notification) == request_id


def test_the_status_of_a_fault_is_that_of_its_code_and_its_revision() -> None:
    assert Fault(METHOD_NOT_FOUND, "").status(is_modern=True) == 404
    assert Fault(METHOD_NOT_FOUND, "").status(is_modern=False) == 200
    assert Fault(PARSE_ERROR, "").status(is_modern=False) == 400
