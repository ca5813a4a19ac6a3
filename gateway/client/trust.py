"""How long a holder may rely on its lease: pure arithmetic over the steady clock.

The gateway counts a lease from the moment it decides; the holder can't know that moment, only that it lies after the
first attempt was sent. So trust ends at that first attempt plus the ttl minus a margin, whatever comes back and however
late: a replayed answer, a slow answer or a third attempt never move it. It follows that trust ends before the lease
does, without comparing two machines' clocks.

A lease of a session ends as well when nothing is heard of the session for too long (`endsIfIdleAtMs`). That span counts
from the same attempt; a later entry of the session moves it (presence.py).
Source: docs/protocol.md, trust of a client; scenarios L8, L17, L19.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.client.receipts import VerifiedReceipt

MARGIN_MS_MIN = 1_000
# Below this nothing useful is left of a held lease after the margin.
HELD_TTL_MS_MIN = 2_000


def margin_ms(ttl_ms: int) -> int:
    """Return the safety margin: a tenth of the ttl, at least one second (clock drift, a late wake-up, a last write)."""
    return max(MARGIN_MS_MIN, ttl_ms // 10)


def trusted_ms(ttl_ms: int) -> int:
    """Return how long after the first attempt was sent a grant of `ttl_ms` is trusted."""
    return max(0, ttl_ms - margin_ms(ttl_ms))


def beat_period_ms(ttl_ms: int) -> int:
    """Return the time between heartbeats: two renewals may be lost before trust ends."""
    return max(1, min(ttl_ms // 3, trusted_ms(ttl_ms) // 2))


@dataclass(frozen=True, slots=True)
class Grant:
    """A verified grant, extension or renewal. `sent_ms` is the steady-clock instant of its call's first attempt.

    For a lease that was claimed from a queue the call is the claim, and the time it was kept waiting counts.
    """

    receipt: VerifiedReceipt
    sent_ms: int

    @property
    def lease_id(self) -> str:
        return self.receipt.leaf.text("leaseId")

    @property
    def resources(self) -> tuple[str, ...]:
        return self.receipt.resources

    @property
    def fencing_token(self) -> int:
        return self.receipt.leaf.number("fencingToken")

    @property
    def mode(self) -> str:
        return self.receipt.leaf.text("mode")

    @property
    def ttl_ms(self) -> int:
        """The ttl as granted, never "remaining"."""
        return self.receipt.leaf.number("ttlMs")

    @property
    def expires_at_ms(self) -> int:
        """The stated end in the gateway's time; for people. Nothing here compares it with this machine's clock."""
        return self.receipt.leaf.number("expiresAtMs")

    @property
    def trust_ends_ms(self) -> int:
        """The steady-clock instant at which this lease must no longer be relied on, by this entry alone.

        The lease lasts at least `ttl_ms` from the entry's time: the verifier refuses a leaf that states less. A
        session's lasts no longer than `idle_ms` unless it is heard of again.
        """
        return self.sent_ms + trusted_ms(min(self.ttl_ms, self.idle_ms))

    @property
    def idle_ms(self) -> int:
        """How long after this entry the lease ends if its session is not heard of any more; the ttl without a session.

        A session is heard of by every entry of its own, so this is also until when the next one is needed.
        """
        ends_ms = self.receipt.leaf.number("endsIfIdleAtMs")
        return self.ttl_ms if ends_ms < 0 else ends_ms - self.receipt.leaf.time_ms
