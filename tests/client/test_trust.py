"""How long a lease is trusted: arithmetic, and the same arithmetic under retries, silence and a blocked loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.client.errors import LeaseLost
from gateway.client.transport import Reply
from gateway.client.trust import beat_period_ms, margin_ms, trusted_ms
from tests.client.world import (
    ACQUIRE,
    FILE,
    RELEASE,
    RENEW,
    Book,
    LocalGateway,
    ManualClock,
    Request,
    lost_answer,
    rest,
    status,
)
from verifier.wire import JsonObject


@pytest.fixture
def gateway() -> LocalGateway:
    return LocalGateway(Book(), ManualClock())


@pytest.mark.parametrize(
    ("ttl_ms", "margin", "trusted"),
    [
        (1_000, 1_000, 0),
        (2_000, 1_000, 1_000),
        (10_000, 1_000, 9_000),
        (30_000, 3_000, 27_000),
        (300_000, 30_000, 270_000),
        (3_600_000, 360_000, 3_240_000),
    ],
)
def test_the_margin_is_a_tenth_and_at_least_a_second(ttl_ms: int, margin: int, trusted: int) -> None:
    assert (margin_ms(ttl_ms), trusted_ms(ttl_ms)) == (margin, trusted)


@pytest.mark.parametrize("ttl_ms", [2_000, 3_000, 30_000, 300_000, 3_600_000])
def test_two_heartbeats_fit_into_the_trust_of_any_held_lease(ttl_ms: int) -> None:
    assert 0 < 2 * beat_period_ms(ttl_ms) <= trusted_ms(ttl_ms)


async def test_trust_counts_from_the_first_attempt_though_a_retry_at_nine_tenths_got_the_answer(
    gateway: LocalGateway,
) -> None:
    """A retry at 0.9 ttl: the replayed answer moves nothing, and trust ends before the lease does."""
    clock = gateway.clock
    clock.is_automatic = True
    gateway.faults = [lost_answer, status(503, **{"retry-after": "27"})]
    async with gateway.agent() as agent:
        sent_ms = clock.steady_ms()
        grant = await agent.acquire(FILE, ttl_ms=30_000)
    assert clock.steady_ms() - sent_ms >= 27_000
    assert grant.sent_ms == sent_ms
    assert grant.trust_ends_ms == sent_ms + 27_000
    expires_steady_ms = grant.expires_at_ms - clock.wall_offset
    assert grant.trust_ends_ms < expires_steady_ms
    assert len({request.key for request in gateway.requests}) == 1


async def test_a_grant_that_arrives_without_trust_is_renewed_before_it_is_used(gateway: LocalGateway) -> None:
    """The first attempt was sent at 0, the grant came after 4,050 ms: its 4,000 ms of trust were over."""
    gateway.clock.is_automatic = True
    gateway.faults = [status(503, **{"retry-after": "4"})]
    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=5_000) as lease:
        assert [request.target for request in gateway.requests] == [ACQUIRE, ACQUIRE, RENEW]
        assert lease.trust_ends_in_ms == 4_000


async def test_heartbeats_renew_at_a_third_and_trust_moves_with_the_attempt_that_was_sent(
    gateway: LocalGateway,
) -> None:
    clock = gateway.clock
    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=30_000) as lease:
        start_ms, token = clock.steady_ms(), lease.fencing_token
        assert lease.trust_ends_in_ms == 27_000
        await clock.advance(9_999)
        assert (lease.beats, lease.trust_ends_in_ms) == (0, 17_001)
        await clock.advance(1)
        assert (lease.beats, lease.trust_ends_in_ms) == (1, 27_000)
        await clock.advance(600_000)
        assert lease.beats == 61
        assert lease.fencing_token == token
        assert lease.check() == token
        assert clock.steady_ms() - start_ms == 610_000
    assert [request.target for request in gateway.requests] == [ACQUIRE, *[RENEW] * 61, RELEASE]


async def test_one_lost_renewal_costs_nothing(gateway: LocalGateway) -> None:
    """Scenario L25: the renewal loop survives a failure."""
    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=30_000) as lease:
        gateway.faults = [status(503)]
        await gateway.clock.advance(11_000)
        assert lease.beats == 1
        assert [request.target for request in gateway.requests] == [ACQUIRE, RENEW, RENEW]
        assert gateway.requests[1].key == gateway.requests[2].key
        assert lease.is_trusted


@pytest.mark.parametrize(
    ("fault", "reason"), [(status(503), "throttled"), (status(429), "throttled"), (lost_answer, "unreachable")]
)
async def test_silence_is_retried_until_trust_ends_and_then_the_loss_is_told(
    gateway: LocalGateway, fault: object, reason: str
) -> None:
    """Scenarios L8, L10, L17, L22: a holder cut off stops when trust ends, and says which kind of silence it was."""
    told: list[str] = []
    agent = gateway.agent()
    with pytest.raises(LeaseLost) as lost:
        async with agent, agent.lease(FILE, ttl_ms=30_000, on_lost=told.append) as lease:
            gateway.every = fault  # type: ignore[assignment]  # parametrized
            await gateway.clock.advance(26_999)
            assert (lease.is_trusted, lease.lost.is_set(), told) == (True, False, [])
            await gateway.clock.advance(1)
            assert (lease.is_trusted, lease.lost.is_set(), told) == (False, True, [reason])
            with pytest.raises(LeaseLost):
                lease.check()
            gateway.every = None
    assert lost.value.reason == reason
    renewals = [request for request in gateway.requests if request.target == RENEW]
    assert len({request.key for request in renewals}) == 1
    assert len({request.nonce for request in renewals}) == len(renewals) > 3


async def test_a_definite_refusal_ends_the_lease_at_once_and_for_ever(gateway: LocalGateway) -> None:
    """Scenario L24: no later renewal of the same grant succeeds, and none is tried."""
    agent = gateway.agent()
    with pytest.raises(LeaseLost, match="lease_expired"):
        async with agent, agent.lease(FILE, ttl_ms=30_000) as lease:
            gateway.live.clear()
            await gateway.clock.advance(10_000)
            assert lease.lost.is_set()
            await gateway.clock.advance(60_000)
    assert [request.target for request in gateway.requests] == [ACQUIRE, RENEW, RELEASE]


async def test_a_blocked_event_loop_never_sees_trust_after_its_end(gateway: LocalGateway) -> None:
    """Scenarios L19, L33: the loop was blocked past the end of trust; the first look says no, without any task."""
    agent = gateway.agent()
    with pytest.raises(LeaseLost) as lost:
        async with agent, agent.lease(FILE, ttl_ms=30_000) as lease:
            assert lease.is_trusted
            gateway.clock.jump(27_000)
            assert (lease.is_trusted, lease.lost.is_set()) == (False, True)
            # The gateway would still renew it; trust that ended stays ended.
            await gateway.clock.advance(1_000)
            assert not lease.is_trusted
    assert lost.value.reason == "blocked"
    assert RENEW not in [request.target for request in gateway.requests]


async def test_a_renewal_that_arrives_after_trust_ended_brings_nothing_back(gateway: LocalGateway) -> None:
    """The gateway renews, and its answer is on the way for longer than the trust lasts."""

    def slow(request: Request, answer: Callable[[], Reply]) -> Reply:
        reply = answer()
        gateway.clock.jump(17_000)
        return reply

    agent = gateway.agent()
    with pytest.raises(LeaseLost) as lost:
        async with agent, agent.lease(FILE, ttl_ms=30_000) as lease:
            gateway.faults = [slow]
            await gateway.clock.advance(10_000)
            assert (lease.is_trusted, lease.beats) == (False, 0)
    assert lost.value.reason == "unreachable"


async def test_a_release_that_is_refused_tells_that_the_lease_was_not_ours(gateway: LocalGateway) -> None:
    """The lease ended early at the gateway while this side trusted it: the body's work may have collided."""
    agent = gateway.agent()
    with pytest.raises(LeaseLost, match="lease_expired"):
        async with agent, agent.lease(FILE, ttl_ms=30_000) as lease:
            gateway.live.clear()
            assert lease.is_trusted


