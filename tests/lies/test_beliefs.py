"""A core that believes something else: one record of its state is falsified, and it goes on as it believes.

All that it writes then fits together, as a careful liar would have it, and the requests are those that agents signed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from gateway.core.append import Batch
from gateway.core.outcome import Unreceipted
from gateway.core.records import Record
from gateway.rules.engine import open_engine
from tests.core.requests import Ask, did_of
from tests.lies.day import MAX_HOLD_MS, RESERVE_AFTER_MS, day
from tests.lies.kit import House, Json, sealed
from tests.verifier import maker
from verifier.keyring import open_keyring
from verifier.replay.ledger import check_ledger

TRIALS, FOUND_MIN = 60, 10
# What decisions go by; of the rest there are more, and less comes of it.
_KINDS = ("lease/", "ticket/", "delay/", "session/", "wait/", "edge/", "handover/", "scheme/", "quota/", "ledger/token",
          "usage/", "burnt/", "ask/", "ledger/rules")  # fmt: skip
Run = tuple[int, tuple[Ask, ...], dict[str, Any]]


class Recorded(House):
    """A house that keeps what was asked of it."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.turned_away: list[int] = []  # how many requests of each run left no entry
        super().__init__(reserve_after_ms=RESERVE_AFTER_MS, max_hold_ms=MAX_HOLD_MS)
        self.rules = open_engine()
        self.runs.clear()
        self.turned_away.clear()

    def run(self, t_ms: int, *asks: Ask, **how: Any) -> Batch:
        batch = super().run(t_ms, *asks, **how)
        self.runs.append((t_ms, tuple(self.anchored(ask) for ask in asks) if self.leaves else asks, how))
        self.turned_away.append(sum(isinstance(answer, Unreceipted) for answer in batch.answers))
        return batch


@cache
def honest() -> Recorded:
    house = Recorded()
    day(house, has_keys=False)
    return house


def again(dice: Random | None = None, numbers: Mapping[str, int] = MappingProxyType({})) -> Recorded:
    """Live through the same day, by other parameters than entry 0's, or with one record falsified at some time."""
    house, runs = Recorded(), honest().runs
    house.parameters = replace(house.parameters, **numbers)
    at = len(runs) if dice is None else dice.randrange(10, len(runs))
    for number, (t_ms, asks, how) in enumerate(runs):
        if number == at and dice is not None:
            _falsify(house, dice)
        epoch = {} if "epoch" not in how or house.head is None else {"epoch": house.head.epoch + 1}
        house.run(t_ms, *asks, **how | epoch)
    return house


def _falsify(house: House, dice: Random) -> None:
    records = house.shelf.records
    kinds = [kind for kind in _KINDS if any(key.startswith(kind) for key in records)]
    kind = dice.choice(kinds)
    key = dice.choice(sorted(key for key in records if key.startswith(kind)))
    if dice.random() < 0.2:
        del records[key]
    else:
        records[key] = _other(records[key], dice)


def _other(record: Any, dice: Random) -> Record:
    name = dice.choice(record._fields)
    value: Any = getattr(record, name)
    if isinstance(value, bool):
        value = not value
    elif isinstance(value, int):
        value = max(0, value + dice.choice((1, -1, 2, 1_000, -1_000, 30_000, -30_000, 1_000_000)))
    elif isinstance(value, str) and value.startswith("did:"):
        value = did_of(dice.choice("ABCD"))
    elif isinstance(value, tuple) and value:
        value = value[1:] or ("repo:other",)
    changed: Record = record._replace(**{name: value})
    return changed


def entries(house: House) -> list[Json]:
    """Return the entries of a day but for what links them and how the agents were enrolled."""
    whole = [json.loads(leaf) for leaf in house.leaves[len(House().leaves) :]]
    return [{name: value for name, value in entry.items() if name != "prev"} for entry in whole]


def is_within_its_word(house: Recorded) -> bool:
    """Say whether the gateway did only what no entry can show: it turned somebody away, or let time's work wait."""
    if any(more > before for more, before in zip(house.turned_away, honest().turned_away, strict=True)):
        return True
    mine, theirs = entries(house), entries(honest())
    first = next((one for other, one in zip(mine, theirs, strict=False) if other != one), None)
    return first is not None and first["actor"] == "gateway"


def exit_code(house: House, folder: Path) -> int:
    (folder / "ledger").write_bytes(sealed(house.leaves).export())
    keyring = open_keyring(root=maker.root_vkey(), document=honest().document())
    return check_ledger(folder / "ledger", keyring, has_rules=True).exit_code


def test_the_day_that_is_lived_again_is_the_same(tmp_path: Path) -> None:
    house = again()
    assert entries(house) == entries(honest())
    assert exit_code(house, tmp_path) == 0


def test_what_a_false_belief_changes_is_found(tmp_path: Path) -> None:
    found = 0
    for seed in range(TRIALS):
        house = again(Random(seed))
        if entries(house) == entries(honest()):
            continue
        code = exit_code(house, tmp_path)
        assert code in (1, 3) or is_within_its_word(house), f"seed {seed}"
        found += code == 1
    assert found >= FOUND_MIN


def test_a_parameter_that_no_entry_names_is_found_by_what_is_decided_by_it(tmp_path: Path) -> None:
    """Every number of entry 0 in turn is taken for 1. Those that no decision of the day depends on change nothing."""
    found = []
    for field in fields(honest().parameters):
        house = again(numbers={field.name: 1})
        if entries(house) == entries(honest()):
            continue
        code = exit_code(house, tmp_path)
        assert code == 1 or is_within_its_word(house), field.name
        found += [field.name] if code == 1 else []
    assert len(found) >= 15
