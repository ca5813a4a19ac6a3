"""Who is next: after every entry, those in line for what has changed are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.core.outcome import Context, Decision
from gateway.core.state import Draft, Ticket


def settle(draft: Draft, context: Callable[[], Context]) -> Iterator[Decision]:
    draft.take_stirred()
    return iter(())


def lapse_ticket(draft: Draft, ticket: Ticket, context: Context) -> Decision:
    raise NotImplementedError
