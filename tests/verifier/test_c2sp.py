"""The published values of the C2SP formats, typed in, and the inputs on which other parsers disagree.

Source of the values: c2sp.org signed-note (the example), and a set made once and cross-checked by Go x/mod sumdb/note,
tlog-scales, proofbundle and Node. Keys are seeds of repeated bytes.
"""

from __future__ import annotations

from hashlib import sha256

import pytest

from tests.verifier.samples import LOG, ORIGIN, TIME_S, WITNESS, cosigned, log_line, public_key, sign, signed, tree_of
from verifier.checkpoint import checkpoint_text, parse_checkpoint
from verifier.merkle import EMPTY_ROOT, is_consistent, leaf_hash, root_from_inclusion
from verifier.note import (
    Note,
    cosignature_message,
    cosignature_time_s,
    encode_note,
    is_signed_once,
    line_is_valid,
    make_vkey,
    parse_note,
    parse_vkey,
    signature_line,
)
from verifier.proof import Proof, encode_proof, parse_proof
from verifier.wire import Malformed, decode_base64, encode_base64

SPEC_VKEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
SPEC_NOTE = """This is an example message.

— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=
""".encode()

LEAF_HASHES = [
    "305df59f9590c3c9ac63d2b2743c388e3792449078cebf7fb3dbe6471643b2b7",
    "3145c409f259b7c53e32036090ff76751025a2498ba9823ef718cac50b4e616f",
    "fca89f57c9f8c8eb4047a7ff9d333acf9e0f3384b20b255bceab0f216dcca267",
    "f76836325aec5699d8d71f8e42e9d47c5c29b08059ba296384f7ca40ad3a40ae",
    "ea9fc1a1b6e191b460d0d6306e3e870c173f39330f13cda1b70cfc72bdc398ba",
    "8f1593cb92f429d9340b9bbc1f0bb122adf8026c42a4a42142e2168931727236",
    "676f3782f5b3a5fb4370ed49572cedc523f4a66322269c85f2af0509d17b0a4d",
]
ROOTS = {
    1: "MF31n5WQw8msY9KydDw4jjeSRJB4zr9/s9vmRxZDsrc=",
    3: "z3Y6BByBzu8VeKYIP3XGG+8uABTyo+aDqX/Pylvn8Zo=",
    5: "ANIYKaVQMUU0irz3ElE+rPKidCEa2D6XAgK7W22AsoY=",
    7: "CwB/uRXrmyoUb1SxyG7FO2ZPjkVbdmCwtu4T7cDZIcA=",
}
CHECKPOINT = """gateway.example/ledger
7
CwB/uRXrmyoUb1SxyG7FO2ZPjkVbdmCwtu4T7cDZIcA=

— gateway.example/ledger 3llI1JuZQoj35bRL9qVdbiipE4WNOEe1nfpJZ4lPazEGpAyBuy9OMXr5rqg0zuvq/rEAh/tN7+y69mcFrD+U0ecSRAY=
"""
COSIGNATURE = (
    "— witness.example/w1 3xwKNQAAAABlU/EABihqxDLwtXSLaRPAp/L5SGjrQB5C7UzKXtkpy21P2dmWhfWrhscYIAEO"
    "OwnjnuY/imCHmLUQeqGrhDkqifKQCQ==\n"
)
PROOF = f"""c2sp.org/tlog-proof@v1
index 4
jxWTy5L0Kdk0C5u8HwuxIq34AmxCpKQhQuIWiTFycjY=
Z283gvWzpftDcO1JVyztxSP0pmMiJpyF8q8FCdF7Ck0=
vdHF/1WxnLaw58dhv5psyqJ/u/wHt08fq7bpEaC9KrM=

{CHECKPOINT}{COSIGNATURE}""".encode()
CONSISTENCY_3_7 = [
    "/KifV8n4yOtAR6f/nTM6z54PM4SyCyVbzqsPIW3Momc=",
    "92g2MlrsVpnY1x+OQunUfFwpsIBZuiljhPfKQK06QK4=",
    "YKU+7Q3oepDI5ZQnxZxGJTwzp2oJUCpRgBMAknt+a9w=",
    "jq5r07Ogfx917nKlMWKebrMeQuYvdg5H3lKlPDZB7yM=",
]


