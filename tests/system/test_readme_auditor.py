"""The commands of docs/auditor.md are run as they stand, in order, by somebody who has only what the page names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.demo.watch import Watch
from tests.system.process import ROOT, Gateway, until
from tests.witness.process import Server
from verifier.checkpoint import parse_checkpoint
from verifier.replay.source import open_source

pytestmark = pytest.mark.system
PATH = "dev"  # of the ledger that a throw-away gateway serves
MANY = 130  # pairs of lease and release: more entries than one bundle has


def blocks() -> list[str]:
    return re.findall(r"```bash\n(.*?)```", (ROOT / "docs/auditor.md").read_text("utf-8"), re.S)


class Hour:
    """A gateway with a witness that others use, and the folder of an auditor."""

    def __init__(self, folder: Path, gateway: Gateway, server: Server) -> None:
        self.folder, self.gateway, self.server = folder / "auditor", gateway, server
        self.home = folder / "agent"
        self.watch = Watch(gateway.data, server.folder, server.url, folder / "tiles", folder / "own-audit")
        self.folder.mkdir()

    def work(self, pairs: int) -> None:
        """Let an agent take and give back, many at once."""
        line = '{{"action": "lease.{}", "resource": "lock:{}"}}'
        lines = [line.format(verb, number) for number in range(pairs) for verb in ("acquire", "release")]
        for start in range(0, len(lines), 100):
            batch = self.home / "batch.jsonl"
            batch.write_text("\n".join(lines[start : start + 100]), "utf-8")
            self.gateway.cli(self.home, "lease", "batch", str(batch))
        size = self.size_at(f"{self.gateway.url}/{PATH}/checkpoint")
        until(
            lambda: self.size_at(f"{self.gateway.url}/{PATH}/witnessed") >= size,
            self.gateway.process,
            self.gateway.log,
        )

    def size_at(self, url: str) -> int:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return parse_checkpoint(answer.read()).size
        except OSError:
            return 0

    def run(self, block: str) -> str:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOST": self.gateway.url,
            "URL": f"{self.gateway.url}/{PATH}",
            "WITNESS": self.server.url,
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=self.folder, env=environment, text=True, capture_output=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        return done.stdout

    def rotate(self) -> None:
        self.watch.change_log_key()
        self.work(1)

    def steal(self) -> None:
        """Somebody with the log key makes another history, as long as what the witness has just signed."""
        self.watch.audit()
        with open_source(self.watch.tiles) as source:
            theft = self.watch.steal(source.leaves)
        (self.folder / "witness.checkpoint").write_bytes(theft.witnessed)
        (self.folder / "theirs.checkpoint").write_bytes(theft.forged)


def test_the_hour_of_an_auditor_goes_as_the_page_says(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "data", "--metrics-port", "0")
    with gateway:
        gateway.join(tmp_path / "agent")
    server = Server(tmp_path / "witness", "--rate", "0")
    hour = Hour(tmp_path, gateway, server)
    hour.watch.set_up()
    with server, gateway:
        (hour.folder / "root.vkey").write_text(gateway.root_vkey(), "utf-8")
        (hour.folder / "policy.txt").write_bytes(hour.watch.policy())
        hour.work(MANY)
        before: dict[str, Callable[[], None]] = {
            "--checkpoint seen.checkpoint": lambda: hour.work(3),
            'keys.note "$HOST/.well-known/tallystick-keys"\nsh fetch.sh': hour.rotate,
            "theirs.checkpoint": hour.steal,
        }
        told = []
        for block in blocks():
            for words, happens in before.items():
                if words in block:
                    happens()
            told.append(hour.run(block))
    first, again, after, comparison, split = (told[index] for index in (1, 3, 4, 6, 7))
    assert first.startswith("VALID")
    assert "entries before" not in first
    for report in (again, after):
        assert report.startswith("VALID") and re.search(r"entries before \d+ were audited earlier", report), report
    assert "A and B are of one history" in comparison, comparison
    assert split.count("exit 4: split view proven") == 2, split
    assert len((hour.folder / "evidence.json").read_bytes()) < 1_024
    assert '"verdict":"valid"' in (hour.folder / "report.json").read_text("utf-8")
