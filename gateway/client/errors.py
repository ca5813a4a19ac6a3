"""What can go wrong for a client, sorted by what the caller can do about it.

    Unreachable      nothing is known: the request may or may not have been decided; a retry is safe (same key)
    RequestRejected  never decided: malformed, not enrolled, outside the window; nothing is in the ledger
    Refused          decided against us: receipted, and every fact here comes from the verified leaf
    HeldHere         never asked: another process with this profile holds it, or waits for it
    AnswerRefused    the gateway said something its receipt doesn't prove; nothing of it may be acted upon
    LeaseLost        trust in a lease that was held has ended; stop the work that relied on it
    Fenced           a guard refused a write

Texts of a RequestRejected are the gateway's bare word (nobody signs a problem document); they are shown, never trusted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verifier.wire import JsonObject, JsonValue

if TYPE_CHECKING:  # receipts.py raises AnswerRefused; the annotations below are the only way back
    from gateway.client.receipts import VerifiedReceipt


class ClientError(Exception):
    """Base of everything this folder raises on purpose."""


class ProfileError(ClientError):
    """The profile folder can't be used; the text says what to do."""


class Unreachable(ClientError):
    """No answer within the time allowed. `reason` is "unreachable" or "throttled" (the gateway said: come back).

    `is_refused`: nobody listens at the address, which one more try in the same second rarely mends.
    """

    def __init__(self, text: str, reason: str = "unreachable", *, is_refused: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.is_refused = is_refused


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


class ClockWrong(RequestRejected):
    """The signature's time lies outside the gateway's window twice in a row."""


class UnknownHistory(RequestRejected):
    """The gateway denies a checkpoint that its own log key signed; our copy was posted as a dispute."""


class AnswerRefused(ClientError):
    """The answer does not prove what it says. Act as if it had not come; the lease may or may not be held."""


class LedgerBehind(AnswerRefused):
    """The gateway shows fewer entries than its own log key signed: it runs on an old back-up, or hides some."""

    def __init__(self, size: int, known: int) -> None:
        super().__init__(
            f"the gateway shows {size} entries, and its own key has signed {known}: it runs on an old back-up. Our "
            f"checkpoint was posted to its dispute door; tell its operator."
        )


class SplitView(AnswerRefused):
    """Two histories under one log key. `ours` and `theirs` are the two signed checkpoint notes: keep them."""

    def __init__(self, text: str, ours: bytes, theirs: bytes) -> None:
        super().__init__(text)
        self.ours = ours
        self.theirs = theirs


class Refused(ClientError):
    """A receipted refusal: `error` and `number` as in the table of docs/protocol.md."""

    def __init__(self, receipt: VerifiedReceipt) -> None:
        self.receipt = receipt
        self.error = receipt.leaf.text("error")
        self.number = receipt.leaf.number("number")
        super().__init__(f"{self.error} (entry {receipt.seq})")


@dataclass(frozen=True, slots=True)
class Stampede:
    """The ledger's advice to a refused caller; `is_admitted` False: don't try again before `retry_after_ms`."""

    is_admitted: bool
    wait_ms: int


class LeaseHeld(Refused):
    """Somebody else holds (one of) the resources; the facts are those of the lease that ends last.

    `holder` is a DID, `holder_name` the label an operator gave it (never an identity) or None. `conflict` has leaseId,
    resource, fencingToken, mode, grantedAtMs and expiresAtMs (the gateway's time), `conflicts` counts such leases.
    """

    def __init__(self, receipt: VerifiedReceipt) -> None:
        super().__init__(receipt)
        leaf = receipt.leaf
        self.holder = leaf.text("holder")
        self.holder_name = leaf.text("holderName") or None
        self.conflict = _object(leaf.value.get("conflict"))
        self.conflicts = leaf.number("conflicts")
        advice = _object(leaf.value.get("stampede"))
        self.stampede = Stampede(advice.get("admitted") is True, _integer(advice.get("waitMs")))
        self.retry_after_ms = leaf.number("retryAfterMs")

    @property
    def resource(self) -> str:
        return str(self.conflict.get("resource"))

    @property
    def expires_at_ms(self) -> int:
        """When that lease ends if nobody renews it, in the gateway's time."""
        return _integer(self.conflict.get("expiresAtMs"))


class NotHeld(ClientError):
    """Nothing was sent: this key has no such lease to renew or release."""


class HeldHere(ClientError):
    """This very key holds the resource already, or waits for it, on this machine: nothing was asked of the gateway.

    `pid` is the process that does, this one or another; None when it has not said so yet.
    """

    def __init__(self, resource: str, pid: int | None) -> None:
        whose = "another process" if pid is None else "this process" if pid == os.getpid() else f"process {pid}"
        super().__init__(
            f"{resource} is held, or waited for, by this same key on this machine: {whose} has it. To the ledger both "
            f"would be one holder, and the first to end would give the lease back under the other."
        )
        self.resource = resource
        self.pid = pid


class LeaseEnded(Refused):
    """Renew or release named a lease that is unknown, released, expired or somebody else's: it can't come back."""


class LeaseLost(ClientError):
    """Trust in a held lease ended: stop what relied on it.

    `reason` tells the cases apart: "unreachable" and "throttled" (no renewal came through in time), "blocked" (this
    process itself slept past the end of trust), or the refusal that ended it, such as "lease_expired".
    """

    def __init__(self, lease_id: str, reason: str) -> None:
        super().__init__(f"lease {lease_id} is no longer ours to rely on: {reason}")
        self.lease_id = lease_id
        self.reason = reason


class Fenced(ClientError):
    """The guard refused: a newer lease of another actor was seen, or the caller didn't prove that the lease is its."""


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _integer(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0
