"""What a file shows of a tree before anybody asks who signed it: its checkpoint, and the hashes that its proof needs.

Receipts, bare checkpoints and consistency proofs, told apart by how they begin. Source: docs/protocol.md 33.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.consistency import Consistency, is_consistency, parse_consistency
from verifier.entries import Leaf, parse_leaf
from verifier.envelope import open_envelope
from verifier.merkle import leaf_hash, ranges_from_inclusion, root_from_inclusion
from verifier.proof import parse_proof
from verifier.wire import Malformed


@dataclass(frozen=True, slots=True)
class Shown:
    """`ranges` are hashes by the leaves [start, stop) below them, of the tree of `checkpoint`, *unverified* as that is.

    A receipt whose path does not lead to its checkpoint shows that checkpoint only. `leaves` are those that parse, a
    batch's header too, with their bytes.
    """

    checkpoint: Checkpoint
    ranges: Mapping[tuple[int, int], bytes]
    leaves: tuple[tuple[Leaf, bytes], ...] = ()
    proof: Consistency | None = None


def is_receipt(data: bytes) -> bool:
    """Say whether `data` begins like a receipt."""
    return data.lstrip()[:1] == b"{"


@lru_cache(maxsize=16)
def read_shown(data: bytes) -> Shown | None:
    """Return what `data` shows, or None for what can't be read. Never raises."""
    try:
        if is_consistency(data):
            proof = parse_consistency(data)
            return Shown(proof.checkpoint, _root(proof.checkpoint), proof=proof)
        if is_receipt(data):
            return _read_receipt(data)
        checkpoint = parse_checkpoint(data)
        return Shown(checkpoint, _root(checkpoint))
    except Malformed:
        return None


def _read_receipt(data: bytes) -> Shown:
    envelope = open_envelope(data)
    proof = parse_proof(envelope.proof)
    tree = parse_checkpoint(proof.checkpoint)
    ranges, leaves = _root(tree) | _ranges(tree, proof.index, envelope.leaf, proof.path), _parsed(envelope.leaf)
    if envelope.header is not None:
        part = envelope.header
        for leaf, encoded in _parsed(part.leaf):
            ranges |= _ranges(tree, leaf.seq, encoded, part.path)
            leaves += ((leaf, encoded),)
    return Shown(tree, ranges, leaves)


def _parsed(encoded: bytes) -> tuple[tuple[Leaf, bytes], ...]:
    try:
        return ((parse_leaf(encoded), encoded),)
    except Malformed:
        return ()


def _ranges(tree: Checkpoint, index: int, leaf: bytes, path: tuple[bytes, ...]) -> dict[tuple[int, int], bytes]:
    """What an inclusion path shows of `tree`; nothing when it does not lead there."""
    hashed = leaf_hash(leaf)
    is_there = root_from_inclusion(index, tree.size, hashed, path) == tree.root
    return ranges_from_inclusion(index, tree.size, hashed, path) if is_there else {}


def _root(tree: Checkpoint) -> dict[tuple[int, int], bytes]:
    return {(0, tree.size): tree.root}
