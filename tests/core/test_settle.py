"""Who is next, told as stories; the invariant behind them is walked through in test_queue_model.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core import append, expiry
from gateway.core.draft import Draft
from gateway.core.opening import start_steps
from gateway.core.outcome import Context, Decision
from gateway.core.record_keys import TICKETS_KEY, delay_key, lease_key, scheme_key, ticket_key
from gateway.core.records import Counter, Delay, Scheme, Ticket
from gateway.core.resource import ask_of
from gateway.core.settle import count_passes, lapse_ticket, position, settle, standing
from gateway.core.terms import met_by
from tests.core.hall import Crowd, Hall, now
from tests.core.requests import NOW_MS, accept, acquire, did_of, release, set_scheme, transfer
from verifier.replay import due

READ_SAFE = Scheme("db", "read-safe", False, False, 0, 3_600_000, 1)


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> int:
    """How much one sweep takes away at most: fewer than the gateway's 256, so that a short line is a long one."""
    most = 24
    for module in (append, expiry):
        monkeypatch.setattr(module, "EXPIRIES_MAX", most)
    monkeypatch.setattr(due, "ENDS_MAX", most)  # what an auditor demands of it
    return most


def doc_hall() -> Hall:
    """A hall in which documents are read together."""
    hall = Hall()
    hall.say(set_scheme("op", "doc", "read-safe"))
    return hall


def test_readers_at_the_head_go_together_and_a_writer_in_line_stops_later_readers() -> None:
    """Scenarios 32, 33: exactly the next run is woken, not the herd, and nobody patient starves."""
    hall = doc_hall()
    lease = hall.hold("A", "doc:a")
    first, second = hall.line("B", "doc:a", mode="read"), hall.line("C", "doc:a", mode="read")
    writer = hall.line("D", "doc:a")
    third = hall.line("E", "doc:a", mode="read")
    assert hall.free("A", lease) == [("wait.offered", first), ("wait.offered", second)]
    reader = hall.claim("B", first).text("leaseId")
    assert hall.offered() == [second] and hall.free("B", reader) == []
    assert hall.free("C", hall.claim("C", second).text("leaseId")) == [("wait.offered", writer)]
    assert hall.free("D", hall.claim("D", writer).text("leaseId")) == [("wait.offered", third)]
    assert hall.audited() == []


def test_a_reader_joins_readers_at_once_but_not_past_a_writer_in_line() -> None:
    hall = doc_hall()
    hall.hold("A", "doc:a", mode="read")
    hall.hold("B", "doc:a", mode="read")
    hall.line("C", "doc:a")
    assert hall.ask_for("D", "doc:a", mode="read").text("error") == "queued"
    assert hall.audited() == []


def test_fifty_in_line_are_served_in_their_order_however_impatient_they_are() -> None:
    """Scenarios 32, 33: no timing helps; the order is that of the tickets."""
    people = [f"P{n}" for n in range(50)]
    hall = Hall(("A", *people))
    lease, holder = hall.hold("A", "repo:x"), "A"
    tickets = [(name, hall.line(name, "repo:x")) for name in people]
    for name, ticket in tickets:
        assert hall.free(holder, lease) == [("wait.offered", ticket)]
        lease, holder = hall.claim(name, ticket).text("leaseId"), name
    assert hall.free(holder, lease) == [] and hall.tickets() == {}


def test_nine_dead_clients_in_line_cost_the_tenth_nothing() -> None:
    """Scenarios 3, L27, L28: the holder dies as well; who still asks is offered it in the sweep that ends the lease."""
    hall = Hall([*"ABCDEFGHIJK"])
    hall.hold("A", "repo:x", ttlMs=60_000)
    dead = [hall.line(name, "repo:x") for name in "BCDEFGHIJ"]
    alive = hall.line("K", "repo:x")
    hall.t_ms += 25_000
    hall.claim("K", alive)
    assert hall.later(5_000) == [("wait.removed", ticket) for ticket in dead]
    hall.t_ms += 20_000
    hall.claim("K", alive)
    assert hall.later(10_000)[1:] == [("wait.offered", alive)]
    assert hall.types(len(hall.leaves) - 2) == ["lease.expired", "wait.offered"]
    assert hall.audited() == []


