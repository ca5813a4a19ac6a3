"""The folder in which an audit keeps where it stands: what it knows in one file, the tree's nodes in another.

House rules. A position is written only after the check: to a new file, to the disk, under its name, to the disk; so an
audit that is killed at any moment leaves an older one, never half of one. `position` was confirmed by a checkpoint that
the log signed; `unfinished` is on the way to the next such, and is given up when anything is found that is invalid.
Nodes are written before the position that counts them; those beyond it are cut off when it is opened.
Source: docs/protocol.md 17.7.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

from verifier.keyring import Keyring
from verifier.merkle import HASH_BYTES
from verifier.replay.audit import Audit
from verifier.replay.kept import BEGIN_ANEW, PositionRefused
from verifier.replay.position import read_position, restored, write_position
from verifier.replay.source import open_regular
from verifier.replay.tree import Tree, node_count

SAVE_ENTRIES = 65_536  # between two positions on the way
SAVE_BYTES_PER_ENTRY = 512  # a large position is saved more rarely, so that saving stays a small part of the work
_POSITION, _UNFINISHED = "position", "unfinished"


class Folder:
    """The folder of one audit, locked while it is open."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._nodes = _open_nodes(path / "nodes")
        self._saved_at = 0  # entries
        self._bytes = 0  # of the last position saved

    def open_audit(self, keyring: Keyring) -> Audit:
        """Return the audit as it was saved last; a new one when nothing was. PositionRefused, OSError."""
        saved = [self._path / name for name in (_UNFINISHED, _POSITION) if (self._path / name).exists()]
        if not saved:
            return Audit(keyring, self._tree(0))
        with open_regular(saved[0], os.O_NOFOLLOW) as file:
            head, members = read_position(file, keyring)
        tree, self._saved_at = self._tree(head.size), head.size
        if tree.root() != head.tree_root:
            raise PositionRefused(f"the file of tree nodes does not fit the saved position: {BEGIN_ANEW}")
        return restored(Audit(keyring, tree, origin=head.origin, genesis=head.genesis), members)

    def _tree(self, size: int) -> Tree:
        """Return the tree of the first nodes in the file; those of a reading that was not saved are cut off."""
        bytes_needed = node_count(size) * HASH_BYTES
        if os.fstat(self._nodes.fileno()).st_size < bytes_needed:
            raise PositionRefused(f"the file of tree nodes is shorter than the saved position says: {BEGIN_ANEW}")
        self._nodes.truncate(bytes_needed)
        return Tree(self._nodes, size)

    def save_if_due(self, audit: Audit) -> None:
        """Save a position on the way, if the last one is long ago."""
        if audit.tree.size - self._saved_at >= max(SAVE_ENTRIES, self._bytes // SAVE_BYTES_PER_ENTRY):
            self._write(audit, _UNFINISHED)

    def save(self, audit: Audit) -> None:
        """Save a position that a checkpoint of the log confirms."""
        if audit.tree.size:
            self._write(audit, _POSITION)

    def fall_back(self) -> None:
        """Forget what is on the way."""
        (self._path / _UNFINISHED).unlink(missing_ok=True)

    def close(self) -> None:
        self._nodes.close()

    def _write(self, audit: Audit, name: str) -> None:
        audit.tree.flush()
        os.fsync(self._nodes.fileno())
        new = self._path / f"{name}.new"
        with open(new, "wb") as file:
            self._bytes = write_position(file, audit)
            file.flush()
            os.fsync(file.fileno())
        if name == _POSITION:
            self.fall_back()  # before, so that the file that is looked at first is never the older one
        new.replace(self._path / name)
        _sync_folder(self._path)
        self._saved_at = audit.tree.size


def _open_nodes(path: Path) -> FileIO:
    """Open the file of nodes, made if it is not there, for this process alone."""
    from fcntl import LOCK_EX, LOCK_NB, flock  # here, because the rest of the verifier runs where there is none

    nodes = FileIO(path, "r+", opener=lambda name, flags: os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    try:
        flock(nodes.fileno(), LOCK_EX | LOCK_NB)
    except BlockingIOError as error:
        nodes.close()
        raise PositionRefused("another audit uses this folder") from error
    return nodes


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
