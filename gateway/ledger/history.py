"""What is already written: the checks of every start, and answers that were given before.

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

from gateway.core.state import COSIGNED_KEY, HOT_PREFIXES, Cosigned, LedgerKey, decode_record, due_ms_of
from gateway.errors import Fatal
from gateway.ledger import receipts
from gateway.ledger.checkpoint import is_signed_leaf, open_note, sign_again
from gateway.ledger.evidence import check_records
from gateway.ledger.live import Live
from gateway.ledger.receipts import Proven, count_of, header_of, render
from gateway.ledger.seal import Seal
from gateway.ledger.tree import Edge, Growth, load_edge, prove_inclusion
from gateway.signer import Signer
from gateway.store.contract import (
    Loaded,
    Reading,
    SignedBatch,
    Store,
    StoredCheckpoint,
    StoredEntry,
    StoredHead,
    node_count,
    node_position,
)
from verifier.checkpoint import Checkpoint
from verifier.entries import Leaf, parse_leaf
from verifier.merkle import leaf_hash, root_from_inclusion
from verifier.wire import Malformed


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The newest head that was committed and signed. Nothing beyond it is shown to anybody."""

    size: int
    root: bytes
    note: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """One decided request: `path` proves entry `seq` in the tree of the note `checkpoint`.

    `key_id` names the receipt key that made `signature`. `is_replay` is said in a header, never in the bytes. `rest`
    are the entries of the commands that came as one request, in the same tree; `seq` is their header then.
    """

    seq: int
    status: int
    leaf: bytes
    signature: bytes
    key_id: str
    checkpoint: bytes
    path: tuple[bytes, ...]
    is_replay: bool = False
    rest: tuple[Proven, ...] = ()

    def body(self) -> bytes:
        """Return the body of the HTTP answer, a pure function of what is stored."""
        if not self.rest:
            return receipts.answer(self.leaf, self.signature, self.checkpoint, self.path, key_id=self.key_id)
        header = Proven(self.leaf, self.signature, self.path)
        return receipts.batch_answer((header, *self.rest), self.checkpoint, key_id=self.key_id)


@dataclass(slots=True)
class Book:
    """The open ledger, as the sequencer holds it in memory: its size does not grow with the ledger's length."""

    head: StoredHead
    edge: Edge
    live: Live
    seal: Seal
    unsaved: list[SignedBatch]
    confirmed: Confirmed
    is_clean: bool
    cosigned: bytes | None = None


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
    live, seal = _open_records(store, signer, head)
    _heed(signer, live)
    _check_signed(store, signer, loaded)
    unsaved = [sign_again(signer, store, batch) for batch in loaded.unsigned]
    note = unsaved[-1].note if unsaved else store.last_note(head.size)
    assert note is not None, "a ledger whose batches are all signed has a checkpoint"
    confirmed = Confirmed(head.size, head.root, note)
    return Book(head, edge, live, seal, unsaved, confirmed, loaded.is_clean, kept_cosigned(store))


def kept_cosigned(store: Store) -> bytes | None:
    """Return the newest cosigned checkpoint that was kept. A damaged one is none: the next round makes another."""
    for key, value in store.records((COSIGNED_KEY,)):
        try:
            record = decode_record(key, value)
        except Malformed:
            return None
        return record.note.encode() if isinstance(record, Cosigned) else None
    return None


def _open_records(store: Store, signer: Signer, head: StoredHead) -> tuple[Live, Seal]:
    """Read the hot records, and compare them with the entries they came from and with the seal of the last batch."""
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
    return live, seal


def _heed(signer: Signer, live: Live) -> None:
    """Let the ledger's records, which were just checked, say which keys sign. Fatal when one of them is not here."""
    signer.heed(record for _, record in live.scan("key/") if isinstance(record, LedgerKey))
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


def _check_signed(store: Store, signer: Signer, loaded: Loaded) -> None:
    """Check the newest signed batch: its note, and each signature. At most the last batch may be unsigned."""
    head = loaded.head
    assert head is not None, "a ledger that is open"
    if any(batch.size != head.size for batch in loaded.unsigned):
        raise Fatal("signatures of batches before the last one are missing from the store; restore a good back-up")
    note = store.last_note(head.size)
    if note is None:
        return
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


def stored_answer(read: Reading, signer: Signer, confirmed: Confirmed, seq: int, status: int) -> Answer:
    """Return the answer that entry `seq` gave when it was first committed, byte for byte. Fatal when it does not hold.

    The header of a batch of commands answered with all their entries, which follow it. Signatures that are not kept
    yet are made again: they are deterministic. Only the batch at the end of `confirmed` can be without its note.
    """
    batch = read.batch_of(seq)
    if batch is None:
        raise Fatal(f"entry {seq}, which was answered before, is not in the store; restore a good back-up")
    note = batch.note or (confirmed.note if batch.size == confirmed.size else None)
    if note is None:
        raise Fatal(f"the checkpoint over entry {seq} is missing from the store; restore a good back-up")
    checkpoint = open_note(signer, note)
    head = _proven(read, signer, seq, batch.size, checkpoint)
    rest = [_proven(read, signer, seq + 1 + at, batch.size, checkpoint) for at in range(count_of(head.leaf))]
    return Answer(
        seq=seq,
        status=status,
        leaf=head.leaf,
        signature=head.signature,
        key_id=signer.receipt_key_id(seq),
        checkpoint=note,
        path=head.path,
        is_replay=True,
        rest=tuple(rest),
    )


def stored_receipt(read: Reading, signer: Signer, *, seq: int, size: int, note: bytes) -> bytes:
    """Return the receipt of entry `seq` with its proof in our checkpoint `note` of `size` entries.

    That of a batch's command carries the batch's header too. Fatal when what is stored does not hold: nobody gets a
    receipt that a verifier would refuse, and an entry that was changed is never signed.
    """
    checkpoint = open_note(signer, note)
    entry = _proven(read, signer, seq, size, checkpoint)
    header_seq = header_of(entry.leaf)
    header = None if header_seq is None else _proven(read, signer, header_seq, size, checkpoint)
    around = None if header is None else (header.leaf, header.path)
    return render(entry.leaf, entry.signature, note, entry.path, key_id=signer.receipt_key_id(seq), header=around)


def _proven(read: Reading, signer: Signer, seq: int, size: int, checkpoint: Checkpoint) -> Proven:
    """Return a stored entry after its leaf, signature and path were found to hold in the tree of a checkpoint."""
    entries = read.entries(seq, seq + 1)
    if not entries:
        raise Fatal(f"entry {seq}, which was answered before, is not in the store; restore a good back-up")
    leaf, path = entries[0].leaf, prove_inclusion(read, seq, size)
    if checkpoint.size != size or root_from_inclusion(seq, size, leaf_hash(leaf), path) != checkpoint.root:
        raise Fatal(f"stored entry {seq} is not the one that was signed; keep the file, and restore a good back-up")
    signature = entries[0].signature or signer.sign_leaf(seq, leaf)
    if not is_signed_leaf(signer, seq, leaf, signature):
        raise Fatal(f"the stored signature over entry {seq} does not verify; keep the file, and restore a good back-up")
    return Proven(leaf, signature, path)
