"""The rules of a witness: one request in, one answer out, and never two histories of one log.

Pure but for the shelf it keeps its notes on. The order of the checks is that of C2SP tlog-witness; what a request costs
before its signature is known to be genuine is one parse and one look into a table.
Source: docs/protocol.md 32.21 to 32.28; C2SP tlog-witness, tlog-cosignature.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from gateway.witness.books import Books, Log
from gateway.witness.shelf import Kept, Lost, Shelf
from gateway.witness.submission import Submission, lines_of, parse_submission
from keys.signing import SigningKey
from verifier.checkpoint import Checkpoint
from verifier.merkle import EMPTY_ROOT, is_consistent
from verifier.note import (
    Note,
    SignatureLine,
    VerifierKey,
    cosignature_message,
    encode_note,
    signature_line,
)
from verifier.wire import Malformed

TEXT = "text/plain; charset=utf-8"
SIZE = "text/x.tlog.size"
RETRY_SECONDS = 2
CLOCK_BACK_SECONDS_MAX = 60  # what a step of a clock's daemon may take back; the newest time is used again meanwhile
_log = logging.getLogger("tallystick.witness")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client gets; `code` is for the log, `retry_after_s` for its header."""

    status: int
    text: str
    code: str
    kind: str = TEXT
    retry_after_s: int | None = None


REFUSED = Answer(403, "this witness found a lie in this ledger and signs it no more\n", "refused")


class Refused(Exception):
    """The request ends here with `answer`."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.code)
        self.answer = answer


class Replaying(Protocol):
    """The audit of ledgers that are replayed."""

    def keys(self, log: Log, checkpoint: Checkpoint) -> tuple[VerifierKey, ...]:
        """Return the log keys that may sign this checkpoint."""

    def check(self, log: Log, note: bytes) -> Answer | None:
        """Return None once everything below the checkpoint was audited and found clean, else the answer to give."""


class Witness:
    """One cosigner. `add` may run in many threads; requests of one origin pass one after the other."""

    def __init__(
        self,
        key: SigningKey,
        vkey: VerifierKey,
        *,
        books: Books,
        shelf: Shelf,
        clock_s: Callable[[], int],
        replays: Replaying | None = None,
    ) -> None:
        self._key = key
        self._vkey = vkey
        self._books = books
        self._shelf = shelf
        self._clock_s = clock_s
        self._replays = replays
        self._gates: dict[str, Lock] = {}

    def add(self, body: bytes) -> Answer:
        """Answer one add-checkpoint request. What status 200 carries is on the disk by then."""
        try:
            submission = _parsed(body)
            log, lines = self._admitted(submission)
            if log.root is not None:
                self._check_replayed(log, submission)
            with self._gate(log.origin):
                return self._cosign(log, submission, lines, body)
        except Refused as refused:
            return refused.answer
        except Lost:
            return Answer(503, "the witness's disk failed; nothing was cosigned\n", "state_lost", retry_after_s=60)

    def newest(self, digest: str) -> bytes | None:
        """Return the newest cosigned note of the origin with this hash."""
        kept = self._shelf.by_hash(digest)
        return None if kept is None else kept.note

    def _admitted(self, submission: Submission) -> tuple[Log, tuple[SignatureLine, ...]]:
        """Return what is pinned for the checkpoint's origin, and the valid lines of its keys."""
        origin = submission.checkpoint.origin
        log = self._books.get(origin)
        if log is None:
            raise Refused(Answer(404, "this witness does not know the origin\n", "origin_unknown"))
        if self._shelf.is_refused(origin):
            raise Refused(REFUSED)
        keys = log.keys
        if log.root is not None:
            assert self._replays is not None, "who serves a replay line has an auditor"
            keys = self._replays.keys(log, submission.checkpoint)
        lines = lines_of(submission.checkpoint, keys)
        if not lines:
            text = "no valid signature of a key that this witness trusts for the origin\n"
            raise Refused(Answer(403, text, "signature_invalid" if lines is None else "signature_missing"))
        if submission.old_size > submission.checkpoint.size:
            raise Refused(Answer(400, "old is larger than the checkpoint's size\n", "old_too_large"))
        return log, lines

    def _check_replayed(self, log: Log, submission: Submission) -> None:
        """Have a growing ledger audited first; a request that the kept size refuses anyhow costs no audit.

        With all its lines: the entries may have put a key in force that the key document does not show yet.
        """
        assert self._replays is not None
        kept = self._shelf.get(log.origin)
        size = kept.size if kept else 0
        if submission.old_size != size or submission.checkpoint.size <= size:
            return
        answer = self._replays.check(log, encode_note(submission.checkpoint.note))
        if answer is not None:
            raise Refused(answer)

    def _cosign(self, log: Log, submission: Submission, lines: tuple[SignatureLine, ...], body: bytes) -> Answer:
        """Compare with what is kept, sign, keep, answer; no other request of this origin runs meanwhile."""
        kept = self._shelf.get(log.origin)
        self._check_history(submission, kept, lines, body)
        if log.root is not None and self._shelf.is_refused(log.origin):
            raise Refused(REFUSED)
        time_s = self._time_s(kept)
        text = submission.checkpoint.note.text
        signature = time_s.to_bytes(8, "big") + self._key.sign(cosignature_message(time_s, text))
        line = signature_line(self._vkey, signature)
        self._shelf.keep(log.origin, encode_note(Note(text, (*lines, line))))
        return Answer(200, encode_note(Note("", (line,))).decode()[1:], "cosigned")

    def _check_history(
        self, submission: Submission, kept: Kept | None, lines: tuple[SignatureLine, ...], body: bytes
    ) -> None:
        """Refuse whatever does not extend the tree that was cosigned last, and keep what may prove a lie."""
        checkpoint = submission.checkpoint
        size, root = (kept.size, kept.checkpoint.root) if kept else (0, EMPTY_ROOT)
        if checkpoint.size == size > 0 and kept and checkpoint.root != root:
            proof = self._shelf.keep_proof(checkpoint.origin, kept.note, encode_note(Note(checkpoint.note.text, lines)))
            _log.critical("two_roots of %s at size %d", checkpoint.origin, size, extra=_evidence(proof))
        if submission.old_size != size:
            raise Refused(Answer(409, f"{size}\n", "old_differs", SIZE))
        if not is_consistent(size, root, checkpoint.size, checkpoint.root, submission.path):
            claim = self._shelf.keep_claim(checkpoint.origin, body)
            _log.error("inconsistent checkpoint of %s", checkpoint.origin, extra=_evidence(claim))
            raise Refused(Answer(422, f"no proof that this tree extends the one of size {size}\n", "inconsistent"))

    def _time_s(self, kept: Kept | None) -> int:
        """Return a time that is not before the newest one of this origin: sizes and times must rise together."""
        now_s = self._clock_s()
        newest_s = kept.time_s if kept else 0
        if now_s < newest_s - CLOCK_BACK_SECONDS_MAX:
            _log.critical("clock_back by %d seconds; set the machine's clock", newest_s - now_s)
            raise Refused(Answer(503, "this witness's clock is wrong\n", "clock_back", retry_after_s=60))
        return max(now_s, newest_s)

    def _gate(self, origin: str) -> Lock:
        return self._gates.setdefault(origin, Lock())


def _parsed(body: bytes) -> Submission:
    try:
        return parse_submission(body)
    except Malformed as error:
        raise Refused(Answer(400, f"{error}\n", "malformed")) from error


def _evidence(path: object) -> dict[str, object]:
    return {"fields": {"evidence": None if path is None else str(path)}}
