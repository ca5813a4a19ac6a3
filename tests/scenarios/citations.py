"""Which test tells which story: the numbers that docstrings cite, such as `Scenarios L12, L43 and 43 (…)`."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CITED = re.compile(r"[Ss]cenarios?\s+(L?\d+(?:(?:,\s*|\s+and\s+)L?\d+)*)")


def cited(docstring: str | None) -> list[str]:
    """Return the numbers that a docstring cites."""
    return [number for found in _CITED.findall(docstring or "") for number in re.findall(r"L?\d+", found)]


def citations() -> Mapping[str, list[str]]:
    """Return the tests that cite each number, as `tests/folder/test_file.py::test_name`, or the file that does."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node, numbers in _of_file(path):
            for number in numbers:
                found[number].append(node)
    return found


def _of_file(path: Path) -> Iterator[tuple[str, list[str]]]:
    name, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))
    yield name, cited(ast.get_docstring(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield f"{name}::{node.name}", cited(ast.get_docstring(node))
