"""One batch on its way through the store: head taken, decided, committed, signed, answered.

House rules of this file:

* Between `lock` and `commit` every way out gives the head back.
* Where other nodes write too, what they wrote since is followed first, under the head; who came meanwhile goes along.
* A command that can't be built takes no other with it, nor does a waiter that can't be answered.

Source: docs/architecture.md, life of a signed request; docs/protocol.md, commit.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from gateway.clock import LogClock, StoreClock
from gateway.core.append import Batch
from gateway.core.opening import Cause, start_steps
from gateway.core.outcome import Replay, Unreceipted
from gateway.core.record_codec import decode_record
from gateway.core.record_keys import COLD_PREFIXES
from gateway.core.records import Record
from gateway.errors import Busy, Fatal, Unfit
from gateway.ledger.commits import Commits
from gateway.ledger.history import Answer, Book, open_book, stored_answer
from gateway.ledger.line import Waiting
from gateway.ledger.live import cold_keys
from gateway.ledger.orphans import lots
from gateway.ledger.turn import Found, Rules, Turn, decide_batch, make_turn, repeated, result_of
from gateway.signer import Signer
from gateway.store.contract import Locked, Reading, SignedBatch, StoredCheckpoint
from verifier.note import VerifierKey

BATCH_MAX = 256
DECIDE_MS_MAX = 100  # for one batch: a renewal behind a burst of dear questions waits for this, not for all of them
CARRIED_MAX = 4_096  # nonces burnt by replays that wait for a commit to go along with
TOP_UP_MS = 2  # a head that was waited for longer was another node's, and more came meanwhile
UNSIGNED_MAX = 1_024  # batches signed again at a start; older ones are upkeep

# Of a ledger that is read and its size: Fatal when a witness has seen what is not in it.
Seen: TypeAlias = Callable[[Reading, int], None]
_log = logging.getLogger("tallystick.sequencer")


class Batches(Commits):
    """What a sequencer does with a batch. Who derives from it makes what is declared here."""

    _signer: Signer
    _clock: LogClock
    _store_clock: StoreClock | None
    _boottime_ms: Callable[[], int]
    _rules: Rules
    _genesis: bytes
    _serve: Callable[[list[Waiting]], Awaitable[None]]
    _keep: Callable[[], Awaitable[int]]
    _has_key: Callable[[str, VerifierKey], bool] | None
    _ask_witnesses: Callable[[], Awaitable[Seen]] | None
    _seen: Seen | None = None  # what witnesses say of the server that the draft was read from
    _is_clock_accepted: bool
    cosigned: bytes | None = None
    """The newest checkpoint that witnesses cosigned, as the start found it; whoever uses it verifies it."""
    _has_begun = False  # the entries of this process's start are written

    # -- opening ------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Read and check the stored ledger, then write the entries of a start. The same for start and recovery."""
        tail = self._tail
        if tail.draft is None or not self._is_shared:
            confirmed = tail.confirmed
            self._seen = _asked_before if confirmed is None else None
            tail.read(await self._in_thread(open_book, self._store, self._signer, self._genesis, confirmed))
        book = tail.draft
        assert book is not None, "a ledger that was read"
        await self._ask_again()
        try:
            if self._is_shared:
                await self._lock(book, (), ())
                await self._check_seen(book)
            turn = self._start_turn(book)
        except BaseException:
            await self._unlock()
            raise
        await self._finish(book, turn)
        tail.open(book)
        self.counters.recoveries += self._has_begun
        self._has_begun = True
        if self._is_shared:
            await self._sign_again(book, book.unsigned[-UNSIGNED_MAX:])

    async def _ask_again(self) -> None:
        """Ask the witnesses what they have seen, once for each server that the ledger is read from."""
        if self._is_shared and self._ask_witnesses is not None and self._seen is None:
            self._seen = await self._ask_witnesses()

    async def _check_seen(self, book: Book) -> None:
        """Fatal when a witness has seen more than lies here, or something else: this server lost what was confirmed."""
        if self._seen is not None:
            await self._in_thread(self._seen, self._store, book.head.size)

    def _start_turn(self, book: Book) -> Turn:
        """Decide the entries of a start on a book whose head is ours."""
        cause: Cause = "recovery" if self._has_begun else "start"
        self._check_keys()
        if not self._has_begun:
            self.cosigned = book.cosigned
            self._clock.start(book.head.time_ms, is_accepted=self._is_clock_accepted)
        steps = start_steps(cause, is_clean=book.is_clean, before_ms=book.head.time_ms)
        t_ms = self._clock.next(book.head.time_ms)
        _, batch = decide_batch(book, self._rules, (), Found(), t_ms=t_ms, steps=steps, epoch_gain=1)
        return make_turn(book, (), batch, self._tail.carried)

    def _check_keys(self) -> None:
        """Unfit while this node lacks the private half of a key in force; one that came meanwhile is taken."""
        if not self._is_shared:
            return  # a start found all of them, and nobody else puts any in force
        for line in self._signer.missing():
            if self._has_key is None or not self._has_key(line.purpose, line.key):
                raise Unfit(
                    f"the {line.purpose} key {line.key.vkey} is in force by the ledger, but this node has no private"
                    " half of it; copy its file from the node that announced it into keys/"
                )

    async def _sign_again(self, book: Book, batches: Sequence[StoredCheckpoint]) -> None:
        """Sign what nobody has kept the signatures of; they are kept with the next commit or upkeep."""
        confirmed = self._tail.confirmed
        assert confirmed is not None, "an open ledger"
        for lot in lots(self._store, self._signer, batches, confirmed):
            book.unsaved.extend(await self._in_thread(lot))

    # -- deciding -----------------------------------------------------------------------------------------------------

    async def _attempt(self, waiting: list[Waiting]) -> None:
        """Decide, commit, sign and answer one batch, or raise with nothing of it left."""
        if len(self._tail.carried) > 2 * CARRIED_MAX:  # upkeep keeps failing; memory must not grow with replays
            raise Busy("store_busy")
        book = self._tail.book or await self._recover()
        try:
            found = await self._look_up(book, waiting)
            self._check_who_may(book, waiting)
        except BaseException:
            await self._unlock()
            raise
        try:
            turn = self._decide(book, waiting, found)
        except Exception as error:
            await self._unlock()
            await self._isolate(waiting, error)
            return
        await self._finish(book, turn)

    def _check_who_may(self, book: Book, waiting: list[Waiting]) -> None:
        """Unfit when we may not. Turn away whom the door let in by what it knew then: another node revokes API keys.

        Whom the door vouches for stands before the others, for one of those may be the revocation.
        """
        self._check_keys()
        for one in [*waiting]:
            try:
                if one.check is not None:
                    one.check(book.live)
            except Exception as error:
                waiting.remove(one)
                self._answer(one, error)
        waiting.sort(key=lambda one: one.check is None)

    async def _recover(self) -> Book:
        """Open the ledger anew, and return the book."""
        await self._open()
        assert self._tail.book is not None, "an opened ledger"
        return self._tail.book

    def _decide(self, book: Book, waiting: list[Waiting], found: Found) -> Turn:
        """Decide as many as the time suffices for; the others leave `waiting` and stand in line again."""
        t_ms, until_ms = self._clock.next(book.head.time_ms), self._boottime_ms() + DECIDE_MS_MAX
        decided, batch = decide_batch(
            book, self._rules, waiting, found, t_ms=t_ms, is_over=lambda: self._boottime_ms() >= until_ms
        )
        self._mark("decided", len(batch.leaves))
        self._put_back(waiting, decided)
        turn = make_turn(book, decided, batch, self._tail.carried)
        self._mark("built", len(batch.leaves))
        return turn

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
        for one in [*waiting]:
            await self._serve([one])

    async def _look_up(self, book: Book, waiting: list[Waiting]) -> Found:
        """Take the head, and return the cold records and the roots that deciding the batch needs.

        Who came while another node had the head joins `waiting`, so that a node that waits longer takes more along.
        """
        begun_ms = self._boottime_ms()
        keys, roots, unknown = self._wanted(book, waiting)
        locked = await self._lock(book, keys, unknown)
        found = self._found(locked, roots)
        self._mark("locked", len(waiting))
        if not self._is_shared or not waiting or self._boottime_ms() - begun_ms < TOP_UP_MS:
            return found
        more = self._line.take(BATCH_MAX - sum(one.weight for one in waiting))
        if not more:
            return found
        waiting.extend(more)
        keys, roots, unknown = self._wanted(book, more)
        looked = self._found(await self._in_thread(self._store.look, keys, unknown), roots)
        return Found({**looked.records, **found.records}, {**looked.roots, **found.roots})

    def _wanted(self, book: Book, waiting: Sequence[Waiting]) -> tuple[list[str], dict[int, bytes], list[int]]:
        """Return the keys of cold records that requests need, the roots that we know, and the sizes of the others."""
        requests = [one.request for one in waiting if one.request is not None]
        keys = [key for request in requests for key in cold_keys(request)]
        sizes = {request.anchor.size for request in requests}
        roots = {size: root for size in sizes if (root := self._tail.anchors.get(size)) is not None}
        unknown = [size for size in sizes if size not in roots and (self._is_shared or size <= book.head.size)]
        return keys, roots, unknown

    def _found(self, locked: Locked, roots: Mapping[int, bytes]) -> Found:
        records: dict[str, Record | None] = {key: decode_record(key, value) for key, value in locked.records.items()}
        records.update((key, record) for key, record, _ in self._tail.carried.values())
        known = {**roots, **locked.roots}
        for size, root in known.items():
            self._tail.know_anchor(size, root)
        return Found(records, known)

    async def _lock(self, book: Book, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        """Take the head, and follow what other nodes wrote before it."""
        locked = await self._in_thread(self._store.lock, book.head, keys, sizes)
        if self._store_clock is not None:
            self._store_clock.told(locked.wall_ms)
        if locked.moved:
            self._tail.follow(book, locked.moved)
        return locked

    async def _unlock(self) -> None:
        """Give the head back, without a write. Nothing where it is nobody else's."""
        if self._is_shared:
            await self._in_thread(self._store.unlock)

    # -- commit, sign, answer -----------------------------------------------------------------------------------------

    async def _finish(self, book: Book, turn: Turn) -> None:
        signed: SignedBatch | None = None
        if turn.stored is None:
            # Hot ones are under the head's seal and change with an entry only; what was due is found due again.
            changes = (one for one in turn.batch.changes if one[0].startswith(COLD_PREFIXES))
            self._tail.carried.update((one[0], one) for one in changes)
            await self._unlock()
            await self._confirm(book)
        else:
            await self._commit(book, turn.stored)
            signed = self._tail.take(book, turn, turn.stored)
        self._deliver(turn, signed, await self._replays(turn.batch))
        if len(self._tail.carried) > CARRIED_MAX:
            await self._keep()

    async def _replays(self, batch: Batch) -> dict[int, Answer]:
        """Return the answers of earlier batches that this one repeats, as far as they can be read."""
        wanted, confirmed = repeated(batch), self._tail.confirmed
        if not wanted or confirmed is None:
            return {}
        try:
            return await self._in_thread(
                lambda: {
                    seq: stored_answer(self._store, self._signer, confirmed, seq, status)
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


def _asked_before(read: Reading, size: int) -> None:
    """Who starts a process asks the witnesses before there is a sequencer."""
