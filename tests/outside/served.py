"""A store of 70,000 entries behind the gateway's own handlers, once for each size at which a batch ended.

The entries are nothing but text: what is served of a tree must not depend on what is in it. Everything else is real:
the SQLite store, the signer, the routes, the connections.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web

from gateway.config import Settings
from gateway.ledger.tree import EMPTY_EDGE, Growth, prove_inclusion
from gateway.news import News
from gateway.signer import Signer
from gateway.store.contract import StoredBatch, StoredHead
from gateway.store.sqlite import Reader, SqliteStore
from gateway.web.connection import Server
from gateway.web.handlers import routes
from gateway.web.metrics import Metrics
from gateway.web.reads import ReadThread
from gateway.web.routes import Door
from keys.signing import SigningKey
from verifier.merkle import leaf_hash
from verifier.note import make_vkey
from verifier.proof import Proof, encode_proof

# One leaf; a partial tile; a full one; one more; a full tile of the second level; a ragged end on three levels.
SIZES = (1, 255, 256, 257, 65_536, 70_000)
ORIGIN = "gateway.example/main"


def signer() -> Signer:
    log, receipt, seal = (SigningKey(bytes([number]) * 32) for number in (1, 5, 6))
    return Signer(ORIGIN, log=[log], receipt=[receipt], seal=seal)


LOG_VKEY = make_vkey(ORIGIN, SigningKey(b"\1" * 32).public_key).vkey


def leaf(index: int) -> bytes:
    return f'{{"seq":{index},"text":"entry {index} of a synthetic ledger"}}'.encode()


@dataclass(frozen=True, slots=True)
class Served:
    """Where each size is served, and the store below. `root` is by size."""

    urls: dict[int, str]
    database: Path
    roots: dict[int, bytes]

    def note(self, size: int) -> bytes:
        return signer().sign_checkpoint(size, self.roots[size])

    def proof(self, index: int, size: int) -> bytes:
        """The tlog-proof of an entry, from the nodes that the store kept."""
        reader = Reader(self.database)
        path = prove_inclusion(reader, index, size)
        reader.close()
        return encode_proof(Proof(index, path, self.note(size)))


def write(database: Path, sizes: Sequence[int]) -> dict[int, bytes]:
    """Commit the entries, a batch up to each size; the root at each batch's end."""
    store = SqliteStore(database, may_create=True)
    head: StoredHead | None = None
    edge, roots = EMPTY_EDGE, {}
    for start, stop in pairwise((0, *sizes)):
        leaves = tuple(leaf(index) for index in range(start, stop))
        growth = Growth(edge, [leaf_hash(content) for content in leaves])
        new = StoredHead(stop, growth.root, sha256(leaves[-1]).digest(), 1_000 + stop, 1, f"batch-{stop}")
        store.commit(StoredBatch(new, leaves, growth.hashes, ()), head)
        head, edge = new, growth.edge
        roots[stop] = growth.root
    store.close()
    return roots


@contextmanager
def served(folder: Path, sizes: Sequence[int] = SIZES) -> Iterator[Served]:
    """Serve every size on a port of its own, from another thread, until the block ends."""
    database = folder / "ledger.sqlite3"
    roots = write(database, sizes)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="served")
    thread.start()
    found = Served({}, database, roots)
    runners = []
    try:
        for size in sizes:
            runner, url = asyncio.run_coroutine_threadsafe(_open(found, size), loop).result(30)
            runners.append(runner)
            found.urls[size] = url
        yield found
    finally:
        for opened, reads in runners:
            asyncio.run_coroutine_threadsafe(opened.cleanup(), loop).result(30)
            asyncio.run_coroutine_threadsafe(reads.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _open(found: Served, size: int) -> tuple[tuple[web.ServerRunner, ReadThread], str]:
    """Open a door whose newest confirmed checkpoint is that of `size`; the rooms that tiles need, and no others."""
    reads = ReadThread(lambda: Reader(found.database))
    sequencer = SimpleNamespace(confirmed=SimpleNamespace(size=size, note=found.note(size)))
    house = SimpleNamespace(
        ledger=SimpleNamespace(origin=ORIGIN, is_public=True),
        published={},
        sequencer=sequencer,
        news=News(cast(Any, sequencer), is_shared=False),
        newest_witnessed=lambda: None,
        is_denied=lambda tile: False,
        reads=reads,
    )
    clock = cast(Any, SimpleNamespace(now_ms=lambda: 1_800_000_000_000))
    door = Door(routes(cast(Any, house)), clock=clock, metrics=Metrics(), handler_seconds=30)
    server = Server(door, error_reply=door.error_reply, settings=Settings(), clock=clock)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    return (runner, reads), f"http://{host}:{port}/main"
