"""Two sessions of one agent: what each has for itself, and what they have together with the agent behind them.

Leases, tickets, waits for others and places in a circle are those of the key that acts; trust, the names in hand, the
places in line and the refusals in a row are those of the principal.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.record_keys import edge_key, lease_key, principal_key, wait_key
from gateway.core.records import Edge, Principal, Waits
from tests.core.book import own_members
from tests.core.hall import Hall
from tests.core.requests import (
    NOW_MS,
    accept,
    acquire,
    add,
    add_operator,
    cancel,
    claim,
    did_of,
    enrol,
    issue,
    release,
    remove,
    renew,
    set_scheme,
    transfer,
)
from verifier.entries import Leaf

A, B, OP, S, T = (did_of(name) for name in ("A", "B", "op", "s", "t"))
IDLE_MS, HOUR_MS = 120_000, 3_600_000


def kind_of(leaf: Leaf) -> str:
    return leaf.type.split("/")[1]


def error_of(leaf: Leaf) -> str:
    return leaf.text("error")


def crew(**numbers: int) -> Hall:
    """A ledger in which A has the sessions s and t."""
    one = Hall("ABC", **numbers)
    one.open("s", "A", label="shell")
    one.open("t", "A")
    return one


def counted(one: Hall, name: str) -> Principal | None:
    record = one.shelf.get(principal_key(did_of(name)))
    assert record is None or isinstance(record, Principal)
    return record


# --- each for itself ------------------------------------------------------------------------------------------------


def test_a_lease_of_a_session_is_its_own_and_says_for_whom() -> None:
    one = crew()
    leaf = one.ask_for("s", "repo:x")
    assert (leaf.actor, leaf.principal, leaf.on_behalf_of) == (S, A, OP)
    (lease,) = one.leases().values()
    assert (lease.holder, lease.principal, lease.on_behalf_of) == (S, A, OP)
    assert one.audited() == []


def test_two_sessions_of_one_agent_are_in_each_others_way_and_in_its_own() -> None:
    one = crew()
    lease_id = one.hold("s", "repo:x")
    for name in ("t", "A"):
        leaf = one.ask_for(name, "repo:**")
        assert (error_of(leaf), leaf.value["holder"], leaf.value["holderName"]) == ("lease_held", S, "shell")
        assert error_of(one.renew(name, lease_id)) == "lease_not_yours"
        assert error_of(one.say(release(name, "repo:x"))) == "not_holder"
    assert kind_of(one.ask_for("s", "repo:x")) == "lease.extended"
    assert kind_of(one.ask_for("s", "repo:**")) == "lease.granted", "ones own never are"
    assert one.audited() == []


def test_two_sessions_of_one_agent_can_wait_for_each_other_in_a_circle() -> None:
    one = crew()
    one.hold("s", "repo:x")
    one.hold("t", "repo:y")
    one.line("s", "repo:y")
    leaf = one.ask_for("t", "repo:x", wait=True)
    rows: Any = leaf.value["cycle"]
    assert (error_of(leaf), [row["actor"] for row in rows]) == ("deadlock", [T, S])
    assert one.audited() == []


def test_a_refusal_is_a_wait_of_the_session_alone() -> None:
    one = crew()
    one.hold("B", "repo:x")
    refused = one.ask_for("s", "repo:x")
    assert one.shelf.get(edge_key(S)) == Edge(S, "repo:x", "write", refused.seq, one.t_ms + 10_000)
    one.hold("t", "repo:z")
    one.hold("A", "repo:w")
    assert one.shelf.get(edge_key(S)) is not None, "another key of the same agent got something"
    assert [one.shelf.get(edge_key(did)) for did in (T, A)] == [None, None]


def test_a_ticket_is_its_sessions_alone_and_each_may_have_one_for_the_same_name() -> None:
    one = crew()
    lease_id = one.hold("B", "repo:x")
    first, second = one.line("s", "repo:x"), one.line("t", "repo:x")
    for act in (one.claim, one.cancel):
        assert error_of(act("t", first)) == "ticket_not_yours"
        assert error_of(act("A", first)) == "ticket_not_yours"
    one.free("B", lease_id)
    assert one.offered() == [first], "the second waits for the first, though both are for one agent"
    assert kind_of(one.claim("s", first)) == "lease.claimed"
    assert one.claim("t", second).number("position") == 1
    assert one.audited() == []


# --- together -------------------------------------------------------------------------------------------------------


def test_an_agent_and_its_sessions_hold_so_many_names_together() -> None:
    one = crew(held_per_principal=4)
    one.hold("A", "repo:a")
    own = one.hold("s", "repo:b", "repo:c")
    ticket_free = one.hold("B", "repo:z")
    ticket = one.line("t", "repo:z")
    one.hold("t", "repo:d")
    for name in ("A", "s", "t"):
        assert error_of(one.ask_for(name, "repo:e")) == "too_many_held"
    one.free("B", ticket_free)
    assert error_of(one.claim("t", ticket)) == "too_many_held"
    record = counted(one, "A")
    assert (record and record.held, counted(one, "s"), counted(one, "t")) == (4, None, None)
    one.free("s", own)
    assert kind_of(one.claim("t", ticket)) == "lease.claimed"
    assert one.audited() == []


def test_what_one_session_left_closed_counts_for_all_until_it_is_open_again() -> None:
    one = crew(held_per_principal=2, lock_delay_ms=5_000)
    one.hold("s", "repo:a", "repo:b", ttlMs=1_000)
    one.later(1_000)
    assert error_of(one.ask_for("t", "repo:c")) == "too_many_held"
    assert error_of(one.ask_for("t", "repo:a")) == "too_many_held"
    one.later(4_999)
    assert error_of(one.ask_for("A", "repo:c")) == "too_many_held"
    one.t_ms += 1
    assert error_of(one.ask_for("t", "repo:a")) == ""
    assert one.audited() == []


def test_a_sessions_lock_delay_keeps_the_others_of_its_agent_out_too() -> None:
    one = crew(lock_delay_ms=5_000)
    one.hold("s", "repo:a", ttlMs=1_000)
    one.later(1_000)
    assert [error_of(one.ask_for(name, "repo:a")) for name in ("t", "A", "s")] == ["lock_delayed", "lock_delayed", ""]
    assert one.audited() == []


def test_an_agent_and_its_sessions_have_so_many_places_in_line_together() -> None:
    one = crew(queue_per_principal=3)
    one.hold("B", *(f"repo:{n}" for n in range(5)))
    for number, name in enumerate(("A", "s", "t")):
        one.line(name, f"repo:{number}")
    for name in ("A", "s", "t"):
        assert error_of(one.ask_for(name, "repo:4", wait=True)) == "queue_full"
    one.line("C", "repo:4")
    one.close("t")
    one.line("s", "repo:4")
    assert one.audited() == []


def test_trust_is_the_agents_whichever_of_its_keys_earns_or_loses_it() -> None:
    one = crew()
    for name in ("s", "t"):
        lease_id = one.hold(name, "repo:x")
        one.later(1_000)
        one.free(name, lease_id)
    rows: Any = one.leaf(len(one.leaves) - 1).value["trust"]
    assert [(row["did"], row["after"]) for row in rows] == [(A, 51_000)]
    one.hold("t", "repo:x", ttlMs=1_000)
    one.later(1_000)
    rows = one.leaf(len(one.leaves) - 1).value["trust"]
    assert [(row["did"], row["change"], row["after"]) for row in rows] == [(A, -5_000, 46_000)]
    one.hold("A", "repo:x")
    record = counted(one, "A")
    assert (record and record.trust, counted(one, "s")) == (46_000, None)
    assert one.audited() == []


def test_refusals_in_a_row_are_counted_of_the_agent_so_that_no_session_begins_anew() -> None:
    one = crew()
    one.hold("B", "repo:x")
    waits = [one.ask_for(name, "repo:x").value["stampede"] for name in ("s", "t", "A", "s")]
    assert waits == [{"admitted": True, "waitMs": wait_ms} for wait_ms in (25, 50, 100, 200)]
    record = one.shelf.get(wait_key(A, "repo:x"))
    assert isinstance(record, Waits) and (record.actor, record.principal, record.waits) == (S, A, 4)
    assert one.shelf.get(wait_key(S, "repo:x")) is None
    assert one.audited() == []


def test_an_operators_own_session_counts_for_itself() -> None:
    one = Hall("AB", held_per_principal=1)
    one.open("s", "op")
    one.open("t", "op")
    first, second = one.ask_for("s", "repo:x"), one.ask_for("t", "repo:y")
    assert [(leaf.principal, leaf.on_behalf_of) for leaf in (first, second)] == [(S, OP), (T, OP)]
    assert error_of(one.ask_for("s", "repo:z")) == "too_many_held"
    assert one.audited() == []


# --- handing over ---------------------------------------------------------------------------------------------------


def give(one: Hall, giver: str, lease_id: str, to: str, **members: Any) -> Leaf:
    """Offer and accept; return what comes of accepting."""
    offered = one.say(transfer(giver, lease_id, one.leases()[lease_id].fencing_token, to))
    assert kind_of(offered) == "transfer.offered", offered.value
    return one.say(accept(to, lease_id, **members))


def test_sessions_hand_over_to_each_other_even_when_their_agent_can_hold_no_more() -> None:
    """What goes from one key of a principal to another adds nothing to what it holds."""
    one = crew(held_per_principal=1)
    lease_id = one.hold("s", "repo:x")
    leaf = give(one, "s", lease_id, "t")
    assert (kind_of(leaf), leaf.value["giver"], leaf.actor, leaf.principal) == ("lease.transferred", S, T, A)
    record = counted(one, "A")
    assert record and record.held == 1
    assert error_of(one.renew("s", lease_id)) == "lease_transferred"
    other = one.hold("B", "repo:y")
    one.say(transfer("B", other, one.leases()[other].fencing_token, "s"))
    assert error_of(one.say(accept("s", other))) == "too_many_held", "from another principal it does"
    assert one.audited() == []


@pytest.mark.parametrize(("receiver", "losers"), [("t", [A]), ("B", [B, A])])
def test_when_a_gift_soon_runs_out_principals_lose_trust_each_once(receiver: str, losers: list[str]) -> None:
    one = crew()
    give(one, "s", one.hold("s", "repo:x"), receiver, ttlMs=5_000)
    one.later(5_000)
    rows: Any = one.leaf(len(one.leaves) - 1).value["trust"]
    assert [(row["did"], row["change"]) for row in rows] == [(did, -5_000) for did in losers]
    assert one.audited() == []


def test_what_a_session_offered_is_gone_with_it() -> None:
    one = crew()
    lease_id = one.hold("s", "repo:x")
    one.say(transfer("s", lease_id, one.leases()[lease_id].fencing_token, "B"))
    one.close("s")
    assert error_of(one.say(accept("B", lease_id))) == "lease_returned"
    assert one.ask_for("B", "repo:x").text("error") == ""
    assert one.audited() == []


def test_who_is_not_in_force_here_is_offered_and_never_gets_it() -> None:
    one = crew()
    lease_id = one.hold("s", "repo:x")
    for name in ("nobody", "op"):
        assert (
            kind_of(one.say(transfer("s", lease_id, one.leases()[lease_id].fencing_token, name))) == "transfer.offered"
        )
    one.say(add("op", "nobody"))
    assert error_of(one.say(accept("nobody", lease_id))) == "not_offered", "the later offer was to another"
    assert one.audited() == []


# --- scope ----------------------------------------------------------------------------------------------------------


def test_a_session_asks_for_what_its_delegation_covers_before_anything_else_is_looked_at() -> None:
    one = Hall("AB")
    one.open("s", "A", resources=["repo:app/**", "work:item/1"])
    one.hold("B", "repo:lib")
    for names in (
        ["repo:lib"],
        ["repo:app/x", "repo:lib"],
        ["repo:**"],
        ["repo:apple"],
        ["repo:App/x"],
        ["doc:\u00e4"],
    ):
        leaf = one.ask_for("s", *names, ttlMs=5_000)
        assert own_members(leaf) == {
            "resources": sorted(names), "mode": "write", "ttlMs": 5_000, "wait": False,
            "error": "outside_scope", "number": 118,
        }  # fmt: skip
    assert error_of(one.ask_for("s", "repo:lib", wait=True)) == "outside_scope"
    for names in (["repo:app"], ["repo:app/**", "work:item/1"], ["repo:app/src/a"]):
        assert error_of(one.ask_for("s", *names)) == ""
    assert not [key for key in one.shelf.records if key.startswith(("wait/", "edge/"))]
    assert one.audited() == []


def test_a_name_is_compared_with_a_scope_as_it_is_written_also_where_its_scheme_folds() -> None:
    one = Hall("AB")
    one.say(set_scheme("op", "win", "exclusive", isFolding=True))
    one.open("s", "A", resources=["win:Src/**"])
    assert [error_of(one.ask_for("s", name)) for name in ("win:src/a", "win:Src/a")] == ["outside_scope", ""]
    assert one.audited() == []


def test_what_is_accepted_lies_within_the_scope_too_and_what_is_held_goes_on() -> None:
    one = Hall("AB")
    one.open("s", "A", resources=["repo:app/**"])
    outside, inside = one.hold("B", "repo:lib"), one.hold("B", "repo:app/x")
    one.say(transfer("B", outside, one.leases()[outside].fencing_token, "s"))
    leaf = one.say(accept("s", outside, ttlMs=5_000))
    assert own_members(leaf) == {"leaseId": outside, "ttlMs": 5_000, "error": "outside_scope", "number": 118}
    assert error_of(one.say(accept("s", "L999"))) == "lease_unknown", "there is no name to compare"
    taken = give(one, "B", inside, "s").text("leaseId")
    changed = one.renew("s", taken, mode="read").text("leaseId")
    assert error_of(one.renew("s", changed)) == ""
    assert error_of(one.say(release("s", "repo:lib"))) == "not_holder", "giving back is never outside"
    assert one.audited() == []


def test_a_session_hands_over_only_with_the_verb_for_it() -> None:
    one = Hall("AB")
    one.open("s", "A", verbs=["lease"])
    one.open("t", "A", verbs=["transfer"])
    lease_id = one.hold("s", "repo:x")
    token = one.leases()[lease_id].fencing_token
    leaf = one.say(transfer("s", lease_id, token, "B"))
    assert own_members(leaf) == {
        "leaseId": lease_id, "seenToken": token, "toDid": B, "reason": "shift-over",
        "error": "outside_scope", "number": 118,
    }  # fmt: skip
    assert error_of(one.say(transfer("t", lease_id, token, "B"))) == "lease_not_yours", "the verb alone holds nothing"
    for ask in (
        acquire("t", "repo:y"),
        renew("t", lease_id),
        release("t", "repo:x"),
        claim("t", "T1"),
        cancel("t", "T1"),
    ):
        assert error_of(one.say(ask)) == "outside_scope", ask.action
    one.say(transfer("op", lease_id, token, "t"))
    assert error_of(one.say(accept("t", lease_id))) == "outside_scope"
    assert kind_of(one.say(transfer("op", lease_id, token, "B"))) == "transfer.offered", "an operator needs no verb"
    assert one.audited() == []


def test_an_operator_that_was_on_trial_before_is_an_operator() -> None:
    one = Hall("AB")
    one.say(issue("op", "ab" * 32, "trial"))
    one.say(enrol("Z", "ab" * 32))
    one.say(remove("op", "Z"))
    one.say(add_operator("op", "Z"))
    lease_id = one.hold("A", "repo:x")
    offered = one.say(transfer("Z", lease_id, one.leases()[lease_id].fencing_token, "B"))
    assert kind_of(offered) == "transfer.offered"
    assert one.audited() == []


def test_a_trial_agent_has_names_of_its_own_and_short_leases() -> None:
    one = Hall("AB")
    one.say(issue("op", "ab" * 32, "trial"))
    one.say(enrol("Z", "ab" * 32))
    own = f"trial:{did_of('Z')}/x"
    for ttl_ms, name, error in (
        (60_001, own, "outside_scope"), (60_000, "repo:x", "outside_scope"), (60_000, f"trial:{A}/x", "outside_scope"),
        (60_000, own, ""),
    ):  # fmt: skip
        assert error_of(one.ask_for("Z", name, ttlMs=ttl_ms)) == error, (ttl_ms, name)
    (lease_id,) = one.leases()
    leaf = one.renew("Z", lease_id, ttlMs=60_001)
    assert own_members(leaf) == {"leaseId": lease_id, "ttlMs": 60_001, "error": "outside_scope", "number": 118}
    assert error_of(one.renew("Z", lease_id, ttlMs=60_000)) == ""
    assert error_of(one.say(transfer("Z", lease_id, 1, "A"))) == "outside_scope", "a trial hands nothing over"
    other = one.hold("A", f"{own}y")
    one.say(transfer("A", other, one.leases()[other].fencing_token, "Z"))
    assert error_of(one.say(accept("Z", other, ttlMs=60_001))) == "outside_scope"
    assert kind_of(one.say(accept("Z", other, ttlMs=60_000))) == "lease.transferred"
    assert one.audited() == []


# --- when a session's leases end ------------------------------------------------------------------------------------


def test_every_entry_of_a_sessions_lease_says_when_it_ends_if_nothing_more_is_heard() -> None:
    one = crew()
    one.say(set_scheme("op", "doc", "read-safe"))
    other = one.hold("B", "doc:y")
    ticket = one.line("s", "doc:y")
    told = [one.ask_for("s", "doc:x", ttlMs=HOUR_MS)]
    lease_id = told[0].text("leaseId")
    for ask in (
        acquire("s", "doc:x", ttlMs=HOUR_MS), renew("s", lease_id, ttlMs=HOUR_MS),
        renew("s", lease_id, mode="read", ttlMs=HOUR_MS),
    ):  # fmt: skip
        one.t_ms += 1_000
        told.append(one.say(ask))
    one.free("B", other)
    told.append(one.claim("s", ticket))
    told.append(give(one, "s", told[3].text("leaseId"), "t", ttlMs=HOUR_MS))
    assert [kind_of(leaf) for leaf in told] == [
        "lease.granted", "lease.extended", "lease.renewed", "lease.changed", "lease.claimed", "lease.transferred",
    ]  # fmt: skip
    for leaf in told:
        assert leaf.value["endsIfIdleAtMs"] == min(leaf.time_ms + IDLE_MS, leaf.number("expiresAtMs")), leaf.type
    assert one.audited() == []


def test_who_is_no_session_has_no_such_end() -> None:
    one = crew()
    for leaf in (one.ask_for("A", "repo:x"), one.ask_for("A", "repo:x"), one.ask_for("B", "repo:y")):
        assert "endsIfIdleAtMs" not in leaf.value
    assert "endsIfIdleAtMs" not in give(one, "s", one.hold("s", "repo:z"), "B").value


@pytest.mark.parametrize(("ttl_ms", "lent_ms", "end_ms"), [(5_000, 90_000, 5_000), (600_000, 90_000, 90_000)])
def test_the_least_of_ttl_silence_and_delegation_is_told(ttl_ms: int, lent_ms: int, end_ms: int) -> None:
    one = Hall("AB")
    one.open("s", "A", expiresAtMs=NOW_MS + lent_ms)
    assert one.ask_for("s", "repo:x", ttlMs=ttl_ms).value["endsIfIdleAtMs"] == NOW_MS + end_ms
    assert one.audited() == []


def test_an_idle_session_leaves_its_lease_and_others_hear_of_it() -> None:
    one = crew()
    lease_id = one.hold("s", "repo:x")
    one.t_ms += 1
    one.renew("t", one.hold("t", "repo:y"))
    one.later(IDLE_MS - 1)
    leaf = one.leaf(len(one.leaves) - 1)
    assert (kind_of(leaf), leaf.value["leaseId"], leaf.value["holder"]) == ("lease.returned", lease_id, S)
    assert [lease.holder for lease in one.leases().values()] == [T]
    assert one.ask_for("B", "repo:x").text("error") == ""
    assert one.audited() == []


# --- late calls -----------------------------------------------------------------------------------------------------


def test_an_agent_that_comes_back_is_told_that_what_it_had_was_given_back() -> None:
    one = Hall("AB")
    lease_id = one.hold("A", "repo:x")
    one.say(remove("op", "A"))
    returned = one.leaf(len(one.leaves) - 1)
    assert kind_of(returned) == "lease.returned" and one.shelf.get(lease_key(lease_id)) is None
    one.say(add("op", "A"))
    late: dict[str, Any] = {"error": "lease_returned", "number": 418, "endedSeq": returned.seq}
    assert own_members(one.renew("A", lease_id)) == {"leaseId": lease_id, "ttlMs": 30_000} | late
    assert own_members(one.say(release("A", "repo:x", leaseId=lease_id))) == {
        "resources": ["repo:x"], "leaseId": lease_id,
    } | late  # fmt: skip
    for ask in (renew("B", lease_id), transfer("op", lease_id, 1, "B"), accept("B", lease_id)):
        assert "endedSeq" not in one.say(ask).value, "its end is nobody else's business"
    assert one.audited() == []
