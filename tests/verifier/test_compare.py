"""Two files of one log: a contradiction is found whenever both show it, and never where there is one history."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifier import maker
from tests.verifier.judging import faults, pins, remarks
from tests.verifier.maker import ALICE, BOB, LOG, NEW_LOG, ORIGIN, STRANGER, Ledger, canonical
from verifier.compare import check_compare
from verifier.keyring import Keyring, open_keyring
from verifier.merkle import leaf_hash
from verifier.receipt import check_receipt
from verifier.verdict import Report

FORKED_AT = (0, 1, 5, 8, 13)  # the first seq at which the other branch differs
LENGTH = 21
POLICY = open_keyring(policy=maker.policy())


def grow(ledger: Ledger, names: str) -> Ledger:
    """Grants of fresh names until the ledger is LENGTH long."""
    number = count()
    while len(ledger.leaves) < LENGTH:
        ledger.time_ms += 1
        ledger.grant(ALICE, f"lock:{names}{next(number)}")
    return ledger


def trunk() -> Ledger:
    return grow(maker.opened(), "a")


@cache
def branches() -> dict[int, Ledger]:
    """Other histories of the same log: equal before their key, different from there on."""
    first, found = trunk(), {}
    for at in FORKED_AT:
        other = Ledger(leaves=first.leaves[:at], time_ms=maker.T0 + 5_000, epoch=2, counter=900 + at)
        if at == 0:
            other.open(isDev=True)
        found[at] = grow(other, f"b{at}-")
    return found


@dataclass(frozen=True)
class File:
    """A file to compare, and what a reader can know from it: ranges of leaves, and places that its leaf speaks of."""

    content: bytes
    ranges: frozenset[tuple[int, int]]
    name: str


def receipt_file(ledger: Ledger, seq: int, size: int) -> File:
    """The ranges are those of the definition: the leaf, its siblings, the nodes above, and what is left of each."""
    ranges, start, stop = {(0, size)}, 0, size
    while stop - start > 1:
        middle = start + (1 << (stop - start - 1).bit_length() - 1)
        ranges |= {(start, middle), (middle, stop)}
        start, stop = (start, middle) if seq < middle else (middle, stop)
        ranges.add((0, stop))
    ranges |= {(0, seq)} if seq else set()
    return File(ledger.receipt(seq, size), frozenset(ranges), f"receipt {seq}@{size}")


def checkpoint_file(ledger: Ledger, size: int) -> File:
    return File(ledger.checkpoint(size), frozenset({(0, size)}), f"checkpoint {size}")


@st.composite
def files(draw: st.DrawFn, ledger: Ledger) -> File:
    size = draw(st.integers(1, LENGTH))
    if draw(st.booleans()):
        return checkpoint_file(ledger, size)
    return receipt_file(ledger, draw(st.integers(0, size - 1)), size)


def compare(a: bytes, b: bytes, keyring: Keyring = POLICY, proof: bytes | None = None) -> tuple[Report, bytes | None]:
    return check_compare(a, b, keyring, proof=proof)


def codes(report: Report) -> list[str]:
    return [code for _, code in faults(report)]


def sizes_of(report: Report) -> list[int]:
    sizes: list[int] = json.loads(report.as_json())["facts"]["sizes"]
    return sizes


TRUNK = trunk()


@settings(deadline=None, max_examples=300)
@given(st.data(), st.sampled_from(FORKED_AT))
def test_a_fork_is_found_when_both_files_show_it(data: st.DataObject, at: int) -> None:
    a, b = data.draw(files(TRUNK)), data.draw(files(branches()[at]))
    report, evidence = compare(a.content, b.content)
    if any(stop > at for _, stop in a.ranges & b.ranges):
        assert report.exit_code == 4, (a.name, b.name, at)
        assert evidence is not None
        again, _ = check_compare(evidence, None, POLICY)
        assert (again.exit_code, codes(again)) == (4, codes(report))
    else:
        # A leaf may still name what the other shows; and what lies before the fork is one history.
        assert report.exit_code in (3, 4) or (report.exit_code == 0 and min(sizes_of(report)) <= at)


@settings(deadline=None, max_examples=300)
@given(st.data(), st.sampled_from([TRUNK, *(branches()[at] for at in FORKED_AT)]))
def test_one_history_is_never_called_two(data: st.DataObject, ledger: Ledger) -> None:
    a, b = data.draw(files(ledger)), data.draw(files(ledger))
    report, evidence = compare(a.content, b.content)
    sizes = sorted(sizes_of(report))
    larger = a if f"@{sizes[1]}" in a.name or a.name.endswith(f" {sizes[1]}") else b
    is_shown = sizes[0] == sizes[1] or (0, sizes[0]) in larger.ranges
    assert (report.exit_code, evidence) == (0 if is_shown else 3, None), (a.name, b.name)
    assert codes(report) == ([] if is_shown else ["consistency_not_proven"])
    proof = ledger.consistency(sizes[0], sizes[1])
    assert compare(a.content, b.content, proof=proof)[0].exit_code == 0


def test_each_file_shows_hashes_of_both_histories_only_up_to_its_size() -> None:
    """Two forks of one prefix, receipts on the prefix: nothing is shared, so nothing is proven either way."""
    for size in (2, 3, 5):
        report, _ = compare(TRUNK.receipt(0, 5), branches()[5].receipt(1, size))
        assert report.exit_code in (0, 3)


# --- every way to contradict, by itself ---


def edited_leaf(ledger: Ledger, seq: int, **changes: Any) -> Ledger:
    leaves = list(ledger.leaves)
    leaves[seq] = canonical({**ledger.value(seq), **changes})
    return Ledger(leaves=leaves)


def anchored(size: int, root: bytes) -> bytes:
    """The receipt of a grant at 21 whose request names this tree."""
    ledger = Ledger(leaves=list(TRUNK.leaves), time_ms=TRUNK.time_ms, counter=5_000)
    ledger.grant(BOB, "lock:anchor", anchor=f"{ORIGIN} {size} {maker.b64(root)}")
    return ledger.receipt(LENGTH)


FORK = branches()[13]
FULL = pins(TRUNK)
NOBODY = TRUNK.receipt(9, log=STRANGER)  # only its direct signature counts
WAYS = [
    ("two checkpoints", TRUNK.checkpoint(), FORK.checkpoint(), ["two_roots"]),
    ("two receipts", TRUNK.receipt(13), FORK.receipt(13), ["two_leaves", "two_roots", "two_hashes"]),
    ("a checkpoint of a size that a path shows", TRUNK.receipt(13, 15), FORK.checkpoint(14), ["two_hashes"]),
    ("a sibling of many", TRUNK.receipt(3, 16), FORK.receipt(2, 16), ["two_roots", "two_hashes"]),
    ("another entry 0", TRUNK.receipt(5, 6), branches()[0].receipt(9), ["two_geneses"]),
    ("an anchor and a checkpoint", anchored(14, FORK.root(14)), TRUNK.checkpoint(14), ["anchor_differs"]),
    ("a checkpoint and an anchor", TRUNK.checkpoint(14), anchored(14, FORK.root(14)), ["anchor_differs"]),
    ("an anchor of a size that a path shows", anchored(14, FORK.root(14)), TRUNK.receipt(13, 15), ["anchor_differs"]),
    ("two anchors", anchored(14, FORK.root(14)), anchored(14, TRUNK.root(14)), [
        "two_leaves", "two_roots", "two_hashes", "anchor_differs",
    ]),
    ("a leaf that follows another", edited_leaf(TRUNK, 14, prev="5a" * 32).receipt(14, 15), TRUNK.receipt(13, 14), [
        "prev_differs",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "wanted"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
def test_each_contradiction_is_named(a: bytes, b: bytes, wanted: list[str]) -> None:
    for one, other in ((a, b), (b, a)):
        report, evidence = compare(one, other)
        assert (report.exit_code, codes(report)) == (4, wanted)
        assert report.failed is not None and report.failed.step == 12
        assert evidence is not None and json.loads(evidence)["code"] == wanted[0]
        again, second = check_compare(evidence, None, POLICY)
        assert (again.exit_code, codes(again), second) == (4, wanted, evidence)


def test_a_directly_signed_leaf_speaks_by_itself() -> None:
    """Its checkpoint is nobody's, which is said; the leaf is the ledger's word all the same."""
    report, _ = compare(NOBODY, branches()[8].receipt(9, 11), FULL)
    assert report.exit_code == 4
    assert "two_leaves" in codes(report)
    unsigned, evidence = compare(NOBODY, branches()[8].receipt(9, 11), POLICY)
    assert (unsigned.exit_code, evidence) == (1, None)


NOT_SIGNED = [
    ("a checkpoint of a stranger", FORK.checkpoint(log=STRANGER), "log_signature_missing"),
    ("a changed checkpoint", TRUNK.checkpoint().replace(b"\n21\n", b"\n22\n"), "log_signature_invalid"),
    ("no checkpoint", b"rubbish", "checkpoint_malformed"),
    ("nothing", b"", "checkpoint_malformed"),
    ("no receipt", b"{}", "envelope_malformed"),
    ("a receipt of a stranger", FORK.receipt(13, log=STRANGER), "log_signature_missing"),
    ("a path that leads elsewhere", canonical({**FORK.envelope(13), "payload": maker.b64(TRUNK.leaves[13])}), ""),
]


@pytest.mark.parametrize(("other", "code"), [row[1:] for row in NOT_SIGNED], ids=[row[0] for row in NOT_SIGNED])
def test_what_nobody_signed_convicts_nobody(other: bytes, code: str) -> None:
    a = TRUNK.receipt(13, 14)
    report, evidence = compare(a, other)
    assert (report.exit_code, evidence) == (1, None)
    assert (code or "not_included") in codes(report)


def test_a_part_of_an_unsigned_file_that_is_signed_still_speaks() -> None:
    """The checkpoint of a receipt with a wrong leaf is the log's; it contradicts the other all the same."""
    forged = canonical({**FORK.envelope(13), "payload": maker.b64(TRUNK.leaves[13])})
    report, evidence = compare(TRUNK.checkpoint(), forged)
    assert (report.exit_code, codes(report)) == (4, ["not_included", "two_roots"])
    assert evidence is not None and check_compare(evidence, None, POLICY)[0].exit_code == 4


