"""The demo's own reading sees what it says: a session that keeps something, an auditor who begins anew."""

from __future__ import annotations

import pytest

from gateway.demo.checks import is_all_returned, lives, spans
from gateway.demo.judge import Verdict
from gateway.demo.offline import judge_audits, judge_rules
from gateway.demo.watch import Audit
from verifier.wire import JsonObject


def leaf(number: int, name: str, **members: object) -> JsonObject:
    named = {"type": f"tallystick/{name}/1", "seq": number, "actor": "S", "onBehalfOf": "O", **members}
    return named  # type: ignore[return-value]  # what a leaf would say


def held(number: int, lease_id: str) -> JsonObject:
    return leaf(number, "lease.granted", leaseId=lease_id, resources=[f"repo:{lease_id}"])


def returned(number: int, lease_id: str) -> JsonObject:
    return leaf(number, "lease.returned", leaseId=lease_id, resources=[f"repo:{lease_id}"], holder="S", actor="gateway")


OPENED, CLOSED = leaf(1, "session.opened"), leaf(4, "session.closed", session="S", leases=2)
BOTH = [OPENED, held(2, "L2"), held(3, "L3"), CLOSED]


@pytest.mark.parametrize(
    ("after", "is_fine"),
    [
        ([returned(5, "L2"), returned(6, "L3")], True),
        ([returned(5, "L2")], False),
        ([], False),
        ([returned(5, "L2"), returned(7, "L3")], False),
        ([returned(5, "L2"), returned(6, "L3"), returned(7, "L3")], False),
    ],
    ids=["all at once", "one is kept", "all are kept", "something comes between", "one comes back twice"],
)
def test_what_a_session_held_comes_back_once_and_right_then(after: list[JsonObject], is_fine: bool) -> None:
    leaves = [*BOTH, *after]
    (life,) = lives(leaves)
    assert is_all_returned(life, spans(leaves)) is is_fine


def test_a_session_that_goes_on_has_not_given_anything_back() -> None:
    (life,) = lives(BOTH[:3])
    assert (life.end, is_all_returned(life, spans(BOTH[:3]))) == (None, False)


def test_what_was_released_before_the_end_is_not_asked_for() -> None:
    released = leaf(4, "lease.released", leaseId="L2", resources=["repo:L2"])
    leaves = [OPENED, held(2, "L2"), held(3, "L3"), released, leaf(5, "session.ended", session="S", leases=1)]
    (life,) = lives([*leaves, returned(6, "L3")])
    assert is_all_returned(life, spans([*leaves, returned(6, "L3")]))


@pytest.mark.parametrize(
    ("first", "second", "is_fine"),
    [
        (Audit(0, 0, 300), Audit(0, 300, 340), True),
        (Audit(0, 0, 300), Audit(0, 0, 340), False),
        (Audit(0, 0, 300), Audit(0, 300, 300), False),
        (Audit(0, 0, 300), Audit(1, 300, 340), False),
        (Audit(2, 0, 0), Audit(0, 0, 340), False),
    ],
    ids=["goes on", "begins anew", "nothing is new", "finds something", "could not begin"],
)
def test_an_auditor_who_comes_back_decides_what_is_new_and_nothing_else(
    first: Audit, second: Audit, is_fine: bool
) -> None:
    verdict = Verdict()
    judge_audits(verdict, first, second)
    assert (verdict.failures == []) is is_fine


@pytest.mark.parametrize(("rulings", "derived", "is_fine"), [(2, 2, True), (2, 1, False), (0, 0, False)])
def test_rules_that_spoke_are_asked_again_every_time(rulings: int, derived: int, is_fine: bool) -> None:
    verdict = Verdict()
    judge_rules(verdict, Audit(0, 0, 340, rulings, derived))
    assert (verdict.failures == []) is is_fine
