"""Every published form names exactly the keys of the key document, and a difference in any byte is found."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from keys.forms import (
    FORM_FILES,
    FormCheck,
    check_forms,
    did_document,
    did_web,
    jwks,
    policy_text,
    published_forms,
    signed_key_document,
    vkeys_text,
)
from keys.signing import SigningKey
from tests.keys.publishing import (
    CUSTODIAL,
    LOG,
    LOG_LINE,
    NEXT_LOG,
    ORIGIN,
    RECEIPT,
    RECEIPT_LINE,
    ROOT,
    ROOT_VKEY,
    disowned,
    first,
    rotated,
    successor,
)
from verifier.did import thumbprint
from verifier.keyring import KeyDocument, KeyLine, key_document_text, open_key_document
from verifier.note import make_vkey
from verifier.policy import Policy, parse_policy
from verifier.sig import SMALL_ORDER
from verifier.wire import Malformed

DID = "did:web:ledger.example"
CUSTODIAL_LINE = KeyLine("custodial", make_vkey(f"{ORIGIN}/custodial", CUSTODIAL.public_key))
DOCUMENTS = {
    "first": first(),
    "rotated": rotated(),
    "disowned": disowned(),
    "with a custodial key": successor(first(), LOG_LINE, RECEIPT_LINE, CUSTODIAL_LINE),
}


def forms_of(document: KeyDocument) -> dict[str, bytes]:
    return published_forms(document, signed_key_document(document, ROOT), ROOT_VKEY)


def problems(files: dict[str, bytes]) -> dict[str, str]:
    return {row.file: row.problem for row in check_forms(files, ROOT_VKEY) if row.problem is not None}


def x_of(key: SigningKey) -> str:
    return base64.urlsafe_b64encode(key.public_key).rstrip(b"=").decode()


# -- what each form says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_the_signed_document_opens_under_the_root_and_says_the_same(document: KeyDocument) -> None:
    opened = open_key_document(signed_key_document(document, ROOT), ROOT_VKEY)
    assert key_document_text(opened) == key_document_text(document)


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_what_is_made_reads_back_without_a_problem(document: KeyDocument) -> None:
    rows = check_forms(forms_of(document), ROOT_VKEY)
    assert [row.file for row in rows] == list(FORM_FILES)
    assert [row.problem for row in rows] == [None] * len(FORM_FILES)


def test_the_rows_of_a_good_set_tell_what_was_read() -> None:
    assert check_forms(forms_of(first()), ROOT_VKEY) == (
        FormCheck("keys.note", None, f"version 1 of {ORIGIN}, 2 keys, signed by {ORIGIN}/root"),
        FormCheck("root.vkey", None, f"thumbprint {thumbprint(ROOT.public_key)}"),
        FormCheck("vkeys.txt", None, "2 keys"),
        FormCheck("policy.txt", None, "1 key, quorum none"),
        FormCheck("jwks.json", None, "2 keys"),
        FormCheck("did.json", None, f"{DID}, 2 keys"),
    )


def test_jwks_is_a_key_set_with_thumbprints_as_kid() -> None:
    common = {"kty": "OKP", "crv": "Ed25519", "alg": "Ed25519", "use": "sig"}
    assert json.loads(jwks(first())) == {
        "keys": [
            {**common, "x": x_of(LOG), "kid": thumbprint(LOG.public_key)},
            {**common, "x": x_of(RECEIPT), "kid": thumbprint(RECEIPT.public_key)},
        ]
    }


def test_the_did_document_gives_each_key_as_multikey_and_as_json_web_key() -> None:
    document = json.loads(did_document(first()))
    assert document["@context"] == ["https://www.w3.org/ns/did/v1", "https://www.w3.org/ns/cid/v1"]
    assert document["id"] == DID
    multibase, kid = LOG.did.removeprefix("did:key:"), thumbprint(LOG.public_key)
    assert document["verificationMethod"][:2] == [
        {"id": f"{DID}#{multibase}", "type": "Multikey", "controller": DID, "publicKeyMultibase": multibase},
        {
            "id": f"{DID}#{kid}",
            "type": "JsonWebKey",
            "controller": DID,
            "publicKeyJwk": json.loads(jwks(first()))["keys"][0],
        },
    ]
    assert len(document["verificationMethod"]) == 4
    assert document["assertionMethod"] == [method["id"] for method in document["verificationMethod"]]
    assert sorted(document) == ["@context", "assertionMethod", "id", "verificationMethod"]


@pytest.mark.parametrize(
    ("origin", "did"),
    [
        ("ledger.example", "did:web:ledger.example"),
        ("ledger.example/main", "did:web:ledger.example"),
        ("localhost:8080/main", "did:web:localhost%3A8080"),
        ("[::1]:8080/main", "did:web:%5B%3A%3A1%5D%3A8080"),
    ],
)
def test_the_did_is_the_host_of_the_origin(origin: str, did: str) -> None:
    """`/.well-known/did.json` is served once for each host."""
    assert did_web(origin) == did


def test_the_policy_accepts_the_log_and_demands_no_witness() -> None:
    assert parse_policy(policy_text(first()).encode()) == Policy((LOG_LINE.key,), {}, (), None)


def test_following_the_comments_of_the_policy_gives_a_policy_with_witnesses() -> None:
    """The advice is executed: uncomment the lines, put in real keys, replace the last line."""
    text = policy_text(first()).replace("quorum none\n", "")
    for name, number in (("north", 11), ("south", 12)):
        vkey = make_vkey(f"{name}.example", SigningKey(bytes([number]) * 32).public_key, 4).vkey
        text = text.replace(f"#   witness {name} <vkey of kind 4>", f"witness {name} {vkey}")
    text = text.replace("#   group", "group").replace("#   quorum", "quorum")
    policy = parse_policy(text.encode())
    assert sorted(policy.witnesses) == ["north", "south"]
    assert policy.quorum == "mine"
    assert [(group.name, group.threshold, group.members) for group in policy.groups] == [
        ("mine", 2, ("north", "south"))
    ]


def test_vkeys_are_one_a_line_in_the_order_of_the_document() -> None:
    assert vkeys_text(first()) == f"{LOG_LINE.key.vkey}\n{RECEIPT_LINE.key.vkey}\n"


def test_a_retired_key_stays_for_old_receipts_but_asserts_nothing_new() -> None:
    document = json.loads(did_document(rotated()))
    assert thumbprint(LOG.public_key) in jwks(rotated()).decode()
    assert f"{DID}#{thumbprint(LOG.public_key)}" in [method["id"] for method in document["verificationMethod"]]
    assert f"{DID}#{thumbprint(LOG.public_key)}" not in document["assertionMethod"]
    assert f"{DID}#{thumbprint(NEXT_LOG.public_key)}" in document["assertionMethod"]
    policy = policy_text(rotated())
    assert f"up to size 100; only --root with keys.note enforces it\nlog {LOG_LINE.key.vkey}\n" in policy
    assert len(parse_policy(policy.encode()).logs) == 2


def test_a_compromised_key_is_in_the_signed_document_only() -> None:
    """The other forms can't say up to where it counts, and their readers would trust its thief."""
    files = forms_of(disowned())
    assert LOG_LINE.key.vkey.encode() in files["keys.note"]
    names = [LOG_LINE.key.vkey, x_of(LOG), LOG.did.removeprefix("did:key:")]
    for file in ("vkeys.txt", "policy.txt", "jwks.json", "did.json"):
        assert [name for name in names if name.encode() in files[file]] == []


