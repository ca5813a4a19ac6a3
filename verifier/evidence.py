"""Ladder step 10: does the signed request inside a leaf fit the decision that the leaf claims?

Everything here is about one leaf; what lies between entries (the anchor's root, reused nonces) is replay/'s.
Source: docs/protocol.md 16.5; the attacks that each check closes: security.md §2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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


def check_evidence(leaf: Leaf, authorities: Collection[str] | None = None) -> Evidence:
    """Judge the evidence of a known, request-caused leaf alone: ladder step 10 (a) to (g).

    `authorities` is entry 0's list, or None when entry 0 is not at hand. Whether the anchor's root is the ledger's, and
    everything between entries, is the caller's. Never raises. Source: docs/protocol.md 16.5, security.md §2.
    """
    evidence = leaf.request
    if evidence is None:
        return Evidence((("evidence_missing", "an entry caused by a request carries it as evidence; there is none"),))
    try:
        signature_input = parse_signature_input(evidence["signatureInput"])
        signature = decode_base64(evidence["signature"], 64)
        anchor = parse_anchor(evidence["anchor"])
        parse_idempotency_key(f'"{evidence["idempotencyKey"]}"')
        if not (is_path(evidence["path"]) and is_query(evidence["query"]) and AUTHORITY.check(evidence["authority"])):
            raise Malformed("authority, path or query is outside the door's grammar")
    except Malformed as error:
        return Evidence((("evidence_malformed", str(error)),))
    faults = [
        *_target_faults(leaf, evidence, signature_input, authorities),
        *_body_faults(leaf, evidence["body"], signature_input),
        *_signature_faults(leaf, evidence, signature_input, signature),
        *_anchor_faults(leaf, anchor),
    ]
    if not signature_input.is_inside_window(leaf.time_ms):
        faults.append(("outside_window", "timeMs is outside the request's created and expires, widened by 30 s"))
    return Evidence(tuple(faults), signature_input, anchor)


def _target_faults(
    leaf: Leaf, evidence: Mapping[str, str], signature_input: SignatureInput, authorities: Collection[str] | None
) -> Iterator[tuple[str, str]]:
    """(b) and (c): the covered set, and a target that is the action's."""
    if frozenset(signature_input.components) != BODY_COMPONENTS:
        yield "components_wrong", "the covered components are not exactly the profile's set for a request with a body"
    if authorities is not None and evidence["authority"] not in authorities:
        yield "authority_wrong", "@authority is not in the list of entry 0"
    if evidence["method"] != "POST" or evidence["path"] != ACTION_PATHS.get(leaf.action or ""):
        yield "target_wrong", "method and path are not those of the action that this entry type answers"
    if evidence["contentType"] != CONTENT_TYPE:
        yield "content_type_wrong", f"content-type is not {CONTENT_TYPE}"


def _body_faults(leaf: Leaf, text: str, signature_input: SignatureInput) -> Iterator[tuple[str, str]]:
    """(d): the body by the one strict decoder, and every fact of the leaf in it."""
    try:
        body = parse_json(text.encode("utf-8"), bytes_max=BODY_BYTES_MAX)
        check_body(leaf.action or "", body)
    except ValueError as error:
        yield "body_malformed", str(error)
        return
    difference = body_difference(leaf, body)
    if difference is not None:
        yield "body_differs", f"member {difference} of the leaf is not what the signed body asks for"
    if leaf.type == _RELEASED and "leaseId" not in body:
        # Else a delayed release would end a lease that its signer did not know of.
        if leaf.number("grantedAtMs") >= (signature_input.created + 1) * 1000:
            yield "released_unseen", "a release without leaseId ends no lease that was granted after it was signed"
    if body["ledger"] != leaf.origin:
        yield "wrong_ledger", "the signed body names another ledger"
    if body["actorDid"] != leaf.actor:
        yield "actor_differs", "actorDid of the signed body is not the leaf's actor"


def _signature_faults(
    leaf: Leaf, evidence: Mapping[str, str], signature_input: SignatureInput, signature: bytes
) -> Iterator[tuple[str, str]]:
    """(e): keyid is the actor, and the strict signature over the base that these parts give."""
    if signature_input.keyid != leaf.actor:
        yield "actor_differs", "keyid is not the leaf's actor"
    try:
        key = decode_did(signature_input.keyid)
        base = signature_base(signature_input, evidence_values(evidence))
    except Malformed as error:
        yield "evidence_malformed", str(error)
        return
    if not is_valid(key, base, signature):
        yield "request_signature_invalid", "the request's signature does not fit method, target, headers and body"


def _anchor_faults(leaf: Leaf, anchor: Anchor) -> Iterator[tuple[str, str]]:
    """(f) as far as one leaf shows it."""
    if anchor.origin != leaf.origin:
        yield "anchor_wrong", "the request's anchor names another ledger"
    if anchor.size > leaf.seq:
        yield "anchor_wrong", f"the request's anchor has size {anchor.size}, the ledger had {leaf.seq} entries then"
    if anchor.size == 1 and anchor.root != leaf.genesis:
        yield "anchor_wrong", "the request's anchor of size 1 is not the leaf's genesis"


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
