"""When people step in: who may, on what evidence, and what becomes of the holder."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.client.errors import Fenced
from gateway.client.fence import Answer as Proof
from gateway.client.fence import FenceGuard, answer_challenge
from tests.core.requests import ORIGIN, key_of
from tests.scenarios.stage import Stage, did, kind, member, receipt_of, stage
from verifier.entries import Leaf


async def break_(scene: Stage, name: str, token: int) -> Leaf:
    return await scene.does(name, "lease.break", resource="repo:x", seenToken=token, reason="holder-gone")


async def test_a_holder_learns_at_its_next_heartbeat_that_its_lease_was_broken(tmp_path: Path) -> None:
    """Scenario L15 (curator#671): a third party with the right to do it, on record; nobody else may."""
    async with stage(tmp_path) as scene:
        lease = await scene.acquire("A", "repo:x", ttlMs=60_000)
        token = lease.number("fencingToken")
        refused = await break_(scene, "B", token)
        assert (kind(refused), refused.text("error")) == ("break.refused", "operator_required")
        assert kind(await scene.renew("A", lease)) == "lease.renewed"
        broken = await break_(scene, "op", token)
        assert (kind(broken), broken.actor, broken.text("holder")) == ("lease.broken", did("op"), did("A"))
        assert broken.text("reason") == "holder-gone"
        told = await scene.renew("A", lease)
        assert (told.text("error"), told.number("endedSeq")) == ("lease_broken", broken.seq)
        assert kind(await scene.acquire("B", "repo:x")) == "lease.granted"


async def test_a_break_needs_only_what_the_refusal_says_and_happens_once(tmp_path: Path) -> None:
    """Scenario L47 (terraform#17535): who, token, since, until; a stale token breaks nothing; again is no failure."""
    async with stage(tmp_path) as scene:
        old = await scene.acquire("A", "repo:x")
        await scene.release("A", old)
        lease = await scene.acquire("B", "repo:x", ttlMs=60_000)
        refused = await scene.acquire("C", "repo:x")
        assert refused.text("holder") == did("B")
        assert member(refused, "conflict", "grantedAtMs") == lease.time_ms
        assert member(refused, "conflict", "expiresAtMs") == lease.time_ms + 60_000
        stale = await break_(scene, "op", old.number("fencingToken"))
        assert (stale.text("error"), stale.text("holder")) == ("token_stale", did("B"))
        assert member(stale, "conflict", "fencingToken") == lease.number("fencingToken")
        token = member(refused, "conflict", "fencingToken")
        broken, again = await break_(scene, "op", token), await break_(scene, "op", token)
        assert (kind(broken), kind(again), again.number("endedSeq")) == ("lease.broken", "break.repeated", broken.seq)
        assert len(scene.entries("lease.broken")) == 1


async def test_a_holder_that_works_on_after_a_break_is_kept_out_by_the_next_token(tmp_path: Path) -> None:
    """Scenario L48 (CURATOR-206): the entry of the break lists the token it killed; the guard refuses its write."""
    async with stage(tmp_path) as scene:
        guard = FenceGuard(scene.world.keyring, ORIGIN, None, wall_ms=scene.world.clock.now_ms)
        first = await scene.answer("A", "lease.acquire", resource="repo:x", ttlMs=60_000)
        write(guard, "A", receipt_of(first))
        (granted,) = scene.entries("lease.granted")
        broken = await break_(scene, "op", granted.number("fencingToken"))
        assert broken.number("fencingToken") == granted.number("fencingToken")
        second = await scene.answer("B", "lease.acquire", resource="repo:x")
        write(guard, "B", receipt_of(second))
        with pytest.raises(Fenced):
            write(guard, "A", receipt_of(first))
        guard.close()


def write(guard: FenceGuard, name: str, receipt: bytes) -> None:
    challenge = guard.challenge()
    guard.check(receipt, "repo:x", Proof(challenge, answer_challenge(key_of(name), challenge, "repo:x", receipt)))
