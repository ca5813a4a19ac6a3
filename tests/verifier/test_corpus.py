"""The conformance corpus, driven against a program: ours, or the one that TALLYSTICK_VERIFIER names.

    TALLYSTICK_VERIFIER="node verifier/js/verify.mjs" pytest tests/verifier/test_corpus.py

The program is called as the case says, with --json behind it, in a folder that holds the case's files. Ours is started
for one case in twelve; for the others its `main` is called in this process, which takes a hundredth of the time. How
the corpus is plugged into another verifier: docs/conformance.md.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.scale import IS_FULL
from tests.vectors.corpus import HERE, files
from verifier.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
PATHS = [path for folder in ("accept", "reject") for path in sorted((HERE / folder).glob("*.json"))]
MANUAL = ROOT / "docs" / "conformance.md"
APART_EACH = 12 if IS_FULL else 48  # so many cases, one is run by a process of its own
FILES_MIN = 120
Case = dict[str, Any]


def program() -> list[str] | None:
    """The command of the verifier that is named; a word that is a file is made absolute: each case has a folder."""
    named = os.environ.get("TALLYSTICK_VERIFIER")
    words = shlex.split(named) if named else []
    return [str(Path(word).resolve()) if Path(word).is_file() else word for word in words] or None


def content(file: Any) -> bytes:
    """The bytes that a case says a file has: text, base64, or one text many times."""
    if isinstance(file, str):
        return file.encode()
    if "base64" in file:
        return base64.b64decode(file["base64"])
    repeated: str = file["repeat"] * file["times"]
    return repeated.encode()


def lay_out(case: Case, folder: Path) -> None:
    for name, file in case["files"].items():
        (folder / name).write_bytes(content(file))


def run(words: list[str], case: Case, folder: Path) -> tuple[int, Any]:
    """The exit code, and the report, None when there is no JSON on standard output."""
    lay_out(case, folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*words, *case["arguments"], "--json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None


def run_here(words: list[str]) -> tuple[int, Any]:
    """The same by our own `main`, in this process and folder."""
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(io.StringIO()):
            exit_code = main([*words, "--json"])
    except SystemExit as end:  # argparse, of a usage error
        exit_code = int(end.code or 0)
    return exit_code, json.loads(said.getvalue()) if said.getvalue().strip() else None


def judge(case: Case, exit_code: int, report: Any) -> list[str]:
    """What differs from the expectation, in words; empty when the verifier conforms."""
    expect = case["expect"]
    if exit_code != expect["exitCode"]:
        return [f"exit code {exit_code}, not {expect['exitCode']}: {report}"]
    if expect["verdict"] is None:
        return []
    names = ["exitCode", "verdict", "level", "failedStep"] + ["directSignature"] * ("directSignature" in expect)
    wrong = [f"{name} {report[name]!r}, not {expect[name]!r}" for name in names if report[name] != expect[name]]
    said = [
        f["code"] for f in report["findings"] if (f["step"], f["outcome"]) == (expect["failedStep"], expect["verdict"])
    ]
    if expect["code"] is not None and expect["code"] not in said:
        wrong.append(f"findings {said}, among them not {expect['code']}")
    return wrong


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_program_says_what_the_corpus_expects(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, words = json.loads(path.read_bytes()), program()
    if words is None and PATHS.index(path) % APART_EACH == 0:
        words = [sys.executable, "-m", "verifier"]
    monkeypatch.chdir(tmp_path)
    lay_out(case, tmp_path)
    found = run_here(case["arguments"]) if words is None else run(words, case, tmp_path)
    assert judge(case, *found) == [], case["comment"]


def test_the_generator_writes_the_committed_cases_byte_for_byte() -> None:
    made = dict(files())
    assert sorted(PATHS) == sorted(made)
    assert [path.stem for path, wanted in made.items() if path.read_bytes() != wanted] == []


def test_refused_cases_outnumber_accepted_ones_and_each_says_what_it_proves() -> None:
    cases = [json.loads(path.read_bytes()) for path in PATHS]
    accepted = [case for case in cases if case["expect"]["exitCode"] == 0]
    assert len(cases) >= FILES_MIN and 0 < 2 * len(accepted) < len(cases)
    assert all(len(case["comment"]) > 20 for case in cases)
    assert len({case["comment"] for case in cases}) == len(cases)


def test_every_exit_code_and_every_verdict_is_in_the_corpus() -> None:
    expected = [json.loads(path.read_bytes())["expect"] for path in PATHS]
    assert {expect["exitCode"] for expect in expected} == {0, 1, 2, 3, 4}
    assert {expect["verdict"] for expect in expected} >= {"valid", "invalid", "unreadable", "indeterminate", "split"}
    assert {expect["failedStep"] for expect in expected} >= {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}


def test_the_cases_that_the_manual_names_are_there() -> None:
    rows = [row for row in MANUAL.read_text("utf-8").splitlines() if row.startswith("| ") and "`" in row]
    named = [name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row.rsplit("|", 2)[1])]
    assert len(named) > 10 and set(named) <= {path.stem for path in PATHS}


def test_the_runner_finds_a_verifier_that_says_yes_to_everything() -> None:
    """The runner itself can fail: a program that accepts whatever it is given conforms to no rejecting case."""
    case = json.loads((HERE / "reject" / "direct-r-identity.json").read_bytes())
    yes = {"exitCode": 0, "verdict": "valid", "level": "included", "failedStep": None, "findings": []}
    assert judge(case, 0, yes) != []
    assert judge(case, 1, {**yes, "exitCode": 1, "verdict": "invalid", "level": "none", "failedStep": 3}) != []
