"""The ladder, climbed in its order, and what each step leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.core.dispute import disputed
from gateway.core.draft import Draft
from gateway.core.outcome import Context, Decision, Recorded, Replay, Unreceipted, granted
from gateway.core.record_keys import agent_key, nonce_key
from gateway.core.records import Agent, Counter, Nonce
from gateway.core.refusal import TABLE
from tests.core.book import DECIDERS, Book, own_members, vkey_of
from tests.core.requests import (
    NOW_MS,
    Ask,
    acquire,
    add,
    add_operator,
    chain,
    did_of,
    open_session,
    release,
    remove,
    remove_operator,
    renew,
)
from verifier.checkpoint import parse_checkpoint

DAY_MS = 86_400_000
NOTE = b"gateway.example/main\n9\n" + b"A" * 43 + b"=\n\n\xe2\x80\x94 gateway.example/main AAAAAAAA\n"


@dataclass
class Climber:
    """One request on its way up: what is still wrong with it is a field, and each rung repairs one."""

    book: Book
    ask: Ask
    t_ms: int = NOW_MS + 3_600_000
    anchors_known: bool = False

    def outcome(self) -> tuple[str, int]:
        """Return the refusal's name and how many entries were written for it."""
        size = len(self.book.leaves)
        answer = self.book.play(self.t_ms, self.ask, anchors_known=self.anchors_known)
        written = len(self.book.leaves) - size
        if isinstance(answer, Unreceipted):
            return answer.refusal.name, written
        assert isinstance(answer, Recorded)
        return str(self.book.leaf(answer.seq).value.get("error", "none")), written


def fresh(climber: Climber) -> None:
    """Give the request a fresh nonce and key: what was refused with an entry is spent."""
    climber.ask = climber.ask.but(idempotency_key=climber.ask.again().nonce).again()


def sign_now(climber: Climber) -> None:
    second = climber.t_ms // 1_000
    climber.ask = climber.ask.but(created=second, expires=second + 60)


def enrol_and_remove(climber: Climber) -> None:
    at = climber.t_ms
    climber.book.play(at, add_operator("op", "op2", at))
    climber.book.play(at, add("op2", "E", at))
    climber.book.play(at, remove("op", "E", at))


def enrol_under_a_removed_operator(climber: Climber) -> None:
    at = climber.t_ms
    climber.book.play(at, add("op2", "E", at))
    climber.book.play(at, remove_operator("op", "op2", at))


def enrol(climber: Climber) -> None:
    climber.book.play(climber.t_ms, add("op", "E", climber.t_ms))


def know_the_anchor(climber: Climber) -> None:
    climber.anchors_known = True


def refresh_the_nonce(climber: Climber) -> None:
    climber.ask = climber.ask.again()


def refresh_the_key(climber: Climber) -> None:
    climber.ask = climber.ask.but(idempotency_key="another-key")


Rung = tuple[str, Callable[[Climber], Any], str]
COMMON: list[Rung] = [
    ("signed an hour ago", lambda c: None, "outside_window"),
    ("by nobody known", sign_now, "agent_unknown"),
    ("by a key that was removed", enrol_and_remove, "agent_removed"),
    ("by a key whose operator was removed", enrol_under_a_removed_operator, "operator_removed"),
    ("having seen another history", enrol, "unknown_history"),
    ("with a nonce of before", know_the_anchor, "nonce_reused"),
    ("under a key of other work", refresh_the_nonce, "idempotency_mismatch"),
]


