"""Waiting over HTTP: claims are parked, woken in the order of their tickets, and nothing of them is ever lost or left.

Real keys, real SQLite, real sockets; every scene ends before the real verifier.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unicodedata import unidata_version

import pytest

from gateway.errors import Fatal
from gateway.store.sqlite import SqliteStore
from tests.web.test_decisions import check_holds, leaf_of
from tests.web.test_lifecycle import read_reply, send_only
from tests.web.test_problems import check_problem
from tests.web.world import Reply, World, make, world

SWEEP_MS = 20
PATIENCE_S = 20.0  # nothing here takes that long unless it hangs


@asynccontextmanager
async def fast(folder: Path, **parameters: Any) -> AsyncIterator[World]:
    made = make(folder / "data", sweep_ms=SWEEP_MS, **parameters)
    async with world(folder / "data", made) as place:
        yield place
        place.audit()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[World]:
    async with fast(tmp_path) as found:
        yield found


async def queue(place: World, name: str, *resources: str, **options: Any) -> str:
    """Let an agent stand in line; return the id of its ticket."""
    named = {"resource": resources[0]} if len(resources) == 1 else {"resources": list(resources)}
    reply = await place.ask(name, "lease.acquire", **named, wait=True, **options)
    leaf = leaf_of(reply)
    assert (reply.status, leaf["type"]) == (202, "tallystick/wait.queued/1"), reply.body
    check_holds(place, reply)
    return str(leaf["ticketId"])


async def claim(place: World, name: str, ticket_id: str, prefer: str = "", **options: Any) -> Reply:
    message = place.signed(await place.agent(name), "wait.claim", ticketId=ticket_id, **options)
    return await place.send(message.adding("Prefer", prefer) if prefer else message)


async def is_parked(place: World, count: int = 1) -> None:
    """Return when so many claims are parked."""
    async with asyncio.timeout(PATIENCE_S):
        while len(place.gateway.house.sequencer.parking) != count:  # noqa: ASYNC110  # it tells nobody who enters
            await asyncio.sleep(0.002)


async def park(place: World, name: str, ticket_id: str, **options: Any) -> asyncio.Task[Reply]:
    """Let an agent claim with patience; return when the claim is parked beside those that were."""
    before = len(place.gateway.house.sequencer.parking)
    task = asyncio.create_task(claim(place, name, ticket_id, "wait=10", **options))
    await is_parked(place, before + 1)
    return task


async def give_back(place: World, name: str, lease: Any) -> Reply:
    reply = await place.ask(name, "lease.release", resources=lease["resources"], leaseId=lease["leaseId"])
    assert reply.status == 200, reply.body
    return reply


async def soon(work: Awaitable[Reply]) -> Reply:
    async with asyncio.timeout(PATIENCE_S):
        return await work


def check_claimed(place: World, reply: Reply, ticket_id: str) -> Any:
    """Assert that an answer grants the lease of a ticket; return its leaf."""
    leaf = leaf_of(reply)
    assert (reply.status, leaf["type"], leaf["ticketId"]) == (200, "tallystick/lease.claimed/1", ticket_id), reply.body
    check_holds(place, reply)
    return leaf


# -- granted in place --------------------------------------------------------------------------------------------------


async def test_a_parked_claim_is_granted_in_place_when_the_holder_releases(place: World) -> None:
    """Scenarios 39, L28."""
    held = leaf_of(await place.acquire("a", "lock:x"))
    ticket_id = await queue(place, "b", "lock:x")
    waiting, size = await park(place, "b", ticket_id), place.gateway.house.sequencer.confirmed.size
    assert place.gateway.house.sequencer.queue_depth == 0, "who is parked stands in no line"
    await asyncio.sleep(0.05)
    assert place.gateway.house.sequencer.confirmed.size == size, "nothing of a parked claim is durable"
    await give_back(place, "a", held)
    reply = await soon(waiting)
    assert reply.headers["preference-applied"] == "wait=10"
    leaf = check_claimed(place, reply, ticket_id)
    assert leaf["fencingToken"] > held["fencingToken"]
    assert place.types(size) == ["lease.released", "wait.offered", "lease.claimed"]


async def test_a_parked_claim_is_granted_when_the_holders_lease_runs_out(place: World) -> None:
    """Scenarios 3, L28: the holder is dead and sends nothing; the sweeper passes the turn on."""
    await place.acquire("a", "lock:x", ttlMs=1_000)
    ticket_id = await queue(place, "b", "lock:x")
    started_s = time.monotonic()
    check_claimed(place, await soon(await park(place, "b", ticket_id)), ticket_id)
    assert time.monotonic() - started_s < 9, "not because the client's patience was over"
    assert "lease.expired" in place.types()


async def test_a_parked_claim_is_granted_when_an_operator_breaks_the_lease(place: World) -> None:
    """Scenarios L15, L48: the late holder learns it at its next call."""
    held = leaf_of(await place.acquire("a", "lock:x"))
    ticket_id = await queue(place, "b", "lock:x")
    waiting = await park(place, "b", ticket_id)
    broken = await place.ask(
        "op", "lease.break", resource="lock:x", seenToken=held["fencingToken"], reason="holder-hangs"
    )
    assert (broken.status, leaf_of(broken)["type"]) == (200, "tallystick/lease.broken/1"), broken.body
    check_claimed(place, await soon(waiting), ticket_id)
    late = await place.ask("a", "lease.renew", leaseId=held["leaseId"])
    assert (late.status, late.json["error"]) == (409, "lease_broken")


async def test_three_who_wait_are_served_in_the_order_of_their_tickets(place: World) -> None:
    """Scenarios 32, 33: patience and haste change nothing."""
    held = leaf_of(await place.acquire("a", "lock:x"))
    names = ["b", "c", "d"]
    tickets = {name: await queue(place, name, "lock:x") for name in names}
    tasks = {name: await park(place, name, tickets[name]) for name in reversed(names)}
    holder = "a"
    for name in names:
        await give_back(place, holder, held)
        held, holder = check_claimed(place, await soon(tasks.pop(name)), tickets[name]), name
        assert not any(task.done() for task in tasks.values())
    await give_back(place, holder, held)


async def test_fifty_wait_and_each_release_wakes_exactly_one(place: World) -> None:
    """Scenarios 32, 33: no herd, no starving; 50 waiters cost one claim each."""
    held = leaf_of(await place.acquire("a", "lock:x"))
    names = [f"w{number}" for number in range(50)]
    tickets = {name: await queue(place, name, "lock:x") for name in names}
    tasks = {name: await park(place, name, tickets[name]) for name in names}
    tally, holder = place.gateway.house.sequencer.parking.tally, "a"
    for served, name in enumerate(names, 1):
        await give_back(place, holder, held)
        held, holder = check_claimed(place, await soon(tasks[name]), tickets[name]), name
        assert (tally.woken, len(place.gateway.house.sequencer.parking)) == (served, 50 - served)
        if served == 5:
            break
    size = place.gateway.house.sequencer.confirmed.size
    for name in names[5:]:
        tasks[name].cancel()
    await is_parked(place, 0)
    assert place.gateway.house.sequencer.confirmed.size == size
    assert place.types().count("wait.polled") == 0


async def test_a_grant_whose_answer_was_lost_is_found_again(place: World) -> None:
    """Scenario L12: one place in line, one grant, the same bytes."""
    held = leaf_of(await place.acquire("a", "lock:x"))
    ticket_id = await queue(place, "b", "lock:x")
    waiting = await park(place, "b", ticket_id, idempotency_key="k")
    await give_back(place, "a", held)
    first = await soon(waiting)
    again = await claim(place, "b", ticket_id, "wait=10", idempotency_key="k")
    assert (again.status, again.body, again.headers["idempotency-replayed"]) == (200, first.body, "true")


async def test_nobody_is_missed_however_claims_and_releases_meet(place: World) -> None:
    """Scenario L30: claim and release race; who parks too late for the wake-up must find the offer itself."""
    await asyncio.gather(*(place.agent(name) for name in "ab"))
    for number in range(40):
        held = leaf_of(await place.acquire("a", f"lock:{number}"))
        ticket_id = await queue(place, "b", f"lock:{number}")

        async def later(delay_s: float, lease: Any) -> Reply:
            await asyncio.sleep(delay_s)
            return await give_back(place, "a", lease)

        started_s = time.monotonic()
        _, reply = await asyncio.gather(later(number * 0.0002, held), claim(place, "b", ticket_id, "wait=10"))
        assert time.monotonic() - started_s < 5, number
        check_claimed(place, reply, ticket_id)


# -- how long ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefer", ["", "wait", "wait=", "wait=x", "wait=-1", 'wait="5"', "respond-async", "wait=0", "wait=5 (", "Wait=5s"]
)
async def test_without_a_wish_that_can_be_read_a_claim_is_decided_at_once(place: World, prefer: str) -> None:
    await place.acquire("a", "lock:x")
    ticket_id = await queue(place, "b", "lock:x")
    reply = await claim(place, "b", ticket_id, prefer)
    leaf = leaf_of(reply)
    assert (reply.status, leaf["type"], leaf["position"]) == (202, "tallystick/wait.polled/1", 1)
    assert "preference-applied" not in reply.headers
    check_holds(place, reply)


@pytest.mark.parametrize(("prefer", "held_s"), [("wait=9", 1), ("respond-async, wait=1", 1)])
async def test_a_claim_is_polled_when_its_time_is_over(tmp_path: Path, prefer: str, held_s: int) -> None:
    """Scenario 39: a third of pollMs at most, so that the ticket is still there; then it has its full time again."""
    async with fast(tmp_path, poll_ms=3_000) as place:
        await place.acquire("a", "lock:x")
        ticket_id = await queue(place, "b", "lock:x")
        started_s = time.monotonic()
        reply = await claim(place, "b", ticket_id, prefer)
        assert time.monotonic() - started_s >= held_s
        leaf = leaf_of(reply)
        assert (reply.status, reply.headers["preference-applied"]) == (202, f"wait={held_s}")
        assert leaf["pollByMs"] == leaf["timeMs"] + 3_000


async def test_the_deadline_of_the_door_leaves_room_for_the_parking_time(tmp_path: Path) -> None:
    made = make(tmp_path / "data", poll_ms=9_000)
    async with world(tmp_path / "data", made, handler_seconds=1) as place:
        await place.acquire("a", "lock:x")
        ticket_id = await queue(place, "b", "lock:x")
        reply = await claim(place, "b", ticket_id, "wait=3")
        assert (reply.status, reply.headers["preference-applied"]) == (202, "wait=3")
        place.audit()


async def test_impatient_waiters_do_not_hold_up_the_line_when_the_holder_dies(tmp_path: Path) -> None:
    """Scenarios L2, L27: ten gave up long ago; the eleventh is served at once, and none of the dead is offered."""
    async with fast(tmp_path, poll_ms=6_000) as place:
        await place.acquire("a", "lock:x", ttlMs=4_000)
        for number in range(10):
            await queue(place, f"w{number}", "lock:x", giveUpMs=1_000)
        ticket_id = await queue(place, "z", "lock:x")
        while (reply := await soon(claim(place, "z", ticket_id, "wait=10"))).status == 202:
            pass
        check_claimed(place, reply, ticket_id)
        types = place.types()
        assert (types.count("wait.removed"), types.count("wait.offered")) == (10, 1)


# -- what is decided at once -------------------------------------------------------------------------------------------


async def test_unknown_foreign_and_ended_tickets_are_refused_at_once(place: World) -> None:
    held = leaf_of(await place.acquire("a", "lock:x"))
    ticket_id = await queue(place, "b", "lock:x")
    for name, asked, status, error in (
        ("b", "T999999", 404, "ticket_unknown"),
        ("c", ticket_id, 403, "ticket_not_yours"),
    ):
        reply = await claim(place, name, asked, "wait=10")
        assert (reply.status, reply.json["error"], "preference-applied" in reply.headers) == (status, error, False)
    await place.ask("b", "wait.cancel", ticketId=ticket_id)
    reply = await claim(place, "b", ticket_id, "wait=10")
    assert (reply.status, reply.json["error"]) == (409, "ticket_ended")
    await give_back(place, "a", held)


async def test_a_second_claim_of_a_ticket_is_decided_at_once_and_the_first_still_waits(place: World) -> None:
    held = leaf_of(await place.acquire("a", "lock:x"))
    ticket_id = await queue(place, "b", "lock:x")
    first = await park(place, "b", ticket_id)
    second = await claim(place, "b", ticket_id, "wait=10")
    assert (second.status, "preference-applied" in second.headers, first.done()) == (202, False, False)
    await give_back(place, "a", held)
    check_claimed(place, await soon(first), ticket_id)


async def test_a_copy_of_a_claim_takes_nobodys_place(place: World) -> None:
    """Evidence is public: who sends a claim again must not stop its signer from waiting."""
    held = leaf_of(await place.acquire("a", "lock:x"))
    ticket_id = await queue(place, "b", "lock:x")
    message = place.signed(await place.agent("b"), "wait.claim", ticketId=ticket_id)
    assert (await place.send(message)).status == 202
    check_problem(await place.send(message.adding("Prefer", "wait=10")), "nonce_reused", 409, "number", "seq")
    waiting = await park(place, "b", ticket_id)
    await give_back(place, "a", held)
    check_claimed(place, await soon(waiting), ticket_id)


async def test_a_cancelled_ticket_sends_its_parked_claim_on(place: World) -> None:
    await place.acquire("a", "lock:x")
    ticket_id = await queue(place, "b", "lock:x")
    waiting = await park(place, "b", ticket_id)
    assert (await place.ask("b", "wait.cancel", ticketId=ticket_id)).status == 200
    reply = await soon(waiting)
    assert (reply.status, reply.json["error"]) == (409, "ticket_ended")


# -- clients and gateways that go away ---------------------------------------------------------------------------------


async def test_a_client_that_goes_away_leaves_nothing_behind_and_keeps_its_place(place: World) -> None:
    """Scenarios L12, L32, L55."""
    held = leaf_of(await place.acquire("a", "lock:x"))
    ticket_id = await queue(place, "b", "lock:x")
    size, parking = place.gateway.house.sequencer.confirmed.size, place.gateway.house.sequencer.parking
    message = place.signed(await place.agent("b"), "wait.claim", ticketId=ticket_id, idempotency_key="k")
    _, writer = await send_only(place, message.adding("Prefer", "wait=10"))
    await is_parked(place)
    writer.transport.abort()
    await is_parked(place, 0)
    assert (parking.tally.left, place.gateway.house.sequencer.confirmed.size) == (1, size)
    waiting = await park(place, "b", ticket_id, idempotency_key="k")
    await give_back(place, "a", held)
    reply = await soon(waiting)
    check_claimed(place, reply, ticket_id)
    assert "idempotency-replayed" not in reply.headers, "nothing was decided for the connection that was lost"


async def test_a_stop_sends_parked_claims_away_at_once_and_their_tickets_live_on(tmp_path: Path) -> None:
    """Scenarios 18, 45: stop, start, and everybody goes on where they were."""
    made = make(tmp_path / "data", sweep_ms=SWEEP_MS)
    async with world(tmp_path / "data", made) as place:
        held = leaf_of(await place.acquire("a", "lock:x"))
        names = [f"w{number}" for number in range(10)]
        tickets = {name: await queue(place, name, "lock:x") for name in names}
        sent = []
        for number, name in enumerate(names, 1):
            message = place.signed(await place.agent(name), "wait.claim", ticketId=tickets[name])
            sent.append(await send_only(place, message.adding("Prefer", "wait=10")))
            await is_parked(place, number)
        agents, started_s = place.agents, time.monotonic()
    assert time.monotonic() - started_s < 5, "nothing waits for who waits"
    for connection in sent:
        reply = await read_reply(*connection)
        assert reply is not None
        check_problem(reply, "draining", 503)
        assert (reply.headers["retry-after"], reply.headers["connection"]) == ("5", "close")
    async with world(tmp_path / "data", made) as place:
        place.agents = agents
        waiting = await park(place, names[0], tickets[names[0]])
        await give_back(place, "a", held)
        check_claimed(place, await soon(waiting), tickets[names[0]])
        polled = await claim(place, names[1], tickets[names[1]])
        assert (polled.status, leaf_of(polled)["position"]) == (202, 1)
        place.audit()


async def test_while_draining_no_claim_is_parked(place: World) -> None:
    await place.acquire("a", "lock:x")
    ticket_id = await queue(place, "b", "lock:x")
    place.gateway.drain.is_draining = True
    check_problem(await claim(place, "b", ticket_id, "wait=10"), "draining", 503)


async def test_a_gateway_that_fails_tells_those_who_are_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path / "data", sweep_ms=SWEEP_MS)
    async with world(tmp_path / "data", made) as place:
        await place.acquire("a", "lock:x")
        ticket_id = await queue(place, "b", "lock:x")
        waiting = await park(place, "b", ticket_id)

        def broken(*_: object) -> None:
            raise Fatal("the disk is gone")

        monkeypatch.setattr(SqliteStore, "commit", broken)
        check_problem(await place.acquire("a", "lock:y"), "recovering", 503)
        check_problem(await soon(waiting), "recovering", 503)


# -- bounds ------------------------------------------------------------------------------------------------------------


async def test_claims_wait_on_half_of_the_connections_and_leave_the_others_to_those_who_give_back(
    tmp_path: Path,
) -> None:
    """Scenario L34: who waits never delays a release."""
    made = make(tmp_path / "data", sweep_ms=SWEEP_MS)
    async with world(tmp_path / "data", made, connections_max=8) as place:
        held = leaf_of(await place.acquire("a", "lock:x"))
        names = [f"w{number}" for number in range(5)]
        tickets = {name: await queue(place, name, "lock:x") for name in names}
        tasks = [await park(place, name, tickets[name]) for name in names[:4]]
        full = await claim(place, names[4], tickets[names[4]], "wait=10")
        check_problem(full, "busy", 503)
        assert (full.json["detail"], int(full.headers["retry-after"]) >= 1) == ("parking_full", True)
        await give_back(place, "a", held)
        check_claimed(place, await soon(tasks[0]), tickets[names[0]])
        for task in tasks[1:]:
            task.cancel()
        await is_parked(place, 0)
        place.audit()


async def test_a_claim_that_waits_costs_one_decision(tmp_path: Path) -> None:
    async with fast(tmp_path, rate_per_second=1, rate_burst=3) as place:
        held = leaf_of(await place.acquire("a", "lock:x"))
        ticket_id = await queue(place, "b", "lock:x")
        waiting = await park(place, "b", ticket_id)
        await give_back(place, "a", held)
        check_claimed(place, await soon(waiting), ticket_id)
        assert (await place.acquire("b", "lock:y")).status == 200, "one of three is left"


async def test_a_request_may_not_wait_longer_than_entry_0_says(tmp_path: Path) -> None:
    async with fast(tmp_path, wait_max_ms=60_000) as place:
        await place.acquire("a", "lock:x")
        for options in ({}, {"giveUpMs": 60_001}):
            reply = await place.acquire("b", "lock:x", wait=True, **options)
            check_problem(reply, "member_invalid", 400)
            assert "60,000" in reply.json["detail"]
        assert (await place.acquire("b", "lock:x", wait=True, giveUpMs=60_000)).status == 202
        assert (await place.acquire("c", "lock:y", wait=False)).status == 200


async def test_a_name_with_a_character_that_unicode_does_not_know_yet_is_refused_at_the_door(place: World) -> None:
    """Scenario 24's kind: its normal form may be another one tomorrow."""
    size = place.gateway.house.sequencer.confirmed.size
    for members in ({"resource": "repo:\u0378"}, {"resources": ["repo:a", "repo:b/\U000e1000"]}):
        reply = await place.ask("a", "lease.acquire", **members)
        check_problem(reply, "member_invalid", 400)
        assert unidata_version in reply.json["detail"]
    assert place.types(size) == ["agent.added"]


