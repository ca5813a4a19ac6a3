"""The command as other programs see it: an executable, its exit codes and its one line of JSON.

TALLYSTICK_VERIFY names another executable (any language): the same cases are its conformance test.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.verifier import maker

ROOT = Path(__file__).resolve().parents[2]
COMMAND = shlex.split(os.environ.get("TALLYSTICK_VERIFY", f"{sys.executable} -m verifier"))
WORKED = maker.worked()
END = WORKED.value(5)["expiresAtMs"]
PINS = "--root @root.vkey --keys keys.note --policy policy.txt"


def forked() -> maker.Ledger:
    other = maker.Ledger(leaves=WORKED.leaves[:5], time_ms=WORKED.value(5)["timeMs"] + 1, epoch=2, counter=500)
    other.grant(maker.ALICE, "lock:other")
    return other


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file the cases name."""
    folder = tmp_path_factory.mktemp("desk")
    receipt = WORKED.receipt(5, witnesses=("w1", "w2"))
    files = {
        "root.vkey": maker.root_vkey().encode() + b"\n",
        "keys.note": WORKED.keys(),
        "keys2.note": WORKED.keys(version=2),
        "policy.txt": maker.policy(),
        "other-policy.txt": b"log " + maker.STRANGER.vkey("other.example/x").encode() + b"\nquorum none\n",
        "bad-policy.txt": b"log nonsense\nquorum none\n",
        "receipt.json": receipt,
        "plain.json": WORKED.receipt(5),
        "flipped.json": receipt.replace(b'"payload":"ey', b'"payload":"fy'),
        "unknown.json": novel(),
        "fork.json": forked().receipt(5),
        "ledger.export": WORKED.export(),
        "cut.export": WORKED.export()[:-200],
        "checkpoint": WORKED.checkpoint(),
        "fork.checkpoint": forked().checkpoint(),
        "big.fork": fork_of_15(),
        "small.checkpoint": WORKED.checkpoint(7),
        "proof.consistency": WORKED.consistency(7),
        "evidence.json": evidence(),
        "private.json": private("5a" * 32),
        "erased.json": private(None),
        "empty": b"",
        "huge": b"x" * 300_000,
        "huger": b"x" * 2_000_000,
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe")
    (folder / "link.json").symlink_to("plain.json")
    return folder


def evidence() -> bytes:
    """What `compare` writes about the two checkpoints, byte for byte."""
    both = {"a": WORKED.checkpoint().decode(), "b": fork_of_15().decode()}
    whole = {"type": "tallystick/evidence/1", "code": "two_roots", "origin": maker.ORIGIN, **both}
    return maker.canonical(whole) + b"\n"


def fork_of_15() -> bytes:
    """A checkpoint of the other branch with the size of the whole day."""
    other = forked()
    while len(other.leaves) < len(WORKED.leaves):
        other.time_ms += 1
        other.grant(maker.ALICE, f"lock:other{other.time_ms}")
    return other.checkpoint()


def private(value: str | None) -> bytes:
    salt = None if value is None else maker.b64(bytes(32))
    field = {"name": "reasonDigest", "salt": salt, **({} if value is None else {"value": value})}
    leaf_hash = maker.leaf_hash(WORKED.leaves[5]).hex()
    return maker.canonical({"type": "tallystick/private/1", "leafHash": leaf_hash, "fields": [field]})


def novel() -> bytes:
    """A receipt of an entry type that this version does not know."""
    ledger = maker.Ledger(leaves=WORKED.leaves[:5])
    ledger.entry("lease.lent", "gateway", {})
    return ledger.receipt(5)


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*COMMAND, *shlex.split(line)], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


