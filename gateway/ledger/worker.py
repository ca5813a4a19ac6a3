"""One named thread that does blocking calls for the loop, one after the other.

An executor does the same at more than twice the cost of a hand-over (25 µs here, and a batch needs two): it makes a
future of its own for each call, with a lock and a condition, and copies its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_Job: TypeAlias = tuple[asyncio.Future[Any], Callable[[], Any]]


class Worker:
    """Begins with the first call, ends with `shutdown`. A call that was begun is finished, whoever waits for it.

    The thread is a daemon: a process that ends without `shutdown` has crashed, and a store outlives that.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def call(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Return the future of what `job` returns or raises in the thread."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._thread.ident is None:
            self._thread.start()
        self._jobs.put((future, job))
        return future

    def shutdown(self, wait: bool = True) -> None:
        """Finish what was handed over, and end the thread. May be called twice."""
        if self._thread.ident is not None:
            self._jobs.put(None)
            if wait:
                self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            _do(*job)
            del job  # what the last call held must not live until the next one


def _do(future: asyncio.Future[T], job: Callable[[], T]) -> None:
    try:
        result = job()
    except BaseException as error:
        _hand_back(future, future.set_exception, error)
    else:
        _hand_back(future, future.set_result, result)


def _hand_back(future: asyncio.Future[T], settle: Callable[[Any], None], outcome: T | BaseException) -> None:
    """Settle the future on its loop, unless whoever waited, or the loop itself, has gone away."""

    def unless_gone() -> None:
        if not future.done():
            settle(outcome)

    try:
        future.get_loop().call_soon_threadsafe(unless_gone)
    except RuntimeError:  # the loop is closed: nobody is left who could be told
        return
