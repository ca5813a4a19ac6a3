"""`tallystick serve` as an operator runs it: signals, ports, files that are in use."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.process import ROOT, Gateway, free_port

pytestmark = pytest.mark.system


def serve(data: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `serve` where it must end by itself."""
    command = [sys.executable, "-m", "gateway", "serve", "--data", str(data), *options]
    environ = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)


def log_lines(gateway: Gateway) -> list[dict[str, object]]:
    text = gateway.log.read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_0(tmp_path: Path, number: signal.Signals) -> None:
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        gateway.process.send_signal(number)
        assert gateway.process.wait(30) == 0
        said = [(line["logger"], str(line["event"])) for line in log_lines(gateway)]
        assert [event for logger, event in said if logger == "tallystick.app"] == ["serving", "draining", "stopped"]
        (without_witness,) = (event for logger, event in said if logger == "tallystick.witness")
        assert without_witness.startswith("without a witness only clients can notice")


def test_dev_prints_how_to_join_and_starts_again_on_its_own_ledger(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "data", "--metrics-port", "0")
    with gateway:
        assert f"tallystick join {gateway.url} --root @{tmp_path}/data/public/root.vkey" in gateway.log.read_text()
        root = gateway.root_vkey()
    with gateway:
        assert gateway.root_vkey() == root
        assert gateway.log.read_text().count("tallystick join") == 1, "the ledger was made once"
    assert "Traceback" not in gateway.log.read_text()


def test_a_second_gateway_on_the_same_ledger_names_the_first_and_leaves_it_alone(tmp_path: Path) -> None:
    """Scenario 17."""
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        second = serve(gateway.data, "--listen", f"127.0.0.1:{free_port()}", "--metrics-port", "0")
        assert second.returncode == 1
        assert f"process {gateway.process.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        assert gateway.is_ready()


def test_a_port_that_is_taken_is_named_and_the_ledger_stays_clean(tmp_path: Path) -> None:
    with Gateway(tmp_path / "one", "--metrics-port", "0") as gateway:
        second = serve(tmp_path / "two", "--dev", "--listen", f"127.0.0.1:{gateway.port}", "--metrics-port", "0")
        assert second.returncode == 1
        assert str(gateway.port) in second.stderr.splitlines()[-1]
        assert "Traceback" not in second.stderr
    with Gateway(tmp_path / "two", "--metrics-port", "0") as gateway:
        assert gateway.is_ready()


def test_without_the_c_parser_it_says_what_to_do(tmp_path: Path) -> None:
    port = free_port()
    done = serve(tmp_path / "data", "--dev", "--listen", f"127.0.0.1:{port}", AIOHTTP_NO_EXTENSIONS="1")
    assert done.returncode == 1
    assert "C parser" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_setting_is_named_at_start(tmp_path: Path) -> None:
    with Gateway(tmp_path / "data", "--metrics-port", "0"):
        pass
    path = tmp_path / "data" / "tallystick.json"
    path.write_text(path.read_text().replace('"bodySeconds": 5', '"bodySeconds": 500'))
    done = serve(tmp_path / "data")
    assert done.returncode == 1
    assert f"{path}: setting bodySeconds must be 1 to 60 (s), found 500" in done.stderr
