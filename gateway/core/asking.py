"""Asking others for their approval, and what they answer.

Who asks names those who may approve and how many must. As long as too few have, it waits for each of them without whom
there can't be enough: that is an edge of `deadlock.py`. An ask ends when enough have given, when too few are left, when
it is withdrawn, with its asker, or by time alone, without an entry. No admission depends on one: what was given is a
statement, and good wherever it came from (`approval.py`).

Source: docs/protocol.md 38.5 to 38.8.
"""

from __future__ import annotations

from typing import Literal

from gateway.core import refusal
from gateway.core.approval import digest_of_act, fit_operator, out_of_use
from gateway.core.authority import is_outside_scope
from gateway.core.deadlock import circle_members, find_plea_cycle
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lookup import pending_at, rule_set_at, session_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import ask_key
from gateway.core.records import Pending
from gateway.core.refusal import Refusal
from gateway.core.resource import ask_of, unfit
from gateway.core.rules import digest_of
from gateway.core.terms import asked_behind
from verifier.approval import Approval
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
    return out_of_use(draft, (one,), context.t_ms)


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