def test_any_number_of_dead_is_skipped_before_one_decision(sweep: int) -> None:
    """More than one sweep takes away; a request that touches their names finds all of them gone."""
    people = [f"P{n}" for n in range(sweep + 4)]
    hall = Hall(("A", "B", *people), queue_per_resource=10_000)
    lease = hall.hold("A", "repo:x")
    for name in people:
        hall.line(name, "repo:x", giveUpMs=5_000)
    hall.t_ms += 5_000
    mark = len(hall.leaves)
    assert hall.ask_for("B", "repo:x").text("error") == "lease_held"
    assert [kind for kind, _ in hall.told(mark)] == ["wait.removed"] * len(people) + ["lease.refused"]
    assert hall.tickets() == {} and hall.free("A", lease) == []


def test_an_offer_that_nobody_claims_goes_to_the_next_within_one_window() -> None:
    """Scenarios L27, L28, L30: by log time alone, without anybody asking."""
    hall = Hall(claim_ms=10_000, poll_ms=15_000)
    lease = hall.hold("A", "repo:x")
    first, second = hall.line("B", "repo:x"), hall.line("C", "repo:x")
    hall.t_ms += 14_000
    hall.claim("C", second)
    hall.free("A", lease)
    assert hall.tickets()[first].claim_by_ms == hall.t_ms + 10_000, "later than the poll that was due"
    assert hall.later(9_999) == []
    assert hall.later(1) == [("wait.removed", first), ("wait.offered", second)]
    assert hall.leaf(len(hall.leaves) - 2).text("reason") == "claim_lapsed"
    assert hall.claim("B", first).text("error") == "ticket_ended"
    assert hall.audited() == []


def test_whoever_polls_keeps_the_offer_until_the_next_poll_would_be_due() -> None:
    hall = Hall(claim_ms=10_000, poll_ms=30_000)
    lease = hall.hold("A", "repo:x")
    ticket = hall.line("B", "repo:x")
    hall.free("A", lease)
    assert hall.tickets()[ticket].claim_by_ms == NOW_MS + 30_000


def test_an_offer_given_up_or_cancelled_goes_to_the_next() -> None:
    hall = Hall()
    lease = hall.hold("A", "repo:x")
    first = hall.line("B", "repo:x", giveUpMs=5_000)
    second, third = hall.line("C", "repo:x"), hall.line("D", "repo:x")
    hall.free("A", lease)
    assert hall.later(5_000) == [("wait.removed", first), ("wait.offered", second)]
    assert hall.leaf(len(hall.leaves) - 2).text("reason") == "given_up"
    mark = len(hall.leaves)
    hall.cancel("C", second)
    assert hall.told(mark) == [("wait.cancelled", second), ("wait.offered", third)]
    assert hall.audited() == []


@pytest.mark.parametrize(
    ("give_up_ms", "wait_ms", "reason"),
    [(2_000, 2_000, "given_up"), (5_000, 5_000, "given_up"), (9_000, 5_000, "poll_lapsed")],
)
def test_a_ticket_is_removed_for_the_deadline_that_comes_first(give_up_ms: int, wait_ms: int, reason: str) -> None:
    """Scenario L2: whoever does not ask any more leaves the line, and is told why."""
    hall = Hall(poll_ms=5_000)
    hall.hold("A", "repo:x")
    ticket = hall.line("B", "repo:x", giveUpMs=give_up_ms)
    assert hall.later(wait_ms - 1) == []
    assert hall.later(1) == [("wait.removed", ticket)]
    assert hall.leaf(len(hall.leaves) - 1).text("reason") == reason
    assert hall.shelf.records[TICKETS_KEY] == Counter(0)


def test_no_deadline_comes_in_a_holiday() -> None:
    hall = Hall(poll_ms=5_000)
    hall.hold("A", "repo:x")
    ticket = hall.line("B", "repo:x")
    assert hall.head is not None
    hall.t_ms += 20_000
    steps = start_steps("start", is_clean=False, before_ms=hall.head.time_ms)
    hall.run(hall.t_ms, steps=steps, epoch=1)
    assert hall.later(19_999) == [] and ticket in hall.tickets()
    assert hall.later(1) == [("wait.removed", ticket)]
    assert hall.audited() == []


