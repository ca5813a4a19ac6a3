"""`tallystick ledger fsck`: whatever value of a ledger file changes is found; what the leaves prove is made again."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.core.records import Lease
from gateway.errors import Fatal, StoreOwned
from gateway.fsck.check import Check, Folder, check_file, mend
from gateway.store.recent import decode_changes
from gateway.store.sqlite import SqliteStore
from keys.files import write_key
from tests.core.requests import (
    ORIGIN,
    accept,
    acquire,
    add,
    add_operator,
    admit,
    approved,
    batch,
    break_,
    did_of,
    give,
    key_note,
    key_of,
    plead,
    release,
    remove,
    renew,
    state_key,
    transfer,
    with_approvals,
)  # fmt: skip
from tests.web.world import make, world
from tests.world import World

SECRET = b"5e" * 32


@dataclass(frozen=True)
class Made:
    """A data directory with a sound ledger in it, which tests copy, and the world that made it."""

    data: Path
    world: World


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    data = tmp_path_factory.mktemp("sound")
    return Made(data, asyncio.run(_make(data)))


async def _make(data: Path) -> World:
    """Leases, refusals, places in line, batches, ends of every kind, keys that come and go: each kind of record."""
    world = World(data, "sqlite")
    async with world:
        for number in range(6):
            await world.acquire("A", f"lock:{number}")
        await _end_things(world)
        await _approve(world)
        await _change_keys(world)
        world.clock.advance(400_000)
        await world.settle()
        await world.acquire("B", "lock:9")
    (data / "keys").mkdir()
    for name in ("log", "log 2", "receipt", "receipt 2", "seal"):
        purpose = name.split(" ")[0]
        file = data / "keys" / f"{name.replace(' ', '.')}.key"
        write_key(file, sha256(name.encode()).digest(), SECRET, purpose=purpose)
        file.with_suffix(".pass").write_bytes(SECRET + b"\n")
        file.with_suffix(".pass").chmod(0o600)
    return world


async def _end_things(world: World) -> None:
    at_ms = world.clock.wall
    await world.acquire("B", "lock:0")
    await world.acquire("B", "lock:1", wait=True)
    await world.ask(release("A", "lock:2", at_ms=at_ms))
    await world.ask(batch("C", acquire("C", "lock:8"), release("C", "lock:8"), at_ms=at_ms))
    await world.ask(batch("C", acquire("C", "lock:8"), acquire("C", "lock:0"), at_ms=at_ms, isAtomic=True))
    leases = {one.resources[0]: one for _, one in world.sequencer.view.scan("lease/") if isinstance(one, Lease)}
    await world.ask(renew("A", leases["lock:5"].lease_id, at_ms=at_ms, mode="read"))
    given = leases["lock:3"]
    await world.ask(transfer("A", given.lease_id, given.fencing_token, did_of("B"), at_ms=at_ms))
    await world.ask(accept("B", given.lease_id, at_ms=at_ms))
    await world.ask(break_("op", "lock:4", leases["lock:4"].fencing_token, at_ms=at_ms))
    await world.ask(add("op", "D", at_ms=at_ms))
    await world.acquire("D", "lock:6")
    await world.acquire("D", "lock:1", wait=True)
    await world.ask(remove("op", "D", at_ms=at_ms))


async def test_a_request_that_was_sent_again_is_no_damage(tmp_path: Path) -> None:
    """It gets the answer of the first one and spends a nonce of its own, which no entry has."""
    async with world(tmp_path / "again", make(tmp_path / "again"), self_audit=False) as place:
        await place.agent("a")
        for _ in range(2):
            message = place.signed(place.agents["a"], "lease.acquire", idempotency_key="again", resource="lock:x")
            assert (await place.send(message)).status == 200
    check = check_file(Folder.of(tmp_path / "again"))
    assert check.is_sound, list(check.flaws.lines())


async def _approve(world: World) -> None:
    """Approvals that were used, by themselves and in a batch; one that is waited for, and one that came."""
    at_ms, genesis = world.clock.wall, world.leaves()[1].genesis.hex()
    await world.ask(add_operator("op", "op2", at_ms=at_ms))
    asks = [admit("A", name, at_ms=at_ms, mode="read", cost=n) for n, name in enumerate(("doc:x", "doc:y"))]
    asks = [with_approvals(one, approved("op2", one, genesis, at_ms=at_ms)) for one in asks]
    await world.ask(asks[0])
    await world.ask(batch("A", release("A", "lock:77"), asks[1], at_ms=at_ms))
    for _ in range(2):
        await world.ask(plead("A", "doc:x", of=["op2"], at_ms=at_ms))
    pending = plead("A", "doc:x", of=["op2"], at_ms=at_ms)
    last = max(key for key, _ in world.sequencer.view.scan("ask/"))
    given = await world.ask(give("op2", last.removeprefix("ask/"), approved("op2", pending, genesis), at_ms))
    assert given.status == 200


async def _change_keys(world: World) -> None:
    """Two log keys for a while, then the second alone; a new receipt key, the first of which is disowned."""
    genesis = world.genesis.hex()
    for purpose in ("log", "receipt"):
        world.signer.take(purpose, key_of(f"{purpose} 2"))
        note = key_note("announce", purpose, f"{purpose} 2", genesis)
        assert (await world.ask(state_key("op", "announce", note, at_ms=world.clock.wall))).status == 200
    await world.acquire("B", "lock:10")
    for verb, purpose in (("retire", "log"), ("compromise", "receipt")):
        note = key_note(verb, purpose, purpose, genesis)
        assert (await world.ask(state_key("op", verb, note, at_ms=world.clock.wall))).status == 200


@pytest.fixture
def folder(made: Made, tmp_path: Path) -> Folder:
    data = tmp_path / "data"
    shutil.copytree(made.data, data)
    return Folder.of(data)


def write(folder: Folder, change: Callable[[sqlite3.Connection], object]) -> None:
    """Change the file as somebody would who may write it: past the triggers, which are there again afterwards."""
    with closing(sqlite3.connect(folder.database, isolation_level=None)) as db:
        guards = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            db.execute(f"DROP TRIGGER {name}")
        change(db)
        for _, text in guards:
            db.execute(text)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def run(text: str, *values: object) -> Callable[[sqlite3.Connection], object]:
    def change(db: sqlite3.Connection) -> None:
        assert db.execute(text, values).rowcount == 1, text

    return change


def flip(table: str, column: str, where: str = "1", at: int = 0) -> Callable[[sqlite3.Connection], object]:
    """Change one byte of a blob."""

    def change(db: sqlite3.Connection) -> None:
        row, value = db.execute(f"SELECT rowid, {column} FROM {table} WHERE {where} LIMIT 1").fetchone()
        value = bytes(value)
        at_end = at % len(value)
        db.execute(
            f"UPDATE {table} SET {column} = ? WHERE rowid = ?",
            (value[:at_end] + bytes([value[at_end] ^ 1]) + value[at_end + 1 :], row),
        )

    return change


def fold(db: sqlite3.Connection) -> None:
    """Put what the journal holds into the table of records, as the store does in time."""
    newest = {}
    for rows, bodies in db.execute("SELECT rows, bodies FROM journal ORDER BY number"):
        newest.update({change[0]: change for change in decode_changes(rows, bodies)})
    db.executemany("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", [c for c in newest.values() if c[1] is not None])
    db.execute("DELETE FROM journal")


def folded(change: Callable[[sqlite3.Connection], object]) -> Callable[[sqlite3.Connection], object]:
    def both(db: sqlite3.Connection) -> None:
        fold(db)
        change(db)

    return both


def in_record(prefix: str, old: bytes, new: bytes) -> Callable[[sqlite3.Connection], object]:
    """Change a text within a record of one kind."""

    def change(db: sqlite3.Connection) -> None:
        fold(db)
        query = "SELECT key, value FROM record WHERE key GLOB ? AND instr(value, ?) LIMIT 1"
        key, value = db.execute(query, (f"{prefix}/*", old)).fetchone()
        db.execute("UPDATE record SET value = ? WHERE key = ?", (value.replace(old, new, 1), key))

    return change


FIRST = "seq = (SELECT min(seq) FROM entry WHERE instr(leaf, CAST('lock:1' AS BLOB)))"
LAST = "size = (SELECT max(size) FROM batch)"
# What is changed, how, the code that must be among the flaws, and whether `--repair` makes it good.
CASES: tuple[tuple[str, Callable[[sqlite3.Connection], object], str, bool], ...] = (
    ("entry.leaf", flip("entry", "leaf", "seq = 3", 40), "entry_changed", False),
    ("entry.leaf that still parses", run("UPDATE entry SET leaf = CAST(replace(CAST(leaf AS TEXT), 'lock:1',"
                                         " 'lock:7') AS BLOB) WHERE " + FIRST), "chain_broken", False),
    ("entry.leaf of the last one", flip("entry", "leaf", "seq = (SELECT max(seq) FROM entry)", 40), "entry_changed",
     False),
    ("entry.seq", run("UPDATE entry SET seq = 900 WHERE seq = 5"), "entry_missing", False),
    ("an entry deleted", run("DELETE FROM entry WHERE seq = 5"), "entry_missing", False),
    ("an entry beyond the end", run("INSERT INTO entry VALUES (900, x'7b7d')"), "row_stray", False),
    ("batch.size", run("UPDATE batch SET size = size + 100 WHERE size = 1"), "batch_missing", False),
    ("batch.first_seq", run("UPDATE batch SET first_seq = first_seq - 1 WHERE first_seq = 6"), "batch_missing", False),
    ("batch.root", flip("batch", "root", "first_seq = 6"), "root_differs", True),
    ("batch.root of the last one", flip("batch", "root", LAST), "root_differs", True),
    ("batch.time_ms", run("UPDATE batch SET time_ms = time_ms + 1 WHERE first_seq = 6"), "batch_differs", True),
    ("batch.epoch", run("UPDATE batch SET epoch = epoch + 1 WHERE first_seq = 6"), "batch_differs", True),
    ("batch.batch_id", run("UPDATE batch SET batch_id = '' WHERE first_seq = 6"), "batch_id_wrong", False),
    ("batch.batch_id, another's", run("UPDATE batch SET batch_id = 'opening' WHERE first_seq = 6"), "batch_id_wrong",
     False),
    ("batch.hashes", flip("batch", "hashes", "first_seq = 6", 33), "nodes_differ", True),
    ("batch.hashes cut", run("UPDATE batch SET hashes = substr(hashes, 1, 32) WHERE first_seq = 7"), "nodes_differ",
     True),
    ("batch.hashes gone", run("UPDATE batch SET hashes = x'' WHERE first_seq = 6"), "nodes_differ", True),
    ("a batch deleted", run("DELETE FROM batch WHERE first_seq = 6"), "batch_missing", False),
    ("signed.size", run("UPDATE signed SET size = size + 500 WHERE size = 7"), "note_missing", False),
    ("signed.note, text", flip("signed", "note", "size = 7", 3), "note_wrong", True),
    ("signed.note, signature", flip("signed", "note", "size = 7", -10), "note_wrong", True),
    ("signed.note of another size", run("UPDATE signed SET note = (SELECT note FROM signed WHERE size = 6)"
                                        " WHERE size = 7"), "note_wrong", True),
    ("signed.note, one line more", run("UPDATE signed SET note = CAST(CAST(note AS TEXT) || '— other AAAAAAAA' ||"
                                       " char(10) AS BLOB) WHERE size = 7"), "note_wrong", True),
    ("signed.note of the last one", flip("signed", "note", "size = (SELECT max(size) FROM signed)", 3), "note_wrong",
     True),
    ("signed.signatures", flip("signed", "signatures", "size = 7", 20), "signature_wrong", True),
    ("signed.signatures cut", run("UPDATE signed SET signatures = x'00' WHERE size = 7"), "signature_missing", True),
    ("a row of signed deleted", run("DELETE FROM signed WHERE size = 7"), "note_missing", True),
    ("head.size", run("UPDATE head SET size = size - 1"), "head_differs", False),
    ("head.root", flip("head", "root"), "head_differs", False),
    ("head.prev_hash", flip("head", "prev_hash"), "head_differs", False),
    ("head.time_ms", run("UPDATE head SET time_ms = time_ms + 1"), "head_differs", False),
    ("head.epoch", run("UPDATE head SET epoch = epoch + 1"), "head_differs", False),
    ("head.batch_id", run("UPDATE head SET batch_id = 'x'"), "head_differs", False),
    ("head.is_clean", run("UPDATE head SET is_clean = 7"), "head_differs", False),
    ("head.seal", flip("head", "seal"), "seal_broken", False),
    ("no head", run("DELETE FROM head"), "head_missing", False),
    ("journal.rows", flip("journal", "rows"), "journal_malformed", False),
    ("journal.bodies", flip("journal", "bodies"), "record_malformed", False),
    ("journal.bodies, longer", run("UPDATE journal SET bodies = CAST(bodies || x'20' AS BLOB) WHERE number = 2"),
     "journal_malformed", False),
    ("journal.number", run("UPDATE journal SET number = number + 100 WHERE number = 3"), "journal_malformed", False),
    ("record.key", folded(run("UPDATE record SET key = 'lease/L999' WHERE key = (SELECT min(key) FROM record WHERE key"
                              " GLOB 'lease/*')")), "record_differs", False),
    ("record.value, hot", in_record("lease", b'"ttlMs":', b'"ttlMs":1'), "seal_broken", False),
    ("record.value, a word", in_record("lease", b"lock:", b"lack:"), "record_differs", False),
    ("a hot record deleted", folded(run("DELETE FROM record WHERE key = (SELECT min(key) FROM record WHERE key GLOB"
                                        " 'scheme/*' OR key GLOB 'lease/*')")), "seal_broken", False),
    ("record.due_ms", folded(run("UPDATE record SET due_ms = due_ms + 1 WHERE key = (SELECT min(key) FROM record WHERE"
                                 " key GLOB 'idem/*')")), "due_differs", False),
    ("idempotency: seq", in_record("idem", b'"seq":', b'"seq":1'), "cold_record_differs", False),
    ("idempotency: status", in_record("idem", b'"status":200', b'"status":409'), "cold_record_differs", False),
    ("idempotency: fingerprint", in_record("idem", b'"fingerprint":"', b'"fingerprint":"0'), "cold_record_differs",
     False),
    ("nonce: seq", in_record("nonce", b'"seq":', b'"seq":1'), "cold_record_differs", False),
    ("ended: seq", in_record("ended", b'"seq":', b'"seq":1'), "cold_record_differs", False),
    ("burnt: seq", in_record("burnt", b'"seq":', b'"seq":1'), "cold_record_differs", False),
    ("ask: quorum", in_record("ask", b'"quorum":1', b'"quorum":2'), "record_differs", False),
    ("ask: an answer", in_record("ask", b'"declined":[]', b'"declined":["x"]'), "seal_broken", False),
    ("fading.keys", flip("fading", "keys"), "fading_malformed", False),
    ("fading.kind", run("UPDATE fading SET kind = 'x/' WHERE number = (SELECT max(number) FROM fading)"),
     "fading_malformed", False),
    ("fading.due_ms", run("UPDATE fading SET due_ms = due_ms + 1 WHERE number = (SELECT max(number) FROM fading)"),
     "fading_malformed", False),
    ("the schema: a view", lambda db: db.execute("DROP VIEW waits"), "schema_differs", False),
    ("the schema: a table more", lambda db: db.execute("CREATE TABLE more (x INTEGER) STRICT"), "schema_differs",
     False),
    ("the schema: its version", lambda db: db.execute("PRAGMA user_version = 1"), "schema_differs", False),
)  # fmt: skip


def test_a_sound_file_has_no_flaw(folder: Folder, made: Made) -> None:
    before = folder.database.read_bytes()
    check = check_file(folder)
    assert check.flaws.found == [] and check.is_sound and check.is_sealed
    assert check.origin == ORIGIN and check.proven == check.size > 15 and check.records > 20
    assert folder.database.read_bytes() == before, "a check writes nothing"


@pytest.mark.parametrize(("name", "change", "code", "is_mendable"), CASES, ids=[case[0] for case in CASES])
def test_a_changed_value_is_found_and_what_the_leaves_prove_is_made_again(
    folder: Folder, made: Made, name: str, change: Callable[[sqlite3.Connection], object], code: str, is_mendable: bool
) -> None:
    write(folder, change)
    check = check_file(folder)
    assert code in check.flaws.counts, list(check.flaws.lines())
    if is_mendable:
        before = untouched(folder)
        copy, count = mend(folder, check)
        assert copy.is_file() and count >= 1
        again = check_file(folder)
        assert again.flaws.found == [], list(again.flaws.lines())
        assert untouched(folder) == before, "leaves, head and records stay as they are"
        assert whole(folder) == whole(Folder.of(made.data)), "byte for byte what was there before"
    else:
        assert not all(flaw.is_mendable for flaw in check.flaws.found)


def untouched(folder: Folder) -> list[object]:
    with closing(sqlite3.connect(folder.database)) as db:
        return [db.execute(f"SELECT * FROM {name}").fetchall() for name in ("entry", "head", "record", "journal")]


def whole(folder: Folder) -> list[str]:
    with closing(sqlite3.connect(folder.database)) as db:
        return sorted(db.iterdump())


def telling(folder: Folder) -> list[object]:
    """Return what the file says: without names of old batches, numbers of rows, and values replaced since."""
    with closing(sqlite3.connect(folder.database)) as db:
        return [
            db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall(),
            db.execute("SELECT * FROM head").fetchall(),
            db.execute("SELECT * FROM entry").fetchall(),
            db.execute("SELECT size, first_seq, root, time_ms, epoch, hashes FROM batch").fetchall(),
            db.execute("SELECT * FROM signed").fetchall(),
            db.execute("SELECT * FROM live_record ORDER BY key").fetchall(),
            db.execute("SELECT due_ms, kind FROM fading").fetchall(),
        ]


def test_flipped_bytes_of_the_file_itself_are_found_or_are_of_nothing(folder: Folder, made: Made) -> None:
    """Anywhere in the file: SQLite's own pages, its free space, our values."""
    dice, sound, said = random.Random(7), folder.database.read_bytes(), telling(folder)
    for path in folder.database.parent.glob("*-wal"):
        path.unlink()
    found = 0
    for _ in range(300):
        at = dice.randrange(len(sound))
        folder.database.write_bytes(sound[:at] + bytes([sound[at] ^ (1 << dice.randrange(8))]) + sound[at + 1 :])
        check = check_file(folder)
        found += not check.is_sound
        if check.is_sound:
            assert telling(folder) == said, f"byte {at} changed something"
    assert found > 20


