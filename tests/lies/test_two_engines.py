"""The gateway's reading of rules and the auditor's share the format of questions, and nothing else: same answers."""

from __future__ import annotations

from hashlib import sha256
from random import Random

import pytest

from gateway.core import records
from gateway.rules.engine import open_engine
from gateway.rules.evaluate import DEPTH_MAX as GATEWAYS_DEPTH_MAX
from gateway.rules.text import misplaced
from tests.core.requests import did_of
from verifier.entries import MODES
from verifier.replay import cedar
from verifier.replay.cedar import Cedar, depth_of, is_shallow
from verifier.replay.ruling import Claim, RuleSet, Ruling
from verifier.rules import CONTEXT, NESTING_MAX, OPERATORS_MAX, Question, SchemeRow

HEADS = (
    "permit(principal, action, resource)",
    'permit(principal, action == Action::"read", resource)',
    'forbid(principal, action in [Action::"write", Action::"delete"], resource)',
    'permit(principal, action, resource in Resource::"repo:app/**")',
    'forbid(principal, action, resource in Scheme::"lock")',
    f'permit(principal in Operator::"{did_of("op")}", action, resource)',
    f'forbid(principal == Agent::"{did_of("B")}", action, resource)',
)
CONDITIONS = (
    "context.trust >= 40000",
    "context.agentCostDay + context.cost > 10",
    "context.cost * 9223372036854775807 > 0",  # overflows from 2 on
    'context.leaseState == "live" && context.leaseLeftMs > 1000',
    'context["tr\\u{75}st"] > 50000',
    'principal.name like "bot*"',
    'resource.path like "app/*" || resource.class == "irreversible"',
    "context.minuteOfDay < 720",
    "context.schemeCountDay < 3",
    "context has trust && context.approvals > 0",
    "if context.dayOfWeek > 5 then context.cost == 0 else true",
    "true",
)


def rule_set(text: str, count: int = 1) -> RuleSet:
    return RuleSet(1, sha256(text.encode()).hexdigest(), text, "enforce", 7, count)


def gateways(one: RuleSet) -> records.RuleSet:
    return records.RuleSet(one.version, one.digest, one.text, one.mode, "cedar/0", one.seq)


def random_text(dice: Random) -> str:
    policies = []
    for number in range(dice.randint(1, 5)):
        note = f'@obligation("o{dice.randint(0, 2)}") ' if dice.random() < 0.4 else ""
        body = " ".join(
            f"{dice.choice(('when', 'when', 'unless'))} {{ {dice.choice(CONDITIONS)} }}"
            for _ in range(dice.randint(0, 2))
        )
        policies.append(f'@id("p{number}") {note}{dice.choice(HEADS)} {body};')
    return "\n".join(policies)


def question(dice: Random) -> Question:
    names = sorted(dice.sample(("repo:app/a", "repo:b", "lock:x", "repo:app/**"), dice.choice((1, 1, 2))))
    texts = {"leaseState": ("live", "none"), "leaseMode": (*MODES, "none"), "agentName": ("", "bot-1", "worker"),
             "actorKind": ("agent", "session"), "custody": ("agent", "gateway")}  # fmt: skip
    own = [(name, kind) for name, kind in CONTEXT if not name.startswith("scheme") and name not in (
        "operation", "argumentsDigest", "cost", "timeMs", "minuteOfDay", "dayOfWeek")]  # fmt: skip
    return Question(
        principal=did_of(dice.choice("AB")),
        on_behalf_of=did_of(dice.choice(("op", "op2"))),
        operation=dice.choice(("file.write", "deploy")),
        resources=tuple(names),
        mode=dice.choice(MODES),
        arguments_digest="0" * 64,
        cost=dice.choice((0, 1, 2, 9)),
        time_ms=1_780_000_000_000 + dice.randrange(7 * 86_400_000),
        facts=tuple(
            (name, dice.choice(texts[name]) if kind == "String" else dice.choice((0, 1, 5, 45_000, 60_000)))
            for name, kind in own
        ),
        schemes=tuple(
            SchemeRow(scheme, dice.choice(("exclusive", "irreversible")), False, 0, dice.choice((0, 5)), 0)
            for scheme in sorted({name.partition(":")[0] for name in names})
        ),
    )


