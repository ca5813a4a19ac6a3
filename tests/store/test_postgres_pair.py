"""The engine on a primary with a synchronous stand-by: what a commit waits for, and what becomes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gateway.errors import Busy, HeadMoved, Unfit, Unknown
from gateway.store.postgres import PostgresStore
from gateway.store.postgres_reader import PostgresReader
from tests.pg.pair import Pair
from tests.pg.proxy import Proxy
from tests.pg.server import ROLE
from tests.store.exercise import Writer
from tests.store.postgres import ORIGIN, Postgres, pid_of

pytestmark = pytest.mark.postgres
MANNER = "replicated none"


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with Pair() as pair:
        monkeypatch.setenv("PGPASSFILE", str(pair.yard.path / "pgpass"))
        pair.primary.sql("create database tally owner tally")
        yield pair


def opened(pair: Pair) -> PostgresStore:
    store = Postgres(pair.url("tally")).store(durability="replicated", manner=MANNER)
    store.load()
    return store


def another(pair: Pair) -> PostgresStore:
    """Return a second node's store of the same ledger."""
    return PostgresStore(pair.url("tally"), ORIGIN, durability="replicated", manner=MANNER, node="other")


class Commit:
    """A batch that is committed in a thread, as a sequencer does; the outcome is "clean" or the error."""

    def __init__(self, store: PostgresStore, writer: Writer, name: str) -> None:
        self.outcome: str | Exception = ""
        self.batch = writer.batch(1, name=name)
        store.lock(writer.head, [], [])
        self._thread = threading.Thread(target=self._run, args=(store, writer))
        self._thread.start()

    def _run(self, store: PostgresStore, writer: Writer) -> None:
        try:
            store.commit(self.batch, writer.head)
            self.outcome = "clean"
        except Exception as error:
            self.outcome = error

    def join(self) -> str | Exception:
        self._thread.join(30)
        return self.outcome


def waiting(pair: Pair, store: PostgresStore) -> None:
    """Return when the store's COMMIT waits for the stand-by."""
    asked = "select 1 from pg_stat_activity where pid = %s and wait_event = 'SyncRep'"
    pair.yard.until(lambda: pair.primary.sql(asked, pid_of(store)) != [], pair.primary.name)


def test_a_commit_waits_for_its_stand_by_and_what_ends_the_wait_leaves_it_in_doubt(pair: Pair) -> None:
    store = opened(pair)
    writer = Writer()
    writer.write(store, 1)

    pair.stop_standby()
    commit = Commit(store, writer, "patient")
    waiting(pair, store)
    time.sleep(7)  # longer than the watch's patience: its session is at work
    assert commit.outcome == ""
    pair.start_standby()
    assert commit.join() == "clean"
    writer.take(commit.batch)

    for act in ("pg_cancel_backend", "pg_terminate_backend"):
        pair.await_standby()
        store.load()
        pair.stop_standby()
        commit = Commit(store, writer, act)
        waiting(pair, store)
        pair.primary.sql(f"select {act}(%s)", pid_of(store))
        assert isinstance(commit.join(), Unknown)
        with pytest.raises((HeadMoved, Busy)):
            store.lock(writer.head, [], [])
        count = pair.primary.sql("select count(*) from tallystick.entry", database="tally")[0][0]
        assert count == len(writer.leaves) + 1, "on the primary alone, and visible"
        with pytest.raises(Busy):  # nothing is told before it could be made durable
            store.landed(commit.batch.head.batch_id)
        pair.start_standby()
        pair.await_standby()
        assert store.landed(commit.batch.head.batch_id)
        writer.take(commit.batch)
    store.close()


def test_what_was_acknowledged_is_on_the_promoted_stand_by_and_what_was_not_is_found_out(pair: Pair) -> None:
    """Scenario L59."""
    store = opened(pair)
    writer = Writer()
    for _ in range(5):
        writer.write(store, 2, changes=[("a/1", b"x", None)])
    pair.stop_standby()
    commit = Commit(store, writer, "doubtful")
    waiting(pair, store)
    pair.kill_primary()
    assert isinstance(commit.join(), Unknown)
    with pytest.raises((HeadMoved, Busy)):
        store.lock(writer.head, [], [])
    pair.start_standby()
    pair.promote()
    pair.rejoin()
    assert not store.landed(commit.batch.head.batch_id)
    assert store.load().head == writer.head
    writer.write(store, 1)
    assert [entry.leaf for entry in store.entries(0, 99)] == writer.leaves
    store.close()


def test_a_wait_that_ends_because_no_stand_by_is_demanded_any_more_leaves_a_commit_in_doubt(pair: Pair) -> None:
    """It ends with success and without a warning: the server was told that this is enough. Our receipts say more."""
    store, other = opened(pair), another(pair)
    writer = Writer()
    writer.write(store, 1)
    other.load()
    seen = writer.head
    assert seen is not None
    pair.stop_standby()
    commit = Commit(store, writer, "released")
    waiting(pair, store)
    pair.primary.sql("alter system set synchronous_standby_names = ''")
    pair.primary.sql("select pg_reload_conf()")
    assert isinstance(commit.join(), Unknown)

    assert [batch.head for batch in other.news(seen)] == [commit.batch.head], "there for everybody to read"
    with pytest.raises(Unknown, match="synchronous_standby_names"):
        other.confirm()

    with pytest.raises(Unfit):
        store.landed(commit.batch.head.batch_id)
    pair.demand_standby("")
    pair.start_standby()
    pair.demand_standby()
    assert store.landed(commit.batch.head.batch_id)
    other.load()
    other.confirm()
    store.close()
    other.close()


def test_a_reader_leaves_a_server_that_lacks_what_was_shown(pair: Pair) -> None:
    """An old primary that lives on answers whoever is connected to it, and knows nothing of what came since."""
    store, writer = opened(pair), Writer()
    writer.write(store, 2)
    store.close()
    with Proxy(pair.primary.port) as wire:
        url = f"postgresql://{ROLE}@127.0.0.1:{wire.port}/tally"
        reader, careless = PostgresReader(url, ORIGIN, lambda: newest(writer)), PostgresReader(url, ORIGIN)
        assert len(reader.entries(0, 9)) == len(careless.entries(0, 9)) == 2
        pair.promote()
        wire.target = pair.primary.port
        pair.demand_standby("")
        store = PostgresStore(url, ORIGIN, durability="local", manner=MANNER)
        store.load()
        writer.write(store, 1)
        store.close()
        assert len(careless.entries(0, 9)) == 2, "that of the old primary"
        assert [entry.leaf for entry in reader.entries(0, 9)] == writer.leaves
        writer.head = replace(writer.head, root=b"?" * 32) if writer.head else None
        with pytest.raises(Busy):
            reader.entries(0, 9)
        reader.close()
        careless.close()


def newest(writer: Writer) -> tuple[int, bytes]:
    assert writer.head is not None
    return writer.head.size, writer.head.root