@pytest.mark.parametrize("weak", sorted(SMALL_ORDER)[:3])
def test_a_weak_key_gets_no_verifier_key_and_so_no_line(weak: bytes) -> None:
    with pytest.raises(Malformed):
        make_vkey(ORIGIN, weak)


# -- what is found -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FORM_FILES)
def test_any_changed_byte_of_any_file_is_found(file: str) -> None:
    good = forms_of(rotated())
    for index in range(len(good[file])):
        content = good[file][:index] + bytes([good[file][index] ^ 0x01]) + good[file][index + 1 :]
        assert file in problems({**good, file: content}), f"byte {index}"


@pytest.mark.parametrize("file", FORM_FILES)
@pytest.mark.parametrize("tail", [b"\n", b" ", b"x", b"\x00", b"\xff"])
def test_a_tail_is_found(file: str, tail: bytes) -> None:
    good = forms_of(first())
    assert file in problems({**good, file: good[file] + tail})


@pytest.mark.parametrize("file", FORM_FILES)
@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"keys":7}', b'{"keys":[7]}', b"quorum none\n"])
def test_a_foreign_file_is_found_and_raises_nothing(file: str, content: bytes) -> None:
    assert file in problems({**forms_of(first()), file: content})


@pytest.mark.parametrize("file", FORM_FILES[1:])
def test_a_missing_file_is_found_and_the_others_are_still_checked(file: str) -> None:
    files = forms_of(first())
    del files[file]
    assert problems(files) == {file: "is missing, unreadable or longer than 64 KiB"}


