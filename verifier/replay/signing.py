"""The keys that sign for one ledger, as its entries name them: each with the sizes between which it may sign.

Nothing is judged here. Source: docs/protocol.md 15.8, 15.9.
"""

from __future__ import annotations

from dataclasses import dataclass

from verifier.did import encode_did
from verifier.entries import Leaf
from verifier.keyring import KeyLine, parse_key_line
from verifier.note import VerifierKey, parse_vkey
from verifier.wire import Malformed


@dataclass(slots=True)
class LedgerKey:
    """A key that signs, or signed, for the ledger. `announced_seq` is 0 for those of entry 0."""

    purpose: str
    vkey: str
    public_key: bytes
    announced_seq: int
    ended_seq: int | None = None
    status: str = "active"

    @property
    def from_size(self) -> int:
        """The first size or seq that it may sign."""
        return self.announced_seq + 1 if self.announced_seq else 0

    def covers(self, size: int) -> bool:
        """Say whether it may sign a tree of this size, or a leaf of this seq."""
        return self.from_size <= size and (self.ended_seq is None or size <= self.ended_seq)

    def speaks(self, size: int) -> bool:
        """Say whether what it signs for a tree of this size is believed as things stand."""
        return self.covers(size) and self.status != "compromised"

    def is_as(self, line: KeyLine) -> bool:
        """Say whether a line of a key document has these bounds."""
        bounds = line.purpose, line.from_size, line.to_size, line.status
        return bounds == (self.purpose, self.from_size, self.ended_seq, self.status)


class Keys:
    """Every key of one ledger, the oldest first, and what it has committed to."""

    def __init__(self) -> None:
        self.root = ""  # its vkey
        self.origin = ""
        self.genesis = b""
        self.all: list[LedgerKey] = []
        self._dids: set[str] = set()
        self.committed: dict[str, str] = {}  # by purpose, the hash of the key that has to come next

    def open(self, leaf: Leaf, genesis: bytes) -> None:
        """Take the keys of entry 0. What is no key line of this ledger is left out; `opening_faults` says so."""
        self.root, self.origin, self.genesis = leaf.text("root"), leaf.origin, genesis
        for line in lines_of(leaf):
            if line is not None:
                self.add(LedgerKey(line.purpose, line.key.vkey, line.key.public_key, 0))
        if public_key := public_key_of(self.root):
            self._dids.add(encode_did(public_key))
        following = leaf.value.get("nextKeys")
        self.committed = {name: str(it) for name, it in following.items()} if isinstance(following, dict) else {}

    def is_own(self, did: str) -> bool:
        """Say whether a DID has the raw key of the root, or of what signs or ever signed for the ledger."""
        return did in self._dids

    def add(self, key: LedgerKey) -> None:
        self.all.append(key)
        if key.public_key:
            self._dids.add(encode_did(key.public_key))

    def in_force(self, purpose: str) -> list[LedgerKey]:
        return [key for key in self.all if key.purpose == purpose and key.ended_seq is None]

    def named(self, purpose: str, vkey: str) -> LedgerKey | None:
        """Return the key of a purpose in force with this vkey."""
        return next((key for key in self.in_force(purpose) if key.vkey == vkey), None)

    def of_log(self, size: int) -> list[VerifierKey]:
        """Return the log keys whose lines a checkpoint of this size has."""
        return [parse_vkey(key.vkey) for key in self.all if key.purpose == "log" and key.covers(size)]


def lines_of(leaf: Leaf) -> list[KeyLine | None]:
    """Return the key lines of entry 0, None for each that is none of this ledger."""
    rows = leaf.value.get("keys")
    return [_line(str(row), leaf.origin) for row in rows] if isinstance(rows, list) else []


def _line(text: str, origin: str) -> KeyLine | None:
    try:
        return parse_key_line(text.split(" "), origin)
    except Malformed:
        return None


def public_key_of(vkey: str) -> bytes:
    """Return the raw key of a vkey, nothing for what is none."""
    try:
        return parse_vkey(vkey).public_key
    except Malformed:
        return b""
