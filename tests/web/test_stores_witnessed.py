"""The nodes of one ledger and its witnesses: one asks at a time, the others serve what it got and take over from it."""

import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway import witnessing
from gateway.config import load_settings
from gateway.initialise import Made
from gateway.node_commands import copy_node
from gateway.selfaudit import Child
from tests.ledger.witness_fake import FakeWitness
from tests.pg.conftest import database_url as database_url
from tests.web.test_problems import check_problem
from tests.web.test_witnessed import reached, witnessed, witnesses_at
from tests.web.world import World, make, world

pytestmark = pytest.mark.postgres


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose turn it is is asked for often, and soon over."""
    monkeypatch.setattr(witnessing, "DUTY_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(witnessing, "DUTY_MS", 1_500)


def twin(folder: Path) -> Path:
    """Return the folder of another node."""
    other = folder.with_name("other")
    copy_node(folder, other, load_settings(folder))
    shutil.copytree(folder / "operator", other / "operator")  # a test's World reads it
    return other


def asking(place: World) -> bool:
    state = place.gateway.house.newest_witnessed.__self__.witnessing  # type: ignore[attr-defined]  # a method of Watch
    return bool(state._is_on_duty())


async def open_pair(
    stack: AsyncExitStack, folder: Path, made: Made, witnesses: list[FakeWitness]
) -> tuple[World, World, AsyncExitStack]:
    """Return two nodes, the first on duty, and what ends the first."""
    first = await stack.enter_async_context(AsyncExitStack())
    here = await first.enter_async_context(witnessed(folder, made, witnesses))
    there = await stack.enter_async_context(witnessed(twin(folder), made, witnesses))
    there.agents = here.agents
    return here, there, first


@pytest.mark.usefixtures("quick")
async def test_one_node_asks_the_witnesses_and_another_takes_over(tmp_path: Path, database_url: str) -> None:
    made = make(tmp_path / "data", store=database_url)
    async with witnesses_at() as witnesses, AsyncExitStack() as stack:
        here, there, first = await open_pair(stack, tmp_path / "data", made, witnesses)
        await here.agent("a")
        await reached(here, here.gateway.house.sequencer.confirmed.size)
        assert asking(here) and not asking(there)
        await there.acquire("a", "lock:x")
        size = there.gateway.house.sequencer.confirmed.size
        await reached(there, size)
        assert not asking(there), "it was told what the other one got"
        assert (await there.get("/main/witnessed")).status == 200
        await first.aclose()
        await there.acquire("a", "lock:y")
        await reached(there, there.gateway.house.sequencer.confirmed.size)
        assert asking(there)
        assert not any(one.alarm for one in there.gateway.house.newest_witnessed.__self__.witnessing.standings)  # type: ignore[attr-defined]
        assert "ledger.disputed" not in there.types()
        there.audit()


@pytest.mark.usefixtures("quick")
async def test_what_a_witness_saw_of_another_node_is_no_second_history(tmp_path: Path, database_url: str) -> None:
    """The second node knows less than the witnesses when its turn comes: it looks again before it says so."""
    made = make(tmp_path / "data", store=database_url)
    async with witnesses_at() as witnesses, AsyncExitStack() as stack:
        here, there, first = await open_pair(stack, tmp_path / "data", made, witnesses)
        sequencer, learn = there.gateway.house.sequencer, there.gateway.house.sequencer.catch_up
        for task in sequencer._tasks:
            if task.get_name() == "follower":
                task.cancel()
        for number in range(3):
            await here.acquire("a", f"lock:{number}")
        await reached(here, here.gateway.house.sequencer.confirmed.size)
        assert sequencer.confirmed.size < here.gateway.house.sequencer.confirmed.size
        await first.aclose()
        await reached(there, 9)
        assert learn is not None and asking(there)
        assert "ledger.disputed" not in there.types()
        assert (await there.acquire("a", "lock:9")).status == 200


async def test_the_self_audit_reads_from_the_database(tmp_path: Path, database_url: str) -> None:
    made = make(tmp_path / "data", store=database_url)
    async with world(tmp_path / "data", made, self_audit=False) as place:
        for number in range(3):
            await place.acquire("a", f"lock:{number}")
        check_problem(await place.get("/nowhere"), "not_found", 404)
    child = Child(tmp_path / "data", 0.0)
    assert child._tried() is None and child._auditor is not None
    assert child._auditor.size >= 5
    child._close()
