"""C2SP signed notes: a text, an empty line, signature lines. Also vkeys, which name the keys of such lines.

The 32-bit key id is a hint, never a security value: a line counts only for a key that the caller holds whole.
Source: docs/protocol.md 13.3 (notes, cosignatures), 15.4 (vkeys); C2SP signed-note v1.0.0, tlog-cosignature v1.0.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from verifier.sig import is_strict_key, is_valid
from verifier.wire import TEXT_BYTES_MAX, Malformed, decode_base64, decode_text, encode_base64

KIND_ED25519 = 1  # a signature over the text
KIND_COSIGNATURE = 4  # a witness's timestamped signature
SIGNATURE_LINES_MAX = 64  # C2SP asks for at least 16; a policy of 32 witnesses and both log keys must fit
TIME_S_MAX = 2**63 - 1
_SIGNATURE_BYTES = {KIND_ED25519: 64, KIND_COSIGNATURE: 8 + 64}
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key under a name; `key_id` is derived from the other three."""

    name: str
    key_id: bytes
    kind: int
    public_key: bytes

    @property
    def vkey(self) -> str:
        """The one-line text form, <name>+<8 hex of key id>+<base64 of kind and key>."""
        return f"{self.name}+{self.key_id.hex()}+{encode_base64(bytes([self.kind]) + self.public_key)}"


@dataclass(frozen=True, slots=True)
class SignatureLine:
    """One line of a note; `signature` is what follows the key id: 64 bytes, or u64 seconds and 64 bytes."""

    name: str
    key_id: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A parsed, *unverified* note. `text` ends with a newline; the signed bytes are exactly its UTF-8."""

    text: str
    lines: tuple[SignatureLine, ...]


def is_key_name(name: str) -> bool:
    """Say whether `name` can name a key: not empty, no Unicode space, no plus sign, no control character."""
    return _NAME.fullmatch(name) is not None


def make_vkey(name: str, public_key: bytes, kind: int = KIND_ED25519) -> VerifierKey:
    """Return the key under `name`. Malformed: a bad name, a kind other than 1 or 4, or a key that is not strict."""
    if not is_key_name(name):
        raise Malformed("a key name is not empty and holds no space, plus sign or control character")
    if kind not in _SIGNATURE_BYTES:
        raise Malformed("a vkey must be of kind 1 (Ed25519) or 4 (Ed25519 cosignature); other kinds are not supported")
    if not is_strict_key(public_key):
        raise Malformed("a vkey must hold a 32-byte Ed25519 key of the prime-order subgroup in canonical form")
    key_id = sha256(name.encode("utf-8") + b"\n" + bytes([kind]) + public_key).digest()[:4]
    return VerifierKey(name, key_id, kind, public_key)


def parse_vkey(text: str) -> VerifierKey:
    """Return the key of a vkey text. The text is split at the first two plus signs: base64 itself holds some."""
    name, _, id_and_key = text.partition("+")
    kind, *public_key = decode_base64(id_and_key.partition("+")[2]) or b"\0"
    key = make_vkey(name, bytes(public_key), kind)
    if key.vkey != text:
        raise Malformed("a vkey is <name>+<key id>+<base64>, and the key id must fit the name and the key")
    return key


def parse_note(data: bytes) -> Note:
    """Return the note whose only spelling is `data`: ≤ 64 KiB, 1..64 signature lines, split at the last empty line."""
    text, _, signatures = decode_text(data, bytes_max=TEXT_BYTES_MAX).rpartition("\n\n")
    rows = signatures.split("\n")[:-1]
    if not 1 <= len(rows) <= SIGNATURE_LINES_MAX:
        raise Malformed(f"a note is a text, an empty line, and 1 to {SIGNATURE_LINES_MAX} whole signature lines")
    note = Note(text + "\n", tuple(map(_parse_line, rows)))
    if encode_note(note) != data:
        raise Malformed("a note is not in its only accepted spelling")
    return note


def encode_note(note: Note) -> bytes:
    """Return the bytes of `note`."""
    rows = [f"— {line.name} {encode_base64(line.key_id + line.signature)}\n" for line in note.lines]
    return (note.text + "\n" + "".join(rows)).encode("utf-8")


def signature_line(key: VerifierKey, signature: bytes) -> SignatureLine:
    """Return the line that carries `signature` by `key`."""
    return SignatureLine(key.name, key.key_id, signature)


def cosignature_message(time_s: int, text: str) -> bytes:
    """Return what a witness signs: at `time_s` (POSIX seconds) checkpoint `text` was the largest it had seen."""
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()


def cosignature_time_s(line: SignatureLine) -> int:
    """Return the POSIX seconds of a cosignature line: the witness's claim, worth something once the line is valid."""
    return int.from_bytes(line.signature[:8], "big")


def line_matches(line: SignatureLine, key: VerifierKey) -> bool:
    """Say whether `line` claims to be by `key` (same name and key id)."""
    return line.name == key.name and line.key_id == key.key_id


@lru_cache(maxsize=64)  # receipts of one batch carry one note; 64 notes of 64 KiB are the most that is kept
def line_is_valid(line: SignatureLine, key: VerifierKey, text: str) -> bool:
    """Say whether `line` is a valid signature or cosignature of `text` by `key`. Never raises."""
    if not line_matches(line, key) or len(line.signature) != _SIGNATURE_BYTES.get(key.kind):
        return False
    if key.kind == KIND_ED25519:
        return is_valid(key.public_key, text.encode("utf-8"), line.signature)
    time_s = cosignature_time_s(line)
    return time_s <= TIME_S_MAX and is_valid(key.public_key, cosignature_message(time_s, text), line.signature[8:])


def is_signed_once(note: Note, key: VerifierKey) -> bool:
    """Say whether `note` carries exactly one line by `key` and that line is valid: a second one, even equal, fails."""
    lines = [line for line in note.lines if line_matches(line, key)]
    return len(lines) == 1 and line_is_valid(lines[0], key, note.text)


def _parse_line(row: str) -> SignatureLine:
    dash, _, name_and_base64 = row.partition(" ")
    name, _, text = name_and_base64.partition(" ")
    payload = decode_base64(text)
    if dash != "—" or not is_key_name(name) or len(payload) < 5:
        raise Malformed("a signature line is an em dash, a key name, and base64 of a 4-byte key id and a signature")
    return SignatureLine(name, payload[:4], payload[4:])
