"""Trust: integers that releases raise a little and expiries lower, each change in the entry that caused it.

Source: docs/protocol.md 25.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verifier.wire import JsonObject


@dataclass(slots=True)
class Record:
    """The trust of one principal, and what it gained in the present window."""

    trust: int
    seq: int | None = None  # the entry that changed it last
    since_ms: int = 0  # the first gain of its window
    gained: int = 0


class Trust:
    """The trust of every principal; each method says what an entry has to list, and counts it."""

    __slots__ = ("_numbers", "_of")

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._of: dict[str, Record] = {}

    def gain(self, did: str, held_ms: int, now_ms: int, seq: int) -> list[JsonObject]:
        """Count a release by the holder after `held_ms`."""
        numbers = self._numbers
        if held_ms < numbers["trustGainHoldMs"]:
            return []
        record = self._record(did)
        if not record.gained or now_ms >= record.since_ms + numbers["trustGainWindowMs"]:
            is_new, gained = True, 0
        else:
            is_new, gained = False, record.gained
        change = min(numbers["trustGain"], numbers["trustGainMax"] - gained, numbers["trustMax"] - record.trust)
        if change <= 0:
            return []
        if is_new:
            record.since_ms = now_ms
        record.gained = gained + change
        return [_moved(did, record, change, seq)]

    def lose(self, dids: Iterable[str], seq: int) -> list[JsonObject]:
        """Count an expiry against each of `dids`."""
        rows = []
        for did in dict.fromkeys(dids):
            record = self._record(did)
            change = min(self._numbers["trustLoss"], record.trust)
            if change:
                rows.append(_moved(did, record, -change, seq))
        return rows

    def of(self, did: str) -> int:
        record = self._of.get(did)
        return self._numbers["trustStart"] if record is None else record.trust

    def recall(self, did: str) -> tuple[int, int | None, int, int] | None:
        """Return all that is known of a principal, None for nothing."""
        record = self._of.get(did)
        return None if record is None else (record.trust, record.seq, record.since_ms, record.gained)

    def put_back(self, did: str, known: tuple[int, int | None, int, int] | None) -> None:
        """Make it so again."""
        self._of.pop(did, None)
        if known is not None:
            self._of[did] = Record(*known)

    def _record(self, did: str) -> Record:
        return self._of.setdefault(did, Record(self._numbers["trustStart"]))


def _moved(did: str, record: Record, change: int, seq: int) -> JsonObject:
    row: JsonObject = {} if record.seq is None else {"previousSeq": record.seq}
    record.trust += change
    record.seq = seq
    return {**row, "did": did, "change": change, "after": record.trust}
