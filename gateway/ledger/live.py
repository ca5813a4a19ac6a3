"""The records that decisions read, as they stand at the head: hot ones in memory, cold ones as looked up.

Hot records (operators, agents, API keys, sessions, leases, tickets, counters) are as many as there is live state. Cold
ones (spent idempotency keys, nonces, approvals, ended leases) grow with traffic, stay in the store, and are looked up
by key for each batch.

Leases, delays, tickets, sessions, agents in force and asks for approval are filed under words as well (`core.terms`):
an index that is made from the records alone and never stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from gateway.core.filing import is_filed_alike, terms_of
from gateway.core.intake import SignedRequest
from gateway.core.record_keys import COLD_PREFIXES, broken_name, burnt_key, ended_key, idempotency_key, nonce_key
from gateway.core.records import FADING, TIMED, Change, Pending, Record, Session, Timed
from gateway.core.terms import Index
from verifier.approval import Approval
from verifier.entries import rows_of
from verifier.wire import JsonObject


def cold_keys(request: SignedRequest) -> tuple[str, ...]:
    """Return the keys of the cold records that deciding `request`, with all its commands, may read."""
    keys = (
        idempotency_key(request.actor, request.idempotency_key),
        nonce_key(request.actor, request.nonce),
        *(burnt_key(one.approver, one.nonce) for given in _given(request) for one in given),
    )
    commands = rows_of(request.body.get("commands"))
    return (*keys, *(key for body in (request.body, *commands) for key in _ended_keys(body)))


def _given(request: SignedRequest) -> Iterable[tuple[Approval, ...]]:
    """Yield the approvals that come with a request, and with each command of a batch."""
    return (request.approvals, *request.approvals_within)


def _ended_keys(body: JsonObject) -> tuple[str, ...]:
    """Return where the ends of what a body names by id are remembered."""
    ids = (body.get("leaseId"), body.get("ticketId"))
    token = body.get("seenToken")
    broken = (ended_key(broken_name(token)),) if isinstance(token, int) else ()
    return (*(ended_key(name) for name in ids if isinstance(name, str)), *broken)


class Live:
    """Every hot record at the head. Only the sequencer changes it, in one step without an await."""

    __slots__ = ("_due", "_fading", "_index", "_records", "get", "near")

    def __init__(self, records: Iterable[tuple[str, Record]] = ()) -> None:
        self._records: dict[str, Record] = dict(records)
        self.get: Callable[[str], Record | None] = self._records.get  # the dictionary's own: asked most of all
        self._index = Index()
        # Return the keys of the records filed under a word of `core.terms`, in no order.
        self.near: Callable[[str], Collection[str]] = self._index.near
        for key, record in self._records.items():
            self._file(key, record)
        self._order()

    def _order(self) -> None:
        """Make the two heaps anew; entries of records that changed since are skipped when they are met."""
        self._due = [_when(key, record) for key, record in self._records.items() if _is_timed(record)]
        self._fading = [
            (until_ms, key) for key, record in self._records.items() if (until_ms := _fades_at_ms(record)) is not None
        ]
        heapq.heapify(self._due)
        heapq.heapify(self._fading)

    def _file(self, key: str, record: Record) -> None:
        for term in terms_of(record):
            self._index.add(term, key)

    def _unfile(self, key: str, record: Record) -> None:
        for term in terms_of(record):
            self._index.remove(term, key)

    def __len__(self) -> int:
        return len(self._records)

    def scan(self, prefix: str) -> Iterator[tuple[str, Record]]:
        """Yield the records below a prefix in order of key; for views that people look at."""
        return ((key, self._records[key]) for key in sorted(key for key in self._records if key.startswith(prefix)))

    def due(self, t_ms: int, limit: int) -> tuple[Timed, ...]:
        """Return what time has come for, oldest first; it stays until a change removes or moves it."""
        found: dict[tuple[int, int, str], Timed] = {}
        while self._due and self._due[0][0] <= t_ms and len(found) < limit:
            when = heapq.heappop(self._due)
            timed = self._records.get(when[2])
            if _is_timed(timed) and _when(when[2], timed) == when:
                found[when] = timed
        for when in found:
            heapq.heappush(self._due, when)
        return tuple(found.values())

    def apply(self, changes: Sequence[Change]) -> None:
        """Take over the changes of a committed batch; cold ones are not kept."""
        for key, record, _ in changes:
            if key.startswith(COLD_PREFIXES):
                continue
            self._replace(key, record)
        if len(self._due) + len(self._fading) > 1_024 + 4 * len(self._records):
            self._order()

    def _replace(self, key: str, record: Record | None) -> None:
        before = self._records.pop(key, None) if record is None else self._records.get(key)
        if record is not None:
            self._records[key] = record
        if _is_timed(record):
            heapq.heappush(self._due, _when(key, record))
        elif record is not None and (until_ms := _fades_at_ms(record)) is not None:
            heapq.heappush(self._fading, (until_ms, key))
        if isinstance(before, TIMED) and isinstance(record, TIMED) and is_filed_alike(before, record):
            return
        if before is not None:
            self._unfile(key, before)
        if record is not None:
            self._file(key, record)

    def forget(self, t_ms: int) -> None:
        """Drop what no longer counts at `t_ms`, as the store does in its own time: refusals, ended sessions, asks, the
        counts of schemes."""
        while self._fading and self._fading[0][0] <= t_ms:
            _, key = heapq.heappop(self._fading)
            record = self._records.get(key)
            until_ms = None if record is None else _fades_at_ms(record)
            if until_ms is not None and until_ms <= t_ms:
                del self._records[key]
                if isinstance(record, Session | Pending):  # the others are filed under no words
                    self._unfile(key, record)


class Looked:
    """The view one batch is decided on: the live records, and the cold ones that were looked up for it."""

    __slots__ = ("_cold", "_hot", "due", "near")

    def __init__(self, live: Live, cold: Mapping[str, Record | None]) -> None:
        self._hot = live.get
        self._cold = cold
        self.near: Callable[[str], Collection[str]] = live.near
        self.due: Callable[[int, int], tuple[Timed, ...]] = live.due

    def get(self, key: str) -> Record | None:
        record = self._hot(key)
        return record if record is not None else self._cold.get(key)


def _is_timed(record: Record | None) -> TypeGuard[Timed]:
    """Say whether time alone does something to a record; an ended session is only remembered."""
    return isinstance(record, TIMED) and (not isinstance(record, Session) or record.is_open)


def _when(key: str, timed: Timed) -> tuple[int, int, str]:
    """Return the place of a record in the order of what time does: oldest first, ties by number."""
    return (timed.due_at_ms, timed.number, key)


def _fades_at_ms(record: Record) -> int | None:
    """Return when a hot record no longer counts, None for one that only an entry ends."""
    return record.until_ms if isinstance(record, FADING) else None
