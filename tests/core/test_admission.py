"""What is admitted, what is not, and what either entry tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.facts import facts_of, result_of, status_of
from gateway.core.outcome import Recorded, Replay
from gateway.core.refusal import BY_NAME
from tests.core.book import own_members
from tests.core.court import ENGINE, FORBID, TEXT, Court
from tests.core.requests import (
    ARGUMENTS,
    accept,
    acquire,
    add,
    admit,
    approved,
    batch,
    break_,
    did_of,
    enrol,
    load_rules,
    release,
    remove,
    set_scheme,
    transfer,
    with_approvals,
)

MINUTE_MS, DAY_MS = 60_000, 86_400_000
UNCOUNTED = {
    "agentCountMinute": 0, "agentCountDay": 0, "agentCostDay": 0,
    "operatorCountMinute": 0, "operatorCountDay": 0, "operatorCostDay": 0,
}  # fmt: skip


def counts(leaf: Any) -> list[int]:
    """Return the counters in a leaf's facts, in the order of UNCOUNTED."""
    return [leaf.value["facts"][name] for name in UNCOUNTED]


# -- what is told ---


def test_what_is_allowed_tells_on_what_it_rests_and_until_when() -> None:
    one = Court()
    lease_id, token = one.fence("E", "repo:app/**", ttlMs=40_000)
    one.later(1_000)
    leaf = one.allowed(admit("E", "repo:app/b", "repo:app/a", lease=(lease_id, token), cost=7))
    told = own_members(leaf)
    assert (
        told.pop("actionDigest")
        == approved("X", admit("E", "repo:app/a", "repo:app/b", cost=7), "")["statement"]["actionDigest"]
    ), "computed by hand in tests/core/requests.py"
    assert told == {
        "operation": "file.write",
        "resources": ["repo:app/a", "repo:app/b"],
        "mode": "write",
        "argumentsDigest": ARGUMENTS,
        "cost": 7,
        "leaseId": lease_id,
        "fencingToken": token,
        "grantSeq": int(lease_id[1:]),
        "facts": {
            "trust": 50_000, "approvals": 0, "leaseState": "live", "leaseMode": "write", "leaseAgeMs": 1_000,
            "leaseLeftMs": 39_000, "agentName": "release-1", "actorKind": "agent", "custody": "agent", **UNCOUNTED,
        },
        "schemes": [
            {"name": "repo", "class": "exclusive", "isFolding": False, "countMinute": 0, "countDay": 0, "costDay": 0}
        ],
        "validUntilMs": one.t_ms + 39_000,
        "uses": 1,
    }  # fmt: skip


def test_a_denial_tells_what_was_asked_and_why() -> None:
    one = Court()
    leaf = one.denied(admit("A", "repo:b", "repo:a", cost=7))
    assert own_members(leaf) == {
        "operation": "file.write", "resources": ["repo:a", "repo:b"], "mode": "write", "argumentsDigest": ARGUMENTS,
        "cost": 7, "error": "lease_required", "number": 604,
    }  # fmt: skip


def test_without_rules_the_hard_rules_decide_alone_and_no_judge_is_asked() -> None:
    one = Court()
    assert "rules" not in one.allowed(admit("A", "repo:x", mode="read")).value
    assert one.judge.asked == []


def test_only_a_read_is_admitted_without_a_lease_and_nobody_needs_to_hold_the_name() -> None:
    one = Court()
    assert one.denied(admit("A", "repo:x", mode="append")).text("error") == "lease_required"
    assert one.denied(admit("A", "repo:x", mode="delete")).text("error") == "lease_required"
    facts: Any = one.allowed(admit("A", "repo:x", mode="read")).value["facts"]
    assert [facts[name] for name in ("leaseState", "leaseMode", "leaseAgeMs", "leaseLeftMs")] == ["none", "none", 0, 0]


