"""Pictures of what was admitted, of what waits for approval, and of the rules in force: they write and prove nothing.

Counts are as the next admission would meet them: what was counted of another minute or day is over. An ask that has
lapsed is told as such, although no entry says so.

Source: docs/protocol.md 37.6, 38.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest, nsmallest
from typing import Protocol

from gateway.core.draft import View
from gateway.core.holding import label_of
from gateway.core.lookup import pending_at, rule_set_at
from gateway.core.records import Pending, Record, Usage, UsageOf
from gateway.core.usage import in_windows, used
from verifier.wire import JsonObject, JsonValue

ROWS_MAX = 1_000  # in one picture
_OF: tuple[UsageOf, ...] = ("agent", "operator")


class Shelf(View, Protocol):
    """A view that can also be walked through, one kind of record at a time, with their keys."""

    def pairs(self, prefix: str) -> Iterable[tuple[str, Record]]:
        """Return every record whose key begins with `prefix`, one of HOT_PREFIXES, and the rest of its key."""


# -- usage -------------------------------------------------------------------------------------------------------------


def usage_view(view: View, did: str, t_ms: int) -> JsonObject:
    """Return what was admitted to one key: as an agent, with its sessions, and as an operator, with all its agents."""
    return {"nowMs": t_ms, "did": did, "usage": [_usage_row(of, did, used(view, of, did, t_ms)) for of in _OF]}


def usages_view(shelf: Shelf, t_ms: int) -> JsonObject:
    """Return what was admitted to each agent and operator and on each scheme."""
    pairs = nsmallest(ROWS_MAX + 1, shelf.pairs("usage/"), key=lambda pair: pair[0])
    rows: list[JsonValue] = []
    for name, record in pairs[:ROWS_MAX]:
        of, _, rest = name.partition("/")
        if isinstance(record, Usage):
            rows.append(_usage_row(of, rest, in_windows(record, t_ms)))
    return {"nowMs": t_ms, "usage": rows, **_cut(len(pairs))}


def _usage_row(of: str, whose: str, usage: Usage) -> JsonObject:
    row: JsonObject = {
        "of": of,
        "scheme" if of == "scheme" else "did": whose,
        "countMinute": usage.minute_count,
        "countDay": usage.day_count,
        "costDay": usage.day_cost,
    }
    ever: JsonObject = {"count": usage.total, "cost": usage.total_cost, "denied": usage.denied}
    return row if of == "scheme" else row | ever


# -- approvals ---------------------------------------------------------------------------------------------------------


def ask_view(view: View, ask_id: str, t_ms: int) -> JsonObject:
    """Return one request for approval; no row when it is unknown or forgotten."""
    found = pending_at(view, ask_id, t_ms)
    return _asks(view, [] if found is None else [found], t_ms)


def asks_view(shelf: Shelf, t_ms: int, *, of: str = "", by: str = "") -> JsonObject:
    """Return the requests for approval, the newest last: all, those `of` an asker, those that name `by` as an approver.

    Those `by` somebody are the open ones that it has not answered.
    """
    there = [record for _, record in shelf.pairs("ask/") if isinstance(record, Pending)]
    found = [ask for ask in there if pending_at(shelf, ask.ask_id, t_ms) is not None]
    if of:
        found = [ask for ask in found if of in (ask.actor, ask.principal)]
    if by:
        found = [ask for ask in found if by in _unanswered(ask, t_ms)]
    return _asks(shelf, found, t_ms)


def ask_state(ask: Pending, t_ms: int) -> str:
    """Return how an ask stands: open, given, declined, withdrawn, dismissed (its asker is gone), or lapsed."""
    if ask.how:
        return ask.how
    return "open" if ask.is_live(t_ms) else "lapsed"


def _unanswered(ask: Pending, t_ms: int) -> tuple[str, ...]:
    if ask_state(ask, t_ms) != "open":
        return ()
    return tuple(did for did in ask.approvers if did not in ask.given and did not in ask.declined)


def _asks(view: View, found: list[Pending], t_ms: int) -> JsonObject:
    newest = nlargest(ROWS_MAX, found, key=lambda ask: ask.seq)
    rows: list[JsonValue] = [_ask_row(view, ask, t_ms) for ask in reversed(newest)]
    return {"nowMs": t_ms, "approvals": rows, **_cut(len(found))}


def _ask_row(view: View, ask: Pending, t_ms: int) -> JsonObject:
    row: JsonObject = {
        "askId": ask.ask_id,
        "seq": ask.seq,
        "state": ask_state(ask, t_ms),
        "actor": ask.actor,
        "operation": ask.operation,
        "resources": [*ask.resources],
        "mode": ask.mode,
        "argumentsDigest": ask.arguments_digest,
        "cost": ask.cost,
        "actionDigest": ask.action_digest,
        "rulesDigest": ask.rules_digest,
        "approvers": [*ask.approvers],
        "quorum": ask.quorum,
        "given": [{"approver": did, "seq": int(seq)} for did, seq in zip(ask.given, ask.given_in, strict=True)],
        "declined": [*ask.declined],
        "askedAtMs": ask.asked_at_ms,
        "giveUpByMs": ask.give_up_by_ms,
    }
    label = label_of(view, ask.actor)
    perhaps: dict[str, JsonValue] = {
        "actorName": label,
        "principal": None if ask.principal == ask.actor else ask.principal,
        "endedSeq": ask.ended_seq,
    }
    return {**row, **{name: value for name, value in perhaps.items() if value is not None}}


# -- rules -------------------------------------------------------------------------------------------------------------


def rules_view(view: View, t_ms: int) -> JsonObject:
    """Return the rule set in force with its text; `rules` is null before any was loaded."""
    found = rule_set_at(view)
    if found is None:
        return {"nowMs": t_ms, "rules": None}
    told: JsonObject = {
        "version": found.version,
        "digest": found.digest,
        "mode": found.mode,
        "engine": found.engine,
        "seq": found.seq,
        "text": found.text,
    }
    return {"nowMs": t_ms, "rules": told}


def _cut(count: int) -> JsonObject:
    return {"isTruncated": True} if count > ROWS_MAX else {}
