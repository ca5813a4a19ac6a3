"""The table of entry types: what a leaf of the ledger may say, who may cause it, and what a request body may ask.

House rules of this file:

* One table serves everybody. The verifier parses leaves by it, the gateway's door checks bodies by it, OpenAPI takes
  its schemas from it, and docs/protocol.md prints it (a test compares). Nobody else lists members or bounds.
* Everything is closed. An unknown member of a known type is refused; an unknown *type* is not a lie but a gap in our
  knowledge (`Leaf.is_known` is False, the verdict "indeterminate").
* Bounds make every leaf fit: the largest leaf this table allows is LEAF_BYTES_LARGEST < 65,535 (tested).
* Texts of errors name the member, the bound and the *length* of what came, never its content.

Rules that the shape of a leaf cannot show (checked over a whole ledger): `seq` counts from 0 without a gap; `epoch`
changes only at `service.started`, by one; `timeMs` never decreases; `prev` is the SHA-256 of the previous leaf's bytes;
`genesis` is the RFC 6962 leaf hash of entry 0 (64 zeros in entry 0 itself).

Source: docs/protocol.md 12.5 (entry types), 5.2 (bodies), 21 (limits). Design: security.md §1–4, 8, decisions.md §2, 7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from verifier.did import decode_did
from verifier.wire import (
    BODY_BYTES_MAX,
    INT_MAX,
    LEAF_BYTES_MAX,
    JsonObject,
    JsonValue,
    Malformed,
    check_names_and_integers,
    decode_base64,
    encode_canonical,
    open_canonical,
)

# Units are in the names; each bound is repeated in docs/protocol.md 21.
TTL_MS_MIN, TTL_MS_MAX, TTL_MS_DEFAULT = 1_000, 3_600_000, 30_000
RESOURCES_MAX = 256  # names in one request
RESOURCE_BYTES_MAX = 1_024  # one name
RESOURCES_BYTES_MAX = 16_384  # all names of one request together
SKEW_MS = 30_000  # a signature's window is widened by this much on both sides
WINDOW_S_MAX = 300  # expires − created
IDEMPOTENCY_MS = 86_400_000  # a key belongs to its first request for this much log time
TIME_MS_MAX = 4_102_444_800_000 * 2  # year 2229; keeps timeMs × 1,000 below 2^53
LEAF_BYTES_LARGEST = 63_600  # no leaf of this table is larger; tests/verifier/test_entries.py builds the worst one
ZERO_HASH = "0" * 64
GATEWAY = "gateway"  # the actor of entries that the gateway itself causes

# Entry 0 names every parameter that decisions depend on; these are the values of rules version 1.
PARAMETER_DEFAULTS: Mapping[str, int] = MappingProxyType(
    {
        "ttlMinMs": TTL_MS_MIN,
        "ttlMaxMs": TTL_MS_MAX,
        "sweepMs": 1_000,
        "holidayMs": 30_000,
        "skewMs": SKEW_MS,
        "idempotencyMs": IDEMPOTENCY_MS,
        "waitEdgeMs": 10_000,
        "stampedeBaseMs": 25,
        "stampedeMaxMs": 800,
        "stampedeAdmitted": 8,
        "stampedeResetMs": 60_000,
        "maxHoldMs": 3_600_000,
        "ratePerSecond": 20,
        "rateBurst": 200,
    }
)


class MemberError(Malformed):
    """A body or leaf that breaks the table; `code` and `member` say where, the text says what to do.

    `code` is one of member_missing, member_unknown, member_invalid, member_conflict (two members exclude each other).
    """

    def __init__(self, code: str, member: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.member = member


@dataclass(frozen=True, slots=True)
class Kind:
    """What a member may hold: `check` decides, `bound` says the same to a person, `schema` to a machine.

    `explain`, where given, finds a more helpful sentence for a value that `check` refuses.
    """

    name: str
    check: Callable[[JsonValue], bool]
    bound: str
    schema: JsonObject
    explain: Callable[[JsonValue], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a leaf or body."""

    name: str
    kind: Kind
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class EntryType:
    """One row of the table.

    `name` is `noun.participle`, `type` the full string of the leaf. `cause` is "request" (the leaf carries evidence) or
    "gateway". `action` and `path` are the action a request of this type must have been signed for; both None for
    entries of the gateway, and for `decision.failed`, whose member `action` names it. `actor_rule` is "agent" (a key in
    force, operators included), "operator" (a key of entry 0) or "gateway". `cites` names members holding the `seq` of
    an earlier entry; two entries of one type never cite the same one through the same member.
    """

    name: str
    cause: str
    action: str | None
    path: str | None
    members: tuple[Member, ...]
    actor_rule: str
    cites: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        """The exact string of the leaf's member `type`."""
        return full_type(self.name)


def full_type(name: str) -> str:
    """Return the leaf's `type` string: "lease.granted" becomes "tallystick/lease.granted/1"."""
    return f"tallystick/{name}/1"


# --- resources ------------------------------------------------------------------------------------------------------

