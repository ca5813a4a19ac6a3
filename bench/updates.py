"""The peer of a ledger's commits: pgbench, prepared, each client updates one row of its own in each commit.

Like the batches of one ledger, the commits of one client come one after the other; like ledgers, several clients share
the log's way to the disk.
"""

import re
from dataclasses import dataclass

from bench.site import Database
from tests.pg.server import programs

_TABLE = "CREATE TABLE IF NOT EXISTS bench (id integer PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 10)"
_ROWS = "INSERT INTO bench SELECT one, 0 FROM generate_series(0, 63) one ON CONFLICT DO NOTHING"
_SCRIPT = "UPDATE bench SET n = n + 1 WHERE id = :client_id;\n"
_COUNT = re.compile(r"number of transactions actually processed: (\d+)")
_RATE = re.compile(r"tps = ([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Updates:
    """What pgbench did: commits, commits per second, CPU seconds of the servers."""

    commits: int
    per_second: float
    database_s: float


def updates_of(database: Database, clients: int, seconds: int) -> Updates:
    """Let so many clients update their rows for so long."""
    server = database.primary
    server.sql(_TABLE)
    server.sql(_ROWS)
    script = server.yard.write("update.sql", _SCRIPT, 0o644)
    before_s = database.cpu_s
    said = server.yard.run(
        programs() / "pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", str(seconds),
        "-f", script, server.dsn(),
    )  # fmt: skip
    count, rate = _COUNT.search(said), _RATE.search(said)
    if count is None or rate is None:
        raise SystemExit(f"bench: pgbench said what nobody expects:\n{said}")
    return Updates(int(count[1]), float(rate[1]), database.cpu_s - before_s)
