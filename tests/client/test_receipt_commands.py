"""`tallystick receipt`: a kept receipt becomes a witnessed one, or stays byte for byte what it was."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gateway.client import receipt_commands
from gateway.client.commands import main
from gateway.client.exits import PROFILE, UNPROVEN, UNWITNESSED, USAGE
from gateway.client.join import join
from gateway.client.receipts import VerifiedReceipt, open_receipt
from gateway.ledger.witness_http import Answer
from keys.files import load_key
from tests.ledger.witness_fake import FakeWitness, policy_of
from tests.web.test_witnessed import reached, witnessed, witnesses_at
from tests.web.world import AUTHORITY, World, make
from verifier.keyring import Keyring
from verifier.policy import parse_policy
from verifier.receipt import check_receipt
from verifier.wire import encode_canonical


@dataclass(frozen=True, slots=True)
class Scene:
    """A gateway with two witnesses, an enrolled agent's profile, and a policy that demands both."""

    place: World
    witnesses: list[FakeWitness]
    home: Path
    policy: Path

    async def run(self, *arguments: str) -> int:
        """Run one command in a thread of its own, as a process would."""
        return await asyncio.to_thread(main, ["receipt", *arguments, "--home", str(self.home)])

    async def receipt(self, name: str = "lock:x") -> Path:
        """Take a lease and keep the receipt that its answer brought."""
        file = self.home / "receipt.json"
        code = await asyncio.to_thread(
            main, ["lease", "acquire", name, "--receipt", str(file), "--home", str(self.home)]
        )
        assert code == 0
        return file

    def seq(self) -> int:
        return self.place.gateway.house.sequencer.confirmed.size - 1

    def level(self, receipt: bytes) -> str:
        keyring = Keyring(self.place.keyring.root, self.place.keyring.document, parse_policy(self.policy.read_bytes()))
        return check_receipt(receipt, keyring, level="witnessed").level


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = make(tmp_path / "data", witness_ms=3_000)
    async with witnesses_at() as witnesses, witnessed(tmp_path / "data", made, witnesses) as place:
        home = tmp_path / "home"
        # The name that entry 0 has for this gateway is not where it listens in a test.
        await join(place.gateway.url, made.root_vkey, home)
        (home / "gateway.json").write_bytes(
            encode_canonical({"authority": AUTHORITY, "origin": "gateway.example/main", "url": place.gateway.url})
        )
        await place.ask("op", "agent.add", agent=load_key(home / "agent.key", purpose="agent").did)
        policy = tmp_path / "policy.txt"
        policy.write_bytes(policy_of(witnesses, 2))
        yield Scene(place, witnesses, home, policy)


