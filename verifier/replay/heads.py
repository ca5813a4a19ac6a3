"""The checkpoints of a whole ledger: the one that came with it, and the one that a reader pinned.

Source: docs/protocol.md 17.2, 17.6, 16.2 (steps 4 to 8, 12).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.note import is_signed_once
from verifier.replay.audit import Audit
from verifier.replay.source import Source
from verifier.signers import check_signers
from verifier.verdict import Finding, Outcome
from verifier.wire import Malformed


@dataclass(slots=True)
class Reading:
    """One source that an audit goes on with; `findings` are about the source and its checkpoints, not about entries."""

    audit: Audit
    source: Source
    findings: list[Finding] = field(default_factory=list)
    level: str = "none"
    completeness: str = "unknown"

    @property
    def is_sound(self) -> bool:
        return self.audit.is_sound and not any(finding.outcome >= Outcome.INVALID for finding in self.findings)

    def say(self, step: int, code: str, text: str, outcome: Outcome = Outcome.INVALID, seq: int | None = None) -> None:
        self.findings.append(Finding(step, code, outcome, text, seq))


def check_own_checkpoint(reading: Reading) -> Checkpoint | None:
    """The checkpoint that came with the ledger must fit what came with it; return it if the log signed it."""
    source, size = reading.source, reading.audit.tree.size
    if source.is_longer:
        reading.say(2, "too_long", f"the source promises {source.size} entries and has more; the rest was not read")
        return None
    if size == 0:
        reading.say(9, "empty", "no entries; an empty ledger is never complete", Outcome.INDETERMINATE)
    if size != source.size:
        reading.say(8, "truncated", _truncated(source, size))
    checkpoint = _open_checkpoint(reading, source.checkpoint, "the ledger's own")
    if checkpoint is not None and not _is_split(reading, checkpoint):
        if source.size < source.start and checkpoint.size == source.size:
            return checkpoint  # cut, which was said, and nothing else
        if (checkpoint.size, checkpoint.root) != (size, reading.audit.tree.root()):
            reading.say(
                8, "root_differs", f"the entries do not give the root of the own checkpoint ({checkpoint.size})"
            )
        elif reading.level.startswith("witnessed") and size:
            reading.completeness = f"to size {size}, {reading.level}"
        _check_lines(reading, checkpoint, "the ledger's own")
    return checkpoint


def _check_lines(reading: Reading, checkpoint: Checkpoint, whose: str) -> None:
    """The ledger's own entries say whose lines its last checkpoint has, whatever keys a reader pins."""
    audit = reading.audit
    keys = audit.relations.state.keys.of_log(checkpoint.size)
    if audit.stopped_at is None and not all(is_signed_once(checkpoint.note, key) for key in keys):
        text = f"a log key in force at size {checkpoint.size} has not signed {whose} checkpoint, or not once (15.8)"
        reading.say(5, "log_line_missing", text)


def _truncated(source: Source, size: int) -> str:
    if source.size < source.start:
        return f"the source promises {source.size} entries, but {source.start} were audited earlier"
    return f"the source promises {source.size} entries and has {size}"


def _is_split(reading: Reading, checkpoint: Checkpoint) -> bool:
    """Say whether a checkpoint contradicts one that the log signed for entries audited earlier."""
    audit = reading.audit
    if checkpoint.size > audit.confirmed_size or audit.root_at(checkpoint.size) == checkpoint.root:
        return False
    text = f"the log signed another root for size {checkpoint.size} than the entries have that were audited earlier"
    reading.say(12, "two_roots", text, Outcome.SPLIT)
    return True


def check_pinned_checkpoint(reading: Reading, note: bytes) -> None:
    """The reader's own checkpoint: the ledger must reach it and agree with it."""
    is_own_sound = not any(finding.step in (4, 5, 6, 8) and finding.outcome for finding in reading.findings)
    pinned, tree = _open_checkpoint(reading, note, "the given"), reading.audit.tree
    if pinned is None:
        return
    if pinned.size > tree.size:
        reading.say(8, "truncated", f"the ledger has {tree.size} entries, the given checkpoint {pinned.size}")
    elif pinned.root == tree.root(pinned.size):
        if pinned.size and reading.completeness == "unknown":
            reading.completeness = f"to size {pinned.size} of the given checkpoint"
    elif is_own_sound:
        reading.say(12, "two_roots", f"the log signed two roots for size {pinned.size}", Outcome.SPLIT)
    else:
        reading.say(8, "checkpoint_differs", f"the ledger's root at size {pinned.size} is not the given checkpoint's")


def _open_checkpoint(reading: Reading, note: bytes, whose: str) -> Checkpoint | None:
    """Steps 4 to 7 for a checkpoint that must be this ledger's; None when it does not count."""
    try:
        checkpoint = parse_checkpoint(note)
    except Malformed as error:
        reading.say(4, "checkpoint_malformed", f"{whose} checkpoint: {error}")
        return None
    signers, tree = check_signers(checkpoint, reading.audit.keyring), reading.audit.tree
    reading.findings += signers.findings
    if checkpoint.origin != reading.source.origin:
        reading.say(5, "origin_differs", f"{whose} checkpoint is of another origin")
        return None
    reading.level = signers.level if reading.level == "none" else reading.level
    is_unsure = any(it.code == "log_line_missing" and it.outcome < Outcome.INVALID for it in signers.findings)
    if is_unsure and (checkpoint.size, checkpoint.root) == (tree.size, tree.root()):
        _check_lines(reading, checkpoint, whose)  # an old document doesn't know what these entries do
    return checkpoint if signers.is_signed else None
