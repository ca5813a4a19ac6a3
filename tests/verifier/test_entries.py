"""The table of entry types: its rows, the bounds of bodies, and that every leaf fits into a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.verifier import maker
from verifier import entries
from verifier.entries import (
    ACTION_BODIES,
    BODY_TEXT,
    COMMON_MEMBERS,
    ENTRY_TYPES,
    LEAF_BYTES_LARGEST,
    MemberError,
    body_bytes_max,
    body_schema,
    body_value,
    check_body,
    command_body,
    commands_in,
    full_type,
    is_body_text,
    leaf_schema,
    parse_leaf,
    resources_of,
)
from verifier.wire import LEAF_BYTES_MAX, JsonObject, JsonValue, Malformed

WHOM: JsonObject = {"ledger": maker.ORIGIN, "actorDid": maker.ALICE.did}


def acquire(**members: Any) -> JsonObject:
    return {**WHOM, "resource": "lock:a", **members}


WHY: JsonObject = {"seenToken": 1_700_000_000_000_000, "reason": "shift.ends"}
TRANSFER: JsonObject = {**WHOM, "leaseId": "L42", "toDid": maker.BOB.did, **WHY}
BREAK: JsonObject = {**WHOM, "resource": "repo:a", **WHY}
SCHEME: JsonObject = {**WHOM, "name": "repo", "class": "read-safe", "isFolding": True, "isUnicode": False}
ACQUIRE_IN_BATCH: JsonObject = {"action": "lease.acquire", "resource": "lock:a"}


def batch(*commands: JsonValue, **members: Any) -> JsonObject:
    return {**WHOM, "commands": list(commands), **members}


SIGNED: JsonObject = {"statement": {}, "signature": "A" * 86 + "=="}
KEY_DIGEST = "5a" * 32
ENROL: JsonObject = {**WHOM, "agent": maker.BOB.did, "keyDigest": KEY_DIGEST, "proof": "A" * 86 + "=="}
BODIES = [  # action, body, the code and member it is refused for (None: good)
    ("lease.acquire", acquire(), None),
    ("lease.acquire", acquire(mode="write", ttlMs=1_000), None),
    ("lease.acquire", acquire(ttlMs=3_600_000), None),
    ("lease.acquire", {**WHOM, "resources": ["b:x", "a:x"]}, None),
    ("lease.renew", {**WHOM, "leaseId": "L42"}, None),
    ("lease.release", {**WHOM, "resource": "lock:a", "leaseId": "L42"}, None),
    ("agent.add", {**WHOM, "agent": maker.BOB.did, "name": "bob.the-builder_1"}, None),
    ("agent.remove", {**WHOM, "agent": maker.BOB.did}, None),
    ("lease.acquire", acquire(ttlMs=999), ("member_invalid", "ttlMs")),
    ("lease.acquire", acquire(ttlMs=3_600_001), ("member_invalid", "ttlMs")),
    ("lease.acquire", acquire(ttlMs=True), ("member_invalid", "ttlMs")),
    ("lease.acquire", acquire(ttlMs="5000"), ("member_invalid", "ttlMs")),
    ("lease.acquire", acquire(ttlMs=None), ("member_invalid", "ttlMs")),
    ("lease.acquire", acquire(mode="read", resource="repo:app/**"), None),
    ("lease.acquire", acquire(wait=True, giveUpMs=1_000, onDeadlock="wait"), None),
    ("lease.acquire", acquire(wait=False), None),
    ("lease.acquire", {**WHOM, "wait": True, "resources": [f"a:{n}" for n in range(16)]}, None),
    ("lease.acquire", {**WHOM, "wait": True, "resources": [f"a:{n:0254}" for n in range(16)]}, None),  # 4,096 bytes
    ("lease.acquire", {**WHOM, "resources": [f"a:{n:0254}" for n in range(17)]}, None),
    ("lease.renew", {**WHOM, "leaseId": "L42", "mode": "append"}, None),
    ("lease.acquire", acquire(reasonDigest="0a" * 32), None),
    ("lease.acquire", acquire(reasonDigest="0A" * 32), ("member_invalid", "reasonDigest")),
    ("lease.acquire", acquire(reasonDigest=None), ("member_invalid", "reasonDigest")),
    ("lease.release", {**WHOM, "resource": "lock:a", "reasonDigest": "0a" * 32}, None),
    ("lease.renew", {**WHOM, "leaseId": "L42", "reasonDigest": "0a" * 32}, ("member_unknown", "reasonDigest")),
    ("batch.submit", batch({**ACQUIRE_IN_BATCH, "reasonDigest": "0a" * 32}), None),
    ("batch.submit", batch({"action": "lease.release", "resource": "a:x", "reasonDigest": "0a" * 32}), None),
    ("batch.submit", batch({**ACQUIRE_IN_BATCH, "reasonDigest": 7}), ("member_invalid", "commands[0].reasonDigest")),
    ("key.announce", {**WHOM, "statement": "any note; the root's signature is the door's to check"}, None),
    ("key.retire", {**WHOM, "statement": "x" * 4_096}, None),
    ("key.compromise", {**WHOM, "statement": "x" * 4_097}, ("member_invalid", "statement")),
    ("key.retire", WHOM, ("member_missing", "statement")),
    ("key.announce", {**WHOM, "statement": "x", "purpose": "log"}, ("member_unknown", "purpose")),
    ("lease.transfer", {**TRANSFER, "reasonDigest": "0a" * 32}, None),
    ("lease.accept", {**WHOM, "leaseId": "L42"}, None),
    ("lease.break", BREAK, None),
    ("lease.break", {**BREAK, "resource": "repo:**"}, None),
    ("wait.claim", {**WHOM, "ticketId": "T43"}, None),
    ("wait.cancel", {**WHOM, "ticketId": "T43"}, None),
    ("scheme.set", {**WHOM, "name": "repo", "class": "append-only"}, None),
    ("scheme.set", {**SCHEME, "lockDelayMs": 3_600_000, "maxHoldMs": 2_592_000_000}, None),
    ("lease.acquire", acquire(mode="shared"), ("member_invalid", "mode")),
    ("lease.acquire", acquire(wait="true"), ("member_invalid", "wait")),
    ("lease.acquire", acquire(giveUpMs=5_000), ("member_conflict", "giveUpMs")),
    ("lease.acquire", acquire(wait=False, giveUpMs=5_000), ("member_conflict", "giveUpMs")),
    ("lease.acquire", acquire(onDeadlock="refuse"), ("member_conflict", "onDeadlock")),
    ("lease.acquire", acquire(wait=True, giveUpMs=999), ("member_invalid", "giveUpMs")),
    ("lease.acquire", acquire(wait=True, giveUpMs=3_600_001), ("member_invalid", "giveUpMs")),
    ("lease.acquire", acquire(wait=True, onDeadlock="fight"), ("member_invalid", "onDeadlock")),
    (
        "lease.acquire",
        {**WHOM, "wait": True, "resources": [f"a:{n}" for n in range(17)]},
        ("member_conflict", "resources"),
    ),
    (
        "lease.acquire",
        {**WHOM, "wait": True, "resources": ["a:é/" + "0" * 252, *(f"a:{n:0254}" for n in range(15))]},
        ("member_conflict", "resources"),
    ),
    ("lease.transfer", {**TRANSFER, "reason": "Shift ends"}, ("member_invalid", "reason")),
    ("lease.transfer", {**TRANSFER, "reasonDigest": "0A" * 32}, ("member_invalid", "reasonDigest")),
    ("lease.transfer", {**TRANSFER, "seenToken": 0}, ("member_invalid", "seenToken")),
    ("lease.break", {**BREAK, "resources": ["repo:a"]}, ("member_unknown", "resources")),
    (
        "lease.break",
        {name: value for name, value in BREAK.items() if name != "seenToken"},
        ("member_missing", "seenToken"),
    ),
    ("wait.claim", {**WHOM, "ticketId": "L43"}, ("member_invalid", "ticketId")),
    ("scheme.set", {**SCHEME, "class": "shared"}, ("member_invalid", "class")),
    ("scheme.set", {**SCHEME, "name": "Repo"}, ("member_invalid", "name")),
    ("scheme.set", {**SCHEME, "lockDelayMs": 3_600_001}, ("member_invalid", "lockDelayMs")),
    ("scheme.set", {**SCHEME, "maxHoldMs": 999}, ("member_invalid", "maxHoldMs")),
    ("lease.acquire", acquire(resources=["a:x"]), ("member_conflict", "resource")),
    ("lease.acquire", WHOM, ("member_conflict", "resource")),
    ("lease.acquire", {**WHOM, "resources": []}, ("member_invalid", "resources")),
    ("lease.acquire", {**WHOM, "resources": ["a:x", "a:x"]}, ("member_invalid", "resources")),
    ("lease.acquire", {**WHOM, "resources": [1]}, ("member_invalid", "resources")),
    ("lease.acquire", {**WHOM, "resources": [f"a:{n}" for n in range(257)]}, ("member_invalid", "resources")),
    ("lease.acquire", {**WHOM, "resources": [f"a:{n:0250}" for n in range(66)]}, ("member_invalid", "resources")),
    ("lease.acquire", acquire(ledger="https://x"), ("member_invalid", "ledger")),
    ("lease.acquire", acquire(actorDid=maker.ALICE.did + "x"), ("member_invalid", "actorDid")),
    ("lease.acquire", {"ledger": maker.ORIGIN, "resource": "lock:a"}, ("member_missing", "actorDid")),
    ("lease.renew", {**WHOM, "leaseId": "L042"}, ("member_invalid", "leaseId")),
    ("lease.renew", {**WHOM, "leaseId": "L0"}, ("member_invalid", "leaseId")),
    ("lease.renew", WHOM, ("member_missing", "leaseId")),
    ("agent.add", {**WHOM, "agent": maker.BOB.did, "name": "Bob Smith"}, ("member_invalid", "name")),
    ("agent.add", {**WHOM, "agent": "did:key:" + "1" * 48}, ("member_invalid", "agent")),
    ("agent.add", {**WHOM, "agent": maker.BOB.did, "agentCustody": "gateway"}, None),
    ("agent.add", {**WHOM, "agent": maker.BOB.did, "custody": "gateway"}, ("member_unknown", "custody")),
    ("agent.add", {**WHOM, "agent": maker.BOB.did, "agentCustody": "agent"}, ("member_invalid", "agentCustody")),
    ("agent.add", ENROL, None),
    ("agent.add", {name: ENROL[name] for name in ENROL if name != "proof"}, ("member_conflict", "proof")),
    ("agent.add", {name: ENROL[name] for name in ENROL if name != "keyDigest"}, ("member_conflict", "proof")),
    ("agent.add", {**ENROL, "proof": "A" * 88}, ("member_invalid", "proof")),
    ("operator.add", {**WHOM, "operator": maker.BOB.did, "name": "deputy"}, None),
    ("operator.remove", {**WHOM, "operator": maker.BOB.did}, None),
    ("operator.remove", {**WHOM, "operator": "gateway"}, ("member_invalid", "operator")),
    ("apikey.issue", {**WHOM, "keyDigest": KEY_DIGEST, "kind": "trial", "name": "ci"}, None),
    ("apikey.issue", {**WHOM, "keyDigest": KEY_DIGEST, "kind": "live", "agent": maker.BOB.did}, None),
    (
        "apikey.issue",
        {**WHOM, "keyDigest": KEY_DIGEST, "kind": "trial", "agent": maker.BOB.did},
        ("member_conflict", "agent"),
    ),
    ("apikey.issue", {**WHOM, "keyDigest": KEY_DIGEST, "kind": "admin"}, ("member_invalid", "kind")),
    ("apikey.issue", {**WHOM, "keyDigest": "tsk_live_x", "kind": "live"}, ("member_invalid", "keyDigest")),
    ("apikey.revoke", {**WHOM, "keyDigest": KEY_DIGEST}, None),
    ("session.open", {**WHOM, "delegations": [SIGNED], "name": "ci-7"}, None),
    ("session.open", {**WHOM, "delegations": [SIGNED] * 3}, None),
    ("session.open", {**WHOM, "delegations": [SIGNED] * 4}, ("member_invalid", "delegations")),
    ("session.open", {**WHOM, "delegations": []}, ("member_invalid", "delegations")),
    ("session.open", {**WHOM, "delegations": [{**SIGNED, "more": 1}]}, ("member_invalid", "delegations")),
    ("session.beat", WHOM, None),
    ("session.beat", {**WHOM, "activity": "building"}, None),
    ("session.beat", {**WHOM, "activity": "I am building"}, ("member_invalid", "activity")),
    ("session.close", {**WHOM, "session": maker.BOB.did, "reason": "done"}, None),
    ("session.close", WHOM, ("member_missing", "session")),
    ("batch.submit", batch(ACQUIRE_IN_BATCH, isAtomic=True, isBare=True), None),
    ("batch.submit", batch(*[ACQUIRE_IN_BATCH] * 256), None),
    ("batch.submit", batch(*[ACQUIRE_IN_BATCH] * 257), ("member_invalid", "commands")),
    ("batch.submit", batch(), ("member_invalid", "commands")),
    ("batch.submit", batch(7), ("member_invalid", "commands")),
    ("batch.submit", batch(ACQUIRE_IN_BATCH, isBare=False), ("member_invalid", "isBare")),
    ("batch.submit", batch(ACQUIRE_IN_BATCH, {}), ("member_missing", "commands[1].action")),
    ("batch.submit", batch({"action": "wait.claim", "ticketId": "T4"}), ("member_invalid", "commands[0].action")),
    ("batch.submit", batch({**ACQUIRE_IN_BATCH, "wait": True}), ("member_unknown", "commands[0].wait")),
    ("batch.submit", batch({**ACQUIRE_IN_BATCH, **WHOM}), ("member_unknown", "commands[0].actorDid")),
    ("batch.submit", batch({**ACQUIRE_IN_BATCH, "resources": ["a:x"]}), ("member_conflict", "commands[0].resource")),
    ("batch.submit", batch({"action": "lease.acquire"}), ("member_conflict", "commands[0].resource")),
    ("batch.submit", batch({"action": "lease.renew"}), ("member_missing", "commands[0].leaseId")),
    ("batch.submit", batch({**ACQUIRE_IN_BATCH, "resource": "a:"}), ("member_invalid", "commands[0].resource")),
]

ADMIT: JsonObject = {**WHOM, "operation": "file.write", "resource": "repo:a", "argumentsDigest": "5a" * 32}
ADMIT_MANY: JsonObject = {name: ADMIT[name] for name in ADMIT if name != "resource"}
APPROVERS: list[JsonValue] = [*sorted([maker.BOB.did, maker.CAROL.did])]
ASK: JsonObject = {**ADMIT, "approvers": APPROVERS}
ASK_MANY: JsonObject = {name: ASK[name] for name in ASK if name != "resource"}
LOAD: JsonObject = {
    **WHOM,
    "rules": "permit(principal, action, resource);\n",
    "rulesMode": "enforce",
    "rulesVersion": 1,
}
IN_BATCH: JsonObject = {"action": "coordination.admit", **{name: ADMIT[name] for name in ADMIT if name not in WHOM}}
BODIES += [
    ("coordination.admit", ADMIT, None),
    ("coordination.admit", {**ADMIT, "mode": "read", "cost": 10**12, "leaseId": "L5", "fencingToken": 1}, None),
    ("coordination.admit", {**ADMIT, "approvals": [SIGNED] * 4}, None),
    ("coordination.admit", {**ADMIT_MANY, "resources": [f"a:{n}" for n in range(64)]}, None),
    (
        "coordination.admit",
        {**ADMIT_MANY, "resources": [f"a:{n}" for n in range(65)]},
        ("member_invalid", "resources"),
    ),
    ("coordination.admit", {**ADMIT, "resources": ["a:x"]}, ("member_conflict", "resource")),
    ("coordination.admit", {**ADMIT, "operation": "File.write"}, ("member_invalid", "operation")),
    ("coordination.admit", {**ADMIT, "operation": "f" * 65}, ("member_invalid", "operation")),
    ("coordination.admit", {**ADMIT, "argumentsDigest": "5A" * 32}, ("member_invalid", "argumentsDigest")),
    ("coordination.admit", {**ADMIT, "cost": 10**12 + 1}, ("member_invalid", "cost")),
    ("coordination.admit", {**ADMIT, "cost": -1}, ("member_invalid", "cost")),
    ("coordination.admit", {**ADMIT, "leaseId": "L5"}, ("member_conflict", "fencingToken")),
    ("coordination.admit", {**ADMIT, "fencingToken": 5}, ("member_conflict", "leaseId")),
    ("coordination.admit", {**ADMIT, "approvals": []}, ("member_invalid", "approvals")),
    ("coordination.admit", {**ADMIT, "approvals": [SIGNED] * 5}, ("member_invalid", "approvals")),
    ("coordination.admit", {**ADMIT, "approvals": [{**SIGNED, "more": 1}]}, ("member_invalid", "approvals")),
    ("coordination.admit", {**ADMIT, "action": "file.write"}, ("member_unknown", "action")),
    ("approval.ask", ASK, None),
    ("approval.ask", {**ASK, "quorum": 2, "giveUpMs": 604_800_000}, None),
    ("approval.ask", {**ASK, "quorum": 3}, ("member_conflict", "quorum")),
    ("approval.ask", {**ASK, "quorum": 0}, ("member_invalid", "quorum")),
    ("approval.ask", {**ASK, "giveUpMs": 604_800_001}, ("member_invalid", "giveUpMs")),
    ("approval.ask", {**ASK, "giveUpMs": 999}, ("member_invalid", "giveUpMs")),
    ("approval.ask", {**ASK, "approvers": []}, ("member_invalid", "approvers")),
    ("approval.ask", {**ASK, "approvers": [maker.BOB.did] * 2}, ("member_invalid", "approvers")),
    (
        "approval.ask",
        {**ASK, "approvers": APPROVERS[::-1]},
        ("member_invalid", "approvers"),
    ),
    (
        "approval.ask",
        {**ASK, "approvers": sorted(maker.Key(n).did for n in range(1, 10))},
        ("member_invalid", "approvers"),
    ),
    ("approval.ask", {**ASK_MANY, "resources": [f"a:{n}" for n in range(16)]}, None),
    ("approval.ask", {**ASK_MANY, "resources": [f"a:{n}" for n in range(17)]}, ("member_invalid", "resources")),
    ("approval.ask", {**ASK, "leaseId": "L5"}, ("member_unknown", "leaseId")),
    ("approval.give", {**WHOM, "askId": "A44", "approval": SIGNED}, None),
    ("approval.give", {**WHOM, "askId": "T44", "approval": SIGNED}, ("member_invalid", "askId")),
    ("approval.give", {**WHOM, "askId": "A44", "approval": [SIGNED]}, ("member_invalid", "approval")),
    ("approval.decline", {**WHOM, "askId": "A44", "reason": "not.now"}, None),
    ("approval.decline", {**WHOM, "askId": "A44", "reason": "Not now"}, ("member_invalid", "reason")),
    ("approval.withdraw", {**WHOM, "askId": "A44"}, None),
    ("approval.withdraw", WHOM, ("member_missing", "askId")),
    ("rules.load", LOAD, None),
    ("rules.load", {**LOAD, "rules": "x" * 16_384, "rulesMode": "shadow", "rulesVersion": 2**53 - 1}, None),
    ("rules.load", {**LOAD, "rules": "x" * 16_385}, ("member_invalid", "rules")),
    ("rules.load", {**LOAD, "rules": ""}, ("member_invalid", "rules")),
    ("rules.load", {**LOAD, "rules": "permit\r\n"}, ("member_invalid", "rules")),
    ("rules.load", {**LOAD, "rules": "// \u202e"}, ("member_invalid", "rules")),
    ("rules.load", {**LOAD, "rulesMode": "off"}, ("member_invalid", "rulesMode")),
    ("rules.load", {**LOAD, "rulesVersion": 0}, ("member_invalid", "rulesVersion")),
    ("batch.submit", batch(IN_BATCH, ACQUIRE_IN_BATCH), None),
    ("batch.submit", batch({**IN_BATCH, "leaseId": "L5"}), ("member_conflict", "commands[0].fencingToken")),
    ("batch.submit", batch({**IN_BATCH, "resources": ["a:x"]}), ("member_conflict", "commands[0].resource")),
    ("batch.submit", batch({"action": "coordination.admit"}), ("member_missing", "commands[0].operation")),
    ("batch.submit", batch({**IN_BATCH, "approvals": []}), ("member_invalid", "commands[0].approvals")),
]


@pytest.mark.parametrize(("action", "body", "wanted"), BODIES)
def test_a_body_is_judged_by_its_table(action: str, body: JsonObject, wanted: tuple[str, str] | None) -> None:
    if wanted is None:
        assert check_body(action, body) is None  # type: ignore[func-returns-value]
        return
    with pytest.raises(MemberError) as caught:
        check_body(action, body)
    assert (caught.value.code, caught.value.member) == wanted
    assert wanted[1].rpartition(".")[2] in str(caught.value)


def test_the_text_of_an_error_names_field_bound_and_length_and_never_the_value() -> None:
    with pytest.raises(MemberError) as caught:
        check_body("lease.renew", {**WHOM, "leaseId": "my-secret-token"})
    assert str(caught.value) == (
        "member leaseId: got a string of 15 characters, must be L and the seq of the granting entry, such as L42"
    )


def test_what_a_body_leaves_out_has_the_default_of_its_action() -> None:
    assert body_value("lease.acquire", acquire(), "mode") == "write"
    assert body_value("lease.acquire", acquire(mode="read"), "mode") == "read"
    assert body_value("lease.acquire", acquire(wait=False), "wait") is False
    assert body_value("lease.renew", {**WHOM, "leaseId": "L42"}, "mode") is None
    assert body_value("agent.add", WHOM, "mode") is None
    for action, defaults in entries.BODY_DEFAULTS.items():
        members = {member.name: member for member in ACTION_BODIES[action]}
        for name, value in defaults.items():
            assert not members[name].is_required and members[name].kind.check(value)


def test_an_unknown_action_is_malformed() -> None:
    with pytest.raises(Malformed):
        check_body("lease.steal", WHOM)


def test_resources_of_a_body_are_sorted_and_each_once() -> None:
    assert resources_of({"resource": "b:x"}) == ("b:x",)
    assert resources_of({"resources": ["b:x", "a:x", "b:x"]}) == ("a:x", "b:x")
    assert resources_of({}) == ()


NAMED = st.none() | st.integers(0, 1) | st.text("ab:", max_size=2)


@given(NAMED, NAMED | st.lists(NAMED, max_size=4))
def test_one_name_alone_gives_what_a_list_of_it_gives(single: JsonValue, several: JsonValue) -> None:
    body: JsonObject = {"resource": single, "resources": several}
    names = [single] if several is None else several if isinstance(several, list) else []
    assert resources_of(body) == tuple(sorted({name for name in names if isinstance(name, str)}))


def test_a_body_is_measured_as_it_stands_in_the_leaf() -> None:
    """Quotes and escapes count: 12,287 quote signs and two quotes are 24,576 bytes."""
    assert is_body_text('"' * 12_287)
    assert not is_body_text('"' * 12_288)
    assert not is_body_text("é" * 12_288)
    assert BODY_TEXT.check('"' * 20_479)
    assert not BODY_TEXT.check('"' * 20_480)
    assert (body_bytes_max("batch.submit"), body_bytes_max("lease.acquire")) == (40_960, 24_576)


def test_only_a_batch_may_have_a_long_body() -> None:
    """The one bound that the kind of a body does not show: it hangs on the action."""
    for name, number in (("batch.received", 16), ("lease.granted", 14)):
        value = maker.staffed().value(number)
        assert value["type"] == full_type(name)
        value["request"]["body"] = '"' * 20_479
        if name == "batch.received":
            assert parse_leaf(maker.canonical(value)).is_known
        else:
            with pytest.raises(Malformed, match="body: at most 24,576"):
                parse_leaf(maker.canonical(value))


def test_every_row_keeps_the_promises_of_the_table() -> None:
    """Requests have an action and its path, the gateway has neither; cited members exist; no name shadows another."""
    common = {member.name for member in COMMON_MEMBERS}
    assert len(ENTRY_TYPES) == 75
    for kind, row in ENTRY_TYPES.items():
        names = [member.name for member in row.members]
        assert kind == row.type == full_type(row.name)
        assert len(set(names)) == len(names) and not common & set(names)
        assert set(row.cites) <= set(names)
        assert (row.cause == "gateway") == (row.actor_rule == "gateway")
        if row.name == "decision.failed":
            assert (row.action, row.path) == (None, None)
        elif row.cause == "request":
            assert row.path == maker.PATHS[row.action or ""]


@pytest.mark.parametrize(("action", "body", "wanted"), BODIES)
def test_a_schema_lets_through_what_the_table_lets_through(
    action: str, body: JsonObject, wanted: tuple[str, str] | None
) -> None:
    """And refuses what it refuses, but for what only code can say: bounds of bytes, base64, one name twice."""
    checker = Draft202012Validator(body_schema(action))
    if wanted is None and not {"delegations", "approvals", "approval"} & body.keys():  # statements are judged elsewhere
        checker.validate(body)
    elif action in ("batch.submit", "apikey.issue", "session.beat", "coordination.admit") or wanted == (
        "member_conflict",
        "proof",
    ):
        assert not checker.is_valid(body)


def test_schemas_are_closed_and_carry_the_bounds() -> None:
    schema = body_schema("lease.acquire")
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["ledger", "actorDid"]
    assert schema["oneOf"] == [{"required": ["resource"]}, {"required": ["resources"]}]
    properties = schema["properties"]
    assert isinstance(properties, dict)
    assert properties["ttlMs"] == {"type": "integer", "minimum": 1_000, "maximum": 3_600_000}
    assert schema["else"] == {"not": {"anyOf": [{"required": ["giveUpMs"]}, {"required": ["onDeadlock"]}]}}
    for action in ACTION_BODIES:
        json.dumps(body_schema(action))
    for kind in ENTRY_TYPES:
        assert leaf_schema(kind)["additionalProperties"] is False


LONG = "s:" + "/".join(["a" * 255] * 4)[:1_022]  # a name of the longest kind


def widest_resources() -> list[str]:
    """256 names, 16 KiB together, of 16 schemes whose names are as long as can be; one name of the longest kind."""
    rest = [f"s{n % 15:031}:{'a' * 24}{n:03}" for n in range(254)]
    rest.append("s:" + "b" * (16_384 - 1_024 - sum(map(len, rest)) - 2))
    return sorted([LONG, *rest])


def widest_evidence(body: str) -> dict[str, str]:
    return {
        "method": "P" * 8,
        "authority": '"' * 255,
        "path": '"' * 255,
        "query": '"' * 256,
        "contentType": '"' * 128,
        "idempotencyKey": '"' * 255,
        "anchor": '"' * 320,
        "body": body,
        "signatureInput": '"' * 640,
        "signature": "A" * 86 + "==",
    }


def widest_common(name: str) -> dict[str, Any]:
    return {
        "type": full_type(name),
        "origin": "a" * 128 + "/" + "b" * 64 + "/" + "c" * 61,
        "seq": 2**53 - 1,
        "epoch": 2**53 - 1,
        "timeMs": entries.TIME_MS_MAX - 3_600_000,
        "prev": "a" * 64,
        "genesis": "b" * 64,
        "durability": "replicated",
        "actor": maker.ALICE.did,
        "principal": maker.ALICE.did,
        "onBehalfOf": maker.ALICE.did,
        "custody": "gateway",
        "request": widest_evidence('"' * 12_287),
    }


def widest_batch_refusal() -> dict[str, Any]:
    """A batch with a body of the widest text, all undone because of the widest cycle."""
    leaf = widest_refusal()
    for name in ("resources", "mode", "ttlMs", "wait"):
        del leaf[name]
    batch = {"type": full_type("batch.refused"), "count": 256, "isAtomic": True, "index": 255}
    return {**leaf, **batch, "action": "lease.acquire", "request": widest_evidence('"' * 20_479)}


def widest_cycle(first: str) -> list[dict[str, Any]]:
    """As many rows as may be, whose names have as many bytes as may be: one is of the longest kind."""
    names = [first, LONG] + [f"s:{n:013}" for n in range(62)]
    names[-1] += "c" * (entries.CYCLE_NAME_BYTES_MAX - sum(map(len, names)))
    dids = [maker.ALICE.did, *(maker.Key(30 + n).did for n in range(63))]
    rows = [{"resource": name, "actor": did, "mode": "delete"} for name, did in zip(names, dids, strict=True)]
    return [
        {**row, "fencingToken": 2**53 - 1, **({"ticketId": "T" + "8" * 16} if n else {})} for n, row in enumerate(rows)
    ]


def widest_refusal() -> dict[str, Any]:
    """A plain acquire of the widest resources with a body of the widest text, refused by the widest cycle."""
    names, time_ms = widest_resources(), entries.TIME_MS_MAX - 3_600_000
    cycle = widest_cycle(min(names, key=len))
    when = {"grantedAtMs": time_ms, "expiresAtMs": time_ms}
    conflict = {"leaseId": "L" + "8" * 16, "resource": LONG, "heldAs": LONG, "fencingToken": 2**53 - 1}
    return {
        **widest_common("lease.refused"),
        "resources": names,
        "mode": "delete",
        "ttlMs": 3_600_000,
        "wait": False,
        "error": "deadlock",
        "number": 502,
        "holder": maker.BOB.did,
        "holderName": "n" * 40,
        "conflict": {**conflict, "mode": "delete", **when},
        "conflicts": 2**53 - 1,
        "stampede": {"admitted": False, "waitMs": entries.TIME_MS_MAX},
        "retryAfterMs": entries.TIME_MS_MAX,
        "waitingOn": cycle[1]["resource"],
        "cycle": cycle,
        "acquireOrder": sorted({row["resource"] for row in cycle}),
        "searchBounded": True,
    }


def test_the_largest_leaf_stays_below_the_bundles_length_field() -> None:
    """Nothing in the table is larger than a deadlock of many names."""
    encoded = maker.canonical(widest_refusal())
    assert parse_leaf(encoded).is_known
    assert LEAF_BYTES_LARGEST - 100 < len(encoded) <= LEAF_BYTES_LARGEST < LEAF_BYTES_MAX


def test_a_batch_that_a_deadlock_undoes_fits_as_well() -> None:
    """Its body is longer by as much as it repeats less: a batch.refused does not name the resources."""
    encoded = maker.canonical(widest_batch_refusal())
    assert parse_leaf(encoded).is_known
    assert 60_000 < len(encoded) <= LEAF_BYTES_LARGEST


def widest_admission(name: str) -> dict[str, Any]:
    """All names an admission may have, all rules and obligations that a set may have, and all approvals."""
    names = sorted([LONG, *(f"s{n % 15:031}:{'a' * 207}{n:03}" for n in range(63))])
    names[-2] += "/" + "b" * (16_384 - sum(map(len, names)) - 1)
    counts = dict.fromkeys(("countMinute", "countDay", "costDay"), 2**53 - 1)
    ids = [f"{n:02}" + "i" * 62 for n in range(64)]
    facts = {member.name: 2**53 - 1 for member in entries.FACTS}
    facts |= {"leaseState": "live", "leaseMode": "delete", "actorKind": "session", "custody": "gateway"}  # type: ignore[dict-item]
    facts |= {"agentName": "n" * 40, "approvals": 4, "leaseAgeMs": 3_600_000, "leaseLeftMs": 3_600_000}  # type: ignore[dict-item]
    ruling = {"version": 2**53 - 1, "digest": "a" * 64, "mode": "enforce", "engine": "cedar/" + "9" * 32}
    return {
        **widest_common(name),
        "onBehalfOf": maker.OPERATOR.did,
        "operation": "o" * 64,
        "resources": names,
        "mode": "delete",
        "argumentsDigest": "a" * 64,
        "cost": 10**12,
        "leaseId": f"L{2**53 - 2}",
        "fencingToken": 2**53 - 1,
        "facts": facts,
        "schemes": [{"class": "irreversible", "isFolding": False, "name": s, **counts} for s in schemes_of(names)],
        "rules": {**ruling, "decision": "allow", "matched": ids, "obligations": ids},
    }


def test_the_widest_admission_and_the_widest_denial_fit() -> None:
    """With a body of the widest text; the largest leaf of all stays the deadlock."""
    time_ms = entries.TIME_MS_MAX - 3_600_000
    dids = sorted(maker.Key(40 + n).did for n in range(4))
    rows = [{"approver": did, "operator": did, "nonce": "n" * 64, "digest": "d" * 64} for did in dids]
    until = {"grantSeq": 2**53 - 2, "actionDigest": "a" * 64, "validUntilMs": time_ms + 3_600_000, "uses": 1}
    denied = widest_admission("admission.denied")
    denied["rules"]["decision"] = "deny"
    found = [
        {**widest_admission("admission.allowed"), **until, "approvals": rows},
        {**denied, "error": "forbidden_by_rules", "number": 622},
    ]
    for leaf in found:
        encoded = maker.canonical(leaf)
        assert parse_leaf(encoded).is_known
        assert 50_000 < len(encoded) <= LEAF_BYTES_LARGEST - 4_000


def test_an_ask_that_the_widest_cycle_refuses_fits_as_well() -> None:
    leaf = widest_refusal()
    cycle, group = leaf["cycle"], ("waitingOn", "cycle", "acquireOrder", "searchBounded")
    del cycle[0]["fencingToken"]
    cycle[0]["askId"] = f"A{2**53 - 1}"
    names = sorted([cycle[0]["resource"], LONG, *(f"s{n:031}:{'a' * 170}" for n in range(14))])
    refused: dict[str, Any] = {name: leaf[name] for name in group} | widest_common("approval.refused")
    refused |= {
        "operation": "o" * 64,
        "resources": names,
        "mode": "delete",
        "argumentsDigest": "a" * 64,
        "cost": 10**12,
    }
    encoded = maker.canonical({**refused, "error": "deadlock", "number": 502})
    assert parse_leaf(encoded).is_known
    assert len(encoded) <= LEAF_BYTES_LARGEST - 4_000


def test_a_leaf_about_a_key_or_a_witnessed_checkpoint_fits_as_well() -> None:
    common = widest_common("checkpoint.witnessed")
    del common["request"], common["custody"]
    gateway = dict.fromkeys(("actor", "principal", "onBehalfOf"), "gateway")
    note = {"checkpoint": '"' * 16_383, "size": 2**53 - 1, "root": "A" * 43 + "="}
    witnessed = maker.canonical({**common, **gateway, **note})
    assert parse_leaf(witnessed).is_known and len(witnessed) <= LEAF_BYTES_LARGEST
    for wrong in ('"' * 16_384, "x" * 16_385):
        with pytest.raises(Malformed, match="checkpoint"):
            parse_leaf(maker.canonical({**common, **gateway, **note, "checkpoint": wrong}))
    ledger = maker.opened()
    seq = ledger.announce("log", maker.NEW_LOG, maker.STRANGER)
    evidence = widest_evidence('"' * 12_287)
    announced = maker.canonical({**ledger.value(seq), "request": evidence, "epoch": 2**53 - 1})
    assert parse_leaf(announced).is_known and len(announced) <= LEAF_BYTES_LARGEST


@pytest.mark.parametrize(
    ("next_keys", "is_good"),
    [
        ({"log": "5a" * 32}, True),
        ({"log": "5a" * 32, "receipt": "6b" * 32}, True),
        ({}, True),
        ({"log": "5A" * 32}, False),
        ({"root": "5a" * 32}, False),
        ({"log": None}, False),
        ([], False),
    ],
    ids=str,
)
def test_entry_0_may_commit_to_the_next_keys(next_keys: Any, is_good: bool) -> None:
    ledger = maker.Ledger()
    ledger.open(nextKeys=next_keys)
    if is_good:
        assert parse_leaf(ledger.leaves[0]).is_known
        return
    with pytest.raises(Malformed, match="nextKeys"):
        parse_leaf(ledger.leaves[0])


def test_a_reason_digest_of_an_acquire_stays_in_the_body() -> None:
    """The leaf does not repeat it: the signed body is evidence enough, and the largest leaf stays as it was."""
    ledger = maker.opened()
    body = {"resource": "lock:a", "reasonDigest": "5a" * 32}
    grant = ledger.value(ledger.grant(maker.ALICE, "lock:a", body_members=body))
    assert parse_leaf(maker.canonical(grant)).is_known
    with pytest.raises(Malformed, match="reasonDigest"):
        parse_leaf(maker.canonical({**grant, "reasonDigest": "5a" * 32}))


def test_a_refusal_about_a_key_says_what_its_statement_says() -> None:
    ledger = maker.opened()
    vkey = maker.NEW_LOG.vkey(maker.ORIGIN)
    body = {"statement": ledger.key_statement(f"retire log {vkey}")}
    members = {"purpose": "log", "key": vkey, "error": "key_unknown", "number": 134}
    leaf = ledger.value(ledger.decision("retirement.refused", maker.OPERATOR, "key.retire", body, members))
    whole: JsonObject = {**WHOM, "statement": body["statement"]}
    assert entries.body_difference(parse_leaf(maker.canonical(leaf)), whole) is None
    for change in ({"purpose": "receipt"}, {"key": maker.LOG.vkey(maker.ORIGIN)}):
        changed = parse_leaf(maker.canonical({**leaf, **change}))
        assert entries.body_difference(changed, whole) == "statement"
    for statement in ("rubbish", ledger.key_statement(f"compromise log {vkey}")):
        assert (
            entries.body_difference(parse_leaf(maker.canonical(leaf)), {**whole, "statement": statement}) == "statement"
        )


def test_a_cycle_beyond_its_bounds_is_no_leaf() -> None:
    leaf = widest_refusal()
    rows = leaf["cycle"]
    longer = [*rows[:-1], {**rows[-1], "resource": rows[-1]["resource"] + "c"}]
    more = [*rows, {**rows[-1], "actor": maker.Key(100).did, "resource": "s:x"}]
    for cycle in (longer, more, rows[:1]):
        order = sorted({row["resource"] for row in cycle})
        with pytest.raises(Malformed, match="cycle"):
            parse_leaf(maker.canonical({**leaf, "cycle": cycle, "acquireOrder": order}))


def test_other_large_leaves_fit_as_well() -> None:
    seq, time_ms = 2**53 - 1, entries.TIME_MS_MAX - 3_600_000
    names, trust = widest_resources(), {"change": -100_000, "after": seq, "previousSeq": seq - 1}
    lease = {
        "resources": names,
        "mode": "delete",
        "schemes": [{"class": "irreversible", "isFolding": False, "name": name} for name in schemes_of(names)],
        "leaseId": f"L{seq}",
        "fencingToken": seq,
        "ttlMs": 3_600_000,
        "expiresAtMs": time_ms + 3_600_000,
        "holdUntilMs": time_ms,
        "fromLeaseId": f"L{seq - 2}",
        "fromSeq": seq - 2,
        "giver": maker.BOB.did,
        "offerSeq": seq - 1,
        "endsIfIdleAtMs": time_ms + 3_600_000,
    }
    ended = {"leaseId": f"L{seq - 1}", "grantSeq": seq - 1, "fencingToken": seq, "holder": maker.BOB.did}
    broken = {"resource": names[0], "seenToken": seq, "reason": "r" * 64, "reasonDigest": "a" * 64, "resources": names}
    gateway = dict.fromkeys(("actor", "principal", "onBehalfOf"), "gateway")
    common = widest_common("lease.expired")
    del common["request"], common["custody"]
    expired = {**ended, "resources": names, "expiresAtMs": time_ms, "delayUntilMs": entries.TIME_MS_MAX}
    opened = maker.Ledger()
    opened.open(
        root='"' * 400,
        keys=['"' * 512] * 16,
        operators=[maker.OPERATOR.did] * 64,
        authorities=["a" * 255] * 32,
        parameters=dict.fromkeys(maker.PARAMETERS, entries.TIME_MS_MAX),
        nextKeys={"log": "5a" * 32, "receipt": "6b" * 32},
    )
    for encoded in (
        maker.canonical({**widest_common("lease.transferred"), **lease, "onBehalfOf": maker.OPERATOR.did}),
        maker.canonical({**widest_common("lease.broken"), **broken, **ended, "grantedAtMs": time_ms}),
        maker.canonical(
            {**common, **gateway, **expired, "trust": [{"did": k.did, **trust} for k in (maker.BOB, maker.CAROL)]}
        ),
        opened.leaves[0],
    ):
        assert parse_leaf(encoded).is_known
        assert len(encoded) <= LEAF_BYTES_LARGEST


def schemes_of(names: list[str]) -> list[str]:
    return sorted({name.split(":")[0] for name in names})


APPEND_ONLY = {"class": "append-only", "isFolding": False}
CONTRADICTIONS = [  # what is changed in a good leaf of `worked`, its seq, words of the error
    (5, {"leaseId": "L4"}, "leaseId"),
    (5, {"expiresAtMs": maker.T0}, "expiresAtMs"),
    (5, {"schemes": [{"class": "exclusive", "isFolding": False, "name": "repo"}]}, "schemes"),
    (
        5,
        {"schemes": [APPEND_ONLY | {"name": "lock"}, APPEND_ONLY | {"name": "repo"}]},
        "in a mode that each of them has",
    ),
    (5, {"principal": maker.BOB.did}, "endsIfIdleAtMs: missing for a session"),
    (5, {"principal": maker.OPERATOR.did}, "onBehalfOf differs from both"),
    (5, {"onBehalfOf": maker.ALICE.did, "principal": maker.BOB.did}, "onBehalfOf differs from both"),
    (5, {"principal": "gateway"}, "member actor"),
    (5, {"onBehalfOf": "gateway"}, "member actor"),
    (5, {"endsIfIdleAtMs": maker.T0}, "endsIfIdleAtMs: after timeMs"),
    (5, {"endsIfIdleAtMs": maker.T0 * 2}, "endsIfIdleAtMs: after timeMs"),
    (5, {"onBehalfOf": maker.ALICE.did, "endsIfIdleAtMs": maker.T0}, "endsIfIdleAtMs: only for a session"),
    (3, {"onBehalfOf": maker.BOB.did}, "equal when an operator or the enroller acts"),
    (0, {"enroller": maker.OPERATOR.did}, "a key has one role"),
    (5, {"prev": "0" * 64}, "zeros exactly in entry 0"),
    (5, {"genesis": "0" * 64}, "zeros exactly in entry 0"),
    (5, {"resources": ["repo:app/src/a.py", "lock:deploy/production"]}, "sorted"),
    (5, {"holder": maker.BOB.did}, "not known here"),
    (5, {"actor": "gateway", "principal": "gateway", "onBehalfOf": "gateway"}, "member actor"),
    (6, {"error": "lease_unknown", "number": 402}, "conflict: not for this error"),
    (6, {"error": "lease_unknown"}, "error, number"),
    (6, {"error": "lease_hold"}, "error, number"),
    (6, {"error": "agent_unknown", "number": 102}, "error, number"),
    (6, {"number": 409}, "error, number"),
    (6, {"error": "deadlock", "number": 502}, "acquireOrder: missing"),
    (6, {"wait": True}, "wait, error"),
    (6, {"holder": maker.BOB.did}, "holder: not the actor"),
    (6, {"resources": ["repo:app/src/b.py"]}, "conflict: resource was asked for"),
    (6, {"ticketId": "T2"}, "ticketId: not for this error"),
    (7, {"grantSeq": 7, "leaseId": "L7"}, "grantSeq"),
    (5, {"fencingToken": 1}, "fencingToken"),
    (5, {"fencingToken": 2**53 - 1}, "fencingToken"),
    (5, {"holdUntilMs": 0}, "holdUntilMs"),
    (7, {"expiresAtMs": maker.T0}, "at least timeMs"),
    (7, {"expiresAtMs": entries.TIME_MS_MAX}, "at most timeMs"),
    (8, {"trust": [{"did": maker.ALICE.did, "change": -1, "after": 1}]}, "trust"),
    (8, {"trust": [{"did": maker.BOB.did, "change": 1, "after": 1}]}, "trust"),
    (8, {"trust": [{"did": maker.ALICE.did, "change": 1, "after": 1, "previousSeq": 8}]}, "previousSeq"),
    (10, {"trust": [{"did": maker.BOB.did, "change": 1, "after": 1}]}, "trust"),
    (10, {"trust": [{"did": maker.BOB.did, "change": -1, "after": 1}] * 2}, "trust"),
    (10, {"delayUntilMs": maker.T0}, "delayUntilMs"),
    (7, {"fencingToken": maker.T0}, "fencingToken"),
    (7, {"grantedAtMs": entries.TIME_MS_MAX}, "grantedAtMs"),
    (8, {"fencingToken": maker.T0 * 2_000}, "fencingToken"),
    (8, {"grantedAtMs": entries.TIME_MS_MAX}, "grantedAtMs"),
    (10, {"expiresAtMs": maker.T0 * 2}, "before its time"),
    (10, {"actor": maker.BOB.did, "principal": maker.BOB.did, "onBehalfOf": maker.BOB.did}, "all gateway"),
    (10, {"onBehalfOf": maker.OPERATOR.did}, "all gateway"),
    (10, {"custody": "gateway"}, "custody: not in entries of the gateway"),
    (10, {"request": {"batch": 1, "index": 8}}, "request: an entry of the gateway has no evidence"),
    (12, {"startedSeq": 12}, "startedSeq"),
    (13, {"type": "tallystick/ledger.opened/1"}, "rules"),
]


@pytest.mark.parametrize(("seq", "change", "words"), CONTRADICTIONS)
def test_a_leaf_that_contradicts_itself_is_malformed(seq: int, change: dict[str, Any], words: str) -> None:
    good = maker.worked().value(seq)
    parse_leaf(maker.canonical(good))
    with pytest.raises(Malformed) as caught:
        parse_leaf(maker.canonical({**good, **change}))
    assert words in str(caught.value)


def test_the_bounds_of_one_entry_about_its_lease_are_exact() -> None:
    """A renewal may repeat an end stated earlier, up to the longest ttl ahead; a token may count up from its time."""
    renewal, grant = maker.worked().value(7), maker.worked().value(5)
    end_ms, token = renewal["timeMs"] + 3_600_000, grant["timeMs"] * 1_000
    for leaf, name, bound, outside in (
        (renewal, "expiresAtMs", end_ms, 1),
        (grant, "fencingToken", token, -1),
        (grant, "fencingToken", token + 5, 1),
        (grant, "holdUntilMs", grant["timeMs"], -1),
    ):
        parse_leaf(maker.canonical({**leaf, name: bound}))
        with pytest.raises(Malformed):
            parse_leaf(maker.canonical({**leaf, name: bound + outside}))


def test_a_leaf_of_an_unknown_type_has_its_common_members_checked_and_nothing_else() -> None:
    good = maker.worked().value(5)
    unknown = {**good, "type": "tallystick/lease.lost/1", "novelty": [1, {"a": None}]}
    leaf = parse_leaf(maker.canonical(unknown))
    assert (leaf.is_known, leaf.seq, leaf.actor) == (False, 5, maker.ALICE.did)
    with pytest.raises(Malformed):
        parse_leaf(maker.canonical({**unknown, "seq": "5"}))
    with pytest.raises(Malformed):
        parse_leaf(maker.canonical({name: value for name, value in unknown.items() if name != "prev"}))


STAFFED_CONTRADICTIONS = [  # what is changed in a good leaf of `staffed`, its seq, words of the error
    (7, {"keyDigest": "1A" * 32}, "keyDigest"),
    (7, {"onBehalfOf": maker.OPERATOR.did}, "equal when an operator or the enroller acts"),
    (10, {"agentCustody": "agent"}, "agentCustody"),
    (13, {"onBehalfOf": maker.SESSION.did, "principal": maker.SESSION.did}, "onBehalfOf: not the session itself"),
    (13, {"verbs": ["transfer", "lease"]}, "verbs"),
    (13, {"verbs": []}, "verbs"),
    (13, {"scope": ["b:x", "a:x"]}, "scope"),
    (13, {"scope": [f"a:{n:02}" for n in range(17)]}, "scope"),
    (13, {"scope": [f"a:{n:0255}" for n in range(16)]}, "scope"),
    (13, {"expiresAtMs": maker.T0 + 604_802_000}, "expiresAtMs: at most timeMs + 604,800,000"),
    (13, {"endsIfIdleAtMs": maker.T0}, "endsIfIdleAtMs"),
    (13, {"endsIfIdleAtMs": maker.T0 * 2}, "endsIfIdleAtMs"),
    (15, {"endsIfIdleAtMs": maker.T0}, "endsIfIdleAtMs"),
    (15, {"activity": "Building"}, "activity"),
    (15, {"onBehalfOf": maker.SESSION.did, "principal": maker.SESSION.did}, "onBehalfOf"),
    (16, {"count": 0}, "count"),
    (16, {"count": 257}, "count"),
    (16, {"isBare": False}, "isBare"),
    (17, {"request": {"batch": 15, "index": 0}}, "seq is batch + 1 + index"),
    (17, {"request": {"batch": 16, "index": 1}}, "seq is batch + 1 + index"),
    (17, {"request": {"batch": 16, "index": 256}}, "request"),
    (17, {"request": {"batch": 16}}, "request"),
    (17, {"request": {"batch": 16, "index": 0, "more": 1}}, "request"),
    (15, {"request": {"batch": 14, "index": 0}}, "not a type that answers a command"),
    (16, {"request": {"batch": 15, "index": 0}}, "not a type that answers a command"),
    (24, {"wait": True}, "not a type that answers a command"),
    (36, {"request": {"batch": 35, "index": 0}}, "not a type that answers a command"),
    (21, {"index": 2}, "index: below count"),
    (21, {"isAtomic": False}, "isAtomic"),
    (21, {"action": "wait.claim"}, "action"),
    (21, {"holder": maker.BOB.did}, "holder: not the actor"),
    (21, {"endedSeq": 1}, "endedSeq: not for this error"),
    (21, {"error": "decision_failed", "number": 901}, "not for this error"),
    (25, {"openedSeq": 25}, "openedSeq: an earlier entry"),
    (28, {"endedSeq": 28}, "endedSeq: an earlier entry"),
    (26, {"causeSeq": 26}, "causeSeq: an earlier entry"),
    (26, {"causeSeq": 14}, "causeSeq: later than the grant"),
    (26, {"leaseId": "L15"}, "leaseId"),
    (26, {"delayUntilMs": maker.T0}, "delayUntilMs"),
    (32, {"reason": "revoked"}, "causeSeq: there exactly when"),
    (32, {"causeSeq": 3}, "causeSeq: there exactly when"),
    (32, {"leases": 0}, "trust: one row"),
    (32, {"reason": "revoked", "causeSeq": 3}, "trust: one row"),
    (32, {"trust": [{"did": maker.BOB.did, "change": 1, "after": 1}]}, "trust"),
    (32, {"trust": [{"did": k.did, "change": -1, "after": 1} for k in (maker.BOB, maker.ALICE)]}, "trust: one row"),
    (32, {"reason": "bored"}, "reason"),
    (39, {"causeSeq": 39}, "causeSeq: an earlier entry"),
    (40, {"reason": "holder_left"}, "reason"),
    (43, {"issuedSeq": 43}, "issuedSeq: an earlier entry"),
    (44, {"onBehalfOf": maker.DEPUTY.did}, "equal when an operator or the enroller acts"),
]


@pytest.mark.parametrize(("seq", "change", "words"), STAFFED_CONTRADICTIONS)
def test_a_leaf_of_identity_or_batch_that_contradicts_itself_is_malformed(
    seq: int, change: dict[str, Any], words: str
) -> None:
    good = STAFFED.value(seq)
    parse_leaf(maker.canonical(good))
    with pytest.raises(Malformed) as caught:
        parse_leaf(maker.canonical({**good, **change}))
    assert words in str(caught.value)


@pytest.mark.parametrize("seq", [13, 14, 15])
def test_who_is_silent_ends_after_now_and_not_after_the_lease(seq: int) -> None:
    good = STAFFED.value(seq)
    end_ms = good.get("expiresAtMs", good["timeMs"] + 120_000)
    for ends_ms in (good["timeMs"] + 1, end_ms):
        parse_leaf(maker.canonical({**good, "endsIfIdleAtMs": ends_ms}))
    outside = [good["timeMs"], *([end_ms + 1] if "expiresAtMs" in good else [])]
    for ends_ms in outside:
        with pytest.raises(Malformed, match="endsIfIdleAtMs"):
            parse_leaf(maker.canonical({**good, "endsIfIdleAtMs": ends_ms}))


def test_a_command_is_its_actions_body_without_what_stands_once() -> None:
    body: JsonObject = {**WHOM, "commands": [{"action": "lease.release", "resource": "a:x"}, ACQUIRE_IN_BATCH]}
    check_body("batch.submit", body)
    assert command_body(body, 0) == {**WHOM, "resource": "a:x"}
    assert commands_in(body) == (("lease.release", command_body(body, 0)), ("lease.acquire", command_body(body, 1)))
    for action, command in commands_in(body):
        check_body(action, command)


def test_a_fault_in_a_command_is_named_by_its_place() -> None:
    with pytest.raises(MemberError) as caught:
        check_body("batch.submit", batch(ACQUIRE_IN_BATCH, {**ACQUIRE_IN_BATCH, "ttlMs": 999}))
    assert str(caught.value) == (
        "in commands[1]: member ttlMs: got the integer 999, must be an integer from 1,000 to 3,600,000 (milliseconds)"
    )


@pytest.mark.parametrize("make", [maker.worked, maker.busy, maker.staffed, maker.keyed])
def test_every_leaf_of_a_working_day_parses_and_keeps_its_bytes(make: Callable[[], maker.Ledger]) -> None:
    for seq, encoded in enumerate(make().leaves):
        leaf = parse_leaf(encoded)
        assert (leaf.seq, leaf.value, leaf.is_known) == (seq, json.loads(encoded), True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(range(15)), st.data())
def test_any_value_in_any_member_is_a_leaf_or_malformed(seq: int, data: st.DataObject) -> None:
    value = _WORKED.value(seq)
    name = data.draw(st.sampled_from(sorted(value)))
    value[name] = data.draw(JSON)
    try:
        assert parse_leaf(maker.canonical(value)).value == value
    except Malformed:
        pass


@given(st.sampled_from(sorted(ACTION_BODIES)), st.dictionaries(st.sampled_from([*WHOM, "resource", "ttlMs"]), JSON))
def test_any_body_is_good_or_malformed(action: str, body: JsonObject) -> None:
    try:
        check_body(action, body)
    except Malformed:
        pass


_WORKED = maker.worked()
STAFFED = maker.staffed()
