"""MCP over HTTP at a real gateway: the official client in both its modes, and messages that it would never send."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from gateway.actions import ACTIONS
from gateway.app import PICTURES_BURST
from gateway.client.approval import Act, approve
from gateway.mcp.protocol import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNAUTHORIZED,
    UNSUPPORTED_VERSION,
)
from gateway.mcp.tools import TOOLS, Spelling
from gateway.store.contract import StoredEntry
from gateway.store.sqlite import Reader
from keys.signing import SigningKey
from tests.mcp.world import (
    LEGACY,
    MODERN,
    bearer_of,
    client_of,
    error_of,
    legacy,
    modern_post,
    posted,
    structured,
)
from tests.system.process import free_port
from tests.web.world import AUTHORITY, ORIGIN, Message, World, make, world

NAME = "repo:app/src/a.py"


@dataclass
class Scene:
    """Two agents with a client each, both of them in one mode and one spelling; facts from earlier steps."""

    world: World
    spelling: Spelling
    clients: dict[str, Client]
    dids: dict[str, str]
    chief: SigningKey  # another operator, who may approve
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def fence(self) -> dict[str, Any]:
        """What an admission says of the newest lease."""
        return {name: self.facts["lease"][name] for name in ("leaseId", "fencingToken")}

    async def call(self, who: str, action: str, **arguments: Any) -> dict[str, Any]:
        tool = next(tool for tool in TOOLS if tool.action.name == action)
        name = tool.spelled(self.spelling)
        return structured(await self.clients[who].call_tool(name, arguments), name)


@contextlib.asynccontextmanager
async def scene(gateway: World, mode: str, spelling: Spelling) -> AsyncIterator[Scene]:
    path = {"dotted": "/mcp", "underscored": "/mcp/u"}[spelling]
    agents = {who: await bearer_of(gateway) for who in ("a", "b")}
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            who: await stack.enter_async_context(client_of(gateway, token, mode=mode, path=path))
            for who, (_, token) in agents.items()
        }
        dids = {who: did for who, (did, _) in agents.items()}
        yield Scene(gateway, spelling, clients, dids, await chief_of(gateway))


async def chief_of(gateway: World) -> SigningKey:
    """Make a second operator."""
    key = SigningKey.generate()
    added = await gateway.ask("op", "operator.add", operator=key.did)
    assert added.status == 200, added.body
    return key


ACT: dict[str, Any] = {"operation": "deploy.run", "resource": "lock:deploy", "argumentsDigest": "5" * 64}
Arguments = Callable[[Scene], dict[str, Any]]
# One story in which every tool is called; each step says who calls, what, with which arguments, and what comes of it.
STORY: Sequence[tuple[str, str, Arguments, str]] = (
    ("a", "lease.acquire", lambda s: {"resource": NAME, "ttlMs": 60_000}, "lease"),
    ("a", "lease.renew", lambda s: {"leaseId": s.facts["lease"]["leaseId"], "ttlMs": 90_000}, "lease"),
    ("b", "lease.acquire", lambda s: {"resource": NAME}, "lease_held"),
    ("b", "coordination.wait", lambda s: {"resource": NAME}, "resources"),
    ("b", "lease.acquire", lambda s: {"resource": NAME, "wait": True}, "ticket"),
    ("b", "wait.claim", lambda s: {"ticketId": s.facts["ticket"]["ticketId"], "waitSeconds": 1}, "ticket"),
    ("b", "wait.cancel", lambda s: {"ticketId": s.facts["ticket"]["ticketId"]}, "cancelled"),
    ("b", "wait.claim", lambda s: {"ticketId": s.facts["ticket"]["ticketId"]}, "ticket_ended"),
    (
        "a", "lease.transfer",
        lambda s: {
            "leaseId": s.facts["lease"]["leaseId"], "seenToken": s.facts["lease"]["fencingToken"],
            "toDid": s.dids["b"], "reason": "handover",
        },
        "offer",
    ),
    ("b", "lease.list", lambda s: {}, "offered"),
    ("b", "lease.accept", lambda s: {"leaseId": s.facts["lease"]["leaseId"]}, "lease"),
    ("a", "lease.release", lambda s: {"resource": NAME}, "not_holder"),
    ("b", "lease.release", lambda s: {"resource": NAME, "leaseId": s.facts["lease"]["leaseId"]}, "released"),
    ("b", "batch.submit", lambda s: {"commands": [{"action": "lease.acquire", "resource": "repo:b"}]}, "results"),
    ("b", "batch.submit", lambda s: {"isAtomic": True, "commands": [{"action": "lease.renew", "leaseId": "L1"}]},
     "lease_unknown"),
    ("a", "coordination.admit", lambda s: ACT, "lease_required"),
    ("a", "lease.acquire", lambda s: {"resource": ACT["resource"]}, "lease"),
    ("a", "coordination.admit", lambda s: {**ACT, **s.fence}, "admission"),
    ("a", "approval.ask", lambda s: {**ACT, "approvers": [s.chief.did]}, "ask"),
    ("a", "approval.list", lambda s: {"askId": s.facts["ask"]["askId"]}, "approvals"),
    ("a", "approval.list", lambda s: {}, "approvals"),
    ("a", "approval.withdraw", lambda s: {"askId": s.facts["ask"]["askId"]}, "ask"),
    ("a", "approval.withdraw", lambda s: {"askId": s.facts["ask"]["askId"]}, "ask_ended"),
    ("a", "usage.get", lambda s: {}, "usage"),
    ("b", "session.beat", lambda s: {}, "session_required"),
    ("b", "trust.get", lambda s: {}, "trust"),
    ("b", "receipt.get", lambda s: {"seq": s.facts["seq"]}, "receipt"),
)  # fmt: skip


def test_the_story_calls_every_tool() -> None:
    assert {action for _, action, _, _ in STORY} == {tool.action.name for tool in TOOLS}


@pytest.mark.parametrize("spelling", ["dotted", "underscored"])
@pytest.mark.parametrize(("mode", "version"), [("auto", MODERN), ("legacy", LEGACY)])
async def test_the_official_client_calls_every_tool(
    gateway: World, mode: str, version: str, spelling: Spelling
) -> None:
    async with scene(gateway, mode, spelling) as played:
        for client in played.clients.values():
            assert client.protocol_version == version
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == [tool.spelled(spelling) for tool in TOOLS]
        for who, action, arguments, outcome in STORY:
            answer = await played.call(who, action, **arguments(played))
            assert outcome == answer.get("error") or (answer["ok"] and outcome in answer), (action, answer)
            played.facts |= answer
            if ACTIONS[action].kind == "decision" and outcome != "session_required":
                assert answer.get("receipt") or answer.get("batch"), action
    gateway.audit()


@pytest.mark.parametrize("spelling", ["dotted", "underscored"])
async def test_a_model_follows_what_is_next_from_asking_to_being_admitted(gateway: World, spelling: Spelling) -> None:
    """A person approves outside of any tool; what was given comes with the list, ready to be presented."""
    async with scene(gateway, "auto", spelling) as played:
        played.facts |= await played.call("a", "lease.acquire", resource=ACT["resource"])
        asked = await played.call("a", "approval.ask", **ACT, approvers=[played.chief.did])
        ask_id = asked["ask"]["askId"]
        assert asked["next"]["arguments"] == {"askId": ask_id}
        looked = await played.call("a", "approval.list", **asked["next"]["arguments"])
        assert (looked["approvals"][0]["state"], looked["next"]["arguments"]) == ("open", {"askId": ask_id})
        act = Act(ORIGIN, played.dids["a"], "deploy.run", (ACT["resource"],), "write", ACT["argumentsDigest"])
        signed = approve(played.chief, act, genesis=gateway.made.genesis, now_ms=gateway.now_ms)
        message = gateway.signed(played.chief, "approval.give", askId=ask_id, approval=signed.row)
        assert (await gateway.send(message)).status == 200
        found = await played.call("a", "approval.list", askId=ask_id)
        assert found["next"]["tool"] == f"coordination{'.' if spelling == 'dotted' else '_'}admit"
        admitted = await played.call("a", "coordination.admit", **found["next"]["arguments"], **played.fence)
        assert (admitted["allowed"], len(admitted["admission"]["approvals"])) == (True, 1)
        denied = await played.call("a", "coordination.admit", **found["next"]["arguments"], **played.fence)
        assert (denied["ok"], denied["allowed"], denied["error"]) == (False, False, "approval_used")
        assert denied["receipt"]
    gateway.audit()


async def test_both_spellings_are_understood_everywhere(gateway: World) -> None:
    _, token = await bearer_of(gateway)
    for path in ("/mcp", "/mcp/u"):
        for name in ("coordination.trust.get", "coordination_trust_get"):
            reply = await gateway.send(modern_post("tools/call", path, token, name=name, arguments={}))
            assert reply.json["result"]["structuredContent"]["ok"] is True


async def test_the_same_idempotency_key_gets_the_same_answer(gateway: World) -> None:
    """Scenario 40."""
    _, token = await bearer_of(gateway)
    arguments = {"resource": NAME, "idempotencyKey": "one-intention"}
    async with client_of(gateway, token) as client:
        first = await client.call_tool("coordination.lease.acquire", arguments)
        again = await client.call_tool("coordination.lease.acquire", arguments)
        other = await client.call_tool("coordination.lease.acquire", arguments | {"ttlMs": 5_000})
    assert first.structured_content == again.structured_content
    assert structured(other, "coordination.lease.acquire")["error"] == "idempotency_mismatch"
    assert gateway.types().count("lease.granted") == 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_restart_between_two_calls_is_not_noticed(tmp_path: Path, mode: str) -> None:
    """Scenario 45."""
    made, port = make(tmp_path / "data"), free_port()
    async with contextlib.AsyncExitStack() as conversation:
        async with world(tmp_path / "data", made, listen_port=port) as first:
            did, token = await bearer_of(first)
            client = await conversation.enter_async_context(client_of(first, token, mode=mode))
            await client.call_tool("coordination.lease.acquire", {"resource": NAME})
        async with world(tmp_path / "data", made, listen_port=port):
            listed = await client.call_tool("coordination.lease.list", {})
            assert structured(listed, "coordination.lease.list")["leases"][0]["holder"] == did


# -- who may call ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_are_listed_without_a_token_and_called_with_one(gateway: World, mode: str) -> None:
    async with client_of(gateway, None, mode=mode) as client:
        assert len((await client.list_tools()).tools) == len(TOOLS)
        with pytest.raises(MCPError) as refused:
            await client.call_tool("coordination.trust.get", {})
    assert refused.value.error.code == UNAUTHORIZED


@pytest.mark.parametrize(
    ("authorization", "challenge"),
    [
        ("", "Bearer"),
        ("Basic eDp5", "Bearer"),
        ("Bearer x", 'Bearer error="invalid_token"'),
        ("Bearer tsk_live_" + "0" * 36, 'Bearer error="invalid_token"'),
    ],
)
async def test_who_is_not_known_is_challenged(gateway: World, authorization: str, challenge: str) -> None:
    fields = {"authorization": authorization}
    reply = await gateway.send(modern_post("tools/call", fields=fields, name="coordination.wait", arguments={}))
    assert error_of(reply) == (401, UNAUTHORIZED)
    assert reply.headers["www-authenticate"] == challenge


async def test_a_removed_agent_calls_nothing_any_more(gateway: World) -> None:
    did, token = await bearer_of(gateway)
    await gateway.ask("op", "agent.remove", agent=did)
    reply = await gateway.send(modern_post("tools/call", token=token, name="coordination.wait", arguments={}))
    assert error_of(reply) == (401, UNAUTHORIZED)


async def test_a_receipt_of_an_entry_that_was_changed_in_the_store_is_not_told(
    gateway: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said as at the other door; that decisions have stopped would not be true."""
    _, token = await bearer_of(gateway)
    last = gateway.gateway.house.sequencer.confirmed.size - 1
    entries = Reader.entries

    def changed(reader: Reader, start: int, stop: int) -> list[StoredEntry]:
        rows = entries(reader, start, stop)
        return [StoredEntry(row.seq, row.leaf.replace(b"live", b"lime"), row.signature) for row in rows]

    async def error_at(seq: int) -> str:
        message = modern_post("tools/call", token=token, name="coordination.receipt.get", arguments={"seq": seq})
        told = (await gateway.send(message)).json["result"]["structuredContent"]
        return str(told.get("error"))

    monkeypatch.setattr(Reader, "entries", changed)
    assert [await error_at(seq) for seq in (last, last + 1)] == ["entry_damaged", "not_found"]


