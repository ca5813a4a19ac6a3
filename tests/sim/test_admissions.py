"""Mixed admissions under faults: each under a live token (I3), within what rules leave (I16); then the audit.

The ledger that is left is audited with the engine of its rules and without it (judge.py).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tests.scale import drawn
from tests.sim.config import ADMISSION_FAULTS, AGENTS, COMPANY_FAULTS, OPERATORS, Config
from tests.sim.simulation import run

GROUPS = drawn(8, share=4)  # played side by side
MIXED = 1_250 * GROUPS  # admissions: ten thousand of them in a full run
WANTED = {
    "admission.allowed", "admission.denied", "rules.loaded", "rules_out_of_turn", "fence_unknown", "stale_fence",
    "lease_too_narrow", "lease_required", "lease_unknown", "lease_not_yours", "admission_conflict",
    "forbidden_by_rules", "not_permitted", "policy_error", "an engine that failed", "approval_required",
    "approval_wrong", "approver_unfit", "approval_expired", "approval.asked", "giving.refused", "ask_ended",
    "batch.received", "batch.refused",
}  # fmt: skip
NAMES = (*(f"{scheme}:{at}" for scheme in ("lock", "db", "repo", "doc") for at in range(3)), "repo:**", "db:orders/**")


def busy(config: Config) -> Config:
    """Let a drawn world have more time, more people and less to think about, so that much is asked."""
    rng = Random(f"busy {config.seed}")
    kept = {name: share for name, share in config.faults.items() if name not in COMPANY_FAULTS}
    flaky = {name: most / 4 for name, most in ADMISSION_FAULTS.items()} if rng.random() < 0.2 else {}
    numbers = replace(
        config.parameters, held_per_principal=4_096, ttl_max_ms=3_600_000, max_hold_ms=3_600_000,
        deadlock_nodes=1_000, asks_per_principal=rng.choice([2, 64]), admission_ms=rng.choice([1_000, 60_000]),
    )  # fmt: skip
    return config.but(
        agents=AGENTS[:6], operators=OPERATORS[:3], names=NAMES, set_max=2, is_rated=False, is_real=False,
        is_rotating=False, promised=(), witnesses=0, liars=0, parameters=numbers, faults=kept | flaky,
        admit_share=0.9, plead_share=rng.choice([0.2, 0.5]), is_policed=config.seed % 4 > 0, requests_max=1_600,
        duration_ms=120_000, think_ms=60, give_up_ms=3_000, ttl_ms=(8_000, 30_000), batch_share=0.7, commands_max=48,
        wait_share=0.2, nest_share=0.2, session_share=rng.choice([0.0, 0.1]),
        modes=("read", "append", "write", "delete"),
    )  # fmt: skip


def group(first: int) -> Counter[str]:
    """Play drawn worlds in which everybody asks before it writes, until there are enough; return what was seen."""
    seen: Counter[str] = Counter()
    for seed in count(first):
        result = run(seed, busy)
        assert result.violation is None, result.story()
        seen.update(result.counts)
        if seen["admission.allowed"] + seen["admission.denied"] >= MIXED // GROUPS:
            return seen
    raise AssertionError("seeds do not end")


@pytest.mark.parametrize("first", range(3_001, 3_001 + 100 * GROUPS, 100))
def test_ten_thousand_mixed_admissions_under_everything_that_fails(first: int, tallies: Path) -> None:
    """I3 and I16 after every entry, under faults; together the groups see everything that an admission can meet."""
    tally = group(first)
    (tallies / f"admissions-{first}.part").write_text(json.dumps(tally))
    (tallies / f"admissions-{first}.part").rename(tallies / f"admissions-{first}.tally")
    parts = list(tallies.glob("admissions-*.tally"))
    if len(parts) == GROUPS:  # this was the last
        seen = sum((Counter(json.loads(part.read_text())) for part in parts), Counter[str]())
        assert seen["admission.allowed"] + seen["admission.denied"] >= MIXED
        assert set(seen) >= WANTED, WANTED - set(seen)
