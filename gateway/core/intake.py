"""Bytes to a verified request, in one step: whoever holds a `SignedRequest` knows that its key signed it.

House rules of this file:

* Nothing here needs state. What can be judged from the request alone is the sender's fault and a `Rejection`: no
  entry, no nonce, no idempotency key is spent on it. What needs state is `decide.py`'s.
* Every grammar, the strict key rule and the table of bodies live in `verifier/`, so that the door never accepts what
  an auditor refuses.
* A header that is missing is never an empty string: each has its own rejection.

Source: docs/protocol.md 4. The mistakes of others that this closes: tests/core/test_intake.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from verifier.approval import Approval, parse_approval, parse_approvals
from verifier.delegation import Delegation, is_enrolment_proof, parse_delegations
from verifier.did import decode_did
from verifier.entries import (
    ACTION_PATHS,
    BODY_TEXT,
    MemberError,
    body_bytes_max,
    body_value,
    check_body,
    commands_in,
    is_body_text,
    resources_of,
    rows_of,
)
from verifier.request import (
    BODY_COMPONENTS,
    CONTENT_TYPE,
    READ_COMPONENTS,
    Anchor,
    SignatureInput,
    content_digest,
    is_path,
    is_query,
    parse_anchor,
    parse_idempotency_key,
    parse_signature,
    parse_signature_input,
    signature_base,
)
from verifier.request import is_inside_window as is_inside
from verifier.sig import is_valid
from verifier.wire import JsonObject, Malformed, encode_base64, parse_json

_WITH_TTL = ("lease.acquire", "lease.renew", "lease.accept")
# Every way to be turned away at the door, with its HTTP status. The documents print this table.
REJECTIONS: Mapping[str, int] = MappingProxyType(
    {
        "header_repeated": 400,
        "authorization_present": 400,
        "encoded_body": 400,
        "signature_missing": 401,
        "signature_malformed": 400,
        "components_wrong": 400,
        "key_malformed": 401,
        "authority_wrong": 400,
        "path_wrong": 400,
        "content_type_wrong": 415,
        "idempotency_key_missing": 400,
        "idempotency_key_malformed": 400,
        "anchor_missing": 400,
        "anchor_malformed": 400,
        "digest_missing": 400,
        "digest_mismatch": 400,
        "body_too_large": 413,
        "body_malformed": 400,
        "member_missing": 400,
        "member_unknown": 400,
        "member_invalid": 400,
        "member_conflict": 400,
        "signature_invalid": 401,
        "actor_mismatch": 403,
        "wrong_ledger": 400,
        "wrong_anchor": 400,
        "delegation_invalid": 400,
        "proof_invalid": 400,
        "approval_invalid": 400,
        "key_statement_invalid": 400,
        "key_unready": 409,
        "rules_invalid": 400,
        "rules_unready": 409,
        "rules_unchecked": 409,
        "token_invalid": 401,
    }
)
# Headers that decide something here. Two of one name, however spelled, would let two readers see two requests.
DECIDING = frozenset(
    {
        "authorization",
        "content-digest",
        "content-encoding",
        "content-type",
        "host",
        "idempotency-key",
        "signature",
        "signature-input",
        "tallystick-anchor",
    }
)


# Agents that were answered in one batch hold the same checkpoint, and send it until their next answer.
_parse_anchor = lru_cache(maxsize=256)(parse_anchor)


class Rejection(Exception):
    """The request itself is wrong: nothing was decided. `code` is a row of REJECTIONS, `detail` says what to change."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.status = REJECTIONS[code]
        self.detail = detail


