"""Asking for approval: who may be asked, who answers how, when an ask is over, and what it does to leases and waits."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from gateway.core.dispute import disputed
from gateway.core.expiry import EXPIRIES_MAX
from gateway.core.intake import Rejection
from gateway.core.opening import start_steps
from gateway.core.waitview import look, wait_view
from tests.core.board import BOUND, Board
from tests.core.book import vkey_of
from tests.core.court import TEXT
from tests.core.crew import digest
from tests.core.requests import (
    ARGUMENTS,
    add,
    batch,
    close,
    decline,
    did_of,
    enrol,
    give,
    load_rules,
    plead,
    remove,
    remove_operator,
    renew,
    with_approvals,
    withdraw,
)
from tests.core.test_decide import NOTE
from verifier.checkpoint import parse_checkpoint
from verifier.entries import ASK_MEMORY_MS, ASKS_REMEMBERED

HOUR_MS = 3_600_000


def test_an_ask_says_what_exactly_is_to_be_approved() -> None:
    made = Board()
    leaf = made.asking("A", "X", "Y", quorum=2, cost=7, giveUpMs=5_000)
    own = {name: leaf.value[name] for name in ("operation", "resources", "mode", "argumentsDigest", "cost", "quorum")}
    assert own == {
        "operation": "file.write", "resources": ["db:x"], "mode": "write", "argumentsDigest": ARGUMENTS, "cost": 7,
        "quorum": 2,
    }  # fmt: skip
    assert leaf.value["approvers"] == sorted([did_of("X"), did_of("Y")])
    assert leaf.text("rulesDigest") == "0" * 64
    assert (leaf.text("askId"), leaf.number("giveUpByMs")) == (f"A{leaf.seq}", made.t_ms + 5_000)
    made.hold("A", "db:x")
    one = made.admission(cost=7)
    assert made.word("X", leaf.text("askId"))["statement"]["actionDigest"] == leaf.text("actionDigest")
    assert made.admits(one, made.word("X", leaf.text("askId"))) == "admission.allowed"


def test_what_is_given_is_used_by_who_asked() -> None:
    made = Board()
    made.hold("A", "db:x")
    ask_id = made.plead("A", "X", "Y", quorum=2)
    words = [made.word(by, ask_id) for by in ("X", "Y")]
    assert made.tell(give("X", ask_id, words[0])) == "approval.given"
    assert (made.how(ask_id), made.pending(ask_id).given) == ("open", (did_of("X"),))  # type: ignore[union-attr]
    assert made.tell(give("Y", ask_id, words[1])) == "approval.given"
    assert made.how(ask_id) == "given"
    assert made.tell(with_approvals(made.admission(), *words)) == "admission.allowed"


# -- who may be asked


@pytest.mark.parametrize("of", [["B"], ["op"], ["stranger"], ["X", "B"], ["enroller"], ["A", "X"]])
def test_nobody_unfit_is_asked(of: list[str]) -> None:
    made = Board()
    assert made.refuses(plead("A", "db:x", of=of)) == "approver_unfit"


def test_neither_a_session_nor_a_trial_nor_what_the_gateway_keeps_is_asked() -> None:
    made = Board()
    made.open("S1", "X")
    made.key("live", "live", by="op2")
    made.key("trial", "trial", by="op2")
    assert made.tell(enrol("C", digest("live"), agentCustody="gateway")) == "agent.added"
    assert made.tell(enrol("T", digest("trial"))) == "agent.added"
    assert {made.refuses(plead("A", "db:x", of=[one])) for one in ("S1", "C", "T")} == {"approver_unfit"}


def test_a_quorum_that_too_few_operators_can_make_is_refused() -> None:
    made = Board()
    assert made.refuses(plead("A", "db:x", of=["X", "Z", "op2"], quorum=2)) == "approver_unfit"
    made.plead("A", "X", "Z", "Y", quorum=2)


def test_only_what_could_be_admitted_is_asked_for() -> None:
    made = Board()
    made.open("S1", "A", verbs=["lease"])
    made.open("S2", "A", verbs=["admit"], resources=["repo:app/**"])
    assert made.refuses(plead("S1", "db:x", of=["X"])) == "outside_scope"
    assert made.refuses(plead("S2", "db:x", of=["X"])) == "outside_scope"
    made.plead("S2", "X", resource="repo:app/a")
    assert made.refuses(plead("A", "repo:ä", of=["X"])) == "name_not_allowed"


def test_a_principal_waits_for_so_many_approvals_with_all_its_sessions() -> None:
    made = Board(asks_per_principal=3)
    made.open("S1", "A")
    asks = [made.plead("A", "X", giveUpMs=1_000), made.plead("S1", "X"), made.plead("S1", "X")]
    assert made.refuses(plead("A", "db:x", of=["X"])) == made.refuses(plead("S1", "db:x", of=["X"])) == "too_many_asked"
    made.plead("B", "X")
    assert made.withdraws("S1", asks[1]) == "approval.withdrawn"
    made.plead("A", "X")
    assert made.refuses(plead("A", "db:x", of=["X"])) == "too_many_asked"
    made.t_ms += 1_000  # the first has lapsed
    made.plead("A", "X")


def test_asking_and_withdrawing_in_turn_does_not_fill_the_memory() -> None:
    made = Board(asks_per_principal=1)
    for _ in range(ASKS_REMEMBERED):
        assert made.withdraws("A", made.plead("A", "X")) == "approval.withdrawn"
    assert made.refuses(plead("A", "db:x", of=["X"])) == "too_many_asked"
    made.t_ms += ASK_MEMORY_MS
    made.plead("A", "X")


# -- who answers how


@pytest.mark.parametrize("changes", BOUND.values(), ids=BOUND)
def test_what_is_given_has_to_be_what_was_asked_for(changes: dict[str, Any]) -> None:
    made = Board()
    ask_id = made.plead("A", "X")
    assert made.refuses(give("X", ask_id, made.word("X", ask_id, **changes))) == "approval_wrong"
    assert made.gives("X", ask_id) == "approval.given"


def test_nobody_gives_the_word_of_another() -> None:
    made = Board()
    ask_id = made.plead("A", "X", "Y")
    assert made.refuses(give("X", ask_id, made.word("Y", ask_id))) == "approval_wrong"


def test_what_does_not_hold_now_or_was_used_is_not_given() -> None:
    made = Board()
    made.hold("A", "db:x")
    ask_id = made.plead("A", "X", "Y", quorum=2)
    for changes in ({"expiresAtMs": made.t_ms}, {"notBeforeMs": made.t_ms + 1}):
        assert made.refuses(give("X", ask_id, made.word("X", ask_id, **changes))) == "approval_expired"
    word = made.word("X", ask_id)
    assert made.admits(made.admission(), word) == "admission.allowed"  # who has it need not wait for the ask
    assert made.refuses(give("X", ask_id, word)) == "approval_used"


def test_only_who_was_asked_answers_and_only_who_asked_withdraws() -> None:
    made = Board()
    made.open("S1", "A")
    ask_id = made.plead("S1", "X")
    word = made.word("X", ask_id)
    for name in ("Y", "op2", "B", "A"):
        assert made.refuses(give(name, ask_id, word)) == "ask_not_yours"
        assert made.refuses(decline(name, ask_id)) == "ask_not_yours"
    for name in ("X", "A", "B"):
        assert made.refuses(withdraw(name, ask_id)) == "ask_not_yours"
    assert made.refuses(give("X", "A1", word)) == made.refuses(withdraw("A", "A1")) == "ask_unknown"


def test_no_session_answers() -> None:
    """An approval is somebody's own word, so nobody lends it."""
    made = Board()
    made.open("S1", "X")
    ask_id = made.plead("A", "X")
    assert made.refuses(give("S1", ask_id, made.word("X", ask_id))) == "outside_scope"
    assert made.refuses(decline("S1", ask_id)) == "outside_scope"


