"""Decisions become leaves: a batch of commands in, finished entries, answers and record changes out.

House rules of this file:

* `build_batch` is pure. It may be called again with the same arguments (the store's head moved and moved back, a
  commit failed) and then gives the same batch; the view is never written to.
* Order is: the gateway's own steps, what is due, then one command after the other. Each sees what those before it did;
  one that fails takes nothing with it but its own effects. A key that is done gives back what it holds in the very
  next entries; then those who wait are looked at, and what became free is offered in the next ones. The commands of a
  batch are one command here: nothing comes between them.
* `encode` is the caller's, so that a fast encoder can serve; tests hold it equal to `verifier.wire`.

Source: docs/protocol.md 6, 12, 13.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

from gateway.core.decide import decide
from gateway.core.draft import Draft, Head, View
from gateway.core.expiry import EXPIRIES_MAX, due_claims, lapse, touched_claims
from gateway.core.intake import SignedRequest
from gateway.core.outcome import ActionDecide, Context, Decision, Recorded, Replay, Rules, Unreceipted
from gateway.core.parameters import Parameters
from gateway.core.record_keys import timed_key
from gateway.core.records import TIMED, Change, Session, Timed
from gateway.core.settle import settle
from gateway.core.windup import wind_up
from verifier.entries import GATEWAY, LEAF_BYTES_LARGEST, ZERO_HASH
from verifier.wire import JsonObject

Encode: TypeAlias = Callable[[JsonObject], bytes]
# Something the gateway itself decides; None when there is nothing to write.
GatewayStep: TypeAlias = Callable[[Draft, Context], Decision | None]
Answer: TypeAlias = Recorded | Replay | Unreceipted


@dataclass(frozen=True, slots=True)
class Imprint:
    """What every leaf of one ledger carries: its origin, the leaf hash of entry 0 in hex, the promise of its store.

    `genesis` is ZERO_HASH while entry 0 itself is written.
    """

    origin: str
    genesis: str
    durability: str


class Tail(NamedTuple):
    """Where the next leaf goes: its number, the SHA-256 of the leaf before it, its time and epoch."""

    seq: int
    prev: bytes
    time_ms: int
    epoch: int


class Command(NamedTuple):
    """One verified request in line: what decides it, and whether its anchor is a checkpoint this gateway signed."""

    request: SignedRequest
    decide: ActionDecide
    anchor_is_known: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch adds. `answers` are in the order of the commands.

    Without leaves there may still be `changes` (nonces that replays burnt): they go along with the next batch, and
    stay visible until then. `faults` are the exceptions behind `decision.failed`, for the log.
    """

    batch_id: str
    epoch: int
    time_ms: int
    first_seq: int
    leaves: tuple[bytes, ...]
    answers: tuple[Answer, ...]
    changes: tuple[Change, ...]
    head: Head | None

    @property
    def faults(self) -> tuple[Exception, ...]:
        return tuple(a.fault for a in self.answers if isinstance(a, Recorded) and a.fault is not None)


def append(
    tail: Tail, imprint: Imprint, decision: Decision, encode: Encode, evidence: JsonObject | None = None
) -> tuple[bytes, Tail]:
    """Return the leaf of `decision` at `tail`, and the tail after it.

    Who asked is in the decision, and becomes the evidence, unless that is in another entry, which `evidence` names.
    """
    request = decision.asked
    members: JsonObject = {
        "type": decision.type,
        "origin": imprint.origin,
        "seq": tail.seq,
        "epoch": tail.epoch,
        "timeMs": tail.time_ms,
        "prev": tail.prev.hex(),
        "genesis": imprint.genesis,
        "durability": imprint.durability,
        "actor": request.actor if request else GATEWAY,
        "principal": request.principal if request else GATEWAY,
        "onBehalfOf": request.on_behalf_of if request else GATEWAY,
        **decision.members,
    }
    if request is not None:
        members["request"] = evidence_of(request) if evidence is None else evidence
        if request.custody:
            members["custody"] = request.custody
    leaf = encode(members)
    assert len(leaf) <= LEAF_BYTES_LARGEST, "the bounds of the entry table make every leaf fit"
    return leaf, Tail(tail.seq + 1, hashlib.sha256(leaf).digest(), tail.time_ms, tail.epoch)


def evidence_of(request: SignedRequest) -> JsonObject:
    """Return the member `request`: everything an auditor needs to check the signature, as it was signed."""
    return {
        "method": request.method,
        "authority": request.authority,
        "path": request.path,
        "query": request.query,
        "contentType": request.content_type,
        "idempotencyKey": request.idempotency_key,
        "anchor": request.anchor_text,
        "body": request.body_text,
        "signatureInput": request.signature_input,
        "signature": request.signature_b64,
    }


