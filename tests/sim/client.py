"""One agent's way to the gateway: it signs, sends, waits, tries again, and remembers what it was told.

It is a client that wants answers, not a good one: how it misbehaves is drawn.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from gateway.core.intake import RawRequest, Rejection
from gateway.errors import Busy
from gateway.ledger.sequencer import Refused
from gateway.service import Answered
from gateway.web.limits import RateLimited
from tests.core.requests import AUTHORITY, COMPONENTS, ORIGIN
from tests.sim.cheap import CheapKey
from tests.sim.node import Reply
from verifier.entries import ACTION_PATHS

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

Leaf = dict[str, Any]
TIMEOUT_S = 4.0
COVERED = " ".join(f'"{name}"' for name in COMPONENTS)


class NoAnswer(Exception):
    """Nothing came back in time; nobody knows what happened."""


@dataclass(frozen=True)
class Letter:
    """A request on its way, and where its reply goes."""

    client: str
    raw: RawRequest
    action: str
    wait_ms: int
    reply_to: asyncio.Future[Reply]


def _give_up(future: asyncio.Future[Reply]) -> None:
    if not future.done():
        future.set_exception(NoAnswer())


class Client:
    """Signs as `name`. `skew_ms` is what it believes log time to be ahead of its own clock."""

    def __init__(self, simulation: Simulation, name: str, key_name: str = "") -> None:
        self.simulation = simulation
        self.name = name
        self.alias = name  # in its idempotency keys and nonces
        self.key: CheapKey = simulation.key(key_name or name)
        self.did = self.key.did
        self.clock_offset_ms = simulation.rng.randint(-8_000, 8_000)
        self.clock_rate = 1.0 + simulation.rng.uniform(-0.001, 0.001)
        self.skew_ms = 0
        self.rest_s = 0.0  # how long a gateway said to wait that was asked too often
        self.anchor = f"{ORIGIN} 1 {b64encode(simulation.genesis).decode()}"
        self.sent: list[tuple[RawRequest, str]] = []
        self.refusal = ""  # the row without entry that the last question ended with
        self._made = 0

    @property
    def now_ms(self) -> int:
        """Return the agent's own clock."""
        return int(self.simulation.start_ms + self.clock_offset_ms + self.simulation.loop.now_ms * self.clock_rate)

    # -- signing ------------------------------------------------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}{self.alias}{self._made:026d}"

    def sign(self, action: str, members: Leaf, key: str) -> RawRequest:
        """Return the request as it goes over the wire."""
        body = json.dumps({"actorDid": self.did, "ledger": ORIGIN, **members}, sort_keys=True).encode()
        created = (self.now_ms + self.skew_ms) // 1_000
        anchor = self._anchor()
        digest = f"sha-256=:{b64encode(sha256(body).digest()).decode()}:"
        path = ACTION_PATHS[action]
        parameters = (
            f'({COVERED});created={created};expires={created + 20};keyid="{self.did}";alg="ed25519"'
            f';nonce="{self.fresh("n")}";tag="tallystick-v1"'
        )
        base = (
            f'"@method": POST\n"@authority": {AUTHORITY}\n"@path": {path}\n"@query": ?'
            f'\n"content-type": application/json\n"content-digest": {digest}\n"idempotency-key": "{key}"'
            f'\n"tallystick-anchor": {anchor}'
            f'\n"@signature-params": {parameters}'
        )
        signature = b64encode(self.key.sign(base.encode())).decode()
        headers = (
            ("host", AUTHORITY),
            ("content-type", "application/json"),
            ("content-digest", digest),
            ("idempotency-key", f'"{key}"'),
            ("tallystick-anchor", anchor),
            ("signature-input", f"sig={parameters}"),
            ("signature", f"sig=:{signature}:"),
        )
        return RawRequest("POST", AUTHORITY, path, "?", headers, body)

    def _anchor(self) -> str:
        """Return the newest checkpoint seen; one of another history when this client was fooled."""
        if not self.simulation.chance("foreign_anchor"):
            return self.anchor
        origin, size, root = self.anchor.split(" ")
        other = bytearray(b64decode(root))
        other[0] ^= 1
        return f"{origin} {size} {b64encode(bytes(other)).decode()}"

    # -- asking -------------------------------------------------------------------------------------------------------

    async def ask(self, action: str, *, patience: int = 6, wait_ms: int = 0, **members: Any) -> Leaf | None:
        """Ask until there is an answer, signed anew under the same key; None after `patience` attempts.

        A claim may be kept at the door for `wait_ms`.

        Return the leaf that answers, or None also for a refusal without entry that no retry helps.
        """
        simulation, key = self.simulation, self.fresh("k")
        self.refusal = ""
        for attempt in range(patience):
            raw = self.sign(action, members, key)
            self.sent.append((raw, action))
            try:
                reply = await self.exchange(raw, action, wait_ms)
            except NoAnswer:
                simulation.say(self.name, "no answer", action, attempt)
            else:
                if isinstance(reply, Answered):
                    return self.learn(reply, key)
                if not self._is_worth_another(reply, raw):
                    return None
            if simulation.chance("new_key"):
                key = self.fresh("k")
            if not simulation.chance("ignore_retry"):
                await asyncio.sleep(simulation.rng.uniform(0.1, 1.5) + self.rest_s)
                self.rest_s = 0.0
        return None

    async def exchange(self, raw: RawRequest, action: str, wait_ms: int = 0) -> Reply:
        """Send, and wait for the reply; NoAnswer when there is none in time."""
        loop = self.simulation.loop
        future: asyncio.Future[Reply] = loop.create_future()
        self.simulation.network.send(Letter(self.name, raw, action, wait_ms, future))
        timer = loop.call_later(TIMEOUT_S + wait_ms / 1_000, _give_up, future)
        try:
            return await future
        finally:
            timer.cancel()

    def learn(self, reply: Answered, key: str) -> Leaf:
        """Take time and anchor from an answer, and return its leaf."""
        simulation, answer = self.simulation, orjson.loads(reply.body)
        if "batch" in answer:
            raw, *rest = map(b64decode, answer["batch"]["leaves"])
            note = answer["batch"]["checkpoint"]
        else:
            raw, rest = b64decode(answer["receipt"]["payload"]), []
            note = answer["receipt"]["proof"].split("\n\n")[1]
        leaf: Leaf = orjson.loads(raw)
        simulation.received(self.name, key, [raw, *rest], reply)
        leaf["answers"] = list(map(orjson.loads, rest))
        origin, size, root, *_ = note.split("\n")
        if int(size) > int(self.anchor.split(" ")[1]):
            self.anchor = f"{origin} {size} {root}"
        simulation.say(self.name, leaf["type"].split("/")[1], leaf["seq"], leaf.get("error", ""))
        return leaf

    def _is_worth_another(self, reply: Exception, raw: RawRequest) -> bool:
        """Say whether a retry may help; a gateway that denies its own history is a violation."""
        simulation = self.simulation
        if isinstance(reply, Refused):
            row = self.refusal = reply.unreceipted.refusal.name
            simulation.say(self.name, "refused", row)
            simulation.turned_away(self.did, row)
            if row == "outside_window":
                now_ms = reply.unreceipted.detail.get("nowMs")
                self.skew_ms = now_ms - self.now_ms if now_ms else simulation.node_skew_ms(self.now_ms)
                return True
            if row == "unknown_history":
                simulation.history_denied(self.name, dict(raw.headers)["tallystick-anchor"])
                return True
            return row in ("nonce_reused", "too_many_sessions")
        if isinstance(reply, Rejection):
            simulation.fail("door", f"{self.name} was rejected: {reply.code} {reply}")
            return False
        simulation.say(self.name, type(reply).__name__, str(reply)[:40])
        if isinstance(reply, RateLimited):
            self.rest_s = reply.retry_after_s
        return isinstance(reply, Busy | ConnectionRefusedError | RateLimited) or not simulation.is_over
