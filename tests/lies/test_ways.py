"""The same lies read in other ways: by other processes, and by an auditor that was there before the lie was told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lies.kit import Lie, Telling, checkpoint, fresh, sealed
from tests.lies.table import LIES
from tests.verifier import maker
from verifier.keyring import Keyring, open_keyring
from verifier.replay import auditor
from verifier.replay.judged import judge_afar
from verifier.replay.ledger import check_ledger
from verifier.verdict import Report

STEP = 2  # every other lie of the table, to save time


def told(lie: Lie) -> tuple[Telling, int, Keyring]:
    telling = Telling(fresh(lie.story))
    place = lie.tell(telling)
    policy = maker.policy() if lie.has_policy else None
    return telling, place, open_keyring(root=maker.root_vkey(), document=telling.document, policy=policy)


def written(file: Path, leaves: list[bytes], log_keys: list[maker.Key]) -> Path:
    file.write_bytes(sealed(leaves).export(checkpoint(leaves, log_keys)))
    return file


def found(report: Report) -> list[tuple[int | None, str]]:
    return [(finding.seq, finding.code) for finding in report.findings if finding.outcome]


def test_what_comes_back_from_other_processes_is_enough_to_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They send back the members of an entry's own type, without its evidence."""
    monkeypatch.setattr(
        auditor, "judged", lambda bundles, authorities, jobs: (judge_afar(one, authorities) for one in bundles)
    )
    for lie in LIES[::STEP]:
        telling, place, keyring = told(lie)
        ledger = written(tmp_path / "ledger", telling.leaves(), telling.log_keys)
        report = check_ledger(ledger, keyring, telling.held, has_rules=lie.has_rules)
        assert found(report)[0] == (None if place < 0 else place, lie.code), lie.name
        assert report.exit_code == lie.exit_code


def test_an_audit_that_stood_right_before_the_lie_finds_it_when_it_goes_on(tmp_path: Path) -> None:
    resumed = 0
    for number, lie in enumerate(LIES[1::STEP]):
        telling, place, keyring = told(lie)
        leaves, folder = telling.leaves(), tmp_path / str(number)
        before = written(tmp_path / "before", leaves[: max(place, 0)], [maker.LOG])
        how: Any = {"folder": folder, "has_rules": lie.has_rules}
        if place < 1 or check_ledger(before, keyring, **how).exit_code:
            continue  # in the middle of a batch, say, no checkpoint is signed
        report = check_ledger(written(tmp_path / "ledger", leaves, telling.log_keys), keyring, **how)
        assert report.facts["start"] == place, lie.name
        assert found(report)[0] == (place, lie.code), lie.name
        assert report.exit_code == lie.exit_code
        resumed += 1
    assert resumed >= 40
