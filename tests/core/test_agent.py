"""Agents: what an operator's word and an API key do, whom a key belongs to, and what a removed key leaves."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.intake import Rejection
from gateway.core.lookup import agent_at
from gateway.core.outcome import Recorded, Unreceipted
from gateway.core.records import Agent
from tests.core.book import Book, own_members
from tests.core.crew import Crew, digest
from tests.core.requests import (
    ENROLLER,
    NOW_MS,
    acquire,
    add,
    add_operator,
    ask,
    chain,
    did_of,
    enrol,
    issue,
    open_session,
    proof_of,
    release,
    remove,
    remove_operator,
    renew,
    revoke,
)
from verifier.entries import SESSION_MEMORY_MS

A, E, X, OP, OP2 = (did_of(name) for name in ("A", "E", "X", "op", "op2"))


def test_enrolling_is_an_entry_signed_by_the_operator_that_answers_from_then_on() -> None:
    book = Book(agents=())
    leaf = book.entry(NOW_MS, add("op", "E", name="worker-7"))
    assert (leaf.type, leaf.actor, leaf.principal, leaf.on_behalf_of) == ("tallystick/agent.added/1", OP, OP, OP)
    assert own_members(leaf) == {"agent": E, "name": "worker-7"}
    assert agent_at(book.shelf, E) == Agent(E, "worker-7", 1, None, OP)
    granted = book.entry(NOW_MS, acquire("E", "repo:x"))
    assert (granted.actor, granted.principal, granted.on_behalf_of) == (E, E, OP)
    book.audit()


def test_enrolling_again_is_the_same_identity_with_the_new_label() -> None:
    """Scenario 19 (mcp_agent_mail_rust#110): a key enrolled twice is one agent."""
    book = Book(agents=())
    book.play(NOW_MS, add("op", "E", name="old"))
    assert own_members(book.entry(NOW_MS, add("op", "E"))) == {"agent": E}
    assert agent_at(book.shelf, E) == Agent(E, None, 2, None, OP)


def test_two_agents_may_have_one_label_because_it_is_no_identity() -> None:
    """Scenario 21 (relay#1438): a taken display name changes nothing."""
    book = Book(agents=())
    for agent in "EF":
        assert book.play(NOW_MS, add("op", agent, name="same")) == Recorded(len(book.leaves) - 1, 200)


def test_only_an_operator_may_enrol_or_remove_and_asking_is_on_record() -> None:
    book = Book()
    refused = {"agent": E, "error": "operator_required", "number": 105}
    assert own_members(book.entry(NOW_MS, add("A", "E"))) == refused
    assert own_members(book.entry(NOW_MS, remove("A", "E"))) == refused
    assert book.types(-2) == ["agent.refused", "removal.refused"]
    assert agent_at(book.shelf, E) is None


def test_a_removed_key_does_nothing_any_more_and_gives_back_what_it_holds() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    assert own_members(book.entry(NOW_MS, remove("op", "A"))) == {"agent": A}
    assert book.types(6) == ["agent.removed", "lease.returned"]
    size = len(book.leaves)
    for one in (renew("A", "L5"), release("A", "repo:x"), acquire("A", "repo:y"), add("A", "E")):
        answer = book.play(NOW_MS, one)
        assert isinstance(answer, Unreceipted) and answer.refusal.name == "agent_removed"
    book.run(NOW_MS + 5_000)
    assert len(book.leaves) == size, "nothing of it is left to run out"


def test_removing_twice_or_a_stranger_finds_nobody() -> None:
    book = Book()
    book.play(NOW_MS, remove("op", "A"))
    for agent in "AE":
        assert own_members(book.entry(NOW_MS, remove("op", agent))) == {
            "agent": did_of(agent), "error": "agent_not_found", "number": 106,
        }  # fmt: skip


def test_a_removed_key_may_be_enrolled_again() -> None:
    """Scenario 23 (mcp_agent_mail#140): the same key file is the same identity."""
    book = Book()
    book.play(NOW_MS, remove("op", "A"))
    book.play(NOW_MS, add("op", "A"))
    assert agent_at(book.shelf, A) == Agent(A, None, 6, None, OP)
    assert book.play(NOW_MS, acquire("A", "repo:x")) == Recorded(7, 200)


def test_an_agent_enrolled_earlier_in_a_batch_may_act_later_in_it() -> None:
    book = Book()
    batch = book.run(NOW_MS, add("op", "E"), acquire("E", "repo:x"), remove("op", "E"), acquire("E", "repo:y"))
    assert batch.answers[:3] == (Recorded(5, 200), Recorded(6, 200), Recorded(7, 200))
    last = batch.answers[3]
    assert isinstance(last, Unreceipted) and last.refusal.name == "agent_removed"


# --- whose an agent is ----------------------------------------------------------------------------------------------


def test_an_agent_in_force_belongs_to_its_operator() -> None:
    one = Crew()
    leaf = one.say(add("op", "X", name="mine"))
    assert (leaf.type, own_members(leaf)) == (
        "tallystick/agent.refused/1", {"agent": X, "error": "key_taken", "number": 124},
    )  # fmt: skip
    assert one.refuses(add("op", "X")) == "key_taken"
    assert one.agent("X").operator == OP2


def test_a_takeover_is_two_acts_on_record() -> None:
    """Any operator may remove an agent; then any may enrol it."""
    one = Crew()
    one.open("s", "X")
    one.hold("X", "repo:x")
    assert one.tell(remove("op", "X")) == "agent.removed"
    assert one.types(-3) == ["agent.removed", "session.ended", "lease.returned"]
    assert one.tell(add("op", "X")) == "agent.added"
    assert one.agent("X").operator == OP
    assert one.refuses(add("op2", "X")) == "key_taken", "and it does not go back by itself"
    assert one.refuses(open_session("s", chain("X", "s"))) == "session_taken"


def test_an_agent_has_no_other_role() -> None:
    one = Crew()
    one.open("s", "A")
    one.open("t", "A")
    one.close("t")  # remembered for a day longer than its delegation could be used
    for taken in ("op", "op2", "s", "t", "enroller"):
        assert one.refuses(add("op", taken)) == "key_taken"


def test_who_was_an_operator_or_a_session_may_become_an_agent() -> None:
    one = Crew()
    one.open("s", "A", expiresAtMs=one.t_ms + 5_000)
    one.later(5_000 + SESSION_MEMORY_MS)
    one.tell(remove_operator("op", "op2"))
    for former in ("op2", "s"):
        assert one.tell(add("op", former)) == "agent.added"
        assert one.tell(acquire(former, f"repo:{former}")) == "lease.granted"
    assert one.refuses(add_operator("op", "op2")) == "key_taken"


def test_the_keys_of_one_ledger_mean_nothing_in_another() -> None:
    """A DID is what a ledger says it is: agent here, nobody there."""
    one, other = Crew(), Book(agents=())
    assert one.tell(acquire("A", "repo:x")) == "lease.granted"
    answer = other.play(NOW_MS, acquire("A", "repo:x"))
    assert isinstance(answer, Unreceipted) and answer.refusal.name == "agent_unknown"
    foreign = ask("agent.add", "op", agent=E, ledger="gateway.example/other")
    with pytest.raises(Rejection) as rejected:
        foreign.signed()
    assert rejected.value.code == "wrong_ledger"


# --- custody --------------------------------------------------------------------------------------------------------


def test_an_agent_whose_key_the_gateway_holds_says_so_in_each_of_its_entries() -> None:
    one = Crew()
    leaf = one.say(add("op", "E", agentCustody="gateway"))
    assert own_members(leaf) == {"agent": E, "agentCustody": "gateway"} and "custody" not in leaf.value
    assert one.agent("E").is_custodial
    for word in ("lease.granted", "lease.extended", "beat.refused"):
        one.tell(acquire("E", "repo:x") if "lease" in word else ask("session.beat", "E"))
        last = one.leaf(len(one.leaves) - 1)
        assert (last.type, last.value["custody"]) == (f"tallystick/{word}/1", "gateway")
    assert "custody" not in one.ask_for("A", "repo:y").value


@pytest.mark.parametrize("before", [{}, {"agentCustody": "gateway"}])
def test_custody_of_an_agent_in_force_never_changes(before: dict[str, Any]) -> None:
    """An operator removes and adds again to change it, and both acts are on record."""
    one = Crew()
    after: dict[str, Any] = {} if before else {"agentCustody": "gateway"}
    one.tell(add("op", "E", **before))
    assert one.refuses(add("op", "E", **after)) == "key_taken"
    assert one.tell(add("op", "E", name="new", **before)) == "agent.added"
    one.tell(remove("op", "E"))
    assert one.tell(add("op", "E", **after)) == "agent.added"
    assert one.agent("E").is_custodial == bool(after)


# --- by an API key --------------------------------------------------------------------------------------------------


def test_the_enroller_enrols_in_the_name_of_an_api_key_and_its_operator_answers() -> None:
    one = Crew()
    key = one.key("k", "live", by="op2")
    leaf = one.say(enrol("E", key, name="newcomer"))
    assert (leaf.type, leaf.actor, leaf.value["custody"]) == ("tallystick/agent.added/1", did_of(ENROLLER), "gateway")
    assert own_members(leaf) == {"agent": E, "keyDigest": key, "name": "newcomer"}
    assert one.agent("E") == Agent(E, "newcomer", leaf.seq, None, OP2, key_digest=key)
    granted = one.ask_for("E", "repo:x")
    assert (granted.principal, granted.on_behalf_of) == (E, OP2)


def test_a_live_key_enrols_as_many_as_come() -> None:
    one = Crew()
    key = one.key("k", "live")
    assert {one.tell(enrol(name, key)) for name in ("E", "F", "G", "E")} == {"agent.added"}


def test_the_enroller_does_nothing_without_an_api_key_and_nobody_else_with_one() -> None:
    one = Crew()
    key = one.key("k", "live")
    assert one.refuses(ask("agent.add", ENROLLER, agent=E)) == "operator_required"
    for by in ("op", "A"):
        signed = ask("agent.add", by, agent=E, keyDigest=key, proof=proof_of("E", key))
        assert one.refuses(signed) == "operator_required"
    for other in (
        remove(ENROLLER, "A"),
        add_operator(ENROLLER, "E"),
        issue(ENROLLER, digest("q"), "live"),
        acquire(ENROLLER, "repo:x"),
    ):
        assert one.refuses(other) == "agent_unknown"


@pytest.mark.parametrize("why", ["unknown", "revoked", "of an agent", "of a removed operator"])
def test_an_api_key_that_is_not_in_force_for_it_enrols_nobody(why: str) -> None:
    one = Crew()
    one.tell(add("op2", "C", agentCustody="gateway"))
    key = digest("k")
    if why != "unknown":
        one.key("k", "live", by="op2", **({"agent": did_of("C")} if why == "of an agent" else {}))
    if why == "revoked":
        one.tell(revoke("op", key))
    if why == "of a removed operator":
        one.tell(remove_operator("op", "op2"))
    leaf = one.say(enrol("E", key))
    assert own_members(leaf) == {"agent": E, "error": "apikey_not_found", "number": 125}
    assert one.refuses(enrol("E", key)) == "apikey_not_found"


def test_a_trial_key_enrols_one_agent_ever() -> None:
    one = Crew()
    key = one.key("k", "trial")
    assert one.tell(enrol("E", key)) == "agent.added"
    leaf = one.say(enrol("F", key))
    assert own_members(leaf) == {"agent": did_of("F"), "error": "apikey_used", "number": 127}
    one.tell(remove("op", "E"))
    assert one.refuses(enrol("F", key)) == "apikey_used"


def test_an_api_key_takes_no_agent_away_from_another_operator() -> None:
    one = Crew()
    key = one.key("k", "live", by="op2")
    for taken in ("A", "op", "enroller"):
        assert one.refuses(enrol(taken, key)) == "key_taken"
    assert one.tell(enrol("X", key)) == "agent.added", "of its own operator it gives the new label"


def test_without_the_new_keys_own_word_nobody_is_enrolled_by_an_api_key() -> None:
    one = Crew()
    key = one.key("k", "live")
    for proof in (proof_of("F", key), proof_of("E", digest("other")), proof_of("E", key)[:-4] + "AA=="):
        with pytest.raises(Rejection) as rejected:
            ask("agent.add", ENROLLER, agent=E, keyDigest=key, proof=proof).signed()
        assert rejected.value.code in ("proof_invalid", "member_invalid")
    halves: list[dict[str, Any]] = [{"keyDigest": key}, {"proof": proof_of("E", key)}]
    for half in halves:
        with pytest.raises(Rejection) as rejected:
            ask("agent.add", ENROLLER, agent=E, **half).signed()
        assert rejected.value.code == "member_conflict"
