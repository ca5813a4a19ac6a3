"""What the publish tests share: three keys with known seeds and the documents of one ledger."""

from __future__ import annotations

from pathlib import Path

from keys.forms import root_vkey
from keys.publish import document_hash, read_forms
from keys.signing import SigningKey
from verifier.keyring import KeyDocument, KeyLine, open_key_document
from verifier.note import make_vkey

ORIGIN = "ledger.example/main"
GENESIS = bytes(range(32))
ROOT, LOG, RECEIPT, NEXT_LOG, CUSTODIAL = (SigningKey(bytes([number]) * 32) for number in range(1, 6))
ROOT_VKEY = root_vkey(ORIGIN, ROOT.public_key)
LOG_LINE = KeyLine("log", make_vkey(ORIGIN, LOG.public_key))
RECEIPT_LINE = KeyLine("receipt", make_vkey(f"{ORIGIN}/receipt", RECEIPT.public_key))


def first() -> KeyDocument:
    """Version 1: one log and one receipt key, open ended."""
    return KeyDocument(ORIGIN, GENESIS, 1, None, (LOG_LINE, RECEIPT_LINE))


def successor(previous: KeyDocument, *keys: KeyLine) -> KeyDocument:
    """The next version; the same keys unless others are given."""
    version = previous.version + 1
    return KeyDocument(previous.origin, previous.genesis, version, document_hash(previous), keys or previous.keys)


def rotated() -> KeyDocument:
    """Version 2 after a planned rotation: the first log key ended at size 100, the next one began at 90."""
    old = KeyLine("log", LOG_LINE.key, 0, 100, "retired")
    new = KeyLine("log", make_vkey(ORIGIN, NEXT_LOG.public_key), 90)
    return successor(first(), old, new, RECEIPT_LINE)


def disowned() -> KeyDocument:
    """Version 2 after the log key was stolen at size 100."""
    old = KeyLine("log", LOG_LINE.key, 0, 100, "compromised", 100, bytes(32))
    new = KeyLine("log", make_vkey(ORIGIN, NEXT_LOG.public_key), 101)
    return successor(first(), old, new, RECEIPT_LINE)


def published_version(folder: Path) -> int:
    """The version that a reader who pins the root sees in `folder`."""
    return open_key_document(read_forms(folder)["keys.note"], ROOT_VKEY).version
