"""The demo's gateway: `tallystick serve --dev` in a process of its own, on a free port, with throw-away keys."""

import asyncio
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

START_SECONDS_MAX = 30
IDLE_MS = 10_000
"""How long a session may be silent in the demo's ledger: the least that a ledger may say, so that you need not wait."""


@asynccontextmanager
async def running(data: Path, log: Path) -> AsyncIterator[str]:
    """Yield the URL of a gateway that is ready; leaving the block stops it with SIGTERM and demands a clean end."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    process = _start(data, port, log)
    try:
        await asyncio.to_thread(_await_ready, process, url, log)
        yield url
    finally:
        process.terminate()
        status = await asyncio.to_thread(process.wait, START_SECONDS_MAX)
    if status:
        raise _failed(f"the gateway ended with status {status}", log)


def _start(data: Path, port: int, log: Path) -> "subprocess.Popen[bytes]":
    options = ["--data", str(data), "--listen", f"127.0.0.1:{port}", "--metrics-port", "0"]
    options += ["--parameter", f"sessionIdleMs={IDLE_MS}"]
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--dev", *options], stdout=output, stderr=output
        )


def _await_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_SECONDS_MAX
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise _failed("the gateway did not start", log)
        time.sleep(0.05)


def _failed(what: str, log: Path) -> RuntimeError:
    return RuntimeError(f"{what}; the end of its log:\n{log.read_text('utf-8')[-2_000:]}")


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
