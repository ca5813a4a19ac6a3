"""Admissions, approvals and rule sets in one leaf: what contradicts itself, what no body says, what is printed.

What needs the ledger (counts, leases, who may approve) is for the audit's tests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.verifier import admissions, maker
from tests.verifier.admissions import ARGUMENTS, Desk, action_digest, signed_approval
from tests.verifier.judging import audit, faults, pins
from tests.verifier.maker import ALICE, BOB, CAROL, DEPUTY, OPERATOR, Json
from verifier.approval import action_digest_of, approval_bytes, parse_approval, parse_approvals
from verifier.entries import APPROVAL_MEMBERS, MemberError, check_body, parse_leaf, sentences
from verifier.evidence import check_command, check_evidence
from verifier.receipt import check_receipt
from verifier.replay.ledger import check_ledger
from verifier.verdict import Outcome
from verifier.wire import Malformed

day = cache(admissions.day)
WRITE, CONFLICT, NEEDED, LOADED, RULED, FORBIDDEN, ERROR, UNPERMITTED = 9, 10, 11, 12, 14, 15, 16, 17
ASKED, GIVEN, ENDED, APPROVED, DECLINED, WITHDRAWN, STALE, BATCHED = 20, 21, 22, 23, 26, 28, 37, 42


def leaf_of(seq: int, **change: Any) -> Json:
    """A leaf of the day in which members were replaced; ... leaves one out."""
    return {name: value for name, value in {**day().value(seq), **change}.items() if value is not ...}


def inner(seq: int, member: str, **change: Any) -> Json:
    return leaf_of(seq, **{member: {**leaf_of(seq)[member], **change}})


def rows(seq: int, member: str, **change: Any) -> Json:
    first, *rest = leaf_of(seq)[member]
    return leaf_of(seq, **{member: [{**first, **change}, *rest]})


def circle(row: int = 0, **change: Any) -> Json:
    leaf = admissions.circle().value(11)
    leaf["cycle"][row] = {n: v for n, v in {**leaf["cycle"][row], **change}.items() if v is not ...}
    return leaf


NO_LEASE = {"leaseState": "none", "leaseMode": "none", "leaseAgeMs": 0, "leaseLeftMs": 0}
FREE = {"leaseId": ..., "fencingToken": ..., "grantSeq": ...}
CONTRADICTIONS: list[tuple[Json, str]] = [
    (leaf_of(WRITE, fencingToken=...), "all or none"),
    (leaf_of(WRITE, grantSeq=...), "all or none"),
    (leaf_of(WRITE, grantSeq=7), "L and the seq"),
    (leaf_of(WRITE, grantSeq=9, leaseId="L9"), "grantSeq: an earlier entry"),
    ({**leaf_of(WRITE, **FREE), "facts": {**leaf_of(WRITE)["facts"], **NO_LEASE}}, "missing for what is not a read"),
    (leaf_of(WRITE, validUntilMs=leaf_of(WRITE)["timeMs"]), "after timeMs"),
    (leaf_of(WRITE, validUntilMs=leaf_of(8)["expiresAtMs"] + 1), "not after the end of the lease"),
    (leaf_of(WRITE, uses=2), "uses"),
    (leaf_of(WRITE, cost=10**12 + 1), "cost"),
    (leaf_of(WRITE, resources=["repo:app/b.py", "repo:app/a.py"]), "resources"),
    (leaf_of(WRITE, resources=["lock:a"]), "exactly those of the resources"),
    (leaf_of(WRITE, resources=[f"repo:{n:02}" for n in range(65)]), "1 to 64"),
    (rows(WRITE, "schemes", **{"class": "append-only"}), "each having the mode"),
    (rows(WRITE, "schemes", **{"class": "irreversible"}), "missing for what is irreversible"),
    (rows(WRITE, "schemes", countDay=-1), "schemes"),
    (inner(WRITE, "facts", leaseState="none"), "a lease is live exactly when"),
    (inner(WRITE, "facts", leaseMode="none"), "a lease is live exactly when"),
    (inner(WRITE, "facts", leaseLeftMs=0), "validUntilMs"),
    (inner(WRITE, "facts", leaseMode="read"), "at least as strong"),
    (inner(WRITE, "facts", approvals=1), "as many as the rows say"),
    (inner(WRITE, "facts", trust="50000"), "facts"),
    (inner(WRITE, "facts", novelty=1), "facts"),
    (inner(40, "facts", actorKind="agent"), "actorKind is session"),
    (inner(BATCHED, "facts", leaseAgeMs=1), "a lease is live exactly when"),
    (inner(RULED, "rules", decision="deny"), "as the entry itself decides"),
    (inner(RULED, "rules", decision="error"), "as the entry itself decides"),
    (inner(RULED, "rules", matched=["b", "a"]), "rules"),
    (inner(RULED, "rules", matched=["a", "a"]), "rules"),
    (inner(RULED, "rules", matched=["Writers"]), "rules"),
    (inner(RULED, "rules", engine="opa/1"), "rules"),
    (inner(FORBIDDEN, "rules", decision="allow"), "as the entry itself decides"),
    (inner(FORBIDDEN, "rules", mode="shadow"), "as the entry itself decides"),
    (inner(FORBIDDEN, "rules", matched=[]), "empty exactly when no rule forbids"),
    (inner(UNPERMITTED, "rules", matched=["nobody"]), "empty exactly when no rule forbids"),
    (inner(ERROR, "rules", decision="deny"), "as the entry itself decides"),
    (leaf_of(FORBIDDEN, rules=...), "exactly when the rules denied"),
    (leaf_of(FORBIDDEN, facts=...), "exactly when the rules denied"),
    (leaf_of(NEEDED, rules=leaf_of(FORBIDDEN)["rules"]), "exactly when the rules denied"),
    (leaf_of(NEEDED, facts=leaf_of(FORBIDDEN)["facts"]), "exactly when the rules denied"),
    (leaf_of(NEEDED, leaseId="L8"), "both or none"),
    (leaf_of(CONFLICT, currentToken=...), "currentToken: missing"),
    (leaf_of(CONFLICT, holder=BOB.did), "not the actor"),
    (leaf_of(CONFLICT, endedSeq=3), "not for this error"),
    (leaf_of(STALE, conflict=...), "both or none"),
    (leaf_of(STALE, endedSeq=99), "endedSeq: an earlier entry"),
    (leaf_of(STALE, error="fence_unknown", number=601), "not for this error"),
    (leaf_of(NEEDED, number=605), "error, number"),
    (rows(APPROVED, "approvals", operator=OPERATOR.did), "not of the agent's own operator"),
    (leaf_of(APPROVED, approvals=...), "as many as the rows say"),
    (leaf_of(APPROVED, approvals=leaf_of(APPROVED)["approvals"] * 2), "each once"),
    (leaf_of(ASKED, askId="A19"), "the seq of this entry"),
    (leaf_of(ASKED, quorum=3), "at most the approvers"),
    (leaf_of(ASKED, giveUpByMs=leaf_of(ASKED)["timeMs"] + 999), "giveUpByMs"),
    (leaf_of(ASKED, giveUpByMs=leaf_of(ASKED)["timeMs"] + 604_800_001), "giveUpByMs"),
    (leaf_of(ASKED, approvers=leaf_of(ASKED)["approvers"][::-1]), "approvers"),
    (leaf_of(GIVEN, askId="A21"), "the seq of the asking entry"),
    (leaf_of(GIVEN, askSeq=21, askId="A21"), "askSeq: an earlier entry"),
    (leaf_of(GIVEN, approver=DEPUTY.did), "approver: the actor"),
    (leaf_of(DECLINED, askId="A20"), "the seq of the asking entry"),
    (leaf_of(WITHDRAWN, askSeq=28, askId="A28"), "askSeq: an earlier entry"),
    (leaf_of(ENDED, error="ask_unknown", number=641), "only when the error is ask_ended"),
    (leaf_of(ENDED, endedSeq=22), "endedSeq: an earlier entry"),
    (leaf_of(LOADED, count=0), "count"),
    (leaf_of(LOADED, count=65), "count"),
    (leaf_of(LOADED, onBehalfOf=DEPUTY.did), "equal when an operator"),
    (leaf_of(31, error="deadlock", number=502), "exactly when the error is deadlock"),
    ({**circle(), "error": "approver_unfit", "number": 612}, "exactly when the error is deadlock"),
    (circle(askId="A10"), "begins with the ask that is refused"),
    (circle(askId=..., fencingToken=1), "begins with the ask that is refused"),
    (circle(1, fencingToken=..., askId="A11", ticketId=...), "begins with"),
    (circle(1, fencingToken=..., askId="A12", ticketId=...), "of earlier entries"),
    (circle(1, askId="A9"), "exactly one of fencingToken, aheadId and askId"),
    (circle(0, resource="lock:b"), "what was asked for"),
]


@pytest.mark.parametrize(("leaf", "words"), CONTRADICTIONS, ids=range(len(CONTRADICTIONS)))
def test_a_leaf_that_contradicts_itself_is_malformed(leaf: Json, words: str) -> None:
    if words == "begins with":  # the last row may wait for an approval, but its ask is earlier than this entry
        words = "earlier"
        leaf["cycle"][1]["askId"] = "A12"
    with pytest.raises(Malformed) as caught:
        parse_leaf(maker.canonical(leaf))
    assert words in str(caught.value)


def test_the_last_in_a_circle_may_wait_for_an_earlier_approval() -> None:
    leaf = circle(1, fencingToken=..., askId="A9", ticketId=...)
    assert parse_leaf(maker.canonical(leaf)).is_known


def test_in_the_shadow_nothing_hangs_on_what_the_rules_say() -> None:
    for decision in ("allow", "deny", "error"):
        assert parse_leaf(maker.canonical(inner(33, "rules", decision=decision))).is_known


def test_a_lapse_is_an_end_without_an_entry() -> None:
    assert parse_leaf(maker.canonical(leaf_of(ENDED, endedSeq=...))).is_known


# --- what only the body can say ---


def codes(desk: Desk, seq: int) -> list[str]:
    leaf = parse_leaf(desk.leaves[seq])
    if leaf.batch is not None:
        return [code for code, _ in check_command(leaf, parse_leaf(desk.leaves[leaf.batch[0]]))]
    return [code for code, _ in check_evidence(leaf, [maker.AUTHORITY]).faults]


def deployed(change: Callable[[Json], None] | None = None, asked: Json | None = None, signer: maker.Key = CAROL,
             operator: maker.Key = DEPUTY, **said: Any) -> list[str]:  # fmt: skip
    """The faults of ALICE's deploy, approved by a statement that says otherwise, or in a leaf that does."""
    desk = admissions.opened()
    lease = desk.grant(ALICE, "deploy:prod", ttl_ms=600_000)
    desk.time_ms += 5_000
    wanted = desk.asked("deploy.run", "deploy:prod", cost=7)
    signed = signed_approval(desk.statement(CAROL, ALICE, asked or wanted, **said), signer)
    return codes(desk, desk.admit(ALICE, wanted, lease, [(signed, operator)], change))


