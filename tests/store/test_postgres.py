"""What only the engine on PostgreSQL has: guards in the database, connections that are lost, outcomes in doubt."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from gateway.errors import Busy, Fatal, HeadMoved, Unfit, Unknown
from gateway.store import postgres, postgres_reader
from gateway.store.contract import StoredHead, Upkeep
from gateway.store.postgres import PostgresStore, create
from gateway.store.postgres_link import Link, Statement
from gateway.store.postgres_reader import PostgresReader
from gateway.store.postgres_schema import migrate, scripts
from gateway.store.postgres_text import LIVE_MS
from tests.pg.conftest import database_url
from tests.pg.server import shared_server
from tests.store.exercise import Writer, records, signatures
from tests.store.exercise_shared import put
from tests.store.postgres import ORIGIN, Postgres, pid_of, terminate

__all__ = ["database_url"]
pytestmark = pytest.mark.postgres


@pytest.fixture
def engine(database_url: str) -> Postgres:
    return Postgres(database_url)


@pytest.fixture
def store(engine: Postgres) -> Iterator[PostgresStore]:
    store = engine.open()
    yield store
    store.close()


# -- opening -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tally:secret@127.0.0.1/d",
        "postgresql://127.0.0.1/d?password=secret",
        "host=127.0.0.1 password=secret",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    for opened in (lambda: PostgresStore(url, ORIGIN, durability="local", manner="m"), lambda: create(url, ORIGIN)):
        with pytest.raises(Fatal, match="passfile") as refused:
            opened()
        assert "secret" not in str(refused.value)


def test_a_url_that_is_none_is_refused_and_not_repeated() -> None:
    with pytest.raises(Fatal, match="can't be read") as refused:
        create("postgresql://tally:secret@[::1/d", ORIGIN)
    assert "secret" not in str(refused.value)


def test_a_server_that_is_away_is_busy_and_reads_go_on_when_it_is_back() -> None:
    away = "postgresql://tally@127.0.0.1:1/d"
    with pytest.raises(Busy, match="store_unreachable"):
        PostgresStore(away, ORIGIN, durability="local", manner="m").load()
    with pytest.raises(Busy, match="store_unreachable"):
        PostgresReader(away, ORIGIN).head()


def test_a_database_without_schema_names_the_command_that_makes_it(database_url: str) -> None:
    for call in (PostgresStore(database_url, ORIGIN, durability="local", manner="m").load,
                 PostgresReader(database_url, ORIGIN).head):  # fmt: skip
        with pytest.raises(Fatal, match="tallystick db migrate"):
            call()


@pytest.mark.parametrize(("change", "advice"), [("- 1", "tallystick db migrate"), ("+ 1", "update the gateway")])
def test_a_schema_of_another_version_is_refused(engine: Postgres, change: str, advice: str) -> None:
    engine.sql(f"UPDATE tallystick.schema_version SET number = number {change}")
    with pytest.raises(Fatal, match=advice):
        engine.store().load()


def test_a_ledger_that_is_not_there_is_named(engine: Postgres) -> None:
    with pytest.raises(Fatal, match="holds no ledger other"):
        PostgresStore(engine.url, "other", durability="local", manner="m").load()


def test_a_ledger_is_made_once_and_one_without_entries_again(engine: Postgres) -> None:
    create(engine.url, engine.origin)
    store = engine.open()
    Writer().write(store, 1)
    with pytest.raises(Fatal, match="already"):
        create(engine.url, engine.origin)
    store.close()


def test_where_the_server_would_not_keep_what_is_promised_nothing_is_made(database_url: str) -> None:
    with pytest.raises(Unfit, match="synchronous_standby_names"):
        create(database_url, ORIGIN, "replicated")
    with psycopg.connect(database_url) as db:
        assert db.execute("SELECT to_regnamespace('tallystick')").fetchall() == [(None,)]
    create(database_url, ORIGIN, "local")


def test_a_migration_is_applied_once_whoever_asks(database_url: str) -> None:
    results: list[tuple[int, int]] = []

    def run() -> None:
        link = Link(database_url)
        results.append(migrate(link))
        link.close()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = len(scripts())
    assert sorted(results) == [(0, known), (known, known), (known, known)]


# -- the database guards by itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    ["UPDATE {} SET {} = {}", "DELETE FROM {}", "TRUNCATE {}"],
)
@pytest.mark.parametrize(("table", "column"), [("entry", "leaf"), ("batch", "root"), ("signed", "note")])
def test_history_can_not_be_changed_by_mistake(
    engine: Postgres, store: PostgresStore, statement: str, table: str, column: str
) -> None:
    first = Writer().write(store, 1)
    store.keep(Upkeep(signed=(signatures(first),)))
    with pytest.raises(psycopg.Error, match="never") as refused:
        engine.sql(statement.format(f"tallystick.{table}", column, column))
    assert refused.value.sqlstate == "TS003"


def test_the_database_raises_when_the_head_is_another_and_nothing_is_committed(
    engine: Postgres, store: PostgresStore
) -> None:
    """The comparison in Python is passed over: the COMMIT that follows in the same round trip commits nothing."""
    writer, other = Writer(), engine.open()
    put(store, writer, 1)
    late = writer.batch(1, [("a/1", b"late", None)], name="late")
    seen = writer.head
    put(other, writer, 1)
    store._has_head = False
    with pytest.raises(HeadMoved, match="the head is at size 2"):
        store.commit(late, seen)
    assert engine.sql("SELECT count(*) FROM tallystick.entry") == [(2,)]
    assert engine.sql("SELECT count(*) FROM tallystick.record") == [(0,)]
    assert pid_of(store), "the connection is well"
    writer.write(store, 1)
    other.close()


@pytest.mark.parametrize("wrong", ["size", "time_ms", "epoch"])
def test_the_database_takes_no_batch_that_does_not_follow(store: PostgresStore, wrong: str) -> None:
    writer = Writer()
    writer.write(store, 2)
    batch = writer.batch(2)
    head = batch.head
    heads = {
        "size": replace(head, size=head.size + 1),
        "time_ms": replace(head, time_ms=0),
        "epoch": replace(head, epoch=0),
    }
    false = replace(batch, head=heads[wrong])
    with pytest.raises(Fatal, match="can't follow"):
        store.commit(false, writer.head)
    writer.write(store, 2)


def test_two_ledgers_of_one_database_do_not_see_each_other(database_url: str) -> None:
    one, other = Postgres(database_url, "one"), Postgres(database_url, "other")
    first, second, writer, rival = one.open(), other.open(), Writer(), Writer()
    mine = writer.write(first, 3, changes=[("a/1", b"mine", 5)])
    first.lock(writer.head, [], [])
    theirs = rival.write(second, 2, changes=[("a/1", b"theirs", 5), ("a/2", b"", 5)])
    writer.write(first, 1)
    second.keep(Upkeep(signed=(signatures(theirs),), forget_prefixes=("a/",), forget_due_ms=9, forget_max=9))
    assert (records(first), records(second)) == ({"a/1": b"mine"}, {})
    assert [entry.leaf for entry in first.entries(0, 9)] == writer.leaves
    assert first.last_note(9) is None and second.last_note(9) == b"note 2\n"
    assert not second.landed(writer.head.batch_id if writer.head else "") and first.landed(mine.head.batch_id)
    assert one.sql("SELECT count(*), count(DISTINCT genesis) FROM tallystick.ledger") == [(2, 1)]
    first.close()
    second.close()


# -- manner ------------------------------------------------------------------------------------------------------------


def restarted(writer: Writer, epoch: int) -> StoredHead:
    """Return the head of a batch that begins an epoch, as `service.started` does."""
    batch = writer.batch(1)
    return replace(batch.head, epoch=epoch)


def start(store: PostgresStore, writer: Writer, epoch: int) -> None:
    """Open the ledger and write the batch of a start, as a sequencer does."""
    store.load()
    store.lock(writer.head, [], [])
    batch = replace(writer.batch(1), head=restarted(writer, epoch))
    store.commit(batch, writer.head)
    writer.take(batch)


def silence(engine: Postgres, node: str, ms: int = LIVE_MS + 1) -> None:
    """Let it be that long since a node was heard of."""
    engine.sql("UPDATE tallystick.node SET seen_ms = seen_ms - %s WHERE node = %s", ms, node)


def rows_of(engine: Postgres) -> list[tuple[object, ...]]:
    return engine.sql("SELECT node, n.manner, h.manner, size FROM tallystick.head h, tallystick.node n ORDER BY node")


@pytest.fixture
def right(engine: Postgres) -> Iterator[tuple[PostgresStore, Writer]]:
    """A node that writes "local none", and what it wrote."""
    store, writer = engine.store(node="right"), Writer()
    store.load()
    writer.write(store, 1)
    yield store, writer
    store.close()


def test_a_start_of_another_manner_beside_a_live_node_is_refused_before_it_writes_anything(
    engine: Postgres, right: tuple[PostgresStore, Writer]
) -> None:
    store, writer = right
    other, before = engine.store(node="wrong", manner="local cedar"), rows_of(engine)
    for _ in range(2):
        with pytest.raises(Unfit) as refused:
            other.load()
        told = str(refused.value)
        assert 'it writes "local cedar"' in told and re.search(r'right writes "local none".* heard of [01] s ago', told)
        assert "same settings" in told and "stop the others first" in told and "--accept-manner" in told
    assert rows_of(engine) == before == [("right", "local none", "local none", 1)]
    writer.write(store, 1)
    silence(engine, "right", LIVE_MS - 2_000)
    with pytest.raises(Unfit, match=r"heard of [89] s ago"):
        other.load()
    silence(engine, "right", 2_001)
    start(other, writer, 2)
    with pytest.raises(Unfit, match=r'writes "local none".* said "local cedar"'):
        store.lock(writer.head, [], [])
    other.close()


def test_a_node_may_start_anew_with_another_manner_itself(
    engine: Postgres, right: tuple[PostgresStore, Writer]
) -> None:
    again = engine.store(node="right", manner="local cedar")
    start(again, right[1], 2)
    assert rows_of(engine) == [("right", "local cedar", "local cedar", 2)]
    again.close()


def test_a_node_that_stopped_in_order_is_no_live_one(engine: Postgres, right: tuple[PostgresStore, Writer]) -> None:
    right[0].keep(Upkeep(is_closing=True))
    other = engine.store(node="other", manner="local cedar")
    start(other, right[1], 2)
    assert rows_of(engine) == [("other", "local cedar", "local cedar", 2)]
    other.close()


def test_an_operator_changes_the_manner_of_all_nodes_by_one_start_and_no_more_than_that(
    engine: Postgres, right: tuple[PostgresStore, Writer]
) -> None:
    """A rolling upgrade: the first node says so, those that come after it need not."""
    store, writer = right
    first = PostgresStore(
        engine.url, ORIGIN, durability="local", manner="local cedar", node="first", is_manner_accepted=True
    )
    start(first, writer, 2)
    with pytest.raises(Unfit, match=r'writes "local none".* said "local cedar"'):
        store.lock(writer.head, [], [])
    second = engine.store(node="second", manner="local cedar")
    start(second, writer, 3)
    with pytest.raises(Unfit, match=r'first writes "local cedar".*; second writes "local cedar"'):
        store.load()  # a node that is read anew has no say either
    back = PostgresStore(engine.url, ORIGIN, durability="local", manner="local none", node="b", is_manner_accepted=True)
    start(back, writer, 4)
    with pytest.raises(Unfit, match='b writes "local none"'):
        first.load()
    for one in (first, second, back):
        one.close()


def test_of_two_that_start_at_once_the_second_one_sees_the_first(
    engine: Postgres, right: tuple[PostgresStore, Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(engine, "right")
    first, second = (engine.store(node=f"n{number}", manner=f"local {number}") for number in (1, 2))
    commit, outcome = first._commit, []

    def load() -> None:
        try:
            second.load()
            outcome.append("opened")
        except Unfit as unfit:
            outcome.append(str(unfit))

    thread = threading.Thread(target=load)

    def overtaken(link: Link, *statements: Statement) -> Any:
        """Let the other one start while this one has looked and not yet committed."""
        thread.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while thread.is_alive() and not engine.sql(waiting):
            time.sleep(0.01)
        return commit(link, *statements)

    monkeypatch.setattr(first, "_commit", overtaken)
    first.load()
    thread.join(30)
    assert len(outcome) == 1 and 'n1 writes "local 1"' in outcome[0]
    first.close()
    second.close()


def test_a_start_that_took_so_long_that_another_manner_came_in_force_writes_nothing(
    engine: Postgres, right: tuple[PostgresStore, Writer]
) -> None:
    silence(engine, "right")
    slow, other, writer = engine.store(node="slow", manner="local slow"), engine.store(node="other"), right[1]
    slow.load()
    start(other, writer, 2)
    for _ in range(2):
        with pytest.raises(Unfit, match='other writes "local none"'):
            slow.lock(writer.head, [], [])
    assert rows_of(engine)[0] == ("other", "local none", "local none", 2)
    silence(engine, "other")
    slow.lock(writer.head, [], [])
    slow.close()
    other.close()


# -- a connection that is lost -----------------------------------------------------------------------------------------


def test_a_new_connection_knows_nothing_until_the_ledger_is_loaded(engine: Postgres, store: PostgresStore) -> None:
    writer = Writer()
    first = writer.write(store, 1)
    terminate(store)
    for _ in range(2):
        with pytest.raises((HeadMoved, Busy)):
            store.lock(writer.head, [], [])
        with pytest.raises((HeadMoved, Busy)):
            store.news(first.head)
        with pytest.raises((HeadMoved, Busy)):
            store.commit(writer.batch(1), writer.head)
        with pytest.raises(Busy):
            store.confirm()
        with pytest.raises(Busy):
            store.keep(Upkeep(signed=(signatures(first),)))
    assert store.landed(first.head.batch_id)
    with pytest.raises(HeadMoved, match="load again"):
        store.lock(writer.head, [], [])
    store.load()
    writer.write(store, 1)
    assert store.unsigned() != ()


@pytest.mark.parametrize("step", ["idle", "view", "head"])
def test_a_session_that_was_ended_before_commit_was_sent_left_nothing(
    engine: Postgres, store: PostgresStore, step: str
) -> None:
    writer = Writer()
    writer.write(store, 1)
    if step == "view":
        store.load()
    if step == "head":
        store.lock(writer.head, [], [])
    terminate(store)
    with pytest.raises(Busy, match="store_unreachable"):
        store.commit(writer.batch(1), writer.head)
    assert store.load().head == writer.head
    writer.write(store, 1)


def test_a_node_that_stops_while_it_has_the_head_loses_it(engine: Postgres, store: PostgresStore) -> None:
    writer, other = Writer(), engine.open()
    writer.write(store, 1)
    store.lock(writer.head, [], [])
    time.sleep(2.2)
    other.lock(writer.head, [], [])
    other.unlock()
    with pytest.raises(Busy, match="store_unreachable"):
        store.commit(writer.batch(1), writer.head)
    other.close()


def test_a_start_may_take_longer_than_a_node_may_keep_the_head(engine: Postgres, store: PostgresStore) -> None:
    writer = Writer()
    writer.write(store, 1, changes=[("a/1", b"one", None)])
    other = engine.open()
    writer.write(store, 1, changes=[("a/1", b"two", None)])
    time.sleep(2.2)
    assert records(other) == {"a/1": b"one"} and len(other.entries(0, 9)) == 1, "as of `load`"
    store.lock(writer.head, [], [])
    store.unlock()
    assert records(other) == {"a/1": b"one"}
    other.lock(writer.head, [], [])
    assert records(other) == {"a/1": b"two"}
    other.close()


def test_a_reader_connects_again_and_is_busy_meanwhile(engine: Postgres, store: PostgresStore) -> None:
    writer, reader = Writer(), engine.read()
    writer.write(store, 1)
    assert reader.head() == writer.head
    link = reader._link
    assert link is not None
    shared_server().sql("select pg_terminate_backend(%s, 5000)", link.pid)
    assert reader.head() == writer.head
    reader.close()
    with pytest.raises(Busy):
        reader.head()


def test_a_reader_is_not_closed_under_a_call_on_another_thread(
    engine: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To free what libpq works with would end the process; a call that lasts keeps its connection."""
    monkeypatch.setattr(postgres_reader, "CLOSE_SECONDS", 0.01)
    Writer().write(store, 1)
    reader = engine.read()
    reader.head()
    link = reader._link
    assert link is not None
    with reader._one_at_a_time:
        reader.close()
        assert not link.is_closed
    reader.close()
    assert link.is_closed


