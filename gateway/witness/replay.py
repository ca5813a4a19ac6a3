"""Ledgers that are audited before anything of them is cosigned: every entry is decided again, as anybody could.

One ledger has one job at a time, in a thread of its own: fetch up to the submitted checkpoint, hash, audit from where
the last audit ended. A request waits for that a moment; later ones are told to come back. What an audit finds invalid
ends the matter for ever: the report is kept, and the ledger gets no line of this witness again.
Source: docs/protocol.md 32.31 to 32.34; 17 (the audit).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as StillAtIt
from pathlib import Path
from threading import Event, Lock
from time import monotonic

from gateway.witness.books import Log
from gateway.witness.fetch import Files, Unfetched
from gateway.witness.mirror import Differs, Mirror, checkpoint_of
from gateway.witness.shelf import Shelf, origin_hash
from gateway.witness.witness import REFUSED, RETRY_SECONDS, Answer, Refused
from keys.files import replace_file
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.keyring import KeyDocument, Keyring, covers, open_key_document
from verifier.note import VerifierKey, line_matches
from verifier.replay.auditor import Auditor
from verifier.replay.kept import PositionRefused
from verifier.replay.ruling import NOT_DERIVED
from verifier.replay.source import open_source
from verifier.verdict import Finding, Outcome, Report
from verifier.wire import TEXT_BYTES_MAX, Malformed

REPLAY_FOLDER = "replay"
KEYS_PATH = "/.well-known/tallystick-keys"
WAIT_SECONDS = 4.0  # of a request for its audit: less than logs wait for an answer
REFRESH_SECONDS = 5.0  # between two looks for a newer key document, when a key is not known
RENEW_SECONDS = 60.0  # and when all are: one of them may have been disowned
JOBS_MAX = 2
# About the lines of the checkpoint that was shown. Anybody can leave one out, so they convict nobody.
_OF_LINES = frozenset({"log_line_missing", "log_signature_missing", "log_signature_invalid", "size_outside_key"})
_log = logging.getLogger("tallystick.witness")


class Unaudited(Exception):
    """Nothing was found out; the text is for the operator's log."""


