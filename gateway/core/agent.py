"""Who may act: operators enrol keys and remove them.

Source: docs/protocol.md 12.8.
"""

from __future__ import annotations

from gateway.core import refusal
from gateway.core.intake import SignedRequest
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.state import Agent, Draft, agent_at, agent_key, operator_key
from verifier.wire import JsonObject

# What operators sign. Their keys need not be enrolled for it, and give no right to hold leases. A transfer is signed by
# an operator or by the holder, who is enrolled.
OPERATOR_ACTIONS = frozenset({"agent.add", "agent.remove", "scheme.set", "lease.break", "lease.transfer"})


def is_operator(draft: Draft, did: str) -> bool:
    return draft.get(operator_key(did)) is not None


def add(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Enrol a key. Enrolling one that is in force gives it the new label; a removed one comes back."""
    did = _agent(request)
    if not is_operator(draft, request.actor):
        return refused("agent.refused", refusal.OPERATOR_REQUIRED, {"agent": did})
    name = request.body.get("name")
    assert name is None or isinstance(name, str), "a checked body"
    draft.put(agent_key(did), Agent(did, name, context.seq, None))
    enrolled: JsonObject = {"agent": did} if name is None else {"agent": did, "name": name}
    return granted("agent.added", enrolled)


def remove(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Stop a key from acting. What it holds runs out by itself: nobody can renew it any more."""
    did = _agent(request)
    if not is_operator(draft, request.actor):
        return refused("removal.refused", refusal.OPERATOR_REQUIRED, {"agent": did})
    agent = agent_at(draft, did)
    if agent is None or agent.removed_seq is not None:
        return refused("removal.refused", refusal.AGENT_NOT_FOUND, {"agent": did})
    draft.put(agent_key(did), agent._replace(removed_seq=context.seq))
    return granted("agent.removed", {"agent": did})


def _agent(request: SignedRequest) -> str:
    did = request.body["agent"]
    assert isinstance(did, str), "a checked body"
    return did
