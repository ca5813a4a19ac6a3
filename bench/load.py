"""The load generator: N connections, each one agent that takes and releases resources of its own, as fast as it can.

Each request is one command, or a batch of them.

It runs in a process of its own (`python -m bench.load`), so that its cost is never counted as the gateway's. It speaks
HTTP/1.1 over bare streams and signs each request just before it is sent, as an agent would; it checks the status of
every answer but not the receipts (the verifier has its own bench). One JSON line in (the plan), one out (the result).
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice

import uvloop

from gateway.client.signing import Draft, new_nonce, sign_request
from keys.signing import SigningKey
from verifier.entries import ACTION_PATHS
from verifier.wire import JsonObject, encode_canonical


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: `receipts` in all, spread over `connections`; `anchor` is the newcomer's.

    `commands` in each request, as one batch (a `is_bare` one is answered without direct signatures); 0: no batches.
    """

    host: str
    port: int
    authority: str
    origin: str
    anchor: str
    connections: int
    receipts: int
    first_agent: int
    commands: int = 0
    is_bare: bool = False


@dataclass(slots=True)
class Worker:
    """One agent on one connection. Its key is made from its number, so the bench can enrol it beforehand."""

    plan: Plan
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answer_bytes: int = 0

    async def run(self, receipts: int) -> list[float]:
        """Return the latency of each request in milliseconds."""
        key = agent_key(self.number)
        latencies_ms = []
        for path, body in self.bodies(key.did, receipts):
            message = self.message(key, path, body)
            sent = time.perf_counter()
            self.writer.write(message)
            await self.answer()
            latencies_ms.append((time.perf_counter() - sent) * 1_000)
        self.writer.close()
        return latencies_ms

    def bodies(self, did: str, receipts: int) -> Iterator[tuple[str, bytes]]:
        """Each request's path and body: one command by itself, or `plan.commands` of them."""
        named: JsonObject = {"ledger": self.plan.origin, "actorDid": did}
        commands = self.commands(receipts)
        if not self.plan.commands:
            for action, members in commands:
                yield ACTION_PATHS[action], encode_canonical({**named, **members})
        while batch := [{"action": action, **members} for action, members in islice(commands, self.plan.commands)]:
            bare: JsonObject = {"isBare": True} if self.plan.is_bare else {}
            yield ACTION_PATHS["batch.submit"], encode_canonical({**named, **bare, "commands": [*batch]})

    def commands(self, receipts: int) -> Iterator[tuple[str, JsonObject]]:
        """Acquire, release, acquire, … The lease id is left out of the release: one resource, one lease."""
        for step in range(receipts):
            resource = f"bench:agent-{self.number}/{step // 2}"
            if step % 2 == 0:
                yield "lease.acquire", {"resource": resource, "ttlMs": 600_000}
            else:
                yield "lease.release", {"resource": resource}

    def message(self, key: SigningKey, path: str, body: bytes) -> bytes:
        draft = Draft(
            "POST", self.plan.authority, path, "", self.plan.anchor, body, f"bench-{self.number}-{next(KEYS)}"
        )
        headers = sign_request(draft, key, created_s=int(time.time()), nonce=new_nonce())
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body

    async def answer(self) -> None:
        """Read one answer; anything but 200 ends the bench, because a refusal is not what is measured."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await self.reader.readexactly(length)
        self.answer_bytes += length
        if not head.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"bench: {head.split(bytes([13]))[0].decode()}: {body[:500].decode()}")


KEYS = count(int(time.time() * 1_000_000))


def agent_key(number: int) -> SigningKey:
    """Return the throw-away key of agent `number`."""
    return SigningKey(number.to_bytes(32, "big"))


async def run(plan: Plan) -> dict[str, object]:
    """Return receipts, wall seconds, bytes answered and latencies of one round."""
    share = plan.receipts // plan.connections
    workers = [
        Worker(plan, plan.first_agent + index, *await asyncio.open_connection(plan.host, plan.port))
        for index in range(plan.connections)
    ]
    started = time.perf_counter()
    rounds = await asyncio.gather(*(worker.run(share) for worker in workers))
    wall_s = time.perf_counter() - started
    done = {"receipts": share * plan.connections, "wallS": wall_s, "bytes": sum(one.answer_bytes for one in workers)}
    return {**done, **quantiles_ms(sorted(chain.from_iterable(rounds)))}


def quantiles_ms(latencies_ms: Sequence[float]) -> dict[str, float]:
    """Return median and 99th percentile of sorted latencies."""
    last = len(latencies_ms) - 1
    return {"p50Ms": latencies_ms[round(last * 0.50)], "p99Ms": latencies_ms[round(last * 0.99)]}


def main() -> None:
    """Read a plan per line from standard input, answer each with a result, until `stop`."""
    for line in sys.stdin:
        if line.strip() == "stop":
            return
        print(json.dumps(uvloop.run(run(Plan(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
