"""Mutation power: 500 random edits of single members of an honest ledger, each sealed anew, and what goes unnoticed."""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests.lies.day import day
from tests.lies.kit import House, Json, Telling, checkpoint, sealed
from tests.lies.mutations import Edit, edits
from tests.scale import drawn
from tests.verifier import maker
from verifier.keyring import Keyring, open_keyring
from verifier.replay.ledger import check_ledger

EDITS, PARTS, SEED = drawn(500, share=150), 10, 2026
# What only the gateway knows, and no decision depends on: by member, why an edit of it may pass.
FREE = {
    "durability": "how an entry is kept rests on the gateway's word (threat model)",
    "isClean": "whether a stop was clean is known to the gateway alone; gap and holiday are checked either way",
    "cause": "why the service started is known to the gateway alone",
    "unicodeVersion": "of a scheme: by which tables the gateway knows letters; names are judged by the reader's own",
    "reason": "of a holiday: the cause of its start, in other words",
}


@cache
def honest() -> tuple[House, Keyring]:
    house = day()
    return house, open_keyring(root=maker.root_vkey(), document=house.document(), policy=maker.policy())


def exit_code(leaves: list[bytes], folder: Path) -> int:
    house, keyring = honest()
    (folder / "ledger").write_bytes(sealed(leaves).export(checkpoint(leaves, house.log_keys)))
    return check_ledger(folder / "ledger", keyring, has_rules=True).exit_code


def why_free(edit: Edit, entries: list[Json]) -> str | None:
    """Return why the edit may pass, None when it has to be found."""
    if edit.member == "reason" and edit.type != "lease.holiday":
        return None
    if edit.path == ("timeMs",) and isinstance(edit.value, int):
        before, after = entries[edit.place - 1 : edit.place], entries[edit.place + 1 : edit.place + 2]
        is_between = all(one["timeMs"] <= edit.value for one in before)
        if edit.place and is_between and all(edit.value <= one["timeMs"] for one in after):
            return "within the window of a request, and between its neighbours, log time is the gateway's word"
    if edit.path == ("request", "signatureInput") and isinstance(edit.value, str):
        said = entries[edit.place]["request"]["signatureInput"]
        if said.partition("=")[2] == edit.value.partition("=")[2]:
            return "the label names a signature within one request's headers; it is not signed and says nothing"
    return FREE.get(edit.member)


def test_the_day_is_honest_and_has_most_types(tmp_path: Path) -> None:
    house, _ = honest()
    assert exit_code(house.leaves, tmp_path) == 0
    assert len({leaf.split(b'"type":"')[1].split(b'"')[0] for leaf in house.leaves}) >= 65


@pytest.mark.parametrize("part", range(PARTS))
def test_every_edit_of_a_member_that_is_not_free_is_found(part: int, tmp_path: Path) -> None:
    house, _ = honest()
    entries = Telling(house).entries
    unnoticed = []
    for edit in islice(edits(entries, Random(SEED + part)), EDITS // PARTS):
        telling = Telling(house)
        edit.tell(telling)
        if exit_code(telling.leaves(), tmp_path) not in (1, 3) and why_free(edit, entries) is None:
            unnoticed.append(edit)
    assert unnoticed == []


def test_few_edits_are_free() -> None:
    """The reasons above must not grow into an excuse for everything."""
    entries = Telling(honest()[0]).entries
    made = [edit for part in range(PARTS) for edit in islice(edits(entries, Random(SEED + part)), EDITS // PARTS)]
    assert len(made) == EDITS
    assert sum(why_free(edit, entries) is not None for edit in made) <= EDITS // 20