CASES = [  # the command line, its exit code, verdict, failing step, level
    (f"receipt receipt.json {PINS}", 0, "valid", None, "witnessed 2/3"),
    (f"receipt receipt.json {PINS} --level witnessed", 0, "valid", None, "witnessed 2/3"),
    (f"receipt plain.json {PINS} --level signed", 0, "valid", None, "included"),
    (f"receipt plain.json {PINS} --level witnessed", 3, "valid", None, "included"),
    ("receipt plain.json --policy policy.txt", 0, "valid", None, "included"),
    ("receipt plain.json --root @root.vkey --keys keys.note", 0, "valid", None, "included"),
    (f"receipt plain.json --root {maker.root_vkey()} --keys keys.note", 0, "valid", None, "included"),
    (f"receipt plain.json {PINS} --now {END - 1}", 0, "valid", None, "included"),
    (f"receipt plain.json {PINS} --now {END}", 3, "indeterminate", 11, "included"),
    (f"receipt flipped.json {PINS}", 1, "invalid", 3, "none"),
    ("receipt plain.json --policy other-policy.txt", 1, "invalid", 5, "none"),
    (f"receipt unknown.json {PINS}", 3, "indeterminate", 9, "included"),
    (f"receipt empty {PINS}", 1, "invalid", 2, "none"),
    (f"receipt huge {PINS}", 1, "invalid", 1, "none"),
    (f"receipt ledger.export {PINS}", 1, "invalid", 2, "none"),
    (f"receipt plain.json {PINS} --also fork.json", 4, "split", 12, "none"),
    (f"receipt plain.json {PINS} --also checkpoint receipt.json", 0, "valid", None, "included"),
    (f"receipt nothing.json {PINS}", 2, "unreadable", 0, "none"),
    (f"receipt . {PINS}", 2, "unreadable", 0, "none"),
    ("receipt plain.json", 2, "unreadable", 0, "none"),
    ("receipt plain.json --keys keys.note", 2, "unreadable", 0, "none"),
    ("receipt plain.json --policy bad-policy.txt", 2, "unreadable", 0, "none"),
    ("receipt plain.json --policy nothing.txt", 2, "unreadable", 0, "none"),
    ("receipt plain.json --policy huge", 2, "unreadable", 0, "none"),
    ("receipt plain.json --root @root.vkey --keys policy.txt", 2, "unreadable", 0, "none"),
    (f"receipt link.json {PINS}", 0, "valid", None, "included"),
    (f"receipt pipe {PINS}", 2, "unreadable", 0, "none"),
    (f"receipt /dev/zero {PINS}", 2, "unreadable", 0, "none"),
    (f"receipt - {PINS}", 2, "unreadable", 0, "none"),
    (f"receipt plain.json {PINS} --also pipe", 2, "unreadable", 0, "none"),
    ("receipt plain.json --root @pipe --keys keys.note", 2, "unreadable", 0, "none"),
    ("receipt plain.json --root @root.vkey --keys pipe", 2, "unreadable", 0, "none"),
    ("receipt plain.json --policy pipe", 2, "unreadable", 0, "none"),
    (f"ledger pipe {PINS}", 2, "unreadable", 0, "none"),
    (f"ledger ledger.export {PINS} --checkpoint pipe", 2, "unreadable", 0, "none"),
    (f"receipt plain.json {PINS} --also nothing.json", 2, "unreadable", 0, "none"),
    (f"receipt plain.json {PINS} --min-keys-version 2", 2, "unreadable", 0, "none"),
    ("receipt plain.json --root @root.vkey --keys keys2.note --min-keys-version 2", 0, "valid", None, "included"),
    (f"receipt plain.json {PINS} --also proof.consistency", 0, "valid", None, "included"),
    (f"receipt plain.json {PINS} --private private.json", 1, "invalid", 12, "none"),
    (f"receipt plain.json {PINS} --private checkpoint", 2, "unreadable", 0, "none"),
    (f"receipt plain.json {PINS} --private nothing", 2, "unreadable", 0, "none"),
    (f"compare checkpoint plain.json {PINS}", 0, "valid", None, "none"),
    (f"compare checkpoint small.checkpoint {PINS} --proof proof.consistency", 0, "valid", None, "none"),
    (f"compare checkpoint small.checkpoint {PINS}", 3, "indeterminate", 12, "none"),
    ("compare checkpoint checkpoint --policy policy.txt", 0, "valid", None, "none"),
    (f"compare checkpoint big.fork {PINS}", 4, "split", 12, "none"),
    (f"compare plain.json fork.json {PINS}", 4, "split", 12, "none"),
    (f"compare evidence.json {PINS}", 4, "split", 12, "none"),
    ("compare evidence.json --policy other-policy.txt", 1, "invalid", 5, "none"),
    (f"compare checkpoint empty {PINS}", 1, "invalid", 4, "none"),
    (f"compare checkpoint flipped.json {PINS}", 1, "invalid", 3, "none"),
    (f"compare checkpoint {PINS}", 2, "unreadable", 0, "none"),
    (f"compare empty {PINS}", 2, "unreadable", 0, "none"),
    (f"compare huger {PINS}", 2, "unreadable", 0, "none"),
    (f"compare checkpoint huge {PINS}", 2, "unreadable", 0, "none"),
    (f"compare checkpoint nothing {PINS}", 2, "unreadable", 0, "none"),
    (f"compare checkpoint pipe {PINS}", 2, "unreadable", 0, "none"),
    (f"compare checkpoint small.checkpoint {PINS} --proof checkpoint", 2, "unreadable", 0, "none"),
    ("compare checkpoint checkpoint", 2, "unreadable", 0, "none"),
    (f"ledger ledger.export {PINS}", 0, "valid", None, "included"),
    (f"ledger ledger.export {PINS} --checkpoint checkpoint --jobs 2", 0, "valid", None, "included"),
    ("ledger ledger.export --policy policy.txt", 0, "valid", None, "included"),
    (f"ledger cut.export {PINS}", 1, "invalid", 2, "none"),
    (f"ledger empty {PINS}", 1, "invalid", 2, "none"),
    (f"ledger nothing {PINS}", 2, "unreadable", 0, "none"),
    (f"ledger ledger.export {PINS} --checkpoint nothing", 2, "unreadable", 0, "none"),
    (f"ledger ledger.export {PINS} --checkpoint fork.checkpoint", 4, "split", 12, "none"),
]


