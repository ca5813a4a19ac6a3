"""The rules of those entries about which the leaf says all that they ask: one for each type.

What needs the request as well, or tells of more than one entry, is in relations.py.
Source: docs/protocol.md 17.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from verifier.entries import Leaf
from verifier.replay import approvals, ends, handover, keys, leases, sessions, tickets
from verifier.replay.refusals import repeat_faults
from verifier.replay.roles import role_faults
from verifier.replay.state import State
from verifier.replay.things import Faults

BY_LEAF: Mapping[str, Callable[[State, Leaf], Faults]] = MappingProxyType(
    {
        "lease.granted": leases.granted_faults,
        "lease.extended": ends.prolonged_faults,
        "lease.renewed": ends.prolonged_faults,
        "lease.expired": ends.expired_faults,
        "lease.claimed": tickets.claimed_faults,
        "lease.changed": leases.changed_faults,
        "lease.transferred": handover.transferred_faults,
        "lease.broken": ends.broken_faults,
        "transfer.offered": handover.offered_faults,
        "release.repeated": repeat_faults,
        "break.repeated": repeat_faults,
        "wait.polled": tickets.polled_faults,
        "wait.cancelled": tickets.cancelled_faults,
        "wait.offered": tickets.offered_faults,
        "wait.reserved": tickets.reserved_faults,
        "wait.resumed": tickets.resumed_faults,
        "operator.added": role_faults,
        "agent.added": role_faults,
        "apikey.issued": role_faults,
        "apikey.revoked": role_faults,
        "approval.asked": approvals.asked_faults,
        "session.seen": sessions.idle_faults,
        "closing.repeated": sessions.repeated_faults,
        "ledger.opened": keys.opening_faults,
        "key.announced": keys.key_faults,
        "key.retired": keys.key_faults,
        "key.compromised": keys.key_faults,
    }
)
