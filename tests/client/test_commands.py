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
from gateway.client.errors import Deadlock, Fenced, LeaseHeld, LedgerBehind, SplitView
from gateway.client.exits import MEANINGS
from gateway.client.fence import Answer, FenceGuard
from gateway.client.profile import open_profile
from gateway.client.terminal import duration_ms
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
    assert re.search(r"tallystick lease release L\d+ --home ", granted.stdout)
    checked = run_module(
        "verifier", "receipt", str(receipt), "--root", gateway.root_vkey(), "--keys", str(alice / "keys.note")
    )
    assert checked.returncode == 0, checked.stdout
    again = facts(lease(alice, "acquire", "lock:whole/life", "--ttl", "60s", "--json"))
    assert again["type"] == "tallystick/lease.extended/1"
    listed = json.loads(lease(alice, "list", "--json").stdout)
    assert set(listed) == {"ok", "leases", "offered"}
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
    assert re.search(
        rf"lock:b  held by {open_profile(alice).key.did}, write, L.*\n  refused lately: did:key", shown.stdout
    )
    one = json.loads(client("wait", "lock:b", "--json", "--home", str(bob)).stdout)
    assert [row["resource"] for row in one["resources"]] == ["lock:b"]
    lease(alice, "release", "lock:b", "lock:a")
    assert lease(bob, "acquire", "lock:b", "--wait", "5s").returncode == 0


def test_a_waiter_gets_what_is_released_meanwhile(alice: Path, bob: Path) -> None:
    assert lease(alice, "acquire", "lock:wanted").returncode == 0
    acquire = ("lease", "acquire", "lock:wanted", "--wait", "60s", "--json", "--home", str(bob))
    waiting = Popen([sys.executable, "-m", "gateway", *acquire], cwd=ROOT, stdout=-1, text=True)
    try:
        while " of did:key" not in client("wait", "lock:wanted", "--home", str(alice)).stdout:
            assert waiting.poll() is None
            time.sleep(0.05)  # it asks a foreign process; nothing asserts on this clock
        assert lease(alice, "release", "lock:wanted").returncode == 0
        told, _ = waiting.communicate(timeout=60)
        assert (waiting.returncode, json.loads(told)["type"]) == (0, "tallystick/lease.claimed/1")
    finally:
        waiting.kill()
        waiting.wait()


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
    assert re.fullmatch(rf"lease release L\d+ --home {alice}", back)
    assert client(*back.split()).returncode == 0
    home = tmp_path / "home"
    joined = client("join", gateway.url, "--root", gateway.root_vkey(), "--home", str(home))
    assert f"tallystick lease acquire lock:demo --home {home}" in joined.stdout
    gone = lease(alice, "renew", "lock:next")
    assert "Named by its id, such as L42, it says how it ended; or acquire again." in gone.stderr


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
    assert "tallystick lease release L" in result.stdout
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


