"""The reference engine: the promises of `contract.py` in plain dictionaries. For tests; nothing outlives the process.

The disk and the engine are two objects, so that a test can "restart": a new `MemoryStore` on the same `MemoryDisk`. A
disk that `is_shared` may have several engines at a time, one for each node; `wall_ms` is its own clock then.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gateway.errors import Busy, HeadMoved, StoreOwned
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
    node_count,
    node_position,
)

LOCK_SECONDS = 2.0
BATCHES_MAX = 1_024  # that `lock` and `news` tell at once


@dataclass(slots=True)
class MemoryDisk:
    """What survives a restart. `changes` are those of each batch, in the order of `heads`."""

    head: StoredHead | None = None
    is_clean: bool = True
    leaves: list[bytes] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    heads: list[StoredHead] = field(default_factory=list)
    signed: dict[int, SignedBatch] = field(default_factory=dict)
    records: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)
    is_owned: bool = False
    is_shared: bool = False
    changes: list[tuple[RecordChange, ...]] = field(default_factory=list)
    head_lock: threading.Lock = field(default_factory=threading.Lock)
    mutex: threading.RLock = field(default_factory=threading.RLock)  # for what must be seen whole
    hints: list[Callable[[], None]] = field(default_factory=list)
    wall_ms: Callable[[], int] | None = None

    def frozen(self) -> MemoryDisk:
        """Return the disk as it is now; what is on it never changes, so lists and tables are copied flat."""
        with self.mutex:
            return replace(
                self, leaves=[*self.leaves], hashes=[*self.hashes], heads=[*self.heads], changes=[*self.changes],
                signed={**self.signed}, records={**self.records},
            )  # fmt: skip


class MemoryReader:
    """The reading half. It shows what is on the disk at the moment of the call."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._read = disk

    def entries(self, start: int, stop: int) -> list[StoredEntry]:
        leaves = enumerate(self._read.leaves[start:stop], start)
        return [StoredEntry(seq, leaf, self._signature(seq)) for seq, leaf in leaves]

    def _signature(self, seq: int) -> bytes | None:
        batch = self.batch_of(seq)
        signed = self._read.signed.get(batch.size) if batch else None
        return signed.signatures[seq - batch.first_seq] if batch and signed else None

    def nodes(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        size, hashes = len(self._read.leaves), self._read.hashes
        return {
            (level, index): hashes[node_position(level, index)]
            for level, index in wanted
            if (index + 1) << level <= size
        }

    def batch_of(self, seq: int) -> StoredCheckpoint | None:
        at = bisect.bisect_right(self._read.heads, seq, key=lambda head: head.size)
        return self._checkpoint(at) if at < len(self._read.heads) else None

    def batch_at(self, size: int) -> StoredCheckpoint | None:
        found = self.batch_of(size - 1) if size > 0 else None
        return found if found and found.size == size else None

    def _checkpoint(self, at: int) -> StoredCheckpoint:
        heads = self._read.heads
        head, first_seq = heads[at], heads[at - 1].size if at else 0
        signed = self._read.signed.get(head.size)
        return StoredCheckpoint(first_seq, head.size, head.root, signed.note if signed else None)

    def last_note(self, size_max: int) -> bytes | None:
        sizes = [size for size in self._read.signed if size <= size_max]
        return self._read.signed[max(sizes)].note if sizes else None


class MemoryStore(MemoryReader):
    """A store in memory, owned by this object until `close`."""

    durability = "memory"

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self._disk = disk or MemoryDisk()
        super().__init__(self._disk)
        if self._disk.is_owned and not self._disk.is_shared:
            raise StoreOwned("this memory is in use by another store")
        self._disk.is_owned = True
        self._is_closed = False
        self._has_head = False

    @property
    def is_shared(self) -> bool:
        return self._disk.is_shared

    def load(self) -> Loaded:
        if self._disk.is_shared:
            self._read = self._disk.frozen()
        return Loaded(self._read.head, self._read.is_clean, self.unsigned())

    def unsigned(self) -> tuple[StoredCheckpoint, ...]:
        disk = self._read
        return tuple(self._checkpoint(at) for at, head in enumerate([*disk.heads]) if head.size not in disk.signed)

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for key in sorted(self._read.records):
            if key.startswith(tuple(prefixes)):
                yield key, self._read.records[key][0]

    def lock(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        self.unlock()
        if not self._disk.head_lock.acquire(timeout=LOCK_SECONDS):
            raise Busy("store_busy")
        self._has_head = True
        self._read = disk = self._disk
        try:
            moved = () if seen == disk.head else self._since(seen)
            if moved and moved[-1].head != disk.head:
                raise HeadMoved("too much was written since")
        except HeadMoved:
            self.unlock()
            raise
        return replace(self.look(keys, sizes), moved=moved, wall_ms=disk.wall_ms() if disk.wall_ms else None)

    def look(self, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        found = {key: self._disk.records[key][0] for key in keys if key in self._disk.records}
        batches = {size: self.batch_at(size) for size in sizes}
        return Locked(found, {size: batch.root for size, batch in batches.items() if batch})

    def unlock(self) -> None:
        if self._has_head:
            self._has_head = False
            self._disk.head_lock.release()

    def news(self, seen: StoredHead) -> tuple[StoredBatch, ...]:
        return self._since(seen) if self._disk.is_shared else ()

    def listen(self, hint: Callable[[], None]) -> None:
        if self._disk.is_shared:
            self._disk.hints.append(hint)

    def confirm(self) -> None:
        """What is seen is on the disk."""

    def _since(self, seen: StoredHead | None) -> tuple[StoredBatch, ...]:
        """Return the batches after `seen`, which must be one of ours."""
        disk = self._disk
        with disk.mutex:
            if seen is None or not disk.is_shared or seen not in disk.heads:
                raise HeadMoved("the head in memory is not the expected one")
            first = disk.heads.index(seen) + 1
            return tuple(self._batch(at) for at in range(first, min(len(disk.heads), first + BATCHES_MAX)))

    def _batch(self, at: int) -> StoredBatch:
        disk = self._disk
        head, before = disk.heads[at], disk.heads[at - 1]
        hashes = disk.hashes[node_count(before.size) : node_count(head.size)]
        return StoredBatch(head, tuple(disk.leaves[before.size : head.size]), tuple(hashes), disk.changes[at])

    def _expect(self, head: StoredHead | None) -> None:
        if head != self._disk.head:
            raise HeadMoved("the head in memory is not the expected one")

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        disk = self._disk
        try:
            with disk.mutex:
                self._expect(expected)
                disk.head, disk.is_clean = batch.head, False
                disk.leaves.extend(batch.leaves)
                disk.hashes.extend(batch.hashes)
                disk.heads.append(batch.head)
                disk.changes.append(batch.changes)
                self._keep(batch.signed, batch.changes)
        finally:
            self.unlock()
        for hint in disk.hints:
            hint()

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
        with self._disk.mutex:
            return self._do_upkeep(upkeep)

    def _do_upkeep(self, upkeep: Upkeep) -> int:
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
        self.unlock()
        if not self._is_closed:
            self._is_closed = True
            self._disk.is_owned = False
