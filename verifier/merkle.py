"""The Merkle tree of RFC 6962 (SHA-256): hashes, and checks of proofs. Trees are built in replay/tree.py.

Lengths are checked everywhere: SHA-256(0x01 || a || b) does not say where a ends, so a proof with hashes of other
lengths could move bytes between siblings. Checks return None or False and never raise.
Source: docs/protocol.md 13.1 (tree); RFC 6962 section 2.1; the checks as in transparency-dev/merkle proof/verify.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of an entry as a leaf; the 0x00 keeps a leaf from posing as an inner node."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of the inner node over two 32-byte child hashes."""
    return sha256(b"\x01" + left + right).digest()


def root_from_inclusion(index: int, size: int, leaf: bytes, path: Sequence[bytes]) -> bytes | None:
    """Return the root of the tree of `size` leaves that holds leaf hash `leaf` at `index`; None when `path` can't fit.

    `path` begins with the leaf's sibling.
    """
    if not 0 <= index < size or any(len(part) != HASH_BYTES for part in (leaf, *path)):
        return None
    inner = (index ^ (size - 1)).bit_length()  # levels at which the leaf's branch is not the tree's right edge
    if len(path) != inner + (index >> inner).bit_count():
        return None
    return climb(leaf, index, path, inner)


def climb(node: bytes, index: int, path: Sequence[bytes], inner: int) -> bytes:
    """Return the root above `node`: sides by the bits of `index` for `inner` levels, then every sibling on the left."""
    for level, part in enumerate(path):
        is_right = level >= inner or index >> level & 1
        node = node_hash(part, node) if is_right else node_hash(node, part)
    return node
