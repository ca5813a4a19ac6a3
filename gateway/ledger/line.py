"""The line of waiting commands: bounded, with room kept for those who give leases back.

Who keeps a lease as it is, or gives one back, and says by its id which, takes little and frees much: it never waits
behind a burst of others. Each of the two kinds is served in order of arrival; while both wait, neither gets more than
half of a batch. What is counted is commands: many that came as one request take the room of as many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.core.append import GatewayStep
from gateway.core.draft import View
from gateway.core.intake import SignedRequest, weight_of
from gateway.core.outcome import ActionDecide
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
    check: Callable[[View], object] | None = None
    """Raises when, by the records that the request is decided on, the door would turn it away now."""
    weight: int = field(init=False)
    """How many commands it is; they are decided together."""

    def __post_init__(self) -> None:
        self.weight = 1 if self.request is None else weight_of(self.request)

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


class Row:
    """Some of those who wait, in order of arrival; its length is how many commands they are."""

    __slots__ = ("_count", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)
        self._count += waiting.weight

    def put_back(self, waiting: Waiting) -> None:
        self._waiting.appendleft(waiting)
        self._count += waiting.weight

    def take(self, limit: int) -> list[Waiting]:
        """Return those at the front until they are `limit` commands; the last may bring more, for none is divided."""
        taken, count = [], 0
        while self._waiting and count < limit:
            taken.append(self._waiting.popleft())
            count += taken[-1].weight
        self._count -= count
        return taken


class Line:
    """Commands in order of arrival, in two rows: those who go first, and the others."""

    __slots__ = ("_first", "_others")

    def __init__(self) -> None:
        self._first = Row()
        self._others = Row()

    def __len__(self) -> int:
        return len(self._first) + len(self._others)

    def join(self, waiting: Waiting) -> None:
        """Stand in line; Busy when there is no room. A step of the gateway's own may use all of it."""
        is_reserved = waiting.request is None or waiting.request.action in RESERVED_ACTIONS
        if len(self) + waiting.weight > (QUEUE_MAX if is_reserved else QUEUE_MAX - QUEUE_RESERVED):
            raise Busy("queue_full")
        self._row(waiting).append(waiting)

    def take(self, limit: int) -> list[Waiting]:
        """Return those at the front, about `limit` commands: who goes first, then the others, with half if needed."""
        kept = min(len(self._others), limit // 2)
        first = self._first.take(limit - kept)
        return first + self._others.take(limit - sum(one.weight for one in first))

    def put_back(self, waiting: Sequence[Waiting]) -> None:
        """Let those who were taken, but not decided, stand at the front again, in their order; there is always room."""
        for one in reversed(waiting):
            self._row(one).put_back(one)

    def _row(self, waiting: Waiting) -> Row:
        return self._first if waiting.is_first else self._others
