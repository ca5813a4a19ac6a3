"""Enrolling and removing: what an operator's word does, and what it leaves alone."""

from gateway.core.outcome import Recorded, Unreceipted
from gateway.core.state import Agent, agent_at
from tests.core.book import Book, own_members
from tests.core.requests import NOW_MS, acquire, add, did_of, release, remove, renew

A, E = did_of("A"), did_of("E")


def test_enrolling_is_an_entry_signed_by_the_operator() -> None:
    book = Book(agents=())
    leaf = book.entry(NOW_MS, add("op", "E", name="worker-7"))
    assert (leaf.type, leaf.actor) == ("tallystick/agent.added/1", did_of("op"))
    assert own_members(leaf) == {"agent": E, "name": "worker-7"}
    assert agent_at(book.shelf, E) == Agent(E, "worker-7", 1, None)
    book.audit()


def test_enrolling_again_is_the_same_identity_with_the_new_label() -> None:
    """Scenario 19 (mcp_agent_mail_rust#110): a key enrolled twice is one agent."""
    book = Book(agents=())
    book.play(NOW_MS, add("op", "E", name="old"))
    assert own_members(book.entry(NOW_MS, add("op", "E"))) == {"agent": E}
    assert agent_at(book.shelf, E) == Agent(E, None, 2, None)


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


def test_a_removed_key_does_nothing_any_more_and_what_it_holds_runs_out() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    assert own_members(book.entry(NOW_MS, remove("op", "A"))) == {"agent": A}
    size = len(book.leaves)
    for ask in (renew("A", "L5"), release("A", "repo:x"), acquire("A", "repo:y"), add("A", "E")):
        answer = book.play(NOW_MS, ask)
        assert isinstance(answer, Unreceipted) and answer.refusal.name == "agent_removed"
    assert len(book.leaves) == size
    book.run(NOW_MS + 5_000)
    assert book.types(size) == ["lease.expired"]


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
    assert agent_at(book.shelf, A) == Agent(A, None, 6, None)
    assert book.play(NOW_MS, acquire("A", "repo:x")) == Recorded(7, 200)


def test_an_agent_enrolled_earlier_in_a_batch_may_act_later_in_it() -> None:
    book = Book()
    batch = book.run(NOW_MS, add("op", "E"), acquire("E", "repo:x"), remove("op", "E"), acquire("E", "repo:y"))
    assert batch.answers[:3] == (Recorded(5, 200), Recorded(6, 200), Recorded(7, 200))
    last = batch.answers[3]
    assert isinstance(last, Unreceipted) and last.refusal.name == "agent_removed"
