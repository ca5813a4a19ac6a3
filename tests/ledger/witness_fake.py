"""A witness that does as it is told: honest by C2SP tlog-witness, until a test says what it answers instead.

`FakeWitness` is the witness alone. `FakeWeb` lets a client reach some of them without a network; `serving` puts one
behind a real socket, where it can also be slow, break off and go on for ever.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from aiohttp import web

from gateway.ledger.witness_http import Answer, Unanswered
from keys.signing import SigningKey
from tests.core.requests import key_of
from verifier.checkpoint import parse_checkpoint
from verifier.merkle import EMPTY_ROOT, is_consistent
from verifier.note import (
    KIND_COSIGNATURE,
    Note,
    cosignature_message,
    encode_note,
    make_vkey,
    signature_line,
)

Script = Answer | Exception | Callable[[str, bytes], Answer]


class FakeWitness:
    """One witness. `script` is used up first, one piece a submission; `shows` replaces what its monitoring path gives.

    `bodies` are the submissions that came. `time_ms` is its clock.
    """

    def __init__(self, name: str, time_ms: Callable[[], int]) -> None:
        self.name = name
        self.key: SigningKey = key_of(f"witness {name}")
        self.vkey = make_vkey(f"witness.example/{name}", self.key.public_key, KIND_COSIGNATURE)
        self.time_ms = time_ms
        self.url = f"http://{name}.example"
        self.size, self.root = 0, EMPTY_ROOT
        self.note: bytes | None = None
        self.script: deque[Script] = deque()
        self.shows: Answer | Exception | None = None
        self.bodies: list[bytes] = []
        self.looks = 0

    @property
    def line(self) -> str:
        """Its line in a policy."""
        return f"witness {self.name} {self.vkey.vkey} {self.url}"

    def submit(self, body: bytes) -> Answer:
        """Answer add-checkpoint."""
        self.bodies.append(body)
        if self.script:
            scripted = self.script.popleft()
            if isinstance(scripted, Exception):
                raise scripted
            return scripted if isinstance(scripted, Answer) else scripted("add-checkpoint", body)
        return self.honest(body)

    def honest(self, body: bytes) -> Answer:
        """What a witness by the book says."""
        head, _, note = body.partition(b"\n\n")
        rows = head.decode().split("\n")
        old, path = int(rows[0].removeprefix("old ")), [base64.b64decode(row) for row in rows[1:]]
        checkpoint = parse_checkpoint(note)
        if old > checkpoint.size:
            return Answer(400, b"old is larger\n")
        if old != self.size:
            return Answer(409, b"%d\n" % self.size)
        if not is_consistent(self.size, self.root, checkpoint.size, checkpoint.root, path):
            return Answer(422, b"no proof\n")
        self.size, self.root = checkpoint.size, checkpoint.root
        line = self.signed(checkpoint.note.text)
        self.note = note + line
        return Answer(200, line)

    def signed(self, text: str, key: SigningKey | None = None, time_ms: int | None = None) -> bytes:
        """Return its signature line over a checkpoint's text; by another key under its name, if one is given."""
        time_s = (self.time_ms() if time_ms is None else time_ms) // 1_000
        signature = time_s.to_bytes(8, "big") + (key or self.key).sign(cosignature_message(time_s, text))
        return encode_note(Note("", (signature_line(self.vkey, signature),)))[1:]

    def show(self) -> Answer:
        """Answer its monitoring path."""
        self.looks += 1
        if isinstance(self.shows, Exception):
            raise self.shows
        if self.shows is not None:
            return self.shows
        return Answer(404, b"") if self.note is None else Answer(200, self.note)


class FakeWeb:
    """Reaches witnesses by their URLs. A witness in `held` answers when its event is set, and not before."""

    def __init__(self, witnesses: Sequence[FakeWitness], origin: str) -> None:
        self.witnesses = {one.url: one for one in witnesses}
        self.held: dict[str, asyncio.Event] = {}
        self.path = f"{hashlib.sha256(origin.encode()).hexdigest()}/checkpoint"
        self.under_way = 0
        self.most_under_way = 0

    async def ask(self, method: str, url: str, body: bytes | None, timeout_ms: int) -> Answer:
        base = next(base for base in self.witnesses if url.startswith(base + "/"))
        witness, path = self.witnesses[base], url.removeprefix(base + "/")
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if witness.name in self.held:
                await self.held[witness.name].wait()
            if method == "POST" and path == "add-checkpoint" and body is not None:
                return witness.submit(body)
            if method == "GET" and path == self.path:
                return witness.show()
        finally:
            self.under_way -= 1
        raise Unanswered(f"no such path of a witness: {method} {path}")


@contextlib.asynccontextmanager
async def serving(handler: Callable[[web.BaseRequest], object]) -> AsyncIterator[str]:
    """Yield the URL at which a handler answers every request."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def handler_of(witness: FakeWitness) -> Callable[[web.BaseRequest], object]:
    """Return the HTTP face of a witness."""

    async def handle(request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            answer = witness.submit(await request.read())
        else:
            answer = witness.show()
        return web.Response(status=answer.status, body=answer.body)

    return handle


def policy_of(witnesses: Sequence[FakeWitness], threshold: int) -> bytes:
    """Return the file `witnesses.txt` that names these and says how many are enough."""
    rows = [one.line for one in witnesses]
    group = f"group enough {threshold} {' '.join(one.name for one in witnesses)}"
    return "\n".join([*rows, group, "quorum enough", ""]).encode()
