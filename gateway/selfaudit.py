"""A gateway that audits its own ledger while it serves it, in a process of its own that gets only spare time.

The auditor is the very one that strangers run (`verifier/replay`), so a bug of ours that grants what the rules forbid,
a disk that forgets and a hand in the file are found by us first. On a finding nothing is granted any more: a decision
that rests on a broken ledger could not be taken back. What is read is still served, for others must see what happened.

The child reads through a read-only connection what is committed and signed, and says on its standard output, one JSON
object a line, how far it is or what it found. It looks at old entries again as well, a few in each round: the tree it
keeps in DATA/audit is not the one in the database. Source: docs/operating.md; docs/adr/0042.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep

from gateway.core.key import line_of
from gateway.core.record_codec import decode_record
from gateway.core.records import LedgerKey
from gateway.damage import AUDIT_FOLDER, Damage, Marker
from gateway.errors import Busy, Fatal, StartError
from gateway.ledger.sequencer import Sequencer
from gateway.store.contract import Reading
from gateway.store.sqlite import busy_or_fatal
from gateway.stores import LedgerReader, open_reader
from gateway.web.metrics import Metrics
from verifier.checkpoint import parse_checkpoint
from verifier.entries import moment, parse_leaf
from verifier.keyring import KeyDocument, KeyLine, Keyring
from verifier.merkle import leaf_hash
from verifier.note import parse_vkey
from verifier.replay.auditor import Auditor
from verifier.replay.kept import PositionRefused
from verifier.replay.source import Source
from verifier.verdict import Outcome, Report
from verifier.wire import Malformed

START_SECONDS = 5.0  # what lives shorter pays nothing for it
PERIOD_SECONDS = 2.0  # between two readings, and never less than the last one took: half of a core at most
BACKOFF_SECONDS_MAX = 300.0
STEADY_SECONDS = 60.0  # a child that lived so long was not the trouble
ENTRIES_PER_READING = 16_384  # then what was found is told, and the position saved
ENTRIES_PER_READ = 256
OLD_ENTRIES_PER_ROUND = 4_096
# Gentle before anything is imported, which is the first second of its work.
_GENTLE = "import os, runpy; os.nice(19); runpy.run_module('gateway.selfaudit', run_name='__main__')"
POSITION_FILES = ("position", "unfinished", "nodes")
_log = logging.getLogger("tallystick.selfaudit")


# -- the gateway's side ------------------------------------------------------------------------------------------------


def check_mark(data: Path) -> None:
    """StartError when an earlier run of this gateway found its ledger damaged and nobody has looked yet."""
    marker = Marker(data)
    damage = marker.read()
    if damage is not None:
        at = "" if damage.seq is None else f" at entry {damage.seq}"
        raise StartError(
            f"this gateway found its own ledger damaged ({damage.code}{at}: {damage.text}). Run `tallystick ledger fsck"
            f" --data {data}` and `tallystick-verify ledger` over an export; when the cause is found and the ledger is"
            f" sound, `tallystick ledger fsck --data {data} --clear-damage`"
        )


def audit_itself(stack: AsyncExitStack, data: Path, sequencer: Sequencer, metrics: Metrics) -> None:
    """Begin to audit; leaving the stack ends it."""
    audit = SelfAudit(data, sequencer)
    audit.show(metrics)
    stack.push_async_callback(_end, asyncio.create_task(audit.run(), name="self-audit"))


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@dataclass(slots=True)
class SelfAudit:
    """The child of one gateway, and what it said last. `run` ends with a finding, or when it is cancelled."""

    data: Path
    sequencer: Sequencer
    start_s: float = START_SECONDS
    period_s: float = PERIOD_SECONDS
    size: int = 0
    unruled: int = 0
    """How many answers of rules were not derived again: the child has no engine for them."""
    restarts: int = 0
    process: asyncio.subprocess.Process | None = None
    damage: Damage | None = field(default=None)

    @property
    def lag(self) -> int:
        """How many signed entries are not audited yet."""
        return max(0, self.sequencer.confirmed.size - self.size)

    def show(self, metrics: Metrics) -> None:
        """Offer the figures; read at each scrape."""
        metrics.gauge("selfaudit_size", "Entries that this gateway audited itself.", lambda: float(self.size))
        metrics.gauge("selfaudit_lag", "Signed entries that it has not audited yet.", lambda: float(self.lag))
        metrics.gauge("selfaudit_rules_not_rederived",
                      "Admissions judged by rules whose answer it has not derived again, for want of their engine.",
                      lambda: float(self.unruled))  # fmt: skip
        metrics.gauge("damaged", "1 when it found its own ledger damaged.", lambda: float(self.damage is not None))
        metrics.counter("selfaudit_restarts", "Times the audit's process had to be started anew.",
                        lambda: float(self.restarts))  # fmt: skip

    async def run(self) -> None:
        """Keep a child at work; one that ends is started again, later each time."""
        await asyncio.sleep(self.start_s)
        pause_s = 1.0
        while self.damage is None:
            began_s = monotonic()
            try:
                await self._follow()
            except OSError as error:  # no more processes, no more memory: nothing that the ledger is to blame for
                _log.warning("the process of the self-audit can't be started: %s", error.strerror)
            if self.damage is None:
                pause_s = 1.0 if monotonic() - began_s > STEADY_SECONDS else pause_s
                self.restarts += 1
                _log.warning("the process of the self-audit ended; another is started in %d s", pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_SECONDS_MAX)

    async def _follow(self) -> None:
        """Start a child and take in what it says until it ends; one that is left behind is stopped."""
        command = (sys.executable, "-c", _GENTLE, str(self.data), str(self.period_s))
        self.process = process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None, "asked for"
        try:
            async for line in process.stdout:
                self._take(line)
        finally:
            with suppress(ProcessLookupError):
                process.kill()  # its position is durable whenever it is saved
            await process.wait()
            self.process = None

    def _take(self, line: bytes) -> None:
        with suppress(ValueError):  # half a line of a child that was killed
            said = json.loads(line)
            if "size" in said:
                self.size = int(said["size"])
                self._take_rulings(int(said["rulings"]), int(said["derivedAgain"]))
            if "damage" in said and self.damage is None:
                self._stop_granting(Damage(**said["damage"]))

    def _take_rulings(self, count: int, derived_again: int) -> None:
        """Say once when answers of rules can't be derived again: that is no damage, and nobody would notice."""
        if count - derived_again > 0 == self.unruled:
            _log.warning(
                "the self-audit can't ask the rules again: cedarpy is missing, or another version than answered",
                extra={"fields": {"rulings": count, "derivedAgain": derived_again}},
            )
        self.unruled = count - derived_again

    def _stop_granting(self, damage: Damage) -> None:
        self.damage = Damage(damage.code, damage.text, damage.seq, moment(self.sequencer.time_ms))
        self.sequencer.damage = damage.code
        fields = {"code": damage.code, "seq": damage.seq, "found": damage.text}
        _log.critical(
            "this ledger is damaged, and nothing is granted any more: keep the files, run `tallystick ledger fsck`",
            extra={"fields": fields},
        )
        try:
            Marker(self.data).write(self.damage)
        except OSError as error:
            _log.critical("the mark of the damage can't be written, and a restart would forget it: %s", error.strerror)


