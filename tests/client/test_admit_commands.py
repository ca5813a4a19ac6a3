"""`tallystick admit`, `approve` and `usage` against a real gateway in a process of its own; it is audited at last."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from subprocess import CompletedProcess, Popen

import pytest

from gateway.client.agent import Agent
from gateway.client.approval import open_approval
from gateway.client.profile import open_profile
from tests.client.test_commands import client, facts
from tests.system.process import ROOT, Gateway, run_module
from verifier.entries import ZERO_HASH

pytestmark = pytest.mark.system
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with Gateway(folder / "ledger") as running:
        yield running
        report = running.verify_ledger(folder / "export")
    assert report["verdict"] == "valid"


@pytest.fixture(scope="module")
def homes(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profiles of two agents, and of a second operator."""
    folder = tmp_path_factory.mktemp("homes")
    for name in ("alice", "bob", "chief"):
        gateway.join(folder / name)
    did = open_profile(folder / "chief").key.did
    gateway.cli(gateway.data / "operator", "operator", "add", did, "--name", "chief")
    return folder


@pytest.fixture(scope="module")
def alice(homes: Path) -> Path:
    return homes / "alice"


@pytest.fixture(scope="module")
def chief(homes: Path) -> Path:
    return homes / "chief"


@pytest.fixture(scope="module")
def diff(homes: Path) -> Path:
    (homes / "diff").write_bytes(b"- old\n+ new\n")
    return homes / "diff"


def at(home: Path, *arguments: str) -> CompletedProcess[str]:
    return client(*arguments, "--home", str(home))


def did_of(home: Path) -> str:
    return open_profile(home).key.did


def checked(gateway: Gateway, home: Path, receipt: Path) -> CompletedProcess[str]:
    return run_module(
        "verifier", "receipt", str(receipt), "--root", gateway.root_vkey(), "--keys", str(home / "keys.note")
    )


# -- admit -------------------------------------------------------------------------------------------------------------


def test_an_act_is_admitted_under_the_lease_that_covers_it(
    gateway: Gateway, alice: Path, diff: Path, tmp_path: Path
) -> None:
    lease = facts(at(alice, "lease", "acquire", "repo:app/**", "--ttl", "60s", "--json"))
    receipt = tmp_path / "admission.json"
    said = at(alice, "admit", "file.write", "repo:app/a.py", "--arguments", str(diff), "--receipt", str(receipt))
    assert (said.returncode, said.stderr) == (0, "")
    assert re.search(
        r"^admission\.allowed  file\.write  repo:app/a\.py  L\d+  \(entry \d+, verified\)$", said.stdout, re.M
    )
    assert "once, until 20" in said.stdout
    assert "no rule set was ever loaded" in said.stdout
    verdict = checked(gateway, alice, receipt)
    assert verdict.returncode == 0, verdict.stdout
    digest = sha256(diff.read_bytes()).hexdigest()
    told = facts(at(alice, "admit", "file.write", "repo:app/a.py", "--arguments-digest", digest, "--json"))
    assert (told["ok"], told["argumentsDigest"], told["cost"]) == (True, digest, 0)
    assert (told["leaseId"], told["fencingToken"]) == (lease["leaseId"], lease["fencingToken"])
    at(alice, "lease", "release", str(lease["leaseId"]))


def test_a_denial_has_an_exit_code_of_its_own_and_a_receipt_that_verifies(
    gateway: Gateway, homes: Path, diff: Path, tmp_path: Path
) -> None:
    """41 after 42: the lease that was let go is refused, with the token that counts now and the entry that ended it."""
    alice, bob, receipt = homes / "alice", homes / "bob", tmp_path / "denial.json"
    old = facts(at(alice, "lease", "acquire", "lock:deploy/production", "--json"))
    ended = facts(at(alice, "lease", "release", str(old["leaseId"]), "--json"))
    new = facts(at(bob, "lease", "acquire", "lock:deploy/production", "--json"))
    under = ("--lease", str(old["leaseId"]), "--token", str(old["fencingToken"]))
    asked = ("admit", "deploy.run", "lock:deploy/production", "--arguments", str(diff), *under)
    said = at(alice, *asked, "--receipt", str(receipt))
    assert (said.returncode, said.stdout) == (81, "")
    assert re.search(rf"denied: stale_fence \(entry \d+; the lease ended with entry {ended['seq']}\)", said.stderr)
    assert f"held by {did_of(bob)}" in said.stderr or str(new["fencingToken"]) in said.stderr
    verdict = checked(gateway, alice, receipt)
    assert verdict.returncode == 0, verdict.stdout
    told = json.loads(at(alice, *asked, "--json").stdout)
    assert (told["ok"], told["error"], told["number"], told["exitCode"]) == (False, "stale_fence", 602, 81)
    assert (told["currentToken"], told["endedSeq"]) == (new["fencingToken"], ended["seq"])
    without = at(alice, "admit", "deploy.run", "lock:deploy/production", "--arguments", str(diff))
    assert (without.returncode, "lease_required" in without.stderr) == (81, True)
    at(bob, "lease", "release", str(new["leaseId"]))


