"""A claim parked at one node is woken by a release at another, with hints, and within one poll without any."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from gateway.errors import Busy, Fatal
from gateway.ledger.follower import Follower
from gateway.store.memory import MemoryStore
from tests.core.requests import add, release
from tests.ledger.nodes import Moody, Primary, end, nodes_on, shared_disk, started, until
from tests.ledger.test_sequencer import outcome
from tests.ledger.test_waiting import granted, park, queue, ticket_of

FILE = "repo:app/src/a.py"


@pytest.mark.parametrize("is_hinted", [True, False])
async def test_a_release_at_one_node_wakes_a_claim_that_is_parked_at_another(
    is_hinted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_hinted:
        monkeypatch.setattr(MemoryStore, "listen", lambda self, hint: None)  # every hint is lost
    follow_ms = 10_000 if is_hinted else 300
    a, b = await started(tmp_path, follow_ms=follow_ms)
    await a.acquire("A", FILE)
    ticket_id = await queue(b, "B", FILE)
    waiting = await park(b, "B", ticket_id)
    begun_s = monotonic()
    await a.ask(release("A", FILE))
    await granted(waiting, ticket_id)
    assert monotonic() - begun_s < (2.0 if is_hinted else 0.3 + 1.0), "within one poll, and what the batch costs"
    await end([a, b])


async def test_a_ticket_that_ends_elsewhere_wakes_its_claim_as_well(tmp_path: Path) -> None:
    a, b = await started(tmp_path, follow_ms=50)
    await a.acquire("A", FILE)
    ticket_id = await queue(b, "B", FILE)
    waiting = await park(b, "B", ticket_id)
    a.clock.advance(600_000)
    b.clock.advance(600_000)
    await a.settle()
    async with asyncio.timeout(5):
        await outcome(waiting)
    assert b.sequencer.parking.tally.woken == 1
    await end([a, b])


async def test_a_claim_is_woken_by_what_is_seen_and_granted_by_what_is_durable(tmp_path: Path) -> None:
    disk = shared_disk()
    a, b = nodes_on(tmp_path, disk=disk)
    primary = Primary(disk)
    for node in (a, b):
        node.open_store = lambda *, may_create=False: Moody(primary)  # type: ignore[method-assign]
        await node.start()
    await a.acquire("A", FILE)
    ticket_id = await queue(b, "B", FILE)
    waiting = await park(b, "B", ticket_id)
    await a.ask(release("A", FILE))
    primary.is_alone = True
    with pytest.raises(Busy):
        await b.sequencer.catch_up()
    await until(lambda: b.sequencer.parking.tally.woken == 1)
    assert ticket_of(b, ticket_id).claim_by_ms is None, "the offer is shown to nobody yet"
    primary.is_alone = False
    await outcome(waiting)
    await end([a, b])


async def test_nodes_know_what_others_wrote_within_a_poll(tmp_path: Path) -> None:
    """Scenarios L30 and L57."""
    a, b = await started(tmp_path, follow_ms=50)
    await a.ask(add("op", "D", a.clock.wall))
    await until(lambda: b.sequencer.confirmed == a.sequencer.confirmed, 2)
    await end([a, b])


# -- the follower itself -----------------------------------------------------------------------------------------------


class Scene:
    """Counts how often was followed; is busy as often as it is told to."""

    def __init__(self, follow_ms: int, *, is_awaited: bool = True) -> None:
        self.followed: list[float] = []
        self.faults: list[Exception] = []
        self.follower = Follower(self._catch_up, lambda: is_awaited, follow_ms)
        self.task = asyncio.create_task(self.follower.run())

    async def _catch_up(self) -> None:
        self.followed.append(monotonic())
        if self.faults:
            raise self.faults.pop()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_polls_are_between_half_a_period_and_a_whole_one_apart() -> None:
    scene = Scene(40)
    await until(lambda: len(scene.followed) == 8)
    gaps = [later - earlier for earlier, later in zip(scene.followed, scene.followed[1:], strict=False)]
    assert min(gaps) >= 0.0195 and len({round(gap, 4) for gap in gaps}) > 1
    await scene.close()


async def test_hints_hurry_it_only_while_a_claim_is_parked_and_not_without_end() -> None:
    for is_awaited in (True, False):
        scene = Scene(10_000, is_awaited=is_awaited)
        for _ in range(100):
            await asyncio.to_thread(scene.follower.hint)  # from another thread, as an engine does
        await asyncio.sleep(0.1)
        assert len(scene.followed) in ((1, 2, 3, 4, 5) if is_awaited else (0,))
        await scene.close()


async def test_a_busy_store_is_asked_again_and_a_broken_one_is_not() -> None:
    scene = Scene(10)
    scene.faults = [Fatal("broken"), Busy("away"), Busy("away")]
    async with asyncio.timeout(5):
        await scene.task
    assert len(scene.followed) == 3


async def test_a_hint_after_the_end_is_harmless() -> None:
    def ended() -> Follower:
        async def make() -> Follower:
            return Follower(Scene._catch_up, lambda: True, 10)  # type: ignore[arg-type]  # never called

        return asyncio.run(make())

    (await asyncio.to_thread(ended)).hint()
