"""Approvals: worth something for exactly one execution of exactly what was approved, by whoever may approve it."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from gateway.core.lookup import counter_at
from gateway.core.opening import start_steps
from gateway.core.record_keys import HOLIDAY_KEY, burnt_key
from gateway.core.records import Burnt
from tests.core.board import BOUND, OTHER, Approval, Board
from tests.core.court import TEXT
from tests.core.crew import digest
from tests.core.requests import (
    add,
    admit,
    approved,
    batch,
    did_of,
    enrol,
    key_of,
    load_rules,
    remove,
    remove_operator,
    with_approvals,
)
from verifier.approval import approval_bytes
from verifier.entries import APPROVAL_MS_MAX, Leaf, rows_of

HOUR_MS = 3_600_000


def board(**numbers: int) -> Board:
    made = Board(**numbers)
    made.hold("A", "db:x")
    return made


def allowed(made: Board, *by: str) -> Leaf:
    """Have something admitted with the approvals of these, which has to succeed, and return its entry."""
    one = made.admission()
    leaf = made.say(with_approvals(one, *(made.approval(who, one) for who in by)))
    assert leaf.type.split("/")[1] == "admission.allowed", leaf.value
    return leaf


def test_what_cannot_be_undone_is_admitted_by_the_word_of_somebody_else() -> None:
    made = board()
    one = made.admission()
    assert made.admits(one) == "approval_required"
    approval = made.approval("X", one)
    leaf = made.say(with_approvals(made.admission(), approval))
    statement = approval["statement"]
    [row] = rows_of(leaf.value["approvals"])
    assert row["approver"] == did_of("X") and row["operator"] == did_of("op2")
    assert row["nonce"] == statement["nonce"]
    assert leaf.value["facts"]["approvals"] == 1  # type: ignore[index, call-overload]
    assert leaf.text("actionDigest") == statement["actionDigest"]


def test_a_quorum_is_one_approval_of_each_operator_told_by_operator() -> None:
    made = board()
    rows = rows_of(allowed(made, "X", "Y").value["approvals"])
    assert [row["operator"] for row in rows] == sorted([did_of("op2"), did_of("op3")])
    assert {row["approver"] for row in rows} == {did_of("X"), did_of("Y")}


def test_operators_approve_themselves() -> None:
    assert [row["approver"] for row in rows_of(allowed(board(), "op2").value["approvals"])] == [did_of("op2")]


# What may not differ between what was approved and what is asked for: each is another action.
CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("arguments", {"argumentsDigest": OTHER}),
    ("cost", {"cost": 1}),
    ("operation", {"operation": "file.delete"}),
    ("mode", {"mode": "append"}),
]


@pytest.mark.parametrize("changes", [row[1] for row in CHANGED], ids=[row[0] for row in CHANGED])
def test_an_approval_of_something_else_is_none(changes: dict[str, Any]) -> None:
    """Scenario 62: whatever is changed after somebody approved it was not approved."""
    made = board()
    approval = made.approval("X", made.admission())
    assert made.admits(made.admission(**changes), approval) == "approval_wrong"
    assert made.admits(made.admission(), approval) == "admission.allowed"


@pytest.mark.parametrize("names", [("db:y",), ("db:x", "db:y"), ("db:x/y",)])
def test_an_approval_of_other_names_is_none(names: tuple[str, ...]) -> None:
    made = Board()
    made.hold("A", "db:**")
    assert made.admits(made.admission("A", *names), made.approval("X", made.admission("A", "db:x"))) == "approval_wrong"


@pytest.mark.parametrize("changes", BOUND.values(), ids=BOUND)
def test_each_member_of_a_statement_binds(changes: dict[str, Any]) -> None:
    made = board()
    one = made.admission()
    assert made.admits(one, signed_anew("X", made.approval("X", one), **changes)) == "approval_wrong"


def signed_anew(by: str, approval: Approval, **changes: Any) -> Approval:
    """Return an approval whose statement says something else in single members, and is signed so."""
    said = {**approval["statement"], **changes}
    return {"statement": said, "signature": base64.b64encode(key_of(by).sign(approval_bytes(said))).decode()}


def test_an_approval_of_one_agent_is_none_of_another() -> None:
    made = board()
    approval = made.approval("X", made.admission())
    made.free("A", made.held[0])
    made.hold("B", "db:x")
    assert made.admits(made.admission("B"), approval) == "approval_wrong"


def test_an_approval_under_older_rules_is_none() -> None:
    """Whoever approved has not seen what the rules say now."""
    made = board()
    approval = made.approval("X", made.admission())
    assert made.tell(load_rules("op", TEXT, 1)) == "rules.loaded"
    assert made.admits(made.admission(), approval) == "approval_wrong"
    now = hashlib.sha256(TEXT.encode()).hexdigest()
    assert made.admits(made.admission(), made.approval("X", made.admission(), rules_digest=now)) == "admission.allowed"


@pytest.mark.parametrize(
    ("begins_ms", "ends_ms", "told"),
    [
        (0, 1, "admission.allowed"),
        (1, HOUR_MS, "approval_expired"),
        (-1_000, 0, "approval_expired"),
        (-APPROVAL_MS_MAX + 1, 1, "admission.allowed"),
    ],
)
def test_an_approval_holds_from_its_begin_and_not_at_its_end(begins_ms: int, ends_ms: int, told: str) -> None:
    made = board()
    one = made.admission()
    times = {"notBeforeMs": made.t_ms + begins_ms, "expiresAtMs": made.t_ms + ends_ms}
    assert made.admits(one, made.approval("X", one, **times)) == told


def test_an_admission_lasts_no_longer_than_its_approvals() -> None:
    made = board()
    one = made.admission()
    until_ms = made.t_ms + 5
    leaf = made.say(with_approvals(one, made.approval("X", one, expiresAtMs=until_ms), made.approval("Y", one)))
    assert leaf.number("validUntilMs") == until_ms


def test_no_holiday_prolongs_an_approval() -> None:
    """The gateway was away, and leases live on for a while; what was approved until then is over."""
    made = board()
    approval = made.approval("X", made.admission(), expiresAtMs=made.t_ms + 1)
    away_ms, made.t_ms = made.t_ms, made.t_ms + 10
    made.run(made.t_ms, steps=start_steps("start", is_clean=False, before_ms=away_ms), epoch=1)
    assert counter_at(made.shelf, HOLIDAY_KEY) > made.t_ms
    assert made.admits(made.admission(), approval) == "approval_expired"


def test_an_approval_is_used_once() -> None:
    made = board()
    approval = made.approval("X", made.admission())
    assert made.admits(made.admission(), approval) == "admission.allowed"
    assert made.admits(made.admission(), approval) == "approval_used"
    assert made.shelf.get(burnt_key(did_of("X"), approval["statement"]["nonce"])) == Burnt(
        len(made.leaves) - 2, approval["statement"]["expiresAtMs"]
    )


def test_a_nonce_is_used_once_whatever_else_the_statement_says() -> None:
    made = board()
    one = made.admission()
    nonce = {"nonce": "n" * 16}
    assert made.admits(one, made.approval("X", one, **nonce)) == "admission.allowed"
    again = made.approval("X", one, **nonce, expiresAtMs=made.t_ms + 2 * HOUR_MS)
    assert made.admits(made.admission(), again) == "approval_used"
    assert made.admits(made.admission(), made.approval("Y", one, **nonce)) == "admission.allowed"


def test_two_uses_in_one_turn_are_one() -> None:
    """Two requests that are decided in the same batch of the gateway, before anything is stored."""
    made = board()
    approval = made.approval("X", made.admission())
    first, second = (with_approvals(made.admission(), approval) for _ in range(2))
    made.run(made.t_ms, first, second)
    assert [made.leaf(-1 + len(made.leaves) - n).value.get("error") for n in (1, 0)] == [None, "approval_used"]


def test_two_uses_in_one_batch_are_one() -> None:
    made = board()
    approval = made.approval("X", made.admission())
    one = with_approvals(made.admission(), approval)
    made.say(batch("A", one, one, at_ms=made.t_ms))
    assert [made.leaf(len(made.leaves) - n).value.get("error") for n in (2, 1)] == [None, "approval_used"]


def test_an_atomic_batch_that_is_refused_uses_nothing_up() -> None:
    made = board()
    approval = made.approval("X", made.admission())
    one = with_approvals(made.admission(), approval)
    assert made.tell(batch("A", one, one, at_ms=made.t_ms, isAtomic=True)) == "approval_used"
    assert made.admits(made.admission(), approval) == "admission.allowed"


def test_a_denied_admission_uses_nothing_up() -> None:
    made = board()
    approval = made.approval("X", made.admission())
    lease_id, token = made.held
    assert made.admits(made.admission(lease=(lease_id, token - 1)), approval) == "stale_fence"
    bad = made.approval("X", made.admission(), expiresAtMs=made.t_ms)
    assert made.admits(made.admission(), made.approval("Y", made.admission()), bad) == "approval_expired"
    assert made.admits(made.admission(), approval) == "admission.allowed"


def test_the_first_row_of_the_table_is_told_whichever_approval_it_is_about() -> None:
    made = board()
    one = made.admission()
    used = made.approval("Y", one)
    assert made.admits(one, used) == "admission.allowed"
    late, unfit = made.approval("X", one, expiresAtMs=made.t_ms), made.approval("B", one)
    wrong = made.approval("Z", one, operation="file.delete")
    assert made.admits(made.admission(), used, late) == "approval_expired"
    assert made.admits(made.admission(), used, late, unfit) == "approver_unfit"
    assert made.admits(made.admission(), used, late, unfit, wrong) == "approval_wrong"


# -- who may approve


@pytest.mark.parametrize("by", ["A", "B", "op", "stranger", "enroller"])
def test_who_is_of_the_own_operator_or_nobody_here_may_not_approve(by: str) -> None:
    made = board()
    one = made.admission()
    assert made.admits(one, made.approval(by, one)) == "approver_unfit"


def test_two_approvals_of_one_operator_are_not_two() -> None:
    made = board()
    one = made.admission()
    for pair in (("X", "Z"), ("X", "op2"), ("X", "X")):
        assert made.admits(made.admission(), *(made.approval(by, one) for by in pair)) == "approver_unfit"


def test_who_was_removed_since_has_not_approved() -> None:
    made = board()
    approvals = [made.approval(by, made.admission()) for by in ("X", "Y", "op3")]
    assert made.tell(remove("op2", "X")) == "agent.removed"
    assert made.tell(remove_operator("op", "op3")) == "operator.removed"
    assert [made.admits(made.admission(), one) for one in approvals] == ["approver_unfit"] * 3


def test_a_session_does_not_approve() -> None:
    made = board()
    made.open("S1", "X", verbs=["admit"])
    one = made.admission()
    assert made.admits(one, made.approval("S1", one)) == "approver_unfit"


def test_a_key_in_the_gateways_custody_does_not_approve() -> None:
    made = board()
    made.key("key", "live", by="op2")
    assert made.tell(enrol("C", digest("key"), agentCustody="gateway")) == "agent.added"
    one = made.admission()
    assert made.admits(one, made.approval("C", one)) == "approver_unfit"


def test_a_trial_agent_does_not_approve() -> None:
    made = board()
    made.key("key", "trial", by="op2")
    assert made.tell(enrol("T", digest("key"))) == "agent.added"
    one = made.admission()
    assert made.admits(one, made.approval("T", one)) == "approver_unfit"
    assert made.tell(add("op2", "T")) == "agent.added"  # who vouches for it ends the trial
    assert made.admits(made.admission(), made.approval("T", one)) == "admission.allowed"


def test_an_approver_who_changed_sides_approves_for_its_new_operator() -> None:
    made = board()
    one = made.admission()
    assert made.tell(remove("op2", "X")) == "agent.removed"
    assert made.tell(add("op", "X")) == "agent.added"
    assert made.admits(one, made.approval("X", one)) == "approver_unfit"


def test_a_session_uses_what_its_agent_was_approved_for() -> None:
    """The agent answers for its sessions, so an approval is the agent's."""
    made = Board()
    made.open("S1", "A", verbs=["admit", "lease"])
    made.hold("S1", "db:x")
    one = made.admission("S1")
    assert made.admits(one, made.approval("X", one)) == "approval_wrong"  # it names the session
    agents = approved("X", one, made.imprint.genesis, agent="A", at_ms=made.t_ms)
    assert made.admits(made.admission("S1"), agents) == "admission.allowed"


def test_reads_may_bring_approvals_too() -> None:
    made = Board()
    made.held = "", 0
    one = made.now(admit("A", "repo:x", mode="read"))
    approval = made.approval("X", one)
    assert made.admits(one, approval) == "admission.allowed"
    assert made.admits(made.now(admit("A", "repo:x", mode="read")), approval) == "approval_used"
