"""The store's calls, how long they are waited for, and what becomes of a commit.

House rules of this file:

* Every call of the store goes through `_in_thread`, one at a time. Nobody can cancel one there.
* A call that takes longer than PATIENCE_S is waited for, but nobody else has to wait for it.
* After an unclear commit, find out. Who can't find out, and is the only one who writes, stops (`Fatal`); where others
  write, the book is dropped, the waiters are told that nobody knows, and the next one reads the ledger anew.

Source: docs/protocol.md, commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import ParamSpec, TypeVar

from gateway.errors import Busy, Fatal, HeadMoved, Unknown
from gateway.ledger.history import Answer, Book
from gateway.ledger.line import Line, Waiting
from gateway.ledger.tail import Tail
from gateway.ledger.tally import Counters
from gateway.ledger.worker import Worker
from gateway.store.contract import Store, StoredBatch

RETRY_DISK_S = 5  # a person has to look, but a disk that is only slow recovers by itself
PATIENCE_S = 5.0  # for one call of a store that other machines take part in
LANDED_TRIES = 8
LANDED_PAUSE_S = 0.25

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("tallystick.sequencer")


class Commits:
    """What is between a sequencer and its store. Who derives from it makes what is declared here."""

    _store: Store
    _thread: Worker
    _line: Line
    _tail: Tail
    _mark: Callable[[str, int], None]
    _is_shared: bool
    _serving: Sequence[Waiting] = ()
    counters: Counters
    is_stalled = False
    """Whether a call of the store has taken long, and has not returned yet; decisions are refused meanwhile."""

    _called_s: float | None = None

    @property
    def pending_s(self) -> float:
        """Return for how long a store that other machines take part in has not answered; 0 while nothing is asked."""
        return 0.0 if self._called_s is None else monotonic() - self._called_s

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in the commit thread."""
        running = self._thread.call(partial(call, *args, **kwargs))
        if not self._is_shared:
            return await running
        timer, self._called_s = asyncio.get_running_loop().call_later(PATIENCE_S, self._stall), monotonic()
        try:
            return await running
        finally:
            timer.cancel()
            self._called_s = None
            if self.is_stalled:
                self.is_stalled = False
                _log.warning("the store answers again")

    def _stall(self) -> None:
        """Nobody has to wait for a store that does not answer: what was handed to it goes on, and is found later."""
        self.is_stalled = True
        self.counters.stalls += 1
        _log.error("the store has not answered for %.0f s; decisions are refused until it does", PATIENCE_S)
        self._fail(self._serving, Busy("outcome_unknown", RETRY_DISK_S))
        self._fail(self._line.take(len(self._line)), Busy("store_stalled", RETRY_DISK_S))

    # -- commits ------------------------------------------------------------------------------------------------------

    async def _confirm(self, book: Book) -> None:
        """Show what other nodes wrote, if they did, as soon as it is durable. Busy, Unknown: perhaps not."""
        if self._tail.behind:
            await self._in_thread(self._store.confirm)
            self._tail.show(book)

    async def _commit(self, book: Book, stored: StoredBatch) -> None:
        """Return when the batch is durable; HeadMoved and Busy when it is not there."""
        try:
            await self._in_thread(self._store.commit, stored, book.head)
        except Unknown as unknown:
            _log.warning("the outcome of a commit is unclear: %s", unknown)
            if not await self._landed(stored.head.batch_id):
                raise HeadMoved("a batch did not land and is decided again") from unknown
        self._mark("committed", len(stored.leaves))

    async def _landed(self, batch_id: str) -> bool:
        """Say whether a batch was committed. Busy: nobody knows yet. Fatal: nobody will, before a restart."""
        if self._is_shared:
            return await self._find_out(batch_id)
        try:
            return await self._in_thread(self._store.landed, batch_id)
        except Exception as error:
            raise Fatal(
                f"nobody knows whether a batch was committed: {error}; restart when the store is back"
            ) from error

    async def _find_out(self, batch_id: str) -> bool:
        """Ask for a while. A batch that nobody knows of is found, or not, when the ledger is read anew."""
        for _ in range(LANDED_TRIES):
            try:
                return await self._in_thread(self._store.landed, batch_id)
            except Exception as error:
                _log.warning("nobody knows yet whether a batch was committed: %s", error)
            await asyncio.sleep(LANDED_PAUSE_S)
        self._tail.drop()
        raise Busy("outcome_unknown", RETRY_DISK_S)

    # -- waiters ------------------------------------------------------------------------------------------------------

    def _answer(self, waiting: Waiting, result: Answer | Exception | None) -> None:
        if not waiting.answer(result):
            self.counters.abandoned += 1

    def _fail(self, waiting: Sequence[Waiting], error: Exception) -> None:
        for one in waiting:
            self._answer(one, error)
