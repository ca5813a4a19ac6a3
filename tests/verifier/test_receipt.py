"""The ladder of one receipt: each step has a lie that fails exactly there; levels; pins; every flipped byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.verifier import key_stories, maker
from tests.verifier.judging import faults, pins, remarks
from tests.verifier.maker import ALICE, BOB, LOG, ORIGIN, RECEIPT, STRANGER, Key, Ledger, b64, canonical
from tests.verifier.test_every_type import every
from verifier.entries import _in_words, moment, parse_leaf
from verifier.keyring import Keyring, open_keyring
from verifier.receipt import _statement, check_receipt
from verifier.verdict import Report
from verifier.wire import INT_MAX

GRANT = 5  # the first grant of `worked`
WORKED = maker.worked()
HELD = (
    "held from {timeMs} until at most {expiresAtMs} unless released, given back, broken or transferred later; not"
    " checked here"
)


def judge(receipt: bytes, ledger: Ledger = WORKED, **options: Any) -> Report:
    return check_receipt(receipt, pins(ledger), **options)


def edited(**changes: Any) -> bytes:
    return canonical({**WORKED.envelope(GRANT), **changes})


def with_leaf(leaf: bytes, index: int = GRANT) -> bytes:
    """A receipt whose leaf is really in a tree that the log signed: only the leaf itself is wrong."""
    other = Ledger(leaves=[*WORKED.leaves[:index], leaf, *WORKED.leaves[index + 1 :]])
    return other.receipt(index)


def changed_leaf(**changes: Any) -> bytes:
    return with_leaf(canonical({**WORKED.value(GRANT), **changes}))


def proof_edited(edit: Callable[[str], str]) -> bytes:
    return edited(proof=edit(WORKED.proof(GRANT)))


def test_an_honest_receipt_is_valid_and_says_what_it_does_not_know() -> None:
    report = judge(WORKED.receipt(GRANT))
    grant = WORKED.value(GRANT)
    assert (report.exit_code, report.level, report.direct_signature) == (0, "included", "valid")
    assert report.completeness == "unknown"
    assert faults(report) == []
    assert remarks(report) == ["not_witnessed", "authority_not_checked", "anchor_root_not_checked"]
    assert report.statement == (
        f"entry 5 of {ORIGIN}: tallystick/lease.granted/1 at {moment(grant['timeMs'])} by {ALICE.did}",
        f"for principal {ALICE.did}, on behalf of operator {maker.OPERATOR.did}",
        "resource lock:deploy/production",
        "resource repo:app/src/a.py",
        f"held from {moment(grant['timeMs'])} until at most {moment(grant['expiresAtMs'])} "
        "unless released, given back, broken or transferred later; not checked here",
        "mode write",
        f"fencing token {grant['fencingToken']}",
    )


@pytest.mark.parametrize("seq", range(len(WORKED.leaves)))
@pytest.mark.parametrize("size", [None, 0])
def test_every_entry_of_a_working_day_has_a_valid_receipt_at_its_own_and_the_last_size(
    seq: int, size: int | None
) -> None:
    report = judge(WORKED.receipt(seq, seq + 1 if size == 0 else None))
    assert (report.exit_code, report.level) == (0, "included")


def test_the_envelope_may_be_spaced_and_ordered_freely() -> None:
    envelope = WORKED.envelope(GRANT)
    text = json.dumps(dict(reversed(envelope.items())), indent=2).encode()
    assert judge(text).exit_code == 0


def noisy_proof(text: str) -> str:
    """70,000 bytes of signature lines of nobody: larger than any proof may be."""
    return text + LOG.note_line("nobody.example", "x") * 600


def log_line(checkpoint: bytes) -> str:
    return checkpoint.decode().split("\n\n")[1]


def foreign_cosignature() -> str:
    return maker.WITNESSES["w1"].cosignature("w1", "another text\n")


def without_line(text: str, number: int) -> str:
    lines = text.split("\n")
    return "\n".join([*lines[:number], *lines[number + 1 :]])


LADDER: list[tuple[str, bytes, list[tuple[int, str]]]] = [
    ("a receipt above its bound", b" " * 262_145, [(1, "too_large")]),
    ("a leaf above its bound", edited(payload=b64(b" " * 65_536)), [(1, "too_large")]),
    ("a proof above its bound", proof_edited(noisy_proof), [(1, "too_large")]),
    ("not JSON", b"receipt", [(2, "envelope_malformed")]),
    ("nothing", b"", [(2, "envelope_malformed")]),
    ("a member too many", edited(extra=1), [(2, "envelope_malformed")]),
    ("a duplicate member", WORKED.receipt(GRANT)[:-1] + b',"proof":""}', [(2, "envelope_malformed")]),
    ("another payload type", edited(payloadType="application/json"), [(2, "envelope_malformed")]),
    ("no signature", edited(signatures=[]), [(2, "envelope_malformed")]),
    ("two signatures", edited(signatures=WORKED.envelope(5)["signatures"] * 2), [(2, "envelope_malformed")]),
    ("payload in odd base64", edited(payload=WORKED.envelope(5)["payload"] + "\n"), [(2, "envelope_malformed")]),
    ("payload as a number", edited(payload=7), [(2, "envelope_malformed")]),
    (
        "a receipt key that is not pinned",
        canonical(maker.envelope(WORKED.leaves[5], WORKED.proof(5), STRANGER)),
        [(3, "receipt_key_unknown")],
    ),
    (
        "the log key as receipt key",
        canonical(maker.envelope(WORKED.leaves[5], WORKED.proof(5), LOG)),
        [(3, "receipt_key_unknown")],
    ),
    (
        "a signature of another leaf",
        edited(signatures=WORKED.envelope(6)["signatures"]),
        [(3, "signature_invalid")],
    ),
    (
        "a signature over the leaf without its type",
        edited(signatures=[{"keyid": RECEIPT.thumbprint, "sig": b64(RECEIPT.sign(WORKED.leaves[5]))}]),
        [(3, "signature_invalid")],
    ),
    ("carriage returns in the proof", proof_edited(lambda t: t.replace("\n", "\r\n")), [(4, "proof_malformed")]),
    ("a leading zero", proof_edited(lambda t: t.replace("index 5", "index 05")), [(4, "proof_malformed")]),
    ("no proof", edited(proof=""), [(4, "proof_malformed")]),
    ("a proof without checkpoint", proof_edited(lambda t: t.split("\n\n")[0]), [(4, "proof_malformed")]),
    (
        "a checkpoint of nobody",
        proof_edited(lambda t: t[: t.rindex("—")] + STRANGER.note_line("x.example", "")),
        [(5, "log_signature_missing")],
    ),
    ("a checkpoint signed by another log key", WORKED.receipt(GRANT, log=STRANGER), [(5, "log_signature_missing")]),
    (
        "the log's line twice",
        proof_edited(lambda t: t + t[t.rindex("—") :]),
        [
            (5, "log_signature_invalid"),
            (5, "log_signature_missing"),
        ],
    ),
    (
        "the log's line for another size",
        proof_edited(lambda t: t[: t.rindex("—")] + log_line(WORKED.checkpoint(9))),
        [
            (5, "log_signature_invalid"),
            (5, "log_signature_missing"),
        ],
    ),
    ("a witness's line for another size", proof_edited(lambda t: t + foreign_cosignature()), [(7, "witness_invalid")]),
    (
        "another index",
        proof_edited(lambda t: t.replace("index 5", "index 4")),
        [(8, "not_included"), (9, "seq_differs")],
    ),
    ("a path cut short", proof_edited(lambda t: without_line(t, 2)), [(8, "not_included")]),
    (
        "a path too long",
        proof_edited(lambda t: t.replace("index 5\n", f"index 5\n{b64(bytes(32))}\n")),
        [(8, "not_included")],
    ),
    ("a leaf with a space", with_leaf(WORKED.leaves[5] + b" "), [(9, "leaf_malformed")]),
    ("a leaf with a member too many", changed_leaf(novelty=1), [(9, "leaf_malformed")]),
    ("a leaf at another place", with_leaf(WORKED.leaves[5], 7), [(9, "seq_differs")]),
    ("a leaf of another history", changed_leaf(genesis="ab" * 32), [(9, "genesis_differs")]),
    ("a leaf of an unknown type", changed_leaf(type="tallystick/lease.lent/1"), [(9, "type_unknown")]),
]


@pytest.mark.parametrize(("receipt", "wanted"), [row[1:] for row in LADDER], ids=[row[0] for row in LADDER])
def test_each_lie_fails_at_its_step_and_nowhere_else(receipt: bytes, wanted: list[tuple[int, str]]) -> None:
    report = judge(receipt)
    assert faults(report) == wanted
    failed = report.failed
    assert failed is not None and (failed.step, failed.code) == wanted[0]
    unknown = wanted == [(9, "type_unknown")]
    assert (report.exit_code, report.level) == ((3, "included") if unknown else (1, "none"))


def test_every_step_from_1_to_12_is_met_by_a_test() -> None:
    """10, 11 and 12 have tables of their own below; 6 needs other pins."""
    assert {step for _, _, wanted in LADDER for step, _ in wanted} == {1, 2, 3, 4, 5, 7, 8, 9}


def test_a_leaf_whose_origin_is_not_the_checkpoints_fails_at_step_9() -> None:
    receipt = changed_leaf(origin="gateway.example/other")
    assert (9, "origin_differs") in faults(judge(receipt))


# --- step 10: the evidence ---


def granted(**over: Any) -> list[tuple[int, str]]:
    """The faults of a grant to ALICE of lock:a whose request was made with `over`."""
    ledger = maker.opened()
    seq = ledger.grant(ALICE, "lock:a", **over)
    return faults(check_receipt(ledger.receipt(seq), pins(ledger)))


def evidence_edited(**changes: Any) -> list[tuple[int, str]]:
    """The faults of a grant whose evidence was edited after it was signed."""
    ledger = maker.opened()
    seq = ledger.grant(ALICE, "lock:a", change=lambda leaf: leaf["request"].update(changes))
    return faults(check_receipt(ledger.receipt(seq), pins(ledger)))


READ_SET = ("@method", "@authority", "@path", "@query", "tallystick-anchor")
ALL_BUT_DIGEST = tuple(name for name in maker._COMPONENTS if name != "content-digest")
LIES_SIGNED = [
    ("a read as evidence of a grant", {"method": "GET", "components": READ_SET}, ["components_wrong", "target_wrong"]),
    ("a method of another kind", {"method": "PUT"}, ["target_wrong"]),
    ("a release as evidence of a grant", {"path": maker.PATHS["lease.release"]}, ["target_wrong"]),
    ("a path that proxies rewrite", {"path": "/api//v1"}, ["evidence_malformed"]),
    ("a query with a fragment", {"query": "?#"}, ["evidence_malformed"]),
    ("no question mark", {"query": "a=b"}, ["evidence_malformed"]),
    ("an authority in capitals", {"authority": "Gateway.example"}, ["evidence_malformed"]),
    ("another content type", {"contentType": "text/plain"}, ["content_type_wrong"]),
    ("the body not covered", {"components": ALL_BUT_DIGEST}, ["components_wrong"]),
    ("a component more", {"components": (*maker._COMPONENTS, "host")}, ["components_wrong", "evidence_malformed"]),
    ("another tag", {"tag": "web-bot-auth"}, ["evidence_malformed"]),
    ("a short nonce", {"nonce": "n" * 21}, ["evidence_malformed"]),
    ("an anchor of another ledger", {"anchor": f"other.example/x 2 {b64(bytes(32))}"}, ["anchor_wrong"]),
    ("an anchor ahead of the entry", {"anchor": f"{ORIGIN} 6 {b64(bytes(32))}"}, ["anchor_wrong"]),
    ("a first anchor that is not entry 0", {"anchor": f"{ORIGIN} 1 {b64(bytes(32))}"}, ["anchor_wrong"]),
    ("an anchor with leading zeros", {"anchor": f"{ORIGIN} 01 {b64(bytes(32))}"}, ["evidence_malformed"]),
    ("a key of a quote", {"idempotencyKey": 'a"b'}, ["evidence_malformed"]),
    ("signed by another key", {"signer": BOB}, ["request_signature_invalid"]),
    ("created after the entry", {"created": maker.T0 // 1000 + 32}, ["outside_window"]),
    ("expired before the entry", {"created": maker.T0 // 1000 - 45}, ["outside_window"]),
    ("a life of 301 seconds", {"expires": maker.T0 // 1000 + 302}, ["outside_window"]),
    ("a life of no seconds", {"expires": maker.T0 // 1000 + 1}, ["outside_window"]),
    ("no JSON in the body", {"raw_body": "resource=lock:a"}, ["body_malformed"]),
    ("a duplicate member in the body", {"raw_body": '{"ledger":"a","ledger":"a"}'}, ["body_malformed"]),
    ("a float in the body", {"body_members": {"resource": "lock:a", "ttlMs": 30000.0}}, ["body_malformed"]),
    ("an unknown member", {"body_members": {"resource": "lock:a", "sessionId": "x"}}, ["body_malformed"]),
    ("another resource", {"body_members": {"resource": "lock:b"}}, ["body_differs"]),
    ("another ttl", {"body_members": {"resource": "lock:a", "ttlMs": 30_001}}, ["body_differs"]),
    ("another ledger", {"body_members": {"resource": "lock:a", "ledger": "other.example/x"}}, ["wrong_ledger"]),
    ("another actor", {"body_members": {"resource": "lock:a", "actorDid": BOB.did}}, ["actor_differs"]),
]


@pytest.mark.parametrize(("over", "wanted"), [row[1:] for row in LIES_SIGNED], ids=[row[0] for row in LIES_SIGNED])
def test_a_genuine_signature_does_not_make_unfit_evidence_fit(over: dict[str, Any], wanted: list[str]) -> None:
    assert granted(**over) == [(10, code) for code in wanted]


def test_the_default_ttl_and_mode_may_be_left_out_and_the_window_has_its_skew() -> None:
    assert granted(body_members={"resource": "lock:a"}) == []
    assert granted(body_members={"resources": ["lock:a"], "mode": "write", "ttlMs": 30_000}) == []
    assert granted(created=maker.T0 // 1000 + 31) == []
    assert granted(created=maker.T0 // 1000 - 43) == []


EDITED = {
    "method": "PUT",
    "authority": "gateway.example.org",
    "path": "/api/v1/acp/coordination/leas",
    "query": "?x",
    "idempotencyKey": "another",
    "anchor": f"{ORIGIN} 2 {b64(bytes(32))}",
    "contentType": "application/jso",
    "signature": b64(bytes(64)),
}


@pytest.mark.parametrize("name", EDITED)
def test_each_part_of_the_evidence_is_under_the_signature(name: str) -> None:
    assert (10, "request_signature_invalid") in evidence_edited(**{name: EDITED[name]})


def test_a_body_edited_in_a_way_that_keeps_its_meaning_still_breaks_the_signature() -> None:
    body = json.dumps({"ledger": ORIGIN, "actorDid": ALICE.did, "resources": ["lock:a"], "ttlMs": 30_000}, indent=1)
    assert evidence_edited(body=body) == [(10, "request_signature_invalid")]


def test_a_leaf_for_another_actor_than_the_signer_is_refused() -> None:
    """The gateway can't book a genuine request of ALICE to BOB."""

    def to_bob(leaf: dict[str, Any]) -> None:
        leaf.update(actor=BOB.did, principal=BOB.did, onBehalfOf=BOB.did)

    ledger = maker.opened()
    seq = ledger.grant(ALICE, "lock:a", change=to_bob)
    assert faults(check_receipt(ledger.receipt(seq), pins(ledger))) == [(10, "actor_differs"), (10, "actor_differs")]


