"""The budgets of house.md (ADR 23, 30, 35, 45): short functions, and a verifier that is read in an evening."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 70
VERIFIER_CODE_LINES_MAX = 1_920
VERIFIER_FILE_LINES_MAX = 220
# Asked for by name, and counted by themselves: who reads one receipt needs none of them.
APART, APART_CODE_LINES_MAX = {"verifier/compare.py", "verifier/private.py", "verifier/rules.py"}, 275
# Tables: reading one is scanning it, so its length costs nothing.
TABLES = {"verifier/entries.py", "verifier/clauses.py"}
# Functions that are a table or an argument parser, by name.
LONG_FUNCTIONS: frozenset[str] = frozenset()


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_HOLDERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """Lines that hold code: no blank line, no comment, no docstring. The explanation is what strangers need."""
    holders = [node for node in ast.walk(ast.parse(text)) if isinstance(node, _HOLDERS)]
    strings = [holder.body[0] for holder in holders if ast.get_docstring(holder) is not None]
    docstrings = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in _NO_CODE]
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)} - docstrings)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> list[tuple[str, int]]:
    """Every function of a file with its length in lines, decorators and docstring included."""
    tree = ast.parse(path.read_text("utf-8"))
    return [
        (f"{name_of(path)}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_no_function_is_longer_than_the_wall() -> None:
    every = [found for path in sources("verifier", "keys", "gateway", "tests", "bench") for found in functions(path)]
    assert len(every) > 100
    assert [found for found in every if found[1] > FUNCTION_LINES_MAX and found[0] not in LONG_FUNCTIONS] == []


def test_half_of_the_functions_have_ten_lines_or_fewer() -> None:
    lengths = sorted(length for path in sources("verifier", "keys", "gateway") for _, length in functions(path))
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[len(lengths) * 9 // 10] <= 40


def test_there_are_at_least_as_many_lines_of_tests_as_of_code() -> None:
    assert sum(map(lines, sources("tests"))) >= sum(map(lines, sources("verifier", "keys", "gateway")))


def test_only_code_is_counted() -> None:
    text = (
        '"""Two\nlines."""\n\n# why\n\n\ndef f() -> str:\n    """Promise."""\n    return (\n        "a"  # b\n    )\n'
    )
    assert code_lines(text) == 4


def test_what_reads_one_receipt_stays_small_as_a_whole() -> None:
    """`verifier/replay/`, which reads whole ledgers, has no total."""
    files = [path for path in (ROOT / "verifier").glob("*.py") if name_of(path) not in TABLES]
    counted = {name_of(path): code_lines(path.read_text("utf-8")) for path in files}
    apart = {name: counted.pop(name) for name in APART}
    assert sum(counted.values()) <= VERIFIER_CODE_LINES_MAX, counted
    assert sum(apart.values()) <= APART_CODE_LINES_MAX, apart


@pytest.mark.parametrize("path", [p for p in sources("verifier") if name_of(p) not in TABLES], ids=name_of)
def test_a_file_of_the_verifier_stays_small(path: Path) -> None:
    """All its lines count here: a file is read at one sitting."""
    assert lines(path) <= VERIFIER_FILE_LINES_MAX
