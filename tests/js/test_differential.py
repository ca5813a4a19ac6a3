"""Both verifiers say the same about receipts that somebody damaged: seeded changes of good ones, judged by both.

Exit code, level and every finding's step, code and outcome are compared, not only the verdict.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

from tests.js.program import judge
from tests.verifier import maker
from tests.verifier.maker import Ledger, canonical
from verifier.keyring import open_keyring
from verifier.receipt import check_receipt

Json = dict[str, Any]
Edit = Callable[[random.Random, Any], Any]


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
    for day in (maker.worked(), maker.busy(), maker.staffed()):
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
    for seed, day in enumerate((maker.worked(), maker.busy(), maker.staffed())):
        chance = random.Random(seed)
        assert both_say_the_same(day, [edited_leaf(chance, day) for _ in range(300)]) > 5


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
    for seed, day in enumerate((maker.busy(), maker.staffed())):
        chance = random.Random(seed)
        receipts = [receipt for _ in range(200) if (receipt := resigned_body(chance, day)) is not None]
        assert both_say_the_same(day, receipts) > 3


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
