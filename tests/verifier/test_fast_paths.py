"""The fast decoders accept and refuse exactly what slow, literal definitions of the protocol's sentences do.

The definitions here are written for the eye: a hook for every object and every number, one sentence after another.
Nothing of verifier/wire.py helps them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifier import maker
from tests.verifier.maker import ALICE
from verifier.entries import COMMON_MEMBERS, ENTRY_TYPES, Member, MemberError, parse_leaf
from verifier.replay.judged import judge, judge_afar
from verifier.request import parse_signature_input
from verifier.wire import (
    INT_MAX,
    LEAF_BYTES_MAX,
    JsonObject,
    JsonValue,
    Malformed,
    decode_base64,
    parse_canonical,
    parse_json,
)

MANY = settings(max_examples=400, deadline=None)


class Refused(Exception):
    """The slow definition says no."""


# --- slow definitions -----------------------------------------------------------------------------------------------


def no_second_member(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise Refused
    return dict(pairs)


def whole_number(text: str) -> int:
    if text == "-0" or len(text.lstrip("-")) > 16 or abs(int(text)) > INT_MAX:
        raise Refused
    return int(text)


def no_number(_: str) -> NoReturn:
    raise Refused


def depth(text: str) -> int:
    """Nesting, character by character, strings left out."""
    deepest = now = place = 0
    inside = False
    while place < len(text):
        character = text[place]
        if inside and character == "\\":
            place += 1
        elif character == '"':
            inside = not inside
        elif not inside and character in "{[":
            now += 1
            deepest = max(deepest, now)
        elif not inside and character in "}]":
            now -= 1
        place += 1
    return deepest


def slow_json(data: bytes) -> Any:
    """docs/protocol.md 2.2."""
    try:
        text = data.decode("utf-8")
        if len(data) > LEAF_BYTES_MAX or depth(text) > 8:
            raise Refused
        decoder = json.JSONDecoder(
            object_pairs_hook=no_second_member, parse_int=whole_number, parse_float=no_number, parse_constant=no_number
        )
        value = decoder.decode(text)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # a lone surrogate has no bytes
    except ValueError as error:
        raise Refused from error
    if type(value) is not dict:
        raise Refused
    return value


def slow_canonical(data: bytes) -> Any:
    """docs/protocol.md 2.3."""
    value = slow_json(data)
    if not all(re.fullmatch(r"[a-z][a-zA-Z0-9_]{0,63}", name) for name in names_of(value)):
        raise Refused
    if json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8") != data:
        raise Refused
    return value


def names_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(name for inner in value.values() for name in names_of(inner))]
    return [name for inner in value for name in names_of(inner)] if isinstance(value, list) else []


def fits(value: JsonObject, members: tuple[Member, ...], *, is_closed: bool) -> bool:
    """docs/protocol.md 12.1, 12.2: the table, member by member."""
    is_complete = all(m.kind.check(value[m.name]) if m.name in value else not m.is_required for m in members)
    return is_complete and (not is_closed or value.keys() <= {m.name for m in members})


def slow_shape(data: bytes) -> Any:
    """A leaf as far as canonical JSON and the table go; that its members agree with each other is not asked here."""
    value = slow_canonical(data)
    row = ENTRY_TYPES.get(value["type"]) if isinstance(value.get("type"), str) else None
    members = COMMON_MEMBERS if row is None else (*COMMON_MEMBERS, *row.members)
    if not fits(value, members, is_closed=row is not None):
        raise Refused
    return value


def slow_base64(text: str) -> bytes:
    try:
        value = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Refused from error
    if base64.b64encode(value).decode("ascii") != text:
        raise Refused
    return value


def slow_input(value: str) -> tuple[str, tuple[str, ...], int, int, str, str]:
    """docs/protocol.md 4.2 to 4.4: label, components, created, expires, keyid, nonce."""
    member = re.fullmatch(r"([a-z][a-z0-9_-]{0,31})=\(([^()]*)\);([^()]*)", value, re.DOTALL)
    if member is None:
        raise Refused
    components = member[2].split(" ")
    if len(components) > 16 or len(set(components)) != len(components):
        raise Refused
    if not all(re.fullmatch('"@?[a-z][a-z0-9-]{0,31}"', component) for component in components):
        raise Refused
    pairs = [tuple(part.split("=", 1)) for part in member[3].split(";")]
    if sorted(pair[0] for pair in pairs) != ["alg", "created", "expires", "keyid", "nonce", "tag"]:
        raise Refused
    if any(len(pair) != 2 for pair in pairs):
        raise Refused
    found = dict(pairs)
    numbers = r"0|[1-9][0-9]{0,14}"
    grammars = {
        "alg": '"ed25519"', "tag": '"tallystick-v1"', "created": numbers, "expires": numbers,
        "keyid": '"did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}"', "nonce": '"[A-Za-z0-9_-]{22,64}"',
    }  # fmt: skip
    if not all(re.fullmatch(grammar, found[name]) for name, grammar in grammars.items()):
        raise Refused
    names = tuple(component[1:-1] for component in components)
    return member[1], names, int(found["created"]), int(found["expires"]), found["keyid"][1:-1], found["nonce"][1:-1]


# --- inputs ---------------------------------------------------------------------------------------------------------

WORKED = maker.worked()
NOVEL = maker.opened()
NOVEL.entry("lease.lent", "gateway", {"novelty": 1, "nested": {"a": [1, {"b": None}]}})
KNOWN, UNKNOWN = WORKED.leaves + maker.busy().leaves, NOVEL.leaves[-1]  # by their type
LEAVES = st.sampled_from(KNOWN) | st.just(UNKNOWN)
ODD_NUMBERS = ["-0", "1.0", "1e2", "1E400", "NaN", "-Infinity", "01", "9007199254740991", "9007199254740992", "9" * 30]
ODD_NUMBERS += ["-9007199254740991", "-9007199254740992", "true", "null", '"7"', "[7]", "٧", "-", "9" * 5_000]
ODD_NUMBERS += ["[" * deep + "]" * deep for deep in range(5, 10)]
ODD_PIECES = [
    *ODD_NUMBERS,
    '"seq":1,',
    '"a":1,',
    '"A":1,',
    '"":1,',
    "\\u0061",
    "\\ud800",
    "\\ud83d\\ude00",
    "\\/",
    "\\u001F",
]
ODD_PIECES += [
    "\\u001f",
    "\\b",
    "\x7f",
    "é",
    "\u2028",
    "😀",
    " ",
    "\n",
    "\ufeff",
    "[" * 9,
    "{",
    "}",
    '"',
    "\\",
    ",",
    ":",
    "\x00",
]


@st.composite
def edited(draw: st.DrawFn) -> bytes:
    """A genuine leaf with numbers replaced and odd pieces put in between its tokens."""
    text = draw(LEAVES).decode("utf-8")
    for _ in range(draw(st.integers(0, 2))):
        numbers = [match.span() for match in re.finditer(r"(?<=:)[0-9]+", text)]
        if numbers and draw(st.integers(0, 1)) == 1:
            start, stop = draw(st.sampled_from(numbers))
            text = text[:start] + draw(st.sampled_from(ODD_NUMBERS)) + text[stop:]
        else:
            edges = [match.start() for match in re.finditer(r'[{}\[\],:"]', text)]
            place = draw(st.sampled_from(edges)) + draw(st.integers(0, 1))
            text = text[:place] + draw(st.sampled_from(ODD_PIECES)) + text[place:]
    return text.encode("utf-8", "surrogatepass")


SCALARS = st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats() | st.text(max_size=8)
NAMES = st.sampled_from(["a", "b", "aB", "a_1", "A", "", "é", "a" * 64, "a" * 65])
ANY = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)


@st.composite
def spelled(draw: st.DrawFn) -> bytes:
    """Any value as JSON, canonical or nearly so."""
    value = draw(st.dictionaries(NAMES, ANY, max_size=4) | ANY)
    separators = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ":")]))
    is_sorted, is_ascii = draw(st.sampled_from([(True, False), (True, False), (False, False), (True, True)]))
    text = json.dumps(value, sort_keys=is_sorted, ensure_ascii=is_ascii, separators=separators)
    return text.encode("utf-8", "surrogatepass")


def outcome(read: Callable[[Any], Any], given: Any) -> Any:
    """What a reader makes of its input; None stands for refused."""
    try:
        return read(given)
    except (Malformed, Refused):
        return None


# --- promises -------------------------------------------------------------------------------------------------------


@MANY
@given(edited() | spelled() | st.binary(max_size=40))
def test_canonical_json_is_read_as_its_definition_says(data: bytes) -> None:
    fast = outcome(lambda given: parse_canonical(given, bytes_max=LEAF_BYTES_MAX), data)
    slow = outcome(slow_canonical, data)
    assert (fast, typed(fast)) == (slow, typed(slow))


@MANY
@given(edited() | spelled() | st.binary(max_size=40))
def test_json_in_any_spelling_is_read_as_its_definition_says(data: bytes) -> None:
    fast = outcome(lambda given: parse_json(given, bytes_max=LEAF_BYTES_MAX), data)
    slow = outcome(slow_json, data)
    assert (fast, typed(fast)) == (slow, typed(slow))


@MANY
@given(edited())
def test_a_leaf_has_the_shape_that_its_definition_demands(data: bytes) -> None:
    """What canonical JSON or the table refuses is refused; what they accept can still contradict itself."""
    slow = outcome(slow_shape, data)
    try:
        assert parse_leaf(data).value == slow
    except Malformed as error:
        is_contradiction = str(error).startswith("member") and not isinstance(error, MemberError)
        assert slow is None or is_contradiction


def typed(value: JsonValue) -> str:
    """True and 1 are equal in Python and are different facts."""
    return repr(value)


@MANY
@given(st.text(alphabet="AQZaz09+/=-_ \n٠é", max_size=12) | st.binary(max_size=9).map(maker.b64))
def test_base64_is_read_as_its_definition_says(text: str) -> None:
    assert outcome(decode_base64, text) == outcome(slow_base64, text)


INPUT = str(WORKED.value(5)["request"]["signatureInput"])
TOKENS = [
    *re.findall(r';[a-z]+=(?:"[^"]*"|[0-9]+)', INPUT),
    ";created=01",
    ";created=1",
    ';alg="ed25519" ',
    ';nonce="n"',
    ";x=1",
]
TOKENS += [";", '"@path"', "=", "(", ")", " ", ';tag="x;created=1"', f';keyid="{ALICE.did}"', ';keyid="', "\n", "٧"]


@st.composite
def inputs(draw: st.DrawFn) -> str:
    """A genuine field whose parameters are drawn anew, or with pieces put in or taken out."""
    head, *genuine = re.split(r"(?=;)", INPUT)
    parameters: list[str] = draw(st.permutations(genuine))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(parameters)))
        is_replaced = draw(st.integers(0, 1))
        parameters[place : place + is_replaced] = [draw(st.sampled_from(TOKENS) | st.sampled_from(parameters or [""]))]
    head = draw(st.sampled_from([head, head.replace('"@query"', '"@path"'), head.replace("sig", "Sig")]))
    text = str(head) + "".join(parameters)
    place = draw(st.integers(0, len(text)))
    piece: str = draw(st.sampled_from(["", "", "", *TOKENS]))
    return text[:place] + piece + text[place:]


@MANY
@given(inputs() | st.just(INPUT))
def test_a_signature_input_is_read_as_its_definition_says(value: str) -> None:
    fast, slow = outcome(parse_signature_input, value), outcome(slow_input, value)
    assert (fast is None) == (slow is None)
    if fast is not None:
        found = (fast.label, fast.components, fast.created, fast.expires, fast.keyid, fast.nonce)
        assert (found, fast.params) == (slow, value.partition("=")[2])


@MANY
@given(edited())
def test_another_process_judges_an_entry_as_this_one_does(data: bytes) -> None:
    """What travels back lacks the evidence and most common members, and differs in nothing else."""
    authorities = frozenset({maker.AUTHORITY})
    here, [afar] = judge(data, authorities), judge_afar([data], authorities)
    assert here._replace(leaf=None) == afar._replace(leaf=None)
    assert (here.leaf is None) == (afar.leaf is None)
    if here.leaf is not None and afar.leaf is not None:
        assert here.leaf._replace(value={}, request=None) == afar.leaf._replace(value={})
        assert afar.leaf.value.items() <= here.leaf.value.items()
        own = ENTRY_TYPES[here.leaf.type].members if here.leaf.is_known else ()
        kept = {"custody", "durability"} | {m.name for m in own}  # the two are compared with other entries
        assert afar.leaf.value.keys() == kept & here.leaf.value.keys()
