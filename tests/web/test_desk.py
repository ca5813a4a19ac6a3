"""The desk by itself: what is checked in which order, and what a first use on a throw-away ledger signs."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from gateway.actions import ACTIONS, Action
from gateway.client.delegation import SignedDelegation, delegate
from gateway.client.signing import Draft, new_nonce, sign_request
from gateway.core.intake import RawRequest, Rejection, SignedRequest, intake, is_inside_window
from gateway.core.parameters import Parameters
from gateway.core.record_keys import OPERATORS_KEY, RULES_KEY, agent_key, lease_key, quota_key, session_key, ticket_key
from gateway.core.records import Agent, Counter, Lease, Operator, Quota, RuleSet, Session, Ticket
from gateway.core.refusal import AGENT_UNKNOWN, ISSUER_UNKNOWN, OUTSIDE_WINDOW
from gateway.errors import Busy
from gateway.ledger.history import Answer
from gateway.ledger.live import Live
from gateway.ledger.parking import Parking
from gateway.ledger.sequencer import Refused
from gateway.service import Allowance, Desk, FirstUse, Ledger, Shares, request_cost
from gateway.web.limits import Buckets, RateLimited
from keys.signing import SigningKey
from verifier.delegation import enrolment_bytes
from verifier.note import make_vkey
from verifier.wire import JsonObject, encode_base64, encode_canonical, parse_json

OPERATOR, WORKER, ENROLLER = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
NOW_MS = 1_800_000_000_000
LEDGER = Ledger(
    origin="gateway.example/main", genesis=b"\x07" * 32, authorities=frozenset({"gateway.example", "a.example"}),
    operators=(OPERATOR.did,), enroller=ENROLLER.did, is_public=True, is_dev=True, parameters=Parameters(),
    root=make_vkey("gateway.example/main/root", SigningKey(b"\x04" * 32).public_key),
)  # fmt: skip


class Limiter:
    def __init__(self, events: list[str], *, is_full: bool = False) -> None:
        self.events, self.is_full = events, is_full
        self.payers: list[str] = []

    def take(self, principal: str, cost: int = 1) -> int:
        self.events.append(f"take {cost}")
        self.payers.append(principal)
        if self.is_full:
            raise RateLimited(2.0)
        return 17


class Sequencer:
    """Answers everything, and knows whom it enrolled and what log time is."""

    def __init__(self, events: list[str], time_ms: int = NOW_MS) -> None:
        self.time_ms = time_ms
        self.events = events
        self.records: dict[str, object] = {f"operator/{OPERATOR.did}": Operator(OPERATOR.did)}
        self.requests: list[SignedRequest] = []
        self.parking = Parking()
        self.near: Callable[[str], Collection[str]] = lambda term: ()

    @property
    def view(self) -> "Sequencer":
        return self

    def get(self, key: str) -> object:
        return self.records.get(key)

    async def submit(
        self, request: SignedRequest, action: Action, check: Callable[..., object] | None = None
    ) -> Answer:
        assert check is None, "a request that its sender signed is judged by nothing else"
        self.events.append(f"submit {action.name}")
        self.requests.append(request)
        if action.name == "agent.add":
            did = str(request.body["agent"])
            self.records[f"agent/{did}"] = Agent(did, None, 1, None, OPERATOR.did)
        leaf: JsonObject = {"type": "tallystick/agent.added/1", "agent": WORKER.did, "seq": 7}
        return Answer(7, 200, encode_canonical(leaf), bytes(64), "key", b"note", ())


def desk(events: list[str], *, is_dev: bool = True, is_full: bool = False, now_ms: int = NOW_MS) -> Desk:
    first_use = FirstUse(OPERATOR, LEDGER) if is_dev else None
    sequencer: Any = Sequencer(events, now_ms)
    return Desk(sequencer, LEDGER, Limiter(events, is_full=is_full), first_use)


def enrolment(did: str = WORKER.did, now_ms: int = NOW_MS) -> RawRequest:
    return FirstUse(OPERATOR, LEDGER).request_for(did, now_ms)


def test_a_first_use_is_an_ordinary_request_signed_by_the_operator() -> None:
    raw = enrolment()
    request = intake(raw, origin=LEDGER.origin, authorities=LEDGER.authorities, action="agent.add")
    assert (request.actor, request.idempotency_key) == (OPERATOR.did, f"first-use:{WORKER.did}")
    assert parse_json(raw.body, bytes_max=1_000) == {
        "actorDid": OPERATOR.did, "agent": WORKER.did, "ledger": LEDGER.origin,
    }  # fmt: skip
    assert (request.anchor.size, request.anchor.root) == (1, LEDGER.genesis)
    assert is_inside_window(request, NOW_MS, 0)
    assert enrolment().headers != raw.headers, "a fresh nonce each time"


def test_a_ledger_that_is_not_throw_away_has_no_first_use() -> None:
    with pytest.raises(AssertionError, match="throw-away"):
        FirstUse(OPERATOR, replace(LEDGER, is_dev=False))


async def test_a_known_key_is_rated_then_decided() -> None:
    events: list[str] = []
    answered = await desk(events).decide(enrolment(), ACTIONS["agent.add"])
    assert events == ["take 1", "submit agent.add"]
    assert (answered.status, answered.seq, answered.actor, answered.is_replay) == (200, 7, OPERATOR.did, False)
    assert parse_json(answered.body, bytes_max=10_000)["ok"] is True


async def test_a_forged_request_costs_neither_rate_nor_queue() -> None:
    events: list[str] = []
    raw = enrolment()
    forged = raw._replace(body=raw.body.replace(WORKER.did.encode(), OPERATOR.did.encode()))
    with pytest.raises(Rejection):
        await desk(events).decide(forged, ACTIONS["agent.add"])
    assert events == []


@pytest.mark.parametrize("moved_ms", [-31_000, 91_000])
async def test_a_request_outside_its_window_costs_neither_rate_nor_queue(moved_ms: int) -> None:
    events: list[str] = []
    with pytest.raises(Refused) as refused:
        await desk(events, now_ms=NOW_MS + moved_ms).decide(enrolment(), ACTIONS["agent.add"])
    assert (refused.value.unreceipted.refusal, events) == (OUTSIDE_WINDOW, [])


@pytest.mark.parametrize("moved_ms", [-30_000, 89_999])
async def test_the_window_is_as_wide_as_entry_0_says(moved_ms: int) -> None:
    await desk([], now_ms=NOW_MS + moved_ms).decide(enrolment(), ACTIONS["agent.add"])


async def test_a_key_over_its_rate_costs_no_queue() -> None:
    events: list[str] = []
    with pytest.raises(RateLimited):
        await desk(events, is_full=True).decide(enrolment(), ACTIONS["agent.add"])
    assert events == ["take 1"]


def signed(key: SigningKey, action: str, *, life_s: int = 15, **members: Any) -> RawRequest:
    body = encode_canonical({"actorDid": key.did, "ledger": LEDGER.origin, **members})
    anchor = f"{LEDGER.origin} 1 {encode_base64(LEDGER.genesis)}"
    draft = Draft("POST", "a.example", ACTIONS[action].path, "", anchor, body, "k")
    fields = sign_request(draft, key, created_s=NOW_MS // 1000, nonce=new_nonce(), life_s=life_s)
    return RawRequest("POST", "a.example", draft.path, "?", tuple(fields.items()), body)


def acquire(key: SigningKey) -> RawRequest:
    """A stranger's request for two hundred resources."""
    return signed(key, "lease.acquire", resources=[f"lock:{number}" for number in range(200)])


