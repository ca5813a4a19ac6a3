"""The default engine: one SQLite file, one writer.

House rules of this file:

* Exactly one connection writes and checkpoints, and only the sequencer's worker thread uses it. Everybody else reads
  through a `Reader` (read-only, short statements, never an open transaction), so no reader stops a checkpoint.
* A lock on the file beside the database keeps a second gateway out and names the first. The compare-and-set on the
  head row would refuse its writes even without that lock.
* WAL with `synchronous=FULL`: a COMMIT returns after the fsync. `BEGIN IMMEDIATE` always, because a deferred
  transaction that turns into a writer fails without waiting.
* Checkpoints are taken at idle (`keep`); the automatic one is a ceiling on the WAL, not the habit.
* sqlite-utils sets up the schema and nothing else: it commits on every write.

Life of an entry: `lock` (a comparison in memory, and one SELECT of what memory doesn't know) → `commit`: BEGIN
IMMEDIATE, UPDATE head where size, root and epoch are the expected ones, INSERT entries, INSERT batch, INSERT signatures
of the batch before, INSERT the record changes into the journal, fold some older ones into their table (`recent.py`),
COMMIT → one fsync.
Source: docs/architecture.md, store; https://sqlite.org/wal.html.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import sqlite_utils

from gateway.errors import Busy, Fatal, HeadMoved, StoreOwned, Unknown
from gateway.store.contract import (
    HASH_BYTES,
    SIGNATURE_BYTES,
    Loaded,
    Locked,
    RecordChange,
    SignedBatch,
    StoredBatch,
    StoredCheckpoint,
    StoredEntry,
    StoredHead,
    Upkeep,
    node_count,
    node_position,
)
from gateway.store.recent import Recent, decode_changes, encode_changes, group_by_due, kind_of

WAL_PAGES_MAX = 16_384  # 64 MiB: reached only by a gateway that is never idle
WAL_BYTES_IDLE = 1 << 25  # 32 MiB: a smaller WAL is not worth a checkpoint, and a page changes often in a larger one
CACHE_KIB = 32_768  # the working set of a few million records; the 2 MiB default re-reads pages on every batch
LANDED_LOOKBACK = 64  # batches: `landed` is asked at once, by the only writer
RESERVE_BYTES = 1 << 25  # 32 MiB: half a WAL; below it nothing is decided
RETRY_DISK_S = 5
MOVED = ".moved"  # the end of the name of a file whose ledger went on in a database
# What SQLite says when it did nothing because the world is in the way; anything else is a broken store.
_NOTHING_HAPPENED = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
    }
)
_BATCH = "SELECT batch.first_seq, batch.size, batch.root, signed.note FROM batch LEFT JOIN signed USING (size) "
_UPSERT = (
    "INSERT INTO record (key, value, due_ms) VALUES (?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, due_ms = excluded.due_ms"
)
_MOVE_HEAD = (
    "UPDATE head SET size = ?, root = ?, prev_hash = ?, time_ms = ?, epoch = ?, batch_id = ?, seal = ?, is_clean = 0"
    " WHERE one = 1 AND size = ? AND root = ? AND epoch = ?"
)
_FIRST_HEAD = (
    "INSERT OR IGNORE INTO head (one, size, root, prev_hash, time_ms, epoch, batch_id, seal, is_clean)"
    " VALUES (1, ?, ?, ?, ?, ?, ?, ?, 0)"
)
_log = logging.getLogger("tallystick.store")


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Say whether this SQLite can lose commits when two connections write and checkpoint (we use one)."""
    return (3, 7, 0) <= version <= (3, 51, 2) and version not in {(3, 50, 7), (3, 44, 6)}


