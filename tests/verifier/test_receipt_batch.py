"""Receipts of sessions and of commands: what else step 10 reads, each lie about it, and every flipped byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.verifier import maker
from tests.verifier.delegation_stories import STORIES, Story
from tests.verifier.judging import faults, pins, remarks
from tests.verifier.maker import ALICE, BOB, CAROL, OPERATOR, SESSION, Json, Ledger, b64, canonical
from verifier import request
from verifier.entries import parse_leaf
from verifier.evidence import check_command
from verifier.receipt import check_receipt
from verifier.verdict import Report
from verifier.wire import Malformed

STAFFED = maker.staffed()
PINS = pins(STAFFED)
HEADER, GRANT, RELEASE = 16, 17, 19


def judge(receipt: bytes, ledger: Ledger = STAFFED, **options: Any) -> Report:
    return check_receipt(receipt, pins(ledger), **options)


def edited(seq: int = GRANT, **changes: Any) -> bytes:
    return canonical({**STAFFED.envelope(seq), **changes})


def part(**changes: Any) -> Json:
    return {**STAFFED.batch_part(HEADER), **changes}


@pytest.mark.parametrize("seq", range(len(STAFFED.leaves)))
def test_every_entry_of_a_staffed_day_has_a_valid_receipt(seq: int) -> None:
    report = judge(STAFFED.receipt(seq))
    assert (report.exit_code, report.level, faults(report)) == (0, "included", [])


# --- what a receipt says ---


def test_a_receipt_says_for_whom_the_actor_acts() -> None:
    said = judge(STAFFED.receipt(14)).statement
    assert said[0].endswith(f" by {SESSION.did}")
    assert said[1] == f"for principal {ALICE.did}, on behalf of operator {OPERATOR.did}"


def test_an_operator_and_the_gateway_act_for_nobody_else() -> None:
    for seq in (5, 7, 32):
        assert not any("on behalf of" in sentence for sentence in judge(STAFFED.receipt(seq)).statement)


@pytest.mark.parametrize(
    ("seq", "wanted"),
    [
        (7, f"agent {CAROL.did} is enrolled"),
        (7, f"API key with digest {maker.LIVE}"),
        (7, "key held by the gateway: consent not proven"),
        (10, f"the key of {maker.CUSTODIAL.did} is held by the gateway"),
        (12, "key held by the gateway: consent not proven"),
        (13, "only for resources repo:**"),
        (16, "a batch of 4 commands, whose answers are the next entries"),
        (17, "the answer to command 0 of the batch at entry 16"),
        (21, "a batch of 2 commands, none of which was carried out: command 1 (lease.acquire)"),
        (25, f"session {SESSION.did} is closed; 2 leases, 0 tickets are given back"),
        (26, f"lease L14 of {SESSION.did}, token {STAFFED.value(14)['fencingToken']}, is given back: entry 25"),
        (32, f"session {maker.OTHER_SESSION.did} has ended; 1 leases, 0 tickets are given back"),
        (32, "reason idle"),
    ],
)
def test_new_entries_are_told_in_words(seq: int, wanted: str) -> None:
    assert wanted in judge(STAFFED.receipt(seq)).statement


def test_a_lease_of_a_session_may_be_over_when_the_session_is_silent() -> None:
    grant = STAFFED.value(14)
    assert grant["endsIfIdleAtMs"] < grant["expiresAtMs"]
    assert judge(STAFFED.receipt(14), now_ms=grant["endsIfIdleAtMs"] - 1).exit_code == 0
    late = judge(STAFFED.receipt(14), now_ms=grant["endsIfIdleAtMs"])
    assert (faults(late), late.exit_code) == ([(11, "expired")], 3)


# --- delegations ---


def opened_by(story: Story) -> tuple[Ledger, int]:
    ledger = maker.opened()
    ledger.time_ms += 10 - ledger.time_ms % 10
    at_ms = ledger.time_ms
    ledger.time_ms = at_ms + story.after_ms
    return ledger, ledger.open_with(SESSION, story.build(at_ms))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_the_chain_behind_a_session_is_judged_in_its_receipt(story: Story) -> None:
    """Statements that break a rule are found here, whatever the gateway wrote; what needs the ledger is not."""
    try:
        ledger, seq = opened_by(story)
        parse_leaf(ledger.leaves[seq])
    except (KeyError, ValueError):
        assert story.refusal is not None  # no leaf can even say so
        return
    found = [code for _, code in faults(judge(ledger.receipt(seq), ledger))]
    wanted = [] if story.refusal is None or not story.is_stateless else [story.refusal]
    assert [code for code in found if code.startswith("delegation")] == wanted
    if story.refusal is None:
        assert found == []


LIES_OPENED: list[tuple[str, Callable[[Json], None], str]] = [
    ("a verb more", lambda leaf: leaf.update(verbs=["lease", "transfer"]), "body_differs"),
    ("another scope", lambda leaf: leaf.update(scope=["repo:b"]), "body_differs"),
    ("every name", lambda leaf: leaf.pop("scope"), "body_differs"),
    ("a longer time", lambda leaf: leaf.update(expiresAtMs=leaf["expiresAtMs"] + 1), "body_differs"),
    ("another label", lambda leaf: leaf.update(name="root"), "body_differs"),
    ("for another agent", lambda leaf: leaf.update(principal=BOB.did), "issuer_differs"),
    ("for itself", lambda leaf: leaf.update(principal=SESSION.did), "issuer_differs"),
    ("on behalf of another", lambda leaf: leaf.update(onBehalfOf=CAROL.did), "issuer_differs"),
]


@pytest.mark.parametrize(("change", "wanted"), [row[1:] for row in LIES_OPENED], ids=[row[0] for row in LIES_OPENED])
def test_a_session_may_do_what_was_signed_for_whom_it_was_signed(change: Callable[[Json], None], wanted: str) -> None:
    ledger = maker.opened()
    seq = ledger.open_session(SESSION, OPERATOR, ALICE, change=change, verbs=["lease"], resources=["repo:a"])
    assert faults(judge(ledger.receipt(seq), ledger)) == [(10, wanted)]


def test_one_statement_is_of_the_agent_or_of_the_operator_behind() -> None:
    """Alone, a statement of an agent leaves open who its operator is; that is the ledger's to say."""
    for issuer, change, wanted in (
        (ALICE, {"principal": BOB.did}, [(10, "issuer_differs")]),
        (ALICE, {"principal": SESSION.did}, [(10, "issuer_differs")]),
        (ALICE, {"onBehalfOf": CAROL.did}, []),
        (OPERATOR, {"onBehalfOf": CAROL.did}, [(10, "issuer_differs")]),
    ):
        ledger = maker.opened()
        seq = ledger.open_session(SESSION, issuer, change=partial(dict.update, **change))
        assert faults(judge(ledger.receipt(seq), ledger)) == wanted


