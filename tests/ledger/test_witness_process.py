"""Gateway and witnesses as processes: killed at any moment, restored from an older copy, started behind a witness."""

import asyncio
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.client import Agent, Refused
from gateway.initialise import LEDGER_FILE
from gateway.ledger.cosigned import WITNESSES_FILE
from gateway.store.raw import RawFile
from gateway.store.sqlite import Reader
from tests.system.process import Gateway, run_cli, run_module
from tests.witness.process import Server
from verifier.checkpoint import parse_checkpoint

pytestmark = pytest.mark.system
WAIT_SECONDS_MAX = 60
KILLS = 3


@dataclass(slots=True)
class Scene:
    """A throw-away gateway, two witnesses that both must sign, and an agent."""

    gateway: Gateway
    witnesses: list[Server]
    home: Path
    copy: Path

    def witnessed_size(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.gateway.url}/{self.name}/witnessed", timeout=5) as answer:
                return parse_checkpoint(answer.read()).size
        except urllib.error.HTTPError:
            return 0

    @property
    def name(self) -> str:
        return self.gateway.log_vkey().partition("+")[0].partition("/")[2]

    def kept_size(self) -> int:
        """How far the note reaches that lies in the ledger's file."""
        file = RawFile(self.gateway.data / LEDGER_FILE)
        try:
            with file.moment():
                return max((int(json.loads(row.value)["size"]) for row in file.records("cosigned/")), default=0)
        finally:
            file.close()

    def acquire(self, resource: str) -> int:
        """Take a lease; the number of its entry."""
        said = self.gateway.cli(self.home, "lease", "acquire", resource, "--json").stdout
        seq: int = json.loads(said)["seq"]
        return seq

    def restore(self) -> None:
        """Put the older copy in place of the ledger, as whoever restores a back-up does."""
        ledger = self.gateway.data / LEDGER_FILE
        for end in ("-wal", "-shm"):
            ledger.with_name(ledger.name + end).unlink(missing_ok=True)
        shutil.copy(self.copy, ledger)


def until(is_reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_SECONDS_MAX
    while not is_reached():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.05)  # polling foreign processes; nothing asserts on this clock


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    gateway, copy = Gateway(tmp_path / "ledger"), tmp_path / "copy"
    with ExitStack() as stack:
        with gateway:
            gateway.join(tmp_path / "home")
        rows = []
        witnesses = []
        for name in ("w1", "w2"):
            folder = tmp_path / name
            run_cli("witness", "init", "--data", str(folder), "--name", f"witness.example/{name}").check_returncode()
            run_cli("witness", "add", "--data", str(folder), "--log", gateway.log_vkey()).check_returncode()
            witnesses.append(stack.enter_context(Server(folder, "--rate", "0")))
            vkey = next(folder.glob("*vkey*")).read_text("utf-8").strip()
            rows.append(f"witness {name} {vkey} {witnesses[-1].url}")
        rows += ["group both all w1 w2", "quorum both", ""]
        (gateway.data / WITNESSES_FILE).write_text("\n".join(rows), "utf-8")
        stack.enter_context(gateway)
        yield Scene(gateway, witnesses, tmp_path / "home", copy)


@pytest.mark.parametrize("place", [["ledger.txt"], ["--tiles", "tiles"]], ids=["file", "tiles"])
def test_an_export_ends_where_witnesses_have_seen_it(scene: Scene, tmp_path: Path, place: list[str]) -> None:
    """The whole way: a gateway, its witnesses, an export, and an auditor who pinned root and policy."""
    seq = scene.acquire("lock:a")
    until(lambda: scene.kept_size() > seq)
    scene.gateway.stop()
    public, data = scene.gateway.data / "public", scene.gateway.data
    where = [*place[:-1], str(tmp_path / place[-1])]
    done = run_cli("ledger", "export", *where, "--witnessed", "--data", str(data))
    assert done.returncode == 0, done.stderr
    size = scene.kept_size()
    assert f"{size} witnessed entries" in done.stdout
    pins = ("--root", scene.gateway.root_vkey(), "--keys", str(public / "keys.note"))
    said = run_module("verifier", "ledger", where[-1], *pins, "--policy", str(data / WITNESSES_FILE))
    assert f"to size {size}, witnessed 2/2" in said.stdout and said.returncode == 0, said.stdout + said.stderr


