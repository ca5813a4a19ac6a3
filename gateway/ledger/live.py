"""The records that decisions read, as they stand at the head: hot ones in memory, cold ones as looked up.

Hot records (agents, leases, counters) are as many as there is live state. Cold ones (spent idempotency keys, nonces,
ended leases) grow with traffic, stay in the store, and are looked up by key for each batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gateway.core.intake import SignedRequest
from gateway.core.state import (
    COLD_PREFIXES,
    Change,
    Lease,
    Record,
    Waits,
    ended_key,
    idempotency_key,
    lease_key,
    nonce_key,
)


def cold_keys(request: SignedRequest) -> tuple[str, ...]:
    """Return the keys of the cold records that deciding `request` may read."""
    keys = (
        idempotency_key(request.principal, request.idempotency_key),
        nonce_key(request.principal, request.nonce),
    )
    lease_id = request.body.get("leaseId")
    return (*keys, ended_key(lease_id)) if isinstance(lease_id, str) else keys


class Live:
    """Every hot record at the head. Only the sequencer changes it, in one step without an await."""

    __slots__ = ("_due", "_fading", "_records", "get")

    def __init__(self, records: Iterable[tuple[str, Record]] = ()) -> None:
        self._records: dict[str, Record] = dict(records)
        self.get: Callable[[str], Record | None] = self._records.get  # the dictionary's own: asked most of all
        self._order()

    def _order(self) -> None:
        """Make the two heaps anew; entries of records that changed since are skipped when they are met."""
        self._due = [_when(record) for record in self._records.values() if isinstance(record, Lease)]
        self._fading = [(record.until_ms, key) for key, record in self._records.items() if isinstance(record, Waits)]
        heapq.heapify(self._due)
        heapq.heapify(self._fading)

    def __len__(self) -> int:
        return len(self._records)

    def scan(self, prefix: str) -> Iterator[tuple[str, Record]]:
        """Yield the records below a prefix in order of key; for views that people look at."""
        return ((key, self._records[key]) for key in sorted(key for key in self._records if key.startswith(prefix)))

    def due(self, t_ms: int, limit: int) -> tuple[Lease, ...]:
        """Return leases whose printed expiry has come, oldest first; they stay until a change removes them."""
        found: dict[tuple[int, int, str], Lease] = {}
        while self._due and self._due[0][0] <= t_ms and len(found) < limit:
            when = heapq.heappop(self._due)
            lease = self._records.get(lease_key(when[2]))
            if isinstance(lease, Lease) and _when(lease) == when:
                found[when] = lease
        for when in found:
            heapq.heappush(self._due, when)
        return tuple(found.values())

    def apply(self, changes: Sequence[Change]) -> None:
        """Take over the changes of a committed batch; cold ones are not kept."""
        for key, record, _ in changes:
            if record is None:
                self._records.pop(key, None)
            elif not key.startswith(COLD_PREFIXES):
                self._records[key] = record
                if isinstance(record, Lease):
                    heapq.heappush(self._due, _when(record))
                elif isinstance(record, Waits):
                    heapq.heappush(self._fading, (record.until_ms, key))
        if len(self._due) + len(self._fading) > 1_024 + 4 * len(self._records):
            self._order()

    def forget(self, t_ms: int) -> None:
        """Drop refusals that no longer count at `t_ms`, as the store does in its own time."""
        while self._fading and self._fading[0][0] <= t_ms:
            _, key = heapq.heappop(self._fading)
            record = self._records.get(key)
            if isinstance(record, Waits) and record.until_ms <= t_ms:
                del self._records[key]


class Looked:
    """The view one batch is decided on: the live records, and the cold ones that were looked up for it."""

    __slots__ = ("_cold", "_hot", "_live")

    def __init__(self, live: Live, cold: Mapping[str, Record | None]) -> None:
        self._live = live
        self._hot = live.get
        self._cold = cold

    def get(self, key: str) -> Record | None:
        record = self._hot(key)
        return record if record is not None else self._cold.get(key)

    def due(self, t_ms: int, limit: int) -> tuple[Lease, ...]:
        return self._live.due(t_ms, limit)


def _when(lease: Lease) -> tuple[int, int, str]:
    """Return the place of a lease in the order of expiry: oldest first, ties by token."""
    return (lease.expires_at_ms, lease.fencing_token, lease.lease_id)