def test_without_a_key_document_nothing_can_be_compared() -> None:
    files = forms_of(first())
    del files["keys.note"]
    expected = dict.fromkeys(FORM_FILES, "not compared, because keys.note does not open")
    assert problems(files) == {**expected, "keys.note": "is missing, unreadable or longer than 64 KiB"}


@pytest.mark.parametrize("file", FORM_FILES[2:])
def test_a_file_of_another_version_is_found(file: str) -> None:
    """Each file is well made by itself; only together they lie."""
    assert list(problems({**forms_of(first()), file: forms_of(rotated())[file]})) == [file]


def test_another_root_does_not_open_the_document() -> None:
    other = make_vkey(f"{ORIGIN}/root", NEXT_LOG.public_key)
    rows = check_forms(forms_of(first()), other)
    assert rows[0] == FormCheck("keys.note", "the key document carries no valid signature of the pinned root key")
    assert all(row.problem is not None for row in rows)


def test_a_document_that_lists_the_root_as_log_key_is_refused() -> None:
    """The root signs key documents only; a checkpoint by it would be a signature under the wrong purpose."""
    bad = replace(first(), keys=(KeyLine("log", make_vkey(ORIGIN, ROOT.public_key)), RECEIPT_LINE))
    assert problems(forms_of(bad))["keys.note"] == "one public key is pinned for two purposes or under two names"


FORGED_JWK = [
    ("kid of another key", {"kid": thumbprint(RECEIPT.public_key)}),
    ("deprecated alg", {"alg": "EdDSA"}),
    ("another use", {"use": "enc"}),
    ("a private half", {"d": x_of(LOG)}),
    ("small-order x", {"x": base64.urlsafe_b64encode(min(SMALL_ORDER)).rstrip(b"=").decode()}),
    ("x in plain base64", {"x": base64.b64encode(b"\xfb" * 32).rstrip(b"=").decode()}),
    ("x with spare bits set", {"x": x_of(LOG)[:-1] + chr(ord(x_of(LOG)[-1]) + 1)}),
    ("x cut", {"x": x_of(LOG)[:-1]}),
    ("x that is no text", {"x": 7}),
]


@pytest.mark.parametrize(("name", "change"), FORGED_JWK, ids=[row[0] for row in FORGED_JWK])
def test_a_forged_jwk_is_named_by_the_reader_itself(name: str, change: dict[str, str]) -> None:
    """Found while reading, before bytes are compared."""
    keys = json.loads(jwks(first()))["keys"]
    content = json.dumps({"keys": [{**keys[0], **change}, keys[1]]}, indent=2).encode() + b"\n"
    assert problems({**forms_of(first()), "jwks.json": content})["jwks.json"].startswith(("a JWK ", "base64 text "))


def test_a_retired_key_among_the_asserting_ones_is_named() -> None:
    document = json.loads(did_document(rotated()))
    document["assertionMethod"] = [method["id"] for method in document["verificationMethod"]]
    content = json.dumps(document, indent=2).encode() + b"\n"
    assert problems({**forms_of(rotated()), "did.json": content}) == {
        "did.json": "its assertionMethod does not list exactly the active keys"
    }


@pytest.mark.parametrize("kind", ["Multikey", "JsonWebKey"])
def test_a_did_document_that_lacks_one_form_of_a_key_is_named(kind: str) -> None:
    document = json.loads(did_document(first()))
    document["verificationMethod"].remove(next(m for m in document["verificationMethod"] if m["type"] == kind))
    content = json.dumps(document, indent=2).encode() + b"\n"
    assert problems({**forms_of(first()), "did.json": content}) == {
        "did.json": "names other keys, or in another order, than keys.note"
    }
