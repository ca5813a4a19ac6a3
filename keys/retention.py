"""The retention policy: up to which entry static copies of a ledger may drop their entry bundles.

A note of the root key with exactly three lines after its first: origin, genesis and the minimum index. Entries below
the minimum may be refused by who serves the ledger; hashes never, so every proof still works. Without such a note
nothing is pruned. Source: docs/protocol.md 13.7; C2SP tlog-tiles, pruning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from keys.files import replace_file
from keys.signing import SigningKey
from verifier.merkle import HASH_BYTES
from verifier.note import Note, VerifierKey, encode_note, is_key_name, is_signed_once, parse_note, signature_line
from verifier.wire import TEXT_BYTES_MAX, Malformed, decode_decimal, decode_hex

RETENTION_FILE = "retention.note"
_FIRST_LINE = "tallystick-retention/v1"
_TEXT = re.compile(_FIRST_LINE + r"\norigin (.+)\ngenesis (.+)\nminimum (.+)\n")


@dataclass(frozen=True, slots=True)
class Retention:
    """Entries below `minimum` need not be served as bundles any more."""

    origin: str
    genesis: bytes
    minimum: int


def retention_text(retention: Retention) -> str:
    """Return the text that the root signs."""
    head = f"{_FIRST_LINE}\norigin {retention.origin}\ngenesis {retention.genesis.hex()}\n"
    return f"{head}minimum {retention.minimum}\n"


def sign_retention(retention: Retention, root: SigningKey, key: VerifierKey) -> bytes:
    """Return the note of a policy, signed by the ledger's root `key`."""
    text = retention_text(retention)
    return encode_note(Note(text, (signature_line(key, root.sign(text.encode())),)))


def parse_retention(data: bytes, root: VerifierKey) -> Retention:
    """Return the policy in a note that `root` signed exactly once; Malformed for anything else."""
    note = parse_note(data)
    match = _TEXT.fullmatch(note.text)
    if match is None or not is_key_name(match[1]):
        raise Malformed("a retention policy is its first line, origin, genesis and minimum")
    retention = Retention(match[1], decode_hex(match[2], HASH_BYTES), decode_decimal(match[3]))
    if root.name != f"{retention.origin}/root" or not is_signed_once(note, root):
        raise Malformed("the retention policy carries no valid signature of the ledger's root key")
    return retention


def publish_retention(folder: Path, note: bytes, root: VerifierKey) -> Retention:
    """Put a policy into the published folder, durably. Malformed when it would bring back what was dropped."""
    retention = parse_retention(note, root)
    path = folder / RETENTION_FILE
    if path.exists() and parse_retention(path.read_bytes()[:TEXT_BYTES_MAX], root).minimum > retention.minimum:
        raise Malformed("the published minimum is higher, and what was dropped does not come back: name a higher one")
    replace_file(path, note)
    return retention
