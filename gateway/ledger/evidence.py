"""What a record says must stand in an entry: the hot records are compared with the ledger they came from.

A start does this once. Its work is bounded by live state: one or two entries for each record, read by their number. It
finds what an edit made impossible; that nothing is missing or old is the seal's to say (`seal.py`).
Source: docs/protocol.md 7, 12; docs/operating.md.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from hashlib import sha256

from gateway.core.key import first_records
from gateway.core.lookup import agent_at, apikey_at, counter_at
from gateway.core.record_keys import (
    DISPUTE_KEY,
    ENROLLER_KEY,
    OPERATORS_KEY,
    ROOT_KEY,
    RULES_KEY,
    TICKETS_KEY,
    TOKEN_KEY,
    agent_key,
    apikey_key,
    ask_key,
    delay_key,
    edge_key,
    handover_key,
    key_in_ledger,
    keys_key,
    lease_key,
    operator_key,
    principal_key,
    quota_key,
    scheme_key,
    session_key,
    ticket_key,
    wait_key,
)
from gateway.core.records import (
    Agent,
    ApiKey,
    Counter,
    Delay,
    Dispute,
    Edge,
    Enroller,
    Handover,
    Keys,
    Lease,
    LedgerKey,
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
from gateway.core.usage import DAY_MS, MINUTE_MS, counted_by, forgotten_at_ms
from gateway.errors import Fatal
from gateway.ledger.live import Live
from gateway.store.contract import Reading
from verifier.did import encode_did
from verifier.entries import GRANTS, PURPOSES, Leaf, full_type, parse_leaf, rows_of
from verifier.note import parse_vkey
from verifier.wire import JsonObject, JsonValue, Malformed

# Of whom an admission counts, with the member that names who it is and how the facts about it begin.
_COUNTS = {"agent": ("principal", "agent"), "operator": ("onBehalfOf", "operator")}
_HELD_BACK = ("lease.refused", "renewal.refused", "acceptance.refused")
_DISMISSING = tuple(map(full_type, ("session.closed", "session.ended", "agent.removed", "operator.removed")))


def check_records(read: Reading, live: Live, size: int) -> None:
    """Compare every hot record with the entries of a ledger of `size`. Fatal at the first that does not fit."""
    book = _Book(read, live)
    for key, record in live.scan(""):
        if not book.fits(key, record):
            raise Fatal(
                f"the record {key} of the store says what no entry of the ledger says; somebody changed it. Keep the"
                " file, and restore a good back-up"
            )
    missing = [key for key in book.first_keys if live.get(key) is None]
    if missing:
        raise Fatal(
            f"entry 0 puts {len(book.first_keys)} records into the store, but {len(missing)} are not there, first"
            f" {missing[0]}; somebody changed them. Keep the file, and restore a good back-up"
        )
    if size == 1 and len(live) != len(book.first_keys):
        raise Fatal("the ledger has entry 0 alone, but the store has records of later ones; restore a good back-up")


class _Book:
    """A ledger and its records side by side, for one comparison."""

    def __init__(self, read: Reading, live: Live) -> None:
        self._read = read
        self._live = live
        opened = self._entry(0, "ledger.opened")
        assert opened is not None, "entry 0 was compared with the one that is configured"
        self._operators = tuple(map(str, _list(opened.value["operators"])))
        self._enroller = opened.text("enroller")
        following = opened.value.get("nextKeys")
        lines = tuple(map(str, _list(opened.value["keys"])))
        self._first = first_records(opened.text("root"), lines, following if isinstance(following, dict) else {})
        self._in_force_by = _in_force(live)
        self.first_keys = (*map(operator_key, self._operators), ENROLLER_KEY, OPERATORS_KEY, *self._first)
        parameters = opened.value["parameters"]
        assert isinstance(parameters, dict), "the table says so"
        self._numbers = parameters
        self._tickets = sum(1 for _ in live.scan("ticket/"))
        operators = (record for _, record in live.scan("operator/"))
        self._in_force = sum(1 for one in operators if isinstance(one, Operator) and one.removed_seq is None)
        self._held: Tally[str] = Tally()  # names of leases and delays, by principal
        for _, record in (*live.scan("lease/"), *live.scan("delay/")):
            if isinstance(record, Lease | Delay):
                self._held[record.principal] += len(record.resources)

    def fits(self, key: str, record: Record) -> bool:
        match record:
            case Operator():
                return key == operator_key(record.did) and self._is_operator(record)
            case Enroller(did):
                return key == ENROLLER_KEY and did == self._enroller
            case Root():
                return key == ROOT_KEY and self._first[ROOT_KEY] == record
            case LedgerKey():
                return key == _place_of(record) and self._is_key(record)
            case Keys():
                return key == keys_key(record.purpose) and self._are_in_force(record)
            case Agent():
                return key == agent_key(record.did) and self._is_enrolled(record)
            case ApiKey():
                return key == apikey_key(record.digest) and self._is_issued(record)
            case Session():
                return key == session_key(record.did) and self._is_opened(record)
            case Quota():
                return key == quota_key(record.did) and self._is_on_trial(record)
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
            case Pending():
                return key == ask_key(record.ask_id) and self._is_asked(record)
            case RuleSet():
                return key == RULES_KEY and self._is_loaded(record)
            case Usage():
                return self._is_used(key, record)
            case Dispute(seq):
                return key == DISPUTE_KEY and self._entry(seq, "ledger.disputed") is not None
            case Counter(value) if key == TICKETS_KEY:
                return value == self._tickets
            case Counter(value) if key == OPERATORS_KEY:
                return value == self._in_force
        return isinstance(record, Counter)  # what the other numbers must be at least, leases say

    def _is_operator(self, operator: Operator) -> bool:
        """Say whether entry 0 or a later one put the operator in force, and another dismissed it later."""
        is_named = operator.added_seq == 0 and operator.name is None and operator.did in self._operators
        added = self._entry(operator.added_seq, "operator.added")
        is_added = added is not None and _about(added, operator=operator.did, name=operator.name)
        return (is_named or is_added) and self._is_taken_away(
            operator.added_seq, operator.removed_seq, "operator.removed", operator=operator.did
        )

    def _is_key(self, key: LedgerKey) -> bool:
        """Say whether entry 0 or a later one put the key in force, and another retired or disowned it later."""
        if key.announced_seq == 0:
            is_given = self._first.get(_place_of(key)) == key._replace(ended_seq=None, is_compromised=False)
        else:
            announced = self._entry(key.announced_seq, "key.announced")
            is_given = announced is not None and _about(announced, purpose=key.purpose, key=key.vkey)
        ended = "key.compromised" if key.is_compromised else "key.retired"
        is_whole = key.ended_seq is not None or not key.is_compromised
        return is_given and is_whole and self._is_taken_away(key.announced_seq, key.ended_seq, ended, key=key.vkey)

    def _are_in_force(self, keys: Keys) -> bool:
        """Say whether just these keys are in force, and whether the newest of all committed to this next one."""
        if keys.purpose not in PURPOSES:
            return False
        in_force, newest_seq = self._in_force_by[keys.purpose]
        announced = self._entry(newest_seq, "key.announced")
        first = self._first[keys_key(keys.purpose)]
        if newest_seq == 0:
            is_committed = isinstance(first, Keys) and first.next_hash == keys.next_hash
        else:
            is_committed = announced is not None and _about(announced, next=keys.next_hash)
        return is_committed and keys.in_force == in_force

    def _is_enrolled(self, agent: Agent) -> bool:
        """Say whether the entries that the record names enrolled the key, under this label, and removed it later."""
        added = self._entry(agent.added_seq, "agent.added")
        custody = "gateway" if agent.is_custodial else None
        said = {"agent": agent.did, "name": agent.name, "agentCustody": custody, "keyDigest": agent.key_digest}
        if added is None or not _about(added, **said) or not self._is_answered_for(agent, added):
            return False
        return self._is_taken_away(agent.added_seq, agent.removed_seq, "agent.removed", agent=agent.did)

    def _is_answered_for(self, agent: Agent, added: Leaf) -> bool:
        """Say whether the operator is who signed, or who issued the API key that enrolled; and when a trial ends.

        Enrolling again by the same trial key adds no days, so the end may be earlier than the entry would have it.
        """
        if agent.key_digest is None:
            return (added.actor, agent.trial_until_ms) == (agent.operator, None)
        key = apikey_at(self._live, agent.key_digest)
        if key is None or (added.actor, key.operator) != (self._enroller, agent.operator):
            return False
        if key.kind != "trial":
            return agent.trial_until_ms is None
        until_ms = agent.trial_until_ms
        return key.used_by == agent.did and until_ms is not None and until_ms <= added.time_ms + self._number("trialMs")

    def _is_issued(self, key: ApiKey) -> bool:
        """Say whether the entry issued exactly this API key, and another revoked it later."""
        issued = self._entry(key.issued_seq, "apikey.issued")
        said = {"keyDigest": key.digest, "kind": key.kind, "name": key.name, "agent": key.agent, "actor": key.operator}
        if issued is None or not _about(issued, **said):
            return False
        is_used = key.used_by is None or (key.kind == "trial" and agent_at(self._live, key.used_by) is not None)
        return is_used and self._is_taken_away(key.issued_seq, key.revoked_seq, "apikey.revoked", keyDigest=key.digest)

    def _is_opened(self, session: Session) -> bool:
        """Say whether the entry opened exactly this session, which may have acted since.

        Of one that ended, which are most, only that end is looked at: what it might do no longer matters.
        """
        if session.ended_seq is not None:
            return self._is_over(session, session.ended_seq)
        opened = self._entry(session.opened_seq, "session.opened")
        expected: JsonObject = {
            "actor": session.did,
            "name": session.name,
            "principal": session.principal,
            "onBehalfOf": session.on_behalf_of,
            "verbs": list(session.verbs),
            "scope": list(session.resources) or None,
            "expiresAtMs": session.expires_at_ms,
        }
        if opened is None or not _says(opened, expected):
            return False
        shared = None if session.shared_seq is None else self._leaf(session.shared_seq)
        is_own = session.shared_seq is None or (shared is not None and shared.actor == session.did)
        is_alive = session.idle_by_ms >= opened.time_ms + self._number("sessionIdleMs")
        return is_own and is_alive

    def _is_over(self, session: Session, ended_seq: int) -> bool:
        ended = self._entry(ended_seq, "session.closed", "session.ended")
        return ended is not None and _says(ended, {"session": session.did, "openedSeq": session.opened_seq})

    def _is_on_trial(self, quota: Quota) -> bool:
        """Say whether the agent was enrolled for a trial; how much of it is used up, no single entry says."""
        agent = agent_at(self._live, quota.did)
        return agent is not None and 0 < quota.used <= self._number("trialDecisions")

    def _is_taken_away(self, given_seq: int, taken_seq: int | None, kind: str, **said: str) -> bool:
        """Say whether what an entry gave is in force, or was taken away by the later one that the record names."""
        if taken_seq is None:
            return True
        taken = self._entry(taken_seq, kind)
        return taken_seq > given_seq and taken is not None and _about(taken, **said)

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
        ended = self._entry(delay.seq, "lease.expired", "lease.broken", "lease.returned")
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

    def _is_asked(self, pending: Pending) -> bool:
        """Say whether the entry asked exactly this, those who gave did, and another ended it, if it has ended."""
        asked = self._entry(pending.seq, "approval.asked")
        if asked is None:
            return False
        expected: JsonObject = {
            "askId": pending.ask_id,
            "actor": pending.actor,
            "principal": pending.principal,
            "onBehalfOf": pending.on_behalf_of,
            "operation": pending.operation,
            "resources": list(pending.resources),
            "mode": pending.mode,
            "argumentsDigest": pending.arguments_digest,
            "cost": pending.cost,
            "actionDigest": pending.action_digest,
            "rulesDigest": pending.rules_digest,
            "approvers": list(pending.approvers),
            "quorum": pending.quorum,
            "timeMs": pending.asked_at_ms,
            "giveUpByMs": pending.give_up_by_ms,
        }
        is_whole = len(pending.operators) == len(pending.approvers) and len(pending.given) == len(pending.given_in)
        gave = all(self._has_given(pending, *pair) for pair in zip(pending.given, pending.given_in, strict=False))
        return _says(asked, expected) and is_whole and gave and self._has_ended(pending)

    def _has_given(self, pending: Pending, approver: str, seq: str) -> bool:
        given = self._entry(int(seq), "approval.given") if seq.isdecimal() else None
        return given is not None and _says(given, {"approver": approver, "askSeq": pending.seq})

    def _has_ended(self, pending: Pending) -> bool:
        """Say whether an ask is open, or was ended by the entry that it names; that may be the end of who asked."""
        if pending.ended_seq is None:
            return (pending.how, pending.ended_at_ms) == ("", None)
        ended = self._leaf(pending.ended_seq)
        if ended is None or ended.time_ms != pending.ended_at_ms:
            return False
        if pending.how == "dismissed":
            return ended.type in _DISMISSING
        return ended.type == full_type(f"approval.{pending.how}") and ended.number("askSeq") == pending.seq

    def _is_refused(self, edge: Edge) -> bool:
        """Say whether the entry refused the actor this resource because of a lease."""
        refused = self._entry(edge.seq, *_HELD_BACK)
        conflict = refused.value.get("conflict") if refused is not None else None
        if refused is None or not isinstance(conflict, dict):
            return False
        is_mode = refused.value.get("mode", edge.mode) == edge.mode
        lives_ms = edge.until_ms - refused.time_ms
        said = refused.actor, conflict["resource"], self._number("waitEdgeMs")
        return is_mode and said == (edge.actor, edge.resource, lives_ms)

    def _is_counted(self, principal: Principal) -> bool:
        """Say whether the trust is what its last entry left, and whether just what leases and delays name counts."""
        if principal.held != self._held[principal.did]:
            return False
        if principal.trust_seq is None:
            return principal.trust == self._number("trustStart")
        moved = self._entry(principal.trust_seq, "lease.released", "lease.expired", "session.ended")
        rows = rows_of(moved.value.get("trust")) if moved is not None else []
        return any((row["did"], row["after"]) == (principal.did, principal.trust) for row in rows)

    def _is_loaded(self, rules: RuleSet) -> bool:
        """Say whether the entry put exactly this text in force."""
        loaded = self._entry(rules.seq, "rules.loaded")
        expected: JsonObject = {
            "rulesVersion": rules.version,
            "rulesMode": rules.mode,
            "digest": sha256(rules.text.encode()).hexdigest(),
            "engine": rules.engine,
        }
        return loaded is not None and rules.digest == expected["digest"] and _says(loaded, expected)

    def _is_used(self, key: str, usage: Usage) -> bool:
        """Say whether the windows are what their last admission left. What is counted in all, no single entry says."""
        _, of, name = (*key.split("/", 2), "", "")[:3]
        is_whole = usage.total >= usage.day_count >= usage.minute_count and usage.total_cost >= usage.day_cost
        if usage.seq is None:
            return usage == Usage(0, 0, 0, 0, 0, 0, 0, usage.denied) and usage.denied > 0 and of in _COUNTS
        allowed = self._entry(usage.seq, "admission.allowed")
        before = None if allowed is None else _counted_before(allowed, of, name)
        if allowed is None or before is None:
            return False
        minute, day = allowed.time_ms // MINUTE_MS, allowed.time_ms // DAY_MS
        found = usage._replace(minute=minute, day=day, until_ms=forgotten_at_ms(of, day), **before)
        after = counted_by(found, allowed.number("cost"), usage.seq)
        return is_whole and after == usage._replace(total=after.total, total_cost=after.total_cost)

    def _number(self, name: str) -> int:
        """Return a parameter of entry 0."""
        number = self._numbers[name]
        assert isinstance(number, int), "the table says so"
        return number

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


def _counted_before(allowed: Leaf, of: str, name: str) -> dict[str, int] | None:
    """Return what an admission found counted of somebody; None when it is not about them."""
    if of == "scheme":
        rows = [row for row in rows_of(allowed.value["schemes"]) if row["name"] == name]
        names = ("countMinute", "countDay", "costDay")
    else:
        member, kind = _COUNTS.get(of, ("", ""))
        rows = [facts for facts in [allowed.value["facts"]] if isinstance(facts, dict)]
        rows = rows if allowed.value.get(member) == name else []
        names = (f"{kind}CountMinute", f"{kind}CountDay", f"{kind}CostDay")
    counts = [row[member] for row in rows for member in names]
    found = [count for count in counts if isinstance(count, int)]
    return dict(zip(("minute_count", "day_count", "day_cost"), found, strict=True)) if found else None


def _place_of(key: LedgerKey) -> str:
    """Return the key of its record; nothing that there is for a text that is no vkey."""
    try:
        return key_in_ledger(encode_did(parse_vkey(key.vkey).public_key))
    except Malformed:
        return ""


def _in_force(live: Live) -> dict[str, tuple[tuple[str, ...], int]]:
    """Return by purpose the keys in force, the oldest first, and the entry that announced the newest of them all."""
    keys = sorted(
        (record for _, record in live.scan("key/") if isinstance(record, LedgerKey)), key=lambda key: key.announced_seq
    )
    return {
        purpose: (
            tuple(key.vkey for key in keys if key.purpose == purpose and key.ended_seq is None),
            max((key.announced_seq for key in keys if key.purpose == purpose), default=0),
        )
        for purpose in PURPOSES
    }


def _says(leaf: Leaf, expected: Mapping[str, JsonValue]) -> bool:
    return all(leaf.value.get(name) == value for name, value in expected.items())


def _about(leaf: Leaf, **said: str | None) -> bool:
    """Say whether a leaf has these members, and lacks those that are None."""
    return _says(leaf, said)


def _list(value: JsonValue) -> list[JsonValue]:
    assert isinstance(value, list), "the table says so"
    return value
