"""What a cancelled task leaves behind: nothing that goes on beating, and nothing that is believed to be given back."""

from __future__ import annotations

import asyncio

import pytest

from gateway.client.errors import AnswerRefused
from tests.client.world import ACQUIRE, FILE, RELEASE, Book, LocalGateway, ManualClock, forged, lost_request, rest


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
