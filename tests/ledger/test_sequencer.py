"""The only writer: commit, sign, answer; nobody's trouble is another's; every scene ends before the real verifier."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.actions import ACTIONS
from gateway.core import refusal
from gateway.core.append import Batch, Command, build_batch
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lease import acquire as decide_acquire
from gateway.core.outcome import Context
from gateway.errors import Busy, Fatal, StoreOwned
from gateway.ledger import batches, line, receipts, tail, turn, writer
from gateway.ledger.history import Answer
from gateway.ledger.sequencer import Refused
from gateway.ledger.tree import Growth
from gateway.ledger.turn import result_of
from gateway.signer import Signer
from gateway.store.contract import StoredBatch, StoredHead
from tests.core.requests import ORIGIN, acquire, anchor_text, release, renew
from tests.world import ENGINES, Engine, Fault, World, signer_of
from verifier.checkpoint import parse_checkpoint
from verifier.receipt import check_receipt

FILE = "repo:app/src/a.py"


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    engine: Engine = request.param
    async with World(tmp_path, engine) as world:
        yield world


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as world:
        yield world


class Gate:
    """Holds the commit thread at a method of the store until opened."""

    def __init__(self, world: World, method: str = "commit") -> None:
        self.reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._open = threading.Event()
        self._method = method
        world.store.before = self._stop

    def _stop(self, name: str) -> None:
        if name == self._method and not self._open.is_set():
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self._open.wait(10), "nobody opened the gate"

    def open(self) -> None:
        self._open.set()


async def outcome(work: Any) -> Any:
    """Return the result or the exception."""
    return (await asyncio.gather(work, return_exceptions=True))[0]


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_an_answer_is_a_receipt_that_a_stranger_accepts(world: World) -> None:
    for answer, status in ((await world.acquire("A", FILE), 200), (await world.acquire("B", FILE), 409)):
        file = receipts.render(answer.leaf, answer.signature, answer.checkpoint, answer.path, key_id=answer.key_id)
        report = check_receipt(file, world.keyring, level="included")
        assert (answer.status, report.exit_code, answer.is_replay) == (status, 0, False), report.as_text()
    assert world.types(6) == ["lease.granted", "lease.refused"]
    world.audit()


async def test_a_retry_gets_the_same_bytes_also_after_a_restart_and_after_a_crash(world: World) -> None:
    asked = [acquire("A", FILE), acquire("B", FILE), release("C", FILE)]
    first = [await world.ask(one) for one in asked]
    size = len(world.leaves())

    async def retry() -> None:
        for one, answer in zip(asked, first, strict=True):
            again = await world.ask(one.again())
            assert again == answer._replace(is_replay=True)
            assert again.body() == answer.body()

    await retry()
    assert len(world.leaves()) == size
    await world.restart()
    await retry()
    await world.crash()
    await world.start()
    await retry()
    assert [answer.status for answer in first] == [200, 409, 409]
    world.audit()


async def test_a_repeat_inside_one_batch_is_one_entry_and_equal_answers(world: World) -> None:
    asked = acquire("A", FILE)
    answers = await asyncio.gather(*(world.ask(asked.again()) for _ in range(5)))
    assert {answer.body() for answer in answers} == {answers[0].body()}
    assert sorted(answer.is_replay for answer in answers) == [False] + [True] * 4
    assert world.types(6) == ["lease.granted"]
    world.audit()


async def test_the_same_signed_bytes_are_refused_also_when_they_were_a_retry(world: World) -> None:
    asked = acquire("A", FILE)
    await world.ask(asked)
    retry = world.anchored(asked.again()).signed()
    await world.sequencer.submit(retry, ACTIONS[retry.action])
    first = world.anchored(asked).signed()
    for _ in range(2):
        for sent in (first, retry):
            with pytest.raises(Refused) as refused:
                await world.sequencer.submit(sent, ACTIONS[sent.action])
            assert refused.value.unreceipted.refusal is refusal.NONCE_REUSED
            assert refused.value.unreceipted.detail == {"seq": 6}
        await world.restart()  # the nonce that the retry burnt was kept at the stop
    world.audit()


async def test_a_nonce_burnt_by_a_retry_goes_along_with_the_next_batch(world: World) -> None:
    asked = acquire("A", FILE)
    await world.ask(asked)
    retry = world.anchored(asked.again()).signed()
    assert (await world.sequencer.submit(retry, ACTIONS[retry.action])).is_replay
    await world.acquire("B", "lock:b")
    await world.crash()  # nothing is kept: only what a batch took along is there
    await world.start()
    with pytest.raises(Refused) as refused:
        await world.sequencer.submit(retry, ACTIONS[retry.action])
    assert refused.value.unreceipted.refusal is refusal.NONCE_REUSED
    world.audit()


async def test_a_refusal_without_entry_writes_nothing(world: World) -> None:
    size = len(world.leaves())
    with pytest.raises(Refused) as refused:
        await world.acquire("stranger", FILE)
    assert refused.value.unreceipted.refusal is refusal.AGENT_UNKNOWN
    assert (len(world.leaves()), world.sequencer.counters.refused) == (size, 1)
    world.audit()


async def test_only_a_checkpoint_that_we_signed_is_an_anchor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "ANCHORS_MAX", 2)
    old = world.sequencer.confirmed
    for number in range(5):
        await world.acquire("A", f"lock:{number}")
    now = world.sequencer.confirmed
    tries = [
        (1, world.genesis, True),
        (old.size, old.root, True),
        (now.size, now.root, True),
        (old.size, now.root, False),
        (2, world.genesis, False),
        (now.size + 1, now.root, False),
        (2**53 - 1, now.root, False),
    ]
    for size, root, is_known in tries:
        asked = acquire("A", f"lock:at/{size}").but(anchor=anchor_text(ORIGIN, size, root)).signed()
        found = await outcome(world.sequencer.submit(asked, ACTIONS["lease.acquire"]))
        if is_known:
            assert isinstance(found, Answer), size
        else:
            assert isinstance(found, Refused) and found.unreceipted.refusal is refusal.UNKNOWN_HISTORY, size
    world.audit()


# -- batches -----------------------------------------------------------------------------------------------------------


async def test_what_waits_becomes_one_batch(world: World) -> None:
    gate = Gate(world)
    first = asyncio.create_task(world.acquire("A", "lock:first"))
    await gate.reached.wait()
    others = [asyncio.create_task(world.acquire("B", f"lock:{number}")) for number in range(300)]
    await asyncio.sleep(0)
    assert world.sequencer.queue_depth == 300
    before = world.sequencer.counters.batches
    gate.open()
    answers = await asyncio.gather(first, *others)
    assert world.sequencer.counters.batches - before == 3  # the first alone, then 256, then 44
    assert len({answer.checkpoint for answer in answers}) == 3
    assert [answer.seq for answer in answers] == list(range(6, 307))
    world.audit()


async def test_what_comes_in_with_the_next_turns_of_the_loop_joins_the_batch(world: World) -> None:
    """A request needs some turns from its socket to the line; nobody waits for a clock."""
    before = world.sequencer.counters.batches

    async def late(turns: int) -> Answer:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await world.ask(acquire("A", f"repo:{turns}"))

    answers = await asyncio.gather(*(late(turns) for turns in range(0, 20, 2)))
    assert len({answer.checkpoint for answer in answers}) == 1
    assert world.sequencer.counters.batches == before + 1
    world.audit()


async def test_a_trickle_without_end_holds_up_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GATHER_TURNS_MAX", 4)
    first = asyncio.ensure_future(world.ask(acquire("A", "repo:first")))
    others = []
    for turn_number in range(200):
        others.append(asyncio.ensure_future(world.ask(acquire("B", f"repo:{turn_number}"))))
        await asyncio.sleep(0)
    batch = parse_checkpoint((await first).checkpoint).size
    last = [parse_checkpoint(answer.checkpoint).size for answer in await asyncio.gather(*others)][-1]
    assert batch < last
    world.audit()


async def test_concurrent_claims_of_one_resource_give_exactly_one_grant_per_round(world: World) -> None:
    for number in range(60):
        file = f"lock:round/{number}"
        answers = await asyncio.gather(*(world.acquire(name, file) for name in "ABCABC"))
        holders = {answer.leaf.split(b'"actor":"')[1][:56] for answer in answers if answer.status == 200}
        kinds = sorted(world.types(answers[0].seq))
        assert len(holders) == 1, "one holder; the holder's second request extends"
        assert kinds == ["lease.extended", "lease.granted", *["lease.refused"] * 4]
    world.audit()


async def test_nothing_is_shown_before_it_is_committed_and_signed(world: World) -> None:
    before = (world.sequencer.confirmed, len(world.sequencer.view), len(world.leaves()))
    gate = Gate(world)
    waiting = asyncio.create_task(world.acquire("A", FILE))
    await gate.reached.wait()
    assert (world.sequencer.confirmed, len(world.sequencer.view), len(world.leaves())) == before
    assert not waiting.done()
    gate.open()
    answer = await waiting
    confirmed = world.sequencer.confirmed
    assert (confirmed.size, confirmed.note) == (answer.seq + 1, answer.checkpoint)
    checkpoint = parse_checkpoint(confirmed.note)
    assert (checkpoint.size, checkpoint.root) == (confirmed.size, confirmed.root)
    world.audit()


async def test_signatures_are_stored_with_the_next_batch_at_idle_or_at_the_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored(seq: int) -> bytes | None:
        return world.store.honest.entries(seq, seq + 1)[0].signature

    first = await world.acquire("A", "lock:1")
    assert stored(first.seq) is None
    second = await world.acquire("A", "lock:2")
    assert (stored(first.seq), stored(second.seq)) == (first.signature, None)
    await world.settle()
    assert stored(second.seq) == second.signature
    seen: list[int] = []
    commit = world.store.honest.commit

    def look(batch: StoredBatch, head: StoredHead | None) -> None:
        seen.append(len(batch.signed))
        commit(batch, head)

    monkeypatch.setattr(world.store.honest, "commit", look)
    third = await world.acquire("A", "lock:3")
    assert seen == [0], "what was kept at idle is not sent again"
    await world.restart()
    assert stored(third.seq) == third.signature
    world.audit()


async def test_memory_holds_live_state_and_not_history(world: World) -> None:
    async def rounds(count: int) -> int:
        for number in range(count):
            await world.acquire("A", f"lock:{number}")
            await world.ask(release("A", f"lock:{number}"))
        return len(world.sequencer.view)

    assert await rounds(2) == await rounds(40)


# -- waiters -----------------------------------------------------------------------------------------------------------


async def test_a_waiter_that_goes_away_abandons_only_its_answer(world: World) -> None:
    """Scenario L55."""
    gate = Gate(world)
    asked = acquire("A", FILE)
    gone = asyncio.create_task(world.ask(asked))
    await gate.reached.wait()
    queued = acquire("A", "lock:queued")
    also_gone = asyncio.create_task(world.ask(queued))
    stays = asyncio.create_task(world.acquire("B", FILE))
    await asyncio.sleep(0)
    gone.cancel()
    also_gone.cancel()
    assert await outcome(gone) is not None and await outcome(also_gone) is not None
    gate.open()
    assert (await stays).status == 409
    for one in (asked, queued):
        retry = await world.ask(one.again())
        assert (retry.status, retry.is_replay) == (200, True)
    assert world.types(6) == ["lease.granted", "lease.granted", "lease.refused"]
    assert world.sequencer.counters.abandoned == 2
    world.audit()


async def test_an_exception_in_one_delivery_reaches_nobody_else(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_for_b(outcome: Any, *rest: Any) -> Any:
        if outcome.seq == 7:
            raise RuntimeError("the client is gone")
        return result_of(outcome, *rest)

    monkeypatch.setattr(batches, "result_of", fail_for_b)
    work = [outcome(memory.acquire(name, f"lock:{name}")) for name in "ABC"]
    a, b, c = await asyncio.gather(*work)
    assert (a.status, c.status) == (200, 200) and isinstance(b, RuntimeError)
    assert (await memory.acquire("A", FILE)).status == 200
    memory.audit()


async def test_a_command_that_can_not_be_built_takes_no_other_with_it(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(view: Any, commands: Any, *rest: Any, **how: Any) -> Batch:
        return build_batch(view, map(unless_poison, commands), *rest, **how)

    def unless_poison(command: Command) -> Command:
        if command.request.body.get("resource") == "lock:poison":
            raise ValueError("poison")
        return command

    monkeypatch.setattr(turn, "build_batch", build)
    names = ("lock:1", "lock:poison", "lock:2")
    first, poison, second = await asyncio.gather(*(outcome(memory.acquire("A", name)) for name in names))
    assert (first.status, second.status) == (200, 200) and isinstance(poison, ValueError)
    assert memory.types(6) == ["lease.granted", "lease.granted"]
    memory.audit()


async def test_a_decision_that_fails_is_an_entry_and_is_logged(memory: World, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("in the core")

    broken = replace(ACTIONS["lease.acquire"], decide=fail)
    answer = await memory.sequencer.submit(memory.anchored(acquire("A", FILE)).signed(), broken)
    assert answer.status == 500 and memory.types(6) == ["decision.failed"]
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)
    memory.audit()


async def test_a_full_queue_is_busy_and_keeps_room_for_renewals(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "QUEUE_MAX", 8)
    monkeypatch.setattr(line, "QUEUE_RESERVED", 2)
    await memory.acquire("A", FILE)
    gate = Gate(memory)
    first = asyncio.create_task(memory.acquire("A", "lock:first"))
    await gate.reached.wait()
    waiting = [asyncio.create_task(memory.acquire("B", f"lock:{number}")) for number in range(6)]
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="queue_full"):
        await memory.acquire("B", "lock:more")
    waiting.append(asyncio.create_task(memory.ask(renew("A", "L6"))))
    waiting.append(asyncio.create_task(memory.ask(release("A", FILE))))
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="queue_full"):
        await memory.ask(renew("A", "L6"))
    gate.open()
    assert {answer.status for answer in await asyncio.gather(first, *waiting)} == {200}
    memory.audit()


# -- what goes first, and for how long a batch is decided --------------------------------------------------------------


class Burst:
    """Dear questions of A; deciding one takes the next of `costs_ms`, then 40 of the 100 ms that a batch has."""

    def __init__(self, world: World, count: int, *costs_ms: int) -> None:
        self.world = world
        self.names = [f"lock:dear/{number}" for number in range(count)]
        self.tried: list[str] = []
        self._costs_ms = iter(costs_ms)
        self._action = replace(ACTIONS["lease.acquire"], decide=self._decide)

    def _decide(self, draft: Draft, request: SignedRequest, context: Context) -> Any:
        self.world.clock.advance(next(self._costs_ms, 40))
        self.tried.append(request.text("resource"))
        return decide_acquire(draft, request, context)

    def ask(self) -> list[asyncio.Task[Answer]]:
        asked = [self.world.anchored(acquire("A", name)).signed() for name in self.names]
        return [asyncio.create_task(self.world.sequencer.submit(one, self._action)) for one in asked]


def batches_of(answers: Sequence[Answer]) -> list[int]:
    """Return how many of the answers came in each batch, in order of the batches."""
    return list(Counter(parse_checkpoint(answer.checkpoint).size for answer in answers).values())


async def test_a_batch_ends_when_its_time_is_over_and_the_rest_keeps_its_order(world: World) -> None:
    burst = Burst(world, 7)
    answers = await asyncio.gather(*burst.ask())
    assert burst.tried == burst.names, "each is decided once, in order of arrival"
    assert ([answer.seq for answer in answers], batches_of(answers)) == (list(range(6, 13)), [3, 3, 1])
    world.audit()


async def test_what_takes_longer_than_a_batch_is_decided_all_the_same(world: World) -> None:
    answers = await asyncio.gather(*Burst(world, 3, 1_000, 1_000, 1_000).ask())
    assert batches_of(answers) == [1, 1, 1]
    world.audit()


async def test_who_keeps_or_gives_back_by_id_waits_behind_no_burst(world: World) -> None:
    held = [await world.acquire(name, f"lock:{name}") for name in "BC"]
    burst, gate = Burst(world, 9), Gate(world)
    first = asyncio.create_task(world.acquire("C", "lock:first"))
    await gate.reached.wait()
    dear_ones = burst.ask()
    await asyncio.sleep(0)
    urgent = [
        asyncio.create_task(world.ask(renew("B", f"L{held[0].seq}"))),
        asyncio.create_task(world.ask(release("C", "lock:C", leaseId=f"L{held[1].seq}"))),
    ]
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(first, *dear_ones, *urgent)
    assert world.types(8)[:4] == ["lease.granted", "lease.renewed", "lease.released", "lease.granted"]
    assert batches_of([one.result() for one in (*urgent, *dear_ones)]) == [5, 3, 3]
    world.audit()


async def test_an_abandoned_command_that_was_put_back_is_decided_all_the_same(world: World) -> None:
    burst, gate = Burst(world, 6), Gate(world)
    tasks = burst.ask()
    await gate.reached.wait()
    assert world.sequencer.queue_depth == 3, "put back before the commit"
    tasks[4].cancel()
    gate.open()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(answer, Answer) for answer in answers] == [True] * 4 + [False, True]
    assert (burst.tried, world.sequencer.counters.abandoned) == (burst.names, 1)
    world.audit()


async def test_a_stop_decides_what_was_put_back(world: World) -> None:
    burst, gate = Burst(world, 8), Gate(world)
    tasks = burst.ask()
    await gate.reached.wait()
    stopping = asyncio.create_task(world.stop())
    await asyncio.sleep(0)
    gate.open()
    await stopping
    assert batches_of([await one for one in tasks]) == [3, 3, 2]
    await world.start()
    world.audit()


@pytest.mark.parametrize("fault", ["moved", "lost", "kept"])
async def test_a_part_of_a_batch_whose_commit_fails_is_decided_again_and_the_rest_once(
    world: World, fault: Fault
) -> None:
    burst = Burst(world, 5)
    world.store.plan.append(("commit", fault))
    answers = await asyncio.gather(*burst.ask())
    again = [] if fault == "kept" else burst.names[:3]
    assert burst.tried == again + burst.names
    assert ([answer.status for answer in answers], batches_of(answers)) == ([200] * 5, [3, 2])
    world.audit()


async def test_a_part_may_be_smaller_when_it_is_decided_again(world: World) -> None:
    burst = Burst(world, 5, 40, 40, 40, 150)
    world.store.plan.append(("commit", "moved"))
    answers = await asyncio.gather(*burst.ask())
    assert burst.tried == burst.names[:3] + burst.names
    assert ([answer.status for answer in answers], batches_of(answers)) == ([200] * 5, [1, 3, 1])
    world.audit()


async def test_busy_fails_the_part_that_was_decided_and_the_rest_goes_on(world: World) -> None:
    burst = Burst(world, 5)
    world.store.plan.append(("commit", "busy"))
    answers = await asyncio.gather(*burst.ask(), return_exceptions=True)
    assert [isinstance(answer, Busy) for answer in answers] == [True] * 3 + [False] * 2
    assert (world.sequencer.counters.busy, world.types(6)) == (3, ["lease.granted"] * 2)
    world.audit()


async def test_a_fatal_answers_also_those_who_were_put_back(world: World) -> None:
    world.store.plan.append(("commit", "fatal"))
    answers = await asyncio.gather(*Burst(world, 5).ask(), return_exceptions=True)
    assert all(isinstance(answer, Fatal) for answer in answers) and world.sequencer.queue_depth == 0


async def test_a_command_and_its_repeat_that_were_put_back_are_one_entry(world: World) -> None:
    burst = Burst(world, 3)
    asked = acquire("B", FILE)
    answers = await asyncio.gather(*burst.ask(), world.ask(asked), world.ask(asked.again()))
    assert ([answer.is_replay for answer in answers[3:]], batches_of(answers)) == ([False, True], [3, 2])
    assert answers[3].body() == answers[4].body()
    world.audit()


# -- time --------------------------------------------------------------------------------------------------------------


async def test_a_tick_ends_leases_that_are_due_and_not_before(world: World) -> None:
    await world.acquire("A", FILE, ttlMs=10_000)
    world.clock.advance(9_999)
    await world.settle()
    assert world.types(6) == ["lease.granted"]
    world.clock.advance(1)
    await world.settle()
    await world.settle()
    assert world.types(6) == ["lease.granted", "lease.expired"]
    assert (await world.acquire("B", FILE)).status == 200
    world.audit()


async def test_one_tick_ends_all_leases_that_are_due(world: World) -> None:
    names = [[f"lock:{batch}/{number}" for number in range(100)] for batch in range(6)]
    for batch in names:
        await asyncio.gather(*(world.acquire("A", name, ttlMs=1_000) for name in batch))
    world.clock.advance(1_000)
    await world.settle()
    assert world.types(606) == ["lease.expired"] * 600
    assert {leaf.time_ms for leaf in world.leaves()[606:]} == {world.clock.wall}
    world.audit()


async def test_after_an_outage_a_holiday_keeps_leases_alive(world: World) -> None:
    """Scenario L16."""
    await world.acquire("A", FILE, ttlMs=10_000)
    await world.stop()
    world.clock.advance(15_000)
    await world.start()
    await world.settle()
    assert world.types(6) == ["lease.granted", "service.started", "lease.holiday"]
    assert (await world.acquire("B", FILE)).status == 409
    world.clock.advance(15_000)
    await world.settle()
    assert world.types(10) == ["lease.expired"]
    world.audit()


async def test_what_is_due_is_forgotten_and_counts_no_more(world: World) -> None:
    asked = acquire("A", FILE, ttlMs=1_000)
    await world.ask(asked)
    await world.acquire("B", FILE)
    await world.settle()
    assert world.sequencer.counters.forgotten == 0
    world.clock.advance(86_400_000)
    await world.settle()  # the lease expires: log time moves
    await world.settle()
    # Three agents' and two acquires' idempotency keys and nonces, B's refusal and its edge; the ended lease is a day
    # younger.
    assert world.sequencer.counters.forgotten == 12
    later = acquire("A", FILE, at_ms=world.clock.wall).but(idempotency_key=asked.idempotency_key)
    assert (await world.ask(later)).is_replay is False
    world.audit()


async def test_a_wall_clock_set_forward_does_not_end_leases(world: World) -> None:
    """Scenario 16."""
    await world.acquire("A", FILE)
    world.clock.jump(3_600_000)
    await world.settle()
    assert (await world.ask(acquire("B", FILE))).status == 409
    assert world.sequencer.clock_alarms > 0
    world.audit()


# -- trouble -----------------------------------------------------------------------------------------------------------


async def test_busy_means_that_nothing_happened(world: World) -> None:
    size, confirmed = len(world.leaves()), world.sequencer.confirmed
    for method in ("lock", "commit"):
        world.store.plan.append((method, "busy"))
        with pytest.raises(Busy, match="planned"):
            await world.acquire("A", FILE)
        assert (len(world.leaves()), world.sequencer.confirmed) == (size, confirmed)
    assert (await world.acquire("A", FILE)).status == 200
    world.audit()


async def test_a_head_that_moved_is_read_anew_and_decided_again(world: World) -> None:
    for method in ("lock", "commit"):
        size = len(world.leaves())
        world.store.plan.append((method, "moved"))
        assert (await world.acquire("A", f"lock:{method}")).status == 200
        assert world.types(size) == ["service.started", "lease.holiday", "lease.granted"]
    leaf = world.leaves()[-3]
    assert (leaf.value["cause"], leaf.epoch, leaf.value["isClean"]) == ("recovery", 3, False)
    assert world.sequencer.counters.recoveries == 2
    world.audit()


async def test_a_head_that_keeps_moving_is_fatal_for_all_and_a_restart_goes_on(world: World) -> None:
    world.store.plan.extend([("commit", "moved")] * 3)
    gate = Gate(world, "lock")
    asked = [acquire(name, FILE) for name in "AB"]
    waiting = [asyncio.create_task(outcome(world.ask(one))) for one in asked]
    await gate.reached.wait()
    gate.open()
    assert all(isinstance(found, Fatal) for found in await asyncio.gather(*waiting))
    assert not world.sequencer.is_ready
    with pytest.raises(Fatal, match="another gateway writes"):
        await world.acquire("C", FILE)
    await world.restart()
    assert [(await world.ask(one.again())).status for one in asked] == [200, 409]
    world.audit()


async def test_who_can_not_find_out_stops_and_the_answer_is_there_after_a_restart(world: World) -> None:
    world.store.plan.extend([("commit", "kept"), ("landed", "busy")])
    asked = acquire("A", FILE)
    with pytest.raises(Fatal, match="nobody knows"):
        await world.ask(asked)
    assert not world.sequencer.is_ready
    await world.restart()
    answer = await world.ask(asked.again())
    assert (answer.status, answer.is_replay) == (200, True)
    world.audit()


async def test_a_head_that_moved_back_is_fatal(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    old = {name: getattr(world.disk, name) for name in ("head", "is_clean")}
    lists = {name: list(getattr(world.disk, name)) for name in ("leaves", "hashes", "heads")}
    await world.acquire("A", FILE)
    for name, value in (old | lists).items():
        setattr(world.disk, name, value)  # an older file was put in place of the ledger
    with pytest.raises(Fatal, match="already signed"):
        await world.acquire("B", FILE)
    assert not world.sequencer.is_ready
    await world.stop()


async def test_a_signature_that_does_not_verify_never_leaves(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    confirmed = memory.sequencer.confirmed
    sign = Signer.sign_leaf

    def spoilt(self: Signer, seq: int, leaf: bytes) -> bytes:
        signature = sign(self, seq, leaf)
        return bytes([signature[0] ^ 1]) + signature[1:]

    monkeypatch.setattr(Signer, "sign_leaf", spoilt)
    with pytest.raises(Fatal, match="does not verify"):
        await memory.acquire("A", FILE)
    assert memory.sequencer.confirmed == confirmed and not memory.sequencer.is_ready


async def test_a_path_that_does_not_lead_to_the_root_never_leaves(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Growth, "path", lambda self, seq: (bytes(32),))
    with pytest.raises(Fatal, match="does not lead to the root"):
        await memory.acquire("A", FILE)
    assert not memory.sequencer.is_ready


async def test_earlier_answers_that_can_not_be_read_are_busy_and_the_batch_is_answered(world: World) -> None:
    asked = acquire("A", FILE)
    await world.ask(asked)
    world.store.plan.append(("entries", "busy"))
    retry, fresh = await asyncio.gather(outcome(world.ask(asked.again())), outcome(world.acquire("B", "lock:b")))
    assert isinstance(retry, Busy) and fresh.status == 200
    assert (await world.ask(asked.again())).is_replay
    world.audit()


async def test_upkeep_that_fails_is_done_another_time(world: World) -> None:
    answer = await world.acquire("A", FILE)
    for fault in ("busy", "lost", "kept"):
        world.store.plan.append(("keep", fault))
        await world.settle()
    await world.settle()
    assert world.store.honest.entries(answer.seq, answer.seq + 1)[0].signature == answer.signature
    assert world.sequencer.is_ready
    world.audit()


async def test_a_proven_second_history_stops_grants_once_and_for_good(world: World) -> None:
    await world.acquire("A", FILE)
    other = signer_of("log", "receipt")
    note = other.sign_checkpoint(3, bytes(32))
    for _ in range(2):
        await world.sequencer.dispute(note, parse_checkpoint(note))
    assert world.types(7) == ["ledger.disputed"]
    assert (await world.acquire("B", "lock:b")).status == 409
    await world.restart()
    assert (await world.acquire("B", "lock:b")).status == 409
    assert (await world.ask(release("A", FILE))).status == 200
    world.audit()


# -- stop --------------------------------------------------------------------------------------------------------------


async def test_a_stop_answers_what_waits_and_lets_nobody_in(world: World) -> None:
    gate = Gate(world)
    waiting = [asyncio.create_task(world.acquire("A", f"lock:{number}")) for number in range(3)]
    await gate.reached.wait()
    waiting += [asyncio.create_task(world.acquire("B", f"lock:b/{number}")) for number in range(3)]
    await asyncio.sleep(0)
    stopping = asyncio.create_task(world.stop())
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="stopping"):
        await world.acquire("C", FILE)
    assert not world.sequencer.is_ready
    gate.open()
    await stopping
    assert [(await one).status for one in waiting] == [200] * 6
    await world.start()
    started = world.leaves()[-2]
    assert (started.type, started.value["isClean"]) == ("tallystick/service.started/1", True)
    world.audit()


async def test_a_crash_is_no_clean_stop_and_every_start_has_its_epoch(world: World) -> None:
    await world.acquire("A", FILE)
    await world.crash()
    await world.start()
    started = world.leaves()[-2]
    assert (started.value["cause"], started.value["isClean"], started.epoch) == ("start", False, 2)
    assert world.leaves()[-1].value["startedSeq"] == started.seq
    world.audit()


async def test_stopping_twice_or_after_a_fatal_is_allowed(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    world.store.plan.append(("commit", "fatal"))
    with pytest.raises(Fatal):
        await world.acquire("A", FILE)
    await world.stop()
    await world.stop()
    await world.start()
    await world.stop()


async def test_a_running_gateway_sweeps_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path, sweep_ms=1)
    await world.start()
    ticked = asyncio.Event()
    world.sequencer.tick = ticked.set  # type: ignore[method-assign]  # to be told
    sweeper = asyncio.create_task(world.sequencer._sweep())
    async with asyncio.timeout(5):
        await ticked.wait()
    sweeper.cancel()
    await world.stop()


async def test_a_trace_is_told_the_stages_in_order(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    world = World(tmp_path)
    world.trace = lambda stage, count: told.append((stage, count))
    async with world:
        told.clear()
        await asyncio.gather(*(world.acquire("A", f"lock:{number}") for number in range(3)))
    stages = ["locked", "decided", "built", "committed", "signed", "checked", "delivered"]
    assert told == [(stage, 3) for stage in stages]


# -- second gateway ----------------------------------------------------------------------------------------------------


async def test_a_second_gateway_can_not_start_on_the_same_store(world: World) -> None:
    with pytest.raises(StoreOwned):
        world.open_store()
    assert (await world.acquire("A", FILE)).status == 200
    world.audit()
