"""Trial agents: thirty-five entries in seven days, names of their own, short leases, and a view of what is theirs."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keys.signing import SigningKey
from keys.token import digest_of
from tests.web.test_bearer import AGENTS
from tests.web.test_decisions import check_holds, leaf_of
from tests.web.test_problems import check_problem
from tests.web.world import Reply, World, make, world
from tests.world import StillClock

DAY_MS = 86_400_000
QUOTA = "https://iana.org/assignments/http-problem-types#quota-exceeded"
POLICY = '"trial";q=35;w=604800'


@pytest.fixture
async def still(tmp_path: Path) -> AsyncIterator[World]:
    """A members' ledger whose clock is moved by hand."""
    made = make(tmp_path / "data", is_public=False)
    async with world(tmp_path / "data", made, StillClock(int(time.time() * 1_000))) as found:
        yield found


def name_of(key: SigningKey, path: str = "x") -> str:
    return f"trial:{key.did}/{path}"


async def acquire(place: World, key: SigningKey, path: str = "x", **members: Any) -> Reply:
    return await place.send(place.signed(key, "lease.acquire", **{"resource": name_of(key, path), **members}))


async def test_the_36th_entry_of_a_trial_is_refused_without_an_entry_and_every_answer_says_what_is_left(
    still: World,
) -> None:
    key = await still.trial()
    for number in range(35):
        outside = number % 5 == 4  # refusals count too
        reply = await acquire(still, key, resource="lock:x") if outside else await acquire(still, key, str(number))
        assert (reply.status, reply.json.get("error")) == ((403, "outside_scope") if outside else (200, None))
        assert reply.headers["ratelimit-policy"] == POLICY
        assert reply.headers["ratelimit"] == f'"trial";r={34 - number}'
    size = still.gateway.house.sequencer.confirmed.size
    last = await acquire(still, key, "36")
    assert (last.status, last.json["code"], last.json["number"]) == (429, "trial_used_up", 120)
    assert (last.json["type"], last.json["violated-policies"]) == (QUOTA, ["trial"])
    assert last.headers["content-type"] == "application/problem+json"
    assert (last.json["left"], last.headers["ratelimit"]) == (0, '"trial";r=0')
    assert "retry-after" not in last.headers, "nothing refills"
    assert still.gateway.house.sequencer.confirmed.size == size
    still.audit()


async def test_a_batch_that_needs_more_than_is_left_is_told_how_much_that_is(still: World) -> None:
    key = await still.trial()
    for number in range(30):
        await acquire(still, key, str(number))
    commands = [{"action": "lease.release", "resource": name_of(key, str(number))} for number in range(5)]
    dear = await still.send(still.signed(key, "batch.submit", commands=commands))
    assert (dear.status, dear.json["code"], dear.json["left"]) == (429, "trial_used_up", 5)
    assert dear.headers["ratelimit"] == '"trial";r=5'
    last = await still.send(still.signed(key, "batch.submit", commands=commands[:4]))
    assert (last.status, last.headers["ratelimit"]) == (200, '"trial";r=0')
    still.audit()


async def test_a_replay_costs_a_trial_nothing_and_is_answered_after_its_last_entry(still: World) -> None:
    key = await still.trial()
    first = await still.send(
        still.signed(key, "lease.acquire", resource=name_of(key), idempotency_key="once", ttlMs=60_000)
    )
    again = await still.send(
        still.signed(key, "lease.acquire", resource=name_of(key), idempotency_key="once", ttlMs=60_000)
    )
    assert (again.body, again.headers["ratelimit"]) == (first.body, '"trial";r=34')
    for number in range(34):
        await acquire(still, key, str(number))
    assert (await acquire(still, key, "more")).status == 429
    replayed = await still.send(
        still.signed(key, "lease.acquire", resource=name_of(key), idempotency_key="once", ttlMs=60_000)
    )
    assert (replayed.status, replayed.body, replayed.headers["ratelimit"]) == (200, first.body, '"trial";r=0')


async def test_a_trial_ends_after_seven_days_to_the_millisecond(still: World) -> None:
    assert still.clock is not None
    key = await still.trial()
    added_ms = leaf_of(await acquire(still, key))["timeMs"]
    started_ms = still.clock.now_ms()
    assert started_ms == added_ms, "the clock stands"
    still.clock.advance(7 * DAY_MS - 1_000)
    last = await acquire(still, key)
    assert last.status == 200
    left_ms = 7 * DAY_MS - (leaf_of(last)["timeMs"] - added_ms)
    still.clock.advance(left_ms)
    over = await acquire(still, key)
    assert (over.status, over.json["code"], over.json["number"]) == (403, "trial_over", 121)
    still.audit()


