"""Ladder step 10: does the signed request inside a leaf fit the decision that the leaf claims?

Everything here is about one leaf; what lies between entries (the anchor's root, reused nonces) is replay/'s.
Source: docs/protocol.md 16.5; the attacks that each check closes: security.md §2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from verifier.did import decode_did
from verifier.entries import ACTION_PATHS, AUTHORITY, Leaf, body_difference, check_body, full_type
from verifier.request import (
    BODY_COMPONENTS,
    CONTENT_TYPE,
    Anchor,
    SignatureInput,
    content_digest,
    is_path,
    is_query,
    parse_anchor,
    parse_idempotency_key,
    parse_signature_input,
    signature_base,
)
from verifier.sig import is_valid
from verifier.wire import BODY_BYTES_MAX, Malformed, decode_base64, parse_json

_RELEASED = full_type("lease.released")


class Evidence(NamedTuple):
    """What step 10 found in one leaf: `faults` as (code, text), in order; the other two are None when unreadable."""

    faults: tuple[tuple[str, str], ...]
    signature_input: SignatureInput | None = None
    anchor: Anchor | None = None


_Faults = list[tuple[str, str]]


def check_evidence(leaf: Leaf, authorities: Collection[str] | None = None) -> Evidence:
    """Judge the evidence of a known, request-caused leaf alone: ladder step 10 (a) to (g).

    `authorities` is entry 0's list, or None when entry 0 is not at hand. Whether the anchor's root is the ledger's, and
    everything between entries, is the caller's. Never raises. Source: docs/protocol.md 16.5, security.md §2.
    """
    evidence = leaf.request
    if evidence is None:
        return Evidence((("evidence_missing", "an entry caused by a request carries it as evidence; there is none"),))
    try:
        signed = parse_signature_input(evidence["signatureInput"])
        signature = decode_base64(evidence["signature"], 64)
        anchor = parse_anchor(evidence["anchor"])
        parse_idempotency_key(f'"{evidence["idempotencyKey"]}"')
        if not _is_target(evidence["authority"], evidence["path"], evidence["query"]):
            raise Malformed("authority, path or query is outside the door's grammar")
    except Malformed as error:
        return Evidence((("evidence_malformed", str(error)),))
    faults: _Faults = []
    action = leaf.action or ""
    _check_target(faults, evidence, action, signed)
    if authorities is not None and evidence["authority"] not in authorities:
        faults.append(("authority_wrong", "@authority is not in the list of entry 0"))
    _check_body(faults, leaf, action, evidence["body"], signed)
    _check_signature(faults, leaf, evidence, signed, signature)
    _check_anchor(faults, leaf, anchor)
    if not signed.is_inside_window(leaf.time_ms):
        faults.append(("outside_window", "timeMs is outside the request's created and expires, widened by 30 s"))
    return Evidence(tuple(faults), signed, anchor)


@lru_cache(maxsize=1_024)
def _is_target(authority: str, path: str, query: str) -> bool:
    """(a) for the three that are the same in most entries."""
    return AUTHORITY.check(authority) and is_path(path) and is_query(query)


def _check_target(faults: _Faults, evidence: Mapping[str, str], action: str, signed: SignatureInput) -> None:
    """(b) and (c): the covered set, and a target that is the action's."""
    if BODY_COMPONENTS.symmetric_difference(signed.components):
        text = "the covered components are not exactly the profile's set for a request with a body"
        faults.append(("components_wrong", text))
    if evidence["method"] != "POST" or evidence["path"] != ACTION_PATHS.get(action):
        faults.append(("target_wrong", "method and path are not those of the action that this entry type answers"))
    if evidence["contentType"] != CONTENT_TYPE:
        faults.append(("content_type_wrong", f"content-type is not {CONTENT_TYPE}"))


def _check_body(faults: _Faults, leaf: Leaf, action: str, text: str, signed: SignatureInput) -> None:
    """(d): the body by the one strict decoder, and every fact of the leaf in it."""
    try:
        body = parse_json(text.encode("utf-8"), bytes_max=BODY_BYTES_MAX)
        check_body(action, body)
    except ValueError as error:
        faults.append(("body_malformed", str(error)))
        return
    difference = body_difference(leaf, body)
    if difference is not None:
        faults.append(("body_differs", f"member {difference} of the leaf is not what the signed body asks for"))
    # A delayed release would else end a lease that its signer did not know of.
    is_blind = leaf.type == _RELEASED and "leaseId" not in body
    if is_blind and leaf.number("grantedAtMs") >= (signed.created + 1) * 1000:
        text = "a release without leaseId ends no lease that was granted after it was signed"
        faults.append(("released_unseen", text))
    if body["ledger"] != leaf.origin:
        faults.append(("wrong_ledger", "the signed body names another ledger"))
    if body["actorDid"] != leaf.actor:
        faults.append(("actor_differs", "actorDid of the signed body is not the leaf's actor"))


def _check_signature(
    faults: _Faults, leaf: Leaf, evidence: Mapping[str, str], signed: SignatureInput, signature: bytes
) -> None:
    """(e): keyid is the actor, and the strict signature over the base that these parts give."""
    if signed.keyid != leaf.actor:
        faults.append(("actor_differs", "keyid is not the leaf's actor"))
    try:
        key = decode_did(signed.keyid)
        base = signature_base(signed, evidence_values(evidence))
    except Malformed as error:
        faults.append(("evidence_malformed", str(error)))
        return
    if not is_valid(key, base, signature):
        text = "the request's signature does not fit method, target, headers and body"
        faults.append(("request_signature_invalid", text))


def _check_anchor(faults: _Faults, leaf: Leaf, anchor: Anchor) -> None:
    """(f) as far as one leaf shows it."""
    if anchor.origin != leaf.origin:
        faults.append(("anchor_wrong", "the request's anchor names another ledger"))
    if anchor.size > leaf.seq:
        text = f"the request's anchor has size {anchor.size}, the ledger had {leaf.seq} entries then"
        faults.append(("anchor_wrong", text))
    if anchor.size == 1 and anchor.root != leaf.genesis:
        faults.append(("anchor_wrong", "the request's anchor of size 1 is not the leaf's genesis"))


def evidence_values(evidence: Mapping[str, str]) -> dict[str, str]:
    """Return the component values of stored evidence; the digest is computed from the body, never believed."""
    return {
        "@method": evidence["method"],
        "@authority": evidence["authority"],
        "@path": evidence["path"],
        "@query": evidence["query"],
        "content-type": evidence["contentType"],
        "content-digest": content_digest(evidence["body"].encode("utf-8")),
        "idempotency-key": f'"{evidence["idempotencyKey"]}"',
        "tallystick-anchor": evidence["anchor"],
    }
