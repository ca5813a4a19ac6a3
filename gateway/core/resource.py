"""What stands on resources, and what of it stands in somebody's way.

Leases, delays and tickets are found by the words of `terms.py` and then compared by key. Two of them exclude each other
where their names overlap and the class of that scheme does not let their modes share. An actor's own never stand in its
way. Whatever has lapsed by log time does not count, whether or not its entry is written already.

The grammar of names, their keys and the sharing of modes live in `verifier.entries`.

Source: docs/protocol.md 3, 7.9, 7.10, 7.12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from gateway.core import refusal
from gateway.core.draft import Draft, View
from gateway.core.lookup import counter_at, scheme_at
from gateway.core.parameters import Parameters
from gateway.core.record_keys import DISPUTE_KEY, HOLIDAY_KEY
from gateway.core.records import CLAIMS, Claim, Delay, Lease, Scheme, Ticket
from gateway.core.refusal import Refusal
from gateway.core.terms import by, filed_under, is_digest, met_by, waited_by
from verifier.entries import MODES, is_mode_allowed, key_of, may_share, overlaps, scheme_of
from verifier.wire import JsonObject, JsonValue

DEFAULT_CLASS = "exclusive"
CROWD = 64  # of so many who share a name one's own lease is rather looked for among one's own
Schemes = Mapping[str, Scheme]
"""By name what operators set for some schemes; one that nobody has set is not there."""


class Ask(NamedTuple):
    """Somebody wants `resources` (sorted names) in `mode`; `keys` are what is compared, one for each name."""

    actor: str
    resources: tuple[str, ...]
    keys: tuple[str, ...]
    mode: str
    schemes: Schemes


class Way(NamedTuple):
    """What stands in the way of an ask, each kind in any order."""

    leases: list[Lease]
    delays: list[Delay]
    tickets: list[Ticket]


def ask_of(view: Draft | View, actor: str, resources: tuple[str, ...], mode: str) -> Ask:
    schemes = schemes_of(view, resources)
    return Ask(actor, resources, _keys(schemes, resources), mode, schemes)


def ask_again(view: Draft | View, claim: Claim) -> Ask:
    """Return what a lease or ticket stands for, as an ask of its holder."""
    return ask_of(view, claim.holder, claim.resources, claim.mode)


def schemes_of(view: Draft | View, resources: tuple[str, ...]) -> Schemes:
    """Return what operators set for the schemes of these names."""
    return {name: scheme for name in _scheme_names(resources) if (scheme := scheme_at(view, name)) is not None}


def keys_of(view: Draft | View, resources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the key of each name, in the order of the names."""
    return _keys(schemes_of(view, resources), resources)


def _keys(schemes: Schemes, resources: tuple[str, ...]) -> tuple[str, ...]:
    if not schemes:
        return resources
    return tuple(key_of(name, _is_folding(schemes, name)) for name in resources)


def _is_folding(schemes: Schemes, name: str) -> bool:
    scheme = schemes.get(scheme_of(name))
    return scheme is not None and scheme.is_folding


def _class(schemes: Schemes, name: str) -> str:
    scheme = schemes.get(scheme_of(name)) if schemes else None
    return DEFAULT_CLASS if scheme is None else scheme.class_name


def _is_name_fit(ask: Ask) -> bool:
    """Say whether every name is ASCII or of a scheme that takes others."""
    return all(map(str.isascii, ask.resources)) or all(
        name.isascii() or _is_unicode(ask.schemes, name) for name in ask.resources
    )


def _is_unicode(schemes: Schemes, name: str) -> bool:
    scheme = schemes.get(scheme_of(name))
    return scheme is not None and scheme.is_unicode


def is_mode_fit(ask: Ask) -> bool:
    """Say whether the class of every name has the mode."""
    return not ask.schemes or all(is_mode_allowed(scheme.class_name, ask.mode) for scheme in ask.schemes.values())


def unfit(view: Draft | View, ask: Ask) -> Refusal | None:
    """Return why nobody is granted or admitted such an ask here, whoever holds what; None when somebody can be."""
    if view.get(DISPUTE_KEY) is not None:
        return refusal.LEDGER_DISPUTED
    if not _is_name_fit(ask):
        return refusal.NAME_NOT_ALLOWED
    return None if is_mode_fit(ask) else refusal.MODE_NOT_ALLOWED


def scheme_rows(ask: Ask) -> list[JsonValue]:
    """Return the member `schemes` of a lease's entry."""
    return [_scheme_row(name, ask.schemes.get(name)) for name in sorted(_scheme_names(ask.resources))]


