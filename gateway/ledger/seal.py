"""The seal over the hot records: who changes, adds or deletes one behind our back is noticed at the next start.

The head carries a keyed hash of its size, its root, and the sum over all hot records of a keyed hash of each. A sum,
because a batch then costs one hash for each record it touches, however many there are; keyed, because who can write
the file could otherwise make the sum fit (and sums of plain hashes collide cheaply). It is written in the transaction
of its batch, so it holds after a crash as well.

What no longer counts (a refusal, an ended session) may be dropped by the store at any time; it leaves the sum when log
time reaches its due time, whether or not it was dropped.

The key is a signature, by a key made for nothing else, that never leaves the process. Keys that sign for the ledger are
changed one day, this one is not: no reader knows it, and who steals it can write the file anyway.
Why not the cold records: they grow with traffic, and a start must not. Source: docs/adr/0024.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.record_keys import COLD_PREFIXES
from gateway.store.contract import RecordChange

SUM_BYTES = 32
_MODULUS = 1 << 8 * SUM_BYTES


@dataclass(frozen=True, slots=True)
class Sealing:
    """The sum after a batch, what each touched record adds to it from then on, and the batch's log time."""

    total: int
    parts: dict[str, int]
    fading: list[tuple[int, str, int]]
    time_ms: int


class Seal:
    """The sum at the head. `after` looks ahead and changes nothing; `take` follows when the batch is committed."""

    __slots__ = ("_fading", "_mark", "_part", "_parts", "_total")

    def __init__(self, key: bytes, records: Iterable[RecordChange] = (), time_ms: int = 0) -> None:
        """Add up the hot records of a head at `time_ms`; cold ones and those that no longer count are passed over."""
        self._part = hashlib.blake2b(digest_size=SUM_BYTES, key=key, person=b"record")
        self._mark = hashlib.blake2b(digest_size=SUM_BYTES, key=key, person=b"head")
        self._total = 0
        self._parts: dict[str, int] = {}
        self._fading: list[tuple[int, str, int]] = []  # (due time, key, its part); older parts of a key are skipped
        self.take(self.after(tuple(records), time_ms))

    def after(self, changes: Sequence[RecordChange], time_ms: int) -> Sealing:
        """Return the sum after `changes` at `time_ms`."""
        total = self._total
        parts: dict[str, int] = {}
        fading: list[tuple[int, str, int]] = []
        for key, value, due_ms in changes:
            if key.startswith(COLD_PREFIXES):
                continue
            part = 0 if value is None or (due_ms is not None and due_ms <= time_ms) else self._hash(key, value)
            total += part - parts.get(key, self._parts.get(key, 0))
            parts[key] = part
            if part and due_ms is not None:
                fading.append((due_ms, key, part))
        for _, key, part in self._faded(time_ms):
            if key not in parts and self._parts.get(key) == part:
                parts[key] = 0
                total -= part
        return Sealing(total % _MODULUS, parts, fading, time_ms)

    def _faded(self, time_ms: int) -> list[tuple[int, str, int]]:
        """Return what falls due until `time_ms`; it stays, for the batch may yet fail and another come earlier."""
        faded = []
        while self._fading and self._fading[0][0] <= time_ms:
            faded.append(heapq.heappop(self._fading))
        for one in faded:
            heapq.heappush(self._fading, one)
        return faded

    def _hash(self, key: str, value: bytes) -> int:
        name, part = key.encode(), self._part.copy()
        part.update(b"%d %b%b" % (len(name), name, value))
        return int.from_bytes(part.digest(), "big")

    def take(self, sealing: Sealing) -> None:
        """Count in a batch that was committed."""
        while self._fading and self._fading[0][0] <= sealing.time_ms:
            heapq.heappop(self._fading)
        for key, part in sealing.parts.items():
            if part:
                self._parts[key] = part
            else:
                self._parts.pop(key, None)
        for one in sealing.fading:
            heapq.heappush(self._fading, one)
        self._total = sealing.total
        if len(self._fading) > 1_024 + 4 * len(self._parts):
            self._fading = [one for one in set(self._fading) if self._parts.get(one[1]) == one[2]]
            heapq.heapify(self._fading)

    def mark(self, size: int, root: bytes, total: int | None = None) -> bytes:
        """Return what a head of `size` and `root` carries, over `total` or over the sum as it stands."""
        mark = self._mark.copy()
        mark.update(b"%d %b" % (size, root) + (self._total if total is None else total).to_bytes(SUM_BYTES, "big"))
        return mark.digest()