def test_nothing_is_moved_by_an_admission() -> None:
    """It is no renewal: a lease that only admits runs out."""
    one = Court()
    fence = one.fence("A", "repo:x", ttlMs=5_000)
    before = one.leases()
    one.later(3_000)
    one.allowed(admit("A", "repo:x", lease=fence))
    assert one.leases() == before
    assert one.later(2_000) == [("lease.expired", fence[0])]


# -- fences ---


def test_the_canonical_accident_is_refused_with_the_token_that_counts_and_the_entry_that_ended_the_old_one() -> None:
    """Scenario 11: A holds 41 and is slow; its lease runs out, B takes 42 and writes; A wakes up and would write."""
    one = Court()
    slow = one.fence("A", "repo:app/a", ttlMs=5_000)
    one.later(5_000)
    expired = len(one.leaves) - 1
    assert one.leaf(expired).type.split("/")[1] == "lease.expired"
    lease_id, token = one.fence("B", "repo:app/**")
    one.allowed(admit("B", "repo:app/a", lease=(lease_id, token)))
    leaf = one.denied(admit("A", "repo:app/a", lease=slow))
    assert own_members(leaf) == {
        "operation": "file.write", "resources": ["repo:app/a"], "mode": "write", "argumentsDigest": ARGUMENTS,
        "cost": 0, "leaseId": slow[0], "fencingToken": slow[1], "error": "stale_fence", "number": 602,
        "endedSeq": expired, "currentToken": token, "holder": did_of("B"),
        "conflict": {
            "leaseId": lease_id, "resource": "repo:app/a", "heldAs": "repo:app/**", "fencingToken": token,
            "mode": "write", "grantedAtMs": one.t_ms, "expiresAtMs": one.t_ms + 3_600_000,
        },
    }  # fmt: skip


def breaks(one: Court, fence: tuple[str, int]) -> None:
    one.say(break_("op", "repo:x", fence[1]))
    one.hold("B", "repo:x")


def hands_over(one: Court, fence: tuple[str, int]) -> None:
    one.say(transfer("A", *fence, "B"))
    one.say(accept("B", fence[0]))


def gives_back(one: Court, fence: tuple[str, int]) -> None:
    one.free("A", fence[0])
    one.hold("B", "repo:x")


def is_removed(one: Court, _: tuple[str, int]) -> None:
    one.say(remove("op", "A"))
    one.hold("B", "repo:x")
    one.say(add("op", "A"))


ENDS = {
    "broken": (breaks, "lease.broken"),
    "transferred": (hands_over, "lease.transferred"),
    "released": (gives_back, "lease.released"),
    "returned": (is_removed, "lease.returned"),
}


@pytest.mark.parametrize(("ends", "entry"), ENDS.values(), ids=ENDS)
def test_however_a_lease_ended_its_token_admits_nothing(
    ends: Callable[[Court, tuple[str, int]], None], entry: str
) -> None:
    one = Court()
    fence = one.fence("A", "repo:x")
    ends(one, fence)
    (newest,) = one.leases().values()
    leaf = one.denied(admit("A", "repo:x", lease=fence))
    assert (leaf.text("error"), leaf.number("currentToken")) == ("stale_fence", newest.fencing_token)
    assert leaf.text("holder") == did_of("B") and newest.fencing_token > fence[1]
    assert one.leaf(leaf.number("endedSeq")).type.split("/")[1] == entry


def test_a_change_of_mode_leaves_the_old_token_behind_and_names_nobody_else() -> None:
    one = Court()
    fence = one.fence("A", "repo:x", mode="read")
    one.renew("A", fence[0], mode="write")
    ((lease_id, lease),) = one.leases().items()
    leaf = one.denied(admit("A", "repo:x", mode="read", lease=fence))
    assert (leaf.text("error"), leaf.number("currentToken")) == ("stale_fence", lease.fencing_token)
    assert "holder" not in leaf.value and "conflict" not in leaf.value and "endedSeq" in leaf.value
    one.allowed(admit("A", "repo:x", mode="read", lease=(lease_id, lease.fencing_token)))


