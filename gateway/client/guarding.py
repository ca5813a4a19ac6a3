"""What guards of both kinds are made of: one pinned ledger, one memory, challenges, and receipts that were verified.

Source: docs/protocol.md 8, 41; security.md §3, §14.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from gateway.client.clock import SystemClock
from gateway.client.errors import AnswerRefused, Fenced
from gateway.client.fence_memory import Memory, check_pinned
from gateway.client.receipts import VerifiedReceipt, has_other_signers, open_receipt
from verifier.did import decode_did
from verifier.keyring import Keyring
from verifier.sig import is_valid

CHALLENGES_MAX = 4_096  # open ones; the oldest is forgotten, and its caller asks for another


class Guard:
    """One ledger, pinned for ever; the newest key document that was given; a memory, which another guard may share.

    `path` is a file of its own (made on first use), or the memory of another guard of this process. Without one the
    memory ends with the process, which is right only when the protected thing does too. Blocking: a permit costs one
    fsync and keeps other processes on the same file waiting for up to `busy_ms`. One thread, one permit at a time;
    `wall_ms` is the guard's own clock.
    """

    def __init__(
        self,
        keyring: Keyring,
        origin: str,
        path: Path | Memory | None = None,
        *,
        wall_ms: Callable[[], int] | None = None,
        busy_ms: int = 10_000,
    ) -> None:
        genesis = keyring.genesis(origin)
        if genesis is None:
            raise Fenced(f"the pinned key document is not of {origin}", "other_ledger")
        self._keyring, self.origin = keyring, origin
        self.wall_ms = SystemClock().wall_ms if wall_ms is None else wall_ms
        self._challenges: OrderedDict[str, None] = OrderedDict()
        ledger = f"{origin} {genesis.hex()}"
        self.memory = path if isinstance(path, Memory) else Memory(path, ledger, busy_ms=busy_ms)
        check_pinned(self.memory.ledger, ledger)

    def renew_keyring(self, keyring: Keyring) -> None:
        """Judge by a newer key document from now on; Fenced unless it is of the same root and ledger and not older.

        A guard that runs for months needs it after each change of the ledger's keys. Its memory stays.
        """
        pinned, origin = self._keyring, self.origin
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

    def close(self) -> None:
        """Close the memory, which nobody else may use afterwards."""
        self.memory.close()

    def opened(self, receipt: bytes) -> VerifiedReceipt:
        """Return the verified receipt of this ledger; AnswerRefused or Fenced.

        Keys that came or went since are named as a reason, and nothing is fetched.
        """
        verified = self._verified(receipt)
        if verified.leaf.origin != self.origin:  # a policy may pin logs of other ledgers as well
            raise Fenced(
                f"this receipt is of {verified.leaf.origin}, and the guard guards {self.origin}", "other_ledger"
            )
        return verified

    def _verified(self, receipt: bytes) -> VerifiedReceipt:
        try:
            return open_receipt(receipt, self._keyring)
        except AnswerRefused as error:
            if not has_other_signers(receipt, self._keyring, self.origin):
                raise
            raise AnswerRefused(
                f"{error}\nOther keys signed it than those in force in version {self._keyring.version} of the key"
                " document that this guard has: if the ledger changed its keys, fetch the newest document and give it"
                " to the guard (renew_keyring)"
            ) from error

    def _use_challenge(self, challenge: str) -> None:
        if challenge not in self._challenges:
            raise Fenced("this challenge is not open: it was answered before, or is not this guard's", "not_proven")
        del self._challenges[challenge]

    def _check_signed(self, verified: VerifiedReceipt, message: bytes, signature: bytes) -> None:
        if not is_valid(decode_did(verified.leaf.actor), message, signature):
            raise Fenced("the caller did not prove to be the holder that the receipt names", "not_proven")
