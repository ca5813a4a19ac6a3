"""Statements of approval: who says yes to one exact action of one agent, and until when, signed by who says it.

A statement names the ledger and its entry 0, the agent, and the SHA-256 of all that the agent is going to do, and under
which rules: whatever is changed afterwards is another action, for which the statement is worth nothing. What needs the
ledger (who may approve for whom, and that each statement is used once) is not here. Source: docs/protocol.md 38.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import sha256
from typing import NamedTuple

from verifier.did import decode_did
from verifier.entries import (
    ALLOWED,
    APPROVAL,
    APPROVAL_MEMBERS,
    APPROVAL_MS_MAX,
    APPROVALS,
    ZERO_HASH,
    Leaf,
    MemberError,
    check_members,
    full_type,
    resources_of,
    rows_of,
)
from verifier.sig import is_valid
from verifier.wire import JsonObject, JsonValue, decode_base64, encode_canonical

_STATEMENT = b"tallystick.approval/1\n"
_GIVEN = full_type("approval.given")


class Approval(NamedTuple):
    """One statement whose shape and signature are good. It holds at log times in [not_before_ms, expires_at_ms).

    `digest` is the hex SHA-256 of its canonical JSON.
    """

    ledger: str
    genesis: str
    agent: str
    operation: str
    action_digest: str
    arguments_digest: str
    rules_digest: str
    approver: str
    nonce: str
    not_before_ms: int
    expires_at_ms: int
    digest: str


def approval_bytes(statement: JsonObject) -> bytes:
    """Return what the approver signs; the first line keeps it apart from everything else that this key signs."""
    return _STATEMENT + sha256(encode_canonical(statement)).digest()


def action_digest(
    agent: str,
    operation: str,
    resources: Collection[str],
    mode: str,
    arguments_digest: str,
    cost: int,
    ledger: str,
    rules_digest: str = ZERO_HASH,
) -> str:
    """Return the hex SHA-256 of what an agent is going to do: of the canonical JSON of exactly these eight members."""
    document: JsonObject = {
        "agent": agent,
        "argumentsDigest": arguments_digest,
        "cost": cost,
        "ledger": ledger,
        "mode": mode,
        "operation": operation,
        "resources": list[JsonValue](sorted(resources)),
        "rulesDigest": rules_digest,
    }
    return sha256(encode_canonical(document)).hexdigest()


def action_digest_of(leaf: Leaf) -> str:
    """Return the action digest that an `admission.allowed` or `approval.asked` must state, from its other members."""
    return action_digest(
        agent=leaf.principal,
        operation=leaf.text("operation"),
        resources=resources_of(leaf.value),
        mode=leaf.text("mode"),
        arguments_digest=leaf.text("argumentsDigest"),
        cost=leaf.number("cost"),
        ledger=leaf.origin,
        rules_digest=_rules_digest(leaf),
    )


def _rules_digest(leaf: Leaf) -> str:
    ruling = leaf.value.get("rules")
    return str(ruling["digest"] if isinstance(ruling, dict) else leaf.value.get("rulesDigest", ZERO_HASH))


def approval_faults(leaf: Leaf, body: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield as (code, text) what a leaf says otherwise than the statements in its checked body, and its own members.

    Who the approvers are, and that no statement was used before, needs the ledger.
    """
    if "actionDigest" in leaf.value and leaf.text("actionDigest") != action_digest_of(leaf):
        yield "action_digest_wrong", "actionDigest is not the SHA-256 of what the other members say"
    try:
        used = _statements(body)
    except MemberError as error:
        yield error.code, str(error)
        return
    if leaf.type not in (ALLOWED, _GIVEN):
        return
    said = rows_of(leaf.value.get("approvals")) if leaf.type == ALLOWED else [leaf.value]
    if sorted(_named(row) for row in said) != sorted((one.approver, one.nonce, one.digest) for one in used):
        yield "approval_differs", "approver, nonce and digest of the leaf are not those of the statements in the body"
    if not all(_is_bound(leaf, one) for one in used):
        yield "approval_wrong", "a statement names another ledger, agent or action than the leaf"
    if not all(one.not_before_ms <= leaf.time_ms < one.expires_at_ms for one in used):
        yield "approval_expired", "a statement does not hold at timeMs"
    if any(one.expires_at_ms < leaf.number("validUntilMs") for one in used):
        yield "approval_expired", "validUntilMs is after the end of a statement"


