"""Both verifiers say the same about receipts that somebody damaged: seeded changes of good ones, judged by both.

Exit code, level and every finding's step, code and outcome are compared, not only the verdict.
"""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.js.program import cases, judge
from tests.verifier import admissions, maker
from tests.verifier.key_stories import DISOWNED, HONEST, OLDER, RETIRED, STORIES, THIEVES
from tests.verifier.maker import Ledger, canonical
from tests.verifier.test_corpus import run_here
from tests.verifier.test_every_type import every
from verifier.keyring import open_keyring
from verifier.receipt import check_receipt

Json = dict[str, Any]
DAY = maker.worked()


def both_say_the_same(ledger: Ledger, receipts: list[bytes]) -> int:
    """Compare, and return how many different verdicts there were."""
    document, policy = ledger.keys(), maker.policy()
    keyring = open_keyring(root=maker.root_vkey(), document=document, policy=policy)
    ours = [json.loads(check_receipt(receipt, keyring).as_json()) for receipt in receipts]
    theirs = judge({"root": maker.root_vkey(), "keys": document.decode(), "policy": policy.decode()}, receipts)
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.keys() == other.keys()
        assert essence(mine) == essence(other), (number, receipts[number], mine["findings"], other["findings"])
    return len({json.dumps(essence(report)["findings"]) for report in ours})


def essence(report: Json) -> Json:
    """Everything but the sentences of findings, which are each verifier's own."""
    findings = [[row[name] for name in ("step", "code", "outcome", "clause")] for row in report["findings"]]
    return {**report, "findings": [row for at, row in enumerate(findings) if row not in findings[:at]]}


def test_every_entry_type_gives_the_same_report_word_for_word() -> None:
    for day in (maker.worked(), maker.busy(), maker.staffed(), admissions.day()):
        receipts = [day.receipt(seq, witnesses=("w1", "w3")[: seq % 3]) for seq in range(len(day.leaves))]
        assert both_say_the_same(day, receipts) > 1


def test_flipped_bits_and_cut_texts() -> None:
    day, chance = maker.staffed(), random.Random(1)
    good = [day.receipt(seq) for seq in (0, 2, 13, 17, 21, 24, 32)]
    damaged = [damage(chance, chance.choice(good)) for _ in range(250)]
    assert both_say_the_same(day, damaged) > 10


def damage(chance: random.Random, receipt: bytes) -> bytes:
    at = chance.randrange(len(receipt))
    match chance.randrange(4):
        case 0:
            return receipt[:at] + bytes([receipt[at] ^ 1 << chance.randrange(8)]) + receipt[at + 1 :]
        case 1:
            return receipt[:at] + receipt[at + chance.randrange(1, 5) :]
        case 2:
            return receipt[:at] + chance.randbytes(chance.randrange(1, 4)) + receipt[at:]
    other = chance.randrange(len(receipt))
    return receipt[:at] + receipt[other : other + 8] + receipt[at:]


_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 10**6, 2**53 - 1, 2**53, "", "a", "gateway", "constructor", "0" * 64, "ab" * 32, [],
    {}, ["repo:a"], ["lock:b", "lock:a"], "repo:a", "write", "delete", "L5", "T10", maker.ALICE.did, maker.BOB.did,
    "did:key:z6Mk" + "1" * 44, "tallystick/lease.granted/1", "é", "\x7f", [{"did": maker.BOB.did}],
]  # fmt: skip


def edit_somewhere(chance: random.Random, value: Any) -> Any:
    """A copy of a JSON value in which one part is replaced, left out, doubled, or moved by one."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(sorted(value))
        if chance.random() < 0.08:
            return {other: part for other, part in value.items() if other != name}
        if chance.random() < 0.05:
            return {
                **value,
                chance.choice(["extra", "trust", "constructor", "toString", "wait"]): chance.choice(_VALUES),
            }
        return {**value, name: edit_somewhere(chance, value[name])}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        parts = [[], [value[at], value[at]], [edit_somewhere(chance, value[at])]]
        return [*value[:at], *chance.choice(parts), *value[at + 1 :]]
    if type(value) is int and chance.random() < 0.6:
        return value + chance.choice([-1, 1, 1_000, -30_000])
    return chance.choice(_VALUES)


def edited_leaf(chance: random.Random, day: Ledger) -> bytes:
    """A receipt of an edited leaf in a tree that the log really signed, as a cheating gateway makes it."""
    seq = chance.randrange(len(day.leaves))
    leaf = canonical(edit_somewhere(chance, day.value(seq)))
    other = Ledger(leaves=[*day.leaves[:seq], leaf, *day.leaves[seq + 1 :]])
    whole = maker.envelope(leaf, other.proof(seq))
    header = day.value(seq).get("request", {}).get("batch")
    return canonical(whole if header is None else {**whole, "batch": other.batch_part(header)})


def test_edited_leaves_of_every_type() -> None:
    for seed, day in enumerate((maker.worked(), maker.busy(), maker.staffed(), admissions.day(), admissions.day())):
        chance = random.Random(seed)
        assert both_say_the_same(day, [edited_leaf(chance, day) for _ in range(150)]) > 3


def test_leaves_of_every_type_plain_and_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone in a tree of its own, under a policy: what is compared is what the leaf says, and how it is read."""
    chance, calls = random.Random(6), []
    for encoded in (leaf for leaves in every().values() for leaf in leaves[:6]):
        value = json.loads(encoded)
        for leaf in (encoded, *(canonical(edit_somewhere(chance, value)) for _ in range(3))):
            tree = Ledger(leaves=[*[b""] * value["seq"], leaf])
            files = {"a": canonical(maker.envelope(leaf, tree.proof(value["seq"]))), "policy": maker.policy()}
            calls.append((["receipt", "a", "--policy", "policy"], files))
    assert both_come_to_the_same(calls, tmp_path, monkeypatch) > 10


