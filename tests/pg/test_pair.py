"""The pair itself: what is acknowledged is on both, what only one had is undone."""

import threading

import psycopg
import pytest

from tests.pg.pair import Pair

pytestmark = pytest.mark.postgres


def test_a_pair_loses_its_primary_promotes_and_takes_the_old_one_back() -> None:
    with Pair() as pair:
        pair.primary.sql("create table l (i int primary key)")
        pair.primary.sql("insert into l select generate_series(1, 100)")
        pair.kill_primary()
        pair.promote()
        pair.rejoin()
        assert pair.primary.sql("select count(*) from l") == [(100,)]
        pair.primary.sql("insert into l values (101)")
        assert pair.standby.sql("select max(i), pg_is_in_recovery() from l") == [(101, True)]
        with psycopg.connect(pair.url("postgres"), user="postgres") as connection:
            assert connection.info.port == pair.primary.port, "libpq finds the one that can be written to"


def test_what_one_server_wrote_alone_is_gone_after_it_came_back() -> None:
    with Pair() as pair:
        pair.primary.sql("create table l (i int)")
        pair.stop_standby()
        pair.demand_standby("")
        pair.primary.sql("insert into l values (-1)")
        pair.kill_primary()
        pair.start_standby()
        pair.promote()
        assert pair.primary.sql("select count(*) from l") == [(0,)]
        pair.rejoin()
        assert pair.standby.sql("select count(*) from l") == [(0,)]


def test_a_commit_waits_for_a_stand_by_that_is_away_and_a_cancel_shows_what_is_not_replicated() -> None:
    with Pair() as pair:
        pair.primary.sql("create table l (i int)")
        pair.stop_standby()
        notices: list[tuple[str | None, str | None]] = []
        with psycopg.connect(pair.primary.dsn()) as connection:
            connection.add_notice_handler(lambda d: notices.append((d.sqlstate, d.source_function)))
            connection.execute("insert into l values (1)")
            thread = threading.Thread(target=connection.commit)
            thread.start()
            thread.join(0.5)
            assert thread.is_alive() and pair.primary.sql("select count(*) from l") == [(0,)]
            pair.primary.sql("select pg_cancel_backend(%s)", connection.info.backend_pid)
            thread.join(10)
            assert notices == [("01000", "SyncRepWaitForLSN")]
        assert pair.primary.sql("select count(*) from l") == [(1,)]
