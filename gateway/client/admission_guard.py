"""The guard on the protected side that wants an admission: one act, exactly this one, once, by who asked for it.

A FenceGuard lets through whoever holds the newest lease. An AdmissionGuard asks for more: that the ledger was asked
about this very act, under its rules, and said yes. It belongs to whoever owns the resource.

    guard = AdmissionGuard(keyring, "gateway.example/main", path)       # pinned to one ledger
    challenge = guard.challenge()                                       # to the agent
    answer = answer_admission(key, challenge, receipt)                  # by the agent
    act = Deed("file.write", ("repo:app/a.py",))                         # what the service is about to do
    with guard.permit(receipt, Answer(challenge, answer), act, content):
        write(content)                                                  # never twice for one admission

House rules of this file:

* Every fact comes from a verified leaf, included or better; where a scheme is irreversible, witnessed under the pinned
  policy. A receipt is public and no ticket: its actor proves itself, by a challenge, or by having signed this act.
* The digest of what is about to be done is computed here, of the bytes that will be used. Nobody tells it.
* Used up before the body runs, durably, and for good: an act that failed, or a process that was killed, has used its
  admission up. Ask for another one.
* The token of the lease is compared with all that any guard on this memory was shown, and recorded. Without a lease
  (what is only read), the time of the entry stands for it, and nothing is recorded.
* A shadow of rules, or none, is not enough unless the service says so.

Source: docs/protocol.md 41; security.md §3, §14, §15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from gateway.client.errors import Fenced
from gateway.client.fence import Answer, SignedWrite
from gateway.client.fence_memory import Memory, Permit, Use, check_covered
from gateway.client.guarding import Guard
from gateway.client.receipts import VerifiedReceipt
from keys.signing import SigningKey
from verifier.entries import ALLOWED, Leaf, rows_of, scheme_of
from verifier.keyring import Keyring
from verifier.receipt import check_receipt
from verifier.wire import JsonObject, encode_canonical

# How far the guard's clock may be behind the ledger's. By as much an admission ends earlier here than it says.
EARLY_MS = 5_000
Rules = Literal["enforce", "any"]
_IRREVERSIBLE = "irreversible"


@dataclass(frozen=True, slots=True)
class Deed:
    """What a service is about to do: the operation and mode as admitted, and every object that is touched."""

    operation: str
    resources: tuple[str, ...]
    mode: str = "write"


@dataclass(frozen=True, slots=True)
class Judged:
    """What the memory has to agree to: tokens, and what is used up."""

    permits: tuple[Permit, ...]
    use: Use


def answer_admission(key: SigningKey, challenge: str, receipt: bytes) -> bytes:
    """Return the answer of an admission's actor to a guard: bound to the challenge and the receipt, thus to the act."""
    return key.sign(_message("admission", challenge, receipt))


def sign_act(key: SigningKey, content: bytes, receipt: bytes) -> SignedWrite:
    """Return the actor's signature over what is done; an admission is used once, so this needs no challenge."""
    digest = sha256(content).digest()
    return SignedWrite(digest, key.sign(_message("act", digest.hex(), receipt)))


