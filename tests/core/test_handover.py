"""Handing over and breaking: who may, past whom, what it costs, and what the one who held it is told."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.opening import start_steps
from gateway.core.record_keys import broken_name, ended_key, handover_key
from gateway.core.records import Ended, Handover
from tests.core.book import own_members
from tests.core.hall import Hall
from tests.core.requests import accept, add, break_, did_of, renew, set_scheme, transfer
from verifier.entries import Leaf

A, B, C, OP = (did_of(name) for name in ("A", "B", "C", "op"))
DAY_MS = 86_400_000


def token_of(one: Hall, lease_id: str) -> int:
    return one.leases()[lease_id].fencing_token


def offer(one: Hall, by: str, lease_id: str, to: str, **members: Any) -> Leaf:
    return one.say(transfer(by, lease_id, token_of(one, lease_id), to, **members))


def take(one: Hall, name: str, lease_id: str, **members: Any) -> Leaf:
    return one.say(accept(name, lease_id, **members))


# --- offering -------------------------------------------------------------------------------------------------------


def test_an_offer_names_the_lease_its_holder_and_why_and_changes_nothing_yet() -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    leaf = offer(one, "A", lease_id, "B", reason="end-of-shift", reasonDigest="ab" * 32)
    assert own_members(leaf) == {
        "leaseId": lease_id, "seenToken": token_of(one, lease_id), "toDid": B, "reason": "end-of-shift",
        "reasonDigest": "ab" * 32, "holder": A, "grantSeq": int(lease_id[1:]),
    }  # fmt: skip
    assert one.shelf.get(handover_key(lease_id)) == Handover(lease_id, B, A, leaf.seq, False)
    assert one.renew("A", lease_id).text("error") == ""
    assert one.ask_for("B", "repo:x").text("error") == "lease_held", "an offer gives no right but to accept"
    assert one.audited() == []


def test_a_new_offer_takes_the_place_of_the_one_before_and_an_offer_ends_with_its_lease() -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    offer(one, "A", lease_id, "B")
    offer(one, "op", lease_id, "C")
    assert take(one, "B", lease_id).value["error"] == "not_offered"
    one.free("A", lease_id)
    assert take(one, "C", lease_id).value["error"] == "lease_released"
    assert one.shelf.get(handover_key(lease_id)) is None


def test_an_offer_of_a_lease_that_changed_its_mode_is_of_another_lease() -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    offer(one, "A", lease_id, "B")
    changed = one.renew("A", lease_id, mode="read").text("leaseId")
    assert take(one, "B", lease_id).value["error"] == "lease_changed"
    assert take(one, "B", changed).value["error"] == "not_offered"


# --- accepting ------------------------------------------------------------------------------------------------------


def test_accepting_ends_the_old_lease_and_begins_one_with_its_own_token_and_the_old_bound() -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:y", "repo:x", mode="delete")
    offered = offer(one, "A", lease_id, "B")
    one.later(5_000)
    leaf = take(one, "B", lease_id, ttlMs=7_000)
    assert (leaf.type.split("/")[1], leaf.actor, own_members(leaf)) == (
        "lease.transferred",
        B,
        {
            "resources": ["repo:x", "repo:y"],
            "mode": "delete",
            "schemes": [{"class": "exclusive", "isFolding": False, "name": "repo"}],
            "leaseId": f"L{leaf.seq}",
            "fencingToken": one.t_ms * 1_000,
            "ttlMs": 7_000,
            "expiresAtMs": one.t_ms + 7_000,
            "holdUntilMs": one.t_ms - 5_000 + 3_600_000,
            "fromLeaseId": lease_id,
            "fromSeq": int(lease_id[1:]),
            "giver": A,
            "offerSeq": offered.seq,
        },
    )
    assert one.renew("A", lease_id).value["error"] == "lease_transferred"
    assert one.say(renew("B", f"L{leaf.seq}")).text("error") == ""
    assert one.audited() == []


def test_ones_own_other_leases_are_in_the_receivers_way() -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    wide = one.hold("A", "repo:**")
    offer(one, "A", lease_id, "B")
    leaf = take(one, "B", lease_id)
    conflict: Any = leaf.value["conflict"]
    assert (leaf.value["error"], leaf.value["holder"], conflict["leaseId"]) == ("lease_held", A, wide)
    one.free("A", wide)
    assert take(one, "B", lease_id).text("error") == ""
    assert one.audited() == []


def test_nobody_gets_past_those_in_line_by_a_transfer_but_from_a_better_place_or_by_an_operator() -> None:
    """Security rules 11: else two friends would hand a lease to and fro for ever."""
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    one.line("B", "repo:x")
    one.line("C", "repo:x")
    for name, error in (("D", "queued"), ("C", "queued"), ("B", "")):
        offer(one, "A", lease_id, name)
        leaf = take(one, name, lease_id)
        assert leaf.text("error") == error, name
    lease_id = leaf.text("leaseId")
    offer(one, "op", lease_id, "D")
    assert take(one, "D", lease_id).text("error") == ""
    assert one.audited() == []


@pytest.mark.parametrize(("wait_ms", "losers"), [(7_000, [B, A]), (6_999, [B])])
def test_a_lease_that_runs_out_soon_after_it_was_given_costs_the_giver_too(wait_ms: int, losers: list[str]) -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    offer(one, "A", lease_id, "B")
    given = take(one, "B", lease_id, ttlMs=7_000).text("leaseId")
    if wait_ms < 7_000:  # renewed in time, so it lives longer than when it was given
        one.later(wait_ms)
        one.renew("B", given, ttlMs=7_000)
    one.later(20_000)
    rows: Any = one.leaf(len(one.leaves) - 1).value["trust"]
    assert [row["did"] for row in rows] == losers
    assert one.audited() == []


# --- breaking -------------------------------------------------------------------------------------------------------


def test_a_break_ends_the_lease_that_was_seen_and_its_holder_reads_why() -> None:
    """Scenario 37: a stuck holder is put aside by a person, in the open."""
    one = Hall()
    lease_id = one.hold("A", "repo:a/x", "repo:b")
    token = token_of(one, lease_id)
    one.later(3_000)
    leaf = one.say(break_("op", "repo:a/**", token, reason="stuck.4h", reasonDigest="cd" * 32))
    assert (leaf.type.split("/")[1], leaf.actor, own_members(leaf)) == (
        "lease.broken",
        OP,
        {
            "resource": "repo:a/**",
            "seenToken": token,
            "reason": "stuck.4h",
            "reasonDigest": "cd" * 32,
            "resources": ["repo:a/x", "repo:b"],
            "leaseId": lease_id,
            "fencingToken": token,
            "holder": A,
            "grantSeq": int(lease_id[1:]),
            "grantedAtMs": one.t_ms - 3_000,
        },
    )
    late = one.renew("A", lease_id)
    assert (late.value["error"], late.value["endedSeq"]) == ("lease_broken", leaf.seq)
    assert one.ask_for("B", "repo:b").text("error") == ""
    assert one.audited() == []


def test_whoever_saw_an_older_token_breaks_nothing_and_is_told_who_holds_it_now() -> None:
    one = Hall(agents=["B"])
    one.say(add("op", "A", name="worker-1"))
    old = one.hold("B", "repo:x")
    seen = token_of(one, old)
    one.free("B", old)
    lease_id = one.hold("A", "repo:x")
    leaf = one.say(break_("op", "repo:**", seen))
    told = own_members(leaf)
    assert (told["error"], told["holder"], told["holderName"]) == ("token_stale", A, "worker-1")
    assert (told["conflict"]["leaseId"], told["conflict"]["heldAs"]) == (lease_id, "repo:x")
    assert lease_id in one.leases()
    free = own_members(one.say(break_("op", "repo:free", seen)))
    assert (free["error"], "holder" in free) == ("token_stale", False)
    assert one.audited() == []


def test_of_several_on_the_resource_the_seen_one_is_broken_and_the_last_to_end_is_told() -> None:
    one = Hall()
    one.say(set_scheme("op", "doc", "read-safe"))
    ids = [one.hold(name, "doc:x", mode="read", ttlMs=ttl) for name, ttl in (("A", 9_000), ("B", 20_000), ("C", 9_000))]
    assert one.say(break_("op", "doc:x", 1)).value["holder"] == B
    assert one.say(break_("op", "doc:x", token_of(one, ids[0]))).value["holder"] == A
    assert list(one.leases()) == ids[1:]


def test_repeating_a_break_is_a_success_without_effect_for_a_day() -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    token = token_of(one, lease_id)
    broken = one.say(break_("op", "repo:x", token))
    one.hold("B", "repo:x", ttlMs=3_600_000)
    again = one.say(break_("op", "repo:x", token, reason="again"))
    assert (again.type.split("/")[1], own_members(again)) == (
        "break.repeated",
        {"resource": "repo:x", "seenToken": token, "reason": "again", "endedSeq": broken.seq},
    )
    assert one.shelf.get(ended_key(broken_name(token))) == Ended(OP, "broken", broken.seq, one.t_ms + DAY_MS)
    one.later(DAY_MS)
    assert one.say(break_("op", "repo:x", token)).value["error"] == "token_stale"
    assert one.audited() == []


def test_an_operator_breaks_in_a_dispute_too_because_it_grants_nothing() -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    one.shelf.records["ledger/dispute"] = one.shelf.records["ledger/token"]
    one.say(break_("op", "repo:x", token_of(one, lease_id)))
    assert one.leases() == {}


def test_a_lease_whose_time_has_come_is_not_broken() -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x", ttlMs=1_000)
    token = token_of(one, lease_id)
    one.t_ms += 1_000
    mark = len(one.leaves)
    assert one.say(break_("op", "repo:x", token)).value["error"] == "token_stale"
    assert one.types(mark) == ["lease.expired", "break.refused"]


# --- what a bad end leaves behind -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["expired", "broken", "released"])
def test_after_a_bad_end_others_are_kept_out_for_a_while_and_the_former_holder_is_not(how: str) -> None:
    """Scenario 4: what the old holder still has under way gets time to land."""
    one = Hall()
    one.say(set_scheme("op", "disk", "exclusive", lockDelayMs=4_000))
    lease_id = one.hold("A", "disk:x", "repo:y", ttlMs=1_000)
    if how == "expired":
        one.later(1_000)
    elif how == "broken":
        one.say(break_("op", "disk:x", token_of(one, lease_id)))
    else:
        one.free("A", lease_id)
    ended = one.leaf(len(one.leaves) - 1)
    until_ms = one.t_ms + 4_000
    leaf = one.ask_for("B", "disk:**", "repo:y")
    if how == "released":
        assert ("delayUntilMs" in ended.value, leaf.text("error")) == (False, "")
        return
    assert ended.value["delayUntilMs"] == until_ms
    assert own_members(leaf) == {
        "resources": ["disk:**", "repo:y"], "mode": "write", "ttlMs": 30_000, "wait": False,
        "error": "lock_delayed", "number": 415, "holder": A, "delayUntilMs": until_ms, "endedSeq": ended.seq,
        "stampede": {"admitted": True, "waitMs": 25}, "retryAfterMs": 4_000,
    }  # fmt: skip
    assert one.ask_for("B", "repo:y").text("error") == "lock_delayed", "the whole set is kept"
    assert one.ask_for("A", "disk:x").text("error") == ""
    one.free("A", max(one.leases(), key=lambda name: int(name[1:])))
    one.later(3_999)
    assert one.ask_for("B", "disk:x").text("error") == "lock_delayed"
    one.later(1)
    assert one.ask_for("B", "disk:x").text("error") == ""
    assert one.audited() == []


def test_of_several_schemes_the_longest_delay_counts_and_the_shortest_hold() -> None:
    one = Hall(lock_delay_ms=2_000, max_hold_ms=50_000)
    one.say(set_scheme("op", "slow", "exclusive", lockDelayMs=9_000, maxHoldMs=40_000))
    one.say(set_scheme("op", "long", "exclusive", lockDelayMs=0, maxHoldMs=90_000))
    begun = one.t_ms
    for names in (["slow:x", "long:y", "repo:z"], ["long:z"], ["repo:x"]):
        one.hold("A", *names, ttlMs=1_000)
    assert [lease.hold_until_ms - begun for lease in one.leases().values()] == [40_000, 90_000, 50_000]
    one.later(1_000)
    delays = [one.leaf(seq).value.get("delayUntilMs") for seq in range(len(one.leaves) - 3, len(one.leaves))]
    assert delays == [one.t_ms + 9_000, None, one.t_ms + 2_000]


def test_a_delay_keeps_out_only_whom_the_lease_would_have() -> None:
    one = Hall()
    one.say(set_scheme("op", "doc", "read-safe", lockDelayMs=4_000))
    one.hold("A", "doc:x", mode="read", ttlMs=1_000)
    one.later(1_000)
    assert one.ask_for("B", "doc:x", mode="read").text("error") == ""
    assert one.ask_for("C", "doc:**").text("error") == "lease_held"
    assert one.ask_for("C", "doc:y").text("error") == ""


def test_a_holiday_moves_the_end_of_a_delay_that_the_outage_met() -> None:
    one = Hall(lock_delay_ms=4_000)
    one.hold("A", "repo:x", ttlMs=1_000)
    one.later(1_000)
    before_ms = one.t_ms
    one.t_ms += 10_000
    one.run(one.t_ms, steps=start_steps("recovery", is_clean=False, before_ms=before_ms), epoch=1)
    leaf = one.ask_for("B", "repo:x")
    assert (leaf.value["error"], leaf.value["delayUntilMs"]) == ("lock_delayed", one.t_ms + 10_000)
    one.later(10_000)
    assert one.ask_for("B", "repo:x").text("error") == ""
    assert one.audited() == []
