"""Agents that work over several gateways and keep every answer they got, for an auditor.

Each asks with the real client, which signs, retries with the same idempotency key, and believes nothing unproven. What
goes through a wire of theirs ends at one node or another, and at another one after a node did not answer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.client.agent import Agent
from gateway.client.errors import Unreachable
from gateway.client.profile import Profile
from gateway.client.receipts import VerifiedReceipt
from gateway.client.signing import new_idempotency_key
from gateway.client.transport import HttpTransport, Reply
from tests.pg.nodes import Ledger
from verifier.wire import JsonObject

PATIENCE_MS = 120_000  # one intention, over all faults of a scene
ATTEMPT_MS = 4_000  # one node, as a balancer in front of the nodes would do it
WANDER = 0.2  # the chance that the next request goes to another node though nothing failed
TTL_MS = 60_000


@dataclass(frozen=True, slots=True)
class Answered:
    """One intention that was answered: what was asked, when (ns of this machine), and the answer's bytes."""

    number: int
    key: str
    action: str
    members: JsonObject
    asked_ns: int
    answered_ns: int
    receipt: VerifiedReceipt
    status: int
    body: bytes

    @property
    def error(self) -> str:
        """The refusal, or ""."""
        return self.receipt.leaf.text("error")


class Roaming:
    """A transport over several nodes."""

    def __init__(self, urls: Sequence[str], chance: random.Random) -> None:
        self._nodes = [HttpTransport(url) for url in urls]
        self._chance = chance
        self._at = chance.randrange(len(urls))
        self.last: dict[str, Reply] = {}  # by idempotency key
        self.statuses: list[int] = []

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int
    ) -> Reply:
        if self._chance.random() < WANDER:
            self._move_on()
        try:
            reply = await self._nodes[self._at].send(method, target, headers, body, min(timeout_ms, ATTEMPT_MS))
        except Unreachable:
            self._move_on()
            raise
        self.statuses.append(reply.status)
        if reply.status in (502, 503, 504):
            self._move_on()
        if "idempotency-key" in headers:
            self.last[headers["idempotency-key"].strip('"')] = reply
        return reply

    def _move_on(self) -> None:
        self._at = (self._at + 1) % len(self._nodes)

    async def close(self) -> None:
        for node in self._nodes:
            await node.close()


@dataclass(slots=True)
class Crowd:
    """The agents, what they were answered, and a bell that rings with each answer."""

    ledger: Ledger
    resources: int = 3
    ttl_ms: int = TTL_MS
    answers: list[Answered] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    bell: asyncio.Condition = field(default_factory=asyncio.Condition)
    is_over: bool = False

    async def work(self, number: int) -> None:
        """Take, prolong and give back a few resources for as long as the scene lasts."""
        async with Member(self, number) as member:
            while not self.is_over:
                await member.step()

    async def until(self, count: int, seconds: float = 120.0) -> None:
        """Return when so many more answers have come."""
        target = len(self.answers) + count
        async with self.bell:
            await asyncio.wait_for(self.bell.wait_for(lambda: len(self.answers) >= target), seconds)

    async def keep(self, answer: Answered) -> None:
        async with self.bell:
            self.answers.append(answer)
            self.bell.notify_all()

    async def run(self, agents: int, scene: Callable[[], Awaitable[None]]) -> None:
        """Let so many agents work while `scene` plays; then all end, each with its answer."""
        async with asyncio.TaskGroup() as group:
            for number in range(1, agents + 1):
                group.create_task(self.work(number))
            try:
                await scene()
            finally:
                self.is_over = True


class Member:
    """One agent of a crowd."""

    def __init__(self, crowd: Crowd, number: int, seed: int = 0) -> None:
        self.crowd = crowd
        self.number = number
        self.chance = random.Random(f"{seed}-{number}")
        self.transport: Roaming | None = None
        self.agent = Agent(self._profile(), jitter=self.chance.random, connect=self._connect)
        self.held: dict[str, str] = {}

    def _profile(self) -> Profile:
        return self.crowd.ledger.profile(self.number)

    def _connect(self, _: str) -> Roaming:
        self.transport = Roaming([node.url for node in self.crowd.ledger.nodes], self.chance)
        self.transport.statuses = self.crowd.statuses
        return self.transport

    async def __aenter__(self) -> Member:
        await self.agent.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.agent.__aexit__(None, None, None)

    async def step(self) -> None:
        """One intention: give back or prolong what is held, else take something."""
        if not self.held:
            resource = f"lock:{self.chance.randrange(self.crowd.resources)}"
            answer = await self.ask("lease.acquire", {"resource": resource, "ttlMs": self.crowd.ttl_ms})
            if not answer.error:
                self.held[resource] = answer.receipt.leaf.text("leaseId")
            return
        resource, lease = next(iter(self.held.items()))
        if self.chance.random() < 0.3:
            await self.ask("lease.renew", {"leaseId": lease, "ttlMs": self.crowd.ttl_ms})
        else:
            await self.ask("lease.release", {"resource": resource, "leaseId": lease})
            del self.held[resource]

    async def ask(self, action: str, members: JsonObject, key: str | None = None) -> Answered:
        """Ask until it is answered, whatever happens to nodes meanwhile, and keep the answer."""
        key = new_idempotency_key() if key is None else key
        answer = await self.put(action, members, key)
        await self.crowd.keep(answer)
        return answer

    async def put(self, action: str, members: JsonObject, key: str) -> Answered:
        assert self.transport is not None
        asked_ns, until_ms = time.monotonic_ns(), self.agent.clock.steady_ms() + PATIENCE_MS
        decided = await self.agent.caller.decide(action, members, until_ms=until_ms, idempotency_key=key)
        reply = self.transport.last.pop(key)
        return Answered(
            self.number, key, action, members, asked_ns, time.monotonic_ns(), decided.receipt, reply.status,
            reply.unverified_body,
        )  # fmt: skip
