"""Records keep their value through the store, and a draft keeps its changes to itself."""

from __future__ import annotations

from dataclasses import fields

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.authority import remembered_session
from gateway.core.draft import Draft
from gateway.core.lookup import ended_at, idempotency_at, nonce_at, waits_at
from gateway.core.parameters import Parameters
from gateway.core.record_codec import _KINDS, decode_record, encode_record, sealed_record
from gateway.core.record_keys import (
    COLD_PREFIXES,
    COSIGNED_KEY,
    DISPUTE_KEY,
    ENROLLER_KEY,
    EXPENDABLE_PREFIXES,
    HOLIDAY_KEY,
    HOT_PREFIXES,
    OPERATORS_KEY,
    ROOT_KEY,
    RULES_KEY,
    TICKETS_KEY,
    TOKEN_KEY,
    agent_key,
    apikey_key,
    ask_key,
    burnt_key,
    delay_key,
    edge_key,
    ended_key,
    handover_key,
    idempotency_key,
    key_in_ledger,
    keys_key,
    lease_key,
    nonce_key,
    operator_key,
    principal_key,
    quota_key,
    scheme_key,
    session_key,
    ticket_key,
    usage_key,
    wait_key,
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
    due_ms_of,
)
from tests.core.book import Shelf
from verifier.entries import PARAMETER_DEFAULTS
from verifier.wire import INT_MAX, Malformed

LEASE = Lease("L7", "a", "p", "o", ("repo:x", "repo:y"), "write", 9, 7, 100, 30_000, 30_100, 3_600_100)
TICKET = Ticket("T9", "a", "p", "o", ("repo:x", "repo:y"), "read", 30_000, 9, 100, 30_100, 3_600_100)
SESSION = Session("did:key:s", "shell", "did:key:a", "did:key:o", ("lease",), ("repo:**",), 5, 70, 60, "builds", 4, 9)
PENDING = Pending(
    "A9", "a", "p", "o", "deploy", ("repo:x", "repo:y"), "write", "ab", 5, "cd", "ef", ("g", "h"), ("o2", "o3"), 2, 9,
    100, 3_600_100,
)  # fmt: skip
HOUR_MS = 3_600_000  # an ask is remembered for as long as that after it ended
# One record of each kind, with its key and its due time.
KINDS: list[tuple[str, Record, int | None]] = [
    (agent_key("did:key:a"), Agent("did:key:a", "worker-1", 3, None, "did:key:o"), None),
    (agent_key("did:key:b"), Agent("did:key:b", None, 3, 9, "did:key:o", True, "ab", 99), None),
    (operator_key("did:key:o"), Operator("did:key:o"), None),
    (operator_key("did:key:p"), Operator("did:key:p", "Pat", 4, 9), None),
    (apikey_key("ab"), ApiKey("ab", "trial", None, None, "did:key:o", 4, None, "did:key:b"), None),
    (session_key("did:key:s"), SESSION, None),
    (session_key("did:key:t"), SESSION._replace(did="did:key:t", shared_seq=9, ended_seq=12), 86_400_070),
    (quota_key("did:key:b"), Quota("did:key:b", 35), None),
    (OPERATORS_KEY, Counter(2), None),
    (ENROLLER_KEY, Enroller("did:key:e"), None),
    (ROOT_KEY, Root("root+00+x"), None),
    (key_in_ledger("did:key:k"), LedgerKey("log", "k+00+x", 0), None),
    (key_in_ledger("did:key:l"), LedgerKey("log", "l+00+x", 4, 9, True), None),
    (keys_key("log"), Keys("log", ("k+00+x",), "ab"), None),
    (keys_key("receipt"), Keys("receipt", (), None), None),
    (lease_key("L7"), LEASE, None),
    (lease_key("L8"), LEASE._replace(lease_id="L8", giver="g", giver_until_ms=30_100), None),
    (scheme_key("doc"), Scheme("doc", "read-safe", True, False, 0, 1_000, 3), None),
    (delay_key("L7"), Delay("L7", "a", "p", ("repo:x",), "write", 9, 30_100), None),
    (ticket_key("T9"), TICKET, None),
    (ticket_key("T8"), TICKET._replace(ticket_id="T8", seq=8, claim_by_ms=7, reserve_at_ms=8, is_passed=True), None),
    (ticket_key("T6"), TICKET._replace(ticket_id="T6", seq=6, reserve_at_ms=8, reserve_until_ms=0), None),
    (handover_key("L7"), Handover("L7", "b", "a", 9, False), None),
    (edge_key("a"), Edge("a", "repo:x", "write", 9, 10_100), 10_100),
    (principal_key("a"), Principal("a", 50_000, None, 0, 0, 2), None),
    (TICKETS_KEY, Counter(2), None),
    (wait_key("p", "repo:a/b"), Waits("a", "p", "repo:a/b", 2, 10, 20, "L7", 60_020), 60_020),
    (RULES_KEY, RuleSet(2, "ab", 'permit\n\t"\\"', "enforce", "cedar/4.12.1", 9), None),
    (usage_key("agent", "did:key:a"), Usage(1, 2, 3, 4, 5, INT_MAX, INT_MAX, 6, 9), None),
    (usage_key("operator", "did:key:o"), Usage(0, 0, 0, 0, 0, 0, 0, 0), None),
    (usage_key("scheme", "repo"), Usage(1, 2, 3, 4, 5, 6, 7, 0, 9, 345_600_000), 345_600_000),
    (burnt_key("did:key:g", "n" * 16), Burnt(9, 99), 99),
    (ask_key("A9"), PENDING, 3_600_100 + HOUR_MS),
    (ask_key("A8"), PENDING._replace(given=("g",), given_in=("12",), declined=("h",)), 3_600_100 + HOUR_MS),
    (ask_key("A7"), PENDING._replace(how="given", ended_seq=12, ended_at_ms=200), 200 + HOUR_MS),
    (TOKEN_KEY, Counter(INT_MAX), None),
    (HOLIDAY_KEY, Counter(0), None),
    (DISPUTE_KEY, Dispute(4), None),
    (ended_key("L7"), Ended("a", "expired", 8, 99), 99),
    (idempotency_key("p", "k"), Idempotency(8, 409, "ff", 99), 99),
    (nonce_key("p", "n"), Nonce(8, 99), 99),
    (COSIGNED_KEY, Cosigned("a note\n", 7, "cm9vdA=="), None),
]


