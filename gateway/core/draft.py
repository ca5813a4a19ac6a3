"""What the core reads through, a `View`, and writes into, a `Draft`. Nothing else remembers anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from gateway.core.filing import is_filed_alike, terms_of
from gateway.core.record_keys import timed_key
from gateway.core.records import (
    CLAIMS,
    FILED,
    Agent,
    Change,
    Claim,
    Dismissal,
    Pending,
    Record,
    Session,
    Timed,
    due_ms_of,
)
from gateway.core.terms import Index


class View(Protocol):
    """Records as they stand at the head of the ledger. Reading never changes anything."""

    def get(self, key: str) -> Record | None:
        """Return the record, or None. Records past their due time may still be there."""

    def near(self, term: str) -> Collection[str]:
        """Return the keys of the records filed under `term`. Their order means nothing."""

    def due(self, t_ms: int, limit: int) -> Iterable[Timed]:
        """Return at most `limit` records with `due_at_ms` ≤ `t_ms`, the oldest first, ties by number."""


class Draft:
    """A view plus the changes decided so far in this batch; the view below is never touched."""

    __slots__ = ("_below", "_changes", "_dismissed", "_filed", "_near", "_near_below", "_stirred", "_undo", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        self._below = view.get
        self._near_below = view.near
        self._changes: dict[str, Record | None] = {}
        self._undo: list[tuple[str, bool, Record | None]] = []
        self._near = Index()  # what this batch adds to the view's; may name what is gone again
        self._filed: list[tuple[int, str, str]] = []  # by which change, word and key: a rollback takes it back
        self._stirred: list[Claim] = []
        self._dismissed: list[Dismissal] = []

    def get(self, key: str) -> Record | None:
        return self._changes[key] if key in self._changes else self._below(key)

    def near(self, term: str) -> Collection[str]:
        """Return the keys filed under `term`; `get` says whether the record is still there and still like that."""
        below = self._near_below(term)
        return [*below, *self._near.near(term)] if term in self._near else below

    def put(self, key: str, record: Record | None) -> None:
        """Put a record under its key; None takes away what is there."""
        changes = self._changes
        if record is None or isinstance(record, CLAIMS):
            self._stir(key, record)
        elif isinstance(record, FILED):
            self._file(key, record)
        if key in changes:
            self._undo.append((key, True, changes[key]))
        else:
            self._undo.append((key, False, None))
        changes[key] = record

    def _stir(self, key: str, record: Claim | None) -> None:
        """Note what stands on resources now or did until now.

        A key never changes its kind, and never comes back once it was taken away: ids are numbers of entries.
        """
        before = self.get(key)
        filed: tuple[str, ...] = ()
        if isinstance(before, CLAIMS):
            self._stirred.append(before)
        if record is None:
            return
        self._stirred.append(record)
        if isinstance(before, CLAIMS):
            if is_filed_alike(before, record):
                return
            filed = terms_of(before)
        self._add([term for term in terms_of(record) if term not in filed] if filed else terms_of(record), key)

    def _add(self, terms: Iterable[str], key: str) -> None:
        mark, add = len(self._undo), self._near.add
        self._filed += [(mark, term, key) for term in terms if add(term, key)]

    def _file(self, key: str, record: Session | Agent | Pending) -> None:
        """File what is new or comes back under its words; most often an open session just moves on."""
        before = self.get(key)
        if isinstance(before, Pending):  # it never comes back
            return
        if isinstance(before, Session) and isinstance(record, Session) and is_filed_alike(before, record):
            return
        self._add(terms_of(record), key)

    def delete(self, key: str) -> None:
        self.put(key, None)

    def take_stirred(self) -> list[Claim]:
        """Return what was put or taken away since the last call, before and after: settling looks at its names.

        It may hold what a rollback has undone; settling then finds nothing to do.
        """
        stirred, self._stirred = self._stirred, []
        return stirred

    def dismiss(self, dismissal: Dismissal) -> None:
        """Note that keys are done here; what they hold is given back right after the entry of this decision."""
        self._dismissed.append(dismissal)

    def take_dismissed(self) -> list[Dismissal]:
        """Return who was dismissed since the last call."""
        dismissed, self._dismissed = self._dismissed, []
        return dismissed

    def savepoint(self) -> int:
        """Return a mark that `rollback` understands."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Forget every change made after `mark`, and dismissals: they are taken after each decision.

        Nothing stays filed either: the numbers of what is undone are given to others, who hold other things.
        """
        self._dismissed.clear()
        while self._filed and self._filed[-1][0] >= mark:
            _, term, key = self._filed.pop()
            self._near.remove(term, key)
        while len(self._undo) > mark:
            key, was_changed, record = self._undo.pop()
            if was_changed:
                self._changes[key] = record
            else:
                del self._changes[key]

    def due(self, t_ms: int, limit: int) -> tuple[Timed, ...]:
        """Return due records of the view that this draft has neither ended nor changed."""
        return tuple(timed for timed in self._view.due(t_ms, limit) if self.get(timed_key(timed)) == timed)

    def changes(self) -> tuple[Change, ...]:
        """Return (key, record or None when deleted, due time) for each changed key, in order of first change."""
        return tuple((key, record, due_ms_of(record) if record else None) for key, record in self._changes.items())


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the ledger: how many entries, the SHA-256 of the last leaf, its time, epoch and batch."""

    size: int
    prev_hash: bytes
    time_ms: int
    epoch: int
    batch_id: str
