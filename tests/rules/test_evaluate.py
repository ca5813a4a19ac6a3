"""One rule set and one question: what counts as yes, what as no, and what as neither."""

from typing import Any

import cedarpy
import pytest

from gateway.rules.evaluate import ERROR, Rules, Verdict, combined, engine_name, read_policies
from tests.rules.questions import ALL, policy, question

FORBID = policy("forbid", "context.trust < 40000", name="no-trust")
OVERFLOW = policy("forbid", "context.cost * 9223372036854775807 > 0", name="dear")
HOSTILE = [
    'a"b', "a\\", 'x" || true || "', '"); permit(principal, action, resource); //', "a\nb", "a\u2028b", "{}", "${x}",
    "\x00", "é", 'Agent::"x"', '{"__entity": {"type": "Operator", "id": "x"}}', "__extn", "a'b;--", "\\u{0}", "/**",
]  # fmt: skip


def test_nothing_is_allowed_that_no_policy_permits() -> None:
    assert Rules(FORBID).judge(question()) == Verdict("deny")


def test_a_forbid_wins_and_is_named() -> None:
    rules = Rules(f"{ALL}\n{FORBID}")
    assert rules.judge(question()) == Verdict("allow", ("all",))
    assert rules.judge(question(trust=39_999)) == Verdict("deny", ("no-trust",))


def test_the_obligations_are_those_of_the_policies_that_decided() -> None:
    text = (
        '@id("b") @obligation("tell:b") permit(principal, action, resource);'
        '@id("a") @obligation("tell:a") permit(principal, action, resource) when { context.cost > 5 };'
        '@id("c") @obligation("tell:c") forbid(principal, action, resource) when { context.cost > 9 };'
    )
    rules = Rules(text)
    assert rules.judge(question()) == Verdict("allow", ("b",), ("tell:b",))
    assert rules.judge(question(cost=6)) == Verdict("allow", ("a", "b"), ("tell:a", "tell:b"))
    assert rules.judge(question(cost=10)) == Verdict("deny", ("c",), ("tell:c",))


def test_policies_keep_their_names_beyond_the_tenth() -> None:
    """Cedar numbers them itself, and its tenth stands before the second when sorted as text."""
    text = "".join(policy("permit", f"context.cost == {n}", name=f"n{n}") for n in range(64))
    rules = Rules(text)
    assert [rules.judge(question(cost=n)).matched for n in range(64)] == [(f"n{n}",) for n in range(64)]


def test_every_resource_is_asked_about_and_one_denial_is_one_of_all() -> None:
    permit = policy("permit", name="repo", head='principal, action, resource in Scheme::"repo"')
    text = permit + policy("forbid", 'resource.path == "secret"', name="secret")
    rules = Rules(text)
    assert rules.judge(question("repo:a", "repo:b")) == Verdict("allow", ("repo",))
    assert rules.judge(question("repo:a", "repo:secret")) == Verdict("deny", ("secret",))
    assert rules.judge(question("lock:a", "repo:a")) == Verdict("deny"), "nothing permits the lock"
    assert rules.judge(question("lock:secret", "repo:a")) == Verdict("deny", ("secret",))


def test_an_error_about_one_resource_is_one_of_all_even_beside_a_denial() -> None:
    text = ALL + policy("forbid", f'resource.path == "x" && {2**62} * context.cost > 0', name="dear")
    rules = Rules(text + policy("forbid", 'resource.path == "y"', name="y"))
    found = rules.judge(question("repo:a", "repo:x", "repo:y", cost=3))
    assert (found.decision, found.matched, found.obligations) == ("error", (), ())
    assert "overflow" in found.faults[0]


def test_an_overflow_is_an_error_although_cedar_allows() -> None:
    rules = Rules(f"{ALL}\n{OVERFLOW}")
    assert rules.judge(question()) == Verdict("allow", ("all",))
    assert rules.judge(question(cost=1)).decision == "deny"
    found = rules.judge(question(cost=2))
    assert (found.decision, found.matched) == ("error", ())
    assert "integer overflow" in found.faults[0]


def test_a_tree_covers_what_is_below_it_and_its_own_root() -> None:
    rules = Rules(policy("permit", head='principal, action, resource in Resource::"repo:app/**"'))
    found = {name: rules.judge(question(name)).decision for name in
             ("repo:app/a/b", "repo:app", "repo:app/**", "repo:apple", "repo:**", "lock:app/a")}  # fmt: skip
    assert found == {
        "repo:app/a/b": "allow", "repo:app": "allow", "repo:app/**": "allow",
        "repo:apple": "deny", "repo:**": "deny", "lock:app/a": "deny",
    }  # fmt: skip


