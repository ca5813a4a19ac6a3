"""Answers are a pure function of stored bytes, in the shapes of the protocol."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.facts import _FACTS
from gateway.core.refusal import TABLE
from gateway.ledger.checkpoint import encode_leaf
from gateway.ledger.receipts import Proven, answer, batch_answer, count_of, header_of, render
from verifier.entries import ENTRY_TYPES, full_type
from verifier.proof import Proof, encode_proof
from verifier.wire import JsonObject, encode_canonical

NAMES = st.from_regex(r"\A[a-z][a-zA-Z0-9_]{0,8}\Z")
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(exclude_categories=["Cs"]))
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))
COMMON = {"seq": 7, "timeMs": 1_000, "actor": "did:a", "type": ""}
PROOF = "c2sp.org/tlog-proof@v1\nindex 7\n" + base64.b64encode(b"p" * 32).decode() + "\n\nnote\n"


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_the_fast_encoder_writes_canonical_json(value: JsonObject) -> None:
    assert encode_leaf(value) == encode_canonical(value)


def body(kind: str, /, **members: Any) -> tuple[dict[str, Any], bytes]:
    leaf = json.dumps({**COMMON, "type": f"tallystick/{kind}/1", **members}).encode()
    data = answer(leaf, b"s" * 64, b"note\n", (b"p" * 32,), key_id="kid")
    return json.loads(data), leaf


def receipt_of(leaf: bytes) -> dict[str, Any]:
    return {
        "payloadType": "application/vnd.tallystick.leaf.v1+json",
        "payload": base64.b64encode(leaf).decode(),
        "signatures": [{"keyid": "kid", "sig": base64.b64encode(b"s" * 64).decode()}],
        "proof": PROOF,
    }


LEASE: dict[str, Any] = {"leaseId": "L7", "fencingToken": 9, "mode": "write", "ttlMs": 5, "expiresAtMs": 1_005}
SHOWN = {**LEASE, "holder": "did:a"}
CONFLICT = {"leaseId": "L3", "resource": "a:b", "fencingToken": 3, "mode": "write", "grantedAtMs": 1, "expiresAtMs": 50}
STORIES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "lease.granted",
        {**LEASE, "resources": ["a:b"]},
        {"ok": True, "lease": {**SHOWN, "resource": "a:b", "resources": ["a:b"], "grantedAtMs": 1_000}},
    ),
    (
        "lease.extended",
        {**LEASE, "resources": ["a:b", "a:c"], "grantedAtMs": 600},
        {"ok": True, "lease": {**SHOWN, "resources": ["a:b", "a:c"], "grantedAtMs": 600}},
    ),
    (
        "lease.renewed",
        {**LEASE, "resources": ["a:b"], "grantedAtMs": 600},
        {"ok": True, "lease": {**SHOWN, "resource": "a:b", "resources": ["a:b"], "grantedAtMs": 600}},
    ),
    (
        "lease.released",
        {"resources": ["a:b"], "leaseId": "L3", "fencingToken": 3, "grantedAtMs": 1, "grantSeq": 3},
        {"ok": True, "released": {"leaseId": "L3", "resource": "a:b", "resources": ["a:b"], "holder": "did:a"}},
    ),
    (
        "release.repeated",
        {"resources": ["a:b"], "leaseId": "L3", "endedSeq": 5},
        {"ok": True, "released": {"leaseId": "L3", "resource": "a:b", "resources": ["a:b"], "holder": "did:a"}},
    ),
    (
        "lease.claimed",
        {**LEASE, "resources": ["a:b"], "ticketId": "T2", "ticketSeq": 2},
        {"ok": True, "lease": {**SHOWN, "resource": "a:b", "resources": ["a:b"], "grantedAtMs": 1_000}},
    ),
    (
        "wait.queued",
        {
            "resources": ["a:b"], "mode": "read", "ttlMs": 5, "giveUpMs": 9, "ticketId": "T7", "pollByMs": 30,
            "giveUpByMs": 40, "position": 2, "softCycle": True, "cycle": [{}],
        },
        {
            "ok": True, "softCycle": True, "cycle": [{}],
            "ticket": {
                "ticketId": "T7", "position": 2, "pollByMs": 30, "actor": "did:a", "resource": "a:b",
                "resources": ["a:b"], "mode": "read", "ttlMs": 5, "giveUpByMs": 40,
            },
        },
    ),
    (
        "wait.polled",
        {"ticketId": "T7", "ticketSeq": 7, "pollByMs": 30, "position": 2},
        {"ok": True, "ticket": {"ticketId": "T7", "position": 2, "pollByMs": 30, "actor": "did:a"}},
    ),
    (
        "wait.cancelled",
        {"ticketId": "T7", "ticketSeq": 7},
        {"ok": True, "cancelled": {"ticketId": "T7", "actor": "did:a"}},
    ),
    (
        "transfer.offered",
        {"leaseId": "L3", "seenToken": 3, "toDid": "did:c", "reason": "shift", "holder": "did:a", "grantSeq": 3},
        {"ok": True, "offer": {
            "leaseId": "L3", "holder": "did:a", "toDid": "did:c", "reason": "shift", "fencingToken": 3,
        }},
    ),
    (
        "lease.broken",
        {
            "resource": "a:b", "seenToken": 3, "reason": "stuck", "resources": ["a:b"], "leaseId": "L3",
            "fencingToken": 3, "holder": "did:b", "grantSeq": 3, "grantedAtMs": 1, "delayUntilMs": 9,
        },
        {"ok": True, "broken": {
            "resource": "a:b", "leaseId": "L3", "holder": "did:b", "reason": "stuck", "delayUntilMs": 9,
            "fencingToken": 3,
        }},
    ),
    (
        "break.repeated",
        {"resource": "a:b", "seenToken": 3, "reason": "stuck", "endedSeq": 5},
        {"ok": True, "broken": {"resource": "a:b", "reason": "stuck", "endedSeq": 5, "fencingToken": 3}},
    ),
    (
        "scheme.set",
        {
            "name": "doc", "class": "read-safe", "isFolding": True, "isUnicode": False, "lockDelayMs": 0,
            "maxHoldMs": 9, "unicodeVersion": "14.0.0",
        },
        {"ok": True, "scheme": {
            "name": "doc", "class": "read-safe", "isFolding": True, "isUnicode": False, "lockDelayMs": 0,
            "maxHoldMs": 9,
        }},
    ),
    (
        "lease.refused",
        {
            "resources": ["a:b"], "mode": "write", "ttlMs": 5, "wait": True, "error": "deadlock", "number": 502,
            "holder": "did:b", "conflict": CONFLICT, "conflicts": 1, "waitingOn": "a:c", "cycle": [{}],
            "acquireOrder": ["a:b", "a:c"], "searchBounded": True,
        },
        {
            "ok": False, "error": "deadlock", "number": 502, "retry": "never", "holder": "did:b", "conflict": CONFLICT,
            "conflicts": 1, "waitingOn": "a:c", "cycle": [{}], "acquireOrder": ["a:b", "a:c"], "searchBounded": True,
            "expiresAtMs": 50,
        },
    ),
    (
        "claim.refused",
        {"ticketId": "T7", "error": "ticket_ended", "number": 507, "endedSeq": 9},
        {"ok": False, "error": "ticket_ended", "number": 507, "retry": "never", "ticketId": "T7", "endedSeq": 9},
    ),
    ("agent.added", {"agent": "did:b", "name": "bob"}, {"ok": True, "agent": {"did": "did:b", "name": "bob"}}),
    (
        "agent.added",
        {"agent": "did:b", "agentCustody": "gateway", "keyDigest": "d1"},
        {"ok": True, "agent": {"did": "did:b", "agentCustody": "gateway"}},
    ),
    ("operator.added", {"operator": "did:o", "name": "ann"}, {"ok": True, "operator": {"did": "did:o", "name": "ann"}}),
    ("operator.removed", {"operator": "did:o"}, {"ok": True, "operator": {"did": "did:o"}}),
    (
        "apikey.issued",
        {"keyDigest": "d1", "kind": "live", "agent": "did:b", "name": "ci"},
        {"ok": True, "apikey": {"keyDigest": "d1", "kind": "live", "agent": "did:b", "name": "ci"}},
    ),
    ("apikey.revoked", {"keyDigest": "d1", "issuedSeq": 4}, {"ok": True, "apikey": {"keyDigest": "d1"}}),
    (
        "session.opened",
        {
            "principal": "did:p", "verbs": ["lease"], "scope": ["a:**"], "expiresAtMs": 90, "endsIfIdleAtMs": 50,
            "name": "night",
        },
        {"ok": True, "session": {
            "did": "did:a", "agent": "did:p", "verbs": ["lease"], "scope": ["a:**"], "expiresAtMs": 90,
            "endsIfIdleAtMs": 50, "name": "night",
        }},
    ),
    (
        "session.seen",
        {"endsIfIdleAtMs": 50, "activity": "testing"},
        {"ok": True, "session": {"did": "did:a", "endsIfIdleAtMs": 50, "activity": "testing"}},
    ),
    (
        "session.closed",
        {"session": "did:s", "openedSeq": 4, "leases": 2, "tickets": 1, "reason": "done"},
        {"ok": True, "closed": {"session": "did:s", "openedSeq": 4, "leases": 2, "tickets": 1, "reason": "done"}},
    ),
    (
        "closing.repeated",
        {"session": "did:s", "endedSeq": 9},
        {"ok": True, "closed": {"session": "did:s", "endedSeq": 9}},
    ),
    (
        "lease.granted",
        {**LEASE, "resources": ["a:b"], "endsIfIdleAtMs": 50},
        {"ok": True, "lease": {
            **SHOWN, "resource": "a:b", "resources": ["a:b"], "grantedAtMs": 1_000, "endsIfIdleAtMs": 50,
        }},
    ),
    (
        "renewal.refused",
        {"leaseId": "L3", "ttlMs": 5, "error": "lease_returned", "number": 418, "endedSeq": 6},
        {
            "ok": False, "error": "lease_returned", "number": 418, "retry": "never", "leaseId": "L3",
            "endedSeq": 6,
        },
    ),
    (
        "batch.refused",
        {
            "count": 3, "isAtomic": True, "index": 1, "action": "lease.acquire", "error": "lease_held", "number": 408,
            "holder": "did:b", "conflict": CONFLICT, "conflicts": 1,
        },
        {
            "ok": False, "error": "lease_held", "number": 408, "retry": "new_request", "holder": "did:b",
            "conflict": CONFLICT, "conflicts": 1, "expiresAtMs": 50, "index": 1,
        },
    ),
    ("agent.removed", {"agent": "did:b"}, {"ok": True, "agent": {"did": "did:b"}}),
    (
        "lease.refused",
        {
            "resources": ["a:b"], "mode": "write", "ttlMs": 5, "error": "lease_held", "number": 408, "holder": "did:b",
            "holderName": "bob", "conflict": CONFLICT, "conflicts": 1, "retryAfterMs": 25,
            "stampede": {"admitted": True, "waitMs": 25},
        },
        {
            "ok": False, "error": "lease_held", "number": 408, "retry": "new_request", "holder": "did:b",
            "holderName": "bob", "conflict": CONFLICT, "conflicts": 1, "retryAfterMs": 25, "expiresAtMs": 50,
            "stampede": {"admitted": True, "waitMs": 25},
        },
    ),
    (
        "renewal.refused",
        {"leaseId": "L3", "ttlMs": 5, "error": "lease_expired", "number": 405, "endedSeq": 6},
        {"ok": False, "error": "lease_expired", "number": 405, "retry": "new_request", "leaseId": "L3", "endedSeq": 6},
    ),
    (
        "decision.failed",
        {"action": "lease.acquire", "error": "decision_failed", "number": 901},
        {"ok": False, "error": "decision_failed", "number": 901, "retry": "new_request"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "members", "expected"), STORIES, ids=[story[0] for story in STORIES])
def test_an_answer_says_what_the_leaf_says_and_carries_the_receipt(
    kind: str, members: dict[str, Any], expected: dict[str, Any]
) -> None:
    said, leaf = body(kind, **members)
    if not expected["ok"]:
        expected = expected | {"message": next(row.advice for row in TABLE if row.name == expected["error"])}
    assert said == {**expected, "receipt": receipt_of(leaf)}


def test_a_receipt_file_is_exactly_the_member_receipt() -> None:
    said, leaf = body("agent.removed", agent="did:b")
    file = render(leaf, b"s" * 64, b"note\n", (b"p" * 32,), key_id="kid")
    assert json.loads(file) == said["receipt"]
    whole = answer(leaf, b"s" * 64, b"note\n", (b"p" * 32,), key_id="kid")
    assert b'"receipt":' + file + b"}" == whole[whole.index(b'"receipt":') :]


@given(
    st.integers(0, 2**53 - 1),
    st.lists(st.binary(min_size=32, max_size=32), max_size=63),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1),
)
def test_a_proof_is_what_the_verifiers_encoder_writes(seq: int, path: list[bytes], text: str) -> None:
    note = text.encode()
    file = json.loads(render(b'{"seq":%d}' % seq, b"s" * 64, note, path, key_id="kid"))
    assert file["proof"].encode() == encode_proof(Proof(seq, tuple(path), note))
    assert list(file) == ["payloadType", "payload", "signatures", "proof"]


def entry(seq: int, kind: str, /, **members: Any) -> Proven:
    leaf = json.dumps({**COMMON, "seq": seq, "type": f"tallystick/{kind}/1", **members}).encode()
    return Proven(leaf, bytes([seq]) * 64, tuple(bytes([at]) * 32 for at in range(seq)))


def of_command(seq: int, kind: str, /, **members: Any) -> Proven:
    return entry(seq, kind, request={"batch": 2, "index": seq - 3}, **members)


GRANTED = of_command(3, "lease.granted", **LEASE, resources=["a:b"])
TURNED_DOWN = of_command(
    4, "lease.refused", resources=["a:c"], error="lease_held", number=408, conflict=CONFLICT, conflicts=1
)


@pytest.mark.parametrize("is_bare", [False, True])
@pytest.mark.parametrize("is_ok", [False, True])
def test_a_batch_answers_for_each_command_and_has_one_checkpoint(is_ok: bool, is_bare: bool) -> None:
    bare = {"isBare": True} if is_bare else {}
    header = entry(2, "batch.received", count=2 - is_ok, isAtomic=False, request={"body": "…"}, **bare)
    entries = (header, GRANTED) if is_ok else (header, GRANTED, TURNED_DOWN)
    said = json.loads(batch_answer(entries, b'note "x"\n', key_id="kid"))
    lease = {**SHOWN, "resource": "a:b", "resources": ["a:b"], "grantedAtMs": 1_000}
    advice = next(row.advice for row in TABLE if row.name == "lease_held")
    refused = {
        "ok": False, "error": "lease_held", "number": 408, "message": advice, "retry": "new_request",
        "conflict": CONFLICT, "conflicts": 1, "expiresAtMs": 50, "status": 409, "seq": 4,
    }  # fmt: skip
    assert said == {
        "ok": is_ok,
        "results": [{"ok": True, "lease": lease, "status": 200, "seq": 3}, *([] if is_ok else [refused])],
        "batch": {
            "checkpoint": 'note "x"\n',
            "index": 2,
            "keyid": "kid",
            "leaves": [base64.b64encode(one.leaf).decode() for one in entries],
            "signatures": [] if is_bare else [base64.b64encode(one.signature).decode() for one in entries],
            "paths": [[base64.b64encode(part).decode() for part in one.path] for one in entries],
        },
    }


def test_a_commands_receipt_carries_the_header_beside_the_proof() -> None:
    header = entry(2, "batch.received", count=2, isAtomic=False, request={"body": "…"})
    plain = json.loads(render(GRANTED.leaf, GRANTED.signature, b"note\n", GRANTED.path, key_id="kid"))
    around = (header.leaf, header.path)
    whole = json.loads(render(GRANTED.leaf, GRANTED.signature, b"note\n", GRANTED.path, key_id="kid", header=around))
    path = [base64.b64encode(part).decode() for part in header.path]
    assert whole == plain | {"batch": {"leaf": base64.b64encode(header.leaf).decode(), "path": path}}


def test_a_header_says_how_many_entries_follow_it_and_theirs_say_whose_they_are() -> None:
    header = entry(2, "batch.received", count=2, isAtomic=False, request={"body": "batch"})
    talks = entry(9, "lease.broken", reason="tallystick/batch.received/1", count=7)
    assert [count_of(one.leaf) for one in (header, GRANTED, TURNED_DOWN, talks)] == [2, 0, 0, 0]
    assert [header_of(one.leaf) for one in (header, GRANTED, TURNED_DOWN, talks)] == [None, 2, 2, None]


def test_every_entry_that_answers_a_request_has_a_shape() -> None:
    asked = {row.type for row in ENTRY_TYPES.values() if row.cause == "request"}
    refusals = {row.type for row in ENTRY_TYPES.values() if any(member.name == "error" for member in row.members)}
    assert set(_FACTS) == asked - refusals - {full_type("batch.received")}  # of which the commands' entries speak