def test_a_ticket_for_several_names_waits_aside_while_it_can_use_none() -> None:
    """It keeps nothing idle: others pass while something is in its own way; when nothing is, they stand behind it."""
    hall = Hall()
    on_a, on_b = hall.hold("A", "repo:a"), hall.hold("B", "repo:b")
    both = hall.line("C", "repo:a", "repo:b")
    single = hall.line("D", "repo:b")
    assert hall.free("B", on_b) == [("wait.offered", single)]
    assert hall.tickets()[both].passes == 1
    assert hall.free("D", hall.claim("D", single).text("leaseId")) == []
    assert hall.free("B", hall.hold("B", "repo:b")) == [] and hall.tickets()[both].passes == 2
    assert hall.free("A", on_a) == [("wait.offered", both)]
    assert hall.ask_for("B", "repo:b").text("error") == "queued"
    assert hall.audited() == []


def test_what_one_name_lacks_the_ticket_no_longer_keeps_on_the_other() -> None:
    """A lease that begins may let somebody go: C stopped D while it could use both; it can't once B has one."""
    hall = Hall()
    first = hall.hold("A", "repo:a", "repo:b")
    ahead = hall.line("B", "repo:a")
    both = hall.line("C", "repo:a", "repo:b")
    last = hall.line("D", "repo:b")
    assert hall.free("A", first) == [("wait.offered", ahead)], "nothing but B's offer keeps C from both"
    mark = len(hall.leaves)
    hall.claim("B", ahead)
    assert hall.told(mark)[1:] == [("wait.offered", last)]
    assert hall.tickets()[both].passes == 1, "B was before it, only D passed"
    assert hall.audited() == []


def test_after_so_many_passes_it_reserves_and_then_waits_on_in_its_place() -> None:
    """Scenario 32: bounded bypass. Thirty-two go first, the next one does not."""
    hall = Hall(poll_ms=1_000_000)
    hall.hold("A", "repo:a")
    both = hall.line("C", "repo:a", "repo:b")
    for turn in range(32):
        assert hall.tickets()[both].passes == turn
        mark = len(hall.leaves)
        lease = hall.hold("B", "repo:b")
        assert hall.told(mark)[1:] == ([("wait.reserved", both)] if turn == 31 else [])
        hall.free("B", lease)
    refused = hall.ask_for("B", "repo:b")
    assert (refused.text("error"), refused.value["ahead"]["ticketId"]) == ("queued", both)  # type: ignore[index, call-overload]
    late = hall.line("D", "repo:b")
    assert hall.later(29_999) == []
    assert hall.later(1) == [("wait.resumed", both), ("wait.offered", late)]
    assert hall.tickets()[both].passes == 33
    assert hall.later(0) == [], "once"
    assert hall.free("D", hall.claim("D", late).text("leaseId")) == [], "no second reservation, however many go first"
    assert hall.free("B", hall.hold("B", "repo:b")) == []
    assert hall.tickets()[both].passes == 34
    assert hall.audited() == []


def test_whose_reservation_was_in_vain_is_served_later_under_its_old_number() -> None:
    """It stands before everybody who came after it, as soon as nothing is in its own way."""
    hall = Hall(passes_max=1, poll_ms=100_000)
    lease = hall.hold("A", "repo:a", ttlMs=90_000)
    both = hall.line("C", "repo:a", "repo:b")
    hall.free("B", hall.hold("B", "repo:b"))
    assert hall.later(30_000) == [("wait.resumed", both)]
    behind = hall.line("D", "repo:a")
    assert hall.later(30_000) == []
    assert hall.free("A", lease) == [("wait.offered", both)]
    served = hall.claim("C", both)
    assert (served.type.split("/")[1], served.text("ticketId")) == ("lease.claimed", both)
    assert hall.free("C", served.text("leaseId")) == [("wait.offered", behind)]
    assert hall.audited() == []


def test_a_reservation_ends_before_whatever_touches_its_names(sweep: int) -> None:
    """One sweep takes no more than so many; a plain acquire does not meet what is over, however long the sweep is."""
    people = [f"P{n}" for n in range(sweep)]
    hall = Hall(("A", "B", "C", "D", *people), queue_per_resource=10_000, passes_max=1, poll_ms=100_000)
    hall.hold("A", "repo:a", "repo:z")
    both = hall.line("C", "repo:a", "repo:b")
    for name in people:
        hall.line(name, "repo:z", giveUpMs=20_000)
    hall.free("B", hall.hold("B", "repo:b"))
    hall.t_ms += 30_000
    mark = len(hall.leaves)
    assert hall.ask_for("D", "repo:b").type.split("/")[1] == "lease.granted"
    kinds = ["wait.removed"] * len(people) + ["wait.resumed", "lease.granted"]
    assert [kind for kind, _ in hall.told(mark)] == kinds
    assert hall.tickets()[both].reserve_until_ms == 0
    assert hall.audited() == []


