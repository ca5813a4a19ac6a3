"""The load generator: N connections, each one agent that takes and releases resources of its own, as fast as it can.

Each request is one command, or a batch of them.

It runs in a process of its own (`python -m bench.load`), so that its cost is never counted as the gateway's. It speaks
HTTP/1.1 over bare streams and signs each request just before it is sent, as an agent would, or all of them before the
round begins, where it would else be what a table measures. It checks the status of every answer but not the receipts
(the verifier has its own bench). One JSON line in (a plan, or a list of plans that are carried out at the same time),
one out (the result).
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice

import uvloop

from gateway.client.signing import LIFE_S, Draft, new_nonce, sign_request
from keys.signing import SigningKey
from verifier.entries import ACTION_PATHS
from verifier.wire import JsonObject, encode_canonical


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: `receipts` in all, spread over `connections`; `anchor` is the newcomer's.

    `commands` in each request, as one batch (a `is_bare` one is answered without direct signatures); 0: no batches.
    `common`: everybody takes from that many resources, and a refusal is a receipt like any other; 0: each has its own.
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
    common: int = 0
    is_signed_before: bool = False


@dataclass(slots=True)
class Worker:
    """One agent on one connection. Its key is made from its number, so the bench can enrol it beforehand."""

    plan: Plan
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answer_bytes: int = 0

    def messages(self, receipts: int) -> Iterable[bytes]:
        """Return the requests, signed one by one as they are asked for, or all of them now."""
        key = agent_key(self.number)
        signed = (self.message(key, path, body) for path, body in self.bodies(key.did, receipts))
        return [*signed] if self.plan.is_signed_before else signed

    async def run(self, messages: Iterable[bytes]) -> list[float]:
        """Return the latency of each request in milliseconds."""
        latencies_ms = []
        for message in messages:
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
            common = self.plan.common
            resource = f"bench:common/{(self.number + step // 2) % common}" if common else self.own(step)
            if step % 2 == 0:
                yield "lease.acquire", {"resource": resource, "ttlMs": 600_000}
            else:
                yield "lease.release", {"resource": resource}

    def own(self, step: int) -> str:
        return f"bench:agent-{self.number}/{step // 2}"

    def message(self, key: SigningKey, path: str, body: bytes) -> bytes:
        draft = Draft(
            "POST", self.plan.authority, path, "", self.plan.anchor, body, f"bench-{self.number}-{next(KEYS)}"
        )
        ahead_s, life_s = (AHEAD_S, LIFE_LONG_S) if self.plan.is_signed_before else (0, LIFE_S)
        headers = sign_request(draft, key, created_s=int(time.time()) + ahead_s, nonce=new_nonce(), life_s=life_s)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body

    async def answer(self) -> None:
        """Read one answer; what is no receipt ends the bench, and so does a refusal where none is measured."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await self.reader.readexactly(length)
        self.answer_bytes += length
        if head[9:12] not in (RECEIPTED if self.plan.common else RECEIPTED[:1]):
            late = f" (a round signed before it begins must be over in {AHEAD_S} s)" * self.plan.is_signed_before
            raise SystemExit(f"bench{late}: {head.split(bytes([13]))[0].decode()}: {body[:500].decode()}")


KEYS = count(int(time.time() * 1_000_000))
RECEIPTED = (b"200", b"409")  # statuses of receipts: granted or given back; held by another, or not held
# Of signatures that are made before the round: a release means no lease that was granted after it was signed, and a
# gateway takes signatures from as far ahead as its skew. So a round must be over in that time.
AHEAD_S, LIFE_LONG_S = 25, 300


def agent_key(number: int) -> SigningKey:
    """Return the throw-away key of agent `number`."""
    return SigningKey(number.to_bytes(32, "big"))


async def run(plans: Sequence[Plan]) -> dict[str, object]:
    """Return receipts, wall and CPU seconds, bytes answered and latencies of one round of all plans at once."""
    crew = [one for plan in plans for one in await hired(plan)]
    work = [one.messages(one.plan.receipts // one.plan.connections) for one in crew]
    started, used = time.perf_counter(), time.process_time()
    rounds = await asyncio.gather(*(one.run(messages) for one, messages in zip(crew, work, strict=True)))
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - used
    receipts = sum(plan.receipts // plan.connections * plan.connections for plan in plans)
    done = {"receipts": receipts, "wallS": wall_s, "cpuS": cpu_s, "bytes": sum(one.answer_bytes for one in crew)}
    return {**done, **quantiles_ms(sorted(chain.from_iterable(rounds)))}


async def hired(plan: Plan) -> list[Worker]:
    """Return the agents of a plan, each on its connection."""
    return [
        Worker(plan, plan.first_agent + index, *await asyncio.open_connection(plan.host, plan.port))
        for index in range(plan.connections)
    ]


def quantiles_ms(latencies_ms: Sequence[float]) -> dict[str, float]:
    """Return median and 99th percentile of sorted latencies."""
    last = len(latencies_ms) - 1
    return {"p50Ms": latencies_ms[round(last * 0.50)], "p99Ms": latencies_ms[round(last * 0.99)]}


def main() -> None:
    """Read a plan, or a list of them, per line from standard input, answer each line with a result, until `stop`."""
    for line in sys.stdin:
        if line.strip() == "stop":
            return
        told = json.loads(line)
        plans = [Plan(**plan) for plan in (told if isinstance(told, list) else [told])]
        print(json.dumps(uvloop.run(run(plans))), flush=True)


if __name__ == "__main__":
    main()
