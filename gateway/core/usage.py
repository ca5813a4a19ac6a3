"""Counts admissions: of each agent, of each operator's agents together, and on each scheme.

Only what is allowed is counted as used, in the transaction that allows it; so a budget is never read before somebody
else has spent it. What was denied is a number of its own. Minutes and days are log time divided by their length: every
auditor cuts them at the same place.

Source: docs/protocol.md 37.6.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.draft import Draft, View
from gateway.core.intake import SignedRequest
from gateway.core.lookup import usage_at
from gateway.core.outcome import Context
from gateway.core.record_keys import usage_key
from gateway.core.records import Usage, UsageOf
from verifier.wire import INT_MAX

MINUTE_MS, DAY_MS = 60_000, 86_400_000


def used(view: Draft | View, of: UsageOf, name: str, t_ms: int) -> Usage:
    """Return what is counted of somebody in the minute and the day of `t_ms`, and ever."""
    return in_windows(usage_at(view, of, name), t_ms)


def in_windows(usage: Usage, t_ms: int) -> Usage:
    """Return what a record counts in the minute and the day of `t_ms`: nothing of those that are over."""
    minute, day = t_ms // MINUTE_MS, t_ms // DAY_MS
    if usage.minute != minute:
        usage = usage._replace(minute=minute, minute_count=0)
    return usage if usage.day == day else usage._replace(day=day, day_count=0, day_cost=0)


def count_allowed(draft: Draft, request: SignedRequest, schemes: Iterable[str], context: Context) -> None:
    """Count one admission with its cost for who asked, for who answers for it, and once on each scheme it touches."""
    cost = request.number("cost")
    whose: list[tuple[UsageOf, str]] = [*_people(request), *(("scheme", name) for name in schemes)]
    for of, name in whose:
        after = counted_by(used(draft, of, name, context.t_ms), cost, context.seq)
        draft.put(usage_key(of, name), after._replace(until_ms=forgotten_at_ms(of, after.day)))


def forgotten_at_ms(of: str, day: int) -> int | None:
    """Return from when on nobody needs to know what was counted on a day; None: it is counted in all as well."""
    return (day + 1) * DAY_MS if of == "scheme" else None


def count_denied(draft: Draft, request: SignedRequest) -> None:
    """Count a denial for who asked and who answers for it; it uses nothing up, and no window moves on by it."""
    for of, name in _people(request):
        before = usage_at(draft, of, name)
        draft.put(usage_key(of, name), before._replace(denied=_sum(before.denied, 1)))


def counted_by(before: Usage, cost: int, seq: int) -> Usage:
    """Return what is counted after the admission of entry `seq`, where `before` is of the windows of its time."""
    return before._replace(
        minute_count=_sum(before.minute_count, 1),
        day_count=_sum(before.day_count, 1),
        day_cost=_sum(before.day_cost, cost),
        total=_sum(before.total, 1),
        total_cost=_sum(before.total_cost, cost),
        seq=seq,
    )


def _people(request: SignedRequest) -> tuple[tuple[UsageOf, str], ...]:
    return ("agent", request.principal), ("operator", request.on_behalf_of)


def _sum(before: int, more: int) -> int:
    """Add up to the largest integer of the wire; a budget that is spent stays spent."""
    return min(INT_MAX, before + more)
