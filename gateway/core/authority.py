"""Who acts for whom: what the ledger so far says about the key that signed.

A key is an operator, an agent or a session, never two of them. An operator answers for the agents it enrolled, an agent
for its sessions. What is asked here is asked by the order of the ledger: whatever was written before counts, at once.

Source: docs/protocol.md 28, 29, 30.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.core import refusal
from gateway.core.draft import Draft, View
from gateway.core.intake import SignedRequest
from gateway.core.lookup import agent_at, counter_at, ledger_key_at, operator_at, session_at
from gateway.core.outcome import Context
from gateway.core.record_keys import ENROLLER_KEY, OPERATORS_KEY, ROOT_KEY
from gateway.core.records import Agent, Enroller, Root, Session
from gateway.core.refusal import Refusal
from verifier.did import encode_did
from verifier.entries import covers
from verifier.note import parse_vkey
from verifier.wire import JsonObject

# What operators sign. Their keys need not be enrolled for it, and give no right to hold leases. A transfer is signed by
# an operator or by the holder, a session closed by an operator, its agent or itself, and an approver is an agent or an
# operator.
OPERATOR_ACTIONS = frozenset(
    {
        "agent.add",
        "agent.remove",
        "apikey.issue",
        "apikey.revoke",
        "approval.decline",
        "approval.give",
        "key.announce",
        "key.compromise",
        "key.retire",
        "lease.break",
        "lease.transfer",
        "operator.add",
        "operator.remove",
        "rules.load",
        "scheme.set",
        "session.close",
    }
)
TRIAL_VERBS = ("admit", "lease")  # on names of its own alone
SHARES_MAX = 4  # an operator alone has a queue for itself; from four on each has a quarter


class Who(NamedTuple):
    """Whose act a request is. `session` and `trial` are records of the actor, where it is one of these."""

    principal: str
    on_behalf_of: str
    is_custodial: bool = False
    session: Session | None = None
    trial: Agent | None = None


def identify(draft: Draft, request: SignedRequest, t_ms: int) -> Who | Refusal:
    """Return who acts, or why this key may not act here at all. An operator's key may, but only as an operator.

    Whoever opens a session is new here: whether it may is asked later, of what it was given.
    """
    did = request.actor
    if request.action == "session.open":
        return _newcomer(draft, request)
    if request.action in OPERATOR_ACTIONS and is_operator(draft, did):
        return Who(did, did)
    if request.action == "agent.add" and is_enroller(draft, did):
        return Who(did, did, is_custodial=True)
    agent = agent_at(draft, did)
    if agent is None or agent.removed_seq is not None:  # an agent in force is no session
        session = remembered_session(draft, did, t_ms)
        if session is not None:
            why = session_fault(session, t_ms)
            return why or Who(session.principal, session.on_behalf_of, session=session)
    if agent is None:
        return refusal.AGENT_UNKNOWN
    is_trial = agent.trial_until_ms is not None
    return agent_fault(draft, agent, t_ms) or Who(
        did, agent.operator, agent.is_custodial, trial=agent if is_trial else None
    )


def _newcomer(draft: Draft, request: SignedRequest) -> Who:
    """Return who a session would act for by its delegations: their root is an operator, or an agent of one."""
    root = request.delegations[0].iss
    agent = agent_at(draft, root)
    if agent is not None and not is_operator(draft, root):  # it can have been an agent before
        return Who(root, agent.operator)
    is_direct = len(request.delegations) == 1
    return Who(request.actor if is_direct else request.delegations[0].sub, root)


def remembered_session(view: Draft | View, did: str, t_ms: int) -> Session | None:
    """Return the session of a key, open or ended; one whose delegation is long over is nobody's memory."""
    session = session_at(view, did)
    return session if session is not None and is_remembered(session, t_ms) else None


def is_remembered(session: Session, t_ms: int) -> bool:
    """Say whether a session is open, or ended and its delegation not long over, whatever the store still has."""
    until_ms = session.until_ms
    return until_ms is None or t_ms < until_ms


