"""Asks for approval among the waits: circles through them are told at once, and nobody is kept out by none."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.core.board import Board
from tests.core.requests import (
    Ask,
    acquire,
    cancel,
    claim,
    close,
    decline,
    did_of,
    give,
    plead,
    release,
    remove,
    withdraw,
)
from tests.core.test_deadlock import rows_of
from verifier.entries import Leaf


def in_short(made: Board, leaf: Leaf) -> list[tuple[str, str, str]]:
    """Who waits for which name, and by what: a token, a ticket ahead, or an ask."""
    kinds = ("fencingToken", "aheadId", "askId")
    return [
        (made.names[row["actor"]], row["resource"], next(kind for kind in kinds if kind in row))
        for row in rows_of(leaf)
    ]  # fmt: skip


def blocked(*members: str, **how: Any) -> tuple[Board, str]:
    """A holds x and asks X; return its ask."""
    made = Board()
    made.hold("A", "db:x")
    return made, made.plead("A", *(members or ("X",)), resource="db:x", **how)


@pytest.mark.parametrize("is_holder", [True, False], ids=["holds something", "holds nothing"])
@pytest.mark.parametrize("waits", [True, False], ids=["in line", "plainly"])
def test_who_has_to_approve_does_not_wait_for_who_asked(is_holder: bool, waits: bool) -> None:
    """Scenario 37: a holder that waits for a person, and the person for what it holds."""
    made, ask_id = blocked()
    if is_holder:
        made.hold("X", "repo:own")
    members: dict[str, Any] = {"wait": True} if waits else {}
    leaf = made.ask_for("X", "db:x", **members)
    assert leaf.text("error") == "deadlock"
    assert in_short(made, leaf) == [("X", "db:x", "fencingToken"), ("A", "db:x", "askId")]
    assert rows_of(leaf)[1]["askId"] == ask_id
    assert (leaf.text("waitingOn"), leaf.value["acquireOrder"]) == ("db:x", ["db:x"])


def test_nobody_asks_those_who_wait_for_what_they_hold() -> None:
    made = Board()
    made.hold("A", "db:x")
    made.hold("X", "repo:own")
    ticket_id = made.line("X", "db:x")
    leaf = made.asking("A", "X", resource="db:z")
    assert (leaf.type.split("/")[1], leaf.text("error")) == ("approval.refused", "deadlock")
    assert in_short(made, leaf) == [("A", "db:z", "askId"), ("X", "db:x", "fencingToken")]
    assert [row.get("askId", row.get("ticketId")) for row in rows_of(leaf)] == [f"A{leaf.seq}", ticket_id]
    assert (leaf.text("waitingOn"), leaf.value["acquireOrder"]) == ("db:x", ["db:x", "db:z"])
    assert made.pending(f"A{leaf.seq}") is None


def test_a_refused_acquire_keeps_nobody_from_asking() -> None:
    """Who was refused is not granted either way, as with those who stand in line."""
    made = Board()
    made.hold("A", "db:x")
    made.hold("X", "repo:own")
    assert made.ask_for("X", "db:x").text("error") == "lease_held"
    made.plead("A", "X")


def test_whoever_asks_and_holds_nothing_closes_nothing() -> None:
    made = Board()
    made.hold("B", "db:x")
    made.plead("A", "X")
    made.line("X", "db:x")
    made.plead("A", "X")


@pytest.mark.parametrize(
    ("of", "quorum", "is_needed"),
    [
        ("X", 1, True),
        ("XY", 1, False),
        ("XY", 2, True),
        ("XZ", 1, False),  # either may speak for op2
        ("XZY", 2, False),
        ("X3", 2, True),
        ("XY2", 2, False),  # op2 itself is left
    ],
)
def test_only_those_are_waited_for_without_whom_it_cannot_be(of: str, quorum: int, is_needed: bool) -> None:
    made, _ = blocked(*({"2": "op2", "3": "op3"}.get(one, one) for one in of), quorum=quorum)
    leaf = made.ask_for("X", "db:x", wait=True)
    assert (leaf.text("error") == "deadlock") is is_needed
    assert ("cycle" in leaf.value) is is_needed


@pytest.mark.parametrize(
    "end", ["given", "own word", "another's word", "withdrawn", "lapsed", "hopeless", "asker gone"]
)
def test_the_edges_of_an_ask_vanish(end: str) -> None:
    """Scenario 36: nothing stale keeps anybody from waiting."""
    quorum = 1 if end == "given" else 2
    made, ask_id = blocked(*("X" if quorum == 1 else "XYZ"), quorum=quorum, giveUpMs=5_000)
    if quorum == 2:
        assert made.tell(decline("Z", ask_id)) == "approval.declined"  # so X is needed
    made.hold("B", "repo:b")
    assert made.ask_for("X", "db:x", wait=True).text("error") == "deadlock"
    match end:
        case "given" | "own word":
            assert made.gives("X", ask_id) == "approval.given"
        case "another's word":
            assert made.gives("Y", ask_id) == "approval.given"
        case "withdrawn":
            assert made.withdraws("A", ask_id) == "approval.withdrawn"
        case "lapsed":
            made.t_ms += 5_000
        case "hopeless":
            assert made.declines("Y", ask_id) == "approval.declined"
        case _:
            assert made.tell(remove("op", "A")) == "agent.removed"
    is_still = end == "another's word"
    assert (made.ask_for("X", "db:x", wait=True).text("error") == "deadlock") is is_still


def test_two_who_ask_each_other() -> None:
    """Each would wait for the other's word: the second is told."""
    made = Board()
    made.plead("A", "X")
    leaf = made.asking("X", "A", resource="db:y")
    assert leaf.text("error") == "deadlock"
    assert in_short(made, leaf) == [("X", "db:y", "askId"), ("A", "db:x", "askId")]
    made.plead("X", "A", "B", "Y", resource="db:y", quorum=1)  # others may approve as well


