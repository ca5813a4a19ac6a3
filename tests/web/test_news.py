"""What others wrote, looked for before a door turns somebody away: shared, bounded, and nothing where nobody writes."""

import asyncio
from time import monotonic

import pytest

from gateway.errors import Busy
from gateway.ledger.history import Confirmed
from gateway.news import News


class Node:
    """A sequencer that learns of `ahead` entries when it looks, once `gate` is open."""

    def __init__(self, ahead: int = 1) -> None:
        self.confirmed = Confirmed(5, bytes(32), b"")
        self.ahead = ahead
        self.looks: list[float] = []
        self.gate, self.has_begun = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None

    async def catch_up(self) -> None:
        self.looks.append(monotonic())
        self.has_begun.set()
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.confirmed = Confirmed(self.confirmed.size + self.ahead, bytes(32), b"")


def unknown() -> int:
    raise KeyError


async def test_where_nobody_else_writes_nothing_is_asked() -> None:
    node = Node()
    news = News(node, is_shared=False)
    assert not await news.catch_up()
    assert await news.reached(5) and not await news.reached(6)
    with pytest.raises(KeyError):
        await news.known(unknown, KeyError)
    assert node.looks == []


async def test_what_is_unknown_is_looked_for_once_more_after_catching_up() -> None:
    node, asked = Node(), []

    def look() -> int:
        asked.append(node.confirmed.size)
        if node.confirmed.size < 6:
            raise KeyError
        return node.confirmed.size

    news = News(node, is_shared=True)
    assert await news.known(look, KeyError) == 6
    assert asked == [5, 6]
    assert await news.reached(6) and len(node.looks) == 1, "what is there is not looked for"
    assert not await news.reached(9) and len(node.looks) == 2


async def test_what_stays_unknown_is_refused_as_it_was() -> None:
    news = News(Node(ahead=0), is_shared=True)
    asked: list[int] = []

    def look() -> int:
        asked.append(1)
        raise KeyError

    with pytest.raises(KeyError):
        await news.known(look, KeyError)
    assert len(asked) == 1, "nothing came, so there is nothing to look at again"


async def test_strangers_share_few_looks() -> None:
    node = Node(ahead=0)
    news = News(node, is_shared=True, seconds=0.05)
    begun_s = monotonic()
    for _ in range(4):
        assert await asyncio.gather(*(news.catch_up() for _ in range(100))) == [False] * 100
    assert len(node.looks) == news.looks == 4
    assert monotonic() - begun_s >= 0.15, "at most one in 50 ms"


async def test_who_comes_during_a_look_waits_for_the_next_for_that_one_may_have_looked_already() -> None:
    node = Node()
    news = News(node, is_shared=True, seconds=0.0)
    node.gate.clear()
    first = asyncio.create_task(news.catch_up())
    await node.has_begun.wait()
    second, third = asyncio.create_task(news.catch_up()), asyncio.create_task(news.catch_up())
    await asyncio.sleep(0.01)
    assert len(node.looks) == 1, "one look at a time"
    node.gate.set()
    assert await first and await second and await third
    assert len(node.looks) == 2


async def test_who_goes_away_takes_no_look_along() -> None:
    node = Node()
    news = News(node, is_shared=True)
    node.gate.clear()
    gone, stays = asyncio.create_task(news.catch_up()), asyncio.create_task(news.catch_up())
    await node.has_begun.wait()
    gone.cancel()
    node.gate.set()
    assert await stays
    assert gone.cancelled()


async def test_a_store_that_is_away_says_so_and_nobody_is_called_unknown() -> None:
    node = Node()
    node.fault = Busy("store_unreachable")
    news = News(node, is_shared=True)
    with pytest.raises(Busy, match="store_unreachable"):
        await news.known(unknown, KeyError)
    with pytest.raises(Busy, match="store_unreachable"):
        await news.reached(6)
    node.fault = None
    assert await news.reached(6), "and the next look is another one"
