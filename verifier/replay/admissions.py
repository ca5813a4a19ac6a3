"""Was an admission the answer that the entries before call for: by the hard rules, and with every fact that rules saw?

A fact is never taken from the entry. What the rules themselves say of these facts is stated by the entry and asked of
their engine elsewhere (rules.py); here it has to fit what was decided.
Source: docs/protocol.md 37, 40.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from verifier.entries import BY_RULES, MODES, Leaf, covers, rows_of, schemes_of
from verifier.replay.approvals import Approved, burn, judge_approvals
from verifier.replay.authority import is_outside_scope
from verifier.replay.decide import Refused, naming
from verifier.replay.handover import lease_seq
from verifier.replay.judged import Judged
from verifier.replay.people import operators
from verifier.replay.rules import denial_by, digest_in_force, ruling_faults
from verifier.replay.state import State
from verifier.replay.things import Ask, Faults, Lease, names_in
from verifier.replay.usage import counted_under, in_scheme
from verifier.replay.ways import leases_in
from verifier.rules import Question, make_question
from verifier.wire import JsonObject, JsonValue

_TEXT = "allowed, but the entries before call for the denial {} (37.2)"


class Admission(NamedTuple):
    """What no hard rule refuses: what the rules may see of it, and what it rests on."""

    facts: JsonObject
    schemes: list[JsonValue]
    lease: Lease | None
    approved: tuple[Approved, ...]


def admission(state: State, leaf: Leaf, entry: Judged) -> Admission | Refused:
    """Return the denial by the first hard rule that is broken, or what is to be asked of the rules."""
    if is_outside_scope(state, leaf):
        return Refused("outside_scope")
    if state.is_disputed:
        return Refused("ledger_disputed")
    ask = state.ask(leaf.actor, names_in(leaf), leaf.text("mode"))
    error = state.schemes.name_error(ask.names, ask.mode)
    if error is not None:
        return Refused(error)
    lease = _shown(state, leaf, ask) if "leaseId" in leaf.value else None
    if isinstance(lease, Refused):
        return lease
    if lease is None and ask.mode != "read":
        return Refused("lease_required")
    others = leases_in(state, ask)
    if others:
        newest = max(others, key=lambda one: one.token)
        return Refused("admission_conflict", {"currentToken": newest.token, **naming(state, ask, newest)})
    approved = judge_approvals(state, leaf, entry.given[0] if entry.given else (), digest_in_force(state))
    if isinstance(approved, str):
        return Refused(approved)
    if not approved and "irreversible" in map(state.schemes.class_of, ask.keys):
        return Refused("approval_required")
    return Admission(_facts(state, leaf, lease, approved), _schemes(state, ask.names), lease, approved)


def _shown(state: State, leaf: Leaf, ask: Ask) -> Lease | Refused:
    """Return the lease that is named, if it is the actor's, live, fenced by this token and wide enough."""
    number, token = lease_seq(leaf), leaf.number("fencingToken")
    lease, ended = state.lease.get(number), state.ended(f"L{number}")
    found = lease or ended
    if found is None:
        return Refused("lease_unknown")
    if found.actor != leaf.actor:
        return Refused("lease_not_yours")
    if lease is not None and token > lease.token:
        return Refused("fence_unknown")
    if lease is None or token < lease.token or not state.is_live(lease):
        over: JsonObject = {"endedSeq": ended.seq} if lease is None and ended is not None else {}
        return Refused("stale_fence", _superseded(state, ask) | over)
    is_weak = MODES.index(lease.mode) < MODES.index(ask.mode)
    is_narrow = not all(any(covers(wide, key) for wide in lease.keys) for key in ask.keys)
    return Refused("lease_too_narrow") if is_weak or is_narrow else lease


def _superseded(state: State, ask: Ask) -> JsonObject:
    """Return the highest token that is live on anything asked for, and who has it, if that is another actor."""
    live = [lease for key in ask.keys for lease in state.leases.near(key) if state.is_live(lease)]
    newest = max(live, key=lambda lease: lease.token, default=None)
    if newest is None:
        return {}
    told = {} if newest.actor == ask.actor else naming(state, ask, newest, is_any_mode=True)
    return {"currentToken": newest.token, **told}


def _facts(state: State, leaf: Leaf, lease: Lease | None, approved: tuple[Approved, ...]) -> JsonObject:
    agent = state.usage.before(leaf.principal, state.now_ms)
    operator = state.usage.before(operators(leaf.on_behalf_of), state.now_ms)
    people = state.people
    is_agent = people.agent(leaf.actor) is not None or leaf.actor not in people.sessions
    return {
        "trust": state.trust.of(leaf.principal),
        "approvals": len(approved),
        "leaseState": "none" if lease is None else "live",
        "leaseMode": "none" if lease is None else lease.mode,
        "leaseAgeMs": 0 if lease is None else state.now_ms - lease.granted_at_ms,
        "leaseLeftMs": 0 if lease is None else state.end_ms(lease) - state.now_ms,
        "agentName": people.label(leaf.actor) or "",
        "actorKind": "agent" if is_agent else "session",
        "custody": leaf.text("custody") or "agent",
        "agentCountMinute": agent.minute_count,
        "agentCountDay": agent.day_count,
        "agentCostDay": agent.day_cost,
        "operatorCountMinute": operator.minute_count,
        "operatorCountDay": operator.day_count,
        "operatorCostDay": operator.day_cost,
    }


