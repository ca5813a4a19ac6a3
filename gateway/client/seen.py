"""Remembers which history this client has seen, and notices when a gateway shows another one.

Every request carries the newest verified checkpoint as its anchor, so every agent is a witness of its ledger. Two
things are kept apart:

* `newest`: the largest checkpoint that a pinned log key signed. The same size with another root, among the last
  SIZES_MAX sizes or in the file that other processes of this profile write, is a SplitView at once: two signed notes
  that contradict each other. A smaller one is no contradiction, for a retry gets the answer as it was first given.
* `proven`: the largest checkpoint that is known to contain all earlier ones, down to the pinned entry 0 (history.py
  builds the proof from public hash tiles, at the start and end of a session and about once a minute of heartbeats).

Only what is proven is written to the file: if a gateway forks in the middle of a session that ends before the next
proof, the following session still starts from the history before the fork. The file is replaced atomically and never
with a smaller size.
"""

from __future__ import annotations

import fcntl
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.client.errors import ProfileError, SplitView
from keys.files import replace_file
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.keyring import KeyLine, Keyring, covers
from verifier.note import Note, encode_note, is_signed_once
from verifier.wire import TEXT_BYTES_MAX, Malformed, encode_base64

SIZES_MAX = 512


class Seen:
    """The checkpoints of one ledger; `path` None keeps them in memory only."""

    def __init__(self, path: Path | None, keyring: Keyring, origin: str, genesis: bytes) -> None:
        self._path = path
        self.keyring = keyring
        self._origin = origin
        self._by_size: OrderedDict[int, Checkpoint] = OrderedDict()
        # A newcomer pins entry 0: its hash is the root of the tree of size 1. Nobody has to sign that.
        self.newest = Checkpoint(origin, 1, genesis, Note("", ()))
        self.proven = self.newest
        file = self._open_file()
        if file is not None:
            self.remember(file)
            self.proven = file

    @property
    def anchor(self) -> str:
        """The value of the header `tallystick-anchor`."""
        return f"{self._origin} {self.newest.size} {encode_base64(self.newest.root)}"

    def remember(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint that has been verified; SplitView when it contradicts one that was kept before."""
        _check_agree(self._by_size.setdefault(checkpoint.size, checkpoint), checkpoint)
        if checkpoint.size > self.newest.size:
            self.newest = checkpoint
        while len(self._by_size) > SIZES_MAX:
            self._by_size.popitem(last=False)

    def prove(self, checkpoint: Checkpoint) -> None:
        """Take note that `checkpoint` extends what was proven before, and write it down."""
        self.remember(checkpoint)
        if checkpoint.size > self.proven.size:
            self.proven = checkpoint
            self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        with _locked(self._path):
            file = self._open_file()
            if file is not None:
                self.remember(file)  # another process of this profile has a voice in what happened
            if file is None or file.size < self.proven.size:
                replace_file(self._path, encode_note(self.proven.note))

    def _open_file(self) -> Checkpoint | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            return open_memory(read_bounded(self._path), self.keyring, self._origin)
        except (Malformed, OSError) as error:
            raise ProfileError(
                f"{self._path} can't be used: {error}. It is this agent's memory of the ledger: restore it from a "
                f"back-up, or move it away to start again from entry 0."
            ) from error


def open_checkpoint(note: bytes, keyring: Keyring, origin: str) -> Checkpoint:
    """Return the checkpoint in `note` if a pinned log key of `origin`, not compromised, signed it; else Malformed."""
    return _opened(note, [line for line in keyring.log_keys(origin) if line.status != "compromised"], origin)


def open_memory(note: bytes, keyring: Keyring, origin: str) -> Checkpoint:
    """Return the checkpoint in `note`, as `open_checkpoint` does, also if its key was disowned after it was kept.

    What was proven once stays what the newest history must contain; whose key it was no longer matters for that.
    """
    return _opened(note, keyring.log_keys(origin), origin)


def _opened(note: bytes, lines: Sequence[KeyLine], origin: str) -> Checkpoint:
    checkpoint = parse_checkpoint(note)
    fitting = [line.key for line in lines if covers(line, checkpoint.size)]
    if checkpoint.origin != origin or not any(is_signed_once(checkpoint.note, key) for key in fitting):
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
