"""A gateway without HTTP that works as fast as it can until it is killed. Run by `test_kill.py`, never imported.

Usage: python -m tests.ledger.victim FOLDER ROUND. Writes one line for each answer, after it was given:
<actor> <idempotency key> <status> <base64 of the body>.
"""

from __future__ import annotations

import asyncio
import base64
import random
import sys
from pathlib import Path

from gateway.clock import Clock
from gateway.core.records import Ticket
from tests.core.requests import Ask, acquire, batch, cancel, chain, claim, did_of, open_session, release
from tests.world import StillClock, World

AGENTS = ("A", "B", "C", "D", "E", "F")
RESOURCES = tuple(f"lock:{number}" for number in range(4))


class RealClock(StillClock):
    """This machine's clocks."""

    def now_ms(self) -> int:
        self.wall = Clock().now_ms()
        return self.wall

    def boottime_ms(self) -> int:
        return Clock().boottime_ms()


async def client(world: World, name: str, prefix: str) -> None:
    """Take, stand in line, claim, leave and give back, one by one or many at once, in any order, with keys that are
    never used twice."""
    dice = random.Random(prefix)
    step = 0
    while True:
        step += 1
        ask = any_ask(world, name, dice)
        ask = ask.but(idempotency_key=f"{prefix}-{step}", nonce=f"{prefix}-{step}-".ljust(24, "x"))
        answer = await world.ask(ask)
        text = base64.b64encode(answer.body()).decode()
        sys.stdout.write(f"{ask.key.did} {ask.idempotency_key} {answer.status} {text}\n")
        sys.stdout.flush()


def any_ask(world: World, name: str, dice: random.Random) -> Ask:
    at_ms, resource = world.clock.now_ms(), dice.choice(RESOURCES)
    mine = [one for _, one in world.sequencer.view.scan("ticket/") if isinstance(one, Ticket)]
    mine = [ticket for ticket in mine if ticket.actor == did_of(name)]
    if mine and dice.random() < 0.5:
        return (claim if dice.random() < 0.9 else cancel)(name, dice.choice(mine).ticket_id, at_ms=at_ms)
    if dice.random() < 0.25:
        free = [(release if dice.random() < 0.5 else acquire)(name, one) for one in dice.sample(RESOURCES, 3)]
        return batch(name, *free, at_ms=at_ms, isAtomic=dice.random() < 0.3)
    if dice.random() < 0.5:
        return release(name, resource, at_ms=at_ms)
    return acquire(name, resource, at_ms=at_ms, wait=dice.random() < 0.5)


async def session(world: World, agent: str, prefix: str) -> None:
    """Open a session of an agent and let it do what a client does."""
    name, at_ms = f"{agent}-{prefix}", world.clock.now_ms()
    lent = {"notBeforeMs": at_ms - 60_000, "expiresAtMs": at_ms + 86_400_000}
    await world.ask(open_session(name, chain(agent, name, **lent), at_ms=at_ms))
    await client(world, name, prefix)


async def main(folder: Path, number: int) -> None:
    world = World(folder, "sqlite", agents=AGENTS, clock=RealClock(), sweep_ms=5)
    await world.start()
    print("ready", flush=True)
    async with asyncio.TaskGroup() as group:
        for at, name in enumerate(AGENTS * 2):
            act = client if at < len(AGENTS) else session
            group.create_task(act(world, name, f"{number}-{at}"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
