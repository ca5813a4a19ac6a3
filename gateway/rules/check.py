"""Says whether a text is a rule set, in sentences for who wrote it.

House rules of this file:

* What can be found when a set is loaded must not be found when somebody is refused. Cedar's own check comes first;
  then what it lets pass although it can never mean what was meant: a `has` for a fact that there is not, a name that is
  none, a word that a fact never holds.
* Every sentence names the policy and the line, says what is wrong and, where that can be guessed, what was meant.
* All faults are told, not the first alone; but what can't be read is not read any further.

Source: docs/protocol.md 39.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from gateway.rules.evaluate import Policy, read_policies
from gateway.rules.sight import sight_of
from gateway.rules.text import Statement, line_of, misplaced, statements
from gateway.rules.words import ATTRIBUTES, NO_QUESTION, in_words, nearest, never, never_met
from verifier.entries import OBLIGATION, RULE_ID, RULE_IDS_MAX, RULES_TEXT
from verifier.rules import SCHEMA

if TYPE_CHECKING:
    from cedarpy import Schema

NOTES = ("id", "obligation")


class Fault(NamedTuple):
    """One thing that is wrong: where, in which policy ("" where that has no name yet), and a sentence."""

    line: int
    policy: str
    text: str

    def __str__(self) -> str:
        whose = f", policy {self.policy}" if self.policy else ""
        return f"line {self.line}{whose}: {self.text}"


class Checked(NamedTuple):
    """A text that was looked at: its policies, with their lines, as far as they could be read, and what is wrong."""

    policies: tuple[tuple[int, Policy], ...]
    faults: tuple[Fault, ...]


def check(text: str, is_folding: Callable[[str], bool] = lambda scheme: False) -> Checked:
    """Return what is in a text and what is wrong with it. ImportError: there is no engine to ask.

    `is_folding` says whether a scheme folds case, where there is a ledger that knows.
    """
    if not RULES_TEXT.check(text):
        return Checked((), (_unfit(text),))
    unpaired = misplaced(text)
    if unpaired is not None:
        return Checked((), (Fault(unpaired.line, "", unpaired.text),))
    found = statements(text)
    if not 1 <= len(found) <= RULE_IDS_MAX:
        return Checked((), (Fault(1, "", f"a rule set has 1 to {RULE_IDS_MAX} policies, and this has {len(found)}"),))
    policies: list[tuple[Statement, Policy]] = []
    faults: list[Fault] = []
    for statement in found:
        policy = _read(statement)
        if isinstance(policy, Fault):
            faults.append(policy)
        else:
            policies.append((statement, policy))
            faults += _own_faults(statement, policy, is_folding)
    faults += _repeated(policies)
    return Checked(tuple((one.line, policy) for one, policy in policies), tuple(sorted(dict.fromkeys(faults))))


@cache
def schema() -> Schema:
    """Return the parsed schema of all questions."""
    from cedarpy import Schema

    return Schema.from_str(SCHEMA)


def _unfit(text: str) -> Fault:
    """Tell what makes a text unfit for the wire, with the first character that is."""
    for number, line in enumerate(text.split("\n"), 1):
        for letter in line:
            if letter != "\t" and not " " <= letter <= "~":
                return Fault(number, "", f"the character U+{ord(letter):04X} is not one that a rule set may have: "
                             "printable ASCII, tabs and line feeds")  # fmt: skip
    return Fault(1, "", f"a rule set is {RULES_TEXT.bound}; this has {len(text):,}")


def _read(statement: Statement) -> Policy | Fault:
    """Return a statement as the policy it is, or what keeps it from being read."""
    try:
        (policy,) = read_policies(statement.text)
    except ValueError as error:
        sentence, word = in_words(str(error))
        if not statement.is_closed and not word:
            sentence = "this policy does not end: there is no semicolon"
        return Fault(line_of(statement, word), "", sentence)
    return policy


def _own_faults(statement: Statement, policy: Policy, is_folding: Callable[[str], bool]) -> Iterator[Fault]:
    """Yield what is wrong with one policy by itself."""
    name = policy.id if RULE_ID.check(policy.id) else ""
    found = [*_note_faults(statement, policy), *_meaning_faults(statement, policy, is_folding)]
    for line, text in found:
        if text != NO_QUESTION or len(found) == 1:  # which the others explain better
            yield Fault(line, name, text)


def _note_faults(statement: Statement, policy: Policy) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with the annotations."""
    notes = policy.tree.get("annotations")
    names = list(notes) if isinstance(notes, dict) else []
    if "id" not in names:
        yield statement.line, 'this policy has no name; begin it with @id("a-name"), by which answers tell it'
    elif not RULE_ID.check(policy.id):
        yield line_of(statement, policy.id), f'@id("{policy.id}"): a name is {RULE_ID.bound}'
    if "obligation" in names and not OBLIGATION.check(policy.obligation):
        yield line_of(statement, policy.obligation), f'@obligation("{policy.obligation}"): it is {OBLIGATION.bound}'
    for name in names:
        if name not in NOTES:
            yield line_of(statement, name), f"@{name} means nothing here{nearest(name, NOTES)} (comments begin with //)"


def _meaning_faults(
    statement: Statement, policy: Policy, is_folding: Callable[[str], bool]
) -> Iterator[tuple[int, str]]:
    """Yield what the engine's validator says, and what it lets pass."""
    from cedarpy import validate_policies

    for error in validate_policies(statement.text, schema()).errors:
        sentence, word = in_words(error.error)
        yield line_of(statement, word), sentence
    seen = sight_of([policy.tree])
    for variable, attribute in seen.asked:
        known = ATTRIBUTES.get(variable, ())
        if attribute not in known:
            yield line_of(statement, attribute), f"{variable} never has `{attribute}`{nearest(attribute, known)}"
    for named in seen.named:
        if text := never_met(named, is_folding):
            yield line_of(statement, named.uid[1]), text
    for name, values in sorted(seen.compared.items()):
        for value in sorted(values, key=str):
            if text := never(name, value):
                yield line_of(statement, str(value)), text


def _repeated(policies: Sequence[tuple[Statement, Policy]]) -> Iterator[Fault]:
    first: dict[str, int] = {}
    for statement, policy in policies:
        if policy.id in first and RULE_ID.check(policy.id):
            yield Fault(statement.line, policy.id, f"its name is that of the policy in line {first[policy.id]}")
        first.setdefault(policy.id, statement.line)
