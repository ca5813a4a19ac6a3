"""Where something stands in a rule set, and brackets that no engine may be given."""

import subprocess
import sys

import pytest

from gateway.rules.check import check
from gateway.rules.text import Misplaced, Statement, line_of, misplaced, statements
from verifier.rules import NESTING_MAX


def test_a_text_is_divided_at_the_semicolons_that_are_no_text_and_no_comment() -> None:
    text = '// a; b\npermit(a);\n\n  // c\nforbid("x;\\";" );permit\n(b)'
    assert statements(text) == [
        Statement(2, "permit(a);"),
        Statement(5, 'forbid("x;\\";" );'),
        Statement(5, "permit\n(b)", is_closed=False),
    ]


@pytest.mark.parametrize("text", ["", " \n\t", "// only; this", "//"])
def test_a_text_without_a_policy_has_none(text: str) -> None:
    assert statements(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('("(" // (\n)', None),
        ("()\n(", Misplaced(2, "the bracket ( is not closed")),
        ("(\n]", Misplaced(2, "the bracket ] closes none that is open")),
        (")", Misplaced(1, "the bracket ) closes none that is open")),
        ("{\n(;", Misplaced(2, "the bracket ( is not closed before the semicolon")),
        ('\n"abc', Misplaced(2, 'a text that begins with " here does not end')),
        ('"\\"', Misplaced(1, 'a text that begins with " here does not end')),
        ("(" * NESTING_MAX + ")" * NESTING_MAX, None),
    ],
)
def test_brackets_and_quotes_go_in_pairs(text: str, found: Misplaced | None) -> None:
    assert misplaced(text) == found


@pytest.mark.parametrize(("before", "after"), [("(", ")"), ("[", "]"), ("{a: ", "}"), ("!(", ")"), ("1 == (", ")")])
@pytest.mark.parametrize("count", [NESTING_MAX + 1, 3_000])
def test_brackets_that_lie_too_deep_never_reach_the_engine(before: str, after: str, count: int) -> None:
    text = '@id("a")\npermit(principal, action, resource) when {' + before * count + "true" + after * count + "};"
    (fault,) = check(text[:16_384]).faults
    assert fault.line == 2
    assert "deep" in fault.text


def test_they_would_end_the_process() -> None:
    """If this ever fails the engine became safe, and the bound may go."""
    text = "permit(principal, action, resource) when {" + "(" * 7_000 + "1" + ")" * 7_000 + "};"
    code = f"import cedarpy; cedarpy.PolicySet.from_str({text!r})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode < 0


def test_a_word_is_found_outside_of_comments_and_as_a_whole() -> None:
    statement = Statement(5, 'permit\n// trust trusted\n(trusted,\n"trust" , trust => 3, 40000);')
    assert line_of(statement, "trusted") == 7
    assert line_of(statement, "trust") == 8
    assert line_of(statement, "=>") == 8
    assert line_of(statement, "40000") == 8
    assert line_of(statement, "4000") == line_of(statement, "") == line_of(statement, "nowhere") == 5
