"""The ladder of one receipt: steps 1 to 12, in the order and with the numbers of the protocol.

Nothing inside a receipt is a source of trust; every level is reached through a key the reader pinned. All steps that
can be walked are walked, whatever failed before, because an auditor wants every finding.
Source: docs/protocol.md 16 (ladder), 14 (receipts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.did import thumbprint
from verifier.entries import Leaf, full_type, parse_leaf, resources_of
from verifier.evidence import check_evidence
from verifier.keyring import Keyring, covers
from verifier.merkle import leaf_hash, root_from_inclusion
from verifier.proof import Proof, parse_proof
from verifier.sig import is_valid
from verifier.signers import check_signers
from verifier.verdict import Finding, Outcome, Report
from verifier.wire import (
    LEAF_BYTES_MAX,
    PROOF_BYTES_MAX,
    RECEIPT_BYTES_MAX,
    JsonValue,
    Malformed,
    decode_base64,
    parse_json,
)

PAYLOAD_TYPE = "application/vnd.tallystick.leaf.v1+json"
_MEMBERS = {"payloadType", "payload", "signatures", "proof"}
_LEASES = {full_type(name) for name in ("lease.granted", "lease.extended", "lease.renewed")}


def pre_authentication(leaf: bytes) -> bytes:
    """Return the bytes that a receipt key signs: the DSSE PAE of the leaf. Source: docs/protocol.md 14.2."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode("ascii"), len(leaf), leaf)


@dataclass(slots=True)
class _Walk:
    """What is known so far about one receipt. The parts are None until their step read them."""

    findings: list[Finding] = field(default_factory=list)
    leaf_bytes: bytes = b""
    leaf: Leaf | None = None
    checkpoint: Checkpoint | None = None
    direct_signature: str = "not_checked"
    is_log_signed: bool = False
    level: str = "none"
    ignored_lines: int = 0

    def say(self, step: int, code: str, text: str, outcome: Outcome = Outcome.INVALID) -> None:
        self.findings.append(Finding(step, code, outcome, text))


def check_receipt(
    unverified_bytes: bytes,
    keyring: Keyring,
    *,
    level: str = "included",
    now_ms: int | None = None,
    others: Sequence[bytes] = (),
) -> Report:
    """Walk the ladder and report; never raises on any bytes.

    `others` are receipts or checkpoints of the same origin for step 12; `now_ms` is the caller's clock for step 11.
    """
    walk = _walk(unverified_bytes, keyring)
    if now_ms is not None and walk.leaf is not None:
        _check_end(walk, walk.leaf, now_ms)
    for number, other in enumerate(others, 1):
        _compare(walk, _walk_other(other, keyring), number)
    is_whole = not any(finding.outcome >= Outcome.INVALID for finding in walk.findings)
    return Report(
        command="receipt",
        findings=tuple(walk.findings),
        requested=level,
        level=_level(walk) if is_whole else "none",
        direct_signature=walk.direct_signature,
        statement=_statement(walk.leaf) if is_whole and walk.leaf is not None else (),
        facts=_facts(walk, keyring),
    )


def _walk(unverified_bytes: bytes, keyring: Keyring) -> _Walk:
    """Steps 1 to 10."""
    walk = _Walk()
    try:
        keyid, signature, proof_text = _open_envelope(walk, unverified_bytes)
    except Malformed as error:
        is_size = len(unverified_bytes) > RECEIPT_BYTES_MAX or len(walk.leaf_bytes) > LEAF_BYTES_MAX
        walk.say(1 if is_size else 2, "too_large" if is_size else "envelope_malformed", str(error))
        return walk
    try:
        walk.leaf = parse_leaf(walk.leaf_bytes)
    except Malformed as error:
        walk.say(9, "leaf_malformed", str(error))
    _check_direct_signature(walk, keyring, keyid, signature)
    proof = _check_proof(walk, keyring, proof_text)
    if walk.leaf is not None:
        _check_leaf(walk, walk.leaf, keyring, proof)
        _check_evidence(walk, walk.leaf)
    walk.findings.sort(key=lambda finding: finding.step)
    return walk


