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

Source: docs/protocol.md 12.5 (entry types), 5.2 (bodies), 3 (names), 15.7 (keys), 24.5 (cycles), 28 to 31, 37 to 39.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from verifier.did import decode_did
from verifier.statement import read_key_statement
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
RULES_VERSION = 5  # of the decisions; entry 0 names it
TTL_MS_MIN, TTL_MS_MAX, TTL_MS_DEFAULT = 1_000, 3_600_000, 30_000
GIVE_UP_MS_MIN, GIVE_UP_MS_MAX = 1_000, 3_600_000  # the longest is the default
LOCK_DELAY_MS_MAX = 3_600_000
HOLD_MS_MIN, HOLD_MS_MAX = 1_000, 2_592_000_000  # 30 days
TRUST_CHANGE_MAX = 100_000
RESOURCES_MAX = 256  # names in one request
WAIT_RESOURCES_MAX = 16  # names in a request that waits
WAIT_RESOURCES_BYTES_MAX = 4_096  # all names of one request that waits
SCHEMES_MAX = 16  # different schemes in one request
RESOURCE_BYTES_MAX = 1_024  # one name
RESOURCES_BYTES_MAX = 16_384  # all names of one request together
SKEW_MS = 30_000  # a signature's window is widened by this much on both sides
WINDOW_S_MAX = 300  # expires − created
IDEMPOTENCY_MS = 86_400_000  # a key belongs to its first request for this much log time
TIME_MS_MAX = 4_102_444_800_000 * 2  # year 2229; keeps timeMs × 1,000 below 2^53
LEAF_BYTES_LARGEST = 65_300  # no leaf of this table is larger; tests/verifier/test_entries.py builds the worst one
BATCH_COMMANDS_MAX = 256
BATCH_BODY_BYTES_MAX = 40_960  # a batch's body counted as a JSON string; every other body ends at BODY_BYTES_MAX
DELEGATIONS_MAX = 3  # statements in a body; more than two are then refused by number
SESSION_MEMORY_MS = 86_400_000  # an ended session is remembered for so long after its expiresAtMs
SESSIONS_REMEMBERED = 16  # times sessionsPerPrincipal: sessions of one agent, or of one operator itself, ended ones too
ASK_MEMORY_MS = 3_600_000  # an ask for approval is remembered for so long after it is over
ASKS_REMEMBERED = 16  # times asksPerPrincipal: asks of one agent and its sessions, those that are over as well
DELEGATION_MS_MAX = 604_800_000  # expiresAtMs - notBeforeMs of a statement: 7 days
COSIGNED_CHARACTERS_MAX = 16_384  # of a checkpoint with the lines of its witnesses
SCOPE_RESOURCES_MAX, SCOPE_BYTES_MAX = 16, 4_096  # names of a statement, and of a session
ADMIT_RESOURCES_MAX = 64  # names of one admission
COST_MAX = 1_000_000_000_000  # what one admission may cost, in whatever unit its caller counts
APPROVALS_MAX, APPROVERS_MAX = 4, 8  # statements in one admission; whom one request for approval may name
APPROVAL_MS_MAX = 604_800_000  # expiresAtMs - notBeforeMs of a statement of approval: 7 days
ASK_MS_MIN, ASK_MS_MAX, ASK_MS_DEFAULT = 1_000, 604_800_000, 3_600_000  # how long a request for approval may stand
RULES_CHARACTERS_MAX = 16_384  # of a rule set
RULE_IDS_MAX = 64  # rules in a set, and rules or obligations that a decision names
CYCLE_ROWS_MAX = 64
CYCLE_NAME_BYTES_MAX = 2_048  # of the rows' resources together; with more the largest refusal would not fit a bundle
ZERO_HASH = "0" * 64
GATEWAY = "gateway"  # the actor of entries that the gateway itself causes
DELEGATION_TYPE = "tallystick/delegation/1"
APPROVAL_TYPE = "tallystick/approval/1"
PURPOSES = ("log", "receipt")  # of the keys that the ledger may change while it lives
VERBS = ("admit", "lease", "transfer")  # what a statement may let a session do
# What a command of a batch may ask.
BATCH_ACTIONS = ("lease.acquire", "lease.renew", "lease.release", "coordination.admit")

# Entry 0 names every parameter that decisions depend on; these are the values of RULES_VERSION.
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
        "pollMs": 30_000,
        "claimMs": 10_000,
        "waitMaxMs": GIVE_UP_MS_MAX,
        "queuePerResource": 256,
        "queuePerPrincipal": 64,
        "queueTotal": 10_000,
        "lockDelayMs": 0,
        "deadlockNodes": 1_000,
        "passesMax": 32,
        "reserveAfterMs": 60_000,
        "trustStart": 50_000,
        "trustMax": 100_000,
        "trustGain": 500,
        "trustGainHoldMs": 1_000,
        "trustGainMax": 1_000,
        "trustGainWindowMs": 3_600_000,
        "trustLoss": 5_000,
        "heldPerPrincipal": 1_024,
        "sessionIdleMs": 120_000,
        "sessionsPerPrincipal": 1_024,
        "trialDecisions": 35,
        "trialMs": 604_800_000,
        "trialTtlMaxMs": 60_000,
        "witnessMs": 60_000,
        "admissionMs": 60_000,
        "asksPerPrincipal": 64,
    }
)


class MemberError(Malformed):
    """A body or leaf that breaks the table; `code` and `member` say where, the text says what to do.

    `code` is one of member_missing, member_unknown, member_invalid, member_conflict (members that do not
    go together).
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

    `name` is `noun.participle`, `type` the full string of the leaf. `cause` is "request" (the leaf carries evidence, or
    says which command of a batch it answers) or "gateway". `action` and `path` are the action a request of this type
    must have been signed for; both None for entries of the gateway, and for `decision.failed`, whose member `action`
    names it. `actor_rule` is "agent" (a key in force, operators and sessions included), "session" (an open session),
    "operator" (an operator in force), "operator or enroller" (the enroller exactly with `keyDigest`) or "gateway".
    `cites` names members holding the `seq` of an earlier entry; two entries of one type never cite the same one through
    the same member.
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

CLASSES = ("read-safe", "exclusive", "append-only", "irreversible")
MODES = ("read", "append", "write", "delete")  # each weaker than the next

# Printable ASCII without space and * " \ < > ` ; the slash separates segments. Only the last segment may be `**`.
_PLAIN = r"!#-)+-.0-;=?-\[\]-_a-~"
_SCHEME_NAME = "[a-z][a-z0-9-]{0,31}"


def _pattern(characters: str) -> str:
    segment = rf"(?:(?!\.{{1,2}}(?:/|\Z))[{characters}]{{1,255}}|\*\*\Z)"
    return rf"{_SCHEME_NAME}:{segment}(?:/{segment}){{0,31}}"


RESOURCE_PATTERN = _pattern(_PLAIN + "\u0080-\U0010ffff")
_ASCII_RESOURCE, _ANY_RESOURCE = re.compile(_pattern(_PLAIN)), re.compile(RESOURCE_PATTERN)
_SCHEME = re.compile(f"{_SCHEME_NAME}:")
# What is seen as nothing at all (the property Default_Ignorable_Code_Point, which Python's tables lack).
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_FORBIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zs", "Zl", "Zp"))  # control, format, surrogate, private, separators
_LOWERED = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def check_resource(name: str) -> None:
    """Raise Malformed unless `name` is `scheme:path` as the protocol spells it; the text says how to spell it.

    Source: docs/protocol.md 3, security.md §8.
    """
    hint = resource_hint(name)
    if hint is not None:
        raise Malformed(f"resource: {hint} (the name has {len(name)} characters)")


def resource_hint(name: str) -> str | None:
    """Return None for a good resource name, else one sentence that says what to change.

    Code points unassigned in this Python are let pass: whoever takes names in asks `is_assigned` too.
    """
    if len(name) <= RESOURCE_BYTES_MAX and _ASCII_RESOURCE.fullmatch(name):
        return None
    if not name.isascii() and _ANY_RESOURCE.fullmatch(name):
        return _unicode_hint(name)
    if len(name) > RESOURCE_BYTES_MAX:
        return f"at most {RESOURCE_BYTES_MAX:,} bytes are allowed; use a shorter name"
    if "\\" in name:
        return "use / instead of \\ between segments"
    if not _SCHEME.match(name):
        return f"write scheme:path, for example repo:app/src/main.py; a scheme is {_SCHEME_NAME}"
    return _path_hint(name.partition(":")[2])


def _path_hint(path: str) -> str:
    """Name the first thing that is wrong with the part of a resource after its scheme."""
    segments = path.split("/")
    if "" in segments:
        return "empty segments are refused; remove the doubled, first or last /"
    if "." in segments or ".." in segments:
        return "the segments . and .. are refused; write the plain path"
    if len(segments) > 32 or any(len(segment) > 255 for segment in segments):
        return "a path has 1 to 32 segments of 1 to 255 bytes"
    if "*" in path:
        return "* stands only as the last segment **, which means the whole sub-tree"
    return 'printable characters without space and * " < > ` are allowed in segments'


def _unicode_hint(name: str) -> str | None:
    """What a name that is not ASCII must be beside its form: short in bytes, visible, and spelled in one way only."""
    path = name.partition(":")[2]
    if any(unicodedata.category(c) in _FORBIDDEN for c in path) or _IGNORABLE.search(path):
        return "characters that can't be seen (control, format, private, space, ignorable) are refused; leave them out"
    if byte_length(name) > RESOURCE_BYTES_MAX or any(byte_length(part) > 255 for part in path.split("/")):
        return f"at most {RESOURCE_BYTES_MAX:,} bytes are allowed, 255 in a segment; use a shorter name"
    if is_assigned(name) and not unicodedata.is_normalized("NFC", name):
        return f"the name is not in the normal form NFC; write {unicodedata.normalize('NFC', name)}"
    return None


def is_assigned(name: str) -> bool:
    """Say whether this Python knows every character of a name; without that its normal form can't be judged."""
    return name.isascii() or all(unicodedata.category(c) != "Cn" for c in name)