# -- the child's side --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stand:
    """The ledger as its newest kept checkpoint has it: origin, size, note, and the keys of the entries below it."""

    origin: str
    size: int
    note: bytes
    keyring: Keyring


class Child:
    """One audit in one process: reads what is new, then some of what is old, says so, and rests."""

    def __init__(self, data: Path, period_s: float) -> None:
        self._data, self._folder = data, data / AUDIT_FOLDER
        self._period_s = period_s
        self._parent = os.getppid()
        self._auditor: Auditor | None = None
        self._lines: tuple[KeyLine, ...] = ()
        self._old = 0  # the next old entry to be looked at again

    def work(self) -> None:
        """Go on until there is a finding, or until the gateway is gone."""
        while os.getppid() == self._parent:
            began_s = monotonic()
            damage = self._tried()
            if damage is not None:
                _say({"damage": asdict(damage)})
                return
            sleep(max(self._period_s, monotonic() - began_s))

    def _tried(self) -> Damage | None:
        """One round; a file that can't be opened or read for a moment is looked at again, and is no damage."""
        try:
            return self._round()
        except sqlite3.Error as error:
            fault: Exception = busy_or_fatal(error, "the store can't be read")
        except (Busy, Fatal, Malformed) as error:
            fault = error
        return None if isinstance(fault, Busy) else Damage("store_unreadable", str(fault))

    def _round(self) -> Damage | None:
        """Read up to the newest kept checkpoint, in parts; then look at some old entries again."""
        while os.getppid() == self._parent:
            with closing(open_reader(self._data)) as reader:
                size = 0 if self._auditor is None else self._auditor.size
                stand = self._stand(reader, size + ENTRIES_PER_READING)
                auditor = self._open(stand.keyring)
                if stand.size <= auditor.size:
                    return self._look_again(reader, auditor)
                damage = self._read(reader, auditor, stand)
            if damage is not None:
                return damage
        return None

    def _stand(self, reader: LedgerReader, size_max: int) -> Stand:
        """Return the newest checkpoint up to a size, and who could sign it, by the ledger's own records."""
        note = reader.last_note(size_max)
        if note is None:
            raise Busy("the ledger has no checkpoint yet")
        size, opening = parse_checkpoint(note).size, reader.entries(0, 1)[0].leaf
        leaf = parse_leaf(opening)
        lines = tuple(_lines_at(reader, size))
        document = KeyDocument(leaf.origin, leaf_hash(opening), 1, None, lines)
        return Stand(leaf.origin, size, note, Keyring(parse_vkey(leaf.text("root")), document))

    def _open(self, keyring: Keyring) -> Auditor:
        """Return the auditor of these keys; when they changed, another one that goes on from the saved position."""
        assert keyring.document is not None, "made just before"
        if self._auditor is not None and keyring.document.keys == self._lines:
            return self._auditor
        self._close()
        self._lines = keyring.document.keys
        try:
            self._auditor = Auditor(keyring, folder=self._folder, has_rules=True)
        except PositionRefused as error:
            self._begin_anew(str(error))
            self._auditor = Auditor(keyring, folder=self._folder, has_rules=True)
        return self._auditor

    def _close(self) -> None:
        if self._auditor is not None:
            self._auditor.close()
        self._auditor = None

    def _begin_anew(self, why: str) -> None:
        """A position that can't be gone on from is no damage of the ledger: what it knew is found out again."""
        print(f"the self-audit begins anew: {why}", file=sys.stderr, flush=True)
        for name in POSITION_FILES:
            (self._folder / name).unlink(missing_ok=True)

    def _read(self, reader: Reading, auditor: Auditor, stand: Stand) -> Damage | None:
        leaves = _Leaves(reader, auditor.size, stand.size)
        report = auditor.read(Source(stand.origin, stand.size, iter(leaves), stand.note, start=auditor.size))
        if leaves.trouble is not None:  # then the report is about a part; what was saved last is gone on from
            self._close()
            raise leaves.trouble
        if report.outcome is Outcome.UNREADABLE:
            self._close()
            self._begin_anew(report.findings[0].text)
            return None
        rulings = report.facts["rulings"]
        assert isinstance(rulings, dict), "figures"
        _say({"size": auditor.size, "rulings": rulings["count"], "derivedAgain": rulings["derivedAgain"]})
        return _damage(report)

    def _look_again(self, reader: Reading, auditor: Auditor) -> Damage | None:
        """Hash some entries anew that were audited before, and compare them with the audit's own tree."""
        stop = min(self._old + OLD_ENTRIES_PER_ROUND, auditor.size)
        for seq, leaf in enumerate(_leaves(reader, self._old, stop), self._old):  # what the store raises goes up
            if leaf_hash(leaf) != auditor.leaf_hash(seq):
                return Damage("entry_changed", "the entry is not the one that was audited before", seq)
        self._old = stop if stop < auditor.size else 0
        return None


