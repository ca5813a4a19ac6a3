"""Every member of every hot record: an edit of it contradicts an entry, or is one of those that only the seal sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from gateway.core.record_keys import (
    COLD_PREFIXES,
    ENROLLER_KEY,
    OPERATORS_KEY,
    TICKETS_KEY,
    agent_key,
    operator_key,
    principal_key,
    usage_key,
)
from gateway.core.records import (
    Agent,
    ApiKey,
    Counter,
    Delay,
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
from gateway.errors import Fatal
from gateway.ledger.evidence import check_records
from gateway.ledger.live import Live
from gateway.store.contract import Reading
from tests.core.court import TEXT, Judge
from tests.core.hall import Hall
from tests.core.requests import (
    accept,
    acquire,
    add,
    add_operator,
    admit,
    anchor_text,
    approved,
    batch,
    beat,
    chain,
    close,
    decline,
    did_of,
    enrol,
    give,
    issue,
    key_note,
    load_rules,
    open_session,
    plead,
    remove,
    remove_operator,
    revoke,
    set_scheme,
    state_key,
    transfer,
    withdraw,
)


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
    one = Hall(lock_delay_ms=60_000, session_idle_ms=5_000)
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


LIVE, TRIAL, SPENT, BOUND = (digit * 64 for digit in "1234")


def peopled() -> Hall:
    """Return a ledger with people of every kind, in force and gone, their API keys and sessions; one is on trial."""
    one = lived_in()
    for ask in (add_operator("op", "op2", name="Bea"), add_operator("op2", "op3"), remove_operator("op", "op3")):
        one.say(ask)
    one.say(add("op2", "G", name="gil", agentCustody="gateway"))
    one.say(issue("op2", LIVE, "live", name="ci"))
    one.say(issue("op2", TRIAL, "trial"))
    one.say(issue("op2", SPENT, "live"))
    one.say(issue("op2", BOUND, "live", agent=did_of("G")))
    one.say(revoke("op", SPENT))
    for agent, digest in (("H", LIVE), ("T", TRIAL)):
        assert one.say(enrol(agent, digest)).type.split("/")[1] == "agent.added"
    one.hold("T", f"trial:{did_of('T')}/a", ttlMs=60_000)
    one.say(remove("op", "D"))
    one.say(open_session("S1", chain("A", "S1"), name="first"))
    one.hold("S1", "repo:s1")
    assert [kind for kind, _ in one.later(5_000)] == ["session.ended", "lease.returned"]  # trust falls, a delay begins
    one.say(open_session("S2", chain("op", "B", "S2", verbs=["lease"], resources=["repo:**"]), name="night"))
    one.say(batch("S2", acquire("S2", "repo:s2"), acquire("S2", "repo:granted")))
    one.say(open_session("S3", chain("op2", "S3")))
    one.say(add_operator("op", "op4"))
    one.say(plead("A", "repo:asked", of=["H", "op4"], quorum=2))
    given = approved("H", plead("A", "repo:asked", of=["H"]), one.imprint.genesis, at_ms=one.t_ms)
    one.say(give("H", one.asks()[0], given))  # op4 has still to say
    one.say(withdraw("A", one.say(plead("A", "repo:asked", of=["op4"])).text("askId")))
    one.say(decline("op4", one.say(plead("A", "repo:asked", of=["op4"])).text("askId")))
    one.say(plead("S3", "repo:asked", of=["op4"]))
    one.say(close("op", "S3"))
    one.say(beat("S2", activity="testing").but(anchor=anchor_text(size=9)))
    one.later(1_000)
    one.say(beat("S2").but(anchor=anchor_text(size=8)))  # another process, which knows less
    one.say(open_session("S4", chain("op", "S4")))
    one.rules = Judge()
    for ask in (
        admit("A", "repo:read", mode="read", cost=5), load_rules("op", TEXT, 1),
        admit("A", "repo:read", "doc:read", mode="read", cost=1), admit("A", "repo:unheld"), admit("H", "repo:unheld"),
    ):  # fmt: skip
        one.say(ask)
    genesis = one.imprint.genesis
    for verb, purpose, name in (
        ("announce", "log", "log 2"), ("announce", "receipt", "receipt 2"), ("retire", "receipt", "receipt"),
        ("announce", "receipt", "receipt 3"), ("compromise", "receipt", "receipt 2"),
    ):  # fmt: skip
        following = {"receipt 2": "receipt 3", "receipt 3": "receipt 4"}.get(name) if verb == "announce" else None
        note = key_note(verb, purpose, name, genesis, following)
        assert "error" not in one.say(state_key("op", verb, note)).value
    return one


def check(one: Hall, records: dict[str, Record]) -> None:
    hot = {key: record for key, record in records.items() if not key.startswith(COLD_PREFIXES)}
    check_records(cast(Reading, Shelf(one)), Live(hot.items()), len(one.leaves))


# What may have moved since its entry, or what no entry says: of these the seal of the last batch is the only witness.
SEALED: dict[type[Any], set[str]] = {
    Operator: set(),
    Enroller: set(),
    Root: set(),
    LedgerKey: set(),
    Keys: set(),
    Agent: set(),
    ApiKey: set(),
    Session: {"idle_by_ms", "activity", "anchor_size", "signed_s"},
    Quota: {"used"},
    Lease: {"ttl_ms", "expires_at_ms"},
    Scheme: set(),
    Handover: set(),
    Delay: set(),
    Ticket: {"poll_by_ms", "claim_by_ms", "passes", "reserve_at_ms", "reserve_until_ms", "is_passed"},
    Edge: set(),
    Principal: {"gain_since_ms", "gained"},
    Pending: {"declined"},
    RuleSet: set(),
    Usage: {"total", "total_cost", "denied"},
    Waits: {"actor", "waits", "since_ms", "refused_at_ms", "lease_id", "until_ms"},
}


ENDED = set(Session._fields) - {"did", "opened_seq", "ended_seq"}  # of an ended session only its end is read


def sealed(record: Any) -> set[str]:
    if isinstance(record, Usage) and record.seq is None:  # of somebody who was only denied
        return {"denied"}
    is_ended = isinstance(record, Session) and record.ended_seq is not None
    return ENDED if is_ended else SEALED[type(record)]


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
    one = peopled()
    check(one, one.shelf.records)
    kinds = {type(record) for record in one.shelf.records.values()}
    assert set(SEALED) <= kinds
    grants = [one.leaf(lease.grant_seq).type.split("/")[1] for lease in one.leases().values()]
    assert set(grants) == {"lease.granted", "lease.changed", "lease.claimed", "lease.transferred"}


CASES = [(kind, name) for kind in SEALED for name in fields_of(kind)]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind.__name__}.{name}" for kind, name in CASES])
def test_an_edit_of_any_member_is_noticed(kind: type[Any], name: str) -> None:
    one = peopled()
    of_kind = {key: record for key, record in one.shelf.records.items() if isinstance(record, kind)}
    for key, record in of_kind.items():
        edited = record._replace(**{name: changed(getattr(record, name))})
        edits = dict(one.shelf.records) | {key: edited}
        if name in sealed(record):
            check(one, edits)
            continue
        with pytest.raises(Fatal, match="says what no entry of the ledger says"):
            check(one, edits)


@pytest.mark.parametrize("kind", SEALED)
def test_a_record_under_another_key_is_noticed(kind: type[Any]) -> None:
    one = peopled()
    key, record = next((key, record) for key, record in one.shelf.records.items() if isinstance(record, kind))
    edits = {place: other for place, other in one.shelf.records.items() if place != key}
    with pytest.raises(Fatal):
        check(one, edits | {f"{key}x": record})


def test_what_is_counted_must_be_there() -> None:
    one = peopled()
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
        {OPERATORS_KEY: Counter(4)},
        {OPERATORS_KEY: None},
        {ENROLLER_KEY: None},
        {operator_key(did_of("op")): None},
        {operator_key(did_of("op2")): None},
    ]
    for edit in edits:
        kept = {key: record for key, record in (records | edit).items() if record is not None}
        with pytest.raises(Fatal):
            check(one, kept)
    check(one, records | {principal_key(did_of("nobody")): Principal(did_of("nobody"), 50_000, None, 0, 0, 0)})


# That an agent, an API key or a session is in force again, because its end is hidden, only the seal can see.
FORGED: list[tuple[type[Any], str, str, Callable[[Any], Any]]] = [
    (Operator, "op3", "in force again", lambda one: one._replace(removed_seq=None)),
    (Operator, "op2", "named in entry 0", lambda one: one._replace(added_seq=0, name=None)),
    (Agent, "T", "a trial for ever", lambda one: one._replace(trial_until_ms=None)),
    (Agent, "T", "a trial for a day more", lambda one: one._replace(trial_until_ms=one.trial_until_ms + 86_400_000)),
    (Agent, "T", "by another API key", lambda one: one._replace(key_digest=LIVE, trial_until_ms=None)),
    (Agent, "T", "by an operator", lambda one: one._replace(key_digest=None, trial_until_ms=None)),
    (Agent, "H", "for another operator", lambda one: one._replace(operator=did_of("op"))),
    (ApiKey, TRIAL, "never used", lambda one: one._replace(used_by=None)),
    (ApiKey, TRIAL, "used by another", lambda one: one._replace(used_by=did_of("H"))),
    (ApiKey, LIVE, "used by one alone", lambda one: one._replace(used_by=did_of("H"))),
    (ApiKey, BOUND, "for anybody", lambda one: one._replace(agent=None)),
    (Session, "S2", "for every name", lambda one: one._replace(resources=())),
    (Session, "S2", "of another agent", lambda one: one._replace(principal=did_of("A"))),
    (Session, "S2", "dead at once", lambda one: one._replace(idle_by_ms=1)),
    (Session, "S2", "shared by another's entry", lambda one: one._replace(shared_seq=1)),
    (Session, "S2", "shared by what is to come", lambda one: one._replace(shared_seq=9_999)),
    (Session, "S4", "ended by another's end", lambda one: one._replace(ended_seq=0)),
    (Quota, "T", "nothing used", lambda one: one._replace(used=0)),
    (Quota, "T", "more than there is", lambda one: one._replace(used=36)),
]


@pytest.mark.parametrize(
    ("kind", "who", "forge"), [(*row[:2], row[3]) for row in FORGED], ids=[f"{row[1][:5]} {row[2]}" for row in FORGED]
)
def test_nobody_gets_more_than_the_ledger_gave(kind: type[Any], who: str, forge: Callable[[Any], Any]) -> None:
    one = peopled()
    name = who if kind is ApiKey else did_of(who)
    ((key, record),) = [(k, r) for k, r in one.shelf.records.items() if isinstance(r, kind) and r[0] == name]
    check(one, one.shelf.records)
    with pytest.raises(Fatal):
        check(one, dict(one.shelf.records) | {key: forge(record)})


@pytest.mark.parametrize(("total", "total_cost"), [(1, 6), (2, 5), (0, 0)])
def test_less_in_all_than_on_one_day_is_noticed(total: int, total_cost: int) -> None:
    one = peopled()
    key = usage_key("agent", did_of("A"))
    record = one.shelf.records[key]
    assert isinstance(record, Usage) and (record.total, record.total_cost) == (2, 6)
    with pytest.raises(Fatal, match="says what no entry"):
        check(one, dict(one.shelf.records) | {key: record._replace(total=total, total_cost=total_cost)})


def test_usage_of_somebody_else_is_noticed() -> None:
    one = peopled()
    record = one.shelf.records[usage_key("agent", did_of("A"))]
    for place in ("agent/x", "operator/" + did_of("A"), "scheme/doc", "scheme/lib", "nobody/x", "agent", ""):
        with pytest.raises(Fatal, match="says what no entry"):
            check(one, dict(one.shelf.records) | {f"usage/{place}": record})


def test_a_session_ended_by_another_ones_end_is_noticed() -> None:
    one = peopled()
    ends = [seq for seq, kind in enumerate(one.types()) if kind in ("session.closed", "session.ended")]
    for key, record in one.shelf.records.items():
        if isinstance(record, Session):
            for seq in set(ends) - {record.ended_seq}:
                with pytest.raises(Fatal, match="says what no entry"):
                    check(one, dict(one.shelf.records) | {key: record._replace(ended_seq=seq)})


def test_what_came_back_is_not_taken_away_by_an_earlier_entry() -> None:
    one = peopled()
    gone = [seq for seq, kind in enumerate(one.types()) if kind == "agent.removed"]
    one.say(add("op", "D"))
    key, record = agent_key(did_of("D")), one.shelf.records[agent_key(did_of("D"))]
    assert isinstance(record, Agent) and record.removed_seq is None and len(gone) == 1
    check(one, one.shelf.records)
    with pytest.raises(Fatal, match="says what no entry"):
        check(one, dict(one.shelf.records) | {key: record._replace(removed_seq=gone[0])})


def test_a_new_ledger_has_the_records_of_entry_0_alone() -> None:
    one = Hall("")
    check(one, one.shelf.records)
    more = {operator_key(did_of("x")): Operator(did_of("x"))}
    for edited in (one.shelf.records | more, one.shelf.records | {TICKETS_KEY: Counter(0)}):
        with pytest.raises(Fatal):
            check(one, edited)


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
