"""What lies between the entries of one ledger: who may act, and what may happen only once or only upwards.

Fed in order with every leaf and its evidence; keeps live state only.
Source: docs/protocol.md 17.5, 12.5 to 12.8, 8.1, 9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from hashlib import sha256

from verifier.entries import IDEMPOTENCY_MS, SKEW_MS, WINDOW_S_MAX, Leaf, resources_of
from verifier.replay.judged import Judged, texts

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
        self._operators: frozenset[str] = frozenset()
        self._agents: set[str] = set()
        self._nonces = _Once(_NONCE_MS_MAX)
        self._keys = _Once(IDEMPOTENCY_MS)
        self._token = 0
        self._leases: dict[int, Leaf] = {}  # the grants that are live, by seq
        self._held: dict[str, dict[int, str]] = {}  # resource to the seq and holder of each live grant of it
        self._started: int | None = None

    def open(self, leaf: Leaf) -> None:
        """Take entry 0's operators."""
        self._operators = texts(leaf, "operators")

    def faults(self, leaf: Leaf, entry: Judged) -> Iterator[tuple[str, str]]:
        """Yield (code, text) of everything in which `leaf`, the one of `entry`, does not fit the entries before it."""
        if leaf.entry_type.cause == "request":
            yield from self._actor_faults(leaf)
            yield from self._once_faults(leaf, entry)
        match leaf.entry_type.name:
            case "agent.added":
                self._agents.add(leaf.text("agent"))
            case "agent.removed":
                self._agents.discard(leaf.text("agent"))
            case "service.started":
                self._started = leaf.seq
            case "lease.holiday":
                if leaf.number("startedSeq") != self._started:
                    yield "citation_wrong", "startedSeq is not the last service.started, or was cited before"
                self._started = None
            case "lease.granted":
                yield from self._grant_faults(leaf)
            case "lease.extended" | "lease.renewed" | "lease.released" | "lease.expired":
                yield from self._lease_faults(leaf)

    def _actor_faults(self, leaf: Leaf) -> Iterator[tuple[str, str]]:
        """No ledger is excepted: under `--dev` too an operator's signed agent.added comes first."""
        if leaf.actor in self._operators:
            return
        if leaf.entry_type.actor_rule == "operator":
            yield "operator_required", "the actor is no operator of entry 0"
        elif leaf.actor not in self._agents:
            yield "agent_unknown", "the actor was not added, or was removed, before this entry"

    def _once_faults(self, leaf: Leaf, entry: Judged) -> Iterator[tuple[str, str]]:
        if entry.nonce is None:
            return
        if self._nonces.is_again(f"{leaf.principal} {entry.nonce}", leaf.time_ms, entry.nonce_until_ms):
            yield "nonce_reused", "the principal's nonce was used before and is still live"
        if self._keys.is_again(
            f"{leaf.principal} {entry.idempotency_key}", leaf.time_ms, leaf.time_ms + IDEMPOTENCY_MS
        ):
            yield "idempotency_key_reused", "the principal's idempotency key was decided before, within 24 hours"

    def _grant_faults(self, leaf: Leaf) -> Iterator[tuple[str, str]]:
        token = leaf.number("fencingToken")
        if token <= self._token:
            yield "token_not_rising", "fencingToken is not above every earlier one"
        elif token != max(self._token + 1, leaf.time_ms * 1000):
            yield "token_wrong", "fencingToken is not max(last + 1, timeMs x 1,000)"
        self._token = max(self._token, token)
        self._leases[leaf.seq] = leaf
        for name in resources_of(leaf.value):
            holders = self._held.setdefault(name, {})
            if set(holders.values()) - {leaf.actor}:
                yield "double_grant", "a resource of the grant is held by a live lease of another actor"
            holders[leaf.seq] = leaf.actor

    def _lease_faults(self, leaf: Leaf) -> Iterator[tuple[str, str]]:
        """A later word about a lease: it lives, and is the one that was granted. An end takes it away."""
        grant = self._leases.get(leaf.number("grantSeq"))
        if grant is None:
            yield "citation_wrong", "grantSeq is not a grant that is still live"
            return
        if leaf.number("fencingToken") != grant.number("fencingToken"):
            yield "token_wrong", "fencingToken is not the grant's"
        if (leaf.text("holder") or leaf.actor) != grant.actor:
            yield "holder_wrong", "the lease is another actor's"
        if leaf.number("grantedAtMs") not in (-1, grant.time_ms) or leaf.value["resources"] != grant.value["resources"]:
            yield "citation_wrong", "grantedAtMs or resources are not the grant's"
        if leaf.entry_type.name in ("lease.released", "lease.expired"):
            del self._leases[grant.seq]
            for name in resources_of(grant.value):
                self._held[name].pop(grant.seq, None)
                if not self._held[name]:
                    del self._held[name]
