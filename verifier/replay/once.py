"""What must not come again: nonces while their signatures count, idempotency keys for a day, each by its actor.

Source: docs/protocol.md 9.
"""

from __future__ import annotations

from collections import deque
from hashlib import sha256

from verifier.entries import SKEW_MS, WINDOW_S_MAX, Leaf
from verifier.replay.judged import Judged
from verifier.replay.things import Faults

# No accepted nonce can still be inside its window after this much log time.
_NONCE_MS_MAX = WINDOW_S_MAX * 1000 + 2 * SKEW_MS


class Once:
    """Keys that must not come again before their time; forgotten after `keep_ms`, so memory stays bounded."""

    __slots__ = ("_keep_ms", "_order", "_until")

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._until: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._order)

    def is_again(self, text: str, time_ms: int, until_ms: int) -> bool:
        """Note `text` until `until_ms`; say whether an earlier note of it still holds at `time_ms`."""
        while self._order and self._order[0][0] < time_ms:
            _, old = self._order.popleft()
            if self._until.get(old, time_ms) < time_ms:
                del self._until[old]
        key = sha256(text.encode("utf-8")).digest()[:16]
        is_again = self._until.get(key, -1) > time_ms
        self._until[key] = until_ms
        self._order.append((time_ms + self._keep_ms, key))
        return is_again


class Spent:
    """The nonces and idempotency keys of one ledger; `idempotency_ms` is how long a key belongs to its request."""

    __slots__ = ("_idempotency_ms", "_keys", "_nonces")

    def __init__(self, idempotency_ms: int) -> None:
        self._idempotency_ms = idempotency_ms
        self._nonces, self._keys = Once(_NONCE_MS_MAX), Once(idempotency_ms)

    def faults(self, leaf: Leaf, entry: Judged) -> Faults:
        """A request that is decided is neither an old one nor a retry."""
        if entry.nonce is None:
            return
        if self._nonces.is_again(f"{leaf.actor} {entry.nonce}", leaf.time_ms, entry.nonce_until_ms):
            yield "nonce_reused", "the actor's nonce was used before and is still live (9.3)"
        until_ms = leaf.time_ms + self._idempotency_ms
        if self._keys.is_again(f"{leaf.actor} {entry.idempotency_key}", leaf.time_ms, until_ms):
            yield "idempotency_key_reused", "the actor's idempotency key was decided before and is still live (9.2)"
