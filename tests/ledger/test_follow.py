"""Following trusts nothing: whatever another node's batch says is computed again, and what differs is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.errors import Fatal, HeadMoved
from gateway.ledger.checkpoint import encode_leaf
from gateway.ledger.follow import follow
from gateway.ledger.history import Book, open_book
from gateway.ledger.tree import Growth
from gateway.store.contract import StoredBatch
from gateway.store.memory import MemoryStore
from tests.core.requests import acquire, release
from tests.ledger.nodes import end, shared_disk, started
from tests.world import World
from verifier.merkle import leaf_hash


async def story(folder: Path) -> tuple[World, Book, tuple[StoredBatch, ...]]:
    """Return a ledger, a book that stands before its last four batches, and those."""
    world = World(folder, disk=shared_disk())
    await world.start()
    before = open_book(MemoryStore(world.disk), world.signer, world.genesis, None)
    await world.acquire("A", "lock:1")
    await world.acquire("B", "lock:1")
    await world.ask(release("A", "lock:1"))
    await world.acquire("C", "lock:1", wait=True)
    moved = MemoryStore(world.disk).news(before.head)
    assert len(moved) == 4
    return world, before, moved


async def test_a_book_that_followed_is_the_book_that_was_read(tmp_path: Path) -> None:
    world, book, moved = await story(tmp_path)
    shown = dict(book.shown.scan(""))
    followed = follow(book, moved)
    read = open_book(MemoryStore(world.disk), world.signer, world.genesis, None)
    assert [one.head for one in followed] == [one.head for one in moved] and followed[-1].head == read.head == book.head
    assert (book.edge, dict(book.live.scan(""))) == (read.edge, dict(read.live.scan("")))
    assert book.seal.mark(1, b"x") == read.seal.mark(1, b"x")
    assert dict(book.shown.scan("")) == shown, "nobody was shown anything"
    assert follow(book, ()) == ()
    await world.stop()


def _leaf(batch: StoredBatch, **members: Any) -> StoredBatch:
    """Return the batch with a leaf that says something else, and all hashes as they follow from that."""
    leaf = encode_leaf({**orjson.loads(batch.leaves[0]), **members})
    return replace(batch, leaves=(leaf, *batch.leaves[1:]))


def _changed(batch: StoredBatch, at: int, value: bytes | None) -> StoredBatch:
    changes = [*batch.changes]
    changes[at] = (changes[at][0], value, changes[at][2])
    return replace(batch, changes=tuple(changes))


def _hot(batch: StoredBatch) -> int:
    return next(at for at, change in enumerate(batch.changes) if change[0].startswith("lease/"))


def _head(**members: Any) -> Callable[[StoredBatch], StoredBatch]:
    return lambda batch: replace(batch, head=replace(batch.head, **members))


def _added(batch: StoredBatch) -> StoredBatch:
    return replace(batch, changes=(*batch.changes, ("operator/x", b"{}", None)))


TREE, SEAL, CHAIN = "do not give its tree", "not those of its seal", "does not follow|does not fit"
LIES: list[tuple[str, Callable[[StoredBatch], StoredBatch], str]] = [
    ("no leaves", lambda b: replace(b, leaves=()), TREE),
    ("another leaf", lambda b: _leaf(b, actor="x"), TREE),
    ("a leaf more", lambda b: replace(b, leaves=(*b.leaves, b.leaves[0])), TREE),
    ("another root", _head(root=bytes(32)), TREE),
    ("another size", _head(size=99), TREE),
    ("other hashes", lambda b: replace(b, hashes=(bytes(32), *b.hashes[1:])), TREE),
    ("hashes too few", lambda b: replace(b, hashes=b.hashes[:-1]), TREE),
    ("another time", _head(time_ms=1), CHAIN),
    ("a later epoch", _head(epoch=9), CHAIN),
    ("another end", _head(prev_hash=bytes(32)), CHAIN),
    ("no seal", _head(seal=b""), SEAL),
    ("another seal", _head(seal=bytes(32)), SEAL),
    ("a record changed", lambda b: _changed(b, _hot(b), b"{}"), SEAL),
    ("a record deleted", lambda b: _changed(b, _hot(b), None), SEAL),
    ("a record more", _added, SEAL),
    ("no records", lambda b: replace(b, changes=()), SEAL),
]


@pytest.mark.parametrize(("lie", "text"), [row[1:] for row in LIES], ids=[row[0] for row in LIES])
async def test_a_batch_that_does_not_fit_is_not_followed(
    lie: Callable[[StoredBatch], StoredBatch], text: str, tmp_path: Path
) -> None:
    world, book, moved = await story(tmp_path)
    with pytest.raises(HeadMoved, match=text):
        follow(book, (lie(moved[0]), *moved[1:]))
    await world.stop()


@pytest.mark.parametrize(
    "members", [{"seq": 8}, {"prev": "00" * 32}, {"timeMs": 5}, {"epoch": 7}], ids=["seq", "prev", "time", "epoch"]
)
async def test_a_leaf_that_lies_under_a_root_that_fits_is_not_followed(members: Any, tmp_path: Path) -> None:
    world, book, moved = await story(tmp_path)
    spoilt = _leaf(moved[0], **members)
    growth = Growth(book.edge, list(map(leaf_hash, spoilt.leaves)))
    head = replace(spoilt.head, root=growth.root, prev_hash=sha256(spoilt.leaves[-1]).digest())
    with pytest.raises(HeadMoved, match=CHAIN):
        follow(book, (replace(spoilt, head=head, hashes=growth.hashes),))
    await world.stop()


async def test_batches_out_of_order_or_with_a_gap_are_not_followed(tmp_path: Path) -> None:
    world, book, moved = await story(tmp_path)
    for wrong in ((moved[1],), (moved[1], moved[0]), (moved[0], moved[2])):
        with pytest.raises(HeadMoved):
            follow(open_book_at(world, book), wrong)
    await world.stop()


def open_book_at(world: World, book: Book) -> Book:
    """Return a fresh book where `book` stands: its own must not be followed twice."""
    disk = world.disk.frozen()
    at = disk.heads.index(book.head) + 1
    size = book.head.size
    disk.head, disk.heads, disk.leaves = book.head, disk.heads[:at], disk.leaves[:size]
    return Book(book.head, book.edge, book.live, book.shown, book.seal, [], book.confirmed, False)


# -- what a running node makes of it -----------------------------------------------------------------------------------


async def test_a_node_that_is_told_nonsense_reads_the_ledger_anew_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await started(tmp_path)
    honest, lies = MemoryStore._since, 1

    def since(self: MemoryStore, seen: Any) -> Any:
        nonlocal lies
        moved = honest(self, seen)
        if lies and moved and any(key.startswith("lease/") for key, _, _ in moved[0].changes):
            lies -= 1
            return (replace(moved[0], changes=()), *moved[1:])
        return moved

    monkeypatch.setattr(MemoryStore, "_since", since)
    await a.acquire("A", "lock:1")
    assert (await b.acquire("B", "lock:1")).status == 409
    assert (a.sequencer.counters.recoveries, b.sequencer.counters.recoveries) == (0, 1)
    await end([a, b])


async def test_a_history_in_which_what_was_confirmed_is_missing_is_the_end(tmp_path: Path) -> None:
    a, b = await started(tmp_path)
    old = a.disk.frozen()
    asked = acquire("A", "lock:1")
    await b.ask(asked)
    for name in ("head", "leaves", "hashes", "heads", "changes", "records"):
        setattr(a.disk, name, getattr(old, name))  # an older back-up was restored
    with pytest.raises(Fatal, match="already signed"):
        await b.ask(asked.again())
    assert b.sequencer.failure is not None
    await a.stop()
    await b.stop()
