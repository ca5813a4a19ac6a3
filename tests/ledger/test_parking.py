"""The place before the line: who waits there, who is woken, who leaves; nothing is lost and nothing stays behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.parameters import Parameters
from gateway.core.record_keys import HOLIDAY_KEY, OPERATORS_KEY, ticket_key
from gateway.core.records import Counter, Record, Ticket
from gateway.errors import Busy
from gateway.ledger.parking import PARK_MS_MAX, Draining, Parking, Spot

NOW_MS = 1_780_000_000_000
RULES = Parameters()
LONG_MS = 60_000


class View:
    """Records as they stand in a ledger of so many operators."""

    def __init__(self, *tickets: Ticket, operators: int = 4) -> None:
        self.records: dict[str, Record] = {ticket_key(ticket.ticket_id): ticket for ticket in tickets}
        self.records[OPERATORS_KEY] = Counter(operators)

    def get(self, key: str) -> Record | None:
        return self.records.get(key)

    def near(self, term: str) -> tuple[str, ...]:
        return ()

    def due(self, t_ms: int, limit: int) -> tuple[Ticket, ...]:
        return ()


def queued(number: int = 7, actor: str = "A", **members: Any) -> Ticket:
    ticket = Ticket(
        f"T{number}", actor, actor, actor, ("lock:x",), "write", 30_000, number, NOW_MS,
        poll_by_ms=NOW_MS + RULES.poll_ms, give_up_by_ms=NOW_MS + 3_600_000,
    )  # fmt: skip
    return ticket._replace(**members)


def change(ticket: Ticket, record: Ticket | None) -> tuple[str, Ticket | None, None]:
    return (ticket_key(ticket.ticket_id), record, None)


def spot_of(parking: Parking, view: View, ticket: Ticket, wait_ms: int = LONG_MS) -> Spot:
    spot = parking.spot(view, ticket.ticket_id, ticket.actor, NOW_MS, wait_ms, RULES)
    assert spot is not None
    return spot


async def parked(parking: Parking, *tickets: Ticket, view: View | None = None) -> list[asyncio.Task[None]]:
    """Park a claim for each ticket; return when all of them wait."""
    view = view or View(*tickets)
    before = len(parking)
    tasks = [asyncio.create_task(parking.wait(view, spot_of(parking, view, ticket))) for ticket in tickets]
    await asyncio.sleep(0)
    assert len(parking) == before + len(tickets)
    return tasks


# -- who may wait ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait_ms", "poll_ms", "hold_ms"),
    [(5_000, 30_000, 5_000), (60_000, 30_000, 10_000), (60_000, 90_000, PARK_MS_MAX), (1, 30_000, 1)],
)
def test_a_claim_waits_for_the_least_of_its_wish_the_bound_and_a_third_of_the_poll_time(
    wait_ms: int, poll_ms: int, hold_ms: int
) -> None:
    """Scenario 39: clients cut calls at 25 s."""
    ticket = queued(poll_by_ms=NOW_MS + poll_ms)
    spot = Parking().spot(View(ticket), "T7", "A", NOW_MS, wait_ms, Parameters(poll_ms=poll_ms))
    assert spot == Spot(ticket, hold_ms)


def test_what_can_be_decided_now_does_not_wait() -> None:
    half = RULES.poll_ms // 2
    cases = [
        (queued(), "T8", "A", LONG_MS),  # unknown
        (queued(), "T7", "B", LONG_MS),  # somebody else's
        (queued(claim_by_ms=NOW_MS + 10_000), "T7", "A", LONG_MS),  # offered
        (queued(poll_by_ms=NOW_MS + half - 1), "T7", "A", LONG_MS),  # nearly due for a poll
        (queued(give_up_by_ms=NOW_MS), "T7", "A", LONG_MS),  # lapsed, and not removed yet
        (queued(), "T7", "A", 0),  # no wish
        (queued(), "T7", "A", -5),  # a signature that is over
    ]
    for ticket, ticket_id, actor, wait_ms in cases:
        assert Parking().spot(View(ticket), ticket_id, actor, NOW_MS, wait_ms, RULES) is None, ticket
    assert Parking().spot(View(queued(poll_by_ms=NOW_MS + half)), "T7", "A", NOW_MS, LONG_MS, RULES) is not None


def test_a_holiday_moves_the_poll_time_as_it_moves_every_deadline() -> None:
    view = View(queued(poll_by_ms=NOW_MS))
    assert Parking().spot(view, "T7", "A", NOW_MS, LONG_MS, RULES) is None
    view.records[HOLIDAY_KEY] = Counter(NOW_MS + 30_000)
    assert Parking().spot(view, "T7", "A", NOW_MS, LONG_MS, RULES) is not None


async def test_a_ticket_has_one_parked_claim_and_a_second_is_decided_at_once() -> None:
    parking, ticket = Parking(), queued()
    view = View(ticket)
    (first,) = await parked(parking, ticket, view=view)
    assert parking.spot(view, "T7", "A", NOW_MS, LONG_MS, RULES) is None
    parking.tell([change(ticket, None)])
    await first
    assert parking.spot(view, "T7", "A", NOW_MS, LONG_MS, RULES) is not None


async def test_there_is_room_for_so_many_and_for_a_quarter_of_them_of_one_operator() -> None:
    """Scenario 48's kind: what a crowd may cost is a number."""
    parking = Parking(limit=8)
    mine = [queued(number, "A") for number in range(2)]
    tasks = await parked(parking, *mine)
    more = queued(2, "A")
    with pytest.raises(Busy, match="parking_full") as busy:
        await parking.wait(View(more), spot_of(parking, View(more), more))
    assert busy.value.retry_after_s >= 1
    others = [queued(10 + number, f"B{number}") for number in range(6)]
    tasks += await parked(parking, *others)
    last = queued(99, "C")
    with pytest.raises(Busy, match="parking_full"):
        await parking.wait(View(last), spot_of(parking, View(last), last))
    parking.tell([change(mine[0], None)])
    await tasks[0]
    tasks += await parked(parking, more)
    parking.wake_all()
    await asyncio.gather(*tasks)
    assert (len(parking), parking._operators) == (0, {})