def test_the_example_note_of_the_specification_verifies_and_reads_back() -> None:
    key, note = parse_vkey(SPEC_VKEY), parse_note(SPEC_NOTE)
    assert note.text == "This is an example message.\n"
    assert is_signed_once(note, key)
    assert key.vkey == SPEC_VKEY
    assert encode_note(note) == SPEC_NOTE
    assert not is_signed_once(Note("This is another message.\n", note.lines), key)


def test_keys_are_the_published_ones() -> None:
    assert public_key(1).hex() == "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
    assert public_key(2).hex() == "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394"
    assert LOG.vkey == "gateway.example/ledger+de5948d4+AYqI4910CfGV/VLbLTy6XXLKZwm/HZQSG/N0iAG0D29c"
    assert WITNESS.vkey == "witness.example/w1+df1c0a35+BIE5dw6ofRdfVqNUZsNMfszLjYqRtO43ol32D1uPybOU"
    assert sha256(ORIGIN.encode()).hexdigest() == "3fd6b6ec41a0573fce983e923388156eaea937d0519dc491016108a1c3fa593f"


def test_leaves_and_roots_are_the_published_ones() -> None:
    assert [leaf_hash(b"leaf-%d" % index).hex() for index in range(7)] == LEAF_HASHES
    tree = tree_of(7)
    assert {size: encode_base64(tree.root(size)) for size in ROOTS} == ROOTS
    assert encode_base64(EMPTY_ROOT) == "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="


def test_we_write_the_published_proof_byte_for_byte() -> None:
    tree = tree_of(7)
    note = cosigned(log_line(checkpoint_text(ORIGIN, 7, tree.root())))
    assert encode_proof(Proof(4, tree.path(4, 7), encode_note(note))) == PROOF


def test_the_published_proof_verifies_from_leaf_to_cosignature() -> None:
    proof = parse_proof(PROOF)
    checkpoint = parse_checkpoint(proof.checkpoint)
    assert (proof.index, checkpoint.origin, checkpoint.size, proof.extra) == (4, ORIGIN, 7, None)
    assert root_from_inclusion(4, 7, leaf_hash(b"leaf-4"), proof.path) == checkpoint.root
    assert is_signed_once(checkpoint.note, LOG)
    assert is_signed_once(checkpoint.note, WITNESS)
    assert cosignature_time_s(checkpoint.note.lines[1]) == TIME_S


def test_the_published_consistency_proof_holds() -> None:
    path = [decode_base64(part) for part in CONSISTENCY_3_7]
    assert list(tree_of(7).consistency(3, 7)) == path
    assert is_consistent(3, decode_base64(ROOTS[3]), 7, decode_base64(ROOTS[7]), path)
    assert not is_consistent(5, decode_base64(ROOTS[5]), 7, decode_base64(ROOTS[7]), path)


@pytest.mark.parametrize(
    ("row", "data"),
    [
        ("CRLF lines", CHECKPOINT.replace("\n", "\r\n").encode()),
        ("size 07", signed(checkpoint_text(ORIGIN, 7, tree_of(7).root()).replace("\n7\n", "\n07\n"))),
        ("NUL in the name", CHECKPOINT.replace("— gateway", "— gate\x00way").encode()),
        ("no final newline", CHECKPOINT[:-1].encode()),
        ("more than 100 signature lines", (CHECKPOINT + COSIGNATURE * 100).encode()),
        ("non-canonical base64 in a signature", CHECKPOINT.replace("RAY=", "RAZ=").encode()),
    ],
)
def test_an_input_on_which_parsers_disagree_is_refused(row: str, data: bytes) -> None:
    parse_checkpoint(CHECKPOINT.encode())
    with pytest.raises(Malformed):
        parse_checkpoint(data)


