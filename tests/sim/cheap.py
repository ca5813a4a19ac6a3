"""Keys whose signatures cost a hash: the whole path of signing and checking runs, at a fiftieth of the price.

Anybody could forge such a signature; the simulation's adversary does not forge, it loses, repeats and reorders. One
seed in ten runs with Ed25519 instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b, sha256

from keys.signing import SigningKey
from verifier import sig


class CheapKey:
    """Looks like a SigningKey of the same public key."""

    __slots__ = ("did", "public_key")

    def __init__(self, key: SigningKey) -> None:
        self.public_key = key.public_key
        self.did = key.did

    def sign(self, message: bytes) -> bytes:
        return cheap_signature(self.public_key, message)


def cheap_signature(public_key: bytes, message: bytes) -> bytes:
    return blake2b(message, digest_size=64, key=public_key).digest()


def is_cheaply_valid(public_key: bytes, message: bytes, signature: bytes) -> bool:
    return signature == cheap_signature(public_key, message)


@lru_cache(maxsize=256)
def signing_key(name: str) -> SigningKey:
    """Return the same key for the same name, always."""
    return SigningKey(sha256(name.encode()).digest())


@lru_cache(maxsize=256)
def cheap_key(name: str) -> CheapKey:
    return CheapKey(signing_key(name))


@contextmanager
def cheap_signatures() -> Iterator[None]:
    """Let every module that checks signatures check cheap ones."""
    strict = sig.is_valid
    found = [
        module
        for name, module in sorted(sys.modules.items())
        if name.split(".")[0] in ("gateway", "verifier", "keys") and getattr(module, "is_valid", None) is strict
    ]
    try:
        for module in found:
            module.is_valid = is_cheaply_valid  # type: ignore[attr-defined]
        yield
    finally:
        for module in found:
            module.is_valid = strict  # type: ignore[attr-defined]
