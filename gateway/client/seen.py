"""Remembers the newest checkpoint this client verified, and notices when a gateway shows another history.

Every request carries that checkpoint as its anchor, so every agent is a witness of its ledger. What is compared:

* the same size with another root, always, against the checkpoints of the last SIZES_MAX sizes and against the file that
  other processes of this profile write: two signed notes that contradict each other are the proof (SplitView);
* growth (that a larger tree still contains the smaller one) by history.py, from the public hash tiles;
* a checkpoint smaller than the newest is no contradiction: a retry gets the answer as it was first given.

The file is replaced atomically and never with a smaller size. It is written at most once a second and at the end;
a crash in between costs a second of memory, never a torn file.
"""

from __future__ import annotations

import fcntl
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.client.errors import ProfileError, SplitView
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.keyring import Keyring, covers
from verifier.note import encode_note, is_signed_once
from verifier.wire import TEXT_BYTES_MAX, Malformed, encode_base64

SIZES_MAX = 512
SAVE_PERIOD_MS = 1_000


class Seen:
    """The checkpoints of one ledger; `path` None keeps them in memory only."""

    def __init__(self, path: Path | None, keyring: Keyring, origin: str, genesis: bytes) -> None:
        self._path = path
        self._keyring = keyring
        self._origin = origin
        self._genesis = genesis
        self._by_size: OrderedDict[int, Checkpoint] = OrderedDict()
        self._saved_ms = 0
        self.newest: Checkpoint | None = None
        self._merge_file()

    @property
    def anchor(self) -> str:
        """The value of the header `tallystick-anchor`; a newcomer pins entry 0, whose hash is the root at size 1."""
        size, root = (1, self._genesis) if self.newest is None else (self.newest.size, self.newest.root)
        return f"{self._origin} {size} {encode_base64(root)}"

    def remember(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint that has been verified; SplitView when it contradicts one that was kept before."""
        known = self._by_size.setdefault(checkpoint.size, checkpoint)
        _check_agree(known, checkpoint)
        if self.newest is None or checkpoint.size > self.newest.size:
            self.newest = checkpoint
        while len(self._by_size) > SIZES_MAX:
            self._by_size.popitem(last=False)

    def save_sometimes(self, steady_ms: int) -> None:
        """Save unless that was done within the last second."""
        if steady_ms - self._saved_ms >= SAVE_PERIOD_MS:
            self._saved_ms = steady_ms
            self.save()

    def save(self) -> None:
        """Write the newest checkpoint; keeps what another process wrote when that is newer."""
        if self._path is None or self.newest is None:
            return
        with _locked(self._path):
            self._merge_file()
            replace_file(self._path, encode_note(self.newest.note))

    def _merge_file(self) -> None:
        if self._path is None or not self._path.exists():
            return
        try:
            note = read_bounded(self._path)
            self.remember(open_checkpoint(note, self._keyring, self._origin))
        except (Malformed, OSError) as error:
            raise ProfileError(
                f"{self._path} can't be used: {error}. It is this agent's memory of the ledger: restore it from a "
                f"back-up, or move it away to start again from entry 0."
            ) from error


def open_checkpoint(note: bytes, keyring: Keyring, origin: str) -> Checkpoint:
    """Return the checkpoint in `note` if a pinned log key of `origin`, not compromised, signed it; else Malformed."""
    checkpoint = parse_checkpoint(note)
    lines = [
        line for line in keyring.log_keys(origin) if line.status != "compromised" and covers(line, checkpoint.size)
    ]
    if checkpoint.origin != origin or not any(is_signed_once(checkpoint.note, line.key) for line in lines):
        raise Malformed(f"the checkpoint carries no valid signature by a pinned log key of {origin}")
    return checkpoint


def _check_agree(ours: Checkpoint, theirs: Checkpoint) -> None:
    if ours.root != theirs.root:
        raise SplitView(
            f"the gateway signed two different histories of {ours.size} entries. Keep both checkpoints: together they "
            f"prove it to anyone.",
            encode_note(ours.note),
            encode_note(theirs.note),
        )


def read_bounded(path: Path, bytes_max: int = TEXT_BYTES_MAX) -> bytes:
    """Return the file's bytes; one that is longer than `bytes_max` raises Malformed, read no further."""
    with path.open("rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise Malformed(f"longer than {bytes_max} bytes")
    return content


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the profile's lock: two processes that replace one file must not move it back."""
    with path.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replace_file(path: Path, content: bytes) -> None:
    """Write `path` so that a reader, or a crash, meets the old content or the new one, never a part."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