class RawRequest(NamedTuple):
    """A request as it came off the socket, unverified.

    `authority` is the Host, `raw_path` the path of the target undecoded, `query` its "?" and what follows ("?" alone
    when there is none). `headers` has one pair for each field line; `body` are the wire bytes, never decompressed.
    """

    method: str
    authority: str
    raw_path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class SignedRequest(NamedTuple):
    """A mutation whose signature, digest, coverage, target and body were verified.

    `actor` is the DID whose key signed. Whose trust, bounds and waits count (`principal`), who answers for that
    (`on_behalf_of`) and whether the gateway holds the key (`custody`) only the ledger knows: the core fills it in.
    `delegations`, outermost first, are those of a request that opens a session; `approvals` those that an admission
    uses or that one gives, `approvals_within` those of each command of a batch: all with their signatures verified.
    `body_text` is the exact text that was signed and `signature_input` the whole field value: both become evidence.
    `created` and `expires` are seconds; whether they hold now is asked by `is_inside_window`. `fingerprint` is what an
    idempotency key is bound to. A tuple, because each request makes one: it is made in half the time of a dataclass.
    """

    action: str
    method: str
    authority: str
    path: str
    query: str
    content_type: str
    idempotency_key: str
    anchor: Anchor
    anchor_text: str
    body_text: str
    body: JsonObject
    signature_input: str
    signature_b64: str
    keyid: str
    actor: str
    principal: str
    on_behalf_of: str
    created: int
    expires: int
    nonce: str
    fingerprint: str
    custody: str = ""
    delegations: tuple[Delegation, ...] = ()
    approvals: tuple[Approval, ...] = ()
    approvals_within: tuple[tuple[Approval, ...], ...] = ()

    @property
    def resources(self) -> tuple[str, ...]:
        """Return the names in the body, sorted, each once."""
        return resources_of(self.body)

    def text(self, name: str) -> str:
        """Return a member of the checked body that is a text, or its default."""
        value = body_value(self.action, self.body, name)
        assert isinstance(value, str), "a checked body"
        return value

    def number(self, name: str) -> int:
        """Return a member of the checked body that is an integer, or its default."""
        value = body_value(self.action, self.body, name)
        assert isinstance(value, int), "a checked body"
        return value

    def flag(self, name: str) -> bool:
        """Return a member of the checked body that is true or false, or its default."""
        value = body_value(self.action, self.body, name)
        assert isinstance(value, bool), "a checked body"
        return value

    def repeat(self, *names: str) -> JsonObject:
        """Return these members as an entry repeats them: what was asked for or its default, nothing without either."""
        values = ((name, body_value(self.action, self.body, name)) for name in names)
        return {name: value for name, value in values if value is not None}


def commands_of(request: SignedRequest) -> tuple[SignedRequest, ...]:
    """Return the commands of a batch as requests of their own, in order; nothing for any other request."""
    if request.action != "batch.submit":
        return ()
    rows = zip(commands_in(request.body), request.approvals_within, strict=True)
    return tuple(request._replace(action=action, body=body, approvals=given) for (action, body), given in rows)


def weight_of(request: SignedRequest) -> int:
    """Return how many commands a request is: those of a batch, or itself."""
    return max(1, len(rows_of(request.body.get("commands")))) if request.action == "batch.submit" else 1


@dataclass(frozen=True, slots=True)
class SignedRead:
    """A read whose signature was verified. It has a nonce and leaves no record: repeating a read changes nothing."""

    authority: str
    path: str
    query: str
    anchor: Anchor
    keyid: str
    created: int
    expires: int
    nonce: str


def is_inside_window(request: SignedRequest | SignedRead, now_ms: int, skew_ms: int) -> bool:
    """Say whether the signature counts at `now_ms`, by the rule of the verifier.

    The door asks it as an early exit; only the answer for the batch's log time decides.
    """
    return is_inside(request.created, request.expires, now_ms, skew_ms)


def intake(raw: RawRequest, *, origin: str, authorities: Collection[str], action: str) -> SignedRequest:
    """Verify a mutation with all that it brings along, or raise Rejection with the first thing that is wrong."""
    return with_approvals(intake_first(raw, origin=origin, authorities=authorities, action=action))


def with_approvals(request: SignedRequest) -> SignedRequest:
    """Return a request with the approvals that it and each command of it bring along, or raise Rejection."""
    own, within = _approvals(request.body), tuple(map(_approvals, rows_of(request.body.get("commands"))))
    # Hardly any has one; to copy a tuple of this length costs as much as a hundred comparisons.
    return request._replace(approvals=own, approvals_within=within) if own or any(within) else request


def intake_first(raw: RawRequest, *, origin: str, authorities: Collection[str], action: str) -> SignedRequest:
    """Verify a mutation and return it without approvals, or raise Rejection with the first thing that is wrong.

    A batch may bring forty of them, each with a signature; the door looks at these when it knows who pays. `action` is
    a key of `verifier.entries.ACTION_BODIES`; the request must be a POST to that action's path.
    """
    headers = _headers(raw)
    signed, key, signature = _signature(headers, BODY_COMPONENTS)
    authority = _authority(raw, authorities)
    if raw.method != "POST" or raw.raw_path != ACTION_PATHS[action] or not is_query(raw.query):
        raise Rejection("path_wrong", f"this action is a POST to {ACTION_PATHS[action]}, spelled exactly so")
    if headers.get("content-type") != CONTENT_TYPE:
        raise Rejection("content_type_wrong", f"content-type must be exactly {CONTENT_TYPE}")
    idempotency_key = _idempotency_key(headers)
    anchor = _anchor(headers)
    digest = _digest(headers, raw.body)
    text, body = _body(raw.body, action)
    _check_signature(signed, key, signature, _values(raw, authority, headers))
    _check_names(signed, anchor, body, origin)
    _check_proof(action, body, origin)
    return SignedRequest(
        action=action,
        method=raw.method,
        authority=authority,
        path=raw.raw_path,
        query=raw.query,
        content_type=CONTENT_TYPE,
        idempotency_key=idempotency_key,
        anchor=anchor,
        anchor_text=headers["tallystick-anchor"],
        body_text=text,
        body=body,
        signature_input=headers["signature-input"],
        signature_b64=encode_base64(signature),
        keyid=signed.keyid,
        actor=signed.keyid,
        principal=signed.keyid,
        on_behalf_of=signed.keyid,
        created=signed.created,
        expires=signed.expires,
        nonce=signed.nonce,
        fingerprint=fingerprint(raw.method, raw.raw_path, raw.query, digest),
        delegations=_delegations(body, signed.keyid) if action == "session.open" else (),
        approvals_within=((),) * len(rows_of(body.get("commands"))),
    )


