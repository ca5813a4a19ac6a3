"""Every exercise on every engine, and what only one engine has."""

from __future__ import annotations

import ast
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import Busy, Fatal, StoreOwned, Unknown
from gateway.store import contract
from gateway.store.contract import Reading, Store, StoredEntry, Upkeep, node_count, node_position
from gateway.store.memory import MemoryDisk, MemoryReader, MemoryStore
from gateway.store.recent import SEAL_KEYS
from gateway.store.sqlite import RESERVE_BYTES, Reader, SqliteStore, has_wal_reset_bug
from tests.pg.conftest import database_url
from tests.store.exercise import EXERCISES, Engine, Exercise, Writer, records, signatures
from tests.store.exercise_shared import SHARED, exercises_of
from tests.store.postgres import Postgres

__all__ = ["database_url"]


class Memory:
    is_shared = False

    def __init__(self, folder: Path) -> None:
        self.disk = MemoryDisk(is_shared=self.is_shared)

    def open(self) -> Store:
        return MemoryStore(self.disk)

    def read(self) -> Reading:
        return MemoryReader(self.disk)


class SharedMemory(Memory):
    is_shared = True


class Sqlite:
    is_shared = False

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.sqlite3"

    def open(self) -> SqliteStore:
        return SqliteStore(self.path, may_create=True)

    def read(self) -> Reader:
        return Reader(self.path)


ENGINES: tuple[type[Memory] | type[Sqlite], ...] = (Memory, SharedMemory, Sqlite)
CASES = [(engine, one) for engine in ENGINES for one in exercises_of(engine.is_shared)]


@pytest.mark.parametrize(("engine", "one"), CASES, ids=[f"{e.__name__}-{x.__name__}" for e, x in CASES])
def test_the_engine_keeps_the_promise(engine: type[Memory] | type[Sqlite], one: Exercise, tmp_path: Path) -> None:
    disk: Engine = engine(tmp_path)
    one(disk)


@pytest.mark.postgres
@pytest.mark.parametrize("one", exercises_of(True), ids=lambda one: one.__name__)
def test_postgresql_keeps_the_promise(one: Exercise, database_url: str) -> None:
    one(Postgres(database_url))


def test_no_exercise_is_missing() -> None:
    assert (len(EXERCISES), len(SHARED)) == (23, 10)
    assert len({one.__name__ for one in exercises_of(True)}) == 33


def test_every_method_of_the_contract_is_exercised() -> None:
    text = Path(__file__).with_name("exercise.py").read_text("utf-8")
    methods = {name for kind in (contract.Store, contract.Reading) for name in vars(kind) if name[0] != "_"}
    assert {name for name in methods if f".{name}" not in text} == {"durability"}


def test_no_test_of_a_store_can_be_skipped() -> None:
    """It runs, or fails for want of a server: one that is passed over looks like one that ran."""
    words = ("skip", "xfail", "importorskip")
    for file in Path(__file__).parent.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Attribute)]
        assert not [node.attr for node in calls if node.attr.startswith(words)], file.name


def test_hashes_are_numbered_in_the_order_they_become_complete() -> None:
    order = []
    for size in range(1, 65):
        level, index = 0, size - 1
        order.append((level, index))
        while index & 1:
            level, index = level + 1, index >> 1
            order.append((level, index))
        assert node_count(size) == len(order)
    assert [node_position(*node) for node in order] == list(range(len(order)))


# -- SQLite ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "ledger.sqlite3", may_create=True)
    yield store
    store.close()


def test_a_missing_ledger_is_never_made_by_accident(tmp_path: Path) -> None:
    for opened in (SqliteStore, Reader):
        with pytest.raises(Fatal, match="tallystick init"):
            opened(tmp_path / "absent.sqlite3")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(b"this is not a database, however long it may be" * 100)
    with pytest.raises(Fatal, match="can't be opened as a ledger"):
        SqliteStore(path)


@pytest.mark.parametrize("rows", [b"no json", b"[1]", b"[[1, 2]]"])
def test_a_malformed_journal_is_refused(rows: bytes, tmp_path: Path, store: SqliteStore) -> None:
    Writer().write(store, 1, changes=[("a/1", b"one", None)])
    store._db.execute("UPDATE journal SET rows = ?", (rows,))
    with pytest.raises(Fatal, match="row 1 of its journal is malformed"):
        store.load()
    store.close()
    for _ in range(2):
        with pytest.raises(Fatal, match="can't be opened as a ledger: row 1 of its journal is malformed"):
            SqliteStore(tmp_path / "ledger.sqlite3")


