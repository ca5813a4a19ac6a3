"""Each text a gateway stops with is explained to its operator."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [
    *(ROOT / "gateway/store").glob("*.py"),
    *(ROOT / "gateway/ledger").glob("*.py"),
    *(ROOT / "gateway" / name for name in ("clock.py", "selfaudit.py", "signer.py")),
]
TABLE = (ROOT / "docs/operating.md").read_text("utf-8").partition("### What a gateway says when it stops")[2]
PHRASES = [
    phrase for row in re.findall(r"^\| (`.*?) \|", TABLE, re.MULTILINE) for phrase in re.findall("`([^`]+)`", row)
]
# Said with the text of an earlier Fatal, or with a word of the caller's ("the store is broken", "can't be read").
PASSED_ON = {"", ": ; check the disk, then restore a good back-up"}


def texts() -> set[str]:
    """Return the constant parts of what every Fatal of these files says."""
    return {
        "".join(str(part.value) for value in node.args for part in _constants(value))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fatal"
    }


def _constants(value: ast.expr) -> list[ast.Constant]:
    parts = value.values if isinstance(value, ast.JoinedStr) else [value]
    return [part for part in parts if isinstance(part, ast.Constant)]


def test_every_fatal_text_is_in_the_operators_table() -> None:
    found = texts() - PASSED_ON
    assert len(found) > 30 and len(PHRASES) > 30
    assert [text for text in found if not any(phrase in text for phrase in PHRASES)] == []


def test_every_phrase_of_the_table_is_said_by_the_gateway() -> None:
    code = "\n".join([*texts(), *(path.read_text("utf-8") for path in SOURCES)])
    assert [phrase for phrase in PHRASES if phrase not in code] == []


def test_every_fatal_text_says_what_to_do() -> None:
    steps = (
        r"restore|restart|Stop|[Cc]heck|use the keys|tallystick init|set the clock|can't be trusted|can't be opened"
        r"|update|choose another|put it into|it is like|; $"  # the last: a command follows
    )
    assert [text for text in texts() - PASSED_ON if not re.search(steps, text)] == []
