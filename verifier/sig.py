"""The strict Ed25519 rule: the one file of the verifier with a third-party import (libsodium through PyNaCl).

Libraries disagree about odd keys and signatures; under a lax rule one constant signature verifies for *every*
message of the identity-point key, so whoever publishes keys could disown every receipt. The rule below is the
narrowest of them: whatever it accepts, OpenSSL, WebCrypto, Go and ZIP-215 verifiers accept as well.
Never compare or store signature bytes as an identity: other implementations sign the same message differently.
Source: docs/protocol.md 15.1 (strict Ed25519); RFC 8032. The small-order list is derived in tests/verifier/test_sig.py.
"""

from __future__ import annotations

from functools import lru_cache

from nacl.bindings import crypto_core_ed25519_is_valid_point, crypto_sign_open
from nacl.exceptions import CryptoError

P = 2**255 - 19  # the field; a y coordinate of P or more is a second spelling of a smaller one
L = 2**252 + 27742317777372353535851937790883648493  # order of the prime-order subgroup
_SIGN_BIT_CLEARED = 2**255 - 1

# The seven y encodings of points whose order divides 8 (or of their second spellings), each with both sign bits.
_SMALL_ORDER_Y = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
)
SMALL_ORDER: frozenset[bytes] = frozenset(
    encoded[:31] + bytes([encoded[31] | sign]) for encoded in map(bytes.fromhex, _SMALL_ORDER_Y) for sign in (0, 0x80)
)

# A point of order 2L, the base point plus (0, -1): libsodium before CVE-2025-69277 was fixed calls it valid.
_MIXED_ORDER_POINT = bytes.fromhex("9599999999999999999999999999999999999999999999999999999999999999")
if crypto_core_ed25519_is_valid_point(_MIXED_ORDER_POINT):
    raise ImportError("this PyNaCl accepts keys outside the prime-order subgroup; install PyNaCl 1.6.2 or later")


@lru_cache(maxsize=16_384)
def is_strict_key(public_key: bytes) -> bool:
    """Say whether `public_key` is 32 bytes, canonical, and of prime order. Costs one verification, but once per key."""
    return (
        len(public_key) == 32
        and public_key not in SMALL_ORDER
        and int.from_bytes(public_key, "little") & _SIGN_BIT_CLEARED < P
        and crypto_core_ed25519_is_valid_point(public_key)
    )


def is_valid(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Say whether `signature` (64 bytes) is a strict Ed25519 signature of `message` by `public_key`. Never raises.

    Strict: the key passes `is_strict_key`; S < L; R canonical and not of small order; the cofactorless equation.
    """
    r = signature[:32]
    if (
        len(signature) != 64
        or int.from_bytes(signature[32:], "little") >= L
        or int.from_bytes(r, "little") & _SIGN_BIT_CLEARED >= P
        or r in SMALL_ORDER
        or not is_strict_key(public_key)
    ):
        return False
    try:
        crypto_sign_open(signature + message, public_key)
    except CryptoError:
        return False
    return True
