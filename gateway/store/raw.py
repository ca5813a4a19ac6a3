"""The rows of a ledger file as they lie there, sound or not: for who looks for damage (`gateway/fsck.py`).

The reading half of the store hides what does not fit together; here every row of every table is shown. Reads are short
statements over a read-only connection, so they go beside a running gateway; `moment` alone holds a snapshot, for the
records, which change. `Mending` writes, as the file's one owner, and only what can be computed from the leaves.
Source: gateway/store/schema/0001.sql; docs/operating.md, fsck.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from gateway.store.contract import SIGNATURE_BYTES, SignedBatch, StoredHead
from gateway.store.recent import decode_changes
from gateway.store.sqlite import missing, own

BATCHES_PER_READ = 64
FAULTS_MAX = 20  # of SQLite's own check: one sentence each, and the first says enough


class RawBatch(NamedTuple):
    """One row of `batch` with its row of `signed`, if there is one."""

    size: int
    first_seq: int
    root: bytes
    time_ms: int
    epoch: int
    batch_id: str
    hashes: bytes
    note: bytes | None
    signatures: bytes | None


class RawRecord(NamedTuple):
    """A record as a reader of the store would find it, with the due time in the column beside it."""

    key: str
    value: bytes
    due_ms: int | None


class RawFile:
    """A ledger file, opened to be read. sqlite3.Error wherever the file itself is broken."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise missing(path)
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5)
        self._db.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
        self._db.execute("PRAGMA query_only = 1")

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Hold one moment of the file: what is read inside belongs together. Short, for the WAL grows meanwhile."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def file_faults(self) -> list[str]:
        """Return what SQLite's own check says of pages, indexes and types; empty when all is well."""
        rows = self._db.execute(f"PRAGMA integrity_check({FAULTS_MAX})").fetchall()
        return [str(row[0]) for row in rows if row[0] != "ok"]

    def schema_faults(self) -> list[str]:
        """Return the tables, triggers and views that are not as our schema makes them."""
        found, wanted = _schema(self._db), _made_schema()
        names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        number, newest = self._db.execute("PRAGMA user_version").fetchone()[0], len(_scripts())
        return names if number == newest else [f"its version is {number} and not {newest}", *names]

    def head(self) -> StoredHead | None:
        row = self._db.execute("SELECT size, root, prev_hash, time_ms, epoch, batch_id, seal FROM head").fetchone()
        return StoredHead(*row) if row else None

    def is_clean(self) -> int:
        value: int = self._db.execute("SELECT is_clean FROM head").fetchone()[0]
        return value

    def batches(self, size_max: int) -> Iterator[RawBatch]:
        """Yield the batches up to a size, in order."""
        size = -1
        query = (
            "SELECT batch.*, signed.note, signed.signatures FROM batch LEFT JOIN signed USING (size)"
            f" WHERE batch.size > ? AND batch.size <= ? ORDER BY batch.size LIMIT {BATCHES_PER_READ}"
        )
        while rows := self._db.execute(query, (size, size_max)).fetchall():
            yield from (RawBatch(*row) for row in rows)
            size = rows[-1][0]

    def leaves(self, start: int, stop: int) -> dict[int, bytes]:
        """Return the leaves [start, stop) that are there."""
        return dict(self._db.execute("SELECT seq, leaf FROM entry WHERE seq >= ? AND seq < ?", (start, stop)))

    def strays(self) -> list[tuple[str, int]]:
        """Return (table, number) of rows that no head or batch knows: beyond the end, below 0, or signed alone."""
        query = (
            "SELECT 'entry', seq FROM entry WHERE seq < 0 OR seq >= (SELECT size FROM head)"
            " UNION ALL SELECT 'batch', size FROM batch WHERE size < 1 OR size > (SELECT size FROM head)"
            " UNION ALL SELECT 'signed', size FROM signed WHERE size NOT IN (SELECT size FROM batch)"
            f" LIMIT {FAULTS_MAX}"
        )
        return self._db.execute(query).fetchall()

    def repeated_batch_ids(self) -> list[str]:
        query = f"SELECT batch_id FROM batch GROUP BY batch_id HAVING count(*) > 1 LIMIT {FAULTS_MAX}"
        return [row[0] for row in self._db.execute(query)]

    def journal(self) -> Iterator[tuple[int, list[RawRecord | str]]]:
        """Yield (number, changes) of each journal row; a deleted record is its key alone. ValueError: malformed."""
        before: int | None = None
        for number, rows, bodies in self._db.execute("SELECT number, rows, bodies FROM journal ORDER BY number"):
            if before is not None and number != before + 1:
                raise ValueError(f"rows of the journal are missing before {number}")
            before = number
            yield number, [_change(*change) for change in _decoded(number, rows, bodies)]

    def table(self, prefix: str = "") -> Iterator[RawRecord]:
        """Yield the rows of the table of records whose key begins so, in order of key."""
        stop = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else chr(0x10FFFF)
        query = "SELECT key, value, due_ms FROM record WHERE key >= ? AND key < ? ORDER BY key"
        for row in self._db.execute(query, (prefix, stop)):
            yield RawRecord(*row)

    def records(self, prefix: str = "") -> Iterator[RawRecord]:
        """Yield each record whose key begins so once: what the journal says last, else what the table says.

        Inside `moment`. With a prefix it costs what the journal holds, which is bounded, and the records themselves.
        """
        newest: dict[str, RawRecord | str] = {}
        for _, changes in self.journal():
            newest.update({change if isinstance(change, str) else change.key: change for change in changes})
        yield from (record for record in self.table(prefix) if record.key not in newest)
        changed = (record for record in newest.values() if not isinstance(record, str))
        yield from (record for record in changed if record.key.startswith(prefix))

    def counts(self) -> dict[str, int]:
        """Return how many batches there are, how many of them with their signatures, and how many signatures."""
        (batches,) = self._db.execute("SELECT count(*) FROM batch").fetchone()
        query = f"SELECT count(*), ifnull(sum(length(signatures)), 0) / {SIGNATURE_BYTES} FROM signed"
        signed, signatures = self._db.execute(query).fetchone()
        return {"batches": batches, "batchesSigned": signed, "signatures": signatures}

    def fading(self) -> Iterator[tuple[int, int, str, bytes]]:
        """Yield the rows that say what may be forgotten when: number, due time, kind, keys as JSON."""
        yield from self._db.execute("SELECT number, due_ms, kind, keys FROM fading ORDER BY number")