def test_an_operator_answers_with_its_own_key() -> None:
    made = Board()
    ask_id = made.plead("A", "op2", "op3", quorum=2)
    assert made.gives("op2", ask_id) == "approval.given"
    assert made.declines("op3", ask_id, reason="not-today") == "approval.declined"
    assert made.how(ask_id) == "declined"


def test_everybody_answers_once() -> None:
    made = Board()
    ask_id = made.plead("A", "X", "Y", "op3", quorum=2)
    assert made.declines("Y", ask_id) == "approval.declined"
    assert made.refuses(decline("Y", ask_id)) == "approver_unfit"
    assert made.refuses(give("Y", ask_id, made.word("Y", ask_id))) == "approver_unfit"
    assert made.gives("X", ask_id) == "approval.given"
    assert made.refuses(give("X", ask_id, made.word("X", ask_id))) == "approver_unfit"
    assert made.refuses(decline("X", ask_id)) == "approver_unfit"


def test_of_one_operator_one_gives() -> None:
    made = Board()
    ask_id = made.plead("A", "X", "Z", "Y", quorum=2)
    assert made.gives("X", ask_id) == "approval.given"
    assert made.refuses(give("Z", ask_id, made.word("Z", ask_id))) == "approver_unfit"
    assert made.declines("Z", ask_id) == "approval.declined"
    assert made.how(ask_id) == "open"
    assert made.gives("Y", ask_id) == "approval.given"
    assert made.how(ask_id) == "given"


