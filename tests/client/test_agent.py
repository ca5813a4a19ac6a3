"""The agent against a network that loses, delays and forges: what is retried, what is believed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.client.agent import Agent
from gateway.client.caller import DISPUTE_MS, RETRY_MS
from gateway.client.errors import (
    AnswerRefused,
    ClientError,
    ClockWrong,
    LeaseEnded,
    LeaseHeld,
    LeaseLost,
    LedgerBehind,
    NotEnrolled,
    RequestRejected,
    SplitView,
    UnknownHistory,
    Unreachable,
)
from gateway.client.profile import SEEN
from gateway.client.receipts import Sent, check_is_answer_to, open_receipt
from gateway.client.transport import Reply
from gateway.client.trust import Grant
from tests.client.world import (
    ACQUIRE,
    ALICE,
    BOB,
    FILE,
    Book,
    Fault,
    LocalGateway,
    ManualClock,
    Request,
    forged,
    key,
    lost_answer,
    lost_request,
    status,
)
from verifier.keyring import KeyLine
from verifier.wire import JsonObject, JsonValue, Malformed, encode_base64, encode_canonical

OTHER = "repo:app/src/b.py"


@pytest.fixture
def gateway() -> LocalGateway:
    clock = ManualClock()
    clock.is_automatic = True
    return LocalGateway(Book(), clock)


# -- retries -----------------------------------------------------------------------------------------------------------

SILENCES: list[tuple[str, Fault]] = [
    ("the answer is lost", lost_answer),
    ("the request is lost", lost_request),
    ("429", status(429, "rate_limited", **{"retry-after": "1"})),
    ("503 busy", status(503, "busy", **{"retry-after": "1"})),
    ("503 recovering", status(503, "recovering", **{"retry-after": "5"})),
    ("502 of a proxy", status(502)),
    ("408", status(408, "body_too_slow")),
    ("409 in flight", status(409, "in_flight", **{"retry-after": "1"})),
    ("409 nonce reused", status(409, "nonce_reused")),
]


@pytest.mark.parametrize("fault", [row[1] for row in SILENCES], ids=[row[0] for row in SILENCES])
async def test_silence_is_met_with_the_same_key_and_a_fresh_signature(gateway: LocalGateway, fault: Fault) -> None:
    """Scenario 40: a retry is decided once, however often the answer got lost."""
    gateway.faults = [fault, fault]
    async with gateway.agent() as agent:
        grant = await agent.acquire(FILE)
    first, second, third = gateway.requests
    assert first.key == second.key == third.key
    assert first.body == second.body == third.body
    assert len({first.nonce, second.nonce, third.nonce}) == 3
    assert len({request.headers["signature"] for request in gateway.requests}) == 3
    assert (grant.receipt.seq, len(gateway.book.leaves)) == (1, 2)


def nobody_listens(request: Request, answer: Callable[[], Reply]) -> Reply:
    raise Unreachable("http://127.0.0.1:1 can't be reached: connection refused", is_refused=True)


async def test_where_nobody_listens_a_read_fails_at_once_and_a_decision_is_tried_and_told_once(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(gateway, "_open", lambda request: nobody_listens(request, lambda: Reply(503, {}, b"")))
    gateway.every = nobody_listens
    profile = gateway.book.profile(ALICE)
    agent = Agent(profile, clock=gateway.clock, jitter=lambda: 0.5, connect=lambda url: gateway, on_silence=told.append)
    async with agent:
        began = gateway.clock.steady
        with pytest.raises(Unreachable):
            await agent.leases()
        assert gateway.clock.steady - began < 1_000
        with pytest.raises(Unreachable):
            await agent.acquire(FILE)
        assert gateway.clock.steady - began > RETRY_MS // 2
    assert told == [RETRY_MS]


@pytest.mark.parametrize(
    ("faults", "is_unknown"),
    [
        ([nobody_listens] * 99, False),
        ([status(429)] * 99, False),
        ([status(404)], False),
        ([lost_answer, *[nobody_listens] * 99], True),
        ([lost_request, status(404)], True),
        ([status(503)] * 99, True),
        ([status(200)], True),
    ],
)
async def test_an_error_says_whether_it_may_have_been_decided_all_the_same(
    gateway: LocalGateway, faults: list[Fault], is_unknown: bool
) -> None:
    """What a later attempt meets says nothing about an earlier one that may have come through."""
    gateway.faults = faults
    async with gateway.agent() as agent:
        with pytest.raises(ClientError) as raised:
            await agent.acquire(FILE)
    assert raised.value.is_unknown is is_unknown


async def test_the_gateways_retry_after_is_a_floor(gateway: LocalGateway) -> None:
    gateway.faults = [status(503, **{"retry-after": "7"})]
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
    assert gateway.clock.slept == [7_050]


async def test_backing_off_grows_and_stops_growing(gateway: LocalGateway) -> None:
    gateway.faults = [lost_request] * 9
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
    assert gateway.clock.slept == [50, 100, 200, 400, 800, 1_600, 2_500, 2_500, 2_500]


async def test_silence_ends_at_the_deadline_with_the_outcome_unknown(gateway: LocalGateway) -> None:
    gateway.every = lost_answer
    start_ms = gateway.clock.steady_ms()
    async with gateway.agent() as agent:
        with pytest.raises(Unreachable):
            await agent.acquire(FILE)
    assert RETRY_MS - 5_000 <= gateway.clock.steady_ms() - start_ms <= RETRY_MS
    assert len({request.key for request in gateway.requests}) == 1


async def test_two_intentions_have_two_keys(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        await agent.acquire(OTHER)
    assert len({request.key for request in gateway.requests}) == 2


DEFINITE = [
    (status(400, "member_invalid"), RequestRejected),
    (status(401, "agent_unknown"), NotEnrolled),
    (status(403, "agent_removed"), NotEnrolled),
    (status(422, "idempotency_mismatch"), RequestRejected),
    (status(302, "elsewhere", location="https://other.example/"), AnswerRefused),
]


@pytest.mark.parametrize(("fault", "error"), DEFINITE)
async def test_a_definite_answer_is_raised_at_once(
    gateway: LocalGateway, fault: Fault, error: type[ClientError]
) -> None:
    gateway.faults = [fault]
    async with gateway.agent() as agent:
        with pytest.raises(error):
            await agent.acquire(FILE)
    assert len(gateway.requests) == 1


async def test_a_body_that_breaks_the_table_is_never_sent(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        with pytest.raises(Malformed):
            await agent.acquire("no-scheme")
        with pytest.raises(Malformed):
            await agent.acquire(FILE, ttl_ms=999)
    assert gateway.requests == []


# -- refusals and waiting ----------------------------------------------------------------------------------------------


async def hold(gateway: LocalGateway, ttl_ms: int = 60_000) -> None:
    """Let Bob hold the file."""
    async with gateway.agent(BOB) as bob:
        await bob.acquire(FILE, ttl_ms=ttl_ms)
    gateway.requests.clear()


async def test_a_refusal_carries_the_facts_of_its_verified_leaf(gateway: LocalGateway) -> None:
    await hold(gateway)
    async with gateway.agent() as agent:
        with pytest.raises(LeaseHeld) as refused:
            await agent.acquire([FILE, OTHER])
    held = refused.value
    live = gateway.desk.on(FILE)
    assert (held.error, held.number, held.holder, held.holder_name) == ("lease_held", 408, BOB.did, "worker-7")
    assert (held.resource, held.expires_at_ms, held.conflicts) == (FILE, live.expires_at_ms, 1)
    assert (held.stampede.is_admitted, held.stampede.wait_ms, held.retry_after_ms) == (True, 25, 25)
    assert held.conflict["fencingToken"] == live.lease["fencingToken"]


async def test_a_waiter_follows_the_advice_with_jitter_and_then_waits_for_the_end(gateway: LocalGateway) -> None:
    """Scenarios 2 and 33: eight tries with growing waits, then silence until the lease can have ended."""
    await hold(gateway, ttl_ms=60_000)
    gateway.clock.slept.clear()
    async with gateway.agent() as agent:
        grant = await agent.acquire(FILE, wait_ms=120_000)
    advised = [25, 50, 100, 200, 400, 800, 800, 800]
    assert gateway.clock.slept[:8] == [wait + wait // 2 for wait in advised]
    assert len(gateway.requests) == 8 + 2
    keys = {request.key for request in gateway.requests}
    assert len(keys) == len(gateway.requests), "each try after a refusal is a new intention"
    assert grant.receipt.leaf.actor == ALICE.did


async def test_a_waiter_that_may_not_try_looks_for_an_early_release(gateway: LocalGateway) -> None:
    await hold(gateway, ttl_ms=3_600_000)
    path = f"/api/v1/acp/coordination/wait?resource={FILE}"
    gateway.views[path] = {"resources": []}
    gateway.desk.refusals = 8
    start_ms = gateway.clock.steady_ms()
    async with gateway.agent() as agent:
        with pytest.raises(LeaseHeld):
            await agent.acquire(FILE, wait_ms=5_000)
        tries = len(gateway.requests)
        gateway.live.clear()
        await agent.acquire(FILE, wait_ms=5_000)
    assert tries > 2, "the view said free, so it tried, and believed the refusal"
    assert gateway.clock.steady_ms() - start_ms < 10_000


async def test_waiting_ends_with_one_last_try(gateway: LocalGateway) -> None:
    await hold(gateway, ttl_ms=3_600_000)
    start_ms = gateway.clock.steady_ms()
    async with gateway.agent() as agent:
        with pytest.raises(LeaseHeld):
            await agent.acquire(FILE, wait_ms=60_000)
    assert gateway.clock.steady_ms() - start_ms == 60_000
    assert gateway.requests[-1].target == ACQUIRE


async def test_a_lease_that_ended_is_told_apart(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        grant = await agent.acquire(FILE, ttl_ms=2_000)
        gateway.clock.jump(2_000)
        with pytest.raises(LeaseEnded) as ended:
            await agent.renew(grant.lease_id)
    assert (ended.value.error, ended.value.number) == ("lease_expired", 405)


# -- forgeries ---------------------------------------------------------------------------------------------------------


async def test_convenience_members_that_lie_change_nothing(gateway: LocalGateway) -> None:
    """The answer says granted to me with token 1; the receipt says who really holds it."""
    await hold(gateway)
    lie: JsonObject = {"ok": True, "lease": {"leaseId": "L1", "fencingToken": 1, "holder": ALICE.did}}
    gateway.faults = [forged(lambda answer: {**lie, "receipt": answer["receipt"]})]
    async with gateway.agent() as agent:
        with pytest.raises(LeaseHeld) as refused:
            await agent.acquire(FILE)
    assert refused.value.holder == BOB.did


def unsigned(answer: JsonObject) -> JsonObject:
    receipt = _receipt(answer)
    receipt["signatures"] = [{"keyid": "x", "sig": encode_base64(bytes(64))}]
    return {**answer, "receipt": receipt}


def without_receipt(answer: JsonObject) -> JsonObject:
    return {"ok": True, "lease": {"leaseId": "L1", "fencingToken": 1}}


def edited(answer: JsonObject) -> JsonObject:
    receipt = _receipt(answer)
    payload = str(receipt["payload"])
    receipt["payload"] = payload[:-8] + ("A" if payload[-8] != "A" else "B") + payload[-7:]
    return {**answer, "receipt": receipt}


def without_proof(answer: JsonObject) -> JsonObject:
    receipt = _receipt(answer)
    del receipt["proof"]
    return {**answer, "receipt": receipt}


def _receipt(answer: JsonObject) -> JsonObject:
    receipt = answer["receipt"]
    assert isinstance(receipt, dict)
    return dict(receipt)


@pytest.mark.parametrize("change", [unsigned, without_receipt, edited, without_proof])
async def test_an_answer_that_does_not_verify_is_no_answer(
    gateway: LocalGateway, change: Callable[[JsonObject], JsonObject]
) -> None:
    gateway.faults = [forged(change)]
    async with gateway.agent() as agent:
        with pytest.raises(AnswerRefused):
            await agent.acquire(FILE)
    assert len(gateway.requests) == 1


async def test_the_receipt_of_another_ledgers_keys_is_refused(gateway: LocalGateway) -> None:
    thief = LocalGateway(Book(seed=201), gateway.clock)
    gateway.faults = [lambda request, answer: thief._answer(request)]
    async with gateway.agent() as agent:
        with pytest.raises(AnswerRefused):
            await agent.acquire(FILE)


def replaying(old: Reply) -> Fault:
    return lambda request, answer: old


async def answer_to(gateway: LocalGateway, agent: Agent, resource: str = FILE) -> Reply:
    """Let `agent` acquire, and return the answer as it came."""
    await agent.acquire(resource)
    return list(gateway.answers.values())[-1]


async def test_a_genuine_receipt_of_another_actor_is_refused(gateway: LocalGateway) -> None:
    async with gateway.agent(BOB) as bob:
        bobs = await answer_to(gateway, bob)
    gateway.faults = [replaying(bobs)]
    async with gateway.agent() as agent:
        with pytest.raises(AnswerRefused, match="actor"):
            await agent.acquire(FILE)


async def test_ones_own_receipt_of_yesterday_is_refused(gateway: LocalGateway) -> None:
    """The same body, the same actor, a genuine grant: only key and nonce tell that it answers another call."""
    async with gateway.agent() as agent:
        old = await answer_to(gateway, agent)
        gateway.faults = [replaying(old)]
        with pytest.raises(AnswerRefused, match="idempotency key"):
            await agent.acquire(FILE)


async def test_a_receipt_for_another_body_is_refused(gateway: LocalGateway) -> None:
    """The gateway decides another wish than the one that was sent, under our own key and nonce: it can't sign it."""

    def other_body(request: Request, answer: Callable[[], Reply]) -> Reply:
        assert request.body is not None
        return gateway._answer(
            Request(request.method, request.target, request.headers, request.body.replace(b"a.py", b"b.py"))
        )

    gateway.faults = [other_body]
    async with gateway.agent() as agent:
        with pytest.raises(AnswerRefused):
            await agent.acquire(FILE)