# -- what a refusal says to an HTTP client -----------------------------------------------------------------------------


async def test_every_refusal_that_advises_a_wait_says_so_to_http_too(place: World) -> None:
    held = leaf_of(await place.acquire("a", "lock:x"))
    refused = await place.acquire("b", "lock:x")
    assert (refused.status, refused.json["error"], refused.json["retryAfterMs"]) == (409, "lease_held", 25)
    assert refused.headers["retry-after"] == "1"
    again = await place.acquire("b", "lock:x", idempotency_key="k")
    replay = await place.acquire("b", "lock:x", idempotency_key="k")
    assert (replay.headers["retry-after"], replay.body) == (again.headers["retry-after"], again.body)
    ticket_id = await queue(place, "c", "lock:x")
    await give_back(place, "a", held)
    queued = await place.acquire("a", "lock:x")
    assert (queued.status, queued.json["error"]) == (409, "queued")
    assert int(queued.headers["retry-after"]) == -(-leaf_of(queued)["retryAfterMs"] // 1_000)
    assert "retry-after" not in (await place.ask("b", "wait.claim", ticketId=ticket_id)).headers


# -- sharing, circles, sub-trees ---------------------------------------------------------------------------------------


async def test_readers_at_the_head_go_together_and_who_writes_behind_them_stops_later_readers(place: World) -> None:
    """Scenario 32: bounded bypass; one release wakes exactly the next compatible run."""
    assert (await place.ask("op", "scheme.set", **{"name": "doc", "class": "read-safe"})).status == 200
    held = leaf_of(await place.acquire("a", "doc:x"))
    readers = [await queue(place, name, "doc:x", mode="read") for name in "bc"]
    writer, late = await queue(place, "d", "doc:x"), await queue(place, "e", "doc:x", mode="read")
    tasks = [
        await park(place, name, ticket_id) for name, ticket_id in zip("bcde", [*readers, writer, late], strict=True)
    ]
    await give_back(place, "a", held)
    first, second = [
        check_claimed(place, await soon(task), ticket_id) for task, ticket_id in zip(tasks, readers, strict=False)
    ]
    assert (place.gateway.house.sequencer.parking.tally.woken, tasks[2].done(), tasks[3].done()) == (2, False, False)
    row = (await place.get("/api/v1/acp/coordination/wait?resource=doc:x")).json["resources"][0]
    assert [lease["leaseId"] for lease in row["leases"]] == [first["leaseId"], second["leaseId"]]
    assert [(one["ticketId"], one["mode"]) for one in row["queue"]] == [(writer, "write"), (late, "read")]
    await give_back(place, "b", first)
    await give_back(place, "c", second)
    written = check_claimed(place, await soon(tasks[2]), writer)
    assert not tasks[3].done()
    await give_back(place, "d", written)
    check_claimed(place, await soon(tasks[3]), late)


async def test_who_would_close_a_circle_is_told_within_one_call_and_the_picture_shows_the_pair(place: World) -> None:
    """Scenario 35: A holds x and waits for y, B holds y and asks for x."""
    x, y = leaf_of(await place.acquire("a", "lock:x")), leaf_of(await place.acquire("b", "lock:y"))
    ticket_id = await queue(place, "a", "lock:y")
    refused = await place.acquire("b", "lock:x", wait=True)
    answer = refused.json
    assert (refused.status, answer["error"], answer["waitingOn"]) == (409, "deadlock", "lock:y")
    assert answer["acquireOrder"] == ["lock:x", "lock:y"]
    assert [(row["resource"], row.get("fencingToken"), row.get("ticketId")) for row in answer["cycle"]] == [
        ("lock:x", x["fencingToken"], None), ("lock:y", y["fencingToken"], ticket_id),
    ]  # fmt: skip
    check_holds(place, refused)
    waiting = await park(place, "a", ticket_id)
    await give_back(place, "b", y)
    check_claimed(place, await soon(waiting), ticket_id)
    assert (await place.get("/api/v1/acp/coordination/wait")).json["deadlocks"] == []


async def test_circles_that_somebody_insisted_on_are_shown_until_one_gives_way(place: World) -> None:
    """Scenarios 35, 37."""
    await place.acquire("a", "repo:app/**")
    y = leaf_of(await place.acquire("b", "repo:lib/y"))
    first = await queue(place, "a", "repo:lib/**")
    second = await queue(place, "b", "repo:app/x", onDeadlock="wait")
    actors = sorted(place.agents[name].did for name in "ab")
    pair = {"actors": actors, "resources": ["repo:app/x", "repo:lib/**"]}
    assert (await place.get("/api/v1/acp/coordination/wait")).json["deadlocks"] == [pair]
    waiting = await park(place, "a", first)
    assert (await place.ask("b", "wait.cancel", ticketId=second)).status == 200
    await give_back(place, "b", y)
    check_claimed(place, await soon(waiting), first)


async def test_a_lease_that_was_handed_over_keeps_the_line_waiting_for_its_new_holder(place: World) -> None:
    held = leaf_of(await place.acquire("a", "lock:x"))
    ticket_id = await queue(place, "b", "lock:x")
    waiting = await park(place, "b", ticket_id)
    offered = await place.ask(
        "op", "lease.transfer", leaseId=held["leaseId"], seenToken=held["fencingToken"],
        toDid=(await place.agent("c")).did, reason="shift-over",
    )  # fmt: skip
    assert (offered.status, offered.json["offer"]["toDid"]) == (200, place.agents["c"].did), offered.body
    accepted = await place.ask("c", "lease.accept", leaseId=held["leaseId"])
    assert (accepted.status, leaf_of(accepted)["type"]) == (200, "tallystick/lease.transferred/1"), accepted.body
    late = await place.ask("a", "lease.renew", leaseId=held["leaseId"])
    assert (late.status, late.json["error"], waiting.done()) == (409, "lease_transferred", False)
    await give_back(place, "c", leaf_of(accepted))
    check_claimed(place, await soon(waiting), ticket_id)


async def test_trust_moves_with_the_entries_and_is_shown_with_the_last(tmp_path: Path) -> None:
    """Scenarios 3, 47: a lease that runs out costs its holder; empty pairs don't buy it back."""
    async with fast(tmp_path, trust_gain_hold_ms=0, holiday_ms=0) as place:
        key = await place.agent("a")

        async def trust() -> tuple[int, str]:
            found = (await place.get(f"/api/v1/acp/coordination/trust?did={key.did}")).json
            kind = place.types(found["lastSeq"])[0] if found["lastSeq"] is not None else ""
            return found["trust"], kind

        assert await trust() == (50_000, "")
        await place.acquire("a", "lock:x", ttlMs=1_000)
        ticket_id = await queue(place, "b", "lock:x")
        check_claimed(place, await soon(await park(place, "b", ticket_id)), ticket_id)
        assert await trust() == (45_000, "lease.expired")
        for number in range(10):
            held = leaf_of(await place.acquire("a", f"lock:{number}"))
            await give_back(place, "a", held)
        assert await trust() == (46_000, "lease.released")
