"""The cluster itself: it loses a server, then a whole member, and nothing that was acknowledged."""

import pytest

from tests.pg.patroni_kit import Cluster

pytestmark = [pytest.mark.postgres, pytest.mark.serial]


def test_a_cluster_fails_over_twice_and_keeps_what_it_acknowledged() -> None:
    """Scenario L59."""
    with Cluster() as cluster:
        assert (cluster.setting("ttl"), cluster.setting("retry_timeout")) == (5, 2), "Patroni took our floors"
        cluster.sql("create table l (i int)")
        cluster.sql("insert into l values (1)")
        first = cluster.await_leader()
        cluster.kill_server(first.name)
        second = cluster.await_leader(but=first.name)
        cluster.sql("insert into l values (2)")
        cluster.await_health()
        cluster.kill_member(second.name)
        cluster.await_leader(but=second.name)
        cluster.sql("insert into l values (3)")
        assert cluster.sql("select i from l order by i") == [(1,), (2,), (3,)]
        assert cluster.sql("show synchronous_standby_names") != [("",)], "it goes on asking a stand-by"
