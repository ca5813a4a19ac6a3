"""Doing it twice: retries that count once, and gains that count at most so often."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.stage import Stage, did, kind, member, stage
from tests.scenarios.test_sessions import opened
from tests.web.world import make, world


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


async def test_one_key_for_one_intention_of_one_actor(tmp_path: Path) -> None:
    """Scenario 40 (tapir-archicad-MCP#23): same body, the first answer, a refusal too; other body, none; another actor,
    even a session of the same agent, has keys of its own."""
    async with world(tmp_path / "data", make(tmp_path / "data")) as place:
        agent = await place.agent("a")
        keys = [agent, await place.session(agent), await place.agent("b")]
        firsts = [
            await place.send(place.signed(key, "lease.acquire", resource="repo:x", idempotency_key="the-same"))
            for key in keys
        ]
        assert [reply.status for reply in firsts] == [200, 409, 409]
        size = place.gateway.house.sequencer.confirmed.size
        for key, first in zip(keys, firsts, strict=True):
            again = place.signed(key, "lease.acquire", resource="repo:x", idempotency_key="the-same")
            other = place.signed(key, "lease.acquire", resource="repo:y", idempotency_key="the-same")
            assert (await place.send(again)).body == first.body
            mismatch = await place.send(other)
            assert (mismatch.status, mismatch.json["code"]) == (422, "idempotency_mismatch")
        assert place.gateway.house.sequencer.confirmed.size == size
        place.audit()


async def test_many_sessions_earn_no_more_than_their_agent(tmp_path: Path) -> None:
    """Scenario 47 (pact-ax#6): fresh keys are cheap; what they do counts for the agent behind them, gain and loss."""
    async with stage(tmp_path) as scene:
        names = [f"s{number}" for number in range(8)]
        for name in names:
            await opened(scene, "A", name)
        for name in names:
            lease = await scene.acquire(name, f"repo:{name}")
            scene.world.clock.advance(1_000)
            await scene.release(name, lease)
        for name in names[:3]:
            await scene.acquire(name, f"repo:{name}", ttlMs=600_000)
        await scene.wait(120_000)
        changes = trust_of(scene)
        assert {row["did"] for row in changes} == {did("A")}
        assert [row["after"] for row in changes] == [50_500, 51_000, 46_000, 41_000, 36_000]


def trust_of(scene: Stage) -> list[dict[str, object]]:
    """Return every change of trust in the ledger."""
    return [row for leaf in scene.entries() for row in leaf.value.get("trust", ())]  # type: ignore[union-attr, misc]
