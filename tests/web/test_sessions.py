"""Sessions over HTTP: who opens one, what it may read, who pays for it, and what the lists and figures show."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from keys.signing import SigningKey
from tests.web.test_bearer import AGENTS
from tests.web.test_decisions import check_holds, leaf_of
from tests.web.test_problems import check_problem
from tests.web.world import ORIGIN, Message, World, make, world
from tests.world import StillClock
from verifier.wire import encode_base64

SESSIONS = "/api/v1/acp/sessions"


def opening(place: World, issuer: SigningKey, key: SigningKey, **options: Any) -> Message:
    return place.signed(key, "session.open", delegations=[place.delegation(issuer, key.did, **options).row])


async def test_a_session_opens_acts_and_closes(public: World) -> None:
    agent, key = await public.agent("a"), SigningKey.generate()
    opened = await public.send(opening(public, agent, key, resources=("lock:x/**",)))
    assert (opened.status, opened.json["session"]["did"], opened.json["session"]["agent"]) == (200, key.did, agent.did)
    check_holds(public, opened)
    taken = await public.send(public.signed(key, "lease.acquire", resource="lock:x/1"))
    leaf = leaf_of(taken)
    assert (leaf["actor"], leaf["principal"], leaf["onBehalfOf"]) == (key.did, agent.did, public.operator.did)
    assert taken.json["lease"]["endsIfIdleAtMs"] <= taken.json["lease"]["expiresAtMs"]
    outside = await public.send(public.signed(key, "lease.acquire", resource="lock:y"))
    assert (outside.status, outside.json["error"]) == (403, "outside_scope")
    beat = await public.send(public.signed(key, "session.beat", activity="tests"))
    assert beat.status == 200
    (row,) = (await public.get(SESSIONS)).json["sessions"]
    assert (row["did"], row["agent"], row["onBehalfOf"]) == (key.did, agent.did, public.operator.did)
    assert (row["verbs"], row["scope"], row["activity"]) == (["admit", "lease", "transfer"], ["lock:x/**"], "tests")
    assert row["isShared"] is False and "endedSeq" not in row and row["endsIfIdleAtMs"] <= row["expiresAtMs"]
    closed = await public.ask("a", "session.close", session=key.did)
    assert (closed.status, closed.json["closed"]["leases"]) == (200, 1)
    (row,) = (await public.get(SESSIONS)).json["sessions"]
    assert row["endedSeq"] == leaf_of(closed)["seq"]
    check_problem(await public.send(public.signed(key, "session.beat")), "session_ended", 403, "number")
    assert (await public.acquire("b", "lock:x/1")).status == 200
    public.audit()


async def test_sessions_are_listed_by_agent(public: World) -> None:
    first, second = await public.agent("a"), await public.agent("b")
    keys = [await public.session(issuer) for issuer in (first, second, first)]
    own = await public.session(public.operator)
    for agent, expected in ((first, [keys[0], keys[2]]), (second, [keys[1]]), (own, [own]), (public.operator, [])):
        rows = (await public.get(f"{SESSIONS}?agent={agent.did}")).json["sessions"]
        assert [row["did"] for row in rows] == [key.did for key in expected]
    assert len((await public.get(SESSIONS)).json["sessions"]) == 4
    for query in ("?agent=", "?agent=me", "?holder=me", f"?agent={own.did}&x=1"):
        check_problem(await public.get(SESSIONS + query), "query_malformed", 400)


async def test_of_the_ended_sessions_the_last_ones_are_listed(public: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.web.scenes.ENDED_SESSIONS_MAX", 2)
    agent = await public.agent("a")
    keys = [await public.session(agent) for _ in range(5)]
    for key in (keys[3], keys[0], keys[2]):
        assert (await public.ask("a", "session.close", session=key.did)).status == 200
    expected = [keys[index].did for index in (0, 1, 2, 4)]
    for query in ("", f"?agent={agent.did}"):
        assert [row["did"] for row in (await public.get(SESSIONS + query)).json["sessions"]] == expected


async def test_operators_are_listed_with_the_entries_that_made_and_unmade_them(public: World) -> None:
    other = SigningKey.generate()
    added = leaf_of(await public.ask("op", "operator.add", operator=other.did, name="night"))["seq"]
    removed = leaf_of(await public.ask("op", "operator.remove", operator=other.did))["seq"]
    assert (await public.get("/api/v1/acp/operators")).json["operators"] == [
        {"did": public.operator.did, "addedSeq": 0},
        {"did": other.did, "name": "night", "addedSeq": added, "removedSeq": removed},
    ]
    public.audit()


async def test_a_session_that_nobody_known_began_never_reaches_the_queue(
    public: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reached(*_: object) -> None:
        raise AssertionError("a stranger is turned away at the desk")

    monkeypatch.setattr(public.gateway.house.sequencer, "submit", reached)
    stranger = SigningKey.generate()
    reply = await public.send(opening(public, stranger, SigningKey.generate()))
    check_problem(reply, "issuer_unknown", 403, "number")


async def test_on_a_dev_ledger_no_first_use_opens_a_session_or_changes_what_a_key_is(dev: World) -> None:
    stranger, key = SigningKey.generate(), SigningKey.generate()
    check_problem(await dev.send(opening(dev, stranger, key)), "issuer_unknown", 403, "number")
    as_agent = await dev.send(dev.signed(dev.operator, "lease.acquire", resource="lock:x"))
    check_problem(as_agent, "agent_unknown", 401, "number")
    worker = SigningKey.generate()
    assert (await dev.send(dev.signed(worker, "lease.acquire", resource="lock:x"))).status == 200
    session = await dev.session(worker)
    taken = await dev.send(dev.signed(session, "lease.acquire", resource="lock:y"))
    assert leaf_of(taken)["principal"] == worker.did, "it stays a session"
    rows = (await dev.get(AGENTS)).json["agents"]
    assert [row["did"] for row in rows] == [worker.did]
    dev.audit()


async def test_all_sessions_of_an_agent_share_its_allowance(public: World, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, other = await public.agent("a"), await public.agent("b")
    sessions = [await public.session(agent) for _ in range(2)]
    limiter = public.gateway.house.desk._allowance._limiter
    monkeypatch.setattr(limiter, "_burst", 3.0)
    monkeypatch.setattr(limiter, "_rate_per_s", 0.001)
    for key, left in ((sessions[0], 2), (sessions[1], 1), (agent, 0)):
        reply = await public.send(public.signed(key, "lease.acquire", resource="lock:x"))
        assert reply.headers["ratelimit"] == f'"decisions";r={left}'
    for key in (*sessions, agent):
        check_problem(await public.send(public.signed(key, "lease.acquire", resource="lock:x")), "rate_limited", 429)
    check_problem(await public.send(opening(public, agent, SigningKey.generate())), "rate_limited", 429)
    assert (await public.send(opening(public, other, SigningKey.generate()))).status == 200


async def test_who_lends_through_another_does_not_pay_for_it(public: World) -> None:
    """An operator lets an agent open sessions; the agent's many openings are its own affair."""
    agent, key = await public.agent("a"), SigningKey.generate()
    lent = public.delegation(public.operator, agent.did, may_delegate=True)
    row = public.delegation(agent, key.did, parent=lent).row
    reply = await public.send(public.signed(key, "session.open", delegations=[lent.row, row]))
    assert reply.status == 200, reply.body
    assert leaf_of(reply)["principal"] == agent.did
    limiter: Any = public.gateway.house.desk._allowance._limiter
    assert limiter._levels[agent.did][0] < limiter._burst
    assert key.did not in limiter._levels
    public.audit()


