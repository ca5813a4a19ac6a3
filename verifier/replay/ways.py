"""What stands in the way: of a request that does not wait, and of a ticket.

Things of other actors count, whose names overlap and whose modes the class of that scheme does not let share. An offer
touches the names of its ticket, so for it a thing counts until the entry that ends it, even when its time has come.
Source: docs/protocol.md 7.1, 23.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from verifier.entries import Leaf, may_share
from verifier.replay.state import State
from verifier.replay.things import Ask, Delay, Lease, Ticket, names_in
from verifier.replay.under import Index

_Thing = TypeVar("_Thing", Lease, Delay, Ticket)


class Way(NamedTuple):
    """What stands in the way, each kind with the one to name first in front."""

    leases: list[Lease]
    delays: list[Delay]
    tickets: list[Ticket]

    @property
    def error(self) -> str | None:
        """What a request that does not wait is told; a deadlock is looked for elsewhere."""
        if self.leases:
            return "lease_held"
        if self.delays:
            return "lock_delayed"
        return "queued" if self.tickets else None


def others(state: State, index: Index[_Thing], ask: Ask) -> Iterator[_Thing]:
    """Yield others' things that exclude the ask, due or not, each once."""
    if not index:
        return
    seen: set[_Thing] = set()
    for key in ask.keys:
        scheme_class = state.schemes.class_of(key)
        for thing in index.near(key):
            if thing in seen or thing.actor == ask.actor or may_share(scheme_class, ask.mode, thing.mode):
                continue
            seen.add(thing)
            yield thing


def meeting(state: State, ask: Ask, thing: Lease | Ticket, *, is_any_mode: bool = False) -> tuple[str, str]:
    """Return the least name asked for that excludes the thing, and the thing's least name that overlaps that.

    `is_any_mode` asks for the least that overlaps it, however they share.
    """
    if ask.keys[0] == thing.keys[0] and len(thing.keys) == 1:
        return ask.names[0], thing.names[0]
    names: Index[str] = Index()
    for name, key in zip(thing.names, thing.keys, strict=True):
        names.add(name, (key,))
    met = (
        (name, min(names.near(key), default=None))
        for name, key in zip(ask.names, ask.keys, strict=True)
        if is_any_mode or not may_share(state.schemes.class_of(key), ask.mode, thing.mode)
    )
    return next(((name, other) for name, other in met if other is not None), ("", ""))


def leases_in(state: State, ask: Ask) -> list[Lease]:
    """Return the live leases in the way: the latest effective end first, then the lowest token."""
    found = [lease for lease in others(state, state.leases, ask) if state.is_live(lease)]
    return sorted(found, key=lambda lease: (-state.end_ms(lease), lease.token))


def delays_in(state: State, ask: Ask) -> list[Delay]:
    """Return the delays in the way: the latest end first, then the oldest."""
    found = [delay for delay in others(state, state.delays, ask) if state.is_live(delay)]
    return sorted(found, key=lambda delay: (-state.end_ms(delay), delay.seq))


def tickets_in(state: State, ask: Ask) -> list[Ticket]:
    """Return the live tickets in the way of a request that does not wait, the lowest number first."""
    found = (it for it in others(state, state.tickets, ask) if state.is_live(it) and _blocks(state, it, is_plain=True))
    return sorted(found, key=lambda ticket: ticket.seq)


def way_of(state: State, ask: Ask) -> Way:
    """Return everything that is live in the way of a request that does not wait."""
    return Way(
        leases_in(state, ask),
        delays_in(state, ask) if state.delays else [],
        tickets_in(state, ask) if state.tickets else [],
    )


def is_free(state: State, ticket: Ticket) -> bool:
    """Say whether no lease and no delay is in the way of a ticket."""
    ask = ticket.ask
    return next(others(state, state.leases, ask), None) is None and not delays_in(state, ask)


def is_behind(state: State, ticket: Ticket) -> bool:
    """Say whether another ticket stands in the way of a queued one."""
    return any(
        (other.seq < ticket.seq or other.is_offered) and _blocks(state, other, is_plain=False)
        for other in others(state, state.tickets, ticket.ask)
    )


def is_claimable(state: State, ticket: Ticket) -> bool:
    """Say whether a ticket was offered and is still free: its own actor may have handed a lease to another."""
    return ticket.is_offered and not leases_in(state, ticket.ask) and not delays_in(state, ticket.ask)


def overlapping(state: State, leaf: Leaf) -> list[Lease]:
    """Return the leases on anything that overlaps a name of a leaf, whoever has them and however they share."""
    return [lease for key in state.schemes.keys(names_in(leaf)) for lease in state.leases.near(key)]


def is_first(state: State, ticket: Ticket) -> bool:
    """Say whether no earlier ticket of another excludes this one, whether it stands in the way or not."""
    return all(other.seq > ticket.seq for other in others(state, state.tickets, ticket.ask))


def _blocks(state: State, ticket: Ticket, *, is_plain: bool) -> bool:
    if ticket.is_offered:
        return True
    if ticket.is_passed and not is_plain:
        return False
    return ticket.is_single or ticket.reserve_until_ms is not None or is_free(state, ticket)
