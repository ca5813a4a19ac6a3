"""Two and three sequencers on one ledger: one history, no double grant, nobody is told what may vanish."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from gateway.actions import ACTIONS
from gateway.core import refusal
from gateway.errors import Busy
from gateway.ledger.history import Answer
from gateway.ledger.sequencer import Refused
from tests.core.requests import Ask, acquire, add, release
from tests.ledger.nodes import check_answers, check_tokens, end, nodes_on, started, until
from tests.ledger.test_sequencer import Gate, outcome
from tests.world import World
from verifier.checkpoint import parse_checkpoint

FILE = "repo:app/src/a.py"


async def test_what_one_node_granted_another_one_refuses(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    first = await a.acquire("A", FILE)
    second = await b.acquire("B", FILE)
    assert (first.status, second.status, second.seq) == (200, 409, first.seq + 1)
    assert b.sequencer.confirmed.size == second.seq + 1
    await a.ask(release("A", FILE))
    assert (await b.acquire("B", FILE)).status == 200
    assert (await a.acquire("A", FILE)).status == 409
    assert a.sequencer.counters.recoveries == b.sequencer.counters.recoveries == 0
    await end([a, b])


async def test_a_retry_at_another_node_gets_the_same_bytes(tmp_path: Path) -> None:
    a, b, c = await started(tmp_path, 3)
    asked = [acquire("A", FILE), acquire("B", FILE), release("C", FILE)]
    first = [await node.ask(one) for node, one in zip((a, b, a), asked, strict=True)]
    size = len(a.leaves())
    for node in (c, b, a):
        for one, answer in zip(asked, first, strict=True):
            again = await node.ask(one.again())
            assert again.is_replay and again.body() == answer.body()
    assert len(a.leaves()) == size
    await check_answers(c, first)
    await end([a, b, c])


async def test_the_same_signed_bytes_are_refused_by_every_node(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    asked = a.anchored(acquire("A", FILE)).signed()
    await a.sequencer.submit(asked, ACTIONS[asked.action])
    with pytest.raises(Refused) as refused:
        await b.sequencer.submit(asked, ACTIONS[asked.action])
    assert refused.value.unreceipted.refusal is refusal.NONCE_REUSED
    await end([a, b])


async def test_a_checkpoint_of_one_node_is_an_anchor_at_another(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    for number in range(3):
        await a.acquire("A", f"lock:{number}")
    asked = a.anchored(acquire("B", FILE)).signed()  # a history that b has not seen
    answer = await b.sequencer.submit(asked, ACTIONS[asked.action])
    assert answer.status == 200
    await end([a, b])


async def test_an_agent_of_one_node_is_known_at_another_after_catching_up(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    before = b.sequencer.confirmed
    await a.ask(add("op", "D", a.clock.wall))
    assert b.sequencer.confirmed == before
    await b.sequencer.catch_up()
    assert b.sequencer.confirmed == a.sequencer.confirmed, "the note is the same, whoever signs it"
    assert dict(b.sequencer.view.scan("")) == dict(a.sequencer.view.scan(""))
    calls = b.store.calls["confirm"]
    await b.sequencer.catch_up()
    assert b.store.calls["confirm"] == calls, "nothing new costs no barrier"
    await end([a, b])


async def test_catching_up_on_a_store_of_ones_own_asks_nothing(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        calls = world.store.calls.copy()
        await world.sequencer.catch_up()
        assert world.store.calls == calls


async def test_a_refusal_by_what_another_wrote_waits_for_the_barrier(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    await a.acquire("A", FILE)
    calls = b.store.calls["confirm"]
    with pytest.raises(Refused):
        await b.acquire("stranger", FILE)
    assert b.store.calls["confirm"] == calls + 1 and b.sequencer.confirmed == a.sequencer.confirmed
    with pytest.raises(Refused):
        await b.acquire("stranger", FILE)
    assert b.store.calls["confirm"] == calls + 1
    b.store.plan.append(("confirm", "lost"))
    await a.acquire("A", "lock:2")
    with pytest.raises(Busy):
        await b.acquire("stranger", FILE)
    await end([a, b])


async def hammer(nodes: list[World], rounds: int, seed: int) -> list[Answer]:
    """Let three agents fight for one resource at all nodes at once; whoever gets it gives it back somewhere."""
    dice, answers = random.Random(seed), []

    async def fight(name: str) -> None:
        for _ in range(rounds):
            got = await dice.choice(nodes).acquire(name, FILE)
            answers.append(got)
            if got.status == 200:
                answers.append(await dice.choice(nodes).ask(release(name, FILE)))

    await asyncio.gather(*(fight(name) for name in "ABC"))
    return answers


@pytest.mark.parametrize(("count", "rounds"), [(2, 250), (3, 100)])
async def test_a_thousand_requests_for_one_resource_give_no_double_grant(
    count: int, rounds: int, tmp_path: Path
) -> None:
    nodes = await started(tmp_path, count)
    answers = await hammer(nodes, rounds, count)
    assert len(answers) > 3.5 * rounds
    await check_answers(nodes[0], answers[::10])
    assert check_tokens(nodes[0], FILE) > rounds / 2
    assert [node.sequencer.counters.recoveries for node in nodes] == [0] * count
    assert all(node.sequencer.counters.followed > 25 for node in nodes)
    await end(nodes)


async def test_who_waited_for_the_head_takes_along_who_came_meanwhile(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    gate = Gate(a)
    first = asyncio.create_task(a.acquire("A", "lock:a"))
    await gate.reached.wait()

    def wait(name: str) -> None:
        if name == "look":
            b.clock.advance(0)

    b.store.before = wait
    waiting = [asyncio.create_task(b.acquire("B", "lock:b/0"))]
    await until(lambda: b.store.calls["lock"] > 1 and b.sequencer.queue_depth == 0)
    waiting += [asyncio.create_task(b.acquire("B", f"lock:b/{number}")) for number in range(1, 5)]
    await asyncio.sleep(0.01)
    assert b.sequencer.queue_depth == 4
    b.clock.advance(50)
    gate.open()
    answers = await asyncio.gather(*waiting)
    assert (await first).status == 200
    assert len({answer.checkpoint for answer in answers}) == 1, "one batch"
    assert b.store.calls["look"] == 1
    await end([a, b])


async def test_a_node_that_fails_to_look_for_more_answers_all_of_them(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    gate = Gate(a)
    first = asyncio.create_task(a.acquire("A", "lock:a"))
    await gate.reached.wait()
    waiting = [asyncio.create_task(outcome(b.acquire("B", "lock:b/0")))]
    await until(lambda: b.store.calls["lock"] > 1 and b.sequencer.queue_depth == 0)
    waiting += [asyncio.create_task(outcome(b.acquire("B", f"lock:b/{number}"))) for number in range(1, 5)]
    await asyncio.sleep(0.01)
    b.clock.advance(50)
    b.store.plan.append(("look", "busy"))
    gate.open()
    assert all(isinstance(found, Busy) for found in await asyncio.gather(*waiting))
    assert (await first).status == 200 and (await b.acquire("B", "lock:b/1")).status == 200
    await end([a, b])


async def test_a_start_beside_a_node_that_writes(tmp_path: Path) -> None:
    a, b, c = nodes_on(tmp_path, 3)
    await a.start()
    asked = [asyncio.create_task(a.acquire("A", f"lock:{number}")) for number in range(40)]
    await asyncio.gather(b.start(), c.start(), *asked)
    assert [(await b.acquire(name, f"lock:{name}")).status for name in "BC"] == [200, 200]
    await end([a, b, c])


async def test_nodes_that_come_and_go_leave_one_clean_ledger(tmp_path: Path) -> None:
    dice, nodes = random.Random(7), await started(tmp_path, 3)
    answers: list[Answer] = []

    async def work(name: str) -> None:
        for number in range(60):
            ask: Ask = acquire(name, f"lock:{name}/{number}")
            for _ in range(50):
                node = dice.choice(nodes)
                try:
                    if not node.sequencer.is_ready:
                        raise Busy("its process is away")
                    answers.append(await node.ask(ask))
                    break
                except Busy:
                    await asyncio.sleep(0.002)
                    ask = ask.again()
            else:
                raise AssertionError("never answered")

    async def churn() -> None:
        for _ in range(8):
            await asyncio.sleep(0.02)
            node = nodes[dice.randrange(3)]
            await (node.restart() if dice.random() < 0.5 else _crash(node))

    await asyncio.gather(churn(), *(work(name) for name in "ABC"))
    assert len(answers) == 180 and all(answer.status == 200 for answer in answers)
    await check_answers(nodes[1], answers)
    await end(nodes)


async def _crash(node: World) -> None:
    served = [*node.sequencer._serving]
    await node.crash()
    for one in [*served, *node.sequencer._line.take(10_000)]:
        one.answer(Busy("crashed"))  # its clients see the connection go
    await node.start()


async def test_due_leases_end_once_whichever_node_sweeps(tmp_path: Path) -> None:
    nodes = await started(tmp_path, 2)
    for number in range(20):
        await nodes[number % 2].acquire("A", f"lock:{number}", ttlMs=1_000)
    size = len(nodes[0].leaves())
    for node in nodes:
        await node.sequencer.catch_up()
        node.clock.advance(1_000)
    await asyncio.gather(*(node.settle() for node in nodes))
    assert nodes[0].types(size) == ["lease.expired"] * 20
    await end(nodes)


async def test_entries_of_other_nodes_are_not_counted_as_ours(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    before: Any = b.sequencer.entries.copy()
    await a.acquire("A", FILE)
    await b.sequencer.catch_up()
    assert b.sequencer.entries == before and b.sequencer.counters.followed == 1
    assert parse_checkpoint(b.sequencer.confirmed.note).size == a.sequencer.confirmed.size
    await end([a, b])
