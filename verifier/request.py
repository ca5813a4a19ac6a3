"""The signed-request profile tallystick-v1: every grammar of the door, and the signature base.

The gateway's door and ladder step 10 (evidence.py) read requests with the same functions, so an honest gateway never
stores evidence that the verifier refuses. The grammar is so narrow (no escapes, no component parameters, one member)
that no RFC 8941 parser is needed: `params` is the received text, and nobody writes it anew.
Source: docs/protocol.md 4; RFC 9421, RFC 9530. Vectors: RFC 9421 B.2.6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from verifier.entries import ORIGIN, SKEW_MS, WINDOW_S_MAX
from verifier.wire import Malformed, decode_base64, decode_decimal, encode_base64

READ_COMPONENTS = frozenset({"@method", "@authority", "@path", "@query", "tallystick-anchor"})
BODY_COMPONENTS = READ_COMPONENTS | {"content-type", "content-digest", "idempotency-key"}
TAG = "tallystick-v1"
CONTENT_TYPE = "application/json"

_LABEL = r"[a-z][a-z0-9_-]{0,31}"
_COMPONENT = r'"@?[a-z][a-z0-9-]{0,31}"'
# Each parameter: its one grammar, whose group is the value, and the same for a person.
_PARAMETERS = {
    "created": ("(0|[1-9][0-9]{0,14})", "seconds in digits"),
    "expires": ("(0|[1-9][0-9]{0,14})", "seconds in digits"),
    "keyid": ('"(did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44})"', "a did:key of 56 characters, quoted"),
    "alg": ('("ed25519")', '"ed25519"'),
    "nonce": ('"([A-Za-z0-9_-]{22,64})"', "22 to 64 characters of A-Z a-z 0-9 _ -, quoted"),
    "tag": (f'("{TAG}")', f'"{TAG}"'),
}
_ANY_PARAMETER = "|".join(f"{name}={grammar}" for name, (grammar, _) in _PARAMETERS.items())
_INPUT = re.compile(rf"({_LABEL})=(\(({_COMPONENT}(?: {_COMPONENT}){{0,15}})\)(?:;(?:{_ANY_PARAMETER})){{6}})")
_SIGNATURE = re.compile(rf"({_LABEL})=:([A-Za-z0-9+/]{{86}}==):")
_PATH = re.compile(r"(?!.*(?://|/\.))/[A-Za-z0-9._~/-]{0,254}")
_QUERY = re.compile(r'\?[!"$-~]{0,255}')
_IDEMPOTENCY_KEY = re.compile(r'"([ !#-\[\]-~]{1,255})"')


class SignatureInput(NamedTuple):
    """One member of `Signature-Input`; `params` is the exact value of @signature-params, from the parenthesis on."""

    label: str
    components: tuple[str, ...]
    params: str
    created: int
    expires: int
    keyid: str
    nonce: str


class Anchor(NamedTuple):
    """The history a signer saw: the ledger `origin` had `root` (32 bytes) at `size` ≥ 1."""

    origin: str
    size: int
    root: bytes


def is_inside_window(created: int, expires: int, time_ms: int, skew_ms: int = SKEW_MS) -> bool:
    """Say whether a signature of these seconds counts at `time_ms`: 0 < life ≤ 300 s, widened on both sides."""
    is_short = 0 < expires - created <= WINDOW_S_MAX
    return is_short and created * 1000 - skew_ms <= time_ms < expires * 1000 + skew_ms


def parse_signature_input(value: str) -> SignatureInput:
    """Parse the one member of a `Signature-Input` field. Coverage is the caller's check: compare with *_COMPONENTS."""
    match = _INPUT.fullmatch(value)
    # Six parameters and a value for each of the six names: none is there twice.
    if match is None or None in match.groups():
        raise Malformed(_input_fault(value))
    label, params, covered, created, expires, keyid, _, nonce, _ = match.groups()
    return SignatureInput(label, _components(covered), params, int(created), int(expires), keyid, nonce)


@lru_cache(maxsize=64)
def _components(covered: str) -> tuple[str, ...]:
    """Return the names in a list of components; a signer sends the same list each time."""
    components = tuple(covered[1:-1].split('" "'))
    if len(set(components)) != len(components):
        raise Malformed("Signature-Input: a component appears twice; name each once")
    return components


def _input_fault(value: str) -> str:
    """Say what is wrong with a field that was refused, by the first parameter that is not there exactly once."""
    for name, (grammar, bound) in _PARAMETERS.items():
        if len(re.findall(f";{name}={grammar}(?![^;])", value)) != 1:
            return f"Signature-Input: exactly one parameter {name} is needed: {bound}"
    return f"Signature-Input: {len(value)} characters, not just label=(components);{';'.join(_PARAMETERS)}"


def parse_signature(value: str, label: str) -> bytes:
    """Return the 64 bytes of the one member of a `Signature` field, which must have this label."""
    match = _SIGNATURE.fullmatch(value)
    if match is None or match[1] != label:
        raise Malformed("Signature: one member under the label of Signature-Input, label=:base64 of 64 bytes:")
    return decode_base64(match[2], 64)


def signature_base(signature_input: SignatureInput, values: Mapping[str, str]) -> bytes:
    """Return the bytes that were signed (RFC 9421 2.5); `values` maps each covered component to its field value."""
    try:
        lines = [f'"{name}": {values[name]}\n' for name in signature_input.components]
    except KeyError as error:
        raise Malformed("Signature-Input: a covered component has no value in this request") from error
    return ("".join(lines) + f'"@signature-params": {signature_input.params}').encode("utf-8")


def content_digest(body: bytes) -> str:
    """Return the one accepted `Content-Digest` of these wire bytes, also for an empty body."""
    return f"sha-256=:{encode_base64(sha256(body).digest())}:"


def parse_anchor(value: str) -> Anchor:
    """Parse a `tallystick-anchor` field: origin, size, base64 root, with single spaces."""
    parts = value.split(" ")
    if len(parts) != 3 or not ORIGIN.check(parts[0]):
        raise Malformed("tallystick-anchor: <origin> <size> <base64 root>, with single spaces")
    anchor = Anchor(parts[0], decode_decimal(parts[1]), decode_base64(parts[2], 32))
    if anchor.size == 0:
        raise Malformed("tallystick-anchor: size must be at least 1; a newcomer uses size 1 and the genesis hash")
    return anchor


def parse_idempotency_key(value: str) -> str:
    """Return the text between the quotes of an `Idempotency-Key` field."""
    match = _IDEMPOTENCY_KEY.fullmatch(value)
    if match is None:
        raise Malformed('Idempotency-Key: a quoted string of 1 to 255 printable ASCII characters without " and \\')
    return match[1]


def is_path(value: str) -> bool:
    """Say whether `value` is a path that every proxy and framework spells alike: no %, no //, no /. in it."""
    return _PATH.fullmatch(value) is not None


def is_query(value: str) -> bool:
    """Say whether `value` is an @query component: the question mark is always there."""
    return _QUERY.fullmatch(value) is not None