def test_a_release_without_lease_id_ends_no_lease_granted_after_it_was_signed() -> None:
    """A delayed release must not end a lease that its signer did not know of; with the lease's name it may."""
    for granted_after_s, with_id, wanted in ((1, False, [(10, "released_unseen")]), (0, False, []), (1, True, [])):
        ledger = maker.opened()
        ledger.time_ms = maker.T0 + 5_000
        seq = ledger.grant(ALICE, "lock:a")
        body = {"resource": "lock:a", **({"leaseId": f"L{seq}"} if with_id else {})}
        members = ledger.later(seq, "resources", "leaseId", "fencingToken", "grantSeq", "grantedAtMs")
        created = ledger.time_ms // 1000 - granted_after_s
        end = ledger.decision("lease.released", ALICE, "lease.release", body, members, created=created)
        assert faults(check_receipt(ledger.receipt(end), pins(ledger))) == wanted


def test_a_decision_without_evidence_is_refused() -> None:
    ledger = maker.opened()
    seq = ledger.grant(ALICE, "lock:a", change=lambda leaf: leaf.pop("request"))
    assert faults(check_receipt(ledger.receipt(seq), pins(ledger))) == [(10, "evidence_missing")]


def test_a_refusal_is_told_in_the_statement() -> None:
    ledger = maker.opened()
    granted = ledger.grant(ALICE, "lock:a")
    report = check_receipt(ledger.receipt(ledger.refuse(BOB, granted, "lock:a")), pins(ledger))
    assert report.exit_code == 0
    grant = ledger.value(granted)
    assert report.statement[-2:] == (
        "refused: lease_held",
        f"held by {grant['actor']}, whose lease states its end as {moment(grant['expiresAtMs'])}; not checked here",
    )