def test_a_path_that_does_not_lead_to_its_checkpoint_shows_nothing() -> None:
    """Whoever has a receipt can write any hash into its path; that must convict nobody."""
    lines = TRUNK.proof(13).split("\n")
    for number in range(2, lines.index("", 2)):
        forged = "\n".join([*lines[:number], maker.b64(bytes([number] * 32)), *lines[number + 1 :]])
        receipt = canonical({**TRUNK.envelope(13), "proof": forged})
        for other in (TRUNK.receipt(13), TRUNK.receipt(12), TRUNK.checkpoint(14)):
            report, evidence = compare(receipt, other)
            assert (report.exit_code, codes(report)[0], evidence) == (1, "not_included", None)
    day = maker.staffed()
    part = day.envelope(17)
    part["batch"]["path"][0] = maker.b64(bytes(32))
    report, evidence = compare(canonical(part), day.receipt(16), pins(day))
    assert evidence is None and report.exit_code != 4


def test_an_anchor_of_another_ledger_or_of_what_is_to_come_speaks_of_nothing() -> None:
    for anchor in (f"gateway.example/other 14 {maker.b64(FORK.root(14))}", f"{ORIGIN} 22 {maker.b64(FORK.root(14))}"):
        ledger = Ledger(leaves=list(TRUNK.leaves), time_ms=TRUNK.time_ms, counter=5_000)
        ledger.grant(BOB, "lock:anchor", anchor=anchor)
        for other in (TRUNK.checkpoint(14), ledger.checkpoint(22)):
            assert compare(ledger.receipt(LENGTH), other)[0].exit_code in (0, 3)


