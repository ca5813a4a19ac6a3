"""What is already written: the checks of every start, and answers that were given before.

Blocking; runs in the sequencer's worker thread. A start and a recovery call the same function, and it trusts nothing
that it can compute: the root from stored nodes, the last batch's hashes and chain from its leaves, the checkpoint from
its signature. It refuses to go on behind a head that this process has already seen.
Source: docs/protocol.md, start; security.md §6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from gateway.core.state import HOT_PREFIXES, decode_record
from gateway.errors import Fatal
from gateway.ledger.checkpoint import open_note, sign_again
from gateway.ledger.live import Live
from gateway.ledger.tree import Edge, Growth, load_edge, prove_inclusion
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


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The newest head that was committed and signed. Nothing beyond it is shown to anybody."""

    size: int
    root: bytes
    note: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """One decided command: `path` proves entry `seq` in the tree of the note `checkpoint`.

    `key_id` names the receipt key that made `signature`. `is_replay` is said in a header, never in the bytes.
    """

    seq: int
    status: int
    leaf: bytes
    signature: bytes
    key_id: str
    checkpoint: bytes
    path: tuple[bytes, ...]
    is_replay: bool = False


@dataclass(slots=True)
class Book:
    """The open ledger, as the sequencer holds it in memory: its size does not grow with the ledger's length."""

    head: StoredHead
    edge: Edge
    live: Live
    unsaved: list[SignedBatch]
    confirmed: Confirmed
    is_clean: bool


def open_book(store: Store, signer: Signer, genesis: bytes, remembered: Confirmed | None) -> Book:
    """Load and check the ledger in `store`. Fatal, with what to do, when anything is not as it must be."""
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
    _check_last_note(store, signer, head)
    unsaved = [sign_again(signer, store, batch) for batch in loaded.unsigned]
    note = unsaved[-1].note if unsaved else store.last_note(head.size)
    assert note is not None, "a ledger whose batches are all signed has a checkpoint"
    return Book(head, edge, _live(store), unsaved, Confirmed(head.size, head.root, note), loaded.is_clean)


def _live(store: Store) -> Live:
    try:
        return Live((key, decode_record(key, value)) for key, value in store.records(HOT_PREFIXES))
    except Malformed as error:
        raise Fatal(f"a record of the store is malformed: {error}; restore a good back-up") from error


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
            raise Fatal(f"entry {entry.seq} of the store is malformed: {error}") from error
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


def _check_last_note(store: Reading, signer: Signer, head: StoredHead) -> None:
    note = store.last_note(head.size)
    if note is None:
        return
    checkpoint = open_note(signer, note)
    if checkpoint.size > head.size or load_edge(store, checkpoint.size).root != checkpoint.root:
        raise Fatal("the last checkpoint in the store is not of the tree beside it; restore a good back-up")


def stored_answer(read: Reading, signer: Signer, seq: int, status: int) -> Answer:
    """Return the answer that entry `seq` gave when it was first committed, byte for byte.

    Signatures that are not kept yet are made again: they are deterministic.
    """
    entries, batch = read.entries(seq, seq + 1), read.batch_of(seq)
    if not entries or batch is None:
        raise Fatal(f"entry {seq}, which was answered before, is not in the store")
    leaf, signature = entries[0].leaf, entries[0].signature
    return Answer(
        seq=seq,
        status=status,
        leaf=leaf,
        signature=signature or signer.sign_leaf(leaf),
        key_id=signer.receipt_key_id,
        checkpoint=batch.note or sign_again(signer, read, batch).note,
        path=prove_inclusion(read, seq, batch.size),
        is_replay=True,
    )
