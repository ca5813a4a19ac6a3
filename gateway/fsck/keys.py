"""Which keys of a ledger are in force where, by its own entries alone; and their private halves, for who mends.

Walked in order: what is in force before an entry signs that entry, and what is in force after the last entry of a
batch signs the batch's checkpoint. Source: docs/protocol.md 15, keys over time.
"""

from __future__ import annotations

from pathlib import Path

from keys.files import load_key
from keys.signing import SigningKey
from verifier.checkpoint import Checkpoint, checkpoint_text
from verifier.entries import Leaf, full_type
from verifier.keyring import parse_key_line
from verifier.note import Note, VerifierKey, encode_note, is_signed_once, parse_vkey, signature_line
from verifier.receipt import pre_authentication
from verifier.sig import is_valid
from verifier.wire import Malformed

_OPENED, _ANNOUNCED = full_type("ledger.opened"), full_type("key.announced")
_ENDED = (full_type("key.retired"), full_type("key.compromised"))


class InForce:
    """The log and receipt keys in force, oldest first. Malformed: an entry names a key that is none."""

    def __init__(self) -> None:
        self._keys: dict[str, list[VerifierKey]] = {"log": [], "receipt": []}

    @property
    def logs(self) -> tuple[VerifierKey, ...]:
        return tuple(self._keys["log"])

    @property
    def receipt(self) -> VerifierKey | None:
        """The one key that signs the next entry; None when none is in force."""
        return self._keys["receipt"][0] if self._keys["receipt"] else None

    def take(self, leaf: Leaf) -> None:
        """Count in what an entry says about keys."""
        if leaf.type == _OPENED:
            lines = leaf.value["keys"]
            assert isinstance(lines, list), "the table says so"
            for line in (parse_key_line(str(text).split(" "), leaf.origin) for text in lines):
                self._keys.get(line.purpose, []).append(line.key)
        elif leaf.type == _ANNOUNCED:
            self._of(leaf).append(parse_vkey(leaf.text("key")))
        elif leaf.type in _ENDED and (key := parse_vkey(leaf.text("key"))) in self._of(leaf):
            self._of(leaf).remove(key)

    def _of(self, leaf: Leaf) -> list[VerifierKey]:
        return self._keys[leaf.text("purpose")]

    def has_signed(self, checkpoint: Checkpoint) -> bool:
        """Say whether each log key in force signed a checkpoint, and nobody else: cosignatures are kept elsewhere."""
        is_whole = len(checkpoint.note.lines) == len(self.logs) > 0
        return is_whole and all(is_signed_once(checkpoint.note, key) for key in self.logs)


def has_signed_leaf(key: VerifierKey | None, leaf: bytes, signature: bytes) -> bool:
    """Say whether this receipt key signed this leaf."""
    return key is not None and is_valid(key.public_key, pre_authentication(leaf), signature)


class Signers:
    """The private keys of a data directory, by their public ones."""

    def __init__(self, folder: Path) -> None:
        """Load every log and receipt key there is. KeyFileError when one can't be read."""
        self._keys: dict[bytes, SigningKey] = {}
        for purpose in ("log", "receipt"):
            for path in sorted(folder.glob(f"keys/{purpose}*.key")):
                key = load_key(path, purpose=purpose)
                self._keys[key.public_key] = key

    def note(self, keys: tuple[VerifierKey, ...], origin: str, size: int, root: bytes) -> bytes | None:
        """Return the checkpoint that these keys sign, byte for byte as it was; None when one of them is gone."""
        text = checkpoint_text(origin, size, root)
        if not keys or any(key.public_key not in self._keys for key in keys):
            return None
        lines = tuple(signature_line(key, self._keys[key.public_key].sign(text.encode())) for key in keys)
        return encode_note(Note(text, lines))

    def signature(self, key: VerifierKey | None, leaf: bytes) -> bytes | None:
        """Return the signature over a leaf; None when its key is gone."""
        private = None if key is None else self._keys.get(key.public_key)
        return None if private is None else private.sign(pre_authentication(leaf))


def open_keys(in_force: InForce, leaf: Leaf) -> str | None:
    """Count in an entry's keys; return what is wrong with them, or None."""
    try:
        in_force.take(leaf)
    except Malformed as error:
        return str(error)
    return None
