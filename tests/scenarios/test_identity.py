"""Who is who: the same key is the same agent, and keeps what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keys.signing import SigningKey
from tests.scenarios.stage import did, kind, member, stage
from tests.web.world import Reply, World, make, world
from verifier.wire import decode_base64

AGENTS = "/api/v1/acp/agents"


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


async def test_the_same_key_registered_twice_is_one_agent(tmp_path: Path) -> None:
    """Scenario 19 (mcp_agent_mail_rust#110): by API keys and by an operator: one key, one identity."""
    async with world(tmp_path / "data", make(tmp_path / "data")) as place:
        key, token = SigningKey.generate(), await place.token()
        first, again = await place.enrol(token, key, name="one"), await place.enrol(token, key, name="one")
        assert (first.status, again.body) == (200, first.body)
        lease = await place.send(place.signed(key, "lease.acquire", resource="repo:x"))
        await place.enrol(await place.token(), key, name="one")
        await place.ask("op", "agent.add", agent=key.did, name="renamed")
        assert [(row["did"], row["name"]) for row in await agents(place)] == [(key.did, "renamed")]
        renewed = place.signed(key, "lease.renew", leaseId=lease.json["lease"]["leaseId"], ttlMs=60_000)
        assert (await place.send(renewed)).status == 200, "what it held, it holds"
        place.audit()


async def test_a_display_name_that_is_taken_is_a_label_and_a_takeover_is_two_acts_on_record(tmp_path: Path) -> None:
    """Scenario 21 (AgentWorkforce/relay#1438): two of one name are two; to take one over needs operators, openly."""
    async with world(tmp_path / "data", make(tmp_path / "data")) as place:
        one, two, other = (SigningKey.generate() for _ in range(3))
        for key in (one, two):
            assert (await place.ask("op", "agent.add", agent=key.did, name="builder")).status == 200
        assert {row["did"] for row in await agents(place) if row["name"] == "builder"} == {one.did, two.did}
        await place.send(place.signed(one, "lease.acquire", resource="repo:x", ttlMs=600_000))
        refused = await place.send(place.signed(two, "lease.acquire", resource="repo:x"))
        assert (refused.status, refused.json["holder"]) == (409, one.did)
        await place.ask("op", "operator.add", operator=other.did)
        grab = await place.send(place.signed(other, "agent.add", agent=one.did))
        assert (grab.status, grab.json["error"]) == (409, "key_taken")
        removed = leaf_of(await place.send(place.signed(other, "agent.remove", agent=one.did)))
        added = leaf_of(await place.send(place.signed(other, "agent.add", agent=one.did)))
        assert (removed["actor"], added["actor"]) == (other.did, other.did)
        granted = leaf_of(await place.send(place.signed(one, "lease.acquire", resource="repo:y")))
        assert granted["onBehalfOf"] == other.did
        place.audit()


async def agents(place: World) -> list[dict[str, Any]]:
    """Return the rows of the list of agents."""
    rows: list[dict[str, Any]] = (await place.get(AGENTS)).json["agents"]
    return rows


def leaf_of(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    leaf: dict[str, Any] = json.loads(decode_base64(reply.json["receipt"]["payload"]))
    return leaf
