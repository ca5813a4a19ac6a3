"""A database that keeps the promises of `gateway/store/contract.py` in the least comfortable way.

One `Database` is the disk (and its stand-by); a `Connection` is what one process has of it. A commit has one of four
fates: acknowledged; durable, but the acknowledgement is lost; lost before it began; visible and not replicated, so that
a fail-over takes it away again. What was acknowledged is durable, always. What a server with a stand-by does besides
(locks, sessions, fail-over) is in `server.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from random import Random
from typing import Any, Protocol

from gateway.errors import Busy, HeadMoved, Unknown
from gateway.store.contract import Loaded, Locked, StoredBatch, StoredHead, Upkeep
from gateway.store.memory import MemoryDisk, MemoryStore

Told = Callable[[int, Sequence[bytes], int, int], None]


class Chances(Protocol):
    """Says whether a fault happens now."""

    def chance(self, fault: str) -> bool: ...


class Time(Protocol):
    """True time, and what happens later."""

    @property
    def now_ms(self) -> int: ...
    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any: ...


class Still:
    """Time that stands still: nothing happens later."""

    now_ms = 0

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        return None


def copy_of(disk: MemoryDisk) -> MemoryDisk:
    """Return the disk as it is now; what is on it never changes, so lists and tables are copied flat."""
    twin = copy(disk)
    twin.leaves, twin.hashes, twin.heads = list(disk.leaves), list(disk.hashes), list(disk.heads)
    twin.signed, twin.records, twin.changes = dict(disk.signed), dict(disk.records), list(disk.changes)
    return twin


class Database:
    """One file, and what somebody may put in its place.

    `told` hears of each batch when it is durable: its first number, its leaves, when in true time it was decided, and
    the number of the process that did.
    """

    def __init__(self, chances: Chances, rng: Random, told: Told, time: Time | None = None) -> None:
        self.disk = MemoryDisk()
        self._writer = MemoryStore(self.disk)
        self.is_failing = False
        self.time: Time = Still() if time is None else time
        self.rng = rng
        self._chances = chances
        self._told = told
        self._owed: list[tuple[int, Sequence[bytes], int, int]] = []
        self._newest: MemoryDisk | None = None  # set while an older file lies in the place of the ledger
        self._backup: MemoryDisk | None = None

    def chance(self, fault: str) -> bool:
        return self._chances.chance(fault)

    def write(self, batch: StoredBatch, connection: Connection, *, is_durable: bool = True) -> None:
        """Put a batch on the disk; the head was compared before."""
        first_seq = len(self.disk.leaves)
        self._writer.commit(batch, self.disk.head)
        self._owed.append((first_seq, batch.leaves, *connection.decided()))
        if is_durable:
            self.barrier()

    def barrier(self) -> None:
        """All that is visible is durable from now on."""
        owed, self._owed = self._owed, []
        for batch in owed:
            self._told(*batch)

    # -- an older file ------------------------------------------------------------------------------------------------

    def back_up(self) -> None:
        self.barrier()
        self._backup = copy_of(self.disk)

    def put_older_file(self) -> bool:
        """Put the back-up in place of the ledger, as a careless restore would."""
        if self._backup is None or self._newest is not None or len(self._backup.leaves) == len(self.disk.leaves):
            return False
        self.barrier()
        self._newest = copy_of(self.disk)
        self.put(copy_of(self._backup))
        return True

    def put_newest_file(self) -> None:
        """Bring the ledger back; a person does so before a gateway is started again."""
        if self._newest is not None:
            self._owed = []
            self.put(self._newest)
            self._newest = None

    @property
    def is_older(self) -> bool:
        return self._newest is not None

    def put(self, other: MemoryDisk) -> None:
        """Make the disk be another one; connections keep looking at the same object."""
        disk = self.disk
        disk.head, disk.is_clean = other.head, other.is_clean
        disk.leaves, disk.hashes, disk.heads = other.leaves, other.hashes, other.heads
        disk.signed, disk.records, disk.changes = other.signed, other.records, other.changes


class Connection(MemoryStore):
    """One process's store. `decided` says when in true time its call was handed over, and the process's number."""

    durability = "replicated"
    decided: Callable[[], tuple[int, int]] = staticmethod(lambda: (0, 0))
    is_shared = False

    def __init__(self, database: Database) -> None:
        database.disk.is_owned = False  # whoever may connect does; that two can is what the head is compared for
        super().__init__(database.disk)
        self._database = database

    def load(self) -> Loaded:
        if self._database.chance("load_busy"):
            raise Busy("no connection")
        return super().load()

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        yield from list(super().records(prefixes))

    def lock(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        if self._database.chance("lock_busy"):
            raise Busy("the head is locked")
        if seen != self._database.disk.head:
            raise HeadMoved("the head is another one")
        return self.look(keys, sizes)

    def unlock(self) -> None:
        """Nobody waits for the head of a file."""

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        database = self._database
        if database.is_failing or self.is_lost(batch):
            raise Unknown("the connection broke before the commit")
        if database.chance("busy"):
            raise Busy("disk full")
        self._expect(expected)
        database.write(batch, self)
        if self.is_kept(batch):
            raise Unknown("the connection broke after the commit")

    def is_lost(self, batch: StoredBatch) -> bool:
        return self._database.chance("lost") or (_is_key(batch) and self._database.chance("key_lost"))

    def is_kept(self, batch: StoredBatch) -> bool:
        return self._database.chance("kept") or (_is_key(batch) and self._database.chance("key_kept"))

    def _expect(self, head: StoredHead | None) -> None:
        if head != self._database.disk.head:
            raise HeadMoved("the head is not the expected one")

    def keep(self, upkeep: Upkeep) -> int:
        if self._database.is_failing or self._database.chance("keep_fails"):
            raise Unknown("the connection broke")
        self._database.barrier()
        return super().keep(upkeep)

    def abandon(self, jobs: Sequence[Callable[[], Any]]) -> None:
        """The process is killed before it began these calls; who has a file can do nothing any more."""

    def close(self) -> None:
        """A process that ends leaves the disk to whoever has it."""


def _is_key(batch: StoredBatch) -> bool:
    return any(b'"type":"tallystick/key.' in leaf for leaf in batch.leaves)


def commit_of(jobs: Sequence[Callable[[], Any]]) -> tuple[StoredBatch, StoredHead | None] | None:
    """Return the batch of a commit among calls, and the head that it expects."""
    for job in jobs:
        if isinstance(job, partial) and getattr(job.func, "__name__", "") == "commit":
            return job.args[0], job.args[1]
    return None
