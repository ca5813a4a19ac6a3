"""Clocks that are set an hour ahead or back: those of nodes, which nothing hangs on, and the database's, which counts.

The database's clock is wrapped by a function of the same name that comes first in its search path. That it is asked at
all is seen in the ledger: log time follows a step by two seconds, and no further.
"""

import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.clock import STEP_MS_MAX
from tests.chaos.size import size
from tests.chaos.stage import Stage, wired
from tests.pg.server import ROLE, Server, fresh_database, shared_server
from verifier.entries import Leaf

pytestmark = [pytest.mark.postgres, pytest.mark.system]
HOUR_MS = 3_600_000
OFF_MS_MAX = 4 * STEP_MS_MAX  # of two nodes' bounds, and a busy machine
WRAP = f"""
create schema skew;
create table skew.step (ms bigint not null);
insert into skew.step values (0);
create function skew.clock_timestamp() returns timestamptz language sql volatile as
    'select pg_catalog.clock_timestamp() + (select ms from skew.step) * interval ''1 millisecond''';
grant usage on schema skew to {ROLE};
grant select on skew.step to {ROLE}
"""


def wrap_clock(server: Server, database: str) -> None:
    for statement in WRAP.split(";"):
        server.sql(statement, database=database)
    server.sql(f"alter database {database} set search_path = skew, pg_catalog, public")


async def test_a_clock_is_set_an_hour_ahead_and_back(tmp_path: Path) -> None:
    """Scenario 16."""
    async with AsyncExitStack() as stack:
        server, database = shared_server(), stack.enter_context(fresh_database()).rpartition("/")[2]
        wrap_clock(server, database)
        _, urls = wired(server, database, 2, stack)
        stage = await stack.enter_async_context(Stage(tmp_path, urls))
        marks: list[tuple[str, int, int]] = []  # where, true time, log time

        async def scene() -> None:
            for _ in range(size(1, 20)):
                for step_ms in (HOUR_MS, -HOUR_MS, 0):
                    stage.nodes[0].skew(step_ms)
                    await mark(stage, "node", marks)
                for step_ms in (HOUR_MS, -HOUR_MS, 0):
                    server.sql(f"update skew.step set ms = {step_ms}", database=database)
                    await mark(stage, f"database {step_ms}", marks)

        leaves = await stage.play(scene)
    check(leaves, marks)


async def mark(stage: Stage, where: str, marks: list[tuple[str, int, int]]) -> None:
    """Let the crowd work for a while, and note how far log time is from the true one."""
    await stage.crowd.until(15)
    now_ms = time.time_ns() // 1_000_000
    marks.append((where, now_ms, stage.crowd.answers[-1].receipt.leaf.time_ms))


def check(leaves: list[Leaf], marks: list[tuple[str, int, int]]) -> None:
    """A node's clock moves nothing, the database's at most as far as the bound; no lease ended by it."""
    off = [(where, log_ms - now_ms) for where, now_ms, log_ms in marks]
    first = [ms for where, ms in off[:3]]
    assert all(abs(ms) < 1_000 for ms in first), off
    assert all(abs(ms) < OFF_MS_MAX for _, ms in off), off
    assert any(ms > STEP_MS_MAX // 2 for where, ms in off if where == f"database {HOUR_MS}"), off
    assert not any(leaf.type == "tallystick/lease.expired/1" for leaf in leaves)
