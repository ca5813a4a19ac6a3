"""Approvals: a signed word of somebody else that exactly this may be done once; and asking for one.

An approval is a statement that comes along by value, so nobody has to be believed that it was given. It binds ledger,
agent, operation, arguments, the whole action and the rules in force: whatever changes, it is worth nothing. It is burnt
with the admission that uses it. What its signature says was checked at the door; here is asked whether it is about
this, whether its approver may approve, whether it holds now, and whether it was used.

Who asks (`ask`) names those who may approve and how many must. As long as too few have, it waits for each of them
without whom there can't be enough: that is an edge of `deadlock.py`. An ask ends when enough have given, when too few
are left, when it is withdrawn, with its asker, or by time alone, without an entry.

Source: docs/protocol.md 38; security.md §15.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from gateway.core import refusal
from gateway.core.authority import agent_fault, is_operator, is_outside_scope
from gateway.core.deadlock import circle_members, find_plea_cycle
from gateway.core.draft import Draft, View
from gateway.core.intake import SignedRequest
from gateway.core.lookup import agent_at, burnt_at, pending_at, rule_set_at, session_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import ask_key, burnt_key
from gateway.core.records import Burnt, Pending
from gateway.core.refusal import Refusal
from gateway.core.resource import ask_of, unfit
from gateway.core.rules import digest_of
from gateway.core.terms import asked_behind
from verifier.approval import Approval, action_digest
from verifier.entries import ASKS_REMEMBERED
from verifier.wire import JsonObject

_NOTHING: JsonObject = {}


def ask(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Let others be asked to approve exactly this. Nothing is granted by that, and no lease is kept by it."""
    why = _unaskable(draft, request, context)
    if why is not None:
        return _not_asked(request, why)
    operators = _operators(draft, request, context)
    if len(operators) < len(_approvers(request)) or len(set(operators)) < request.number("quorum"):
        return _not_asked(request, refusal.APPROVER_UNFIT)
    if _is_too_many(draft, request.principal, context):
        return _not_asked(request, refusal.TOO_MANY_ASKED)
    pending = _pending(draft, request, operators, context)
    search = find_plea_cycle(draft, pending, context)
    if search.rows:
        return _not_asked(request, refusal.DEADLOCK, circle_members(search))
    draft.put(ask_key(pending.ask_id), pending)
    bound: JsonObject = {"actionDigest": pending.action_digest, "rulesDigest": pending.rules_digest}
    told: JsonObject = {"askId": pending.ask_id, "giveUpByMs": pending.give_up_by_ms}
    return granted("approval.asked", _asked(request) | bound | request.repeat("approvers", "quorum") | told)


