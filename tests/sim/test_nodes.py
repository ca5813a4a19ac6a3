"""Several nodes on one ledger: worlds in which everything fails, and each safeguard of theirs switched off once."""

from __future__ import annotations

from functools import partial

import pytest

from gateway.ledger import follow
from gateway.ledger.batches import Batches
from gateway.ledger.follower import Follower
from gateway.ledger.history import open_book
from tests.scale import drawn
from tests.sim.config import several
from tests.sim.shared import Shared
from tests.sim.simulation import run
from tests.sim.test_ablations import Ablation, Patch, first_violation, nothing, off, world

SEEDS = drawn(200, share=12)
FOUND_WITHIN = range(12)  # seeds, of each safeguard that is switched off


@pytest.mark.parametrize("first", range(0, SEEDS, 4))
def test_up_to_four_nodes_keep_every_promise(first: int) -> None:
    """Nothing that was shown is lost, one chain, tokens rise, nobody who waits is forgotten, the audit is clean."""
    for seed in range(first, first + 4):
        result = run(seed, several)
        assert result.violation is None, result.story()


# -- switched off ------------------------------------------------------------------------------------------------------

NODES = partial(world, is_replicated=True, nodes=3, think_ms=50)


async def open_without_start(self: Batches) -> None:
    """Go on where the ledger ends, as if the connection were the old one."""
    if not self._has_begun:
        return await OPEN(self)
    self._tail.read(await self._in_thread(open_book, self._store, self._signer, self._genesis, self._tail.confirmed))
    assert self._tail.draft is not None
    self._tail.open(self._tail.draft)


OPEN = Batches._open


async def wait_for_hints(self: Follower, seconds: float) -> None:
    await self._hinted.wait()


ABLATIONS = (
    Ablation(
        "barrier", "what a fail-over takes away would have been shown",
        ("shown", "I4"), off(Shared, "_confirmed", nothing),
        NODES(faults={"unreplicated": 0.2, "promote": 0.5, "fail_over": 0.5}),
    ),
    Ablation(
        "start on a new connection", "what ran out while nobody could renew it would have no holiday",
        ("epoch", "holiday"), off(Batches, "_open", open_without_start), NODES(faults={"promote": 0.6}),
    ),
    Ablation(
        "head taken in `landed`", "a batch that is still on its way would be called lost, and land",
        ("landed",), off(Shared, "_wait_for_old_ones", nothing), NODES(faults={"in_flight": 0.2}),
    ),
    Ablation(
        "unlock", "who decides nothing would keep everybody from deciding",
        ("calm",), off(Shared, "unlock", nothing),
        NODES(faults={"replay": 0.5}, parameters={"sweep_ms": 3_000}, agents=("ann", "bob"), think_ms=1_500),
    ),
    Ablation(
        "following of records", "a node would grant what another one has granted",
        ("I1", "I3", "I9", "I14"), off(follow, "_decoded", lambda changes: ()), NODES(),
    ),
    Ablation(
        "poll", "a waiter would sleep on when the hint of its turn was lost",
        ("learnt",), off(Follower, "_pause", wait_for_hints),
        NODES(wait=1.0, faults={"hint_lost": 1.0}, is_past_desk=False, parameters={"poll_ms": 30_000}),
    ),
)  # fmt: skip


@pytest.mark.parametrize("ablation", ABLATIONS, ids=str)
def test_without_it_the_simulator_finds_the_violation(ablation: Ablation, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        ablation.switch(patch)
        found = first_violation(ablation.change, FOUND_WITHIN)
    assert found is not None, f"nobody missed {ablation.name}: {ablation.why}"
    assert found.violation.name in ablation.lost, found.story()
    held = run(found.seed, ablation.change)
    assert held.violation is None, f"with {ablation.name}: {held.story()}"
