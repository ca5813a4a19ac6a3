"""Puts questions to Cedar: one rule set, parsed once, and what it answered before.

House rules of this file:

* Nothing but a clean Allow is "allow". Whatever the engine complains about, however small, makes an answer "error":
  Cedar leaves out a policy that fails, and what a `forbid` that was left out would have forbidden is allowed then.
* What goes to the engine are values: no name, label or digest is ever part of a text that Cedar reads.
* Every resource is asked about, and the answers are put together only when all are there. So what a ruling says does
  not depend on an order, nor on what was kept.

Source: docs/protocol.md 39.4 to 39.6.
"""

from __future__ import annotations

import json
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, NamedTuple

from gateway.rules.sight import PARTIES, Fact, Key, Sight, Uid, place, sight_of
from gateway.rules.text import misplaced
from verifier.entries import MODES
from verifier.rules import CONTEXT, Evaluation, Question, evaluations
from verifier.wire import JsonObject, JsonValue

if TYPE_CHECKING:
    from cedarpy import PolicySet

PACKAGE = "cedarpy"
INSTALL = "pip install 'tallystick[rules]'"
# Each operator is two levels. The engine stops at what is left of its stack, so somewhere else on another machine; far
# below that, every machine has the same answer.
DEPTH_MAX = 128
DEEP = "a condition has more than some 60 operators inside each other; make two policies of it"
ANSWERS_MAX = 16_384  # kept for one rule set: a few MiB
_NAMES = tuple(name for name, _ in CONTEXT)
_CLASSES = tuple({"Long": int, "String": str}[kind] for _, kind in CONTEXT)

Answer = Literal["allow", "deny", "error"]


class Policy(NamedTuple):
    """One policy of a set: the names that its author gave it, its effect, and itself in Cedar's JSON format."""

    id: str
    obligation: str
    effect: str
    tree: JsonObject


class Verdict(NamedTuple):
    """What a rule set says of a question, as a whole or for one resource; `faults` are the engine's own words."""

    decision: Answer
    matched: tuple[str, ...] = ()
    obligations: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


ERROR = Verdict("error")


def engine_name() -> str | None:
    """Return what would evaluate here, as entries name it; None where there is no engine."""
    try:
        return f"cedar/{version(PACKAGE)}" if find_spec(PACKAGE) else None
    except PackageNotFoundError:
        return None


def read_policies(text: str) -> list[Policy]:
    """Return the policies of a text, in its order. ValueError: Cedar can't read it, or it has templates.

    ImportError: there is no engine.
    """
    import cedarpy

    fault = misplaced(text)
    if fault is not None:
        raise ValueError(f"line {fault.line}: {fault.text}")
    try:
        read = json.loads(cedarpy.policies_to_json_str(text))
    except RecursionError as error:
        raise ValueError(DEEP) from error
    if read["templates"] or read["templateLinks"]:
        raise ValueError("a policy with a slot such as ?principal is no rule by itself")
    trees = read["staticPolicies"]
    if any(_depth(tree) > DEPTH_MAX for tree in trees.values()):
        raise ValueError(DEEP)
    return [_policy(trees[f"policy{at}"]) for at in range(len(trees))]


def _depth(tree: JsonValue) -> int:
    """Return how deep objects and lists lie in each other, without descending by calls."""
    depth, level = 0, [tree]
    while level:
        level = [
            inner
            for node in level
            if isinstance(node, dict | list)
            for inner in (node.values() if isinstance(node, dict) else node)
        ]
        depth += 1
    return depth


def _policy(tree: JsonObject) -> Policy:
    named = tree.get("annotations")
    notes = named if isinstance(named, dict) else {}
    return Policy(str(notes.get("id") or ""), str(notes.get("obligation") or ""), str(tree.get("effect")), tree)


