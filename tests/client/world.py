"""A small world for the client: a clock moved by hand, a ledger that signs anything, a network that fails on demand.

The ledger (`Book`) makes real leaves, trees, notes and signatures, so the client's verifier is never replaced; what a
test forges, it forges with the real keys. `LocalGateway` is a transport with a few lines of lease logic at its end.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

from gateway.client.agent import Agent
from gateway.client.errors import Unreachable
from gateway.client.profile import Address, Profile
from gateway.client.transport import Reply
from keys.signing import SigningKey
from tests.client.desk import Decision, Desk, Live
from verifier.checkpoint import checkpoint_text
from verifier.did import thumbprint
from verifier.entries import ACTION_PATHS, PARAMETER_DEFAULTS, RULES_VERSION, ZERO_HASH, full_type, rows_of
from verifier.keyring import KeyDocument, KeyLine, Keyring, key_document_text, open_keyring
from verifier.merkle import leaf_hash
from verifier.note import Note, encode_note, make_vkey, signature_line
from verifier.proof import Proof, encode_proof
from verifier.receipt import PAYLOAD_TYPE, pre_authentication
from verifier.replay.tree import Tree
from verifier.wire import JsonObject, JsonValue, encode_base64, encode_canonical, parse_json

ORIGIN = "gateway.example/main"
AUTHORITY = "gateway.example"
NOW_MS = 1_796_000_000_000
ACQUIRE, RENEW, RELEASE = (ACTION_PATHS[f"lease.{verb}"] for verb in ("acquire", "renew", "release"))
CLAIM, CANCEL, BATCH = (ACTION_PATHS[name] for name in ("wait.claim", "wait.cancel", "batch.submit"))
OPEN, BEAT, CLOSE = (ACTION_PATHS[f"session.{verb}"] for verb in ("open", "beat", "close"))
ADMIT, APPROVALS = ACTION_PATHS["coordination.admit"], ACTION_PATHS["approval.ask"]
RECEIPTS = "/api/v1/acp/ledger/receipts/"
FILE = "repo:app/src/a.py"


def key(number: int) -> SigningKey:
    """The same key for the same number, in every run."""
    return SigningKey(bytes([number]) * 32)


ALICE, BOB = key(1), key(2)


class ManualClock:
    """Time stands still until a test moves it; who sleeps wakes in order of the due instants."""

    def __init__(self) -> None:
        self.steady = 1_000_000
        self.wall_offset = NOW_MS - self.steady
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self.slept: list[int] = []
        self.is_automatic = False

    def wall_ms(self) -> int:
        return self.steady + self.wall_offset

    def steady_ms(self) -> int:
        return self.steady

    async def sleep(self, duration_ms: int) -> None:
        self.slept.append(duration_ms)
        if self.is_automatic:
            self.steady += max(duration_ms, 0)
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.steady + duration_ms, next(self._order), wake))
        await wake

    async def advance(self, duration_ms: int) -> None:
        """Move time by `duration_ms`, waking every sleeper at its own instant and letting it work until it rests."""
        end = self.steady + duration_ms
        await rest()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, wake = heapq.heappop(self._sleepers)
            self.steady = max(self.steady, due)
            if not wake.done():
                wake.set_result(None)
            await rest()
        self.steady = end
        await rest()

    def jump(self, duration_ms: int) -> None:
        """Move time while the event loop is blocked: nobody wakes."""
        self.steady += duration_ms


async def rest() -> None:
    """Let every task that can run do so."""
    for _ in range(50):
        await asyncio.sleep(0)


class Book:
    """A ledger in memory whose keys the test owns."""

    def __init__(self, origin: str = ORIGIN, seed: int = 101) -> None:
        self.origin = origin
        self.root, self.log, self.receipt_key = (key(seed + n) for n in range(3))
        self.log_vkey = make_vkey(origin, self.log.public_key)
        self.root_vkey = make_vkey(f"{origin}/root", self.root.public_key)
        self.receipt_vkey = make_vkey(f"{origin}/receipt", self.receipt_key.public_key)
        self.leaves: list[bytes] = []
        self.tree = Tree()
        self.key_lines = (KeyLine("log", self.log_vkey), KeyLine("receipt", self.receipt_vkey))
        self.append("ledger.opened", self._opening(), actor="gateway", time_ms=NOW_MS - 60_000)

    def _opening(self) -> JsonObject:
        keys: list[JsonValue] = [*sorted(line.text for line in self.key_lines)]
        return {
            "rules": RULES_VERSION, "root": self.root_vkey.vkey, "keys": keys,
            "operators": [key(9).did], "enroller": key(8).did, "authorities": [AUTHORITY],
            "isPublic": True, "isDev": True, "unicodeVersion": "14.0.0", "parameters": dict(PARAMETER_DEFAULTS),
        }  # fmt: skip

    @property
    def genesis(self) -> bytes:
        return leaf_hash(self.leaves[0])

    @property
    def document(self) -> bytes:
        text = key_document_text(KeyDocument(self.origin, self.genesis, 1, None, self.key_lines))
        return encode_note(Note(text, (signature_line(self.root_vkey, self.root.sign(text.encode())),)))

    @property
    def keyring(self) -> Keyring:
        return open_keyring(root=self.root_vkey.vkey, document=self.document)

    def append(
        self,
        name: str,
        members: JsonObject,
        *,
        actor: str,
        time_ms: int,
        request: JsonObject | None = None,
        behind: tuple[str, str] | None = None,
    ) -> int:
        """Add a leaf and return its seq; nothing is checked, for a test may want a lie.

        `behind` are principal and onBehalfOf, where they differ from the actor.
        """
        principal, on_behalf_of = (actor, actor) if behind is None else behind
        seq = len(self.leaves)
        previous = ZERO_HASH if seq == 0 else _sha256(self.leaves[-1])
        common: JsonObject = {
            "type": full_type(name), "origin": self.origin, "seq": seq, "epoch": 1, "timeMs": time_ms,
            "prev": previous, "genesis": ZERO_HASH if seq == 0 else self.genesis.hex(), "durability": "memory",
            "actor": actor, "principal": principal, "onBehalfOf": on_behalf_of,
        }  # fmt: skip
        evidence: JsonObject = {} if request is None else {"request": request}
        leaf = encode_canonical({**common, **members, **evidence})
        self.leaves.append(leaf)
        self.tree.append(leaf_hash(leaf))
        return seq

    def checkpoint(self, size: int | None = None, root: bytes | None = None) -> bytes:
        size = self.tree.size if size is None else size
        text = checkpoint_text(self.origin, size, self.tree.root(size) if root is None else root)
        return encode_note(Note(text, (signature_line(self.log_vkey, self.log.sign(text.encode())),)))

    def receipt(self, seq: int, size: int | None = None) -> JsonObject:
        size = self.tree.size if size is None else size
        leaf = self.leaves[seq]
        proof = encode_proof(Proof(seq, self.tree.path(seq, size), self.checkpoint(size), None))
        signature = self.receipt_key.sign(pre_authentication(leaf))
        row: JsonObject = {"keyid": thumbprint(self.receipt_key.public_key), "sig": encode_base64(signature)}
        return {
            "payloadType": PAYLOAD_TYPE, "payload": encode_base64(leaf), "signatures": [row], "proof": proof.decode(),
        }  # fmt: skip

    def batch(self, first: int, count: int, *, is_bare: bool) -> JsonObject:
        """Return the member `batch` of an answer: the leaves from `first` on, all under the newest checkpoint."""
        leaves = self.leaves[first : first + count + 1]
        size = self.tree.size
        signed = [encode_base64(self.receipt_key.sign(pre_authentication(leaf))) for leaf in leaves]
        paths: list[JsonValue] = [[*map(encode_base64, self.tree.path(first + at, size))] for at in range(count + 1)]
        return {
            "checkpoint": self.checkpoint().decode(), "index": first, "keyid": thumbprint(self.receipt_key.public_key),
            "leaves": [encode_base64(leaf) for leaf in leaves], "signatures": [] if is_bare else [*signed],
            "paths": paths,
        }  # fmt: skip

    def profile(self, agent: SigningKey, home: Path | None = None) -> Profile:
        return Profile(Address("http://127.0.0.1:1", self.origin, AUTHORITY), agent, self.keyring, home)


@dataclass
class Request:
    """One request as it arrived."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None
    timeout_ms: int = 0

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"].strip('"')

    @property
    def nonce(self) -> str:
        return self.headers["signature-input"].partition(';nonce="')[2].partition('"')[0]

    @property
    def evidence(self) -> JsonObject:
        path, _, query = self.target.partition("?")
        assert self.body is not None
        return {
            "method": self.method, "authority": self.headers["host"], "path": path, "query": f"?{query}",
            "contentType": self.headers["content-type"], "idempotencyKey": self.key,
            "anchor": self.headers["tallystick-anchor"], "body": self.body.decode(),
            "signatureInput": self.headers["signature-input"],
            "signature": self.headers["signature"].partition("=:")[2].rstrip(":"),
        }  # fmt: skip


