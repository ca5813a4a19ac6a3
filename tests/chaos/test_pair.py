"""A primary and its synchronous stand-by: either dies, the other is promoted, and nothing that was shown is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.chaos.size import size
from tests.chaos.stage import Stage
from tests.pg.pair import Pair
from tests.pg.server import ROLE

pytestmark = [pytest.mark.postgres, pytest.mark.system]
DATABASE = "ledgers"
WAITING = f"from pg_stat_activity where usename = '{ROLE}' and wait_event = 'SyncRep'"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def staged(folder: Path, stack: AsyncExitStack) -> tuple[Stage, Pair]:
    """Two nodes of a replicated ledger, each with the addresses of both servers."""
    pair = stack.enter_context(Pair())
    pair.primary.add_database(DATABASE)
    stage = await stack.enter_async_context(Stage(folder, [pair.url(DATABASE)] * 2, durability="replicated"))
    return stage, pair


async def fell_over(stage: Stage, pair: Pair) -> None:
    """Promote the stand-by, take the old primary back, and go on."""
    await stage.thread(pair.promote)
    await stage.thread(pair.rejoin)
    await stage.crowd.until(20)


async def test_the_primary_is_killed_under_load(tmp_path: Path, stack: AsyncExitStack) -> None:
    """Scenario L59. Once it comes back by itself, once the stand-by takes over and the old one comes back as such."""
    stage, pair = await staged(tmp_path, stack)

    async def scene() -> None:
        for _ in range(size(1, 20)):
            await stage.crowd.until(20)
            await stage.thread(pair.kill_primary)
            await stage.thread(pair.primary.start)
            await stage.crowd.until(20)
            await stage.thread(pair.kill_primary)
            await fell_over(stage, pair)

    leaves = await stage.play(scene)
    assert any(leaf.type == "tallystick/service.started/1" and leaf.value["isClean"] is False for leaf in leaves)
    assert {leaf.text("durability") for leaf in leaves if leaf.type == "tallystick/lease.granted/1"} == {"replicated"}


async def test_without_its_stand_by_nothing_is_answered_and_later_all_is_found(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """Scenarios L55 and L59."""
    stage, pair = await staged(tmp_path, stack)

    async def scene() -> None:
        for _ in range(size(1, 30)):
            await stage.crowd.until(20)
            await stage.thread(pair.stop_standby)
            await nothing_is_shown(stage, pair, lambda: asyncio.sleep(8))
            assert stage.crowd.statuses[-1] == 503, "who asks hears that it can't be decided now"
            # The node whose commit waits says so; the other one finds the head taken each time it tries.
            assert 503 in [node.ready_status() for node in stage.nodes]
            assert pair.primary.sql(f"select count(*) > 0 {WAITING}") == [(True,)], "nobody cancelled a commit"
            await stage.thread(pair.start_standby)
            await stage.crowd.until(20)

    await stage.play(scene)


async def test_a_commit_that_is_cancelled_while_it_waits_is_shown_to_nobody(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """What it left on the primary is there for everybody to read, and goes with the primary."""
    stage, pair = await staged(tmp_path, stack)

    async def cancel() -> None:
        cancelled = 0
        for _ in range(12):
            await asyncio.sleep(0.5)
            cancelled += len(pair.primary.sql(f"select pg_cancel_backend(pid) {WAITING}"))
        assert cancelled >= 2

    async def scene() -> None:
        for round_ in range(size(2, 30)):
            await stage.crowd.until(20)
            await stage.thread(pair.stop_standby)
            await nothing_is_shown(stage, pair, cancel)
            if round_ % 2:
                await stage.thread(pair.start_standby)
                await stage.thread(pair.await_standby)
                await stage.crowd.until(20)
            else:
                await stage.thread(pair.kill_primary)
                await stage.thread(pair.start_standby)
                await fell_over(stage, pair)

    await stage.play(scene)


async def nothing_is_shown(stage: Stage, pair: Pair, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """From when a commit waits for a stand-by that is away, no answer comes and no published checkpoint grows."""
    await asyncio.to_thread(
        pair.yard.until, lambda: pair.primary.sql(f"select count(*) > 0 {WAITING}") == [(True,)], pair.primary.name
    )
    await asyncio.sleep(0.5)  # what was committed before is answered by now
    answers, sizes = len(stage.crowd.answers), [node.checkpoint_size() for node in stage.nodes]
    await meanwhile()
    assert len(stage.crowd.answers) == answers
    assert [node.checkpoint_size() for node in stage.nodes] == sizes
