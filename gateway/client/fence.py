"""The guard on the protected side: it lets a write through only if no newer lease of somebody else was seen.

A lease can't stop a holder that sleeps past its end and then writes. The fencing token can, if the thing that is
written to remembers the highest one. `FenceGuard` is that memory. It belongs to whoever owns the resource (a storage
service, a deploy script, a merge queue), not to the agents.

    guard = FenceGuard(keyring, "gateway.example/main", path)      # pinned to one ledger
    challenge = guard.challenge()                                  # to the agent
    answer = answer_challenge(key, challenge, resource, receipt)   # by the agent
    with guard.permit(receipt, resource, Answer(challenge, answer)):
        write()                                                    # no newer token can slip in between

House rules of this file:

* Every fact comes from a verified leaf, included or better. A receipt is public and therefore no ticket: the caller
  proves to be its actor by answering a fresh challenge, or by having signed this very write.
* Refused is a lease unless its token is above that of every lease of *another* actor recorded here that overlaps it,
  in any of its names, in modes that may not share: two such leases never live together, so the older one had ended
  before the newer one began. One's own older receipt is no danger to oneself.
* Every name of a lease is recorded and compared, whichever of them covers the object: the lease is over as a whole.
* Names are compared as the ledger compares them: sub-trees cover what lies below, and a scheme that folds case (the
  leaf says so) has one key for both spellings. A scheme may change between two leases, though not while one lives:
  if either leaf folds, the names are compared folded, and only what both classes share is shared.
* A lease permits what is no more than its mode: read < append < write < delete.
* Recorded before the write and durable (fsync) before `permit` is entered: after a crash the guard knows more than was
  written, never less.
* The guard can't see a lease that it was never shown, nor that one was released early. It orders writers; it doesn't
  replace the lease.

Source: docs/protocol.md 8; security.md §3; scenarios 11, 12, 24, 26, L33, L48.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256

from gateway.client.errors import Fenced
from gateway.client.fence_memory import Permit as Permit
from gateway.client.fence_memory import check_covered
from gateway.client.guarding import CHALLENGES_MAX as CHALLENGES_MAX
from gateway.client.guarding import Guard
from gateway.client.receipts import VerifiedReceipt
from keys.signing import SigningKey
from verifier.entries import HOLDING, MODES, rows_of, scheme_of
from verifier.wire import encode_canonical

# A holiday (30 s) and the two clocks (30 s) may put the effective end later than the printed one.
LATE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Answer:
    """Proof by challenge: `signature` is answer_challenge's, 64 bytes."""

    challenge: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class SignedWrite:
    """Proof by signature over the write itself: `digest` is its SHA-256, `signature` sign_write's.

    The same signed write can be shown again while its lease is the newest: for writes that may be repeated only.
    """

    digest: bytes
    signature: bytes


Proof = Answer | SignedWrite


def answer_challenge(key: SigningKey, challenge: str, resource: str, receipt: bytes) -> bytes:
    """Return the lease holder's answer to a guard: bound to the challenge, the object and the receipt."""
    return key.sign(_message("challenge", challenge, resource, receipt))


def sign_write(key: SigningKey, content: bytes, resource: str, receipt: bytes) -> SignedWrite:
    """Return the holder's signature over what it is about to write to `resource`."""
    digest = sha256(content).digest()
    return SignedWrite(digest, key.sign(_message("write", digest.hex(), resource, receipt)))


class FenceGuard(Guard):
    """Remembers, per key of a leased name, folding, class and mode, the newest tokens; see Guard for how it is made."""

    def check(self, receipt: bytes, resource: str, proof: Proof, *, mode: str = "write") -> VerifiedReceipt:
        """Return the verified receipt if its holder may write `resource` now; Fenced or AnswerRefused otherwise.

        `mode` is what is about to be done: read, append, write or delete.

        A newer token may come between this check and the write: where that matters, write inside `permit`.
        """
        with self.permit(receipt, resource, proof, mode=mode) as verified:
            return verified

    @contextmanager
    def permit(self, receipt: bytes, resource: str, proof: Proof, *, mode: str = "write") -> Iterator[VerifiedReceipt]:
        """Check, record, and hold the guard's lock while the body writes: a newer token waits until it is done.

        `resource` is the object, or a whole sub-tree of objects (`…/**`) when all of it is touched.
        """
        verified = self.opened(receipt)
        permits = self.judge(verified, (resource,), mode)
        self._check_proof(verified, receipt, resource, proof)
        with self.memory.admitted(permits):
            yield verified

    def judge(self, verified: VerifiedReceipt, resources: Sequence[str], mode: str = "write") -> tuple[Permit, ...]:
        """Return what a verified lease says about each of its names; Fenced unless it covers all that is touched."""
        permits = self._permits_of(verified, resources)
        if MODES.index(permits[0].mode) < MODES.index(mode):
            raise Fenced(f"the lease of entry {verified.seq} is for {permits[0].mode}, not for {mode}", "other_act")
        return permits

    def check_token_between_trusted_callers(self, permits: Sequence[Permit], resource: str) -> None:
        """The same rule for a bare number, without any proof; `permits` has one row for each name of the lease.

        Anybody can name a number: for callers in one process that trust each other, never for one that came over a
        network.
        """
        if not any(permit.covers(resource) for permit in permits):
            raise Fenced(
                f"a lease on {', '.join(permit.resource for permit in permits)} does not cover {resource}", "other_act"
            )
        with self.memory.admitted(permits):
            return

    def _permits_of(self, verified: VerifiedReceipt, resources: Sequence[str]) -> tuple[Permit, ...]:
        """Return what the lease says about each of its names, which together cover the objects."""
        leaf = verified.leaf
        if leaf.type not in HOLDING:
            raise Fenced(f"entry {leaf.seq} is {leaf.type}, which grants nothing", "not_admitted")
        permits = _permits(verified)
        check_covered(permits, resources, f"the lease of entry {leaf.seq}")
        if self.wall_ms() >= leaf.number("expiresAtMs") + LATE_MS:
            raise Fenced(f"the lease of entry {leaf.seq} ended: show the receipt of its newest renewal", "expired")
        return permits

    def _check_proof(self, verified: VerifiedReceipt, receipt: bytes, resource: str, proof: Proof) -> None:
        if isinstance(proof, Answer):
            self._use_challenge(proof.challenge)
            message = _message("challenge", proof.challenge, resource, receipt)
        else:
            message = _message("write", proof.digest.hex(), resource, receipt)
        self._check_signed(verified, message, proof.signature)


def _permits(verified: VerifiedReceipt) -> tuple[Permit, ...]:
    """Return what a verified lease says under each of its names; its leaf has a row for each scheme."""
    leaf = verified.leaf
    rows = {row["name"]: row for row in rows_of(leaf.value.get("schemes"))}
    mode, token = leaf.text("mode"), leaf.number("fencingToken")
    return tuple(
        Permit(name, str(row["class"]), mode, leaf.actor, token, row["isFolding"] is True)
        for name in verified.resources
        for row in (rows[scheme_of(name)],)
    )


def _message(kind: str, word: str, resource: str, receipt: bytes) -> bytes:
    """Return what a holder signs for a guard; the first line keeps it apart from requests, leaves and notes."""
    digest = sha256(receipt).hexdigest()
    return b"tallystick-guard/v1\n" + encode_canonical(
        {"kind": kind, "receipt": digest, "resource": resource, "word": word}
    )
