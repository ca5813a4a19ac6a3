"""What a log and its witnesses say to each other, and the file that names them. Pure: no network and no clock.

A witness's line counts only under the key that the operator pinned in `witnesses.txt`, and a checkpoint at a witness
only under a log key of ours: whatever else comes over the wire is a hint at most.
Source: docs/protocol.md 32; C2SP tlog-witness v1.0.0, tlog-cosignature v1.0.1, tlog-policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeAlias

from gateway.ledger.history import Confirmed
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.entries import COSIGNED_CHARACTERS_MAX
from verifier.note import (
    Note,
    SignatureLine,
    VerifierKey,
    encode_note,
    is_signed_once,
    line_is_valid,
    line_matches,
    parse_note,
)
from verifier.policy import Policy, is_quorum_met, parse_policy
from verifier.wire import Malformed, decode_decimal, encode_base64

WITNESSES_FILE = "witnesses.txt"
WITNESSES_MAX = 32  # C2SP asks readers to support so many; each is one task and one connection of ours
LINE_CHARACTERS = 110  # of a cosignature line beside its name: dash, spaces, 104 of base64, newline
LOG_LINES_CHARACTERS = 2_048  # origin, size, root, and the lines of two log keys
_URL = re.compile(r"https?://[!-~]+")

OwnKeys: TypeAlias = Callable[[int], Sequence[VerifierKey]]  # our log keys that may speak for a size


@dataclass(frozen=True, slots=True)
class Witness:
    """One witness: its name in the policy, its cosigning key, and the URL that its paths are below."""

    name: str
    key: VerifierKey
    url: str


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The file `witnesses.txt`, opened. `text` are its bytes."""

    policy: Policy
    members: tuple[Witness, ...]
    text: bytes


def open_witnesses(data: bytes) -> Witnesses:
    """Return the witnesses that a C2SP tlog-policy names. Malformed says what is missing.

    Its `log` lines are allowed and mean nothing here: the log is this gateway.
    """
    policy = parse_policy(data)
    urls = {words[1]: words[3].rstrip("/") for words in _rows(data, "witness") if len(words) == 4}
    if policy.quorum is None or not policy.witnesses:
        raise Malformed("it names no witness, or says `quorum none`; remove the file to do without witnesses")
    if len(policy.witnesses) > WITNESSES_MAX:
        raise Malformed(f"it names {len(policy.witnesses)} witnesses, at most {WITNESSES_MAX} are asked")
    for name in policy.witnesses:
        if _URL.fullmatch(urls.get(name, "")) is None:
            raise Malformed(f"witness {name} has no URL; its line is: witness {name} VKEY https://…")
    members = tuple(Witness(name, key, urls[name]) for name, key in policy.witnesses.items())
    longest = LOG_LINES_CHARACTERS + sum(len(one.key.name) + LINE_CHARACTERS for one in members)
    if longest > COSIGNED_CHARACTERS_MAX:
        raise Malformed("the names of its witnesses are so long that their lines don't fit one entry of the ledger")
    return Witnesses(policy, members, data)


def served_policy(published: bytes, witnesses: Witnesses | None) -> bytes:
    """Return what readers may compare with their own policy: our log keys, and the witnesses that we ask.

    `published` is the policy with log keys alone, as the key document gives it.
    """
    if witnesses is None:
        return published
    head = (
        b"# The logs of this gateway, and the witnesses that it asks.\n"
        b"# A policy is worth what its source is worth: compare it with a copy that did not come from the gateway.\n"
    )
    logs = [row for row in _lines(published) if row.startswith((b"log ", b"# retired"))]
    named = [row for row in _lines(witnesses.text) if row.split()[:1] != [b"log"]]
    text = b"".join([head, *logs, *named])
    parse_policy(text)
    return text


def _lines(data: bytes) -> list[bytes]:
    return [row + b"\n" for row in data.split(b"\n")[:-1]]


def _rows(data: bytes, word: str) -> Iterable[list[str]]:
    """Return the words of each line that begins with `word`, taken apart as `parse_policy` does."""
    rows = ([part.decode("utf-8", "backslashreplace") for part in row.split()] for row in data.split(b"\n"))
    return (row for row in rows if row[:1] == [word])


# -- what goes over the wire -------------------------------------------------------------------------------------------


