"""What entries state of rules: the set in force, what it says of a question, and each such statement to be asked about.

Source: docs/protocol.md 39, 40.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from verifier.replay.things import Faults
from verifier.rules import Question
from verifier.verdict import Finding, Outcome

NOT_DERIVED = "rules_not_rederived"
_ANEW = "`tallystick-verify ledger ... --rules`, from the beginning where a position was kept"


class RuleSet(NamedTuple):
    """A text that an operator loaded with entry `seq`, as `size` policies; `mode` is enforce or shadow."""

    version: int
    digest: str
    text: str
    mode: str
    seq: int
    size: int


class Ruling(NamedTuple):
    """What a set says: allow, deny or error; the ids that decided and what they oblige to, both sorted."""

    decision: str
    matched: tuple[str, ...]
    obligations: tuple[str, ...]


class Claim(NamedTuple):
    """An entry says that `engine` ruled so on a question; without a question, that it found the set valid.

    Where an entry has no room for a ruling, it says by its error alone what the rules must have said; "" for "allow".
    """

    rule_set: RuleSet
    engine: str
    question: Question | None = None
    ruling: Ruling | None = None
    error: str = ""


def error_of(ruling: Ruling) -> str:
    """Return the denial that a ruling calls for where it is enforced, "" for none."""
    if ruling.decision == "allow":
        return ""
    if ruling.decision != "deny":
        return "policy_error"
    return "forbidden_by_rules" if ruling.matched else "not_permitted"


class Engine(Protocol):
    """Evaluates rule sets; `name` tells it with its version, as entries do."""

    name: str

    def faults(self, claim: Claim) -> Faults:
        """Yield (code, text) of what a claim says otherwise than this engine. No text of a set raises."""
        ...


def unruled_findings(count: int, unruled: Mapping[str, int], *, has_rules: bool) -> Iterator[Finding]:
    """Yield what to do about what was not asked again, `unruled` by engine, of all `count` that rules judged.

    Nothing was found wrong with it, and it is not called valid.
    """
    for engine, left in sorted(unruled.items()):
        name, _, version = engine.partition("/")
        if name != "cedar":
            text = "no entry says which engine it was, or there was none, so nobody can ask it again"
        elif has_rules:
            text = f"`pip install cedarpy=={version}`, then {_ANEW}"
        else:
            text = f"`pip install 'tallystick[rules]' cedarpy=={version}`, then {_ANEW}"
        said = f"not derived again: {left} of {count} admissions that rules judged, by {engine}: {text}"
        yield Finding(10, NOT_DERIVED, Outcome.INDETERMINATE, said)
