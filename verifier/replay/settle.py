"""Who is next: the offers and reservations that an entry calls for, and that come right after it.

After every entry that frees or takes something those in line for it are looked at, in order of number. So a gateway can
neither keep what is free from whom it belongs to, nor give it to the second in line.
Source: docs/protocol.md 23.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from verifier.entries import may_share
from verifier.replay.graph import closes_cycle
from verifier.replay.state import State
from verifier.replay.things import Ask, Ticket
from verifier.replay.ways import is_behind, is_first, is_free, others


class Call(NamedTuple):
    """An entry that has to come next: `wait.offered` or `wait.reserved` of a ticket."""

    entry: str
    ticket: Ticket

    @property
    def code(self) -> str:
        """What a finding is called when it does not come."""
        return "offer_missing" if self.entry == "wait.offered" else "reservation_missing"


class Line:
    """Those in line, as far as something has changed for them: one upward pass over their numbers.

    The entries that it calls for come while it is under way, so it lasts from one that changes something until nobody
    is left to look at. Meanwhile nobody joins or leaves, and each key is looked up once.
    """

    __slots__ = ("_at", "_first", "_keys", "_numbers", "_state", "_told")

    def __init__(self, state: State) -> None:
        self._state = state
        self._numbers: list[int] = []  # a heap: whom to look at
        self._told: set[int] = set()  # all that were on it
        self._keys: set[str] = set()  # whoever is on these has been found
        self._first: dict[str, str] = {}  # by key, whose ticket of one name was met first where nobody shares
        self._at = -1  # the number looked at last

    def next(self) -> Call | None:
        """Return what has to come next, None when all who are concerned have to go on waiting."""
        self._take_in()
        while self._numbers:
            ticket = self._state.ticket.get(self._numbers[0])
            call = None if ticket is None else self._look(ticket)
            if call is not None:
                return call  # looked at once more when that has come
            heappop(self._numbers)
        self.rest()
        return None

    def rest(self) -> None:
        """Nobody has to be looked at until something changes."""
        self._numbers.clear()
        self._told.clear()
        self._keys.clear()
        self._first.clear()
        self._at = -1

    def _take_in(self) -> None:
        """Find whom it concerns what has changed."""
        stirred, summoned = self._state.take_changes()
        for ticket in summoned:  # perhaps not for the first time
            heappush(self._numbers, ticket.seq)
            self._told.add(ticket.seq)
        if stirred or summoned:
            self._add(self._state.passed)
        for thing in stirred:
            self._concern(thing.keys)

    def _concern(self, keys: tuple[str, ...]) -> None:
        """Look at those on these names, and at those on the names of a ticket for several among them."""
        near = self._on(keys)
        further = [other for ticket in near if not ticket.is_single for other in self._on(ticket.keys)]
        self._add((*near, *further))

    def _on(self, keys: tuple[str, ...]) -> list[Ticket]:
        new = [key for key in keys if key not in self._keys]
        self._keys.update(new)
        return [ticket for key in new for ticket in self._state.tickets.near(key)]

    def _add(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            if ticket.seq > self._at and ticket.seq not in self._told:
                self._told.add(ticket.seq)
                heappush(self._numbers, ticket.seq)

    def _look(self, ticket: Ticket) -> Call | None:
        """Return what has to come for one ticket."""
        state, key = self._state, ticket.keys[0]
        if ticket.is_offered or not state.is_live(ticket):
            return None
        if ticket.passes >= state.numbers["passesMax"] and may_reserve(state, ticket):
            return Call("wait.reserved", ticket)
        if ticket.seq < self._at:  # an offer frees nothing for who was before it
            return None
        self._at = ticket.seq
        if ticket.first_since_ms is None and not ticket.is_single and is_first(state, ticket):
            ticket.first_since_ms = state.now_ms
        if ticket.is_single and self._first.get(key, ticket.actor) != ticket.actor and not ticket.is_passed:
            return None  # behind that one, however long the line is
        may_offer = self._may_offer(ticket)
        if ticket.is_single and not ticket.is_passed and not may_share(state.schemes.class_of(key), "read", "read"):
            self._first.setdefault(key, ticket.actor)
        return Call("wait.offered", ticket) if may_offer else None

    def _may_offer(self, ticket: Ticket) -> bool:
        """Say whether a ticket has to be offered; when it comes to be passed over, that concerns those behind it."""
        state, was_passed = self._state, ticket.is_passed
        ticket.is_passed = False
        state.passed.pop(ticket, None)
        if not is_free(state, ticket) or is_behind(state, ticket):
            return False
        if not closes_cycle(state, ticket):
            return True
        ticket.is_passed = True
        state.passed[ticket] = None
        if not was_passed:
            self._concern(ticket.keys)
        return False


def may_reserve(state: State, ticket: Ticket) -> bool:
    """Say whether a ticket for several resources may keep what is free: it was passed too often, or first too long."""
    if ticket.is_single or ticket.is_offered or ticket.has_reserved:
        return False
    return ticket.passes >= state.numbers["passesMax"] or state.now_ms >= reserve_at_ms(state, ticket)


def reserve_at_ms(state: State, ticket: Ticket) -> int:
    """Return from when on a ticket may reserve by time; far away while others are before it."""
    if ticket.first_since_ms is None:
        return 1 << 62
    return max(ticket.first_since_ms + state.numbers["reserveAfterMs"], state.holiday_ms)


def has_reserved_in_vain(state: State, ticket: Ticket) -> bool:
    """Say whether the reservation of a ticket is over though nothing was offered to it. In a holiday none is."""
    if ticket.reserve_until_ms is None or ticket.is_offered:
        return False
    return state.now_ms >= max(ticket.reserve_until_ms, state.holiday_ms)


def pass_by(state: State, taken: Ask, number: int | None) -> None:
    """Count a pass for every earlier queued ticket for several resources that `taken` goes before."""
    for ticket in others(state, state.tickets, taken):
        is_before = not ticket.is_offered and (number is None or ticket.seq < number)
        if not ticket.is_single and is_before and state.is_live(ticket):
            ticket.passes += 1
            if ticket.passes == state.numbers["passesMax"]:
                state.summon(ticket)
