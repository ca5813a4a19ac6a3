"""A hall in which admissions are asked for: who may ask, what answers for rules, and short words for both.

`op` and `op2` are operators; A, B and E are agents of `op`, X and Y of `op2`. A court is audited when its test is over.
"""

from __future__ import annotations

from typing import Any

from gateway.core.lookup import usage_at
from gateway.core.outcome import Ruling
from gateway.core.records import RuleSet, Usage, UsageOf
from gateway.core.usage import in_windows
from tests.core.crew import Crew
from tests.core.requests import Ask, add, admit, did_of, load_rules
from verifier.entries import Leaf
from verifier.rules import Question

TEXT = '@id("all")\npermit (principal, action, resource);\n'
ENGINE = "cedar/0.0.1"
ALLOW = Ruling("allow", ("all",), (), ENGINE)
FORBID = Ruling("deny", ("never", "not-now"), ("tell:op",), ENGINE)
NOTHING = Ruling("deny", (), (), ENGINE)
ERROR = Ruling("error", (), (), ENGINE)


class Judge:
    """Answers for rule sets as a test tells it to, and keeps what it was asked."""

    def __init__(self, answer: object = ALLOW) -> None:
        self.answer = answer
        self.asked: list[tuple[RuleSet, Question]] = []

    @property
    def name(self) -> str:
        return ENGINE

    def count(self, text: str) -> int:
        return text.count("@id(")

    def __call__(self, rule_set: RuleSet, question: Question) -> Ruling:
        self.asked.append((rule_set, question))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # tests answer nonsense too


class Court(Crew):
    """A crew before a judge. Agents hold, ask to be admitted, and are counted."""

    def __init__(self, **numbers: int) -> None:
        super().__init__(**numbers)
        self.judge = Judge()
        self.rules = self.judge
        self.say(add("op", "E", name="release-1"))
        self.say(add("op2", "Y"))

    def load(self, mode: str = "enforce", text: str = TEXT, version: int = 1) -> Leaf:
        return self.say(load_rules("op", text, version, mode))

    def fence(self, name: str, *resources: str, **members: Any) -> tuple[str, int]:
        """Acquire, which has to succeed, and return id and token."""
        lease_id = self.hold(name, *resources, **members)
        return lease_id, self.leases()[lease_id].fencing_token

    def admit(self, name: str, *resources: str, **members: Any) -> Leaf:
        return self.say(admit(name, *resources, **members))

    def allowed(self, ask: Ask) -> Leaf:
        """Ask for what has to be admitted."""
        leaf = self.say(ask)
        assert leaf.type.split("/")[1] == "admission.allowed", leaf.value
        return leaf

    def denied(self, ask: Ask) -> Leaf:
        """Ask for what must not be admitted; nothing else changes by that than what is counted of denials."""
        before = self.uncounted()
        leaf = self.say(ask)
        assert leaf.type.split("/")[1] == "admission.denied", leaf.value
        assert self.uncounted() == before
        return leaf

    def uncounted(self) -> dict[str, object]:
        """Return all records that last, without what is counted of denials."""
        kept = {key: self._plain(record) for key, record in self.lasting().items()}
        return {key: record for key, record in kept.items() if record is not None}

    def usage(self, of: UsageOf, name: str) -> Usage:
        return usage_at(self.shelf, of, name if of == "scheme" else did_of(name))

    def _plain(self, record: object) -> object:
        """Return what counts of a record now; None for a usage of nothing."""
        if not isinstance(record, Usage):
            return record
        return in_windows(record, self.t_ms)._replace(denied=0) if record.total else None
