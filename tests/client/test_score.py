"""The trust of a key: walked back from entry to entry, each proven; a number that doesn't add up is not shown."""

from __future__ import annotations

import pytest

from gateway.actions import ACTIONS
from gateway.client.agent import Agent
from gateway.client.errors import AnswerRefused
from gateway.client.score import TrustChange
from tests.client.world import ALICE, BOB, FILE, NOW_MS, Book, LocalGateway, ManualClock
from verifier.wire import JsonObject, JsonValue


@pytest.fixture
def gateway() -> LocalGateway:
    """Entry 1 stands for the grant that the expiries cite."""
    gateway = LocalGateway(Book(), ManualClock())
    started: JsonObject = {"cause": "start", "isClean": True, "gapMs": 0}
    gateway.book.append("service.started", started, actor="gateway", time_ms=NOW_MS)
    return gateway


def expire(gateway: LocalGateway, *rows: JsonObject) -> int:
    """Append an expiry with these rows of trust; return its seq."""
    seq = len(gateway.book.leaves)
    time_ms = NOW_MS + seq * 1_000
    trust: JsonObject = {"trust": list[JsonValue](rows)} if rows else {}
    expired: JsonObject = {
        "resources": [FILE], "leaseId": "L1", "fencingToken": (NOW_MS - 9_000) * 1_000, "holder": ALICE.did,
        "grantSeq": 1, "expiresAtMs": time_ms,
    }  # fmt: skip
    return gateway.book.append("lease.expired", {**expired, **trust}, actor="gateway", time_ms=time_ms)


def row(change: int, after: int, previous_seq: int | None = None, did: str = ALICE.did) -> JsonObject:
    cited: JsonObject = {} if previous_seq is None else {"previousSeq": previous_seq}
    return {"did": did, "change": change, "after": after, **cited}


async def history(agent: Agent, last_seq: int, did: str = ALICE.did) -> list[TrustChange]:
    return [change async for change in agent.trust_history(did, last_seq)]


async def test_the_history_is_walked_back_to_the_first_change(gateway: LocalGateway) -> None:
    """Scenarios 23 and 47: the whole way of a key's trust is in the ledger, whoever asks and whenever it came back."""
    expire(gateway)
    first = expire(gateway, row(-5_000, 45_000))
    second = expire(gateway, row(-5_000, 40_000, first), row(-5_000, 45_000, did=BOB.did))
    expire(gateway)
    third = expire(gateway, row(-3_000, 37_000, second))
    async with gateway.agent(BOB) as agent:
        alices, bobs = await history(agent, third), await history(agent, second, BOB.did)
    assert [(change.receipt.seq, change.change, change.after) for change in alices] == [
        (third, -3_000, 37_000), (second, -5_000, 40_000), (first, -5_000, 45_000),
    ]  # fmt: skip
    assert [(change.receipt.seq, change.previous_seq) for change in bobs] == [(second, None)]


async def test_values_that_do_not_add_up_are_refused(gateway: LocalGateway) -> None:
    """The gateway's own receipts contradict each other: one of the changes between them is kept from us."""
    first = expire(gateway, row(-5_000, 45_000))
    last = expire(gateway, row(-5_000, 39_000, first))
    async with gateway.agent() as agent:
        with pytest.raises(AnswerRefused, match=f"after entry {first} does not lead to that after {last}"):
            await history(agent, last)


async def test_an_entry_that_says_nothing_of_the_key_is_refused(gateway: LocalGateway) -> None:
    seq = expire(gateway, row(-5_000, 45_000, did=BOB.did))
    last = expire(gateway, row(-5_000, 45_000, seq))
    async with gateway.agent() as agent:
        with pytest.raises(AnswerRefused, match=f"entry {seq} does not change the trust"):
            await history(agent, last)
        with pytest.raises(AnswerRefused, match="entry 0 does not change"):
            await history(agent, 0)


async def test_the_way_back_ends(gateway: LocalGateway) -> None:
    """An entry that names itself, or a later one, as the change before: the verifier refuses it."""
    seq = expire(gateway, row(-5_000, 45_000, previous_seq=2))
    assert seq == 2
    async with gateway.agent() as agent:
        with pytest.raises(AnswerRefused, match="previousSeq"):
            await history(agent, seq)


async def test_the_value_told_is_a_picture(gateway: LocalGateway) -> None:
    view: JsonObject = {"nowMs": NOW_MS, "did": ALICE.did, "trust": 50_000, "lastSeq": None}
    gateway.views[f"{ACTIONS['trust.get'].path}?did={ALICE.did}"] = view
    async with gateway.agent() as agent:
        assert await agent.trust(ALICE.did) == view