class AdmissionGuard(Guard):
    """Lets each admission of one ledger be used once, for what it allows; see Guard for how it is made.

    `rules`: "enforce" wants admissions that rules in force allowed, "any" takes those of a ledger without rules, or
    with rules that only watch, as well; `rules_digest` wants those of one rule set alone. `level`: "witnessed" wants
    that of every admission, and not only of irreversible ones. `early_ms`: see EARLY_MS.
    """

    def __init__(
        self,
        keyring: Keyring,
        origin: str,
        path: Path | Memory | None = None,
        *,
        rules: Rules = "enforce",
        rules_digest: str | None = None,
        level: Literal["included", "witnessed"] = "included",
        early_ms: int = EARLY_MS,
        wall_ms: Callable[[], int] | None = None,
        busy_ms: int = 10_000,
    ) -> None:
        if rules not in ("enforce", "any") or level not in ("included", "witnessed"):
            raise ValueError('rules is "enforce" or "any", level is "included" or "witnessed"')
        super().__init__(keyring, origin, path, wall_ms=wall_ms, busy_ms=busy_ms)
        self._rules, self._rules_digest, self._level, self._early_ms = rules, rules_digest, level, early_ms

    @contextmanager
    def permit(
        self,
        receipt: bytes,
        proof: Answer | SignedWrite,
        act: Deed,
        content: bytes | None = None,
        *,
        digest: str | None = None,
    ) -> Iterator[VerifiedReceipt]:
        """Check, use up, and hold the guard's lock while the body acts; Fenced or AnswerRefused, and nothing is done.

        `content` is exactly what is about to be done. For what does not fit into memory, `digest` is its SHA-256 in
        hex, which the service computed by itself: never one that came with the request.
        """
        if (content is None) == (digest is None):
            raise ValueError("say what is about to be done once: its bytes, or the SHA-256 that you computed of them")
        arguments_digest = str(digest) if content is None else sha256(content).hexdigest()
        verified = self.opened(receipt)
        self._check_proof(verified, receipt, proof, arguments_digest)
        judged = self.judge(verified, act, arguments_digest)
        with self.memory.admitted(judged.permits, judged.use, self.wall_ms):
            yield verified

    def judge(self, verified: VerifiedReceipt, act: Deed, arguments_digest: str) -> Judged:
        """Return what a verified receipt of this ledger allows now, if that is this act; Fenced says why not.

        Who shows it, and whether it was used before, is not looked at here.
        """
        leaf = verified.leaf
        if leaf.type != ALLOWED:
            raise Fenced(f"entry {leaf.seq} is {leaf.type}, which admits nothing", "not_admitted")
        permits = _permits(verified)
        self._check_act(leaf, act, permits, arguments_digest)
        self._check_time(leaf)
        self._check_rules(leaf)
        self._check_level(verified, permits)
        ends_ms = leaf.number("validUntilMs")
        use = Use(f"the admission of entry {leaf.seq}", ends_ms, leaf.time_ms, self._early_ms)
        return Judged(permits, use)

    def _check_proof(
        self, verified: VerifiedReceipt, receipt: bytes, proof: Answer | SignedWrite, arguments_digest: str
    ) -> None:
        if isinstance(proof, Answer):
            self._use_challenge(proof.challenge)
            message = _message("admission", proof.challenge, receipt)
        else:
            message = _message("act", arguments_digest, receipt)
        self._check_signed(verified, message, proof.signature)

    def _check_act(self, leaf: Leaf, act: Deed, permits: tuple[Permit, ...], arguments_digest: str) -> None:
        if (leaf.text("operation"), leaf.text("mode")) != (act.operation, act.mode):
            admitted = f"{leaf.text('operation')} in mode {leaf.text('mode')}"
            text = f"entry {leaf.seq} admits {admitted}, and this is {act.operation} in mode {act.mode}"
            raise Fenced(text, "other_act")
        check_covered(permits, act.resources, f"the admission of entry {leaf.seq}")
        if leaf.text("argumentsDigest") != arguments_digest:
            text = f"entry {leaf.seq} admits what has the digest {leaf.text('argumentsDigest')}; this has"
            raise Fenced(f"{text} {arguments_digest}", "other_content")

    def _check_time(self, leaf: Leaf) -> None:
        """An admission ends earlier here than it says, because this clock may be behind; by more it must not be."""
        now_ms, early_ms = self.wall_ms(), self._early_ms
        if leaf.time_ms > now_ms + early_ms:
            behind_ms = leaf.time_ms - now_ms
            raise Fenced(f"this guard's clock is {behind_ms} ms behind the ledger's: set it", "clock_behind")
        if now_ms + early_ms >= leaf.number("validUntilMs"):
            raise Fenced(f"the admission of entry {leaf.seq} is over, or nearly; ask for another", "expired")

    def _check_rules(self, leaf: Leaf) -> None:
        rules = leaf.value.get("rules")
        said: JsonObject = rules if isinstance(rules, dict) else {}
        if self._rules == "enforce" and (said.get("mode"), said.get("decision")) != ("enforce", "allow"):
            how = "rules that only watch (shadow)" if said else "no rules"
            raise Fenced(f'entry {leaf.seq} was admitted under {how}; this guard wants rules="enforce"', "unpoliced")
        if self._rules_digest is not None and said.get("digest") != self._rules_digest:
            raise Fenced(f"entry {leaf.seq} was admitted under another rule set than is pinned here", "other_rules")

    def _check_level(self, verified: VerifiedReceipt, permits: tuple[Permit, ...]) -> None:
        """What can't be undone waits for witnesses; which of them count, the pinned policy says and nobody else."""
        is_final = any(permit.scheme_class == _IRREVERSIBLE for permit in permits)
        if not is_final and self._level != "witnessed":
            return
        report = check_receipt(verified.data, self._keyring, level="witnessed")
        if report.exit_code != 0 or self._keyring.policy is None:
            why = "is irreversible" if is_final else "has to be witnessed here"
            text = f"what entry {verified.seq} admits {why}, and its receipt is {report.level}"
            raise Fenced(text if self._keyring.policy else f"{text}: this guard has no policy", "unwitnessed")


def _permits(verified: VerifiedReceipt) -> tuple[Permit, ...]:
    """Return the names of an admission as parts of the lease that it was asked under.

    Tokens rise with time: without a lease, the time of the entry is what a later lease of another has a higher token
    than. It is compared only, for it was issued to nobody.
    """
    leaf = verified.leaf
    rows = {row["name"]: row for row in rows_of(leaf.value.get("schemes"))}
    facts = leaf.value.get("facts")
    is_leased = bool(leaf.text("leaseId"))
    mode = str(facts["leaseMode"]) if is_leased and isinstance(facts, dict) else leaf.text("mode")
    token = leaf.number("fencingToken") if is_leased else leaf.time_ms * 1_000
    return tuple(
        Permit(name, str(row["class"]), mode, leaf.actor, token, row["isFolding"] is True, is_leased)
        for name in verified.resources
        for row in (rows[scheme_of(name)],)
    )


def _message(kind: str, word: str, receipt: bytes) -> bytes:
    """Return what an actor signs for this guard; `kind` keeps it apart from what is signed for a FenceGuard."""
    digest = sha256(receipt).hexdigest()
    return b"tallystick-guard/v1\n" + encode_canonical({"kind": kind, "receipt": digest, "word": word})
