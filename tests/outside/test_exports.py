"""What `tallystick receipt export` writes is read by the libraries of the formats themselves."""

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from keys.files import load_key, new_key
from keys.signing import SigningKey
from tests.outside.tools import HERE, peers_python, run
from tests.system.process import Gateway
from verifier.did import thumbprint


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, SigningKey]]:
    """A folder with statement.json, receipt.cose and receipt.cose.leaf, and the key that signed both."""
    folder = tmp_path_factory.mktemp("exports")
    new_key(folder / "export.key", purpose="export")
    with Gateway(folder / "data") as gateway:
        home = folder / "agent"
        gateway.join(home)
        for name in ("a", "b", "c"):
            gateway.cli(home, "lease", "acquire", f"lock:{name}", "--receipt", str(folder / "receipt.json"))
        for style, out in (("in-toto", "statement.json"), ("cose", "receipt.cose")):
            gateway.cli(
                home, "receipt", "export", str(folder / "receipt.json"), "--format", style,
                "--key", str(folder / "export.key"), "--out", str(folder / out),
            )  # fmt: skip
    yield folder, load_key(folder / "export.key", purpose="export")


def test_securesystemslib_verifies_the_statement(exported: tuple[Path, SigningKey]) -> None:
    folder, key = exported
    reader = (peers_python(), str(HERE / "dsse.py"))

    def verdict(path: Path) -> CompletedProcess[str]:
        return run(*reader, str(path), key.public_key.hex(), thumbprint(key.public_key))

    good = verdict(folder / "statement.json")
    assert good.returncode == 0 and "application/vnd.in-toto+json" in good.stdout, good.stderr
    envelope = json.loads((folder / "statement.json").read_bytes())
    wrong = folder / "wrong.json"
    wrong.write_text(json.dumps({**envelope, "payload": envelope["payload"].replace("a", "b", 1)}))
    assert verdict(wrong).returncode != 0


def test_pycose_verifies_the_receipt_over_the_root_that_the_path_gives(exported: tuple[Path, SigningKey]) -> None:
    folder, key = exported
    reader = (peers_python(), str(HERE / "cose.py"), str(folder / "receipt.cose"))
    leaf = folder / "receipt.cose.leaf"
    good = run(*reader, str(leaf), key.public_key.hex())
    assert good.returncode == 0 and good.stdout.startswith("pycose: entry "), good.stderr
    wrong = folder / "wrong.leaf"
    wrong.write_bytes(leaf.read_bytes().replace(b"lock:c", b"lock:d"))
    assert run(*reader, str(wrong), key.public_key.hex()).returncode != 0
    assert run(*reader, str(leaf), SigningKey.generate().public_key.hex()).returncode != 0