def give(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Say yes to what was asked, by a statement that is good for an admission wherever it came from."""
    found = _answering(draft, request, context)
    if isinstance(found, Decision):
        return found
    [one] = request.approvals
    why = _misgiven(draft, found, one, request, context)
    if why is not None:
        return _not_answered(request, why)
    given = found._replace(given=(*found.given, request.actor), given_in=(*found.given_in, str(context.seq)))
    _keep(draft, given, "given", context, is_over=given.has_quorum)
    what: JsonObject = {"approver": one.approver, "nonce": one.nonce, "digest": one.digest}
    return granted("approval.given", _named(found) | what)


def decline(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Say no; the ask goes on as long as enough others are left."""
    found = _answering(draft, request, context)
    if isinstance(found, Decision):
        return found
    if _has_answered(found, request.actor):
        return _not_answered(request, refusal.APPROVER_UNFIT)
    declined = found._replace(declined=(*found.declined, request.actor))
    _keep(draft, declined, "declined", context, is_over=not declined.is_enough_without())
    return granted("approval.declined", _named(found) | request.repeat("reason"))


def withdraw(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Ask no more. Statements that were given already are still good."""
    if is_outside_scope(draft, request, "admit", (), None, context):
        return _not_answered(request, refusal.OUTSIDE_SCOPE)
    found = _live(draft, request, context)
    if isinstance(found, Decision):
        return found
    _keep(draft, found, "withdrawn", context, is_over=True)
    return granted("approval.withdrawn", _named(found))


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
    why = _over(draft, given, context.t_ms)
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


def _over(draft: Draft, given: Sequence[Approval], t_ms: int) -> Refusal | None:
    """Return why approvals do not count any more, or not yet."""
    if not all(one.not_before_ms <= t_ms < one.expires_at_ms for one in given):
        return refusal.APPROVAL_EXPIRED
    is_used = any(burnt_at(draft, one.approver, one.nonce, t_ms) is not None for one in given)
    return refusal.APPROVAL_USED if is_used else None


# -- asking, and answering ---------------------------------------------------------------------------------------------


def _unaskable(draft: Draft, request: SignedRequest, context: Context) -> Refusal | None:
    """Return why the action itself could never be admitted to this actor, or not now."""
    wanted = ask_of(draft, request.actor, request.resources, request.text("mode"))
    if is_outside_scope(draft, request, "admit", wanted.resources, None, context):
        return refusal.OUTSIDE_SCOPE
    return unfit(draft, wanted)


def _approvers(request: SignedRequest) -> tuple[str, ...]:
    """Return who may approve, sorted."""
    named = request.body["approvers"]
    return tuple(map(str, named)) if isinstance(named, list) else ()


def _operators(draft: Draft, request: SignedRequest, context: Context) -> tuple[str, ...]:
    """Return the operator of each approver who is fit, in their order; fewer than approvers when one is not."""
    found = (fit_operator(draft, one, request.on_behalf_of, context.t_ms) for one in _approvers(request))
    return tuple(who for who in found if who is not None)


def _is_too_many(draft: Draft, principal: str, context: Context) -> bool:
    """Say whether a principal and its sessions wait for as many approvals as one may, or have too many remembered."""
    bound, term = context.parameters.asks_per_principal, asked_behind(principal)
    keys = {*draft.near(term)}
    if len(keys) < bound:
        return False
    known = [one for key in keys if isinstance(one := draft.get(key), Pending) and context.t_ms < one.until_ms]
    return len(known) >= bound * ASKS_REMEMBERED or sum(one.is_live(context.t_ms) for one in known) >= bound


def _pending(draft: Draft, request: SignedRequest, operators: tuple[str, ...], context: Context) -> Pending:
    rules_digest = digest_of(rule_set_at(draft))
    return Pending(
        f"A{context.seq}",
        request.actor,
        request.principal,
        request.on_behalf_of,
        request.text("operation"),
        request.resources,
        request.text("mode"),
        request.text("argumentsDigest"),
        request.number("cost"),
        digest_of_act(request, rules_digest),
        rules_digest,
        _approvers(request),
        operators,
        request.number("quorum"),
        seq=context.seq,
        asked_at_ms=context.t_ms,
        give_up_by_ms=context.t_ms + request.number("giveUpMs"),
    )


def _asked(request: SignedRequest) -> JsonObject:
    return {"resources": [*request.resources], **request.repeat("operation", "mode", "argumentsDigest", "cost")}


def _not_asked(request: SignedRequest, why: Refusal, members: JsonObject = _NOTHING) -> Decision:
    return refused("approval.refused", why, _asked(request) | members)


def _answering(draft: Draft, request: SignedRequest, context: Context) -> Pending | Decision:
    """Return the live ask that an approver may answer, or why not. No session answers: an approval is somebody's own
    word."""
    session = session_at(draft, request.actor)
    if session is not None and session.is_open:
        return _not_answered(request, refusal.OUTSIDE_SCOPE)
    return _live(draft, request, context)


def _live(draft: Draft, request: SignedRequest, context: Context) -> Pending | Decision:
    """Return the live ask that is the actor's to answer or to withdraw, or why there is none."""
    pending = pending_at(draft, request.text("askId"), context.t_ms)
    if pending is None:
        return _not_answered(request, refusal.ASK_UNKNOWN)
    own = (pending.actor,) if request.action == "approval.withdraw" else pending.approvers
    if request.actor not in own:
        return _not_answered(request, refusal.ASK_NOT_YOURS)
    if pending.is_live(context.t_ms):
        return pending
    ended: JsonObject = {} if pending.ended_seq is None else {"endedSeq": pending.ended_seq}
    return _not_answered(request, refusal.ASK_ENDED, ended)


def _misgiven(
    draft: Draft, pending: Pending, one: Approval, request: SignedRequest, context: Context
) -> Refusal | None:
    """Return why a statement is not the approval that was asked for from this actor."""
    asked = (
        request.body["ledger"],
        context.genesis,
        pending.principal,
        pending.operation,
        pending.action_digest,
        pending.arguments_digest,
        pending.rules_digest,
        request.actor,
    )
    if one[: len(asked)] != asked:
        return refusal.APPROVAL_WRONG
    operator = pending.operator_of(request.actor)
    is_fit = fit_operator(draft, request.actor, pending.on_behalf_of, context.t_ms) == operator
    if not is_fit or _has_answered(pending, request.actor) or operator in map(pending.operator_of, pending.given):
        return refusal.APPROVER_UNFIT
    return _over(draft, (one,), context.t_ms)


def _has_answered(pending: Pending, approver: str) -> bool:
    return approver in pending.given or approver in pending.declined


def _keep(
    draft: Draft, pending: Pending, how: Literal["given", "declined", "withdrawn"], context: Context, *, is_over: bool
) -> None:
    """Put an ask that was answered; `is_over` when it ends by that."""
    if is_over:
        pending = pending._replace(how=how, ended_seq=context.seq, ended_at_ms=context.t_ms)
    draft.put(ask_key(pending.ask_id), pending)


def _named(pending: Pending) -> JsonObject:
    return {"askId": pending.ask_id, "askSeq": pending.seq}


_REFUSED = {
    "approval.give": "giving.refused",
    "approval.decline": "declining.refused",
    "approval.withdraw": "withdrawal.refused",
}


def _not_answered(request: SignedRequest, why: Refusal, members: JsonObject = _NOTHING) -> Decision:
    return refused(_REFUSED[request.action], why, request.repeat("askId") | members)
