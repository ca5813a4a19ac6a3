"""`tallystick run`: a command that runs only while a lease is held.

House rules of this file:

* The command gets a process group of its own. What stops, stops the whole group: a shell's children write too. What
  leaves the group (`setsid`, a daemon) is out of reach: nothing here ends it.
* When trust in the lease ends, the group is told (SIGTERM) and, after a grace that ends before the lease can be granted
  to anybody else, killed. Nothing of the group survives into the next holder's time.
* Signals sent to this process go to the group, and the command's status is returned: a script can't tell `tallystick
  run` from the command, except by the codes of exits.py.
* Killed with −9, this process can't stop the command any more; the fencing token is for that case. It tells another
  key's work apart, not a later run with the same key, which takes up the same lease and token.

Source: docs/protocol.md 20.4; scenarios L17, L33, L41.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.client.admitting import MODE_DEFAULT
from gateway.client.agent import Agent
from gateway.client.clock import Clock
from gateway.client.exits import LOST, NOT_EXECUTABLE, NOT_FOUND, SIGNAL_BASE
from gateway.client.lease import HeldLease
from gateway.client.terminal import say_waiting
from gateway.client.trust import Grant, margin_ms
from keys.files import replace_file

GRACE_MS_MAX = 10_000
FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class Job:
    """What to run under which lease. `receipt_path` None: a temporary file that is gone afterwards."""

    resources: tuple[str, ...]
    command: tuple[str, ...]
    ttl_ms: int
    wait_ms: int
    receipt_path: Path | None = None
    mode: str = MODE_DEFAULT


def grace_ms(ttl_ms: int) -> int:
    """Return how long a told command may take: half the margin, so that it is gone before the lease is."""
    return min(GRACE_MS_MAX, margin_ms(ttl_ms) // 2)


async def run(agent: Agent, job: Job) -> int:
    """Hold the lease, run the command, return its status (128 + signal when one ended it).

    Raises what entering a HeldLease raises when the lease can't be had, and LeaseLost when it was lost meanwhile, after
    the command has been stopped. An interrupted wait for the lease returns 128 + signal; nothing is left running or
    held.
    """
    signals = _Signals()
    with _receipt_file(job.receipt_path) as path, signals.handled():
        try:
            lease = agent.lease(
                job.resources,
                mode=job.mode,
                ttl_ms=job.ttl_ms,
                wait_ms=job.wait_ms,
                on_lost=lambda reason: _say_lost(reason, signals),
                on_grant=lambda grant: _keep_receipt(path, grant),
                on_wait=lambda what: say_waiting("run", what, job.wait_ms),
            )
            async with lease:
                return await _supervise(job, lease, path, signals, agent.clock)
        except asyncio.CancelledError:
            if signals.received is None:
                raise
            _uncancel()
            return SIGNAL_BASE + signals.received


def environment(lease: HeldLease, receipt_path: Path) -> dict[str, str]:
    """Return what the command finds in its environment beside everything of ours."""
    return {
        "TALLYSTICK_FENCING_TOKEN": str(lease.fencing_token),
        "TALLYSTICK_LEASE_ID": lease.lease_id,
        # Names hold no space (docs/protocol.md 3), so a space separates several.
        "TALLYSTICK_RESOURCE": " ".join(lease.resources),
        "TALLYSTICK_RECEIPT": str(receipt_path),
    }


async def _supervise(job: Job, lease: HeldLease, receipt_path: Path, signals: _Signals, clock: Clock) -> int:
    try:
        process = await _spawn(job.command, {**os.environ, **environment(lease, receipt_path)})
    except OSError as error:
        print(f"tallystick run: {job.command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    signals.group = process.pid
    try:
        with _foreground(process.pid):
            return await _until_ended(process, lease, grace_ms(job.ttl_ms), clock)
    finally:
        signals.group = None
        _kill(process.pid, signal.SIGKILL)  # whatever is left of the group must not outlive the lease


async def _spawn(command: Sequence[str], variables: Mapping[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*command, env=variables, process_group=0)


async def _until_ended(process: asyncio.subprocess.Process, lease: HeldLease, grace: int, clock: Clock) -> int:
    async with asyncio.TaskGroup() as group:
        stopper = group.create_task(_stop_when_lost(process.pid, lease, grace, clock))
        returned = await process.wait()
        stopper.cancel()
    if lease.lost.is_set():
        return LOST  # leaving the lease raises LeaseLost, which says why
    return returned if returned >= 0 else SIGNAL_BASE - returned


async def _stop_when_lost(group: int, lease: HeldLease, grace: int, clock: Clock) -> None:
    await lease.lost.wait()
    _kill(group, signal.SIGTERM)
    _kill(group, signal.SIGCONT)  # a stopped process gets the other signal only when it goes on
    await clock.sleep(grace)
    _kill(group, signal.SIGKILL)


def _say_lost(reason: str, signals: _Signals) -> None:
    """Tell it while the command runs; after that the end tells it."""
    if signals.group is not None:
        print(f"tallystick run: the lease is lost ({reason}); stopping the command", file=sys.stderr, flush=True)


def _kill(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class _Signals:
    """Sends what this process receives to the command's group; without a group it ends our own wait."""

    def __init__(self) -> None:
        self.group: int | None = None
        self.received: int | None = None

    @contextmanager
    def handled(self) -> Iterator[None]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "runs inside a task"
        for number in FORWARDED:
            loop.add_signal_handler(number, self._receive, number, task)
        try:
            yield
        finally:
            for number in FORWARDED:
                loop.remove_signal_handler(number)

    def _receive(self, number: int, task: asyncio.Task[object]) -> None:
        if self.group is not None:
            _kill(self.group, number)
            return
        self.received = number
        task.cancel()


def _uncancel() -> None:
    """The cancellation was ours and has done its work."""
    task = asyncio.current_task()
    assert task is not None, "runs inside a task"
    task.uncancel()


def _keep_receipt(path: Path, grant: Grant) -> None:
    """Let the command always find the newest receipt; a full disk must not cost the lease."""
    try:
        replace_file(path, grant.receipt.data)
    except OSError as error:
        print(f"tallystick run: the receipt can't be written to {path}: {error.strerror}", file=sys.stderr)


@contextmanager
def _receipt_file(path: Path | None) -> Iterator[Path]:
    if path is not None:
        yield path
        return
    with TemporaryDirectory(prefix="tallystick-") as folder:
        yield Path(folder) / "receipt.json"


@contextmanager
def _foreground(group: int) -> Iterator[None]:
    """Give the terminal to the command, as a shell would: it may read keys, and Ctrl-C is its own.

    Ctrl-Z stops the command alone; heartbeats go on, and `kill -CONT` lets it go on too.
    """
    if not sys.stdin.isatty():
        yield
        return
    terminal, ours = sys.stdin.fileno(), os.getpgrp()
    was = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # after the spawn: the command keeps the default
    try:
        with suppress(OSError):  # already ended, or this terminal is not ours to give
            os.tcsetpgrp(terminal, group)
            _kill(group, signal.SIGCONT)  # it may have asked for a key before it had the terminal
        yield
    finally:
        with suppress(OSError):
            os.tcsetpgrp(terminal, ours)
        signal.signal(signal.SIGTTOU, was)
