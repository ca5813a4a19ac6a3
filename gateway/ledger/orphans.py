"""Batches that nobody keeps the signatures of, because the node that wrote them is dead.

Each node signs its own batches and keeps that with its next one, so the newest of each is without for a moment. One
that stays without is signed by whoever notices: the bytes are the same, whoever makes them (docs/adr/0058).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from gateway.ledger.answers import Confirmed
from gateway.ledger.checkpoint import sign_orphan
from gateway.signer import Signer
from gateway.store.contract import Reading, SignedBatch, StoredCheckpoint

LOOK_MS = 5_000
ORPHAN_MS = 10_000
LOT_MAX = 16  # batches signed in one call of the commit thread: at most about a quarter of a second


class Orphans:
    """Remembers since when each batch is known to be unsigned. `due` tells those to sign; times are boot time in ms."""

    def __init__(self) -> None:
        self._since_ms: dict[int, int] = {}
        self._looked_ms: int | None = None

    def is_time(self, now_ms: int) -> bool:
        """Say whether the store should be asked again."""
        return self._looked_ms is None or now_ms - self._looked_ms >= LOOK_MS

    def due(
        self, unsigned: Sequence[StoredCheckpoint], own: Collection[int], size_max: int, now_ms: int
    ) -> list[StoredCheckpoint]:
        """Note what is unsigned now, up to `size_max`; return what has been for long, but for `own`, newest first."""
        self._looked_ms = now_ms
        found = {one.size: one for one in unsigned if one.size <= size_max and one.size not in own}
        self._since_ms = {size: self._since_ms.get(size, now_ms) for size in found}
        late = (size for size, since_ms in self._since_ms.items() if now_ms - since_ms >= ORPHAN_MS)
        return [found[size] for size in sorted(late, reverse=True)]


def sign_lot(
    read: Reading, signer: Signer, batches: Sequence[StoredCheckpoint], confirmed: Confirmed
) -> list[SignedBatch]:
    """Sign batches again that lie within a confirmed tree. Blocking. Fatal when one does not."""
    return [sign_orphan(signer, read, batch, confirmed.size, confirmed.root) for batch in batches]


def lots(
    read: Reading, signer: Signer, batches: Sequence[StoredCheckpoint], confirmed: Confirmed
) -> list[Callable[[], list[SignedBatch]]]:
    """Return the calls that sign `batches`, each of them short."""
    return [
        partial(sign_lot, read, signer, batches[at : at + LOT_MAX], confirmed) for at in range(0, len(batches), LOT_MAX)
    ]
