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
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_type_hints

from gateway.core.terms import (
    PASSED,
    TICKETS,
    Index,
    agent_of,
    asked_behind,
    asked_by,
    asked_of,
    by,
    filed_under,
    held_behind,
    of_operator,
    session_let_by,
    session_of,
    session_under,
    waited_behind,
    waited_by,
)
from verifier.entries import ASK_MEMORY_MS, SESSION_MEMORY_MS
from verifier.wire import JsonObject, JsonValue, Malformed, encode_canonical, parse_canonical

RECORD_BYTES_MAX = 65_536  # A lease on 256 resources of 16 KiB together stays far below.


class Agent(NamedTuple):
    """An enrolled key. `removed_seq` is the entry that removed it, None while it is in force.

    `operator` answers for it. `key_digest` is the API key that enrolled it, None when an operator did. A trial ends at
    `trial_until_ms`; None for everybody else.
    """

    did: str
    name: str | None
    added_seq: int
    removed_seq: int | None
    operator: str
    is_custodial: bool = False
    key_digest: str | None = None
    trial_until_ms: int | None = None


class Operator(NamedTuple):
    """A key that may change who acts, named in entry 0 (`added_seq` 0) or added by another one."""

    did: str
    name: str | None = None
    added_seq: int = 0
    removed_seq: int | None = None


class Enroller(NamedTuple):
    """The key of the gateway that enrols agents in the name of an API key, named in entry 0."""

    did: str


class Root(NamedTuple):
    """The vkey of the root, named in entry 0: it alone says which keys sign for the ledger."""

    vkey: str


class LedgerKey(NamedTuple):
    """A key that signs, or signed, checkpoints or receipts of this ledger. It stays when it is out of force.

    `announced_seq` is the entry that put it in force, 0 for those of entry 0; `ended_seq` the one that retired or
    disowned it.
    """

    purpose: str
    vkey: str
    announced_seq: int
    ended_seq: int | None = None
    is_compromised: bool = False

    @property
    def from_size(self) -> int:
        """Return from which tree size, or entry, on it signs: the entry that announced it lies before."""
        return self.announced_seq + 1 if self.announced_seq else 0

    @property
    def to_size(self) -> int | None:
        """Return up to which tree size, or entry, it signs; None while it is in force."""
        return self.ended_seq


class Keys(NamedTuple):
    """The keys of one purpose in force, as vkeys, the oldest first.

    `next_hash` is the hex SHA-256 of the only raw key that may be announced next; None when any may.
    """

    purpose: str
    in_force: tuple[str, ...]
    next_hash: str | None = None


class ApiKey(NamedTuple):
    """A bearer key, known by the SHA-256 of its text. `operator` issued it and answers for whom it enrols.

    A key with `agent` speaks for that custodial agent. `used_by` is the one agent that a trial key enrolled.
    """

    digest: str
    kind: str
    name: str | None
    agent: str | None
    operator: str
    issued_seq: int
    revoked_seq: int | None = None
    used_by: str | None = None


class Session(NamedTuple):
    """A key that acts for `principal` within `verbs` and `resources` (empty: every name), until `expires_at_ms`.

    `idle_by_ms` is when it counts as dead; each entry of its own moves that. `anchor_size` is the newest history that
    it named, in a request signed at `signed_s`; `shared_seq` the first entry that shows two processes behind one key.
    An ended one is remembered for a day longer than its delegation is worth anything.
    """

    did: str
    name: str | None
    principal: str
    on_behalf_of: str
    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    opened_seq: int
    expires_at_ms: int
    idle_by_ms: int
    activity: str | None = None
    anchor_size: int = 0
    signed_s: int = 0
    shared_seq: int | None = None
    ended_seq: int | None = None

    @property
    def due_at_ms(self) -> int:
        return min(self.idle_by_ms, self.expires_at_ms)

    @property
    def number(self) -> int:
        return self.opened_seq

    @property
    def is_open(self) -> bool:
        return self.ended_seq is None

    @property
    def is_direct(self) -> bool:
        """Say whether no agent is behind it: an operator lets it act."""
        return self.principal == self.did

    @property
    def let_by(self) -> str:
        """Return the agent that lets it act, or the operator where there is no agent."""
        return self.on_behalf_of if self.is_direct else self.principal

    @property
    def until_ms(self) -> int | None:
        """Return from when on it may be forgotten."""
        return None if self.ended_seq is None else self.expires_at_ms + SESSION_MEMORY_MS


