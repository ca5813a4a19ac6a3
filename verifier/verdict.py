"""Findings with the ladder's step numbers, and the report that turns them into one verdict and one exit code.

The verdict is the gravest finding. The JSON has every finding, so that an auditor sees them all; the text has the first
of each kind about entries. Whatever came from a leaf is escaped: a hostile leaf must not be able to move a cursor or to
forge a line of the report.
Source: docs/protocol.md 16.2 to 16.6.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from verifier.clauses import CLAUSES
from verifier.wire import INT_MAX, JsonObject, JsonValue

LEVELS = ("none", "signed", "included", "witnessed")
TEXT_CHARACTERS_MAX = 600  # of one finding; a leaf could otherwise fill the screen


class Outcome(IntEnum):
    """What a finding means for the verdict, in rising precedence. VALID findings are remarks."""

    VALID = 0
    INDETERMINATE = 1
    INVALID = 2
    UNREADABLE = 3  # of what the caller gave: usage, files, pins; nothing was judged
    SPLIT = 4


# The verdict table of docs/protocol.md 16.4: exit code, when.
VERDICTS: Mapping[int, str] = {
    0: "valid, and the requested level holds",
    1: "invalid: at least one step failed",
    2: "usage, or a file or pin that cannot be read; nothing was judged",
    3: "valid below the requested level, or indeterminate: not enough is known for yes or no",
    4: "split view proven: the log signed two histories",
}
_EXIT_CODES = {Outcome.INDETERMINATE: 3, Outcome.INVALID: 1, Outcome.UNREADABLE: 2, Outcome.SPLIT: 4}


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation: the ladder's `step` (0 for usage), a stable `code`, and the entry's `seq` in a ledger."""

    step: int
    code: str
    outcome: Outcome
    text: str
    seq: int | None = None

    @property
    def clause(self) -> str | None:
        """The clause of docs/protocol.md that this is about; every code of ours has one."""
        return CLAUSES.get(self.code)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, what was reached, and what was not checked.

    `level` is none, signed, included or "witnessed k/n"; `direct_signature` valid, invalid, left_out or not_checked;
    `statement` says in words what a valid subject means; `facts` are figures for machines.
    """

    command: str
    findings: tuple[Finding, ...]
    requested: str = "none"
    level: str = "none"
    direct_signature: str = "not_checked"
    completeness: str = "unknown"
    statement: tuple[str, ...] = ()
    facts: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """The gravest finding."""
        return max((finding.outcome for finding in self.findings), default=Outcome.VALID)

    @property
    def failed(self) -> Finding | None:
        """Among the findings that decide the verdict: in a ledger the first entry, then the lowest step."""
        grave = [f for f in self.findings if f.outcome is self.outcome is not Outcome.VALID]
        return min(grave, key=lambda f: (f.seq if f.seq is not None else INT_MAX, f.step), default=None)

    @property
    def exit_code(self) -> int:
        """0, 1, 2, 3 or 4 as in VERDICTS."""
        reached = LEVELS.index(self.level.partition(" ")[0])
        return _EXIT_CODES.get(self.outcome, 0 if reached >= LEVELS.index(self.requested) else 3)

    def as_text(self) -> str:
        """Return the report for a person, ASCII, without a final newline."""
        failed = self.failed
        at = "" if failed is None else f" at step {failed.step}{_at(failed)}: {failed.code}"
        lines = [f"{self.outcome.name}{at}"]
        if self.command != "compare":
            lines.append(f"level: {self.level} (requested: {self.requested})")
        if self.command == "receipt":
            lines.append(f"direct signature: {self.direct_signature.replace('_', ' ')}")
        if self.command != "compare":
            lines.append(f"completeness: {self.completeness}")
        lines += [escape(sentence) for sentence in self.statement]
        lines += _lines(sorted(dict.fromkeys(self.findings), key=lambda f: -f.outcome))
        return "\n".join([*lines, f"exit {self.exit_code}: {VERDICTS[self.exit_code]}"])

    def as_json(self) -> str:
        """Return the same as one line of JSON, ASCII, members sorted; stable: members are added, never changed."""
        failed = self.failed
        document: JsonObject = {
            "command": self.command,
            "completeness": self.completeness,
            "directSignature": self.direct_signature,
            "exitCode": self.exit_code,
            "facts": {name: escape(fact) if isinstance(fact, str) else fact for name, fact in self.facts.items()},
            "failedStep": None if failed is None else failed.step,
            "findings": [_as_object(f) for f in dict.fromkeys(self.findings)],
            "level": self.level,
            "requestedLevel": self.requested,
            "statement": [escape(sentence) for sentence in self.statement],
            "verdict": self.outcome.name.lower(),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"))


def escape(text: str) -> str:
    """Return `text` in printable ASCII, at most TEXT_CHARACTERS_MAX characters of it; never raises."""
    cut = text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
    return cut.encode("unicode_escape").decode("ascii")


def unreadable(command: str, text: str, code: str = "usage") -> Report:
    """Return the report of exit code 2."""
    return Report(command, (Finding(0, code, Outcome.UNREADABLE, text),))


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each finding; of those about entries the first of a kind, and how many more there are."""
    kinds = Counter((f.outcome, f.code) for f in findings if f.seq is not None)
    for finding in findings:
        count = 1 if finding.seq is None else kinds.pop((finding.outcome, finding.code), 0)
        if count:
            yield _line(finding) + (f"\n    and {count - 1} more of this kind" if count > 1 else "")


def _line(finding: Finding) -> str:
    mark = "note" if finding.outcome is Outcome.VALID else finding.outcome.name
    clause = "" if finding.clause is None else f" (protocol {finding.clause})"
    return f"  step {finding.step}{_at(finding)} {mark} {finding.code}{clause}: {escape(finding.text)}"


def _at(finding: Finding) -> str:
    return "" if finding.seq is None else f", entry {finding.seq}"


def _as_object(finding: Finding) -> JsonObject:
    outcome, text = finding.outcome.name.lower(), escape(finding.text)
    where: JsonObject = {"clause": finding.clause, "seq": finding.seq, "step": finding.step}
    return {**where, "code": finding.code, "outcome": outcome, "text": text}