def session_fault(session: Session, t_ms: int) -> Refusal | None:
    """Return why a session may not act now, or None."""
    if t_ms >= session.expires_at_ms:
        return refusal.SESSION_EXPIRED
    return None if session.is_open else refusal.SESSION_ENDED


def agent_fault(view: Draft | View, agent: Agent, t_ms: int) -> Refusal | None:
    """Return why an agent may not act now, or None."""
    if agent.removed_seq is not None:
        return refusal.AGENT_REMOVED
    if not is_operator(view, agent.operator):
        return refusal.OPERATOR_REMOVED
    is_over = agent.trial_until_ms is not None and t_ms >= agent.trial_until_ms
    return refusal.TRIAL_OVER if is_over else None


def is_operator(view: Draft | View, did: str) -> bool:
    """Say whether a key is an operator in force."""
    operator = operator_at(view, did)
    return operator is not None and operator.removed_seq is None


def is_agent(view: Draft | View, did: str) -> bool:
    """Say whether a key is an agent that was not removed; whether it may act also depends on its operator."""
    agent = agent_at(view, did)
    return agent is not None and agent.removed_seq is None


def is_enroller(view: Draft | View, did: str) -> bool:
    record = view.get(ENROLLER_KEY)
    return isinstance(record, Enroller) and record.did == did


def is_ledgers(view: Draft | View, did: str) -> bool:
    """Say whether a raw key is the root's, or signs or ever signed checkpoints or receipts: a signature of it has one
    sense."""
    root = view.get(ROOT_KEY)
    is_root = isinstance(root, Root) and encode_did(parse_vkey(root.vkey).public_key) == did
    return is_root or ledger_key_at(view, did) is not None


def is_spoken_for(view: Draft | View, did: str, t_ms: int) -> bool:
    """Say whether a key is the ledger's own, the enroller's, or a session's as long as that is remembered: it gets no
    other role."""
    is_own = is_ledgers(view, did) or is_enroller(view, did)
    return is_own or remembered_session(view, did, t_ms) is not None


def operator_count(view: Draft | View) -> int:
    """Return how many operators are in force."""
    return counter_at(view, OPERATORS_KEY)


def operator_share(view: Draft | View, total: int) -> int:
    """Return how much of a bound that all share one operator may use."""
    return max(1, total // max(1, min(SHARES_MAX, operator_count(view))))


def is_outside_scope(
    draft: Draft, request: SignedRequest, verb: str, names: tuple[str, ...], ttl_ms: int | None, context: Context
) -> bool:
    """Say whether a session or a trial agent may not do this with these names, for so long.

    Names are compared as they are written: a scope neither folds nor knows schemes.
    """
    session = session_at(draft, request.actor)
    if session is not None and session.is_open:
        return verb not in session.verbs or not are_covered(names, session.resources)
    agent = agent_at(draft, request.actor)
    if agent is None or agent.trial_until_ms is None:
        return False
    is_long = ttl_ms is not None and ttl_ms > context.parameters.trial_ttl_max_ms
    return verb not in TRIAL_VERBS or is_long or not are_covered(names, (f"trial:{agent.did}/**",))


def are_covered(names: tuple[str, ...], scope: tuple[str, ...]) -> bool:
    """Say whether each name lies in a scope; an empty scope has all names in it."""
    return not scope or all(any(covers(wide, name) for wide in scope) for name in names)


def idle_end(draft: Draft, actor: str, expires_at_ms: int, context: Context) -> JsonObject:
    """Return the member `endsIfIdleAtMs` of a lease of a session: when it ends unless the session is heard again."""
    session = session_at(draft, actor)
    if session is None or not session.is_open:  # a key can have been a session before it became an agent
        return {}
    idle_by_ms = context.t_ms + context.parameters.session_idle_ms
    return {"endsIfIdleAtMs": min(expires_at_ms, idle_by_ms, session.expires_at_ms)}
