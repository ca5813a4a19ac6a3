"""A real gateway in a process of its own, for scenes that kill it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.system import warm

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 30.0


class Gateway:
    """`tallystick serve --dev` on a free port; a context manager that stops it and shows its log on failure."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.options = options
        self.log = data.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Gateway":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and return when it is ready to decide; a gateway that ends by itself raises with its log."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "gateway",
                    "serve",
                    "--dev",
                    "--data",
                    str(self.data),
                    "--listen",
                    f"127.0.0.1:{self.port}",
                    *self.options,
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        until(self.is_ready, self.process, self.log)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start() first"
        return self._process

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """kill −9, as the kernel's out-of-memory killer would."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM and wait; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def log_vkey(self) -> str:
        """The log's vkey from the policy that the gateway publishes."""
        policy = (self.data / "public" / "policy.txt").read_text("utf-8")
        return next(line.split()[1] for line in policy.splitlines() if line.startswith("log "))

    def receipt_vkey(self) -> str:
        """The receipt key's vkey from the published list."""
        vkeys = (self.data / "public" / "vkeys.txt").read_text("utf-8").split()
        return next(vkey for vkey in vkeys if "/receipt+" in vkey)

    def root_vkey(self) -> str:
        return (self.data / "public" / "root.vkey").read_text("utf-8").strip()

    def join(self, home: Path) -> None:
        """Make an agent's profile that pins this gateway's root key."""
        run_cli("join", self.url, "--root", self.root_vkey(), "--home", str(home)).check_returncode()

    def cli(self, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        result = run_cli(*arguments, "--home", str(home))
        assert result.returncode == 0, (arguments, result.stdout, result.stderr)
        return result

    def verify_ledger(self, out: Path) -> dict[str, object]:
        """Export the ledger and let the real verifier check it; its JSON report."""
        run_cli("ledger", "export", "--data", str(self.data), "--out", str(out)).check_returncode()
        public = self.data / "public"
        result = run_module(
            "verifier",
            "ledger",
            str(out),
            "--root",
            self.root_vkey(),
            "--keys",
            str(public / "keys.note"),
            "--policy",
            str(public / "policy.txt"),
            "--json",
        )
        assert result.returncode == 0, (result.stdout, result.stderr)
        report: dict[str, object] = json.loads(result.stdout)
        return report


def until(is_reached: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait for a foreign process; one that ends, or takes START_SECONDS_MAX, raises with its log."""
    deadline_s = time.monotonic() + START_SECONDS_MAX
    while not is_reached():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the process did not become ready:\n{log.read_text('utf-8')}")
        time.sleep(0.02)  # polling a foreign process; nothing asserts on this clock


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("gateway", *arguments)


def run_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call a program in a process of its own."""
    line = warm.command(*arguments, module=module)
    return subprocess.run(line, cwd=ROOT, text=True, capture_output=True, timeout=120, check=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