def test_an_approved_action_is_the_one_that_was_approved() -> None:
    assert deployed() == []


NOW_MS = maker.T0 + 1_010 + 5_000
OTHERWISE: list[tuple[str, Json]] = [
    ("approval_wrong", {"ledger": "other.example/main"}),
    ("approval_wrong", {"genesis": "5a" * 32}),
    ("approval_wrong", {"agent": BOB.did}),
    ("approval_wrong", {"operation": "deploy.undo"}),
    ("approval_wrong", {"argumentsDigest": "5a" * 32}),
    ("approval_wrong", {"actionDigest": "5a" * 32}),
    ("approval_wrong", {"rulesDigest": "5a" * 32}),
    ("approval_expired", {"notBeforeMs": NOW_MS + 1}),
    ("approval_expired", {"notBeforeMs": NOW_MS - 9, "expiresAtMs": NOW_MS}),
    ("approval_expired", {"notBeforeMs": NOW_MS, "expiresAtMs": NOW_MS + 1}),
    ("approval_invalid", {"expiresAtMs": NOW_MS}),
    ("approval_invalid", {"expiresAtMs": NOW_MS + 604_800_001}),
    ("approval_invalid", {"type": "tallystick/approval/2"}),
    ("approval_invalid", {"novelty": 1}),
    ("approval_invalid", {"notBeforeMs": True}),
    ("approval_invalid", {"signer": BOB}),
]


