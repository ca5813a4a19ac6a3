"""Not now: which refusal somebody gets who can't be granted at once, and everything it tells.

A refusal names one lease, delay or ticket in the way, says how long it pays to wait, and counts how often in a row this
was asked for. One that a lease causes is also a wait: for a while it is part of the graph of `deadlock.py`.

Source: docs/protocol.md 7.6, 10.3.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from gateway.core import refusal
from gateway.core.deadlock import NO_CYCLE, Search, circle_members, find_cycle
from gateway.core.draft import Draft
from gateway.core.holding import conflict_members
from gateway.core.intake import SignedRequest
from gateway.core.lookup import waits_at
from gateway.core.outcome import Context
from gateway.core.record_keys import edge_key, wait_key
from gateway.core.records import Delay, Edge, Lease, Ticket, Waits
from gateway.core.refusal import Refusal
from gateway.core.resource import Ask, Way, end_ms, first_named, meeting
from verifier.wire import JsonObject

DOUBLINGS_MAX = 32  # 2^32 × any base is far above every bound; the count of waits itself has none.
FULL_BASE_MS, FULL_BASE_MS_MAX = 1_000, 60_000  # of the advice to come back when a line is full


def denial(
    draft: Draft, request: SignedRequest, ask: Ask, way: Way, context: Context, *, may_deadlock: bool = True
) -> tuple[Refusal, JsonObject]:
    """Return the refusal of a plain ask that something is in the way of, and its members; count it.

    `way` holds what really stands in the way: of the tickets only those of `settle.standing`. An acceptance is no
    deadlock: what it needs is in the hands of who offered it.
    """
    if way.leases:
        search = NO_CYCLE
        if may_deadlock:
            search = find_cycle(draft, ask, context, plain=True, soft=False, leases=way.leases)
        return held(draft, request, ask, way.leases, search, context, is_edge=True)
    if way.delays:
        return refusal.LOCK_DELAYED, _delayed(draft, request, ask, way.delays, context)
    return refusal.QUEUED, _queued(draft, request, ask, way.tickets, context)


def held(
    draft: Draft,
    request: SignedRequest,
    ask: Ask,
    leases: list[Lease],
    search: Search,
    context: Context,
    *,
    is_edge: bool,
) -> tuple[Refusal, JsonObject]:
    """Return `lease_held`, or `deadlock` when a circle was found, naming the one of `leases` that ends last."""
    lease = first_named(draft, leases)
    resource, held_as = meeting(ask, lease)
    if is_edge:
        until_ms = context.t_ms + context.parameters.wait_edge_ms
        draft.put(edge_key(ask.actor), Edge(ask.actor, resource, ask.mode, context.seq, until_ms))
    advice = _count(draft, request, resource, context, lease.lease_id)
    members: JsonObject = {
        **conflict_members(draft, lease, resource, held_as),
        "conflicts": len(leases),
        "stampede": advice.stampede,
        "retryAfterMs": advice.retry_after_ms(end_ms(draft, lease) - context.t_ms),
    }
    if search.is_bounded:
        members["searchBounded"] = True
    if not search.rows:
        return refusal.LEASE_HELD, members
    return refusal.DEADLOCK, members | circle_members(search)


def queue_full_members(draft: Draft, request: SignedRequest, ask: Ask, context: Context) -> JsonObject:
    """Return what `queue_full` tells: to come back ever later, spread by the request's own nonce; count it."""
    advice = _count(draft, request, ask.resources[0], context, None)
    base_ms = min(FULL_BASE_MS_MAX, FULL_BASE_MS << min(advice.waits, DOUBLINGS_MAX))
    spread = int.from_bytes(sha256(request.nonce.encode()).digest()[:2], "big")
    return {"stampede": advice.stampede, "retryAfterMs": base_ms + base_ms * spread // 65_536 // 4}


def _delayed(draft: Draft, request: SignedRequest, ask: Ask, delays: list[Delay], context: Context) -> JsonObject:
    delay = min(delays, key=lambda one: (-end_ms(draft, one), one.seq))
    until_ms = end_ms(draft, delay)
    advice = _count(draft, request, ask.resources[0], context, None)
    return {
        "holder": delay.holder,
        "delayUntilMs": until_ms,
        "endedSeq": delay.seq,
        "stampede": advice.stampede,
        "retryAfterMs": max(advice.wait_ms, until_ms - context.t_ms),
    }


def _queued(draft: Draft, request: SignedRequest, ask: Ask, tickets: list[Ticket], context: Context) -> JsonObject:
    ticket = min(tickets, key=lambda one: one.seq)
    resource, _ = meeting(ask, ticket)
    ahead: JsonObject = {
        "ticketId": ticket.ticket_id,
        "actor": ticket.actor,
        "resource": resource,
        "mode": ticket.mode,
        "queuedAtMs": ticket.queued_at_ms,
    }
    advice = _count(draft, request, resource, context, None)
    rest_ms = end_ms(draft, ticket) - context.t_ms
    return {"ahead": ahead, "stampede": advice.stampede, "retryAfterMs": advice.retry_after_ms(rest_ms)}


class _Advice(NamedTuple):
    """How long to wait after `waits` refusals in a row; `is_admitted` while there were not too many."""

    waits: int
    wait_ms: int
    is_admitted: bool

    @property
    def stampede(self) -> JsonObject:
        return {"admitted": self.is_admitted, "waitMs": self.wait_ms}

    def retry_after_ms(self, rest_ms: int) -> int:
        """Return when asking again makes sense; `rest_ms` is what is left of the thing in the way."""
        return self.wait_ms if self.is_admitted else max(self.wait_ms, rest_ms)


def _count(draft: Draft, request: SignedRequest, resource: str, context: Context, lease_id: str | None) -> _Advice:
    """Record that this principal was refused `resource` once more, and advise by how often it was before."""
    numbers, t_ms = context.parameters, context.t_ms
    before = waits_at(draft, request.principal, resource, t_ms)
    waits = before.waits if before else 0
    record = Waits(
        actor=request.actor,
        principal=request.principal,
        resource=resource,
        waits=waits + 1,
        since_ms=before.since_ms if before else t_ms,
        refused_at_ms=t_ms,
        lease_id=lease_id,
        until_ms=t_ms + numbers.stampede_reset_ms,
    )
    draft.put(wait_key(request.principal, resource), record)
    wait_ms = min(numbers.stampede_max_ms, numbers.stampede_base_ms << min(waits, DOUBLINGS_MAX))
    return _Advice(waits, wait_ms, waits < numbers.stampede_admitted)
