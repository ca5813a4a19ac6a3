"""A start believes nothing that it can compute: damage is refused with a text that says what was found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.records import Counter
from gateway.errors import Busy, Fatal
from gateway.ledger.history import stored_answer, stored_receipt
from gateway.signer import Signer
from gateway.store.contract import SignedBatch
from gateway.store.memory import MemoryDisk
from tests.core.requests import acquire, did_of, remove
from tests.world import ENGINES, Engine, World, signer_of

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
    return signer_of("another log", "receipt")


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
    note = other_signer().sign_checkpoint(size, bytes(32))
    disk.signed[size] = SignedBatch(size, note, disk.signed[size].signatures)


def _note_of_another_root(disk: MemoryDisk) -> None:
    size = _head(disk).size
    signer = signer_of("log", "receipt")
    note = signer.sign_checkpoint(size, bytes(32))
    disk.signed[size] = SignedBatch(size, note, disk.signed[size].signatures)


def _note_malformed(disk: MemoryDisk) -> None:
    size = _head(disk).size
    disk.signed[size] = SignedBatch(size, b"note", disk.signed[size].signatures)


def _signature(disk: MemoryDisk) -> None:
    size = _head(disk).size
    disk.signed[size] = replace(disk.signed[size], signatures=(bytes(64),))


def _signature_of_another_key(disk: MemoryDisk) -> None:
    size = _head(disk).size
    signer = signer_of("log", "another receipt")
    disk.signed[size] = replace(disk.signed[size], signatures=(signer.sign_leaf(size - 1, disk.leaves[-1]),))


def _signatures_of_earlier_batches(disk: MemoryDisk) -> None:
    """Whoever takes them away hopes that an entry he changed is signed anew."""
    disk.leaves[5] = resign(disk.leaves[5])
    for size in list(disk.signed):
        del disk.signed[size]


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
    (_note_of_another_key, "not signed by our log keys"),
    (_note_of_another_root, "not of the tree beside it"),
    (_note_malformed, "malformed"),
    (_signature, "over entry 8 is not by this receipt key"),
    (_signature_of_another_key, "over entry 8 is not by this receipt key"),
    (_signatures_of_earlier_batches, "signatures of batches before the last one are missing"),
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


# -- records -----------------------------------------------------------------------------------------------------------

A, B, C, OP = (did_of(name) for name in ("A", "B", "C", "op"))


async def lived_in(folder: Path, *, crashed: bool) -> World:
    """Return a stopped world with three leases of A, a refusal of B, and C removed. A's first lease is L6."""
    world = World(folder)
    await world.start()
    for name in ("lock:1", "lock:2", "lock:3"):
        await world.acquire("A", name)
    await world.acquire("B", "lock:1")
    await world.ask(remove("op", "C", world.clock.wall))
    await (world.crash() if crashed else world.stop())
    return world


def put(disk: MemoryDisk, key: str, old: bytes, new: bytes, *, to: str = "") -> None:
    """Edit a record as somebody with a database tool would."""
    value, due_ms = disk.records[key]
    assert old in value
    disk.records[to or key] = (value.replace(old, new), due_ms)


def drop(disk: MemoryDisk, *keys: str) -> None:
    for key in keys:
        del disk.records[key]


def _wait(disk: MemoryDisk) -> str:
    return next(key for key in disk.records if key.startswith("wait/"))


def _uncount(disk: MemoryDisk) -> None:
    drop(disk, "lease/L6")
    put(disk, f"principal/{A}", b'"held":3', b'"held":2')


def _earlier_seal(disk: MemoryDisk) -> None:
    disk.head = disk.heads[-1] = replace(_head(disk), seal=disk.heads[-2].seal)


def _no_seal(disk: MemoryDisk) -> None:
    disk.head = disk.heads[-1] = replace(_head(disk), seal=b"")


