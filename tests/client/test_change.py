"""A held lease that goes over to another mode, or that others end: break, hand-over, the longest time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.client.errors import (
    AnswerRefused,
    Deadlock,
    HoldExceeded,
    InTheWay,
    LeaseBroken,
    LeaseChanged,
    LeaseHeld,
    LeaseLost,
    LeaseTransferred,
    LockDelayed,
    NotHeld,
    Queued,
    Refused,
    TokenStale,
)
from gateway.client.holdings import SeenLease
from gateway.client.transport import Reply
from tests.client.desk import Decision, Live
from tests.client.world import (
    ALICE,
    BOB,
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
from verifier.wire import JsonObject, Malformed

TTL_MS = 30_000


@pytest.fixture
def gateway() -> LocalGateway:
    gateway = LocalGateway(Book(), ManualClock())
    gateway.desk.classes = {"repo": "read-safe"}
    return gateway


def targets(gateway: LocalGateway) -> list[str]:
    return [request.target for request in gateway.requests]


# -- another mode ------------------------------------------------------------------------------------------------------


async def test_a_downgrade_lets_readers_in_and_goes_on_under_another_token(gateway: LocalGateway) -> None:
    grants = []
    async with (
        gateway.agent() as agent,
        gateway.agent(BOB) as bob,
        agent.lease(FILE, ttl_ms=TTL_MS, on_grant=lambda grant: grants.append(grant.receipt.type)) as lease,
    ):
        old_id, old_token, old_receipt = lease.lease_id, lease.fencing_token, lease.receipt
        with pytest.raises(LeaseHeld):
            await bob.acquire(FILE, mode="read")
        changed = await lease.change("read")
        assert (changed.mode, lease.mode, lease.resources) == ("read", "read", (FILE,))
        assert lease.lease_id == changed.lease_id != old_id
        assert lease.check() == changed.fencing_token > old_token
        assert lease.receipt != old_receipt
        await bob.acquire(FILE, mode="read")
        await gateway.clock.advance(40_000)
        assert lease.is_trusted
        assert lease.beats >= 3
        with pytest.raises(LeaseChanged) as ended:
            await agent.renew(old_id)
        assert ended.value.ended_seq == changed.receipt.seq
    assert grants[:2] == ["tallystick/lease.granted/1", "tallystick/lease.changed/1"]
    assert lease.lost.is_set() is False
    released = next(request for request in gateway.requests if request.target == RELEASE)
    assert f'"leaseId":"{changed.lease_id}"' in (released.body or b"").decode()
    assert [live.holder for live in gateway.live.values()] == [BOB.did]


async def test_an_upgrade_that_others_are_in_the_way_of_leaves_all_as_it_was(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, gateway.agent(BOB) as bob:
        async with agent.lease(FILE, mode="read", ttl_ms=TTL_MS) as lease:
            before = lease.grant
            await bob.acquire(FILE, mode="read")
            with pytest.raises(LeaseHeld) as held:
                await lease.change("write")
            assert held.value.holder == BOB.did
            assert (lease.grant, lease.is_trusted, lease.mode) == (before, True, "read")
            await bob.release(FILE)
            await lease.change("write")
            assert lease.mode == "write"
            with pytest.raises(LeaseHeld):
                await bob.acquire(FILE, mode="read")


@pytest.mark.parametrize("error", [Deadlock, LockDelayed, Queued])
async def test_every_refusal_of_a_change_has_its_kind_and_costs_nothing(
    gateway: LocalGateway, error: type[InTheWay]
) -> None:
    """Two that upgrade at once: the second would wait for the first for ever (scenario 35)."""
    async with gateway.agent(BOB) as bob, gateway.agent() as agent:
        await bob.acquire(FILE, mode="read")
        async with agent.lease(FILE, mode="read", ttl_ms=TTL_MS) as lease:
            gateway.desk.script = [lambda: refused_change(gateway, lease.lease_id, error)]
            with pytest.raises(error):
                await lease.change("write")
            assert lease.is_trusted
            await gateway.clock.advance(11_000)
            assert (lease.beats, lease.mode) == (1, "read")


def refused_change(gateway: LocalGateway, lease_id: str, error: type[InTheWay]) -> Decision:
    desk = gateway.desk
    asked: JsonObject = {"leaseId": lease_id, "ttlMs": TTL_MS, "mode": "write"}
    advice: JsonObject = {"stampede": {"admitted": True, "waitMs": 25}, "retryAfterMs": 25}
    held = desk.held_by(desk.on(FILE), (FILE,), "write")
    told: dict[type[InTheWay], JsonObject] = {
        Deadlock: {
            **held, "error": "deadlock", "number": 502, "waitingOn": FILE, "acquireOrder": [FILE],
            "cycle": [
                {"actor": ALICE.did, "resource": FILE, "mode": "write", "fencingToken": 1},
                {"actor": BOB.did, "resource": FILE, "mode": "write", "fencingToken": 2},
            ],
        },
        LockDelayed: {
            **advice, "error": "lock_delayed", "number": 415, "holder": BOB.did, "endedSeq": 1,
            "delayUntilMs": gateway.now_ms + 9_000,
        },
        Queued: {
            **advice, "error": "queued", "number": 501,
            "ahead": {
                "ticketId": "T1", "actor": BOB.did, "resource": FILE, "mode": "write", "queuedAtMs": gateway.now_ms,
            },
        },
    }  # fmt: skip
    return "renewal.refused", {**asked, **told[error]}


async def test_a_mode_that_is_none_is_named_and_costs_nothing(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=TTL_MS) as lease:
        with pytest.raises(Malformed, match="mode"):
            await lease.change("use")
        assert lease.is_trusted
    assert RENEW not in targets(gateway)


async def test_a_change_that_is_cancelled_is_finished_all_the_same(gateway: LocalGateway) -> None:
    """Scenario L52, for a change: nobody may be left in doubt about which of the two leases is held."""
    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=TTL_MS) as lease:
        old_id = lease.lease_id
        gateway.faults = [lost_answer]
        changing = asyncio.create_task(lease.change("read"))
        await rest()
        changing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await changing
        assert lease.lease_id == old_id
        await gateway.clock.advance(1_000)
        assert (lease.mode, lease.is_trusted) == ("read", True)
        assert lease.lease_id != old_id
    assert gateway.live == {}


async def test_a_heartbeat_and_a_change_never_speak_of_two_leases(gateway: LocalGateway) -> None:
    """The change is under way when the heartbeat is due, and the other way round: they take turns."""
    slow_ms = 3_000

    def after_a_while(request: Request, answer: Callable[[], Reply]) -> Reply:
        return status(503, **{"retry-after": str(slow_ms // 1000)})(request, answer)

    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=TTL_MS) as lease:
        await gateway.clock.advance(9_500)
        gateway.faults = [after_a_while]
        changing = asyncio.create_task(lease.change("read"))
        await gateway.clock.advance(slow_ms + 1_000)
        assert (await changing).mode == "read"
        await gateway.clock.advance(8_000)
        gateway.faults = [after_a_while]
        await gateway.clock.advance(2_500)
        changing = asyncio.create_task(lease.change("write"))
        await gateway.clock.advance(2 * slow_ms)
        assert (await changing).mode == "write"
        await gateway.clock.advance(60_000)
        assert lease.is_trusted
    assert lease.reason == ""
    assert gateway.live == {}


async def test_a_change_that_grants_something_else_ends_the_trust(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        with pytest.raises(LeaseLost, match="AnswerRefused"):
            async with agent.lease(FILE, ttl_ms=TTL_MS) as lease:
                live = gateway.desk.on(FILE)
                gateway.desk.script = [
                    lambda: ("lease.changed", gateway.desk._follow(_moved(live), "read", TTL_MS, ALICE.did, "x"))
                ]
                with pytest.raises(AnswerRefused, match="another lease"):
                    await lease.change("read")
                assert not lease.is_trusted


def _moved(live: Live) -> Live:
    live.lease["resources"] = ["repo:other"]
    return live


async def test_a_change_whose_answer_came_too_late_is_not_relied_on_and_given_back(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        with pytest.raises(LeaseLost):
            async with agent.lease(FILE, ttl_ms=TTL_MS) as lease:

                def sleeping(request: Request, answer: Callable[[], Reply]) -> Reply:
                    reply = answer()
                    gateway.clock.jump(27_000)
                    return reply

                gateway.faults = [sleeping]
                with pytest.raises(LeaseLost, match="blocked"):
                    await lease.change("read")
    assert gateway.live == {}


async def test_a_lease_that_is_lost_changes_no_more(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        with pytest.raises(LeaseLost):
            async with agent.lease(FILE, ttl_ms=TTL_MS) as lease:
                gateway.live.clear()
                with pytest.raises(Refused):
                    await lease.change("read")
                with pytest.raises(LeaseLost, match="lease_expired"):
                    await lease.change("read")
    assert targets(gateway).count(RENEW) == 1


# -- ended by others ---------------------------------------------------------------------------------------------------


async def test_the_holder_of_a_broken_lease_hears_it_at_its_next_heartbeat(gateway: LocalGateway) -> None:
    """Scenarios L15 and L48: the operator names the token it saw; the work is stopped with the reason."""
    reasons: list[str] = []
    async with gateway.agent() as agent, gateway.agent(BOB) as operator:
        with pytest.raises(LeaseLost, match="lease_broken"):
            async with agent.lease(FILE, ttl_ms=TTL_MS, on_lost=reasons.append) as lease:
                token = lease.fencing_token
                with pytest.raises(TokenStale) as stale:
                    await operator.break_lease("repo:app/**", token - 1, "holder-gone")
                assert stale.value.conflict["fencingToken"] == token
                assert stale.value.holder == ALICE.did
                broken = await operator.break_lease("repo:app/**", token, "holder-gone", reason_digest="ab" * 32)
                assert (broken.type, broken.leaf.text("reason")) == ("tallystick/lease.broken/1", "holder-gone")
                await gateway.clock.advance(10_000)
                assert reasons == ["lease_broken"]
        with pytest.raises(LeaseBroken) as ended:
            await agent.renew(lease.lease_id)
    assert ended.value.ended_seq == broken.seq


async def test_a_lease_that_was_taken_over_is_lost_to_its_giver_and_held_by_its_receiver(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, gateway.agent(BOB) as bob:
        with pytest.raises(LeaseLost, match="lease_transferred"):
            async with agent.lease(FILE, ttl_ms=TTL_MS) as lease:
                with pytest.raises(TokenStale):
                    await agent.transfer(SeenLease(lease.lease_id, 1), BOB.did, "shift-over")
                offered = await agent.transfer(lease, BOB.did, "shift-over")
                assert offered.leaf.text("toDid") == BOB.did
                await gateway.clock.advance(15_000)
                assert lease.is_trusted, "an offer changes nothing until it is accepted"
                taken = await bob.accept(lease.lease_id, ttl_ms=TTL_MS)
                async with bob.lease(taken.resources, mode=taken.mode, ttl_ms=TTL_MS) as mine:
                    assert (mine.lease_id, mine.fencing_token) == (taken.lease_id, taken.fencing_token)
                    await gateway.clock.advance(10_000)
                    assert (lease.reason, mine.is_trusted) == ("lease_transferred", True)
        with pytest.raises(LeaseTransferred):
            await agent.renew(lease.lease_id)


async def test_only_who_was_offered_a_lease_takes_it(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, gateway.agent(BOB) as bob:
        grant = await agent.acquire(FILE)
        with pytest.raises(Refused, match="not_offered"):
            await bob.accept(grant.lease_id)


# -- the longest time --------------------------------------------------------------------------------------------------


def exceeded(gateway: LocalGateway, lease_id: str) -> Decision:
    return "renewal.refused", {"leaseId": lease_id, "ttlMs": TTL_MS, "error": "hold_exceeded", "number": 414}


async def test_past_its_longest_time_a_lease_lasts_until_its_end_and_says_why_it_ended(gateway: LocalGateway) -> None:
    """Scenario L22: a third way to lose a lease, with a name of its own; L10: told before anybody else can have it."""
    async with gateway.agent() as agent:
        with pytest.raises(LeaseLost, match="hold_exceeded"):
            async with agent.lease(FILE, ttl_ms=TTL_MS) as lease:
                gateway.desk.script = [lambda: exceeded(gateway, lease.lease_id)] * 2
                start_ms = gateway.clock.steady_ms()
                await gateway.clock.advance(26_900)
                assert lease.is_trusted
                await gateway.clock.advance(200)
                assert lease.lost.is_set()
                assert gateway.clock.steady_ms() < start_ms + TTL_MS
    assert targets(gateway).count(RENEW) == 2, "a beat apart: asking all the time would be no help"


async def test_when_those_who_waited_have_left_the_lease_is_renewed_again(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.lease(FILE, ttl_ms=TTL_MS) as lease:
        gateway.desk.script = [lambda: exceeded(gateway, lease.lease_id)]
        with pytest.raises(HoldExceeded):
            await agent.renew(lease.lease_id, ttl_ms=TTL_MS)
        gateway.desk.script = [lambda: exceeded(gateway, lease.lease_id)]
        await gateway.clock.advance(25_000)
        assert (lease.is_trusted, lease.beats) == (True, 1)
        await gateway.clock.advance(60_000)
        assert lease.is_trusted


def test_not_held_is_no_refusal() -> None:
    """Nothing was sent, so there is no receipt to ask for."""
    assert not issubclass(NotHeld, Refused)