BUSY = maker.busy()
SAID = [  # seq in a busy day, what its receipt says after the entry and its resources
    (10, ["queued as T10, position 1, must poll before {pollByMs}"]),
    (12, ["queued as T10, position 1, must poll before {pollByMs}"]),
    (14, ["ticket T10 is offered to {waiter}, who must claim before {claimByMs}"]),
    (15, ["refused: queued", f"behind ticket T10 of {BOB.did}"]),
    (16, [HELD, "mode write", "fencing token {fencingToken}"]),
    (17, []),
    (19, [HELD, "mode write", "fencing token {fencingToken}", "in place of lease L16"]),
    (21, [HELD, "mode write", "fencing token {fencingToken}", "in place of lease L7"]),
]


@pytest.mark.parametrize(("seq", "wanted"), SAID)
def test_a_receipt_says_what_a_ticket_and_a_lease_in_anothers_place_mean(seq: int, wanted: list[str]) -> None:
    report = judge(BUSY.receipt(seq), BUSY)
    assert report.exit_code == 0
    said = [sentence for sentence in report.statement[1:] if not sentence.startswith(("resource ", "for principal "))]
    assert said == [sentence.format_map(_in_words(BUSY.value(seq))) for sentence in wanted]


@pytest.mark.parametrize("seq", range(len(BUSY.leaves)))
def test_every_entry_of_a_busy_day_has_a_valid_receipt(seq: int) -> None:
    assert judge(BUSY.receipt(seq), BUSY).exit_code == 0


