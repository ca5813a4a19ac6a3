"""A real gateway and real witnesses, each a process of its own, and a stranger who checks what came of it."""

import json
import urllib.request
from pathlib import Path

import pytest

from gateway.witness.books import add_line
from gateway.witness.commands import make_witness
from gateway.witness.shelf import origin_hash
from tests.system.process import Gateway, run_cli, run_module, until
from tests.witness.process import Server
from verifier.checkpoint import parse_checkpoint
from verifier.note import is_signed_once

pytestmark = pytest.mark.system


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read())


def witnessed_size(gateway: Gateway, name: str) -> int:
    """The size of the newest checkpoint that the quorum cosigned; 0 before there is one."""
    try:
        return parse_checkpoint(fetched(f"{gateway.url}/{name}/witnessed")).size
    except OSError:
        return 0


def test_a_gateways_receipts_become_witnessed_by_one_that_remembers_and_one_that_reads(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "data")
    gateway.start()
    origin, name = (parse := gateway.log_vkey().split("+")[0]), parse.rpartition("/")[2]
    plain = make_witness(tmp_path / "plain", "witness.example/plain")
    reads = make_witness(tmp_path / "reads", "witness.example/reads")
    add_line(tmp_path / "plain", f"log {gateway.log_vkey()}")
    add_line(tmp_path / "reads", f"replay {gateway.root_vkey()} {gateway.url}/{name}")
    try:
        with Server(tmp_path / "plain") as one, Server(tmp_path / "reads") as two:
            policy = (
                f"log {gateway.log_vkey()}\nwitness plain {plain.vkey} {one.url}\n"
                f"witness reads {reads.vkey} {two.url}\ngroup both all plain reads\nquorum both\n"
            )
            (tmp_path / "data" / "witnesses.txt").write_text(policy)
            gateway.stop()
            gateway.start()
            gateway.join(tmp_path / "agent")
            receipt = tmp_path / "receipt.json"
            for resource in ("lock:a", "lock:b"):
                gateway.cli(tmp_path / "agent", "lease", "acquire", resource, "--receipt", str(receipt))
            size = parse_checkpoint(fetched(f"{gateway.url}/{name}/checkpoint")).size
            until(lambda: witnessed_size(gateway, name) >= size, gateway.process, gateway.log)
            note = fetched(f"{gateway.url}/{name}/witnessed")
            checkpoint = parse_checkpoint(note)
            assert all(is_signed_once(checkpoint.note, key) for key in (plain, reads))
            for server in (one, two):
                assert parse_checkpoint(fetched(f"{server.url}/{origin_hash(origin)}/checkpoint")).size >= size
            (tmp_path / "policy").write_text(policy)
            pinned = ("--policy", str(tmp_path / "policy"))
            upgraded = run_cli("receipt", "upgrade", str(receipt), "--home", str(tmp_path / "agent"), *pinned, "--wait")
            assert upgraded.returncode == 0, upgraded.stderr
            told = run_module("verifier", "receipt", str(receipt), *pinned, "--level", "witnessed", "--json")
            assert json.loads(told.stdout)["level"] == "witnessed 2/2", told.stdout
    finally:
        gateway.stop()


def test_a_gateway_that_was_put_back_is_refused_by_what_a_witness_has_seen(tmp_path: Path) -> None:
    """The back-up of before would give numbers out twice; the witness remembers, and the start is refused."""
    gateway = Gateway(tmp_path / "data")
    gateway.start()
    vkey, name = gateway.log_vkey(), gateway.log_vkey().split("+")[0].rpartition("/")[2]
    made = make_witness(tmp_path / "w", "witness.example/w")
    add_line(tmp_path / "w", f"log {vkey}")
    with Server(tmp_path / "w") as server:
        (tmp_path / "data" / "witnesses.txt").write_text(f"witness w {made.vkey} {server.url}\nquorum w\n")
        gateway.join(tmp_path / "agent")
        gateway.stop()
        older = (tmp_path / "data" / "ledger.sqlite3").read_bytes()
        gateway.start()
        gateway.cli(tmp_path / "agent", "lease", "acquire", "lock:a")
        size = parse_checkpoint(fetched(f"{gateway.url}/{name}/checkpoint")).size
        until(lambda: witnessed_size(gateway, name) >= size, gateway.process, gateway.log)
        gateway.stop()
        for path in (tmp_path / "data").glob("ledger.sqlite3*"):
            path.unlink()
        (tmp_path / "data" / "ledger.sqlite3").write_bytes(older)
        with pytest.raises(RuntimeError, match="witness w holds a checkpoint of"):
            gateway.start()
