"""Sessions: whether one may open, how long it lives, and how it ends.

A session lives until the earlier of its delegation's end and `sessionIdleMs` after its last entry, or until a holiday
is over; then an entry says so before anything of it is touched. What its statements show alone is the evidence's.
Source: docs/protocol.md 28, 29.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifier.delegation import Delegation, chain_fault
from verifier.entries import SESSIONS_REMEMBERED, Leaf, rows_of
from verifier.replay.authority import who_faults
from verifier.replay.judged import Judged, texts
from verifier.replay.people import People, Session, Who
from verifier.replay.returns import Returns
from verifier.replay.state import State
from verifier.replay.things import Faults

# In the order in which they are asked.
_OPENING = {
    "delegation_wrong_ledger": "a statement is for another ledger",
    "delegation_too_deep": "more is passed on than may be: by too many, or by who must not, or by a session",
    "delegation_wider": "a statement gives more than its issuer has",
    "delegation_longer": "a statement reaches beyond the time of the one before",
    "delegation_expired": "timeMs is outside the time of the last statement",
    "issuer_unknown": "the issuers are no operator, no agent, and no agent under its own operator",
    "issuer_removed": "an issuer, or the operator that answers for it, was removed before",
    "session_taken": "the key was a session before, or is something else here",
    "too_many_sessions": "sessionsPerPrincipal sessions are open, or 16 times as many are remembered",
}
_ORDER = tuple(_OPENING)


def opened_faults(state: State, leaf: Leaf, entry: Judged) -> Faults:
    """`session.opened`: by a chain of delegations whose issuers may let it act now."""
    people, chain = state.people, entry.chain
    who = None if chain is None else _acting(people, chain, leaf.actor)
    if chain is not None:
        error = _opening_error(state, leaf, chain, who)
        if error is not None:
            yield error, _OPENING[error] + " (28.4)"
    if who is not None:
        yield from who_faults(leaf, who)
    scope = leaf.value.get("scope")
    session = Session(
        did=leaf.actor,
        principal=leaf.principal,
        operator=leaf.on_behalf_of,
        verbs=texts(leaf, "verbs"),
        resources=tuple(map(str, scope)) if isinstance(scope, list) else None,
        opened_seq=leaf.seq,
        expires_at_ms=leaf.number("expiresAtMs"),
        idle_by_ms=leaf.time_ms + state.numbers["sessionIdleMs"],
        name=leaf.text("name") or None,
    )
    people.begin(session)
    yield from idle_faults(state, leaf)


def _opening_error(state: State, leaf: Leaf, chain: Sequence[Delegation], who: Who | None) -> str | None:
    """Return the refusal that was due, unless an earlier one shows in the statements alone and was said of them."""
    found = [error for error in _ledger_errors(state, leaf, chain, who) if error is not None]
    said = chain_fault(chain, leaf.origin, state.now_ms)
    error = min(found, key=_ORDER.index, default=None)
    return None if error is None or (said is not None and _ORDER.index(said) <= _ORDER.index(error)) else error


def _ledger_errors(
    state: State, leaf: Leaf, chain: Sequence[Delegation], who: Who | None
) -> tuple[str | None, str | None, str | None]:
    people = state.people
    issuer = people.agents.get(chain[-1].iss)
    is_trial = issuer is not None and issuer.trial_until_ms is not None and chain[-1].iss not in people.operators
    deep = "delegation_too_deep" if chain[0].iss in people.sessions else None
    wider = "delegation_wider" if is_trial else None
    return deep, wider, "issuer_unknown" if who is None else _key_error(state, leaf, chain, who)


def _key_error(state: State, leaf: Leaf, chain: Sequence[Delegation], who: Who) -> str | None:
    people, did = state.people, leaf.actor
    is_removed = who.principal != did and people.agent(who.principal) is None
    if is_removed or who.on_behalf_of not in people.operators:
        return "issuer_removed"
    is_other = people.agent(did) is not None or did in people.operators or did == people.enroller
    if is_other or did in people.sessions or state.keys.is_own(did):
        return "session_taken"
    return "too_many_sessions" if _is_full(state, who, did) else None


def _is_full(state: State, who: Who, did: str) -> bool:
    """Say whether a principal has all the sessions it may, or who lets this one act all that may be remembered."""
    people, bound = state.people, state.numbers["sessionsPerPrincipal"]
    is_direct = who.principal == did
    let_by = who.on_behalf_of if is_direct else who.principal
    is_long = people.remembered[let_by, is_direct] >= SESSIONS_REMEMBERED * bound
    return is_long or len(people.of.get(who.principal, ())) >= bound


def _acting(people: People, chain: Sequence[Delegation], did: str) -> Who | None:
    """Return for whom a session with this chain acts: an agent's, an operator's own, or one of an operator's agent."""
    root = chain[0].iss
    if len(chain) == 1:
        agent = _issuing(people, root)
        if agent is not None:
            return Who(root, agent)
        return Who(did, root) if root in people.operators or root in people.former else None
    agent = _issuing(people, chain[1].iss)
    is_operator = _issuing(people, root) is None and (root in people.operators or root in people.former)
    return Who(chain[1].iss, root) if is_operator and agent == root else None


