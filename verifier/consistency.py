"""Consistency proofs in a file: the smaller size, the hashes, and the larger checkpoint. What witnesses are sent, too.

Source: docs/protocol.md 33.2; C2SP tlog-witness, add-checkpoint.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.merkle import HASH_BYTES, is_consistent
from verifier.wire import PROOF_BYTES_MAX, Malformed, decode_base64, decode_decimal, decode_text, encode_base64

_TEXT = re.compile(r"old (.+)\n((?:.+\n){0,63})\n((?s:.+))")


class Consistency(NamedTuple):
    """A parsed, *unverified* proof that the first `old_size` leaves of `checkpoint` are a tree of their own."""

    old_size: int
    path: tuple[bytes, ...]
    checkpoint: Checkpoint
    note: bytes

    def leads_from(self, old: Checkpoint) -> bool:
        """Say whether this proves that the tree of `checkpoint`, whoever signed it, extends that of `old`."""
        new = self.checkpoint
        return self.old_size == old.size and is_consistent(old.size, old.root, new.size, new.root, self.path)


def is_consistency(data: bytes) -> bool:
    """Say whether `data` begins like such a file, and like no checkpoint and no receipt."""
    return data.startswith(b"old ")


def parse_consistency(data: bytes) -> Consistency:
    """Return the proof whose only spelling is `data` (≤ 64 KiB, ≤ 63 hashes). Malformed otherwise."""
    match = _TEXT.fullmatch(decode_text(data, bytes_max=PROOF_BYTES_MAX))
    if match is None:
        raise Malformed("a consistency proof is old and a size, at most 63 hashes, an empty line, a checkpoint")
    path = tuple(decode_base64(row, HASH_BYTES) for row in match[2].split("\n")[:-1])
    note = match[3].encode("utf-8")
    proof = Consistency(decode_decimal(match[1]), path, parse_checkpoint(note), note)
    if consistency_text(proof.old_size, path, note) != data:
        raise Malformed("a consistency proof is not in its only accepted spelling")
    return proof


def consistency_text(old_size: int, path: tuple[bytes, ...], note: bytes) -> bytes:
    """Return the bytes of the file."""
    return f"old {old_size}\n".encode() + "".join(f"{encode_base64(part)}\n" for part in path).encode() + b"\n" + note
