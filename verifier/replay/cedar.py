"""The engine of rules, asked again: the one file that knows of it, and only when the reader has it and wants it.

Rule sets are read as the operator signed them and evaluated against the schema, one resource after the other. What an
entry says counts as right when this very version of the engine says the same. No text of a set raises.
Source: docs/protocol.md 39, 40.5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from verifier.entries import OBLIGATION, RULE_ID, RULE_IDS_MAX
from verifier.replay.ruling import Claim, Engine, RuleSet, Ruling, error_of
from verifier.replay.things import Faults
from verifier.rules import CONTEXT, NESTING_MAX, OPERATORS_MAX, SCHEMA, Evaluation, Question, evaluations, operators_in
from verifier.wire import JsonObject, JsonValue

if TYPE_CHECKING:
    from cedarpy import PolicySet

DEPTH_MAX = 128  # of a policy's tree: the engine stops at what is left of a stack, on each machine somewhere else
SETS_MAX, ANSWERS_MAX = 64, 16_384  # kept; an honest ledger has one set at a time
_ERROR = Ruling("error", (), ())
# Texts and comments count as one token, so that no bracket in them does.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|//[^\n]*|\w+|&&|\|\||[()\[\]{};.+*-]', re.DOTALL)


class Policy(NamedTuple):
    """What the author of a policy calls it, and what it obliges to; empty where that is not said."""

    id: str
    obligation: str


class Parsed(NamedTuple):
    """A rule set that the engine could read. `named` is by the engine's own names, `seen` the facts that it can see."""

    policies: PolicySet
    named: dict[str, Policy]
    seen: tuple[str, ...]


def open_engine() -> Engine | None:
    """Return the engine that is installed here, None where there is none, or one that can't be used."""
    try:
        return Cedar()
    except Exception:  # whatever its import or our schema made it say
        return None


