"""Makes receipts and ledgers from the protocol's text alone, with PyNaCl and json: nothing of verifier/ helps here.

A second writer keeps the tests honest: when verifier and gateway share a mistake, this file does not share it.
Every seed is a repeated byte: test use only. Times are log milliseconds from T0.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

ORIGIN = "gateway.example/main"
AUTHORITY = "gateway.example"
T0 = 1_700_000_000_000
ZEROS = "0" * 64
PATHS = {
    "lease.acquire": "/api/v1/acp/coordination/lease",
    "lease.renew": "/api/v1/acp/coordination/renew",
    "lease.release": "/api/v1/acp/coordination/release",
    "agent.add": "/api/v1/acp/agents",
    "agent.remove": "/api/v1/acp/agents/remove",
}
PARAMETERS = {
    "ttlMinMs": 1000,
    "ttlMaxMs": 3600000,
    "sweepMs": 1000,
    "holidayMs": 30000,
    "skewMs": 30000,
    "idempotencyMs": 86400000,
    "waitEdgeMs": 10000,
    "stampedeBaseMs": 25,
    "stampedeMaxMs": 800,
    "stampedeAdmitted": 8,
    "stampedeResetMs": 60000,
    "maxHoldMs": 3600000,
    "ratePerSecond": 20,
    "rateBurst": 200,
}
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
Json = dict[str, Any]


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Key:
    """An Ed25519 key pair from one repeated byte, under every name the protocol gives to keys."""

    seed_byte: int

    @property
    def pair(self) -> tuple[bytes, bytes]:
        return crypto_sign_seed_keypair(bytes([self.seed_byte]) * 32)

    @property
    def public(self) -> bytes:
        return self.pair[0]

    def sign(self, message: bytes) -> bytes:
        return crypto_sign(message, self.pair[1])[:64]

    @property
    def did(self) -> str:
        number, text = int.from_bytes(b"\xed\x01" + self.public, "big"), ""
        while number:
            number, digit = divmod(number, 58)
            text = _ALPHABET[digit] + text
        return "did:key:z" + text

    def key_id(self, name: str, kind: int = 1) -> bytes:
        return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + self.public).digest()[:4]

    def vkey(self, name: str, kind: int = 1) -> str:
        return f"{name}+{self.key_id(name, kind).hex()}+{b64(bytes([kind]) + self.public)}"

    @property
    def thumbprint(self) -> str:
        x = base64.urlsafe_b64encode(self.public).rstrip(b"=").decode()
        jwk = f'{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}'
        return base64.urlsafe_b64encode(hashlib.sha256(jwk.encode()).digest()).rstrip(b"=").decode()

    def note_line(self, name: str, text: str) -> str:
        return f"— {name} {b64(self.key_id(name) + self.sign(text.encode()))}\n"

    def cosignature(self, name: str, text: str, time_s: int = T0 // 1000) -> str:
        signature = self.sign(f"cosignature/v1\ntime {time_s}\n{text}".encode())
        return f"— {name} {b64(self.key_id(name, 4) + time_s.to_bytes(8, 'big') + signature)}\n"


LOG, RECEIPT, ROOT, OPERATOR, ALICE, BOB, STRANGER = (Key(n) for n in (11, 12, 13, 14, 15, 16, 17))
WITNESSES = {"w1": Key(21), "w2": Key(22), "w3": Key(23)}


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\0" + entry).digest()


def tree_root(hashes: Sequence[bytes]) -> bytes:
    """RFC 6962 2.1, by its definition."""
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1 << (len(hashes) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + tree_root(hashes[:k]) + tree_root(hashes[k:])).digest()


def tree_path(index: int, hashes: Sequence[bytes]) -> list[bytes]:
    """RFC 6962 2.1.1, by its definition."""
    if len(hashes) <= 1:
        return []
    k = 1 << (len(hashes) - 1).bit_length() - 1
    if index < k:
        return [*tree_path(index, hashes[:k]), tree_root(hashes[k:])]
    return [*tree_path(index - k, hashes[k:]), tree_root(hashes[:k])]


@dataclass
class Ledger:
    """A ledger under construction; every method appends one entry and returns its seq.

    `change` of `entry` edits a finished leaf's object before it is linked: how the lies are told.
    """

    leaves: list[bytes] = field(default_factory=list)
    time_ms: int = T0
    epoch: int = 1
    token: int = 0
    counter: int = 0

    # --- tree ---

    @property
    def hashes(self) -> list[bytes]:
        return [leaf_hash(leaf) for leaf in self.leaves]

    def root(self, size: int | None = None) -> bytes:
        return tree_root(self.hashes[:size])

    @property
    def genesis(self) -> str:
        return self.hashes[0].hex() if self.leaves else ZEROS

    # --- entries ---

    def entry(self, name: str, actor: str, members: Json, change: Callable[[Json], None] | None = None) -> int:
        seq = len(self.leaves)
        leaf: Json = {
            "type": f"tallystick/{name}/1",
            "origin": ORIGIN,
            "seq": seq,
            "epoch": self.epoch,
            "timeMs": self.time_ms,
            "prev": hashlib.sha256(self.leaves[-1]).hexdigest() if self.leaves else ZEROS,
            "genesis": self.genesis,
            "durability": "local",
            "actor": actor,
            "principal": actor,
            "onBehalfOf": actor,
            **members,
        }
        if change is not None:
            change(leaf)
        self.leaves.append(canonical(leaf))
        return seq

    def open(self, **over: Any) -> int:
        members = {
            "rules": 1,
            "root": ROOT.vkey(f"{ORIGIN}/root"),
            "keys": [f"log {LOG.vkey(ORIGIN)} 0 - active", f"receipt {RECEIPT.vkey(ORIGIN + '/receipt')} 0 - active"],
            "operators": [OPERATOR.did],
            "authorities": [AUTHORITY],
            "isPublic": True,
            "isDev": False,
            "unicodeVersion": "14.0.0",
            "parameters": PARAMETERS,
        }
        return self.entry("ledger.opened", "gateway", {**members, **over})

    def start(self) -> int:
        seq = self.started()
        until_ms = self.time_ms + min(30_000, self.value(seq)["gapMs"])
        return self.entry("lease.holiday", "gateway", {"untilMs": until_ms, "startedSeq": seq, "reason": "start"})

    def started(self, **over: Any) -> int:
        """A start without its holiday."""
        self.epoch += 1
        gap_ms = self.time_ms - self.value(-1)["timeMs"]
        return self.entry("service.started", "gateway", {"cause": "start", "isClean": True, "gapMs": gap_ms, **over})

    def dispute(self, checkpoint: bytes, **over: Any) -> int:
        _, size, root, *_ = checkpoint.decode().split("\n")
        members = {"checkpoint": checkpoint.decode(), "size": int(size), "root": root}
        return self.entry("ledger.disputed", "gateway", {**members, **over})

    def request(self, key: Key, action: str, body: Json, **over: Any) -> Json:
        """Sign a request as an honest agent does. `over` replaces parts before signing; see the defaults."""
        self.counter += 1
        size = over.pop("anchor_size", len(self.leaves))
        created = over.pop("created", self.time_ms // 1000)
        evidence = {
            "method": "POST",
            "authority": AUTHORITY,
            "path": PATHS[action],
            "query": "?",
            "contentType": "application/json",
            "idempotencyKey": f"key-{self.counter}",
            "anchor": f"{ORIGIN} {size} {b64(self.root(size))}",
            "body": json.dumps({"ledger": ORIGIN, "actorDid": key.did, **body}),
        }
        nonce = over.pop("nonce", f"nonce-{self.counter:017}")
        expires = over.pop("expires", created + 15)
        components = over.pop("components", _COMPONENTS)
        signer: Key = over.pop("signer", key)
        tag = over.pop("tag", "tallystick-v1")
        evidence["body"] = over.pop("raw_body", evidence["body"])
        evidence.update(over)
        covered = " ".join(f'"{name}"' for name in components)
        params = f'({covered});created={created};expires={expires};keyid="{key.did}";alg="ed25519";nonce="{nonce}"'
        params += f';tag="{tag}"'
        values = component_values(evidence)
        base = "".join(f'"{name}": {values[name]}\n' for name in components) + f'"@signature-params": {params}'
        return {**evidence, "signatureInput": f"sig={params}", "signature": b64(signer.sign(base.encode()))}

    def decision(
        self,
        name: str,
        key: Key,
        action: str,
        body: Json,
        members: Json,
        change: Callable[[Json], None] | None = None,
        **over: Any,
    ) -> int:
        return self.entry(name, key.did, {**members, "request": self.request(key, action, body, **over)}, change)

    def add(self, agent: Key, by: Key = OPERATOR, **over: Any) -> int:
        members = {"agent": agent.did}
        return self.decision("agent.added", by, "agent.add", members, members, **over)

    def remove(self, agent: Key) -> int:
        members = {"agent": agent.did}
        return self.decision("agent.removed", OPERATOR, "agent.remove", members, members)

    def grant(self, key: Key, *resources: str, ttl_ms: int = 30_000, **over: Any) -> int:
        self.token = max(self.token + 1, self.time_ms * 1000)
        body = over.pop("body_members", {"resources": list(resources), "ttlMs": ttl_ms})
        return self.decision(
            "lease.granted", key, "lease.acquire", body, {**self.lease(*resources, ttl_ms=ttl_ms)}, **over
        )

    def lease(self, *resources: str, ttl_ms: int = 30_000, grant_seq: int | None = None) -> Json:
        schemes = sorted({name.split(":")[0] for name in resources})
        return {
            "resources": sorted(resources),
            "mode": "write",
            "schemes": [{"name": name, "class": "exclusive"} for name in schemes],
            "leaseId": f"L{len(self.leaves) if grant_seq is None else grant_seq}",
            "fencingToken": self.token,
            "ttlMs": ttl_ms,
            "expiresAtMs": self.time_ms + ttl_ms,
            "holdUntilMs": self.time_ms + 3_600_000,
        }

    def value(self, seq: int) -> Json:
        loaded: Json = json.loads(self.leaves[seq])
        return loaded

    def later(self, grant_seq: int, *names: str) -> Json:
        """The members of a grant that its renewals, release and expiry repeat."""
        grant = self.value(grant_seq)
        everything = {**grant, "grantSeq": grant_seq, "grantedAtMs": grant["timeMs"], "holder": grant["actor"]}
        return {name: everything[name] for name in names}

    def renew(self, key: Key, grant_seq: int, ttl_ms: int = 30_000, **over: Any) -> int:
        names = ("resources", "mode", "schemes", "leaseId", "fencingToken", "holdUntilMs", "grantSeq", "grantedAtMs")
        members = {**self.later(grant_seq, *names), "ttlMs": ttl_ms, "expiresAtMs": self.time_ms + ttl_ms}
        body = {"leaseId": members["leaseId"], "ttlMs": ttl_ms}
        return self.decision("lease.renewed", key, "lease.renew", body, members, **over)

    def release(self, key: Key, grant_seq: int, **over: Any) -> int:
        names = ("resources", "leaseId", "fencingToken", "grantSeq", "grantedAtMs")
        members = self.later(grant_seq, *names)
        body = {"resources": members["resources"], "leaseId": members["leaseId"]}
        return self.decision("lease.released", key, "lease.release", body, members, **over)

    def expire(self, grant_seq: int, **over: Any) -> int:
        names = ("resources", "leaseId", "fencingToken", "holder", "grantSeq", "expiresAtMs")
        return self.entry("lease.expired", "gateway", {**self.later(grant_seq, *names), **over})

    def refuse(self, key: Key, grant_seq: int, *resources: str, **over: Any) -> int:
        """A lease_held refusal that names the grant."""
        grant = self.value(grant_seq)
        names = ("leaseId", "fencingToken", "mode", "grantedAtMs")
        conflict = {**self.later(grant_seq, *names), "resource": resources[0], "expiresAtMs": grant["expiresAtMs"]}
        members = {
            "resources": sorted(resources),
            "mode": "write",
            "ttlMs": 30_000,
            "error": "lease_held",
            "number": 408,
            "holder": grant["actor"],
            "conflict": conflict,
            "conflicts": 1,
            "stampede": {"admitted": True, "waitMs": 25},
            "retryAfterMs": 25,
        }
        return self.decision("lease.refused", key, "lease.acquire", {"resource": resources[0]}, members, **over)

    # --- what leaves the house ---

    def checkpoint(self, size: int | None = None, witnesses: Sequence[str] = (), log: Key = LOG) -> bytes:
        count = len(self.leaves) if size is None else size
        text = f"{ORIGIN}\n{count}\n{b64(self.root(count))}\n"
        lines = log.note_line(ORIGIN, text) + "".join(WITNESSES[name].cosignature(name, text) for name in witnesses)
        return f"{text}\n{lines}".encode()

    def proof(self, seq: int, size: int | None = None, witnesses: Sequence[str] = (), log: Key = LOG) -> str:
        path = "".join(b64(part) + "\n" for part in tree_path(seq, self.hashes[:size]))
        return f"c2sp.org/tlog-proof@v1\nindex {seq}\n{path}\n{self.checkpoint(size, witnesses, log).decode()}"

    def envelope(self, seq: int, size: int | None = None, witnesses: Sequence[str] = (), log: Key = LOG) -> Json:
        return envelope(self.leaves[seq], self.proof(seq, size, witnesses, log))

    def receipt(self, seq: int, size: int | None = None, witnesses: Sequence[str] = (), log: Key = LOG) -> bytes:
        return canonical(self.envelope(seq, size, witnesses, log))

    def export(self, checkpoint: bytes | None = None) -> bytes:
        note = self.checkpoint() if checkpoint is None else checkpoint
        head = f"tallystick-ledger/v1 {ORIGIN} {len(self.leaves)}\n".encode()
        return head + b"".join(leaf + b"\n" for leaf in self.leaves) + b"\n" + note

    def keys(self, version: int = 1, lines: Sequence[str] | None = None, genesis: str | None = None) -> bytes:
        default = [
            f"key log {LOG.vkey(ORIGIN)} 0 - active",
            f"key receipt {RECEIPT.vkey(ORIGIN + '/receipt')} 0 - active",
        ]
        previous = "-" if version == 1 else "11" * 32
        head = f"tallystick-keys/v1\norigin {ORIGIN}\ngenesis {genesis or self.genesis}\n"
        text = head + f"version {version}\nprevious {previous}\n" + "".join(f"{x}\n" for x in sorted(lines or default))
        return (text + "\n" + ROOT.note_line(f"{ORIGIN}/root", text)).encode()


_COMPONENTS = (
    "@method",
    "@authority",
    "@path",
    "@query",
    "content-type",
    "content-digest",
    "idempotency-key",
    "tallystick-anchor",
)


def component_values(evidence: Json) -> dict[str, str]:
    """The field values of a request as they stood on the wire."""
    return {
        "@method": evidence["method"],
        "@authority": evidence["authority"],
        "@path": evidence["path"],
        "@query": evidence["query"],
        "content-type": evidence["contentType"],
        "content-digest": f"sha-256=:{b64(hashlib.sha256(evidence['body'].encode()).digest())}:",
        "idempotency-key": f'"{evidence["idempotencyKey"]}"',
        "tallystick-anchor": evidence["anchor"],
        "host": evidence["authority"],
    }


def envelope(leaf: bytes, proof: str, key: Key = RECEIPT) -> Json:
    kind = "application/vnd.tallystick.leaf.v1+json"
    signed = f"DSSEv1 {len(kind)} {kind} {len(leaf)} ".encode() + leaf
    signature = {"keyid": key.thumbprint, "sig": b64(key.sign(signed))}
    return {"payloadType": kind, "payload": b64(leaf), "signatures": [signature], "proof": proof}


def policy(quorum: int | None = 2) -> bytes:
    """The log and three witnesses; `quorum` of them are enough, None is "quorum none"."""
    lines = [f"log {LOG.vkey(ORIGIN)}"]
    lines += [f"witness {name} {key.vkey(name, 4)}" for name, key in WITNESSES.items()]
    lines += [f"group all-of-us {quorum or 1} {' '.join(WITNESSES)}"]
    return ("\n".join(lines) + f"\nquorum {'none' if quorum is None else 'all-of-us'}\n").encode()


def root_vkey() -> str:
    return ROOT.vkey(f"{ORIGIN}/root")


def opened() -> Ledger:
    """A ledger with entry 0, one start and two agents: seq 0 to 4."""
    ledger = Ledger()
    ledger.open()
    ledger.time_ms += 10
    ledger.start()
    ledger.time_ms += 1_000
    ledger.add(ALICE)
    ledger.add(BOB)
    return ledger


def worked() -> Ledger:
    """A short working day: grants, a refusal, a renewal, a release, an expiry, a restart, a removal."""
    ledger = opened()
    ledger.time_ms += 500
    first = ledger.grant(ALICE, "repo:app/src/a.py", "lock:deploy/production")  # 5
    ledger.refuse(BOB, first, "repo:app/src/a.py")  # 6
    ledger.time_ms += 5_000
    ledger.renew(ALICE, first)  # 7
    ledger.release(ALICE, first)  # 8
    ledger.time_ms += 1
    second = ledger.grant(BOB, "repo:app/src/a.py", ttl_ms=1_000)  # 9
    ledger.time_ms += 1_500
    ledger.expire(second)  # 10
    ledger.start()  # 11, 12
    ledger.grant(ALICE, "db:orders/table/users")  # 13
    ledger.remove(BOB)  # 14
    return ledger
