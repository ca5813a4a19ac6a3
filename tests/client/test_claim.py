"""One key, one machine, one holder: two held leases of one profile never share a resource."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.client import claim as claims
from gateway.client.agent import Agent
from gateway.client.claim import HELD, claim
from gateway.client.errors import HeldHere, LeaseHeld, ProfileError, RequestRejected
from gateway.client.exits import HELD as HELD_CODE
from gateway.client.exits import exit_code_of, explain
from gateway.client.profile import Profile
from tests.client.world import (
    ACQUIRE,
    ALICE,
    BOB,
    FILE,
    RELEASE,
    Book,
    LocalGateway,
    ManualClock,
    forged,
    lost_request,
    rest,
)
from verifier.entries import key_of, overlaps

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


def test_any_name_can_be_claimed_before_anybody_judged_it(profile: Profile, home: Path | None) -> None:
    for name in ("lock:" + "x" * 2_000, "lock:../../etc", "lock:\ud800", ""):
        with claim(profile, [name]), pytest.raises(HeldHere):
            claim(profile, [name])
    assert left(home) == []


OVERLAPS = [
    ("a sub-tree and a name below it", "repo:a/**", "repo:a/b", True),
    ("a sub-tree and its own folder", "repo:a/**", "repo:a", True),
    ("a sub-tree and one inside it", "repo:a/**", "repo:a/b/**", True),
    ("a whole scheme and a name of it", "repo:**", "repo:a/b", True),
    ("two spellings", "repo:Src/A.py", "repo:src/a.py", True),
    ("a sub-tree in another spelling", "repo:SRC/**", "repo:src/a.py", True),
    ("a name and one that begins like it", "repo:app/**", "repo:apple", False),
    ("a folder and a file below it, neither a sub-tree", "repo:a", "repo:a/b", False),
    ("two schemes", "db:**", "repo:a", False),
    ("two sub-trees side by side", "repo:a/**", "repo:b/**", False),
]


@pytest.mark.parametrize(("one", "two", "is_refused"), [row[1:] for row in OVERLAPS], ids=[row[0] for row in OVERLAPS])
def test_what_overlaps_excludes_each_other(profile: Profile, one: str, two: str, is_refused: bool) -> None:
    """Scenarios 24, 26 and 28: in both orders, and a name of a set is enough."""
    for first, second in ((one, two), (two, one)):
        with claim(profile, [first, "other:x"]):
            if is_refused:
                with pytest.raises(HeldHere) as refused:
                    claim(profile, ["other:y", second])
                assert refused.value.resource == second
            else:
                claim(profile, ["other:y", second]).close()


def test_claims_by_chance_never_overlap_and_are_refused_for_no_other_reason(profile: Profile) -> None:
    """Against the plainest rule: a claim is had if and only if none of its names overlaps one of a claim that lives."""
    chance = random.Random(20)
    names = [f"r:{path}" for path in ("a", "A", "a/b", "a/B", "a/b/c", "b", "**", "a/**", "a/b/**", "b/**", "ab")]
    held: list[tuple[list[str], ExitStack]] = []
    outcomes = set()
    for _ in range(400):
        if held and chance.random() < 0.5:
            held.pop(chance.randrange(len(held)))[1].close()
            continue
        asked = chance.sample(names, chance.randint(1, 2))
        keys = [key_of(name, True) for name in asked]
        others = [key_of(name, True) for claimed, _ in held for name in claimed]
        is_free = not any(overlaps(key, other) for key in keys for other in others)
        try:
            held.append((asked, claim(profile, asked)))
            outcomes.add(True)
            assert is_free
        except HeldHere:
            outcomes.add(False)
            assert not is_free
    for _, stack in held:
        stack.close()
    assert outcomes == {True, False}


async def test_of_many_processes_that_come_at_once_exactly_one_wins(gateway: LocalGateway, tmp_path: Path) -> None:
    """Two that see each other in the making would both go away; here looking and claiming is one step."""
    (tmp_path / "go").mkdir()
    script = """
import sys
from pathlib import Path
from gateway.client.claim import claim
from gateway.client.errors import HeldHere
from tests.client.world import ALICE, Book
profile = Book().profile(ALICE, Path(sys.argv[1]))
print("up", flush=True)
sys.stdin.readline()
try:
    held = claim(profile, [sys.argv[2]])
    print("held", flush=True)
    sys.stdin.read()
except HeldHere:
    print("refused", flush=True)
