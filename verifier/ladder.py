"""Steps 1 to 10 of the ladder: what one receipt shows by itself, in the order and with the numbers of the protocol.

All steps that can be walked are walked, whatever failed before, because an auditor wants every finding.
Source: docs/protocol.md 16.2, 16.5, 31.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.did import thumbprint
from verifier.entries import Leaf, parse_leaf
from verifier.envelope import Envelope, Header, TooLarge, open_envelope, pre_authentication
from verifier.evidence import check_command, check_evidence
from verifier.keyring import Keyring, covers
from verifier.merkle import leaf_hash, root_from_inclusion
from verifier.proof import Proof, parse_proof
from verifier.sig import is_valid
from verifier.signers import Signers, check_signers
from verifier.verdict import Finding, Outcome
from verifier.wire import Malformed


@dataclass(slots=True)
class Walk:
    """What is known so far about one receipt. The parts are None until their step read them."""

    findings: list[Finding] = field(default_factory=list)
    leaf_bytes: bytes = b""
    leaf: Leaf | None = None
    evidence_leaf: Leaf | None = None  # of a command: that of its batch
    checkpoint: Checkpoint | None = None
    signers: Signers | None = None
    direct_signature: str = "not_checked"
    level: str = "none"

    @property
    def is_log_signed(self) -> bool:
        return self.signers is not None and self.signers.is_signed

    def say(self, step: int, code: str, text: str, outcome: Outcome = Outcome.INVALID) -> None:
        self.findings.append(Finding(step, code, outcome, text))

    def note(self, step: int, code: str, text: str) -> None:
        self.say(step, code, text, Outcome.VALID)


def walk_ladder(unverified_bytes: bytes, keyring: Keyring, files: Sequence[bytes] = ()) -> Walk:
    """Steps 1 to 10. `files` are all that the reader holds, this receipt too: see `check_signers`."""
    walk = Walk()
    try:
        envelope = open_envelope(unverified_bytes)
    except Malformed as error:
        is_size = isinstance(error, TooLarge)
        other = "this looks like a ledger export: use `tallystick-verify ledger`"
        text = other if unverified_bytes.startswith(b"tallystick-ledger/") else str(error)
        walk.say(1 if is_size else 2, "too_large" if is_size else "envelope_malformed", text)
        return walk
    walk.leaf_bytes = envelope.leaf
    try:
        walk.leaf = parse_leaf(envelope.leaf)
    except Malformed as error:
        walk.say(9, "leaf_malformed", str(error))
    _check_direct_signature(walk, keyring, envelope)
    proof = _check_proof(walk, keyring, envelope.proof, files)
    if walk.leaf is not None:
        _check_leaf(walk, walk.leaf, keyring, proof)
        _check_evidence(walk, walk.leaf, envelope.header)
    walk.findings.sort(key=lambda finding: finding.step)
    return walk


def _check_direct_signature(walk: Walk, keyring: Keyring, envelope: Envelope) -> None:
    """Step 3. A key document pins the receipt keys of one origin; a policy pins none."""
    if keyring.document is None:
        walk.note(3, "signature_not_checked", "direct signature: not checked, no receipt key is pinned")
        return
    if envelope.signature is None:
        walk.direct_signature = "left_out"
        walk.note(3, "signature_left_out", "direct signature: left out, as the batch asked; only inclusion speaks")
        return
    keyid, signature = envelope.signature
    pinned = keyring.receipt_keys(keyring.document.origin)
    line = next((line for line in pinned if thumbprint(line.key.public_key) == keyid), None)
    walk.direct_signature = "invalid"
    if line is None:
        walk.say(3, "receipt_key_unknown", "keyid is the thumbprint of no pinned receipt key")
    elif not is_valid(line.key.public_key, pre_authentication(envelope.leaf), signature):
        walk.say(3, "signature_invalid", "the direct signature does not fit the leaf")
    elif line.status == "compromised":
        walk.direct_signature = "not_checked"
        walk.note(3, "receipt_key_compromised", "the receipt key is compromised: its signature counts for nothing")
    elif walk.leaf is not None and not covers(line, walk.leaf.seq):
        walk.say(3, "seq_outside_key", f"seq {walk.leaf.seq} is outside the range that the receipt key may sign")
    else:
        walk.direct_signature = "valid"


def _check_proof(walk: Walk, keyring: Keyring, proof_text: bytes, files: Sequence[bytes]) -> Proof | None:
    """Steps 4 to 8."""
    try:
        proof = parse_proof(proof_text)
        checkpoint = walk.checkpoint = parse_checkpoint(proof.checkpoint)
    except Malformed as error:
        walk.say(4, "proof_malformed", str(error))
        return None
    walk.signers = check_signers(checkpoint, keyring, files)
    walk.findings += walk.signers.findings
    if root_from_inclusion(proof.index, checkpoint.size, leaf_hash(walk.leaf_bytes), proof.path) == checkpoint.root:
        walk.level = walk.signers.level
    else:
        walk.say(8, "not_included", "the path does not lead from this leaf to the checkpoint's root")
    return proof


def _check_leaf(walk: Walk, leaf: Leaf, keyring: Keyring, proof: Proof | None) -> None:
    """Step 9: the leaf is of the tree it is in, and of the ledger that is pinned."""
    if not leaf.is_known:
        walk.say(9, "type_unknown", f"type {leaf.type} is not known to this version", Outcome.INDETERMINATE)
    if proof is not None and walk.checkpoint is not None:
        if leaf.origin != walk.checkpoint.origin:
            walk.say(9, "origin_differs", "the leaf's origin is not the checkpoint's")
        if leaf.seq != proof.index:
            walk.say(9, "seq_differs", "the leaf's seq is not its index in the proof")
    pinned = keyring.genesis(leaf.origin)
    if pinned is None:
        walk.note(9, "genesis_not_checked", "genesis: not checked, no key document of this origin")
    elif pinned != (leaf.genesis if leaf.seq else leaf_hash(walk.leaf_bytes)):
        walk.say(9, "genesis_differs", "the leaf belongs to a ledger with another entry 0 than the key document's")


def _check_evidence(walk: Walk, leaf: Leaf, part: Header | None) -> None:
    """Step 10, as far as one leaf shows it; the evidence of a command is that of its batch, which comes along."""
    if (leaf.batch is None) != (part is None):
        text = "a receipt has batch exactly when its leaf answers a command"
        walk.say(10, "batch_missing" if part is None else "batch_unexpected", text)
        return
    if not leaf.is_known or leaf.entry_type.cause == "gateway":
        return
    evidence = check_evidence(leaf if part is None else _open_header(walk, leaf, part))
    for code, text in evidence.faults:
        walk.say(10, code, text)
    walk.note(10, "authority_not_checked", "authority list and enrolled agents: not checked, entry 0 not at hand")
    if evidence.anchor is not None and evidence.anchor.size > 1:
        size = evidence.anchor.size
        walk.note(10, "anchor_root_not_checked", f"anchor root at size {size}: not checked, needs the ledger")


def _open_header(walk: Walk, leaf: Leaf, part: Header) -> Leaf:
    """Return the leaf of `batch.received`, which holds the evidence, proven and compared with the command.

    When it can't be read that is a finding, and so is that the command itself has no evidence.
    """
    try:
        header = parse_leaf(part.leaf)
    except Malformed as error:
        walk.say(10, "batch_malformed", str(error))
        return leaf
    for code, text in check_command(leaf, header):
        walk.say(10, code, text)
    tree, hashed = walk.checkpoint, leaf_hash(part.leaf)
    if tree is not None and root_from_inclusion(header.seq, tree.size, hashed, part.path) != tree.root:
        walk.say(10, "batch_not_included", "the path does not lead from the batch's leaf to the checkpoint's root")
    walk.evidence_leaf = header if header.is_known else None
    return walk.evidence_leaf or leaf
