"""One verdict from many findings: precedence, exit codes, and the first failing step."""

from __future__ import annotations

import json

import pytest

from verifier.verdict import VERDICTS, Finding, Outcome, Report, escape, unreadable


def report(*outcomes: Outcome, level: str = "included", requested: str = "included") -> Report:
    findings = tuple(Finding(step, f"code_{step}", outcome, "text") for step, outcome in enumerate(outcomes, 1))
    return Report("receipt", findings, requested, level)


V, D, I, S = Outcome.VALID, Outcome.INDETERMINATE, Outcome.INVALID, Outcome.SPLIT  # noqa: E741
PRECEDENCE = [  # findings of steps 1, 2, …; the exit code; the step that decides
    ((), 0, None),
    ((V, V), 0, None),
    ((V, D), 3, 2),
    ((D, I, I), 1, 2),
    ((I, D, S), 4, 3),
    ((S, I, Outcome.UNREADABLE), 4, 1),
    ((Outcome.UNREADABLE, I), 2, 1),
]


@pytest.mark.parametrize(("outcomes", "code", "step"), PRECEDENCE)
def test_the_gravest_finding_decides_and_the_first_of_them_is_named(
    outcomes: tuple[Outcome, ...], code: int, step: int | None
) -> None:
    judged = report(*outcomes)
    failed = judged.failed
    assert (judged.exit_code, None if failed is None else failed.step) == (code, step)


@pytest.mark.parametrize(
    ("level", "requested", "code"),
    [
        ("none", "none", 0),
        ("none", "signed", 3),
        ("signed", "signed", 0),
        ("signed", "included", 3),
        ("included", "witnessed", 3),
        ("witnessed 1/1", "witnessed", 0),
        ("witnessed 2/3", "signed", 0),
    ],
)
def test_a_valid_receipt_below_the_requested_level_is_exit_3(level: str, requested: str, code: int) -> None:
    assert report(V, level=level, requested=requested).exit_code == code


def test_in_a_ledger_the_first_entry_that_fails_is_named() -> None:
    findings = (
        Finding(8, "root_differs", I, "", None),
        Finding(9, "chain_broken", I, "", 6),
        Finding(10, "request_signature_invalid", I, "", 5),
    )
    assert Report("ledger", findings).failed == findings[2]


def test_both_forms_hold_every_finding() -> None:
    findings = (Finding(3, "a", I, "first", None), Finding(10, "chain_broken", V, "second", 7))
    judged = Report("ledger", findings, completeness="unknown", statement=("15 entries",), facts={"size": 15})
    assert judged.as_text().split("\n") == [
        "INVALID at step 3: a",
        "level: none (requested: none)",
        "completeness: unknown",
        "15 entries",
        "  step 3 INVALID a: first",
        "  step 10, entry 7 note chain_broken (protocol 13.1): second",
        "exit 1: invalid: at least one step failed",
    ]
    assert json.loads(judged.as_json()) == {
        "command": "ledger",
        "completeness": "unknown",
        "directSignature": "not_checked",
        "exitCode": 1,
        "facts": {"size": 15},
        "failedStep": 3,
        "findings": [
            {"clause": None, "code": "a", "outcome": "invalid", "seq": None, "step": 3, "text": "first"},
            {
                "clause": "13.1",
                "code": "chain_broken",
                "outcome": "valid",
                "seq": 7,
                "step": 10,
                "text": "second",
            },
        ],
        "level": "none",
        "requestedLevel": "none",
        "statement": ["15 entries"],
        "verdict": "invalid",
    }


def test_the_text_shows_the_first_of_a_kind_and_how_many_more_there_are() -> None:
    """One flipped byte printed the same line fifty times."""
    anchors = [Finding(10, "anchor_root_wrong", I, f"size {seq}", seq) for seq in range(6, 55)]
    others = [Finding(9, "chain_broken", I, "", 7), *(Finding(8, "anchor_root_wrong", I, size) for size in "34")]
    notes = [Finding(10, "anchor_root_wrong", V, "a remark", seq) for seq in (1, 2)]
    judged = Report("ledger", (*notes, *others, *anchors, anchors[0]))
    assert judged.as_text().split("\n")[3:] == [
        "  step 9, entry 7 INVALID chain_broken (protocol 13.1): ",
        "  step 8 INVALID anchor_root_wrong (protocol 4.8): 3",
        "  step 8 INVALID anchor_root_wrong (protocol 4.8): 4",
        "  step 10, entry 6 INVALID anchor_root_wrong (protocol 4.8): size 6",
        "    and 48 more of this kind",
        "  step 10, entry 1 note anchor_root_wrong (protocol 4.8): a remark",
        "    and 1 more of this kind",
        "exit 1: invalid: at least one step failed",
    ]
    assert len(json.loads(judged.as_json())["findings"]) == 49 + 3 + 2


def test_text_is_escaped_and_cut() -> None:
    assert escape("a\n\x1b\u202e\ud800é\\") == "a\\n\\x1b\\u202e\\ud800\\xe9\\\\"
    assert len(escape("x" * 10_000)) == 603


def test_the_table_of_exit_codes_is_whole() -> None:
    assert sorted(VERDICTS) == [0, 1, 2, 3, 4]
    assert unreadable("receipt", "why").exit_code == 2


def test_the_same_remark_about_two_files_is_printed_once() -> None:
    remark = Finding(7, "not_witnessed", Outcome.VALID, "no witness is pinned")
    report = Report("ledger", (remark, remark))
    assert report.as_text().count("not_witnessed") == 1
    assert len(json.loads(report.as_json())["findings"]) == 1
