"""What a gateway's audit of itself costs those who ask: rounds with its process at work, and with it held still.

It is one gateway and one ledger; between two rounds nothing changes but whether the audit's process may run. Held still
it falls behind, so in the next round it has all the work it can do: the worst case.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.gateway_bench import Bench, Round, measure, running

CONNECTIONS = 64
CHILD_SECONDS_MAX = 60.0


def report(receipts: int, rounds: int) -> Iterator[str]:
    """Yield the lines of the table, measuring as it goes; rounds of both kinds take turns."""
    with running(is_audited=True) as bench:
        child = audit_of(bench)
        measured: dict[bool, list[Round]] = {False: [], True: []}
        used_s, wall_s = 0.0, 0.0
        for number in range(rounds):
            for is_audited, results in measured.items():
                os.kill(child, signal.SIGCONT if is_audited else signal.SIGSTOP)
                before_s, began_s = cpu_s(child), time.monotonic()
                results.append(measure(bench, CONNECTIONS, receipts))
                if is_audited:
                    used_s, wall_s = used_s + cpu_s(child) - before_s, wall_s + time.monotonic() - began_s
                word = "with" if is_audited else "without"
                yield f"  round {number + 1}/{rounds}, {word} it: {results[-1].per_second:,.0f} receipts/s"
        os.kill(child, signal.SIGCONT)
    yield from table(measured[False], measured[True], used_s / wall_s)


def audit_of(bench: Bench) -> int:
    """Return the process of the audit, which begins some seconds after the gateway."""
    server = bench.server.process.pid
    until_s = time.monotonic() + CHILD_SECONDS_MAX
    while time.monotonic() < until_s:
        children = Path(f"/proc/{server}/task/{server}/children").read_text("ascii").split()
        if children:
            return int(children[0])
        time.sleep(0.1)
    raise SystemExit("bench: the gateway began no audit")


def cpu_s(process_id: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{process_id}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(without: list[Round], audited: list[Round], share: float) -> Iterator[str]:
    """Yield the table: the median of each column."""
    yield ""
    yield "| self-audit | receipts/s | p50 ms | p99 ms | CPU µs of the gateway per receipt |"
    yield "| --- | --: | --: | --: | --: |"
    rates = []
    for word, rounds in (("held still", without), ("at work", audited)):
        rates.append(median(one.per_second for one in rounds))
        times = [median(getattr(one, name) for one in rounds) for name in ("p50_ms", "p99_ms", "cpu_us")]
        yield f"| {word} | {rates[-1]:,.0f} | {times[0]:.2f} | {times[1]:.2f} | {times[2]:.0f} |"
    yield ""
    yield f"Receipts per second with it: {rates[1] / rates[0]:.0%} of those without; it took {share:.0%} of a core."
