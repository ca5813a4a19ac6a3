"""A receipt of a running gateway is verified by programs that share nothing with us.

`make outside` installs the tools and runs these; in `make test` a missing tool is a visible skip.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.outside.tools import HERE, build_go, need, peer, peers_python, run
from tests.system.process import Gateway


@dataclass(frozen=True, slots=True)
class Evidence:
    """One receipt, split into the files that the outside tools read."""

    folder: Path
    vkey: str
    origin: str
    receipt_key: str
    leaf: Path
    proof: Path
    wrong_leaf: Path


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    folder = tmp_path_factory.mktemp("outside")
    with Gateway(folder / "data") as gateway:
        gateway.join(folder / "agent")
        for name in ("a", "b", "c"):
            gateway.cli(folder / "agent", "lease", "acquire", f"lock:{name}", "--receipt", str(folder / "receipt.json"))
        vkeys = gateway.log_vkey(), gateway.receipt_vkey()
    yield split(folder, *vkeys)


def split(folder: Path, vkey: str, receipt_key: str) -> Evidence:
    receipt = json.loads((folder / "receipt.json").read_bytes())
    leaf = base64.b64decode(receipt["payload"])
    files = Evidence(
        folder=folder,
        vkey=vkey,
        origin=vkey.split("+")[0],
        receipt_key=receipt_key,
        leaf=folder / "leaf.json",
        proof=folder / "receipt.tlog-proof",
        wrong_leaf=folder / "wrong.json",
    )
    files.leaf.write_bytes(leaf)
    files.wrong_leaf.write_bytes(leaf.replace(b"lock:c", b"lock:d"))
    files.proof.write_text(receipt["proof"], encoding="utf-8")
    return files


def test_go_sumdb_verifies_checkpoint_and_inclusion(evidence: Evidence) -> None:
    program = build_go("verify.go", evidence.folder)
    good = run(program, evidence.vkey, str(evidence.leaf), str(evidence.proof))
    assert (good.returncode, good.stderr) == (0, "")
    assert "is in the tree of size" in good.stdout
    assert run(program, evidence.vkey, str(evidence.wrong_leaf), str(evidence.proof)).returncode == 1


def test_proofbundle_verifies_the_tlog_proof(evidence: Evidence) -> None:
    tool = peer("proofbundle")

    def verdict(leaf: Path) -> subprocess.CompletedProcess[str]:
        return run(
            tool,
            "verify-proof",
            "--payload-file",
            str(leaf),
            "--log-vkey",
            evidence.vkey,
            "--expected-origin",
            evidence.origin,
            str(evidence.proof),
        )

    assert verdict(evidence.leaf).returncode == 0, verdict(evidence.leaf).stdout
    assert verdict(evidence.wrong_leaf).returncode != 0


def test_securesystemslib_verifies_the_direct_signature_as_dsse(evidence: Evidence) -> None:
    receipt = json.loads((evidence.folder / "receipt.json").read_bytes())
    key = base64.b64decode(evidence.receipt_key.split("+", 2)[2])[1:].hex()
    keyid = receipt["signatures"][0]["keyid"]

    def verdict(content: dict[str, object], name: str) -> subprocess.CompletedProcess[str]:
        (evidence.folder / name).write_text(json.dumps(content), "utf-8")
        return run(peers_python(), str(HERE / "dsse.py"), str(evidence.folder / name), key, keyid)

    good = verdict(receipt, "dsse.json")
    assert good.returncode == 0, good.stderr
    wrong = base64.b64encode(evidence.wrong_leaf.read_bytes()).decode()
    assert verdict({**receipt, "payload": wrong}, "dsse-wrong.json").returncode != 0


def test_openssl_verifies_the_checkpoint_signature(evidence: Evidence) -> None:
    openssl = need(shutil.which("openssl"), "openssl")
    text, _, line = evidence.proof.read_text("utf-8").split("\n\n", 1)[1].partition("\n\n")
    signature = base64.b64decode(line.split()[2])[4:]
    key = base64.b64decode(evidence.vkey.split("+", 2)[2])[1:]
    files = {name: evidence.folder / name for name in ("log.der", "text", "sig", "other")}
    files["log.der"].write_bytes(bytes.fromhex("302a300506032b6570032100") + key)  # RFC 8410: SPKI header of Ed25519
    files["text"].write_text(text + "\n", "utf-8")
    files["other"].write_text(text + "\nmore\n", "utf-8")
    files["sig"].write_bytes(signature)

    def verdict(message: str) -> subprocess.CompletedProcess[str]:
        return run(
            openssl,
            "pkeyutl",
            "-verify",
            "-pubin",
            "-inkey",
            str(files["log.der"]),
            "-keyform",
            "DER",
            "-rawin",
            "-in",
            str(files[message]),
            "-sigfile",
            str(files["sig"]),
        )

    assert verdict("text").returncode == 0, verdict("text").stderr
    assert verdict("other").returncode != 0
