"""The server of the simulator by itself: whom it gives the head to, what becomes of commits, what a fail-over keeps."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from gateway.errors import Busy, HeadMoved, Unfit, Unknown
from gateway.store.contract import StoredHead
from tests.sim.server import IDLE_S, Server
from tests.sim.shared import LOCK_MS, Shared
from tests.sim.test_world import Planned, batch, told


class Clock:
    """Time that goes on when a call waits."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.later: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Clock:
        self.later.append((self.now_ms + delay * 1_000, lambda: callback(*args)))
        return self

    def cancel(self) -> None:
        """What was put off is looked at again by whoever put it off."""

    def sleep(self, seconds: float) -> None:
        until_ms = self.now_ms + seconds * 1_000
        due = sorted((one for one in self.later if one[0] <= until_ms), key=lambda one: one[0])
        self.later = [one for one in self.later if one[0] > until_ms]
        for at_ms, call in due:
            self.now_ms = max(self.now_ms, round(at_ms))
            call()
        self.now_ms = round(until_ms)


class Nodes:
    """A server with an entry, and stores on it that have loaded it."""

    def __init__(self, count: int = 2) -> None:
        self.durable: list[int] = []
        self.accused: list[str] = []
        self.clock = Clock()
        self.server = Server(Planned(), Random(1), told(self.durable), self.clock, journal_max=3)
        self.server.accuse = lambda name, text: self.accused.append(name)
        first, self.head = batch(0)
        self.stores = [Shared(self.server) for _ in range(count)]
        self.server.write(first, self.stores[0])
        for store in self.stores:
            store.sleep = self.clock.sleep
            store.load()
            store._is_opening = False

    def plan(self, *faults: str) -> None:
        self.server._chances = Planned(*faults)

    def write(self, store: Shared, seq: int, expected: StoredHead) -> StoredHead:
        store.lock(expected, (), ())
        stored, head = batch(seq)
        store.commit(stored, expected)
        return head


def test_one_has_the_head_and_others_wait_or_are_told_what_was_written() -> None:
    nodes = Nodes()
    a, b = nodes.stores
    a.lock(nodes.head, (), ())
    with pytest.raises(Busy):
        b.lock(nodes.head, (), ())
    assert nodes.clock.now_ms == LOCK_MS
    a.load()
    head = nodes.write(a, 1, nodes.head)
    locked = b.lock(nodes.head, ("agent/1",), ())
    assert [one.head for one in locked.moved] == [head] and "agent/1" in locked.records
    b.unlock()
    assert a.news(head) == () and [one.head for one in a.news(nodes.head)] == [head]


def test_a_head_that_nobody_uses_is_taken_away() -> None:
    nodes = Nodes()
    a, b = nodes.stores
    a.lock(nodes.head, (), ())
    nodes.clock.sleep(IDLE_S)
    nodes.write(b, 1, nodes.head)
    with pytest.raises(HeadMoved):
        a.commit(batch(1)[0], nodes.head)


def test_a_journal_ends() -> None:
    nodes = Nodes()
    a, b = nodes.stores
    head = nodes.head
    for seq in range(1, 5):
        head = nodes.write(a, seq, head)
    with pytest.raises(HeadMoved):
        b.lock(nodes.head, (), ())
    with pytest.raises(HeadMoved):
        b.news(nodes.head)


def test_a_commit_that_is_still_on_its_way_is_waited_for() -> None:
    nodes = Nodes(1)
    (a,) = nodes.stores
    a.lock(nodes.head, (), ())
    nodes.plan("in_flight")
    with pytest.raises(Unknown):
        a.commit(batch(1)[0], nodes.head)
    assert nodes.durable == [0]
    assert a.landed("batch 1") and nodes.durable == [0, 1]
    with pytest.raises(HeadMoved):
        a.lock(batch(1)[1], (), ())  # a new connection


def test_what_was_called_absent_and_lands_is_told() -> None:
    nodes = Nodes(1)
    (a,) = nodes.stores
    assert not a.landed("batch 1")
    nodes.server.write(batch(1)[0], a)
    assert nodes.accused == ["landed"]


def test_a_fail_over_keeps_what_was_acknowledged_and_any_part_of_the_rest() -> None:
    kept = set()
    for seed in range(20):
        nodes = Nodes(1)
        (a,) = nodes.stores
        nodes.server.rng = Random(seed)
        head = nodes.write(a, 1, nodes.head)
        for seq in (2, 3):
            a.lock(head, (), ())
            nodes.plan("unreplicated")
            with pytest.raises(Unknown):
                a.commit(batch(seq)[0], head)
            head = batch(seq)[1]
            a._session = nodes.server.begin(a.wake)
            a._is_loaded = True
        assert nodes.durable == [0, 1] and len(nodes.server.disk.leaves) == 4
        nodes.server.fail_over()
        kept.add(len(nodes.server.disk.leaves))
        assert nodes.durable == list(range(len(nodes.server.disk.leaves)))
        with pytest.raises(HeadMoved):
            a.lock(head, (), ())
    assert kept == {2, 3, 4}


def test_a_barrier_makes_what_was_seen_durable() -> None:
    nodes = Nodes()
    a, b = nodes.stores
    a.lock(nodes.head, (), ())
    nodes.plan("unreplicated")
    with pytest.raises(Unknown):
        a.commit(batch(1)[0], nodes.head)
    assert b.news(nodes.head) and nodes.durable == [0]
    nodes.plan("confirm_lost")
    with pytest.raises(Unknown):
        b.confirm()
    assert nodes.durable == [0]
    b.load()
    assert nodes.durable == [0, 1] and not nodes.server.is_behind


def test_without_a_stand_by_a_commit_waits_and_others_do_not_get_the_head() -> None:
    nodes = Nodes()
    a, b = nodes.stores
    a.lock(nodes.head, (), ())
    nodes.server.standby_back_ms = 3_000
    nodes.server.submit(a._session, batch(1)[0], a)  # type: ignore[arg-type]
    with pytest.raises(Busy):
        b.lock(nodes.head, (), ())
    assert nodes.durable == [0] and len(nodes.server.disk.leaves) == 1
    nodes.clock.sleep(2)
    assert nodes.durable == [0, 1]


def test_a_server_that_is_unfit_says_so() -> None:
    nodes = Nodes(1)
    nodes.server.unfit_until_ms = 1_000
    with pytest.raises(Unfit):
        nodes.stores[0].lock(nodes.head, (), ())
    nodes.clock.sleep(1)
    nodes.write(nodes.stores[0], 1, nodes.head)


def test_after_a_fail_over_somebody_must_start() -> None:
    nodes = Nodes(1)
    nodes.server.fail_over()
    nodes.stores[0].load()
    nodes.write(nodes.stores[0], 1, nodes.head)
    assert sorted(nodes.accused) == ["epoch", "holiday"]
