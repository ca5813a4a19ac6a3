"""The rooms that handlers may ask, and the constants that their answers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.core.waitview import Shelf
from gateway.ledger.sequencer import Sequencer
from gateway.service import Desk, Ledger, WallClock
from gateway.signer import Signer
from gateway.web.limits import Buckets
from gateway.web.reads import ReadThread
from gateway.web.scenes import Scenes

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
BYTES = "application/octet-stream"
FOREVER = "public, max-age=31536000, immutable"
PRIVATE = "private, no-store"


@dataclass(frozen=True, slots=True)
class House:
    """The rooms a handler may ask. `published` maps a path to its content type and bytes."""

    ledger: Ledger
    desk: Desk
    sequencer: Sequencer
    signer: Signer
    clock: WallClock
    reads: ReadThread
    reports: Buckets
    all_reports: Buckets
    pictures: Buckets
    scenes: Scenes
    published: Mapping[str, tuple[str, bytes]]
    body_seconds: float
    shelf: Shelf
    is_draining: Callable[[], bool]

    @property
    def cache(self) -> str:
        """Return Cache-Control of what entries say: never kept by anybody, and on a members' ledger nobody else's."""
        return "no-store" if self.ledger.is_public else PRIVATE
