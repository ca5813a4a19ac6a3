"""The README's commands are run as they stand, in order, in an empty folder."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.process import ROOT, free_port, until

README = (ROOT / "README.md").read_text("utf-8")
DEFAULT_PORT, DEFAULT_WITNESS_PORT = "8420", "8430"


def blocks() -> list[str]:
    """Return the bash blocks, on a free port and without the line that activates the reader's environment."""
    return [re.sub(r"^\. \.venv/bin/activate\n", "", block) for block in re.findall(r"```bash\n(.*?)```", README, re.S)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, object]]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    yield {"cwd": tmp_path, "env": {**os.environ, "PATH": path, "TALLYSTICK_HOME": str(tmp_path / "home")}}


@pytest.mark.timeout(900)  # some seventy commands, each a process of its own
def test_the_commands_of_the_readme_do_what_they_say(shell: dict[str, object], tmp_path: Path) -> None:
    ports = {DEFAULT_PORT: str(free_port()), DEFAULT_WITNESS_PORT: str(free_port())}
    told = [re.sub("|".join(ports), lambda found: ports[found[0]], block) for block in blocks()]
    assert told[0].startswith("tallystick serve --dev"), "the first block starts the gateway"
    outputs = []
    with Servers(shell, tmp_path, ports) as servers:
        for block in told:
            *commands, last = block.strip().split("\n")
            if last.startswith(("tallystick serve", "tallystick witness serve")):  # in a terminal of its own
                servers.stop(last)
                outputs.append(run("\n".join(commands), shell))
                servers.start(last)
            else:
                outputs.append(run(block, shell))
    check_ledger(shell)
    assert any("VALID" in output and "held from" in output for output in outputs), outputs
    assert any(re.search(r"^token [0-9]{16}$", output, re.M) for output in outputs), outputs
    assert any("Given back: leases 1, places in line 0." in output for output in outputs), outputs
    assert any('"custody":"gateway"' in leaf for output in outputs for leaf in leaves_in(output)), outputs
    assert sum("level: witnessed 1/1" in output for output in outputs) == 2, "before and after the key was changed"
    assert any("A and B are of one history" in output for output in outputs), outputs
    assert any(re.search(r"the log key \S+ is retired$", output, re.M) for output in outputs), outputs


class Servers:
    """What the page starts in terminals of their own; each is stopped with SIGTERM, and must end well."""

    def __init__(self, shell: dict[str, object], folder: Path, ports: dict[str, str]) -> None:
        self._shell, self._folder = shell, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        gateway, witness = ports.values()
        self._options = {
            "tallystick serve": (
                f"--listen 127.0.0.1:{gateway} --metrics-port 0",
                f"http://127.0.0.1:{gateway}/readyz",
            ),
            "tallystick witness": (f"--listen 127.0.0.1:{witness}", f"http://127.0.0.1:{witness}/"),
        }

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        for command in (*self._running,):
            self.stop(command)

    def start(self, command: str) -> None:
        name = self._name(command)
        options, url = self._options[name]
        log = self._folder / f"{name.split()[1]}.log"
        with log.open("ab") as output:
            words = ["bash", "-c", f"exec {command} {options}"]
            process = subprocess.Popen(words, stdout=output, stderr=output, **self._shell)  # type: ignore[call-overload]  # cwd, env
        self._running[name] = process
        until(lambda: answers(url), process, log)

    def stop(self, command: str) -> None:
        process = self._running.pop(self._name(command), None)
        if process is not None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0

    def _name(self, command: str) -> str:
        return " ".join(command.split()[:2])


def test_one_changed_byte_is_refused_with_exit_code_1(shell: dict[str, object], tmp_path: Path) -> None:
    """The README's sentence after the blocks, on the demo's receipt; and what the demo tells its reader to do."""
    out = tmp_path / "demo"
    demo = run(f"tallystick demo --out {out} --compression 4000", shell)
    assert "Everything held" in demo
    receipt, ledger, evidence = re.findall(r"^  (tallystick-verify .*)$", demo, re.M)
    assert "witnessed 1/1" in run(receipt, shell)
    assert "VALID" in run(ledger, shell)
    assert "SPLIT" in run(f"{evidence} || test $? = 4", shell)
    assert "were audited earlier" in run(f"{ledger} --state {out}/audit", shell)
    assert len((out / "evidence.json").read_bytes()) < 1_024
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
    assert "VALID" in run(f"tallystick-verify ledger all.export --rules {pins}", shell)


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
    except urllib.error.HTTPError as error:
        return error.code == 404  # a witness has nothing at its root
    except OSError:
        return False
