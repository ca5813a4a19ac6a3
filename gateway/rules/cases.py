"""Cases: what a rule set should say, one JSON object a line, and what it says.

A case tells what it wants to be different from an ordinary write under a lease, and what it expects. So a case reads
like a sentence, and a set can be tried without a gateway.
Source: docs/protocol.md 39.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gateway.rules.evaluate import Rules, Verdict
from gateway.rules.words import nearest
from verifier.did import encode_did
from verifier.entries import (
    CLASS,
    COST,
    COUNT,
    DID,
    FACTS,
    HASH,
    MODES,
    OBJECT,
    OPERATION,
    TIME_MS,
    Kind,
    scheme_of,
)
from verifier.rules import Question, make_question
from verifier.wire import JsonObject, JsonValue, Malformed, parse_json

CASE_BYTES_MAX, CASES_MAX = 16_384, 4_096
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# Nobody's: keys of the first two test vectors of RFC 8032.
AGENT = encode_did(bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"))
OPERATOR = encode_did(bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"))
DAY_MS, MINUTE_MS = 86_400_000, 60_000
MONDAY_MS = 1_767_571_200_000  # 5 January 2026
_USUAL: Mapping[str, JsonValue] = {
    "operation": "edit", "resource": "repo:app/main.py", "mode": "write", "argumentsDigest": "0" * 64, "cost": 0,
    "agent": AGENT, "operator": OPERATOR, "class": "exclusive", "isFolding": False,
    "schemeCountMinute": 0, "schemeCountDay": 0, "schemeCostDay": 0,
}  # fmt: skip
_USUAL_FACTS: Mapping[str, JsonValue] = {
    "trust": 50_000, "approvals": 0, "leaseState": "live", "leaseAgeMs": 1_000, "leaseLeftMs": 29_000,
    "agentName": "worker", "actorKind": "agent", "custody": "agent", "agentCountMinute": 0, "agentCountDay": 0,
    "agentCostDay": 0, "operatorCountMinute": 0, "operatorCountDay": 0, "operatorCostDay": 0,
}  # fmt: skip
_KINDS: Mapping[str, Kind] = {
    **{fact.name: fact.kind for fact in FACTS},
    **dict.fromkeys(("schemeCountMinute", "schemeCountDay", "schemeCostDay"), COUNT),
    "operation": OPERATION, "resource": OBJECT, "argumentsDigest": HASH, "cost": COST, "agent": DID, "operator": DID,
    "class": CLASS, "timeMs": TIME_MS,
}  # fmt: skip
_EXPECTED = ("case", "expect", "matched", "obligations")
_KNOWN = (*_KINDS, "mode", "at", "isFolding", *_EXPECTED)
_AT = re.compile(r"(\w{3}) ([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)


class Case(NamedTuple):
    """One case: where it stands, its name, the question, and what is expected; None: that does not matter."""

    line: int
    name: str
    question: Question
    expect: str
    matched: tuple[str, ...] | None
    obligations: tuple[str, ...] | None

    def is_met(self, verdict: Verdict) -> bool:
        """Say whether a set's answer is the one expected."""
        return (
            verdict.decision == self.expect
            and self.matched in (None, verdict.matched)
            and self.obligations in (None, verdict.obligations)
        )


class Tried(NamedTuple):
    """A case and what the set says of it."""

    case: Case
    verdict: Verdict

    @property
    def is_met(self) -> bool:
        return self.case.is_met(self.verdict)


def read_cases(text: str) -> list[Case]:
    """Return the cases of a text; lines without anything, and those that begin with //, are left out. Malformed."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    cases = [_case(number, line) for number, line in lines if not line.lstrip().startswith("//")]
    if not 1 <= len(cases) <= CASES_MAX:
        raise Malformed(f"there are {len(cases)} cases; 1 to {CASES_MAX:,} are tried")
    return cases


def tried(rules: Rules, cases: list[Case]) -> Iterator[Tried]:
    """Yield each case with what the set says of it."""
    for case in cases:
        yield Tried(case, rules.judge(case.question, is_kept=False))


def _case(number: int, line: str) -> Case:
    try:
        said = parse_json(line.encode(), bytes_max=CASE_BYTES_MAX)
        _check(said)
        expect = said.get("expect")
        if expect not in ("allow", "deny", "error"):
            raise Malformed('"expect" is "allow", "deny" or "error"')
        return Case(
            number, str(said.get("case") or f"line {number}"), _question(said), str(expect),
            _texts(said, "matched"), _texts(said, "obligations"),
        )  # fmt: skip
    except Malformed as error:
        raise Malformed(f"line {number}: {error}") from error


def _check(said: JsonObject) -> None:
    for name, value in said.items():
        if name not in _KNOWN:
            raise Malformed(f"a case has no `{name}`{nearest(name, _KNOWN)}")
        if name == "mode" and value not in MODES:
            raise Malformed(f"mode is one of {', '.join(MODES)}")
        if name == "isFolding" and not isinstance(value, bool):
            raise Malformed("isFolding is true or false")
        if name in _KINDS and not _KINDS[name].check(value):
            raise Malformed(f"{name} is {_KINDS[name].bound}")


def _question(said: JsonObject) -> Question:
    """Return the question of a case: what it says, and for the rest an ordinary write under a lease."""
    given: JsonObject = {**_USUAL, **_USUAL_FACTS, **said}
    is_live = given["leaseState"] == "live"
    lease: JsonObject = (
        {"leaseMode": given["mode"]} if is_live else {"leaseMode": "none", "leaseAgeMs": 0, "leaseLeftMs": 0}
    )
    facts = {**given, **lease, **{name: said[name] for name in lease if name in said}}
    scheme: JsonObject = {
        "name": scheme_of(str(given["resource"])), "class": given["class"], "isFolding": given["isFolding"],
        "countMinute": given["schemeCountMinute"], "countDay": given["schemeCountDay"],
        "costDay": given["schemeCostDay"],
    }  # fmt: skip
    members: JsonObject = {
        **{name: given[name] for name in ("operation", "mode", "argumentsDigest", "cost")},
        "resources": [given["resource"]],
        "facts": {fact.name: facts[fact.name] for fact in FACTS},
        "schemes": [scheme],
    }
    return make_question(str(given["agent"]), str(given["operator"]), _time_ms(said), members)


def _time_ms(said: JsonObject) -> int:
    """Return when a case takes place: at `timeMs`, or `at` a time of a week, UTC; without either on a Monday at 10."""
    time_ms, at = said.get("timeMs"), said.get("at", "Mon 10:00")
    if isinstance(time_ms, int):
        return time_ms
    found = _AT.fullmatch(at) if isinstance(at, str) else None
    if found is None or found[1].lower() not in DAYS:
        raise Malformed('"at" is a time of a week in UTC, such as "Mon 10:30"')
    return MONDAY_MS + DAYS.index(found[1].lower()) * DAY_MS + (int(found[2]) * 60 + int(found[3])) * MINUTE_MS


def _texts(said: JsonObject, name: str) -> tuple[str, ...] | None:
    value = said.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Malformed(f"{name} is a list of texts")
    return tuple(sorted(map(str, value)))
