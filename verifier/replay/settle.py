"""Who is next: the offers and reservations that an entry calls for, and that come right after it.

After every entry that frees or takes something those in line for it are looked at, in order of number. So a gateway can
neither keep what is free from whom it belongs to, nor give it to the second in line.
Source: docs/protocol.md 23.
"""

from __future__ import annotations

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
    """Those in line, as far as something has changed for them."""

    __slots__ = ("_keys", "_last", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._keys: dict[str, None] = {}
        self._last = -1  # all up to this number were looked at since everybody was at rest

    def next(self) -> Call | None:
        """Return what has to come next, None when all who are concerned have to go on waiting."""
        state = self._state
        for thing in state.take_stirred():
            self._keys.update(dict.fromkeys(thing.keys))
        known = -1
        while known != len(self._keys):  # whoever comes to be passed over lets those behind it go first
            known = len(self._keys)
            call = self._pass()
            if call is not None:
                return call
        self.rest()
        return None

    def _pass(self) -> Call | None:
        """Look at all who are concerned, the lowest number first."""
        state = self._state
        first: dict[str, str] = {}  # by key, whose ticket of one name was met first where nobody shares
        for ticket in self._concerned():
            key = ticket.keys[0]
            if ticket.is_single and first.get(key, ticket.actor) != ticket.actor and not ticket.is_passed:
                continue  # behind that one, however long the line is
            call = self._look(ticket)
            if call is not None:
                return call
            if ticket.is_single and not ticket.is_passed and not may_share(state.schemes.class_of(key), "read", "read"):
                first.setdefault(key, ticket.actor)
        return None

    def _look(self, ticket: Ticket) -> Call | None:
        """Return what has to come for one ticket."""
        state = self._state
        if ticket.is_offered or not state.is_live(ticket):
            return None
        if ticket.first_since_ms is None and not ticket.is_single and is_first(state, ticket):
            ticket.first_since_ms = state.now_ms
        if ticket.passes >= state.numbers["passesMax"] and may_reserve(state, ticket):
            return Call("wait.reserved", ticket)
        # An offer frees nothing, so whoever was before it need not be looked at again.
        if ticket.seq <= self._last or not self._may_offer(ticket):
            return None
        self._last = ticket.seq - 1
        return Call("wait.offered", ticket)

    def rest(self) -> None:
        """Nobody has to be looked at until something changes."""
        self._keys.clear()
        self._last = -1

    def _may_offer(self, ticket: Ticket) -> bool:
        """Say whether a ticket has to be offered; note when it is passed over."""
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
            self._keys.update(dict.fromkeys(ticket.keys))
        return False

    def _concerned(self) -> list[Ticket]:
        """Return the tickets that a change may let go first, the lowest number first."""
        if not self._keys:
            return []
        state = self._state
        found = {ticket: None for key in self._keys for ticket in state.tickets.near(key)}
        for ticket in [ticket for ticket in found if not ticket.is_single]:
            found.update({it: None for key in ticket.keys for it in state.tickets.near(key)})
        return sorted(found | state.passed, key=lambda ticket: ticket.seq)


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
    for ticket in dict.fromkeys(others(state, state.tickets, taken)):
        is_before = not ticket.is_offered and (number is None or ticket.seq < number)
        if not ticket.is_single and is_before and state.is_live(ticket):
            ticket.passes += 1
