"""Sessions: they open themselves, stay present no more often than needed, give all back; trust ends first."""

from __future__ import annotations

import asyncio

import pytest

from gateway.client.agent import Agent
from gateway.client.errors import (
    ClientError,
    LeaseLost,
    ProfileError,
    Refused,
    SessionEnded,
    SessionRefused,
)
from gateway.client.exits import ENDED, NOT_ENROLLED, exit_code_of, explain
from gateway.client.profile import write_profile
from gateway.client.session import Session
from keys.files import new_key
from keys.signing import SigningKey
from tests.client.desk import IDLE_MS, OPERATOR
from tests.client.world import (
    ACQUIRE,
    ALICE,
    BEAT,
    BOB,
    CLOSE,
    FILE,
    OPEN,
    RELEASE,
    RENEW,
    Book,
    LocalGateway,
    ManualClock,
    forged,
    key,
    lost_answer,
    status,
)
from verifier.entries import rows_of
from verifier.wire import JsonObject, Malformed, encode_canonical, parse_json

HOUR_MS = 3_600_000


@pytest.fixture
def gateway() -> LocalGateway:
    return LocalGateway(Book(), ManualClock())


def targets(gateway: LocalGateway) -> list[str]:
    return [request.target for request in gateway.requests]


def body(gateway: LocalGateway, at: int) -> JsonObject:
    return parse_json(gateway.requests[at].body or b"", bytes_max=10**6)


