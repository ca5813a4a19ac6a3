"""Pictures for people and pollers: who holds what, who was refused lately, who waits for whom.

A projection of records, and nothing else: it writes nothing and proves nothing. Leases whose time has come are left
out, although their entry may not be written yet; a refusal counts as waiting for `wait_edge_ms`.

Strangers may look, on the thread that decides. So the live records are walked through once for a `Scene`, which serves
every reader until the head moves, and what is made of it has at most ROWS_MAX rows. A question about one resource or
one holder is answered by look-ups in the scene and touches nothing else.

Source: docs/protocol.md 19.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Protocol

from gateway.core.resource import leases_on
from gateway.core.state import HOLIDAY_KEY, Lease, Parameters, Record, View, Waits, agent_at, counter_at
from verifier.wire import JsonObject, JsonValue

ROWS_MAX = 1_000  # resources in one picture: some 400 kB
WAITS_MAX = 2_000  # refusals that a scene keeps, the longest first


class Shelf(View, Protocol):
    """A view that can also be walked through, one kind of record at a time."""

    def scan(self, prefix: str) -> Iterable[Record]:
        """Return every record whose key begins with `prefix`, one of HOT_PREFIXES, in any order."""


Pair = tuple[tuple[str, str], tuple[str, ...]]  # two actors, and the resources for which they wait for each other


@dataclass(frozen=True, slots=True)
class Scene:
    """What was live at one head at `t_ms`: leases by holder, oldest token first; waits by resource, the longest first.

    It counts as long as `view` stands at that head: the lease on a resource is looked up there. `leases`, `held` and
    `waits` are totals: live leases, the resources they name, refusals that count as waiting.
    """

    view: View
    t_ms: int
    holiday_ms: int
    by_holder: dict[str, list[Lease]]
    waiting: dict[str, list[Waits]]
    leases: int
    held: int
    waits: int
    pairs: tuple[Pair, ...] = ()

    def is_live(self, lease: Lease) -> bool:
        """Say whether the effective end of a lease has not come."""
        return self.t_ms < max(lease.expires_at_ms, self.holiday_ms)


def look(shelf: Shelf, t_ms: int, parameters: Parameters) -> Scene:
    """Walk through the live records once."""
    holiday_ms = counter_at(shelf, HOLIDAY_KEY)
    leases = sorted(_live(shelf, t_ms, holiday_ms), key=lambda lease: lease.fencing_token)
    by_holder: dict[str, list[Lease]] = {}
    for lease in leases:
        by_holder.setdefault(lease.holder, []).append(lease)
    waits = sorted(_waiting(shelf, t_ms, parameters), key=lambda one: (one.since_ms, one.actor))
    waiting: dict[str, list[Waits]] = {}
    for one in waits[:WAITS_MAX]:
        waiting.setdefault(one.resource, []).append(one)
    held = sum(len(lease.resources) for lease in leases)
    scene = Scene(shelf, t_ms, holiday_ms, by_holder, waiting, len(leases), held, len(waits))
    return replace(scene, pairs=_deadlocks(scene))


def wait_view(scene: Scene, resource: str | None = None) -> JsonObject:
    """Return each resource that is held or waited for, with its lease and those who wait, and the deadlocked pairs.

    With `resource` only that one is shown, deadlocks that touch it included. `counts` are of the whole ledger always.
    """
    names, is_cut = _shown(scene) if resource is None else ([resource], False)
    pairs = [pair for pair in scene.pairs if resource is None or resource in pair[1]]
    rows: list[JsonValue] = [row for name in names if (row := _resource_row(scene, name)) is not None]
    deadlocks: list[JsonValue] = [{"actors": list(actors), "resources": list(names)} for actors, names in pairs]
    return {
        "nowMs": scene.t_ms,
        "resources": rows,
        "deadlocks": deadlocks,
        "isTruncated": is_cut or scene.waits > WAITS_MAX,
        "counts": {"leases": scene.leases, "held": scene.held, "waiting": scene.waits},
    }


def leases_view(scene: Scene, holder: str) -> JsonObject:
    """Return the live leases of one holder, oldest token first, as many as have ROWS_MAX resources together."""
    leases = scene.by_holder.get(holder, [])
    rows: list[JsonValue] = []
    room = ROWS_MAX
    for lease in leases:
        room -= len(lease.resources)
        if room < 0:
            break
        rows.append(_full_lease_row(scene, lease))
    return {
        "nowMs": scene.t_ms,
        "holder": holder,
        "leases": rows,
        "isTruncated": len(rows) < len(leases),
        "counts": {"leases": len(leases)},
    }


def _live(shelf: Shelf, t_ms: int, holiday_ms: int) -> Iterator[Lease]:
    for record in shelf.scan("lease/"):
        if isinstance(record, Lease) and (t_ms < record.expires_at_ms or t_ms < holiday_ms):
            yield record


def _waiting(shelf: Shelf, t_ms: int, parameters: Parameters) -> Iterator[Waits]:
    for record in shelf.scan("wait/"):
        if isinstance(record, Waits) and t_ms < min(record.until_ms, record.refused_at_ms + parameters.wait_edge_ms):
            yield record


def _shown(scene: Scene) -> tuple[list[str], bool]:
    """Return the names that a picture of everything shows, sorted, and whether there are more.

    Those that somebody waits for come first into the picture, then others as they come.
    """
    leases = chain.from_iterable(scene.by_holder.values())
    names = chain(scene.waiting, chain.from_iterable(lease.resources for lease in leases))
    shown: dict[str, None] = {}
    for name in islice(names, 2 * ROWS_MAX + len(scene.waiting)):  # a name comes again under a second lease
        shown[name] = None
        if len(shown) > ROWS_MAX:
            shown.popitem()
            return sorted(shown), True
    return sorted(shown), next(names, None) is not None


def _resource_row(scene: Scene, resource: str) -> JsonObject | None:
    leases = _live_on(scene, resource)
    newest = max(leases, key=lambda lease: lease.fencing_token, default=None)
    waiting = scene.waiting.get(resource, ())
    if newest is None and not waiting:
        return None
    rows: list[JsonValue] = [_waiting_row(scene, waits) for waits in waiting]
    return {"resource": resource, "lease": _lease_row(scene, newest) if newest else None, "waiting": rows}


def _live_on(scene: Scene, resource: str) -> list[Lease]:
    return [lease for lease in leases_on(scene.view, (resource,)).values() if scene.is_live(lease)]


def _waiting_row(scene: Scene, waits: Waits) -> JsonObject:
    row: JsonObject = {
        "actor": waits.actor,
        "waits": waits.waits,
        "sinceMs": waits.since_ms,
        "refusedAtMs": waits.refused_at_ms,
    }
    return row | _name(scene, waits.actor, "actorName")


def _full_lease_row(scene: Scene, lease: Lease) -> JsonObject:
    """Return a lease with everything its holder needs to go on with it."""
    row: JsonObject = {
        "resources": list(lease.resources),
        "ttlMs": lease.ttl_ms,
        "holdUntilMs": lease.hold_until_ms,
    }
    return row | _lease_row(scene, lease)


def _lease_row(scene: Scene, lease: Lease) -> JsonObject:
    """Return a lease in short. `expiresAtMs` is as printed in its entry, `endsAtMs` what holds during a holiday."""
    row: JsonObject = {
        "leaseId": lease.lease_id,
        "holder": lease.holder,
        "fencingToken": lease.fencing_token,
        "mode": lease.mode,
        "grantedAtMs": lease.granted_at_ms,
        "expiresAtMs": lease.expires_at_ms,
        "endsAtMs": max(lease.expires_at_ms, scene.holiday_ms),
    }
    return row | _name(scene, lease.holder, "holderName")


def _name(scene: Scene, did: str, member: str) -> JsonObject:
    """Return the label an operator gave to a key, if any; it is never an identity."""
    agent = agent_at(scene.view, did)
    return {member: agent.name} if agent is not None and agent.name is not None else {}


def _deadlocks(scene: Scene) -> tuple[Pair, ...]:
    """Return each pair in which A waits for a lease of B and B for one of A, with the resources they wait for."""
    edges: dict[tuple[str, str], set[str]] = {}
    for resource, waiting in scene.waiting.items():
        holders = {lease.holder for lease in _live_on(scene, resource)}
        for waits in waiting:
            for holder in holders:
                if holder != waits.actor:
                    edges.setdefault((waits.actor, holder), set()).add(resource)
    pairs = sorted((a, b) for a, b in edges if a < b and (b, a) in edges)
    return tuple(((a, b), tuple(sorted(edges[a, b] | edges[b, a]))) for a, b in pairs)
