"""SIGTERM ends a gateway in order and within bounds, whatever its database does, and its log has no traceback."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.size import size
from tests.pg.crowd import Crowd, Member
from tests.pg.nodes import Ledger, Node
from tests.pg.server import Server, open_yard

pytestmark = [pytest.mark.postgres, pytest.mark.system]
STOP_SECONDS_MAX = 60.0  # drain 1, reads 2, store 10, and a busy machine
TROUBLE = ("Traceback", "Fatal Python error", "was never retrieved", "was never awaited")


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of one's own, to be harmed."""
    yard = open_yard()
    server = Server(yard, "harmed")
    server.create()
    server.start()
    server.add_role()
    yield server
    yard.close()


def processes_of(server: Server) -> list[int]:
    """Return the server and its sessions."""
    assert server.process is not None
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [server.process.pid, *(pid for pid in found if parent_of(pid) == server.process.pid)]


def parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[1])
    return 0


def signal_all(server: Server, number: signal.Signals) -> None:
    for pid in processes_of(server):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def parked(crowd: Crowd, number: int) -> None:
    """Stand in line for what another one has, and never get it."""
    async with Member(crowd, number) as member:
        await member.agent.wait_for("lock:parked", ttl_ms=600_000, wait_ms=600_000)
        await asyncio.Event().wait()


async def reading(node: Node) -> None:
    """Read what lies in the store, one receipt after another."""
    while True:
        await asyncio.to_thread(node.get, "/api/v1/acp/ledger/receipts/1")


async def test_a_stop_ends_whatever_the_database_does(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    ledger = Ledger(tmp_path, durability="local")
    url = server.add_database("ledger")
    await asyncio.to_thread(ledger.found, url)
    node = ledger.add_node(url)
    node.set(drainSeconds=1)
    faults = (lambda: None, server.kill, lambda: signal_all(server, signal.SIGSTOP))
    for number in range(size(3, 99)):
        await asyncio.to_thread(node.start)
        await stop_under_load(Crowd(ledger), node, faults[number % 3])
        if number % 3 == 1:
            await asyncio.to_thread(server.start)
        signal_all(server, signal.SIGCONT)


async def stop_under_load(crowd: Crowd, node: Node, fault: Callable[[], object]) -> None:
    """Let agents work, wait and read, strike, and stop the node."""
    work: list[Awaitable[None]] = [crowd.work(1), crowd.work(2), parked(crowd, 11), parked(crowd, 12), reading(node)]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await crowd.until(10)
        await asyncio.to_thread(fault)
        await asyncio.sleep(0.5)  # for requests and reads to get stuck
        node.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(node.process.wait, STOP_SECONDS_MAX) == 0, node.tail()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not [word for word in TROUBLE if word in node.tail()], node.tail()
