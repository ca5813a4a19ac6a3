"""The commit thread: in order, one at a time, and nobody's absence stops it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from gateway.ledger.worker import Worker


async def test_calls_are_done_in_order_in_one_named_thread() -> None:
    worker = Worker("some-name")
    seen: list[int] = []

    def job(number: int) -> str:
        seen.append(number)
        return threading.current_thread().name

    jobs = [worker.call(partial(job, number)) for number in range(50)]
    assert set(await asyncio.gather(*jobs)) == {"some-name"}
    assert seen == list(range(50))
    worker.shutdown()


async def test_an_exception_goes_to_who_asked_and_the_next_call_is_done() -> None:
    worker = Worker("w")
    with pytest.raises(ZeroDivisionError):
        await worker.call(lambda: 1 // 0)
    assert await worker.call(lambda: 7) == 7
    worker.shutdown()


async def test_a_call_whose_waiter_went_away_is_finished() -> None:
    worker, is_begun, may_go, done = Worker("w"), threading.Event(), threading.Event(), []

    def job() -> None:
        is_begun.set()
        assert may_go.wait(30)
        done.append(1)

    waiter = worker.call(job)
    await asyncio.to_thread(is_begun.wait, 30)
    waiter.cancel()
    may_go.set()
    assert await worker.call(lambda: 8) == 8
    assert done == [1] and waiter.cancelled()
    worker.shutdown()


async def test_a_shutdown_finishes_what_was_handed_over_and_may_be_repeated() -> None:
    worker = Worker("w")
    last = [worker.call(lambda: 1), worker.call(lambda: 2)][-1]
    worker.shutdown()
    worker.shutdown()
    assert await last == 2
    Worker("never begun").shutdown()


def test_a_loop_that_is_gone_does_not_stop_the_thread() -> None:
    worker, may_go = Worker("w"), threading.Event()

    async def leave() -> None:
        worker.call(lambda: may_go.wait(30))

    asyncio.run(leave())
    may_go.set()

    async def again() -> int:
        return await worker.call(lambda: 9)

    assert asyncio.run(again()) == 9
    worker.shutdown()
