"""The pictures of usage, approvals and rules: what the next admission would meet, and nothing that is over."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.admissionview import ROWS_MAX, ask_view, asks_view, rules_view, usage_view, usages_view
from gateway.core.record_keys import ask_key, usage_key
from gateway.core.records import Pending, Usage
from tests.core.board import Board
from tests.core.book import Shelf
from tests.core.court import TEXT
from tests.core.requests import did_of, load_rules
from verifier.entries import ASK_MEMORY_MS

A, B, X, Y = map(did_of, "ABXY")
HOUR_MS = 3_600_000


def rows(view: Any, member: str = "approvals") -> list[Any]:
    found = view[member]
    assert isinstance(found, list)
    return found


def counts(board: Board, did: str) -> list[int]:
    agent = rows(usage_view(board.shelf, did, board.t_ms), "usage")[0]
    return [agent[name] for name in ("countMinute", "countDay", "costDay", "count", "cost", "denied")]


def test_usage_is_counted_in_the_windows_of_the_moment() -> None:
    board = Board()
    board.t_ms += 86_400_000 - board.t_ms % 86_400_000
    board.hold("A", "app:x", ttlMs=HOUR_MS)
    assert board.admits(board.admission("A", "app:x", cost=7)) == "admission.allowed"
    assert board.admits(board.admission("A", "app:x", lease=None)) == "lease_required"
    assert counts(board, A) == [1, 1, 7, 1, 7, 1]
    board.t_ms += 59_000
    assert counts(board, A)[:2] == [1, 1]
    board.t_ms += 1_000
    assert counts(board, A) == [0, 1, 7, 1, 7, 1]
    board.t_ms += 86_400_000
    assert counts(board, A) == [0, 0, 0, 1, 7, 1]
    assert counts(board, B) == [0] * 6
    found = rows(usages_view(board.shelf, board.t_ms), "usage")
    named = {(row["of"], row.get("did", row.get("scheme"))): row for row in found}
    assert set(named) == {("agent", A), ("operator", did_of("op")), ("scheme", "app")}
    assert named["scheme", "app"] == {"of": "scheme", "scheme": "app", "countMinute": 0, "countDay": 0, "costDay": 0}


def test_a_request_is_seen_by_asker_and_approvers_until_it_is_answered() -> None:
    board = Board()
    one, other = board.plead("A", "X", "Y", cost=3), board.plead("B", "Y", resource="db:y")

    def seen(**whose: str) -> list[str]:
        return [row["askId"] for row in rows(asks_view(board.shelf, board.t_ms, **whose))]

    assert (seen(), seen(of=A), seen(of=B), seen(by=X), seen(by=Y)) == (
        [one, other], [one], [other], [one], [one, other],
    )  # fmt: skip
    assert board.gives("X", one) == "approval.given"
    assert (seen(), seen(by=X), seen(by=Y)) == ([one, other], [], [other]), "one of the two is enough"
    assert board.declines("Y", other) == "approval.declined"
    assert (seen(by=Y), seen()) == ([], [one, other])
    (row,) = rows(ask_view(board.shelf, one, board.t_ms))
    seq = int(one[1:])
    assert row == {
        "askId": one, "seq": seq, "state": "given", "actor": A, "operation": "file.write", "resources": ["db:x"],
        "mode": "write", "argumentsDigest": row["argumentsDigest"], "cost": 3, "rulesDigest": "0" * 64,
        "actionDigest": board.leaf(seq).text("actionDigest"), "approvers": sorted([X, Y]), "quorum": 1,
        "given": [{"approver": X, "seq": row["endedSeq"]}], "declined": [], "endedSeq": row["endedSeq"],
        "askedAtMs": board.leaf(seq).time_ms, "giveUpByMs": board.leaf(seq).time_ms + HOUR_MS,
    }  # fmt: skip


def test_who_has_said_one_of_two_yeses_is_not_asked_again() -> None:
    board = Board()
    one = board.plead("A", "X", "Y", quorum=2)
    assert board.gives("X", one) == "approval.given"
    assert rows(asks_view(board.shelf, board.t_ms, by=X)) == []
    (row,) = rows(asks_view(board.shelf, board.t_ms, by=Y))
    assert (row["state"], [given["approver"] for given in row["given"]]) == ("open", [X])


def test_what_lapsed_is_told_as_such_and_forgotten_when_the_core_forgets_it() -> None:
    board = Board()
    one = board.plead("A", "X", giveUpMs=1_000)

    def state() -> list[str]:
        return [row["state"] for row in rows(ask_view(board.shelf, one, board.t_ms))]

    board.t_ms += 999 - (board.t_ms - board.leaf(int(one[1:])).time_ms)
    assert state() == ["open"]
    board.t_ms += 1
    assert (state(), rows(asks_view(board.shelf, board.t_ms, by=X))) == (["lapsed"], [])
    board.t_ms += ASK_MEMORY_MS
    assert (state(), rows(asks_view(board.shelf, board.t_ms))) == ([], [])


def test_the_rules_in_force_are_shown_with_their_text_and_entry() -> None:
    board = Board()
    assert rules_view(board.shelf, board.t_ms)["rules"] is None
    leaf = board.say(load_rules("op", TEXT, 1, mode="shadow"))
    found: Any = rules_view(board.shelf, board.t_ms)["rules"]
    assert (found["version"], found["mode"], found["seq"], found["text"]) == (1, "shadow", leaf.seq, TEXT)
    assert found["digest"] == leaf.text("digest")


@pytest.mark.parametrize("count", [ROWS_MAX, ROWS_MAX + 1])
def test_a_picture_is_bounded_and_says_what_it_leaves_out(count: int) -> None:
    shelf = Shelf()
    for n in range(count):
        ask = Pending(
            f"A{n + 1}", A, A, did_of("op"), "x", ("db:x",), "write", "0" * 64, 0, "0" * 64, "0" * 64, (X,),
            (did_of("op2"),), 1, n + 1, 0, HOUR_MS,
        )  # fmt: skip
        shelf.records[ask_key(ask.ask_id)] = ask
        shelf.records[usage_key("scheme", f"s{n}")] = Usage(0, 0, 0, 0, 0, 1, 0, 0)
    for view, member in ((asks_view(shelf, 1), "approvals"), (usages_view(shelf, 1), "usage")):
        assert len(rows(view, member)) == ROWS_MAX
        assert view.get("isTruncated", False) is (count > ROWS_MAX)
    assert rows(asks_view(shelf, 1))[-1]["askId"] == f"A{count}", "the newest stay"