"""
    names = ["repo:a/**", "repo:a/b", "repo:A/b/c", "repo:**"]
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, tmp_path, name,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )
        for name in names
    ]  # fmt: skip
    try:
        told = []
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"up\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
        for process in processes:
            assert process.stdout is not None
            told.append(await process.stdout.readline())
        # repo:a/b and repo:A/b/c are neighbours, neither holds the other: both may win when no sub-tree did.
        winners = {name for name, word in zip(names, told, strict=True) if word == b"held\n"}
        assert winners in ({"repo:a/**"}, {"repo:**"}, {"repo:a/b", "repo:A/b/c"})
        assert set(told) == {b"held\n", b"refused\n"}
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
    claim(gateway.book.profile(ALICE, tmp_path), names).close()
    assert left(tmp_path) == [], "what the killed have left was swept"


def test_a_folder_that_can_hold_no_locks_is_named(gateway: LocalGateway, tmp_path: Path) -> None:
    (tmp_path / HELD).write_text("no folder")
    with pytest.raises(ProfileError, match="can't hold the locks"):
        claim(gateway.book.profile(ALICE, tmp_path), [FILE])


HOLDER = """
import fcntl, json, os, sys
file = open(sys.argv[1], "a+b")
fcntl.flock(file, fcntl.LOCK_EX)
row = {"names": [sys.argv[2]], "origin": sys.argv[3], "pid": os.getpid()}
file.write(json.dumps(row).encode() if sys.argv[4] == "whole" else sys.argv[4].encode())
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("written", ["whole", "", "-", "4711", '{"names": 1}', '{"names": ["repo:a'])
async def test_a_process_that_dies_frees_what_it_held(gateway: LocalGateway, tmp_path: Path, written: str) -> None:
    """Scenario 3: nobody has to clean up after kill −9. Until then what can't be read counts as held: an older version
    of this client, say, wrote only its process id."""
    profile = gateway.book.profile(ALICE, tmp_path)
    path = tmp_path / HELD / "held.lock"
    path.parent.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, path, "repo:app/**", profile.address.origin, written,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    who = f"process {process.pid}" if written == "whole" else "another process"
    with pytest.raises(HeldHere, match=who) as refused:
        claim(profile, [FILE])
    assert refused.value.pid == (process.pid if written == "whole" else None)
    process.kill()
    await process.wait()
    with claim(profile, [FILE]):
        (file,) = (tmp_path / HELD).iterdir()
        row = {"names": [FILE], "origin": profile.address.origin, "pid": os.getpid()}
        assert (json.loads(file.read_text()), file.stat().st_mode & 0o777) == (row, 0o600)
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


def test_a_forked_child_that_unwinds_does_not_free_its_parents_claim(profile: Profile, home: Path | None) -> None:
    if home is None:
        return
    with claim(profile, [FILE]) as locks:
        child = os.fork()
        if child == 0:  # pragma: no cover  # the other side of the fork
            locks.close()  # as any end of the child would
            os._exit(0)
        os.waitpid(child, 0)
        assert len(left(home)) == 1
        with pytest.raises(HeldHere):
            claim(profile, [FILE])


def test_a_link_in_the_folder_is_not_followed(profile: Profile, home: Path | None, tmp_path: Path) -> None:
    if home is None:
        return
    target, path = tmp_path / "precious", home / HELD / "x.lock"
    target.write_text("precious")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.symlink_to(target)
    with pytest.raises(ProfileError, match="can't hold the locks"):
        claim(profile, [FILE])
    assert target.read_text() == "precious"


def test_a_claim_that_can_not_be_written_leaves_nothing(
    profile: Profile, home: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if home is None:
        return

    def full(claim: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(claims._Claim, "encode", full)
    with pytest.raises(ProfileError, match="No space left"):
        claim(profile, [FILE])
    assert left(home) == []


def test_who_looks_while_another_does_waits_its_turn(profile: Profile, home: Path | None) -> None:
    """The folder's lock is for the moment of looking; here a neighbour has it, and lets it go."""
    if home is None:
        return
    (home / HELD).mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(home / HELD, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover  # the other side of the fork
        with claim(profile, [FILE]):
            os.write(write_end, b"had")
        os._exit(0)
    os.set_blocking(read_end, False)
    with pytest.raises(BlockingIOError):
        os.read(read_end, 3)
    os.set_blocking(read_end, True)
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    assert os.read(read_end, 3) == b"had"
    os.waitpid(child, 0)
    for end in (descriptor, read_end, write_end):
        os.close(end)


def test_a_refusal_by_oneself_has_the_code_of_a_held_lease_and_says_what_to_do() -> None:
    error = HeldHere(FILE, 4_711)
    assert exit_code_of(error) == HELD_CODE == 73
    assert "process 4711" in explain(error)
    assert "--wait 60s" in explain(error)
    assert "--home" in explain(error)