# Printable ASCII without space and * " \ < > ` ; the slash separates segments. Source: security.md §8.
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[!#-)+-.0-;=?-\[\]-_a-~]{1,255}"
RESOURCE_PATTERN = rf"[a-z][a-z0-9-]{{0,31}}:{_SEGMENT}(?:/{_SEGMENT}){{0,31}}"
_RESOURCE = re.compile(RESOURCE_PATTERN, re.ASCII)
_SCHEME = re.compile(r"[a-z][a-z0-9-]{0,31}:", re.ASCII)


def check_resource(name: str) -> None:
    """Raise Malformed unless `name` is `scheme:path` as the protocol spells it; the text says how to spell it.

    Source: docs/protocol.md 3, security.md §8.
    """
    hint = resource_hint(name)
    if hint is not None:
        raise Malformed(f"resource: {hint} (the name has {len(name)} characters)")


def resource_hint(name: str) -> str | None:
    """Return None for a good resource name, else one sentence that says what to change."""
    if len(name) <= RESOURCE_BYTES_MAX and _RESOURCE.fullmatch(name):
        return None
    if not name.isascii():
        return "only printable ASCII is allowed in names of this version; encode other characters"
    if len(name) > RESOURCE_BYTES_MAX:
        return f"at most {RESOURCE_BYTES_MAX:,} bytes are allowed; use a shorter name"
    if "\\" in name:
        return "use / instead of \\ between segments"
    if not _SCHEME.match(name):
        return "write scheme:path, for example repo:app/src/main.py; a scheme is [a-z][a-z0-9-]{0,31}"
    return _path_hint(name.partition(":")[2])


def _path_hint(path: str) -> str:
    """Name the first thing that is wrong with the part of a resource after its scheme."""
    segments = path.split("/")
    if segments[-1] == "**":
        return "sub-trees are not supported yet; name each resource"
    if "" in segments:
        return "empty segments are refused; remove the doubled, first or last /"
    if "." in segments or ".." in segments:
        return "the segments . and .. are refused; write the plain path"
    if len(segments) > 32 or any(len(segment) > 255 for segment in segments):
        return "a path has 1 to 32 segments of 1 to 255 bytes"
    return 'printable ASCII without space and * " < > ` is allowed in segments'


def schemes_of(resources: tuple[str, ...]) -> list[JsonValue]:
    """Return the member `schemes` of a grant: each scheme once, sorted, with its class (exclusive in version 1)."""
    names = sorted({name.partition(":")[0] for name in resources})
    return [{"class": "exclusive", "name": name} for name in names]


def resources_of(body: JsonObject) -> tuple[str, ...]:
    """Return the resources a checked body names, sorted, each once; empty for a body that names none."""
    single, several = body.get("resource"), body.get("resources")
    if isinstance(several, list):
        return tuple(sorted({name for name in several if isinstance(name, str)}))
    return (single,) if several is None and isinstance(single, str) else ()


# --- kinds ----------------------------------------------------------------------------------------------------------


class _Checks(NamedTuple):
    """Members flattened for `_fits`, the fast path of every leaf."""

    required: tuple[tuple[str, Callable[[JsonValue], bool]], ...]
    optional: tuple[tuple[str, Callable[[JsonValue], bool]], ...]


def _checks(members: tuple[Member, ...]) -> _Checks:
    required, optional = ([m for m in members if m.is_required is is_required] for is_required in (True, False))
    return _Checks(tuple((m.name, m.kind.check) for m in required), tuple((m.name, m.kind.check) for m in optional))


def _fits(value: JsonObject, checks: _Checks) -> bool:
    """Say whether `value` keeps its table; `_first_fault` then says where it does not.

    Each kind demands the exact type and bounds integers, so what fits is also restricted JSON with good names.
    """
    found = len(checks.required)
    try:
        for name, check in checks.required:
            if not check(value[name]):
                return False
    except KeyError:
        return False
    for name, check in checks.optional:
        if name in value:
            if not check(value[name]):
                return False
            found += 1
    return found == len(value)


def _integer(name: str, minimum: int, maximum: int, unit: str = "") -> Kind:
    def check(value: JsonValue) -> bool:
        return type(value) is int and minimum <= value <= maximum

    bound = f"an integer from {minimum:,} to {maximum:,}{unit}"
    return Kind(name, check, bound, {"type": "integer", "minimum": minimum, "maximum": maximum})


def _text(name: str, pattern: str, length_max: int, bound: str) -> Kind:
    compiled = re.compile(pattern, re.ASCII)

    def check(value: JsonValue) -> bool:
        return type(value) is str and len(value) <= length_max and compiled.fullmatch(value) is not None

    return Kind(name, check, bound, {"type": "string", "maxLength": length_max, "pattern": f"^{pattern}$"})


def _choice(name: str, *choices: str) -> Kind:
    def check(value: JsonValue) -> bool:
        return type(value) is str and value in choices

    return Kind(
        name, check, "one of " + ", ".join(f'"{c}"' for c in choices), {"type": "string", "enum": list(choices)}
    )


def _list(name: str, item: Kind, count_min: int, count_max: int) -> Kind:
    def check(value: JsonValue) -> bool:
        return type(value) is list and count_min <= len(value) <= count_max and all(map(item.check, value))

    bound = f"a list of {count_min} to {count_max}, each {item.bound}"
    return Kind(
        name, check, bound, {"type": "array", "items": item.schema, "minItems": count_min, "maxItems": count_max}
    )


def _object(name: str, *members: Member) -> Kind:
    rows = _checks(members)

    def check(value: JsonValue) -> bool:
        return type(value) is dict and _fits(value, rows)

    bound = "an object with exactly " + ", ".join(m.name if m.is_required else m.name + "?" for m in members)
    return Kind(name, check, bound, object_schema(members))


def _is_did(value: JsonValue) -> bool:
    try:
        return type(value) is str and len(value) == 56 and len(decode_did(value)) == 32
    except Malformed:
        return False


def _is_base64_32(value: JsonValue) -> bool:
    try:
        return type(value) is str and len(decode_base64(value, 32)) == 32
    except Malformed:
        return False


def _is_resource(value: JsonValue) -> bool:
    return type(value) is str and resource_hint(value) is None


def _are_resources(value: JsonValue) -> bool:
    """Any order, no duplicates: the form of a request body."""
    if type(value) is not list or not 1 <= len(value) <= RESOURCES_MAX:
        return False
    names = {name for name in value if type(name) is str and resource_hint(name) is None}
    return len(names) == len(value) and sum(map(len, names)) <= RESOURCES_BYTES_MAX


def _are_sorted_resources(value: JsonValue) -> bool:
    """Sorted, no duplicates: the form of a leaf."""
    return _are_resources(value) and isinstance(value, list) and value == sorted(map(str, value))


def _explain_resource(value: JsonValue) -> str | None:
    return resource_hint(value) if type(value) is str else None


def _explain_resources(value: JsonValue) -> str | None:
    """Say which name is wrong and why, or which bound of the whole list is broken."""
    if type(value) is not list:
        return None
    for index, name in enumerate(value[:RESOURCES_MAX]):
        hint = resource_hint(name) if type(name) is str else "a name is a string"
        if hint is not None:
            return f"name {index}: {hint}"
    if len(set(map(str, value))) != len(value):
        return "the same name is in the list twice; name each resource once"
    return None


def _are_schemes(value: JsonValue) -> bool:
    """Sorted by name, each once. The class of every scheme is `exclusive` in rules version 1."""
    if type(value) is not list or not 1 <= len(value) <= RESOURCES_MAX or not all(map(_SCHEME_CLASS.check, value)):
        return False
    names = [str(row["name"]) for row in value if isinstance(row, dict)]
    return names == sorted(set(names))


def _is_body_text(value: JsonValue) -> bool:
    """Counted as it stands in the leaf, quotes and escapes included, so that every leaf fits."""
    if type(value) is not str or len(value) > BODY_BYTES_MAX:
        return False
    # No character takes more than six bytes, and most bodies are short.
    return len(value) * 6 + 2 <= BODY_BYTES_MAX or len(encode_canonical(value)) <= BODY_BYTES_MAX


def object_schema(members: tuple[Member, ...]) -> JsonObject:
    """Return the closed JSON Schema (2020-12) of an object with these members."""
    required: list[JsonValue] = [m.name for m in members if m.is_required]
    properties: JsonObject = {m.name: m.kind.schema for m in members}
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


BOOLEAN = Kind("boolean", lambda value: type(value) is bool, "true or false", {"type": "boolean"})
COUNT = _integer("count", 0, INT_MAX)
SEQ = _integer("seq", 0, INT_MAX, " (an index of the ledger)")
SIZE = _integer("size", 0, INT_MAX, " (entries)")
TOKEN = _integer("token", 1, INT_MAX)
TIME_MS = _integer("time", 0, TIME_MS_MAX, " (milliseconds since 1970)")
DURATION_MS = _integer("duration", 0, TIME_MS_MAX, " (milliseconds)")
TTL_MS = _integer("ttl", TTL_MS_MIN, TTL_MS_MAX, " (milliseconds)")
NUMBER = _integer("refusal number", 100, 999)
RULES = _integer("rules version", 1, 1)
_DID_SCHEMA: JsonObject = {
    "type": "string",
    "minLength": 56,
    "maxLength": 56,
    "pattern": "^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$",
}
DID = Kind("did", _is_did, "a did:key of an Ed25519 key in the prime-order group, 56 characters", _DID_SCHEMA)
ACTOR = Kind(
    "actor",
    lambda value: value == GATEWAY or _is_did(value),
    f'a did:key (56 characters) or "{GATEWAY}"',
    {"anyOf": [_DID_SCHEMA, {"const": GATEWAY}]},
)
HASH = _text("hash", "[0-9a-f]{64}", 64, "64 lower-case hexadecimal digits")
ROOT = Kind(
    "root",
    _is_base64_32,
    "padded base64 of 32 bytes, 44 characters",
    {"type": "string", "minLength": 44, "maxLength": 44},
)
ORIGIN = _text(
    "origin",
    r"[a-z0-9][a-z0-9.:-]{0,127}(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,63}){0,4}",
    255,
    "a URL without scheme, such as gateway.example/main, at most 255 characters",
)
AUTHORITY = _text(
    "authority", r"[a-z0-9.:\[\]-]{1,255}", 255, "host or host:port in lower case, at most 255 characters"
)
TYPE = _text(
    "type", r"[a-z0-9.-]{1,32}/[a-z0-9._-]{1,64}/[0-9]{1,4}", 102, "a type string such as tallystick/lease.granted/1"
)
LABEL = _text("label", "[A-Za-z0-9._-]{1,40}", 40, "1 to 40 characters of A-Z a-z 0-9 . _ -")
LEASE_ID = _text("lease id", "L[1-9][0-9]{0,15}", 17, "L and the seq of the granting entry, such as L42")
ERROR = _text("error", "[a-z][a-z0-9_]{0,63}", 64, "a refusal name of the table, such as lease_held")
ACTION = _text("action", "[a-z]{1,32}[.][a-z]{1,32}", 65, "an action name such as lease.acquire")
VKEY = _text("vkey", "[!-~]{1,400}", 400, "a C2SP verifier key, at most 400 characters")
KEY_LINE = _text(
    "key line", "[ -~]{1,512}", 512, "a line of the key document without the word key, at most 512 characters"
)
UNICODE_VERSION = _text("unicode version", "[0-9]{1,3}[.][0-9]{1,3}[.][0-9]{1,3}", 11, "a version such as 14.0.0")
MODE = _choice("mode", "write")
DURABILITY = _choice("durability", "memory", "local", "replicated")
CUSTODY = _choice("custody", "gateway")
REASON = _choice("reason", "start", "recovery")
NOTE = Kind(
    "note",
    lambda value: type(value) is str and len(encode_canonical(value)) <= 8_192 and len(value.encode()) <= 4_096,
    "a signed checkpoint, at most 4,096 bytes",
    {"type": "string", "maxLength": 4_096},
)
RESOURCE = Kind(
    "resource",
    _is_resource,
    f"scheme:path, at most {RESOURCE_BYTES_MAX:,} bytes",
    {"type": "string", "maxLength": RESOURCE_BYTES_MAX, "pattern": f"^{RESOURCE_PATTERN}$".replace(r"\Z", "$")},
    _explain_resource,
)
_RESOURCES_SCHEMA: JsonObject = {
    "type": "array",
    "items": RESOURCE.schema,
    "minItems": 1,
    "maxItems": RESOURCES_MAX,
    "uniqueItems": True,
}
_RESOURCES_BOUND = f"1 to {RESOURCES_MAX} different resources, together at most {RESOURCES_BYTES_MAX:,} bytes"
BODY_RESOURCES = Kind("resources", _are_resources, _RESOURCES_BOUND, _RESOURCES_SCHEMA, _explain_resources)
RESOURCES = Kind(
    "sorted resources", _are_sorted_resources, _RESOURCES_BOUND + ", sorted", _RESOURCES_SCHEMA, _explain_resources
)
BODY_TEXT = Kind(
    "body",
    _is_body_text,
    f"the exact text of the body, at most {BODY_BYTES_MAX:,} bytes counted as a JSON string",
    {"type": "string", "maxLength": BODY_BYTES_MAX},
)


def _first_fault(value: JsonObject, members: tuple[Member, ...]) -> MemberError | None:
    """Return what breaks the table first, in table order, or None."""
    for member in members:
        if member.name not in value:
            if member.is_required:
                return MemberError(
                    "member_missing", member.name, f"member {member.name} is missing; send {member.kind.bound}"
                )
        elif not member.kind.check(value[member.name]):
            return MemberError("member_invalid", member.name, _invalid_text(member, value[member.name]))
    for name in sorted(value.keys() - {member.name for member in members}):
        # The name is the sender's text: bounded here, and escaped by whoever prints it.
        return MemberError("member_unknown", name[:64], f"member {name[:64]!r} is not known here; leave it out")
    return None


def _invalid_text(member: Member, value: JsonValue) -> str:
    hint = member.kind.explain(value) if member.kind.explain is not None else None
    return f"member {member.name}: got {_seen(value)}, must be {member.kind.bound}" + (f"; {hint}" if hint else "")


def _seen(value: JsonValue) -> str:
    """Describe a value by its kind and length, never by its content (it may be a secret sent by mistake)."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return f"an integer of {len(str(abs(value)))} digits" if abs(value) > TIME_MS_MAX else f"the integer {value}"
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    if isinstance(value, list):
        return f"a list of {len(value)} items"
    return "null" if value is None else f"an object of {len(value)} members"


_SCHEME_CLASS = _object(
    "scheme class",
    Member("class", _choice("class", "exclusive")),
    Member("name", _text("scheme", "[a-z][a-z0-9-]{0,31}", 32, "a scheme name")),
)
SCHEMES = Kind(
    "schemes",
    _are_schemes,
    "the distinct schemes of the resources, sorted by name, each with its class",
    {"type": "array", "items": _SCHEME_CLASS.schema, "minItems": 1, "maxItems": RESOURCES_MAX},
)
PARAMETERS = _object("parameters", *(Member(name, DURATION_MS) for name in PARAMETER_DEFAULTS))
CONFLICT = _object(
    "conflict",
    Member("leaseId", LEASE_ID),
    Member("resource", RESOURCE),
    Member("fencingToken", TOKEN),
    Member("mode", MODE),
    Member("grantedAtMs", TIME_MS),
    Member("expiresAtMs", TIME_MS),
)
STAMPEDE = _object("stampede", Member("admitted", BOOLEAN), Member("waitMs", DURATION_MS))

# The evidence is bounded here and read by its grammar in request.py (ladder step 10), so that a signature over nonsense
# is a finding about evidence, not about the leaf's shape.
EVIDENCE_MEMBERS = (
    Member("method", _text("method", "[A-Z]{1,8}", 8, "an HTTP method")),
    Member("authority", _text("authority", "[ -~]{1,255}", 255, "at most 255 printable characters")),
    Member("path", _text("path", "[ -~]{1,255}", 255, "at most 255 printable characters")),
    Member("query", _text("query", "[ -~]{1,256}", 256, "at most 256 printable characters")),
    Member("contentType", _text("content type", "[ -~]{1,128}", 128, "at most 128 printable characters")),
    Member("idempotencyKey", _text("idempotency key", "[ -~]{1,255}", 255, "at most 255 printable characters")),
    Member("anchor", _text("anchor", "[ -~]{1,320}", 320, "at most 320 printable characters")),
    Member("body", BODY_TEXT),
    Member("signatureInput", _text("signature input", "[ -~]{1,640}", 640, "at most 640 printable characters")),
    Member("signature", _text("signature", "[A-Za-z0-9+/=]{88}", 88, "padded base64 of 64 bytes, 88 characters")),
)
EVIDENCE = _object("request", *EVIDENCE_MEMBERS)

COMMON_MEMBERS = (
    Member("type", TYPE),
    Member("origin", ORIGIN),
    Member("seq", SEQ),
    Member("epoch", COUNT),
    Member("timeMs", TIME_MS),
    Member("prev", HASH),
    Member("genesis", HASH),
    Member("durability", DURABILITY),
    Member("actor", ACTOR),
    Member("principal", ACTOR),
    Member("onBehalfOf", ACTOR),
    Member("custody", CUSTODY, is_required=False),
    Member("request", EVIDENCE, is_required=False),
)

# --- bodies ---------------------------------------------------------------------------------------------------------

ACTION_PATHS: Mapping[str, str] = MappingProxyType(
    {
        "lease.acquire": "/api/v1/acp/coordination/lease",
        "lease.renew": "/api/v1/acp/coordination/renew",
        "lease.release": "/api/v1/acp/coordination/release",
        "agent.add": "/api/v1/acp/agents",
        "agent.remove": "/api/v1/acp/agents/remove",
    }
)
_TO_WHOM = (Member("ledger", ORIGIN), Member("actorDid", DID))
_RESOURCE_OR_RESOURCES = (Member("resource", RESOURCE, False), Member("resources", BODY_RESOURCES, False))

ACTION_BODIES: Mapping[str, tuple[Member, ...]] = MappingProxyType(
    {
        "lease.acquire": (
            *_TO_WHOM,
            *_RESOURCE_OR_RESOURCES,
            Member("mode", MODE, False),
            Member("ttlMs", TTL_MS, False),
        ),
        "lease.renew": (*_TO_WHOM, Member("leaseId", LEASE_ID), Member("ttlMs", TTL_MS, False)),
        "lease.release": (*_TO_WHOM, *_RESOURCE_OR_RESOURCES, Member("leaseId", LEASE_ID, False)),
        "agent.add": (*_TO_WHOM, Member("agent", DID), Member("name", LABEL, False)),
        "agent.remove": (*_TO_WHOM, Member("agent", DID)),
    }
)
_BODY_CHECKS = {action: _checks(members) for action, members in ACTION_BODIES.items()}
# Exactly one of these members must be in the body.
ONE_OF: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"lease.acquire": ("resource", "resources"), "lease.release": ("resource", "resources")}
)
BODY_DEFAULTS: Mapping[str, JsonValue] = MappingProxyType({"mode": "write", "ttlMs": TTL_MS_DEFAULT})


def check_body(action: str, body: JsonObject) -> None:
    """Raise MemberError (a Malformed) unless `body` is a body of `action`; the text names member, bound and remedy.

    Used by the gateway's door and by ladder step 10, so both always agree. Source: docs/protocol.md 5.2.
    """
    members = ACTION_BODIES.get(action)
    if members is None:
        raise Malformed(f"action: {len(action)} characters that name no action of this version")
    fault = None if _fits(body, _BODY_CHECKS[action]) else _first_fault(body, members)
    if fault is not None:
        raise fault
    one_of = ONE_OF.get(action)
    if one_of is not None and sum(name in body for name in one_of) != 1:
        both = "both are there; leave one out" if one_of[0] in body else "neither is there; send one"
        raise MemberError(
            "member_conflict", one_of[0], f"members {one_of[0]} and {one_of[1]}: exactly one is needed, {both}"
        )


def body_schema(action: str) -> JsonObject:
    """Return the JSON Schema (2020-12) of a body of `action`, for OpenAPI."""
    schema = object_schema(ACTION_BODIES[action])
    one_of = ONE_OF.get(action)
    if one_of is not None:
        schema["oneOf"] = [{"required": [name]} for name in one_of]
    return schema


# --- entry types ----------------------------------------------------------------------------------------------------

_REFUSED = (Member("error", ERROR), Member("number", NUMBER))
_LEASE = (
    Member("resources", RESOURCES),
    Member("mode", MODE),
    Member("schemes", SCHEMES),
    Member("leaseId", LEASE_ID),
    Member("fencingToken", TOKEN),
    Member("ttlMs", TTL_MS),
    Member("expiresAtMs", TIME_MS),
    Member("holdUntilMs", TIME_MS),
)
_LEASE_AGAIN = (*_LEASE, Member("grantedAtMs", TIME_MS), Member("grantSeq", SEQ))
# Present exactly when the error is lease_held (except holderName, which is there when the holder has a label).
HELD_MEMBERS = ("holder", "conflict", "conflicts", "stampede", "retryAfterMs")


def _by_gateway(name: str, *members: Member, cites: tuple[str, ...] = ()) -> EntryType:
    return EntryType(name, "gateway", None, None, members, GATEWAY, cites)


def _by_request(
    name: str, action: str, *members: Member, actor_rule: str = "agent", cites: tuple[str, ...] = ()
) -> EntryType:
    return EntryType(name, "request", action, ACTION_PATHS[action], members, actor_rule, cites)


_ROWS = (
    _by_gateway(
        "ledger.opened",
        Member("rules", RULES),
        Member("root", VKEY),
        Member("keys", _list("key lines", KEY_LINE, 1, 16)),
        Member("operators", _list("operators", DID, 1, 64)),
        Member("authorities", _list("authorities", AUTHORITY, 1, 32)),
        Member("isPublic", BOOLEAN),
        Member("isDev", BOOLEAN),
        Member("unicodeVersion", UNICODE_VERSION),
        Member("parameters", PARAMETERS),
    ),
    _by_gateway("service.started", Member("cause", REASON), Member("isClean", BOOLEAN), Member("gapMs", DURATION_MS)),
    _by_gateway(
        "lease.holiday",
        Member("untilMs", TIME_MS),
        Member("startedSeq", SEQ),
        Member("reason", REASON),
        cites=("startedSeq",),
    ),
    _by_gateway("ledger.disputed", Member("checkpoint", NOTE), Member("size", SIZE), Member("root", ROOT)),
    _by_request("agent.added", "agent.add", Member("agent", DID), Member("name", LABEL, False), actor_rule="operator"),
    _by_request("agent.removed", "agent.remove", Member("agent", DID), actor_rule="operator"),
    _by_request("agent.refused", "agent.add", Member("agent", DID), *_REFUSED),
    _by_request("removal.refused", "agent.remove", Member("agent", DID), *_REFUSED),
    _by_request("lease.granted", "lease.acquire", *_LEASE),
    _by_request("lease.extended", "lease.acquire", *_LEASE_AGAIN),
    _by_request(
        "lease.refused",
        "lease.acquire",
        Member("resources", RESOURCES),
        Member("mode", MODE),
        Member("ttlMs", TTL_MS),
        *_REFUSED,
        Member("holder", DID, False),
        Member("holderName", LABEL, False),
        Member("conflict", CONFLICT, False),
        Member("conflicts", COUNT, False),
        Member("stampede", STAMPEDE, False),
        Member("retryAfterMs", DURATION_MS, False),
    ),
    _by_request("lease.renewed", "lease.renew", *_LEASE_AGAIN),
    _by_request(
        "renewal.refused",
        "lease.renew",
        Member("leaseId", LEASE_ID),
        Member("ttlMs", TTL_MS),
        *_REFUSED,
        Member("endedSeq", SEQ, False),
    ),
    _by_request(
        "lease.released",
        "lease.release",
        Member("resources", RESOURCES),
        Member("leaseId", LEASE_ID),
        Member("fencingToken", TOKEN),
        Member("grantedAtMs", TIME_MS),
        Member("grantSeq", SEQ),
        cites=("grantSeq",),
    ),
    _by_request(
        "release.repeated",
        "lease.release",
        Member("resources", RESOURCES),
        Member("leaseId", LEASE_ID),
        Member("endedSeq", SEQ),
    ),
    _by_request(
        "release.refused",
        "lease.release",
        Member("resources", RESOURCES),
        Member("leaseId", LEASE_ID, False),
        *_REFUSED,
        Member("holder", DID, False),
        Member("endedSeq", SEQ, False),
    ),
    _by_gateway(
        "lease.expired",
        Member("resources", RESOURCES),
        Member("leaseId", LEASE_ID),
        Member("fencingToken", TOKEN),
        Member("holder", DID),
        Member("grantSeq", SEQ),
        Member("expiresAtMs", TIME_MS),
        cites=("grantSeq",),
    ),
    EntryType(
        "decision.failed",
        "request",
        None,
        None,
        (
            Member("action", ACTION),
            Member("error", _choice("error", "decision_failed")),
            Member("number", _integer("refusal number", 901, 901)),
        ),
        "agent",
    ),
)
ENTRY_TYPES: Mapping[str, EntryType] = MappingProxyType({row.type: row for row in _ROWS})
_ALL_MEMBERS = {row.type: (*COMMON_MEMBERS, *row.members) for row in _ROWS}
_ALL_CHECKS = {kind: _checks(members) for kind, members in _ALL_MEMBERS.items()}
_RELEASED = full_type("lease.released")
# What a leaf repeats from its body, by type; decision.failed repeats nothing.
_REPEATED = {
    row.type: tuple(member.name for member in row.members if member.name in {m.name for m in ACTION_BODIES[row.action]})
    for row in _ROWS
    if row.action is not None
}


def leaf_schema(entry_type: str) -> JsonObject:
    """Return the JSON Schema (2020-12) of a whole leaf of this full type string."""
    return object_schema(_ALL_MEMBERS[entry_type])


# --- leaves ---------------------------------------------------------------------------------------------------------


class Leaf(NamedTuple):
    """One parsed leaf: `value` is the whole JSON object, `prev` and `genesis` 32 bytes, `request` the evidence, if any.

    `is_known` is False for a type this version does not know: then only the common members were checked.
    A NamedTuple, because a frozen dataclass of this size takes three times as long to make, for every entry.
    """

    value: JsonObject
    type: str
    origin: str
    seq: int
    epoch: int
    time_ms: int
    prev: bytes
    genesis: bytes
    actor: str
    principal: str
    on_behalf_of: str
    request: Mapping[str, str] | None
    is_known: bool

    @property
    def entry_type(self) -> EntryType:
        """The row of the table; KeyError for an unknown type (ask `is_known` first)."""
        return ENTRY_TYPES[self.type]

    @property
    def action(self) -> str | None:
        """The action a request of this leaf must have been signed for; None for entries of the gateway."""
        row = self.entry_type
        return self.text("action") if row.cause == "request" and row.action is None else row.action

    def text(self, name: str) -> str:
        """Return a member that the table says is a string ("" when it is absent)."""
        return _text_of(self.value, name)

    def number(self, name: str) -> int:
        """Return a member that the table says is an integer (-1 when it is absent)."""
        return _number_of(self.value, name)


def parse_leaf(unverified_bytes: bytes) -> Leaf:
    """Parse one leaf by the table, or raise Malformed naming the member.

    Canonical restricted JSON of at most LEAF_BYTES_MAX bytes. Evidence is only measured here; request.py judges it.
    Source: docs/protocol.md 12.1, 12.2.
    """
    value = open_canonical(unverified_bytes, bytes_max=LEAF_BYTES_MAX)
    kind = value.get("type")
    checks = _ALL_CHECKS.get(kind) if isinstance(kind, str) else None
    if checks is None or not _fits(value, checks):
        check_names_and_integers(value)  # no table has bounded them yet
        members = _ALL_MEMBERS.get(str(kind), COMMON_MEMBERS)
        known = value if checks else {m.name: value[m.name] for m in COMMON_MEMBERS if m.name in value}
        fault = _first_fault(known, members)
        if fault is not None:
            raise fault
    leaf = _leaf(value, checks is not None)
    contradiction = _contradiction(leaf)
    if contradiction is not None:
        raise Malformed(contradiction)
    return leaf


def _leaf(value: JsonObject, is_known: bool) -> Leaf:
    evidence = value.get("request")
    return Leaf(
        value=value,
        type=_text_of(value, "type"),
        origin=_text_of(value, "origin"),
        seq=_number_of(value, "seq"),
        epoch=_number_of(value, "epoch"),
        time_ms=_number_of(value, "timeMs"),
        prev=bytes.fromhex(_text_of(value, "prev")),
        genesis=bytes.fromhex(_text_of(value, "genesis")),
        actor=_text_of(value, "actor"),
        principal=_text_of(value, "principal"),
        on_behalf_of=_text_of(value, "onBehalfOf"),
        request=evidence if _are_texts(evidence) else None,
        is_known=is_known,
    )


def _are_texts(evidence: JsonValue) -> TypeGuard[dict[str, str]]:
    """Say whether there is evidence; that it holds texts only is the table's word."""
    return isinstance(evidence, dict)


def _text_of(value: JsonObject, name: str) -> str:
    text = value.get(name)
    return text if isinstance(text, str) else ""


def _number_of(value: JsonObject, name: str) -> int:
    number = value.get(name)
    return number if isinstance(number, int) else -1


def _contradiction(leaf: Leaf) -> str | None:
    """Return how a leaf contradicts itself, or None. Members of one leaf that follow from each other must agree."""
    if (leaf.seq == 0) != (leaf.text("genesis") == ZERO_HASH) or (leaf.seq == 0) != (leaf.text("prev") == ZERO_HASH):
        return "members prev, genesis: zeros exactly in entry 0"
    if not leaf.is_known:
        return None
    if (leaf.seq == 0) != (leaf.type == full_type("ledger.opened")):
        return "member type: ledger.opened is entry 0 and only entry 0"
    if not leaf.actor == leaf.principal == leaf.on_behalf_of:
        return "members actor, principal, onBehalfOf: equal in this version"
    if (leaf.entry_type.cause == "gateway") != (leaf.actor == GATEWAY):
        return "member actor: gateway exactly in entries that the gateway causes"
    if leaf.actor == GATEWAY and leaf.request is not None:
        return "member request: an entry of the gateway has no evidence"
    rule = _SELF_RULES.get(leaf.type)
    return rule(leaf) if rule is not None else None


def _lease_rule(leaf: Leaf) -> str | None:
    """A new grant is named by its own seq and counts from its own time; a later one refers to an earlier entry."""
    grant_seq = leaf.number("grantSeq") if "grantSeq" in leaf.value else leaf.seq
    if leaf.text("leaseId") != f"L{grant_seq}":
        return "member leaseId: L and the seq of the granting entry"
    if "schemes" in leaf.value and leaf.value["schemes"] != schemes_of(resources_of(leaf.value)):
        return "member schemes: exactly the schemes of the resources"
    is_grant = leaf.type == full_type("lease.granted")
    if not is_grant and grant_seq >= leaf.seq:
        return "member grantSeq: an earlier entry"
    granted_at_ms = leaf.time_ms if is_grant else leaf.number("grantedAtMs")
    if granted_at_ms > leaf.time_ms:
        return "member grantedAtMs: not after timeMs"
    # Each of at most `grant_seq` earlier grants raised the token by one, or to its own time.
    if granted_at_ms >= 0 and not 0 <= leaf.number("fencingToken") - granted_at_ms * 1000 <= grant_seq:
        return "member fencingToken: at least the time of the grant x 1,000, at most the seq of the grant above that"
    return _end_fault(leaf, granted_at_ms, is_grant) if "ttlMs" in leaf.value else None


def _end_fault(leaf: Leaf, granted_at_ms: int, is_grant: bool) -> str | None:
    """An end is the time of this entry + ttlMs; a later entry may repeat an end that an earlier one had stated."""
    expires_at_ms, end_ms = leaf.number("expiresAtMs"), leaf.time_ms + leaf.number("ttlMs")
    if is_grant and expires_at_ms != end_ms:
        return "member expiresAtMs: timeMs + ttlMs"
    if not end_ms <= expires_at_ms <= leaf.time_ms + TTL_MS_MAX:
        return f"member expiresAtMs: at least timeMs + ttlMs, at most timeMs + {TTL_MS_MAX:,}"
    is_past = leaf.number("holdUntilMs") < granted_at_ms
    return "member holdUntilMs: not before the grant" if is_past else None


def _expired_rule(leaf: Leaf) -> str | None:
    is_early = leaf.number("expiresAtMs") > leaf.time_ms
    return "member expiresAtMs: no lease expires before its time" if is_early else _lease_rule(leaf)


def _refused_rule(leaf: Leaf) -> str | None:
    is_held = leaf.text("error") == "lease_held"
    if any((name in leaf.value) != is_held for name in HELD_MEMBERS):
        return "members " + ", ".join(HELD_MEMBERS) + ": there exactly when the error is lease_held"
    return "member holderName: only with holder" if "holderName" in leaf.value and not is_held else None


def _earlier_rule(leaf: Leaf) -> str | None:
    for name in ("endedSeq", "startedSeq"):
        if leaf.number(name) >= leaf.seq:
            return f"member {name}: an earlier entry"
    return None


_SELF_RULES: Mapping[str, Callable[[Leaf], str | None]] = {
    full_type("lease.granted"): _lease_rule,
    full_type("lease.extended"): _lease_rule,
    full_type("lease.renewed"): _lease_rule,
    full_type("lease.released"): _lease_rule,
    full_type("lease.expired"): _expired_rule,
    full_type("lease.refused"): _refused_rule,
    full_type("lease.holiday"): _earlier_rule,
    full_type("renewal.refused"): _earlier_rule,
    full_type("release.repeated"): _earlier_rule,
    full_type("release.refused"): _earlier_rule,
}


def body_difference(leaf: Leaf, body: JsonObject) -> str | None:
    """Return the first member in which a leaf differs from the checked body it answers or the stated default, or None.

    A lease id that the request left open is filled in by the release itself; nothing else may be.
    Source: docs/protocol.md 16.5 (d), security.md §2 (d).
    """
    action = leaf.action
    if action is None or action not in ACTION_BODIES:
        return "action"
    for name in _REPEATED.get(leaf.type, ()):
        wanted: JsonValue = list(resources_of(body)) if name == "resources" else body.get(name, BODY_DEFAULTS.get(name))
        if leaf.value.get(name) != wanted and not (name == "leaseId" and wanted is None and leaf.type == _RELEASED):
            return name
    return None
