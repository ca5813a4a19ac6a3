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

import secrets
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gateway.client.clock import SystemClock
from gateway.client.errors import AnswerRefused, Fenced
from gateway.client.receipts import VerifiedReceipt, has_other_signers, open_receipt
from keys.signing import SigningKey
from verifier.did import decode_did
from verifier.entries import HOLDING, MODES, check_resource, covers, key_of, may_share, overlaps, rows_of, scheme_of
from verifier.keyring import Keyring
from verifier.sig import is_valid
from verifier.wire import encode_canonical

CHALLENGES_MAX = 4_096  # open ones; the oldest is forgotten, and its caller asks for another
# A holiday (30 s) and the two clocks (30 s) may put the effective end later than the printed one.
LATE_MS = 60_000
# The number of this schema, in the file. Version 0 kept one name of each set.
_VERSION = 2
# `resource` is the key of a leased name; `folded` is what it is found by: the same with A to Z lowered in any case.
_SCHEMA = (
    "CREATE TABLE pinned (ledger TEXT NOT NULL) STRICT",
    """CREATE TABLE fence (
    folded TEXT NOT NULL, resource TEXT NOT NULL, is_folding INTEGER NOT NULL, class TEXT NOT NULL, mode TEXT NOT NULL,
    actor TEXT NOT NULL, token INTEGER NOT NULL,
    PRIMARY KEY (folded, resource, is_folding, class, mode, actor)
) STRICT, WITHOUT ROWID""",
    f"PRAGMA user_version = {_VERSION}",
)


@dataclass(frozen=True, slots=True)
class Permit:
    """What a lease says about one of its names; `is_folding`: its scheme folds case."""

    resource: str
    scheme_class: str
    mode: str
    actor: str
    token: int
    is_folding: bool = False

    @property
    def key(self) -> str:
        return key_of(self.resource, self.is_folding)

    def covers(self, object_name: str) -> bool:
        """Say whether this lease covers an object: the same name, or one inside its sub-tree (`…/**`)."""
        return covers(self.key, key_of(object_name, self.is_folding))

    def overlaps(self, key: str, is_folding: bool) -> bool:
        """Say whether a name of another lease, given by its key, may mean what this one means: folded if either is."""
        is_folding = is_folding or self.is_folding
        return overlaps(key_of(key, is_folding), key_of(self.resource, is_folding))

    def may_share(self, scheme_class: str, mode: str) -> bool:
        """Say whether another lease may live beside it, by the classes that both leaves name."""
        return all(may_share(each, self.mode, mode) for each in (self.scheme_class, scheme_class))


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


