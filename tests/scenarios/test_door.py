"""A long call, and what a client that cuts calls off meets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.web.world import Reply, World, make, world
from verifier.wire import decode_base64


async def test_a_long_wait_is_cut_short_and_ends_at_once_when_there_is_news(tmp_path: Path) -> None:
    """Scenario 39 (jwbron/egg#2211): asked for a minute, the door keeps it for a third of pollMs and says so."""
    made = make(tmp_path / "data", poll_ms=3_000)
    async with world(tmp_path / "data", made) as scene:
        held = leaf_of(await scene.acquire("A", "repo:x"))
        queued = leaf_of(await scene.acquire("B", "repo:x", wait=True))
        polled = await claim(scene, queued["ticketId"])
        assert (polled.status, leaf_of(polled)["type"]) == (202, "tallystick/wait.polled/1")
        assert polled.headers["preference-applied"] == "wait=1"
        waiting = asyncio.create_task(claim(scene, queued["ticketId"]))
        giving = scene.signed(scene.agents["A"], "lease.release", resource="repo:x", leaseId=held["leaseId"])
        assert (await scene.send(giving)).status == 200
        claimed = await waiting
        assert (claimed.status, leaf_of(claimed)["type"]) == (200, "tallystick/lease.claimed/1")


async def claim(scene: World, ticket_id: str) -> Reply:
    asked = scene.signed(await scene.agent("B"), "wait.claim", ticketId=ticket_id)
    return await scene.send(asked.adding("prefer", "wait=60"))


def leaf_of(reply: Reply) -> Any:
    return json.loads(decode_base64(reply.json["receipt"]["payload"]))
