"""The auditor on a long ledger: time, memory, and what one that goes on from a saved position costs.

Two ledgers of the same making, the longer ten times the shorter. Memory may grow with live state (a day of what must
not come again), not with length. Each audit runs in a process of its own, so that its peak is its own.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import long_ledger
from bench.floor import floor_us
from verifier.replay.ledger import check_ledger


def report(entries: int) -> Iterator[str]:
    """Yield the lines of the table for a ledger of a tenth, and of all, of so many entries."""
    folder = Path(tempfile.gettempdir()) / "tallystick-bench"
    folder.mkdir(exist_ok=True)
    yield "| entries | processes | wall s | CPU s | CPU µs each | bare check µs | ratio | peak MiB |"
    yield "| --: | --: | --: | --: | --: | --: | --: | --: |"
    for size in (entries // 10, entries):
        path = folder / f"long-{size}.export"
        if not path.exists():
            yield f"  making {size:,} entries"
            long_ledger.write(path.with_suffix(".new"), size)
            path.with_suffix(".new").rename(path)
        for jobs in (1, 2):
            bare_us = floor_us()["verify"]
            wall_s, cpu_s, mib = audit_alone(path, jobs)
            bare_us = (bare_us + floor_us()["verify"]) / 2
            us_each = cpu_s / size * 1e6
            yield (
                f"| {size:,} | {jobs} | {wall_s:.1f} | {cpu_s:.1f} | {us_each:.0f} | {bare_us:.0f} "
                f"| {us_each / bare_us:.2f} | {mib:.0f} |"
            )


def audit_alone(path: Path, jobs: int) -> tuple[float, float, float]:
    """Audit in a process of its own; return wall s, CPU s with its helpers', and the MiB of its own peak."""
    command = [sys.executable, "-m", "bench.audit_bench", str(path), str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall_s, cpu_s, mib = json.loads(done.stdout)
    return wall_s, cpu_s, mib


def main() -> None:
    """Audit one export with so many processes, and print what it took as JSON."""
    path, jobs = Path(sys.argv[1]), int(sys.argv[2])
    keyring = long_ledger.pins()
    started_s, cpu_started_s = time.perf_counter(), cpu_s()
    found = check_ledger(path, keyring, jobs=jobs)
    wall_s = time.perf_counter() - started_s
    if found.exit_code:
        raise SystemExit(f"bench: the ledger does not verify:\n{found.as_text()}")
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([wall_s, cpu_s() - cpu_started_s, mib]))


def cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
