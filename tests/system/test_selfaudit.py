"""A gateway that audits itself: damage and lies stop it, honest work never does, and a restart washes nothing away."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from gateway.damage import Damage, Marker
from gateway.errors import Busy, Fatal, StartError
from gateway.fsck.check import Folder, check_file
from gateway.rules.evaluate import Verdict
from gateway.selfaudit import Child, SelfAudit, check_mark
from gateway.store.contract import StoredEntry
from gateway.store.raw import RawFile
from gateway.store.sqlite import Reader
from keys.files import load_key
from keys.rotation import signed_statement
from tests.system.process import Gateway, run_cli, run_module
from tests.web.world import ORIGIN, World, make, world
from verifier.note import VerifierKey, make_vkey
from verifier.statement import KeyStatement

SECONDS_MAX = 60.0


@asynccontextmanager
async def audited(place: World) -> AsyncIterator[SelfAudit]:
    """Let a gateway in this process be audited at once, and often."""
    audit = SelfAudit(place.folder, place.gateway.house.sequencer, start_s=0.0, period_s=0.05)
    task = asyncio.create_task(audit.run())
    try:
        yield audit
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for another process; nothing is asserted with this clock but that it ends."""
    deadline_s = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline_s, "it never came"
        await asyncio.sleep(0.02)


def change_entry(data: Path, seq: int, old: bytes, new: bytes) -> None:
    """Change an entry of a running gateway, as who may write its file can."""
    with closing(sqlite3.connect(data / "ledger.sqlite3", timeout=30)) as db:
        (text,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'entry_is_history'").fetchone()
        (leaf,) = db.execute("SELECT leaf FROM entry WHERE seq = ?", (seq,)).fetchone()
        assert old in leaf
        db.execute("DROP TRIGGER entry_is_history")
        db.execute("UPDATE entry SET leaf = ? WHERE seq = ?", (leaf.replace(old, new, 1), seq))
        db.execute(text)
        db.commit()


async def test_honest_work_is_audited_to_its_end_and_never_stopped(tmp_path: Path) -> None:
    made = make(tmp_path / "data", rate_burst=100_000, rate_per_second=100_000)
    async with world(tmp_path / "data", made, self_audit=False) as place, audited(place) as audit:
        dice = random.Random(11)

        async def work(name: str) -> None:
            for _ in range(40):
                resource = f"lock:{dice.randrange(6)}"
                wish = dice.choice(("lease.acquire", "lease.acquire", "lease.release"))
                waits = {"wait": True} if wish == "lease.acquire" and dice.random() < 0.3 else {}
                reply = await place.ask(name, wish, resource=resource, **waits)
                assert reply.status < 500, reply.body

        await asyncio.gather(*(work(f"agent-{number}") for number in range(8)))
        sequencer = place.gateway.house.sequencer
        await until(lambda: audit.size >= sequencer.confirmed.size - 1 and sequencer.confirmed.size > 300)
        assert audit.damage is None and audit.restarts == 0 and audit.lag <= 1
        assert (await place.get("/readyz")).status == 200
    assert Marker(tmp_path / "data").read() is None


async def test_a_gateway_that_grants_what_it_must_not_is_caught_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, self_audit=False) as place, audited(place) as audit:
        assert (await place.acquire("a", "lock:x")).status == 200
        monkeypatch.setattr("gateway.core.resource.exclusions", lambda *_, **__: iter(()))
        assert (await place.acquire("b", "lock:x")).status == 200, "two hold one lock: the core lies"
        await until(lambda: audit.damage is not None)
        assert audit.damage is not None and audit.damage.seq is not None
        refused = await place.acquire("a", "lock:y")
        assert (refused.status, refused.json["code"]) == (503, "ledger_damaged")
        assert "has looked" in refused.json["detail"] and int(refused.headers["retry-after"]) >= 60
        ready = await place.get("/readyz")
        assert (ready.status, ready.json["code"]) == (503, "ledger_damaged")
        assert (await place.get("/livez")).status == 200
        assert (await place.get("/main/checkpoint")).status == 200
        assert (await place.get(f"/api/v1/acp/ledger/receipts/{audit.damage.seq}")).status == 200, "all can see it"
        size = place.gateway.house.sequencer.confirmed.size
        place.gateway.house.sequencer.tick()
        assert (await place.ask("op", "agent.remove", agent=place.agents["a"].did)).status == 503
        assert place.gateway.house.sequencer.confirmed.size == size, "nothing more is written"
    marked = Marker(tmp_path / "data").read()
    assert marked is not None and (marked.code, marked.seq) == (audit.damage.code, audit.damage.seq)
    with pytest.raises(StartError, match="--clear-damage"):
        check_mark(tmp_path / "data")
    with pytest.raises(StartError, match=audit.damage.code):
        async with world(tmp_path / "data", made):
            pass


