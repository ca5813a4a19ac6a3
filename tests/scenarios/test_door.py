"""A long call, and what a client that cuts calls off meets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.web.limits import BODY_BYTES_MAX
from tests.web.world import AUTHORITY, Message, Reply, World, make, send_raw, world
from verifier.entries import ACTION_PATHS, body_bytes_max
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


BATCH, ENROL, MCP = ACTION_PATHS["batch.submit"], "/api/v1/acp/agents/enrol", "/mcp"


@pytest.mark.parametrize("path", [BATCH, ENROL, MCP, "/mcp/u"])
async def test_a_body_twice_the_bound_is_refused_by_its_size_before_it_is_read(tmp_path: Path, path: str) -> None:
    """Scenario 48 (agentgateway#3578): with its length said, in chunks, and with a length that promises more: each is
    answered by what it is, and never as bad JSON."""
    async with world(tmp_path / "data", make(tmp_path / "data"), body_seconds=1) as place:
        body = b"{" * (2 * BODY_BYTES_MAX)
        fields = (("host", AUTHORITY), ("content-type", "application/json"), ("accept", "application/json"))
        told = await place.send(Message("POST", path, fields, body))
        assert told.status == 413
        assert str(BODY_BYTES_MAX) in told.body.decode().replace(",", "")
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
        chunk = b"4000\r\n" + b"{" * 0x4000 + b"\r\n"
        chunked = f"{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n".encode() + chunk * 8 + b"0\r\n\r\n"
        assert (await send_raw(place.gateway.url, chunked)).status == 413
        lying = f"{head}content-length: 5000\r\nconnection: close\r\n\r\n".encode() + b"{"
        assert (await send_raw(place.gateway.url, lying)).status == 408


async def test_a_batch_may_be_larger_than_other_bodies_and_says_its_bound(tmp_path: Path) -> None:
    """Scenario 48 (supercorp-ai/supergateway#163): no hidden limit; what is over it is told, and nothing is decided."""
    async with world(tmp_path / "data", make(tmp_path / "data")) as place:
        await place.agent("a")
        size = place.gateway.house.sequencer.confirmed.size
        bound = body_bytes_max("batch.submit")
        fits, over = ([command(number, 64) for number in range(200)], [command(number, 200) for number in range(200)])
        assert (await place.ask("a", "batch.submit", commands=fits)).status == 200
        told = await place.ask("a", "batch.submit", commands=over)
        assert (told.status, told.json["code"]) == (413, "body_too_large")
        assert str(bound) in told.json["detail"].replace(",", "")
        assert place.gateway.house.sequencer.confirmed.size == size + 201
        place.audit()


def command(number: int, width: int) -> dict[str, str]:
    return {"action": "lease.acquire", "resource": f"repo:{number:0{width}}"}


def leaf_of(reply: Reply) -> Any:
    return json.loads(decode_base64(reply.json["receipt"]["payload"]))