class Quota(NamedTuple):
    """How many entries a trial agent has caused."""

    did: str
    used: int


class Scheme(NamedTuple):
    """How names of one scheme share and fold, as an operator set it. `seq` is the entry that did."""

    name: str
    class_name: str
    is_folding: bool
    is_unicode: bool
    lock_delay_ms: int
    max_hold_ms: int
    seq: int


class Lease(NamedTuple):
    """A live lease. It exists under its key until the entry that ends it is written.

    `giver` is the principal whose key handed it over; it answers for it as well if it runs out until `giver_until_ms`.
    """

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
    giver: str | None = None
    giver_until_ms: int = 0

    @property
    def due_at_ms(self) -> int:
        return self.expires_at_ms

    @property
    def number(self) -> int:
        return self.grant_seq


class Handover(NamedTuple):
    """The offer of a live lease to another actor. An operator's offer goes past those who wait."""

    lease_id: str
    to_did: str
    by: str
    seq: int
    is_operator: bool


class Delay(NamedTuple):
    """What a lease that ended badly leaves behind: others are kept out for a while; its former holder is not."""

    lease_id: str
    holder: str
    principal: str
    resources: tuple[str, ...]
    mode: str
    seq: int
    ends_at_ms: int

    @property
    def due_at_ms(self) -> int:
        return self.ends_at_ms

    @property
    def number(self) -> int:
        return self.seq


class Ticket(NamedTuple):
    """A place in line. `seq` is its number: lower goes first. Offered while `claim_by_ms` is a time.

    Only a ticket for several resources has `passes` (how often a later one went first), `reserve_at_ms` (when it has
    been first for so long that it may keep what is free) and `reserve_until_ms` (None before its one reservation, the
    time at which that ends while it runs, then 0). `is_passed`: granting it now would close a cycle, so the next in
    line is served meanwhile.
    """

    ticket_id: str
    actor: str
    principal: str
    on_behalf_of: str
    resources: tuple[str, ...]
    mode: str
    ttl_ms: int
    seq: int
    queued_at_ms: int
    poll_by_ms: int
    give_up_by_ms: int
    claim_by_ms: int | None = None
    passes: int = 0
    reserve_at_ms: int | None = None
    reserve_until_ms: int | None = None
    is_passed: bool = False

    @property
    def holder(self) -> str:
        """Who waits, under the name it has in leases and delays."""
        return self.actor

    @property
    def deadline_ms(self) -> int:
        """Return when the ticket lapses, before any holiday."""
        return min(self.poll_by_ms if self.claim_by_ms is None else self.claim_by_ms, self.give_up_by_ms)

    @property
    def due_at_ms(self) -> int:
        """Return when something happens to it by time alone: it lapses, it may reserve, or its reservation ends."""
        turn_ms = self.reserve_at_ms if self.reserve_until_ms is None else self.reserve_until_ms
        if not turn_ms or self.claim_by_ms is not None:
            return self.deadline_ms
        return min(self.deadline_ms, turn_ms)

    @property
    def is_reserved(self) -> bool:
        """Say whether it keeps what is free of its names: its reservation counts until the entry that ends it."""
        return bool(self.reserve_until_ms)

    @property
    def number(self) -> int:
        return self.seq


class Edge(NamedTuple):
    """The latest plain acquire of an actor that a lease refused: as long as it counts, the actor waits for that."""

    actor: str
    resource: str
    mode: str
    seq: int
    until_ms: int


