"""Approvals: statements by which a person, or another agent, lets an agent do one exact thing once.

    Act           what is to be done, whole: nothing else is bound, and nothing less
    SignedApproval  that somebody approves of it, until when, with a nonce that the ledger burns when it is used

They are made here, without any network, and read again from a file. A statement is no secret and no ticket: it counts
for the agent that it names, for that one act on that one ledger under those rules, once. Whether who signed may approve
at all is the ledger's to say. What is signed, and every check of it, is the verifier's (verifier/approval.py).

Source: docs/protocol.md 38.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from gateway.client.signing import new_nonce
from keys.signing import SigningKey
from verifier.approval import Approval, action_digest, approval_bytes, parse_approvals
from verifier.entries import APPROVAL_MS_MAX, APPROVAL_TYPE, ZERO_HASH
from verifier.wire import TEXT_BYTES_MAX, JsonObject, Malformed, encode_base64, encode_canonical, parse_json

TTL_MS_DEFAULT = 3_600_000  # an hour: long enough to be used, short enough to be remembered by who gave it
TTL_MS_MIN = 1_000
# The ledger allows no skew here, so a statement begins a little before this machine believes it is signed.
BACKDATE_MS = 120_000


@dataclass(frozen=True, slots=True)
class Act:
    """All that an admission is about. `agent` is the principal that asks; `rules_digest` is zeros without rules."""

    ledger: str
    agent: str
    operation: str
    resources: tuple[str, ...]
    mode: str
    arguments_digest: str
    cost: int = 0
    rules_digest: str = ZERO_HASH

    @property
    def digest(self) -> str:
        """Return what an approval binds."""
        return action_digest(
            agent=self.agent, arguments_digest=self.arguments_digest, cost=self.cost, ledger=self.ledger,
            mode=self.mode, operation=self.operation, resources=self.resources, rules_digest=self.rules_digest,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SignedApproval:
    """A statement with its signature: `row` is the JSON object of both, as a body and a file have it."""

    row: JsonObject
    says: Approval

    def encode(self) -> bytes:
        """Return the bytes of a file that hands it over."""
        return encode_canonical(self.row) + b"\n"


def approve(
    key: SigningKey,
    act: Act,
    *,
    genesis: bytes,
    now_ms: int,
    ttl_ms: int = TTL_MS_DEFAULT,
    nonce: str | None = None,
) -> SignedApproval:
    """Return the statement with which `key` approves of `act` in the ledger that began with `genesis`.

    It counts for `ttl_ms` from `now_ms` on. Malformed for what the ledger would refuse by its shape.
    """
    if not TTL_MS_MIN <= ttl_ms <= APPROVAL_MS_MAX:
        raise Malformed("an approval lasts from 1 second to 7 days")
    ends_ms = now_ms + ttl_ms
    statement: JsonObject = {
        "type": APPROVAL_TYPE, "ledger": act.ledger, "genesis": genesis.hex(), "agent": act.agent,
        "operation": act.operation, "actionDigest": act.digest, "argumentsDigest": act.arguments_digest,
        "rulesDigest": act.rules_digest, "approver": key.did, "nonce": new_nonce() if nonce is None else nonce,
        "notBeforeMs": max(now_ms - BACKDATE_MS, ends_ms - APPROVAL_MS_MAX, 0), "expiresAtMs": ends_ms,
    }  # fmt: skip
    return _checked({"statement": statement, "signature": encode_base64(key.sign(approval_bytes(statement)))})


def open_approval(content: bytes) -> SignedApproval:
    """Return the statement in a file; Malformed unless its grammar and its signature are good."""
    return _checked(parse_json(content, bytes_max=TEXT_BYTES_MAX))


def is_for(says: Approval, act: Act, genesis: bytes) -> bool:
    """Say whether a statement approves of just this act in just this ledger."""
    bound = (
        says.ledger, says.genesis, says.agent, says.operation, says.action_digest, says.arguments_digest,
        says.rules_digest,
    )  # fmt: skip
    return bound == (
        act.ledger, genesis.hex(), act.agent, act.operation, act.digest, act.arguments_digest, act.rules_digest,
    )  # fmt: skip


def digest_of_arguments(arguments: bytes | None, digest: str | None) -> str:
    """Return the SHA-256 of what will be done, in hex: of the bytes, or as it was given; exactly one of the two."""
    if (arguments is None) == (digest is None):
        raise Malformed("say what will be done once: its bytes, or their SHA-256")
    return sha256(arguments).hexdigest() if arguments is not None else str(digest)


def rows_of_approvals(approvals: Sequence[SignedApproval]) -> JsonObject:
    """Return the member of a body that presents approvals; nothing for none."""
    return {"approvals": [approval.row for approval in approvals]} if approvals else {}


def _checked(row: JsonObject) -> SignedApproval:
    """Return a statement as the ledger will read it."""
    return SignedApproval(row, parse_approvals([row])[0])
