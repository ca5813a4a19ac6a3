"""What can be wrong with a ledger file, and what to do about it. One table, so that the words are always the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

FLAWS_MAX = 200  # of one kind that are told one by one; the rest are counted

_RESTORE = (
    "keep this file as it is, stop the gateway, and restore the newest back-up that passes `tallystick ledger fsck`;"
    " what it lacks is lost, and clients will prove it"
)
_MEND = "stop the gateway and run `tallystick ledger fsck --repair`: the leaves give this value"
_RECORDS = (
    "keep this file, stop the gateway and restore the newest good back-up: what is live was changed by somebody else"
)
_COLD = "retries may get a wrong answer; stop the gateway and restore the newest good back-up"
_DISK = "check the disk, copy the file away, and restore the newest good back-up"

# By code: what to do. The codes that `--repair` may mend are those of MENDABLE.
ADVICE: Mapping[str, str] = {
    "file_damaged": _DISK,
    "schema_differs": "somebody changed tables or triggers: restore a good back-up, or use the version that made it",
    "head_missing": _RESTORE,
    "head_differs": _RESTORE,
    "row_stray": _RESTORE,
    "batch_missing": _RESTORE,
    "batch_id_wrong": "nothing depends on it but who wrote it: find out who else writes to this file",
    "batch_differs": _MEND,
    "entry_missing": _RESTORE,
    "entry_malformed": _RESTORE,
    "entry_changed": _RESTORE,
    "entry_differs": _RESTORE,
    "chain_broken": _RESTORE,
    "nodes_differ": _MEND,
    "root_differs": _MEND,
    "note_missing": _MEND,
    "note_wrong": _MEND,
    "signature_missing": _MEND,
    "signature_wrong": _MEND,
    "journal_malformed": _RECORDS,
    "record_malformed": _RECORDS,
    "record_differs": _RECORDS,
    "due_differs": _RECORDS,
    "seal_broken": _RECORDS,
    "cold_record_differs": _COLD,
    "fading_malformed": "records are forgotten too late or never; restore a good back-up when it suits",
    "damage_marked": "the gateway saw damage itself; find its cause, then `tallystick ledger fsck --clear-damage`",
}
MENDABLE = frozenset(
    {
        "batch_differs",
        "nodes_differ",
        "root_differs",
        "note_missing",
        "note_wrong",
        "signature_missing",
        "signature_wrong",
    }
)


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is wrong: at entry `seq`, or with a batch of that size, or None for the file as a whole."""

    code: str
    seq: int | None
    text: str

    @property
    def advice(self) -> str:
        return ADVICE[self.code]

    @property
    def is_mendable(self) -> bool:
        return self.code in MENDABLE


@dataclass(slots=True)
class Flaws:
    """What was found so far; of one kind the first FLAWS_MAX."""

    found: list[Flaw] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def say(self, code: str, text: str, seq: int | None = None) -> None:
        """Add one flaw; a code without advice is a mistake of ours."""
        assert code in ADVICE, f"{code} has no advice"
        self.counts[code] = self.counts.get(code, 0) + 1
        if self.counts[code] <= FLAWS_MAX:
            self.found.append(Flaw(code, seq, text))

    def lines(self) -> Iterator[str]:
        """Yield what a person reads: each flaw, then once for each kind what to do."""
        for flaw in self.found:
            where = "" if flaw.seq is None else f" at {flaw.seq}"
            yield f"{flaw.code}{where}: {flaw.text}"
        for code, count in self.counts.items():
            more = f" ({count - FLAWS_MAX} more are not listed)" if count > FLAWS_MAX else ""
            yield f"What to do about {code}{more}: {ADVICE[code]}."
