"""Nodes that die, sleep, lose their way, or fight for one name, on a database that is well."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.chaos.size import size
from tests.chaos.stage import Stage, wired
from tests.pg.proxy import Fault, Proxy
from tests.pg.server import ROLE, fresh_database, shared_server

pytestmark = [pytest.mark.postgres, pytest.mark.system]
NODES = 2
LEASE_ENTRY = b'"tallystick/lease.'  # in the batch that is committed: not a barrier, nor signatures
SHORT_TTL_MS = 1_500
SILENT_SECONDS = 3.0


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def staged(folder: Path, stack: AsyncExitStack) -> tuple[Stage, list[Proxy]]:
    """Two nodes, each on a wire of its own, on a database of this scene."""
    database = stack.enter_context(fresh_database()).rpartition("/")[2]
    wires, urls = wired(shared_server(), database, NODES, stack)
    stage = await stack.enter_async_context(Stage(folder, urls))
    return stage, wires


async def test_a_node_is_killed_just_before_or_just_after_it_sent_commit(tmp_path: Path, stack: AsyncExitStack) -> None:
    """Scenarios L21 and L51."""
    stage, wires = await staged(tmp_path, stack)
    rounds = size(2, 40)

    async def scene() -> None:
        for round_ in range(rounds):
            node, wire = stage.nodes[round_ % NODES], wires[round_ % NODES]
            fault = (Fault.CUT_BEFORE_SENT, Fault.CUT_AFTER_SENT)[(round_ + round_ // NODES) % 2]
            await stage.crowd.until(10)
            struck = wire.strike(fault, LEASE_ENTRY, then=node.process.kill)
            assert await asyncio.to_thread(struck.wait, 60), "no commit of this node came"
            await stage.thread(node.kill)
            await stage.crowd.until(10)  # the other node goes on
            await stage.thread(node.start)

    leaves = await stage.play(scene)
    starts = [leaf for leaf in leaves if leaf.type == "tallystick/service.started/1"]
    assert len(starts) >= NODES + rounds


async def test_a_commit_is_done_and_its_acknowledgement_never_comes(tmp_path: Path, stack: AsyncExitStack) -> None:
    """Scenario L51."""
    stage, wires = await staged(tmp_path, stack)
    faults = (Fault.LOSE_ACK, Fault.SWALLOW_ACK, Fault.CUT_AFTER_SENT)

    async def scene() -> None:
        for round_ in range(size(3, 150)):
            wire, fault = wires[round_ % NODES], faults[round_ % len(faults)]
            struck = wire.strike(fault, LEASE_ENTRY)
            assert await asyncio.to_thread(struck.wait, 60), "no commit of this node came"
            await stage.crowd.until(15)  # those that the other node answers
            await stage.ready(stage.nodes[round_ % NODES])

    await stage.play(scene)
    assert all(node.process.returncode is None for node in stage.nodes), "no node fell"


async def test_sessions_are_ended_and_wires_fall_silent(tmp_path: Path, stack: AsyncExitStack) -> None:
    """Scenario L54. A wire that was silent once stays so, as if a router forgot it: another has to be found."""
    stage, wires = await staged(tmp_path, stack)
    ends = f"select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = '{ROLE}'"

    async def scene() -> None:
        for round_ in range(size(2, 50)):
            for _ in range(3):
                await stage.crowd.until(5)
                await stage.thread(lambda: shared_server().sql(ends))
            wire = wires[round_ % NODES]
            wire.freeze()
            await stage.crowd.until(10)
            await asyncio.sleep(SILENT_SECONDS)
            wire.thaw()
            await stage.ready(stage.nodes[round_ % NODES])
            await stage.crowd.until(10)

    await stage.play(scene)
    assert all(node.process.returncode is None for node in stage.nodes), "no node fell"


async def test_a_node_sleeps_for_longer_than_its_leases(tmp_path: Path, stack: AsyncExitStack) -> None:
    """Scenarios L5 and L40. Once with the head of the ledger in its hands, once between two requests."""
    stage, wires = await staged(tmp_path, stack)

    async def scene() -> None:
        for round_ in range(size(2, 60)):
            node, wire = stage.nodes[round_ % NODES], wires[round_ % NODES]
            await stage.crowd.until(10)
            if round_ % 2 == 0:
                asleep = wire.at_begin(node.pause)
                assert await asyncio.to_thread(asleep.wait, 60), "no transaction of this node came"
            else:
                node.pause()
            await asyncio.sleep(2 * SHORT_TTL_MS / 1000)
            await stage.crowd.until(10)  # the other node goes on
            node.resume()
            await stage.crowd.until(10)

    leaves = await stage.play(scene, ttl_ms=SHORT_TTL_MS, agents=10)
    assert any(leaf.type == "tallystick/lease.expired/1" for leaf in leaves), "it slept for long enough"


async def test_many_rounds_on_one_name_over_two_nodes(tmp_path: Path, stack: AsyncExitStack) -> None:
    """Scenario 49."""
    stage, _ = await staged(tmp_path, stack)
    leaves = await stage.play(lambda: stage.crowd.until(size(300, 10_000), 3_600), resources=1, agents=8)
    granted = [leaf for leaf in leaves if leaf.type == "tallystick/lease.granted/1"]
    assert len({leaf.actor for leaf in granted}) > 1
