"""The ladder every request climbs. Read it top to bottom: its order is the order of the refusal table.

The first six rows need no entry: a stranger, a stale signature or a replay must not make the ledger grow. Whoever
passes them gets an entry, whatever it says, and an error inside a decision undoes what it did and is a refusal,
never a grant.

Source: docs/protocol.md 6, 9, 10, 28, 30.4.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core import refusal
from gateway.core.authority import Who, identify
from gateway.core.batch import decide_safely
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest, commands_of, is_inside_window
from gateway.core.lookup import idempotency_at, nonce_at, quota_at, session_at
from gateway.core.outcome import ActionDecide, Context, Decision, Replay, Unreceipted
from gateway.core.record_keys import idempotency_key, nonce_key, quota_key, session_key
from gateway.core.records import Idempotency, Nonce, Quota, Session
from gateway.core.refusal import Refusal
from gateway.core.session import opening_fault

_NO_DETAIL: Mapping[str, int] = {}


def decide(
    draft: Draft, request: SignedRequest, action_decide: ActionDecide, context: Context
) -> Decision | Replay | Unreceipted:
    """Return the one answer to `request` at `context.t_ms`; the draft afterwards holds what it changes.

    An `Unreceipted` changes nothing. A `Replay` burns its nonce and changes nothing else.
    """
    t_ms, actor = context.t_ms, request.actor
    if not is_inside_window(request, t_ms, context.parameters.skew_ms):
        return Unreceipted(refusal.OUTSIDE_WINDOW, {"nowMs": t_ms})
    who = identify(draft, request, t_ms)
    if isinstance(who, Refusal):
        return Unreceipted(who, _NO_DETAIL)
    if not context.anchor_is_known:
        return Unreceipted(refusal.UNKNOWN_HISTORY, _NO_DETAIL)
    nonce = nonce_at(draft, actor, request.nonce, t_ms)
    if nonce is not None:
        return Unreceipted(refusal.NONCE_REUSED, {"seq": nonce.seq})
    earlier = idempotency_at(draft, actor, request.idempotency_key, t_ms)
    if earlier is not None and earlier.fingerprint != request.fingerprint:
        return Unreceipted(refusal.IDEMPOTENCY_MISMATCH, {"seq": earlier.seq})
    if earlier is not None:
        _burn_nonce(draft, request, earlier.seq, context)
        return Replay(earlier.seq, earlier.status)
    request = request._replace(
        principal=who.principal, on_behalf_of=who.on_behalf_of, custody="gateway" if who.is_custodial else ""
    )
    fault = _late_fault(draft, request, who, context)
    if fault is not None:
        return fault
    decision = decide_safely(draft, request, action_decide, context)
    _burn_nonce(draft, request, context.seq, context)
    _keep_answer(draft, request, decision.status, context)
    _count(draft, who, request, decision, context)
    return decision


def _late_fault(draft: Draft, request: SignedRequest, who: Who, context: Context) -> Unreceipted | None:
    """Return why nothing is decided for a key that may act: replays of what was decided are free of it."""
    if request.action == "session.open":
        why = opening_fault(draft, request, context)
        return None if why is None else Unreceipted(why, _NO_DETAIL)
    if who.trial is None:
        return None
    left = context.parameters.trial_decisions - quota_at(draft, request.actor).used
    costs = 1 + len(commands_of(request))
    return Unreceipted(refusal.TRIAL_USED_UP, {"left": left}) if costs > left else None


def _count(draft: Draft, who: Who, request: SignedRequest, decision: Decision, context: Context) -> None:
    """A trial agent has used up its entries; a session was heard of."""
    if who.trial is not None:
        used = quota_at(draft, request.actor).used + 1 + len(decision.parts)
        draft.put(quota_key(request.actor), Quota(request.actor, used))
    session = session_at(draft, request.actor) if who.session is not None else None
    if session is not None and session.is_open:
        draft.put(session_key(session.did), _heard(session, request, context))


def _heard(session: Session, request: SignedRequest, context: Context) -> Session:
    """Move the time at which a session counts as dead, and look whether two processes use its key.

    One process never signs later with an older history than it had before.
    """
    size, signed_s = request.anchor.size, request.created
    moved = session._replace(idle_by_ms=context.t_ms + context.parameters.session_idle_ms)
    if size > session.anchor_size:
        return moved._replace(anchor_size=size, signed_s=signed_s)
    if size == session.anchor_size:
        return moved._replace(signed_s=min(signed_s, session.signed_s))
    is_new = session.shared_seq is None and signed_s > session.signed_s
    return moved._replace(shared_seq=context.seq) if is_new else moved


def _burn_nonce(draft: Draft, request: SignedRequest, seq: int, context: Context) -> None:
    """Remember the nonce for exactly as long as its own signature could be sent again."""
    until_ms = request.expires * 1_000 + context.parameters.skew_ms
    draft.put(nonce_key(request.actor, request.nonce), Nonce(seq, until_ms))


def _keep_answer(draft: Draft, request: SignedRequest, status: int, context: Context) -> None:
    """Bind the idempotency key to this entry for `idempotency_ms` of log time."""
    until_ms = context.t_ms + context.parameters.idempotency_ms
    answer = Idempotency(context.seq, status, request.fingerprint, until_ms)
    draft.put(idempotency_key(request.actor, request.idempotency_key), answer)
