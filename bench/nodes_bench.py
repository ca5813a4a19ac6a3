"""Receipts by engine, by nodes of one ledger, and by ledgers: one run, each row in each round.

Real gateways (`tallystick serve`), real HTTP, requests signed before a round begins. Everything shares the cores of one
machine, the load generator included: what a row costs in CPU is its result, and what it would be on more cores follows.
The peer is PostgreSQL itself: pgbench, prepared, one row updated in each commit, on the same servers in the same run.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.gateway_bench import Child
from bench.nodes_stages import stages_report
from bench.site import FILE, LOCAL, REPLICATED, Ledger, Site, machine_s, plan_for, tree_cpu_s
from bench.updates import Updates, updates_of

BUSY_SHARE = 0.20  # of all cores, used by others: from here on a run says so
CONNECTIONS_SINGLE = 64
CONNECTIONS_BATCHES, COMMANDS = 8, 64
COMMON = 16  # resources that all agents of a row take from
WARM_UP_RECEIPTS = 256
PEER_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: the ledgers called `names`, each with so many nodes, on what `place` says."""

    what: str
    place: str
    names: tuple[str, ...] = ("one",)
    nodes: int = 1
    common: int = 0

    @property
    def doors(self) -> int:
        """Return how many gateways the load is spread over."""
        return len(self.names) * self.nodes


ROWS = (
    Row("SQLite file, 1 ledger × 1 node", FILE),
    Row("PostgreSQL, 1 ledger × 1 node", LOCAL),
    Row("the same, all on the same resources", LOCAL, common=COMMON),
    Row("1 ledger × 2 nodes, resources apart", LOCAL, ("shared",), 2),
    Row("1 ledger × 2 nodes, the same resources", LOCAL, ("shared",), 2, COMMON),
    Row("2 ledgers × 1 node", LOCAL, ("one", "two")),
    Row("4 ledgers × 1 node", LOCAL, ("one", "two", "three", "four")),
    Row("with a synchronous stand-by, 1 ledger × 1 node", REPLICATED),
)


@dataclass(frozen=True, slots=True)
class Way:
    """How commands are sent: over `connections` in all, `commands` in a batch; 0: one in each request."""

    name: str
    connections: int
    commands: int = 0


WAYS = (
    Way(f"Single requests, {CONNECTIONS_SINGLE} connections", CONNECTIONS_SINGLE),
    Way(f"Batches of {COMMANDS} commands, {CONNECTIONS_BATCHES} connections", CONNECTIONS_BATCHES, COMMANDS),
)


@dataclass(frozen=True, slots=True)
class Round:
    """One measured round of a row. CPU in seconds; `foreign` is others' share of all cores meanwhile."""

    receipts: int
    entries: int
    commits: int
    wall_s: float
    p50_ms: float
    p99_ms: float
    gateways_s: float
    database_s: float
    load_s: float
    foreign: float

    @property
    def per_second(self) -> float:
        return self.receipts / self.wall_s

    @property
    def cpu_us(self) -> float:
        """Return what gateways and database used for a receipt."""
        return (self.gateways_s + self.database_s) / self.receipts * 1e6


