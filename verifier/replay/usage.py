"""How much was admitted: for each agent, operator and scheme, by minutes and days of log time, and in all.

Only what was allowed counts. A window is a whole minute or day since 1970, so nobody has to remember when one began.
Source: docs/protocol.md 37.5, 40.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from verifier.replay.people import operators
from verifier.wire import INT_MAX

MINUTE_MS, DAY_MS = 60_000, 86_400_000


class Before(NamedTuple):
    """What an admission finds counted: how many this minute and this day, and what those of the day cost."""

    minute_count: int = 0
    day_count: int = 0
    day_cost: int = 0


@dataclass(slots=True)
class Tally:
    """The counters of one agent, operator or scheme. `minute` and `day` are the numbers of the windows they are of."""

    minute: int = -1
    minute_count: int = 0
    day: int = -1
    day_count: int = 0
    day_cost: int = 0
    total: int = 0
    total_cost: int = 0
    denied: int = 0


class Usage:
    """Everybody's counters, by the words of `counted_under`."""

    __slots__ = ("_day", "_of")

    def __init__(self) -> None:
        self._of: dict[str, Tally] = {}
        self._day = -1  # of the last admission

    def before(self, who: str, now_ms: int) -> Before:
        """Return what is counted of the windows of a moment."""
        tally = self._of.get(who)
        if tally is None or tally.day != now_ms // DAY_MS:
            return Before()
        minute_count = tally.minute_count if tally.minute == now_ms // MINUTE_MS else 0
        return Before(minute_count, tally.day_count, tally.day_cost)

    def count(self, whose: Iterable[str], cost: int, now_ms: int) -> None:
        """An admission is allowed."""
        if now_ms // DAY_MS != self._day:
            self._begin_day(now_ms // DAY_MS)
        for who in whose:
            found, tally = self.before(who, now_ms), self._of.setdefault(who, Tally())
            tally.minute, tally.minute_count = now_ms // MINUTE_MS, found.minute_count + 1
            tally.day, tally.day_count = now_ms // DAY_MS, found.day_count + 1
            tally.day_cost = min(INT_MAX, found.day_cost + cost)
            tally.total += 1
            tally.total_cost = min(INT_MAX, tally.total_cost + cost)

    def _begin_day(self, day: int) -> None:
        """Forget the schemes of other days: their names are anybody's, and nothing is told of them in all."""
        self._day = day
        for word in [word for word in self._of if word.endswith(":")]:
            del self._of[word]

    def deny(self, whose: Iterable[str]) -> None:
        """One is denied."""
        for who in whose:
            self._of.setdefault(who, Tally()).denied += 1

    def by_operator(self) -> Iterator[tuple[str, Tally]]:
        """Yield operators with what their agents used in all, by DID."""
        mark = operators("")
        return ((word[len(mark) :], tally) for word, tally in sorted(self._of.items()) if word.startswith(mark))

    def recall(self, whose: Iterable[str]) -> dict[str, Tally | None]:
        """Return all that is known of some."""
        return {who: replace(self._of[who]) if who in self._of else None for who in whose}

    def put_back(self, known: dict[str, Tally | None]) -> None:
        """Make it so again."""
        for who, tally in known.items():
            self._of.pop(who, None)
            if tally is not None:
                self._of[who] = tally


def counted_under(principal: str, operator: str, schemes: Iterable[str]) -> list[str]:
    """Return the words under which an admission counts: its agent's, its operator's, one for each scheme."""
    return [principal, operators(operator), *map(in_scheme, schemes)]


def in_scheme(scheme: str) -> str:
    """Return the word of a scheme; every DID has a colon in its midst."""
    return scheme + ":"
