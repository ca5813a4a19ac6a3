"""C2SP tlog-proofs: the inclusion path of one leaf and the checkpoint it leads to, in one text.

Source: docs/protocol.md 8 (proofs); C2SP tlog-proof.
"""

from __future__ import annotations

from dataclasses import dataclass

from verifier.merkle import HASH_BYTES
from verifier.wire import (
    PROOF_BYTES_MAX,
    Malformed,
    decode_base64,
    decode_decimal,
    decode_text,
    encode_base64,
)

PATH_HASHES_MAX = 63
_FIRST_LINE = "c2sp.org/tlog-proof@v1"


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
    """Return the proof whose only spelling is `data` (≤ 64 KiB); the checkpoint in it is not parsed here."""
    text = decode_text(data, bytes_max=PROOF_BYTES_MAX)
    header, separator, checkpoint = text.partition("\n\n")  # the first empty line: the checkpoint may hold others
    rows = header.split("\n")
    if not separator or not checkpoint or rows.pop(0) != _FIRST_LINE:
        raise Malformed(f"a proof is the line {_FIRST_LINE}, its header, an empty line, and a checkpoint")
    extra = decode_base64(rows.pop(0)[6:]) if rows and rows[0].startswith("extra ") else None
    if extra == b"" or not rows or not rows[0].startswith("index "):
        raise Malformed("a proof's header is an optional, non-empty extra line, an index line, and hashes")
    index = decode_decimal(rows.pop(0)[6:])
    if len(rows) > PATH_HASHES_MAX:
        raise Malformed(f"a proof has {len(rows)} hashes, at most {PATH_HASHES_MAX} are allowed")
    path = tuple(decode_base64(row, HASH_BYTES) for row in rows)
    proof = Proof(index, path, checkpoint.encode("utf-8"), extra)
    if encode_proof(proof) != data:
        raise Malformed("a proof is not in its only accepted spelling")
    return proof


def encode_proof(proof: Proof) -> bytes:
    """Return the bytes of `proof`."""
    extra = "" if proof.extra is None else f"extra {encode_base64(proof.extra)}\n"
    hashes = "".join(f"{encode_base64(part)}\n" for part in proof.path)
    return f"{_FIRST_LINE}\n{extra}index {proof.index}\n{hashes}\n".encode() + proof.checkpoint
