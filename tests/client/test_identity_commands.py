"""Commands for sessions, operators, API keys, custody, batches, against a real gateway whose ledger is audited."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gateway import enrolment
from gateway.client import acquiring
from gateway.client.agent import Agent
from gateway.client.commands import main
from gateway.client.errors import LeaseLost, SessionEnded, SessionRefused
from gateway.client.profile import open_profile
from gateway.client.session import Session
from keys.token import digest_of, kind_of
from tests.system.process import ROOT, Gateway, run_cli, run_module

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with Gateway(folder / "ledger", "--metrics-port", "0") as running:
        yield running
    report = running.verify_ledger(folder / "export")
    assert report["verdict"] == "valid", report


@pytest.fixture(scope="module")
def operator(gateway: Gateway) -> Path:
    return gateway.data / "operator"


@pytest.fixture
def alice(gateway: Gateway, operator: Path, tmp_path: Path) -> Path:
    """An agent of its own for each test, enrolled by the operator."""
    home = tmp_path / "alice"
    assert agent(home, "init").returncode == 0
    gateway.join(home)
    assert agent(operator, "add", did_of(home), "--name", "alice").returncode == 0
    return home


def captured(function: object, *arguments: str) -> CompletedProcess[str]:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = function(arguments)  # type: ignore[operator]  # main of one of two modules
        except SystemExit as leaving:  # argparse
            code = int(str(leaving.code))
    return CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def client(home: Path, *arguments: str) -> CompletedProcess[str]:
    return captured(main, *arguments, "--home", str(home))


def agent(home: Path, *arguments: str) -> CompletedProcess[str]:
    return captured(enrolment.main, *arguments, "--home", str(home))


def facts(result: CompletedProcess[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout)
    return found


def did_of(home: Path) -> str:
    return str(facts(agent(home, "init", "--json"))["did"])


def opened(home: Path, *options: str) -> Path:
    result = client(home, "session", "open", "--json", *options)
    assert result.returncode == 0, result
    return Path(str(facts(result)["home"]))


def test_who_reads_no_further_sees_no_traceback(alice: Path) -> None:
    """As behind `head -1`: the lease is taken, and the exit code is that of a closed pipe."""
    command = [sys.executable, "-m", "gateway", "lease", "acquire", "lock:head", "--home", str(alice)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", 141)
    assert "lock:head" in client(alice, "lease", "list").stdout


# -- one's own key -----------------------------------------------------------------------------------------------------


def test_init_makes_a_key_once_and_says_the_same_did_ever_after(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    first = agent(home, "init")
    did = first.stdout.splitlines()[0]
    assert (first.returncode, first.stderr) == (0, "")
    assert "tallystick join URL --root VKEY" in first.stdout
    assert f"tallystick agent add {did}" in first.stdout
    again = agent(home, "init", "--json")
    assert facts(again) == {"ok": True, "did": did, "home": str(home), "isNew": False}
    assert stat.S_IMODE(home.stat().st_mode) & 0o077 == 0
    (home / "agent.key").write_text("nonsense")
    damaged = agent(home, "init")
    assert (damaged.returncode, damaged.stdout) == (78, "")


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_from_opening_to_its_end(alice: Path, tmp_path: Path) -> None:
    told = client(alice, "session", "open", "--name", "nightly", "--resource", "lock:s/**", "--may", "lease")
    assert (told.returncode, told.stderr) == (0, "")
    home = alice / "sessions" / "nightly"
    assert f"tallystick run --home {home} --resource NAME -- COMMAND" in told.stdout
    assert f"for      {did_of(alice)}" in told.stdout
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    granted = facts(client(home, "lease", "acquire", "lock:s/a", "--json"))
    assert (granted["principal"], granted["actor"]) == (did_of(alice), open_id(home))
    again = client(home, "lease", "acquire", "lock:s/a")
    assert re.search(r"  write  until .* UTC, or .* UTC if its session stays silent\n", again.stdout)
    held = client(alice, "wait", "lock:s/a").stdout
    assert f"held by nightly ({open_id(home)}) for {did_of(alice)}, write, L" in held
    assert "UTC if its session stays silent" in held
    assert "UTC if its session stays silent" in client(home, "lease", "list").stdout
    outside = client(home, "lease", "acquire", "lock:other")
    assert (outside.returncode, "What was lent to this session does not cover that" in outside.stderr) == (1, True)
    assert "trial" not in outside.stderr
    seen = client(home, "session", "beat", "--activity", "looking-around")
    assert (seen.returncode, "It is kept until" in seen.stdout) == (0, True)
    (row,) = (row for row in client(alice, "session", "list").stdout.splitlines() if "nightly" in row)
    assert f"for {did_of(alice)}  lease on lock:s/**" in row
    assert row.endswith("if it stays silent  at looking-around")
    for whose in (client(home, "trust"), client(alice, "trust", open_id(home))):
        assert whose.stdout.startswith(did_of(alice)), "trust is the agent's"
    closed = client(home, "session", "revoke", "--reason", "done")
    assert (closed.returncode, "Given back: leases 1, places in line 0." in closed.stdout) == (0, True)
    over = client(home, "lease", "acquire", "lock:s/a")
    assert over.returncode == 80
    assert over.stderr.endswith("Open another: tallystick session open\n")
    assert client(alice, "session", "revoke", open_id(home)).stdout.endswith("It had ended before.\n")
    assert client(alice, "session", "open", "--name", "nightly").returncode == 0, "its folder can be used again"


def open_id(home: Path) -> str:
    return open_profile(home).key.did


def test_run_keeps_a_session_and_leaves_it_open(alice: Path) -> None:
    home = opened(alice, "--name", "runner")
    done = run_cli("run", "--resource", "lock:run/s", "--home", str(home), "--", "sh", "-c", "exit 7")
    assert (done.returncode, done.stderr) == (7, "")
    assert client(home, "lease", "list").stdout == "This key holds no lease.\n"
    assert client(home, "session", "revoke").returncode == 0


def test_a_folder_in_use_is_not_taken_again(alice: Path, tmp_path: Path) -> None:
    home = opened(alice, "--name", "busy")
    again = client(alice, "session", "open", "--name", "busy")
    assert (again.returncode, again.stdout) == (78, "")
    assert f"tallystick session revoke {open_id(home)}" in again.stderr
    (tmp_path / "stranger").mkdir()
    foreign = client(alice, "session", "open", "--into", str(tmp_path / "stranger"))
    assert (foreign.returncode, "no session's folder" in foreign.stderr) == (78, True)
    deeper = client(home, "session", "open")
    assert (deeper.returncode, "lends nothing on" in deeper.stderr) == (78, True)


def test_an_operator_lends_to_an_agent_or_to_a_key_elsewhere(
    gateway: Gateway, operator: Path, alice: Path, tmp_path: Path
) -> None:
    lent, own = tmp_path / "lent.json", tmp_path / "own.json"
    made = client(
        operator, "session", "delegate", did_of(alice), "--resource", "lock:q/**", "--ttl", "1h", "--out", str(lent)
    )
    assert (made.returncode, f"session open --parent {lent}" in made.stdout) == (0, True)
    within = opened(alice, "--name", "within", "--parent", str(lent))
    assert client(within, "lease", "acquire", "lock:q/1").returncode == 0
    wider = client(alice, "session", "open", "--name", "wider", "--parent", str(lent), "--resource", "lock:z")
    assert (wider.returncode, "lends less" in wider.stderr) == (2, True)
    assert not (alice / "sessions" / "wider").exists()
    worker = tmp_path / "worker"
    agent(worker, "init")
    gateway.join(worker)
    client(operator, "session", "delegate", did_of(worker), "--out", str(own))
    not_its = client(worker, "session", "open", "--own", str(lent))
    assert (not_its.returncode, "is another" in not_its.stderr) == (2, True)
    not_its = client(worker, "session", "open", "--parent", str(lent))
    told = f"was handed to {did_of(alice)}, not to this profile's key"
    assert (not_its.returncode, told in not_its.stderr, [*worker.glob("sessions/*")]) == (2, True, [])
    became = client(worker, "session", "open", "--own", str(own), "--json")
    assert facts(became)["principal"] == did_of(worker)
    assert client(worker, "lease", "acquire", "lock:own").returncode == 0
    direct = opened(operator, "--into", str(tmp_path / "direct"))
    assert client(direct, "lease", "acquire", "lock:direct").returncode == 0


USAGE = [
    (("open", "--ttl", "200h"), "--ttl: 1s to 168h"),
    (("open", "--may", "everything"), "--may: some of admit, lease, transfer"),
    (("open", "--resource", "no-scheme"), "scheme:path"),
    (("open", "--parent", "/no/such"), "can't be read"),
    (("open", "--parent", "a", "--own", "b"), "not allowed with"),
    (("open", "--name", "no label"), "--name: 1 to 40"),
    (("beat", "--activity", "No Code"), "--reason, --activity: a code"),
    (("revoke",), "name the session by its DID"),
    (("revoke", "bob"), "DID: a did:key"),
    (("list", "--agent", "bob"), "--agent: a did:key"),
    (("delegate", "bob"), "public key"),
]


@pytest.mark.parametrize(("arguments", "text"), USAGE)
def test_wrong_usage_says_what_is_right(operator: Path, arguments: tuple[str, ...], text: str) -> None:
    result = client(operator, "session", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert text in result.stderr


def test_only_a_session_beats(operator: Path) -> None:
    result = client(operator, "session", "beat")
    assert (result.returncode, "no session's folder" in result.stderr) == (78, True)


# -- operators ---------------------------------------------------------------------------------------------------------


def test_help_speaks_of_options_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["session", "delegate", "--help"])
    assert "--parent" not in capsys.readouterr().out.partition("options:")[2]


def test_a_second_operator_comes_and_goes(gateway: Gateway, operator: Path, tmp_path: Path) -> None:
    second, worker = tmp_path / "second", tmp_path / "worker"
    for home in (second, worker):
        agent(home, "init")
        gateway.join(home)
    added = client(operator, "operator", "add", did_of(second), "--name", "night-shift")
    assert (added.returncode, "operator.added  night-shift" in added.stdout) == (0, True)
    assert agent(second, "add", did_of(worker)).returncode == 0
    home = opened(worker, "--name", "job")
    assert client(home, "lease", "acquire", "lock:second").returncode == 0
    assert re.search(rf"{did_of(second)}  night-shift  in force", client(operator, "operator", "list").stdout)
    removed = client(operator, "operator", "remove", did_of(second))
    assert (removed.returncode, "refused until another operator adds them" in removed.stdout) == (0, True)
    assert client(home, "lease", "acquire", "lock:second").returncode == 80
    refused = client(worker, "lease", "acquire", "lock:second")
    assert (refused.returncode, refused.stderr.count("was removed") == 1) == (77, True)
    (line,) = (line for line in agent(operator, "list").stdout.splitlines() if did_of(worker) in line)
    assert re.search(r"  operator removed \(entry \d+\)$", line)
    last = client(operator, "operator", "remove", did_of(operator))
    assert (last.returncode, "add another first: tallystick operator add DID" in last.stderr) == (1, True)
    vain = client(worker, "operator", "add", did_of(worker))
    assert (vain.returncode, "Use the operator's profile: --home DATA/operator" in vain.stderr) == (77, True)
    assert agent(operator, "add", did_of(worker)).returncode == 0, "nobody has to remove it first"
    assert client(worker, "lease", "acquire", "lock:second").returncode == 0
    (line,) = (line for line in agent(operator, "list").stdout.splitlines() if did_of(worker) in line)
    assert line.endswith("  in force")


# -- API keys ----------------------------------------------------------------------------------------------------------


def test_a_live_key_enrols_agents_until_it_is_revoked(gateway: Gateway, operator: Path, tmp_path: Path) -> None:
    path = tmp_path / "live.key"
    issued = client(operator, "apikey", "issue", "--kind", "live", "--name", "onboard", "--out", str(path))
    token = path.read_text().strip()
    assert (issued.returncode, token in issued.stdout, kind_of(token)) == (0, False, "live")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = client(operator, "apikey", "issue", "--kind", "live", "--out", str(path))
    assert (again.returncode, "nothing is overwritten" in again.stderr) == (78, True)
    home = tmp_path / "bob"
    agent(home, "init")
    gateway.join(home)
    first, second = (agent(home, "enrol", "--key", f"@{path}", "--name", "bob", "--json") for _ in range(2))
    assert facts(first)["type"] == "tallystick/agent.added/1"
    assert facts(first) == facts(second), "asking again is answered as before"
    assert client(home, "lease", "acquire", "lock:bob").returncode == 0
    listed = client(operator, "apikey", "list").stdout
    assert f"{digest_of(token)}  live  onboard  in force" in listed
    assert client(operator, "apikey", "revoke", f"@{path}").returncode == 0
    other = tmp_path / "other"
    agent(other, "init")
    gateway.join(other)
    late = agent(other, "enrol", "--key", f"@{path}")
    assert (late.returncode, "tallystick apikey issue" in late.stderr, token in late.stderr) == (77, True, False)
    unknown = client(operator, "apikey", "revoke", "0" * 64)
    assert (unknown.returncode, "No such API key is in force" in unknown.stderr) == (1, True)


def test_a_trial_key_lets_one_agent_try(gateway: Gateway, operator: Path, tmp_path: Path) -> None:
    issued = facts(client(operator, "apikey", "issue", "--kind", "trial", "--json"))
    token = str(issued["token"])
    (tmp_path / "trial.key").write_text(token)
    homes = tmp_path / "one", tmp_path / "two"
    for home in homes:
        agent(home, "init")
        gateway.join(home)
    tried = agent(homes[0], "enrol", "--key", f"@{tmp_path}/trial.key")
    assert tried.returncode == 0
    assert "35 decisions in 7 days unless entry 0 says otherwise" in tried.stdout
    (command,) = re.findall(r"Next:  tallystick (lease acquire .*) --home", tried.stdout)
    assert client(homes[0], *command.split()).returncode == 0
    outside = client(homes[0], "lease", "acquire", "lock:trial")
    keep_to = f"names below trial:{did_of(homes[0])}/ only, with --ttl 60s"
    assert (outside.returncode, keep_to in outside.stderr, "session" in outside.stderr) == (1, True, False)
    (tmp_path / "batch").write_text('{"action": "lease.acquire", "resource": "lock:trial"}')
    many = client(homes[0], "lease", "batch", str(tmp_path / "batch"))
    assert (many.returncode, keep_to in many.stdout) == (1, True)
    used = agent(homes[1], "enrol", "--key", f"@{tmp_path}/trial.key")
    assert (used.returncode, "has enrolled another agent" in used.stderr) == (77, True)
    for _ in range(31):
        assert client(homes[0], "lease", "acquire", "lock:trial").returncode == 1
    over = client(homes[0], "lease", "acquire", "lock:trial")
    assert (over.returncode, "Enrol with a live API key" in over.stderr) == (77, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("issue",), "--kind"),
        (
            ("issue", "--kind", "trial", "--agent", "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"),
            "no agent",
        ),
        (("issue", "--kind", "live", "--agent", "bob"), "--agent: a did:key"),
        (("revoke", "nonsense"), "no API key as one is spelled"),
    ],
)
def test_wrong_usage_of_api_keys_says_what_is_right(operator: Path, arguments: tuple[str, ...], text: str) -> None:
    result = client(operator, "apikey", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert text in result.stderr


# -- custody -----------------------------------------------------------------------------------------------------------


def test_a_custodial_agent_acts_by_its_api_key(gateway: Gateway, operator: Path) -> None:
    made = agent(operator, "add", "--custodial", "robot", "--data", str(gateway.data))
    assert (made.returncode, made.stderr) == (0, "")
    (token,) = re.findall(r"^  (tsk_live_\w+)$", made.stdout, re.M)
    (did,) = re.findall(r"added (did:key:\w+) ", made.stdout)
    folder = gateway.data / "custody"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {f"{did}.key", f"{did}.pass"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert f"{gateway.url}/api/v1/acp/coordination/lease" in made.stdout
    answer = bearer(gateway, token, {"resource": "lock:robot", "ttlMs": 30_000})
    assert (answer["ok"], answer["lease"]["holder"]) == (True, did)  # type: ignore[index]  # JSON
    (line,) = (line for line in agent(operator, "list").stdout.splitlines() if did in line)
    assert line.endswith("in force  kept by the gateway")
    assert client(operator, "apikey", "revoke", digest_of(token)).returncode == 0
    with pytest.raises(urllib.error.HTTPError, match="401"):
        bearer(gateway, token, {"resource": "lock:robot"})


def bearer(gateway: Gateway, token: str, body: dict[str, object]) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = f"{gateway.url}/api/v1/acp/coordination/lease"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # our own gateway
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def test_a_custodial_agent_that_may_not_be_added_leaves_no_key(gateway: Gateway, alice: Path) -> None:
    before = {path.name for path in (gateway.data / "custody").glob("*")}
    refused = agent(alice, "add", "--custodial", "robot", "--data", str(gateway.data))
    assert refused.returncode == 1
    assert {path.name for path in (gateway.data / "custody").glob("*")} == before
    for wrong in (("add",), ("add", "--custodial", "robot"), ("add", did_of(alice), "--data", "x")):
        result = agent(alice, *wrong)
        assert (result.returncode, result.stdout) == (2, "")


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_batch_of_lines_and_its_receipts(gateway: Gateway, alice: Path, tmp_path: Path) -> None:
    lines, folder = tmp_path / "batch", tmp_path / "receipts"
    folder.mkdir()
    lines.write_text(
        '{"action": "lease.acquire", "resource": "lock:b/1", "ttlMs": 60000}\n\n'
        '{"action": "lease.acquire", "resources": ["lock:b/2", "lock:b/3"]}\n'
        '{"action": "lease.release", "resource": "lock:b/1"}\n'
    )
    done = client(alice, "lease", "batch", str(lines), "--receipts", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert [line[0] for line in done.stdout.splitlines() if line[0] != " "] == ["0", "1", "2"]
    pins = ("--root", gateway.root_vkey(), "--keys", str(alice / "keys.note"))
    for path in folder.iterdir():
        assert run_module("verifier", "receipt", str(path), *pins).returncode == 0
    lines.write_text(
        '{"action": "lease.acquire", "resource": "lock:b/4"}\n{"action": "lease.renew", "leaseId": "L1"}\n'
    )
    mixed = client(alice, "lease", "batch", str(lines), "--json")
    told = facts(mixed)
    assert (mixed.returncode, told["ok"], told["exitCode"]) == (1, False, 1)
    assert [row["ok"] for row in told["results"]] == [True, False]  # type: ignore[attr-defined]  # JSON
    atomic = client(alice, "lease", "batch", str(lines), "--atomic")
    assert (atomic.returncode, atomic.stdout) == (1, "")
    assert "nothing of the batch was done, for command 1 (lease.renew) was refused" in atomic.stderr
    for options, path in (
        (("--receipts", str(folder)), folder / "refused.json"),
        (("--receipts", str(folder), "--receipt", str(tmp_path / "no.json")), tmp_path / "no.json"),
    ):
        atomic = client(alice, "lease", "batch", str(lines), "--atomic", *options)
        assert (atomic.returncode, f"the receipt of the refusal is in {path}" in atomic.stderr) == (1, True)
        assert run_module("verifier", "receipt", str(path), *pins).returncode == 0
    assert client(alice, "lease", "batch", str(lines), "--receipt", str(tmp_path / "x")).returncode == 2
    for content, text in (("", "1 to 256"), ("{", "line 1"), ('{"action": "lease.break"}', "commands[0]")):
        lines.write_text(content)
        wrong = client(alice, "lease", "batch", str(lines))
        assert (wrong.returncode, text in wrong.stderr) == (2, True), wrong.stderr


# -- the SDK with a real gateway ---------------------------------------------------------------------------------------


def test_sessions_and_batches_of_the_sdk(alice: Path, operator: Path) -> None:
    async def scene() -> None:
        async with Agent.open(alice) as agent, agent.open_session(name="sdk", resources=["lock:sdk/**"]) as session:
            names = [f"lock:sdk/{number}" for number in range(256)]
            outcomes = await session.batch([acquiring(name, ttl_ms=60_000) for name in names])
            assert all(outcome.grant is not None for outcome in outcomes)
            assert {outcome.receipt.leaf.principal for outcome in outcomes} == {agent.did}
            async with session.lease("lock:sdk/held") as lease, agent.open_session() as other:
                assert 0 < lease.trust_ends_in_ms <= 108_000
                assert [row["isShared"] for row in await agent.sessions(agent.did)] == [False, False]
                await other.close("enough")
            bare = await agent.batch([acquiring(f"lock:bare/{number}") for number in range(3)], bare=True, atomic=True)
            assert [outcome.is_ok for outcome in bare] == [True] * 3
        async with Agent.open(alice) as agent:
            assert [row["resources"] for row in await agent.leases(session.did)] == []

    asyncio.run(scene())


def test_who_is_ended_from_outside_hears_it_and_loses_its_leases(alice: Path) -> None:
    async def scene() -> None:
        async with Agent.open(alice) as agent, agent.open_session() as session:
            with pytest.raises(LeaseLost) as lost:
                async with session.lease("lock:ended"):
                    await agent.close_session(session.did, "no-longer-needed")
                    with pytest.raises(SessionEnded):
                        await session.beat()
            assert lost.value.reason == "session_ended"
        async with Agent.open(alice) as agent:
            profile = open_profile(alice)
            copy = Session(profile, delegations=[agent.delegate(agent.did)])
            with pytest.raises(SessionRefused):
                async with copy:
                    raise AssertionError("an agent's own key is no session's")

    asyncio.run(scene())


def test_two_processes_with_one_session_are_shown(alice: Path, tmp_path: Path) -> None:
    """The second one works from a copy of the folder, whose memory of the ledger is older than what it signs with."""
    home = opened(alice, "--name", "shared")
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)

    async def scene() -> None:
        async with Agent.open(copy) as late:
            async with Agent.open(home) as early:
                for number in range(3):
                    await early.acquire(f"lock:shared/{number}")
            await asyncio.sleep(1.1)  # signatures count whole seconds
            await late.acquire("lock:shared/late")
            (row,) = [row for row in await late.sessions() if row["did"] == late.did]
            assert row["isShared"] is True

    asyncio.run(scene())
    assert "SHARED: two processes use its key" in client(alice, "session", "list").stdout
