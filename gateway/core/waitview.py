"""Pictures for people and pollers: who holds what, who was refused lately, who waits for whom.

A projection of records, and nothing else: it writes nothing and proves nothing. Leases whose time has come are left
out, although their entry may not be written yet; a refusal counts as waiting for `wait_edge_ms`.

Source: docs/protocol.md 19.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from gateway.core.resource import effective_end_ms, leases_on
from gateway.core.state import Lease, Parameters, Record, View, Waits, agent_at
from verifier.wire import JsonObject, JsonValue


class Shelf(View, Protocol):
    """A view that can also be walked through, one kind of record at a time."""

    def scan(self, prefix: str) -> Iterable[Record]:
        """Return every record whose key begins with `prefix`, one of HOT_PREFIXES, in any order."""


def wait_view(shelf: Shelf, t_ms: int, parameters: Parameters, resource: str | None = None) -> JsonObject:
    """Return each resource that is held or waited for, with its lease and those who wait, and the deadlocked pairs.

    With `resource` only that one is shown, deadlocks that touch it included.
    """
    waiting: dict[str, list[Waits]] = {}
    for waits in sorted(_waiting(shelf, t_ms, parameters), key=lambda waits: (waits.since_ms, waits.actor)):
        waiting.setdefault(waits.resource, []).append(waits)
    names = {name for lease in _live(shelf, t_ms) for name in lease.resources} | set(waiting)
    shown = names if resource is None else names & {resource}
    pairs = [pair for pair in _deadlocks(shelf, t_ms, waiting) if resource is None or resource in pair[1]]
    rows: list[JsonValue] = [_resource_row(shelf, t_ms, name, waiting.get(name, [])) for name in sorted(shown)]
    deadlocks: list[JsonValue] = [{"actors": list(actors), "resources": list(names)} for actors, names in pairs]
    return {"nowMs": t_ms, "resources": rows, "deadlocks": deadlocks}


def leases_view(shelf: Shelf, t_ms: int, holder: str) -> JsonObject:
    """Return the live leases of one holder, oldest token first."""
    leases = sorted(_live(shelf, t_ms), key=lambda lease: lease.fencing_token)
    rows: list[JsonValue] = [_full_lease_row(shelf, lease) for lease in leases if lease.holder == holder]
    return {"nowMs": t_ms, "holder": holder, "leases": rows}


def _live(shelf: Shelf, t_ms: int) -> Iterator[Lease]:
    for record in shelf.scan("lease/"):
        if isinstance(record, Lease) and t_ms < effective_end_ms(shelf, record):
            yield record


def _waiting(shelf: Shelf, t_ms: int, parameters: Parameters) -> Iterator[Waits]:
    for record in shelf.scan("wait/"):
        if isinstance(record, Waits) and t_ms < min(record.until_ms, record.refused_at_ms + parameters.wait_edge_ms):
            yield record


def _resource_row(shelf: Shelf, t_ms: int, resource: str, waiting: list[Waits]) -> JsonObject:
    leases = [lease for lease in leases_on(shelf, (resource,)).values() if t_ms < effective_end_ms(shelf, lease)]
    newest = max(leases, key=lambda lease: lease.fencing_token, default=None)
    rows: list[JsonValue] = [_waiting_row(shelf, waits) for waits in waiting]
    return {"resource": resource, "lease": _lease_row(shelf, newest) if newest else None, "waiting": rows}


def _waiting_row(shelf: Shelf, waits: Waits) -> JsonObject:
    row: JsonObject = {
        "actor": waits.actor,
        "waits": waits.waits,
        "sinceMs": waits.since_ms,
        "refusedAtMs": waits.refused_at_ms,
    }
    return row | _name(shelf, waits.actor, "actorName")


def _full_lease_row(shelf: Shelf, lease: Lease) -> JsonObject:
    """Return a lease with everything its holder needs to go on with it."""
    row: JsonObject = {
        "resources": list(lease.resources),
        "ttlMs": lease.ttl_ms,
        "holdUntilMs": lease.hold_until_ms,
    }
    return row | _lease_row(shelf, lease)


def _lease_row(shelf: Shelf, lease: Lease) -> JsonObject:
    """Return a lease in short. `expiresAtMs` is as printed in its entry, `endsAtMs` what holds during a holiday."""
    row: JsonObject = {
        "leaseId": lease.lease_id,
        "holder": lease.holder,
        "fencingToken": lease.fencing_token,
        "mode": lease.mode,
        "grantedAtMs": lease.granted_at_ms,
        "expiresAtMs": lease.expires_at_ms,
        "endsAtMs": effective_end_ms(shelf, lease),
    }
    return row | _name(shelf, lease.holder, "holderName")


def _name(shelf: Shelf, did: str, member: str) -> JsonObject:
    """Return the label an operator gave to a key, if any; it is never an identity."""
    agent = agent_at(shelf, did)
    return {member: agent.name} if agent is not None and agent.name is not None else {}


def _deadlocks(
    shelf: Shelf, t_ms: int, waiting: dict[str, list[Waits]]
) -> list[tuple[tuple[str, str], tuple[str, ...]]]:
    """Return each pair in which A waits for a lease of B and B for one of A, with the resources they wait for."""
    edges: dict[tuple[str, str], set[str]] = {}
    for waits in (waits for row in waiting.values() for waits in row):
        for lease in leases_on(shelf, (waits.resource,)).values():
            if lease.holder != waits.actor and t_ms < effective_end_ms(shelf, lease):
                edges.setdefault((waits.actor, lease.holder), set()).add(waits.resource)
    pairs = sorted((a, b) for a, b in edges if a < b and (b, a) in edges)
    return [((a, b), tuple(sorted(edges[a, b] | edges[b, a]))) for a, b in pairs]
