"""Doing it twice: retries that count once, and gains that count at most so often."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.stage import Stage, did, kind, member, stage


async def test_a_retry_of_a_wait_has_the_same_place_in_line(tmp_path: Path) -> None:
    """Scenarios 40, L12 (ZOOKEEPER-1262): queued, answer lost, asked again: the same bytes and one ticket."""
    async with stage(tmp_path) as scene:
        await scene.acquire("A", "repo:x")
        asked = scene.request("B", "lease.acquire", resource="repo:x", wait=True)
        first, again = await scene.world.ask(asked), await scene.world.ask(asked.again())
        assert (again.is_replay, again.status, again.leaf) == (True, 202, first.leaf)
        assert len(scene.entries("wait.queued")) == 1
        refused = await scene.acquire("B", "repo:x", wait=True)
        ticket = scene.entries("wait.queued")[0].text("ticketId")
        assert (refused.text("error"), refused.text("ticketId")) == ("already_waiting", ticket)


async def test_trust_can_not_be_farmed_by_empty_pairs(tmp_path: Path) -> None:
    """Scenario 47 (CraftNexus#939): after an abandoned lease ten empty pairs earn nothing, ten short ones little."""
    async with stage(tmp_path) as scene:
        await scene.acquire("A", "repo:left", ttlMs=1_000)
        await scene.wait(1_000)
        assert await pairs(scene, hold_ms=0) == []
        assert await pairs(scene, hold_ms=1_000) == [45_500, 46_000]
        await scene.wait(3_600_000)
        assert await pairs(scene, hold_ms=1_000) == [46_500, 47_000]
        rows = [row for leaf in scene.entries() for row in leaf.value.get("trust", ())]  # type: ignore[union-attr]
        assert sum(row["change"] for row in rows) == 47_000 - 50_000  # type: ignore[call-overload, index, misc]


async def pairs(scene: Stage, hold_ms: int) -> list[int]:
    """Take and give back ten times; return the trust after each change."""
    size = scene.size
    for _ in range(10):
        lease = await scene.acquire("A", "repo:x")
        scene.world.clock.advance(hold_ms)
        assert kind(await scene.release("A", lease)) == "lease.released"
    released = [leaf for leaf in scene.entries(since=size) if "trust" in leaf.value]
    assert all(member(leaf, "trust", 0, "did") == did("A") for leaf in released)
    return [member(leaf, "trust", 0, "after") for leaf in released]