class FenceGuard:
    """Remembers, per key of a leased name, folding, class and mode, the newest tokens; pinned to one ledger for ever.

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
        self._keyring, self._origin = keyring, origin
        self._wall_ms = SystemClock().wall_ms if wall_ms is None else wall_ms
        self._challenges: OrderedDict[str, None] = OrderedDict()
        self._memory = sqlite3.connect(
            ":memory:" if path is None else path, isolation_level=None, timeout=busy_ms / 1000
        )
        # After FULL, a power cut may bring back the journal that was just deleted, and with it the memory of before.
        self._memory.execute("PRAGMA synchronous = EXTRA")
        try:
            self._open(f"{origin} {genesis.hex()}")
        except BaseException:
            self._memory.close()
            raise

    def renew_keyring(self, keyring: Keyring) -> None:
        """Judge by a newer key document from now on; Fenced unless it is of the same root and ledger and not older.

        A guard that runs for months needs it after each change of the ledger's keys. Its memory stays.
        """
        pinned, origin = self._keyring, self._origin
        if keyring.root != pinned.root or keyring.genesis(origin) != pinned.genesis(origin):
            raise Fenced(f"the new key document is of another root or ledger than {origin}, which this guard guards")
        if (keyring.version or 0) < (pinned.version or 0):
            raise Fenced(f"key document version {keyring.version} is older than {pinned.version}, which is pinned")
        self._keyring = keyring

    def challenge(self) -> str:
        """Return a fresh challenge; it can be answered once."""
        challenge = secrets.token_urlsafe(18)
        self._challenges[challenge] = None
        if len(self._challenges) > CHALLENGES_MAX:
            self._challenges.popitem(last=False)
        return challenge

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
        verified = self._opened(receipt)
        permits = self._permits_of(verified, resource)
        if MODES.index(permits[0].mode) < MODES.index(mode):
            raise Fenced(f"the lease of entry {verified.seq} is for {permits[0].mode}, not for {mode}")
        self._check_proof(verified, receipt, resource, proof)
        with self._admitted(permits):
            yield verified

    def check_token_between_trusted_callers(self, permits: Sequence[Permit], resource: str) -> None:
        """The same rule for a bare number, without any proof; `permits` has one row for each name of the lease.

        Anybody can name a number: for callers in one process that trust each other, never for one that came over a
        network.
        """
        if not any(permit.covers(resource) for permit in permits):
            raise Fenced(f"a lease on {', '.join(permit.resource for permit in permits)} does not cover {resource}")
        with self._admitted(permits):
            return

    def close(self) -> None:
        """Close the file."""
        self._memory.close()

    def _opened(self, receipt: bytes) -> VerifiedReceipt:
        """Return the verified receipt. Keys that came or went since are named as a reason, and nothing is fetched."""
        try:
            return open_receipt(receipt, self._keyring)
        except AnswerRefused as error:
            if not has_other_signers(receipt, self._keyring, self._origin):
                raise
            raise AnswerRefused(
                f"{error}\nOther keys signed it than those in force in version {self._keyring.version} of the key"
                " document that this guard has: if the ledger changed its keys, fetch the newest document and give it"
                " to the guard (renew_keyring)"
            ) from error

    def _permits_of(self, verified: VerifiedReceipt, resource: str) -> tuple[Permit, ...]:
        """Return what the lease says about each of its names, one of which covers the object."""
        leaf = verified.leaf
        if leaf.type not in HOLDING:
            raise Fenced(f"entry {leaf.seq} is {leaf.type}, which grants nothing")
        check_resource(resource)
        permits = _permits(verified)
        if not any(permit.covers(resource) for permit in permits):
            raise Fenced(f"the lease of entry {leaf.seq} does not cover {resource}")
        if self._wall_ms() >= leaf.number("expiresAtMs") + LATE_MS:
            raise Fenced(f"the lease of entry {leaf.seq} ended: show the receipt of its newest renewal")
        return permits

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
    def _admitted(self, permits: Sequence[Permit]) -> Iterator[None]:
        """One transaction: refuse or record, all names or none; then hold the lock while the body works.

        What was recorded is durable before the body begins, and stays whatever becomes of the write.
        """
        with self._transaction():
            self._refuse_older(permits)
            self._record(permits)
        with self._transaction():
            self._refuse_older(permits)  # another process may have come between the two transactions
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._begin()
        try:
            yield
            self._memory.execute("COMMIT")
        finally:
            if self._memory.in_transaction:
                self._memory.execute("ROLLBACK")

    def _begin(self) -> None:
        try:
            self._memory.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Fenced(f"the guard is busy with another write ({error}); try again") from error

    def _refuse_older(self, permits: Sequence[Permit]) -> None:
        for permit in permits:
            for key, is_folding, scheme_class, mode, actor, token in self._not_below(permit):
                if not permit.may_share(scheme_class, mode) and permit.overlaps(key, bool(is_folding)):
                    order = "older than" if token > permit.token else "the same as"
                    raise Fenced(f"token {permit.token} is {order} {token}, which {actor} has shown for {key}")

    def _not_below(self, permit: Permit) -> list[tuple[str, int, str, str, str, int]]:
        """Return what others have shown, in tokens not below this one, near its name; a few rows too many."""
        names, first, last = _near(key_of(permit.resource, True))
        marks = ", ".join("?" * len(names))
        return self._memory.execute(
            "SELECT resource, is_folding, class, mode, actor, token FROM fence WHERE actor <> ? AND token >= ? "
            f"AND (folded IN ({marks}) OR folded >= ? AND folded < ?)",
            (permit.actor, permit.token, *names, first, last),
        ).fetchall()

    def _record(self, permits: Sequence[Permit]) -> None:
        """Keep the highest token of this actor, and forget actors that can't decide anything any more.

        Of one name, class and mode only the newest token matters, and, to its own actor, the newest of somebody else.
        """
        places = [(key_of(p.resource, True), p.key, p.is_folding, p.scheme_class, p.mode) for p in permits]
        self._memory.executemany(
            "INSERT INTO fence VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET token = max(token, excluded.token)",
            [(*place, permit.actor, permit.token) for place, permit in zip(places, permits, strict=True)],
        )
        place = "(folded, resource, is_folding, class, mode) = (?, ?, ?, ?, ?)"
        self._memory.executemany(
            f"DELETE FROM fence WHERE {place} AND actor NOT IN "
            f"(SELECT actor FROM fence WHERE {place} ORDER BY token DESC LIMIT 2)",
            [(*place, *place) for place in places],
        )

    def _open(self, ledger: str) -> None:
        """Make the file or know it again, and pin it to its ledger."""
        with self._transaction():
            (version,) = self._memory.execute("PRAGMA user_version").fetchone()
            (tables,) = self._memory.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables:
                for statement in _SCHEMA:
                    self._memory.execute(statement)
                self._memory.execute("INSERT INTO pinned VALUES (?)", (ledger,))
            elif version != _VERSION:
                raise Fenced(
                    f"the guard's file has schema {version}, and this guard reads {_VERSION}: an older one remembered "
                    "one name of each set only; begin a new file once the leases that it has seen are over"
                )
            (pinned,) = self._memory.execute("SELECT ledger FROM pinned").fetchone()
        if pinned != ledger:
            raise Fenced(f"this guard's file belongs to the ledger {pinned}: tokens of two ledgers can't be compared")


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


def _near(key: str) -> tuple[tuple[str, ...], str, str]:
    """Return where to look for keys that may overlap `key`: itself and the sub-trees around it, and what lies inside.

    The range, from its first text to before its last, is empty for a plain name: below it lies only its own sub-tree.
    """
    scheme, _, path = key.partition(":")
    segments = path.removesuffix("**").removesuffix("/").split("/")
    trees = ["/".join([*segments[:count], "**"]) for count in range(len(segments) + 1)]
    names = (key, *(f"{scheme}:{tree}" for tree in trees))
    if not key.endswith("**"):
        return names, "", ""
    inside = key[:-2]  # ends with the slash or the colon
    return (*names, inside[:-1]), inside, inside[:-1] + chr(ord(inside[-1]) + 1)


def _message(kind: str, word: str, resource: str, receipt: bytes) -> bytes:
    """Return what a holder signs for a guard; the first line keeps it apart from requests, leaves and notes."""
    digest = sha256(receipt).hexdigest()
    return b"tallystick-guard/v1\n" + encode_canonical(
        {"kind": kind, "receipt": digest, "resource": resource, "word": word}
    )
