"""One key, one machine, one holder: two held leases of one profile never share a resource."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from gateway.client import claim as claims
from gateway.client.agent import Agent
from gateway.client.claim import HELD, claim, lock_path
from gateway.client.errors import HeldHere, LeaseHeld, ProfileError, RequestRejected
from gateway.client.exits import HELD as HELD_CODE
from gateway.client.exits import exit_code_of, explain
from gateway.client.profile import Profile
from tests.client.world import (
    ACQUIRE,
    ALICE,
    BOB,
    FILE,
    ORIGIN,
    RELEASE,
    Book,
    LocalGateway,
    ManualClock,
    forged,
    lost_request,
    rest,
)

OTHER = "repo:app/src/b.py"
TTL_MS = 30_000


@pytest.fixture
def gateway() -> LocalGateway:
    return LocalGateway(Book(), ManualClock())


@pytest.fixture(params=["on disk", "in memory"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "on disk" else None


@pytest.fixture
def profile(gateway: LocalGateway, home: Path | None) -> Profile:
    return gateway.book.profile(ALICE, home)


def left(home: Path | None) -> list[object]:
    """What is still locked, or lies about, when nothing should."""
    return list(claims._in_memory) if home is None else list((home / HELD).iterdir())


# -- held leases -------------------------------------------------------------------------------------------------------


async def test_the_second_holder_of_a_profile_is_refused_before_anything_is_sent(
    gateway: LocalGateway, home: Path | None
) -> None:
    """Scenario 20: one key in two processes; the first one's lease is neither shared nor given back under it."""
    async with gateway.agent(home=home) as first, gateway.agent(home=home) as second:
        async with first.lease(FILE, ttl_ms=TTL_MS) as lease:
            with pytest.raises(HeldHere, match="by this same key on this machine: this process") as refused:
                async with second.lease(FILE, ttl_ms=TTL_MS):
                    pytest.fail("two hold one lease")
            assert (refused.value.resource, refused.value.pid) == (FILE, os.getpid())
            assert lease.is_trusted
            assert [request.target for request in gateway.requests] == [ACQUIRE]
        async with second.lease(FILE, ttl_ms=TTL_MS) as lease:
            assert lease.is_trusted
    assert [request.target for request in gateway.requests] == [ACQUIRE, RELEASE] * 2
    assert left(home) == []


async def test_another_key_is_the_ledgers_business(gateway: LocalGateway, tmp_path: Path) -> None:
    async with gateway.agent(home=tmp_path / "a") as first, gateway.agent(BOB) as second:
        (tmp_path / "a").mkdir(exist_ok=True)
        async with first.lease(FILE, ttl_ms=TTL_MS):
            with pytest.raises(LeaseHeld):
                async with second.lease(FILE, ttl_ms=TTL_MS):
                    pytest.fail("granted twice")


async def test_a_waiter_gets_its_turn_within_the_same_deadline(gateway: LocalGateway, home: Path | None) -> None:
    clock = gateway.clock
    async with gateway.agent(home=home) as first, gateway.agent(home=home) as second:
        async with asyncio.TaskGroup() as group:
            async with first.lease(FILE, ttl_ms=TTL_MS) as lease:
                waiting = group.create_task(hold_once(second, wait_ms=20_000))
                await clock.advance(11_000)
                assert (lease.is_trusted, waiting.done()) == (True, False)
            await clock.advance(1_000)
        assert waiting.result() == clock.steady_ms()
    assert clock.slept.count(1_000) >= 10, "half a second and up to one more between two tries"


async def hold_once(agent: Agent, wait_ms: int) -> int:
    """Hold the file for a moment; return when it was had."""
    async with agent.lease(FILE, ttl_ms=TTL_MS, wait_ms=wait_ms):
        return agent.clock.steady_ms()


