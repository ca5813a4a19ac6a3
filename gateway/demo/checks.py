"""The demo's own reading of the ledger: lists and loops, sharing no rule with the core.

It answers one question that the verifier's signatures and hashes can't: did two workers ever hold one path at once?
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verifier.wire import JsonObject


@dataclass(frozen=True, slots=True)
class Span:
    """One lease as the ledger tells it, from its grant to the entry that ended it (`None`: still held)."""

    resources: frozenset[str]
    holder: str
    from_seq: int
    to_seq: int | None


def spans(leaves: Iterable[JsonObject]) -> list[Span]:
    """Return the life of every lease in the ledger, in order of grant."""
    leaves = list(leaves)
    ends = {
        leaf["leaseId"]: int(str(leaf["seq"])) for leaf in leaves if kind(leaf) in ("lease.released", "lease.expired")
    }
    return [
        Span(resources(leaf), str(leaf["actor"]), int(str(leaf["seq"])), ends.get(leaf["leaseId"]))
        for leaf in leaves
        if kind(leaf) == "lease.granted"
    ]


def overlaps(leases: list[Span]) -> list[tuple[Span, Span]]:
    """Return each pair of leases of different holders that shared a path at the same time; it should be empty."""
    return [
        (one, other)
        for index, one in enumerate(leases)
        for other in leases[index + 1 :]
        if one.holder != other.holder
        and one.resources & other.resources
        and (one.to_seq is None or one.to_seq > other.from_seq)
    ]


def expired_holders(leaves: Iterable[JsonObject]) -> set[str]:
    """Return everyone who lost a lease by letting it run out."""
    return {str(leaf["holder"]) for leaf in leaves if kind(leaf) == "lease.expired"}


def count(leaves: Iterable[JsonObject]) -> Mapping[str, int]:
    """Return how many entries of each type the ledger holds, by short name such as `lease.granted`."""
    counts: dict[str, int] = {}
    for leaf in leaves:
        counts[kind(leaf)] = counts.get(kind(leaf), 0) + 1
    return counts


def kind(leaf: JsonObject) -> str:
    """Return `lease.granted` for `tallystick/lease.granted/1`."""
    return str(leaf["type"]).split("/")[1]


def path_of(leaf: JsonObject) -> str:
    """Return the path of the request that caused an entry, or nothing for the gateway's own."""
    request = leaf.get("request")
    return str(request["path"]) if isinstance(request, dict) else ""


def resources(leaf: JsonObject) -> frozenset[str]:
    """Return the paths that a leaf names."""
    named = leaf["resources"]
    assert isinstance(named, list)
    return frozenset(str(name) for name in named)
