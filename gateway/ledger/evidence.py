"""What a record says must stand in an entry: the hot records are compared with the ledger they came from.

A start does this once. Its work is bounded by live state: one or two entries for each record, read by their number. It
finds what an edit made impossible; that nothing is missing or old is the seal's to say (`seal.py`).
Source: docs/protocol.md 7, 12; docs/operating.md.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping

from gateway.core.state import (
    DISPUTE_KEY,
    TICKETS_KEY,
    TOKEN_KEY,
    Agent,
    Counter,
    Delay,
    Dispute,
    Edge,
    Handover,
    Lease,
    Operator,
    Principal,
    Record,
    Scheme,
    Ticket,
    Waits,
    agent_key,
    counter_at,
    delay_key,
    edge_key,
    handover_key,
    lease_key,
    operator_key,
    principal_key,
    scheme_key,
    ticket_key,
    wait_key,
)
from gateway.errors import Fatal
from gateway.ledger.live import Live
from gateway.store.contract import Reading
from verifier.entries import GRANTS, Leaf, full_type, parse_leaf, rows_of
from verifier.wire import JsonObject, JsonValue, Malformed

_HELD_BACK = ("lease.refused", "renewal.refused", "acceptance.refused")


def check_records(read: Reading, live: Live, size: int) -> None:
    """Compare every hot record with the entries of a ledger of `size`. Fatal at the first that does not fit."""
    book = _Book(read, live)
    for key, record in live.scan(""):
        if not book.fits(key, record):
            raise Fatal(
                f"the record {key} of the store says what no entry of the ledger says; somebody changed it. Keep the"
                " file, and restore a good back-up"
            )
    named = {operator_key(did) for did in book.operators}
    found = {key for key, _ in live.scan("operator/")}
    if named != found:
        raise Fatal(
            f"entry 0 names {len(named)} operators, but the store's records have others ({len(found)}); somebody"
            " changed them. Keep the file, and restore a good back-up"
        )
    if size == 1 and len(live) != len(named):
        raise Fatal("the ledger has entry 0 alone, but the store has records of later ones; restore a good back-up")


class _Book:
    """A ledger and its records side by side, for one comparison."""

    def __init__(self, read: Reading, live: Live) -> None:
        self._read = read
        self._live = live
        opened = self._entry(0, "ledger.opened")
        assert opened is not None, "entry 0 was compared with the one that is configured"
        self.operators = tuple(map(str, _list(opened.value["operators"])))
        parameters = opened.value["parameters"]
        assert isinstance(parameters, dict), "the table says so"
        self._numbers = parameters
        self._tickets = sum(1 for _ in live.scan("ticket/"))
        self._held: Tally[str] = Tally()  # names of leases and delays, by principal
        for _, record in (*live.scan("lease/"), *live.scan("delay/")):
            if isinstance(record, Lease | Delay):
                self._held[record.principal] += len(record.resources)

    def fits(self, key: str, record: Record) -> bool:
        match record:
            case Operator(did):
                return key == operator_key(did)
            case Agent():
                return key == agent_key(record.did) and self._is_enrolled(record)
            case Scheme():
                return key == scheme_key(record.name) and self._is_set(record)
            case Lease():
                return key == lease_key(record.lease_id) and self._is_granted(record)
            case Handover():
                return key == handover_key(record.lease_id) and self._is_offered(record)
            case Delay():
                return key == delay_key(record.lease_id) and self._is_delayed(record)
            case Ticket():
                return key == ticket_key(record.ticket_id) and self._is_queued(record)
            case Edge():
                return key == edge_key(record.actor) and self._is_refused(record)
            case Principal():
                return key == principal_key(record.did) and self._is_counted(record)
            case Waits():
                return key == wait_key(record.principal, record.resource)
            case Dispute(seq):
                return key == DISPUTE_KEY and self._entry(seq, "ledger.disputed") is not None
            case Counter(value) if key == TICKETS_KEY:
                return value == self._tickets
        return isinstance(record, Counter)  # what the other numbers must be at least, leases say

    def _is_enrolled(self, agent: Agent) -> bool:
        """Say whether the entries that the record names enrolled the key, under this label, and removed it later."""
        added = self._entry(agent.added_seq, "agent.added")
        if added is None or (added.value["agent"], added.value.get("name")) != (agent.did, agent.name):
            return False
        if agent.removed_seq is None:
            return True
        removed = self._entry(agent.removed_seq, "agent.removed")
        return agent.removed_seq > agent.added_seq and removed is not None and removed.value["agent"] == agent.did

    def _is_set(self, scheme: Scheme) -> bool:
        entry = self._entry(scheme.seq, "scheme.set")
        return entry is not None and _says(
            entry,
            {
                "name": scheme.name,
                "class": scheme.class_name,
                "isFolding": scheme.is_folding,
                "isUnicode": scheme.is_unicode,
                "lockDelayMs": scheme.lock_delay_ms,
                "maxHoldMs": scheme.max_hold_ms,
            },
        )

    def _is_granted(self, lease: Lease) -> bool:
        """Say whether the entry made exactly this lease. Its end may have moved since, but only away."""
        granted = self._grant(lease.grant_seq)
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
        giver_until_ms = 0 if lease.giver is None else granted.number("expiresAtMs")
        return (
            _says(granted, expected)
            and (granted.value.get("giver"), giver_until_ms) == (lease.giver, lease.giver_until_ms)
            and lease.expires_at_ms >= granted.number("expiresAtMs")
            and lease.fencing_token <= counter_at(self._live, TOKEN_KEY)
            and self._live.get(principal_key(lease.principal)) is not None
        )

    def _is_offered(self, offer: Handover) -> bool:
        """Say whether the entry offered this live lease to this actor, and by whom."""
        entry = self._entry(offer.seq, "transfer.offered")
        if entry is None or self._live.get(lease_key(offer.lease_id)) is None:
            return False
        is_by_operator = entry.value["holder"] != entry.actor
        return _says(entry, {"leaseId": offer.lease_id, "toDid": offer.to_did, "actor": offer.by}) and (
            is_by_operator == offer.is_operator
        )

    def _is_delayed(self, delay: Delay) -> bool:
        """Say whether the entry ended the lease badly and keeps others out until then."""
        ended = self._entry(delay.seq, "lease.expired", "lease.broken")
        granted = self._grant(ended.number("grantSeq")) if ended is not None else None
        if ended is None or granted is None:
            return False
        expected: JsonObject = {
            "leaseId": delay.lease_id,
            "holder": delay.holder,
            "resources": list(delay.resources),
            "delayUntilMs": delay.ends_at_ms,
        }
        is_counted = self._live.get(principal_key(delay.principal)) is not None
        return (
            _says(ended, expected)
            and _says(granted, {"mode": delay.mode, "principal": delay.principal})
            and is_counted
        )  # fmt: skip

    def _is_queued(self, ticket: Ticket) -> bool:
        """Say whether the entry queued exactly this ticket. Its time to poll may have moved since, but only away."""
        queued = self._entry(ticket.seq, "wait.queued")
        if queued is None:
            return False
        expected: JsonObject = {
            "ticketId": ticket.ticket_id,
            "actor": ticket.actor,
            "principal": ticket.principal,
            "onBehalfOf": ticket.on_behalf_of,
            "resources": list(ticket.resources),
            "mode": ticket.mode,
            "ttlMs": ticket.ttl_ms,
            "timeMs": ticket.queued_at_ms,
            "giveUpByMs": ticket.give_up_by_ms,
        }
        is_counted = self._live.get(TICKETS_KEY) is not None
        return _says(queued, expected) and ticket.poll_by_ms >= queued.number("pollByMs") and is_counted

    def _is_refused(self, edge: Edge) -> bool:
        """Say whether the entry refused the actor this resource because of a lease."""
        refused = self._entry(edge.seq, *_HELD_BACK)
        conflict = refused.value.get("conflict") if refused is not None else None
        if refused is None or not isinstance(conflict, dict):
            return False
        is_mode = refused.value.get("mode", edge.mode) == edge.mode
        lives_ms = edge.until_ms - refused.time_ms
        said = refused.actor, conflict["resource"], self._numbers["waitEdgeMs"]
        return is_mode and said == (edge.actor, edge.resource, lives_ms)

    def _is_counted(self, principal: Principal) -> bool:
        """Say whether the trust is what its last entry left, and whether just what leases and delays name counts."""
        if principal.held != self._held[principal.did]:
            return False
        if principal.trust_seq is None:
            return principal.trust == self._numbers["trustStart"]
        moved = self._entry(principal.trust_seq, "lease.released", "lease.expired")
        rows = rows_of(moved.value.get("trust")) if moved is not None else []
        return any((row["did"], row["after"]) == (principal.did, principal.trust) for row in rows)

    def _grant(self, seq: int) -> Leaf | None:
        leaf = self._leaf(seq)
        return leaf if leaf is not None and leaf.type in GRANTS else None

    def _entry(self, seq: int, *kinds: str) -> Leaf | None:
        """Return entry `seq` if it is there and of one of these kinds."""
        leaf = self._leaf(seq)
        return leaf if leaf is not None and leaf.type in map(full_type, kinds) else None

    def _leaf(self, seq: int) -> Leaf | None:
        for entry in self._read.entries(seq, seq + 1):
            try:
                leaf = parse_leaf(entry.leaf)
            except Malformed:
                return None
            return leaf if leaf.seq == seq else None
        return None


def _says(leaf: Leaf, expected: Mapping[str, JsonValue]) -> bool:
    return all(leaf.value.get(name) == value for name, value in expected.items())


def _list(value: JsonValue) -> list[JsonValue]:
    assert isinstance(value, list), "the table says so"
    return value
