"""Approvals that were used, each for as long as its statement could be used again.

Source: docs/protocol.md 38.
"""

from __future__ import annotations

from heapq import heappop, heappush

from verifier.approval import Approval


class Burnt:
    """Nonces by approver. Memory follows what still holds: a week at most."""

    __slots__ = ("_order", "_until")

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], int] = {}
        self._order: list[tuple[int, str, str]] = []  # a heap

    def is_burnt(self, one: Approval, now_ms: int) -> bool:
        """Say whether this approver's nonce was used by a statement that still holds."""
        while self._order and self._order[0][0] <= now_ms:
            until_ms, *key = heappop(self._order)
            if self._until.get((key[0], key[1])) == until_ms:
                del self._until[key[0], key[1]]
        return self._until.get((one.approver, one.nonce), 0) > now_ms

    def burn(self, one: Approval) -> None:
        self._until[one.approver, one.nonce] = one.expires_at_ms
        heappush(self._order, (one.expires_at_ms, one.approver, one.nonce))

    def take_back(self, one: Approval) -> None:
        """Make it as if this one had not been used."""
        self._until.pop((one.approver, one.nonce), None)
