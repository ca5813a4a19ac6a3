"""What tools take and say, as JSON Schemas that hosts and models understand.

House rules of this file:

* An input schema is the table's own (verifier/entries.py), less what some hosts fail on, losing all tools over one:
  alternatives at the top, and patterns with look-ahead. What is left out here is still judged, by that table.
* An output schema says what a program may count on. It is open: a later gateway may say more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from gateway.core.refusal import Retry
from verifier.entries import Member
from verifier.wire import JsonObject, JsonValue

_TEXT: JsonObject = {"type": "string"}
_NUMBER: JsonObject = {"type": "integer"}
_FLAG: JsonObject = {"type": "boolean"}
_ANY: JsonObject = {"type": "object"}
_TEXTS: JsonObject = {"type": "array", "items": _TEXT}
_ROWS: JsonObject = {"type": "array", "items": _ANY}


def _object(required: Mapping[str, JsonObject], perhaps: Mapping[str, JsonObject] | None = None) -> JsonObject:
    return {"type": "object", "required": list(required), "properties": {**required, **(perhaps or {})}}


_LEASE = _object(
    {
        "leaseId": _TEXT,
        "resources": _TEXTS,
        "holder": _TEXT,
        "fencingToken": _NUMBER,
        "mode": _TEXT,
        "grantedAtMs": _NUMBER,
        "expiresAtMs": _NUMBER,
    },
    {"resource": _TEXT, "ttlMs": _NUMBER, "endsIfIdleAtMs": _NUMBER},
)
_LEASES: JsonObject = {"type": "array", "items": _LEASE}
_TICKET = _object({"ticketId": _TEXT, "position": _NUMBER, "pollByMs": _NUMBER}, {"resources": _TEXTS, "mode": _TEXT})
_ADMISSION = _object(
    {
        "seq": _NUMBER,
        "operation": _TEXT,
        "resources": _TEXTS,
        "mode": _TEXT,
        "argumentsDigest": _TEXT,
        "validUntilMs": _NUMBER,
        "uses": _NUMBER,
    },
    {"resource": _TEXT, "leaseId": _TEXT, "fencingToken": _NUMBER, "cost": _NUMBER, "approvals": _ROWS},
)
_ASK = _object(
    {"askId": _TEXT, "operation": _TEXT, "resources": _TEXTS, "argumentsDigest": _TEXT, "giveUpByMs": _NUMBER},
    {"approvers": _TEXTS, "quorum": _NUMBER, "mode": _TEXT, "cost": _NUMBER, "actionDigest": _TEXT},
)
_NEXT = _object({"tool": _TEXT, "arguments": _ANY, "why": _TEXT})
_RESULT = _object({"ok": _FLAG, "seq": _NUMBER, "status": _NUMBER}, {"lease": _LEASE, "error": _TEXT, "message": _TEXT})
_REFUSAL: Mapping[str, JsonObject] = {
    "error": _TEXT,
    "message": _TEXT,
    "retry": {"type": "string", "enum": list(get_args(Retry))},
}
_PERHAPS: Mapping[str, JsonObject] = {
    "number": _NUMBER,
    "idempotencyKey": _TEXT,
    "retryAfterMs": _NUMBER,
    "holder": _TEXT,
    "expiresAtMs": _NUMBER,
    "leaseId": _TEXT,
    "ticketId": _TEXT,
    "conflict": _ANY,
    "ahead": _ANY,
    "stampede": _ANY,
    "waitingOn": _TEXT,
    "cycle": _ROWS,
    "acquireOrder": _TEXTS,
    "delayUntilMs": _NUMBER,
    "endedSeq": _NUMBER,
    "currentToken": _NUMBER,
    "index": _NUMBER,
}
_ALWAYS: Mapping[str, JsonObject] = {"ok": _FLAG, "seq": _NUMBER, "receipt": _ANY, "next": _NEXT}
# By action: the sets of members of which a success has one, whole.
SUCCESSES: Mapping[str, tuple[Mapping[str, JsonObject], ...]] = {
    "lease.acquire": ({"lease": _LEASE}, {"ticket": _TICKET}),
    "lease.renew": ({"lease": _LEASE},),
    "lease.release": ({"released": _object({"leaseId": _TEXT, "resources": _TEXTS})},),
    "lease.transfer": ({"offer": _object({"leaseId": _TEXT, "toDid": _TEXT, "fencingToken": _NUMBER})},),
    "lease.accept": ({"lease": _LEASE},),
    "wait.claim": ({"lease": _LEASE}, {"ticket": _TICKET}),
    "wait.cancel": ({"cancelled": _object({"ticketId": _TEXT})},),
    "session.beat": ({"session": _object({"did": _TEXT, "endsIfIdleAtMs": _NUMBER})},),
    "coordination.admit": (
        {"allowed": _FLAG, "admission": _ADMISSION, "isPoliced": _FLAG, "matched": _TEXTS, "obligations": _TEXTS},
    ),
    "approval.ask": ({"ask": _ASK},),
    "approval.withdraw": ({"ask": _object({"askId": _TEXT})},),
    "batch.submit": ({"results": {"type": "array", "items": _RESULT}},),
    "coordination.wait": (
        {
            "nowMs": _NUMBER,
            "resources": _ROWS,
            "approvals": _ROWS,
            "deadlocks": _ROWS,
            "counts": _ANY,
            "isTruncated": _FLAG,
            "isChanged": _FLAG,
        },
    ),
    "lease.list": (
        {"nowMs": _NUMBER, "holder": _TEXT, "leases": {"type": "array", "items": _LEASE}, "offered": _ROWS},
    ),
    "trust.get": ({"nowMs": _NUMBER, "did": _TEXT, "trust": _NUMBER},),
    "usage.get": ({"nowMs": _NUMBER, "did": _TEXT, "usage": _ROWS},),
    "approval.list": ({"nowMs": _NUMBER, "approvals": _ROWS},),
    "receipt.get": ({"seq": _NUMBER, "receipt": _ANY},),
}


def input_schema(members: tuple[Member, ...], meanings: Mapping[str, str]) -> JsonObject:
    """Return the closed schema of a tool's arguments."""
    properties: JsonObject = {
        member.name: {**_plain(member.kind.schema), "description": f"{meanings[member.name]} ({member.kind.bound})"}
        for member in members
    }
    required: list[JsonValue] = [member.name for member in members if member.is_required]
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


def _plain(schema: JsonObject) -> JsonObject:
    return {name: _plain_value(value) for name, value in schema.items() if not _is_hard(name, value)}


def _plain_value(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return _plain(value)
    return [_plain_value(item) for item in value] if isinstance(value, list) else value


def _is_hard(name: str, value: JsonValue) -> bool:
    """Say whether a keyword is a pattern beyond regular expressions, or beyond ASCII."""
    return name == "pattern" and isinstance(value, str) and ("(?" in value or not value.isascii())


def output_schema(action: str) -> JsonObject:
    """Return the schema of what a tool says: done, or refused with a reason."""
    successes = SUCCESSES[action]
    properties: JsonObject = {**_PERHAPS, **_REFUSAL, **_ALWAYS}
    for members in successes:
        properties |= members
    ways: list[JsonValue] = [{"required": list(members)} for members in successes]
    refused: JsonObject = {"properties": {"ok": {"const": False}}, "required": list(_REFUSAL)}
    return {"type": "object", "required": ["ok"], "properties": properties, "anyOf": [*ways, refused]}
