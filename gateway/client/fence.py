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
* Refused is a lower token of *another* actor, on a lease covering the object, in a mode that may not share. One's own
  older receipt is no danger to oneself.
* Recorded before the write and durable (fsync) before `permit` is entered: after a crash the guard knows more than was
  written, never less.
* The guard can't see a lease that it was never shown, nor that one was released early. It orders writers; it doesn't
  replace the lease.

Source: docs/protocol.md 8; security.md §3; scenarios 11 and 12.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gateway.client.clock import SystemClock
from gateway.client.errors import Fenced
from gateway.client.receipts import VerifiedReceipt, open_receipt
from keys.signing import SigningKey
from verifier.did import decode_did
from verifier.entries import check_resource, full_type
from verifier.keyring import Keyring
from verifier.sig import is_valid
from verifier.wire import encode_canonical

CHALLENGES_MAX = 4_096  # open ones; the oldest is forgotten, and its caller asks for another
# A holiday (30 s) and the two clocks (30 s) may put the effective end later than the printed one.
LATE_MS = 60_000
_GRANTS = frozenset(full_type(name) for name in ("lease.granted", "lease.extended", "lease.renewed"))
# Pairs of modes that may hold together, by class of the scheme. Source: coordination.md 1, decisions.md §21.
_SHARING = {
    "read-safe": {frozenset({"read"})},
    "append-only": {frozenset({"read"}), frozenset({"append"}), frozenset({"read", "append"})},
}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS pinned (ledger TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS fence (
    resource TEXT NOT NULL, class TEXT NOT NULL, mode TEXT NOT NULL, actor TEXT NOT NULL, token INTEGER NOT NULL,
    PRIMARY KEY (resource, class, mode, actor)
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Permit:
    """What a lease says about one object: `resource` is the leased name that covers it."""

    resource: str
    scheme_class: str
    mode: str
    actor: str
    token: int


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


def covers(leased: str, object_name: str) -> bool:
    """Return whether a lease on `leased` covers an object: the same name, or a sub-tree (`…/**`) that contains it."""
    return leased in _covering_names(object_name)


def may_share(scheme_class: str, mode: str, other: str) -> bool:
    """Return whether two modes may hold together in a scheme of this class; an unknown class is exclusive."""
    return frozenset({mode, other}) in _SHARING.get(scheme_class, ())


class FenceGuard:
    """Remembers, per leased name, class and mode, the newest tokens it was shown; pinned to one ledger for ever.

    `path` is a file of its own (made on first use); without one the memory ends with the process, which is right only
    when the protected thing does too. Blocking: a permit costs one fsync and keeps other processes on the same file
    waiting for up to `busy_ms`. One thread, one permit at a time; `wall_ms` is the guard's own clock.
    """

    def __init__(
        self,
        keyring: Keyring,
        origin: str,
        path: Path | None = None,
        *,
        wall_ms: Callable[[], int] | None = None,
        busy_ms: int = 10_000,
    ) -> None:
        genesis = keyring.genesis(origin)
        if genesis is None:
            raise Fenced(f"the pinned key document is not of {origin}")
        self._keyring = keyring
        self._wall_ms = SystemClock().wall_ms if wall_ms is None else wall_ms
        self._challenges: OrderedDict[str, None] = OrderedDict()
        self._memory = sqlite3.connect(
            ":memory:" if path is None else path, isolation_level=None, timeout=busy_ms / 1000
        )
        self._memory.execute("PRAGMA synchronous = FULL")
        self._memory.executescript(_SCHEMA)
        self._pin(f"{origin} {genesis.hex()}")

    def challenge(self) -> str:
        """Return a fresh challenge; it can be answered once."""
        challenge = secrets.token_urlsafe(18)
        self._challenges[challenge] = None
        if len(self._challenges) > CHALLENGES_MAX:
            self._challenges.popitem(last=False)
        return challenge

    def check(self, receipt: bytes, resource: str, proof: Proof) -> VerifiedReceipt:
        """Return the verified receipt if its holder may write `resource` now; Fenced or AnswerRefused otherwise.

        A newer token may come between this check and the write: where that matters, write inside `permit`.
        """
        with self.permit(receipt, resource, proof) as verified:
            return verified

    @contextmanager
    def permit(self, receipt: bytes, resource: str, proof: Proof) -> Iterator[VerifiedReceipt]:
        """Check, record, and hold the guard's lock while the body writes: a newer token waits until it is done."""
        verified = open_receipt(receipt, self._keyring)
        permit = self._permit_of(verified, resource)
        self._check_proof(verified, receipt, resource, proof)
        with self._admitted(permit, resource):
            yield verified

    def check_token_between_trusted_callers(self, permit: Permit, resource: str) -> None:
        """The same rule for a bare number, without any proof.

        Anybody can name a number: for callers in one process that trust each other, never for one that came over a
        network.
        """
        if not covers(permit.resource, resource):
            raise Fenced(f"a lease on {permit.resource} does not cover {resource}")
        with self._admitted(permit, resource):
            return

    def close(self) -> None:
        """Close the file."""
        self._memory.close()

    def _permit_of(self, verified: VerifiedReceipt, resource: str) -> Permit:
        leaf = verified.leaf
        if leaf.type not in _GRANTS:
            raise Fenced(f"entry {leaf.seq} is {leaf.type}, which grants nothing")
        check_resource(resource)
        leased = next((name for name in verified.resources if covers(name, resource)), None)
        if leased is None:
            raise Fenced(f"the lease of entry {leaf.seq} does not cover {resource}")
        if self._wall_ms() >= leaf.number("expiresAtMs") + LATE_MS:
            raise Fenced(f"the lease of entry {leaf.seq} ended: show the receipt of its newest renewal")
        return Permit(leased, _class_of(verified, leased), leaf.text("mode"), leaf.actor, leaf.number("fencingToken"))

    def _check_proof(self, verified: VerifiedReceipt, receipt: bytes, resource: str, proof: Proof) -> None:
        if isinstance(proof, Answer):
            if proof.challenge not in self._challenges:
                raise Fenced("this challenge is not open: it was answered before, or is not this guard's")
            del self._challenges[proof.challenge]
            message = _message("challenge", proof.challenge, resource, receipt)
        else:
            message = _message("write", proof.digest.hex(), resource, receipt)
        if not is_valid(decode_did(verified.leaf.actor), message, proof.signature):
            raise Fenced("the caller did not prove to be the holder that the receipt names")

    @contextmanager
    def _admitted(self, permit: Permit, resource: str) -> Iterator[None]:
        """One transaction: refuse or record, let the body work, commit (a token once seen stays seen)."""
        self._begin()
        try:
            self._refuse_older(permit, resource)
            self._record(permit)
        except BaseException:
            self._memory.execute("ROLLBACK")
            raise
        self._memory.execute("COMMIT")
        self._begin()
        try:
            self._refuse_older(permit, resource)  # another process may have come between the two transactions
            yield
        finally:
            self._memory.execute("COMMIT")

    def _begin(self) -> None:
        try:
            self._memory.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Fenced(f"the guard is busy with another write ({error}); try again") from error

    def _refuse_older(self, permit: Permit, resource: str) -> None:
        names = _covering_names(resource)
        marks = ", ".join("?" * len(names))
        rows = self._memory.execute(
            f"SELECT resource, mode, actor, token FROM fence WHERE resource IN ({marks}) AND actor <> ? AND token > ?",
            (*names, permit.actor, permit.token),
        )
        for leased, mode, actor, token in rows.fetchall():
            if not may_share(permit.scheme_class, permit.mode, mode):
                raise Fenced(f"token {permit.token} is older than {token}, which {actor} has shown for {leased}")

    def _record(self, permit: Permit) -> None:
        """Keep the highest token of this actor, and forget actors that can't decide anything any more.

        Of one name, class and mode only the newest token matters, and, to its own actor, the newest of somebody else.
        """
        place = (permit.resource, permit.scheme_class, permit.mode)
        self._memory.execute(
            "INSERT INTO fence VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET token = max(token, excluded.token)",
            (*place, permit.actor, permit.token),
        )
        self._memory.execute(
            "DELETE FROM fence WHERE resource = ? AND class = ? AND mode = ? AND actor NOT IN "
            "(SELECT actor FROM fence WHERE resource = ? AND class = ? AND mode = ? ORDER BY token DESC LIMIT 2)",
            (*place, *place),
        )

    def _pin(self, ledger: str) -> None:
        self._begin()
        self._memory.execute("INSERT INTO pinned SELECT ? WHERE NOT EXISTS (SELECT 1 FROM pinned)", (ledger,))
        (pinned,) = self._memory.execute("SELECT ledger FROM pinned").fetchone()
        self._memory.execute("COMMIT")
        if pinned != ledger:
            raise Fenced(f"this guard's file belongs to the ledger {pinned}: tokens of two ledgers can't be compared")


def _class_of(verified: VerifiedReceipt, leased: str) -> str:
    """Return the class that the grant's leaf names for the scheme; exclusive when it names none."""
    scheme = leased.partition(":")[0]
    rows = verified.leaf.value.get("schemes")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("name") == scheme:
            return str(row.get("class"))
    return "exclusive"


def _covering_names(object_name: str) -> tuple[str, ...]:
    """Return every leased name that covers an object: itself, itself and each of its folders as a sub-tree."""
    scheme, _, path = object_name.partition(":")
    segments = path.split("/")
    trees = ["/".join([*segments[:count], "**"]) for count in range(len(segments) + 1)]
    return (object_name, *(f"{scheme}:{tree}" for tree in trees))


def _message(kind: str, word: str, resource: str, receipt: bytes) -> bytes:
    """Return what a holder signs for a guard; the first line keeps it apart from requests, leaves and notes."""
    digest = sha256(receipt).hexdigest()
    return b"tallystick-guard/v1\n" + encode_canonical(
        {"kind": kind, "receipt": digest, "resource": resource, "word": word}
    )
