"""The growing edge agrees with the verifier's whole tree, however the leaves are cut into batches."""

from __future__ import annotations

import pytest

from gateway.errors import Fatal
from gateway.ledger.tree import EMPTY_EDGE, Edge, Growth, load_edge, prove_inclusion
from gateway.store.contract import node_position
from gateway.store.memory import MemoryDisk, MemoryReader, MemoryStore
from tests.store.exercise import Writer
from verifier.merkle import EMPTY_ROOT, leaf_hash
from verifier.replay.tree import Tree

LEAVES = [leaf_hash(b"%d" % number) for number in range(80)]


def tree_of(size: int) -> Tree:
    tree = Tree()
    for leaf in LEAVES[:size]:
        tree.append(leaf)
    return tree


@pytest.mark.parametrize("first", range(40))
def test_a_batch_gives_the_root_nodes_and_paths_of_the_whole_tree(first: int) -> None:
    before = Growth(EMPTY_EDGE, LEAVES[:first])
    for count in range(40):
        size = first + count
        whole, growth = tree_of(size), Growth(before.edge, LEAVES[first:size])
        assert growth.edge.size == size and growth.root == growth.edge.root == whole.root()
        assert [growth.path(index) for index in range(first, size)] == [
            whole.path(index, size) for index in range(first, size)
        ]
        nodes = {
            node_position(level, index): whole.node(level, index)
            for level in range(size.bit_length())
            for index in range(size >> level)
        }
        assert before.hashes + growth.hashes == tuple(nodes[position] for position in range(len(nodes)))


def test_an_empty_tree_has_the_empty_root() -> None:
    assert Growth(EMPTY_EDGE, []).root == EMPTY_EDGE.root == EMPTY_ROOT


def test_only_leaves_of_the_batch_are_proven() -> None:
    growth = Growth(Growth(EMPTY_EDGE, LEAVES[:3]).edge, LEAVES[3:5])
    for index in (2, 5):
        with pytest.raises(AssertionError):
            growth.path(index)


def test_the_edge_is_found_again_in_the_store() -> None:
    store, writer = MemoryStore(), Writer()
    for count in (1, 2, 4, 1, 9):
        writer.write(store, count)
        edge = load_edge(store, writer.edge.size)
        assert edge.root == writer.edge.root
        assert [peak for peak in edge.peaks if peak] == [peak for peak in writer.edge.peaks if peak]


def test_a_store_that_lacks_nodes_is_fatal() -> None:
    reader = MemoryReader(MemoryDisk())
    with pytest.raises(Fatal, match="lacks"):
        load_edge(reader, 3)
    with pytest.raises(Fatal, match="lacks"):
        prove_inclusion(reader, 0, 2)
    assert load_edge(reader, 0) == Edge(0, ())