@pytest.mark.parametrize(("code", "said"), OTHERWISE, ids=range(len(OTHERWISE)))
def test_a_statement_that_says_otherwise_approves_nothing(code: str, said: Json) -> None:
    if said.get("expiresAtMs") in (NOW_MS, NOW_MS + 604_800_001) and code == "approval_invalid":
        said = {"notBeforeMs": NOW_MS, **said}
    assert code in deployed(**said)


ACTIONS: list[Json] = [{"cost": 8}, {"mode": "delete"}, {"operation": "deploy.undo"}, {"argumentsDigest": "5a" * 32},
           {"resources": ["deploy:test"]}]  # fmt: skip


@pytest.mark.parametrize("change", ACTIONS, ids=str)
def test_whatever_is_changed_in_an_action_after_its_approval_is_found(change: Json) -> None:
    desk = Desk()
    assert "approval_wrong" in deployed(asked={**desk.asked("deploy.run", "deploy:prod", cost=7), **change})


def edited(**members: Any) -> Callable[[Json], None]:
    return lambda leaf: leaf.update(members)


def nonce(leaf: Json) -> None:
    leaf["approvals"][0]["nonce"] = "n" * 16


def digest(leaf: Json) -> None:
    leaf["approvals"][0]["digest"] = "5a" * 32


