"""API keys: bearer secrets that operators issue. Only the SHA-256 of a key ever reaches the gateway.

A key with an agent speaks for that agent, whose own key the gateway holds. One without enrols agents: a live key as
many as come, a trial key a single one ever. None makes operators, and a key is worth nothing once its operator is gone.

Source: docs/protocol.md 30.1, 30.3; identity.md §2.3.
"""

from __future__ import annotations

from gateway.core import refusal
from gateway.core.authority import is_agent, is_operator
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lookup import agent_at, apikey_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import apikey_key
from gateway.core.records import ApiKey
from gateway.core.refusal import Refusal


def issue(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Put an API key in force, known by its digest. A digest that was issued before, revoked or not, never is again."""
    why = _unissuable(draft, request)
    if why is not None:
        return refused("apikey.refused", why, request.repeat("keyDigest"))
    said = request.repeat("keyDigest", "kind", "agent", "name")
    key = ApiKey(
        digest=request.text("keyDigest"),
        kind=request.text("kind"),
        name=request.text("name") if "name" in said else None,
        agent=request.text("agent") if "agent" in said else None,
        operator=request.actor,
        issued_seq=context.seq,
    )
    draft.put(apikey_key(key.digest), key)
    return granted("apikey.issued", said)


def revoke(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Take an API key out of force. Whom it enrolled stays enrolled."""
    digest = request.text("keyDigest")
    if not is_operator(draft, request.actor):
        return refused("revocation.refused", refusal.OPERATOR_REQUIRED, {"keyDigest": digest})
    key = apikey_at(draft, digest)
    if key is None or key.revoked_seq is not None:
        return refused("revocation.refused", refusal.APIKEY_NOT_FOUND, {"keyDigest": digest})
    draft.put(apikey_key(digest), key._replace(revoked_seq=context.seq))
    return granted("apikey.revoked", {"keyDigest": digest, "issuedSeq": key.issued_seq})


def enrolling_key(draft: Draft, digest: str) -> ApiKey | None:
    """Return the API key of this digest if it may enrol agents now: in force, speaking for nobody."""
    key = apikey_at(draft, digest)
    if key is None or key.agent is not None or key.revoked_seq is not None:
        return None
    return key if is_operator(draft, key.operator) else None


def _unissuable(draft: Draft, request: SignedRequest) -> Refusal | None:
    if not is_operator(draft, request.actor):
        return refusal.OPERATOR_REQUIRED
    if "agent" in request.body and not _may_speak_for(draft, request.actor, request.text("agent")):
        return refusal.AGENT_NOT_FOUND
    return refusal.APIKEY_KNOWN if apikey_at(draft, request.text("keyDigest")) is not None else None


def _may_speak_for(draft: Draft, operator: str, did: str) -> bool:
    """Say whether this is an agent of the operator, in force, whose key the gateway holds: for others it can't sign."""
    agent = agent_at(draft, did)
    return agent is not None and agent.is_custodial and agent.operator == operator and is_agent(draft, did)