WRONG: list[tuple[str, ...]] = [
    ("Deploy", "lock:a", "--arguments-digest", ZERO_HASH),
    ("deploy", "nocolon", "--arguments-digest", ZERO_HASH),
    ("deploy", "lock:a", "--arguments-digest", "x"),
    ("deploy", "lock:a"),
    ("deploy", "lock:a", "--arguments-digest", ZERO_HASH, "--arguments", "-"),
    ("deploy", "lock:a", "--arguments", "/nowhere/at/all"),
    ("deploy", "lock:a", "--arguments-digest", ZERO_HASH, "--cost", "-1"),
    ("deploy", "lock:a", "--arguments-digest", ZERO_HASH, "--lease", "L4"),
    ("deploy", "lock:a", "--arguments-digest", ZERO_HASH, "--token", "4"),
    ("deploy", "lock:a", "--arguments-digest", ZERO_HASH, "--lease", "4", "--token", "4"),
    ("deploy", "lock:a", "--arguments-digest", ZERO_HASH, "--ask", "me"),
    ("deploy", "lock:a", "--arguments-digest", ZERO_HASH, "--wait", "5m"),
    ("deploy", "lock:a", "--arguments-digest", ZERO_HASH, "--quorum", "2"),
    ("deploy", "lock:a", "--arguments-digest", ZERO_HASH, "--approval", "/nowhere/at/all"),
]


@pytest.mark.parametrize("arguments", WRONG)
def test_what_no_ledger_would_hear_of_is_wrong_usage_and_sends_nothing(alice: Path, arguments: tuple[str, ...]) -> None:
    said = at(alice, "admit", *arguments)
    assert (said.returncode, said.stdout) == (2, ""), said
    assert said.stderr.startswith("tallystick admit: ")


def test_admissions_go_into_a_batch_file(alice: Path, tmp_path: Path) -> None:
    lease = facts(at(alice, "lease", "acquire", "lock:batch", "--json"))
    asks = {"action": "coordination.admit", "operation": "act", "resource": "lock:batch", "argumentsDigest": ZERO_HASH}
    held = {"leaseId": lease["leaseId"], "fencingToken": lease["fencingToken"]}
    file = tmp_path / "commands"
    file.write_text(f"{json.dumps({**asks, **held})}\n{json.dumps(asks)}\n")
    said = at(alice, "lease", "batch", str(file))
    assert said.returncode == 81, "all that was refused was denied"
    first, second, *_ = [line for line in said.stdout.splitlines() if re.match(r"\d  ", line)]
    assert first.startswith("0  admission.allowed  act  lock:batch")
    assert second.startswith("1  denied: lease_required")
    at(alice, "lease", "release", str(lease["leaseId"]))


# -- approve -----------------------------------------------------------------------------------------------------------


