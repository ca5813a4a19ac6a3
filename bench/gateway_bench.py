"""Signed single requests over loopback: how many receipts, how fast, and where the CPU goes.

Every round measures the floor (bare verify + sign, in the server's own process) just before and just after the load, so
that a machine whose speed drifts drifts in both. Ratios of one round are the result; absolute figures are for interest.
"""

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

WARM_UP_RECEIPTS = 1_000


@dataclass(frozen=True, slots=True)
class Round:
    """One measured round; times per receipt in µs of CPU unless named otherwise."""

    connections: int
    receipts: int
    per_second: float
    p50_ms: float
    p99_ms: float
    per_commit: float
    answer_bytes: float
    cpu_us: float
    floor_us: float
    stages_us: Mapping[str, float]

    @property
    def ratio(self) -> float:
        """CPU per receipt over the bare verify + sign of the same minute."""
        return self.cpu_us / self.floor_us


class Child:
    """A helper process that answers one JSON line to each line it gets."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"bench: a helper ended with status {self.process.wait()}; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("stop\n")
        self.process.stdin.close()
        self.process.wait(60)


@dataclass(slots=True)
class Bench:
    """A running server, a running load generator, and what a plan needs to know of the ledger."""

    server: Child
    load: Child
    port: int
    folder: Path
    ledger: Mapping[str, str]
    first_agent: int = 1

    def run_load(self, connections: int, receipts: int, port_offset: int = 0, **batches: int) -> dict[str, Any]:
        """Let `connections` agents have `receipts` in all; `batches` are the members of a Plan that make them so."""
        plan = {
            "host": "127.0.0.1",
            "port": self.port + port_offset,
            "authority": self.ledger["authority"],
            "origin": self.ledger["origin"],
            "anchor": self.ledger["anchor"],
            "connections": connections,
            "receipts": receipts,
            "first_agent": self.first_agent,
            **batches,
        }
        return self.load.ask(json.dumps(plan))


@contextmanager
def running(*, is_traced: bool = False, is_audited: bool = False) -> Iterator[Bench]:
    """Yield a bench on a fresh ledger in a folder that is removed afterwards; a traced server measures its stages.

    What a gateway's audit of itself costs has a table of its own; elsewhere it is off.
    """
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as name:
        folder, port = Path(name) / "data", free_ports()
        server = Child("bench.server", str(folder), str(port), *(["traced"] * is_traced), *(["audited"] * is_audited))
        load = Child("bench.load")
        bench = Bench(server, load, port, folder, server.read())
        try:
            bench.run_load(64, WARM_UP_RECEIPTS)
            yield bench
        finally:
            load.stop()
            server.stop()


def free_ports() -> int:
    """Return a port that is free, as are the two after it."""
    while True:
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
                three.bind(("127.0.0.1", port + 2))
            except OSError:
                continue
            return port


def measure(bench: Bench, connections: int, receipts: int, **batches: int) -> Round:
    """Run one round between two measurements of the floor; batches' headers are not counted, nobody asked for them."""
    floors = [bench.server.ask("floor")]
    before = bench.server.ask("mark")
    result = bench.run_load(connections, receipts, **batches)
    after = bench.server.ask("mark")
    floors.append(bench.server.ask("floor"))
    done = result["receipts"]
    return Round(
        connections=connections,
        receipts=done,
        per_second=result["receipts"] / result["wallS"],
        p50_ms=result["p50Ms"],
        p99_ms=result["p99Ms"],
        per_commit=done / max(1, after["batches"] - before["batches"]),
        answer_bytes=result["bytes"] / done,
        cpu_us=(after["cpuS"] - before["cpuS"]) / done * 1e6,
        floor_us=sum(floor["verify"] + floor["sign"] for floor in floors) / 2,
        stages_us={
            name: (after["stagesS"][name] - before["stagesS"].get(name, 0.0)) / done * 1e6 for name in after["stagesS"]
        },
    )


def empty_us(bench: Bench, requests: int) -> float:
    """Return the CPU µs that an empty aiohttp handler of the same process spends on such a request."""
    before = bench.server.ask("mark")
    result = bench.run_load(64, requests, port_offset=1)
    after = bench.server.ask("mark")
    return float((after["cpuS"] - before["cpuS"]) / result["receipts"] * 1e6)


def middle(rounds: Sequence[Round]) -> Round:
    """Return the round whose ratio is the median."""
    ratio = median(sorted(one.ratio for one in rounds)[: len(rounds) | 1])
    return min(rounds, key=lambda one: abs(one.ratio - ratio))


def report(receipts: int, rounds: int) -> Iterator[str]:
    """Yield the lines of the gateway's table, measuring as it goes; connection counts are interleaved."""
    with running() as bench:
        measured: dict[int, list[Round]] = {1: [], 16: [], 64: []}
        for number in range(rounds):
            for connections, results in measured.items():
                results.append(measure(bench, connections, receipts if connections > 1 else receipts // 4))
                yield f"  round {number + 1}/{rounds}, {connections} connections: {results[-1].ratio:.2f} × the floor"
        empty = empty_us(bench, receipts)
    yield from table([middle(results) for results in measured.values()])
    with running(is_traced=True) as bench:
        yield from stages(middle([measure(bench, 64, receipts) for _ in range(rounds)]), empty)


def table(rounds: Sequence[Round]) -> Iterator[str]:
    yield ""
    yield "| connections | receipts/s | p50 ms | p99 ms | receipts per commit | CPU µs per receipt | floor µs | ratio |"
    yield "| --: | --: | --: | --: | --: | --: | --: | --: |"
    for one in rounds:
        yield (
            f"| {one.connections} | {one.per_second:,.0f} | {one.p50_ms:.2f} | {one.p99_ms:.2f} | {one.per_commit:.1f} "
            f"| {one.cpu_us:.0f} | {one.floor_us:.0f} | {one.ratio:.2f} |"
        )


def stages(one: Round, empty: float) -> Iterator[str]:
    """Yield where the CPU of a receipt goes; the rest is what no stage claims."""
    yield ""
    yield f"CPU per receipt by stage at {one.connections} connections ({one.ratio:.2f} × the floor with tracing on):"
    yield ""
    yield "| stage | µs | of the whole |"
    yield "| --- | --: | --: |"
    rest = one.cpu_us - sum(one.stages_us.values())
    for name, used in [*one.stages_us.items(), ("HTTP, loop, log line, metrics (the rest)", rest)]:
        yield f"| {name} | {used:.1f} | {used / one.cpu_us:.0%} |"
    yield f"| all | {one.cpu_us:.1f} | 100% |"
    yield f"| for comparison: an empty aiohttp handler | {empty:.1f} | {empty / one.cpu_us:.0%} |"