def byte_length(text: str) -> int:
    """Return how many bytes a text without lone surrogates has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def scheme_of(name: str) -> str:
    """Return the scheme of a good resource name: "repo" of "repo:app/**"."""
    return name.partition(":")[0]


def schemes_of(names: Collection[str]) -> list[str]:
    """Return the different schemes of some names (at least one), sorted."""
    first = scheme_of(min(names))
    if max(names).startswith(f"{first}:"):  # so does what lies between them; this is the usual case
        return [first]
    return sorted(set(map(scheme_of, names)))


def key_of(name: str, is_folding: bool) -> str:
    """Return what names are compared by: the name, with A to Z lowered where its scheme folds case."""
    if not is_folding:
        return name
    return name.lower() if name.isascii() else name.translate(_LOWERED)


def covers(a_key: str, b_key: str) -> bool:
    """Say whether `a_key` names everything that `b_key` names: the same, or a sub-tree around it.

    `x/**` covers x and whatever begins with `x/`; `s:**` covers the scheme s. Source: docs/protocol.md 3.3.
    """
    if a_key == b_key:
        return True
    if not a_key.endswith("**"):
        return False
    inside = a_key[:-2]  # ends with the slash or the colon
    return b_key.startswith(inside) or b_key == inside[:-1]


def overlaps(a_key: str, b_key: str) -> bool:
    """Say whether something is named by both: equal keys, or one covers the other."""
    return covers(a_key, b_key) or covers(b_key, a_key)


def may_share(scheme_class: str, mode_a: str, mode_b: str) -> bool:
    """Say whether leases of two actors in these modes may live on one resource. Source: docs/protocol.md 7.9."""
    if scheme_class == "read-safe":
        return mode_a == mode_b == "read"
    return scheme_class == "append-only" and {mode_a, mode_b} <= {"read", "append"}


def is_mode_allowed(scheme_class: str, mode: str) -> bool:
    """Say whether a class has this mode at all: what is append-only is neither written nor deleted."""
    return scheme_class != "append-only" or mode in ("read", "append")


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


def _sorted(name: str, item: Kind, count_min: int, count_max: int) -> Kind:
    """A list whose texts rise: no text is there twice."""
    plain = _list(name, item, count_min, count_max)

    def check(value: JsonValue) -> bool:
        return plain.check(value) and isinstance(value, list) and value == sorted(set(map(str, value)))

    return Kind(name, check, plain.bound + ", sorted, each once", {**plain.schema, "uniqueItems": True})


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


def _is_base64(value: JsonValue, size: int) -> bool:
    try:
        return type(value) is str and len(decode_base64(value, size)) == size
    except Malformed:
        return False


def _is_resource(value: JsonValue) -> bool:
    return type(value) is str and resource_hint(value) is None


def _are_resources(value: JsonValue) -> bool:
    """Any order, no duplicates: the form of a request body."""
    if type(value) is not list or not 1 <= len(value) <= RESOURCES_MAX:
        return False
    names = {name for name in value if type(name) is str and resource_hint(name) is None}
    return (
        len(names) == len(value)
        and byte_length("".join(names)) <= RESOURCES_BYTES_MAX
        and (len(names) <= SCHEMES_MAX or len(schemes_of(names)) <= SCHEMES_MAX)
    )


def _are_sorted_resources(value: JsonValue) -> bool:
    """Sorted, no duplicates: the form of a leaf."""
    return _are_resources(value) and isinstance(value, list) and value == sorted(map(str, value))


def are_few(names: Collection[JsonValue] | Collection[str]) -> bool:
    """Say whether these names are few enough for the scope of a session."""
    return len(names) <= SCOPE_RESOURCES_MAX and byte_length("".join(map(str, names))) <= SCOPE_BYTES_MAX


def may_wait(names: Collection[JsonValue] | Collection[str]) -> bool:
    """Say whether a request for these names may wait."""
    return len(names) <= WAIT_RESOURCES_MAX and byte_length("".join(map(str, names))) <= WAIT_RESOURCES_BYTES_MAX


def may_admit(names: Collection[JsonValue] | Collection[str]) -> bool:
    """Say whether these names are few enough for one admission, and objects all: what a sub-tree holds would be
    admitted without a rule about it having been asked."""
    return len(names) <= ADMIT_RESOURCES_MAX and all(map(_is_object, names))


def _is_object(name: JsonValue) -> bool:
    return type(name) is str and not name.endswith("**")


def _explain_resource(value: JsonValue) -> str | None:
    return resource_hint(value) if type(value) is str else None


def _explain_object(value: JsonValue) -> str | None:
    hint = _explain_resource(value)
    return hint or (None if _is_object(value) else "an admission names objects, no sub-tree; name what will be touched")


def _explain_objects(value: JsonValue) -> str | None:
    trees = [] if type(value) is not list else [index for index, name in enumerate(value) if not _is_object(name)]
    return _explain_resources(value) or (f"name {trees[0]}: {_explain_object('s:**')}" if trees else None)


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
    if len(schemes_of([str(name) for name in value[:RESOURCES_MAX]] or [""])) > SCHEMES_MAX:
        return "too many different schemes; ask in several requests"
    return None


def _are_schemes(value: JsonValue) -> bool:
    """Sorted by name, each once."""
    if type(value) is not list or not 1 <= len(value) <= SCHEMES_MAX or not all(map(_SCHEME_ROW.check, value)):
        return False
    names = [row["name"] for row in value if isinstance(row, dict)]
    return names == sorted(set(map(str, names)))


def _are_counted(value: JsonValue) -> bool:
    """Sorted by name, each once."""
    if type(value) is not list or not 1 <= len(value) <= SCHEMES_MAX or not all(map(_COUNTED_ROW.check, value)):
        return False
    names = [str(row["name"]) for row in rows_of(value)]
    return names == sorted(set(names))


def _are_approved(value: JsonValue) -> bool:
    """Sorted by operator, each once."""
    if type(value) is not list or not 1 <= len(value) <= APPROVALS_MAX or not all(map(_APPROVED_ROW.check, value)):
        return False
    operators = [str(row["operator"]) for row in rows_of(value)]
    return operators == sorted(set(operators))


_WAITS_FOR = ("fencingToken", "aheadId", "askId")  # what a row of a cycle waits for


def _is_cycle(value: JsonValue) -> bool:
    """A list of rows; each waits for a lease, for an approval or behind a ticket, the last not behind a ticket."""
    if type(value) is not list or not 2 <= len(value) <= CYCLE_ROWS_MAX or not all(map(_CYCLE_ROW.check, value)):
        return False
    rows = rows_of(value)
    is_open = any(sum(name in row for name in _WAITS_FOR) != 1 for row in rows) or "aheadId" in rows[-1]
    return not is_open and byte_length("".join(str(row["resource"]) for row in rows)) <= CYCLE_NAME_BYTES_MAX


def _is_acquire_order(value: JsonValue) -> bool:
    """Sorted, no duplicates: the distinct resources of a cycle."""
    if type(value) is not list or not 1 <= len(value) <= CYCLE_ROWS_MAX or not all(map(_is_resource, value)):
        return False
    names = list(map(str, value))
    return names == sorted(set(names)) and byte_length("".join(names)) <= CYCLE_NAME_BYTES_MAX


def rows_of(value: JsonValue) -> list[JsonObject]:
    """Return the objects of a member that the table says is a list of objects; empty when it is absent."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def body_bytes_max(action: str | None) -> int:
    """Return how many bytes a body of this action may have, as it came and counted as a JSON string."""
    return BATCH_BODY_BYTES_MAX if action == "batch.submit" else BODY_BYTES_MAX


