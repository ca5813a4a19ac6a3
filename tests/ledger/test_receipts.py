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
from gateway.ledger.receipts import answer, render
from verifier.entries import ENTRY_TYPES
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


def body(kind: str, **members: Any) -> tuple[dict[str, Any], bytes]:
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


def test_every_entry_that_answers_a_request_has_a_shape() -> None:
    asked = {row.type for row in ENTRY_TYPES.values() if row.cause == "request"}
    refusals = {row.type for row in ENTRY_TYPES.values() if any(member.name == "error" for member in row.members)}
    assert set(_FACTS) == asked - refusals