def _scheme_row(name: str, scheme: Scheme | None) -> JsonObject:
    if scheme is None:
        return {"class": DEFAULT_CLASS, "isFolding": False, "name": name}
    return {"class": scheme.class_name, "isFolding": scheme.is_folding, "name": name}


def _scheme_names(resources: tuple[str, ...]) -> Iterable[str]:
    """Return the schemes of these names, each once."""
    return {scheme_of(resource) for resource in resources} if len(resources) > 1 else (scheme_of(resources[0]),)


def lock_delay_ms(ask: Ask, parameters: Parameters) -> int:
    """Return how long others are kept out after a lease ended badly: the longest of its schemes."""
    return max(_each_of(ask, "lock_delay_ms", parameters.lock_delay_ms))


def max_hold_ms(ask: Ask, parameters: Parameters) -> int:
    """Return how long a lease may be held while others wait: the shortest of its schemes."""
    return min(_each_of(ask, "max_hold_ms", parameters.max_hold_ms))


def _each_of(ask: Ask, number: str, unset: int) -> list[int]:
    """Return a number of each scheme of an ask; `unset` is that of one that nobody has set."""
    if not ask.schemes:
        return [unset]
    return [getattr(ask.schemes.get(name), number, unset) for name in _scheme_names(ask.resources)]


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
        if isinstance(claim, CLAIMS):
            yield claim


def claims_on(view: Draft | View, names: Iterable[str], t_ms: int | None = None) -> dict[Claim, None]:
    """Return everything whose names may overlap any of `names` (folded: perhaps a few too many), each once.

    With `t_ms` only what has not lapsed then.
    """
    terms = {term: None for name in names for term in met_by(name)}  # deep names have most of them in common
    return {
        claim: None for term in terms for claim in claims_near(view, term) if t_ms is None or t_ms < end_ms(view, claim)
    }


def is_any_live(view: Draft | View, name: str, t_ms: int) -> bool:
    """Say whether anything stands on names that overlap `name` when folded, as far as it has not lapsed."""
    return any(t_ms < end_ms(view, claim) for term in met_by(name) for claim in claims_near(view, term))


def way_of(view: Draft | View, ask: Ask, t_ms: int) -> Way:
    """Return others' live leases, delays and tickets that exclude what is asked for."""
    way = Way([], [], [])
    actor, holiday_ms = ask.actor, counter_at(view, HOLIDAY_KEY)
    since_ms = -1 if t_ms < holiday_ms else t_ms  # in a holiday nothing lapses
    for claim in exclusions(view, ask):
        if claim.holder == actor:
            continue
        if isinstance(claim, Lease):
            if since_ms < claim.expires_at_ms:
                way.leases.append(claim)
        elif isinstance(claim, Ticket):
            if since_ms < claim.deadline_ms:
                way.tickets.append(claim)
        elif since_ms < claim.ends_at_ms:
            way.delays.append(claim)
    return way


def exclusions(view: Draft | View, ask: Ask, kinds: tuple[str, ...] = ("",)) -> Iterator[Claim]:
    """Yield each claim that excludes an ask as far as names and modes go, whoever's it is and whether it has lapsed.

    `kinds` says how its key begins. A sub-tree meets everything that lies in it, so this is written for ten thousand.
    """
    get, near = view.get, view.near
    met: set[str] = set()
    empty: set[str] = set()  # words that several names have in common, mostly
    for name, key in zip(ask.resources, ask.keys, strict=True):
        sharing = _sharing(_class(ask.schemes, name), ask.mode)
        # What is filed under a spelled word overlaps when folded; a scheme that does not fold has to look again.
        # Mostly the first name of the claim lies in the sub-tree that was asked for.
        is_folding = bool(ask.schemes) and _is_folding(ask.schemes, name)
        inside = key[:-2] if key.endswith("**") else "\n"  # no name begins with that
        for term in met_by(name):
            if term in empty:
                continue
            places = near(term)
            if not places:
                empty.add(term)
                continue
            is_sure = is_folding and not is_digest(term)
            for place in places:
                claim = get(place) if place.startswith(kinds) else None
                if not isinstance(claim, CLAIMS) or claim.mode in sharing or place in met:
                    continue
                if is_sure or claim.resources[0].startswith(inside) or is_met(key, _folded(claim, is_folding)):
                    met.add(place)
                    yield claim


