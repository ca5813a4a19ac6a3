"""Decisions over HTTP: the seed's shapes, receipts that verify, replays that are the same bytes."""

import asyncio
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from keys.signing import SigningKey
from tests.web.world import Reply, World, make, world
from verifier.receipt import check_receipt
from verifier.wire import decode_base64

LEASE = {"leaseId", "resource", "resources", "holder", "fencingToken", "mode", "ttlMs", "grantedAtMs", "expiresAtMs"}


def leaf_of(reply: Reply) -> Any:
    return orjson.loads(decode_base64(reply.json["receipt"]["payload"]))


def check_holds(place: World, reply: Reply) -> None:
    """Assert that the receipt in an answer verifies under the pinned root, at the level `included`."""
    report = check_receipt(orjson.dumps(reply.json["receipt"]), place.keyring)
    assert report.exit_code == 0, report.as_text()


async def test_a_free_resource_is_granted_in_the_shape_of_the_seed_with_a_receipt_that_verifies(public: World) -> None:
    reply = await public.acquire("a", "lock:deploy/production")
    lease = reply.json["lease"]
    assert (reply.status, set(reply.json), set(lease)) == (200, {"ok", "lease", "receipt"}, LEASE)
    assert reply.json["ok"] is True
    assert (lease["resource"], lease["holder"]) == ("lock:deploy/production", public.agents["a"].did)
    assert lease["expiresAtMs"] == lease["grantedAtMs"] + 30_000
    assert reply.headers["content-type"] == "application/json"
    assert "idempotency-replayed" not in reply.headers
    check_holds(public, reply)


async def test_a_held_resource_is_refused_with_its_holder_and_when_to_come_back(public: World) -> None:
    granted = (await public.acquire("a", "lock:x")).json["lease"]
    reply = await public.acquire("b", "lock:x")
    answer = reply.json
    assert (reply.status, answer["ok"], answer["error"], answer["number"]) == (409, False, "lease_held", 408)
    assert (answer["holder"], answer["holderName"]) == (public.agents["a"].did, "a")
    assert answer["stampede"] == {"admitted": True, "waitMs": 25}
    assert answer["expiresAtMs"] == granted["expiresAtMs"]
    assert answer["conflict"]["fencingToken"] == granted["fencingToken"]
    assert answer["retryAfterMs"] == 25
    assert answer["message"]
    check_holds(public, reply)


async def test_a_refusal_never_says_granted_to_a_careless_reader(public: World) -> None:
    await public.acquire("a", "lock:x")
    assert "lease" not in (await public.acquire("b", "lock:x")).json


async def test_a_retry_gets_the_same_bytes_marked_as_replayed(public: World) -> None:
    first = await public.acquire("a", "lock:x", idempotency_key="k1")
    second = await public.acquire("a", "lock:x", idempotency_key="k1")
    assert (second.status, second.body) == (first.status, first.body)
    assert second.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers


async def test_a_refusal_is_replayed_as_it_was_after_the_lease_is_free(public: World) -> None:
    lease = (await public.acquire("a", "lock:x")).json["lease"]
    refused = await public.acquire("b", "lock:x", idempotency_key="k2")
    holder = await public.agent("a")
    await public.send(public.signed(holder, "lease.release", resource="lock:x", leaseId=lease["leaseId"]))
    again = await public.acquire("b", "lock:x", idempotency_key="k2")
    assert (again.status, again.body) == (refused.status, refused.body)
    assert (await public.acquire("b", "lock:x")).status == 200


