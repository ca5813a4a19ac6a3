"""Standing in line: who may join, what it is told, how it asks, takes and leaves, and what stays behind."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.draft import Draft
from gateway.core.opening import start_steps
from gateway.core.outcome import Recorded, Replay
from gateway.core.record_keys import DISPUTE_KEY, TICKETS_KEY, ended_key
from gateway.core.records import Counter, Dispute, Ended
from gateway.core.wait import claim as decide_claim
from gateway.core.wait import queue
from tests.core import book as books
from tests.core.book import own_members
from tests.core.hall import Hall
from tests.core.requests import NOW_MS, acquire, add, add_operator, claim, did_of, remove_operator, set_scheme
from verifier.entries import Leaf


def kind_of(leaf: Leaf) -> str:
    return leaf.type.split("/")[1]


def held_hall(**numbers: int) -> tuple[Hall, str]:
    """A hall in which A holds x."""
    hall = Hall("ABCDEF", **numbers)
    return hall, hall.hold("A", "repo:x")


def counted(hall: Hall) -> int:
    counter = hall.shelf.records.get(TICKETS_KEY, Counter(0))
    assert isinstance(counter, Counter)
    return counter.value


def test_a_ticket_says_what_it_is_for_and_until_when() -> None:
    hall, _ = held_hall()
    hall.line("C", "repo:x")
    hall.t_ms += 500
    leaf = hall.ask_for("B", "repo:x", mode="read", wait=True, giveUpMs=60_000, ttlMs=5_000)
    assert own_members(leaf) == {
        "resources": ["repo:x"],
        "mode": "read",
        "ttlMs": 5_000,
        "giveUpMs": 60_000,
        "ticketId": f"T{leaf.seq}",
        "pollByMs": hall.t_ms + 30_000,
        "giveUpByMs": hall.t_ms + 60_000,
        "position": 2,
    }
    assert counted(hall) == 2 and hall.audited() == []


def test_whoever_waits_for_what_is_free_simply_gets_it() -> None:
    hall, _ = held_hall()
    assert kind_of(hall.ask_for("B", "repo:y", wait=True)) == "lease.granted"
    assert counted(hall) == 0


def test_waiting_answers_202_and_taking_200() -> None:
    hall, lease = held_hall()
    answer = hall.play(hall.t_ms, acquire("B", "repo:x", wait=True))
    assert isinstance(answer, Recorded) and answer.status == 202
    ticket = f"T{answer.seq}"
    polled = hall.play(hall.t_ms, claim("B", ticket))
    assert isinstance(polled, Recorded) and polled.status == 202
    hall.free("A", lease)
    taken = hall.play(hall.t_ms, claim("B", ticket))
    assert isinstance(taken, Recorded) and taken.status == 200


def test_a_claim_takes_what_was_offered_as_it_was_asked_for() -> None:
    """The ticket's mode and ttl, a token of its own, and a new hold; nothing is left of the wait."""
    hall, lease = held_hall()
    hall.ask_for("B", "repo:x")
    ticket = hall.line("B", "repo:x", mode="append", ttlMs=7_000)
    hall.t_ms += 1_000
    hall.free("A", lease)
    leaf = hall.claim("B", ticket)
    got = hall.leases()[f"L{leaf.seq}"]
    assert kind_of(leaf) == "lease.claimed"
    assert (got.mode, got.ttl_ms, got.expires_at_ms) == ("append", 7_000, hall.t_ms + 7_000)
    assert got.hold_until_ms == hall.t_ms + 3_600_000 and got.fencing_token == hall.t_ms * 1_000
    assert (leaf.text("ticketId"), leaf.number("ticketSeq")) == (ticket, int(ticket[1:]))
    assert hall.tickets() == {} and counted(hall) == 0
    assert not any(key.startswith(("edge/", "wait/")) for key in hall.shelf.records)
    ended = hall.shelf.records[ended_key(ticket)]
    assert ended == Ended(did_of("B"), "claimed", leaf.seq, hall.t_ms + 86_400_000)
    assert hall.audited() == []


