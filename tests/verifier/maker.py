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
from typing import Any, TypeAlias

from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

ORIGIN = "gateway.example/main"
AUTHORITY = "gateway.example"
T0 = 1_700_000_000_000
ZEROS = "0" * 64
PATHS = {
    "lease.acquire": "/api/v1/acp/coordination/lease",
    "lease.renew": "/api/v1/acp/coordination/renew",
    "lease.release": "/api/v1/acp/coordination/release",
    "lease.transfer": "/api/v1/acp/coordination/transfer",
    "lease.accept": "/api/v1/acp/coordination/accept",
    "lease.break": "/api/v1/acp/coordination/break",
    "wait.claim": "/api/v1/acp/coordination/wait/claim",
    "wait.cancel": "/api/v1/acp/coordination/wait/cancel",
    "batch.submit": "/api/v1/acp/coordination/batch",
    "scheme.set": "/api/v1/acp/schemes",
    "operator.add": "/api/v1/acp/operators",
    "operator.remove": "/api/v1/acp/operators/remove",
    "agent.add": "/api/v1/acp/agents",
    "agent.remove": "/api/v1/acp/agents/remove",
    "apikey.issue": "/api/v1/acp/apikeys",
    "apikey.revoke": "/api/v1/acp/apikeys/revoke",
    "session.open": "/api/v1/acp/sessions",
    "session.beat": "/api/v1/acp/sessions/beat",
    "session.close": "/api/v1/acp/sessions/close",
    "key.announce": "/api/v1/acp/keys/announce",
    "key.retire": "/api/v1/acp/keys/retire",
    "key.compromise": "/api/v1/acp/keys/compromise",
    "coordination.admit": "/api/v1/acp/coordination/admit",
    "approval.ask": "/api/v1/acp/approvals",
    "approval.give": "/api/v1/acp/approvals/give",
    "approval.decline": "/api/v1/acp/approvals/decline",
    "approval.withdraw": "/api/v1/acp/approvals/withdraw",
    "rules.load": "/api/v1/acp/rules",
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
    "pollMs": 30000,
    "claimMs": 10000,
    "waitMaxMs": 3600000,
    "queuePerResource": 256,
    "queuePerPrincipal": 64,
    "queueTotal": 10000,
    "lockDelayMs": 0,
    "deadlockNodes": 1000,
    "passesMax": 32,
    "reserveAfterMs": 60000,
    "trustStart": 50000,
    "trustMax": 100000,
    "trustGain": 500,
    "trustGainHoldMs": 1000,
    "trustGainMax": 1000,
    "trustGainWindowMs": 3600000,
    "trustLoss": 5000,
    "heldPerPrincipal": 1024,
    "sessionIdleMs": 120000,
    "sessionsPerPrincipal": 1024,
    "trialDecisions": 35,
    "trialMs": 604800000,
    "trialTtlMaxMs": 60000,
    "witnessMs": 60000,
    "admissionMs": 60000,
    "asksPerPrincipal": 64,
}
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
Json = dict[str, Any]
Logs: TypeAlias = "Key | Sequence[Key]"  # whose lines a checkpoint has


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


LOG, RECEIPT, ROOT, OPERATOR, ALICE, BOB, STRANGER, CAROL = (Key(n) for n in (11, 12, 13, 14, 15, 16, 17, 18))
ENROLLER, DEPUTY = Key(19), Key(20)  # the key of the gateway that enrols, and a second operator
SESSION, OTHER_SESSION, HELPER = Key(31), Key(32), Key(33)
NEW_LOG, NEW_RECEIPT = Key(37), Key(38)  # that take the places of LOG and RECEIPT
KEYS = (OPERATOR, ALICE, BOB, STRANGER, CAROL, DEPUTY, SESSION, OTHER_SESSION, HELPER)
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


def statement(iss: Key, sub: Key, at_ms: int, **over: Any) -> Json:
    """An honest delegation of one hour from `at_ms` on; `over` replaces members, None leaves one out."""
    said: Json = {
        "type": "tallystick/delegation/1",
        "iss": iss.did,
        "sub": sub.did,
        "aud": ORIGIN,
        "verbs": ["lease", "transfer"],
        "notBeforeMs": at_ms,
        "expiresAtMs": at_ms + 3_600_000,
        "maxDepth": 0,
        **over,
    }
    return {name: value for name, value in said.items() if value is not None}


def signed_statement(said: Json, signer: Key) -> Json:
    message = b"tallystick.delegation/1\n" + hashlib.sha256(canonical(said)).digest()
    return {"statement": said, "signature": b64(signer.sign(message))}


