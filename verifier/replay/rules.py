"""The rules in force: which set an operator loaded, and whether a ruling is by that set and fits what was decided.

What the set itself says of a question is for its engine (cedar.py), where the reader wants that and has it.
Source: docs/protocol.md 39, 40.
"""

from __future__ import annotations

from typing import NamedTuple

from verifier.entries import ZERO_HASH, Leaf
from verifier.replay.ruling import Claim, RuleSet, Ruling, error_of
from verifier.replay.state import State
from verifier.replay.things import Faults
from verifier.rules import Question
from verifier.wire import JsonObject, JsonValue

NO_ENGINE = "none"
_OUT_OF_TURN = "rule sets are numbered without a gap, from 1 (37.10)"


class InForce(NamedTuple):
    """What entries say of the rules in force."""

    version: int
    digest: str
    mode: str


def loaded_faults(state: State, leaf: Leaf, asked: JsonObject | None) -> Faults:
    """`rules.loaded`: the next version; then the text that was signed is in force. Its digest is the leaf's to show."""
    if leaf.number("rulesVersion") != next_version(state):
        yield "rules_out_of_turn", _OUT_OF_TURN
    text = "" if asked is None else str(asked["rules"])
    state.rule_set = RuleSet(
        leaf.number("rulesVersion"), leaf.text("digest"), text, leaf.text("rulesMode"), leaf.seq, leaf.number("count")
    )
    yield from _engine_faults(state, leaf.text("engine"))
    state.claims.append(Claim(state.rule_set, leaf.text("engine")))


def loading_error(state: State, leaf: Leaf) -> str | None:
    """Return the refusal that `rules.load` calls for."""
    if leaf.actor not in state.people.operators:
        return "operator_required"
    return None if leaf.number("rulesVersion") == next_version(state) else "rules_out_of_turn"


def next_version(state: State) -> int:
    return 1 if state.rule_set is None else state.rule_set.version + 1


def digest_in_force(state: State) -> str:
    """Return the digest that approvals have to name: zeros while there are no rules."""
    return ZERO_HASH if state.rule_set is None else state.rule_set.digest


def ruling_faults(state: State, stated: JsonValue, question: Question | None) -> Faults:
    """Is the member `rules` of an admission by the set in force? Then its engine may be asked whether it is right."""
    rule_set = state.rule_set
    if rule_set is None or question is None or not isinstance(stated, dict):
        if rule_set is not None or stated is not None:
            yield "rules_wrong", "rules are there exactly when a set was loaded before (37.6)"
        return
    wanted = InForce(rule_set.version, rule_set.digest, rule_set.mode)
    if tuple(stated.get(name) for name in InForce._fields) != wanted:
        yield "rules_wrong", f"rules are not version {wanted.version} in mode {wanted.mode}, the set in force (37.6)"
        return
    engine, ruling = str(stated.get("engine")), _ruling(stated)
    if engine != NO_ENGINE:
        yield from _engine_faults(state, engine)
    elif ruling != Ruling("error", (), ()):
        yield "rules_wrong", "without an engine a ruling is an error, and nothing matches (37.6)"
    state.claims.append(Claim(rule_set, engine, question, ruling))


def batch_claims(state: State, asked: Question, error: str) -> None:
    """An entry that tells of no ruling says by its error alone what the rules in force said.

    Of a policy_error it does not say whether the engine said so or failed, and nobody can ask again why it did.
    """
    engine = NO_ENGINE if error == "policy_error" else state.engine or NO_ENGINE
    if state.rule_set is not None and state.rule_set.mode == "enforce":
        state.claims.append(Claim(state.rule_set, engine, asked, None, error))


def _engine_faults(state: State, engine: str) -> Faults:
    """One process has one engine; `service.started` begins another."""
    if state.engine not in ("", engine):
        yield "rules_wrong", f"engine is not {state.engine}, which the service has had since its start (37.6)"
    state.engine = engine


def denial_by(state: State, stated: JsonValue) -> str:
    """Return the denial that the member `rules` calls for, "" for none. A set that only looks on denies nothing."""
    if state.rule_set is None or state.rule_set.mode != "enforce" or not isinstance(stated, dict):
        return ""
    return error_of(_ruling(stated))


def _ruling(stated: JsonObject) -> Ruling:
    return Ruling(str(stated.get("decision")), _texts(stated.get("matched")), _texts(stated.get("obligations")))


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