async def test_a_stranger_is_enrolled_on_a_throw_away_ledger_once_then_decided() -> None:
    events: list[str] = []
    here = desk(events)
    await here.decide(acquire(WORKER), ACTIONS["lease.acquire"])
    await here.decide(acquire(WORKER), ACTIONS["lease.acquire"])
    assert events == ["submit agent.add", "take 4", "submit lease.acquire", "take 4", "submit lease.acquire"]


async def test_a_stranger_elsewhere_costs_neither_rate_nor_queue() -> None:
    events: list[str] = []
    with pytest.raises(Refused) as refused:
        await desk(events, is_dev=False).decide(acquire(WORKER), ACTIONS["lease.acquire"])
    assert (refused.value.unreceipted.refusal, events) == (AGENT_UNKNOWN, [])


# -- sessions, operators, API keys -------------------------------------------------------------------------------------

SESSION = SigningKey(b"\x04" * 32)


def lent(
    issuer: SigningKey, subject: SigningKey, above: SignedDelegation | None = None, *, origin: str = LEDGER.origin
) -> SignedDelegation:
    return delegate(issuer, subject.did, origin=origin, now_ms=NOW_MS, parent=above, may_delegate=subject is WORKER)


def opening(*links: SignedDelegation) -> RawRequest:
    return signed(SESSION, "session.open", delegations=[link.row for link in links])


