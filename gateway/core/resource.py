"""What stands on resources, and what of it stands in somebody's way.

Leases, delays and tickets are found by the words of `terms.py` and then compared by key. Two of them exclude each other
where their names overlap and the class of that scheme does not let their modes share. An actor's own never stand in its
way. Whatever has lapsed by log time does not count, whether or not its entry is written already.

The grammar of names, their keys and the sharing of modes live in `verifier.entries`.

Source: docs/protocol.md 3, 7.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gateway.core.state import (
    HOLIDAY_KEY,
    Claim,
    Delay,
    Draft,
    Lease,
    Parameters,
    Ticket,
    View,
    counter_at,
    scheme_at,
)
from gateway.core.terms import by, filed_under, met_by
from verifier.entries import key_of, may_share, overlaps, scheme_of
from verifier.wire import JsonObject, JsonValue

DEFAULT_CLASS = "exclusive"


class Ask(NamedTuple):
    """Somebody wants `resources` (sorted names) in `mode`; `keys` are what is compared, one for each name."""

    actor: str
    resources: tuple[str, ...]
    keys: tuple[str, ...]
    mode: str


class Way(NamedTuple):
    """What stands in the way of an ask, each kind in the order in which it was met."""

    leases: list[Lease]
    delays: list[Delay]
    tickets: list[Ticket]


def ask_of(view: Draft | View, actor: str, resources: tuple[str, ...], mode: str) -> Ask:
    return Ask(actor, resources, keys_of(view, resources), mode)


def ask_again(view: Draft | View, claim: Claim) -> Ask:
    """Return what a lease or ticket stands for, as an ask of its holder."""
    return ask_of(view, claim.holder, claim.resources, claim.mode)


def keys_of(view: Draft | View, resources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the key of each name, in the order of the names."""
    return tuple(_key(view, name) for name in resources)


def _key(view: Draft | View, name: str) -> str:
    return key_of(name, is_folding_of(view, name))


def is_folding_of(view: Draft | View, name: str) -> bool:
    """Say whether capital letters of a name do not count."""
    scheme = scheme_at(view, scheme_of(name))
    return scheme is not None and scheme.is_folding


def class_of(view: Draft | View, name: str) -> str:
    """Return the semantics class of a name's scheme."""
    scheme = scheme_at(view, scheme_of(name))
    return DEFAULT_CLASS if scheme is None else scheme.class_name


def scheme_rows(view: Draft | View, resources: tuple[str, ...]) -> list[JsonValue]:
    """Return the member `schemes` of a lease's entry."""
    rows: list[JsonValue] = []
    for name in sorted({scheme_of(resource) for resource in resources}):
        scheme = scheme_at(view, name)
        row: JsonObject = {"class": DEFAULT_CLASS, "isFolding": False, "name": name}
        rows.append(row if scheme is None else row | {"class": scheme.class_name, "isFolding": scheme.is_folding})
    return rows


def lock_delay_ms(view: Draft | View, resources: tuple[str, ...], parameters: Parameters) -> int:
    """Return how long others are kept out after a lease on `resources` ended badly: the longest of its schemes."""
    schemes = (scheme_at(view, name) for name in {scheme_of(resource) for resource in resources})
    return max(parameters.lock_delay_ms if scheme is None else scheme.lock_delay_ms for scheme in schemes)


def max_hold_ms(view: Draft | View, resources: tuple[str, ...], parameters: Parameters) -> int:
    """Return how long a lease may be held while others wait: the shortest of its schemes."""
    schemes = (scheme_at(view, name) for name in {scheme_of(resource) for resource in resources})
    return min(parameters.max_hold_ms if scheme is None else scheme.max_hold_ms for scheme in schemes)


def end_ms(view: Draft | View, claim: Claim) -> int:
    """Return when a lease, delay or ticket really lapses: never before a running holiday does."""
    return max(lapse_ms(claim), counter_at(view, HOLIDAY_KEY))


def lapse_ms(claim: Claim) -> int:
    """Return when a claim lapses, before any holiday."""
    return claim.deadline_ms if isinstance(claim, Ticket) else claim.due_at_ms


def claims_near(view: Draft | View, term: str) -> Iterator[Claim]:
    """Yield what is filed under `term`, lapsed or not."""
    for key in view.near(term):
        claim = view.get(key)
        if isinstance(claim, Claim):
            yield claim


