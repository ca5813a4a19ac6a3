"""A copy of one ledger on our own disk, as a C2SP tile directory that `tallystick-verify ledger` reads, too.

House rules of this file:

* Nothing counts before its hashes give the root of a checkpoint that the log signed. A server that sends other bytes,
  or somebody between, must not be able to make the log look like a liar.
* The checkpoint is written last, in one step. What lies beyond it is of no account and is written over.
* What the disk says is hashed anew at each start, so a damaged copy is fetched again instead of being believed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from gateway.witness.fetch import Files, Unfetched
from keys.files import replace_file
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.merkle import leaf_hash, node_hash
from verifier.replay.source import BUNDLE_BYTES_MAX, BUNDLE_ENTRIES, open_source, tile_path
from verifier.replay.tree import fold
from verifier.wire import Malformed

_log = logging.getLogger("tallystick.witness")


class Differs(Exception):
    """The entries that are served do not give the root that the log signed."""


class Edge:
    """The right edge of a growing tree: 32 bytes for each complete subtree that the leaves so far split into."""

    def __init__(self, size: int = 0, nodes: tuple[bytes, ...] = ()) -> None:
        self.size = size
        self._nodes = list(nodes)

    @property
    def root(self) -> bytes:
        return fold(self._nodes)

    def append(self, leaf: bytes) -> None:
        index, node = self.size, leaf
        while index & 1:
            node = node_hash(self._nodes.pop(), node)
            index >>= 1
        self._nodes.append(node)
        self.size += 1

    def copy(self) -> Edge:
        return Edge(self.size, tuple(self._nodes))


class Mirror:
    """The copy in `folder`. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._edge = self._read_again()

    @property
    def size(self) -> int:
        """How many entries are here, hashed and signed for."""
        return self._edge.size

    def extend(self, note: bytes, files: Files) -> None:
        """Fetch what is missing up to the checkpoint `note`, which the log signed. Unfetched, or Differs; OSError."""
        checkpoint = parse_checkpoint(note)
        assert checkpoint.size >= self.size, "a mirror only grows"
        if (checkpoint.size, checkpoint.root) == (self.size, self._edge.root) and self.size:
            replace_file(self.folder / "checkpoint", note)  # perhaps with lines that the last one lacked
            return
        edge = self._edge.copy()
        for number in range(edge.size // BUNDLE_ENTRIES, -(-checkpoint.size // BUNDLE_ENTRIES)):
            count = min(BUNDLE_ENTRIES, checkpoint.size - number * BUNDLE_ENTRIES)
            here = self._bundle(number)
            new = _entries(_fetch(files, number, count), count)[len(here) :]
            for entry in new:
                edge.append(leaf_hash(entry))
            self._write(number, here + new)
        if edge.root != checkpoint.root:
            raise Differs(f"the {checkpoint.size} entries served do not give the root of the signed checkpoint")
        before, self._edge = self._edge, edge
        replace_file(self.folder / "checkpoint", note)
        if before.size % BUNDLE_ENTRIES and before.size != edge.size:
            _path(self.folder, before.size // BUNDLE_ENTRIES, before.size % BUNDLE_ENTRIES).unlink(missing_ok=True)

    def is_whole(self) -> bool:
        """Say whether the disk still holds what was written; otherwise begin anew."""
        self._edge, size = self._read_again(), self._edge.size
        return self._edge.size == size

    def _read_again(self) -> Edge:
        """Hash what is on the disk; begin anew unless it is what its checkpoint says."""
        if not (self.folder / "checkpoint").exists():
            return Edge()
        edge = Edge()
        try:
            checkpoint = parse_checkpoint((self.folder / "checkpoint").read_bytes())
            for entry in self._leaves():
                edge.append(leaf_hash(entry))
            if (edge.size, edge.root) == (checkpoint.size, checkpoint.root):
                return edge
        except (Malformed, OSError) as error:
            _log.error("a mirror can't be read: %s", error)
        _log.error("the mirror in %s is damaged and is fetched again", self.folder)
        shutil.rmtree(self.folder)
        self.folder.mkdir(mode=0o700)
        return Edge()

    def _leaves(self) -> Iterator[bytes]:
        with open_source(self.folder) as source:
            yield from source.leaves

    def _bundle(self, number: int) -> list[bytes]:
        """Return the entries of a bundle that are here already: those of the last one, if it is not full."""
        count = self.size - number * BUNDLE_ENTRIES
        return _entries(_path(self.folder, number, count).read_bytes(), count) if count > 0 else []

    def _write(self, number: int, entries: list[bytes]) -> None:
        """Write a bundle beside the narrower one that the present checkpoint needs."""
        path = _path(self.folder, number, len(entries))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries))


def _path(folder: Path, number: int, count: int) -> Path:
    return folder / f"tile/entries/{tile_path(number)}{'' if count == BUNDLE_ENTRIES else f'.p/{count}'}"


def _fetch(files: Files, number: int, count: int) -> bytes:
    """Get a bundle; a log may have dropped a partial one once the full one exists."""
    path = f"tile/entries/{tile_path(number)}"
    bundle = files.get(f"{path}.p/{count}", BUNDLE_BYTES_MAX) if count < BUNDLE_ENTRIES else None
    bundle = files.get(path, BUNDLE_BYTES_MAX) if bundle is None else bundle
    if bundle is None:
        raise Unfetched(f"the ledger has no {path} with {count} entries")
    return bundle


def _entries(bundle: bytes, count: int) -> list[bytes]:
    """Return the first `count` entries of a bundle, each preceded by its length as two big-endian bytes."""
    entries: list[bytes] = []
    offset = 0
    while offset + 2 <= len(bundle) and len(entries) < count:
        stop = offset + 2 + int.from_bytes(bundle[offset : offset + 2], "big")
        entries.append(bundle[offset + 2 : stop])
        offset = stop
    if len(entries) < count or offset > len(bundle):
        raise Unfetched(f"a bundle ends inside an entry, or has fewer than {count}")
    return entries


def checkpoint_of(folder: Path) -> Checkpoint | None:
    """Return the checkpoint of a mirror as it lies; None without one."""
    try:
        return parse_checkpoint((folder / "checkpoint").read_bytes())
    except (OSError, Malformed):
        return None