class Rules:
    """A parsed rule set that answers. Two of the same text give the same answers, whatever they were asked before."""

    def __init__(self, text: str) -> None:
        """ValueError: the text is no rule set that Cedar can read. ImportError: there is no engine."""
        from cedarpy import PolicySet

        self.digest = sha256(text.encode()).hexdigest()
        self.policies = read_policies(text)
        self.sight: Sight = sight_of(policy.tree for policy in self.policies)
        self.asked_count = 0
        """How often the engine itself was asked."""
        self._set: PolicySet = PolicySet.from_str(text)
        self._named = {f"policy{at}": policy for at, policy in enumerate(self.policies)}
        self._kept: dict[Key, Verdict] = {}
        seen = self.sight
        self._facts = _NAMES if seen.sees_context else tuple(name for name in seen.facts if "." not in name)
        self._attributes = {party: _attributes(seen, party) for party in PARTIES}
        self._parties = tuple(
            party for party in PARTIES if party in seen.is_whole or seen.near[party] or self._attributes[party]
        )

    def judge(self, question: Question, *, is_kept: bool = True) -> Verdict:
        """Return what the set says of all resources together. `is_kept`: an answer that was given before will do."""
        fronts: dict[int, Key | None] = {}  # of keys, by context: the names of a scheme have one in common
        asked = list(evaluations(question))
        found = [self._kept_answer(one, fronts) if is_kept else self._fresh_answer(one) for one in asked]
        return combined(found) if found else ERROR

    def _fresh_answer(self, one: Evaluation) -> Verdict:
        return self._ask(one) if _is_complete(one) else ERROR

    def _kept_answer(self, one: Evaluation, fronts: dict[int, Key | None]) -> Verdict:
        context = id(one.request["context"])
        if context not in fronts:
            fronts[context] = self._front(one) if _is_complete(one) else None
        front = fronts[context]
        if front is None:
            return ERROR
        key = (*front, *self._back(one))
        known = self._kept.get(key)
        if known is None:
            known = self._ask(one)
            if len(self._kept) >= ANSWERS_MAX:
                self._kept.clear()
            self._kept[key] = known
        return known

    def _ask(self, one: Evaluation) -> Verdict:
        """Ask the engine about one resource: all that there is, for to leave out what it can't see saves little, and
        `has` would see that."""
        from cedarpy import Decision, is_authorized

        self.asked_count += 1
        result = is_authorized(one.request, self._set, one.entities)
        faults = tuple(map(str, result.diagnostics.errors))
        if faults or result.decision not in (Decision.Allow, Decision.Deny):
            return Verdict("error", faults=faults)
        matched = [self._named[reason] for reason in result.diagnostics.reasons]
        return Verdict(
            "allow" if result.decision is Decision.Allow else "deny",
            tuple(sorted({policy.id for policy in matched})),
            tuple(sorted({policy.obligation for policy in matched if policy.obligation})),
        )

    def _front(self, one: Evaluation) -> Key:
        """Return what this set can see of the mode and the facts."""
        context, side = one.request["context"], self.sight.side
        assert isinstance(context, dict), "it is complete"
        return str(_at(one.request["action"], "id")), *(side(name, _fact(context, name)) for name in self._facts)

    def _back(self, one: Evaluation) -> list[object]:
        """Return what this set can see of the parties."""
        parts: list[object] = []
        side = self.sight.side
        for party in self._parties:
            entity = next(entity for entity in one.entities if entity["uid"] == one.request[party])
            uid, parents, attributes = _uid(entity["uid"]), _uids(entity["parents"]), entity["attrs"]
            assert isinstance(attributes, dict), "an entity has attributes"
            if party in self.sight.is_whole:
                parts.append((uid, parents, *sorted(attributes.items())))
            else:
                parts.append(place(uid, parents, self.sight.near[party]))
                parts += [side(f"{party}.{name}", _fact(attributes, name)) for name in self._attributes[party]]
        return parts


def _attributes(seen: Sight, party: str) -> tuple[str, ...]:
    """Return the attributes of a party that count by themselves."""
    return tuple(name.partition(".")[2] for name in seen.facts if name.startswith(f"{party}."))


def combined(found: list[Verdict]) -> Verdict:
    """Return the answer for all resources: an error anywhere is one, then a deny anywhere, with who forbids."""
    decisions = {one.decision for one in found}
    decision: Answer = "error" if "error" in decisions else "deny" if "deny" in decisions else "allow"
    counted = [one for one in found if one.decision == decision]
    return Verdict(
        decision,
        tuple(sorted({name for one in counted for name in one.matched})),
        tuple(sorted({name for one in counted for name in one.obligations})),
        tuple(dict.fromkeys(fault for one in counted for fault in one.faults)),
    )


def _is_complete(one: Evaluation) -> bool:
    """Say whether a question has every fact of the schema, each of its type, and asks for something there is."""
    context = one.request.get("context")
    return (
        isinstance(context, dict)
        and tuple(context) == _NAMES
        and tuple(map(type, context.values())) == _CLASSES
        and _at(one.request.get("action"), "id") in MODES
    )


def _fact(facts: JsonObject, name: str) -> Fact:
    value = facts[name]
    assert isinstance(value, int | str), "facts are numbers and texts"
    return value


def _uids(values: JsonValue) -> tuple[Uid, ...]:
    return tuple(map(_uid, values)) if isinstance(values, list) else ()


def _uid(value: JsonValue) -> Uid:
    return str(_at(value, "type")), str(_at(value, "id"))


def _at(value: JsonValue, name: str) -> JsonValue:
    return value.get(name) if isinstance(value, dict) else None