@pytest.mark.parametrize(
    ("poll_ms", "give_up_ms", "reason"), [(30_000, 3_600_000, "poll_lapsed"), (90_000, 30_000, "given_up")]
)
def test_who_does_not_ask_any_more_when_its_reservation_ends_leaves_the_line(
    poll_ms: int, give_up_ms: int, reason: str
) -> None:
    hall = Hall(passes_max=1, poll_ms=poll_ms)
    hall.hold("A", "repo:a", ttlMs=60_000)
    both = hall.line("C", "repo:a", "repo:b", giveUpMs=give_up_ms)
    hall.hold("B", "repo:b", ttlMs=60_000)
    assert hall.tickets()[both].reserve_until_ms == hall.t_ms + 30_000
    assert hall.later(30_000) == [("wait.removed", both)]
    assert hall.leaf(len(hall.leaves) - 1).text("reason") == reason
    assert hall.audited() == []


def test_an_offer_in_the_same_sweep_comes_before_the_end_of_the_reservation() -> None:
    """What was due first is over first; whom it lets go has nothing left that could end."""
    hall = Hall(passes_max=1, poll_ms=100_000)
    hall.hold("A", "repo:a", ttlMs=30_000)
    both = hall.line("C", "repo:a", "repo:b")
    hall.free("B", hall.hold("B", "repo:b"))
    assert hall.tickets()[both].reserve_until_ms == hall.t_ms + 30_000
    assert [kind for kind, _ in hall.later(30_000)] == ["lease.expired", "wait.offered"]
    assert hall.later(50_000) == []
    assert hall.claim("C", both).type.split("/")[1] == "lease.claimed"
    assert hall.audited() == []


def test_no_reservation_ends_in_a_holiday() -> None:
    hall = Hall(passes_max=1, poll_ms=200_000)
    hall.hold("A", "repo:a", ttlMs=90_000)
    both = hall.line("C", "repo:a", "repo:b")
    hall.free("B", hall.hold("B", "repo:b"))
    assert hall.head is not None
    hall.t_ms += 25_000
    hall.run(hall.t_ms, steps=start_steps("start", is_clean=False, before_ms=hall.head.time_ms), epoch=1)
    assert hall.later(24_999) == [] and hall.tickets()[both].is_reserved
    assert hall.ask_for("D", "repo:b").text("error") == "queued"
    assert hall.later(1) == [("wait.resumed", both)]
    assert hall.audited() == []


def test_those_who_were_passed_too_often_by_one_reserve_in_their_order() -> None:
    hall = Hall(passes_max=1)
    hall.hold("A", "repo:a", "repo:c")
    first, second = hall.line("B", "repo:a", "repo:b"), hall.line("C", "repo:c", "repo:b")
    lease = hall.hold("F", "repo:d")
    passing = hall.line("D", "repo:b", "repo:d")
    assert hall.free("F", lease) == [("wait.offered", passing), ("wait.reserved", first), ("wait.reserved", second)]
    assert hall.audited() == []


def test_a_reservation_is_kept_when_everything_comes_free_in_time() -> None:
    hall = Hall(passes_max=1)
    lease = hall.hold("A", "repo:a")
    both = hall.line("C", "repo:a", "repo:b")
    hall.free("B", hall.hold("B", "repo:b"))
    assert hall.tickets()[both].reserve_until_ms == NOW_MS + 30_000
    hall.later(20_000)
    assert hall.free("A", lease) == [("wait.offered", both)]
    assert hall.later(9_999) == [], "an offer has its own window"
    assert hall.claim("C", both).type.split("/")[1] == "lease.claimed"
    assert hall.audited() == []


def test_whoever_is_first_for_long_enough_reserves_too() -> None:
    """By the sweeper, counted from when nobody earlier is left; once."""
    hall = Hall(reserve_after_ms=20_000, claim_ms=5_000, poll_ms=1_000_000)
    hall.hold("A", "repo:a", ttlMs=200_000)
    earlier = hall.line("B", "repo:a")
    both = hall.line("C", "repo:a", "repo:b")
    assert hall.later(10_000) == []
    hall.cancel("B", earlier)
    assert hall.tickets()[both].reserve_at_ms == hall.t_ms + 20_000
    assert hall.later(19_999) == []
    assert hall.later(1) == [("wait.reserved", both)]
    assert hall.ask_for("D", "repo:b").text("error") == "queued"
    assert hall.later(14_999) == []
    assert hall.later(1) == [("wait.resumed", both)]
    assert hall.ask_for("D", "repo:b").type.split("/")[1] == "lease.granted"
    assert [kind for kind, _ in hall.later(100_000)] == ["lease.expired"]
    assert hall.tickets()[both].reserve_until_ms == 0, "first for as long again, but it was reserved before"
    assert hall.audited() == []


