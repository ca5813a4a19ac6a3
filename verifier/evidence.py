"""Ladder step 10: does the signed request inside a leaf fit the decision that the leaf claims?

Everything here is about one leaf, or a command and its batch; what lies between entries (the anchor's root, reused
nonces, who was enrolled) is replay/'s.
Source: docs/protocol.md 16.5, 28, 31 and 38 (what else is signed in a body); the attacks that each check closes:
security.md §2.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from verifier import entries, request
from verifier.approval import approval_faults
from verifier.delegation import Delegation, chain_fault, is_enrolment_proof, parse_delegations
from verifier.did import decode_did
from verifier.entries import AUTHORITY, Leaf, MemberError, full_type
from verifier.sig import is_valid
from verifier.wire import JsonObject, Malformed, decode_base64, parse_json

_RELEASED, _OPENED, _BATCH = map(full_type, ("lease.released", "session.opened", "batch.received"))
_LOADED, _APPROVING = full_type("rules.loaded"), ("coordination.admit", "approval.ask", "approval.give")


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
    target, wanted = (evidence["method"], evidence["path"]), ("POST", entries.ACTION_PATHS.get(leaf.action or ""))
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
        body = _body(leaf.action or "", text)
    except ValueError as error:
        return (("body_malformed", True, str(error)),)
    return (
        *_asked_rows(leaf, body, signed.created),
        *_identity_rows(leaf, body),
        ("wrong_ledger", body["ledger"] != leaf.origin, "the signed body names another ledger"),
        ("actor_differs", body["actorDid"] != leaf.actor, "actorDid of the signed body is not the leaf's actor"),
    )


def _body(action: str, text: str) -> JsonObject:
    body = parse_json(text.encode("utf-8"), bytes_max=entries.body_bytes_max(action))
    entries.check_body(action, body)
    return body


def _asked_rows(leaf: Leaf, body: JsonObject, created: int) -> tuple[_Row, ...]:
    difference = entries.body_difference(leaf, body)
    # A delayed release without leaseId would else end a lease that its signer did not know of.
    is_late = leaf.number("grantedAtMs") >= (created + 1) * 1000
    is_unseen = is_late and leaf.type == _RELEASED and "leaseId" not in body
    approvals = approval_faults(leaf, body) if leaf.action in _APPROVING else ()
    return (
        ("body_differs", difference is not None, f"member {difference} of the leaf is not what the body asks for"),
        ("released_unseen", is_unseen, "without leaseId no lease ends that was granted after the request was signed"),
        ("rules_digest_wrong", _is_other_text(leaf, body), "digest is not the SHA-256 of the rules in the body"),
        *((code, True, text) for code, text in approvals),
    )


def _is_other_text(leaf: Leaf, body: JsonObject) -> bool:
    return leaf.type == _LOADED and leaf.text("digest") != sha256(str(body["rules"]).encode()).hexdigest()


def _identity_rows(leaf: Leaf, body: JsonObject) -> tuple[_Row, ...]:
    """What else is signed inside a body: the statements that a session lives by, and the proof of a new key."""
    if leaf.action == "session.open":
        try:
            chain = parse_delegations(body["delegations"], leaf.actor)
        except MemberError as error:
            return ((error.code, True, str(error)),)
        return _opened_rows(leaf, chain) if leaf.type == _OPENED else ()
    if "proof" not in body or leaf.action != "agent.add":
        return ()
    is_good = is_enrolment_proof(*(str(body[name]) for name in ("agent", "keyDigest", "ledger", "proof")))
    return (("proof_invalid", not is_good, "proof is not the new key's signature for this ledger and API key"),)


def _opened_rows(leaf: Leaf, chain: Sequence[Delegation]) -> tuple[_Row, ...]:
    """A session may do what its last statement says, for those whom the chain names. The rest needs the ledger."""
    last, fault = chain[-1], chain_fault(chain, leaf.origin, leaf.time_ms)
    said = (leaf.value["verbs"], leaf.value.get("scope"), leaf.number("expiresAtMs"))
    stated = (list(last.verbs), None if last.resources is None else list(last.resources), last.expires_at_ms)
    # Alone it is by an agent, behind whom an operator stands, or by an operator; then the session is its own principal.
    issuer = leaf.on_behalf_of if len(chain) == 1 and leaf.principal == leaf.actor else leaf.principal
    is_for = last.iss == issuer and (len(chain) == 1 or chain[0].iss == leaf.on_behalf_of)
    return (
        (fault or "", fault is not None, "the chain of statements breaks this rule"),
        ("body_differs", said != stated, "verbs, scope and expiresAtMs of the leaf are not the last statement's"),
        ("issuer_differs", not is_for, "principal and onBehalfOf of the leaf are not those who signed the statements"),
    )


def check_command(leaf: Leaf, header: Leaf) -> tuple[tuple[str, str], ...]:
    """Compare the answer to a command with the leaf of its batch, as (code, text); `leaf.batch` is there. Never raises.

    The header's own evidence is for `check_evidence`. Source: docs/protocol.md 31.5.
    """
    batch_seq, index = leaf.batch or (-1, -1)
    is_its_own = header.type == _BATCH and header.seq == batch_seq and index < header.number("count")
    if not is_its_own or _sides(leaf) != _sides(header):
        return (("batch_differs", "no batch of so many commands, or not of the same ledger, epoch, time and actor"),)
    evidence = header.request or {}
    created, commands = _commands(evidence.get("signatureInput", ""), evidence.get("body", ""))
    if index >= len(commands):
        return ()  # the header's fault, and said there
    action, body = commands[index]
    if action != leaf.action:
        return (("body_differs", f"command {index} of the batch asks for another action"),)
    return tuple((code, text) for code, is_there, text in _asked_rows(leaf, body, created) if is_there)


@lru_cache(maxsize=2)
def _commands(signature_input: str, text: str) -> tuple[int, tuple[tuple[str, JsonObject], ...]]:
    """Return when a batch was signed, and action and body of each command; they are asked for one after the other."""
    try:
        body, created = _body("batch.submit", text), request.parse_signature_input(signature_input).created
    except ValueError:
        return 0, ()
    return created, entries.commands_in(body)


def _sides(leaf: Leaf) -> tuple[object, ...]:
    """What a batch and each of its commands have in common."""
    who = (leaf.actor, leaf.principal, leaf.on_behalf_of, leaf.value.get("custody"))
    return (leaf.origin, leaf.genesis, leaf.epoch, leaf.time_ms, *who)


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