# -- when it is over


def test_a_decline_that_leaves_too_few_ends_the_ask() -> None:
    made = Board()
    ask_id = made.plead("A", "X", "Z", "Y", quorum=2)
    assert made.declines("X", ask_id) == "approval.declined"  # Z may still speak for op2
    assert made.how(ask_id) == "open"
    assert made.declines("Z", ask_id) == "approval.declined"
    assert made.how(ask_id) == "declined"
    leaf = made.say(give("Y", ask_id, made.word("Y", ask_id)))
    assert (leaf.text("error"), leaf.number("endedSeq")) == ("ask_ended", leaf.seq - 1)


@pytest.mark.parametrize("end", ["given", "withdrawn"])
def test_what_has_ended_is_told_with_the_entry_that_did(end: str) -> None:
    made = Board()
    ask_id = made.plead("A", "X", "Y")
    assert made.gives("X", ask_id) == "approval.given" if end == "given" else made.withdraws("A", ask_id)
    ended_seq = len(made.leaves) - 1
    assert made.how(ask_id) == end
    for one in (give("Y", ask_id, made.word("Y", ask_id)), decline("Y", ask_id), withdraw("A", ask_id)):
        leaf = made.say(one)
        assert (leaf.text("error"), leaf.number("endedSeq")) == ("ask_ended", ended_seq)
    made.t_ms += ASK_MEMORY_MS
    assert made.refuses(decline("Y", ask_id)) == "ask_unknown"


def test_an_ask_lapses_at_its_time_without_an_entry() -> None:
    made = Board()
    ask_id = made.plead("A", "X", giveUpMs=5_000)
    made.t_ms += 4_999
    assert made.how(ask_id) == "open"
    made.t_ms += 1
    assert made.later(0) == [] and made.how(ask_id) == "lapsed"
    leaf = made.say(give("X", ask_id, made.word("X", ask_id)))
    assert leaf.text("error") == "ask_ended" and "endedSeq" not in leaf.value
    made.t_ms += ASK_MEMORY_MS
    assert made.refuses(withdraw("A", ask_id)) == "ask_unknown"


