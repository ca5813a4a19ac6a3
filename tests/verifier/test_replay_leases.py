"""Leases: sub-trees, modes, longest holds, delays, changes, transfers, breaks, and what their ends do to trust."""

from __future__ import annotations

import pytest

from tests.verifier.maker import ALICE, BOB, CAROL, OPERATOR, Key
from tests.verifier.scene import FIRST, Found, Scene, Tell, advice, edit, found

L = FIRST  # the first lease of a story


def shelf(ledger: Scene) -> int:
    """A scheme whose readers share."""
    return ledger.set_scheme("doc", "read-safe")


def ended(ledger: Scene, key: Key, lease: int, **over: object) -> int:
    ledger.time_ms = ledger.value(lease)["expiresAtMs"]
    return ledger.expire(lease, **over)


# --- what is allowed ---


def trees_and_leaves(ledger: Scene) -> None:
    tree = ledger.grant(ALICE, "repo:app/**")
    ledger.grant(ALICE, "repo:app/src/a.py")  # one's own never stand in the way
    ledger.grant(BOB, "repo:apple", "repo:web/**")
    ledger.deny(CAROL, "lease_held", "repo:app", **ledger.held(tree, "repo:app", "repo:app/**"))
    told = ledger.held(tree, "repo:**", "repo:app/**", conflicts=3)
    ledger.deny(CAROL, "lease_held", "repo:**", **told)


def changes_of_mode(ledger: Scene) -> None:
    shelf(ledger)
    one, two = ledger.grant(ALICE, "doc:a", mode="read"), ledger.grant(BOB, "doc:a", mode="read")
    ledger.renewal(ALICE, one, "lease_held", "write", **ledger.held(two, "doc:a"))
    ledger.release(BOB, two)
    changed = ledger.change_mode(ALICE, one, "write")
    ledger.renewal(ALICE, one, "lease_changed", endedSeq=changed)
    ledger.time_ms += 1
    weaker = ledger.change_mode(ALICE, changed, "read")
    ledger.grant(BOB, "doc:a", mode="read")
    ledger.release(ALICE, weaker)


def a_weaker_mode_goes_past_a_line(ledger: Scene) -> None:
    shelf(ledger)
    lease = ledger.grant(ALICE, "doc:a")
    ticket = ledger.queue(BOB, "doc:a")
    again = ledger.change_mode(ALICE, lease, "read")
    ledger.renewal(ALICE, again, "queued", "write", **ledger.ahead(ticket, "doc:a"))


