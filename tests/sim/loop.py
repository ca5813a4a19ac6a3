"""An asyncio loop without a clock: when nothing is left to do at this moment, the moment becomes the next one.

No socket, no thread, no system call. What runs on it is decided by the order of calls alone, so the same program gives
the same run, to the step. `at_step` is the place for a kill between any two steps.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
from collections.abc import Callable
from typing import Any


class Stalled(AssertionError):
    """Everybody waits for somebody else, and no timer runs: the program hangs."""


class VirtualLoop(asyncio.base_events.BaseEventLoop):
    """Begins at 0 s. `steps` counts the turns so far."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self._now_s = 0.0
        self._selector = self
        self._clock_resolution = 1e-9
        self._hooks: dict[int, list[Callable[[], object]]] = {}
        self.each_turn: Callable[[], object] | None = None

    @property
    def now_ms(self) -> int:
        """Return virtual time in whole ms."""
        return int(self._now_s * 1_000 + 1e-6)

    def time(self) -> float:
        return self._now_s

    def at_step(self, steps: int, call: Callable[[], object]) -> None:
        """Do `call` before the turn that lies `steps` ahead."""
        self._hooks.setdefault(self.steps + max(1, steps), []).append(call)

    def select(self, timeout: float | None) -> list[Any]:
        """Stand in for a selector: nothing ever arrives from outside, time alone passes."""
        self.steps += 1
        if self.each_turn is not None:
            self.each_turn()
        for hook in self._hooks.pop(self.steps, ()):
            hook()
        if self._hooks and timeout != 0 and not self._ready:  # type: ignore[attr-defined]
            for step in sorted(self._hooks):  # an idle loop has no steps to wait for
                for hook in self._hooks.pop(step):
                    hook()
        elif timeout is None:
            raise Stalled("nothing is left that could happen")
        if timeout and not self._ready:  # type: ignore[attr-defined]
            self._now_s += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        assert not events, "nothing arrives from outside"

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""