def enrolment_proof(agent: Key, key_digest: str, ledger: str = ORIGIN) -> str:
    document = canonical({"agent": agent.did, "keyDigest": key_digest, "ledger": ledger})
    return b64(agent.sign(b"tallystick.enrolment/1\n" + hashlib.sha256(document).digest()))


def tree_path(index: int, hashes: Sequence[bytes]) -> list[bytes]:
    """RFC 6962 2.1.1, by its definition."""
    if len(hashes) <= 1:
        return []
    k = 1 << (len(hashes) - 1).bit_length() - 1
    if index < k:
        return [*tree_path(index, hashes[:k]), tree_root(hashes[k:])]
    return [*tree_path(index - k, hashes[k:]), tree_root(hashes[:k])]


def consistency_path(old: int, hashes: Sequence[bytes], is_whole: bool = True) -> list[bytes]:
    """RFC 6962 2.1.2, by its definition."""
    if old == len(hashes):
        return [] if is_whole else [tree_root(hashes)]
    k = 1 << (len(hashes) - 1).bit_length() - 1
    if old <= k:
        return [*consistency_path(old, hashes[:k], is_whole), tree_root(hashes[k:])]
    return [*consistency_path(old - k, hashes[k:], False), tree_root(hashes[:k])]


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
    classes: dict[str, tuple[str, bool]] = field(default_factory=dict)  # class and folding by scheme, of `set_scheme`
    trust: dict[str, tuple[int, int]] = field(default_factory=dict)  # value and seq of the last change, by principal
    people: dict[str, tuple[str, str]] = field(default_factory=dict)  # principal and onBehalfOf, by actor
    sessions: dict[str, tuple[int, int]] = field(default_factory=dict)  # openedSeq and expiresAtMs, by DID
    custodial: set[str] = field(default_factory=set)
    operators: set[str] = field(default_factory=lambda: {OPERATOR.did})
    issued: dict[str, tuple[int, str]] = field(default_factory=dict)  # issuedSeq and operator, by digest of an API key
    announced: dict[str, int] = field(default_factory=dict)  # announcedSeq by vkey; of those of entry 0 it is 0

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
        principal, on_behalf_of = self.who(actor)
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
            "principal": principal,
            "onBehalfOf": on_behalf_of,
            **members,
        }
        if change is not None:
            change(leaf)
        self.leaves.append(canonical(leaf))
        return seq

    def who(self, actor: str) -> tuple[str, str]:
        """The principal and the operator behind an actor; of who was never added: itself, and the first operator."""
        if actor == "gateway" or actor in self.operators:
            return actor, actor
        return self.people.get(actor, (actor, OPERATOR.did))

    def open(self, **over: Any) -> int:
        members = {
            "rules": 5,
            "root": ROOT.vkey(f"{ORIGIN}/root"),
            "keys": [f"log {LOG.vkey(ORIGIN)} 0 - active", f"receipt {RECEIPT.vkey(ORIGIN + '/receipt')} 0 - active"],
            "operators": [OPERATOR.did],
            "enroller": ENROLLER.did,
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
        evidence = self.request(key, action, body, **over)
        return self.entry(name, key.did, {**self.marked(key.did, members), "request": evidence}, change)

    def marked(self, actor: str, members: Json) -> Json:
        """Members of a leaf, with what it says because of whose key signed: custody, and how long a session lasts."""
        marks: Json = {"custody": "gateway"} if actor in self.custodial or actor == ENROLLER.did else {}
        if actor in self.sessions and "holdUntilMs" in members:
            marks["endsIfIdleAtMs"] = min(self.idle_at_ms(actor), members["expiresAtMs"])
        return {**marks, **members}

    def idle_at_ms(self, session: str) -> int:
        return min(self.time_ms + 120_000, self.sessions[session][1])

    # --- people ---

    def add(self, agent: Key, by: Key = OPERATOR, **over: Any) -> int:
        members = {"agent": agent.did, **({"agentCustody": "gateway"} if over.pop("is_custodial", False) else {})}
        self.people[agent.did] = (agent.did, by.did)
        if "agentCustody" in members:
            self.custodial.add(agent.did)
        return self.decision("agent.added", by, "agent.add", members, members, **over)

    def remove(self, agent: Key, by: Key = OPERATOR) -> int:
        members = {"agent": agent.did}
        return self.decision("agent.removed", by, "agent.remove", members, members)

    def add_operator(self, operator: Key, by: Key = OPERATOR, **over: Any) -> int:
        members = {"operator": operator.did}
        seq = self.decision("operator.added", by, "operator.add", members, members, **over)
        self.operators.add(operator.did)
        return seq

    def remove_operator(self, operator: Key, by: Key = OPERATOR, **over: Any) -> int:
        members = {"operator": operator.did}
        seq = self.decision("operator.removed", by, "operator.remove", members, members, **over)
        self.operators.discard(operator.did)
        return seq

    def issue(self, key_digest: str, kind: str = "live", agent: Key | None = None, by: Key = OPERATOR) -> int:
        members = {"keyDigest": key_digest, "kind": kind, **({} if agent is None else {"agent": agent.did})}
        self.issued[key_digest] = (len(self.leaves), by.did)
        return self.decision("apikey.issued", by, "apikey.issue", members, members)

    def revoke(self, key_digest: str, by: Key = OPERATOR, **over: Any) -> int:
        body = {"keyDigest": key_digest}
        members = {**body, "issuedSeq": self.issued[key_digest][0]}
        return self.decision("apikey.revoked", by, "apikey.revoke", body, members, **over)

    def enrol(self, agent: Key, key_digest: str, **over: Any) -> int:
        """An agent added by API key: the gateway's own key signs, the new one proves that it is there."""
        operator = self.issued[key_digest][1]
        self.people[agent.did] = (agent.did, operator)
        self.people[ENROLLER.did] = (ENROLLER.did, ENROLLER.did)
        members = {"agent": agent.did, "keyDigest": key_digest}
        body = {**members, "proof": over.pop("proof", enrolment_proof(agent, key_digest))}
        return self.decision("agent.added", ENROLLER, "agent.add", body, members, **over)

    # --- keys of the ledger, and witnesses ---

    def key_statement(self, what: str, root: Key = ROOT, origin: str = ORIGIN) -> str:
        """What the root signs about one key: `announce log <vkey> -` and the like."""
        text = f"tallystick-key/v1\norigin {origin}\ngenesis {self.genesis}\n{what}\n"
        return f"{text}\n{root.note_line(f'{ORIGIN}/root', text)}"

    def announce(self, purpose: str, key: Key, next_key: Key | None = None, **over: Any) -> int:
        vkey, digest = (
            key.vkey(key_name(purpose)),
            "-" if next_key is None else hashlib.sha256(next_key.public).hexdigest(),
        )
        body = {"statement": over.pop("statement", self.key_statement(f"announce {purpose} {vkey} {digest}"))}
        self.announced[vkey] = len(self.leaves)
        members = {"purpose": purpose, "key": vkey, **({} if next_key is None else {"next": digest}), **body}
        return self.decision("key.announced", over.pop("by", OPERATOR), "key.announce", body, members, **over)

    def retire(self, purpose: str, key: Key, **over: Any) -> int:
        return self._end_key("key.retired", "retire", purpose, key, **over)

    def disown(self, purpose: str, key: Key, **over: Any) -> int:
        return self._end_key("key.compromised", "compromise", purpose, key, **over)

    def _end_key(self, name: str, verb: str, purpose: str, key: Key, **over: Any) -> int:
        vkey = key.vkey(key_name(purpose))
        body = {"statement": over.pop("statement", self.key_statement(f"{verb} {purpose} {vkey}"))}
        members = {"purpose": purpose, "key": vkey, "announcedSeq": self.announced.get(vkey, 0), **body}
        return self.decision(name, over.pop("by", OPERATOR), f"key.{verb}", body, members, **over)

    def witnessed(self, size: int | None = None, witnesses: Sequence[str] = ("w1", "w2"), log: Logs = LOG) -> int:
        count = len(self.leaves) if size is None else size
        note = self.checkpoint(count, witnesses, log).decode()
        return self.entry(
            "checkpoint.witnessed", "gateway", {"checkpoint": note, "size": count, "root": b64(self.root(count))}
        )

    # --- sessions ---

    def open_session(
        self, session: Key, *issuers: Key, change: Callable[[Json], None] | None = None, **said: Any
    ) -> int:
        """A session by a chain of issuers, outermost first; `said` is what the last statement says otherwise."""
        chain, at_ms, parent = [], said.pop("notBeforeMs", self.time_ms), None
        for number, issuer in enumerate(issuers):
            is_last = number == len(issuers) - 1
            rest = said if is_last else {"maxDepth": 1}
            one = statement(issuer, session if is_last else issuers[number + 1], at_ms, parent=parent, **rest)
            parent = hashlib.sha256(canonical(one)).hexdigest()
            chain.append(signed_statement(one, issuer))
        return self.open_with(session, chain, change=change)

    def open_with(self, session: Key, chain: list[Json], **over: Any) -> int:
        """A session by any chain of signed statements."""
        last = chain[-1]["statement"]
        principal = session.did if last["iss"] in self.operators else last["iss"]
        on_behalf_of = last["iss"] if principal == session.did else self.who(principal)[1]
        self.people[session.did] = (principal, on_behalf_of)
        self.sessions[session.did] = (len(self.leaves), last["expiresAtMs"])
        members = {
            "verbs": last["verbs"],
            "expiresAtMs": last["expiresAtMs"],
            "endsIfIdleAtMs": self.idle_at_ms(session.did),
            **({"scope": last["resources"]} if "resources" in last else {}),
        }
        return self.decision("session.opened", session, "session.open", {"delegations": chain}, members, **over)

    def beat(self, session: Key, **over: Any) -> int:
        body = {"activity": over.pop("activity")} if "activity" in over else {}
        members = {**body, "endsIfIdleAtMs": self.idle_at_ms(session.did)}
        return self.decision("session.seen", session, "session.beat", body, members, **over)

    def close(self, session: Key, by: Key | None = None, leases: int = 0, tickets: int = 0, **over: Any) -> int:
        """The close alone; what it gives back is `returned` and `waiting`."""
        body = {"session": session.did, **({"reason": over.pop("reason")} if "reason" in over else {})}
        members = {**body, "openedSeq": self.sessions[session.did][0], "leases": leases, "tickets": tickets}
        return self.decision("session.closed", by or session, "session.close", body, members, **over)

    def end_session(self, session: Key, reason: str, leases: int = 0, tickets: int = 0, **members: Any) -> int:
        """The gateway's own end of a session; leases that nobody gave back cost its principal trust."""
        said = {"session": session.did, "openedSeq": self.sessions[session.did][0], "reason": reason}
        if leases and reason != "revoked":
            members = {"trust": [self.moved(session, -5_000)], **members}
        return self.entry("session.ended", "gateway", {**said, "leases": leases, "tickets": tickets, **members})

    def returned(self, grant_seq: int, cause_seq: int, **over: Any) -> int:
        members = self.later(grant_seq, "resources", "leaseId", "fencingToken", "holder", "grantSeq")
        return self.entry("lease.returned", "gateway", {**members, "causeSeq": cause_seq, **over})

    # --- batches ---

    def batch(self, key: Key, *commands: Json, is_atomic: bool = False, is_bare: bool = False, **over: Any) -> int:
        """The header alone; each command is answered by the next `answer`, in order."""
        marks: Json = {"isBare": True} if is_bare else {}
        body = {"commands": list(commands), **({"isAtomic": True} if is_atomic else {}), **marks}
        members = {"count": len(commands), "isAtomic": is_atomic, **marks}
        return self.decision("batch.received", key, "batch.submit", body, members, **over)

    def answer(self, name: str, header: int, members: Json, change: Callable[[Json], None] | None = None) -> int:
        """The answer to the next command of the batch with this header."""
        actor = self.value(header)["actor"]
        place = {"batch": header, "index": len(self.leaves) - header - 1}
        return self.entry(name, actor, {**self.marked(actor, members), "request": place}, change)

    def set_scheme(self, name: str, scheme_class: str, *, is_folding: bool = False, **over: Any) -> int:
        body = {"name": name, "class": scheme_class, "isFolding": is_folding}
        rest = {"isUnicode": False, "lockDelayMs": 0, "maxHoldMs": 3_600_000, "unicodeVersion": "14.0.0"}
        body |= {member: over.pop(member) for member in rest if member in over}
        self.classes[name] = (scheme_class, is_folding)
        members = {**rest, **body}
        return self.decision("scheme.set", OPERATOR, "scheme.set", body, members, **over)

    def grant(self, key: Key, *resources: str, ttl_ms: int = 30_000, mode: str = "write", **over: Any) -> int:
        default = {"resources": list(resources), "ttlMs": ttl_ms, **({} if mode == "write" else {"mode": mode})}
        body = over.pop("body_members", default)
        members = self.new_lease(*resources, ttl_ms=ttl_ms, mode=mode)
        return self.decision("lease.granted", key, "lease.acquire", body, members, **over)

    def new_lease(self, *resources: str, ttl_ms: int = 30_000, mode: str = "write") -> Json:
        """The members of the lease that the next entry begins; takes the next token."""
        self.token = max(self.token + 1, self.time_ms * 1000)
        return self.lease(*resources, ttl_ms=ttl_ms, mode=mode)

    def lease(self, *resources: str, ttl_ms: int = 30_000, grant_seq: int | None = None, mode: str = "write") -> Json:
        names = sorted({name.split(":")[0] for name in resources})
        rows = [(name, *self.classes.get(name, ("exclusive", False))) for name in names]
        return {
            "resources": sorted(resources),
            "mode": mode,
            "schemes": [{"name": name, "class": kind, "isFolding": is_folding} for name, kind, is_folding in rows],
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

    def renewed(self, grant_seq: int, ttl_ms: int = 30_000) -> Json:
        """The members of a renewal."""
        names = ("resources", "mode", "schemes", "leaseId", "fencingToken", "holdUntilMs", "grantSeq", "grantedAtMs")
        return {**self.later(grant_seq, *names), "ttlMs": ttl_ms, "expiresAtMs": self.time_ms + ttl_ms}

    def renew(self, key: Key, grant_seq: int, ttl_ms: int = 30_000, **over: Any) -> int:
        members = self.renewed(grant_seq, ttl_ms)
        body = {"leaseId": members["leaseId"], "ttlMs": ttl_ms}
        return self.decision("lease.renewed", key, "lease.renew", body, members, **over)

    def change_mode(self, key: Key, grant_seq: int, mode: str, **over: Any) -> int:
        """A renewal in another mode: a new lease takes the place of the old one."""
        old = self.value(grant_seq)
        members = {
            **self.new_lease(*old["resources"], mode=mode),
            "holdUntilMs": old["holdUntilMs"],
            "fromLeaseId": old["leaseId"],
            "fromSeq": grant_seq,
        }
        body = {"leaseId": old["leaseId"], "mode": mode}
        return self.decision("lease.changed", key, "lease.renew", body, members, **over)

    def moved(self, key: Key, change: int) -> Json:
        """The row of `trust` that says how a principal's trust moves with the next entry."""
        did = self.who(key.did)[0]
        value, seq = self.trust.get(did, (50_000, -1))
        self.trust[did] = (value + change, len(self.leaves))
        previous = {} if seq < 0 else {"previousSeq": seq}
        return {"did": did, "change": change, "after": value + change, **previous}

    def released(self, key: Key, grant_seq: int, gain: int | None = None) -> Json:
        """The members of a release."""
        members = self.later(grant_seq, "resources", "leaseId", "fencingToken", "grantSeq", "grantedAtMs")
        earned = (500 if self.time_ms - members["grantedAtMs"] >= 1_000 else 0) if gain is None else gain
        return {**members, "trust": [self.moved(key, earned)]} if earned else members

    def release(self, key: Key, grant_seq: int, *, gain: int | None = None, **over: Any) -> int:
        """A release; `gain` is what trust it earns, by default the whole gain after a real hold."""
        members = self.released(key, grant_seq, gain)
        body = {"resources": members["resources"], "leaseId": members["leaseId"]}
        return self.decision("lease.released", key, "lease.release", body, members, **over)

    def expire(self, grant_seq: int, **over: Any) -> int:
        """An expiry; it costs the holder trust."""
        names = ("resources", "leaseId", "fencingToken", "holder", "grantSeq", "expiresAtMs")
        members = self.later(grant_seq, *names)
        holder = next(key for key in KEYS if key.did == members["holder"])
        return self.entry("lease.expired", "gateway", {**members, "trust": [self.moved(holder, -5_000)], **over})

    def refuse(self, key: Key, grant_seq: int, *resources: str, **over: Any) -> int:
        """A lease_held refusal that names the grant."""
        asked = {"resources": sorted(resources), "mode": "write", "ttlMs": 30_000, "wait": False}
        members = {**asked, **self.held_members(grant_seq, sorted(resources)[0])}
        return self.decision("lease.refused", key, "lease.acquire", {"resources": [*resources]}, members, **over)

    def held_members(self, grant_seq: int, resource: str) -> Json:
        """What a lease_held refusal says beside what was asked."""
        return {
            "error": "lease_held",
            "number": 408,
            "holder": self.value(grant_seq)["actor"],
            "conflict": self.conflict(grant_seq, resource),
            "conflicts": 1,
            "stampede": {"admitted": True, "waitMs": 25},
            "retryAfterMs": 25,
        }

    def conflict(self, grant_seq: int, resource: str, held_as: str | None = None) -> Json:
        names = ("leaseId", "fencingToken", "mode", "grantedAtMs", "expiresAtMs")
        return {**self.later(grant_seq, *names), "resource": resource, "heldAs": held_as or resource}

    # --- in line ---

    def queue(self, key: Key, *resources: str, position: int = 1, mode: str = "write", **over: Any) -> int:
        body = {"resources": list(resources), "wait": True, **({} if mode == "write" else {"mode": mode})}
        members = {
            "resources": sorted(resources),
            "mode": mode,
            "ttlMs": 30_000,
            "giveUpMs": 3_600_000,
            "ticketId": f"T{len(self.leaves)}",
            "pollByMs": self.time_ms + 30_000,
            "giveUpByMs": self.time_ms + 3_600_000,
            "position": position,
        }
        return self.decision("wait.queued", key, "lease.acquire", body, members, **over)

    def poll(self, key: Key, ticket: int, position: int = 1, **over: Any) -> int:
        body = {"ticketId": f"T{ticket}"}
        members = {**body, "ticketSeq": ticket, "pollByMs": self.time_ms + 30_000, "position": position}
        return self.decision("wait.polled", key, "wait.claim", body, members, **over)

    def offer(self, ticket: int, **over: Any) -> int:
        said = [leaf["pollByMs"] for leaf in map(json.loads, self.leaves) if leaf.get("ticketId") == f"T{ticket}"
                and "pollByMs" in leaf]  # fmt: skip
        claim_by_ms = max(self.time_ms + 10_000, said[-1])
        return self.waiting("wait.offered", ticket, claimByMs=claim_by_ms, **over)

    def waiting(self, name: str, ticket: int, **members: Any) -> int:
        """What the gateway says of a ticket: wait.offered, wait.reserved, wait.resumed, wait.removed."""
        about = {"ticketId": f"T{ticket}", "ticketSeq": ticket, "waiter": self.value(ticket)["actor"]}
        return self.entry(name, "gateway", {**about, **members})

    def claim(self, key: Key, ticket: int, **over: Any) -> int:
        asked, body = self.value(ticket), {"ticketId": f"T{ticket}"}
        lease = self.new_lease(*asked["resources"], ttl_ms=asked["ttlMs"], mode=asked["mode"])
        return self.decision("lease.claimed", key, "wait.claim", body, {**lease, **body, "ticketSeq": ticket}, **over)

    def cancel(self, key: Key, ticket: int, **over: Any) -> int:
        body = {"ticketId": f"T{ticket}"}
        return self.decision("wait.cancelled", key, "wait.cancel", body, {**body, "ticketSeq": ticket}, **over)

    # --- from hand to hand ---

    def hand_over(self, key: Key, grant_seq: int, to: Key, **over: Any) -> int:
        """The offer of a lease, by its holder or an operator."""
        lease = self.later(grant_seq, "leaseId", "fencingToken", "holder", "grantSeq")
        body = {
            "leaseId": lease["leaseId"],
            "seenToken": lease["fencingToken"],
            "toDid": to.did,
            "reason": "shift.ends",
        }
        members = {**body, "holder": lease["holder"], "grantSeq": grant_seq}
        return self.decision("transfer.offered", key, "lease.transfer", body, members, **over)

    def accept(self, key: Key, offer_seq: int, ttl_ms: int = 30_000, **over: Any) -> int:
        grant_seq = self.value(offer_seq)["grantSeq"]
        old = self.value(grant_seq)
        members = {
            **self.new_lease(*old["resources"], ttl_ms=ttl_ms, mode=old["mode"]),
            "holdUntilMs": old["holdUntilMs"],
            "fromLeaseId": old["leaseId"],
            "fromSeq": grant_seq,
            "giver": old["actor"],
            "offerSeq": offer_seq,
        }
        body = {"leaseId": old["leaseId"], "ttlMs": ttl_ms}
        return self.decision("lease.transferred", key, "lease.accept", body, members, **over)

    def broken(self, grant_seq: int, resource: str | None = None, by: Key = OPERATOR, **over: Any) -> int:
        names = ("resources", "leaseId", "fencingToken", "holder", "grantSeq", "grantedAtMs")
        lease = self.later(grant_seq, *names)
        named = resource or lease["resources"][0]
        body = {
            "resource": named,
            "seenToken": lease["fencingToken"],
            "reason": "holder.gone",
            "reasonDigest": "5a" * 32,
        }
        return self.decision("lease.broken", by, "lease.break", body, {**body, **lease}, **over)

    # --- refusals that nothing explains ---

    def refused(self, name: str, key: Key, action: str, body: Json, error: str, number: int, **members: Any) -> int:
        """Any refusal that repeats its body; `members` are added, in place of a default too."""
        said = {**body, "error": error, "number": number, **members}
        return self.decision(name, key, action, body, {n: value for n, value in said.items() if value is not None})

    # --- what leaves the house ---

    def checkpoint(self, size: int | None = None, witnesses: Sequence[str] = (), log: Logs = LOG) -> bytes:
        count = len(self.leaves) if size is None else size
        text = f"{ORIGIN}\n{count}\n{b64(self.root(count))}\n"
        logs = (log,) if isinstance(log, Key) else log
        lines = [key.note_line(ORIGIN, text) for key in logs]
        lines += [WITNESSES[name].cosignature(name, text) for name in witnesses]
        return f"{text}\n{''.join(lines)}".encode()

    def consistency(self, old: int, size: int | None = None, witnesses: Sequence[str] = (), log: Logs = LOG) -> bytes:
        """The file that proves that the tree of size `old` is the beginning of the later one."""
        rows = "".join(b64(part) + "\n" for part in consistency_path(old, self.hashes[:size]))
        return f"old {old}\n{rows}\n".encode() + self.checkpoint(size, witnesses, log)

    def proof(self, seq: int, size: int | None = None, witnesses: Sequence[str] = (), log: Logs = LOG) -> str:
        path = "".join(b64(part) + "\n" for part in tree_path(seq, self.hashes[:size]))
        return f"c2sp.org/tlog-proof@v1\nindex {seq}\n{path}\n{self.checkpoint(size, witnesses, log).decode()}"

    def envelope(
        self, seq: int, size: int | None = None, witnesses: Sequence[str] = (), log: Logs = LOG, key: Key = RECEIPT
    ) -> Json:
        whole = envelope(self.leaves[seq], self.proof(seq, size, witnesses, log), key)
        header = self.value(seq).get("request", {}).get("batch")
        return whole if header is None else {**whole, "batch": self.batch_part(header, size)}

    def batch_part(self, header: int, size: int | None = None) -> Json:
        """Member `batch` of the receipt of a command."""
        path = [b64(part) for part in tree_path(header, self.hashes[:size])]
        return {"leaf": b64(self.leaves[header]), "path": path}

    def receipt(
        self, seq: int, size: int | None = None, witnesses: Sequence[str] = (), log: Logs = LOG, key: Key = RECEIPT
    ) -> bytes:
        return canonical(self.envelope(seq, size, witnesses, log, key))

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


def key_name(purpose: str) -> str:
    """Under what name a key of the ledger signs."""
    return ORIGIN if purpose == "log" else f"{ORIGIN}/{purpose}"


def key_line(purpose: str, key: Key, rest: str = "0 - active") -> str:
    """A line of the key document."""
    return f"key {purpose} {key.vkey(key_name(purpose))} {rest}"


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


def busy() -> Ledger:
    """A day with readers, a queue, a break, a transfer and a change of mode: every entry type that `worked` lacks."""
    ledger = opened()
    ledger.add(CAROL)  # 5
    ledger.set_scheme("doc", "read-safe", is_folding=True)  # 6
    ledger.time_ms += 100
    reader = ledger.grant(ALICE, "doc:Plan/**", mode="read")  # 7
    ledger.grant(BOB, "doc:plan/a", mode="read")  # 8
    held = ledger.grant(ALICE, "repo:a", "repo:b")  # 9
    ticket = ledger.queue(BOB, "repo:a")  # 10
    behind = ledger.queue(CAROL, "repo:a", position=2)  # 11
    ahead: Json = {"ticketId": f"T{ticket}", "actor": BOB.did, "resource": "repo:a", "mode": "write"}
    ahead["queuedAtMs"] = ledger.time_ms
    ledger.time_ms += 5_000
    ledger.poll(BOB, ticket)  # 12
    ledger.broken(held)  # 13
    ledger.offer(ticket)  # 14
    asked = {"resources": ["repo:a"], "mode": "write", "ttlMs": 30_000, "wait": False}
    wait = {"stampede": {"admitted": True, "waitMs": 25}, "retryAfterMs": 25}
    ledger.refused(
        "lease.refused", ALICE, "lease.acquire", {"resources": ["repo:a"]}, "queued", 501, **asked, ahead=ahead, **wait
    )  # 15
    claimed = ledger.claim(BOB, ticket)  # 16
    ledger.cancel(CAROL, behind)  # 17
    offered = ledger.hand_over(BOB, claimed, CAROL)  # 18
    ledger.accept(CAROL, offered)  # 19
    ledger.time_ms += 1_000
    ledger.release(BOB, 8)  # 20
    ledger.change_mode(ALICE, reader, "write")  # 21
    return ledger


LIVE, TRIAL, BEARER = "1a" * 32, "2b" * 32, "3c" * 32  # digests of API keys
TRIAL_AGENT, CUSTODIAL = Key(35), Key(36)


def staffed() -> Ledger:
    """A day with operators, API keys, sessions that end in every way, and batches: the entry types of storeys above."""
    ledger = opened()
    ledger.add_operator(DEPUTY)  # 5
    ledger.issue(LIVE)  # 6
    ledger.enrol(CAROL, LIVE)  # 7
    ledger.issue(TRIAL, "trial", by=DEPUTY)  # 8
    ledger.enrol(TRIAL_AGENT, TRIAL)  # 9
    ledger.add(CUSTODIAL, is_custodial=True)  # 10
    ledger.issue(BEARER, agent=CUSTODIAL)  # 11
    ledger.grant(CUSTODIAL, "lock:custodial", ttl_ms=3_600_000)  # 12
    ledger.time_ms += 100
    ledger.open_session(SESSION, OPERATOR, ALICE, resources=["repo:**"])  # 13
    held = ledger.grant(SESSION, "repo:a", ttl_ms=600_000)  # 14
    ledger.time_ms += 1_000
    ledger.beat(SESSION, activity="building")  # 15
    ask: Json = {"action": "lease.acquire", "resource": "repo:b"}
    header = ledger.batch(SESSION, ask, {"action": "lease.renew", "leaseId": f"L{held}", "ttlMs": 599_000},
                          {"action": "lease.release", "resource": "repo:b"}, ask)  # 16  # fmt: skip
    first = ledger.answer("lease.granted", header, ledger.new_lease("repo:b"))  # 17
    ledger.answer("lease.renewed", header, ledger.renewed(held, 599_000))  # 18
    ledger.answer("lease.released", header, ledger.released(SESSION, first))  # 19
    second = ledger.answer("lease.granted", header, ledger.new_lease("repo:b"))  # 20
    ask_free: Json = {"action": "lease.acquire", "resource": "lock:free"}
    refused = {
        "count": 2,
        "isAtomic": True,
        "index": 1,
        "action": "lease.acquire",
        **ledger.held_members(held, "repo:a"),
    }
    body = {"commands": [ask_free, {**ask, "resource": "repo:a"}], "isAtomic": True}
    ledger.decision("batch.refused", BOB, "batch.submit", body, refused)  # 21
    header = ledger.batch(CAROL, ask_free, {**ask, "resource": "repo:a"}, is_bare=True)  # 22
    ledger.answer("lease.granted", header, ledger.new_lease("lock:free"))  # 23
    asked = {"resources": ["repo:a"], "mode": "write", "ttlMs": 30_000, "wait": False}
    ledger.answer("lease.refused", header, {**asked, **ledger.held_members(held, "repo:a")})  # 24
    closed = ledger.close(SESSION, leases=2, reason="done")  # 25
    ledger.returned(held, closed)  # 26
    ledger.returned(second, closed)  # 27
    members = {"session": SESSION.did, "endedSeq": closed}
    ledger.decision("closing.repeated", ALICE, "session.close", {"session": SESSION.did}, members)  # 28
    ledger.time_ms += 10
    ledger.open_session(OTHER_SESSION, OPERATOR)  # 29
    idle = ledger.grant(OTHER_SESSION, "repo:a", ttl_ms=600_000)  # 30
    free = ledger.value(23)["expiresAtMs"]
    ledger.time_ms = free
    ledger.expire(23)  # 31
    ledger.time_ms = ledger.value(30)["endsIfIdleAtMs"]
    ended = ledger.end_session(OTHER_SESSION, "idle", leases=1)  # 32
    ledger.returned(idle, ended)  # 33
    ledger.open_session(HELPER, BOB)  # 34
    ours = ledger.grant(BOB, "repo:a")  # 35
    ticket = ledger.queue(HELPER, "repo:a")  # 36
    theirs = ledger.grant(HELPER, "repo:b")  # 37
    removed = ledger.remove(BOB)  # 38
    ended = ledger.end_session(HELPER, "revoked", leases=1, tickets=1, causeSeq=removed)  # 39
    ledger.waiting("wait.removed", ticket, reason="holder_gone")  # 40
    ledger.returned(ours, removed)  # 41
    ledger.returned(theirs, ended)  # 42
    ledger.revoke(LIVE)  # 43
    ledger.remove_operator(DEPUTY)  # 44
    return ledger


def keyed() -> Ledger:
    """A day on which both keys of the ledger are replaced: the log key is retired, the receipt key disowned."""
    ledger = opened()
    ledger.grant(ALICE, "lock:a")  # 5
    ledger.time_ms += 1_000
    ledger.announce("log", NEW_LOG)  # 6
    ledger.witnessed(log=(LOG, NEW_LOG))  # 7
    ledger.retire("log", LOG)  # 8
    ledger.announce("receipt", NEW_RECEIPT, next_key=STRANGER)  # 9
    ledger.disown("receipt", RECEIPT)  # 10
    ledger.grant(BOB, "lock:b")  # 11
    return ledger


def keyed_lines() -> list[str]:
    """The lines of the key document at the end of that day."""
    return [
        key_line("log", LOG, "0 8 retired"),
        key_line("log", NEW_LOG, "7 - active"),
        key_line("receipt", RECEIPT, "0 10 compromised"),
        key_line("receipt", NEW_RECEIPT, "10 - active"),
    ]
