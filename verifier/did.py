"""The name of an Ed25519 key: did:key for agents and operators, RFC 7638 thumbprint for service keys.

A did:key *is* its key, so two spellings of one DID would be two actors with one key: decode, encode, compare.
Source: docs/protocol.md 15.3 (names of signers); W3C-CCG did:key; RFC 7638 and RFC 8037 for the thumbprint.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache

from verifier.sig import is_strict_key
from verifier.wire import Malformed

DID_CHARACTERS = 56  # every Ed25519 did:key has this length and prefix
DID_PREFIX = "did:key:z6Mk"
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"  # base58btc: no 0, O, I, l


def encode_did(public_key: bytes) -> str:
    """Return the did:key of a 32-byte Ed25519 key."""
    number = int.from_bytes(b"\xed\x01" + public_key, "big")  # multicodec ed25519-pub
    characters = ""
    while number:
        number, digit = divmod(number, 58)
        characters = _ALPHABET[digit] + characters
    return f"did:key:z{characters}"


@lru_cache(maxsize=16_384)
def decode_did(did: str) -> bytes:
    """Return the 32-byte key that `did` names. Malformed: not an Ed25519 did:key, or a key that is not strict."""
    if len(did) != DID_CHARACTERS or not did.startswith(DID_PREFIX):
        raise Malformed(f"a DID has {DID_CHARACTERS} characters and begins with {DID_PREFIX}")
    number = 0
    for character in did[len("did:key:z") :]:
        number = number * 58 + _ALPHABET.find(character)
    public_key = (number % 2**256).to_bytes(32, "big")
    if encode_did(public_key) != did:  # settles foreign characters and the multicodec as well
        raise Malformed("a DID is not the canonical did:key of an Ed25519 key")
    if not is_strict_key(public_key):
        raise Malformed("a DID names a weak Ed25519 key (small order, non-canonical, or outside the prime subgroup)")
    return public_key


@lru_cache(maxsize=1_024)
def thumbprint(public_key: bytes) -> str:
    """Return the RFC 7638 thumbprint of the key as an OKP JWK: 43 characters, base64url without padding."""
    jwk = b'{"crv":"Ed25519","kty":"OKP","x":"%s"}' % base64.urlsafe_b64encode(public_key).rstrip(b"=")
    return base64.urlsafe_b64encode(hashlib.sha256(jwk).digest()).rstrip(b"=").decode("ascii")
