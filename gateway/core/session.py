"""Sessions: keys of short life that act for an agent or an operator, within what a delegation lends them.

The delegation is judged once, when its session opens; from then on the session's record says what it may do. A chain of
two narrows: what the second statement gives lies within the first, in verbs, names and time. Nothing here reads a clock
or forgives a skew: log time lies within the statement or it does not.

`opening_fault` stands in the ladder: nobody who comes with a bad delegation makes the ledger grow. The auditor judges
every opened session by rules of its own (verifier/delegation.py); the two are written twice on purpose.

Source: docs/protocol.md 28, 29; security.md §12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.core import refusal
from gateway.core.authority import (
    are_covered,
    idle_end,
    is_agent,
    is_operator,
    is_remembered,
    is_spoken_for,
    remembered_session,
)
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lookup import agent_at, operator_at, session_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import session_key
from gateway.core.records import Dismissal, Session
from gateway.core.refusal import Refusal
from gateway.core.terms import session_let_by, session_of
from gateway.core.windup import end_session, given_back
from verifier.delegation import Delegation
from verifier.entries import SESSIONS_REMEMBERED
from verifier.wire import JsonObject

CHAIN_MAX = 2  # from operator over agent to session


class Issuer(NamedTuple):
    """For whom a session acts: the agent behind it (None for an operator's own session), and who answers for both."""

    agent: str | None
    operator: str


def open_session(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Open the session of a delegation in which `opening_fault` finds nothing wrong."""
    lent = request.delegations[-1]
    said = request.repeat("name")
    session = Session(
        did=request.actor,
        name=request.text("name") if said else None,
        principal=request.principal,
        on_behalf_of=request.on_behalf_of,
        verbs=lent.verbs,
        resources=lent.resources or (),
        opened_seq=context.seq,
        expires_at_ms=lent.expires_at_ms,
        idle_by_ms=context.t_ms + context.parameters.session_idle_ms,
        anchor_size=request.anchor.size,
        signed_s=request.created,
    )
    draft.put(session_key(session.did), session)
    scope: JsonObject = {} if lent.resources is None else {"scope": list(lent.resources)}
    lives: JsonObject = {"verbs": list(lent.verbs), **scope, "expiresAtMs": lent.expires_at_ms}
    return granted("session.opened", lives | idle_end(draft, session.did, lent.expires_at_ms, context) | said)


def beat(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Show that a session is alive, and perhaps what it is at; that lasts until it says otherwise."""
    session = session_at(draft, request.actor)
    if session is None or not session.is_open:
        return refused("beat.refused", refusal.SESSION_REQUIRED, {})
    said = request.repeat("activity")
    if said:
        draft.put(session_key(session.did), session._replace(activity=request.text("activity")))
    return granted("session.seen", idle_end(draft, session.did, session.expires_at_ms, context) | said)


def close(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """End a session: it gives back everything. Others are kept out afterwards unless it or its agent closes it."""
    did = request.text("session")
    session = remembered_session(draft, did, context.t_ms)
    if session is None:
        return refused("closing.refused", refusal.SESSION_UNKNOWN, {"session": did})
    is_own = request.actor in (session.did, session.principal)
    if not is_own and not is_operator(draft, request.actor):
        return refused("closing.refused", refusal.SESSION_NOT_YOURS, {"session": did})
    if session.ended_seq is not None:
        return granted("closing.repeated", {"session": did, "endedSeq": session.ended_seq})
    members: JsonObject = {"session": did, "openedSeq": session.opened_seq, **given_back(draft, did)}
    end_session(draft, session, context.seq)
    draft.dismiss(Dismissal((did,), (), context.seq, is_delayed=not is_own))
    return granted("session.closed", members | request.repeat("reason"))


def opening_fault(draft: Draft, request: SignedRequest, context: Context) -> Refusal | None:
    """Return why no session opens with these delegations, the first row of the table; None when one does."""
    chain = request.delegations
    if any(one.aud != request.body["ledger"] for one in chain):
        return refusal.DELEGATION_WRONG_LEDGER
    if _is_too_deep(draft, chain, context.t_ms):
        return refusal.DELEGATION_TOO_DEEP
    if _is_wider(chain) or _is_of_trial(draft, chain):
        return refusal.DELEGATION_WIDER
    if _is_longer(chain):
        return refusal.DELEGATION_LONGER
    if not chain[-1].not_before_ms <= context.t_ms < chain[-1].expires_at_ms:
        return refusal.DELEGATION_EXPIRED
    issuer = _issuer_of(draft, chain)
    if issuer is None:
        return refusal.ISSUER_UNKNOWN
    if not _is_in_force(draft, issuer):
        return refusal.ISSUER_REMOVED
    if _is_session_taken(draft, request.actor, context.t_ms):
        return refusal.SESSION_TAKEN
    return refusal.TOO_MANY_SESSIONS if _is_too_many(draft, issuer, context) else None


def _issuer_of(draft: Draft, chain: Sequence[Delegation]) -> Issuer | None:
    """Return who issued, in force or removed: an agent, an operator, or an agent lent to by its own operator."""
    if len(chain) == 1:
        return _root(draft, chain[0].iss)
    above, issuer = _root(draft, chain[0].iss), _root(draft, chain[1].iss)
    if above is None or issuer is None or above.agent is not None or issuer.agent is None:
        return None
    return issuer if issuer.operator == above.operator else None


def _root(draft: Draft, did: str) -> Issuer | None:
    """Return what a key is here as an issuer. Who was removed as an agent may be in force as an operator."""
    agent = agent_at(draft, did)
    if agent is not None and not is_operator(draft, did):
        return Issuer(did, agent.operator)
    return Issuer(None, did) if operator_at(draft, did) is not None else None


def _is_in_force(draft: Draft, issuer: Issuer) -> bool:
    if issuer.agent is not None and not is_agent(draft, issuer.agent):
        return False
    return is_operator(draft, issuer.operator)


def _is_too_deep(draft: Draft, chain: Sequence[Delegation], t_ms: int) -> bool:
    """Say whether more is passed on than may be: by too many, by one who must not, or by a session."""
    if len(chain) > CHAIN_MAX or (len(chain) == CHAIN_MAX and chain[0].max_depth == 0):
        return True
    return remembered_session(draft, chain[0].iss, t_ms) is not None


def _is_wider(chain: Sequence[Delegation]) -> bool:
    """Say whether the second statement gives a verb or a name that the first does not; names as they are written."""
    *above, child = chain
    return any(not set(child.verbs) <= set(one.verbs) or not _is_within(child, one) for one in above)


def _is_within(child: Delegation, parent: Delegation) -> bool:
    """Say whether all names of the child are among the parent's; None is every name there is."""
    if parent.resources is None:
        return True
    return child.resources is not None and are_covered(child.resources, parent.resources)


def _is_of_trial(draft: Draft, chain: Sequence[Delegation]) -> bool:
    """Say whether a trial agent would lend out what it is to use itself."""
    did = chain[-1].iss
    agent = agent_at(draft, did)
    return agent is not None and agent.trial_until_ms is not None and not is_operator(draft, did)


def _is_longer(chain: Sequence[Delegation]) -> bool:
    *above, child = chain
    return any(child.not_before_ms < one.not_before_ms or child.expires_at_ms > one.expires_at_ms for one in above)


def _is_session_taken(draft: Draft, did: str, t_ms: int) -> bool:
    """Say whether this key has or had a life here, so that two lives are never taken for one."""
    return is_agent(draft, did) or is_operator(draft, did) or is_spoken_for(draft, did, t_ms)


def _is_too_many(draft: Draft, issuer: Issuer, context: Context) -> bool:
    return _is_busy(draft, issuer, context) or _is_well_remembered(draft, issuer, context)


def _is_busy(draft: Draft, issuer: Issuer, context: Context) -> bool:
    """Say whether an agent has as many open sessions as one may; each of an operator's is a principal of its own."""
    agent = issuer.agent
    if agent is None:
        return False
    bound = context.parameters.sessions_per_principal
    return _is_reached(draft, session_of(agent), bound, lambda one: one.is_open and one.principal == agent)


def _is_well_remembered(draft: Draft, issuer: Issuer, context: Context) -> bool:
    """Say whether no more may be remembered of who lets act. Else opening and closing in turn would fill the memory."""
    agent, operator, t_ms = issuer.agent, issuer.operator, context.t_ms

    def is_its(one: Session) -> bool:
        if agent is None and one.on_behalf_of != operator:
            return False
        return one.principal == (agent or one.did) and is_remembered(one, t_ms)

    bound = SESSIONS_REMEMBERED * context.parameters.sessions_per_principal
    return _is_reached(draft, session_let_by(agent or operator), bound, is_its)


def _is_reached(draft: Draft, term: str, bound: int, counts: Callable[[Session], bool]) -> bool:
    """Say whether `bound` sessions under a word count. They are looked at only when so many are filed there."""
    keys = draft.near(term)
    if len(keys) < bound:
        return False
    found = (draft.get(key) for key in set(keys))
    return sum(1 for one in found if isinstance(one, Session) and counts(one)) >= bound
