"""Hot records in memory: leases in order of expiry, nothing kept that is cold or past."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from gateway.core.filing import terms_of
from gateway.core.record_keys import idempotency_key, lease_key, nonce_key, session_key, wait_key
from gateway.core.records import Agent, Counter, Delay, Edge, Lease, Nonce, Pending, Record, Session, Ticket, Waits
from gateway.core.terms import (
    PASSED,
    TICKETS,
    agent_of,
    asked_behind,
    asked_by,
    asked_of,
    filed_under,
    session_let_by,
    session_of,
    session_under,
)
from gateway.ledger.live import Live, Looked, cold_keys
from tests.core.requests import (
    Ask,
    accept,
    acquire,
    batch,
    break_,
    chain,
    claim,
    close,
    did_of,
    open_session,
    release,
    renew,
    transfer,
)
from verifier.entries import ASK_MEMORY_MS


def lease(number: int, expires_at_ms: int) -> Lease:
    return Lease(f"L{number}", "h", "h", "h", ("a:b",), "write", number, number, 0, 1, expires_at_ms, 9)


def due(live: Live, t_ms: int, limit: int) -> list[str]:
    return [one.lease_id for one in live.due(t_ms, limit) if isinstance(one, Lease)]


def put(live: Live, *leases: Lease) -> None:
    live.apply([(lease_key(one.lease_id), one, one.expires_at_ms) for one in leases])


def wait(number: int, until_ms: int) -> tuple[str, Waits, int]:
    return wait_key("p", f"a:{number}"), Waits("p", "p", f"a:{number}", 1, 0, 0, "L1", until_ms), until_ms


def test_due_leases_come_oldest_first_ties_by_number_and_stay_until_ended() -> None:
    live = Live()
    put(live, lease(1, 50), lease(3, 30), lease(2, 30), lease(4, 51))
    for _ in range(2):
        assert due(live, 50, 9) == ["L2", "L3", "L1"]
        assert due(live, 50, 2) == ["L2", "L3"]
    assert live.due(29, 9) == ()
    live.apply([(lease_key("L2"), None, None)])
    assert due(live, 50, 9) == ["L3", "L1"]


def test_a_renewed_lease_is_due_once_at_its_new_time() -> None:
    live = Live([(lease_key("L1"), lease(1, 10))])
    for expires in (20, 10, 30, 30):
        put(live, lease(1, expires))
    assert live.due(29, 9) == ()
    assert live.due(30, 9) == (lease(1, 30),)


def test_due_agrees_with_a_search_through_everything() -> None:
    dice = random.Random(20261129)
    live, naive = Live(), dict[str, Lease]()
    for step in range(3_000):
        number = dice.randrange(40)
        if dice.random() < 0.4 and f"L{number}" in naive:
            del naive[f"L{number}"]
            live.apply([(lease_key(f"L{number}"), None, None)])
        else:
            one = lease(number, dice.randrange(200))
            naive[one.lease_id] = one
            put(live, one)
        t_ms = dice.randrange(220)
        expected = sorted(
            (one for one in naive.values() if one.expires_at_ms <= t_ms),
            key=lambda one: (one.expires_at_ms, one.grant_seq),
        )
        assert list(live.due(t_ms, 7)) == expected[:7], step
    assert len(live._due) <= 1_024 + 4 * len(live)


def test_what_is_filed_under_a_word_agrees_with_a_walk_through_everything() -> None:
    dice = random.Random(20261130)
    names = ["a:b", "a:b/c", "a:B/**", "a:**", "z:b"]
    live, naive = Live(), dict[str, Record]()
    for _ in range(2_000):
        number, name = dice.randrange(30), tuple(sorted(dice.sample(names, dice.randint(1, 2))))
        key = f"ticket/T{number}"
        if dice.random() < 0.3 and key in naive:
            del naive[key]
            live.apply([(key, None, None)])
            continue
        passed = dice.random() < 0.5
        ticket = Ticket(f"T{number}", "h", "h", "o", name, "write", 1, number, 0, 9, 9, is_passed=passed)
        naive[key] = ticket
        live.apply([(key, ticket, None)])
    words = {word for record in naive.values() for word in terms_of(record)} | {PASSED, TICKETS, "=a:zzz"}
    for word in words:
        assert sorted(live.near(word)) == sorted(key for key, record in naive.items() if word in terms_of(record))
    again = Live(naive.items())
    assert all(sorted(again.near(word)) == sorted(live.near(word)) for word in words)


def test_the_deepest_names_cost_little_memory() -> None:
    """A name of 32 segments has 33 words; each agent may hold as many names as `heldPerPrincipal` says."""
    deep = "/".join("y" * 30 for _ in range(31))
    leases = [lease(n, 9)._replace(resources=(f"d:{n:04d}/{deep}",)) for n in range(1_024)]
    assert max(len(one.resources[0]) for one in leases) > 960
    filed_under.cache_clear()
    tracemalloc.start()
    live = Live()
    put(live, *leases)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(live.near("<d:")) == 1_024 and used_bytes < 8_000_000


def test_a_delay_and_a_ticket_are_due_like_a_lease_and_a_ticket_when_its_reservation_begins_or_ends() -> None:
    ticket = Ticket("T2", "h", "h", "o", ("a:b", "a:c"), "write", 1, 2, 0, 50, 90, reserve_at_ms=40)
    live = Live([("delay/L9", Delay("L9", "h", "h", ("a:b",), "write", 9, 40)), ("ticket/T2", ticket)])
    put(live, lease(1, 45))
    assert [claim.number for claim in live.due(45, 9)] == [2, 9, 1]
    live.apply([("ticket/T2", ticket._replace(reserve_until_ms=42), None)])
    assert [claim.number for claim in live.due(45, 9)] == [9, 2, 1]
    for until_ms, claim_by_ms in ((60, None), (0, None), (42, 50)):
        live.apply([("ticket/T2", ticket._replace(reserve_until_ms=until_ms, claim_by_ms=claim_by_ms), None)])
        assert [claim.number for claim in live.due(49, 9)] == [9, 1]
        assert [claim.number for claim in live.due(50, 9)] == [9, 1, 2]


def session(number: int, idle_by_ms: int, ended_seq: int | None = None, *, did: str = "") -> Session:
    return Session(
        did or f"s{number}", None, "p", "o", ("lease",), (), number, 90, idle_by_ms, ended_seq=ended_seq
    )  # fmt: skip


def test_an_open_session_is_due_among_the_leases_when_it_is_idle_or_over() -> None:
    live = Live([(session_key("s2"), session(2, 40))])
    put(live, lease(1, 40), lease(3, 40), lease(4, 90))
    live.apply([(session_key("s5"), session(5, 120), None)])  # its delegation ends before
    assert [one.number for one in live.due(89, 9)] == [1, 2, 3]
    assert [one.number for one in live.due(90, 9)] == [1, 2, 3, 4, 5]
    live.apply([(session_key("s2"), session(2, 60), None)])  # it was heard
    assert [one.number for one in live.due(59, 9)] == [1, 3]
    live.apply([(session_key("s2"), session(2, 60, ended_seq=7), 90)])
    assert [one.number for one in live.due(60, 9)] == [1, 3]
    assert [one.number for one in Live(live.scan("")).due(60, 9)] == [1, 3], "a start files the same"


def test_an_ended_session_is_remembered_until_its_delegation_is_over() -> None:
    for live in (Live(), Live([(session_key("s1"), session(1, 40, ended_seq=7))])):
        live.apply([(session_key("s1"), session(1, 40, ended_seq=7), 90)])
        live.apply([(session_key("s2"), session(2, 10), None)])
        live.forget(90 + 86_399_999)
        assert live.get(session_key("s1")) is not None
        live.forget(90 + 86_400_000)
        assert live.get(session_key("s1")) is None and live.get(session_key("s2")) is not None


def test_a_key_that_was_opened_again_is_not_forgotten_with_its_earlier_session() -> None:
    live = Live([(session_key("s1"), session(1, 40, ended_seq=7))])
    again = session(9, 200)._replace(did="s1", expires_at_ms=300)
    live.apply([(session_key("s1"), again, None)])
    live.forget(86_400_100)
    assert live.get(session_key("s1")) == again
    assert list(live.near(session_of("p"))) == [session_key("s1")]


def test_sessions_and_agents_are_filed_under_whose_they_are_while_they_are_in_force() -> None:
    agent = Agent("a1", None, 3, None, "o")
    live = Live([("agent/a1", agent), (session_key("s1"), session(1, 40))])
    words = (session_of("p"), session_under("o"), agent_of("o"))
    let = session_let_by("p")
    assert list(live.near(let)) == [session_key("s1")]
    assert [list(live.near(word)) for word in words] == [[session_key("s1")], [session_key("s1")], ["agent/a1"]]
    live.apply([(session_key("s1"), session(1, 80), None), (session_key("s2"), session(2, 80), None)])
    assert sorted(live.near(words[0])) == [session_key("s1"), session_key("s2")]
    live.apply(
        [(session_key("s1"), session(1, 80, ended_seq=8), 90), ("agent/a1", agent._replace(removed_seq=8), None)]
    )
    assert [list(live.near(word)) for word in words] == [[session_key("s2")], [session_key("s2")], []]
    assert sorted(live.near(let)) == [session_key("s1"), session_key("s2")], "also what ended"
    assert sorted(Live(live.scan("")).near(let)) == sorted(live.near(let)), "a start files the same"
    live.forget(90 + 86_400_000)
    assert list(live.near(let)) == [session_key("s2")]
    live.apply([("agent/a1", agent._replace(operator="o2"), None)])
    assert (list(live.near(agent_of("o"))), list(live.near(agent_of("o2")))) == ([], ["agent/a1"])


def test_an_operators_own_sessions_are_filed_under_the_operator() -> None:
    own = session(1, 40, did="s1")._replace(principal="s1")
    live = Live([(session_key("s1"), own), (session_key("s2"), session(2, 40))])
    assert list(live.near(session_let_by("o"))) == [session_key("s1")]
    live.apply([(session_key("s1"), own._replace(ended_seq=7), 90)])
    assert list(live.near(session_let_by("o"))) == [session_key("s1")] and not live.near(session_of("s1"))


@pytest.mark.parametrize("ended_seq", [None, 12])
def test_a_key_that_was_opened_again_for_another_in_one_batch_is_filed_anew(ended_seq: int | None) -> None:
    """After long silence a session can end, be forgotten and have its key opened again within one batch."""
    live = Live([(session_key("s1"), session(1, 40, ended_seq=ended_seq and 7))])
    again = session(9, 200, ended_seq=ended_seq)._replace(did="s1", principal="q", on_behalf_of="r")
    live.apply([(session_key("s1"), again, None)])
    gone = [word for who in ("p", "o") for word in (session_of(who), session_under(who), session_let_by(who))]
    assert not any(live.near(word) for word in gone)
    assert list(live.near(session_let_by("q"))) == [session_key("s1")]
    live.apply([(session_key("s1"), None, None)])
    assert not live.near(session_let_by("q")) and not live.near(session_under("r"))


def test_asks_are_filed_under_who_waits_and_who_may_approve_while_they_are_open() -> None:
    """And forgotten in time, with the words under which they are counted."""
    ask = Pending("A7", "s", "p", "o", "w", ("r:x",), "write", "", 0, "", "", ("x", "y"), ("1", "2"), 1, 7, 0, 50)
    live = Live([("ask/A7", ask)])
    words = (asked_by("s"), asked_of("x"), asked_of("y"))
    assert [list(live.near(word)) for word in (*words, asked_behind("p"))] == [["ask/A7"]] * 4
    live.forget(50 + ASK_MEMORY_MS - 1)
    assert live.get("ask/A7") == ask
    over = ask._replace(how="given", ended_seq=9, ended_at_ms=20)
    live.apply([("ask/A7", over, over.until_ms)])
    assert not any(live.near(word) for word in words) and list(live.near(asked_behind("p"))) == ["ask/A7"]
    live.forget(20 + ASK_MEMORY_MS)
    assert live.get("ask/A7") is None and not live.near(asked_behind("p"))


def test_cold_records_are_not_kept() -> None:
    live = Live()
    live.apply([(nonce_key("p", "n"), Nonce(1, 5), 5), ("ledger/token", Counter(3), None)])
    assert len(live) == 1 and live.get("ledger/token") == Counter(3)


def test_a_batch_sees_hot_records_and_those_looked_up() -> None:
    live = Live([("ledger/token", Counter(3))])
    put(live, lease(1, 5))
    cold: dict[str, Record | None] = {nonce_key("p", "n"): Nonce(1, 5), "idem/p/x": None}
    view = Looked(live, cold)
    assert view.get("ledger/token") == Counter(3)
    assert view.get(nonce_key("p", "n")) == Nonce(1, 5)
    assert view.get("idem/p/x") is None and view.get("idem/p/y") is None
    assert view.due(5, 9) == (lease(1, 5),)


def test_refusals_that_no_longer_count_are_forgotten() -> None:
    live = Live([wait(1, 10)[:2]])
    live.apply([wait(2, 20), wait(3, 30)])
    live.apply([wait(1, 40)])  # refused again: counts longer
    live.apply([(wait(3, 0)[0], None, None)])
    live.forget(29)
    assert [
        key for key, _ in [(one, live.get(one)) for one in (wait(n, 0)[0] for n in (1, 2, 3))] if live.get(key)
    ] == [wait(1, 0)[0]]
    live.forget(40)
    assert len(live) == 0
    live.apply([("edge/a", Edge("a", "a:b", "write", 1, 50), 50)])
    live.forget(49)
    assert live.get("edge/a") is not None
    live.forget(50)
    assert len(live) == 0


def test_a_prefix_is_scanned_in_order_of_key() -> None:
    live = Live([("agent/b", Counter(2)), ("agent/a", Counter(1)), ("agents", Counter(3))])
    assert list(live.scan("agent/")) == [("agent/a", Counter(1)), ("agent/b", Counter(2))]


def test_what_a_decision_may_read_is_looked_up() -> None:
    asked = acquire("A", "repo:x").but(idempotency_key="k", nonce="n" * 22).signed()
    did = did_of("A")
    assert cold_keys(asked) == (idempotency_key(did, "k"), nonce_key(did, "n" * 22))
    assert cold_keys(renew("A", "L7").signed())[2] == "ended/L7"
    assert cold_keys(release("A", "repo:x", leaseId="L8").signed())[2] == "ended/L8"
    assert len(cold_keys(release("A", "repo:x").signed())) == 2
    assert cold_keys(claim("A", "T9").signed())[2] == "ended/T9"
    assert cold_keys(accept("A", "L9").signed())[2] == "ended/L9"
    assert cold_keys(transfer("A", "L9", 7, "B").signed())[2:] == ("ended/L9", "ended/B7")
    assert cold_keys(break_("op", "repo:x", 7).signed())[2:] == ("ended/B7",)
    many = batch("A", renew("A", "L7"), acquire("A", "repo:x"), release("A", "repo:x", leaseId="L8"))
    assert cold_keys(many.signed())[2:] == ("ended/L7", "ended/L8")


def test_what_a_key_has_spent_is_its_own_and_not_its_principals() -> None:
    def places(ask: Ask) -> tuple[str, ...]:
        return cold_keys(ask.but(idempotency_key="k", nonce="n" * 22).signed()._replace(principal=did_of("P")))

    asked = [places(close(name, "S")) for name in ("S", "P")] + [places(open_session("S", chain("P", "S")))]
    assert asked[0] == asked[2] == (idempotency_key(did_of("S"), "k"), nonce_key(did_of("S"), "n" * 22))
    assert not set(asked[0]) & set(asked[1])