def crowded_desk(*, is_dev: bool = False) -> tuple[Desk, Sequencer, Limiter]:
    """Return a desk that knows an operator, an agent, and a session of the agent."""
    sequencer, limiter = Sequencer([]), Limiter([])
    until_ms = NOW_MS + 3_600_000
    session = Session(
        SESSION.did, None, WORKER.did, OPERATOR.did, ("lease",), (), 3, until_ms, NOW_MS + 120_000,
    )  # fmt: skip
    sequencer.records |= {
        agent_key(WORKER.did): Agent(WORKER.did, None, 1, None, OPERATOR.did),
        session_key(SESSION.did): session,
    }
    behind: Any = sequencer
    return Desk(behind, LEDGER, limiter, FirstUse(OPERATOR, LEDGER) if is_dev else None), sequencer, limiter


async def paid_by(here: Desk, limiter: Limiter, raw: RawRequest, action: str) -> str:
    await here.decide(raw, ACTIONS[action])
    return limiter.payers[-1]


async def test_who_pays_for_whom() -> None:
    here, sequencer, limiter = crowded_desk()
    assert await paid_by(here, limiter, acquire(WORKER), "lease.acquire") == WORKER.did
    assert await paid_by(here, limiter, acquire(SESSION), "lease.acquire") == WORKER.did
    assert await paid_by(here, limiter, enrolment(), "agent.add") == OPERATOR.did
    del sequencer.records[session_key(SESSION.did)]
    assert await paid_by(here, limiter, opening(lent(WORKER, SESSION)), "session.open") == WORKER.did
    assert await paid_by(here, limiter, opening(lent(OPERATOR, SESSION)), "session.open") == OPERATOR.did
    above = lent(OPERATOR, WORKER)
    assert await paid_by(here, limiter, opening(above, lent(WORKER, SESSION, above)), "session.open") == WORKER.did
    made_up = SigningKey(b"\x06" * 32)
    above = lent(WORKER, made_up)
    through = opening(above, lent(made_up, SESSION, above))
    assert await paid_by(here, limiter, through, "session.open") == WORKER.did, "nobody has an allowance by a new key"
    digest = "a" * 64
    proof = encode_base64(WORKER.sign(enrolment_bytes(WORKER.did, digest, LEDGER.origin)))
    raw = signed(ENROLLER, "agent.add", agent=WORKER.did, keyDigest=digest, proof=proof)
    assert await paid_by(here, limiter, raw, "agent.add") == f"apikey {digest}"


async def test_a_session_that_has_ended_takes_nothing_from_its_agent() -> None:
    here, sequencer, limiter = crowded_desk()
    record = sequencer.records[session_key(SESSION.did)]
    assert isinstance(record, Session)
    sequencer.records[session_key(SESSION.did)] = record._replace(ended_seq=9)
    assert await paid_by(here, limiter, acquire(SESSION), "lease.acquire") == f"{WORKER.did} ended"
    again = opening(lent(WORKER, SESSION))
    assert await paid_by(here, limiter, again, "session.open") == f"{WORKER.did} ended", "whoever has the old statement"


@pytest.mark.parametrize("is_dev", [False, True])
async def test_a_session_is_opened_by_whom_the_ledger_knows_at_the_root(is_dev: bool) -> None:
    here, _, limiter = crowded_desk(is_dev=is_dev)
    stranger = SigningKey(b"\x05" * 32)
    with pytest.raises(Refused) as refused:
        await here.decide(opening(lent(stranger, SESSION)), ACTIONS["session.open"])
    assert (refused.value.unreceipted.refusal, limiter.payers) == (ISSUER_UNKNOWN, [])


