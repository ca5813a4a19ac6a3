"""The bytes that the store keeps of a record: canonical JSON, exactly the members of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import get_type_hints

from gateway.core.record_keys import (
    DISPUTE_KEY,
    ENROLLER_KEY,
    HOLIDAY_KEY,
    OPERATORS_KEY,
    ROOT_KEY,
    RULES_KEY,
    TICKETS_KEY,
    TOKEN_KEY,
)
from gateway.core.records import (
    Agent,
    ApiKey,
    Burnt,
    Cosigned,
    Counter,
    Delay,
    Dispute,
    Edge,
    Ended,
    Enroller,
    Handover,
    Idempotency,
    Keys,
    Lease,
    LedgerKey,
    Nonce,
    Operator,
    Pending,
    Principal,
    Quota,
    Record,
    Root,
    RuleSet,
    Scheme,
    Session,
    Ticket,
    Usage,
    Waits,
)
from verifier.wire import JsonObject, JsonValue, Malformed, encode_canonical, parse_canonical

RECORD_BYTES_MAX = 65_536  # A lease on 256 resources of 16 KiB together stays far below.

_KINDS: Mapping[str, Callable[..., Record]] = MappingProxyType(
    {
        "agent": Agent,
        "operator": Operator,
        "key": LedgerKey,
        "apikey": ApiKey,
        "session": Session,
        "quota": Quota,
        "scheme": Scheme,
        "lease": Lease,
        "delay": Delay,
        "ticket": Ticket,
        "handover": Handover,
        "edge": Edge,
        "principal": Principal,
        "wait": Waits,
        "usage": Usage,
        TOKEN_KEY: Counter,
        HOLIDAY_KEY: Counter,
        DISPUTE_KEY: Dispute,
        TICKETS_KEY: Counter,
        OPERATORS_KEY: Counter,
        ENROLLER_KEY: Enroller,
        ROOT_KEY: Root,
        RULES_KEY: RuleSet,
        "ledger/keys/log": Keys,
        "ledger/keys/receipt": Keys,
        "ended": Ended,
        "idem": Idempotency,
        "nonce": Nonce,
        "burnt": Burnt,
        "ask": Pending,
        "cosigned": Cosigned,
    }
)


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _spelled(hint: object) -> str:
    """Return a type as its annotation spells it: `int`, `str | None`, `tuple[str, ...]`."""
    return hint.__name__ if hint in (int, str, bool) else str(hint).removeprefix("typing.")


# By kind, each member's name in the store and what may stand there.
_MEMBERS: Mapping[Callable[..., Record], Mapping[str, str]] = MappingProxyType(
    {
        kind: {camel(name): _spelled(hint) for name, hint in get_type_hints(kind).items()}
        for kind in set(_KINDS.values())
    }
)


def encode_record(record: Record, encode: Callable[[JsonObject], bytes] = encode_canonical) -> bytes:
    """Return the bytes the store keeps: canonical JSON with camelCase names."""
    members = zip(_MEMBERS[type(record)], record, strict=True)
    return encode(dict(members))  # type: ignore[arg-type]  # encoders write a tuple as a list


def decode_record(key: str, data: bytes) -> Record:
    """Return the record stored under `key`; Malformed when the bytes are not exactly what we write."""
    kind = _kind_of(key)
    members = parse_canonical(data, bytes_max=RECORD_BYTES_MAX)
    annotations = _MEMBERS[kind]
    if members.keys() != annotations.keys():
        raise Malformed("record members are not exactly those of its kind")
    return kind(*(_field(members[member], annotation) for member, annotation in annotations.items()))


def sealed_record(key: str, members: object) -> Record:
    """Return the record whose bytes, read as JSON, are `members`: only where a seal proved that we wrote those bytes,
    for nothing but the names is looked at. Malformed: another version wrote them.

    A node does this with every hot record that other nodes write; `decode_record` takes ten times as long.
    """
    kind = _kind_of(key)
    names = _MEMBERS[kind]
    if not isinstance(members, dict) or members.keys() != names.keys():
        raise Malformed("record members are not exactly those of its kind")
    return kind(*[tuple(value) if isinstance(value, list) else value for value in map(members.__getitem__, names)])


def _kind_of(key: str) -> Callable[..., Record]:
    kind = _KINDS.get(key) or _KINDS.get(key.split("/", 1)[0])
    if kind is None:
        raise Malformed(f"record key of an unknown kind, {len(key)} characters")
    return kind


def _field(value: JsonValue, annotation: str) -> int | str | bool | tuple[str, ...] | None:
    """Return one stored value as the type its kind declares."""
    match value:
        case bool():
            if annotation == "bool":
                return value
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