class Replay:
    """One ledger: its keys, its mirror, its audit. `check` may be called from many threads."""

    def __init__(self, folder: Path, log: Log, shelf: Shelf, threads: ThreadPoolExecutor) -> None:
        assert log.root is not None, "a replay has a root key"
        self._folder = folder
        self._origin = log.origin
        self._root = log.root
        self._url = log.url
        self._shelf = shelf
        self._threads = threads
        self._lock = Lock()
        self._looking = Lock()
        self._stopping = Event()
        self._job: Future[int] | None = None
        self._looked_s = -RENEW_SECONDS
        self._auditor: Auditor | None = None
        self._pinned = Keyring(self._root)
        self._mirror: Mirror | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._document = self._kept_document()

    # -- keys ----------------------------------------------------------------------------------------------------------

    def keys(self, checkpoint: Checkpoint) -> tuple[VerifierKey, ...]:
        """Return the log keys that may sign a checkpoint of its size; looks for new ones when it names none of them.

        Unaudited when it could not be found out: a ledger that is just starting, say, does not serve its keys yet.
        """
        keys = self._log_keys(checkpoint.size)
        is_known = any(line_matches(line, key) for line in checkpoint.note.lines for key in keys)
        if is_known and monotonic() - self._looked_s < RENEW_SECONDS:
            return keys
        try:
            self._refresh()
        except Unaudited as trouble:
            if not is_known:
                raise
            _log.warning("the newest keys of %s are not known: %s", self._origin, trouble)
        return self._log_keys(checkpoint.size)

    def _log_keys(self, size: int) -> tuple[VerifierKey, ...]:
        lines = () if self._document is None else Keyring(self._root, self._document).log_keys(self._origin)
        return tuple(line.key for line in lines if covers(line, size) and line.status != "compromised")

    def _kept_document(self) -> KeyDocument | None:
        try:
            return open_key_document((self._folder / "keys.note").read_bytes(), self._root)
        except FileNotFoundError:
            return None
        except (Malformed, OSError) as error:
            raise Unaudited(f"{self._folder / 'keys.note'} can't be read: {error}") from error

    def _refresh(self) -> None:
        """Take a newer key document that the pinned root signed; a version never goes back, and genesis stays."""
        if monotonic() - self._looked_s < REFRESH_SECONDS or not self._looking.acquire(blocking=False):
            raise Unaudited("its key document was asked for a moment ago, and does not name the key")
        files = Files(self._url, self._stopping.is_set)
        try:
            note = files.get_from_host(KEYS_PATH, TEXT_BYTES_MAX)
            if note is None:
                raise Unaudited(f"it serves no key document at {KEYS_PATH}")
            self._take(note)
        except (Unfetched, Malformed, OSError) as error:
            raise Unaudited(f"its key document is not to be had: {error}") from error
        finally:
            files.close()
            self._looked_s = monotonic()
            self._looking.release()

    def _take(self, note: bytes) -> None:
        document, known = open_key_document(note, self._root), self._document
        if document.origin != self._origin or (known is not None and known.genesis != document.genesis):
            raise Malformed("it is of another ledger")
        Keyring(self._root, document)
        if known is None or document.version > known.version:
            replace_file(self._folder / "keys.note", note)
            self._document = document
            _log.info("key_document", extra={"fields": {"origin": self._origin, "version": document.version}})

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def check(self, note: bytes) -> Answer | None:
        """Return None when all below the checkpoint is audited and clean; wait a moment if nobody else does."""
        with self._lock:
            if self._job is not None and not self._job.done():
                return _later("it is still reading the ledger", "replaying")
            job = self._job = self._threads.submit(self._work, note)
        try:
            job.result(WAIT_SECONDS)
            return None
        except StillAtIt:
            return _later("it is still reading the ledger", "replaying")
        except Unaudited as trouble:
            _log.error("%s was not audited: %s", self._origin, trouble)
            return REFUSED if self._shelf.is_refused(self._origin) else _later(str(trouble), "not_audited")

    def close(self) -> None:
        """Stop the job that is under way at its next bundle, wait for it, and give the audit's folder back."""
        self._stopping.set()
        with self._lock:
            if self._job is not None:
                wait([self._job])
        self._drop()

    def _drop(self) -> None:
        """Forget what was read since the audit's position was kept."""
        if self._auditor is not None:
            self._auditor.close()
            self._auditor = None

    def _work(self, note: bytes) -> int:
        """Fetch, audit, and return the size; Unaudited for everything that keeps us from knowing."""
        try:
            self._check_stopping()
            if self._mirror is None:
                self._mirror = Mirror(self._folder / "mirror")
            checkpoint = parse_checkpoint(note)
            if checkpoint.size < self._mirror.size:
                raise Unaudited(f"{self._mirror.size} entries are audited; submit a checkpoint of at least that size")
            files = Files(self._url, self._stopping.is_set)
            try:
                self._mirror.extend(note, files)
            finally:
                files.close()
            self._audit(self._mirror, checkpoint)
            return checkpoint.size
        except Differs as error:
            _log.critical("%s: %s", self._origin, error)
            raise Unaudited(str(error)) from error
        except (Unfetched, Malformed, OSError, PositionRefused) as error:
            self._drop()
            raise Unaudited(str(error)) from error
        except Unaudited:
            self._drop()
            raise
        except Exception as error:
            _log.exception("the audit of %s failed", self._origin)
            self._drop()
            raise Unaudited("the audit failed") from error

    def _audit(self, mirror: Mirror, checkpoint: Checkpoint) -> None:
        auditor = self._opened()
        start = auditor.size
        if start > mirror.size:
            raise Unaudited(f"the audit stands at {start} entries and the mirror at {mirror.size}")
        with open_source(mirror.folder, start) as source:
            report = auditor.read(source, progress=self._tell)
        _log.info("audited", extra={"fields": {"origin": self._origin, "from": start, "to": auditor.size}})
        self._judge(report, mirror)
        if (auditor.size, auditor.root) != (checkpoint.size, checkpoint.root):
            raise Unaudited("the audit ended elsewhere than the checkpoint")

    def _opened(self) -> Auditor:
        """Return the audit with the newest pins; new ones mean opening its position again."""
        keyring = Keyring(self._root, self._document)
        if self._auditor is None or self._pinned != keyring:
            self._drop()
            self._auditor, self._pinned = Auditor(keyring, folder=self._folder / "audit", has_rules=True), keyring
        return self._auditor

    def _judge(self, report: Report, mirror: Mirror) -> None:
        said = [finding for finding in report.findings if finding.outcome is not Outcome.VALID]
        if all(finding.code == NOT_DERIVED for finding in said):  # a witness need not have the engine of every gateway
            for finding in said:
                _log.warning("audited but for rules", extra={"fields": {"origin": self._origin, "found": finding.text}})
            return
        self._drop()  # what is invalid is not gone on from, whoever reads next
        if report.outcome not in (Outcome.INVALID, Outcome.SPLIT):
            failed = report.failed
            raise Unaudited(f"the audit can't say: {failed.text if failed else report.outcome.name}")
        if not any(finding.outcome >= Outcome.INVALID and not _is_of_lines(finding) for finding in report.findings):
            raise Unaudited(f"the checkpoint does not count: {report.failed.text if report.failed else ''}")
        if not mirror.is_whole():
            raise Unaudited("the mirror was damaged; it is fetched again")
        note = (mirror.folder / "checkpoint").read_text("utf-8")
        evidence = {"origin": self._origin, "checkpoint": note, "report": json.loads(report.as_json())}
        self._shelf.refuse(self._origin, json.dumps(evidence, sort_keys=True, indent=1))
        failed = report.failed
        fields = {"origin": self._origin, "code": failed and failed.code, "seq": failed and failed.seq}
        _log.critical("lie_found: this ledger is refused for ever", extra={"fields": fields})
        raise Unaudited("a lie was found")

    def _tell(self, read: int, size: int) -> None:
        self._check_stopping()
        _log.debug("auditing", extra={"fields": {"origin": self._origin, "read": read, "size": size}})

    def _check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Unaudited("the witness is stopping")