@pytest.mark.parametrize("is_dev", [False, True])
async def test_a_stranger_at_the_root_is_told_the_first_row_that_holds_as_the_core_would(is_dev: bool) -> None:
    """The operator of another ledger is a stranger here, and its agent is told that the statement is for there."""
    here, sequencer, limiter = crowded_desk(is_dev=is_dev)
    stranger = SigningKey(b"\x05" * 32)
    above = lent(stranger, WORKER, origin="other.example/main")
    passed_on = lent(WORKER, SESSION, lent(stranger, WORKER))
    stories = [
        (opening(above, lent(WORKER, SESSION, above)), "delegation_wrong_ledger"),
        (opening(lent(stranger, SESSION, origin="other.example/main")), "delegation_wrong_ledger"),
        (opening(lent(stranger, WORKER), passed_on), "issuer_unknown"),
    ]
    sequencer.records.pop(session_key(SESSION.did))
    for raw, error in stories:
        with pytest.raises(Refused) as refused:
            await here.decide(raw, ACTIONS["session.open"])
        assert (refused.value.unreceipted.refusal.name, limiter.payers, sequencer.requests) == (error, [], [])


@pytest.mark.parametrize("key", [OPERATOR, ENROLLER])
async def test_a_first_use_makes_no_agent_of_a_key_that_is_something_else(key: SigningKey) -> None:
    here, sequencer, limiter = crowded_desk(is_dev=True)
    with pytest.raises(Refused) as refused:
        await here.decide(acquire(key), ACTIONS["lease.acquire"])
    assert (refused.value.unreceipted.refusal, limiter.payers, sequencer.requests) == (AGENT_UNKNOWN, [], [])


async def test_a_session_is_no_stranger_on_a_throw_away_ledger_though_it_has_ended() -> None:
    here, sequencer, _ = crowded_desk(is_dev=True)
    record = sequencer.records[session_key(SESSION.did)]
    assert isinstance(record, Session)
    sequencer.records[session_key(SESSION.did)] = record._replace(ended_seq=9)
    await here.decide(acquire(SESSION), ACTIONS["lease.acquire"])
    assert [request.action for request in sequencer.requests] == ["lease.acquire"], "the core says that it has ended"


async def test_an_answer_says_what_is_left_of_which_allowance() -> None:
    here, sequencer, _ = crowded_desk()
    ordinary = await here.decide(acquire(WORKER), ACTIONS["lease.acquire"])
    assert (ordinary.policy, ordinary.left) == ("decisions", 17)
    agent = sequencer.records[agent_key(WORKER.did)]
    assert isinstance(agent, Agent)
    sequencer.records[agent_key(WORKER.did)] = agent._replace(trial_until_ms=NOW_MS + 1)
    for used, left in ((0, 35), (12, 23), (35, 0), (36, 0)):
        sequencer.records[quota_key(WORKER.did)] = Quota(WORKER.did, used)
        trial = await here.decide(acquire(WORKER), ACTIONS["lease.acquire"])
        assert (trial.policy, trial.left) == ("trial", left)


