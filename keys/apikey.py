"""Workspace API keys: how one is made, told apart from a typing error, and named without being told.

    tsk_live_ or tsk_trial_, then 30 characters of 0-9 A-Z a-z (178 random bits), then 6 of the CRC-32 of all before

The form is that of other services, so that scanners of leaked secrets find one and can check it offline. A key this
long needs no slow hash: its SHA-256 names it everywhere, in the ledger as well, and nobody gets back from that to it.
Who makes a key shows it once and sends the digest only.

Source: docs/protocol.md (API keys).
"""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Literal, NamedTuple
from zlib import crc32

from verifier.wire import Malformed

Kind = Literal["live", "trial"]
KINDS: tuple[Kind, ...] = ("live", "trial")
SECRET_CHARACTERS, CHECK_CHARACTERS = 30, 6
TOKEN_CHARACTERS_MAX = len("tsk_trial_") + SECRET_CHARACTERS + CHECK_CHARACTERS
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TOKEN = re.compile(rf"(tsk_(live|trial)_[0-9A-Za-z]{{{SECRET_CHARACTERS}}})([0-9A-Za-z]{{{CHECK_CHARACTERS}}})")


class ApiKey(NamedTuple):
    """An API key as far as it may be told: its kind, and the SHA-256 of the token as hex."""

    kind: Kind
    digest: str


def new_token(kind: Kind) -> str:
    """Return a fresh token, a secret: show it once, and keep `open_token(token).digest`."""
    before = f"tsk_{kind}_" + "".join(secrets.choice(_ALPHABET) for _ in range(SECRET_CHARACTERS))
    return before + _check(before)


def open_token(token: str) -> ApiKey:
    """Return kind and digest of a token whose check characters fit; Malformed tells its length, never a part of it."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise Malformed(
            f"API key: tsk_live_ or tsk_trial_ and {SECRET_CHARACTERS + CHECK_CHARACTERS} characters of 0-9 A-Z a-z; "
            f"got {len(token)} characters of another form"
        )
    if _check(match[1]) != match[3]:
        raise Malformed("API key: its last characters do not fit the others; copy it again, whole and unchanged")
    return ApiKey("live" if match[2] == "live" else "trial", sha256(token.encode("ascii")).hexdigest())


def _check(before: str) -> str:
    """Return the CRC-32 of what stands before in base 62, most significant first, padded with zeros."""
    number, characters = crc32(before.encode("ascii")), ""
    for _ in range(CHECK_CHARACTERS):
        number, digit = divmod(number, len(_ALPHABET))
        characters = _ALPHABET[digit] + characters
    return characters
