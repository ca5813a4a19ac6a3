"""What is asked of others to approve: kept as long as anybody is told of it, judged elsewhere.

An ask is live until an entry ends it or its time has come, which no entry says and no holiday moves. For a while after
that whoever answers late is still told so.
Source: docs/protocol.md 38.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from verifier.entries import ASK_MEMORY_MS
from verifier.replay.under import drop


@dataclass(slots=True, eq=False)
class Plea:
    """Entry `seq` asks `approvers`, each with the operator that answered for it then, to approve one action.

    `bound` is what a statement has to name: ledger, genesis, agent, operation, action, arguments and rules.
    """

    seq: int
    actor: str
    principal: str
    operator: str
    name: str  # the first of the action's
    mode: str
    bound: tuple[str, ...]
    approvers: dict[str, str]
    quorum: int
    give_up_by_ms: int
    given: set[str] = field(default_factory=set)
    declined: set[str] = field(default_factory=set)
    ended_seq: int | None = None
    over_at_ms: int = 0  # when that entry ended it

    @property
    def until_ms(self) -> int:
        """The log time at which it may be forgotten."""
        return ASK_MEMORY_MS + (self.give_up_by_ms if self.ended_seq is None else self.over_at_ms)

    @property
    def is_fulfilled(self) -> bool:
        return len({self.approvers[did] for did in self.given}) >= self.quorum

    @property
    def is_hopeless(self) -> bool:
        """Say whether too few are left who did not decline."""
        return not self._suffice(self.approvers.keys() - self.declined)

    def has_answered(self, did: str) -> bool:
        return did in self.given or did in self.declined

    def awaited(self) -> list[str]:
        """Return those whose answer is out and without whom too few are left, sorted."""
        left = self.approvers.keys() - self.declined
        return sorted(did for did in left - self.given if not self._suffice(left - {did}))

    def _suffice(self, dids: Iterable[str]) -> bool:
        return len({self.approvers[did] for did in dids}) >= self.quorum


class Pleas:
    """Every ask that is remembered."""

    __slots__ = ("_behind", "_by", "_forgettable", "_of", "_plea")

    def __init__(self) -> None:
        self._plea: dict[int, Plea] = {}
        self._by: dict[str, dict[Plea, None]] = {}  # by actor, those that no entry has ended
        self._of: dict[str, dict[Plea, None]] = {}  # the same, by approver
        self._behind: dict[str, dict[Plea, None]] = {}  # by principal, all
        self._forgettable: list[tuple[int, int]] = []  # a heap: from when on, perhaps, and seq

    def __bool__(self) -> bool:
        """Say whether anybody may be waiting for an approval."""
        return bool(self._by)

    def get(self, seq: int, now_ms: int) -> Plea | None:
        """Return an ask that is still remembered."""
        plea = self._plea.get(seq)
        return plea if plea is not None and now_ms < plea.until_ms else None

    def by(self, actor: str, now_ms: int) -> list[Plea]:
        """Return the live asks of an actor, the lowest number first."""
        return sorted(_live(self._by.get(actor, ()), now_ms), key=lambda plea: plea.seq)

    def is_awaited(self, did: str, now_ms: int) -> bool:
        """Say whether a live ask can't have enough without this approver."""
        return any(did in plea.awaited() for plea in _live(self._of.get(did, ()), now_ms))

    def counts(self, principal: str, now_ms: int) -> tuple[int, int]:
        """Return how many asks of a principal are live, and how many are remembered."""
        known = [plea for plea in self._behind.get(principal, ()) if now_ms < plea.until_ms]
        return sum(1 for _ in _live(known, now_ms)), len(known)

    def begin(self, plea: Plea) -> None:
        self._plea[plea.seq] = plea
        self._behind.setdefault(plea.principal, {})[plea] = None
        self._by.setdefault(plea.actor, {})[plea] = None
        for did in plea.approvers:
            self._of.setdefault(did, {})[plea] = None
        heappush(self._forgettable, (plea.until_ms, plea.seq))

    def end(self, plea: Plea, seq: int, now_ms: int) -> None:
        """An ask ends by the entry `seq`."""
        plea.ended_seq, plea.over_at_ms = seq, now_ms
        self._unwait(plea)
        heappush(self._forgettable, (plea.until_ms, plea.seq))

    def dismiss(self, actor: str, seq: int, now_ms: int) -> None:
        """Whoever asked has ended by the entry `seq`, and with it what it asked."""
        for plea in self.by(actor, now_ms):
            self.end(plea, seq, now_ms)

    def forget(self, now_ms: int) -> None:
        """Let go what nobody is told of any more."""
        while self._forgettable and self._forgettable[0][0] <= now_ms:
            plea = self._plea.get(heappop(self._forgettable)[1])
            if plea is not None and plea.until_ms <= now_ms:
                del self._plea[plea.seq]
                drop(self._behind, plea.principal, plea)
                if plea.ended_seq is None:
                    self._unwait(plea)

    def _unwait(self, plea: Plea) -> None:
        drop(self._by, plea.actor, plea)
        for did in plea.approvers:
            drop(self._of, did, plea)


def _live(pleas: Iterable[Plea], now_ms: int) -> Iterator[Plea]:
    return (plea for plea in pleas if plea.ended_seq is None and now_ms < plea.give_up_by_ms)