class Principal(NamedTuple):
    """What is counted of one principal: its trust in milli-points, and how many names its leases and delays have.

    `trust_seq` is the last entry that changed the trust. `gained` is what releases have added since `gain_since_ms`.
    """

    did: str
    trust: int
    trust_seq: int | None
    gain_since_ms: int
    gained: int
    held: int


class Waits(NamedTuple):
    """How often a principal was refused a resource without a break; `lease_id` is the lease that did last, if any."""

    actor: str
    principal: str
    resource: str
    waits: int
    since_ms: int
    refused_at_ms: int
    lease_id: str | None
    until_ms: int


class RuleSet(NamedTuple):
    """The rules in force, as an operator loaded them with entry `seq`; `digest` is the SHA-256 of their text in hex.

    In `mode` "enforce" what they say decides, in "shadow" it is written down alone. `engine` checked them.
    """

    version: int
    digest: str
    text: str
    mode: str
    engine: str
    seq: int


class Usage(NamedTuple):
    """What was admitted to an agent, an operator's agents, or on a scheme: in one minute, one day and ever.

    `minute` and `day` are log time divided by their length: what is counted of another one is over. Sums stop at the
    largest number that the wire can hold. `denied` is counted of agents and operators alone. `seq` is the last entry
    that admitted something; None before the first. Of a scheme nothing is kept when its day is over, at `until_ms`:
    schemes are named by whoever asks, so there may be any number of them.
    """

    minute: int
    minute_count: int
    day: int
    day_count: int
    day_cost: int
    total: int
    total_cost: int
    denied: int
    seq: int | None = None
    until_ms: int | None = None


class Counter(NamedTuple):
    """One number of the ledger: the last fencing token, or the end of the holiday in ms."""

    value: int


class Dispute(NamedTuple):
    """The entry that proved a second history. While it stands nothing is granted."""

    seq: int


class Ended(NamedTuple):
    """How a lease or ticket ended, kept for a day so that late calls get a precise answer.

    `actor` held it. A token that an operator broke is kept likewise; then `actor` is the operator.
    """

    actor: str
    how: Literal[
        "released", "expired", "broken", "transferred", "changed", "returned", "claimed", "cancelled", "removed"
    ]  # fmt: skip
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


class Burnt(NamedTuple):
    """An approval that was used, by the entry `seq`: remembered for as long as it could be used again."""

    seq: int
    until_ms: int


class Pending(NamedTuple):
    """What an actor asks others to approve. `operators` answered for the `approvers` when it asked, in their order.

    `given_in` are the numbers of the entries in which those in `given` did, as texts. It is live until it ended or
    `give_up_by_ms` has come, which no holiday moves; then it is remembered for a while.
    """

    ask_id: str
    actor: str
    principal: str
    on_behalf_of: str
    operation: str
    resources: tuple[str, ...]
    mode: str
    arguments_digest: str
    cost: int
    action_digest: str
    rules_digest: str
    approvers: tuple[str, ...]
    operators: tuple[str, ...]
    quorum: int
    seq: int
    asked_at_ms: int
    give_up_by_ms: int
    given: tuple[str, ...] = ()
    given_in: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()
    how: Literal["", "given", "declined", "withdrawn", "dismissed"] = ""
    ended_seq: int | None = None
    ended_at_ms: int | None = None

    @property
    def until_ms(self) -> int:
        """Return from when on it may be forgotten."""
        return ASK_MEMORY_MS + (self.give_up_by_ms if self.ended_at_ms is None else self.ended_at_ms)

    @property
    def has_quorum(self) -> bool:
        return len({self.operator_of(one) for one in self.given}) >= self.quorum

    @property
    def needed(self) -> tuple[str, ...]:
        """Return those who have not answered and without whom there can't be enough any more."""
        answered = {*self.given, *self.declined}
        return tuple(one for one in self.approvers if one not in answered and not self.is_enough_without(one))

    def is_enough_without(self, *approvers: str) -> bool:
        """Say whether those who gave or may still give can be enough, these left out."""
        out = {*self.declined, *approvers}
        left = {who for one, who in zip(self.approvers, self.operators, strict=True) if one not in out}
        return len(left) >= self.quorum

    def is_live(self, t_ms: int) -> bool:
        return self.ended_seq is None and t_ms < self.give_up_by_ms

    def operator_of(self, approver: str) -> str:
        return self.operators[self.approvers.index(approver)]


