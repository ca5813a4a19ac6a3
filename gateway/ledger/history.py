"""What is already written: the checks of every start.

Blocking; runs in the sequencer's worker thread. A start and a recovery call the same function, and it trusts nothing
that it can compute: the root from stored nodes, the last batch's hashes and chain from its leaves, the checkpoint and
the last receipts from their signatures, the records from their entries and their seal; whose signatures those must be,
the records say. It refuses to go on behind a
head that this process has already seen. Nothing is signed before all of it held, and what is read back later is checked
before it is shown: an entry that somebody changed must never get a signature of ours.
Source: docs/protocol.md, start; security.md §6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from gateway.core.record_codec import decode_record
from gateway.core.record_keys import COSIGNED_KEY, HOT_PREFIXES
from gateway.core.records import Cosigned, LedgerKey, due_ms_of
from gateway.errors import Fatal
from gateway.ledger.answers import Answer, Confirmed, stored_answer, stored_receipt
from gateway.ledger.checkpoint import is_signed_leaf, open_note, sign_again
from gateway.ledger.evidence import check_records
from gateway.ledger.live import Live
from gateway.ledger.seal import Seal
from gateway.ledger.tree import Edge, Growth, load_edge
from gateway.signer import Signer
from gateway.store.contract import (
    Reading,
    SignedBatch,
    Store,
    StoredCheckpoint,
    StoredEntry,
    StoredHead,
    node_count,
    node_position,
)
from verifier.entries import Leaf, parse_leaf
from verifier.merkle import leaf_hash
from verifier.wire import Malformed

__all__ = [
    "Answer", "Book", "Confirmed", "kept_cosigned", "open_book", "stored_answer", "stored_receipt",
]  # fmt: skip


@dataclass(slots=True)
class Book:
    """The open ledger, as the sequencer holds it in memory: its size does not grow with the ledger's length.

    `shown` are the hot records as others may see them: `live` itself where nobody else writes. `confirmed` is the
    newest head that was signed when the ledger was read, `unsigned` what was not.
    """

    head: StoredHead
    edge: Edge
    live: Live
    shown: Live
    seal: Seal
    unsaved: list[SignedBatch]
    confirmed: Confirmed
    is_clean: bool
    unsigned: tuple[StoredCheckpoint, ...] = ()
    cosigned: bytes | None = None


def open_book(store: Store, signer: Signer, genesis: bytes, remembered: Confirmed | None) -> Book:
    """Load and check the ledger in `store`. Fatal, with what to do, when anything is not as it must be.

    Where other nodes write, any batch may be unsigned: whoever wrote it may still be about to keep its signatures, or
    be dead. They are signed again when a commit of ours came after them, for only then they are here to stay. A key
    that is not here is no end there either: the ledger may have got it a moment ago, on another node.
    """
    loaded = store.load()
    head = loaded.head
    if head is None:
        raise Fatal("the store holds no ledger; `tallystick init` writes its entry 0")
    if remembered is not None:
        _check_not_behind(store, head, remembered)
    _check_genesis(store, genesis)
    edge = load_edge(store, head.size)
    if edge.root != head.root:
        raise Fatal(f"the root over the {head.size} stored entries is not the head's; restore a good back-up")
    _check_tail(store, head)
    live, shown, seal = _open_records(store, signer, head)
    _heed(signer, live)
    if not store.is_shared:
        _check_keys(signer)
        _check_newest_unsigned(head, loaded.unsigned)
    kept = _check_signed(store, signer, head)
    unsaved = [] if store.is_shared else [sign_again(signer, store, batch) for batch in loaded.unsigned]
    book = Book(head, edge, live, shown, seal, unsaved, _confirmed(kept, unsaved, signer, genesis), loaded.is_clean)
    book.unsigned, book.cosigned = loaded.unsigned, kept_cosigned(store)
    return book


def _confirmed(kept: Confirmed | None, unsaved: Sequence[SignedBatch], signer: Signer, genesis: bytes) -> Confirmed:
    """Return the newest head that is signed; at least entry 0 can be, which is the one that was configured."""
    if unsaved:
        return _opened(signer, unsaved[-1].note)
    return kept or _opened(signer, signer.sign_checkpoint(1, genesis))


def _opened(signer: Signer, note: bytes) -> Confirmed:
    checkpoint = open_note(signer, note)
    return Confirmed(checkpoint.size, checkpoint.root, note)


def kept_cosigned(store: Store) -> bytes | None:
    """Return the newest cosigned checkpoint that was kept. A damaged one is none: the next round makes another."""
    for key, value in store.records((COSIGNED_KEY,)):
        try:
            record = decode_record(key, value)
        except Malformed:
            return None
        return record.note.encode() if isinstance(record, Cosigned) else None
    return None


def _heed(signer: Signer, live: Live) -> None:
    """Let the ledger's records, which were just checked, say which keys sign."""
    signer.heed(record for _, record in live.scan("key/") if isinstance(record, LedgerKey))


