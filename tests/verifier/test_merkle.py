"""The tree: against the definition of RFC 6962, the algorithms of RFC 9162, and published cases."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifier.shared import ours, published
from verifier.merkle import EMPTY_ROOT, is_consistent, leaf_hash, node_hash, ranges_from_inclusion, root_from_inclusion
from verifier.replay.tree import Tree, consistency_ranges, inclusion_ranges

SIZES = 71
ENTRIES = [b"entry %d" % number for number in range(SIZES)]
LEAVES = [leaf_hash(entry) for entry in ENTRIES]


def defined_root(entries: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962 section 2.1, word for word."""
    if not entries:
        return sha256(b"").digest()
    if len(entries) == 1:
        return sha256(b"\x00" + entries[0]).digest()
    k = 1
    while k * 2 < len(entries):
        k *= 2
    return sha256(b"\x01" + defined_root(entries[:k]) + defined_root(entries[k:])).digest()


def defined_path(index: int, entries: Sequence[bytes]) -> list[bytes]:
    """PATH of RFC 6962 section 2.1.1."""
    if len(entries) == 1:
        return []
    k = 1
    while k * 2 < len(entries):
        k *= 2
    if index < k:
        return [*defined_path(index, entries[:k]), defined_root(entries[k:])]
    return [*defined_path(index - k, entries[k:]), defined_root(entries[:k])]


def defined_subproof(m: int, entries: Sequence[bytes], is_whole: bool) -> list[bytes]:
    """SUBPROOF of RFC 6962 section 2.1.2."""
    if m == len(entries):
        return [] if is_whole else [defined_root(entries)]
    k = 1
    while k * 2 < len(entries):
        k *= 2
    if m <= k:
        return [*defined_subproof(m, entries[:k], is_whole), defined_root(entries[k:])]
    return [*defined_subproof(m - k, entries[k:], False), defined_root(entries[:k])]