def test_a_reservation_is_not_forgotten_when_its_ticket_is_passed_in_the_same_sweep() -> None:
    """The expiry that was due before it lets another ticket go first, which changes the record that was due."""
    hall = Hall(reserve_after_ms=1_500)
    short = hall.hold("A", "repo:b", ttlMs=1_400)
    hall.hold("C", "repo:c")
    both = hall.line("D", "repo:b", "repo:c")
    behind = hall.line("B", "repo:b")
    mark = len(hall.leaves)
    hall.t_ms += 1_600
    hall.ask_for("A", "repo:c")
    assert hall.told(mark)[:3] == [("lease.expired", short), ("wait.offered", behind), ("wait.reserved", both)]
    assert hall.audited() == []


def circle(hall: Hall) -> tuple[str, str, str]:
    """Let E wait for B, and B for what E waits for as well: granting that to E would close a circle.

    Return the lease of A that both wait for, E's ticket on it and B's.
    """
    guard = hall.hold("A", "repo:p")
    hall.hold("B", "repo:q")
    hall.line("E", "repo:q")
    return guard, hall.line("E", "repo:p"), hall.line("B", "repo:p")


def test_an_offer_that_would_close_a_circle_goes_to_the_next_and_comes_back_later() -> None:
    """Neither is refused: B, whom the circle would keep waiting, goes first; then the way is free for E."""
    hall = Hall()
    guard, wants, waits = circle(hall)
    assert hall.free("A", guard) == [("wait.offered", waits)]
    assert hall.tickets()[wants].is_passed
    assert hall.ask_for("C", "repo:p").text("error") == "queued"
    got = hall.claim("B", waits).text("leaseId")
    assert not hall.tickets()[wants].is_passed, "now somebody simply holds it"
    assert hall.free("B", got) == [("wait.offered", wants)]
    assert hall.audited() == []


def test_to_poll_is_no_reason_to_look_again_at_a_ticket_that_is_passed_over() -> None:
    """Its standing is of the last change (23.5): in a sweep it stops nobody, though its own end comes later."""
    hall = Hall()
    guard, wants, waits = circle(hall)
    last = hall.line("C", "repo:p")
    hall.free("A", guard)
    hall.later(1_000)
    assert hall.claim("E", wants).type.split("/")[1] == "wait.polled"
    assert hall.tickets()[wants].is_passed
    hall.later(19_000)
    hall.claim("C", last)
    ends = [("wait.removed", waits), ("wait.offered", last), ("wait.removed", wants)]
    assert hall.later(12_000)[-3:] == ends
    assert hall.audited() == []


def test_what_lasts_as_long_as_before_concerns_nobody() -> None:
    """A renewal and a poll within the same millisecond change nothing, so nobody is looked at."""
    hall = Hall()
    guard, wants, _ = circle(hall)
    held = hall.hold("F", "repo:p/x")
    hall.free("A", guard)
    hall.renew("F", held, ttlMs=3_600_000)
    assert hall.tickets()[wants].is_passed
    assert hall.audited() == []


def test_without_the_wait_that_closes_it_there_is_no_circle() -> None:
    hall = Hall()
    guard, wants, waits = circle(hall)
    hall.cancel("B", waits)
    assert hall.free("A", guard) == [("wait.offered", wants)]
    assert hall.audited() == []


def test_whoever_was_passed_over_still_stands_before_plain_requests() -> None:
    """Nobody is in its way but the circle, so `ahead` names it to whoever does not wait."""
    hall = Hall()
    guard, lease = hall.hold("A", "repo:p"), hall.hold("B", "repo:q")
    hall.line("E", "repo:q")
    wants = hall.line("E", "repo:p")
    hall.hold("C", "repo:z")
    hall.line("B", "repo:p", "repo:z")
    assert hall.free("A", guard) == [] and hall.tickets()[wants].is_passed
    refused = hall.ask_for("D", "repo:p").value
    assert (refused["error"], refused["ahead"]["ticketId"]) == ("queued", wants)  # type: ignore[index, call-overload]
    assert [ticket for _, ticket in hall.free("B", lease)][-1] == wants
    assert hall.audited() == []


