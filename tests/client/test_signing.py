"""What the client signs is what the door, an auditor and a foreign library read."""

from __future__ import annotations

import base64
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.client.signing import BODY_ORDER, READ_ORDER, Draft, new_idempotency_key, new_nonce, sign_request
from gateway.core.intake import RawRequest, Rejection, intake, intake_read
from tests.client.world import ACQUIRE, ALICE, AUTHORITY, FILE, ORIGIN
from verifier.request import (
    BODY_COMPONENTS,
    READ_COMPONENTS,
    parse_idempotency_key,
    parse_signature,
    parse_signature_input,
)
from verifier.sig import is_valid
from verifier.wire import Malformed, encode_base64, encode_canonical

ANCHOR = f"{ORIGIN} 1 {encode_base64(bytes(32))}"
BODY = encode_canonical({"ledger": ORIGIN, "actorDid": ALICE.did, "resource": FILE, "ttlMs": 30_000})
NONCE = "n" * 24


def draft(**changes: object) -> Draft:
    members: dict[str, object] = {
        "method": "POST", "authority": AUTHORITY, "path": ACQUIRE, "query": "", "anchor": ANCHOR, "body": BODY,
        "idempotency_key": "key-1",
    }  # fmt: skip
    return Draft(**{**members, **changes})  # type: ignore[arg-type]  # a test's table of members


def signed(request: Draft) -> dict[str, str]:
    return sign_request(request, ALICE, created_s=1_796_000_000, nonce=NONCE)


def test_a_signed_request_is_byte_for_byte_the_profile() -> None:
    headers = signed(draft())
    digest = base64.b64encode(sha256(BODY).digest()).decode()
    parameters = (
        '("@method" "@authority" "@path" "@query"'
        ' "content-type" "content-digest" "idempotency-key" "tallystick-anchor")'
        f';created=1796000000;expires=1796000015;keyid="{ALICE.did}";alg="ed25519";nonce="{NONCE}";tag="tallystick-v1"'
    )
    base = (
        f'"@method": POST\n"@authority": {AUTHORITY}\n"@path": {ACQUIRE}\n"@query": ?\n'
        f'"content-type": application/json\n"content-digest": sha-256=:{digest}:\n"idempotency-key": "key-1"\n'
        f'"tallystick-anchor": {ANCHOR}\n"@signature-params": {parameters}'
    ).encode()
    signature = base64.b64encode(ALICE.sign(base)).decode()
    assert headers == {
        "host": AUTHORITY, "content-type": "application/json", "content-digest": f"sha-256=:{digest}:",
        "idempotency-key": '"key-1"', "tallystick-anchor": ANCHOR, "signature-input": f"sig={parameters}",
        "signature": f"sig=:{signature}:",
    }  # fmt: skip


def test_the_components_are_exactly_those_of_the_profile() -> None:
    assert set(BODY_ORDER) == BODY_COMPONENTS
    assert set(READ_ORDER) == READ_COMPONENTS
    assert len(BODY_ORDER) == len(BODY_COMPONENTS)
    assert len(READ_ORDER) == len(READ_COMPONENTS)


def raw(headers: dict[str, str], request: Draft) -> RawRequest:
    return RawRequest(
        request.method,
        request.authority,
        request.path,
        f"?{request.query}",
        tuple(headers.items()),
        request.body or b"",
    )


def test_the_door_accepts_a_signed_request() -> None:
    request = draft()
    accepted = intake(
        raw(signed(request), request), origin=ORIGIN, authorities=frozenset({AUTHORITY}), action="lease.acquire"
    )
    assert (accepted.keyid, accepted.idempotency_key, accepted.nonce) == (ALICE.did, "key-1", NONCE)
    assert accepted.body_text == BODY.decode()


def test_the_door_accepts_a_signed_read() -> None:
    request = draft(
        method="GET", path="/api/v1/acp/coordination/leases", query="holder=me", body=None, idempotency_key=None
    )
    headers = signed(request)
    assert "content-digest" not in headers
    accepted = intake_read(raw(headers, request), origin=ORIGIN, authorities=frozenset({AUTHORITY}))
    assert accepted.keyid == ALICE.did


def test_the_door_refuses_what_was_changed_after_signing() -> None:
    request = draft()
    for name, value in [("tallystick-anchor", ANCHOR.replace(" 1 ", " 2 ")), ("idempotency-key", '"key-2"')]:
        headers = {**signed(request), name: value}
        with pytest.raises(Rejection, match="signature_invalid"):
            intake(raw(headers, request), origin=ORIGIN, authorities=frozenset({AUTHORITY}), action="lease.acquire")


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/a b"},
        {"path": "/a//b"},
        {"path": "/%41"},
        {"query": "a=#"},
        {"authority": "Host"},
        {"anchor": "x\ny"},
    ],
)
def test_what_the_profile_can_not_carry_is_never_signed_into_something_else(change: dict[str, str]) -> None:
    """A draft outside the grammar is refused here or by the door, never silently rewritten."""
    request = draft(**change)
    with pytest.raises((Malformed, Rejection)):
        headers = signed(request)
        intake(raw(headers, request), origin=ORIGIN, authorities=frozenset({AUTHORITY}), action="lease.acquire")


def test_a_body_without_a_key_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="idempotency key"):
        signed(draft(idempotency_key=None))


def test_nonces_and_keys_are_fresh_long_and_of_the_grammar() -> None:
    nonces = {new_nonce() for _ in range(100)}
    keys = {new_idempotency_key() for _ in range(100)}
    assert len(nonces) == len(keys) == 100
    assert {len(nonce) for nonce in nonces} == {24}
    assert all(parse_idempotency_key(f'"{key}"') == key for key in keys)


@given(st.binary(max_size=2_000), st.integers(0, 2**33), st.integers(1, 300))
def test_every_signature_verifies_over_the_base_that_rfc_9421_describes(body: bytes, created: int, life: int) -> None:
    request = draft(body=body)
    headers = sign_request(request, ALICE, created_s=created, nonce=NONCE, life_s=life)
    found = parse_signature_input(headers["signature-input"])
    assert (found.created, found.expires, found.keyid, found.nonce) == (created, created + life, ALICE.did, NONCE)
    values = {"@method": "POST", "@authority": AUTHORITY, "@path": ACQUIRE, "@query": "?", **headers}
    lines = [f'"{name}": {values[name]}' for name in found.components]
    base = "\n".join([*lines, f'"@signature-params": {found.params}']).encode()
    assert is_valid(ALICE.public_key, base, parse_signature(headers["signature"], "sig"))