def rfc9162_consistent(size1: int, root1: bytes, size2: int, root2: bytes, path: Sequence[bytes]) -> bool:
    """RFC 9162 section 2.1.4.2, a second opinion on every refused proof (0 < size1 < size2)."""
    if not path:
        return False
    rest = [root1, *path] if size1 & (size1 - 1) == 0 else list(path)
    fn, sn = size1 - 1, size2 - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = rest[0]
    for c in rest[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            fr, sr = node_hash(c, fr), node_hash(c, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = node_hash(sr, c)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and fr == root1 and sr == root2


def whole_tree() -> Tree:
    tree = Tree()
    for leaf in LEAVES:
        tree.append(leaf)
    return tree


TREE = whole_tree()
ROOTS = [TREE.root(size) for size in range(SIZES)]


def test_the_roots_of_the_certificate_transparency_test_data() -> None:
    """Source: certificate-transparency-go, merkle tree tests (the eight entries used by every RFC 6962 library)."""
    entries = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    tree = Tree()
    for entry in entries:
        tree.append(leaf_hash(bytes.fromhex(entry)))
    assert tree.root(1).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert tree.root(3).hex() == "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"
    assert tree.root(7).hex() == "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"
    assert tree.root().hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


def test_every_root_is_the_one_the_definition_gives() -> None:
    assert [defined_root(ENTRIES[:size]) for size in range(SIZES)] == ROOTS
    assert ROOTS[0] == EMPTY_ROOT
    assert TREE.root() == TREE.root(TREE.size) == defined_root(ENTRIES)


def test_every_inclusion_path_is_the_defined_one_and_proves_its_own_index_only() -> None:
    for size in range(1, SIZES):
        for index in range(size):
            path = TREE.path(index, size)
            assert list(path) == defined_path(index, ENTRIES[:size])
            proven = [n for n in range(size) if root_from_inclusion(n, size, LEAVES[index], path) == ROOTS[size]]
            assert proven == [index]


def test_every_consistency_proof_is_the_defined_one_and_proves_its_own_sizes_only() -> None:
    for size2 in range(SIZES):
        for size1 in range(size2 + 1):
            path = TREE.consistency(size1, size2)
            assert list(path) == (defined_subproof(size1, ENTRIES[:size2], True) if size1 else [])
            assert is_consistent(size1, ROOTS[size1], size2, ROOTS[size2], path)
            others = [n for n in range(1, size2) if is_consistent(n, ROOTS[n], size2, ROOTS[size2], path)]
            assert others == ([size1] if 0 < size1 < size2 else [])


def mutations(path: tuple[bytes, ...]) -> list[tuple[bytes, ...]]:
    longer = [(*path, bytes(32)), (bytes(32), *path), (*path, *path)]
    shorter = [path[1:], path[:-1]] if path else []
    other = [(*path[:n], sha256(part).digest(), *path[n + 1 :]) for n, part in enumerate(path)]
    swapped = [tuple(reversed(path))] if len(path) > 1 else []
    lengths = [(*path[:n], part[:-1], *path[n + 1 :]) for n, part in enumerate(path)]
    return [changed for changed in longer + shorter + other + swapped + lengths if changed != path]


def test_no_changed_path_proves_anything() -> None:
    for size in range(1, 20):
        for index in range(size):
            for changed in mutations(TREE.path(index, size)):
                assert root_from_inclusion(index, size, LEAVES[index], changed) != ROOTS[size]


def test_no_changed_consistency_proof_proves_anything_and_rfc_9162_agrees() -> None:
    for size2 in range(2, 20):
        for size1 in range(1, size2):
            for changed in mutations(TREE.consistency(size1, size2)):
                arguments = (size1, ROOTS[size1], size2, ROOTS[size2], changed)
                assert not is_consistent(*arguments)
                if all(len(part) == 32 for part in changed):
                    assert not rfc9162_consistent(*arguments)


@given(
    st.integers(0, 2**65), st.integers(-1, 2**65), st.binary(max_size=40), st.lists(st.binary(max_size=33), max_size=70)
)
def test_checks_never_raise(size1: int, size2: int, root: bytes, path: list[bytes]) -> None:
    assert root_from_inclusion(size1, size2, root, path) is None or all(len(part) == 32 for part in path)
    assert is_consistent(size1, root, size2, root[::-1], path) in (True, False)


def test_wrong_lengths_and_sizes_are_refused() -> None:
    assert root_from_inclusion(0, 1, bytes(31), []) is None
    assert root_from_inclusion(1, 1, LEAVES[0], []) is None
    assert root_from_inclusion(-1, 1, LEAVES[0], []) is None
    assert root_from_inclusion(0, 0, LEAVES[0], []) is None
    for size in range(20):
        for count in range(8):
            assert root_from_inclusion(size, size, LEAVES[0], [bytes(32)] * count) is None
    assert not is_consistent(2, ROOTS[2], 1, ROOTS[1], [])
    assert not is_consistent(0, ROOTS[1], 1, ROOTS[1], [])
    assert not is_consistent(1, b"", 1, b"", [])
    assert not is_consistent(-1, ROOTS[1], 1, ROOTS[1], [])


def test_two_roots_of_one_size_are_never_consistent() -> None:
    assert is_consistent(5, ROOTS[5], 5, ROOTS[5], [])
    assert not is_consistent(5, ROOTS[5], 5, ROOTS[6], [])
    assert not is_consistent(5, ROOTS[5], 5, ROOTS[5], [bytes(32)])


def test_a_tree_answers_for_no_size_it_does_not_have() -> None:
    for ask in (
        lambda: TREE.root(SIZES + 1),
        lambda: TREE.root(-1),
        lambda: TREE.path(0, SIZES + 1),
        lambda: TREE.path(5, 5),
        lambda: TREE.path(-1, 5),
        lambda: TREE.consistency(3, SIZES + 1),
        lambda: TREE.consistency(4, 3),
        lambda: inclusion_ranges(0, 0),
        lambda: consistency_ranges(-1, 3),
    ):
        with pytest.raises(IndexError):
            ask()


def test_the_committed_proofs_verify() -> None:
    vectors = ours("merkle.json")
    roots = [bytes.fromhex(root) for root in vectors["rootsHex"]]
    for case in vectors["inclusion"]:
        path = [bytes.fromhex(part) for part in case["pathHex"]]
        leaf = leaf_hash(b"leaf-%d" % case["index"])
        assert root_from_inclusion(case["index"], case["size"], leaf, path) == roots[case["size"]]
    for case in vectors["consistency"]:
        path = [bytes.fromhex(part) for part in case["pathHex"]]
        assert is_consistent(case["size1"], roots[case["size1"]], case["size2"], roots[case["size2"]], path)


def decoded(case: dict[str, list[str] | None]) -> list[bytes]:
    return [b64decode(part) for part in case["proof"] or []]


def test_the_published_inclusion_cases() -> None:
    rows = published("merkle_rfc6962.json")["inclusion"]
    for case in rows:
        root = root_from_inclusion(case["leafIdx"], case["treeSize"], b64decode(case["leafHash"]), decoded(case))
        assert (root is not None and root == b64decode(case["root"])) is not case["wantErr"], case
    assert len(rows) == 98


def test_the_published_consistency_cases_but_one_whose_roots_are_no_hashes() -> None:
    rows = published("merkle_rfc6962.json")["consistency"]
    odd = []
    for case in rows:
        root1, root2 = b64decode(case["root1"]), b64decode(case["root2"])
        verdict = is_consistent(case["size1"], root1, case["size2"], root2, decoded(case))
        if verdict is case["wantErr"]:
            odd.append(len(root1) == 32 and len(root2) == 32)
    assert (len(rows), odd) == (98, [False])


def test_a_tree_takes_no_leaf_that_is_not_a_hash() -> None:
    for wrong in (b"", bytes(31), bytes(33)):
        with pytest.raises(AssertionError, match="32 bytes"):
            Tree().append(wrong)


def test_an_inclusion_path_shows_exactly_the_defined_hashes_of_its_ranges() -> None:
    for size in range(1, SIZES):
        for index in range(size):
            shown = ranges_from_inclusion(index, size, LEAVES[index], TREE.path(index, size))
            assert shown == {(start, stop): defined_root(ENTRIES[start:stop]) for start, stop in shown}
            assert {(index, index + 1), (0, size), *inclusion_ranges(index, size), (0, index + 1)} <= shown.keys()
            assert (0, index) in shown or index == 0