def test_the_anchor_of_a_batch_speaks_for_its_commands() -> None:
    ledger = Ledger(leaves=list(TRUNK.leaves), time_ms=TRUNK.time_ms, counter=5_000)
    command = {"action": "lease.acquire", "resource": "lock:batch"}
    header = ledger.batch(BOB, command, anchor=f"{ORIGIN} 14 {maker.b64(FORK.root(14))}")
    answer = ledger.answer("lease.granted", header, ledger.new_lease("lock:batch"))
    report, _ = compare(ledger.receipt(answer), TRUNK.checkpoint(14))
    assert (report.exit_code, codes(report)) == (4, ["anchor_differs"])


def test_two_logs_say_nothing_about_each_other() -> None:
    other = maker.Key(50)
    text = f"other.example/x\n{LENGTH}\n{maker.b64(bytes(32))}\n"
    note = f"{text}\n{other.note_line('other.example/x', text)}".encode()
    keyring = open_keyring(
        policy=f"log {LOG.vkey(ORIGIN)}\nlog {other.vkey('other.example/x')}\nquorum none\n".encode()
    )
    report, evidence = compare(TRUNK.checkpoint(), note, keyring)
    assert (report.exit_code, codes(report), evidence) == (3, ["origins_differ"], None)


def test_a_consistency_proof_joins_exactly_its_two_trees() -> None:
    a, b, good = TRUNK.checkpoint(7), TRUNK.checkpoint(13), TRUNK.consistency(7, 13)
    assert compare(a, b)[0].exit_code == 3
    assert compare(a, b, proof=good)[0].exit_code == 0
    assert compare(a, good)[0].exit_code == 0  # the newer checkpoint comes with it
    assert compare(good, a)[0].exit_code == 0
    for other in (TRUNK.consistency(7, 14), TRUNK.consistency(6, 13), FORK.consistency(7, 14)):
        assert compare(a, b, proof=other)[0].exit_code == 3
    for broken in (good[:-2], b"old 7\n\n", good.replace(b"old 7", b"old 07"), a):
        report, _ = compare(a, b, proof=broken)
        assert (report.exit_code, codes(report)) == (2, ["compare_malformed"])


