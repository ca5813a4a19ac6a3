"""What decisions depend on: the records, one kind a class.

A record is a named tuple: it never changes, and it is made often. Changing state means putting another record under the
same key. A record that may be dropped one day says when in `until_ms`; the core compares that moment with log time
itself, so it never matters whether the store has already dropped the record. Source: docs/protocol.md, records.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from verifier.entries import ASK_MEMORY_MS, SESSION_MEMORY_MS


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
FILED = (Session, Agent, Pending)  # what is found by other words than names
FADING = (Waits, Edge, Session, Pending, Usage)  # the hot records that count until a moment, of themselves
Record: TypeAlias = (
    Agent | Operator | Enroller | Root | LedgerKey | Keys | ApiKey | Session | Quota | Scheme | Claim | Handover | Edge
    | Principal | Waits | RuleSet | Usage | Counter | Dispute | Ended | Idempotency | Nonce | Burnt | Pending
    | Cosigned
)  # fmt: skip
UsageOf: TypeAlias = Literal["agent", "operator", "scheme"]
Change: TypeAlias = tuple[str, Record | None, int | None]


def due_ms_of(record: Record) -> int | None:
    """Return from when on a record may be forgotten, in ms of log time, or None while only an entry may remove it."""
    return getattr(record, "until_ms", None)
