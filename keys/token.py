"""API keys as text: how one is made, told from others, and turned into the digest that alone ever leaves its owner.

A token is `tsk_live_` or `tsk_trial_`, 30 random base62 characters (178 bits) and 6 more that check the rest, so that
scanners find a leaked one and a mistyped one is told apart, both without asking anybody. So many random bits need no
slow hash: the ledger knows a token by its SHA-256.
Source: docs/protocol.md 30.1.
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from zlib import crc32

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KINDS = ("live", "trial")
RANDOM_CHARS, CHECK_CHARS = 30, 6

_TOKEN = re.compile(rf"(tsk_(live|trial)_[0-9A-Za-z]{{{RANDOM_CHARS}}})([0-9A-Za-z]{{{CHECK_CHARS}}})", re.ASCII)


def new_token(kind: str) -> str:
    """Return a new token of a kind of KINDS."""
    assert kind in KINDS, "a kind of API key"
    start = f"tsk_{kind}_" + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_CHARS))
    return start + check_of(start)


def check_of(start: str) -> str:
    """Return the six characters that end a token: the CRC-32 of what stands before, most significant digit first."""
    number, digits = crc32(start.encode("ascii")), ""
    for _ in range(CHECK_CHARS):
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits


def kind_of(text: str) -> str | None:
    """Return the kind of a token that is spelled right, None for any other text. Whether it is known, is not asked."""
    match = _TOKEN.fullmatch(text)
    return match[2] if match and check_of(match[1]) == match[3] else None


def digest_of(token: str) -> str:
    """Return the 64 hex digits by which a ledger knows a token."""
    return sha256(token.encode()).hexdigest()