ORIGINS = [
    ("", 200),
    (f"https://{AUTHORITY}", 200),
    ("https://evil.example", 403),
    ("null", 403),
    ("http://localhost:3000", 403),
    (f"https://{AUTHORITY}.evil.example", 403),
    (f"file://{AUTHORITY}", 403),
]


@pytest.mark.parametrize(("origin", "status"), ORIGINS)
async def test_only_pages_of_our_own_may_ask(gateway: World, origin: str, status: int) -> None:
    assert (await gateway.send(posted(legacy("ping"), origin=origin))).status == status


async def test_a_refused_page_is_not_read(gateway: World) -> None:
    reply = await gateway.send(posted(b"not even JSON", origin="https://evil.example"))
    assert error_of(reply) == (403, INVALID_REQUEST)


# -- messages ----------------------------------------------------------------------------------------------------------

HEADS: list[tuple[str, Message, int]] = [
    ("a GET", Message("GET", "/mcp", (("host", AUTHORITY),)), 405),
    ("a DELETE", Message("DELETE", "/mcp", (("host", AUTHORITY),)), 405),
    ("another type", posted(legacy("ping"), content_type="text/plain"), 415),
    ("no type", posted(legacy("ping"), content_type=""), 415),
    ("a type with its letters", posted(legacy("ping"), content_type="application/json; charset=utf-8"), 200),
    ("only streams accepted", posted(legacy("ping"), accept="text/event-stream"), 406),
    ("anything accepted", posted(legacy("ping"), accept="*/*"), 200),
    ("nothing said of it", posted(legacy("ping"), accept=""), 200),
    ("too large", posted(b" " * 65_537), 413),
    ("a path below", posted(legacy("ping"), "/mcp/x"), 404),
]


