"""Where the time of a batch goes: the same gateways with a knife in them (bench/traced_node.py), a run of its own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gateway_bench import Child
from bench.site import FILE, LOCAL, REPLICATED, Site, plan_for
from bench.traced_node import STAGES
from tests.pg.nodes import ROOT, Node

CONNECTIONS = 64
WARM_UP_RECEIPTS = 256
SETS = (
    ("SQLite file", FILE, 1),
    ("PostgreSQL", LOCAL, 1),
    ("stand-by", REPLICATED, 1),
    ("2 nodes", LOCAL, 2),
)


class Traced(Node):
    """A gateway that tells its figures."""

    def launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.traced_node", str(self.folder)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env={**os.environ},
            )  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """Return everything since the start."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told


@dataclass(frozen=True, slots=True)
class Cut:
    """One run cut into stages, of the first node: ms of wall time per batch by stage, and what else is per batch."""

    stages_ms: Mapping[str, float]
    per_batch: Mapping[str, float]
    shares: Mapping[str, float]


def stages_report(receipts: int) -> Iterator[str]:
    """Yield the table of stages, measuring as it goes; each set on gateways of its own."""
    cuts: dict[str, Cut] = {}
    for name, place, nodes in SETS:
        with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder, Site(Path(folder), Traced) as site:
            cuts[name] = cut_of(site, place, nodes, receipts)
        yield f"  stages, {name}: {sum(cuts[name].stages_ms.values()):.1f} ms a batch"
    yield from ["", "### Where the time of a batch goes", "", *_table(cuts)]


def cut_of(site: Site, place: str, nodes: int, receipts: int) -> Cut:
    """Run one round of single requests on the traced gateways of a site, and cut the batches of the first."""
    ledger, load = site.ledger(place, "one", nodes), Child("bench.load")
    plans = [plan_for(ledger, at, CONNECTIONS // nodes, receipts // nodes) for at in range(nodes)]
    first, database = ledger.nodes[0], site.databases.get(place)
    assert isinstance(first, Traced), "the site makes what it is told to"
    load.ask(json.dumps([{**plan, "receipts": WARM_UP_RECEIPTS // nodes} for plan in plans]))
    before, flushed = first.figures(), database.wal() if database else (0.0, 0.0)
    load.ask(json.dumps(plans))
    after = first.figures()
    flushes, flush_s = (
        (now - then for now, then in zip(database.wal(), flushed, strict=True)) if database else (0.0, 0.0)
    )
    load.stop()
    batches = after["batches"] - before["batches"]
    wall_s = after["nowS"] - before["nowS"]
    cpu_s = {name: after["cpuS"][name] - before["cpuS"].get(name, 0.0) for name in after["cpuS"]}
    return Cut(
        {
            what: (after["wallS"].get(cut, 0.0) - before["wallS"].get(cut, 0.0)) / batches * 1e3
            for cut, what in STAGES.items()
        },
        {
            "receipts": (after["entries"] - before["entries"]) / batches,
            "round trips": (after["trips"] - before["trips"]) / batches,
            "log flushes of the server": flushes / batches / nodes,
            "ms of such a flush": flush_s / max(1.0, flushes) * 1e3,
            "CPU ms: taking the head, commit thread": cpu_s["lock"] / batches * 1e3,
            "CPU ms: commit, commit thread": cpu_s["commit"] / batches * 1e3,
            "CPU ms: loop's thread": cpu_s["loop's thread"] / batches * 1e3,
        },
        {
            "loop's thread at work": cpu_s["loop's thread"] / wall_s,
            "whole process at work": cpu_s["all threads"] / wall_s,
        },
    )


def _table(cuts: Mapping[str, Cut]) -> Iterator[str]:
    first = next(iter(cuts.values()))
    yield f"| ms of wall time per batch, {CONNECTIONS} connections | {' | '.join(cuts)} |"
    yield f"| --- |{' --: |' * len(cuts)}"
    for stage in first.stages_ms:
        yield f"| {stage} | {' | '.join(f'{cut.stages_ms[stage]:.2f}' for cut in cuts.values())} |"
    yield f"| all | {' | '.join(f'{sum(cut.stages_ms.values()):.2f}' for cut in cuts.values())} |"
    for name in first.per_batch:
        yield f"| per batch: {name} | {' | '.join(f'{cut.per_batch[name]:.2f}' for cut in cuts.values())} |"
    for name in first.shares:
        yield f"| {name} | {' | '.join(f'{cut.shares[name]:.0%}' for cut in cuts.values())} |"
