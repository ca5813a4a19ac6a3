"""Each call of the store fails in every way, at one of two nodes that fight for one resource; the clients go on.

Whatever fails: everybody is answered in the end, what was answered is in the ledger byte for byte, no decision is made
twice, no two leases overlap, no node stops, and the real verifier accepts what each node shows.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.errors import Busy
from gateway.ledger import batches, commits
from gateway.ledger.history import Answer
from tests.core.requests import Ask, acquire, release
from tests.ledger.nodes import check_answers, check_tokens, end, started
from tests.world import Fault, World

FILE = "lock:storm"
ROUNDS = 2
RETRIES = 60
# `landed` is asked only after a commit that is unclear.
METHODS = ("lock", "look", "commit", "unlock", "news", "confirm", "keep", "landed", "load")
MOVES = ("lock", "commit", "news")  # who may say that the head is elsewhere
PROMISES = ("lock", "commit", "confirm", "load")  # who looks whether the settings keep the promise
FAULTS: Mapping[str, tuple[Fault, ...]] = {
    method: (
        *("lost", "kept", "busy"),
        *(("moved",) if method in MOVES else ()),
        *(("unfit",) if method in PROMISES else ()),
    )
    for method in METHODS
}


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "LANDED_PAUSE_S", 0.001)
    monkeypatch.setattr(batches, "TOP_UP_MS", 0)  # every batch looks for more
    monkeypatch.setattr("gateway.store.memory.LOCK_SECONDS", 0.02)


class Crowd:
    """Clients of all nodes that want answers, whatever it takes, and remember each one they got."""

    def __init__(self, nodes: list[World], seed: int) -> None:
        self.nodes = nodes
        self.answers: list[Answer] = []
        self.places = nodes  # where they ask
        self.dice = random.Random(seed)

    async def ask(self, ask: Ask) -> Answer:
        """Send it to any node; after Busy again, to any, signed anew under the same key."""
        for attempt in range(RETRIES):
            node = self.dice.choice(self.places)
            try:
                answer = await node.ask(ask)
            except Busy:
                await node.settle()
                await asyncio.sleep(0.001 * attempt)
                if attempt > 5:  # a server notices at last that a connection is dead, and gives the head back
                    for one in self.nodes:
                        one.store.honest.unlock()
                ask = ask.again()
                continue
            self.answers.append(answer)
            return answer
        raise AssertionError("never answered")

    async def fight(self, name: str) -> None:
        for _ in range(ROUNDS):
            asked = acquire(name, FILE)
            answer = await self.ask(asked)
            assert (await self.ask(asked.again())).body() == answer.body(), "a retry says the same"
            if answer.status == 200:
                await self.ask(release(name, FILE))

    async def trickle(self) -> None:
        """Come one after the other, so that some come while the head is waited for."""
        async with asyncio.TaskGroup() as group:
            for number in range(16):
                group.create_task(self.ask(acquire("C", f"lock:trickle/{number}")))
                await asyncio.sleep(0.002)

    async def look(self) -> None:
        """Be a reader: a node that knows less than another catches up."""
        for _ in range(2 * ROUNDS):
            node = self.dice.choice(self.nodes)
            await self.catch_up(node)
            await asyncio.sleep(0.002)
            await node.settle()

    async def catch_up(self, node: World) -> None:
        try:
            await node.sequencer.catch_up()
        except Busy:
            await node.settle()

    async def run(self) -> None:
        await asyncio.gather(*(self.fight(name) for name in "ABC"), self.trickle(), self.look())
        for _ in range(4):  # what one node wrote, the other is asked for
            asked = acquire("A", FILE)
            self.places = self.nodes[1:]
            await self.ask(asked)
            await self.catch_up(self.nodes[0])
            await self.nodes[0].settle()
            self.places = self.nodes[:1]
            await self.ask(asked.again())


def plans(node: World, faults: list[tuple[str, int, Fault]]) -> None:
    """Let the nth call from now of each method fail."""
    before = Counter(node.store.calls)
    node.store.storm = {(method, before[method] + nth): fault for method, nth, fault in faults}


async def check(crowd: Crowd) -> None:
    first = crowd.nodes[0]
    for node in crowd.nodes:
        node.store.storm = {}
        await node.settle()
        assert node.sequencer.failure is None and node.sequencer.is_ready
    await check_answers(first, crowd.answers)
    asked = [(leaf.actor, leaf.request["idempotencyKey"]) for leaf in first.leaves() if leaf.request]
    decided = {answer.seq for answer in crowd.answers}
    assert len(asked) == len(set(asked)) == 3 + len(decided), "each request was decided once"
    assert check_tokens(first, FILE) >= 3
    await end(crowd.nodes)


@pytest.mark.parametrize(("method", "fault"), [(method, fault) for method in METHODS for fault in FAULTS[method]])
async def test_any_call_may_fail_in_any_way(method: str, fault: Fault, tmp_path: Path) -> None:
    nodes = await started(tmp_path)
    needed: list[tuple[str, int, Fault]] = []
    if method == "landed":
        needed = [("commit", 3, "kept"), ("commit", 5, "lost")]
    elif method == "load":
        needed = [("lock", 3, "moved")]
    elif method == "look":
        nodes[0].store.before = lambda name: time.sleep(0.005) if name == "lock" else None
    plans(nodes[0], [*needed, (method, 1, fault), (method, 2, fault), (method, 4, fault)])
    crowd = Crowd(nodes, seed=len(method))
    if method in ("look", "landed", "load"):
        crowd.places = nodes[:1]
    before = nodes[0].store.calls[method]
    await crowd.run()
    assert nodes[0].store.calls[method] > before, "the fault was met"
    await check(crowd)


@pytest.mark.parametrize("seed", range(4))
async def test_many_calls_may_fail_at_both_nodes(seed: int, tmp_path: Path) -> None:
    dice, nodes = random.Random(seed), await started(tmp_path)
    for node in nodes:
        places = [(method, nth) for method in METHODS for nth in range(1, 40)]
        picked = dice.sample(places, 24)
        plans(node, [(method, nth, dice.choice(FAULTS[method])) for method, nth in picked])
    crowd = Crowd(nodes, seed)
    await crowd.run()
    await check(crowd)