def test_in_a_scheme_that_folds_a_name_is_met_in_lower_case() -> None:
    rules = Rules(policy("permit", head='principal, action, resource == Resource::"repo:readme"'))
    assert rules.judge(question("repo:README", isFolding=True)).decision == "allow"
    assert rules.judge(question("repo:README")).decision == "deny"


@pytest.mark.parametrize("text", HOSTILE)
def test_what_strangers_write_is_a_value_and_never_cedar(text: str) -> None:
    """As name of the agent, of what is done, of who asks, of the resource: each is compared as it is, and no more."""
    made = question()
    bent = made._replace(
        principal=text,
        on_behalf_of=text,
        operation=text,
        arguments_digest=text,
        facts=tuple((name, text if name == "agentName" else value) for name, value in made.facts),
    )
    forbids = [
        policy("forbid", f'context.operation == "{cedar(text)}"', name="operation"),
        policy("forbid", f'principal.name == "{cedar(text)}"', name="name"),
        policy("forbid", f'principal == Agent::"{cedar(text)}"', name="agent"),
        policy("forbid", f'principal in Operator::"{cedar(text)}"', name="operator"),
    ]
    assert Rules("".join([ALL, *forbids])).judge(bent).matched == ("agent", "name", "operation", "operator")
    assert Rules("".join([ALL, *forbids])).judge(made) == Verdict("allow", ("all",))


@pytest.mark.parametrize("path", ["a'b;--", "a|b&c", "(a)", "{a}", "a,b", "$x", "a%22b", "é", "**"])
def test_a_resource_is_itself_however_it_is_spelled(path: str) -> None:
    forbid = policy("forbid", f'resource == Resource::"repo:{cedar(path)}" && resource.path == "{cedar(path)}"')
    assert Rules(ALL + forbid).judge(question(f"repo:{path}")).matched == ("p",)
    assert Rules(ALL + forbid).judge(question("repo:other")).decision == "allow"


def cedar(text: str) -> str:
    """A text as Cedar spells it in a policy."""
    return "".join(letter if letter.isalnum() and letter.isascii() else f"\\u{{{ord(letter):x}}}" for letter in text)


@pytest.mark.parametrize(
    "said",
    [
        {"decision": "NoDecision", "diagnostics": {"reason": [], "errors": []}},
        {"decision": "NoDecision", "diagnostics": {"reason": ["policy0"], "errors": []}},
        {"decision": "Allow", "diagnostics": {"reason": ["policy0"], "errors": ["anything at all"]}},
        {"decision": "Deny", "diagnostics": {"reason": [], "errors": [""]}},
    ],
)
def test_anything_but_a_clean_answer_is_an_error(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cedarpy, "is_authorized", lambda *_: cedarpy.AuthzResult(said))
    found = Rules(ALL).judge(question())
    assert (found.decision, found.matched, found.obligations) == ("error", (), ())


def test_an_answer_that_names_no_policy_of_the_set_raises() -> None:
    rules = Rules(ALL)
    rules._named = {}
    with pytest.raises(KeyError):
        rules.judge(question())


def test_nothing_at_all_is_an_error() -> None:
    assert Rules(ALL).judge(question()._replace(resources=())) == ERROR


def test_answers_go_together_in_any_order() -> None:
    found = [Verdict("allow", ("a",), ("x",)), Verdict("deny", ("b",), ("y",)), Verdict("deny", ("c",))]
    assert combined(found) == combined(found[::-1]) == Verdict("deny", ("b", "c"), ("y",))
    assert combined(found[:1]) == found[0]
    assert combined([*found, Verdict("error", faults=("f",))]) == Verdict("error", faults=("f",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('@id("a") permit(principal == ?principal, action, resource);', "slot"),
        (policy("permit", "(" * 25 + "true" + ")" * 25), "deep"),
        (policy("permit", " && ".join(["true"] * 70)), "operators"),
        (policy("permit", "1" + " + 1" * 4_000 + " > 0"), "operators"),
        ("permit", "end of input"),
    ],
)
def test_a_text_that_is_no_rule_set_can_not_be_read(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_policies(text)


def test_the_engine_is_named_with_its_version() -> None:
    assert engine_name() == f"cedar/{__import__('importlib.metadata').metadata.version('cedarpy')}"