def is_body_text(value: JsonValue, bytes_max: int = BODY_BYTES_MAX) -> bool:
    """Counted as it stands in the leaf, quotes and escapes included, so that every leaf fits."""
    if type(value) is not str or len(value) > bytes_max:
        return False
    # No character takes more than six bytes, and most bodies are short.
    return len(value) * 6 + 2 <= bytes_max or len(encode_canonical(value)) <= bytes_max


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
RULES = _integer("rules version", RULES_VERSION, RULES_VERSION)
POSITION = _integer("position", 1, INT_MAX)
GIVE_UP_MS = _integer("give up", GIVE_UP_MS_MIN, GIVE_UP_MS_MAX, " (milliseconds)")
LOCK_DELAY_MS = _integer("lock delay", 0, LOCK_DELAY_MS_MAX, " (milliseconds)")
MAX_HOLD_MS = _integer("hold", HOLD_MS_MIN, HOLD_MS_MAX, " (milliseconds)")
TRUE = Kind("true", lambda value: value is True, "true, else left out", {"const": True})
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
    lambda value: _is_base64(value, 32),
    "padded base64 of 32 bytes, 44 characters",
    {"type": "string", "minLength": 44, "maxLength": 44},
)
SIGNATURE = Kind(
    "signature",
    lambda value: _is_base64(value, 64),
    "padded base64 of 64 bytes, 88 characters",
    {"type": "string", "minLength": 88, "maxLength": 88},
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
ASK_ID = _text("ask id", "A[1-9][0-9]{0,15}", 17, "A and the seq of the asking entry, such as A44")
TICKET_ID = _text("ticket id", "T[1-9][0-9]{0,15}", 17, "T and the seq of the queueing entry, such as T43")
ERROR = _text("error", "[a-z][a-z0-9_]{0,63}", 64, "a refusal name of the table, such as lease_held")
OPERATION = _text(
    "operation", "[a-z][a-z0-9._-]{0,63}", 64, "what is to be done, such as file.write: 1 to 64 of a-z 0-9 . _ -"
)
COST = _integer("cost", 0, COST_MAX)
NONCE = _text("nonce", "[A-Za-z0-9_-]{16,64}", 64, "16 to 64 characters of A-Z a-z 0-9 _ -")
RULES_TEXT = _text(
    "rule set",
    rf"[\t\n -~]{{1,{RULES_CHARACTERS_MAX}}}",
    RULES_CHARACTERS_MAX,
    f"Cedar text of 1 to {RULES_CHARACTERS_MAX:,} printable ASCII characters, tabs and line feeds",
)
RULES_VERSION_NUMBER = _integer("version of a rule set", 1, INT_MAX)
RULES_MODE = _choice("rules mode", "enforce", "shadow")
RULE_ID = _text("rule id", "[a-z0-9][a-z0-9._-]{0,63}", 64, "1 to 64 characters of a-z 0-9 . _ -")
OBLIGATION = _text("obligation", "[a-z0-9][a-z0-9:._-]{0,63}", 64, "1 to 64 characters of a-z 0-9 : . _ -")
RULE_IDS = _sorted("rule ids", RULE_ID, 0, RULE_IDS_MAX)
OBLIGATIONS = _sorted("obligations", OBLIGATION, 0, RULE_IDS_MAX)
ENGINE = _text(
    "engine", "(?:none|cedar/[0-9A-Za-z.+-]{1,32})", 38, 'cedar/ and the version of what evaluated the rules, or "none"'
)
ACTION = _text("action", "[a-z]{1,32}[.][a-z]{1,32}", 65, "an action name such as lease.acquire")
VKEY = _text("vkey", "[!-~]{1,400}", 400, "a C2SP verifier key, at most 400 characters")
KEY_LINE = _text(
    "key line", "[ -~]{1,512}", 512, "a line of the key document without the word key, at most 512 characters"
)
UNICODE_VERSION = _text("unicode version", "[0-9]{1,3}[.][0-9]{1,3}[.][0-9]{1,3}", 11, "a version such as 14.0.0")
PURPOSE = _choice("purpose", *PURPOSES)
MODE = _choice("mode", *MODES)
CLASS = _choice("class", *CLASSES)
SCHEME = _text("scheme", _SCHEME_NAME, 32, f"a scheme name, {_SCHEME_NAME}")
DURABILITY = _choice("durability", "memory", "file", "local", "replicated")
CUSTODY = _choice("custody", "gateway")
REASON = _choice("reason", "start", "recovery")
REASON_CODE = _text("reason code", "[a-z0-9._-]{1,64}", 64, "a code of 1 to 64 characters of a-z 0-9 . _ -")
REMOVAL = _choice("removal", "poll_lapsed", "claim_lapsed", "given_up", "holder_gone")
ENDING = _choice("ending", "idle", "expired", "revoked")
KEY_KIND = _choice("kind of API key", "live", "trial")
BATCH_COUNT = _integer("batch count", 1, BATCH_COMMANDS_MAX)
BATCH_INDEX = _integer("batch index", 0, BATCH_COMMANDS_MAX - 1)
BATCH_ACTION = _choice("action", *BATCH_ACTIONS)
DEPTH = _integer("depth", 0, 1)
VERB_LIST = Kind(
    "verbs",
    lambda value: type(value) is list and bool(value) and value == [verb for verb in VERBS if verb in value],
    "one or more of " + ", ".join(f'"{verb}"' for verb in VERBS) + ", sorted",
    {
        "type": "array",
        "items": {"type": "string", "enum": list(VERBS)},
        "minItems": 1,
        "maxItems": len(VERBS),
        "uniqueItems": True,
    },
)
ON_DEADLOCK = _choice("on deadlock", "refuse", "wait")
NOTE = Kind(
    "note",
    lambda value: type(value) is str and len(encode_canonical(value)) <= 8_192 and len(value.encode()) <= 4_096,
    "a signed checkpoint, at most 4,096 bytes",
    {"type": "string", "maxLength": 4_096},
)
COSIGNED_NOTE = Kind(
    "cosigned note",
    lambda value: (
        type(value) is str and len(value) <= COSIGNED_CHARACTERS_MAX and len(encode_canonical(value)) <= 32_768
    ),
    f"a signed and cosigned checkpoint, at most {COSIGNED_CHARACTERS_MAX:,} characters",
    {"type": "string", "maxLength": COSIGNED_CHARACTERS_MAX},
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
OBJECT = Kind(
    "object",
    lambda value: _is_resource(value) and _is_object(value),
    f"{RESOURCE.bound}, no sub-tree",
    {**RESOURCE.schema, "not": {"pattern": r"\*\*$"}},
    _explain_object,
)
_RESOURCES_BOUND = (
    f"1 to {RESOURCES_MAX} different resources of at most {SCHEMES_MAX} schemes, together at most"
    f" {RESOURCES_BYTES_MAX:,} bytes"
)
BODY_RESOURCES = Kind("resources", _are_resources, _RESOURCES_BOUND, _RESOURCES_SCHEMA, _explain_resources)
RESOURCES = Kind(
    "sorted resources", _are_sorted_resources, _RESOURCES_BOUND + ", sorted", _RESOURCES_SCHEMA, _explain_resources
)
WAIT_RESOURCES = Kind(
    "few sorted resources",
    lambda value: _are_sorted_resources(value) and isinstance(value, list) and may_wait(value),
    f"1 to {WAIT_RESOURCES_MAX} different resources, together at most {WAIT_RESOURCES_BYTES_MAX:,} bytes, sorted",
    {**_RESOURCES_SCHEMA, "maxItems": WAIT_RESOURCES_MAX},
    _explain_resources,
)
_OBJECTS_SCHEMA: JsonObject = {**_RESOURCES_SCHEMA, "items": OBJECT.schema}
_FEW_OBJECTS = f"1 to {WAIT_RESOURCES_MAX} different objects, together at most {WAIT_RESOURCES_BYTES_MAX:,} bytes"
ASK_BODY_RESOURCES = Kind(
    "few objects",
    lambda value: _are_resources(value) and isinstance(value, list) and may_wait(value) and may_admit(value),
    _FEW_OBJECTS,
    {**_OBJECTS_SCHEMA, "maxItems": WAIT_RESOURCES_MAX},
    _explain_objects,
)
ASK_RESOURCES = Kind(
    "few sorted objects",
    lambda value: _are_sorted_resources(value) and isinstance(value, list) and may_wait(value) and may_admit(value),
    _FEW_OBJECTS + ", sorted",
    {**_OBJECTS_SCHEMA, "maxItems": WAIT_RESOURCES_MAX},
    _explain_objects,
)
_OBJECTS = _RESOURCES_BOUND.replace(f"1 to {RESOURCES_MAX} different resources", f"1 to {ADMIT_RESOURCES_MAX} objects")
ADMIT_BODY_RESOURCES = Kind(
    "objects",
    lambda value: _are_resources(value) and isinstance(value, list) and may_admit(value),
    _OBJECTS,
    {**_OBJECTS_SCHEMA, "maxItems": ADMIT_RESOURCES_MAX},
    _explain_objects,
)
ADMIT_RESOURCES = Kind(
    "sorted objects",
    lambda value: _are_sorted_resources(value) and isinstance(value, list) and may_admit(value),
    _OBJECTS + ", sorted",
    {**_OBJECTS_SCHEMA, "maxItems": ADMIT_RESOURCES_MAX},
    _explain_objects,
)
SCOPE = Kind(
    "scope",
    lambda value: _are_sorted_resources(value) and isinstance(value, list) and are_few(value),
    f"1 to {SCOPE_RESOURCES_MAX} different resources, together at most {SCOPE_BYTES_MAX:,} bytes, sorted",
    {**_RESOURCES_SCHEMA, "maxItems": SCOPE_RESOURCES_MAX},
    _explain_resources,
)
BODY_TEXT = Kind(
    "body",
    lambda value: is_body_text(value, BATCH_BODY_BYTES_MAX),
    f"the exact text of the body, at most {BODY_BYTES_MAX:,} bytes counted as a JSON string, of a batch"
    f" {BATCH_BODY_BYTES_MAX:,}",
    {"type": "string", "maxLength": BATCH_BODY_BYTES_MAX},
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


def check_members(value: JsonObject, members: tuple[Member, ...]) -> None:
    """Raise MemberError unless `value` has exactly these members, each of its kind."""
    fault = _first_fault(value, members)
    if fault is not None:
        raise fault


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
    if isinstance(value, dict):
        return f"an object of {len(value)} members"
    return "null" if value is None else "a number that is no integer"  # which a tool's arguments may have


_SCHEME_ROW = _object("scheme of a lease", Member("class", CLASS), Member("isFolding", BOOLEAN), Member("name", SCHEME))
SCHEMES = Kind(
    "schemes",
    _are_schemes,
    "the distinct schemes of the resources, sorted by name, each with its class and whether it folds case",
    {"type": "array", "items": _SCHEME_ROW.schema, "minItems": 1, "maxItems": SCHEMES_MAX},
)
NEXT_KEYS = _object("next keys", *(Member(purpose, HASH, False) for purpose in PURPOSES))
PARAMETERS = _object("parameters", *(Member(name, DURATION_MS) for name in PARAMETER_DEFAULTS))
CONFLICT = _object(
    "conflict",
    Member("leaseId", LEASE_ID),
    Member("resource", RESOURCE),
    Member("heldAs", RESOURCE),
    Member("fencingToken", TOKEN),
    Member("mode", MODE),
    Member("grantedAtMs", TIME_MS),
    Member("expiresAtMs", TIME_MS),
)
AHEAD = _object(
    "ticket ahead",
    Member("ticketId", TICKET_ID),
    Member("actor", DID),
    Member("resource", RESOURCE),
    Member("mode", MODE),
    Member("queuedAtMs", TIME_MS),
)
_CYCLE_ROW = _object(
    "wait",
    Member("actor", DID),
    Member("resource", RESOURCE),
    Member("mode", MODE),
    Member("fencingToken", TOKEN, False),
    Member("ticketId", TICKET_ID, False),
    Member("aheadId", TICKET_ID, False),
    Member("askId", ASK_ID, False),
)
CYCLE = Kind(
    "cycle",
    _is_cycle,
    f"a list of 2 to {CYCLE_ROWS_MAX} waits with resources of at most {CYCLE_NAME_BYTES_MAX:,} bytes together, each"
    " with exactly one of fencingToken, aheadId and askId, the last without aheadId",
    {"type": "array", "items": _CYCLE_ROW.schema, "minItems": 2, "maxItems": CYCLE_ROWS_MAX},
)
ACQUIRE_ORDER = Kind(
    "acquire order",
    _is_acquire_order,
    "the distinct resources of the cycle, sorted",
    {"type": "array", "items": RESOURCE.schema, "minItems": 1, "maxItems": CYCLE_ROWS_MAX, "uniqueItems": True},
)
_CHANGE = Kind(
    "change of trust",
    lambda value: type(value) is int and 0 < abs(value) <= TRUST_CHANGE_MAX,
    f"an integer from -{TRUST_CHANGE_MAX:,} to {TRUST_CHANGE_MAX:,}, not 0",
    {"type": "integer", "minimum": -TRUST_CHANGE_MAX, "maximum": TRUST_CHANGE_MAX, "not": {"const": 0}},
)
TRUST = _list(
    "trust",
    _object(
        "trust row", Member("did", DID), Member("change", _CHANGE), Member("after", COUNT),
        Member("previousSeq", SEQ, False),
    ),
    1, 2,
)  # fmt: skip
STAMPEDE = _object("stampede", Member("admitted", BOOLEAN), Member("waitMs", DURATION_MS))

# What the gateway lets a rule know beside the request: counts are those before this admission, in windows of log time.
FACTS = (
    Member("trust", COUNT),
    Member("approvals", _integer("approving operators", 0, APPROVALS_MAX)),
    Member("leaseState", _choice("lease state", "live", "none")),
    Member("leaseMode", _choice("lease mode", *MODES, "none")),
    Member("leaseAgeMs", DURATION_MS),
    Member("leaseLeftMs", DURATION_MS),
    Member("agentName", _text("agent name", "[A-Za-z0-9._-]{0,40}", 40, "the label of the agent, or nothing")),
    Member("actorKind", _choice("actor kind", "agent", "session")),
    Member("custody", _choice("custody of a key", "agent", "gateway")),
    Member("agentCountMinute", COUNT),
    Member("agentCountDay", COUNT),
    Member("agentCostDay", COUNT),
    Member("operatorCountMinute", COUNT),
    Member("operatorCountDay", COUNT),
    Member("operatorCostDay", COUNT),
)
FACTS_KIND = _object("facts", *FACTS)
_COUNTED_ROW = _object(
    "scheme of an admission",
    Member("name", SCHEME),
    Member("class", CLASS),
    Member("isFolding", BOOLEAN),
    Member("countMinute", COUNT),
    Member("countDay", COUNT),
    Member("costDay", COUNT),
)
COUNTED_SCHEMES = Kind(
    "counted schemes",
    _are_counted,
    "the distinct schemes of the resources, sorted by name, each with its class, whether it folds case, and its counts",
    {"type": "array", "items": _COUNTED_ROW.schema, "minItems": 1, "maxItems": SCHEMES_MAX},
)
RULES_DECISION = _choice("decision of the rules", "allow", "deny", "error")
RULING = _object(
    "ruling",
    Member("version", RULES_VERSION_NUMBER),
    Member("digest", HASH),
    Member("mode", RULES_MODE),
    Member("engine", ENGINE),
    Member("decision", RULES_DECISION),
    Member("matched", RULE_IDS),
    Member("obligations", OBLIGATIONS),
)
_APPROVED_ROW = _object(
    "approval used", Member("approver", DID), Member("operator", DID), Member("nonce", NONCE), Member("digest", HASH)
)
APPROVED = Kind(
    "approvals used",
    _are_approved,
    f"a list of 1 to {APPROVALS_MAX}, sorted by operator, each once, each {_APPROVED_ROW.bound}",
    {"type": "array", "items": _APPROVED_ROW.schema, "minItems": 1, "maxItems": APPROVALS_MAX},
)

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
# A command of a batch says instead where its evidence stands: the seq of batch.received, and its place in the body.
COMMAND_MEMBERS = (Member("batch", SEQ), Member("index", BATCH_INDEX))
_SIGNED, _COMMANDED = _checks(EVIDENCE_MEMBERS), _checks(COMMAND_MEMBERS)
EVIDENCE = Kind(
    "request",
    lambda value: type(value) is dict and _fits(value, _SIGNED if len(value) > 2 else _COMMANDED),
    "an object with exactly " + ", ".join(m.name for m in EVIDENCE_MEMBERS) + "; or with exactly batch, index",
    {"oneOf": [object_schema(EVIDENCE_MEMBERS), object_schema(COMMAND_MEMBERS)]},
)

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
        "lease.transfer": "/api/v1/acp/coordination/transfer",
        "lease.accept": "/api/v1/acp/coordination/accept",
        "lease.break": "/api/v1/acp/coordination/break",
        "wait.claim": "/api/v1/acp/coordination/wait/claim",
        "wait.cancel": "/api/v1/acp/coordination/wait/cancel",
        "batch.submit": "/api/v1/acp/coordination/batch",
        "scheme.set": "/api/v1/acp/schemes",
        "operator.add": "/api/v1/acp/operators",
        "operator.remove": "/api/v1/acp/operators/remove",
        "agent.add": "/api/v1/acp/agents",
        "agent.remove": "/api/v1/acp/agents/remove",
        "apikey.issue": "/api/v1/acp/apikeys",
        "apikey.revoke": "/api/v1/acp/apikeys/revoke",
        "session.open": "/api/v1/acp/sessions",
        "session.beat": "/api/v1/acp/sessions/beat",
        "session.close": "/api/v1/acp/sessions/close",
        "key.announce": "/api/v1/acp/keys/announce",
        "key.retire": "/api/v1/acp/keys/retire",
        "key.compromise": "/api/v1/acp/keys/compromise",
        "coordination.admit": "/api/v1/acp/coordination/admit",
        "approval.ask": "/api/v1/acp/approvals",
        "approval.give": "/api/v1/acp/approvals/give",
        "approval.decline": "/api/v1/acp/approvals/decline",
        "approval.withdraw": "/api/v1/acp/approvals/withdraw",
        "rules.load": "/api/v1/acp/rules",
    }
)
_TO_WHOM = (Member("ledger", ORIGIN), Member("actorDid", DID))
_RESOURCE_OR_RESOURCES = (Member("resource", RESOURCE, False), Member("resources", BODY_RESOURCES, False))

_REASON_DIGEST = Member("reasonDigest", HASH, False)  # SHA-256 of salt and text, which stay outside the ledger
_WHY = (Member("reason", REASON_CODE), _REASON_DIGEST)
_TTL = Member("ttlMs", TTL_MS, False)
_LABEL = Member("name", LABEL, False)

# A statement of delegation, and how it stands in a body. Whether a statement keeps its table is delegation.py's to say:
# that is an error of its own, so a body is judged only by what is around it.
DELEGATION_MEMBERS = (
    Member("type", _choice("delegation type", DELEGATION_TYPE)),
    Member("iss", DID),
    Member("sub", DID),
    Member("aud", ORIGIN),
    Member("verbs", VERB_LIST),
    Member("resources", SCOPE, False),
    Member("notBeforeMs", TIME_MS),
    Member("expiresAtMs", TIME_MS),
    Member("maxDepth", DEPTH),
    Member("parent", HASH, False),
)
STATEMENT = Kind(
    "delegation", lambda value: type(value) is dict, "a statement of delegation", object_schema(DELEGATION_MEMBERS)
)
DELEGATIONS = _list(
    "delegations",
    _object("signed delegation", Member("statement", STATEMENT), Member("signature", SIGNATURE)),
    1,
    DELEGATIONS_MAX,
)
# A statement of approval likewise; approval.py judges it.
APPROVAL_MEMBERS = (
    Member("type", _choice("approval type", APPROVAL_TYPE)),
    Member("ledger", ORIGIN),
    Member("genesis", HASH),
    Member("agent", DID),
    Member("operation", OPERATION),
    Member("actionDigest", HASH),
    Member("argumentsDigest", HASH),
    Member("rulesDigest", HASH),
    Member("approver", DID),
    Member("nonce", NONCE),
    Member("notBeforeMs", TIME_MS),
    Member("expiresAtMs", TIME_MS),
)
APPROVAL_STATEMENT = Kind(
    "approval", lambda value: type(value) is dict, "a statement of approval", object_schema(APPROVAL_MEMBERS)
)
APPROVAL = _object("signed approval", Member("statement", APPROVAL_STATEMENT), Member("signature", SIGNATURE))
APPROVALS = _list("approvals", APPROVAL, 1, APPROVALS_MAX)
APPROVERS = _sorted("approvers", DID, 1, APPROVERS_MAX)
QUORUM = _integer("quorum", 1, APPROVALS_MAX)
ASK_MS = _integer("ask give up", ASK_MS_MIN, ASK_MS_MAX, " (milliseconds)")
_BODIES_IN_BATCH: Mapping[str, tuple[Member, ...]] = {
    "lease.acquire": (*_RESOURCE_OR_RESOURCES, Member("mode", MODE, False), _TTL, _REASON_DIGEST),
    "lease.renew": (Member("leaseId", LEASE_ID), _TTL, Member("mode", MODE, False)),
    "lease.release": (*_RESOURCE_OR_RESOURCES, Member("leaseId", LEASE_ID, False), _REASON_DIGEST),
    "coordination.admit": (
        Member("operation", OPERATION),
        Member("resource", OBJECT, False),
        Member("resources", ADMIT_BODY_RESOURCES, False),
        Member("mode", MODE, False),
        Member("argumentsDigest", HASH),
        Member("leaseId", LEASE_ID, False),
        Member("fencingToken", TOKEN, False),
        Member("cost", COST, False),
        Member("approvals", APPROVALS, False),
    ),
}
# The members of each command of a batch: those of its action, but nothing that waits, and whom it is for stands once.
COMMAND_BODIES: Mapping[str, tuple[Member, ...]] = MappingProxyType(
    {name: (Member("action", BATCH_ACTION), *members) for name, members in _BODIES_IN_BATCH.items()}
)
_COMMAND_CHECKS = {action: _checks(members) for action, members in COMMAND_BODIES.items()}
# Exactly one of these members must be in the body.
ONE_OF: Mapping[str, tuple[str, str]] = MappingProxyType(
    dict.fromkeys(("lease.acquire", "lease.release", "coordination.admit", "approval.ask"), ("resource", "resources"))
)

BOTH_OR_NONE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"agent.add": ("keyDigest", "proof"), "coordination.admit": ("leaseId", "fencingToken")}
)


def _with_one_of(schema: JsonObject, action: str) -> JsonObject:
    alternatives: list[JsonValue] = [{"required": [name]} for name in ONE_OF.get(action, ())]
    return {**schema, "oneOf": alternatives} if alternatives else schema


