"""Single edits of single members of an honest ledger, sealed anew: what of a leaf can a gateway change unnoticed?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from tests.lies.kit import Json, Telling

Path = tuple[str | int, ...]
# What sealing makes good anyway.
SEALED = ("seq", "prev", "genesis")
# Words of closed choices: each is changed into another of its kind.
_CHOICES = (
    ("read", "append", "write", "delete"),
    ("exclusive", "read-safe", "append-only", "irreversible"),
    ("memory", "local", "replicated"),
    ("start", "recovery"),
    ("given_up", "claim_lapsed", "poll_lapsed", "holder_gone"),
    ("idle", "expired", "revoked"),
    ("live", "trial"),
    ("lease_held", "queued", "lock_delayed", "deadlock", "lease_expired", "lease_released", "not_holder"),
)


class Edit(NamedTuple):
    """The member at `path` of the entry at `place` becomes `value`; None leaves it out."""

    place: int
    type: str
    path: Path
    value: Any

    @property
    def member(self) -> str:
        """The path without indices, as `conflict.resource`."""
        return ".".join(str(part) for part in self.path if isinstance(part, str))

    def tell(self, telling: Telling) -> None:
        parent: Any = telling.entries[self.place]
        for part in self.path[:-1]:
            parent = parent[part]
        if self.value is None:
            del parent[self.path[-1]]
        else:
            parent[self.path[-1]] = self.value


def edits(entries: list[Json], dice: Random) -> Iterator[Edit]:
    """Yield edits without end: any entry, any member of it that sealing does not make good, any value."""
    dids = sorted({entry["actor"] for entry in entries if entry["actor"] != "gateway"})
    while True:
        place = dice.randrange(len(entries))
        path, value = dice.choice([*_members(entries[place])])
        changed = _other(value, dice, dids)
        if changed != value:
            yield Edit(place, entries[place]["type"].split("/")[1], path, changed)


def _members(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every member of a leaf with where it stands, those of objects and lists in it too."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        if not path and name in SEALED:
            continue
        yield (*path, name), part
        yield from _members(part, (*path, name))


def _other(value: Any, dice: Random, dids: list[str]) -> Any:
    if dice.random() < 0.1:
        return None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return max(0, value + dice.choice((1, -1, 2, -1_000, 1_000, 30_000, -30_000)))
    if isinstance(value, list):
        return _other_list(value, dice)
    return _other_text(value, dice, dids) if isinstance(value, str) else None


def _other_list(value: list[Any], dice: Random) -> list[Any]:
    """A row more, a row fewer, or another order."""
    rows: list[Any] = json.loads(json.dumps(value))
    if rows and dice.random() < 0.5:
        del rows[dice.randrange(len(rows))]
    elif rows and dice.random() < 0.5:
        rows.append(dice.choice(rows))
    else:
        dice.shuffle(rows)
    return rows


def _other_text(value: str, dice: Random, dids: list[str]) -> str | None:
    for choices in _CHOICES:
        if value in choices:
            return dice.choice(choices)
    if value in dids and dice.random() < 0.9:
        return dice.choice(dids)
    if value[:1] in "LT" and value[1:].isdecimal():
        return f"{value[0]}{max(0, int(value[1:]) + dice.choice((1, -1, 2)))}"
    if not value:
        return "x"
    place = dice.randrange(len(value))
    return value[:place] + dice.choice("0123456789abcdefxyzAZ:/+=") + value[place + dice.randrange(2) :]
