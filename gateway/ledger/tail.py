"""The end of the ledger as this process knows it, and how much of it may be shown.

House rules of this file:

* There are two heads. `book` stands at the one that the next batch is decided on; `confirmed` and `view` at the newest
  that is as durable as the store promises. Where nobody else writes, they differ only while a commit is under way.
* What other nodes wrote is followed as soon as it is seen, and shown when a commit or a confirmation of our own came
  after it. Parked claims are woken by the first: whether they are granted is decided in the line anyway.
* Everything happens on the loop's thread, each method in one step without an await, so nobody sees half of it.

Source: docs/architecture.md, life of a signed request; decisions.md §32 (nothing unreplicated is shown).
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from gateway.clock import LogClock
from gateway.core.records import Change, Session
from gateway.ledger.checkpoint import check_release, sign_batch
from gateway.ledger.follow import Followed, follow
from gateway.ledger.history import Book, Confirmed
from gateway.ledger.live import Live
from gateway.ledger.parking import Parking
from gateway.ledger.tally import Counters
from gateway.ledger.turn import Turn, type_of
from gateway.signer import Signer
from gateway.store.contract import SignedBatch, StoredBatch

ANCHORS_MAX = 8_192  # newest (size, root) kept in memory; older ones are looked up
_log = logging.getLogger("tallystick.sequencer")


class Tail:
    """Made empty; `read` and `open` give it a book, `drop` takes it away."""

    def __init__(
        self, signer: Signer, clock: LogClock, parking: Parking, counters: Counters, mark: Callable[[str, int], None]
    ) -> None:
        self.book: Book | None = None  # None: must be read from the store before anything is decided
        self.draft: Book | None = None  # read, but the entries of its start are not written yet
        self.view = Live()
        self.confirmed: Confirmed | None = None
        self.anchors: OrderedDict[int, bytes] = OrderedDict()
        self.carried: dict[str, Change] = {}
        self.entries: Counter[str] = Counter()
        self.behind: list[Followed] = []  # followed, and not shown yet
        self._signer = signer
        self._clock = clock
        self._parking = parking
        self._counters = counters
        self._mark = mark

    def read(self, book: Book) -> None:
        """Take over a ledger that was just read. The first one is shown as far as it was signed.

        Its records stand at the head, so while entries are unsigned, and perhaps on one server only, none is shown.
        """
        self.drop()
        self.anchors.clear()  # of a history that may have been another one
        self.draft = book
        if self.confirmed is None and book.shown is not book.live:
            self.confirmed = book.confirmed
            self.view = book.shown if book.head.size == book.confirmed.size else Live()

    def open(self, book: Book) -> None:
        """Decide on a book from now on: its start is written."""
        self.book, self.draft = book, None
        self._parking.look_again(self.view)

    def drop(self) -> None:
        """Know nothing of the ledger any more but what was confirmed."""
        self.book = self.draft = None
        self.behind.clear()

    def know_anchor(self, size: int, root: bytes) -> None:
        """Remember a checkpoint of ours; those used last stay longest."""
        self.anchors[size] = root
        self.anchors.move_to_end(size)
        if len(self.anchors) > ANCHORS_MAX:
            self.anchors.popitem(last=False)

    def follow(self, book: Book, moved: Sequence[StoredBatch]) -> None:
        """Know what other nodes wrote; nobody is shown it yet. HeadMoved: it does not fit, read the ledger anew."""
        for one in follow(book, moved):
            self.behind.append(one)
            self._signer.heed_changes(one.changes)
            self._clock.heard(one.head.time_ms)
            self.know_anchor(one.head.size, one.head.root)
            self._parking.tell(one.changes)
            self._counters.followed += 1

    def show(self, book: Book) -> None:
        """Show all that was followed: it was confirmed. The checkpoint is signed here as where it was written."""
        if self.behind:
            head = book.head
            self._show(book, Confirmed(head.size, head.root, self._signer.sign_checkpoint(head.size, head.root)), ())

    def take(self, book: Book, turn: Turn, stored: StoredBatch) -> SignedBatch:
        """Take over a batch of ours that was committed: sign it, look at one receipt, and only then let it be seen."""
        batch, growth, head, counters = turn.batch, turn.growth, stored.head, self._counters
        self._signer.heed_changes(batch.changes)
        signed = sign_batch(self._signer, head.size, head.root, batch.leaves)
        self._mark("signed", len(batch.leaves))
        at = counters.batches % len(batch.leaves)
        check_release(self._signer, growth, batch.first_seq, batch.leaves, signed.signatures, at)
        book.head, book.edge, book.unsaved = head, growth.edge, [signed]
        assert turn.sealing is not None, "what was stored was sealed"
        book.seal.take(turn.sealing)
        self._note_shared(book.live, batch.changes)
        book.live.apply(batch.changes)
        self.carried.clear()
        self._clock.seen(head.time_ms)
        self._show(book, Confirmed(head.size, head.root, signed.note), batch.changes)
        self.know_anchor(head.size, head.root)
        counters.batches += 1
        counters.receipts += len(batch.leaves)
        self.entries.update(map(type_of, batch.leaves))
        self._mark("checked", len(batch.leaves))
        return signed

    def _show(self, book: Book, confirmed: Confirmed, own: Sequence[Change]) -> None:
        """Let everybody see the book at its head: what was followed before, and `own` changes after that."""
        shown = [*self.behind]
        self.behind.clear()
        if book.shown is not book.live:
            for one in shown:
                book.shown.apply(one.changes)
            book.shown.apply(own)
        self.view, self.confirmed = book.shown, confirmed
        for one in shown:  # once more: who parked meanwhile has looked at what was shown
            self._parking.tell(one.changes)
        self._parking.tell(own)

    def forget(self, book: Book) -> None:
        """Drop what no longer counts, as the store does."""
        book.live.forget(book.head.time_ms)
        if book.shown is not book.live:
            book.shown.forget(book.head.time_ms)

    def _note_shared(self, before: Live, changes: Sequence[Change]) -> None:
        """Tell the operator once of each session whose requests show that two processes have its key."""
        for key, record, _ in changes:
            if isinstance(record, Session) and record.shared_seq is not None:
                earlier = before.get(key)
                if not isinstance(earlier, Session) or earlier.shared_seq != record.shared_seq:
                    self._counters.shared_sessions += 1
                    _log.warning(
                        "two processes use the key of session %s, as entry %d shows", record.did, record.shared_seq
                    )
