"""The sequencer: the only writer of the ledger.

House rules of this file:

* One task owns the tail. Others hand it commands through a bounded line and wait; when the line is full they are
  told so (`Busy`). A waiter that goes away abandons its answer and nothing else.
* A batch is what has arrived when the writer is free, about BATCH_MAX commands, as far as it is decided in
  DECIDE_MS_MAX; the rest stands at the front of the line again. Commands that came as one request are not divided. The
  writer turns the loop a few times to let in what lies in the sockets, and never waits for a clock.
* Decide, hash and sign on the loop's thread; look up and commit on one named thread. Nobody can cancel a COMMIT there.
* Commit, then sign, then answer. What was not committed has not happened, so nothing of it is signed or shown, and
  `confirmed` moves only after both. Signatures go into the store with the next batch, at idle, or at stop; until then
  they can be made again from committed bytes.
* After an unclear commit, find out; what did not land is decided again from scratch on a ledger read anew, and is Busy
  when it never lands. Who can't find out stops (`Fatal`): then nobody is answered and nothing is written until a
  person has looked.

Stop order: refuse new, send the parked away, drain, commit, answer, keep the signatures, close the store.
Source: docs/architecture.md, life of a signed request; docs/protocol.md, commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from gateway.actions import Action, load_deciders
from gateway.clock import Clocks, LogClock
from gateway.core.append import Batch, Imprint
from gateway.core.dispute import disputed
from gateway.core.intake import SignedRequest
from gateway.core.opening import Cause, start_steps
from gateway.core.outcome import Replay, Unreceipted
from gateway.core.outcome import Rules as Evaluate
from gateway.core.state import (
    COLD_PREFIXES,
    COSIGNED_KEY,
    EXPENDABLE_PREFIXES,
    Change,
    Cosigned,
    Parameters,
    Record,
    Session,
    decode_record,
)
from gateway.core.witnessed import witnessed
from gateway.errors import Busy, Damaged, Fatal, HeadMoved, Unfit, Unknown
from gateway.ledger.checkpoint import check_release, sign_batch
from gateway.ledger.history import Answer, Book, Confirmed, open_book, stored_answer
from gateway.ledger.line import Line, Waiting
from gateway.ledger.live import Live, cold_keys
from gateway.ledger.parking import Parking
from gateway.ledger.turn import (
    Found,
    Refused,
    Rules,
    Turn,
    decide_batch,
    encode_changes,
    make_turn,
    repeated,
    result_of,
    type_of,
)
from gateway.ledger.worker import Worker
from gateway.signer import Signer
from gateway.store.contract import SignedBatch, Store, StoredBatch, Upkeep
from verifier.checkpoint import Checkpoint
from verifier.note import VerifierKey, is_signed_once
from verifier.wire import encode_base64

__all__ = ["Answer", "Confirmed", "Counters", "Refused", "Sequencer", "Trace"]

BATCH_MAX = 256
DECIDE_MS_MAX = 100  # for one batch: a renewal behind a burst of dear questions waits for this, not for all of them
GATHER_TURNS_QUIET = 3  # a request needs about two turns from its socket to the line
GATHER_TURNS_MAX = 128  # of a few requests each: nobody in line waits longer than for a batch
ATTEMPTS_MAX = 3  # for one batch; a head that moves again and again has another writer
RETRY_DISK_S = 5  # a person has to look, but a disk that is only slow recovers by itself
ANCHORS_MAX = 8_192  # newest (size, root) kept in memory; older ones are looked up
CARRIED_MAX = 4_096  # nonces burnt by replays that wait for a commit to go along with
FORGET_MAX = 2_048  # records per idle step: a few ms of the commit thread
FORGET_STEPS_MAX = 16

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("tallystick.sequencer")


class Trace(Protocol):
    """Is told when a stage of a batch of `count` entries ends; the bench measures with it. None costs nothing.

    Stages, in order: locked, decided, built, committed, signed, checked, delivered.
    """

    def __call__(self, stage: str, count: int, /) -> None: ...


@dataclass(slots=True)
class Counters:
    """What happened since the start; read by the metrics."""

    batches: int = 0
    receipts: int = 0
    replays: int = 0
    refused: int = 0
    busy: int = 0
    recoveries: int = 0
    abandoned: int = 0
    forgotten: int = 0
    shared_sessions: int = 0


class Sequencer:
    """Owns one store. `start`, then any number of `submit`s, then `stop`.

    `genesis` is the leaf hash of entry 0 and `parameters` what it states. `is_clock_accepted` is an operator's word
    that the wall clock may be behind the ledger. Without `sweeps` somebody else calls `tick` (tests do). `evaluate`
    answers for rule sets; without it nothing is admitted while one is in force. On a store that other nodes write too,
    what they wrote is looked at every `follow_ms`. `has_key` looks once more for the private half of a key, by purpose.
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
    ) -> None:
        load_deciders()
        assert origin == signer.origin, "the signer must be of this ledger"
        self.counters = Counters()
        self.entries: Counter[str] = Counter()
        """How many entries of each type were written since the start; read by the metrics."""
        self.parking = Parking() if parking is None else parking
        """Where claims wait before they stand in line; it is told of every confirmed batch."""
        self._store = store
        self._signer = signer
        self._clock = LogClock(clock)
        self._boottime_ms = clock.boottime_ms
        self._follow_ms, self._has_key = follow_ms, has_key
        self.unfit: Unfit | None = None
        """Why nothing is decided until an operator has changed a setting, or brought a key; reads go on meanwhile."""
        self._rules = Rules(Imprint(origin, genesis.hex(), store.durability), parameters, evaluate)
        self._genesis = genesis
        self._trace = trace
        self._is_clock_accepted = is_clock_accepted
        self._sweeps = sweeps
        self._thread = Worker("tallystick-commit")
        self._line = Line()
        self._wake = asyncio.Event()
        self._book: Book | None = None  # None: must be read from the store before anything is decided
        self._view = Live()
        self._confirmed: Confirmed | None = None
        self._anchors: OrderedDict[int, bytes] = OrderedDict()
        self._carried: dict[str, Change] = {}
        self._handed: Change | None = None  # from outside the writer, who takes it over when it keeps things
        self.cosigned: bytes | None = None
        """The newest checkpoint that witnesses cosigned, as the start found it; whoever uses it verifies it."""
        self._has_tick = False
        self._is_stopping = False
        self.damage = ""
        """Set by who found out that this ledger is damaged: a code. From then on nothing is decided, and no lease ends
        or is offered, until an operator has looked; reads go on."""
        self.failure: Fatal | None = None
        """Why nothing is decided any more; its text is for the operator."""
        self.failed = asyncio.Event()
        """Set once, when a Fatal has ended the writer for good; `failure` says why. Reads may go on, but no decision
        will. Who serves awaits it beside the signal to stop, drains, and ends with a non-zero status, so that a
        supervisor starts anew."""
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- what others see ----------------------------------------------------------------------------------------------

    @property
    def confirmed(self) -> Confirmed:
        """Return the newest head that is committed and signed; readers never show more."""
        assert self._confirmed is not None, "the sequencer was started"
        return self._confirmed

    @property
    def view(self) -> Live:
        """Return the hot records at the confirmed head. To look at, on the loop's thread only."""
        return self._view

    @property
    def evaluator(self) -> Evaluate | None:
        """Return what evaluates rule sets; None where nothing can."""
        return self._rules.evaluate

    @property
    def time_ms(self) -> int:
        """Return what log time would be now."""
        return self._clock.peek(self._book.head.time_ms if self._book else 0)

    @property
    def is_ready(self) -> bool:
        """Say whether a command would be decided now."""
        is_open = bool(self._tasks) and self.failure is None and self.unfit is None
        return is_open and not self._is_stopping and not self.damage

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
        """Check the stored ledger and write the entries of a start. Fatal: it must not go on. Busy: try again."""
        try:
            await self._insist(lambda: self._open("start"))
        except BaseException:
            self._thread.shutdown()
            raise
        self._loop = asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(self._run(), name="sequencer")]
        if self._sweeps:
            self._tasks.append(asyncio.create_task(self._sweep(), name="sweeper"))

    async def submit(self, request: SignedRequest, action: Action) -> Answer:
        """Return the committed and signed answer to a verified request. Refused, Busy, Fatal."""
        assert action.decide is not None, "only decisions are submitted"
        if self.damage:
            raise Damaged(self.damage)
        answer = await self._wait(Waiting(self._future(), request, action.decide))
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

    def tick(self) -> None:
        """Let due leases end, and do the upkeep if nobody waits."""
        self._has_tick = True
        self._wake.set()

    async def stop(self) -> None:
        """Refuse new commands, finish what waits, keep the signatures, close the store. May be called twice."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self.parking.close()
        self._wake.set()
        for sweeper in self._tasks[1:]:
            sweeper.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._in_thread(self._store.close)
        self._thread.shutdown()

    def _future(self) -> asyncio.Future[Answer | None]:
        # Asking for the running loop is a system call on Python 3.11, and this is done for each receipt.
        return (self._loop or asyncio.get_running_loop()).create_future()

    async def _wait(self, waiting: Waiting) -> Answer | None:
        """Stand in line and wait; who is cancelled here leaves the command in the line."""
        if self.failure is not None:
            raise Fatal(str(self.failure))
        if self._is_stopping or not self._tasks:
            raise Busy("stopping")
        if self.unfit is not None:
            raise self.unfit
        try:
            self._line.join(waiting)
        except Busy:
            self.counters.busy += 1
            raise
        self._wake.set()
        return await waiting.future

    # -- the writer ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Take batch after batch until stopped and drained. A Fatal ends it; anything unforeseen is one."""
        try:
            while self._line or not self._is_stopping:
                await self._wake.wait()
                self._wake.clear()
                await self._drain()
            await self._keep(is_closing=True)
        except Fatal as failure:
            self._die(failure)
        except Exception as error:
            _log.exception("the sequencer met an error that nobody foresaw")
            self._die(Fatal(f"the sequencer stopped: {type(error).__name__}: {error}; restart, and report it"))

    async def _drain(self) -> None:
        """Decide everything that waits, and do what a tick asks for between two batches."""
        while self._line or self._has_tick:
            if self._line:
                await self._gather()
                await self._serve(self._line.take(BATCH_MAX))
            if self._has_tick:
                self._has_tick = False
                await self._on_tick()

    async def _gather(self) -> None:
        """Let in who is at the door: turn the loop while turns bring commands. No timer, so an idle gateway goes on at
        once, and a busy one reads requests that it would read anyway before the next commit, not during it."""
        quiet = 0
        for _ in range(GATHER_TURNS_MAX):
            before = len(self._line)
            if quiet == GATHER_TURNS_QUIET or before >= BATCH_MAX or self._is_stopping:
                return
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._line) == before else 0

    async def _on_tick(self) -> None:
        """End due leases, then upkeep: one step only while others wait, for each batch ends leases as well."""
        is_moving = not self.damage
        while is_moving and not self._line and (self._book is None or self._view.due(self.time_ms, 1)):
            before = self.confirmed.size
            await self._serve([])
            is_moving = self.confirmed.size > before  # in a holiday, and while the store is busy, nothing ends
        for _ in range(FORGET_STEPS_MAX):
            forgotten = await self._keep(forget_max=FORGET_MAX)
            if forgotten < FORGET_MAX or self._line:
                return

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._rules.parameters.sweep_ms / 1_000)
            self.tick()

    async def _serve(self, waiting: list[Waiting]) -> None:
        """See a batch through to its answers, whatever they are; only a Fatal goes on upwards.

        Those for whom the time does not suffice leave `waiting` and stand in line again.
        """
        try:
            await self._insist(lambda: self._attempt(waiting))
        except Busy as busy:
            self.counters.busy += len(waiting)
            self._fail(waiting, busy)
        except Exception as failure:
            self._fail(waiting, failure)
            raise

    async def _insist(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Try again on a ledger read anew after the head moved, or after a batch that is proven absent.

        A disk that takes nothing is Busy, for nothing happened: whoever comes next tries again, and one that is well
        again goes on. A head that moves is Fatal.
        """
        last: HeadMoved | None = None
        for _ in range(ATTEMPTS_MAX):
            try:
                return await attempt()
            except HeadMoved as moved:
                _log.warning("reading the ledger anew: %s", moved)
                self._book, last = None, moved
        if last is not None and isinstance(last.__cause__, Unknown):
            _log.error("the disk takes no batch: %s", last.__cause__)
            raise Busy("disk_failing", RETRY_DISK_S) from last
        raise Fatal(f"the head of the ledger keeps moving; another gateway writes to it. Stop one of them ({last})")

    async def _open(self, cause: Cause) -> None:
        """Read and check the stored ledger, then write the entries of a start. The same for start and recovery."""
        book = await self._in_thread(open_book, self._store, self._signer, self._genesis, self._confirmed)
        if cause == "start":
            self.cosigned = book.cosigned
            self._clock.start(book.head.time_ms, is_accepted=self._is_clock_accepted)
        steps = start_steps(cause, is_clean=book.is_clean, before_ms=book.head.time_ms)
        t_ms = self._clock.next(book.head.time_ms)
        _, batch = decide_batch(book, self._rules, (), Found(), t_ms=t_ms, steps=steps, epoch_gain=1)
        await self._finish(book, make_turn(book, (), batch, self._carried))
        self._book = book
        self.parking.look_again(self._view)

    async def _attempt(self, waiting: list[Waiting]) -> None:
        """Decide, commit, sign and answer one batch, or raise with nothing of it left."""
        if len(self._carried) > 2 * CARRIED_MAX:  # upkeep keeps failing; memory must not grow with replays
            raise Busy("store_busy")
        if self._book is None:
            self.counters.recoveries += 1
            await self._open("recovery")
        book = self._book
        assert book is not None, "an opened ledger"
        found = await self._look_up(book, waiting)
        t_ms, until_ms = self._clock.next(book.head.time_ms), self._boottime_ms() + DECIDE_MS_MAX
        try:
            decided, batch = decide_batch(
                book, self._rules, waiting, found, t_ms=t_ms, is_over=lambda: self._boottime_ms() >= until_ms
            )
            self._mark("decided", len(batch.leaves))
            self._put_back(waiting, decided)
            turn = make_turn(book, decided, batch, self._carried)
        except Exception as error:
            await self._isolate(waiting, error)
            return
        self._mark("built", len(batch.leaves))
        await self._finish(book, turn)

    def _put_back(self, waiting: list[Waiting], decided: Sequence[Waiting]) -> None:
        """Send back whom the time did not suffice for; from here on the batch, and every retry of it, is the others."""
        if len(decided) < len(waiting):
            done = set(decided)
            self._line.put_back([one for one in waiting if one not in done])
            waiting[:] = decided

    async def _isolate(self, waiting: Sequence[Waiting], error: Exception) -> None:
        """Nothing was written. One command must not take others with it: decide each alone, and give up on the one."""
        _log.error("a batch of %d could not be built", len(waiting), exc_info=error)
        if not waiting:
            raise Fatal(
                f"the gateway's own entries can't be built: {type(error).__name__}: {error}; restart, and report it"
            ) from error
        if len(waiting) == 1:
            self._fail(waiting, error)
            return
        for one in waiting:
            await self._serve([one])

    async def _look_up(self, book: Book, waiting: Sequence[Waiting]) -> Found:
        """Return the cold records and the roots that deciding the batch needs; the head is still ours."""
        requests = [one.request for one in waiting if one.request is not None]
        keys = [key for request in requests for key in cold_keys(request)]
        sizes = {request.anchor.size for request in requests}
        roots = {size: root for size in sizes if (root := self._anchors.get(size)) is not None}
        unknown = [size for size in sizes if size not in roots and size <= book.head.size]
        locked = await self._in_thread(self._store.lock, book.head, keys, unknown)
        records: dict[str, Record | None] = {key: decode_record(key, value) for key, value in locked.records.items()}
        records.update((key, record) for key, record, _ in self._carried.values())
        roots.update(locked.roots)
        for size, root in roots.items():
            self._know_anchor(size, root)
        self._mark("locked", len(waiting))
        return Found(records, roots)

    # -- commit, sign, answer -----------------------------------------------------------------------------------------

    async def _finish(self, book: Book, turn: Turn) -> None:
        signed: SignedBatch | None = None
        if turn.stored is None:
            # Hot ones are under the head's seal and change with an entry only; what was due is found due again.
            self._carried.update((one[0], one) for one in turn.batch.changes if one[0].startswith(COLD_PREFIXES))
        else:
            await self._commit(book, turn.stored)
            signed = self._release(book, turn, turn.stored)
        self._deliver(turn, signed, await self._replays(turn.batch))
        if len(self._carried) > CARRIED_MAX:
            await self._keep()

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
        try:
            return await self._in_thread(self._store.landed, batch_id)
        except Exception as error:
            raise Fatal(
                f"nobody knows whether a batch was committed: {error}; restart when the store is back"
            ) from error

    def _release(self, book: Book, turn: Turn, stored: StoredBatch) -> SignedBatch:
        """Take over a committed batch: sign it, look at one receipt, and only then let it be seen.

        One step without an await, so that no other task ever sees half of it.
        """
        batch, growth, head = turn.batch, turn.growth, stored.head
        self._signer.heed_changes(batch.changes)
        signed = sign_batch(self._signer, head.size, head.root, batch.leaves)
        self._mark("signed", len(batch.leaves))
        at = self.counters.batches % len(batch.leaves)
        check_release(self._signer, growth, batch.first_seq, batch.leaves, signed.signatures, at)
        book.head, book.edge, book.unsaved = head, growth.edge, [signed]
        assert turn.sealing is not None, "what was stored was sealed"
        book.seal.take(turn.sealing)
        self._note_shared(book.live, batch.changes)
        book.live.apply(batch.changes)
        self._carried.clear()
        self._clock.seen(head.time_ms)
        self._view = book.live
        self._confirmed = Confirmed(head.size, head.root, signed.note)
        self._know_anchor(head.size, head.root)
        self.parking.tell(batch.changes)
        self.counters.batches += 1
        self.counters.receipts += len(batch.leaves)
        self.entries.update(map(type_of, batch.leaves))
        self._mark("checked", len(batch.leaves))
        return signed

    def _note_shared(self, before: Live, changes: Sequence[Change]) -> None:
        """Tell the operator once of each session whose requests show that two processes have its key."""
        for key, record, _ in changes:
            if isinstance(record, Session) and record.shared_seq is not None:
                earlier = before.get(key)
                if not isinstance(earlier, Session) or earlier.shared_seq != record.shared_seq:
                    self.counters.shared_sessions += 1
                    _log.warning(
                        "two processes use the key of session %s, as entry %d shows", record.did, record.shared_seq
                    )

    async def _replays(self, batch: Batch) -> dict[int, Answer]:
        """Return the answers of earlier batches that this one repeats, as far as they can be read."""
        wanted = repeated(batch)
        if not wanted:
            return {}
        try:
            return await self._in_thread(
                lambda: {
                    seq: stored_answer(self._store, self._signer, self.confirmed, seq, status)
                    for seq, status in wanted.items()
                }
            )
        except Exception as error:  # the batch itself is committed and must be answered
            _log.error("earlier answers could not be read", exc_info=error)
            return {}

    def _deliver(self, turn: Turn, signed: SignedBatch | None, replays: Mapping[int, Answer]) -> None:
        """Answer everybody. Nothing that happens to one waiter may reach another, or the writer."""
        commands = [one for one in turn.waiting if one.request is not None]
        for one, outcome in zip(commands, turn.batch.answers, strict=True):
            self.counters.refused += isinstance(outcome, Unreceipted)
            self.counters.replays += isinstance(outcome, Replay)
            try:
                result = result_of(outcome, turn, signed, replays, self._signer)
            except Exception as error:
                _log.error("an answer could not be made", exc_info=error)
                result = error
            self._answer(one, result)
        for one in turn.waiting:
            if one.step is not None:
                self._answer(one, None)
        for fault in turn.batch.faults:
            _log.error("a decision failed", exc_info=fault)
        self._mark("delivered", len(turn.batch.leaves))

    def _answer(self, waiting: Waiting, result: Answer | Exception | None) -> None:
        if not waiting.answer(result):
            self.counters.abandoned += 1

    def _fail(self, waiting: Sequence[Waiting], error: Exception) -> None:
        for one in waiting:
            self._answer(one, error)

    def _die(self, failure: Fatal) -> None:
        """Stop for good: everybody who waits is told, and nobody is let in any more."""
        _log.critical("stopped: %s", failure)
        self.failure = failure
        self.failed.set()
        self._fail(self._line.take(len(self._line)), failure)
        self.parking.wake_all()

    # -- upkeep -------------------------------------------------------------------------------------------------------

    async def _keep(self, *, forget_max: int = 0, is_closing: bool = False) -> int:
        """Store what waits for a chance, forget what is due; whatever fails is tried another time."""
        book = self._book
        if book is None:
            return 0
        if self._handed is not None:
            self._carried[self._handed[0]], self._handed = self._handed, None
        upkeep = Upkeep(
            signed=tuple(book.unsaved),
            changes=encode_changes(self._carried.values()),
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
        book.unsaved = []
        book.live.forget(book.head.time_ms)
        self._carried.clear()
        self.counters.forgotten += forgotten
        return forgotten

    def _know_anchor(self, size: int, root: bytes) -> None:
        """Remember a checkpoint of ours; those used last stay longest."""
        self._anchors[size] = root
        self._anchors.move_to_end(size)
        if len(self._anchors) > ANCHORS_MAX:
            self._anchors.popitem(last=False)

    def _mark(self, stage: str, count: int) -> None:
        if self._trace is not None:
            self._trace(stage, count)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in the commit thread."""
        return await self._thread.call(partial(call, *args, **kwargs))