class Cosigned(NamedTuple):
    """The newest checkpoint of this ledger that a quorum of its witnesses cosigned, as a whole note."""

    note: str
    size: int
    root: str


class Dismissal(NamedTuple):
    """Keys that are done by the entry `cause_seq`: `actors` as such, and `sessions` that this ends as well.

    `is_delayed`: the lock-delays of what they hold apply.
    """

    actors: tuple[str, ...]
    sessions: tuple[Session, ...]
    cause_seq: int
    is_delayed: bool = True


Claim: TypeAlias = Lease | Delay | Ticket  # what stands on resources, and is found by name
CLAIMS = (Lease, Delay, Ticket)
Timed: TypeAlias = Claim | Session  # what time alone does something to
TIMED = (*CLAIMS, Session)
Record: TypeAlias = (
    Agent | Operator | Enroller | Root | LedgerKey | Keys | ApiKey | Session | Quota | Scheme | Claim | Handover | Edge
    | Principal | Waits | RuleSet | Usage | Counter | Dispute | Ended | Idempotency | Nonce | Burnt | Pending
    | Cosigned
)  # fmt: skip
UsageOf: TypeAlias = Literal["agent", "operator", "scheme"]
Change: TypeAlias = tuple[str, Record | None, int | None]

TOKEN_KEY = "ledger/token"
HOLIDAY_KEY = "ledger/holiday"
DISPUTE_KEY = "ledger/dispute"
TICKETS_KEY = "ledger/tickets"  # how many there are
OPERATORS_KEY = "ledger/operators"  # how many are in force
ENROLLER_KEY = "ledger/enroller"
ROOT_KEY = "ledger/root"
RULES_KEY = "ledger/rules"
COSIGNED_KEY = "cosigned/newest"  # read at a start alone; no decision depends on it

# Hot records live in memory; cold ones are looked up in the store, by key, for each batch.
HOT_PREFIXES = (
    "agent/", "operator/", "key/", "apikey/", "session/", "quota/", "scheme/", "lease/", "delay/", "ticket/",
    "handover/", "edge/", "principal/", "wait/", "ask/", "usage/", "ledger/",
)  # fmt: skip
COLD_PREFIXES = ("ended/", "idem/", "nonce/", "burnt/", "cosigned/")
# Records the store may drop, in any order, once their due time is not after log time. What stands on resources has
# none: only a decision removes it.
EXPENDABLE_PREFIXES = ("wait/", "edge/", "ask/", "usage/", "session/", "ended/", "idem/", "nonce/", "burnt/")

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


def agent_key(did: str) -> str:
    return f"agent/{did}"


def operator_key(did: str) -> str:
    return f"operator/{did}"


def key_in_ledger(did: str) -> str:
    """Return the key of the record of a ledger's key, which is known by the did:key of its raw public key."""
    return f"key/{did}"


def keys_key(purpose: str) -> str:
    return f"ledger/keys/{purpose}"


def apikey_key(digest: str) -> str:
    return f"apikey/{digest}"


def session_key(did: str) -> str:
    return f"session/{did}"


def quota_key(did: str) -> str:
    return f"quota/{did}"


def lease_key(lease_id: str) -> str:
    return f"lease/{lease_id}"


def scheme_key(name: str) -> str:
    return f"scheme/{name}"


def delay_key(lease_id: str) -> str:
    return f"delay/{lease_id}"


def ticket_key(ticket_id: str) -> str:
    return f"ticket/{ticket_id}"


def handover_key(lease_id: str) -> str:
    return f"handover/{lease_id}"


def edge_key(actor: str) -> str:
    return f"edge/{actor}"


