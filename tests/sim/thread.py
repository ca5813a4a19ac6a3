"""In place of the gateway's commit thread: one call after the other, in virtual time, and a call may wait.

Where several nodes share a ledger, a call of the store waits for a row lock, a stand-by or a dead wire. So it runs in a
thread of its own there, but never beside the loop: whoever hands over stands still until it is handed back to, so that
there is one order of everything.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.errors import Busy

if TYPE_CHECKING:
    from tests.sim.engine import Connection
    from tests.sim.simulation import Simulation

T = TypeVar("T")
Job = tuple[asyncio.Future[Any], Callable[[], Any], int]


class Killed(BaseException):
    """The process is gone: whatever was under way in it goes nowhere."""


class Thread:
    """In place of `gateway.ledger.worker.Worker`."""

    def __init__(self, simulation: Simulation, store: Connection) -> None:
        self._simulation = simulation
        self._store = store
        self._waiting: deque[Job] = deque()
        self._is_busy = False
        self._is_dead = False
        self.handed_over_ms = 0  # true time when the call that is done now was handed over: its log time is of then
        self.frozen_until_ms = 0  # somebody has stopped the process with a signal
        self._begun: Job | None = None
        self._helper: threading.Thread | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._outcome: tuple[bool, Any] | None = None
        self._sleep_s = 0.0
        self._is_asleep = False
        self._timer: asyncio.TimerHandle | None = None

    def call(self, job: Callable[[], T]) -> asyncio.Future[T]:
        loop = self._simulation.loop
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.append((future, job, loop.now_ms))
        if not self._is_busy and not self._is_dead:
            self._is_busy = True
            self._later(self._do)
        return future

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        """Do it after a moment, or when the process goes on."""
        loop = self._simulation.loop
        frozen_s = max(0.0, self.frozen_until_ms / 1_000 - loop.time())
        loop.call_later(frozen_s + self._simulation.engine_delay_s(), call, *args)

    def _do(self) -> None:
        if self._is_dead:
            return
        self._begun = self._waiting.popleft()
        self.handed_over_ms = self._begun[2]
        if self._store.is_shared:
            if self._helper is None:
                self._helper = threading.Thread(target=self._help, daemon=True)
                self._helper.start()
            self._run_helper()
        else:
            self._outcome = _outcome(self._begun[1])
        self._go_on()

    def _go_on(self) -> None:
        if self._is_asleep:
            self._timer = self._simulation.loop.call_later(self._sleep_s, self._resume)
        else:
            self._later(self._hand_back)

    def _hand_back(self) -> None:
        if self._is_dead:
            return
        assert self._begun is not None and self._outcome is not None, "a call has ended"
        (future, _, _), (is_good, outcome) = self._begun, self._outcome
        self._begun = self._outcome = None
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            self._later(self._do)
        if not future.done():
            (future.set_result if is_good else future.set_exception)(outcome)

    # -- waiting inside a call ----------------------------------------------------------------------------------------

    def _run_helper(self) -> None:
        """Let the helper go on, until its call has ended or waits."""
        self._is_asleep = False
        self._go.release()
        self._back.acquire()

    def _help(self) -> None:
        while True:
            self._go.acquire()
            if self._begun is None:
                return
            self._outcome = _outcome(self._begun[1])
            self._back.release()

    def sleep(self, seconds: float) -> None:
        """Wait inside a call until `wake`, or until the time is over. Busy where nobody may wait."""
        if threading.current_thread() is not self._helper:
            raise Busy("nobody may wait here")
        self._sleep_s, self._is_asleep = seconds, True
        self._back.release()
        self._go.acquire()
        if self._is_dead:
            raise Killed

    def wake(self) -> None:
        """Let a call that sleeps go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._simulation.loop.call_later(0, self._resume)

    def _resume(self) -> None:
        self._timer = None
        if not self._is_dead and self._is_asleep:
            self._run_helper()
            self._go_on()

    # -- the end ------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Answer nobody any more; what was handed over may still be done, and later than anybody expects."""
        if self._is_dead:
            return
        self._is_dead = True
        jobs = [job for _, job, _ in self._waiting]
        self._store.abandon(jobs)
        self._end()

    def _end(self) -> None:
        if self._helper is None:
            return
        if self._is_asleep:
            self._run_helper()
        self._begun = None
        self._go.release()
        self._helper.join()
        self._helper = None

    def shutdown(self, wait: bool = True) -> None:
        """End the thread, unless a call waits in it."""
        if self._begun is None:
            self._end()


def _outcome(job: Callable[[], Any]) -> tuple[bool, Any]:
    """Return whether a call went well, and what it returned or raised."""
    try:
        return True, job()
    except BaseException as error:
        return False, error
