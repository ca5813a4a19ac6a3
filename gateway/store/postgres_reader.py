"""The reading half on PostgreSQL: what a store and a reader have in common, and the reader.

Reads go to the primary only: what a stand-by shows may be older than what a client was told. A reader shows what is
committed, which may not be confirmed yet (`contract.py`); who shows it on bounds it.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Sequence
from typing import Any, LiteralString

from gateway.errors import Busy
from gateway.store.contract import (
    HASH_BYTES,
    SIGNATURE_BYTES,
    StoredCheckpoint,
    StoredEntry,
    StoredHead,
    node_count,
    node_position,
)
from gateway.store.postgres_link import Link, Lost
from gateway.store.postgres_schema import check_version, ledger_of

SEQS_PER_READ = 256  # a tile's, whose hashes may lie in as many batches
CLOSE_SECONDS = 1.0  # for a call on another thread to end
_BATCH: LiteralString = (
    "SELECT b.first_seq, b.size, b.root, s.note FROM tallystick.batch b"
    " LEFT JOIN tallystick.signed s USING (ledger, size) WHERE b.ledger = %s AND "
)
_HEAD: LiteralString = (
    "SELECT size, root, prev_hash, time_ms, epoch, batch_id, seal FROM tallystick.head WHERE ledger = %s"
)
_ENTRIES: LiteralString = (
    "SELECT seq, leaf FROM tallystick.entry WHERE ledger = %s AND seq >= %s AND seq < %s ORDER BY seq"
)
_SIGNATURES: LiteralString = (
    "SELECT b.first_seq, s.signatures FROM tallystick.batch b JOIN tallystick.signed s USING (ledger, size)"
    " WHERE b.ledger = %s AND b.size > %s AND b.first_seq < %s ORDER BY b.size"
)
_HASHES: LiteralString = (
    "SELECT DISTINCT found.first_seq, found.hashes"
    " FROM (SELECT %s::integer AS ledger) AS own, unnest(%s::bigint[]) AS seq,"
    " LATERAL (SELECT first_seq, hashes FROM tallystick.batch"
    " WHERE ledger = own.ledger AND size > seq ORDER BY size LIMIT 1) AS found ORDER BY found.first_seq"
)
_ROOT: LiteralString = "SELECT root FROM tallystick.batch WHERE ledger = %s AND size = %s"
_NOTE: LiteralString = "SELECT note FROM tallystick.signed WHERE ledger = %s AND size <= %s ORDER BY size DESC LIMIT 1"


class Reads:
    """The reading half, on whatever connection `_rows` uses. Busy while the server is away."""

    _ledger: int

    def _rows(self, query: LiteralString, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query about the ledger, whose number is the query's first value."""
        raise NotImplementedError

    def _head(self) -> StoredHead | None:
        head = StoredHead(*self._rows(_HEAD, ())[0])
        return head if head.size else None

    def entries(self, start: int, stop: int) -> list[StoredEntry]:
        leaves = self._rows(_ENTRIES, (start, stop))
        signatures = self._signatures(start, stop) if leaves else {}
        return [StoredEntry(seq, leaf, signatures.get(seq)) for seq, leaf in leaves]

    def _signatures(self, start: int, stop: int) -> dict[int, bytes]:
        return {
            first_seq + at: joined[at * SIGNATURE_BYTES : (at + 1) * SIGNATURE_BYTES]
            for first_seq, joined in self._rows(_SIGNATURES, (start, stop))
            for at in range(len(joined) // SIGNATURE_BYTES)
        }

    def nodes(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        last = {(level, index): ((index + 1) << level) - 1 for level, index in wanted}  # the leaf that completes each
        found: dict[tuple[int, int], bytes] = {}
        seqs = sorted(set(last.values()))
        for at in range(0, len(seqs), SEQS_PER_READ):
            lot = seqs[at : at + SEQS_PER_READ]
            batches = self._rows(_HASHES, (lot,))
            for node in (node for node, seq in last.items() if lot[0] <= seq <= lot[-1]):
                batch = bisect.bisect_right(batches, last[node], key=_first_of) - 1
                if batch >= 0 and (value := _hash_in(batches[batch], node_position(*node))):
                    found[node] = value
        return found

    def batch_of(self, seq: int) -> StoredCheckpoint | None:
        rows = self._rows(_BATCH + "b.size > %s ORDER BY b.size LIMIT 1", (seq,))
        return StoredCheckpoint(*rows[0]) if rows else None

    def batch_at(self, size: int) -> StoredCheckpoint | None:
        rows = self._rows(_BATCH + "b.size = %s", (size,))
        return StoredCheckpoint(*rows[0]) if rows else None

    def last_note(self, size_max: int) -> bytes | None:
        rows = self._rows(_NOTE, (size_max,))
        return rows[0][0] if rows else None


def _first_of(row: tuple[Any, ...]) -> int:
    """Return the first column of a row of numbers."""
    first: int = row[0]
    return first


def _hash_in(batch: tuple[Any, ...], position: int) -> bytes:
    """Return the hash at a position of the tree, from those that a batch completed; empty when it is beyond them."""
    first_seq, hashes = batch
    offset = (position - node_count(first_seq)) * HASH_BYTES
    found: bytes = hashes[offset : offset + HASH_BYTES]
    return found


class PostgresReader(Reads):
    """Reads one ledger of a database, beside its gateways or without one; never writes. Usable from any thread.

    It has one connection, which it makes again when it was lost; meanwhile its calls are Busy. After a fail-over that
    one may still lead to the old server, if it lives on: so with `shown`, which says the size and root of the newest
    head that others were shown, every answer is of a server that has that head.
    """

    def __init__(self, url: str, origin: str, shown: Callable[[], tuple[int, bytes]] | None = None) -> None:
        """Remember where to read; the first call connects. Busy, Fatal at any call: server away, no such ledger."""
        self._url, self._origin = url, origin
        self._link: Link | None = None
        self._shown = shown
        self._found: tuple[int, bytes] | None = None  # the newest head that this connection was seen to have
        self._one_at_a_time = threading.Lock()
        self._is_closed = False

    def head(self) -> StoredHead | None:
        """Return the committed head. It may be newer than what is confirmed, signed and shown."""
        return self._head()

    def _rows(self, query: LiteralString, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._one_at_a_time:
            try:
                return self._ask(query, values)
            except Lost:  # a read may be done twice: once more on a new connection
                return self._ask(query, values)

    def _ask(self, query: LiteralString, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        link = self._connected()
        if self._shown is not None:
            self._check_history(link, self._shown())
        return link.rows(query, (self._ledger, *values))

    def _check_history(self, link: Link, shown: tuple[int, bytes]) -> None:
        """Lost when the server behind the connection lacks what was shown: it is no primary any more."""
        if shown == self._found:
            return
        size, root = shown
        if link.rows(_ROOT, (self._ledger, size)) != [(root,)]:
            link.close()
            raise Lost("the server that is read lacks what this node has shown; another one is looked for")
        self._found = shown

    def _connected(self) -> Link:
        if self._is_closed:
            raise Busy("stopping")
        if self._link is None or self._link.is_closed:
            link = Link(self._url)
            try:
                check_version(link)
                self._ledger = ledger_of(link, self._origin)
            except BaseException:
                link.close()
                raise
            self._link, self._found = link, None
        return self._link

    def close(self) -> None:
        """Give the connection back, not under a call that uses it: one that is not answered keeps it."""
        self._is_closed = True
        if self._one_at_a_time.acquire(timeout=CLOSE_SECONDS):
            if self._link is not None:
                self._link.close()
            self._one_at_a_time.release()
