"""Acquire, renew, release: what an agent may do with a lease.

Each function finds how the lease stands and what is happening to it, looks the step up in the table of
`lifecycle.py`, and writes exactly that. Before any of them runs, every lease the request touches whose time has come
has already ended (`expiry.touched_leases`); so a lease that is there is live.

Source: docs/protocol.md 7, 8.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.core import refusal
from gateway.core.intake import SignedRequest
from gateway.core.lifecycle import LIFECYCLE, Event, Standing
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.resource import clear, effective_end_ms, leases_in_the_way, own_lease, place
from gateway.core.state import (
    DISPUTE_KEY,
    TOKEN_KEY,
    Counter,
    Draft,
    Ended,
    Lease,
    Waits,
    agent_at,
    counter_at,
    ended_at,
    lease_at,
    lease_key,
    wait_key,
    waits_at,
)
from verifier.entries import BODY_DEFAULTS, resources_of, schemes_of
from verifier.wire import JsonObject

DOUBLINGS_MAX = 32  # 2^32 × any base is far above stampedeMaxMs; the count of waits itself has no bound.


def acquire(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Grant all of the set, extend the actor's lease on the identical set, or refuse naming a holder."""
    resources = resources_of(request.body)
    if draft.get(DISPUTE_KEY) is not None:
        return refused("lease.refused", refusal.LEDGER_DISPUTED, _asked(request, resources))
    in_the_way = leases_in_the_way(draft, request.actor, resources)
    own = own_lease(draft, request.actor, resources)
    if in_the_way:
        step = LIFECYCLE[Standing.LIVE, Event.ACQUIRE_BY_OTHER]
    else:
        step = LIFECYCLE[Standing.LIVE if own else Standing.ABSENT, Event.ACQUIRE_BY_HOLDER]
    if step.refusal is not None:
        held = _held(draft, request, context, in_the_way)
        return refused("lease.refused", step.refusal, _asked(request, resources) | held)
    if own is not None:
        return _prolong("lease.extended", draft, own, request, context)
    return _grant(draft, request, resources, context)


