"""What a reader pins: the root's key document, a policy, or both; and which key counts for what.

Trust never comes with a receipt. The root signs key documents, whose lines bound each key by ledger sizes; witnesses
and their quorum come from a policy only. Private keys are made for one purpose, so one raw public key under two
purposes or names is refused: a signature under one could be replayed as the other.
Source: docs/protocol.md 15.2 to 15.6 (keys), 16.7 (pinning).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verifier.checkpoint import parse_checkpoint
from verifier.merkle import HASH_BYTES
from verifier.note import KIND_ED25519, VerifierKey, is_key_name, is_signed_once, parse_note, parse_vkey
from verifier.policy import Policy, parse_policy
from verifier.wire import Malformed, decode_base64, decode_decimal, decode_hex, encode_base64

_FIRST_LINE = "tallystick-keys/v1"
_TEXT = re.compile(_FIRST_LINE + r"\norigin (.+)\ngenesis (.+)\nversion (.+)\nprevious (.+)\n((?:key .+\n)*)")


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key and its bounds, both inclusive: tree sizes for a log key, `seq` for a receipt key; None is open.

    A compromised log key names the tree that its honest part is in (`final_size`, 32-byte `final_root`), and may show
    a checkpoint of it (`final_note`), which proves that the key was disowned at all; nobody else does.
    """

    purpose: str  # log, receipt, custodial
    key: VerifierKey
    from_size: int = 0
    to_size: int | None = None
    status: str = "active"  # active, retired, compromised
    final_size: int | None = None
    final_root: bytes | None = None
    final_note: bytes | None = None

    @property
    def text(self) -> str:
        """The line without its first word `key`, as entry 0 quotes it."""
        to_size = "-" if self.to_size is None else self.to_size
        final = "" if self.final_root is None else f" {self.final_size} {encode_base64(self.final_root)}"
        final += "" if self.final_note is None else f" {encode_base64(self.final_note)}"
        return f"{self.purpose} {self.key.vkey} {self.from_size} {to_size} {self.status}{final}"


@dataclass(frozen=True, slots=True)
class KeyDocument:
    """Every key of one ledger. `genesis` is the leaf hash of its entry 0; `previous` hashes the preceding text."""

    origin: str
    genesis: bytes
    version: int
    previous: bytes | None
    keys: tuple[KeyLine, ...]


def covers(line: KeyLine, size: int) -> bool:
    """Say whether `size` lies within the bounds of `line`."""
    return line.from_size <= size and (line.to_size is None or size <= line.to_size)


def key_document_text(document: KeyDocument) -> str:
    """Return the text the root signs; key lines are sorted."""
    previous = "-" if document.previous is None else document.previous.hex()
    head = f"origin {document.origin}\ngenesis {document.genesis.hex()}\nversion {document.version}\n"
    keys = "".join(sorted(f"key {line.text}\n" for line in document.keys))
    return f"{_FIRST_LINE}\n{head}previous {previous}\n{keys}"


def parse_key_document_text(text: str) -> KeyDocument:
    """Return the document whose only spelling is `text`. Malformed also when a line breaks a rule of its purpose."""
    match = _TEXT.fullmatch(text)
    if match is None or not is_key_name(match[1]):
        raise Malformed("a key document is its first line, origin, genesis, version, previous, and key lines")
    origin, genesis, version, previous, rows = match.groups()
    before = None if previous == "-" else decode_hex(previous, HASH_BYTES)
    lines = tuple(parse_key_line(row.split(" ")[1:], origin) for row in rows.split("\n")[:-1])
    document = KeyDocument(origin, decode_hex(genesis, HASH_BYTES), decode_decimal(version), before, lines)
    if key_document_text(document) != text:
        raise Malformed("a key document is not in its only accepted spelling, key lines sorted")
    if document.version < 1 or (document.version == 1) != (document.previous is None):
        raise Malformed("a key document's version begins at 1, and only version 1 has no previous document")
    if len({line.key.public_key for line in document.keys}) != len(document.keys):
        raise Malformed("a key document names one public key twice")
    return document


def parse_key_line(words: list[str], origin: str) -> KeyLine:
    """Return the key line of `words`: purpose, vkey, fromSize, toSize or "-", status; then perhaps the final tree."""
    if len(words) not in (5, 7, 8):
        raise Malformed("a key line has five words, seven with the final size and root, eight with its checkpoint too")
    purpose, vkey, from_size, to_size, status, *final = words
    bounds = (decode_decimal(from_size), None if to_size == "-" else decode_decimal(to_size))
    size, root = (decode_decimal(final[0]), decode_base64(final[1], HASH_BYTES)) if final else (None, None)
    note = decode_base64(final[2]) if len(final) == 3 else None
    line = KeyLine(purpose, parse_vkey(vkey), *bounds, status, size, root, note)
    _check_line(line, origin)
    return line