async def test_an_operators_agents_leave_room_in_the_line_for_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two operators each has half of it; who gives back is let in all the same."""
    here, sequencer, _ = crowded_desk()
    here._shares = Shares(size=4)
    other, guest = SigningKey(b"\x06" * 32), SigningKey(b"\x07" * 32)
    sequencer.records |= {
        agent_key(guest.did): Agent(guest.did, None, 2, None, other.did), OPERATORS_KEY: Counter(2),
    }  # fmt: skip
    gate = asyncio.Event()
    submit = Sequencer.submit

    async def slow(self: Sequencer, request: SignedRequest, action: Action, check: None = None) -> Answer:
        await gate.wait()
        return await submit(self, request, action)

    monkeypatch.setattr(Sequencer, "submit", slow)
    waiting = [asyncio.create_task(here.decide(acquire(key), ACTIONS["lease.acquire"])) for key in (WORKER, SESSION)]
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="share_full"):
        await here.decide(acquire(WORKER), ACTIONS["lease.acquire"])
    release = signed(WORKER, "lease.release", resource="lock:x", leaseId="L7")
    waiting += [
        asyncio.create_task(here.decide(release, ACTIONS["lease.release"])),
        asyncio.create_task(here.decide(acquire(guest), ACTIONS["lease.acquire"])),
    ]
    await asyncio.sleep(0)
    two = [{"action": "lease.acquire", "resource": "lock:x"}] * 2
    with pytest.raises(Busy):  # one command would fit, two do not
        await here.decide(signed(guest, "batch.submit", commands=two), ACTIONS["batch.submit"])
    gate.set()
    await asyncio.gather(*waiting)
    assert here._shares._waiting == {}
    sequencer.records[OPERATORS_KEY] = Counter(1)
    five = [{"action": "lease.acquire", "resource": f"lock:{number}"} for number in range(5)]
    await here.decide(signed(WORKER, "batch.submit", commands=five), ACTIONS["batch.submit"])


# -- copies ------------------------------------------------------------------------------------------------------------


async def test_copies_of_a_request_do_not_use_up_its_signers_rate() -> None:
    """Evidence is public: whoever reads the ledger could send a holder's last request again and again."""
    buckets = Buckets(rate_per_s=1, burst=3, clock=lambda: 0.0)
    sequencer: Any = Sequencer([])
    place = Desk(sequencer, LEDGER, buckets, None)
    copied = enrolment()
    for _ in range(4):  # the first, and as many copies as their own allowance has
        await place.decide(copied, ACTIONS["agent.add"])
    with pytest.raises(RateLimited):
        await place.decide(copied, ACTIONS["agent.add"])
    for _ in range(2):
        await place.decide(enrolment(), ACTIONS["agent.add"])
    with pytest.raises(RateLimited):
        await place.decide(enrolment(), ACTIONS["agent.add"])


def test_the_memory_for_copies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.service.NONCES_MAX", 2)
    events: list[str] = []
    allowance = Allowance(Limiter(events))
    for _ in range(4):
        allowance.take(read(enrolment(), "agent.add"), "payer", 1)
    assert (len(allowance._seen), len(allowance._seen_before)) == (0, 2)


# -- what a decision costs ---------------------------------------------------------------------------------------------


def read(raw: RawRequest, action: str) -> SignedRequest:
    return intake(raw, origin=LEDGER.origin, authorities=LEDGER.authorities, action=action)


def crowd() -> Live:
    """Return a ledger with 128 leases in `lock:big/` of 3 names each, and lease L999 on all of it and more."""
    names = [tuple(f"lock:big/{number}/{part}" for part in "abc") for number in range(128)]
    who = (OPERATOR.did, OPERATOR.did, OPERATOR.did)
    leases = [
        Lease(f"L{seq}", *who, resources, "read", seq, seq, NOW_MS, 30_000, NOW_MS + 30_000, NOW_MS + 3_600_000)
        for seq, resources in [*enumerate(names), (999, ("lock:big/**", "lock:other/**"))]
    ]
    return Live((lease_key(lease.lease_id), lease) for lease in leases)


