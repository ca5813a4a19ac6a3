"""Several gateways on one ledger: worlds that share a disk, and a store that shows what it may lose again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway.errors import Unknown
from gateway.ledger.history import Answer, stored_answer
from gateway.store.contract import Loaded, Store, StoredBatch, StoredHead
from gateway.store.memory import MemoryDisk, MemoryStore
from tests.world import StillClock, World


def shared_disk(**how: Any) -> MemoryDisk:
    return MemoryDisk(is_shared=True, **how)


def nodes_on(folder: Path, count: int = 2, *, disk: MemoryDisk | None = None, **how: Any) -> list[World]:
    """Return worlds, not started, of one ledger; each has a folder and a clock of its own."""
    disk = disk or shared_disk()
    folders = [folder / f"node{number}" for number in range(count)]
    for one in folders:
        one.mkdir()
    return [World(one, disk=disk, clock=StillClock(), **how) for one in folders]


async def started(folder: Path, count: int = 2, **how: Any) -> list[World]:
    """Return started nodes; the first has enrolled the agents."""
    nodes = nodes_on(folder, count, **how)
    for node in nodes:
        await node.start()
    return nodes


async def end(nodes: Sequence[World]) -> None:
    """Let every node catch up, let the real verifier judge what each of them shows, and stop."""
    for node in (*nodes, *nodes):  # twice, for one that has to read the ledger anew writes so
        await node.sequencer.catch_up()
    sizes = {node.sequencer.confirmed.size for node in nodes}
    assert len(sizes) == 1 and len({node.sequencer.confirmed.note for node in nodes}) == 1, sizes
    views = [dict(node.sequencer.view.scan("")) for node in nodes]
    assert all(view == views[0] for view in views), "every node shows the same"
    for node in nodes:
        node.audit()
        await node.stop()


async def check_answers(world: World, answers: Sequence[Answer]) -> None:
    """Each answer is there, byte for byte, whichever node is asked again."""
    await world.sequencer.catch_up()
    for answer in answers:
        (entry,) = world.store.honest.entries(answer.seq, answer.seq + 1)
        assert entry.leaf == answer.leaf
        again = stored_answer(world.store.honest, world.signer, world.sequencer.confirmed, answer.seq, answer.status)
        assert again.body() == answer.body()


def check_tokens(world: World, resource: str) -> int:
    """No two grants of one resource overlap, and tokens increase; return how many grants there were."""
    holder: object = None
    tokens: list[int] = []
    for leaf in world.leaves():
        kind, value = leaf.type.split("/")[1], leaf.value
        if kind == "lease.granted" and value["resources"] == [resource]:
            assert holder is None, f"a double grant in entry {leaf.seq}"
            holder = value["leaseId"]
            token = value["fencingToken"]
            assert isinstance(token, int)
            tokens.append(token)
        elif kind in ("lease.released", "lease.expired") and value.get("leaseId") == holder:
            holder = None
    assert tokens == sorted(set(tokens))
    return len(tokens)


class Moody(MemoryStore):
    """A node's connection to a primary whose stand-by may be away: then commits are visible and not confirmed.

    A barrier waits for the stand-by: it is Unknown while that is away. `fail_over` makes the stand-by the primary, and
    what was only visible is gone.
    """

    def __init__(self, primary: Primary) -> None:
        super().__init__(primary.disk)
        self._primary = primary
        self._is_new = True

    def load(self) -> Loaded:
        self._is_new = False
        self._primary.barrier()
        return super().load()

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        super().commit(batch, expected)
        self._primary.barrier()

    def confirm(self) -> None:
        self._primary.barrier()

    def landed(self, batch_id: str) -> bool:
        if super().landed(batch_id):
            self._primary.barrier()
            return True
        return False


class Primary:
    """A database server with a synchronous stand-by. `on_barrier` is called when a commit has to wait for that."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.is_alone = False
        self._standby = disk.frozen()

    def barrier(self) -> None:
        if self.is_alone:
            raise Unknown("WARNING: canceling wait for synchronous replication")
        self._standby = self.disk.frozen()

    def fail_over(self) -> None:
        """Let the stand-by take over."""
        disk, standby = self.disk, self._standby.frozen()
        with disk.mutex:
            for name in ("head", "is_clean", "leaves", "hashes", "heads", "signed", "records", "changes"):
                setattr(disk, name, getattr(standby, name))
        self.is_alone = False


async def until(is_true: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something is true; an error when it takes too long."""
    async with asyncio.timeout(seconds):
        while not is_true():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.001)


def on(world: World, store: Store) -> World:
    """Let a world open this store."""
    world.open_store = lambda *, may_create=False: store  # type: ignore[method-assign]
    return world