def resigned_body(chance: random.Random, day: Ledger) -> bytes | None:
    """A receipt whose signed body was edited and then really signed anew: only what it asks for is wrong."""
    seq = chance.choice([n for n in range(len(day.leaves)) if "body" in day.value(n).get("request", {})])
    leaf = day.value(seq)
    keys = {key.did: key for key in (*maker.KEYS, maker.ENROLLER, maker.CUSTODIAL, maker.TRIAL_AGENT)}
    key = keys[leaf["actor"]]
    evidence = leaf["request"]
    action = next(name for name, path in maker.PATHS.items() if path == evidence["path"])
    body = json.dumps(edit_somewhere(chance, json.loads(evidence["body"])))
    over = {name: evidence[name] for name in ("anchor", "idempotencyKey")}
    leaf["request"] = Ledger(leaves=day.leaves[:seq], time_ms=leaf["timeMs"]).request(
        key, action, {}, raw_body=body, **over
    )
    other = Ledger(leaves=[*day.leaves[:seq], canonical(leaf), *day.leaves[seq + 1 :]])
    return other.receipt(seq)


def test_edited_bodies_that_were_really_signed() -> None:
    for seed, day in enumerate((maker.busy(), maker.staffed(), admissions.day())):
        chance = random.Random(seed)
        receipts = [receipt for _ in range(100) if (receipt := resigned_body(chance, day)) is not None]
        assert both_say_the_same(day, receipts) > 2


Call = tuple[list[str], dict[str, bytes]]


