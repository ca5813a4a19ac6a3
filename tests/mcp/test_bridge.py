"""What the bridge makes of calls that are called off, of failures, and of a gateway that comes later."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.client.errors import AnswerRefused, NotEnrolled, ProfileError, RequestRejected, Unreachable
from gateway.client.profile import Address, Profile
from gateway.mcp import keeper as keeping
from gateway.mcp.bridge import AgentCaller
from gateway.mcp.keeper import Keeper
from gateway.mcp.tools import Trouble
from gateway.web.mcp import _is_ours
from keys.signing import SigningKey
from verifier.entries import full_type
from verifier.wire import Malformed

ADDRESS = Address("http://127.0.0.1:9", "gateway.example/main", "gateway.example")
KEYRING: Any = None
PROFILE = Profile(ADDRESS, SigningKey(b"\1" * 32), KEYRING)
LEAF: dict[str, Any] = {
    "type": full_type("lease.granted"), "seq": 7, "timeMs": 5, "actor": PROFILE.key.did, "resources": ["repo:a"],
    "leaseId": "L7", "fencingToken": 9, "mode": "write", "ttlMs": 30_000, "expiresAtMs": 30_005,
}  # fmt: skip


class Leaf(SimpleNamespace):
    def text(self, name: str) -> str:
        return str(self.value.get(name, ""))


GRANTED = SimpleNamespace(
    receipt=SimpleNamespace(
        seq=7, type=LEAF["type"], leaf=Leaf(value=LEAF, batch=None), resources=("repo:a",), data=b"{}"
    )
)


@dataclass
class SlowAgent:
    """Answers when it is let, and remembers what it was asked to give back."""

    answer: Any = field(default_factory=lambda: GRANTED)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[Any] = field(default_factory=list)
    released: list[Any] = field(default_factory=list)
    is_over: bool = False

    @property
    def caller(self) -> "SlowAgent":
        return self

    @property
    def clock(self) -> SimpleNamespace:
        return SimpleNamespace(steady_ms=lambda: 0, sleep=lambda ms: asyncio.sleep(ms / 1_000))

    async def decide(self, action: str, members: Any, **options: Any) -> Any:
        self.asked.append((action, options))
        try:
            await self.may_answer.wait()
        finally:
            self.is_over = True
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def release(self, resources: Any, lease_id: str, *, until_ms: int) -> None:
        self.released.append((resources, lease_id))


def caller_of(agent: SlowAgent) -> AgentCaller:
    async def give() -> SlowAgent:
        return agent

    keeper: Any = SimpleNamespace(agent=give)
    return AgentCaller(PROFILE, keeper)


async def begun(agent: SlowAgent, action: str, **members: Any) -> asyncio.Task[Any]:
    """Begin a call, and return when the agent was asked."""
    task = asyncio.create_task(caller_of(agent).decide(action, members, idempotency_key="k", wait_ms=20_000))
    async with asyncio.timeout(5):
        while not agent.asked:  # noqa: ASYNC110  # a turn or two of the loop
            await asyncio.sleep(0)
    return task


async def test_an_acquire_that_is_called_off_gives_back_what_it_brings() -> None:
    agent = SlowAgent()
    task = await begun(agent, "lease.acquire", resource="repo:a")
    task.cancel()
    await asyncio.sleep(0)
    agent.may_answer.set()
    await asyncio.wait((task,), timeout=5)
    assert task.cancelled()
    assert agent.released == [(("repo:a",), "L7")]


async def test_a_claim_that_is_called_off_leaves_the_gateway() -> None:
    agent = SlowAgent()
    task = await begun(agent, "wait.claim", ticketId="T7")
    task.cancel()
    await asyncio.wait((task,), timeout=5)
    assert task.cancelled() and agent.is_over


async def test_a_release_that_is_called_off_is_finished_all_the_same() -> None:
    agent = SlowAgent()
    task = await begun(agent, "lease.release", resource="repo:a")
    task.cancel()
    await asyncio.wait((task,), timeout=5)
    assert task.cancelled() and not agent.is_over
    agent.may_answer.set()
    await asyncio.sleep(0.01)
    assert agent.is_over


async def test_what_is_told_is_read_out_of_the_leaf() -> None:
    agent = SlowAgent()
    agent.may_answer.set()
    answer = await caller_of(agent).decide("lease.acquire", {}, idempotency_key="k", wait_ms=20_000)
    assert (answer["seq"], answer["ok"], answer["receipt"]) == (7, True, {})
    assert isinstance(answer["lease"], dict) and answer["lease"]["leaseId"] == "L7"
    (_, options), *_ = agent.asked
    assert options == {"until_ms": 20_000, "hold_ms": 18_000, "idempotency_key": "k"}


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [
        (Unreachable("nobody is there"), "unreachable", "same_request"),
        (Unreachable("not now", "throttled"), "throttled", "same_request"),
        (RequestRejected(403, "operator_removed", "gone"), "operator_removed", "never"),
        (RequestRejected(401, "outside_window", "late"), "outside_window", "new_request"),
        (NotEnrolled(401, "agent_unknown", "who are you", "Ask."), "agent_unknown", "never"),
        (RequestRejected(400, "made_up", "no"), "made_up", "never"),
        (AnswerRefused("it does not verify:\nstep 3"), "answer_unproven", "never"),
        (Malformed("member ttlMs"), "member_invalid", "never"),
    ],
)
async def test_failures_are_told_by_name_and_with_what_helps(error: Exception, code: str, retry: str) -> None:
    agent = SlowAgent(answer=error)
    agent.may_answer.set()
    with pytest.raises(Trouble) as told:
        await caller_of(agent).decide("lease.renew", {}, idempotency_key="k", wait_ms=0)
    assert (told.value.code, told.value.retry) == (code, retry)
    assert "\n" not in told.value.text


# -- the keeper --------------------------------------------------------------------------------------------------------


class Gateway:
    """Agents that can be entered when the gateway lets them."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.entered = self.left = 0

    def open(self, profile: Profile) -> "Gateway":
        return self

    async def __aenter__(self) -> "Gateway":
        self.entered += 1
        if self.errors:
            raise self.errors.pop(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.left += 1


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    made = Gateway()
    monkeypatch.setattr(keeping, "Agent", made)
    return made


async def test_the_agent_is_entered_once_and_left(gateway: Gateway) -> None:
    async with Keeper(PROFILE) as keeper:
        agents: list[Any] = await asyncio.gather(*(keeper.agent() for _ in range(3)))
    assert all(agent is gateway for agent in agents)
    assert (gateway.entered, gateway.left) == (1, 1)


async def test_what_is_in_the_way_is_told_to_who_waits_and_tried_again_by_the_next(gateway: Gateway) -> None:
    gateway.errors = [ProfileError("early"), ProfileError("first call")]
    async with Keeper(PROFILE) as keeper:
        await asyncio.sleep(0.01)
        with pytest.raises(ProfileError, match="first call"):
            await keeper.agent()
        agent: Any = await keeper.agent()
        assert agent is gateway
    assert (gateway.entered, gateway.left) == (3, 1)


async def test_a_keeper_that_nobody_asked_leaves_nothing_open(gateway: Gateway) -> None:
    async with Keeper(PROFILE):
        await asyncio.sleep(0.01)
    assert (gateway.entered, gateway.left) == (1, 1)


# -- pages on this machine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:6274", True),
        ("http://localhost.evil.example:3000", False),
        ("http://evil.example", False),
        ("ftp://localhost", False),
        ("localhost:3000", False),
        ("null", False),
        ("", False),
    ],
)
def test_a_ledger_on_this_machine_lets_its_pages_ask(origin: str, is_ours: bool) -> None:
    assert _is_ours(origin, {"127.0.0.1:8420"}) is is_ours
    assert not _is_ours("http://localhost:3000", {"gateway.example"})
