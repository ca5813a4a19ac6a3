"""Receipts for other tools, read back by readers written anew here: DSSE by its specification, COSE by RFC 9942."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import cbor2
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway.client.commands import main
from keys.files import load_key, new_key
from tests.system.process import Gateway

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway") / "ledger") as running:
        yield running


@pytest.fixture(scope="module")
def home(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homes") / "alice"
    gateway.join(folder)
    return folder


@pytest.fixture(scope="module")
def receipt(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("receipts") / "r.json"
    for number in range(5):
        assert main(["lease", "acquire", f"lock:{number}", "--receipt", str(path), "--home", str(home)]) == 0
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "export.key"
    new_key(path, purpose="export")
    return path


def export(receipt: Path, home: Path, key: Path, out: Path, style: str) -> int:
    options = ["--format", style, "--key", str(key), "--out", str(out), "--home", str(home)]
    return main(["receipt", "export", str(receipt), *options])


def leaf_of(receipt: Path) -> bytes:
    return base64.b64decode(json.loads(receipt.read_bytes())["payload"])


def is_signed(key: Path, signature: bytes, message: bytes) -> bool:
    public = Ed25519PublicKey.from_public_bytes(load_key(key, purpose="export").public_key)
    try:
        public.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def test_an_in_toto_statement_in_a_dsse_envelope(
    receipt: Path, home: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "statement.json"
    assert export(receipt, home, key, out, "in-toto") == 0
    assert "This is your word, not the ledger's" in capsys.readouterr().out
    envelope = json.loads(out.read_bytes())
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"]
    assert kind == "application/vnd.in-toto+json"
    (signature,) = envelope["signatures"]
    pae = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    assert is_signed(key, base64.b64decode(signature["sig"]), pae)
    assert not is_signed(key, base64.b64decode(signature["sig"]), pae + b" ")
    statement, leaf = json.loads(payload), json.loads(leaf_of(receipt))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:tallystick:receipt:v1"
    assert statement["subject"] == [
        {"name": f"{leaf['origin']}#{leaf['seq']}", "digest": {"sha256": sha256(leaf_of(receipt)).hexdigest()}}
    ]
    predicate = statement["predicate"]
    assert (predicate["seq"], predicate["type"], predicate["level"]) == (leaf["seq"], leaf["type"], "included")
    assert predicate["exporter"] == load_key(key, purpose="export").did
    assert base64.b64decode(predicate["receipt"]) == receipt.read_bytes(), "the stronger thing comes along"


def climb(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The root of RFC 9162, 2.1.3.2, written from there."""
    node, fn, sn = sha256(b"\0" + leaf).digest(), index, size - 1
    for part in path:
        assert sn != 0
        if fn & 1 or fn == sn:
            node = sha256(b"\1" + part + node).digest()
            while not fn & 1 and fn != 0:
                fn, sn = fn >> 1, sn >> 1
        else:
            node = sha256(b"\1" + node + part).digest()
        fn, sn = fn >> 1, sn >> 1
    assert sn == 0
    return node


def opened(out: Path) -> tuple[bytes, dict[int, Any], dict[int, Any], bytes]:
    message = cbor2.loads(out.read_bytes())
    assert isinstance(message, cbor2.CBORTag) and message.tag == 18
    protected, unprotected, payload, signature = message.value
    assert payload is None, "the root is not in it: a reader has to find it"
    return protected, cbor2.loads(protected), unprotected, signature


def test_a_cose_receipt_of_inclusion(
    receipt: Path, home: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "receipt.cose"
    assert export(receipt, home, key, out, "cose") == 0
    assert "This is your word, not the ledger's" in capsys.readouterr().out
    leaf = (tmp_path / "receipt.cose.leaf").read_bytes()
    assert leaf == leaf_of(receipt)
    raw, protected, unprotected, signature = opened(out)
    origin = json.loads(leaf)["origin"]
    assert protected[1] == -8 and protected[395] == 1
    assert protected[15] == {1: load_key(key, purpose="export").did, 2: origin}
    ((proof,),) = unprotected[396].values()
    assert list(unprotected[396]) == [-1]
    size, index, path = cbor2.loads(proof)
    assert index == json.loads(leaf)["seq"] and size > index
    root = climb(leaf, index, size, path)
    assert is_signed(key, signature, cbor2.dumps(["Signature1", raw, b"", root]))
    for other in (climb(leaf + b" ", index, size, path), climb(leaf, index, size, [bytes(32), *path[1:]])):
        assert not is_signed(key, signature, cbor2.dumps(["Signature1", raw, b"", other]))


def test_a_receipt_that_does_not_verify_is_not_exported(
    receipt: Path, home: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    envelope = json.loads(receipt.read_bytes())
    changed = leaf_of(receipt).replace(b"lock:4", b"lock:9")
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps({**envelope, "payload": base64.b64encode(changed).decode()}))
    for style in ("in-toto", "cose"):
        out = tmp_path / f"{style}.out"
        assert export(forged, home, key, out, style) != 0
        assert "nothing was exported" in capsys.readouterr().err
        assert not list(tmp_path.glob(f"{style}.out*"))


def test_only_a_key_made_for_it_signs_and_nothing_is_overwritten(
    receipt: Path, home: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert export(receipt, home, home / "agent.key", out, "in-toto") == 2
    assert not out.exists() and "--key" in capsys.readouterr().err
    out.write_text("mine")
    assert export(receipt, home, key, out, "in-toto") == 2
    assert out.read_text() == "mine" and "exists" in capsys.readouterr().err


def test_without_its_package_it_says_what_to_install(
    receipt: Path, home: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "cbor2", None)
    monkeypatch.delitem(sys.modules, "gateway.adapters.cose", raising=False)
    monkeypatch.delattr("gateway.adapters.cose", raising=False)
    assert export(receipt, home, key, tmp_path / "out", "cose") == 2
    assert "pip install 'tallystick[export]'" in capsys.readouterr().err
    assert export(receipt, home, key, tmp_path / "out", "in-toto") == 0, "this one needs nothing more"
