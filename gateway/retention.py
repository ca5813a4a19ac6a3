"""What the published retention policy lets a gateway and its static copies deny: old entry bundles, and nothing else.

Deny rather than delete: the database keeps every entry, and hash tiles stay everywhere, so that proofs go on working.
Source: docs/protocol.md 13.7; docs/adr/0044.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from gateway.export import ExportError, TileFolder
from gateway.web.tiles import TILE_WIDTH, Tile
from keys.retention import RETENTION_FILE, Retention, parse_retention
from verifier.note import parse_vkey
from verifier.wire import TEXT_BYTES_MAX, Malformed

_log = logging.getLogger("tallystick.retention")
__all__ = ["RETENTION_FILE", "Retained", "Retention", "open_retention", "prune"]


def open_retention(public: Path) -> Retention | None:
    """Return the policy in a published folder; None without one. Malformed when it is not signed by the root there."""
    try:
        with open(public / RETENTION_FILE, "rb") as file:
            note = file.read(TEXT_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    return parse_retention(note, parse_vkey((public / "root.vkey").read_text("ascii").strip()))


class Retained:
    """The policy as a running gateway follows it: read again whenever the file is another one."""

    def __init__(self, public: Path, genesis: bytes) -> None:
        self._public, self._genesis = public, genesis
        self._seen: tuple[int, int] | None = None
        self._minimum = 0

    def denies(self, tile: Tile) -> bool:
        """Say whether this bundle lies wholly below the published minimum."""
        return tile.level is None and tile.is_full and tile.start + TILE_WIDTH <= self.minimum()

    def minimum(self) -> int:
        """Return the published minimum index; 0 without a policy of this ledger."""
        try:
            status = os.stat(self._public / RETENTION_FILE)
        except OSError:
            self._seen, self._minimum = None, 0
            return 0
        now = (status.st_mtime_ns, status.st_ino)
        if now != self._seen:
            self._seen, self._minimum = now, self._read()
        return self._minimum

    def _read(self) -> int:
        try:
            retention = open_retention(self._public)
        except Malformed as error:
            _log.error("the published retention policy is not followed: %s", error)
            return 0
        return retention.minimum if retention is not None and retention.genesis == self._genesis else 0


def prune(folder: Path, retention: Retention, below: int) -> tuple[int, int]:
    """Remove full bundles of a static copy that end at or below both bounds; return how many, and up to where.

    That they are gone on purpose is written down first, so that the next export does not bring them back.
    """
    copy = TileFolder(folder)
    held = copy.checkpoint()
    if held is None or held.origin != retention.origin:
        raise ExportError(f"{folder} holds no tiles of {retention.origin}; nothing was removed")
    end = min(below, retention.minimum, held.size) // TILE_WIDTH * TILE_WIDTH
    if end <= 0:
        bound = f"the copy's size is {held.size}, the policy's minimum {retention.minimum}, --below {below}"
        raise ExportError(f"no full bundle of {TILE_WIDTH} entries in {folder} ends at or below all bounds: {bound}")
    return copy.drop_below(end), end
