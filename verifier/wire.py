"""Strict bytes to values and back: the one decoder of everything that is signed.

House rule: decode, encode again, compare bytes. Python's own decoders are lenient (`int(" 7")`, duplicate JSON keys,
two base64 spellings of one value), and each leniency would let two readers see different facts in the same bytes.
Every decode_ and parse_ function raises `Malformed` and nothing else; its text names the bound, never the value.
Source: docs/protocol.md 2 (limits and encodings); RFC 8785; RFC 4648 section 4.
"""

from __future__ import annotations

import base64
import json
import re
from typing import NoReturn, TypeAlias

INT_MAX = 2**53 - 1  # the largest integer that every JSON reader holds exactly
RECEIPT_BYTES_MAX = 262_144
PROOF_BYTES_MAX = 65_536
LEAF_BYTES_MAX = 65_535  # u16 length in a C2SP entry bundle
BODY_BYTES_MAX = 24_576  # a request body counted as a JSON string, so that its leaf always fits
TEXT_BYTES_MAX = 65_536  # policy, key document, note

JsonValue: TypeAlias = "bool | int | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

_KEY = re.compile(r"[a-z][a-zA-Z0-9_]{0,63}")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,15})")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
# A string (perhaps unclosed, so that the scan stays linear) or one bracket.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class Malformed(ValueError):
    """The bytes are not what they claim to be: the sender's fault. The text names the field and its bound."""


def parse_json(data: bytes, *, bytes_max: int, depth_max: int = 8) -> JsonObject:
    """Return the one JSON object in `data`; spelling (spaces, escapes, order) is free, the values are not.

    Refused: more than `bytes_max` bytes or `depth_max` levels, anything but UTF-8, a byte order mark, duplicate
    members, floats, NaN, integers beyond ±INT_MAX, "-0", lone surrogates, a top level that is not an object.
    """
    return _decode_object(_LOOSE_DECODER, data, bytes_max, depth_max)


def parse_canonical(data: bytes, *, bytes_max: int, depth_max: int = 8) -> JsonObject:
    """Return the JSON object whose only accepted spelling is `data` itself.

    As `parse_json`, and member names match [a-z][a-zA-Z0-9_]{0,63} at every level and RFC 8785 gives the same bytes.
    """
    value = _decode_object(_CANONICAL_DECODER, data, bytes_max, depth_max)
    if encode_canonical(value) != data:
        raise Malformed("the JSON text is not in canonical form (RFC 8785): other spaces, escapes or member order")
    return value


def encode_canonical(value: JsonValue) -> bytes:
    """Return the RFC 8785 bytes of `value`, which lies in the subset: no floats, |int| ≤ INT_MAX, keys below U+E000.

    The subset is not checked here (whatever is written is read back through `parse_canonical`); a lone surrogate
    raises UnicodeEncodeError, a ValueError.
    """
    return _ENCODER.encode(value).encode("utf-8")


def decode_text(data: bytes, *, bytes_max: int) -> str:
    """Return `data` as text: at most `bytes_max` bytes of UTF-8 with no byte below 0x20 except the newline."""
    if len(data) > bytes_max:
        raise Malformed(f"text has {len(data)} bytes, at most {bytes_max} are allowed")
    if any(byte in data for byte in _CONTROL_BYTES):
        raise Malformed("text holds a control character other than newline")
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
    if encode_base64(value) != text:
        raise Malformed("base64 text is not in its canonical spelling")
    if size is not None and len(value) != size:
        raise Malformed(f"base64 text holds {len(value)} bytes, exactly {size} are wanted")
    return value


def encode_base64(value: bytes) -> str:
    """Return padded base64 (RFC 4648 section 4)."""
    return base64.b64encode(value).decode("ascii")


def decode_hex(text: str, size: int) -> bytes:
    """Return the `size` bytes of lower-case hexadecimal `text`."""
    try:
        value = bytes.fromhex(text)
    except ValueError as error:
        raise Malformed("hexadecimal text is malformed") from error
    if len(value) != size or value.hex() != text:
        raise Malformed(f"hexadecimal text must be exactly {2 * size} lower-case digits")
    return value


def decode_decimal(text: str, maximum: int = INT_MAX) -> int:
    """Return the integer 0..`maximum` written in ASCII digits without sign, spaces or leading zeros."""
    if _DECIMAL.fullmatch(text) is None:
        raise Malformed("a decimal number is digits only, without sign, spaces or leading zeros")
    number = int(text)
    if number > maximum:
        raise Malformed(f"a decimal number is above {maximum}")
    return number


def _decode_object(decoder: json.JSONDecoder, data: bytes, bytes_max: int, depth_max: int) -> JsonObject:
    if len(data) > bytes_max:
        raise Malformed(f"JSON text has {len(data)} bytes, at most {bytes_max} are allowed")
    _check_depth(data, depth_max)
    try:
        text = data.decode("utf-8")
        value = decoder.decode(text)
        if "\\u" in text:
            encode_canonical(value)  # only an escape can bring in a lone surrogate, and it can't be encoded
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed("JSON text is malformed or not UTF-8") from error
    if not isinstance(value, dict):
        raise Malformed("JSON text must be an object")
    return value


def _check_depth(data: bytes, depth_max: int) -> None:
    """Count nesting on the bytes, before a recursive parser sees them."""
    if data.count(b"{") + data.count(b"[") <= depth_max:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        token = match.group()
        depth += (token in (b"{", b"[")) - (token in (b"}", b"]"))
        if depth > depth_max:
            raise Malformed(f"JSON text is nested deeper than {depth_max} levels")


def _distinct_members(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Malformed("a JSON member name appears twice")
    return members


def _named_members(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    for name, _ in pairs:
        if _KEY.fullmatch(name) is None:
            raise Malformed("a JSON member name must match [a-z][a-zA-Z0-9_]{0,63}")
    return _distinct_members(pairs)


def _decode_integer(text: str) -> int:
    # The length is checked before int(), whose time grows with the square of the digits.
    if _INTEGER.fullmatch(text) is None or text == "-0" or abs(int(text)) > INT_MAX:
        raise Malformed(f"a JSON number must be an integer within ±{INT_MAX}, and not -0")
    return int(text)


def _refuse_number(text: str) -> NoReturn:
    raise Malformed("a JSON number must be an integer: fractions, exponents, NaN and Infinity are refused")


_CONTROL_BYTES = bytes(set(range(0x20)) - {0x0A})
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
_LOOSE_DECODER = json.JSONDecoder(
    object_pairs_hook=_distinct_members,
    parse_int=_decode_integer,
    parse_float=_refuse_number,
    parse_constant=_refuse_number,
)
_CANONICAL_DECODER = json.JSONDecoder(
    object_pairs_hook=_named_members,
    parse_int=_decode_integer,
    parse_float=_refuse_number,
    parse_constant=_refuse_number,
)
