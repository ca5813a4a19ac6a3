"""Keys of a running gateway are changed by the real commands, which are killed at every step, and run again."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import gateway.key_commands as key_commands
import gateway.rotation as rotation
from gateway.client.agent import Agent
from gateway.client.errors import ClientError
from gateway.client.office import rows_in
from gateway.client.profile import open_profile
from gateway.key_commands import compromise, retire, rotate
from gateway.ledger.witness_http import Answer
from gateway.rotation import Office, Stated, stated
from keys.files import load_key
from keys.publish import read_forms
from keys.signing import SigningKey
from tests.system.process import Gateway, run_cli, run_module
from tests.web.test_witnessed import reached, witnessed, witnesses_at
from tests.web.world import ORIGIN, World, make, world
from verifier.checkpoint import parse_checkpoint
from verifier.keyring import KeyDocument, open_key_document, open_keyring
from verifier.note import make_vkey, parse_vkey
from verifier.proof import parse_proof
from verifier.receipt import check_receipt
from verifier.wire import JsonObject


class Killed(BaseException):
    """The command ended here, without another word."""


# -- every step, in one process with the gateway -----------------------------------------------------------------------


@dataclass
class Place:
    """A running gateway, and an office that may be opened again and again."""

    world: World

    @asynccontextmanager
    async def office(self) -> AsyncIterator[Office]:
        folder = self.world.folder
        profile = open_profile(folder / "operator")
        address = replace(profile.address, url=self.world.gateway.url)
        root = load_key(folder / "root" / "root.key", purpose="root")
        async with Agent.open(replace(profile, address=address)) as agent:
            yield Office(folder, folder / "root", root, agent)

    async def run(self, command: Callable[[Office, Namespace], Awaitable[int]], **options: Any) -> int:
        arguments = Namespace(**{"purpose": "both", "key": None, "wait": 0, **options})
        async with self.office() as office:
            return await command(office, arguments)

    async def stated(self) -> Stated:
        async with self.office() as office:
            return await stated(office)

    def published(self) -> KeyDocument:
        root = parse_vkey(self.world.made.root_vkey)
        return open_key_document(read_forms(self.world.folder / "public")["keys.note"], root)

    def key_names(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.world.folder / folder).glob("*.key"))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    folder = tmp_path / "data"
    async with world(folder, make(folder)) as running:
        yield Place(running)


def put(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    """Put a step in place wherever the commands or the steps call it."""
    for module in (rotation, key_commands):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)


def kill_before(monkeypatch: pytest.MonkeyPatch, name: str, nth: int = 1) -> None:
    """Let the command end right before a step of it, the `nth` time that it comes there."""
    step = getattr(rotation, name)
    calls = 0

    def killed(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise Killed
        return step(*arguments, **named)

    put(monkeypatch, name, killed)


def kill_after(monkeypatch: pytest.MonkeyPatch, name: str, nth: int = 1) -> None:
    """Let the command end right after a step of it: what that did is there."""
    step = getattr(rotation, name)
    calls = 0

    async def killed_later(made: Awaitable[Any]) -> None:
        await made
        raise Killed

    def killed(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        made = step(*arguments, **named)
        if calls != nth:
            return made
        if asyncio.iscoroutine(made):
            return killed_later(made)
        raise Killed

    put(monkeypatch, name, killed)


KILLS = [
    (kill, step, nth)
    for kill in (kill_before, kill_after)
    for step, count in (
        ("copy_key", 1), ("new_key", 1), ("_bring", 2), ("tidy", 1), ("publish", 2), ("signed_statement", 1),
    )
    for nth in range(1, count + 1)
]  # fmt: skip


@pytest.mark.parametrize(
    ("kill", "step", "nth"), KILLS, ids=[f"{k.__name__[5:]} {step} {nth}" for k, step, nth in KILLS]
)
async def test_a_rotation_that_is_killed_anywhere_is_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch, kill: Callable[..., None], step: str, nth: int
) -> None:
    with monkeypatch.context() as patched:
        kill(patched, step, nth)
        with pytest.raises(Killed):
            await place.run(rotate)
    assert await place.run(rotate) == 0
    now = await place.stated()
    assert [len(now.in_force(purpose)) for purpose in ("log", "receipt")] == [2, 2], "each once, whatever happened"
    assert {line.key for line in place.published().keys} == {line.key for line in now.lines}
    assert place.key_names("keys")[1:] == ["log.2.key", "log.key", "receipt.2.key", "receipt.key", "seal.key"]
    assert len(place.key_names("root")) == 3, "the root, and the next keys that were committed to"
    assert set(now.following) == {"log", "receipt"}
    await works(place)


KILLS_OF_AN_END = [
    (kill, step, nth)
    for kill in (kill_before, kill_after)
    for step, nth in (("_bring", 1), ("_bring", 2), ("publish", 1))
]


@pytest.mark.parametrize(
    ("kill", "step", "nth"), KILLS_OF_AN_END, ids=[f"{k.__name__[5:]} {s} {n}" for k, s, n in KILLS_OF_AN_END]
)
async def test_a_retirement_that_is_killed_anywhere_is_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch, kill: Callable[..., None], step: str, nth: int
) -> None:
    await place.run(rotate)
    with monkeypatch.context() as patched:
        kill(patched, step, nth)
        with pytest.raises(Killed):
            await place.run(retire)
    assert await place.run(retire) == 0
    now = await place.stated()
    assert [len(now.in_force(purpose)) for purpose in ("log", "receipt")] == [1, 1]
    statuses = sorted((line.purpose, line.status) for line in place.published().keys)
    assert statuses == [("log", "active"), ("log", "retired"), ("receipt", "active"), ("receipt", "retired")]
    await works(place)


KILLS_OF_A_DISOWNING = [
    (kill, step, nth)
    for kill in (kill_before, kill_after)
    for step, nth in (("_bring", 1), ("publish", 1), ("_bring", 2), ("publish", 2))
]


@pytest.mark.parametrize(
    ("kill", "step", "nth"), KILLS_OF_A_DISOWNING, ids=[f"{k.__name__[5:]} {s} {n}" for k, s, n in KILLS_OF_A_DISOWNING]
)
@pytest.mark.parametrize("purpose", ["log", "receipt"])
async def test_a_disowning_that_is_killed_anywhere_is_gone_on_with_and_takes_one_key(
    place: Place, monkeypatch: pytest.MonkeyPatch, kill: Callable[..., None], step: str, nth: int, purpose: str
) -> None:
    """Named, because for a receipt key nothing tells a command that goes on from one that begins."""
    (stolen,) = (line.key.vkey for line in (await place.stated()).in_force(purpose))
    with monkeypatch.context() as patched:
        kill(patched, step, nth)
        with pytest.raises(Killed):
            await place.run(compromise, purpose=purpose, key=stolen)
    assert await place.run(compromise, purpose=purpose, key=stolen) == 0
    now = await place.stated()
    assert [line.key.vkey for line in now.disowned(purpose)] == [stolen]
    (left,) = now.in_force(purpose)
    shown = {line.key.vkey: line.status for line in place.published().keys}
    assert (shown[stolen], shown[left.key.vkey]) == ("compromised", "active")
    await works(place)


async def works(place: Place) -> None:
    """A fresh agent gets what it asks for, and the auditor agrees with the ledger and with what is published."""
    reply = await place.world.acquire("worker", f"lock:{len(place.world.types())}")
    assert reply.status == 200
    note = (place.world.folder / "public" / "keys.note").read_bytes()
    place.world.keyring = open_keyring(root=place.world.made.root_vkey, document=note)
    assert check_receipt(json.dumps(reply.json["receipt"]).encode(), place.world.keyring).exit_code == 0
    place.world.audit()


# -- what is refused ---------------------------------------------------------------------------------------------------


async def test_a_second_disowning_by_mistake_takes_no_further_key(place: Place) -> None:
    assert await place.run(compromise, purpose="receipt") == 0
    with pytest.raises(rotation.RotationError, match="disowned already"):
        await place.run(compromise, purpose="receipt")
    assert len((await place.stated()).disowned("receipt")) == 1


async def test_a_folder_without_the_key_that_was_committed_to_rotates_nothing(place: Place) -> None:
    for name in ("next-log.key", "next-log.pass"):
        (place.world.folder / "root" / name).unlink()
    with pytest.raises(rotation.RotationError, match="--root-folder"):
        await place.run(rotate, purpose="log")
    assert len((await place.stated()).in_force("log")) == 1


@pytest.mark.parametrize(
    ("lie", "text"),
    [
        ({"announcedSeq": 2}, "do not go on"),
        ({"announcedSeq": 0}, "never stated"),
        ({"announcedSeq": 0, "endedSeq": 2}, "do not go on"),
    ],
    ids=["announced by any entry", "of entry 0", "ended by any entry"],
)
async def test_a_gateway_that_tells_of_keys_that_the_root_never_stated_gets_nothing_signed(
    place: Place, monkeypatch: pytest.MonkeyPatch, lie: dict[str, int], text: str
) -> None:
    """Its word decides only which receipts are looked at."""
    thief = make_vkey(ORIGIN, SigningKey.generate().public_key)
    honest = Agent.ledger_keys

    async def lying(agent: Agent) -> JsonObject:
        told = await honest(agent)
        return {**told, "keys": [*rows_in(told, "keys"), {"purpose": "log", "key": thief.vkey, **lie}]}

    await place.world.agent("worker")
    monkeypatch.setattr(Agent, "ledger_keys", lying)
    with pytest.raises(ClientError) as refused:
        await place.run(rotate)
    assert text in str(refused.value) or "does not verify" in str(refused.value)
    assert place.published().version == 1 and len(place.key_names("keys")) == 4


# -- the gateway meanwhile ---------------------------------------------------------------------------------------------


async def test_what_is_published_is_served_at_once_and_only_if_it_fits(place: Place, tmp_path: Path) -> None:
    path = "/.well-known/tallystick-keys"
    before = (await place.world.get(path)).body
    await place.run(rotate)
    served = (await place.world.get(path)).body
    assert served != before and served == (place.world.folder / "public" / "keys.note").read_bytes()
    other = make(tmp_path / "other")
    assert other.genesis != place.world.made.genesis
    link = place.world.folder / "public"
    link.unlink()
    link.symlink_to(tmp_path / "other" / "public")
    assert (await place.world.get(path)).body == served, "another ledger's keys are not served"


async def test_an_announcement_whose_key_is_not_there_is_turned_away(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "copy_key", lambda source, target: None)
    with pytest.raises(Exception, match="key_unready"):
        await place.run(rotate, purpose="log")
    assert len((await place.stated()).in_force("log")) == 1


# -- processes ---------------------------------------------------------------------------------------------------------


def keys(data: Path, *arguments: str) -> str:
    result = run_cli("keys", *arguments, "--data", str(data))
    assert result.returncode == 0, (arguments, result.stdout, result.stderr)
    return result.stdout


def verified(gateway: Gateway, receipt: Path) -> dict[str, Any]:
    pins = ("--root", gateway.root_vkey(), "--keys", str(gateway.data / "public" / "keys.note"))
    result = run_module("verifier", "receipt", str(receipt), *pins, "--json")
    return {**json.loads(result.stdout), "code": result.returncode}


@pytest.mark.serial
@pytest.mark.system
def test_a_rotation_with_real_processes_and_kills_between_its_steps(tmp_path: Path) -> None:
    """Receipts from before, between and after hold under the newest document, also fetched anew after kill −9."""
    receipts = [tmp_path / f"receipt-{number}.json" for number in range(4)]
    with Gateway(tmp_path / "data") as gateway:
        gateway.join(tmp_path / "worker")

        def acquire(number: int) -> None:
            gateway.cli(tmp_path / "worker", "lease", "acquire", f"lock:{number}", "--receipt", str(receipts[number]))

        acquire(0)
        assert "published version 3" in keys(gateway.data, "rotate")
        gateway.kill()
        gateway.start()
        acquire(1)
        assert "published version 4" in keys(gateway.data, "retire")
        gateway.kill()
        gateway.start()
        acquire(2)
        assert "disowned" in keys(gateway.data, "compromise", "--purpose", "receipt")
        gateway.kill()
        gateway.start()
        acquire(3)
        reports = [verified(gateway, receipt) for receipt in receipts]
        assert [report["code"] for report in reports] == [0, 0, 0, 0]
        assert gateway.verify_ledger(tmp_path / "all.ledger")["exitCode"] == 0


# -- with witnesses ----------------------------------------------------------------------------------------------------


async def test_witnesses_prove_that_a_key_was_disowned_and_old_receipts_lead_to_the_tree_they_saw(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    made = make(folder)
    async with witnesses_at(1) as (witness,), witnessed(folder, made, [witness], 1) as running:
        place = Place(running)
        reply = await running.acquire("worker", "lock:old")
        receipt = json.dumps(reply.json["receipt"]).encode()
        size = parse_checkpoint(parse_proof(reply.json["receipt"]["proof"].encode()).checkpoint).size
        assert await place.run(compromise, purpose="log", wait=20_000) == 0
        line = next(line for line in place.published().keys if line.status == "compromised")
        assert line.final_note is not None and line.final_size is not None and line.to_size is not None
        assert line.final_size > line.to_size
        pins = open_keyring(
            root=made.root_vkey,
            document=(folder / "public" / "keys.note").read_bytes(),
            policy=(await running.get("/.well-known/tallystick-policy.txt")).body,
        )
        proof = (await running.get(f"/api/v1/acp/ledger/consistency?from={size}&to={line.final_size}")).body
        assert check_receipt(receipt, pins).exit_code == 3, "disowned: its own checkpoint was not witnessed"
        assert check_receipt(receipt, pins, others=[proof]).exit_code == 0, "it leads to what witnesses saw"
        assert await place.run(compromise, purpose="log", key=line.key.vkey) == 0
        assert place.published().version in (3, 4), "it was all said: new key, disowned, and proven at once or after"


async def test_without_a_witnessed_checkpoint_in_time_the_command_is_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made = make(folder)
    async with witnesses_at(1) as (witness,), witnessed(folder, made, [witness], 1) as running:
        place = Place(running)
        await reached(running, 1)
        witness.script.extend(Answer(500, b"") for _ in range(1_000))
        assert await place.run(compromise, purpose="log", wait=0) == 1
        shown = next(line for line in place.published().keys if line.status == "compromised")
        assert shown.final_root is not None and shown.final_note is None, "readers are warned at once"
        witness.script.clear()
        assert await place.run(compromise, purpose="log", wait=60_000) == 0, "it goes on with the key it began with"
        shown = next(line for line in place.published().keys if line.status == "compromised")
        assert shown.final_note is not None
        assert len((await place.stated()).disowned("log")) == 1
