"""A store that is silent, unfit or unclear: nobody waits for it who need not, nothing is decided twice, it heals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.core.record_codec import decode_record
from gateway.core.records import LedgerKey
from gateway.errors import Busy, Fatal, Unfit
from gateway.ledger import commits, sequencer
from keys.signing import SigningKey
from tests.core.requests import acquire, key_of
from tests.ledger.nodes import check_answers, end, nodes_on, started, until
from tests.ledger.test_keys import document_of, rotating_signer, stated
from tests.ledger.test_sequencer import Gate, outcome
from tests.world import Fault, World
from verifier.note import VerifierKey

FILE = "lock:silent"
PATIENCE_S = 60.0
IMPATIENCE_S = 0.05


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the store as long as a busy machine takes; `Silence` alone is impatient, and leaves nothing behind."""
    monkeypatch.setattr(commits, "LANDED_PAUSE_S", 0.001)
    monkeypatch.setattr(commits, "PATIENCE_S", PATIENCE_S)


class Silence(Gate):
    """A gate at a method of the store, whose calls alone are not waited for with patience."""

    def __init__(self, world: World, method: str = "commit") -> None:
        super().__init__(world, method)
        in_thread = world.sequencer._in_thread

        async def impatient(call: Callable[..., object], *args: object, **kwargs: object) -> object:
            commits.PATIENCE_S = IMPATIENCE_S if call.__name__ == method else PATIENCE_S
            return await in_thread(call, *args, **kwargs)

        world.sequencer._in_thread = impatient  # type: ignore[method-assign, assignment]


def ready(world: World) -> bool:
    return world.sequencer.is_ready


# -- silence -----------------------------------------------------------------------------------------------------------


