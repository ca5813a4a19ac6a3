"""Signs requests by the profile `tallystick-v1` of RFC 9421.

Pure: time, nonce and key come in, headers go out. The signature base is not built here: the header that was just made
is read back by the verifier's own parser and its base is what gets signed, so a request this file signs is one that
the door and any auditor read the same way.
Source: docs/protocol.md, chapter on signed requests.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from keys.signing import SigningKey
from verifier.request import content_digest, parse_signature_input, signature_base
from verifier.wire import encode_base64

TAG = "tallystick-v1"
LABEL = "sig"
CONTENT_TYPE = "application/json"
# Lease calls live 15 s: long enough for one slow answer, short enough that a captured one is soon worthless. A retry
# is signed anew, so nothing is won by more.
LIFE_S = 15
NONCE_BYTES = 18  # 144 bits, 24 characters; the profile asks for at least 128 bits

READ_ORDER = ("@method", "@authority", "@path", "@query", "tallystick-anchor")
BODY_ORDER = (*READ_ORDER[:4], "content-type", "content-digest", "idempotency-key", READ_ORDER[4])


@dataclass(frozen=True, slots=True)
class Draft:
    """A request before it is signed; `query` is without "?", `body` and `idempotency_key` come together."""

    method: str
    authority: str
    path: str
    query: str
    anchor: str
    body: bytes | None = None
    idempotency_key: str | None = None
    content_type: str = CONTENT_TYPE  # the gateway takes no other; a guarded service may


def new_nonce() -> str:
    """Return a fresh nonce; one per signature, also for a retry."""
    return secrets.token_urlsafe(NONCE_BYTES)


def new_idempotency_key() -> str:
    """Return a fresh key; one per intention, the same for every retry of it."""
    return secrets.token_urlsafe(NONCE_BYTES)


def sign_request(draft: Draft, key: SigningKey, *, created_s: int, nonce: str, life_s: int = LIFE_S) -> dict[str, str]:
    """Return the headers that make `draft` a signed request, lower-case names, `host` among them.

    `created_s` is Unix seconds; the signature expires `life_s` later (at most 300). A draft outside the profile's
    grammar (a path with "%", say) raises verifier.wire.Malformed rather than being signed.
    """
    fields = _fields(draft)
    order = READ_ORDER if draft.body is None else BODY_ORDER
    signature_input = f"{LABEL}={_parameters(order, key.did, created_s, created_s + life_s, nonce)}"
    base = signature_base(parse_signature_input(signature_input), _component_values(draft, fields))
    return {
        "host": draft.authority,
        **fields,
        "signature-input": signature_input,
        "signature": f"{LABEL}=:{encode_base64(key.sign(base))}:",
    }


def _fields(draft: Draft) -> dict[str, str]:
    if draft.body is None:
        return {"tallystick-anchor": draft.anchor}
    assert draft.idempotency_key is not None, "a request with a body has an idempotency key"
    return {
        "content-type": draft.content_type,
        "content-digest": content_digest(draft.body),
        "idempotency-key": f'"{draft.idempotency_key}"',
        "tallystick-anchor": draft.anchor,
    }


def _component_values(draft: Draft, fields: Mapping[str, str]) -> dict[str, str]:
    derived = {
        "@method": draft.method,
        "@authority": draft.authority,
        "@path": draft.path,
        "@query": f"?{draft.query}",
    }
    return {**derived, **fields}


def _parameters(order: tuple[str, ...], did: str, created_s: int, expires_s: int, nonce: str) -> str:
    components = " ".join(f'"{name}"' for name in order)
    return (
        f"({components});created={created_s};expires={expires_s}"
        f';keyid="{did}";alg="ed25519";nonce="{nonce}";tag="{TAG}"'
    )