async def test_waiting_here_and_at_the_ledger_share_one_deadline(gateway: LocalGateway) -> None:
    """Half of the wait goes by while this key holds it, the other while a stranger does."""
    gateway.clock.is_automatic = True
    clock = gateway.clock
    start_ms = clock.steady_ms()
    locks = claim(gateway.book.profile(ALICE), [FILE])
    async with gateway.agent(BOB) as bob, gateway.agent() as agent:
        await bob.acquire(FILE, ttl_ms=3_600_000)
        sleep = clock.sleep

        async def freeing(duration_ms: int) -> None:
            await sleep(duration_ms)
            if clock.steady_ms() >= start_ms + 5_000:
                locks.close()

        clock.sleep = freeing  # type: ignore[method-assign]
        with pytest.raises(LeaseHeld):
            await hold_once(agent, wait_ms=10_000)
    assert clock.steady_ms() - start_ms == 10_000


async def test_waiting_for_oneself_ends_at_the_deadline(gateway: LocalGateway, home: Path | None) -> None:
    gateway.clock.is_automatic = True
    async with gateway.agent(home=home) as agent:
        with claim(agent.profile, [FILE]):
            start_ms = gateway.clock.steady_ms()
            with pytest.raises(HeldHere):
                await hold_once(agent, wait_ms=10_000)
    assert gateway.clock.steady_ms() - start_ms == 10_000
    assert gateway.requests == []


async def test_a_refused_or_failed_acquire_frees_the_locks(gateway: LocalGateway, home: Path | None) -> None:
    async with gateway.agent(BOB) as bob, gateway.agent(home=home) as agent:
        await bob.acquire(FILE)
        with pytest.raises(LeaseHeld):
            await hold_once(agent, wait_ms=0)
        assert left(home) == []
        gateway.faults = [forged(lambda answer: {"ok": True})]
        with pytest.raises(RequestRejected):
            await hold_once(agent, wait_ms=0)
    assert left(home) == []


async def test_a_cancelled_wait_frees_the_locks(gateway: LocalGateway, home: Path | None) -> None:
    async with gateway.agent(BOB) as bob, gateway.agent(home=home) as agent:
        await bob.acquire(FILE, ttl_ms=3_600_000)
        waiting = asyncio.create_task(hold_once(agent, wait_ms=60_000))
        await rest()
        with pytest.raises(HeldHere):
            claim(agent.profile, [FILE])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert left(home) == []


