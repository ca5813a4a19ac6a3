"""What the guard believes: a gateway whose lists lie, against a verifier that is never replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.client.agent import LEASES_PATH, Agent
from gateway.client.errors import AnswerRefused, Refused
from gateway.guard.changes import Need
from gateway.guard.held import Desk
from tests.client.test_change import exceeded
from tests.client.world import ALICE, BOB, FILE, Book, LocalGateway, ManualClock
from verifier.wire import JsonObject

NEED = Need(b"src/a.py", FILE, "write")
OWN = f"{LEASES_PATH}?holder=me"
VIEW = f"/api/v1/acp/coordination/wait?resource={FILE}"


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[LocalGateway, Agent]]:
    clock = ManualClock()
    clock.is_automatic = True
    gateway = LocalGateway(Book(), clock)
    async with gateway.agent(ALICE) as agent:
        yield gateway, agent


def listed(gateway: LocalGateway, lease_id: str, *resources: str, mode: str = "write") -> None:
    """Let the gateway list a lease as this agent's."""
    names = [*resources]
    gateway.views[OWN] = {"leases": [{"leaseId": lease_id, "resources": [*names], "mode": mode, "fencingToken": 1}]}


async def test_a_lease_counts_as_its_renewal_proves_it() -> None:
    async with scene() as (gateway, agent):
        grant = await agent.acquire(FILE)
        listed(gateway, grant.lease_id, FILE)
        (held,), left = await Desk(agent).cover([NEED])
        assert (held.lease_id, held.mode, held.actor, left) == (grant.lease_id, "write", ALICE.did, [])
        assert held.seq > grant.receipt.seq


@pytest.mark.parametrize(
    ("lease_on", "mode", "said"),
    [("repo:app/other", "write", FILE), (FILE, "read", FILE), ("repo:app/other", "write", "repo:app/**")],
)
async def test_a_list_that_says_more_than_the_entry_covers_nothing(lease_on: str, mode: str, said: str) -> None:
    """The list says that a lease of ours is on the path, or stronger than it is."""
    async with scene() as (gateway, agent):
        grant = await agent.acquire(lease_on, mode=mode)
        listed(gateway, grant.lease_id, said)
        assert await Desk(agent).cover([NEED]) == ([], [NEED])


async def test_a_lease_that_is_over_covers_nothing_whatever_the_list_says() -> None:
    async with scene() as (gateway, agent):
        grant = await agent.acquire(FILE)
        await agent.release(FILE, grant.lease_id)
        listed(gateway, grant.lease_id, FILE)
        assert await Desk(agent).cover([NEED]) == ([], [NEED])


async def test_a_lease_of_another_covers_nothing() -> None:
    async with scene() as (gateway, agent):
        async with gateway.agent(BOB) as bob:
            grant = await bob.acquire(FILE)
        listed(gateway, grant.lease_id, FILE)
        assert await Desk(agent).cover([NEED]) == ([], [NEED])


async def test_a_lease_that_can_not_be_renewed_for_others_wait_is_live_all_the_same() -> None:
    """The refusal hold_exceeded is of live leases only; what it is on, its first entry says."""
    async with scene() as (gateway, agent):
        grant = await agent.acquire(FILE)
        listed(gateway, grant.lease_id, FILE)
        gateway.desk.script = [lambda: exceeded(gateway, grant.lease_id)]
        desk = Desk(agent)
        (held,), left = await desk.cover([NEED])
        assert (held.seq, left) == (grant.receipt.seq + 1, [])
        assert held.from_ms == held.until_ms, "it proves one moment, and no later one"
        assert await Desk(agent).shown(held.seq) == held


async def test_another_refusal_of_a_renewal_shows_nothing() -> None:
    async with scene() as (_, agent):
        grant = await agent.acquire(FILE)
        await agent.release(FILE, grant.lease_id)
        with pytest.raises(Refused) as told:
            await agent.renew(grant.lease_id)
        assert await Desk(agent).shown(told.value.receipt.seq) is None
        assert await Desk(agent).shown(0) is None
        assert await Desk(agent).shown(999) is None


async def test_a_rival_without_an_entry_counts_and_a_view_that_is_cut_is_no_answer() -> None:
    """Whoever hides a holder behind a long list must not be let pass."""
    async with scene() as (gateway, agent):
        row: JsonObject = {"leaseId": "L99", "holder": BOB.did, "mode": "write"}
        gateway.views[VIEW] = {"isTruncated": False, "resources": [{"resource": FILE, "leases": [row]}]}
        (rival,) = await Desk(agent).rivals([NEED], frozenset((ALICE.did,)), "repo:app/**")
        assert (rival.need, rival.row, rival.held) == (NEED, row, None)
        assert await Desk(agent).rivals([NEED], frozenset((BOB.did,)), "repo:app/**") == []
        gateway.views[VIEW] = {"isTruncated": True, "resources": []}
        with pytest.raises(AnswerRefused, match="does not show all"):
            await Desk(agent).rivals([NEED], frozenset(), "repo:app/**")