def test_what_was_witnessed_is_there_after_every_kill_and_goes_on(scene: Scene, tmp_path: Path) -> None:
    before = 0
    for number in range(KILLS):
        seq = scene.acquire(f"lock:{number}")
        until(lambda seq=seq: scene.witnessed_size() > seq)  # type: ignore[misc]  # bound now, not later
        until(lambda seq=seq: scene.kept_size() > seq)  # type: ignore[misc]  # a sweep keeps the note
        scene.gateway.kill()
        size = scene.kept_size()
        assert size > before
        scene.witnesses[number % 2].kill()
        scene.witnesses[number % 2].start()
        scene.gateway.start()
        assert scene.witnessed_size() >= size, "the start has it, before any witness is asked again"
        before = size
    until(lambda: scene.witnessed_size() >= before + 2)
    policy = tmp_path / "policy.txt"
    text = (scene.gateway.data / WITNESSES_FILE).read_text("utf-8")
    policy.write_text(f"log {scene.gateway.log_vkey()}\n{text}", "utf-8")
    receipt = tmp_path / "receipt.json"
    scene.gateway.cli(scene.home, "lease", "acquire", "lock:last", "--receipt", str(receipt))
    scene.gateway.cli(scene.home, "receipt", "upgrade", str(receipt), "--policy", str(policy), "--wait")
    public = scene.gateway.data / "public"
    pins = ("--root", scene.gateway.root_vkey(), "--keys", str(public / "keys.note"), "--policy", str(policy))
    result = run_module("verifier", "receipt", str(receipt), *pins, "--level", "witnessed")
    assert (result.returncode, "witnessed 2/2" in result.stdout) == (0, True), result.stdout
    scene.gateway.verify_ledger(tmp_path / "export")


def test_an_older_copy_refuses_to_start_and_writes_nothing(scene: Scene) -> None:
    first = scene.acquire("lock:a")
    until(lambda: scene.witnessed_size() > first)
    run_cli("ledger", "backup", str(scene.copy), "--data", str(scene.gateway.data)).check_returncode()
    second = scene.acquire("lock:b")
    until(lambda: scene.witnessed_size() > second)
    scene.gateway.kill()
    scene.restore()
    before = Reader(scene.gateway.data / LEDGER_FILE).head()
    with pytest.raises(RuntimeError, match="an older copy was put in place of it"):
        scene.gateway.start()
    assert scene.gateway.process.returncode == 1
    assert Reader(scene.gateway.data / LEDGER_FILE).head() == before


def test_an_older_copy_that_started_alone_stops_granting_when_a_witness_is_back(scene: Scene) -> None:
    first = scene.acquire("lock:a")
    until(lambda: scene.witnessed_size() > first)
    run_cli("ledger", "backup", str(scene.copy), "--data", str(scene.gateway.data)).check_returncode()
    for number in range(12):  # more than the start and a lease of the copy will write
        second = scene.acquire(f"lock:{number}")
    until(lambda: scene.witnessed_size() > second)
    scene.gateway.kill()
    for one in scene.witnesses:
        one.kill()
    scene.restore()
    scene.gateway.start()  # with a warning: nobody could say
    scene.witnesses[1].start()
    until(lambda: "grants nothing" in scene.gateway.log.read_text("utf-8"))
    assert asyncio.run(refusal(scene, "lock:new")) == "ledger_disputed"


async def refusal(scene: Scene, resource: str) -> str:
    """What the gateway says no with, to an agent of which the copy has never heard anything."""
    home = scene.home.with_name("newcomer")
    await asyncio.to_thread(scene.gateway.join, home)
    async with Agent.open(home) as agent:
        with pytest.raises(Refused) as refused:
            await agent.acquire(resource, ttl_ms=60_000)
    return refused.value.error
