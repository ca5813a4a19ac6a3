"""Copies of the ledger for people who don't trust this gateway: one file, a tile directory, a back-up.

Everything reads through a read-only connection, so it works beside a running gateway and on a stopped one, and it never
goes beyond the newest checkpoint that is stored with its signature: what is exported can always be verified.

A tile directory may be killed at any moment: each file is synced before it gets its name, each new folder before what
it holds is needed, and the checkpoint comes last. What an older checkpoint needs stays until a full tile replaces it.
Source: docs/protocol.md, export and tile directory; C2SP tlog-tiles.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from gateway.core.record_codec import decode_record
from gateway.core.record_keys import COSIGNED_KEY
from gateway.core.records import Cosigned, LedgerKey
from gateway.ledger.tree import load_edge
from gateway.store.contract import Reading, node_count
from gateway.store.sqlite import Reader
from gateway.stores import LedgerReader
from gateway.web.reads import bundle_bytes, tile_bytes
from gateway.web.tiles import TILE_WIDTH, Tile, size_of, tiles_of
from keys.files import sync_folder
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.entries import moment, parse_leaf
from verifier.note import encode_note
from verifier.wire import INT_MAX, TEXT_BYTES_MAX, Malformed

ENTRIES_PER_READ = 256
SIGNED_SECONDS = 3.0
CHECKPOINT_FILE = "checkpoint"
PRUNED_FILE = "pruned"  # how many entries' bundles were dropped on purpose, in decimal


class ExportError(Exception):
    """Nothing was exported; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the ledger is covered by a stored checkpoint; `is_witnessed`: with the lines of witnesses."""

    origin: str
    size: int
    note: bytes
    is_witnessed: bool = False


def cosigned_of(reader: LedgerReader) -> Checkpoint | None:
    """Return the newest checkpoint that a quorum of witnesses cosigned, as a gateway keeps it; None without one."""
    for key, value in reader.records((COSIGNED_KEY,)):
        try:
            record = decode_record(key, value)
            return parse_checkpoint(record.note.encode()) if isinstance(record, Cosigned) else None
        except Malformed:
            return None
    return None


def extent_of(reader: Reading, cosigned: Checkpoint | None = None, *, is_witnessed: bool = False) -> Extent:
    """Return the newest stored checkpoint with what it covers, or the `cosigned` one if that reaches as far.

    With `is_witnessed` the cosigned one in any case. ExportError for an empty ledger, and when there is none.
    """
    note = reader.last_note(INT_MAX)
    if note is None:
        raise ExportError("the ledger has no signed checkpoint yet; start the gateway once")
    newest = parse_checkpoint(note)
    if cosigned is not None and (is_witnessed or cosigned.size == newest.size) and _is_part(reader, cosigned, newest):
        return Extent(cosigned.origin, cosigned.size, encode_note(cosigned.note), is_witnessed=True)
    if is_witnessed:
        raise ExportError("no checkpoint that witnesses cosigned is kept yet; leave out --witnessed or try later")
    return Extent(newest.origin, newest.size, note)


def _is_part(reader: Reading, older: Checkpoint, newest: Checkpoint) -> bool:
    """Say whether a checkpoint is of this very ledger: what lies in the file as cosigned is believed no further."""
    is_near = older.origin == newest.origin and 0 < older.size <= newest.size
    return is_near and load_edge(reader, older.size).root == older.root


def await_signed(reader: LedgerReader, seconds: float = SIGNED_SECONDS) -> None:
    """Wait until the newest committed entry has a stored checkpoint: a gateway keeps it with its next batch, or idle.

    Behind a busy gateway that moment may never be seen, so this ends as soon as what stood at the beginning is signed;
    behind a stopped one that was killed it will not come, so this ends after `seconds`.
    """
    head, until_s = reader.head(), monotonic() + seconds
    while head is not None and extent_of(reader).size < head.size and monotonic() < until_s:
        sleep(0.05)


def newer_than(reader: LedgerReader, extent: Extent) -> int:
    """Return how many entries are committed beyond `extent`."""
    head = reader.head()
    return 0 if head is None else max(0, head.size - extent.size)


def export_file(reader: Reading, out: Path, extent: Extent | None = None) -> Extent:
    """Write the one-file export, up to the newest checkpoint or to `extent`; `out` is replaced in one step or not at
    all."""
    if out.is_dir():
        raise ExportError(f"{out} is a folder; name a file, or write tiles there with --tiles DIR")
    extent = extent or extent_of(reader)
    with _replaced(out) as file:
        file.write(f"tallystick-ledger/v1 {extent.origin} {extent.size}\n".encode())
        for leaf in _leaves(reader, extent.size):
            file.write(leaf + b"\n")
        file.write(b"\n" + extent.note)
    return extent


def export_tiles(reader: Reading, folder: Path, extent: Extent | None = None) -> Extent:
    """Write a tile directory, or bring it up to date."""
    return TileFolder(folder).update(reader, extent)


class TileFolder:
    """A directory of C2SP tiles that is brought up to date again and again; nothing in it may be a symbolic link."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done = 0  # entries whose full tiles this object has seen in place
        self._folders: set[Path] = set()  # found to be real folders, or made

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that the directory stands at; ExportError when its file is none."""
        content = self._read(CHECKPOINT_FILE)
        try:
            return None if content is None else parse_checkpoint(content)
        except Malformed as error:
            raise ExportError(f"{self._folder}/{CHECKPOINT_FILE} is no checkpoint; choose another directory") from error

    def update(self, reader: Reading, extent: Extent | None = None) -> Extent:
        """Write what is new, up to the newest checkpoint or to `extent`, then the checkpoint, then drop partial tiles
        that full ones replace."""
        extent, held = extent or extent_of(reader), self.checkpoint()
        if held is not None:
            self._check_same(reader, held, extent)
            if held.size == extent.size and self._done and encode_note(held.note) == extent.note:
                return extent
        pruned = self._pruned()
        for tile in tiles_of(extent.size):
            if tile.is_full and size_of(tile) <= max(self._done, pruned if tile.level is None else 0):
                continue
            self._put(reader, tile)
        self._write(Path(CHECKPOINT_FILE), extent.note)
        self._drop_partial(held.size if held else 0, extent.size)
        self._done = extent.size
        return extent

    def drop_below(self, end: int) -> int:
        """Remove the full bundles that end at or below `end`, after writing that down; return how many there were."""
        self._write(Path(PRUNED_FILE), b"%d\n" % max(end, self._pruned()))
        count = 0
        for index in range(end // TILE_WIDTH):
            path = self._folder / Tile(None, index, TILE_WIDTH).path
            if self._is_there(path.relative_to(self._folder)):
                path.unlink()
                count += 1
        return count

    def _check_same(self, reader: Reading, held: Checkpoint, extent: Extent) -> None:
        """The directory must be an older state of this very ledger, or readers would see two histories."""
        if held.origin != extent.origin:
            raise ExportError(f"{self._folder} holds tiles of {held.origin}; choose another directory")
        if extent.is_witnessed and held.size > extent.size:
            raise ExportError(
                f"{self._folder} has {held.size} entries, of which {extent.size} are witnessed so far; wait until more"
                " are, or choose another directory"
            )
        if held.size > extent.size or (held.size and load_edge(reader, held.size).root != held.root):
            raise ExportError(
                f"{self._folder} holds a checkpoint of {held.size} entries that this ledger does not contain: one of"
                " the two was restored or changed. Keep both, and find out which one your readers know"
            )

    def _pruned(self) -> int:
        content = (self._read(PRUNED_FILE) or b"0").strip()
        if not content.isdigit():
            raise ExportError(f"{self._folder}/{PRUNED_FILE} is no number; remove the file to write all bundles again")
        return int(content)

    def _put(self, reader: Reading, tile: Tile) -> None:
        path = Path(tile.path)
        if tile.is_full and self._is_there(path):
            return  # its bytes can never change
        self._write(path, bundle_bytes(reader, tile) if tile.level is None else tile_bytes(reader, tile))

    def _drop_partial(self, old_size: int, size: int) -> None:
        """Remove partial tiles whose full one is in place; a reader of an older checkpoint takes the full one."""
        for tile in tiles_of(size):
            if not tile.is_full or size_of(tile) <= old_size:
                continue
            folder = self._folder / f"{tile.path}.p"
            if self._is_there(folder.relative_to(self._folder)):
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _read(self, name: str) -> bytes | None:
        if not self._is_there(Path(name)):
            return None
        with open(self._folder / name, "rb") as file:
            return file.read(TEXT_BYTES_MAX)

    def _is_there(self, relative: Path) -> bool:
        """Say whether a file is there; ExportError when it, or a folder on the way to it, is a symbolic link."""
        path = self._folder / relative
        for part in (*reversed(relative.parents[:-1]), relative):
            if (self._folder / part).is_symlink():
                raise ExportError(f"{self._folder / part} is a symbolic link; a tile directory holds none. Remove it")
        return path.exists()

    def _write(self, relative: Path, content: bytes) -> None:
        """Put a file in place durably; its folder, too, when it is new."""
        path = self._folder / relative
        self._make(path.parent)
        self._is_there(relative)
        with _replaced(path) as file:
            file.write(content)

    def _make(self, folder: Path) -> None:
        """Make a folder and sync the one it lies in, from the top."""
        if folder in self._folders:
            return
        if folder != self._folder:
            self._make(folder.parent)
            self._is_there(folder.relative_to(self._folder))
        if not folder.is_dir():
            folder.mkdir(parents=folder == self._folder)
            sync_folder(folder.parent)
        self._folders.add(folder)


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
            sync_folder(out.parent)
        finally:
            temporary.unlink(missing_ok=True)


# -- figures -----------------------------------------------------------------------------------------------------------


def stats(reader: LedgerReader) -> dict[str, object]:
    """Return the figures of `tallystick ledger stats`; entries by type need one look at each."""
    extent, head = extent_of(reader), reader.head()
    keys, witnessed = _kept(reader)
    first, last = reader.entries(0, 1)[0], reader.entries(extent.size - 1, extent.size)[0]
    last_ms = parse_leaf(last.leaf).time_ms
    return {
        "origin": extent.origin,
        "entries": extent.size,
        "committed": extent.size if head is None else head.size,
        "epoch": parse_leaf(last.leaf).epoch,
        "firstTimeMs": parse_leaf(first.leaf).time_ms,
        "lastTimeMs": last_ms,
        "lastTime": moment(last_ms).partition("(")[2].removesuffix(")"),
        "treeHashes": node_count(extent.size),
        **reader.counts(),
        "witnessedSize": witnessed,
        "keysInForce": keys,
        "entriesByType": dict(sorted(_types(reader, extent.size).items())),
    }


def stats_table(figures: Mapping[str, object]) -> str:
    """Return the figures as lines for a person."""
    lines = []
    for name, value in figures.items():
        match value:
            case dict():
                lines += [f"{name}:", *(f"  {key:<28}{count:>12,}" for key, count in value.items())]
            case list():
                lines += [f"{name}:", *(f"  {item}" for item in value)]
            case int() if name.endswith(("Ms", "epoch")):
                lines.append(f"{name:<30}{value:>12}")
            case int():
                lines.append(f"{name:<30}{value:>12,}")
            case _:
                lines.append(f"{name:<30}{'-' if value is None else value}")
    return "\n".join(lines)


def _types(reader: Reading, size: int) -> Counter[str]:
    """Count entries by type, in words; what can't be read is counted as such."""
    counts: Counter[str] = Counter()
    for leaf in _leaves(reader, size):
        try:
            counts[parse_leaf(leaf).type.split("/")[1]] += 1
        except (Malformed, IndexError):
            counts["unreadable"] += 1
    return counts


def _kept(reader: LedgerReader) -> tuple[list[str], int | None]:
    """Return the ledger's keys in force (purpose and vkey), and the size that witnesses cosigned if they did."""
    keys, witnessed = [], None
    for key, value in reader.records(("key/", COSIGNED_KEY)):
        match decode_record(key, value):
            case LedgerKey(purpose=purpose, vkey=vkey, ended_seq=None):
                keys.append(f"{purpose} {vkey}")
            case Cosigned(size=size):
                witnessed = size
    return sorted(keys), witnessed


# -- writing -----------------------------------------------------------------------------------------------------------


def _leaves(reader: Reading, size: int) -> Iterator[bytes]:
    for start in range(0, size, ENTRIES_PER_READ):
        for entry in reader.entries(start, min(start + ENTRIES_PER_READ, size)):
            yield entry.leaf


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Yield a file beside `path` that takes its place when all is written and synced, and whose name is then durable.

    What a killed process left half written there is removed, never written through: it might be a link.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:
            yield file
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