class Replays:
    """Every ledger that is replayed, by origin; each begins when its first checkpoint comes."""

    def __init__(self, folder: Path, shelf: Shelf) -> None:
        self._folder = folder / REPLAY_FOLDER
        self._shelf = shelf
        self._threads = ThreadPoolExecutor(JOBS_MAX, "tallystick-replay")
        self._lock = Lock()
        self._replays: dict[Log, Replay] = {}

    def keys(self, log: Log, checkpoint: Checkpoint) -> tuple[VerifierKey, ...]:
        """Return the log keys that may sign this checkpoint, by the newest key document of the pinned root.

        Refused, with 503, when that can't be found out at the moment.
        """
        try:
            return self._of(log).keys(checkpoint)
        except Unaudited as trouble:
            _log.warning("keys of %s are not known: %s", log.origin, trouble)
            raise Refused(_later(str(trouble), "keys_unknown")) from trouble

    def check(self, log: Log, note: bytes) -> Answer | None:
        """Return None once everything below the checkpoint was audited and found clean, else the answer to give."""
        return self._of(log).check(note)

    def close(self) -> None:
        """End the jobs that are under way, and give their folders back."""
        _close(self._replays.values())
        self._threads.shutdown(wait=True)

    def _of(self, log: Log) -> Replay:
        with self._lock:
            if log not in self._replays:
                _close(self._replays.pop(old) for old in list(self._replays) if old.origin == log.origin)
                folder = self._folder / origin_hash(log.origin)
                self._replays[log] = Replay(folder, log, self._shelf, self._threads)
            return self._replays[log]


def read_position(folder: Path, origin: str) -> int:
    """Return how many entries of a replayed ledger are in its mirror."""
    checkpoint = checkpoint_of(folder / REPLAY_FOLDER / origin_hash(origin) / "mirror")
    return 0 if checkpoint is None else checkpoint.size


def _is_of_lines(finding: Finding) -> bool:
    return finding.seq is None and finding.code in _OF_LINES


def _later(text: str, code: str) -> Answer:
    return Answer(503, f"nothing was cosigned: {text}\n", code, retry_after_s=RETRY_SECONDS)


def _close(replays: Iterable[Replay]) -> None:
    for replay in replays:
        replay.close()