def test_a_proof_by_nobody_joins_trees_that_are_signed() -> None:
    """It proves by hashes alone; a note in it that nobody signed is only where its newer tree is read from."""
    proof = TRUNK.consistency(7, 13, log=STRANGER)
    assert compare(TRUNK.checkpoint(7), TRUNK.checkpoint(13), proof=proof)[0].exit_code == 0


def test_a_tree_of_nothing_is_the_beginning_of_every_tree() -> None:
    assert compare(TRUNK.checkpoint(0), FORK.checkpoint())[0].exit_code == 0


def test_a_stolen_key_convicts_nobody() -> None:
    final = f"0 21 compromised 21 {maker.b64(TRUNK.root())}"
    keys = TRUNK.keys(lines=[maker.key_line("log", LOG, final), maker.key_line("log", NEW_LOG, "19 - active")])
    report, evidence = compare(TRUNK.checkpoint(12), FORK.checkpoint(14), pins(TRUNK, keys=keys))
    assert (report.exit_code, evidence) == (3, None)


def test_the_evidence_of_two_checkpoints_is_small_and_its_words_are_not_believed() -> None:
    _, evidence = compare(TRUNK.checkpoint(), FORK.checkpoint())
    assert evidence is not None and len(evidence) < 1_024
    value = json.loads(evidence)
    assert sorted(value) == ["a", "b", "code", "origin", "type"]
    same = canonical({**value, "b": value["a"]})
    report, _ = check_compare(same, None, POLICY)
    assert report.exit_code == 0
    assert [finding.code for finding in report.findings][-1] == "evidence_differs"
    forged = canonical({**value, "b": FORK.checkpoint(log=STRANGER).decode()})
    assert check_compare(forged, None, POLICY)[0].exit_code == 1
    witnessed = [ledger.checkpoint(witnesses=("w1", "w2", "w3")) for ledger in (TRUNK, FORK)]
    assert len(compare(witnessed[0], witnessed[1])[1] or b"") < 2_048


@pytest.mark.parametrize(
    "change", [{"type": "tallystick/evidence/2"}, {"a": 1}, {"b": None}, {"code": 7}, {"more": ""}], ids=str
)
def test_an_evidence_file_that_is_none_is_not_judged(change: dict[str, Any]) -> None:
    _, evidence = compare(TRUNK.checkpoint(), FORK.checkpoint())
    report, _ = check_compare(canonical({**json.loads(evidence or b""), **change}), None, POLICY)
    assert (report.exit_code, codes(report)) == (2, ["compare_malformed"])


def test_one_file_alone_that_is_no_evidence_says_what_is_missing() -> None:
    for alone in (TRUNK.checkpoint(), TRUNK.receipt(3), b"", b"{"):
        report, _ = check_compare(alone, None, POLICY)
        assert report.exit_code == 2
    assert "give two files" in check_compare(TRUNK.checkpoint(), None, POLICY)[0].as_text()


def test_the_header_of_a_batch_speaks_too() -> None:
    """A receipt of a command shows the place of its batch as well."""
    day = maker.staffed()
    other = edited_leaf(day, 16, count=3)
    report, _ = compare(day.receipt(20, 22), other.receipt(16, 18))
    assert report.exit_code == 4 and "two_leaves" in codes(report)
    assert leaf_hash(day.leaves[16]) != leaf_hash(other.leaves[16])


DAYS = [maker.worked(), maker.busy(), maker.staffed()]


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from(range(len(DAYS))))
def test_no_day_with_batches_sessions_and_anchors_contradicts_itself(data: st.DataObject, day: int) -> None:
    """Every leaf speaks of the tree before it, the answers of a batch of their header too: all of it agrees."""
    ledger = DAYS[day]
    places = [data.draw(st.integers(0, len(ledger.leaves) - 1)) for _ in range(2)]
    sizes = [data.draw(st.integers(place + 1, len(ledger.leaves))) for place in places]
    a, b = (ledger.receipt(place, size) for place, size in zip(places, sizes, strict=True))
    report, evidence = compare(a, b, pins(ledger))
    assert (report.exit_code in (0, 3), evidence) == (True, None)


def test_a_consistency_proof_beside_a_receipt_answers_what_else_is_open() -> None:
    receipt, other = TRUNK.receipt(3, 7), TRUNK.checkpoint(13)
    open_question = check_receipt(receipt, FULL, others=[other])
    assert "consistency_not_checked" in remarks(open_question)
    answered = check_receipt(receipt, FULL, others=[TRUNK.consistency(7, 13)])
    assert (answered.exit_code, "consistency_not_checked" in remarks(answered)) == (0, False)