def test_entries_about_keys_and_witnesses_are_told_in_the_statement() -> None:
    ledger = maker.keyed()
    keyring = pins(ledger, keys=ledger.keys(lines=maker.keyed_lines()))
    told = [check_receipt(ledger.receipt(seq, 12, log=maker.NEW_LOG), keyring).statement[1:] for seq in (6, 7, 8, 10)]
    new, old, receipt = maker.NEW_LOG.vkey(ORIGIN), LOG.vkey(ORIGIN), RECEIPT.vkey(f"{ORIGIN}/receipt")
    assert told == [
        (f"log key {new} is announced; it counts from the next entry on",),
        ("the checkpoint of size 7, with lines of witnesses; not checked here",),
        (f"log key {old} is retired",),
        (f"receipt key {receipt} is disowned; what it alone has signed proves nothing any more",),
    ]


def test_a_deadlock_and_a_delay_are_told_in_the_statement() -> None:
    deadlock, delay = (every()["lease.refused"][number] for number in (2, 3))
    for leaf, sentences in (
        (
            deadlock,
            ["refused: deadlock", f"held by {BOB.did}, whose lease states its end as", "who waits in turn for lock:a"],
        ),
        (delay, ["refused: lock_delayed", f"kept free for {BOB.did} until"]),
    ):
        said = "\n".join(_statement(parse_leaf(leaf)))
        assert all(sentence in said for sentence in sentences)