def test_a_ledger_of_a_newer_gateway_is_refused(tmp_path: Path, store: SqliteStore) -> None:
    store.close()
    with sqlite3.connect(tmp_path / "ledger.sqlite3") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(Fatal, match="version 99"):
        SqliteStore(tmp_path / "ledger.sqlite3")


def test_the_owner_is_named_across_processes(tmp_path: Path, store: SqliteStore) -> None:
    code = (
        "import sys; from pathlib import Path; from gateway.store.sqlite import SqliteStore\n"
        "from gateway.errors import StoreOwned\n"
        "try: SqliteStore(Path(sys.argv[1]))\n"
        "except StoreOwned as owned: print(owned)"
    )
    root = Path(__file__).parents[2]
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "ledger.sqlite3")],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"process {os.getpid()}" in shown and "another data directory" in shown


def test_a_second_owner_in_one_process_is_refused(tmp_path: Path, store: SqliteStore) -> None:
    with pytest.raises(StoreOwned):
        SqliteStore(tmp_path / "ledger.sqlite3")


def test_the_owner_is_found_whatever_name_the_file_is_given(tmp_path: Path, store: SqliteStore) -> None:
    """Two gateways on one file would each keep a log of their own beside it."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "ledger.sqlite3").symlink_to(tmp_path / "ledger.sqlite3")
    (tmp_path / "name").symlink_to(tmp_path, target_is_directory=True)
    for other in (folder / "ledger.sqlite3", tmp_path / "name" / "ledger.sqlite3", folder / ".." / "ledger.sqlite3"):
        with pytest.raises(StoreOwned):
            SqliteStore(other)
    assert [file.name for file in folder.iterdir()] == ["ledger.sqlite3"]
    store.close()
    SqliteStore(folder / "ledger.sqlite3").close()


def test_a_commit_is_fsynced_and_only_this_connection_checkpoints(store: SqliteStore) -> None:
    pragmas = {
        name: store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "mmap_size")
    }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "mmap_size": 0}


def test_a_reader_can_not_write(tmp_path: Path, store: SqliteStore) -> None:
    reader = Reader(tmp_path / "ledger.sqlite3")
    with pytest.raises(sqlite3.OperationalError):
        reader._db.execute("DELETE FROM record")
    reader.close()


def test_a_reader_needs_no_gateway(tmp_path: Path, store: SqliteStore) -> None:
    writer = Writer()
    writer.write(store, 3)
    store.close()
    reader = Reader(tmp_path / "ledger.sqlite3")
    assert reader.head() == writer.head
    assert [entry.leaf for entry in reader.entries(0, 9)] == writer.leaves
    reader.close()


@pytest.mark.parametrize("statement", ["UPDATE {} SET {} = {}", "DELETE FROM {}"])
@pytest.mark.parametrize(("table", "column"), [("entry", "leaf"), ("batch", "root"), ("signed", "note")])
def test_history_can_not_be_changed_by_mistake(store: SqliteStore, statement: str, table: str, column: str) -> None:
    writer = Writer()
    first = writer.write(store, 1)
    store.keep(Upkeep(signed=(signatures(first),)))
    with pytest.raises(sqlite3.IntegrityError, match="never"):
        store._db.execute(statement.format(table, column, column))


def test_a_full_disk_is_busy_changes_nothing_and_reads_go_on(store: SqliteStore) -> None:
    writer = Writer()
    writer.write(store, 2, changes=[("a/1", b"one", None)])
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    huge = writer.batch(1, [("a/2", bytes(400_000), None)])
    for _ in range(2):
        with pytest.raises(Busy) as busy:
            store.commit(huge, writer.head)
        assert (busy.value.reason, busy.value.retry_after_s) == ("disk_full", 5)
        with pytest.raises(Busy):
            store.keep(Upkeep(changes=(("a/2", bytes(400_000), None),)))
    assert store.load().head == writer.head
    assert store.entries(0, 9) == [StoredEntry(at, leaf, None) for at, leaf in enumerate(writer.leaves)]
    assert records(store) == {"a/1": b"one"}
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.commit(huge, writer.head)
    assert store.load().head == huge.head


def test_below_the_reserve_nothing_is_decided(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer()
    writer.write(store, 1)
    real = os.statvfs

    def nearly_full(path: object) -> object:
        found = real(path)  # type: ignore[arg-type]  # passes through
        return os.statvfs_result((*found[:4], (RESERVE_BYTES - 1) // found.f_frsize, *found[5:]))

    monkeypatch.setattr(os, "statvfs", nearly_full)
    with pytest.raises(Busy, match="disk_full"):
        store.commit(writer.batch(1), writer.head)
    assert store.load().head == writer.head
    monkeypatch.undo()
    writer.write(store, 1)


def test_only_the_owner_can_read_the_file(tmp_path: Path, store: SqliteStore) -> None:
    Writer().write(store, 1)
    modes = {file.name.removeprefix("ledger.sqlite3"): file.stat().st_mode & 0o077 for file in tmp_path.iterdir()}
    assert modes == {"": 0, "-wal": 0, "-shm": 0, ".lock": 0}


def test_a_store_that_can_not_be_read_is_fatal(store: SqliteStore) -> None:
    Writer().write(store, 1)
    store._db.close()
    reads = [
        lambda: store.entries(0, 1),
        lambda: store.nodes([(0, 0)]),
        lambda: store.batch_of(0),
        lambda: store.last_note(1),
        lambda: list(store.records(["a/"])),
        lambda: store.load(),
    ]
    for read in reads:
        with pytest.raises(Fatal, match="can't be read"):
            read()  # type: ignore[no-untyped-call]  # a table of calls


def test_a_file_locked_by_another_program_is_busy(tmp_path: Path, store: SqliteStore) -> None:
    writer = Writer()
    store._db.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Busy, match="store_busy"):
        store.commit(writer.batch(1), None)
    other.execute("ROLLBACK")
    other.close()
    writer.write(store, 1)


class _BrokenCommit:
    """A connection whose COMMIT fails, before or after it was done."""

    def __init__(self, db: sqlite3.Connection, is_done_first: bool, code: int = sqlite3.SQLITE_IOERR) -> None:
        self._db = db
        self._is_done_first = is_done_first
        self._error = sqlite3.OperationalError("planned")
        self._error.sqlite_errorcode = code

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if statement == "COMMIT":
            if self._is_done_first:
                self._db.execute("COMMIT")
            raise self._error
        return self._db.execute(statement, *values)  # type: ignore[arg-type]  # passes through

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


@pytest.mark.parametrize("is_done_first", [False, True], ids=["lost", "kept"])
def test_a_failed_commit_is_unknown_until_a_new_connection_has_looked(store: SqliteStore, is_done_first: bool) -> None:
    writer = Writer()
    writer.write(store, 1)
    batch = writer.batch(2)
    store._db = _BrokenCommit(store._db, is_done_first)  # type: ignore[assignment]  # a fault
    with pytest.raises(Unknown):
        store.commit(batch, writer.head)
    assert store.landed(batch.head.batch_id) is is_done_first
    assert store.load().head == (batch.head if is_done_first else writer.head)
    if is_done_first:
        writer.take(batch)
    writer.write(store, 1)
    assert [entry.leaf for entry in store.entries(0, 9)] == writer.leaves


def test_a_disk_that_is_full_at_the_commit_is_busy_and_the_same_connection_goes_on(store: SqliteStore) -> None:
    writer = Writer()
    writer.write(store, 1)
    real = store._db
    store._db = _BrokenCommit(real, False, sqlite3.SQLITE_FULL)  # type: ignore[assignment]  # a fault
    with pytest.raises(Busy, match="disk_full"):
        store.commit(writer.batch(2), writer.head)
    store._db = real
    assert not real.in_transaction and store.load().head == writer.head
    writer.write(store, 1)
    assert [entry.leaf for entry in store.entries(0, 9)] == writer.leaves


@pytest.mark.parametrize("is_done_first", [False, True], ids=["lost", "kept"])
def test_failed_upkeep_is_unknown_and_can_be_repeated(store: SqliteStore, is_done_first: bool) -> None:
    upkeep = Upkeep(changes=(("a/1", b"one", None),))
    store._db = _BrokenCommit(store._db, is_done_first)  # type: ignore[assignment]  # a fault
    with pytest.raises(Unknown):
        store.keep(upkeep)
    store.keep(upkeep)
    assert records(store) == {"a/1": b"one"}


def test_the_journal_is_folded_in_lots_and_stays_bounded(store: SqliteStore) -> None:
    writer, rows, held = Writer(), [], []
    for number in range(150):
        writer.write(store, 1, changes=[(f"a/{number}-{at}", b"x", None) for at in range(300)])
        rows.append(store._db.execute("SELECT count(*) FROM journal").fetchone()[0])
        held.append(len(store._recent))
    assert max(rows) * 300 <= 2 * (SEAL_KEYS + 300) and max(held) <= 2 * (SEAL_KEYS + 300)
    folded = store._db.execute("SELECT count(*) FROM record").fetchone()[0]
    assert 150 * 300 - folded <= len(store._recent), "what memory lost is in the table"
    assert len(records(store)) == 150 * 300


def test_a_record_that_came_and_went_never_touches_the_table(store: SqliteStore) -> None:
    writer = Writer()
    for number in range(SEAL_KEYS // 100):
        keys = [f"a/{number}-{at}" for at in range(100)]
        writer.write(store, 1, changes=[(key, b"x", None) for key in keys])
        writer.write(store, 1, changes=[(key, None, None) for key in keys])
    for number in range(80):
        writer.write(store, 1, changes=[(f"b/{number}", b"x", None)])
    assert store._db.execute("SELECT count(*) FROM record WHERE key LIKE 'a/%'").fetchone()[0] == 0
    assert len(store._recent) < SEAL_KEYS and len(records(store)) == 80


@pytest.mark.parametrize("is_done_first", [False, True], ids=["lost", "kept"])
def test_a_failed_commit_counts_nothing_into_memory_that_is_not_on_the_disk(
    store: SqliteStore, is_done_first: bool
) -> None:
    writer = Writer()
    writer.write(store, 1, changes=[("a/1", b"one", None), ("a/2", b"two", None)])
    batch = writer.batch(1, [("a/1", None, None), ("a/3", b"three", None)])
    store._db = _BrokenCommit(store._db, is_done_first)  # type: ignore[assignment]  # a fault
    with pytest.raises(Unknown):
        store.commit(batch, writer.head)
    store.landed(batch.head.batch_id)
    assert records(store) == ({"a/2": b"two", "a/3": b"three"} if is_done_first else {"a/1": b"one", "a/2": b"two"})


def test_what_is_due_is_listed_once_and_taken_off_the_list(store: SqliteStore) -> None:
    writer = Writer()
    writer.write(store, 1, changes=[(f"a/{at}", b"x", at // 2) for at in range(10)])
    assert store._db.execute("SELECT count(*) FROM fading").fetchone()[0] == 5
    upkeep = Upkeep(forget_prefixes=("a/",), forget_due_ms=9, forget_max=3)
    assert [store.keep(upkeep) for _ in range(5)] == [3, 3, 3, 1, 0]
    assert store._db.execute("SELECT count(*) FROM fading").fetchone()[0] == 0


def test_the_log_is_checkpointed_at_idle(tmp_path: Path, store: SqliteStore) -> None:
    writer = Writer()
    for number in range(150):
        writer.write(store, 1, changes=[("a/1", bytes([number]) * 240_000, None)])
    wal = tmp_path / "ledger.sqlite3-wal"
    before = wal.stat().st_size
    store.keep(Upkeep())
    writer.write(store, 1)
    assert before > 1 << 25 and wal.stat().st_size == before, "after a checkpoint the log is written from its start"
    assert (tmp_path / "ledger.sqlite3").stat().st_size > 60_000


def test_a_backup_is_a_ledger_of_one_moment(tmp_path: Path, store: SqliteStore) -> None:
    writer = Writer()
    writer.write(store, 3)
    reader = Reader(tmp_path / "ledger.sqlite3")
    reader.backup(tmp_path / "copy.sqlite3")
    reader.close()
    writer.write(store, 1)
    copy = Reader(tmp_path / "copy.sqlite3")
    assert [entry.leaf for entry in copy.entries(0, 9)] == writer.leaves[:3]
    copy.close()


def test_versions_with_the_wal_reset_bug_are_known() -> None:
    bad = [(3, 7, 0), (3, 40, 1), (3, 44, 5), (3, 50, 6), (3, 51, 2)]
    good = [(3, 6, 23), (3, 44, 6), (3, 50, 7), (3, 51, 3), (3, 54, 1)]
    assert [has_wal_reset_bug(version) for version in bad + good] == [True] * 5 + [False] * 5
