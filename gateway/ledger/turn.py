"""One batch on its way: what was looked up for it, what was decided, and what each waiter gets.

Nothing here waits or writes. The sequencer calls these between its looks at the store, and may call them again for
the same waiters after the head moved.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.append import Answer as Outcome
from gateway.core.append import Batch, Command, GatewayStep, Imprint, build_batch
from gateway.core.draft import Head
from gateway.core.outcome import Replay, Unreceipted
from gateway.core.outcome import Rules as Evaluate
from gateway.core.parameters import Parameters
from gateway.core.record_codec import encode_record
from gateway.core.records import Change, Record
from gateway.errors import Busy
from gateway.ledger.checkpoint import encode_leaf
from gateway.ledger.history import Answer, Book
from gateway.ledger.line import Waiting
from gateway.ledger.live import Looked
from gateway.ledger.receipts import Proven, count_of
from gateway.ledger.seal import Sealing
from gateway.ledger.tree import Growth
from gateway.signer import Signer
from gateway.store.contract import RecordChange, SignedBatch, StoredBatch, StoredHead
from verifier.merkle import leaf_hash

_TYPE = b'"type":"tallystick/'


class Refused(Exception):
    """The request was refused without an entry; `unreceipted` says which row of the table, and details."""

    def __init__(self, unreceipted: Unreceipted) -> None:
        super().__init__(unreceipted.refusal.name)
        self.unreceipted = unreceipted


@dataclass(frozen=True, slots=True)
class Rules:
    """What never changes while a ledger is open. `evaluate` answers for rule sets; None where nothing can."""

    imprint: Imprint
    parameters: Parameters
    evaluate: Evaluate | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What was looked up for a batch: cold records by key, and our own root at each size that an anchor names."""

    records: Mapping[str, Record | None] = field(default_factory=dict)
    roots: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """One decided batch. `stored` is what the store gets and `sealing` its seal; None when nothing was entered."""

    waiting: Sequence[Waiting]
    batch: Batch
    growth: Growth
    stored: StoredBatch | None = None
    sealing: Sealing | None = None


def in_time(waiting: Sequence[Waiting], is_over: Callable[[], bool]) -> Iterator[Waiting]:
    """Yield the requests: who goes first, then the others. Once `is_over`, no more than one of each kind.

    One of each is always decided, so neither kind can keep the other waiting for ever.
    """
    for is_first in (True, False):
        kind = [one for one in waiting if one.request is not None and one.is_first is is_first]
        for at, one in enumerate(kind):
            if at and is_over():
                break
            yield one


def decide_batch(
    book: Book,
    rules: Rules,
    waiting: Sequence[Waiting],
    found: Found,
    *,
    t_ms: int,
    is_over: Callable[[], bool] = lambda: False,
    steps: Sequence[GatewayStep] = (),
    epoch_gain: int = 0,
) -> tuple[list[Waiting], Batch]:
    """Decide what waits, in order, on top of the open ledger, until the time for it `is_over`; return who was decided.

    `steps` of the gateway's own come first, then those that wait: of these, none is left out.
    """
    head = book.head
    decided = [one for one in waiting if one.step is not None]
    own = [one.step for one in decided if one.step is not None]

    def commands() -> Iterator[Command]:
        for one in in_time(waiting, is_over):
            assert one.request is not None and one.decide is not None, "a request comes with what decides it"
            decided.append(one)
            anchor = one.request.anchor
            yield Command(one.request, one.decide, found.roots.get(anchor.size) == anchor.root)

    batch = build_batch(
        Looked(book.live, found.records),
        commands(),
        Head(head.size, head.prev_hash, head.time_ms, head.epoch, head.batch_id),
        batch_id=secrets.token_hex(16),
        t_ms=t_ms,
        epoch=head.epoch + epoch_gain,
        imprint=rules.imprint,
        parameters=rules.parameters,
        encode=encode_leaf,
        steps=(*steps, *own),
        rules=rules.evaluate,
    )
    return decided, batch


def make_turn(book: Book, waiting: Sequence[Waiting], batch: Batch, carried: Mapping[str, Change]) -> Turn:
    """Hash the leaves, seal the records, and put together what the store gets: with it go `carried` changes of batches
    without entries, and the signatures of the batch before."""
    growth = Growth(book.edge, [leaf_hash(leaf) for leaf in batch.leaves])
    if not batch.leaves:
        return Turn(waiting, batch, growth)
    after = batch.head
    assert after is not None and after.size == growth.edge.size, "the leaves lead to the head"
    changes = encode_changes({**carried, **{change[0]: change for change in batch.changes}}.values())
    sealing = book.seal.after(changes, after.time_ms)
    seal = book.seal.mark(after.size, growth.root, sealing.total)
    head = StoredHead(after.size, growth.root, after.prev_hash, after.time_ms, after.epoch, after.batch_id, seal)
    stored = StoredBatch(head, batch.leaves, growth.hashes, changes, tuple(book.unsaved))
    return Turn(waiting, batch, growth, stored, sealing)


def encode_changes(changes: Iterable[Change]) -> tuple[RecordChange, ...]:
    """Return record changes as the store keeps them."""
    return tuple(
        (key, encode_record(record, encode_leaf) if record else None, due_ms) for key, record, due_ms in changes
    )


def type_of(leaf: bytes) -> str:
    """Return the type of a leaf we wrote, as `noun.participle`.

    Canonical JSON has one way to write the member, and no text can hold it: there its quotes would be escaped.
    """
    start = leaf.rindex(_TYPE) + len(_TYPE)  # in order of names it is among the last
    return leaf[start : leaf.index(b"/", start)].decode()


def repeated(batch: Batch) -> dict[int, int]:
    """Return (seq, status) of the answers of earlier batches that this one repeats."""
    return {one.seq: one.status for one in batch.answers if isinstance(one, Replay) and one.seq < batch.first_seq}


def result_of(
    outcome: Outcome, turn: Turn, signed: SignedBatch | None, replays: Mapping[int, Answer], signer: Signer
) -> Answer | Exception:
    """Return what the waiter of `outcome` gets; `replays` are the answers of earlier batches that could be read."""
    if isinstance(outcome, Unreceipted):
        return Refused(outcome)
    batch, seq = turn.batch, outcome.seq
    if seq < batch.first_seq:
        return replays.get(seq) or Busy("answer_unreadable")
    assert signed is not None, "what is in this batch was signed"
    head = _proven(turn, signed, seq)
    rest = [_proven(turn, signed, seq + 1 + at) for at in range(count_of(head.leaf))]
    return Answer(
        seq=seq,
        status=outcome.status,
        leaf=head.leaf,
        signature=head.signature,
        key_id=signer.receipt_key_id(seq),
        checkpoint=signed.note,
        path=head.path,
        is_replay=isinstance(outcome, Replay),
        rest=tuple(rest),
    )


def _proven(turn: Turn, signed: SignedBatch, seq: int) -> Proven:
    at = seq - turn.batch.first_seq
    return Proven(turn.batch.leaves[at], signed.signatures[at], turn.growth.path(seq))