@pytest.mark.parametrize(("key", "record", "due_ms"), KINDS, ids=[key for key, *_ in KINDS])
def test_a_record_comes_back_from_the_store_as_it_was(key: str, record: Record, due_ms: int | None) -> None:
    data = encode_record(record)
    assert decode_record(key, data) == record == sealed_record(key, orjson.loads(data))
    assert encode_record(record, lambda value: orjson.dumps(value, option=orjson.OPT_SORT_KEYS)) == data
    assert due_ms_of(record) == due_ms


def test_every_kind_of_record_is_hot_or_cold_and_expendable_only_with_a_due_time() -> None:
    assert {type(record) for _, record, _ in KINDS} == set(_KINDS.values())
    for key, record, due_ms in KINDS:
        assert key.startswith(HOT_PREFIXES) != key.startswith(COLD_PREFIXES)
        # A session that ended may go, one that is open may not; so may what is counted of schemes, and of nobody else.
        is_kept = (isinstance(record, Session) and record.is_open) or key.startswith(
            ("usage/agent/", "usage/operator/")
        )
        assert key.startswith(EXPENDABLE_PREFIXES) == (due_ms is not None or is_kept)


@given(st.text(max_size=300), st.text(max_size=300))
def test_an_idempotency_key_has_one_plain_place_per_actor(first: str, second: str) -> None:
    """A key may hold slashes and 255 characters; two keys or two actors never share a record."""
    place = idempotency_key("did:key:a", first)
    assert len(place) == len("idem/") + 32
    assert (place == idempotency_key("did:key:a", second)) == (first == second)
    assert place != idempotency_key("did:key:b", first)
    assert place.removeprefix("idem/") == nonce_key("did:key:a", first).removeprefix("nonce/")


