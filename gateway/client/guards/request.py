"""A guarded service's own request, signed by the profile in which agents sign for the gateway (docs/protocol.md 4).

What differs from a request to the gateway: the media type is the service's own, so are authority and path, and the
anchor is only read (a service has no tree to compare it with). A request without a body covers the components of a
read. Everything that decides comes out of headers that stand there once.
Source: docs/protocol.md 4, 41; RFC 9421, RFC 9530.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256

from gateway.client.errors import Fenced
from verifier.did import decode_did
from verifier.request import (
    BODY_COMPONENTS,
    READ_COMPONENTS,
    SignatureInput,
    content_digest,
    is_inside_window,
    is_path,
    is_query,
    parse_anchor,
    parse_idempotency_key,
    parse_signature,
    parse_signature_input,
    signature_base,
)
from verifier.sig import is_valid
from verifier.wire import Malformed, encode_canonical

_VALUE = re.compile(r"[!-~](?:[ -~]{0,1022}[!-~])?")


@dataclass(frozen=True, slots=True)
class Call:
    """The head of a request as it came: `path` as it was sent, `query` without "?", names in lower case."""

    method: str
    authority: str
    path: str
    query: str
    fields: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        """Return the values of all lines of this name."""
        return [value for known, value in self.fields if known == name]

    def value(self, name: str) -> str:
        """Return the value of the one line of this name; Fenced when there is none, or two."""
        values = self.values(name)
        if len(values) > 1:
            raise Fenced(f"the header {name} stands there {len(values)} times", "header_repeated")
        if not values or _VALUE.fullmatch(values[0]) is None:
            raise Fenced(f"the header {name} is missing, or not printable ASCII", "signature_missing")
        return values[0]


@dataclass(frozen=True, slots=True)
class Signed:
    """A head whose signature holds. `content_digest` is what the body has to have; "" for no body."""

    call: Call
    keyid: str
    nonce: str
    expires_ms: int
    content_digest: str


def arguments_of(method: str, path: str, query: str, body: bytes) -> bytes:
    """Return what a guarded request does, as the bytes whose SHA-256 is its arguments digest.

    `path` is spelled as it is sent, `query` is without "?" and empty for none.
    """
    return encode_canonical({"bodySha256": sha256(body).hexdigest(), "method": method, "path": path, "query": query})


def check_head(call: Call, *, authorities: Collection[str], origin: str, now_ms: int) -> Signed:
    """Return a head whose signature holds now, for one of `authorities`, by a signer of this ledger; Fenced."""
    if call.values("content-encoding"):
        raise Fenced("the body is encoded; what is digested is what is sent", "encoded_body")
    try:
        return _checked(call, authorities, origin, now_ms)
    except Malformed as error:
        raise Fenced(str(error), "signature_malformed") from error


def check_body(signed: Signed, body: bytes) -> None:
    """Fenced unless the body is the one whose digest was signed."""
    fits = content_digest(body) == signed.content_digest if signed.content_digest else not body
    if not fits:
        raise Fenced("the body is not the one that was signed", "digest_wrong")


def _checked(call: Call, authorities: Collection[str], origin: str, now_ms: int) -> Signed:
    signature_input = parse_signature_input(call.value("signature-input"))
    signature = parse_signature(call.value("signature"), signature_input.label)
    digest = call.value("content-digest") if call.values("content-digest") else ""
    wanted = BODY_COMPONENTS if digest else READ_COMPONENTS
    if set(signature_input.components) != wanted:
        raise Fenced("the signature covers other components than the profile's", "signature_malformed")
    if call.authority not in authorities:
        raise Fenced(f"this service goes by {', '.join(sorted(authorities))}", "authority_wrong")
    if not is_path(call.path) or not is_query(f"?{call.query}"):
        raise Malformed("path or query is outside the profile's grammar (no %, no // and no /. in a path)")
    if parse_anchor(call.value("tallystick-anchor")).origin != origin:
        raise Fenced(f"the request is anchored in another ledger than {origin}", "other_ledger")
    if digest:
        parse_idempotency_key(call.value("idempotency-key"))
    base = signature_base(signature_input, _component_values(call, wanted))
    if not is_valid(decode_did(signature_input.keyid), base, signature):
        raise Fenced("the signature does not fit method, target and headers", "signature_invalid")
    _check_window(signature_input, now_ms)
    return Signed(call, signature_input.keyid, signature_input.nonce, signature_input.expires * 1_000, digest)


def _check_window(signed: SignatureInput, now_ms: int) -> None:
    if not is_inside_window(signed.created, signed.expires, now_ms):
        raise Fenced("the request was not signed for this time, by this guard's clock", "outside_window")


def _component_values(call: Call, components: Collection[str]) -> dict[str, str]:
    derived = {
        "@method": call.method,
        "@authority": call.authority,
        "@path": call.path,
        "@query": f"?{call.query}",
    }
    return {**derived, **{name: call.value(name) for name in components if not name.startswith("@")}}
