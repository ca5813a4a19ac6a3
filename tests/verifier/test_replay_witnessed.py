"""Two cosignatures bracket in time what was written between them, and a ledger's own records of them are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.verifier import maker
from tests.verifier.judging import audit, pins
from tests.verifier.maker import ALICE, LOG, NEW_LOG, ORIGIN, STRANGER, T0, WITNESSES, Ledger, b64
from verifier.keyring import Keyring
from verifier.replay import witnessed as module
from verifier.replay.witnessed import Witnessed
from verifier.verdict import Report

FIRST = 5  # the first free seq; T0 + 1,010 is the time of the entry before


def note(
    ledger: Ledger, times_s: dict[str, int], size: int | None = None, logs: Sequence[maker.Key] = (LOG,), **over: Any
) -> bytes:
    """A checkpoint that each of these witnesses cosigned at its time."""
    count = len(ledger.leaves) if size is None else size
    text = f"{over.get('origin', ORIGIN)}\n{count}\n{b64(over.get('root', ledger.root(count)))}\n"
    lines = [log.note_line(ORIGIN, text) for log in logs]
    lines += [WITNESSES[name].cosignature(name, text, time_s) for name, time_s in times_s.items()]
    return f"{text}\n{''.join(lines)}".encode()


def record(ledger: Ledger, times_s: dict[str, int] | None = None, size: int | None = None, **over: Any) -> int:
    """A `checkpoint.witnessed`; by default what stands before was cosigned right now."""
    now_s = ledger.time_ms // 1000
    shown = over.pop("note", None) or note(ledger, times_s or {"w1": now_s, "w2": now_s}, size, **over)
    _, count, root, *_ = shown.decode().split("\n")
    members = {"checkpoint": shown.decode(), "size": int(count), "root": root, **over.get("members", {})}
    return ledger.entry("checkpoint.witnessed", "gateway", members)


def judged(ledger: Ledger, keyring: Keyring | None = None) -> Report:
    return audit(ledger.export(), keyring or pins(ledger))


def found(ledger: Ledger, keyring: Keyring | None = None) -> list[tuple[int | None, str]]:
    return [(f.seq, f.code) for f in judged(ledger, keyring).findings if f.outcome]


def unwitnessed(ledger: Ledger, keyring: Keyring | None = None) -> list[tuple[int | None, str]]:
    """Seq of the record, or of none at the end, and which entries were waiting."""
    said = [f for f in judged(ledger, keyring).findings if f.code == "unwitnessed"]
    assert all(not f.outcome for f in said), "a remark"
    return [(f.seq, f.text.partition(" were")[0].removeprefix("entries ")) for f in said]


def busy(ledger: Ledger, count: int, step_ms: int = 1_000) -> None:
    for number in range(count):
        ledger.time_ms += step_ms
        ledger.release(ALICE, ledger.grant(ALICE, f"lock:{len(ledger.leaves)}/{number}"))


def test_honest_records_are_no_news() -> None:
    ledger = maker.opened()
    for _ in range(4):
        busy(ledger, 5, 500)
        record(ledger)
        ledger.time_ms += 200
    assert found(ledger) == []
    assert unwitnessed(ledger) == []


RECORDS: list[tuple[str, Callable[[Ledger], Any], str]] = [
    ("another root", lambda it: record(it, root=bytes(32)), "record_wrong"),
    ("another origin", lambda it: record(it, origin="gateway.example/other"), "record_wrong"),
    ("members of another tree", lambda it: record(it, members={"size": 3}), "record_wrong"),
    ("a root beside the checkpoint", lambda it: record(it, members={"root": b64(bytes(32))}), "record_wrong"),
    ("no checkpoint", lambda it: record(it, note=note(it, {"w1": 1}).replace(b"\n\n", b"\nx\n\n\n")), "record_wrong"),
    ("signed by a stranger", lambda it: record(it, logs=(STRANGER,)), "log_line_missing"),
    ("signed by nobody of the ledger", lambda it: record(it, logs=()), "log_line_missing"),
    ("signed twice", lambda it: record(it, logs=(LOG, LOG)), "log_line_missing"),
]


@pytest.mark.parametrize(("tell", "wanted"), [row[1:] for row in RECORDS], ids=[row[0] for row in RECORDS])
def test_a_record_is_of_this_ledger(tell: Callable[[Ledger], Any], wanted: str) -> None:
    ledger = maker.opened()
    tell(ledger)
    assert found(ledger)[0] == (FIRST, wanted)


def test_a_record_bears_the_line_of_every_log_key_in_force() -> None:
    for logs, wanted in (((LOG, NEW_LOG), []), ((LOG,), ["log_line_missing"]), ((NEW_LOG,), ["log_line_missing"])):
        ledger = maker.opened()
        record(ledger)
        ledger.announce("log", NEW_LOG)
        record(ledger, size=6)  # the last size that the old one signs alone
        record(ledger, size=7, logs=logs)
        assert [code for seq, code in found(ledger) if seq is not None] == wanted
        assert found(ledger)[-1] == (None, "log_line_missing"), "the ledger's own has the line of the older alone"


# --- times: two of three witnesses are the quorum ---

S = T0 // 1000  # the last entry of `opened` was written in the second after this
TIMES: list[tuple[str, dict[str, int], list[str]]] = [
    ("both now", {"w1": S + 1, "w2": S + 1}, []),
    ("at the edge", {"w1": S - 4, "w2": S - 4}, []),
    ("both too early", {"w1": S - 5, "w2": S - 5}, ["later_than_cosignature"]),
    ("one clock that is slow convicts nobody", {"w1": S - 900, "w2": S + 1}, []),
    ("two that are slow do", {"w1": S - 900, "w2": S - 800, "w3": S + 1}, ["later_than_cosignature"]),
    ("no quorum", {"w1": S - 900}, []),
    ("one clock that is fast convicts nobody", {"w1": S + 900, "w2": S + 1}, []),
    ("both at the other edge", {"w1": S + 32, "w2": S + 32}, []),
    ("both too late", {"w1": S + 33, "w2": S + 33}, ["earlier_than_cosignature"]),
    ("two that are fast do", {"w1": S + 900, "w2": S + 800, "w3": S + 1}, ["earlier_than_cosignature"]),
]


@pytest.mark.parametrize(("times_s", "wanted"), [row[1:] for row in TIMES], ids=[row[0] for row in TIMES])
def test_entries_fit_the_times_at_which_a_quorum_cosigned(times_s: dict[str, int], wanted: list[str]) -> None:
    """The entry below the size is of S + 1.010 s, the one after the record of S + 2.010 s."""
    ledger = maker.opened()
    record(ledger, times_s)
    ledger.time_ms += 1_000
    ledger.grant(ALICE, "lock:a")
    seqs = {"later_than_cosignature": FIRST, "earlier_than_cosignature": FIRST + 1}
    assert found(ledger) == [(seqs[code], code) for code in wanted]
    assert found(ledger, pins(ledger, None)) == [], "without a quorum no time counts"


def test_a_later_record_does_not_take_back_what_an_earlier_one_said() -> None:
    ledger = maker.opened()
    record(ledger, {"w1": S + 100, "w2": S + 100})
    ledger.grant(ALICE, "lock:a")
    record(ledger, {"w1": S + 1, "w2": S + 1})
    ledger.grant(ALICE, "lock:b")
    assert found(ledger) == [(FIRST + 1, "earlier_than_cosignature"), (FIRST + 3, "earlier_than_cosignature")]


def test_a_forged_cosignature_is_found_and_says_no_time() -> None:
    ledger = maker.opened()
    good = note(ledger, {"w1": S + 1})
    forged = WITNESSES["w2"].cosignature("w2", "another text\n", S - 900)
    record(ledger, note=good + forged.encode())
    assert found(ledger) == [(FIRST, "witness_invalid")]


# --- how long entries wait ---


def test_entries_that_wait_longer_than_the_published_bound_are_named() -> None:
    ledger = maker.opened()
    record(ledger)  # 5
    busy(ledger, 13, 5_000)  # 6 to 31, 65 s
    record(ledger)  # 32, 60 s after the first of them
    assert unwitnessed(ledger) == []
    ledger.time_ms += 5_000
    busy(ledger, 1, 0)  # 33, 34
    ledger.time_ms += 60_001
    record(ledger)  # 35
    assert unwitnessed(ledger) == [(35, "33 to 34")]


def test_entries_at_the_end_that_were_never_witnessed_are_named_where_the_operator_has_witnesses() -> None:
    ledger = maker.opened()
    busy(ledger, 14, 5_000)
    assert unwitnessed(ledger) == [], "perhaps there are none"
    record(ledger, size=6)
    assert unwitnessed(ledger)[-1] == (None, "6 to 33")


def test_a_ledger_that_rests_waits_for_nothing() -> None:
    """The record itself is below no checkpoint until something else happens, however long that takes."""
    ledger = maker.opened()
    record(ledger)
    ledger.time_ms += 3_600_000
    busy(ledger, 1)
    record(ledger)
    ledger.time_ms += 3_600_000
    record(ledger)
    assert unwitnessed(ledger) == []


def test_a_record_that_no_quorum_of_the_reader_s_signed_covers_nothing() -> None:
    ledger = maker.opened()
    record(ledger)
    busy(ledger, 10)
    record(ledger, {"w1": S + 11})
    busy(ledger, 62)
    record(ledger)
    assert [text.partition(" ")[0] for _, text in unwitnessed(ledger)] == ["6"]
    assert [text.partition(" ")[0] for _, text in unwitnessed(ledger, pins(ledger, None))] == ["27"]


def test_only_so_many_times_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMES_MAX", 4)
    ledger = maker.opened()
    kept = Witnessed()
    for seq in range(10):
        leaf = module_leaf(ledger, seq)
        assert list(kept.faults(leaf, is_record=seq == 8)) == []
    assert [kept.time_ms(seq) for seq in range(4, 11)] == [None, None, T0 + 6, T0 + 7, T0 + 8, T0 + 9, None]
    assert kept.waiting == (0, T0), "the first that waits is not forgotten"
    kept.cover(8)
    assert kept.waiting == (9, T0 + 9), "the record of 8 does not wait"
    kept.cover(3)
    assert (kept.size, kept.waiting) == (8, (9, T0 + 9)), "a smaller tree uncovers nothing"
    kept.cover(10)
    assert kept.waiting is None


def module_leaf(ledger: Ledger, seq: int) -> Any:
    """A leaf of which only seq and time matter."""
    from verifier.entries import parse_leaf

    return parse_leaf(ledger.leaves[0])._replace(seq=seq, time_ms=T0 + seq)
