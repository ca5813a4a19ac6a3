"""Winding up: what a key that is done holds and waits for is given back once, in one order, with nothing between."""

from __future__ import annotations

from collections import Counter as Count
from itertools import pairwise

import pytest

from gateway.core import agent
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lookup import principal_at
from gateway.core.outcome import Context, Decision
from gateway.core.record_keys import ended_key
from gateway.core.records import Ended
from tests.core.book import DECIDERS, own_members
from tests.core.crew import Crew
from tests.core.requests import (
    accept,
    acquire,
    add,
    batch,
    break_,
    chain,
    close,
    did_of,
    open_session,
    release,
    remove,
    remove_operator,
    renew,
    set_scheme,
    transfer,
)
from verifier.entries import Leaf

A, B, OP = (did_of(name) for name in ("A", "B", "op"))
IDLE_MS = 120_000


def crowded() -> Crew:
    """Return a ledger in which X, of op2, and its sessions x1 to x3 each hold two leases and stand in two lines.

    They took them in turns, so that no order of keys is an order of numbers. A and B of `op` wait behind them; y is a
    session of op2 itself and holds one lease.
    """
    one = Crew()
    for name in ("x3", "x1", "x2"):
        one.open(name, *(("op2", "X") if name == "x2" else ("X",)))
    one.open("y", "op2")
    one.hold("A", "lock:busy", "lock:busier")
    for turn in "ab":
        for name in ("x2", "X", "x3", "x1"):
            one.hold(name, f"repo:{turn}/{name}")
            one.line(name, "lock:busy" if turn == "a" else "lock:busier", onDeadlock="wait")
    one.hold("y", "repo:y")
    for name in ("B", "A"):
        one.line(name, "repo:a/x1", onDeadlock="wait")
    one.line("B", "repo:a/X", "repo:b/x2", onDeadlock="wait")
    return one


def told_of(one: Crew, mark: int) -> list[str]:
    return [word for word, _ in one.told(mark)]


def check_wound_up(one: Crew, mark: int, actors: set[str]) -> None:
    """Assert that these keys have nothing left and that all of it was said once, in order, right after `mark`."""
    words = told_of(one, mark)[1:]
    order = [word for word, _ in pairwise([*words, ""]) if word in ("session.ended", "wait.removed", "lease.returned")]
    assert order == sorted(order, key=["session.ended", "wait.removed", "lease.returned"].index)
    assert words[: len(order)] == order, "nothing stands between them"
    for member, word in (("openedSeq", "session.ended"), ("ticketSeq", "wait.removed"), ("grantSeq", "lease.returned")):
        numbers = [leaf.number(member) for leaf in leaves_of(one, mark, word)]
        assert numbers == sorted(set(numbers)), "each once, the oldest first"
    assert not [lease for lease in one.leases().values() if lease.holder in actors]
    assert not [ticket for ticket in one.tickets().values() if ticket.actor in actors]


def leaves_of(one: Crew, mark: int, word: str) -> list[Leaf]:
    leaves = map(one.leaf, range(mark, len(one.leaves)))
    return [leaf for leaf in leaves if leaf.type == f"tallystick/{word}/1"]


def test_a_removed_agent_and_its_sessions_give_everything_back_in_one_order() -> None:
    one = crowded()
    mark = len(one.leaves)
    cause = one.say(remove("op2", "X"))
    assert told_of(one, mark) == [
        "agent.removed", *["session.ended"] * 3, *["wait.removed"] * 8, *["lease.returned"] * 8, *["wait.offered"] * 2,
    ]  # fmt: skip
    check_wound_up(one, mark, {did_of(name) for name in ("X", "x1", "x2", "x3")})
    ended = {leaf.text("session"): leaf for leaf in leaves_of(one, mark, "session.ended")}
    for name in ("x1", "x2", "x3"):
        assert own_members(ended[did_of(name)]) == {
            "session": did_of(name), "openedSeq": one.session(name).opened_seq, "reason": "revoked",
            "causeSeq": cause.seq, "leases": 2, "tickets": 2,
        }  # fmt: skip
        assert one.session(name).ended_seq == ended[did_of(name)].seq
    for leaf in leaves_of(one, mark, "lease.returned"):
        holder = leaf.text("holder")
        assert leaf.value["causeSeq"] == (cause.seq if holder == did_of("X") else ended[holder].seq)
    assert {leaf.text("reason") for leaf in leaves_of(one, mark, "wait.removed")} == {"holder_gone"}
    assert one.session("y").is_open and "repo:y" in {lease.resources[0] for lease in one.leases().values()}


