"""What can go wrong for a client, sorted by what the caller can do about it.

    Unreachable      nothing is known: the request may or may not have been decided; a retry is safe (same key)
    RequestRejected  never decided: malformed, not enrolled, outside the window; nothing is in the ledger
    Refused          decided against us: receipted, and every fact here comes from the verified leaf
    HeldHere         never asked: another process with this profile holds it, or waits for it
    AnswerRefused    the gateway said something its receipt doesn't prove; nothing of it may be acted upon
    LeaseLost        trust in a lease that was held has ended; stop the work that relied on it
    StillWaiting     not granted yet; the place in line is kept
    Interrupted      the person at the keyboard ended a wait
    Fenced           a guard refused a write

Of the refusals these ask for something different to be done next: InTheWay (LeaseHeld, LockDelayed, Queued, QueueFull:
wait), Deadlock (give something back), TicketEnded and AlreadyWaiting (the place in line), HoldExceeded (let go in
time), TokenStale (look again), LeaseEnded (LeaseBroken, LeaseTransferred, LeaseChanged: it is gone), AdmissionDenied
(FenceStale: stop; ApprovalRefused: get one; RulesDenied: it may not be done), AskEnded. AskOver: nothing was signed.
NotApproved: nobody approved.

Texts of a RequestRejected are the gateway's bare word (nobody signs a problem document); they are shown, never trusted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verifier.wire import JsonObject, JsonValue

if TYPE_CHECKING:  # receipts.py raises AnswerRefused; the annotations below are the only way back
    from gateway.client.line import Ticket
    from gateway.client.receipts import VerifiedReceipt


class ClientError(Exception):
    """Base of everything this folder raises on purpose.

    `is_unknown`: what was asked may have been decided all the same, and nothing that proves it was heard.
    """

    is_unknown = False


class ProfileError(ClientError):
    """The profile folder can't be used; the text says what to do."""


