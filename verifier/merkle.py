"""The Merkle tree of RFC 6962 (SHA-256): hashes, and checks of proofs. Trees are built in replay/tree.py.

A tree's nodes are named by the leaves below them: MTH(D[start:stop]) in the words of the RFC, whatever the whole size.

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


def ranges_from_inclusion(index: int, size: int, leaf: bytes, path: Sequence[bytes]) -> dict[tuple[int, int], bytes]:
    """Return the hash of every leaf range [start, stop) that an inclusion proof shows; its `path` must fit.

    These are the leaf, the siblings, the nodes above it, and the root of every smaller size that follows: a node with
    all that lies to the left of it is a whole tree.
    """
    inner, start, stop, node = (index ^ (size - 1)).bit_length(), index, index + 1, leaf
    found, lefts, nodes = {(start, stop): leaf}, [], [(stop, leaf, 0)]
    for level, part in enumerate(path):
        if level >= inner or index >> level & 1:
            low, node = start & (start - 1), node_hash(part, node)
            found[low, start], start = part, low
            lefts.append(part)
        else:
            high = min(2 * stop - start, size)
            found[stop, high], node, stop = part, node_hash(node, part), high
        found[start, stop] = node
        nodes.append((stop, node, len(lefts)))
    for end, root, count in (*nodes, *((index, part, 1) for part in lefts[:1])):
        for part in lefts[count:]:
            root = node_hash(part, root)
        found[0, end] = root
    return found


def is_consistent(size1: int, root1: bytes, size2: int, root2: bytes, path: Sequence[bytes]) -> bool:
    """Say whether `path` proves that the first `size1` leaves of tree (size2, root2) are tree (size1, root1).

    The empty tree is consistent with every tree, by an empty path.
    """
    if any(len(part) != HASH_BYTES for part in (root1, root2, *path)) or not 0 <= size1 <= size2:
        return False
    if size1 in (0, size2):
        return not path and root1 == (root2 if size1 == size2 else EMPTY_ROOT)
    level = (size1 & -size1).bit_length() - 1  # of the last complete subtree of the old tree: where the path begins
    index = (size1 - 1) >> level
    inner = (index ^ ((size2 - 1) >> level)).bit_length()
    if index:
        seed, path = (path[0] if path else b""), path[1:]
    else:
        seed = root1  # the old tree is that subtree, so the path leaves it out
    if not seed or len(path) != inner + (index >> inner).bit_count():
        return False
    old = [part for bit, part in enumerate(path) if bit >= inner or index >> bit & 1]  # what lies left of the old edge
    return climb(seed, -1, old, 0) == root1 and climb(seed, index, path, inner) == root2
