"""One key, one machine, one holder: what keeps two processes of a profile out of each other's lease.

To the ledger a key is one actor, and an actor that asks again for what it holds gets its lease extended. Two cron jobs
with one profile would so run at once under one lease, and the first to end would give it back under the other. The
ledger can't tell them apart; this machine can. So whoever holds a lease also holds, for each resource, a lock that
belongs to the process:

* In a profile folder it is an advisory `flock` on a file of `held/`, named by the hash of ledger and resource. The
  system frees it when its process ends, however it ends: after kill −9 the next one holds the same lease again.
* The file is removed while it is still locked, so the folder holds what is held and what crashes left. Whoever opened
  it before must look whether it is still the one at that path.
* A profile in memory (`home` None) knows the holders of its own process only.
* All locks of a set or none, never waiting for one while another is held: two sets can't block each other for ever.

One resource is one name here, as long as sub-trees are not granted.
Source: docs/protocol.md 20.5; scenario 20.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from gateway.client.clock import Clock
from gateway.client.errors import HeldHere, ProfileError
from gateway.client.profile import Profile
from gateway.client.waiting import Jitter, pause_before_look_ms

HELD = "held"  # the folder of the lock files
PID_BYTES_MAX = 20

# DID, origin and resource of what profiles in memory hold.
_in_memory: set[tuple[str, str, str]] = set()


async def claim_until(
    profile: Profile, names: Iterable[str], deadline_ms: int, *, clock: Clock, jitter: Jitter
) -> ExitStack:
    """Return the locks of all `names`; HeldHere when they can't be had by `deadline_ms` on the steady clock.

    Tries at once and a last time at the deadline, with spread pauses between. Closing the stack frees the locks.
    """
    asked = tuple(names)
    while True:
        try:
            return claim(profile, asked)
        except HeldHere:
            left_ms = deadline_ms - clock.steady_ms()
            if left_ms <= 0:
                raise
        await clock.sleep(min(pause_before_look_ms(jitter), left_ms))


def claim(profile: Profile, names: Iterable[str]) -> ExitStack:
    """Return the locks of all `names`, or raise HeldHere and hold none. ProfileError when there can be no locks."""
    with ExitStack() as locks:
        for name in sorted(set(names)):
            locks.enter_context(_lock_of(profile, name))
        return locks.pop_all()


def _lock_of(profile: Profile, name: str) -> _FileLock | _MemoryLock:
    if profile.home is None:
        return _MemoryLock((profile.key.did, profile.address.origin, name))
    return _FileLock(lock_path(profile.home, profile.address.origin, name), name)


def lock_path(home: Path, origin: str, name: str) -> Path:
    """Return where the lock of one resource is: a name may be longer than a file's, and holds slashes."""
    return home / HELD / f"{sha256(f'{origin} {name}'.encode(errors='surrogatepass')).hexdigest()}.lock"


class _MemoryLock:
    """A row in the set of what this process holds."""

    def __init__(self, row: tuple[str, str, str]) -> None:
        self._row = row

    def __enter__(self) -> None:
        if self._row in _in_memory:
            raise HeldHere(self._row[2], os.getpid())
        _in_memory.add(self._row)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _in_memory.discard(self._row)


class _FileLock:
    """An flock on the file at `path`, which says whose it is.

    No generator: a forked child that ends would close its copy of that, and so free the lock of its parent.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._file: BinaryIO | None = None
        self._pid = os.getpid()

    def __enter__(self) -> None:
        with _usable(self._path):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            while self._file is None:
                self._file = self._try()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None, "entered"
        with self._file:
            if os.getpid() != self._pid:
                return  # a forked child that unwinds: the lock is its parent's
            with suppress(OSError):
                if _is_at(self._file, self._path):
                    self._path.unlink()
            fcntl.flock(self._file, fcntl.LOCK_UN)  # closing alone would leave it to a child that was forked meanwhile

    def _try(self) -> BinaryIO | None:
        """Return the locked file; None when its last holder has removed it meanwhile, and another may be there."""
        with ExitStack() as closing:
            file = closing.enter_context(open(self._path, "a+b", opener=_open_own))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HeldHere(self._name, _pid_in(file)) from None
            if not _is_at(file, self._path):
                return None
            file.truncate(0)
            file.write(str(os.getpid()).encode())
            file.flush()
            closing.pop_all()
            return file


def _open_own(path: str, flags: int) -> int:
    """Open a lock file, never what a link there points to."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ProfileError(
            f"{path.parent} can't hold the locks of what is held here: {error.strerror or error}"
        ) from error


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _pid_in(file: BinaryIO) -> int | None:
    """Return the process id its holder wrote; None in the moment before it does."""
    file.seek(0)
    text = file.read(PID_BYTES_MAX)
    return int(text) if text.isdigit() else None
