"""Operators: who is one, who becomes one, and what goes with one that is removed."""

from __future__ import annotations

import pytest

from gateway.core.authority import operator_count, operator_share
from gateway.core.record_keys import OPERATORS_KEY
from gateway.core.records import Counter, Operator
from tests.core.book import Book, own_members
from tests.core.crew import Crew
from tests.core.requests import (
    acquire,
    add,
    add_operator,
    beat,
    break_,
    chain,
    did_of,
    open_session,
    remove,
    remove_operator,
    set_scheme,
)
from verifier.entries import SESSION_MEMORY_MS

A, E, OP, OP2 = (did_of(name) for name in ("A", "E", "op", "op2"))


def test_an_operator_in_force_adds_another_who_may_do_the_same() -> None:
    one = Crew()
    leaf = one.say(add_operator("op", "E", name="night-shift"))
    assert (leaf.type, leaf.actor, leaf.principal, leaf.on_behalf_of) == ("tallystick/operator.added/1", OP, OP, OP)
    assert own_members(leaf) == {"operator": E, "name": "night-shift"}
    assert one.operator("E") == Operator(E, "night-shift", leaf.seq, None)
    for asked in (add_operator("E", "F"), add("E", "G"), set_scheme("E", "doc", "read-safe")):
        assert one.tell(asked) in ("operator.added", "agent.added", "scheme.set")
    assert one.shelf.get(OPERATORS_KEY) == Counter(4)


def test_adding_one_in_force_gives_it_the_new_label_and_counts_it_once() -> None:
    one = Crew()
    one.say(add_operator("op", "op2", name="late"))
    leaf = one.say(add_operator("op2", "op2"))
    assert one.operator("op2") == Operator(OP2, None, leaf.seq, None)
    assert operator_count(one.shelf) == 2


def test_an_operator_has_no_other_role() -> None:
    """Not an agent, not a session, and not the gateway's own enroller: it would be a gateway that adds operators."""
    one = Crew()
    one.open("s", "A")
    one.open("t", "A")
    one.close("t")  # remembered for a day longer than its delegation could be used
    for taken in ("A", "X", "s", "t", "enroller"):
        leaf = one.say(add_operator("op", taken))
        assert own_members(leaf) == {"operator": did_of(taken), "error": "key_taken", "number": 124}
        assert one.refuses(add_operator("op", taken)) == "key_taken"
    assert operator_count(one.shelf) == 2


def test_who_was_an_agent_or_a_session_may_become_an_operator() -> None:
    one = Crew()
    one.open("s", "B", expiresAtMs=one.t_ms + 5_000)
    one.later(5_000 + SESSION_MEMORY_MS)
    one.tell(remove("op", "A"))
    for former in ("A", "s"):
        assert one.tell(add_operator("op", former)) == "operator.added"
        assert one.tell(add(former, "E")) == "agent.added"
        assert one.tell(remove(former, "E")) == "agent.removed"
    leaf = one.open("t", "A")
    assert (leaf.principal, leaf.on_behalf_of) == (did_of("t"), A), "its delegations are an operator's now"
    assert one.refuses(acquire("A", "repo:x")) == "agent_removed"


@pytest.mark.parametrize("by", ["A", "s", "op3"])
def test_only_operators_in_force_add_and_remove_operators(by: str) -> None:
    one = Crew()
    one.open("s", "op")
    one.tell(add_operator("op", "op3"))
    one.tell(remove_operator("op", "op3"))
    if by == "op3":
        assert one.refuses(add_operator("op3", "E")) == "agent_unknown"
        assert one.refuses(remove_operator("op3", "op")) == "agent_unknown"
        return
    leaf = one.say(add_operator(by, "E"))
    assert (leaf.type, own_members(leaf)) == (
        "tallystick/operator.refused/1", {"operator": E, "error": "operator_required", "number": 105},
    )  # fmt: skip
    leaf = one.say(remove_operator(by, "op2"))
    assert (leaf.type, own_members(leaf)) == (
        "tallystick/dismissal.refused/1", {"operator": OP2, "error": "operator_required", "number": 105},
    )  # fmt: skip
    assert one.refuses(add_operator(by, "E")) == "operator_required"


