"""Ends leases whose time has come: all that are due, or those a command is about to touch.

A lease ends when log time has reached its effective end, never before. Whoever asks, the entry `lease.expired` is
written first and only then is the resource looked at; so a decision never meets a lease that is live on paper only.

Source: docs/protocol.md 7.7, 18.4.
"""

from __future__ import annotations

from gateway.core.lifecycle import LIFECYCLE, Event, Standing
from gateway.core.outcome import Context, Decision, granted
from gateway.core.resource import clear, effective_end_ms, leases_on
from gateway.core.state import HOLIDAY_KEY, Draft, Ended, Lease, counter_at, lease_at
from verifier.entries import resources_of
from verifier.wire import JsonObject

EXPIRIES_MAX = 256  # In one sweep, so that a mass of expiries never keeps a renewal waiting for long.


def due_leases(draft: Draft, t_ms: int) -> tuple[Lease, ...]:
    """Return the leases whose effective end has come, oldest expiry first, ties by token; at most EXPIRIES_MAX."""
    if t_ms < counter_at(draft, HOLIDAY_KEY):
        return ()
    return draft.due(t_ms, EXPIRIES_MAX)


def touched_leases(draft: Draft, body: JsonObject, t_ms: int) -> tuple[Lease, ...]:
    """Return the leases that a request's body touches and whose effective end has come, in the order of a sweep."""
    touched = leases_on(draft, resources_of(body))
    lease_id = body.get("leaseId")
    named = lease_at(draft, lease_id) if isinstance(lease_id, str) else None
    if named is not None:
        touched[named.lease_id] = named
    ended = [lease for lease in touched.values() if effective_end_ms(draft, lease) <= t_ms]
    if len(ended) > 1:
        ended.sort(key=lambda lease: (lease.expires_at_ms, lease.fencing_token))
    return tuple(ended)


def expire(draft: Draft, lease: Lease, context: Context) -> Decision:
    """End a lease whose time has come and return its entry."""
    assert effective_end_ms(draft, lease) <= context.t_ms, "no lease ends before its time"
    step = LIFECYCLE[Standing.LIVE, Event.END_REACHED]
    assert step.entry is not None, "an expiry is an entry"
    until_ms = context.t_ms + context.parameters.idempotency_ms
    clear(draft, lease, Ended(lease.holder, "expired", context.seq, until_ms))
    members: JsonObject = {
        "resources": list(lease.resources),
        "leaseId": lease.lease_id,
        "fencingToken": lease.fencing_token,
        "holder": lease.holder,
        "grantSeq": lease.grant_seq,
        "expiresAtMs": lease.expires_at_ms,
    }
    return granted(step.entry, members)