def principal_key(did: str) -> str:
    return f"principal/{did}"


def wait_key(principal: str, resource: str) -> str:
    return f"wait/{principal}/{resource}"


def usage_key(of: UsageOf, name: str) -> str:
    return f"usage/{of}/{name}"


def ended_key(name: str) -> str:
    """Return the key of an end: of a lease or ticket by its id, of a broken token by `broken_name`."""
    return f"ended/{name}"


def broken_name(fencing_token: int) -> str:
    return f"B{fencing_token}"


def idempotency_key(actor: str, key: str) -> str:
    return _spent_key("idem", actor, key)


def nonce_key(actor: str, nonce: str) -> str:
    return _spent_key("nonce", actor, nonce)


def burnt_key(approver: str, nonce: str) -> str:
    return _spent_key("burnt", approver, nonce)


def ask_key(ask_id: str) -> str:
    return f"ask/{ask_id}"


@lru_cache(maxsize=2_048)
def _spent_key(kind: str, actor: str, name: str) -> str:
    """Hashed to 16 bytes, because most records lie under such a key: it is short and of a plain alphabet.

    Who looks for two names of one place (2^64 hashes) finds them under their own key only. Asked three times for
    each request.
    """
    place = hashlib.sha256(f"{actor}\n{name}".encode()).hexdigest()[:32]
    return f"{kind}/{place}"


def due_ms_of(record: Record) -> int | None:
    """Return from when on a record may be forgotten, in ms of log time, or None while only an entry may remove it."""
    return getattr(record, "until_ms", None)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _spelled(hint: object) -> str:
    """Return a type as its annotation spells it: `int`, `str | None`, `tuple[str, ...]`."""
    return hint.__name__ if hint in (int, str, bool) else str(hint).removeprefix("typing.")


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


def terms_of(record: Record) -> tuple[str, ...]:
    """Return the words under which a record is found beside its key; nothing for a kind that is only looked up."""
    match record:
        case Ticket():
            passed = (PASSED,) if record.is_passed else ()
            who = (waited_by(record.actor), of_operator(record.on_behalf_of))
            behind = () if record.principal == record.actor else (waited_behind(record.principal),)
            return (*_name_terms(record.resources), *who, *behind, TICKETS, *passed)
        case Lease() | Delay():
            behind = () if record.principal == record.holder else (held_behind(record.principal),)
            return (*_name_terms(record.resources), by(record.holder), *behind)
        case Session():
            let = session_let_by(record.let_by)
            return (let, session_of(record.principal), session_under(record.on_behalf_of)) if record.is_open else (let,)
        case Agent() if record.removed_seq is None:
            return (agent_of(record.operator),)
        case Pending():
            live = () if record.ended_seq is not None else (asked_by(record.actor), *map(asked_of, record.approvers))
            return (asked_behind(record.principal), *live)
    return ()


def is_filed_alike(before: Timed, after: Timed) -> bool:
    """Say whether two records under one key are filed under the same words; whose they are never changes.

    A key can be opened again after its session was forgotten, for somebody else.
    """
    if isinstance(before, Session):
        is_same = isinstance(after, Session) and before.opened_seq == after.opened_seq
        return is_same and before.is_open == (isinstance(after, Session) and after.is_open)
    is_passed = isinstance(before, Ticket) and before.is_passed
    return before.resources == after.resources and is_passed == (isinstance(after, Ticket) and after.is_passed)


def _name_terms(resources: tuple[str, ...]) -> tuple[str, ...]:
    if len(resources) == 1:
        return filed_under(resources[0])
    return tuple({term: None for name in resources for term in filed_under(name)})


class View(Protocol):
    """Records as they stand at the head of the ledger. Reading never changes anything."""

    def get(self, key: str) -> Record | None:
        """Return the record, or None. Records past their due time may still be there."""

    def near(self, term: str) -> Collection[str]:
        """Return the keys of the records filed under `term`. Their order means nothing."""

    def due(self, t_ms: int, limit: int) -> Iterable[Timed]:
        """Return at most `limit` records with `due_at_ms` ≤ `t_ms`, the oldest first, ties by number."""