def test_a_key_enrolled_by_api_key_has_proven_that_it_is_there() -> None:
    for proof in (maker.enrolment_proof(BOB, maker.LIVE), maker.enrolment_proof(CAROL, maker.TRIAL)):
        ledger = maker.opened()
        ledger.issue(maker.LIVE)
        seq = ledger.enrol(CAROL, maker.LIVE, proof=proof)
        assert faults(judge(ledger.receipt(seq), ledger)) == [(10, "proof_invalid")]


# --- commands ---


def test_a_command_is_checked_with_the_evidence_of_its_batch() -> None:
    report = judge(STAFFED.receipt(GRANT), level="included")
    assert (report.exit_code, report.direct_signature) == (0, "valid")
    assert remarks(report) == ["not_witnessed", "authority_not_checked", "anchor_root_not_checked"]


def test_a_command_without_its_direct_signature_rests_on_inclusion() -> None:
    report = judge(edited(signatures=[]))
    assert (report.exit_code, report.level, report.direct_signature) == (0, "included", "left_out")
    assert "signature_left_out" in remarks(report)
    assert "direct signature: left out\n" in report.as_text()
    assert json.loads(report.as_json())["directSignature"] == "left_out"
    wrong = STAFFED.proof(GRANT).replace("index 17", "index 18")
    assert judge(edited(signatures=[], proof=wrong)).exit_code == 1


def other_batch() -> str:
    """The leaf of another batch of the same actor, whose command 0 is the same."""
    ledger = maker.staffed()
    leaf = ledger.value(HEADER)
    leaf["request"] = ledger.request(SESSION, "batch.submit", {"commands": [{"action": "lease.acquire"}] * 4})
    return b64(canonical(leaf))