RULES = '@id("few") permit(principal, action, resource) when { context.agentCountDay < 2 };'
DONE = {"operation": "file.read", "argumentsDigest": "0" * 64, "mode": "read"}


async def policed(place: World) -> None:
    """Rules come into force, allow twice and deny once."""
    assert (await place.ask("op", "rules.load", rules=RULES, rulesMode="enforce", rulesVersion=1)).status == 200
    told = [(await place.ask("a", "coordination.admit", resource="repo:x", **DONE)).status for _ in range(3)]
    assert told == [200, 200, 403]


async def test_what_rules_said_is_asked_again(tmp_path: Path) -> None:
    async with world(tmp_path / "data", make(tmp_path / "data"), self_audit=False) as place, audited(place) as audit:
        await policed(place)
        await until(lambda: audit.size >= place.gateway.house.sequencer.confirmed.size)
        assert (audit.damage, audit.unruled) == (None, 0)


async def test_a_gateway_that_says_of_rules_what_it_likes_is_caught_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "data", make(tmp_path / "data"), self_audit=False) as place, audited(place) as audit:
        await policed(place)
        said = Verdict("allow", ("few",))
        monkeypatch.setattr("gateway.rules.evaluate.Rules.judge", lambda *_, **__: said)
        assert (await place.ask("a", "coordination.admit", resource="repo:x", **DONE)).status == 200, "it lies"
        await until(lambda: audit.damage is not None)
        assert audit.damage is not None and audit.damage.code == "ruling_wrong"


