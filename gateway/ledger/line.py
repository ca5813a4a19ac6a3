"""The line of waiting commands: bounded, with room kept for those who give leases back.

Who keeps a lease as it is, or gives one back, and says by its id which, takes little and frees much: it never waits
behind a burst of others. Each of the two kinds is served in order of arrival; while both wait, neither gets more than
half of a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.append import GatewayStep
from gateway.core.decide import ActionDecide
from gateway.core.intake import SignedRequest
from gateway.errors import Busy
from gateway.ledger.history import Answer

QUEUE_MAX = 4_096
QUEUE_RESERVED = QUEUE_MAX // 8  # kept for renew and release, so that an overload never costs anybody a lease
RESERVED_ACTIONS = frozenset({"lease.renew", "lease.release"})


@dataclass(eq=False, slots=True)
class Waiting:
    """One command and who waits for it: a request with what decides it, or a `step` of the gateway itself."""

    future: asyncio.Future[Answer | None]
    request: SignedRequest | None = None
    decide: ActionDecide | None = None
    step: GatewayStep | None = None

    @property
    def is_first(self) -> bool:
        """Say whether it goes before the others. A release by names does not: it may be after what is yet to come."""
        if self.request is None:
            return True
        action, body = self.request.action, self.request.body
        return action in RESERVED_ACTIONS and "leaseId" in body and "mode" not in body

    def answer(self, result: Answer | Exception | None) -> bool:
        """Hand over the result; False when the waiter has gone away, which changes nothing for anybody else."""
        if self.future.done():
            return False
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)
        return True


class Line:
    """Commands in order of arrival, in two rows: those who go first, and the others."""

    __slots__ = ("_first", "_others")

    def __init__(self) -> None:
        self._first: deque[Waiting] = deque()
        self._others: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._first) + len(self._others)

    def join(self, waiting: Waiting) -> None:
        """Stand in line; Busy when there is no room. A step of the gateway's own may use all of it."""
        is_reserved = waiting.request is None or waiting.request.action in RESERVED_ACTIONS
        if len(self) >= (QUEUE_MAX if is_reserved else QUEUE_MAX - QUEUE_RESERVED):
            raise Busy("queue_full")
        self._row(waiting).append(waiting)

    def take(self, limit: int) -> list[Waiting]:
        """Return those at the front, at most `limit`: who goes first, then the others, who get half if they need it."""
        kept = min(len(self._others), limit // 2)
        first = _pop(self._first, limit - kept)
        return first + _pop(self._others, limit - len(first))

    def put_back(self, waiting: Sequence[Waiting]) -> None:
        """Let those who were taken, but not decided, stand at the front again, in their order; there is always room."""
        for one in reversed(waiting):
            self._row(one).appendleft(one)

    def _row(self, waiting: Waiting) -> deque[Waiting]:
        return self._first if waiting.is_first else self._others


def _pop(row: deque[Waiting], limit: int) -> list[Waiting]:
    return [row.popleft() for _ in range(min(limit, len(row)))]
