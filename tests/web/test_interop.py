"""A foreign implementation of RFC 9421 and ours agree, both ways, and both refuse what was changed.

The foreign one is the PyPI package http-message-signatures: what it signs we accept, what we sign it accepts.
"""

import random
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, algorithms
from http_message_signatures.exceptions import HTTPMessageSignaturesException
from http_message_signatures.resolvers import HTTPSignatureKeyResolver

from gateway.client.signing import BODY_ORDER
from keys.signing import SigningKey
from tests.web.world import AUTHORITY, ORIGIN, Message, World
from verifier.did import decode_did
from verifier.entries import ACTION_PATHS
from verifier.request import content_digest
from verifier.wire import encode_canonical

PATH = ACTION_PATHS["lease.acquire"]


class Keys(HTTPSignatureKeyResolver):
    """Private keys that the test made, public keys out of the DID."""

    def __init__(self, seeds: Mapping[str, bytes]) -> None:
        self.seeds = seeds

    def resolve_private_key(self, key_id: str) -> Any:
        return Ed25519PrivateKey.from_private_bytes(self.seeds[key_id])

    def resolve_public_key(self, key_id: str) -> Any:
        return Ed25519PublicKey.from_public_bytes(decode_did(key_id))


class Foreign:
    """A request in the shape that the foreign library expects of HTTP clients."""

    def __init__(self, method: str, url: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.url, self.headers, self.body = method, url, headers, body


def signed_by_the_foreign_library(world: World, seed: bytes, order: list[str]) -> Message:
    did = SigningKey(seed).did
    body = encode_canonical({"ledger": ORIGIN, "actorDid": did, "resource": f"lock:{secrets.token_hex(4)}"})
    headers = {
        "content-type": "application/json",
        "idempotency-key": f'"{secrets.token_hex(8)}"', "tallystick-anchor": world.newcomers_anchor,
    }  # fmt: skip
    request = Foreign("POST", f"https://{AUTHORITY}{PATH}", headers, body)
    signer = HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=Keys({did: seed}))
    now = datetime.fromtimestamp(int(time.time()), UTC)
    signer.sign(
        request, key_id=did, created=now, expires=now + timedelta(seconds=30), nonce=secrets.token_urlsafe(18),
        tag="tallystick-v1", label="other", include_alg=True, covered_component_ids=order,
        body=body,
    )  # fmt: skip
    fields = [(name.lower(), value) for name, value in request.headers.items()]
    return Message("POST", PATH, (("host", AUTHORITY), *fields), body)


async def test_what_the_foreign_library_signs_in_any_order_is_accepted(dev: World) -> None:
    shuffle = random.Random(1)
    for number in range(40):
        order = list(BODY_ORDER)
        shuffle.shuffle(order)
        seed = number.to_bytes(32, "big")
        reply = await dev.send(signed_by_the_foreign_library(dev, seed, order))
        assert reply.status == 200, reply.body


@pytest.mark.parametrize("field", ["content-digest", "idempotency-key", "tallystick-anchor", "signature", "host"])
async def test_what_the_foreign_library_signed_is_refused_when_a_field_is_exchanged(dev: World, field: str) -> None:
    one = signed_by_the_foreign_library(dev, b"\x01" * 32, list(BODY_ORDER))
    other = {
        "content-digest": content_digest(b"{}"), "idempotency-key": '"other"', "host": "other.example",
        "tallystick-anchor": f"{ORIGIN} 2 {'A' * 43}=",
        "signature": signed_by_the_foreign_library(dev, b"\x02" * 32, list(BODY_ORDER)).field("signature"),
    }  # fmt: skip
    reply = await dev.send(one.having(field, other[field]))
    assert reply.status in (400, 401), reply.body
    assert (await dev.send(one)).status == 200


def verify_with_the_foreign_library(message: Message) -> None:
    """Raise unless the foreign library accepts the message."""
    headers = dict(message.fields)
    headers.pop("host")
    request = Foreign(message.method, f"https://{AUTHORITY}{message.target}", headers, message.body)
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=Keys({}))
    results = verifier.verify(request, max_age=timedelta(seconds=300), expect_tag="tallystick-v1")
    assert set(results[0].covered_components) >= {f'"{name}"' for name in BODY_ORDER}


def ours(world: World) -> Message:
    return world.signed(SigningKey.generate(), "lease.acquire", resource="lock:x")


async def test_what_we_sign_the_foreign_library_accepts(dev: World) -> None:
    verify_with_the_foreign_library(ours(dev))


@pytest.mark.parametrize("field", ["idempotency-key", "tallystick-anchor", "content-type", "signature"])
async def test_what_we_signed_and_somebody_changed_the_foreign_library_refuses(dev: World, field: str) -> None:
    message = ours(dev).having(field, ours(dev).field("signature") if field == "signature" else "changed")
    with pytest.raises(HTTPMessageSignaturesException):
        verify_with_the_foreign_library(message)