def test_no_holiday_moves_an_ask() -> None:
    made = Board()
    ask_id = made.plead("A", "X", giveUpMs=5_000)
    before_ms, made.t_ms = made.t_ms, made.t_ms + 5_000
    made.run(made.t_ms, steps=start_steps("start", is_clean=False, before_ms=before_ms), epoch=1)
    assert made.how(ask_id) == "lapsed"
    assert made.refuses(give("X", ask_id, made.word("X", ask_id))) == "ask_ended"


@pytest.mark.parametrize("how", ["agent", "operator", "session closed", "session idle", "agent of the session"])
def test_an_ask_ends_with_who_asked(how: str) -> None:
    """By the entry that ends its asker; there is none of its own."""
    made = Board()
    made.open("S1", "A")
    name = "S1" if "session" in how else "X" if how == "operator" else "A"
    ask_id = made.plead(name, "op3" if name == "X" else "Y")
    mark = len(made.leaves)
    match how:
        case "agent" | "agent of the session":
            made.say(remove("op", "A"))
        case "operator":
            made.say(remove_operator("op", "op2"))
        case "session closed":
            made.say(close("S1", "S1"))
        case _:
            made.later(120_000)
    pending = made.pending(ask_id)
    assert pending is not None and pending.how == "dismissed"
    ending = {"agent": "agent.removed", "operator": "operator.removed", "session closed": "session.closed"}
    assert made.types(mark)[(pending.ended_seq or 0) - mark] == ending.get(how, "session.ended")
    by = "op3" if name == "X" else "Y"
    leaf = made.say(give(by, ask_id, made.word(by, ask_id)))
    assert (leaf.text("error"), leaf.number("endedSeq")) == ("ask_ended", pending.ended_seq)


def test_an_approver_who_went_over_does_not_give() -> None:
    made = Board()
    ask_id = made.plead("A", "X", "Y")
    made.say(remove("op2", "X"))
    assert made.tell(give("X", ask_id, made.word("X", ask_id))) == "agent_removed"
    assert made.tell(add("op3", "X")) == "agent.added"
    assert made.refuses(give("X", ask_id, made.word("X", ask_id))) == "approver_unfit"
    assert made.gives("Y", ask_id) == "approval.given"


def test_new_rules_leave_an_ask_but_what_is_given_is_worth_nothing() -> None:
    made = Board()
    made.hold("A", "db:x")
    ask_id = made.plead("A", "X")
    assert made.tell(load_rules("op", TEXT, 1)) == "rules.loaded"
    word = made.word("X", ask_id)
    assert made.tell(give("X", ask_id, word)) == "approval.given"
    assert made.admits(made.admission(), word) == "approval_wrong"
    assert made.asking("A", "X").text("rulesDigest") == hashlib.sha256(TEXT.encode()).hexdigest()


# -- leases and waits


def test_an_approval_that_takes_longer_than_a_lease_does_not_cost_it() -> None:
    """Scenario 9: the holder waits for a person, and heartbeats keep what it holds."""
    made = Board()
    lease_id = made.hold("A", "db:x", ttlMs=10_000)
    ask_id = made.plead("A", "X")
    for _ in range(12):
        made.later(5_000)
        assert made.tell(renew("A", lease_id, ttlMs=10_000)) == "lease.renewed"
    word = made.word("X", ask_id)
    assert made.tell(give("X", ask_id, word)) == "approval.given"
    assert made.admits(made.admission(), word) == "admission.allowed"


def test_an_ask_itself_keeps_no_lease() -> None:
    made = Board()
    made.hold("A", "db:x", ttlMs=10_000)
    ask_id = made.plead("A", "X")
    assert [kind for kind, _ in made.later(10_000)] == ["lease.expired"]
    assert made.how(ask_id) == "open"
    made.hold("B", "db:x")


def test_no_command_of_a_batch_asks() -> None:
    made = Board()
    with pytest.raises(Rejection, match="member_invalid"):
        made.say(batch("A", plead("A", "db:x", of=["X"])))


