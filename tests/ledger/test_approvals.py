"""Approvals through the one writer: used once, whatever is stopped meanwhile; and asks that outlive a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.record_keys import ask_key
from gateway.core.records import Pending
from gateway.ledger.history import Answer
from tests.core.requests import (
    Ask,
    acquire,
    add,
    add_operator,
    admit,
    approved,
    decline,
    did_of,
    give,
    plead,
    set_scheme,
    with_approvals,
)
from tests.ledger.test_sessions import later
from tests.world import ENGINES, Engine, Fault, World
from verifier.entries import ASK_MEMORY_MS, Leaf, parse_leaf

NAME = "db:x"


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    engine: Engine = request.param
    async with World(tmp_path, engine) as world:
        for ask in (add_operator("op", "op2"), add("op2", "X"), set_scheme("op", "db", "irreversible")):
            assert (await world.ask(ask)).status == 200
        yield world


def leaf_of(answer: Answer) -> Leaf:
    return parse_leaf(answer.leaf)


async def approval(world: World, one: Ask) -> dict[str, Any]:
    genesis = next(iter(world.leaves()[1:])).genesis.hex()
    return approved("X", one, genesis, at_ms=world.clock.wall)


async def under_lease(world: World) -> tuple[Ask, dict[str, Any]]:
    """A acquires, and X approves what A would do; return what is to be admitted, and the approval."""
    leaf = leaf_of(await world.ask(acquire("A", NAME, at_ms=world.clock.wall, ttlMs=3_600_000)))
    one = admit("A", NAME, at_ms=world.clock.wall, lease=(leaf.text("leaseId"), leaf.number("fencingToken")))
    return one, await approval(world, one)


def said(answer: Answer) -> str:
    leaf = leaf_of(answer)
    return leaf.text("error") or leaf.type.split("/")[1]


def again(world: World, one: Ask, *approvals: dict[str, Any]) -> Ask:
    """Return the same wish as another request, now."""
    shown = one.members()
    lease = shown["leaseId"], shown["fencingToken"]
    return with_approvals(admit("A", NAME, at_ms=world.clock.wall, lease=lease), *approvals)


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_what_was_used_stays_used(world: World, how: str) -> None:
    one, given = await under_lease(world)
    assert said(await world.ask(with_approvals(one, given))) == "admission.allowed"
    if how == "stop":
        await world.restart()
    else:
        await world.crash()
        await world.start()
    assert said(await world.ask(again(world, one, given))) == "approval_used"
    world.audit()


async def test_who_asks_again_gets_the_same_answer_and_uses_nothing_more(world: World) -> None:
    one, given = await under_lease(world)
    asked = with_approvals(one, given)
    answers = await asyncio.gather(*(world.ask(asked.again()) for _ in range(4)))
    assert {answer.body() for answer in answers} == {answers[0].body()}
    await world.restart()
    assert (await world.ask(asked.again())).body() == answers[0].body()
    assert said(await world.ask(again(world, one, given))) == "approval_used"
    world.audit()


async def test_two_who_use_one_approval_at_once_use_it_once(world: World) -> None:
    one, given = await under_lease(world)
    asked = [again(world, one, given) for _ in range(6)]
    answers = await asyncio.gather(*map(world.ask, asked))
    assert sorted(map(said, answers)) == ["admission.allowed", *["approval_used"] * 5]
    world.audit()


@pytest.mark.parametrize("fault", ["lost", "kept", "moved"])
async def test_a_use_whose_commit_is_unclear_happens_once(world: World, fault: Fault) -> None:
    one, given = await under_lease(world)
    asked = with_approvals(one, given)
    world.store.plan.append(("commit", fault))
    assert said(await world.ask(asked)) == said(await world.ask(asked.again())) == "admission.allowed"
    assert world.types().count("admission.allowed") == 1
    assert said(await world.ask(again(world, one, given))) == "approval_used"
    world.audit()


async def test_asks_outlive_a_restart_and_are_forgotten_in_time(world: World) -> None:
    await world.ask(add_operator("op", "op3"))
    asked = plead("A", NAME, of=["X", "op3"], quorum=2, at_ms=world.clock.wall, giveUpMs=60_000)
    ask_id = leaf_of(await world.ask(asked)).text("askId")
    assert said(await world.ask(give("X", ask_id, await approval(world, asked), world.clock.wall))) == "approval.given"
    before = world.sequencer.view.get(ask_key(ask_id))
    assert isinstance(before, Pending) and before.given == (did_of("X"),)
    await world.restart()
    await world.crash()
    await world.start()
    assert world.sequencer.view.get(ask_key(ask_id)) == before
    assert said(await world.ask(decline("op3", ask_id, world.clock.wall))) == "approval.declined"
    assert said(await world.ask(decline("op3", ask_id, world.clock.wall))) == "ask_ended"
    await world.restart()
    await later(world, ASK_MEMORY_MS)
    await world.acquire("B", "lock:1")  # log time moves with an entry
    await later(world, 1_000)
    assert world.sequencer.view.get(ask_key(ask_id)) is None
    assert said(await world.ask(decline("op3", ask_id, world.clock.wall))) == "ask_unknown"
    world.audit()
