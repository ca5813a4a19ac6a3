"""A folder whose processes and files end with the test run, however that ends.

Foreign servers (PostgreSQL, etcd, Patroni) refuse to run as root, or should. So a process of a yard runs as whoever we
are if that is nobody special; under root as `nobody`; and where nobody can't reach the programs (a checkout below a
closed home), as nobody in a user namespace, which needs no folder to be opened to anybody.
"""

from __future__ import annotations

import enum
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import psutil  # type: ignore[import-untyped]

WAIT_SECONDS = 60.0
# Runs beside us until its input ends, which is when we do: then nothing that was started below the folder stays.
_KEEPER = """
read -r _
for signal in QUIT KILL; do
    found=$(printf %s "$YARD" | grep -lsFf - /proc/[0-9]*/cmdline | cut -d/ -f3)
    [ -z "$found" ] || { kill -$signal $found; sleep 1; } 2>/dev/null
done
rm -rf -- "$YARD"
"""


class Account(enum.Enum):
    """As whom the processes of a yard run."""

    OURS = "ours"
    NOBODY = "nobody"
    NAMESPACE = "nobody in a user namespace"


class Who(TypedDict, total=False):
    """What `subprocess` is told about the account; empty means as we are."""

    user: int
    group: int
    extra_groups: list[int]


class YardFailed(RuntimeError):
    """A foreign process did not do what it was started for; the text holds its log."""


def account_for(program: Path) -> Account:
    """Return as whom a program can run: root's own servers refuse root."""
    if os.geteuid() != 0:
        return Account.OURS
    return Account.NOBODY if is_reachable_for_nobody(program) else Account.NAMESPACE


@functools.cache
def is_reachable_for_nobody(program: Path) -> bool:
    """Say whether `nobody` may run a program and work in the folder for temporary files."""
    asked = f'test -x "{program}" && test -x "{tempfile.gettempdir()}"'
    return subprocess.run(["/bin/sh", "-c", asked], cwd="/", check=False, **_nobody()).returncode == 0


def _nobody() -> Who:
    entry = pwd.getpwnam("nobody")
    return Who(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])


class Yard:
    """A folder below the system's temporary one, and what runs in it. `close` ends both; so does our own death."""

    def __init__(self, account: Account, environment: Mapping[str, str] | None = None) -> None:
        self.account = account
        self.path = Path(tempfile.mkdtemp(prefix="tallystick-yard-"))
        self.environment = {"PATH": os.defpath, "HOME": str(self.path), "LC_ALL": "C.UTF-8", **(environment or {})}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.own(self.path)
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={"PATH": os.defpath, "YARD": str(self.path)},
        )

    def own(self, path: Path) -> Path:
        """Give a path to the account that the processes run as."""
        if self.account is Account.NOBODY:
            entry = pwd.getpwnam("nobody")
            os.chown(path, entry.pw_uid, entry.pw_gid)
        return path

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        """Write a file that the processes can read."""
        path = self.path / name
        path.touch(mode=mode)
        path.write_text(text, "utf-8")
        return self.own(path)

    def log(self, name: str) -> Path:
        return self.path / f"{name}.log"

    def run(self, *command: str | Path, **environment: str) -> str:
        """Run a program to its end and return what it printed; one that fails raises with that."""
        result = subprocess.run(
            self._command(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=self.path, env=self.environment | environment, check=False, timeout=WAIT_SECONDS, **self._who(),
        )  # fmt: skip
        text = result.stdout.decode(errors="replace")
        if result.returncode:
            raise YardFailed(f"{Path(command[0]).name} ended with {result.returncode}:\n{text}")
        return text

    def spawn(self, name: str, *command: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a program in the background; what it prints is added to `log(name)`."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                self._command(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.path,
                env=self.environment | environment, start_new_session=True, **self._who(),
            )  # fmt: skip
        self._processes.append(process)
        return process

    def until(self, is_reached: Callable[[], bool], name: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait for a foreign process; one that takes too long raises with the end of its log."""
        deadline_s = time.monotonic() + seconds
        while not is_reached():
            if time.monotonic() > deadline_s:
                raise YardFailed(f"{name} did not get there in {seconds:.0f} s:\n{self.tail(name)}")
            time.sleep(0.02)  # polling a foreign process; nothing asserts on this clock

    def tail(self, name: str, lines: int = 40) -> str:
        text = self.log(name).read_text("utf-8", errors="replace") if self.log(name).exists() else "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """End every process, the last one first, and remove the folder."""
        for process in reversed(self._processes):
            stop(process, signal.SIGQUIT)
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait(WAIT_SECONDS)
        shutil.rmtree(self.path, ignore_errors=True)

    def _command(self, command: Sequence[str | Path]) -> list[str]:
        words = [str(word) for word in command]
        space = ["unshare", "-U", "--map-user=65534", "--map-group=65534"]
        return [*space, *words] if self.account is Account.NAMESPACE else words

    def _who(self) -> Who:
        return _nobody() if self.account is Account.NOBODY else Who()


def stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Ask a process to end and wait for it; one that does not is killed, and its children with it."""
    if process.poll() is not None:
        return
    process.send_signal(how)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill −9, as the kernel's out-of-memory killer would, and wait until the orphaned children are gone too."""
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.kill()
    process.wait(20)
    _, alive = psutil.wait_procs(children, 20)
    if alive:
        raise YardFailed(f"{len(alive)} orphans of process {process.pid} do not end")
