"""The vectors of tests/vectors, judged by the JavaScript verifier as they were typed: one Node process a file."""

from __future__ import annotations

import hashlib
import random
import unicodedata
from typing import Any

import pytest

from tests.js import table
from tests.js.program import call
from tests.verifier.samples import ROOT, tree_of
from tests.verifier.shared import ours
from verifier.entries import TIME_MS_MAX, moment, resource_hint
from verifier.merkle import leaf_hash, ranges_from_inclusion

Case = dict[str, Any]


def test_the_table_is_written_from_the_table_of_the_other_verifier() -> None:
    assert table.TARGET.read_text("utf-8") == table.text(), "run `python -m tests.js.table`"


def check(name: str, function: str, verdict: str, *arguments: str) -> None:
    """Every case of a file is judged as typed; an argument is a member of the case."""
    cases: list[Case] = ours(name)
    found = call([[function, *(case[argument] for argument in arguments)] for case in cases])
    wrong = [case["comment"] for case, answer in zip(cases, found, strict=True) if answer != case[verdict]]
    assert cases and wrong == []


@pytest.mark.parametrize("name", ["note", "checkpoint", "proof", "policy"])
def test_texts(name: str) -> None:
    check(f"{name}.json", name, "isWellFormed", "bytes")


def test_key_documents() -> None:
    cases = ours("keys.json")
    found = call([["keys", case["bytes"], ROOT.vkey] for case in cases])
    assert found == [case["isWellFormed"] for case in cases]


def test_json_is_read_strictly() -> None:
    check("json.json", "json", "isStrict", "bytes")
    check("json.json", "canonical", "isCanonical", "bytes")


def test_keys_and_signatures_meet_the_strict_rule() -> None:
    check("ed25519.json", "key", "isStrictKey", "publicKeyHex")
    check("ed25519.json", "signature", "isValid", "publicKeyHex", "messageHex", "signatureHex")


def test_vkeys_quorums_and_names() -> None:
    check("vkey.json", "vkey", "isWellFormed", "vkey")
    check("quorum.json", "quorum", "isMet", "bytes", "witnesses")
    check("names.json", "name", "isWellFormed", "name")


def test_names_overlap() -> None:
    cases = ours("overlap.json")
    found = call([["overlap", case["a"], case["b"], case["isFolding"]] for case in cases])
    assert found == [[case["overlaps"], case["overlaps"], case["aCoversB"]] for case in cases]


def test_delegations() -> None:
    check("delegation.json", "delegation", "error", "delegations", "actorDid", "ledger", "timeMs")


def test_inclusion_proofs_belong_to_one_index_and_size() -> None:
    vectors, rows, wanted = ours("merkle.json"), [], []
    for case in vectors["inclusion"]:
        for index in range(9):
            for size in range(1, 10):
                rows.append(["inclusion", index, size, leaf_hash(b"leaf-%d" % index).hex(), case["pathHex"]])
                wanted.append((index, size) == (case["index"], case["size"]))
    roots = vectors["rootsHex"]
    assert [answer == roots[row[2]] for row, answer in zip(rows, call(rows), strict=True)] == wanted


def test_consistency_proofs_belong_to_one_pair_of_sizes() -> None:
    vectors = ours("merkle.json")
    roots, rows, wanted = vectors["rootsHex"], [], []
    for case in vectors["consistency"]:
        for size1 in range(10):
            for size2 in range(10):
                rows.append(["consistency", size1, roots[size1], size2, roots[size2], case["pathHex"]])
                is_empty = case["pathHex"] == [] and (size1 == size2 or size1 == 0)
                wanted.append(is_empty or (size1, size2) == (case["size1"], case["size2"]))
    assert call(rows) == wanted


def test_an_inclusion_proof_shows_the_same_ranges_to_both() -> None:
    tree, rows, wanted = tree_of(40), [], []
    for index, size in ((0, 1), (0, 2), (3, 7), (6, 7), (11, 40), (32, 33), (39, 40), (31, 32)):
        leaf, path = leaf_hash(b"leaf-%d" % index), tree.path(index, size)
        rows.append(["ranges", index, size, leaf.hex(), [part.hex() for part in path]])
        found = ranges_from_inclusion(index, size, leaf, path)
        wanted.append({f"{start},{stop}": value.hex() for (start, stop), value in found.items()})
    assert [dict(answer) for answer in call(rows)] == wanted


def test_hashes_and_moments() -> None:
    chance = random.Random(5)
    texts = [chance.randbytes(length) for length in (*range(130), 1_000, 65_535)]
    assert call([["sha256", text.hex()] for text in texts]) == [hashlib.sha256(text).hexdigest() for text in texts]
    times = [0, 951_782_399_999, 951_868_800_000, TIME_MS_MAX, *(chance.randrange(TIME_MS_MAX) for _ in range(200))]
    assert call([["moment", ms] for ms in times]) == [moment(ms) for ms in times]


def test_names_beyond_ascii_are_judged_alike_where_both_know_the_characters() -> None:
    """What is unassigned here may be assigned in Node's newer tables: such names are left out."""
    chance, names = random.Random(4), list[str]()
    while len(names) < 3_000:
        letters = [chr(chance.choice((chance.randrange(0x80, 0x3000), chance.randrange(0x11_0000)))) for _ in range(3)]
        name = "repo:a" + "".join(letters)
        if not any(unicodedata.category(letter) in ("Cn", "Cs", "Co") for letter in letters):
            names.append(chance.choice((name, unicodedata.normalize("NFD", name), unicodedata.normalize("NFC", name))))
    wanted = [resource_hint(name) is None for name in names]
    assert 300 < wanted.count(True) < 2_900
    found = call([["name", name] for name in names])
    assert [name for name, mine, other in zip(names, wanted, found, strict=True) if mine is not other] == []
