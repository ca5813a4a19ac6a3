"""The body of a C2SP `add-checkpoint` request, and which of a checkpoint's lines speak for its log.

Source: docs/protocol.md 32.21 to 32.24; C2SP tlog-witness.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verifier.checkpoint import Checkpoint, checkpoint_text, parse_checkpoint
from verifier.merkle import EMPTY_ROOT, HASH_BYTES
from verifier.note import Note, SignatureLine, VerifierKey, encode_note, line_is_valid, line_matches, parse_note
from verifier.wire import Malformed, decode_base64, decode_decimal, decode_text

CHECKPOINT_BYTES_MAX = 16_384  # 64 lines of Ed25519 have 10 KiB; whoever keeps notes for others must bound them
BODY_BYTES_MAX = CHECKPOINT_BYTES_MAX + 4_096  # `old` and at most 63 lines of 45 bytes
_TEXT = re.compile(r"old (.+)\n((?:.+\n){0,63})\n((?s:.+))")


@dataclass(frozen=True, slots=True)
class Submission:
    """A parsed, *unverified* request: `path` leads from the tree of `old_size` leaves to the checkpoint's."""

    old_size: int
    path: tuple[bytes, ...]
    checkpoint: Checkpoint


def parse_submission(body: bytes) -> Submission:
    """Return the request whose only spelling is `body`. Malformed: anything that C2SP answers with 400."""
    match = _TEXT.fullmatch(decode_text(body, bytes_max=BODY_BYTES_MAX))
    if match is None:
        raise Malformed("the body is `old N`, at most 63 hashes, an empty line and a checkpoint, each line ended")
    old, hashes, text = match.groups()
    if len(note := text.encode()) > CHECKPOINT_BYTES_MAX:
        raise Malformed(f"a checkpoint has at most {CHECKPOINT_BYTES_MAX} bytes here")
    path = tuple(decode_base64(row, HASH_BYTES) for row in hashes.split("\n")[:-1])
    return Submission(decode_decimal(old), path, _parse_checkpoint(note))


def _parse_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint, also one of size 0 whose root no empty tree has: C2SP answers it as a failed proof."""
    try:
        return parse_checkpoint(data)
    except Malformed:
        note = parse_note(data)
        origin, size, *rows = note.text.split("\n")
        if size != "0" or not rows:
            raise
        root = decode_base64(rows[0], HASH_BYTES)
        as_empty = Note(checkpoint_text(origin, 0, EMPTY_ROOT) + "\n".join(rows[1:]), note.lines)
        return Checkpoint(parse_checkpoint(encode_note(as_empty)).origin, 0, root, note)


def lines_of(checkpoint: Checkpoint, keys: Sequence[VerifierKey]) -> tuple[SignatureLine, ...] | None:
    """Return the first line of each of `keys`; None when a line that claims one of them is not valid.

    A known line that fails rejects the whole note, whatever else it carries: nobody who holds the key wrote it so.
    """
    known = {key: [line for line in checkpoint.note.lines if line_matches(line, key)] for key in keys}
    if any(not line_is_valid(line, key, checkpoint.note.text) for key, lines in known.items() for line in lines):
        return None
    return tuple(lines[0] for lines in known.values() if lines)
