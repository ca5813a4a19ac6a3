"""What evaluates rules in this installation, and whether that fits the rule set in force.

With rules in force and nothing to evaluate them every admission would be denied, each with an entry that blames the
rules. So such a gateway does not start, and says which command helps.
Source: docs/protocol.md 39.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from gateway.core.record_codec import decode_record
from gateway.core.record_keys import RULES_KEY
from gateway.core.records import RuleSet
from gateway.errors import StartError
from gateway.rules.check import check
from gateway.rules.engine import Engine, open_engine
from gateway.rules.evaluate import INSTALL, Rules
from verifier.wire import Malformed


class Records(Protocol):
    """A ledger, as far as its records can be read."""

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]: ...


def engine_for(store: Records) -> Engine | None:
    """Return what evaluates rules here, None without the extra `rules`. StartError: the set in force needs another."""
    engine, rule_set = open_engine(), _rules_in_force(store)
    if rule_set is None:
        return engine
    which = f"version {rule_set.version} of this ledger's rules, in force since entry {rule_set.seq},"
    if engine is None:
        raise StartError(f"{which} can't be evaluated: no engine for rules is installed. {INSTALL}, then start again")
    faults = check(rule_set.text).faults
    if faults:
        raise StartError(
            f"{which} was checked by {rule_set.engine} and is not valid for {engine.name}, which is installed: "
            f"{faults[0]}. Install the version that checked it, load rules that both take, then go on with the newer"
        )
    engine.keep(Rules(rule_set.text))
    return engine


def engine_name() -> str | None:
    """Return the name of what evaluates rules here: the nodes of one ledger have the same, and the store sees to it."""
    engine = open_engine()
    return None if engine is None else engine.name


def _rules_in_force(store: Records) -> RuleSet | None:
    """Return the rule set by the ledger's records; whether these are true is found when the ledger is opened."""
    for key, value in store.records((RULES_KEY,)):
        try:
            record = decode_record(key, value)
        except Malformed:
            return None
        if isinstance(record, RuleSet):
            return record
    return None