# A fault takes the request and what would have answered it, and returns or raises what the client sees.
Fault = Callable[[Request, Callable[[], Reply]], Reply]


def lost_answer(request: Request, answer: Callable[[], Reply]) -> Reply:
    """The gateway decides, its answer never arrives."""
    answer()
    raise Unreachable("the connection broke")


def lost_request(request: Request, answer: Callable[[], Reply]) -> Reply:
    """The request never arrives."""
    raise Unreachable("the connection broke")


def status(code: int, name: str = "busy", **headers: str) -> Fault:
    """The gateway answers with a problem and decides nothing."""
    names = {header.replace("_", "-"): value for header, value in headers.items()}
    return lambda request, answer: Reply(code, names, encode_canonical({"code": name, "detail": "not now"}))


def forged(change: Callable[[JsonObject], JsonObject | None]) -> Fault:
    """The gateway decides, and its answer is changed on the way."""

    def fault(request: Request, answer: Callable[[], Reply]) -> Reply:
        reply = answer()
        value = parse_json(reply.unverified_body, bytes_max=10**6)
        changed = change(value)
        return Reply(reply.status, reply.headers, encode_canonical(value if changed is None else changed))

    return fault


@dataclass
class LocalGateway:
    """A Transport whose other end decides leases on a Book (desk.py), at the manual clock's time."""

    book: Book
    clock: ManualClock
    desk: Desk = field(default_factory=Desk)
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    every: Fault | None = None
    answers: dict[tuple[str, str], Reply] = field(default_factory=dict)
    views: dict[str, JsonObject] = field(default_factory=dict)
    disputes: list[bytes] = field(default_factory=list)
    dispute_faults: list[Fault] = field(default_factory=list)
    ahead_ms: int = 0  # of the ledger's clock
    is_closed: bool = False

    @property
    def live(self) -> dict[str, Live]:
        """The leases by id."""
        return self.desk.live

    def agent(self, agent: SigningKey = ALICE, home: Path | None = None) -> Agent:
        profile = self.book.profile(agent, home)
        return Agent(profile, clock=self.clock, jitter=lambda: 0.5, connect=lambda url: self)

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int
    ) -> Reply:
        request = Request(method, target, dict(headers), body, timeout_ms)
        await asyncio.sleep(0)
        if method == "GET" or "idempotency-key" not in headers:
            return self._open(request)
        self.requests.append(request)
        fault = self.faults.pop(0) if self.faults else self.every
        if fault is None:
            await self._park(request)
        answer = partial(self._answer, request)
        return answer() if fault is None else fault(request, answer)

    async def _park(self, request: Request) -> None:
        """Keep a claim waiting as its `Prefer` says, ten seconds at most, until it can be answered with a lease."""
        if request.target != CLAIM or "prefer" not in request.headers:
            return
        end_ms = self.now_ms + 1_000 * min(10, int(request.headers["prefer"].removeprefix("wait=")))
        while self.now_ms < end_ms:
            self._look()
            ticket = self.desk.ticket(parse_json(request.body or b"", bytes_max=10**6)["ticketId"])
            if ticket is None or self.desk.is_served(ticket):
                return
            await self.clock.sleep(min(100, end_ms - self.now_ms))

    def _look(self) -> None:
        self.desk.now_ms, self.desk.seq = self.now_ms, len(self.book.leaves)
        self.desk.tidy()

    async def close(self) -> None:
        self.is_closed = True

    def _open(self, request: Request) -> Reply:
        """What needs no decision: views, checkpoint, tiles, disputes."""
        if request.method == "POST":
            assert request.body is not None
            self.disputes.append(request.body)
            taken = partial(Reply, 200, {}, b"{}")
            return self.dispute_faults.pop(0)(request, taken) if self.dispute_faults else taken()
        receipt = request.target.removeprefix(RECEIPTS)
        path, _, query = request.target.partition("?")
        if path == APPROVALS:
            return Reply(200, {}, encode_canonical(self.desk.gate.view(query)))
        if request.target in self.views:
            return Reply(200, {}, encode_canonical(self.views[request.target]))
        if receipt.isdecimal() and int(receipt) < len(self.book.leaves):
            return Reply(200, {}, encode_canonical({"receipt": self.book.receipt(int(receipt))}))
        if request.target == "/main/checkpoint":
            return Reply(200, {}, self.book.checkpoint())
        if request.target.startswith("/main/tile/0/000"):
            width = int(request.target.partition(".p/")[2] or 256)
            return Reply(200, {}, b"".join(self.book.tree.node(0, n) for n in range(width)))
        return Reply(404, {}, encode_canonical({"code": "not_found", "detail": request.target}))

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms() + self.ahead_ms

    def _answer(self, request: Request) -> Reply:
        assert request.body is not None
        body = parse_json(request.body, bytes_max=10**6)
        actor = str(body["actorDid"])
        known = self.answers.get((actor, request.key))
        self._look()
        if known is None and self.desk.rejects(actor):
            return Reply(403, {}, encode_canonical({"code": self.desk.rejects(actor), "detail": "it is over"}))
        if known is None and request.target == BATCH and not self.desk.script:
            known = self.answers[actor, request.key] = self._answer_batch(body, actor, request)
        if known is None:
            name, members = self._decide(request.target, body, actor)
            seq = self.append(name, members, actor, request)
            content = encode_canonical({"ok": "error" not in members, "receipt": self.book.receipt(seq)})
            code = 409 if "error" in members else 202 if name in ("wait.queued", "wait.polled") else 200
            known = self.answers[actor, request.key] = Reply(code, {}, content)
        return known

    def append(self, name: str, members: JsonObject, actor: str, request: Request) -> int:
        members = self.desk.hear(actor, members)
        return self.book.append(
            name, members, actor=actor, time_ms=self.now_ms, request=request.evidence, behind=self._behind(actor)
        )

    def _behind(self, actor: str) -> tuple[str, str] | None:
        sitting = self.desk.sessions.get(actor)
        return None if sitting is None else (sitting.principal, sitting.on_behalf_of)

    def _answer_batch(self, body: JsonObject, actor: str, request: Request) -> Reply:
        """Decide the commands one by one; the entries stand behind their header. (An atomic one is scripted.)"""
        commands = rows_of(body["commands"])
        is_bare: JsonObject = {"isBare": True} if "isBare" in body else {}
        header: JsonObject = {"count": len(commands), "isAtomic": body.get("isAtomic", False), **is_bare}
        first = self.append("batch.received", header, actor, request)
        results: list[JsonValue] = []
        for index, command in enumerate(commands):
            asked: JsonObject = {"actorDid": actor, **command}
            name, members = self._decide(ACTION_PATHS[str(command["action"])], asked, actor)
            self.book.append(
                name, self.desk.hear(actor, members), actor=actor, time_ms=self.now_ms,
                request={"batch": first, "index": index}, behind=self._behind(actor),
            )  # fmt: skip
            results.append({"ok": "error" not in members, "seq": first + 1 + index})
        batch = self.book.batch(first, len(commands), is_bare=bool(is_bare))
        content: JsonObject = {"ok": True, "results": results, "batch": batch}
        return Reply(200, {}, encode_canonical(content))

    def _decide(self, path: str, body: JsonObject, actor: str) -> Decision:
        self._look()
        return self.desk.decide(path, body, actor)


def _sha256(content: bytes) -> str:
    return sha256(content).hexdigest()
