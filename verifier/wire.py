"""Strict bytes to values and back: the one decoder of everything that is signed.

House rule: decode, encode again, compare bytes. Python's own decoders are lenient (`int(" 7")`, duplicate JSON members,
two base64 spellings of one value), and each leniency would let two readers see different facts in the same bytes.
Every decode_ and parse_ function raises `Malformed` and nothing else; its text names the bound, never the value.
Source: docs/protocol.md 2.2 to 2.4 (encodings), 21 (limits); RFC 8785; RFC 4648 section 4.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
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
_Pairs: TypeAlias = list[tuple[str, JsonValue]]

_NAME = re.compile(r"[a-z][a-zA-Z0-9_]{0,63}")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,15}")  # bounded before int(), which takes quadratic time
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
# A string (perhaps unclosed, so that the scan stays linear) or one bracket.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class Malformed(ValueError):
    """The bytes are not what they claim to be: the sender's fault. The text names the field and its bound."""


def parse_json(data: bytes, *, bytes_max: int, depth_max: int = 8) -> JsonObject:
    """Return the one JSON object in `data`; spelling (spaces, escapes, order) is free, the values are not.

    Malformed: above a bound, not UTF-8, a byte order mark, a duplicate member, a number that is not an integer
    within ±INT_MAX (or is "-0"), a lone surrogate, a top level that is not an object.
    """
    return _parse(_LOOSE, data, bytes_max, depth_max)


def parse_canonical(data: bytes, *, bytes_max: int, depth_max: int = 8) -> JsonObject:
    """As `parse_json`, and `data` is the RFC 8785 spelling with member names [a-z][a-zA-Z0-9_]{0,63} throughout."""
    value = _parse(_CANONICAL, data, bytes_max, depth_max)
    if encode_canonical(value) != data:
        raise Malformed("JSON text is not in canonical form (RFC 8785): other spaces, escapes or member order")
    return value


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
        value = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Malformed("base64 text is malformed") from error
    if encode_base64(value) != text or (size is not None and len(value) != size):
        raise Malformed(f"base64 text must be in its canonical spelling and hold {size or 'any number of'} bytes")
    return value


def encode_base64(value: bytes) -> str:
    """Return padded base64 (RFC 4648 section 4)."""
    return base64.b64encode(value).decode("ascii")


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


def _parse(decoder: json.JSONDecoder, data: bytes, bytes_max: int, depth_max: int) -> JsonObject:
    if len(data) > bytes_max or _is_deeper(data, depth_max):
        raise Malformed(f"JSON text is larger than {bytes_max} bytes or nested deeper than {depth_max} levels")
    try:
        text = data.decode("utf-8")
        value = decoder.decode(text)
        if "\\u" in text:
            encode_canonical(value)  # only an escape can bring in a lone surrogate, and none can be encoded
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed("JSON text is malformed or not UTF-8") from error
    if not isinstance(value, dict):
        raise Malformed("JSON text must be an object")
    return value


def _is_deeper(data: bytes, depth_max: int) -> bool:
    """Say whether the nesting, counted on the bytes before a recursive parser sees them, exceeds `depth_max`."""
    if data.count(b"{") + data.count(b"[") <= depth_max:
        return False
    steps = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
    return max(accumulate(steps.get(match.group(), 0) for match in _STRING_OR_BRACKET.finditer(data))) > depth_max


def _distinct_members(pairs: _Pairs) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Malformed("a JSON member name appears twice")
    return members


def _named_members(pairs: _Pairs) -> JsonObject:
    members = _distinct_members(pairs)
    if not all(map(_NAME.fullmatch, members)):
        raise Malformed("a JSON member name must match [a-z][a-zA-Z0-9_]{0,63}")
    return members


def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None or not -INT_MAX <= (number := int(text)) <= INT_MAX:
        raise Malformed(f"a JSON number must be an integer within ±{INT_MAX}, and not -0")
    return number


def _refuse(_text: str) -> NoReturn:
    raise Malformed("a JSON number must be an integer: fractions, exponents, NaN and Infinity are refused")


def _decoder(hook: Callable[[_Pairs], JsonObject]) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=hook, parse_int=_integer, parse_float=_refuse, parse_constant=_refuse)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
_LOOSE, _CANONICAL = _decoder(_distinct_members), _decoder(_named_members)
