"""Each command against a real gateway in a process of its own: codes, words, JSON; the ledger is audited at last."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess, Popen

import pytest

from gateway.actions import ACTIONS
from gateway.client.agent import Agent
from gateway.client.caller import DISPUTE_PATH
from gateway.client.commands import main
from gateway.client.errors import LeaseHeld, LedgerBehind, SplitView
from gateway.client.exits import ADVICE, MEANINGS
from gateway.client.fence import Answer, FenceGuard
from gateway.client.profile import open_profile
from gateway.client.terminal import duration_ms
from gateway.core.refusal import TABLE
from keys.signing import SigningKey
from tests.system.process import ROOT, Gateway, run_cli, run_module
from verifier.note import make_vkey

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with Gateway(folder / "ledger") as running:
        yield running
        report = running.verify_ledger(folder / "export")
    assert report["verdict"] == "valid"


@pytest.fixture(scope="module")
def alice(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("homes") / "alice"
    gateway.join(home)
    return home


@pytest.fixture(scope="module")
def bob(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("homes") / "bob"
    gateway.join(home)
    return home


def client(*arguments: str) -> CompletedProcess[str]:
    """Run a command of the client in this process, as `tallystick` would in its own."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as leaving:  # argparse
            code = int(str(leaving.code))
    return CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def lease(home: Path, *arguments: str) -> CompletedProcess[str]:
    return client("lease", *arguments, "--home", str(home))


