"""What a busy database must not do to a ledger: drown its nodes in hints, or slow down because somebody reads."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from gateway.store.postgres import PostgresStore
from gateway.store.postgres_listen import channel_of
from tests.pg.conftest import database_url
from tests.store.exercise import Writer
from tests.store.exercise_shared import put
from tests.store.postgres import Postgres

__all__ = ["database_url"]
pytestmark = pytest.mark.postgres

BATCHES = 64
BLOCKS_MAX = 10
"""Of one look at the head, all in memory. Each 1,000 batches beneath an open report cost about 20 more."""


@pytest.fixture
def engine(database_url: str) -> Postgres:
    return Postgres(database_url)


@pytest.fixture
def stores(engine: Postgres) -> Iterator[tuple[PostgresStore, PostgresStore]]:
    one, other = engine.open(), engine.open()
    yield one, other
    one.close()
    other.close()


def test_a_batch_is_one_notice_however_many_entries_it_has(
    engine: Postgres, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    """Scenario L58."""
    writer, ledger = Writer(), engine.sql("SELECT id FROM tallystick.ledger")[0][0]
    assert isinstance(ledger, int)
    with psycopg.connect(engine.url, autocommit=True) as listener:
        listener.execute(f"LISTEN {channel_of(ledger)}".encode())
        for number in range(BATCHES):
            put(stores[number % 2], writer, 64)
        notices = list(listener.notifies(timeout=1.0))
    assert 0 < len(notices) <= BATCHES


def test_a_report_that_stays_open_costs_the_writers_a_few_blocks(
    engine: Postgres, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    """Scenario L60: old versions of the head stay while somebody may still look at them, and each look passes them."""
    writer = Writer()
    with psycopg.connect(engine.url) as report:
        report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT * FROM tallystick.head")
        for number in range(4 * BATCHES):
            put(stores[number % 2], writer, 1, [("lease/L1", b"%d" % number, None)])
        assert blocks_of_a_look(engine) < BLOCKS_MAX
    assert blocks_of_a_look(engine) < BLOCKS_MAX


def blocks_of_a_look(engine: Postgres) -> int:
    """Return how many blocks are read to find the head."""
    plan = engine.sql("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM tallystick.head WHERE ledger = 1")[0][0]
    top = (plan if isinstance(plan, list) else json.loads(str(plan)))[0]["Plan"]
    return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])