WRONG = b64(bytes(32))
BAD_RECEIPTS: list[tuple[str, bytes, list[tuple[int, str]]]] = [
    ("no batch", canonical({n: v for n, v in STAFFED.envelope(17).items() if n != "batch"}), [(10, "batch_missing")]),
    ("a batch for what is no command", edited(14, batch=part()), [(10, "batch_unexpected")]),
    ("a batch for an entry of the gateway", edited(32, batch=part()), [(10, "batch_unexpected")]),
    ("no signature and no command", edited(14, batch=part(), signatures=[]), [(10, "batch_unexpected")]),
    ("no signature and no batch", edited(14, signatures=[]), [(2, "envelope_malformed")]),
    ("two signatures", edited(signatures=STAFFED.envelope(17)["signatures"] * 2), [(2, "envelope_malformed")]),
    ("a batch as a list", edited(batch=[]), [(2, "envelope_malformed")]),
    ("a member more", edited(batch=part(more=1)), [(2, "envelope_malformed")]),
    ("no path", edited(batch={"leaf": part()["leaf"]}), [(2, "envelope_malformed")]),
    ("a path of 64 hashes", edited(batch=part(path=[WRONG] * 64)), [(2, "envelope_malformed")]),
    ("a short hash", edited(batch=part(path=["AAAA"])), [(2, "envelope_malformed")]),
    ("a path of numbers", edited(batch=part(path=[1])), [(2, "envelope_malformed")]),
    ("a leaf above its bound", edited(batch=part(leaf=b64(b" " * 65_536))), [(1, "too_large")]),
    ("another path", edited(batch=part(path=[WRONG])), [(10, "batch_not_included")]),
    ("rubbish for a leaf", edited(batch=part(leaf="AAAA")), [(10, "batch_malformed"), (10, "evidence_missing")]),
    (
        "another batch of the ledger",
        edited(batch=STAFFED.batch_part(22)),
        [(10, "batch_differs")],
    ),
    (
        "an entry that is no batch",
        edited(batch=STAFFED.batch_part(14)),
        [(10, "batch_differs")],
    ),
    (
        "an entry of the gateway",
        edited(batch=STAFFED.batch_part(1)),
        [(10, "batch_differs"), (10, "evidence_missing")],
    ),
    ("a batch that nobody signed", edited(batch=part(leaf=other_batch())), [(10, "batch_not_included")]),
]


@pytest.mark.parametrize(("receipt", "wanted"), [row[1:] for row in BAD_RECEIPTS], ids=[row[0] for row in BAD_RECEIPTS])
def test_each_lie_about_a_batch_fails_at_its_step(receipt: bytes, wanted: list[tuple[int, str]]) -> None:
    report = judge(receipt)
    assert report.exit_code == 1
    if wanted[-1][1] == "batch_not_included" and len(faults(report)) > 1:
        assert wanted[0] in faults(report)
    else:
        assert faults(report) == wanted


def command(index: int, change: Callable[[Json], None] | None = None, **over: Any) -> list[tuple[int, str]]:
    """The findings about one command of a batch of three, changed before it is linked."""
    ledger = maker.opened()
    ledger.time_ms += 5_000
    held = ledger.grant(ALICE, "lock:mine")
    acquire = {"action": "lease.acquire", "resource": "lock:a", "ttlMs": 9_000}
    renew, release = {"action": "lease.renew", "leaseId": f"L{held}"}, {"action": "lease.release", "resource": "lock:a"}
    header = ledger.batch(ALICE, acquire, renew, release, **over)
    changes = [change if index == n else None for n in range(3)]
    first = ledger.answer("lease.granted", header, ledger.new_lease("lock:a", ttl_ms=9_000), changes[0])
    ledger.answer("lease.renewed", header, ledger.renewed(held), changes[1])
    ledger.answer("lease.released", header, ledger.released(ALICE, first), changes[2])
    return faults(judge(ledger.receipt(header + 1 + index), ledger))


