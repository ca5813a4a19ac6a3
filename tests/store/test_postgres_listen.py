"""Hints: heard when another node wrote, and again after whatever silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gateway.store.postgres import PostgresStore
from gateway.store.postgres_listen import Listener
from tests.pg.conftest import database_url
from tests.pg.proxy import Proxy
from tests.pg.server import shared_server
from tests.store.exercise import Writer
from tests.store.exercise_shared import put
from tests.store.postgres import Postgres

__all__ = ["database_url"]
pytestmark = pytest.mark.postgres


def until(is_so: Callable[[], bool], seconds: float = 15) -> bool:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Hints:
    """Counts them, and can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.count += 1

    def more_than(self, count: int) -> bool:
        return until(lambda: self.count > count)


@pytest.fixture
def engine(database_url: str) -> Postgres:
    return Postgres(database_url)


@pytest.fixture
def store(engine: Postgres) -> Iterator[PostgresStore]:
    store = engine.open()
    yield store
    store.close()


def test_a_batch_of_another_node_is_a_hint_and_one_of_its_own_is_none(engine: Postgres, store: PostgresStore) -> None:
    hints, other, writer = Hints(), engine.open(), Writer()
    store.listen(hints)
    assert hints.more_than(0), "one for what was written before it listened"
    before = hints.count
    for _ in range(5):
        put(store, writer, 1)
    time.sleep(0.7)
    assert hints.count == before
    put(other, writer, 1)
    assert hints.more_than(before)
    other.close()


def test_hints_are_of_one_ledger(engine: Postgres, store: PostgresStore) -> None:
    rival = Postgres(engine.url, "rival")
    hints, theirs, writer = Hints(), rival.open(), Writer()
    store.listen(hints)
    assert hints.more_than(0)
    before = hints.count
    put(theirs, writer, 1)
    time.sleep(0.7)
    assert hints.count == before
    theirs.close()


def test_a_batch_that_was_not_committed_is_no_hint(engine: Postgres, store: PostgresStore) -> None:
    hints, other, writer = Hints(), engine.open(), Writer()
    put(other, writer, 1)
    store.listen(hints)
    assert hints.more_than(0)
    before = hints.count
    with pytest.raises(Exception, match="the head is at"):
        other.commit(writer.batch(1), None)
    time.sleep(0.7)
    assert hints.count == before
    other.close()


def test_a_listener_whose_session_ended_listens_again(engine: Postgres) -> None:
    hints = Hints()
    listener = Listener(engine.url, engine.origin, hints, lambda: 0)
    assert until(lambda: listener.connections == 1) and hints.more_than(0)
    ended = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and query ~ '^(LISTEN|NOTIFY)'"
    name = engine.url.rpartition("/")[2]
    assert until(lambda: shared_server().sql(ended, name) == [(True,)])
    assert until(lambda: listener.connections == 2) and hints.more_than(1)
    listener.stop()


def test_a_listener_that_hears_nothing_not_even_itself_begins_anew(engine: Postgres) -> None:
    """Scenario L57."""
    hints = Hints()
    server = shared_server()
    with Proxy(server.port) as proxy:
        url = engine.url.replace(f":{server.port}/", f":{proxy.port}/")
        listener = Listener(url, engine.origin, hints, lambda: 0, probe=0.3, silence=2.0)
        assert until(lambda: listener.connections == 1)
        time.sleep(3)
        assert listener.connections == 1, "it hears its own probes"
        proxy.freeze()
        time.sleep(0.2)
        proxy.thaw()
        assert until(lambda: listener.connections == 2)
        listener.stop()


def test_a_listener_that_is_connected_has_ended_when_stop_returns(engine: Postgres) -> None:
    """A thread that is inside libpq while the interpreter is taken down may crash the process."""
    listener = Listener(engine.url, engine.origin, lambda: None, lambda: 0)
    assert until(lambda: listener.connections == 1)
    listener.stop()
    assert until(lambda: not listener._thread.is_alive(), 0.2)


def test_a_listener_waits_for_a_server_and_for_nobody_when_it_is_stopped(engine: Postgres) -> None:
    hints = Hints()
    with Proxy(1) as proxy:
        listener = Listener(
            engine.url.replace(f":{shared_server().port}/", f":{proxy.port}/"), engine.origin, hints, lambda: 0
        )
        time.sleep(0.5)
        assert listener.connections == 0
        proxy.target = shared_server().port
        assert until(lambda: listener.connections == 1)
        begun = time.monotonic()
        listener.stop()
        assert time.monotonic() - begun < 0.2
        assert until(lambda: not listener._thread.is_alive(), 3)
        assert listener._thread.daemon