def check_ttl(request: SignedRequest, ttl_min_ms: int, ttl_max_ms: int) -> None:
    """Raise Rejection unless the ttl the request asks for lies within this ledger's own bounds, stated in entry 0."""
    if request.action not in _WITH_TTL:
        return
    ttl_ms = request.number("ttlMs")
    if not ttl_min_ms <= ttl_ms <= ttl_max_ms:
        raise Rejection(
            "member_invalid", f"ttlMs must be {ttl_min_ms:,} to {ttl_max_ms:,} on this ledger, not {ttl_ms}"
        )


def intake_read(raw: RawRequest, *, origin: str, authorities: Collection[str]) -> SignedRead:
    """Verify a signed GET or HEAD and return it, or raise Rejection. How long it may live is the caller's question."""
    headers = _headers(raw)
    signed, key, signature = _signature(headers, READ_COMPONENTS)
    authority = _authority(raw, authorities)
    if raw.method not in ("GET", "HEAD") or not is_path(raw.raw_path) or not is_query(raw.query):
        raise Rejection("path_wrong", "a signed read is a GET or HEAD of a path without %, // and /.")
    if raw.body:
        raise Rejection("body_malformed", f"a signed read has no body, this one has {len(raw.body)} bytes")
    anchor = _anchor(headers)
    _check_signature(signed, key, signature, _values(raw, authority, headers))
    if anchor.origin != origin:
        raise Rejection("wrong_anchor", "the anchor names another ledger")
    return SignedRead(
        authority, raw.raw_path, raw.query, anchor, signed.keyid, signed.created, signed.expires, signed.nonce
    )


def fingerprint(method: str, path: str, query: str, digest: str) -> str:
    """Return what an idempotency key is bound to: 64 hex digits over method, path, query and the body's digest."""
    return hashlib.sha256("\n".join((method, path, query, digest)).encode()).hexdigest()


def _headers(raw: RawRequest) -> dict[str, str]:
    """Return the deciding headers by lower-case name, each of which may stand there once."""
    headers: dict[str, str] = {}
    for name, value in raw.headers:
        lower = name.lower()
        if lower in DECIDING:
            if lower in headers:
                raise Rejection("header_repeated", f"header {lower} stands there twice; send it once")
            headers[lower] = value
    if "authorization" in headers:
        raise Rejection("authorization_present", "a signed request carries no Authorization; leave it out")
    if "content-encoding" in headers:
        raise Rejection("encoded_body", "a signed body is not compressed; send it without Content-Encoding")
    return headers


def _signature(headers: Mapping[str, str], components: frozenset[str]) -> tuple[SignatureInput, bytes, bytes]:
    """Return the parsed profile, which covers exactly `components`, its strict key and the signature, unverified."""
    if "signature-input" not in headers or "signature" not in headers:
        raise Rejection("signature_missing", "headers Signature-Input and Signature are both needed")
    try:
        signed = parse_signature_input(headers["signature-input"])
        signature = parse_signature(headers["signature"], signed.label)
    except Malformed as error:
        raise Rejection("signature_malformed", str(error)) from error
    if frozenset(signed.components) != components:
        wanted = " ".join(f'"{name}"' for name in sorted(components))
        raise Rejection("components_wrong", f"the signature must cover exactly {wanted}")
    try:
        return signed, decode_did(signed.keyid), signature
    except Malformed as error:
        raise Rejection("key_malformed", str(error)) from error