LIES_COMMAND: list[tuple[int, Callable[[Json], None], str]] = [
    (0, lambda leaf: leaf.update(resources=["lock:b"]), "body_differs"),
    (0, lambda leaf: leaf.update(mode="read"), "body_differs"),
    (0, lambda leaf: leaf.update(ttlMs=8_000, expiresAtMs=leaf["expiresAtMs"] - 1_000), "body_differs"),
    (0, lambda leaf: leaf.update(actor=BOB.did, principal=BOB.did), "batch_differs"),
    (0, lambda leaf: leaf.update(onBehalfOf=BOB.did), "batch_differs"),
    (0, lambda leaf: leaf.update(custody="gateway"), "batch_differs"),
    (0, lambda leaf: leaf.update(epoch=3), "batch_differs"),
    (1, lambda leaf: leaf.update(ttlMs=20_000), "body_differs"),
    (1, lambda leaf: leaf.update(timeMs=leaf["timeMs"] + 1, expiresAtMs=leaf["expiresAtMs"] + 1), "batch_differs"),
]


@pytest.mark.parametrize(("index", "change", "wanted"), LIES_COMMAND, ids=range(len(LIES_COMMAND)))
def test_a_command_says_what_its_batch_asked_and_is_of_its_moment(
    index: int, change: Callable[[Json], None], wanted: str
) -> None:
    assert command(index) == []
    assert command(index, change) == [(10, wanted)]


def test_a_command_of_another_action_than_was_asked_is_found() -> None:
    def swapped(leaf: Json) -> None:
        leaf.update(type="tallystick/release.repeated/1", endedSeq=1)
        for name in ("fencingToken", "grantSeq", "grantedAtMs"):
            del leaf[name]

    ledger = maker.opened()
    header = ledger.batch(ALICE, {"action": "lease.acquire", "resource": "lock:a"})
    members = {"resources": ["lock:a"], "leaseId": "L3", "endedSeq": 2}
    seq = ledger.answer("release.repeated", header, members)
    assert faults(judge(ledger.receipt(seq), ledger)) == [(10, "body_differs")]
    assert command(2, swapped) == [(10, "body_differs")]


