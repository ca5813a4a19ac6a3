"""C2SP tlog-proofs: the inclusion path of one leaf and the checkpoint it leads to, in one text.

Source: docs/protocol.md 14.3 (proofs); C2SP tlog-proof.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verifier.merkle import HASH_BYTES
from verifier.wire import PROOF_BYTES_MAX, Malformed, decode_base64, decode_decimal, decode_text, encode_base64

_TEXT = re.compile(r"c2sp\.org/tlog-proof@v1\n(?:extra (.+)\n)?index (.+)\n((?:.+\n){0,63})\n((?s:.+))")


@dataclass(frozen=True, slots=True)
class Proof:
    """A parsed, *unverified* proof. `path` begins with the leaf's sibling; `checkpoint` is the exact note.

    `extra` is authenticated by nothing: no verdict may rest on it.
    """

    index: int
    path: tuple[bytes, ...]
    checkpoint: bytes
    extra: bytes | None = None


def parse_proof(data: bytes) -> Proof:
    """Return the proof whose only spelling is `data` (≤ 64 KiB, ≤ 63 hashes); the checkpoint is not parsed here."""
    match = _TEXT.fullmatch(decode_text(data, bytes_max=PROOF_BYTES_MAX))
    if match is None:
        raise Malformed("a proof is its first line, extra, index, at most 63 hashes, an empty line, a checkpoint")
    extra, index, hashes, checkpoint = match.groups()
    path = tuple(decode_base64(row, HASH_BYTES) for row in hashes.split("\n")[:-1])
    extra_bytes = None if extra is None else decode_base64(extra)
    proof = Proof(decode_decimal(index), path, checkpoint.encode("utf-8"), extra_bytes)
    if encode_proof(proof) != data:
        raise Malformed("a proof is not in its only accepted spelling")
    return proof


def encode_proof(proof: Proof) -> bytes:
    """Return the bytes of `proof`."""
    extra = "" if proof.extra is None else f"extra {encode_base64(proof.extra)}\n"
    hashes = "".join(f"{encode_base64(part)}\n" for part in proof.path)
    return f"c2sp.org/tlog-proof@v1\n{extra}index {proof.index}\n{hashes}\n".encode() + proof.checkpoint
