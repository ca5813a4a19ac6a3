"""A cluster that fails over by itself, while many hold leases and send their heartbeats: none of them loses one."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.chaos.size import size
from tests.chaos.stage import Stage
from tests.pg.crowd import Crowd, Member
from tests.pg.patroni_kit import Cluster

pytestmark = [pytest.mark.postgres, pytest.mark.system, pytest.mark.serial]
HOLDERS = size(100, 1_000)
TTL_MS = size(20_000, 60_000)
FIRST = 1_000  # the numbers of holders begin behind those of the crowd


async def hold(crowd: Crowd, number: int, start: asyncio.Semaphore) -> None:
    """Take a lease that nobody else wants, and renew it at a third of its life until the scene is over."""
    async with Member(crowd, FIRST + number) as member:
        async with start:
            answer = await member.ask("lease.acquire", {"resource": f"held:{number}", "ttlMs": TTL_MS})
        lease = answer.receipt.leaf.text("leaseId")
        while not crowd.is_over:
            await asyncio.sleep(TTL_MS / 3_000 * (0.8 + 0.2 * member.chance.random()))
            answer = await member.ask("lease.renew", {"leaseId": lease, "ttlMs": TTL_MS})
            assert not answer.error, f"the lease of holder {number} was lost: {answer.error}"


async def test_no_lease_expires_because_the_database_fails_over(tmp_path: Path) -> None:
    """Scenarios L6, L7, L16 and L59."""
    async with AsyncExitStack() as stack:
        cluster = await asyncio.to_thread(lambda: stack.enter_context(Cluster()))
        url = cluster.add_database("ledgers")
        stage = await stack.enter_async_context(Stage(tmp_path, [url, url], durability="replicated"))

        async def scene() -> None:
            start = asyncio.Semaphore(20)
            async with asyncio.TaskGroup() as group:
                for number in range(HOLDERS):
                    group.create_task(hold(stage.crowd, number, start))
                await stage.crowd.until(HOLDERS, 300)
                for round_ in range(size(1, 6)):
                    await fail_over(stage, cluster, is_whole=round_ % 2 == 0)
                stage.crowd.is_over = True

        leaves = await stage.play(scene, agents=2)
        end = max(answer.receipt.seq for answer in stage.crowd.answers)  # later nobody renews any more
    assert not any(leaf.type == "tallystick/lease.expired/1" for leaf in leaves[:end])
    assert sum(leaf.type == "tallystick/service.started/1" for leaf in leaves) > 2, "the fail-over was noticed"


async def fail_over(stage: Stage, cluster: Cluster, *, is_whole: bool) -> None:
    """Kill the primary, with its Patroni or without, and go on until every holder was heard of twice."""
    leader = await asyncio.to_thread(cluster.await_leader)
    kill = cluster.kill_member if is_whole else cluster.kill_server
    await stage.thread(lambda: kill(leader.name))
    await stage.thread(lambda: cluster.await_leader(but=leader.name))
    await stage.crowd.until(2 * HOLDERS, 300)
    if is_whole:
        cluster.start(leader.name)
    await stage.thread(cluster.await_health)
