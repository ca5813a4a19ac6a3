"""The starter set does what its comments say, and the README shows just that set."""

import re
from pathlib import Path

import pytest

from gateway.rules.cases import read_cases, tried
from gateway.rules.check import check
from gateway.rules.evaluate import Rules, Verdict
from gateway.rules.starter import starter_cases, starter_rules
from tests.rules.questions import question
from verifier.rules import SCHEMA

ROOT = Path(__file__).resolve().parents[2]
RULES = Rules(starter_rules())
DEPLOY = "lock:deploy/production"


def judge(*resources: str, **said: object) -> Verdict:
    return RULES.judge(question(*resources, **said))


def test_the_readme_shows_the_set_that_is_shipped() -> None:
    (block,) = re.findall(r"```cedar\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert block == starter_rules()


def test_the_protocol_shows_the_schema_that_sets_are_checked_by() -> None:
    assert f"As a schema:\n\n```\n{SCHEMA}```\n" in (ROOT / "docs/protocol.md").read_text("utf-8")


def test_it_is_valid_and_fits_a_page() -> None:
    assert check(starter_rules()).faults == ()
    assert len(starter_rules().splitlines()) <= 45
    assert max(map(len, starter_rules().splitlines())) <= 120


def test_its_cases_hold_and_meet_every_policy() -> None:
    found = list(tried(RULES, read_cases(starter_cases())))
    assert [one.case.name for one in found if not one.is_met] == []
    assert {name for one in found for name in one.verdict.matched} == {policy.id for policy in RULES.policies}


@pytest.mark.parametrize("policy", [policy.id for policy in RULES.policies])
def test_its_cases_fail_without_any_one_of_its_policies(policy: str) -> None:
    """A set of cases that passes whatever is left out proves nothing."""
    text = re.sub(rf'@id\("{policy}"\)[^;]*;', "", starter_rules())
    less = Rules(text)
    assert len(less.policies) == len(RULES.policies) - 1
    assert [one for one in tried(less, read_cases(starter_cases())) if not one.is_met]


def test_nothing_is_allowed_that_no_permit_names() -> None:
    """Nothing is allowed unless a permit says so: writing without a lease, deleting without an approval."""
    assert judge(leaseState="none") == judge(mode="delete") == Verdict("deny")


def test_trust_is_written_in_thousandths() -> None:
    """Begins at 50 points, one lost lease costs 5: the third one leaves 35."""
    assert [judge(trust=points * 1_000).decision for points in (50, 45, 40, 35)] == ["allow", "allow", "allow", "deny"]


def test_the_thirtieth_act_of_a_minute_is_the_last() -> None:
    assert [judge(agentCountMinute=before).decision for before in (0, 29, 30)] == ["allow", "allow", "deny"]


def test_a_budget_counts_what_is_about_to_be_spent() -> None:
    assert judge(operatorCostDay=9_999, cost=1).decision == "allow"
    assert judge(operatorCostDay=10_000, cost=1).matched == ("budget-of-the-day",)
    assert judge(operatorCostDay=2**53 - 1, cost=10**12).decision == "deny", "no sum of the wire's numbers overflows"


@pytest.mark.parametrize(
    ("at", "is_open"),
    [
        ("Mon 07:59", False), ("Mon 08:00", True), ("Fri 15:59", True), ("Fri 16:00", False), ("Sat 10:00", False),
        ("Sun 10:00", False),
    ],
)  # fmt: skip
def test_deploying_has_its_hours_unless_it_was_approved(at: str, is_open: bool) -> None:
    assert judge(DEPLOY, at=at) == (
        Verdict("allow", ("holders-may-change",)) if is_open else Verdict("deny", ("deploy-in-office-hours",))
    )
    assert judge(DEPLOY, at=at, approvals=1).decision == "allow"
    assert judge("lock:other", at=at).decision == "allow"
    assert judge(DEPLOY, at=at, mode="read").decision == "allow"
