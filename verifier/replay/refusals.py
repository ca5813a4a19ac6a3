"""Does a refusal agree with what the ledger knew at that moment? A refusal takes something away, so it is judged too.

Which lease a `lease_held` names is checked in full; its stampede numbers, and whether a decision that failed had to,
are left to an auditor that decides again (docs/protocol.md 17.4). Source: docs/protocol.md 7.4 to 7.8, 10, 17.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from verifier.entries import Leaf, resources_of
from verifier.replay.leases import Faults, Leases, Live
from verifier.replay.people import People

_DISPUTED = {"ledger_disputed": 401}
_BY_ID = {"lease_unknown": 402, "lease_not_yours": 403, "lease_expired": 405}
# The errors that each type may carry, with their numbers.
ERRORS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "agent.refused": {"operator_required": 105},
        "removal.refused": {"operator_required": 105, "agent_not_found": 106},
        "lease.refused": {**_DISPUTED, "lease_held": 408},
        "renewal.refused": {**_DISPUTED, **_BY_ID, "lease_released": 404},
        "release.refused": {**_BY_ID, "lease_mismatch": 406, "not_holder": 407},
    }
)


def refusal_faults(leaf: Leaf, created_s: int, leases: Leases, people: People) -> Faults:
    """Yield (code, text) of what is wrong with an entry of a type in ERRORS; `created_s` is its signature's."""
    name, error = leaf.entry_type.name, leaf.text("error")
    if ERRORS[name].get(error) != leaf.number("number"):
        yield "error_unknown", "error and number are not a refusal of this entry type"
        return
    wanted = _wanted(leaf, created_s, leases, people)
    if error != wanted:
        yield "refusal_wrong", f"{error}, but the entries before call for {wanted or 'no refusal'}"
    elif error == "lease_held":
        yield from _held_faults(leaf, leases, people)
    elif error in _DISPUTED:
        if leaf.value.keys() & {"endedSeq", "holder"}:
            yield "citation_wrong", "a dispute refuses before any lease is looked at, so none is named"
    elif name in ("renewal.refused", "release.refused"):
        yield from _naming_faults(leaf, leases)


def repeat_faults(leaf: Leaf, leases: Leases) -> Faults:
    """Yield what is wrong with a `release.repeated`: the actor has released that lease, by the entry it cites."""
    ended = leases.ended(_grant_seq(leaf), leaf.time_ms)
    if ended is None or not ended.is_released or ended.holder != leaf.actor or ended.seq != leaf.number("endedSeq"):
        yield "citation_wrong", "endedSeq is not the actor's release of this lease"


def _grant_seq(leaf: Leaf) -> int:
    return int(leaf.text("leaseId")[1:])


def _wanted(leaf: Leaf, created_s: int, leases: Leases, people: People) -> str | None:
    """Return the error that the ledger calls for, None when the request had to be granted."""
    match leaf.entry_type.name:
        case "agent.refused":
            return None if leaf.actor in people.operators else "operator_required"
        case "removal.refused":
            is_there = leaf.text("agent") in people.agents
            return (
                "operator_required" if leaf.actor not in people.operators else None if is_there else "agent_not_found"
            )
        case "lease.refused" | "renewal.refused" if leases.is_disputed:
            return "ledger_disputed"
        case "lease.refused":
            way = leases.in_the_way(leaf.actor, resources_of(leaf.value), leaf.time_ms)
            return "lease_held" if way else None
        case "release.refused" if "leaseId" not in leaf.value:
            own = leases.own(leaf.actor, resources_of(leaf.value))
            is_seen = own is not None and own.granted_at_ms < (created_s + 1) * 1000
            return None if is_seen else "not_holder"
    return _wanted_by_id(leaf, leases)


def _wanted_by_id(leaf: Leaf, leases: Leases) -> str | None:
    """The same for a renewal, and for a release that names a lease."""
    is_release = leaf.entry_type.name == "release.refused"
    seq = _grant_seq(leaf)
    live, ended = leases.live.get(seq), leases.ended(seq, leaf.time_ms)
    found = live or ended
    if found is None:
        return "lease_unknown"
    if found.holder != leaf.actor:
        return "lease_not_yours"
    if live is not None:
        return "lease_mismatch" if is_release and resources_of(leaf.value) != live.resources else None
    if ended is not None and ended.is_released:
        return None if is_release else "lease_released"
    return "lease_expired"


def _held_faults(leaf: Leaf, leases: Leases, people: People) -> Faults:
    """A `lease_held` names the lease that stands in the way, and its holder, as they are."""
    way = leases.in_the_way(leaf.actor, resources_of(leaf.value), leaf.time_ms)
    lease, conflict = way[0], leaf.value["conflict"]
    resource = conflict.get("resource") if isinstance(conflict, dict) else None
    if (
        resource not in lease.resources
        or resource not in resources_of(leaf.value)
        or conflict
        != {
            "resource": resource,
            "leaseId": f"L{lease.seq}",
            "fencingToken": lease.token,
            "mode": "write",
            "grantedAtMs": lease.granted_at_ms,
            "expiresAtMs": lease.expires_at_ms,
        }
    ):
        yield "conflict_wrong", f"conflict is not lease L{lease.seq} on a resource that was asked for"
    if leaf.text("holder") != lease.holder or leaf.value.get("holderName") != people.labels.get(lease.holder):
        yield "holder_wrong", f"holder or holderName are not those of lease L{lease.seq}"
    if leaf.number("conflicts") != len(way):
        yield "conflict_wrong", f"conflicts is not {len(way)}, the number of leases in the way"


def _naming_faults(leaf: Leaf, leases: Leases) -> Faults:
    """A refusal cites the end of the actor's own lease, and names nobody but a holder who stands in its way."""
    way: list[Live] = []
    ended = None
    if "leaseId" not in leaf.value:
        way = leases.in_the_way(leaf.actor, resources_of(leaf.value), leaf.time_ms)
    else:
        ended = leases.ended(_grant_seq(leaf), leaf.time_ms)
        live = leases.live.get(_grant_seq(leaf))
        way = [] if live is None else [live]
    is_own = ended is not None and ended.holder == leaf.actor
    if leaf.value.get("endedSeq") != (ended.seq if ended is not None and is_own else None):
        yield "citation_wrong", "endedSeq is there exactly when the actor's own lease ended, and cites that end"
    if "holder" in leaf.value and leaf.text("holder") not in {lease.holder for lease in way} - {leaf.actor}:
        yield "holder_wrong", "holder holds no live lease that the request names"
