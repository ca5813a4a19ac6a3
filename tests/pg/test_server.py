"""The test bed itself: servers come up as nobody special, say why when they don't, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest

from tests.pg.server import ROLE, Server, fresh_database, open_yard, programs, shared_server
from tests.pg.yard import Account, Yard, YardFailed

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.postgres
# What a gateway demands of a server before it trusts it: the tests' own must not be weaker.
PROMISES = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "data_checksums": "on"}
ABANDONED = """
import os, signal
from tests.pg.server import shared_server
server = shared_server()
print(server.yard.path, server.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_server_is_no_roots_and_keeps_what_it_says() -> None:
    server = shared_server()
    assert server.process is not None
    assert psutil.Process(server.process.pid).uids().effective != 0 or server.yard.account is Account.NAMESPACE
    assert {name: server.sql(f"show {name}")[0][0] for name in PROMISES} == PROMISES


def test_each_test_has_a_database_of_its_own_that_is_empty_and_goes() -> None:
    for _ in range(2):
        with fresh_database() as url, psycopg.connect(url, autocommit=True) as connection:
            assert connection.execute("select current_user").fetchone() == (ROLE,)
            connection.execute("create table once (i int)")
    assert shared_server().sql("select count(*) from pg_database where datname ~ '^t[0-9]+$'") == [(0,)]


def test_a_role_that_owns_a_database_is_no_superuser() -> None:
    assert shared_server().sql("select rolsuper, rolreplication from pg_roles where rolname = %s", ROLE) == [
        (False, False)
    ]


def test_nobody_connects_without_the_password() -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(shared_server().dsn(password="guess"))


def test_a_start_that_fails_says_why() -> None:
    yard = open_yard()
    try:
        server = Server(yard, "broken")
        server.create()
        with pytest.raises(YardFailed, match='unrecognized configuration parameter "no_such_thing"'):
            server.start(no_such_thing="on")
    finally:
        yard.close()


def test_a_program_that_fails_says_why() -> None:
    yard = open_yard()
    try:
        with pytest.raises(YardFailed, match="initdb ended with 1"):
            yard.run(programs() / "initdb", "--no-such-option")
    finally:
        yard.close()


def test_a_checkout_that_nobody_can_reach_is_served_from_a_user_namespace() -> None:
    """Or the kernel forbids those, and the text says what was tried."""
    if os.geteuid() != 0:
        return  # every program that we may run, our own servers may run
    yard = Yard(Account.NAMESPACE)
    try:
        assert yard.run("/usr/bin/id", "-u").strip() == "65534"
        assert os.stat(yard.path).st_uid == 0
    except YardFailed as refusal:
        assert "unshare" in str(refusal)
    finally:
        yard.close()


def test_a_run_that_is_killed_leaves_no_server_and_no_folder() -> None:
    victim = subprocess.run([sys.executable, "-c", ABANDONED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    folder, pid = victim.stdout.split()
    deadline_s = time.monotonic() + 20
    while Path(folder).exists() or psutil.pid_exists(int(pid)):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
