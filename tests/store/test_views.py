"""The SQL views show people what the gateway itself would read, wherever a record lies at the moment."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core.record_codec import encode_record
from gateway.core.records import Agent, ApiKey, Lease, Operator, Principal, Scheme, Session, Ticket, Waits
from gateway.store.contract import RecordChange
from gateway.store.recent import SEAL_KEYS
from gateway.store.sqlite import SqliteStore
from tests.core.requests import acquire, chain, did_of, issue, open_session, release, remove, set_scheme
from tests.pg.conftest import database_url
from tests.store.exercise import Writer
from tests.store.postgres import ORIGIN, Postgres
from tests.world import World

__all__ = ["database_url"]
VIEWS: dict[str, Any] = {
    "leases": Lease, "waits": Waits, "operators": Operator, "agents": Agent, "apikeys": ApiKey, "sessions": Session,
    "tickets": Ticket, "schemes": Scheme, "trust": Principal,
}  # fmt: skip


def look(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Read beside the gateway, as a person with the sqlite3 shell does."""
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def member(value: object) -> object:
    """Return what a column shows as the record has it: a list is shown as JSON."""
    return tuple(orjson.loads(value)) if isinstance(value, str) and value.startswith("[") else value


def test_a_view_has_one_column_for_each_member_of_its_record(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    SqliteStore(path, may_create=True).close()
    for view, kind in VIEWS.items():
        assert tuple(row[1] for row in look(path, f"PRAGMA table_info({view})")) == kind._fields


@pytest.mark.postgres
def test_a_view_in_postgresql_has_the_same_columns_and_the_ledgers_name(database_url: str) -> None:
    engine = Postgres(database_url)
    query = "SELECT column_name::text FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position"
    for view, kind in VIEWS.items():
        assert [row[0] for row in engine.sql(query, view)] == ["origin", *kind._fields]


async def live(world: World) -> None:
    """Start, and make records of every kind that has a view."""
    await world.start()
    await world.acquire("A", "lock:1", "lock:2")
    await world.ask(acquire("B", "lock:1"))
    await world.ask(acquire("B", "lock:2", wait=True))
    await world.ask(set_scheme("op", "doc", "read-safe", world.clock.wall, isFolding=True))
    await world.acquire("A", "lock:3")
    world.clock.advance(5_000)
    await world.ask(release("A", "lock:3", at_ms=world.clock.wall))
    await world.ask(remove("op", "C", world.clock.wall))
    await world.ask(issue("op", "1" * 64, "live", at_ms=world.clock.wall, name="ci"))
    await world.ask(open_session("S", chain("A", "S", resources=["lock:**"]), at_ms=world.clock.wall))


async def test_the_views_show_the_live_records_of_a_running_gateway(tmp_path: Path) -> None:
    world = World(tmp_path, "sqlite")
    await live(world)
    records = [record for _, record in world.sequencer.view.scan("")]
    for view, kind in VIEWS.items():
        found = look(world.path, f"SELECT * FROM {view}")
        expected = [tuple(record) for record in records if isinstance(record, kind)]
        found = [tuple(map(member, row)) for row in found]
        assert sorted(found) == sorted(expected) != []
    assert dict(look(world.path, "SELECT did, removed_seq FROM agents"))[did_of("C")] is not None
    assert dict(look(world.path, "SELECT did, trust FROM trust"))[did_of("A")] == 50_500
    assert look(world.path, "SELECT is_folding FROM schemes") == [(1,)]
    world.audit()
    await world.stop()


@pytest.mark.postgres
async def test_the_views_in_postgresql_show_the_same_records(tmp_path: Path, database_url: str) -> None:
    world = World(tmp_path, "memory")
    await live(world)
    engine = Postgres(database_url)
    store = engine.open()
    records = list(world.sequencer.view.scan(""))
    Writer().write(store, 1, changes=[(key, encode_record(record), None) for key, record in records])
    for view, kind in VIEWS.items():
        found = [tuple(map(member, row)) for row in engine.sql(f"SELECT * FROM tallystick.{view}")]
        assert {row[0] for row in found} == {ORIGIN}
        expected = [tuple(record) for _, record in records if isinstance(record, kind)]
        assert sorted(row[1:] for row in found) == sorted(expected) != []
    store.close()
    await world.stop()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_record_is_shown_as_last_written_in_the_journal_and_in_the_table(seed: int, tmp_path: Path) -> None:
    path, writer, rng = tmp_path / "ledger.sqlite3", Writer(), random.Random(seed)
    store = SqliteStore(path, may_create=True)
    for step in range(3 * SEAL_KEYS // 700):
        numbers = rng.sample(range(14_000), 700)
        changes: list[RecordChange] = [
            (f"agent/é{number}", None if rng.random() < 0.3 else b'{"did":"\xc3\xa9%d"}' % step, None)
            for number in numbers
        ]
        writer.write(store, 1, changes=changes)
    shown = sorted(look(path, "SELECT key, value FROM live_record"))
    assert look(path, "SELECT count(*) FROM record")[0][0] > 0 < look(path, "SELECT count(*) FROM journal")[0][0]
    assert shown == sorted((key, value.decode()) for key, value in store.records(["agent/"]))
    store.close()
