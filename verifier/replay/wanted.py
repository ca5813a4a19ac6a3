"""What the entries before a refused request call for, by the type of the refusal.

Source: docs/protocol.md 7.4 to 7.14, 10, 23, 26.3, 27.
"""

from __future__ import annotations

from verifier.entries import Leaf
from verifier.replay.admissions import denied_by
from verifier.replay.approvals import answer_wanted, ask_wanted
from verifier.replay.authority import is_outside_scope
from verifier.replay.decide import (
    Refused,
    acquire,
    is_hold_exceeded,
    is_too_much,
    late,
    late_ticket,
    lease_ask,
    naming,
    refused,
    wait,
)
from verifier.replay.handover import acceptance, lease_seq, receivers, transfer
from verifier.replay.judged import Judged
from verifier.replay.keys import KEY_ACTIONS, key_error
from verifier.replay.leases import change_way
from verifier.replay.roles import due_error
from verifier.replay.rules import loading_error
from verifier.replay.sessions import closing_error
from verifier.replay.setting import is_busy
from verifier.replay.state import State
from verifier.replay.things import Lease, Ticket, names_in
from verifier.replay.ways import Way, is_claimable
from verifier.wire import JsonObject


def wanted_by(state: State, leaf: Leaf, entry: Judged) -> object:
    """Return the refusal that the entries before call for, or anything else when they call for none."""
    if is_outside_scope(state, leaf):
        return Refused("outside_scope")
    asked = leaf.value if entry.asked is None else entry.asked
    match leaf.entry_type.name:
        case "scheme.refused":
            if leaf.actor not in state.people.operators:
                return Refused("operator_required")
            return Refused("scheme_busy") if is_busy(state, leaf.text("name"), asked) else None
        case "lease.refused":
            return _acquire(state, leaf, entry.nonce or "")
        case "renewal.refused":
            return _renewal(state, leaf)
        case "release.refused":
            return _release(state, leaf, entry.created_s)
        case "break.refused":
            return break_of(state, leaf)
        case "transfer.refused":
            return transfer(state, leaf)
        case "acceptance.refused":
            return _acceptance(state, leaf)
        case "claim.refused":
            return _claim(state, leaf)
        case "cancel.refused":
            return late_ticket(state, leaf.actor, _ticket_seq(leaf))
        case "admission.denied":
            return denied_by(state, leaf, entry)
        case "approval.refused":
            return ask_wanted(state, leaf, asked)
        case "giving.refused" | "declining.refused" | "withdrawal.refused":
            return answer_wanted(state, leaf, entry)
        case "beat.refused":
            return Refused("session_required") if leaf.actor not in state.people.sessions else None
    error = _role_error(state, leaf, asked)
    return None if error is None else Refused(error)


def _role_error(state: State, leaf: Leaf, asked: JsonObject) -> str | None:
    if leaf.action == "session.close":
        return closing_error(state, leaf)
    if leaf.action == "rules.load":
        return loading_error(state, leaf)
    return key_error(state, leaf) if leaf.action in KEY_ACTIONS else due_error(state, leaf, asked)


def _acquire(state: State, leaf: Leaf, nonce: str) -> object:
    ask = state.ask(leaf.actor, names_in(leaf), leaf.text("mode"))
    wanted = acquire(state, ask)
    if isinstance(wanted, Way):
        return wait(state, ask, wanted, nonce, None) if leaf.value["wait"] is True else refused(state, ask, wanted)
    return Refused(wanted) if isinstance(wanted, str) and wanted != "lease.granted" else None


def _renewal(state: State, leaf: Leaf) -> object:
    if state.is_disputed:
        return Refused("ledger_disputed")
    lease = late(state, leaf.actor, lease_seq(leaf))
    if isinstance(lease, Refused):
        return lease
    mode = leaf.text("mode") or lease.mode
    if mode == lease.mode:
        return Refused("hold_exceeded") if is_hold_exceeded(state, lease) else None
    ask = lease_ask(lease, mode)
    error = state.schemes.name_error(ask.names, mode)
    if error is not None:
        return Refused(error)
    way = change_way(state, ask, lease)
    return None if way.error is None else refused(state, ask, way)


def _release(state: State, leaf: Leaf, created_s: int) -> Refused | None:
    if "leaseId" not in leaf.value:
        return _blind_release(state, leaf, created_s)
    found = late(state, leaf.actor, lease_seq(leaf))
    if isinstance(found, Lease):
        is_same = set(state.schemes.keys(names_in(leaf))) == set(found.keys)
        return None if is_same else Refused("lease_mismatch")
    return None if found.error == "lease_released" else found


def _blind_release(state: State, leaf: Leaf, created_s: int) -> Refused | None:
    """A release that names no lease ends none that was granted after it was signed."""
    ask = state.ask(leaf.actor, names_in(leaf), "write")
    return Refused("not_holder") if state.meant(ask, created_s) is None else None


def _acceptance(state: State, leaf: Leaf) -> object:
    if state.is_disputed:
        return Refused("ledger_disputed")
    lease = late(state, leaf.actor, lease_seq(leaf), by_anyone=True)
    if isinstance(lease, Refused):
        return lease
    if lease.offer is None or lease.offer.to != leaf.actor:
        return Refused("not_offered")
    wanted = acceptance(state, leaf.actor, lease)
    if isinstance(wanted, str):
        return Refused(wanted)
    return None if wanted.error is None else refused(state, receivers(leaf.actor, lease), wanted, may_deadlock=False)


def _claim(state: State, leaf: Leaf) -> object:
    if state.is_disputed:
        return Refused("ledger_disputed")
    ticket = late_ticket(state, leaf.actor, _ticket_seq(leaf))
    if isinstance(ticket, Ticket) and is_claimable(state, ticket) and is_too_much(state, ticket.ask):
        return Refused("too_many_held")
    return ticket


def break_of(state: State, leaf: Leaf) -> Refused | Lease | int:
    """Return the refusal of a break, the lease that it ends, or the seq of the entry that broke it before."""
    if leaf.actor not in state.people.operators:
        return Refused("operator_required")
    ask = state.ask(leaf.actor, (leaf.text("resource"),), "write")
    leases = [lease for lease in state.leases.near(ask.keys[0]) if state.is_live(lease)]
    token = leaf.number("seenToken")
    seen = [lease for lease in leases if lease.token == token]
    if seen:
        return seen[0]
    broken = state.ended(f"B{token}")
    if broken is not None:
        return broken.seq
    told: JsonObject = {}
    if leases:
        told = naming(state, ask, min(leases, key=lambda lease: (-state.end_ms(lease), lease.token)))
    return Refused("token_stale", told)


def _ticket_seq(leaf: Leaf) -> int:
    return int(leaf.text("ticketId")[1:])
