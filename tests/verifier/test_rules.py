"""What a rule may see: made from one entry alone, as values, the same for whoever asks."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifier import admissions, maker
from tests.verifier.maker import ALICE, OPERATOR, Json
from verifier.entries import FACTS, covers, parse_leaf, resource_hint
from verifier.rules import CONTEXT, SCHEMA, evaluations, make_question, trees_around

FORBIDDEN = 15  # the denial of the day by a rule
day = cache(admissions.day)


def ask(*resources: str, time_ms: int = maker.T0, is_folding: bool = False, **facts: Any) -> Json:
    """What is asked of an engine about the first of these resources."""
    desk = admissions.opened()
    names = sorted({name.split(":")[0] for name in resources})
    desk.classes.update(dict.fromkeys(names, ("irreversible", is_folding)))
    asked = desk.asked("file.write", *resources, cost=7)
    members = {**asked, "facts": {**desk.facts(ALICE, None), **facts}, "schemes": desk.scheme_rows(asked)}
    question = make_question(ALICE.did, OPERATOR.did, time_ms, members)
    assert hash(question) == hash(make_question(ALICE.did, OPERATOR.did, time_ms, members))
    first = next(evaluations(question))
    return {"resource": first.resource, **first.request, "entities": first.entities}


def entity(kind: str, name: str) -> Json:
    return {"type": kind, "id": name}


def test_the_schema_is_the_table_of_facts_and_what_stands_beside_it() -> None:
    """A change of any of it is a change of what rules mean: it needs another version of the rules."""
    names = [name for name, _ in CONTEXT]
    assert len(names) == len(set(names)) == len(FACTS) + 9
    assert "  trust: Long,\n" in SCHEMA and "  leaseState: String,\n" in SCHEMA and "  dayOfWeek: Long,\n" in SCHEMA
    assert "entity Resource in [Resource, Scheme] { scheme: String, class: String, path: String };\n" in SCHEMA
    assert 'action "read", "append", "write", "delete" appliesTo {\n' in SCHEMA


def test_a_question_names_who_does_what_to_which_resource() -> None:
    asked = ask("repo:app/a.py", agentName="bob")
    assert asked["principal"] == entity("Agent", ALICE.did)
    assert asked["action"] == entity("Action", "write")
    assert asked["resource"] == entity("Resource", "repo:app/a.py")
    assert list(asked["context"]) == [name for name, _ in CONTEXT]
    operator, agent, scheme, resource = asked["entities"]
    assert (operator["uid"], operator["parents"]) == (entity("Operator", OPERATOR.did), [])
    assert (agent["attrs"], agent["parents"]) == ({"name": "bob"}, [operator["uid"]])
    assert scheme["uid"] == entity("Scheme", "repo")
    assert resource["attrs"] == {"scheme": "repo", "class": "irreversible", "path": "app/a.py"}
    trees = [entity("Resource", name) for name in ("repo:**", "repo:app/**", "repo:app/a.py/**")]
    assert resource["parents"] == [*trees, scheme["uid"]]


def test_a_denial_asks_anew_from_its_own_leaf() -> None:
    leaf = parse_leaf(day().leaves[FORBIDDEN])
    (one,) = evaluations(make_question(leaf.principal, leaf.on_behalf_of, leaf.time_ms, leaf.value))
    context = one.request["context"]
    assert isinstance(context, dict)
    facts = day().value(FORBIDDEN)["facts"]
    assert {name: context[name] for name in facts} == facts
    row = day().value(FORBIDDEN)["schemes"][0]
    counts = (context["schemeCountMinute"], context["schemeCountDay"], context["schemeCostDay"])
    assert counts == (row["countMinute"], row["countDay"], row["costDay"])
    assert context["timeMs"] == day().value(FORBIDDEN)["timeMs"]


def test_every_resource_is_asked_about_with_the_counts_of_its_scheme() -> None:
    desk = admissions.opened()
    asked = desk.asked("file.write", "repo:a", "repo:b", "web:page")
    rows = desk.scheme_rows(asked)
    rows[1]["countDay"] = 9
    members = {**asked, "facts": desk.facts(ALICE, None), "schemes": rows}
    found: list[Any] = [*evaluations(make_question(ALICE.did, OPERATOR.did, 0, members))]
    assert [(one.resource, one.request["context"]["schemeCountDay"]) for one in found] == [
        ("repo:a", 0), ("repo:b", 0), ("web:page", 9),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("time_ms", "minute", "weekday"),
    [
        (0, 0, 4),  # Thursday
        (59_999, 0, 4),
        (86_399_999, 1_439, 4),
        (86_400_000, 0, 5),
        (1_700_000_000_000, 22 * 60 + 13, 2),  # Tuesday 2023-11-14 22:13:20
        (1_700_352_000_000, 0, 7),  # Sunday 2023-11-19
        (1_700_438_400_000, 0, 1),
    ],
)
def test_time_is_log_time_in_utc(time_ms: int, minute: int, weekday: int) -> None:
    context = ask("repo:a", time_ms=time_ms)["context"]
    assert (context["minuteOfDay"], context["dayOfWeek"]) == (minute, weekday)


def test_a_name_is_compared_as_its_scheme_compares_it() -> None:
    """Else a rule about doc:secret would be walked past by writing doc:Secret."""
    folded, plain = ask("doc:Secret/A", is_folding=True), ask("doc:Secret/A")
    assert folded["resource"] == entity("Resource", "doc:secret/a")
    assert entity("Resource", "doc:secret/**") in folded["entities"][3]["parents"]
    assert folded["entities"][3]["attrs"]["path"] == "secret/a"
    assert plain["resource"] == entity("Resource", "doc:Secret/A")


@pytest.mark.parametrize(
    ("name", "trees"),
    [
        ("repo:a", ["repo:**", "repo:a/**"]),
        ("repo:a/b", ["repo:**", "repo:a/**", "repo:a/b/**"]),
        ("repo:a/b/**", ["repo:**", "repo:a/**"]),
        ("repo:**", []),
        ("repo:a:b/c", ["repo:**", "repo:a:b/**", "repo:a:b/c/**"]),
    ],
)
def test_a_name_lies_in_every_tree_around_it(name: str, trees: list[str]) -> None:
    assert trees_around(name) == trees


SEGMENTS = st.lists(st.sampled_from(["a", "b", "ab", "c.d", "é"]), min_size=1, max_size=5).map("/".join)
NAMES = st.builds(lambda path, end: f"repo:{path}{end}", SEGMENTS, st.sampled_from(["", "/**"])) | st.just("repo:**")


@given(NAMES, NAMES)
def test_the_trees_are_exactly_those_that_cover_the_name(name: str, other: str) -> None:
    assert all(covers(tree, name) and resource_hint(tree) is None for tree in trees_around(name))
    if other.endswith("**") and other != name:
        assert (other in trees_around(name)) == covers(other, name)


@pytest.mark.parametrize("fact", [fact.name for fact in FACTS])
@pytest.mark.parametrize("value", [..., None, True, 0.5, [], {}])
def test_a_missing_fact_is_an_error_and_never_a_default(fact: str, value: Any) -> None:
    leaf = day().value(FORBIDDEN)
    facts = {name: one for name, one in {**leaf["facts"], fact: value}.items() if one is not ...}
    with pytest.raises(ValueError, match=fact):
        make_question(ALICE.did, OPERATOR.did, 0, {**leaf, "facts": facts})


def test_a_resource_without_its_scheme_is_an_error() -> None:
    leaf = day().value(FORBIDDEN)
    question = make_question(ALICE.did, OPERATOR.did, 0, {**leaf, "resources": ["lock:a"]})
    with pytest.raises(ValueError, match="schemes"):
        list(evaluations(question))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=9), inside, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["operation", "resources", "mode", "argumentsDigest", "cost", "facts", "schemes"]), ANY_JSON)
def test_any_members_make_a_question_or_a_value_error(name: str, value: Any) -> None:
    try:
        list(evaluations(make_question(ALICE.did, OPERATOR.did, 0, {**day().value(FORBIDDEN), name: value})))
    except ValueError:
        pass
