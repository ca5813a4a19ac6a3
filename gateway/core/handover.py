"""Handing a live lease over: its holder or an operator offers it, the receiver accepts.

Accepting is decided like an acquire by the receiver, with the one lease out of the way that is handed over. So nobody
gets past others with it: neither past a lease that excludes it, the giver's own included, nor past those in line,
unless an operator offers it. The old lease ends, a new one with a new token begins; if that soon runs out, both pay.

Source: docs/protocol.md 27.1 to 27.3; security.md §11.
"""

from __future__ import annotations

from gateway.core import refusal
from gateway.core.authority import is_operator, is_outside_scope
from gateway.core.deadlock import Search
from gateway.core.denial import denial, held
from gateway.core.draft import Draft
from gateway.core.holding import (
    Found,
    begin_lease,
    end_lease,
    find_lease,
    is_too_many,
    lease_members,
    named_again,
)
from gateway.core.intake import SignedRequest
from gateway.core.lifecycle import LIFECYCLE, Event
from gateway.core.lookup import handover_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import DISPUTE_KEY, handover_key
from gateway.core.records import Handover, Lease, Ticket
from gateway.core.refusal import Refusal
from gateway.core.resource import Ask, Way, ask_again, ask_of, overlapping, own_tickets, way_of
from gateway.core.settle import standing
from verifier.wire import JsonObject

_NOTHING: JsonObject = {}


def transfer(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Offer a live lease to another actor; a new offer takes the place of the one before.

    To whom does not matter: whoever is not in force here can't accept.
    """
    by_operator = is_operator(draft, request.actor)
    if not by_operator and is_outside_scope(draft, request, "transfer", (), None, context):
        return _not_offered(request, refusal.OUTSIDE_SCOPE)
    if draft.get(DISPUTE_KEY) is not None:
        return _not_offered(request, refusal.LEDGER_DISPUTED)
    found = find_lease(draft, request.text("leaseId"), context.t_ms)
    step = LIFECYCLE[found.standing, _offer_event(request, found, by_operator=by_operator)]
    if step.refusal is not None:
        return _not_offered(request, step.refusal, found.ended_seq(request.actor))
    lease = found.lease
    assert step.entry is not None and lease is not None, "only a live lease is offered"
    offer = Handover(lease.lease_id, request.text("toDid"), request.actor, context.seq, by_operator)
    draft.put(handover_key(lease.lease_id), offer)
    return granted(step.entry, _asked(request) | {"holder": lease.holder, "grantSeq": lease.grant_seq})


def accept(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Take over a lease that was offered to the actor, unless something stands in its way."""
    found = find_lease(draft, request.text("leaseId"), context.t_ms)
    names = () if found.lease is None else found.lease.resources
    if is_outside_scope(draft, request, "lease", names, request.number("ttlMs"), context):
        return _not_accepted(request, refusal.OUTSIDE_SCOPE)
    if draft.get(DISPUTE_KEY) is not None:
        return _not_accepted(request, refusal.LEDGER_DISPUTED)
    offer = handover_at(draft, request.text("leaseId"))
    is_offered = found.lease is None or (offer is not None and offer.to_did == request.actor)
    step = LIFECYCLE[found.standing, Event.ACCEPT if is_offered else Event.ACCEPT_UNOFFERED]
    if step.refusal is not None:
        return _not_accepted(request, step.refusal, found.ended_seq(request.actor))
    lease = found.lease
    assert step.entry is not None and lease is not None and offer is not None, "only a live lease is handed over"
    # Between keys of one principal nothing is added: what is handed over counts for it already.
    more = 0 if request.principal == lease.principal else len(lease.resources)
    if is_too_many(draft, request.principal, more, context):
        return _not_accepted(request, refusal.TOO_MANY_HELD)
    ask = ask_of(draft, request.actor, lease.resources, lease.mode)
    way = _way_past(draft, ask, lease, offer, context)
    if way.leases:  # a receiver waits for nothing, so it closes no circle
        why, members = held(draft, request, ask, way.leases, Search([], False), context, is_edge=True)
        return _not_accepted(request, why, members)
    if any(way):
        why, members = denial(draft, request, ask, way, context, may_deadlock=False)
        return _not_accepted(request, why, members)
    return _hand_over(step.entry, draft, request, ask, lease, offer, context)


def _offer_event(request: SignedRequest, found: Found, *, by_operator: bool) -> Event:
    if found.holder != request.actor and not by_operator:
        return Event.TRANSFER_BY_OTHER
    if found.lease is not None and found.lease.fencing_token != request.number("seenToken"):
        return Event.TRANSFER_STALE
    return Event.TRANSFER_TO_HOLDER if found.holder == request.text("toDid") else Event.TRANSFER


def _asked(request: SignedRequest) -> JsonObject:
    return request.repeat("leaseId", "seenToken", "toDid", "reason", "reasonDigest")


def _not_offered(request: SignedRequest, why: Refusal, members: JsonObject = _NOTHING) -> Decision:
    return refused("transfer.refused", why, _asked(request) | members)


def _not_accepted(request: SignedRequest, why: Refusal, members: JsonObject = _NOTHING) -> Decision:
    return refused("acceptance.refused", why, request.repeat("leaseId", "ttlMs") | members)


def _way_past(draft: Draft, ask: Ask, lease: Lease, offer: Handover, context: Context) -> Way:
    """Return what is in the receiver's way beside the lease itself."""
    way = way_of(draft, ask, context.t_ms)
    leases = [one for one in way.leases if one.lease_id != lease.lease_id]
    if not way.tickets or offer.is_operator:
        return way._replace(leases=leases, tickets=[])
    own = list(own_tickets(draft, ask.actor, context.t_ms))
    tickets = standing(draft, ask, context.t_ms, None)
    return way._replace(leases=leases, tickets=[one for one in tickets if not _is_behind(draft, one, own)])


def _is_behind(draft: Draft, ticket: Ticket, own: list[Ticket]) -> bool:
    """Say whether the receiver stands before this ticket in line."""
    wanted = ask_again(draft, ticket)
    return any(one.seq < ticket.seq and overlapping(wanted, one) is not None for one in own)


def _hand_over(
    entry: str, draft: Draft, request: SignedRequest, ask: Ask, lease: Lease, offer: Handover, context: Context
) -> Decision:
    end_lease(draft, lease, "transferred", context)
    after = begin_lease(
        draft,
        ask,
        context,
        principal=request.principal,
        on_behalf_of=request.on_behalf_of,
        ttl_ms=request.number("ttlMs"),
        hold_until_ms=lease.hold_until_ms,
        giver=lease.principal,  # trust is lost by principals; the entry names the key that gave
    )
    members: JsonObject = {"giver": lease.holder, "offerSeq": offer.seq}
    return granted(entry, lease_members(draft, after, ask, context) | named_again(lease) | members)
