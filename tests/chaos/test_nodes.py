"""Nodes that die, sleep, or fight for one name, on a database that is well."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.chaos.size import size
from tests.chaos.stage import Stage, wired
from tests.pg.proxy import Fault, Proxy
from tests.pg.server import fresh_database, shared_server

pytestmark = [pytest.mark.postgres, pytest.mark.system]
NODES = 2
LEASE_ENTRY = b'"tallystick/lease.'  # in the batch that is committed: not a barrier, nor signatures


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def staged(folder: Path, stack: AsyncExitStack) -> tuple[Stage, list[Proxy]]:
    """Two nodes, each on a wire of its own, on a database of this scene."""
    database = stack.enter_context(fresh_database()).rpartition("/")[2]
    server = shared_server()
    wires, urls = wired(server, database, NODES, stack)
    stage = Stage(folder, urls)
    await stack.enter_async_context(stage)
    return stage, wires


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE_SENT, Fault.CUT_AFTER_SENT])
async def test_a_node_is_killed_just_before_or_just_after_it_sent_commit(
    tmp_path: Path, stack: AsyncExitStack, fault: Fault
) -> None:
    stage, wires = await staged(tmp_path, stack)

    async def scene() -> None:
        for round_ in range(size(2, 40)):
            at = round_ % NODES
            node = stage.nodes[at]
            await stage.crowd.until(20)
            struck = wires[at].strike(fault, LEASE_ENTRY, then=node.process.kill)
            assert await asyncio.to_thread(struck.wait, 30), "no commit of this node came"
            await stage.thread(node.kill)
            await stage.crowd.until(10)  # the other node goes on
            await stage.thread(node.start)

    leaves = await stage.play(scene)
    starts = [leaf for leaf in leaves if leaf.type == "tallystick/service.started/1"]
    assert len(starts) >= NODES + size(2, 40)


@pytest.mark.parametrize("fault", [Fault.LOSE_ACK, Fault.CUT_AFTER_SENT, Fault.SWALLOW_ACK])
async def test_the_acknowledgement_of_a_commit_is_lost(tmp_path: Path, stack: AsyncExitStack, fault: Fault) -> None:
    stage, wires = await staged(tmp_path, stack)

    async def scene() -> None:
        for round_ in range(size(3, 100)):
            wire = wires[round_ % NODES]
            struck = wire.strike(fault, LEASE_ENTRY)
            assert await asyncio.to_thread(struck.wait, 30), "no commit of this node came"
            await stage.crowd.until(5)  # those that the other node answers
            if fault is Fault.SWALLOW_ACK:
                await stage.crowd.until(20)
                wire.cut()
            await stage.crowd.until(20)

    await stage.play(scene)
