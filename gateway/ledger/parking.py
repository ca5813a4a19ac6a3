"""The place before the line where claims wait until their ticket's turn comes. Nothing of it is durable.

House rules of this file:

* Everything happens on the loop's thread. Who parks is registered first and looks at its ticket afterwards, and what
  the book confirms is told in the same step in which it can be seen: so no wake-up is lost between the two.
* A parked claim is a future in a dictionary. It stands in no line and burns no nonce; who leaves takes all of it along.
* Parking only saves polls. Whether a claim is granted is decided by the core alone, when the claim has stood in line.

Source: docs/protocol.md, waiting; docs/architecture.md, five rooms.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.authority import operator_share
from gateway.core.draft import View
from gateway.core.lookup import counter_at, ticket_at
from gateway.core.parameters import Parameters
from gateway.core.record_keys import HOLIDAY_KEY, ticket_key
from gateway.core.records import Change, Record, Ticket
from gateway.core.resource import end_ms
from gateway.errors import Busy

PARKED_MAX = 512
PARK_MS_MAX = 20_000  # what is left of it when MCP clients (25 s) and proxies (30 s) cut calls
BUSY_RETRY_S = 5


class Draining(Exception):
    """The gateway stops; nothing happened, the ticket keeps its place."""


@dataclass(slots=True)
class Tally:
    """What became of parked claims since the start; read by the metrics."""

    parked: int = 0
    woken: int = 0
    lapsed: int = 0
    left: int = 0


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a claim waits: which ticket, and for how long at most."""

    ticket: Ticket
    hold_ms: int


class Parking:
    """The parked claims, at most one for a ticket. `limit` bounds them all.

    Those of one operator have a quarter of it where there are four operators or more, all of it where there is one.
    """

    def __init__(self, limit: int = PARKED_MAX) -> None:
        self.tally = Tally()
        self._limit = limit
        self._spots: dict[str, asyncio.Future[bool]] = {}  # True: its turn may have come; False: the gateway stops
        self._operators: Counter[str] = Counter()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._spots)

    def spot(self, view: View, ticket_id: str, actor: str, t_ms: int, wait_ms: int, rules: Parameters) -> Spot | None:
        """Return where a claim of `actor` may wait for up to `wait_ms`; None when it is to be decided at once.

        At once: a ticket that is unknown, somebody else's, offered, nearly due for a poll, or has a claim parked here.
        """
        ticket = ticket_at(view, ticket_id)
        hold_ms = min(wait_ms, PARK_MS_MAX, rules.poll_ms // 3)
        if hold_ms <= 0 or ticket is None or ticket.actor != actor or not _is_queued(ticket):
            return None
        poll_by_ms = max(ticket.poll_by_ms, counter_at(view, HOLIDAY_KEY))
        is_due_soon = poll_by_ms - t_ms < rules.poll_ms // 2 or t_ms >= end_ms(view, ticket)
        return None if is_due_soon or ticket_key(ticket_id) in self._spots else Spot(ticket, hold_ms)

    async def wait(self, view: View, spot: Spot) -> None:
        """Return when the ticket was offered or has ended, or the time is over. Busy: no room. Draining: no more."""
        key, operator = ticket_key(spot.ticket.ticket_id), spot.ticket.on_behalf_of
        if self._is_closed:
            raise Draining
        if len(self._spots) >= self._limit or self._operators[operator] >= operator_share(view, self._limit):
            raise Busy("parking_full", BUSY_RETRY_S)
        assert key not in self._spots, "one claim for a ticket"
        turn = self._spots[key] = asyncio.get_running_loop().create_future()
        self._operators[operator] += 1
        self.tally.parked += 1
        try:
            self._look(key, view.get(key))
            async with asyncio.timeout(spot.hold_ms / 1_000):
                is_turn = await turn
            if not is_turn:
                raise Draining
            self.tally.woken += 1
        except TimeoutError:
            self.tally.lapsed += 1
        except asyncio.CancelledError:
            self.tally.left += 1
            raise
        finally:
            del self._spots[key]
            self._operators[operator] -= 1
            if not self._operators[operator]:
                del self._operators[operator]

    # -- what the book tells ------------------------------------------------------------------------------------------

    def tell(self, changes: Iterable[Change]) -> None:
        """Wake whoever waits for a ticket that a confirmed batch offered or ended."""
        if self._spots:
            for key, record, _ in changes:
                self._look(key, record)

    def look_again(self, view: View) -> None:
        """Compare every parked claim with a ledger that was read anew."""
        for key in self._spots:
            self._look(key, view.get(key))

    def wake_all(self) -> None:
        """Send everybody on to the line; there they learn why."""
        for key in self._spots:
            self._look(key, None)

    def close(self) -> None:
        """Tell everybody who waits that the gateway stops, and let nobody in any more."""
        self._is_closed = True
        for turn in self._spots.values():
            if not turn.done():
                turn.set_result(False)

    def _look(self, key: str, record: Record | None) -> None:
        turn = self._spots.get(key)
        if turn is not None and not turn.done() and not (isinstance(record, Ticket) and _is_queued(record)):
            turn.set_result(True)


def _is_queued(ticket: Ticket) -> bool:
    return ticket.claim_by_ms is None
