"""Breaking: an operator ends a live lease by force, having seen its token. The holder learns it at its next call.

Who decides on a token decides on what was seen: if the lease has changed hands meanwhile, nothing happens but an
answer that names the new holder. Repeating it is a success without effect. A dispute does not stop it, because it
grants nothing.

Source: docs/protocol.md 27.4, 27.5; coordination.md §2.
"""

from __future__ import annotations

from gateway.core import refusal
from gateway.core.authority import is_operator
from gateway.core.draft import Draft
from gateway.core.holding import conflict_members, end_lease, ended_members
from gateway.core.intake import SignedRequest
from gateway.core.lifecycle import LIFECYCLE, Event, Standing
from gateway.core.lookup import ended_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import broken_name, ended_key
from gateway.core.records import Ended, Lease
from gateway.core.refusal import Refusal
from gateway.core.resource import Ask, ask_of, claims_on, first_named, overlapping
from verifier.wire import JsonObject


def break_lease(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """End the live lease on `resource` whose token the operator has seen."""
    if not is_operator(draft, request.actor):
        return _not_broken(request, refusal.OPERATOR_REQUIRED, {})
    resource, token = request.text("resource"), request.number("seenToken")
    ask = ask_of(draft, request.actor, (resource,), "write")
    near = claims_on(draft, (resource,), context.t_ms)
    leases = [one for one in near if isinstance(one, Lease) and overlapping(ask, one) is not None]
    seen = next((lease for lease in leases if lease.fencing_token == token), None)
    broken = ended_at(draft, broken_name(token), context.t_ms)
    if seen is not None:
        standing, event = Standing.LIVE, Event.BREAK
    else:
        standing, event = (Standing.BROKEN, Event.BREAK) if broken else (Standing.ABSENT, Event.BREAK_STALE)
    step = LIFECYCLE[standing, event]
    if step.refusal is not None:
        return _not_broken(request, step.refusal, _told(draft, ask, leases))
    assert step.entry is not None, "a break is an entry"
    if seen is not None:
        return _break(step.entry, draft, request, seen, context)
    assert broken is not None, "it was broken before"
    return granted(step.entry, _asked(request) | {"endedSeq": broken.seq})


def _asked(request: SignedRequest) -> JsonObject:
    return request.repeat("resource", "seenToken", "reason", "reasonDigest")


def _not_broken(request: SignedRequest, why: Refusal, members: JsonObject) -> Decision:
    return refused("break.refused", why, _asked(request) | members)


def _told(draft: Draft, ask: Ask, leases: list[Lease]) -> JsonObject:
    """Return who holds the resource now, if anybody does."""
    if not leases:
        return {}
    lease = first_named(draft, leases)
    held_as = overlapping(ask, lease)
    assert held_as is not None, "it is on the resource"
    return conflict_members(draft, lease, ask.resources[0], held_as)


def _break(entry: str, draft: Draft, request: SignedRequest, lease: Lease, context: Context) -> Decision:
    delayed = end_lease(draft, lease, "broken", context)
    until_ms = context.t_ms + context.parameters.idempotency_ms
    draft.put(ended_key(broken_name(lease.fencing_token)), Ended(request.actor, "broken", context.seq, until_ms))
    members = ended_members(lease) | {"grantedAtMs": lease.granted_at_ms}
    return granted(entry, _asked(request) | members | delayed)