@pytest.fixture
async def still(tmp_path: Path) -> AsyncIterator[World]:
    """A members' ledger whose clock is moved by hand."""
    made = make(tmp_path / "data", is_public=False)
    async with world(tmp_path / "data", made, StillClock(int(time.time() * 1_000))) as found:
        yield found


async def test_a_session_in_force_reads_like_its_agent(still: World) -> None:
    assert still.clock is not None
    agent = await still.agent("a")
    short, closed, orphan = [await still.session(agent, ttl_ms=60_000) for _ in range(3)]
    for key in (short, closed, orphan):
        reply = await still.send(still.signed_read(key, AGENTS))
        assert (reply.status, reply.headers["cache-control"]) == (200, "private, no-store")
    await still.ask("a", "session.close", session=closed.did)
    check_problem(await still.send(still.signed_read(closed, AGENTS)), "session_ended", 403, "number")
    still.clock.advance(60_000)
    check_problem(await still.send(still.signed_read(short, AGENTS)), "session_expired", 403, "number")
    fresh = await still.session(agent)
    await still.ask("op", "agent.remove", agent=agent.did)
    for key, code in ((fresh, "session_ended"), (agent, "agent_removed")):
        check_problem(await still.send(still.signed_read(key, AGENTS)), code, 403, "number")
    still.audit()


