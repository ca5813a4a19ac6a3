"""What the core is handed to ask about rules: a pure function over parsed rule sets that never raises.

What is kept changes no answer, only how soon it comes.
Source: docs/protocol.md 39.5, 39.6.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from hashlib import sha256

from gateway.core.outcome import Ruling
from gateway.core.records import RuleSet
from gateway.core.rules import FAILED
from gateway.rules.check import check
from gateway.rules.evaluate import Rules, engine_name
from verifier.rules import Question

SETS_MAX = 4  # parsed rule sets that are kept: one is in force, and one was just before
VALID_MAX = 64  # sets that the door let in and that wait for their turn are fewer
_log = logging.getLogger("tallystick.rules")


class Engine:
    """Evaluates rule sets. `name` is how entries name it, with its version."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failed_count = 0
        """How many questions ended in an error; read by the metrics."""
        self._sets: OrderedDict[str, Rules] = OrderedDict()
        self._valid: dict[str, int] = {}  # how many policies, by digest

    def __call__(self, rule_set: RuleSet, question: Question) -> Ruling:
        """Return what a rule set says of a question; whatever fails is an "error".

        One by chance (no memory, say) would be an answer that nobody gets again, so it names no engine.
        """
        try:
            verdict = self._parsed(rule_set.digest, rule_set.text).judge(question)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic inside the engine is none of Exception, and must not end the ledger
            _log.error("the rules could not be evaluated: %s", type(error).__name__)
            self.failed_count += 1
            return FAILED
        self.failed_count += verdict.decision == "error"
        return Ruling(verdict.decision, verdict.matched, verdict.obligations, self.name)

    def keep(self, rules: Rules) -> None:
        """Take a set that `check` found valid: nothing of it is read or looked through again when it is decided on."""
        if len(self._valid) >= VALID_MAX:
            self._valid.clear()
        self._valid[rules.digest] = len(rules.policies)
        self._put(rules)

    def count(self, text: str) -> int:
        """Return how many policies a text has. ValueError: it is no rule set.

        The door has looked; but who it took for nobody who may load any can be an operator when his turn comes.
        """
        known = self._valid.get(sha256(text.encode()).hexdigest())
        if known is not None:
            return known
        checked = check(text)
        if checked.faults:
            raise ValueError(str(checked.faults[0]))
        return len(checked.policies)

    def _parsed(self, digest: str, text: str) -> Rules:
        rules = self._sets.get(digest)
        if rules is None:
            rules = Rules(text)
            if rules.digest != digest:
                raise ValueError("the digest is that of another text")
            self._put(rules)
        else:
            self._sets.move_to_end(digest)
        return rules

    def _put(self, rules: Rules) -> None:
        self._sets[rules.digest] = rules
        self._sets.move_to_end(rules.digest)
        if len(self._sets) > SETS_MAX:
            self._sets.popitem(last=False)


def open_engine() -> Engine | None:
    """Return the engine of this installation; None where the extra `rules` is not installed."""
    name = engine_name()
    return None if name is None else Engine(name)
