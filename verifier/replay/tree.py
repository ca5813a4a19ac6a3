"""The Merkle tree over a whole ledger and its history: nodes, roots and proofs.

Who reads one receipt needs merkle.py alone.

Source: docs/protocol.md 13.1 (tree); RFC 6962 section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import FileIO
from tempfile import TemporaryFile

from verifier.merkle import EMPTY_ROOT, HASH_BYTES, node_hash

TAIL_BYTES_MAX = 1_048_576  # of nodes kept in memory: 16,384 leaves; shorter ledgers need no file


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


def node_count(size: int) -> int:
    """Return how many complete nodes a tree of `size` leaves has."""
    return 2 * size - size.bit_count()


def place_of(level: int, index: int) -> int:
    """Return how many nodes were complete before node (level, index): each leaf is followed by what it completes."""
    return node_count(((index + 1) << level) - 1) + level


class NodesDamaged(OSError):
    """The file of nodes is shorter than the tree it was written for."""


class Tree:
    """An append-only tree whose complete nodes lie in a file, in the order in which they became complete.

    Gives roots and proofs of every size up to the present one, since complete nodes never change; IndexError beyond.
    `file` (raw, read and write) holds exactly the nodes of the first `size` leaves. Without one the nodes go to a
    temporary file without a name, once there are more than memory should keep. OSError: the file fails.
    Source of the order: golang/mod sumdb/tlog, StoredHashIndex.
    """

    __slots__ = ("_edge", "_file", "_tail", "_written", "size")

    def __init__(self, file: FileIO | None = None, size: int = 0) -> None:
        self.size = size
        self._file = file
        self._written = node_count(size)  # nodes in the file; those in `_tail` come after them
        self._tail = bytearray()
        self._edge = [self.node(level, index) for level, index in complete_nodes(0, size)]

    def append(self, leaf: bytes) -> None:
        """Add the 32-byte hash of the next leaf."""
        assert len(leaf) == HASH_BYTES, "a leaf hash has 32 bytes"
        index, node, edge, tail = self.size, leaf, self._edge, self._tail
        tail += leaf
        while index & 1:
            node = node_hash(edge.pop(), node)
            tail += node
            index >>= 1
        edge.append(node)
        self.size += 1
        if len(tail) >= TAIL_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what is only in memory."""
        if self._file is None:
            # Nobody else sees it, and it is gone with the process, however that ends.
            self._file = TemporaryFile(buffering=0)
        self._file.seek(self._written * HASH_BYTES)
        left = memoryview(bytes(self._tail))
        while left:
            left = left[self._file.write(left) :]
        self._written += len(self._tail) // HASH_BYTES
        self._tail.clear()

    def node(self, level: int, index: int) -> bytes:
        """Return the hash of complete node (level, index)."""
        place = place_of(level, index)
        if place >= self._written:
            start = (place - self._written) * HASH_BYTES
            return bytes(self._tail[start : start + HASH_BYTES])
        assert self._file is not None, "what was written is in a file"
        self._file.seek(place * HASH_BYTES)
        node = self._file.read(HASH_BYTES) or b""
        if len(node) != HASH_BYTES:
            raise NodesDamaged("the file of tree nodes ends before its last node")
        return node

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first `size` leaves, of all by default."""
        if size is None or size == self.size:
            return fold(self._edge)
        return self._subtree(0, size)

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