def _statements(body: JsonObject) -> tuple[Approval, ...]:
    if "approvals" in body:
        return parse_approvals(body["approvals"])
    return (parse_approval(body["approval"]),) if "approval" in body else ()


def _named(row: JsonObject) -> tuple[str, str, str]:
    return str(row["approver"]), str(row["nonce"]), str(row["digest"])


def _is_bound(leaf: Leaf, one: Approval) -> bool:
    """Say whether a statement is for this ledger and, where the leaf is the action, for exactly that action."""
    if (one.ledger, one.genesis) != (leaf.origin, leaf.genesis.hex()):
        return False
    bound = (one.agent, one.operation, one.action_digest, one.arguments_digest, one.rules_digest)
    names = ("operation", "actionDigest", "argumentsDigest")
    return leaf.type == _GIVEN or bound == (leaf.principal, *map(leaf.text, names), _rules_digest(leaf))


def parse_approvals(value: JsonValue) -> tuple[Approval, ...]:
    """Return the statements in member `approvals` of a body, as they stand.

    Raises MemberError (a Malformed) with code `approval_invalid`: the shape of a statement or its signature is wrong.
    """
    if not APPROVALS.check(value) or not isinstance(value, list):
        raise _invalid("approvals", f"member approvals must be {APPROVALS.bound}")
    return tuple(_parse(f"approvals[{index}]", item) for index, item in enumerate(value) if isinstance(item, dict))


def parse_approval(value: JsonValue) -> Approval:
    """Return the one statement in member `approval` of a body; as `parse_approvals`."""
    if not APPROVAL.check(value) or not isinstance(value, dict):
        raise _invalid("approval", f"member approval must be {APPROVAL.bound}")
    return _parse("approval", value)


def _parse(name: str, item: JsonObject) -> Approval:
    where, statement = f"{name}.statement", item["statement"]
    if not isinstance(statement, dict):
        raise _invalid(where, f"member {where} must be an object")
    try:
        check_members(statement, APPROVAL_MEMBERS)
    except MemberError as error:
        raise _invalid(f"{where}.{error.member}", f"in {where}: {error}") from error
    approval = _approval(statement)
    if not 0 < approval.expires_at_ms - approval.not_before_ms <= APPROVAL_MS_MAX:
        raise _invalid(f"{where}.expiresAtMs", f"in {where}: notBeforeMs + 1 to notBeforeMs + {APPROVAL_MS_MAX:,}")
    signature, signed = decode_base64(str(item["signature"]), 64), _STATEMENT + bytes.fromhex(approval.digest)
    if not is_valid(decode_did(approval.approver), signed, signature):
        raise _invalid(f"{name}.signature", f"in {where}: the signature is not its approver's")
    return approval


def _approval(statement: JsonObject) -> Approval:
    """Read a statement that keeps its table."""
    not_before_ms, expires_at_ms = statement["notBeforeMs"], statement["expiresAtMs"]
    return Approval(
        ledger=str(statement["ledger"]),
        genesis=str(statement["genesis"]),
        agent=str(statement["agent"]),
        operation=str(statement["operation"]),
        action_digest=str(statement["actionDigest"]),
        arguments_digest=str(statement["argumentsDigest"]),
        rules_digest=str(statement["rulesDigest"]),
        approver=str(statement["approver"]),
        nonce=str(statement["nonce"]),
        not_before_ms=not_before_ms if isinstance(not_before_ms, int) else -1,
        expires_at_ms=expires_at_ms if isinstance(expires_at_ms, int) else -1,
        digest=sha256(encode_canonical(statement)).hexdigest(),
    )


def _invalid(member: str, text: str) -> MemberError:
    return MemberError("approval_invalid", member, text)