DID_BOUND = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
USAGE = [
    (("acquire", "no-scheme"), "scheme:path"),
    (("acquire", "lock:x/*"), "* stands only as the last segment **"),
    (("acquire", "lock:x", "--mode", "use"), "invalid choice: 'use'"),
    (("acquire", "lock:x", "--give-up", "1ms"), "giveUpMs"),
    (
        ("transfer", "lock:x", "--to", "bob", "--reason", "x"),
        "--to: a DID, did:key:z6Mk…, as tallystick join printed it",
    ),
    (("transfer", "lock:x", "--to", DID_BOUND, "--token", "1", "--reason", "x"), "name the lease by its id"),
    (("transfer", "L1", "--to", DID_BOUND, "--token", "1", "--reason", "Because it is"), "--reason: a code"),
    (("break", "lock:x", "--token", "0", "--reason", "x"), "--token: an integer from 1"),
    (("break", "lock:x", "--reason", "x"), "--token"),
    (("accept", "lock:x"), "L and the seq of the granting entry"),
    (("acquire", "lock:x", "--ttl", "30"), "500ms, 30s, 5m or 1h"),
    (("acquire", "lock:x", "--ttl", "2h"), "--ttl: 1s to 1h"),
    (("acquire",), "--help"),
    (("renew", "no-scheme"), "scheme:path"),
    (("list", "--holder", "foo"), "--holder: me, or a DID"),
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
    for command in (["lease", "acquire"], ["run"], ["wait"], ["wait", "claim"], ["scheme", "set"], ["trust"], ["join"]):
        printed = client(*command, "--help").stdout
        assert all(f"{code:>3}  {meaning}" in printed for code, meaning in MEANINGS.items())


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
        second = run_under(alice, "lock:cron", "--no-wait", "--", "touch", str(started))
        assert (second.returncode, second.stdout, started.exists()) == (73, "", False)
        assert (
            f"lock:cron is held, or waited for, by this same key on this machine: process {first.pid}" in second.stderr
        )
        assert run_under(alice, "lock:cron", "--wait", "300ms", "--", "touch", str(started)).returncode == 73
        assert "is held by" in run_under(bob, "lock:cron", "--no-wait", "--", "touch", str(started)).stderr
        end.write_text("\n")
        assert first.wait(30) == 0
        assert run_under(bob, "lock:cron", "--", "touch", str(started)).returncode == 0
    finally:
        first.kill()
        first.wait()


def test_a_run_waits_for_the_other_of_its_profile(alice: Path, tmp_path: Path) -> None:
    up, end, out = tmp_path / "up", tmp_path / "end", tmp_path / "out"
    os.mkfifo(up)
    os.mkfifo(end)
    first = start_run(alice, "lock:turns", "sh", "-c", f"echo > {up}; read line < {end}; echo first >> {out}")
    started: list[Popen[bytes] | Popen[str]] = [first]
    try:
        up.read_bytes()
        second = start_waiting(alice, "lock:turns", "sh", "-c", f"echo second >> {out}")
        started.append(second)
        assert second.stderr is not None
        told = f"waiting for process {first.pid}, which has lock:turns with this same key; for up to 3600 s"
        assert told in second.stderr.readline()
        end.write_text("\n")
        assert (first.wait(30), second.wait(30)) == (0, 0)
        assert out.read_text() == "first\nsecond\n"
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_after_kill_9_the_same_profile_takes_the_lease_up_again(alice: Path, bob: Path, tmp_path: Path) -> None:
    """Scenario 3: the lock of a dead process blocks nobody, neither its own profile nor, after the release, another."""
    up = tmp_path / "up"
    os.mkfifo(up)
    first = start_run(alice, "lock:crash", "sh", "-c", f"echo $$ > {up}; exec sleep 600")
    command = int(up.read_text())
    first.kill()
    first.wait()
    os.killpg(command, signal.SIGKILL)
    assert "is held by" in run_under(bob, "lock:crash", "--no-wait", "--", "true").stderr
    assert run_under(alice, "lock:crash", "--", "true").returncode == 0
    assert run_under(bob, "lock:crash", "--", "true").returncode == 0


def start_run(home: Path, resource: str, *command: str) -> Popen[bytes]:
    return Popen(run_command(home, resource, *command), cwd=ROOT)


def start_waiting(home: Path, resource: str, *command: str) -> Popen[str]:
    """Start a run whose first words, on what it waits for, can be read."""
    return Popen(run_command(home, resource, *command), cwd=ROOT, stderr=-1, text=True)


def run_command(home: Path, resource: str, *command: str) -> list[str]:
    return [sys.executable, "-m", "gateway", "run", "--resource", resource, "--home", str(home), "--", *command]


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


# -- sharing, the line, operators --------------------------------------------------------------------------------------


def operator(gateway: Gateway, *arguments: str) -> CompletedProcess[str]:
    return client(*arguments, "--home", str(gateway.data / "operator"))


@pytest.fixture(scope="module")
def docs(gateway: Gateway) -> None:
    """The scheme `docs` is read-safe and folds case."""
    assert operator(gateway, "scheme", "set", "docs", "--class", "read-safe", "--folding").returncode == 0


@pytest.mark.usefixtures("docs")
def test_readers_share_a_subtree_and_a_writer_is_told_who_they_are(alice: Path, bob: Path) -> None:
    """Scenarios 24, 26 and L47: sub-trees, two spellings of one name, and under which name it is held."""
    tree = lease(alice, "acquire", "docs:guide/**", "--mode", "read")
    file = lease(bob, "acquire", "docs:Guide/Intro.md", "--mode", "read")
    assert (tree.returncode, file.returncode) == (0, 0)
    assert re.search(r"fencing token \d+  read  until ", file.stdout)
    shown = client("wait", "docs:GUIDE/**", "--home", str(bob)).stdout
    assert re.match(r"docs:GUIDE/\*\*  held by did:\S+ as docs:guide/\*\*, read, L\d+, token \d+, until ", shown)
    mine = open_profile(bob).key.did
    assert re.search(rf"\n  held by {mine} \(you\) as docs:Guide/Intro.md, read, L\d+", shown), "a line for each"
    refused = lease(bob, "acquire", "docs:guide/intro.MD", "--mode", "write")
    assert refused.returncode == 73
    assert "It is a read lease on docs:guide/**, token" in refused.stderr
    upgrade = lease(bob, "renew", "docs:Guide/Intro.md", "--mode", "write")
    assert (upgrade.returncode, "docs:guide/**" in upgrade.stderr) == (73, True)
    assert re.search(
        r"Ask again in \d+ s, or release it and stand in line with tallystick lease acquire", upgrade.stderr
    )
    lease(alice, "release", "docs:guide/**")
    changed = facts(lease(bob, "renew", "docs:Guide/Intro.md", "--mode", "write", "--json"))
    assert (changed["type"], changed["mode"]) == ("tallystick/lease.changed/1", "write")
    assert lease(alice, "acquire", "docs:guide/**", "--mode", "read").returncode == 73
    assert lease(bob, "release", str(changed["leaseId"])).returncode == 0


@pytest.mark.usefixtures("docs")
def test_two_leases_on_the_same_names_are_told_apart_by_their_ids(alice: Path) -> None:
    backs = []
    for mode in ("read", "write"):
        granted = lease(alice, "acquire", "docs:both", "--mode", mode)
        backs += re.findall(r"with:  tallystick (lease release .*)", granted.stdout)
    unclear = lease(alice, "renew", "docs:both")
    assert unclear.returncode == 1
    ids = re.findall(r"(L\d+) \((\w+)\)", unclear.stderr)
    assert [mode for _, mode in ids] == ["read", "write"]
    assert lease(alice, "release", "docs:both", "--lease", ids[0][0]).returncode == 0
    assert [client(*back.split()).stdout.split()[0] for back in backs] == ["release.repeated", "lease.released"]


def test_schemes_are_set_by_the_operator_and_seen_by_all(gateway: Gateway, alice: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "scheme.json"
    arguments = ("--class", "append-only", "--unicode", "--lock-delay", "0s", "--max-hold", "8h")
    done = operator(gateway, "scheme", "set", "feed", *arguments, "--receipt", str(receipt))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"scheme\.set  feed  \(entry \d+, verified\)", done.stdout)
    assert receipt.stat().st_size > 0
    shown = client("scheme", "list", "--home", str(alice)).stdout
    assert "feed  append-only  unicode  lock-delay 0s  max-hold 8h" in shown
    assert shown.endswith("Every other scheme is exclusive: nobody shares.\n")
    rows = facts(client("scheme", "list", "--json", "--home", str(alice)))["schemes"]
    assert isinstance(rows, list)
    assert "feed" in [row["name"] for row in rows]
    wrong = lease(alice, "acquire", "feed:new\u00e4", "--mode", "write")
    assert (wrong.returncode, "mode_not_allowed" in wrong.stderr, "--mode append" in wrong.stderr) == (1, True, True)
    assert lease(alice, "acquire", "feed:new\u00e4", "--mode", "append").returncode == 0
    assert client("wait", "feed:new\u00e4", "--home", str(alice)).stdout.startswith("feed:new\u00e4  held by did:")
    assert lease(alice, "release", "feed:new\u00e4").returncode == 0
    assert "tallystick scheme set SCHEME --unicode" in lease(alice, "acquire", "lock:\u00e4").stderr
    stranger = client("scheme", "set", "feed", "--class", "exclusive", "--home", str(alice))
    assert (stranger.returncode, "operator_required" in stranger.stderr) == (1, True)
    for usage in (("Feed", "--class", "exclusive"), ("feed", "--class", "exclusive", "--max-hold", "0s")):
        assert operator(gateway, "scheme", "set", *usage).returncode == 2


def test_a_scheme_in_use_is_not_changed(gateway: Gateway, alice: Path) -> None:
    operator(gateway, "scheme", "set", "busy", "--class", "read-safe")
    lease(alice, "acquire", "busy:x", "--ttl", "60s")
    refused = operator(gateway, "scheme", "set", "busy", "--class", "exclusive")
    assert (refused.returncode, "scheme_busy" in refused.stderr, "tallystick wait" in refused.stderr) == (1, True, True)
    lease(alice, "release", "busy:x")
    assert operator(gateway, "scheme", "set", "busy", "--class", "exclusive").returncode == 0


def test_a_ticket_outlives_its_command_and_is_gone_on_with_by_another(alice: Path, bob: Path, tmp_path: Path) -> None:
    """Scenario 39: take a place within one short call, come back with the ticket, and in the end have the lease."""
    lease(alice, "acquire", "lock:line", "--ttl", "60s")
    receipt = tmp_path / "ticket.json"
    queued = lease(bob, "acquire", "lock:line", "--give-up", "5m", "--receipt", str(receipt))
    assert (queued.returncode, queued.stdout) == (73, "")
    (ticket,) = re.findall(r"tallystick wait claim (T\d+) --home", queued.stderr)
    assert receipt.stat().st_size > 0
    told = facts(lease(bob, "acquire", "lock:line", "--give-up", "5m", "--json"))
    assert (told["error"], told["ticketId"], told["exitCode"]) == ("already_waiting", ticket, 73)
    shown = client("wait", "lock:line", "--home", str(alice)).stdout
    did = open_profile(bob).key.did
    assert re.search(rf"\n  1\. {ticket} of {did}, write, queued, kept until ", shown)
    still = client("wait", "claim", ticket, "--wait", "0s", "--home", str(bob), "--json")
    assert (still.returncode, facts(still)["error"], facts(still)["position"]) == (73, "still_waiting", 1)
    lease(alice, "release", "lock:line")
    plain = lease(alice, "acquire", "lock:line")
    assert (plain.returncode, f"ticket {ticket} of {did} comes first" in plain.stderr) == (73, True)
    served = client("wait", "claim", ticket, "--home", str(bob))
    assert (served.returncode, served.stderr) == (0, "")
    assert served.stdout.startswith("lease.claimed  lock:line  L")
    (back,) = re.findall(r"with:  tallystick (lease release .*)", served.stdout)
    assert client(*back.split()).returncode == 0
    gone = client("wait", "cancel", ticket, "--home", str(bob))
    assert (gone.returncode, "ticket_ended" in gone.stderr) == (1, True)


def test_who_waited_in_vain_is_told_so_and_how_long(alice: Path, bob: Path) -> None:
    """Also who waited into a deadlock knowingly was only refused in the end."""
    lease(alice, "acquire", "lock:vain/a", "--ttl", "60s")
    lease(bob, "acquire", "lock:vain/b", "--ttl", "60s")
    ticket = str(facts(lease(alice, "acquire", "lock:vain/b", "--give-up", "1m", "--json"))["ticketId"])
    vain = lease(bob, "acquire", "lock:vain/a", "--wait", "1s", "--on-deadlock", "wait")
    did = open_profile(alice).key.did
    assert vain.returncode == 73
    told, gave_up = vain.stderr.split("\n", 1)
    assert re.fullmatch(
        r"tallystick lease: waiting in line with ticket T\d+, number 1; for up to 1 s, an interrupt ends it", told
    )
    assert gave_up.startswith(
        f"tallystick lease: Waited 1 s in line; the place is given up. lock:vain/a is held by {did} until "
    )
    assert " ms" not in gave_up
    client("wait", "cancel", ticket, "--home", str(alice))
    plain = lease(bob, "acquire", "lock:vain/a")
    assert re.search(r"Try again in \d+ s, wait in line", plain.stderr)
    for home, name in ((alice, "lock:vain/a"), (bob, "lock:vain/b")):
        lease(home, "release", name)


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_interrupted_wait_says_what_becomes_of_the_place(alice: Path, bob: Path, is_kept: bool) -> None:
    lease(alice, "acquire", "lock:keys", "--ttl", "60s")
    options = ("--wait", "60s", *(("--give-up", "5m") if is_kept else ()))
    command = (sys.executable, "-m", "gateway", "lease", "acquire", "lock:keys", *options, "--home", str(bob))
    waiting = Popen(command, cwd=ROOT, stderr=-1, text=True)
    try:
        assert waiting.stderr is not None
        (ticket,) = re.findall(r"with ticket (T\d+), number 1", waiting.stderr.readline())
        waiting.send_signal(signal.SIGINT)
        _, told = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
        waiting.wait()
    assert waiting.returncode == 130
    if is_kept:
        assert f"{ticket} keeps its place" in told
        (back,) = re.findall(r"tallystick (wait cancel T\d+ --home \S+)", told)
        assert client(*back.split()).returncode == 0
    else:
        assert told == "tallystick lease: interrupted; left the line, and nothing is taken.\n"
        assert ticket not in client("wait", "lock:keys", "--home", str(alice)).stdout
    lease(alice, "release", "lock:keys")


def test_a_ticket_is_given_up(alice: Path, bob: Path) -> None:
    lease(alice, "acquire", "lock:left", "--ttl", "60s")
    ticket = str(facts(lease(bob, "acquire", "lock:left", "--give-up", "1m", "--wait", "1s", "--json"))["ticketId"])
    assert "ticket_not_yours" in client("wait", "cancel", ticket, "--home", str(alice)).stderr
    cancelled = client("wait", "cancel", ticket, "--home", str(bob))
    assert (cancelled.returncode, cancelled.stdout.startswith(f"wait.cancelled  {ticket}  (entry ")) == (0, True)
    assert client("wait", "claim", "42", "--home", str(bob)).returncode == 2
    assert "ticket_unknown" in client("wait", "claim", "T1", "--home", str(bob)).stderr
    lease(alice, "release", "lock:left")


def test_waiting_for_each_other_is_refused_with_the_ring(alice: Path, bob: Path) -> None:
    """Scenario 35: A holds one and waits for two, B holds two and asks for one: told at once, not after an hour."""
    lease(alice, "acquire", "lock:ring/one", "--ttl", "60s")
    lease(bob, "acquire", "lock:ring/two", "--ttl", "60s")
    ticket = str(facts(lease(alice, "acquire", "lock:ring/two", "--give-up", "1m", "--json"))["ticketId"])
    refused = lease(bob, "acquire", "lock:ring/one", "--wait", "1h")
    assert refused.returncode == 79
    a, b = open_profile(alice).key.did, open_profile(bob).key.did
    assert f"  {b} waits for lock:ring/one (write), which {a} holds (token " in refused.stderr
    assert f"  {a} waits for lock:ring/two (write), which {b} holds (token " in refused.stderr
    assert refused.stderr.endswith("in this order:\n  lock:ring/one lock:ring/two\n")
    told = facts(lease(bob, "acquire", "lock:ring/one", "--wait", "1h", "--json"))
    assert (told["error"], told["acquireOrder"]) == ("deadlock", ["lock:ring/one", "lock:ring/two"])
    knowingly = lease(bob, "acquire", "lock:ring/one", "--give-up", "1m", "--on-deadlock", "wait", "--json")
    second = str(facts(knowingly)["ticketId"])
    first, other = (f"{did} (you)" if did == a else did for did in sorted((a, b)))
    assert f"deadlock: {first} and {other} wait for each other" in client("wait", "--home", str(alice)).stdout
    for home, number in ((alice, ticket), (bob, second)):
        assert client("wait", "cancel", number, "--home", str(home)).returncode == 0
    lease(alice, "release", "lock:ring/one")
    lease(bob, "release", "lock:ring/two")


def test_a_lease_is_handed_over_by_its_holder_and_by_an_operator(gateway: Gateway, alice: Path, bob: Path) -> None:
    granted = facts(lease(alice, "acquire", "lock:shift", "--ttl", "60s", "--json"))
    did = open_profile(bob).key.did
    early = lease(bob, "accept", str(granted["leaseId"]))
    assert (early.returncode, "not_offered" in early.stderr) == (1, True)
    offered = lease(alice, "transfer", "lock:shift", "--to", did, "--reason", "shift-over")
    assert offered.returncode == 0
    bobs, alices = lease(bob, "list"), client("wait", "lock:shift", "--home", str(alice))
    assert f"offered to you by {open_profile(alice).key.did}: {granted['leaseId']}  lock:shift" in bobs.stdout
    assert f"lease accept {granted['leaseId']}" in bobs.stdout
    assert f", offered to {did}" in alices.stdout
    (accept,) = re.findall(r"with:  tallystick (lease accept L\d+)", offered.stdout)
    taken = facts(client(*accept.split(), "--home", str(bob), "--json"))
    assert (taken["type"], taken["resources"]) == ("tallystick/lease.transferred/1", ["lock:shift"])
    assert int(str(taken["fencingToken"])) > int(str(granted["fencingToken"]))
    for arguments in (("release", "lock:shift", "--lease"), ("release",), ("renew",)):
        late = lease(alice, *arguments, str(granted["leaseId"]))
        assert (late.returncode, late.stdout) == (1, "")
        assert re.search(rf"lease_transferred \(entry \d+; it ended with entry {taken['seq']}\)", late.stderr)
        assert "is another's now: stop the work" in late.stderr
    again = lease(bob, "accept", str(granted["leaseId"]))
    assert "It was accepted already" in again.stderr
    self_made = lease(bob, "transfer", str(taken["leaseId"]), "--to", did, "--reason", "x")
    assert (self_made.returncode, "holds the lease already" in self_made.stderr) == (1, True)
    token, lease_id = str(taken["fencingToken"]), str(taken["leaseId"])
    to_alice = ("--to", open_profile(alice).key.did, "--reason", "reassigned")
    stale = operator(gateway, "lease", "transfer", lease_id, "--token", "17", *to_alice)
    assert (stale.returncode, "token_stale" in stale.stderr) == (1, True)
    assert operator(gateway, "lease", "transfer", lease_id, "--token", token, *to_alice).returncode == 0
    assert lease(alice, "accept", lease_id).returncode == 0
    assert lease(alice, "release", "lock:shift").returncode == 0


def test_a_lease_named_by_its_id_says_how_it_ended(alice: Path, bob: Path) -> None:
    """Whatever became of it, the gateway is asked, and the answer has a receipt and the entry that ended it."""
    one = str(facts(lease(alice, "acquire", "lock:ids/b", "lock:ids/a", "--ttl", "60s", "--json"))["leaseId"])
    foreign = [lease(bob, verb, one) for verb in ("renew", "release")]
    assert [("lease_not_yours" in told.stderr, told.returncode) for told in foreign] == [(True, 1)] * 2
    unknown = [lease(alice, verb, "L999999999") for verb in ("renew", "release")]
    unknown.append(lease(alice, "transfer", "L999999999", "--to", open_profile(bob).key.did, "--reason", "x"))
    unknown.append(lease(alice, "release", "L1"))  # entry 1 is no grant
    assert [("lease_unknown (entry" in told.stderr, told.returncode) for told in unknown] == [(True, 1)] * 4
    released = facts(lease(alice, "release", one, "--json"))
    assert (released["type"], released["resources"]) == ("tallystick/lease.released/1", ["lock:ids/a", "lock:ids/b"])
    assert facts(lease(alice, "release", one, "--json"))["type"] == "tallystick/release.repeated/1"
    told = facts(lease(alice, "renew", one, "--json"))
    assert (told["error"], told["endedSeq"]) == ("lease_released", released["seq"])
    short = str(facts(lease(alice, "acquire", "lock:ids/short", "--ttl", "1s", "--json"))["leaseId"])
    assert lease(bob, "acquire", "lock:ids/short", "--wait", "60s").returncode == 0
    for verb in ("renew", "release"):
        assert facts(lease(alice, verb, short, "--json"))["error"] == "lease_expired"
    lease(bob, "release", "lock:ids/short")
    for names in (("L1", "lock:x"), ("L1", "L2")):
        assert lease(alice, "renew", *names).returncode == 2


@pytest.mark.usefixtures("docs")
def test_the_old_id_after_a_change_of_mode_leads_to_the_new_one(alice: Path) -> None:
    old = str(facts(lease(alice, "acquire", "docs:changed", "--ttl", "60s", "--json"))["leaseId"])
    new = facts(lease(alice, "renew", old, "--mode", "read", "--json"))
    for verb in ("renew", "release"):
        told = lease(alice, verb, old)
        assert re.search(rf"lease_changed \(entry \d+; it ended with entry {new['seq']}\)", told.stderr)
    assert lease(alice, "release", str(new["leaseId"])).returncode == 0


def test_a_name_under_a_lock_delay_does_not_look_free(gateway: Gateway, alice: Path, bob: Path) -> None:
    assert operator(gateway, "scheme", "set", "slow", "--class", "exclusive", "--lock-delay", "1m").returncode == 0
    granted = facts(lease(alice, "acquire", "slow:job", "--json"))
    assert operator(gateway, "lease", "break", str(granted["leaseId"]), "--reason", "stuck").returncode == 0
    shown = client("wait", "slow:job", "--home", str(alice))
    assert re.match(r"slow:job  closed until .* to all but did:key\S+ \(you\), who did not give it back", shown.stdout)
    assert lease(bob, "acquire", "slow:job").returncode == 73


def test_an_operator_breaks_what_it_has_seen_and_nothing_newer(gateway: Gateway, alice: Path, bob: Path) -> None:
    """Scenarios L15, L47 and L48: everything a break needs is in the refusal; it compares, and repeats as a success."""
    granted = facts(lease(alice, "acquire", "lock:stuck", "--ttl", "10m", "--json"))
    refused = lease(bob, "acquire", "lock:stuck").stderr
    (token,) = re.findall(r"token (\d+)", refused)
    assert int(token) == granted["fencingToken"]
    stale = operator(gateway, "lease", "break", "lock:stuck", "--token", "17", "--reason", "holder-gone")
    assert (stale.returncode, f"token {token}" in stale.stderr) == (1, True)
    command = ("lease", "break", "lock:stuck", "--token", token, "--reason", "holder-gone")
    broken = operator(gateway, *command)
    assert broken.returncode == 0
    assert re.search(r"lease\.broken  lock:stuck  L\d+ ", broken.stdout)
    assert facts(operator(gateway, *command, "--json"))["type"] == "tallystick/break.repeated/1"
    assert lease(bob, "acquire", "lock:stuck", "--ttl", "60s").returncode == 0
    (entry,) = re.findall(r"\(entry (\d+), verified\)", broken.stdout)
    did = open_profile(gateway.data / "operator").key.did
    for verb in ("renew", "release"):
        told = lease(alice, verb, str(granted["leaseId"]))
        assert (told.returncode, told.stdout) == (1, "")
        assert re.search(
            rf"refused: lease_broken \(entry \d+\)\. It was broken by the operator {did}: holder-gone \(entry {entry}",
            told.stderr,
        )
    late = lease(alice, "release", "lock:stuck", "--lease", str(granted["leaseId"]))
    assert (late.returncode, "refused: lease_broken (entry" in late.stderr) == (1, True)
    stranger = client("lease", "break", "lock:stuck", "--token", token, "--reason", "mine", "--home", str(alice))
    assert (stranger.returncode, "operator_required" in stranger.stderr) == (1, True)
    assert lease(bob, "release", "lock:stuck").returncode == 0


def test_a_lease_is_broken_by_its_id(gateway: Gateway, alice: Path) -> None:
    """Resource and token are those of the entry that began it; a token that is named as well is compared."""
    granted = facts(lease(alice, "acquire", "lock:by-id", "--ttl", "10m", "--json"))
    lease_id = str(granted["leaseId"])
    assert operator(gateway, "lease", "break", lease_id, "--token", "17", "--reason", "stuck").returncode == 1
    broken = facts(operator(gateway, "lease", "break", lease_id, "--reason", "stuck", "--json"))
    assert (broken["type"], broken["leaseId"]) == ("tallystick/lease.broken/1", lease_id)
    nameless = operator(gateway, "lease", "break", "lock:by-id", "--reason", "stuck")
    assert (nameless.returncode, "--token N is missing" in nameless.stderr) == (2, True)
    to = ("--to", open_profile(alice).key.did, "--reason", "x")
    foreign = operator(gateway, "lease", "transfer", "lock:by-id", *to)
    assert (foreign.returncode, "As an operator name the lease by its id" in foreign.stderr) == (1, True)


def test_a_run_whose_lease_is_broken_says_so_once_and_why_in_the_end(gateway: Gateway, alice: Path) -> None:
    command = ("run", "--resource", "lock:run-broken", "--ttl", "2s", "--home", str(alice), "--")
    work = ("sh", "-c", "echo up; exec sleep 600")
    running = Popen([sys.executable, "-m", "gateway", *command, *work], cwd=ROOT, stdout=-1, stderr=-1, text=True)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        (found,) = json.loads(client("wait", "lock:run-broken", "--json", "--home", str(alice)).stdout)["resources"]
        lease_id = found["leases"][0]["leaseId"]
        broken = facts(operator(gateway, "lease", "break", lease_id, "--reason", "stuck", "--json"))
        _, told = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 75
    at_loss, at_end = told.splitlines()
    assert at_loss == "tallystick run: the lease is lost (lease_broken); stopping the command"
    assert at_end.startswith(f"tallystick run: lease {lease_id} is lost, refused: lease_broken (entry ")
    assert f"broken by the operator {open_profile(gateway.data / 'operator').key.did}: stuck" in at_end
    assert at_end.endswith(f"(entry {broken['seq']}). Ask the operator, then acquire again.")


def test_trust_is_shown_with_its_history_from_verified_entries(gateway: Gateway, tmp_path: Path) -> None:
    """Scenarios 23 and 47: a release after a while raises it, an expiry lowers it, and each stands in an entry."""
    home = tmp_path / "new"
    gateway.join(home)
    did = open_profile(home).key.did
    fresh = client("trust", "--home", str(home))
    assert fresh.stdout == f"{did}  trust 50.000\nIt has not changed yet: this is what every key begins with.\n"
    lease(home, "acquire", "lock:score", "--ttl", "30s")
    time.sleep(1.1)  # the least hold that counts, on the gateway's clock
    lease(home, "release", "lock:score")
    lease(home, "acquire", "lock:forgotten", "--ttl", "1s")
    waited = lease(home, "acquire", "lock:forgotten/other", "--ttl", "1s")
    assert waited.returncode == 0
    until_s = time.monotonic() + 30
    while facts(client("trust", "--json", "--home", str(home)))["trust"] != 40_500:  # the sweeper comes by
        assert time.monotonic() < until_s
        time.sleep(0.2)
    shown = client("trust", did, "--home", str(home)).stdout.splitlines()
    assert shown[0] == f"{did}  trust 40.500"
    assert [line.split("  ")[1:5] for line in shown[1:]] == [
        ["lease.expired", "lock:forgotten/other", "-5.000", "40.500"],
        ["lease.expired", "lock:forgotten", "-5.000", "45.500"],
        ["lease.released", "lock:score", "+0.500", "50.500"],
    ]
    limited = facts(client("trust", "--limit", "1", "--json", "--home", str(home)))
    assert (limited["trust"], len(limited["history"])) == (40_500, 1)  # type: ignore[arg-type]  # a list
    assert "--limit 2" in client("trust", "--limit", "1", "--home", str(home)).stdout
    assert client("trust", "somebody", "--home", str(home)).returncode == 2


def test_a_run_that_waits_says_so_and_a_signal_gives_its_place_up(alice: Path, bob: Path, tmp_path: Path) -> None:
    lease(alice, "acquire", "lock:patient", "--ttl", "60s")
    waiting = start_waiting(bob, "lock:patient", "true")
    try:
        assert waiting.stderr is not None
        line = waiting.stderr.readline()
        assert re.match(r"tallystick run: waiting in line with ticket T\d+, number 1; for up to 3600 s", line)
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(30) == 128 + signal.SIGINT
        assert waiting.stderr.read() == ""
    finally:
        waiting.kill()
        waiting.wait()
    assert "T" not in client("wait", "lock:patient", "--home", str(bob)).stdout.partition("\n")[2]
    lease(alice, "release", "lock:patient")


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


async def test_two_that_wait_for_each_other_are_parted_while_the_first_goes_on(alice: Path, bob: Path) -> None:
    """Scenario 35, with held leases: the second to wait hears of it, gives back what it has, and then both are done."""
    async with Agent.open(alice) as first, Agent.open(bob) as second, asyncio.TaskGroup() as group:
        waits = asyncio.Event()

        async def both() -> int:
            async with first.lease("lock:left-fork", ttl_ms=10_000):
                ready.set()
                await other.wait()
                async with first.lease(
                    "lock:right-fork", ttl_ms=10_000, wait_ms=60_000, on_wait=lambda what: waits.set()
                ) as lease:
                    return lease.fencing_token

        ready, other = asyncio.Event(), asyncio.Event()
        eating = group.create_task(both())
        await ready.wait()
        async with second.lease("lock:right-fork", ttl_ms=10_000):
            other.set()
            await waits.wait()
            with pytest.raises(Deadlock) as found:
                async with second.lease("lock:left-fork", ttl_ms=10_000, wait_ms=60_000):
                    pytest.fail("granted")
            assert found.value.acquire_order == ("lock:left-fork", "lock:right-fork")
            assert [row.actor for row in found.value.cycle] == [second.did, first.did]
        async with second.lease(found.value.acquire_order, ttl_ms=10_000, wait_ms=60_000) as lease:
            assert lease.fencing_token > await eating


@pytest.mark.usefixtures("docs")
async def test_a_held_lease_changes_its_mode_and_the_guard_follows(alice: Path, bob: Path) -> None:
    """Write, let a reader in, and be fenced by it as a writer; then alone again, write under a third token."""
    profile = open_profile(alice)
    guard = FenceGuard(profile.keyring, profile.address.origin)
    async with Agent.open(alice) as writer, Agent.open(bob) as reader:
        async with writer.lease("docs:novel/**", ttl_ms=10_000) as held:
            old = held.receipt
            stale = guard.challenge()
            stale_answer = Answer(stale, held.answer(stale, "docs:Novel/1"))
            await held.change("read")
            async with reader.lease("docs:novel/1", mode="read", ttl_ms=10_000, wait_ms=5_000) as reading:
                challenge = guard.challenge()
                answer = Answer(challenge, reading.answer(challenge, "docs:NOVEL/1"))
                guard.check(reading.receipt, "docs:NOVEL/1", answer, mode="read")
                with pytest.raises(Fenced, match="is older than"):
                    guard.check(old, "docs:Novel/1", stale_answer)
                with pytest.raises(LeaseHeld):
                    await held.change("write")
            await held.change("write")
            challenge = guard.challenge()
            guard.check(held.receipt, "docs:novel/2", Answer(challenge, held.answer(challenge, "docs:novel/2")))


async def test_the_operator_adds_and_removes(gateway: Gateway, bob: Path) -> None:
    did = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
    async with Agent.open(gateway.data / "operator") as operator:
        added = await operator.add_agent(did, "worker-1")
        removed = await operator.remove_agent(did)
        assert [added.type, removed.type] == ["tallystick/agent.added/1", "tallystick/agent.removed/1"]
        row = next(row for row in await operator.agents() if row["did"] == did)
        assert (row["name"], row["removedSeq"]) == ("worker-1", removed.seq)


async def test_a_lease_outlives_a_killed_gateway(
    gateway: Gateway, alice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenarios 45, L8 and L16: heartbeats meet a dead gateway, go on, and find the lease where it was."""
    monkeypatch.setattr("gateway.client.lease.beat_period_ms", lambda ttl_ms: 1_000)
    renewed = asyncio.Event()
    async with (
        Agent.open(alice) as agent,
        agent.lease("lock:survivor", ttl_ms=120_000, on_grant=lambda grant: renewed.set()) as held,
    ):
        token = held.fencing_token
        await asyncio.to_thread(gateway.kill)
        beats = held.beats
        renewed.clear()
        await asyncio.to_thread(gateway.start)
        await asyncio.wait_for(renewed.wait(), 60)
        assert held.is_trusted
        assert (held.fencing_token, held.beats > beats) == (token, True)


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