def test_a_claim_before_its_turn_keeps_the_place_for_another_while() -> None:
    hall, _ = held_hall()
    hall.line("B", "repo:x", giveUpMs=100_000)
    ticket = hall.line("C", "repo:x", giveUpMs=100_000)
    hall.t_ms += 20_000
    leaf = hall.claim("C", ticket)
    assert own_members(leaf) == {
        "ticketId": ticket,
        "ticketSeq": int(ticket[1:]),
        "pollByMs": hall.t_ms + 30_000,
        "position": 2,
    }
    assert [kind for kind, _ in hall.later(10_000)] == ["wait.removed"]
    assert hall.claim("C", ticket).number("position") == 1
    hall.later(25_000)
    hall.claim("C", ticket)
    hall.later(25_000)
    hall.claim("C", ticket)
    assert hall.later(20_000) == [("wait.removed", ticket)], "polling does not move what it gave itself"
    assert hall.leaf(len(hall.leaves) - 1).text("reason") == "given_up"
    assert hall.audited() == []


def test_a_position_counts_who_really_is_ahead() -> None:
    """Earlier ones of others that exclude this one: not readers beside a reader, not other names, not its own."""
    hall = Hall()
    hall.say(set_scheme("op", "doc", "read-safe"))
    hall.hold("A", "doc:a", "doc:b", "doc:c", "doc:d")
    hall.line("B", "doc:a", mode="read")
    hall.line("C", "doc:**")
    hall.line("D", "doc:c")
    hall.line("E", "doc:d")
    leaf = hall.ask_for("D", "doc:a", "doc:b", mode="read", wait=True)
    assert leaf.number("position") == 2
    assert hall.audited() == []


@pytest.mark.parametrize("act", ["claim", "cancel"])
def test_tickets_that_are_not_there_or_not_yours(act: str) -> None:
    hall, lease = held_hall()
    mine, other = hall.line("B", "repo:x"), hall.line("C", "repo:x")
    do = getattr(hall, act)
    refused = f"{act}.refused"

    def told(name: str, ticket: str) -> tuple[str, str, Any]:
        leaf = do(name, ticket)
        return kind_of(leaf), leaf.text("error"), leaf.value.get("endedSeq")

    assert told("B", "T1") == (refused, "ticket_unknown", None)
    assert told("B", other) == (refused, "ticket_not_yours", None)
    hall.free("A", lease)
    seq = hall.claim("B", mine).seq
    assert told("B", mine) == (refused, "ticket_ended", seq)
    assert told("C", mine) == (refused, "ticket_not_yours", None), "its end is nobody else's business"
    seq = hall.cancel("C", other).seq
    assert told("C", other) == (refused, "ticket_ended", seq)
    third = hall.line("D", "repo:x")
    hall.later(30_000)
    hall.later(86_400_000 - 1)
    assert told("D", third)[:2] == (refused, "ticket_ended")
    hall.later(1)
    assert told("D", third) == (refused, "ticket_unknown", None)
    assert hall.audited() == []


def test_a_claim_is_answered_once_however_often_it_is_sent() -> None:
    """Scenario L12: the answer was lost; the retry gets the same receipt and no second lease."""
    hall, lease = held_hall()
    ticket = hall.line("B", "repo:x")
    hall.free("A", lease)
    one = claim("B", ticket)
    first = hall.play(hall.t_ms, one)
    assert isinstance(first, Recorded)
    assert hall.play(hall.t_ms, one.again()) == Replay(first.seq, 200)
    assert len(hall.leases()) == 1
    assert hall.audited() == []


def test_a_wait_that_is_sent_again_has_one_place() -> None:
    hall, _ = held_hall()
    one = acquire("B", "repo:x", wait=True)
    first = hall.play(hall.t_ms, one)
    assert isinstance(first, Recorded)
    assert hall.play(hall.t_ms, one.again()) == Replay(first.seq, 202)
    assert counted(hall) == 1


def test_one_ticket_for_a_name_is_enough() -> None:
    """By keys: in a scheme that folds, other letters are the same name. A sub-tree around it is another name."""
    hall = Hall()
    hall.say(set_scheme("op", "win", "exclusive", isFolding=True))
    hall.hold("A", "win:x", "win:y", "win:z")
    first = hall.line("B", "win:x")
    hall.line("B", "win:y")
    leaf = hall.ask_for("B", "win:Y", "win:X", wait=True)
    assert (leaf.text("error"), leaf.text("ticketId")) == ("already_waiting", first)
    assert "stampede" not in leaf.value
    assert kind_of(hall.ask_for("B", "win:**", wait=True)) == "wait.queued"
    assert hall.audited() == []


