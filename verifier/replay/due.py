"""What is over by time and was not ended: how much there is, and when a gateway can't have done all that it had to.

A gateway ends what is over before the first request of a batch, the oldest first, 256 at a time; a delay ends without
an entry and is counted among these. So what is left over before a request says that so many ended right there, or were
delays: whoever forgets a lease is found at the next request, on whatever names that is.
Source: docs/protocol.md 17.9.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from verifier.entries import Leaf
from verifier.replay.state import State
from verifier.replay.things import Faults

ENDS_MAX = 256  # in one batch
OUTSTANDING_MS = 60_000  # over for longer than that is remarked


class Outstanding(NamedTuple):
    """How many leases, tickets and sessions are over and not ended, and for how long the oldest."""

    how_many: int
    oldest_ms: int


def outstanding(state: State) -> Outstanding:
    """Return what is over as things stand. In a holiday nothing is."""
    now_ms, holiday_ms = state.now_ms, state.holiday_ms
    late = [now_ms - max(end_ms, holiday_ms) for end_ms in _ends(state) if max(end_ms, holiday_ms) <= now_ms]
    return Outstanding(len(late), max(late, default=0))


def _ends(state: State) -> Iterator[int]:
    yield from (lease.end_ms for lease in state.lease.values())
    yield from (ticket.end_ms for ticket in state.ticket.values())
    yield from (session.due_at_ms for session in state.people.open.values())


class Due:
    """Follows when things are over, and how many entries of its own the gateway wrote at each moment before a request.

    `_ends` is a heap of when a thing is over at the earliest, and the seq of the entry that made it. `_delays` is a
    heap of when delays are over; `_unswept` is at most how many of those that are over the gateway may still have to
    look at.
    """

    __slots__ = ("_count", "_delays", "_ends", "_time_ms", "_unswept")

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []
        self._delays: list[int] = []
        self._unswept = 0
        self._time_ms = -1
        self._count = -1  # the gateway's own entries at this moment, -1 after the first request

    def leave(self, state: State, leaf: Leaf) -> None:
        """Take note of what an entry has begun that will be over."""
        end_ms = _end_ms(state, leaf.seq)
        if end_ms is not None:
            heappush(self._ends, (end_ms, leaf.seq))
        if "delayUntilMs" in leaf.value and "grantSeq" in leaf.value:
            heappush(self._delays, leaf.number("delayUntilMs"))

    def come_to(self, time_ms: int, is_request: bool) -> int | None:
        """Move to an entry; at the first request of a moment return how many of its own the gateway wrote before."""
        if time_ms != self._time_ms:
            self._time_ms, self._count = time_ms, 0
        count = self._count
        if count >= 0:
            self._count = -1 if is_request else count + 1
        return count if is_request and count >= 0 else None

    def faults(self, state: State, count: int) -> Faults:
        """Was everything ended that had to be, where the gateway wrote `count` entries before this request?"""
        if state.now_ms < state.holiday_ms:
            return
        while self._delays and self._delays[0] <= state.now_ms:
            heappop(self._delays)
            self._unswept += 1
        seq = self._oldest(state)
        if seq is None and count == 0:  # nothing but delays was over, and then all of them go
            self._unswept = 0
        elif seq is not None and count + self._unswept < ENDS_MAX:
            yield (
                "expiry_overdue",
                f"what entry {seq} began was over, and nothing kept it from being ended first (17.9)",
            )
            heappop(self._ends)
        self._unswept = min(self._unswept, max(0, self._unswept + count - ENDS_MAX))

    def _oldest(self, state: State) -> int | None:
        """Return by its seq what has been over for longest, None when nothing is."""
        while self._ends and self._ends[0][0] <= state.now_ms:
            end_ms = _end_ms(state, self._ends[0][1])
            if end_ms is None:
                heappop(self._ends)
            elif end_ms > state.now_ms:
                heapreplace(self._ends, (end_ms, self._ends[0][1]))
            else:
                return self._ends[0][1]
        return None


def _end_ms(state: State, seq: int) -> int | None:
    """Return when the thing that an entry made is over, None when it was ended."""
    thing = state.lease.get(seq) or state.ticket.get(seq)
    if thing is not None:
        return thing.end_ms
    session = state.people.open.get(seq)
    return None if session is None else session.due_at_ms
