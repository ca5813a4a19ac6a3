"""The statements of the writing half, and how batches become their values and rows become batches.

Numbers are always 8 bytes wide, so that each statement is prepared once, whatever the values.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, LiteralString

from psycopg.types.numeric import Int8

from gateway.errors import Fatal, HeadMoved
from gateway.store.contract import HASH_BYTES, RecordChange, SignedBatch, StoredBatch, StoredHead
from gateway.store.postgres_link import Statement
from gateway.store.recent import decode_changes, encode_changes

NO_HEAD = StoredHead(0, b"", b"", 0, 0, "")
_NEVER = -1  # due
LIVE_MS = 10_000  # since its last word, which a node says once a second
_TAKE: LiteralString = "SELECT * FROM tallystick.take(%b::integer, %b, %b, %b::text[], %b::bigint[])"
_APPEND: LiteralString = (
    "SELECT tallystick.append(%b::integer, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b::bytea[], %b,"
    " %b::text[], %b::bytea[], %b::bigint[], %b::text[], %b, %b, %b::bigint[], %b::bytea[], %b::bytea[])"
)
_RECORDS: LiteralString = "SELECT key, value FROM tallystick.record WHERE ledger = %b AND key = ANY (%b::text[])"
_ROOTS: LiteralString = "SELECT size, root FROM tallystick.batch WHERE ledger = %b AND size = ANY (%b::bigint[])"
SINCE: LiteralString = """
SELECT b.size, b.first_seq, b.root, b.time_ms, b.epoch, b.batch_id, b.hashes, j.seal, j.rows, j.bodies,
    ARRAY(SELECT e.leaf FROM tallystick.entry e
        WHERE e.ledger = b.ledger AND e.seq >= b.first_seq AND e.seq < b.size AND b.size > %b ORDER BY e.seq)
FROM tallystick.batch b LEFT JOIN tallystick.journal j USING (ledger, size)
WHERE b.ledger = %b AND b.size >= %b ORDER BY b.size LIMIT %b
"""
RECORDS: LiteralString = (
    "SELECT key, value FROM tallystick.record WHERE ledger = %s AND key >= %s AND key < %s AND key > %s"
    " ORDER BY key LIMIT %s"
)
UNSIGNED: LiteralString = (
    "SELECT first_seq, size, root, NULL FROM (SELECT ledger, first_seq, size, root FROM tallystick.batch"
    " WHERE ledger = %s ORDER BY size DESC LIMIT %s) b WHERE NOT EXISTS"
    " (SELECT FROM tallystick.signed s WHERE s.ledger = b.ledger AND s.size = b.size) ORDER BY size"
)
_KEEP_SIGNED: LiteralString = "SELECT tallystick.keep_signed(%b::integer, %b::bigint[], %b::bytea[], %b::bytea[])"
_CHANGE: LiteralString = (
    "SELECT tallystick.change_records(%b::integer, %b::text[], %b::bytea[], %b::bigint[], %b::text[])"
)
_FORGET: LiteralString = "SELECT tallystick.forget(%b::integer, %b::text[], %b, %b)"
_PRUNE: LiteralString = (
    "DELETE FROM tallystick.journal WHERE ledger = %b AND size <= (SELECT size FROM tallystick.journal"
    " WHERE ledger = %b ORDER BY size DESC OFFSET %b LIMIT 1)"
)
_NODE: LiteralString = """
INSERT INTO tallystick.node AS n
    SELECT %b, %b, %b, %b, now.ms, now.ms, 1
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now (ms)
    ON CONFLICT (ledger, node) DO UPDATE SET manner = excluded.manner, version = excluded.version,
    started_ms = CASE WHEN %b THEN excluded.started_ms ELSE n.started_ms END,
    seen_ms = excluded.seen_ms, barrier = n.barrier + 1