def test_an_edge_that_vanishes_lets_the_passed_over_go() -> None:
    """B gives back what E waits for: no circle is left, so E is offered that at once, with both tickets."""
    hall = Hall()
    guard, lease = hall.hold("A", "repo:p/x", "repo:p/y"), hall.hold("B", "repo:q")
    hall.line("E", "repo:q")
    wants = hall.line("E", "repo:p/**")
    hall.line("B", "repo:p/x", "repo:z")
    hall.hold("C", "repo:z")
    hall.free("A", guard)
    assert hall.tickets()[wants].is_passed and hall.offered() == []
    assert [kind for kind, _ in hall.free("B", lease)] == ["wait.offered", "wait.offered"]
    assert wants in hall.offered()
    assert hall.audited() == []


def test_who_is_passed_over_stops_nobody_on_other_names_of_its_sub_tree() -> None:
    """What changed is `repo:p/y`; B waits for `repo:p/x`, which only E's ticket kept from it."""
    hall = Hall()
    hall.hold("B", "repo:q")
    lease = hall.hold("A", "repo:p/y")
    hall.line("E", "repo:q")
    wants = hall.line("E", "repo:p/**")
    waits = hall.line("B", "repo:p/x")
    assert hall.offered() == []
    assert hall.free("A", lease) == [("wait.offered", waits)]
    assert hall.tickets()[wants].is_passed
    assert hall.audited() == []