@pytest.mark.parametrize(("line", "code", "verdict", "step", "level"), CASES, ids=[case[0][:60] for case in CASES])
def test_exit_code_and_json_are_the_protocol(
    desk: Path, line: str, code: int, verdict: str, step: int | None, level: str
) -> None:
    done = run(desk, f"{line} --json")
    report: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, report["exitCode"], done.stderr) == (code, code, "")
    assert (report["verdict"], report["failedStep"], report["level"]) == (verdict, step, level)
    assert done.stdout.count("\n") == 1 and done.stdout.isascii()


USAGE = [
    "",
    "verify",
    "receipt",
    "receipt plain.json --level best",
    "receipt plain.json --now yesterday",
    "receipt plain.json --now -5",
    "receipt plain.json --now 1_000",
    "receipt plain.json --pol policy.txt",
    "ledger ledger.export --jobs x",
    "compare",
    "compare checkpoint checkpoint checkpoint",
    "compare checkpoint checkpoint --level signed",
]


@pytest.mark.parametrize("line", USAGE)
def test_a_wrong_command_line_is_one_sentence_and_exit_2(desk: Path, line: str) -> None:
    done = run(desk, line)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_the_report_for_a_person_names_verdict_step_and_what_was_not_checked(desk: Path) -> None:
    done = run(desk, f"receipt flipped.json {PINS}")
    lines = done.stdout.splitlines()
    assert lines[0] == "INVALID at step 3: signature_invalid"
    assert "completeness: unknown" in lines
    assert "direct signature: invalid" in lines
    assert lines[-1] == "exit 1: invalid: at least one step failed"


def test_evidence_is_written_once_and_judged_anew_by_who_gets_it(desk: Path) -> None:
    out = desk / "found.json"
    split = run(desk, f"compare checkpoint big.fork {PINS} --evidence found.json")
    assert split.returncode == 4 and split.stdout.startswith("SPLIT at step 12: two_roots\n")
    assert out.read_bytes() == (desk / "evidence.json").read_bytes()
    assert run(desk, "compare found.json --policy policy.txt").returncode == 4
    again = run(desk, f"compare plain.json fork.json {PINS} --evidence found.json")
    assert again.returncode == 4 and "the evidence was not written" in again.stderr
    assert out.read_bytes() == (desk / "evidence.json").read_bytes()
    agreed = run(desk, f"compare checkpoint plain.json {PINS} --evidence none.json")
    assert (agreed.returncode, agreed.stderr, (desk / "none.json").exists()) == (0, "", False)
    assert "A and B are of one history" in agreed.stdout and "\nlevel:" not in agreed.stdout


