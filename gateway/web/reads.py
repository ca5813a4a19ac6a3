"""What can be read of a ledger: files of the log, receipts, and pictures of the live state.

Reads of the store run in one named thread over a read-only connection, so that a slow disk or a greedy reader never
holds up a decision. They never show more than the newest signed checkpoint covers: what a crash could undo has not
happened yet. The pictures (waits, leases, agents) come from memory, write nothing and prove nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from gateway.core.records import Record, Timed
from gateway.errors import Busy
from gateway.ledger.sequencer import Sequencer
from gateway.ledger.tree import load_edge
from gateway.ledger.worker import Worker
from gateway.store.contract import Reading
from gateway.web.tiles import Tile, bundle, node_positions
from verifier.merkle import EMPTY_ROOT

STOP_S = 2.0  # for the read that is under way when the gateway stops
T = TypeVar("T")


class ReadThread:
    """One thread and the reader that lives in it."""

    def __init__(self, open_reader: Callable[[], Reading]) -> None:
        self._open_reader = open_reader
        self._reader: Reading | None = None
        self._worker = Worker("tallystick-reader")

    async def call(self, read: Callable[[Reading], T]) -> T:
        """Return `read(reader)`, computed in the thread; nobody computes what nobody waits for any more."""
        wanted = [read]
        try:
            return await self._worker.call(partial(self._run, wanted))
        finally:
            wanted.clear()

    async def close(self) -> None:
        """Give the connection back, behind the read that is under way. One that is not answered, for the database is
        silent, keeps nobody from stopping: the thread ends with the process."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._worker.call(self._close_reader)
        self._worker.shutdown(wait=False)

    def _run(self, wanted: Sequence[Callable[[Reading], T]]) -> T:
        if not wanted:
            raise Busy("stopping")
        if self._reader is None:
            self._reader = self._open_reader()
        return wanted[0](self._reader)

    def _close_reader(self) -> None:
        close = getattr(self._reader, "close", None)
        if close is not None:
            close()


class Shelf:
    """The live records at the confirmed head, as the pictures walk through them; on the event loop's thread only."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer

    def get(self, key: str) -> Record | None:
        """Return one record."""
        return self._sequencer.view.get(key)

    def near(self, term: str) -> Collection[str]:
        """Return the keys of the records filed under a word."""
        return self._sequencer.view.near(term)

    def due(self, t_ms: int, limit: int) -> Iterable[Timed]:
        """Return the records whose time has come."""
        return self._sequencer.view.due(t_ms, limit)

    def scan(self, prefix: str) -> Iterable[Record]:
        """Return every record below a prefix."""
        return [record for _, record in self._sequencer.view.scan(prefix)]

    def pairs(self, prefix: str) -> Iterable[tuple[str, Record]]:
        """Return every record below a prefix with the rest of its key, in the order of keys."""
        return [(key[len(prefix) :], record) for key, record in self._sequencer.view.scan(prefix)]


def tile_bytes(reader: Reading, tile: Tile) -> bytes:
    """Return the hashes of a tile that lies within the ledger."""
    positions = node_positions(tile)
    nodes = reader.nodes(positions)
    return b"".join(nodes[position] for position in positions)


def bundle_bytes(reader: Reading, tile: Tile) -> bytes:
    """Return the entry bundle of a tile that lies within the ledger."""
    return bundle([entry.leaf for entry in reader.entries(tile.start, tile.start + tile.width)])


def root_at(reader: Reading, size: int) -> bytes:
    """Return our root over the first `size` entries."""
    return load_edge(reader, size).root if size else EMPTY_ROOT
