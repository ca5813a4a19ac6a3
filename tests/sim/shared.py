"""A node's store of a ledger that several nodes write: what `gateway/store/postgres.py` is on a server.

Every call may fail, wait, or be lost on its way, before or after the server did what it says. What a new connection
shows may be another history, so `lock` and `news` say HeadMoved until the ledger was loaded on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gateway.errors import Busy, HeadMoved, Unfit, Unknown
from gateway.store.contract import Loaded, Locked, StoredBatch, StoredHead, Upkeep, node_count
from gateway.store.memory import MemoryStore
from tests.sim.engine import Connection, commit_of
from tests.sim.server import STARTED, Server, Session

LOCK_MS = 1_500
NEWS_MAX = 5  # batches that are told at once


class Shared(Connection):
    """`sleep` waits inside a call until `wake` or for so many seconds; a process puts its thread's in their place."""

    is_shared = True
    _database: Server

    def __init__(self, database: Server) -> None:
        super().__init__(database)
        self.sleep: Callable[[float], None] = lambda seconds: None
        self.wake: Callable[[], None] = lambda: None
        self._session: Session | None = None
        self._is_loaded = False
        self._is_opening = False
        self._is_dead = False

    # -- connection ---------------------------------------------------------------------------------------------------

    def _connect(self) -> Session:
        database = self._database
        self._drop()
        self._hang()
        if database.is_failing or database.chance("load_busy"):
            raise Busy("no connection")
        if database.is_unfit:
            raise Unfit("a setting of the server would break a promise")
        self._session = database.begin(lambda: self.wake())
        return self._session

    def _drop(self) -> None:
        """The connection is gone; the server hears of it sooner or later."""
        session, self._session, self._is_loaded = self._session, None, False
        if session is not None and not self._is_dead:
            self._database.part(session)

    def _hang(self) -> None:
        """Perhaps the wire swallows everything for a while, and nobody says so."""
        if self._database.chance("half_open"):
            self._hear_nothing()
            self._drop()
            raise Busy("the connection was dead")

    def _hear_nothing(self) -> None:
        """Wait until the machine gives up a connection that nobody answers on."""
        time = self._database.time
        until_ms = time.now_ms + self._database.rng.randint(300, 12_000)
        while (left_ms := until_ms - time.now_ms) > 0:
            self.sleep(left_ms / 1_000)

    def _known(self) -> Session:
        session = self._session
        if session is None or not session.is_open or not self._is_loaded:
            self._drop()
            raise HeadMoved("the connection is new, and may show another history")
        return session

    def _idle(self) -> Session:
        try:
            session = self._known()
        except HeadMoved as error:
            raise Busy(str(error)) from error
        self._database.give_back(session)
        return session

    def _confirmed(self, session: Session) -> None:
        """Commit a barrier. Unknown: perhaps it is there."""
        database = self._database
        if database.is_failing or database.chance("confirm_lost"):
            self._drop()
            raise Unknown("the connection broke before the barrier")
        while database.is_standby_lost and session.is_open:
            self.sleep((database.standby_back_ms - database.time.now_ms) / 1_000 + 0.001)
        if not session.is_open:
            self._drop()
            raise Unknown("the server ended the session")
        database.barrier()
        if database.chance("confirm_kept"):
            self._drop()
            raise Unknown("the connection broke after the barrier")

    # -- reading ------------------------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        database, session = self._database, self._session
        if database.is_behind and database.chance("fail_over"):
            database.fail_over()
        if session is None or not session.is_open:
            session = self._connect()
        self._is_loaded = False
        database.give_back(session)
        try:
            self._confirmed(session)
        except Unknown as error:
            raise Busy("outcome unknown") from error
        self._is_loaded = self._is_opening = True
        return MemoryStore.load(self)

    def news(self, seen: StoredHead) -> tuple[StoredBatch, ...]:
        self._known()
        self._hang()
        if self._database.chance("news_busy"):
            raise Busy("no news")
        return self._after(seen)[:NEWS_MAX]

    def listen(self, hint: Callable[[], None]) -> None:
        self._database.hints.append((self, hint))

    def _after(self, seen: StoredHead | None) -> tuple[StoredBatch, ...]:
        """Return the batches after `seen`, from a journal that is not kept for ever."""
        disk = self._database.disk
        if seen == disk.head:
            return ()
        for at in range(len(disk.heads) - 1, max(0, len(disk.heads) - 1 - self._database.journal_max) - 1, -1):
            if disk.heads[at] == seen:
                return tuple(self._told(later) for later in range(at + 1, len(disk.heads)))
        raise HeadMoved("the head is of another history, or too long ago")

    def _told(self, at: int) -> StoredBatch:
        disk = self._database.disk
        head, before = disk.heads[at], disk.heads[at - 1]
        hashes = disk.hashes[node_count(before.size) : node_count(head.size)]
        return StoredBatch(head, tuple(disk.leaves[before.size : head.size]), tuple(hashes), disk.changes[at])

    # -- the head -----------------------------------------------------------------------------------------------------

    def lock(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        database, session = self._database, self._known()
        database.give_back(session)
        self._hang()
        if database.chance("lock_busy"):
            raise Busy("the head is locked")
        self._take(session)
        try:
            if database.is_unfit:
                raise Unfit("a setting of the server would break a promise")
            moved = self._after(seen)
        except (HeadMoved, Busy):
            database.give_back(session)
            raise
        return replace(MemoryStore.look(self, keys, sizes), moved=moved, wall_ms=database.wall_ms)

    def _take(self, session: Session) -> None:
        """Wait for the head, but not for ever."""
        database = self._database
        until_ms = database.time.now_ms + LOCK_MS
        while not database.take(session):
            left_ms = until_ms - database.time.now_ms
            if not session.is_open or left_ms <= 0:
                raise Busy("the head is locked")
            database.stand_in_line(session)
            self.sleep(left_ms / 1_000)

    def look(self, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        session = self._known()
        if self._database.owner is not session:
            raise HeadMoved("the head is not taken")
        if self._database.chance("look_fails"):
            self._drop()
            raise Busy("the connection broke")
        return MemoryStore.look(self, keys, sizes)

    def unlock(self) -> None:
        if self._session is not None:
            self._database.give_back(self._session)

    # -- commits ------------------------------------------------------------------------------------------------------

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        session = self._known()
        try:
            self._commit(session, batch, expected)
        except Unknown:
            self._drop()
            raise
        finally:
            if not session.is_committing and not self._is_dead:
                self._database.give_back(session)
        self._is_opening = False

    def _commit(self, session: Session, batch: StoredBatch, expected: StoredHead | None) -> None:
        database = self._database
        if database.is_failing or self.is_lost(batch):
            self._drop()  # and with it, sooner or later, the lock
            raise Unknown("the connection broke before the commit")
        self._take(session)
        if database.is_unfit:
            raise Unfit("a setting of the server would break a promise")
        if database.chance("busy"):
            raise Busy("disk full")
        self._swallowed(session, batch, expected)
        self._expect(expected)
        if self._is_opening and STARTED not in batch.leaves[0]:
            database.accuse("epoch", f"entry {len(database.disk.leaves)} comes on a new connection, and is no start")
        if database.chance("unreplicated"):
            database.write(batch, self, is_durable=False)
            raise Unknown("cancelled while waiting for the stand-by")
        self._replicated(session, batch)
        if self.is_kept(batch):
            raise Unknown("the connection broke after the commit")

    def _swallowed(self, session: Session, batch: StoredBatch, expected: StoredHead | None) -> None:
        """Perhaps nobody hears what becomes of a commit: it is still on its way, or the wire is dead."""
        database = self._database
        if database.chance("in_flight"):
            database.late(session, batch, expected, self)
            raise Unknown("the connection broke during the commit")
        if database.chance("half_open"):
            if database.rng.random() < 0.5:
                database.late(session, batch, expected, self)
            self._hear_nothing()
            raise Unknown("the connection was dead")

    def _replicated(self, session: Session, batch: StoredBatch) -> None:
        database = self._database
        database.submit(session, batch, self)
        while session.is_committing and session.is_open:
            self.sleep(60)
        if not session.is_open:
            raise Unknown("the server ended the session")

    def confirm(self) -> None:
        session = self._idle()
        self._hang()
        self._confirmed(session)

    def landed(self, batch_id: str) -> bool:
        """Look on a new connection with the head taken, so that no session that still has the batch may write it."""
        database = self._database
        if database.is_behind and database.chance("fail_over"):
            database.fail_over()
        session = self._connect()
        try:
            self._wait_for_old_ones(session)
            if database.chance("unreachable"):
                raise Busy("the primary is not reached")
            is_there = MemoryStore.landed(self, batch_id)
            if is_there:
                self._confirmed(session)
            else:
                database.say_absent(batch_id)
        except Unknown as error:
            raise Busy("outcome unknown") from error
        finally:
            if not self._is_dead:
                database.give_back(session)
        return is_there

    def _wait_for_old_ones(self, session: Session) -> None:
        self._take(session)

    def keep(self, upkeep: Upkeep) -> int:
        database, session = self._database, self._idle()
        if database.is_failing or database.chance("keep_fails"):
            self._drop()
            raise Unknown("the connection broke")
        self._take(session)
        try:
            self._confirmed(session)
            return MemoryStore.keep(self, upkeep)
        finally:
            if not self._is_dead:
                database.give_back(session)

    def abandon(self, jobs: Sequence[Callable[[], Any]]) -> None:
        """The client is killed; what it had sent may still arrive."""
        database, session = self._database, self._session
        self._is_dead = True
        database.hints = [(one, hint) for one, hint in database.hints if one is not self]
        if session is None:
            return
        sent = commit_of(jobs)
        if sent is not None and database.owner is session and database.chance("zombie"):
            database.late(session, *sent, self)
        elif not session.is_committing:
            database.part(session)

    def close(self) -> None:
        self._drop()
