"""Batches: what their commands look like, and how an answer is cut into one receipt for each command.

A batch is signed once and decided at once. The answer has the leaves of all its entries under one checkpoint, so that
256 decisions fit into one answer; here each becomes a receipt of its own again, a file that can be handed on alone. It
carries the leaf of the header too (member `batch`), for that is where the signed request stands.

Nothing of the answer is believed here: the receipts that come out are verified one by one, as any other.
Source: docs/protocol.md 31.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.client.admission import Admission
from gateway.client.approval import SignedApproval, digest_of_arguments, rows_of_approvals
from gateway.client.errors import AnswerRefused, Refused, refusal_of
from gateway.client.exchange import REPLY_BYTES_MAX
from gateway.client.holdings import Tokened
from gateway.client.receipts import VerifiedReceipt
from gateway.client.trust import Grant
from verifier.entries import BATCH_COMMANDS_MAX, HOLDING, Leaf, full_type, parse_leaf
from verifier.envelope import PAYLOAD_TYPE
from verifier.proof import Proof, encode_proof
from verifier.wire import JsonObject, JsonValue, Malformed, decode_base64, encode_canonical, parse_json

_RECEIVED, _ALLOWED = full_type("batch.received"), full_type("admission.allowed")


@dataclass(frozen=True, slots=True)
class Cut:
    """The unverified leaf of a batch's header, and the unverified receipts of its commands in order."""

    header: Leaf
    receipts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one command, verified; `sent_ms` as in a Grant. Exactly one of the two is there for an acquire."""

    receipt: VerifiedReceipt
    sent_ms: int

    @property
    def is_ok(self) -> bool:
        return not self.receipt.leaf.text("error")

    @property
    def grant(self) -> Grant | None:
        """The lease as it is held now, for a command that took or renewed one."""
        return Grant(self.receipt, self.sent_ms) if self.receipt.type in HOLDING else None

    @property
    def admission(self) -> Admission | None:
        """What may be done, for a command that asked for it."""
        return Admission(self.receipt, self.sent_ms) if self.receipt.type == _ALLOWED else None

    @property
    def refused(self) -> Refused | None:
        """The exception that the command by itself would have raised; it is not raised here."""
        return None if self.is_ok else refusal_of(self.receipt)


def acquiring(
    resources: str | Sequence[str],
    *,
    mode: str | None = None,
    ttl_ms: int | None = None,
    reason_digest: str | None = None,
) -> JsonObject:
    """Return the command that takes a lease on all of the resources, or extends it."""
    return {"action": "lease.acquire", **_names(resources), **_options(mode, ttl_ms), **_why(reason_digest)}


def renewing(lease_id: str, *, mode: str | None = None, ttl_ms: int | None = None) -> JsonObject:
    """Return the command that renews a lease."""
    return {"action": "lease.renew", "leaseId": lease_id, **_options(mode, ttl_ms)}


def releasing(
    resources: str | Sequence[str], lease_id: str | None = None, *, reason_digest: str | None = None
) -> JsonObject:
    """Return the command that gives a lease back."""
    named: JsonObject = {} if lease_id is None else {"leaseId": lease_id}
    return {"action": "lease.release", **_names(resources), **named, **_why(reason_digest)}


def admitting(
    operation: str,
    resources: str | Sequence[str],
    *,
    mode: str | None = None,
    arguments: bytes | None = None,
    arguments_digest: str | None = None,
    cost: int = 0,
    lease: Tokened | None = None,
    approvals: Sequence[SignedApproval] = (),
) -> JsonObject:
    """Return the command that asks whether one act may be done; a lease of the same batch has no token to name yet."""
    held: JsonObject = {} if lease is None else {"leaseId": lease.lease_id, "fencingToken": lease.fencing_token}
    return {
        "action": "coordination.admit", "operation": operation, **_names(resources), **_options(mode, None),
        "argumentsDigest": digest_of_arguments(arguments, arguments_digest), **({} if cost == 0 else {"cost": cost}),
        **held, **rows_of_approvals(approvals),
    }  # fmt: skip


def _names(resources: str | Sequence[str]) -> JsonObject:
    if isinstance(resources, str):
        return {"resource": resources}
    return {"resources": [*resources]}


def _why(reason_digest: str | None) -> JsonObject:
    return {} if reason_digest is None else {"reasonDigest": reason_digest}


def _options(mode: str | None, ttl_ms: int | None) -> JsonObject:
    given: JsonObject = {"mode": mode, "ttlMs": ttl_ms}
    return {name: value for name, value in given.items() if value is not None}


def cut_batch(answer: bytes) -> Cut | None:
    """Return the parts of an unverified HTTP body that answers a batch, or None when it answers none.

    AnswerRefused for one that can't be cut: too few leaves, or something that is no leaf.
    """
    try:
        batch = parse_json(answer, bytes_max=REPLY_BYTES_MAX).get("batch")
    except Malformed:
        return None
    if not isinstance(batch, dict):
        return None
    try:
        return _cut(batch)
    except (Malformed, KeyError, TypeError, ValueError, IndexError) as error:
        raise AnswerRefused(f"the answer to the batch can't be read: {error}") from error


def _cut(batch: JsonObject) -> Cut:
    leaves, signatures, paths = (_texts(batch[name]) for name in ("leaves", "signatures", "paths"))
    count = len(leaves)
    if not 2 <= count <= BATCH_COMMANDS_MAX + 1 or len(paths) != count or len(signatures) not in (0, count):
        raise Malformed("leaves, paths and signatures don't belong together")
    header = parse_leaf(decode_base64(str(leaves[0])))
    if header.type != _RECEIVED:
        raise Malformed(f"it begins with {header.type}")
    first, keyid, note = batch["index"], str(batch["keyid"]), str(batch["checkpoint"]).encode()
    if not isinstance(first, int):
        raise Malformed("index is a number")
    outer: JsonObject = {"leaf": leaves[0], "path": paths[0]}

    def receipt(at: int) -> bytes:
        path = tuple(decode_base64(str(row), 32) for row in _texts(paths[at]))
        rows: list[JsonValue] = [{"keyid": keyid, "sig": signatures[at]}] if signatures else []
        return encode_canonical(
            {
                "payloadType": PAYLOAD_TYPE, "payload": leaves[at], "signatures": rows,
                "proof": encode_proof(Proof(first + at, path, note)).decode(), "batch": outer,
            }
        )  # fmt: skip

    return Cut(header, tuple(receipt(at) for at in range(1, count)))


def _texts(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise Malformed("leaves, signatures and paths are lists")
    return value
