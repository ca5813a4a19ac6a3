"""Ledgers and the processes that serve them: in a file, in a database, in one with a synchronous stand-by.

The servers are those of the tests (tests/pg): PostgreSQL from the wheel, all settings that a promise hangs on as in
production. The gateways are `tallystick serve`, on throw-away ledgers whose rate limit is raised.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from gateway.config import Settings, load_settings
from gateway.core.parameters import Parameters
from gateway.initialise import Plan, initialise
from gateway.stores import open_reader
from tests.pg.nodes import Node
from tests.pg.pair import Pair
from tests.pg.server import Server, open_yard
from verifier.wire import encode_base64

FILE, LOCAL, REPLICATED = "file", "local", "replicated"  # what a commit survives, as every entry says it
AUTHORITY = "localhost"
AGENTS_APART = 1_000
FOUNDERS = ("root",)  # what a second node does not need
# Enough memory that no backend writes pages for another one; and the server tells how long its log takes to the disk.
SERVER = {"shared_buffers": "256MB", "max_wal_size": "1GB", "track_wal_io_timing": "on"}
_WAL = (
    "SELECT coalesce(sum(fsyncs), 0)::float8, coalesce(sum(fsync_time), 0)::float8 / 1000"
    " FROM pg_stat_io WHERE object = 'wal'"
)
StartNode = Callable[[Path, str], Node]


@dataclass(slots=True)
class Database:
    """One primary, and whoever follows it. `ledgers` in it have databases of their own or share one."""

    primary: Server
    servers: Sequence[Server]
    url: str

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds of all server processes so far, those that have ended included."""
        return sum(tree_cpu_s(one.process.pid) for one in self.servers if one.process is not None)

    def wal(self) -> tuple[float, float]:
        """Return how often the primary's log was brought to the disk, and the seconds that took."""
        count, seconds = self.primary.sql(_WAL)[0]
        return float(str(count)), float(str(seconds))

    def written(self) -> int:
        """Return the bytes of the primary's log so far."""
        return int(str(self.primary.sql("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")[0][0]))


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of all that it started, those that have ended included.

    A child that ends meanwhile would be missed on both sides, or counted twice: then all is read again.
    """
    try:
        process = psutil.Process(pid)
        while True:
            ended_s = _ended_s(process)
            living_s = sum(tree_cpu_s(child.pid) for child in process.children())
            times = process.cpu_times()
            if ended_s == _ended_s(process):
                return float(times.user + times.system + ended_s + living_s)
    except psutil.NoSuchProcess:
        return 0.0  # it is counted as ended with its parent, which therefore reads again


def _ended_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


@dataclass(slots=True)
class Ledger:
    """One ledger and its nodes, which are paused while others are measured."""

    origin: str
    anchor: str
    place: str
    nodes: list[Node] = field(default_factory=list)

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds of the gateways."""
        return sum(tree_cpu_s(node.process.pid) for node in self.nodes)

    def written(self) -> tuple[int, int]:
        """Return entries and batches so far."""
        folder = self.nodes[0].folder
        with closing(open_reader(folder, load_settings(folder))) as reader:
            head = reader.head()
            return head.size if head else 0, reader.counts()["batches"]


def plan_for(ledger: Ledger, node: int, connections: int, receipts: int) -> dict[str, Any]:
    """Return what the load generator is told to do at one of a ledger's nodes; each node has agents of its own."""
    return {
        "host": "127.0.0.1",
        "port": ledger.nodes[node].port,
        "authority": AUTHORITY,
        "origin": ledger.origin,
        "anchor": ledger.anchor,
        "connections": connections,
        "receipts": receipts,
        "first_agent": node * AGENTS_APART + 1,
        "is_signed_before": True,
    }


class Site:
    """Makes what rows ask for, once each; `close` ends all of it."""

    def __init__(self, folder: Path, start: StartNode = Node) -> None:
        self._folder = folder
        self._make_node = start
        self._closing: list[Callable[[], None]] = []
        self.ledgers: dict[tuple[str, str], Ledger] = {}
        self.databases: dict[str, Database] = {}

    def ledger(self, place: str, name: str, nodes: int) -> Ledger:
        """Return a ledger with so many nodes, which run."""
        if (place, name) not in self.ledgers:
            self.ledgers[place, name] = self._found(place, name)
        ledger = self.ledgers[place, name]
        while len(ledger.nodes) < nodes:
            self._add_node(ledger)
        return ledger

    def _found(self, place: str, name: str) -> Ledger:
        folder, origin = self._folder / f"{place}-{name}" / "node1", f"{AUTHORITY}/{name}"
        settings = replace(Settings(), metrics_port=0, self_audit=False, durability=LOCAL if place == FILE else place)
        settings = replace(settings, store=self._url(place))
        parameters = Parameters(rate_per_second=1_000_000, rate_burst=1_000_000)
        made = initialise(Plan(folder, origin, (AUTHORITY,), settings, True, True, parameters), int(time.time() * 1e3))
        return Ledger(origin, f"{origin} 1 {encode_base64(made.genesis)}", place)

    def _add_node(self, ledger: Ledger) -> None:
        room = self._folder / f"{ledger.place}-{ledger.origin.rpartition('/')[2]}"
        folder = room / f"node{len(ledger.nodes) + 1}"
        if ledger.nodes:
            shutil.copytree(room / "node1", folder, ignore=shutil.ignore_patterns(*FOUNDERS))
        node = self._make_node(folder, self._url(ledger.place))
        ledger.nodes.append(node)
        self._closing.append(lambda: _end(node))
        node.start()

    def _url(self, place: str) -> str:
        if place == FILE:
            return ""
        if place not in self.databases:
            self.databases[place] = self._replicated() if place == REPLICATED else self._local()
        return self.databases[place].url

    def _local(self) -> Database:
        yard = open_yard()
        self._closing.append(yard.close)
        server = Server(yard, "bench")
        server.create()
        server.start(**SERVER)
        server.add_role()
        return Database(server, (server,), server.add_database("bench"))

    def _replicated(self) -> Database:
        pair = Pair()
        self._closing.append(pair.close)
        pair.__enter__()
        for server in (pair.standby, pair.primary):
            server.stop()
        pair.primary.start(**SERVER)
        pair.standby.start(**SERVER)
        pair.await_standby()
        pair.primary.add_database("bench")
        return Database(pair.primary, (pair.primary, pair.standby), pair.url("bench"))

    def wake(self, ledgers: Sequence[Ledger]) -> None:
        """Let the nodes of these ledgers run, and hold all others still: upkeep and polls are work, too."""
        for ledger in self.ledgers.values():
            for node in ledger.nodes:
                (node.resume if ledger in ledgers else node.pause)()

    def close(self) -> None:
        for end in reversed(self._closing):
            end()

    def __enter__(self) -> "Site":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(node: Node) -> None:
    if node.is_alive:
        node.stop()


def machine_s() -> float:
    """Return the CPU seconds that all cores were busy, or taken from us by other machines."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)
