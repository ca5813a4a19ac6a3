"""How the keys of a ledger go on: what the root states, and the key document that follows from it. Pure.

The ledger is the source: a document says of the keys what the ledger's entries say, from when to when each signs, and
adds one thing that no entry can know, the tree after a stolen key was disowned. No line ever vanishes, for then every
receipt under its key would be worth nothing.
Source: docs/protocol.md 15.5 to 15.11.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from keys.forms import root_vkey
from keys.publish import PublishError, document_hash
from keys.signing import SigningKey
from verifier.keyring import KeyDocument, KeyLine
from verifier.note import Note, VerifierKey, encode_note, signature_line
from verifier.statement import KeyStatement, key_statement_text


class Final(NamedTuple):
    """A tree that has the entry in it which disowned a log key. `note` is its checkpoint as witnesses cosigned it."""

    size: int
    root: bytes
    note: bytes | None = None


def commitment(public_key: bytes) -> str:
    """Return what the ledger says of a key that must be announced next: 64 hex digits."""
    return sha256(public_key).hexdigest()


def signed_statement(statement: KeyStatement, root: SigningKey, origin: str, genesis: bytes) -> str:
    """Return the root's statement about a key, as an operator brings it; `genesis` is the hash of entry 0."""
    text = key_statement_text(statement, origin, genesis)
    line = signature_line(root_vkey(origin, root.public_key), root.sign(text.encode()))
    return encode_note(Note(text, (line,))).decode()


def next_document(
    document: KeyDocument, lines: Sequence[KeyLine], finals: Mapping[VerifierKey, Final]
) -> KeyDocument | None:
    """Return the document that shows what the ledger says of its keys, or None when `document` does already.

    `lines` are all keys of the ledger as its entries bound them. `finals` has a tree for each disowned log key that
    `document` does not name one for; one with a note takes the place of one without. PublishError: the ledger says
    otherwise than a document that was published, and one of them is not what it was.
    """
    shown = {line.key: line for line in document.keys}
    for line in lines:
        _check_kept(shown.get(line.key), line)
    keys = shown | {line.key: _shown(line, shown.get(line.key), finals.get(line.key)) for line in lines}
    if keys == shown:
        return None
    following = tuple(sorted(keys.values(), key=lambda line: f"key {line.text}\n"))
    return KeyDocument(document.origin, document.genesis, document.version + 1, document_hash(document), following)


def _check_kept(before: KeyLine | None, line: KeyLine) -> None:
    """Bounds that were published once are true for ever: a key that has ended stays ended, where it did."""
    if before is None:
        return
    is_open = before.to_size is None and before.status == "active"
    is_kept = is_open or (before.to_size, before.status) == (line.to_size, line.status)
    if before.from_size != line.from_size or not is_kept:
        raise PublishError(
            f"the ledger says of the {line.purpose} key {line.key.vkey} what differs from the published document."
            " Audit the ledger, and sign nothing before you know why."
        )


def _shown(line: KeyLine, before: KeyLine | None, found: Final | None) -> KeyLine:
    """Return the line of a key, with the tree that a disowned log key's line names."""
    if line.purpose != "log" or line.status != "compromised":
        return line
    is_better = found is not None and found.note is not None
    if before is not None and before.final_root is not None and (before.final_note is not None or not is_better):
        return replace(line, final_size=before.final_size, final_root=before.final_root, final_note=before.final_note)
    assert found is not None, "a tree is found for each disowned log key"
    return replace(line, final_size=found.size, final_root=found.root, final_note=found.note)
