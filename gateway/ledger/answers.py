"""Answers that were given before, and receipts of any entry: read from the store, and checked before they are shown.

Blocking; called in the sequencer's worker thread and in those of readers. An entry that somebody changed must never get
a signature of ours, nor a checkpoint whose root is not that of the tree we confirmed.
Source: docs/protocol.md 14; security.md §5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.errors import Busy, Fatal
from gateway.ledger import receipts
from gateway.ledger.checkpoint import check_root, is_signed_leaf, open_note
from gateway.ledger.receipts import Proven, count_of, header_of, render
from gateway.ledger.tree import prove_inclusion
from gateway.signer import Signer
from gateway.store.contract import Reading, StoredCheckpoint
from verifier.checkpoint import Checkpoint
from verifier.merkle import leaf_hash, root_from_inclusion


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The newest head that was committed and signed. Nothing beyond it is shown to anybody."""

    size: int
    root: bytes
    note: bytes


class Answer(NamedTuple):
    """One decided request: `path` proves entry `seq` in the tree of the note `checkpoint`.

    `key_id` names the receipt key that made `signature`. `is_replay` is said in a header, never in the bytes. `rest`
    are the entries of the commands that came as one request, in the same tree; `seq` is their header then. A tuple,
    because each request makes one: it is made in less than half the time of a dataclass.
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


def stored_answer(read: Reading, signer: Signer, confirmed: Confirmed, seq: int, status: int) -> Answer:
    """Return the answer that entry `seq` gave when it was first committed, byte for byte. Fatal when it does not hold.

    The header of a batch of commands answered with all their entries, which follow it. What is not kept yet is signed
    again: signatures are deterministic. Busy: the entry is there, and nobody knows yet whether it stays.
    """
    batch = read.batch_of(seq)
    if batch is None:
        raise Fatal(f"entry {seq}, which was answered before, is not in the store; restore a good back-up")
    note = batch.note or _note_again(read, signer, batch, confirmed)
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


def _note_again(read: Reading, signer: Signer, batch: StoredCheckpoint, confirmed: Confirmed) -> bytes:
    """Return the checkpoint over a batch whose signatures nobody has kept (yet)."""
    if batch.size == confirmed.size:
        return confirmed.note
    if batch.size > confirmed.size:
        raise Busy("not_confirmed")
    check_root(read, batch, confirmed.size, confirmed.root)
    return signer.sign_checkpoint(batch.size, batch.root)


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
