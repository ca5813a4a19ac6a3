"""Which leases stand on which resources, and which of them stand in somebody's way.

Names are exact in this version, so two sets overlap when they share a name; every scheme is `exclusive`, so any two
live leases that overlap exclude each other. An actor's own leases never stand in its way. The grammar of names and the
classes of schemes live in `verifier.entries`.

Source: docs/protocol.md 3, 7.1.
"""

from __future__ import annotations

from gateway.core.state import (
    HOLIDAY_KEY,
    Draft,
    Ended,
    Held,
    Lease,
    View,
    counter_at,
    ended_key,
    held_at,
    held_key,
    lease_at,
    lease_key,
)


def effective_end_ms(view: Draft | View, lease: Lease) -> int:
    """Return when the lease really ends: never before its `expires_at_ms`, never before a running holiday does."""
    return max(lease.expires_at_ms, counter_at(view, HOLIDAY_KEY))


def leases_on(view: Draft | View, resources: tuple[str, ...]) -> dict[str, Lease]:
    """Return the live leases that touch any of `resources`, by id, in order of the resources."""
    found: dict[str, Lease] = {}
    for resource in resources:
        for lease_id in held_at(view, resource):
            lease = lease_at(view, lease_id)
            assert lease is not None, "a held resource names live leases only"
            found[lease_id] = lease
    return found


def leases_in_the_way(draft: Draft, actor: str, resources: tuple[str, ...]) -> list[Lease]:
    """Return others' live leases on `resources`, the one to name first: latest effective end, then lowest token."""
    others = [lease for lease in leases_on(draft, resources).values() if lease.holder != actor]
    if len(others) > 1:
        others.sort(key=lambda lease: (-effective_end_ms(draft, lease), lease.fencing_token))
    return others


def own_lease(draft: Draft, actor: str, resources: tuple[str, ...]) -> Lease | None:
    """Return the actor's live lease on exactly this set. There is at most one: asking again extends it."""
    for lease_id in held_at(draft, resources[0]):
        lease = lease_at(draft, lease_id)
        if lease is not None and lease.holder == actor and lease.resources == resources:
            return lease
    return None


def place(draft: Draft, lease: Lease) -> None:
    """Put a new lease on its resources."""
    draft.put(lease_key(lease.lease_id), lease)
    for resource in lease.resources:
        draft.put(held_key(resource), Held((*held_at(draft, resource), lease.lease_id)))


def clear(draft: Draft, lease: Lease, ended: Ended) -> None:
    """Take a lease off its resources and remember how it ended."""
    draft.delete(lease_key(lease.lease_id))
    draft.put(ended_key(lease.lease_id), ended)
    for resource in lease.resources:
        left = tuple(lease_id for lease_id in held_at(draft, resource) if lease_id != lease.lease_id)
        if left:
            draft.put(held_key(resource), Held(left))
        else:
            draft.delete(held_key(resource))
