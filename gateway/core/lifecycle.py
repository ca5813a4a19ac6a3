"""The life of one lease as a table: standing × event → step. Code, tests and documents read this one.

`lease.py` and `expiry.py` look their step up here and only then write; a pair that is refused leaves the lease as it
was. A test walks every pair through the public functions and compares.

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
    """How a lease stands. ABSENT: never granted, or ended so long ago that nobody remembers."""

    ABSENT = "no lease"
    LIVE = "live"
    RELEASED = "released"
    EXPIRED = "expired"

    __hash__ = object.__hash__  # a member is its name; the hash of its text takes a call each time


class Event(Enum):
    """What can happen to a lease. "Holder" is who held it last; without a lease the two do not differ."""

    ACQUIRE_BY_HOLDER = "the holder acquires the identical set"
    ACQUIRE_OVERLAP_BY_HOLDER = "the holder acquires an overlapping set"
    ACQUIRE_BY_OTHER = "another acquires"
    RENEW_BY_HOLDER = "the holder renews"
    RENEW_BY_OTHER = "another renews"
    RELEASE_ID_BY_HOLDER = "the holder releases, with leaseId"
    RELEASE_ID_OTHER_SET = "the holder releases, with leaseId and another set"
    RELEASE_ID_BY_OTHER = "another releases, with leaseId"
    RELEASE_BY_HOLDER = "the holder releases, without leaseId"
    RELEASE_SIGNED_EARLY = "the holder releases, without leaseId, signed before the grant"
    RELEASE_BY_OTHER = "another releases, without leaseId"
    END_REACHED = "time reaches the effective end"
    HOLIDAY = "a holiday begins"

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Step:
    """What an event does: the entry it writes (None for nothing), why it is refused, how the lease stands after."""

    entry: str | None
    refusal: Refusal | None
    after: Standing


_ABSENT, _LIVE, _RELEASED, _EXPIRED = Standing
_GRANT = Step("lease.granted", None, _LIVE)
_EXTEND = Step("lease.extended", None, _LIVE)
_RENEW = Step("lease.renewed", None, _LIVE)
_RELEASE = Step("lease.released", None, _RELEASED)
_REPEAT = Step("release.repeated", None, _RELEASED)
_EXPIRE = Step("lease.expired", None, _EXPIRED)


def _held(after: Standing) -> Step:
    return Step("lease.refused", refusal.LEASE_HELD, after)


def _no_renewal(why: Refusal, after: Standing) -> Step:
    return Step("renewal.refused", why, after)


def _no_release(why: Refusal, after: Standing) -> Step:
    return Step("release.refused", why, after)


def _nothing(after: Standing) -> Step:
    return Step(None, None, after)


_NO_RENEWAL_BY_OTHER = tuple(_no_renewal(refusal.LEASE_NOT_YOURS, after) for after in (_LIVE, _RELEASED, _EXPIRED))
_NO_RELEASE_BY_OTHER = tuple(_no_release(refusal.LEASE_NOT_YOURS, after) for after in (_LIVE, _RELEASED, _EXPIRED))
_NEVER_HOLDER = tuple(_no_release(refusal.NOT_HOLDER, after) for after in Standing)
_NOTHING = tuple(_nothing(after) for after in Standing)
_RELEASE_UNKNOWN = _no_release(refusal.LEASE_UNKNOWN, _ABSENT)
_RELEASE_EXPIRED = _no_release(refusal.LEASE_EXPIRED, _EXPIRED)

# One row for each event; its columns are the standings ABSENT, LIVE, RELEASED, EXPIRED.
_ROWS: Mapping[Event, tuple[Step, ...]] = {
    Event.ACQUIRE_BY_HOLDER: (_GRANT, _EXTEND, _GRANT, _GRANT),
    Event.ACQUIRE_OVERLAP_BY_HOLDER: (_GRANT, _GRANT, _GRANT, _GRANT),
    Event.ACQUIRE_BY_OTHER: (_GRANT, _held(_LIVE), _GRANT, _GRANT),
    Event.RENEW_BY_HOLDER: (
        _no_renewal(refusal.LEASE_UNKNOWN, _ABSENT),
        _RENEW,
        _no_renewal(refusal.LEASE_RELEASED, _RELEASED),
        _no_renewal(refusal.LEASE_EXPIRED, _EXPIRED),
    ),
    Event.RENEW_BY_OTHER: (_no_renewal(refusal.LEASE_UNKNOWN, _ABSENT), *_NO_RENEWAL_BY_OTHER),
    Event.RELEASE_ID_BY_HOLDER: (_RELEASE_UNKNOWN, _RELEASE, _REPEAT, _RELEASE_EXPIRED),
    Event.RELEASE_ID_OTHER_SET: (
        _RELEASE_UNKNOWN,
        _no_release(refusal.LEASE_MISMATCH, _LIVE),
        _REPEAT,
        _RELEASE_EXPIRED,
    ),
    Event.RELEASE_ID_BY_OTHER: (_RELEASE_UNKNOWN, *_NO_RELEASE_BY_OTHER),
    Event.RELEASE_BY_HOLDER: (
        _NEVER_HOLDER[0],
        _RELEASE,
        *_NEVER_HOLDER[2:],
    ),
    Event.RELEASE_SIGNED_EARLY: _NEVER_HOLDER,
    Event.RELEASE_BY_OTHER: _NEVER_HOLDER,
    Event.END_REACHED: (_nothing(_ABSENT), _EXPIRE, _nothing(_RELEASED), _nothing(_EXPIRED)),
    Event.HOLIDAY: _NOTHING,
}

LIFECYCLE: Mapping[tuple[Standing, Event], Step] = MappingProxyType(
    {(standing, event): step for event, row in _ROWS.items() for standing, step in zip(Standing, row, strict=True)}
)


def lifecycle_table() -> str:
    """Return the table as Markdown, for docs/protocol.md 7.8."""
    lines = ["| event | " + " | ".join(standing.value for standing in Standing) + " |", "| --- " * 5 + "|"]
    for event in Event:
        cells = (_cell(LIFECYCLE[standing, event]) for standing in Standing)
        lines.append(f"| {event.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(step: Step) -> str:
    if step.refusal is not None:
        return f"refused: `{step.refusal.name}`"
    return f"`{step.entry}`" if step.entry else "–"
