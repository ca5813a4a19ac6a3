"""Operators: who may change who acts. Entry 0 names the first; operators in force add and remove others.

A ledger always has one. Removing an operator stops everybody it answers for: its sessions end and give everything
back, its agents stay enrolled and are turned away until it is added again or another operator enrols them.

Source: docs/protocol.md 12.8, 28.7; security.md §4.
"""

from __future__ import annotations

from gateway.core import refusal
from gateway.core.authority import is_agent, is_operator, is_spoken_for, operator_count
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lookup import operator_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import OPERATORS_KEY, operator_key
from gateway.core.records import Agent, Counter, Dismissal, Operator
from gateway.core.terms import agent_of, session_under
from gateway.core.windup import open_sessions


def add(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Put an operator in force. Adding one that is in force gives it the new label; a removed one comes back."""
    did = request.text("operator")
    if not is_operator(draft, request.actor):
        return refused("operator.refused", refusal.OPERATOR_REQUIRED, {"operator": did})
    if is_agent(draft, did) or is_spoken_for(draft, did, context.t_ms):
        return refused("operator.refused", refusal.KEY_TAKEN, {"operator": did})
    if not is_operator(draft, did):
        _count(draft, 1)
    label = request.repeat("name")
    name = request.text("name") if label else None
    draft.put(operator_key(did), Operator(did, name, context.seq, None))
    return granted("operator.added", {"operator": did, **label})


def remove(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Take an operator out of force, unless it is the last; what those it answers for hold is given back."""
    did = request.text("operator")
    if not is_operator(draft, request.actor):
        return refused("dismissal.refused", refusal.OPERATOR_REQUIRED, {"operator": did})
    if not is_operator(draft, did):
        return refused("dismissal.refused", refusal.OPERATOR_NOT_FOUND, {"operator": did})
    if operator_count(draft) == 1:
        return refused("dismissal.refused", refusal.OPERATOR_LAST, {"operator": did})
    operator = operator_at(draft, did)
    assert operator is not None, "it is in force"
    draft.put(operator_key(did), operator._replace(removed_seq=context.seq))
    _count(draft, -1)
    sessions = (one for one in open_sessions(draft, session_under(did)) if one.on_behalf_of == did)
    draft.dismiss(Dismissal(_agents_of(draft, did), tuple(sessions), context.seq))
    return granted("operator.removed", {"operator": did})


def _agents_of(draft: Draft, operator: str) -> tuple[str, ...]:
    """Return the agents in force that an operator answers for, in an order of their own."""
    found = {
        one.did
        for key in draft.near(agent_of(operator))
        if isinstance(one := draft.get(key), Agent) and one.operator == operator and one.removed_seq is None
    }
    return tuple(sorted(found))


def _count(draft: Draft, change: int) -> None:
    draft.put(OPERATORS_KEY, Counter(operator_count(draft) + change))