def test_leaves_that_no_signed_root_speaks_of_are_not_signed_again(folder: Folder) -> None:
    """A thief of the file who rewrites a leaf and every hash after it gets no signature for it."""
    write(folder, run("UPDATE entry SET leaf = CAST(replace(CAST(leaf AS TEXT), 'lock:1', 'lock:7') AS BLOB)"
                      " WHERE " + FIRST))  # fmt: skip
    write(folder, lambda db: db.execute("UPDATE batch SET hashes = zeroblob(length(hashes)), root = zeroblob(32)"))
    check = check_file(folder)
    assert check.proven <= 7, list(check.flaws.lines())
    before = whole(folder)
    mend(folder, check)
    with closing(sqlite3.connect(folder.database)) as db:
        after = db.execute("SELECT root FROM batch WHERE size = 8").fetchone()[0]
    assert after == bytes(32) and not check_file(folder).is_sound
    assert before != whole(folder), "what is older than the change was made again"


def test_a_running_gateway_is_checked_and_never_repaired(folder: Folder) -> None:
    store = SqliteStore(folder.database)
    try:
        assert check_file(folder).is_sound
        with pytest.raises(StoreOwned):
            mend(folder, Check(proven=5))
    finally:
        store.close()


async def test_a_repaired_ledger_starts_and_goes_on(folder: Folder) -> None:
    write(folder, flip("batch", "hashes", LAST, 5))
    again = World(folder.data, "sqlite")
    for purpose in ("log", "receipt"):
        again.signer.take(purpose, key_of(f"{purpose} 2"))
    with pytest.raises(Fatal):
        await again.start()
    mend(folder, check_file(folder))
    again.clock.advance(500_000)
    async with again:
        assert (await again.acquire("B", "lock:30")).status == 200
    assert check_file(folder).is_sound


