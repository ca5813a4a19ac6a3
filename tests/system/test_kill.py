"""kill −9 of the gateway under load, again and again: nothing that was answered is ever lost or contradicted.

The story of scenarios L12, L43, L50 and 43: agents go on with the same idempotency keys while the gateway dies and
comes back, and at the end a stranger compares every receipt they hold with the exported ledger.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.client import Agent, LeaseHeld
from gateway.client.profile import Profile, open_profile
from gateway.client.receipts import VerifiedReceipt
from gateway.demo.checks import overlaps, spans
from keys.signing import SigningKey
from tests.system.process import Gateway
from verifier.replay.source import open_source
from verifier.wire import LEAF_BYTES_MAX, parse_canonical

KILLS = 6
AGENTS = 8
RESOURCES = 3  # fewer than agents, so that claims collide
RECEIPTS_BETWEEN_KILLS = (20, 60)


@dataclass(slots=True)
class Crowd:
    """The agents' own files: every receipt they accepted, and a bell that rings with each."""

    pins: Profile
    receipts: list[VerifiedReceipt] = field(default_factory=list)
    bell: asyncio.Condition = field(default_factory=asyncio.Condition)
    is_over: bool = False

    async def keep(self, receipt: VerifiedReceipt) -> None:
        async with self.bell:
            self.receipts.append(receipt)
            self.bell.notify_all()

    async def until(self, is_reached: Callable[[], bool]) -> None:
        async with self.bell:
            await self.bell.wait_for(is_reached)

    async def work(self, number: int) -> None:
        """Take and release one of a few resources for as long as the scene lasts; a refusal is a receipt too."""
        chance = random.Random(number)
        profile = Profile(self.pins.address, SigningKey(bytes([number + 1]) * 32), self.pins.keyring)
        async with Agent(profile, jitter=chance.random) as agent:
            while not self.is_over:
                resource = f"lock:{chance.randrange(RESOURCES)}"
                try:
                    grant = await agent.acquire(resource, ttl_ms=60_000)
                except LeaseHeld as held:
                    await self.keep(held.receipt)
                else:
                    await self.keep(grant.receipt)
                    await self.keep(await agent.release(resource, grant.lease_id))


@pytest.mark.parametrize("seed", [1])
async def test_every_answered_receipt_survives_kill_9_byte_for_byte(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    gateway = Gateway(tmp_path / "data", "--parameter", "ratePerSecond=10000", "--parameter", "rateBurst=10000")
    gateway.start()
    try:
        gateway.join(tmp_path / "pins")
        crowd = Crowd(open_profile(tmp_path / "pins"))
        async with asyncio.TaskGroup() as group:
            for number in range(AGENTS):
                group.create_task(crowd.work(number))
            for _ in range(KILLS):
                target = len(crowd.receipts) + chance.randint(*RECEIPTS_BETWEEN_KILLS)
                await crowd.until(lambda target=target: len(crowd.receipts) >= target)  # type: ignore[misc]  # bound now
                await asyncio.to_thread(gateway.kill)
                await asyncio.to_thread(gateway.start)
            crowd.is_over = True
    finally:
        assert gateway.stop() == 0
    report = gateway.verify_ledger(tmp_path / "ledger.export")
    assert report["exitCode"] == 0
    check_against_ledger(crowd, tmp_path / "ledger.export")


def check_against_ledger(crowd: Crowd, export: Path) -> None:
    """Compare what the agents hold with what the ledger says."""
    with open_source(export) as source:
        leaves = list(source.leaves)
    for receipt in crowd.receipts:
        assert parse_canonical(leaves[receipt.seq], bytes_max=LEAF_BYTES_MAX) == receipt.leaf.value
    assert len({receipt.seq for receipt in crowd.receipts}) == len(crowd.receipts), "one receipt answers one request"
    values = [parse_canonical(leaf, bytes_max=LEAF_BYTES_MAX) for leaf in leaves]
    assert overlaps(spans(values)) == []
    starts = [value for value in values if value["type"] == "tallystick/service.started/1"]
    assert len(starts) == KILLS + 1
    assert [value["isClean"] for value in starts] == [True, *[False] * KILLS]
