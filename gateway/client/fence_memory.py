"""What a guard remembers, in one file: the newest tokens that it was shown, and what may happen once and did.

Guards of both kinds (fence.py, admission_guard.py) may share one memory: then the token of a lease that came with an
admission stands against an older lease, and the other way round. It belongs to whoever owns the resource, is as durable
as the resource itself, and is pinned to one ledger for ever.

House rules of this file:

* Recorded and used up before the write, durable (fsync) before the body runs: after a crash the guard knows more than
  was written, never less.
* The lock of the file is held while the body writes, so no newer token slips in between, in whatever process. Who dies
  lets go of it.
* What was used is remembered by the guard's clock, and by the newest time of the ledger that it was shown: neither a
  clock that is set forward nor one that is set back lets anything happen twice.

Source: docs/protocol.md 8, 41.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.client.errors import Fenced
from verifier.entries import check_resource, covers, key_of, may_share, overlaps

# Beyond its end, what was used is remembered for as long as the clocks of two machines may differ, and then some.
KEPT_MS = 60_000
POLL_S = 0.02  # how often a busy file is tried by who must not block
# The number of this schema, in the file. Version 0 kept one name of each set; version 2 nothing that happens once.
_VERSION = 3
_READABLE = (2, _VERSION)
# `resource` is the key of a leased name; `folded` is what it is found by: the same with A to Z lowered in any case.
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS pinned (ledger TEXT NOT NULL) STRICT",
    """CREATE TABLE IF NOT EXISTS fence (
    folded TEXT NOT NULL, resource TEXT NOT NULL, is_folding INTEGER NOT NULL, class TEXT NOT NULL, mode TEXT NOT NULL,
    actor TEXT NOT NULL, token INTEGER NOT NULL,
    PRIMARY KEY (folded, resource, is_folding, class, mode, actor)
) STRICT, WITHOUT ROWID""",
    "CREATE TABLE used (name TEXT NOT NULL PRIMARY KEY, ends_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE INDEX used_ends ON used (ends_ms)",
    # The newest time of the ledger that was shown, and the latest end of what was forgotten.
    "CREATE TABLE times (shown_ms INTEGER NOT NULL, forgotten_ms INTEGER NOT NULL) STRICT",
    "INSERT INTO times VALUES (0, 0)",
    f"PRAGMA user_version = {_VERSION}",
)


WallMs = Callable[[], int]


def zero() -> int:
    """Return a time for what never ends."""
    return 0


@dataclass(frozen=True, slots=True)
class Permit:
    """What a lease says about one of its names; `is_folding`: its scheme folds case.

    `is_recorded` is False for what is compared and leaves nothing: it stands for no lease.
    """

    resource: str
    scheme_class: str
    mode: str
    actor: str
    token: int
    is_folding: bool = False
    is_recorded: bool = True

    @property
    def key(self) -> str:
        return key_of(self.resource, self.is_folding)

    def covers(self, object_name: str) -> bool:
        """Say whether this lease covers an object: the same name, or one inside its sub-tree (`…/**`)."""
        return covers(self.key, key_of(object_name, self.is_folding))

    def overlaps(self, key: str, is_folding: bool) -> bool:
        """Say whether a name of another lease, given by its key, may mean what this one means: folded if either is."""
        is_folding = is_folding or self.is_folding
        return overlaps(key_of(key, is_folding), key_of(self.resource, is_folding))

    def may_share(self, scheme_class: str, mode: str) -> bool:
        """Say whether another lease may live beside it, by the classes that both leaves name."""
        return all(may_share(each, self.mode, mode) for each in (self.scheme_class, scheme_class))


@dataclass(frozen=True, slots=True)
class Use:
    """Something that may happen once: what it is known by, and when it can't happen any more.

    `shown_ms` is a time of the ledger that is proven to have come; 0 for none. `early_ms` is by how much sooner the
    guard's own clock ends it.
    """

    name: str
    ends_ms: int
    shown_ms: int = 0
    early_ms: int = 0


class Memory:
    """One open file, or a memory that ends with the process. One thread, one body at a time.

    `ledger` is the origin and, in hex, the genesis that it is pinned to. `busy_ms` is how long the blocking calls wait
    for another process. `turn` is for the tasks of one event loop that share it.
    """

    def __init__(self, path: Path | None, ledger: str, *, busy_ms: int = 10_000) -> None:
        self.turn = asyncio.Lock()
        self.connection = sqlite3.connect(
            ":memory:" if path is None else path, isolation_level=None, timeout=busy_ms / 1000
        )
        self._busy_ms = busy_ms
        # After FULL, a power cut may bring back the journal that was just deleted, and with it the memory of before.
        self.connection.execute("PRAGMA synchronous = EXTRA")
        try:
            self._open(ledger)
        except BaseException:
            self.connection.close()
            raise
        self.ledger = ledger

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    @contextmanager
    def admitted(self, permits: Sequence[Permit], use: Use | None = None, wall_ms: WallMs = zero) -> Iterator[None]:
        """One transaction: refuse, or record and use up, all or nothing; then hold the lock while the body works.

        What was recorded is durable before the body begins, and stays whatever becomes of the write.
        """
        self.begin()
        with self._begun():
            self._take(permits, use, wall_ms())
        self.begin()
        with self._begun():
            self._look_again(permits, use, wall_ms())
            yield

    @asynccontextmanager
    async def admitted_in_turn(
        self, permits: Sequence[Permit], use: Use | None, wall_ms: WallMs, wait_ms: int
    ) -> AsyncIterator[None]:
        """As `admitted`, for the tasks of one event loop, which are let in one after the other and never block it."""
        ends_s = time.monotonic() + wait_ms / 1000
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self.turn.acquire()
        except TimeoutError as error:
            raise Fenced("the guard is busy with another write; try again", "busy") from error
        try:
            await self._begin_soon(ends_s)
            with self._begun():
                self._take(permits, use, wall_ms())
            await self._begin_soon(max(ends_s, time.monotonic() + wait_ms / 1000))
            with self._begun():
                self._look_again(permits, use, wall_ms())
                yield
        finally:
            self.turn.release()

    def begin(self) -> None:
        """Take the lock of the file; Fenced when another process has it for too long."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Fenced(f"the guard is busy with another write ({error}); try again", "busy") from error

    async def _begin_soon(self, ends_s: float) -> None:
        while True:
            self.connection.execute("PRAGMA busy_timeout = 0")
            try:
                return self.begin()
            except Fenced:
                if time.monotonic() >= ends_s:
                    raise
            finally:
                self.connection.execute(f"PRAGMA busy_timeout = {self._busy_ms}")
            await asyncio.sleep(POLL_S)

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """End the transaction that was begun: well, or without a trace."""
        try:
            yield
            self.connection.execute("COMMIT")
        finally:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def _take(self, permits: Sequence[Permit], use: Use | None, now_ms: int) -> None:
        self._refuse_older(permits)
        self._record([permit for permit in permits if permit.is_recorded])
        if use is not None:
            self._use_up(use, now_ms)

    def _look_again(self, permits: Sequence[Permit], use: Use | None, now_ms: int) -> None:
        """Another process may have come between the two transactions, and time has passed while it was there."""
        self._refuse_older(permits)
        if use is not None:
            _check_time(use, now_ms)

    def _use_up(self, use: Use, now_ms: int) -> None:
        """Refuse what was used, may have been, or is over by the ledger's own time; else remember it as used."""
        _check_time(use, now_ms)
        shown_ms, forgotten_ms = self.connection.execute("SELECT shown_ms, forgotten_ms FROM times").fetchone()
        if use.ends_ms <= shown_ms:
            raise Fenced(f"{use.name} is over: the guard has seen a later entry of the ledger", "expired")
        if use.ends_ms <= forgotten_ms:
            raise Fenced(f"{use.name} may have been used: this guard has forgotten that time", "expired")
        try:
            self.connection.execute("INSERT INTO used VALUES (?, ?)", (use.name, use.ends_ms))
        except sqlite3.IntegrityError as error:
            raise Fenced(f"{use.name} was used before; each is good for one execution", "used") from error
        shown_ms = max(shown_ms, use.shown_ms)
        over_ms = max(now_ms, shown_ms) - KEPT_MS
        (gone_ms,) = self.connection.execute("SELECT max(ends_ms) FROM used WHERE ends_ms <= ?", (over_ms,)).fetchone()
        self.connection.execute("DELETE FROM used WHERE ends_ms <= ?", (over_ms,))
        self.connection.execute(
            "UPDATE times SET shown_ms = ?, forgotten_ms = ?", (shown_ms, max(forgotten_ms, gone_ms or 0))
        )

    def _refuse_older(self, permits: Sequence[Permit]) -> None:
        for permit in permits:
            for key, is_folding, scheme_class, mode, actor, token in self._not_below(permit):
                if not permit.may_share(scheme_class, mode) and permit.overlaps(key, bool(is_folding)):
                    order = "older than" if token > permit.token else "the same as"
                    raise Fenced(
                        f"token {permit.token} is {order} {token}, which {actor} has shown for {key}", "stale_fence"
                    )

    def _not_below(self, permit: Permit) -> list[tuple[str, int, str, str, str, int]]:
        """Return what others have shown, in tokens not below this one, near its name; a few rows too many."""
        names, first, last = _near(key_of(permit.resource, True))
        marks = ", ".join("?" * len(names))
        return self.connection.execute(
            "SELECT resource, is_folding, class, mode, actor, token FROM fence WHERE actor <> ? AND token >= ? "
            f"AND (folded IN ({marks}) OR folded >= ? AND folded < ?)",
            (permit.actor, permit.token, *names, first, last),
        ).fetchall()

    def _record(self, permits: Sequence[Permit]) -> None:
        """Keep the highest token of this actor, and forget actors that can't decide anything any more.

        Of one name, class and mode only the newest token matters, and, to its own actor, the newest of somebody else.
        """
        places = [(key_of(p.resource, True), p.key, p.is_folding, p.scheme_class, p.mode) for p in permits]
        self.connection.executemany(
            "INSERT INTO fence VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET token = max(token, excluded.token)",
            [(*place, permit.actor, permit.token) for place, permit in zip(places, permits, strict=True)],
        )
        place = "(folded, resource, is_folding, class, mode) = (?, ?, ?, ?, ?)"
        self.connection.executemany(
            f"DELETE FROM fence WHERE {place} AND actor NOT IN "
            f"(SELECT actor FROM fence WHERE {place} ORDER BY token DESC LIMIT 2)",
            [(*place, *place) for place in places],
        )

    def _open(self, ledger: str) -> None:
        """Make the file or know it again, and pin it to its ledger."""
        self.begin()
        with self._begun():
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            (tables,) = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and version not in _READABLE:
                raise Fenced(
                    f"the guard's file has schema {version}, and this guard reads {_VERSION}: an older one remembered "
                    "one name of each set only; begin a new file once the leases that it has seen are over"
                )
            if version != _VERSION:
                for statement in _SCHEMA:
                    self.connection.execute(statement)
            if not tables:
                self.connection.execute("INSERT INTO pinned VALUES (?)", (ledger,))
            (pinned,) = self.connection.execute("SELECT ledger FROM pinned").fetchone()
            check_pinned(pinned, ledger)


