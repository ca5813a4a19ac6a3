"""A whole ledger in one call: chain, tree, checkpoints, every request's evidence, and what lies between entries.

Source: docs/protocol.md 17.
"""

from __future__ import annotations

import sys
from pathlib import Path

from verifier.keyring import Keyring
from verifier.replay.auditor import NOT_REDECIDED, Auditor, Progress
from verifier.replay.kept import PositionRefused
from verifier.replay.source import open_source
from verifier.verdict import Finding, Outcome, Report, unreadable
from verifier.wire import Malformed


def check_ledger(
    path: Path,
    keyring: Keyring,
    checkpoint: bytes | None = None,
    *,
    jobs: int = 1,
    folder: Path | None = None,
    progress: Progress | None = None,
    has_rules: bool = False,
) -> Report:
    """Read the export file or tile directory at `path` and report.

    `checkpoint` is a note whose size and root are pinned; `jobs` processes check signatures; with `folder` the audit
    goes on from where it stopped last; `has_rules` asks rule sets again what they say. A file that cannot be read is a
    report of exit code 2; no content raises.
    """
    try:
        auditor = Auditor(keyring, folder=folder, has_rules=has_rules)
    except PositionRefused as error:
        return unreadable("ledger", str(error), "position_refused")
    except (OSError, ValueError) as error:
        return unreadable("ledger", f"cannot use the folder of the position: {error}", "unreadable")
    try:
        with open_source(path, auditor.size) as source:
            return auditor.read(source, jobs=jobs, checkpoint=checkpoint, progress=progress)
    except Malformed as error:
        return Report("ledger", (Finding(2, "source_malformed", Outcome.INVALID, str(error)), NOT_REDECIDED))
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        return unreadable("ledger", f"cannot read the ledger: {error}", "unreadable")
    finally:
        auditor.close()


def show_progress(count: int, total: int) -> None:
    """Write one line on stderr over the one before: how many entries were checked, and how much of all that is."""
    end = "\n" if count >= total else ""
    sys.stderr.write(f"\r{count:,} of {total:,} entries, {count * 100 // max(total, 1)} %{end}")
    sys.stderr.flush()
