"""What the root says about one key in the ledger: announced, retired, or compromised.

A statement is a signed note of four lines for one ledger, named by origin and entry 0. It takes effect when the ledger
has it as an entry, so a copy of an old one does nothing: a key is announced once, and ended once.
Source: docs/protocol.md 15.7.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verifier.note import KIND_ED25519, Note, VerifierKey, is_signed_once, parse_note, parse_vkey
from verifier.wire import Malformed

_FIRST_LINE = "tallystick-key/v1"
_LINES = r"\norigin .+\ngenesis [0-9a-f]{64}\n(announce|retire|compromise) (log|receipt) (\S+)(?: ([0-9a-f]{64}|-))?\n"
_TEXT = re.compile(_FIRST_LINE + _LINES)


@dataclass(frozen=True, slots=True)
class KeyStatement:
    """`verb` is announce, retire or compromise; `purpose` log or receipt.

    `next` is the hex SHA-256 of the raw key that must be announced after this one; only with announce, None for none.
    """

    verb: str
    purpose: str
    key: VerifierKey
    next: str | None = None


def key_statement_text(statement: KeyStatement, origin: str, genesis: bytes) -> str:
    """Return the text the root signs; `genesis` is the 32-byte leaf hash of entry 0."""
    following = f" {statement.next or '-'}" if statement.verb == "announce" else ""
    what = f"{statement.verb} {statement.purpose} {statement.key.vkey}{following}"
    return f"{_FIRST_LINE}\norigin {origin}\ngenesis {genesis.hex()}\n{what}\n"


def read_key_statement(data: bytes, origin: str, genesis: bytes) -> tuple[KeyStatement, Note]:
    """Return the statement in note `data`, and the note, whose one signature is *not* verified here.

    Malformed: not the only spelling of a statement for this ledger, or a key whose name does not fit its purpose.
    """
    note = parse_note(data)
    match = _TEXT.fullmatch(note.text)
    if match is None or len(note.lines) != 1:
        raise Malformed("a key statement is its first line, origin, genesis and what is stated, signed once")
    verb, purpose, vkey, following = match.groups()
    key = parse_vkey(vkey)
    statement = KeyStatement(verb, purpose, key, None if following == "-" else following)
    if key_statement_text(statement, origin, genesis) != note.text:
        raise Malformed("a key statement is of another ledger, or not in its only accepted spelling")
    if key.kind != KIND_ED25519 or key.name != (origin if purpose == "log" else f"{origin}/{purpose}"):
        raise Malformed("a key statement's vkey is of kind 1, named <origin> for a log and <origin>/receipt")
    return statement, note


def open_key_statement(data: bytes, root: VerifierKey, origin: str, genesis: bytes) -> KeyStatement:
    """Return the statement in note `data` for the ledger `origin` with entry 0 `genesis`, signed by its `root`."""
    statement, note = read_key_statement(data, origin, genesis)
    if root.kind != KIND_ED25519 or not is_signed_once(note, root):
        raise Malformed("the key statement carries no valid signature of this ledger's root key")
    return statement