@pytest.mark.parametrize(("case", "message", "status"), HEADS, ids=[case for case, _, _ in HEADS])
async def test_the_head_of_a_request_decides_first(gateway: World, case: str, message: Message, status: int) -> None:
    """Scenario 48."""
    reply = await gateway.send(message)
    assert reply.status == status
    assert (reply.headers.get("allow") == "POST") is (status == 405)


MESSAGES: list[tuple[str, Message, int, int]] = [
    ("no JSON", posted(b"{"), 400, PARSE_ERROR),
    ("several messages", posted(b"[]"), 400, INVALID_REQUEST),
    ("an answer", posted(b'{"jsonrpc":"2.0","id":1,"result":{}}'), 400, INVALID_REQUEST),
    ("an unknown method, old", posted(legacy("no/such")), 200, METHOD_NOT_FOUND),
    ("an unknown method, new", modern_post("no/such"), 404, METHOD_NOT_FOUND),
    (
        "no headers",
        modern_post("tools/list", fields={"mcp_protocol_version": "", "mcp_method": ""}),
        400,
        HEADER_MISMATCH,
    ),
    ("another method", modern_post("tools/list", fields={"mcp_method": "tools/call"}), 400, HEADER_MISMATCH),
    ("another tool", modern_post("tools/call", fields={"mcp_name": "x"}, name="y"), 400, HEADER_MISMATCH),
    ("a header twice", modern_post("tools/list").adding("mcp-method", "tools/list"), 400, HEADER_MISMATCH),
    ("a later version", posted(legacy("tools/list"), mcp_protocol_version="2030-01-01"), 400, UNSUPPORTED_VERSION),
    ("the new version, unsaid", posted(legacy("tools/list"), mcp_protocol_version=MODERN), 400, INVALID_PARAMS),
]


