"""Admissions through the one writer: what waits is decided by what stands at its turn, and counts outlive a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.lookup import usage_at
from gateway.core.record_keys import RULES_KEY
from gateway.core.records import RuleSet, Usage
from gateway.ledger.history import Answer
from tests.core.court import FORBID, TEXT, Judge
from tests.core.requests import acquire, admit, break_, did_of, load_rules
from tests.ledger.test_sequencer import Gate
from tests.world import ENGINES, Engine, World
from verifier.entries import Leaf, parse_leaf
from verifier.replay.ledger import check_ledger

FILE = "repo:app/src/a.py"


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    engine: Engine = request.param
    made = World(tmp_path, engine)
    made.rules = Judge()
    async with made as world:
        yield world


def leaf_of(answer: Answer) -> Leaf:
    return parse_leaf(answer.leaf)


async def fence(world: World, name: str, **members: int) -> tuple[str, int]:
    leaf = leaf_of(await world.acquire(name, FILE, **members))
    return leaf.text("leaseId"), leaf.number("fencingToken")


def usage(world: World) -> tuple[Usage, Usage, Usage]:
    view = world.sequencer.view
    return (
        usage_at(view, "agent", did_of("A")),
        usage_at(view, "operator", did_of("op")),
        usage_at(view, "scheme", "repo"),
    )


async def test_a_fence_superseded_while_the_write_waits_in_the_queue_is_refused_at_commit(world: World) -> None:
    """Scenario 12: A's write is in line, behind a commit that is under way, when its lease is broken and given to B."""
    held, at_ms = await fence(world, "A"), world.clock.wall
    gate = Gate(world)
    ahead = asyncio.create_task(world.acquire("C", "repo:other"))
    await gate.reached.wait()
    waiting = [
        asyncio.create_task(world.ask(ask))
        for ask in (
            break_("op", FILE, held[1], at_ms=at_ms),
            acquire("B", FILE, at_ms=at_ms),
            admit("A", FILE, at_ms=at_ms, lease=held),
        )
    ]
    await asyncio.sleep(0)
    gate.open()
    _, broken, granted, write = await asyncio.gather(ahead, *waiting)
    assert (broken.status, granted.status, write.status) == (200, 200, 403)
    leaf = leaf_of(write)
    assert (leaf.text("error"), leaf.number("endedSeq")) == ("stale_fence", leaf_of(broken).seq)
    assert leaf.number("currentToken") == leaf_of(granted).number("fencingToken") > held[1]
    assert leaf.text("holder") == did_of("B")
    world.audit()


async def test_counts_and_rules_outlive_a_stop_and_a_crash(world: World) -> None:
    held, at_ms = await fence(world, "A"), world.clock.wall
    assert (await world.ask(load_rules("op", TEXT, 1, at_ms=at_ms))).status == 200
    asked = [admit("A", FILE, at_ms=at_ms, lease=held, cost=5), admit("A", "repo:b", at_ms=at_ms)]
    answers = [await world.ask(one) for one in asked]
    assert [answer.status for answer in answers] == [200, 403]
    counted, rules = usage(world), world.sequencer.view.get(RULES_KEY)
    assert isinstance(rules, RuleSet) and rules.text == TEXT
    assert (counted[0].total, counted[0].total_cost, counted[0].denied) == (1, 5, 1)
    await world.restart()
    assert (usage(world), world.sequencer.view.get(RULES_KEY)) == (counted, rules)
    await world.crash()
    await world.start()
    assert (usage(world), world.sequencer.view.get(RULES_KEY)) == (counted, rules)
    for one, answer in zip(asked, answers, strict=True):
        again = await world.ask(one.again())
        assert again.is_replay and (again.status, again.body()) == (answer.status, answer.body())
    assert usage(world) == counted, "who asks again has used nothing more"
    assert isinstance(world.rules, Judge)
    world.rules.answer = FORBID
    assert (await world.ask(admit("A", FILE, at_ms=world.clock.wall, lease=held))).status == 403
    file = world.folder / "audit.ledger"
    file.write_bytes(world.export())
    report = check_ledger(file, world.keyring, world.sequencer.confirmed.note)
    assert report.exit_code == 3 and "rules_not_rederived" in report.as_text(), "what a test's judge says, nobody knows"


async def test_copies_of_one_admission_that_come_at_once_are_one(world: World) -> None:
    held, at_ms = await fence(world, "A"), world.clock.wall
    one = admit("A", FILE, at_ms=at_ms, lease=held)
    answers = await asyncio.gather(*(world.ask(one.again()) for _ in range(5)))
    assert {answer.body() for answer in answers} == {answers[0].body()}
    assert usage(world)[0].total == 1
    world.audit()


async def test_in_a_holiday_a_lease_admits_until_its_effective_end_and_not_longer(world: World) -> None:
    """Its printed end has passed while the gateway was away: nobody else has it before the holiday is over."""
    held = await fence(world, "A", ttlMs=9_000)
    await world.stop()
    world.clock.advance(60_000)
    await world.start()
    until_ms = next(leaf for leaf in reversed(world.leaves()) if leaf.type.endswith("lease.holiday/1")).number(
        "untilMs"
    )
    allowed = leaf_of(await world.ask(admit("A", FILE, at_ms=world.clock.wall, lease=held)))
    assert allowed.number("validUntilMs") == until_ms
    facts = allowed.value["facts"]
    assert isinstance(facts, dict) and facts["leaseLeftMs"] == until_ms - allowed.time_ms
    world.clock.advance(until_ms - world.clock.wall)
    denied = leaf_of(await world.ask(admit("A", FILE, at_ms=world.clock.wall, lease=held)))
    assert denied.text("error") == "stale_fence"
    world.audit()
