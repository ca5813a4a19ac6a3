"""Any bytes at all end in a value or in Malformed, and a changed byte never passes for the original."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifier.samples import DOCUMENT_TEXT, ORIGIN, ROOT, signed, tree_of
from tests.verifier.shared import content, ours
from verifier.checkpoint import parse_checkpoint
from verifier.did import decode_did
from verifier.keyring import open_key_document, open_keyring, parse_key_document_text
from verifier.note import encode_note, parse_note, parse_vkey
from verifier.policy import parse_policy
from verifier.proof import encode_proof, parse_proof
from verifier.wire import (
    Malformed,
    decode_base64,
    decode_decimal,
    decode_hex,
    decode_text,
    encode_canonical,
    parse_canonical,
    parse_json,
)

BYTE_PARSERS: dict[str, tuple[Callable[[bytes], object], str]] = {
    "parse_json": (lambda data: parse_json(data, bytes_max=10_000), "json.json"),
    "parse_canonical": (lambda data: parse_canonical(data, bytes_max=10_000), "json.json"),
    "decode_text": (lambda data: decode_text(data, bytes_max=10_000), "note.json"),
    "parse_note": (parse_note, "note.json"),
    "parse_checkpoint": (parse_checkpoint, "checkpoint.json"),
    "parse_proof": (parse_proof, "proof.json"),
    "parse_policy": (parse_policy, "policy.json"),
    "open_key_document": (lambda data: open_key_document(data, ROOT), "keys.json"),
    "open_keyring": (lambda data: open_keyring(root=ROOT.vkey, document=data), "keys.json"),
}
TEXT_PARSERS: dict[str, Callable[[str], object]] = {
    "decode_base64": decode_base64,
    "decode_hex": lambda text: decode_hex(text, len(text) // 2),
    "decode_decimal": decode_decimal,
    "decode_did": decode_did,
    "parse_vkey": parse_vkey,
    "parse_key_document_text": parse_key_document_text,
    "open_keyring": lambda text: open_keyring(root=text, document=b""),
}
SEEDS = {
    name: [content(case) for case in ours(file) if len(case["bytes"]) < 4_000]
    for name, (_, file) in BYTE_PARSERS.items()
}
SEED_TEXTS = [
    ROOT.vkey,
    DOCUMENT_TEXT,
    "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK",
    "AAAA",
    "00ff",
    "9007199254740991",
]


def value_or_malformed(parse: Callable[[], object]) -> object:
    try:
        return parse()
    except Malformed as error:
        return str(error).encode("utf-8")  # and its text can be printed


def mutate(seed: bytes, draw: st.DataObject) -> bytes:
    start = draw.draw(st.integers(0, len(seed)))
    stop = draw.draw(st.integers(start, min(len(seed), start + 8)))
    return seed[:start] + draw.draw(st.binary(max_size=8)) + seed[stop:]


@pytest.mark.parametrize("name", BYTE_PARSERS)
@settings(max_examples=150)
@given(st.data())
def test_random_bytes_and_changed_samples_end_in_a_value_or_malformed(name: str, data: st.DataObject) -> None:
    parse, _ = BYTE_PARSERS[name]
    sample = data.draw(st.sampled_from(SEEDS[name]))
    value_or_malformed(lambda: parse(mutate(sample, data)))
    value_or_malformed(lambda: parse(data.draw(st.binary(max_size=200))))


@pytest.mark.parametrize("name", TEXT_PARSERS)
@settings(max_examples=150)
@given(st.data())
def test_any_text_lone_surrogates_included_ends_in_a_value_or_malformed(name: str, data: st.DataObject) -> None:
    anything = st.text(st.characters(), max_size=60)
    seed = data.draw(st.sampled_from(SEED_TEXTS))
    cut = data.draw(st.integers(0, len(seed)))
    for text in (data.draw(anything), seed[:cut] + data.draw(anything) + seed[cut:]):
        value_or_malformed(lambda text=text: TEXT_PARSERS[name](text))  # type: ignore[misc]


@settings(max_examples=300)
@given(st.data())
def test_whatever_a_parser_accepts_it_writes_back_byte_for_byte(data: st.DataObject) -> None:
    changed = {name: mutate(data.draw(st.sampled_from(SEEDS[name])), data) for name in SEEDS}
    note = value_or_malformed(lambda: encode_note(parse_note(changed["parse_note"])))
    proof = value_or_malformed(lambda: encode_proof(parse_proof(changed["parse_proof"])))
    json = value_or_malformed(lambda: encode_canonical(parse_canonical(changed["parse_canonical"], bytes_max=10_000)))
    for name, written in (("parse_note", note), ("parse_proof", proof), ("parse_canonical", json)):
        assert written == changed[name] or is_refused(BYTE_PARSERS[name][0], changed[name])


def is_refused(parse: Callable[[bytes], object], data: bytes) -> bool:
    try:
        parse(data)
    except Malformed:
        return True
    return False


def test_every_byte_of_a_signed_key_document_counts() -> None:
    document = signed(DOCUMENT_TEXT, ROOT, 9)
    for place in range(len(document)):
        for change in (1, 0x20, 0x80):
            changed = document[:place] + bytes([document[place] ^ change]) + document[place + 1 :]
            assert is_refused(lambda data: open_key_document(data, ROOT), changed), (place, change)


def test_every_prefix_of_a_sample_is_refused() -> None:
    document = signed(DOCUMENT_TEXT, ROOT, 9)
    proof = next(content(case) for case in ours("proof.json") if case["isWellFormed"])
    for stop in range(len(document)):
        assert is_refused(lambda data: open_key_document(data, ROOT), document[:stop])
    checkpoint_starts = proof.index(b"\n\n") + 2
    for stop in range(checkpoint_starts + 1):
        assert is_refused(parse_proof, proof[:stop])


def test_the_samples_are_what_they_claim() -> None:
    """So that the mutations above start from accepted bytes."""
    assert open_key_document(signed(DOCUMENT_TEXT, ROOT, 9), ROOT).origin == ORIGIN
    assert tree_of(7).size == 7
    for name, seeds in SEEDS.items():
        assert any(not is_refused(BYTE_PARSERS[name][0], seed) for seed in seeds), name
