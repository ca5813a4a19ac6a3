"""The engine for several gateways on one ledger: PostgreSQL 15 or newer, every node writes.

    PostgresStore(url, origin, *, durability="local"|"replicated", manner="<durability> <rule engine or none>", node=ID,
        is_manner_accepted=False)
    PostgresReader(url, origin)      gateway/store/postgres_reader.py
    create(url, origin)              makes room for a ledger (`tallystick init`), and the schema if there is none

Nothing connects before its first call. House rules of this file:

* One connection, the sequencer's thread alone uses it. A new one is suspicious: it may lead to another server, which
  lacks what the old one showed. Until `load` was called on it, everything but `load` and `landed` says so.
* Who writes has locked the head's row, from `lock` to the end of the transaction. What was decided on is compared again
  in the database, which raises (`schema_postgres/0002.sql`), for COMMIT follows in the same round trip.
* Life of an entry: `lock`: BEGIN, `take` (settings, head FOR UPDATE, clock, records) → `commit`: `append`, COMMIT; two
  round trips in all. The hint for other nodes is a transaction of its own behind the COMMIT: a NOTIFY inside would keep
  all ledgers of the server in one line while it waits for the stand-by.
* The ledger's nodes state one durability and one rule engine, their manner, for an auditor knows one of each since the
  last start. A start changes it under no live node, unless an operator said so: looked at before it writes anything,
  and again under the head before its first batch.

Source: docs/architecture.md, store; gateway/store/contract.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gateway.errors import Busy, HeadMoved, Unfit, Unknown
from gateway.store import postgres_text as text
from gateway.store.contract import Loaded, Locked, StoredBatch, StoredCheckpoint, StoredHead, Upkeep
from gateway.store.postgres_fit import REPLICATED
from gateway.store.postgres_link import BEGIN, Link, Lost, Statement, plain
from gateway.store.postgres_listen import Listener, channel_of
from gateway.store.postgres_schema import create
from gateway.store.postgres_session import Session

__all__ = ["PostgresStore", "create"]
JOURNAL_BATCHES = 1_024  # kept for nodes that follow
UNSIGNED_BATCHES = 1_024  # looked through for signatures that are not kept
BATCHES_PER_READ = 64  # of `news`, and of what is read while the head is taken
CHASES = 4  # times that others are caught up with before the head is taken
RECORDS_PER_READ = 4_096
_SNAPSHOT = (
    plain("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
    plain("SET LOCAL idle_in_transaction_session_timeout = 0"),  # a start may take long, and locks nothing
)


class PostgresStore(Session):
    """One node's store of a ledger in a database. The promises are in `contract.py`."""

    is_shared = True

    def __init__(
        self, url: str, origin: str, *, durability: str, manner: str, node: str = "", is_manner_accepted: bool = False
    ) -> None:
        """Remember where the ledger is; `load` connects. Fatal: the URL is none of ours. `node` names this node; two of
        one name are one that was started anew. `is_manner_accepted` is an operator's word that its first start may
        change the manner of all."""
        super().__init__(
            url, origin, durability=durability, manner=manner, node=node, is_manner_accepted=is_manner_accepted
        )
        self._listener: Listener | None = None
        self._is_opening = False  # from `load` to the first batch, which may change the manner
        self._fence = 0

    # -- reading afresh ------------------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        link = self._link
        if link is None or link.is_closed:
            link = self._connect()
        self._has_head = self._is_loaded = False
        link.roll_back()
        if self._unfit is not None:
            self._greet(link)
        try:
            if self._unfit is None:  # else it is only read, and what is shown was signed after a clean commit
                self._announce(link)
        except Unknown as error:
            self._drop()
            raise Busy("outcome_unknown") from error
        link.run(*_SNAPSHOT)
        head = self._head()
        row = self._rows("SELECT is_clean, fence FROM tallystick.head WHERE ledger = %s", ())[0]
        self._fence = row[1]
        self._is_loaded = self._is_opening = True
        return Loaded(head, row[0], self.unsigned())

    def unsigned(self) -> tuple[StoredCheckpoint, ...]:
        rows = self._rows(text.UNSIGNED, (UNSIGNED_BATCHES,))
        return tuple(StoredCheckpoint(*row) for row in rows)

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for prefix in sorted(prefixes):
            end, last = prefix[:-1] + chr(ord(prefix[-1]) + 1), ""
            while rows := self._rows(text.RECORDS, (prefix, end, last, RECORDS_PER_READ)):
                yield from rows
                last = rows[-1][0]

    # -- the head ------------------------------------------------------------------------------------------------------

    def lock(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        self._known()
        self.unlock()
        try:
            return self._chase(seen, keys, sizes)
        except BaseException:
            self._end()
            raise

    def _chase(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        """Take the head when little is left to catch up with; more than a little is read without it."""
        moved: list[StoredBatch] = []
        for _ in range(CHASES):
            head, locked = self._take(keys, sizes)
            if head != seen:
                moved += self._after(seen)
                seen = moved[-1].head
            if head == seen:
                return replace(locked, moved=tuple(moved))
            self.unlock()
            while found := self._after(seen, is_moved=False):
                moved += found
                seen = moved[-1].head
        raise HeadMoved("others write faster than this node follows, or the head is not that of the last batch")

    def _take(self, keys: Sequence[str], sizes: Sequence[int]) -> tuple[StoredHead | None, Locked]:
        link = self._known()
        self._end()  # the view of `load`
        taking = text.take(self._ledger, self._name, self.durability == REPLICATED, keys, sizes)
        row = link.run(plain(BEGIN), taking)[-1][0]
        self._has_head = True
        head = StoredHead(*row[:7])
        manner, self._fence, wall_ms = row[7:10]
        if head.size and manner != self._manner and not self._is_opening:
            raise Unfit(
                f'this node writes "{self._manner}", the last start on this ledger said "{manner}" (durability and'
                " rules): give all nodes of the ledger the same"
            )
        if self._is_opening:
            self._check_manner(link)
        found = [dict(zip(row[at] or (), row[at + 1] or (), strict=True)) for at in (10, 12)]
        return head if head.size else None, Locked(found[0], found[1], (), wall_ms)

    def _after(self, seen: StoredHead | None, *, is_moved: bool = True) -> list[StoredBatch]:
        """Return the next batches after `seen`. HeadMoved when it is none of this history, or, with `is_moved`, when
        there are none."""
        if seen is None:
            raise HeadMoved("the database holds entries already")
        rows = self._known().run(text.since(self._ledger, seen.size, BATCHES_PER_READ))[0]
        found = list(text.batches_after(seen, rows))
        if is_moved and not found:
            raise HeadMoved("the head in the database is not the one the sequencer saw")
        return found

    def look(self, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        link = self._known()
        if not self._has_head:
            raise HeadMoved("the head is not taken")
        try:
            records, roots = link.run(*text.look_ups(self._ledger, keys, sizes))
        except Exception:
            self._has_head = False
            raise
        return Locked(dict(records), dict(roots))

    def unlock(self) -> None:
        if self._has_head:
            self._end()

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        link = self._known()
        begin = [] if self._has_head else [plain(BEGIN)]
        if begin and link.is_in_transaction:
            self._end()
        self._has_head = False
        write = text.append(
            self._ledger, self._name, self.durability == REPLICATED, self._manner, self._fence,
            expected or text.NO_HEAD, batch,
        )  # fmt: skip
        hint = Statement("SELECT pg_notify(%b, %b)", (channel_of(self._ledger), str(batch.head.size)))
        self._commit(link, *begin, write, hint=hint)
        self._is_opening = self._is_starting = self._is_manner_accepted = False

    # -- what others wrote, and what became of a batch -----------------------------------------------------------------

    def news(self, seen: StoredHead) -> tuple[StoredBatch, ...]:
        self._known()
        if not self._has_head:
            self._end()  # the view of `load`
        return tuple(self._after(seen, is_moved=False))

    def listen(self, hint: Callable[[], None]) -> None:
        self._listener = Listener(self._url, self._origin, hint, self._pid)

    def _pid(self) -> int:
        return 0 if self._link is None or self._link.is_closed else self._link.pid

    def confirm(self) -> None:
        self._barrier(self._idle())

    def _idle(self) -> Link:
        """Return the known connection outside a transaction. Lost when it is new: what was seen on the old one may not
        be on this server."""
        try:
            link = self._known()
        except HeadMoved as error:
            raise Lost(str(error)) from error
        self._end()
        return link

    def landed(self, batch_id: str) -> bool:
        """Look on a new connection, with the head taken: while a session of the old attempt lives, it has the head, and
        we say Busy. What is absent then never lands, for the fence is another one."""
        link = self._connect()
        if self._unfit is not None:
            raise self._unfit
        try:
            link.run(
                plain(BEGIN), Statement("SELECT FROM tallystick.head WHERE ledger = %s FOR UPDATE", (self._ledger,))
            )
            is_there = link.rows(
                "SELECT EXISTS (SELECT FROM tallystick.batch WHERE ledger = %s AND batch_id = %s)",
                (self._ledger, batch_id),
            )[0][0]
            fence = Statement("UPDATE tallystick.head SET fence = fence + 1 WHERE ledger = %s", (self._ledger,))
            self._commit(link, text.barrier(self._ledger, self._node, self._manner) if is_there else fence)
        except (Unknown, Busy) as error:
            self._drop()
            raise Busy("outcome_unknown") from error
        return bool(is_there)

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def keep(self, upkeep: Upkeep) -> int:
        link = self._idle()
        work = [plain(BEGIN)]
        if upkeep.changes or upkeep.forget_max or upkeep.is_closing:
            work.append(Statement("SELECT FROM tallystick.head WHERE ledger = %s FOR UPDATE", (self._ledger,)))
        work.append(text.change_records(self._ledger, upkeep.changes))
        kinds = [prefix.removesuffix("/") for prefix in upkeep.forget_prefixes] if upkeep.forget_max else []
        work.append(text.forget(self._ledger, kinds, upkeep.forget_due_ms, upkeep.forget_max))
        at = len(work) - 1
        work.append(text.keep_signed(self._ledger, upkeep.signed))
        work.append(text.prune(self._ledger, JOURNAL_BATCHES))
        if upkeep.is_closing:
            work.append(Statement("UPDATE tallystick.head SET is_clean = true WHERE ledger = %s", (self._ledger,)))
            work.append(text.leave(self._ledger, self._node))
        else:
            work.append(text.barrier(self._ledger, self._node, self._manner))
        forgotten: int = self._commit(link, *work, is_last=upkeep.is_closing)[at][0][0]
        return forgotten

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        self._drop()
