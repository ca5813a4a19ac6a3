"""Texts that stay outside the ledger: opened only with their salt, and only where their digest was signed."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from tests.verifier import maker
from tests.verifier.judging import faults, pins, remarks
from tests.verifier.maker import ALICE, BOB, Json, Ledger, b64, canonical, leaf_hash
from verifier.receipt import check_receipt
from verifier.verdict import Report

SALT, OTHER_SALT = bytes(range(32)), bytes(32)


def digest(value: str, salt: bytes = SALT) -> str:
    return sha256(salt + value.encode()).hexdigest()


def story() -> Ledger:
    """An acquire, a break and a batch, each with a reason that only its digest stands for: 5, 6, 7 to 9."""
    ledger = maker.opened()
    named: Json = {"resource": "lock:a", "reasonDigest": digest("to deploy")}
    ledger.grant(ALICE, "lock:a", body_members=named)
    ledger.grant(BOB, "lock:b")
    release: Json = {"action": "lease.release", "resource": "lock:b", "reasonDigest": digest("all done")}
    acquire: Json = {"action": "lease.acquire", "resource": "lock:c", "reasonDigest": digest("again, ümläut")}
    header = ledger.batch(BOB, release, acquire)
    ledger.answer("lease.released", header, ledger.released(BOB, 6))
    ledger.answer("lease.granted", header, ledger.new_lease("lock:c"))
    return ledger


LEDGER = story()
BUSY = maker.busy()
PINS = pins(LEDGER)


def field(value: str | None = "to deploy", name: str = "reasonDigest", salt: bytes | None = SALT, **more: Any) -> Json:
    shown = {} if value is None else {"value": value}
    return {"name": name, "salt": None if salt is None else b64(salt), **shown, **more}


def private(seq: int, *fields: Json, ledger: Ledger = LEDGER, **over: Any) -> bytes:
    whole = {"type": "tallystick/private/1", "leafHash": leaf_hash(ledger.leaves[seq]).hex(), "fields": list(fields)}
    return canonical({**whole, **over})


def judge(seq: int, content: bytes) -> Report:
    return check_receipt(LEDGER.receipt(seq), PINS, private=content)


def said(report: Report) -> list[str]:
    return [sentence for sentence in report.statement if sentence.startswith("private")]


def test_a_text_that_was_signed_for_is_shown() -> None:
    report = judge(5, private(5, field()))
    assert (report.exit_code, faults(report), said(report)) == (0, [], ["private reasonDigest: to deploy"])
    assert judge(5, private(5)).exit_code == 0


def test_a_digest_in_the_leaf_is_found_there() -> None:
    hold = BUSY.value(13)
    assert hold["type"] == "tallystick/lease.broken/1" and hold["reasonDigest"] == "5a" * 32
    ledger = maker.opened()
    grant = ledger.grant(ALICE, "lock:a")
    body: Json = {"resource": "lock:a", "seenToken": ledger.token, "reason": "gone", "reasonDigest": digest("why")}
    members = {
        **body,
        **ledger.later(grant, "resources", "leaseId", "fencingToken", "holder", "grantSeq", "grantedAtMs"),
    }
    seq = ledger.decision("lease.broken", maker.OPERATOR, "lease.break", body, members)
    content = private(seq, field("why"), ledger=ledger)
    report = check_receipt(ledger.receipt(seq), pins(ledger), private=content)
    assert (report.exit_code, said(report)) == (0, ["private reasonDigest: why"])


def test_an_erased_text_stays_closed_and_everything_else_holds() -> None:
    report = judge(5, private(5, field(None, salt=None)))
    assert (report.exit_code, report.level) == (0, "included")
    assert said(report) == ["private reasonDigest: erased: not opened"]


def test_a_command_has_the_texts_of_its_own_command_only() -> None:
    release, acquire = field("all done"), field("again, ümläut")
    assert judge(8, private(8, release)).exit_code == 0
    assert judge(8, private(8, {**release, "index": 0})).exit_code == 0
    assert faults(judge(8, private(8, acquire))) == [(12, "private_differs")]
    assert faults(judge(8, private(8, {**acquire, "index": 1}))) == [(12, "private_unknown")]
    assert said(judge(9, private(9, acquire))) == ["private reasonDigest: again, ümläut"]


def test_the_header_of_a_batch_has_the_texts_of_all_its_commands_by_their_places() -> None:
    fields = [field("all done", index=0), field("again, ümläut", index=1)]
    report = judge(7, private(7, *fields))
    assert (report.exit_code, len(said(report))) == (0, 2)
    assert faults(judge(7, private(7, field("all done", index=1)))) == [(12, "private_differs")]
    for place in ({"index": 2}, {"index": 10**9}, {}):
        assert faults(judge(7, private(7, {**field("all done"), **place}))) == [(12, "private_unknown")]


LIES = [
    ("another text", private(5, field("to delay")), "private_differs"),
    ("another salt", private(5, field(salt=OTHER_SALT)), "private_differs"),
    ("a text that takes a byte from its salt", private(5, field("\u001fto deploy")), "private_differs"),
    ("a good one and a bad one", private(5, field(), field("x")), "private_differs"),
    ("a member that has no digest", private(5, field(name="resource")), "private_differs"),
    ("a member that is no text", private(5, field(name="ttlMs")), "private_unknown"),
    ("a member that nobody signed", private(5, field(name="note")), "private_unknown"),
    ("an erased text that nobody signed", private(5, field(None, name="note", salt=None)), "private_unknown"),
    ("a command of no batch", private(5, field(index=0)), "private_unknown"),
    ("an entry of the gateway", private(1, field()), "private_other_leaf"),
    ("the hash of nothing", private(5, field(), leafHash="00" * 32), "private_other_leaf"),
]


@pytest.mark.parametrize(("content", "code"), [row[1:] for row in LIES], ids=[row[0] for row in LIES])
def test_what_does_not_fit_makes_the_receipt_invalid_here(content: bytes, code: str) -> None:
    report = judge(5, content)
    assert (report.exit_code, faults(report), said(report)) == (1, [(12, code)], [])


def test_an_entry_without_a_request_has_no_private_texts() -> None:
    assert faults(judge(1, private(1, field()))) == [(12, "private_unknown")]


MALFORMED = [
    b"",
    b"[]",
    b"\xff",
    private(5, field(), type="tallystick/private/2"),
    private(5, field(), leafHash="5A" * 32),
    private(5, field(), leafHash=7),
    private(5, field(), fields={}),
    private(5, field(), more=1),
    private(5, {**field(), "more": 1}),
    private(5, {"name": "reasonDigest", "value": "x"}),
    private(5, {"salt": b64(SALT), "value": "x"}),
    private(5, field(salt=SALT[:31])),
    private(5, {**field(), "salt": 7}),
    private(5, {**field(), "value": 7}),
    private(5, {**field(), "name": 7}),
    private(5, {**field(), "index": -1}),
    private(5, {**field(), "index": True}),
    private(5, {**field(), "index": "0"}),
    private(5, field("x", salt=None)),
    private(5, field(None)),
    private(5, field()).replace(b'{"fields"', b'{"fields":[],"fields"'),
]


@pytest.mark.parametrize("content", MALFORMED, ids=range(len(MALFORMED)))
def test_a_file_that_is_none_is_exit_2(content: bytes) -> None:
    report = judge(5, content)
    assert (report.exit_code, faults(report)) == (2, [(0, "private_malformed")])


def test_of_an_invalid_receipt_nothing_is_shown() -> None:
    forged = canonical({**LEDGER.envelope(5), "signatures": LEDGER.envelope(6)["signatures"]})
    report = check_receipt(forged, PINS, private=private(5, field()))
    assert (report.exit_code, said(report)) == (1, [])
    broken = check_receipt(b"rubbish", PINS, private=private(5, field()))
    assert (broken.exit_code, faults(broken)[-1]) == (1, (12, "private_other_leaf"))


def test_a_text_is_escaped_like_everything_that_comes_from_outside() -> None:
    hostile = "\x1b[2J\u202e\nVALID"
    ledger = maker.opened()
    seq = ledger.grant(ALICE, "lock:a", body_members={"resource": "lock:a", "reasonDigest": digest(hostile)})
    report = check_receipt(ledger.receipt(seq), pins(ledger), private=private(seq, field(hostile), ledger=ledger))
    assert report.exit_code == 0 and "private_malformed" not in remarks(report)
    assert report.as_text().isascii() and "\x1b" not in report.as_text() and "\nVALID\n" not in report.as_text()[5:]
    assert json.loads(report.as_json())["statement"][-1].startswith("private reasonDigest: \\x1b")
