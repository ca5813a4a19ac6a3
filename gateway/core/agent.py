"""Agents: operators enrol keys and remove them; the gateway's enroller enrols keys in the name of an API key.

One key has one role in a ledger, and an agent one operator that answers for it. So a key in force changes hands only by
two acts that are both on record: its operator removes it (or is itself removed), then another enrols it.

Source: docs/protocol.md 12.8, 28.8, 30.3, 30.4; security.md §4.
"""

from __future__ import annotations

from gateway.core import refusal
from gateway.core.apikey import enrolling_key
from gateway.core.authority import is_agent, is_enroller, is_operator, is_spoken_for
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lookup import agent_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import agent_key, apikey_key
from gateway.core.records import Agent, ApiKey, Dismissal
from gateway.core.refusal import Refusal
from gateway.core.terms import session_of
from gateway.core.windup import open_sessions


def add(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Enrol a key. Enrolling one that is in force gives it the new label; a removed one comes back.

    By an operator, or by the enroller in the name of an API key, whose operator then answers for the agent. An
    operator that enrols a trial agent by itself ends the trial; a trial that goes on has the days it had.
    """
    did = request.text("agent")
    if not _may_enrol(draft, request):
        return refused("agent.refused", refusal.OPERATOR_REQUIRED, {"agent": did})
    key, operator = _answering(draft, request)
    has_role = is_operator(draft, did) or is_spoken_for(draft, did, context.t_ms)
    if has_role or _is_anothers(draft, request, operator):
        return refused("agent.refused", refusal.KEY_TAKEN, {"agent": did})
    if operator is None:
        return refused("agent.refused", refusal.APIKEY_NOT_FOUND, {"agent": did})
    if key is not None and key.kind == "trial" and key.used_by not in (None, did):
        return refused("agent.refused", refusal.APIKEY_USED, {"agent": did})
    _enrol(draft, request, operator, key, context)
    return granted("agent.added", request.repeat("agent", "name", "agentCustody", "keyDigest"))


def remove(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Stop a key from acting. It and its sessions give back everything they hold and wait for."""
    did = request.text("agent")
    why = _unremovable(draft, request.actor, did)
    agent = agent_at(draft, did)
    if why is not None or agent is None:
        return refused("removal.refused", why or refusal.AGENT_NOT_FOUND, {"agent": did})
    draft.put(agent_key(did), agent._replace(removed_seq=context.seq))
    sessions = (one for one in open_sessions(draft, session_of(did)) if one.principal == did)
    draft.dismiss(Dismissal((did,), tuple(sessions), context.seq))
    return granted("agent.removed", {"agent": did})


def _unremovable(draft: Draft, actor: str, did: str) -> Refusal | None:
    if not is_operator(draft, actor):
        return refusal.OPERATOR_REQUIRED
    return None if is_agent(draft, did) else refusal.AGENT_NOT_FOUND


def _may_enrol(draft: Draft, request: SignedRequest) -> bool:
    """Say whether this signer may enrol at all: the enroller in the name of an API key, an operator in its own."""
    if "keyDigest" in request.body:
        return is_enroller(draft, request.actor)
    return is_operator(draft, request.actor)


def _answering(draft: Draft, request: SignedRequest) -> tuple[ApiKey | None, str | None]:
    """Return the API key that enrols, if one does, and the operator that will answer for the agent, if one can."""
    if "keyDigest" not in request.body:
        return None, request.actor
    key = enrolling_key(draft, request.text("keyDigest"))
    return key, None if key is None else key.operator


def _is_anothers(draft: Draft, request: SignedRequest, operator: str | None) -> bool:
    """Say whether this is an agent in force of another operator in force, or in another custody."""
    known = agent_at(draft, request.text("agent"))
    if known is None or known.removed_seq is not None:
        return False
    is_anothers = known.operator != operator and is_operator(draft, known.operator)
    return is_anothers or known.is_custodial != ("agentCustody" in request.body)


def _enrol(draft: Draft, request: SignedRequest, operator: str, key: ApiKey | None, context: Context) -> None:
    did = request.text("agent")
    agent = Agent(
        did=did,
        name=request.text("name") if "name" in request.body else None,
        added_seq=context.seq,
        removed_seq=None,
        operator=operator,
        is_custodial="agentCustody" in request.body,
        key_digest=None if key is None else key.digest,
    )
    if key is not None and key.kind == "trial":
        agent = agent._replace(trial_until_ms=_trial_until_ms(agent_at(draft, did), context))
        draft.put(apikey_key(key.digest), key._replace(used_by=did))
    draft.put(agent_key(did), agent)


def _trial_until_ms(known: Agent | None, context: Context) -> int:
    """Enrolling again never gives a trial more days, as it gives no more decisions."""
    if known is not None and known.trial_until_ms is not None:
        return known.trial_until_ms
    return context.t_ms + context.parameters.trial_ms
