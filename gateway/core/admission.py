"""May this agent do this now? Hard rules first, in code; then the rules that an operator loaded, if any.

House rules of this file:

* No rule set can allow what the hard rules refuse: they look at the records of this very transaction, and about what
  they refuse no rule is ever asked.
* Whatever fails on the way to an answer is a denial. Only a well-formed "allow" of the rules in force allows.
* What is allowed is allowed once, until the first moment at which something that it rests on may end.

Source: docs/protocol.md 37; security.md §15.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from gateway.core import refusal
from gateway.core.approval import Approved, approval_rows, burn, digest_of_act, judge_approvals
from gateway.core.authority import idle_end, is_agent, is_outside_scope
from gateway.core.draft import Draft
from gateway.core.holding import conflict_members, find_lease, label_of
from gateway.core.intake import SignedRequest
from gateway.core.lookup import principal_at, rule_set_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.records import Lease
from gateway.core.refusal import Refusal
from gateway.core.resource import (
    Ask,
    ask_of,
    claims_on,
    end_ms,
    keys_of,
    meeting,
    scheme_rows,
    touching,
    unfit,
    way_of,
)
from gateway.core.rules import digest_of, rule
from gateway.core.usage import count_allowed, count_denied, used
from verifier.entries import MODES, covers, schemes_of
from verifier.wire import JsonObject

STATUS = 403  # of every denial, whatever else its row answers elsewhere
NO_LEASE_MODE = MODES[0]  # reading changes nothing that a lease would keep apart
_NOTHING: JsonObject = {}


class Denied(NamedTuple):
    """Why nothing is admitted, and what the entry tells beside what was asked. `fault` is for the gateway's log."""

    why: Refusal
    members: JsonObject = _NOTHING
    fault: Exception | None = None


class Case(NamedTuple):
    """Everything an admission rests on once no hard rule speaks against it."""

    ask: Ask
    lease: Lease | None
    approved: tuple[Approved, ...]
    action_digest: str
    facts: JsonObject
    schemes: list[JsonObject]