def test_the_token_of_another_lease_of_ones_own_does_not_fit() -> None:
    """It is a number of this ledger, and higher: it admits nothing beside the lease that it was given for."""
    one = Court()
    older, newer = one.fence("A", "repo:x"), one.fence("A", "repo:y")
    assert one.denied(admit("A", "repo:x", lease=(older[0], newer[1]))).text("error") == "fence_unknown"
    leaf = one.denied(admit("A", "repo:x", "repo:y", lease=(newer[0], older[1])))
    assert (leaf.text("error"), leaf.number("currentToken")) == ("stale_fence", newer[1])
    assert "endedSeq" not in leaf.value, "it is live"
    assert one.denied(admit("A", "repo:x", "repo:y", lease=newer)).text("error") == "lease_too_narrow"


def test_who_has_nothing_left_and_nobody_else_has_it_learns_how_it_ended() -> None:
    one = Court()
    fence = one.fence("A", "repo:x")
    one.free("A", fence[0])
    leaf = one.denied(admit("A", "repo:x", lease=fence))
    assert leaf.text("error") == "stale_fence" and leaf.number("endedSeq") == leaf.seq - 1
    assert not leaf.value.keys() & {"currentToken", "holder", "conflict"}


def test_an_end_is_remembered_for_a_day() -> None:
    one = Court()
    fence = one.fence("A", "repo:x")
    one.free("A", fence[0])
    one.later(DAY_MS - 1)
    assert one.denied(admit("A", "repo:x", lease=fence)).text("error") == "stale_fence"
    one.later(1)
    assert one.denied(admit("A", "repo:x", lease=fence)).text("error") == "lease_unknown"


@pytest.mark.parametrize("ends", ["breaks", "runs out"])
def test_a_fence_superseded_while_the_write_stands_in_line_is_refused_when_its_turn_comes(ends: str) -> None:
    """Scenario 12: both came in before anything was decided. What stands at the decision counts."""
    one = Court()
    fence = one.fence("A", "repo:x", ttlMs=5_000)
    write = one.now(admit("A", "repo:x", lease=fence))
    if ends == "breaks":
        asks = [one.now(break_("op", "repo:x", fence[1])), one.now(acquire("B", "repo:x")), write]
    else:
        one.t_ms += 5_000
        asks = [one.now(acquire("B", "repo:x")), write]
    *others, last = one.run(one.t_ms, *asks).answers
    assert all(isinstance(answer, Recorded) and answer.status == 200 for answer in others)
    assert isinstance(last, Recorded) and last.status == 403
    leaf = one.leaf(last.seq)
    assert leaf.text("error") == "stale_fence" and leaf.text("holder") == did_of("B")
    ended = one.leaf(leaf.number("endedSeq")).type.split("/")[1]
    assert ended == ("lease.broken" if ends == "breaks" else "lease.expired")


def test_what_was_admitted_before_in_the_same_turn_stays_admitted() -> None:
    one = Court()
    fence = one.fence("A", "repo:x")
    mark = len(one.leaves)
    one.run(one.t_ms, one.now(admit("A", "repo:x", lease=fence)), one.now(break_("op", "repo:x", fence[1])))
    assert one.types(mark) == ["admission.allowed", "lease.broken"]


@pytest.mark.parametrize(
    ("held", "mode", "asked", "names", "error"),
    [
        (("repo:app/**",), "write", "write", ("repo:app/a/b", "repo:app"), ""),
        (("repo:app/**",), "write", "write", ("repo:app/a", "repo:lib/a"), "lease_too_narrow"),
        (("repo:app/a", "repo:lib/a"), "write", "append", ("repo:app/a", "repo:lib/a"), ""),
        (("repo:app/a",), "write", "write", ("repo:app",), "lease_too_narrow"),
        (("repo:app",), "read", "write", ("repo:app",), "lease_too_narrow"),
        (("repo:app",), "append", "write", ("repo:app",), "lease_too_narrow"),
        (("repo:app",), "write", "delete", ("repo:app",), "lease_too_narrow"),
        (("repo:app",), "delete", "write", ("repo:app",), ""),
        (("repo:app",), "append", "read", ("repo:app",), ""),
        (("doc:App/**",), "write", "write", ("doc:aPP/x",), ""),
        (("repo:App/**",), "write", "write", ("repo:app/x",), "lease_too_narrow"),
    ],
)
def test_a_lease_covers_each_name_and_is_as_strong_as_what_is_done(
    held: tuple[str, ...], mode: str, asked: str, names: tuple[str, ...], error: str
) -> None:
    """`doc` folds case, `repo` does not."""
    one = Court()
    one.say(set_scheme("op", "doc", "exclusive", isFolding=True))
    fence = one.fence("A", *held, mode=mode)
    assert one.say(admit("A", *names, lease=fence, mode=asked)).value.get("error", "") == error


