"""What decisions depend on: typed records under ordered keys, and the draft a batch is decided on.

House rules of this file:

* A record is a named tuple: it never changes, and it is made often. Changing state means putting another record under
  the same key.
* A record that may be dropped one day says when in `until_ms`. The core compares that moment with log
  time itself, so it never matters whether the store has already dropped the record.
* The core reads through a `View` and writes into a `Draft`. Nothing else remembers anything.

Source: docs/protocol.md, records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_type_hints

from verifier.wire import JsonObject, JsonValue, Malformed, encode_canonical, parse_canonical

RECORD_BYTES_MAX = 65_536  # A lease on 256 resources of 16 KiB together stays far below.


class Agent(NamedTuple):
    """An enrolled key. `removed_seq` is the entry that removed it, None while it is in force."""

    did: str
    name: str | None
    added_seq: int
    removed_seq: int | None


class Operator(NamedTuple):
    """A key that may change who acts, named in entry 0."""

    did: str


class Lease(NamedTuple):
    """A live lease. It exists under its key until the entry that ends it is written."""

    lease_id: str
    holder: str
    principal: str
    on_behalf_of: str
    resources: tuple[str, ...]
    mode: str
    fencing_token: int
    grant_seq: int
    granted_at_ms: int
    ttl_ms: int
    expires_at_ms: int
    hold_until_ms: int


class Held(NamedTuple):
    """The ids of the live leases on one resource, oldest first."""

    lease_ids: tuple[str, ...]


class Waits(NamedTuple):
    """How often a principal was refused a resource without a break, and by which lease last."""

    actor: str
    principal: str
    resource: str
    waits: int
    since_ms: int
    refused_at_ms: int
    lease_id: str
    until_ms: int


class Counter(NamedTuple):
    """One number of the ledger: the last fencing token, or the end of the holiday in ms."""

    value: int


class Dispute(NamedTuple):
    """The entry that proved a second history. While it stands nothing is granted."""

    seq: int


class Ended(NamedTuple):
    """How a lease ended, kept for a day so that late calls get a precise answer."""

    actor: str
    how: Literal["released", "expired"]
    seq: int
    until_ms: int


class Idempotency(NamedTuple):
    """The decision already made under an idempotency key."""

    seq: int
    status: int
    fingerprint: str
    until_ms: int


class Nonce(NamedTuple):
    """A nonce that was used, and the entry that answered it."""

    seq: int
    until_ms: int


Record: TypeAlias = Agent | Operator | Lease | Held | Waits | Counter | Dispute | Ended | Idempotency | Nonce
Change: TypeAlias = tuple[str, Record | None, int | None]

TOKEN_KEY = "ledger/token"
HOLIDAY_KEY = "ledger/holiday"
DISPUTE_KEY = "ledger/dispute"

# Hot records live in memory; cold ones are looked up in the store, by key, for each batch.
HOT_PREFIXES = ("agent/", "operator/", "lease/", "held/", "wait/", "ledger/")
COLD_PREFIXES = ("ended/", "idem/", "nonce/")
# Records the store may drop, in any order, once their due time is not after log time. A lease has none: only its
# `lease.expired` entry may remove it.
EXPENDABLE_PREFIXES = ("wait/", "ended/", "idem/", "nonce/")

_KINDS: Mapping[str, Callable[..., Record]] = MappingProxyType(
    {
        "agent": Agent,
        "operator": Operator,
        "lease": Lease,
        "held": Held,
        "wait": Waits,
        TOKEN_KEY: Counter,
        HOLIDAY_KEY: Counter,
        DISPUTE_KEY: Dispute,
        "ended": Ended,
        "idem": Idempotency,
        "nonce": Nonce,
    }
)


def agent_key(did: str) -> str:
    return f"agent/{did}"


def operator_key(did: str) -> str:
    return f"operator/{did}"


def lease_key(lease_id: str) -> str:
    return f"lease/{lease_id}"


def held_key(resource: str) -> str:
    return f"held/{resource}"


def wait_key(principal: str, resource: str) -> str:
    return f"wait/{principal}/{resource}"


def ended_key(lease_id: str) -> str:
    return f"ended/{lease_id}"


def idempotency_key(principal: str, key: str) -> str:
    return _spent_key("idem", principal, key)


def nonce_key(principal: str, nonce: str) -> str:
    return _spent_key("nonce", principal, nonce)


@lru_cache(maxsize=2_048)
def _spent_key(kind: str, principal: str, name: str) -> str:
    """Hashed to 16 bytes, because most records lie under such a key: it is short and of a plain alphabet.

    Who looks for two names of one place (2^64 hashes) finds them under their own principal only. Asked three times for
    each request.
    """
    place = hashlib.sha256(f"{principal}\n{name}".encode()).hexdigest()[:32]
    return f"{kind}/{place}"


def due_ms_of(record: Record) -> int | None:
    """Return from when on a record may be forgotten, in ms of log time, or None while only an entry may remove it."""
    return getattr(record, "until_ms", None)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _spelled(hint: object) -> str:
    """Return a type as its annotation spells it: `int`, `str | None`, `tuple[str, ...]`."""
    return hint.__name__ if hint in (int, str) else str(hint).removeprefix("typing.")


# By kind, each member's name in the store and what may stand there.
_MEMBERS: Mapping[Callable[..., Record], Mapping[str, str]] = MappingProxyType(
    {
        kind: {_camel(name): _spelled(hint) for name, hint in get_type_hints(kind).items()}
        for kind in set(_KINDS.values())
    }
)


def encode_record(record: Record, encode: Callable[[JsonObject], bytes] = encode_canonical) -> bytes:
    """Return the bytes the store keeps: canonical JSON with camelCase names."""
    members = zip(_MEMBERS[type(record)], record, strict=True)
    return encode(dict(members))  # type: ignore[arg-type]  # encoders write a tuple as a list


def decode_record(key: str, data: bytes) -> Record:
    """Return the record stored under `key`; Malformed when the bytes are not exactly what we write."""
    kind = _KINDS.get(key) or _KINDS.get(key.split("/", 1)[0])
    if kind is None:
        raise Malformed(f"record key of an unknown kind, {len(key)} characters")
    members = parse_canonical(data, bytes_max=RECORD_BYTES_MAX)
    annotations = _MEMBERS[kind]
    if members.keys() != annotations.keys():
        raise Malformed("record members are not exactly those of its kind")
    return kind(*(_field(members[member], annotation) for member, annotation in annotations.items()))


def _field(value: JsonValue, annotation: str) -> int | str | tuple[str, ...] | None:
    """Return one stored value as the type its kind declares."""
    match value:
        case bool():
            pass
        case int() if annotation.startswith("int"):
            return value
        case str() if annotation.startswith(("str", "Literal")):
            return value
        case None if annotation.endswith("| None"):
            return None
        case list() if annotation.startswith("tuple"):
            texts = tuple(item for item in value if isinstance(item, str))
            if len(texts) == len(value):
                return texts
    raise Malformed(f"record member is not of type {annotation}")


class View(Protocol):
    """Records as they stand at the head of the ledger. Reading never changes anything."""

    def get(self, key: str) -> Record | None:
        """Return the record, or None. Records past their due time may still be there."""

    def due(self, t_ms: int, limit: int) -> Iterable[Lease]:
        """Return at most `limit` live leases with `expires_at_ms` ≤ `t_ms`, oldest expiry first, ties by token."""


class Draft:
    """A view plus the changes decided so far in this batch; the view below is never touched."""

    __slots__ = ("_below", "_changes", "_undo", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        self._below = view.get
        self._changes: dict[str, Record | None] = {}
        self._undo: list[tuple[str, bool, Record | None]] = []

    def get(self, key: str) -> Record | None:
        return self._changes[key] if key in self._changes else self._below(key)

    def put(self, key: str, record: Record | None) -> None:
        """Put a record under its key; None takes away what is there."""
        self._undo.append((key, key in self._changes, self._changes.get(key)))
        self._changes[key] = record

    def delete(self, key: str) -> None:
        self.put(key, None)

    def savepoint(self) -> int:
        """Return a mark that `rollback` understands."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Forget every change made after `mark`."""
        while len(self._undo) > mark:
            key, was_changed, record = self._undo.pop()
            if was_changed:
                self._changes[key] = record
            else:
                del self._changes[key]

    def due(self, t_ms: int, limit: int) -> tuple[Lease, ...]:
        """Return due leases of the view that this draft has not ended or extended."""
        return tuple(lease for lease in self._view.due(t_ms, limit) if self.get(lease_key(lease.lease_id)) == lease)

    def changes(self) -> tuple[Change, ...]:
        """Return (key, record or None when deleted, due time) for each changed key, in order of first change."""
        return tuple((key, record, due_ms_of(record) if record else None) for key, record in self._changes.items())


