"""Decisions become leaves: a batch of commands in, finished entries, answers and record changes out.

House rules of this file:

* `build_batch` is pure. It may be called again with the same arguments (the store's head moved and moved back, a
  commit failed) and then gives the same batch; the view is never written to.
* Order is: the gateway's own steps, what is due, then one command after the other. Each sees what those before it did;
  one that fails takes nothing with it but its own effects. After each of them those who wait are looked at, so that
  what became free is offered in the very next entries.
* `encode` is the caller's, so that a fast encoder can serve; tests hold it equal to `verifier.wire`.

Source: docs/protocol.md 6, 12, 13.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gateway.core.decide import ActionDecide, decide
from gateway.core.expiry import EXPIRIES_MAX, due_claims, lapse, touched_claims
from gateway.core.intake import SignedRequest
from gateway.core.outcome import Context, Decision, Recorded, Replay, Unreceipted
from gateway.core.settle import settle
from gateway.core.state import CLAIMS, Change, Claim, Draft, Head, Parameters, View, claim_key
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
    tail: Tail, imprint: Imprint, decision: Decision, request: SignedRequest | None, encode: Encode
) -> tuple[bytes, Tail]:
    """Return the leaf of `decision` at `tail`, and the tail after it.

    `request` is who asked, and becomes the evidence; None for an entry that the gateway itself causes.
    """
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
        members["request"] = evidence_of(request)
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
) -> Batch:
    """Decide `commands` in order on top of `view`, which stands at `head` (None for a ledger not yet opened).

    `t_ms` is the log time of the whole batch, not before the head's; `steps` are the gateway's own entries, first. A
    command is asked for when the one before it is decided, so the caller can end the batch after any of them.
    """
    assert head is None or (t_ms >= head.time_ms and epoch >= head.epoch), "log time and epoch never go back"
    first = Tail(head.size if head else 0, head.prev_hash if head else bytes.fromhex(ZERO_HASH), t_ms, epoch)
    page = _Page(Draft(view), first, imprint, parameters, encode)
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

    def __init__(self, draft: Draft, tail: Tail, imprint: Imprint, parameters: Parameters, encode: Encode) -> None:
        self.draft = draft
        self.tail = tail
        self.leaves: list[bytes] = []
        self._imprint = imprint
        self._parameters = parameters
        self._encode = encode
        self._is_behind = False

    def context(self, anchor_is_known: bool = True) -> Context:
        return Context(self.tail.time_ms, self.tail.seq, self._parameters, anchor_is_known)

    def write(self, decision: Decision, request: SignedRequest | None) -> None:
        leaf, self.tail = append(self.tail, self._imprint, decision, request, self._encode)
        self.leaves.append(leaf)

    def take_step(self, step: GatewayStep) -> None:
        self.follow(step(self.draft, self.context()), None)

    def follow(self, decision: Decision | None, request: SignedRequest | None) -> None:
        """Write a decision, if there is one to be written, and then what it means for those who wait."""
        if decision is not None:
            self.write(decision, request)
        for consequence in settle(self.draft, self.context):
            self.write(consequence, None)

    def lapse_due(self) -> None:
        """Let go what is due; what is too much for one sweep waits for the next, or for whom it concerns."""
        due = due_claims(self.draft, self.tail.time_ms)
        self._is_behind = len(due) >= EXPIRIES_MAX
        self.lapse(due)

    def lapse(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            now = self.draft.get(claim_key(claim))  # what came before it may have changed it
            if isinstance(now, CLAIMS) and now.due_at_ms <= self.tail.time_ms:
                self.follow(lapse(self.draft, now, self.context()), None)

    def take_command(self, command: Command) -> Answer:
        """Let go what the command would touch and whose time has come, then decide it and write its entry."""
        request = command.request
        if self._is_behind:
            self.lapse(touched_claims(self.draft, request.body, self.tail.time_ms))
        context = self.context(command.anchor_is_known)
        outcome = decide(self.draft, request, command.decide, context)
        if not isinstance(outcome, Decision):
            return outcome
        self.follow(outcome, request)
        return Recorded(context.seq, outcome.status, outcome.fault)
