"""What a set can see: nothing that it sees is left out, or a kept answer would be a wrong one."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.rules.evaluate import Rules
from gateway.rules.sight import Sight, place, sight_of
from gateway.rules.starter import starter_rules
from tests.rules.questions import ALL, SHOWN, policy, question
from verifier.rules import Question

AGENT, OPERATOR = SHOWN


def seen(*policies: str) -> Sight:
    return Rules("".join(policies)).sight


def when(condition: str) -> Sight:
    return seen(policy("permit", condition))


def test_a_set_without_conditions_sees_nothing_but_the_mode() -> None:
    assert seen(ALL) == Sight({}, {}, (), {"principal": (), "resource": ()}, frozenset(), False, (), (), {})


def test_a_fact_that_is_compared_counts_by_the_side_of_each_number() -> None:
    sight = when("context.trust >= 40000 && 60000 != context.trust && context.cost < 5")
    assert sight.cuts == {"trust": (40_000, 60_000), "cost": (5,)}
    sides = [sight.side("trust", value) for value in (0, 39_999, 40_000, 40_001, 60_000, 60_001)]
    assert sides == [0, 0, 1, 2, 3, 4]


def test_a_text_that_is_compared_counts_by_which_of_the_words_it_is() -> None:
    sight = when('context.operation == "deploy" || context.operation != "edit"')
    assert [sight.side("operation", word) for word in ("deploy", "edit", "other", "")] == [
        "deploy",
        "edit",
        False,
        False,
    ]


@pytest.mark.parametrize(
    "condition",
    [
        "context.cost + context.trust > 5",
        "context.trust > context.cost",
        "[1, 2].contains(context.cost)",
        "-context.cost < 5",
        '{"a": context.cost} == {"a": 5}',
        "(if context.cost > 3 then context.cost else 3) > 5",
        "context.cost == 5 && context.cost * 2 > 7",
    ],
)
def test_a_fact_that_is_used_otherwise_counts_by_its_value(condition: str) -> None:
    sight = when(condition)
    assert "cost" in sight.whole
    assert sight.side("cost", 6) != sight.side("cost", 7)


@pytest.mark.parametrize("condition", ["context == context", "[context].contains(context)", '{"a": context} has a'])
def test_the_context_as_a_whole_is_every_fact(condition: str) -> None:
    sight = when(f"{condition} && context.trust > 5")
    assert sight.sees_context
    assert sight.side("trust", 6) != sight.side("trust", 7), "then its sides are no help either"


def test_who_is_asked_about_counts_by_whether_he_is_one_of_the_named_or_inside_of_it() -> None:
    sight = when(f'principal in Operator::"{OPERATOR}" && resource in [Resource::"repo:a/**", Scheme::"lock"]')
    assert sight.near == {
        "principal": (("Operator", OPERATOR),),
        "resource": (("Resource", "repo:a/**"), ("Scheme", "lock")),
    }
    assert not sight.is_whole
    near = sight.near["resource"]
    assert place(("Resource", "repo:a/b"), [("Resource", "repo:a/**"), ("Scheme", "repo")], near) == (1, 0)
    assert place(("Resource", "repo:a/**"), [("Scheme", "repo")], near) == (2, 0)
    assert place(("Resource", "lock:x"), [("Scheme", "lock")], near) == (0, 1)


def test_heads_count_as_conditions_do() -> None:
    head = f'principal == Agent::"{AGENT}", action, resource is Resource in Scheme::"lock"'
    assert seen(policy("permit", head=head)).near == {
        "principal": (("Agent", AGENT),),
        "resource": (("Scheme", "lock"),),
    }


@pytest.mark.parametrize(
    "condition",
    [
        "principal == principal",
        f'[principal].contains(Agent::"{AGENT}")',
        f'Agent::"{AGENT}" in principal',
        f'Agent::"{AGENT}" in Operator::"{OPERATOR}"',
        f'Agent::"{AGENT}".name == "worker"',
        f'principal in (if context.cost > 3 then Operator::"{OPERATOR}" else Operator::"x")',
        f'{{"Var": principal}} == {{"Var": Agent::"{AGENT}"}}',
        f'{{"Value": principal}}.Value == Agent::"{AGENT}"',
        f'{{".": principal}}["."] == Agent::"{AGENT}"',
    ],
)
def test_whatever_else_is_done_with_a_party_makes_all_of_it_count(condition: str) -> None:
    assert "principal" in when(condition).is_whole


def test_an_attribute_counts_as_a_fact() -> None:
    sight = when('principal.name == "worker" && resource.path like "*.py" && resource has class')
    assert (sight.words, sight.whole) == ({"principal.name": frozenset({"worker"})}, ("resource.path",))
    assert not sight.is_whole
    assert sight.asked == (("resource", "class"),)


@pytest.mark.parametrize(
    "tree",
    [
        {"principal": {"op": "All"}, "action": {"op": "All"}, "resource": {"op": "new"}},
        {"principal": {"op": "All"}, "action": {"op": "All"}},
        {"principal": {"op": "All"}, "action": {"op": "All"}, "resource": {"op": "All"},
         "conditions": [{"kind": "when", "body": {"new": {"arg": {"Var": "resource"}}}}]},
        {"principal": {"op": "All"}, "action": {"op": "All"}, "resource": {"op": "All"},
         "conditions": [{"kind": "when", "body": {"has": {"left": {"Var": "resource"}, "attr": ["class", "x"]}}}]},
        {"principal": {"op": "All"}, "action": {"op": "All"}, "resource": {"op": "All"},
         "conditions": [{"kind": "when", "body": {"in": {"left": {"Var": "resource"}, "right": {"Var": "context"}}}}]},
    ],
)  # fmt: skip
def test_a_shape_that_is_not_known_is_a_look_at_everything(tree: Any) -> None:
    """A later Cedar may have more; a set that uses it keeps fewer answers, and no wrong one."""
    assert "resource" in sight_of([tree]).is_whole


# -- kept and fresh answers --------------------------------------------------------------------------------------------

NUMBERS = ("trust", "cost", "agentCountMinute", "schemeCountDay", "minuteOfDay", "dayOfWeek", "leaseLeftMs")
TEXTS = (
    ("context.operation", ("edit", "deploy")), ("context.leaseState", ("live", "none")),
    ("resource.path", ("a/b", "c")), ("principal.name", ("worker", "")), ("resource.scheme", ("repo", "lock")),
    ("resource.class", ("exclusive",)),
)  # fmt: skip
VALUES = st.sampled_from((0, 1, 2, 3, 39_999, 40_000, 2**52, 600))
PARTIES = st.sampled_from(
    (
        f'principal == Agent::"{AGENT}"', f'principal in Operator::"{OPERATOR}"', f'principal in Operator::"{AGENT}"',
        'resource in Resource::"repo:a/**"', 'resource == Resource::"repo:a/b"', 'resource in Scheme::"lock"',
        'resource in [Resource::"repo:c", Scheme::"lock"]', 'resource is Resource in Scheme::"repo"',
        f'[principal].contains(Agent::"{AGENT}")', 'action == Action::"write"', 'action in [Action::"read"]',
        f'Agent::"{AGENT}" in principal', "context == context", "context has trust", "principal has name",
    )
)  # fmt: skip


@st.composite
def atoms(draw: st.DrawFn) -> str:
    number, value = draw(st.sampled_from(NUMBERS)), draw(VALUES)
    operator = draw(st.sampled_from(("<", "<=", ">", ">=", "==", "!=")))
    text, words = draw(st.sampled_from(TEXTS))
    word = draw(st.sampled_from(words))
    return draw(
        st.sampled_from(
            (
                f"context.{number} {operator} {value}", f"{value} {operator} context.{number}",
                f'{text} {draw(st.sampled_from(("==", "!=")))} "{word}"', f'{text} like "{word[:1]}*"',
                f"context.{number} + context.cost {operator} {value}",
                f"context.{number} * 9223372036854775807 {operator} {value}",
                f"[1, {value}].contains(context.{number})", draw(PARTIES),
            )
        )
    )  # fmt: skip


CONDITIONS = st.recursive(
    atoms(),
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("(if {} then {} else {})".format, inner, inner, inner),
    ),
    max_leaves=4,
)
HEADS = st.sampled_from(
    (
        "principal, action, resource", 'principal, action == Action::"write", resource',
        f'principal in Operator::"{OPERATOR}", action, resource', 'principal, action, resource in Scheme::"repo"',
        'principal is Agent, action in [Action::"read", Action::"write"], resource == Resource::"repo:c"',
    )
)  # fmt: skip
SETS = st.lists(st.tuples(st.sampled_from(("permit", "forbid")), CONDITIONS, HEADS), min_size=1, max_size=4).map(
    lambda rows: "\n".join(
        policy(effect, when, name=f"p{at}", head=head) for at, (effect, when, head) in enumerate(rows)
    )
)
SAID = st.fixed_dictionaries(
    {},
    optional={
        "trust": VALUES, "cost": VALUES.filter(lambda value: value <= 10**12), "agentCountMinute": VALUES,
        "schemeCountDay": VALUES, "leaseLeftMs": VALUES.filter(lambda value: value < 2**40),
        "operation": st.sampled_from(("edit", "deploy", "x")), "mode": st.sampled_from(("read", "write", "delete")),
        "leaseState": st.sampled_from(("live", "none")), "agentName": st.sampled_from(("worker", "", "w")),
        "agent": st.sampled_from(SHOWN), "operator": st.sampled_from(SHOWN),
        "class": st.sampled_from(("exclusive", "read-safe")), "isFolding": st.booleans(),
        "at": st.sampled_from(("Mon 00:00", "Mon 00:01", "Sun 10:00", "Wed 10:01")),
    },
)  # fmt: skip
NAMES = st.sampled_from(("repo:a/b", "repo:a/c", "repo:c", "repo:a", "repo:A/b", "lock:a/b", "lock:c", "repo:a/**"))
QUESTIONS = st.builds(
    lambda names, said: question(*names, **said), st.lists(NAMES, min_size=1, max_size=3, unique=True), SAID
)


@settings(max_examples=80, deadline=None)
@given(SETS, st.lists(QUESTIONS, min_size=2, max_size=12))
def test_a_kept_answer_is_the_one_that_the_engine_would_give(text: str, asked: list[Question]) -> None:
    """Whatever the set, whatever was asked before, in whatever order."""
    rules, fresh = Rules(text), Rules(text)
    for one in [*asked, *asked[::-1]]:
        kept, new = rules.judge(one), fresh.judge(one, is_kept=False)
        assert kept._replace(faults=()) == new._replace(faults=())
    assert rules.asked_count <= fresh.asked_count


@pytest.mark.parametrize(
    ("condition", "first", "second"),
    [
        (f'[principal].contains(Agent::"{AGENT}") && principal.name == "worker"', {}, {"agentName": "other"}),
        ('[resource].contains(Resource::"repo:a/b") && resource.class == "exclusive"', {}, {"class": "read-safe"}),
        (f'[principal].contains(Agent::"{AGENT}") || principal in Operator::"{AGENT}"', {"agent": OPERATOR},
         {"agent": OPERATOR, "operator": AGENT}),
    ],
)  # fmt: skip
def test_who_is_known_by_all_of_it_is_another_when_anything_of_it_changed(
    condition: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    rules = Rules(policy("permit", condition))
    asked = [question("repo:a/b", **said) for said in (first, second)]
    assert [rules.judge(one).decision for one in asked] == [rules.judge(one, is_kept=False).decision for one in asked]
    assert len({rules.judge(one).decision for one in asked}) == 2


def test_answers_are_kept_so_that_an_ordinary_day_asks_the_engine_a_few_times() -> None:
    """The starter set, ten thousand acts of a day: every minute counted anew, other files, other trust."""
    rules = Rules(starter_rules())
    draw = random.Random(7)
    for number in range(2_000):
        rules.judge(
            question(
                f"repo:app/{draw.randrange(500)}.py", trust=draw.randrange(30_000, 100_000), timeMs=number * 43_200,
                agentCountMinute=number % 40, agentName=f"w{number % 30}", leaseLeftMs=draw.randrange(30_000),
            )
        )  # fmt: skip
    assert rules.asked_count < 40


def test_no_more_answers_are_kept_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.rules.evaluate.ANSWERS_MAX", 3)
    rules = Rules(ALL + policy("forbid", "context.cost + 0 == 7"))
    for cost in range(12):
        assert rules.judge(question(cost=cost)).decision == ("deny" if cost == 7 else "allow")
        assert len(rules._kept) <= 3
