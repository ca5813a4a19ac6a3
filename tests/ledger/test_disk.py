"""A disk that fails: nobody is told a wrong cause, and when it is back the gateway goes on without a restart."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.errors import Busy, Fatal
from tests.core.requests import acquire
from tests.world import ENGINES, Engine, World

FILE = "repo:app/src/a.py"


@contextmanager
def no_writes_behind(size: int) -> Iterator[None]:
    """Let every write behind that many bytes of any file fail, as on a broken disk: SQLite sees an I/O error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [32_768, 4_096, 0])
async def test_a_disk_that_fails_is_busy_and_one_that_recovers_goes_on_without_a_restart(
    limit: int, tmp_path: Path
) -> None:
    world = World(tmp_path, "sqlite")
    await world.start()
    asked, size = acquire("A", FILE), len(world.leaves())
    for _ in range(3):
        with no_writes_behind(limit), pytest.raises(Busy) as busy:
            await world.ask(asked)
        assert (busy.value.reason, busy.value.retry_after_s) == ("disk_failing", 5)
        assert len(world.leaves()) == size and world.sequencer.is_ready and not world.sequencer.failed.is_set()
    assert (await world.ask(asked.again())).status == 200
    assert world.types(size) == ["service.started", "lease.holiday", "lease.granted"]
    world.audit()
    await world.stop()


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_batch_that_is_proven_absent_again_and_again_is_busy(engine: Engine, tmp_path: Path) -> None:
    world = World(tmp_path, engine)
    await world.start()
    world.store.plan.extend([("commit", "lost")] * 3)
    with pytest.raises(Busy, match="disk_failing"):
        await world.acquire("A", FILE)
    assert (await world.acquire("A", FILE)).status == 200
    world.audit()
    await world.stop()


async def test_a_start_on_a_failing_disk_is_busy_and_the_next_one_starts(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.stop()
    with pytest.raises(Busy, match="disk_failing"):
        await world.start([("commit", "lost")] * 3)
    await world.start()
    world.audit()
    await world.stop()


async def test_the_text_of_the_end_names_the_last_cause(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    world.store.plan.extend([("commit", "lost"), ("commit", "moved"), ("commit", "moved")])
    with pytest.raises(Fatal, match=r"another gateway writes to it.*planned"):
        await world.acquire("A", FILE)
    await world.stop()


async def test_a_fatal_end_can_be_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    assert not world.sequencer.failed.is_set() and world.sequencer.failure is None
    world.store.plan.append(("commit", "fatal"))
    with pytest.raises(Fatal):
        await world.acquire("A", FILE)
    await world.sequencer.failed.wait()
    assert str(world.sequencer.failure) == "planned"
    await world.stop()


async def test_an_orderly_stop_is_no_failure(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.stop()
    assert not world.sequencer.failed.is_set() and world.sequencer.failure is None
