"""What a record says must stand in an entry: the hot records are compared with the ledger they came from.

A start does this once. Its work is bounded by live state: one entry for each agent and each live lease, read by its
number. It finds what an edit made impossible; that nothing is missing or old is the seal's to say (`seal.py`).
Source: docs/protocol.md 7, 12; docs/operating.md.
"""

from __future__ import annotations

from gateway.core.state import (
    DISPUTE_KEY,
    TOKEN_KEY,
    Agent,
    Dispute,
    Held,
    Lease,
    Operator,
    Record,
    Waits,
    agent_key,
    counter_at,
    held_at,
    held_key,
    lease_at,
    lease_key,
    operator_key,
    wait_key,
)
from gateway.errors import Fatal
from gateway.ledger.live import Live
from gateway.store.contract import Reading
from verifier.entries import Leaf, full_type, parse_leaf
from verifier.wire import JsonObject, Malformed


def check_records(read: Reading, live: Live, size: int) -> None:
    """Compare every hot record with the entries of a ledger of `size`. Fatal at the first that does not fit."""
    for key, record in live.scan(""):
        if not _fits(read, live, key, record):
            raise Fatal(
                f"the record {key} of the store says what no entry of the ledger says; somebody changed it. Keep the"
                " file, and restore a good back-up"
            )
    named = {operator_key(did) for did in _operators(read)}
    found = {key for key, _ in live.scan("operator/")}
    if named != found:
        raise Fatal(
            f"entry 0 names {len(named)} operators, but the store's records have others ({len(found)}); somebody"
            " changed them. Keep the file, and restore a good back-up"
        )
    if size == 1 and len(live) != len(named):
        raise Fatal("the ledger has entry 0 alone, but the store has records of later ones; restore a good back-up")


def _operators(read: Reading) -> tuple[str, ...]:
    opened = _entry(read, 0, "ledger.opened")
    operators = opened.value["operators"] if opened else None
    assert isinstance(operators, list), "entry 0 was compared with the one that is configured"
    return tuple(str(did) for did in operators)


def _fits(read: Reading, live: Live, key: str, record: Record) -> bool:
    match record:
        case Operator(did):
            return key == operator_key(did)
        case Agent():
            return key == agent_key(record.did) and _is_enrolled(read, record)
        case Lease():
            return key == lease_key(record.lease_id) and _is_granted(read, live, record)
        case Held():
            return _is_held(live, key, record)
        case Waits():
            return key == wait_key(record.principal, record.resource)
        case Dispute(seq):
            return key == DISPUTE_KEY and _entry(read, seq, "ledger.disputed") is not None
    return True  # a number of the ledger: what it must be at least, leases say


def _is_enrolled(read: Reading, agent: Agent) -> bool:
    """Say whether the entries that the record names enrolled the key, under this label, and removed it later."""
    added = _entry(read, agent.added_seq, "agent.added")
    if added is None or (added.value["agent"], added.value.get("name")) != (agent.did, agent.name):
        return False
    if agent.removed_seq is None:
        return True
    removed = _entry(read, agent.removed_seq, "agent.removed")
    return agent.removed_seq > agent.added_seq and removed is not None and removed.value["agent"] == agent.did


def _is_granted(read: Reading, live: Live, lease: Lease) -> bool:
    """Say whether the entry granted exactly this lease. Its end may have moved since, but only away."""
    granted = _entry(read, lease.grant_seq, "lease.granted")
    if granted is None:
        return False
    expected: JsonObject = {
        "leaseId": lease.lease_id,
        "actor": lease.holder,
        "principal": lease.principal,
        "onBehalfOf": lease.on_behalf_of,
        "resources": list(lease.resources),
        "mode": lease.mode,
        "fencingToken": lease.fencing_token,
        "timeMs": lease.granted_at_ms,
        "holdUntilMs": lease.hold_until_ms,
    }
    return (
        all(granted.value.get(name) == value for name, value in expected.items())
        and lease.expires_at_ms >= granted.number("expiresAtMs")
        and lease.fencing_token <= counter_at(live, TOKEN_KEY)
        and all(lease.lease_id in held_at(live, resource) for resource in lease.resources)
    )


def _is_held(live: Live, key: str, held: Held) -> bool:
    """Say whether each id is of a live lease on this very resource, and stands once."""
    leases = [lease_at(live, lease_id) for lease_id in held.lease_ids]
    is_each_live = all(lease and key in map(held_key, lease.resources) for lease in leases)
    return is_each_live and len(set(held.lease_ids)) == len(held.lease_ids) > 0


def _entry(read: Reading, seq: int, kind: str) -> Leaf | None:
    """Return entry `seq` if it is there and of this kind."""
    for entry in read.entries(seq, seq + 1):
        try:
            leaf = parse_leaf(entry.leaf)
        except Malformed:
            return None
        return leaf if leaf.seq == seq and leaf.type == full_type(kind) else None
    return None
