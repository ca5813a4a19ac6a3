"""Nothing unreplicated is shown: what a node saw of another one, and what was not confirmed yet, may vanish."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.actions import ACTIONS
from gateway.core import refusal
from gateway.errors import Busy
from gateway.ledger import commits
from gateway.ledger.sequencer import Refused
from tests.core.requests import ORIGIN, acquire, anchor_text, release
from tests.ledger.nodes import Moody, Primary, check_answers, end, nodes_on, shared_disk
from tests.ledger.test_sequencer import outcome
from tests.world import World

FILE = "lock:vanishing"


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "LANDED_PAUSE_S", 0.01)


async def pair(folder: Path) -> tuple[World, World, Primary]:
    disk = shared_disk()
    a, b = nodes_on(folder, disk=disk)
    primary = Primary(disk)
    for node in (a, b):
        node.open_store = lambda *, may_create=False: Moody(primary)  # type: ignore[method-assign]
    await a.start()
    await b.start()
    return a, b, primary


async def test_a_batch_that_vanishes_was_in_nothing_that_anybody_was_shown(tmp_path: Path) -> None:
    a, b, primary = await pair(tmp_path)
    await b.sequencer.catch_up()
    before = [(node.sequencer.confirmed, dict(node.sequencer.view.scan(""))) for node in (a, b)]
    primary.is_alone = True
    asked = acquire("A", FILE)
    told = await outcome(a.ask(asked))
    assert isinstance(told, Busy) and told.reason == "outcome_unknown"
    assert b'"lease.granted' in primary.disk.leaves[-1] or b"lease.granted" in primary.disk.leaves[-1]
    with pytest.raises(Busy):
        await b.sequencer.catch_up()  # it is seen, and not confirmed
    assert b.sequencer.counters.followed > 0
    # Who is refused or repeated because of it is told nothing either.
    for work in (b.acquire("B", FILE), b.ask(asked.again()), a.ask(asked.again())):
        assert isinstance(await outcome(work), Busy)
    after = [(node.sequencer.confirmed, dict(node.sequencer.view.scan(""))) for node in (a, b)]
    assert after == before
    notes = [signed.note for signed in primary.disk.signed.values()]
    primary.fail_over()
    assert all(signed.note in notes for signed in primary.disk.signed.values())
    answer = await b.acquire("B", FILE)
    assert answer.status == 200, "there never was a lease of A"
    assert (await a.ask(asked.again())).status == 409
    kinds = a.types(before[0][0].size)
    assert "service.started" in kinds and kinds.count("lease.granted") == 1
    await check_answers(a, [answer])
    await end([a, b])


async def test_what_was_only_visible_is_shown_once_the_standby_is_back(tmp_path: Path) -> None:
    a, b, primary = await pair(tmp_path)
    primary.is_alone = True
    asked = acquire("A", FILE)
    assert isinstance(await outcome(a.ask(asked)), Busy)
    with pytest.raises(Busy):
        await b.sequencer.catch_up()
    primary.is_alone = False
    await b.sequencer.catch_up()
    assert b.sequencer.confirmed.size == len(primary.disk.leaves)
    answer = await b.ask(asked.again())
    assert (answer.status, answer.is_replay) == (200, True)
    assert (await a.ask(asked.again())).body() == answer.body()
    await end([a, b])


async def test_a_followed_lease_is_decided_by_and_not_shown(tmp_path: Path) -> None:
    """A commit that waits for the stand-by: readers of this node see the head before it, all the while."""
    a, b, primary = await pair(tmp_path)
    await a.acquire("A", FILE)
    assert b.sequencer.view.get("lease/L6") is None and b.sequencer.confirmed.size == 6 + 2
    await b.sequencer.catch_up()
    await a.ask(release("A", FILE))
    primary.is_alone = True
    assert isinstance(await outcome(b.acquire("B", FILE)), Busy)
    primary.is_alone = False
    await end([a, b])


async def test_a_node_that_starts_on_what_may_vanish_does_not_start(tmp_path: Path) -> None:
    a, b, primary = await pair(tmp_path)
    await b.stop()
    primary.is_alone = True
    assert isinstance(await outcome(a.ask(acquire("A", FILE))), Busy)
    with pytest.raises(Busy):
        await b.start()
    primary.fail_over()
    await b.start()
    with pytest.raises(Refused) as refused:
        await b.acquire("stranger", FILE)
    assert refused.value.unreceipted.refusal is refusal.AGENT_UNKNOWN
    await asyncio.sleep(0)
    await end([a, b])


async def test_a_head_that_vanished_is_no_history_that_anybody_may_name(tmp_path: Path) -> None:
    a, b, primary = await pair(tmp_path)
    primary.is_alone = True
    assert isinstance(await outcome(a.ask(acquire("A", FILE))), Busy)
    with pytest.raises(Busy):
        await b.sequencer.catch_up()
    head = primary.disk.head
    assert head is not None and b.sequencer._tail.anchors.get(head.size) == head.root
    primary.fail_over()
    await b.sequencer.catch_up()
    asked = acquire("B", FILE).but(anchor=anchor_text(ORIGIN, head.size, head.root)).signed()
    with pytest.raises(Refused) as refused:
        await b.sequencer.submit(asked, ACTIONS[asked.action])
    assert refused.value.unreceipted.refusal is refusal.UNKNOWN_HISTORY
    await end([a, b])
