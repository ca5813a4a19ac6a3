"""May the actor of a request act, and does the entry say for whom?

Authority goes by the order of the ledger: what gives a right is an entry before, and no entry before took it away. The
codes are the names of the refusals that were due, most of which leave no entry.
Source: docs/protocol.md 28, 29.1, 30.2, 30.4.
"""

from __future__ import annotations

from verifier.entries import Leaf, covers
from verifier.replay.people import Who
from verifier.replay.state import State
from verifier.replay.things import Faults

_TEXTS = {
    "agent_unknown": "the actor was not added before this entry (28.2)",
    "agent_removed": "the actor was removed before this entry (28.2)",
    "operator_removed": "the operator that answers for the actor was removed before this entry (28.2)",
    "operator_required": "the actor is no operator in force (28.2)",
    "session_required": "the actor is no session (29.5)",
    "session_expired": "the time of the session's delegation is over (29.1)",
    "session_ended": "the session had ended before this entry (29.1)",
    "trial_over": "the days of the trial are over (30.4)",
    "trial_used_up": "the trial had used up its entries (30.4)",
}
# The verb by which a session may ask for an action. What is not here needs none.
_VERBS = {
    "lease.acquire": "lease",
    "lease.renew": "lease",
    "lease.release": "lease",
    "lease.accept": "lease",
    "wait.claim": "lease",
    "wait.cancel": "lease",
    "lease.transfer": "transfer",
    "coordination.admit": "admit",
    "approval.ask": "admit",
    "approval.withdraw": "admit",
}
# What no session may do, whatever its statement says: an approval is somebody's own word.
_NO_SESSIONS = ("approval.give", "approval.decline")
# What an operator signs as such; it holds no leases.
_OPERATORS_OWN = frozenset(
    {
        "operator.add",
        "operator.remove",
        "agent.add",
        "agent.remove",
        "apikey.issue",
        "apikey.revoke",
        "key.announce",
        "key.retire",
        "key.compromise",
        "scheme.set",
        "lease.break",
        "lease.transfer",
        "session.close",
        "rules.load",
        "approval.give",
        "approval.decline",
    }
)
_BY_NAMES = ("lease.acquire", "coordination.admit", "approval.ask")
_WITH_TTL = ("lease.acquire", "lease.renew", "lease.accept")


def authority_faults(state: State, leaf: Leaf) -> Faults:
    """Yield why the actor of a request may not act; whoever opens a session is judged in sessions.py."""
    people = state.people
    error = _error(state, leaf)
    if error is not None:
        yield error, _TEXTS[error]
    who = people.who(leaf.actor)
    if who is not None and who != (leaf.principal, leaf.on_behalf_of, "custody" in leaf.value):
        yield from who_faults(leaf, who)
    agent = people.agents.get(leaf.actor)
    if agent is not None and agent.trial_until_ms is not None and leaf.actor not in people.operators:
        yield from _quota_faults(state, leaf)


def who_faults(leaf: Leaf, who: Who) -> Faults:
    """An entry says for whom its actor acts, and whether the gateway held the key."""
    if leaf.principal != who.principal:
        yield "principal_wrong", "principal is not the agent behind the actor (28.1)"
    if leaf.on_behalf_of != who.on_behalf_of:
        yield "on_behalf_wrong", "onBehalfOf is not the operator that answers for the actor (28.1)"
    if ("custody" in leaf.value) != who.is_custodial:
        yield "custody_wrong", "custody is there exactly when the gateway holds the actor's key (30.2)"


def _error(state: State, leaf: Leaf) -> str | None:
    people, actor, rule = state.people, leaf.actor, leaf.entry_type.actor_rule
    if actor in people.operators and leaf.action in _OPERATORS_OWN:
        return None
    if actor == people.enroller and leaf.action == "agent.add":
        return None  # what it may enrol is asked in roles.py
    if actor in people.sessions:
        error = _session_error(state, actor)
    else:
        error = _agent_error(state, actor)
    if error is None and rule == "operator":
        return "operator_required"
    return "session_required" if error is None and rule == "session" and actor not in people.sessions else error


def _session_error(state: State, actor: str) -> str | None:
    session = state.people.sessions[actor]
    if state.now_ms >= session.expires_at_ms:
        return "session_expired"
    return None if session.ended_seq is None else "session_ended"


def _agent_error(state: State, actor: str) -> str | None:
    people = state.people
    agent = people.agents.get(actor)
    if agent is None:
        return "operator_removed" if actor in people.former else "agent_unknown"
    if agent.is_removed:
        return "agent_removed"
    if agent.operator not in people.operators:
        return "operator_removed"
    is_over = agent.trial_until_ms is not None and state.now_ms >= agent.trial_until_ms
    return "trial_over" if is_over else None


def _quota_faults(state: State, leaf: Leaf) -> Faults:
    """Every entry of a trial agent counts, whatever it says."""
    used = state.people.used
    used[leaf.actor] = used.get(leaf.actor, 0) + 1
    if used[leaf.actor] > state.numbers["trialDecisions"]:
        yield "trial_used_up", _TEXTS["trial_used_up"]


def scope_faults(state: State, leaf: Leaf) -> Faults:
    """A success within the scope of its actor."""
    if is_outside_scope(state, leaf):
        yield "outside_scope", "the actor may not do this, or not with these names, or not for so long (28.5, 30.4)"


def is_outside_scope(state: State, leaf: Leaf) -> bool:
    """Say whether an action is beyond the verbs or names of its session, or of a trial agent."""
    people, actor = state.people, leaf.actor
    agent = people.agents.get(actor)
    session = people.sessions.get(actor)
    is_trial = agent is not None and agent.trial_until_ms is not None
    if leaf.action in _NO_SESSIONS:
        return session is not None and actor not in people.operators
    verb = _VERBS.get(leaf.action or "")
    if verb is None or actor in people.operators or (session is None and not is_trial):
        return False
    names = _names(state, leaf)
    if session is not None:
        return verb not in session.verbs or not are_covered(names, session.resources)
    is_long = leaf.action in _WITH_TTL and leaf.number("ttlMs") > state.numbers["trialTtlMaxMs"]
    return verb == "transfer" or is_long or not are_covered(names, (f"trial:{actor}/**",))


def are_covered(names: tuple[str, ...], scope: tuple[str, ...] | None) -> bool:
    """Say whether each name lies in a scope, compared as written; without a scope all do."""
    return scope is None or all(any(covers(wide, name) for wide in scope) for name in names)


def _names(state: State, leaf: Leaf) -> tuple[str, ...]:
    """Return the names that are asked for: of the request, or of the lease that is accepted."""
    if leaf.action in _BY_NAMES:
        names = leaf.value["resources"]
        return tuple(map(str, names)) if isinstance(names, list) else ()
    if leaf.action != "lease.accept":
        return ()
    lease = state.lease.get(int((leaf.text("leaseId") if "error" in leaf.value else leaf.text("fromLeaseId"))[1:]))
    return () if lease is None else lease.names
