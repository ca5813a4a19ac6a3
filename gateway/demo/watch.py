"""Who watches the demo's ledger: a witness that remembers, an auditor who comes back. And a thief, whom they find out.

In the middle of the work the log key has to go: the next one is announced, the witness is told, the old one is retired.
The work goes on and nobody is told anything: who meets a key that it does not know looks up the key document. When the
work is done somebody who stole the new key signs another history with it, of as many entries.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gateway.demo.admissions import HAS_RULES
from gateway.demo.server import ORIGIN, run
from gateway.ledger.cosigned import WITNESSES_FILE, add_checkpoint_body, open_witnesses, served_policy
from gateway.witness.books import add_line
from gateway.witness.commands import make_witness
from gateway.witness.mirror import Edge
from keys.files import load_key
from verifier.checkpoint import checkpoint_text, parse_checkpoint
from verifier.merkle import leaf_hash
from verifier.note import Note, encode_note, make_vkey, signature_line

ANSWER_SECONDS_MAX = 30


@dataclass(frozen=True, slots=True)
class Audit:
    """What an auditor said: its exit code, where it began, how far it came.

    `rulings` is how often rules spoke since the ledger began, `derived` how often they were asked again.
    """

    exit_code: int
    start: int
    size: int
    rulings: int = 0
    derived: int = 0


@dataclass(frozen=True, slots=True)
class Theft:
    """Two checkpoints of as many entries under one key: the one that the witness signed, and the thief's.

    `status` is what the witness answered when it was asked to sign the thief's.
    """

    size: int
    witnessed: bytes
    forged: bytes
    status: int


@dataclass(frozen=True, slots=True)
class Watch:
    """The folders of the ledger, its witness, its copy for auditors and what one of them remembers."""

    data: Path
    witness: Path
    witness_url: str
    tiles: Path
    audit_folder: Path

    def set_up(self) -> None:
        """Make the witness and let ledger and witness know each other."""
        key = make_witness(self.witness, "witness.demo/own")
        self._witness_log(self.log_vkeys()[-1])
        text = f"witness own {key.vkey} {self.witness_url}\nquorum own\n"
        (self.data / WITNESSES_FILE).write_text(text, "ascii")

    def log_vkeys(self) -> list[str]:
        """Return the log keys that the gateway publishes."""
        rows = (self.data / "public" / "policy.txt").read_text("utf-8").splitlines()
        return [row.split()[1] for row in rows if row.startswith("log ")]

    def policy(self) -> bytes:
        """Return what a reader pins who trusts this witness."""
        published = (self.data / "public" / "policy.txt").read_bytes()
        return served_policy(published, open_witnesses((self.data / WITNESSES_FILE).read_bytes()))

    def change_log_key(self) -> None:
        """Announce the next log key, tell the witness, retire the one before, as an operator would."""
        before = self.log_vkeys()
        run("gateway", "keys", "rotate", "--data", str(self.data), "--purpose", "log", check=True)
        for vkey in set(self.log_vkeys()) - set(before):
            self._witness_log(vkey)
        run("gateway", "keys", "retire", "--data", str(self.data), "--purpose", "log", check=True)

    def audit(self) -> Audit:
        """Bring the copy up to date, and audit what is new in it since the last time."""
        run("gateway", "ledger", "export", "--tiles", str(self.tiles), "--data", str(self.data), check=True)
        pins = ["--root", f"@{self.data}/public/root.vkey", "--keys", f"{self.data}/public/keys.note"]
        done = run(
            "verifier", "ledger", str(self.tiles), "--state", str(self.audit_folder), *rules_option(), *pins, "--json"
        )
        facts = json.loads(done.stdout)["facts"]
        rulings = facts.get("rulings", {"count": 0, "derivedAgain": 0})
        size = facts.get("size", 0)
        return Audit(done.returncode, facts.get("start", 0), size, rulings["count"], rulings["derivedAgain"])

    def steal(self, leaves: Iterable[bytes]) -> Theft:
        """Sign another history with the log key in force, and ask the witness to sign it too."""
        witnessed = self._asked(f"{self.witness_url}/{sha256(ORIGIN.encode()).hexdigest()}/checkpoint")[1]
        size, edge = parse_checkpoint(witnessed).size, Edge()
        for number, leaf in zip(range(size), leaves, strict=False):
            edge.append(leaf_hash(leaf if number < size - 1 else b"whatever suits the thief"))
        forged = self._signed(checkpoint_text(ORIGIN, size, edge.root))
        status, _ = self._asked(f"{self.witness_url}/add-checkpoint", add_checkpoint_body(size, (), forged))
        return Theft(size, witnessed, forged, status)

    def _signed(self, text: str) -> bytes:
        key = load_key(max((self.data / "keys").glob("log.*.key")), purpose="log")
        return encode_note(Note(text, (signature_line(make_vkey(ORIGIN, key.public_key), key.sign(text.encode())),)))

    def _witness_log(self, vkey: str) -> None:
        add_line(self.witness, f"log {vkey}")

    def _asked(self, url: str, body: bytes | None = None) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(url, body, ANSWER_SECONDS_MAX) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


def rules_option() -> tuple[str, ...]:
    """Return what an auditor says who has the engine of the rules."""
    return ("--rules",) if HAS_RULES else ()


async def upgrade(receipt: Path, policy: Path, home: Path) -> None:
    """Have a kept receipt proven by the witness; whether it is, the verifier will say."""
    words = ["receipt", "upgrade", str(receipt), "--policy", str(policy), "--home", str(home), "--wait"]
    await asyncio.to_thread(run, "gateway", *words)
