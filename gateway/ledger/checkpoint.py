"""Encoding leaves, and signing a committed batch: its checkpoint, and each leaf.

Both are deterministic: what is signed again after a restart is byte for byte what was signed before.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from gateway.errors import Fatal
from gateway.ledger.receipts import header_of
from gateway.ledger.tree import Growth, load_edge, prove_consistency
from gateway.signer import Signer
from gateway.store.contract import Reading, SignedBatch, StoredCheckpoint
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.merkle import is_consistent, leaf_hash, root_from_inclusion
from verifier.note import is_signed_once
from verifier.receipt import pre_authentication
from verifier.sig import is_valid
from verifier.wire import JsonObject, Malformed


def encode_leaf(value: JsonObject) -> bytes:
    """Return canonical JSON, as `verifier.wire.encode_canonical` does, at a tenth of the cost.

    The two agree on everything a leaf or a record holds: ASCII names, no floats, integers below 2^53.
    """
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def sign_batch(signer: Signer, size: int, root: bytes, leaves: Sequence[bytes]) -> SignedBatch:
    """Return everything that is signed over the batch of `leaves` that ends at `size`, where the root is `root`."""
    note = signer.sign_checkpoint(size, root)
    signatures = (signer.sign_leaf(seq, leaf) for seq, leaf in enumerate(leaves, size - len(leaves)))
    return SignedBatch(size, note, tuple(signatures))


def sign_again(signer: Signer, read: Reading, batch: StoredCheckpoint) -> SignedBatch:
    """Return what `sign_batch` gave or would have given, from committed bytes."""
    leaves = [entry.leaf for entry in read.entries(batch.first_seq, batch.size)]
    return sign_batch(signer, batch.size, batch.root, leaves)


def check_root(read: Reading, batch: StoredCheckpoint, size: int, root: bytes) -> None:
    """Fatal unless the stored root of a batch is that of the first leaves of the tree of `size` with this root."""
    path = prove_consistency(read, batch.size, size)
    if not is_consistent(batch.size, batch.root, size, root, path):
        raise Fatal(
            f"the batch that ends at {batch.size} entries is not of the tree that was confirmed; keep the store as it"
            " is, and restore a good back-up"
        )


def sign_orphan(signer: Signer, read: Reading, batch: StoredCheckpoint, size: int, root: bytes) -> SignedBatch:
    """Do as `sign_again` for a batch that somebody else wrote, after all of it was found to be in a confirmed tree."""
    check_root(read, batch, size, root)
    leaves = [entry.leaf for entry in read.entries(batch.first_seq, batch.size)]
    if Growth(load_edge(read, batch.first_seq), list(map(leaf_hash, leaves))).root != batch.root:
        raise Fatal(
            f"the entries of the batch that ends at {batch.size} are not those that were committed; restore a good"
            " back-up"
        )
    return sign_batch(signer, batch.size, batch.root, leaves)


def check_release(
    signer: Signer, growth: Growth, first_seq: int, leaves: Sequence[bytes], signatures: Sequence[bytes], at: int
) -> None:
    """Look at receipt `at` of a batch as a stranger would, before any of it leaves. Fatal when it does not hold.

    A flipped bit in memory, or a broken library, must not leave the house signed. The receipt of a command that came
    with others proves their header too.
    """
    if not is_signed_leaf(signer, first_seq + at, leaves[at], signatures[at]):
        raise Fatal(
            f"the signature just made over entry {first_seq + at} does not verify; this machine can't be trusted"
        )
    header_seq = header_of(leaves[at])
    for seq in {first_seq + at, first_seq + at if header_seq is None else header_seq}:
        leaf, path = leaf_hash(leaves[seq - first_seq]), growth.path(seq)
        if root_from_inclusion(seq, growth.edge.size, leaf, path) != growth.root:
            raise Fatal(f"the path just made for entry {seq} does not lead to the root; this machine can't be trusted")


def is_signed_leaf(signer: Signer, seq: int, leaf: bytes, signature: bytes | None) -> bool:
    """Say whether the receipt key that has to signed the leaf of entry `seq`."""
    if signature is None:
        return False
    return is_valid(signer.receipt_key(seq).public_key, pre_authentication(leaf), signature)


def open_note(signer: Signer, note: bytes) -> Checkpoint:
    """Return a stored checkpoint that all our log keys of its size signed. Fatal when it is any other."""
    try:
        checkpoint = parse_checkpoint(note)
    except Malformed as error:
        raise Fatal(f"a checkpoint in the store is malformed: {error}; restore a good back-up") from error
    keys = signer.log_keys(checkpoint.size)
    if checkpoint.origin != signer.origin or not keys or not all(is_signed_once(checkpoint.note, key) for key in keys):
        raise Fatal("a checkpoint in the store was not signed by our log keys; use the keys of this ledger")
    return checkpoint
