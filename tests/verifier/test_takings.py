"""Ledgers that take a lease away, or keep one from its asker, are found out; what only looks like it stays valid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core import refusal
from tests.verifier import maker
from tests.verifier.judging import audit, faults, of_ledger, pins
from tests.verifier.maker import ALICE, BOB, LOG, OPERATOR, ORIGIN, STRANGER, Json, Key, Ledger, b64
from verifier.entries import HELD_MEMBERS, REFUSAL_NUMBERS, parse_leaf
from verifier.keyring import open_keyring
from verifier.replay.judged import judge_afar
from verifier.replay.refusals import ERRORS
from verifier.replay.relations import Relations

Found = list[tuple[int, int | None, str]]
HOUR_MS = 3_600_000


def told(tell: Callable[[Ledger], Any]) -> Found:
    """What is found in a ledger of five good entries and those that `tell` adds."""
    ledger = maker.opened()
    ledger.time_ms += 500
    tell(ledger)
    return of_ledger(ledger)


def refuse(ledger: Ledger, name: str, key: Key, error: str, members: Json, **over: Any) -> int:
    """A refusal of `members`, which the request asked for and the leaf repeats; `over["more"]` the leaf alone has."""
    action = {"lease": "lease.acquire", "renewal": "lease.renew", "release": "lease.release"}.get(name.split(".")[0])
    action = action or {"agent": "agent.add", "removal": "agent.remove"}[name.split(".")[0]]
    number = over.pop("number", refusal.BY_NAME[error].number if error in refusal.BY_NAME else 999)
    wait = {"wait": False} if name == "lease.refused" else {}
    said = {**members, **wait, "error": error, "number": number, **over.pop("more", {})}
    return ledger.decision(name, key, action, members, said, **over)


def asked(*resources: str) -> Json:
    return {"resources": sorted(resources), "mode": "write", "ttlMs": 30_000}


def by_id(seq: int) -> Json:
    return {"leaseId": f"L{seq}", "ttlMs": 30_000}


def release_by_id(seq: int, *resources: str) -> Json:
    return {"leaseId": f"L{seq}", "resources": list(resources)}


def repeat(ledger: Ledger, key: Key, seq: int, ended_seq: int) -> int:
    members = release_by_id(seq, "lock:a")
    return ledger.decision("release.repeated", key, "lease.release", members, {**members, "endedSeq": ended_seq})


def edit(**changes: Any) -> Callable[[Json], None]:
    return lambda leaf: leaf.update(changes)


# --- ends ---


def expired_long_before_its_end(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=HOUR_MS)
    ledger.time_ms += 1_000
    ledger.expire(seq, expiresAtMs=ledger.time_ms)
    ledger.grant(BOB, "lock:a")


def expired_one_ms_early(ledger: Ledger) -> None:
    """The stated end is repeated honestly, so the leaf itself says that it is early."""
    seq = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 29_999
    ledger.expire(seq)


def expired_early_by_another_end(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 29_999
    ledger.expire(seq, expiresAtMs=0)


def expired_with_another_end(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 30_000
    ledger.expire(seq, expiresAtMs=ledger.time_ms - 1)


def expired_at_the_end_before_the_renewal(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 10_000
    ledger.renew(ALICE, seq)
    ledger.time_ms += 20_000
    ledger.expire(seq)


def renewal_that_shortens(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=HOUR_MS)
    ledger.time_ms += 1_000
    ledger.renew(ALICE, seq, ttl_ms=1_000)
    ledger.time_ms += 1_000
    ledger.expire(seq, expiresAtMs=ledger.time_ms)


def renewal_too_long(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.renew(ALICE, seq, change=edit(expiresAtMs=ledger.time_ms + HOUR_MS))


def renewal_to_the_end_of_time(ledger: Ledger) -> None:
    ledger.renew(ALICE, ledger.grant(ALICE, "lock:a"), change=edit(expiresAtMs=8_204_889_600_000))


def renewal_moves_the_longest_hold(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.renew(ALICE, seq, change=edit(holdUntilMs=ledger.time_ms + HOUR_MS + 1))


def grant_with_another_longest_hold(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", change=edit(holdUntilMs=ledger.time_ms + HOUR_MS - 1))


def renewed_when_over(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.time_ms += 1_000
    ledger.renew(ALICE, seq)


def extended_when_over(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.time_ms += 1_000
    extend(ledger, ALICE, seq)


def released_when_over(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.time_ms += 1_000
    ledger.release(ALICE, seq)


def granted_instead_of_extended(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.grant(ALICE, "lock:a")


def extend(ledger: Ledger, key: Key, seq: int, ttl_ms: int = 30_000, **over: Any) -> int:
    names = ("resources", "mode", "schemes", "leaseId", "fencingToken", "holdUntilMs", "grantSeq", "grantedAtMs")
    members = {**ledger.later(seq, *names), "ttlMs": ttl_ms, "expiresAtMs": ledger.time_ms + ttl_ms}
    body = {"resources": members["resources"], "ttlMs": ttl_ms}
    return ledger.decision("lease.extended", key, "lease.acquire", body, members, **over)


ENDS: list[tuple[Callable[[Ledger], Any], Found]] = [
    (expired_long_before_its_end, [(10, 6, "end_wrong"), (10, 6, "expired_early")]),
    (expired_one_ms_early, [(9, 6, "leaf_malformed")]),
    (expired_early_by_another_end, [(10, 6, "end_wrong"), (10, 6, "expired_early")]),
    (expired_with_another_end, [(10, 6, "end_wrong")]),
    (expired_at_the_end_before_the_renewal, [(10, 7, "end_wrong"), (10, 7, "expired_early")]),
    (renewal_that_shortens, [(10, 6, "end_wrong"), (10, 7, "end_wrong"), (10, 7, "expired_early")]),
    (renewal_too_long, [(10, 6, "end_wrong")]),
    (renewal_to_the_end_of_time, [(9, 6, "leaf_malformed")]),
    (renewal_moves_the_longest_hold, [(10, 6, "hold_wrong")]),
    (grant_with_another_longest_hold, [(10, 5, "hold_wrong")]),
    (renewed_when_over, [(10, 6, "already_over")]),
    (extended_when_over, [(10, 6, "already_over")]),
    (released_when_over, [(10, 6, "already_over")]),
    (granted_instead_of_extended, [(10, 6, "not_extended")]),
]


def test_ends_that_may_come() -> None:
    """On the millisecond; by an extension that keeps a later end; a renewal just before it is over."""
    ledger = maker.opened()
    ledger.time_ms += 500
    seq, end_ms = ledger.grant(ALICE, "lock:a"), ledger.time_ms + 30_000
    ledger.time_ms += 5_000
    extend(ledger, ALICE, seq, 1_000, change=edit(expiresAtMs=end_ms))
    ledger.time_ms = end_ms - 1
    ledger.renew(ALICE, seq, 1_000)
    ledger.time_ms += 1_000
    ledger.expire(seq, expiresAtMs=ledger.time_ms)
    ledger.grant(BOB, "lock:a")
    assert of_ledger(ledger) == []


# --- holidays and starts ---


def holiday(ledger: Ledger, until_ms: int, started_seq: int | None = None) -> None:
    seq = len(ledger.leaves) - 1 if started_seq is None else started_seq
    ledger.entry("lease.holiday", "gateway", {"untilMs": until_ms, "startedSeq": seq, "reason": "start"})


def holiday_until_2229(ledger: Ledger) -> None:
    ledger.started()
    holiday(ledger, 8_204_889_600_000)


def holiday_longer_than_the_outage(ledger: Ledger) -> None:
    ledger.started()
    holiday(ledger, ledger.time_ms + 501)


def holiday_shorter_than_the_outage(ledger: Ledger) -> None:
    ledger.started()
    holiday(ledger, ledger.time_ms + 499)


def holiday_longer_than_entry_0_allows(ledger: Ledger) -> None:
    ledger.time_ms += 40_000
    ledger.started()
    holiday(ledger, ledger.time_ms + 40_500)


def no_holiday(ledger: Ledger) -> None:
    ledger.started()
    ledger.grant(ALICE, "lock:a")


def a_start_instead_of_the_holiday(ledger: Ledger) -> None:
    ledger.started()
    ledger.start()


def holiday_after_something_else(ledger: Ledger) -> None:
    seq = ledger.started()
    ledger.grant(ALICE, "lock:a")
    holiday(ledger, ledger.time_ms, seq)


def holiday_without_a_start(ledger: Ledger) -> None:
    holiday(ledger, ledger.time_ms, 1)


def holiday_of_an_older_start(ledger: Ledger) -> None:
    ledger.started()
    holiday(ledger, ledger.time_ms + 500, 1)


def gap_invented(ledger: Ledger) -> None:
    seq = ledger.started(gapMs=123_456_789)
    holiday(ledger, ledger.time_ms + 500, seq)


def expired_in_the_holiday(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.time_ms += 10_000
    ledger.start()
    ledger.time_ms += 9_999
    ledger.expire(seq)


STARTS: list[tuple[Callable[[Ledger], Any], Found]] = [
    (holiday_until_2229, [(10, 6, "holiday_wrong")]),
    (holiday_longer_than_the_outage, [(10, 6, "holiday_wrong")]),
    (holiday_shorter_than_the_outage, [(10, 6, "holiday_wrong")]),
    (holiday_longer_than_entry_0_allows, [(10, 6, "holiday_wrong")]),
    (no_holiday, [(10, 6, "holiday_missing")]),
    (a_start_instead_of_the_holiday, [(10, 6, "holiday_missing")]),
    (holiday_after_something_else, [(10, 6, "holiday_missing"), (10, 7, "citation_wrong")]),
    (holiday_without_a_start, [(10, 5, "citation_wrong")]),
    (holiday_of_an_older_start, [(10, 6, "citation_wrong")]),
    (gap_invented, [(10, 5, "gap_wrong")]),
    (expired_in_the_holiday, [(10, 8, "expired_early")]),
]


def test_a_holiday_keeps_a_lease_alive_to_its_last_millisecond() -> None:
    """Whose end is past on paper is renewed, refuses others, and expires when the holiday is over."""
    ledger = maker.opened()
    ledger.time_ms += 500
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    other = ledger.grant(ALICE, "lock:b", ttl_ms=1_000)
    ledger.time_ms += 40_000
    ledger.start()  # for 30 s
    ledger.time_ms += 29_999
    ledger.refuse(BOB, other, "lock:b")
    ledger.renew(ALICE, seq, 1_000)
    ledger.time_ms += 1
    ledger.expire(other)
    ledger.time_ms += 999
    ledger.expire(seq, expiresAtMs=ledger.time_ms)
    ledger.start()
    assert of_ledger(ledger) == []


def test_a_shorter_holiday_does_not_end_the_one_that_runs() -> None:
    ledger = maker.opened()
    ledger.time_ms += 500
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.time_ms += 40_000
    ledger.start()
    ledger.time_ms += 5
    ledger.start()
    ledger.time_ms += 29_994
    ledger.expire(seq)
    assert of_ledger(ledger) == [(10, 10, "expired_early")]


# --- disputes ---


def other_history(ledger: Ledger) -> bytes:
    """A checkpoint by our own log key for a size that we have, with a root that we have not."""
    other = Ledger(leaves=ledger.leaves[:3])
    other.grant(STRANGER, "lock:z")
    return other.checkpoint()


def dispute_by_nobody(ledger: Ledger) -> None:
    members = {"checkpoint": "x", "size": 3, "root": b64(b"1" * 32)}
    ledger.entry("ledger.disputed", "gateway", members)


def dispute_signed_by_another(ledger: Ledger) -> None:
    ledger.dispute(Ledger(leaves=[ledger.leaves[0]] * 3).checkpoint(log=STRANGER))


def dispute_by_our_own_checkpoint(ledger: Ledger) -> None:
    ledger.dispute(ledger.checkpoint(4))


def dispute_by_our_newest_checkpoint(ledger: Ledger) -> None:
    ledger.dispute(ledger.checkpoint())


def dispute_over_another_size(ledger: Ledger) -> None:
    ledger.dispute(other_history(ledger), size=3)


def dispute_over_another_origin(ledger: Ledger) -> None:
    text = f"other.example/x\n4\n{b64(bytes(32))}\n"
    ledger.dispute(f"{text}\n{LOG.note_line('other.example/x', text)}".encode())


def granted_in_dispute(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.dispute(other_history(ledger))
    ledger.grant(ALICE, "lock:b")
    ledger.renew(ALICE, seq)
    extend(ledger, ALICE, seq)


def refused_for_no_dispute(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    refuse(ledger, "lease.refused", BOB, "ledger_disputed", asked("lock:b"))
    refuse(ledger, "renewal.refused", ALICE, "ledger_disputed", by_id(seq))


def end_named_in_dispute(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ended = ledger.release(ALICE, seq)
    ledger.dispute(other_history(ledger))
    refuse(ledger, "renewal.refused", ALICE, "ledger_disputed", by_id(seq), more={"endedSeq": ended})


def held_in_dispute(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.dispute(other_history(ledger))
    ledger.refuse(BOB, seq, "lock:a")


DISPUTES: list[tuple[Callable[[Ledger], Any], Found]] = [
    (dispute_by_nobody, [(10, 5, "dispute_unproven")]),
    (dispute_signed_by_another, [(10, 5, "dispute_unproven")]),
    (dispute_by_our_own_checkpoint, [(10, 5, "dispute_unproven")]),
    (dispute_by_our_newest_checkpoint, [(10, 5, "dispute_unproven")]),
    (dispute_over_another_size, [(10, 5, "dispute_unproven")]),
    (dispute_over_another_origin, [(10, 5, "dispute_unproven")]),
    (granted_in_dispute, [(10, seq, "granted_in_dispute") for seq in (7, 8, 9)]),
    (refused_for_no_dispute, [(10, 6, "refusal_wrong"), (10, 7, "refusal_wrong")]),
    (end_named_in_dispute, [(9, 8, "leaf_malformed")]),
    (held_in_dispute, [(10, 7, "refusal_wrong")]),
]


def test_a_proven_dispute_stops_grants_and_lets_leases_go() -> None:
    """Another root at a size we have, or a size we never reached; then refusals, releases and expiries only."""
    longer = Ledger(leaves=[*maker.opened().leaves] * 3)
    for note in (other_history(maker.opened()), longer.checkpoint()):
        ledger = maker.opened()
        ledger.time_ms += 500
        one, two = ledger.grant(ALICE, "lock:a"), ledger.grant(ALICE, "lock:b")
        ledger.dispute(note)
        refuse(ledger, "lease.refused", BOB, "ledger_disputed", asked("lock:a"))
        refuse(ledger, "renewal.refused", ALICE, "ledger_disputed", by_id(one))
        ledger.release(ALICE, one)
        refuse(ledger, "renewal.refused", ALICE, "ledger_disputed", by_id(one))  # also of what is over: none is named
        ledger.time_ms += 30_000
        ledger.expire(two)
        assert of_ledger(ledger) == []


def test_a_dispute_counts_by_the_ledger_s_own_log_key_whatever_is_pinned() -> None:
    """That the pins know no key of this ledger is another matter, and said."""
    ledger = maker.opened()
    ledger.dispute(other_history(ledger))
    assert audit(ledger.export(), open_keyring(policy=maker.policy())).exit_code == 0
    foreign = f"log {STRANGER.vkey(ORIGIN)}\nquorum none\n".encode()
    assert faults(audit(ledger.export(), open_keyring(policy=foreign))) == [(5, "log_signature_missing")]


# --- refusals ---


def held_by_a_lease_that_is_over(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.time_ms += 1_000
    ledger.refuse(BOB, seq, "lock:a")


def held_by_a_released_lease(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.release(ALICE, seq)
    ledger.refuse(BOB, seq, "lock:a")


def held_by_oneself(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.refuse(ALICE, seq, "lock:a")


def held_elsewhere(ledger: Ledger) -> None:
    """The lease is live, but not on what was asked for."""
    seq = ledger.grant(ALICE, "lock:a")
    ledger.refuse(BOB, seq, "lock:b")


def held_by_another_than_named(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.refuse(BOB, seq, "lock:a", change=edit(holder=OPERATOR.did))


def held_under_a_name_nobody_gave(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.refuse(BOB, seq, "lock:a", change=edit(holderName="alice"))


def held_with(**changes: Any) -> Callable[[Ledger], None]:
    def tell(ledger: Ledger) -> None:
        seq = ledger.grant(ALICE, "lock:a")
        ledger.refuse(BOB, seq, "lock:a", change=lambda leaf: leaf["conflict"].update(changes))

    tell.__name__ = f"held_with_{'_'.join(changes)}"
    return tell


def held_by_too_many(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.refuse(BOB, seq, "lock:a", change=edit(conflicts=2))


def held_by_the_lease_that_ends_first(ledger: Ledger) -> None:
    first = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.refuse(BOB, first, "lock:a", change=edit(conflicts=2))


def held_until_the_end_before_the_renewal(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 1
    ledger.renew(ALICE, seq)
    ledger.refuse(BOB, seq, "lock:a")


def renewal_of_ones_own(error: str) -> Callable[[Ledger], None]:
    def tell(ledger: Ledger) -> None:
        refuse(ledger, "renewal.refused", ALICE, error, by_id(ledger.grant(ALICE, "lock:a")))

    tell.__name__ = f"own_live_lease_{error}"
    return tell


def release_of_ones_own(error: str) -> Callable[[Ledger], None]:
    def tell(ledger: Ledger) -> None:
        seq = ledger.grant(ALICE, "lock:a")
        refuse(ledger, "release.refused", ALICE, error, release_by_id(seq, "lock:a"))

    tell.__name__ = f"own_live_lease_not_let_go_{error}"
    return tell


def not_holder_of_what_one_holds(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a")
    refuse(ledger, "release.refused", ALICE, "not_holder", {"resources": ["lock:a"]})


def expired_but_was_released(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ended = ledger.release(ALICE, seq)
    refuse(ledger, "renewal.refused", ALICE, "lease_expired", by_id(seq), more={"endedSeq": ended})


def released_but_has_expired(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a", ttl_ms=1_000)
    ledger.time_ms += 1_000
    ended = ledger.expire(seq)
    refuse(ledger, "renewal.refused", ALICE, "lease_released", by_id(seq), more={"endedSeq": ended})


def unknown_on_the_day_it_ended(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.release(ALICE, seq)
    ledger.time_ms += 86_399_999
    refuse(ledger, "renewal.refused", ALICE, "lease_unknown", by_id(seq))


def ended_by_another_entry(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.release(ALICE, seq)
    refuse(ledger, "renewal.refused", ALICE, "lease_released", by_id(seq), more={"endedSeq": seq})


def ended_without_saying_where(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.release(ALICE, seq)
    refuse(ledger, "renewal.refused", ALICE, "lease_released", by_id(seq))


def release_refused_for_a_holder_without_lease(ledger: Ledger) -> None:
    refuse(ledger, "release.refused", ALICE, "not_holder", {"resources": ["lock:a"]}, more={"holder": BOB.did})


def repeated_before_any_release(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    repeat(ledger, ALICE, seq, seq)


def repeated_by_another(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    repeat(ledger, BOB, seq, ledger.release(ALICE, seq))


def operator_refused_as_no_operator(ledger: Ledger) -> None:
    refuse(ledger, "agent.refused", OPERATOR, "operator_required", {"agent": BOB.did})
    refuse(ledger, "removal.refused", OPERATOR, "operator_required", {"agent": BOB.did})


def agent_not_found_though_enrolled(ledger: Ledger) -> None:
    refuse(ledger, "removal.refused", OPERATOR, "agent_not_found", {"agent": BOB.did})
    refuse(ledger, "removal.refused", ALICE, "agent_not_found", {"agent": STRANGER.did})


def made_up_error(ledger: Ledger) -> None:
    refuse(ledger, "lease.refused", ALICE, "made_up_reason", asked("lock:a"))
    refuse(ledger, "lease.refused", ALICE, "lease_unknown", asked("lock:a"))
    refuse(ledger, "renewal.refused", ALICE, "lease_unknown", by_id(5), number=403)


REFUSALS: list[tuple[Callable[[Ledger], Any], Found]] = [
    (held_by_a_lease_that_is_over, [(10, 6, "expiry_missing"), (10, 6, "refusal_wrong")]),
    (held_by_a_released_lease, [(10, 7, "refusal_wrong")]),
    (held_by_oneself, [(9, 6, "leaf_malformed")]),
    (held_elsewhere, [(10, 6, "refusal_wrong")]),
    (held_by_another_than_named, [(10, 6, "holder_wrong")]),
    (held_under_a_name_nobody_gave, [(10, 6, "holder_wrong")]),
    (held_with(leaseId="L4"), [(10, 6, "conflict_wrong")]),
    (held_with(fencingToken=1), [(10, 6, "conflict_wrong")]),
    (held_with(grantedAtMs=1), [(10, 6, "conflict_wrong")]),
    (held_with(expiresAtMs=1), [(10, 6, "conflict_wrong")]),
    (held_with(resource="lock:b"), [(9, 6, "leaf_malformed")]),
    (held_by_too_many, [(10, 6, "conflict_wrong")]),
    (held_by_the_lease_that_ends_first, [(10, 7, "conflict_wrong")]),
    (held_until_the_end_before_the_renewal, [(10, 7, "conflict_wrong")]),
    (not_holder_of_what_one_holds, [(10, 6, "refusal_wrong")]),
    (expired_but_was_released, [(10, 7, "refusal_wrong")]),
    (released_but_has_expired, [(10, 7, "refusal_wrong")]),
    (unknown_on_the_day_it_ended, [(10, 7, "refusal_wrong")]),
    (ended_by_another_entry, [(10, 7, "citation_wrong")]),
    (ended_without_saying_where, [(10, 7, "citation_wrong")]),
    (release_refused_for_a_holder_without_lease, [(10, 5, "holder_wrong")]),
    (repeated_before_any_release, [(10, 6, "citation_wrong")]),
    (repeated_by_another, [(10, 7, "citation_wrong")]),
    (operator_refused_as_no_operator, [(10, 5, "refusal_wrong"), (10, 6, "refusal_wrong")]),
    (agent_not_found_though_enrolled, [(10, 5, "refusal_wrong"), (10, 6, "refusal_wrong")]),
    (made_up_error, [(9, 5, "leaf_malformed"), (10, 6, "error_unknown"), (9, 7, "leaf_malformed")]),
]


def _must_tell(error: str) -> bool:
    """Some errors have members that they can't go without; a leaf that lacks them is malformed."""
    return error in HELD_MEMBERS and bool(HELD_MEMBERS[error].always)


