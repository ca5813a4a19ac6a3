"""The service and the agent of docs/guards.md, as they stand there, at a real gateway; and the service killed."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from gateway.client import Agent, open_profile
from gateway.client.guards import GuardedRequest, guarded_request
from gateway.client.guards.carrier import HEADER
from tests.system.process import ROOT, Gateway, free_port

PAGE = (ROOT / "docs/guards.md").read_text("utf-8").partition("## Services")[2]
SERVICE, AGENT = re.findall(r"```python\n(.*?)```", PAGE, re.S)
(SAYS,) = re.findall(r"```\n(200.*?)```", PAGE, re.S)


@contextmanager
def running(folder: Path, port: int, gateway: Gateway) -> Iterator[subprocess.Popen[bytes]]:
    """Run the service of the page in a process of its own."""
    home = folder / "service-home"
    if not home.exists():
        gateway.join(home)
    with (folder / "service.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVICE.replace("8480", str(port))], cwd=folder, stdout=log, stderr=log,
            env={**os.environ, "TALLYSTICK_HOME": str(home), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            _wait(process, port, folder / "service.log")
            yield process
        finally:
            process.kill()
            process.wait(10)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError("the service did not start")


@pytest.mark.system
def test_the_service_and_the_agent_of_the_page(tmp_path: Path) -> None:
    port = free_port()
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        gateway.join(tmp_path / "home")
        with running(tmp_path, port, gateway):
            done = subprocess.run(
                [sys.executable, "-c", AGENT.replace("8480", str(port))], capture_output=True, text=True, timeout=60,
                env={**os.environ, "TALLYSTICK_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            assert (done.stdout, done.stderr) == (SAYS, "")
        report = gateway.verify_ledger(tmp_path / "all.ledger")
    assert (tmp_path / "files/a.txt").read_bytes() == b"hello\n"
    assert report["verdict"] == "valid"


@pytest.mark.system
async def test_what_was_used_stays_used_when_the_service_is_killed(tmp_path: Path) -> None:
    port = free_port()
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        gateway.join(tmp_path / "home")
        async with Agent.open(open_profile(tmp_path / "home")) as agent, agent.lease("repo:app/a.txt"):
            call = await guarded_request(
                agent, "PUT", f"http://127.0.0.1:{port}/files/a.txt", b"hello\n",
                operation="file.write", resources="repo:app/a.txt",
            )  # fmt: skip
            assert sum(name == HEADER for name, _ in call.headers) == 1
            assert all(len(name) + len(value) < 4_096 for name, value in call.headers)
            with running(tmp_path, port, gateway):
                assert await send(call) == 200
            (tmp_path / "files/a.txt").unlink()
            with running(tmp_path, port, gateway):
                assert await send(call) == 409
    assert not (tmp_path / "files/a.txt").exists()


async def send(call: GuardedRequest) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.request(call.method, call.url, headers=call.headers, data=call.body) as answer,
    ):
        return answer.status
