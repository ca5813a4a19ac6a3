"""Under which words a record is found beside its key."""

from __future__ import annotations

from gateway.core.records import Agent, Delay, Lease, Pending, Record, Session, Ticket, Timed
from gateway.core.terms import (
    PASSED,
    TICKETS,
    agent_of,
    asked_behind,
    asked_by,
    asked_of,
    by,
    filed_under,
    held_behind,
    of_operator,
    session_let_by,
    session_of,
    session_under,
    waited_behind,
    waited_by,
)


def terms_of(record: Record) -> tuple[str, ...]:
    """Return the words under which a record is found beside its key; nothing for a kind that is only looked up."""
    match record:
        case Ticket():
            passed = (PASSED,) if record.is_passed else ()
            who = (waited_by(record.actor), of_operator(record.on_behalf_of))
            behind = () if record.principal == record.actor else (waited_behind(record.principal),)
            return (*_name_terms(record.resources), *who, *behind, TICKETS, *passed)
        case Lease() | Delay():
            behind = () if record.principal == record.holder else (held_behind(record.principal),)
            return (*_name_terms(record.resources), by(record.holder), *behind)
        case Session():
            let = session_let_by(record.let_by)
            return (let, session_of(record.principal), session_under(record.on_behalf_of)) if record.is_open else (let,)
        case Agent() if record.removed_seq is None:
            return (agent_of(record.operator),)
        case Pending():
            live = () if record.ended_seq is not None else (asked_by(record.actor), *map(asked_of, record.approvers))
            return (asked_behind(record.principal), *live)
    return ()


def is_filed_alike(before: Timed, after: Timed) -> bool:
    """Say whether two records under one key are filed under the same words; whose they are never changes.

    A key can be opened again after its session was forgotten, for somebody else.
    """
    if isinstance(before, Session):
        is_same = isinstance(after, Session) and before.opened_seq == after.opened_seq
        return is_same and before.is_open == (isinstance(after, Session) and after.is_open)
    is_passed = isinstance(before, Ticket) and before.is_passed
    return before.resources == after.resources and is_passed == (isinstance(after, Ticket) and after.is_passed)


def _name_terms(resources: tuple[str, ...]) -> tuple[str, ...]:
    if len(resources) == 1:
        return filed_under(resources[0])
    return tuple({term: None for name in resources for term in filed_under(name)})
