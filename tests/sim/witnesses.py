"""Witnesses with clocks of their own, and the way to them: they are dead, slow, or lie; none of it may count.

An honest one does what C2SP tlog-witness says and never forgets. A liar has a valid key too, and uses it for something
else: another text, another key's line, a time of another year, a checkpoint of a history that never was.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import TYPE_CHECKING

from gateway.ledger.cosigned import Witnesses, open_witnesses, origin_path
from gateway.ledger.tree import prove_consistency
from gateway.ledger.witness_ask import Tree
from gateway.ledger.witness_http import Answer, Unanswered
from gateway.web.reads import root_at
from tests.core.requests import ORIGIN
from tests.sim.cheap import CheapKey
from verifier.checkpoint import checkpoint_text, parse_checkpoint
from verifier.merkle import EMPTY_ROOT, is_consistent
from verifier.note import KIND_COSIGNATURE, Note, cosignature_message, encode_note, make_vkey, signature_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sim.engine import Connection
    from tests.sim.simulation import Simulation

LIES = ("text", "key", "year", "nothing", "twice", "conflict")


class Witness:
    """One witness, honest by the book unless it `lies`. `clock_offset_ms` is how far it is ahead of true time."""

    def __init__(self, simulation: Simulation, name: str, clock_offset_ms: int, *, lies: bool) -> None:
        self.name = name
        self.lies = lies
        self.url = f"http://{name}.example"
        self.key: CheapKey = simulation.key(f"witness {name}")
        self.vkey = make_vkey(f"witness.example/{name}", self.key.public_key, KIND_COSIGNATURE)
        self.size, self.root = 0, EMPTY_ROOT
        self.note: bytes | None = None
        self.down_until_ms = 0
        self._clock_offset_ms = clock_offset_ms
        self._simulation = simulation

    @property
    def line(self) -> str:
        """Its line in a policy."""
        return f"witness {self.name} {self.vkey.vkey} {self.url}"

    def submit(self, body: bytes) -> Answer:
        """Answer add-checkpoint."""
        head, _, note = body.partition(b"\n\n")
        old, *path = head.decode().split("\n")
        old_size, checkpoint = int(old.removeprefix("old ")), parse_checkpoint(note)
        if self.lies:
            return self._lie(checkpoint.note.text)
        if old_size > checkpoint.size:
            return Answer(400, b"old is larger\n")
        if old_size != self.size:
            return Answer(409, b"%d\n" % self.size)
        if not is_consistent(self.size, self.root, checkpoint.size, checkpoint.root, list(map(b64decode, path))):
            self._simulation.fail("witness", f"{self.name} is shown a second history at {checkpoint.size}")
            return Answer(422, b"no proof\n")
        self.size, self.root = checkpoint.size, checkpoint.root
        line = self._signed(checkpoint.note.text)
        self.note = note + line
        return Answer(200, line)

    def _signed(self, text: str, key: CheapKey | None = None, later_s: int = 0) -> bytes:
        simulation = self._simulation
        time_s = (simulation.start_ms + simulation.loop.now_ms + self._clock_offset_ms) // 1_000 + later_s
        signature = time_s.to_bytes(8, "big") + (key or self.key).sign(cosignature_message(time_s, text))
        return encode_note(Note("", (signature_line(self.vkey, signature),)))[1:]

    def _lie(self, text: str) -> Answer:
        rng = self._simulation.rng
        match rng.choice(LIES):
            case "text":
                return Answer(200, self._signed(checkpoint_text(ORIGIN, 1, b"\x05" * 32)))
            case "key":
                return Answer(200, self._signed(text, self._simulation.key("nobody")))
            case "year":
                return Answer(200, self._signed(text, later_s=rng.choice([-30_000_000, 30_000_000])))
            case "twice":
                return Answer(200, self._signed(text) + self._signed(text, later_s=1))
            case "conflict":
                return Answer(409, b"%d\n" % rng.choice([0, 1, 1 << 40]))
            case _:
                return Answer(200, b"")

    def show(self) -> Answer:
        """Answer the monitoring path; a liar shows what a key signed that is not the log's, or not any more."""
        if self.lies:
            key, size = self._simulation.stolen() or (self._simulation.key("nobody"), 1 << 30)
            text = checkpoint_text(ORIGIN, size, b"\x09" * 32)
            line = signature_line(make_vkey(ORIGIN, key.public_key), key.sign(text.encode()))
            return Answer(200, encode_note(Note(text, (line,))) + self._signed(text))
        return Answer(404, b"") if self.note is None else Answer(200, self.note)


class Wire:
    """The way to the witnesses in virtual time: as unreliable as any other."""

    def __init__(self, simulation: Simulation, witnesses: Sequence[Witness]) -> None:
        self._simulation = simulation
        self._witnesses = {one.url: one for one in witnesses}

    async def ask(self, method: str, url: str, body: bytes | None, timeout_ms: int) -> Answer:
        simulation, rng = self._simulation, self._simulation.rng
        base, _, path = url.removeprefix("http://").partition("/")
        witness = self._witnesses[f"http://{base}"]
        await asyncio.sleep(rng.uniform(0.001, 0.05))
        if witness.down_until_ms > simulation.loop.now_ms or simulation.chance("witness_drop"):
            await asyncio.sleep(timeout_ms / 1_000)
            raise Unanswered("nobody answers")
        if simulation.chance("witness_slow"):
            await asyncio.sleep(rng.uniform(0, timeout_ms / 500))
        answer = witness.submit(body) if method == "POST" and body is not None else witness.show()
        assert method == "POST" or path == origin_path(ORIGIN), "there are two paths"
        if simulation.chance("witness_drop"):  # it has seen it, and nobody hears of that
            raise Unanswered("the answer is lost")
        return answer


def policy_of(witnesses: Sequence[Witness], enough: int) -> Witnesses:
    """Return the file `witnesses.txt`, opened."""
    rows = [one.line for one in witnesses]
    group = f"group enough {enough} {' '.join(one.name for one in witnesses)}"
    return open_witnesses("\n".join([*rows, group, "quorum enough", ""]).encode())


def tree_of(store: Connection) -> Tree:
    """Return the tree of a process's store, as its read thread sees it."""

    async def prove(old: int, size: int) -> Sequence[bytes]:
        await asyncio.sleep(0.001)
        return prove_consistency(store, old, size)

    async def root(size: int) -> bytes:
        await asyncio.sleep(0.001)
        return root_at(store, size)

    return Tree(prove, root)