def _command_schema(action: str) -> JsonObject:
    members = (Member("action", _choice("action", action)), *_BODIES_IN_BATCH[action])
    return _with_pairs(_with_one_of(object_schema(members), action), action)


def _with_pairs(schema: JsonObject, action: str) -> JsonObject:
    """Members that are there together or not at all."""
    one, other = BOTH_OR_NONE.get(action, ("", ""))
    return {**schema, "dependentRequired": {one: [other], other: [one]}} if one else schema


COMMANDS = Kind(
    "commands",
    lambda value: (
        type(value) is list and 1 <= len(value) <= BATCH_COMMANDS_MAX and all(type(item) is dict for item in value)
    ),
    f"a list of 1 to {BATCH_COMMANDS_MAX} objects, each the body of its member action, without ledger and actorDid",
    {
        "type": "array",
        "items": {"oneOf": [_command_schema(action) for action in BATCH_ACTIONS]},
        "minItems": 1,
        "maxItems": BATCH_COMMANDS_MAX,
    },
)

ACTION_BODIES: Mapping[str, tuple[Member, ...]] = MappingProxyType(
    {
        "lease.acquire": (
            *_TO_WHOM,
            *_BODIES_IN_BATCH["lease.acquire"],
            Member("wait", BOOLEAN, False),
            Member("giveUpMs", GIVE_UP_MS, False),
            Member("onDeadlock", ON_DEADLOCK, False),
        ),
        "lease.renew": (*_TO_WHOM, *_BODIES_IN_BATCH["lease.renew"]),
        "lease.release": (*_TO_WHOM, *_BODIES_IN_BATCH["lease.release"]),
        "lease.transfer": (
            *_TO_WHOM,
            Member("leaseId", LEASE_ID),
            Member("seenToken", TOKEN),
            Member("toDid", DID),
            *_WHY,
        ),
        "lease.accept": (*_TO_WHOM, Member("leaseId", LEASE_ID), _TTL),
        "lease.break": (*_TO_WHOM, Member("resource", RESOURCE), Member("seenToken", TOKEN), *_WHY),
        "wait.claim": (*_TO_WHOM, Member("ticketId", TICKET_ID)),
        "wait.cancel": (*_TO_WHOM, Member("ticketId", TICKET_ID)),
        "scheme.set": (
            *_TO_WHOM,
            Member("name", SCHEME),
            Member("class", CLASS),
            Member("isFolding", BOOLEAN, False),
            Member("isUnicode", BOOLEAN, False),
            Member("lockDelayMs", LOCK_DELAY_MS, False),
            Member("maxHoldMs", MAX_HOLD_MS, False),
        ),
        "batch.submit": (
            *_TO_WHOM,
            Member("commands", COMMANDS),
            Member("isAtomic", BOOLEAN, False),
            Member("isBare", TRUE, False),
        ),
        "operator.add": (*_TO_WHOM, Member("operator", DID), _LABEL),
        "operator.remove": (*_TO_WHOM, Member("operator", DID)),
        "agent.add": (
            *_TO_WHOM,
            Member("agent", DID),
            _LABEL,
            Member("agentCustody", CUSTODY, False),
            Member("keyDigest", HASH, False),
            Member("proof", SIGNATURE, False),
        ),
        "agent.remove": (*_TO_WHOM, Member("agent", DID)),
        "apikey.issue": (
            *_TO_WHOM,
            Member("keyDigest", HASH),
            Member("kind", KEY_KIND),
            Member("agent", DID, False),
            _LABEL,
        ),
        "apikey.revoke": (*_TO_WHOM, Member("keyDigest", HASH)),
        "session.open": (*_TO_WHOM, Member("delegations", DELEGATIONS), _LABEL),
        "session.beat": (*_TO_WHOM, Member("activity", REASON_CODE, False)),
        "session.close": (*_TO_WHOM, Member("session", DID), Member("reason", REASON_CODE, False)),
        "key.announce": (*_TO_WHOM, Member("statement", NOTE)),
        "key.retire": (*_TO_WHOM, Member("statement", NOTE)),
        "key.compromise": (*_TO_WHOM, Member("statement", NOTE)),
        "coordination.admit": (*_TO_WHOM, *_BODIES_IN_BATCH["coordination.admit"]),
        "approval.ask": (
            *_TO_WHOM,
            Member("operation", OPERATION),
            Member("resource", OBJECT, False),
            Member("resources", ASK_BODY_RESOURCES, False),
            Member("mode", MODE, False),
            Member("argumentsDigest", HASH),
            Member("cost", COST, False),
            Member("approvers", APPROVERS),
            Member("quorum", QUORUM, False),
            Member("giveUpMs", ASK_MS, False),
        ),
        "approval.give": (*_TO_WHOM, Member("askId", ASK_ID), Member("approval", APPROVAL)),
        "approval.decline": (*_TO_WHOM, Member("askId", ASK_ID), Member("reason", REASON_CODE, False)),
        "approval.withdraw": (*_TO_WHOM, Member("askId", ASK_ID)),
        "rules.load": (
            *_TO_WHOM,
            Member("rules", RULES_TEXT),
            Member("rulesMode", RULES_MODE),
            Member("rulesVersion", RULES_VERSION_NUMBER),
        ),
    }
)
_BODY_CHECKS = {action: _checks(members) for action, members in ACTION_BODIES.items()}
# What stands for a member that the body leaves out. A member without a default asks for nothing when it is absent.
BODY_DEFAULTS: Mapping[str, Mapping[str, JsonValue]] = MappingProxyType(
    {
        "lease.acquire": {
            "mode": "write",
            "ttlMs": TTL_MS_DEFAULT,
            "wait": False,
            "giveUpMs": GIVE_UP_MS_MAX,
            "onDeadlock": "refuse",
        },
        "lease.renew": {"ttlMs": TTL_MS_DEFAULT},
        "lease.accept": {"ttlMs": TTL_MS_DEFAULT},
        "batch.submit": {"isAtomic": False},
        "scheme.set": {"isFolding": False, "isUnicode": False},
        "coordination.admit": {"mode": "write", "cost": 0},
        "approval.ask": {"mode": "write", "cost": 0, "quorum": 1, "giveUpMs": ASK_MS_DEFAULT},
    }
)
_WAITS: JsonObject = {"properties": {"wait": {"const": True}}, "required": ["wait"]}
_WAIT_MEMBERS = ("giveUpMs", "onDeadlock")


def body_value(action: str, body: JsonObject, name: str) -> JsonValue:
    """Return what a checked body asks for by member `name`: its value, else the default of the action, else None."""
    return body[name] if name in body else BODY_DEFAULTS.get(action, {}).get(name)


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
    _check_together(action, body)


def _check_together(action: str, body: JsonObject) -> None:
    """What members say together, once each is of its kind."""
    _check_one_of(action, body)
    rule = _BODY_RULES.get(action)
    if rule is not None:
        rule(body)


def _check_one_of(action: str, body: JsonObject) -> None:
    one_of = ONE_OF.get(action)
    if one_of is not None and sum(name in body for name in one_of) != 1:
        either = " or ".join(one_of)
        names = "all names of the lease, whose id alone is not enough" if action == "lease.release" else "exactly one"
        both = "both are there; leave one out" if one_of[0] in body else "neither is there"
        raise MemberError("member_conflict", one_of[0], f"send {either} ({names}): {both}")


def _check_wait(body: JsonObject) -> None:
    """What belongs to waiting stands only in a request that waits, and that names few resources, of few bytes."""
    is_waiting = body.get("wait") is True
    for name in _WAIT_MEMBERS:
        if name in body and not is_waiting:
            raise MemberError("member_conflict", name, f"member {name}: only with wait true; add that or leave it out")
    if is_waiting and not may_wait(resources_of(body)):
        bound = f"at most {WAIT_RESOURCES_MAX} of together at most {WAIT_RESOURCES_BYTES_MAX:,} bytes"
        text = f"member resources: with wait true {bound} are allowed; name fewer, or a sub-tree, or do not wait"
        raise MemberError("member_conflict", "resources", text)


def _check_proof(body: JsonObject) -> None:
    """Who enrols by an API key proves that the new key is its own; an operator vouches without either."""
    if ("keyDigest" in body) != ("proof" in body):
        raise MemberError("member_conflict", "proof", "members keyDigest, proof: send both or neither")


def _check_api_key(body: JsonObject) -> None:
    if body["kind"] == "trial" and "agent" in body:
        raise MemberError("member_conflict", "agent", "member agent: a trial key belongs to no agent; leave it out")


def _check_fence(body: JsonObject) -> None:
    """Who shows a lease shows its token too: the number is what later writes are compared by."""
    if ("leaseId" in body) != ("fencingToken" in body):
        name = "fencingToken" if "leaseId" in body else "leaseId"
        raise MemberError("member_conflict", name, "members leaseId, fencingToken: send both or neither")


def _check_quorum(body: JsonObject) -> None:
    approvers = body["approvers"]
    if isinstance(approvers, list) and _number_of(body, "quorum") > len(approvers):
        raise MemberError("member_conflict", "quorum", f"member quorum: at most the {len(approvers)} approvers named")


def _check_commands(body: JsonObject) -> None:
    """Judge every command as a body of its action; a fault names `commands[i].member`."""
    for index, command in enumerate(rows_of(body["commands"])):
        try:
            _check_command(command)
        except MemberError as error:
            name = f"commands[{index}].{error.member}"
            raise MemberError(error.code, name, f"in commands[{index}]: {error}") from error


def _check_command(command: JsonObject) -> None:
    action = _text_of(command, "action")
    checks = _COMMAND_CHECKS.get(action)
    if checks is None or not _fits(command, checks):
        fault = _first_fault(command, COMMAND_BODIES.get(action, (Member("action", BATCH_ACTION),)))
        if fault is not None:
            raise fault
    _check_together(action, command)


def commands_in(body: JsonObject) -> tuple[tuple[str, JsonObject], ...]:
    """Return action and body of each command of a checked batch; the bodies are those of the actions by themselves."""
    return tuple((_text_of(command, "action"), _by_itself(body, command)) for command in rows_of(body["commands"]))


def command_body(body: JsonObject, index: int) -> JsonObject:
    """Return what one command of a checked batch asks, as the body of its action would by itself."""
    return _by_itself(body, rows_of(body["commands"])[index])


def _by_itself(body: JsonObject, command: JsonObject) -> JsonObject:
    whom: JsonObject = {"ledger": body["ledger"], "actorDid": body["actorDid"]}
    return whom | {name: value for name, value in command.items() if name != "action"}


_BODY_RULES: Mapping[str, Callable[[JsonObject], None]] = MappingProxyType(
    {
        "lease.acquire": _check_wait,
        "agent.add": _check_proof,
        "apikey.issue": _check_api_key,
        "batch.submit": _check_commands,
        "coordination.admit": _check_fence,
        "approval.ask": _check_quorum,
    }
)


def body_schema(action: str) -> JsonObject:
    """Return the JSON Schema (2020-12) of a body of `action`, for OpenAPI."""
    schema = _with_pairs(_with_one_of(object_schema(ACTION_BODIES[action]), action), action)
    if action == "apikey.issue":
        schema["not"] = {"properties": {"kind": {"const": "trial"}}, "required": ["agent"]}
    if action == "lease.acquire":
        waiting: list[JsonValue] = [{"required": [name]} for name in _WAIT_MEMBERS]
        few: JsonObject = {"properties": {"resources": {"maxItems": WAIT_RESOURCES_MAX}}}
        schema |= {"if": _WAITS, "then": few, "else": {"not": {"anyOf": waiting}}}
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
    Member("endsIfIdleAtMs", TIME_MS, False),
)
_LEASE_AGAIN = (*_LEASE, Member("grantedAtMs", TIME_MS), Member("grantSeq", SEQ))
_AS_BEFORE = (Member("fromLeaseId", LEASE_ID), Member("fromSeq", SEQ))
_LEASE_NAMED = (
    Member("resources", RESOURCES),
    Member("leaseId", LEASE_ID),
    Member("fencingToken", TOKEN),
)
_HELD = (
    Member("holder", DID, False),
    Member("holderName", LABEL, False),
    Member("conflict", CONFLICT, False),
    Member("conflicts", COUNT, False),
    Member("stampede", STAMPEDE, False),
    Member("retryAfterMs", DURATION_MS, False),
    Member("waitingOn", RESOURCE, False),
    Member("cycle", CYCLE, False),
    Member("acquireOrder", ACQUIRE_ORDER, False),
    Member("searchBounded", TRUE, False),
    Member("ahead", AHEAD, False),
    Member("delayUntilMs", TIME_MS, False),
    Member("ticketId", TICKET_ID, False),
    Member("endedSeq", SEQ, False),
)
_CURRENT = Member("currentToken", TOKEN, False)  # only where an admission is denied
_ENDED = Member("endedSeq", SEQ, False)
_GIVEN_BACK = (Member("openedSeq", SEQ), Member("leases", COUNT), Member("tickets", COUNT))
_TICKET = (Member("ticketId", TICKET_ID), Member("ticketSeq", SEQ))
_WAITER = (*_TICKET, Member("waiter", DID))
_KEY = (Member("purpose", PURPOSE), Member("key", VKEY))
_KEY_ENDED = (*_KEY, Member("announcedSeq", SEQ), Member("statement", NOTE))
_DONE = (
    Member("operation", OPERATION),
    Member("resources", ADMIT_RESOURCES),
    Member("mode", MODE),
    Member("argumentsDigest", HASH),
    Member("cost", COST),
)
_ASKED_FOR = tuple(Member("resources", ASK_RESOURCES) if m.name == "resources" else m for m in _DONE)
_FENCE = (Member("leaseId", LEASE_ID, False), Member("fencingToken", TOKEN, False))
_ASK = (Member("askId", ASK_ID), Member("askSeq", SEQ))
_RULES = (Member("rulesVersion", RULES_VERSION_NUMBER), Member("rulesMode", RULES_MODE))
_TRANSFER = ACTION_BODIES["lease.transfer"][2:]
_BREAK = ACTION_BODIES["lease.break"][2:]