NO_ENTRY, NOT_LEFT = "says what no entry of the ledger says", "are not those that the last batch left"
EDITS: list[tuple[str, Callable[[MemoryDisk], object], str]] = [
    ("an operator more", lambda d: put(d, f"operator/{OP}", OP.encode(), B.encode(), to=f"operator/{B}"), "operators"),
    ("another operator", lambda d: put(d, f"operator/{OP}", OP.encode(), B.encode()), NO_ENTRY),
    ("no operator", lambda d: drop(d, f"operator/{OP}"), "operators"),
    ("an agent more", lambda d: put(d, f"agent/{A}", A.encode(), OP.encode(), to=f"agent/{OP}"), NO_ENTRY),
    ("an agent of another entry", lambda d: put(d, f"agent/{A}", b'"addedSeq":3', b'"addedSeq":4'), NO_ENTRY),
    ("an agent with another name", lambda d: put(d, f"agent/{A}", b'"name":', b'"name":"root","x":'), "malformed"),
    ("an agent less", lambda d: drop(d, f"agent/{A}"), NOT_LEFT),
    ("a removed agent back", lambda d: put(d, f"agent/{C}", b'"removedSeq":10', b'"removedSeq":null'), NOT_LEFT),
    ("an agent removed", lambda d: put(d, f"agent/{A}", b'"removedSeq":null', b'"removedSeq":10'), NO_ENTRY),
    ("a lease of another", lambda d: put(d, "lease/L6", A.encode(), B.encode()), NO_ENTRY),
    ("a lease with another token", lambda d: put(d, "lease/L6", b'"fencingToken":1', b'"fencingToken":2'), NO_ENTRY),
    ("a lease on another resource", lambda d: put(d, "lease/L6", b"lock:1", b"lock:9"), NO_ENTRY),
    ("a lease of another entry", lambda d: put(d, "lease/L6", b'"grantSeq":6', b'"grantSeq":7'), NO_ENTRY),
    ("a lease of an entry to come", lambda d: put(d, "lease/L6", b'"grantSeq":6', b'"grantSeq":600'), NO_ENTRY),
    ("a lease that ends early", lambda d: put(d, "lease/L6", b'"expiresAtMs":1', b'"expiresAtMs":'), NO_ENTRY),
    ("a lease for ever", lambda d: put(d, "lease/L6", b'"expiresAtMs":1', b'"expiresAtMs":99'), NOT_LEFT),
    ("a lease under another id", lambda d: put(d, "lease/L6", b"L6", b"L6", to="lease/L60"), NO_ENTRY),
    ("a lease in another mode", lambda d: put(d, "lease/L6", b'"mode":"write"', b'"mode":"read"'), NO_ENTRY),
    ("a lease that somebody gave", lambda d: put(d, "lease/L6", b'"giver":null', f'"giver":"{B}"'.encode()), NO_ENTRY),
    ("a lease less", lambda d: drop(d, "lease/L6"), NO_ENTRY),
    ("a lease less, and not counted", lambda d: _uncount(d), NOT_LEFT),
    ("nothing counted", lambda d: drop(d, f"principal/{A}"), NO_ENTRY),
    ("more counted", lambda d: put(d, f"principal/{A}", b'"held":3', b'"held":4'), NO_ENTRY),
    ("more trust", lambda d: put(d, f"principal/{A}", b'"trust":50000', b'"trust":99000'), NO_ENTRY),
    ("another's count", lambda d: put(d, f"principal/{A}", b"{", b"{", to=f"principal/{B}"), NO_ENTRY),
    ("a lower token", lambda d: put(d, "ledger/token", b'"value":1', b'"value":'), NO_ENTRY),
    ("a higher token", lambda d: put(d, "ledger/token", b'"value":1', b'"value":2'), NOT_LEFT),
    ("no token", lambda d: drop(d, "ledger/token"), NO_ENTRY),
    ("another holiday", lambda d: put(d, "ledger/holiday", b'"value":1', b'"value":9'), NOT_LEFT),
    ("a dispute", lambda d: d.records.update({"ledger/dispute": (b'{"seq":3}', None)}), NO_ENTRY),
    ("a refusal less", lambda d: drop(d, _wait(d)), NOT_LEFT),
    ("more refusals", lambda d: put(d, _wait(d), b'"waits":1', b'"waits":99'), NOT_LEFT),
    ("the seal of an earlier batch", _earlier_seal, NOT_LEFT),
    ("no seal", _no_seal, NOT_LEFT),
]


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize(("edit", "text"), [row[1:] for row in EDITS], ids=[row[0] for row in EDITS])
async def test_a_record_that_somebody_changed_is_refused(
    edit: Callable[[MemoryDisk], object], text: str, crashed: bool, tmp_path: Path
) -> None:
    world = await lived_in(tmp_path, crashed=crashed)
    edit(world.disk)
    head = world.disk.head
    with pytest.raises(Fatal, match=text):
        await world.start()
    assert world.disk.head == head and len(world.disk.signed) == len(world.disk.heads) - crashed, "nothing was written"