def _authority(raw: RawRequest, authorities: Collection[str]) -> str:
    """Return the authority as signed: lower case, a default port dropped; it must be one of entry 0's."""
    authority = raw.authority.lower()
    bare, _, port = authority.rpartition(":")
    # A host that still has a colon, unless an IPv6 address in its brackets, had another port before this one.
    is_default = port in ("80", "443") and (":" not in bare or (bare.startswith("[") and bare.endswith("]")))
    for known in (authority, bare if is_default else authority):
        if known in authorities:
            return known
    raise Rejection("authority_wrong", "the Host is none of this ledger's authorities; use the one you joined under")


def _idempotency_key(headers: Mapping[str, str]) -> str:
    if "idempotency-key" not in headers:
        raise Rejection("idempotency_key_missing", "header Idempotency-Key is needed: a fresh quoted string per change")
    try:
        return parse_idempotency_key(headers["idempotency-key"])
    except Malformed as error:
        raise Rejection("idempotency_key_malformed", str(error)) from error


def _anchor(headers: Mapping[str, str]) -> Anchor:
    if "tallystick-anchor" not in headers:
        raise Rejection("anchor_missing", "header tallystick-anchor is needed: <origin> <size> <base64 root>")
    try:
        return _parse_anchor(headers["tallystick-anchor"])
    except Malformed as error:
        raise Rejection("anchor_malformed", str(error)) from error


def _digest(headers: Mapping[str, str], body: bytes) -> str:
    """Return the digest of the bytes that came, which the header must state, character for character."""
    if "content-digest" not in headers:
        raise Rejection("digest_missing", "header Content-Digest is needed, also for an empty body")
    digest = content_digest(body)
    if headers["content-digest"] != digest:
        raise Rejection("digest_mismatch", "Content-Digest must be sha-256=:<base64>: of exactly the bytes sent")
    return digest


def _body(data: bytes, action: str) -> tuple[str, JsonObject]:
    """Return the body's exact text and its members. Its size counts as a JSON string, so that every leaf fits."""
    bytes_max = body_bytes_max(action)
    if len(data) > bytes_max:
        raise Rejection("body_too_large", f"the body has {len(data)} bytes, at most {bytes_max} are allowed")
    try:
        body = parse_json(data, bytes_max=bytes_max)
        check_body(action, body)
    except MemberError as error:
        raise Rejection(error.code, str(error)) from error
    except Malformed as error:
        raise Rejection("body_malformed", str(error)) from error
    text = data.decode("utf-8")
    if not is_body_text(text, bytes_max):
        raise Rejection("body_too_large", f"the body must be {BODY_TEXT.bound}")
    return text, body


def _delegations(body: JsonObject, actor: str) -> tuple[Delegation, ...]:
    """Return the statements by which a session opens: each holds by itself, and they lead to the key that signed."""
    try:
        return parse_delegations(body["delegations"], actor)
    except MemberError as error:
        raise Rejection(error.code, str(error)) from error


def _approvals(body: JsonObject) -> tuple[Approval, ...]:
    """Return the approvals that a request or a command of a batch brings along: each is signed by its approver."""
    try:
        if "approval" in body:
            return (parse_approval(body["approval"]),)
        return parse_approvals(body["approvals"]) if "approvals" in body else ()
    except MemberError as error:
        raise Rejection(error.code, str(error)) from error


def _check_proof(action: str, body: JsonObject, origin: str) -> None:
    """Who enrols by an API key shows that the new key signed for it, so that nobody enrols the key of another."""
    if action != "agent.add" or "proof" not in body:
        return
    agent, key_digest, proof = (str(body[name]) for name in ("agent", "keyDigest", "proof"))
    if not is_enrolment_proof(agent, key_digest, origin, proof):
        raise Rejection("proof_invalid", "proof must be the new key's signature over its DID, keyDigest and ledger")


def _values(raw: RawRequest, authority: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the component values of a request; the headers among them were all compared or parsed before."""
    return {
        **headers,
        "@method": raw.method,
        "@authority": authority,
        "@path": raw.raw_path,
        "@query": raw.query,
    }


def _check_signature(signed: SignatureInput, key: bytes, signature: bytes, values: Mapping[str, str]) -> None:
    if not is_valid(key, signature_base(signed, values), signature):
        raise Rejection("signature_invalid", "the signature does not fit method, target, headers and body as received")


def _check_names(signed: SignatureInput, anchor: Anchor, body: JsonObject, origin: str) -> None:
    """The signed names must be those of this signer and this ledger, so that no signature serves another's purpose."""
    if body["actorDid"] != signed.keyid:
        raise Rejection("actor_mismatch", "actorDid of the body must be the keyid of the signature")
    if body["ledger"] != origin:
        raise Rejection("wrong_ledger", f"ledger of the body must be {origin}")
    if anchor.origin != origin:
        raise Rejection("wrong_anchor", f"the anchor must be a checkpoint of {origin}")
