"""What must be refused, by lists and loops. It knows nothing of the gateway: no import of ours but the trace.

A request names its worker's paths for `hold_s` seconds up to the end of the piece. It is refused when a lease of
somebody else that is still live at its start touches one of them; a refused request leaves nothing behind. The same
worker asking for the same names again goes on with the lease it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.history.trace import Piece

Names = Callable[[Piece], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused piece: whose lease it is told of, the least of its names that touches it and the least name of the
    lease that touches this one, how many leases are in the way."""

    line: int
    holder: str
    name: str
    held_as: str
    conflicts: int


@dataclass(slots=True)
class Held:
    """A lease; `order` is the place of its grant among all grants."""

    worker: str
    names: frozenset[str]
    ends_s: int
    order: int


def refusals(pieces: Sequence[Piece], hold_s: int, names_of: Names) -> list[Refusal]:
    """Return every refusal that a replay must end in, in order."""
    live: list[Held] = []
    found = []
    for piece in pieces:
        names = names_of(piece)
        live = [held for held in live if held.ends_s > piece.ends_s - hold_s]
        own = [held for held in live if held.worker == piece.worker and held.names == names]
        others = [held for held in live if held.worker != piece.worker and touched(names, held.names)]
        if own:
            own[0].ends_s = piece.ends_s
        elif others:
            told = min(others, key=lambda held: (-held.ends_s, held.order))
            name = min(touched(names, told.names))
            held_as = min(touched(told.names, frozenset({name})))
            found.append(Refusal(piece.line, told.worker, name, held_as, len(others)))
        else:
            live.append(Held(piece.worker, names, piece.ends_s, piece.line))
    return found


def touched(names: frozenset[str], others: frozenset[str]) -> list[str]:
    """Return those of `names` that overlap one of `others`."""
    return [name for name in names if any(overlap(name, other) for other in others)]


def overlap(one: str, other: str) -> bool:
    return one == other or is_below(one, other) or is_below(other, one)


def is_below(name: str, tree: str) -> bool:
    """Say whether `tree` is a sub-tree, `top/**`, that holds `name`."""
    top = tree.removesuffix("/**")
    return top != tree and (name == top or name.startswith(top + "/"))


def collisions_by_path(pieces: Sequence[Piece], hold_s: int) -> tuple[int, int]:
    """Return how many single paths, and how many pieces, collide when the work goes on all the same.

    Here each path is a request of its own, and whoever finished last on a path is the one who has it.
    """
    last: dict[str, tuple[int, str]] = {}
    paths = lines = 0
    for piece in pieces:
        starts_s = piece.ends_s - hold_s
        before = [last[path] for path in piece.paths if path in last]
        taken = sum(worker != piece.worker and ends_s > starts_s for ends_s, worker in before)
        paths += taken
        lines += taken > 0
        last |= dict.fromkeys(piece.paths, (piece.ends_s, piece.worker))
    return paths, lines
