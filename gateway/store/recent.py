"""Record changes that are durable in the journal and not yet in their table.

Why: a spent nonce lies anywhere in the order of keys, so writing it into the table at once costs a page of the log for
each. A batch's changes therefore go into one journal row, and into this memory. Later they are folded into the table
in order of key, so that a page takes many; a lease that came and went meanwhile never touches it.

There are two generations. `fresh` takes what is committed. When it has SEAL_KEYS keys it is sealed, and a new one is
begun; the sealed one is folded in lots that go along with commits, and its journal rows are deleted with the last lot.
So memory, journal and the work of a start are bounded, whatever the length of the ledger.

Nothing here knows a database. The engine tells what was committed, and only after it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import orjson

from gateway.store.contract import RecordChange

SEAL_KEYS = 8_192  # of some hundred bytes each: a few MiB in two generations
LOT_KEYS = 256  # folded with a commit: some tenths of a millisecond


class Recent:
    """The two generations. `number` is the newest journal row that is counted in."""

    __slots__ = ("_fresh", "_sealed", "_sealed_number", "_unfolded", "number")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._fresh: dict[str, RecordChange] = {}
        self._sealed: dict[str, RecordChange] = {}
        self._sealed_number = 0
        self._unfolded: list[str] = []  # keys of the sealed generation, the next one last

    def __len__(self) -> int:
        return len(self._fresh) + len(self._sealed)

    def take(self, changes: Iterable[RecordChange]) -> None:
        """Count in the changes of the next journal row."""
        self.number += 1
        self._fresh.update({change[0]: change for change in changes})
        if len(self._fresh) >= SEAL_KEYS and not self._sealed:
            self._sealed, self._fresh = self._fresh, {}
            self._sealed_number = self.number
            self._unfolded = sorted(self._sealed, reverse=True)

    def find(self, key: str) -> RecordChange | None:
        """Return the last change of a record; None when the table knows."""
        return self._fresh.get(key) or self._sealed.get(key)

    def below(self, prefix: str) -> Mapping[str, bytes | None]:
        """Return what became of the records below a prefix; None for a deleted one."""
        found = {**self._sealed, **self._fresh}
        return {key: value for key, (_, value, _) in found.items() if key.startswith(prefix)}

    def lot(self, change_count: int) -> list[RecordChange]:
        """Return what may be folded beside that many changes: twice as many, so that folding always keeps up."""
        keys = self._unfolded[-max(LOT_KEYS, 2 * change_count) :]
        return [self._sealed[key] for key in reversed(keys)]

    def is_last(self, lot: Sequence[RecordChange]) -> bool:
        """Say whether the sealed generation ends with this lot, and with it the journal up to `sealed_number`."""
        return bool(lot) and len(lot) == len(self._unfolded)

    @property
    def sealed_number(self) -> int:
        """Return the newest journal row of the sealed generation."""
        return self._sealed_number

    def fold(self, lot: Sequence[RecordChange]) -> None:
        """Count a lot as folded."""
        if lot:
            del self._unfolded[-len(lot) :]
            if not self._unfolded:
                self._sealed = {}


def encode_changes(changes: Sequence[RecordChange]) -> tuple[bytes, bytes]:
    """Return the two columns of a journal row: [key, size or null when deleted, due time or null] as JSON, and the
    values end to end."""
    rows = [(key, None if value is None else len(value), due_ms) for key, value, due_ms in changes]
    return orjson.dumps(rows), b"".join(value for _, value, _ in changes if value is not None)


def decode_changes(rows: bytes, values: bytes) -> list[RecordChange]:
    """Return the changes of a journal row."""
    read = orjson.loads(rows)
    ends = accumulate(size or 0 for _, size, _ in read)
    return [
        (key, None if size is None else values[end - size : end], due_ms)
        for (key, size, due_ms), end in zip(read, ends, strict=True)
    ]


def group_by_due(changes: Iterable[RecordChange]) -> dict[tuple[int, str], list[str]]:
    """Return the keys that fall due at one moment, by (moment, kind)."""
    groups: dict[tuple[int, str], list[str]] = {}
    for key, value, due_ms in changes:
        if value is not None and due_ms is not None:
            groups.setdefault((due_ms, kind_of(key)), []).append(key)
    return groups


def kind_of(key: str) -> str:
    """Return the beginning of a key, up to and with its first slash."""
    return key[: key.find("/") + 1]