OWN = [
    *(renewal_of_ones_own(error) for error in sorted(ERRORS["renewal.refused"]) if not _must_tell(error)),
    *(release_of_ones_own(error) for error in sorted(ERRORS["release.refused"])),
]
REFUSALS += [(tell, [(10, 6, "refusal_wrong")]) for tell in OWN]


def test_refusals_that_the_ledger_calls_for() -> None:
    """Every cell of the table of docs/protocol.md 7.8 that refuses, and the day after."""
    ledger = maker.opened()
    ledger.time_ms += 500
    gone = ledger.grant(ALICE, "lock:c", ttl_ms=1_000)
    let_go = ledger.grant(ALICE, "lock:b")
    released = ledger.release(ALICE, let_go)
    ledger.time_ms += 1_000
    expired = ledger.expire(gone)
    live = ledger.grant(ALICE, "lock:a", "lock:d")
    for seq, error, ended in ((gone, "lease_expired", expired), (let_go, "lease_released", released)):
        refuse(ledger, "renewal.refused", ALICE, error, by_id(seq), more={"endedSeq": ended})
    refuse(ledger, "renewal.refused", ALICE, "lease_unknown", by_id(4))
    refuse(ledger, "release.refused", ALICE, "lease_unknown", release_by_id(4, "lock:a"))
    for seq in (gone, let_go):
        refuse(ledger, "renewal.refused", BOB, "lease_not_yours", by_id(seq))
        refuse(ledger, "release.refused", BOB, "lease_not_yours", release_by_id(seq, "lock:b"))
    refuse(ledger, "renewal.refused", BOB, "lease_not_yours", by_id(live))
    refuse(ledger, "release.refused", BOB, "lease_not_yours", release_by_id(live, "lock:a"), more={"holder": ALICE.did})
    refuse(ledger, "release.refused", ALICE, "lease_mismatch", release_by_id(live, "lock:a"))
    members = release_by_id(gone, "lock:c")
    refuse(ledger, "release.refused", ALICE, "lease_expired", members, more={"endedSeq": expired})
    repeat(ledger, ALICE, let_go, released)
    both: Json = {"resources": ["lock:a", "lock:d"]}
    refuse(ledger, "release.refused", BOB, "not_holder", both, more={"holder": ALICE.did})
    refuse(ledger, "release.refused", ALICE, "not_holder", {"resources": ["lock:a"]})
    early = ledger.value(live)["timeMs"] // 1000 - 1
    refuse(ledger, "release.refused", ALICE, "not_holder", both, created=early)
    refuse(ledger, "agent.refused", ALICE, "operator_required", {"agent": STRANGER.did})
    refuse(ledger, "removal.refused", ALICE, "operator_required", {"agent": STRANGER.did})
    refuse(ledger, "removal.refused", OPERATOR, "agent_not_found", {"agent": STRANGER.did})
    ledger.time_ms += 86_400_000
    ledger.expire(live)
    refuse(ledger, "renewal.refused", ALICE, "lease_unknown", by_id(gone))
    refuse(ledger, "renewal.refused", BOB, "lease_unknown", by_id(let_go))
    assert of_ledger(ledger) == []


