"""The life of one lease as a table: standing × event → step. Code, tests and documents read this one.

Whoever begins, moves or ends a lease looks the step up here and only then writes; a pair that is refused leaves the
lease as it was. A test walks every pair through the public functions and compares.

What the table leaves out, because it is no matter of one lease: bounds (`hold_exceeded`, `too_many_held`), those who
stand in line (`queued`), and the circle that turns `lease_held` into `deadlock`.

Source: docs/protocol.md 7.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from gateway.core import refusal
from gateway.core.refusal import Refusal


class Standing(Enum):
    """How a lease stands. ABSENT: never granted, or ended so long ago that nobody remembers.

    Of one that was transferred or changed, the lease that took its place is live.
    """

    ABSENT = "no lease"
    LIVE = "live"
    RELEASED = "released"
    EXPIRED = "expired"
    BROKEN = "broken"
    TRANSFERRED = "transferred"
    CHANGED = "changed"
    RETURNED = "returned"

    __hash__ = object.__hash__  # a member is its name; the hash of its text takes a call each time


class Event(Enum):
    """What can happen to a lease. "Holder" is who held it last; without a lease the two do not differ."""

    ACQUIRE_BY_HOLDER = "the holder acquires the identical set"
    ACQUIRE_OTHER_MODE_BY_HOLDER = "the holder acquires the identical set in another mode"
    ACQUIRE_OVERLAP_BY_HOLDER = "the holder acquires an overlapping set"
    ACQUIRE_BY_OTHER = "another acquires"
    ACQUIRE_SHARING_BY_OTHER = "another acquires in a mode that shares with the lease"
    ACQUIRE_DELAYED_BY_OTHER = "another acquires within the lock-delay"
    RENEW_BY_HOLDER = "the holder renews"
    CHANGE_BY_HOLDER = "the holder renews in another mode"
    RENEW_BY_OTHER = "another renews"
    RELEASE_ID_BY_HOLDER = "the holder releases, with leaseId"
    RELEASE_ID_OTHER_SET = "the holder releases, with leaseId and another set"
    RELEASE_ID_BY_OTHER = "another releases, with leaseId"
    RELEASE_BY_HOLDER = "the holder releases, without leaseId"
    RELEASE_SIGNED_EARLY = "the holder releases, without leaseId, signed before the grant"
    RELEASE_BY_OTHER = "another releases, without leaseId"
    TRANSFER = "the holder or an operator offers it"
    TRANSFER_STALE = "the holder or an operator offers it, having seen another token"
    TRANSFER_TO_HOLDER = "it is offered to its holder"
    TRANSFER_BY_OTHER = "another offers it"
    ACCEPT = "whom it was offered to accepts it"
    ACCEPT_UNOFFERED = "whom it was not offered to accepts it"
    BREAK = "an operator breaks it"
    BREAK_STALE = "an operator breaks it, having seen another token"
    BREAK_BY_OTHER = "one who is no operator breaks it"
    END_REACHED = "time reaches the effective end"
    HOLDER_ENDED = "its session or agent ended"
    HOLIDAY = "a holiday begins"

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Step:
    """What an event does: the entry it writes (None for nothing), why it is refused, how the lease stands after."""

    entry: str | None
    refusal: Refusal | None
    after: Standing


# What the late calls by id of a former holder are told, by how the lease stands.
_LATE: Mapping[Standing, Refusal] = {
    Standing.RELEASED: refusal.LEASE_RELEASED,
    Standing.EXPIRED: refusal.LEASE_EXPIRED,
    Standing.BROKEN: refusal.LEASE_BROKEN,
    Standing.TRANSFERRED: refusal.LEASE_TRANSFERRED,
    Standing.CHANGED: refusal.LEASE_CHANGED,
    Standing.RETURNED: refusal.LEASE_RETURNED,
}
_GRANT = Step("lease.granted", None, Standing.LIVE)
_HELD = refusal.LEASE_HELD
Row = Mapping[Standing, Step]


def _each(entry: str | None, why: Refusal | None) -> Row:
    """Return a row whose steps all do the same and leave the lease as it is."""
    return {standing: Step(entry, why, standing) for standing in Standing}


def _granted_but(**refusals: Refusal) -> Row:
    """Return a row of grants, but for the standings named: a new lease stands beside the old one."""
    refused = {Standing[name]: Step("lease.refused", why, Standing[name]) for name, why in refusals.items()}
    return {standing: refused.get(standing, _GRANT) for standing in Standing}


def _by_id(refused: str, live: Step) -> Row:
    """Return the row of a call by id of whoever may make it: it works on a live lease and else says how that ended."""
    late = {standing: Step(refused, why, standing) for standing, why in _LATE.items()}
    return {Standing.ABSENT: Step(refused, refusal.LEASE_UNKNOWN, Standing.ABSENT), Standing.LIVE: live, **late}


def _not_yours(refused: str) -> Row:
    unknown = Step(refused, refusal.LEASE_UNKNOWN, Standing.ABSENT)
    return {**_each(refused, refusal.LEASE_NOT_YOURS), Standing.ABSENT: unknown}


_REPEAT = Step("release.repeated", None, Standing.RELEASED)
_RELEASE = Step("lease.released", None, Standing.RELEASED)
_NOT_HOLDER = _each("release.refused", refusal.NOT_HOLDER)
_TOKEN_STALE = _each("break.refused", refusal.TOKEN_STALE)


def _stays(entry: str, why: Refusal | None = None) -> Step:
    return Step(entry, why, Standing.LIVE)


_ROWS: Mapping[Event, Row] = {
    Event.ACQUIRE_BY_HOLDER: {**_granted_but(TRANSFERRED=_HELD), Standing.LIVE: _stays("lease.extended")},
    Event.ACQUIRE_OTHER_MODE_BY_HOLDER: _granted_but(TRANSFERRED=_HELD),
    Event.ACQUIRE_OVERLAP_BY_HOLDER: _granted_but(TRANSFERRED=_HELD),
    Event.ACQUIRE_BY_OTHER: _granted_but(LIVE=_HELD, TRANSFERRED=_HELD, CHANGED=_HELD),
    Event.ACQUIRE_SHARING_BY_OTHER: _granted_but(CHANGED=_HELD),
    Event.ACQUIRE_DELAYED_BY_OTHER: _granted_but(
        LIVE=_HELD,
        EXPIRED=refusal.LOCK_DELAYED,
        BROKEN=refusal.LOCK_DELAYED,
        RETURNED=refusal.LOCK_DELAYED,
        TRANSFERRED=_HELD,
        CHANGED=_HELD,
    ),
    Event.RENEW_BY_HOLDER: _by_id("renewal.refused", _stays("lease.renewed")),
    Event.CHANGE_BY_HOLDER: _by_id("renewal.refused", Step("lease.changed", None, Standing.CHANGED)),
    Event.RENEW_BY_OTHER: _not_yours("renewal.refused"),
    Event.RELEASE_ID_BY_HOLDER: {**_by_id("release.refused", _RELEASE), Standing.RELEASED: _REPEAT},
    Event.RELEASE_ID_OTHER_SET: {
        **_by_id("release.refused", _stays("release.refused", refusal.LEASE_MISMATCH)),
        Standing.RELEASED: _REPEAT,
    },
    Event.RELEASE_ID_BY_OTHER: _not_yours("release.refused"),
    # Without an id a release means whatever the actor holds there, so also what took the place of a changed lease.
    Event.RELEASE_BY_HOLDER: {
        **_NOT_HOLDER,
        Standing.LIVE: _RELEASE,
        Standing.CHANGED: Step("lease.released", None, Standing.CHANGED),
    },
    Event.RELEASE_SIGNED_EARLY: _NOT_HOLDER,
    Event.RELEASE_BY_OTHER: _NOT_HOLDER,
    Event.TRANSFER: _by_id("transfer.refused", _stays("transfer.offered")),
    Event.TRANSFER_STALE: _by_id("transfer.refused", _stays("transfer.refused", refusal.TOKEN_STALE)),
    Event.TRANSFER_TO_HOLDER: _by_id("transfer.refused", _stays("transfer.refused", refusal.NOT_OFFERED)),
    Event.TRANSFER_BY_OTHER: _not_yours("transfer.refused"),
    Event.ACCEPT: _by_id("acceptance.refused", Step("lease.transferred", None, Standing.TRANSFERRED)),
    Event.ACCEPT_UNOFFERED: _by_id("acceptance.refused", _stays("acceptance.refused", refusal.NOT_OFFERED)),
    Event.BREAK: {
        **_TOKEN_STALE,
        Standing.LIVE: Step("lease.broken", None, Standing.BROKEN),
        Standing.BROKEN: Step("break.repeated", None, Standing.BROKEN),
    },
    Event.BREAK_STALE: _TOKEN_STALE,
    Event.BREAK_BY_OTHER: _each("break.refused", refusal.OPERATOR_REQUIRED),
    Event.END_REACHED: {**_each(None, None), Standing.LIVE: Step("lease.expired", None, Standing.EXPIRED)},
    Event.HOLDER_ENDED: {**_each(None, None), Standing.LIVE: Step("lease.returned", None, Standing.RETURNED)},
    Event.HOLIDAY: _each(None, None),
}

LIFECYCLE: Mapping[tuple[Standing, Event], Step] = MappingProxyType(
    {(standing, event): row[standing] for event, row in _ROWS.items() for standing in Standing}
)
