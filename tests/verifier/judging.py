"""Short words for the tests of receipts and ledgers: pins, verdicts as comparable values."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.verifier import maker
from verifier.keyring import Keyring, open_keyring
from verifier.replay.ledger import check_ledger
from verifier.verdict import Outcome, Report


def pins(ledger: maker.Ledger, quorum: int | None = 2, keys: bytes | None = None) -> Keyring:
    """Root, key document and policy: everything a reader can pin."""
    return open_keyring(root=maker.root_vkey(), document=keys or ledger.keys(), policy=maker.policy(quorum))


def faults(report: Report) -> list[tuple[int, str]]:
    """(step, code) of every finding that is more than a remark."""
    return [(finding.step, finding.code) for finding in report.findings if finding.outcome is not Outcome.VALID]


def remarks(report: Report) -> list[str]:
    return [finding.code for finding in report.findings if finding.outcome is Outcome.VALID]


def audit(content: bytes, keyring: Keyring, checkpoint: bytes | None = None, jobs: int = 1) -> Report:
    """Check an export that is only bytes so far."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return check_ledger(Path(file.name), keyring, checkpoint, jobs=jobs)


def of_ledger(ledger: maker.Ledger) -> list[tuple[int, int | None, str]]:
    """(step, seq, code) of every finding about an honest export of `ledger`, all pins in the reader's hands."""
    report = audit(ledger.export(), pins(ledger))
    return [(f.step, f.seq, f.code) for f in report.findings if f.outcome is not Outcome.VALID]
