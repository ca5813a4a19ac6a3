"""A real witness in a process of its own."""

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.system.process import ROOT, free_port, until


class Server:
    """`tallystick witness serve` on a port of its own; a context manager that kills what is left."""

    def __init__(self, folder: Path, *options: str, name: str = "witness") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder.with_name(f"{folder.name}-{name}.log")
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "start() first"
        return self._process

    def start(self) -> None:
        """Start it and return when it answers."""
        command = [sys.executable, "-m", "gateway", "witness", "serve", "--data", str(self.folder)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--listen", f"127.0.0.1:{self.port}", *self._options],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        until(self.is_answering, self.process, self.log)

    def is_answering(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/", timeout=2):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def add(self, body: bytes) -> tuple[int, str]:
        """Show it a checkpoint; status and text of the answer."""
        try:
            with urllib.request.urlopen(f"{self.url}/add-checkpoint", data=body, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def kill(self) -> None:
        """kill −9; nothing when it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(30)
