"""Ladder step 10: does the signed request inside a leaf fit the decision that the leaf claims?

Everything here is about one leaf; what lies between entries (the anchor's root, reused nonces) is replay/'s.
Source: docs/protocol.md 16.5; the attacks that each check closes: security.md §2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from verifier import request
from verifier.did import decode_did
from verifier.entries import ACTION_PATHS, AUTHORITY, Leaf, body_difference, check_body, full_type
from verifier.sig import is_valid
from verifier.wire import BODY_BYTES_MAX, Malformed, decode_base64, parse_json

_RELEASED = full_type("lease.released")


class Evidence(NamedTuple):
    """What step 10 found in one leaf: `faults` as (code, text), in order; the other two are None when unreadable."""

    faults: tuple[tuple[str, str], ...]
    signature_input: request.SignatureInput | None = None
    anchor: request.Anchor | None = None


_Row = tuple[str, bool, str]  # code, whether the fault is there, text


def check_evidence(leaf: Leaf, authorities: Collection[str] | None = None) -> Evidence:
    """Judge the evidence of a known, request-caused leaf alone: ladder step 10 (a) to (g).

    `authorities` is entry 0's list, or None when entry 0 is not at hand. Whether the anchor's root is the ledger's, and
    everything between entries, is the caller's. Never raises. Source: docs/protocol.md 16.5, security.md §2.
    """
    evidence = leaf.request
    if evidence is None:
        return Evidence((("evidence_missing", "an entry caused by a request carries it as evidence; there is none"),))
    try:
        signed = request.parse_signature_input(evidence["signatureInput"])
        signature = decode_base64(evidence["signature"], 64)
        anchor = request.parse_anchor(evidence["anchor"])
        request.parse_idempotency_key(f'"{evidence["idempotencyKey"]}"')
        if not _is_target(evidence["authority"], evidence["path"], evidence["query"]):
            raise Malformed("authority, path or query is outside the door's grammar")
    except Malformed as error:
        return Evidence((("evidence_malformed", str(error)),))
    is_inside = request.is_inside_window(signed.created, signed.expires, leaf.time_ms)
    rows = (
        *_target_rows(leaf, evidence, signed, authorities),
        *_body_rows(leaf, evidence["body"], signed),
        ("actor_differs", signed.keyid != leaf.actor, "keyid is not the leaf's actor"),
        _signature_row(evidence, signed, signature),
        ("anchor_wrong", anchor.origin != leaf.origin, "the request's anchor names another ledger"),
        ("anchor_wrong", anchor.size > leaf.seq, f"the anchor's size {anchor.size} is above the seq {leaf.seq}"),
        ("anchor_wrong", anchor.size == 1 and anchor.root != leaf.genesis, "the anchor of size 1 is not the genesis"),
        ("outside_window", not is_inside, "timeMs is outside created to expires, ± 30 s"),
    )
    return Evidence(tuple((code, text) for code, is_there, text in rows if is_there), signed, anchor)


@lru_cache(maxsize=1_024)
def _is_target(authority: str, path: str, query: str) -> bool:
    """(a) for the three that are the same in most entries."""
    return AUTHORITY.check(authority) and request.is_path(path) and request.is_query(query)


def _target_rows(
    leaf: Leaf, evidence: Mapping[str, str], signed: request.SignatureInput, authorities: Collection[str] | None
) -> tuple[_Row, ...]:
    """(b) and (c): the covered set, and a target that is the action's."""
    target, wanted = (evidence["method"], evidence["path"]), ("POST", ACTION_PATHS.get(leaf.action or ""))
    is_foreign = authorities is not None and evidence["authority"] not in authorities
    return (
        ("components_wrong", set(signed.components) != request.BODY_COMPONENTS, "not exactly the profile's components"),
        ("authority_wrong", is_foreign, "@authority is not in the list of entry 0"),
        ("target_wrong", target != wanted, "method and path are not those of the action this entry type answers"),
        ("content_type_wrong", evidence["contentType"] != request.CONTENT_TYPE, "content-type is not application/json"),
    )


def _body_rows(leaf: Leaf, text: str, signed: request.SignatureInput) -> tuple[_Row, ...]:
    """(d): the body by the one strict decoder, and every fact of the leaf in it."""
    try:
        body = parse_json(text.encode("utf-8"), bytes_max=BODY_BYTES_MAX)
        check_body(leaf.action or "", body)
    except ValueError as error:
        return (("body_malformed", True, str(error)),)
    difference = body_difference(leaf, body)
    # A delayed release without leaseId would else end a lease that its signer did not know of.
    is_blind = leaf.type == _RELEASED and "leaseId" not in body
    is_unseen = is_blind and leaf.number("grantedAtMs") >= (signed.created + 1) * 1000
    return (
        ("body_differs", difference is not None, f"member {difference} of the leaf is not what the body asks for"),
        ("released_unseen", is_unseen, "without leaseId no lease ends that was granted after the request was signed"),
        ("wrong_ledger", body["ledger"] != leaf.origin, "the signed body names another ledger"),
        ("actor_differs", body["actorDid"] != leaf.actor, "actorDid of the signed body is not the leaf's actor"),
    )


def _signature_row(evidence: Mapping[str, str], signed: request.SignatureInput, signature: bytes) -> _Row:
    """(e): the strict signature over the base that these parts give."""
    try:
        key, base = decode_did(signed.keyid), request.signature_base(signed, evidence_values(evidence))
    except Malformed as error:
        return ("evidence_malformed", True, str(error))
    is_good = is_valid(key, base, signature)
    return ("request_signature_invalid", not is_good, "the signature does not fit method, target, headers and body")


def evidence_values(evidence: Mapping[str, str]) -> dict[str, str]:
    """Return the component values of stored evidence; the digest is computed from the body, never believed."""
    return {
        "@method": evidence["method"],
        "@authority": evidence["authority"],
        "@path": evidence["path"],
        "@query": evidence["query"],
        "content-type": evidence["contentType"],
        "content-digest": request.content_digest(evidence["body"].encode("utf-8")),
        "idempotency-key": f'"{evidence["idempotencyKey"]}"',
        "tallystick-anchor": evidence["anchor"],
    }