def _open_envelope(walk: _Walk, unverified_bytes: bytes) -> tuple[str, bytes, bytes]:
    """Steps 1 and 2: return keyid, signature and proof text; the leaf's bytes go into `walk`."""
    envelope = parse_json(unverified_bytes, bytes_max=RECEIPT_BYTES_MAX)
    if envelope.keys() != _MEMBERS or envelope["payloadType"] != PAYLOAD_TYPE:
        raise Malformed(f"a receipt has exactly payloadType ({PAYLOAD_TYPE}), payload, signatures and proof")
    payload, proof, signatures = envelope["payload"], envelope["proof"], envelope["signatures"]
    row: JsonValue = signatures[0] if isinstance(signatures, list) and len(signatures) == 1 else None
    if not isinstance(row, dict) or row.keys() != {"keyid", "sig"}:
        raise Malformed("signatures: exactly one, with exactly keyid and sig")
    keyid, signature = row["keyid"], row["sig"]
    if not (isinstance(payload, str) and isinstance(proof, str)):
        raise Malformed("payload and proof are strings")
    if not (isinstance(keyid, str) and isinstance(signature, str)):
        raise Malformed("keyid and sig are strings")
    walk.leaf_bytes = decode_base64(payload)
    if len(walk.leaf_bytes) > LEAF_BYTES_MAX:
        raise Malformed(f"the leaf has {len(walk.leaf_bytes)} bytes, at most {LEAF_BYTES_MAX} are allowed")
    return keyid, decode_base64(signature, 64), proof.encode("utf-8")


def _check_direct_signature(walk: _Walk, keyring: Keyring, keyid: str, signature: bytes) -> None:
    """Step 3. A key document pins the receipt keys of one origin; a policy pins none."""
    if keyring.document is None:
        walk.say(3, "signature_not_checked", "direct signature: not checked, no receipt key is pinned", Outcome.VALID)
        return
    pinned = keyring.receipt_keys(keyring.document.origin)
    line = next((line for line in pinned if thumbprint(line.key.public_key) == keyid), None)
    walk.direct_signature = "invalid"
    if line is None:
        walk.say(3, "receipt_key_unknown", "keyid is the thumbprint of no pinned receipt key")
    elif not is_valid(line.key.public_key, pre_authentication(walk.leaf_bytes), signature):
        walk.say(3, "signature_invalid", "the direct signature does not fit the leaf")
    elif line.status == "compromised":
        walk.direct_signature = "not_checked"
        walk.say(
            3,
            "receipt_key_compromised",
            "the receipt key is compromised: its signature counts for nothing",
            Outcome.VALID,
        )
    elif walk.leaf is not None and not covers(line, walk.leaf.seq):
        walk.say(3, "seq_outside_key", f"seq {walk.leaf.seq} is outside the range that the receipt key may sign")
    else:
        walk.direct_signature = "valid"


def _check_proof(walk: _Walk, keyring: Keyring, proof_text: bytes) -> Proof | None:
    """Steps 4 to 8, and the size of the proof (step 1)."""
    if len(proof_text) > PROOF_BYTES_MAX:
        walk.say(1, "too_large", f"the proof has {len(proof_text)} bytes, at most {PROOF_BYTES_MAX} are allowed")
        return None
    try:
        proof = parse_proof(proof_text)
        checkpoint = walk.checkpoint = parse_checkpoint(proof.checkpoint)
    except Malformed as error:
        walk.say(4, "proof_malformed", str(error))
        return None
    signers = check_signers(checkpoint, keyring)
    walk.findings += signers.findings
    walk.is_log_signed, walk.ignored_lines = signers.is_signed, signers.ignored_lines
    root = root_from_inclusion(proof.index, checkpoint.size, leaf_hash(walk.leaf_bytes), proof.path)
    if root != checkpoint.root:
        walk.say(8, "not_included", "the path does not lead from this leaf to the checkpoint's root")
    else:
        walk.level = signers.level
    return proof


def _check_leaf(walk: _Walk, leaf: Leaf, keyring: Keyring, proof: Proof | None) -> None:
    """Step 9: the leaf is of the tree it is in, and of the ledger that is pinned."""
    if not leaf.is_known:
        walk.say(9, "type_unknown", f"type {leaf.type} is not known to this version", Outcome.INDETERMINATE)
    if walk.checkpoint is not None and leaf.origin != walk.checkpoint.origin:
        walk.say(9, "origin_differs", "the leaf's origin is not the checkpoint's")
    if proof is not None and leaf.seq != proof.index:
        walk.say(9, "seq_differs", "the leaf's seq is not its index in the proof")
    pinned = keyring.genesis(leaf.origin)
    if pinned is None:
        walk.say(9, "genesis_not_checked", "genesis: not checked, no key document of this origin", Outcome.VALID)
    elif pinned != (leaf.genesis if leaf.seq else leaf_hash(walk.leaf_bytes)):
        walk.say(9, "genesis_differs", "the leaf belongs to a ledger with another entry 0 than the key document's")


