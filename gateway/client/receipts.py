"""Turns bytes from the network into facts, or refuses them.

An answer of the gateway has convenience members beside its receipt (`lease`, `holder`, `stampede`). They are for
people with curl. This client takes every fact from the leaf, after the verifier has accepted the receipt against the
pinned keys, and only if the leaf's evidence is the very request that was sent: our key, our method, path, body and
idempotency key, and a nonce of one of our attempts. Otherwise a genuine receipt of somebody else, or of our own
yesterday, would pass as today's grant. (That no entry stands below its own anchor is step 10 of the ladder.)
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from gateway.client.errors import AnswerRefused
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.did import thumbprint
from verifier.entries import Leaf, parse_leaf, resources_of, rows_of
from verifier.keyring import Keyring, covers
from verifier.merkle import leaf_hash
from verifier.note import line_matches
from verifier.proof import parse_proof
from verifier.receipt import check_receipt
from verifier.request import parse_signature_input
from verifier.wire import (
    RECEIPT_BYTES_MAX,
    Malformed,
    decode_base64,
    encode_canonical,
    parse_json,
)

# The receipt and, beside it, convenience members that repeat up to 256 resources of together 16 KiB.
ANSWER_BYTES_MAX = RECEIPT_BYTES_MAX + 131_072


@dataclass(frozen=True, slots=True)
class VerifiedReceipt:
    """A receipt whose signature, inclusion and evidence held against the pinned keys.

    `data` is the receipt JSON as it may be written to a file; `leaf` and `checkpoint` were parsed out of it.
    """

    data: bytes
    leaf: Leaf
    leaf_hash: bytes
    checkpoint: Checkpoint

    @property
    def seq(self) -> int:
        return self.leaf.seq

    @property
    def type(self) -> str:
        return self.leaf.type

    @property
    def resources(self) -> tuple[str, ...]:
        return resources_of(self.leaf.value)


@dataclass(frozen=True, slots=True)
class Sent:
    """What an answer must be evidence of: one intention, whose `nonces` are those of all attempts so far.

    None for an intention that an earlier call may have sent too: then its key and its body are what it is known by.
    """

    action: str
    did: str
    path: str
    body: bytes
    idempotency_key: str
    nonces: Set[str] | None


def open_receipt(data: bytes, keyring: Keyring) -> VerifiedReceipt:
    """Return the receipt in `data`, proven included in the pinned ledger; AnswerRefused names the first failing step.

    `signed` alone is never enough for a lease client (security: a stolen receipt key could grant anything).
    """
    report = check_receipt(data, keyring, level="included")
    if report.exit_code != 0:
        raise AnswerRefused(f"the gateway's receipt does not verify:\n{report.as_text()}")
    try:
        envelope = parse_json(data, bytes_max=RECEIPT_BYTES_MAX)
        leaf_bytes = decode_base64(str(envelope["payload"]))
        proof = parse_proof(str(envelope["proof"]).encode())
        return VerifiedReceipt(data, parse_leaf(leaf_bytes), leaf_hash(leaf_bytes), parse_checkpoint(proof.checkpoint))
    except (Malformed, KeyError) as error:  # can't happen after the check above; never a traceback for a hostile peer
        raise AnswerRefused(f"the gateway's receipt can't be read again: {error}") from error


def has_other_signers(data: bytes, keyring: Keyring, origin: str) -> bool:
    """Say whether a receipt, or a bare checkpoint, has other signers of this ledger than the pinned keys in force.

    A key came that is not known here, or one that is known went. Nothing here is verified: it is the reason to ask for
    a newer key document, and nothing more.
    """
    try:
        envelope = parse_json(data, bytes_max=RECEIPT_BYTES_MAX)
        checkpoint = parse_checkpoint(parse_proof(str(envelope["proof"]).encode()).checkpoint)
        stated = [row.get("keyid") for row in rows_of(envelope.get("signatures"))]
    except (Malformed, KeyError):
        stated = []
        try:
            checkpoint = parse_checkpoint(data)
        except Malformed:
            return False
    logs, lines = keyring.log_keys(origin), [line for line in checkpoint.note.lines if line.name == origin]
    known = {thumbprint(line.key.public_key) for line in keyring.receipt_keys(origin)}
    has_unknown = any(not any(line_matches(line, log.key) for log in logs) for line in lines)
    in_force = [log for log in logs if covers(log, checkpoint.size)]
    lacks_known = any(not any(line_matches(line, log.key) for line in lines) for log in in_force)
    return has_unknown or lacks_known or any(key_id not in known for key_id in stated)


def receipt_in(answer: bytes) -> bytes | None:
    """Return the receipt inside an unverified HTTP body, or None when there is none (a problem document, HTML)."""
    try:
        receipt = parse_json(answer, bytes_max=ANSWER_BYTES_MAX).get("receipt")
    except Malformed:
        return None
    return encode_canonical(receipt) if isinstance(receipt, dict) else None


def check_is_answer_to(leaf: Leaf, sent: Sent) -> str:
    """Return the nonce of the attempt that a verified leaf answers; AnswerRefused when it answers another request."""
    evidence = leaf.request
    if evidence is None or not leaf.is_known or leaf.action != sent.action:
        raise AnswerRefused(f"entry {leaf.seq} is {leaf.type}, which is no answer to {sent.action}")
    _check_equal("actor", leaf.actor, sent.did)
    _check_equal("method", evidence["method"], "POST")
    _check_equal("path", evidence["path"], sent.path)
    _check_equal("idempotency key", evidence["idempotencyKey"], sent.idempotency_key)
    _check_equal("body", evidence["body"], sent.body.decode())
    signed = parse_signature_input(evidence["signatureInput"])
    if sent.nonces is not None and signed.nonce not in sent.nonces:
        raise AnswerRefused(f"entry {leaf.seq} answers a request that this call did not send (unknown nonce)")
    return signed.nonce


def check_is_whole(header: Leaf, receipts: Sequence[VerifiedReceipt]) -> None:
    """AnswerRefused unless these are the decisions of all commands of a batch, in their order.

    That each belongs to its command and to this header is step 10 of its own ladder.
    """
    places = [(receipt.leaf.batch, receipt.seq) for receipt in receipts]
    expected = [((header.seq, index), header.seq + 1 + index) for index in range(header.number("count"))]
    if places != expected:
        raise AnswerRefused(f"the answer to the batch in entry {header.seq} is not whole, or not in order")


def _check_equal(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise AnswerRefused(f"the receipt's {what} is not that of the request sent")
