"""Every finding says which clause it is about, and the clause is there to be read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from verifier.clauses import CLAUSES

ROOT = Path(__file__).resolve().parents[2]
_CODE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")
# Words with an underscore that are no codes: names of attributes and of functions, values of members, an encoding.
OTHER_WORDS = {
    "cause_seq", "check_receipt", "claim_lapsed", "given_up", "holder_gone", "is_called", "left_out", "not_checked",
    "poll_lapsed", "pre_authentication", "store_true", "unicode_escape",
}  # fmt: skip
SOURCES = [path for path in sorted((ROOT / "verifier").rglob("*.py")) if path.name not in ("entries.py", "clauses.py")]


def words(path: Path) -> dict[str, int]:
    """Every text with an underscore in a file that is written like a code, and the line it stands on."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    texts = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {str(node.value): node.lineno for node in texts if _CODE.fullmatch(str(node.value))}


def said(path: Path) -> set[str]:
    """The codes that are given to `Finding`, `say`, `note` and the like by their place, single words too."""
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    steps = [call.args[1] for call in calls if len(call.args) > 2 and isinstance(call.args[0], ast.Constant)]
    return {node.value for node in steps if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_code_has_a_clause(path: Path) -> None:
    missing = {word: line for word, line in words(path).items() if word not in CLAUSES and word not in OTHER_WORDS}
    assert missing == {}
    assert said(path) - CLAUSES.keys() - {"utf-8", "ascii"} == set()


def test_every_clause_is_in_the_protocol() -> None:
    text = (ROOT / "docs/protocol.md").read_text("utf-8")
    there = set(re.findall(r"(?m)^([0-9]+\.[0-9]+) ", text))
    assert {code: clause for code, clause in CLAUSES.items() if clause not in there} == {}


def test_a_code_that_nobody_uses_is_not_in_the_table() -> None:
    used: set[str] = set()
    for path in SOURCES:
        used |= words(path).keys() | said(path)
        used |= set(re.findall(r"\"([a-z]+)\"", path.read_text("utf-8")))  # single words in rows of a fault
    assert CLAUSES.keys() - used == set()