def _schemes(state: State, names: tuple[str, ...]) -> list[JsonValue]:
    return [row | _counts(state, str(row["name"])) for row in rows_of(state.schemes.rows(names))]


def _counts(state: State, scheme: str) -> JsonObject:
    before = state.usage.before(in_scheme(scheme), state.now_ms)
    return {"countMinute": before.minute_count, "countDay": before.day_count, "costDay": before.day_cost}


def question(leaf: Leaf, case: Admission) -> Question:
    """Return what rules are asked about a request; its facts are ours, whatever the entry says."""
    members = leaf.value | {"facts": case.facts, "schemes": case.schemes}
    return make_question(leaf.principal, leaf.on_behalf_of, leaf.time_ms, members)


def allowed_faults(state: State, leaf: Leaf, entry: Judged) -> Faults:
    """`admission.allowed`: nothing refuses it, all that it states is so; then it counts and its approvals are spent."""
    case = admission(state, leaf, entry)
    if isinstance(case, Refused):
        yield case.error, _TEXT.format(case.error)
    else:
        yield from _stated_faults(state, leaf, case)
        error = denial_by(state, leaf.value.get("rules"))
        if error:
            yield error, _TEXT.format(error)
        yield from _grant_faults(state, leaf, case)
        burn(state, case.approved)
    state.usage.count(counted(leaf), leaf.number("cost"), leaf.time_ms)


def counted(leaf: Leaf) -> list[str]:
    return counted_under(leaf.principal, leaf.on_behalf_of, schemes_of(names_in(leaf)))


def denied_by(state: State, leaf: Leaf, entry: Judged) -> object:
    """Return the denial that is called for: by a hard rule, or by the rules as `admission.denied` states them."""
    case = admission(state, leaf, entry)
    if isinstance(case, Refused):
        return case
    error = denial_by(state, leaf.value.get("rules"))
    return Refused(error) if error else case


def denied_faults(state: State, leaf: Leaf, entry: Judged) -> Faults:
    """What a denial states beside its error: facts, if rules denied. It counts as one, and uses nothing up."""
    case = admission(state, leaf, entry) if leaf.text("error") in BY_RULES else None
    if isinstance(case, Admission):
        yield from _stated_faults(state, leaf, case)
    state.usage.deny(counted(leaf)[:2])


def _stated_faults(state: State, leaf: Leaf, case: Admission) -> Faults:
    """Are facts, schemes and rules those of this ledger at this entry?"""
    stated = leaf.value.get("facts")
    wrong = [name for name, fact in case.facts.items() if not isinstance(stated, dict) or stated.get(name) != fact]
    for name in wrong:
        yield "fact_wrong", f"{name} is not {case.facts[name]}, as the entries before say (37.5)"
    if leaf.value.get("schemes") != case.schemes:
        yield from _scheme_faults(leaf, case)
    asked = None if state.rule_set is None else question(leaf, case)
    yield from ruling_faults(state, leaf.value.get("rules"), asked)


def _scheme_faults(leaf: Leaf, case: Admission) -> Faults:
    kinds = ("name", "class", "isFolding")
    stated, wanted = rows_of(leaf.value.get("schemes")), rows_of(case.schemes)
    if [[row.get(it) for it in kinds] for row in stated] != [[row[it] for it in kinds] for row in wanted]:
        yield "schemes_wrong", "schemes are not the classes and the folding in force (26.4)"
    else:
        yield "fact_wrong", "the counts of schemes are not those of the admissions before (37.5)"


def _grant_faults(state: State, leaf: Leaf, case: Admission) -> Faults:
    """What the entry grants, and on what."""
    if case.lease is not None and leaf.number("grantSeq") != case.lease.seq:
        yield "citation_wrong", "grantSeq is not the grant of the lease (12.6)"
    rows = [one.row() for one in case.approved]
    if rows_of(leaf.value.get("approvals")) != rows:
        yield "approvals_wrong", "approvals are not those of the request, by operator (37.7)"
    until_ms = min(_ends(state, leaf, case))
    if leaf.number("validUntilMs") != until_ms:
        yield "valid_wrong", f"validUntilMs is not {until_ms}, the first end of what it rests on (37.7)"


def _ends(state: State, leaf: Leaf, case: Admission) -> Iterator[int]:
    """Yield when something may end that an admission rests on; a session is heard of by this entry."""
    yield leaf.time_ms + state.numbers["admissionMs"]
    yield from (one.expires_at_ms for one in case.approved)
    if case.lease is not None:
        yield state.end_ms(case.lease)
    session = state.people.sessions.get(leaf.actor)
    if session is not None and session.ended_seq is None:
        yield min(leaf.time_ms + state.numbers["sessionIdleMs"], session.expires_at_ms)