@pytest.mark.parametrize(("case", "message", "status", "code"), MESSAGES, ids=[case for case, *_ in MESSAGES])
async def test_a_wrong_message_gets_the_protocols_error(
    gateway: World, case: str, message: Message, status: int, code: int
) -> None:
    assert error_of(await gateway.send(message)) == (status, code)


async def test_an_unknown_tool_is_a_fault_and_not_a_result(gateway: World) -> None:
    _, token = await bearer_of(gateway)
    reply = await gateway.send(modern_post("tools/call", token=token, name="coordination.lease.break", arguments={}))
    assert error_of(reply) == (400, INVALID_PARAMS)


@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/cancelled", "notifications/made-up"])
async def test_a_notification_is_taken_and_has_no_effect(gateway: World, method: str) -> None:
    reply = await gateway.send(posted({"jsonrpc": "2.0", "method": method}))
    assert (reply.status, reply.body) == (202, b"")


async def test_no_session_is_made_or_needed(gateway: World) -> None:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    reply = await gateway.send(posted(legacy("initialize", **params)))
    assert reply.json["result"]["protocolVersion"] == "2025-06-18"
    assert "mcp-session-id" not in reply.headers
    again = posted(legacy("tools/list"), mcp_session_id="made-up", mcp_protocol_version="2025-06-18", last_event_id="3")
    assert len((await gateway.send(again)).json["result"]["tools"]) == len(TOOLS)


