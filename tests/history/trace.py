"""The histories that are replayed: pieces of work of many workers in one repository, as they happened.

* `swarm`: 4,889 pieces of 445 AI workers. It is not part of this repository; where a folder with `swarm.jsonl.gz` is
  at hand (TALLYSTICK_TRACES, else `shared/traces` beside the checkout) it is replayed, elsewhere its tests are skipped
  with a sentence that says so, and `made` stands in for it.
* `burst`: the two busiest hours of the same work, 63 pieces, which the demo replays as well.
* `made`: 2,000 pieces of about 200 workers from a generator with a fixed seed: bursts of work, few paths that everybody
  wants, many that nobody else does.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("TALLYSTICK_TRACES") or ROOT.parent / "shared" / "traces")
NAMES = ("made", "burst", "swarm")

PIECES, WORKERS, FILES = 2_000, 200, 1_200
BUSY = 0.97  # the share of pieces that follow the one before within minutes
AGAIN = 0.5  # the share of pieces by somebody who worked a moment ago


@dataclass(frozen=True, slots=True)
class Piece:
    """One finished piece of work: `worker` needed `paths` until `ends_s`; second 0 is the end of the first piece."""

    line: int
    worker: str
    paths: frozenset[str]
    ends_s: int


def is_here(name: str) -> bool:
    return name != "swarm" or (FOLDER / "swarm.jsonl.gz").is_file()


def read(name: str) -> tuple[Piece, ...]:
    """Return the pieces of a trace in order of their ends; a rename counts as both of its paths."""
    if name == "made":
        return tuple(_made(random.Random(4889)))
    if name == "burst":
        return _parsed((ROOT / "gateway/demo/burst.jsonl").read_text("utf-8").splitlines())
    with gzip.open(FOLDER / "swarm.jsonl.gz", "rt", encoding="utf-8") as lines:
        return _parsed(lines)


def _parsed(lines: Iterable[str]) -> tuple[Piece, ...]:
    rows = [json.loads(line) for line in lines]
    pieces = [
        Piece(number, row["w"], frozenset(path for operation in row["ops"] for path in operation["p"]), row["t"])
        for number, row in enumerate(rows)
    ]
    assert [piece.ends_s for piece in pieces] == sorted(piece.ends_s for piece in pieces)
    return tuple(pieces)


def _made(chance: random.Random) -> Iterable[Piece]:
    ends_s, lately = 0, ["w0"] * 6
    for line in range(PIECES):
        ends_s += int(chance.expovariate(1 / 90) if chance.random() < BUSY else chance.expovariate(1 / 40_000))
        worker = chance.choice(lately) if chance.random() < AGAIN else f"w{chance.randrange(WORKERS)}"
        lately = [*lately[1:], worker]
        count = min(40, 1 + int(chance.expovariate(1 / 2.5)))
        yield Piece(line, worker, frozenset(_path(chance) for _ in range(count)), ends_s)


def _path(chance: random.Random) -> str:
    """Return a path; low numbers come far more often, and lie in the folders that everybody works in."""
    number = int(FILES ** chance.random() * FILES ** (chance.random() * 0.6)) % FILES
    return f"file{number}.py" if number < 3 else f"part{number % 23}/unit{number % 7}/file{number}.py"