async def test_a_session_opens_itself_acts_and_closes_itself(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.open_session(name="nightly", resources=["repo:app/**"]) as session:
        assert session.did not in (ALICE.did, OPERATOR)
        assert (session.principal, session.on_behalf_of) == (ALICE.did, OPERATOR)
        opened = session.opened.leaf
        assert (opened.actor, opened.text("name"), opened.value["scope"]) == (session.did, "nightly", ["repo:app/**"])
        async with session.lease(FILE, ttl_ms=30_000) as lease:
            assert lease.grant.receipt.leaf.actor == session.did
            assert lease.grant.receipt.leaf.principal == ALICE.did
    assert targets(gateway) == [OPEN, ACQUIRE, RELEASE, CLOSE]
    assert {request.headers["signature-input"].partition('keyid="')[2][:56] for request in gateway.requests} == {
        session.did
    }
    assert body(gateway, 3)["session"] == session.did


async def test_the_statement_says_who_lends_what_and_until_when(gateway: LocalGateway) -> None:
    async with (
        gateway.agent() as agent,
        agent.open_session(ttl_ms=HOUR_MS, verbs=["lease"], resources=["repo:b", "repo:a"]) as session,
    ):
        assert session.expires_at_ms == gateway.now_ms + HOUR_MS
    (row,) = rows_of(body(gateway, 0)["delegations"])
    statement = row["statement"]
    assert isinstance(statement, dict)
    assert {name: statement[name] for name in ("iss", "sub", "verbs", "resources", "maxDepth")} == {
        "iss": ALICE.did, "sub": session.did, "verbs": ["lease"], "resources": ["repo:a", "repo:b"], "maxDepth": 0,
    }  # fmt: skip


async def test_no_statement_is_made_that_the_ledger_would_refuse(gateway: LocalGateway) -> None:
    async with gateway.agent(key(9)) as operator, gateway.agent() as agent:
        lent = operator.delegate(ALICE.did, may_delegate=True, ttl_ms=HOUR_MS, resources=["repo:app/**"])
        for wrong, why in (
            ({"ttl_ms": 8 * 24 * HOUR_MS}, "7 days"),
            ({"ttl_ms": 10}, "1 second"),
            ({"verbs": ["everything"]}, "verbs"),
            ({"resources": ["no-scheme"]}, "resources"),
            ({"parent": lent, "resources": ["repo:other"]}, "lends less"),
        ):
            with pytest.raises(Malformed, match=why):
                agent.open_session(**wrong)
        narrow = agent.open_session(parent=lent, ttl_ms=2 * HOUR_MS)
        async with narrow:
            assert narrow.opened.leaf.value["scope"] == ["repo:app/**"]
            assert narrow.expires_at_ms == gateway.now_ms + HOUR_MS
    assert len(rows_of(body(gateway, 0)["delegations"])) == 2


async def test_a_full_week_is_allowed_although_a_statement_begins_a_little_earlier(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.open_session(ttl_ms=7 * 24 * HOUR_MS) as session:
        assert session.expires_at_ms == gateway.now_ms + 7 * 24 * HOUR_MS


async def test_an_operators_session_is_its_own_principal(gateway: LocalGateway) -> None:
    async with gateway.agent(key(9)) as operator, operator.open_session() as session:
        assert (session.principal, session.on_behalf_of) == (session.did, OPERATOR)


# -- presence ----------------------------------------------------------------------------------------------------------


async def test_without_work_it_shows_itself_at_a_third_of_the_ledgers_patience(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.open_session():
        await gateway.clock.advance(IDLE_MS // 3)
        assert targets(gateway) == [OPEN]
        await gateway.clock.advance(1_000)
        assert targets(gateway) == [OPEN, BEAT]
        await gateway.clock.advance(HOUR_MS)
    assert targets(gateway) == [OPEN, *[BEAT] * 88, CLOSE]


@pytest.mark.parametrize("ttl_ms", [6_000, 30_000, 120_000])
async def test_renewals_of_a_lease_make_beats_superfluous(gateway: LocalGateway, ttl_ms: int) -> None:
    async with gateway.agent() as agent, agent.open_session() as session, session.lease(FILE, ttl_ms=ttl_ms) as lease:
        await gateway.clock.advance(10 * IDLE_MS)
        assert lease.is_trusted
    assert BEAT not in targets(gateway)


async def test_a_long_lease_is_renewed_as_ever_and_beats_fill_the_gaps(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.open_session() as session, session.lease(FILE, ttl_ms=600_000) as lease:
        await gateway.clock.advance(HOUR_MS)
        assert lease.is_trusted
        assert lease.beats == targets(gateway).count(RENEW) == 18
    assert 65 <= targets(gateway).count(BEAT) <= 75  # four in each of the 18 gaps, at most


async def test_any_accepted_entry_counts_as_presence_a_refusal_too(gateway: LocalGateway) -> None:
    async with gateway.agent(BOB) as bob, gateway.agent() as agent, agent.open_session() as session:
        await bob.acquire(FILE, ttl_ms=HOUR_MS)
        for _ in range(20):
            await gateway.clock.advance(30_000)
            with pytest.raises(Refused):
                await session.acquire(FILE)
    assert BEAT not in targets(gateway)


async def test_near_its_end_no_beat_helps_and_none_is_sent(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        session = agent.open_session(ttl_ms=200_000)
        async with session:
            await gateway.clock.advance(190_000)
            assert targets(gateway) == [OPEN, BEAT, BEAT]
            await gateway.clock.advance(20_000)
            with pytest.raises(SessionEnded) as over:
                await session.acquire(FILE)
    assert exit_code_of(over.value) == ENDED
    assert explain(over.value).endswith("Open another: tallystick session open")
    assert targets(gateway) == [OPEN, BEAT, BEAT, ACQUIRE], "what is over is not closed"


# -- trust -------------------------------------------------------------------------------------------------------------


async def test_trust_in_a_lease_ends_with_the_session_though_its_ttl_is_longer(gateway: LocalGateway) -> None:
    """Silence: the session is given up after IDLE_MS, and with it a lease of an hour. Trust ends before, and loudly."""
    told: list[str] = []
    async with gateway.agent() as agent, agent.open_session() as session:
        with pytest.raises(LeaseLost) as lost:
            async with session.lease(FILE, ttl_ms=HOUR_MS, on_lost=told.append) as lease:
                begun_ms = gateway.clock.steady_ms()
                assert lease.trust_ends_in_ms == IDLE_MS * 9 // 10
                gateway.every = status(503)
                await gateway.clock.advance(IDLE_MS * 9 // 10 - 1)
                assert lease.is_trusted
                await gateway.clock.advance(1_001)
                assert lease.trust_ends_in_ms == 0
                gateway.desk.now_ms = gateway.now_ms
                gateway.desk.tidy()
                assert gateway.live, "trust ended while nobody else could have it"
                gateway.every = None
        assert gateway.clock.steady_ms() - begun_ms < IDLE_MS
    assert told == ["throttled"]
    assert lost.value.reason == "throttled"


async def test_each_entry_of_the_session_moves_the_end_of_all_its_leases(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.open_session() as session:
        first = await session.acquire("repo:first", ttl_ms=HOUR_MS)
        await gateway.clock.advance(30_000)
        assert session.trust_ends_ms(first) == first.sent_ms + IDLE_MS * 9 // 10
        second = await session.acquire("repo:second", ttl_ms=HOUR_MS)
        assert session.trust_ends_ms(first) == second.sent_ms + IDLE_MS * 9 // 10 > first.trust_ends_ms
        short = await session.acquire("repo:third", ttl_ms=10_000)
        await gateway.clock.advance(5_000)
        await session.beat("looking-around")
        assert session.trust_ends_ms(short) == short.sent_ms + 9_000, "the ttl is never outlived"


async def test_a_replayed_answer_moves_nothing(gateway: LocalGateway) -> None:
    """The entry is as old as its first attempt, however late its answer came."""
    async with gateway.agent() as agent, agent.open_session() as session:
        held = await session.acquire(FILE, ttl_ms=HOUR_MS)
        gateway.faults = [lost_answer, status(503, **{"retry-after": "20"})]
        asking = asyncio.ensure_future(session.beat())
        sent_ms = gateway.clock.steady_ms()
        await gateway.clock.advance(25_000)
        await asking
        assert session.trust_ends_ms(held) == sent_ms + IDLE_MS * 9 // 10


async def test_a_session_that_was_ended_by_others_is_trusted_in_nothing_any_more(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.open_session() as session:
        with pytest.raises(LeaseLost) as lost:
            async with session.lease(FILE, ttl_ms=HOUR_MS) as lease, session.lease("repo:b", ttl_ms=HOUR_MS) as other:
                closed = await agent.close_session(session.did, "no-longer-needed")
                assert (closed.leaf.number("leases"), lease.is_trusted) == (2, True), "nobody has told it yet"
                with pytest.raises(SessionEnded):
                    await session.beat()
                assert (lease.is_trusted, other.is_trusted, session.ended) == (False, False, "session_ended")
    assert lost.value.reason == "session_ended"
    assert not gateway.live


async def test_a_blocked_loop_can_not_keep_trust_past_the_end_of_the_session(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.open_session() as session:
        with pytest.raises(LeaseLost) as lost:
            async with session.lease(FILE, ttl_ms=HOUR_MS) as lease:
                gateway.clock.jump(IDLE_MS)
                assert not lease.is_trusted
    assert lost.value.reason == "blocked"


# -- many tasks, and the end -------------------------------------------------------------------------------------------


async def test_many_tasks_share_one_session(gateway: LocalGateway) -> None:
    async def work(session: Session, number: int) -> int:
        async with session.lease(f"repo:part/{number}", ttl_ms=30_000) as lease:
            await gateway.clock.sleep(60_000)
            return lease.check()

    async with gateway.agent() as agent, agent.open_session() as session:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(session, number)) for number in range(20)]
            await gateway.clock.advance(60_000)
    assert len({task.result() for task in tasks}) == 20
    assert targets(gateway).count(OPEN) == targets(gateway).count(CLOSE) == 1


async def test_leaving_by_an_error_closes_too_and_keeps_the_error(gateway: LocalGateway) -> None:
    with pytest.raises(ZeroDivisionError):
        async with gateway.agent() as agent, agent.open_session() as session:
            await session.acquire(FILE)
            raise ZeroDivisionError
    assert targets(gateway)[-1] == CLOSE
    assert not gateway.live, "what it held was given back"


async def test_a_close_that_does_not_come_through_costs_nothing_but_time(
    gateway: LocalGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.clock.is_automatic = True
    async with gateway.agent() as agent, agent.open_session() as session:
        gateway.every = status(503)
    assert f"session {session.did} was not closed, it ends by itself" in caplog.text


async def test_a_lost_answer_to_the_opening_is_asked_for_again(gateway: LocalGateway) -> None:
    gateway.clock.is_automatic = True
    gateway.faults = [lost_answer]
    async with gateway.agent() as agent, agent.open_session():
        pass
    assert targets(gateway) == [OPEN, OPEN, CLOSE]
    assert gateway.requests[0].key == gateway.requests[1].key


REFUSED_OPENINGS = [
    ("delegation_wider", 403, "Ask for no more than the statement above lends"),
    ("issuer_removed", 403, "ask an operator who is in force"),
    ("session_taken", 409, "a fresh folder"),
    ("too_many_sessions", 429, "tallystick session revoke DID"),
]


@pytest.mark.parametrize(("code", "number", "advice"), REFUSED_OPENINGS)
async def test_a_refused_opening_says_what_to_do_and_is_not_tried_again(
    gateway: LocalGateway, code: str, number: int, advice: str
) -> None:
    async with gateway.agent() as agent:
        gateway.faults = [status(number, code)]
        with pytest.raises(SessionRefused, match=code) as refused:
            async with agent.open_session():
                raise AssertionError("not entered")
    assert advice in explain(refused.value)
    assert exit_code_of(refused.value) == NOT_ENROLLED
    assert targets(gateway) == [OPEN]


async def test_an_opening_that_proves_nothing_opens_nothing(gateway: LocalGateway) -> None:
    """The gateway shows the genuine opening of another session."""
    async with gateway.agent() as agent, agent.open_session():
        first = encode_canonical(gateway.book.receipt(1))
        gateway.faults = [forged(lambda answer: {**answer, "receipt": parse_json(first, bytes_max=10**6)})]
        with pytest.raises(ClientError, match="actor"):
            async with agent.open_session():
                raise AssertionError("not entered")


# -- a session's folder ------------------------------------------------------------------------------------------------


async def test_a_folder_goes_on_with_its_session_and_does_not_close_it(gateway: LocalGateway, tmp_path: object) -> None:
    from pathlib import Path

    home = Path(str(tmp_path)) / "s"
    profile = gateway.book.profile(ALICE)
    write_profile(home, profile.address, root=gateway.book.root_vkey.vkey, document=gateway.book.document)
    own: SigningKey = new_key(home / "agent.key", purpose="agent")
    async with gateway.agent() as agent:
        kept = gateway.book.profile(own, home)
        async with agent.open_session(profile=kept, is_kept=True) as session:
            (home / "opened.json").write_bytes(session.opened.data)
        assert targets(gateway) == [OPEN]
        resumed = Agent.open(home)
        assert isinstance(resumed, Session)
        assert (resumed.principal, resumed.did) == (ALICE.did, own.did)
        again = Session(kept, opened=resumed.opened, is_kept=True, clock=gateway.clock, connect=lambda url: gateway)
        async with again, again.lease(FILE, ttl_ms=HOUR_MS) as lease:
            assert lease.trust_ends_in_ms == IDLE_MS * 9 // 10
            await gateway.clock.advance(HOUR_MS // 2)
            assert lease.is_trusted
        assert CLOSE not in targets(gateway)
    new_key(Path(str(tmp_path)) / "other.key", purpose="agent")
    for name in ("agent.key", "agent.pass"):
        (home / name).write_bytes((Path(str(tmp_path)) / name.replace("agent", "other")).read_bytes())
    with pytest.raises(ProfileError, match="another session than the key"):
        Agent.open(home)
