"""A real gateway with custodial agents and their API keys, and the official client in front of it."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from gateway.client.profile import Address, write_profile
from gateway.mcp.tools import definitions
from keys.files import new_key, new_key_in
from keys.signing import SigningKey
from keys.token import new_token
from tests.web.world import AUTHORITY, ORIGIN, Message, Reply, World

MODERN, LEGACY = "2026-07-28", "2025-11-25"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
OUTPUT_SCHEMAS = {
    tool["name"]: tool["outputSchema"]
    for spelling in ("dotted", "underscored")
    for tool in json.loads(json.dumps(definitions(spelling)))
}


async def bearer_of(world: World) -> tuple[str, str]:
    """Make an agent whose key the gateway holds, as the operator's commands do; return its DID and its API key."""
    custody = world.folder / "custody"
    custody.mkdir(mode=0o700, exist_ok=True)
    did = new_key_in(custody, purpose="custody").did
    token = new_token("live")
    added = await world.ask("op", "agent.add", agent=did, agentCustody="gateway")
    issued = await world.ask("op", "apikey.issue", agent=did, kind="live", keyDigest=sha256(token.encode()).hexdigest())
    assert (added.status, issued.status) == (200, 200), (added.body, issued.body)
    return did, token


async def profile_of(world: World, home: Path) -> SigningKey:
    """Make the profile of an enrolled agent, as `tallystick join` does."""
    document = (world.folder / "public" / "keys.note").read_bytes()
    write_profile(home, Address(world.gateway.url, ORIGIN, AUTHORITY), root=world.made.root_vkey, document=document)
    key = new_key(home / "agent.key", purpose="agent")
    added = await world.ask("op", "agent.add", agent=key.did)
    assert added.status == 200, added.body
    return key


@contextlib.asynccontextmanager
async def client_of(
    world: World, token: str | None, *, mode: str = "auto", path: str = "/mcp"
) -> AsyncIterator[Client]:
    """Yield the official client, connected over HTTP."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=40.0) as http:
        transport = streamable_http_client(world.gateway.url + path, http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def structured(result: CallToolResult, name: str) -> dict[str, Any]:
    """Return what a tool said, checked: by its output schema, and that text and mark say the same."""
    answer: dict[str, Any] = result.structured_content
    Draft202012Validator(OUTPUT_SCHEMAS[name]).validate(answer)
    (content,) = result.content
    assert content.type == "text"
    told = json.loads(content.text)
    assert told == {member: value for member, value in answer.items() if member not in ("receipt", "batch")}
    assert result.is_error is (answer["ok"] is not True)
    return answer


def posted(body: bytes | Mapping[str, Any], path: str = "/mcp", **fields: str) -> Message:
    """Return an MCP message over HTTP; a keyword such as mcp_method is a header."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"host": AUTHORITY, "content-type": "application/json", "accept": "application/json, text/event-stream"}
    headers |= {name.replace("_", "-"): value for name, value in fields.items()}
    return Message("POST", path, tuple((name, value) for name, value in headers.items() if value), content)


def legacy(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


def modern(method: str, **params: Any) -> dict[str, Any]:
    return legacy(method, **params, _meta=META)


def modern_post(
    method: str, path: str = "/mcp", token: str = "", fields: Mapping[str, str] | None = None, **params: Any
) -> Message:
    """Return a request of the newest revision with the headers it demands; `fields` replaces some."""
    headers = {"mcp_protocol_version": MODERN, "mcp_method": method, "mcp_name": str(params.get("name", ""))}
    headers |= {"authorization": f"Bearer {token}" if token else ""} | dict(fields or {})
    return posted(modern(method, **params), path, **headers)


def error_of(reply: Reply) -> tuple[int, int]:
    """Return the status and the protocol's code."""
    return reply.status, reply.json["error"]["code"]
