"""The README's commands are run as they stand, in order, in an empty folder."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.process import ROOT, free_port, until

README = (ROOT / "README.md").read_text("utf-8")
DEFAULT_PORT = "8420"


def blocks() -> list[str]:
    """Return the bash blocks, on a free port and without the line that activates the reader's environment."""
    return [re.sub(r"^\. \.venv/bin/activate\n", "", block) for block in re.findall(r"```bash\n(.*?)```", README, re.S)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, object]]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    yield {"cwd": tmp_path, "env": {**os.environ, "PATH": path, "TALLYSTICK_HOME": str(tmp_path / "home")}}


def test_the_commands_of_the_readme_do_what_they_say(shell: dict[str, object], tmp_path: Path) -> None:
    port = str(free_port())
    serve, *rest = [block.replace(DEFAULT_PORT, port) for block in blocks()]
    assert serve.startswith("tallystick serve --dev"), "the first block starts the gateway"
    command = f"exec {serve.strip()} --listen 127.0.0.1:{port} --metrics-port 0"
    with (tmp_path / "serve.log").open("wb") as log:
        gateway = subprocess.Popen(["bash", "-c", command], stdout=log, stderr=log, **shell)  # type: ignore[call-overload]  # cwd, env
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), gateway, tmp_path / "serve.log")
        outputs = [run(block, shell) for block in rest]
    finally:
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(30) == 0
    check_ledger(shell)
    assert any("VALID" in output and "held from" in output for output in outputs), outputs
    assert any(re.search(r"^token [0-9]{16}$", output, re.M) for output in outputs), outputs
    assert any("Given back: leases 1, places in line 0." in output for output in outputs), outputs
    assert any('"custody":"gateway"' in leaf for output in outputs for leaf in leaves_in(output)), outputs


def test_one_changed_byte_is_refused_with_exit_code_1(shell: dict[str, object], tmp_path: Path) -> None:
    """The README's sentence after the blocks, on a receipt made by its own commands."""
    out = tmp_path / "demo"
    demo = run(f"tallystick demo --out {out} --compression 4000", shell)
    assert "Everything held" in demo
    pins = f"--root @{out}/root.vkey --keys {out}/keys.note"
    run(f"tallystick-verify receipt {out}/receipt.json {pins}", shell)
    refused = subprocess.run(  # type: ignore[call-overload]  # cwd, env
        ["bash", "-c", f"tallystick-verify receipt {out}/flipped.json {pins}"], capture_output=True, text=True, **shell
    )
    assert refused.returncode == 1
    assert refused.stdout.startswith("INVALID at step ")


def check_ledger(shell: dict[str, object]) -> None:
    """Let the verifier judge all that the page has done."""
    pins = "--root @data/public/root.vkey --keys data/public/keys.note"
    run("tallystick ledger export all.export --data ./data", shell)
    assert "VALID" in run(f"tallystick-verify ledger all.export {pins}", shell)


def leaves_in(output: str) -> list[str]:
    """Return the entries of receipts that a command printed."""
    return [b64decode(found).decode() for found in re.findall(r'"payload": ?"([A-Za-z0-9+/=]+)"', output)]


def run(block: str, shell: dict[str, object]) -> str:
    result = subprocess.run(  # type: ignore[call-overload]  # cwd, env
        ["bash", "-euo", "pipefail", "-c", block], capture_output=True, text=True, timeout=120, **shell
    )
    assert result.returncode == 0, (block, result.stdout, result.stderr)
    return str(result.stdout)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False