@pytest.mark.parametrize(("operators", "share"), [(1, 9), (2, 4), (3, 3), (4, 2), (7, 2)])
async def test_the_share_of_an_operator_is_smaller_the_more_there_are_but_never_less_than_a_quarter(
    operators: int, share: int
) -> None:
    parking = Parking(limit=9)
    mine = [queued(number, f"A{number}", on_behalf_of="op") for number in range(10)]
    view = View(*mine, operators=operators)
    tasks = await parked(parking, *mine[:share], view=view)
    with pytest.raises(Busy, match="parking_full"):
        await parking.wait(view, spot_of(parking, view, mine[share]))
    parking.wake_all()
    await asyncio.gather(*tasks)


# -- who is woken ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_claim_goes_on_when_its_ticket_is_offered_or_ends(is_gone: bool) -> None:
    parking, ticket = Parking(), queued()
    (task,) = await parked(parking, ticket)
    parking.tell([change(ticket, None if is_gone else ticket._replace(claim_by_ms=NOW_MS + 10_000))])
    await task
    assert (len(parking), parking.tally.woken, parking.tally.lapsed) == (0, 1, 0)


async def test_nothing_else_wakes_it() -> None:
    parking, ticket, other = Parking(), queued(), queued(8, "B")
    (task,) = await parked(parking, ticket)
    parking.tell([change(ticket, ticket._replace(passes=1)), change(ticket, ticket._replace(reserve_until_ms=1))])
    parking.tell([change(other, None), ("lease/L7", None, None), ("ended/T7", None, 1)])
    await asyncio.sleep(0)
    assert not task.done()
    parking.wake_all()
    await task


async def test_one_offer_wakes_exactly_one_of_fifty() -> None:
    """Scenario 33: no herd."""
    parking = Parking()
    tickets = [queued(number, f"A{number}") for number in range(50)]
    tasks = await parked(parking, *tickets)
    parking.tell([change(tickets[17], tickets[17]._replace(claim_by_ms=NOW_MS + 10_000))])
    await tasks[17]
    await asyncio.sleep(0)
    assert [task.done() for task in tasks].count(True) == 1
    parking.wake_all()
    await asyncio.gather(*tasks)


async def test_what_happened_between_the_look_and_the_parking_is_not_missed() -> None:
    """Scenario L30: the wake-up came when nobody was there yet."""
    parking, ticket = Parking(), queued()
    view = View(ticket)
    spot = spot_of(parking, view, ticket)
    view.records[ticket_key("T7")] = ticket._replace(claim_by_ms=NOW_MS + 10_000)
    parking.tell([change(ticket, ticket._replace(claim_by_ms=NOW_MS + 10_000))])
    async with asyncio.timeout(5):
        await parking.wait(view, spot)
    view.records.clear()
    async with asyncio.timeout(5):
        await parking.wait(view, spot)
    assert (parking.tally.woken, len(parking)) == (2, 0)


async def test_a_ledger_that_was_read_anew_is_compared() -> None:
    parking, first, second = Parking(), queued(7), queued(8, "B")
    one, two = await parked(parking, first, second)
    parking.look_again(View(second))
    await one
    await asyncio.sleep(0)
    assert not two.done()
    parking.look_again(View())
    await two


async def test_a_claim_goes_on_when_its_time_is_over() -> None:
    parking, ticket = Parking(), queued()
    view = View(ticket)
    await parking.wait(view, spot_of(parking, view, ticket, wait_ms=5))
    assert (len(parking), parking.tally.lapsed, parking.tally.woken) == (0, 1, 0)


# -- who leaves --------------------------------------------------------------------------------------------------------


async def test_who_leaves_takes_everything_along() -> None:
    """Scenario L32: nothing goes on for somebody who is gone."""
    parking, ticket = Parking(), queued()
    (task,) = await parked(parking, ticket)
    task.cancel()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
    assert (len(parking), parking._operators, parking.tally.left) == (0, {}, 1)
    parking.tell([change(ticket, None)])
    (task,) = await parked(parking, ticket)
    parking.wake_all()
    await task


async def test_a_stop_sends_everybody_away_and_lets_nobody_in() -> None:
    parking, first, second = Parking(), queued(7), queued(8, "B")
    tasks = await parked(parking, first, second)
    parking.close()
    for task in tasks:
        with pytest.raises(Draining):
            await task
    with pytest.raises(Draining):
        await parking.wait(View(first), spot_of(parking, View(first), first))
    assert (len(parking), parking._operators) == (0, {})
    assert parking.tally.woken == 0