def test_a_refusal_names_the_holder_by_the_label_an_operator_gave_last() -> None:
    """Of several labels the last one counts; an agent that is enrolled again without one has none."""
    ledger = maker.opened()
    for name in ("first", "alice"):
        label = {"agent": ALICE.did, "name": name}
        ledger.decision("agent.added", OPERATOR, "agent.add", label, label)
    ledger.time_ms += 500
    one = ledger.grant(ALICE, "lock:a")
    two = ledger.grant(ALICE, "lock:a", "lock:b", ttl_ms=1_000)
    ledger.refuse(BOB, two, "lock:b", change=edit(holderName="alice"))
    ledger.add(ALICE)
    ledger.refuse(BOB, one, "lock:a", "lock:b", change=edit(conflicts=2), **both_asked())
    assert of_ledger(ledger) == []


def both_asked() -> Json:
    return {"raw_body": f'{{"ledger": "{ORIGIN}", "actorDid": "{BOB.did}", "resources": ["lock:a", "lock:b"]}}'}


LIES = [*ENDS, *STARTS, *DISPUTES, *REFUSALS]


@pytest.mark.parametrize(("tell", "wanted"), LIES, ids=[tell.__name__ for tell, _ in LIES])
def test_what_takes_a_lease_away_is_found_at_its_entry(tell: Callable[[Ledger], Any], wanted: Found) -> None:
    assert told(tell) == wanted


