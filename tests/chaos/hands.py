"""Hands that send what they signed to the node of their choice: one request to both at once, the same bytes again.

The real client (`tests/pg/crowd.py`) never does the half of it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.client.delegation import delegate
from gateway.client.errors import Unreachable
from gateway.client.signing import Draft, new_idempotency_key, new_nonce, sign_request
from gateway.client.transport import HttpTransport, Reply
from keys.files import load_key
from keys.signing import SigningKey
from tests.pg.crowd import ATTEMPT_MS
from tests.pg.nodes import AUTHORITY, ORIGIN, Ledger, Node
from verifier.entries import ACTION_PATHS, Leaf
from verifier.wire import encode_base64, encode_canonical

PATIENCE_S = 120.0
SILENCE = Reply(0, {}, b"")  # nobody answered
AWAY = (0, 502, 503, 504)


class Signed(NamedTuple):
    """A request as it goes over the wire, as often as somebody sends it."""

    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Hands:
    """`async with Hands(ledger) as hands`: keys by name, made when they are first asked for, and a way to each node."""

    ledger: Ledger
    keys: dict[str, SigningKey] = field(default_factory=dict)
    _ways: list[HttpTransport] = field(default_factory=list)

    async def __aenter__(self) -> Hands:
        self._ways = [HttpTransport(node.url) for node in self.ledger.nodes]
        self.keys["op"] = load_key(self.ledger.founder / "operator" / "agent.key")
        return self

    async def __aexit__(self, *_: object) -> None:
        for way in self._ways:
            await way.close()

    @property
    def nodes(self) -> list[Node]:
        return self.ledger.nodes

    @property
    def genesis(self) -> bytes:
        return self.ledger.profile(1).genesis

    def key(self, name: str) -> SigningKey:
        return self.keys.setdefault(name, SigningKey.generate())

    def did(self, name: str) -> str:
        return self.key(name).did

    def signed(self, name: str, action: str, key: str = "", /, *, nonce: str = "", **members: Any) -> Signed:
        """Sign a request of an action; `key` is its idempotency key, fresh ones for nothing."""
        whose = self.key(name)
        body = encode_canonical({"ledger": ORIGIN, "actorDid": whose.did, **members})
        anchor = f"{ORIGIN} 1 {encode_base64(self.genesis)}"
        draft = Draft("POST", AUTHORITY, ACTION_PATHS[action], "", anchor, body, key or new_idempotency_key())
        headers = sign_request(draft, whose, created_s=int(time.time()), nonce=nonce or new_nonce())
        return Signed(draft.path, headers, body)

    async def send(self, at: int, one: Signed) -> Reply:
        """Send it to a node, once."""
        try:
            return await self._ways[at].send("POST", one.target, one.headers, one.body, ATTEMPT_MS)
        except Unreachable:
            return SILENCE

    async def both(self, one: Signed, other: Signed | None = None) -> tuple[Reply, Reply]:
        """Send one request to each of two nodes at the same moment, or the same one to both."""
        return await asyncio.gather(self.send(0, one), self.send(1, other or one))

    async def ask(self, at: int, name: str, action: str, key: str = "", /, **members: Any) -> Reply:
        """Ask until it is answered, first at this node, then at the other, and so on; each time signed anew."""
        key = key or new_idempotency_key()
        async with asyncio.timeout(PATIENCE_S):
            while (reply := await self.send(at, self.signed(name, action, key, **members))).status in AWAY:
                at = 1 - at
                await asyncio.sleep(0.1)
        return reply

    async def does(self, at: int, name: str, action: str, key: str = "", /, **members: Any) -> dict[str, Any]:
        """Ask for what must be granted; the answer."""
        reply = await self.ask(at, name, action, key, **members)
        assert reply.status == 200, (action, reply.status, reply.unverified_body)
        return told(reply)

    async def call(self, at: int, token: str, target: str, **members: Any) -> Reply:
        """Ask once with a token instead of a signature."""
        fields = {"host": AUTHORITY, "authorization": f"Bearer {token}", "content-type": "application/json"}
        return await self.send(at, Signed(target, fields, json.dumps(members).encode()))

    async def opens(self, at: int, name: str, principal: str) -> None:
        """Open a session, whose key is that of `name`, for an agent."""
        now_ms = time.time_ns() // 1_000_000
        row = delegate(self.key(principal), self.did(name), origin=ORIGIN, now_ms=now_ms, ttl_ms=3_600_000).row
        await self.does(at, name, "session.open", delegations=[row])


def told(reply: Reply) -> dict[str, Any]:
    """Return the members of an answer."""
    found: dict[str, Any] = json.loads(reply.unverified_body)
    return found


def kind(leaf: Leaf) -> str:
    """Return `lease.granted` for an entry of that type."""
    return leaf.type.split("/")[1]


def nonce_of(leaf: Leaf) -> str:
    """Return the nonce of the request that an entry answers; "" for none."""
    parameters = str(leaf.request.get("signatureInput", "")) if leaf.request else ""
    return parameters.partition(';nonce="')[2].partition('"')[0]
