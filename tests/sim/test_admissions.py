"""Mixed admissions under faults: each under a live token (I3), within what rules leave (I16); then the audit.

The ledger that is left is audited with the engine of its rules and without it (judge.py).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from gateway.core.holding import Found, find_lease
from gateway.core.state import Draft
from tests.sim.config import AGENTS, Config
from tests.sim.simulation import run

WORLDS = int(os.environ.get("TALLYSTICK_ADMISSION_WORLDS", "8"))  # 10,000 admissions are some 160 worlds
WANTED = {
    "admission.allowed", "admission.denied", "rules.loaded", "stale_fence", "fence_unknown", "lease_too_narrow",
    "lease_required", "admission_conflict", "forbidden_by_rules", "not_permitted", "outside_scope",
}  # fmt: skip


def busy(config: Config) -> Config:
    """Let a drawn world have more time, more people and less to think about, so that much is asked."""
    return config.but(
        admit_share=0.9, is_policed=config.seed % 4 > 0, requests_max=900, duration_ms=90_000, think_ms=100,
        agents=AGENTS[:6], is_rated=False,
    )  # fmt: skip


def world(seed: int) -> Counter[str]:
    """Play a drawn world in which everybody asks before it writes; return how often each thing was seen."""
    result = run(seed, busy)
    assert result.violation is None, result.story()
    return Counter(result.counts)


def test_admissions_hold_under_everything_that_fails() -> None:
    seen: Counter[str] = Counter()
    for seed in range(WORLDS):
        seen += world(3_000 + seed)
    assert seen["admission.allowed"] + seen["admission.denied"] >= 40 * WORLDS
    assert set(seen) >= WANTED, WANTED - set(seen)


@pytest.mark.parametrize(
    ("name", "place", "instead"),
    [
        ("I3", "gateway.core.admission._is_wide_enough", lambda *_: True),
        ("I3", "gateway.core.admission.find_lease", lambda draft, lease_id, t_ms: _any_lease(draft, lease_id, t_ms)),
        ("I16", "gateway.core.admission.count_allowed", lambda *_: None),
    ],
    ids=["a lease that is too narrow", "a token that is stale", "nobody counts"],
)
def test_the_invariants_see_a_core_that_is_wrong(
    name: str, place: str, instead: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, instead)
    found = (run(seed, busy).violation for seed in (3_002, 3_005, 3_007))
    assert next((one.name for one in found if one is not None), None) == name


def _any_lease(draft: Draft, lease_id: str, t_ms: int) -> Found:
    """Take whatever token is shown for the lease's."""
    found = find_lease(draft, lease_id, t_ms)
    return found if found.lease is None else found._replace(lease=found.lease._replace(fencing_token=_Any(1)))


class _Any(int):
    """A token that equals all others."""

    def __gt__(self, _: object) -> bool:
        return False

    __lt__ = __gt__
