"""Copies of the ledger for people who don't trust this gateway: one file, a tile directory, a back-up.

Everything reads through a read-only connection, so it works beside a running gateway and on a stopped one, and it never
goes beyond the newest checkpoint that is stored with its signature: what is exported can always be verified.
Source: docs/protocol.md, export and tile directory; C2SP tlog-tiles.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from gateway.store.contract import Reading
from gateway.store.sqlite import Reader
from gateway.web.reads import bundle_bytes, tile_bytes
from gateway.web.tiles import tiles_of
from verifier.checkpoint import parse_checkpoint
from verifier.entries import parse_leaf
from verifier.wire import INT_MAX

ENTRIES_PER_READ = 256
SIGNED_SECONDS = 3.0


class ExportError(Exception):
    """Nothing was exported; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the ledger is covered by a stored checkpoint."""

    origin: str
    size: int
    note: bytes


def extent_of(reader: Reading) -> Extent:
    """Return the newest stored checkpoint with what it covers; ExportError for an empty ledger."""
    note = reader.last_note(INT_MAX)
    if note is None:
        raise ExportError("the ledger has no signed checkpoint yet; start the gateway once")
    checkpoint = parse_checkpoint(note)
    return Extent(checkpoint.origin, checkpoint.size, note)


def await_signed(reader: Reader, seconds: float = SIGNED_SECONDS) -> None:
    """Wait until the newest committed entry has a stored checkpoint: a gateway keeps it with its next batch, or idle.

    Behind a busy gateway that moment may never be seen, so this ends as soon as what stood at the beginning is signed;
    behind a stopped one that was killed it will not come, so this ends after `seconds`.
    """
    head, until_s = reader.head(), monotonic() + seconds
    while head is not None and extent_of(reader).size < head.size and monotonic() < until_s:
        sleep(0.05)


def newer_than(reader: Reader, extent: Extent) -> int:
    """Return how many entries are committed beyond `extent`."""
    head = reader.head()
    return 0 if head is None else max(0, head.size - extent.size)


def export_file(reader: Reading, out: Path) -> Extent:
    """Write the one-file export; `out` is replaced in one step or not at all."""
    if out.is_dir():
        raise ExportError(f"{out} is a folder; name a file, or write tiles there with --tiles DIR")
    extent = extent_of(reader)
    with _replaced(out) as file:
        file.write(f"tallystick-ledger/v1 {extent.origin} {extent.size}\n".encode())
        for leaf in _leaves(reader, extent.size):
            file.write(leaf + b"\n")
        file.write(b"\n" + extent.note)
    return extent


def export_tiles(reader: Reading, folder: Path) -> Extent:
    """Write a tile directory; the checkpoint comes last, so a reader never sees one whose tiles are missing."""
    extent = extent_of(reader)
    for tile in tiles_of(extent.size):
        path = folder / tile.path
        if tile.is_full and path.exists():
            continue  # its bytes can never change
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replaced(path) as file:
            file.write(bundle_bytes(reader, tile) if tile.level is None else tile_bytes(reader, tile))
    with _replaced(folder / "checkpoint") as file:
        file.write(extent.note)
    return extent


def backup(database: Path, out: Path) -> None:
    """Copy the database with SQLite's backup API, which gives one consistent moment of a running gateway."""
    if out.exists():
        raise ExportError(f"{out} exists; a back-up never replaces a file")
    temporary = out.with_name(out.name + ".new")
    with closing(Reader(database)) as reader:
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            reader.backup(temporary)
            _sync(temporary)
            os.replace(temporary, out)
        finally:
            temporary.unlink(missing_ok=True)


def stats(reader: Reading, database: Path) -> dict[str, object]:
    """Return the figures of `tallystick ledger stats`."""
    extent = extent_of(reader)
    first, last = reader.entries(0, 1)[0], reader.entries(extent.size - 1, extent.size)[0]
    return {
        "origin": extent.origin,
        "entries": extent.size,
        "epoch": parse_leaf(last.leaf).epoch,
        "firstTimeMs": parse_leaf(first.leaf).time_ms,
        "lastTimeMs": parse_leaf(last.leaf).time_ms,
        "databaseBytes": database.stat().st_size,
    }


def _leaves(reader: Reading, size: int) -> Iterator[bytes]:
    for start in range(0, size, ENTRIES_PER_READ):
        for entry in reader.entries(start, min(start + ENTRIES_PER_READ, size)):
            yield entry.leaf


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Yield a file beside `path` that takes its place when all is written and synced."""
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            yield file
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