def test_all_kinds_of_waits_are_in_one_graph() -> None:
    """Scenario 37: Y waits for A's word, X was refused what Y holds, A wants what X holds."""
    made = Board()
    for name, resource in (("A", "db:a"), ("X", "db:x"), ("Y", "db:y")):
        made.hold(name, resource)
    made.plead("Y", "A", resource="db:y")
    assert made.ask_for("X", "db:y").text("error") == "lease_held"
    leaf = made.ask_for("A", "db:x")
    assert leaf.text("error") == "deadlock"
    assert in_short(made, leaf) == [
        ("A", "db:x", "fencingToken"), ("X", "db:y", "fencingToken"), ("Y", "db:y", "askId"),
    ]  # fmt: skip
    assert leaf.value["acquireOrder"] == ["db:x", "db:y"]


def test_leases_are_looked_at_before_asks_and_asks_by_number() -> None:
    made = Board()
    for name, resource in (("A", "db:a"), ("X", "db:x"), ("Y", "db:y")):
        made.hold(name, resource)
    second = made.plead("X", "Y", resource="db:2")
    first = made.plead("X", "A", resource="db:1")
    leaf = made.ask_for("A", "db:x")
    assert [row.get("askId") for row in rows_of(leaf)] == [None, first]
    made.line("X", "db:a")
    leaf = made.ask_for("A", "db:x")
    assert [row.get("askId") for row in rows_of(leaf)] == [None, None]
    assert made.how(second) == "open"


def test_whoever_insists_waits_in_a_circle_through_an_ask() -> None:
    made, ask_id = blocked()
    leaf = made.ask_for("X", "db:x", wait=True, onDeadlock="wait")
    assert leaf.type.split("/")[1] == "wait.queued" and "softCycle" not in leaf.value
    assert rows_of(leaf)[1]["askId"] == ask_id


def test_a_place_ahead_of_somebody_needed_is_a_soft_circle() -> None:
    """X stands ahead of A for z, and waits for A's word on what it does; it may still let A pass."""
    made = Board()
    made.hold("A", "db:a")
    made.hold("X", "db:x")
    made.hold("B", "db:z")
    ahead = made.line("X", "db:z")
    made.plead("X", "A")
    leaf = made.ask_for("A", "db:z", wait=True)
    assert leaf.value.get("softCycle") is True
    assert [row.get("aheadId") for row in rows_of(leaf)] == [ahead, None]


