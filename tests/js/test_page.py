"""The page in verifier/js: what it may load and do. That it works in a browser is tests/outside/test_browser.py's."""

from __future__ import annotations

import base64
import hashlib
import re

from tests.js.program import VERIFY
from tests.js.table import TARGET

PAGE = VERIFY.with_name("verify.html").read_text("utf-8")
SCRIPTS = re.findall(r"<script[^>]*>(.*?)</script>", PAGE, re.DOTALL)


def test_the_page_runs_its_one_script_and_the_programs_beside_it() -> None:
    (script,) = SCRIPTS
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}'" in PAGE
    assert "default-src 'none'" in PAGE and "unsafe-eval" not in PAGE


def test_nothing_is_fetched_from_anywhere_and_nothing_becomes_markup() -> None:
    texts = [PAGE, *(path.read_text("utf-8") for path in VERIFY.parent.glob("*.mjs") if path != TARGET)]
    for text in texts:
        assert re.findall(r"https?://(?!127\.0\.0\.1)\S*", text) == []
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "XMLHttp"):
            assert word not in text, word


def test_programs_import_each_other_and_nothing_else_but_node_for_the_command_line() -> None:
    for path in VERIFY.parent.glob("*.mjs"):
        for name in re.findall(r"""(?:from|import)\s*\(?\s*["']([^"']+)["']""", path.read_text("utf-8")):
            assert name.startswith("./") or (name in ("node:fs", "node:url") and path == VERIFY), (path.name, name)


def test_each_file_is_read_at_one_sitting() -> None:
    lengths = {
        path.name: len(path.read_text("utf-8").splitlines()) for path in VERIFY.parent.iterdir() if path != TARGET
    }
    assert set(lengths) == {"verify.mjs", "strict.mjs", "leaf.mjs", "ladder.mjs", "histories.mjs", "verify.html"}
    assert max(lengths.values()) <= 900, lengths
    widths = [
        len(line) for path in VERIFY.parent.glob("*.mjs") if path != TARGET for line in path.open(encoding="utf-8")
    ]
    assert max(widths) <= 121  # the newline counted