@pytest.mark.parametrize(
    ("action", "members", "cost"),
    [
        ("lease.acquire", {"resource": "lock:elsewhere"}, 1),
        ("lease.acquire", {"resource": "lock:big/5/a"}, 1),
        ("lease.acquire", {"resource": "lock:big/5/**"}, 1),
        ("lease.acquire", {"resource": "lock:big/**"}, 3),
        ("lease.acquire", {"resource": "lock:**", "wait": True}, 3),
        ("lease.acquire", {"resources": ["lock:**", *(f"lock:big/{number}/a" for number in range(128))]}, 9),
        ("lease.release", {"resource": "lock:big/**"}, 3),
        ("lease.release", {"resource": "lock:big/**", "leaseId": "L999"}, 1),
        ("lease.renew", {"leaseId": "L999"}, 1),
        ("lease.renew", {"leaseId": "L999", "mode": "write"}, 3),
        ("lease.renew", {"leaseId": "L998", "mode": "write"}, 1),
        ("lease.accept", {"leaseId": "L999"}, 3),
        ("wait.claim", {"ticketId": "T7"}, 1),
        ("wait.cancel", {"ticketId": "T7"}, 1),
        ("session.beat", {}, 1),
        ("batch.submit", {"commands": [{"action": "lease.acquire", "resource": "lock:big/**"}] * 3}, 9),
        (
            "batch.submit",
            {
                "commands": [
                    {"action": "lease.acquire", "resource": "lock:elsewhere"},
                    {"action": "lease.renew", "leaseId": "L999", "mode": "write"},
                    {"action": "lease.release", "resource": "lock:big/**", "leaseId": "L999"},
                ]
            },
            5,
        ),
    ],
)
def test_who_asks_for_much_pays_for_it(action: str, members: dict[str, Any], cost: int) -> None:
    """A decision that looks around costs 1 for each 64 names that it has and things that they meet."""
    assert request_cost(crowd(), read(signed(WORKER, action, **members), action)) == cost


@pytest.mark.parametrize(("count", "cost", "policed"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (64, 1, 32)])
def test_an_admission_pays_for_what_rules_may_have_to_be_asked(count: int, cost: int, policed: int) -> None:
    members: dict[str, Any] = {
        "operation": "edit",
        "argumentsDigest": "0" * 64,
        "resources": [f"repo:{n}" for n in range(count)],
    }
    asked = read(signed(WORKER, "coordination.admit", **members), "coordination.admit")
    live = crowd()
    assert request_cost(live, asked) == cost
    live.apply([(RULES_KEY, RuleSet(1, "0" * 64, "", "shadow", "cedar/x", 9), None)])
    assert request_cost(live, asked) == policed


async def test_the_desk_asks_what_is_filed_now() -> None:
    events: list[str] = []
    here, sequencer = waiting_desk(events)
    sequencer.near = crowd().near
    await here.decide(signed(WORKER, "lease.acquire", resource="lock:big/**"), ACTIONS["lease.acquire"])
    assert events == ["take 3", "submit lease.acquire"]


# -- claims that wait --------------------------------------------------------------------------------------------------


def waiting_desk(events: list[str]) -> tuple[Desk, Sequencer]:
    """Return a desk where the worker has a ticket that only waits, and the sequencer behind it."""
    sequencer = Sequencer(events)
    ticket = Ticket(
        "T7", WORKER.did, WORKER.did, WORKER.did, ("lock:x",), "write", 30_000, 7, NOW_MS,
        poll_by_ms=NOW_MS + 30_000, give_up_by_ms=NOW_MS + 3_600_000,
    )  # fmt: skip
    sequencer.records |= {
        agent_key(WORKER.did): Agent(WORKER.did, None, 1, None, OPERATOR.did),
        ticket_key("T7"): ticket,
    }
    behind: Any = sequencer
    return Desk(behind, LEDGER, Limiter(events), None), sequencer


async def parked(sequencer: Sequencer) -> None:
    async with asyncio.timeout(5):
        while not len(sequencer.parking):  # noqa: ASYNC110  # turns of the loop: parking tells nobody who enters
            await asyncio.sleep(0)


async def test_a_claim_that_waits_is_rated_when_it_comes_and_decided_when_its_turn_does() -> None:
    events: list[str] = []
    here, sequencer = waiting_desk(events)
    raw = signed(WORKER, "wait.claim", ticketId="T7")
    task = asyncio.create_task(here.decide(raw, ACTIONS["wait.claim"], wait_ms=20_000))
    await parked(sequencer)
    assert events == ["take 1"]
    sequencer.parking.wake_all()
    assert (await task).held_ms == 10_000
    assert events == ["take 1", "submit wait.claim"]


async def test_a_claim_without_a_wish_and_any_other_request_are_decided_at_once() -> None:
    events: list[str] = []
    here, sequencer = waiting_desk(events)
    assert (await here.decide(signed(WORKER, "wait.claim", ticketId="T7"), ACTIONS["wait.claim"])).held_ms == 0
    raw = signed(WORKER, "wait.cancel", ticketId="T7")
    assert (await here.decide(raw, ACTIONS["wait.cancel"], wait_ms=20_000)).held_ms == 0
    assert (events, sequencer.parking.tally.parked) == (
        ["take 1", "submit wait.claim", "take 1", "submit wait.cancel"], 0,
    )  # fmt: skip


