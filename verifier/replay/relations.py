"""What lies between the entries of one ledger: who may act, and what may happen only once or only upwards.

Fed in order with every leaf and its evidence; keeps live state, and for a day what must not come again.
Source: docs/protocol.md 17.5, 12.5 to 12.9, 9, 18.3, 18.4.
"""

from __future__ import annotations

from collections import deque
from hashlib import sha256

from verifier.entries import IDEMPOTENCY_MS, SKEW_MS, TTL_MS_MAX, TTL_MS_MIN, WINDOW_S_MAX, Leaf
from verifier.replay.judged import Judged, texts
from verifier.replay.leases import Faults, Leases
from verifier.replay.people import People
from verifier.replay.refusals import ERRORS, refusal_faults, repeat_faults

# No accepted nonce can still be inside its window after this much log time.
_NONCE_MS_MAX = WINDOW_S_MAX * 1000 + 2 * SKEW_MS


class _Once:
    """Keys that must not come again before their time; forgotten after `keep_ms`, so memory stays bounded."""

    __slots__ = ("_keep_ms", "_order", "_until")

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._until: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()

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


class Relations:
    """The state that entries so far have built; `faults` moves it by one entry."""

    def __init__(self) -> None:
        self.people = People()
        self.leases = Leases()
        self._nonces = _Once(_NONCE_MS_MAX)
        self._keys = _Once(IDEMPOTENCY_MS)
        self._holiday_ms: int | None = None  # entry 0's longest holiday
        self._time_ms: int | None = None  # of the entry before
        self._started: tuple[int, int] | None = None  # of a start whose holiday has not come: its seq, the ms before it

    def open(self, leaf: Leaf) -> None:
        """Take entry 0's operators and the parameters that relations depend on."""
        self.people.operators = texts(leaf, "operators")
        parameters = leaf.value.get("parameters")
        numbers = (
            {name: n for name, n in parameters.items() if isinstance(n, int)} if isinstance(parameters, dict) else {}
        )
        self._holiday_ms, self.leases.max_hold_ms = numbers.get("holidayMs"), numbers.get("maxHoldMs")
        self.leases.ttl_ms = (numbers.get("ttlMinMs", TTL_MS_MIN), numbers.get("ttlMaxMs", TTL_MS_MAX))
        self.leases.idempotency_ms = numbers.get("idempotencyMs", IDEMPOTENCY_MS)
        self._keys = _Once(self.leases.idempotency_ms)

    def faults(self, leaf: Leaf, entry: Judged) -> Faults:
        """Yield (code, text) of everything in which `leaf`, the one of `entry`, does not fit the entries before it."""
        name = leaf.entry_type.name
        if self._started is not None and name != "lease.holiday":
            yield "holiday_missing", "the entry after service.started is its lease.holiday"
            self._started = None
        if leaf.entry_type.cause == "request":
            yield from self.people.faults(leaf)
            yield from self._once_faults(leaf, entry)
        match name:
            case "lease.granted":
                yield from self.leases.grant(leaf)
            case "lease.extended" | "lease.renewed" | "lease.released" | "lease.expired":
                yield from self.leases.follow(leaf)
            case "release.repeated":
                yield from repeat_faults(leaf, self.leases)
            case "agent.added":
                self.people.add(leaf)
            case "agent.removed":
                self.people.remove(leaf)
            case "service.started":
                yield from self._start_faults(leaf)
            case "lease.holiday":
                yield from self._holiday_faults(leaf)
            case "ledger.disputed":
                self.leases.is_disputed = True
            case _ if name in ERRORS:
                yield from refusal_faults(leaf, entry.created_s, self.leases, self.people)
        self._time_ms = leaf.time_ms

    def _once_faults(self, leaf: Leaf, entry: Judged) -> Faults:
        if entry.nonce is None:
            return
        if self._nonces.is_again(f"{leaf.principal} {entry.nonce}", leaf.time_ms, entry.nonce_until_ms):
            yield "nonce_reused", "the principal's nonce was used before and is still live"
        until_ms = leaf.time_ms + self.leases.idempotency_ms
        if self._keys.is_again(f"{leaf.principal} {entry.idempotency_key}", leaf.time_ms, until_ms):
            yield "idempotency_key_reused", "the principal's idempotency key was decided before and is still live"

    def _start_faults(self, leaf: Leaf) -> Faults:
        """The gap is the log time that passed since the entry before."""
        gap_ms = leaf.time_ms - (leaf.time_ms if self._time_ms is None else self._time_ms)
        if leaf.number("gapMs") != gap_ms:
            yield "gap_wrong", f"gapMs is not {gap_ms}, the time since the entry before"
        self._started = leaf.seq, leaf.time_ms - gap_ms

    def _holiday_faults(self, leaf: Leaf) -> Faults:
        """One holiday after each start, as long as the outage and no longer than entry 0 allows."""
        started, self._started = self._started, None
        if started is None or leaf.number("startedSeq") != started[0]:
            yield "citation_wrong", "startedSeq is not the service.started right before"
            return
        away_ms = leaf.time_ms - started[1]
        until_ms = leaf.time_ms + (away_ms if self._holiday_ms is None else min(self._holiday_ms, away_ms))
        if leaf.number("untilMs") != until_ms:
            yield "holiday_wrong", f"untilMs is not {until_ms}, timeMs + the shorter of holidayMs and the outage"
        self.leases.holiday_ms = max(self.leases.holiday_ms, until_ms)
