"""The gateway's own first words: entry 0, and what every start writes.

Entry 0 fixes everything that later decisions depend on. A start gets a new epoch, says how it came about, and is
followed by a holiday: for as long as the service was away, but no longer than `holiday_ms`, no lease ends. So an
outage never ends leases in a mass, and a gateway that restarts for ever gains nothing by it.

Source: docs/protocol.md 12.7, 18.3, 18.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.core.append import GatewayStep
from gateway.core.draft import Draft
from gateway.core.key import first_records
from gateway.core.lookup import counter_at
from gateway.core.outcome import Context, Decision, granted
from gateway.core.parameters import Parameters
from gateway.core.record_keys import ENROLLER_KEY, HOLIDAY_KEY, OPERATORS_KEY, operator_key
from gateway.core.records import Counter, Enroller, Operator
from verifier.wire import JsonObject

RULES = 5
Cause = Literal["start", "recovery"]


@dataclass(frozen=True, slots=True)
class Opening:
    """What entry 0 says. `keys` are lines of the key document without the word key, `root` is the root's vkey.

    `enroller` is the gateway's own key that enrols agents in the name of an API key, and does nothing else.
    `next_keys` has, by purpose, the hex SHA-256 of the raw key that must be announced next: who steals a key in use
    can't announce one of his own, even with the root's help, unless he has that one too.
    """

    root: str
    keys: tuple[str, ...]
    operators: tuple[str, ...]
    enroller: str
    authorities: tuple[str, ...]
    is_public: bool
    is_dev: bool
    unicode_version: str
    parameters: Parameters
    next_keys: Mapping[str, str] = field(default_factory=dict)


def opened(opening: Opening) -> GatewayStep:
    """Return the step that writes entry 0, puts its operators in force and names the enroller."""

    def step(draft: Draft, context: Context) -> Decision:
        assert context.seq == 0, "a ledger is opened once"
        for did in opening.operators:
            draft.put(operator_key(did), Operator(did))
        draft.put(OPERATORS_KEY, Counter(len(opening.operators)))
        draft.put(ENROLLER_KEY, Enroller(opening.enroller))
        following: JsonObject = {**opening.next_keys}
        for key, record in first_records(opening.root, opening.keys, following).items():
            draft.put(key, record)
        return granted(
            "ledger.opened",
            {
                "rules": RULES,
                "root": opening.root,
                "keys": list(opening.keys),
                "operators": list(opening.operators),
                "enroller": opening.enroller,
                "authorities": list(opening.authorities),
                "isPublic": opening.is_public,
                "isDev": opening.is_dev,
                "unicodeVersion": opening.unicode_version,
                "parameters": opening.parameters.members(),
                **({"nextKeys": following} if following else {}),
            },
        )

    return step


def start_steps(cause: Cause, *, is_clean: bool, before_ms: int) -> tuple[GatewayStep, GatewayStep]:
    """Return the two steps of every start, in order. `before_ms` is the log time of the last entry before them."""
    return _started(cause, is_clean, before_ms), _holiday(cause, before_ms)


def _started(cause: Cause, is_clean: bool, before_ms: int) -> GatewayStep:
    def step(draft: Draft, context: Context) -> Decision:
        gap_ms = context.t_ms - before_ms
        return granted("service.started", {"cause": cause, "isClean": is_clean, "gapMs": gap_ms})

    return step


def _holiday(cause: Cause, before_ms: int) -> GatewayStep:
    def step(draft: Draft, context: Context) -> Decision:
        until_ms = context.t_ms + min(context.parameters.holiday_ms, context.t_ms - before_ms)
        draft.put(HOLIDAY_KEY, Counter(max(until_ms, counter_at(draft, HOLIDAY_KEY))))
        members = {"untilMs": until_ms, "startedSeq": context.seq - 1, "reason": cause}
        return granted("lease.holiday", {**members})

    return step