@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("nothing/x", b'{"seq":1,"untilMs":2}'),
        ("nonce/p/n", b'{"seq":1}'),
        ("nonce/p/n", b'{"more":1,"seq":1,"untilMs":2}'),
        ("nonce/p/n", b'{"seq":"1","untilMs":2}'),
        ("nonce/p/n", b'{"seq":true,"untilMs":2}'),
        ("nonce/p/n", b'{"seq":null,"untilMs":2}'),
        ("nonce/p/n", b'{"untilMs":2,"seq":1}'),
        ("nonce/p/n", b'{"seq": 1,"untilMs":2}'),
        ("nonce/p/n", b"[]"),
        ("nonce/p/n", b""),
        ("operator/x", b'{"did":null}'),
        ("delay/L1", b'{"endsAtMs":1,"holder":"a","leaseId":"L1","mode":"write","resources":"repo:x","seq":1}'),
        ("delay/L1", b'{"endsAtMs":1,"holder":"a","leaseId":"L1","mode":"write","resources":["repo:x",1],"seq":1}'),
        ("handover/L1", b'{"by":"a","isOperator":0,"leaseId":"L1","seq":1,"toDid":"b"}'),
    ],
)
def test_a_damaged_record_is_malformed_and_nothing_else(key: str, data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_record(key, data)


@pytest.mark.parametrize(
    ("key", "members"),
    [("nonsense/x", {}), ("nonce/p/n", [1]), ("nonce/p/n", {}), ("ledger/counter", {"count": 1, "more": 1})],
)
def test_a_sealed_record_of_another_version_is_malformed_and_nothing_else(key: str, members: object) -> None:
    with pytest.raises(Malformed):
        sealed_record(key, members)


def test_a_draft_hides_its_changes_from_the_view_and_shows_them_to_its_reader() -> None:
    shelf = Shelf()
    shelf.records = {"nonce/p/kept": Nonce(1, 1), "nonce/p/gone": Nonce(2, 2)}
    before = dict(shelf.records)
    draft = Draft(shelf)
    draft.put("nonce/p/new", Nonce(3, 3))
    draft.delete("nonce/p/gone")
    assert [draft.get(f"nonce/p/{name}") for name in ("kept", "gone", "new")] == [Nonce(1, 1), None, Nonce(3, 3)]
    assert draft.changes() == (("nonce/p/new", Nonce(3, 3), 3), ("nonce/p/gone", None, None))
    assert shelf.records == before


@given(st.data())
def test_a_rollback_restores_exactly_the_savepoint(data: st.DataObject) -> None:
    """Whatever is written after any number of nested savepoints, rolling back gives the draft of that moment."""
    shelf = Shelf()
    shelf.records = {"nonce/p/0": Nonce(0, 0), "nonce/p/1": Nonce(1, 1)}
    draft = Draft(shelf)
    marks = [(draft.savepoint(), draft.changes())]
    for _ in range(data.draw(st.integers(0, 30))):
        key = f"nonce/p/{data.draw(st.integers(0, 3))}"
        match data.draw(st.sampled_from(["put", "delete", "save", "roll"])):
            case "put":
                number = data.draw(st.integers(0, 9))
                draft.put(key, Nonce(number, number))
            case "delete":
                draft.delete(key)
            case "save":
                marks.append((draft.savepoint(), draft.changes()))
            case "roll":
                del marks[data.draw(st.integers(1, len(marks))) :]
                draft.rollback(marks[-1][0])
                assert sorted(draft.changes(), key=str) == sorted(marks[-1][1], key=str)
    draft.rollback(marks[0][0])
    assert draft.changes() == ()


def test_a_draft_does_not_offer_leases_it_has_ended_or_extended() -> None:
    shelf = Shelf()
    old, older, renewed = (
        Lease(f"L{n}", "a", "p", "o", (f"repo:{n}",), "write", n, n, 0, 1, end, 9)
        for n, end in ((3, 50), (2, 40), (1, 40))
    )
    shelf.records = {lease_key(lease.lease_id): lease for lease in (old, older, renewed)}
    draft = Draft(shelf)
    assert draft.due(50, 9) == (renewed, older, old)
    assert draft.due(49, 9) == (renewed, older)
    draft.delete(lease_key("L2"))
    draft.put(lease_key("L1"), Lease("L1", "a", "p", "o", ("repo:1",), "write", 1, 1, 0, 1, 99, 9))
    assert draft.due(50, 9) == (old,)


def test_what_may_be_dropped_counts_for_nothing_from_its_due_time_on() -> None:
    """It never matters whether the store has already dropped a record that fell due."""
    shelf = Shelf()
    shelf.records = {key: record for key, record, _ in KINDS}
    assert ended_at(shelf, "L7", 98) and idempotency_at(shelf, "p", "k", 98) and nonce_at(shelf, "p", "n", 98)
    assert waits_at(shelf, "p", "repo:a/b", 60_019)
    assert remembered_session(shelf, "did:key:t", 86_400_069)
    assert ended_at(shelf, "L7", 99) is None
    assert idempotency_at(shelf, "p", "k", 99) is None
    assert nonce_at(shelf, "p", "n", 99) is None
    assert waits_at(shelf, "p", "repo:a/b", 60_020) is None
    assert remembered_session(shelf, "did:key:t", 86_400_070) is None
    assert remembered_session(shelf, "did:key:s", 10**12), "an open one is never forgotten"


def test_the_parameters_are_those_of_the_entry_table_and_survive_entry_0() -> None:
    assert Parameters().members() == dict(PARAMETER_DEFAULTS)
    assert [field.default for field in fields(Parameters)] == list(PARAMETER_DEFAULTS.values())
    odd = Parameters(holiday_ms=1, rate_burst=2)
    assert Parameters.from_members(odd.members()) == odd


@pytest.mark.parametrize("change", [{"sweepMs": "1000"}, {"sweepMs": True}, {"sweepMs": None}, {"more": 1}])
def test_parameters_of_another_shape_are_malformed(change: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        Parameters.from_members({**PARAMETER_DEFAULTS, **change})  # type: ignore[dict-item]
    with pytest.raises(Malformed):
        Parameters.from_members({})
