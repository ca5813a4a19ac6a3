"""Places in line: what a gateway may say of a ticket, and the lies about it."""

from __future__ import annotations

import pytest

from tests.verifier.maker import ALICE, AUTHORITY, BOB, CAROL, HELPER, OPERATOR
from tests.verifier.scene import FIRST, Found, Scene, Tell, advice, edit, found, scene
from verifier.entries import parse_leaf
from verifier.replay.judged import judge
from verifier.replay.relations import Relations

A, T1, T2 = FIRST, FIRST + 1, FIRST + 2  # ALICE's lease and the first two tickets


def two_in_line(ledger: Scene) -> None:
    """ALICE holds lock:a, BOB waits for it, and CAROL behind him."""
    ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")
    ledger.queue(CAROL, "lock:a", position=2)


def let_go(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.time_ms += 500
    ledger.release(ALICE, A)


# --- what is allowed ---


def one_after_the_other(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.time_ms += 5_000
    ledger.poll(BOB, T1)
    ledger.poll(CAROL, T2, position=2)
    ledger.release(ALICE, A)
    ledger.offer(T1)
    ledger.deny(ALICE, "queued", "lock:a", **ledger.ahead(T1, "lock:a"))
    lease = ledger.claim(BOB, T1)
    ledger.poll(CAROL, T2)
    ledger.time_ms += 1
    ledger.release(BOB, lease)
    ledger.offer(T2)
    ledger.claim(CAROL, T2)


def readers_go_together_and_a_writer_stops_the_next(ledger: Scene) -> None:
    ledger.set_scheme("doc", "read-safe")
    ledger.add(HELPER)
    lease = ledger.grant(ALICE, "doc:a")
    first = ledger.queue(BOB, "doc:a", mode="read")
    second = ledger.queue(CAROL, "doc:a", mode="read")
    third = ledger.queue(HELPER, "doc:a", mode="read")
    ledger.cancel(HELPER, third)
    writer = ledger.queue(HELPER, "doc:a", position=3)
    behind = ledger.queue(ALICE, "doc:a", mode="read", position=2)
    ledger.release(ALICE, lease)
    ledger.offer(first)
    ledger.offer(second)
    read = [ledger.claim(BOB, first), ledger.claim(CAROL, second)]
    ledger.release(BOB, read[0])
    ledger.release(CAROL, read[1])
    ledger.offer(writer)
    ledger.cancel(HELPER, writer)
    ledger.offer(behind)


def those_who_are_gone_are_skipped(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.time_ms += 20_000
    ledger.poll(CAROL, T2, position=2)
    ledger.time_ms += 5_000
    ledger.renew(ALICE, A)
    ledger.time_ms += 5_000
    ledger.remove_ticket(T1, "poll_lapsed")
    ledger.unclaimed(BOB, T1, "ticket_ended", endedSeq=len(ledger.leaves) - 1)
    ledger.release(ALICE, A)
    ledger.offer(T2)
    ledger.time_ms += 20_000
    ledger.remove_ticket(T2, "claim_lapsed")
    ledger.grant(ALICE, "lock:a")


def given_up_before_it_was_polled(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.line(BOB, "lock:a", give_up_ms=1_000)
    ledger.time_ms += 1_000
    ledger.remove_ticket(T1, "given_up")


def a_holiday_keeps_a_ticket_alive(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", ttl_ms=3_600_000)
    ledger.line(BOB, "lock:a", give_up_ms=1_000)
    ledger.time_ms += 20_000
    ledger.start()
    ledger.time_ms += 19_999
    ledger.poll(BOB, T1)
    ledger.time_ms += 1
    ledger.remove_ticket(T1, "given_up")


def a_set_lets_others_pass_while_it_lacks_a_name(ledger: Scene) -> None:
    """BOB waits for a and b, b is held: a is granted to CAROL, twice; then he may keep it, until he waits on as before.

    He never keeps it again, and is served in his place: before CAROL, who came later.
    """
    ledger.grant(ALICE, "lock:b", ttl_ms=3_600_000)
    ticket = ledger.line(BOB, "lock:a", "lock:b")
    for _ in range(2):
        lease = ledger.grant(CAROL, "lock:a")
        if _ == 0:
            ledger.release(CAROL, lease)
    ledger.reserve(ticket)
    ledger.release(CAROL, lease)
    ledger.deny(CAROL, "queued", "lock:a", **ledger.ahead(ticket, "lock:a"))
    ledger.time_ms += 15_000
    ledger.poll(BOB, ticket)
    ledger.time_ms += 15_000
    ledger.resume(ticket)
    for _ in range(2):
        ledger.release(CAROL, ledger.grant(CAROL, "lock:a"))
    behind = ledger.line(CAROL, "lock:b", position=2)
    ledger.release(ALICE, FIRST)
    ledger.offer(ticket)
    ledger.release(BOB, ledger.claim(BOB, ticket))
    ledger.offer(behind)


def kept(ledger: Scene) -> None:
    """BOB waits for a and b as T1, b is held, and for 29,999 ms he has kept a; the next entry is the twelfth."""
    ledger.grant(ALICE, "lock:b", ttl_ms=3_600_000)
    ledger.line(BOB, "lock:a", "lock:b")
    lease = ledger.grant(CAROL, "lock:a")
    ledger.reserve(T1)
    ledger.release(CAROL, lease)
    ledger.time_ms += 15_000
    ledger.poll(BOB, T1)
    ledger.time_ms += 14_999


def those_behind_a_reservation_go_first_when_it_ends(ledger: Scene) -> None:
    kept(ledger)
    behind = ledger.line(CAROL, "lock:a", position=2)
    ledger.time_ms += 1
    ledger.resume(T1)
    ledger.offer(behind)


def a_reservation_lasts_through_a_holiday(ledger: Scene) -> None:
    kept(ledger)
    ledger.time_ms += 5_000
    ledger.start()
    ledger.time_ms += 19_998
    ledger.poll(BOB, T1)
    ledger.deny(CAROL, "queued", "lock:a", **ledger.ahead(T1, "lock:a"))
    ledger.time_ms += 1
    ledger.resume(T1)
    ledger.grant(CAROL, "lock:a")


def a_set_that_is_first_for_long_reserves(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:b", ttl_ms=3_600_000)
    ticket = ledger.line(BOB, "lock:a", "lock:b")
    for _ in range(3):
        ledger.time_ms += 20_000
        if _ < 2:
            ledger.poll(BOB, ticket)
    ledger.reserve(ticket)
    ledger.deny(CAROL, "queued", "lock:a", **ledger.ahead(ticket, "lock:a"))


def a_claim_over_the_bound_of_names(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ledger.grant(BOB, "lock:b", "lock:c")
    ticket = ledger.queue(BOB, "lock:a")
    ledger.grant(BOB, "lock:d")
    ledger.release(ALICE, lease)
    ledger.offer(ticket)
    ledger.unclaimed(BOB, ticket, "too_many_held")


def offered_after_a_delay(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.queue(BOB, "lock:a")
    ledger.time_ms += 1_000
    ledger.expire(lease, delayUntilMs=ledger.time_ms + 5_000)
    ledger.time_ms += 4_999
    ledger.poll(BOB, T1)
    ledger.time_ms += 1
    ledger.offer(T1)
    ledger.claim(BOB, T1)


def owed_to_nobody_who_asks_for_other_names(ledger: Scene) -> None:
    """The sweeper has not come yet, and CAROL touches nothing of it."""
    lease = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.queue(BOB, "lock:a")
    ledger.time_ms += 1_000
    ledger.expire(lease, delayUntilMs=ledger.time_ms + 5_000)
    ledger.time_ms += 5_000
    ledger.grant(CAROL, "lock:b")
    ledger.offer(T1)


def polled_because_its_own_actor_gave_a_lease_away(ledger: Scene) -> None:
    """BOB is offered the tree, which he holds a part of; an operator hands that part to CAROL."""
    part, rest = ledger.grant(BOB, "repo:a/b"), ledger.grant(ALICE, "repo:a/c")
    ticket = ledger.queue(BOB, "repo:a/**")
    ledger.release(ALICE, rest)
    ledger.offer(ticket)
    ledger.accept(CAROL, ledger.hand_over(OPERATOR, part, CAROL))
    ledger.poll(BOB, ticket)


ALLOWED: list[tuple[Tell, dict[str, int]]] = [
    (one_after_the_other, {}),
    (readers_go_together_and_a_writer_stops_the_next, {}),
    (those_who_are_gone_are_skipped, {}),
    (given_up_before_it_was_polled, {}),
    (a_holiday_keeps_a_ticket_alive, {}),
    (a_set_lets_others_pass_while_it_lacks_a_name, {"passesMax": 2}),
    (a_set_that_is_first_for_long_reserves, {}),
    (those_behind_a_reservation_go_first_when_it_ends, {"passesMax": 1}),
    (a_reservation_lasts_through_a_holiday, {"passesMax": 1}),
    (a_claim_over_the_bound_of_names, {"heldPerPrincipal": 3}),
    (offered_after_a_delay, {"lockDelayMs": 5_000}),
    (owed_to_nobody_who_asks_for_other_names, {"lockDelayMs": 5_000}),
    (polled_because_its_own_actor_gave_a_lease_away, {}),
]


@pytest.mark.parametrize(("tell", "parameters"), ALLOWED, ids=[tell.__name__ for tell, _ in ALLOWED])
def test_what_a_line_may_do(tell: Tell, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == []


# --- lies ---


def queued_with_nothing_in_the_way(ledger: Scene) -> None:
    ledger.queue(BOB, "lock:a")


def queued_behind_oneself(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.queue(ALICE, "lock:a")


def queued_twice_for_one_name(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.queue(BOB, "lock:a")
    ledger.queue(BOB, "lock:a", "lock:b")


def wrong_place(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")
    ledger.queue(CAROL, "lock:a", position=1)
    ledger.poll(CAROL, T2, position=3)


def wrong_deadline(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a", change=edit(pollByMs=ledger.time_ms + 30_001))
    ledger.poll(BOB, T1, change=edit(pollByMs=ledger.time_ms + 29_999))


def gives_up_too_late(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")


def the_offer_does_not_come(ledger: Scene) -> None:
    let_go(ledger)
    ledger.grant(ALICE, "lock:b")


def the_offer_comes_late(ledger: Scene) -> None:
    let_go(ledger)
    ledger.grant(ALICE, "lock:b")
    ledger.offer(T1)


def the_second_is_offered_first(ledger: Scene) -> None:
    let_go(ledger)
    ledger.offer(T2)


def the_second_is_offered_too(ledger: Scene) -> None:
    let_go(ledger)
    ledger.offer(T1)
    ledger.offer(T2)


def offered_while_it_is_held(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.offer(T1)


def offered_for_too_short(ledger: Scene) -> None:
    let_go(ledger)
    ledger.waiting("wait.offered", T1, claimByMs=ledger.time_ms + 10_000)


def claimed_without_an_offer(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.release(ALICE, A)
    ledger.claim(BOB, T1)


def claimed_out_of_turn(ledger: Scene) -> None:
    let_go(ledger)
    ledger.offer(T1)
    ledger.claim(CAROL, T2)


def claimed_after_the_window(ledger: Scene) -> None:
    let_go(ledger)
    ledger.offer(T1)
    ledger.time_ms += 10_000
    ledger.poll(CAROL, T2, position=2)
    ledger.time_ms += 20_000
    ledger.claim(BOB, T1)


def claimed_after_giving_up(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ledger.line(BOB, "lock:a", give_up_ms=2_000)
    ledger.release(ALICE, lease)
    ledger.offer(T1)
    ledger.time_ms += 2_000
    ledger.claim(BOB, T1)


def claimed_by_another(ledger: Scene) -> None:
    let_go(ledger)
    ledger.offer(T1)
    ledger.claim(CAROL, T1)


def claimed_twice(ledger: Scene) -> None:
    let_go(ledger)
    ledger.offer(T1)
    ledger.claim(BOB, T1)
    ledger.claim(BOB, T1)


def claimed_as_something_else(ledger: Scene) -> None:
    let_go(ledger)
    ledger.offer(T1)
    ledger.claim(BOB, T1, change=edit(resources=["lock:b"]))


def claim_held_back(ledger: Scene) -> None:
    let_go(ledger)
    ledger.offer(T1)
    ledger.poll(BOB, T1)


def skipped_before_its_time(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.time_ms += 29_999
    ledger.remove_ticket(T1, "poll_lapsed")


def removed_for_another_reason(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.renew(ALICE, A, 60_000)
    ledger.time_ms += 30_000
    ledger.remove_ticket(T1, "given_up")


def dead_ticket_kept(ledger: Scene) -> None:
    """BOB is past his deadline; the gateway still lets him stand in ALICE's way, and then has him polled."""
    two_in_line(ledger)
    ledger.time_ms += 15_000
    ledger.poll(CAROL, T2, position=2)
    ledger.renew(ALICE, A, 60_000)
    ledger.time_ms += 15_000
    ledger.poll(CAROL, T2, position=2)
    ledger.poll(BOB, T1)


def dead_ticket_counts_in_a_refusal(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")
    ledger.time_ms += 29_999
    ledger.release(ALICE, lease)
    ledger.offer(T1)
    ledger.time_ms += 10_000
    ledger.deny(CAROL, "queued", "lock:a", **ledger.ahead(T1, "lock:a"))


def plain_acquire_past_a_ticket(ledger: Scene) -> None:
    let_go(ledger)
    ledger.offer(T1)
    ledger.grant(ALICE, "lock:a")


def shared_grant_behind_a_queued_writer(ledger: Scene) -> None:
    ledger.set_scheme("doc", "read-safe")
    ledger.grant(ALICE, "doc:a", mode="read")
    ledger.queue(BOB, "doc:a")
    ledger.grant(CAROL, "doc:a", mode="read")


def cancelled_by_another(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.cancel(CAROL, T1)


def reserved_without_a_reason(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:b")
    ledger.line(BOB, "lock:a", "lock:b")
    ledger.time_ms += 1
    ledger.reserve(T1)


def reserved_by_a_ticket_for_one_name(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.reserve(T1)


def reserved_twice(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:b", ttl_ms=3_600_000)
    ledger.line(BOB, "lock:a", "lock:b")
    ledger.grant(CAROL, "lock:a")
    ledger.reserve(T1)
    ledger.reserve(T1)


def reserved_for_too_long(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:b", ttl_ms=3_600_000)
    ledger.line(BOB, "lock:a", "lock:b")
    ledger.grant(CAROL, "lock:a")
    ledger.reserve(T1, untilMs=ledger.time_ms + 30_001)


def reserved_again(ledger: Scene) -> None:
    kept(ledger)
    ledger.time_ms += 1
    ledger.resume(T1)
    ledger.grant(CAROL, "lock:a")
    ledger.reserve(T1)


def resumed_before_its_time(ledger: Scene) -> None:
    kept(ledger)
    ledger.resume(T1)


def not_resumed_before_a_refusal(ledger: Scene) -> None:
    kept(ledger)
    ledger.time_ms += 1
    ledger.deny(CAROL, "queued", "lock:a", **ledger.ahead(T1, "lock:a"))


def not_resumed_before_its_own_poll(ledger: Scene) -> None:
    kept(ledger)
    ledger.time_ms += 1
    ledger.poll(BOB, T1)


def not_resumed_before_its_scheme_is_set(ledger: Scene) -> None:
    kept(ledger)
    ledger.time_ms += 1
    ledger.set_scheme("lock", "exclusive")


def resumed_in_a_holiday(ledger: Scene) -> None:
    kept(ledger)
    ledger.time_ms += 5_000
    ledger.start()
    ledger.time_ms += 19_998
    ledger.resume(T1)


def kept_though_it_was_over(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:b", ttl_ms=3_600_000)
    ledger.line(BOB, "lock:a", "lock:b")
    lease = ledger.grant(CAROL, "lock:a")
    ledger.reserve(T1)
    ledger.release(CAROL, lease)
    ledger.time_ms += 30_000
    ledger.grant(CAROL, "lock:a")


def resumed_twice(ledger: Scene) -> None:
    kept(ledger)
    ledger.time_ms += 1
    ledger.resume(T1)
    ledger.resume(T1)


def resumed_without_a_reservation(ledger: Scene) -> None:
    two_in_line(ledger)
    ledger.resume(T1)


def resumed_though_it_was_offered(ledger: Scene) -> None:
    kept(ledger)
    ledger.release(ALICE, A)
    ledger.offer(T1)
    ledger.time_ms += 1
    ledger.resume(T1)


def resumed_though_it_was_over(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:b", ttl_ms=3_600_000)
    ledger.line(BOB, "lock:a", "lock:b")
    ledger.grant(CAROL, "lock:a", ttl_ms=3_600_000)
    ledger.reserve(T1)
    ledger.time_ms += 30_000
    ledger.resume(T1)


def removed_because_its_reservation_is_over(ledger: Scene) -> None:
    kept(ledger)
    ledger.time_ms += 1
    ledger.remove_ticket(T1, "poll_lapsed")


def resumed_for_another(ledger: Scene) -> None:
    kept(ledger)
    ledger.time_ms += 1
    ledger.entry("wait.resumed", "gateway", {"ticketId": f"T{T1}", "ticketSeq": T1, "waiter": CAROL.did})


def nobody_offered_after_a_reservation(ledger: Scene) -> None:
    kept(ledger)
    ledger.line(CAROL, "lock:a", position=2)
    ledger.time_ms += 1
    ledger.resume(T1)
    ledger.grant(ALICE, "lock:c")


def passed_too_often(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:b")
    ledger.line(BOB, "lock:a", "lock:b")
    ledger.grant(CAROL, "lock:a")
    ledger.grant(CAROL, "lock:c")


def first_for_too_long(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:b", ttl_ms=3_600_000)
    ledger.line(BOB, "lock:a", "lock:b")
    for _ in range(2):
        ledger.time_ms += 10_000
        ledger.poll(BOB, T1)
    ledger.time_ms += 1
    ledger.grant(CAROL, "lock:a")


def not_offered_after_the_delay(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.queue(BOB, "lock:a")
    ledger.time_ms += 1_000
    ledger.expire(lease, delayUntilMs=ledger.time_ms + 5_000)
    ledger.time_ms += 5_000
    ledger.poll(BOB, T1)


def offered_in_the_delay(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.queue(BOB, "lock:a")
    ledger.time_ms += 1_000
    ledger.expire(lease, delayUntilMs=ledger.time_ms + 5_000)
    ledger.offer(T1)


def full_though_it_is_not(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.deny(BOB, "queue_full", "lock:a", wait=True, **advice(0))


def queued_though_it_was_full(ledger: Scene) -> None:
    two_in_line(ledger)


LIES: list[tuple[Tell, Found, dict[str, int]]] = [
    (queued_with_nothing_in_the_way, [(6, "queued_needlessly")], {}),
    (queued_behind_oneself, [(7, "queued_needlessly")], {}),
    (queued_twice_for_one_name, [(8, "refusal_due")], {}),
    (wrong_place, [(8, "position_wrong"), (9, "position_wrong")], {}),
    (wrong_deadline, [(7, "deadline_wrong"), (8, "deadline_wrong")], {}),
    (gives_up_too_late, [(7, "deadline_wrong")], {"waitMaxMs": 3_599_999}),
    (the_offer_does_not_come, [(10, "offer_missing")], {}),
    (the_offer_comes_late, [(10, "offer_missing")], {}),
    (the_second_is_offered_first, [(10, "offer_missing"), (10, "queue_jumped")], {}),
    (the_second_is_offered_too, [(11, "queue_jumped")], {}),
    (offered_while_it_is_held, [(9, "offer_wrong")], {}),
    (offered_for_too_short, [(10, "deadline_wrong")], {}),
    (claimed_without_an_offer, [(10, "offer_missing"), (10, "not_offered")], {}),
    (claimed_out_of_turn, [(11, "not_offered")], {}),
    (claimed_after_the_window, [(12, "ticket_over")], {}),
    (claimed_after_giving_up, [(10, "ticket_over")], {}),
    (claimed_by_another, [(11, "citation_wrong")], {}),
    (claimed_twice, [(12, "citation_wrong")], {}),
    (claimed_as_something_else, [(11, "ticket_differs")], {}),
    (claim_held_back, [(11, "claim_denied")], {}),
    (skipped_before_its_time, [(9, "removed_early")], {}),
    (removed_for_another_reason, [(10, "removal_wrong")], {}),
    (dead_ticket_kept, [(11, "removal_missing"), (11, "position_wrong"), (12, "ticket_over")], {}),
    (dead_ticket_counts_in_a_refusal, [(10, "removal_missing"), (10, "refusal_wrong")], {}),
    (plain_acquire_past_a_ticket, [(11, "queue_jumped")], {}),
    (shared_grant_behind_a_queued_writer, [(9, "queue_jumped")], {}),
    (cancelled_by_another, [(9, "citation_wrong")], {}),
    (reserved_without_a_reason, [(8, "reservation_wrong")], {}),
    (reserved_by_a_ticket_for_one_name, [(9, "reservation_wrong")], {}),
    (reserved_twice, [(10, "reservation_wrong")], {"passesMax": 1}),
    (reserved_for_too_long, [(9, "deadline_wrong")], {"passesMax": 1}),
    (reserved_again, [(14, "reservation_wrong")], {"passesMax": 1}),
    (resumed_before_its_time, [(12, "resumed_early")], {"passesMax": 1}),
    (not_resumed_before_a_refusal, [(12, "resumption_missing")], {"passesMax": 1}),
    (not_resumed_before_its_own_poll, [(12, "resumption_missing")], {"passesMax": 1}),
    (not_resumed_before_its_scheme_is_set, [(12, "resumption_missing")], {"passesMax": 1}),
    (resumed_in_a_holiday, [(14, "resumed_early")], {"passesMax": 1}),
    (kept_though_it_was_over, [(11, "removal_missing")], {"passesMax": 1}),
    (resumed_twice, [(13, "resumption_wrong")], {"passesMax": 1}),
    (resumed_without_a_reservation, [(9, "resumption_wrong")], {}),
    (resumed_though_it_was_offered, [(14, "resumption_wrong")], {"passesMax": 1}),
    (resumed_though_it_was_over, [(10, "ticket_over")], {"passesMax": 1}),
    (removed_because_its_reservation_is_over, [(12, "removed_early")], {"passesMax": 1}),
    (resumed_for_another, [(12, "citation_wrong")], {"passesMax": 1}),
    (nobody_offered_after_a_reservation, [(14, "offer_missing")], {"passesMax": 1}),
    (passed_too_often, [(9, "reservation_missing")], {"passesMax": 1}),
    (first_for_too_long, [(10, "reservation_missing")], {"reserveAfterMs": 20_001}),
    (not_offered_after_the_delay, [(9, "offer_missing")], {"lockDelayMs": 5_000}),
    (offered_in_the_delay, [(9, "offer_wrong")], {"lockDelayMs": 5_000}),
    (full_though_it_is_not, [(7, "refusal_wrong")], {}),
    (queued_though_it_was_full, [(8, "refusal_due")], {"queuePerResource": 1}),
]


@pytest.mark.parametrize(("tell", "wanted", "parameters"), LIES, ids=[row[0].__name__ for row in LIES])
def test_a_lie_about_a_line_is_found_at_its_entry(tell: Tell, wanted: Found, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == wanted


def test_what_has_ended_leaves_nothing_behind() -> None:
    """Leases, tickets, delays and counts go; how things ended is remembered for idempotencyMs of log time."""
    ledger = scene(lockDelayMs=5_000, idempotencyMs=86_400_000)
    for _ in range(3):
        ledger.time_ms += 86_400_000
        offered_after_a_delay_again(ledger)
    relations = Relations()
    relations.open(parse_leaf(ledger.leaves[0]), bytes(32))
    for leaf_bytes in ledger.leaves:
        entry = judge(leaf_bytes, frozenset((AUTHORITY,)))
        assert entry.leaf is not None and list(relations.faults(entry.leaf, entry)) == []
    state = relations.state
    assert (state.lease, state.ticket, state.leases_of, state.tickets_of, state.names_held, state.passed) == ({},) * 6
    assert not (state.leases or state.tickets or list(state.delays_by_end()))
    assert (len(state.endings), len(state.stampede)) == (3, 1)


def offered_after_a_delay_again(ledger: Scene) -> None:
    """A day with a delay, a ticket and a refusal; at its end nobody has anything."""
    lease = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.deny(CAROL, "lease_held", "lock:a", **ledger.held(lease, "lock:a"))
    ticket = ledger.queue(BOB, "lock:a")
    ledger.time_ms += 1_000
    ledger.expire(lease, delayUntilMs=ledger.time_ms + 5_000)
    ledger.time_ms += 5_000
    ledger.offer(ticket)
    ledger.release(BOB, ledger.claim(BOB, ticket))