def test_a_lease_of_another_actor_of_the_same_agent_admits_nothing() -> None:
    """A session works with what it holds itself."""
    one = Court()
    one.open("S", "A")
    fence = one.fence("A", "repo:x")
    assert one.denied(admit("S", "repo:x", lease=fence)).text("error") == "lease_not_yours"
    leaf = one.denied(admit("S", "repo:x", mode="read"))
    assert (leaf.text("error"), leaf.text("holder")) == ("admission_conflict", did_of("A"))


def test_a_conflict_names_the_highest_token_that_is_in_the_way() -> None:
    one = Court()
    one.say(set_scheme("op", "lib", "read-safe"))
    first = one.fence("X", "repo:b/c")
    second = one.fence("E", "repo:b/d", ttlMs=1_000)
    one.hold("B", "lib:a", mode="read")  # shares with a read, though its token is the highest
    leaf = one.denied(admit("A", "lib:a", "repo:b/c", "repo:b/d", mode="read"))
    told = own_members(leaf)
    assert (told["error"], told["currentToken"]) == ("admission_conflict", second[1]) and second[1] > first[1]
    assert (told["holder"], told["holderName"]) == (did_of("E"), "release-1")
    assert told["conflict"] == {
        "leaseId": second[0], "resource": "repo:b/d", "heldAs": "repo:b/d", "fencingToken": second[1],
        "mode": "write", "grantedAtMs": one.t_ms, "expiresAtMs": one.t_ms + 1_000,
    }  # fmt: skip
    one.allowed(admit("A", "lib:a", mode="read"))


def test_a_lock_delay_and_those_in_line_keep_nobody_from_reading() -> None:
    """They say who may hold next; what is admitted is asked of who holds now."""
    one = Court()
    one.say(set_scheme("op", "slow", "exclusive", lockDelayMs=60_000))
    fence = one.fence("A", "slow:x")
    one.line("B", "slow:x")
    assert one.denied(admit("X", "slow:x", mode="read")).text("error") == "admission_conflict"
    one.say(break_("op", "slow:x", fence[1]))
    one.allowed(admit("X", "slow:x", mode="read"))


def test_a_denial_is_no_wait() -> None:
    """It leaves no edge in the graph of who waits for whom, and is no part of a stampede."""
    one = Court()
    one.hold("A", "repo:x")
    one.hold("B", "repo:y")
    one.denied(admit("A", "repo:y", mode="read"))
    one.denied(admit("B", "repo:x", mode="read"))
    assert not [key for key in one.shelf.records if key.startswith(("edge/", "wait/"))]
    assert one.ask_for("B", "repo:x").text("error") == "lease_held"


# -- until when ---


