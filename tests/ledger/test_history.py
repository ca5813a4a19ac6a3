"""A start believes nothing that it can compute: damage is refused with a text that says what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.state import Counter
from gateway.errors import Busy, Fatal
from gateway.ledger.history import stored_answer
from gateway.signer import Signer
from gateway.store.contract import SignedBatch
from gateway.store.memory import MemoryDisk
from tests.core.requests import ORIGIN, acquire, key_of
from tests.world import ENGINES, Engine, World

FILE = "repo:app/src/a.py"


async def stopped(folder: Path, engine: Engine = "memory", *, crashed: bool = False) -> World:
    """Return a world with some history that does not run."""
    world = World(folder, engine)
    await world.start()
    await world.acquire("A", "lock:1")
    await world.acquire("A", "lock:2")
    await world.acquire("A", "lock:3")
    await (world.crash() if crashed else world.stop())
    return world


def flip(data: bytes, at: int = 100) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def resign(leaf: bytes) -> bytes:
    """Change one character of the request's signature: still a well-formed leaf."""
    at = leaf.index(b'"signature":"') + 20
    return leaf[:at] + (b"B" if leaf[at] == ord("A") else b"A") + leaf[at + 1 :]


def other_signer() -> Signer:
    return Signer(key_of("another log"), key_of("receipt"), ORIGIN)


def _leaf(disk: MemoryDisk) -> None:
    disk.leaves[-1] = disk.leaves[-1].replace(b"write", b"wrote")


def _canonical_leaf(disk: MemoryDisk) -> None:
    disk.leaves[-1] = resign(disk.leaves[-1])


def _chain(disk: MemoryDisk) -> None:
    disk.leaves[-2] = resign(disk.leaves[-2])


def _number(disk: MemoryDisk) -> None:
    disk.leaves[-1] = disk.leaves[-1].replace(b'"seq":8', b'"seq":7').replace(b'"leaseId":"L8"', b'"leaseId":"L7"')


def _entry_missing(disk: MemoryDisk) -> None:
    disk.leaves.pop()


def _old_peak(disk: MemoryDisk) -> None:
    disk.hashes[14] = flip(disk.hashes[14], 3)


def _last_node(disk: MemoryDisk) -> None:
    disk.hashes[-1] = flip(disk.hashes[-1], 3)


def _nodes_missing(disk: MemoryDisk) -> None:
    disk.head = replace(_head(disk), size=10)
    disk.heads[-1] = disk.head


def _head(disk: MemoryDisk):  # type: ignore[no-untyped-def]  # the head, never None here
    assert disk.head is not None
    return disk.head


def _root(disk: MemoryDisk) -> None:
    disk.head = replace(_head(disk), root=bytes(32))


def _prev(disk: MemoryDisk) -> None:
    disk.head = replace(_head(disk), prev_hash=bytes(32))


def _time(disk: MemoryDisk) -> None:
    disk.head = replace(_head(disk), time_ms=_head(disk).time_ms - 1)


def _epoch(disk: MemoryDisk) -> None:
    disk.head = replace(_head(disk), epoch=0)


def _batch(disk: MemoryDisk) -> None:
    disk.heads.pop()


def _empty(disk: MemoryDisk) -> None:
    disk.head = None


def _genesis(disk: MemoryDisk) -> None:
    disk.leaves[0] = flip(disk.leaves[0])


def _record(disk: MemoryDisk) -> None:
    disk.records["ledger/token"] = (b'{"value":"many"}', None)


def _note_of_another_key(disk: MemoryDisk) -> None:
    size = _head(disk).size
    note = other_signer().sign_checkpoint(f"{ORIGIN}\n{size}\n{'A' * 43}=\n")
    disk.signed[size] = SignedBatch(size, note, disk.signed[size].signatures)


def _note_of_another_root(disk: MemoryDisk) -> None:
    size = _head(disk).size
    signer = Signer(key_of("log"), key_of("receipt"), ORIGIN)
    note = signer.sign_checkpoint(f"{ORIGIN}\n{size}\n{'A' * 43}=\n")
    disk.signed[size] = SignedBatch(size, note, disk.signed[size].signatures)


def _note_malformed(disk: MemoryDisk) -> None:
    size = _head(disk).size
    disk.signed[size] = SignedBatch(size, b"note", disk.signed[size].signatures)


