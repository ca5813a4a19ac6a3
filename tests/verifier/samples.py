"""Keys, notes and documents for the tests of the verifier. Every seed is a repeated byte: test use only."""

from __future__ import annotations

from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

from verifier.keyring import KeyDocument, KeyLine, key_document_text
from verifier.merkle import leaf_hash
from verifier.note import (
    KIND_COSIGNATURE,
    Note,
    VerifierKey,
    cosignature_message,
    encode_note,
    make_vkey,
    signature_line,
)
from verifier.replay.tree import Tree

ORIGIN = "gateway.example/ledger"  # of c2sp.md section 12
TIME_S = 1_700_000_000


def public_key(seed_byte: int) -> bytes:
    return crypto_sign_seed_keypair(bytes([seed_byte]) * 32)[0]


def sign(seed_byte: int, message: bytes) -> bytes:
    return crypto_sign(message, crypto_sign_seed_keypair(bytes([seed_byte]) * 32)[1])[:64]


LOG = make_vkey(ORIGIN, public_key(1))
WITNESS = make_vkey("witness.example/w1", public_key(2), KIND_COSIGNATURE)
ROOT = make_vkey(f"{ORIGIN}/root", public_key(9))
RECEIPT = make_vkey(f"{ORIGIN}/receipt", public_key(3))
CUSTODIAL = make_vkey(f"{ORIGIN}/custodial/a", public_key(4))
OLD_LOG = make_vkey(ORIGIN, public_key(5))


def log_line(text: str, key: VerifierKey = LOG, seed_byte: int = 1) -> Note:
    return Note(text, (signature_line(key, sign(seed_byte, text.encode())),))


def signed(text: str, key: VerifierKey = LOG, seed_byte: int = 1) -> bytes:
    return encode_note(log_line(text, key, seed_byte))


def cosigned(note: Note, key: VerifierKey = WITNESS, seed_byte: int = 2, time_s: int = TIME_S) -> Note:
    payload = time_s.to_bytes(8, "big") + sign(seed_byte, cosignature_message(time_s, note.text))
    return Note(note.text, (*note.lines, signature_line(key, payload)))


def tree_of(size: int) -> Tree:
    """The tree of "leaf-0", "leaf-1" and so on."""
    tree = Tree()
    for index in range(size):
        tree.append(leaf_hash(b"leaf-%d" % index))
    return tree


def witness(index: int) -> VerifierKey:
    return make_vkey(f"witness.example/{index}", public_key(100 + index), KIND_COSIGNATURE)


DOCUMENT = KeyDocument(
    ORIGIN,
    bytes.fromhex("305df59f9590c3c9ac63d2b2743c388e3792449078cebf7fb3dbe6471643b2b7"),
    2,
    b"\x07" * 32,
    (
        KeyLine("custodial", CUSTODIAL, 3, None, "active"),
        KeyLine("log", LOG, 8, None, "active"),
        KeyLine("log", OLD_LOG, 0, 7, "compromised", 7, tree_of(7).root()),
        KeyLine("receipt", RECEIPT, 0, None, "active"),
    ),
)
DOCUMENT_TEXT = key_document_text(DOCUMENT)