def test_the_command_tells_each_flaw_what_to_do_and_mends(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    from gateway.__main__ import main

    data = str(folder.data)
    assert main(["ledger", "fsck", "--data", data]) == 0
    assert capsys.readouterr().out.endswith("\nsound\n")
    write(folder, flip("batch", "hashes", "first_seq = 6", 5))
    assert main(["ledger", "fsck", "--data", data]) == 1
    told = capsys.readouterr().out
    assert "nodes_differ at 7: " in told and "What to do about nodes_differ: stop the gateway and run" in told
    assert main(["ledger", "fsck", "--data", data, "--json"]) == 1
    (flaw,) = json.loads(capsys.readouterr().out)["flaws"]
    assert (flaw["code"], flaw["seq"], flaw["isRepairable"]) == ("nodes_differ", 7, True)
    assert main(["ledger", "fsck", "--data", data, "--repair"]) == 0
    assert "before-fsck-1 is the file as it was" in capsys.readouterr().err
    write(folder, run("DELETE FROM entry WHERE seq = 5"))
    assert main(["ledger", "fsck", "--data", data, "--repair"]) == 1
    assert "nothing of what is damaged can be made again" in capsys.readouterr().err


def test_a_mark_of_damage_is_told_and_goes_only_when_all_is_sound(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    from gateway.__main__ import main
    from gateway.damage import Damage, Marker

    marker, data = Marker(folder.data), str(folder.data)
    marker.write(Damage("chain_broken", "prev is wrong", 7, "2026-01-01"))
    marker.write(Damage("another", "later", 8, "2026-01-02"))
    assert marker.read() == Damage("chain_broken", "prev is wrong", 7, "2026-01-01"), "the first finding stays"
    assert main(["ledger", "fsck", "--data", data]) == 1
    assert "damage_marked at 7" in capsys.readouterr().out
    write(folder, flip("batch", "hashes", "first_seq = 6", 5))
    assert main(["ledger", "fsck", "--data", data, "--clear-damage"]) == 1 and marker.read()
    assert main(["ledger", "fsck", "--data", data, "--repair"]) == 1
    assert main(["ledger", "fsck", "--data", data, "--clear-damage"]) == 0 and marker.read() is None
    marker.path.write_text("{")
    assert marker.read() is not None, "a mark that can't be read is a mark"


@pytest.fixture(autouse=True)
def _nothing_is_left_open(folder: Folder) -> Iterator[None]:
    yield
    with closing(sqlite3.connect(folder.database, timeout=1)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.DatabaseError as error:
            assert "locked" not in str(error)


async def test_beside_a_busy_gateway_everything_is_sound(tmp_path: Path) -> None:
    made = make(tmp_path / "busy", rate_burst=100_000, rate_per_second=100_000)
    async with world(tmp_path / "busy", made, self_audit=False) as place:
        is_done, names = asyncio.Event(), [f"agent-{number}" for number in range(6)]
        for name in names:
            await place.agent(name)

        async def work(name: str, dice: random.Random) -> None:
            while not is_done.is_set():
                wish = dice.choice(("lease.acquire", "lease.release"))
                assert (await place.ask(name, wish, resource=f"lock:{dice.randrange(8)}")).status < 500

        workers = [asyncio.create_task(work(name, random.Random(name))) for name in names]
        sizes = []
        for _ in range(4):
            check = await asyncio.to_thread(check_file, Folder.of(place.folder))
            assert check.flaws.found == [], list(check.flaws.lines())
            assert check.is_sealed
            sizes.append(check.size)
        is_done.set()
        await asyncio.gather(*workers)
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1], "the ledger grew meanwhile"