class Cedar:
    """cedarpy, with what it parsed and answered so far."""

    def __init__(self) -> None:
        """ImportError when it is not installed."""
        from importlib.metadata import version

        import cedarpy

        self.name = f"cedar/{version('cedarpy')}"
        self._cedar = cedarpy
        self._schema = cedarpy.Schema.from_str(SCHEMA)
        self._sets: dict[str, Parsed | str] = {}
        self._answers: dict[tuple[object, ...], Ruling] = {}

    def faults(self, claim: Claim) -> Faults:
        """Yield what a claim says otherwise than this engine."""
        if claim.question is None:
            yield from self._loading_faults(claim.rule_set)
            return
        found = self.ruling(claim.rule_set, claim.question)
        if claim.ruling is None:
            if error_of(found) != claim.error:
                yield "ruling_wrong", f"the rules say {_said(found)}, which calls for {error_of(found) or 'no denial'}"
        elif found != claim.ruling:
            yield "ruling_wrong", f"the rules say {_said(found)}, not {_said(claim.ruling)} (40.3)"

    def ruling(self, rule_set: RuleSet, question: Question) -> Ruling:
        """Return what a set says of all resources: an error of one is one, then a denial of one, then it is allowed."""
        parsed = self._parsed(rule_set)
        if isinstance(parsed, str):
            return _ERROR
        found = [self._answer(rule_set.digest, parsed, question, one) for one in evaluations(question)]
        decisions = {one.decision for one in found}
        decision = next(one for one in ("error", "deny", "allow") if one in decisions)
        counted = [one for one in found if one.decision == decision]
        matched = sorted({name for one in counted for name in one.matched})
        return Ruling(decision, tuple(matched), tuple(sorted({name for one in counted for name in one.obligations})))

    def _answer(self, digest: str, parsed: Parsed, question: Question, one: Evaluation) -> Ruling:
        """Ask about one resource, or remember: what a set cannot see changes no answer."""
        context = one.request["context"]
        assert isinstance(context, dict), "an object"
        entities = json.dumps(one.entities)
        key = (digest, question.mode, entities, *(context[name] for name in parsed.seen))
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            answer = self._answers[key] = self._asked(parsed, one.request, entities)
        return answer

    def _asked(self, parsed: Parsed, request: JsonObject, entities: str) -> Ruling:
        """Anything that the engine complains of is an error: it leaves out a policy that fails, and goes on."""
        try:
            result = self._cedar.is_authorized(request, parsed.policies, entities, self._schema)
        except BaseException as error:
            _let_go(error)
            return _ERROR
        decision = result.decision.value.lower()
        if result.diagnostics.errors or decision not in ("allow", "deny"):
            return _ERROR
        matched = [parsed.named[name] for name in result.diagnostics.reasons]
        obligations = {policy.obligation for policy in matched if policy.obligation}
        return Ruling(decision, tuple(sorted({policy.id for policy in matched})), tuple(sorted(obligations)))

    def _parsed(self, rule_set: RuleSet) -> Parsed | str:
        """Return a set as the engine reads it, or why it can't."""
        if rule_set.digest not in self._sets:
            if len(self._sets) >= SETS_MAX:
                self._sets.clear()
            try:
                self._sets[rule_set.digest] = self._parse(rule_set.text)
            except BaseException as error:
                _let_go(error)
                self._sets[rule_set.digest] = f"{type(error).__name__}: {error}"
        return self._sets[rule_set.digest]

    def _parse(self, text: str) -> Parsed:
        if not is_shallow(text):
            raise ValueError(
                f"brackets over {NESTING_MAX} deep or not closed, or a policy of over {OPERATORS_MAX} operators"
            )
        read = json.loads(self._cedar.policies_to_json_str(text))
        if read["templates"] or read["templateLinks"]:
            raise ValueError("a policy has a slot")
        if depth_of(read["staticPolicies"]) > DEPTH_MAX + 1:
            raise ValueError("a condition has too many operators inside each other")
        notes = {name: policy.get("annotations", {}) for name, policy in read["staticPolicies"].items()}
        named = {name: Policy(str(it.get("id") or ""), str(it.get("obligation") or "")) for name, it in notes.items()}
        is_plain = "\\" not in text  # else a name may be written by the numbers of its letters
        seen = tuple(name for name, _ in CONTEXT if name in text or not is_plain)
        return Parsed(self._cedar.PolicySet.from_str(text), named, seen)

    def _loading_faults(self, rule_set: RuleSet) -> Faults:
        """A set that is loaded is one that may be."""
        parsed = self._parsed(rule_set)
        if isinstance(parsed, str):
            yield "rules_invalid", f"the rule set that was loaded can't be read: {parsed} (37.10)"
            return
        for text in self._breaches(rule_set, parsed):
            yield "rules_invalid", f"the rule set that was loaded breaks a bound: {text} (37.10)"
        if rule_set.size != len(parsed.named):
            yield "rules_wrong", f"count is not {len(parsed.named)} (37.10)"

    def _breaches(self, rule_set: RuleSet, parsed: Parsed) -> Iterator[str]:
        policies = parsed.named.values()
        if not 1 <= len(policies) <= RULE_IDS_MAX:
            yield f"not 1 to {RULE_IDS_MAX} policies"
        if not all(RULE_ID.check(policy.id) for policy in policies):
            yield "a policy without a well-formed id"
        if len({policy.id for policy in policies}) < len(policies):
            yield "an id twice"
        if not all(OBLIGATION.check(policy.obligation) for policy in policies if policy.obligation):
            yield "an obligation that is not well-formed"
        try:
            result = self._cedar.validate_policies(rule_set.text, self._schema)
        except BaseException as error:
            _let_go(error)
            yield f"not valid by the schema: {error}"
            return
        if not result.validation_passed:
            yield f"not valid by the schema: {next(iter(result.errors), '')}"


def _let_go(error: BaseException) -> None:
    """A panic of the engine is none of Exception. What is not about the text goes on."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
        raise error


def is_shallow(text: str) -> bool:
    """Say whether the brackets of a text are few in one another and close, and the operators of each policy are few."""
    depth = operators = 0
    for token in _TOKEN.findall(text):
        depth += (token in "([{") - (token in ")]}")
        operators = 0 if token == ";" and depth == 0 else operators + operators_in(token)
        if not 0 <= depth <= NESTING_MAX or operators > OPERATORS_MAX:
            return False
    return depth == 0


def depth_of(tree: JsonValue) -> int:
    """Return how deep objects and lists lie in one another; no call goes down with them."""
    depth, level = 0, [tree]
    while level:
        depth += 1
        holders = [node for node in level if isinstance(node, dict | list)]
        level = [inner for node in holders for inner in (node.values() if isinstance(node, dict) else node)]
    return depth


def _said(ruling: Ruling) -> str:
    matched, obligations = ", ".join(ruling.matched) or "nothing", ", ".join(ruling.obligations) or "nothing"
    return f"{ruling.decision}, matching {matched}, obliging to {obligations}"