async def test_a_replay_has_the_same_bytes_after_a_restart(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as place:
        first = await place.acquire("a", "lock:x", idempotency_key="k3")
        agents = place.agents
    async with world(tmp_path / "data", made) as place:
        place.agents = agents
        second = await place.acquire("a", "lock:x", idempotency_key="k3")
    assert (second.status, second.body) == (first.status, first.body)


async def test_a_client_that_went_away_finds_the_same_receipt_on_retry(public: World) -> None:
    """Scenarios L12, L55: the connection is cut at once; the commit happens all the same, exactly once."""
    key = await public.agent("a")
    size = public.gateway.house.sequencer.confirmed.size
    message = public.signed(key, "lease.acquire", resource="lock:x", idempotency_key="k4")
    host, port = public.gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(message.encode())
    await writer.drain()
    writer.transport.abort()
    retry = await public.acquire("a", "lock:x", idempotency_key="k4")
    third = await public.acquire("a", "lock:x", idempotency_key="k4")
    assert retry.status == 200
    assert third.body == retry.body
    assert public.gateway.house.sequencer.confirmed.size == size + 1
    assert leaf_of(retry)["seq"] == size


async def test_a_set_is_granted_whole_and_released_whole(public: World) -> None:
    key = await public.agent("a")
    names = ["lock:b", "lock:a"]
    granted = await public.send(public.signed(key, "lease.acquire", resources=names))
    assert granted.json["lease"]["resources"] == sorted(names)
    assert "resource" not in granted.json["lease"]
    lease_id = granted.json["lease"]["leaseId"]
    released = await public.send(public.signed(key, "lease.release", resources=names, leaseId=lease_id))
    assert released.status == 200
    assert released.json["released"]["resources"] == sorted(names)
    check_holds(public, released)


async def test_renew_extends_and_a_foreign_renew_is_refused(public: World) -> None:
    lease = (await public.acquire("a", "lock:x", ttlMs=1_000)).json["lease"]
    owner, other = await public.agent("a"), await public.agent("b")
    renewed = await public.send(public.signed(owner, "lease.renew", leaseId=lease["leaseId"], ttlMs=60_000))
    assert renewed.json["lease"]["fencingToken"] == lease["fencingToken"]
    assert renewed.json["lease"]["expiresAtMs"] > lease["expiresAtMs"]
    foreign = await public.send(public.signed(other, "lease.renew", leaseId=lease["leaseId"]))
    assert (foreign.status, foreign.json["error"]) == (403, "lease_not_yours")
    check_holds(public, foreign)


async def test_only_an_operator_enrols(public: World) -> None:
    reply = await public.send(public.signed(await public.agent("a"), "agent.add", agent=SigningKey.generate().did))
    assert (reply.status, reply.json["error"]) == (403, "operator_required")
    check_holds(public, reply)


async def test_fifty_requests_at_once_are_decided_in_few_commits_and_one_gets_the_lease(public: World) -> None:
    keys = [await public.agent(f"w{number}") for number in range(8)]
    size = public.gateway.house.sequencer.confirmed.size
    messages = [public.signed(keys[number % 8], "lease.acquire", resource="lock:x") for number in range(48)]
    replies = await asyncio.gather(*[public.send(message) for message in messages])
    holders = {reply.json["lease"]["holder"] for reply in replies if reply.status == 200}
    assert len(holders) == 1
    assert {reply.status for reply in replies} == {200, 409}
    assert public.gateway.house.sequencer.confirmed.size == size + 48


async def test_on_a_dev_ledger_any_key_that_signs_is_enrolled_by_the_operator(dev: World) -> None:
    key = SigningKey.generate()
    reply = await dev.send(dev.signed(key, "lease.acquire", resource="lock:x"))
    assert reply.status == 200
    check_holds(dev, reply)
    seq = leaf_of(reply)["seq"]
    added = orjson.loads(decode_base64((await dev.get(f"/api/v1/acp/ledger/receipts/{seq - 1}")).json["payload"]))
    assert (added["type"], added["actor"], added["agent"]) == ("tallystick/agent.added/1", dev.operator.did, key.did)


async def test_on_a_dev_ledger_a_removed_key_stays_out(dev: World) -> None:
    key = SigningKey.generate()
    await dev.send(dev.signed(key, "lease.acquire", resource="lock:x"))
    await dev.send(dev.signed(dev.operator, "agent.remove", agent=key.did))
    reply = await dev.send(dev.signed(key, "lease.acquire", resource="lock:y"))
    assert (reply.status, reply.json["code"]) == (403, "agent_removed")


async def test_many_first_uses_of_one_key_enrol_it_once(dev: World) -> None:
    key = SigningKey.generate()
    messages = [dev.signed(key, "lease.acquire", resource=f"lock:{number}") for number in range(12)]
    replies = await asyncio.gather(*[dev.send(message) for message in messages])
    assert [reply.status for reply in replies] == [200] * 12
    assert len((await dev.get("/api/v1/acp/agents")).json["agents"]) == 1


@pytest.mark.parametrize("count", [1, 64, 65])
async def test_the_rate_counts_every_64_resources_as_one_decision(tmp_path: Path, count: int) -> None:
    made = make(tmp_path / "data", rate_per_second=1, rate_burst=2)
    async with world(tmp_path / "data", made) as place:
        key = await place.agent("a")
        asked = [[f"lock:{turn}/{number}" for number in range(count)] for turn in range(3)]
        replies = [await place.send(place.signed(key, "lease.acquire", resources=names)) for names in asked]
        size = place.gateway.house.sequencer.confirmed.size
    passed = 2 if count <= 64 else 1
    left = [reply.headers["ratelimit"] for reply in replies[:passed]]
    assert left == (['"decisions";r=1', '"decisions";r=0'] if count <= 64 else ['"decisions";r=0'])
    assert replies[0].headers["ratelimit-policy"] == '"decisions";q=2;w=2'
    assert [reply.status for reply in replies] == [200] * passed + [429] * (3 - passed)
    assert replies[-1].json["code"] == "rate_limited"
    assert 1 <= int(replies[-1].headers["retry-after"]) <= 2
    assert replies[-1].headers["ratelimit"] == '"decisions";r=0'
    assert size == 4 + passed, "a limited request leaves no entry"


async def test_two_requests_on_one_connection_are_answered_in_order(public: World) -> None:
    key = await public.agent("a")
    first = public.signed(key, "lease.acquire", resource="lock:x").encode().replace(b"close", b"keep-alive")
    second = public.signed(key, "lease.acquire", resource="lock:y").encode()
    host, port = public.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(first + second)
    content = await reader.read()
    writer.close()
    assert content.count(b"HTTP/1.1 200") == 2
    assert content.index(b'"lock:x"') < content.index(b'"lock:y"')


async def test_the_answer_is_sent_by_content_length_and_dated(public: World) -> None:
    reply = await public.acquire("a", "lock:x")
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert abs(parsedate_to_datetime(reply.headers["date"]).timestamp() - time.time()) < 5
