"""Approvals: a signed word of somebody else that exactly this may be done once.

An approval is a statement that comes along by value, so nobody has to be believed that it was given. It binds ledger,
agent, operation, arguments, the whole action and the rules in force: whatever changes, it is worth nothing. It is burnt
with the admission that uses it. What its signature says was checked at the door; here is asked whether it is about
this, whether its approver may approve, whether it holds now, and whether it was used.

Source: docs/protocol.md 38.1 to 38.4; security.md §15.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core import refusal
from gateway.core.authority import agent_fault, is_operator
from gateway.core.draft import Draft, View
from gateway.core.intake import SignedRequest
from gateway.core.lookup import agent_at, burnt_at
from gateway.core.outcome import Context
from gateway.core.record_keys import burnt_key
from gateway.core.records import Burnt
from gateway.core.refusal import Refusal
from verifier.approval import Approval, action_digest
from verifier.wire import JsonObject


class Approved(NamedTuple):
    """An approval that counts: who gave it, the operator that answers for that one, and until when it holds."""

    approver: str
    operator: str
    nonce: str
    digest: str
    expires_at_ms: int


def judge_approvals(
    draft: Draft, request: SignedRequest, context: Context, action_digest: str, rules_digest: str
) -> Refusal | tuple[Approved, ...]:
    """Return the approvals of an admission, by operator, or the first row of the table that speaks against any.

    None at all is no fault of theirs. `action_digest` and `rules_digest` are what they have to name.
    """
    given = request.approvals
    if not all(_is_about(one, request, context, action_digest, rules_digest) for one in given):
        return refusal.APPROVAL_WRONG
    operators = [fit_operator(draft, one.approver, request.on_behalf_of, context.t_ms) for one in given]
    if None in operators or len(set(operators)) < len(operators):
        return refusal.APPROVER_UNFIT
    why = out_of_use(draft, given, context.t_ms)
    if why is not None:
        return why
    pairs = zip(given, operators, strict=True)
    found = (Approved(one.approver, who, one.nonce, one.digest, one.expires_at_ms) for one, who in pairs if who)
    return tuple(sorted(found, key=lambda one: one.operator))


def digest_of_act(request: SignedRequest, rules_digest: str) -> str:
    """Return what an approval of the act in this request has to name."""
    return action_digest(
        agent=request.principal,
        operation=request.text("operation"),
        resources=request.resources,
        mode=request.text("mode"),
        arguments_digest=request.text("argumentsDigest"),
        cost=request.number("cost"),
        ledger=str(request.body["ledger"]),
        rules_digest=rules_digest,
    )


def burn(draft: Draft, approved: Sequence[Approved], context: Context) -> None:
    """Remember what was used for as long as it could be used again."""
    for one in approved:
        draft.put(burnt_key(one.approver, one.nonce), Burnt(context.seq, one.expires_at_ms))


def approval_rows(approved: Sequence[Approved]) -> list[JsonObject]:
    """Return the member `approvals` of an admission."""
    return [
        {"approver": one.approver, "operator": one.operator, "nonce": one.nonce, "digest": one.digest}
        for one in approved
    ]


def fit_operator(view: Draft | View, approver: str, own_operator: str, t_ms: int) -> str | None:
    """Return the operator for whom a key approves; None when it may not: only keys that a person or program of another
    operator keeps itself, and whose right to act does not end with a session or a trial."""
    if is_operator(view, approver):
        operator = approver
    else:
        agent = agent_at(view, approver)
        if agent is None or agent.is_custodial or agent.trial_until_ms is not None:
            return None
        if agent_fault(view, agent, t_ms) is not None:
            return None
        operator = agent.operator
    return None if operator == own_operator else operator


def _is_about(one: Approval, request: SignedRequest, context: Context, action_digest: str, rules_digest: str) -> bool:
    """Say whether an approval names exactly this ledger, agent, action and these rules."""
    return (
        one.ledger == request.body["ledger"]
        and one.genesis == context.genesis
        and one.agent == request.principal
        and one.operation == request.text("operation")
        and one.arguments_digest == request.text("argumentsDigest")
        and one.action_digest == action_digest
        and one.rules_digest == rules_digest
    )


def out_of_use(draft: Draft, given: Sequence[Approval], t_ms: int) -> Refusal | None:
    """Return why approvals do not count any more, or not yet."""
    if not all(one.not_before_ms <= t_ms < one.expires_at_ms for one in given):
        return refusal.APPROVAL_EXPIRED
    is_used = any(burnt_at(draft, one.approver, one.nonce, t_ms) is not None for one in given)
    return refusal.APPROVAL_USED if is_used else None
