"""Lets go what has come to its end by time alone: everything that is due, or what a command is about to touch.

A lease ends when log time has reached its effective end, never before. Whoever asks, the entry `lease.expired` is
written first and only then is the resource looked at; so a decision never meets a lease that is live on paper only. The
same holds for a ticket, and for the delay after a lease that ended badly, which ends without an entry.

Source: docs/protocol.md 6.3, 7.7, 7.12, 18.4.
"""

from __future__ import annotations

from gateway.core.holding import end_delay, end_lease
from gateway.core.lifecycle import LIFECYCLE, Event, Standing
from gateway.core.outcome import Context, Decision, granted
from gateway.core.resource import claims_on, end_ms
from gateway.core.settle import lapse_ticket
from gateway.core.state import (
    HOLIDAY_KEY,
    Claim,
    Delay,
    Draft,
    Lease,
    Ticket,
    claim_key,
    counter_at,
    lease_at,
    ticket_at,
)
from gateway.core.trust import lose
from verifier.entries import resources_of
from verifier.wire import JsonObject

EXPIRIES_MAX = 256  # In one sweep, so that a mass of expiries never keeps a renewal waiting for long.


def due_claims(draft: Draft, t_ms: int) -> tuple[Claim, ...]:
    """Return what is due, the oldest first, ties by number; at most EXPIRIES_MAX."""
    if t_ms < counter_at(draft, HOLIDAY_KEY):
        return ()
    return draft.due(t_ms, EXPIRIES_MAX)


def touched_claims(draft: Draft, body: JsonObject, t_ms: int) -> tuple[Claim, ...]:
    """Return what stands on the names of a request and is due, in the order of a sweep."""
    if t_ms < counter_at(draft, HOLIDAY_KEY):
        return ()
    named = _named(draft, body)
    names = {name for claim in named for name in claim.resources} | set(resources_of(body))
    if "class" in body:  # a scheme is changed as a whole
        names.add(f"{body['name']}:**")
    touched = {claim_key(claim): claim for claim in (*named, *claims_on(draft, sorted(names)))}
    due = (claim for claim in touched.values() if claim.due_at_ms <= t_ms)
    return tuple(sorted(due, key=lambda claim: (claim.due_at_ms, claim.number)))


def _named(draft: Draft, body: JsonObject) -> list[Claim]:
    """Return the lease and the ticket that a body names by id."""
    lease_id, ticket_id = body.get("leaseId"), body.get("ticketId")
    lease = lease_at(draft, lease_id) if isinstance(lease_id, str) else None
    ticket = ticket_at(draft, ticket_id) if isinstance(ticket_id, str) else None
    return [claim for claim in (lease, ticket) if claim is not None]


def lapse(draft: Draft, claim: Claim, context: Context) -> Decision | None:
    """Do what time has come for, and return its entry; a delay ends without one."""
    match claim:
        case Lease():
            return expire(draft, claim, context)
        case Ticket():
            return lapse_ticket(draft, claim, context)
        case Delay():
            end_delay(draft, claim, context)
            return None


def expire(draft: Draft, lease: Lease, context: Context) -> Decision:
    """End a lease whose time has come and return its entry. Its holder, and who just gave it away, lose trust."""
    assert end_ms(draft, lease) <= context.t_ms, "no lease ends before its time"
    step = LIFECYCLE[Standing.LIVE, Event.END_REACHED]
    assert step.entry is not None, "an expiry is an entry"
    delayed = end_lease(draft, lease, "expired", context)
    losers = [lease.principal]
    if lease.giver is not None and lease.expires_at_ms <= lease.giver_until_ms:
        losers.append(lease.giver)
    members: JsonObject = {
        "resources": list(lease.resources),
        "leaseId": lease.lease_id,
        "fencingToken": lease.fencing_token,
        "holder": lease.holder,
        "grantSeq": lease.grant_seq,
        "expiresAtMs": lease.expires_at_ms,
    }
    return granted(step.entry, members | delayed | lose(draft, losers, context))
