"""How long a session counts as present: pure arithmetic over the steady clock.

The ledger gives a session up when nothing of it was entered for a while (`endsIfIdleAtMs` of its newest entry), and at
the end of its delegation in any case. Every entry that it causes moves the first, refusals included. As with a lease
(trust.py) the session can't know when an entry was decided, only that this lies after the request was sent; so each
entry gives trust for the span that its own leaf states, less a margin, from its first attempt on. A later entry never
takes trust away.

A session without leases needs no trust, but still has to be there when it wants its next one: it shows itself at a
third of the span whenever nothing else has shown it, and not at all once only the end of its delegation counts.
Source: docs/protocol.md 29.
"""

from __future__ import annotations

from gateway.client.trust import beat_period_ms, trusted_ms
from verifier.entries import Leaf

# Beats come a little later than the renewals of a lease with the same period, which make them superfluous.
GRACE_MS_MAX = 1_000


class Presence:
    """What the entries of one session say about how long it lasts; times are of the steady clock unless said."""

    def __init__(self, opened: Leaf) -> None:
        """`opened` is the verified session.opened; what is known of it from long ago gives no trust by itself."""
        self.expires_at_ms = opened.number("expiresAtMs")  # in the ledger's time
        # A delegation shorter than this ends the session first, and then the difference does not matter.
        self.idle_ms = opened.number("endsIfIdleAtMs") - opened.time_ms
        self.ends_ms = 0
        self.due_ms: int | None = 0
        self.ended = ""
        self.doubt = ""

    def note(self, time_ms: int, sent_ms: int) -> None:
        """An entry of this session has the ledger's time `time_ms`; its first attempt was sent at `sent_ms`."""
        self.doubt = ""
        self.ends_ms = max(self.ends_ms, sent_ms + trusted_ms(min(self.idle_ms, self.expires_at_ms - time_ms)))
        if time_ms + self.idle_ms >= self.expires_at_ms:
            self.due_ms = None
        elif self.due_ms is not None:
            self.due_ms = max(self.due_ms, sent_ms + self.period_ms)

    def begin(self, now_ms: int) -> None:
        """Nothing is known but that the session was open: look after it from now on."""
        self.due_ms = now_ms + self.period_ms

    @property
    def period_ms(self) -> int:
        """How long after its last entry a session shows itself: two beats may be lost before trust ends."""
        third_ms = beat_period_ms(self.idle_ms)
        return third_ms + min(GRACE_MS_MAX, third_ms // 4)

    def end(self, code: str) -> None:
        """The session is over, and why."""
        self.ended = self.ended or code
        self.due_ms = None