def test_what_is_allowed_ends_with_the_first_thing_that_it_rests_on() -> None:
    one = Court(session_idle_ms=50_000)
    one.say(set_scheme("op", "prod", "irreversible"))
    long, short = one.fence("A", "repo:x"), one.fence("A", "repo:y", ttlMs=20_000)
    one.open("S", "A", expiresAtMs=one.t_ms + 3_600_000)
    one.open("R", "A", expiresAtMs=one.t_ms + 45_000)
    held, brief = one.fence("S", "repo:s"), one.fence("R", "repo:r")
    prod = one.fence("A", "prod:x")
    wanted = one.now(admit("A", "prod:x", lease=prod))
    given = [
        approved(by, wanted, one.imprint.genesis, at_ms=one.t_ms, expiresAtMs=one.t_ms + ms)
        for by, ms in (("X", 30_000), ("op2", 3_600_000))
    ]
    ends = {
        "admissionMs": (admit("A", "repo:x", lease=long), 60_000),
        "the lease": (admit("A", "repo:y", lease=short), 20_000),
        "idle": (admit("S", "repo:s", lease=held), 50_000),
        "the session": (admit("R", "repo:r", lease=brief), 45_000),
        "an approval": (with_approvals(wanted, given[0]), 30_000),
        "admissionMs again": (with_approvals(one.now(admit("A", "prod:x", lease=prod)), given[1]), 60_000),
    }
    assert {name: one.allowed(ask).number("validUntilMs") - one.t_ms for name, (ask, _) in ends.items()} == {
        name: ms for name, (_, ms) in ends.items()
    }
    one.later(19_999)
    assert one.allowed(admit("A", "repo:y", lease=short)).number("validUntilMs") == one.t_ms + 1
    one.later(1)
    assert one.denied(admit("A", "repo:y", lease=short)).text("error") == "stale_fence"


def test_a_batch_of_a_session_is_heard_too() -> None:
    one = Court(session_idle_ms=10_000)
    one.open("S", "A")
    fence = one.fence("S", "repo:x")
    one.later(9_000)
    header = one.say(batch("S", admit("S", "repo:x", lease=fence)))
    assert one.leaf(header.seq + 1).number("validUntilMs") == one.t_ms + 10_000


# -- who may ask ---


def test_a_session_asks_within_its_verbs_and_names_and_counts_for_its_agent() -> None:
    one = Court()
    one.open("S", "A", verbs=["lease"])
    fence = one.fence("S", "repo:x")
    assert one.denied(admit("S", "repo:x", lease=fence)).text("error") == "outside_scope"
    one.open("R", "A", label="shell", verbs=["admit", "lease"], resources=["repo:app/**"])
    fence = one.fence("R", "repo:app/**")
    assert one.denied(admit("R", "repo:lib", lease=fence)).text("error") == "outside_scope"
    leaf = one.allowed(admit("R", "repo:app/a", lease=fence))
    facts: Any = leaf.value["facts"]
    assert (facts["agentName"], facts["actorKind"], leaf.principal) == ("shell", "session", did_of("A"))
    assert (one.usage("agent", "A").total, one.usage("agent", "A").denied, one.usage("agent", "R").total) == (1, 2, 0)


def test_a_session_of_an_operator_is_a_principal_of_its_own() -> None:
    one = Court()
    one.open("S", "op")
    facts: Any = one.allowed(admit("S", "repo:x", mode="read")).value["facts"]
    assert (facts["actorKind"], facts["agentName"]) == ("session", "")
    assert (one.usage("agent", "S").total, one.usage("operator", "op").total) == (1, 1)


def test_an_operator_and_a_stranger_are_not_admitted_to_anything() -> None:
    one = Court()
    size = len(one.leaves)
    assert (
        one.tell(admit("op", "repo:x", mode="read")) == one.tell(admit("Z", "repo:x", mode="read")) == "agent_unknown"
    )
    assert len(one.leaves) == size


def test_a_trial_agent_is_admitted_to_its_own_names_and_pays_an_entry_for_it() -> None:
    one = Court(trial_decisions=3)
    assert one.tell(enrol("T", one.key("trial", "trial"))) == "agent.added"
    mine = f"trial:{did_of('T')}/a"
    assert one.denied(admit("T", "repo:x", mode="read")).text("error") == "outside_scope"
    fence = one.fence("T", mine, ttlMs=60_000)
    one.allowed(admit("T", mine, lease=fence))
    assert one.tell(admit("T", mine, lease=fence)) == "trial_used_up"