@pytest.mark.parametrize("tell", [held_by_too_many, not_holder_of_what_one_holds, gap_invented, granted_in_dispute])
def test_other_processes_find_the_same(tell: Callable[[Ledger], Any]) -> None:
    """What travels back from them is enough for every relation."""
    ledger = maker.opened()
    ledger.time_ms += 500
    tell(ledger)
    reports = [audit(ledger.export(), pins(ledger), jobs=jobs) for jobs in (1, 2)]
    assert reports[0] == reports[1] and reports[0].exit_code == 1


# --- the table of errors, and memory ---


def test_the_errors_of_the_verifier_are_the_rows_of_the_gateways_table() -> None:
    """The verifier imports nothing of the gateway, so both have the table and this compares."""
    assert list(REFUSAL_NUMBERS.items()) == [(row.name, row.number) for row in refusal.TABLE if row.is_receipted]


def test_parameters_are_those_of_entry_0() -> None:
    ledger = Ledger()
    ledger.open(parameters={**maker.PARAMETERS, "holidayMs": 5, "maxHoldMs": 7_000, "idempotencyMs": 2_000})
    ledger.time_ms += 10
    ledger.started()
    holiday(ledger, ledger.time_ms + 5)
    ledger.add(ALICE)
    ledger.time_ms += 500
    change = edit(holdUntilMs=ledger.time_ms + 7_000)
    seq = ledger.grant(ALICE, "lock:a", change=change, idempotencyKey="once")
    ledger.release(ALICE, seq)
    ledger.time_ms += 2_000
    refuse(ledger, "renewal.refused", ALICE, "lease_unknown", by_id(seq), idempotencyKey="once")
    assert of_ledger(ledger) == []