def test_an_ask_of_nobody_who_waits_is_no_circle() -> None:
    made = Board()
    made.hold("A", "repo:x")
    made.hold("X", "repo:y")
    made.line("A", "repo:y")
    made.plead("A", "X")


def test_in_a_dispute_nothing_is_asked_but_answers_are_taken() -> None:
    made = Board()
    ask_id = made.plead("A", "X", "Y", quorum=2)
    made.run(made.t_ms, steps=[disputed(NOTE, parse_checkpoint(NOTE), [vkey_of("log", "log")])])
    assert made.refuses(plead("A", "db:x", of=["X"])) == "ledger_disputed"
    assert made.gives("X", ask_id) == "approval.given"
    assert made.declines("Y", ask_id) == "approval.declined"


# -- the picture of waits


def picture(made: Board, resource: str | None = None) -> dict[str, Any]:
    return wait_view(look(made.shelf, made.t_ms, made.parameters), resource)


def test_who_waits_for_whose_word_is_seen() -> None:
    made = Board()
    made.open("S1", "A", label="night")
    ask_id = made.plead("S1", "X", "Z", "Y", quorum=2, giveUpMs=5_000)
    other = made.plead("B", "X", resource="repo:b/c")
    assert made.declines("X", ask_id) == "approval.declined"
    shown = picture(made)
    assert [row["askId"] for row in shown["approvals"]] == [ask_id, other]
    assert shown["approvals"][0] == {
        "askId": ask_id, "actor": did_of("S1"), "actorName": "night", "principal": did_of("A"),
        "operation": "file.write", "resources": ["db:x"], "mode": "write",
        "approvers": sorted(map(did_of, "XYZ")), "quorum": 2, "given": [], "declined": [did_of("X")],
        "waitsFor": sorted(map(did_of, "YZ")), "askedAtMs": made.t_ms, "giveUpByMs": made.t_ms + 5_000,
    }  # fmt: skip
    assert shown["counts"]["asked"] == 2 and not shown["isTruncated"]
    assert [row["askId"] for row in picture(made, "repo:**")["approvals"]] == [other]
    made.t_ms += 5_000  # lapsed, without an entry
    assert [row["askId"] for row in picture(made)["approvals"]] == [other]
    assert made.gives("X", other) == "approval.given"
    assert picture(made)["approvals"] == [] and picture(made)["counts"]["asked"] == 0


def test_what_a_session_asked_whose_time_has_come_is_not_shown() -> None:
    made = Board()
    made.open("S1", "A")
    made.plead("S1", "X")
    made.t_ms += 120_000
    assert picture(made)["approvals"] == []


def test_a_pair_that_waits_for_each_other_through_an_ask_is_shown() -> None:
    """X holds nothing, and stands in line for what A holds; A needs its word."""
    made = Board()
    made.hold("A", "db:x")
    made.plead("A", "X", resource="db:q")
    leaf = made.ask_for("X", "db:x", wait=True, onDeadlock="wait")
    assert leaf.type.split("/")[1] == "wait.queued"
    assert picture(made)["deadlocks"] == [
        {"actors": sorted([did_of("A"), did_of("X")]), "resources": ["db:q", "db:x"]}
    ]  # fmt: skip


def test_a_sessions_end_comes_before_the_answer_to_what_it_asked() -> None:
    """What is due and touched ends first, though the sweep is behind: here by so many leases that end at once."""
    made = Board()
    made.open("S1", "A")
    ask_id = made.plead("S1", "X")
    for n in range(EXPIRIES_MAX + 1):
        made.hold("B", f"repo:{n}", ttlMs=60_000)
    made.t_ms += 120_000
    made.run(made.t_ms, made.now(give("X", ask_id, made.word("X", ask_id))))
    kinds = made.types()
    assert kinds.count("session.ended") == 1
    last = made.leaf(len(made.leaves) - 1)
    assert (last.text("error"), last.number("endedSeq")) == ("ask_ended", kinds.index("session.ended"))
