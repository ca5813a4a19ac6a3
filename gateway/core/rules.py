"""The rules that operators load: which set is in force, and what it says of one admission.

A set is text in the ledger, so everybody can read by what was decided. The core neither reads it nor knows its
language: what evaluates it is handed in (`Context.rules`). What comes back is believed only as far as it has the form
of an answer: one that is missing, raises or makes no sense denies.

Source: docs/protocol.md 37.7, 39.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from gateway.core import refusal
from gateway.core.authority import is_operator
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lookup import rule_set_at
from gateway.core.outcome import Context, Decision, Ruling, granted, refused
from gateway.core.record_keys import RULES_KEY
from gateway.core.records import RuleSet
from gateway.core.refusal import Refusal
from verifier.entries import ENGINE, OBLIGATIONS, RULE_IDS, RULE_IDS_MAX, ZERO_HASH
from verifier.rules import make_question
from verifier.wire import JsonObject

NO_ENGINE = "none"
FAILED = Ruling("error", (), (), NO_ENGINE)


class Ruled(NamedTuple):
    """What the rules in force said of an admission: the member `rules` of its entry, and the row that denies it, if one
    does. `fault` is the exception behind an error, for the gateway's log alone."""

    members: JsonObject
    why: Refusal | None
    fault: Exception | None = None


def load(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Put a rule set in force from the next entry on. That it is valid was found at the door."""
    said = request.repeat("rulesVersion", "rulesMode")
    if not is_operator(draft, request.actor):
        return refused("rules.refused", refusal.OPERATOR_REQUIRED, said)
    before = rule_set_at(draft)
    if request.number("rulesVersion") != (1 if before is None else before.version + 1):
        return refused("rules.refused", refusal.RULES_OUT_OF_TURN, said)
    assert context.rules is not None, "no rules are loaded where nothing evaluates them"
    text, engine = request.text("rules"), context.rules.name
    count = context.rules.count(text)
    assert ENGINE.check(engine) and 1 <= count <= RULE_IDS_MAX, "the door lets in valid sets alone"
    digest = sha256(text.encode()).hexdigest()
    mode = request.text("rulesMode")
    draft.put(RULES_KEY, RuleSet(request.number("rulesVersion"), digest, text, mode, engine, context.seq))
    return granted("rules.loaded", said | {"digest": digest, "engine": engine, "count": count})


def digest_of(rule_set: RuleSet | None) -> str:
    """Return what approvals and action digests name: the SHA-256 of the rules in force, zeros without any."""
    return ZERO_HASH if rule_set is None else rule_set.digest


def rule(draft: Draft, request: SignedRequest, members: JsonObject, context: Context) -> Ruled | None:
    """Return what the rules in force say of the admission with these members; None before any were loaded.

    Rules in the shadow are asked as well, and deny nothing.
    """
    rule_set = rule_set_at(draft)
    if rule_set is None:
        return None
    ruling, fault = _ruling(rule_set, request, members, context)
    told: JsonObject = {
        "version": rule_set.version,
        "digest": rule_set.digest,
        "mode": rule_set.mode,
        "engine": ruling.engine,
        "decision": ruling.decision,
        "matched": [*ruling.matched],
        "obligations": [*ruling.obligations],
    }
    return Ruled(told, None if rule_set.mode == "shadow" else _denial(ruling), fault)


def _denial(ruling: Ruling) -> Refusal | None:
    """Return the row that a ruling calls for. Nothing but an "allow" allows."""
    if ruling.decision == "allow":
        return None
    if ruling.decision != "deny":
        return refusal.POLICY_ERROR
    return refusal.FORBIDDEN_BY_RULES if ruling.matched else refusal.NOT_PERMITTED


def _ruling(
    rule_set: RuleSet, request: SignedRequest, members: JsonObject, context: Context
) -> tuple[Ruling, Exception | None]:
    """Ask, and return a ruling of a good form whatever happens."""
    if context.rules is None:
        return FAILED, None
    try:
        question = make_question(request.principal, request.on_behalf_of, context.t_ms, members)
        return _sound(context.rules(rule_set, question)), None
    except Exception as error:
        return FAILED, error


def _sound(found: object) -> Ruling:
    """Return a ruling that an entry can tell; an "allow" names what permits. TypeError for anything else."""
    if isinstance(found, Ruling):
        decision, matched, obligations, engine = found
        are_tuples = isinstance(matched, tuple) and isinstance(obligations, tuple)
        is_told = are_tuples and RULE_IDS.check([*matched]) and OBLIGATIONS.check([*obligations])
        if is_told and ENGINE.check(engine) and (decision in ("deny", "error") or (decision == "allow" and matched)):
            return found
    raise TypeError("what evaluates the rules gave no ruling")
