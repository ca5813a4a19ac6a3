"""The line: two rows, each in order of arrival, neither of which can keep the other waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.actions import ACTIONS
from gateway.errors import Busy
from gateway.ledger.line import QUEUE_MAX, QUEUE_RESERVED, Line, Waiting
from gateway.ledger.turn import in_time
from tests.core.requests import Ask, acquire, batch, release, renew
from tests.world import World


def waiting(ask: Ask) -> Waiting:
    return Waiting(asyncio.get_running_loop().create_future(), ask.signed())


def names(row: Iterator[Waiting] | list[Waiting]) -> list[str]:
    return [one.request.idempotency_key for one in row if one.request]


def lined_up(first: int, others: int) -> Line:
    """Return a line with renewals f0, f1 … that came after acquires o0, o1 …"""
    line = Line()
    for number in range(others):
        line.join(waiting(acquire("A", "lock:a").but(idempotency_key=f"o{number}")))
    for number in range(first):
        line.join(waiting(renew("B", "L7").but(idempotency_key=f"f{number}")))
    return line


@pytest.mark.parametrize(
    ("ask", "is_first"),
    [
        (renew("A", "L7"), True),
        (renew("A", "L7", ttlMs=5_000), True),
        (renew("A", "L7", mode="write"), False),
        (release("A", "lock:a", leaseId="L7"), True),
        (release("A", "lock:a"), False),
        (acquire("A", "lock:a"), False),
        (batch("A", renew("A", "L7"), release("A", "lock:a", leaseId="L7")), False),
    ],
)
async def test_who_goes_first(ask: Ask, is_first: bool) -> None:
    assert waiting(ask).is_first is is_first


@pytest.mark.parametrize(
    ("first", "others", "taken"),
    [
        (2, 2, ["f0", "f1", "o0", "o1"]),
        (2, 9, ["f0", "f1", "o0", "o1"]),
        (9, 9, ["f0", "f1", "o0", "o1"]),
        (9, 1, ["f0", "f1", "f2", "o0"]),
        (9, 0, ["f0", "f1", "f2", "f3"]),
        (0, 9, ["o0", "o1", "o2", "o3"]),
    ],
)
async def test_each_kind_gets_half_of_a_batch_if_it_needs_it(first: int, others: int, taken: list[str]) -> None:
    line = lined_up(first, others)
    assert (names(line.take(4)), len(line)) == (taken, first + others - 4)


async def test_all_can_be_taken_at_once() -> None:
    for first, others in ((0, 0), (1, 4), (5, 2), (3, 3)):
        line = lined_up(first, others)
        assert (len(line.take(len(line))), len(line)) == (first + others, 0)


async def test_who_is_put_back_stands_at_the_front_in_order() -> None:
    line = lined_up(4, 4)
    taken = line.take(4)
    line.put_back([taken[1], *taken[2:]])
    assert names(line.take(7)) == ["f1", "f2", "f3", "o0", "o1", "o2", "o3"]


@pytest.mark.parametrize(
    ("looks", "given"), [(0, ["f0", "o0"]), (1, ["f0", "f1", "o0"]), (2, ["f0", "f1", "f2", "o0"])]
)
async def test_when_time_is_over_one_of_each_kind_is_decided(looks: int, given: list[str]) -> None:
    left = iter([False] * looks)
    assert names(in_time(lined_up(3, 3).take(6), lambda: next(left, True))) == given


async def test_in_time_all_are_decided() -> None:
    assert names(in_time(lined_up(2, 2).take(4), lambda: False)) == ["f0", "f1", "o0", "o1"]


async def test_commands_that_came_as_one_take_the_room_of_as_many_and_are_not_divided() -> None:
    line = Line()
    many = batch("A", *(acquire("A", f"lock:{number}") for number in range(5))).but(idempotency_key="many")
    for ask in (acquire("A", "lock:a").but(idempotency_key="o0"), many, many.but(idempotency_key="more")):
        line.join(waiting(ask))
    assert len(line) == 11
    taken = line.take(4)
    assert (names(taken), len(line)) == (["o0", "many"], 5)
    line.put_back(taken[1:])
    assert (names(line.take(5)), len(line)) == (["many"], 5)
    line.join(waiting(renew("B", "L7").but(idempotency_key="f0")))
    assert (names(line.take(4)), len(line)) == (["f0", "more"], 0)


async def test_the_room_is_for_so_many_commands_in_all() -> None:
    line = Line()
    many = waiting(batch("A", *(acquire("A", f"lock:{number}") for number in range(256))))
    for _ in range((QUEUE_MAX - QUEUE_RESERVED) // 256):
        line.join(many)
    for ask in (acquire("A", "lock:a"), batch("A", renew("A", "L7"))):
        with pytest.raises(Busy, match="queue_full"):
            line.join(waiting(ask))
    line.join(waiting(renew("A", "L7")))
    assert len(line) == QUEUE_MAX - QUEUE_RESERVED + 1


async def test_whom_the_door_vouches_for_stands_before_who_may_take_that_back_in_the_same_batch(tmp_path: Path) -> None:
    """Else an entry of an API key could stand behind its revocation: both were shown the records before the batch."""
    async with World(tmp_path) as world:
        later = world.anchored(acquire("B", "lock:x", at_ms=world.clock.wall)).signed()
        vouched = world.sequencer.submit(later, ACTIONS[later.action], lambda view: None)
        first, second = await asyncio.gather(world.acquire("A", "lock:x"), vouched)
        assert (first.status, second.status) == (409, 200) and second.seq < first.seq
        world.audit()
