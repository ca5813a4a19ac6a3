"""What a session of a coding agent holds, kept between the calls of its hook in the profile's folder.

    HOME/hook/<digest of the session's id>.json    what it holds, and until when that may be relied on
    HOME/hook/<digest of the session's id>.lock    held by the one call of this session that speaks to the gateway
    HOME/hook/secret                               what keys the digests of admitted calls
    HOME/hook/folder.lock                          held for a moment, to look at the others and to write

House rules of this file:

* Trust in a lease ends at the instant at which the first attempt of its newest renewal was sent, plus the ttl, less the
  margin, on this machine's steady clock, which all its processes share until it starts anew. A file from before that,
  or one that can't be read, gives no trust: what it says is asked for again before anything is done.
* To the ledger the sessions of one profile are one actor, and none of them is refused what another has. So a session
  claims what it asks for in its file, before it asks, and is refused here what overlaps another session's claim.
* A claim lasts as long as the lease may, which is longer than it may be relied on. It ends with the session's end, or
  by itself.
* Nothing of this stands in a repository, whose worktrees and clones share what git keeps for them.

Source: docs/protocol.md 20 (trust of a client); docs/guards.md; scenarios 3, 20, 28.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

FOLDER = "hook"
VERSION = 1
SECRET_BYTES = 32
STATE_BYTES_MAX = 4_194_304
SECONDS_KEPT = 7 * 86_400  # no session waits for a lock, or comes back to what it lost, after so long
_STEADY_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MODES = ("read", "append", "write", "delete")  # each weaker than the next, as in verifier.entries


@dataclass(frozen=True, slots=True)
class Need:
    """A resource and the mode in which a call wants to touch it."""

    name: str
    mode: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A lease: instants of the steady clock, but for `until_ms`, the stated end in the ledger's time.

    `ends_ms` lies after the lease's end at the ledger. What is not `is_own` was taken by somebody else with this key,
    who gives it back.
    """

    lease_id: str
    names: tuple[str, ...]
    mode: str
    token: int
    due_ms: int
    trust_ends_ms: int
    ends_ms: int
    until_ms: int
    is_own: bool = True

    def covers(self, need: Need) -> bool:
        """Say whether it is on the need's name, or all around it, in a mode that serves."""
        return MODES.index(self.mode) >= MODES.index(need.mode) and not set(self.names).isdisjoint(around(need.name))

    def is_due(self, now_ms: int, missing: Iterable[Need]) -> bool:
        """Say whether its renewal is to be asked for: its time has come; or it is over and missing, and the answer says
        how it ended."""
        return now_ms >= self.due_ms if now_ms < self.ends_ms else any(map(self.covers, missing))


@dataclass(slots=True)
class State:
    """All of one session. `leases` that are over stay until somebody who needs one is told. `claims`: what it is about
    to ask for, until when that counts."""

    leases: list[Kept] = field(default_factory=list)
    claims: tuple[str, ...] = ()
    claims_end_ms: int = 0
    places: dict[str, tuple[str, str, bool, str]] = field(default_factory=dict)

    def live_names(self, now_ms: int) -> Iterator[str]:
        """Yield the names that another session must leave alone."""
        if now_ms < self.claims_end_ms:
            yield from self.claims
        for lease in self.leases:
            if now_ms < lease.ends_ms:
                yield from lease.names

    def settle(self, names: Sequence[str]) -> None:
        """It is known what became of these claims: leases say it from now on."""
        self.claims = tuple(name for name in self.claims if name not in names)

    def is_quiet(self, now_ms: int) -> bool:
        """Say whether no lease wants its renewal yet."""
        return not any(lease.is_due(now_ms, ()) for lease in self.leases)

    def lasts(self, now_ms: int, until_ms: int) -> bool:
        """Say whether what may be relied on now may be until then."""
        return not any(now_ms < lease.trust_ends_ms < until_ms for lease in self.leases)

    def uncovered(self, needs: Iterable[Need], now_ms: int) -> list[Need]:
        """Return the needs that no lease covers that may be relied on."""
        trusted = [lease for lease in self.leases if now_ms < lease.trust_ends_ms]
        return [need for need in needs if not any(lease.covers(need) for lease in trusted)]


def around(name: str) -> Iterator[str]:
    """Yield a name and the names of all trees that contain it, up to its whole scheme."""
    yield name
    path = name.removesuffix("/**")
    yield f"{path}/**"
    while "/" in path:
        path = path.rpartition("/")[0]
        yield f"{path}/**"
    yield f"{name.partition(':')[0]}:**"


def steady_ms() -> int:
    """Return milliseconds as gateway.client.clock counts them, without loading the client."""
    return time.clock_gettime_ns(_STEADY_CLOCK) // 1_000_000