def approver(leaf: Json) -> None:
    leaf["approvals"][0]["approver"] = BOB.did


@pytest.mark.parametrize("change", [nonce, digest, approver])
def test_the_approvals_of_a_leaf_are_those_that_were_sent(change: Callable[[Json], None]) -> None:
    assert deployed(change) == ["approval_differs"]


def test_an_approval_that_was_sent_stays_in_the_leaf_and_none_is_added() -> None:
    desk = admissions.opened()
    asked = desk.asked("file.read", "web:page", mode="read")
    signed = desk.approval(CAROL, ALICE, asked)
    row = admissions.row_of(signed, DEPUTY)
    facts: Json = {"facts": desk.facts(ALICE, None, 1)}
    left_out = desk.admit(ALICE, asked, body_members={**asked, "approvals": [signed]})
    added = desk.admit(ALICE, asked, approvals=[(signed, DEPUTY)], body_members=asked, **facts)
    twice = {**asked, "approvals": [signed, signed]}
    doubled = desk.admit(ALICE, asked, approvals=[(signed, DEPUTY)], body_members=twice)
    assert [codes(desk, seq) for seq in (left_out, added, doubled)] == [["approval_differs"]] * 3
    assert row["digest"] == parse_approval(signed).digest


def test_the_digest_of_the_action_is_that_of_the_leaf() -> None:
    assert deployed(edited(actionDigest="5a" * 32)) == ["action_digest_wrong", "approval_wrong"]
    assert codes(day(), WRITE) == []
    for seq in (WRITE, RULED, APPROVED, ASKED, BATCHED):
        leaf = day().value(seq)
        agent, rules = leaf["principal"], leaf.get("rules", {}).get("digest", leaf.get("rulesDigest", maker.ZEROS))
        assert action_digest(agent, leaf, rules) == leaf["actionDigest"]
        assert action_digest_of(parse_leaf(maker.canonical(leaf))) == leaf["actionDigest"]


CHANGES: list[Json] = [
    {"operation": "b"},
    {"resources": ["a:y"]},
    {"mode": "read"},
    {"argumentsDigest": "1b" * 32},
    {"cost": 1},
]


def test_no_two_actions_have_one_digest() -> None:
    asked = {"operation": "a", "resources": ["a:x"], "mode": "write", "argumentsDigest": "1a" * 32, "cost": 0}
    found = [action_digest(ALICE.did, {**asked, **change}, maker.ZEROS) for change in ({}, *CHANGES)]
    found += [action_digest(BOB.did, asked, maker.ZEROS), action_digest(ALICE.did, asked, "1c" * 32)]
    assert len(set(found)) == 8


def test_an_ask_stands_for_as_long_as_was_asked() -> None:
    desk = admissions.opened()
    asked = desk.asked("deploy.run", "deploy:prod")
    good = desk.ask(ALICE, asked, CAROL)
    longer = desk.ask(ALICE, asked, CAROL, change=edited(giveUpByMs=desk.time_ms + 3_600_001))
    other = desk.ask(ALICE, asked, CAROL, change=edited(rulesDigest="5a" * 32))
    assert [codes(desk, seq) for seq in (good, longer, other)] == [[], ["body_differs"], ["action_digest_wrong"]]


def test_what_is_given_is_the_statement_that_was_sent() -> None:
    desk = admissions.opened()
    asked = desk.asked("deploy.run", "deploy:prod")
    ask = desk.ask(ALICE, asked, CAROL)
    signed = desk.approval(CAROL, ALICE, asked)
    foreign = desk.approval(CAROL, ALICE, asked, ledger="other.example/main")
    late = desk.approval(CAROL, ALICE, asked, notBeforeMs=desk.time_ms - 5, expiresAtMs=desk.time_ms)
    by_bob = signed_approval(desk.statement(CAROL, ALICE, asked), BOB)
    found = [codes(desk, desk.give(CAROL, ask, one)) for one in (signed, foreign, late, by_bob)]
    assert found == [[], ["approval_wrong"], ["approval_expired"], ["approval_invalid"]]
    assert codes(desk, desk.give(CAROL, ask, signed, members={"nonce": "n" * 16})) == ["approval_differs"]


