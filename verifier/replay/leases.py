"""The leases of a ledger as its entries so far have made them: who holds what, until when, and how each one ended.

Ends are followed, not believed: a lease lives until the later of its stated end and the holiday, and nothing but its
holder's release takes it away before. Live leases are kept, and for `idempotencyMs` how an ended one ended, because
that is how long late calls get a precise answer.
Source: docs/protocol.md 7, 8.1, 12.9, 17.5, 18.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from sys import intern
from typing import NamedTuple

from verifier.entries import IDEMPOTENCY_MS, TTL_MS_MAX, TTL_MS_MIN, Leaf, resources_of

Faults = Iterator[tuple[str, str]]


@dataclass(slots=True)
class Live:
    """A lease that was granted and has not ended."""

    seq: int
    holder: str
    token: int
    granted_at_ms: int
    resources: tuple[str, ...]
    expires_at_ms: int
    hold_until_ms: int


class Ended(NamedTuple):
    """How a lease ended; `seq` is the entry that ended it, `until_ms` the log time at which that may be forgotten."""

    holder: str
    is_released: bool
    seq: int
    until_ms: int


class Leases:
    """Fed in order with every entry about a lease; each method yields what does not fit the entries before."""

    def __init__(self) -> None:
        self.live: dict[int, Live] = {}  # by the seq of the grant
        self.held: dict[str, dict[int, Live]] = {}  # by resource, then by the seq of the grant
        self.is_disputed = False
        self.holiday_ms = 0  # until when no lease ends
        self.max_hold_ms: int | None = None  # entry 0's
        self.ttl_ms = (TTL_MS_MIN, TTL_MS_MAX)  # entry 0's bounds
        self.idempotency_ms = IDEMPOTENCY_MS
        self._ended: dict[int, Ended] = {}
        self._order: deque[int] = deque()
        self._token = 0

    def end_ms(self, lease: Live) -> int:
        """Return the effective end."""
        return max(lease.expires_at_ms, self.holiday_ms)

    def ended(self, grant_seq: int, time_ms: int) -> Ended | None:
        """Return how a lease ended, while that is remembered."""
        ended = self._ended.get(grant_seq)
        return ended if ended is not None and time_ms < ended.until_ms else None

    def in_the_way(self, actor: str, resources: tuple[str, ...], time_ms: int) -> list[Live]:
        """Return others' leases on `resources`, the one to name first: latest effective end, then lowest token."""
        found = {seq: lease for name in resources for seq, lease in self.held.get(name, {}).items()}
        others = [lease for lease in found.values() if lease.holder != actor and time_ms < self.end_ms(lease)]
        return sorted(others, key=lambda lease: (-self.end_ms(lease), lease.token))

    def own(self, actor: str, resources: tuple[str, ...]) -> Live | None:
        """Return the actor's lease on exactly these resources."""
        holders = self.held.get(resources[0], {}).values()
        return next((lease for lease in holders if lease.holder == actor and lease.resources == resources), None)

    def grant(self, leaf: Leaf) -> Faults:
        """A new lease; that its end is timeMs + ttlMs was a question to the leaf alone."""
        token, resources = leaf.number("fencingToken"), resources_of(leaf.value)
        if token <= self._token:
            yield "token_not_rising", "fencingToken is not above every earlier one"
        elif token != max(self._token + 1, leaf.time_ms * 1000):
            yield "token_wrong", "fencingToken is not max(last + 1, timeMs x 1,000)"
        if self.max_hold_ms is not None and leaf.number("holdUntilMs") != leaf.time_ms + self.max_hold_ms:
            yield "hold_wrong", "holdUntilMs is not timeMs + maxHoldMs of entry 0"
        yield from self._ttl_faults(leaf)
        if self.own(leaf.actor, resources) is not None:
            yield "not_extended", "the actor holds exactly these resources, so its lease is extended, not granted anew"
        yield from self._dispute_faults()
        self._token = max(self._token, token)
        lease = Live(
            seq=leaf.seq,
            holder=intern(leaf.actor),
            token=token,
            granted_at_ms=leaf.time_ms,
            resources=resources,
            expires_at_ms=leaf.number("expiresAtMs"),
            hold_until_ms=leaf.number("holdUntilMs"),
        )
        self.live[leaf.seq] = lease
        for name in resources:
            holders = self.held.setdefault(name, {})
            if any(other.holder != leaf.actor for other in holders.values()):
                yield "double_grant", "a resource of the grant is held by a live lease of another actor"
            holders[leaf.seq] = lease

    def _ttl_faults(self, leaf: Leaf) -> Faults:
        shortest_ms, longest_ms = self.ttl_ms
        if not shortest_ms <= leaf.number("ttlMs") <= longest_ms:
            yield "ttl_wrong", f"ttlMs is outside entry 0's {shortest_ms} to {longest_ms}"

    def follow(self, leaf: Leaf) -> Faults:
        """A later word about a lease: it lives, is the one that was granted, and ends when it may."""
        lease = self.live.get(leaf.number("grantSeq"))
        if lease is None:
            yield "citation_wrong", "grantSeq is not a grant that is still live"
            return
        if leaf.number("fencingToken") != lease.token:
            yield "token_wrong", "fencingToken is not the grant's"
        if (leaf.text("holder") or leaf.actor) != lease.holder:
            yield "holder_wrong", "the lease is another actor's"
        if leaf.number("grantedAtMs") not in (-1, lease.granted_at_ms) or resources_of(leaf.value) != lease.resources:
            yield "citation_wrong", "grantedAtMs or resources are not the grant's"
        name, is_over = leaf.entry_type.name, leaf.time_ms >= self.end_ms(lease)
        if name == "lease.expired":
            if leaf.number("expiresAtMs") != lease.expires_at_ms:
                yield "end_wrong", "expiresAtMs is not the end that was promised last"
            if not is_over:
                yield "expired_early", f"the lease lives until {self.end_ms(lease)}"
        elif is_over:
            yield "already_over", f"the lease was over at {self.end_ms(lease)}; first comes its lease.expired"
        if name in ("lease.released", "lease.expired"):
            self._end(lease, leaf)
        else:
            yield from self._prolong(lease, leaf)

    def _prolong(self, lease: Live, leaf: Leaf) -> Faults:
        """The end moves to timeMs + ttlMs, never back, and nothing else moves."""
        lease.expires_at_ms = max(lease.expires_at_ms, leaf.time_ms + leaf.number("ttlMs"))
        if leaf.number("expiresAtMs") != lease.expires_at_ms:
            yield "end_wrong", f"expiresAtMs is not the later of the old end and timeMs + ttlMs, {lease.expires_at_ms}"
        if leaf.number("holdUntilMs") != lease.hold_until_ms:
            yield "hold_wrong", "holdUntilMs is not the grant's"
        yield from self._ttl_faults(leaf)
        yield from self._dispute_faults()

    def _dispute_faults(self) -> Faults:
        if self.is_disputed:
            yield "granted_in_dispute", "after ledger.disputed nothing is granted, extended or renewed"

    def _end(self, lease: Live, leaf: Leaf) -> None:
        del self.live[lease.seq]
        for name in lease.resources:
            holders = self.held[name]
            holders.pop(lease.seq, None)
            if not holders:
                del self.held[name]
        while self._order and self._ended[self._order[0]].until_ms <= leaf.time_ms:
            del self._ended[self._order.popleft()]
        if lease.seq not in self._ended:  # a forged ledger may grant one seq twice
            self._order.append(lease.seq)
        is_released = leaf.entry_type.name == "lease.released"
        self._ended[lease.seq] = Ended(lease.holder, is_released, leaf.seq, leaf.time_ms + self.idempotency_ms)