def test_a_removed_operator_takes_all_its_agents_and_sessions_along() -> None:
    one = crowded()
    mark = len(one.leaves)
    cause = one.say(remove_operator("op", "op2"))
    assert Count(told_of(one, mark)) == {
        "operator.removed": 1, "session.ended": 4, "wait.removed": 8, "lease.returned": 9, "wait.offered": 2,
    }  # fmt: skip
    check_wound_up(one, mark, {did_of(name) for name in ("X", "x1", "x2", "x3", "y")})
    own = [leaf for leaf in leaves_of(one, mark, "lease.returned") if leaf.text("holder") == did_of("X")]
    assert [leaf.value["causeSeq"] for leaf in own] == [cause.seq] * 2
    assert one.agent("X").removed_seq is None


@pytest.mark.parametrize("by", ["x1", "X", "op2", "op"])
def test_a_closed_session_gives_back_its_own_and_nothing_else(by: str) -> None:
    one = crowded()
    mark = len(one.leaves)
    cause = one.say(close(by, "x1"))
    assert (cause.value["leases"], cause.value["tickets"]) == (2, 2)
    assert told_of(one, mark) == [
        "session.closed", *["wait.removed"] * 2, *["lease.returned"] * 2, "wait.offered",
    ]  # fmt: skip
    check_wound_up(one, mark, {did_of("x1")})
    assert {leaf.value["causeSeq"] for leaf in leaves_of(one, mark, "lease.returned")} == {cause.seq}
    assert sum(lease.holder in (did_of("X"), did_of("x2")) for lease in one.leases().values()) == 4


def test_an_idle_session_gives_back_its_own_and_its_agent_pays_once() -> None:
    one = crowded()
    for _ in range(4):
        one.t_ms += 20_000
        for name in ("x2", "x3", "y"):
            one.say(renew(name, next(k for k, v in one.leases().items() if v.holder == did_of(name)), ttlMs=3_600_000))
    assert one.session("x1").idle_by_ms > one.t_ms
    mark = len(one.leaves)
    one.t_ms = one.session("x1").idle_by_ms
    one.run(one.t_ms)
    told = told_of(one, mark)
    first = told.index("session.ended")
    assert told[first : first + 3] == ["session.ended", "lease.returned", "lease.returned"], "its tickets had lapsed"
    cause = one.leaf(mark + first)
    assert own_members(cause) == {
        "session": did_of("x1"), "openedSeq": one.session("x1").opened_seq, "reason": "idle", "leases": 2, "tickets": 0,
        "trust": [{"did": did_of("X"), "change": -5_000, "after": 45_000}],
    }  # fmt: skip


def test_those_who_wait_are_offered_after_everything_is_given_back() -> None:
    """B waits for one name of X and one of its session x2: it gets both, after the last entry of the wind-up."""
    one = crowded()
    wide = max(one.tickets().values(), key=lambda ticket: ticket.seq)
    mark = len(one.leaves)
    one.say(remove("op2", "X"))
    offers = leaves_of(one, mark, "wait.offered")
    assert wide.ticket_id in {leaf.text("ticketId") for leaf in offers}
    assert min(leaf.seq for leaf in offers) > max(leaf.seq for leaf in leaves_of(one, mark, "lease.returned"))


def test_a_returned_lease_is_remembered_as_such() -> None:
    one = Crew()
    one.open("s", "A")
    lease_id = one.hold("s", "repo:x")
    token = one.leases()[lease_id].fencing_token
    one.close("s")
    returned = len(one.leaves) - 1
    assert one.shelf.get(ended_key(lease_id)) == Ended(did_of("s"), "returned", returned, one.t_ms + 86_400_000)
    assert one.refuses(renew("A", lease_id)) == "lease_not_yours"
    assert one.refuses(transfer("A", lease_id, token, "B")) == "lease_not_yours"
    assert one.refuses(accept("B", lease_id)) == "lease_returned"
    assert one.refuses(break_("op", "repo:x", token)) == "token_stale"


def test_the_holder_itself_is_told_that_it_was_given_back() -> None:
    """An agent that was removed and enrolled again is a new start, and its old lease no longer its own."""
    one = Crew()
    lease_id = one.hold("A", "repo:x")
    one.say(remove("op", "A"))
    returned = len(one.leaves) - 1
    one.say(add("op", "A"))
    late = one.renew("A", lease_id)
    assert own_members(late)["error"] == "lease_returned"
    assert own_members(late)["endedSeq"] == returned
    assert one.refuses(release("A", "repo:x", leaseId=lease_id)) == "lease_returned"


# --- lock-delay -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "is_delayed"), [("s", False), ("A", False), ("op", True), ("op2", True), ("idle", True), ("remove", True)]
)
def test_others_are_kept_out_unless_the_session_or_its_agent_closed_it(by: str, is_delayed: bool) -> None:
    one = Crew()
    one.say(set_scheme("op", "slow", "exclusive", lockDelayMs=30_000))
    one.open("s", "A")
    one.hold("s", "slow:x")
    if by == "idle":
        one.later(IDLE_MS)
    else:
        one.say(remove("op", "A") if by == "remove" else close(by, "s"))
    leaf = one.leaf(len(one.leaves) - 1)
    assert (leaf.type, "delayUntilMs" in leaf.value) == ("tallystick/lease.returned/1", is_delayed)
    if is_delayed:
        assert leaf.value["delayUntilMs"] == one.t_ms + 30_000
    assert one.tell(acquire("B", "slow:x")) == ("lock_delayed" if is_delayed else "lease.granted")
    one.later(30_000)


