"""The ledger's Merkle tree: the growing edge in memory, everything else from stored nodes.

The sequencer holds an `Edge`, one hash for each complete subtree that the leaves so far split into. That is all it
needs to add leaves and to prove each new one, so memory does not grow with the ledger. Proofs of older entries are
made from the nodes that a store keeps.
Source: RFC 6962 2.1; docs/protocol.md, tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.errors import Fatal
from gateway.store.contract import Reading
from verifier.merkle import EMPTY_ROOT, node_hash
from verifier.replay.tree import complete_nodes, consistency_ranges, fold, inclusion_ranges


@dataclass(frozen=True, slots=True)
class Edge:
    """The right edge of a tree of `size` leaves. `peaks[level]` is a hash where bit `level` of `size` is set."""

    size: int
    peaks: tuple[bytes | None, ...]

    @property
    def root(self) -> bytes:
        """Return the root; the empty root for size 0."""
        return fold([peak for peak in reversed(self.peaks) if peak is not None])


EMPTY_EDGE = Edge(0, ())


# One level of a batch's tree: the index of its last node, that node's hash (complete or not), the index of the first
# new complete node, the new complete nodes, and the peak left of them.
_Row: TypeAlias = tuple[int, bytes, int, Sequence[bytes], bytes | None]


class Growth:
    """A tree after a batch of leaves: the new edge and root, the new hashes, and each new leaf's path.

    `hashes` are the subtrees that the batch completed, in the store's order (`contract.node_position`).
    """

    __slots__ = ("_base", "_new", "_rows", "before", "edge", "hashes", "root")

    def __init__(self, before: Edge, leaf_hashes: Sequence[bytes]) -> None:
        self.before = before
        self._new: list[list[bytes]] = [[]]
        self._base = [before.size]
        peaks = list(before.peaks)
        self.hashes = self._append(peaks, leaf_hashes)
        self.edge = Edge(before.size + len(leaf_hashes), tuple(peaks))
        self._rows = self._rows_of_path()
        self.root = self.edge.root

    def _append(self, peaks: list[bytes | None], leaf_hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        """Add the leaves to `peaks`; return every subtree completed, each leaf followed by those it completes."""
        written: list[bytes] = []
        for node in leaf_hashes:
            level = 0
            self._new[0].append(node)
            written.append(node)
            while level < len(peaks) and (left := peaks[level]) is not None:
                peaks[level] = None
                level += 1
                node = node_hash(left, node)
                self._level(level).append(node)
                written.append(node)
            peaks.extend([None] * (level + 1 - len(peaks)))
            peaks[level] = node
        return tuple(written)

    def _level(self, level: int) -> list[bytes]:
        """Return the new nodes of a level; the first of them has index `before.size >> level`."""
        if level == len(self._new):
            self._new.append([])
            self._base.append(self.before.size >> level)
        return self._new[level]

    def path(self, index: int) -> tuple[bytes, ...]:
        """Return the inclusion path of a leaf of this batch in the tree after it, leaf's sibling first."""
        assert self.before.size <= index < self.edge.size, "only leaves of this batch are proven here"
        path = []
        for last, end, base, nodes, peak in self._rows:
            sibling = index ^ 1
            if base <= sibling < last:
                path.append(nodes[sibling - base])
            elif sibling < base:
                assert peak is not None, "the left sibling of a growing subtree is a peak of the tree before"
                path.append(peak)
            elif sibling == last:
                path.append(end)
            index >>= 1
        return tuple(path)

    def _rows_of_path(self) -> list[_Row]:
        """Return what a path looks at on each level, made once for all leaves of the batch."""
        rows: list[_Row] = []
        if self.edge.size == self.before.size:
            return rows
        partials, peaks = _partials(self.edge), (*self.before.peaks, None)
        for level in range((self.edge.size - 1).bit_length()):
            last = (self.edge.size - 1) >> level
            nodes, base = (self._new[level], self._base[level]) if level < len(self._new) else ([], last)
            is_complete = (last + 1) << level <= self.edge.size
            end = nodes[-1] if is_complete else partials[level]
            rows.append((last, end, base, nodes, peaks[level] if level < len(peaks) else None))
        return rows


def _partials(edge: Edge) -> tuple[bytes, ...]:
    """Return, by level, the hash over the leaves right of the last complete node of that level."""
    partial: bytes | None = None
    hashes = []
    for peak in (*edge.peaks, None):
        hashes.append(partial if partial is not None else EMPTY_ROOT)
        if peak is not None:
            partial = peak if partial is None else node_hash(peak, partial)
    return tuple(hashes)


def load_edge(read: Reading, size: int) -> Edge:
    """Return the edge of the stored tree at `size`. Fatal when the store lacks one of its nodes."""
    peaks: list[bytes | None] = [None] * size.bit_length()
    wanted = complete_nodes(0, size)
    found = _nodes(read, wanted)
    for level, index in wanted:
        peaks[level] = found[level, index]
    return Edge(size, tuple(peaks))


def prove_inclusion(read: Reading, index: int, size: int) -> tuple[bytes, ...]:
    """Return the inclusion path of entry `index` in the tree of the first `size` entries, from stored nodes."""
    return _subtrees(read, inclusion_ranges(index, size))


def prove_consistency(read: Reading, size1: int, size2: int) -> tuple[bytes, ...]:
    """Return the proof that the tree of `size2` entries extends that of `size1`, from stored nodes."""
    return _subtrees(read, consistency_ranges(size1, size2))


def _subtrees(read: Reading, ranges: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
    parts = [complete_nodes(*leaves) for leaves in ranges]
    found = _nodes(read, [node for part in parts for node in part])
    return tuple(fold([found[node] for node in part]) for part in parts)


def _nodes(read: Reading, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
    found = read.nodes(wanted)
    missing = [node for node in wanted if node not in found]
    if missing:
        raise Fatal(
            f"the store lacks {len(missing)} of {len(wanted)} tree nodes it should hold, first {missing[0]};"
            " restore a good back-up"
        )
    return found