def both_come_to_the_same(calls: list[Call], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compare what both command lines come to, and return how many different verdicts there were."""
    monkeypatch.chdir(folder)
    asked = [
        {"arguments": words, "files": {name: file.hex() for name, file in files.items()}} for words, files in calls
    ]
    verdicts = set()
    for (words, files), other in zip(calls, cases(asked), strict=True):
        for name, file in files.items():
            (folder / name).write_bytes(file)
        exit_code, report = run_here(words)
        assert (exit_code, report is None) == (other["exitCode"], other["report"] is None)
        assert essence(report) == essence(other["report"]), (words, files)
        verdicts.add(json.dumps(essence(report)["findings"]))
    return len(verdicts)


def pinned(keys: bytes | None = None, policy: bytes | None = None) -> Call:
    files = {"root": maker.root_vkey().encode(), "keys": keys or DAY.keys(), "policy": policy or maker.policy()}
    return ["--root", "@root", "--keys", "keys", "--policy", "policy"], files


def test_two_files_of_one_log_or_of_two_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, calls = random.Random(3), []

    def some_file() -> bytes:
        ledger, size = chance.choice((HONEST, THIEVES)), chance.randrange(1, 22)
        match chance.randrange(4):
            case 0:
                return ledger.checkpoint(size)
            case 1:
                return ledger.consistency(chance.randrange(1, size + 1), size)
        made = ledger.receipt(chance.randrange(size), size)
        return made if chance.random() < 0.8 else damage(chance, made)

    for _ in range(150):
        ledger, old = chance.choice((HONEST, THIEVES)), chance.randrange(1, 21)
        proof = ledger.consistency(old, chance.randrange(old, 22))
        files = {"a": some_file(), "b": some_file(), "proof": proof, "policy": maker.policy()}
        options = ["--proof", "proof"] if chance.random() < 0.4 else []
        calls.append((["compare", "a", "b", *options, "--policy", "policy"], files))
        pins, held = pinned()
        calls.append((["receipt", "a", "--also", "b", "proof", *pins], {**files, **held}))
    assert both_come_to_the_same(calls, tmp_path, monkeypatch) > 20


def test_every_story_of_keys_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for story in STORIES:
        made = story.ledger.receipt(story.seq, story.size, story.witnesses, story.logs, story.key)
        others = {f"other-{number}": make() for number, make in enumerate(story.also)}
        keys = maker.opened().keys(story.version, story.lines)
        pins, held = pinned(keys, maker.policy(story.quorum))
        options = ["--also", *others] if others else []
        calls.append((["receipt", "a", *options, *pins], {"a": made, **others, **held}))
    assert both_come_to_the_same(calls, tmp_path, monkeypatch) > 8


def reworded(chance: random.Random, lines: list[str], others: list[str]) -> list[str]:
    """Lines in which one word became another, or of which one is gone, doubled or moved."""
    at, made = chance.randrange(len(lines)), [*lines]
    match chance.randrange(6):
        case 0:
            del made[at]
        case 1:
            made.insert(chance.randrange(len(lines)), lines[at])
        case _:
            words = lines[at].split(" ")
            words[chance.randrange(len(words))] = chance.choice([*others, *words])
            made[at] = " ".join(words)
    return made


def test_pins_that_say_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key documents are really signed by the root: what is wrong in them is only what they say."""
    chance, calls = random.Random(8), []
    numbers = ["0", "5", "6", "9", "12", "13", "14", "15", "21", "-", "01", "active", "retired", "compromised", "log"]
    words = ["any", "all", "0", "1", "2", "3", "4", "w1", "w3", "all-of-us", "none", "group", "witness", "quorum"]
    vkeys = [key.vkey(name, kind) for key, name, kind in ((maker.LOG, "w1", 4), (maker.NEW_LOG, maker.ORIGIN, 1))]
    for _ in range(150):
        lines = reworded(chance, chance.choice((DISOWNED, RETIRED, OLDER)), numbers)
        policy = maker.policy().decode().split("\n")[:-1]
        pins, held = pinned(
            maker.opened().keys(2, lines) if chance.random() < 0.7 else damage(chance, HONEST.keys()),
            ("\n".join(reworded(chance, policy, [*words, *vkeys])) + "\n").encode() if chance.random() < 0.5 else None,
        )
        size, logs = chance.choice((9, 11, 12, 13, 21)), chance.choice(((maker.LOG,), (maker.LOG, maker.NEW_LOG)))
        made = HONEST.receipt(6, size, chance.choice(((), ("w1", "w2"), ("w3",))), logs)
        calls.append((["receipt", "a", *pins], {"a": made, **held}))
    assert both_come_to_the_same(calls, tmp_path, monkeypatch) > 5


def test_edited_envelopes_and_proofs() -> None:
    day, chance = maker.staffed(), random.Random(9)
    receipts = []
    for _ in range(200):
        envelope = day.envelope(chance.choice((3, 17, 24, 40)), witnesses=("w1", "w2", "w3")[: chance.randrange(4)])
        if chance.random() < 0.5:
            receipts.append(canonical(edit_somewhere(chance, envelope)))
            continue
        lines = envelope["proof"].split("\n")
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        lines[at] = chance.choice(
            ["", lines[other], lines[at] + " ", lines[at][:-1], base64.b64encode(bytes(32)).decode()]
        )
        receipts.append(canonical({**envelope, "proof": "\n".join(lines)}))
    assert both_say_the_same(day, receipts) > 10


def test_texts_made_to_exhaust_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long strings, many escapes, unclosed brackets, endless lines: a verdict, and soon."""
    whole = '{"payloadType":"application/vnd.tallystick.leaf.v1+json","payload":"%s","signatures":[],"proof":"%s"}'
    texts = [
        whole % ("A" * 261_000, ""),
        whole % ("", "c2sp.org/tlog-proof@v1\\nindex 0\\n" + "AAAA\\n" * 10_000),
        '{"payload":"' + "\\u0041" * 43_000 + '"}',
        '{"payload":"' + "\\\\" * 130_000,
        "[" * 262_000,
        '{"a":' * 40_000,
        " " * 262_000 + "{",
    ]
    policies = [b"\n" * 65_536, b"a" * 65_536, b"#" * 65_535 + b"\n", b"log " * 16_000 + b"\n"]
    calls = [(["receipt", "a", "--policy", "p"], {"a": text.encode(), "p": maker.policy()}) for text in texts]
    calls += [(["receipt", "a", "--policy", "p"], {"a": DAY.receipt(5), "p": policy}) for policy in policies]
    assert both_come_to_the_same(calls, tmp_path, monkeypatch) >= 3
