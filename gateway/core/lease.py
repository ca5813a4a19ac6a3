"""Acquire, renew, release: what an agent may do with a lease.

Each function finds how the lease stands and what is happening to it, looks the step up in the table of
`lifecycle.py`, and writes exactly that. Before any of them runs, everything the request touches whose time has come
has already ended (`expiry.touched_claims`); so a lease that is there is live.

Source: docs/protocol.md 7, 8.
"""

from __future__ import annotations

from gateway.core import refusal, wait
from gateway.core.authority import is_outside_scope
from gateway.core.denial import denial
from gateway.core.draft import Draft
from gateway.core.holding import (
    Found,
    begin_lease,
    end_lease,
    find_lease,
    forget_edge,
    is_too_many,
    lease_members,
    named_again,
)
from gateway.core.intake import SignedRequest
from gateway.core.lifecycle import LIFECYCLE, Event, Standing
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import DISPUTE_KEY, lease_key
from gateway.core.records import Lease
from gateway.core.refusal import Refusal
from gateway.core.resource import (
    Ask,
    ask_again,
    ask_of,
    first_named,
    is_mode_fit,
    keys_of,
    max_hold_ms,
    meant_lease,
    own_lease,
    unfit,
    way_of,
)
from gateway.core.settle import count_passes, standing
from gateway.core.trust import gain
from verifier.entries import MODES
from verifier.wire import JsonObject

_NOTHING: JsonObject = {}
_EXCLUDING = MODES[-1]  # shares with nothing, so that everything which overlaps is in its way