def _check_time(use: Use, now_ms: int) -> None:
    if use.ends_ms <= now_ms + use.early_ms:
        raise Fenced(f"{use.name} is over, or nearly; ask for another", "expired")


def check_covered(permits: Sequence[Permit], resources: Sequence[str], what: str) -> None:
    """Fenced unless there is at least one object and each lies within a name; Malformed for what is no name."""
    for resource in resources:
        check_resource(resource)
    missing = [name for name in resources if not any(permit.covers(name) for permit in permits)]
    if missing or not resources:
        raise Fenced(f"{what} does not cover {missing[0] if missing else 'an act that touches nothing'}", "other_act")


def check_pinned(pinned: str, ledger: str) -> None:
    """Fenced unless a memory is of this ledger."""
    if pinned != ledger:
        raise Fenced(
            f"this guard's file belongs to the ledger {pinned}: tokens of two ledgers can't be compared", "other_ledger"
        )


def _near(key: str) -> tuple[tuple[str, ...], str, str]:
    """Return where to look for keys that may overlap `key`: itself and the sub-trees around it, and what lies inside.

    The range, from its first text to before its last, is empty for a plain name: below it lies only its own sub-tree.
    """
    scheme, _, path = key.partition(":")
    segments = path.removesuffix("**").removesuffix("/").split("/")
    trees = ["/".join([*segments[:count], "**"]) for count in range(len(segments) + 1)]
    names = (key, *(f"{scheme}:{tree}" for tree in trees))
    if not key.endswith("**"):
        return names, "", ""
    inside = key[:-2]  # ends with the slash or the colon
    return (*names, inside[:-1]), inside, inside[:-1] + chr(ord(inside[-1]) + 1)