def agent_at(view: Draft | View, did: str) -> Agent | None:
    record = view.get(agent_key(did))
    assert record is None or isinstance(record, Agent), "an agent key holds an agent"
    return record


def lease_at(view: Draft | View, lease_id: str) -> Lease | None:
    record = view.get(lease_key(lease_id))
    assert record is None or isinstance(record, Lease), "a lease key holds a lease"
    return record


def held_at(view: Draft | View, resource: str) -> tuple[str, ...]:
    """Return the ids of the live leases on `resource`."""
    record = view.get(held_key(resource))
    assert record is None or isinstance(record, Held), "a held key holds lease ids"
    return record.lease_ids if record else ()


def counter_at(view: Draft | View, key: str) -> int:
    """Return a number of the ledger; 0 before it was first set."""
    record = view.get(key)
    assert record is None or isinstance(record, Counter), "a counter key holds a counter"
    return record.value if record else 0


def waits_at(view: Draft | View, principal: str, resource: str, t_ms: int) -> Waits | None:
    """Return the wait record that still counts at `t_ms`."""
    record = view.get(wait_key(principal, resource))
    assert record is None or isinstance(record, Waits), "a wait key holds waits"
    return record if record and t_ms < record.until_ms else None


def ended_at(view: Draft | View, lease_id: str, t_ms: int) -> Ended | None:
    """Return how a lease ended, as long as that is remembered at `t_ms`."""
    record = view.get(ended_key(lease_id))
    assert record is None or isinstance(record, Ended), "an ended key holds an end"
    return record if record and t_ms < record.until_ms else None