async def test_records_of_a_ledger_that_was_only_opened_are_its_operators(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.disk.records["ledger/token"] = (b'{"value":5}', None)
    with pytest.raises(Fatal, match="entry 0 alone"):
        await world.start()


@pytest.mark.parametrize("is_dropped", [False, True], ids=["still there", "dropped by the store"])
async def test_a_refusal_that_counts_no_more_may_be_there_or_not(is_dropped: bool, tmp_path: Path) -> None:
    world = await lived_in(tmp_path, crashed=False)
    await world.start()
    world.clock.advance(120_000)
    await world.acquire("A", "lock:4")
    await world.crash()
    if is_dropped:
        drop(world.disk, _wait(world.disk))
    await world.start()
    world.audit()
    await world.stop()


async def test_records_edited_behind_a_running_gateway_are_noticed_at_its_next_start(tmp_path: Path) -> None:
    world = World(tmp_path, "sqlite")
    await world.start()
    await world.acquire("A", FILE)
    await world.restart()
    await world.acquire("B", "lock:b")
    await world.stop()
    with sqlite3.connect(world.path) as db:
        for number, rows in db.execute("SELECT number, rows FROM journal").fetchall():
            db.execute("UPDATE journal SET rows = ? WHERE number = ?", (rows.replace(b"lease/L6", b"lease/X6"), number))
    db.close()
    with pytest.raises(Fatal, match=NO_ENTRY):
        await world.start()


# -- what is read back -------------------------------------------------------------------------------------------------


def drop_triggers(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
    db.close()


SPOILT = [
    ("a flipped entry", ["UPDATE entry SET leaf = CAST(replace(leaf, 'A', 'B') AS BLOB) WHERE seq = 6"]),
    ("a missing entry", ["DELETE FROM entry WHERE seq = 6"]),
    ("a flipped signature", ["UPDATE signed SET signatures = zeroblob(64) WHERE size = 7"]),
    (
        "a flipped entry without its signature",
        ["UPDATE entry SET leaf = CAST(replace(leaf, 'A', 'B') AS BLOB) WHERE seq = 6", "DELETE FROM signed"],
    ),
    ("a flipped node", ["UPDATE batch SET hashes = zeroblob(length(hashes)) WHERE size = 8"]),
]


@pytest.mark.parametrize("statements", [row[1] for row in SPOILT], ids=[row[0] for row in SPOILT])
async def test_what_was_spoilt_is_never_served(
    statements: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, "sqlite")
    await world.start()
    asked = acquire("A", FILE)
    first = await world.ask(asked)
    assert first.seq == 6
    for number in range(4):
        await world.acquire("A", f"lock:{number}")
    confirmed = world.sequencer.confirmed
    place = {"seq": 6, "size": confirmed.size}
    assert b'"payload":' in stored_receipt(world.store.honest, world.signer, **place, note=confirmed.note)
    drop_triggers(world.path, *statements)
    monkeypatch.setattr(Signer, "sign_leaf", lambda self, seq, leaf: pytest.fail("what does not hold is not signed"))
    with pytest.raises(Fatal):
        stored_receipt(world.store.honest, world.signer, **place, note=confirmed.note)
    if "hashes" not in statements[0]:  # that node is no part of the first proof
        with pytest.raises(Busy, match="answer_unreadable"):
            await world.ask(asked.again())
    monkeypatch.undo()
    assert (await world.acquire("B", "lock:b")).status == 200
    await world.stop()


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
    assert kept.signature == world.signer.sign_leaf(8, kept.leaf)
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
    again = stored_answer(world.store, world.signer, world.sequencer.confirmed, first.seq, 200)
    assert again == first._replace(is_replay=True)
    newest = await world.acquire("A", "lock:newest")  # not signed in the store yet
    again = stored_answer(world.store, world.signer, world.sequencer.confirmed, newest.seq, 200)
    assert again == newest._replace(is_replay=True)
    with pytest.raises(Fatal, match="not in the store"):
        stored_answer(world.store, world.signer, world.sequencer.confirmed, 999, 200)
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
