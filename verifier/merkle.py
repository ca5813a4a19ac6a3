"""The Merkle tree of RFC 6962 (SHA-256): hashes, proofs, and checks of proofs.

Lengths are checked everywhere: SHA-256(0x01 || a || b) does not say where a ends, so a proof with hashes of other
lengths could move bytes between siblings. Checks return None or False and never raise.
Source: docs/protocol.md 6 (tree); RFC 6962 section 2.1; RFC 9162 sections 2.1.3.2 and 2.1.4.2.
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

    `path` begins with the leaf's sibling. Source: RFC 9162 section 2.1.3.2.
    """
    if not 0 <= index < size or len(leaf) != HASH_BYTES or any(len(part) != HASH_BYTES for part in path):
        return None
    node, last, root = index, size - 1, leaf
    for part in path:
        if last == 0:
            return None  # longer than the tree is high
        if node & 1 or node == last:
            root = node_hash(part, root)
            while not node & 1 and node:
                node >>= 1
                last >>= 1
        else:
            root = node_hash(root, part)
        node >>= 1
        last >>= 1
    return root if last == 0 else None  # otherwise shorter than the tree is high


def is_consistent(size1: int, root1: bytes, size2: int, root2: bytes, path: Sequence[bytes]) -> bool:
    """Say whether `path` proves that the first `size1` leaves of tree (size2, root2) are tree (size1, root1).

    The empty tree is consistent with every tree, by an empty path. Source: RFC 9162 section 2.1.4.2.
    """
    if any(len(part) != HASH_BYTES for part in (root1, root2, *path)) or not 0 <= size1 <= size2:
        return False
    if size1 == size2:
        return not path and root1 == root2
    if size1 == 0:
        return not path and root1 == EMPTY_ROOT
    if not path:
        return False
    is_power_of_two = size1 & (size1 - 1) == 0
    first, *rest = [root1, *path] if is_power_of_two else path
    node, last = size1 - 1, size2 - 1
    while node & 1:
        node >>= 1
        last >>= 1
    old = new = first
    for part in rest:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = node_hash(part, old), node_hash(part, new)
            while not node & 1 and node:
                node >>= 1
                last >>= 1
        else:
            new = node_hash(new, part)
        node >>= 1
        last >>= 1
    return last == 0 and old == root1 and new == root2


def complete_nodes(start: int, stop: int) -> list[tuple[int, int]]:
    """Return the (level, index) of the complete subtrees that make up leaves [start, stop), left to right.

    Node (level, index) covers leaves [index << level, (index + 1) << level). `start` must be a multiple of the
    largest power of two in `stop - start`, as it is for every range that a proof asks for.
    """
    nodes = []
    for level in range((stop - start).bit_length() - 1, -1, -1):
        if (stop - start) >> level & 1:
            nodes.append((level, start >> level))
            start += 1 << level
    return nodes


def inclusion_ranges(index: int, size: int) -> list[tuple[int, int]]:
    """Return the leaf ranges [start, stop) whose subtree hashes are the inclusion path of `index`, bottom up.

    Raises IndexError when the tree of `size` leaves has no such leaf.
    """
    if not 0 <= index < size:
        raise IndexError("the leaf index must be below the tree size")
    ranges, start, stop = [], 0, size
    while stop - start > 1:
        middle = start + _split(stop - start)
        if index < middle:
            ranges.append((middle, stop))
            stop = middle
        else:
            ranges.append((start, middle))
            start = middle
    return ranges[::-1]


def consistency_ranges(size1: int, size2: int) -> list[tuple[int, int]]:
    """Return the leaf ranges whose subtree hashes prove that tree `size2` extends tree `size1`.

    Raises IndexError unless 0 ≤ size1 ≤ size2. Source: RFC 6962 section 2.1.2 (SUBPROOF).
    """
    if not 0 <= size1 <= size2:
        raise IndexError("a consistency proof leads from a smaller tree to a larger one")
    if size1 == 0:
        return []
    ranges, start, stop = [], 0, size2
    while stop != size1:
        middle = start + _split(stop - start)
        if size1 <= middle:
            ranges.append((middle, stop))
            stop = middle
        else:
            ranges.append((start, middle))
            start = middle
    if start:  # a whole old tree is known to the reader and left out
        ranges.append((start, stop))
    return ranges[::-1]


def fold(nodes: Sequence[bytes]) -> bytes:
    """Return the root over complete subtrees given left to right; the empty root over none."""
    if not nodes:
        return EMPTY_ROOT
    root = nodes[-1]
    for node in reversed(nodes[:-1]):
        root = node_hash(node, root)
    return root


def _split(count: int) -> int:
    """Return the largest power of two below `count` (≥ 2): where RFC 6962 cuts a tree."""
    return 1 << (count - 1).bit_length() - 1


class Tree:
    """An append-only tree in memory: every complete node, 64 bytes per leaf in all.

    Roots and proofs of every size up to the present one, since complete nodes never change. IndexError beyond it.
    """

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels = [bytearray()]

    @property
    def size(self) -> int:
        """The number of leaves."""
        return len(self._levels[0]) // HASH_BYTES

    def append(self, leaf: bytes) -> None:
        """Add the 32-byte hash of the next leaf."""
        assert len(leaf) == HASH_BYTES, "a leaf hash has 32 bytes"
        index, node = self.size, leaf
        for level in range(len(self._levels) + 1):
            if level == len(self._levels):
                self._levels.append(bytearray())
            self._levels[level] += node
            if not index & 1:
                return
            node = node_hash(self.node(level, index - 1), node)
            index >>= 1

    def node(self, level: int, index: int) -> bytes:
        """Return the hash of complete node (level, index)."""
        offset = index * HASH_BYTES
        return bytes(self._levels[level][offset : offset + HASH_BYTES])

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first `size` leaves, of all by default."""
        size = self.size if size is None else size
        self._check_size(size)
        return self._subtree(0, size)

    def path(self, index: int, size: int) -> tuple[bytes, ...]:
        """Return the inclusion path of leaf `index` in the tree of the first `size` leaves."""
        self._check_size(size)
        return tuple(self._subtree(*leaves) for leaves in inclusion_ranges(index, size))

    def consistency(self, size1: int, size2: int) -> tuple[bytes, ...]:
        """Return the proof that the tree of `size2` leaves extends the tree of `size1` leaves."""
        self._check_size(size2)
        return tuple(self._subtree(*leaves) for leaves in consistency_ranges(size1, size2))

    def _subtree(self, start: int, stop: int) -> bytes:
        return fold([self.node(level, index) for level, index in complete_nodes(start, stop)])

    def _check_size(self, size: int) -> None:
        if not 0 <= size <= self.size:
            raise IndexError("the tree has fewer leaves than that")
