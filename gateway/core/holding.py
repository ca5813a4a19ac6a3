"""How a lease begins and ends: the records that go with it, whatever the reason.

Every beginning has a new id and a new token, so that one token is one lease; every end is remembered for a day. Who may
begin or end one is decided elsewhere (`lease.py`, `wait.py`, `handover.py`, `breaking.py`, `expiry.py`, `windup.py`).

Source: docs/protocol.md 7, 8.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from gateway.core.authority import idle_end
from gateway.core.draft import Draft, View
from gateway.core.lifecycle import Standing
from gateway.core.lookup import agent_at, counter_at, ended_at, lease_at, principal_at, session_at
from gateway.core.outcome import Context
from gateway.core.record_keys import (
    TOKEN_KEY,
    delay_key,
    edge_key,
    ended_key,
    handover_key,
    lease_key,
    principal_key,
    wait_key,
)
from gateway.core.records import Counter, Delay, Ended, Lease, Principal
from gateway.core.resource import Ask, ask_again, claims_near, end_ms, lock_delay_ms, scheme_rows
from gateway.core.terms import by, held_behind
from verifier.wire import JsonObject

How = Literal["released", "expired", "broken", "transferred", "changed", "returned"]
ABNORMAL = frozenset({"expired", "broken"})


def begin_lease(
    draft: Draft,
    ask: Ask,
    context: Context,
    *,
    principal: str,
    on_behalf_of: str,
    ttl_ms: int,
    hold_until_ms: int,
    giver: str | None = None,
) -> Lease:
    """Put a new lease of `ask.actor` in force. It ends the actor's wait on these names, and its edge."""
    token = max(counter_at(draft, TOKEN_KEY) + 1, context.t_ms * 1_000)
    lease = Lease(
        lease_id=f"L{context.seq}",
        holder=ask.actor,
        principal=principal,
        on_behalf_of=on_behalf_of,
        resources=ask.resources,
        mode=ask.mode,
        fencing_token=token,
        grant_seq=context.seq,
        granted_at_ms=context.t_ms,
        ttl_ms=ttl_ms,
        expires_at_ms=context.t_ms + ttl_ms,
        hold_until_ms=hold_until_ms,
        giver=giver,
        giver_until_ms=0 if giver is None else context.t_ms + ttl_ms,
    )
    draft.put(TOKEN_KEY, Counter(token))
    draft.put(lease_key(lease.lease_id), lease)
    _count_held(draft, lease, len(lease.resources), context)
    forget_edge(draft, ask.actor)
    for resource in ask.resources:
        if draft.get(wait_key(principal, resource)) is not None:
            draft.delete(wait_key(principal, resource))
    return lease


def end_lease(draft: Draft, lease: Lease, how: How, context: Context, *, is_delayed: bool = False) -> JsonObject:
    """Take a lease away and remember how it ended; return the member `delayUntilMs` when others are kept out now.

    `is_delayed` says so of one that was given back, where that depends on who ended its holder.
    """
    until_ms = context.t_ms + context.parameters.idempotency_ms
    draft.delete(lease_key(lease.lease_id))
    draft.put(ended_key(lease.lease_id), Ended(lease.holder, how, context.seq, until_ms))
    if draft.get(handover_key(lease.lease_id)) is not None:
        draft.delete(handover_key(lease.lease_id))
    delay_ms = lock_delay_ms(ask_again(draft, lease), context.parameters) if is_delayed or how in ABNORMAL else 0
    if delay_ms == 0:
        _count_held(draft, lease, -len(lease.resources), context)
        return {}
    ends_at_ms = context.t_ms + delay_ms  # until then its names count for its principal
    delay = Delay(
        lease.lease_id, lease.holder, lease.principal, lease.resources, lease.mode, context.seq, ends_at_ms
    )  # fmt: skip
    draft.put(delay_key(lease.lease_id), delay)
    return {"delayUntilMs": ends_at_ms}


def end_delay(draft: Draft, delay: Delay, context: Context) -> None:
    """Let go the names that a lease left behind closed."""
    draft.delete(delay_key(delay.lease_id))
    _count_held(draft, delay, -len(delay.resources), context)


def forget_edge(draft: Draft, actor: str) -> None:
    """An actor that was granted or gave back anything no longer waits for what refused it before."""
    if draft.get(edge_key(actor)) is not None:
        draft.delete(edge_key(actor))


