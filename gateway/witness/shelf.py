"""What a witness remembers: for each origin one file with the newest note it cosigned, and a folder of evidence.

House rules of this file:

* The note is on the disk before anybody sees its cosignature. A write of unknown outcome ends the memory: nothing is
  cosigned any more until a start has read what the disk says (`Lost`).
* One process per folder; a second one would have a memory of its own.
* A note that this witness's own key did not sign is never believed: somebody copied or edited it.
* Evidence is bounded. What proves a lie by itself has its own room, so that nobody can crowd it out with requests that
  prove nothing.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from keys.files import replace_file
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.note import VerifierKey, cosignature_time_s, encode_note, is_signed_once, line_matches
from verifier.wire import Malformed

STATE_FOLDER, EVIDENCE_FOLDER, REFUSED_FOLDER = "state", "evidence", "refused"
PROOFS_MAX = 64  # files that prove two histories, per origin; one is enough, more tell how it went on
CLAIMS_MAX = 64  # requests that only failed, per origin; anybody can send those with a genuine checkpoint
_log = logging.getLogger("tallystick.witness")


class ShelfError(Exception):
    """The folder can't be used; the text says why and what to do."""


class Lost(Exception):
    """A write failed, so the disk may hold the new note or the old one. Only a new start can tell."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The newest note that was cosigned for an origin; `time_s` is our newest cosignature's."""

    checkpoint: Checkpoint
    time_s: int

    @property
    def size(self) -> int:
        return self.checkpoint.size

    @property
    def note(self) -> bytes:
        return encode_note(self.checkpoint.note)


def origin_hash(origin: str) -> str:
    """Return the 64 hex digits under which an origin is monitored and kept."""
    return sha256(origin.encode()).hexdigest()


class Shelf:
    """The memory of one witness. Safe in many threads as long as each origin is written by one at a time."""

    def __init__(self, folder: Path, key: VerifierKey) -> None:
        self._folder = folder
        self._key = key
        self._is_lost = False
        self._lock = open_lock(folder)
        self._kept: dict[str, Kept] = {}
        try:
            for name in (STATE_FOLDER, EVIDENCE_FOLDER, REFUSED_FOLDER):
                (folder / name).mkdir(mode=0o700, exist_ok=True)
            self._kept = read_state(folder, key)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the folder back."""
        os.close(self._lock)

    @property
    def is_lost(self) -> bool:
        """Whether a write failed, so that nothing is known any more."""
        return self._is_lost

    def get(self, origin: str) -> Kept | None:
        """Return what is kept for `origin`."""
        return self._kept.get(origin_hash(origin))

    def by_hash(self, digest: str) -> Kept | None:
        """Return what is kept under an origin's hash."""
        return self._kept.get(digest)

    def keep(self, origin: str, note: bytes) -> None:
        """Remember `note`, durably on return; Lost when that failed, and from then on."""
        if self._is_lost:
            raise Lost
        kept = _opened(note, self._key)
        digest = origin_hash(origin)
        try:
            replace_file(self._folder / STATE_FOLDER / f"{digest}.note", note)
        except OSError as error:
            self._is_lost = True
            _log.critical("state_lost: %s; start the witness again when the disk is well", error)
            raise Lost from error
        self._kept[digest] = kept

    # -- evidence ------------------------------------------------------------------------------------------------------

    def keep_proof(self, origin: str, first: bytes, second: bytes) -> Path | None:
        """Keep two checkpoints of one log that exclude each other; anybody can judge the file with the verifier."""
        document = {
            "type": "tallystick/evidence/1",
            "code": "two_roots",
            "origin": origin,
            "a": first.decode(),
            "b": second.decode(),
        }
        content = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        return self._keep_evidence(origin, "proof", sha256(second).hexdigest(), content, PROOFS_MAX)

    def keep_claim(self, origin: str, body: bytes) -> Path | None:
        """Keep a request of a genuine checkpoint whose consistency proof failed: perhaps evidence, perhaps nothing."""
        return self._keep_evidence(origin, "claim", sha256(body).hexdigest(), body, CLAIMS_MAX)

    def evidence(self, origin: str) -> list[Path]:
        """Return the kept files of `origin`, proofs last."""
        return sorted((self._folder / EVIDENCE_FOLDER / origin_hash(origin)).glob("*"))

    def refuse(self, origin: str, report: str) -> None:
        """Refuse `origin` from now on, for the reason in `report`."""
        replace_file(self._folder / REFUSED_FOLDER / f"{origin_hash(origin)}.json", report.encode())

    def is_refused(self, origin: str) -> bool:
        """Say whether a lie of `origin` was found; only a person can take that back, by moving the file away."""
        return os.path.lexists(self._folder / REFUSED_FOLDER / f"{origin_hash(origin)}.json")

    def _keep_evidence(self, origin: str, kind: str, digest: str, content: bytes, files_max: int) -> Path | None:
        folder = self._folder / EVIDENCE_FOLDER / origin_hash(origin)
        path = folder / f"{kind}-{digest[:32]}.{'json' if kind == 'proof' else 'txt'}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if path.exists() or len(list(folder.glob(f"{kind}-*"))) >= files_max:
                return None
            replace_file(path, content)
        except OSError as error:  # what is lost here is a copy for people, never what is cosigned next
            _log.error("evidence_not_kept: %s", error)
            return None
        return path


def open_lock(folder: Path) -> int:
    """Return a descriptor that holds `folder` for this process until it is closed; the kernel frees it at any end."""
    if not folder.is_dir():
        raise ShelfError(f"there is no folder {folder}; make a witness with: tallystick witness init --data {folder}")
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ShelfError(f"another process serves {folder}; two memories could sign two histories") from error
    return descriptor


def read_state(folder: Path, key: VerifierKey) -> dict[str, Kept]:
    """Return every kept note by its origin's hash; ShelfError for one that is not this witness's own."""
    kept: dict[str, Kept] = {}
    for path in sorted((folder / STATE_FOLDER).glob("*.note")):
        try:
            found = _opened(path.read_bytes(), key)
        except (Malformed, OSError) as error:
            raise ShelfError(
                f"{path} is not a note that this witness cosigned: {error}. What it had cosigned is unknown, and to go "
                f"on could mean two histories. Make a new witness with a new name; tell the logs to trust that one."
            ) from error
        if path.stem != origin_hash(found.checkpoint.origin):
            raise ShelfError(f"{path} holds the note of another origin; undo what was copied or renamed here")
        kept[path.stem] = found
    return kept


def _opened(note: bytes, key: VerifierKey) -> Kept:
    checkpoint = parse_checkpoint(note)
    if not is_signed_once(checkpoint.note, key):
        raise Malformed("it carries no valid cosignature of this witness's key")
    line = next(line for line in checkpoint.note.lines if line_matches(line, key))
    return Kept(checkpoint, cosignature_time_s(line))
