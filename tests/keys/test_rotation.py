"""What follows from the ledger for its key document: as data, line for line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256

import pytest

from keys.forms import root_vkey, signed_key_document
from keys.publish import PublishError, document_hash
from keys.rotation import Final, commitment, next_document, signed_statement
from keys.signing import SigningKey
from verifier.checkpoint import checkpoint_text
from verifier.keyring import KeyDocument, KeyLine, open_key_document
from verifier.note import Note, VerifierKey, encode_note, make_vkey, signature_line
from verifier.statement import KeyStatement, open_key_statement
from verifier.wire import Malformed

ORIGIN, GENESIS = "gateway.example/main", bytes(range(32))
ROOT, K1, K2, R1, R2, CUSTODIAL = (SigningKey(bytes([number]) * 32) for number in range(1, 7))
LOG_1, LOG_2 = (make_vkey(ORIGIN, key.public_key) for key in (K1, K2))
RECEIPT_1, RECEIPT_2 = (make_vkey(f"{ORIGIN}/receipt", key.public_key) for key in (R1, R2))
HELD = KeyLine("custodial", make_vkey(f"{ORIGIN}/agent", CUSTODIAL.public_key))
FIRST = KeyDocument(ORIGIN, GENESIS, 1, None, (KeyLine("log", LOG_1), KeyLine("receipt", RECEIPT_1)))


def note_of(size: int, root: bytes) -> bytes:
    text = checkpoint_text(ORIGIN, size, root)
    return encode_note(Note(text, (signature_line(LOG_2, K2.sign(text.encode())),)))


UNWITNESSED, WITNESSED = Final(12, bytes(32)), Final(13, b"\x01" * 32, note_of(13, b"\x01" * 32))


@dataclass(frozen=True)
class Story:
    """What the ledger says, what is published, and what must be published next (nothing: it is all said)."""

    name: str
    ledger: tuple[KeyLine, ...]
    expected: tuple[KeyLine, ...]
    published: tuple[KeyLine, ...] = FIRST.keys
    finals: dict[VerifierKey, Final] = field(default_factory=dict)


OPEN_1, OPEN_2 = KeyLine("log", LOG_1), KeyLine("log", LOG_2, 6)
SPEAKS_1, SPEAKS_2 = KeyLine("receipt", RECEIPT_1), KeyLine("receipt", RECEIPT_2, 7)
RETIRED_1 = KeyLine("log", LOG_1, 0, 9, "retired")
STOLEN_1 = KeyLine("log", LOG_1, 0, 9, "compromised")
DISOWNED_1 = replace(STOLEN_1, final_size=12, final_root=bytes(32))
PROVEN_1 = replace(STOLEN_1, final_size=13, final_root=b"\x01" * 32, final_note=WITNESSED.note)
R_STOLEN = KeyLine("receipt", RECEIPT_1, 0, 9, "compromised")

STORIES = (
    Story("nothing happened", FIRST.keys, ()),
    Story("a log key was announced", (OPEN_1, OPEN_2, SPEAKS_1), (OPEN_1, OPEN_2, SPEAKS_1)),
    Story("both were announced", (OPEN_1, OPEN_2, SPEAKS_1, SPEAKS_2), (OPEN_1, OPEN_2, SPEAKS_1, SPEAKS_2)),
    Story("one was retired", (RETIRED_1, OPEN_2, SPEAKS_1), (RETIRED_1, OPEN_2, SPEAKS_1), (OPEN_1, OPEN_2, SPEAKS_1)),
    Story("two steps were never published", (RETIRED_1, OPEN_2, SPEAKS_1), (RETIRED_1, OPEN_2, SPEAKS_1)),
    Story("a receipt key was stolen", (OPEN_1, R_STOLEN, SPEAKS_2), (OPEN_1, R_STOLEN, SPEAKS_2)),
    Story("a log key was stolen, and nobody witnessed it", (STOLEN_1, OPEN_2, SPEAKS_1),
          (DISOWNED_1, OPEN_2, SPEAKS_1), finals={LOG_1: UNWITNESSED}),
    Story("a log key was stolen, and witnesses saw it", (STOLEN_1, OPEN_2, SPEAKS_1),
          (PROVEN_1, OPEN_2, SPEAKS_1), finals={LOG_1: WITNESSED}),
    Story("witnesses saw it later", (STOLEN_1, OPEN_2, SPEAKS_1), (PROVEN_1, OPEN_2, SPEAKS_1),
          (DISOWNED_1, OPEN_2, SPEAKS_1), {LOG_1: WITNESSED}),
    Story("a newer tree without witnesses is no reason", (STOLEN_1, OPEN_2, SPEAKS_1), (),
          (DISOWNED_1, OPEN_2, SPEAKS_1), {LOG_1: Final(99, b"\x02" * 32)}),
    Story("a newer tree with witnesses is none either", (STOLEN_1, OPEN_2, SPEAKS_1), (),
          (PROVEN_1, OPEN_2, SPEAKS_1), {LOG_1: Final(99, b"\x02" * 32, note_of(99, b"\x02" * 32))}),
    Story("no line vanishes", (OPEN_1, OPEN_2, SPEAKS_1), (OPEN_1, OPEN_2, SPEAKS_1, HELD), (*FIRST.keys, HELD)),
)  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_the_next_document_says_what_the_ledger_says(story: Story) -> None:
    document = replace(FIRST, version=4, previous=bytes(32), keys=story.published)
    following = next_document(document, story.ledger, story.finals)
    if not story.expected:
        assert following is None
        return
    assert following is not None
    assert (following.version, following.previous) == (5, document_hash(document))
    assert (following.origin, following.genesis) == (ORIGIN, GENESIS)
    assert sorted(line.text for line in following.keys) == sorted(line.text for line in story.expected)
    note = signed_key_document(following, ROOT)
    assert open_key_document(note, root_vkey(ORIGIN, ROOT.public_key)) == following, "a reader takes it"
    assert next_document(following, story.ledger, story.finals) is None, "once is enough"


@pytest.mark.parametrize(
    ("published", "ledger"),
    [
        (RETIRED_1, OPEN_1), (RETIRED_1, replace(RETIRED_1, to_size=10)), (RETIRED_1, STOLEN_1),
        (R_STOLEN, SPEAKS_1), (OPEN_2, replace(OPEN_2, from_size=7)),
    ],
    ids=["comes back", "ends elsewhere", "is called stolen", "is called honest", "begins elsewhere"],
)  # fmt: skip
def test_what_was_published_of_a_key_is_never_taken_back(published: KeyLine, ledger: KeyLine) -> None:
    """Whoever makes the ledger, or the way to it, tell otherwise gets nothing signed."""
    others = tuple(line for line in (OPEN_1, OPEN_2, SPEAKS_1) if line.key != published.key)
    with pytest.raises(PublishError, match="Audit"):
        next_document(replace(FIRST, keys=(published, *others)), (ledger, *others), {LOG_1: WITNESSED})


def test_a_stolen_log_key_is_never_published_without_a_tree() -> None:
    with pytest.raises(AssertionError, match="a tree"):
        next_document(FIRST, (STOLEN_1, OPEN_2, SPEAKS_1), {})


@pytest.mark.parametrize("verb", ["announce", "retire", "compromise"])
def test_a_statement_opens_under_the_root_that_signed_it_and_for_its_ledger_alone(verb: str) -> None:
    following = commitment(K1.public_key) if verb == "announce" else None
    statement = KeyStatement(verb, "log", LOG_2, following)
    note = signed_statement(statement, ROOT, ORIGIN, GENESIS).encode()
    root = root_vkey(ORIGIN, ROOT.public_key)
    assert open_key_statement(note, root, ORIGIN, GENESIS) == statement
    for other in ((root_vkey(ORIGIN, K1.public_key), ORIGIN, GENESIS), (root, "other.example/x", GENESIS),
                  (root, ORIGIN, bytes(32))):  # fmt: skip
        with pytest.raises(Malformed):
            open_key_statement(note, *other)


def test_a_commitment_is_the_hash_of_the_raw_key() -> None:
    assert commitment(K1.public_key) == sha256(K1.public_key).hexdigest()
