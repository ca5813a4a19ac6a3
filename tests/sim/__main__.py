"""Play seeds: `python -m tests.sim 123` one with its story, `python -m tests.sim soak` many on all cores until stopped.

`soak` takes SEEDS=n (how many) and FIRST=n (the first) from the environment. With NODES=1 there, each world is one of
up to four nodes on a server that several may write to.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count

from tests.sim.config import several
from tests.sim.simulation import Result, run

CHUNK = 25


def replay(seed: int) -> int:
    """Play one seed, and print its last steps when it fails."""
    result = _play(seed)
    print(result.story() if result.violation else f"seed {seed}: ok, {sum(result.counts.values())} decisions")
    print(f"trace {result.trace}")
    if result.violation is not None and result.violation.__cause__ is not None:
        traceback.print_exception(result.violation.__cause__)
    return 1 if result.violation else 0


def chunk(first: int) -> list[Result]:
    return [_play(seed) for seed in range(first, first + CHUNK)]


def _play(seed: int) -> Result:
    return run(seed, several if os.environ.get("NODES") else None)


def soak(first: int, seeds: int | None) -> int:
    """Play seed after seed on all cores; print each failure as it is found, and progress."""
    began, played, failed, kinds = time.monotonic(), 0, 0, Counter[str]()
    starts: Iterator[int] = count(first, CHUNK) if seeds is None else iter(range(first, first + seeds, CHUNK))
    with ProcessPoolExecutor() as pool:
        running = {pool.submit(chunk, at) for _, at in zip(range(2 * (os.cpu_count() or 1)), starts, strict=False)}
        while running:
            future = (
                next(iter(running))
                if not any(one.done() for one in running)
                else next(one for one in running if one.done())
            )
            for result in future.result():
                played += 1
                kinds.update(result.counts)
                if result.violation is not None:
                    failed += 1
                    print(result.story(), flush=True)
            running.discard(future)
            if (at := next(starts, None)) is not None:
                running.add(pool.submit(chunk, at))
            rate = played / (time.monotonic() - began)
            print(f"{played} seeds, {failed} failed, {kinds.total()} decisions, {rate:.0f} seeds/s", flush=True)
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    """Return the exit code: 0 when every seed held."""
    if arguments == ["soak"]:
        seeds = os.environ.get("SEEDS")
        return soak(int(os.environ.get("FIRST", "1000000")), int(seeds) if seeds else None)
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("say a seed, or soak", file=sys.stderr)
        return 2
    return replay(int(arguments[0]))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
