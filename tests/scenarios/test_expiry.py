"""Those who come too late: waiters that are gone, holders that wake up."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.client.errors import Fenced
from gateway.client.fence import Answer as Proof
from gateway.client.fence import FenceGuard, answer_challenge
from tests.core.requests import ORIGIN, key_of
from tests.scenarios.stage import Stage, did, kind, kinds, receipt_of, stage


async def test_a_waiter_that_no_longer_lives_is_not_served_when_its_turn_comes(tmp_path: Path) -> None:
    """Scenario L2 (etcd#11456): C stopped asking; its ticket ends with a reason, and B behind it is next."""
    async with stage(tmp_path) as scene:
        lease = await scene.acquire("A", "repo:x", ttlMs=60_000)
        dead, alive = await scene.queue("C", "repo:x"), await scene.queue("B", "repo:x")
        await scene.wait(20_000)
        await scene.claim("B", alive)
        scene.world.clock.advance(20_000)
        size = scene.size
        await scene.release("A", lease)
        removed, _, offered = scene.entries(since=size)
        assert kinds(scene.entries(since=size)) == ["wait.removed", "lease.released", "wait.offered"]
        assert (removed.text("waiter"), removed.text("reason")) == (did("C"), "poll_lapsed")
        assert offered.text("waiter") == did("B")
        late = await scene.claim("C", dead)
        assert (late.text("error"), late.number("endedSeq")) == ("ticket_ended", removed.seq)
        assert kind(await scene.claim("B", alive)) == "lease.claimed"


class Store:
    """A number that agents read, raise by one and write back; a guard may stand before it."""

    def __init__(self, guard: FenceGuard | None) -> None:
        self.number = 0
        self._guard = guard

    def write(self, number: int, name: str, receipt: bytes) -> None:
        if self._guard is not None:
            challenge = self._guard.challenge()
            proof = Proof(challenge, answer_challenge(key_of(name), challenge, "repo:x", receipt))
            self._guard.check(receipt, "repo:x", proof)
        self.number = number


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_only_the_token_keeps_an_update_from_being_lost(is_guarded: bool, tmp_path: Path) -> None:
    """Scenario L3 (etcd#11457): A reads and pauses past its lease; B updates; A writes what it had read."""
    async with stage(tmp_path) as scene:
        guard = FenceGuard(scene.world.keyring, ORIGIN, None, wall_ms=scene.world.clock.now_ms)
        store = Store(guard if is_guarded else None)
        first, read = await receipt(scene, "A"), store.number
        await scene.wait(2_000)
        store.write(store.number + 1, "B", await receipt(scene, "B"))
        if is_guarded:
            with pytest.raises(Fenced):
                store.write(read + 1, "A", first)
            store.write(store.number + 1, "B", await receipt(scene, "B"))
        else:
            store.write(read + 1, "A", first)
        assert store.number == (2 if is_guarded else 1)
        guard.close()


async def receipt(scene: Stage, name: str) -> bytes:
    answer = await scene.answer(name, "lease.acquire", resource="repo:x", ttlMs=1_000)
    assert answer.status == 200
    return receipt_of(answer)
