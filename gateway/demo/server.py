"""The demo's servers, each in a process of its own, on a free port, with throw-away keys: a gateway and a witness."""

import asyncio
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

START_SECONDS_MAX = 30
ORIGIN = "localhost/dev"
IDLE_MS = 10_000
"""How long a session may be silent in the demo's ledger: the least that a ledger may say, so that you need not wait."""


def make_ledger(data: Path) -> str:
    """Make a throw-away ledger, and return the URL that its gateway will have."""
    url = free_url()
    options = ["--data", str(data), "--origin", ORIGIN, "--listen", url.removeprefix("http://"), "--metrics-port", "0"]
    run("gateway", "init", "--dev", *options, "--parameter", f"sessionIdleMs={IDLE_MS}", check=True)
    return url


def gateway(data: Path, url: str) -> AbstractAsyncContextManager[None]:
    """Run the gateway of a data directory while the block lasts."""
    return _running(["serve", "--data", str(data)], f"{url}/readyz", data.with_suffix(".log"))


def witness(folder: Path, url: str) -> AbstractAsyncContextManager[None]:
    """Run a witness while the block lasts."""
    options = ["--data", str(folder), "--listen", url.removeprefix("http://"), "--log-level", "ERROR"]
    return _running(["witness", "serve", *options], url, folder.with_suffix(".log"))


def run(module: str, *arguments: str, check: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run one of our commands to its end."""
    return subprocess.run([sys.executable, "-m", module, *arguments], text=True, capture_output=True, check=check)


def free_url() -> str:
    """Return an address of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@asynccontextmanager
async def _running(words: list[str], ready_url: str, log: Path) -> AsyncIterator[None]:
    """Start a server and wait until it answers; leaving the block stops it with SIGTERM and demands a clean end."""
    process = _start(words, log)
    try:
        await asyncio.to_thread(_await_ready, process, ready_url, log)
        yield
    finally:
        process.terminate()
        status = await asyncio.to_thread(process.wait, START_SECONDS_MAX)
    if status:
        raise _failed(f"{words[0]} ended with status {status}", log)


def _start(words: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, "-m", "gateway", *words], stdout=output, stderr=output)


def _await_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_SECONDS_MAX
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise _failed("a server did not start", log)
        time.sleep(0.05)


def _failed(what: str, log: Path) -> RuntimeError:
    return RuntimeError(f"{what}; the end of its log:\n{log.read_text('utf-8')[-2_000:]}")


def _is_ready(url: str) -> bool:
    """A witness has nothing at its root and says so; a gateway that is not ready says 503."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 404
    except OSError:
        return False