def facts(result: CompletedProcess[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout)
    return found


# -- join --------------------------------------------------------------------------------------------------------------


def test_join_pins_the_root_and_says_what_is_next(gateway: Gateway, tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    first = client("join", gateway.url, "--root", f"@{gateway.data}/public/root.vkey", "--home", str(home))
    assert (first.returncode, first.stderr) == (0, "")
    did = open_profile(home).key.did
    assert did in first.stdout
    assert "checkpoint verified under the root key; made a key" in first.stdout
    assert (home / "seen.note").read_bytes().startswith(open_profile(home).address.origin.encode())
    again = client("join", gateway.url, "--root", gateway.root_vkey(), "--home", str(home), "--json")
    assert facts(again)["did"] == did


def test_join_under_another_root_key_makes_nothing(gateway: Gateway, tmp_path: Path) -> None:
    name, _, _ = gateway.root_vkey().partition("+")
    stranger = make_vkey(name, SigningKey(bytes([7]) * 32).public_key).vkey
    result = client("join", gateway.url, "--root", stranger, "--home", str(tmp_path / "home"))
    assert result.returncode == 78
    assert "no valid signature of the pinned root key" in result.stderr
    assert not (tmp_path / "home").exists()


def test_join_to_nothing_is_unreachable(tmp_path: Path, gateway: Gateway) -> None:
    result = client("join", "http://127.0.0.1:1", "--root", gateway.root_vkey(), "--home", str(tmp_path / "home"))
    assert result.returncode == 69
    assert "can't be reached" in result.stderr


# -- lease -------------------------------------------------------------------------------------------------------------


def test_a_lease_from_grant_to_release(gateway: Gateway, alice: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    granted = lease(alice, "acquire", "lock:whole/life", "--ttl", "30s", "--receipt", str(receipt))
    assert (granted.returncode, granted.stderr) == (0, "")
    assert re.search(r"lease\.granted  lock:whole/life  L\d+  \(entry \d+, verified\)", granted.stdout)
    assert "tallystick lease release lock:whole/life" in granted.stdout
    checked = run_module(
        "verifier", "receipt", str(receipt), "--root", gateway.root_vkey(), "--keys", str(alice / "keys.note")
    )
    assert checked.returncode == 0, checked.stdout
    again = facts(lease(alice, "acquire", "lock:whole/life", "--ttl", "60s", "--json"))
    assert again["type"] == "tallystick/lease.extended/1"
    listed = json.loads(lease(alice, "list", "--json").stdout)
    assert set(listed) == {"ok", "leases"}
    assert listed["ok"] is True
    mine = next(row for row in listed["leases"] if row["leaseId"] == again["leaseId"])
    assert (mine["resources"], mine["fencingToken"]) == (["lock:whole/life"], again["fencingToken"])
    assert str(again["leaseId"]) in lease(alice, "list").stdout
    renewed = facts(lease(alice, "renew", "lock:whole/life", "--ttl", "90s", "--json"))
    assert (renewed["type"], renewed["fencingToken"]) == ("tallystick/lease.renewed/1", again["fencingToken"])
    by_id = facts(lease(alice, "renew", str(again["leaseId"]), "--json"))
    assert by_id["leaseId"] == again["leaseId"]
    released = facts(lease(alice, "release", "lock:whole/life", "--json"))
    assert (released["ok"], released["type"]) == (True, "tallystick/lease.released/1")
    repeated = facts(lease(alice, "release", "lock:whole/life", "--lease", str(again["leaseId"]), "--json"))
    assert repeated["type"] == "tallystick/release.repeated/1"
    gone = lease(alice, "release", "lock:whole/life")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "holds no lease that is exactly lock:whole/life" in gone.stderr


def test_a_held_lease_names_its_holder_and_has_a_code_of_its_own(alice: Path, bob: Path, tmp_path: Path) -> None:
    """Scenario L47: holder, since when, until when, and what to do; the refusal has a receipt as well."""
    lease(alice, "acquire", "lock:a", "lock:b", "--ttl", "60s")
    receipt = tmp_path / "refusal.json"
    refused = lease(bob, "acquire", "lock:b", "--receipt", str(receipt))
    assert (refused.returncode, refused.stdout) == (73, "")
    assert f"lock:b is held by {open_profile(alice).key.did} until " in refused.stderr
    assert "--wait" in refused.stderr
    assert receipt.stat().st_size > 0
    as_json = lease(bob, "acquire", "lock:b", "--json")
    told = facts(as_json)
    assert (as_json.returncode, told["ok"], told["error"], told["exitCode"]) == (73, False, "lease_held", 73)
    assert told["holder"] == open_profile(alice).key.did
    shown = client("wait", "--home", str(bob))
    assert re.search(rf"lock:b  held by {open_profile(alice).key.did} until .* waiting: did:key", shown.stdout)
    one = json.loads(client("wait", "lock:b", "--json", "--home", str(bob)).stdout)
    assert [row["resource"] for row in one["resources"]] == ["lock:b"]
    lease(alice, "release", "lock:b", "lock:a")
    assert lease(bob, "acquire", "lock:b", "--wait", "5s").returncode == 0


def test_a_waiter_gets_what_is_released_meanwhile(alice: Path, bob: Path) -> None:
    assert lease(alice, "acquire", "lock:wanted", "--ttl", "2s").returncode == 0
    waited = lease(bob, "acquire", "lock:wanted", "--wait", "30s", "--json")
    assert (waited.returncode, facts(waited)["type"]) == (0, "tallystick/lease.granted/1")


def test_join_with_wrong_arguments_is_wrong_usage(gateway: Gateway, tmp_path: Path) -> None:
    root = gateway.root_vkey()
    for url, vkey in (("gateway", root), ("http://[x", root), (gateway.url, "x"), (gateway.url, f"@{tmp_path}/none")):
        result = client("join", url, "--root", vkey, "--home", str(tmp_path / "home"))
        assert (result.returncode, result.stdout) == (2, ""), result
        assert result.stderr.startswith(("tallystick join: URL: ", "tallystick join: --root: "))


def test_printed_commands_name_the_profile_and_work(gateway: Gateway, alice: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "r.json"
    shown = lease(alice, "acquire", "lock:next", "--receipt", str(receipt)).stdout
    checks = re.findall(r"tallystick-verify (.*)", shown)
    assert checks == [f"receipt {receipt} --root @{alice}/root.vkey --keys {alice}/keys.note"]
    assert run_module("verifier", *checks[0].split()).returncode == 0
    (back,) = re.findall(r"with:  tallystick (lease release .*)", shown)
    assert back == f"lease release lock:next --home {alice}"
    assert client(*back.split()).returncode == 0
    home = tmp_path / "home"
    joined = client("join", gateway.url, "--root", gateway.root_vkey(), "--home", str(home))
    assert f"tallystick lease acquire lock:demo --home {home}" in joined.stdout
    gone = lease(alice, "renew", "lock:next")
    assert "It may have run out; acquire again." in gone.stderr


def test_json_says_ok_and_names_no_class(alice: Path, tmp_path: Path) -> None:
    assert facts(client("wait", "--json", "--home", str(alice)))["ok"] is True
    for arguments, code, name in (
        (("lease", "list", "--home", str(tmp_path / "none")), 78, "profile_unusable"),
        (("lease", "renew", "lock:no", "--home", str(alice)), 1, "not_held"),
        (("lease", "acquire", "no-scheme", "--home", str(alice)), 2, "wrong_usage"),
    ):
        told = facts(client(*arguments, "--json"))
        assert (told["ok"], told["error"], told["exitCode"]) == (False, name, code)


def test_nothing_to_show_is_said_in_words(gateway: Gateway, alice: Path, tmp_path: Path) -> None:
    gateway.join(tmp_path / "new")
    for verb in ("acquire", "release"):  # this throw-away ledger knows a key from its first request on
        assert lease(tmp_path / "new", verb, "lock:once").returncode == 0
    assert lease(tmp_path / "new", "list").stdout == "This key holds no lease.\n"
    assert client("wait", "lock:free", "--home", str(alice)).stdout.startswith("lock:free is free")


def test_another_ledgers_gateway_is_named(alice: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(alice, other)
    with Gateway(tmp_path / "data", "--origin", "gateway.example/other") as stranger:
        address = json.loads((other / "gateway.json").read_text())
        (other / "gateway.json").write_text(json.dumps({**address, "url": stranger.url}))
        result = lease(other, "list")
    assert (result.returncode, result.stderr) == (
        78, f"tallystick lease: the gateway at {stranger.url} is not ledger {address['origin']}\n",
    )  # fmt: skip


def test_a_receipt_that_can_not_be_kept_is_said_before_the_lease_is_taken(alice: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "nothing" / "r.json", tmp_path):
        result = lease(alice, "acquire", "lock:kept", "--receipt", str(target))
        assert (result.returncode, result.stdout) == (2, "")
        assert "nothing was sent" in result.stderr
    assert "lock:kept" not in lease(alice, "list").stdout


def test_a_lease_whose_receipt_is_lost_on_the_way_to_disk_is_told_all_the_same(alice: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "r.json"
    (tmp_path / "r.json.new").mkdir()
    result = lease(alice, "acquire", "lock:late", "--receipt", str(receipt))
    assert (result.returncode, "can't be written" in result.stderr) == (78, True)
    assert re.search(r"lease\.granted  lock:late  L\d+ .*\nfencing token \d+", result.stdout)
    assert "tallystick lease release lock:late" in result.stdout
    told = facts(lease(alice, "acquire", "lock:late", "--receipt", str(receipt), "--json"))
    assert (told["ok"], told["error"], told["resources"]) == (False, "receipt_not_written", ["lock:late"])


def test_a_gateway_that_is_away_is_said_at_once(alice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = tmp_path / "away"
    shutil.copytree(alice, away)
    address = json.loads((away / "gateway.json").read_text())
    (away / "gateway.json").write_text(json.dumps({**address, "url": "http://127.0.0.1:1"}))
    began_s = time.monotonic()
    for command in (("lease", "list"), ("wait",)):
        result = client(*command, "--home", str(away))
        assert result.returncode == 69
        assert result.stderr.endswith("http://127.0.0.1:1 can't be reached: connection refused\n")
    assert time.monotonic() - began_s < 10
    monkeypatch.setattr("gateway.client.caller.RETRY_MS", 1_000)
    result = lease(away, "acquire", "lock:away")
    assert result.returncode == 69
    assert result.stderr.count("http://127.0.0.1:1 does not answer; trying for up to") == 1


USAGE = [
    (("acquire", "no-scheme"), "scheme:path"),
    (("acquire", "lock:x/**"), "sub-trees are not supported yet"),
    (("acquire", "lock:x", "--ttl", "30"), "500ms, 30s, 5m or 1h"),
    (("acquire", "lock:x", "--ttl", "2h"), "--ttl: 1s to 1h"),
    (("acquire",), "--help"),
    (("renew", "no-scheme"), "scheme:path"),
    (("list", "--holder", "foo"), "--holder: me, or a did:key"),
]


@pytest.mark.parametrize(("arguments", "text"), USAGE)
def test_wrong_usage_says_what_is_right(alice: Path, arguments: tuple[str, ...], text: str) -> None:
    result = lease(alice, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert text in result.stderr


def test_without_a_profile_the_way_to_one_is_named(tmp_path: Path) -> None:
    result = lease(tmp_path, "list")
    assert result.returncode == 78
    assert "tallystick join" in result.stderr


@pytest.mark.parametrize(
    ("text", "duration"), [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("0s", 0)]
)
def test_durations_name_their_unit(text: str, duration: int) -> None:
    assert duration_ms(text) == duration


@pytest.mark.parametrize("text", ["", "5", "-5s", "5 s", "1.5s", "5d", "٥s", "5s\n", "9999999999s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="is no duration"):
        duration_ms(text)


def test_help_prints_every_exit_code() -> None:
    for command in (["lease", "acquire"], ["run"], ["wait"], ["join"]):
        printed = client(*command, "--help").stdout
        assert all(f"{code:>3}  {meaning}" in printed for code, meaning in MEANINGS.items())


def test_there_is_advice_for_every_receipted_refusal_and_for_nothing_else() -> None:
    assert set(ADVICE) == {row.name for row in TABLE if row.is_receipted} - {"lease_held"}


def test_the_dispute_door_is_the_gateways() -> None:
    assert ACTIONS["ledger.dispute"].path == DISPUTE_PATH


# -- run ---------------------------------------------------------------------------------------------------------------


def run_under(home: Path, resource: str, *arguments: str) -> CompletedProcess[str]:
    return run_cli("run", "--resource", resource, "--home", str(home), *arguments)


def test_run_returns_the_commands_status_and_leaves_nothing_held(alice: Path, bob: Path) -> None:
    done = run_under(alice, "lock:run", "--", "sh", "-c", "echo token $TALLYSTICK_FENCING_TOKEN; exit 7")
    assert (done.returncode, done.stderr) == (7, "")
    assert re.fullmatch(r"token \d{16}\n", done.stdout)
    assert run_under(bob, "lock:run", "--", "true").returncode == 0


def test_run_passes_on_what_follows_the_dashes(alice: Path) -> None:
    done = run_under(alice, "lock:dashes", "--", "printf", "%s,", "--", "--ttl", "-x")
    assert (done.returncode, done.stdout) == (0, "--,--ttl,-x,")


def test_two_runs_of_one_profile_exclude_each_other(alice: Path, bob: Path, tmp_path: Path) -> None:
    """Scenario 20: two cron jobs share ~/.tallystick; the second does not start, and the first keeps its lease."""
    up, end, started = tmp_path / "up", tmp_path / "end", tmp_path / "started"
    os.mkfifo(up)
    os.mkfifo(end)
    first = start_run(alice, "lock:cron", "sh", "-c", f"echo > {up}; read line < {end}")
    try:
        up.read_bytes()
        second = run_under(alice, "lock:cron", "--", "touch", str(started))
        assert (second.returncode, second.stdout, started.exists()) == (73, "", False)
        assert (
            f"lock:cron is held, or waited for, by this same key on this machine: process {first.pid}" in second.stderr
        )
        assert run_under(alice, "lock:cron", "--wait", "300ms", "--", "touch", str(started)).returncode == 73
        assert "is held by" in run_under(bob, "lock:cron", "--", "touch", str(started)).stderr
        end.write_text("\n")
        assert first.wait(30) == 0
        assert run_under(bob, "lock:cron", "--", "touch", str(started)).returncode == 0
    finally:
        first.kill()
        first.wait()


def test_a_run_waits_for_the_other_of_its_profile(alice: Path, tmp_path: Path) -> None:
    up, out = tmp_path / "up", tmp_path / "out"
    os.mkfifo(up)
    first = start_run(alice, "lock:turns", "sh", "-c", f"echo > {up}; sleep 1; echo first >> {out}")
    up.read_bytes()
    second = run_under(alice, "lock:turns", "--wait", "30s", "--", "sh", "-c", f"echo second >> {out}")
    assert (second.returncode, first.wait(30)) == (0, 0)
    assert out.read_text() == "first\nsecond\n"


def test_after_kill_9_the_same_profile_takes_the_lease_up_again(alice: Path, bob: Path, tmp_path: Path) -> None:
    """Scenario 3: the lock of a dead process blocks nobody, neither its own profile nor, after the release, another."""
    up = tmp_path / "up"
    os.mkfifo(up)
    first = start_run(alice, "lock:crash", "sh", "-c", f"echo $$ > {up}; exec sleep 600")
    command = int(up.read_text())
    first.kill()
    first.wait()
    os.killpg(command, signal.SIGKILL)
    assert "is held by" in run_under(bob, "lock:crash", "--", "true").stderr
    assert run_under(alice, "lock:crash", "--", "true").returncode == 0
    assert run_under(bob, "lock:crash", "--", "true").returncode == 0


def start_run(home: Path, resource: str, *command: str) -> Popen[bytes]:
    arguments = ["run", "--resource", resource, "--home", str(home), "--", *command]
    return Popen([sys.executable, "-m", "gateway", *arguments], cwd=ROOT)


def test_a_command_with_options_needs_the_dashes_and_is_told_so(alice: Path) -> None:
    result = client("run", "--resource", "lock:x", "--home", str(alice), "sh", "-c", "true")
    assert (result.returncode, "Put -- between the options and the command" in result.stderr) == (2, True)


def test_run_without_the_lease_has_a_code_of_its_own(alice: Path, bob: Path) -> None:
    lease(alice, "acquire", "lock:taken", "--ttl", "60s")
    refused = run_under(bob, "lock:taken", "--wait", "200ms", "--", "echo", "never")
    assert (refused.returncode, refused.stdout) == (73, "")
    assert "is held by" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code"), [(("--ttl", "1s", "--", "true"), 2), ((), 2), (("--", "/no/such"), 127)]
)
def test_run_refuses_what_it_can_not_do(alice: Path, arguments: tuple[str, ...], code: int) -> None:
    assert run_under(alice, "lock:cannot", *arguments).returncode == code


def test_a_command_may_read_keys_and_ctrl_c_is_its_own(alice: Path) -> None:
    """On a terminal: a line typed reaches the command, and the interrupt key ends it with 128 + SIGINT."""
    # No shell: one that is interrupted between two commands remembers it and runs the second all the same.
    code = "import signal as s; s.signal(s.SIGINT, s.SIG_DFL); print('got', input(), flush=True); s.pause()"
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover  # the other side of the fork
        os.chdir(ROOT)
        command = ["run", "--resource", "lock:tty", "--home", str(alice), "--", sys.executable, "-c", code]
        os.execv(sys.executable, [sys.executable, "-m", "gateway", *command])
    os.write(terminal, b"hello\n")
    read_until(terminal, b"got hello")
    os.write(terminal, b"\x03")
    assert ended(child, terminal) == 128 + signal.SIGINT
    os.close(terminal)


def ended(child: int, terminal: int) -> int:
    """Return the status of a child that should end by itself; one that hangs is killed, and what it wrote is shown."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        select.select([terminal], [], [], 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"still running 30 s after the interrupt; it wrote {os.read(terminal, 4_096)!r}")


def read_until(terminal: int, words: bytes) -> None:
    seen = b""
    while words not in seen:
        ready, _, _ = select.select([terminal], [], [], 30)
        assert ready, seen
        seen += os.read(terminal, 4_096)


# -- the library, against the same gateway -----------------------------------------------------------------------------


async def test_two_agents_and_a_guard(gateway: Gateway, alice: Path, bob: Path) -> None:
    """The whole promise: A holds and writes; B waits, holds, writes; A's old receipt writes no more."""
    profile = open_profile(alice)
    guard = FenceGuard(profile.keyring, profile.address.origin)
    async with Agent.open(alice) as first, Agent.open(bob) as second:
        async with first.lease("repo:app/a.py", ttl_ms=10_000) as held:
            with pytest.raises(LeaseHeld) as refused:
                await second.acquire("repo:app/a.py")
            assert refused.value.holder == first.did
            challenge = guard.challenge()
            guard.check(held.receipt, "repo:app/a.py", Answer(challenge, held.answer(challenge, "repo:app/a.py")))
            old = held.receipt
            stale = guard.challenge()
            stale_answer = Answer(stale, held.answer(stale, "repo:app/a.py"))
        async with second.lease("repo:app/a.py", ttl_ms=10_000, wait_ms=5_000) as held:
            challenge = guard.challenge()
            guard.check(held.receipt, "repo:app/a.py", Answer(challenge, held.answer(challenge, "repo:app/a.py")))
            with pytest.raises(Exception, match="is older than"):
                guard.check(old, "repo:app/a.py", stale_answer)
        entry = await second.receipt(0)
        assert entry.leaf.type == "tallystick/ledger.opened/1"
        assert [row["did"] for row in await second.agents()].count(second.did) == 1


async def test_the_operator_adds_and_removes(gateway: Gateway, bob: Path) -> None:
    did = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
    async with Agent.open(gateway.data / "operator") as operator:
        added = await operator.add_agent(did, "worker-1")
        removed = await operator.remove_agent(did)
        assert [added.type, removed.type] == ["tallystick/agent.added/1", "tallystick/agent.removed/1"]
        row = next(row for row in await operator.agents() if row["did"] == did)
        assert (row["name"], row["removedSeq"]) == ("worker-1", removed.seq)


async def test_a_lease_outlives_a_killed_gateway(gateway: Gateway, alice: Path) -> None:
    """Scenarios 45, L8 and L16: heartbeats meet a dead gateway, go on, and find the lease where it was."""
    renewed = asyncio.Event()
    async with (
        Agent.open(alice) as agent,
        agent.lease("lock:survivor", ttl_ms=12_000, on_grant=lambda grant: renewed.set()) as held,
    ):
        token = held.fencing_token
        renewed.clear()
        await asyncio.to_thread(gateway.kill)
        await asyncio.to_thread(gateway.start)
        await asyncio.wait_for(renewed.wait(), 30)
        assert held.is_trusted
        assert (held.fencing_token, held.beats) == (token, 1)


async def test_a_gateway_on_a_restored_backup_is_not_used(
    gateway: Gateway, alice: Path, bob: Path, tmp_path: Path
) -> None:
    """Decisions §33: a restored back-up goes on where this profile knows other entries; told so, it grants nothing."""
    backup = tmp_path / "ledger.sqlite3"
    assert run_cli("ledger", "backup", str(backup), "--data", str(gateway.data)).returncode == 0
    async with Agent.open(alice) as agent:
        await agent.acquire("lock:after-the-backup")
    gateway.stop()
    original = (gateway.data / "ledger.sqlite3").rename(tmp_path / "original.sqlite3")
    for leftover in gateway.data.glob("ledger.sqlite3-*"):
        leftover.unlink()
    backup.rename(gateway.data / "ledger.sqlite3")
    gateway.start()
    try:
        with pytest.raises((SplitView, LedgerBehind)):
            async with Agent.open(alice):
                pytest.fail("a session began")
        refused = await asyncio.to_thread(lease, bob, "acquire", "lock:any")
        assert (refused.returncode, "ledger_disputed" in refused.stderr) == (1, True)
    finally:
        gateway.stop()
        for leftover in gateway.data.glob("ledger.sqlite3*"):
            leftover.unlink()
        original.rename(gateway.data / "ledger.sqlite3")
        gateway.start()
