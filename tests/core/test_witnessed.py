"""A witnessed checkpoint becomes an entry of the gateway's own, and changes nothing else."""

from __future__ import annotations

import hashlib

import pytest

from gateway.core.witnessed import witnessed
from tests.core.book import Book, own_members
from tests.core.requests import NOW_MS, ORIGIN, acquire, key_of
from verifier.checkpoint import checkpoint_text, parse_checkpoint
from verifier.entries import COSIGNED_CHARACTERS_MAX
from verifier.note import (
    KIND_COSIGNATURE,
    Note,
    VerifierKey,
    cosignature_message,
    encode_note,
    make_vkey,
    signature_line,
)
from verifier.wire import encode_base64

ROOT = hashlib.sha256(b"what stood there").digest()
TIME_S = NOW_MS // 1_000


def cosigned(size: int, witnesses: int = 1) -> bytes:
    """A checkpoint of this ledger with the log's line and those of some witnesses; names as long as they come."""
    text = checkpoint_text(ORIGIN, size, ROOT)
    log = make_vkey(ORIGIN, key_of("log").public_key)
    lines = [signature_line(log, key_of("log").sign(text.encode()))]
    for number in range(witnesses):
        signer = key_of(f"w{number}")
        key: VerifierKey = make_vkey(f"witness.example/{number:03}", signer.public_key, KIND_COSIGNATURE)
        signature = TIME_S.to_bytes(8, "big") + signer.sign(cosignature_message(TIME_S, text))
        lines.append(signature_line(key, signature))
    return encode_note(Note(text, tuple(lines)))


def test_the_entry_holds_the_whole_note_and_what_it_is_about() -> None:
    book = Book()
    note = cosigned(3)
    book.run(NOW_MS, steps=[witnessed(note, parse_checkpoint(note))])
    leaf = book.leaf(-1)
    assert leaf.type == "tallystick/checkpoint.witnessed/1"
    assert own_members(leaf) == {"checkpoint": note.decode(), "size": 3, "root": encode_base64(ROOT)}


def test_no_record_changes_so_no_decision_can_depend_on_a_witness() -> None:
    book = Book()
    before = dict(book.shelf.records)
    note = cosigned(3)
    book.run(NOW_MS, steps=[witnessed(note, parse_checkpoint(note))])
    assert dict(book.shelf.records) == before
    assert book.entry(NOW_MS, acquire("A", "repo:x")).type == "tallystick/lease.granted/1"


def test_a_checkpoint_of_what_is_not_written_yet_can_t_be_entered() -> None:
    book = Book()
    note = cosigned(len(book.leaves) + 1)
    with pytest.raises(AssertionError, match="committed before"):
        book.run(NOW_MS, steps=[witnessed(note, parse_checkpoint(note))])
    note = cosigned(len(book.leaves))
    book.run(NOW_MS, steps=[witnessed(note, parse_checkpoint(note))])
    assert book.leaf(-1).number("size") == len(book.leaves) - 1


def test_the_note_of_as_many_witnesses_as_a_policy_has_fits() -> None:
    note = cosigned(3, witnesses=32)
    assert len(note.decode()) < COSIGNED_CHARACTERS_MAX
    book = Book()
    book.run(NOW_MS, steps=[witnessed(note, parse_checkpoint(note))])
    assert book.leaf(-1).text("checkpoint") == note.decode()