class Draft:
    """A view plus the changes decided so far in this batch; the view below is never touched."""

    __slots__ = ("_below", "_changes", "_dismissed", "_filed", "_near", "_near_below", "_stirred", "_undo", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        self._below = view.get
        self._near_below = view.near
        self._changes: dict[str, Record | None] = {}
        self._undo: list[tuple[str, bool, Record | None]] = []
        self._near = Index()  # what this batch adds to the view's; may name what is gone again
        self._filed: list[tuple[int, str, str]] = []  # by which change, word and key: a rollback takes it back
        self._stirred: list[Claim] = []
        self._dismissed: list[Dismissal] = []

    def get(self, key: str) -> Record | None:
        return self._changes[key] if key in self._changes else self._below(key)

    def near(self, term: str) -> Collection[str]:
        """Return the keys filed under `term`; `get` says whether the record is still there and still like that."""
        below = self._near_below(term)
        return [*below, *self._near.near(term)] if term in self._near else below

    def put(self, key: str, record: Record | None) -> None:
        """Put a record under its key; None takes away what is there."""
        changes = self._changes
        if record is None or isinstance(record, CLAIMS):
            self._stir(key, record)
        elif isinstance(record, Session | Agent | Pending):
            self._file(key, record)
        if key in changes:
            self._undo.append((key, True, changes[key]))
        else:
            self._undo.append((key, False, None))
        changes[key] = record

    def _stir(self, key: str, record: Claim | None) -> None:
        """Note what stands on resources now or did until now.

        A key never changes its kind, and never comes back once it was taken away: ids are numbers of entries.
        """
        before = self.get(key)
        filed: tuple[str, ...] = ()
        if isinstance(before, CLAIMS):
            self._stirred.append(before)
        if record is None:
            return
        self._stirred.append(record)
        if isinstance(before, CLAIMS):
            if is_filed_alike(before, record):
                return
            filed = terms_of(before)
        self._add([term for term in terms_of(record) if term not in filed] if filed else terms_of(record), key)

    def _add(self, terms: Iterable[str], key: str) -> None:
        mark, add = len(self._undo), self._near.add
        self._filed += [(mark, term, key) for term in terms if add(term, key)]

    def _file(self, key: str, record: Session | Agent | Pending) -> None:
        """File what is new or comes back under its words; most often an open session just moves on."""
        before = self.get(key)
        if isinstance(before, Pending):  # it never comes back
            return
        if isinstance(before, Session) and isinstance(record, Session) and is_filed_alike(before, record):
            return
        self._add(terms_of(record), key)

    def delete(self, key: str) -> None:
        self.put(key, None)

    def take_stirred(self) -> list[Claim]:
        """Return what was put or taken away since the last call, before and after: settling looks at its names.

        It may hold what a rollback has undone; settling then finds nothing to do.
        """
        stirred, self._stirred = self._stirred, []
        return stirred

    def dismiss(self, dismissal: Dismissal) -> None:
        """Note that keys are done here; what they hold is given back right after the entry of this decision."""
        self._dismissed.append(dismissal)

    def take_dismissed(self) -> list[Dismissal]:
        """Return who was dismissed since the last call."""
        dismissed, self._dismissed = self._dismissed, []
        return dismissed

    def savepoint(self) -> int:
        """Return a mark that `rollback` understands."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Forget every change made after `mark`, and dismissals: they are taken after each decision.

        Nothing stays filed either: the numbers of what is undone are given to others, who hold other things.
        """
        self._dismissed.clear()
        while self._filed and self._filed[-1][0] >= mark:
            _, term, key = self._filed.pop()
            self._near.remove(term, key)
        while len(self._undo) > mark:
            key, was_changed, record = self._undo.pop()
            if was_changed:
                self._changes[key] = record
            else:
                del self._changes[key]

    def due(self, t_ms: int, limit: int) -> tuple[Timed, ...]:
        """Return due records of the view that this draft has neither ended nor changed."""
        return tuple(timed for timed in self._view.due(t_ms, limit) if self.get(timed_key(timed)) == timed)

    def changes(self) -> tuple[Change, ...]:
        """Return (key, record or None when deleted, due time) for each changed key, in order of first change."""
        return tuple((key, record, due_ms_of(record) if record else None) for key, record in self._changes.items())


def claim_key(claim: Claim) -> str:
    match claim:
        case Lease():
            return lease_key(claim.lease_id)
        case Delay():
            return delay_key(claim.lease_id)
        case Ticket():
            return ticket_key(claim.ticket_id)


def timed_key(timed: Timed) -> str:
    return session_key(timed.did) if isinstance(timed, Session) else claim_key(timed)


def agent_at(view: Draft | View, did: str) -> Agent | None:
    record = view.get(agent_key(did))
    assert record is None or isinstance(record, Agent), "an agent key holds an agent"
    return record


def operator_at(view: Draft | View, did: str) -> Operator | None:
    """Return an operator, removed or in force."""
    record = view.get(operator_key(did))
    assert record is None or isinstance(record, Operator), "an operator key holds an operator"
    return record


def ledger_key_at(view: Draft | View, did: str) -> LedgerKey | None:
    """Return what is known of a raw key that signs, or signed, for the ledger."""
    record = view.get(key_in_ledger(did))
    assert record is None or isinstance(record, LedgerKey), "a place of keys holds a key of the ledger"
    return record


def keys_at(view: Draft | View, purpose: str) -> Keys:
    """Return the keys of a purpose in force."""
    record = view.get(keys_key(purpose))
    assert isinstance(record, Keys), "entry 0 names the first keys"
    return record


def apikey_at(view: Draft | View, digest: str) -> ApiKey | None:
    record = view.get(apikey_key(digest))
    assert record is None or isinstance(record, ApiKey), "an API key's key holds an API key"
    return record


def session_at(view: Draft | View, did: str) -> Session | None:
    """Return a session, open or ended."""
    record = view.get(session_key(did))
    assert record is None or isinstance(record, Session), "a session key holds a session"
    return record


def quota_at(view: Draft | View, did: str) -> Quota:
    """Return what a trial agent has used up; nothing before its first entry."""
    record = view.get(quota_key(did))
    assert record is None or isinstance(record, Quota), "a quota key holds a quota"
    return record or Quota(did, 0)


def lease_at(view: Draft | View, lease_id: str) -> Lease | None:
    record = view.get(lease_key(lease_id))
    assert record is None or isinstance(record, Lease), "a lease key holds a lease"
    return record


def ticket_at(view: Draft | View, ticket_id: str) -> Ticket | None:
    record = view.get(ticket_key(ticket_id))
    assert record is None or isinstance(record, Ticket), "a ticket key holds a ticket"
    return record


def handover_at(view: Draft | View, lease_id: str) -> Handover | None:
    record = view.get(handover_key(lease_id))
    assert record is None or isinstance(record, Handover), "a handover key holds an offer"
    return record


def scheme_at(view: Draft | View, name: str) -> Scheme | None:
    """Return what an operator set for a scheme, None for one that nobody has set."""
    record = view.get(scheme_key(name))
    assert record is None or isinstance(record, Scheme), "a scheme key holds a scheme"
    return record


def edge_at(view: Draft | View, actor: str, t_ms: int) -> Edge | None:
    """Return the refused acquire for which an actor counts as waiting at `t_ms`."""
    record = view.get(edge_key(actor))
    assert record is None or isinstance(record, Edge), "an edge key holds an edge"
    return record if record and t_ms < record.until_ms else None


def principal_at(view: Draft | View, did: str, parameters: Parameters) -> Principal:
    """Return what is counted of a principal; one that never did anything stands at the start."""
    record = view.get(principal_key(did))
    assert record is None or isinstance(record, Principal), "a principal key holds a principal"
    return record or Principal(did, parameters.trust_start, None, 0, 0, 0)


def counter_at(view: Draft | View, key: str) -> int:
    """Return a number of the ledger; 0 before it was first set."""
    record = view.get(key)
    assert record is None or isinstance(record, Counter), "a counter key holds a counter"
    return record.value if record else 0


def rule_set_at(view: Draft | View) -> RuleSet | None:
    """Return the rules in force; None before any were loaded."""
    record = view.get(RULES_KEY)
    assert record is None or isinstance(record, RuleSet), "the place of the rules holds a rule set"
    return record


def usage_at(view: Draft | View, of: UsageOf, name: str) -> Usage:
    """Return what was counted of somebody last, in whichever minute and day that was."""
    record = view.get(usage_key(of, name))
    assert record is None or isinstance(record, Usage), "a usage key holds usage"
    return record or Usage(0, 0, 0, 0, 0, 0, 0, 0)


def waits_at(view: Draft | View, principal: str, resource: str, t_ms: int) -> Waits | None:
    """Return the wait record that still counts at `t_ms`."""
    record = view.get(wait_key(principal, resource))
    assert record is None or isinstance(record, Waits), "a wait key holds waits"
    return record if record and t_ms < record.until_ms else None


def ended_at(view: Draft | View, name: str, t_ms: int) -> Ended | None:
    """Return how the lease or ticket of this id ended, as long as that is remembered at `t_ms`."""
    record = view.get(ended_key(name))
    assert record is None or isinstance(record, Ended), "an ended key holds an end"
    return record if record and t_ms < record.until_ms else None


def idempotency_at(view: Draft | View, actor: str, key: str, t_ms: int) -> Idempotency | None:
    """Return the decision under an idempotency key, as long as the key lives at `t_ms`."""
    record = view.get(idempotency_key(actor, key))
    assert record is None or isinstance(record, Idempotency), "an idempotency key holds a decision"
    return record if record and t_ms < record.until_ms else None


def nonce_at(view: Draft | View, actor: str, nonce: str, t_ms: int) -> Nonce | None:
    """Return the use of a nonce that could still be replayed at `t_ms`."""
    record = view.get(nonce_key(actor, nonce))
    assert record is None or isinstance(record, Nonce), "a nonce key holds a nonce"
    return record if record and t_ms < record.until_ms else None


def burnt_at(view: Draft | View, approver: str, nonce: str, t_ms: int) -> Burnt | None:
    """Return the use of an approval that could still be used again at `t_ms`."""
    record = view.get(burnt_key(approver, nonce))
    assert record is None or isinstance(record, Burnt), "a burnt key holds an approval that was used"
    return record if record and t_ms < record.until_ms else None


def pending_at(view: Draft | View, ask_id: str, t_ms: int) -> Pending | None:
    """Return an ask, live or over, as long as it is remembered at `t_ms`."""
    record = view.get(ask_key(ask_id))
    assert record is None or isinstance(record, Pending), "an ask key holds an ask"
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
    poll_ms: int = 30_000
    claim_ms: int = 10_000
    wait_max_ms: int = 3_600_000
    queue_per_resource: int = 256
    queue_per_principal: int = 64
    queue_total: int = 10_000
    lock_delay_ms: int = 0
    deadlock_nodes: int = 1_000
    passes_max: int = 32
    reserve_after_ms: int = 60_000
    trust_start: int = 50_000
    trust_max: int = 100_000
    trust_gain: int = 500
    trust_gain_hold_ms: int = 1_000
    trust_gain_max: int = 1_000
    trust_gain_window_ms: int = 3_600_000
    trust_loss: int = 5_000
    held_per_principal: int = 1_024
    session_idle_ms: int = 120_000
    sessions_per_principal: int = 1_024
    trial_decisions: int = 35
    trial_ms: int = 604_800_000
    trial_ttl_max_ms: int = 60_000
    witness_ms: int = 60_000
    admission_ms: int = 60_000
    asks_per_principal: int = 64

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