def test_a_rule_set_is_the_text_that_was_signed() -> None:
    desk = admissions.opened()
    assert codes(desk, desk.load(admissions.RULES, count=4)) == []
    assert codes(desk, desk.load(admissions.RULES, digest="5a" * 32)) == ["rules_digest_wrong"]
    assert codes(desk, desk.load(admissions.RULES, rulesMode="shadow")) == ["body_differs"]


def test_a_command_is_compared_with_its_place_in_the_batch() -> None:
    desk = day()
    leaf = parse_leaf(maker.canonical(leaf_of(BATCHED, operation="file.stat")))
    found = [code for code, _ in check_command(leaf, parse_leaf(desk.leaves[41]))]
    assert found == ["body_differs", "action_digest_wrong"]
    wrong = parse_leaf(maker.canonical(leaf_of(BATCHED, actionDigest="5a" * 32)))
    assert [code for code, _ in check_command(wrong, parse_leaf(desk.leaves[41]))] == ["action_digest_wrong"]


# --- statements ---


def test_what_an_approver_signs_is_what_the_protocol_says() -> None:
    desk = admissions.opened()
    said = desk.statement(CAROL, ALICE, desk.asked("deploy.run", "deploy:prod"))
    digest = hashlib.sha256(maker.canonical(said)).digest()
    assert approval_bytes(said) == b"tallystick.approval/1\n" + digest
    (one,) = parse_approvals([signed_approval(said, CAROL)])
    assert (one.approver, one.agent, one.digest) == (CAROL.did, ALICE.did, digest.hex())
    assert (one.arguments_digest, one.expires_at_ms) == (ARGUMENTS, desk.time_ms + 3_600_000)


def test_a_fault_names_the_member_and_never_repeats_what_came() -> None:
    desk = admissions.opened()
    said = desk.statement(CAROL, ALICE, desk.asked("deploy.run", "deploy:prod"), operation="SECRET and more")
    with pytest.raises(MemberError) as found:
        parse_approvals([signed_approval(said, CAROL)])
    assert (found.value.code, found.value.member) == ("approval_invalid", "approvals[0].statement.operation")
    assert "SECRET" not in str(found.value)


@pytest.mark.parametrize("value", [None, 7, "x", {}, [], [1], [{}], [{"statement": {}}],
                                   [{"statement": [], "signature": "A" * 86 + "=="}],
                                   [{"statement": {}, "signature": "A" * 86 + "=="}] * 5])  # fmt: skip
def test_what_is_no_list_of_signed_statements_is_invalid(value: Any) -> None:
    with pytest.raises(MemberError) as found:
        parse_approvals(value)
    assert found.value.code == "approval_invalid"


@pytest.mark.parametrize("weak", [bytes([1]) + bytes(31), bytes(32)])
def test_a_key_of_small_order_approves_nothing(weak: bytes) -> None:
    desk = admissions.opened()
    signed = desk.approval(CAROL, ALICE, desk.asked("deploy.run", "deploy:prod"))
    with pytest.raises(MemberError):
        parse_approvals([{**signed, "signature": maker.b64(weak + bytes(32))}])


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=70),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=12), inside, max_size=4),
    max_leaves=12,
)
SIGNED = day().approval(CAROL, ALICE, day().asked("deploy.run", "deploy:prod"))


@given(ANY_JSON, st.sampled_from([member.name for member in APPROVAL_MEMBERS]))
def test_no_value_of_a_member_raises_anything_but_malformed(value: Any, name: str) -> None:
    item = {**SIGNED, "statement": {**SIGNED["statement"], name: value}}
    broken: Any
    for broken in ([item], value, [{"statement": value, "signature": value}], [{**SIGNED, "signature": value}]):
        try:
            parse_approvals(broken)
        except Malformed as error:
            assert str(error)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([WRITE, FORBIDDEN, APPROVED, ASKED, GIVEN, LOADED, STALE]), st.data())