@pytest.mark.parametrize("seed", range(8))
def test_both_give_the_same_answers(seed: int) -> None:
    """Each with what it kept of the answers before; errors, denials and permits alike."""
    dice, auditor, gateway = Random(seed), Cedar(), open_engine()
    assert gateway is not None and gateway.name == auditor.name
    decisions = set()
    for _ in range(12):
        one = rule_set(random_text(dice))
        for _ in range(25):
            asked = question(dice)
            decision, matched, obligations, _ = gateway(gateways(one), asked)
            assert auditor.ruling(one, asked) == Ruling(decision, matched, obligations), one.text
            decisions.add(decision)
    assert decisions == {"allow", "deny", "error"}


def test_an_answer_is_kept_for_what_a_set_cannot_see_alone() -> None:
    """A name may be written by the numbers of its letters; then everything counts."""
    dice = Random(1)
    asked = question(dice)._replace(resources=("repo:b",), schemes=(SchemeRow("repo", "exclusive", False, 0, 0, 0),))

    def with_trust(trust: int) -> Question:
        return asked._replace(facts=tuple((name, trust if name == "trust" else it) for name, it in asked.facts))

    for condition in ("context.trust > 50000", 'context["tr\\u{75}st"] > 50000', 'context["\\x74rust"] > 50000'):
        one, engine = rule_set(f'@id("a") permit(principal, action, resource) when {{ {condition} }};'), Cedar()
        assert [engine.ruling(one, with_trust(it)).decision for it in (1, 60_000, 1)] == ["deny", "allow", "deny"]


def test_an_answer_that_was_given_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, dice = Cedar(), Random(2)
    one, asked = (
        rule_set('@id("a") permit(principal, action, resource) when { context.trust > 50000 };'),
        question(dice),
    )
    engine.ruling(one, asked)
    monkeypatch.setattr(engine, "_asked", None)
    engine.ruling(one, asked._replace(time_ms=asked.time_ms + 1, cost=asked.cost + 1))


def test_what_the_gateway_can_not_read_is_an_error_here_too() -> None:
    engine, gateway, asked = Cedar(), open_engine(), question(Random(3))
    assert gateway is not None
    for text in ("permit(", "permit(principal == ?principal, action, resource);", "(" * 3_000, '"', "1+" * 3_000):
        assert engine.ruling(rule_set(text), asked) == Ruling("error", (), ())
        assert gateway(gateways(rule_set(text)), asked).decision == "error"


def test_bounds_are_the_same_on_both_sides() -> None:
    assert cedar.DEPTH_MAX == GATEWAYS_DEPTH_MAX
    for depth, is_good in ((NESTING_MAX, True), (NESTING_MAX + 1, False)):
        assert is_shallow("(" * depth + ")" * depth) is is_good
    for chain, most in (("1+", OPERATORS_MAX), ("a&&", OPERATORS_MAX), ("a.", OPERATORS_MAX), ("when if ", 30)):
        for count in (most, most + 1):
            assert is_shallow(chain * count) is (misplaced(chain * count) is None) is (count == most)
    assert is_shallow(("1+" * OPERATORS_MAX + ";") * 2) and not is_shallow(("(" + "1+" * OPERATORS_MAX + ";") * 2)
    assert is_shallow('// ((((\n"((("') and not is_shallow("(") and not is_shallow(")(")
    assert (depth_of(1), depth_of([[{}]]), depth_of({"a": [1]})) == (1, 3, 3)


@pytest.mark.parametrize(
    ("text", "count", "said"),
    [
        ('@id("a") permit(principal, action, resource);', 1, None),
        ('@id("a") permit(principal, action, resource);', 2, "count is not 1"),
        ("permit(principal, action, resource);", 1, "a policy without a well-formed id"),
        ('@id("A") permit(principal, action, resource);', 1, "a policy without a well-formed id"),
        ('@id("a") permit(principal,action,resource);' * 2, 2, "an id twice"),
        ('@id("a") @obligation("N O") permit(principal, action, resource);', 1, "an obligation"),
        ('@id("a") permit(principal, action, resource) when { context.trvst > 1 };', 1, "not valid by the schema"),
        ('@id("a") permit(principal == ?principal, action, resource);', 1, "slot"),
        ("permit(", 1, "can't be read"),
        ("// nothing", 1, "not 1 to 64 policies"),
        ("".join(f'@id("p{n}") permit(principal,action,resource);' for n in range(65)), 65, "not 1 to 64 policies"),
    ],
)
def test_a_set_that_was_loaded_is_one_that_may_be(text: str, count: int, said: str | None) -> None:
    found = [told for _, told in Cedar().faults(Claim(rule_set(text, count), "cedar/0"))]
    assert (found == []) if said is None else any(said in told for told in found), found
