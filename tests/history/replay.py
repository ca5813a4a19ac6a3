"""A history played to the real gateway: its sequencer, its core, its ledger, on a clock that is moved by hand."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal

from gateway.ledger.history import Answer
from tests.core.requests import NOW_MS, did_of, release
from tests.history.oracle import Names, Refusal
from tests.history.trace import Piece
from tests.scenarios.stage import request
from tests.world import World
from verifier.entries import Leaf, parse_leaf

Ending = Literal["lapse", "release"]
SPARE_MS = 60_000
"""How much longer than its work a lease lasts that is given back."""


class Replay:
    """Plays pieces in order. A lease that is not given back runs out at the end of its piece."""

    def __init__(self, world: World, hold_s: int, ending: Ending) -> None:
        self.world = world
        self._hold_s = hold_s
        self._ending = ending
        self._ends_s: dict[str, int] = {}
        self._due: list[tuple[int, int, str, str]] = []

    async def run(self, pieces: Sequence[Piece], names_of: Names) -> list[Refusal]:
        """Return what was refused; everything else was granted, or extended."""
        names = {did_of(piece.worker): piece.worker for piece in pieces}
        refused = []
        for piece in pieces:
            starts_s = piece.ends_s - self._hold_s
            await self._give_back(starts_s)
            self._move_to(starts_s)
            leaf = parse_leaf((await self._acquire(piece, names_of)).leaf)
            if leaf.type == "tallystick/lease.refused/1":
                refused.append(_refusal(piece, leaf, names))
            else:
                assert leaf.type in ("tallystick/lease.granted/1", "tallystick/lease.extended/1"), leaf.type
                self._keep(piece, leaf.text("leaseId"))
        await self._give_back(pieces[-1].ends_s)
        return refused

    async def _acquire(self, piece: Piece, names_of: Names) -> Answer:
        ttl_ms = self._hold_s * 1_000 + (SPARE_MS if self._ending == "release" else 0)
        return await self.world.acquire(piece.worker, *sorted(names_of(piece)), ttlMs=ttl_ms)

    def _keep(self, piece: Piece, lease_id: str) -> None:
        self._ends_s[lease_id] = piece.ends_s
        heapq.heappush(self._due, (piece.ends_s, piece.line, lease_id, piece.worker))

    async def _give_back(self, until_s: int) -> None:
        """Release what ends until then, each at its own time; what was extended since ends with the later piece."""
        while self._ending == "release" and self._due and self._due[0][0] <= until_s:
            ends_s, _, lease_id, worker = heapq.heappop(self._due)
            if self._ends_s.get(lease_id) != ends_s:
                continue
            del self._ends_s[lease_id]
            self._move_to(ends_s)
            names = self._names(lease_id)
            answer = await self.world.ask(release(worker, *names, at_ms=self.world.clock.wall, leaseId=lease_id))
            assert answer.status == 200, answer.leaf

    def _names(self, lease_id: str) -> list[str]:
        (entry,) = self.world.store.honest.entries(int(lease_id[1:]), int(lease_id[1:]) + 1)
        names = parse_leaf(entry.leaf).value["resources"]
        assert isinstance(names, list)
        return [str(name) for name in names]

    def _move_to(self, seconds: int) -> None:
        """Let the clock stand `seconds` after the trace's first end; the first request is at the clock's start."""
        self.world.clock.advance(NOW_MS + (seconds + self._hold_s) * 1_000 - self.world.clock.wall)


async def collisions_with_breaks(world: World, pieces: Sequence[Piece], hold_s: int) -> tuple[int, int]:
    """Play each path as a request of its own; who is refused breaks what it was told of, and works all the same.

    Return how many paths and how many pieces were refused.
    """
    paths = lines = 0
    for piece in pieces:
        world.clock.advance(NOW_MS + piece.ends_s * 1_000 - world.clock.wall)
        asked = [(name, await _ask(world, piece, name, hold_s)) for name in sorted(piece.paths)]
        refused = [(name, leaf) for name, leaf in asked if "error" in leaf.value]
        for name, leaf in refused:
            await _break(world, f"repo:town/{name}", leaf)
            assert "error" not in (await _ask(world, piece, name, hold_s)).value
        paths, lines = paths + len(refused), lines + bool(refused)
    return paths, lines


async def _ask(world: World, piece: Piece, path: str, hold_s: int) -> Leaf:
    return parse_leaf((await world.acquire(piece.worker, f"repo:town/{path}", ttlMs=hold_s * 1_000)).leaf)


async def _break(world: World, name: str, refused: Leaf) -> None:
    """Let the operator end what the refusal named; its text holds all that is needed for it."""
    conflict = refused.value["conflict"]
    assert isinstance(conflict, dict) and refused.text("error") == "lease_held"
    members = {"resource": name, "seenToken": conflict["fencingToken"], "reason": "worked-on"}
    answer = await world.ask(request("op", "lease.break", world.clock.wall, **members))
    assert answer.status == 200, answer.leaf


def _refusal(piece: Piece, leaf: Leaf, names: dict[str, str]) -> Refusal:
    assert leaf.text("error") == "lease_held", leaf.value
    conflict = leaf.value["conflict"]
    assert isinstance(conflict, dict)
    name, held_as = str(conflict["resource"]), str(conflict["heldAs"])
    return Refusal(piece.line, names[leaf.text("holder")], name, held_as, leaf.number("conflicts"))
