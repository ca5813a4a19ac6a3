"""What stands on names: leases, the delays that some leave behind, tickets; and an ask that may meet them.

A thing belongs to the `actor` whose key signed for it; to its `principal` it counts, in bounds and in trust.
Source: docs/protocol.md 3, 7, 23, 28.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from verifier.entries import Leaf

Faults: TypeAlias = Iterator[tuple[str, str]]  # (code, text)


def names_in(leaf: Leaf) -> tuple[str, ...]:
    """Return the member `resources` of a leaf, which the table says is sorted; empty when it is absent."""
    names = leaf.value.get("resources")
    return tuple(map(str, names)) if isinstance(names, list) else ()


class Ask(NamedTuple):
    """Somebody wants `names` (sorted) in `mode`; `keys` are what is compared, one for each name."""

    actor: str
    names: tuple[str, ...]
    keys: tuple[str, ...]
    mode: str


class Offer(NamedTuple):
    """The newest `transfer.offered` of a lease."""

    seq: int
    to: str
    is_operators: bool


@dataclass(slots=True, eq=False)
class Lease:
    """A lease that was granted and whose end no entry has stated.

    `giver` is the principal of whose it was before it was handed over, "" where nobody did.
    """

    seq: int
    actor: str
    principal: str
    names: tuple[str, ...]
    keys: tuple[str, ...]
    mode: str
    token: int
    granted_at_ms: int
    expires_at_ms: int
    hold_until_ms: int
    giver: str = ""
    giver_until_ms: int = 0
    offer: Offer | None = None

    @property
    def end_ms(self) -> int:
        """When it lapses, before any holiday."""
        return self.expires_at_ms


@dataclass(slots=True, eq=False)
class Delay:
    """What keeps others out after the end of a lease that entry `seq` stated; its former holder passes."""

    seq: int
    actor: str
    principal: str
    names: tuple[str, ...]
    keys: tuple[str, ...]
    mode: str
    end_ms: int


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in line; `seq` is its number. `operator` answers for it. `claim_by_ms` is there when offered.

    `reserve_until_ms` is there while it is reserved, which `has_reserved` says for ever: it may be so once.
    `first_since_ms` is when nobody was before it any more. `is_passed` says that granting it would have closed a cycle.
    """

    seq: int
    actor: str
    principal: str
    operator: str
    names: tuple[str, ...]
    keys: tuple[str, ...]
    mode: str
    ttl_ms: int
    queued_at_ms: int
    give_up_by_ms: int
    poll_by_ms: int
    claim_by_ms: int | None = None
    passes: int = 0
    first_since_ms: int | None = None
    reserve_until_ms: int | None = None
    has_reserved: bool = False
    is_passed: bool = False

    @property
    def is_offered(self) -> bool:
        return self.claim_by_ms is not None

    @property
    def is_single(self) -> bool:
        return len(self.names) == 1

    @property
    def ask(self) -> Ask:
        return Ask(self.actor, self.names, self.keys, self.mode)

    @property
    def end_ms(self) -> int:
        """When it lapses, before any holiday."""
        return min(self.poll_by_ms if self.claim_by_ms is None else self.claim_by_ms, self.give_up_by_ms)

    @property
    def lapse(self) -> str:
        """Which deadline it is that comes first."""
        if self.end_ms == self.give_up_by_ms:
            return "given_up"
        return "claim_lapsed" if self.is_offered else "poll_lapsed"


class Ended(NamedTuple):
    """How a lease or ticket ended: the participle of the entry `seq` that says so. `actor` had it."""

    actor: str
    how: str
    seq: int
    until_ms: int  # the log time at which this may be forgotten


class Endings:
    """How things ended, by their id, for as long as late calls are told precisely. Memory follows a day."""

    __slots__ = ("_ended", "_order", "_slowest_ms")

    def __init__(self) -> None:
        self._slowest_ms = 0
        self._ended: dict[str, Ended] = {}
        self._order: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def note(self, name: str, ended: Ended, now_ms: int) -> None:
        while self._order and self._ended[self._order[0]].until_ms <= now_ms:
            del self._ended[self._order.popleft()]
        if name not in self._ended:  # a forged ledger may end one id twice
            self._order.append(name)
        self._ended[name] = ended

    def lapse(self, late_ms: int) -> None:
        """Something ends by time alone, so long after its effective end."""
        self._slowest_ms = max(self._slowest_ms, late_ms)

    @property
    def slowest_ms(self) -> int:
        """The longest that anything over by time had to wait for the entry that says so."""
        return self._slowest_ms

    def take_back(self, name: str) -> None:
        """Forget how a thing ended, if that was noted last."""
        if self._order and self._order[-1] == name:
            del self._ended[self._order.pop()]

    def of(self, name: str, now_ms: int) -> Ended | None:
        ended = self._ended.get(name)
        return ended if ended is not None and now_ms < ended.until_ms else None
