"""Log time of a ledger that several nodes write: the store's clock says it, and no step of any clock becomes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.clock import HEARD_MS_MAX, STEP_MS_MAX, LogClock, StoreClock
from gateway.errors import Fatal
from tests.core.requests import acquire
from tests.ledger.nodes import end, nodes_on, shared_disk
from tests.world import StillClock, World

T = 1_780_000_000_000
HOUR_MS = 3_600_000


# -- the clocks alone --------------------------------------------------------------------------------------------------


def test_the_clock_of_a_store_goes_on_by_elapsed_time_between_two_words_of_it() -> None:
    still = StillClock(T)
    clock = StoreClock(still)
    assert clock.now_ms() == T, "before it was told anything, the node's own"
    clock.told(T + 5_000)
    still.jump(-HOUR_MS)
    still.advance(100)
    assert (clock.now_ms(), clock.boottime_ms()) == (T + 5_100, still.boottime_ms())
    clock.told(None)
    assert clock.now_ms() == T + 5_100
    clock.told(T + 5_090)
    assert clock.now_ms() == T + 5_090


def test_a_head_of_another_node_within_both_bounds_lends_no_time() -> None:
    """Two nodes under a wall clock that was set an hour ahead, in turns: what both of them know is elapsed time."""
    still = StillClock(T)
    clocks = [LogClock(still), LogClock(still)]
    for clock in clocks:
        clock.seen(T)
    still.jump(HOUR_MS)
    head_ms = T
    for turn in range(2_000):
        still.advance(10)
        writer, reader = clocks[turn % 2], clocks[1 - turn % 2]
        head_ms = writer.next(head_ms)
        writer.seen(head_ms)
        reader.heard(head_ms)
    assert T + 20_000 <= head_ms <= T + 20_000 + STEP_MS_MAX
    assert sum(clock.alarms for clock in clocks) == 2_000


def test_a_head_far_ahead_is_where_log_time_is() -> None:
    """Another node started at a time that no elapsed time here explains. Log time would stand still otherwise."""
    still = StillClock(T)
    clock = LogClock(still)
    clock.heard(T + HOUR_MS)
    assert clock.next(T) == T, "before the first head there is nothing to compare with"
    clock.seen(T)
    clock.heard(T + HEARD_MS_MAX)
    assert clock.peek(T) == T
    clock.heard(T + HOUR_MS)
    still.advance(1_000)
    assert T + HOUR_MS - 1_000 <= clock.next(T + HOUR_MS) <= T + HOUR_MS + 1_000


# -- nodes -------------------------------------------------------------------------------------------------------------


class Server:
    """The database server's clock: it runs as the nodes' do, until a fail-over brings another one."""

    def __init__(self) -> None:
        self.clock = StillClock()

    def now_ms(self) -> int:
        return self.clock.now_ms()


async def cluster(folder: Path) -> tuple[World, World, Server]:
    server = Server()
    a, b = nodes_on(folder, disk=shared_disk(wall_ms=server.now_ms))
    await a.start()
    await b.start()
    return a, b, server


def advance(ms: int, *clocks: World | Server) -> None:
    for one in clocks:
        one.clock.advance(ms)


def newest_ms(world: World) -> int:
    return world.leaves()[-1].time_ms


def asked(world: World, server: Server, name: str, resource: str, log_ms: int | None = None) -> object:
    """Ask as a client does whose clock is right, which is what log time says."""
    return world.ask(acquire(name, resource, at_ms=server.clock.wall if log_ms is None else log_ms, ttlMs=60_000))


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
async def test_the_clock_of_a_node_counts_for_nothing(step_ms: int, tmp_path: Path) -> None:
    a, b, server = await cluster(tmp_path)
    start_ms = server.clock.wall
    b.clock.jump(step_ms)
    for number in range(4):
        advance(1_000, a, b, server)
        await (a, b)[number % 2].ask(acquire("A", f"lock:{number}", at_ms=server.clock.wall))
        assert newest_ms(a) == server.clock.wall
    assert server.clock.wall == start_ms + 4_000
    assert abs(b.sequencer.time_ms - server.clock.wall) <= 1 and b.sequencer.clock_alarms == 0
    await b.restart()
    assert newest_ms(a) == server.clock.wall
    await end([a, b])


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
async def test_a_new_primary_whose_clock_is_wrong_ends_no_lease(step_ms: int, tmp_path: Path) -> None:
    a, b, server = await cluster(tmp_path)
    right = server.clock.wall
    await a.ask(acquire("A", "lock:held", at_ms=right, ttlMs=60_000))
    await b.ask(acquire("B", "lock:b", at_ms=right))
    server.clock.jump(step_ms)  # the fail-over
    for number in range(20):
        advance(1_000, a, b, server)
        right += 1_000
        node = (a, b)[number % 2]
        answer = await node.ask(acquire("C", "lock:held", at_ms=newest_ms(a) + 1_000))
        assert answer.status == 409, "the lease goes on by elapsed time"
        assert right - STEP_MS_MAX <= newest_ms(a) <= right + STEP_MS_MAX
    assert a.sequencer.clock_alarms > 0 and b.sequencer.clock_alarms > 0
    await end([a, b])


async def test_a_node_that_starts_where_the_servers_clock_is_behind_needs_a_persons_word(tmp_path: Path) -> None:
    a, b, server = await cluster(tmp_path)
    await b.stop()
    server.clock.jump(-HOUR_MS)
    with pytest.raises(Fatal, match=r"the database server's clock is 3600\.0 s behind"):
        await b.start()
    assert not a.disk.head_lock.locked(), "the head was given back"
    b.is_clock_accepted = True
    await b.start()
    await end([a, b])


async def test_a_node_that_started_far_ahead_takes_the_others_along(tmp_path: Path) -> None:
    a, b, server = await cluster(tmp_path)
    await b.stop()
    server.clock.jump(HOUR_MS)
    await b.start()
    ahead = newest_ms(b)
    assert ahead == server.clock.wall
    for _ in range(3):
        advance(1_000, a, b, server)
        await a.ask(acquire("A", "lock:a", at_ms=server.clock.wall))
        assert newest_ms(a) == server.clock.wall, "log time goes on, and does not stand still for an hour"
    await end([a, b])
