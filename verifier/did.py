"""The name of an Ed25519 key: did:key for agents and operators, RFC 7638 thumbprint for service keys.

A did:key *is* its key, so two spellings of one DID would be two actors with one key: decode, encode, compare.
Source: docs/protocol.md 4 (identifiers); W3C-CCG did:key; RFC 7638 and RFC 8037 for the thumbprint.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache

from verifier.sig import is_strict_key
from verifier.wire import Malformed

DID_CHARACTERS = 56  # every Ed25519 did:key has this length and prefix
DID_PREFIX = "did:key:z6Mk"
_MULTICODEC_ED25519 = b"\xed\x01"
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"  # base58btc: no 0, O, I, l
_DIGITS = {character: digit for digit, character in enumerate(_ALPHABET)}


def encode_did(public_key: bytes) -> str:
    """Return the did:key of a 32-byte Ed25519 key: always 56 characters, beginning with did:key:z6Mk."""
    number = int.from_bytes(_MULTICODEC_ED25519 + public_key, "big")
    characters = []
    while number:
        number, digit = divmod(number, 58)
        characters.append(_ALPHABET[digit])
    return "did:key:z" + "".join(reversed(characters))


@lru_cache(maxsize=16_384)
def decode_did(did: str) -> bytes:
    """Return the 32-byte key that `did` names. Malformed: not an Ed25519 did:key, or a key that is not strict."""
    if len(did) != DID_CHARACTERS or not did.startswith(DID_PREFIX):
        raise Malformed(f"a DID has {DID_CHARACTERS} characters and begins with {DID_PREFIX}")
    number = 0
    for character in did[len("did:key:z") :]:
        if character not in _DIGITS:
            raise Malformed("a DID holds a character outside the base58btc alphabet")
        number = number * 58 + _DIGITS[character]
    public_key = (number & (2**256 - 1)).to_bytes(32, "big")
    if encode_did(public_key) != did:  # also settles the two bytes before the key
        raise Malformed("a DID is not the canonical did:key of an Ed25519 key")
    if not is_strict_key(public_key):
        raise Malformed("a DID names a weak Ed25519 key (small order, non-canonical, or outside the prime subgroup)")
    return public_key


def thumbprint(public_key: bytes) -> str:
    """Return the RFC 7638 thumbprint of the key as an OKP JWK: 43 characters, base64url without padding."""
    jwk = b'{"crv":"Ed25519","kty":"OKP","x":"%s"}' % _base64url(public_key)
    return _base64url(hashlib.sha256(jwk).digest()).decode("ascii")


def _base64url(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")