def _issuing(people: People, did: str) -> str | None:
    """Return the operator behind an issuer that is an agent, removed or not; an operator in force is none."""
    agent = people.agents.get(did)
    return None if agent is None or (agent.is_removed and did in people.operators) else agent.operator


def idle_faults(state: State, leaf: Leaf) -> Faults:
    """Whatever a session holds says when it ends, unless the session is heard of again; nothing else does."""
    session = state.people.sessions.get(leaf.actor)
    if session is None or session.ended_seq is not None:
        wanted = -1
    else:
        wanted = min(leaf.time_ms + state.numbers["sessionIdleMs"], session.expires_at_ms)
        wanted = min(wanted, leaf.number("expiresAtMs")) if "expiresAtMs" in leaf.value else wanted
    if leaf.number("endsIfIdleAtMs") != wanted:
        yield "idle_wrong", f"endsIfIdleAtMs is not {'absent' if wanted < 0 else wanted} (29.2)"


def hear(state: State, leaf: Leaf, entry: Judged) -> bool:
    """Move when a session counts as dead; say whether this entry is the first that shows two users of its key.

    One process never signs later with an older history than it had.
    """
    session = state.people.sessions.get(leaf.actor)
    if session is None or session.ended_seq is not None:
        return False
    session.idle_by_ms = leaf.time_ms + state.numbers["sessionIdleMs"]
    if entry.anchor is None:
        return False
    size, signed_s = entry.anchor.size, entry.created_s
    if size > session.anchor_size:
        session.anchor_size, session.signed_s = size, signed_s
    elif size == session.anchor_size:
        session.signed_s = min(session.signed_s, signed_s)
    elif signed_s > session.signed_s and not session.is_shared:
        session.is_shared = True
        return True
    return False


def closing_error(state: State, leaf: Leaf) -> str | None:
    """Return the refusal that closing a session calls for: by itself, its agent or an operator it is none."""
    session = state.people.sessions.get(leaf.text("session"))
    if session is None:
        return "session_unknown"
    is_own = leaf.actor in (session.did, session.principal) or leaf.actor in state.people.operators
    return None if is_own else "session_not_yours"


def closed_faults(state: State, leaf: Leaf, returns: Returns) -> Faults:
    """`session.closed`: an open session; what it held is given back right after."""
    session = state.people.open.get(leaf.number("openedSeq"))
    if session is None or session.did != leaf.text("session"):
        yield "citation_wrong", "openedSeq is not the session.opened of an open session (12.6)"
        return
    if closing_error(state, leaf) is not None:
        yield "session_not_yours", "a session is closed by itself, its agent or an operator (29.5)"
    yield from _count_faults(state, leaf)
    session.is_tidy = leaf.actor in (session.did, session.principal)
    state.people.end(session, leaf.seq)
    returns.begin(leaf.seq, (session.did,))


def repeated_faults(state: State, leaf: Leaf) -> Faults:
    """`closing.repeated`: the session had ended by the entry that is cited."""
    session = state.people.sessions.get(leaf.text("session"))
    if session is None or session.ended_seq != leaf.number("endedSeq"):
        yield "citation_wrong", "endedSeq is not the entry that ended the session (29.5)"
    elif closing_error(state, leaf) is not None:
        yield "session_not_yours", "a session is closed by itself, its agent or an operator (29.5)"


def ended_faults(state: State, leaf: Leaf, returns: Returns) -> Faults:
    """`session.ended`: by time alone, not before it; or with the agent or operator that was removed right before."""
    session = state.people.open.get(leaf.number("openedSeq"))
    if session is None or session.did != leaf.text("session"):
        yield "citation_wrong", "openedSeq is not the session.opened of an open session (12.6)"
        return
    is_revoked = returns.is_called
    reason = "revoked" if is_revoked else "expired" if state.now_ms >= session.expires_at_ms else "idle"
    if leaf.text("reason") != reason:
        yield "ending_wrong", f"reason is not {reason} (29.2, 29.4)"
    elif is_revoked and leaf.number("causeSeq") != returns.cause_seq:
        yield "citation_wrong", f"causeSeq is not {returns.cause_seq}, the removal right before (29.4)"
    late_ms = state.now_ms - max(session.due_at_ms, state.holiday_ms)
    state.endings.lapse(0 if is_revoked else late_ms)
    if not is_revoked and late_ms < 0:
        yield "ended_early", f"the session lives for another {-late_ms} ms (29.2)"
    is_costly = not is_revoked and session.did in state.leases_of
    rows = state.trust.lose([session.principal], leaf.seq) if is_costly else []
    if rows_of(leaf.value.get("trust")) != rows:
        yield "trust_wrong", f"trust is not {rows or 'unchanged'} (25)"
    yield from _count_faults(state, leaf)
    state.people.end(session, leaf.seq)
    if is_revoked:
        state.pleas.dismiss(session.did, leaf.seq, state.now_ms)
    else:
        returns.begin(leaf.seq, (session.did,))


def _count_faults(state: State, leaf: Leaf) -> Faults:
    did = leaf.text("session")
    counts = len(state.leases_of.get(did, ())), len(state.tickets_of.get(did, ()))
    if (leaf.number("leases"), leaf.number("tickets")) != counts:
        yield "count_wrong", f"leases and tickets are not {counts[0]} and {counts[1]}, what it gives back (29.4)"
