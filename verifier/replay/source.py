"""Where a ledger's bytes come from: the one-file export and the C2SP tile directory. Nothing is judged here.

Leaves are streamed; a reader never holds more than one bundle. Paths are built from numbers, never listed, and symbolic
links are refused: a directory handed over by a stranger must not make us read other files. Only regular files are
read, and opening never waits: a pipe would hold an auditor up for ever.
Source: docs/protocol.md 13.4 to 13.6; C2SP tlog-tiles.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from verifier.checkpoint import parse_checkpoint
from verifier.wire import LEAF_BYTES_MAX, TEXT_BYTES_MAX, Malformed, decode_decimal

BUNDLE_ENTRIES = 256
BUNDLE_BYTES_MAX = BUNDLE_ENTRIES * (2 + LEAF_BYTES_MAX)
_FIRST_LINE = "tallystick-ledger/v1"
# Zero where a system has no such flag.
_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)


@dataclass(slots=True)
class Source:
    """An opened ledger: what it claims, its leaves in order, and (complete once they are read) its checkpoint.

    `size` counts from entry 0, also when `leaves` begin at entry `start`.
    """

    origin: str
    size: int
    leaves: Iterator[bytes]
    checkpoint: bytes = b""
    start: int = 0
    is_longer: bool = False  # more leaves came than were promised; nothing was read after that


class NotRegular(OSError):
    """A pipe, socket or device where a file should be."""


@contextmanager
def open_source(path: Path, start: int = 0) -> Iterator[Source]:
    """Open an export file or a tile directory, to read from entry `start` on; those before are passed over unjudged.

    Malformed: not its format; OSError: not readable.
    """
    if path.is_dir():
        yield _open_tiles(path, start)
        return
    with open_regular(path) as file:
        yield _open_export(file, start)


def open_regular(path: Path, flags: int = 0) -> BinaryIO:
    """Open a regular file to read it, with `flags` added; NotRegular for anything else, without waiting for it."""
    file = open(path, "rb", opener=lambda name, usual: os.open(name, usual | flags | _NO_WAIT))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotRegular(f"{path.name} is no regular file; pipes and devices are not read")
    return file


def read_bounded(path: Path, bytes_max: int, flags: int = 0) -> bytes:
    """Return a file's bytes, or Malformed when it is larger than the bound; never reads more than one byte too many."""
    with open_regular(path, flags) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise Malformed(f"{path.name}: the file is larger than {bytes_max} bytes")
    return content


def _open_export(file: BinaryIO, start: int) -> Source:
    words = file.readline(512).decode("utf-8", "replace").removesuffix("\n").split(" ")
    if len(words) != 3 or words[0] != _FIRST_LINE:
        raise Malformed(f"an export begins with the line {_FIRST_LINE} <origin> <size>")
    source = Source(words[1], decode_decimal(words[2]), iter(()), start=start)
    source.leaves = _export_leaves(file, source)
    return source


def _export_leaves(file: BinaryIO, source: Source) -> Iterator[bytes]:
    """Yield the lines up to the empty one, but no more than the first line promised; then take the checkpoint."""
    count = 0
    while (line := file.readline(LEAF_BYTES_MAX + 1)) != b"\n":
        if not line.endswith(b"\n"):
            raise Malformed("an export's leaves each end with a newline; the file is cut or a line is too long")
        if count == source.size:
            source.is_longer = True
            return
        count += 1
        if count > source.start:
            yield line[:-1]
    source.checkpoint = file.read(TEXT_BYTES_MAX + 1)


def _open_tiles(directory: Path, start: int) -> Source:
    note = _read_inside(directory, Path("checkpoint"), TEXT_BYTES_MAX)
    checkpoint = parse_checkpoint(note)
    return Source(checkpoint.origin, checkpoint.size, _tile_leaves(directory, start, checkpoint.size), note, start)


def _tile_leaves(directory: Path, start: int, size: int) -> Iterator[bytes]:
    for first in range(start - start % BUNDLE_ENTRIES, size, BUNDLE_ENTRIES):
        count = min(BUNDLE_ENTRIES, size - first)
        bundle = _parse_bundle(_read_bundle(directory, first // BUNDLE_ENTRIES, count), count)
        yield from islice(bundle, max(0, start - first), None)


def _read_bundle(directory: Path, number: int, count: int) -> bytes:
    """Read a bundle; a partial one may have been replaced by the full one, of which it is a prefix."""
    full = Path("tile/entries") / tile_path(number)
    partial = Path(f"{full}.p") / str(count)
    has_partial = count < BUNDLE_ENTRIES and (directory / partial).exists()
    return _read_inside(directory, partial if has_partial else full, BUNDLE_BYTES_MAX)


def _parse_bundle(bundle: bytes, count: int) -> Iterator[bytes]:
    """Yield the first `count` entries; a bundle ends exactly at an entry's end and has at most 256."""
    offset = entries = 0
    while offset < len(bundle):
        stop = offset + 2 + int.from_bytes(bundle[offset : offset + 2], "big")
        if stop > len(bundle) or offset + 2 > len(bundle) or entries == BUNDLE_ENTRIES:
            raise Malformed("an entry bundle ends inside an entry, or has more than 256")
        if entries < count:
            yield bundle[offset + 2 : stop]
        offset, entries = stop, entries + 1
    if entries < count:
        raise Malformed(f"an entry bundle has {entries} entries, {count} are needed")


def tile_path(number: int) -> str:
    """Return the C2SP spelling of a tile's number: 1234067 becomes x001/x234/067."""
    text = f"{number:03}"
    groups = [text[max(0, end - 3) : end].zfill(3) for end in range(len(text), 0, -3)][::-1]
    return "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])


def _read_inside(directory: Path, relative: Path, bytes_max: int) -> bytes:
    for part in [relative, *relative.parents][:-1]:
        if (directory / part).is_symlink():
            raise Malformed("a tile directory holds a symbolic link; they are refused")
    try:
        return read_bounded(directory / relative, bytes_max, _NO_LINK)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, NotRegular) as error:
        raise Malformed(f"the tile directory has no file {relative}") from error