async def test_strangers_ask_as_often_as_they_may_look_at_pictures(gateway: World) -> None:
    replies = await asyncio.gather(*(gateway.send(posted(legacy("ping"))) for _ in range(PICTURES_BURST + 60)))
    assert {reply.status for reply in replies} == {200, 429}
    _, token = await bearer_of(gateway)
    called = await gateway.send(modern_post("tools/call", token=token, name="coordination.wait", arguments={}))
    assert called.status == 200, "who has a token pays by itself"


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_a_look_is_answered_when_the_lease_is_given_back(gateway: World) -> None:
    """Scenario 39."""
    async with scene(gateway, "auto", "dotted") as played:
        lease = (await played.call("a", "lease.acquire", resource=NAME))["lease"]
        looking = asyncio.ensure_future(played.call("b", "coordination.wait", resource=NAME, waitSeconds=20))
        await asyncio.sleep(0.2)
        assert not looking.done()
        await played.call("a", "lease.release", resource=NAME, leaseId=lease["leaseId"])
        async with asyncio.timeout(5):
            answer = await looking
    assert (answer["isChanged"], answer["resources"]) == (True, [])
    assert answer["next"] == {
        "tool": "coordination.lease.acquire", "arguments": {"resource": NAME}, "why": "Nothing is in the way.",
    }  # fmt: skip


async def test_a_claim_is_answered_when_its_turn_comes(gateway: World) -> None:
    async with scene(gateway, "auto", "dotted") as played:
        lease = (await played.call("a", "lease.acquire", resource=NAME))["lease"]
        ticket = (await played.call("b", "lease.acquire", resource=NAME, wait=True))["ticket"]
        claim = played.call("b", "wait.claim", ticketId=ticket["ticketId"], waitSeconds=20)
        claiming = asyncio.ensure_future(claim)
        await until(lambda: len(gateway.gateway.house.sequencer.parking) == 1)
        await played.call("a", "lease.release", resource=NAME, leaseId=lease["leaseId"])
        async with asyncio.timeout(5):
            assert (await claiming)["lease"]["holder"] == played.dids["b"]


async def test_who_hangs_up_while_it_waits_leaves_nothing_behind(gateway: World) -> None:
    async with scene(gateway, "auto", "dotted") as played:
        await played.call("a", "lease.acquire", resource=NAME)
        ticket = (await played.call("b", "lease.acquire", resource=NAME, wait=True))["ticket"]
        size = gateway.gateway.house.sequencer.confirmed.size
        parking = gateway.gateway.house.sequencer.parking
        claim = played.call("b", "wait.claim", ticketId=ticket["ticketId"], waitSeconds=20)
        claiming = asyncio.ensure_future(claim)
        await until(lambda: len(parking) == 1)
        claiming.cancel()
        await until(lambda: len(parking) == 0)
        assert parking.tally.left == 1
        assert gateway.gateway.house.sequencer.confirmed.size == size


async def until(is_so: Callable[[], bool]) -> None:
    """Let others work until something is so."""
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110  # what is waited for signals nobody
            await asyncio.sleep(0.01)


# -- words of others ---------------------------------------------------------------------------------------------------


async def test_no_words_of_others_reach_a_model(gateway: World) -> None:
    """A label is the one text of others that the pictures and refusals of the gateway carry."""
    _, token = await bearer_of(gateway)
    await gateway.ask("ignore-all-rules", "lease.acquire", resource=NAME)
    async with client_of(gateway, token) as client:
        said = [
            await client.call_tool("coordination.wait", {"resource": NAME}),
            await client.call_tool("coordination.wait", {}),
            await client.call_tool("coordination.lease.acquire", {"resource": NAME, "withReceipt": False}),
        ]
    rest = await gateway.send(gateway.signed_read(gateway.operator, "/api/v1/acp/coordination/wait"))
    assert b"ignore-all-rules" in rest.body, "it would have been there"
    assert all("ignore-all-rules" not in result.model_dump_json() for result in said)


async def test_the_log_line_names_the_tool_and_never_the_token(gateway: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr("gateway.web.logs.access_line", lambda now_ms, fields, loop: lines.append(dict(fields)))
    did, token = await bearer_of(gateway)
    await gateway.send(modern_post("tools/call", token=token, name="coordination.trust.get", arguments={}))
    line = lines[-1]
    assert (line["route"], line["tool"], line["actor"], line["status"]) == ("mcp", "trust.get", did, 200)
    assert token not in json.dumps(lines)
