"""Lines that move although somebody in them does not."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.stage import Stage, did, kind, kinds, stage

WAITERS = tuple(f"w{number}" for number in range(10))
PATIENCE_MS = 5_000


async def test_after_many_short_waits_the_next_is_served_within_a_claim_window_of_a_dead_head(tmp_path: Path) -> None:
    """Scenario L27 (redisson#1104): no deadline was derived from another ticket, so none has grown."""
    async with stage(tmp_path, agents=("A", *WAITERS)) as scene:
        lease = await scene.acquire("A", "repo:x", ttlMs=60_000)
        for _ in range(120):
            for name in WAITERS:
                await scene.queue(name, "repo:x", giveUpMs=PATIENCE_MS)
            await scene.wait(PATIENCE_MS)
            await scene.renew("A", lease, ttlMs=60_000)
        tickets = [await scene.queue(name, "repo:x") for name in WAITERS[:2]]
        await scene.wait(25_000)
        await scene.claim(WAITERS[1], tickets[1])
        size = scene.size
        await scene.release("A", lease)
        await scene.wait(scene.world.parameters.claim_ms)
        assert kinds(scene.entries(since=size)) == ["lease.released", "wait.offered", "wait.removed", "wait.offered"]
        _, _, removed, offered = scene.entries(since=size)
        assert (removed.text("reason"), offered.text("waiter")) == ("claim_lapsed", did(WAITERS[1]))
        assert kind(await scene.claim(WAITERS[1], tickets[1])) == "lease.claimed"
        furthest_ms = max(leaf.number("giveUpByMs") - leaf.time_ms for leaf in scene.entries("wait.queued"))
        assert furthest_ms <= scene.world.parameters.wait_max_ms
        assert all(leaf.number("pollByMs") - leaf.time_ms == 30_000 for leaf in scene.entries("wait.queued"))


async def two_behind(scene: Stage) -> tuple[str, str]:
    """A holds x for 45 s; of two who wait, the first falls silent."""
    await scene.acquire("A", "repo:x", ttlMs=45_000)
    silent, alive = await scene.queue("B", "repo:x"), await scene.queue("C", "repo:x")
    await scene.wait(25_000)
    assert kind(await scene.claim("C", alive)) == "wait.polled"
    return silent, alive


async def test_a_lease_that_runs_out_without_a_release_goes_to_the_first_who_lives(tmp_path: Path) -> None:
    """Scenario L28 (redisson#2883): no release message ever came; the sweeper ends the lease and offers it at once."""
    async with stage(tmp_path) as scene:
        _, alive = await two_behind(scene)
        size = scene.size
        await scene.wait(20_000 - 1)
        assert "lease.expired" not in kinds(scene.entries(since=size))
        await scene.wait(1)
        assert kinds(scene.entries(since=size)) == ["wait.removed", "lease.expired", "wait.offered"]
        assert scene.entries()[-1].text("waiter") == did("C")
        assert kind(await scene.claim("C", alive)) == "lease.claimed"


async def test_a_poll_finds_the_grant_when_the_wake_up_was_lost(tmp_path: Path) -> None:
    """Scenario L30 (redisson#3891): nobody told C of its offer; its next poll, within pollMs, takes it."""
    async with stage(tmp_path) as scene:
        _, alive = await two_behind(scene)
        await scene.wait(20_000)
        assert kind(scene.entries()[-1]) == "wait.offered"
        await scene.wait(scene.world.parameters.claim_ms - 1)
        claimed = await scene.claim("C", alive)
        assert (kind(claimed), claimed.actor) == ("lease.claimed", did("C"))