def _open_records(store: Store, signer: Signer, head: StoredHead) -> tuple[Live, Live, Seal]:
    """Read the hot records, and compare them with the entries they came from and with the seal of the last batch.

    Returns them to decide on, and to be shown."""
    stored = list(store.records(HOT_PREFIXES))
    try:
        records = {key: decode_record(key, value) for key, value in stored}
    except Malformed as error:
        raise Fatal(f"a record of the store is malformed: {error}; restore a good back-up") from error
    live = Live(records.items())
    check_records(store, live, head.size)
    seal = Seal(signer.seal_secret(), [(key, value, due_ms_of(records[key])) for key, value in stored], head.time_ms)
    # Entry 0 alone bears no seal: it was written before there was a gateway. Its records are what it names.
    if head.size > 1 and not compare_digest(seal.mark(head.size, head.root), head.seal):
        raise Fatal(
            "the records of the store are not those that the last batch left: one was changed, added or deleted by"
            " somebody else. Keep the file, and restore a good back-up"
        )
    return live, Live(records.items()) if store.is_shared else live, seal


def _check_keys(signer: Signer) -> None:
    """Fatal when one of the keys that sign, by the ledger's records, is not here."""
    missing = signer.missing()
    if missing:
        raise Fatal(
            f"the {missing[0].purpose} key {missing[0].key.vkey} is in force by the ledger, but its private key is not"
            " there; use the keys of this ledger, bring it back to keys/"
        )


def _check_not_behind(store: Reading, head: StoredHead, remembered: Confirmed) -> None:
    """Heads never move back: what was signed once is true for ever."""
    found = store.batch_at(remembered.size)
    if head.size < remembered.size or found is None or found.root != remembered.root:
        raise Fatal(
            f"the store ends at {head.size} entries, but {remembered.size} were already signed with another root or"
            " length; an older file was put in place of the ledger. Stop, and bring back the newest one"
        )


def _check_genesis(store: Reading, genesis: bytes) -> None:
    entries = store.entries(0, 1)
    if not entries or leaf_hash(entries[0].leaf) != genesis:
        raise Fatal("entry 0 of the store is not the one this gateway was configured for; check the data directory")


def _check_tail(store: Reading, head: StoredHead) -> None:
    """Hash the last batch again: its leaves must give the stored nodes, the root, and the chain up to the head."""
    batch = store.batch_at(head.size)
    if batch is None or batch.root != head.root:
        raise Fatal("the head has no batch of its size and root; restore a good back-up")
    entries = store.entries(max(0, batch.first_seq - 1), head.size)
    if [entry.seq for entry in entries] != list(range(max(0, batch.first_seq - 1), head.size)):
        raise Fatal("entries of the last batch are missing; restore a good back-up")
    last = _check_chain(entries)
    if sha256(entries[-1].leaf).digest() != head.prev_hash or (last.time_ms, last.epoch) != (head.time_ms, head.epoch):
        raise Fatal("the head does not fit the last entry; restore a good back-up")
    own = [leaf_hash(entry.leaf) for entry in entries if entry.seq >= batch.first_seq]
    growth = Growth(load_edge(store, batch.first_seq), own)
    if growth.root != head.root or growth.hashes != _hashes(store, batch):
        raise Fatal("the leaves of the last batch do not give the stored tree; restore a good back-up")


def _check_chain(entries: Sequence[StoredEntry]) -> Leaf:
    """Return the last leaf, after each was found to be of its number and to name the hash of the one before."""
    previous: bytes | None = None
    leaf: Leaf | None = None
    for entry in entries:
        try:
            leaf = parse_leaf(entry.leaf)
        except Malformed as error:
            raise Fatal(f"entry {entry.seq} of the store is malformed: {error}; restore a good back-up") from error
        if leaf.seq != entry.seq or (previous is not None and leaf.prev != previous):
            raise Fatal(f"the chain is broken at entry {entry.seq}; restore a good back-up")
        previous = sha256(entry.leaf).digest()
    assert leaf is not None, "a ledger has at least one entry"
    return leaf


def _hashes(store: Reading, batch: StoredCheckpoint) -> tuple[bytes, ...]:
    """Return the stored hashes that a batch completed, in the order of `node_position`."""
    first, stop = node_count(batch.first_seq), node_count(batch.size)
    wanted = [
        (level, index)
        for level in range(batch.size.bit_length())
        for index in range(batch.first_seq >> level, batch.size >> level)
    ]
    found = store.nodes(wanted)
    ordered = {node_position(*node): value for node, value in found.items()}
    return tuple(ordered[position] for position in range(first, stop) if position in ordered)


def _check_newest_unsigned(head: StoredHead, unsigned: Sequence[StoredCheckpoint]) -> None:
    """Where nobody else writes, signatures are kept in order, so at most the last batch is without."""
    if any(batch.size != head.size for batch in unsigned):
        raise Fatal("signatures of batches before the last one are missing from the store; restore a good back-up")


def _check_signed(store: Store, signer: Signer, head: StoredHead) -> Confirmed | None:
    """Check the newest signed batch, its note and each signature, and return it; None when no batch is signed."""
    note = store.last_note(head.size)
    if note is None:
        return None
    checkpoint = open_note(signer, note)
    if checkpoint.size > head.size or load_edge(store, checkpoint.size).root != checkpoint.root:
        raise Fatal("the last checkpoint in the store is not of the tree beside it; restore a good back-up")
    batch = store.batch_at(checkpoint.size)
    if batch is None or batch.root != checkpoint.root:
        raise Fatal("the last checkpoint in the store is not of a batch beside it; restore a good back-up")
    for entry in store.entries(batch.first_seq, batch.size):
        if not is_signed_leaf(signer, entry.seq, entry.leaf, entry.signature):
            raise Fatal(
                f"the stored signature over entry {entry.seq} is not by this receipt key; use the keys of this ledger,"
                " or restore a good back-up"
            )
    return Confirmed(checkpoint.size, checkpoint.root, note)
