"""Strict bytes: every leniency of Python's own decoders is closed, and canonical JSON is RFC 8785 on the subset."""

from __future__ import annotations

import json

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from tests.verifier.shared import PUBLISHED
from verifier.wire import (
    INT_MAX,
    JsonValue,
    Malformed,
    decode_base64,
    decode_decimal,
    decode_hex,
    decode_text,
    encode_base64,
    encode_canonical,
    parse_canonical,
    parse_json,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.from_regex(r"[a-z][a-zA-Z0-9_]{0,63}", fullmatch=True)
SCALARS = st.none() | st.booleans() | st.integers(-INT_MAX, INT_MAX) | TEXTS
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=20
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)


@given(OBJECTS)
def test_canonical_json_equals_two_other_encoders_and_reads_back(value: dict[str, JsonValue]) -> None:
    written = encode_canonical(value)
    assert (
        written == rfc8785.dumps(value) == orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER)
    )
    assert parse_canonical(written, bytes_max=10**6, depth_max=99) == value


@given(OBJECTS, st.integers(0, 3))
def test_any_spelling_of_an_object_reads_as_its_values(value: dict[str, JsonValue], indent: int) -> None:
    spelled = json.dumps(value, indent=indent).encode()
    assert parse_json(spelled, bytes_max=10**6, depth_max=99) == value


@given(OBJECTS)
def test_only_the_canonical_spelling_is_canonical(value: dict[str, JsonValue]) -> None:
    """Scenarios 54, 55."""
    canonical = encode_canonical(value)
    for spelled in (canonical + b" ", b" " + canonical, json.dumps(value, indent=1).encode() + b"\n"):
        with pytest.raises(Malformed):
            parse_canonical(spelled, bytes_max=10**6, depth_max=99)


@pytest.mark.parametrize("name", ["arrays", "french", "structures", "unicode", "values", "weird"])
def test_the_published_rfc_8785_pairs_hold_where_they_lie_in_the_subset(name: str) -> None:
    """Scenario 54: floats and arrays on top lie outside; they are refused, never spelled otherwise."""
    if not PUBLISHED.is_dir():
        pytest.skip("no published vectors at ../shared/vectors/jcs")
    source = (PUBLISHED / "jcs" / f"{name}.input.json").read_bytes()
    expected = (PUBLISHED / "jcs" / f"{name}.output.json").read_bytes()
    outside = {"arrays", "structures", "values"}
    if name in outside:
        with pytest.raises(Malformed):
            parse_json(source, bytes_max=10_000)
    elif name == "weird":  # has names beyond the basic plane, where UTF-16 order differs: no name of ours
        with pytest.raises(Malformed):
            parse_canonical(expected.rstrip(b"\n"), bytes_max=10_000)
    else:
        assert encode_canonical(parse_json(source, bytes_max=10_000)) == expected.rstrip(b"\n")


def test_bounds_are_counted_in_bytes_and_levels_and_are_inclusive() -> None:
    text = '{"a":"é"}'.encode()
    assert parse_json(text, bytes_max=len(text)) == {"a": "é"}
    with pytest.raises(Malformed, match=f"{len(text) - 1} bytes"):
        parse_json(text, bytes_max=len(text) - 1)
    assert parse_json(b'{"a":[1]}', bytes_max=99, depth_max=2) == {"a": [1]}
    with pytest.raises(Malformed, match="1 levels"):
        parse_json(b'{"a":[1]}', bytes_max=99, depth_max=1)


def test_a_quarter_of_a_megabyte_of_quotes_is_read_in_one_pass() -> None:
    """A scan that starts again at each quote would take hours."""
    for hostile in (b'{"a":["' + b'\\"' * 130_000, b'[{"' * 80_000, b'"' * 260_000, b"{" * 260_000):
        with pytest.raises(Malformed):
            parse_json(hostile, bytes_max=262_144)


@pytest.mark.parametrize(
    "text",
    [
        "QUJ=",
        "QQ",
        "QQ=",
        "QQ===",
        "QR==",
        " QQ==",
        "QQ==\n",
        "Q Q==",
        "QQ==QQ==",
        "Q!Q==",
        "-_8=",
        "QQ==é",
        "\u0661Q==",
        "=",
    ],
)
def test_base64_has_one_spelling(text: str) -> None:
    with pytest.raises(Malformed):
        decode_base64(text)


@given(st.binary())
def test_base64_reads_what_it_wrote_at_its_size_only(value: bytes) -> None:
    assert decode_base64(encode_base64(value)) == decode_base64(encode_base64(value), len(value)) == value
    with pytest.raises(Malformed):
        decode_base64(encode_base64(value), len(value) + 1)


@pytest.mark.parametrize("text", ["", "0", "0g", "AB", "aB", " ab", "ab ", "a b", "ab\n", "abcd", "0x", "\u0661\u0661"])
def test_hex_of_one_byte_has_one_spelling(text: str) -> None:
    with pytest.raises(Malformed):
        decode_hex(text, 1)


@given(st.binary())
def test_hex_reads_lower_case_digits(value: bytes) -> None:
    assert decode_hex(value.hex(), len(value)) == value


@pytest.mark.parametrize(
    "text",
    ["", "00", "07", "+7", "-7", "-0", " 7", "7 ", "7\n", "1_0", "0x1", "1e3", "7.0", "\u0667", "\u00b2", "9" * 9_999],
)
def test_a_decimal_has_one_spelling(text: str) -> None:
    with pytest.raises(Malformed):
        decode_decimal(text)


def test_a_decimal_is_bounded_inclusively() -> None:
    assert (decode_decimal("0"), decode_decimal("9007199254740991")) == (0, INT_MAX)
    assert decode_decimal("7", 7) == 7
    for text, maximum in (("9007199254740992", INT_MAX), ("8", 7), ("1", 0)):
        with pytest.raises(Malformed):
            decode_decimal(text, maximum)


def test_text_is_utf8_with_newlines_as_its_only_control_character() -> None:
    assert decode_text("é\n€\x7f".encode(), bytes_max=99) == "é\n€\x7f"
    for byte in set(range(0x20)) - {0x0A}:
        with pytest.raises(Malformed):
            decode_text(b"a" + bytes([byte]), bytes_max=99)
    for bad in (b"\xff", b"\xed\xa0\x80", b"\xc0\x8a", b"a" * 100):
        with pytest.raises(Malformed):
            decode_text(bad, bytes_max=99)
