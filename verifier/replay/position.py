"""Where an audit stands, on disk."""

from __future__ import annotations

from pathlib import Path

from verifier.keyring import Keyring
from verifier.replay.audit import Audit


class PositionRefused(ValueError):
    """A saved position that must not be gone on from. The text says why, and what to do."""


class Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open_audit(self, keyring: Keyring) -> Audit:
        return Audit(keyring)

    def save_if_due(self, audit: Audit) -> None:
        return

    def save(self, audit: Audit) -> None:
        return

    def fall_back(self) -> None:
        return

    def close(self) -> None:
        return