class _Reading:
    """The reading half, on any connection."""

    _db: sqlite3.Connection

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Busy while the disk is in the way, Fatal when the store is broken."""
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise busy_or_fatal(error, "the store can't be read") from error

    def entries(self, start: int, stop: int) -> list[StoredEntry]:
        leaves = self._rows("SELECT seq, leaf FROM entry WHERE seq >= ? AND seq < ?", (start, stop))
        signatures = self._signatures(start, stop) if leaves else {}
        return [StoredEntry(seq, leaf, signatures.get(seq)) for seq, leaf in leaves]

    def _signatures(self, start: int, stop: int) -> dict[int, bytes]:
        rows = self._rows(
            "SELECT first_seq, signatures FROM batch JOIN signed USING (size)"
            " WHERE size > ? AND size <= ifnull((SELECT min(size) FROM batch WHERE size >= ?), ?) ORDER BY size",
            (start, stop, stop),
        )
        return {
            first_seq + at: joined[at * SIGNATURE_BYTES : (at + 1) * SIGNATURE_BYTES]
            for first_seq, joined in rows
            for at in range(len(joined) // SIGNATURE_BYTES)
        }

    def nodes(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        found: dict[tuple[int, int], bytes] = {}
        first = stop = 0  # positions held in `hashes`
        hashes = b""
        for position, node in sorted((node_position(*node), node) for node in wanted):
            if not first <= position < stop:
                last_leaf = ((node[1] + 1) << node[0]) - 1
                query = "SELECT first_seq, hashes FROM batch WHERE size > ? ORDER BY size LIMIT 1"
                rows = self._rows(query, (last_leaf,))
                if not rows:
                    break  # beyond the tree, and so is every later position
                first, hashes = node_count(rows[0][0]), rows[0][1]
                stop = first + len(hashes) // HASH_BYTES
            offset = (position - first) * HASH_BYTES
            found[node] = hashes[offset : offset + HASH_BYTES]
        return found

    def batch_of(self, seq: int) -> StoredCheckpoint | None:
        return self._batch("WHERE size > ? ORDER BY size LIMIT 1", seq)

    def batch_at(self, size: int) -> StoredCheckpoint | None:
        return self._batch("WHERE size = ?", size)

    def _batch(self, where: str, number: int) -> StoredCheckpoint | None:
        rows = self._rows(_BATCH + where, (number,))
        return StoredCheckpoint(*rows[0]) if rows else None

    def last_note(self, size_max: int) -> bytes | None:
        rows = self._rows("SELECT note FROM signed WHERE size <= ? ORDER BY size DESC LIMIT 1", (size_max,))
        return rows[0][0] if rows else None

    def close(self) -> None:
        self._db.close()


class Reader(_Reading):
    """Reads a ledger file beside its gateway, or without one; never writes. Usable from any thread."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise missing(path)
        assert sqlite3.threadsafety == 3, "this SQLite is not built for use by several threads"
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        self._db.execute("PRAGMA query_only = 1")

    def head(self) -> StoredHead | None:
        """Return the committed head. It may be newer than what the gateway has signed and shown."""
        return _head(self._db)[0]

    def backup(self, target: Path) -> None:
        """Copy the whole ledger, as of one moment, into a new file. The gateway may go on writing."""
        with sqlite3.connect(target) as copy:
            self._db.backup(copy)
        copy.close()