def test_a_broken_lease_is_told_with_holder_id_operator_and_reason() -> None:
    leaf = parse_leaf(every()["lease.broken"][0])
    said = list(_statement(leaf))
    lease = f"lease {leaf.text('leaseId')} of {leaf.text('holder')}, token {leaf.number('fencingToken')}"
    assert f"{lease}, is broken by operator {leaf.actor}" in said
    assert f"reason {leaf.text('reason')}" in said


def test_the_other_moments_of_a_report_are_in_utc_too() -> None:
    end_ms = WORKED.value(GRANT)["expiresAtMs"]
    report = judge(WORKED.receipt(GRANT), now_ms=end_ms + 1)
    assert [finding.text for finding in report.findings if finding.code == "expired"] == [
        f"the stated end {moment(end_ms)} is not after --now {moment(end_ms + 1)}"
    ]


@pytest.mark.parametrize(
    ("ms", "utc"),
    [
        (0, "1970-01-01 00:00:00.000"),
        (951_782_399_999, "2000-02-28 23:59:59.999"),
        (951_782_400_000, "2000-02-29 00:00:00.000"),
        (1_795_992_523_344, "2026-11-29 22:48:43.344"),
        (4_107_542_399_999, "2100-02-28 23:59:59.999"),
        (4_107_542_400_000, "2100-03-01 00:00:00.000"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999"),
        (INT_MAX, "287396-10-12 08:59:00.991"),
    ],
)
def test_a_moment_is_shown_in_utc(ms: int, utc: str) -> None:
    assert moment(ms) == f"{ms} ({utc} UTC)"


def test_the_calendar_is_the_usual_one_on_every_day_of_an_era() -> None:
    for day in range(146_097):
        ms = day * 86_400_000 + day
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        assert moment(ms) == f"{ms} ({when:%Y-%m-%d %H:%M:%S}.{ms % 1_000:03} UTC)"


def test_the_end_of_a_lease_in_anothers_place_is_judged_too() -> None:
    for seq in (16, 19, 21):
        end_ms = BUSY.value(seq)["expiresAtMs"]
        assert faults(judge(BUSY.receipt(seq), BUSY, now_ms=end_ms)) == [(11, "expired")]
    assert "no_lease" in remarks(judge(BUSY.receipt(10), BUSY, now_ms=0))


def test_a_refusal_names_no_lease_that_the_request_did_not_name() -> None:
    """Only a release itself may fill in the lease id that was left open."""
    ledger = maker.opened()
    members = {"resources": ["lock:a"], "leaseId": "L4", "error": "lease_unknown", "number": 402}
    seq = ledger.decision("release.refused", ALICE, "lease.release", {"resource": "lock:a"}, members)
    assert faults(check_receipt(ledger.receipt(seq), pins(ledger))) == [(10, "body_differs")]


def test_a_failed_decision_names_its_action_and_is_checked_like_any_other() -> None:
    for action, wanted in (("lease.acquire", []), ("lease.release", [(10, "target_wrong"), (10, "body_malformed")])):
        ledger = maker.opened()
        members = {"action": action, "error": "decision_failed", "number": 901}
        body = {"resource": "lock:a", "ttlMs": 5_000}
        seq = ledger.decision("decision.failed", ALICE, "lease.acquire", body, members)
        assert faults(check_receipt(ledger.receipt(seq), pins(ledger))) == wanted


def test_a_custodial_entry_says_that_consent_is_not_proven() -> None:
    ledger = maker.opened()
    seq = ledger.grant(ALICE, "lock:a", change=lambda leaf: leaf.update(custody="gateway"))
    report = check_receipt(ledger.receipt(seq), pins(ledger))
    assert report.exit_code == 0
    assert report.statement[-1] == "key held by the gateway: consent not proven"


# --- pins, sizes, levels ---


def key_lines(log: str = "0 - active", receipt: str = "0 - active") -> list[str]:
    return [f"key log {LOG.vkey(ORIGIN)} {log}", f"key receipt {RECEIPT.vkey(ORIGIN + '/receipt')} {receipt}"]


def under(lines: list[str], seq: int = GRANT, witnesses: tuple[str, ...] = (), size: int | None = None) -> Report:
    keyring = pins(WORKED, keys=WORKED.keys(lines=lines))
    return check_receipt(WORKED.receipt(seq, size, witnesses), keyring)


FINAL = f"{len(WORKED.leaves)} {b64(WORKED.root())}"
STEP_6 = [
    ("retired after this size", key_lines(log="0 15 retired"), (), [], "included", 0),
    ("retired before this size", key_lines(log="0 14 retired"), (), [(6, "size_outside_key")], "none", 1),
    ("not yet in force", key_lines(log="16 - active"), (), [(6, "size_outside_key")], "none", 1),
    (
        "compromised, in the final tree, but unproven",
        key_lines(log=f"0 15 compromised {FINAL}"),
        (),
        [(6, "key_compromised")],
        "signed",
        3,
    ),
    (
        "compromised before this size, though witnessed",
        key_lines(log=f"0 9 compromised 9 {b64(WORKED.root(9))}"),
        ("w1", "w2"),
        [(6, "size_outside_key")],
        "none",
        1,
    ),
    (
        "compromised, witnessed",
        key_lines(log=f"0 15 compromised 99 {b64(bytes(32))}"),
        ("w1", "w2"),
        [],
        "witnessed 2/3",
        0,
    ),
    ("receipt key retired before", key_lines(receipt="0 4 retired"), (), [(3, "seq_outside_key")], "none", 1),
    ("receipt key retired after", key_lines(receipt="0 5 retired"), (), [], "included", 0),
]


@pytest.mark.parametrize(
    ("lines", "witnesses", "wanted", "level", "code"), [row[1:] for row in STEP_6], ids=[row[0] for row in STEP_6]
)
def test_keys_count_within_their_sizes_only(
    lines: list[str], witnesses: tuple[str, ...], wanted: list[tuple[int, str]], level: str, code: int
) -> None:
    """Scenario 58."""
    report = under(lines, witnesses=witnesses)
    assert (faults(report), report.level, report.exit_code) == (wanted, level, code)


def test_a_compromised_receipt_key_counts_for_nothing() -> None:
    report = under(key_lines(receipt="0 15 compromised"))
    assert (report.direct_signature, report.level, faults(report)) == ("not_checked", "included", [])
    assert "receipt_key_compromised" in remarks(report)


def test_under_a_policy_alone_steps_3_and_6_are_printed_as_not_checked() -> None:
    report = check_receipt(WORKED.receipt(GRANT), open_keyring(policy=maker.policy()))
    assert (report.exit_code, report.level, report.direct_signature) == (0, "included", "not_checked")
    wanted = ["signature_not_checked", "size_not_checked", "not_witnessed", "genesis_not_checked"]
    assert remarks(report)[:4] == wanted


def test_without_a_policy_nothing_is_ever_witnessed() -> None:
    keyring = open_keyring(root=maker.root_vkey(), document=WORKED.keys())
    report = check_receipt(WORKED.receipt(GRANT, witnesses=("w1", "w2", "w3")), keyring, level="witnessed")
    assert (report.exit_code, report.level, report.facts["ignoredLines"]) == (3, "included", 3)


def test_the_origin_must_be_pinned() -> None:
    """Scenario 56: another ledger's perfectly good receipt does not pass: no pinned key, no pass."""
    policy = f"log {STRANGER.vkey('other.example/x')}\nquorum none\n".encode()
    report = check_receipt(WORKED.receipt(GRANT), open_keyring(policy=policy))
    assert (faults(report), report.exit_code) == ([(5, "origin_unknown")], 1)
    assert "no pinned key, no pass" in report.as_text()


LEVELS = [  # quorum, witnesses that signed, requested level, level reached, exit code
    (2, (), "signed", "included", 0),
    (2, (), "included", "included", 0),
    (2, (), "witnessed", "included", 3),
    (2, ("w1",), "witnessed", "included", 3),
    (2, ("w1", "w3"), "witnessed", "witnessed 2/3", 0),
    (2, ("w1", "w2", "w3"), "included", "witnessed 3/3", 0),
    (None, ("w1", "w2", "w3"), "witnessed", "included", 3),
    (2, ("w1", "w1"), "witnessed", "included", 3),
]


@pytest.mark.parametrize(("quorum", "witnesses", "level", "reached", "code"), LEVELS)
def test_a_level_is_reached_through_the_policys_quorum(
    quorum: int | None, witnesses: tuple[str, ...], level: str, reached: str, code: int
) -> None:
    report = check_receipt(WORKED.receipt(GRANT, witnesses=witnesses), pins(WORKED, quorum), level=level)
    assert (report.level, report.exit_code) == (reached, code)


def test_an_unknown_line_is_counted_and_ignored() -> None:
    receipt = proof_edited(lambda text: text + STRANGER.note_line("nobody.example", "x"))
    report = judge(receipt)
    assert (report.exit_code, report.facts["ignoredLines"]) == (0, 1)


# --- steps 11 and 12 ---


def test_the_end_of_a_lease_is_judged_only_against_a_given_clock() -> None:
    end = WORKED.value(GRANT)["expiresAtMs"]
    receipt = WORKED.receipt(GRANT)
    assert judge(receipt).exit_code == 0
    assert judge(receipt, now_ms=end - 1).exit_code == 0
    late = judge(receipt, now_ms=end)
    assert (faults(late), late.exit_code, late.level) == ([(11, "expired")], 3, "included")
    assert remarks(judge(WORKED.receipt(6), now_ms=end))[-1] == "no_lease"


def forked() -> Ledger:
    """The same day until entry 9, another story from there."""
    other = Ledger(leaves=WORKED.leaves[:9], time_ms=WORKED.value(8)["timeMs"] + 7, epoch=2, counter=500)
    other.grant(ALICE, "repo:app/src/z.py")
    while len(other.leaves) < len(WORKED.leaves):
        other.time_ms += 1
        other.grant(ALICE, f"lock:n{other.time_ms}")
    return other


FORK = forked()
SPLITS = [  # the other file, the findings, the exit code
    ("the same receipt", WORKED.receipt(9), [], 0),
    ("its own checkpoint", WORKED.checkpoint(), [], 0),
    ("a smaller checkpoint", WORKED.checkpoint(7), [], 0),
    ("two roots of one size", FORK.checkpoint(), [(12, "two_roots")], 4),
    (
        "two leaves of one seq and two roots",
        FORK.receipt(9),
        [(12, "two_leaves"), (12, "two_roots"), (12, "two_hashes")],
        4,
    ),
    ("two leaves of one seq at other sizes", FORK.receipt(9, 10), [(12, "two_leaves"), (12, "two_hashes")], 4),
    ("a root that the path shows to be another", FORK.checkpoint(12), [(12, "two_hashes")], 4),
    (
        "a fork nobody signed",
        FORK.receipt(9, log=STRANGER).replace(b'"sig":"', b'"sig":"A'),
        [(12, "other_unusable")],
        3,
    ),
    ("a checkpoint nobody signed", FORK.checkpoint(log=STRANGER), [(12, "other_unusable")], 3),
    ("rubbish", b"rubbish", [(12, "other_unusable")], 3),
    ("an empty file", b"", [(12, "other_unusable")], 3),
]


@pytest.mark.parametrize(("other", "wanted", "code"), [row[1:] for row in SPLITS], ids=[row[0] for row in SPLITS])
def test_two_signed_statements_agree_or_prove_a_split_view(
    other: bytes, wanted: list[tuple[int, str]], code: int
) -> None:
    report = judge(WORKED.receipt(9), others=[other])
    assert (faults(report), report.exit_code) == (wanted, code)


def test_consistency_of_different_sizes_is_said_to_be_unchecked() -> None:
    report = judge(WORKED.receipt(9), others=[FORK.checkpoint(13)])
    assert "consistency_not_checked" in remarks(report)
    assert "sizes 15 and 13: consistency not checked, needs a proof or the ledger" in report.as_text()


def test_a_leaf_in_the_wrong_place_is_a_lie_but_no_second_history() -> None:
    """Two leaves that claim one seq convict only if both stand there, or both carry the receipt key's signature."""
    displaced = Ledger(leaves=[*WORKED.leaves[:14], FORK.leaves[9]])
    policy_only = open_keyring(policy=maker.policy())
    report = check_receipt(WORKED.receipt(9, 12), policy_only, others=[displaced.receipt(14)])
    assert (faults(report), report.exit_code) == ([], 0)
    placed = check_receipt(WORKED.receipt(9), policy_only, others=[FORK.receipt(9, 10)])
    assert (faults(placed), placed.exit_code) == ([(12, "two_leaves"), (12, "two_hashes")], 4)


def test_another_file_whose_leaf_proves_nothing_is_named() -> None:
    """Its checkpoint is the log's, its leaf is nobody's: that must not look like a receipt that agrees."""
    policy_only = open_keyring(policy=maker.policy())
    forged = canonical({**WORKED.envelope(9), "payload": b64(FORK.leaves[9])})
    report = check_receipt(WORKED.receipt(9), policy_only, others=[WORKED.receipt(9), forged])
    assert (faults(report), report.exit_code) == ([], 0)
    assert "step 12 note other_leaf_unproven (protocol 16.2): other file 2: its leaf is not proven" in report.as_text()
    assert remarks(report).count("other_leaf_unproven") == 1
    checkpoint_only = check_receipt(WORKED.receipt(9), policy_only, others=[WORKED.checkpoint()])
    assert "other_leaf_unproven" not in remarks(checkpoint_only)


def test_a_stolen_key_convicts_nobody_of_a_split_view() -> None:
    keys = WORKED.keys(lines=key_lines(log=f"0 15 compromised {FINAL}"))
    report = check_receipt(
        WORKED.receipt(9, witnesses=("w1", "w2")), pins(WORKED, keys=keys), others=[FORK.checkpoint()]
    )
    assert (faults(report), report.exit_code) == ([(12, "other_unusable")], 3)


def test_a_fork_needs_a_signature_to_convict() -> None:
    """A leaf that only claims to be of the log convicts nobody."""
    envelope = maker.envelope(FORK.leaves[9], FORK.proof(9, log=STRANGER), STRANGER)
    report = judge(WORKED.receipt(9), others=[canonical(envelope)])
    assert (faults(report), report.exit_code) == ([(12, "other_unusable")], 3)


# --- every byte ---


@pytest.mark.parametrize("mask", [0x01, 0x20])
def test_every_flipped_byte_of_a_receipt_is_refused(mask: int) -> None:
    """The receipt as served: with root, keys and a policy that know every line no byte is open to change."""
    ledger = maker.opened()
    assert exit_codes_of_flips(ledger.receipt(3), pins(ledger), "included", mask) == {1}


def test_every_flipped_byte_of_a_receipt_with_exactly_its_quorum_is_refused() -> None:
    """A witness's line under a changed name is a stranger's line: the receipt then falls below the level."""
    ledger = maker.opened()
    receipt = ledger.receipt(3, witnesses=("w1", "w2"))
    assert exit_codes_of_flips(receipt, pins(ledger), "witnessed", 0x01) == {1, 3}


@pytest.mark.parametrize("witnesses", [(), ("w1", "w2", "w3")], ids=["included", "witnessed"])
def test_every_flipped_byte_of_a_receipt_from_the_time_of_two_log_keys_is_refused(witnesses: tuple[str, ...]) -> None:
    """The line of each log key in force has to be there, so neither may be called a stranger's."""
    ledger = maker.keyed()
    receipt = ledger.receipt(5, 8, witnesses, (LOG, maker.NEW_LOG))
    level, wanted = ("witnessed", {1, 3}) if witnesses else ("included", {1})
    lines = [line.replace("compromised", "retired") for line in maker.keyed_lines()]
    keyring = pins(ledger, 3, ledger.keys(lines=lines))
    assert exit_codes_of_flips(receipt, keyring, level, 0x01) == wanted


def test_every_flipped_byte_of_a_receipt_of_the_new_keys_is_refused() -> None:
    ledger = maker.keyed()
    receipt = ledger.receipt(11, 12, ("w1", "w3"), maker.NEW_LOG, maker.NEW_RECEIPT)
    keyring = pins(ledger, 2, ledger.keys(lines=maker.keyed_lines()))
    assert exit_codes_of_flips(receipt, keyring, "witnessed", 0x20) == {1, 3}


def test_no_flipped_byte_of_a_disowned_receipt_helps_it() -> None:
    """Its proof may change where nobody asks who signed; else it is refused, or falls back to what is not known."""
    receipt, other = key_stories.HONEST.receipt(6, 9), key_stories.proof(9)()
    keyring = pins(key_stories.HONEST, keys=key_stories.HONEST.keys(2, key_stories.DISOWNED))
    assert check_receipt(receipt, keyring, others=[other]).exit_code == 0
    for place in range(len(other)):
        flipped = other[:place] + bytes([other[place] ^ 1]) + other[place + 1 :]
        report = check_receipt(receipt, keyring, others=[flipped])
        # A flipped line of signature leaves the proof itself as good as it was.
        assert report.exit_code in (1, 3) or place > other.index("—".encode()), place
    assert exit_codes_of_flips(receipt, keyring, "included", 0x01, [other]) == {1}


def exit_codes_of_flips(
    receipt: bytes, keyring: Keyring, level: str, mask: int, others: Sequence[bytes] = ()
) -> set[int]:
    assert check_receipt(receipt, keyring, level=level, others=others).exit_code == 0
    codes = set()
    for place in range(len(receipt)):
        flipped = receipt[:place] + bytes([receipt[place] ^ mask]) + receipt[place + 1 :]
        codes.add(check_receipt(flipped, keyring, level=level, others=others).exit_code)
    return codes


def test_every_receipt_cut_short_or_with_a_tail_is_refused() -> None:
    receipt, keyring = WORKED.receipt(GRANT), pins(WORKED)
    for length in range(0, len(receipt), 37):
        assert check_receipt(receipt[:length], keyring).exit_code == 1
    assert check_receipt(receipt + b"x", keyring).exit_code == 1


def test_each_key_of_the_tests_is_another_key() -> None:
    keys = [LOG, RECEIPT, maker.ROOT, maker.OPERATOR, ALICE, BOB, STRANGER, *maker.WITNESSES.values()]
    assert len({key.public for key in keys}) == len(keys)
    assert all(isinstance(key, Key) for key in keys)