class Mending:
    """A ledger file that nobody else has, in one transaction which `with` commits, or undoes after an error."""

    def __init__(self, path: Path) -> None:
        """Take the file, as a gateway does. StoreOwned while one runs."""
        self._lock = own(path)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA synchronous = FULL")
        self._guards: list[tuple[str, str]] = []

    def __enter__(self) -> Mending:
        """Begin, and take the triggers away that keep everybody from changing history."""
        self._db.execute("BEGIN IMMEDIATE")
        self._guards = self._db.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN ('batch', 'signed')"
        ).fetchall()
        for name, _ in self._guards:
            self._db.execute(f'DROP TRIGGER "{name}"')
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            for _, text in self._guards:
                self._db.execute(text)
            self._db.execute("COMMIT" if error is None else "ROLLBACK")
        finally:
            self.close()

    def close(self) -> None:
        """Give the file back."""
        self._db.close()
        os.close(self._lock)

    def put_batch(self, batch: RawBatch) -> None:
        """Write what a batch's leaves give: root, time, epoch, hashes."""
        self._db.execute(
            "UPDATE batch SET root = ?, time_ms = ?, epoch = ?, hashes = ? WHERE size = ?",
            (batch.root, batch.time_ms, batch.epoch, batch.hashes, batch.size),
        )

    def put_signed(self, signed: SignedBatch) -> None:
        """Write a note and signatures, new or in place of bad ones."""
        row = (signed.size, signed.note, b"".join(signed.signatures))
        self._db.execute("INSERT OR REPLACE INTO signed VALUES (?, ?, ?)", row)


def _decoded(number: int, rows: bytes, bodies: bytes) -> Sequence[tuple[str, bytes | None, int | None]]:
    try:
        changes = decode_changes(rows, bodies)
        total = sum(len(value) for _, value, _ in changes if value is not None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"row {number} of the journal can't be read") from error
    if total != len(bodies) or not all(isinstance(key, str) for key, _, _ in changes):
        raise ValueError(f"row {number} of the journal does not fit its values")
    return changes


def _change(key: str, value: bytes | None, due_ms: int | None) -> RawRecord | str:
    return key if value is None else RawRecord(key, value, due_ms)


def _schema(db: sqlite3.Connection) -> dict[str, Any]:
    """Return the text of everything that a schema made; what SQLite adds by itself has none."""
    return dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def _scripts() -> list[str]:
    """Return our schema, oldest part first."""
    found = [file for file in files("gateway.store").joinpath("schema").iterdir() if file.name.endswith(".sql")]
    return [file.read_text() for file in sorted(found, key=lambda file: file.name)]


def _made_schema() -> dict[str, Any]:
    with closing(sqlite3.connect(":memory:")) as db:
        for script in _scripts():
            db.executescript(script)
        return _schema(db)
