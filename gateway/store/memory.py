"""The reference engine: the promises of `contract.py` in plain dictionaries. For tests; nothing outlives the process.

The disk and the engine are two objects, so that a test can "restart": a new `MemoryStore` on the same `MemoryDisk`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gateway.errors import HeadMoved, StoreOwned
from gateway.store.contract import (
    Loaded,
    Locked,
    RecordChange,
    SignedBatch,
    StoredBatch,
    StoredCheckpoint,
    StoredEntry,
    StoredHead,
    Upkeep,
    node_position,
)


@dataclass(slots=True)
class MemoryDisk:
    """What survives a restart."""

    head: StoredHead | None = None
    is_clean: bool = True
    leaves: list[bytes] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    heads: list[StoredHead] = field(default_factory=list)
    signed: dict[int, SignedBatch] = field(default_factory=dict)
    records: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)
    is_owned: bool = False


class MemoryReader:
    """The reading half. It shows what is on the disk at the moment of the call."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def entries(self, start: int, stop: int) -> list[StoredEntry]:
        leaves = enumerate(self._disk.leaves[start:stop], start)
        return [StoredEntry(seq, leaf, self._signature(seq)) for seq, leaf in leaves]

    def _signature(self, seq: int) -> bytes | None:
        batch = self.batch_of(seq)
        signed = self._disk.signed.get(batch.size) if batch else None
        return signed.signatures[seq - batch.first_seq] if batch and signed else None

    def nodes(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        size, hashes = len(self._disk.leaves), self._disk.hashes
        return {
            (level, index): hashes[node_position(level, index)]
            for level, index in wanted
            if (index + 1) << level <= size
        }

    def batch_of(self, seq: int) -> StoredCheckpoint | None:
        at = bisect.bisect_right(self._disk.heads, seq, key=lambda head: head.size)
        return self._checkpoint(at) if at < len(self._disk.heads) else None

    def batch_at(self, size: int) -> StoredCheckpoint | None:
        found = self.batch_of(size - 1) if size > 0 else None
        return found if found and found.size == size else None

    def _checkpoint(self, at: int) -> StoredCheckpoint:
        heads = self._disk.heads
        head, first_seq = heads[at], heads[at - 1].size if at else 0
        signed = self._disk.signed.get(head.size)
        return StoredCheckpoint(first_seq, head.size, head.root, signed.note if signed else None)

    def last_note(self, size_max: int) -> bytes | None:
        sizes = [size for size in self._disk.signed if size <= size_max]
        return self._disk.signed[max(sizes)].note if sizes else None


class MemoryStore(MemoryReader):
    """A store in memory, owned by this object until `close`."""

    durability = "memory"

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        super().__init__(disk or MemoryDisk())
        if self._disk.is_owned:
            raise StoreOwned("this memory is in use by another store")
        self._disk.is_owned = True
        self._is_closed = False

    def load(self) -> Loaded:
        disk = self._disk
        unsigned = [at for at, head in enumerate(disk.heads) if head.size not in disk.signed]
        return Loaded(disk.head, disk.is_clean, tuple(self._checkpoint(at) for at in unsigned))

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for key in sorted(self._disk.records):
            if key.startswith(tuple(prefixes)):
                yield key, self._disk.records[key][0]

    def lock(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        self._expect(seen)
        found = {key: self._disk.records[key][0] for key in keys if key in self._disk.records}
        batches = {size: self.batch_at(size) for size in sizes}
        return Locked(found, {size: batch.root for size, batch in batches.items() if batch})

    def _expect(self, head: StoredHead | None) -> None:
        if head != self._disk.head:
            raise HeadMoved("the head in memory is not the expected one")

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        self._expect(expected)
        disk = self._disk
        disk.head, disk.is_clean = batch.head, False
        disk.leaves.extend(batch.leaves)
        disk.hashes.extend(batch.hashes)
        disk.heads.append(batch.head)
        self._keep(batch.signed, batch.changes)

    def _keep(self, signed: Sequence[SignedBatch], changes: Sequence[RecordChange]) -> None:
        for one in signed:
            self._disk.signed.setdefault(one.size, one)
        for key, value, due_ms in changes:
            if value is None:
                self._disk.records.pop(key, None)
            else:
                self._disk.records[key] = (value, due_ms)

    def landed(self, batch_id: str) -> bool:
        return any(head.batch_id == batch_id for head in self._disk.heads)

    def keep(self, upkeep: Upkeep) -> int:
        self._keep(upkeep.signed, upkeep.changes)
        due = sorted(
            (due_ms, key)
            for key, (_, due_ms) in self._disk.records.items()
            if due_ms is not None and due_ms <= upkeep.forget_due_ms and key.startswith(upkeep.forget_prefixes)
        )
        for _, key in due[: upkeep.forget_max]:
            del self._disk.records[key]
        if upkeep.is_closing:
            self._disk.is_clean = True
        return len(due[: upkeep.forget_max])

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._disk.is_owned = False
