"""What a cancelled task leaves behind: nothing that goes on beating, and nothing that is believed to be given back."""

from __future__ import annotations

import asyncio

import pytest

from gateway.client.errors import AnswerRefused
from tests.client.world import (
    ACQUIRE,
    BOB,
    CANCEL,
    FILE,
    RELEASE,
    Book,
    LocalGateway,
    ManualClock,
    forged,
    lost_answer,
    lost_request,
    rest,
)


@pytest.fixture
def gateway() -> LocalGateway:
    return LocalGateway(Book(), ManualClock())


async def test_a_release_that_is_cancelled_counts_as_not_done_until_the_gateway_confirms(gateway: LocalGateway) -> None:
    """Scenario L52 (redis-py#3847): the token is kept, and the next release ends the very same lease."""
    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=30_000) as lease:
        token = lease.fencing_token
        gateway.every = lost_request
        releasing = asyncio.create_task(lease.release())
        await rest()
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        assert lease.check() == token
        gateway.every = None
        await lease.release()
        assert lease.trust_ends_in_ms == 0
        assert not lease.lost.is_set()
    releases = [request for request in gateway.requests if request.target == RELEASE]
    assert len(releases) >= 2
    assert {f'"leaseId":"{lease.lease_id}"' in (request.body or b"").decode() for request in releases} == {True}


async def test_an_acquire_that_fails_in_an_unforeseen_way_leaves_no_heartbeat_behind(gateway: LocalGateway) -> None:
    """Scenario L32 (hazelcast#17697): a lease that was never proven is never kept alive."""
    before = asyncio.all_tasks()
    gateway.faults = [forged(lambda answer: {"ok": True})]
    async with gateway.agent() as agent:
        with pytest.raises(AnswerRefused):
            async with agent.lease(FILE, ttl_ms=30_000):
                raise AssertionError("never entered")
        assert asyncio.all_tasks() == before
        await gateway.clock.advance(60_000)
    assert {request.target for request in gateway.requests} == {ACQUIRE}


@pytest.mark.parametrize("is_held", [False, True])
async def test_an_acquire_that_is_cancelled_in_the_middle_gives_back_what_it_brought(
    gateway: LocalGateway, is_held: bool
) -> None:
    """Scenario L32: Ctrl-C between question and answer; neither a lease nor a place in line stays with nobody."""
    async with gateway.agent(BOB) as bob, gateway.agent() as agent:
        if is_held:
            await bob.acquire(FILE, ttl_ms=3_600_000)
        gateway.requests.clear()
        gateway.faults = [lost_answer]
        asking = asyncio.create_task(agent.acquire(FILE, wait=True))
        await rest()
        assert (len(gateway.live), len(gateway.desk.line)) == (1, int(is_held))
        asking.cancel()
        await gateway.clock.advance(1_000)
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert [live.holder for live in gateway.live.values()] == [BOB.did] * is_held
        assert gateway.desk.line == []
    assert gateway.requests[-1].target == (CANCEL if is_held else RELEASE)


async def test_an_acquire_that_is_cancelled_while_nobody_answers_is_left_after_two_seconds(
    gateway: LocalGateway,
) -> None:
    async with gateway.agent() as agent:
        gateway.every = lost_request
        asking = asyncio.create_task(agent.acquire(FILE))
        await gateway.clock.advance(5_000)
        asking.cancel()
        await gateway.clock.advance(1_900)
        assert not asking.done()
        await gateway.clock.advance(200)
        assert asking.cancelled()
        sent = len(gateway.requests)
        await gateway.clock.advance(60_000)
        assert len(gateway.requests) == sent
        gateway.every = None


async def test_a_lease_that_was_held_before_is_not_given_back_with_a_cancelled_acquire(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        grant = await agent.acquire(FILE)
        asking = asyncio.create_task(agent.acquire(FILE))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert [*gateway.live] == [grant.lease_id]
    assert RELEASE not in [request.target for request in gateway.requests]
