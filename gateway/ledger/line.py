"""The line of waiting commands: bounded, first come first served, with room kept for those who give leases back."""

from __future__ import annotations

import asyncio
from collections import deque
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
    """Commands in order of arrival."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, waiting: Waiting) -> None:
        """Stand in line; Busy when there is no room. A step of the gateway's own may use all of it."""
        is_reserved = waiting.request is None or waiting.request.action in RESERVED_ACTIONS
        if len(self._waiting) >= (QUEUE_MAX if is_reserved else QUEUE_MAX - QUEUE_RESERVED):
            raise Busy("queue_full")
        self._waiting.append(waiting)

    def take(self, limit: int) -> list[Waiting]:
        """Return those at the front, at most `limit`."""
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
