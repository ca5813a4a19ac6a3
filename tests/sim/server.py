"""The server of a database with a stand-by, which several nodes write: sessions, the lock of the head, fail-over.

A session outlives its client: the server notices late that nobody is there any more, keeps the head locked until then,
and may still carry out a COMMIT that was sent. A fail-over ends every session and keeps any prefix of what was visible,
with all that was acknowledged. What it says of a batch ("absent", durable) is held against it for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from gateway.store.contract import StoredBatch
from gateway.store.memory import MemoryDisk
from tests.sim.engine import Chances, Connection, Database, Time, Told, copy_of

IDLE_S = 2.0  # after which the server ends a session that does nothing and keeps the head
LINGER_S = 3.0  # until the server notices that a client is gone, at most
STARTED = b'"type":"tallystick/service.started/'


@dataclass(eq=False)
class Session:
    """What the server has of one connection. `wake` lets its client look again, if it waits."""

    wake: Callable[[], None]
    is_open: bool = True
    is_committing: bool = False
    timer: Any = None


class Server(Database):
    """`accuse` hears of a promise that was broken, and of its name. Its clock began at `start_ms`."""

    def __init__(
        self, chances: Chances, rng: Random, told: Told, time: Time | None = None, *, journal_max: int = 64,
        start_ms: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(chances, rng, told, time)
        self.journal_max = journal_max
        self.clock_offset_ms = 0
        self.standby_back_ms = 0
        self.unfit_until_ms = 0
        self.owner: Session | None = None
        self.accuse: Callable[[str, str], None] = lambda name, text: None
        self.hints: list[tuple[Connection, Callable[[], None]]] = []
        self.fail_overs = 0
        self._start_ms = start_ms
        self._sessions: list[Session] = []
        self._queue: list[Session] = []
        self._behind: list[MemoryDisk] = []  # the disk before each batch that the stand-by may lack
        self._pending: tuple[Session, StoredBatch, Connection] | None = None  # waits for the stand-by
        self._absent: set[str] = set()  # batches of which was said that they will never be there
        self._is_new = False  # nothing was written since the fail-over

    @property
    def wall_ms(self) -> int:
        """Return the server's own clock."""
        return self._start_ms + self.time.now_ms + self.clock_offset_ms

    @property
    def is_standby_lost(self) -> bool:
        return self.time.now_ms < self.standby_back_ms

    @property
    def is_unfit(self) -> bool:
        return self.time.now_ms < self.unfit_until_ms

    # -- sessions and the head ----------------------------------------------------------------------------------------

    def begin(self, wake: Callable[[], None]) -> Session:
        session = Session(wake)
        self._sessions.append(session)
        return session

    def take(self, session: Session) -> bool:
        """Give the head to a session, if it is free."""
        if self.owner is session:
            return True
        if self.owner is not None or not session.is_open:
            return False
        self.owner = session
        session.timer = self.time.call_later(IDLE_S, self._idle, session)
        return True

    def stand_in_line(self, session: Session) -> None:
        self._queue.append(session)

    def give_back(self, session: Session) -> None:
        """Free the head, if it is the session's."""
        if self.owner is session:
            self.owner = None
            if session.timer is not None:
                session.timer.cancel()
            waiting, self._queue = self._queue, []
            for one in waiting:
                one.wake()

    def part(self, session: Session) -> None:
        """The client is gone. Whether the server notices at once is chance."""
        if session.is_committing:
            return
        if self.owner is session and self.chance("lingers"):
            self.time.call_later(self.rng.uniform(0.05, LINGER_S), self.end, session)
        else:
            self.end(session)

    def end(self, session: Session) -> None:
        session.is_open = False
        if session in self._sessions:
            self._sessions.remove(session)
        self.give_back(session)
        session.wake()

    def _idle(self, session: Session) -> None:
        if self.owner is session and not session.is_committing:
            self.end(session)

    # -- commits ------------------------------------------------------------------------------------------------------

    def submit(self, session: Session, batch: StoredBatch, connection: Connection) -> None:
        """Commit; the session is committing until the stand-by has it."""
        if self.is_standby_lost:
            session.is_committing = True
            self._pending = (session, batch, connection)
            self._wait()
        else:
            self.write(batch, connection)

    def _wait(self) -> None:
        """Look again when the stand-by should be back."""
        if self._pending is None:
            return
        if self.is_standby_lost:
            self.time.call_later((self.standby_back_ms - self.time.now_ms) / 1_000 + 0.001, self._wait)
            return
        (session, batch, connection), self._pending = self._pending, None
        self.write(batch, connection)
        session.is_committing = False
        self.give_back(session)
        session.wake()

    def late(self, session: Session, batch: StoredBatch, expected: Any, connection: Connection) -> None:
        """Carry out a COMMIT of a client that is gone, later than anybody expects; nobody has the head meanwhile."""
        session.is_committing = True

        def land() -> None:
            if self.is_standby_lost:
                self.time.call_later(1, land)
                return
            session.is_committing = False
            if session.is_open and self.owner is session and self.disk.head == expected:
                self.write(batch, connection)
            self.end(session)

        self.time.call_later(self.rng.uniform(0.01, LINGER_S), land)

    def write(self, batch: StoredBatch, connection: Connection, *, is_durable: bool = True) -> None:
        is_start = batch.leaves[0].find(STARTED) >= 0
        if self._is_new and not is_start:
            self.accuse("holiday", f"entry {len(self.disk.leaves)} is the first after a fail-over, and no start")
        if batch.head.batch_id in self._absent:
            self.accuse("landed", f"the batch of entry {len(self.disk.leaves)} was said never to be there")
        self._is_new = False
        if not is_durable or self._behind:
            self._behind.append(copy_of(self.disk))
        super().write(batch, connection, is_durable=is_durable)
        self._hint(connection)

    def barrier(self) -> None:
        """The stand-by has everything."""
        self._behind = []
        super().barrier()

    def say_absent(self, batch_id: str) -> None:
        self._absent.add(batch_id)

    def _hint(self, writer: Connection) -> None:
        for connection, hint in self.hints:
            if connection is not writer and not self.chance("hint_lost"):
                self.time.call_later(self.rng.uniform(0.001, 0.02), hint)

    # -- what happens to servers --------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Say whether something visible would go away with the primary."""
        return bool(self._behind)

    def heal(self) -> None:
        """Have a stand-by, good settings and the right time, and let whoever waits look again."""
        self.standby_back_ms = self.unfit_until_ms = self.clock_offset_ms = 0
        self._wait()
        for session in self._sessions:
            session.wake()

    def fail_over(self) -> None:
        """Let the stand-by take over, with all that was acknowledged and any part of the rest."""
        behind, owed, pending = self._behind, self._owed, self._pending
        kept = self.rng.randint(0, len(behind))
        self._behind, self._owed, self._pending = [], owed[:kept], None
        if kept < len(behind):
            self.put(behind[kept])
        super().barrier()
        self.fail_overs += 1
        self.standby_back_ms = 0
        if self.chance("step_db"):
            self.clock_offset_ms += self.rng.choice([-3_600_000, -5_000, 5_000, 3_600_000])
        for session in [*self._sessions]:
            session.is_committing = False
            self.end(session)
        if pending is not None and kept == len(behind) and self.rng.random() < 0.5:
            self.write(pending[1], pending[2])
        self._is_new = True
