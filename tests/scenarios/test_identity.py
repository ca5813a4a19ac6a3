"""Who is who: the same key is the same agent, and keeps what is said of it."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.stage import did, kind, member, stage


async def test_the_same_key_has_the_same_trust_after_a_restart(tmp_path: Path) -> None:
    """Scenario 23 (mcp_agent_mail#140): each change names the one before it, so a history can be followed."""
    async with stage(tmp_path) as scene:
        await scene.acquire("A", "repo:x", ttlMs=1_000)
        await scene.wait(1_000)
        expired = scene.entries("lease.expired")[0]
        assert member(expired, "trust") == [{"did": did("A"), "change": -5_000, "after": 45_000}]
        await scene.world.restart()
        lease = await scene.acquire("A", "repo:y")
        await scene.wait(2_000)
        released = await scene.release("A", lease)
        assert kind(released) == "lease.released"
        gain = {"did": did("A"), "change": 500, "after": 45_500, "previousSeq": expired.seq}
        assert member(released, "trust") == [gain]
