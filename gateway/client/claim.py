"""One key, one machine, one holder: what keeps two processes of a profile out of each other's lease.

To the ledger a key is one actor, and an actor that asks again for what it holds gets its lease extended. Two cron jobs
with one profile would so run at once under one lease, and the first to end would give it back under the other. The
ledger can't tell them apart; this machine can. So whoever holds a lease, or waits for one, also holds a claim on this
machine that belongs to the process:

* In a profile folder a claim is a file of `held/` with an advisory `flock` on it; the file says the process, the ledger
  and the names. The system frees it when its process ends, however it ends: after kill −9 the next one holds the same
  lease again. The file that is left is swept by the next who claims.
* Two claims exclude each other when any of their names overlap: `repo:a/**` and `repo:a/b` do. Case is always folded
  here, and the mode never asked for: one key's two readers take turns on one machine, which costs time and no safety.
* Looking at the others and adding one's own is one step, under a lock on the folder that is held for that moment only.
  So a claim is all of its names or none, and of two that come at once one wins.
* Who waits here looks again about once a second; among processes of one key there is no line.
* A profile in memory (`home` None) knows the claims of its own process only.

Source: docs/protocol.md 20.5; scenarios 3, 20, 28.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from gateway.client.clock import Clock
from gateway.client.errors import HeldHere, ProfileError
from gateway.client.profile import Profile
from gateway.client.waiting import Jitter, pause_before_look_ms
from verifier.entries import key_of, overlaps

HELD = "held"  # the folder of the claims
CLAIM_BYTES_MAX = 262_144  # 256 names of 1,024 bytes, as ASCII


@dataclass(frozen=True, slots=True)
class _Claim:
    """Who claims what: `did` names the profile in memory, where there is no folder of its own."""

    origin: str
    names: tuple[str, ...]
    pid: int | None
    did: str = ""

    def met_by(self, other: _Claim) -> str | None:
        """Return the first name of `other` that overlaps one of these, or None."""
        if (self.origin, self.did) != (other.origin, other.did):
            return None
        keys = [key_of(name, True) for name in self.names]
        return next((name for name in other.names if any(overlaps(key_of(name, True), key) for key in keys)), None)

    def encode(self) -> bytes:
        return json.dumps({"names": self.names, "origin": self.origin, "pid": self.pid}).encode()


_in_memory: list[_Claim] = []


async def claim_until(
    profile: Profile,
    names: Iterable[str],
    deadline_ms: int,
    *,
    clock: Clock,
    jitter: Jitter,
    on_wait: Callable[[str], None] | None = None,
) -> ExitStack:
    """Return a claim on all `names`; HeldHere when it can't be had by `deadline_ms` on the steady clock.

    Tries at once and a last time at the deadline, with spread pauses between. `on_wait` hears, once, for whom it waits.
    Closing the stack ends the claim.
    """
    asked = tuple(names)
    while True:
        try:
            return claim(profile, asked)
        except HeldHere as held:
            left_ms = deadline_ms - clock.steady_ms()
            if left_ms <= 0:
                raise
            if on_wait is not None:
                on_wait(f"waiting for {held.whose}, which has {held.resource} with this same key")
                on_wait = None
        await clock.sleep(min(pause_before_look_ms(jitter), left_ms))


def claim(profile: Profile, names: Iterable[str]) -> ExitStack:
    """Return a claim on all `names`, or raise HeldHere and have none. ProfileError when there can be no claims."""
    asked = tuple(sorted(set(names)))
    with ExitStack() as claimed:
        if profile.home is None:
            claimed.enter_context(_memory_claim(_Claim(profile.address.origin, asked, os.getpid(), profile.key.did)))
        else:
            claimed.enter_context(_FileClaim(profile.home / HELD, _Claim(profile.address.origin, asked, os.getpid())))
        return claimed.pop_all()


@contextmanager
def _memory_claim(ours: _Claim) -> Iterator[None]:
    _refuse_overlap(ours, _in_memory)
    _in_memory.append(ours)
    try:
        yield
    finally:
        _in_memory.remove(ours)


def _refuse_overlap(ours: _Claim, others: Iterable[_Claim]) -> None:
    for other in others:
        name = other.met_by(ours)
        if name is not None:
            raise HeldHere(name, other.pid)


class _FileClaim:
    """A locked file in the folder, which says whose it is.

    No generator: a forked child that ends would close its copy of that, and so free the lock of its parent.
    """

    def __init__(self, folder: Path, claim: _Claim) -> None:
        self._folder = folder
        self._claim = claim
        self._path = folder / f"{secrets.token_hex(8)}.lock"  # never used again, so nobody else's can be at this path
        self._file: BinaryIO | None = None
        self._pid = os.getpid()

    def __enter__(self) -> None:
        with _usable(self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with _alone_in(self._folder):
                _refuse_overlap(self._claim, _others_in(self._folder, self._claim))
                self._file = self._write()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None, "entered"
        with self._file:
            if os.getpid() != self._pid:
                return  # a forked child that unwinds: the claim is its parent's
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # closing alone would leave it to a child that was forked meanwhile

    def _write(self) -> BinaryIO:
        with ExitStack() as closing:
            file = closing.enter_context(open(self._path, "x+b", opener=_open_own))
            closing.callback(self._path.unlink, missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(self._claim.encode())
            file.flush()
            closing.pop_all()
            return file


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's own lock for a moment."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would leave it to a child that was forked meanwhile
        os.close(descriptor)


def _others_in(folder: Path, ours: _Claim) -> Iterator[_Claim]:
    """Yield the claims of those who live, and sweep what the dead have left."""
    for path in sorted(folder.glob("*.lock")):
        with suppress(FileNotFoundError), open(path, "r+b", opener=_open_own) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield _read(file, ours)
            else:
                path.unlink(missing_ok=True)


def _read(file: BinaryIO, ours: _Claim) -> _Claim:
    """Return what a locked file claims; one that can't be read claims all of ours."""
    try:
        value = json.loads(file.read(CLAIM_BYTES_MAX))
        return _Claim(str(value["origin"]), tuple(map(str, value["names"])), int(value["pid"]))
    except (ValueError, KeyError, TypeError):
        return _Claim(ours.origin, ours.names, None)


def _open_own(path: str, flags: int) -> int:
    """Open a file of the folder, never what a link there points to."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ProfileError(f"{folder} can't hold the locks of what is held here: {error.strerror or error}") from error
