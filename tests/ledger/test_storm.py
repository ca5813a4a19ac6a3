"""Every write of a scene fails in every way: before it persisted, or after. The clients retry until they are answered.

Whatever fails: everybody is answered in the end, what was answered is in the ledger byte for byte, no decision is made
twice, and the real verifier accepts the whole ledger.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from gateway.errors import Busy, Fatal
from gateway.ledger.history import Answer, stored_answer
from tests.core.requests import Ask, acquire, release, renew
from tests.world import ENGINES, Engine, Fault, World

RETRIES = 12
WRITES = {"commit": 6, "keep": 3}  # how often the scene below writes when nothing fails
PLACES = [(name, nth) for name, count in WRITES.items() for nth in range(1, count + 1)]
FAULTS: tuple[Fault, ...] = ("lost", "kept", "busy", "moved")
SCENE = [
    "lease.granted",
    "lease.refused",
    "lease.renewed",
    "lease.granted",
    "lease.released",
    "service.started",
    "lease.holiday",
    "lease.expired",
    "lease.granted",
]


class Clients:
    """Clients that want answers, whatever it takes, and remember each one they got."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: list[Answer] = []
        self._restart = asyncio.Lock()

    async def ask(self, ask: Ask) -> Answer:
        """Send it; after Busy or Fatal again, signed anew under the same key, to a gateway that was restarted."""
        for _ in range(RETRIES):
            running = self.world.sequencer
            try:
                answer = await self.world.ask(ask)
            except (Busy, Fatal):
                await self.revive(running)
                ask = ask.again()
                continue
            self.answers.append(answer)
            return answer
        raise AssertionError("never answered")

    async def revive(self, broken: object) -> None:
        """Restart the gateway if it is the broken one and has stopped."""
        async with self._restart:
            if self.world.sequencer is broken and not self.world.sequencer.is_ready:
                await self.world.stop()
                await self.start()

    async def start(self) -> None:
        for _ in range(RETRIES):
            try:
                return await self.world.start()
            except (Busy, Fatal):
                continue
        raise AssertionError("never started")


async def scene(world: World, clients: Clients) -> None:
    """Two agents want one file; renewals, upkeep, an expiry, a restart in the middle, a retry at the end."""
    first = acquire("A", "lock:1", ttlMs=5_000)
    await asyncio.gather(clients.ask(first), clients.ask(acquire("B", "lock:1")))
    await world.settle()
    await clients.revive(world.sequencer)
    held = next(leaf for leaf in world.leaves() if leaf.type.startswith("tallystick/lease.granted"))
    owner = "A" if held.actor == first.key.did else "B"
    await clients.ask(renew(owner, held.text("leaseId")))
    await asyncio.gather(clients.ask(acquire("C", "lock:2", ttlMs=1_000)), clients.ask(release(owner, "lock:1")))
    await world.stop()
    await clients.start()
    world.clock.advance(31_000)
    await world.settle()
    await clients.revive(world.sequencer)
    await clients.ask(acquire("A", "lock:2", at_ms=world.clock.wall))
    await clients.ask(first.again())


async def play(world: World, storm: dict[tuple[str, int], Fault]) -> Clients:
    """Start, then play the scene under `storm`, which counts the calls of the scene alone."""
    await world.start()
    before = Counter(world.store.calls)
    world.store.storm = {(name, before[name] + nth): fault for (name, nth), fault in storm.items()}
    clients = Clients(world)
    await scene(world, clients)
    await clients.revive(world.sequencer)
    for name, nth in storm:
        assert world.store.calls[name] >= before[name] + nth, "the fault was met"
    return clients


def check(world: World, clients: Clients) -> None:
    by_request = [leaf for leaf in world.leaves() if leaf.request is not None]
    keys = [(leaf.actor, leaf.request["idempotencyKey"]) for leaf in by_request if leaf.request]
    assert len(keys) == len(set(keys)) == 3 + 6, "each request was decided once"
    for answer in clients.answers:
        (entry,) = world.store.honest.entries(answer.seq, answer.seq + 1)
        assert entry.leaf == answer.leaf
        again = stored_answer(world.store.honest, world.signer, world.sequencer.confirmed, answer.seq, answer.status)
        assert again.body() == answer.body()
    statuses = sorted(answer.status for answer in clients.answers)
    # A recovery after a long silence is a holiday: then C still holds lock:2 when A asks for it.
    assert statuses in ([200] * 6 + [409], [200] * 5 + [409] * 2)
    world.audit()


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_scene_writes_as_often_as_the_storm_assumes(engine: Engine, tmp_path: Path) -> None:
    world = World(tmp_path, engine)
    await world.start()
    before = Counter(world.store.calls)
    clients = Clients(world)
    await scene(world, clients)
    assert {name: world.store.calls[name] - before[name] for name in WRITES} == WRITES
    assert world.types(6) == SCENE
    check(world, clients)
    await world.stop()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("method", "nth"), PLACES)
async def test_any_write_may_fail_in_any_way(
    engine: Engine, fault: Fault, method: str, nth: int, tmp_path: Path
) -> None:
    """Scenario L51."""
    if (method, fault) == ("keep", "moved"):
        fault = "fatal"  # upkeep compares no head
    world = World(tmp_path, engine)
    check(world, await play(world, {(method, nth): fault}))
    await world.stop()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", ["lost", "kept"])
@pytest.mark.parametrize("nth", range(1, WRITES["commit"] + 1))
async def test_an_unclear_commit_may_stay_unclear_until_a_restart(
    engine: Engine, fault: Fault, nth: int, tmp_path: Path
) -> None:
    world = World(tmp_path, engine)
    check(world, await play(world, {("commit", nth): fault, ("landed", 1): "busy"}))
    await world.stop()
