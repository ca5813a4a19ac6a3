"""Following: the batches that other nodes wrote, added to the open book of this one.

Pure, and it trusts nothing that it can compute: the tree from the leaves, the chain from leaf to leaf, time and epoch,
and the seal over the records. What does not fit is HeadMoved: then the book is given up and the ledger read anew, and
the checks of that (`history.py`) say whether it is still the one whose heads this node has confirmed.
Source: docs/protocol.md, start; docs/architecture.md, several nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

import orjson

from gateway.core.record_codec import sealed_record
from gateway.core.record_keys import COLD_PREFIXES
from gateway.core.records import Change
from gateway.errors import HeadMoved
from gateway.ledger.history import Book
from gateway.ledger.tree import Growth
from gateway.store.contract import RecordChange, StoredBatch, StoredHead
from verifier.merkle import leaf_hash
from verifier.wire import Malformed


@dataclass(frozen=True, slots=True)
class Followed:
    """One batch of another node as it was followed: the head after it, and what it changed of the hot records."""

    head: StoredHead
    changes: tuple[Change, ...]


def follow(book: Book, moved: Sequence[StoredBatch]) -> tuple[Followed, ...]:
    """Add `moved`, oldest first, to the book, but for `book.shown`. HeadMoved: the book is to be dropped."""
    return tuple(_follow(book, batch) for batch in moved)


def _follow(book: Book, batch: StoredBatch) -> Followed:
    growth = _grown(book, batch)
    _check_chain(book.head, batch)
    sealing = book.seal.after(batch.changes, batch.head.time_ms)
    if not compare_digest(book.seal.mark(batch.head.size, growth.root, sealing.total), batch.head.seal):
        raise HeadMoved("the records of another node's batch are not those of its seal")
    changes = _decoded(batch.changes)
    book.seal.take(sealing)
    book.live.apply(changes)
    book.head, book.edge = batch.head, growth.edge
    return Followed(batch.head, changes)


def _grown(book: Book, batch: StoredBatch) -> Growth:
    """Return the tree after the batch, from its leaves alone."""
    growth = Growth(book.edge, [leaf_hash(leaf) for leaf in batch.leaves])
    is_fit = growth.edge.size == batch.head.size and growth.root == batch.head.root and growth.hashes == batch.hashes
    if not batch.leaves or not is_fit:
        raise HeadMoved("the leaves of another node's batch do not give its tree")
    return growth


def _check_chain(before: StoredHead, batch: StoredBatch) -> None:
    """Check that each leaf names the one before, and that all are of the time and epoch that the head says."""
    previous, after = before.prev_hash, batch.head
    for seq, leaf in enumerate(batch.leaves, before.size):
        said = orjson.loads(leaf)
        found = (said["seq"], said["prev"], said["timeMs"], said["epoch"])
        if found != (seq, previous.hex(), after.time_ms, after.epoch):
            raise HeadMoved(f"entry {seq} of another node does not follow from the one before")
        previous = sha256(leaf).digest()
    if previous != after.prev_hash or after.time_ms < before.time_ms or after.epoch < before.epoch:
        raise HeadMoved("the head of another node's batch does not fit its entries")


def _decoded(changes: Sequence[RecordChange]) -> tuple[Change, ...]:
    """Return the changes of hot records, whose seal held; cold ones stay in the store, and are looked up there."""
    try:
        return tuple(
            (key, None if value is None else sealed_record(key, orjson.loads(value)), due_ms)
            for key, value, due_ms in changes
            if not key.startswith(COLD_PREFIXES)
        )
    except (Malformed, orjson.JSONDecodeError) as error:
        raise HeadMoved(f"a record of another node's batch is malformed: {error}") from error
