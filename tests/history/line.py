"""A history in which everybody waits in line: work that can't begin yet begins later, and takes as long as it took."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from tests.core.requests import NOW_MS
from tests.history.trace import Piece
from tests.scenarios.stage import request
from tests.world import World
from verifier.entries import Leaf, parse_leaf

POLL_MS = 25_000
AGAIN_MS = 20_000
SPARE_MS = 60_000
QUEUED_NAMES_MAX = 16


class InLine:
    """Plays pieces as events in order of time: ask, perhaps poll until served, work for `hold_s`, give back."""

    def __init__(self, world: World, hold_s: int) -> None:
        self.world = world
        self.served: list[int] = []
        self._hold_ms = hold_s * 1_000
        self._order = count()
        self._events: list[tuple[int, int, str, Piece, str]] = []
        self._ends_ms: dict[str, int] = {}

    async def run(self, pieces: Sequence[Piece]) -> None:
        """Return when everybody has worked; `served` are the lines of all pieces, in the order in which they began."""
        for piece in pieces:
            self._plan(NOW_MS + piece.ends_s * 1_000, "ask", piece)
        while self._events:
            at_ms, _, what, piece, which = heapq.heappop(self._events)
            self.world.clock.advance(max(0, at_ms - self.world.clock.wall))
            await {"ask": self._ask, "poll": self._poll, "give": self._give}[what](piece, which)

    def _plan(self, at_ms: int, what: str, piece: Piece, which: str = "") -> None:
        heapq.heappush(self._events, (at_ms, next(self._order), what, piece, which))

    async def _do(self, piece: Piece, action: str, **members: object) -> Leaf:
        answer = await self.world.ask(request(piece.worker, action, self.world.clock.wall, **members))
        return parse_leaf(answer.leaf)

    async def _ask(self, piece: Piece, _: str) -> None:
        names = sorted(f"repo:town/{path}" for path in piece.paths)
        wish = {"resources": names, "ttlMs": self._hold_ms + SPARE_MS}
        if len(names) <= QUEUED_NAMES_MAX:
            wish["wait"] = True
        await self._go_on(piece, await self._do(piece, "lease.acquire", **wish))

    async def _poll(self, piece: Piece, ticket_id: str) -> None:
        await self._go_on(piece, await self._do(piece, "wait.claim", ticketId=ticket_id))

    async def _go_on(self, piece: Piece, told: Leaf) -> None:
        """Plan what follows an answer: work, another poll, or, after a refusal, asking again."""
        now_ms, kind = self.world.clock.wall, told.type.split("/")[1]
        if kind in ("wait.queued", "wait.polled"):
            self._plan(now_ms + POLL_MS, "poll", piece, told.text("ticketId"))
        elif kind == "lease.refused":
            assert told.text("error") in ("lease_held", "queued", "already_waiting", "deadlock"), told.value
            self._plan(now_ms + AGAIN_MS, "ask", piece)
        else:
            assert kind in ("lease.granted", "lease.extended", "lease.claimed"), told.value
            self.served.append(piece.line)
            self._ends_ms[told.text("leaseId")] = now_ms + self._hold_ms
            self._plan(now_ms + self._hold_ms, "give", piece, told.text("leaseId"))

    async def _give(self, piece: Piece, lease_id: str) -> None:
        """Release, unless the same lease was extended for a later piece of the same worker."""
        if self._ends_ms[lease_id] <= self.world.clock.wall:
            names = sorted(f"repo:town/{path}" for path in piece.paths)
            told = await self._do(piece, "lease.release", resources=names, leaseId=lease_id)
            assert told.type.split("/")[1] in ("lease.released", "release.repeated"), told.value