def test_any_value_in_a_body_ends_in_a_report(seq: int, data: st.DataObject) -> None:
    """Genuinely signed, so that each reader meets the value."""
    desk = Desk(leaves=list(day().leaves), time_ms=day().value(seq)["timeMs"], counter=9_000)
    leaf = desk.value(seq)
    body = json.loads(leaf["request"]["body"])
    name = data.draw(st.sampled_from(sorted(body)))
    key = next(key for key in maker.KEYS if key.did == leaf["actor"])
    action = next(action for action, path in maker.PATHS.items() if path == leaf["request"]["path"])
    changed = {**body, name: data.draw(ANY_JSON)}
    leaf["request"] = desk.request(key, action, changed, created=leaf["timeMs"] // 1000, anchor_size=1)
    desk.leaves[seq] = maker.canonical(leaf)
    report = check_receipt(desk.receipt(seq), pins(desk))
    assert json.loads(report.as_json())["exitCode"] in ((0, 1) if is_body(action, changed) else (1,))


def is_body(action: str, body: Json) -> bool:
    try:
        check_body(action, body)
    except Malformed:
        return False
    return True


# --- the whole day ---


def test_the_day_that_these_leaves_come_from_is_honest() -> None:
    """Everything but what the rules say is found anew without their engine."""
    assert faults(audit(day().export(), pins(day()))) == [(10, "rules_not_rederived")]
    assert faults(audit(admissions.circle().export(), pins(admissions.circle()))) == []


def test_what_the_rules_say_on_that_day_is_what_their_engine_says(tmp_path: Path) -> None:
    """The day was typed by hand: its rulings are what a reader of Cedar expects."""
    engine = pytest.importorskip("verifier.replay.cedar").open_engine()
    if engine is None or engine.name != admissions.ENGINE:
        pytest.skip(f"{admissions.ENGINE} is not installed")
    (tmp_path / "day").write_bytes(day().export())
    assert faults(check_ledger(tmp_path / "day", pins(day()), has_rules=True)) == []


# --- receipts ---


def test_a_receipt_says_what_was_allowed_and_under_which_rules() -> None:
    text = "\n".join(sentences(parse_leaf(day().leaves[WRITE])))
    until_ms = day().value(WRITE)["validUntilMs"]
    assert f"allowed once, until {until_ms} (" in text
    assert f"to do: file.write, mode write, arguments {ARGUMENTS}, cost 5" in text
    assert "unpoliced: no rule set was in force" in text
    ruled = list(sentences(parse_leaf(day().leaves[RULED])))
    assert {"rule set 1 says allow", "rules that matched: writers"} <= {*ruled} and "unpoliced" not in str(ruled)
    assert "obligations: tell:on-call" in [*sentences(parse_leaf(day().leaves[APPROVED]))]
    (shadow,) = [one for one in sentences(parse_leaf(day().leaves[33])) if "shadow" in one]
    assert shadow == "in shadow: rule set 2 says deny, and nothing hung on it"
    denied = [*sentences(parse_leaf(day().leaves[NEEDED]))]
    assert "unpoliced" not in str(denied) and "refused: lease_required" in denied


def test_a_stale_fence_names_what_counts_now_and_what_ended() -> None:
    text = "\n".join(sentences(parse_leaf(day().leaves[STALE])))
    leaf = day().value(STALE)
    assert f"the token that counts is {leaf['currentToken']}" in text
    assert f"what was named ended with entry {leaf['endedSeq']}" in text and CAROL.did in text


@pytest.mark.parametrize(("late_ms", "code"), [(-1, 0), (0, 3)])
def test_an_admission_ends_by_the_readers_clock(late_ms: int, code: int) -> None:
    now_ms = day().value(WRITE)["validUntilMs"] + late_ms
    report = check_receipt(day().receipt(WRITE), pins(day()), now_ms=now_ms)
    assert report.exit_code == code
    assert [f.code for f in report.findings if f.outcome is Outcome.INDETERMINATE] == (["expired"] if code else [])


@pytest.mark.parametrize("seq", [APPROVED, FORBIDDEN, LOADED], ids=["approved", "forbidden", "loaded"])
def test_every_flipped_byte_of_a_leaf_is_refused(seq: int) -> None:
    """In the leaf itself, under the log's signature of the true one: no byte is open to change."""
    whole, keyring = day().envelope(seq), pins(day())
    leaf = day().leaves[seq]
    for place in range(len(leaf)):
        flipped = leaf[:place] + bytes([leaf[place] ^ 1]) + leaf[place + 1 :]
        receipt = maker.canonical({**whole, "payload": maker.b64(flipped)})
        assert check_receipt(receipt, keyring).exit_code == 1, place
