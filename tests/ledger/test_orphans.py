"""What a dead node left unsigned is signed by whoever notices, byte for byte as it would have been."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.errors import Busy, Fatal
from gateway.ledger.answers import stored_answer
from gateway.ledger.checkpoint import sign_orphan
from gateway.ledger.orphans import ORPHAN_MS, Orphans
from gateway.store.contract import StoredCheckpoint
from gateway.store.memory import MemoryDisk, MemoryStore
from tests.core.requests import acquire
from tests.ledger.nodes import end, nodes_on, shared_disk, started
from tests.world import World


def unsigned(disk: MemoryDisk) -> list[int]:
    return [head.size for head in disk.heads if head.size not in disk.signed]


async def test_a_dead_nodes_last_batch_is_signed_by_another_after_a_while(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    answer = await a.acquire("A", "lock:1")
    await a.crash()
    await b.acquire("B", "lock:2")
    await b.settle()
    assert unsigned(b.disk) == [answer.seq + 1], "its node may be alive and about to keep it"
    b.clock.advance(ORPHAN_MS // 2)
    await b.settle()
    assert unsigned(b.disk) == [answer.seq + 1]
    b.clock.advance(ORPHAN_MS)
    await b.settle()
    assert unsigned(b.disk) == []
    signed = b.disk.signed[answer.seq + 1]
    assert (signed.note, signed.signatures) == (answer.checkpoint, (answer.signature,))
    await a.start()
    await end([a, b])


async def test_a_start_signs_what_was_left_after_its_own_batch_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = nodes_on(tmp_path, 3)
    await a.start()
    await b.start()
    answers = [await a.acquire("A", "lock:1"), await b.acquire("B", "lock:2")]
    await a.crash()
    await b.crash()
    left = unsigned(a.disk)
    assert len(left) == 2
    signed_at: list[int] = []

    def sign(*args: object) -> object:
        signed_at.append(len(c.disk.leaves))
        return sign_orphan(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("gateway.ledger.orphans.sign_orphan", sign)
    await c.start()
    assert signed_at and min(signed_at) == answers[-1].seq + 3, "the start batch lies before"
    await c.settle()
    assert unsigned(c.disk) == []
    for answer in answers:
        assert c.disk.signed[answer.seq + 1].note == answer.checkpoint
    await a.start()
    await b.start()
    await end([a, b, c])


async def test_an_answer_without_a_kept_note_is_the_same_bytes_at_another_node(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    asked = acquire("A", "lock:1")
    answer = await a.ask(asked)
    await b.acquire("B", "lock:2")
    await b.acquire("C", "lock:3")
    assert answer.seq + 1 in unsigned(a.disk)
    again = await b.ask(asked.again())
    assert again == answer._replace(is_replay=True) and again.body() == answer.body()
    await end([a, b])


async def test_what_is_not_of_the_confirmed_tree_is_never_signed(tmp_path: Path) -> None:
    world = World(tmp_path, disk=shared_disk())
    await world.start()
    answer = await world.acquire("A", "lock:1")
    await world.acquire("A", "lock:2")
    store, confirmed = MemoryStore(world.disk), world.sequencer.confirmed
    batch = store.batch_at(answer.seq + 1)
    assert batch is not None
    signed = sign_orphan(world.signer, store, batch, confirmed.size, confirmed.root)
    assert (signed.note, signed.signatures) == (answer.checkpoint, (answer.signature,))
    lie = StoredCheckpoint(batch.first_seq, batch.size, bytes(32), None)
    with pytest.raises(Fatal, match="not of the tree that was confirmed"):
        sign_orphan(world.signer, store, lie, confirmed.size, confirmed.root)
    world.disk.leaves[answer.seq] = world.disk.leaves[answer.seq].replace(b"lock:1", b"lock:9")
    with pytest.raises(Fatal, match="not those that were committed"):
        sign_orphan(world.signer, store, batch, confirmed.size, confirmed.root)
    with pytest.raises(Busy, match="not_confirmed"):
        early = replace(confirmed, size=answer.seq, root=bytes(32))
        world.disk.signed.pop(answer.seq + 1, None)
        stored_answer(store, world.signer, early, answer.seq, 200)
    await world.stop()


def test_only_what_stays_unsigned_is_an_orphan() -> None:
    known = Orphans()
    one, two, own = (StoredCheckpoint(size - 1, size, bytes(32), None) for size in (5, 6, 7))
    assert known.is_time(0)
    assert known.due([one, own], {7}, 9, 0) == []
    assert not known.is_time(1)
    assert known.due([one, two, own], {7}, 9, ORPHAN_MS) == [one]
    assert known.due([two], (), 9, 2 * ORPHAN_MS) == [two]
    assert known.due([one], (), 9, 2 * ORPHAN_MS + 1) == [], "it was signed meanwhile, and is another time"
    assert known.due([two], (), 5, 9 * ORPHAN_MS) == [], "it is not confirmed"


async def test_a_store_that_is_busy_when_orphans_are_looked_for_is_asked_another_time(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    await a.acquire("A", "lock:1")
    await a.crash()
    b.store.unsigned = lambda: (_ for _ in ()).throw(Busy("away"))  # type: ignore[method-assign]
    await b.settle()
    assert b.sequencer.is_ready
    await asyncio.sleep(0)
    await a.start()
    await end([a, b])