class SqliteStore(_Reading):
    """A ledger in one file, owned by this object until `close`. The promises are in `contract.py`."""

    durability = "file"
    is_shared = False

    def __init__(self, path: Path, *, may_create: bool = False) -> None:
        """Take the file. StoreOwned: another gateway has it. Fatal: there is none, or it is not a ledger of ours."""
        path = path.resolve()  # SQLite's own log lies beside the real file, and so must the lock
        if not may_create and not path.is_file():
            raise missing(path)
        self._path = path
        self._is_doubtful = False  # after a failed COMMIT: this connection is not asked for anything any more
        self._lock_file = own(path)
        if may_create:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # nobody else reads who wants what
        try:
            self._db = _connect(path)
            _set_up(self._db)
            self._reread()
        except sqlite3.Error as error:
            os.close(self._lock_file)
            raise Fatal(f"{path} can't be opened as a ledger: {error}") from error
        if has_wal_reset_bug(sqlite3.sqlite_version_info):
            _log.warning(
                "SQLite %s has the WAL-reset bug; harmless as long as only this gateway opens the file for writing",
                sqlite3.sqlite_version,
            )

    def load(self) -> Loaded:
        try:
            self._reconnect()
            is_clean = self._reread()
            return Loaded(self._head, is_clean, self.unsigned())
        except sqlite3.Error as error:
            raise busy_or_fatal(error, f"{self._path} can't be read") from error

    def unsigned(self) -> tuple[StoredCheckpoint, ...]:
        rows = self._db.execute(_BATCH + "WHERE signed.size IS NULL AND batch.size > ?", (self._signed_size(),))
        return tuple(StoredCheckpoint(*row) for row in rows.fetchall())

    def _reread(self) -> bool:
        """Take head and journal from the file, and say whether it was closed cleanly."""
        self._head, is_clean = _head(self._db)
        self._recent = Recent()
        for number, rows, values in self._db.execute("SELECT number, rows, bodies FROM journal ORDER BY number"):
            self._recent.number = number - 1
            try:
                self._recent.take(decode_changes(rows, values))
            except (ValueError, TypeError) as error:
                raise sqlite3.DatabaseError(f"row {number} of its journal is malformed") from error
        return is_clean

    def _signed_size(self) -> int:
        """Return the largest size up to which every batch is signed; signatures are kept in order."""
        size: int = self._db.execute("SELECT ifnull(max(size), 0) FROM signed").fetchone()[0]
        return size

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for prefix in sorted(prefixes):
            end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
            folded = dict(self._rows("SELECT key, value FROM record WHERE key >= ? AND key < ?", (prefix, end)))
            found = {**folded, **self._recent.below(prefix)}
            yield from ((key, value) for key, value in sorted(found.items()) if value is not None)

    def lock(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        if seen != self._head:
            raise HeadMoved("the head in the store is not the one the sequencer saw")
        return self.look(keys, sizes)

    def look(self, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        try:
            return Locked(
                self._records(keys), dict(self._lookup("SELECT size, root FROM batch WHERE size IN", sizes, 0))
            )
        except sqlite3.Error as error:
            raise busy_or_fatal(error) from error

    def unlock(self) -> None:
        """Nobody else writes, so there is nothing to give back."""

    def news(self, seen: StoredHead) -> tuple[StoredBatch, ...]:
        """Nobody else writes."""
        return ()

    def listen(self, hint: Callable[[], None]) -> None:
        """Nobody else writes."""

    def confirm(self) -> None:
        """What this connection sees was committed by it."""

    def _records(self, keys: Sequence[str]) -> dict[str, bytes]:
        recent = {key: last[1] for key in keys if (last := self._recent.find(key)) is not None}
        folded = [key for key in keys if key not in recent]
        found = dict(self._lookup("SELECT key, value FROM record WHERE key IN", folded, ""))
        found.update((key, value) for key, value in recent.items() if value is not None)
        return found

    def _lookup(self, select: str, values: Sequence[str] | Sequence[int], absent: str | int) -> list[tuple[Any, Any]]:
        """Run a query over a list. Lists are padded to a power of two, so that few statements are ever prepared."""
        if not values:
            return []
        padded = [*values, *[absent] * ((1 << (len(values) - 1).bit_length()) - len(values))]
        return self._db.execute(f"{select} ({','.join('?' * len(padded))})", padded).fetchall()

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        self._check_reserve()
        self._begin()
        try:
            self._move_head(batch.head, expected)
            self._add(batch)
            self._keep_signed(batch.signed)
            lot = self._journal(batch.changes)
        except HeadMoved:
            self._roll_back()
            raise
        except sqlite3.Error as error:
            self._roll_back()
            raise busy_or_fatal(error) from error
        self._commit()
        self._head = batch.head
        self._count_in(batch.changes, lot)

    def _check_reserve(self) -> None:
        """Stop while there is still room to stop in: for the WAL, the checkpoint, and a person who looks."""
        disk = os.statvfs(self._path.parent)
        if disk.f_bavail * disk.f_frsize < RESERVE_BYTES:
            raise Busy("disk_full", RETRY_DISK_S)

    def _move_head(self, head: StoredHead, expected: StoredHead | None) -> None:
        """Compare and set: exactly one row must change, or another writer was here."""
        after = (head.size, head.root, head.prev_hash, head.time_ms, head.epoch, head.batch_id, head.seal)
        if expected is None:
            cursor = self._db.execute(_FIRST_HEAD, after)
        else:
            cursor = self._db.execute(_MOVE_HEAD, (*after, expected.size, expected.root, expected.epoch))
        if cursor.rowcount != 1:
            raise HeadMoved("the head row is not the expected one")

    def _add(self, batch: StoredBatch) -> None:
        head = batch.head
        first_seq = head.size - len(batch.leaves)
        self._db.executemany("INSERT INTO entry VALUES (?, ?)", enumerate(batch.leaves, first_seq))
        self._db.execute(
            "INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?)",
            (head.size, first_seq, head.root, head.time_ms, head.epoch, head.batch_id, b"".join(batch.hashes)),
        )

    def _keep_signed(self, signed: Sequence[SignedBatch]) -> None:
        """Keep signatures; one that is already kept stays as it was first."""
        self._db.executemany(
            "INSERT OR IGNORE INTO signed VALUES (?, ?, ?)",
            [(one.size, one.note, b"".join(one.signatures)) for one in signed],
        )

    def _journal(self, changes: Sequence[RecordChange]) -> list[RecordChange]:
        """Write record changes into the journal, and fold a lot of older ones into the table. Returns the lot."""
        if changes:
            self._db.execute(
                "INSERT INTO journal VALUES (?, ?, ?)", (self._recent.number + 1, *encode_changes(changes))
            )
            self._db.executemany(
                "INSERT INTO fading (due_ms, kind, keys) VALUES (?, ?, ?)",
                [(due_ms, kind, orjson.dumps(keys)) for (due_ms, kind), keys in group_by_due(changes).items()],
            )
        lot = self._recent.lot(len(changes))
        if lot:
            self._db.executemany(_UPSERT, [change for change in lot if change[1] is not None])
            self._db.executemany("DELETE FROM record WHERE key = ?", [(key,) for key, value, _ in lot if value is None])
            if self._recent.is_last(lot):
                self._db.execute("DELETE FROM journal WHERE number <= ?", (self._recent.sealed_number,))
        return lot

    def _count_in(self, changes: Sequence[RecordChange], lot: Sequence[RecordChange]) -> None:
        """What `_journal` wrote is durable now."""
        self._recent.fold(lot)
        if changes:
            self._recent.take(changes)

    def landed(self, batch_id: str) -> bool:
        """Look on a new connection: what the old one believes is not evidence.

        What a failed fsync left in the log is absent here and is written over by the next commit. If the machine dies
        in between, recovery may yet find it: then the batch is there, unsigned and unanswered, for those who retry.
        """
        self._is_doubtful = True
        self._reconnect()
        row = self._db.execute(
            "SELECT 1 FROM (SELECT batch_id FROM batch ORDER BY size DESC LIMIT ?) WHERE batch_id = ?",
            (LANDED_LOOKBACK, batch_id),
        ).fetchone()
        return row is not None

    def keep(self, upkeep: Upkeep) -> int:
        self._begin()
        try:
            self._keep_signed(upkeep.signed)
            gone, forgotten = self._forget(upkeep)
            changes = (*upkeep.changes, *gone)
            lot = self._journal(changes)
            if upkeep.is_closing:
                self._db.execute("UPDATE head SET is_clean = 1")
        except sqlite3.Error as error:
            self._roll_back()
            raise busy_or_fatal(error) from error
        self._commit()
        self._count_in(changes, lot)
        self._checkpoint()
        return forgotten

    def _forget(self, upkeep: Upkeep) -> tuple[list[RecordChange], int]:
        """Find due records, oldest first, at most `forget_max`. Those in the table are deleted; the rest are changes.

        A key stands in `fading` under each moment it was ever due at. Only the last one counts; the others go as well.
        """
        if not upkeep.forget_max or not upkeep.forget_prefixes:
            return [], 0
        known = {change[0]: change for change in upkeep.changes}
        gone: list[RecordChange] = []
        folded: list[tuple[str, int]] = []
        for due_ms, key in self._take_due(upkeep):
            last = known.get(key) or self._recent.find(key)
            if last is None:
                folded.append((key, due_ms))
            elif last[1] is not None and last[2] == due_ms:
                known[key] = (key, None, None)
                gone.append(known[key])
        cursor = self._db.executemany("DELETE FROM record WHERE key = ? AND due_ms = ?", sorted(folded))
        return gone, len(gone) + max(0, cursor.rowcount)

    def _take_due(self, upkeep: Upkeep) -> list[tuple[int, str]]:
        """Take (due time, key) off `fading`, oldest first, at most `forget_max`."""
        is_wanted = " OR ".join(["kind = ?"] * len(upkeep.forget_prefixes))
        groups = self._db.execute(
            "SELECT number, due_ms, keys FROM fading"
            f" WHERE due_ms <= ? AND ({is_wanted}) ORDER BY due_ms, number LIMIT ?",
            (upkeep.forget_due_ms, *upkeep.forget_prefixes, upkeep.forget_max),
        ).fetchall()
        taken: list[tuple[int, str]] = []
        for number, due_ms, joined in groups:
            room = upkeep.forget_max - len(taken)
            if room == 0:
                break
            keys = orjson.loads(joined)
            taken += [(due_ms, key) for key in keys[:room]]
            self._db.execute("DELETE FROM fading WHERE number = ?", (number,))
            if keys[room:]:
                rest = (number, due_ms, kind_of(keys[0]), orjson.dumps(keys[room:]))
                self._db.execute("INSERT INTO fading VALUES (?, ?, ?, ?)", rest)
        return taken

    def _checkpoint(self) -> None:
        """Copy the WAL into the database when it has grown; a failure only means it is done later."""
        wal = Path(f"{self._path}-wal")
        try:
            if wal.stat().st_size >= WAL_BYTES_IDLE:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except (OSError, sqlite3.Error) as error:
            _log.warning("the WAL could not be checkpointed now: %s", error)

    def _reconnect(self) -> None:
        """Go on with a new connection. It is opened before the old one is closed: the last connection to close takes
        the log with it, and to begin a new log needs writes that a failing disk refuses."""
        if self._is_doubtful:
            old, self._db = self._db, _connect(self._path)
            old.close()
            self._reread()
            self._is_doubtful = False

    def _begin(self) -> None:
        try:
            self._reconnect()
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise busy_or_fatal(error) from error

    def _roll_back(self) -> None:
        """End the transaction. SQLite has often done it already; a failure leaves an unusable connection behind."""
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._is_doubtful = True
            raise Unknown(f"a transaction could not be rolled back: {error}") from error

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            # A full disk stops the write before the frame that makes a commit. A failed fsync proves nothing.
            if _code(error) == sqlite3.SQLITE_FULL:
                self._roll_back()
                raise Busy("disk_full", RETRY_DISK_S) from error
            self._is_doubtful = True
            raise Unknown(f"COMMIT ended with: {error}") from error

    def close(self) -> None:
        self._db.close()
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


def missing(path: Path) -> Fatal:
    """Return what to say where no ledger lies."""
    if Path(f"{path}{MOVED}").exists():
        return Fatal(
            f"there is no ledger at {path} any more: `tallystick db copy` moved it into a database, and was stopped"
            " before the setting `store` led there; restart that command"
        )
    return Fatal(f"there is no ledger at {path}; `tallystick init` makes one")


def own(path: Path) -> int:
    """Return the descriptor of the locked file beside the database, which holds our process id."""
    try:
        lock_file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Fatal(f"{path}.lock can't be opened: {error.strerror}; check owner and mode of the folder") from error
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.read(lock_file, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock_file)
        raise StoreOwned(
            f"{path} is in use by another gateway (process {owner}); stop that one, or use another data directory"
        ) from None
    os.ftruncate(lock_file, 0)
    os.pwrite(lock_file, f"{os.getpid()}\n".encode(), 0)
    return lock_file


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1, cached_statements=256)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES_MAX}")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    db.execute("PRAGMA mmap_size = 0")
    return db


