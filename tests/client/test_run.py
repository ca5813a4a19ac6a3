"""`tallystick run`: the command's status, environment and signals, and its end when the lease is lost.

Commands are real processes; they say where they are through a named pipe, so nothing here waits for a clock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.client.errors import LeaseHeld, LeaseLost
from gateway.client.exits import LOST, NOT_EXECUTABLE, NOT_FOUND
from gateway.client.run import GRACE_MS_MAX, Job, grace_ms, run
from gateway.client.trust import margin_ms
from tests.client.world import (
    ACQUIRE,
    BOB,
    CANCEL,
    CLAIM,
    FILE,
    RELEASE,
    Book,
    LocalGateway,
    ManualClock,
    lost_answer,
    rest,
)

TTL_MS = 30_000


@pytest.fixture
def gateway() -> LocalGateway:
    return LocalGateway(Book(), ManualClock())


class Pipe:
    """A named pipe; whoever has it open for writing is alive."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path

    async def text(self) -> str:
        """Return what was written once every writer has closed it, by ending at the latest."""
        return (await asyncio.to_thread(self.path.read_text)).strip()


@pytest.fixture
async def pipe(tmp_path: Path) -> AsyncIterator[Pipe]:
    yield Pipe(tmp_path / "pipe")


def job(*command: str, wait_ms: int = 0, receipt_path: Path | None = None) -> Job:
    return Job((FILE,), command, TTL_MS, wait_ms, receipt_path)


async def run_job(gateway: LocalGateway, work: Job) -> int:
    async with gateway.agent() as agent:
        return await run(agent, work)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9)]
)
async def test_the_status_is_the_commands(gateway: LocalGateway, script: str, code: int) -> None:
    assert await run_job(gateway, job("sh", "-c", script)) == code
    assert [request.target for request in gateway.requests] == [ACQUIRE, RELEASE]
    assert gateway.live == {}