DAMAGES: list[tuple[Callable[[MemoryDisk], None], str]] = [
    (_leaf, "entry 8 of the store is malformed"),
    (_canonical_leaf, "the head does not fit the last entry"),
    (_chain, "the chain is broken at entry 8"),
    (_number, "the chain is broken at entry 8"),
    (_entry_missing, "lacks|missing"),
    (_old_peak, "is not the head's"),
    (_last_node, "do not give the stored tree|is not the head's"),
    (_nodes_missing, "lacks"),
    (_root, "is not the head's"),
    (_prev, "the head does not fit"),
    (_time, "the head does not fit"),
    (_epoch, "the head does not fit"),
    (_batch, "no batch"),
    (_empty, "tallystick init"),
    (_genesis, "entry 0 of the store is not the one"),
    (_record, "a record"),
    (_note_of_another_key, "not signed by this log key"),
    (_note_of_another_root, "not of the tree beside it"),
    (_note_malformed, "malformed"),
]


@pytest.mark.parametrize(("damage", "text"), DAMAGES, ids=[damage.__name__.strip("_") for damage, _ in DAMAGES])
async def test_a_damaged_ledger_is_refused(damage: Callable[[MemoryDisk], None], text: str, tmp_path: Path) -> None:
    world = await stopped(tmp_path)
    damage(world.disk)
    before = list(world.disk.leaves)
    with pytest.raises(Fatal, match=text):
        await world.start()
    assert world.disk.leaves == before, "a refused start writes nothing"
    assert not world.disk.is_owned


async def test_keys_of_another_ledger_are_refused(tmp_path: Path) -> None:
    world = await stopped(tmp_path)
    own, world.signer = world.signer, other_signer()
    with pytest.raises(Fatal, match="use the keys of this ledger"):
        await world.start()
    world.signer = own
    await world.start()
    await world.stop()


async def test_a_clock_behind_the_ledger_is_refused_unless_an_operator_accepts_it(tmp_path: Path) -> None:
    world = await stopped(tmp_path)
    world.clock.jump(-2_001)
    with pytest.raises(Fatal, match="behind the ledger"):
        await world.start()
    world.is_clock_accepted = True
    await world.start()
    assert world.leaves()[-1].time_ms == world.leaves()[-3].time_ms, "log time waits"
    world.audit()
    await world.stop()


@pytest.mark.parametrize("engine", ENGINES)
async def test_signatures_lost_in_a_crash_are_made_again(engine: Engine, tmp_path: Path) -> None:
    world = await stopped(tmp_path, engine, crashed=True)
    store = world.open_store()
    (unsigned,) = store.load().unsigned
    assert store.entries(8, 9)[0].signature is None and unsigned.size == 9
    store.close()
    await world.start()
    kept = world.store.honest.entries(8, 9)[0]
    assert kept.signature == world.signer.sign_leaf(kept.leaf)
    world.audit()
    await world.stop()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", ["lost", "kept", "moved"])
async def test_a_start_survives_an_unclear_commit(engine: Engine, fault: str, tmp_path: Path) -> None:
    world = await stopped(tmp_path, engine)
    await world.start([("commit", fault)])  # type: ignore[list-item]  # a literal
    assert world.types(9) == ["service.started", "lease.holiday"]
    assert [leaf.epoch for leaf in world.leaves()[-3:]] == [1, 2, 2]
    world.audit()
    await world.stop()


async def test_a_busy_store_fails_the_start_and_nothing_happened(tmp_path: Path) -> None:
    world = await stopped(tmp_path)
    with pytest.raises(Busy):
        await world.start([("commit", "busy")])
    await world.start()
    assert world.types(9) == ["service.started", "lease.holiday"]
    await world.stop()


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_old_answer_is_found_again_with_its_own_checkpoint(engine: Engine, tmp_path: Path) -> None:
    world = World(tmp_path, engine)
    await world.start()
    first = await world.ask(acquire("A", FILE))
    for number in range(20):
        await world.acquire("A", f"lock:{number}")
    assert stored_answer(world.store, world.signer, first.seq, 200) == replace(first, is_replay=True)
    newest = await world.acquire("A", "lock:newest")  # not signed in the store yet
    assert stored_answer(world.store, world.signer, newest.seq, 200) == replace(newest, is_replay=True)
    with pytest.raises(Fatal, match="not in the store"):
        stored_answer(world.store, world.signer, 999, 200)
    await world.stop()


async def test_live_state_is_the_same_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, "sqlite")
    await world.start()
    await world.acquire("A", FILE)
    await world.acquire("B", FILE)
    before = dict(world.sequencer.view.scan(""))
    await world.restart()
    after = dict(world.sequencer.view.scan(""))
    assert after == before | {"ledger/holiday": Counter(world.clock.wall)}
    await world.stop()