def idempotency_at(view: Draft | View, principal: str, key: str, t_ms: int) -> Idempotency | None:
    """Return the decision under an idempotency key, as long as the key lives at `t_ms`."""
    record = view.get(idempotency_key(principal, key))
    assert record is None or isinstance(record, Idempotency), "an idempotency key holds a decision"
    return record if record and t_ms < record.until_ms else None


def nonce_at(view: Draft | View, principal: str, nonce: str, t_ms: int) -> Nonce | None:
    """Return the use of a nonce that could still be replayed at `t_ms`."""
    record = view.get(nonce_key(principal, nonce))
    assert record is None or isinstance(record, Nonce), "a nonce key holds a nonce"
    return record if record and t_ms < record.until_ms else None


@dataclass(frozen=True, slots=True)
class Parameters:
    """Every number a decision depends on, as entry 0 of the ledger states them."""

    ttl_min_ms: int = 1_000
    ttl_max_ms: int = 3_600_000
    sweep_ms: int = 1_000
    holiday_ms: int = 30_000
    skew_ms: int = 30_000
    idempotency_ms: int = 86_400_000
    wait_edge_ms: int = 10_000
    stampede_base_ms: int = 25
    stampede_max_ms: int = 800
    stampede_admitted: int = 8
    stampede_reset_ms: int = 60_000
    max_hold_ms: int = 3_600_000
    rate_per_second: int = 20
    rate_burst: int = 200

    def members(self) -> JsonObject:
        """Return the member `parameters` of entry 0."""
        return {_camel(field.name): getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def from_members(members: JsonObject) -> Parameters:
        """Return the parameters entry 0 states; Malformed unless it states exactly these, as integers."""
        numbers = {name: value for name, value in members.items() if type(value) is int}
        names = {_camel(field.name): field.name for field in fields(Parameters)}
        if set(numbers) != set(names) or len(numbers) != len(members):
            raise Malformed("parameters of entry 0 are not exactly those of this version, as integers")
        return Parameters(**{names[member]: value for member, value in numbers.items()})


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the ledger: how many entries, the SHA-256 of the last leaf, its time, epoch and batch."""

    size: int
    prev_hash: bytes
    time_ms: int
    epoch: int
    batch_id: str
