"""How long to wait before asking again: pure arithmetic, the randomness comes in.

Two waits, for those who stand in no line (line.py). After a *refusal* (somebody is in the way) the ledger's own advice
counts: `stampede.waitMs` while it admits the caller, `retryAfterMs` from then on, with full jitter on top, so that
fifty agents refused in one batch don't come back in one batch. After *silence* (no answer, 429, 503) exponential
back-off with full jitter, never below the gateway's Retry-After.
Source: docs/protocol.md, waiting; scenario 33 (identical waits stay synchronised for ever).
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.client.errors import InTheWay

BACKOFF_BASE_MS = 100
BACKOFF_MAX_MS = 5_000
RETRY_AFTER_MAX_MS = 60_000  # a gateway that asks for more is treated as unreachable for that long

LOOK_MS = 1_000  # between looks at the wait view while the ledger wants no more tries; a read writes nothing

# Returns a number in [0, 1), as random.random does.
Jitter = Callable[[], float]


def pause_after_refusal_ms(refused: InTheWay, jitter: Jitter) -> int:
    """Return the wait before the next acquire: never shorter than advised, up to one `waitMs` longer."""
    advice = refused.stampede
    advised_ms = advice.wait_ms if advice.is_admitted else refused.retry_after_ms
    return advised_ms + int(jitter() * advice.wait_ms)


def pause_before_look_ms(jitter: Jitter) -> int:
    """Return the wait before the next look, so spread that waiters for one resource don't look (and try) together."""
    return LOOK_MS // 2 + int(jitter() * LOOK_MS)


def pause_after_silence_ms(attempt: int, retry_after_ms: int, jitter: Jitter) -> int:
    """Return the wait before sending the same request again; `attempt` counts from 0."""
    ceiling_ms = min(BACKOFF_MAX_MS, BACKOFF_BASE_MS * 2 ** min(attempt, 16))
    return min(retry_after_ms, RETRY_AFTER_MAX_MS) + int(jitter() * ceiling_ms)
