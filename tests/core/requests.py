"""Signed requests for tests: deterministic keys, every field open to change, the signature base built by hand.

The base is written out here and not taken from the verifier, so that a mistake in one is not repeated in the other.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.core.intake import RawRequest, SignedRequest, intake
from keys.signing import SigningKey

ORIGIN = "gateway.example/main"
AUTHORITY = "gateway.example"
AUTHORITIES = frozenset({AUTHORITY, "127.0.0.1:8443"})
GENESIS_ROOT = hashlib.sha256(b"genesis").digest()
NOW_S = 1_780_000_000
NOW_MS = NOW_S * 1_000
PATHS = {
    "lease.acquire": "/api/v1/acp/coordination/lease",
    "lease.renew": "/api/v1/acp/coordination/renew",
    "lease.release": "/api/v1/acp/coordination/release",
    "lease.transfer": "/api/v1/acp/coordination/transfer",
    "lease.accept": "/api/v1/acp/coordination/accept",
    "lease.break": "/api/v1/acp/coordination/break",
    "wait.claim": "/api/v1/acp/coordination/wait/claim",
    "wait.cancel": "/api/v1/acp/coordination/wait/cancel",
    "scheme.set": "/api/v1/acp/schemes",
    "agent.add": "/api/v1/acp/agents",
    "agent.remove": "/api/v1/acp/agents/remove",
}
COMPONENTS = (
    "@method", "@authority", "@path", "@query", "content-type", "content-digest", "idempotency-key",
    "tallystick-anchor",
)  # fmt: skip
READ_COMPONENTS = ("@method", "@authority", "@path", "@query", "tallystick-anchor")
PARAMS = ("created", "expires", "keyid", "alg", "nonce", "tag")

_count = itertools.count()


def key_of(name: str) -> SigningKey:
    """Return the same key for the same name, always."""
    return SigningKey(hashlib.sha256(name.encode()).digest())


def did_of(name: str) -> str:
    return key_of(name).did


def anchor_text(origin: str = ORIGIN, size: int = 1, root: bytes = GENESIS_ROOT) -> str:
    return f"{origin} {size} {base64.b64encode(root).decode()}"


def digest_of(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def _fresh(prefix: str) -> str:
    return f"{prefix}{next(_count):030d}"


@dataclass(frozen=True)
class Ask:
    """A request before it is signed. Change a field with `but`; change headers *after* signing with `raw(...)`."""

    action: str
    key: SigningKey
    body: bytes
    path: str
    method: str = "POST"
    authority: str = AUTHORITY
    query: str = "?"
    content_type: str = "application/json"
    idempotency_key: str = ""
    anchor: str = field(default_factory=anchor_text)
    created: int = NOW_S
    expires: int = NOW_S + 60
    nonce: str = ""
    keyid: str = ""
    label: str = "sig"
    alg: str = "ed25519"
    tag: str = "tallystick-v1"
    components: tuple[str, ...] = COMPONENTS
    params: tuple[str, ...] = PARAMS

    def but(self, **changes: Any) -> Ask:
        return replace(self, **changes)

    def again(self) -> Ask:
        """The same intention signed anew: same idempotency key, fresh nonce."""
        return replace(self, nonce=_fresh("n"))

    def members(self) -> dict[str, Any]:
        decoded = json.loads(self.body)
        assert isinstance(decoded, dict)
        return decoded

    def values(self) -> dict[str, str]:
        return {
            "@method": self.method,
            "@authority": self.authority,
            "@path": self.path,
            "@query": self.query,
            "content-type": self.content_type,
            "content-digest": digest_of(self.body),
            "idempotency-key": f'"{self.idempotency_key}"',
            "tallystick-anchor": self.anchor,
        }

    def signature_params(self) -> str:
        texts = {
            "created": str(self.created),
            "expires": str(self.expires),
            "keyid": f'"{self.keyid or self.key.did}"',
            "alg": f'"{self.alg}"',
            "nonce": f'"{self.nonce}"',
            "tag": f'"{self.tag}"',
        }
        covered = " ".join(f'"{name}"' for name in self.components)
        return f"({covered})" + "".join(f";{name}={texts[name]}" for name in self.params)

    def base(self) -> bytes:
        values = self.values()
        lines = [f'"{name}": {values[name]}' for name in self.components]
        return "\n".join([*lines, f'"@signature-params": {self.signature_params()}']).encode()

    def headers(self) -> dict[str, str]:
        values = self.values()
        signature = base64.b64encode(self.key.sign(self.base())).decode()
        fields = {name: values[name] for name in values if name[0] != "@" and name in self.components}
        return {
            "host": self.authority,
            **fields,
            "signature-input": f"{self.label}={self.signature_params()}",
            "signature": f"{self.label}=:{signature}:",
        }

    def raw(self, change: Callable[[dict[str, str]], Any] | None = None, **parts: Any) -> RawRequest:
        """Return the wire request; `change` edits its headers and `parts` replace its fields, both after signing."""
        headers = self.headers()
        if change is not None:
            change(headers)
        raw = RawRequest(self.method, self.authority, self.path, self.query, tuple(headers.items()), self.body)
        return raw._replace(**parts)

    def signed(self) -> SignedRequest:
        """Return what the door makes of it."""
        return intake(self.raw(), origin=ORIGIN, authorities=AUTHORITIES, action=self.action)


def ask(action: str, name: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    """Return a request by the key of `name`, created in the second of `at_ms`; `members` go into its body."""
    key = key_of(name)
    body = json.dumps({"ledger": ORIGIN, "actorDid": key.did, **members}).encode()
    created = at_ms // 1_000
    return Ask(
        action, key, body, PATHS[action],
        idempotency_key=_fresh("k"), nonce=_fresh("n"), created=created, expires=created + 60,
    )  # fmt: skip


def acquire(name: str, /, *resources: str, at_ms: int = NOW_MS, **members: Any) -> Ask:
    named: dict[str, Any] = {"resource": resources[0]} if len(resources) == 1 else {"resources": list(resources)}
    return ask("lease.acquire", name, at_ms, **named, **members)


def renew(name: str, lease_id: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("lease.renew", name, at_ms, leaseId=lease_id, **members)


def release(name: str, /, *resources: str, at_ms: int = NOW_MS, **members: Any) -> Ask:
    named: dict[str, Any] = {"resource": resources[0]} if len(resources) == 1 else {"resources": list(resources)}
    return ask("lease.release", name, at_ms, **named, **members)


def transfer(name: str, lease_id: str, token: int, to: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    named = {"leaseId": lease_id, "seenToken": token, "toDid": did_of(to), "reason": "shift-over", **members}
    return ask("lease.transfer", name, at_ms, **named)


def accept(name: str, lease_id: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("lease.accept", name, at_ms, leaseId=lease_id, **members)


def break_(name: str, resource: str, token: int, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("lease.break", name, at_ms, resource=resource, seenToken=token, **({"reason": "stuck"} | members))


def claim(name: str, ticket_id: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("wait.claim", name, at_ms, ticketId=ticket_id, **members)


def cancel(name: str, ticket_id: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("wait.cancel", name, at_ms, ticketId=ticket_id, **members)


def set_scheme(name: str, scheme: str, class_name: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("scheme.set", name, at_ms, **{"name": scheme, "class": class_name, **members})


def add(name: str, agent: str, /, at_ms: int = NOW_MS, **members: Any) -> Ask:
    return ask("agent.add", name, at_ms, agent=did_of(agent), **members)


def remove(name: str, agent: str, at_ms: int = NOW_MS) -> Ask:
    return ask("agent.remove", name, at_ms, agent=did_of(agent))


def read(name: str, path: str, /, at_ms: int = NOW_MS, **changes: Any) -> Ask:
    """Return a signed GET."""
    created = at_ms // 1_000
    plain = Ask(
        "", key_of(name), b"", path, method="GET",
        nonce=_fresh("n"), created=created, expires=created + 15, components=READ_COMPONENTS,
    )  # fmt: skip
    return plain.but(**changes)