def test_the_auditor_misses_an_offer_that_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that one which is due only because somebody else is passed over."""
    hall = Hall()
    hall.hold("B", "repo:q")
    lease = hall.hold("A", "repo:p/y")
    hall.line("E", "repo:q")
    hall.line("E", "repo:p/**")
    hall.line("B", "repo:p/x")
    monkeypatch.setattr("gateway.core.append.settle", lambda draft, context: iter(()))
    assert hall.free("A", lease) == []
    hall.hold("C", "repo:elsewhere")
    assert [code for code, _ in hall.audited()] == ["offer_missing"]


def test_names_that_fold_are_one_name_in_line_too() -> None:
    hall = Hall()
    hall.say(set_scheme("op", "win", "exclusive", isFolding=True))
    lease = hall.hold("A", "win:Src/Main")
    ticket = hall.line("B", "win:src/**")
    other = hall.line("C", "win:SRC/main")
    assert hall.free("A", lease) == [("wait.offered", ticket)]
    assert hall.free("B", hall.claim("B", ticket).text("leaseId")) == [("wait.offered", other)]
    assert hall.audited() == []


def test_a_lock_delay_ends_by_time_and_then_the_line_moves() -> None:
    """Scenario L28: no entry ends a delay, so it is the sweeper who sees it."""
    hall = Hall(lock_delay_ms=4_000)
    hall.hold("A", "repo:x", ttlMs=1_000)
    ticket = hall.line("B", "repo:x")
    assert [kind for kind, _ in hall.later(1_000)] == ["lease.expired"]
    assert hall.later(3_999) == []
    assert hall.later(1) == [("wait.offered", ticket)]
    assert hall.audited() == []


def test_a_former_holder_does_not_pass_the_line() -> None:
    hall = Hall(lock_delay_ms=4_000)
    hall.hold("A", "repo:x", ttlMs=1_000)
    hall.line("B", "repo:x")
    hall.later(1_000)
    assert hall.ask_for("A", "repo:x").text("error") == "queued"


def test_weaker_modes_of_the_holder_let_the_line_move() -> None:
    hall = doc_hall()
    lease = hall.hold("A", "doc:a")
    ticket = hall.line("B", "doc:a", mode="read")
    mark = len(hall.leaves)
    hall.renew("A", lease, mode="read")
    assert hall.told(mark)[1:] == [("wait.offered", ticket)]
    assert hall.audited() == []


def test_several_in_one_batch_see_each_other() -> None:
    """The offer comes right after the release, before the next command of the batch is decided."""
    hall = Hall()
    hall.hold("A", "repo:x")
    ticket = hall.line("B", "repo:x")
    mark = len(hall.leaves)
    hall.run(hall.t_ms, release("A", "repo:x"), acquire("C", "repo:x"))
    assert [kind for kind, _ in hall.told(mark)] == ["lease.released", "wait.offered", "lease.refused"]
    assert hall.leaf(mark + 2).text("error") == "queued" and hall.offered() == [ticket]
    assert hall.audited() == []


# --- the functions by themselves


def settled(draft: Draft, context: Callable[[], Context]) -> list[Decision]:
    return list(settle(draft, context))


def test_without_tickets_nothing_is_looked_up() -> None:
    crowd = Crowd()
    for n in range(100):
        crowd.hold(did_of("A"), n + 1, f"repo:{n}")
    draft = Draft(crowd)
    for n in range(100):
        draft.delete(lease_key(f"L{n + 1}"))
    crowd.asked = 0
    assert settled(draft, now) == []
    assert standing(draft, ask_of(draft, "B", ("repo:1",), "write"), NOW_MS, None) == []
    assert crowd.asked <= 4


def test_a_delay_that_is_over_keeps_nobody_though_nothing_says_so_yet() -> None:
    """Leases and tickets count until the entry that ends them; a delay has none, so it goes by time."""
    for ends_at_ms, offers in ((NOW_MS + 1, 0), (NOW_MS, 1)):
        crowd = Crowd(
            [(TICKETS_KEY, Counter(1)), (delay_key("L1"), Delay("L1", "H", "H", ("db:x",), "write", 1, ends_at_ms))]
        )
        crowd.hold("holder", 2, "db:x")
        crowd.line("P", 3, "db:x")
        draft = Draft(crowd)
        draft.delete(lease_key("L2"))
        assert len(settled(draft, now)) == offers


def test_a_lease_that_is_over_counts_until_its_entry() -> None:
    """An offer touches its names, so what ends there is told first; the sweep does both in one batch."""
    crowd = Crowd([(TICKETS_KEY, Counter(1))])
    crowd.hold("holder", 2, "db:x")
    crowd.hold("other", 3, "db:x")
    crowd.line("P", 4, "db:x")
    draft = Draft(crowd)
    late = now()._replace(t_ms=NOW_MS + 29_400)
    draft.delete(lease_key("L2"))
    assert settled(draft, lambda: late) == []
    draft.delete(lease_key("L3"))
    assert len(settled(draft, lambda: late)) == 1


def line_of(people: int, mode: str) -> tuple[Crowd, Draft]:
    """Return a draft in which somebody has just let go what many wait for in one line."""
    crowd = Crowd([(TICKETS_KEY, Counter(people)), (scheme_key("db"), READ_SAFE)])
    crowd.hold("holder", 1, "db:x")
    for n in range(people):
        crowd.line(f"P{n}", n + 2, "db:x", mode=mode)
    return crowd, Draft(crowd)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_long_line_is_looked_at_once_for_each_in_it(mode: str) -> None:
    """Twice the line costs twice as much, whether all of it goes or one."""
    costs = []
    for people in (100, 200, 400):
        crowd, draft = line_of(people, mode)
        draft.delete(lease_key("L1"))
        crowd.asked = 0
        offers = settled(draft, now)
        assert len(offers) == (people if mode == "read" else 1)
        costs.append(crowd.asked)
    assert costs[1] < 2.5 * costs[0] and costs[2] < 2.5 * costs[1]


def test_joining_a_long_line_looks_at_nobody_else() -> None:
    crowd, draft = line_of(400, "write")
    crowd.line("late", 500, "db:x")
    late = crowd.records.pop("ticket/T500")
    assert isinstance(late, Ticket)
    draft.put(ticket_key("T500"), late)
    crowd.asked = 0
    assert settled(draft, now) == []
    assert crowd.asked < 50


def test_who_stands_in_the_way_depends_on_who_asks() -> None:
    crowd = Crowd([(TICKETS_KEY, Counter(4))])
    crowd.hold("H", 1, "db:a")
    crowd.line("A", 2, "db:a", "db:b")
    crowd.line("B", 3, "db:b")
    crowd.line("C", 4, "db:b")
    draft = Draft(crowd)

    def numbers(actor: str, number: int | None) -> list[int]:
        ask = ask_of(draft, actor, ("db:b",), "write")
        return [one.seq for one in standing(draft, ask, NOW_MS, number)]

    assert numbers("X", None) == [3, 4], "the one for two names is kept by H, so it keeps nobody"
    assert numbers("C", 4) == [3] and numbers("B", 3) == []
    draft.put("ticket/T4", crowd.records["ticket/T4"]._replace(claim_by_ms=NOW_MS + 9_000))  # type: ignore[call-arg]
    assert numbers("B", 3) == [4], "what is offered stands before everybody"
    draft.put("ticket/T2", crowd.records["ticket/T2"]._replace(reserve_until_ms=NOW_MS + 9_000))  # type: ignore[call-arg]
    assert numbers("B", 3) == [2, 4]
    assert numbers("X", None) == [2, 3, 4]
    draft.put("ticket/T2", crowd.records["ticket/T2"]._replace(reserve_until_ms=0))  # type: ignore[call-arg]
    assert numbers("B", 3) == [4] and numbers("X", None) == [3, 4], "as before it was reserved"
    assert position(draft, ask_of(draft, "C", ("db:b",), "write"), 4, NOW_MS) == 3


def test_a_pass_counts_for_earlier_tickets_of_several_names_alone() -> None:
    crowd = Crowd([(TICKETS_KEY, Counter(4))])
    crowd.line("A", 2, "db:a", "db:b")
    crowd.line("B", 3, "db:b")
    crowd.line("C", 4, "db:b", "db:c")
    crowd.line("D", 9, "db:b", "db:c")
    draft = Draft(crowd)
    passed = count_passes(draft, ask_of(draft, "X", ("db:b",), "write"), 8, now())
    assert [(one.seq, one.passes) for one in passed] == [(2, 1), (4, 1)]
    assert draft.get("ticket/T2") == passed[0] and draft.get("ticket/T3") == crowd.records["ticket/T3"]
    assert count_passes(draft, ask_of(draft, "X", ("db:z",), "write"), 8, now()) == []
    assert count_passes(Draft(Crowd()), ask_of(draft, "X", ("db:b",), "write"), 8, now()) == []


def test_what_time_does_to_a_ticket() -> None:
    crowd = Crowd([(TICKETS_KEY, Counter(1))])
    crowd.line("A", 2, "db:a", "db:b")
    ticket: Any = crowd.records["ticket/T2"]
    later = now()._replace(t_ms=ticket.poll_by_ms)
    draft = Draft(crowd)
    assert lapse_ticket(draft, ticket, later).members["reason"] == "poll_lapsed"
    assert draft.get("ticket/T2") is None and draft.get(TICKETS_KEY) == Counter(0)
    reserving = lapse_ticket(Draft(crowd), ticket._replace(reserve_at_ms=NOW_MS), now())
    assert reserving.type == "tallystick/wait.reserved/1" and reserving.members["untilMs"] == NOW_MS + 30_000
    draft = Draft(crowd)
    resuming = lapse_ticket(draft, ticket._replace(reserve_at_ms=NOW_MS, reserve_until_ms=NOW_MS), now())
    assert resuming.type == "tallystick/wait.resumed/1" and set(resuming.members) == {"ticketId", "ticketSeq", "waiter"}
    assert draft.get("ticket/T2") == ticket._replace(reserve_at_ms=NOW_MS, reserve_until_ms=0)
    assert met_by("db:a")[0] in crowd.index


def test_an_offer_whose_lease_the_waiter_itself_gave_away_is_polled() -> None:
    """The one way in which something comes into the way of an offer: its own actor hands a lease on it to another."""
    hall = doc_hall()
    own = hall.hold("A", "doc:a", mode="read")
    other = hall.hold("B", "doc:a", mode="read")
    ticket = hall.line("A", "doc:a", "doc:b")
    assert hall.free("B", other) == [("wait.offered", ticket)]
    token = hall.leases()[own].fencing_token
    hall.say(transfer("op", own, token, "C"))
    assert hall.say(accept("C", own)).type.split("/")[1] == "lease.transferred"
    assert hall.claim("A", ticket).type.split("/")[1] == "wait.polled"
    assert hall.audited() == []


def test_deep_names_of_many_are_looked_up_once() -> None:
    """What 192 tickets of 16 names of 30 segments meet has most words in common, and is the same for each offer."""
    crowd, deep = Crowd([(TICKETS_KEY, Counter(192))]), "/".join("x" * 28)
    crowd.hold("H", 1, "d:**")
    for number in range(192):
        agent, place = divmod(number, 64)
        names = (f"d:{deep}/{n}/{place}{'/**' if (n + agent) % 2 else ''}" for n in range(16))
        crowd.line(f"P{agent}", 2 + number, *names)
    draft = Draft(crowd)
    draft.delete(lease_key("L1"))
    crowd.asked = 0
    assert len(settled(draft, now)) == 64
    assert crowd.asked < 200_000, "it was more than a million"
