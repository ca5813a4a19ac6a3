"""What the end of a session, an agent or an operator gives back: entries right after it, in one order, each once.

First the sessions that end by it, then the tickets of all concerned, then their leases. Nothing stands between; only
then are those looked at who wait for what became free.
Source: docs/protocol.md 29.3, 29.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from verifier.entries import Leaf
from verifier.replay.ends import delay_faults, delay_until_ms, same_faults
from verifier.replay.people import Session
from verifier.replay.state import State
from verifier.replay.things import Faults

_NUMBERS = {"session.ended": "openedSeq", "wait.removed": "ticketSeq", "lease.returned": "grantSeq"}


class Due(NamedTuple):
    """An entry that has to come, and the number of the session, ticket or lease that it is about."""

    entry: str
    number: int


class Returns:
    """What has still to come for the cause `cause_seq`; `is_called` says that the entry looked at is part of it."""

    __slots__ = ("_due", "_state", "_time_ms", "cause_seq", "is_called")

    def __init__(self, state: State) -> None:
        self._state = state
        self._due: deque[Due] = deque()
        self.cause_seq = -1
        self._time_ms = 0  # of the cause
        self.is_called = False

    def __bool__(self) -> bool:
        return bool(self._due)

    def begin(self, cause_seq: int, actors: Iterable[str], sessions: Iterable[Session] = ()) -> None:
        """The entry `cause_seq` ends these actors; the sessions among them end by entries of their own."""
        state, ended = self._state, sorted(sessions, key=lambda session: session.opened_seq)
        everybody = dict.fromkeys((*actors, *(session.did for session in ended)))
        tickets = sorted(ticket.seq for did in everybody for ticket in state.tickets_of.get(did, ()))
        leases = sorted(lease.seq for did in everybody for lease in state.leases_of.get(did, ()))
        self.cause_seq, self._time_ms = cause_seq, state.now_ms
        for did in everybody.keys() - {session.did for session in ended}:
            state.pleas.dismiss(did, cause_seq, state.now_ms)
        self._due.extend(Due("session.ended", session.opened_seq) for session in ended)
        self._due.extend(Due("wait.removed", number) for number in tickets)
        self._due.extend(Due("lease.returned", number) for number in leases)
        for did in everybody:
            state.edges.pop(did, None)

    def faults(self, leaf: Leaf, name: str) -> Faults:
        """Is the next entry the one that has to come? After one that is not nothing more is expected."""
        if not self._due:
            return
        found, wanted = Due(name, leaf.number(_NUMBERS.get(name, ""))), self._due[0]
        if found in self._due:
            self.is_called = True
            self._due.remove(found)
            if found != wanted:
                yield "return_disordered", f"{wanted.entry} of {wanted.number} comes before this one (29.4)"
            if leaf.time_ms != self._time_ms:
                yield "return_late", f"timeMs is not that of entry {self.cause_seq}, the cause (29.4)"
            return
        self._due.clear()
        yield "return_missing", f"{wanted.entry} of {wanted.number} comes right after entry {self.cause_seq} (29.4)"

    def returned_faults(self, leaf: Leaf) -> Faults:
        """`lease.returned`: the lease of an actor that has ended, whether it is over by time or not."""
        state = self._state
        lease = state.lease.get(leaf.number("grantSeq"))
        if lease is None:
            yield "citation_wrong", "grantSeq is not a grant that is still live (12.6)"
            return
        yield from same_faults(state, leaf, lease)
        session = state.people.sessions.get(lease.actor)
        cause_seq = self.cause_seq if session is None or session.ended_seq is None else session.ended_seq
        if not self.is_called:
            yield "return_wrong", "nothing that ended calls for the return of this lease (29.4)"
        elif leaf.number("causeSeq") != cause_seq:
            yield "citation_wrong", f"causeSeq is not {cause_seq}, the entry by which the holder ended (29.4)"
        is_tidy = session is not None and session.is_tidy
        yield from delay_faults(state, leaf, lease, is_none=is_tidy)
        state.end(lease, "returned", leaf.seq, delay_until_ms(leaf))


def removal(state: State, leaf: Leaf) -> tuple[list[str], list[Session]]:
    """Return whom `agent.removed` or `operator.removed` ends: the actors themselves, and the sessions behind them."""
    people = state.people
    if "agent" in leaf.value:
        did = leaf.text("agent")
        return [did], [*people.of.get(did, ())]
    did = leaf.text("operator")
    agents = [other for other, agent in people.agents.items() if agent.operator == did and not agent.is_removed]
    return [did, *agents], [session for session in people.open.values() if session.operator == did]