def _count_held(draft: Draft, claim: Lease | Delay, change: int, context: Context) -> None:
    was = principal_at(draft, claim.principal, context.parameters)
    now = Principal(was.did, was.trust, was.trust_seq, was.gain_since_ms, was.gained, was.held + change)
    draft.put(principal_key(claim.principal), now)


def lease_members(draft: Draft, lease: Lease, ask: Ask, context: Context) -> JsonObject:
    """Return what every entry says about a lease that goes on; `ask` is what it stands for."""
    return {
        "resources": list(lease.resources),
        "mode": lease.mode,
        "schemes": scheme_rows(ask),
        "leaseId": lease.lease_id,
        "fencingToken": lease.fencing_token,
        "ttlMs": lease.ttl_ms,
        "expiresAtMs": lease.expires_at_ms,
        "holdUntilMs": lease.hold_until_ms,
        **idle_end(draft, lease.holder, lease.expires_at_ms, context),
    }


def ended_members(lease: Lease) -> JsonObject:
    """Return what an entry says of a lease that somebody else than its holder ends."""
    return {
        "resources": list(lease.resources),
        "leaseId": lease.lease_id,
        "fencingToken": lease.fencing_token,
        "holder": lease.holder,
        "grantSeq": lease.grant_seq,
    }


def named_again(lease: Lease) -> JsonObject:
    """Return the members that name the lease whose place another one takes."""
    return {"fromLeaseId": lease.lease_id, "fromSeq": lease.grant_seq}


class Found(NamedTuple):
    """How the lease of an id stands, who holds or held it, and the records that say so."""

    standing: Standing
    holder: str | None
    lease: Lease | None
    ended: Ended | None

    def ended_seq(self, actor: str) -> JsonObject:
        """Name the entry that ended the actor's own lease; another's end is none of its business."""
        return {"endedSeq": self.ended.seq} if self.ended is not None and self.holder == actor else {}


def find_lease(draft: Draft, lease_id: str, t_ms: int) -> Found:
    """Return what is known of a lease id: a lease that is there is live, its end is remembered for a day."""
    lease = lease_at(draft, lease_id)
    if lease is not None:
        return Found(Standing.LIVE, lease.holder, lease, None)
    ended = ended_at(draft, lease_id, t_ms)
    if ended is None:
        return Found(Standing.ABSENT, None, None, None)
    return Found(Standing[ended.how.upper()], ended.actor, None, ended)


def is_too_many(draft: Draft, principal: str, names: int, context: Context) -> bool:
    """Say whether `names` more would be more than a principal and its sessions may together hold and keep closed.

    A delay that is over does not count, whether or not it is let go already.
    """
    over = principal_at(draft, principal, context.parameters).held + names - context.parameters.held_per_principal
    return over > 0 and over > sum(len(delay.resources) for delay in _over(draft, principal, context.t_ms))


def _over(draft: Draft, principal: str, t_ms: int) -> Iterator[Delay]:
    """Yield the delays of a principal and its sessions that have ended and are not let go yet."""
    for term in (by(principal), held_behind(principal)):
        for claim in claims_near(draft, term):
            if isinstance(claim, Delay) and claim.principal == principal and t_ms >= end_ms(draft, claim):
                yield claim


def label_of(view: Draft | View, did: str) -> str | None:
    """Return how people call a key: the label of an agent, or of a session, else of the agent it acts for.

    A label is never an identity. A key can have been one thing before it became the other: what is in force counts.
    """
    agent = agent_at(view, did)
    session = None if agent is not None and agent.removed_seq is None else session_at(view, did)
    if session is not None:
        if session.name is not None:
            return session.name
        agent = agent_at(view, session.principal)
    return None if agent is None else agent.name


def conflict_members(view: Draft, lease: Lease, resource: str, held_as: str) -> JsonObject:
    """Return who holds what was asked for: the members `holder`, `holderName` (if it has a label) and `conflict`."""
    label = label_of(view, lease.holder)
    name: JsonObject = {} if label is None else {"holderName": label}
    conflict: JsonObject = {
        "leaseId": lease.lease_id,
        "resource": resource,
        "heldAs": held_as,
        "fencingToken": lease.fencing_token,
        "mode": lease.mode,
        "grantedAtMs": lease.granted_at_ms,
        "expiresAtMs": lease.expires_at_ms,
    }
    return {"holder": lease.holder, "conflict": conflict, **name}