def test_the_label_the_custody_and_the_trust_of_who_asks_are_facts() -> None:
    one = Court()
    one.say(add("op", "C", name="helper", agentCustody="gateway"))
    lease_id = one.fence("C", "repo:x")[0]
    one.later(1_000)
    one.free("C", lease_id)
    leaf = one.allowed(admit("C", "repo:x", mode="read"))
    facts: Any = leaf.value["facts"]
    assert (facts["agentName"], facts["custody"], facts["trust"]) == ("helper", "gateway", 50_500)
    assert leaf.value["custody"] == "gateway"


# -- once ---


def test_an_admission_sent_again_gets_its_first_answer_and_counts_once() -> None:
    """Also when what it rested on is gone, and also a denial, with its status."""
    one = Court()
    fence = one.fence("A", "repo:x")
    good, bad = one.now(admit("A", "repo:x", lease=fence, cost=5)), one.now(admit("A", "repo:y"))
    first = [one.play(one.t_ms, ask) for ask in (good, bad)]
    assert [answer.status for answer in first if isinstance(answer, Recorded)] == [200, 403]
    one.say(break_("op", "repo:x", fence[1]))
    counted = one.usage("agent", "A"), one.usage("operator", "op"), one.usage("scheme", "repo")
    again = [one.play(one.t_ms, ask.again()) for ask in (good, bad)]
    assert again == [Replay(answer.seq, answer.status) for answer in first if isinstance(answer, Recorded)]
    assert counted == (one.usage("agent", "A"), one.usage("operator", "op"), one.usage("scheme", "repo"))
    assert counted[0].total == 1 and counted[0].total_cost == 5 and counted[0].denied == 1


def test_every_request_of_its_own_is_an_admission_of_its_own() -> None:
    one = Court()
    fence = one.fence("A", "repo:x")
    digests = {one.allowed(admit("A", "repo:x", lease=fence)).text("actionDigest") for _ in range(2)}
    assert len(digests) == 1 and one.usage("agent", "A").total == 2


# -- batches ---


def test_the_admissions_of_a_batch_see_what_the_commands_before_them_did_and_counted() -> None:
    one = Court()
    fence = one.fence("A", "repo:x")
    header = one.say(
        batch(
            "A",
            admit("A", "repo:x", lease=fence, cost=2),
            admit("A", "repo:x", lease=fence, cost=3),
            release("A", "repo:x", leaseId=fence[0]),
            admit("A", "repo:x", lease=fence),
            admit("A", "repo:x", mode="read"),
        )
    )
    parts = [one.leaf(header.seq + 1 + index) for index in range(5)]
    assert [part.value.get("error", part.type.split("/")[1]) for part in parts] == [
        "admission.allowed", "admission.allowed", "lease.released", "stale_fence", "admission.allowed",
    ]  # fmt: skip
    assert [counts(part) for part in parts if "facts" in part.value] == [
        [0, 0, 0, 0, 0, 0], [1, 1, 2, 1, 1, 2], [2, 2, 5, 2, 2, 5],
    ]  # fmt: skip
    assert parts[3].number("endedSeq") == parts[2].seq
    assert [result_of(part.value)["status"] for part in parts] == [200, 200, 200, 403, 200]


def test_an_atomic_batch_that_is_refused_has_admitted_and_counted_nothing() -> None:
    one = Court()
    fence = one.fence("A", "repo:x")
    before = one.lasting()
    ask = one.now(batch("A", admit("A", "repo:x", lease=fence), admit("A", "repo:y"), isAtomic=True))
    answer = one.play(one.t_ms, ask)
    assert isinstance(answer, Recorded) and answer.status == 403
    leaf = one.leaf(answer.seq)
    assert own_members(leaf) == {
        "count": 2, "isAtomic": True, "index": 1, "action": "coordination.admit", "error": "lease_required",
        "number": 604,
    }  # fmt: skip
    assert status_of(leaf.value) == 403 and one.lasting() == before


