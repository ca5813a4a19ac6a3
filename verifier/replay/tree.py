"""The Merkle tree over a whole ledger and its history: nodes, roots, proofs, and whether one size extends another.

Who reads one receipt needs merkle.py alone.

Source: docs/protocol.md 13.1 (tree); RFC 6962 section 2.1; the check as in transparency-dev/merkle proof/verify.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifier.merkle import EMPTY_ROOT, HASH_BYTES, climb, node_hash


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


def complete_nodes(start: int, stop: int) -> list[tuple[int, int]]:
    """Return the (level, index) of the complete subtrees that make up leaves [start, stop), left to right.

    Node (level, index) covers leaves [index << level, (index + 1) << level). `start` is a multiple of the largest
    power of two in `stop - start`, as it is for every range that a proof asks for.
    """
    nodes = []
    for level in range((stop - start).bit_length() - 1, -1, -1):
        if (stop - start) >> level & 1:
            nodes.append((level, start >> level))
            start += 1 << level
    return nodes


def inclusion_ranges(index: int, size: int) -> list[tuple[int, int]]:
    """Return the leaf ranges [start, stop) whose subtree hashes are the inclusion path of `index`, bottom up."""
    if not 0 <= index < size:
        raise IndexError("the leaf index must be below the tree size")
    return _branch(index, size, None)[1:]


def consistency_ranges(size1: int, size2: int) -> list[tuple[int, int]]:
    """Return the leaf ranges whose subtree hashes prove that tree `size2` extends tree `size1` (RFC 6962 2.1.2)."""
    if not 0 <= size1 <= size2:
        raise IndexError("a consistency proof leads from a smaller tree to a larger one")
    ranges = _branch(size1 - 1, size2, size1) if size1 else []
    return [leaves for leaves in ranges if leaves != (0, size1)]  # the reader knows the whole old tree


def _branch(index: int, size: int, end: int | None) -> list[tuple[int, int]]:
    """Walk from the root towards leaf `index`, as far as the range that stops at `end`; return it and the siblings."""
    siblings, start, stop = [], 0, size
    while stop - start > 1 and stop != end:
        middle = start + (1 << (stop - start - 1).bit_length() - 1)  # RFC 6962 cuts at the largest power of two below
        if index < middle:
            siblings.append((middle, stop))
            stop = middle
        else:
            siblings.append((start, middle))
            start = middle
    return [(start, stop), *reversed(siblings)]


def fold(nodes: Sequence[bytes]) -> bytes:
    """Return the root over complete subtrees given left to right; the empty root over none."""
    root = nodes[-1] if nodes else EMPTY_ROOT
    for node in reversed(nodes[:-1]):
        root = node_hash(node, root)
    return root


class Tree:
    """An append-only tree in memory: every complete node, 64 bytes per leaf in all.

    Gives roots and proofs of every size up to the present one, since complete nodes never change; IndexError beyond.
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
        index, level, node = self.size, 0, leaf
        self._levels[0] += leaf
        while index & 1:
            node = node_hash(self.node(level, index - 1), node)
            index, level = index >> 1, level + 1
            if level == len(self._levels):
                self._levels.append(bytearray())
            self._levels[level] += node

    def node(self, level: int, index: int) -> bytes:
        """Return the hash of complete node (level, index)."""
        return bytes(self._levels[level][index * HASH_BYTES : (index + 1) * HASH_BYTES])

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first `size` leaves, of all by default."""
        return self._subtree(0, self.size if size is None else size)

    def path(self, index: int, size: int) -> tuple[bytes, ...]:
        """Return the inclusion path of leaf `index` in the tree of the first `size` leaves."""
        return tuple(self._subtree(*leaves) for leaves in inclusion_ranges(index, size))

    def consistency(self, size1: int, size2: int) -> tuple[bytes, ...]:
        """Return the proof that the tree of `size2` leaves extends the tree of `size1` leaves."""
        return tuple(self._subtree(*leaves) for leaves in consistency_ranges(size1, size2))

    def _subtree(self, start: int, stop: int) -> bytes:
        if not 0 <= start <= stop <= self.size:
            raise IndexError("the tree has fewer leaves than that")
        return fold([self.node(level, index) for level, index in complete_nodes(start, stop)])
