"""Refusals: each is the one that is called for, and everything it tells is so, to the last millisecond of advice."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.verifier.maker import ALICE, BOB, CAROL, OPERATOR, Json
from tests.verifier.scene import FIRST, NUMBERS, Found, Scene, Tell, advice, found
from verifier.entries import HELD_MEMBERS, REFUSAL_NUMBERS
from verifier.replay.refusals import ERRORS

L = FIRST


def spent(waits: int, rest_ms: int) -> Json:
    """The advice once too many were admitted."""
    return {"stampede": {"admitted": False, "waitMs": min(800, 25 * 2**waits)}, "retryAfterMs": rest_ms}


# --- what is called for ---


def advice_grows_and_ends(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", ttl_ms=3_600_000)
    for waits in range(8):
        ledger.deny(BOB, "lease_held", "lock:a", **ledger.held(L, "lock:a", waits=waits))
    for waits in (8, 9):
        told = {**ledger.held(L, "lock:a"), **spent(waits, 3_600_000)}
        ledger.deny(BOB, "lease_held", "lock:a", **told)
    ledger.deny(CAROL, "lease_held", "lock:a", **ledger.held(L, "lock:a"))
    ledger.time_ms += 59_999
    ledger.deny(BOB, "lease_held", "lock:a", **{**ledger.held(L, "lock:a"), **spent(10, 3_600_000 - 59_999)})
    ledger.time_ms += 60_000
    ledger.deny(BOB, "lease_held", "lock:a", **ledger.held(L, "lock:a"))


def a_grant_of_that_name_resets(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.deny(BOB, "lease_held", "lock:a", **ledger.held(L, "lock:a"))
    ledger.deny(BOB, "lease_held", "lock:b", **ledger.held(L, "lock:b"))
    ledger.release(ALICE, L)
    mine = ledger.grant(BOB, "lock:a")
    ledger.release(BOB, mine)
    again = ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.deny(BOB, "lease_held", "lock:a", **ledger.held(again, "lock:a"))
    ledger.deny(BOB, "lease_held", "lock:b", **ledger.held(again, "lock:b", waits=1))


def the_least_names_are_told(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "repo:x/a", "repo:x/b/**")
    told = ledger.held(lease, "repo:x/**", "repo:x/a")
    ledger.deny(BOB, "lease_held", "repo:y", "repo:x/**", "repo:x/b/c", **told)


def behind_the_first_in_line(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ticket = ledger.queue(BOB, "lock:a")
    ledger.queue(CAROL, "lock:a", position=2)
    ledger.release(ALICE, lease)
    ledger.offer(ticket)
    ahead = ledger.ahead(ticket, "lock:a")
    for waits in range(8):
        ledger.deny(ALICE, "queued", "lock:a", "lock:b", **{**ahead, **advice(waits)})
    ledger.deny(ALICE, "queued", "lock:a", **{**ahead, **spent(8, 30_000)})


def a_full_line(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ticket = ledger.queue(BOB, "lock:a")
    ledger.deny(BOB, "already_waiting", "lock:a", "lock:b", wait=True, ticketId=f"T{ticket}")
    for waits in range(3):
        base = 1_000 * 2**waits
        nonce = f"nonce-{ledger.counter + 1:017}"
        spread = int.from_bytes(hashlib.sha256(nonce.encode()).digest()[:2], "big")
        told = {**advice(waits), "retryAfterMs": base + base * spread // 262_144}
        ledger.deny(CAROL, "queue_full", "lock:a", wait=True, **told)


def bounds_of_one_principal(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.queue(BOB, "lock:a")
    nonce = f"nonce-{ledger.counter + 1:017}"
    spread = int.from_bytes(hashlib.sha256(nonce.encode()).digest()[:2], "big")
    ledger.deny(
        BOB, "queue_full", "lock:b", wait=True, **{**advice(0), "retryAfterMs": 1_000 + 1_000 * spread // 262_144}
    )


def late_claims(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    ticket = ledger.queue(BOB, "lock:a")
    ledger.unclaimed(CAROL, ticket, "ticket_not_yours")
    ledger.unclaimed(BOB, lease, "ticket_unknown")
    end = ledger.cancel(BOB, ticket)
    ledger.unclaimed(BOB, ticket, "ticket_ended", endedSeq=end)
    ledger.no("cancel.refused", BOB, "wait.cancel", {"ticketId": f"T{ticket}"}, "ticket_ended", endedSeq=end)
    ledger.no("cancel.refused", CAROL, "wait.cancel", {"ticketId": f"T{ticket}"}, "ticket_not_yours")
    ledger.time_ms += 5_000
    ledger.no("cancel.refused", BOB, "wait.cancel", {"ticketId": f"T{ticket}"}, "ticket_unknown")


def late_releases(ledger: Scene) -> None:
    one = ledger.grant(ALICE, "lock:a")
    two = ledger.grant(ALICE, "lock:b")
    three = ledger.grant(ALICE, "lock:c")
    ends = [ledger.broken(one), ledger.change_mode(ALICE, two, "read")]
    ends.append(ledger.accept(BOB, ledger.hand_over(ALICE, three, BOB)))
    errors = ("lease_broken", "lease_changed", "lease_transferred")
    for lease, end, error, name in zip((one, two, three), ends, errors, "abc", strict=True):
        body = {"leaseId": f"L{lease}", "resources": [f"lock:{name}"]}
        ledger.no("release.refused", ALICE, "lease.release", body, error, endedSeq=end)
        offer = {"leaseId": f"L{lease}", "seenToken": 1, "toDid": CAROL.did, "reason": "x"}
        ledger.no("transfer.refused", ALICE, "lease.transfer", offer, error, endedSeq=end)
        ledger.no("transfer.refused", OPERATOR, "lease.transfer", offer, error)
        ledger.no("transfer.refused", CAROL, "lease.transfer", offer, "lease_not_yours")


def transfers_that_are_refused(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    body = {"leaseId": f"L{lease}", "seenToken": ledger.token, "toDid": ALICE.did, "reason": "x"}
    ledger.no("transfer.refused", ALICE, "lease.transfer", body, "not_offered")
    ledger.no("transfer.refused", ALICE, "lease.transfer", {**body, "seenToken": 1}, "token_stale")
    ledger.no("transfer.refused", ALICE, "lease.transfer", {**body, "leaseId": "L5"}, "lease_unknown")


CALLED_FOR: list[tuple[Tell, dict[str, int]]] = [
    (advice_grows_and_ends, {}),
    (a_grant_of_that_name_resets, {}),
    (the_least_names_are_told, {}),
    (behind_the_first_in_line, {}),
    (a_full_line, {"queuePerResource": 1}),
    (bounds_of_one_principal, {"queuePerPrincipal": 1}),
    (late_claims, {"idempotencyMs": 5_000}),
    (late_releases, {}),
    (transfers_that_are_refused, {}),
]


@pytest.mark.parametrize(("tell", "parameters"), CALLED_FOR, ids=[tell.__name__ for tell, _ in CALLED_FOR])
def test_a_refusal_that_is_called_for(tell: Tell, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == []


# --- lies ---


def told(**changes: Any) -> Tell:
    """A `lease_held` in which something else is told."""

    def tell(ledger: Scene) -> None:
        ledger.grant(ALICE, "lock:a")
        ledger.deny(BOB, "lease_held", "lock:a", **{**ledger.held(L, "lock:a"), **changes})

    tell.__name__ = f"told_{'_'.join(changes)}"
    return tell


def stampede_off_by_one(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    for waits in (0, 2, 2):
        ledger.deny(BOB, "lease_held", "lock:a", **ledger.held(L, "lock:a", waits=waits))


def stampede_admits_for_ever(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    for waits in range(9):
        ledger.deny(BOB, "lease_held", "lock:a", **ledger.held(L, "lock:a", waits=waits))


def advice_of_another_rest(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.deny(BOB, "lease_held", "lock:a", **{**ledger.held(L, "lock:a"), **spent(0, 29_999)})


def full_with_made_up_advice(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")
    ledger.deny(CAROL, "queue_full", "lock:a", wait=True, **advice(0))


def queued_for_a_lease(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ticket = ledger.queue(BOB, "lock:a")
    ledger.deny(CAROL, "queued", "lock:a", **ledger.ahead(ticket, "lock:a"))


def behind_the_second(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    first = ledger.queue(BOB, "lock:a")
    second = ledger.queue(CAROL, "lock:a", position=2)
    ledger.release(ALICE, L)
    ledger.offer(first)
    ledger.deny(ALICE, "queued", "lock:a", **ledger.ahead(second, "lock:a"))


def another_name_is_told(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.deny(BOB, "lease_held", "lock:a", "lock:b", **ledger.held(L, "lock:b"))


def another_name_is_said_to_be_held(ledger: Scene) -> None:
    ledger.grant(ALICE, "repo:a/b", "repo:a/c")
    ledger.deny(BOB, "lease_held", "repo:a/**", **ledger.held(L, "repo:a/**", "repo:a/c"))


def already_waiting_by_another_ticket(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.queue(BOB, "lock:b")
    ledger.queue(BOB, "lock:a")
    ledger.deny(BOB, "already_waiting", "lock:a", wait=True, ticketId=f"T{L + 1}")


def ended_by_another_entry(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ticket = ledger.queue(BOB, "lock:a")
    ledger.cancel(BOB, ticket)
    ledger.unclaimed(BOB, ticket, "ticket_ended", endedSeq=ticket)


def ticket_denied(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ticket = ledger.queue(BOB, "lock:a")
    ledger.unclaimed(BOB, ticket, "ticket_unknown")
    ledger.no("cancel.refused", BOB, "wait.cancel", {"ticketId": f"T{ticket}"}, "ticket_not_yours")


def mode_not_allowed_though_it_is(ledger: Scene) -> None:
    ledger.deny(ALICE, "mode_not_allowed", "lock:a")


def too_many_though_there_are_none(ledger: Scene) -> None:
    ledger.deny(ALICE, "too_many_held", "lock:a")


def disputed_without_a_dispute(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.no("acceptance.refused", BOB, "lease.accept", {"leaseId": f"L{L}", "ttlMs": 30_000}, "ledger_disputed")


LIES: list[tuple[Tell, Found, dict[str, int]]] = [
    (told(holder=CAROL.did), [(7, "holder_wrong")], {}),
    (told(holderName="alice"), [(7, "holder_wrong")], {}),
    (told(conflicts=2), [(7, "conflict_wrong")], {}),
    (told(retryAfterMs=26), [(7, "stampede_wrong")], {}),
    (told(stampede={"admitted": False, "waitMs": 25}), [(7, "stampede_wrong")], {}),
    (told(searchBounded=True), [(7, "cycle_wrong")], {}),
    (stampede_off_by_one, [(8, "stampede_wrong")], {}),
    (stampede_admits_for_ever, [(15, "stampede_wrong")], {}),
    (advice_of_another_rest, [(7, "stampede_wrong")], {"stampedeAdmitted": 0}),
    (full_with_made_up_advice, [(8, "stampede_wrong")], {"queuePerResource": 1}),
    (queued_for_a_lease, [(8, "refusal_wrong")], {}),
    (behind_the_second, [(11, "ahead_wrong")], {}),
    (another_name_is_told, [(7, "conflict_wrong")], {}),
    (another_name_is_said_to_be_held, [(7, "conflict_wrong")], {}),
    (already_waiting_by_another_ticket, [(9, "citation_wrong")], {}),
    (ended_by_another_entry, [(9, "citation_wrong")], {}),
    (ticket_denied, [(8, "refusal_wrong"), (9, "refusal_wrong")], {}),
    (mode_not_allowed_though_it_is, [(6, "refusal_wrong")], {}),
    (too_many_though_there_are_none, [(6, "refusal_wrong")], {}),
    (disputed_without_a_dispute, [(7, "refusal_wrong")], {}),
]


@pytest.mark.parametrize(("tell", "wanted", "parameters"), LIES, ids=[one[0].__name__ for one in LIES])
def test_a_refusal_that_lies_is_found(tell: Tell, wanted: Found, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == wanted


def test_every_error_has_a_number_and_every_group_an_error() -> None:
    """What explains an error belongs to one that some type has. NUMBERS is written anew for these tests."""
    errors = {error for errors in ERRORS.values() for error in errors}
    assert REFUSAL_NUMBERS == {**NUMBERS, "decision_failed": 901}
    assert errors | {"decision_failed"} == REFUSAL_NUMBERS.keys()
    assert HELD_MEMBERS.keys() <= errors
