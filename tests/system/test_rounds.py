"""A thousand rounds of several agents claiming one resource at the same moment, over several connections.

A run plays a quarter of them, TALLYSTICK_FULL all.
"""

import asyncio
from pathlib import Path

from gateway.client import Agent, LeaseHeld
from gateway.client.profile import Profile, open_profile
from gateway.client.trust import Grant
from keys.signing import SigningKey
from tests.scale import drawn
from tests.system.process import Gateway

ROUNDS = drawn(1_000, share=250)
CLAIMANTS = 4


async def claim(agent: Agent, resource: str) -> Grant | LeaseHeld:
    try:
        return await agent.acquire(resource)
    except LeaseHeld as held:
        return held


async def test_exactly_one_of_several_concurrent_claims_is_granted_in_each_of_a_thousand_rounds(
    tmp_path: Path,
) -> None:
    limits = ("--parameter", "ratePerSecond=100000", "--parameter", "rateBurst=100000")
    with Gateway(tmp_path / "data", *limits) as gateway:
        gateway.join(tmp_path / "pins")
        pins = open_profile(tmp_path / "pins")
        async with asyncio.TaskGroup() as group:
            rounds = group.create_task(run_rounds(pins))
    tokens = rounds.result()
    assert len(tokens) == ROUNDS
    assert tokens == sorted(set(tokens)), "every grant has a token above all earlier ones"
    assert gateway.verify_ledger(tmp_path / "ledger.export")["exitCode"] == 0


async def run_rounds(pins: Profile) -> list[int]:
    """Return the winning token of each round."""
    keys = [SigningKey(bytes([number + 1]) * 32) for number in range(CLAIMANTS)]
    agents = [Agent(Profile(pins.address, key, pins.keyring)) for key in keys]
    tokens = []
    async with agents[0], agents[1], agents[2], agents[3]:
        for _ in range(ROUNDS):
            outcomes = await asyncio.gather(*(claim(agent, "lock:round") for agent in agents))
            (winner,) = [grant for grant in outcomes if isinstance(grant, Grant)]
            losers = [held for held in outcomes if isinstance(held, LeaseHeld)]
            holder = winner.receipt.leaf.actor
            assert [held.holder for held in losers] == [holder] * (CLAIMANTS - 1)
            tokens.append(winner.fencing_token)
            await next(agent for agent in agents if agent.did == holder).release("lock:round", winner.lease_id)
    return tokens
