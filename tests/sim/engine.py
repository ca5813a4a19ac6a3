"""A database that keeps the promises of `gateway/store/contract.py` in the least comfortable way.

One `Database` is the disk (and its stand-by); a `Connection` is what one process has of it, and any number of them may
write. A commit has one of four fates: acknowledged; durable, but the acknowledgement is lost; lost before it began;
visible and not replicated, so that a fail-over takes it away again. What was acknowledged is durable, always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from random import Random
from typing import Protocol

from gateway.errors import Busy, Unknown
from gateway.store.contract import Loaded, Locked, StoredBatch, StoredHead, Upkeep
from gateway.store.memory import MemoryDisk, MemoryStore

Told = Callable[[int, Sequence[bytes], int, int], None]


class Chances(Protocol):
    """Says whether a fault happens now."""

    def chance(self, fault: str) -> bool: ...


def copy_of(disk: MemoryDisk) -> MemoryDisk:
    """Return the disk as it is now; what is on it never changes, so lists and tables are copied flat."""
    twin = copy(disk)
    twin.leaves, twin.hashes, twin.heads = list(disk.leaves), list(disk.hashes), list(disk.heads)
    twin.signed, twin.records = dict(disk.signed), dict(disk.records)
    return twin


class Database:
    """The primary's disk, and what a stand-by would come up with.

    `told` hears of each batch when it is durable: its first number, its leaves, when in true time it was decided, and
    the number of the process that did.
    """

    def __init__(self, chances: Chances, rng: Random, told: Told, *, is_replicated: bool) -> None:
        self.disk = MemoryDisk()
        self.is_replicated = is_replicated
        self.is_failing = False
        self._chances = chances
        self._rng = rng
        self._told = told
        self._standby: MemoryDisk | None = None  # None: the stand-by has everything
        self._owed: list[tuple[int, Sequence[bytes], int, int]] = []
        self._newest: MemoryDisk | None = None  # set while an older file lies in the place of the ledger
        self._backup: MemoryDisk | None = None

    def connect(self) -> Connection:
        self.disk.is_owned = False  # whoever may connect does; that two can is what the head is compared for
        return Connection(self)

    # -- what happens to databases ------------------------------------------------------------------------------------

    def chance(self, fault: str) -> bool:
        return self._chances.chance(fault)

    def write(self, batch: StoredBatch, connection: Connection, *, is_durable: bool) -> None:
        """Take over a batch that was compared with the head."""
        first_seq = len(self.disk.leaves)
        if not is_durable and self._standby is None:
            self._standby = copy_of(self.disk)
        connection.write(batch)
        self._owed.append((first_seq, batch.leaves, *connection.decided()))
        if is_durable:
            self.barrier()

    def barrier(self) -> None:
        """Return when the stand-by has everything."""
        self._standby = None
        owed, self._owed = self._owed, []
        for batch in owed:
            self._told(*batch)

    def fail_over(self) -> bool:
        """Let the stand-by take over; say whether anything visible went away with the primary."""
        standby, self._standby = self._standby, None
        self._owed = []
        if standby is None:
            return False
        self._put(standby)
        return True

    def back_up(self) -> None:
        self.barrier()
        self._backup = copy_of(self.disk)

    def put_older_file(self) -> bool:
        """Put the back-up in place of the ledger, as a careless restore would."""
        if self._backup is None or self._newest is not None or len(self._backup.leaves) == len(self.disk.leaves):
            return False
        self.barrier()
        self._newest = copy_of(self.disk)
        self._put(copy_of(self._backup))
        return True

    def put_newest_file(self) -> None:
        """Bring the ledger back; a person does so before a gateway is started again."""
        if self._newest is not None:
            self._standby, self._owed = None, []
            self._put(self._newest)
            self._newest = None

    @property
    def is_older(self) -> bool:
        return self._newest is not None

    def _put(self, other: MemoryDisk) -> None:
        """Make the disk be another one; connections keep looking at the same object."""
        disk = self.disk
        disk.head, disk.is_clean = other.head, other.is_clean
        disk.leaves, disk.hashes, disk.heads = other.leaves, other.hashes, other.heads
        disk.signed, disk.records = other.signed, other.records

    def barrier_or_not(self) -> None:
        """The end of an unclear commit: it reaches the stand-by, or the stand-by has taken over, or nobody knows."""
        if self._standby is None:
            return
        if self.chance("fail_over"):
            self.fail_over()
        elif self.chance("unreachable"):
            raise Busy("the primary is not reached")
        else:
            self.barrier()


class Connection(MemoryStore):
    """One process's store. `decided` says when in true time its call was handed over, and the process's number."""

    durability = "replicated"
    decided: Callable[[], tuple[int, int]] = staticmethod(lambda: (0, 0))

    def __init__(self, database: Database) -> None:
        super().__init__(database.disk)
        self._database = database

    def load(self) -> Loaded:
        if self._database.chance("load_busy"):
            raise Busy("no connection")
        self._database.barrier_or_not()
        return super().load()

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        yield from list(super().records(prefixes))

    def lock(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        if self._database.chance("lock_busy"):
            raise Busy("the head is locked")
        return super().lock(seen, keys, sizes)

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        try:
            self._commit(batch, expected)
        finally:
            self.unlock()

    def _commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        database = self._database
        is_key = any(b'"type":"tallystick/key.' in leaf for leaf in batch.leaves)
        if database.is_failing or database.chance("lost") or (is_key and database.chance("key_lost")):
            raise Unknown("the connection broke before the commit")
        if database.chance("busy"):
            raise Busy("disk full")
        self._expect(expected)
        if database.is_replicated and database.chance("unreplicated"):
            database.write(batch, self, is_durable=False)
            raise Unknown("cancelled while waiting for the stand-by")
        database.write(batch, self, is_durable=True)
        if database.chance("kept") or (is_key and database.chance("key_kept")):
            raise Unknown("the connection broke after the commit")

    def write(self, batch: StoredBatch) -> None:
        """Put the batch on the disk; the head was compared before."""
        super().commit(batch, self._disk.head)

    def landed(self, batch_id: str) -> bool:
        self._database.barrier_or_not()
        return super().landed(batch_id)

    def keep(self, upkeep: Upkeep) -> int:
        if self._database.is_failing or self._database.chance("keep_fails"):
            raise Unknown("the connection broke")
        self._database.barrier()
        return super().keep(upkeep)

    def close(self) -> None:
        """A process that ends leaves the disk to whoever has it."""
