"""What a gateway says while its database has no stand-by: unfit when none is demanded, stalled when it is silent."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from gateway.config import load_settings
from gateway.node_commands import copy_node
from tests.pg.pair import Pair
from tests.web.test_decisions import check_holds, leaf_of
from tests.web.test_problems import check_problem
from tests.web.world import AUTHORITY, Message, Reply, World, make, world

pytestmark = pytest.mark.postgres
SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as found:
        yield found


@pytest.fixture
async def place(pair: Pair, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A public gateway whose receipts say "replicated"."""
    pair.primary.add_database(name := f"d{abs(hash(request.node.name))}")
    made = make(tmp_path / "data", store=pair.url(name), durability="replicated")
    async with world(tmp_path / "data", made, handler_seconds=20) as found:
        yield found


async def until_ready(place: World, status: int) -> Reply:
    """Ask /readyz until it says so."""
    async with asyncio.timeout(SECONDS_MAX):
        while (reply := await place.get("/readyz")).status != status:  # noqa: ASYNC110  # it tells nobody by itself
            await asyncio.sleep(0.1)
    return reply


async def test_receipts_say_that_they_are_replicated(place: World) -> None:
    reply = await place.acquire("a", "lock:x")
    check_holds(place, reply)
    assert leaf_of(reply)["durability"] == "replicated"
    place.audit()


async def test_without_a_demand_for_stand_bys_nothing_is_decided_until_there_is_one_again(
    place: World, pair: Pair
) -> None:
    key = await place.agent("a")
    message = place.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once")
    pair.demand_standby("")
    try:
        refused = await place.send(message)
        check_problem(refused, "store_unfit", 503)
        assert "retry-after" in refused.headers and refused.json["retry"] == "same_request"
        ready = await place.get("/readyz")
        check_problem(ready, "store_unfit", 503)
        assert "synchronous_standby_names" in ready.json["detail"]
        stranger = await place.send(Message("GET", "/readyz", (("host", AUTHORITY), ("via", "1.1 proxy"))))
        assert "standby" not in stranger.json["detail"]
        assert (await place.get("/main/checkpoint")).status == 200
    finally:
        pair.demand_standby()
    await until_ready(place, 200)
    again = await place.send(place.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once"))
    assert again.status == 200
    place.audit()


async def test_a_silent_stand_by_stalls_and_the_same_key_finds_what_was_decided(place: World, pair: Pair) -> None:
    key = await place.agent("a")
    await place.acquire("b", "lock:y")
    size = place.gateway.house.sequencer.confirmed.size
    pair.stop_standby()
    try:
        unknown = await place.send(place.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once"))
        check_problem(unknown, "outcome_unknown", 503)
        assert "Idempotency-Key" in unknown.json["advice"] and unknown.json["retry"] == "same_request"
        check_problem(await place.get("/readyz"), "store_stalled", 503)
        check_problem(await place.acquire("b", "lock:z"), "store_stalled", 503)
        figures = generate_latest(place.gateway.metrics.registry).decode()
        assert "tallystick_store_stalled 1.0" in figures and "tallystick_store_stalls_total 1.0" in figures
        assert 5.0 < place.gateway.house.sequencer.pending_s < SECONDS_MAX
        assert (await place.get("/main/checkpoint")).status == 200
        assert place.gateway.house.sequencer.confirmed.size == size, "nothing unreplicated is shown"
    finally:
        pair.start_standby()
    await until_ready(place, 200)
    again = await place.send(place.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once"))
    assert again.status == 200
    place.audit()


async def test_a_node_that_is_kept_from_the_head_by_a_silent_commit_is_not_ready_either(
    place: World, pair: Pair
) -> None:
    other = place.folder.with_name("other")
    copy_node(place.folder, other, load_settings(place.folder))
    shutil.copytree(place.folder / "operator", other / "operator")
    async with world(other, place.made, handler_seconds=20) as there:
        key = await place.agent("a")
        there.agents = place.agents
        assert (await there.acquire("a", "lock:x")).status == 200
        pair.stop_standby()
        try:
            asked = asyncio.create_task(place.acquire("a", "lock:y"))
            await until_ready(place, 503)
            check_problem(await there.send(there.signed(key, "lease.acquire", resource="lock:z")), "busy", 503)
            check_problem(await until_ready(there, 503), "busy", 503)
            assert "tallystick_ready 0.0" in generate_latest(there.gateway.metrics.registry).decode()
            assert (await there.get("/main/checkpoint")).status == 200
            check_problem(await asked, "outcome_unknown", 503)
        finally:
            pair.start_standby()
        await until_ready(place, 200)
        await until_ready(there, 200)
        assert (await there.acquire("a", "lock:z")).status == 200
        place.audit()