async def test_a_commit_that_takes_long_keeps_nobody_waiting_and_is_found_later(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    gate, asked = Silence(a), acquire("A", FILE)
    first = asyncio.create_task(outcome(a.ask(asked)))
    await gate.reached.wait()
    second = asyncio.create_task(outcome(a.acquire("B", FILE)))
    before = a.sequencer.confirmed
    told = await first
    assert isinstance(told, Busy) and told.reason == "outcome_unknown"
    assert isinstance(late := await second, Busy) and late.reason == "store_stalled"
    with pytest.raises(Busy, match="store_stalled"):
        await a.acquire("C", FILE)
    with pytest.raises(Busy, match="store_stalled"):
        await a.sequencer.catch_up()
    assert not ready(a) and a.sequencer.confirmed == before and a.sequencer.counters.stalls == 1
    gate.open()
    await until(lambda: ready(a))
    again = await a.ask(asked.again())
    assert (again.status, again.is_replay) == (200, True)
    assert a.sequencer.counters.recoveries == 0
    await end([a, b])


async def test_a_store_that_is_silent_when_it_is_asked_for_news_is_not_waited_for(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    gate = Silence(b, "news")
    asked = asyncio.create_task(outcome(b.sequencer.catch_up()))
    await gate.reached.wait()
    await until(lambda: b.sequencer.is_stalled)
    with pytest.raises(Busy, match="store_stalled"):
        await b.acquire("B", FILE)
    gate.open()
    assert await asked is None and ready(b)
    await end([a, b])


async def test_catching_up_takes_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = await started(tmp_path)
    gate = Gate(b, "news")
    with monkeypatch.context() as patch, pytest.raises(Busy, match="store_busy"):
        patch.setattr(sequencer, "CATCH_UP_S", 0.02)
        await b.sequencer.catch_up()
    gate.open()
    await end([a, b])


async def test_a_stop_does_not_wait_for_a_silent_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await started(tmp_path)
    gate, asked = Gate(a), acquire("A", FILE)
    first = asyncio.create_task(outcome(a.ask(asked)))
    await gate.reached.wait()
    with monkeypatch.context() as patch:
        patch.setattr(sequencer, "STOP_S", 0.05)
        await a.stop()
    assert "the outcome of what it was asked last is unknown" in caplog.text
    assert isinstance(await first, Busy)
    gate.open()
    await until(lambda: any(b"lease.granted" in leaf for leaf in a.disk.leaves))
    again = await b.ask(asked.again())
    assert (again.status, again.is_replay) == (200, True)
    await a.start()
    await end([a, b])


# -- unclear -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost", "kept"])
async def test_a_batch_that_nobody_knows_of_is_found_or_decided_when_the_ledger_is_read_anew(
    fault: Fault, tmp_path: Path
) -> None:
    a, b = await started(tmp_path)
    asked = acquire("A", FILE)
    a.store.plan.append(("commit", fault))
    a.store.plan.extend([("landed", "busy")] * commits.LANDED_TRIES)
    told = await outcome(a.ask(asked))
    assert isinstance(told, Busy) and told.reason == "outcome_unknown"
    assert a.sequencer.failure is None
    answer = await a.ask(asked.again())
    assert (answer.status, answer.is_replay) == (200, fault == "kept")
    assert a.sequencer.counters.recoveries == 1
    assert a.leaves()[-2 if fault == "lost" else -1].epoch == 3
    await check_answers(b, [answer])
    await end([a, b])


async def test_who_is_told_in_time_whether_a_batch_landed_goes_on(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    a.store.plan.extend([("commit", "kept"), ("landed", "busy"), ("landed", "lost")])
    assert (await a.acquire("A", FILE)).status == 200
    assert a.sequencer.counters.recoveries == 0
    await end([a, b])


async def test_a_head_that_keeps_moving_is_busy_and_no_end(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    a.store.plan.extend([("commit", "moved")] * 3)
    with pytest.raises(Busy, match="store_busy"):
        await a.acquire("A", FILE)
    assert a.sequencer.failure is None and (await a.acquire("A", FILE)).status == 200
    await end([a, b])


# -- away --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["lock", "news"])
async def test_a_node_that_does_not_reach_its_store_says_so_to_the_proxy_and_heals(call: str, tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    away = True

    def unreachable(name: str) -> None:
        if away and name in ("lock", "news"):
            raise Busy("store_unreachable")

    a.store.before = unreachable
    with pytest.raises(Busy, match="store_unreachable"):
        await (a.acquire("A", FILE) if call == "lock" else a.sequencer.catch_up())
    assert a.sequencer.is_away and not ready(a) and ready(b)
    await a.settle()
    assert not ready(a), "as long as it lasts"
    away = False
    await a.settle()
    assert ready(a) and (await a.acquire("A", FILE)).status == 200
    await end([a, b])


@pytest.mark.parametrize("call", ["lock", "news"])
async def test_a_node_that_is_kept_from_the_head_for_seconds_says_so_to_the_proxy_and_heals(
    call: str, tmp_path: Path
) -> None:
    a, b = await started(tmp_path)
    is_kept = True

    def keep(name: str) -> None:
        if is_kept and name in ("lock", call):
            raise Busy("store_busy")

    a.store.before = keep
    with pytest.raises(Busy, match="store_busy"):
        await (a.acquire("A", FILE) if call == "lock" else a.sequencer.catch_up())
    a.clock.advance(4_000)
    await a.settle()
    assert ready(a), "a head is taken for a moment by every batch"
    a.clock.advance(1_000)
    await a.settle()
    assert a.sequencer.is_kept_out and not ready(a) and ready(b)
    await a.settle()
    assert not ready(a), "as long as it lasts"
    is_kept = False
    await a.settle()
    assert ready(a) and (await a.acquire("A", FILE)).status == 200
    await end([a, b])


async def test_a_head_that_was_taken_twice_with_long_between_is_no_head_that_is_kept(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    times = 0

    def keep(name: str) -> None:
        nonlocal times
        if name == "lock" and times:
            times -= 1
            raise Busy("store_busy")

    a.store.before = keep
    for _ in range(2):
        times = 1
        with pytest.raises(Busy, match="store_busy"):
            await a.acquire("A", FILE)
        assert ready(a)
        await a.settle()
        a.clock.advance(60_000)
        assert ready(a)
    await end([a, b])


async def test_a_recovery_is_counted_once_however_often_it_was_tried(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    is_away, asked = True, acquire("A", FILE)

    def unreachable(name: str) -> None:
        if is_away and name == "load":
            raise Busy("store_unreachable")

    a.store.plan.append(("commit", "moved"))
    a.store.before = unreachable
    for _ in range(5):
        with pytest.raises(Busy, match="store_unreachable"):
            await a.ask(asked)
        with pytest.raises(Busy, match="store_unreachable"):
            await a.sequencer.catch_up()
    assert a.sequencer.counters.recoveries == 0
    is_away = False
    assert (await a.ask(asked.again())).status == 200
    assert a.sequencer.counters.recoveries == 1
    await end([a, b])


# -- unfit -------------------------------------------------------------------------------------------------------------


async def test_an_unfit_store_decides_nothing_says_so_once_and_heals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await started(tmp_path)
    size, calls = len(a.leaves()), a.store.calls["lock"]
    a.store.plan.extend([("lock", "unfit")] * 3)
    for _ in range(5):  # once by the store, then without asking it
        with pytest.raises(Unfit, match="a setting is wrong"):
            await a.acquire("A", FILE)
    assert a.store.calls["lock"] == calls + 1
    assert not ready(a) and len(a.leaves()) == size
    assert a.sequencer.unfit is not None and a.sequencer.unfit.reason == "store_unfit"
    await a.settle()
    await a.settle()
    assert not ready(a)
    await a.settle()
    assert ready(a) and (await a.acquire("A", FILE)).status == 200
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(errors) == 1 and "nothing is decided" in errors[0].getMessage()
    await end([a, b])


@pytest.mark.parametrize("fault", ["unfit", "busy"])
@pytest.mark.parametrize("method", ["lock", "commit"])
@pytest.mark.parametrize("is_signed", [True, False])
async def test_a_start_that_can_not_be_written_shows_what_was_signed_and_tries_again(
    is_signed: bool, method: str, fault: Fault, tmp_path: Path
) -> None:
    a, b = nodes_on(tmp_path)
    await a.start()
    first = await a.acquire("A", FILE)
    await a.settle()
    kept = a.sequencer.confirmed
    if not is_signed:
        await a.acquire("A", "lock:unsigned")  # nobody has kept its signatures: it is not shown yet
    await b.start([(method, fault), (method, fault)])
    assert b.sequencer.confirmed == kept and not ready(b)
    shown = [key for key, _ in b.sequencer.view.scan("lease/")]
    assert shown == ([f"lease/L{first.seq}"] if is_signed else []), "a picture of more than was signed is none"
    before = len(a.leaves())
    assert isinstance(await outcome(b.acquire("B", FILE)), Busy)
    assert len(a.leaves()) == before, "nothing is decided"
    loads = b.store.calls["load"]
    await b.settle()
    await b.settle()
    assert ready(b) and b.store.calls["load"] == loads, "what was read is not read again"
    assert (await b.acquire("B", FILE)).status == 409
    started = [leaf for leaf in a.leaves() if leaf.type.startswith("tallystick/service.started")]
    assert [leaf.value["cause"] for leaf in started] == ["start", "start"]
    await end([a, b])


async def test_a_start_on_a_ledger_that_can_not_be_read_is_no_start(tmp_path: Path) -> None:
    a, b = nodes_on(tmp_path)
    await a.start()
    with pytest.raises(Busy):
        await b.start([("load", "busy")])
    await b.start()
    await end([a, b])


async def test_a_node_in_reading_mode_follows_by_reading_anew_when_the_head_went_on(tmp_path: Path) -> None:
    a, b = nodes_on(tmp_path)
    await a.start()
    await b.start([("lock", "unfit")])
    for number in range(5):
        await a.acquire("A", f"lock:{number}")
    await b.settle()
    assert ready(b) and b.sequencer.view.get("lease/L6") is not None
    await end([a, b])


# -- keys --------------------------------------------------------------------------------------------------------------


async def test_a_node_without_a_key_in_force_decides_nothing_until_its_file_is_there(tmp_path: Path) -> None:
    a, b = nodes_on(tmp_path)
    a.signer, fresh = rotating_signer(), key_of("receipt 2")
    asked: list[VerifierKey] = []
    folder: dict[str, SigningKey] = {}

    def look(purpose: str, key: VerifierKey) -> bool:
        asked.append(key)
        if purpose in folder:
            b.signer.take(purpose, folder[purpose])
        return b.signer.has(key)

    b.has_key = look
    await a.start()
    await b.start()
    assert (await a.ask(stated(a, "announce", "receipt", "receipt 2"))).status == 200
    with pytest.raises(Unfit, match="copy its file"):
        await b.acquire("B", FILE)
    with pytest.raises(Unfit):
        await b.sequencer.catch_up()
    assert not ready(b) and b.sequencer.failure is None and asked
    assert any(
        isinstance(record := decode_record(key, value), LedgerKey) and record.vkey == asked[0].vkey
        for key, (value, _) in a.disk.records.items()
        if key.startswith("key/")
    )
    folder["receipt"] = fresh
    await b.settle()
    assert ready(b) and (await b.acquire("B", FILE)).status == 200
    for node in (a, b):
        node.keyring = document_of(node)
    await end([a, b])


# -- where nobody else writes ------------------------------------------------------------------------------------------


async def test_a_store_of_ones_own_is_waited_for_as_long_as_it_takes(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        gate = Silence(world)
        first = asyncio.create_task(world.acquire("A", FILE))
        await gate.reached.wait()
        await asyncio.sleep(4 * IMPATIENCE_S)
        assert ready(world) and not first.done()
        gate.open()
        assert (await first).status == 200
        world.store.plan.extend([("commit", "kept"), ("landed", "busy")])
        with pytest.raises(Fatal, match="nobody knows"):
            await world.acquire("B", FILE)
