"""The gateway's online keys: which of them signs which checkpoint and which leaf. None of them is ever another's.

Keys come and go while the ledger lives, by its own entries (docs/protocol.md 15.8): a checkpoint has the line of each
log key in force at its size, a leaf the signature of the oldest receipt key in force at its number. So what is signed
depends on committed entries alone. Ed25519 signatures are deterministic: what is signed again after a restart is byte
for byte what was signed before; nothing here is kept. Signing needs no lock and no I/O.
Source: docs/protocol.md, receipts; https://github.com/secure-systems-lab/dsse (PAE).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from gateway.core.key import line_of
from gateway.core.records import Change, LedgerKey
from gateway.errors import Fatal
from keys.signing import SigningKey
from verifier.checkpoint import checkpoint_text
from verifier.did import thumbprint
from verifier.keyring import KeyLine, covers
from verifier.note import Note, SignatureLine, VerifierKey, encode_note, make_vkey, signature_line
from verifier.receipt import pre_authentication

_thumbprint = lru_cache(maxsize=32)(thumbprint)  # asked for each answer


def key_name(origin: str, purpose: str) -> str:
    """Return the name under which a key of a purpose is known."""
    return origin if purpose == "log" else f"{origin}/{purpose}"


def seal_secret(seal: SigningKey, origin: str) -> bytes:
    """Return the secret of a ledger's seal, 64 bytes."""
    return seal.sign(b"tallystick seal over records of " + origin.encode())


class Signer:
    """Signs for one origin. All raw keys differ.

    `heed` says which keys the ledger knows. Before that it signs as entry 0 would have it: with the first log key and
    the first receipt key that were handed over, from the beginning.
    """

    __slots__ = ("_known", "_lines", "_private", "_receipts", "_seal", "origin")

    def __init__(
        self, origin: str, *, log: Sequence[SigningKey], receipt: Sequence[SigningKey], seal: SigningKey
    ) -> None:
        self.origin = origin
        self._seal = seal
        self._private: dict[VerifierKey, SigningKey] = {}
        self._known: dict[str, LedgerKey] = {}
        self._lines: tuple[KeyLine, ...] = ()
        self._receipts: tuple[KeyLine, ...] = ()
        for purpose, keys in (("log", log), ("receipt", receipt)):
            for key in keys:
                self.take(purpose, key)
        first = (("log", log[0]), ("receipt", receipt[0]))
        self.heed(LedgerKey(purpose, self._vkey(purpose, key).vkey, 0) for purpose, key in first)

    # -- what it has, and what the ledger knows ------------------------------------------------------------------------

    def take(self, purpose: str, key: SigningKey) -> None:
        """Have one more private key; it signs nothing before the ledger says so."""
        vkey = self._vkey(purpose, key)
        assert self.has(vkey) or not self.is_used(key.public_key), "a key has one purpose"
        self._private[vkey] = key

    def has(self, key: VerifierKey) -> bool:
        """Say whether the private half of a key is here."""
        return key in self._private

    def is_used(self, public_key: bytes) -> bool:
        """Say whether a raw key is here, whatever for."""
        return public_key == self._seal.public_key or any(public_key == key.public_key for key in self._private)

    def heed(self, records: Iterable[LedgerKey]) -> None:
        """Take over all that the ledger knows of its keys: from now on it says which of them signs what."""
        self._known = {record.vkey: record for record in records}
        self._order()

    def heed_changes(self, changes: Iterable[Change]) -> None:
        """Take over what a committed batch changed."""
        changed = {record.vkey: record for _, record, _ in changes if isinstance(record, LedgerKey)}
        if changed:
            self._known |= changed
            self._order()

    def _order(self) -> None:
        """Put the lines in order of age, in one step: who reads them in another thread finds the old or the new."""
        lines = sorted(map(line_of, self._known.values()), key=lambda line: (line.from_size, line.text))
        self._lines = tuple(lines)
        self._receipts = tuple(line for line in lines if line.purpose == "receipt")

    @property
    def lines(self) -> tuple[KeyLine, ...]:
        """Return the bounds of each key that the ledger knows, past ones too, the oldest first."""
        return self._lines

    def missing(self) -> list[KeyLine]:
        """Return the lines in force whose private key is not here."""
        return [line for line in self._lines if line.to_size is None and line.key not in self._private]

    # -- who signs -----------------------------------------------------------------------------------------------------

    def log_keys(self, size: int) -> list[VerifierKey]:
        """Return the keys whose lines a checkpoint of `size` has."""
        return [line.key for line in self._lines if line.purpose == "log" and covers(line, size)]

    def own_keys(self, size: int) -> list[VerifierKey]:
        """Return the log keys whose word about a tree of `size` is ours: those that we have not disowned."""
        own = (line for line in self._lines if line.purpose == "log" and line.status != "compromised")
        return [line.key for line in own if covers(line, size)]

    def receipt_key(self, seq: int) -> VerifierKey:
        """Return the key that signs entry `seq`: the oldest one whose bounds it lies in."""
        for line in self._receipts:
            if covers(line, seq):
                return line.key
        raise Fatal(f"no receipt key may sign entry {seq}; restore a good back-up")

    def receipt_key_id(self, seq: int) -> str:
        """Return the `keyid` of the signature over entry `seq`."""
        return _thumbprint(self.receipt_key(seq).public_key)

    def sign_checkpoint(self, size: int, root: bytes) -> bytes:
        """Return the checkpoint as a signed note, with the line of each log key in force at `size`."""
        text = checkpoint_text(self.origin, size, root)
        keys = self.log_keys(size)
        if not keys:
            raise Fatal(f"no log key may sign a checkpoint of {size} entries; restore a good back-up")
        return encode_note(Note(text, tuple(self._line(key, text) for key in keys)))

    def sign_leaf(self, seq: int, leaf: bytes) -> bytes:
        """Return the 64-byte direct signature over the leaf of entry `seq`."""
        return self._key(self.receipt_key(seq)).sign(pre_authentication(leaf))

    def seal_secret(self) -> bytes:
        """Return the secret of this ledger's seal, 64 bytes, which never leaves the process."""
        return seal_secret(self._seal, self.origin)

    def _line(self, key: VerifierKey, text: str) -> SignatureLine:
        return signature_line(key, self._key(key).sign(text.encode()))

    def _key(self, key: VerifierKey) -> SigningKey:
        found = self._private.get(key)
        if found is None:
            raise Fatal(f"the private key of {key.vkey} is needed to sign; restore its file, bring it back to keys/")
        return found

    def _vkey(self, purpose: str, key: SigningKey) -> VerifierKey:
        return make_vkey(key_name(self.origin, purpose), key.public_key)
