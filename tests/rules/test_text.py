"""Where something stands in a rule set, and brackets that no engine may be given."""

import subprocess
import sys

import pytest

from gateway.rules.check import check
from gateway.rules.text import Misplaced, Statement, line_of, misplaced, statements
from verifier.rules import NESTING_MAX, OPERATORS_MAX


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


@pytest.mark.parametrize(
    ("chain", "weight"),
    [
        ("true && ", 1),
        ("true||", 1),
        ("1+", 1),
        ("1 - ", 1),
        ("1*", 1),
        ("a.", 1),
        ("if a then ", 8),
        ("when {} ", 8),
    ],
)
def test_operators_of_one_policy_are_counted_before_the_engine_sees_them(chain: str, weight: int) -> None:
    """A chain needs no bracket, and parsers descend with it all the same."""
    most = OPERATORS_MAX // weight
    assert misplaced(chain * most + ";" + chain * most + '"&& || + - * . ["//+') is None
    found = misplaced("\n" + chain * (most + 1))
    assert found is not None
    assert (found.line, "more than 480 operators" in found.text) == (2, True)


SMALL_STACK = """
import sys, threading
from random import Random
from gateway.rules.check import check
from tests.lies.test_two_engines import question, rule_set
from verifier.replay.cedar import Cedar

def run():
    for text in sys.argv[1:]:
        check(text)
        Cedar().ruling(rule_set(text), question(Random(3)))

threading.stack_size(512 * 1024)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def condition(text: str) -> str:
    return f'@id("a") permit(principal, action, resource) when {{ {text} }};'


def test_what_keeps_the_bounds_fits_into_the_smallest_stack() -> None:
    """On some systems a second thread has 512 KiB; there 254 times `if` end the process, gateway or auditor."""
    deepest = (
        "1+" * 470 + "1 == 1",
        "true&&" * 470 + "true",
        "if true then true else " * 58 + "true",
        "(" * 22 + "1" + ("+1" * 21 + ")") * 22 + " == 1",
        "(if true then " * 22 + "true" + " else true)" * 22 + "||true" * 280,
        "{a: " * 22 + "1" + "}" * 22 + ".a" * 450 + " == 1",
    )
    texts = map(condition, deepest)
    assert all(misplaced(condition(one)) is None for one in deepest)
    done = subprocess.run([sys.executable, "-c", SMALL_STACK, *texts], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


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