def renew(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Extend a live lease of the actor by its id; a lease that ended is never brought back."""
    lease_id = _lease_id(request)
    asked: JsonObject = {"leaseId": lease_id, "ttlMs": _ttl_ms(request)}
    if draft.get(DISPUTE_KEY) is not None:
        return refused("renewal.refused", refusal.LEDGER_DISPUTED, asked)
    found = _find(draft, lease_id, context.t_ms)
    event = Event.RENEW_BY_HOLDER if found.holder == request.actor else Event.RENEW_BY_OTHER
    step = LIFECYCLE[found.standing, event]
    if step.refusal is not None:
        return refused("renewal.refused", step.refusal, asked | _ended_seq(found, request))
    assert found.lease is not None, "only a live lease is renewed"
    return _prolong("lease.renewed", draft, found.lease, request, context)


def release(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """End a live lease of the actor, by its id or by exactly its resources."""
    if "leaseId" in request.body:
        return _release_by_id(draft, request, context)
    return _release_by_resources(draft, request, context)


def _release_by_id(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    found = _find(draft, _lease_id(request), context.t_ms)
    resources = resources_of(request.body)
    asked: JsonObject = {"resources": list(resources), "leaseId": _lease_id(request)}
    if found.holder != request.actor:
        event = Event.RELEASE_ID_BY_OTHER
    elif found.lease is not None and found.lease.resources != resources:
        event = Event.RELEASE_ID_OTHER_SET
    else:
        event = Event.RELEASE_ID_BY_HOLDER
    step = LIFECYCLE[found.standing, event]
    if step.refusal is not None:
        return refused("release.refused", step.refusal, asked | _holder(found, request) | _ended_seq(found, request))
    if found.lease is None:
        return granted("release.repeated", asked | _ended_seq(found, request))
    return _release(draft, found.lease, context)


def _release_by_resources(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    resources = resources_of(request.body)
    in_the_way = leases_in_the_way(draft, request.actor, resources)
    own = own_lease(draft, request.actor, resources)
    if own is None:
        event = Event.RELEASE_BY_OTHER
    # A release that was signed before the grant meant an earlier lease; seconds are the signature's precision.
    elif own.granted_at_ms >= (request.created + 1) * 1_000:
        event = Event.RELEASE_SIGNED_EARLY
    else:
        event = Event.RELEASE_BY_HOLDER
    step = LIFECYCLE[Standing.LIVE if own or in_the_way else Standing.ABSENT, event]
    if step.refusal is not None:
        asked: JsonObject = {"resources": list(resources)}
        holder: JsonObject = {"holder": in_the_way[0].holder} if in_the_way else {}
        return refused("release.refused", step.refusal, asked | holder)
    assert own is not None, "only a live lease is released"
    return _release(draft, own, context)


class _Found(NamedTuple):
    """How the lease of an id stands, who holds or held it, and the records that say so."""

    standing: Standing
    holder: str | None
    lease: Lease | None
    ended: Ended | None


def _find(draft: Draft, lease_id: str, t_ms: int) -> _Found:
    lease = lease_at(draft, lease_id)
    if lease is not None:
        return _Found(Standing.LIVE, lease.holder, lease, None)
    ended = ended_at(draft, lease_id, t_ms)
    if ended is None:
        return _Found(Standing.ABSENT, None, None, None)
    return _Found(Standing.RELEASED if ended.how == "released" else Standing.EXPIRED, ended.actor, None, ended)


def _ended_seq(found: _Found, request: SignedRequest) -> JsonObject:
    """Name the entry that ended the actor's own lease; another's end is none of its business."""
    is_own = found.ended is not None and found.holder == request.actor
    return {"endedSeq": found.ended.seq} if found.ended is not None and is_own else {}


def _holder(found: _Found, request: SignedRequest) -> JsonObject:
    """Name the holder of a live lease that is not the actor's."""
    return {"holder": found.lease.holder} if found.lease is not None and found.holder != request.actor else {}


def _asked(request: SignedRequest, resources: tuple[str, ...]) -> JsonObject:
    """Return what every refusal of an acquire repeats of it."""
    return {"resources": list(resources), "mode": _mode(request), "ttlMs": _ttl_ms(request)}


def _grant(draft: Draft, request: SignedRequest, resources: tuple[str, ...], context: Context) -> Decision:
    token = max(counter_at(draft, TOKEN_KEY) + 1, context.t_ms * 1_000)
    ttl_ms = _ttl_ms(request)
    lease = Lease(
        lease_id=f"L{context.seq}",
        holder=request.actor,
        principal=request.principal,
        on_behalf_of=request.on_behalf_of,
        resources=resources,
        mode=_mode(request),
        fencing_token=token,
        grant_seq=context.seq,
        granted_at_ms=context.t_ms,
        ttl_ms=ttl_ms,
        expires_at_ms=context.t_ms + ttl_ms,
        hold_until_ms=context.t_ms + context.parameters.max_hold_ms,
    )
    draft.put(TOKEN_KEY, Counter(token))
    place(draft, lease)
    for resource in resources:
        if draft.get(wait_key(request.principal, resource)) is not None:
            draft.delete(wait_key(request.principal, resource))
    return granted("lease.granted", _members(lease))


def _prolong(entry: str, draft: Draft, lease: Lease, request: SignedRequest, context: Context) -> Decision:
    """Move the end of a lease to now + ttl, never back. Id, token and the end of the longest hold stay."""
    ttl_ms = _ttl_ms(request)
    longer = lease._replace(ttl_ms=ttl_ms, expires_at_ms=max(lease.expires_at_ms, context.t_ms + ttl_ms))
    draft.put(lease_key(lease.lease_id), longer)
    return granted(entry, _members(longer) | {"grantedAtMs": lease.granted_at_ms, "grantSeq": lease.grant_seq})


def _release(draft: Draft, lease: Lease, context: Context) -> Decision:
    until_ms = context.t_ms + context.parameters.idempotency_ms
    clear(draft, lease, Ended(lease.holder, "released", context.seq, until_ms))
    members: JsonObject = {
        "resources": list(lease.resources),
        "leaseId": lease.lease_id,
        "fencingToken": lease.fencing_token,
        "grantedAtMs": lease.granted_at_ms,
        "grantSeq": lease.grant_seq,
    }
    return granted("lease.released", members)


def _held(draft: Draft, request: SignedRequest, context: Context, in_the_way: list[Lease]) -> JsonObject:
    """Return what a `lease_held` says beside its name: who, until when, and how long to wait. Counts the wait."""
    lease = in_the_way[0]
    resource = min(set(lease.resources) & set(resources_of(request.body)))
    agent = agent_at(draft, lease.holder)
    name: JsonObject = {"holderName": agent.name} if agent is not None and agent.name is not None else {}
    conflict: JsonObject = {
        "leaseId": lease.lease_id,
        "resource": resource,
        "fencingToken": lease.fencing_token,
        "mode": lease.mode,
        "grantedAtMs": lease.granted_at_ms,
        "expiresAtMs": lease.expires_at_ms,
    }
    waits = _count_wait(draft, request, context, lease, resource)
    advice = _advice(waits, effective_end_ms(draft, lease) - context.t_ms, context)
    return {"holder": lease.holder, "conflict": conflict, "conflicts": len(in_the_way), **name, **advice}


def _count_wait(draft: Draft, request: SignedRequest, context: Context, lease: Lease, resource: str) -> int:
    """Return how often this principal was refused `resource` before, and record that it was once more."""
    before = waits_at(draft, request.principal, resource, context.t_ms)
    waits = before.waits if before else 0
    record = Waits(
        actor=request.actor,
        principal=request.principal,
        resource=resource,
        waits=waits + 1,
        since_ms=before.since_ms if before else context.t_ms,
        refused_at_ms=context.t_ms,
        lease_id=lease.lease_id,
        until_ms=context.t_ms + context.parameters.stampede_reset_ms,
    )
    draft.put(wait_key(request.principal, resource), record)
    return waits


def _advice(waits: int, rest_ms: int, context: Context) -> JsonObject:
    """Return `stampede` and `retryAfterMs` for the wait after `waits` earlier ones; `rest_ms` is left of the lease."""
    numbers = context.parameters
    wait_ms = min(numbers.stampede_max_ms, numbers.stampede_base_ms << min(waits, DOUBLINGS_MAX))
    is_admitted = waits < numbers.stampede_admitted
    retry_after_ms = wait_ms if is_admitted else max(wait_ms, rest_ms)
    return {"stampede": {"admitted": is_admitted, "waitMs": wait_ms}, "retryAfterMs": retry_after_ms}


def _members(lease: Lease) -> JsonObject:
    """Return what every entry says about a lease that goes on."""
    return {
        "resources": list(lease.resources),
        "mode": lease.mode,
        "schemes": schemes_of(lease.resources),
        "leaseId": lease.lease_id,
        "fencingToken": lease.fencing_token,
        "ttlMs": lease.ttl_ms,
        "expiresAtMs": lease.expires_at_ms,
        "holdUntilMs": lease.hold_until_ms,
    }


def _ttl_ms(request: SignedRequest) -> int:
    ttl_ms = request.body.get("ttlMs", BODY_DEFAULTS["ttlMs"])
    assert isinstance(ttl_ms, int), "a checked body"
    return ttl_ms


def _mode(request: SignedRequest) -> str:
    mode = request.body.get("mode", BODY_DEFAULTS["mode"])
    assert isinstance(mode, str), "a checked body"
    return mode


def _lease_id(request: SignedRequest) -> str:
    lease_id = request.body["leaseId"]
    assert isinstance(lease_id, str), "a checked body"
    return lease_id