def held_for_long_and_nobody_waits(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a", ttl_ms=60_000, change=edit(holdUntilMs=ledger.time_ms + 10_000))
    ledger.time_ms += 10_000
    ledger.renew(ALICE, lease, 60_000)
    ticket = ledger.queue(BOB, "lock:a")
    ledger.renewal(ALICE, lease, "hold_exceeded")
    ledger.deny(ALICE, "hold_exceeded", "lock:a")
    ledger.cancel(BOB, ticket)
    ledger.renew(ALICE, lease, 60_000)


def a_delay_keeps_others_out(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    end = ended(ledger, ALICE, lease, delayUntilMs=ledger.time_ms + 6_000)
    until_ms = ledger.time_ms + 5_000
    told = {"holder": ALICE.did, "delayUntilMs": until_ms, "endedSeq": end, **advice(0), "retryAfterMs": 5_000}
    ledger.deny(BOB, "lock_delayed", "lock:a", **told)
    ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.release(ALICE, len(ledger.leaves) - 1)
    ledger.time_ms = until_ms
    ledger.grant(BOB, "lock:a")


def a_holiday_moves_the_end_of_a_delay_that_the_outage_met(ledger: Scene) -> None:
    one, two = ledger.grant(ALICE, "lock:a", ttl_ms=1_000), ledger.grant(ALICE, "lock:b", ttl_ms=2_000)
    ended(ledger, ALICE, one, delayUntilMs=ledger.time_ms + 6_000)
    end = ended(ledger, ALICE, two, delayUntilMs=ledger.time_ms + 6_000)
    ledger.time_ms += 4_000
    ledger.grant(BOB, "lock:c", ttl_ms=120_000)  # here the first delay is over
    ledger.time_ms += 20_000
    ledger.start()
    ledger.grant(BOB, "lock:a")
    told = {"holder": ALICE.did, "delayUntilMs": ledger.time_ms + 20_000, "endedSeq": end, **advice(0)}
    ledger.deny(BOB, "lock_delayed", "lock:b", **{**told, "retryAfterMs": 20_000})
    ledger.time_ms += 20_000
    ledger.grant(BOB, "lock:b")


def from_hand_to_hand(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ledger.hand_over(ALICE, lease, CAROL)
    offer = ledger.hand_over(ALICE, lease, BOB)
    ledger.acceptance(CAROL, lease, "not_offered")
    ledger.time_ms += 10
    taken = ledger.accept(BOB, offer, ttl_ms=2_000)
    ledger.renewal(ALICE, lease, "lease_transferred", endedSeq=taken)
    ledger.acceptance(CAROL, lease, "lease_transferred")
    ended(ledger, BOB, taken, trust=[ledger.moved(BOB, -5_000), ledger.moved(ALICE, -5_000)])


def renewed_after_the_transfer(ledger: Scene) -> None:
    taken = ledger.accept(BOB, ledger.hand_over(ALICE, ledger.grant(ALICE, "lock:a"), BOB), ttl_ms=2_000)
    ledger.time_ms += 1
    ledger.renew(BOB, taken, 2_000)
    ledger.time_ms += 2_000
    ledger.expire(taken, expiresAtMs=ledger.time_ms)


def an_operator_hands_over_past_a_line(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ticket = ledger.queue(BOB, "lock:a")
    ledger.acceptance(CAROL, lease, "not_offered")
    ledger.hand_over(ALICE, lease, CAROL)
    ledger.acceptance(CAROL, lease, "queued", **ledger.ahead(ticket, "lock:a"))
    ledger.accept(CAROL, ledger.hand_over(OPERATOR, lease, CAROL))


def the_first_in_line_accepts(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")
    ledger.queue(CAROL, "lock:a", position=2)
    ledger.accept(BOB, ledger.hand_over(ALICE, lease, BOB))


def broken_and_told(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "repo:a/**")
    end = ledger.broken(lease, "repo:a/b")
    body = {"resource": "repo:a/b", "seenToken": ledger.token, "reason": "holder.gone"}
    ledger.decision("break.repeated", OPERATOR, "lease.break", body, {**body, "endedSeq": end})
    ledger.renewal(ALICE, lease, "lease_broken", endedSeq=end)
    again = ledger.grant(BOB, "repo:a/b/c")
    stale = {**body, "seenToken": 1}
    told = ledger.held(again, "repo:a/b/**", "repo:a/b/c")
    named = {name: told[name] for name in ("holder", "conflict")}
    ledger.no("break.refused", OPERATOR, "lease.break", {**stale, "resource": "repo:a/b/**"}, "token_stale", **named)
    ledger.no("break.refused", OPERATOR, "lease.break", {**stale, "resource": "lock:a"}, "token_stale")
    ledger.no("break.refused", ALICE, "lease.break", {**body, "resource": "lock:a"}, "operator_required")


def trust_within_its_window(ledger: Scene) -> None:
    """Two gains of 500 fill a window; what is beyond is cut off; the next window begins with the next gain."""
    for gain in (500, 500, 0, 0):
        lease = ledger.grant(ALICE, "lock:a")
        ledger.time_ms += 1_000
        ledger.release(ALICE, lease, gain=gain)
    lease = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 999
    ledger.release(ALICE, lease)
    ledger.time_ms += 3_600_000
    lease = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 1_000
    ledger.release(ALICE, lease, gain=500)


def as_many_names_as_allowed(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.deny(ALICE, "too_many_held", "lock:c", "lock:d")
    ledger.grant(ALICE, "lock:c")


def names_in_a_delay_count_until_it_ends(ledger: Scene) -> None:
    """ALICE may have three names: one lease expires, and what it keeps closed is hers until the delay is over."""
    lease = ledger.grant(ALICE, "lock:a", "lock:b", ttl_ms=1_000)
    ended(ledger, ALICE, lease, delayUntilMs=ledger.time_ms + 6_000)
    ledger.deny(ALICE, "too_many_held", "lock:c", "lock:d")
    other = ledger.grant(ALICE, "lock:c")
    ledger.time_ms += 4_999
    ledger.deny(ALICE, "too_many_held", "lock:d")
    ledger.grant(BOB, "lock:d")
    ledger.time_ms += 1
    ledger.grant(ALICE, "lock:e", "lock:f")
    ledger.release(ALICE, other)


ALLOWED: list[tuple[Tell, dict[str, int]]] = [
    (trees_and_leaves, {}),
    (changes_of_mode, {}),
    (a_weaker_mode_goes_past_a_line, {}),
    (held_for_long_and_nobody_waits, {"maxHoldMs": 10_000}),
    (a_delay_keeps_others_out, {"lockDelayMs": 5_000}),
    (a_holiday_moves_the_end_of_a_delay_that_the_outage_met, {"lockDelayMs": 5_000}),
    (from_hand_to_hand, {}),
    (renewed_after_the_transfer, {}),
    (an_operator_hands_over_past_a_line, {}),
    (the_first_in_line_accepts, {}),
    (broken_and_told, {}),
    (trust_within_its_window, {}),
    (as_many_names_as_allowed, {"heldPerPrincipal": 3}),
    (names_in_a_delay_count_until_it_ends, {"heldPerPrincipal": 3, "lockDelayMs": 5_000}),
]


@pytest.mark.parametrize(("tell", "parameters"), ALLOWED, ids=[tell.__name__ for tell, _ in ALLOWED])
def test_what_a_lease_may_do(tell: Tell, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == []


# --- lies ---


def leaf_in_a_foreign_tree(ledger: Scene) -> None:
    ledger.grant(ALICE, "repo:app/**")
    ledger.grant(BOB, "repo:app/src/a.py")


def tree_over_a_foreign_leaf(ledger: Scene) -> None:
    ledger.grant(ALICE, "repo:app/src/a.py")
    ledger.grant(BOB, "repo:app/**")


def the_top_of_a_foreign_tree(ledger: Scene) -> None:
    ledger.grant(ALICE, "repo:app/**")
    ledger.grant(BOB, "repo:app")


def whole_scheme(ledger: Scene) -> None:
    ledger.grant(ALICE, "repo:app/src/a.py")
    ledger.grant(BOB, "repo:**")


def tree_in_a_tree(ledger: Scene) -> None:
    ledger.grant(ALICE, "repo:app/**")
    ledger.grant(BOB, "repo:app/src/**")


def writer_beside_a_reader(ledger: Scene) -> None:
    shelf(ledger)
    ledger.grant(ALICE, "doc:a", mode="read")
    ledger.grant(BOB, "doc:a")


def changed_against_a_reader(ledger: Scene) -> None:
    shelf(ledger)
    lease = ledger.grant(ALICE, "doc:a", mode="read")
    ledger.grant(BOB, "doc:a", mode="read")
    ledger.change_mode(ALICE, lease, "write")


def old_token_after_a_change(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    token = ledger.token
    ledger.change_mode(ALICE, lease, "read", change=edit(fencingToken=token))


def changed_to_the_same(ledger: Scene) -> None:
    ledger.change_mode(ALICE, ledger.grant(ALICE, "lock:a"), "write")


def changed_past_a_line(ledger: Scene) -> None:
    shelf(ledger)
    lease = ledger.grant(ALICE, "doc:a", mode="read")
    ledger.queue(BOB, "doc:a")
    ledger.change_mode(ALICE, lease, "write")


def hold_begun_anew_by_a_change(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 10
    ledger.change_mode(ALICE, lease, "read", change=edit(holdUntilMs=ledger.time_ms + 3_600_000))


def changed_by_another(ledger: Scene) -> None:
    ledger.change_mode(BOB, ledger.grant(ALICE, "lock:a"), "read")


def renewed_past_the_longest_hold(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a", change=edit(holdUntilMs=ledger.time_ms + 10_000))
    ledger.queue(BOB, "lock:a")
    ledger.time_ms += 10_000
    ledger.renew(ALICE, lease)


def hold_exceeded_too_early(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a", change=edit(holdUntilMs=ledger.time_ms + 10_000))
    ledger.queue(BOB, "lock:a")
    ledger.time_ms += 9_999
    ledger.renewal(ALICE, lease, "hold_exceeded")


def renewed_in_another_mode(ledger: Scene) -> None:
    ledger.renew(ALICE, ledger.grant(ALICE, "lock:a"), change=edit(mode="read"))


def granted_in_the_delay(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "repo:a/**", ttl_ms=1_000)
    ended(ledger, ALICE, lease, delayUntilMs=ledger.time_ms + 6_000)
    ledger.time_ms += 4_999
    ledger.grant(BOB, "repo:a/b")


def a_delay_too_long(ledger: Scene) -> None:
    ended(ledger, ALICE, ledger.grant(ALICE, "lock:a", ttl_ms=1_000), delayUntilMs=ledger.time_ms + 6_001)


def a_delay_left_out(ledger: Scene) -> None:
    ledger.broken(ledger.grant(ALICE, "lock:a"))


def a_delay_made_up(ledger: Scene) -> None:
    ledger.broken(ledger.grant(ALICE, "lock:a"), change=edit(delayUntilMs=ledger.time_ms + 1))


def delayed_though_one_left_it(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    end = ended(ledger, ALICE, lease, delayUntilMs=ledger.time_ms + 6_000)
    told = {"holder": BOB.did, "delayUntilMs": ledger.time_ms + 5_000, "endedSeq": end, **advice(0)}
    ledger.deny(ALICE, "lock_delayed", "lock:a", **told)


def too_many_names(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.grant(ALICE, "lock:c")


def accepted_without_an_offer(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    offer = ledger.hand_over(ALICE, lease, CAROL)
    ledger.accept(BOB, offer)


def accepted_by_an_older_offer(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    old = ledger.hand_over(ALICE, lease, BOB)
    ledger.hand_over(ALICE, lease, CAROL)
    ledger.accept(BOB, old)


def old_token_after_a_transfer(ledger: Scene) -> None:
    offer = ledger.hand_over(ALICE, ledger.grant(ALICE, "lock:a"), BOB)
    token = ledger.token
    ledger.accept(BOB, offer, change=edit(fencingToken=token))


def transfer_past_a_line(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")
    ledger.accept(CAROL, ledger.hand_over(ALICE, lease, CAROL))


def transfer_past_the_givers_other_lease(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.accept(CAROL, ledger.hand_over(ALICE, lease, CAROL))


def offered_by_another(ledger: Scene) -> None:
    ledger.hand_over(BOB, ledger.grant(ALICE, "lock:a"), CAROL)


def offered_with_an_old_token(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    body = {"leaseId": f"L{lease}", "seenToken": ledger.token - 1, "toDid": BOB.did, "reason": "x"}
    said = {**body, "holder": ALICE.did, "grantSeq": lease}
    ledger.decision("transfer.offered", ALICE, "lease.transfer", body, said)


def break_without_an_operator(ledger: Scene) -> None:
    """The leaf says that BOB answers for himself, as an operator would."""
    ledger.broken(ledger.grant(ALICE, "lock:a"), by=BOB, change=edit(onBehalfOf=BOB.did))


def break_repeated_for_no_break(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    end = ledger.release(ALICE, lease)
    body = {"resource": "lock:a", "seenToken": ledger.token, "reason": "x"}
    ledger.decision("break.repeated", OPERATOR, "lease.break", body, {**body, "endedSeq": end})


def break_refused_for_the_right_token(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    body = {"resource": "lock:a", "seenToken": ledger.token, "reason": "x"}
    ledger.no("break.refused", OPERATOR, "lease.break", body, "token_stale")


def break_hides_who_holds(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    body = {"resource": "lock:a", "seenToken": 1, "reason": "x"}
    ledger.no("break.refused", OPERATOR, "lease.break", body, "token_stale")


def trust_for_nothing(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 999
    ledger.release(ALICE, lease, gain=500)


def trust_beyond_the_window(ledger: Scene) -> None:
    for _ in range(3):
        lease = ledger.grant(ALICE, "lock:a")
        ledger.time_ms += 1_000
        ledger.release(ALICE, lease, gain=500)


def trust_not_lost(ledger: Scene) -> None:
    ended(ledger, ALICE, ledger.grant(ALICE, "lock:a"), trust=[ledger.moved(ALICE, -1)])


def trust_not_lost_by_the_giver(ledger: Scene) -> None:
    taken = ledger.accept(BOB, ledger.hand_over(ALICE, ledger.grant(ALICE, "lock:a"), BOB))
    ended(ledger, BOB, taken)


def trust_with_another_past(ledger: Scene) -> None:
    ended(ledger, ALICE, ledger.grant(ALICE, "lock:a"))
    rows = [{"did": ALICE.did, "change": -5_000, "after": 45_000}]
    ended(ledger, ALICE, ledger.grant(ALICE, "lock:a"), trust=rows)


def the_older_of_two_released(ledger: Scene) -> None:
    shelf(ledger)
    ledger.time_ms += 5_000
    old = ledger.grant(ALICE, "doc:a", mode="read")
    ledger.grant(ALICE, "doc:a")
    ledger.time_ms += 2_000
    raw = f'{{"ledger": "gateway.example/main", "actorDid": "{ALICE.did}", "resource": "doc:a"}}'
    ledger.release(ALICE, old, raw_body=raw)


def too_many_names_in_delays(ledger: Scene) -> None:
    ended(ledger, ALICE, ledger.grant(ALICE, "lock:a", ttl_ms=1_000), delayUntilMs=ledger.time_ms + 6_000)
    ledger.grant(ALICE, "lock:b", "lock:c")


def over_but_not_ended(ledger: Scene) -> None:
    ledger.grant(ALICE, "repo:a/b", ttl_ms=1_000)
    ledger.time_ms += 1_000
    ledger.grant(BOB, "repo:a/**")


LIES: list[tuple[Tell, Found, dict[str, int]]] = [
    (leaf_in_a_foreign_tree, [(7, "double_grant")], {}),
    (tree_over_a_foreign_leaf, [(7, "double_grant")], {}),
    (the_top_of_a_foreign_tree, [(7, "double_grant")], {}),
    (whole_scheme, [(7, "double_grant")], {}),
    (tree_in_a_tree, [(7, "double_grant")], {}),
    (writer_beside_a_reader, [(8, "double_grant")], {}),
    (changed_against_a_reader, [(9, "double_grant")], {}),
    (old_token_after_a_change, [(7, "token_not_rising")], {}),
    (changed_to_the_same, [(7, "mode_differs")], {}),
    (changed_past_a_line, [(9, "queue_jumped")], {}),
    (hold_begun_anew_by_a_change, [(7, "hold_wrong")], {}),
    (changed_by_another, [(7, "citation_wrong")], {}),
    (renewed_past_the_longest_hold, [(8, "hold_exceeded")], {"maxHoldMs": 10_000}),
    (hold_exceeded_too_early, [(8, "refusal_wrong")], {"maxHoldMs": 10_000}),
    (renewed_in_another_mode, [(7, "mode_differs")], {}),
    (granted_in_the_delay, [(8, "delay_ignored")], {"lockDelayMs": 5_000}),
    (a_delay_too_long, [(7, "delay_wrong")], {"lockDelayMs": 5_000}),
    (a_delay_left_out, [(7, "delay_wrong")], {"lockDelayMs": 5_000}),
    (a_delay_made_up, [(7, "delay_wrong")], {}),
    (delayed_though_one_left_it, [(8, "refusal_wrong")], {"lockDelayMs": 5_000}),
    (too_many_names, [(7, "too_many_held")], {"heldPerPrincipal": 2}),
    (too_many_names_in_delays, [(8, "too_many_held")], {"heldPerPrincipal": 2, "lockDelayMs": 5_000}),
    (accepted_without_an_offer, [(8, "not_offered")], {}),
    (accepted_by_an_older_offer, [(9, "not_offered")], {}),
    (old_token_after_a_transfer, [(8, "token_not_rising")], {}),
    (transfer_past_a_line, [(9, "queue_jumped")], {}),
    (transfer_past_the_givers_other_lease, [(9, "double_grant")], {}),
    (offered_by_another, [(7, "refusal_due")], {}),
    (offered_with_an_old_token, [(7, "refusal_due")], {}),
    (break_without_an_operator, [(7, "operator_required"), (7, "on_behalf_wrong")], {}),
    (break_repeated_for_no_break, [(8, "citation_wrong")], {}),
    (break_refused_for_the_right_token, [(7, "refusal_wrong")], {}),
    (break_hides_who_holds, [(7, "conflict_wrong"), (7, "holder_wrong")], {}),
    (trust_for_nothing, [(7, "trust_wrong")], {}),
    (trust_beyond_the_window, [(11, "trust_wrong")], {}),
    (trust_not_lost, [(7, "trust_wrong")], {}),
    (trust_not_lost_by_the_giver, [(9, "trust_wrong")], {}),
    (trust_with_another_past, [(9, "trust_wrong")], {}),
    (the_older_of_two_released, [(9, "released_other")], {}),
    (over_but_not_ended, [(7, "expiry_missing")], {}),
]


@pytest.mark.parametrize(("tell", "wanted", "parameters"), LIES, ids=[row[0].__name__ for row in LIES])
def test_a_lie_about_a_lease_is_found_at_its_entry(tell: Tell, wanted: Found, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == wanted