async def test_enrolling_again_gives_a_trial_nothing_back(still: World) -> None:
    token, key = await still.token("trial"), SigningKey.generate()
    await still.enrol(token, key)
    for number in range(3):
        await acquire(still, key, str(number))
    await still.ask("op", "agent.remove", agent=key.did)
    assert (await still.enrol(token, key)).status == 200
    assert (await acquire(still, key)).headers["ratelimit"] == '"trial";r=31'
    still.audit()


@pytest.mark.parametrize("ttl_ms", [60_000, 60_001])
async def test_a_trial_lease_is_short(still: World, ttl_ms: int) -> None:
    reply = await acquire(still, await still.trial(), ttlMs=ttl_ms)
    assert (reply.status, reply.json.get("error")) == ((200, None) if ttl_ms == 60_000 else (403, "outside_scope"))


async def test_a_trial_agent_keeps_to_its_own_names(still: World) -> None:
    key, other = await still.trial(), await still.trial()
    for name in ("lock:x", "trial:x", f"trial:{other.did}/x", f"trial:{key.did}x", "trial:**"):
        reply = await acquire(still, key, resource=name)
        assert (reply.status, reply.json["error"]) == (403, "outside_scope"), name
        check_holds(still, reply)
    for name in (f"trial:{key.did}/**", f"trial:{key.did}", f"trial:{key.did}/deep/er/**"):
        assert (await acquire(still, key, resource=name)).status == 200


async def test_a_trial_agent_opens_no_session(still: World) -> None:
    key, session = await still.trial(), SigningKey.generate()
    row = still.delegation(key, session.did).row
    reply = await still.send(still.signed(session, "session.open", delegations=[row]))
    check_problem(reply, "delegation_wider", 403, "number")


RECEIPTS = "/api/v1/acp/ledger/receipts"


async def test_on_a_members_ledger_a_trial_agent_sees_what_is_its_own(still: World) -> None:
    key = await still.trial()
    mine = leaf_of(await acquire(still, key))["seq"]
    theirs = leaf_of(await still.acquire("a", "lock:x"))["seq"]
    trust = "/api/v1/acp/coordination/trust?did="
    seen = [f"{RECEIPTS}/{mine}", "/api/v1/acp/coordination/leases?holder=me", f"{trust}{key.did}"]
    hidden = [
        f"{RECEIPTS}/{theirs}", f"{RECEIPTS}/0", "/main/tile/entries/000.p/1", "/api/v1/acp/coordination/wait", AGENTS,
        f"/api/v1/acp/coordination/leases?holder={still.operator.did}", f"{trust}{still.operator.did}",
        "/api/v1/acp/schemes", "/api/v1/acp/sessions", "/api/v1/acp/operators", "/api/v1/acp/apikeys",
    ]  # fmt: skip
    for target in seen:
        assert (await still.send(still.signed_read(key, target))).status == 200, target
    for target in hidden:
        check_problem(await still.send(still.signed_read(key, target)), "reader_limited", 403)
    for target in ("/main/checkpoint", "/main/tile/0/000.p/1"):
        assert (await still.get(target)).status == 200


async def test_when_its_trial_is_over_an_agent_still_sees_what_it_did(still: World) -> None:
    assert still.clock is not None
    key = await still.trial()
    seq = leaf_of(await acquire(still, key))["seq"]
    still.clock.advance(8 * DAY_MS)
    assert (await still.send(still.signed_read(key, f"{RECEIPTS}/{seq}"))).status == 200


async def test_on_a_public_ledger_a_trial_agent_sees_what_everybody_sees(public: World) -> None:
    key = await public.trial()
    for target in (f"{RECEIPTS}/0", AGENTS):
        assert (await public.send(public.signed_read(key, target))).status == 200


async def test_the_list_of_agents_says_who_is_on_trial(public: World) -> None:
    key = await public.trial()
    (row,) = (await public.get(AGENTS)).json["agents"]
    (entry,) = (await public.get("/api/v1/acp/apikeys")).json["apikeys"]
    assert (row["did"], row["keyDigest"], entry["usedBy"]) == (key.did, entry["keyDigest"], key.did)
    assert abs(row["trialUntilMs"] - public.now_ms - 7 * DAY_MS) < 60_000


async def test_a_revoked_trial_key_enrols_nobody_and_its_agent_goes_on(still: World) -> None:
    token, key = await still.token("trial"), SigningKey.generate()
    await still.enrol(token, key)
    await still.ask("op", "apikey.revoke", keyDigest=digest_of(token))
    assert (await acquire(still, key)).status == 200
    check_problem(await still.enrol(token, key), "token_invalid", 401)
    still.audit()
