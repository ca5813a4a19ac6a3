"""Batches in a bad network: a whole batch counts once, and one command's receipt is worth as much as any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.client import Agent, Outcome, Unreachable, acquiring, open_profile, releasing
from gateway.client.transport import HttpTransport, Reply
from keys.signing import SigningKey
from tests.system.process import Gateway, run_module
from verifier.entries import ACTION_PATHS, HOLDING
from verifier.wire import LEAF_BYTES_MAX, decode_base64, encode_base64, parse_canonical

COMMANDS = [
    *(acquiring(f"repo:{number}", ttl_ms=60_000) for number in range(12)),
    releasing("repo:0"),
    releasing("repo:nobody-has-it"),
]


class LossyTransport(HttpTransport):
    """The answer to the first batch is lost, and the gateway is killed and started again before anybody asks again."""

    def __init__(self, gateway: Gateway, answers: list[bytes]) -> None:
        super().__init__(gateway.url)
        self._gateway = gateway
        self._answers = answers

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int
    ) -> Reply:
        reply = await super().send(method, target, headers, body, timeout_ms)
        if target == ACTION_PATHS["batch.submit"]:
            self._answers.append(reply.unverified_body)
            if len(self._answers) == 1:
                self._gateway.kill()
                self._gateway.start()
                raise Unreachable("the answer was lost")
        return reply


async def test_a_whole_batch_is_retried_after_a_lost_answer_and_a_killed_gateway(tmp_path: Path) -> None:
    """Scenarios 40, L12 (ZOOKEEPER-1262): the same bytes, each command decided once."""
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        answers: list[bytes] = []
        outcomes = await submitted(gateway, tmp_path / "home", answers)
        assert len(answers) == 2 and answers[0] == answers[1]
        assert [outcome.is_ok for outcome in outcomes] == [True] * 13 + [False]
        found = types(gateway, tmp_path)
    assert found.count("tallystick/batch.received/1") == 1
    assert sum(name in HOLDING for name in found) == 12


async def submitted(gateway: Gateway, home: Path, answers: list[bytes]) -> tuple[Outcome, ...]:
    gateway.join(home)
    profile = replace(open_profile(home), key=SigningKey.generate(), home=None)
    async with Agent(profile, connect=lambda url: LossyTransport(gateway, answers)) as agent:
        return await agent.batch(COMMANDS)


def types(gateway: Gateway, folder: Path) -> list[str]:
    """Let the verifier judge the whole ledger, and return the types of its entries."""
    report = gateway.verify_ledger(folder / "ledger.export")
    assert report["exitCode"] == 0
    lines = (folder / "ledger.export").read_bytes().split(b"\n")
    return [str(parse_canonical(line, bytes_max=LEAF_BYTES_MAX)["type"]) for line in lines if line.startswith(b"{")]


async def test_one_receipt_of_a_batch_is_verified_offline_by_a_stranger(tmp_path: Path) -> None:
    """The gateway is gone, and the stranger has the pins and one file, signed or bare; a changed one fails."""
    desk = tmp_path / "desk"
    desk.mkdir()
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        gateway.join(tmp_path / "home")
        async with Agent.open(tmp_path / "home") as agent:
            fifth = (await agent.batch(COMMANDS))[4].receipt
            bare = (await agent.batch([acquiring("repo:bare")], bare=True))[0].receipt
        for name in ("root.vkey", "keys.note"):
            shutil.copyfile(gateway.data / "public" / name, desk / name)
        gateway.verify_ledger(tmp_path / "ledger.export")
    for receipt, signature in ((fifth, "valid"), (bare, "left_out")):
        (desk / "receipt.json").write_bytes(receipt.data)
        report = verified(desk, 0)
        assert (report["directSignature"], report["level"]) == (signature, "included")
    (desk / "receipt.json").write_bytes(with_another_header(fifth.data))
    assert verified(desk, 1)["verdict"] == "invalid"


def with_another_header(receipt: bytes) -> bytes:
    """Return a receipt with one bit changed in the entry that has the signed request."""
    leaf = str(json.loads(receipt)["batch"]["leaf"])
    content = bytearray(decode_base64(leaf))
    content[len(content) // 2] ^= 1
    return receipt.replace(leaf.encode(), encode_base64(bytes(content)).encode())


def verified(desk: Path, exit_code: int) -> dict[str, Any]:
    """Run the verifier on the one file in a folder; nothing of ours is asked."""
    arguments = ("--root", f"@{desk / 'root.vkey'}", "--keys", str(desk / "keys.note"), "--json")
    done = run_module("verifier", "receipt", str(desk / "receipt.json"), *arguments)
    assert done.returncode == exit_code, (done.stdout, done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report
