"""What a gateway says while its database has no stand-by: unfit when none is demanded, stalled when it is silent."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from gateway.__main__ import main
from gateway.config import load_settings
from gateway.errors import StartError
from gateway.initialise import DOUBT_FILE
from gateway.node_commands import copy_node
from gateway.store import postgres_link, postgres_schema
from gateway.store.postgres import PostgresStore
from gateway.stores import open_reader
from tests.pg.pair import Pair
from tests.web.test_decisions import check_holds, leaf_of
from tests.web.test_problems import check_problem
from tests.web.world import AUTHORITY, ORIGIN, Message, Reply, World, make, world

pytestmark = pytest.mark.postgres
SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as found:
        yield found


@pytest.fixture
async def place(pair: Pair, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A public gateway whose receipts say "replicated"."""
    pair.primary.add_database(name := f"d{abs(hash(request.node.name))}")
    made = make(tmp_path / "data", store=pair.url(name), durability="replicated")
    async with world(tmp_path / "data", made, handler_seconds=20) as found:
        yield found


async def until_ready(place: World, status: int) -> Reply:
    """Ask /readyz until it says so."""
    async with asyncio.timeout(SECONDS_MAX):
        while (reply := await place.get("/readyz")).status != status:  # noqa: ASYNC110  # it tells nobody by itself
            await asyncio.sleep(0.1)
    return reply


async def test_receipts_say_that_they_are_replicated(place: World) -> None:
    reply = await place.acquire("a", "lock:x")
    check_holds(place, reply)
    assert leaf_of(reply)["durability"] == "replicated"
    place.audit()


