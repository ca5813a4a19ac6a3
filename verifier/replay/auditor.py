"""The auditor: reads a ledger from where it stopped last, and reports on all that it has read.

Its position is kept in a folder, if it has one, and only after the check: what has anything invalid in it is never
gone on from. Memory follows live state; the tree's nodes lie in a file. What is not decided again is told in every
report (docs/protocol.md 17.4).
Source: docs/protocol.md 17.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from itertools import chain, islice
from pathlib import Path

from verifier.keyring import Keyring
from verifier.replay.audit import Audit
from verifier.replay.cedar import open_engine
from verifier.replay.document import document_findings
from verifier.replay.due import OUTSTANDING_MS, outstanding
from verifier.replay.folder import Folder
from verifier.replay.heads import Reading, check_own_checkpoint, check_pinned_checkpoint
from verifier.replay.judged import authorities_in, judged
from verifier.replay.kept import BEGIN_ANEW
from verifier.replay.ruling import unruled_findings
from verifier.replay.source import BUNDLE_ENTRIES, Source
from verifier.verdict import Finding, Outcome, Report, unreadable
from verifier.wire import JsonObject, Malformed

OPERATORS_TOLD_MAX = 1_000  # of whose usage a report tells
Progress = Callable[[int, int], None]

NOT_REDECIDED = Finding(
    10,
    "decisions_not_redecided",
    Outcome.VALID,
    "not decided again: that a decision.failed had to fail, what was turned away without an entry (by rate, say), the "
    "order of arrival, how soon after its end something is ended while nobody asks for anything",
)


class Auditor:
    """One audit of one ledger, over as many readings as it takes.

    With `folder` (made if it is not there) it goes on from the position that is saved in it; PositionRefused when that
    cannot be used with these pins or at all, OSError when the folder cannot. Two at once never use one folder.
    `has_rules` asks the engine of rules again what it said, where the extra for it is installed.
    """

    def __init__(self, keyring: Keyring, *, folder: Path | None = None, has_rules: bool = False) -> None:
        self._folder = None if folder is None else Folder(folder)
        try:
            self._audit = Audit(keyring) if self._folder is None else self._folder.open_audit(keyring)
        except BaseException:
            self.close()
            raise
        self._audit.engine = open_engine() if has_rules else None
        self._has_rules = has_rules
        self._is_resumed = self.size > 0

    @property
    def size(self) -> int:
        """How many entries were read: where the next source has to start."""
        return self._audit.tree.size

    @property
    def root(self) -> bytes:
        """The tree's root over the entries read."""
        return self._audit.tree.root()

    @property
    def confirmed(self) -> bytes:
        """The newest checkpoint that the log signed and the entries gave; empty before there is one."""
        return self._audit.confirmed

    def leaf_hash(self, seq: int) -> bytes:
        """The hash of an entry as it was when it was read; IndexError beyond `size`."""
        return self._audit.tree.node(0, seq)

    def close(self) -> None:
        """Let others use the folder. What was not saved is forgotten."""
        if self._folder is not None:
            self._folder.close()

    def read(
        self, source: Source, *, jobs: int = 1, checkpoint: bytes | None = None, progress: Progress | None = None
    ) -> Report:
        """Go on with a source that starts at `size`, and report on everything so far. No content raises.

        `checkpoint` is a note whose size and root are pinned; `jobs` processes check signatures; `progress` is told
        (entries read, entries promised) from time to time. What cannot be read is a report of exit code 2.
        """
        assert source.start == self.size, "a source starts where the audit stands"
        reading = Reading(self._audit, source)
        if self.size and source.origin != self._audit.origin:
            return unreadable(
                "ledger", f"the saved position is of {self._audit.origin}, not of {source.origin}", "position_refused"
            )
        self._audit.origin = source.origin
        try:
            self._read_entries(reading, jobs, progress)
            self._check_end(reading, checkpoint)
        except (OSError, ValueError, BrokenExecutor) as error:
            return unreadable("ledger", f"cannot read the ledger: {error}", "unreadable")
        except Exception as error:  # no content raises, but a position that somebody made up may hold anything
            if not self._is_resumed:
                raise
            text = f"the saved position cannot be gone on from ({type(error).__name__}): {BEGIN_ANEW}"
            return unreadable("ledger", text, "position_refused")
        reading.findings += unruled_findings(self._audit.rulings, self._audit.unruled, has_rules=self._has_rules)
        return _report(reading)

    def _read_entries(self, reading: Reading, jobs: int, progress: Progress | None) -> None:
        """Entries may be judged by other processes; chain, tree and relations follow here, in order."""
        audit, source = self._audit, reading.source
        try:
            bundles = iter(lambda: list(islice(source.leaves, BUNDLE_ENTRIES)), [])
            first = next(bundles, [])
            if audit.tree.size == 0:
                audit.authorities = authorities_in(first)
            for bundle in judged(chain([first], bundles), audit.authorities, jobs):
                for entry in bundle:
                    audit.take(entry)
                if progress is not None:
                    progress(audit.tree.size, source.size)
                if self._folder is not None and audit.is_sound:
                    self._folder.save_if_due(audit)
        except Malformed as error:
            reading.say(2, "source_malformed", str(error))

    def _check_end(self, reading: Reading, checkpoint: bytes | None) -> None:
        """What is missing at the end, then the checkpoints; the position is saved last."""
        audit = self._audit
        if audit.stopped_at is None and reading.is_sound:  # that something is missing is no news where entries are bad
            for code, text in audit.relations.end_faults():
                reading.say(10, code, text, seq=audit.tree.size - 1)
        own = check_own_checkpoint(reading)
        reading.findings += document_findings(audit)
        witness_ms = audit.relations.state.numbers["witnessMs"]
        if audit.witnessed.size:  # the operator has witnesses
            for code, text in audit.witnessed.late(witness_ms, audit.time_ms, audit.tree.size):
                reading.say(10, code, text, Outcome.VALID)
        count, oldest_ms = outstanding(audit.relations.state)
        if oldest_ms > OUTSTANDING_MS:
            text = f"over and not ended: {count} leases, tickets or sessions, the oldest for {oldest_ms} ms of log time"
            reading.say(10, "ends_outstanding", text, Outcome.VALID)
        if checkpoint is not None:
            check_pinned_checkpoint(reading, checkpoint)
        is_confirmed = own is not None and reading.is_sound  # also not what only a disowned key has signed
        if own is not None and is_confirmed:
            audit.confirmed, audit.confirmed_size = reading.source.checkpoint, own.size
        if self._folder is not None:
            self._folder.save(audit) if is_confirmed else self._folder.fall_back()