def claims_on(view: Draft | View, names: Iterable[str], t_ms: int | None = None) -> dict[Claim, None]:
    """Return everything whose names may overlap any of `names` (folded: perhaps a few too many), each once.

    With `t_ms` only what has not lapsed then.
    """
    return {
        claim: None
        for name in names
        for term in met_by(name)
        for claim in claims_near(view, term)
        if t_ms is None or t_ms < end_ms(view, claim)
    }


def way_of(view: Draft | View, ask: Ask, t_ms: int) -> Way:
    """Return others' live leases, delays and tickets that exclude what is asked for."""
    way = Way([], [], [])
    holiday_ms = counter_at(view, HOLIDAY_KEY)
    met: set[str] = set()
    for name, key in zip(ask.resources, ask.keys, strict=True):
        class_name, is_folding = class_of(view, name), is_folding_of(view, name)
        for term in met_by(name):
            for place in view.near(term):
                if place in met:
                    continue
                claim = view.get(place)
                if not isinstance(claim, Claim) or claim.holder == ask.actor:
                    continue
                if may_share(class_name, claim.mode, ask.mode) or t_ms >= max(lapse_ms(claim), holiday_ms):
                    continue
                # What is filed under a word overlaps when folded; a scheme that does not fold has to look again.
                if is_folding or any(overlaps(key, other) for other in claim.resources):
                    met.add(place)
                    _file(way, claim)
    return way


def _file(way: Way, claim: Claim) -> None:
    match claim:
        case Lease():
            way.leases.append(claim)
        case Delay():
            way.delays.append(claim)
        case Ticket():
            way.tickets.append(claim)


def excludes(view: Draft | View, ask: Ask, claim: Claim) -> bool:
    """Say whether an ask and another actor's claim can't stand together, as far as names and modes go."""
    if claim.holder == ask.actor:
        return False
    others = keys_of(view, claim.resources)
    return any(
        not may_share(class_of(view, name), claim.mode, ask.mode) and any(overlaps(key, other) for other in others)
        for name, key in zip(ask.resources, ask.keys, strict=True)
    )


def first_named(view: Draft | View, leases: list[Lease]) -> Lease:
    """Return the lease that a refusal names: the latest effective end, then the lowest token."""
    return min(leases, key=lambda lease: (-end_ms(view, lease), lease.fencing_token))


def meeting(view: Draft | View, ask: Ask, claim: Claim) -> tuple[str, str]:
    """Return the least name asked for that excludes `claim`, and the least name of the claim that overlaps it."""
    others = list(zip(claim.resources, keys_of(view, claim.resources), strict=True))
    for name, key in zip(ask.resources, ask.keys, strict=True):
        if not may_share(class_of(view, name), claim.mode, ask.mode):
            for other, other_key in others:
                if overlaps(key, other_key):
                    return name, other
    raise AssertionError("what stands in the way overlaps")


def own_leases(view: Draft | View, actor: str, t_ms: int) -> Iterator[Lease]:
    """Yield the live leases of an actor."""
    for claim in claims_near(view, by(actor)):
        if isinstance(claim, Lease) and t_ms < end_ms(view, claim):
            yield claim


def own_tickets(view: Draft | View, actor: str, t_ms: int) -> Iterator[Ticket]:
    """Yield the live tickets of an actor, lowest number first."""
    found = (claim for claim in claims_near(view, by(actor)) if isinstance(claim, Ticket))
    return iter(sorted((one for one in found if t_ms < end_ms(view, one)), key=lambda ticket: ticket.seq))


def own_lease(view: Draft | View, ask: Ask, t_ms: int, *, any_mode: bool = False) -> Lease | None:
    """Return the actor's live lease on exactly these keys, in this mode unless any will do: the newest."""
    found = None
    for place in view.near(filed_under(ask.resources[0])[0]):
        lease = view.get(place)
        if not isinstance(lease, Lease) or lease.holder != ask.actor or t_ms >= end_ms(view, lease):
            continue
        if (any_mode or lease.mode == ask.mode) and set(keys_of(view, lease.resources)) == set(ask.keys):
            found = lease if found is None or lease.fencing_token > found.fencing_token else found
    return found