async def test_without_a_demand_for_stand_bys_nothing_is_decided_until_there_is_one_again(
    place: World, pair: Pair
) -> None:
    key = await place.agent("a")
    message = place.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once")
    pair.demand_standby("")
    try:
        refused = await place.send(message)
        check_problem(refused, "store_unfit", 503)
        assert "retry-after" in refused.headers and refused.json["retry"] == "same_request"
        ready = await place.get("/readyz")
        check_problem(ready, "store_unfit", 503)
        assert "synchronous_standby_names" in ready.json["detail"]
        stranger = await place.send(Message("GET", "/readyz", (("host", AUTHORITY), ("via", "1.1 proxy"))))
        assert "standby" not in stranger.json["detail"]
        assert (await place.get("/main/checkpoint")).status == 200
    finally:
        pair.demand_standby()
    await until_ready(place, 200)
    again = await place.send(place.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once"))
    assert again.status == 200
    place.audit()


async def test_a_silent_stand_by_stalls_and_the_same_key_finds_what_was_decided(place: World, pair: Pair) -> None:
    key = await place.agent("a")
    await place.acquire("b", "lock:y")
    size = place.gateway.house.sequencer.confirmed.size
    pair.stop_standby()
    try:
        unknown = await place.send(place.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once"))
        check_problem(unknown, "outcome_unknown", 503)
        assert "Idempotency-Key" in unknown.json["advice"] and unknown.json["retry"] == "same_request"
        check_problem(await place.get("/readyz"), "store_stalled", 503)
        check_problem(await place.acquire("b", "lock:z"), "store_stalled", 503)
        figures = generate_latest(place.gateway.metrics.registry).decode()
        assert "tallystick_store_stalled 1.0" in figures and "tallystick_store_stalls_total 1.0" in figures
        assert 5.0 < place.gateway.house.sequencer.pending_s < SECONDS_MAX
        assert (await place.get("/main/checkpoint")).status == 200
        assert place.gateway.house.sequencer.confirmed.size == size, "nothing unreplicated is shown"
    finally:
        pair.start_standby()
    await until_ready(place, 200)
    again = await place.send(place.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once"))
    assert again.status == 200
    place.audit()


async def test_a_node_that_is_kept_from_the_head_by_a_silent_commit_is_not_ready_either(
    place: World, pair: Pair
) -> None:
    other = place.folder.with_name("other")
    copy_node(place.folder, other, load_settings(place.folder))
    shutil.copytree(place.folder / "operator", other / "operator")
    async with world(other, place.made, handler_seconds=20) as there:
        key = await place.agent("a")
        there.agents = place.agents
        assert (await there.acquire("a", "lock:x")).status == 200
        pair.stop_standby()
        try:
            asked = asyncio.create_task(place.acquire("a", "lock:y"))
            await until_ready(place, 503)
            check_problem(await there.send(there.signed(key, "lease.acquire", resource="lock:z")), "busy", 503)
            check_problem(await until_ready(there, 503), "busy", 503)
            assert "tallystick_ready 0.0" in generate_latest(there.gateway.metrics.registry).decode()
            assert (await there.get("/main/checkpoint")).status == 200
            check_problem(await asked, "outcome_unknown", 503)
        finally:
            pair.start_standby()
        await until_ready(place, 200)
        await until_ready(there, 200)
        assert (await there.acquire("a", "lock:z")).status == 200
        place.audit()


# -- a stand-by that dies while something is begun ---------------------------------------------------------------------


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_link, "COMMIT_SECONDS_MAX", 2.0)


def bereave(pair: Pair, monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> None:
    """Let the stand-by be gone when this is called next: its COMMIT waits."""
    call = getattr(place, name)

    def bereaved(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(place, name, call)
        pair.stop_standby()
        return call(*arguments, **options)

    monkeypatch.setattr(place, name, bereaved)


@pytest.mark.parametrize(
    ("place", "name", "is_in_doubt"),
    [(postgres_schema, "_commit", False), (PostgresStore, "_announce", False), (PostgresStore, "commit", True)],
)
def test_an_init_whose_stand_by_dies_ends_and_is_right_when_it_is_run_again(
    place: object, name: str, is_in_doubt: bool, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], impatience: None,
) -> None:  # fmt: skip
    folder, database = tmp_path / "data", f"i{len(name)}"
    url = pair.url(pair.primary.add_database(database).rpartition("/")[2])
    command = ["init", "--data", str(folder), "--origin", ORIGIN, "--authority", AUTHORITY, "--store", url]
    bereave(pair, monkeypatch, place, name)
    try:
        assert main(command) == 1
        said = capsys.readouterr().err
        assert "again" in said and "Traceback" not in said and folder.exists() == is_in_doubt
        assert not is_in_doubt or ("not confirmed within 2 s" in said and f"{folder} stays" in said)
        assert main(command) == 1, "it says what has to be well first"
        assert "number of synchronous stand-bys is 0" in capsys.readouterr().err
        assert folder.exists() == is_in_doubt
    finally:
        pair.start_standby()
        pair.await_standby()
    root = (folder / "public" / "root.vkey").read_text() if is_in_doubt else ""
    assert main(command) == 0
    made = (folder / "public" / "root.vkey").read_text()
    assert made.strip() in capsys.readouterr().out and root in ("", made)
    assert not (folder / DOUBT_FILE).exists() and {path.name for path in tmp_path.iterdir()} == {"data"}
    with contextlib.closing(open_reader(folder)) as reader:
        assert len(reader.entries(0, 9)) == 1
    assert pair.primary.sql("select count(*) from tallystick.ledger", database=database) == [(1,)]


async def test_a_start_whose_stand_by_dies_ends_or_shows_what_was_signed_and_the_next_one_starts(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatience: None
) -> None:
    pair.primary.add_database("starts")
    made = make(tmp_path / "data", store=pair.url("starts"), durability="replicated")
    bereave(pair, monkeypatch, PostgresStore, "_announce")
    try:
        with pytest.raises(StartError, match=r"did not say whether it kept .* Run this again .* whether it was kept"):
            async with world(tmp_path / "data", made):
                pass
    finally:
        pair.start_standby()
        pair.await_standby()
    bereave(pair, monkeypatch, PostgresStore, "commit")
    async with world(tmp_path / "data", made, handler_seconds=20) as place:
        assert (await place.get("/readyz")).status == 503
        assert place.gateway.house.sequencer.confirmed.size == 1
        pair.start_standby()
        await until_ready(place, 200)
        assert (await place.acquire("a", "lock:x")).status == 200
        place.audit()