class Unreachable(ClientError):
    """No answer within the time allowed. `reason` is "unreachable" or "throttled" (the gateway said: come back).

    `is_refused`: nobody listens at the address, which one more try in the same second rarely mends. `is_unknown` is
    False when nothing was sent, or when all that was sent was turned away undecided.
    """

    def __init__(
        self, text: str, reason: str = "unreachable", *, is_refused: bool = False, is_unknown: bool = True
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.is_refused = is_refused
        self.is_unknown = is_unknown and not is_refused


class RequestRejected(ClientError):
    """The gateway didn't decide this request; `status`, `code` and `detail` are its unsigned word."""

    def __init__(self, status: int, code: str, detail: str, advice: str = "") -> None:
        stop = "" if detail.endswith((".", "!", "?")) else "."
        super().__init__(f"{code} ({status}): {detail}" + (f"{stop} {advice}" if advice else ""))
        self.status = status
        self.code = code
        self.detail = detail


class NotEnrolled(RequestRejected):
    """This key may not act in the workspace (yet, or any more)."""


class SessionRefused(RequestRejected):
    """No session was opened: the statements don't lend what is asked for, or the key or its principal may have none."""


class SessionEnded(RequestRejected):
    """This session is over: closed, revoked, given up as dead, or its delegation has ended. It does not come back.

    What it held was given back; open another with a fresh key.
    """


class TrialOver(RequestRejected):
    """What a trial key lends is used up, or its time is over."""


class ClockWrong(RequestRejected):
    """The signature's time lies outside the gateway's window twice in a row."""


class UnknownHistory(RequestRejected):
    """The gateway denies a checkpoint that its own log key signed; our copy was posted as a dispute."""


class AnswerRefused(ClientError):
    """The answer does not prove what it says. Act as if it had not come; the lease may or may not be held."""

    is_unknown = True


class LedgerBehind(AnswerRefused):
    """The gateway shows fewer entries than its own log key signed: it runs on an old back-up, or hides some."""

    def __init__(self, size: int, known: int) -> None:
        super().__init__(
            f"the gateway shows {size} entries, and its own key has signed {known}: it runs on an old back-up. Our "
            f"checkpoint was posted to its dispute door; tell its operator."
        )


class NotWitnessed(ClientError):
    """No checkpoint that the reader's witnesses stand for reaches an entry yet; its receipt is as good as before."""


class SplitView(AnswerRefused):
    """Two histories under one log key. `ours` and `theirs` are the two signed checkpoint notes: keep them."""

    def __init__(self, text: str, ours: bytes, theirs: bytes) -> None:
        super().__init__(text)
        self.ours = ours
        self.theirs = theirs


class Refused(ClientError):
    """A receipted refusal: `error` and `number` as in the table of docs/protocol.md.

    `ended_seq` is the entry that ended what the request was about (a lease, a ticket, a delay began), if it says so.
    """

    def __init__(self, receipt: VerifiedReceipt) -> None:
        self.receipt = receipt
        self.error = receipt.leaf.text("error")
        self.number = receipt.leaf.number("number")
        self.ended_seq = receipt.leaf.number("endedSeq") if "endedSeq" in receipt.leaf.value else None
        super().__init__(f"{self.error} (entry {receipt.seq})")


@dataclass(frozen=True, slots=True)
class Stampede:
    """The ledger's advice to a refused caller; `is_admitted` False: don't try again before `retry_after_ms`."""

    is_admitted: bool
    wait_ms: int


class InTheWay(Refused):
    """Something of somebody else is in the way: a lease, a lock-delay, a ticket, or a full queue.

    `stampede` and `retry_after_ms` are the ledger's advice for those who ask again without a ticket. `waited_ms` is how
    long this key stood in line before it gave up its place and was refused; 0 when it did not.
    """

    waited_ms: int = 0

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        advice = _object(receipt.leaf.value.get("stampede"))
        self.stampede = Stampede(advice.get("admitted") is True, _integer(advice.get("waitMs")))
        self.retry_after_ms = receipt.leaf.number("retryAfterMs")

    @property
    def resource(self) -> str:
        """The requested name that is not to be had; "" when the entry names none."""
        return next(iter(self.receipt.resources), "")


class _HeldByOthers(InTheWay):
    """The facts of the conflicting lease that ends last.

    `holder` is a DID, `holder_name` the label an operator gave it (never an identity) or None. `conflict` has leaseId,
    resource, heldAs, fencingToken, mode, grantedAtMs and expiresAtMs (the gateway's time); `conflicts` counts such
    leases.
    """

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        leaf = receipt.leaf
        self.holder = leaf.text("holder")
        self.holder_name = leaf.text("holderName") or None
        self.conflict = _object(leaf.value.get("conflict"))
        self.conflicts = leaf.number("conflicts")

    @property
    def resource(self) -> str:
        return str(self.conflict["resource"]) if "resource" in self.conflict else super().resource

    @property
    def expires_at_ms(self) -> int:
        """When that lease ends if nobody renews it, in the gateway's time."""
        return _integer(self.conflict.get("expiresAtMs"))


class LeaseHeld(_HeldByOthers):
    """Somebody else holds (one of) the resources, in a mode that does not go with the one asked for."""


@dataclass(frozen=True, slots=True)
class Waits:
    """One row of a cycle: `actor` waits for `resource` in `mode`.

    It waits for the lease with `fencing_token`, which the actor of the next row holds, or behind the ticket `ahead_id`
    of that actor, or for that actor's approval, which it asked for with `ask_id`. `ticket_id` when the wait is a
    ticket. The last row's next is the first.
    """

    actor: str
    resource: str
    mode: str
    fencing_token: int | None
    ticket_id: str | None
    ahead_id: str | None
    ask_id: str | None = None


class Deadlock(_HeldByOthers):
    """Waiting would never end: those in `cycle` wait for each other, this key among them. Asking again is no help.

    Give something back. `acquire_order` has the resources of the cycle in an order that all can keep to; whoever takes
    them in this order, or in one request, meets no such cycle. `waiting_on` is what the holder itself waits for.
    """

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        value = receipt.leaf.value
        self.waiting_on = receipt.leaf.text("waitingOn")
        self.cycle = cycle_in(value)
        self.acquire_order = tuple(str(name) for name in _list(value.get("acquireOrder")))


class LockDelayed(InTheWay):
    """The last lease ended by running out or by a break: its `holder` alone may have it until `delay_until_ms`."""

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        self.holder = receipt.leaf.text("holder")
        self.delay_until_ms = receipt.leaf.number("delayUntilMs")


class Queued(InTheWay):
    """Others wait in line for it, and who asks without a ticket comes after them.

    `ahead` is the first such ticket: ticketId, actor, resource, mode, queuedAtMs.
    """

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        self.ahead = _object(receipt.leaf.value.get("ahead"))

    @property
    def resource(self) -> str:
        return str(self.ahead.get("resource"))


class QueueFull(InTheWay):
    """There is no room in line, for this resource, this key or all of them: come back after `retry_after_ms`."""


class AlreadyWaiting(Refused):
    """This key stands in line for one of these resources already, with `ticket_id`."""

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        self.ticket_id = receipt.leaf.text("ticketId")


class TicketEnded(Refused):
    """The place in line is gone: claimed, cancelled, given up, or not polled in time (see entry `ended_seq`)."""


class HoldExceeded(Refused):
    """The lease has had its longest time and somebody waits: it can't be extended, and ends when it was to end."""


class TokenStale(Refused):
    """The token that was named is not that of the live lease: look again before you break or hand over.

    `holder`, `holder_name` and `conflict` are those of the lease that is there now; "", None and {} when none is.
    """

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        self.holder = receipt.leaf.text("holder")
        self.holder_name = receipt.leaf.text("holderName") or None
        self.conflict = _object(receipt.leaf.value.get("conflict"))


class LeaseEnded(Refused):
    """The lease named is unknown, released, expired or somebody else's: it can't come back."""


class LeaseBroken(LeaseEnded):
    """An operator broke the lease: entry `ended_seq` says who and why. Stop the work it covered.

    `ending` is that entry, verified, where a command has fetched it.
    """

    ending: VerifiedReceipt | None = None


class LeaseTransferred(LeaseEnded):
    """The lease was handed over and is another's now."""


class LeaseChanged(LeaseEnded):
    """The lease went over to another mode; entry `ended_seq` began the lease that follows it."""


class LeaseReturned(LeaseEnded):
    """The lease was given back because its holder's session, or its holder, came to an end: entry `ended_seq`."""


class AdmissionDenied(Refused):
    """The act may not be done. Nothing of it was done or counted, and the receipt proves that it was denied.

    `holder`, `holder_name` and `conflict` are those of a lease in the way ("", None and {} when none is),
    `current_token` is the highest live fencing token that the act meets, or None.
    """

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        leaf = receipt.leaf
        self.operation = leaf.text("operation")
        self.holder = leaf.text("holder")
        self.holder_name = leaf.text("holderName") or None
        self.conflict = _object(leaf.value.get("conflict"))
        self.current_token = leaf.number("currentToken") if "currentToken" in leaf.value else None


class FenceStale(AdmissionDenied):
    """The lease that the act was to be done under is over, or was never given: stop what relied on it.

    `ended_seq` is the entry that ended it, where the ledger remembers that.
    """


class ApprovalRefused(AdmissionDenied):
    """An approval is missing, is for something else, is over, was used, or is of somebody who may not approve."""


class RulesDenied(AdmissionDenied):
    """The rule set in force says no, or could not be evaluated, which is no as well.

    `decision` is "deny" or "error", `matched` the ids of the rules that forbid it (none: nothing permits it).
    """

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        rules = _object(receipt.leaf.value.get("rules"))
        self.decision = str(rules.get("decision", ""))
        self.matched = tuple(str(name) for name in _list(rules.get("matched")))
        self.rules_version = _integer(rules.get("version"))
        if self.matched:
            self.args = (f"{self.error} (entry {receipt.seq}) by {', '.join(self.matched)}",)


class AskEnded(Refused):
    """The request for approval is over: approved, declined, withdrawn or lapsed; entry `ended_seq` if it has one."""


class BatchRefused(Refused):
    """An atomic batch of which nothing was done: its command `index` (from 0) was refused.

    `cause` is the exception that this command by itself would have raised, with the same receipt.
    """

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        self.index = receipt.leaf.number("index")
        self.action = receipt.leaf.text("action")
        self.cause = _kind_of(receipt)(receipt)


_BATCH_REFUSED, _DENIED = "tallystick/batch.refused/1", "tallystick/admission.denied/1"
_ADMIT = "coordination.admit"
_BY_NAME: Mapping[str, type[Refused]] = {
    "lease_held": LeaseHeld,
    "deadlock": Deadlock,
    "lock_delayed": LockDelayed,
    "queued": Queued,
    "queue_full": QueueFull,
    "already_waiting": AlreadyWaiting,
    "ticket_ended": TicketEnded,
    "hold_exceeded": HoldExceeded,
    "token_stale": TokenStale,
    "lease_unknown": LeaseEnded,
    "lease_not_yours": LeaseEnded,
    "lease_released": LeaseEnded,
    "lease_expired": LeaseEnded,
    "lease_mismatch": LeaseEnded,
    "not_holder": LeaseEnded,
    "lease_broken": LeaseBroken,
    "lease_transferred": LeaseTransferred,
    "lease_changed": LeaseChanged,
    "lease_returned": LeaseReturned,
    "ask_ended": AskEnded,
}
# Of an admission, which is denied for reasons that other requests are refused for as well.
_DENIED_BY_NAME: Mapping[str, type[AdmissionDenied]] = {
    "lease_unknown": FenceStale,
    "fence_unknown": FenceStale,
    "stale_fence": FenceStale,
    "approval_wrong": ApprovalRefused,
    "approver_unfit": ApprovalRefused,
    "approval_expired": ApprovalRefused,
    "approval_used": ApprovalRefused,
    "approval_required": ApprovalRefused,
    "policy_error": RulesDenied,
    "forbidden_by_rules": RulesDenied,
    "not_permitted": RulesDenied,
}


def refusal_of(receipt: VerifiedReceipt) -> Refused:
    """Return the exception of a verified refusal; `Refused` itself where no caller would act differently."""
    return BatchRefused(receipt) if receipt.type == _BATCH_REFUSED else _kind_of(receipt)(receipt)


def _kind_of(receipt: VerifiedReceipt) -> type[Refused]:
    error = receipt.leaf.text("error")
    if receipt.type == _DENIED or (receipt.type == _BATCH_REFUSED and receipt.leaf.text("action") == _ADMIT):
        return _DENIED_BY_NAME.get(error, AdmissionDenied)
    return _BY_NAME.get(error, Refused)


class StillWaiting(ClientError):
    """Not granted yet, and the place in line is kept: claim `ticket` again before `ticket.poll_by_ms`."""

    def __init__(self, ticket: Ticket) -> None:
        super().__init__(f"ticket {ticket.ticket_id} is number {ticket.position} in line")
        self.ticket = ticket


class AskOver(ClientError):
    """Nothing was signed: the request for approval is not open. `how` is "given", "declined", "withdrawn", "dismissed",
    "lapsed" or "forgotten", the gateway's bare word.
    """

    def __init__(self, ask_id: str, how: str) -> None:
        super().__init__(f"{ask_id} is over ({how}): nothing was signed")
        self.ask_id = ask_id
        self.how = how


class NotApproved(ClientError):
    """What was asked for was not approved: `how` is "declined", "lapsed", "withdrawn", "dismissed", or "waited" (and
    given up).

    `ask_id` names the request, `ended_seq` the entry that ended it, if the gateway told one; its bare word.
    """

    def __init__(self, ask_id: str, how: str, ended_seq: int | None = None) -> None:
        entry = "" if ended_seq is None else f" (entry {ended_seq})"
        super().__init__(f"{ask_id} was not approved: {how}{entry}")
        self.ask_id = ask_id
        self.how = how
        self.ended_seq = ended_seq


class Interrupted(ClientError):
    """Waiting was ended from the keyboard; `ticket_id` is a place in line that is kept all the same, or None."""

    def __init__(self, text: str, ticket_id: str | None = None) -> None:
        super().__init__(text)
        self.ticket_id = ticket_id


class NotHeld(ClientError):
    """Nothing was sent: this key has no such lease to renew or release."""


class HeldHere(ClientError):
    """This very key holds the resource already, or waits for it, on this machine: nothing was asked of the gateway.

    `pid` is the process that does, this one or another; None when it has not said so yet.
    """

    def __init__(self, resource: str, pid: int | None) -> None:
        self.whose = "another process" if pid is None else "this process" if pid == os.getpid() else f"process {pid}"
        super().__init__(
            f"{resource} is held, or waited for, by this same key on this machine: {self.whose} has it. To the ledger "
            f"both would be one holder, and the first to end would give the lease back under the other."
        )
        self.resource = resource
        self.pid = pid


class LeaseLost(ClientError):
    """Trust in a held lease ended: stop what relied on it.

    `reason` tells the cases apart: "unreachable" and "throttled" (no renewal came through in time), "blocked" (this
    process itself slept past the end of trust), or the refusal that ended it: "lease_expired", "lease_broken",
    "lease_transferred", "lease_changed", "hold_exceeded" (its longest time was over and somebody waits), ….
    `refused` is that refusal, if one ended it.
    """

    def __init__(self, lease_id: str, reason: str, refused: Refused | None = None) -> None:
        super().__init__(f"lease {lease_id} is no longer ours to rely on: {reason}")
        self.lease_id = lease_id
        self.reason = reason
        self.refused = refused


class Fenced(ClientError):
    """The guard refused: a newer lease of another actor was seen, or the caller didn't prove that the lease is its.

    `code` says which, for programs; the table is that of gateway/client/guards/refusing.py.
    """

    def __init__(self, text: str, code: str = "fenced") -> None:
        super().__init__(text)
        self.code = code


def cycle_in(value: JsonObject) -> tuple[Waits, ...]:
    """Return the member `cycle` of a verified leaf, a refusal or a ticket; empty when there is none."""
    return tuple(_waits(_object(row)) for row in _list(value.get("cycle")))


def _waits(row: JsonObject) -> Waits:
    token, ticket, ahead, ask = (row.get(name) for name in ("fencingToken", "ticketId", "aheadId", "askId"))
    return Waits(
        str(row.get("actor")),
        str(row.get("resource")),
        str(row.get("mode")),
        token if isinstance(token, int) else None,
        ticket if isinstance(ticket, str) else None,
        ahead if isinstance(ahead, str) else None,
        ask if isinstance(ask, str) else None,
    )


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _integer(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0