async def test_a_signature_must_still_count_when_its_claim_is_decided() -> None:
    """One second to live and 30 of skew: it waits for half of what is left."""
    events: list[str] = []
    here, sequencer = waiting_desk(events)
    sequencer.time_ms = NOW_MS + 29_000
    ticket = sequencer.records[ticket_key("T7")]
    assert isinstance(ticket, Ticket)
    sequencer.records[ticket_key("T7")] = ticket._replace(poll_by_ms=NOW_MS + 59_000)
    raw = signed(WORKER, "wait.claim", life_s=1, ticketId="T7")
    task = asyncio.create_task(here.decide(raw, ACTIONS["wait.claim"], wait_ms=20_000))
    await parked(sequencer)
    sequencer.parking.wake_all()
    assert (await task).held_ms == 1_000


async def test_a_copy_of_a_claim_is_decided_at_once() -> None:
    events: list[str] = []
    here, sequencer = waiting_desk(events)
    raw = signed(WORKER, "wait.claim", ticketId="T7")
    await here.decide(raw, ACTIONS["wait.claim"])
    assert (await here.decide(raw, ACTIONS["wait.claim"], wait_ms=20_000)).held_ms == 0
    assert sequencer.parking.tally.parked == 0


async def test_an_operator_may_offer_a_lease_although_it_is_no_agent() -> None:
    events: list[str] = []
    members: dict[str, Any] = {"leaseId": "L7", "seenToken": 7, "toDid": WORKER.did, "reason": "x"}
    await desk(events, is_dev=False).decide(signed(OPERATOR, "lease.transfer", **members), ACTIONS["lease.transfer"])
    with pytest.raises(Refused):
        await desk(events, is_dev=False).decide(
            signed(OPERATOR, "lease.acquire", resource="a:b"), ACTIONS["lease.acquire"]
        )
    assert events == ["take 1", "submit lease.transfer"]


@pytest.mark.parametrize(
    ("members", "is_good"),
    [
        ({"resource": "a:b"}, True),
        ({"resource": "a:b", "wait": False}, True),
        ({"resource": "a:b", "wait": True}, False),
        ({"resource": "a:b", "wait": True, "giveUpMs": 60_000}, True),
        ({"resource": "a:b", "wait": True, "giveUpMs": 60_001}, False),
        ({"resource": "a:\u00e9"}, True),
        ({"resource": "a:\u0378"}, False),
        ({"resources": ["a:b", "a:\u0378/**"]}, False),
    ],
)
async def test_what_entry_0_and_this_unicode_allow_is_asked_before_any_rate(
    members: dict[str, Any], is_good: bool
) -> None:
    events: list[str] = []
    here = waiting_desk(events)[0]
    here._ledger = replace(LEDGER, parameters=Parameters(wait_max_ms=60_000))
    try:
        await here.decide(signed(WORKER, "lease.acquire", **members), ACTIONS["lease.acquire"])
    except Rejection as rejection:
        assert (rejection.code, is_good, events) == ("member_invalid", False, [])
    else:
        assert is_good and events == ["take 1", "submit lease.acquire"]


async def test_a_refusal_is_told_with_its_name_and_its_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf: JsonObject = {"type": "tallystick/lease.refused/1", "error": "lease_held", "retryAfterMs": 25, "seq": 7}

    async def refused(self: Sequencer, request: SignedRequest, action: Action, check: None = None) -> Answer:
        return Answer(7, 409, encode_canonical(leaf), bytes(64), "key", b"note", ())

    monkeypatch.setattr(Sequencer, "submit", refused)
    answered = await waiting_desk([])[0].decide(
        signed(WORKER, "lease.acquire", resource="a:b"), ACTIONS["lease.acquire"]
    )
    assert (answered.status, answered.error, answered.retry_after_ms, answered.held_ms) == (409, "lease_held", 25, 0)
