"""Every member of every hot record: an edit of it contradicts an entry, or is one of those that only the seal sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from gateway.core.state import (
    TICKETS_KEY,
    Counter,
    Delay,
    Edge,
    Handover,
    Lease,
    Principal,
    Record,
    Scheme,
    Ticket,
    Waits,
    principal_key,
)
from gateway.errors import Fatal
from gateway.ledger.evidence import check_records
from gateway.ledger.live import Live
from gateway.store.contract import Reading
from tests.core.hall import Hall
from tests.core.requests import accept, did_of, set_scheme, transfer


@dataclass
class Stored:
    leaf: bytes


class Shelf:
    """The entries of a hall, as far as a comparison reads them."""

    def __init__(self, one: Hall) -> None:
        self._leaves = one.leaves

    def entries(self, start: int, stop: int) -> list[Stored]:
        return [Stored(leaf) for leaf in self._leaves[start:stop]]


def lived_in() -> Hall:
    """Return a ledger with every kind of record: each kind of grant, an offer, a delay, tickets, edges, trust."""
    one = Hall(lock_delay_ms=60_000)
    one.say(set_scheme("op", "doc", "read-safe", isFolding=True, lockDelayMs=7, maxHoldMs=90_000))
    first = one.hold("A", "repo:granted")
    one.line("B", "repo:granted", "repo:other")
    one.later(2_000)
    one.free("A", first)  # trust rises
    one.claim("B", min(one.tickets()))
    changed = one.hold("C", "doc:x", mode="read")
    one.renew("C", changed, mode="write")
    given = one.hold("D", "repo:given")
    one.say(transfer("D", given, one.leases()[given].fencing_token, "E"))
    taken = one.say(accept("E", given)).text("leaseId")
    one.say(transfer("op", taken, one.leases()[taken].fencing_token, "A"))
    one.hold("F", "repo:lost", ttlMs=1_000)
    one.later(1_000)  # trust falls, a delay begins
    one.line("A", "repo:granted")
    one.ask_for("A", "repo:given")  # an edge, a wait
    return one


def check(one: Hall, records: dict[str, Record]) -> None:
    hot = {key: record for key, record in records.items() if not key.startswith(("idem/", "nonce/", "ended/"))}
    check_records(cast(Reading, Shelf(one)), Live(hot.items()), len(one.leaves))


# What may have moved since its entry, or what no entry says: of these the seal of the last batch is the only witness.
SEALED: dict[type[Any], set[str]] = {
    Lease: {"ttl_ms", "expires_at_ms"},
    Scheme: set(),
    Handover: set(),
    Delay: set(),
    Ticket: {"poll_by_ms", "claim_by_ms", "passes", "reserve_at_ms", "reserve_until_ms", "is_passed"},
    Edge: set(),
    Principal: {"gain_since_ms", "gained"},
    Waits: {"actor", "waits", "since_ms", "refused_at_ms", "lease_id", "until_ms"},
}


def changed(value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "1"
        case tuple():
            return (*value, "repo:more")
    return 7


def fields_of(kind: type[Any]) -> tuple[str, ...]:
    return cast(tuple[str, ...], kind._fields)


def test_what_the_core_wrote_fits() -> None:
    one = lived_in()
    check(one, one.shelf.records)
    kinds = {type(record) for record in one.shelf.records.values()}
    assert set(SEALED) <= kinds
    grants = [one.leaf(lease.grant_seq).type.split("/")[1] for lease in one.leases().values()]
    assert sorted(grants) == ["lease.changed", "lease.claimed", "lease.transferred"]


CASES = [(kind, name) for kind in SEALED for name in fields_of(kind)]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind.__name__}.{name}" for kind, name in CASES])
def test_an_edit_of_any_member_is_noticed(kind: type[Any], name: str) -> None:
    one = lived_in()
    of_kind = {key: record for key, record in one.shelf.records.items() if isinstance(record, kind)}
    for key, record in of_kind.items():
        edited = record._replace(**{name: changed(getattr(record, name))})
        edits = dict(one.shelf.records) | {key: edited}
        if name in SEALED[kind]:
            check(one, edits)
            continue
        with pytest.raises(Fatal, match="says what no entry of the ledger says"):
            check(one, edits)


@pytest.mark.parametrize("kind", SEALED)
def test_a_record_under_another_key_is_noticed(kind: type[Any]) -> None:
    one = lived_in()
    key, record = next((key, record) for key, record in one.shelf.records.items() if isinstance(record, kind))
    edits = {place: other for place, other in one.shelf.records.items() if place != key}
    with pytest.raises(Fatal):
        check(one, edits | {f"{key}x": record})


def test_what_is_counted_must_be_there() -> None:
    one = lived_in()
    records = one.shelf.records
    held = next(record for record in records.values() if isinstance(record, Principal) and record.held)
    ticket = next(key for key, record in records.items() if isinstance(record, Ticket))
    edits: list[dict[str, Record | None]] = [
        {TICKETS_KEY: Counter(0)},
        {TICKETS_KEY: Counter(2)},
        {TICKETS_KEY: None},
        {ticket: None},
        {principal_key(held.did): held._replace(held=held.held + 1)},
        {principal_key(held.did): None},
    ]
    for edit in edits:
        kept = {key: record for key, record in (records | edit).items() if record is not None}
        with pytest.raises(Fatal):
            check(one, kept)
    check(one, records | {principal_key(did_of("nobody")): Principal(did_of("nobody"), 50_000, None, 0, 0, 0)})


def test_a_lease_is_never_shortened_and_a_poll_never_forgotten() -> None:
    one = lived_in()
    for key, record in one.shelf.records.items():
        if isinstance(record, Lease):
            edited: Record = record._replace(expires_at_ms=record.expires_at_ms - 1)
        elif isinstance(record, Ticket):
            edited = record._replace(poll_by_ms=record.poll_by_ms - 1)
        else:
            continue
        with pytest.raises(Fatal):
            check(one, dict(one.shelf.records) | {key: edited})