# -- an outcome that is unknown ----------------------------------------------------------------------------------------


def test_a_warning_at_commit_is_unknown_and_the_batch_landed(
    engine: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait for the stand-by that somebody cancels ends so (tests/chaos has the real one)."""
    writer = Writer()
    writer.write(store, 1)
    engine.sql(
        "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'doubt'; RETURN NULL; END $$"
    )
    engine.sql(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON tallystick.batch DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION warn()"
    )
    batch = writer.batch(2)
    with pytest.raises(Unknown, match="doubt"):
        store.commit(batch, writer.head)
    with pytest.raises(HeadMoved):
        store.lock(writer.head, [], [])
    assert store.landed(batch.head.batch_id)
    assert store.load().head == batch.head


def test_an_error_at_commit_itself_left_nothing(engine: Postgres, store: PostgresStore) -> None:
    writer = Writer()
    writer.write(store, 1)
    engine.sql("CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$")
    engine.sql(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON tallystick.batch DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    with pytest.raises(Busy, match="disk_full"):
        store.commit(writer.batch(2), writer.head)
    engine.sql("DROP TRIGGER late ON tallystick.batch")
    writer.write(store, 1)


def test_a_batch_whose_session_still_lives_is_not_found_out(engine: Postgres, store: PostgresStore) -> None:
    writer = Writer()
    writer.write(store, 1)
    with psycopg.connect(engine.url) as zombie:  # as one that waits in COMMIT for a stand-by
        zombie.execute("SELECT FROM tallystick.head FOR UPDATE")
        begun = time.monotonic()
        with pytest.raises(Busy, match="outcome_unknown"):
            store.landed("some-batch")
        assert time.monotonic() - begun > 1
    assert not store.landed("some-batch")


def test_a_batch_whose_commit_ends_meanwhile_is_found(engine: Postgres, store: PostgresStore) -> None:
    """It is looked for with the head taken, so after the session that had it."""
    Writer().write(store, 1)
    with psycopg.connect(engine.url) as zombie:
        zombie.execute("SELECT FROM tallystick.head FOR UPDATE")
        zombie.execute("INSERT INTO tallystick.batch VALUES (1, 9, 1, '', 0, 1, 'late', '')")
        threading.Timer(0.7, zombie.commit).start()
        assert store.landed("late")


def test_what_was_found_absent_never_lands(engine: Postgres, store: PostgresStore) -> None:
    """A batch on its way, from a session that took no head before, meets a fence that has moved."""
    writer, other = Writer(), engine.open()
    writer.write(store, 1)
    other.lock(writer.head, [], [])
    other.unlock()
    assert not store.landed("batch-1")
    with pytest.raises(HeadMoved):
        other.commit(writer.batch(1), writer.head)
    other.lock(writer.head, [], [])
    writer.write(other, 1)
    other.close()


def test_a_cancelled_statement_is_busy_and_the_next_attempt_goes_on(engine: Postgres, store: PostgresStore) -> None:
    writer, other = Writer(), engine.open()
    writer.write(store, 1)
    other.lock(writer.head, [], [])
    canceller = threading.Timer(0.5, lambda: shared_server().sql("select pg_cancel_backend(%s)", pid_of(store)))
    canceller.start()
    begun = time.monotonic()
    with pytest.raises(Busy, match="store_busy"):
        store.lock(writer.head, [], [])
    assert time.monotonic() - begun < 1.4
    canceller.join()
    other.unlock()
    store.lock(writer.head, [], [])
    writer.write(store, 1)
    other.close()


def test_a_session_ended_while_its_batch_waits_is_unknown_and_did_not_land(
    engine: Postgres, store: PostgresStore
) -> None:
    writer, other = Writer(), engine.open()
    writer.write(store, 1)
    other.lock(writer.head, [], [])
    batch = writer.batch(1)
    killer = threading.Timer(0.5, lambda: terminate(store))
    killer.start()
    with pytest.raises(Unknown):
        store.commit(batch, writer.head)
    killer.join()
    other.unlock()
    assert not store.landed(batch.head.batch_id)
    assert store.load().head == writer.head
    other.close()


# -- following ---------------------------------------------------------------------------------------------------------


def test_who_is_far_behind_catches_up_before_it_takes_the_head(
    engine: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "BATCHES_PER_READ", 4)
    writer, other = Writer(), engine.open()
    first = writer.write(store, 1)
    written = [writer.write(store, 1) for _ in range(11)]
    assert len(other.news(first.head)) == 4
    assert other.lock(first.head, [], []).moved == tuple(written)
    other.unlock()
    other.close()


def test_who_is_further_behind_than_the_journal_loads_again(
    engine: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "JOURNAL_BATCHES", 3)
    writer, other = Writer(), engine.open()
    heads = [writer.write(store, 1, changes=[("a/1", b"%d" % at, None)]).head for at in range(8)]
    store.keep(Upkeep())
    assert engine.sql("SELECT count(*), min(size) FROM tallystick.journal") == [(3, 6)]
    assert [one.head for one in other.news(heads[4])] == heads[5:]
    for call in (other.news, lambda head: other.lock(head, [], [])):
        with pytest.raises(HeadMoved, match="more than the database keeps"):
            call(heads[3])
    other.load()
    other.lock(heads[-1], [], [])
    other.close()


def test_a_missing_entry_is_fatal_to_who_follows(engine: Postgres, store: PostgresStore) -> None:
    writer, other = Writer(), engine.open()
    first = writer.write(store, 1)
    writer.write(store, 2)
    engine.sql("ALTER TABLE tallystick.entry DISABLE TRIGGER ALL")
    engine.sql("DELETE FROM tallystick.entry WHERE seq = 2")
    with pytest.raises(Fatal, match="are missing"):
        other.news(first.head)
    other.close()


def test_the_clock_is_the_databases_and_read_after_the_head_was_taken(engine: Postgres, store: PostgresStore) -> None:
    writer, other = Writer(), engine.open()
    writer.write(store, 1)
    store.lock(writer.head, [], [])
    threading.Timer(0.7, store.unlock).start()
    begun_ms = time.time() * 1000
    wall_ms = other.lock(writer.head, [], []).wall_ms
    assert wall_ms is not None and 600 < wall_ms - begun_ms < 1_500
    other.close()


def test_each_node_has_a_row_with_its_manner(engine: Postgres, store: PostgresStore) -> None:
    other = engine.store(node="other", manner="local cedar")  # of no live one is it the manner yet: it has no entries
    other.load()
    other.confirm()
    rows = engine.sql("SELECT node, manner, started_ms <= seen_ms, barrier FROM tallystick.node ORDER BY barrier")
    assert [row[1:] for row in rows] == [("local none", True, 1), ("local cedar", True, 2)]
    other.close()


def test_the_newest_batches_alone_are_looked_through_for_signatures(
    engine: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "UNSIGNED_BATCHES", 3)
    writer = Writer()
    batches = [writer.write(store, 1) for _ in range(5)]
    store.keep(Upkeep(signed=(signatures(batches[3]),)))
    assert [one.size for one in store.unsigned()] == [3, 5]