def _check_evidence(walk: _Walk, leaf: Leaf) -> None:
    """Step 10, as far as one leaf shows it."""
    if not leaf.is_known or leaf.entry_type.cause == "gateway":
        return
    evidence = check_evidence(leaf)
    for code, text in evidence.faults:
        walk.say(10, code, text)
    walk.say(
        10,
        "authority_not_checked",
        "the list of authorities and of agents: not checked, entry 0 not at hand",
        Outcome.VALID,
    )
    if evidence.anchor is not None and evidence.anchor.size > 1:
        text = f"anchor root at size {evidence.anchor.size}: not checked, needs the ledger"
        walk.say(10, "anchor_root_not_checked", text, Outcome.VALID)


def _check_end(walk: _Walk, leaf: Leaf, now_ms: int) -> None:
    """Step 11."""
    if leaf.type not in _LEASES:
        walk.say(11, "no_lease", "this entry grants nothing that could end", Outcome.VALID)
    elif now_ms >= leaf.number("expiresAtMs"):
        text = f"the lease's stated end {leaf.number('expiresAtMs')} is not after --now {now_ms}"
        walk.say(11, "expired", text, Outcome.INDETERMINATE)


def _walk_other(other: bytes, keyring: Keyring) -> _Walk:
    """Read a receipt or a bare checkpoint for step 12."""
    if other.lstrip()[:1] == b"{":
        return _walk(other, keyring)
    walk = _Walk()
    try:
        walk.checkpoint = parse_checkpoint(other)
        walk.is_log_signed = check_signers(walk.checkpoint, keyring).is_signed
    except Malformed as error:
        walk.say(12, "other_malformed", str(error))
    return walk


def _compare(walk: _Walk, other: _Walk, number: int) -> None:
    """Step 12: two signed statements of one origin agree, contradict each other, or leave it open."""
    mine, theirs = walk.checkpoint, other.checkpoint
    if not _is_proven_leaf(other) and not other.is_log_signed:
        walk.say(
            12,
            "other_unusable",
            f"other file {number} carries no valid signature that is pinned",
            Outcome.INDETERMINATE,
        )
    if _is_proven_leaf(walk) and _is_proven_leaf(other) and walk.leaf is not None and other.leaf is not None:
        is_same_place = (walk.leaf.origin, walk.leaf.seq) == (other.leaf.origin, other.leaf.seq)
        if is_same_place and walk.leaf_bytes != other.leaf_bytes:
            walk.say(12, "two_leaves", f"two different leaves were signed as seq {walk.leaf.seq}", Outcome.SPLIT)
    if (
        mine is None
        or theirs is None
        or not (walk.is_log_signed and other.is_log_signed)
        or mine.origin != theirs.origin
    ):
        return
    if mine.size == theirs.size and mine.root != theirs.root:
        walk.say(12, "two_roots", f"the log signed two roots for size {mine.size}", Outcome.SPLIT)
    elif mine.size != theirs.size:
        text = f"sizes {mine.size} and {theirs.size}: consistency not checked, needs a proof or the ledger"
        walk.say(12, "consistency_not_checked", text, Outcome.VALID)


def _is_proven_leaf(walk: _Walk) -> bool:
    """Directly signed, or included under a pinned log key."""
    return walk.direct_signature == "valid" or (walk.is_log_signed and walk.level != "none")


def _level(walk: _Walk) -> str:
    return walk.level if walk.level != "none" else "signed" if walk.direct_signature == "valid" else "none"


def _statement(leaf: Leaf) -> tuple[str, ...]:
    """Say in words what the receipt says; the claims are the gateway's and the actor's."""
    lines = [f"entry {leaf.seq} of {leaf.origin}: {leaf.type} at {leaf.time_ms} ms by {leaf.actor}"]
    lines += [f"resource {name}" for name in resources_of(leaf.value)]
    if leaf.type in _LEASES:
        end = f"held from {leaf.time_ms} until at most {leaf.number('expiresAtMs')}"
        lines.append(f"{end} unless released, broken or transferred later; not checked here")
        lines.append(f"fencing token {leaf.number('fencingToken')}")
    if "custody" in leaf.value:
        lines.append("key held by the gateway: consent not proven")
    return tuple(lines)


def _facts(walk: _Walk, keyring: Keyring) -> dict[str, JsonValue]:
    """Figures for machines; null where a step could not read them."""
    leaf, checkpoint = walk.leaf, walk.checkpoint
    return {
        "leafHash": leaf_hash(walk.leaf_bytes).hex() if walk.leaf_bytes else None,
        "origin": None if leaf is None else leaf.origin,
        "seq": None if leaf is None else leaf.seq,
        "type": None if leaf is None else leaf.type,
        "size": None if checkpoint is None else checkpoint.size,
        "ignoredLines": walk.ignored_lines,
        "keysVersion": keyring.version,
    }