"""
_LEAVE: LiteralString = "DELETE FROM tallystick.node WHERE ledger = %b AND node = %b"
# Held by who starts, so that of two that start at once the second one sees the first. Writers never take it.
_STARTING: LiteralString = "SELECT FROM tallystick.ledger WHERE id = %b FOR NO KEY UPDATE"
# Whom a start would make unfit: it would change the manner in force, and these live by another one than it.
_OTHERS: LiteralString = """
SELECT n.node, n.manner, greatest(0, (now.ms - n.seen_ms) / 1000)
FROM tallystick.node n JOIN tallystick.head h USING (ledger),
    (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now (ms)
WHERE n.ledger = %b AND h.size > 0 AND h.manner <> %b AND n.manner <> %b AND n.node <> %b AND n.seen_ms > now.ms - %b
ORDER BY n.node
"""
# Why a commit that just returned may be on this server alone. A session reads its settings anew between statements.
UNDEMANDED = Statement(
    "SELECT CASE WHEN names = '' OR position('*' IN names) > 0 THEN"
    " format('synchronous_standby_names is \"%s\", so it may have waited for nobody', names) ELSE '' END"
    " FROM current_setting('synchronous_standby_names') AS now (names)"
)


def _numbers(values: Sequence[int]) -> list[Int8]:
    return [Int8(value) for value in values]


@functools.cache
def _version() -> str:
    try:
        return metadata.version("tallystick")
    except metadata.PackageNotFoundError:
        return ""


def take(ledger: int, link: str, is_replicated: bool, keys: Sequence[str], sizes: Sequence[int]) -> Statement:
    return Statement(_TAKE, (Int8(ledger), link, is_replicated, list(keys), _numbers(sizes)))


def look_ups(ledger: int, keys: Sequence[str], sizes: Sequence[int]) -> tuple[Statement, Statement]:
    records = Statement(_RECORDS, (Int8(ledger), list(keys)))
    return records, Statement(_ROOTS, (Int8(ledger), _numbers(sizes)))


def since(ledger: int, size: int, count_max: int) -> Statement:
    """Return the query for the batch that ends at `size`, without its leaves, and for at most that many after it."""
    return Statement(SINCE, (Int8(size), Int8(ledger), Int8(size), Int8(count_max + 1)))


def barrier(ledger: int, node: str, manner: str, *, is_start: bool = False) -> Statement:
    """Return what a node writes of itself: the smallest thing that has to be committed."""
    return Statement(_NODE, (Int8(ledger), node, manner, _version(), is_start))


def leave(ledger: int, node: str) -> Statement:
    """Return what a node that stops writes of itself: it is no live one from then on."""
    return Statement(_LEAVE, (Int8(ledger), node))


def starting(ledger: int) -> Statement:
    return Statement(_STARTING, (Int8(ledger),))


def others(ledger: int, node: str, manner: str) -> Statement:
    """Return the query for live nodes that such a start would make unfit: node, manner, seconds since its last word."""
    return Statement(_OTHERS, (Int8(ledger), manner, manner, node, Int8(LIVE_MS)))


def append(
    ledger: int, link: str, is_replicated: bool, manner: str, fence: int, expected: StoredHead, batch: StoredBatch
) -> Statement:
    head = batch.head
    was = (Int8(expected.size), expected.root, Int8(expected.epoch), Int8(fence))
    after = (Int8(head.size), head.root, head.prev_hash, Int8(head.time_ms), Int8(head.epoch), head.batch_id, head.seal)
    history = (list(batch.leaves), b"".join(batch.hashes))
    records = (*_changes(batch.changes), *encode_changes(batch.changes))
    return Statement(
        _APPEND,
        (Int8(ledger), link, is_replicated, manner, *was, *after, *history, *records, *_signed(batch.signed)),
    )


def keep_signed(ledger: int, signed: Sequence[SignedBatch]) -> Statement:
    return Statement(_KEEP_SIGNED, (Int8(ledger), *_signed(signed)))


def change_records(ledger: int, changes: Sequence[RecordChange]) -> Statement:
    return Statement(_CHANGE, (Int8(ledger), *_changes(changes)))


def forget(ledger: int, kinds: Sequence[str], by_ms: int, count_max: int) -> Statement:
    return Statement(_FORGET, (Int8(ledger), list(kinds), Int8(by_ms), Int8(count_max)))


def prune(ledger: int, count_kept: int) -> Statement:
    return Statement(_PRUNE, (Int8(ledger), Int8(ledger), Int8(count_kept)))


def _signed(signed: Sequence[SignedBatch]) -> tuple[list[Int8], list[bytes], list[bytes]]:
    sizes = _numbers([one.size for one in signed])
    return sizes, [one.note for one in signed], [b"".join(one.signatures) for one in signed]


def _changes(changes: Sequence[RecordChange]) -> tuple[list[str], list[bytes], list[Int8], list[str]]:
    """Return keys, values and due times of the records to write, and the keys of those to delete; the last one wins."""
    last = {key: (value, due_ms) for key, value, due_ms in changes}
    kept = [(key, value, due_ms) for key, (value, due_ms) in last.items() if value is not None]
    dues = _numbers([_NEVER if due_ms is None else due_ms for _, _, due_ms in kept])
    gone = [key for key, (value, _) in last.items() if value is None]
    return [key for key, _, _ in kept], [value for _, value, _ in kept], dues, gone


def batches_after(seen: StoredHead, rows: Sequence[tuple[Any, ...]]) -> Iterator[StoredBatch]:
    """Yield the batches that `since` found after `seen`. HeadMoved when `seen` is not among them, or one's changes are
    not there any more."""
    first = rows[0] if rows else (0, 0, b"", 0, 0, "")
    if (first[0], first[2], first[3], first[4], first[5]) != (
        seen.size, seen.root, seen.time_ms, seen.epoch, seen.batch_id,
    ):  # fmt: skip
        raise HeadMoved("the head that this node knows is not in the database's history")
    for row in rows[1:]:
        yield _batch(row)


def _batch(row: tuple[Any, ...]) -> StoredBatch:
    size, first_seq, root, time_ms, epoch, batch_id, hashes, seal, changes, bodies, leaves = row
    if changes is None:
        raise HeadMoved("others wrote more than the database keeps for those who follow")
    if len(leaves) != size - first_seq:
        raise Fatal(f"entries of the batch that ends at {size} are missing; restore a good back-up")
    head = StoredHead(size, root, hashlib.sha256(leaves[-1]).digest(), time_ms, epoch, batch_id, seal)
    parts = tuple(hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES))
    try:
        return StoredBatch(head, tuple(leaves), parts, tuple(decode_changes(changes, bodies)))
    except (ValueError, TypeError) as error:
        raise Fatal(f"the journal of the batch that ends at {size} is malformed; restore a good back-up") from error
