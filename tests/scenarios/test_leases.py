"""Leases that die with their holder, and fences that only rise."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.stage import Stage, did, kind, kinds, stage

TTL_MS = 30_000


async def test_when_heartbeats_stop_the_next_in_line_has_its_offer_within_one_sweep(tmp_path: Path) -> None:
    """Scenarios 4, L45 (gastown#3584): the sweeper judges by nothing but the end that stands in the ledger."""
    async with stage(tmp_path) as scene:
        lease = await scene.acquire("A", "work:item/1", ttlMs=TTL_MS)
        ticket = await scene.queue("B", "work:item/1")
        for _ in range(4):
            await scene.wait(20_000)
            assert kind(await scene.renew("A", lease, ttlMs=TTL_MS)) == "lease.renewed"
            assert kind(await scene.claim("B", ticket)) == "wait.polled"
        size = scene.size
        await scene.wait(TTL_MS - 1)
        await scene.claim("B", ticket)
        assert kinds(scene.entries(since=size)) == ["wait.polled"]
        await scene.wait(1)
        expired, offered = scene.entries(since=size + 1)
        assert (kind(expired), expired.text("holder")) == ("lease.expired", did("A"))
        assert (kind(offered), offered.text("waiter")) == ("wait.offered", did("B"))


async def test_every_new_holding_period_has_a_greater_fence(tmp_path: Path) -> None:
    """Scenario 11 (quill-router#584): after release, expiry, break, transfer, upgrade, turn and restart."""
    async with stage(tmp_path) as scene:
        await scene.scheme("doc", "read-safe")
        lease = await scene.acquire("A", "doc:x", mode="read")
        lease = await scene.renew("A", lease, mode="write")
        token = lease.number("fencingToken")
        await scene.does(
            "A", "lease.transfer", leaseId=lease.text("leaseId"), seenToken=token, toDid=did("B"), reason="shift"
        )
        lease = await scene.does("B", "lease.accept", leaseId=lease.text("leaseId"))
        await scene.release("B", lease)
        lease = await scene.acquire("C", "doc:x", ttlMs=1_000)
        ticket = await scene.queue("A", "doc:x")
        await scene.wait(1_000)
        lease = await scene.claim("A", ticket)
        await break_it(scene, lease.number("fencingToken"))
        await scene.acquire("A", "doc:x")
        await scene.world.restart()
        await scene.acquire("A", "doc:other")
        grants = scene.entries("lease.granted", "lease.changed", "lease.transferred", "lease.claimed")
        tokens = [leaf.number("fencingToken") for leaf in grants]
        assert len(tokens) == 7 and tokens == sorted(set(tokens))


async def break_it(scene: Stage, token: int) -> None:
    leaf = await scene.does("op", "lease.break", resource="doc:x", seenToken=token, reason="stuck")
    assert kind(leaf) == "lease.broken", leaf.value


async def test_the_place_of_a_dead_reader_comes_back(tmp_path: Path) -> None:
    """Scenario L14 (curator#1112): of two who share, one dies; whoever needs it alone waits for its end, not longer."""
    async with stage(tmp_path) as scene:
        await scene.scheme("doc", "read-safe")
        first = await scene.acquire("A", "doc:x", mode="read", ttlMs=60_000)
        await scene.acquire("B", "doc:x", mode="read", ttlMs=5_000)
        ticket = await scene.queue("C", "doc:x", mode="write")
        await scene.release("A", first)
        assert kind(await scene.claim("C", ticket)) == "wait.polled"
        await scene.wait(5_000)
        assert kinds(scene.entries()[-2:]) == ["lease.expired", "wait.offered"]
        assert kind(await scene.claim("C", ticket)) == "lease.claimed"
