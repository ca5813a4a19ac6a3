"""Strict bytes to values and back: the one decoder of everything that is signed.

House rule: decode, encode again, compare bytes. Python's own decoders are lenient (`int(" 7")`, duplicate JSON members,
two base64 spellings of one value), and each leniency would let two readers see different facts in the same bytes.
Every decode_ and parse_ function raises `Malformed` and nothing else; its text names the bound, never the value.
Source: docs/protocol.md 2.2 to 2.4 (encodings), 21 (limits); RFC 8785; RFC 4648 section 4.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64, b2a_base64
from itertools import accumulate
from typing import NoReturn, TypeAlias

INT_MAX = 2**53 - 1  # the largest integer that every JSON reader holds exactly
RECEIPT_BYTES_MAX = 262_144
PROOF_BYTES_MAX = 65_536
LEAF_BYTES_MAX = 65_535  # u16 length in a C2SP entry bundle
BODY_BYTES_MAX = 24_576  # a request body counted as a JSON string, so that its leaf always fits
TEXT_BYTES_MAX = 65_536  # policy, key document, note

JsonValue: TypeAlias = "bool | int | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

_NAME = re.compile(r"[a-z][a-zA-Z0-9_]{0,63}")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,15}")  # bounded before int(), which takes quadratic time
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
# Strings (perhaps unclosed, so that the scan stays linear) and everything else that is no bracket.
_NO_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[^"\[\]{}]++', re.DOTALL)


class Malformed(ValueError):
    """The bytes are not what they claim to be: the sender's fault. The text names the field and its bound."""


def parse_json(data: bytes, *, bytes_max: int, depth_max: int = 8) -> JsonObject:
    """Return the one JSON object in `data`; spelling (spaces, escapes, order) is free, the values are not.

    Malformed: above a bound, not UTF-8, a byte order mark, a duplicate member, a number that is not an integer
    within ±INT_MAX (or is "-0"), a lone surrogate, a top level that is not an object.
    """
    return _decode(_LOOSE, data, bytes_max, depth_max, False)


def parse_canonical(data: bytes, *, bytes_max: int, depth_max: int = 8) -> JsonObject:
    """As `parse_json`, and `data` is the RFC 8785 spelling with member names [a-z][a-zA-Z0-9_]{0,63} throughout."""
    value = open_canonical(data, bytes_max=bytes_max, depth_max=depth_max)
    check_names_and_integers(value)
    return value


def open_canonical(data: bytes, *, bytes_max: int, depth_max: int = 8) -> JsonObject:
    """As `parse_canonical`, for a caller whose closed table bounds every name and integer: that is not checked here.

    The decoder runs without a hook in Python for each object. A member that is there twice, "-0" and every other second
    spelling is lost on the way, so what is written again differs from `data`; floats never come as far.
    """
    return _decode(_CANONICAL, data, bytes_max, depth_max, True)


def check_names_and_integers(value: JsonObject) -> None:
    """Raise Malformed unless every name and integer in `value` is one of canonical JSON."""
    pending: list[JsonValue] = [value]
    for item in pending:  # which grows; what was read has no circles
        if isinstance(item, dict):
            if not all(map(_NAME.fullmatch, item)):
                raise Malformed("a JSON member name must match [a-z][a-zA-Z0-9_]{0,63}")
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, int):
            _check_integer(item)


def encode_canonical(value: JsonValue) -> bytes:
    """Return the RFC 8785 bytes of `value`, which has no floats, no integer beyond ±INT_MAX and names below U+E000.

    That is not checked here: what is written is read back through `parse_canonical`. A lone surrogate is a ValueError.
    """
    return _ENCODER.encode(value).encode("utf-8")


def decode_text(data: bytes, *, bytes_max: int) -> str:
    """Return `data` as text: at most `bytes_max` bytes of UTF-8 with no byte below 0x20 except the newline."""
    if len(data) > bytes_max or _CONTROL.search(data) is not None:
        raise Malformed(f"text has {len(data)} bytes; at most {bytes_max}, and no control byte, are allowed")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed("text is not UTF-8") from error


def decode_base64(text: str, size: int | None = None) -> bytes:
    """Return the bytes of padded, canonical RFC 4648 section 4 base64; exactly `size` bytes when given."""
    try:
        value = a2b_base64(text)  # lenient; what it overlooks is not there when the bytes are written again
    except ValueError as error:
        raise Malformed("base64 text is malformed") from error
    if encode_base64(value) != text or (size is not None and len(value) != size):
        raise Malformed(f"base64 text must be in its canonical spelling and hold {size or 'any number of'} bytes")
    return value


def encode_base64(value: bytes) -> str:
    """Return padded base64 (RFC 4648 section 4)."""
    return b2a_base64(value, newline=False).decode("ascii")


def decode_hex(text: str, size: int) -> bytes:
    """Return the `size` bytes of lower-case hexadecimal `text`."""
    if re.fullmatch(r"(?:[0-9a-f]{2})*", text) is None or len(text) != 2 * size:
        raise Malformed(f"hexadecimal text must be exactly {2 * size} lower-case digits")
    return bytes.fromhex(text)


def decode_decimal(text: str, maximum: int = INT_MAX) -> int:
    """Return the integer 0..`maximum` written in ASCII digits without sign, spaces or leading zeros."""
    if _DECIMAL.fullmatch(text) is None or int(text) > maximum:
        raise Malformed(f"a decimal number is 0 to {maximum} in digits only, without sign, spaces or leading zeros")
    return int(text)


def _decode(decoder: json.JSONDecoder, data: bytes, bytes_max: int, depth_max: int, is_canonical: bool) -> JsonObject:
    # Size and nesting are counted on the bytes, before a recursive parser sees them.
    if len(data) > bytes_max or (data.count(b"{") + data.count(b"[") > depth_max and _depth(data) > depth_max):
        raise Malformed(f"JSON text is larger than {bytes_max} bytes or nested deeper than {depth_max} levels")
    try:
        text = data.decode("utf-8")
        value = decoder.decode(text)
        # In a free spelling only an escape can bring in a lone surrogate, and none can be written again.
        written = encode_canonical(value) if is_canonical or "\\u" in text else data
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed("JSON text is malformed or not UTF-8") from error
    if is_canonical and written != data:
        raise Malformed("JSON text is not in canonical form (RFC 8785): other spaces, escapes or member order")
    if not isinstance(value, dict):
        raise Malformed("JSON text must be an object")
    return value


def _depth(data: bytes) -> int:
    """Return the deepest nesting of brackets outside strings."""
    return max(accumulate(1 if bracket in b"{[" else -1 for bracket in _NO_BRACKET.sub(b"", data)), default=0)


def _distinct_members(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Malformed("a JSON member name appears twice")
    return members


def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise Malformed("a JSON integer has at most 16 digits, and is not -0")
    return _check_integer(int(text))


def _check_integer(number: int) -> int:
    if not -INT_MAX <= number <= INT_MAX:
        raise Malformed(f"a JSON number must be an integer within ±{INT_MAX}")
    return number


def _refuse(_text: str) -> NoReturn:
    raise Malformed("a JSON number must be an integer: fractions, exponents, NaN and Infinity are refused")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"), check_circular=False
)
_CANONICAL = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse)
_LOOSE = json.JSONDecoder(
    object_pairs_hook=_distinct_members, parse_int=_integer, parse_float=_refuse, parse_constant=_refuse
)