def open_key_document(data: bytes, root: VerifierKey) -> KeyDocument:
    """Return the document in note `data`, signed exactly once by `root`, whose name must be "<origin>/root"."""
    note = parse_note(data)
    if not is_signed_once(note, root) or root.kind != KIND_ED25519:
        raise Malformed("the key document carries no valid signature of the pinned root key")
    document = parse_key_document_text(note.text)
    if root.name != f"{document.origin}/root":
        raise Malformed("the pinned root key's name is not <origin>/root of the key document")
    return document


@dataclass(frozen=True, slots=True)
class Keyring:
    """The pinned keys of one reader. Malformed when one raw public key stands for two purposes or names."""

    root: VerifierKey | None = None
    document: KeyDocument | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        logs, witnesses = (self.policy.logs, self.policy.witnesses.values()) if self.policy else ((), ())
        pinned = [("root", self.root)] if self.root else []
        pinned += [(line.purpose, line.key) for line in self.document.keys] if self.document else []
        pinned += [*(("log", key) for key in logs), *(("witness", key) for key in witnesses)]
        uses: dict[bytes, tuple[str, VerifierKey]] = {}
        if any(uses.setdefault(use[1].public_key, use) != use for use in pinned):
            raise Malformed("one public key is pinned for two purposes or under two names")

    @property
    def version(self) -> int | None:
        """The key document's version; None without one."""
        return self.document.version if self.document else None

    @property
    def known_seq(self) -> int:
        """The newest entry that the key document shows: up to it, it shows every change of keys (17.8)."""
        lines = self.document.keys if self.document else ()
        return max((max(line.from_size - 1, line.to_size or 0, 0) for line in lines), default=0)

    def genesis(self, origin: str) -> bytes | None:
        """Return the pinned leaf hash of entry 0 of `origin`; None when no key document of it is pinned."""
        return self.document.genesis if self.document and self.document.origin == origin else None

    def log_keys(self, origin: str) -> tuple[KeyLine, ...]:
        """Return the log keys pinned for `origin` by either source; a key document's bounds win."""
        lines = self.bounded_log_keys(origin)
        bounded = {line.key for line in lines}
        logs = self.policy.logs if self.policy else ()
        return lines + tuple(KeyLine("log", key) for key in logs if key.name == origin and key not in bounded)

    def bounded_log_keys(self, origin: str) -> tuple[KeyLine, ...]:
        """Return the log keys of the pinned key document, which says for which sizes each speaks."""
        return self._lines("log", origin)

    def receipt_keys(self, origin: str) -> tuple[KeyLine, ...]:
        """Return the receipt keys pinned for `origin`, compromised ones too: a policy has none."""
        return self._lines("receipt", origin)

    def _lines(self, purpose: str, origin: str) -> tuple[KeyLine, ...]:
        lines = self.document.keys if self.document and self.document.origin == origin else ()
        return tuple(line for line in lines if line.purpose == purpose)


def open_keyring(*, root: str | None = None, document: bytes | None = None, policy: bytes | None = None) -> Keyring:
    """Return the keyring of a root's vkey with its signed key document, of a policy file, or of both."""
    if (root is None) != (document is None) or (root is None and policy is None):
        raise Malformed("pin a root key together with its key document, or a policy, or all three")
    root_key = None if root is None else parse_vkey(root)
    opened = None if root_key is None or document is None else open_key_document(document, root_key)
    return Keyring(root_key, opened, None if policy is None else parse_policy(policy))


def _check_line(line: KeyLine, origin: str) -> None:
    names = {"log": origin, "receipt": f"{origin}/receipt"}
    if line.purpose not in ("log", "receipt", "custodial") or line.key.kind != KIND_ED25519:
        raise Malformed("a key line's purpose is log, receipt or custodial, and its vkey is of kind 1")
    if line.key.name != names.get(line.purpose, line.key.name) or not f"{line.key.name}/".startswith(f"{origin}/"):
        raise Malformed("a key line's name is the origin for a log, <origin>/receipt, or below <origin>/ if custodial")
    if line.status not in ("active", "retired", "compromised") or (line.status != "active" and line.to_size is None):
        raise Malformed("a key line's status is active, retired or compromised, the last two with a toSize")
    if line.to_size is not None and line.to_size < line.from_size:
        raise Malformed("a key line's toSize is below its fromSize")
    if (line.final_root is not None) != (line.status == "compromised" and line.purpose == "log"):
        raise Malformed("a final size and root stand exactly on the line of a compromised log key")
    if line.final_size is not None and line.final_size < (line.to_size or 0):
        raise Malformed("a key line's finalSize is below its toSize")
    if line.final_note is not None:
        final = parse_checkpoint(line.final_note)
        if (final.origin, final.size, final.root) != (origin, line.final_size, line.final_root):
            raise Malformed("a key line's checkpoint is not of its origin, final size and final root")