_DEADLOCKED = ("waitingOn", "cycle", "acquireOrder")


class Told(NamedTuple):
    """Which members of the group `_HELD`, `_CURRENT` a refusal has for its error: those it must have, may have."""

    always: tuple[str, ...]
    perhaps: tuple[str, ...] = ()


# The refusals that an entry may state, in their order of precedence. Source: docs/protocol.md 10.1.
REFUSAL_NUMBERS: Mapping[str, int] = MappingProxyType(
    {
        "operator_required": 105,
        "agent_not_found": 106,
        "operator_not_found": 122,
        "operator_last": 123,
        "key_taken": 124,
        "apikey_not_found": 125,
        "apikey_known": 126,
        "apikey_used": 127,
        "session_unknown": 128,
        "session_not_yours": 129,
        "session_required": 130,
        "key_known": 131,
        "key_not_committed": 132,
        "key_overlap": 133,
        "key_unknown": 134,
        "key_last": 135,
        "outside_scope": 118,
        "ledger_disputed": 401,
        "rules_out_of_turn": 631,
        "scheme_busy": 303,
        "name_not_allowed": 301,
        "mode_not_allowed": 302,
        "ticket_unknown": 505,
        "ticket_not_yours": 506,
        "ticket_ended": 507,
        "ask_unknown": 641,
        "ask_not_yours": 642,
        "ask_ended": 643,
        "lease_unknown": 402,
        "lease_not_yours": 403,
        "lease_released": 404,
        "lease_expired": 405,
        "lease_broken": 410,
        "lease_transferred": 411,
        "lease_changed": 412,
        "lease_returned": 418,
        "lease_mismatch": 406,
        "not_holder": 407,
        "token_stale": 413,
        "not_offered": 416,
        "hold_exceeded": 414,
        "too_many_held": 417,
        "already_waiting": 504,
        "queue_full": 503,
        "fence_unknown": 601,
        "stale_fence": 602,
        "lease_too_narrow": 603,
        "lease_required": 604,
        "admission_conflict": 605,
        "approval_wrong": 611,
        "approver_unfit": 612,
        "approval_expired": 613,
        "approval_used": 614,
        "approval_required": 615,
        "policy_error": 621,
        "forbidden_by_rules": 622,
        "not_permitted": 623,
        "too_many_asked": 644,
        "deadlock": 502,
        "lease_held": 408,
        "lock_delayed": 415,
        "queued": 501,
        "decision_failed": 901,
    }
)
_IN_THE_WAY = ("holder", "conflict", "conflicts", "stampede", "retryAfterMs")
_LATE = Told((), ("endedSeq",))
# By error; an error that is not here has none of them. Source: docs/protocol.md 10.3.
HELD_MEMBERS: Mapping[str, Told] = MappingProxyType(
    {
        "lease_held": Told(_IN_THE_WAY, ("holderName", "searchBounded")),
        "deadlock": Told((*_IN_THE_WAY, *_DEADLOCKED), ("holderName", "searchBounded")),
        "lock_delayed": Told(("holder", "delayUntilMs", "stampede", "retryAfterMs", "endedSeq")),
        "queued": Told(("ahead", "stampede", "retryAfterMs")),
        "queue_full": Told(("stampede", "retryAfterMs")),
        "already_waiting": Told(("ticketId",)),
        "stale_fence": Told((), ("holder", "holderName", "conflict", "currentToken", "endedSeq")),
        "admission_conflict": Told(("holder", "conflict", "currentToken"), ("holderName",)),
        **dict.fromkeys(
            (
                "lease_released",
                "lease_expired",
                "lease_broken",
                "lease_transferred",
                "lease_changed",
                "lease_returned",
            ),
            _LATE,
        ),
    }
)
# Denials by the rules, each with what they say: decision, and whether a rule matched (None: either).
BY_RULES: Mapping[str, tuple[str, bool | None]] = MappingProxyType(
    {"policy_error": ("error", None), "forbidden_by_rules": ("deny", True), "not_permitted": ("deny", False)}
)


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
        Member("enroller", DID),
        Member("authorities", _list("authorities", AUTHORITY, 1, 32)),
        Member("isPublic", BOOLEAN),
        Member("isDev", BOOLEAN),
        Member("unicodeVersion", UNICODE_VERSION),
        Member("parameters", PARAMETERS),
        Member("nextKeys", NEXT_KEYS, False),
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
    _by_gateway(
        "checkpoint.witnessed", Member("checkpoint", COSIGNED_NOTE), Member("size", SIZE), Member("root", ROOT)
    ),
    _by_request(
        "key.announced",
        "key.announce",
        *_KEY,
        Member("next", HASH, False),
        Member("statement", NOTE),
        actor_rule="operator",
    ),
    _by_request("announcement.refused", "key.announce", *_KEY, *_REFUSED),
    _by_request("key.retired", "key.retire", *_KEY_ENDED, actor_rule="operator"),
    _by_request("retirement.refused", "key.retire", *_KEY, *_REFUSED),
    _by_request("key.compromised", "key.compromise", *_KEY_ENDED, actor_rule="operator"),
    _by_request("disowning.refused", "key.compromise", *_KEY, *_REFUSED),
    _by_request("operator.added", "operator.add", Member("operator", DID), _LABEL, actor_rule="operator"),
    _by_request("operator.refused", "operator.add", Member("operator", DID), *_REFUSED),
    _by_request("operator.removed", "operator.remove", Member("operator", DID), actor_rule="operator"),
    _by_request("dismissal.refused", "operator.remove", Member("operator", DID), *_REFUSED),
    _by_request(
        "agent.added",
        "agent.add",
        Member("agent", DID),
        _LABEL,
        Member("agentCustody", CUSTODY, False),
        Member("keyDigest", HASH, False),
        actor_rule="operator or enroller",
    ),
    _by_request("agent.removed", "agent.remove", Member("agent", DID), actor_rule="operator"),
    _by_request("agent.refused", "agent.add", Member("agent", DID), *_REFUSED),
    _by_request("removal.refused", "agent.remove", Member("agent", DID), *_REFUSED),
    _by_request(
        "apikey.issued",
        "apikey.issue",
        Member("keyDigest", HASH),
        Member("kind", KEY_KIND),
        Member("agent", DID, False),
        _LABEL,
        actor_rule="operator",
    ),
    _by_request("apikey.refused", "apikey.issue", Member("keyDigest", HASH), *_REFUSED),
    _by_request(
        "apikey.revoked",
        "apikey.revoke",
        Member("keyDigest", HASH),
        Member("issuedSeq", SEQ),
        actor_rule="operator",
        cites=("issuedSeq",),
    ),
    _by_request("revocation.refused", "apikey.revoke", Member("keyDigest", HASH), *_REFUSED),
    _by_request(
        "session.opened",
        "session.open",
        Member("verbs", VERB_LIST),
        Member("scope", SCOPE, False),
        Member("expiresAtMs", TIME_MS),
        Member("endsIfIdleAtMs", TIME_MS),
        _LABEL,
        actor_rule="session",
    ),
    _by_request(
        "session.seen",
        "session.beat",
        Member("endsIfIdleAtMs", TIME_MS),
        Member("activity", REASON_CODE, False),
        actor_rule="session",
    ),
    _by_request("beat.refused", "session.beat", *_REFUSED),
    _by_request(
        "session.closed",
        "session.close",
        Member("session", DID),
        *_GIVEN_BACK,
        Member("reason", REASON_CODE, False),
        cites=("openedSeq",),
    ),
    _by_request("closing.repeated", "session.close", Member("session", DID), Member("endedSeq", SEQ)),
    _by_request("closing.refused", "session.close", Member("session", DID), *_REFUSED),
    _by_gateway(
        "session.ended",
        Member("session", DID),
        *_GIVEN_BACK,
        Member("reason", ENDING),
        Member("causeSeq", SEQ, False),
        Member("trust", TRUST, False),
        cites=("openedSeq",),
    ),
    _by_request(
        "batch.received",
        "batch.submit",
        Member("count", BATCH_COUNT),
        Member("isAtomic", BOOLEAN),
        Member("isBare", TRUE, False),
    ),
    _by_request(
        "batch.refused",
        "batch.submit",
        Member("count", BATCH_COUNT),
        Member("isAtomic", TRUE),
        Member("index", BATCH_INDEX),
        Member("action", BATCH_ACTION),
        *_REFUSED,
        *_HELD,
        _CURRENT,
    ),
    _by_request(
        "scheme.set",
        "scheme.set",
        Member("name", SCHEME),
        Member("class", CLASS),
        Member("isFolding", BOOLEAN),
        Member("isUnicode", BOOLEAN),
        Member("lockDelayMs", LOCK_DELAY_MS),
        Member("maxHoldMs", MAX_HOLD_MS),
        Member("unicodeVersion", UNICODE_VERSION),
        actor_rule="operator",
    ),
    _by_request("scheme.refused", "scheme.set", Member("name", SCHEME), *_REFUSED),
    _by_request("lease.granted", "lease.acquire", *_LEASE),
    _by_request("lease.extended", "lease.acquire", *_LEASE_AGAIN),
    _by_request("lease.claimed", "wait.claim", *_LEASE, *_TICKET, cites=("ticketSeq",)),
    _by_request("lease.changed", "lease.renew", *_LEASE, *_AS_BEFORE, cites=("fromSeq",)),
    _by_request(
        "lease.transferred",
        "lease.accept",
        *_LEASE,
        *_AS_BEFORE,
        Member("giver", DID),
        Member("offerSeq", SEQ),
        cites=("fromSeq", "offerSeq"),
    ),
    _by_request(
        "lease.refused",
        "lease.acquire",
        Member("resources", RESOURCES),
        Member("mode", MODE),
        Member("ttlMs", TTL_MS),
        Member("wait", BOOLEAN),
        *_REFUSED,
        *_HELD,
    ),
    _by_request("lease.renewed", "lease.renew", *_LEASE_AGAIN),
    _by_request(
        "renewal.refused",
        "lease.renew",
        Member("leaseId", LEASE_ID),
        Member("ttlMs", TTL_MS),
        Member("mode", MODE, False),
        *_REFUSED,
        *_HELD,
    ),
    _by_request(
        "lease.released",
        "lease.release",
        *_LEASE_NAMED,
        Member("grantedAtMs", TIME_MS),
        Member("grantSeq", SEQ),
        Member("trust", TRUST, False),
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
        _ENDED,
    ),
    _by_gateway(
        "lease.expired",
        *_LEASE_NAMED,
        Member("holder", DID),
        Member("grantSeq", SEQ),
        Member("expiresAtMs", TIME_MS),
        Member("delayUntilMs", TIME_MS, False),
        Member("trust", TRUST, False),
        cites=("grantSeq",),
    ),
    _by_gateway(
        "lease.returned",
        *_LEASE_NAMED,
        Member("holder", DID),
        Member("grantSeq", SEQ),
        Member("causeSeq", SEQ),
        Member("delayUntilMs", TIME_MS, False),
        cites=("grantSeq",),
    ),
    _by_request(
        "lease.broken",
        "lease.break",
        *_BREAK,
        *_LEASE_NAMED,
        Member("holder", DID),
        Member("grantSeq", SEQ),
        Member("grantedAtMs", TIME_MS),
        Member("delayUntilMs", TIME_MS, False),
        actor_rule="operator",
        cites=("grantSeq",),
    ),
    _by_request("break.repeated", "lease.break", *_BREAK, Member("endedSeq", SEQ), actor_rule="operator"),
    _by_request(
        "break.refused",
        "lease.break",
        *_BREAK,
        *_REFUSED,
        Member("holder", DID, False),
        Member("holderName", LABEL, False),
        Member("conflict", CONFLICT, False),
    ),
    _by_request("transfer.offered", "lease.transfer", *_TRANSFER, Member("holder", DID), Member("grantSeq", SEQ)),
    _by_request("transfer.refused", "lease.transfer", *_TRANSFER, *_REFUSED, _ENDED),
    _by_request(
        "acceptance.refused",
        "lease.accept",
        Member("leaseId", LEASE_ID),
        Member("ttlMs", TTL_MS),
        *_REFUSED,
        *_HELD,
    ),
    _by_request(
        "wait.queued",
        "lease.acquire",
        Member("resources", WAIT_RESOURCES),
        Member("mode", MODE),
        Member("ttlMs", TTL_MS),
        Member("giveUpMs", GIVE_UP_MS),
        Member("ticketId", TICKET_ID),
        Member("pollByMs", TIME_MS),
        Member("giveUpByMs", TIME_MS),
        Member("position", POSITION),
        Member("softCycle", TRUE, False),
        Member("cycle", CYCLE, False),
        Member("searchBounded", TRUE, False),
    ),
    _by_request("wait.polled", "wait.claim", *_TICKET, Member("pollByMs", TIME_MS), Member("position", POSITION)),
    _by_request("claim.refused", "wait.claim", Member("ticketId", TICKET_ID), *_REFUSED, _ENDED),
    _by_request("wait.cancelled", "wait.cancel", *_TICKET, cites=("ticketSeq",)),
    _by_request("cancel.refused", "wait.cancel", Member("ticketId", TICKET_ID), *_REFUSED, _ENDED),
    _by_gateway("wait.offered", *_WAITER, Member("claimByMs", TIME_MS), cites=("ticketSeq",)),
    _by_gateway("wait.reserved", *_WAITER, Member("untilMs", TIME_MS), cites=("ticketSeq",)),
    _by_gateway("wait.resumed", *_WAITER, cites=("ticketSeq",)),
    _by_gateway("wait.removed", *_WAITER, Member("reason", REMOVAL), cites=("ticketSeq",)),
    _by_request(
        "admission.allowed",
        "coordination.admit",
        *_DONE,
        Member("actionDigest", HASH),
        *_FENCE,
        Member("grantSeq", SEQ, False),
        Member("facts", FACTS_KIND),
        Member("schemes", COUNTED_SCHEMES),
        Member("rules", RULING, False),
        Member("approvals", APPROVED, False),
        Member("validUntilMs", TIME_MS),
        Member("uses", _integer("uses", 1, 1)),
    ),
    _by_request(
        "admission.denied",
        "coordination.admit",
        *_DONE,
        *_FENCE,
        Member("facts", FACTS_KIND, False),
        Member("schemes", COUNTED_SCHEMES, False),
        Member("rules", RULING, False),
        *_REFUSED,
        *(m for m in _HELD if m.name in ("holder", "holderName", "conflict", "endedSeq")),
        _CURRENT,
    ),
    _by_request(
        "approval.asked",
        "approval.ask",
        *_ASKED_FOR,
        Member("actionDigest", HASH),
        Member("rulesDigest", HASH),
        Member("approvers", APPROVERS),
        Member("quorum", QUORUM),
        Member("askId", ASK_ID),
        Member("giveUpByMs", TIME_MS),
    ),
    _by_request(
        "approval.refused",
        "approval.ask",
        *_ASKED_FOR,
        *_REFUSED,
        *(m for m in _HELD if m.name in (*_DEADLOCKED, "searchBounded")),
    ),
    _by_request(
        "approval.given",
        "approval.give",
        *_ASK,
        Member("approver", DID),
        Member("nonce", NONCE),
        Member("digest", HASH),
    ),
    _by_request("giving.refused", "approval.give", Member("askId", ASK_ID), *_REFUSED, _ENDED),
    _by_request("approval.declined", "approval.decline", *_ASK, Member("reason", REASON_CODE, False)),
    _by_request("declining.refused", "approval.decline", Member("askId", ASK_ID), *_REFUSED, _ENDED),
    _by_request("approval.withdrawn", "approval.withdraw", *_ASK, cites=("askSeq",)),
    _by_request("withdrawal.refused", "approval.withdraw", Member("askId", ASK_ID), *_REFUSED, _ENDED),
    _by_request(
        "rules.loaded",
        "rules.load",
        *_RULES,
        Member("digest", HASH),
        Member("engine", ENGINE),
        Member("count", _integer("rules", 1, RULE_IDS_MAX)),
        actor_rule="operator",
    ),
    _by_request("rules.refused", "rules.load", *_RULES, *_REFUSED),
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
# Each makes a lease of its own; HOLDING are all that say until when one is held.
GRANTS = frozenset(full_type(f"lease.{name}") for name in ("granted", "claimed", "changed", "transferred"))
HOLDING = GRANTS | {full_type("lease.extended"), full_type("lease.renewed")}
_QUEUED, _CHANGED = full_type("wait.queued"), full_type("lease.changed")
_BATCH, _BATCH_REFUSED = full_type("batch.received"), full_type("batch.refused")
_ENROLLED, _ANNOUNCED = full_type("agent.added"), full_type("key.announced")
ALLOWED, _ASKED, _ASK_REFUSED = map(full_type, ("admission.allowed", "approval.asked", "approval.refused"))
_KEY_REFUSED = tuple(full_type(f"{name}.refused") for name in ("announcement", "retirement", "disowning"))