@pytest.mark.parametrize(
    ("numbers", "fits"),
    [
        ({"queue_per_resource": 3}, 3),
        ({"queue_total": 4, "queue_per_resource": 100}, 4),
        ({}, 5),
    ],
)
def test_a_line_has_bounds(numbers: dict[str, int], fits: int) -> None:
    hall, lease = held_hall(**numbers)
    for name in "BCDEF"[:fits]:
        hall.line(name, "repo:x")
    if fits < 5:
        leaf = hall.ask_for("F", "repo:x", wait=True)
        assert (leaf.text("error"), leaf.entry_type.name) == ("queue_full", "lease.refused")
        hall.cancel("B", next(iter(hall.tickets())))
        assert kind_of(hall.ask_for("F", "repo:x", wait=True)) == "wait.queued"
    assert counted(hall) == len(hall.tickets()) and lease in hall.leases()
    assert hall.audited() == []


def test_the_bound_of_a_name_is_met_by_any_name_of_the_request() -> None:
    hall = Hall(queue_per_resource=1)
    hall.hold("A", "repo:x", "repo:y")
    hall.line("B", "repo:y")
    assert hall.ask_for("C", "repo:x", "repo:y", wait=True).text("error") == "queue_full"
    assert kind_of(hall.ask_for("C", "repo:x", wait=True)) == "wait.queued"
    assert hall.audited() == []


def test_one_agent_has_a_bound_of_its_own() -> None:
    hall = Hall(queue_per_principal=2)
    hall.hold("A", "repo:x", "repo:y", "repo:z")
    for name in ("repo:x", "repo:y"):
        hall.line("B", name)
    assert hall.ask_for("B", "repo:z", wait=True).text("error") == "queue_full"
    hall.line("C", "repo:z")
    assert hall.audited() == []


def shared_hall(operators: int, **numbers: int) -> Hall:
    """A hall in which A holds x0 to x15, and so many operators are in force: B to F are of `op`, Z is of the last."""
    hall = Hall("ABCDEF", **numbers)
    others = [f"op{number}" for number in range(2, operators + 1)]
    for name in others:
        hall.say(add_operator("op", name))
    hall.say(add(others[-1] if others else "op", "Z"))
    hall.hold("A", *(f"repo:x{n}" for n in range(16)))
    return hall


@pytest.mark.parametrize(("operators", "fits"), [(1, 12), (2, 6), (3, 4), (4, 3), (5, 3)])
def test_an_operator_has_its_share_of_all_places_and_the_only_one_has_all(operators: int, fits: int) -> None:
    hall = shared_hall(operators, queue_total=12)
    for number in range(fits):
        hall.line("BCDEF"[number % 5], f"repo:x{number}")
    assert hall.ask_for("B", "repo:x15", wait=True).text("error") == "queue_full"
    leaf = hall.ask_for("Z", "repo:x15", wait=True)
    assert kind_of(leaf) == ("lease.refused" if operators == 1 else "wait.queued")
    assert hall.audited() == []


@pytest.mark.parametrize(("operators", "fits"), [(1, 4), (2, 2), (4, 1), (5, 1)])
def test_an_operator_has_its_share_of_a_line(operators: int, fits: int) -> None:
    hall = shared_hall(operators, queue_per_resource=4)
    for name in "BCDE"[:fits]:
        hall.line(name, "repo:x0")
    assert hall.ask_for("F", "repo:x0", wait=True).text("error") == "queue_full"
    assert kind_of(hall.ask_for("F", "repo:x1", wait=True)) == "wait.queued", "another line has places of its own"
    assert kind_of(hall.ask_for("Z", "repo:x0", wait=True)) == ("lease.refused" if operators == 1 else "wait.queued")
    assert hall.audited() == []


