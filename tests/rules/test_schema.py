"""Why the schema is mandatory: sets that Cedar without one answers with Allow, although their author meant no.

In each, a `forbid` is wrong; Cedar leaves out a policy that fails, or that fits nothing, and the `permit` decides.
"""

from typing import Any

import cedarpy
import pytest

from gateway.core.records import RuleSet
from gateway.rules.check import check
from gateway.rules.engine import Engine
from gateway.rules.evaluate import Rules
from tests.rules.questions import ALL, policy, question
from verifier.rules import SCHEMA, evaluations

# The fact is misspelt; a number is compared with a text; the mode, the kind and the name are none that there are.
MEANT_TO_FORBID = [
    (policy("forbid", "context.trvst < 40000", name="misspelt"), "there is no fact `trvst`; did you mean trust?"),
    (policy("forbid", 'context.trust < "40000"', name="typed"), "here stands a text where a number is needed"),
    (policy("forbid", name="mode", head='principal, action == Action::"wrte", resource'), "did you mean write?"),
    (policy("forbid", name="kind", head='principal, action, resource in Schema::"repo"'), "did you mean Scheme?"),
]
# And those that pass Cedar's own check as well.
MEANT_ALL_THE_SAME = [
    (policy("forbid", "context has trvst && context.trust < 90000", name="has"), "context never has `trvst`"),
    (policy("forbid", name="tree", head='principal, action, resource in Resource::"repo:app"'), "write == instead"),
    (policy("forbid", name="name", head='principal, action, resource in Resource::"app/**"'), "is no name"),
    (policy("forbid", 'context.leaseState == "Live"', name="word"), "did you mean live?"),
    (policy("forbid", "context.dayOfWeek == 0", name="day"), "is 1 to 7, so never 0"),
    (policy("forbid", 'resource == Scheme::"repo:app"', name="scheme"), "what stands before the colon"),
    (policy("forbid", 'principal == Agent::"worker"', name="who"), "named by their did:key"),
    (policy("forbid", 'principal == Resource::"repo:app"', name="crossed"), "compared with Agent::"),
    (policy("forbid", 'principal.hasTag("x")', name="tag"), "never has `tags`"),
]


def asked(text: str, **without: Any) -> Any:
    """Cedar by itself, as a program would use it that knows nothing of ours."""
    (one,) = evaluations(question())
    context: Any = one.request["context"]
    request = one.request | {"context": {name: value for name, value in context.items() if name not in without}}
    return cedarpy.is_authorized(request, text, one.entities)


@pytest.mark.parametrize(("forbid", "why"), MEANT_TO_FORBID)
def test_cedar_without_a_schema_allows_what_was_to_be_forbidden(forbid: str, why: str) -> None:
    assert asked(f"{ALL}\n{forbid}").decision is cedarpy.Decision.Allow
    assert not cedarpy.validate_policies(forbid, SCHEMA)
    assert [why in fault.text for fault in check(f"{ALL}\n{forbid}").faults] != []
    assert any(why in fault.text and fault.line == 2 for fault in check(f"{ALL}\n{forbid}").faults)


@pytest.mark.parametrize(("forbid", "why"), MEANT_ALL_THE_SAME)
def test_cedar_with_a_schema_still_lets_some_pass_and_ours_does_not(forbid: str, why: str) -> None:
    assert cedarpy.validate_policies(forbid, SCHEMA).validation_passed
    assert asked(f"{ALL}\n{forbid}").decision is cedarpy.Decision.Allow
    assert any(why in fault.text and fault.line == 2 for fault in check(f"{ALL}\n{forbid}").faults)


@pytest.mark.parametrize("forbid", [forbid for forbid, _ in MEANT_TO_FORBID[:2]])
def test_a_set_that_never_was_checked_denies_with_an_error(forbid: str) -> None:
    """Whoever brought such a text into force, by whatever way: what fails is an error, and that is no."""
    rules = Rules(f"{ALL}\n{forbid}")
    rule_set = RuleSet(1, rules.digest, f"{ALL}\n{forbid}", "enforce", "cedar/x", 9)
    assert Engine("cedar/x")(rule_set, question())[:3] == ("error", (), ())


def test_a_missing_fact_denies_with_an_error() -> None:
    """Cedar skips the forbid that asks for it; a question that lacks one is not even put."""
    text = f"{ALL}\n{policy('forbid', 'context.trust < 90000')}"
    assert asked(text).decision is cedarpy.Decision.Deny
    assert asked(text, trust=None).decision is cedarpy.Decision.Allow
    made = question()
    short = made._replace(facts=tuple(fact for fact in made.facts if fact[0] != "trust"))
    assert Rules(text).judge(short).decision == "error"
    assert Rules(text).judge(made).decision == "deny"


@pytest.mark.parametrize("value", [True, "50000", None, 5.0])
def test_a_fact_of_another_type_denies_with_an_error(value: Any) -> None:
    made = question()
    bent = made._replace(facts=tuple((name, value if name == "trust" else kept) for name, kept in made.facts))
    assert Rules(ALL).judge(bent).decision == "error"
    assert Rules(ALL).judge(made).decision == "allow"


def test_a_mode_that_is_none_denies_with_an_error() -> None:
    assert Rules(ALL).judge(question()._replace(mode="wrte")).decision == "error"
