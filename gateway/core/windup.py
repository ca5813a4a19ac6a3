"""What a key leaves behind when it is done: everything it holds is given back, once, by entries of its own.

They follow the entry that is the cause with nothing in between: first every session that ends by it, then the tickets,
then the leases of all of them, each in order of number. Only then are those looked at who wait for what became free.
What they asked to have approved ends by the same entries, without one of its own.

Source: docs/protocol.md 29.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from gateway.core.deadlock import asks_near
from gateway.core.draft import Draft, View
from gateway.core.holding import end_lease, ended_members, forget_edge
from gateway.core.lifecycle import LIFECYCLE, Event, Standing
from gateway.core.lookup import session_at
from gateway.core.outcome import Context, Decision, granted
from gateway.core.record_keys import ask_key, session_key
from gateway.core.records import Dismissal, Lease, Session, Ticket
from gateway.core.resource import claims_near
from gateway.core.settle import end_ticket, waiter_members
from gateway.core.terms import asked_by, by, waited_by
from gateway.core.trust import lose
from verifier.wire import JsonObject


def held_by(view: Draft | View, actor: str) -> list[Lease]:
    """Return the leases of a key, lapsed or not, the oldest first."""
    found = (claim for claim in claims_near(view, by(actor)) if isinstance(claim, Lease) and claim.holder == actor)
    return sorted(set(found), key=attrgetter("grant_seq"))


def queued_by(view: Draft | View, actor: str) -> list[Ticket]:
    """Return the tickets of a key, lapsed or not, the oldest first."""
    found = (claim for claim in claims_near(view, waited_by(actor)) if isinstance(claim, Ticket))
    return sorted(set(found), key=attrgetter("seq"))


def given_back(view: Draft | View, did: str) -> JsonObject:
    """Return how much the end of a key gives back: the members `leases` and `tickets`."""
    return {"leases": len(held_by(view, did)), "tickets": len(queued_by(view, did))}


def open_sessions(view: Draft | View, term: str) -> tuple[Session, ...]:
    """Return the open sessions filed under a word of `terms.py`, the oldest first."""
    found = {record for key in view.near(term) if isinstance(record := view.get(key), Session) and record.is_open}
    return tuple(sorted(found, key=attrgetter("opened_seq")))


def end_session(draft: Draft, session: Session, seq: int) -> None:
    """A session is ended by the entry `seq`; it is remembered for a day longer than its delegation."""
    draft.put(session_key(session.did), session._replace(ended_seq=seq))


def time_out(draft: Draft, session: Session, context: Context) -> Decision:
    """End a session that was not heard of for too long, or whose time is over. Its agent answers for leases it left."""
    members = _ended(draft, session, "expired" if context.t_ms >= session.expires_at_ms else "idle")
    lost = lose(draft, [session.principal], context) if members["leases"] else {}
    end_session(draft, session, context.seq)
    draft.dismiss(Dismissal((session.did,), (), context.seq))
    return granted("session.ended", members | lost)


def _ended(draft: Draft, session: Session, reason: str) -> JsonObject:
    return {
        "session": session.did,
        "openedSeq": session.opened_seq,
        "reason": reason,
        **given_back(draft, session.did),
    }


def wind_up(draft: Draft, context: Callable[[], Context]) -> Iterator[Decision]:
    """Give back what the dismissed hold, and yield each entry of it; `context` gives the number of the next one."""
    for dismissal in draft.take_dismissed():
        causes = dict.fromkeys(dismissal.actors, dismissal.cause_seq)
        for known in dismissal.sessions:
            session = session_at(draft, known.did)
            assert session is not None and session.is_open, "a session ends once"
            causes[session.did] = context().seq
            members = _ended(draft, session, "revoked") | {"causeSeq": dismissal.cause_seq}
            end_session(draft, session, context().seq)
            yield granted("session.ended", members)
        for actor, cause_seq in causes.items():
            _end_asks(draft, actor, cause_seq, context().t_ms)
        yield from _leave(draft, causes, context)
        for lease, cause_seq in _oldest_first(draft, causes):
            yield _return(draft, lease, cause_seq, dismissal.is_delayed, context())


def _end_asks(draft: Draft, actor: str, cause_seq: int, t_ms: int) -> None:
    """What a key asked to have approved ends with it, by the entry `cause_seq`."""
    for pending in asks_near(draft, asked_by(actor), t_ms):
        draft.put(ask_key(pending.ask_id), pending._replace(how="dismissed", ended_seq=cause_seq, ended_at_ms=t_ms))


def _leave(draft: Draft, actors: Iterable[str], context: Callable[[], Context]) -> Iterator[Decision]:
    """Take the actors out of every line."""
    tickets = [ticket for actor in actors for ticket in queued_by(draft, actor)]
    for ticket in sorted(tickets, key=attrgetter("seq")):
        end_ticket(draft, ticket, "removed", context())
        yield granted("wait.removed", waiter_members(ticket) | {"reason": "holder_gone"})


def _oldest_first(draft: Draft, causes: dict[str, int]) -> list[tuple[Lease, int]]:
    """Return what the actors hold with the entry that ends it; none of them waits for anything from here on."""
    for actor in causes:
        forget_edge(draft, actor)
    held = [(lease, cause_seq) for actor, cause_seq in causes.items() for lease in held_by(draft, actor)]
    return sorted(held, key=lambda pair: pair[0].grant_seq)


def _return(draft: Draft, lease: Lease, cause_seq: int, is_delayed: bool, context: Context) -> Decision:
    step = LIFECYCLE[Standing.LIVE, Event.HOLDER_ENDED]
    assert step.entry is not None, "what is given back is an entry"
    delayed = end_lease(draft, lease, "returned", context, is_delayed=is_delayed)
    return granted(step.entry, ended_members(lease) | {"causeSeq": cause_seq} | delayed)