def boot_id() -> str:
    """Return what tells this run of the machine from others; "" where nothing does, and then nothing is trusted."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


class Shelf:
    """The files of one session in one profile's folder."""

    def __init__(self, home: Path, session: str) -> None:
        self.home = home
        self.folder = home / FOLDER
        self.name = sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self.path = self.folder / f"{self.name}.json"

    def load(self) -> State:
        """Return what is known of the session; nothing when the file is missing, broken or from another boot."""
        return _load(self.path) or State()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the session's lock: two calls at once ask one after the other."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / f"{self.name}.lock"
        with _locked(path):
            os.utime(path)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder's lock, for a moment."""
        with _locked(self.folder / "folder.lock"):
            yield

    def save(self, state: State) -> None:
        """Write the session's file, as a whole or not at all."""
        with self.alone():
            self._write(state)

    def claim(self, state: State, names: Sequence[str], end_ms: int) -> str | None:
        """Claim names for this session, or return one that overlaps what another session of this profile has."""
        now_ms = steady_ms()
        with self.alone():
            met = _first_overlap(names, self._others(now_ms), now_ms)
            if met is None:
                older = state.claims if now_ms < state.claims_end_ms else ()
                state.claims = tuple(dict.fromkeys([*older, *names]))
                state.claims_end_ms = max(end_ms, state.claims_end_ms)
                self._write(state)
            return met

    def forget(self) -> None:
        """Remove the session's file. Its lock stays, for somebody may be waiting for it; what is old is swept."""
        with self.alone():
            self.path.unlink(missing_ok=True)
            for path in (*self.folder.glob("*.lock"), *self.folder.glob("*.new")):
                with suppress(OSError):
                    if _is_old(path) and path.name != "folder.lock":
                        path.unlink()

    def secret(self) -> bytes:
        """Return what keys the digests of this profile's calls, so that no guess can be compared with one."""
        path = self.folder / "secret"
        with self.alone():
            if not path.exists():
                temporary = self.folder / "secret.new"
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(os.urandom(SECRET_BYTES))
                os.replace(temporary, path)
            return path.read_bytes()

    def _write(self, state: State) -> None:
        temporary = self.folder / f"{self.name}.{os.getpid()}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_encode(state))
        os.replace(temporary, self.path)

    def _others(self, now_ms: int) -> Iterator[State]:
        """Yield the other sessions that have something, and sweep what is over."""
        for path in sorted(self.folder.glob("*.json")):
            if path == self.path:
                continue
            state = _load(path)
            if state is not None and any(True for _ in state.live_names(now_ms)):
                yield state
            elif state is None or not state.leases or _is_old(path):
                path.unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    return path.stat().st_mtime < time.time() - SECONDS_KEPT


def _first_overlap(names: Sequence[str], others: Iterable[State], now_ms: int) -> str | None:
    from verifier.entries import key_of, overlaps  # the table is large, and most calls don't get here

    keys = [key_of(name, True) for name in names]
    for state in others:
        for name in state.live_names(now_ms):
            if any(overlaps(key_of(name, True), key) for key in keys):
                return name
    return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _encode(state: State) -> bytes:
    value = {
        "version": VERSION, "boot": boot_id(), "places": state.places,
        "claims": state.claims, "claimsEndMs": state.claims_end_ms,
        "leases": [
            [
                lease.lease_id, lease.names, lease.mode, lease.token, lease.due_ms, lease.trust_ends_ms, lease.ends_ms,
                lease.until_ms, lease.is_own,
            ]
            for lease in state.leases
        ],
    }  # fmt: skip
    return json.dumps(value).encode()


def _load(path: Path) -> State | None:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(STATE_BYTES_MAX))
        if value["version"] != VERSION or not boot_id() or value["boot"] != boot_id():
            return None
        return _state(value)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def _state(value: Any) -> State:
    places = {str(top): (str(row[0]), str(row[1]), bool(row[2]), str(row[3])) for top, row in value["places"].items()}
    leases = [_lease(row) for row in value["leases"]]
    return State(leases, tuple(map(str, value["claims"])), int(value["claimsEndMs"]), places)


def _lease(row: Any) -> Kept:
    lease_id, names, mode, token, due_ms, trust_ends_ms, ends_ms, until_ms, is_own = row
    if mode not in MODES:
        raise ValueError("no mode")
    return Kept(
        str(lease_id), tuple(map(str, names)), str(mode), int(token), int(due_ms), int(trust_ends_ms), int(ends_ms),
        int(until_ms), bool(is_own),
    )  # fmt: skip
