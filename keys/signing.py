"""A private key that can sign and nothing else.

The one file of this folder that imports `nacl`: signer and verifier then follow the same rule (libsodium's, see
docs/protocol.md on strict Ed25519), and signing costs half of what `cryptography` takes. The seed goes in and never
comes out: there is no getter, and neither `repr`, `pickle` nor `copy` shows it.
"""

from __future__ import annotations

import secrets
from typing import NoReturn

from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

from verifier.did import encode_did

SEED_BYTES = 32
SIGNATURE_BYTES = 64


class SigningKey:
    """An Ed25519 private key made from its 32-byte seed (RFC 8032 5.1.5).

    `public_key` is 32 raw bytes, `did` is its did:key text. A seed of another length is a bug of the caller, hence
    an AssertionError whose text tells the length only.
    """

    __slots__ = ("_secret", "did", "public_key")

    public_key: bytes
    did: str

    def __init__(self, seed: bytes) -> None:
        assert len(seed) == SEED_BYTES, f"an Ed25519 seed has {SEED_BYTES} bytes, got {len(seed)}"
        self.public_key, self._secret = crypto_sign_seed_keypair(seed)
        self.did = encode_did(self.public_key)

    @classmethod
    def generate(cls) -> SigningKey:
        """Return a new key from the operating system's random source."""
        return cls(secrets.token_bytes(SEED_BYTES))

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature over exactly `message`; the same message gives the same bytes."""
        return crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def __repr__(self) -> str:
        """Name the public half only, because representations end in logs and tracebacks."""
        return f"SigningKey({self.did})"

    def __reduce__(self) -> NoReturn:
        """Refuse pickling and copying: a second copy of a private key is never wanted by accident."""
        raise TypeError("a SigningKey is neither pickled nor copied; load it from its file again")