async def test_a_lost_lease_keeps_its_locks_until_its_work_has_ended(gateway: LocalGateway, home: Path | None) -> None:
    async with gateway.agent(home=home) as agent:
        with pytest.raises(Exception, match="lease_expired"):
            async with agent.lease(FILE, ttl_ms=TTL_MS) as lease:
                gateway.live.clear()
                await gateway.clock.advance(TTL_MS // 3)
                assert lease.lost.is_set()
                with pytest.raises(HeldHere):
                    claim(agent.profile, [FILE])
    assert left(home) == []


async def test_a_release_frees_the_locks_and_a_cancelled_one_does_not(gateway: LocalGateway, home: Path | None) -> None:
    async with gateway.agent(home=home) as agent, agent.lease(FILE, ttl_ms=TTL_MS) as lease:
        gateway.every = lost_request
        releasing = asyncio.create_task(lease.release())
        await rest()
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        with pytest.raises(HeldHere):
            claim(agent.profile, [FILE])
        gateway.every = None
        await lease.release()
        claim(agent.profile, [FILE]).close()
    assert left(home) == []


# -- the locks ---------------------------------------------------------------------------------------------------------


def test_all_of_a_set_or_none(profile: Profile, home: Path | None) -> None:
    with claim(profile, [OTHER]):
        with pytest.raises(HeldHere, match=r"b\.py"):
            claim(profile, [FILE, "repo:app/src/c.py", OTHER])
        claim(profile, ["repo:app/src/c.py", FILE]).close()
    assert left(home) == []


def test_a_name_that_stands_twice_is_no_second_holder(profile: Profile) -> None:
    """What a doubled name is worth, the entry table says."""
    claim(profile, [FILE, FILE]).close()


def test_two_ledgers_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    here, there = Book().profile(ALICE, tmp_path), Book("other.example/main").profile(ALICE, tmp_path)
    with claim(here, [FILE]):
        claim(there, [FILE]).close()


def test_any_name_makes_a_file_name(tmp_path: Path) -> None:
    for name in ("lock:" + "x" * 2_000, "lock:../../etc", "lock:\ud800", ""):
        assert lock_path(tmp_path, ORIGIN, name).parent == tmp_path / HELD
        assert len(lock_path(tmp_path, ORIGIN, name).name) == 64 + len(".lock")


def test_a_folder_that_can_hold_no_locks_is_named(gateway: LocalGateway, tmp_path: Path) -> None:
    (tmp_path / HELD).write_text("no folder")
    with pytest.raises(ProfileError, match="can't hold the locks"):
        claim(gateway.book.profile(ALICE, tmp_path), [FILE])


HOLDER = """
import fcntl, os, sys
file = open(sys.argv[1], "a+b")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(sys.argv[2].encode() or str(os.getpid()).encode())
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("written", ["", "-", "1x"])
async def test_a_process_that_dies_frees_what_it_held(gateway: LocalGateway, tmp_path: Path, written: str) -> None:
    """Scenario 3: nobody has to clean up after kill −9, and until then the holder has a name if it gave one."""
    profile = gateway.book.profile(ALICE, tmp_path)
    path = lock_path(tmp_path, ORIGIN, FILE)
    path.parent.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, path, written,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    with pytest.raises(HeldHere, match="another process" if written else f"process {process.pid}") as refused:
        claim(profile, [FILE])
    assert refused.value.pid == (None if written else process.pid)
    process.kill()
    await process.wait()
    with claim(profile, [FILE]):
        assert path.read_text() == str(os.getpid())
    assert left(tmp_path) == []


def test_a_forked_child_that_lives_on_does_not_keep_what_was_given_back(profile: Profile) -> None:
    read_end, write_end = os.pipe()
    locks = claim(profile, [FILE])
    child = os.fork()
    if child == 0:  # pragma: no cover  # the other side of the fork
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    locks.close()
    claim(profile, [FILE]).close()
    os.close(write_end)
    os.close(read_end)
    os.waitpid(child, 0)


def test_a_forked_child_that_unwinds_does_not_free_its_parents_lock(profile: Profile, home: Path | None) -> None:
    if home is None:
        return
    with claim(profile, [FILE]):
        child = os.fork()
        if child == 0:  # pragma: no cover  # the other side of the fork
            try:
                raise SystemExit  # leaves the block as any end of the child would, and goes no further
            except SystemExit:
                locks = claims._FileLock(lock_path(home, ORIGIN, FILE), FILE)
                locks._file, locks._pid = lock_path(home, ORIGIN, FILE).open("a+b"), os.getppid()
                locks.__exit__(None, None, None)
                os._exit(0)
        os.waitpid(child, 0)
        assert lock_path(home, ORIGIN, FILE).read_text() == str(os.getpid())
        with pytest.raises(HeldHere):
            claim(profile, [FILE])


def test_a_lock_file_that_is_a_link_is_not_followed(profile: Profile, home: Path | None, tmp_path: Path) -> None:
    if home is None:
        return
    target, path = tmp_path / "precious", lock_path(home, ORIGIN, FILE)
    target.write_text("precious")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.symlink_to(target)
    with pytest.raises(ProfileError, match="can't hold the locks"):
        claim(profile, [FILE])
    assert target.read_text() == "precious"


def test_a_file_removed_between_opening_and_locking_is_not_taken_for_the_lock(
    profile: Profile, home: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last holder removes its file while a newcomer has it open: the newcomer must lock the one that is there."""
    if home is None:
        return
    path, flock, tries = lock_path(home, ORIGIN, FILE), fcntl.flock, []

    def removing(file: BinaryIO, how: int) -> None:
        flock(file, how)
        tries.append(how)
        if len(tries) == 1:
            path.unlink()

    monkeypatch.setattr(fcntl, "flock", removing)
    with claim(profile, [FILE]):
        assert path.read_text() == str(os.getpid())
        with pytest.raises(HeldHere):
            claim(profile, [FILE])


def test_a_refusal_by_oneself_has_the_code_of_a_held_lease_and_says_what_to_do() -> None:
    error = HeldHere(FILE, 4_711)
    assert exit_code_of(error) == HELD_CODE == 73
    assert "process 4711" in explain(error)
    assert "--wait 60s" in explain(error)
    assert "--home" in explain(error)
