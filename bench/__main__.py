"""`python -m bench`: everything that bench/README.md reports, in one run.

Nothing is asserted with a clock. Read ratios of one table; the machine's speed may drift between tables.
"""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping

from bench import (
    admission_bench,
    audit_bench,
    batch_bench,
    crowd_bench,
    decision_bench,
    gateway_bench,
    memory_bench,
    nodes_bench,
    selfaudit_bench,
    verifier_bench,
)

BATCHES_MIN = 4 * 256  # one batch of the largest kind on each of its connections
Part = Callable[[argparse.Namespace], Iterator[str]]
PARTS: Mapping[str, tuple[str, Part]] = {
    "gateway": ("Signed single requests over loopback", lambda told: gateway_bench.report(told.receipts, told.rounds)),
    "batches": (
        "The same commands as batches",
        lambda told: batch_bench.report(max(told.receipts, BATCHES_MIN), told.rounds),
    ),
    "nodes": (
        "Engines, nodes and ledgers",
        lambda told: nodes_bench.report(max(told.receipts, BATCHES_MIN), told.rounds),
    ),
    "selfaudit": (
        "The gateway's audit of itself",
        lambda told: selfaudit_bench.report(told.receipts, told.rounds),
    ),
    "verifier": ("The offline verifier", lambda told: verifier_bench.report(told.receipts)),
    "audit": ("The auditor on a long ledger", lambda told: audit_bench.report(told.entries)),
    "decisions": ("One decision, with much live and many in line", lambda told: decision_bench.report()),
    "admissions": ("One admission, with rules and without", lambda told: admission_bench.report()),
    "crowd": ("Fifty agents on one file", lambda told: crowd_bench.report()),
    "memory": ("Memory over a long run", lambda told: memory_bench.report(told.long)),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all when none is named")
    parser.add_argument("--receipts", type=int, default=6_400, help="receipts per round (default 6,400)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per connection count (default 3)")
    parser.add_argument("--long", type=int, default=100_000, help="receipts of the memory run (default 100,000)")
    parser.add_argument("--entries", type=int, default=200_000, help="entries of the longest audit (default 200,000)")
    told = parser.parse_args()
    unknown = set(told.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {min(unknown)}; choose from {', '.join(PARTS)}")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}")
    for name in told.parts or PARTS:
        title, part = PARTS[name]
        print(f"\n## {title}\n")
        for line in part(told):
            # Progress is for a person at a terminal; the table is the result.
            print(line, flush=True, file=sys.stderr if line.startswith("  ") else sys.stdout)


if __name__ == "__main__":
    main()
