"""The sequencer: the only writer of the ledger in this process.

House rules of this room:

* One task owns the tail (`writer.py`). Others hand it commands through a bounded line and wait; when the line is full
  they are told so (`Busy`). A waiter that goes away abandons its answer and nothing else.
* A batch is what has arrived when the writer is free, as far as it is decided in DECIDE_MS_MAX; the rest stands at the
  front of the line again. Commands that came as one request are not divided.
* Decide, hash and sign on the loop's thread; look up and commit on one named thread (`batches.py`). Nobody can cancel a
  COMMIT there.
* Commit, then sign, then answer (`tail.py`). What was not committed has not happened, so nothing of it is signed or
  shown, and `confirmed` moves only after both. Signatures go into the store with the next batch, at idle, or at stop;
  until then they can be made again from committed bytes.
* Where other nodes write too, what they wrote is followed (`follow.py`) and shown when it is as durable as our own.

Stop order: refuse new, send the parked away, drain, commit, answer, keep the signatures, close the store.
Source: docs/architecture.md, life of a signed request; docs/protocol.md, commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from gateway.actions import Action, load_deciders
from gateway.clock import Clocks, LogClock, StoreClock
from gateway.core.append import Imprint
from gateway.core.dispute import disputed
from gateway.core.draft import View
from gateway.core.intake import SignedRequest
from gateway.core.outcome import Rules as Evaluate
from gateway.core.parameters import Parameters
from gateway.core.record_keys import COSIGNED_KEY
from gateway.core.records import Cosigned
from gateway.core.witnessed import witnessed
from gateway.errors import Busy, Damaged, Fatal
from gateway.ledger.batches import Seen
from gateway.ledger.commits import RETRY_DISK_S
from gateway.ledger.follower import Follower
from gateway.ledger.history import Answer, Confirmed
from gateway.ledger.line import Line, Waiting
from gateway.ledger.live import Live
from gateway.ledger.orphans import Orphans
from gateway.ledger.parking import Parking
from gateway.ledger.tail import Tail
from gateway.ledger.tally import Counters, Trace
from gateway.ledger.turn import Refused, Rules
from gateway.ledger.worker import Worker
from gateway.ledger.writer import Writer
from gateway.signer import Signer
from gateway.store.contract import Store
from verifier.checkpoint import Checkpoint
from verifier.note import VerifierKey, is_signed_once
from verifier.wire import encode_base64

__all__ = ["Answer", "Confirmed", "Counters", "Refused", "Sequencer", "Trace"]

CATCH_UP_S = 2.0
STOP_S = 10.0  # a store that is silent for longer keeps nobody from stopping
_log = logging.getLogger("tallystick.sequencer")


class Sequencer(Writer):
    """Owns one store. `start`, then any number of `submit`s, then `stop`.

    `genesis` is the leaf hash of entry 0 and `parameters` what it states. `is_clock_accepted` is an operator's word
    that the wall clock may be behind the ledger. Without `sweeps` somebody else calls `tick` (tests do). `evaluate`
    answers for rule sets; without it nothing is admitted while one is in force. On a store that other nodes write too,
    what they wrote is looked at every `follow_ms`. `has_key` looks once more for the private half of a key, by purpose.
    `ask_witnesses` asks what they have seen, whenever the ledger of a shared store is read anew.
    """

    def __init__(
        self,
        store: Store,
        signer: Signer,
        clock: Clocks,
        parameters: Parameters,
        *,
        origin: str,
        genesis: bytes,
        trace: Trace | None = None,
        is_clock_accepted: bool = False,
        sweeps: bool = True,
        parking: Parking | None = None,
        evaluate: Evaluate | None = None,
        follow_ms: int = 500,
        has_key: Callable[[str, VerifierKey], bool] | None = None,
        ask_witnesses: Callable[[], Awaitable[Seen]] | None = None,
    ) -> None:
        load_deciders()
        assert origin == signer.origin, "the signer must be of this ledger"
        self.counters = Counters()
        self.parking = Parking() if parking is None else parking
        """Where claims wait before they stand in line; it is told of every confirmed batch."""
        self.failed = asyncio.Event()
        """Set once, when a Fatal has ended the writer for good; `failure` says why. Reads may go on, but no decision
        will. Who serves awaits it beside the signal to stop, drains, and ends with a non-zero status, so that a
        supervisor starts anew."""
        self._store, self._signer = store, signer
        self._is_shared = store.is_shared
        self._store_clock = StoreClock(clock) if store.is_shared else None
        whose = "the database server's" if store.is_shared else "this machine's"
        self._clock = LogClock(self._store_clock or clock, whose)
        self._boottime_ms = clock.boottime_ms
        self._rules = Rules(Imprint(origin, genesis.hex(), store.durability), parameters, evaluate)
        self._genesis = genesis
        self._mark = _nothing if trace is None else trace
        self._is_clock_accepted = is_clock_accepted
        self._sweeps, self._follow_ms = sweeps, follow_ms
        self._has_key, self._ask_witnesses = has_key, ask_witnesses
        self._thread = Worker("tallystick-commit")
        self._line, self._wake, self._orphans = Line(), asyncio.Event(), Orphans()
        self._asked: list[asyncio.Future[None]] = []
        self._tail = Tail(signer, self._clock, self.parking, self.counters, self._mark)
        self._hear: Callable[[], None] = lambda: None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- what others see ----------------------------------------------------------------------------------------------

    @property
    def confirmed(self) -> Confirmed:
        """Return the newest head that is committed and signed; readers never show more."""
        assert self._tail.confirmed is not None, "the sequencer was started"
        return self._tail.confirmed

    @property
    def view(self) -> Live:
        """Return the hot records at the confirmed head. To look at, on the loop's thread only."""
        return self._tail.view

    @property
    def entries(self) -> Counter[str]:
        """Return how many entries of each type this node wrote since the start; read by the metrics."""
        return self._tail.entries

    @property
    def evaluator(self) -> Evaluate | None:
        """Return what evaluates rule sets; None where nothing can."""
        return self._rules.evaluate

    @property
    def time_ms(self) -> int:
        """Return what log time would be now."""
        book = self._tail.book or self._tail.draft
        return self._clock.peek(book.head.time_ms if book else 0)

    @property
    def is_ready(self) -> bool:
        """Say whether a command would be decided now."""
        is_open = bool(self._tasks) and self.failure is None and not self._is_stopping and not self.damage
        is_free = not (self.is_stalled or self.is_away or self.is_kept_out)
        return is_open and self._has_begun and self.unfit is None and is_free

    @property
    def queue_depth(self) -> int:
        """Return how many commands wait."""
        return len(self._line)

    @property
    def clock_alarms(self) -> int:
        """Return how often the wall clock was further ahead than elapsed time allows."""
        return self._clock.alarms

    # -- doors --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Check the stored ledger and write the entries of a start. Fatal: it must not go on. Busy: try again.

        Where other nodes write too, a ledger that could be read is enough: until its start can be written, what was
        signed is shown, nothing is decided, and each tick tries again.
        """
        try:
            if self._is_shared:
                self._store.listen(self._hint)
            await self._insist(self._open)
        except Busy as busy:
            if self._tail.confirmed is None:
                self._thread.shutdown()
                raise
            self._heed(busy)
            _log.warning("the ledger is shown, but nothing is decided yet: %s", busy)
        except BaseException:
            self._thread.shutdown()
            raise
        self._loop = asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(self._run(), name="sequencer")]
        if self._sweeps:
            self._tasks.append(asyncio.create_task(self._sweep(), name="sweeper"))
        if self._is_shared and self._follow_ms:
            self._tasks.append(asyncio.create_task(self._follower().run(), name="follower"))

    async def submit(
        self, request: SignedRequest, action: Action, check: Callable[[View], object] | None = None
    ) -> Answer:
        """Return the committed and signed answer to a verified request. Refused, Busy, Fatal, and whatever `check`
        raises when it is shown the records that would be decided on."""
        assert action.decide is not None, "only decisions are submitted"
        if self.damage:
            raise Damaged(self.damage)
        answer = await self._wait(Waiting(self._future(), request, action.decide, check=check))
        assert answer is not None, "a request is always answered"
        return answer

    async def dispute(self, note: bytes, checkpoint: Checkpoint) -> None:
        """Record the proof of a second history and stop all grants; returns when that is durable."""
        signed = [key for key in self._signer.own_keys(checkpoint.size) if is_signed_once(checkpoint.note, key)]
        await self._wait(Waiting(self._future(), step=disputed(note, checkpoint, signed)))

    async def witness(self, note: bytes, checkpoint: Checkpoint) -> None:
        """Write a checkpoint that witnesses cosigned into the ledger; returns when that is durable."""
        await self._wait(Waiting(self._future(), step=witnessed(note, checkpoint)))

    def keep_cosigned(self, note: bytes, checkpoint: Checkpoint) -> None:
        """Have the newest cosigned checkpoint kept, in place of the one before, with the next upkeep."""
        record = Cosigned(note.decode(), checkpoint.size, encode_base64(checkpoint.root))
        self._handed = (COSIGNED_KEY, record, None)

    async def catch_up(self) -> None:
        """Know what other nodes wrote before this call: afterwards `confirmed` and `view` show it.

        For who would else refuse because of something unknown. Nothing where the store is not shared. Busy (Unfit too)
        when it can't be found out within two seconds; then nobody may conclude that something is not there.
        """
        if not self._is_shared:
            return
        self._check_open()
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._wake.set()
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await asked
        except TimeoutError:
            raise Busy("store_busy") from None

    async def stop(self) -> None:
        """Refuse new commands, finish what waits, keep the signatures, close the store. May be called twice.

        A store that other machines take part in, and that stays silent, keeps nobody from stopping.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        self.parking.close()
        self._wake.set()
        for other in self._tasks[1:]:
            other.cancel()
        if await self._has_drained():
            await self._in_thread(self._store.close)
            self._thread.shutdown()

    async def _has_drained(self) -> bool:
        """Wait for the writer; False when it was given up, and with it whatever the store was asked last."""
        if not self._tasks:
            return True
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S if self._is_shared else None)
        if not late:
            return True
        _log.error("stopped while the store was silent; the outcome of what it was asked last is unknown")
        unknown = Busy("outcome_unknown", RETRY_DISK_S)
        self._fail([*self._serving, *self._line.take(len(self._line))], unknown)
        for task in late:
            task.cancel()
        self._thread.call(self._store.close)
        self._thread.shutdown(wait=False)
        return False

    def _follower(self) -> Follower:
        follower = Follower(self.catch_up, lambda: len(self.parking) > 0, self._follow_ms)
        self._hear = follower.hint
        return follower

    def _hint(self) -> None:
        """Be told, in any thread, that another node may have written."""
        self._hear()

    def _future(self) -> asyncio.Future[Answer | None]:
        # Asking for the running loop is a system call on Python 3.11, and this is done for each receipt.
        return (self._loop or asyncio.get_running_loop()).create_future()

    async def _wait(self, waiting: Waiting) -> Answer | None:
        """Stand in line and wait; who is cancelled here leaves the command in the line."""
        self._check_open()
        if self.unfit is not None:
            raise self.unfit
        try:
            self._line.join(waiting)
        except Busy:
            self.counters.busy += 1
            raise
        self._wake.set()
        return await waiting.future

    def _check_open(self) -> None:
        """Fatal or Busy when the writer takes nothing now."""
        if self.failure is not None:
            raise Fatal(str(self.failure))
        if self._is_stopping or not self._tasks:
            raise Busy("stopping")
        if self.is_stalled:
            raise Busy("store_stalled", RETRY_DISK_S)


def _nothing(stage: str, count: int) -> None:
    """Nobody measures."""