def prepared(make: Callable[[Book, int], Ask]) -> Climber:
    """Return a climber whose request has every fault at once: E once used its nonce and its key for other work."""
    book = Book()
    climber = Climber(book, make(book, NOW_MS + 3_600_000))
    at = climber.t_ms - 1_000
    book.play(at, add("op", "E", at))
    used = acquire("E", "repo:other", at_ms=at, ttlMs=300_000)
    book.play(at, used.but(idempotency_key=climber.ask.idempotency_key, nonce=climber.ask.nonce))
    for key in [key for key in book.shelf.records if key.startswith("agent/") and did_of("E") in key]:
        del book.shelf.records[key]
    climber.ask = climber.ask.but(created=NOW_MS // 1_000, expires=NOW_MS // 1_000 + 60)
    return climber


def climb(climber: Climber, rungs: list[Rung]) -> list[str]:
    seen = []
    for name, repair, expected in rungs:
        repair(climber)
        refusal, written = climber.outcome()
        assert refusal == expected, name
        assert written == (expected not in UNWRITTEN), name
        seen.append(refusal)
    climber.book.audit()
    return seen


UNWRITTEN = {row.name for row in TABLE if not row.is_receipted}


def dispute(book: Book, t_ms: int) -> None:
    book.run(t_ms, steps=[disputed(NOTE, parse_checkpoint(NOTE), [vkey_of("log", "log")])])


def undispute(climber: Climber) -> None:
    climber.book.shelf.records.pop("ledger/dispute")
    fresh(climber)


def hold(climber: Climber, name: str, *resources: str) -> str:
    """Let an agent acquire, and return the lease id."""
    leaf = climber.book.entry(climber.t_ms, acquire(name, *resources, at_ms=climber.t_ms))
    assert "leaseId" in leaf.value, leaf.value
    return str(leaf.value["leaseId"])


def test_an_acquire_meets_every_row_in_order() -> None:
    climber = prepared(lambda book, t: acquire("E", "repo:x", at_ms=t))
    dispute(climber.book, climber.t_ms - 500)

    def free_of_dispute(c: Climber) -> None:
        undispute(c)
        hold(c, "A", "repo:x")

    def free_of_holder(c: Climber) -> None:
        c.book.play(c.t_ms, release("A", "repo:x", at_ms=c.t_ms))
        fresh(c)

    climb(
        climber,
        [
            *COMMON,
            ("while the ledger is disputed", refresh_the_key, "ledger_disputed"),
            ("on what another holds", free_of_dispute, "lease_held"),
            ("at last", free_of_holder, "none"),
        ],
    )


def test_a_renewal_meets_every_row_in_order() -> None:
    climber = prepared(lambda book, t: renew("E", "L900", at_ms=t))
    dispute(climber.book, climber.t_ms - 500)

    def name_it(lease_id: str) -> None:
        climber.ask = renew("E", lease_id, at_ms=climber.t_ms)

    def name_anothers(c: Climber) -> None:
        name_it(hold(c, "A", "repo:x"))

    def name_a_released(c: Climber) -> None:
        lease_id = hold(c, "E", "repo:y")
        c.book.play(c.t_ms, release("E", "repo:y", at_ms=c.t_ms, leaseId=lease_id))
        name_it(lease_id)

    def name_an_expired(c: Climber) -> None:
        lease_id = hold(c, "E", "repo:z")
        c.t_ms += 30_000
        name_it(lease_id)

    climb(
        climber,
        [
            *COMMON,
            ("while the ledger is disputed", refresh_the_key, "ledger_disputed"),
            ("of no known lease", undispute, "lease_unknown"),
            ("of another's lease", name_anothers, "lease_not_yours"),
            ("of a released lease", name_a_released, "lease_released"),
            # The expiry is written before the refusal, by the command that touches the lease.
        ],
    )
    name_an_expired(climber)
    assert climber.outcome() == ("lease_expired", 3)
    assert climber.book.types(-3) == ["lease.expired", "lease.expired", "renewal.refused"]
    name_it(hold(climber, "E", "repo:z"))
    assert climber.outcome() == ("none", 1)


def test_a_release_meets_every_row_in_order() -> None:
    climber = prepared(lambda book, t: release("E", "repo:x", at_ms=t, leaseId="L900"))

    def name_it(lease_id: str, *resources: str) -> None:
        climber.ask = release("E", *resources, at_ms=climber.t_ms, leaseId=lease_id)

    def name_anothers(c: Climber) -> None:
        name_it(hold(c, "A", "repo:x"), "repo:x")

    def name_other_resources(c: Climber) -> None:
        name_it(hold(c, "E", "repo:y", "repo:z"), "repo:y")

    def name_no_lease(c: Climber) -> None:
        c.ask = release("E", "repo:y", at_ms=c.t_ms)

    def name_all(c: Climber) -> None:
        c.ask = release("E", "repo:y", "repo:z", at_ms=c.t_ms)

    climb(
        climber,
        [
            *COMMON,
            ("of no known lease", refresh_the_key, "lease_unknown"),
            ("of another's lease", name_anothers, "lease_not_yours"),
            ("of other resources", name_other_resources, "lease_mismatch"),
            ("of what it does not hold", name_no_lease, "not_holder"),
            ("at last", name_all, "none"),
        ],
    )


def test_an_operators_request_meets_every_row_in_order() -> None:
    climber = prepared(lambda book, t: remove("E", "F", at_ms=t))

    def sign_as_operator(c: Climber) -> None:
        c.ask = remove("op", "F", at_ms=c.t_ms)

    def enrol_it(c: Climber) -> None:
        c.book.play(c.t_ms, add("op", "F", c.t_ms))
        fresh(c)

    climb(
        climber,
        [
            *COMMON,
            ("by an agent", refresh_the_key, "operator_required"),
            ("of nobody", sign_as_operator, "agent_not_found"),
            ("at last", enrol_it, "none"),
        ],
    )


def test_a_refusal_without_entry_changes_nothing_at_all() -> None:
    book = Book()
    used = acquire("A", "repo:x")
    book.play(NOW_MS, used)
    cases = [
        (acquire("A", "repo:y", at_ms=NOW_MS - 3_600_000), {}, {"nowMs": NOW_MS}),
        (acquire("nobody", "repo:y"), {}, {}),
        (acquire("A", "repo:y"), {"anchors_known": False}, {}),
        (used, {}, {"seq": 5}),
        (acquire("A", "repo:y").but(idempotency_key=used.idempotency_key), {}, {"seq": 5}),
    ]
    names = ["outside_window", "agent_unknown", "unknown_history", "nonce_reused", "idempotency_mismatch"]
    for (ask, how, detail), name in zip(cases, names, strict=True):
        before = book.snapshot()
        answer = book.play(NOW_MS, ask, **how)
        assert isinstance(answer, Unreceipted)
        assert (answer.refusal.name, dict(answer.detail)) == (name, detail)
        assert book.snapshot() == before


def test_an_operators_key_is_no_agents_key() -> None:
    answer = Book().play(NOW_MS, acquire("op", "repo:x"))
    assert isinstance(answer, Unreceipted) and answer.refusal.name == "agent_unknown"


# --- idempotency and nonces -----------------------------------------------------------------------------------------


def test_a_retry_is_answered_by_the_first_entry_success_and_refusal_alike() -> None:
    """Scenarios 40, L12 (modelcontextprotocol#3182, ZOOKEEPER-1262): the retry of a lost answer never happens twice."""
    book = Book()
    for ask, status in ((acquire("A", "repo:x"), 200), (acquire("B", "repo:x"), 409)):
        first = book.play(NOW_MS, ask)
        size = len(book.leaves)
        assert first == Recorded(size - 1, status)
        for later in (NOW_MS, NOW_MS + 10_000):
            assert book.play(later, ask.again()) == Replay(size - 1, status)
        assert len(book.leaves) == size


def test_the_very_same_bytes_are_never_answered_twice() -> None:
    """A captured request is worth nothing: 409 with the entry, never the stored answer (security.md 13)."""
    book = Book()
    ask = acquire("A", "repo:x")
    book.play(NOW_MS, ask)
    replayed = ask.again()
    book.play(NOW_MS, replayed)
    for spent in (ask, replayed):
        answer = book.play(NOW_MS, spent)
        assert isinstance(answer, Unreceipted)
        assert (answer.refusal.name, dict(answer.detail)) == ("nonce_reused", {"seq": 5})


def test_a_replay_burns_its_nonce_and_changes_nothing_else() -> None:
    book = Book()
    ask = acquire("A", "repo:x")
    book.play(NOW_MS, ask)
    again = ask.again()
    batch = book.run(NOW_MS + 1, again)
    due = again.expires * 1_000 + 30_000
    assert batch.leaves == () and batch.head == book.head
    assert batch.changes == ((nonce_key(did_of("A"), again.nonce), Nonce(5, due), due),)


def test_an_idempotency_key_lives_exactly_a_day_of_log_time() -> None:
    book = Book()
    ask = acquire("A", "repo:x", ttlMs=1_000)
    book.play(NOW_MS, ask)

    def at(t_ms: int) -> Ask:
        return ask.but(created=t_ms // 1_000, expires=t_ms // 1_000 + 60).again()

    last, free = NOW_MS + DAY_MS - 1, NOW_MS + DAY_MS
    assert book.play(last, at(last)) == Replay(5, 200)
    book.run(free)
    assert isinstance(book.play(free, at(free)), Recorded)


def test_keys_and_nonces_belong_to_the_key_that_signed() -> None:
    """Another agent's key or nonce is another key or nonce, and so is another session's of the same agent."""
    book = Book()
    ask = acquire("A", "repo:x")
    book.play(NOW_MS, ask)
    other = acquire("B", "repo:y").but(idempotency_key=ask.idempotency_key, nonce=ask.nonce)
    assert book.play(NOW_MS, other) == Recorded(6, 200)
    book.play(NOW_MS, open_session("s", chain("A", "s")))
    mine = acquire("s", "repo:z").but(idempotency_key=ask.idempotency_key, nonce=ask.nonce)
    assert book.play(NOW_MS, mine) == Recorded(8, 200)


def test_a_nonce_is_remembered_exactly_as_long_as_its_signature_could_return() -> None:
    book = Book()
    ask = acquire("A", "repo:x")
    book.play(NOW_MS, ask)
    end = ask.expires * 1_000 + 30_000
    answers = [book.play(t_ms, ask) for t_ms in (end - 1, end)]
    assert [a.refusal.name for a in answers if isinstance(a, Unreceipted)] == ["nonce_reused", "outside_window"]


# --- errors ---------------------------------------------------------------------------------------------------------


def breaking(draft: Draft, request: Any, context: Context) -> Decision:
    """Grant half a lease, then fail."""
    draft.put(agent_key("did:key:half"), Agent("did:key:half", None, context.seq, None, did_of("op")))
    draft.put("ledger/token", Counter(99))
    draft.delete(agent_key(did_of("A")))
    raise ZeroDivisionError("a bug")


def test_an_error_while_deciding_is_a_refusal_and_never_a_grant() -> None:
    book = Book()
    before = dict(book.shelf.records)
    ask = acquire("A", "repo:x")
    batch = book.run(NOW_MS, ask, deciders={**DECIDERS, "lease.acquire": breaking})
    assert batch.answers == (Recorded(5, 500),)
    assert [type(fault) for fault in batch.faults] == [ZeroDivisionError]
    leaf = book.leaf(5)
    assert leaf.type == "tallystick/decision.failed/1"
    assert own_members(leaf) == {"action": "lease.acquire", "error": "decision_failed", "number": 901}
    kept = {key: r for key, r in book.shelf.records.items() if not key.startswith(("idem/", "nonce/"))}
    assert kept == {key: r for key, r in before.items() if not key.startswith(("idem/", "nonce/"))}
    assert book.play(NOW_MS, ask.again()) == Replay(5, 500)
    book.audit()


def test_one_failing_command_leaves_its_neighbours_alone() -> None:
    book = Book()

    def fails_on_y(draft: Draft, request: Any, context: Context) -> Decision:
        decision = DECIDERS["lease.acquire"](draft, request, context)
        assert request.body["resource"] != "repo:y"
        return decision

    asks = [acquire("A", f"repo:{name}") for name in "xyz"]
    batch = book.run(NOW_MS, *asks, deciders={**DECIDERS, "lease.acquire": fails_on_y})
    assert batch.answers == (Recorded(5, 200), Recorded(6, 500), Recorded(7, 200))
    assert sorted(lease.resources[0] for lease in book.leases().values()) == ["repo:x", "repo:z"]
    tokens = [lease.fencing_token for lease in book.leases().values()]
    assert tokens == [NOW_MS * 1_000, NOW_MS * 1_000 + 1]


def test_what_stops_the_process_is_not_swallowed() -> None:
    def stopping(draft: Draft, request: Any, context: Context) -> Decision:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Book().build(NOW_MS, acquire("A", "repo:x"), deciders={**DECIDERS, "lease.acquire": stopping})


def test_any_decision_function_is_recorded_with_its_own_number() -> None:
    """`context.seq` is the entry's own number, whatever was written before it in the batch."""
    seen: list[tuple[int, int]] = []

    def noting(draft: Draft, request: Any, context: Context) -> Decision:
        seen.append((context.t_ms, context.seq))
        return granted("release.repeated", {"resources": ["repo:x"], "leaseId": "L1", "endedSeq": 1})

    asks = [release("A", "repo:x", leaseId="L1") for _ in range(3)]
    Book().build(NOW_MS, *asks, deciders={**DECIDERS, "lease.release": noting})
    assert seen == [(NOW_MS, 5), (NOW_MS, 6), (NOW_MS, 7)]
