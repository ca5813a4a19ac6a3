"""C2SP checkpoints: the signed note in which a log commits to its size and root.

Source: docs/protocol.md 13.2 (checkpoints); C2SP tlog-checkpoint v1.0.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from verifier.merkle import EMPTY_ROOT, HASH_BYTES
from verifier.note import Note, is_key_name, parse_note
from verifier.wire import Malformed, decode_base64, decode_decimal, encode_base64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A parsed, *unverified* checkpoint: `size` leaves have the 32-byte `root` in the log named `origin`."""

    origin: str
    size: int
    root: bytes
    note: Note


def checkpoint_text(origin: str, size: int, root: bytes) -> str:
    """Return the text that log and witnesses sign."""
    return f"{origin}\n{size}\n{encode_base64(root)}\n"


@lru_cache(maxsize=64)
def parse_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint in note `data`; size ≤ 2^53-1, and size 0 has the empty root.

    Non-empty extension lines are allowed, though they look wrong: C2SP lets other logs write them. Ours never do.
    """
    note = parse_note(data)
    origin, *rows = note.text[:-1].split("\n")
    if len(rows) < 2 or not all(rows) or not is_key_name(origin):
        raise Malformed("a checkpoint is an origin that can name a key, a size and a root, one a line, no empty line")
    size, root = decode_decimal(rows[0]), decode_base64(rows[1], HASH_BYTES)
    if size == 0 and root != EMPTY_ROOT:
        raise Malformed("a checkpoint of size 0 must have the empty root")
    return Checkpoint(origin, size, root, note)