def test_how_a_lease_ended_is_forgotten_after_a_day() -> None:
    ledger, relations = maker.opened(), Relations()
    for _ in range(5):
        ledger.time_ms += 86_400_000
        ledger.release(ALICE, ledger.grant(ALICE, "lock:a"))
    relations.open(parse_leaf(ledger.leaves[0]), bytes(32))
    for leaf_bytes in ledger.leaves:
        [entry] = judge_afar([leaf_bytes], frozenset((maker.AUTHORITY,)))
        assert entry.leaf is not None and list(relations.faults(entry.leaf, entry)) == []
    state = relations.state
    assert (state.lease, bool(state.leases), state.names_held, state.leases_of, len(state.endings)) == (
        {},
        False,
        {},
        {},
        1,
    )


def test_a_ttl_outside_the_bounds_of_entry_0_is_found() -> None:
    ledger = Ledger()
    ledger.open(parameters={**maker.PARAMETERS, "ttlMinMs": 5_000, "ttlMaxMs": 60_000})
    ledger.add(ALICE)
    bad = [ledger.grant(ALICE, "lock:a", ttl_ms=4_999), ledger.grant(ALICE, "lock:b", ttl_ms=60_001)]
    ledger.grant(ALICE, "lock:c", ttl_ms=5_000)
    ledger.grant(ALICE, "lock:d", ttl_ms=60_000)
    assert of_ledger(ledger) == [(10, seq, "ttl_wrong") for seq in bad]