class Bench:
    """A site, a load generator, and how a round is run."""

    def __init__(self, site: Site, load: Child) -> None:
        self.site, self.load = site, load

    def ledgers(self, row: Row) -> list[Ledger]:
        return [self.site.ledger(row.place, name, row.nodes) for name in row.names]

    def measure(self, row: Row, way: Way, receipts: int) -> Round:
        """Run one round of a row, after a few requests that nobody counts: who was held still has to catch up."""
        ledgers = self.ledgers(row)
        self.site.wake(ledgers)
        plans = self._plans(row, way, ledgers, receipts)
        few = max(way.connections * max(1, way.commands), WARM_UP_RECEIPTS)
        self.load.ask(json.dumps([{**plan, "receipts": few // row.doors} for plan in plans]))
        before = self._used(row, ledgers)
        told = self.load.ask(json.dumps(plans))
        entries, commits, gateways_s, database_s, ours_s, machine, whole_s = (
            after - earlier for after, earlier in zip(self._used(row, ledgers), before, strict=True)
        )
        return Round(
            receipts=told["receipts"],
            entries=int(entries),
            commits=int(commits),
            wall_s=told["wallS"],
            p50_ms=told["p50Ms"],
            p99_ms=told["p99Ms"],
            gateways_s=gateways_s,
            database_s=database_s,
            load_s=told["cpuS"],
            foreign=max(0.0, machine - ours_s) / whole_s / (os.cpu_count() or 1),
        )

    def _plans(self, row: Row, way: Way, ledgers: Sequence[Ledger], receipts: int) -> list[dict[str, Any]]:
        """Spread connections and receipts over all nodes of all ledgers."""
        connections = max(1, way.connections // row.doors)
        plans = [plan_for(one, at, connections, receipts // row.doors) for one in ledgers for at in range(row.nodes)]
        return [{**plan, "commands": way.commands, "common": row.common} for plan in plans]

    def _used(self, row: Row, ledgers: Sequence[Ledger]) -> tuple[float, ...]:
        """Return entries, commits, the CPU seconds of gateways, database, all of ours and the machine, and the time."""
        written = [ledger.written() for ledger in ledgers]
        database = self.site.databases.get(row.place)
        return (
            sum(entries for entries, _ in written),
            sum(batches for _, batches in written),
            sum(ledger.cpu_s for ledger in ledgers),
            database.cpu_s if database is not None else 0.0,
            tree_cpu_s(os.getpid()),
            machine_s(),
            time.monotonic(),
        )


Measured = Mapping[Way, Mapping[Row, list[Round]]]


def report(receipts: int, rounds: int) -> Iterator[str]:
    """Yield the tables, measuring as it goes."""
    load = Child("bench.load")
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as name, Site(Path(name)) as site:
        bench = Bench(site, load)
        measured: Measured = {way: {row: [] for row in ROWS} for way in WAYS}
        peers: dict[str, list[Updates]] = {}
        for number in range(rounds):
            yield from one_round(bench, measured, peers, receipts)
            yield f"  round {number + 1}/{rounds} is over"
        load.stop()
    yield from tables(measured, peers)
    yield from stages_report(receipts)


def one_round(
    bench: Bench, measured: Measured, peers: dict[str, list[Updates]], receipts: int, seconds: int = PEER_SECONDS
) -> Iterator[str]:
    """Measure each row once in each way, and then the peer on each database."""
    for way, rows in measured.items():
        for row, results in rows.items():
            results.append(one := bench.measure(row, way, receipts))
            yield f"  {way.name}, {row.what}: {one.per_second:,.0f} receipts/s, others used {one.foreign:.0%}"
    bench.site.wake([])
    for place, database in bench.site.databases.items():
        for clients in (1, 4):
            peers.setdefault(f"{place}, {clients} × one row", []).append(updates_of(database, clients, seconds))


def tables(measured: Measured, peers: Mapping[str, Sequence[Updates]]) -> Iterator[str]:
    """Yield what was measured: medians, and the best round where it says so."""
    rounds = [one for rows in measured.values() for results in rows.values() for one in results]
    foreign = sorted(one.foreign for one in rounds)
    word = "**busy machine**" if median(foreign) > BUSY_SHARE else "a quiet machine"
    yield ""
    yield (
        f"{word}: others used {median(foreign):.0%} of the cores in the median round, {foreign[-1]:.0%} in the worst;"
        f" load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores"
    )
    for way, rows in measured.items():
        yield from ["", f"### {way.name}", "", *_rows(rows)]
    yield from ["", "### The peer: pgbench, prepared, one row updated in each commit", "", *_peers(peers)]


def _rows(rows: Mapping[Row, Sequence[Round]]) -> Iterator[str]:
    yield (
        "| ledgers and nodes | receipts/s | best | to SQLite | CPU µs: gateways | database | both, to SQLite "
        "| receipts per commit | commits/s | p50 ms | p99 ms | cores: gateways | database | load |"
    )
    yield f"| --- |{' --: |' * 13}"
    first = next(iter(rows.values()))
    rate, cpu = median(one.per_second for one in first), median(one.cpu_us for one in first)
    for row, results in rows.items():
        rates = [one.per_second for one in results]
        means = {name: median(_figures(one)[name] for one in results) for name in _figures(results[0])}
        cells = [
            f"{median(rates):,.0f} | {max(rates):,.0f} | {median(rates) / rate:.2f} ×",
            f"{means['gateways µs']:.0f} | {means['database µs']:.0f}",
            f"{median(one.cpu_us for one in results) / cpu:.2f} ×",
            f"{means['per commit']:.1f} | {means['commits']:,.0f} | {means['p50']:.1f} | {means['p99']:.1f}",
            f"{means['gateways']:.2f} | {means['database']:.2f} | {means['load']:.2f}",
        ]
        yield f"| {row.what} | {' | '.join(cells)} |"


def _figures(one: Round) -> dict[str, float]:
    return {
        "p50": one.p50_ms,
        "p99": one.p99_ms,
        "per commit": one.receipts / max(1, one.commits),
        "commits": one.commits / one.wall_s,
        "gateways µs": one.gateways_s / one.receipts * 1e6,
        "database µs": one.database_s / one.receipts * 1e6,
        "gateways": one.gateways_s / one.wall_s,
        "database": one.database_s / one.wall_s,
        "load": one.load_s / one.wall_s,
    }


def _peers(peers: Mapping[str, Sequence[Updates]]) -> Iterator[str]:
    yield "| PostgreSQL | commits/s | best | CPU µs of the database per commit |"
    yield "| --- | --: | --: | --: |"
    for name, results in peers.items():
        rates = [one.per_second for one in results]
        used = median(one.database_s / one.commits for one in results)
        yield f"| {name} | {median(rates):,.0f} | {max(rates):,.0f} | {used * 1e6:.0f} |"
