"""Sessions over time: who falls silent gives everything back, once; outages and restarts end nobody too early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.actions import ACTIONS
from gateway.core import refusal
from gateway.core.expiry import EXPIRIES_MAX
from gateway.core.record_codec import encode_record
from gateway.core.record_keys import session_key
from gateway.core.records import Session, Ticket
from gateway.errors import Fatal
from gateway.ledger.sequencer import Refused
from tests.core.requests import (
    ORIGIN,
    Ask,
    acquire,
    add,
    add_operator,
    anchor_text,
    batch,
    beat,
    chain,
    close,
    did_of,
    enrol,
    issue,
    open_session,
    remove,
    remove_operator,
    revoke,
    set_scheme,
)
from tests.world import ENGINES, Engine, Fault, World

IDLE_MS = 120_000
DAY_MS = 86_400_000


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    engine: Engine = request.param
    async with World(tmp_path, engine) as world:
        yield world


async def opened(world: World, agent: str, name: str, *, lives_ms: int = DAY_MS, **members: Any) -> None:
    """Open a session for a day."""
    lent = {"expiresAtMs": world.clock.wall + lives_ms, "notBeforeMs": world.clock.wall - 1_000}
    await world.ask(open_session(name, chain(agent, name, **lent), at_ms=world.clock.wall, **members))


async def say(world: World, make: Any, name: str, *rest: Any, **members: Any) -> Any:
    return await world.ask(make(name, *rest, at_ms=world.clock.wall, **members))


async def later(world: World, ms: int) -> list[str]:
    """Let time pass and return what a tick writes then."""
    world.clock.advance(ms)
    size = len(world.leaves())
    await world.settle()
    return world.types(size)


def session_of(world: World, name: str) -> Session:
    record = world.sequencer.view.get(session_key(did_of(name)))
    assert isinstance(record, Session)
    return record


LEFT = ["session.ended", "wait.removed", "lease.returned", "wait.offered"]


async def left_alone(world: World) -> None:
    """Let session S of A hold lock:1, for which B waits, and wait for lock:2 of C; then nobody hears of it."""
    await opened(world, "A", "S")
    long = {"ttlMs": 3_600_000}
    await world.acquire("S", "lock:1", **long)
    await world.acquire("C", "lock:2", **long)
    await world.acquire("B", "lock:1", wait=True)
    await world.acquire("S", "lock:2", wait=True)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_silent_session_gives_everything_back_once_and_who_waits_is_offered_it(
    engine: Engine, tmp_path: Path
) -> None:
    async with World(tmp_path, engine, session_idle_ms=20_000) as world:
        await left_alone(world)
        assert await later(world, 19_999) == []
        assert await later(world, 1) == LEFT
        ended = world.leaves()[-4]
        assert (ended.text("reason"), ended.number("leases"), ended.number("tickets")) == ("idle", 1, 1)
        assert await later(world, 5_000) == []
        world.audit()


async def test_any_entry_of_its_own_keeps_a_session_alive(world: World) -> None:
    await opened(world, "A", "S")
    for make, rest in ((beat, ()), (acquire, ("lock:1",)), (acquire, ("lock:1",))):
        assert await later(world, IDLE_MS - 1) == []
        await say(world, make, "S", *rest, **({"ttlMs": 3_600_000} if rest else {}))
    await later(world, IDLE_MS - 1)
    await say(world, batch, "S", acquire("S", "lock:2", ttlMs=3_600_000))
    assert await later(world, IDLE_MS - 1) == []
    assert await later(world, 1) == ["session.ended", "lease.returned", "lease.returned"]
    world.audit()


async def test_a_session_that_is_over_ends_though_it_is_heard_of(world: World) -> None:
    lent = {"expiresAtMs": world.clock.wall + 50_000}
    await world.ask(open_session("S", chain("A", "S", **lent), at_ms=world.clock.wall))
    await world.acquire("S", "lock:1", ttlMs=3_600_000)
    await later(world, 49_999)
    await say(world, beat, "S")
    assert await later(world, 1) == ["session.ended", "lease.returned"]
    assert world.leaves()[-2].text("reason") == "expired"
    with pytest.raises(Refused) as refused:
        await say(world, beat, "S")
    assert refused.value.unreceipted.refusal is refusal.SESSION_EXPIRED
    world.audit()


async def test_one_tick_ends_all_sessions_that_are_due(world: World) -> None:
    count = EXPIRIES_MAX + 20
    await asyncio.gather(*(opened(world, "ABC"[n % 3], f"S{n}") for n in range(count)))
    assert await later(world, IDLE_MS) == ["session.ended"] * count
    assert await later(world, 1_000) == []


async def test_many_delays_that_end_without_an_entry_keep_nothing_else_from_ending(world: World) -> None:
    """A batch without entries is not kept, so the next sweep meets the same delays again."""
    await say(world, set_scheme, "op", "doc", "exclusive", lockDelayMs=1_000)
    count = EXPIRIES_MAX + 44
    asked = (acquire("ABC"[n % 3], f"doc:{n}", at_ms=world.clock.wall, ttlMs=1_000) for n in range(count))
    await asyncio.gather(*map(world.ask, asked))
    await world.acquire("A", "lock:1", ttlMs=10_000)
    assert await later(world, 1_000) == ["lease.expired"] * count
    assert await later(world, 1_000) == []
    assert await later(world, 8_000) == ["lease.expired"]


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_after_an_outage_a_session_has_the_holiday_to_be_heard_of(world: World, how: str) -> None:
    await opened(world, "A", "S")
    await opened(world, "B", "Silent")
    await world.acquire("S", "lock:s", ttlMs=3_600_000)
    await world.acquire("Silent", "lock:1", ttlMs=3_600_000)
    await (world.stop() if how == "restart" else world.crash())
    world.clock.advance(IDLE_MS + 60_000)
    await world.start()
    assert await later(world, world.parameters.holiday_ms - 1) == []
    await say(world, beat, "S")
    assert await later(world, 1) == ["session.ended", "lease.returned"]
    assert world.leaves()[-2].value["session"] == did_of("Silent")
    assert await later(world, IDLE_MS) == ["session.ended", "lease.returned"], "the other one, two minutes later"
    world.audit()


@pytest.mark.parametrize("fault", ["lost", "kept", "moved"])
async def test_a_death_whose_commit_is_unclear_happens_once(world: World, fault: Fault) -> None:
    await opened(world, "A", "S")
    await world.acquire("S", "lock:1", ttlMs=3_600_000)
    world.store.plan.append(("commit", fault))
    await later(world, IDLE_MS)
    await later(world, world.parameters.holiday_ms)  # reading the ledger anew may be a holiday
    assert [world.types().count(kind) for kind in ("session.ended", "lease.returned")] == [1, 1]
    await world.restart()
    await later(world, IDLE_MS)
    assert world.types().count("session.ended") == 1
    world.audit()


async def test_a_due_session_does_not_wait_for_a_tick_when_somebody_touches_what_it_holds(world: World) -> None:
    await opened(world, "A", "S")
    await world.acquire("S", "lock:1", ttlMs=3_600_000)
    size = len(world.leaves())
    world.clock.advance(IDLE_MS)
    assert (await world.acquire("B", "lock:1")).status == 200
    assert world.types(size) == ["session.ended", "lease.returned", "lease.granted"]
    world.audit()


async def test_a_parked_claim_is_told_when_a_removal_ends_its_ticket(world: World) -> None:
    await world.acquire("A", "lock:1", ttlMs=3_600_000)
    await opened(world, "B", "S")
    await world.acquire("S", "lock:1", wait=True)
    ((_, ticket),) = world.sequencer.view.scan("ticket/")
    view, parking = world.sequencer.view, world.sequencer.parking
    assert isinstance(ticket, Ticket)
    spot = parking.spot(view, ticket.ticket_id, did_of("S"), world.sequencer.time_ms, 20_000, world.parameters)
    assert spot is not None
    parked = asyncio.create_task(parking.wait(view, spot))
    await asyncio.sleep(0)
    await say(world, remove, "op", "B")
    async with asyncio.timeout(5):
        await parked
    assert world.types(-3) == ["agent.removed", "session.ended", "wait.removed"]
    world.audit()


# -- what is remembered ------------------------------------------------------------------------------------------------


async def test_an_ended_session_is_remembered_until_its_delegation_is_long_over_and_no_longer(world: World) -> None:
    lent = {"expiresAtMs": world.clock.wall + 600_000}
    again = chain("A", "S", **lent)
    await world.ask(open_session("S", again, at_ms=world.clock.wall))
    await say(world, close, "S", "S")
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await say(world, open_session, "S", again)
        assert refused.value.unreceipted.refusal is refusal.SESSION_TAKEN
        await world.restart()
    assert session_of(world, "S").ended_seq is not None
    await later(world, 600_000 + 86_400_000)
    await world.acquire("B", "lock:1")  # log time moves with an entry
    await later(world, 1_000)
    assert world.sequencer.view.get(session_key(did_of("S"))) is None
    await world.restart()
    assert world.sequencer.view.get(session_key(did_of("S"))) is None
    await opened(world, "B", "S")
    assert session_of(world, "S").principal == did_of("B")
    await world.restart()
    world.audit()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("issuer", ["A", "op"])
async def test_how_many_are_remembered_is_the_same_after_a_restart(tmp_path: Path, engine: Engine, issuer: str) -> None:
    async with World(tmp_path, engine, sessions_per_principal=1) as world:
        for number in range(16):
            await opened(world, issuer, f"S{number}", lives_ms=600_000 if number == 0 else 4_200_000)
            await say(world, close, f"S{number}", f"S{number}")
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                await opened(world, issuer, "T")
            assert refused.value.unreceipted.refusal is refusal.TOO_MANY_SESSIONS
            await world.restart()
        await later(world, 600_000 + 86_400_000)
        await world.acquire("B", "lock:1")  # log time moves with an entry
        await later(world, 1_000)
        assert world.sequencer.view.get(session_key(did_of("S0"))) is None
        await world.restart()
        await opened(world, issuer, "T")
        await say(world, close, "T", "T")
        with pytest.raises(Refused) as refused:
            await opened(world, issuer, "U")
        assert refused.value.unreceipted.refusal is refusal.TOO_MANY_SESSIONS
        world.audit()


async def test_the_keys_of_two_sessions_of_one_agent_are_apart(world: World) -> None:
    for name in ("S", "T"):
        await opened(world, "A", name)
    asked = [acquire(name, f"lock:{name}", at_ms=world.clock.wall).but(idempotency_key="same") for name in "AST"]
    answers = [await world.ask(one) for one in asked]
    assert [answer.is_replay for answer in answers] == [False] * 3
    again = [await world.ask(one.again()) for one in asked]
    assert [answer.body() for answer in again] == [answer.body() for answer in answers]
    with pytest.raises(Refused) as refused:
        await world.ask(acquire("S", "lock:x", at_ms=world.clock.wall).but(idempotency_key="same"))
    assert refused.value.unreceipted.refusal is refusal.IDEMPOTENCY_MISMATCH
    world.audit()


async def peopled(world: World) -> None:
    """Let there be operators, API keys, agents on trial and in custody, sessions; some of each are gone."""
    live, trial, spent = (digit * 64 for digit in "123")
    asks: list[Ask] = [
        add_operator("op", "op2", name="Bea"),
        add_operator("op2", "op3"),
        remove_operator("op", "op3"),
        add("op2", "G", agentCustody="gateway"),
        issue("op2", live, "live", name="ci"),
        issue("op2", trial, "trial"),
        issue("op2", spent, "live", agent=did_of("G")),
        revoke("op", spent),
        enrol("H", live),
        enrol("T", trial),
        acquire("T", f"trial:{did_of('T')}/a"),
        remove("op", "C"),
        open_session("S1", chain("op", "A", "S1"), name="night"),
        open_session("S2", chain("op2", "S2", verbs=["lease"], resources=["lock:**"])),
        close("op2", "S2"),
        acquire("S1", "lock:s"),
    ]
    for ask in asks:
        assert (await world.ask(ask)).status == 200, ask.action


async def test_everybody_is_the_same_after_a_restart_and_after_a_crash(world: World) -> None:
    await peopled(world)
    before = {key: record for key, record in world.sequencer.view.scan("") if key != "ledger/holiday"}
    await world.restart()
    await world.crash()
    await world.start()
    assert {key: record for key, record in world.sequencer.view.scan("") if key != "ledger/holiday"} == before
    world.audit()


HIDDEN = [
    ("an agent's removal", f"agent/{did_of('C')}", {"removed_seq": None}),
    ("an API key's end", f"apikey/{'3' * 64}", {"revoked_seq": None}),
    ("a session's end", session_key(did_of("S2")), {"ended_seq": None}),
    ("a session's silence", session_key(did_of("S1")), {"idle_by_ms": 1 << 50}),
    ("what a trial has used", f"quota/{did_of('T')}", {"used": 1}),
]


@pytest.mark.parametrize(("key", "change"), [row[1:] for row in HIDDEN], ids=[row[0] for row in HIDDEN])
async def test_whose_end_is_hidden_from_the_records_is_noticed_by_the_seal(
    key: str, change: dict[str, Any], tmp_path: Path
) -> None:
    world = World(tmp_path)
    await world.start()
    await peopled(world)
    await world.acquire("T", f"trial:{did_of('T')}/b")
    record: Any = world.sequencer.view.get(key)
    edited = record._replace(**change)
    assert edited != record
    await world.stop()
    world.disk.records[key] = (encode_record(edited), None)
    with pytest.raises(Fatal, match="not those that the last batch left"):
        await world.start()


# -- two processes, one key --------------------------------------------------------------------------------------------


async def test_two_processes_that_use_one_key_are_told_apart_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await opened(world, "A", "S")
    entry0 = anchor_text(ORIGIN, 1, world.genesis)
    counters = world.sequencer.counters
    with caplog.at_level(logging.WARNING, "tallystick.sequencer"):
        world.clock.advance(5_000)
        await say(world, beat, "S")
        assert counters.shared_sessions == 0
        for _ in range(3):
            world.clock.advance(5_000)
            stale = beat("S", at_ms=world.clock.wall).but(anchor=entry0)
            await world.sequencer.submit(stale.signed(), ACTIONS["session.beat"])
            await say(world, beat, "S")
    told = [one for one in caplog.records if "two processes use the key" in one.message]
    assert (counters.shared_sessions, len(told)) == (1, 1)
    assert did_of("S") in told[0].message
    assert session_of(world, "S").shared_seq == world.leaves()[-6].seq
    await world.restart()
    world.clock.advance(1_000)
    await say(world, beat, "S")
    assert world.sequencer.counters.shared_sessions == 0, "it was told already"
    world.audit()
