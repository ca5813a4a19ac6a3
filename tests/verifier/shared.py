"""Where the committed vectors are, and the published ones that stay outside the project."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT.parent / "shared" / "vectors"


def ours(name: str) -> Any:
    return json.loads((ROOT / "tests" / "vectors" / name).read_bytes())


def published(name: str) -> Any:
    """A published vector file; the test skips visibly in a clone that has no such folder beside it."""
    path = PUBLISHED / name
    if not path.is_file():
        pytest.skip(f"no published vectors at ../shared/vectors/{name}")
    return json.loads(path.read_bytes())


def cases(name: str) -> list[Any]:
    """The cases of a committed file as pytest parameters named by their comments."""
    return [pytest.param(case, id=f"{number} {case['comment']}") for number, case in enumerate(ours(name))]


def content(case: dict[str, str]) -> bytes:
    return base64.b64decode(case["bytes"])
