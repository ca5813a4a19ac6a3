"""The mark that a gateway leaves when it found its own ledger damaged: no later start goes past it.

A restart must not wash a finding away, and a supervisor restarts at once. Only an operator who looked removes the mark.
Source: docs/operating.md, when something is wrong; docs/adr/0042.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from keys.files import replace_file, sync_folder

AUDIT_FOLDER = "audit"
MARKER_FILE = "damaged.json"


@dataclass(frozen=True, slots=True)
class Damage:
    """What was found: the auditor's code, the entry it is about if it is about one, and the log time of the finding."""

    code: str
    text: str
    seq: int | None = None
    found: str = ""  # when, in UTC


class Marker:
    """The file DATA/audit/damaged.json. What is there and can't be read is damage as well."""

    def __init__(self, data: Path) -> None:
        self.path = data / AUDIT_FOLDER / MARKER_FILE

    def read(self) -> Damage | None:
        """Return what was found, or None."""
        try:
            members = json.loads(self.path.read_bytes())
            return Damage(str(members["code"]), str(members["text"]), members.get("seq"), str(members.get("found")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Damage("marker_unreadable", f"{self.path} is there, but can't be read")

    def write(self, damage: Damage) -> None:
        """Leave the mark, durably; the first finding stays."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        if self.path.exists():
            return
        replace_file(self.path, json.dumps(asdict(damage)).encode())

    def clear(self) -> bool:
        """Remove the mark; say whether there was one."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        sync_folder(self.path.parent)
        return True