def test_a_release_in_a_batch_ends_no_lease_that_its_signer_did_not_know() -> None:
    assert command(2, created=maker.T0 // 1000 - 20) == [(10, "released_unseen")]


def test_faults_of_the_batchs_evidence_are_found_in_the_receipt_of_a_command() -> None:
    over: list[tuple[Json, str]] = [
        ({"signer": BOB}, "request_signature_invalid"),
        ({"tag": "other"}, "evidence_malformed"),
        ({"path": maker.PATHS["lease.acquire"]}, "target_wrong"),
        ({"created": maker.T0 // 1000 + 900}, "outside_window"),
    ]
    for lie, wanted in over:
        assert (10, wanted) in command(0, **lie)


def test_a_command_may_have_failed() -> None:
    ledger = maker.opened()
    header = ledger.batch(ALICE, {"action": "lease.acquire", "resource": "lock:a"})
    failed = {"action": "lease.acquire", "error": "decision_failed", "number": 901}
    seq = ledger.answer("decision.failed", header, failed)
    assert faults(judge(ledger.receipt(seq), ledger)) == []


def test_many_commands_are_read_from_one_reading_of_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 256 is else read 256 times, 40 KiB each."""
    ledger = maker.opened()
    header = ledger.batch(ALICE, *[{"action": "lease.acquire", "resource": f"lock:{n}"} for n in range(256)])
    seqs = [ledger.answer("lease.granted", header, ledger.new_lease(f"lock:{n}")) for n in range(256)]
    read: list[str] = []
    parse = request.parse_signature_input

    def counted(value: str) -> request.SignatureInput:
        read.append(value)
        return parse(value)

    monkeypatch.setattr(request, "parse_signature_input", counted)
    whole = parse_leaf(ledger.leaves[header])
    assert [check_command(parse_leaf(ledger.leaves[seq]), whole) for seq in seqs] == [()] * 256
    assert len(read) == 1


@pytest.mark.parametrize("bare", [False, True])
def test_every_flipped_byte_of_a_commands_receipt_is_refused(bare: bool) -> None:
    ledger = maker.opened()
    header = ledger.batch(ALICE, {"action": "lease.acquire", "resource": "lock:a"})
    seq = ledger.answer("lease.granted", header, ledger.new_lease("lock:a"))
    keyring, receipt = pins(ledger), canonical({**ledger.envelope(seq), **({"signatures": []} if bare else {})})
    assert check_receipt(receipt, keyring).exit_code == 0
    for place in range(len(receipt)):
        flipped = receipt[:place] + bytes([receipt[place] ^ 1]) + receipt[place + 1 :]
        assert check_receipt(flipped, keyring).exit_code == 1, place


def test_every_flipped_byte_of_a_sessions_receipt_is_refused() -> None:
    ledger = maker.opened()
    seq = ledger.open_session(SESSION, OPERATOR, ALICE, resources=["repo:a"])
    keyring, receipt = pins(ledger), ledger.receipt(seq)
    assert check_receipt(receipt, keyring).exit_code == 0
    for place in range(len(receipt)):
        flipped = receipt[:place] + bytes([receipt[place] ^ 1]) + receipt[place + 1 :]
        assert check_receipt(flipped, keyring).exit_code == 1, place


# --- what only a second look finds ---


def test_a_batch_has_as_many_answers_as_it_says() -> None:
    ledger = maker.opened()
    header = ledger.batch(ALICE, {"action": "lease.acquire", "resource": "lock:a"})
    ledger.answer("lease.granted", header, ledger.new_lease("lock:a"))
    more = ledger.answer("lease.granted", header, ledger.new_lease("lock:b"))
    assert faults(judge(ledger.receipt(more), ledger)) == [(10, "batch_differs")]


def test_nothing_answers_a_batch_that_was_refused() -> None:
    ledger = maker.opened()
    held = ledger.grant(BOB, "lock:b")
    refused = {
        "count": 2,
        "isAtomic": True,
        "index": 1,
        "action": "lease.acquire",
        **ledger.held_members(held, "lock:b"),
    }
    commands = [{"action": "lease.acquire", "resource": name} for name in ("lock:a", "lock:b")]
    body = {"commands": commands, "isAtomic": True}
    header = ledger.decision("batch.refused", ALICE, "batch.submit", body, refused)
    assert faults(judge(ledger.receipt(header), ledger)) == []
    answer = ledger.answer("lease.granted", header, ledger.new_lease("lock:a"))
    assert faults(judge(ledger.receipt(answer), ledger)) == [(10, "batch_differs")]


def test_a_refused_batch_names_the_action_of_the_command_it_names() -> None:
    ledger = maker.opened()
    held = ledger.grant(BOB, "lock:b")
    refused = {
        "count": 1,
        "isAtomic": True,
        "index": 0,
        "action": "lease.release",
        **ledger.held_members(held, "lock:b"),
    }
    body = {"commands": [{"action": "lease.acquire", "resource": "lock:b"}], "isAtomic": True}
    header = ledger.decision("batch.refused", ALICE, "batch.submit", body, refused)
    assert faults(judge(ledger.receipt(header), ledger)) == [(10, "body_differs")]


def test_a_failed_command_names_its_own_action() -> None:
    ledger = maker.opened()
    header = ledger.batch(ALICE, {"action": "lease.acquire", "resource": "lock:a"})
    failed = {"action": "lease.release", "error": "decision_failed", "number": 901}
    seq = ledger.answer("decision.failed", header, failed)
    assert faults(judge(ledger.receipt(seq), ledger)) == [(10, "body_differs")]


def test_a_command_comes_with_its_own_batch_and_no_twin_of_it() -> None:
    ledger = maker.opened()
    headers = []
    for _ in range(2):
        headers.append(ledger.batch(ALICE, {"action": "lease.acquire", "resource": "lock:a"}))
        seq = ledger.answer("lease.granted", headers[-1], ledger.new_lease("lock:a"))
    whole = {**ledger.envelope(seq), "batch": ledger.batch_part(headers[0])}
    assert faults(judge(canonical(whole), ledger)) == [(10, "batch_differs")]


def test_an_operator_lends_to_no_session_through_itself() -> None:
    ledger = maker.opened()
    seq = ledger.open_session(SESSION, OPERATOR, OPERATOR)
    assert faults(judge(ledger.receipt(seq), ledger)) == [(10, "issuer_differs")]


def test_what_a_session_earns_is_its_agents() -> None:
    ledger = maker.opened()
    ledger.open_session(SESSION, ALICE)
    grant = ledger.grant(SESSION, "lock:a")
    ledger.time_ms += 2_000
    seq = ledger.release(SESSION, grant)
    assert ledger.value(seq)["trust"][0]["did"] == ALICE.did
    assert faults(judge(ledger.receipt(seq), ledger)) == []
    wrong = ledger.value(seq)
    wrong["trust"][0]["did"] = SESSION.did
    with pytest.raises(Malformed, match="trust"):
        parse_leaf(canonical(wrong))
