"""What is pinned counts, for its purpose, within its sizes, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.verifier.samples import (
    CUSTODIAL,
    DOCUMENT,
    DOCUMENT_TEXT,
    LOG,
    OLD_LOG,
    ORIGIN,
    RECEIPT,
    ROOT,
    WITNESS,
    public_key,
    signed,
    tree_of,
)
from verifier.keyring import (
    KeyDocument,
    KeyLine,
    Keyring,
    covers,
    key_document_text,
    open_key_document,
    open_keyring,
    parse_key_document_text,
)
from verifier.note import KIND_COSIGNATURE, Note, encode_note, make_vkey, parse_note, signature_line
from verifier.policy import Group, Policy, parse_policy
from verifier.wire import Malformed

SIGNED = signed(DOCUMENT_TEXT, ROOT, 9)
POLICY = f"log {LOG.vkey}\nwitness w {WITNESS.vkey}\nquorum w\n".encode()


def test_the_text_of_a_document_is_this_and_reads_back() -> None:
    assert DOCUMENT_TEXT == (
        "tallystick-keys/v1\n"
        "origin gateway.example/ledger\n"
        "genesis 305df59f9590c3c9ac63d2b2743c388e3792449078cebf7fb3dbe6471643b2b7\n"
        "version 2\n"
        f"previous {'07' * 32}\n"
        f"key custodial {CUSTODIAL.vkey} 3 - active\n"
        f"key log {OLD_LOG.vkey} 0 7 compromised 7 CwB/uRXrmyoUb1SxyG7FO2ZPjkVbdmCwtu4T7cDZIcA=\n"
        f"key log {LOG.vkey} 8 - active\n"
        f"key receipt {RECEIPT.vkey} 0 - active\n"
    )
    opened = open_key_document(SIGNED, ROOT)
    assert opened == parse_key_document_text(DOCUMENT_TEXT)
    assert replace(opened, keys=frozenset(opened.keys)) == replace(DOCUMENT, keys=frozenset(DOCUMENT.keys))  # type: ignore[arg-type]


def test_a_first_document_has_no_previous_one() -> None:
    first = KeyDocument(ORIGIN, b"\x01" * 32, 1, None, (KeyLine("log", LOG),))
    assert "version 1\nprevious -\n" in key_document_text(first)
    assert parse_key_document_text(key_document_text(first)) == first


def test_bounds_of_a_line_are_inclusive() -> None:
    line = KeyLine("log", LOG, 3, 5, "retired")
    assert [size for size in range(8) if covers(line, size)] == [3, 4, 5]
    assert [size for size in (0, 2, 3, 10**15) if covers(KeyLine("log", LOG, 3), size)] == [3, 10**15]


def test_only_the_pinned_root_opens_a_document() -> None:
    others = [
        make_vkey(ROOT.name, public_key(8)),
        make_vkey(f"{ORIGIN}/other", public_key(9)),
        make_vkey(ROOT.name, public_key(9), KIND_COSIGNATURE),
        LOG,
    ]
    for other in others:
        with pytest.raises(Malformed):
            open_key_document(SIGNED, other)
    note = parse_note(SIGNED)
    unknown = signature_line(make_vkey("new.example/root", public_key(7)), bytes(64))
    assert open_key_document(encode_note(Note(note.text, (unknown, *note.lines))), ROOT).version == 2


def test_a_root_that_signs_for_another_origin_is_refused() -> None:
    """Its signature is good, but its name is not <origin>/root of what it signed."""
    elsewhere = make_vkey("other.example/ledger/root", public_key(9))
    with pytest.raises(Malformed, match="<origin>/root"):
        open_key_document(signed(DOCUMENT_TEXT, elsewhere, 9), elsewhere)


def test_document_alone_gives_keys_genesis_and_version_and_no_witness() -> None:
    keyring = open_keyring(root=ROOT.vkey, document=SIGNED)
    compromised = KeyLine("log", OLD_LOG, 0, 7, "compromised", 7, tree_of(7).root())
    assert set(keyring.log_keys(ORIGIN)) == {KeyLine("log", LOG, 8), compromised}
    assert keyring.receipt_keys(ORIGIN) == (KeyLine("receipt", RECEIPT),)
    assert (keyring.genesis(ORIGIN), keyring.version, keyring.policy) == (DOCUMENT.genesis, 2, None)


def test_a_document_says_nothing_about_another_origin() -> None:
    keyring = open_keyring(root=ROOT.vkey, document=SIGNED)
    other = "gateway.example/other"
    assert (keyring.log_keys(other), keyring.receipt_keys(other), keyring.genesis(other)) == ((), (), None)


def test_policy_alone_gives_unbounded_log_keys_and_no_receipt_key() -> None:
    keyring = open_keyring(policy=POLICY)
    assert keyring.log_keys(ORIGIN) == (KeyLine("log", LOG),)
    assert (keyring.receipt_keys(ORIGIN), keyring.genesis(ORIGIN), keyring.version) == ((), None, None)
    assert keyring.policy == Policy((LOG,), {"w": WITNESS}, (), "w")


def test_with_both_a_documents_bounds_win_and_a_policys_own_log_key_still_counts() -> None:
    further = make_vkey(ORIGIN, public_key(6))
    policy = f"log {OLD_LOG.vkey}\nlog {LOG.vkey}\nlog {further.vkey}\nquorum none\n".encode()
    keyring = open_keyring(root=ROOT.vkey, document=SIGNED, policy=policy)
    bounds = {line.key.public_key: (line.from_size, line.to_size, line.status) for line in keyring.log_keys(ORIGIN)}
    assert bounds == {
        OLD_LOG.public_key: (0, 7, "compromised"),
        LOG.public_key: (8, None, "active"),
        further.public_key: (0, None, "active"),
    }
    assert len(keyring.log_keys(ORIGIN)) == 3


@pytest.mark.parametrize(
    ("story", "line"),
    [
        ("the root as a witness", f"witness x {make_vkey('x.example', public_key(9), KIND_COSIGNATURE).vkey}"),
        ("the root as a log", f"log {make_vkey('x.example', public_key(9)).vkey}"),
        ("a log as a witness", f"witness x {make_vkey('x.example', public_key(1), KIND_COSIGNATURE).vkey}"),
        ("a log under another origin", f"log {make_vkey('x.example', public_key(1)).vkey}"),
        ("a receipt key as a log", f"log {make_vkey('x.example', public_key(3)).vkey}"),
        ("a receipt key as a witness", f"witness x {make_vkey('x.example', public_key(3), KIND_COSIGNATURE).vkey}"),
        ("a custodial key as a witness", f"witness x {make_vkey('x.example', public_key(4), KIND_COSIGNATURE).vkey}"),
    ],
)
def test_one_public_key_never_serves_two_purposes(story: str, line: str) -> None:
    policy = f"{line}\nquorum none\n".encode()
    parse_policy(policy)
    open_keyring(root=ROOT.vkey, document=SIGNED)
    with pytest.raises(Malformed, match="two purposes"):
        open_keyring(root=ROOT.vkey, document=SIGNED, policy=policy)


def test_a_root_inside_its_own_document_is_refused() -> None:
    document = replace(DOCUMENT, keys=(KeyLine("log", make_vkey(ORIGIN, public_key(9))),))
    with pytest.raises(Malformed, match="two purposes"):
        open_keyring(root=ROOT.vkey, document=signed(key_document_text(document), ROOT, 9))


def test_a_policy_alone_keeps_logs_and_witnesses_apart() -> None:
    policy = Policy(
        (LOG,), {"w": make_vkey("w.example", LOG.public_key, KIND_COSIGNATURE)}, (Group("g", 1, ("w",)),), "g"
    )
    with pytest.raises(Malformed, match="two purposes"):
        Keyring(policy=policy)


@pytest.mark.parametrize("pins", [{}, {"root": ROOT.vkey}, {"document": SIGNED}, {"root": ROOT.vkey, "policy": POLICY}])
def test_half_a_pin_is_refused(pins: dict[str, object]) -> None:
    with pytest.raises(Malformed, match="pin a root key"):
        open_keyring(**pins)  # type: ignore[arg-type]


def test_what_is_pinned_must_be_well_formed() -> None:
    for pins in (
        {"root": "root", "document": SIGNED},
        {"root": ROOT.vkey, "document": b""},
        {"root": ROOT.vkey, "document": SIGNED[:-1]},
        {"policy": b""},
        {"root": ROOT.vkey, "document": SIGNED, "policy": b"quorum none"},
    ):
        with pytest.raises(Malformed):
            open_keyring(**pins)