def _repeated(row: EntryType) -> tuple[tuple[str, str], ...]:
    """What a leaf repeats from its body: name in the leaf, name in the body."""
    asked = {member.name for member in ACTION_BODIES[row.action or ""]}
    if row.type in (_CHANGED, full_type("lease.transferred")):  # the body names the lease that was
        return (("fromLeaseId", "leaseId"), *((m.name, m.name) for m in row.members if m.name in asked - {"leaseId"}))
    # The approvals of a body are signed statements, those of a leaf what was taken from them (evidence.py compares).
    return tuple((m.name, m.name) for m in row.members if m.name in asked - {"approvals"})


_REPEATED = {row.type: _repeated(row) for row in _ROWS if row.action is not None}  # decision.failed repeats nothing
# What the decision fills in where the body leaves it open.
_FILLED_IN = frozenset(
    {
        (full_type("lease.released"), "leaseId"),
        (full_type("lease.renewed"), "mode"),
        (full_type("scheme.set"), "lockDelayMs"),
        (full_type("scheme.set"), "maxHoldMs"),
    }
)


_LATER = "unless released, given back, broken or transferred later; not checked here"
# What a member that is there means, in words for the reader of a receipt; filled in from the leaf.
SENTENCES = (
    ("holdUntilMs", "held from {timeMs} until at most {expiresAtMs} " + _LATER),
    ("endsIfIdleAtMs", "ends at {endsIfIdleAtMs} unless the session acts again; not checked here"),
    ("holdUntilMs", "mode {mode}"),
    ("holdUntilMs", "fencing token {fencingToken}"),
    ("fromLeaseId", "in place of lease {fromLeaseId}"),
    ("position", "queued as {ticketId}, position {position}, must poll before {pollByMs}"),
    ("claimByMs", "ticket {ticketId} is offered to {waiter}, who must claim before {claimByMs}"),
    (_BATCH, "a batch of {count} commands, whose answers are the next entries"),
    (_BATCH_REFUSED, "a batch of {count} commands, none of which was carried out: command {index} ({action})"),
    (ALLOWED, "allowed once, until {validUntilMs}"),
    ("argumentsDigest", "to do: {operation}, mode {mode}, arguments {argumentsDigest}, cost {cost}"),
    ("unpoliced", "unpoliced: no rule set was in force"),
    ("rules enforce", "rule set {rules[version]} says {rules[decision]}"),
    ("rules shadow", "in shadow: rule set {rules[version]} says {rules[decision]}, and nothing hung on it"),
    ("matched", "rules that matched: {rules[matched]}"),
    ("obligations", "obligations: {rules[obligations]}"),
    (
        "facts",
        "trust {facts[trust]}, {facts[agentCountDay]} admissions before on that day, {facts[approvals]} approvals",
    ),
    (_ASKED, "asked as {askId}, before {giveUpByMs}: {quorum} of {approvers}"),
    (full_type("approval.given"), "{approver} approves {askId} by the statement {digest}"),
    (full_type("approval.declined"), "{actor} declines {askId}"),
    (full_type("approval.withdrawn"), "{askId} is withdrawn"),
    (
        full_type("rules.loaded"),
        "rule set {rulesVersion} of {count} rules, {rulesMode}, SHA-256 {digest}, counts from here",
    ),
    ("error", "refused: {error}"),
    ("currentToken", "the token that counts is {currentToken}"),
    ("endedSeq", "what was named ended with entry {endedSeq}"),
    ("conflict", "held by {holder}, whose lease states its end as {conflict[expiresAtMs]}; not checked here"),
    ("waitingOn", "who waits in turn for {waitingOn}"),
    ("ahead", "behind ticket {ahead[ticketId]} of {ahead[actor]}"),
    (full_type("lease.broken"), "lease {leaseId} of {holder}, token {fencingToken}, is broken by operator {actor}"),
    (full_type("session.opened"), "session opened for {verbs}, at most until {expiresAtMs}"),
    ("scope", "only for resources {scope}"),
    (full_type("session.closed"), "session {session} is closed; {leases} leases, {tickets} tickets are given back"),
    (full_type("session.ended"), "session {session} has ended; {leases} leases, {tickets} tickets are given back"),
    (full_type("lease.returned"), "lease {leaseId} of {holder}, token {fencingToken}, is given back: entry {causeSeq}"),
    (_ENROLLED, "agent {agent} is enrolled"),
    (full_type("agent.removed"), "agent {agent} is removed, and its sessions with it"),
    (full_type("operator.added"), "operator {operator} is added"),
    (full_type("operator.removed"), "operator {operator} is removed, and the sessions behind it"),
    (full_type("checkpoint.witnessed"), "the checkpoint of size {size}, with lines of witnesses; not checked here"),
    (full_type("key.announced"), "{purpose} key {key} is announced; it counts from the next entry on"),
    (full_type("key.retired"), "{purpose} key {key} is retired"),
    (full_type("key.compromised"), "{purpose} key {key} is disowned; what it alone has signed proves nothing any more"),
    ("keyDigest", "API key with digest {keyDigest}"),
    ("agentCustody", "the key of {agent} is held by the gateway"),
    ("reason", "reason {reason}"),
    ("delayUntilMs", "kept free for {holder} until {delayUntilMs}"),
)
_MOMENTS = ("timeMs", "AtMs", "ByMs", "UntilMs", "untilMs")  # how the names of moments end; other ms are spans of time


def sentences(leaf: Leaf) -> Iterator[str]:
    """Yield what a leaf says in words beside its resources, moments in UTC as well; nothing for an unknown type."""
    words = _in_words(leaf.value) if leaf.is_known else {}
    if leaf.batch is not None:
        yield f"the answer to command {leaf.batch[1]} of the batch at entry {leaf.batch[0]}"
    topics = words.keys() | _topics(leaf)
    for about, sentence in SENTENCES:
        if about in topics:
            yield sentence.format_map(words)


def _topics(leaf: Leaf) -> set[str]:
    """What else a leaf may be asked about than its members: its type, and how the rules stood to an admission."""
    ruling = leaf.value.get("rules")
    if not isinstance(ruling, dict):
        return {leaf.type, "unpoliced"} if leaf.type == ALLOWED else {leaf.type}
    lists = {name for name in ("matched", "obligations") if ruling[name]}
    return {leaf.type, f"rules {ruling['mode']}", *lists}


def _in_words(value: JsonObject) -> JsonObject:
    return {
        name: moment(member) if isinstance(member, int) and name.endswith(_MOMENTS) else _in_word(member)
        for name, member in value.items()
    }


def _in_word(member: JsonValue) -> JsonValue:
    if isinstance(member, list):
        return ", ".join(map(str, member))
    return _in_words(member) if isinstance(member, dict) else member