def test_an_offer_goes_to_who_waits_for_a_word_of_those_behind() -> None:
    """An ask lapses without an entry, and those behind may still approve: so it does not pass anybody over."""
    made = Board()
    lease_id = made.hold("B", "db:z")
    made.hold("A", "db:a")
    first = made.line("A", "db:z")
    made.line("X", "db:z")
    made.plead("A", "X", "Y", quorum=2)
    assert made.free("B", lease_id) == [("wait.offered", first)]


# -- the core and the auditor, whatever comes

OBJECTS = ("db:x", "db:y", "repo:z")
NAMES = (*OBJECTS, "db:**")
MEN = ("A", "B", "X", "Y", "Z", "S1")


class Game:
    """Anybody does anything; each entry is judged again by the auditor when the test is over."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.made = Board(asks_per_principal=3, deadlock_nodes=self.dice.choice((3, 1_000)))
        self.made.open("S1", "A")
        self.told: Counter[str] = Counter()
        self.asks = ["A1"]

    def play(self, turns: int) -> None:
        for _ in range(turns):
            move = self.dice.choices(
                (self.acquire, self.line, self.release, self.plead, self.answer, self.wait), (3, 4, 1, 4, 2, 2)
            )[0]
            one = move()
            if one is not None:
                told = self.made.tell(one)
                last = self.made.leaf(len(self.made.leaves) - 1)
                if told == "approval.asked":
                    self.asks.append(last.text("askId"))
                is_ask = any("askId" in row for row in rows_of(last))
                self.told["deadlock by an ask" if is_ask else f"{one.action} {told}"] += 1

    def acquire(self) -> Ask:
        return acquire(self.man(), self.dice.choice(NAMES), ttlMs=self.dice.choice((5_000, 60_000)))

    def line(self) -> Ask | None:
        tickets = sorted(self.made.tickets())
        if tickets and self.dice.random() < 0.5:
            ticket = self.made.tickets()[self.dice.choice(tickets)]
            return self.dice.choice((claim, cancel))(self.made.names[ticket.actor], ticket.ticket_id)
        insists = self.dice.choice(("refuse", "wait"))
        return acquire(self.man(), self.dice.choice(NAMES), wait=True, onDeadlock=insists, ttlMs=60_000)

    def release(self) -> Ask | None:
        leases = sorted(self.made.leases().values())
        if not leases:
            return None
        lease = self.dice.choice(leases)
        return release(self.made.names[lease.holder], *lease.resources, leaseId=lease.lease_id)

    def plead(self) -> Ask:
        name = self.man()
        others = [one for one in ("A", "B", "X", "Y", "Z", "op2", "op3") if one != name]
        of = self.dice.sample(others, self.dice.randint(1, 3))
        quorum = self.dice.randint(1, min(2, len(of)))
        return plead(name, self.dice.choice(OBJECTS), of=of, quorum=quorum, giveUpMs=self.dice.choice((4_000, 60_000)))

    def answer(self) -> Ask:
        ask_id = self.dice.choice(self.asks[-6:])
        pending = self.made.pending(ask_id)
        if pending is None:
            return withdraw(self.man(), ask_id)
        dids = {did_of(name): name for name in ("A", "B", "X", "Y", "Z", "op2", "op3")}
        by = dids[self.dice.choice(pending.approvers)] if self.dice.random() < 0.9 else self.man()
        match self.dice.randrange(8):
            case 0 | 1:
                return decline(by, ask_id)
            case 2:
                return withdraw(self.made.names[pending.actor], ask_id)
        wrong = {"operation": "file.delete"} if self.dice.random() < 0.1 else {}
        return give(by, ask_id, self.made.word(by, ask_id, **wrong))

    def wait(self) -> Ask | None:
        self.made.later(self.dice.choice((0, 100, 1_000, 2_000)))
        return close("S1", "S1") if self.dice.random() < 0.02 else None

    def man(self) -> str:
        return self.dice.choice(MEN)


@pytest.mark.parametrize("seed", range(4))
def test_the_auditor_says_the_same_of_every_answer(seed: int) -> None:
    game = Game(seed)
    game.play(300)
    assert game.made.audited() == []
    assert game.told["deadlock by an ask"] >= 3, game.told
    assert game.told["approval.give approval.given"] >= 3, game.told
