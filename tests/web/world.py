"""A whole gateway in a test: real keys, real SQLite, real sequencer, a real socket, and a client that can misbehave.

The client speaks HTTP on a bare socket, because most scenes need a request that no HTTP library would send.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.app import Gateway, running
from gateway.client.delegation import Scope, SignedDelegation, delegate
from gateway.client.signing import Draft, new_idempotency_key, new_nonce, sign_request
from gateway.config import Settings, load_settings
from gateway.core.parameters import Parameters
from gateway.initialise import Made, Plan, initialise
from gateway.stores import open_reader
from keys.files import CUSTODY, load_key, new_key_in
from keys.signing import SigningKey
from keys.token import digest_of, new_token
from tests.world import StillClock
from verifier.delegation import enrolment_bytes
from verifier.entries import ACTION_PATHS, parse_leaf
from verifier.keyring import Keyring, open_keyring
from verifier.replay.ledger import check_ledger
from verifier.wire import encode_base64, encode_canonical

ORIGIN = "gateway.example/main"
AUTHORITY = "gateway.example"


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Message:
    """A request as it goes over the wire; `fields` may repeat a name."""

    method: str
    target: str
    fields: tuple[tuple[str, str], ...]
    body: bytes = b""

    def without(self, name: str) -> "Message":
        return replace(self, fields=tuple(pair for pair in self.fields if pair[0] != name))

    def having(self, name: str, value: str) -> "Message":
        return replace(self, fields=(*self.without(name).fields, (name, value)))

    def adding(self, name: str, value: str) -> "Message":
        return replace(self, fields=(*self.fields, (name, value)))

    def field(self, name: str) -> str:
        return dict(self.fields)[name]

    def encode(self) -> bytes:
        fields = [*self.fields, ("content-length", str(len(self.body))), ("connection", "close")]
        head = f"{self.method} {self.target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
        return head.encode("latin-1") + b"\r\n" + self.body


@dataclass(slots=True)
class World:
    """One gateway with its operator and a client per agent."""

    gateway: Gateway
    made: Made
    folder: Path
    operator: SigningKey
    keyring: Keyring
    agents: dict[str, SigningKey] = field(default_factory=dict)
    clock: StillClock | None = None

    @property
    def now_ms(self) -> int:
        """What a signer's clock shows."""
        return self.clock.now_ms() if self.clock else int(time.time() * 1_000)

    @property
    def newcomers_anchor(self) -> str:
        return f"{ORIGIN} 1 {encode_base64(self.made.genesis)}"

    async def agent(self, name: str) -> SigningKey:
        """Return the key of an enrolled agent, enrolling it the first time."""
        if name not in self.agents:
            self.agents[name] = SigningKey.generate()
            reply = await self.send(self.signed(self.operator, "agent.add", agent=self.agents[name].did, name=name))
            assert reply.status == 200, reply.body
        return self.agents[name]

    def signed(
        self,
        key: SigningKey,
        action: str,
        *,
        idempotency_key: str | None = None,
        created_s: int | None = None,
        anchor: str | None = None,
        nonce: str | None = None,
        body: bytes | None = None,
        life_s: int = 15,
        **members: Any,
    ) -> Message:
        """Return a signed request for `action`; members with the value None are left out of the body."""
        named = {"ledger": ORIGIN, "actorDid": key.did, **members}
        content = encode_canonical({name: value for name, value in named.items() if value is not None})
        draft = Draft(
            "POST",
            AUTHORITY,
            ACTION_PATHS[action],
            "",
            anchor or self.newcomers_anchor,
            content if body is None else body,
            idempotency_key or new_idempotency_key(),
        )
        fields = sign_request(
            draft, key, created_s=created_s or self.now_ms // 1_000, nonce=nonce or new_nonce(), life_s=life_s
        )
        return Message("POST", draft.path, tuple(fields.items()), draft.body or b"")

    def signed_read(
        self,
        key: SigningKey,
        target: str,
        *,
        life_s: int = 15,
        created_s: int | None = None,
        anchor: str = "",
        method: str = "GET",
    ) -> Message:
        path, _, query = target.partition("?")
        draft = Draft(method, AUTHORITY, path, query, anchor or self.newcomers_anchor)
        fields = sign_request(draft, key, created_s=created_s or self.now_ms // 1_000, nonce=new_nonce(), life_s=life_s)
        return Message(method, target, tuple(fields.items()))

    def delegation(
        self,
        issuer: SigningKey,
        subject: str,
        *,
        parent: SignedDelegation | None = None,
        ttl_ms: int = 3_600_000,
        resources: tuple[str, ...] | None = None,
        may_delegate: bool = False,
    ) -> SignedDelegation:
        """Let a key act for another one."""
        scope = None if resources is None else Scope(resources=resources)
        return delegate(
            issuer, subject, origin=ORIGIN, now_ms=self.now_ms, ttl_ms=ttl_ms, scope=scope, parent=parent,
            may_delegate=may_delegate,
        )  # fmt: skip

    async def session(self, issuer: SigningKey, **options: Any) -> SigningKey:
        """Return the key of a new session that `issuer` lets act."""
        key = SigningKey.generate()
        row = self.delegation(issuer, key.did, **options).row
        reply = await self.send(self.signed(key, "session.open", delegations=[row]))
        assert reply.status == 200, reply.body
        return key

    async def token(self, kind: Any = "live", **members: Any) -> str:
        """Return an API key that the operator issued."""
        token = new_token(kind)
        reply = await self.ask("op", "apikey.issue", keyDigest=digest_of(token), kind=kind, **members)
        assert reply.status == 200, reply.body
        return token

    async def custodial(self, name: str) -> tuple[str, str]:
        """Return DID and token of an agent whose key this gateway holds."""
        did = new_key_in(self.folder / CUSTODY, purpose=CUSTODY).did
        reply = await self.ask("op", "agent.add", agent=did, name=name, agentCustody="gateway")
        assert reply.status == 200, reply.body
        return did, await self.token(agent=did)

    async def call(self, token: str, target: str, *, fields: Mapping[str, str] | None = None, **members: Any) -> Reply:
        """Ask as any HTTP client would that has a token and knows of no signature."""
        named = {"host": AUTHORITY, "authorization": f"Bearer {token}", "content-type": "application/json"}
        body = json.dumps(members).encode()
        return await self.send(Message("POST", target, tuple((named | dict(fields or {})).items()), body))

    async def look(self, token: str, target: str) -> Reply:
        """Read with a token."""
        fields = (("host", AUTHORITY), ("authorization", f"Bearer {token}"))
        return await self.send(Message("GET", target, fields))

    async def enrol(self, token: str, key: SigningKey, **members: Any) -> Reply:
        """Enrol a key with an API key, proven unless `proof` says otherwise."""
        proof = encode_base64(key.sign(enrolment_bytes(key.did, digest_of(token), ORIGIN)))
        return await self.call(token, "/api/v1/acp/agents/enrol", **{"agent": key.did, "proof": proof, **members})

    async def trial(self) -> SigningKey:
        """Return the key of a new trial agent."""
        key = SigningKey.generate()
        reply = await self.enrol(await self.token("trial"), key, name="trial")
        assert reply.status == 200, reply.body
        return key

    async def send(self, message: Message) -> Reply:
        return await send_raw(self.gateway.url, message.encode())

    async def get(self, target: str) -> Reply:
        return await self.send(Message("GET", target, (("host", AUTHORITY),)))

    async def ask(self, name: str, action: str, /, **options: Any) -> Reply:
        """Let an agent ask for `action`; `op` is the operator."""
        key = self.operator if name == "op" else await self.agent(name)
        return await self.send(self.signed(key, action, **options))

    def audit(self) -> None:
        """Let the real verifier judge the whole ledger as it stands, and ask the rules again, if there are any."""
        confirmed = self.gateway.house.sequencer.confirmed
        reader = open_reader(self.folder)
        leaves = b"".join(entry.leaf + b"\n" for entry in reader.entries(0, confirmed.size))
        reader.close()
        file = self.folder.with_name("audit.ledger")
        file.write_bytes(f"tallystick-ledger/v1 {ORIGIN} {confirmed.size}\n".encode() + leaves + b"\n" + confirmed.note)
        report = check_ledger(file, self.keyring, confirmed.note, has_rules=True)
        assert report.exit_code == 0, report.as_text()

    def types(self, first: int = 0) -> list[str]:
        """Return the types of all entries from `first` on, as `noun.participle`."""
        reader = open_reader(self.folder)
        entries = reader.entries(first, self.gateway.house.sequencer.confirmed.size)
        reader.close()
        return [parse_leaf(entry.leaf).type.split("/")[1] for entry in entries]

    async def acquire(self, name: str, resource: str, **options: Any) -> Reply:
        return await self.send(self.signed(await self.agent(name), "lease.acquire", resource=resource, **options))


async def send_raw(url: str, content: bytes) -> Reply:
    """Send bytes on a connection of their own and read until the gateway closes it."""
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(content)
        await writer.drain()
        return parse_reply(await reader.read())
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def parse_reply(content: bytes) -> Reply:
    head, separator, body = content.partition(b"\r\n\r\n")
    assert separator, f"no HTTP answer in {content!r}"
    first, *rows = head.decode("latin-1").split("\r\n")
    pairs = [row.split(": ", 1) for row in rows]
    names = [name.lower() for name, _ in pairs]
    assert len(set(names)) == len(names), f"a header twice: {sorted(names)}"
    return Reply(int(first.split(" ")[1]), {name.lower(): value for name, value in pairs}, body)


def make(
    folder: Path,
    *,
    is_public: bool = True,
    is_dev: bool = False,
    store: str = "",
    durability: str = "local",
    **parameters: int,
) -> Made:
    """Make a data directory, with the ledger in a file or in the database `store`."""
    settings = Settings(listen_port=8420, metrics_port=0, store=store, durability=durability)
    plan = Plan(
        folder=folder,
        origin=ORIGIN,
        authorities=(AUTHORITY,),
        settings=settings,
        is_public=is_public,
        is_dev=is_dev,
        parameters=Parameters(**parameters),
    )
    return initialise(plan, int(time.time() * 1000))


@contextlib.asynccontextmanager
async def world(
    folder: Path, made: Made, clock: StillClock | None = None, *, is_manner_accepted: bool = False, **settings: Any
) -> AsyncIterator[World]:
    """Yield the running gateway of `folder` on a free port; a `clock` is moved by hand."""
    chosen = replace(load_settings(folder), **{"listen_port": 0, "metrics_port": 0, **settings})
    operator = load_key(folder / "operator" / "agent.key")
    keyring = open_keyring(root=made.root_vkey, document=(folder / "public" / "keys.note").read_bytes())
    async with running(folder, chosen, clock, is_manner_accepted=is_manner_accepted) as gateway:
        yield World(gateway, made, folder, operator, keyring, clock=clock)