def test_an_erased_text_of_a_receipt_that_has_no_digest_is_a_finding(desk: Path) -> None:
    done = run(desk, f"receipt plain.json {PINS} --private erased.json")
    assert done.returncode == 1 and "private_unknown (protocol 16.11)" in done.stdout


def test_an_export_that_is_given_as_a_receipt_is_known_for_one(desk: Path) -> None:
    assert (
        "this looks like a ledger export: use `tallystick-verify ledger`"
        in run(desk, f"receipt ledger.export {PINS}").stdout
    )


def test_a_pipe_is_refused_with_a_sentence(desk: Path) -> None:
    done = run(desk, f"receipt pipe {PINS}")
    assert "step 0 UNREADABLE unreadable (protocol 16.4): cannot read a file: pipe is no regular file" in done.stdout


@pytest.mark.parametrize(("receipt", "code"), [("plain.json", 0), ("flipped.json", 1)])
def test_a_closed_pipe_is_silent_and_the_exit_code_is_the_verdict_s(desk: Path, receipt: str, code: int) -> None:
    """`| head -4` has seen enough; whoever asks for the exit code still gets the verdict."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [*COMMAND, *shlex.split(f"receipt {receipt} {PINS}")]
    done = subprocess.run(command, cwd=desk, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(
    "line",
    [
        f"receipt nothing {PINS}",
        f"ledger ledger.export {PINS} --checkpoint nothing",
        "receipt plain.json --policy nothing",
        f"receipt plain.json {PINS} --also nothing",
        "receipt plain.json --root @nothing --keys keys.note",
    ],
)
def test_a_missing_file_is_named(desk: Path, line: str) -> None:
    assert "unreadable (protocol 16.4): cannot read nothing: No such file or directory" in run(desk, line).stdout


def test_a_root_without_its_at_sign_is_told_how_to_name_a_file(desk: Path) -> None:
    done = run(desk, "receipt plain.json --root root.vkey --keys keys.note")
    assert done.returncode == 2
    assert "--root is not a verifier key; to read it from a file write @FILE" in done.stdout


def test_no_command_lists_the_commands_and_the_version_is_the_project_s(desk: Path) -> None:
    assert "COMMAND (receipt, compare or ledger)" in run(desk, "").stderr
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert run(desk, "--version").stdout == f"tallystick-verify {version}\n"


@pytest.mark.parametrize("command", ["receipt", "compare", "ledger"])
def test_every_argument_has_a_help(desk: Path, command: str) -> None:
    rows = run(desk, f"{command} --help").stdout.partition("positional arguments:")[2].splitlines()
    bare = [
        row
        for row, below in zip(rows, [*rows[1:], ""], strict=True)
        if re.fullmatch(r"  \S+( [A-Z]+)?", row) and not below.strip()
    ]
    assert rows and bare == []


def test_the_folder_copied_alone_works(desk: Path, tmp_path: Path) -> None:
    """Strangers audit one folder: with PyNaCl installed it needs nothing else of ours."""
    shutil.copytree(ROOT / "verifier", tmp_path / "verifier", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    line = f"{sys.executable} -m verifier ledger ledger.export {PINS} --json"
    done = subprocess.run(shlex.split(line), cwd=desk, env=environment, capture_output=True, text=True)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "valid")


def test_without_pynacl_it_says_what_to_install(desk: Path) -> None:
    """-S hides every installed package."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-S", "-m", "verifier", "receipt", "plain.json"]
    done = subprocess.run(command, cwd=desk, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tallystick-verify: PyNaCl is not installed: pip install PyNaCl\n"
