"""Stories of the field about outages and clocks: what a restart may and may not do to those who hold something."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.core.requests import renew
from tests.world import ENGINES, Engine, World

HOLDERS = 1_000
TTL_MS = 9_000


async def test_an_outage_under_a_thousand_heartbeating_holders_ends_no_lease(tmp_path: Path) -> None:
    """Scenarios L6, L7 (etcd#8382, #9496): all renew after it; the extension is one entry, not a thousand."""
    world = World(tmp_path, agents=("A",))
    await world.start()
    names = [f"work:item/{number}" for number in range(HOLDERS)]
    await asyncio.gather(*(world.acquire("A", name, ttlMs=TTL_MS) for name in names))
    lease_ids = [leaf.text("leaseId") for leaf in world.leaves() if leaf.type.endswith("lease.granted/1")]
    await world.crash()
    world.clock.advance(60_000)
    size = len(world.leaves())
    await world.start()
    world.clock.advance(1_000)
    await world.settle()
    beats = [renew("A", lease_id, at_ms=world.clock.wall, ttlMs=TTL_MS) for lease_id in lease_ids]
    answers = await asyncio.gather(*(world.ask(beat) for beat in beats))
    assert [answer.status for answer in answers] == [200] * HOLDERS
    assert world.types(size) == ["service.started", "lease.holiday", *["lease.renewed"] * HOLDERS]
    world.audit()
    await world.stop()


@pytest.mark.parametrize("engine", ENGINES)
async def test_after_a_long_outage_a_lease_that_had_ended_is_free_when_the_declared_holiday_is_over(
    engine: Engine, tmp_path: Path
) -> None:
    """Scenario L21 (client-go#448): nobody waits another full ttl, only the holiday, and the entry says until when."""
    world = World(tmp_path, engine)
    await world.start()
    await world.acquire("A", "lock:x", ttlMs=3_600_000)
    await world.stop()
    world.clock.advance(7_200_000)
    await world.start()
    holiday = world.leaves()[-1]
    assert holiday.type == "tallystick/lease.holiday/1"
    assert holiday.number("untilMs") == world.clock.wall + world.parameters.holiday_ms
    assert (await world.acquire("B", "lock:x")).status == 409
    world.clock.advance(world.parameters.holiday_ms)
    assert (await world.acquire("B", "lock:x")).status == 200
    assert world.types(-2) == ["lease.expired", "lease.granted"]
    world.audit()
    await world.stop()
