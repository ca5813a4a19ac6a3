"""What an export is made of: the parts of a receipt that was verified just before, and the exporter's key."""

from __future__ import annotations

from dataclasses import dataclass

from keys.signing import SigningKey
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.did import thumbprint
from verifier.entries import Leaf, parse_leaf
from verifier.envelope import open_envelope
from verifier.keyring import Keyring
from verifier.proof import Proof, parse_proof
from verifier.receipt import check_receipt
from verifier.verdict import Report

PURPOSE = "export"  # of the exporter's key, which is no other key of anybody


class NotExported(Exception):
    """The receipt did not pass; `report` says where. Nothing was signed."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.as_text())
        self.report = report


@dataclass(frozen=True, slots=True)
class Material:
    """A verified receipt in parts; `level` is what it reached under the exporter's pins."""

    receipt: bytes
    leaf_bytes: bytes
    leaf: Leaf
    proof: Proof
    checkpoint: Checkpoint
    level: str


@dataclass(frozen=True, slots=True)
class Exporter:
    """Who says so: a key made for nothing else."""

    key: SigningKey

    @property
    def key_id(self) -> str:
        """Return the RFC 7638 thumbprint of the public key, by which readers know it."""
        return thumbprint(self.key.public_key)


def verified(receipt: bytes, keyring: Keyring) -> Material:
    """Return the parts of a receipt after the whole ladder held, inclusion too. NotExported."""
    report = check_receipt(receipt, keyring, level="included")
    if report.exit_code != 0:
        raise NotExported(report)
    envelope = open_envelope(receipt)
    proof = parse_proof(envelope.proof)
    leaf = parse_leaf(envelope.leaf)
    return Material(receipt, envelope.leaf, leaf, proof, parse_checkpoint(proof.checkpoint), report.level)