def add_checkpoint_body(old: int, proof: Sequence[bytes], note: bytes) -> bytes:
    """Return the body of add-checkpoint: the tree of `note` extends that of `old` entries, by `proof`.

    The same bytes are a consistency proof for anybody else, as GET …/ledger/consistency gives it.
    """
    hashes = "".join(f"{encode_base64(part)}\n" for part in proof)
    return f"old {old}\n{hashes}\n".encode() + note


def origin_path(origin: str) -> str:
    """Return where below its monitoring prefix a witness shows the newest checkpoint of a log."""
    return f"{sha256(origin.encode()).hexdigest()}/checkpoint"


def told_size(body: bytes) -> int:
    """Return the size in a 409: one decimal line. It is signed by nobody, hence a hint."""
    if not body.endswith(b"\n") or len(body) > 20:
        raise Malformed("a 409 of a witness holds the size that it has, and a newline")
    return decode_decimal(body[:-1].decode("ascii", "backslashreplace"))


def read_cosignature(body: bytes, key: VerifierKey, text: str) -> SignatureLine:
    """Return the one line in an answer that is by `key`, after it was found to be over the checkpoint `text`.

    Lines of other keys are ignored, as C2SP has it.
    """
    note = parse_note(text.encode() + b"\n" + body)
    lines = [line for line in note.lines if line_matches(line, key)]
    if note.text != text or len(lines) != 1:
        raise Malformed("the answer has no line, or more than one, by the key that is pinned for this witness")
    if not line_is_valid(lines[0], key, text):
        raise Malformed("the line by this witness's key does not verify")
    return lines[0]


def open_own(data: bytes, origin: str, own_keys: OwnKeys) -> Checkpoint | None:
    """Return the checkpoint in `data` if a log key of ours that may speak for its size signed it; None for any other.

    A disowned key speaks for nothing here: who stole it could otherwise stop this gateway.
    """
    try:
        checkpoint = parse_checkpoint(data)
    except Malformed:
        return None
    is_signed = any(is_signed_once(checkpoint.note, key) for key in own_keys(checkpoint.size))
    return checkpoint if checkpoint.origin == origin and is_signed else None


def own_note(checkpoint: Checkpoint, own_keys: OwnKeys) -> bytes:
    """Return the note with our own lines alone: what speaks against us, whoever else has signed. A key whose line is
    there twice, or does not verify, speaks for nothing."""
    note = checkpoint.note
    keys = [key for key in own_keys(checkpoint.size) if is_signed_once(note, key)]
    lines = tuple(line for line in note.lines if any(line_matches(line, key) for key in keys))
    return encode_note(Note(note.text, lines))


# -- one checkpoint and its lines --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Gathering:
    """The lines that witnesses gave for one checkpoint of ours.

    `begun_ms` (elapsed time) and `log_ms` (log time) are when it was picked: nothing in it is younger. `others` is how
    many entries there were by then, witnessed checkpoints not counted. `asked` are the witnesses that answered already.
    """

    target: Confirmed
    begun_ms: int
    log_ms: int
    others: int
    lines: dict[str, SignatureLine] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def is_of(self, confirmed: Confirmed) -> bool:
        """Say whether this is the checkpoint of a head."""
        return (self.target.size, self.target.root) == (confirmed.size, confirmed.root)

    def note(self, policy: Policy) -> bytes | None:
        """Return the whole note if the quorum is met: our lines, then the witnesses' in the order of the policy."""
        if not is_quorum_met(policy, self.lines.keys()):
            return None
        own = parse_checkpoint(self.target.note).note
        cosignatures = tuple(self.lines[name] for name in policy.witnesses if name in self.lines)
        return encode_note(Note(own.text, (*own.lines, *cosignatures)))


def valid_lines(checkpoint: Checkpoint, witnesses: Mapping[str, VerifierKey]) -> dict[str, SignatureLine]:
    """Return the lines of a note that pinned witnesses signed, by the policy's name; each stands there once."""
    found: dict[str, SignatureLine] = {}
    for name, key in witnesses.items():
        lines = [line for line in checkpoint.note.lines if line_matches(line, key)]
        if len(lines) == 1 and line_is_valid(lines[0], key, checkpoint.note.text):
            found[name] = lines[0]
    return found