def _report(reading: Reading) -> Report:
    audit = reading.audit
    completeness = reading.completeness if reading.is_sound else "unknown"
    over = outstanding(audit.relations.state)
    if audit.stopped_at is not None and reading.is_sound:
        completeness = f"chain and tree {completeness}; checked to {audit.stopped_at - 1}"
    return Report(
        command="ledger",
        findings=(*audit.findings, *reading.findings, NOT_REDECIDED),
        level=reading.level if reading.is_sound else "none",
        completeness=completeness,
        statement=tuple(_statement(reading)),
        facts={
            "origin": audit.origin,
            "size": audit.tree.size,
            "root": audit.tree.root().hex(),
            "requests": audit.requests,
            "custodial": audit.custodial,
            "unexplained": audit.unexplained,
            "outstanding": {"count": over.how_many, "oldestMs": over.oldest_ms},
            "slowestEndMs": audit.relations.state.endings.slowest_ms,
            "start": reading.source.start,
            "keysVersion": audit.keyring.version,
            "admissions": {name: audit.admissions[name] for name in ("allowed", "denied", "unpoliced", "shadowed")},
            "usage": _usage(audit),
            "rulings": {"count": audit.rulings, "derivedAgain": audit.rulings - audit.unruled.total()},
        },
    )


def _usage(audit: Audit) -> JsonObject:
    """Return what each operator's agents were admitted to in all: what it may be asked to pay for."""
    rows = islice(audit.relations.state.usage.by_operator(), OPERATORS_TOLD_MAX)
    return {did: {"allowed": one.total, "denied": one.denied, "cost": one.total_cost} for did, one in rows}


def _statement(reading: Reading) -> Iterator[str]:
    audit, start = reading.audit, reading.source.start
    yield f"{audit.tree.size} entries of {audit.origin}, signed requests checked: {audit.requests}"
    if start:
        yield f"entries before {start} were audited earlier"
    if audit.custodial:
        yield f"key held by the gateway: consent not proven, in {audit.custodial} of these entries"
    if audit.admissions:
        allowed, denied, unpoliced = (audit.admissions[name] for name in ("allowed", "denied", "unpoliced"))
        yield f"admissions: {allowed} allowed, {denied} denied; unpoliced, by hard rules alone: {unpoliced}"
    if audit.admissions["shadowed"]:
        yield f"allowed by hard rules alone while rules only watched, in shadow: {audit.admissions['shadowed']}"
    if audit.rulings:
        again = audit.rulings - audit.unruled.total()
        yield f"what rules said of admissions was derived again: {again} of {audit.rulings}"
    if audit.unexplained:
        yield f"decisions that failed, and nobody can say whether they had to: {audit.unexplained}"
