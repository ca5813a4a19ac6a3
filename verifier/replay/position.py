"""A position of an audit as bytes: what it knows after so many entries, written once and read without trust.

A few lines of text say whose it is, so that it can be refused unread; then a pickle; then the digest of both. Reading
executes nothing (kept.py), and what does not fit (pins, rules, digest, types) is refused in one sentence. The digest
finds damage. It is no seal: whoever can write here can make an audit forget, so the folder is the auditor's alone.
Source: docs/protocol.md 17.7.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pickle import Pickler
from typing import BinaryIO, NamedTuple

from verifier.entries import RULES_VERSION
from verifier.keyring import Keyring
from verifier.replay.audit import Audit
from verifier.replay.kept import BEGIN_ANEW, FORMAT, KEPT_MEMBERS, PositionRefused, read_members
from verifier.verdict import Finding, Outcome

DIGEST_BYTES = 32
_FIRST_LINES = f"tallystick-position/{FORMAT}\nrules {RULES_VERSION}\n"
_HEAD = re.compile(
    r"tallystick-position/([0-9]{1,9})\nrules ([0-9]{1,9})\norigin ([!-~]{1,400})\ngenesis ([0-9a-f]{64})\n"
    r"root ([!-~]{1,400})\nsize ([1-9][0-9]{0,15})\ntree ([0-9a-f]{64})\n\n"
)
_HEAD_BYTES_MAX = 2_048
_READ_BYTES = 1_048_576


class Head(NamedTuple):
    """What stands before the pickle, in words: enough to refuse it unread."""

    origin: str
    genesis: bytes
    root_key: str
    size: int
    tree_root: bytes


class _Digesting:
    """A file that remembers a digest of all that was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)


def write_position(file: BinaryIO, audit: Audit) -> int:
    """Write head, pickle and digest; return how many bytes."""
    members: dict[str, object] = {member: getattr(audit, member) for member in KEPT_MEMBERS}
    members["findings"] = [(f.step, f.code, int(f.outcome), f.text, f.seq) for f in audit.findings]
    tree = f"size {audit.tree.size}\ntree {audit.tree.root().hex()}\n\n"
    pins = f"origin {audit.origin}\ngenesis {audit.genesis.hex()}\nroot {audit.root_key or '-'}\n"
    digesting = _Digesting(file)
    digesting.write((_FIRST_LINES + pins + tree).encode("ascii"))
    Pickler(digesting, protocol=5).dump(members)
    file.write(digesting.digest.digest())
    return file.tell()


def read_position(file: BinaryIO, keyring: Keyring) -> tuple[Head, dict[str, object]]:
    """Return head and members of a position that fits the pins. PositionRefused for everything else."""
    data = file.read(_HEAD_BYTES_MAX)
    match = _HEAD.match(data.decode("latin-1"))
    if match is None:
        raise PositionRefused(f"the file is no saved position of an audit: {BEGIN_ANEW}")
    if not data.startswith(_FIRST_LINES.encode("ascii")):
        text = f"the position was saved in format {match[1]} under rules {match[2]}; here they are {FORMAT} and "
        raise PositionRefused(f"{text}{RULES_VERSION}: {BEGIN_ANEW}")
    head = Head(match[3], bytes.fromhex(match[4]), match[5], int(match[6]), bytes.fromhex(match[7]))
    _check_pins(head, keyring)
    _check_digest(file)
    file.seek(match.end())
    return head, read_members(file)


def restored(audit: Audit, members: dict[str, object]) -> Audit:
    """Put the members of a position into an audit."""
    rows = members.pop("findings")
    assert isinstance(rows, list), "was looked at"
    audit.findings = [Finding(step, code, Outcome(outcome), text, seq) for step, code, outcome, text, seq in rows]
    for name, value in members.items():
        setattr(audit, name, value)
    return audit


def _check_pins(head: Head, keyring: Keyring) -> None:
    root, document = keyring.root, keyring.document
    for what, is_other in (
        ("origin", document is not None and document.origin != head.origin),
        ("entry 0", document is not None and document.genesis != head.genesis),
        ("root key", root is not None and root.vkey != head.root_key),
        ("origin", not keyring.log_keys(head.origin)),
    ):
        if is_other:
            raise PositionRefused(
                f"the saved position is of a ledger with another {what} than the pinned: {BEGIN_ANEW}"
            )


def _check_digest(file: BinaryIO) -> None:
    left = file.seek(0, 2) - DIGEST_BYTES
    file.seek(0)
    digest = sha256()
    while left > 0:
        part = file.read(min(left, _READ_BYTES))
        digest.update(part)
        left -= len(part) or left
    if file.read() != digest.digest():
        raise PositionRefused(f"the saved position is damaged: its digest differs; {BEGIN_ANEW}")
