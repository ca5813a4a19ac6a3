"""Standing in line: a ticket is claimed until it is served, and given up when its holder leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.client.agent import Agent
from gateway.client.caller import ATTEMPT_MS
from gateway.client.errors import (
    AlreadyWaiting,
    AnswerRefused,
    Deadlock,
    LeaseHeld,
    QueueFull,
    RequestRejected,
    StillWaiting,
    TicketEnded,
    Unreachable,
)
from gateway.client.line import HOLD_MS, Ticket, claim_until, give_up_ms, poll_until
from gateway.client.transport import Reply
from gateway.client.trust import Grant
from keys.signing import SigningKey
from tests.client.desk import POLL_MS, Decision
from tests.client.world import (
    ACQUIRE,
    ALICE,
    BOB,
    CANCEL,
    CLAIM,
    FILE,
    RELEASE,
    RENEW,
    Book,
    Fault,
    LocalGateway,
    ManualClock,
    Request,
    forged,
    key,
    lost_answer,
    lost_request,
    rest,
    status,
)
from verifier.wire import JsonObject, Malformed

TTL_MS = 30_000


@pytest.fixture
def gateway() -> LocalGateway:
    return LocalGateway(Book(), ManualClock())


@pytest.fixture
def quick(gateway: LocalGateway) -> LocalGateway:
    """The gateway, with a clock that moves by itself when somebody sleeps."""
    gateway.clock.is_automatic = True
    return gateway


async def hold(gateway: LocalGateway, ttl_ms: int = 3_600_000, *names: str) -> Grant:
    """Let Bob hold the file."""
    async with gateway.agent(BOB) as bob:
        grant = await bob.acquire(names or FILE, ttl_ms=ttl_ms)
    gateway.requests.clear()
    return grant


def targets(gateway: LocalGateway) -> list[str]:
    return [request.target for request in gateway.requests]


async def in_line(agent: Agent, wait_ms: int = 600_000, ttl_ms: int = TTL_MS) -> Grant:
    return await agent.wait_for(FILE, ttl_ms=ttl_ms, wait_ms=wait_ms)


# -- a turn ------------------------------------------------------------------------------------------------------------


async def test_what_is_free_is_granted_at_once(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        grant = await in_line(agent)
    assert grant.receipt.type == "tallystick/lease.granted/1"
    assert targets(gateway) == [ACQUIRE]


async def test_a_waiter_is_served_when_the_holder_lets_go(gateway: LocalGateway) -> None:
    """Scenario L30: one claim is kept waiting for its answer, and granted in place; nobody has to be woken."""
    held = await hold(gateway)
    async with gateway.agent() as agent, gateway.agent(BOB) as bob, asyncio.TaskGroup() as group:
        waiting = group.create_task(in_line(agent))
        await gateway.clock.advance(5_000)
        assert not waiting.done()
        await bob.release(FILE, held.lease_id)
        await gateway.clock.advance(100)
        grant = waiting.result()
    assert (grant.receipt.type, grant.resources, grant.mode) == ("tallystick/lease.claimed/1", (FILE,), "write")
    assert targets(gateway) == [ACQUIRE, CLAIM, RELEASE]
    assert gateway.requests[1].headers["prefer"] == "wait=20"


async def test_a_place_is_kept_by_claiming_again_and_each_claim_is_a_new_intention(quick: LocalGateway) -> None:
    await hold(quick, ttl_ms=65_000)
    async with quick.agent() as agent:
        grant = await in_line(agent)
    claims = [request for request in quick.requests if request.target == CLAIM]
    assert len(claims) == 7, "every ten seconds, as long as a claim is kept waiting here"
    assert len({request.key for request in claims}) == 7
    assert 60_000 < 6 * 10_000 + POLL_MS
    assert grant.receipt.type == "tallystick/lease.claimed/1"


async def test_waiters_are_served_in_the_order_they_came_whatever_their_patience(quick: LocalGateway) -> None:
    """Scenarios 32 and 33: five that came one after the other; the last is the most eager to poll."""
    await hold(quick, ttl_ms=20_000)
    served: list[int] = []

    async def wait(number: int) -> None:
        async with quick.agent(key(20 + number)) as agent, agent.lease(FILE, ttl_ms=TTL_MS, wait_ms=900_000 - number):
            served.append(number)
            await quick.clock.sleep(1_000)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(wait(number))
            await rest()
    assert served == [0, 1, 2, 3, 4]
    assert quick.desk.line == []


async def test_readers_share_and_a_writer_waits_for_all_of_them(quick: LocalGateway) -> None:
    quick.desk.classes = {"repo": "read-safe"}
    async with quick.agent() as alice, quick.agent(BOB) as bob, quick.agent(key(3)) as writer:
        first = await alice.acquire(FILE, mode="read", ttl_ms=8_000)
        second = await bob.acquire(FILE, mode="read", ttl_ms=12_000)
        start_ms = quick.clock.steady_ms()
        grant = await writer.wait_for(FILE, mode="write", ttl_ms=TTL_MS, wait_ms=60_000)
    assert (first.mode, second.mode, grant.mode) == ("read", "read", "write")
    assert quick.clock.steady_ms() - start_ms >= 12_000


async def test_a_plain_acquire_comes_after_those_in_line(quick: LocalGateway) -> None:
    await hold(quick, ttl_ms=10_000)
    async with quick.agent() as agent, quick.agent(key(3)) as third:
        answer = await agent.acquire(FILE, ttl_ms=TTL_MS, wait=True)
        assert isinstance(answer, Ticket)
        assert (answer.ticket_id, answer.position, answer.resources, answer.mode) == ("T2", 1, (FILE,), "write")
        quick.clock.jump(10_000)
        with pytest.raises(Exception, match="queued") as refused:
            await third.acquire(FILE)
        assert refused.value.__class__.__name__ == "Queued"
        granted = await agent.claim(answer)
        assert isinstance(granted, Grant)


# -- leaving -----------------------------------------------------------------------------------------------------------


async def test_when_the_budget_is_over_the_place_is_given_up_and_the_refusal_names_the_holder(
    quick: LocalGateway,
) -> None:
    """Scenario 2: never a silent end; the last word is a receipted refusal with all its facts."""
    await hold(quick)
    start_ms = quick.clock.steady_ms()
    async with quick.agent() as agent:
        with pytest.raises(LeaseHeld) as refused:
            await in_line(agent, wait_ms=25_000)
    assert quick.clock.steady_ms() - start_ms == 25_000
    assert refused.value.holder == BOB.did
    assert targets(quick)[-2:] == [CANCEL, ACQUIRE]
    assert quick.desk.line == []


async def test_the_ledger_is_asked_to_keep_the_place_no_longer_than_the_budget(quick: LocalGateway) -> None:
    await hold(quick, ttl_ms=20_000)
    async with quick.agent() as agent:
        await in_line(agent, wait_ms=25_000)
    assert b'"giveUpMs":25000' in (quick.requests[0].body or b"")
    assert [give_up_ms(budget) for budget in (-1, 400, 7_000, 10**9)] == [1_000, 1_000, 7_000, 3_600_000]


async def test_who_is_cancelled_leaves_the_line(gateway: LocalGateway) -> None:
    await hold(gateway)
    async with gateway.agent() as agent:
        waiting = asyncio.create_task(in_line(agent))
        await gateway.clock.advance(3_000)
        assert len(gateway.desk.line) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert targets(gateway) == [ACQUIRE, CLAIM, CANCEL]
    assert gateway.desk.line == []


async def test_a_held_lease_that_is_cancelled_while_it_waits_leaves_the_line(gateway: LocalGateway) -> None:
    await hold(gateway)
    async with gateway.agent() as agent:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), agent.lease(FILE, ttl_ms=TTL_MS, wait_ms=600_000):
                pytest.fail("granted")
    assert gateway.desk.line == []


UNFORESEEN: list[tuple[Fault, type[Exception]]] = [
    (forged(lambda answer: {"ok": True, "receipt": {}}), AnswerRefused),
    (status(400, "member_invalid"), RequestRejected),
]


@pytest.mark.parametrize(("fault", "error"), UNFORESEEN)
async def test_an_unforeseen_error_leaves_no_ticket_behind(
    gateway: LocalGateway, fault: Fault, error: type[Exception]
) -> None:
    """Scenario L32 (hazelcast#17697): whoever fails does not go on standing in line."""
    await hold(gateway)
    gateway.faults = [lambda request, answer: answer(), fault]
    async with gateway.agent() as agent:
        with pytest.raises(error):
            await in_line(agent)
    assert targets(gateway) == [ACQUIRE, CLAIM, CANCEL]
    assert gateway.desk.line == []


async def test_a_lease_that_was_claimed_unnoticed_is_given_back(quick: LocalGateway) -> None:
    """The claim was decided, its answer never came, the claimer gives up: what the ticket brought is freed."""
    await hold(quick, ttl_ms=5_000)

    def deaf(request: Request, answer: Callable[[], Reply]) -> Reply:
        return lost_answer(request, answer) if request.target == CLAIM else answer()

    async with quick.agent() as agent:
        quick.every = deaf
        quick.clock.jump(1)
        answer = await agent.acquire(FILE, ttl_ms=TTL_MS, wait=True)
        assert isinstance(answer, Ticket)
        quick.clock.jump(5_000)
        with pytest.raises(Unreachable):
            await in_line_with(agent, answer)
    assert targets(quick)[-2:] == [CANCEL, RELEASE]
    assert quick.live == {}


async def in_line_with(agent: Agent, ticket: Ticket) -> Grant | None:
    return await claim_until(agent, ticket, agent.clock.steady_ms() + 60_000)


async def test_a_line_that_can_not_be_left_is_not_waited_for(quick: LocalGateway) -> None:
    """The gateway is gone for good: the error is told within seconds of the claim's, and the ticket lapses there."""
    await hold(quick)
    async with quick.agent() as agent:
        quick.faults = [lambda request, answer: answer()]
        quick.every = lost_request
        start_ms = quick.clock.steady_ms()
        with pytest.raises(Unreachable):
            await in_line(agent)
        assert quick.clock.steady_ms() - start_ms < 60_000
        quick.every = None


# -- places that are lost, and lines that are full ---------------------------------------------------------------------


async def test_a_lost_place_is_taken_anew_while_the_budget_lasts(quick: LocalGateway) -> None:
    """Scenario L2: this machine slept past its poll; the ledger dropped the ticket and says so, and we queue again."""
    await hold(quick, ttl_ms=120_000)

    def sleeping(request: Request, answer: Callable[[], Reply]) -> Reply:
        quick.clock.jump(POLL_MS + 1)
        return answer()

    quick.faults = [lambda request, answer: answer(), sleeping]
    async with quick.agent() as agent:
        grant = await in_line(agent)
    assert targets(quick)[:3] == [ACQUIRE, CLAIM, ACQUIRE]
    assert CANCEL not in targets(quick)
    assert grant.receipt.type == "tallystick/lease.claimed/1"


async def test_a_place_that_is_lost_at_the_end_is_told(quick: LocalGateway) -> None:
    await hold(quick)

    def sleeping(request: Request, answer: Callable[[], Reply]) -> Reply:
        quick.clock.jump(POLL_MS + 1)
        return answer()

    quick.faults = [lambda request, answer: answer(), sleeping]
    async with quick.agent() as agent:
        with pytest.raises(TicketEnded):
            await in_line(agent, wait_ms=20_000)


def refusal(error: str, number: int, **members: object) -> Decision:
    told: JsonObject = {
        "resources": [FILE], "mode": "write", "ttlMs": TTL_MS, "wait": True, "error": error, "number": number,
    }  # fmt: skip
    return "lease.refused", {**told, **members}  # type: ignore[dict-item]  # JSON, all of it


FULL = refusal("queue_full", 503, stampede={"admitted": True, "waitMs": 25}, retryAfterMs=4_321)
ALREADY = refusal("already_waiting", 504, ticketId="T1")


async def test_a_full_line_is_asked_again_when_it_says(quick: LocalGateway) -> None:
    quick.desk.script = [FULL]
    quick.clock.slept.clear()
    async with quick.agent() as agent:
        grant = await in_line(agent)
    assert quick.clock.slept == [4_321]
    assert grant.receipt.type == "tallystick/lease.granted/1"


async def test_a_line_that_stays_full_is_told_at_the_end(quick: LocalGateway) -> None:
    quick.desk.script = [FULL] * 9
    start_ms = quick.clock.steady_ms()
    async with quick.agent() as agent:
        with pytest.raises(QueueFull) as full:
            await in_line(agent, wait_ms=10_000)
    assert full.value.retry_after_ms == 4_321
    assert quick.clock.steady_ms() - start_ms == 10_000


async def test_the_ticket_of_a_run_that_crashed_is_waited_out(quick: LocalGateway) -> None:
    """Scenario 3: kill −9 leaves a ticket behind for half a minute; the next run neither takes it over nor fails."""
    await hold(quick, 3_600_000, "repo:b")
    quick.desk.script = [ALREADY] * 5
    quick.clock.slept.clear()
    async with quick.agent() as agent:
        grant = await in_line(agent)
    assert grant.receipt.type == "tallystick/lease.granted/1"
    assert len(quick.clock.slept) == 5
    assert 8_000 < sum(quick.clock.slept) < 60_000


async def test_a_ticket_of_this_key_that_stays_is_named(quick: LocalGateway) -> None:
    await hold(quick, 3_600_000, "repo:b")
    quick.desk.script = [ALREADY] * 99
    async with quick.agent() as agent:
        with pytest.raises(AlreadyWaiting) as already:
            await in_line(agent, wait_ms=10_000)
    assert already.value.ticket_id == "T1"


# -- deadlock ----------------------------------------------------------------------------------------------------------


def cycle(actor: SigningKey, token: int, ticket_id: str | None = None) -> list[JsonObject]:
    """Alice (asking) waits for the file of Bob, Bob for the other one of Alice."""
    first: JsonObject = {"actor": actor.did, "resource": FILE, "mode": "write", "fencingToken": token}
    if ticket_id is not None:
        first["ticketId"] = ticket_id
    second: JsonObject = {"actor": BOB.did, "resource": "repo:b", "mode": "write", "fencingToken": token + 1}
    return [first, second]


async def test_a_deadlock_is_raised_at_once_whatever_the_budget(quick: LocalGateway) -> None:
    """Scenario 35: the cycle, and the order in which it would not have come about."""
    held = await hold(quick)
    desk = quick.desk

    def deadlocked() -> Decision:
        desk.now_ms = quick.now_ms
        found = desk.held_by(desk.on(FILE), (FILE,), "write")
        ring = cycle(ALICE, held.fencing_token)
        extra: JsonObject = {"waitingOn": "repo:b", "cycle": [*ring], "acquireOrder": [FILE, "repo:b"]}
        name, members = refusal("deadlock", 502)
        return name, {**found, **members, **extra}

    desk.script = [deadlocked]
    start_ms = quick.clock.steady_ms()
    async with quick.agent() as agent:
        with pytest.raises(Deadlock) as found:
            await in_line(agent)
        assert quick.clock.steady_ms() == start_ms
        deadlock = found.value
        assert (deadlock.holder, deadlock.waiting_on) == (BOB.did, "repo:b")
        assert deadlock.acquire_order == (FILE, "repo:b")
        assert [(row.actor, row.resource, row.fencing_token) for row in deadlock.cycle] == [
            (ALICE.did, FILE, held.fencing_token),
            (BOB.did, "repo:b", held.fencing_token + 1),
        ]
        desk.script = [lambda: _plain(deadlocked())]
        with pytest.raises(Deadlock):
            await agent.acquire(FILE, ttl_ms=TTL_MS, wait_ms=60_000)
    assert targets(quick) == [ACQUIRE, ACQUIRE], "asking again is no help"


def _plain(decision: Decision) -> Decision:
    return decision[0], {**decision[1], "wait": False}


async def test_who_waits_into_a_deadlock_knowingly_gets_a_ticket_that_shows_it(quick: LocalGateway) -> None:
    held = await hold(quick)

    def queued() -> Decision:
        seq, now_ms = quick.desk.seq, quick.desk.now_ms
        ring = cycle(ALICE, held.fencing_token, f"T{seq}")
        return "wait.queued", {
            "resources": [FILE], "mode": "write", "ttlMs": TTL_MS, "giveUpMs": 3_600_000, "ticketId": f"T{seq}",
            "pollByMs": now_ms + POLL_MS, "giveUpByMs": now_ms + 3_600_000, "position": 1,
            "cycle": list(ring),
        }  # fmt: skip

    quick.desk.script = [queued]
    async with quick.agent() as agent:
        ticket = await agent.acquire(FILE, ttl_ms=TTL_MS, wait=True, on_deadlock="wait")
    assert isinstance(ticket, Ticket)
    assert [row.actor for row in ticket.cycle] == [ALICE.did, BOB.did]
    assert b'"onDeadlock":"wait"' in (quick.requests[0].body or b"")


# -- what is believed --------------------------------------------------------------------------------------------------


async def test_a_claim_that_grants_something_else_is_refused(quick: LocalGateway) -> None:
    """The body of a claim names a ticket and no resources: those are checked against the queueing."""
    await hold(quick, ttl_ms=5_000)

    def other_names() -> Decision:
        ticket = quick.desk.line[0]
        granted = quick.desk._grant(("repo:other",), "write", TTL_MS, ALICE.did)
        return "lease.claimed", {**granted, "ticketId": ticket.ticket_id, "ticketSeq": ticket.seq}

    async with quick.agent() as agent:
        ticket = await agent.acquire(FILE, ttl_ms=TTL_MS, wait=True)
        quick.desk.script = [other_names]
        with pytest.raises(AnswerRefused, match="another lease than T2 was queued for"):
            await agent.claim(ticket if isinstance(ticket, Ticket) else "")


async def test_trust_in_a_claimed_lease_counts_from_the_first_attempt_of_its_claim(gateway: LocalGateway) -> None:
    """Protocol 20.1: nine seconds of being kept waiting, and a lost answer, are nine seconds and more of its trust."""
    held = await hold(gateway)
    clock = gateway.clock
    async with gateway.agent() as agent, gateway.agent(BOB) as bob, asyncio.TaskGroup() as group:
        waiting = group.create_task(in_line(agent))
        await rest()
        sent_ms = clock.steady_ms()
        await clock.advance(9_000)
        await bob.release(FILE, held.lease_id)
        await clock.advance(200)
        grant = waiting.result()
    assert grant.sent_ms == sent_ms
    assert grant.trust_ends_ms == sent_ms + 27_000 < grant.expires_at_ms - clock.wall_offset


async def test_a_lease_whose_trust_was_used_up_in_line_is_renewed_before_it_is_used(gateway: LocalGateway) -> None:
    """Scenarios L8 and L19: a short ttl, a long poll; entering means that there is trust."""
    held = await hold(gateway)
    async with gateway.agent() as agent, gateway.agent(BOB) as bob:

        async def use() -> int:
            async with agent.lease(FILE, ttl_ms=4_000, wait_ms=60_000) as lease:
                return lease.trust_ends_in_ms

        using = asyncio.create_task(use())
        await gateway.clock.advance(9_000)
        await bob.release(FILE, held.lease_id)
        await gateway.clock.advance(300)
        assert await using == 3_000
    assert targets(gateway)[:5] == [ACQUIRE, CLAIM, RELEASE, RENEW, RELEASE]


# -- being kept waiting ------------------------------------------------------------------------------------------------


async def test_an_attempt_lasts_as_long_as_it_may_be_kept_waiting_and_then_some(gateway: LocalGateway) -> None:
    await hold(gateway)
    async with gateway.agent() as agent:
        ticket = await agent.acquire(FILE, ttl_ms=TTL_MS, wait=True)
        assert isinstance(ticket, Ticket)
        await agent.claim(ticket)
        claiming = asyncio.create_task(agent.claim(ticket, hold_ms=HOLD_MS))
        await gateway.clock.advance(10_000)
        await claiming
    assert [request.timeout_ms for request in gateway.requests] == [ATTEMPT_MS, ATTEMPT_MS, ATTEMPT_MS + HOLD_MS]
    assert ["prefer" in request.headers for request in gateway.requests] == [False, False, True]


async def test_a_gateway_that_keeps_nobody_waiting_is_not_asked_without_a_breath(quick: LocalGateway) -> None:
    """Scenario 33: no poll in lockstep and none without a pause, even if `Prefer` is not honoured."""
    await hold(quick, ttl_ms=20_000)
    quick.every = lambda request, answer: answer()  # a fault is not parked
    async with quick.agent() as agent:
        await in_line(agent)
    claims = targets(quick).count(CLAIM)
    assert 10 <= claims <= 22
    assert all(500 <= pause <= 1_500 for pause in quick.clock.slept)


@pytest.mark.parametrize("names", [[f"repo:{n}" for n in range(17)], [f"repo:{n}{'x' * 253}" for n in range(17)][:16]])
async def test_more_names_than_a_ticket_may_have_are_asked_for_as_advised(
    quick: LocalGateway, names: list[str]
) -> None:
    await hold(quick, 3_000, *names)
    async with quick.agent() as agent:
        with pytest.raises(Malformed, match="at most 16"):
            await agent.acquire(names, wait=True)
        grant = await agent.wait_for(names, wait_ms=60_000)
    assert grant.receipt.type == "tallystick/lease.granted/1"
    assert set(targets(quick)) == {ACQUIRE}


async def test_a_ticket_known_by_its_id_goes_on_where_another_process_left_it(quick: LocalGateway) -> None:
    """Scenario 39: a model's call is cut after half a minute; a command outside goes on with the ticket."""
    await hold(quick, ttl_ms=45_000)
    async with quick.agent() as agent:
        first = await agent.acquire(FILE, ttl_ms=TTL_MS, wait=True)
        assert isinstance(first, Ticket)
    async with quick.agent() as agent:
        kept = await poll_until(agent, first.ticket_id, agent.clock.steady_ms() + 20_000)
        assert isinstance(kept, Ticket)
        assert kept.poll_by_ms == quick.now_ms + POLL_MS
        assert str(StillWaiting(kept)) == f"ticket {first.ticket_id} is number 1 in line"
        served = await poll_until(agent, kept, agent.clock.steady_ms() + 60_000)
    assert isinstance(served, Grant)
    assert served.resources == (FILE,)
