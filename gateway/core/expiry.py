"""Lets go what has come to its end by time alone: everything that is due, or what a command is about to touch.

A lease ends when log time has reached its effective end, never before. Whoever asks, the entry `lease.expired` is
written first and only then is the resource looked at; so a decision never meets a lease that is live on paper only. The
same holds for a ticket, for a session with all it holds, and for the delay after a lease that ended badly, which ends
without an entry.

Source: docs/protocol.md 6.3, 7.7, 7.12, 18.4, 29.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.draft import Draft
from gateway.core.holding import end_delay, end_lease, ended_members
from gateway.core.intake import SignedRequest, commands_of
from gateway.core.lifecycle import LIFECYCLE, Event, Standing
from gateway.core.lookup import counter_at, lease_at, session_at, ticket_at
from gateway.core.outcome import Context, Decision, granted
from gateway.core.record_keys import HOLIDAY_KEY, ask_key, claim_key, session_key
from gateway.core.records import Agent, Claim, Delay, Lease, Pending, Session, Ticket, Timed
from gateway.core.resource import claims_on, end_ms
from gateway.core.settle import lapse_ticket
from gateway.core.terms import agent_of, session_of, session_under
from gateway.core.trust import lose
from gateway.core.windup import held_by, queued_by, time_out
from verifier.entries import resources_of
from verifier.wire import JsonObject

EXPIRIES_MAX = 256  # In one sweep, so that a mass of expiries never keeps a renewal waiting for long.


def due_claims(draft: Draft, t_ms: int) -> tuple[Timed, ...]:
    """Return what is due, the oldest first, ties by number; at most EXPIRIES_MAX, if not all of these are delays.

    A delay ends without an entry, and a batch without entries is not kept: what comes behind many of them would wait
    for ever.
    """
    if t_ms < counter_at(draft, HOLIDAY_KEY):
        return ()
    count = EXPIRIES_MAX
    while True:
        due = draft.due(t_ms, count)
        if len(due) < count or not all(isinstance(one, Delay) for one in due):
            return due
        count *= 4


def touched_claims(draft: Draft, request: SignedRequest, t_ms: int) -> tuple[Timed, ...]:
    """Return what a request would touch and is due, in the order of a sweep: what stands on its names, sessions that
    hold or wait there, the actor's own, that whose ask it answers, and everything of those whom it ends."""
    if t_ms < counter_at(draft, HOLIDAY_KEY):
        return ()
    touched: dict[str, Timed] = {}
    for body in (request.body, *(command.body for command in commands_of(request))):
        touched |= {claim_key(claim): claim for claim in _on_names(draft, body)}
    actors = {request.actor, *(claim.holder for claim in touched.values() if not isinstance(claim, Session))}
    pending = draft.get(ask_key(str(request.body.get("askId"))))
    if isinstance(pending, Pending):
        actors.add(pending.actor)
    ended = _ended_by(draft, request.body)
    for did in ended:
        touched |= {claim_key(claim): claim for claim in _had_by(draft, did)}
    for did in actors | ended:
        session = session_at(draft, did)
        if session is not None and session.is_open:
            touched[session_key(did)] = session
    due = (one for one in touched.values() if one.due_at_ms <= t_ms)
    return tuple(sorted(due, key=lambda one: (one.due_at_ms, one.number)))


def _on_names(draft: Draft, body: JsonObject) -> Iterable[Claim]:
    named = _named(draft, body)
    names = {name for claim in named for name in claim.resources} | set(resources_of(body))
    if "class" in body:  # a scheme is changed as a whole
        names.add(f"{body['name']}:**")
    return (*named, *claims_on(draft, sorted(names)))


def _ended_by(draft: Draft, body: JsonObject) -> set[str]:
    """Return the keys that a request would end: the session, agent or operator it names, and who hangs on these."""
    ended: set[str] = set()
    for member, words in (("session", ()), ("agent", (session_of,)), ("operator", (agent_of, session_under))):
        did = body.get(member)
        if isinstance(did, str):
            found = (draft.get(key) for word in words for key in draft.near(word(did)))
            ended |= {did, *(one.did for one in found if isinstance(one, Agent | Session))}
    return ended


def _had_by(draft: Draft, did: str) -> Iterable[Claim]:
    yield from held_by(draft, did)
    yield from queued_by(draft, did)


def _named(draft: Draft, body: JsonObject) -> list[Claim]:
    """Return the lease and the ticket that a body names by id."""
    lease_id, ticket_id = body.get("leaseId"), body.get("ticketId")
    lease = lease_at(draft, lease_id) if isinstance(lease_id, str) else None
    ticket = ticket_at(draft, ticket_id) if isinstance(ticket_id, str) else None
    return [claim for claim in (lease, ticket) if claim is not None]


def lapse(draft: Draft, one: Timed, context: Context) -> Decision | None:
    """Do what time has come for, and return its entry; a delay ends without one."""
    match one:
        case Lease():
            return expire(draft, one, context)
        case Ticket():
            return lapse_ticket(draft, one, context)
        case Session():
            return time_out(draft, one, context)
        case Delay():
            end_delay(draft, one, context)
            return None


def expire(draft: Draft, lease: Lease, context: Context) -> Decision:
    """End a lease whose time has come and return its entry. Its holder, and who just gave it away, lose trust."""
    assert end_ms(draft, lease) <= context.t_ms, "no lease ends before its time"
    step = LIFECYCLE[Standing.LIVE, Event.END_REACHED]
    assert step.entry is not None, "an expiry is an entry"
    delayed = end_lease(draft, lease, "expired", context)
    losers = [lease.principal]
    if lease.giver is not None and lease.expires_at_ms <= lease.giver_until_ms:
        losers.append(lease.giver)
    members = ended_members(lease) | {"expiresAtMs": lease.expires_at_ms}
    return granted(step.entry, members | delayed | lose(draft, losers, context))
