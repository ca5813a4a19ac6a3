"""The gateway's two online keys: one signs checkpoints, one signs leaves. They are never the same key.

Ed25519 signatures are deterministic, so what is signed again after a restart is byte for byte what was signed
before; nothing here is kept. Signing needs no lock and no I/O.
Source: docs/protocol.md, receipts; https://github.com/secure-systems-lab/dsse (PAE).
"""

from __future__ import annotations

from keys.signing import SigningKey
from verifier.did import thumbprint
from verifier.note import Note, VerifierKey, encode_note, make_vkey, signature_line
from verifier.receipt import pre_authentication


class Signer:
    """Signs for one origin with the log key and the receipt key, which must differ."""

    __slots__ = ("_log", "_receipt", "log_key", "origin", "receipt_key", "receipt_key_id")

    def __init__(self, log: SigningKey, receipt: SigningKey, origin: str) -> None:
        assert log.public_key != receipt.public_key, "the log key and the receipt key must be different keys"
        self._log = log
        self._receipt = receipt
        self.origin = origin
        self.log_key: VerifierKey = make_vkey(origin, log.public_key)
        self.receipt_key: VerifierKey = make_vkey(f"{origin}/receipt", receipt.public_key)
        self.receipt_key_id = thumbprint(receipt.public_key)

    def sign_checkpoint(self, text: str) -> bytes:
        """Return the checkpoint as a signed note with the log key's one line."""
        line = signature_line(self.log_key, self._log.sign(text.encode()))
        return encode_note(Note(text, (line,)))

    def sign_leaf(self, leaf: bytes) -> bytes:
        """Return the 64-byte direct signature over a leaf."""
        return self._receipt.sign(pre_authentication(leaf))