def acquire(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Grant all of the set, extend the actor's lease on the identical set, queue, or say what is in the way."""
    ask = ask_of(draft, request.actor, request.resources, request.text("mode"))
    if is_outside_scope(draft, request, "lease", ask.resources, request.number("ttlMs"), context):
        return _not_acquired(request, ask, refusal.OUTSIDE_SCOPE)
    why = unfit(draft, ask)
    if why is not None:
        return _not_acquired(request, ask, why)
    own = own_lease(draft, ask, context.t_ms)
    if own is not None:
        return _extend(draft, request, ask, own, context)
    if is_too_many(draft, request.principal, len(ask.resources), context):
        return _not_acquired(request, ask, refusal.TOO_MANY_HELD)
    way = way_of(draft, ask, context.t_ms)
    tickets = standing(draft, ask, context.t_ms, None) if way.tickets else []
    if way.leases or way.delays or tickets:
        if request.flag("wait"):
            return wait.queue(draft, request, ask, context)
        why, members = denial(draft, request, ask, way._replace(tickets=tickets), context)
        return _not_acquired(request, ask, why, members)
    if way.tickets:
        count_passes(draft, ask, context.seq, context)
    return _grant(draft, request, ask, context)


def renew(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Extend a live lease of the actor by its id, or change its mode; a lease that ended is never brought back.

    Its names were in the actor's scope when it was granted, and a scope never changes; how long it lasts is asked anew.
    """
    if is_outside_scope(draft, request, "lease", (), request.number("ttlMs"), context):
        return _not_renewed(request, refusal.OUTSIDE_SCOPE)
    if draft.get(DISPUTE_KEY) is not None:
        return _not_renewed(request, refusal.LEDGER_DISPUTED)
    found = find_lease(draft, request.text("leaseId"), context.t_ms)
    mode = request.body.get("mode")
    if found.holder != request.actor:
        event = Event.RENEW_BY_OTHER
    elif found.lease is not None and mode is not None and mode != found.lease.mode:
        event = Event.CHANGE_BY_HOLDER
    else:
        event = Event.RENEW_BY_HOLDER
    step = LIFECYCLE[found.standing, event]
    if step.refusal is not None:
        return _not_renewed(request, step.refusal, found.ended_seq(request.actor))
    assert step.entry is not None and found.lease is not None, "only a live lease is renewed"
    if event is Event.CHANGE_BY_HOLDER:
        return _change(step.entry, draft, request, found.lease, context)
    if _is_hold_exceeded(draft, found.lease, context):
        return _not_renewed(request, refusal.HOLD_EXCEEDED)
    return _prolong(step.entry, draft, request, ask_again(draft, found.lease), found.lease, context)


def release(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """End a live lease of the actor, by its id or by exactly its resources."""
    if is_outside_scope(draft, request, "lease", (), None, context):
        return refused("release.refused", refusal.OUTSIDE_SCOPE, _asked_back(request))
    if "leaseId" in request.body:
        return _release_by_id(draft, request, context)
    return _release_by_resources(draft, request, context)


def _asked_back(request: SignedRequest) -> JsonObject:
    return {"resources": list(request.resources), **request.repeat("leaseId")}


def _not_acquired(request: SignedRequest, ask: Ask, why: Refusal, members: JsonObject = _NOTHING) -> Decision:
    asked: JsonObject = {"resources": list(ask.resources), **request.repeat("mode", "ttlMs", "wait")}
    return refused("lease.refused", why, asked | members)


def _not_renewed(request: SignedRequest, why: Refusal, members: JsonObject = _NOTHING) -> Decision:
    return refused("renewal.refused", why, request.repeat("leaseId", "ttlMs", "mode") | members)


def _extend(draft: Draft, request: SignedRequest, ask: Ask, own: Lease, context: Context) -> Decision:
    """Extend the actor's own lease; the entry spells the names as they were asked for now."""
    if _is_hold_exceeded(draft, own, context):
        return _not_acquired(request, ask, refusal.HOLD_EXCEEDED)
    step = LIFECYCLE[Standing.LIVE, Event.ACQUIRE_BY_HOLDER]
    assert step.entry is not None, "an extension is an entry"
    decision = _prolong(step.entry, draft, request, ask, own, context)
    return decision._replace(members=decision.members | {"resources": list(ask.resources)})


def _grant(draft: Draft, request: SignedRequest, ask: Ask, context: Context) -> Decision:
    step = LIFECYCLE[Standing.ABSENT, Event.ACQUIRE_BY_HOLDER]
    assert step.entry is not None, "a grant is an entry"
    lease = begin_lease(
        draft,
        ask,
        context,
        principal=request.principal,
        on_behalf_of=request.on_behalf_of,
        ttl_ms=request.number("ttlMs"),
        hold_until_ms=context.t_ms + max_hold_ms(ask, context.parameters),
    )
    return granted(step.entry, lease_members(draft, lease, ask, context))


def _is_hold_exceeded(draft: Draft, lease: Lease, context: Context) -> bool:
    """Say whether a lease was held for as long as is allowed and somebody else now stands in line for it."""
    if context.t_ms < lease.hold_until_ms:
        return False
    return bool(way_of(draft, ask_again(draft, lease), context.t_ms).tickets)


def _prolong(entry: str, draft: Draft, request: SignedRequest, ask: Ask, lease: Lease, context: Context) -> Decision:
    """Move the end of a lease to now + ttl, never back. Id, token and the end of the longest hold stay."""
    ttl_ms = request.number("ttlMs")
    longer = lease._replace(ttl_ms=ttl_ms, expires_at_ms=max(lease.expires_at_ms, context.t_ms + ttl_ms))
    if longer != lease:  # what is put as it was would count as one that begins
        draft.put(lease_key(lease.lease_id), longer)
    again: JsonObject = {"grantedAtMs": lease.granted_at_ms, "grantSeq": lease.grant_seq}
    return granted(entry, lease_members(draft, longer, ask, context) | again)


def _change(entry: str, draft: Draft, request: SignedRequest, lease: Lease, context: Context) -> Decision:
    """Put a lease in another mode in the place of this one, unless that would need what others have or wait for."""
    ask = ask_again(draft, lease)._replace(mode=request.text("mode"))
    if not is_mode_fit(ask):
        return _not_renewed(request, refusal.MODE_NOT_ALLOWED)
    way = way_of(draft, ask, context.t_ms)
    is_weaker = MODES.index(ask.mode) < MODES.index(lease.mode)
    tickets = standing(draft, ask, context.t_ms, None) if way.tickets and not is_weaker else []
    if way.leases or way.delays or tickets:
        why, members = denial(draft, request, ask, way._replace(tickets=tickets), context)
        return _not_renewed(request, why, members)
    end_lease(draft, lease, "changed", context)
    after = begin_lease(
        draft,
        ask,
        context,
        principal=request.principal,
        on_behalf_of=request.on_behalf_of,
        ttl_ms=request.number("ttlMs"),
        hold_until_ms=lease.hold_until_ms,
    )
    return granted(entry, lease_members(draft, after, ask, context) | named_again(lease))


def _release_by_id(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    found = find_lease(draft, request.text("leaseId"), context.t_ms)
    asked = _asked_back(request)
    if found.holder != request.actor:
        event = Event.RELEASE_ID_BY_OTHER
    elif found.lease is not None and not _is_of(draft, found.lease, request.resources):
        event = Event.RELEASE_ID_OTHER_SET
    else:
        event = Event.RELEASE_ID_BY_HOLDER
    step = LIFECYCLE[found.standing, event]
    ended = found.ended_seq(request.actor)
    if step.refusal is not None:
        return refused("release.refused", step.refusal, asked | _holder(found, request) | ended)
    assert step.entry is not None, "a release is an entry"
    if found.lease is None:
        return granted(step.entry, asked | ended)
    return _release(step.entry, draft, request, found.lease, context)


def _release_by_resources(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """End the newest lease that the actor has on exactly this set, in whatever mode, and that it can have meant."""
    ask = ask_of(draft, request.actor, request.resources, _EXCLUDING)
    own = meant_lease(draft, ask, context.t_ms, request.created)
    step = LIFECYCLE[Standing.LIVE, Event.RELEASE_BY_OTHER if own is None else Event.RELEASE_BY_HOLDER]
    if step.refusal is not None:
        others = way_of(draft, ask, context.t_ms).leases
        holder: JsonObject = {"holder": first_named(draft, others).holder} if others else {}
        return refused("release.refused", step.refusal, {"resources": list(ask.resources), **holder})
    assert step.entry is not None and own is not None, "only a live lease is released"
    return _release(step.entry, draft, request, own, context)


def _is_of(draft: Draft, lease: Lease, resources: tuple[str, ...]) -> bool:
    """Say whether these names, however spelled, are exactly those of a lease."""
    return resources == lease.resources or set(keys_of(draft, resources)) == set(keys_of(draft, lease.resources))


def _holder(found: Found, request: SignedRequest) -> JsonObject:
    """Name the holder of a live lease that is not the actor's."""
    return {"holder": found.lease.holder} if found.lease is not None and found.holder != request.actor else {}


def _release(entry: str, draft: Draft, request: SignedRequest, lease: Lease, context: Context) -> Decision:
    end_lease(draft, lease, "released", context)
    forget_edge(draft, request.actor)
    members: JsonObject = {
        "resources": list(request.resources),
        "leaseId": lease.lease_id,
        "fencingToken": lease.fencing_token,
        "grantedAtMs": lease.granted_at_ms,
        "grantSeq": lease.grant_seq,
    }
    return granted(entry, members | gain(draft, lease.principal, context.t_ms - lease.granted_at_ms, context))