async def test_a_removed_operators_agents_read_nothing_until_it_is_back(still: World) -> None:
    other = SigningKey.generate()
    agent = await still.agent("a")
    await still.ask("op", "operator.add", operator=other.did)
    assert (await still.send(still.signed(other, "operator.remove", operator=still.operator.did))).status == 200
    check_problem(await still.send(still.signed_read(agent, AGENTS)), "operator_removed", 403, "number")
    check_problem(await still.send(still.signed_read(still.operator, AGENTS)), "reader_unknown", 403)
    (row,) = (await still.send(still.signed_read(other, AGENTS))).json["agents"]
    assert (row["did"], row["operatorRemovedSeq"], "removedSeq" in row) == (agent.did, row["addedSeq"] + 2, False)
    refused = await still.send(still.signed(agent, "lease.acquire", resource="lock:x"))
    check_problem(refused, "operator_removed", 403, "number")
    assert (await still.send(still.signed(other, "operator.add", operator=still.operator.did))).status == 200
    assert (await still.send(still.signed_read(agent, AGENTS))).status == 200
    still.audit()


async def test_two_processes_with_one_session_key_are_shown(public: World) -> None:
    key = await public.session(await public.agent("a"))
    newest = public.gateway.house.sequencer.confirmed
    anchor = f"{ORIGIN} {newest.size} {encode_base64(newest.root)}"
    now_s = int(time.time())
    assert (await public.send(public.signed(key, "session.beat", anchor=anchor, created_s=now_s))).status == 200
    later = public.signed(key, "session.beat", created_s=now_s + 2)  # which knows nothing of what the other one saw
    shared = leaf_of(await public.send(later))["seq"]
    (row,) = (await public.get(SESSIONS)).json["sessions"]
    assert (row["isShared"], row["sharedSeq"]) == (True, shared)
    families = text_string_to_metric_families(generate_latest(public.gateway.metrics.registry).decode())
    found = {sample.name: sample.value for family in families for sample in family.samples}
    assert found["tallystick_shared_sessions_total"] == 1


async def test_the_figures_count_sessions_and_trials(public: World) -> None:
    agent = await public.agent("a")
    keys = [await public.session(agent) for _ in range(3)]
    await public.ask("a", "session.close", session=keys[0].did)
    trial = await public.trial()
    for _ in range(2):
        await public.send(public.signed(trial, "lease.acquire", resource="lock:x"))
    families = text_string_to_metric_families(generate_latest(public.gateway.metrics.registry).decode())
    found = {sample.name: sample.value for family in families for sample in family.samples}
    figures = [found[f"tallystick_{name}"] for name in ("sessions", "trial_agents", "trial_decisions")]
    assert figures == [2, 1, 2]
