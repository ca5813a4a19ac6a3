"""Private reasons: a digest goes into the ledger, the text never leaves the machine, and it can be erased for ever."""

from __future__ import annotations

import io
import json
import re
import socket
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.client import Agent, Private, acquiring, erase_private, releasing, save_private
from gateway.client.commands import main
from gateway.client.private import VALUE_CHARACTERS_MAX, companion_path, read_private
from gateway.client.profile import open_profile
from tests.system.process import Gateway, run_module
from verifier.receipt import check_receipt
from verifier.wire import Malformed

pytestmark = pytest.mark.system
SECRET = "because the customer Zaphod-4711 asked twice"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with Gateway(folder / "ledger") as running:
        yield running
        assert running.verify_ledger(folder / "export")["verdict"] == "valid"


@pytest.fixture(scope="module")
def alice(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("homes") / "alice"
    gateway.join(home)
    return home


@pytest.fixture
def reason(tmp_path: Path) -> Path:
    file = tmp_path / "reason.txt"
    file.write_text(SECRET + "\n")
    return file


def verify(receipt: Path, home: Path, private: Path | None = None) -> tuple[int, str]:
    pins = ("--root", f"@{home}/root.vkey", "--keys", f"{home}/keys.note")
    opened = () if private is None else ("--private", str(private))
    result = run_module("verifier", "receipt", str(receipt), *pins, *opened)
    return result.returncode, result.stdout


@contextmanager
def listening(home: Path) -> Iterator[list[bytes]]:
    """Put a wire-tap between a profile and its gateway; yields what goes by, in both directions."""
    address = home / "gateway.json"
    before = address.read_text()
    host, port = re.search(r"http://([\d.]+):(\d+)", before).groups()  # type: ignore[union-attr]
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as tap:

        def pump(source: socket.socket, target: socket.socket) -> None:
            while data := source.recv(65_536):
                heard.append(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

        def serve() -> None:
            while True:
                try:
                    near, _ = tap.accept()
                except OSError:
                    return
                far = socket.create_connection((host, int(port)))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        tapped = f"http://127.0.0.1:{tap.getsockname()[1]}"
        address.write_text(before.replace(f"http://{host}:{port}", tapped))
        try:
            yield heard
        finally:
            address.write_text(before)


def test_the_text_never_leaves_the_machine_and_its_digest_is_signed(
    gateway: Gateway, alice: Path, tmp_path: Path, reason: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipts = {verb: tmp_path / f"{verb}.json" for verb in ("acquire", "release")}
    with listening(alice) as heard:
        for verb, receipt in receipts.items():
            arguments = ["lease", verb, "lock:private", "--reason-file", str(reason), "--receipt", str(receipt)]
            assert main([*arguments, "--home", str(alice)]) == 0
    printed = capsys.readouterr()
    wire = b"".join(heard)
    for receipt in receipts.values():
        companion = companion_path(receipt)
        assert stat.S_IMODE(companion.stat().st_mode) == 0o600
        content = json.loads(companion.read_bytes())
        salt = content["fields"][0]["salt"]
        digest, (field,) = read_private(companion)
        assert field.salt is not None and len(field.salt) == 32 and field.value == SECRET
        stated = sha256(field.salt + SECRET.encode()).hexdigest()
        assert stated.encode() in wire, "the digest does go over the wire"
        ledger = b"".join(path.read_bytes() for path in gateway.data.glob("ledger.sqlite3*"))
        for place in (wire, ledger, receipt.read_bytes(), printed.out.encode(), printed.err.encode()):
            for secret in (SECRET.encode(), b"Zaphod", salt.encode(), field.salt, field.salt.hex().encode()):
                assert secret not in place
        assert f"--private {companion}" in printed.out
        code, said = verify(receipt, alice, companion)
        assert (code, f"private reasonDigest: {SECRET}" in said) == (0, True), said
        with closing(sqlite3.connect(gateway.data / "ledger.sqlite3")) as db:
            (leaf,) = db.execute("SELECT leaf FROM entry WHERE instr(leaf, ?)", (stated.encode(),)).fetchone()
        assert sha256(b"\0" + leaf).digest() == digest


def test_erasing_makes_the_text_unprovable_and_leaves_the_receipt_as_good_as_it_was(
    alice: Path, tmp_path: Path, reason: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt = tmp_path / "r.json"
    arguments = ["lease", "acquire", "lock:erased", "--reason-file", str(reason), "--receipt", str(receipt)]
    assert main([*arguments, "--home", str(alice)]) == 0
    companion, before = companion_path(receipt), receipt.read_bytes()
    capsys.readouterr()
    assert main(["receipt", "private", str(companion)]) == 0
    assert capsys.readouterr().out == f"reasonDigest: {SECRET}\n"
    kept = tmp_path / "elsewhere"
    kept.write_bytes(companion.read_bytes())
    assert main(["receipt", "private", str(companion), "--erase"]) == 0
    assert main(["receipt", "private", str(companion)]) == 0
    assert capsys.readouterr().out.endswith("reasonDigest: erased\n")
    assert b"Zaphod" not in companion.read_bytes() and stat.S_IMODE(companion.stat().st_mode) == 0o600
    assert json.loads(companion.read_bytes())["fields"] == [{"name": "reasonDigest", "salt": None}]
    assert receipt.read_bytes() == before
    code, said = verify(receipt, alice, companion)
    assert (code, "erased: not opened" in said) == (0, True), said
    assert verify(receipt, alice)[0] == 0
    kept.write_bytes(kept.read_bytes().replace(b"twice", b"thrice"))
    assert verify(receipt, alice, kept)[0] == 1, "another text does not fit"


def test_a_refusal_keeps_its_reason_too(gateway: Gateway, alice: Path, tmp_path: Path, reason: Path) -> None:
    bob = tmp_path / "bob"
    gateway.join(bob)
    assert main(["lease", "acquire", "lock:taken", "--ttl", "10m", "--home", str(alice)]) == 0
    receipt = tmp_path / "refused.json"
    arguments = ["lease", "acquire", "lock:taken", "--reason-file", str(reason), "--receipt", str(receipt)]
    assert main([*arguments, "--home", str(bob)]) == 73
    assert verify(receipt, bob, companion_path(receipt))[0] == 0


def test_who_breaks_and_who_hands_over_may_say_why_in_private(
    gateway: Gateway, alice: Path, tmp_path: Path, reason: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bob = tmp_path / "bob"
    gateway.join(bob)
    did = open_profile(bob).key.did
    assert main(["lease", "acquire", "lock:given", "--ttl", "10m", "--home", str(alice)]) == 0
    given, broken = tmp_path / "given.json", tmp_path / "broken.json"
    code = ["--reason", "shift-over", "--reason-file", str(reason)]
    handing = ["lease", "transfer", "lock:given", "--to", did, *code, "--receipt", str(given)]
    assert main([*handing, "--home", str(alice)]) == 0
    assert verify(given, alice, companion_path(given))[0] == 0
    assert main(["lease", "acquire", "lock:gone", "--ttl", "10m", "--json", "--home", str(alice)]) == 0
    token = json.loads(capsys.readouterr().out.splitlines()[-1])["fencingToken"]
    operator = gateway.data / "operator"
    assert main(["lease", "break", "lock:gone", "--token", str(token), *code, "--receipt", str(broken),
                 "--home", str(operator)]) == 0  # fmt: skip
    assert verify(broken, operator, companion_path(broken))[0] == 0


def test_nothing_is_sent_when_the_reason_has_no_place(
    alice: Path, tmp_path: Path, reason: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(alice) as heard:
        assert main(["lease", "acquire", "lock:x", "--reason-file", str(reason), "--home", str(alice)]) == 2
        assert "name a file with --receipt; nothing was sent" in capsys.readouterr().err
        receipt = ["--receipt", str(tmp_path / "r.json"), "--home", str(alice)]
        assert main(["lease", "acquire", "lock:x", "--reason-file", str(tmp_path / "none"), *receipt]) == 2
        assert "can't be read" in capsys.readouterr().err
        monkeypatch.setattr("sys.stdin", io.StringIO("x"))
        assert main(["lease", "acquire", "lock:x", "--reason-text", *receipt]) == 2
        assert "this is none: use --reason-file" in capsys.readouterr().err
        assert main(["lease", "acquire", "lock:x", "--wait", "5s", "--reason-file", str(reason), *receipt]) == 2
        assert "leave out --wait" in capsys.readouterr().err
    assert heard == []


def test_a_terminal_is_asked(alice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(SECRET + "\n"))
    receipt = tmp_path / "r.json"
    arguments = ["lease", "acquire", "lock:asked", "--reason-text", "--receipt", str(receipt)]
    assert main([*arguments, "--home", str(alice)]) == 0
    assert read_private(companion_path(receipt))[1][0].value == SECRET


async def test_programs_have_private_reasons_in_batches_too(alice: Path, tmp_path: Path) -> None:
    why = [Private.of("first"), Private.of("second")]
    assert "first" not in repr(why[0]) and why[0].salt.hex() not in repr(why)
    async with Agent.open(alice) as agent:
        outcomes = await agent.batch(
            [
                acquiring("lock:batch", reason_digest=why[0].digest),
                releasing("lock:batch", reason_digest=why[1].digest),
            ]
        )
        keyring = agent.profile.keyring
    for number, (outcome, reason) in enumerate(zip(outcomes, why, strict=True)):
        path = tmp_path / f"{number}.json"
        companion = save_private(path, outcome.receipt, reason)
        report = check_receipt(outcome.receipt.data, keyring, private=companion.read_bytes())
        assert report.exit_code == 0 and f"private reasonDigest: {reason.value}" in report.as_text()
        assert erase_private(companion) == 1 and erase_private(companion) == 0


@pytest.mark.parametrize("value", ["", "x" * (VALUE_CHARACTERS_MAX + 1)])
def test_a_private_text_has_bounds(value: str) -> None:
    with pytest.raises(Malformed, match="1 to 4,096 characters"):
        Private.of(value)


def test_two_salts_are_never_the_same() -> None:
    assert Private.of("same").digest != Private.of("same").digest