async def test_the_exception_of_the_body_comes_out_as_it_was_raised(gateway: LocalGateway) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=30_000):
            raise KeyError("mine")
    assert gateway.requests[-1].target == RELEASE
    assert gateway.live == {}


async def test_a_release_that_stays_unconfirmed_costs_only_the_ttl(gateway: LocalGateway) -> None:
    """Scenario L13: the body's work stands; the lease runs out by itself."""
    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=30_000):
        gateway.every = lost_answer
        gateway.clock.is_automatic = True
    assert gateway.live == {}
    releases = [request for request in gateway.requests if request.target == RELEASE]
    assert len({request.key for request in releases}) == 1
    assert len(releases) > 3


async def test_a_release_before_the_end_is_sent_once(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=30_000) as lease:
        await lease.release()
        await rest()
        assert not lease.is_trusted
        assert not lease.lost.is_set()
    assert [request.target for request in gateway.requests] == [ACQUIRE, RELEASE]


def test_a_held_lease_too_short_for_its_margin_is_refused_before_anything_is_sent(gateway: LocalGateway) -> None:
    with pytest.raises(ValueError, match="2000"):
        gateway.agent().lease(FILE, ttl_ms=1_999)
    assert gateway.requests == []


@pytest.mark.parametrize("lie", [{"fencingToken": 7}, {"resources": ["repo:app/src/b.py"]}])
async def test_a_renewal_of_something_else_is_no_renewal(gateway: LocalGateway, lie: JsonObject) -> None:
    """Scenes of a lying gateway: the signed request names a lease id only, so its evidence fits both."""
    decide = gateway._decide

    def lying(path: str, body: JsonObject, actor: str) -> tuple[str, JsonObject]:
        name, members = decide(path, body, actor)
        return name, {**members, **lie} if path == RENEW else members

    gateway._decide = lying  # type: ignore[method-assign]
    async with gateway.agent() as agent:
        with pytest.raises(LeaseLost, match="AnswerRefused"):
            async with agent.lease(FILE, ttl_ms=30_000) as lease:
                token = lease.fencing_token
                await gateway.clock.advance(10_000)
                assert (lease.is_trusted, lease.fencing_token, lease.resources) == (False, token, (FILE,))