def test_the_last_operator_stays() -> None:
    """Without one a ledger could never be ruled again; somebody else's word does not change that."""
    one = Crew()
    one.tell(remove_operator("op", "op2"))
    leaf = one.say(remove_operator("op", "op"))
    assert own_members(leaf) == {"operator": OP, "error": "operator_last", "number": 123}
    assert one.refuses(remove_operator("op", "op2")) == "operator_not_found"
    assert one.refuses(remove_operator("op", "E")) == "operator_not_found"
    assert one.tell(add_operator("op", "op2")) == "operator.added"
    assert one.tell(remove_operator("op", "op")) == "operator.removed", "now it may remove itself"
    assert one.refuses(add("op", "E")) == "agent_unknown"
    assert operator_count(one.shelf) == 1


def test_two_operators_who_remove_each_other_at_once_leave_one() -> None:
    one = Crew()
    batch = one.run(one.t_ms, remove_operator("op", "op2"), remove_operator("op2", "op"))
    assert [getattr(getattr(a, "refusal", None), "name", "recorded") for a in batch.answers] == [
        "recorded", "agent_unknown",
    ]  # fmt: skip
    assert operator_count(one.shelf) == 1


def test_a_removed_operators_agents_are_turned_away_and_come_back_with_it_and_its_sessions_do_not() -> None:
    one = Crew()
    one.open("s", "X")
    one.open("t", "op2")
    added = one.agent("X")
    leaf = one.say(remove_operator("op", "op2"))
    assert own_members(leaf) == {"operator": OP2}
    assert one.operator("op2").removed_seq == leaf.seq
    assert one.agent("X") == added, "it stays enrolled"
    assert one.refuses(acquire("X", "repo:x")) == "operator_removed"
    for session in ("s", "t"):
        assert one.refuses(beat(session)) == "session_ended"
    one.say(add_operator("op", "op2"))
    assert one.tell(acquire("X", "repo:x")) == "lease.granted"
    for session in ("s", "t"):
        assert one.refuses(beat(session)) == "session_ended"
    assert one.tell(open_session("u", chain("X", "u"))) == "session.opened"


def test_another_operator_may_take_over_the_agents_of_a_removed_one() -> None:
    one = Crew()
    one.tell(remove_operator("op", "op2"))
    leaf = one.say(add("op", "X"))
    assert one.agent("X").operator == OP
    assert one.tell(acquire("X", "repo:x")) == "lease.granted"
    assert one.leaf(len(one.leaves) - 1).on_behalf_of == OP
    one.tell(add_operator("op", "op2"))
    assert one.agent("X").added_seq == leaf.seq and one.agent("X").operator == OP, "it does not go back by itself"
    one.tell(remove_operator("op", "op2"))
    assert one.tell(acquire("X", "repo:y")) == "lease.granted"


def test_a_removed_operator_breaks_and_sets_nothing() -> None:
    one = Crew()
    lease_id = one.hold("A", "repo:x")
    one.tell(remove_operator("op", "op2"))
    token = one.leases()[lease_id].fencing_token
    assert one.refuses(break_("op2", "repo:x", token)) == "agent_unknown"
    assert one.refuses(set_scheme("op2", "doc", "read-safe")) == "agent_unknown"


@pytest.mark.parametrize(("operators", "share"), [(1, 100), (2, 50), (3, 33), (4, 25), (5, 25), (9, 25)])
def test_an_operators_share_of_a_queue_shrinks_to_a_quarter(operators: int, share: int) -> None:
    book = Book(agents=())
    for n in range(operators - 1):
        book.play(book.leaf(0).time_ms, add_operator("op", f"op{n}", book.leaf(0).time_ms))
    assert operator_share(book.shelf, 100) == share
    assert operator_share(book.shelf, 1) == 1