async def test_a_policed_ledger_that_can_not_be_asked_again_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The child has no engine: it audits everything else, says so once, and the gateway goes on."""
    (tmp_path / "none").mkdir()
    (tmp_path / "none/cedarpy.py").write_text("raise ImportError('not installed')\n")
    async with world(tmp_path / "data", make(tmp_path / "data"), self_audit=False) as place:
        await policed(place)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "none"))
        async with audited(place) as audit:
            await until(lambda: audit.size >= place.gateway.house.sequencer.confirmed.size)
            await place.ask("b", "coordination.admit", resource="repo:x", **DONE)
            await until(lambda: audit.unruled == 4)
            assert audit.damage is None
            assert (await place.get("/readyz")).status == 200
    said = [record for record in caplog.records if "can't ask the rules again" in record.getMessage()]
    assert len(said) == 1


async def test_an_old_entry_that_changes_is_found_as_well(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, self_audit=False) as place, audited(place) as audit:
        for number in range(4):
            await place.acquire("a", f"lock:{number}")
        await until(lambda: audit.size >= 6)
        change_entry(place.folder, 5, b"lock:", b"lack:")
        await until(lambda: audit.damage is not None)
        assert audit.damage is not None and (audit.damage.code, audit.damage.seq) == ("entry_changed", 5)


async def test_a_child_that_is_killed_comes_again_and_goes_on_from_where_it_was(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, self_audit=False) as place, audited(place) as audit:
        await place.acquire("a", "lock:x")
        await until(lambda: audit.size >= 3)
        assert audit.process is not None
        audit.process.kill()
        await place.acquire("a", "lock:y")
        await place.acquire("a", "lock:z")
        await until(lambda: audit.restarts == 1 and audit.size >= 4 and audit.process is not None)
        assert audit.damage is None and audit.process is not None
        child = audit.process.pid
    await until(lambda: not Path(f"/proc/{child}").exists())


async def test_a_position_that_is_none_any_more_is_no_damage(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, self_audit=False) as place:
        await place.acquire("a", "lock:x")
        folder = place.folder / "audit"
        folder.mkdir()
        (folder / "position").write_bytes(b"no position")
        async with audited(place) as audit:
            await until(lambda: audit.size >= 2)
            assert audit.damage is None and Marker(place.folder).read() is None


def test_a_mark_says_what_to_do(tmp_path: Path) -> None:
    check_mark(tmp_path)
    Marker(tmp_path).write(Damage("chain_broken", "prev is wrong", 7))
    with pytest.raises(StartError, match=r"chain_broken at entry 7: prev is wrong.*ledger fsck .*--clear-damage"):
        check_mark(tmp_path)


@pytest.mark.system
@pytest.mark.serial
def test_a_real_gateway_stops_granting_and_stays_so_until_an_operator_has_looked(tmp_path: Path) -> None:
    """Scenario 63 (vnx-orchestration#986): a row of a running system is changed, and somebody does verify the chain."""
    home = tmp_path / "home"
    with Gateway(tmp_path / "data") as gateway:
        assert _children(gateway.process.pid) == [], "what lives for a moment pays nothing"
        gateway.join(home)
        for number in range(5):
            gateway.cli(home, "lease", "acquire", f"lock:{number}")
        deadline_s = time.monotonic() + SECONDS_MAX
        while not (children := _children(gateway.process.pid)):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        (child,) = children
        while os.getpriority(os.PRIO_PROCESS, child) != 19:
            assert time.monotonic() < deadline_s
        change_entry(gateway.data, 4, b"lock:", b"lack:")
        while (code := _problem(f"{gateway.url}/readyz")) != "ledger_damaged":
            assert time.monotonic() < deadline_s, code
            time.sleep(0.1)
        refused = run_cli("lease", "acquire", "lock:new", "--home", str(home))
        assert refused.returncode != 0
        assert _problem(f"{gateway.url}/livez") == ""
        while _children(gateway.process.pid):  # it has said what it had to say
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(30) == 0
    assert "this ledger is damaged" in gateway.log.read_text()
    again = run_module("gateway", "serve", "--data", str(gateway.data), "--listen", f"127.0.0.1:{gateway.port}")
    assert again.returncode == 1 and "--clear-damage" in again.stderr
    data = str(gateway.data)
    assert run_cli("ledger", "fsck", "--data", data).returncode == 1
    assert run_cli("ledger", "fsck", "--data", data, "--clear-damage").returncode == 1, "it is still damaged"
    change_entry(gateway.data, 4, b"lack:", b"lock:")
    assert run_cli("ledger", "fsck", "--data", data, "--clear-damage").returncode == 0
    with gateway:
        gateway.cli(home, "lease", "acquire", "lock:new")


def _children(process_id: int) -> list[int]:
    text = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    return [int(word) for word in text.split()]


def _problem(url: str) -> str:
    """Return the code of the problem that an address answers with, empty when it answers well."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return ""
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read())["code"])


async def test_keys_may_change_while_it_is_audited(tmp_path: Path) -> None:
    """The published document lags behind the ledger here: it is never made anew."""
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, self_audit=False) as place, audited(place) as audit:
        root = load_key(place.folder / "root" / "root.key", purpose="root")
        signer, genesis = place.gateway.house.signer, made.genesis

        async def state(verb: str, purpose: str, key: VerifierKey) -> None:
            note = signed_statement(KeyStatement(verb, purpose, key, None), root, ORIGIN, genesis)
            reply = await place.ask("op", f"key.{verb}", statement=note)
            assert reply.status == 200, reply.body
            size = place.gateway.house.sequencer.confirmed.size
            await place.acquire("a", f"lock:{verb}-{purpose}")
            await until(lambda: audit.size >= size or audit.damage is not None)
            assert audit.damage is None

        for purpose, ending in (("log", "retire"), ("receipt", "compromise")):
            first = next(line.key for line in signer.lines if line.purpose == purpose)
            for suffix in ("key", "pass"):
                source = place.folder / "root" / f"next-{purpose}.{suffix}"
                source.rename(place.folder / "keys" / f"{purpose}.2.{suffix}")
            following = load_key(place.folder / "keys" / f"{purpose}.2.key", purpose=purpose)
            name = ORIGIN if purpose == "log" else f"{ORIGIN}/{purpose}"
            await state("announce", purpose, make_vkey(name, following.public_key))
            await state(ending, purpose, first)
        assert audit.restarts == 0
    check = check_file(Folder.of(place.folder))
    assert check.is_sound, list(check.flaws.lines())


async def test_a_disk_that_fails_for_a_moment_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, self_audit=False) as place:
        await place.acquire("a", "lock:x")
    reader = Reader(place.folder / "ledger.sqlite3")
    child, honest, failures = Child(place.folder, 0.0), Reader.entries, [Busy("disk_failing"), Fatal("broken")]

    def failing(self: Reader, start: int, stop: int) -> list[StoredEntry]:
        if stop - start > 1 and failures:
            raise failures.pop(0)
        return honest(self, start, stop)

    monkeypatch.setattr(Reader, "entries", failing)
    with pytest.raises(Busy):
        child._round()
    with pytest.raises(Fatal):
        child._round()
    assert child._round() is None and child._auditor is not None and child._auditor.size >= 3
    reader.close()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM])
async def test_a_file_that_cannot_be_opened_for_a_moment_is_no_damage(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "data")
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = code
    codes = [error, sqlite3.DatabaseError("the file is no database")]

    def failing(_path: Path) -> RawFile:
        raise codes.pop(0)

    monkeypatch.setattr("gateway.stores.RawFile", failing)
    child = Child(tmp_path / "data", 0.0)
    assert child._tried() is None
    found = child._tried()
    assert found is not None and found.code == "store_unreadable"


async def test_what_the_machine_refuses_is_tried_again_and_a_mark_that_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, honest, failures = make(tmp_path / "data"), asyncio.create_subprocess_exec, [OSError(11, "too many")]

    async def failing(*command: str, **options: object) -> asyncio.subprocess.Process:
        if failures:
            raise failures.pop()
        return await honest(*command, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", failing)
    async with world(tmp_path / "data", made, self_audit=False) as place, audited(place) as audit:
        await place.acquire("a", "lock:x")
        await until(lambda: audit.size >= 2)
        assert audit.restarts == 1 and "can't be started" in caplog.text
        (place.folder / "audit" / "damaged.json.new").mkdir()
        change_entry(place.folder, 1, b"isClean", b"isclean")
        await until(lambda: audit.damage is not None)
        assert (await place.acquire("a", "lock:y")).json["code"] == "ledger_damaged"
        await until(lambda: "can't be written" in caplog.text)


@pytest.mark.system
@pytest.mark.serial
def test_the_child_of_a_killed_gateway_ends_too(tmp_path: Path) -> None:
    with Gateway(tmp_path / "data") as gateway:
        deadline_s = time.monotonic() + SECONDS_MAX
        while not (children := _children(gateway.process.pid)):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        gateway.kill()
        (child,) = children
        while Path(f"/proc/{child}").exists():
            assert time.monotonic() < deadline_s, "it audits for nobody"
            time.sleep(0.1)