def build_batch(
    view: View,
    commands: Iterable[Command],
    head: Head | None,
    *,
    batch_id: str,
    t_ms: int,
    epoch: int,
    imprint: Imprint,
    parameters: Parameters,
    encode: Encode,
    steps: Sequence[GatewayStep] = (),
    rules: Rules | None = None,
) -> Batch:
    """Decide `commands` in order on top of `view`, which stands at `head` (None for a ledger not yet opened).

    `t_ms` is the log time of the whole batch, not before the head's; `steps` are the gateway's own entries, first. A
    command is asked for when the one before it is decided, so the caller can end the batch after any of them. `rules`
    evaluates rule sets; without it nothing is admitted while one is in force.
    """
    assert head is None or (t_ms >= head.time_ms and epoch >= head.epoch), "log time and epoch never go back"
    first = Tail(head.size if head else 0, head.prev_hash if head else bytes.fromhex(ZERO_HASH), t_ms, epoch)
    page = _Page(Draft(view), first, imprint, parameters, encode, rules)
    for step in steps:
        page.take_step(step)
    page.lapse_due()
    answers = tuple(page.take_command(command) for command in commands)
    tail = page.tail
    after = Head(tail.seq, tail.prev, t_ms, epoch, batch_id) if page.leaves else head
    changes = page.draft.changes()
    return Batch(batch_id, epoch, t_ms, first.seq, tuple(page.leaves), answers, changes, after)


class _Page:
    """The page being written: it lives for one call of `build_batch` and nobody else sees it."""

    def __init__(
        self, draft: Draft, tail: Tail, imprint: Imprint, parameters: Parameters, encode: Encode, rules: Rules | None
    ) -> None:
        self.draft = draft
        self.tail = tail
        self.leaves: list[bytes] = []
        self._imprint = imprint
        self._parameters = parameters
        self._encode = encode
        self._rules = rules
        self._is_behind = False

    def context(self, anchor_is_known: bool = True) -> Context:
        tail, genesis = self.tail, self._imprint.genesis
        return Context(tail.time_ms, tail.seq, self._parameters, anchor_is_known, genesis, self._rules)

    def write(self, decision: Decision, evidence: JsonObject | None = None) -> None:
        leaf, self.tail = append(self.tail, self._imprint, decision, self._encode, evidence)
        self.leaves.append(leaf)

    def take_step(self, step: GatewayStep) -> None:
        self.follow(step(self.draft, self.context()))

    def follow(self, decision: Decision | None) -> None:
        """Write a decision, if there is one to be written, and then what it means for others."""
        if decision is not None:
            header_seq = self.tail.seq
            self.write(decision)
            for index, part in enumerate(decision.parts):
                self.write(part, {"batch": header_seq, "index": index})
        for consequence in chain(wind_up(self.draft, self.context), settle(self.draft, self.context)):
            self.write(consequence)

    def lapse_due(self) -> None:
        """Let go what is due; what is too much for one sweep waits for the next, or for whom it concerns."""
        due = due_claims(self.draft, self.tail.time_ms)
        self._is_behind = len(due) >= EXPIRIES_MAX
        for one in due:
            if len(self.leaves) >= EXPIRIES_MAX:  # a session that dies takes everything along that it holds
                self._is_behind = True
                return
            self.lapse(one)

    def lapse(self, one: Timed) -> None:
        """Do what time has come for, unless what came before has changed it."""
        now = self.draft.get(timed_key(one))
        is_over = isinstance(now, Session) and not now.is_open
        if isinstance(now, TIMED) and not is_over and now.due_at_ms <= self.tail.time_ms:
            self.follow(lapse(self.draft, now, self.context()))

    def take_command(self, command: Command) -> Answer:
        """Let go what the command would touch and whose time has come, then decide it and write its entry."""
        if self._is_behind:
            for one in touched_claims(self.draft, command.request, self.tail.time_ms):
                self.lapse(one)
        context = self.context(command.anchor_is_known)
        outcome = decide(self.draft, command.request, command.decide, context)
        if not isinstance(outcome, Decision):
            return outcome
        self.follow(outcome)
        faults = (one.fault for one in (outcome, *outcome.parts) if one.fault is not None)
        return Recorded(context.seq, outcome.status, len(outcome.parts), next(faults, None))
