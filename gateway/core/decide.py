"""The ladder every request climbs. Read it top to bottom: its order is the order of the refusal table.

The first six rows need no entry: a stranger, a stale signature or a replay must not make the ledger grow. Whoever
passes them gets an entry, whatever it says, and an error inside a decision undoes what it did and is a refusal,
never a grant.

Source: docs/protocol.md 6, 9, 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from gateway.core import refusal
from gateway.core.agent import OPERATOR_ACTIONS, is_operator
from gateway.core.intake import SignedRequest, is_inside_window
from gateway.core.outcome import Context, Decision, Replay, Unreceipted, refused
from gateway.core.refusal import Refusal
from gateway.core.state import (
    Draft,
    Idempotency,
    Nonce,
    agent_at,
    idempotency_at,
    idempotency_key,
    nonce_at,
    nonce_key,
)

ActionDecide: TypeAlias = Callable[[Draft, SignedRequest, Context], Decision]
_NO_DETAIL: Mapping[str, int] = {}


def decide(
    draft: Draft, request: SignedRequest, action_decide: ActionDecide, context: Context
) -> Decision | Replay | Unreceipted:
    """Return the one answer to `request` at `context.t_ms`; the draft afterwards holds what it changes.

    An `Unreceipted` changes nothing. A `Replay` burns its nonce and changes nothing else.
    """
    t_ms, principal = context.t_ms, request.principal
    if not is_inside_window(request, t_ms, context.parameters.skew_ms):
        return Unreceipted(refusal.OUTSIDE_WINDOW, {"nowMs": t_ms})
    stranger = _stranger(draft, request)
    if stranger is not None:
        return Unreceipted(stranger, _NO_DETAIL)
    if not context.anchor_is_known:
        return Unreceipted(refusal.UNKNOWN_HISTORY, _NO_DETAIL)
    nonce = nonce_at(draft, principal, request.nonce, t_ms)
    if nonce is not None:
        return Unreceipted(refusal.NONCE_REUSED, {"seq": nonce.seq})
    earlier = idempotency_at(draft, principal, request.idempotency_key, t_ms)
    if earlier is not None and earlier.fingerprint != request.fingerprint:
        return Unreceipted(refusal.IDEMPOTENCY_MISMATCH, {"seq": earlier.seq})
    if earlier is not None:
        _burn_nonce(draft, request, earlier.seq, context)
        return Replay(earlier.seq, earlier.status)
    decision = _decide_safely(draft, request, action_decide, context)
    _burn_nonce(draft, request, context.seq, context)
    _keep_answer(draft, request, decision.status, context)
    return decision


def _stranger(draft: Draft, request: SignedRequest) -> Refusal | None:
    """Return why this key may not act here at all, or None. An operator's key may, but only as an operator."""
    if request.action in OPERATOR_ACTIONS and is_operator(draft, request.actor):
        return None
    agent = agent_at(draft, request.actor)
    if agent is None:
        return refusal.AGENT_UNKNOWN
    return None if agent.removed_seq is None else refusal.AGENT_REMOVED


def _decide_safely(draft: Draft, request: SignedRequest, action_decide: ActionDecide, context: Context) -> Decision:
    """Run the action's own rows of the table; whatever it raises undoes its changes and is `decision_failed`."""
    mark = draft.savepoint()
    try:
        return action_decide(draft, request, context)
    except Exception as error:
        draft.rollback(mark)
        failed = refused("decision.failed", refusal.DECISION_FAILED, {"action": request.action})
        return failed._replace(fault=error)


def _burn_nonce(draft: Draft, request: SignedRequest, seq: int, context: Context) -> None:
    """Remember the nonce for exactly as long as its own signature could be sent again."""
    until_ms = request.expires * 1_000 + context.parameters.skew_ms
    draft.put(nonce_key(request.principal, request.nonce), Nonce(seq, until_ms))


def _keep_answer(draft: Draft, request: SignedRequest, status: int, context: Context) -> None:
    """Bind the idempotency key to this entry for `idempotency_ms` of log time."""
    until_ms = context.t_ms + context.parameters.idempotency_ms
    answer = Idempotency(context.seq, status, request.fingerprint, until_ms)
    draft.put(idempotency_key(request.principal, request.idempotency_key), answer)
