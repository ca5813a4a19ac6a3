"""The budgets of house.md: short functions, and a verifier that a stranger can read in an evening."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 70
VERIFIER_LINES_MAX = 1_200
VERIFIER_FILE_LINES_MAX = 220
# A table: reading it is scanning it, so its length costs nothing.
TABLES = {"verifier/entries.py"}
# Functions that are a table or an argument parser, by name.
LONG_FUNCTIONS: frozenset[str] = frozenset()


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


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


def test_the_verifier_stays_small_as_a_whole() -> None:
    counted = {name_of(path): lines(path) for path in (ROOT / "verifier").glob("*.py") if name_of(path) not in TABLES}
    assert sum(counted.values()) <= VERIFIER_LINES_MAX, counted


@pytest.mark.parametrize("path", [p for p in sources("verifier") if name_of(p) not in TABLES], ids=name_of)
def test_a_file_of_the_verifier_stays_small(path: Path) -> None:
    assert lines(path) <= VERIFIER_FILE_LINES_MAX