def admit(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Allow one execution of exactly what was asked, or say what speaks against it; count either."""
    case = _case(draft, request, context)
    if isinstance(case, Denied):
        return _denied(draft, request, case)
    told: JsonObject = {"facts": case.facts, "schemes": [*case.schemes]}
    ruled = rule(draft, request, _asked(request) | told, context)
    if ruled is not None:
        told["rules"] = ruled.members
        if ruled.why is not None:
            return _denied(draft, request, Denied(ruled.why, told, ruled.fault))
    return _allowed(draft, request, case, told, context)


def _case(draft: Draft, request: SignedRequest, context: Context) -> Case | Denied:
    """Put together what the rules may see; or return the first hard rule of the table that is broken."""
    ask = ask_of(draft, request.actor, request.resources, request.text("mode"))
    lease = _fenced(draft, request, ask, context)
    if isinstance(lease, Denied):
        return lease
    rules_digest = digest_of(rule_set_at(draft))
    done = digest_of_act(request, rules_digest)
    approved = judge_approvals(draft, request, context, done, rules_digest)
    if isinstance(approved, Refusal):
        return Denied(approved)
    if not approved and any(one.class_name == "irreversible" for one in ask.schemes.values()):
        return Denied(refusal.APPROVAL_REQUIRED)
    facts = _facts(draft, request, lease, len(approved), context)
    return Case(ask, lease, approved, done, facts, _scheme_rows(draft, ask, context.t_ms))


def _fenced(draft: Draft, request: SignedRequest, ask: Ask, context: Context) -> Lease | Denied | None:
    """Return the live lease that the request shows, None for a read without one, or why it may not be done."""
    if is_outside_scope(draft, request, "admit", ask.resources, None, context):
        return Denied(refusal.OUTSIDE_SCOPE)
    why = unfit(draft, ask)
    if why is not None:
        return Denied(why)
    lease = _shown(draft, request, ask, context.t_ms) if "leaseId" in request.body else None
    if isinstance(lease, Denied):
        return lease
    if lease is None and ask.mode != NO_LEASE_MODE:
        return Denied(refusal.LEASE_REQUIRED)
    others = way_of(draft, ask, context.t_ms).leases
    return _in_the_way(draft, ask, others) if others else lease


def _shown(draft: Draft, request: SignedRequest, ask: Ask, t_ms: int) -> Lease | Denied:
    """Return the lease that the request names, if it is the actor's, live, fenced by this token, and wide enough."""
    found = find_lease(draft, request.text("leaseId"), t_ms)
    if found.holder is None:
        return Denied(refusal.LEASE_UNKNOWN)
    if found.holder != request.actor:
        return Denied(refusal.LEASE_NOT_YOURS)
    lease, token = found.lease, request.number("fencingToken")
    if lease is not None and token > lease.fencing_token:
        return Denied(refusal.FENCE_UNKNOWN)
    if lease is None or token < lease.fencing_token:
        return Denied(refusal.STALE_FENCE, _superseded(draft, ask, t_ms) | found.ended_seq(request.actor))
    return lease if _is_wide_enough(draft, lease, ask) else Denied(refusal.LEASE_TOO_NARROW)


def _is_wide_enough(draft: Draft, lease: Lease, ask: Ask) -> bool:
    """Say whether a lease is as strong as what is asked for and covers each of its names."""
    if MODES.index(lease.mode) < MODES.index(ask.mode):
        return False
    keys = keys_of(draft, lease.resources)
    return all(any(covers(wide, key) for wide in keys) for key in ask.keys)


def _superseded(draft: Draft, ask: Ask, t_ms: int) -> JsonObject:
    """Tell the highest token that counts on these names now, and who has it when that is somebody else."""
    found = claims_on(draft, ask.resources, t_ms)
    leases = [one for one in found if isinstance(one, Lease) and touching(ask, one) is not None]
    if not leases:
        return {}
    newest = max(leases, key=attrgetter("fencing_token"))
    met = touching(ask, newest)
    assert met is not None, "it overlaps"
    holder = {} if newest.holder == ask.actor else conflict_members(draft, newest, *met)
    return {"currentToken": newest.fencing_token, **holder}


def _in_the_way(draft: Draft, ask: Ask, others: list[Lease]) -> Denied:
    """Tell the highest token that excludes what is asked for, and who has it."""
    newest = max(others, key=attrgetter("fencing_token"))
    members = conflict_members(draft, newest, *meeting(ask, newest))
    return Denied(refusal.ADMISSION_CONFLICT, {"currentToken": newest.fencing_token, **members})


def _facts(draft: Draft, request: SignedRequest, lease: Lease | None, approvals: int, context: Context) -> JsonObject:
    """Return what the gateway knows that a rule may ask for; of counters the values before this admission."""
    t_ms = context.t_ms
    agent = used(draft, "agent", request.principal, t_ms)
    operator = used(draft, "operator", request.on_behalf_of, t_ms)
    return {
        "trust": principal_at(draft, request.principal, context.parameters).trust,
        "approvals": approvals,
        "leaseState": "none" if lease is None else "live",
        "leaseMode": "none" if lease is None else lease.mode,
        "leaseAgeMs": 0 if lease is None else t_ms - lease.granted_at_ms,
        "leaseLeftMs": 0 if lease is None else end_ms(draft, lease) - t_ms,
        "agentName": label_of(draft, request.actor) or "",
        "actorKind": "agent" if is_agent(draft, request.actor) else "session",
        "custody": request.custody or "agent",
        "agentCountMinute": agent.minute_count,
        "agentCountDay": agent.day_count,
        "agentCostDay": agent.day_cost,
        "operatorCountMinute": operator.minute_count,
        "operatorCountDay": operator.day_count,
        "operatorCostDay": operator.day_cost,
    }


def _scheme_rows(draft: Draft, ask: Ask, t_ms: int) -> list[JsonObject]:
    """Return what is known of each scheme, and how much was admitted on it before."""
    rows: list[JsonObject] = []
    for row in scheme_rows(ask):
        assert isinstance(row, dict), "a scheme is an object"
        usage = used(draft, "scheme", str(row["name"]), t_ms)
        counts: JsonObject = {
            "countMinute": usage.minute_count, "countDay": usage.day_count, "costDay": usage.day_cost
        }  # fmt: skip
        rows.append(row | counts)
    return rows


def _allowed(draft: Draft, request: SignedRequest, case: Case, told: JsonObject, context: Context) -> Decision:
    """Burn what is used up, count what is allowed, and return the entry that allows it."""
    burn(draft, case.approved, context)
    count_allowed(draft, request, schemes_of(case.ask.resources), context)
    grant: JsonObject = {} if case.lease is None else {"grantSeq": case.lease.grant_seq}
    used_up: JsonObject = {"approvals": [*approval_rows(case.approved)]} if case.approved else {}
    valid: JsonObject = {"validUntilMs": _valid_until_ms(draft, case, context), "uses": 1}
    done: JsonObject = {"actionDigest": case.action_digest}
    return granted("admission.allowed", _asked(request) | done | grant | told | used_up | valid)


def _valid_until_ms(draft: Draft, case: Case, context: Context) -> int:
    """Return the first moment at which something may end that an admission rests on."""
    ends = [context.t_ms + context.parameters.admission_ms, *(one.expires_at_ms for one in case.approved)]
    if case.lease is not None:
        ends.append(end_ms(draft, case.lease))
    idle = idle_end(draft, case.ask.actor, min(ends), context).get("endsIfIdleAtMs")
    return idle if isinstance(idle, int) else min(ends)


def _denied(draft: Draft, request: SignedRequest, denied: Denied) -> Decision:
    """Count the denial and return its entry."""
    count_denied(draft, request)
    decision = refused("admission.denied", denied.why, _asked(request) | denied.members)
    return decision._replace(status=STATUS, fault=denied.fault)


def _asked(request: SignedRequest) -> JsonObject:
    said = request.repeat("operation", "mode", "argumentsDigest", "cost", "leaseId", "fencingToken")
    return {"resources": [*request.resources], **said}