def test_a_denial_that_refuses_a_batch_is_forbidden_whatever_its_row_says_elsewhere() -> None:
    """And tells the conflict, but no end that was undone with the batch."""
    one = Court()
    fence = one.fence("A", "repo:x")
    leaf = one.say(
        batch("A", release("A", "repo:x", leaseId=fence[0]), admit("A", "repo:x", lease=fence), isAtomic=True)
    )
    assert (leaf.text("error"), "endedSeq" in leaf.value, status_of(leaf.value)) == ("stale_fence", False, 403)
    leaf = one.say(batch("A", admit("A", "repo:x", lease=("L999", 7)), isAtomic=True))
    assert (leaf.text("error"), status_of(leaf.value), BY_NAME["lease_unknown"].status) == ("lease_unknown", 403, 404)


def test_a_refused_batch_tells_no_token_that_was_undone_with_it() -> None:
    """It would be the next holder's, and the receipt of somebody else's."""
    one = Court()
    over = one.fence("A", "repo:x", ttlMs=5_000)
    one.later(5_000)
    leaf = one.say(batch("A", acquire("A", "repo:x"), admit("A", "repo:x", lease=over), isAtomic=True))
    assert (leaf.text("error"), leaf.number("endedSeq"), "currentToken" in leaf.value) == ("stale_fence", 8, False)
    stands = one.fence("A", "repo:x")
    leaf = one.say(batch("A", acquire("A", "repo:y"), admit("A", "repo:x", lease=over), isAtomic=True))
    assert leaf.number("currentToken") == stands[1]


# -- beside the receipt ---


def test_what_an_answer_says_of_an_admission() -> None:
    one = Court()
    fence = one.fence("A", "repo:x")
    leaf = one.allowed(admit("A", "repo:x", lease=fence))
    facts = facts_of(leaf.value)
    assert {name: facts[name] for name in ("ok", "allowed", "isPoliced", "matched", "obligations")} == {
        "ok": True, "allowed": True, "isPoliced": False, "matched": [], "obligations": [],
    }  # fmt: skip
    assert facts["admission"] == {
        "seq": leaf.seq, "actor": did_of("A"), "operation": "file.write", "resource": "repo:x",
        "resources": ["repo:x"], "mode": "write", "argumentsDigest": ARGUMENTS, "cost": 0,
        "actionDigest": leaf.text("actionDigest"), "leaseId": fence[0], "fencingToken": fence[1],
        "validUntilMs": one.t_ms + 60_000, "uses": 1,
    }  # fmt: skip


def test_what_an_answer_says_of_a_denial() -> None:
    one = Court()
    fence = one.fence("A", "repo:x")
    one.say(break_("op", "repo:x", fence[1]))
    other = one.fence("E", "repo:x")
    facts = facts_of(one.denied(admit("A", "repo:x", lease=fence)).value)
    assert (facts["ok"], facts["allowed"], facts["error"], facts["number"]) == (False, False, "stale_fence", 602)
    assert facts["message"] == BY_NAME["stale_fence"].advice and facts["currentToken"] == other[1]
    assert (facts["holder"], facts["holderName"]) == (did_of("E"), "release-1")
    assert facts["expiresAtMs"] == one.t_ms + 3_600_000 and facts["matched"] == []


def test_what_answers_say_of_rules() -> None:
    one = Court()
    loaded = one.load(text=TEXT)
    assert facts_of(loaded.value)["rules"] == {
        "rulesVersion": 1, "rulesMode": "enforce", "digest": loaded.text("digest"), "engine": ENGINE, "count": 1,
    }  # fmt: skip
    one.judge.answer = FORBID
    facts = facts_of(one.denied(admit("A", "repo:x", mode="read")).value)
    assert (facts["isPoliced"], facts["matched"], facts["obligations"]) == (True, ["never", "not-now"], ["tell:op"])
    refused = facts_of(one.say(load_rules("op", TEXT, 1)).value)
    assert (refused["ok"], refused["error"], refused["rulesVersion"]) == (False, "rules_out_of_turn", 1)
