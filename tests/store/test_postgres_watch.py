"""Answers that are lost without a word, and waits that are none of that kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gateway.errors import Unknown
from gateway.store import postgres_watch
from gateway.store.postgres_watch import is_at_work
from tests.pg.conftest import database_url
from tests.pg.proxy import Fault, Proxy
from tests.pg.server import shared_server
from tests.store.exercise import Writer
from tests.store.postgres import Postgres, pid_of

__all__ = ["database_url"]
pytestmark = pytest.mark.postgres


@pytest.fixture
def engine(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Postgres:
    monkeypatch.setattr(postgres_watch, "PATIENCE_SECONDS", 1.0)
    return Postgres(database_url)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(shared_server().port) as proxy:
        yield proxy


def behind(proxy: Proxy, engine: Postgres) -> Postgres:
    """Return the same ledger, reached through the proxy."""
    found = object.__new__(Postgres)
    found.url, found.origin = engine.url.replace(f":{shared_server().port}/", f":{proxy.port}/"), engine.origin
    return found


def test_a_commit_whose_answer_was_swallowed_is_unknown_and_landed(engine: Postgres, proxy: Proxy) -> None:
    store, writer = behind(proxy, engine).open(), Writer()
    writer.write(store, 1)
    store.lock(writer.head, [], [])
    batch = writer.batch(2)
    proxy.strike(Fault.SWALLOW_ACK)
    begun = time.monotonic()
    with pytest.raises(Unknown, match="lost at COMMIT"):
        store.commit(batch, writer.head)
    assert 1 <= time.monotonic() - begun < 20
    assert store.landed(batch.head.batch_id)
    assert store.load().head == batch.head
    store.close()


def test_a_commit_that_takes_long_is_waited_for(engine: Postgres) -> None:
    """As one that waits for a stand-by: its session is at work all the time."""
    store, writer = engine.open(), Writer()
    engine.sql(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(5); RETURN NULL; END $$"
    )
    engine.sql(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON tallystick.batch DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    begun = time.monotonic()
    writer.write(store, 1)
    assert time.monotonic() - begun >= 5
    assert store.load().head == writer.head
    store.close()


def test_who_reads_on_a_silent_connection_reads_on_when_there_is_a_server_again(engine: Postgres, proxy: Proxy) -> None:
    store, writer = engine.open(), Writer()
    writer.write(store, 1)
    reader = behind(proxy, engine).read()
    assert reader.head() == writer.head
    proxy.freeze()
    thaw = threading.Timer(3, proxy.thaw)
    thaw.start()
    assert reader.head() == writer.head
    thaw.join()
    reader.close()
    store.close()


def test_a_session_is_at_work_or_not_or_nobody_knows(engine: Postgres) -> None:
    store = engine.open()
    assert store._link is not None
    parameters = store._link._watched.parameters
    store._link.roll_back()
    assert is_at_work(parameters, pid_of(store)) is False
    assert is_at_work(parameters, 1) is False
    assert is_at_work({**parameters, "port": "1"}, pid_of(store)) is None
    store.close()