def waiting_for(chief: Path) -> str:
    """Return the id of the one request that waits for a key."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        rows = json.loads(at(chief, "approve", "list", "--json").stdout)["approvals"]
        if rows:
            assert len(rows) == 1
            return str(rows[0]["askId"])
        time.sleep(0.1)  # it asks a foreign process; nothing asserts on this clock
    raise AssertionError("nothing was asked for")


def asking(alice: Path, chief: Path, diff: Path, name: str, *more: str) -> Popen[str]:
    asked = ("admit", "deploy.run", name, "--arguments", str(diff), "--ask", did_of(chief), *more, "--home", str(alice))
    return Popen([sys.executable, "-m", "gateway", *asked], cwd=ROOT, stdout=-1, stderr=-1, text=True)


def test_what_waits_for_approval_is_shown_whole_approved_and_done_once(alice: Path, chief: Path, diff: Path) -> None:
    lease = facts(at(alice, "lease", "acquire", "lock:deploy/stage", "--ttl", "60s", "--json"))
    process = asking(alice, chief, diff, "lock:deploy/stage", "--cost", "9", "--json")
    try:
        ask_id = waiting_for(chief)
        line = at(chief, "approve", "list").stdout
        assert f"{ask_id}  deploy.run (write) on lock:deploy/stage  by {did_of(alice)}" in line
        other = diff.with_name("other")
        other.write_bytes(b"- old\n+ evil\n")
        wrong = at(chief, "approve", "give", ask_id, "--yes", "--arguments", str(other))
        assert (wrong.returncode, "the request is not of" in wrong.stderr) == (2, True)
        nobody = at(chief, "approve", "give", ask_id)
        assert (nobody.returncode, "--yes" in nobody.stderr) == (2, True)
        given = at(chief, "approve", "give", ask_id, "--yes", "--arguments", str(diff))
        assert given.returncode == 0, given.stderr
        digest = sha256(diff.read_bytes()).hexdigest()
        for shown in (did_of(alice), "deploy.run (write), once", "lock:deploy/stage", digest, "cost       9"):
            assert shown in given.stderr
        told, complaint = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, complaint
    assert f"tallystick approve give {ask_id}" in complaint
    admission = json.loads(told)
    assert (admission["type"], admission["leaseId"]) == ("tallystick/admission.allowed/1", lease["leaseId"])
    assert [row["approver"] for row in admission["approvals"]] == [did_of(chief)]
    over = at(chief, "approve", "give", ask_id, "--yes")
    assert (over.returncode, "is over (given): nothing was signed" in over.stderr) == (1, True)
    at(alice, "lease", "release", str(lease["leaseId"]))


def test_what_is_declined_is_denied_and_says_by_which_entry(alice: Path, chief: Path, diff: Path) -> None:
    process = asking(alice, chief, diff, "lock:no", "--mode", "read")
    try:
        ask_id = waiting_for(chief)
        declined = facts(at(chief, "approve", "decline", ask_id, "--reason", "not-today", "--json"))
        _, complaint = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 81
    assert f"{ask_id} was not approved: declined (entry {declined['seq']})" in complaint


def test_waiting_in_vain_takes_the_request_back(alice: Path, chief: Path, diff: Path) -> None:
    process = asking(alice, chief, diff, "lock:no", "--mode", "read", "--wait", "1s")
    _, complaint = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "was not approved: " in complaint) == (81, True)
    rows = json.loads(at(chief, "approve", "list", "--all", "--json").stdout)["approvals"]
    assert rows[-1]["state"] in ("withdrawn", "lapsed")


def test_an_approval_is_signed_without_a_network_and_used_once(
    alice: Path, chief: Path, diff: Path, tmp_path: Path, gateway: Gateway
) -> None:
    lease = facts(at(alice, "lease", "acquire", "lock:offline", "--json"))
    out = tmp_path / "approval.json"
    sign = ("approve", "sign", "deploy.run", "lock:offline", "--agent", did_of(alice), "--arguments", str(diff))
    signed = at(chief, *sign, "--out", str(out), "--yes", "--ttl", "10m")
    assert (signed.returncode, "rules      none; where any are loaded" in signed.stderr) == (0, True)
    says = open_approval(out.read_bytes()).says
    assert (says.approver, says.agent, says.rules_digest) == (did_of(chief), did_of(alice), ZERO_HASH)
    asked = ("admit", "deploy.run", "lock:offline", "--arguments", str(diff), "--approval", str(out))
    used = facts(at(alice, *asked, "--json"))
    assert used["ok"] is True
    again = at(alice, *asked)
    assert (again.returncode, "approval_used" in again.stderr) == (81, True)
    other = tmp_path / "other"
    other.write_bytes(b"else")
    changed = at(alice, "admit", "deploy.run", "lock:offline", "--arguments", str(other), "--approval", str(out))
    assert (changed.returncode, "approval_wrong" in changed.stderr) == (81, True)
    broken = tmp_path / "broken.json"
    broken.write_bytes(out.read_bytes().replace(b"deploy.run", b"deploy.all"))
    refused = at(alice, *asked[:-1], str(broken))
    assert (refused.returncode, "is no approval that can be used" in refused.stderr) == (2, True)
    at(alice, "lease", "release", str(lease["leaseId"]))


def test_signing_of_a_request_takes_its_receipt_and_nothing_beside_it(
    alice: Path, chief: Path, homes: Path, diff: Path, tmp_path: Path
) -> None:
    process = asking(alice, chief, diff, "lock:carried", "--mode", "read")
    try:
        ask_id = waiting_for(chief)
        receipt, out = tmp_path / "ask.json", tmp_path / "approval.json"
        receipt.write_bytes(receipt_of(chief, int(ask_id[1:])))
        sign = ("approve", "sign", "--ask", str(receipt), "--out", str(out), "--yes")
        assert at(chief, *sign, "--arguments", str(diff)).returncode == 0
        assert open_approval(out.read_bytes()).says.agent == did_of(alice)
        for more in (("--agent", did_of(alice)), ("--cost", "1"), ("--mode", "read"), ("--rules-digest", ZERO_HASH)):
            mixed = at(chief, *sign, *more)
            assert (mixed.returncode, "leave out the rest" in mixed.stderr) == (2, True)
        stranger = at(homes / "bob", *sign)
        assert (stranger.returncode, "does not ask this key" in stranger.stderr) == (2, True)
        at(alice, "approve", "withdraw", ask_id)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 81


def receipt_of(home: Path, seq: int) -> bytes:
    """Fetch a receipt, as anybody may on this ledger."""

    async def fetched() -> bytes:
        async with Agent.open(home) as agent:
            return (await agent.receipt(seq)).data

    return asyncio.run(fetched())


@pytest.mark.parametrize(("word", "code"), [("yes", 0), ("y", 1), ("", 1)])
def test_a_person_is_asked_and_only_yes_is_yes(
    alice: Path, chief: Path, diff: Path, tmp_path: Path, word: str, code: int
) -> None:
    out = tmp_path / "approval.json"
    command = (
        sys.executable, "-m", "gateway", "approve", "sign", "deploy.run", "lock:x", "--agent", did_of(alice),
        "--arguments", str(diff), "--out", str(out), "--home", str(chief),
    )  # fmt: skip
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, command)
    seen = read_until(terminal, b"Type yes: ")
    assert b"deploy.run (write), once" in seen
    assert not out.exists(), "nothing is signed over before somebody said yes"
    os.write(terminal, f"{word}\n".encode())
    read_until(terminal, None)
    _, status = os.waitpid(child, 0)
    assert (os.waitstatus_to_exitcode(status), out.exists()) == (code, code == 0)


def read_until(terminal: int, words: bytes | None) -> bytes:
    """Read what is written until some words come, or until the end."""
    seen = b""
    while words is None or words not in seen:
        ready, _, _ = select.select([terminal], [], [], PATIENCE_S)
        assert ready, seen
        try:
            piece = os.read(terminal, 4_096)
        except OSError:  # the other side has gone
            piece = b""
        if not piece:
            break
        seen += piece
    assert words is None or words in seen, seen
    return seen


# -- usage -------------------------------------------------------------------------------------------------------------


def test_usage_tells_what_was_admitted(alice: Path) -> None:
    before = json.loads(at(alice, "usage", did_of(alice), "--json").stdout)["usage"][0]
    look = ("admit", "look", "lock:seen", "--mode", "read", "--arguments-digest", ZERO_HASH, "--cost", "3")
    assert at(alice, *look).returncode == 0
    after = json.loads(at(alice, "usage", did_of(alice), "--json").stdout)["usage"][0]
    assert (after["count"], after["cost"]) == (before["count"] + 1, before["cost"] + 3)
    lines = at(alice, "usage").stdout.splitlines()
    assert any(line.startswith(f"agent {did_of(alice)} (you)  this minute ") for line in lines)
    assert any(line.startswith("scheme lock  ") for line in lines)
    assert at(alice, "usage", "me").returncode == 2


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_may_admit_unless_it_was_lent_less(alice: Path, tmp_path: Path) -> None:
    asked = ("admit", "look", "lock:s", "--mode", "read", "--arguments-digest", ZERO_HASH)
    for may, code in ((None, 0), ("lease", 81), ("admit", 0)):
        folder = tmp_path / f"may-{may}"
        lent = () if may is None else ("--may", may)
        opened = at(alice, "session", "open", "--into", str(folder), *lent)
        assert opened.returncode == 0, opened.stderr
        said = at(folder, *asked)
        assert said.returncode == code, said.stderr
        assert code == 0 or "outside_scope" in said.stderr
        at(folder, "session", "revoke")