def test_index_04_in_a_proof_is_refused() -> None:
    with pytest.raises(Malformed):
        parse_proof(PROOF.replace(b"index 4\n", b"index 04\n"))


def test_a_bad_second_line_of_a_known_key_fails_in_either_order() -> None:
    text = checkpoint_text(ORIGIN, 7, tree_of(7).root())
    good, bad = signature_line(LOG, sign(1, text.encode())), signature_line(LOG, sign(1, b"another text\n"))
    for lines in ((good, bad), (bad, good), (good, good), (bad,), ()):
        assert not is_signed_once(Note(text, lines), LOG)
    assert is_signed_once(Note(text, (good,)), LOG)


def test_sixteen_unknown_lines_beside_a_known_one_change_nothing() -> None:
    text = checkpoint_text(ORIGIN, 7, tree_of(7).root())
    others = tuple(signature_line(make_vkey(f"other.example/{n}", public_key(50 + n)), bytes(64)) for n in range(16))
    note = Note(text, (*others, *log_line(text).lines))
    assert is_signed_once(parse_note(encode_note(note)), LOG)


def test_a_line_counts_only_under_its_own_name_id_kind_and_length() -> None:
    text = checkpoint_text(ORIGIN, 7, tree_of(7).root())
    line = log_line(text).lines[0]
    cosignature = cosigned(log_line(text)).lines[1]
    assert line_is_valid(line, LOG, text)
    assert line_is_valid(cosignature, WITNESS, text)
    same_key_other_kind = make_vkey(WITNESS.name, WITNESS.public_key, 1)
    refused = [
        (line, make_vkey("other.example", LOG.public_key)),
        (line, make_vkey(ORIGIN, public_key(2))),
        (cosignature, same_key_other_kind),
        (signature_line(same_key_other_kind, cosignature.signature), same_key_other_kind),
        (signature_line(WITNESS, cosignature.signature[8:]), WITNESS),
        (signature_line(WITNESS, cosignature.signature + b"\x00"), WITNESS),
        (signature_line(LOG, line.signature[:-1]), LOG),
        (signature_line(LOG, b""), LOG),
    ]
    assert [line_is_valid(claimed, key, text) for claimed, key in refused] == [False] * len(refused)


def test_a_cosignature_binds_its_time_and_the_whole_text_with_extensions() -> None:
    text = checkpoint_text(ORIGIN, 7, tree_of(7).root())
    assert cosignature_message(TIME_S, text + "extension\n") == (
        b"cosignature/v1\ntime 1700000000\ngateway.example/ledger\n7\n"
        b"CwB/uRXrmyoUb1SxyG7FO2ZPjkVbdmCwtu4T7cDZIcA=\nextension\n"
    )
    line = cosigned(log_line(text)).lines[1]
    later = signature_line(WITNESS, (TIME_S + 1).to_bytes(8, "big") + line.signature[8:])
    assert not line_is_valid(later, WITNESS, text)
    assert not line_is_valid(line, WITNESS, text + "extension\n")


def test_a_cosignature_time_beyond_63_bits_is_refused() -> None:
    text = checkpoint_text(ORIGIN, 7, tree_of(7).root())
    last = cosigned(log_line(text), time_s=2**63 - 1).lines[1]
    beyond = cosigned(log_line(text), time_s=2**63).lines[1]
    assert line_is_valid(last, WITNESS, text)
    assert not line_is_valid(beyond, WITNESS, text)


def test_one_public_key_has_another_id_per_kind_and_name() -> None:
    keys = [make_vkey(name, public_key(1), kind) for name in ("a.example", "b.example") for kind in (1, 4)]
    assert len({key.key_id for key in keys}) == 4


@pytest.mark.parametrize("kind", [0, 2, 3, 5, 6, 255, 256, -1])
def test_no_other_kind_of_key_is_made(kind: int) -> None:
    with pytest.raises(Malformed):
        make_vkey("a.example", public_key(1), kind)
