"""Tickets in the real sequencer and stores: offers, wake-ups, restarts, faults; each scene ends before the verifier.

Claims are parked here as the desk parks them, without HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core.lookup import counter_at, ticket_at
from gateway.core.record_keys import TICKETS_KEY
from gateway.core.records import Ticket
from gateway.errors import Busy, Fatal
from gateway.ledger import line
from gateway.ledger.history import Answer
from gateway.ledger.parking import Draining
from tests.core.requests import break_, cancel, claim, release
from tests.ledger.test_sequencer import Gate, outcome
from tests.world import ENGINES, Engine, World

FILE = "repo:app/src/a.py"
LONG_MS = 60_000


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    engine: Engine = request.param
    async with World(tmp_path, engine) as world:
        yield world


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as world:
        yield world


def leaf_of(answer: Answer) -> dict[str, Any]:
    leaf: dict[str, Any] = orjson.loads(answer.leaf)
    return leaf


async def queue(world: World, name: str, *resources: str, **members: Any) -> str:
    answer = await world.acquire(name, *resources, wait=True, **members)
    assert answer.status == 202, answer.leaf
    return str(leaf_of(answer)["ticketId"])


def ticket_of(world: World, ticket_id: str) -> Ticket:
    ticket = ticket_at(world.sequencer.view, ticket_id)
    assert ticket is not None
    return ticket


async def claim_parked(world: World, name: str, ticket_id: str, wait_ms: int = LONG_MS) -> Answer:
    """Do what the desk does with a claim whose client has patience."""
    sequencer = world.sequencer
    asked = claim(name, ticket_id, at_ms=world.clock.wall)
    spot = sequencer.parking.spot(
        sequencer.view, ticket_id, asked.key.did, sequencer.time_ms, wait_ms, world.parameters
    )
    if spot is not None:
        await sequencer.parking.wait(sequencer.view, spot)
    return await world.ask(asked)


async def park(world: World, name: str, ticket_id: str) -> asyncio.Task[Answer]:
    """Return when the claim is parked."""
    before = len(world.sequencer.parking)
    task = asyncio.create_task(claim_parked(world, name, ticket_id))
    while len(world.sequencer.parking) == before:  # noqa: ASYNC110  # turns of the loop, no time passes
        await asyncio.sleep(0)
    return task


async def granted(task: asyncio.Task[Answer], ticket_id: str) -> dict[str, Any]:
    """Return the leaf of a claim that was granted, long before its patience is over."""
    async with asyncio.timeout(5):
        leaf = leaf_of(await task)
    assert (leaf["type"], leaf["ticketId"]) == ("tallystick/lease.claimed/1", ticket_id)
    return leaf


# -- whose turn it is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["release", "expiry", "break"])
async def test_whatever_ends_the_lease_the_next_in_line_is_offered_it_in_the_same_batch(world: World, end: str) -> None:
    """Scenarios 3, L15, L28."""
    held = leaf_of(await world.acquire("A", FILE, ttlMs=5_000))
    ticket_id = await queue(world, "B", FILE)
    waiting, batches = await park(world, "B", ticket_id), world.sequencer.counters.batches
    if end == "release":
        await world.ask(release("A", FILE))
    elif end == "break":
        await world.ask(break_("op", FILE, held["fencingToken"]))
    else:
        world.clock.advance(5_000)
        await world.settle()
    assert (await granted(waiting, ticket_id))["fencingToken"] > held["fencingToken"]
    assert world.sequencer.counters.batches == batches + 2
    ended = {"release": "lease.released", "expiry": "lease.expired", "break": "lease.broken"}[end]
    assert world.types(8) == [ended, "wait.offered", "lease.claimed"]
    world.audit()


async def test_fifty_in_line_are_served_one_by_one_in_order(tmp_path: Path) -> None:
    """Scenarios 32, 33: whoever claims first, the lowest number goes first, and one release wakes one."""
    names = [f"W{number:02}" for number in range(50)]
    async with World(tmp_path, agents=["A", *names]) as world:
        held = leaf_of(await world.acquire("A", FILE))
        tickets = {name: await queue(world, name, FILE) for name in names}
        tasks = {name: await park(world, name, tickets[name]) for name in reversed(names)}
        holder = "A"
        for number, name in enumerate(names, 1):
            await world.ask(release(holder, FILE, leaseId=held["leaseId"]))
            held, holder = await granted(tasks[name], tickets[name]), name
            assert (world.sequencer.parking.tally.woken, len(world.sequencer.parking)) == (number, 50 - number)
        types = world.types()
        assert (types.count("wait.queued"), types.count("wait.offered"), types.count("wait.polled")) == (50, 50, 0)
        assert counter_at(world.sequencer.view, TICKETS_KEY) == 0
        world.audit()


async def test_an_acquire_by_anybody_else_never_goes_before_the_line(world: World) -> None:
    """Scenario 33: the faster poller does not win."""
    await world.acquire("A", FILE)
    ticket_id = await queue(world, "B", FILE)
    await world.ask(release("A", FILE))
    for name in "AC":
        refused = await world.acquire(name, FILE)
        assert (refused.status, leaf_of(refused)["error"]) == (409, "queued")
    await granted(asyncio.create_task(claim_parked(world, "B", ticket_id)), ticket_id)
    world.audit()


async def test_who_never_comes_back_is_skipped_however_many_they_are(world: World) -> None:
    """Scenarios L2, L27: absolute deadlines; the one who polls is served in the batch that ends the others."""
    await world.acquire("A", FILE, ttlMs=60_000)
    dead = [await queue(world, name, FILE) for name in "BC"]
    world.clock.advance(30_000)
    await world.settle()
    assert world.types(9) == ["wait.removed", "wait.removed"]
    assert [leaf.value["reason"] for leaf in world.leaves()[9:]] == ["poll_lapsed"] * 2
    for name, ticket_id in zip("BC", dead, strict=True):
        ended = await world.ask(claim(name, ticket_id, at_ms=world.clock.wall))
        assert (ended.status, leaf_of(ended)["error"]) == (409, "ticket_ended")
    world.audit()


async def test_a_parked_claim_of_a_ticket_that_lapses_is_told_so(world: World) -> None:
    await world.acquire("A", FILE, ttlMs=600_000)
    ticket_id = await queue(world, "B", FILE, giveUpMs=5_000)
    waiting = await park(world, "B", ticket_id)
    world.clock.advance(5_000)
    await world.settle()
    async with asyncio.timeout(5):
        assert leaf_of(await waiting)["error"] == "ticket_ended"
    world.audit()


async def test_an_offer_that_nobody_claims_goes_to_the_next(world: World) -> None:
    """Scenario L2: the head of the line is gone; its claim window is absolute."""
    await world.acquire("A", FILE)
    first, second = await queue(world, "B", FILE), await queue(world, "C", FILE)
    world.clock.advance(20_000)
    await world.ask(claim("B", first, at_ms=world.clock.wall))
    await world.ask(claim("C", second, at_ms=world.clock.wall))
    waiting = await park(world, "C", second)
    await world.ask(release("A", FILE, at_ms=world.clock.wall))
    claim_by_ms = ticket_of(world, first).claim_by_ms
    assert claim_by_ms == world.clock.wall + 30_000, "not before the next poll of an honest waiter"
    world.clock.advance(29_999)
    await world.settle()
    assert not waiting.done()
    waiting.cancel()
    await outcome(waiting)
    await world.ask(claim("C", second, at_ms=world.clock.wall))
    world.clock.advance(1)
    await world.settle()
    late = await world.ask(claim("B", first, at_ms=world.clock.wall))
    assert leaf_of(late)["error"] == "ticket_ended"
    await granted(asyncio.create_task(claim_parked(world, "C", second)), second)
    world.audit()


# -- no wake-up is lost ------------------------------------------------------------------------------------------------


async def test_a_claim_that_parks_while_its_offer_is_being_committed_is_woken(world: World) -> None:
    """Scenario L30: the release is decided, not yet to be seen; who parks now must learn of it."""
    await world.acquire("A", FILE)
    ticket_id = await queue(world, "B", FILE)
    gate = Gate(world)
    releasing = asyncio.create_task(world.ask(release("A", FILE)))
    await gate.reached.wait()
    assert ticket_of(world, ticket_id).claim_by_ms is None
    waiting = await park(world, "B", ticket_id)
    gate.open()
    await releasing
    await granted(waiting, ticket_id)
    world.audit()


@pytest.mark.parametrize("fault", ["moved", "lost", "kept"])
async def test_a_batch_that_had_to_be_found_out_about_wakes_whoever_it_offers(world: World, fault: Any) -> None:
    """Scenario L51."""
    await world.acquire("A", FILE)
    ticket_id = await queue(world, "B", FILE)
    waiting = await park(world, "B", ticket_id)
    world.store.plan.append(("commit", fault))
    await world.ask(release("A", FILE))
    await granted(waiting, ticket_id)
    world.audit()


async def test_a_ledger_read_anew_wakes_nobody_without_reason(world: World) -> None:
    await world.acquire("A", FILE)
    ticket_id = await queue(world, "B", FILE)
    waiting = await park(world, "B", ticket_id)
    world.store.plan.append(("lock", "moved"))
    await world.acquire("C", "lock:c")
    await asyncio.sleep(0)
    assert (world.sequencer.counters.recoveries, waiting.done()) == (1, False)
    await world.ask(release("A", FILE))
    await granted(waiting, ticket_id)
    world.audit()


async def test_who_is_parked_when_the_gateway_fails_is_told_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.acquire("A", FILE)
    ticket_id = await queue(world, "B", FILE)
    waiting = await park(world, "B", ticket_id)
    world.store.plan.append(("commit", "fatal"))
    with pytest.raises(Fatal):
        await world.acquire("C", "lock:c")
    async with asyncio.timeout(5):
        assert isinstance(await outcome(waiting), Fatal)
    await world.restart()
    await world.ask(release("A", FILE))
    await granted(asyncio.create_task(claim_parked(world, "B", ticket_id)), ticket_id)
    world.audit()
    await world.stop()


# -- stops and starts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False])
async def test_who_waits_keeps_place_and_deadlines_over_a_restart(world: World, is_clean: bool) -> None:
    """Scenarios 18, 45, L21: as for leases, an outage costs nobody the place."""
    await world.acquire("A", FILE)
    tickets = {name: await queue(world, name, FILE) for name in "BC"}
    before = {name: ticket_of(world, tickets[name]) for name in "BC"}
    if is_clean:
        waiting = await park(world, "B", tickets["B"])
        await world.stop()
        assert isinstance(await outcome(waiting), Draining)
    else:
        await world.crash()
    world.clock.advance(40_000)
    await world.start()
    assert {name: ticket_of(world, tickets[name]) for name in "BC"} == before
    await world.settle()
    assert "wait.removed" not in world.types(), "the holiday keeps tickets too"
    await world.ask(release("A", FILE, at_ms=world.clock.wall))
    leaf = await granted(asyncio.create_task(claim_parked(world, "B", tickets["B"])), tickets["B"])
    await world.ask(release("B", FILE, at_ms=world.clock.wall, leaseId=leaf["leaseId"]))
    await granted(asyncio.create_task(claim_parked(world, "C", tickets["C"])), tickets["C"])
    world.audit()


async def test_a_stop_hangs_on_nobody_and_lets_nobody_park(memory: World) -> None:
    await memory.acquire("A", FILE)
    tickets = {name: await queue(memory, name, FILE) for name in "BC"}
    waiting = await park(memory, "B", tickets["B"])
    async with asyncio.timeout(5):
        await memory.stop()
        assert isinstance(await outcome(waiting), Draining)
    assert isinstance(await outcome(claim_parked(memory, "C", tickets["C"])), Draining)


# -- the line of commands ----------------------------------------------------------------------------------------------


async def test_parked_claims_take_no_room_in_the_line_and_claims_none_of_the_reserve(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario L34: however many poll and wait, who holds can give back."""
    monkeypatch.setattr(line, "QUEUE_MAX", 8)
    monkeypatch.setattr(line, "QUEUE_RESERVED", 2)
    held = leaf_of(await memory.acquire("A", FILE))
    first, second = await queue(memory, "B", FILE), await queue(memory, "C", FILE)
    parked = await park(memory, "B", first)
    assert memory.sequencer.queue_depth == 0
    gate = Gate(memory)
    busy = asyncio.create_task(memory.acquire("C", "lock:c"))
    await gate.reached.wait()
    polls = [asyncio.create_task(memory.ask(claim("C", second))) for _ in range(6)]
    await asyncio.sleep(0)
    for refused in (claim("C", second), cancel("C", second)):
        with pytest.raises(Busy, match="queue_full"):
            await memory.ask(refused)
    given_back = asyncio.create_task(memory.ask(release("A", FILE, leaseId=held["leaseId"])))
    await asyncio.sleep(0)
    gate.open()
    assert (await given_back).status == 200
    await granted(parked, first)
    assert [answer.status for answer in await asyncio.gather(busy, *polls)] == [200] + [202] * 6
    memory.audit()


async def test_what_was_written_is_counted_by_type(memory: World) -> None:
    await memory.acquire("A", FILE)
    await queue(memory, "B", FILE)
    await memory.ask(release("A", FILE))
    leaves = memory.types()
    assert sum(memory.sequencer.entries.values()) == memory.sequencer.counters.receipts
    for kind, count in memory.sequencer.entries.items():
        assert leaves.count(kind) == count
    assert memory.sequencer.entries["wait.offered"] == 1