def _set_up(db: sqlite3.Connection) -> None:
    """Bring the schema up to date; each file of schema/ is applied once, in order, in one transaction."""
    found = [file for file in files("gateway.store").joinpath("schema").iterdir() if file.name.endswith(".sql")]
    scripts = sorted(found, key=lambda file: file.name)
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version > len(scripts):
        raise sqlite3.DatabaseError(f"its schema is version {version}, this gateway knows {len(scripts)}; update it")
    for number, script in enumerate(scripts[version:], version + 1):
        sqlite_utils.Database(db, recursive_triggers=False).executescript(
            f"BEGIN IMMEDIATE;\n{script.read_text()}\nPRAGMA user_version = {number};\nCOMMIT;"
        )


def _head(db: sqlite3.Connection) -> tuple[StoredHead | None, bool]:
    row = db.execute("SELECT size, root, prev_hash, time_ms, epoch, batch_id, seal, is_clean FROM head").fetchone()
    return (StoredHead(*row[:7]), bool(row[7])) if row else (None, True)


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 when the error is Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def busy_or_fatal(error: sqlite3.Error, found: str = "the store is broken") -> Busy | Fatal:
    """Tell "nothing happened" from "the store is broken"; only called after the transaction is gone."""
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        return Busy("disk_full", RETRY_DISK_S)
    if code == sqlite3.SQLITE_IOERR:
        return Busy("disk_failing", RETRY_DISK_S)
    if code in _NOTHING_HAPPENED:
        return Busy("store_busy")
    return Fatal(f"{found}: {error}; check the disk, then restore a good back-up")
