"""Scenario: a thousand worlds in which everything fails, and every invariant holds after every batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.simulation import run

ROOT = Path(__file__).resolve().parents[2]
SEEDS, CHUNK = 1_000, 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_invariant_holds(first: int) -> None:
    decided = 0
    for seed in range(first, first + CHUNK):
        result = run(seed)
        assert result.violation is None, result.story()
        decided += sum(result.counts.values())
    assert decided > 20 * CHUNK, "something was decided"


def traces(hash_seed: str) -> str:
    """Return the trace hashes of some seeds, as another process with another order of hashes finds them."""
    code = "from tests.sim.simulation import run\nfor seed in (1, 10, 77, 198): print(run(seed).trace)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_seed_is_the_same_world_in_every_process() -> None:
    first, second = traces("1"), traces("2")
    assert first == second
    assert len(set(first.split())) == 4
