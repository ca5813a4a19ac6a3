"""What proves a second history, what does not, and what stands still afterwards."""

from __future__ import annotations

import hashlib

import pytest

from gateway.core.dispute import disputed, is_contradiction, open_own_checkpoint
from gateway.core.outcome import Recorded
from gateway.core.record_keys import DISPUTE_KEY
from gateway.core.records import Dispute
from tests.core.book import Book, own_members
from tests.core.requests import NOW_MS, ORIGIN, acquire, add, key_note, key_of, release, renew, state_key
from verifier.checkpoint import checkpoint_text
from verifier.note import Note, encode_note, make_vkey, signature_line
from verifier.wire import Malformed, encode_base64

ROOT = hashlib.sha256(b"another history").digest()
LOG = make_vkey(ORIGIN, key_of("log").public_key)


def note(signer: str = "log", origin: str = ORIGIN, times: int = 1, signed_text: str | None = None) -> bytes:
    text = checkpoint_text(origin, 9, ROOT)
    key = make_vkey(origin, key_of(signer).public_key)
    line = signature_line(key, key_of(signer).sign((signed_text or text).encode()))
    return encode_note(Note(text, (line,) * times))


def test_our_own_signature_opens_a_checkpoint() -> None:
    opened = open_own_checkpoint(note(), [LOG])
    assert (opened.origin, opened.size, opened.root) == (ORIGIN, 9, ROOT)


def test_one_of_our_keys_is_enough_and_none_is_none() -> None:
    other = make_vkey(ORIGIN, key_of("other").public_key)
    assert open_own_checkpoint(note(), [other, LOG]).size == 9
    for keys in ([], [other]):
        with pytest.raises(Malformed):
            open_own_checkpoint(note(), keys)


@pytest.mark.parametrize(
    "unverified_bytes",
    [
        note(signer="A"),
        note(origin="other.example/x"),
        note(times=2),
        note(signed_text="something else\n"),
        note()[:-2] + b"\n",
        note() + b"\n",
        b"",
        b"\xff" * 40,
        note() + b"\xe2\x80\x94 w AAAAAAAA\n" * 300,
    ],
    ids=["foreign", "other ledger", "twice", "over other text", "cut", "longer", "empty", "noise", "large"],
)
def test_a_claim_without_our_signature_is_malformed_and_proves_nothing(unverified_bytes: bytes) -> None:
    with pytest.raises(Malformed):
        open_own_checkpoint(unverified_bytes, [LOG])


def test_a_contradiction_is_another_root_or_a_size_we_never_reached() -> None:
    opened = open_own_checkpoint(note(), [LOG])
    assert not is_contradiction(opened, ROOT)
    assert is_contradiction(opened, hashlib.sha256(b"ours").digest())
    assert is_contradiction(opened, None)


def disputed_book() -> Book:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=5_000))
    book.run(NOW_MS, steps=[disputed(note(), open_own_checkpoint(note(), [LOG]), [LOG])])
    return book


def test_a_dispute_is_on_record_once_with_its_proof() -> None:
    book = disputed_book()
    assert own_members(book.leaf(6)) == {"checkpoint": note().decode(), "size": 9, "root": encode_base64(ROOT)}
    assert book.shelf.get(DISPUTE_KEY) == Dispute(6)
    book.run(NOW_MS, steps=[disputed(note(), open_own_checkpoint(note(), [LOG]), [LOG])])
    assert len(book.leaves) == 7
    book.audit()


def test_a_dispute_stops_every_grant_and_every_longer_hold_and_nothing_else() -> None:
    book = disputed_book()
    for ask in (acquire("B", "repo:free"), acquire("A", "repo:x"), acquire("B", "repo:x"), renew("A", "L5")):
        leaf = book.entry(NOW_MS, ask)
        assert (leaf.value["error"], leaf.value["number"]) == ("ledger_disputed", 401)
        assert "holder" not in leaf.value and "stampede" not in leaf.value
    assert book.play(NOW_MS, add("op", "E")) == Recorded(11, 200)
    assert book.play(NOW_MS, release("A", "repo:x")) == Recorded(12, 200)
    assert not [key for key in book.shelf.records if key.startswith("wait/")]
    book.audit()


def test_leases_still_end_in_a_disputed_ledger() -> None:
    book = disputed_book()
    book.run(NOW_MS + 5_000)
    assert book.types(-1) == ["lease.expired"]


def test_a_proof_by_a_key_that_was_disowned_while_it_stood_in_line_proves_nothing_any_more() -> None:
    book = Book()
    for verb, name in (("announce", "log 2"), ("compromise", "log")):
        book.play(NOW_MS, state_key("op", verb, key_note(verb, "log", name, book.imprint.genesis, None)))
    before = len(book.leaves)
    book.run(NOW_MS, steps=[disputed(note(), open_own_checkpoint(note(), [LOG]), [LOG])])
    assert len(book.leaves) == before and book.shelf.get(DISPUTE_KEY) is None