# --- counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "remove agent", "remove operator", "idle"])
def test_what_a_principal_holds_is_nothing_afterwards(how: str) -> None:
    one = Crew()
    one.open("s", "X")
    one.hold("s", "repo:a", "repo:b")
    one.hold("X", "repo:c")
    assert principal_at(one.shelf, did_of("X"), one.parameters).held == 3
    match how:
        case "close":
            one.close("s")
        case "remove agent":
            one.say(remove("op", "X"))
        case "remove operator":
            one.say(remove_operator("op", "op2"))
        case "idle":
            one.later(IDLE_MS)
    left = 1 if how in ("close", "idle") else 0
    assert principal_at(one.shelf, did_of("X"), one.parameters).held == left


def test_an_act_that_fails_after_it_has_dismissed_somebody_ends_nobody() -> None:
    def failing(draft: Draft, request: SignedRequest, context: Context) -> Decision:
        agent.remove(draft, request, context)
        raise ZeroDivisionError

    one = crowded()
    mark = len(one.leaves)
    assert one.tell(remove("op2", "X"), deciders={**DECIDERS, "agent.remove": failing}) == "decision_failed"
    assert one.types(mark) == ["decision.failed"]
    assert all(one.session(name).is_open for name in ("x1", "x2", "x3"))
    assert one.tell(remove("op2", "X")) == "agent.removed"


def test_an_ended_key_waits_for_nobody_any_more() -> None:
    """Its edge is forgotten, so that nobody is refused for a circle through it."""
    one = Crew()
    one.open("s", "A")
    one.hold("s", "repo:x")
    one.hold("B", "repo:y")
    assert one.tell(acquire("s", "repo:y")) == "lease_held"
    assert one.shelf.get(f"edge/{did_of('s')}") is not None
    one.close("s")
    assert one.shelf.get(f"edge/{did_of('s')}") is None


def test_an_offer_of_what_was_given_back_is_gone() -> None:
    one = Crew()
    one.open("s", "A")
    lease_id = one.hold("s", "repo:x")
    one.say(transfer("s", lease_id, one.leases()[lease_id].fencing_token, "B"))
    one.close("s")
    assert one.refuses(accept("B", lease_id)) == "lease_returned"
    assert not [key for key in one.shelf.records if key.startswith("handover/")]


def test_an_offer_to_a_key_that_is_done_is_worth_nothing_and_hurts_nobody() -> None:
    one = Crew()
    one.open("s", "A")
    lease_id = one.hold("B", "repo:x")
    one.say(transfer("B", lease_id, one.leases()[lease_id].fencing_token, "s"))
    one.close("s")
    assert one.refuses(accept("s", lease_id)) == "session_ended"
    assert lease_id in one.leases()


def test_in_one_batch_each_cause_is_wound_up_before_the_next_command() -> None:
    """Whoever comes next in the very same batch finds everything given back."""
    one = Crew()
    one.open("s", "A")
    one.hold("s", "repo:x")
    mark = len(one.leaves)
    asks = [close("s", "s"), acquire("B", "repo:x"), open_session("t", chain("A", "t")), acquire("t", "repo:y"),
            remove("op", "A"), acquire("B", "repo:y")]  # fmt: skip
    one.run(one.t_ms, *asks)
    assert told_of(one, mark) == [
        "session.closed", "lease.returned", "lease.granted", "session.opened", "lease.granted", "agent.removed",
        "session.ended", "lease.returned", "lease.granted",
    ]  # fmt: skip


def test_a_session_that_was_closed_is_not_ended_again() -> None:
    one = Crew()
    one.open("s", "A")
    one.close("s")
    mark = len(one.leaves)
    one.later(IDLE_MS)
    one.later(3_600_000)
    one.say(remove("op", "A"))
    one.say(remove_operator("op2", "op"))
    assert "session.ended" not in told_of(one, mark)


def test_a_batch_of_a_session_that_is_overdue_ends_the_session_and_nothing_else() -> None:
    one = Crew()
    one.open("s", "A")
    one.hold("s", "repo:x")
    one.t_ms += IDLE_MS
    mark = len(one.leaves)
    assert one.tell(batch("s", release("s", "repo:x"), acquire("s", "repo:y"))) == "session_ended"
    assert told_of(one, mark) == ["session.ended", "lease.returned"]


def test_building_a_wind_up_twice_gives_the_same_entries() -> None:
    """Whatever order the store finds things in; the shelf shuffles."""
    one = crowded()
    asks = [one.now(remove_operator("op", "op2"))]
    first = one.build(one.t_ms, *asks)
    for _ in range(8):
        assert one.build(one.t_ms, *asks) == first
