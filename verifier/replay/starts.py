"""Starts and the holiday after each: nothing lapses because of an outage.

Source: docs/protocol.md 18.3, 18.4.
"""

from __future__ import annotations

from verifier.entries import Leaf
from verifier.replay.overdue import delay_faults
from verifier.replay.settle import Line
from verifier.replay.state import State
from verifier.replay.things import Faults
from verifier.wire import JsonValue


class Starts:
    """Knows the entry before, and the start whose holiday has not come."""

    __slots__ = ("_started", "_time_ms", "durability")

    def __init__(self) -> None:
        self._time_ms: int | None = None  # of the entry before
        self._started: tuple[int, int, str] | None = None  # a start's seq, the ms before it, its cause
        self.durability: JsonValue = None  # of the entry before

    def __bool__(self) -> bool:
        """Say whether a holiday has to come."""
        return self._started is not None

    def come_to(self, name: str) -> Faults:
        """Nothing stands between a start and its holiday."""
        if name != "lease.holiday":
            yield "holiday_missing", "the entry after service.started is its lease.holiday (18.4)"
            self._started = None

    def leave(self, leaf: Leaf) -> None:
        self._time_ms = leaf.time_ms

    def promise_faults(self, leaf: Leaf) -> Faults:
        """How entries are kept is another promise only from a start on."""
        if self.durability is not None and leaf.entry_type.name != "service.started":
            yield "durability_wrong", "durability changes only at service.started (17.5)"
        self.durability = leaf.value["durability"]

    def start_faults(self, state: State, line: Line, leaf: Leaf) -> Faults:
        """The gap is the log time that passed since the entry before.

        A delay that had ended by then is over; the holiday moves the end of one that the outage met (7.12).
        """
        gap_ms = leaf.time_ms - (leaf.time_ms if self._time_ms is None else self._time_ms)
        state.now_ms -= gap_ms
        state.engine = ""
        yield from delay_faults(state, line)
        state.now_ms = leaf.time_ms
        if leaf.number("gapMs") != gap_ms:
            yield "gap_wrong", f"gapMs is not {gap_ms}, the time since the entry before (18.3)"
        self._started = leaf.seq, leaf.time_ms - gap_ms, leaf.text("cause")

    def holiday_faults(self, state: State, leaf: Leaf) -> Faults:
        """One holiday after each start, as long as the outage and no longer than entry 0 allows."""
        started, self._started = self._started, None
        if started is None or leaf.number("startedSeq") != started[0]:
            yield "citation_wrong", "startedSeq is not the service.started right before (18.4)"
            return
        until_ms = leaf.time_ms + min(state.numbers["holidayMs"], leaf.time_ms - started[1])
        if leaf.number("untilMs") != until_ms:
            yield "holiday_wrong", f"untilMs is not {until_ms}, timeMs + the shorter of holidayMs and the outage (18.4)"
        if leaf.text("reason") != started[2]:
            yield "holiday_wrong", f"reason is not {started[2]}, the cause of the start (18.4)"
        state.holiday_ms = max(state.holiday_ms, until_ms)