async def test_a_receipt_is_upgraded_in_its_file(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    file = await scene.receipt()
    before, seq = json.loads(file.read_bytes()), scene.seq()
    assert await scene.run("upgrade", str(file), "--policy", str(scene.policy), "--wait") == 0
    after = json.loads(file.read_bytes())
    assert {name: after[name] for name in ("payload", "signatures")} == {
        name: before[name] for name in ("payload", "signatures")
    }
    assert scene.level(file.read_bytes()) == "witnessed 2/2"
    assert f"entry {seq} is witnessed 2/2 by the policy" in capsys.readouterr().out


async def test_an_upgraded_receipt_is_left_as_it_is(scene: Scene) -> None:
    file = await scene.receipt()
    await scene.run("upgrade", str(file), "--policy", str(scene.policy), "--wait")
    content = file.read_bytes()
    await scene.receipt("lock:y")
    file.write_bytes(content)
    assert await scene.run("upgrade", str(file), "--policy", str(scene.policy)) == 0
    assert file.read_bytes() == content


async def test_the_policy_of_the_profile_is_the_usual_one(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    (scene.home / "policy.txt").write_bytes(scene.policy.read_bytes())
    file = await scene.receipt()
    assert await scene.run("upgrade", str(file), "--wait", "--json") == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["ok"], said["level"], said["isPolicyGiven"]) == (True, "witnessed 2/2", True)


async def test_without_a_policy_it_is_said_that_nobody_judged_the_lines(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    file = await scene.receipt()
    assert await scene.run("upgrade", str(file), "--wait") == 0
    out = capsys.readouterr().out
    assert "witness.example/w1, witness.example/w2: not checked, no policy says who they are" in out
    assert "witnessed 2/2" not in out and scene.level(file.read_bytes()) == "witnessed 2/2"


async def test_while_no_witness_has_seen_it_the_code_is_3_and_the_file_as_it_was(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in scene.witnesses:
        one.script.extend([Answer(500, b"")] * 99)
    file = await scene.receipt()
    content = file.read_bytes()
    arguments = ("upgrade", str(file), "--policy", str(scene.policy))
    assert await scene.run(*arguments) == UNWITNESSED
    assert "Try again with --wait" in capsys.readouterr().err
    assert await scene.run(*arguments, "--wait") == UNWITNESSED, "after witnessMs, here 3 s"
    assert "tallystick-policy.txt" in capsys.readouterr().err
    assert await scene.run(*arguments, "--json") == UNWITNESSED
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["error"], said["exitCode"]) == (False, "not_witnessed", 3)
    assert file.read_bytes() == content


async def test_the_witnesses_of_the_gateway_are_not_those_of_the_reader(scene: Scene) -> None:
    strangers = [FakeWitness("x1", lambda: 0), FakeWitness("x2", lambda: 0)]
    scene.policy.write_bytes(policy_of(strangers, 1))
    file = await scene.receipt()
    content = file.read_bytes()
    await reached(scene.place, scene.seq() + 1)
    assert await scene.run("upgrade", str(file), "--policy", str(scene.policy)) == UNWITNESSED
    assert file.read_bytes() == content


async def test_show_says_what_a_receipt_says_and_how_far_it_is_proven(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    file = await scene.receipt()
    assert await scene.run("show", str(file)) == 0
    out = capsys.readouterr().out
    assert "lease.granted" in out and "included in a checkpoint of" in out and "not witnessed" in out
    await scene.run("upgrade", str(file), "--policy", str(scene.policy), "--wait")
    assert await scene.run("show", str(file), "--policy", str(scene.policy), "--json") == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["level"], said["type"]) == ("witnessed 2/2", "tallystick/lease.granted/1")


@pytest.mark.parametrize("verb", ["show", "upgrade"])
async def test_what_is_no_receipt_of_this_ledger_is_no_receipt(
    scene: Scene, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = await scene.receipt()
    genuine = file.read_bytes()
    for content in (b"", b"{}", genuine[:-9], genuine.replace(b'"sig":"', b'"sig":"A')):
        file.write_bytes(content)
        assert await scene.run(verb, str(file)) == UNPROVEN
        assert file.read_bytes() == content
    assert await scene.run(verb, str(scene.home / "absent.json")) == USAGE
    scene.policy.write_text("quorum none\n", "utf-8")
    file.write_bytes(genuine)
    assert await scene.run(verb, str(file), "--policy", str(scene.policy)) == USAGE
    assert "nothing is ever witnessed" in capsys.readouterr().err


async def test_another_entry_under_the_same_number_is_a_second_history(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await scene.receipt()
    content = file.read_bytes()
    real = open_receipt
    monkeypatch.setattr(receipt_commands, "open_receipt", lambda data, keyring: _renumbered(real(data, keyring)))
    assert await scene.run("upgrade", str(file)) == UNPROVEN
    assert "shows another entry" in capsys.readouterr().err
    assert file.read_bytes() == content


def _renumbered(receipt: VerifiedReceipt) -> VerifiedReceipt:
    """The same receipt with another leaf's hash, as a second history would have it."""
    return replace(receipt, leaf_hash=b"\x07" * 32)


async def test_a_file_that_can_t_be_replaced_is_told_before_anybody_is_asked(scene: Scene) -> None:
    file = await scene.receipt()
    folder = scene.home / "closed"
    folder.mkdir()
    (folder / "receipt.json").write_bytes(file.read_bytes())
    monkey = folder / "receipt.json.new"
    monkey.mkdir()
    await reached(scene.place, scene.seq() + 1)
    assert await scene.run("upgrade", str(folder / "receipt.json")) == PROFILE