def _lines_at(reader: LedgerReader, size: int) -> Iterator[KeyLine]:
    """Yield the lines of the keys that the entries below `size` made, as those entries leave them."""
    for record in [decode_record(key, value) for key, value in reader.records(("key/",))]:
        if isinstance(record, LedgerKey) and record.announced_seq < size:
            is_ended = record.ended_seq is not None and record.ended_seq < size
            yield line_of(record if is_ended else record._replace(ended_seq=None, is_compromised=False))


class _Leaves:
    """The leaves [start, stop) as an auditor reads them: a store that fails ends them, and is kept as `trouble`."""

    def __init__(self, reader: Reading, start: int, stop: int) -> None:
        self._leaves = _leaves(reader, start, stop)
        self.trouble: Busy | Fatal | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._leaves
        except (Busy, Fatal) as error:
            self.trouble = error


def _leaves(reader: Reading, start: int, stop: int) -> Iterator[bytes]:
    """Yield the leaves [start, stop); where one is missing they end."""
    expected = start
    for at in range(start, stop, ENTRIES_PER_READ):
        for entry in reader.entries(at, min(at + ENTRIES_PER_READ, stop)):
            if entry.seq != expected:
                return
            expected += 1
            yield entry.leaf


def _damage(report: Report) -> Damage | None:
    """Return what makes a report invalid; what is only not known is no damage."""
    failed = report.failed
    if failed is None or report.outcome not in (Outcome.INVALID, Outcome.SPLIT):
        return None
    return Damage(failed.code, failed.text, failed.seq)


def _say(said: dict[str, object]) -> None:
    print(json.dumps(said), flush=True)


def _own(folder: Path) -> int:
    """Return the descriptor of the folder's lock. BlockingIOError: the child of a killed gateway has not ended yet."""
    folder.mkdir(mode=0o700, exist_ok=True)
    lock_file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock_file


def main() -> int:
    """Audit the data directory of the gateway that started this process, which says how often to look."""
    data = Path(sys.argv[1])
    with suppress(BrokenPipeError, BlockingIOError, KeyboardInterrupt):
        _own(data / AUDIT_FOLDER)  # until this process ends
        Child(data, float(sys.argv[2])).work()
    return 0


if __name__ == "__main__":
    sys.exit(main())