def test_an_operator_that_is_gone_takes_no_share() -> None:
    hall = shared_hall(2, queue_total=2)
    hall.line("B", "repo:x0")
    assert hall.ask_for("B", "repo:x1", wait=True).text("error") == "queue_full"
    hall.say(remove_operator("op", "op2"))
    hall.line("B", "repo:x1")
    assert hall.audited() == []


def test_a_share_of_little_is_one_place_not_none() -> None:
    hall = shared_hall(4, queue_total=3)
    hall.line("B", "repo:x0")
    assert hall.ask_for("B", "repo:x1", wait=True).text("error") == "queue_full"
    hall.line("Z", "repo:x1")
    assert hall.audited() == []


def test_too_many_names_in_hand_are_refused_at_the_claim_and_the_offer_stays() -> None:
    hall, lease = held_hall(held_per_principal=2)
    ticket = hall.line("B", "repo:x")
    own = hall.hold("B", "repo:y", "repo:z")
    hall.free("A", lease)
    leaf = hall.claim("B", ticket)
    assert (kind_of(leaf), leaf.text("error")) == ("claim.refused", "too_many_held")
    hall.free("B", own)
    assert kind_of(hall.claim("B", ticket)) == "lease.claimed"
    assert hall.audited() == []


def test_in_a_dispute_nothing_is_taken_but_everybody_may_leave() -> None:
    hall, lease = held_hall()
    first, second = hall.line("B", "repo:x"), hall.line("C", "repo:x")
    hall.free("A", lease)
    hall.shelf.records[DISPUTE_KEY] = Dispute(1)
    assert hall.claim("B", first).text("error") == "ledger_disputed"
    assert hall.claim("C", second).text("error") == "ledger_disputed"
    assert hall.ask_for("D", "repo:x", wait=True).text("error") == "ledger_disputed"
    assert kind_of(hall.cancel("B", first)) == "wait.cancelled"


def test_an_error_leaves_no_ticket_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario L32: whatever a decision had put down goes with it."""
    hall, _ = held_hall()

    def failing(draft: Draft, *rest: Any) -> Any:
        queue(draft, *rest)
        raise RuntimeError("after the ticket was put")

    monkeypatch.setattr("gateway.core.lease.wait.queue", failing)
    assert hall.ask_for("B", "repo:x", wait=True).text("error") == "decision_failed"
    assert hall.tickets() == {} and counted(hall) == 0
    monkeypatch.undo()
    hall.line("B", "repo:x")
    assert counted(hall) == 1


def test_a_claim_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hall, lease = held_hall()
    ticket = hall.line("B", "repo:x")
    hall.free("A", lease)

    def failing(*arguments: Any) -> Any:
        decide_claim(*arguments)
        raise RuntimeError("after the lease was put")

    monkeypatch.setitem(books.DECIDERS, "wait.claim", failing)
    assert hall.claim("B", ticket).text("error") == "decision_failed"
    monkeypatch.undo()
    assert hall.offered() == [ticket] and hall.leases() == {}
    assert kind_of(hall.claim("B", ticket)) == "lease.claimed"


def test_a_ticket_is_still_there_after_a_restart() -> None:
    hall, lease = held_hall()
    ticket = hall.line("B", "repo:x")
    assert hall.head is not None
    hall.t_ms += 29_000
    hall.run(hall.t_ms, steps=start_steps("start", is_clean=True, before_ms=hall.head.time_ms), epoch=1)
    hall.later(28_000)
    assert hall.free("A", lease) == [("wait.offered", ticket)]
    assert kind_of(hall.claim("B", ticket)) == "lease.claimed"
    assert hall.audited() == []


def test_waiting_out_a_lock_delay_or_a_line_is_waiting_too() -> None:
    hall = Hall(lock_delay_ms=5_000)
    hall.hold("A", "repo:x", ttlMs=1_000)
    hall.later(1_000)
    assert hall.ask_for("B", "repo:x").text("error") == "lock_delayed"
    ticket = hall.line("B", "repo:x")
    second = hall.line("C", "repo:x")
    assert hall.later(5_000) == [("wait.offered", ticket)]
    assert hall.claim("C", second).number("position") == 2
    assert hall.t_ms == NOW_MS + 6_000 and hall.audited() == []
