"""How often a principal was refused a resource without a break, and what a refusal therefore advises.

Source: docs/protocol.md 7.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple

from verifier.wire import JsonObject

DOUBLINGS_MAX = 32  # 2^32 x any base is far above stampedeMaxMs
_FULL_BASE_MS, _FULL_BASE_MS_MAX = 1_000, 60_000


class Edge(NamedTuple):
    """The latest acquire of an actor that a lease refused: until then it counts as a wait for `name`."""

    name: str
    mode: str
    until_ms: int


class Stampede:
    """Counts by principal and resource; a grant or a while without a refusal resets them. Memory follows the latter."""

    __slots__ = ("_counts", "_numbers", "_order")

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}  # how many, until when
        self._order: deque[tuple[int, tuple[str, str]]] = deque()

    def __len__(self) -> int:
        return len(self._counts)

    def waits(self, principal: str, name: str, now_ms: int) -> int:
        """Return how many refusals came before."""
        count, until_ms = self._counts.get((principal, name), (0, 0))
        return count if now_ms < until_ms else 0

    def count(self, principal: str, name: str, now_ms: int) -> None:
        while self._order and self._order[0][0] <= now_ms:
            _, old = self._order.popleft()
            if self._counts.get(old, (0, now_ms + 1))[1] <= now_ms:
                del self._counts[old]
        until_ms = now_ms + self._numbers["stampedeResetMs"]
        self._counts[principal, name] = self.waits(principal, name, now_ms) + 1, until_ms
        self._order.append((until_ms, (principal, name)))

    def forget(self, principal: str, names: Iterable[str]) -> None:
        if self._counts:
            for name in names:
                self._counts.pop((principal, name), None)

    def rows(self, principal: str, names: Iterable[str]) -> dict[tuple[str, str], tuple[int, int]]:
        """Return what `forget` would forget."""
        keys = ((principal, name) for name in names)
        return {key: self._counts[key] for key in keys if key in self._counts}

    def put_back(self, rows: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        self._counts.update(rows)

    def advice(self, waits: int) -> JsonObject:
        """Return the member `stampede` of the refusal after `waits` others."""
        longest_ms, base_ms = self._numbers["stampedeMaxMs"], self._numbers["stampedeBaseMs"]
        wait_ms = min(longest_ms, base_ms << min(waits, DOUBLINGS_MAX))
        return {"admitted": waits < self._numbers["stampedeAdmitted"], "waitMs": wait_ms}


def full_retry_ms(waits: int, nonce: str) -> int:
    """Return `retryAfterMs` of a `queue_full`: growing, and spread by the nonce of the request."""
    base_ms = min(_FULL_BASE_MS_MAX, _FULL_BASE_MS << min(waits, DOUBLINGS_MAX))
    return base_ms + base_ms * int.from_bytes(sha256(nonce.encode("utf-8")).digest()[:2], "big") // 65_536 // 4