async def test_the_command_finds_its_lease_in_the_environment(gateway: LocalGateway, tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "receipt.json"
    names = '"$TALLYSTICK_FENCING_TOKEN" "$TALLYSTICK_LEASE_ID" "$TALLYSTICK_RESOURCE"'
    script = f'printf "%s\\n" {names} > {out}; cat "$TALLYSTICK_RECEIPT" >> {out}'
    work = Job((FILE, "repo:app/src/b.py"), ("sh", "-c", script), TTL_MS, 0, kept)
    assert await run_job(gateway, work) == 0
    token, lease_id, resources, receipt = out.read_text().split("\n", 3)
    assert (int(token) // 10_000_000, lease_id) == (gateway.clock.wall_ms() // 10_000, "L1")
    assert resources == f"{FILE} repo:app/src/b.py"
    assert receipt.encode() == kept.read_bytes()


async def test_a_temporary_receipt_is_gone_afterwards(gateway: LocalGateway, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = f'test -s "$TALLYSTICK_RECEIPT" && echo "$TALLYSTICK_RECEIPT" > {out}'
    assert await run_job(gateway, job("sh", "-c", script)) == 0
    assert not os.path.lexists(out.read_text().strip())  # noqa: ASYNC240  # one look at a local file


async def test_a_command_that_is_not_there_gives_the_lease_back(gateway: LocalGateway, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert await run_job(gateway, job("/no/such/command")) == NOT_FOUND
    assert await run_job(gateway, job(str(plain))) == NOT_EXECUTABLE
    assert gateway.live == {}


async def test_without_the_lease_the_command_never_starts(gateway: LocalGateway, tmp_path: Path) -> None:
    async with gateway.agent(BOB) as bob:
        await bob.acquire(FILE)
    with pytest.raises(LeaseHeld):
        await run_job(gateway, job("touch", str(tmp_path / "started")))
    assert not (tmp_path / "started").exists()


async def test_heartbeats_go_on_while_the_command_runs(gateway: LocalGateway, pipe: Pipe, tmp_path: Path) -> None:
    """Scenario L37: the ttl is not the duration; the receipt file is always the newest."""
    kept = tmp_path / "receipt.json"
    end = Pipe(tmp_path / "end")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(
            run_job(gateway, job("sh", "-c", f"echo up > {pipe.path}; cat {end.path}; exit 3", receipt_path=kept))
        )
        assert await pipe.text() == "up"
        first = kept.read_bytes()
        await gateway.clock.advance(10 * TTL_MS)
        assert not running.done()
        assert gateway.desk.on(FILE).expires_at_ms > gateway.clock.wall_ms()
        assert kept.read_bytes() != first
        await asyncio.to_thread(end.path.write_text, "done")
    assert running.result() == 3


async def test_a_lost_lease_ends_the_whole_group_even_if_it_will_not_listen(
    gateway: LocalGateway, pipe: Pipe, capfd: pytest.CaptureFixture[str]
) -> None:
    """Scenarios L17 and L41: told first, killed before the lease can be anybody else's; children too."""
    life = Pipe(pipe.path.with_name("life"))
    script = f'exec 9> {life.path}; trap "" TERM; (trap "" TERM; exec sleep 600) & echo up > {pipe.path}; wait'
    async with asyncio.TaskGroup() as group:
        running = group.create_task(expect_lost(gateway, job("sh", "-c", script)))
        ended = group.create_task(life.text())
        assert await pipe.text() == "up"
        gateway.every = lost_answer
        await gateway.clock.advance(TTL_MS - margin_ms(TTL_MS))
        assert not ended.done(), "it ignores the first signal"
        gateway.every = None
        await gateway.clock.advance(grace_ms(TTL_MS))
        assert await running == "unreachable"
        async with asyncio.timeout(10):
            assert await ended == ""
    assert "stopping the command" in capfd.readouterr().err


async def expect_lost(gateway: LocalGateway, work: Job) -> str:
    with pytest.raises(LeaseLost) as lost:
        await run_job(gateway, work)
    return lost.value.reason


async def test_a_command_that_listens_ends_by_the_first_signal(
    gateway: LocalGateway, pipe: Pipe, tmp_path: Path
) -> None:
    last = tmp_path / "last-words"
    script = f'trap "echo told > {last}; exit 0" TERM; echo up > {pipe.path}; while :; do sleep 600 & wait $!; done'
    async with asyncio.TaskGroup() as group:
        running = group.create_task(expect_lost(gateway, job("sh", "-c", script)))
        assert await pipe.text() == "up"
        gateway.live.clear()
        await gateway.clock.advance(TTL_MS // 3)
        assert await running == "lease_expired"
    assert last.read_text() == "told\n"


@pytest.mark.parametrize("ttl_ms", [2_000, 10_000, 30_000, 300_000, 3_600_000])
def test_the_grace_ends_before_the_lease_does(ttl_ms: int) -> None:
    assert 0 < grace_ms(ttl_ms) < margin_ms(ttl_ms)
    assert grace_ms(ttl_ms) <= GRACE_MS_MAX
    assert LOST == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
async def test_signals_go_to_the_command_and_its_answer_counts(
    gateway: LocalGateway, pipe: Pipe, number: signal.Signals
) -> None:
    code = (
        "import signal, sys; number = int(sys.argv[1]);"
        "signal.signal(number, lambda *_: sys.exit(40));"
        "open(sys.argv[2], 'w').write('up'); signal.pause()"
    )
    async with asyncio.TaskGroup() as group:
        command = (sys.executable, "-c", code, str(int(number)), str(pipe.path))
        running = group.create_task(run_job(gateway, job(*command)))
        assert await pipe.text() == "up"
        os.kill(os.getpid(), number)
    assert running.result() == 40
    assert gateway.live == {}


async def test_a_signal_while_waiting_for_the_lease_ends_the_wait(gateway: LocalGateway, tmp_path: Path) -> None:
    """Ctrl-C leaves the line as well: nobody has to wait for the turn of one who is gone."""
    async with gateway.agent(BOB) as bob:
        await bob.acquire(FILE, ttl_ms=3_600_000)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run_job(gateway, job("touch", str(tmp_path / "started"), wait_ms=60_000)))
        await rest()
        assert [request.target for request in gateway.requests] == [ACQUIRE, ACQUIRE, CLAIM]
        os.kill(os.getpid(), signal.SIGTERM)
    assert running.result() == 128 + signal.SIGTERM
    assert not (tmp_path / "started").exists()
    assert gateway.requests[-1].target == CANCEL
    assert gateway.desk.line == []


async def test_what_a_command_leaves_behind_does_not_outlive_the_lease(gateway: LocalGateway, tmp_path: Path) -> None:
    life = Pipe(tmp_path / "life")
    ended = asyncio.create_task(life.text())
    assert await run_job(gateway, job("sh", "-c", f"exec 9> {life.path}; sleep 600 & exit 5")) == 5
    assert await asyncio.wait_for(ended, 10) == ""
