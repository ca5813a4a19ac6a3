"""A node that reads the ledger anew asks the witnesses first: the server may lack what another node had confirmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.errors import Fatal, Unfit
from gateway.store.contract import Reading
from gateway.web.reads import root_at
from tests.ledger.nodes import Primary, end, nodes_on, until
from tests.ledger.test_sequencer import outcome
from tests.world import World

Check = Callable[[Reading, int], None]


class Witness:
    """Has seen a size and a root; counts how often it was asked, and says so only when it `answers`."""

    def __init__(self) -> None:
        self.size, self.root = 0, b""
        self.asked = 0
        self.answers = True

    def see(self, world: World) -> None:
        confirmed = world.sequencer.confirmed
        self.size, self.root = confirmed.size, confirmed.root

    async def ask(self) -> Check:
        self.asked += 1
        if not self.answers:
            raise Unfit("too few witnesses say what they have seen")
        return self._check

    def _check(self, read: Reading, size: int) -> None:
        if self.size and (self.size > size or root_at(read, self.size) != self.root):
            raise Fatal("a witness has seen more")


def ready(world: World) -> bool:
    return world.sequencer.is_ready


async def watched(folder: Path) -> tuple[World, World, Witness]:
    a, b = nodes_on(folder)
    witness = Witness()
    a.ask_witnesses = b.ask_witnesses = witness.ask
    for node in (a, b):
        await node.start()
    return a, b, witness


async def test_a_node_on_a_server_that_lost_what_another_one_had_confirmed_writes_nothing(tmp_path: Path) -> None:
    """A primary by hand that was no synchronous stand-by: this node saw nothing of what is gone, a witness did."""
    a, b, witness = await watched(tmp_path)
    older = Primary(a.disk)
    assert (await b.acquire("B", "lock:x")).status == 200
    witness.see(b)
    older.fail_over()
    await b.crash()
    a.store.plan.append(("lock", "moved"))
    size = len(a.disk.leaves)
    assert isinstance(await outcome(a.acquire("A", "lock:x")), Fatal)
    assert a.sequencer.failure is not None and a.sequencer.failed.is_set()
    assert len(a.disk.leaves) == size and not a.disk.head_lock.locked()
    await a.stop()


async def test_a_node_that_reads_anew_what_its_witnesses_know_goes_on(tmp_path: Path) -> None:
    a, b, witness = await watched(tmp_path)
    assert witness.asked == 0, "the start itself is asked for before there is a sequencer"
    assert (await b.acquire("B", "lock:x")).status == 200
    witness.see(b)
    a.store.plan.append(("lock", "moved"))
    assert (await a.acquire("A", "lock:y")).status == 200
    assert witness.asked == 1 and a.sequencer.counters.recoveries == 1
    await end([a, b])


async def test_witnesses_that_are_needed_and_away_are_asked_again_until_they_answer(tmp_path: Path) -> None:
    a, b, witness = await watched(tmp_path)
    witness.answers = False
    a.store.plan.append(("lock", "moved"))
    with pytest.raises(Unfit, match="too few witnesses"):
        await a.acquire("A", "lock:x")
    assert a.sequencer.failure is None and not ready(a)
    assert (await b.acquire("B", "lock:x")).status == 200, "who needs not ask goes on"
    witness.answers = True
    a.sequencer.tick()
    await until(lambda: ready(a))
    assert witness.asked == 2
    await end([a, b])


async def test_a_start_that_had_to_wait_asks_the_server_that_it_then_reads(tmp_path: Path) -> None:
    """It showed what the first server had, which was unfit; the one that is reached later may have less."""
    a, b, witness = await watched(tmp_path)
    assert (await b.acquire("B", "lock:x")).status == 200
    await a.crash()
    await a.start([("lock", "unfit")])
    assert not ready(a) and witness.asked == 0
    a.store.plan.append(("lock", "moved"))
    a.sequencer.tick()
    await until(lambda: ready(a))
    assert witness.asked == 1
    await end([a, b])


async def test_a_file_has_one_writer_so_nobody_is_asked_again(tmp_path: Path) -> None:
    world = World(tmp_path, engine="sqlite")
    witness = Witness()
    world.ask_witnesses = witness.ask
    await world.start()
    world.store.plan.append(("commit", "lost"))
    assert (await world.acquire("A", "lock:x")).status == 200
    assert world.sequencer.counters.recoveries == 1 and witness.asked == 0
    world.audit()
    await world.stop()