def moment(ms: int) -> str:
    """Return ms since 1970 and the same in UTC: `1800000005250 (2027-01-15 08:00:05.250 UTC)`. It asks no clock.

    The calendar is counted from 1 March of year 0, in eras of 400 years, so that a leap day is the last of its year.
    """
    day, ms_of_day = divmod(ms, 86_400_000)
    era, day = divmod(day + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # 0 is March; five months in a row have 153 days
    date = f"{400 * era + year + month // 10:04}-{(month + 2) % 12 + 1:02}-{day - (153 * month + 2) // 5 + 1:02}"
    second = ms_of_day // 1_000
    clock = f"{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}.{ms_of_day % 1_000:03}"
    return f"{ms} ({date} {clock} UTC)"


def leaf_schema(entry_type: str) -> JsonObject:
    """Return the JSON Schema (2020-12) of a whole leaf of this full type string."""
    return object_schema(_ALL_MEMBERS[entry_type])


# --- leaves ---------------------------------------------------------------------------------------------------------


class Leaf(NamedTuple):
    """One parsed leaf: `value` is the whole JSON object, `prev` and `genesis` 32 bytes, `request` the evidence, if any.

    `batch` is there instead for the answer to a command: the seq of `batch.received`, and the command's index.
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
    batch: tuple[int, int] | None = None

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
    batch = (_number_of(evidence, "batch"), _number_of(evidence, "index")) if _is_command(evidence) else None
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
        request=evidence if batch is None and _are_texts(evidence) else None,
        is_known=is_known,
        batch=batch,
    )


def _is_command(evidence: JsonValue) -> TypeGuard[JsonObject]:
    return isinstance(evidence, dict) and "batch" in evidence


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
    fault = _gateway_fault(leaf) if leaf.entry_type.cause == "gateway" else _requester_fault(leaf)
    if fault is not None:
        return fault
    if "error" in leaf.value and REFUSAL_NUMBERS.get(leaf.text("error")) != leaf.number("number"):
        return "members error, number: a refusal of this version and its number"
    rule = _SELF_RULES.get(leaf.type)
    return rule(leaf) if rule is not None else None


def _gateway_fault(leaf: Leaf) -> str | None:
    if not leaf.actor == leaf.principal == leaf.on_behalf_of == GATEWAY:
        return "members actor, principal, onBehalfOf: all gateway in entries that the gateway causes"
    if leaf.request is not None or leaf.batch is not None:
        return "member request: an entry of the gateway has no evidence"
    return "member custody: not in entries of the gateway" if "custody" in leaf.value else None


def _requester_fault(leaf: Leaf) -> str | None:
    """Operators and the enroller act for themselves, agents for an operator, sessions for both or for their issuer."""
    actor, principal, on_behalf_of = leaf.actor, leaf.principal, leaf.on_behalf_of
    if GATEWAY in (actor, principal, on_behalf_of):
        return "member actor: gateway exactly in entries that the gateway causes"
    if on_behalf_of in (actor, principal) and not actor == principal == on_behalf_of:
        return "members actor, principal, onBehalfOf: all equal, or onBehalfOf differs from both"
    rule = leaf.entry_type.actor_rule
    if rule in ("operator", "operator or enroller") and on_behalf_of != actor:
        return "members actor, principal, onBehalfOf: equal when an operator or the enroller acts"
    if rule == "session" and on_behalf_of == actor:
        return "member onBehalfOf: not the session itself"
    if leaf.request is not None and not is_body_text(leaf.request["body"], body_bytes_max(leaf.action)):
        return f"member body: at most {body_bytes_max(leaf.action):,} bytes counted as a JSON string"
    return _command_fault(leaf, *leaf.batch) if leaf.batch is not None else None


def _command_fault(leaf: Leaf, batch_seq: int, index: int) -> str | None:
    """What answers a command stands right behind its batch, in the order of the commands, and never waits."""
    if leaf.action not in BATCH_ACTIONS or leaf.type == _QUEUED or leaf.value.get("wait") is True:
        return "member request: not a type that answers a command of a batch"
    return None if leaf.seq == batch_seq + 1 + index else "member request: seq is batch + 1 + index"


def _lease_rule(leaf: Leaf) -> str | None:
    """A new grant is named by its own seq and counts from its own time; a later one refers to an earlier entry."""
    is_grant = leaf.type in GRANTS
    grant_seq = leaf.seq if is_grant else leaf.number("grantSeq")
    if leaf.text("leaseId") != f"L{grant_seq}":
        return "member leaseId: L and the seq of the granting entry"
    if not is_grant and grant_seq >= leaf.seq:
        return "member grantSeq: an earlier entry"
    if "schemes" in leaf.value and not _are_schemes_of_leaf(leaf):
        return "members schemes, mode: exactly the schemes of the resources, in a mode that each of them has"
    granted_at_ms = leaf.time_ms if is_grant else leaf.number("grantedAtMs")
    if granted_at_ms > leaf.time_ms:
        return "member grantedAtMs: not after timeMs"
    # Each of at most `grant_seq` earlier grants raised the token by one, or to its own time.
    if granted_at_ms >= 0 and not 0 <= leaf.number("fencingToken") - granted_at_ms * 1000 <= grant_seq:
        return "member fencingToken: at least the time of the grant x 1,000, at most the seq of the grant above that"
    if "ttlMs" in leaf.value:
        return _end_fault(leaf, is_grant) or _idle_fault(leaf)
    return _trust_fault(leaf)


def _are_schemes_of_leaf(leaf: Leaf) -> bool:
    rows, mode = rows_of(leaf.value["schemes"]), leaf.text("mode")
    names = schemes_of(resources_of(leaf.value))
    return [row["name"] for row in rows] == names and all(is_mode_allowed(str(row["class"]), mode) for row in rows)


def _end_fault(leaf: Leaf, is_grant: bool) -> str | None:
    """An end is the time of this entry + ttlMs; a later entry may repeat an end that an earlier one had stated."""
    expires_at_ms, end_ms = leaf.number("expiresAtMs"), leaf.time_ms + leaf.number("ttlMs")
    if is_grant and expires_at_ms != end_ms:
        return "member expiresAtMs: timeMs + ttlMs"
    if not end_ms <= expires_at_ms <= leaf.time_ms + TTL_MS_MAX:
        return f"member expiresAtMs: at least timeMs + ttlMs, at most timeMs + {TTL_MS_MAX:,}"
    return None


def _idle_fault(leaf: Leaf) -> str | None:
    """What a session holds also ends with the session; nothing else does."""
    if "endsIfIdleAtMs" not in leaf.value:
        return "member endsIfIdleAtMs: missing for a session" if leaf.principal != leaf.actor else None
    if leaf.on_behalf_of == leaf.actor:
        return "member endsIfIdleAtMs: only for a session"
    ends_at_ms = leaf.number("expiresAtMs") if "expiresAtMs" in leaf.value else INT_MAX
    is_inside = leaf.time_ms < leaf.number("endsIfIdleAtMs") <= ends_at_ms
    return None if is_inside else "member endsIfIdleAtMs: after timeMs, not after expiresAtMs"


def _opened_rule(leaf: Leaf) -> str | None:
    """A statement lives for seven days at most, and has begun."""
    is_long = leaf.number("expiresAtMs") > leaf.time_ms + DELEGATION_MS_MAX
    return f"member expiresAtMs: at most timeMs + {DELEGATION_MS_MAX:,}" if is_long else _idle_fault(leaf)


def _ended_rule(leaf: Leaf) -> str | None:
    """Only a removal ends other people's sessions; only what nobody gave back costs trust, and only its principal's."""
    is_revoked = leaf.text("reason") == "revoked"
    if is_revoked != ("causeSeq" in leaf.value):
        return "member causeSeq: there exactly when the reason is revoked"
    rows = rows_of(leaf.value.get("trust"))
    if len(rows) > 1 or (rows and (is_revoked or leaf.number("leases") == 0)):
        return "member trust: one row, and only when leases were neither given back nor revoked"
    return _earlier_rule(leaf) or _trust_fault(leaf)


def _returned_rule(leaf: Leaf) -> str | None:
    if leaf.number("causeSeq") <= leaf.number("grantSeq"):
        return "member causeSeq: later than the grant that it ends"
    return _earlier_rule(leaf) or _delay_fault(leaf) or _lease_rule(leaf)


def _batch_refused_rule(leaf: Leaf) -> str | None:
    is_inside = leaf.number("index") < leaf.number("count")
    return _refused_rule(leaf) if is_inside else "member index: below count"


def _trust_fault(leaf: Leaf) -> str | None:
    """The holder gains by a release; by an expiry the holder loses, and perhaps who gave the lease away."""
    rows = rows_of(leaf.value.get("trust"))
    if any(_number_of(row, "previousSeq") >= leaf.seq for row in rows):
        return "member trust: previousSeq is an earlier entry"
    if leaf.type == full_type("lease.released"):
        is_fair = all(row["did"] == leaf.principal and _number_of(row, "change") > 0 for row in rows[:2])
    else:
        is_fair = all(_number_of(row, "change") < 0 for row in rows)
    is_once = len({_text_of(row, "did") for row in rows}) == len(rows)
    return None if is_fair and is_once else "member trust: a release raises its actor's, an expiry lowers, each once"


def _first_grant_rule(leaf: Leaf) -> str | None:
    """The bound of a hold counts from here; a later lease may inherit one that has passed."""
    is_short = leaf.number("holdUntilMs") < leaf.time_ms
    return "member holdUntilMs: not before the grant" if is_short else _earlier_rule(leaf) or _lease_rule(leaf)


def _next_lease_rule(leaf: Leaf) -> str | None:
    """A lease that takes the place of another."""
    if leaf.text("fromLeaseId") != f"L{leaf.number('fromSeq')}":
        return "member fromLeaseId: L and fromSeq"
    if "offerSeq" in leaf.value and not leaf.number("fromSeq") < leaf.number("offerSeq"):
        return "member offerSeq: later than the grant that it offers"
    if leaf.text("giver") == leaf.actor:
        return "member giver: not the receiver"
    return _earlier_rule(leaf) or _lease_rule(leaf)


def _expired_rule(leaf: Leaf) -> str | None:
    is_early = leaf.number("expiresAtMs") > leaf.time_ms
    return (
        "member expiresAtMs: no lease expires before its time" if is_early else _delay_fault(leaf) or _lease_rule(leaf)
    )


def _delay_fault(leaf: Leaf) -> str | None:
    is_past = "delayUntilMs" in leaf.value and leaf.number("delayUntilMs") <= leaf.time_ms
    return "member delayUntilMs: after timeMs" if is_past else None


def _broken_rule(leaf: Leaf) -> str | None:
    if leaf.number("seenToken") != leaf.number("fencingToken"):
        return "member seenToken: the token of the lease that is broken"
    if not _may_overlap(leaf.text("resource"), resources_of(leaf.value)):
        return "member resource: overlaps a resource of the lease that is broken"
    return _delay_fault(leaf) or _lease_rule(leaf)


def _may_overlap(name: str, others: Collection[str]) -> bool:
    """Say whether names overlap, if their schemes fold case: what does not overlap then never does."""
    return name in others or any(overlaps(key_of(name, True), key_of(other, True)) for other in others)


_GROUP = frozenset(member.name for member in (*_HELD, _CURRENT))
_NOTHING = Told(())


def _group_fault(leaf: Leaf) -> str | None:
    """Members that explain a refusal are there exactly as its error says."""
    return _group_difference(leaf.text("error"), _GROUP.intersection(leaf.value))


@lru_cache(maxsize=256)
def _group_difference(error: str, found: frozenset[str]) -> str | None:
    told = HELD_MEMBERS.get(error, _NOTHING)
    for name in sorted(found.symmetric_difference(told.always).difference(told.perhaps)):
        return f"member {name}: " + ("not for this error" if name in found else "missing for this error")
    return None


def _refused_rule(leaf: Leaf) -> str | None:
    """What stands in the way is somebody else's, began before, and is in the way of something that was asked for."""
    fault = _group_fault(leaf) or _earlier_rule(leaf) or _wait_fault(leaf)
    if fault is not None:
        return fault
    if leaf.text("holder") == leaf.actor:
        return "member holder: not the actor"
    if "delayUntilMs" in leaf.value and leaf.number("delayUntilMs") <= leaf.time_ms:
        return "member delayUntilMs: after timeMs"
    if "ticketId" in leaf.value and not _is_earlier_id(leaf.value["ticketId"], leaf.seq):
        return "member ticketId: of an earlier entry"
    pair = _pair_fault(leaf) if leaf.text("error") == "stale_fence" else None
    return pair or _conflict_fault(leaf) or _ahead_fault(leaf) or _cycle_fault(leaf)


def _pair_fault(leaf: Leaf) -> str | None:
    """Who is named as holder is named with what is held."""
    is_named = "holder" in leaf.value
    if is_named != ("conflict" in leaf.value) or ("holderName" in leaf.value and not is_named):
        return "members holder, conflict: both or none, and holderName only with them"
    return None


def _wait_fault(leaf: Leaf) -> str | None:
    """Who waits is queued, not sent away; who does not is never kept out of a queue."""
    kept_out = ("already_waiting", "queue_full") if leaf.value.get("wait") is False else ()
    sent_away = ("lease_held", "lock_delayed", "queued") if leaf.value.get("wait") is True else ()
    return "members wait, error: exclude each other" if leaf.text("error") in (*kept_out, *sent_away) else None


def _conflict_fault(leaf: Leaf) -> str | None:
    conflict = leaf.value.get("conflict")
    if not isinstance(conflict, dict):
        return None
    if not _is_earlier_id(conflict["leaseId"], leaf.seq) or _number_of(conflict, "grantedAtMs") > leaf.time_ms:
        return "member conflict: of an earlier entry"
    if not _is_asked(leaf, conflict) or not _may_overlap(
        _text_of(conflict, "resource"), [_text_of(conflict, "heldAs")]
    ):
        return "member conflict: resource was asked for and overlaps heldAs"
    return None


def _ahead_fault(leaf: Leaf) -> str | None:
    ahead = leaf.value.get("ahead")
    if not isinstance(ahead, dict):
        return None
    if not _is_earlier_id(ahead["ticketId"], leaf.seq) or _number_of(ahead, "queuedAtMs") > leaf.time_ms:
        return "member ahead: of an earlier entry"
    is_fair = _is_asked(leaf, ahead) and ahead["actor"] != leaf.actor
    return None if is_fair else "member ahead: another actor's ticket on a resource that was asked for"


def _is_asked(leaf: Leaf, row: JsonObject) -> bool:
    """Say whether a row names a resource that the request asked for, as far as the leaf repeats them."""
    return "resources" not in leaf.value or _text_of(row, "resource") in resources_of(leaf.value)


def _is_earlier_id(text: JsonValue, seq: int) -> bool:
    """Say whether a lease or ticket id is the seq of an earlier entry."""
    return int(str(text)[1:]) < seq


def _cycle_fault(leaf: Leaf) -> str | None:
    """A cycle begins with who asks; each actor waits in it once; what is soft in it stands behind a ticket."""
    rows = rows_of(leaf.value.get("cycle"))
    if not rows:
        return "member softCycle: only with cycle" if "softCycle" in leaf.value else None
    if rows[0]["actor"] != leaf.actor or len({_text_of(row, "actor") for row in rows}) != len(rows):
        return "member cycle: begins with the actor and has every actor once"
    if not _is_asked(leaf, rows[0]) or rows[0].get("ticketId") != leaf.value.get("ticketId"):
        return "member cycle: begins with what was asked for"
    own_ask = f"A{leaf.seq}" if leaf.type == _ASK_REFUSED else None
    if own_ask is not None and rows[0].get("askId") != own_ask:
        return "member cycle: begins with the ask that is refused, A and the seq of this entry"
    ids = [row[name] for row in rows for name in ("ticketId", "aheadId", "askId") if name in row]
    if not all(_is_earlier_id(text, leaf.seq) for text in ids if text not in (leaf.value.get("ticketId"), own_ask)):
        return "member cycle: of earlier entries"
    if any("aheadId" in row for row in rows) != ("softCycle" in leaf.value):
        return "member softCycle: there exactly when a row of cycle has aheadId"
    names: list[JsonValue] = [row["resource"] for row in rows]
    is_told = leaf.type == _QUEUED or (leaf.value["waitingOn"], leaf.value["acquireOrder"]) == (
        names[1],
        sorted(set(map(str, names))),
    )
    return None if is_told else "members waitingOn, acquireOrder: as the cycle says"


_CITED = {row.type: tuple(member.name for member in row.members if member.kind is SEQ) for row in _ROWS}
_TILL = {
    row.type: tuple(member.name for member in row.members if member.name in ("pollByMs", "claimByMs", "untilMs"))
    for row in _ROWS
}


def _earlier_rule(leaf: Leaf) -> str | None:
    for name in _CITED[leaf.type]:
        if leaf.number(name) >= leaf.seq:
            return f"member {name}: an earlier entry"
    if "ticketSeq" in leaf.value and leaf.text("ticketId") != f"T{leaf.number('ticketSeq')}":
        return "member ticketId: T and the seq of the queueing entry"
    if "askSeq" in leaf.value and leaf.text("askId") != f"A{leaf.number('askSeq')}":
        return "member askId: A and the seq of the asking entry"
    for name in _TILL[leaf.type]:
        if leaf.number(name) < leaf.time_ms:
            return f"member {name}: not before timeMs"
    return None


def _queued_rule(leaf: Leaf) -> str | None:
    if leaf.text("ticketId") != f"T{leaf.seq}":
        return "member ticketId: T and the seq of this entry"
    if leaf.number("giveUpByMs") != leaf.time_ms + leaf.number("giveUpMs"):
        return "member giveUpByMs: timeMs + giveUpMs"
    return _earlier_rule(leaf) or _cycle_fault(leaf)


def _offered_rule(leaf: Leaf) -> str | None:
    if leaf.text("leaseId") != f"L{leaf.number('grantSeq')}":
        return "member leaseId: L and the seq of the granting entry"
    if leaf.text("toDid") == leaf.text("holder"):
        return "member toDid: not the holder"
    return _earlier_rule(leaf)


def _break_refused_rule(leaf: Leaf) -> str | None:
    is_stale = leaf.text("error") == "token_stale"
    if ("holder" in leaf.value) != ("conflict" in leaf.value) or ("holder" in leaf.value and not is_stale):
        return "members holder, conflict: both or none, and only when the error is token_stale"
    if "holderName" in leaf.value and "holder" not in leaf.value:
        return "member holderName: only with holder"
    conflict = leaf.value.get("conflict")
    is_foreign = isinstance(conflict, dict) and conflict["resource"] != leaf.value["resource"]
    return "member conflict: on the resource that was named" if is_foreign else _conflict_fault(leaf)


def _ticket_refused_rule(leaf: Leaf) -> str | None:
    is_ended = leaf.text("error") == "ticket_ended"
    if is_ended != ("endedSeq" in leaf.value):
        return "member endedSeq: there exactly when the error is ticket_ended"
    return _earlier_rule(leaf)


def _allowed_rule(leaf: Leaf) -> str | None:
    """Only a read is done without a lease, nothing irreversible without an approval, nothing past the lease's end."""
    if len({name in leaf.value for name in ("leaseId", "fencingToken", "grantSeq")}) > 1:
        return "members leaseId, fencingToken, grantSeq: all or none"
    is_held, approved = "leaseId" in leaf.value, rows_of(leaf.value.get("approvals"))
    if is_held and leaf.text("leaseId") != f"L{leaf.number('grantSeq')}":
        return "member leaseId: L and the seq of the granting entry"
    if not is_held and leaf.text("mode") != "read":
        return "member leaseId: missing for what is not a read"
    if leaf.number("validUntilMs") <= leaf.time_ms:
        return "member validUntilMs: after timeMs"
    if is_held and leaf.number("validUntilMs") > leaf.time_ms + _fact(leaf, "leaseLeftMs"):
        return "member validUntilMs: not after the end of the lease"
    return _earlier_rule(leaf) or _approved_fault(leaf, approved) or _facts_fault(leaf) or _ruling_fault(leaf)


def _fact(leaf: Leaf, name: str) -> int:
    facts = leaf.value.get("facts")
    return _number_of(facts, name) if isinstance(facts, dict) else -1


def _approved_fault(leaf: Leaf, approved: list[JsonObject]) -> str | None:
    if _fact(leaf, "approvals") != len(approved):
        return "members approvals, facts: as many as the rows say"
    if any(row["operator"] == leaf.on_behalf_of for row in approved):
        return "member approvals: not of the agent's own operator"
    is_bare = not approved and any(row["class"] == "irreversible" for row in rows_of(leaf.value["schemes"]))
    return "member approvals: missing for what is irreversible" if is_bare else None


def _facts_fault(leaf: Leaf) -> str | None:
    """Facts agree with what the leaf itself says: of the lease, of the key, of the schemes."""
    facts = leaf.value.get("facts")
    if not isinstance(facts, dict):
        return None
    is_held = "leaseId" in leaf.value
    said = (facts["leaseState"] == "live", facts["leaseMode"] != "none", _number_of(facts, "leaseLeftMs") > 0)
    if set(said) != {is_held} or (not is_held and facts["leaseAgeMs"] != 0):
        return "member facts: a lease is live exactly when the leaf names one"
    if is_held and MODES.index(str(facts["leaseMode"])) < MODES.index(leaf.text("mode")):
        return "member facts: leaseMode at least as strong as mode"
    if leaf.principal != leaf.actor and facts["actorKind"] != "session":
        return "member facts: actorKind is session when another one's key acts"
    return (
        None if _are_schemes_of_leaf(leaf) else "member schemes: exactly those of the resources, each having the mode"
    )


def _ruling_fault(leaf: Leaf) -> str | None:
    """What rules in force say is what happens; what rules in the shadow say, or none, is not asked."""
    ruling, error = leaf.value.get("rules"), leaf.value.get("error")
    if not isinstance(ruling, dict):
        return None
    wanted, is_matched = BY_RULES.get(str(error), ("allow", None))
    if error is None and ruling["mode"] == "shadow":
        return None
    if ruling["mode"] != "enforce" or ruling["decision"] != wanted:
        return "member rules: mode and decision as the entry itself decides"
    is_as_said = is_matched is None or is_matched == bool(ruling["matched"])
    return None if is_as_said else "member rules: matched is empty exactly when no rule forbids"


def _denied_rule(leaf: Leaf) -> str | None:
    """What the rules and their facts say is there exactly when the rules denied."""
    if ("leaseId" in leaf.value) != ("fencingToken" in leaf.value):
        return "members leaseId, fencingToken: both or none"
    if {name in leaf.value for name in ("facts", "schemes", "rules")} != {leaf.text("error") in BY_RULES}:
        return "members facts, schemes, rules: there exactly when the rules denied"
    return _refused_rule(leaf) or _facts_fault(leaf) or _ruling_fault(leaf)


def _asked_rule(leaf: Leaf) -> str | None:
    approvers = leaf.value["approvers"]
    if leaf.text("askId") != f"A{leaf.seq}":
        return "member askId: A and the seq of this entry"
    if isinstance(approvers, list) and leaf.number("quorum") > len(approvers):
        return "member quorum: at most the approvers"
    is_inside = ASK_MS_MIN <= leaf.number("giveUpByMs") - leaf.time_ms <= ASK_MS_MAX
    return None if is_inside else "member giveUpByMs: timeMs + giveUpMs"


def _ask_refused_rule(leaf: Leaf) -> str | None:
    """An ask has nobody's lease in its way: only a deadlock says more, and that is the cycle."""
    if {name in leaf.value for name in _DEADLOCKED} != {leaf.text("error") == "deadlock"}:
        return "members waitingOn, cycle, acquireOrder: there exactly when the error is deadlock"
    if "searchBounded" in leaf.value and "cycle" not in leaf.value:
        return "member searchBounded: only with cycle"
    return _cycle_fault(leaf)


def _given_rule(leaf: Leaf) -> str | None:
    return _earlier_rule(leaf) if leaf.text("approver") == leaf.actor else "member approver: the actor"


def _ask_call_refused_rule(leaf: Leaf) -> str | None:
    """What lapsed has no entry that ended it."""
    is_odd = "endedSeq" in leaf.value and leaf.text("error") != "ask_ended"
    return "member endedSeq: only when the error is ask_ended" if is_odd else _earlier_rule(leaf)


def _witnessed_rule(leaf: Leaf) -> str | None:
    """A checkpoint that was witnessed is of what stands before this entry."""
    return None if 0 < leaf.number("size") <= leaf.seq else "member size: of earlier entries, at least one"


def _key_rule(leaf: Leaf) -> str | None:
    """What the entry says about a key is what its statement says; whose signature that bears is not checked here."""
    return _stated_fault(leaf, leaf.text("statement")) or _earlier_rule(leaf)


def _stated_fault(leaf: Leaf, text: str) -> str | None:
    try:
        stated, _ = read_key_statement(text.encode(), leaf.origin, leaf.genesis)
    except Malformed as error:
        return f"member statement: {error}"
    said: JsonObject = {"purpose": stated.purpose, "key": stated.key.vkey}
    if leaf.type == _ANNOUNCED:
        said["next"] = stated.next
    if f"key.{stated.verb}" != leaf.action:
        return "member statement: for another action"
    name = next((name for name, value in said.items() if leaf.value.get(name) != value), None)
    return None if name is None else f"member {name}: as the statement says"


def _genesis_rule(leaf: Leaf) -> str | None:
    operators = leaf.value["operators"]
    is_both = isinstance(operators, list) and leaf.text("enroller") in operators
    return "member enroller: no operator; a key has one role" if is_both else None


_SELF_RULES: Mapping[str, Callable[[Leaf], str | None]] = {
    full_type(name): rule
    for rule, names in (
        (_genesis_rule, ("ledger.opened",)),
        (_witnessed_rule, ("checkpoint.witnessed",)),
        (_key_rule, ("key.announced", "key.retired", "key.compromised")),
        (_first_grant_rule, ("lease.granted", "lease.claimed")),
        (_next_lease_rule, ("lease.changed", "lease.transferred")),
        (_lease_rule, ("lease.extended", "lease.renewed", "lease.released")),
        (_expired_rule, ("lease.expired",)),
        (_returned_rule, ("lease.returned",)),
        (_opened_rule, ("session.opened",)),
        (_idle_fault, ("session.seen",)),
        (_ended_rule, ("session.ended",)),
        (_batch_refused_rule, ("batch.refused",)),
        (_broken_rule, ("lease.broken",)),
        (_refused_rule, ("lease.refused", "renewal.refused", "acceptance.refused")),
        (_break_refused_rule, ("break.refused",)),
        (_ticket_refused_rule, ("claim.refused", "cancel.refused")),
        (_queued_rule, ("wait.queued",)),
        (_offered_rule, ("transfer.offered",)),
        (_allowed_rule, ("admission.allowed",)),
        (_denied_rule, ("admission.denied",)),
        (_asked_rule, ("approval.asked",)),
        (_ask_refused_rule, ("approval.refused",)),
        (_given_rule, ("approval.given",)),
        (_ask_call_refused_rule, ("giving.refused", "declining.refused", "withdrawal.refused")),
        (
            _earlier_rule,
            (
                "lease.holiday",
                "apikey.revoked",
                "session.closed",
                "closing.repeated",
                "release.repeated",
                "release.refused",
                "break.repeated",
                "transfer.refused",
                "wait.polled",
                "wait.cancelled",
                "wait.offered",
                "wait.reserved",
                "wait.resumed",
                "wait.removed",
                "approval.declined",
                "approval.withdrawn",
            ),
        ),
    )
    for name in names
}


def body_difference(leaf: Leaf, body: JsonObject) -> str | None:
    """Return the first member in which a leaf differs from the checked body it answers or the stated default, or None.

    What `_FILLED_IN` names may be filled in where the request left it open; nothing else may be. A change of mode, a
    place in the queue and a deadlock that is waited out are only for who asked for them.
    Source: docs/protocol.md 16.5 (d), security.md §2 (d).
    """
    action = leaf.action
    if action is None or action not in ACTION_BODIES:
        return "action"
    for name, asked in _REPEATED.get(leaf.type, ()):
        wanted = list(resources_of(body)) if name == "resources" else body_value(action, body, asked)
        if leaf.value.get(name) != wanted and not (wanted is None and (leaf.type, name) in _FILLED_IN):
            return name
    if leaf.type in (_BATCH, _BATCH_REFUSED):
        return _batch_difference(leaf, rows_of(body["commands"]))
    if leaf.type in _KEY_REFUSED:
        return "statement" if _stated_fault(leaf, _text_of(body, "statement")) else None
    if leaf.type == _QUEUED and body_value(action, body, "wait") is not True:
        return "wait"
    if leaf.type == _ASKED:
        asked_ms = body_value(action, body, "giveUpMs")
        return None if leaf.number("giveUpByMs") - leaf.time_ms == asked_ms else "giveUpByMs"
    is_refused = leaf.type != _QUEUED
    has_hard_cycle = "cycle" in leaf.value and "softCycle" not in leaf.value
    is_waited_out = action == "lease.acquire" and body_value(action, body, "onDeadlock") == "wait"
    return "onDeadlock" if action == "lease.acquire" and has_hard_cycle and is_refused == is_waited_out else None


def _batch_difference(leaf: Leaf, commands: list[JsonObject]) -> str | None:
    if leaf.number("count") != len(commands):
        return "count"
    if leaf.type == _BATCH:
        return None
    return None if commands[leaf.number("index")].get("action") == leaf.text("action") else "action"