async def test_an_entry_of_another_action_is_refused(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        await agent.release(FILE)
        released = list(gateway.answers.values())[-1]
        gateway.faults = [replaying(released)]
        with pytest.raises(AnswerRefused, match="no answer to"):
            await agent.acquire(FILE)


async def test_an_entry_below_the_anchor_that_its_request_had_seen_is_refused(gateway: LocalGateway) -> None:
    """The gateway went back in its history: the entry stands where the client's own checkpoint already had another."""
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        await agent.acquire(OTHER)
        shorter = Book()
        shorter.append("ledger.disputed", _dispute(shorter), actor="gateway", time_ms=gateway.clock.wall_ms())
        backwards = LocalGateway(shorter, gateway.clock)
        gateway.faults = [lambda request, answer: backwards._answer(request)]
        with pytest.raises(AnswerRefused, match="anchor"):
            await agent.acquire("repo:app/src/c.py")


def _dispute(book: Book) -> JsonObject:
    return {"checkpoint": book.checkpoint().decode(), "size": 1, "root": encode_base64(book.tree.root(1))}


async def test_what_an_earlier_process_asked_for_is_held_and_trusted_no_more(gateway: LocalGateway) -> None:
    """Nobody knows any more when it was sent, so the lease may be over by now; this process has to renew first."""
    asked: JsonObject = {"resource": FILE}
    async with gateway.agent() as before:
        first = await before.caller.decide("lease.acquire", asked, idempotency_key="once")
    async with gateway.agent() as after:
        again = await after.caller.decide("lease.acquire", asked, idempotency_key="once")
    assert again.receipt.data == first.receipt.data
    assert Grant(first.receipt, first.sent_ms).trust_ends_ms > gateway.clock.steady_ms()
    assert Grant(again.receipt, again.sent_ms).trust_ends_ms < gateway.clock.steady_ms()


async def test_an_answer_is_accepted_for_exactly_the_request_that_was_sent(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        receipt = (await agent.acquire(FILE)).receipt
    (request,) = gateway.requests
    assert request.body is not None
    sent = Sent("lease.acquire", ALICE.did, ACQUIRE, request.body, request.key, {"older" * 5, request.nonce})
    assert check_is_answer_to(receipt.leaf, sent) == request.nonce
    others = [
        replace(sent, action="lease.renew"),
        replace(sent, did=BOB.did),
        replace(sent, path="/elsewhere"),
        replace(sent, body=b"{}"),
        replace(sent, idempotency_key="other"),
        replace(sent, nonces={"older" * 5}),
    ]
    for other in others:
        with pytest.raises(AnswerRefused):
            check_is_answer_to(receipt.leaf, other)


async def test_a_receipt_that_is_only_signed_is_not_enough(gateway: LocalGateway) -> None:
    """The log key is known to be stolen: the verdict is open, and open is no."""
    async with gateway.agent() as agent:
        receipt = (await agent.acquire(FILE)).receipt
    assert open_receipt(receipt.data, gateway.book.keyring).seq == receipt.seq
    stolen = KeyLine("log", gateway.book.log_vkey, 0, 8, "compromised", 9, bytes(32))
    gateway.book.key_lines = (stolen, gateway.book.key_lines[1])
    with pytest.raises(AnswerRefused):
        open_receipt(receipt.data, gateway.book.keyring)


async def test_another_entry_than_the_one_asked_for_is_refused(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        gateway.views["/api/v1/acp/ledger/receipts/1"] = gateway.book.receipt(1)
        assert (await agent.receipt(1)).seq == 1
        gateway.views["/api/v1/acp/ledger/receipts/0"] = gateway.book.receipt(1)
        with pytest.raises(AnswerRefused, match="asked for entry 0"):
            await agent.receipt(0)


# -- history -----------------------------------------------------------------------------------------------------------


async def test_the_anchor_is_the_newest_checkpoint_and_at_first_entry_0(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        await agent.acquire(OTHER)
    sizes = [request.headers["tallystick-anchor"].split(" ")[1] for request in gateway.requests]
    roots = [request.headers["tallystick-anchor"].split(" ")[2] for request in gateway.requests]
    assert sizes == ["1", "2"]
    assert roots == [encode_base64(gateway.book.genesis), encode_base64(gateway.book.tree.root(2))]


async def test_two_roots_of_one_size_are_a_split_view_and_are_posted(gateway: LocalGateway) -> None:
    """Two calls are under way at once, and the gateway answers them from two histories."""
    twin = LocalGateway(Book(), gateway.clock)
    gateway.faults = [lambda request, answer: answer(), lambda request, answer: twin._answer(request)]
    async with gateway.agent() as agent:
        with pytest.raises(SplitView, match="of 2 entries") as split:
            await asyncio.gather(agent.acquire(FILE), agent.acquire(OTHER))
    assert [split.value.ours, split.value.theirs] == [gateway.book.checkpoint(2), twin.book.checkpoint(2)]
    assert gateway.disputes == [split.value.ours, split.value.theirs]


async def forked(gateway: LocalGateway, agent: Agent) -> LocalGateway:
    """Let the gateway answer one call from a second history whose sizes never meet those of the first."""
    fork = LocalGateway(Book(), gateway.clock)
    while fork.book.tree.size < gateway.book.tree.size:
        fork.book.append("ledger.disputed", _dispute(fork.book), actor="gateway", time_ms=gateway.clock.wall_ms())
    gateway.faults = [lambda request, answer: fork._answer(request)]
    await agent.acquire(OTHER)
    gateway.book = fork.book
    return fork


async def test_a_fork_that_two_answers_can_not_show_is_found_by_the_proof(gateway: LocalGateway) -> None:
    with pytest.raises(SplitView, match="does not contain"):
        async with gateway.agent() as agent:
            await agent.acquire(FILE)
            await agent.prove_history()
            await forked(gateway, agent)
            with pytest.raises(SplitView, match="does not contain"):
                await agent.check_history()


async def test_an_answer_from_a_fork_is_found_though_the_checkpoint_is_honest_again(gateway: LocalGateway) -> None:
    honest = gateway.book
    with pytest.raises(SplitView):
        async with gateway.agent() as agent:
            await agent.acquire(FILE)
            await agent.prove_history()
            await forked(gateway, agent)
            gateway.book = honest
            while honest.tree.size < 9:
                honest.append("ledger.disputed", _dispute(honest), actor="gateway", time_ms=gateway.clock.wall_ms())
            with pytest.raises(SplitView):
                await agent.check_history()


async def test_a_fork_during_a_session_is_found_at_its_end_and_not_written_down(
    gateway: LocalGateway, tmp_path: Path
) -> None:
    async with gateway.agent(home=tmp_path) as agent:
        await agent.acquire(FILE)
    known = (tmp_path / SEEN).read_bytes()
    with pytest.raises(SplitView) as split:
        async with gateway.agent(home=tmp_path) as agent:
            fork = await forked(gateway, agent)
    assert [split.value.ours, split.value.theirs] == [known, fork.book.checkpoint(3)]
    assert (tmp_path / SEEN).read_bytes() == known


async def test_a_held_lease_does_not_outlive_a_fork_by_more_than_a_minute_of_heartbeats() -> None:
    gateway = LocalGateway(Book(), ManualClock())
    with pytest.raises(SplitView):
        async with gateway.agent() as agent:
            with pytest.raises(LeaseLost, match="SplitView"):
                async with agent.lease(FILE, ttl_ms=30_000) as lease:
                    await gateway.clock.advance(61_000)
                    assert lease.is_trusted
                    await forked(gateway, agent)
                    await gateway.clock.advance(70_000)
                    assert lease.lost.is_set()


async def test_a_denied_checkpoint_is_posted_as_a_dispute(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        gateway.faults = [status(409, "unknown_history")]
        with pytest.raises(UnknownHistory, match=r"seen\.note"):
            await agent.acquire(OTHER)
    assert gateway.disputes == [gateway.book.checkpoint(2)]


DENIED = [status(409, "unknown_history")]
BUSY_DOOR = [
    ("429", status(429, "rate_limited", **{"retry-after": "1"}), 1_050),
    ("503", status(503, "busy", **{"retry-after": "2"}), 2_050),
    ("silence", lost_request, 50),
]


@pytest.mark.parametrize(("fault", "slept_ms"), [row[1:] for row in BUSY_DOOR], ids=[row[0] for row in BUSY_DOOR])
async def test_a_dispute_is_posted_again_when_the_door_says_not_now(
    gateway: LocalGateway, fault: Fault, slept_ms: int
) -> None:
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        gateway.faults, gateway.dispute_faults = list(DENIED), [fault]
        with pytest.raises(UnknownHistory):
            await agent.acquire(OTHER)
    assert gateway.disputes == [gateway.book.checkpoint(2)] * 2
    assert gateway.clock.slept == [slept_ms]


async def test_a_dispute_that_nobody_takes_holds_nobody_up(
    gateway: LocalGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Best effort: the news goes to the caller within seconds; a refused note is not sent twice."""
    start_ms = gateway.clock.steady_ms()
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        for faults in ([status(503)] * 99, [status(422, "dispute_invalid")]):
            gateway.faults, gateway.dispute_faults = list(DENIED), list(faults)
            with pytest.raises(UnknownHistory):
                await agent.acquire(OTHER)
    assert gateway.clock.steady_ms() - start_ms <= DISPUTE_MS
    assert len(gateway.disputes) > 3
    assert [record.message[:34] for record in caplog.records] == [
        "the dispute could not be posted: t"[:34],
        "the dispute could not be posted: d",
    ]
    assert len(gateway.dispute_faults) == 0


async def test_a_session_remembers_and_the_next_one_checks_that_history_only_grew(
    gateway: LocalGateway, tmp_path: Path
) -> None:
    async with gateway.agent(home=tmp_path) as agent:
        for number in range(5):
            await agent.acquire(f"repo:app/{number}")
    assert (tmp_path / SEEN).read_bytes() == gateway.book.checkpoint(6)
    for _ in range(7):
        gateway.book.append("ledger.disputed", _dispute(gateway.book), actor="gateway", time_ms=gateway.clock.wall_ms())
    async with gateway.agent(home=tmp_path) as agent:
        assert agent.caller.seen.anchor.split(" ")[1] == "13"
    assert (tmp_path / SEEN).read_bytes() == gateway.book.checkpoint(13)


async def test_another_history_is_noticed_at_the_start_of_a_session(gateway: LocalGateway, tmp_path: Path) -> None:
    async with gateway.agent(home=tmp_path) as agent:
        for number in range(5):
            await agent.acquire(f"repo:app/{number}")
    known = (tmp_path / SEEN).read_bytes()
    gateway.book = Book()
    for _ in range(9):
        gateway.book.append("ledger.disputed", _dispute(gateway.book), actor="gateway", time_ms=gateway.clock.wall_ms())
    with pytest.raises(SplitView, match="does not contain"):
        async with gateway.agent(home=tmp_path):
            pytest.fail("a session began on another history")
    assert gateway.disputes == [known, gateway.book.checkpoint(10)]
    assert gateway.is_closed
    assert (tmp_path / SEEN).read_bytes() == known


async def test_a_gateway_on_an_old_backup_is_told_and_not_used(gateway: LocalGateway, tmp_path: Path) -> None:
    """Decisions §33: without witnesses only clients can notice a restored back-up."""
    async with gateway.agent(home=tmp_path) as agent:
        await agent.acquire(FILE)
        await agent.acquire(OTHER)
    known = (tmp_path / SEEN).read_bytes()
    gateway.book = Book()
    with pytest.raises(LedgerBehind, match="shows 1 entries, and its own key has signed 3"):
        async with gateway.agent(home=tmp_path):
            pytest.fail("a session began")
    assert gateway.disputes == [known]


# -- time --------------------------------------------------------------------------------------------------------------


def created_s(request: Request) -> int:
    return int(request.headers["signature-input"].partition(";created=")[2].partition(";")[0])


def lifetime_s(request: Request) -> int:
    return int(request.headers["signature-input"].partition(";expires=")[2].partition(";")[0]) - created_s(request)


async def test_lease_calls_live_fifteen_seconds(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
    assert [lifetime_s(request) for request in gateway.requests] == [15]


async def test_skew_is_learned_from_a_verified_first_answer_only(gateway: LocalGateway) -> None:
    """The ledger's clock is 20 s ahead of ours; a replayed answer, older by then, teaches nothing."""
    clock = gateway.clock
    gateway.ahead_ms = 20_000
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        await agent.acquire(OTHER)
        assert created_s(gateway.requests[1]) == clock.wall_ms() // 1000 + 20
        gateway.faults = [lost_answer, status(503, **{"retry-after": "9"})]
        await agent.acquire("repo:app/src/c.py")
        await agent.acquire("repo:app/src/d.py")
        assert created_s(gateway.requests[-1]) == clock.wall_ms() // 1000 + 20


async def test_a_clock_that_is_wrong_by_minutes_is_named_and_not_followed(gateway: LocalGateway) -> None:
    gateway.every = status(401, "outside_window")
    async with gateway.agent() as agent:
        with pytest.raises(ClockWrong, match="Fix this machine's clock"):
            await agent.acquire(FILE)
    assert len(gateway.requests) == 2, "once more, in case the first was held up on its way"
    assert len({request.nonce for request in gateway.requests}) == 2


async def test_a_learned_skew_is_dropped_when_the_gateway_says_that_time_is_wrong(gateway: LocalGateway) -> None:
    """Somebody set this machine's clock right in between: what was learned before it would be wrong now."""
    gateway.ahead_ms = 20_000
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        gateway.faults = [status(401, "outside_window")]
        await agent.acquire(OTHER)
    now_s = gateway.clock.wall_ms() // 1000
    assert [created_s(request) - now_s for request in gateway.requests[1:]] == [20, 0]


@pytest.mark.parametrize(("ahead_ms", "skew_ms"), [(119_000, 119_000), (121_000, 0), (-20_000, -20_000), (-121_000, 0)])
async def test_more_than_two_minutes_of_skew_are_not_followed(
    gateway: LocalGateway, ahead_ms: int, skew_ms: int
) -> None:
    async with gateway.agent() as agent:
        now_ms = gateway.clock.wall_ms()
        agent.caller._note_time(now_ms + ahead_ms, now_ms, now_ms)
        assert agent.caller._skew_ms == skew_ms


async def test_one_late_arrival_is_signed_again(gateway: LocalGateway) -> None:
    gateway.faults = [status(401, "outside_window")]
    async with gateway.agent() as agent:
        assert (await agent.acquire(FILE)).receipt.seq == 1


async def test_a_problem_of_strange_bytes_is_shown_harmless(gateway: LocalGateway) -> None:
    evil = encode_canonical({"code": "evil\x1b[2J", "detail": "x" * 10_000})
    gateway.faults = [lambda request, answer: Reply(400, {}, evil), lambda request, answer: Reply(400, {}, b"<html>")]
    async with gateway.agent() as agent:
        with pytest.raises(RequestRejected) as rejected:
            await agent.acquire(FILE)
        assert "\x1b" not in str(rejected.value)
        assert len(str(rejected.value)) < 1_000
        with pytest.raises(RequestRejected, match="no_answer"):
            await agent.acquire(FILE)


async def test_who_may_not_act_hears_what_to_do(gateway: LocalGateway) -> None:
    """Not enrolled: the DID to give away; removed: who can undo it; an operator's key: another profile."""

    async def told(code: str, agent: Agent) -> str:
        gateway.faults = [status(401, code)]
        async with agent:
            with pytest.raises(NotEnrolled) as refused:
                await agent.acquire(FILE)
        return str(refused.value)

    unknown = await told("agent_unknown", gateway.agent())
    assert unknown.endswith(f"not now. Give your DID to an operator: tallystick agent add {ALICE.did} --name LABEL")
    assert "What the operator would do: tallystick agent add" in await told("agent_removed", gateway.agent())
    operators: list[JsonValue] = [
        {"did": key(9).did, "addedSeq": 4},
        {"did": key(8).did, "addedSeq": 5, "removedSeq": 6},
    ]
    gateway.views["/api/v1/acp/operators"] = {"operators": operators}
    assert "This is an operator's key" in await told("agent_unknown", gateway.agent(key(9)))
    assert "Give your DID" in await told("agent_unknown", gateway.agent(key(8)))
    assert "Give your DID" in await told("agent_unknown", gateway.agent())
