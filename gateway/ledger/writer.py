"""The writer's task: batch after batch, what ticks and other nodes ask for between them, upkeep when there is time.

House rules of this file:

* One task owns the tail of the ledger. A batch is what has arrived when it is free, about BATCH_MAX commands; it turns
  the loop a few times to let in what lies in the sockets, and never waits for a clock.
* What fails with Busy has not happened, or nobody knows yet: the waiters are told, and the task goes on. A Fatal ends
  it.
* `Unfit` is told to everybody until an operator has changed what it names; each tick tries whether that is so.

Source: docs/architecture.md, life of a signed request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.core.record_keys import EXPENDABLE_PREFIXES
from gateway.core.records import Change
from gateway.errors import Busy, Fatal, HeadMoved, Unfit, Unknown
from gateway.ledger import batches
from gateway.ledger.batches import Batches
from gateway.ledger.commits import PATIENCE_S, RETRY_DISK_S
from gateway.ledger.line import Waiting
from gateway.ledger.orphans import Orphans
from gateway.ledger.parking import Parking
from gateway.ledger.turn import encode_changes
from gateway.store.contract import Upkeep

GATHER_TURNS_QUIET = 3  # a request needs about two turns from its socket to the line
GATHER_TURNS_MAX = 128  # of a few requests each: nobody in line waits longer than for a batch
ATTEMPTS_MAX = 3  # for one batch; a head that moves again and again has another writer
FORGET_MAX = 2_048  # records per idle step: a few ms of the commit thread
FORGET_STEPS_MAX = 16
_log = logging.getLogger("tallystick.sequencer")


class Writer(Batches):
    """The loop over what `Batches` does. The doors put commands into its line and wake it."""

    parking: Parking
    failed: asyncio.Event
    _wake: asyncio.Event
    _asked: list[asyncio.Future[None]]  # who wants to know what other nodes wrote
    _orphans: Orphans
    _handed: Change | None = None  # from outside the writer, who takes it over when it keeps things
    _has_tick = False
    _is_stopping = False
    _told = ""  # the last text of an Unfit
    damage = ""
    """Set by who found out that this ledger is damaged: a code. From then on nothing is decided, and no lease ends
    or is offered, until an operator has looked; reads go on."""
    failure: Fatal | None = None
    """Why nothing is decided any more; its text is for the operator."""
    is_away = False
    """Whether the store was not reached when it was asked last; whoever can should go to another node."""
    is_kept_out = False
    """Whether no batch could be begun for seconds: another node keeps the head, or the server has no room."""
    _kept_out_ms: int | None = None  # since when
    _is_in_question = False  # another node started: the store says with the head whether this one may still write
    unfit: Unfit | None = None
    """Why nothing is decided until an operator has changed a setting, or brought a key; reads go on meanwhile."""

    def tick(self) -> None:
        """Let due leases end, and do the upkeep if nobody waits."""
        self._has_tick = True
        self._wake.set()

    async def _run(self) -> None:
        """Take batch after batch until stopped and drained. A Fatal ends it; anything unforeseen is one."""
        try:
            while self._line or not self._is_stopping:
                await self._wake.wait()
                self._wake.clear()
                await self._drain()
            self._tell_asked(Busy("stopping"))
            await self._keep(is_closing=True)
        except Fatal as failure:
            self._die(failure)
        except Exception as error:
            _log.exception("the sequencer met an error that nobody foresaw")
            self._die(Fatal(f"the sequencer stopped: {type(error).__name__}: {error}; restart, and report it"))

    async def _drain(self) -> None:
        """Decide everything that waits, and do what a tick, or another node, asks for between two batches."""
        while self._line or self._has_tick or self._asked:
            if self._line:
                await self._gather()
                await self._serve(self._line.take(batches.BATCH_MAX))
            if self._asked:
                await self._on_ask()
            if self._has_tick:
                self._has_tick = False
                await self._on_tick()

    async def _gather(self) -> None:
        """Let in who is at the door: turn the loop while turns bring commands. No timer, so an idle gateway goes on at
        once, and a busy one reads requests that it would read anyway before the next commit, not during it."""
        quiet = 0
        for _ in range(GATHER_TURNS_MAX):
            before = len(self._line)
            if quiet == GATHER_TURNS_QUIET or before >= batches.BATCH_MAX or self._is_stopping:
                return
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._line) == before else 0

    async def _on_tick(self) -> None:
        """End due leases, then upkeep: one step only while others wait, for each batch ends leases as well."""
        is_moving = not self.damage
        while is_moving and not self._line and self._is_due():
            before = self._tail.confirmed
            await self._serve([])
            is_moving = self._tail.confirmed is not before  # in a holiday, and while the store is busy, nothing ends
        await self._adopt()
        for _ in range(FORGET_STEPS_MAX):
            forgotten = await self._keep(forget_max=FORGET_MAX)
            if forgotten < FORGET_MAX or self._line:
                return

    def _is_due(self) -> bool:
        """Say whether there is something to be done that nobody asked for."""
        book = self._tail.book
        is_doubtful = self.unfit is not None or self.is_away or self._kept_out_ms is not None or self._is_in_question
        if book is None or is_doubtful:
            return True
        return bool(self._tail.view.due(self._clock.peek(book.head.time_ms), 1))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._rules.parameters.sweep_ms / 1_000)
            self.tick()

    async def _serve(self, waiting: list[Waiting]) -> None:
        """See a batch through to its answers, whatever they are; only a Fatal goes on upwards.

        Those for whom the time does not suffice leave `waiting` and stand in line again.
        """
        self._serving, self._is_in_question = waiting, False
        try:
            await self._insist(lambda: self._attempt(waiting))
        except Busy as busy:
            self.counters.busy += len(waiting)
            self._heed(busy)
            self._fail(waiting, busy)
        except Exception as failure:
            self._fail(waiting, failure)
            raise
        else:
            self.unfit, self.is_away, self.is_kept_out, self._kept_out_ms = None, False, False, None
        finally:
            self._serving = ()

    def _heed(self, busy: Busy) -> None:
        """Decide nothing while the store, or this node, is unfit; the operator is told once why."""
        self.is_away = busy.reason == "store_unreachable"
        if busy.reason == "store_busy":
            now_ms = self._boottime_ms()
            self._kept_out_ms = now_ms if self._kept_out_ms is None else self._kept_out_ms
            self.is_kept_out = now_ms - self._kept_out_ms >= PATIENCE_S * 1_000
        if isinstance(busy, Unfit):
            self.unfit = busy
            if busy.text != self._told:
                self._told = busy.text
                _log.error("nothing is decided: %s", busy.text)

    async def _insist(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Try again on a ledger read anew after the head moved, or after a batch that is proven absent.

        A disk that takes nothing is Busy, for nothing happened: whoever comes next tries again, and one that is well
        again goes on. A head that moves is Fatal where nobody else may write, else Busy.
        """
        last: HeadMoved | None = None
        for _ in range(ATTEMPTS_MAX):
            try:
                return await attempt()
            except HeadMoved as moved:
                _log.warning("reading the ledger anew: %s", moved)
                self._tail.drop()
                last = moved
            except Unknown as unknown:  # of a barrier: a batch's own outcome was found out
                raise Busy("store_busy", RETRY_DISK_S) from unknown
        if last is not None and isinstance(last.__cause__, Unknown):
            _log.error("the disk takes no batch: %s", last.__cause__)
            raise Busy("disk_failing", RETRY_DISK_S) from last
        if self._is_shared:
            raise Busy("store_busy") from last
        raise Fatal(f"the head of the ledger keeps moving; another gateway writes to it. Stop one of them ({last})")

    def _die(self, failure: Fatal) -> None:
        """Stop for good: everybody who waits is told, and nobody is let in any more."""
        _log.critical("stopped: %s", failure)
        self.failure = failure
        self.failed.set()
        self._fail(self._line.take(len(self._line)), failure)
        self._tell_asked(failure)
        self.parking.wake_all()

    # -- other nodes --------------------------------------------------------------------------------------------------

    async def _on_ask(self) -> None:
        """Find out what other nodes wrote, for all who asked before this moment."""
        asked, self._asked = self._asked, []
        try:
            await self._insist(self._learn)
        except Busy as busy:
            self._heed(busy)
            self._tell(asked, busy)
        except Exception as failure:
            self._tell(asked, failure)
            raise
        else:
            self.is_away = False
            self._tell(asked, None)

    async def _learn(self) -> None:
        """Follow what other nodes wrote, and show it when it is durable."""
        book = self._tail.book
        if book is None:
            await self._recover()
            return
        epoch = book.head.epoch
        while moved := await self._in_thread(self._store.news, book.head):
            self._tail.follow(book, moved)
        self._is_in_question = self._is_in_question or book.head.epoch > epoch
        self._check_keys()
        await self._confirm(book)

    def _tell(self, asked: list[asyncio.Future[None]], outcome: Exception | None) -> None:
        for one in asked:
            if not one.done():
                if outcome is None:
                    one.set_result(None)
                else:
                    one.set_exception(outcome)

    def _tell_asked(self, outcome: Exception) -> None:
        asked, self._asked = self._asked, []
        self._tell(asked, outcome)

    async def _adopt(self) -> None:
        """Sign the batches of dead nodes; they are kept with the next commit or upkeep."""
        book, confirmed, now_ms = self._tail.book, self._tail.confirmed, self._boottime_ms()
        if not self._is_shared or book is None or confirmed is None or not self._orphans.is_time(now_ms):
            return
        try:
            unsigned = await self._in_thread(self._store.unsigned)
            own = {one.size for one in book.unsaved}
            await self._sign_again(book, self._orphans.due(unsigned, own, confirmed.size, now_ms))
        except Busy as busy:
            _log.warning("what dead nodes left unsigned stays so for now: %s", busy)

    # -- upkeep -------------------------------------------------------------------------------------------------------

    async def _keep(self, *, forget_max: int = 0, is_closing: bool = False) -> int:
        """Store what waits for a chance, forget what is due; whatever fails is tried another time."""
        book = self._tail.book
        if book is None:
            return 0
        if self._handed is not None:
            self._tail.carried[self._handed[0]], self._handed = self._handed, None
        upkeep = Upkeep(
            signed=tuple(book.unsaved),
            changes=encode_changes(self._tail.carried.values()),
            forget_prefixes=EXPENDABLE_PREFIXES,
            forget_due_ms=book.head.time_ms,
            forget_max=forget_max,
            is_closing=is_closing,
        )
        try:
            forgotten = await self._in_thread(self._store.keep, upkeep)
        except (Busy, Unknown) as error:
            _log.warning("upkeep is put off: %s", error)
            return 0
        del book.unsaved[: len(upkeep.signed)]
        self._tail.forget(book)
        self._tail.carried.clear()
        self.counters.forgotten += forgotten
        return forgotten
