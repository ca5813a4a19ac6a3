"""One ledger in a database, and real gateways on it: each a folder, a port, and a process that can be harmed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.__main__ import main as tallystick
from gateway.client.profile import Address, Profile
from keys.signing import SigningKey
from tests.pg.server import free_port
from verifier.__main__ import main as tallystick_verify
from verifier.keyring import open_keyring

ROOT = Path(__file__).resolve().parents[2]
AUTHORITY = "ledger.example"  # what clients sign for; which node answers is nobody's business
ORIGIN = "ledger.example/main"
READY_SECONDS_MAX = 60.0
# A scene hammers: what protects a gateway from that is tested elsewhere.
PARAMETERS = {"ratePerSecond": 10_000, "rateBurst": 10_000, "stampedeBaseMs": 10}
# What a node does not need. (It would not need the operator's key either, but that is what enrols in a --dev ledger.)
FOUNDERS = ("root",)


class Node:
    """A gateway in a process of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        """`url` is that of the ledger's database as this node sees it."""
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder.with_suffix(".log")
        self._skew = folder.with_suffix(".skew")
        self.skew(0)
        self._process: subprocess.Popen[bytes] | None = None
        self.set(store=url, listenPort=self.port, metricsPort=0, selfAudit=False)  # a scene's end audits more

    def set(self, **settings: object) -> None:
        """Change settings in the node's file; in force from its next start."""
        path = self.folder / "tallystick.json"
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **settings}), "utf-8")

    def skew(self, ms: int) -> None:
        """Set its machine's wall clock that much ahead of the true time, at once."""
        new = self._skew.with_suffix(".new")
        new.write_text(str(ms), "ascii")
        os.replace(new, self._skew)

    def start(self) -> None:
        """Start it and return when it is ready to decide; one that can't be started raises with its log."""
        self.launch()
        self.until(lambda: self.ready_status() == 200)

    def launch(self) -> None:
        """Start it and return at once."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pg.skewed", str(self._skew), "serve", "--data", str(self.folder)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

    def until(self, is_reached: Callable[[], bool], seconds: float = READY_SECONDS_MAX) -> None:
        deadline_s = time.monotonic() + seconds
        while not is_reached():
            if not self.is_alive or time.monotonic() > deadline_s:
                raise RuntimeError(f"the node ended or did not get there in {seconds:.0f} s:\n{self.tail()}")
            time.sleep(0.02)  # polling a foreign process; nothing asserts on this clock

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start() first"
        return self._process

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ready_status(self) -> int:
        """Return the status of /readyz, or 0 when nothing answers."""
        return self.get("/readyz")[0]

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of an unsigned read, or (0, b"") when nothing answers."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=2) as answer:
                return int(answer.status), answer.read()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read()
        except OSError:
            return 0, b""

    def checkpoint_size(self) -> int:
        """Return how many entries its published checkpoint has."""
        status, note = self.get("/main/checkpoint")
        assert status == 200, status
        return int(note.splitlines()[1])

    def kill(self) -> None:
        """kill −9."""
        self.process.kill()
        self.process.wait(20)

    def pause(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM and wait; the exit status. A node that was paused is woken first."""
        if self._process is None:
            return 0
        if self.process.poll() is None:
            self.resume()
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def tail(self, lines: int = 60) -> str:
        """Return the end of its log, without what it says of each request."""
        log = self.log.read_text("utf-8", errors="replace").splitlines()
        return "\n".join([line for line in log if '"event":"request"' not in line][-lines:])


class Ledger:
    """A ledger and its nodes. The first node is its founder; `add_node` copies what a node needs from it."""

    def __init__(self, folder: Path, *, durability: str) -> None:
        self._folder = folder
        self.durability = durability
        self.nodes: list[Node] = []

    @property
    def founder(self) -> Path:
        return self._folder / "founder"

    def found(self, url: str, **parameters: int) -> None:
        """`tallystick init` in an empty database."""
        chosen = [part for name, n in (PARAMETERS | parameters).items() for part in ("--parameter", f"{name}={n}")]
        _run(
            tallystick, "init", "--data", str(self.founder), "--origin", ORIGIN, "--dev", "--authority", AUTHORITY,
            "--metrics-port", "0", "--store", url, "--durability", self.durability, *chosen,
        )  # fmt: skip

    def add_node(self, url: str) -> Node:
        """Return one more node, not yet started; `url` is the database as it sees it."""
        folder = self._folder / f"node{len(self.nodes) + 1}"
        shutil.copytree(self.founder, folder, ignore=shutil.ignore_patterns(*FOUNDERS))
        node = Node(folder, url)
        self.nodes.append(node)
        return node

    def root_vkey(self) -> str:
        return (self.founder / "public" / "root.vkey").read_text("utf-8").strip()

    def profile(self, number: int) -> Profile:
        """Return an agent's profile in memory, with a key of its own."""
        document = (self.founder / "public" / "keys.note").read_bytes()
        keyring = open_keyring(root=self.root_vkey(), document=document)
        address = Address(f"http://{AUTHORITY}", ORIGIN, AUTHORITY)
        return Profile(address, SigningKey(number.to_bytes(32)), keyring)

    def export(self, out: Path) -> Path:
        """Export the ledger through the founder's folder, no gateway needed."""
        _run(tallystick, "ledger", "export", "--data", str(self.founder), "--out", str(out))
        return out

    def verify(self, export: Path, checkpoint: Path) -> dict[str, object]:
        """Let the real verifier judge an export, which must reach a checkpoint; its report."""
        public = self.founder / "public"
        said = _run(
            tallystick_verify, "ledger", str(export), "--root", self.root_vkey(), "--keys", str(public / "keys.note"),
            "--policy", str(public / "policy.txt"), "--checkpoint", str(checkpoint), "--jobs", "1", "--rules", "--json",
        )  # fmt: skip
        report: dict[str, object] = json.loads(said)
        return report

    def close(self) -> None:
        """Stop every node; one that does not stop by itself is killed."""
        for node in self.nodes:
            try:
                node.stop()
            except subprocess.TimeoutExpired:
                node.kill()


def _run(program: Callable[[Sequence[str]], int], *arguments: str) -> str:
    """Run a program of ours to its end, without a process of its own; what it said. It must end with 0."""
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        status = program(arguments)
    assert status == 0, f"{arguments}\n{said.getvalue()}\n{complained.getvalue()}"
    return said.getvalue()