def _folded(claim: Claim, is_folding: bool) -> Iterable[str]:
    """Return the keys of a claim's names, as far as these are of one scheme that folds or does not."""
    return (key_of(name, True) for name in claim.resources) if is_folding else claim.resources


@lru_cache(maxsize=64)
def _sharing(class_name: str, mode: str) -> frozenset[str]:
    """Return the modes that share with `mode`."""
    return frozenset(other for other in MODES if may_share(class_name, other, mode))


def is_met(key: str, others: Iterable[str]) -> bool:
    """Say whether a key overlaps one of `others`, which are keys too."""
    return any(overlaps(key, other) for other in others)


def meeting(ask: Ask, claim: Claim) -> tuple[str, str]:
    """Return the least name asked for that excludes `claim`, and the least name of the claim that overlaps it."""
    # Names of other schemes than those asked for overlap nothing, so how they fold does not matter.
    others = _keys(ask.schemes, claim.resources)
    for name, key in zip(ask.resources, ask.keys, strict=True):
        if claim.mode not in _sharing(_class(ask.schemes, name), ask.mode):
            for other, other_key in zip(claim.resources, others, strict=True):
                if overlaps(key, other_key):
                    return name, other
    raise AssertionError("what stands in the way overlaps")


def touching(ask: Ask, claim: Claim) -> tuple[str, str] | None:
    """Return the least name asked for that overlaps a claim, and the least name of the claim that overlaps that one,
    whatever the modes; None where nothing overlaps."""
    others = _keys(ask.schemes, claim.resources)
    for name, key in zip(ask.resources, ask.keys, strict=True):
        for other, other_key in zip(claim.resources, others, strict=True):
            if overlaps(key, other_key):
                return name, other
    return None


def overlapping(ask: Ask, claim: Claim) -> str | None:
    """Return the least name of a claim that overlaps a name asked for, whatever the modes; None without one."""
    others = zip(claim.resources, _keys(ask.schemes, claim.resources), strict=True)
    return next((name for name, key in others if is_met(key, ask.keys)), None)


def first_named(view: Draft | View, leases: list[Lease]) -> Lease:
    """Return the lease that a refusal names: the latest effective end, then the lowest token."""
    latest_ms, holiday_ms = max(map(attrgetter("expires_at_ms"), leases)), counter_at(view, HOLIDAY_KEY)
    last = leases if latest_ms <= holiday_ms else [lease for lease in leases if lease.expires_at_ms == latest_ms]
    return min(last, key=attrgetter("fencing_token"))


def own_leases(view: Draft | View, actor: str, t_ms: int) -> Iterator[Lease]:
    """Yield the live leases of an actor."""
    for claim in claims_near(view, by(actor)):
        if isinstance(claim, Lease) and t_ms < end_ms(view, claim):
            yield claim


def own_tickets(view: Draft | View, actor: str, t_ms: int) -> Iterator[Ticket]:
    """Yield the live tickets of an actor, lowest number first."""
    since_ms = -1 if t_ms < counter_at(view, HOLIDAY_KEY) else t_ms  # in a holiday nothing lapses
    found = (claim for claim in claims_near(view, waited_by(actor)) if isinstance(claim, Ticket))
    return iter(sorted((one for one in found if since_ms < one.deadline_ms), key=attrgetter("seq")))


def own_lease(view: Draft | View, ask: Ask, t_ms: int) -> Lease | None:
    """Return the newest live lease of the actor on exactly these keys, in this mode."""
    found = [lease for lease in _own_on(view, ask, t_ms) if lease.mode == ask.mode]
    return max(found, key=attrgetter("fencing_token")) if found else None


def meant_lease(view: Draft | View, ask: Ask, t_ms: int, created_s: int) -> Lease | None:
    """Return the newest live lease on exactly these keys, in any mode, that a release signed at `created_s` can mean.

    It meant none that was granted later; seconds are the signature's precision.
    """
    found = (lease for lease in _own_on(view, ask, t_ms) if lease.granted_at_ms < (created_s + 1) * 1_000)
    return max(found, key=attrgetter("fencing_token"), default=None)


def _own_on(view: Draft | View, ask: Ask, t_ms: int) -> Iterator[Lease]:
    places = view.near(filed_under(ask.resources[0])[0])
    if len(places) > CROWD:
        places = min(places, view.near(by(ask.actor)), key=len)
    for place in places:
        lease = view.get(place)
        if not isinstance(lease, Lease) or lease.holder != ask.actor or t_ms >= end_ms(view, lease):
            continue
        if set(_keys(ask.schemes, lease.resources)) == set(ask.keys):
            yield lease
