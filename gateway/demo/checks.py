"""The demo's own reading of the ledger: lists and loops, sharing no rule with the core.

It answers one question that the verifier's signatures and hashes can't: did two workers ever hold one path at once?
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verifier.wire import JsonObject

GRANTS = ("lease.granted", "lease.claimed", "lease.changed", "lease.transferred")
ENDS = ("lease.released", "lease.expired", "lease.broken", "lease.returned")
LEFT = ("wait.cancelled", "wait.removed")


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
    ends = {leaf["leaseId"]: seq(leaf) for leaf in leaves if kind(leaf) in ENDS}
    ends |= {leaf["fromLeaseId"]: seq(leaf) for leaf in leaves if "fromLeaseId" in leaf}
    return [
        Span(resources(leaf), str(leaf["actor"]), seq(leaf), ends.get(leaf["leaseId"]))
        for leaf in leaves
        if kind(leaf) in GRANTS
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


@dataclass(frozen=True, slots=True)
class Wait:
    """One ticket: from the entry that queued it to the one that ended it, and whether that was a lease."""

    ticket_id: str
    holder: str
    resources: frozenset[str]
    from_seq: int
    to_seq: int | None
    is_served: bool
    is_offered: bool


def waits(leaves: Iterable[JsonObject]) -> list[Wait]:
    """Return the life of every ticket, in order of queueing."""
    leaves = list(leaves)
    ends = {leaf["ticketId"]: leaf for leaf in leaves if kind(leaf) in ("lease.claimed", *LEFT)}
    offered = {leaf["ticketId"] for leaf in leaves if kind(leaf) == "wait.offered"}
    return [
        Wait(
            str(leaf["ticketId"]),
            str(leaf["actor"]),
            resources(leaf),
            seq(leaf),
            seq(ends[leaf["ticketId"]]) if leaf["ticketId"] in ends else None,
            kind(ends.get(leaf["ticketId"], leaf)) == "lease.claimed",
            leaf["ticketId"] in offered,
        )
        for leaf in leaves
        if kind(leaf) == "wait.queued"
    ]


def out_of_turn(tickets: list[Wait]) -> list[tuple[Wait, Wait]]:
    """Return each pair for one and the same path of which the later ticket was served while the earlier one waited."""
    return [
        (one, other)
        for index, one in enumerate(tickets)
        for other in tickets[index + 1 :]
        if one.resources == other.resources and len(one.resources) == 1
        if other.is_served and (one.to_seq is None or (other.to_seq or 0) < one.to_seq)
    ]


def is_real(refusal: JsonObject, leases: list[Span], tickets: list[Wait]) -> bool:
    """Say whether whom a refusal names held one of its paths just then, or stood in line for one."""
    ahead, at, wanted = refusal.get("ahead"), seq(refusal), resources(refusal)
    if isinstance(ahead, dict):
        named: list[Span | Wait] = [one for one in tickets if one.ticket_id == ahead["ticketId"]]
        actor = ahead["actor"]
    else:
        named, actor = list(leases), refusal.get("holder")
    return any(
        one.holder == actor and one.resources & wanted and one.from_seq < at < (one.to_seq or at + 1) for one in named
    )


def expired_holders(leaves: Iterable[JsonObject]) -> set[str]:
    """Return everyone who lost a lease by letting it run out."""
    return {str(leaf["holder"]) for leaf in leaves if kind(leaf) == "lease.expired"}


@dataclass(frozen=True, slots=True)
class Life:
    """One session: the entry that opened it, the one that ended it, and what was given back because of that."""

    did: str
    on_behalf_of: str
    from_seq: int
    end: JsonObject | None
    returned: tuple[JsonObject, ...]


def lives(leaves: Iterable[JsonObject]) -> list[Life]:
    """Return the life of every session, in order of opening. A key is opened once."""
    leaves = list(leaves)
    ends = [leaf for leaf in leaves if kind(leaf) in ("session.closed", "session.ended")]
    by_session = {leaf["session"]: leaf for leaf in ends}
    assert len(by_session) == len(ends), "no session ends twice"
    return [
        Life(
            str(leaf["actor"]),
            str(leaf["onBehalfOf"]),
            seq(leaf),
            by_session.get(leaf["actor"]),
            tuple(one for one in leaves if kind(one) == "lease.returned" and one["holder"] == leaf["actor"]),
        )
        for leaf in leaves
        if kind(leaf) == "session.opened"
    ]


def is_all_returned(life: Life, leases: list[Span]) -> bool:
    """Say whether a session ended, and what it held then came back, each lease once and right after it."""
    if life.end is None:
        return False
    end = seq(life.end)
    held = [one for one in leases if one.holder == life.did and one.from_seq < end and (one.to_seq or end) >= end]
    given = [seq(leaf) for leaf in life.returned]
    return (
        given == [one.to_seq for one in held] and life.end["leases"] == len(held) and set(given) <= _run_of(end, given)
    )


def _run_of(end: int, given: list[int]) -> set[int]:
    return set(range(end + 1, end + 1 + len(given)))


def count(leaves: Iterable[JsonObject]) -> Mapping[str, int]:
    """Return how many entries of each type the ledger holds, by short name such as `lease.granted`."""
    counts: dict[str, int] = {}
    for leaf in leaves:
        counts[kind(leaf)] = counts.get(kind(leaf), 0) + 1
    return counts


def kind(leaf: JsonObject) -> str:
    """Return `lease.granted` for `tallystick/lease.granted/1`."""
    return str(leaf["type"]).split("/")[1]


def seq(leaf: JsonObject) -> int:
    """Return the number of an entry."""
    return int(str(leaf["seq"]))


def path_of(leaf: JsonObject) -> str:
    """Return the path of the request that caused an entry; nothing for the gateway's own and commands of a batch."""
    request = leaf.get("request")
    return str(request.get("path", "")) if isinstance(request, dict) else ""


def resources(leaf: JsonObject) -> frozenset[str]:
    """Return the paths that a leaf names."""
    named = leaf["resources"]
    assert isinstance(named, list)
    return frozenset(str(name) for name in named)
