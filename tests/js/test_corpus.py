"""The conformance corpus against the JavaScript verifier: all cases in one process, one in thirty as a program."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.js.program import NODE, VERIFY, cases
from tests.verifier.test_corpus import PATHS, content, judge, run
from verifier.__main__ import VERSION


def test_every_case_is_judged_as_expected() -> None:
    corpus = [json.loads(path.read_bytes()) for path in PATHS]
    asked = [
        {"arguments": case["arguments"], "files": {name: content(f).hex() for name, f in case["files"].items()}}
        for case in corpus
    ]
    wrong = {}
    for path, case, found in zip(PATHS, corpus, cases(asked), strict=True):
        if faults := judge(case, found["exitCode"], found["report"]):
            wrong[path.stem] = faults
    assert wrong == {}


@pytest.mark.parametrize("path", PATHS[::30], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_command_line_says_the_same(path: Path, tmp_path: Path) -> None:
    case = json.loads(path.read_bytes())
    assert judge(case, *run([str(NODE), str(VERIFY)], case, tmp_path)) == [], case["comment"]


def test_usage_help_and_version_are_those_of_the_other_verifier() -> None:
    def said(*words: str) -> tuple[int, str, str]:
        done = subprocess.run([NODE, VERIFY, *words], capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    version = said("--version")
    assert version[0] == 0 and version[1].startswith("tallystick-verify ") and version[2] == ""
    for words in ([], ["ledger", "x"], ["receipt"], ["receipt", "a", "b"], ["receipt", "a", "--now"]):
        exit_code, out, error = said(*words)
        assert (exit_code, out) == (2, "") and error.count("\n") == 1, words
    assert "exit codes:" in said("--help")[1]


def test_the_version_is_that_of_the_other_verifier() -> None:
    assert f'const VERSION = "{VERSION}";' in VERIFY.read_text("utf-8")
