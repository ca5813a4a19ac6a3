"""The work that the demo replays: two busy hours of a real repository where AI workers commit at the same time.

Each line of `burst.jsonl` is one finished piece of work: `t` seconds since the first line, `w` a pseudonymous worker,
`ops` the paths it touched. We read it as: for `HOLD_S` seconds before `t` the worker needed these paths alone, as one
all-or-nothing lease.
"""

import json
from dataclasses import dataclass
from importlib.resources import files

HOLD_S = 900
"""How long before its commit a worker is taken to have needed its paths."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of work on the demo's own clock, which runs `compression` times as fast as the trace's."""

    line: int
    worker: str
    resources: tuple[str, ...]
    starts_at_s: float
    hold_s: float


def read_pieces(compression: float) -> tuple[Piece, ...]:
    """Return every line of the trace in order, with times divided by `compression`, the first starting at 0."""
    lines = files(__package__).joinpath("burst.jsonl").read_text("utf-8").splitlines()
    return tuple(_piece(number, json.loads(line), compression) for number, line in enumerate(lines))


def _piece(number: int, line: dict[str, object], compression: float) -> Piece:
    operations, finished_s, worker = line["ops"], line["t"], line["w"]
    assert isinstance(operations, list) and isinstance(finished_s, int) and isinstance(worker, str)
    paths = {path for operation in operations for path in operation["p"]}
    resources = tuple(sorted(f"repo:burst/{path}" for path in paths))
    return Piece(number, worker, resources, finished_s / compression, HOLD_S / compression)
