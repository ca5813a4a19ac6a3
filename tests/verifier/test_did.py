"""A DID is its key: one spelling, and none for a weak key."""

from __future__ import annotations

import base64
import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_sign_seed_keypair

from tests.vectors import curve
from tests.verifier.samples import public_key
from verifier.did import DID_CHARACTERS, DID_PREFIX, decode_did, encode_did, thumbprint
from verifier.sig import SMALL_ORDER
from verifier.wire import Malformed

PUBLISHED_DID = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"  # W3C-CCG did:key, section Ed25519
PUBLISHED_KEY = "2e6fcce36701dc791488e0d0b1745cc1e33a4c1c9fcc41c63bd343dbbe0970e6"


def test_the_published_did_decodes_to_its_key_and_back() -> None:
    assert decode_did(PUBLISHED_DID).hex() == PUBLISHED_KEY
    assert encode_did(bytes.fromhex(PUBLISHED_KEY)) == PUBLISHED_DID


def test_the_published_thumbprint_of_rfc_8037_appendix_a3() -> None:
    key = base64.urlsafe_b64decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
    assert thumbprint(key) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


@given(st.binary(min_size=32, max_size=32))
def test_every_key_has_a_did_of_one_length_and_prefix_and_reads_back(seed: bytes) -> None:
    key = crypto_sign_seed_keypair(seed)[0]
    did = encode_did(key)
    assert (len(did), did[:12]) == (DID_CHARACTERS, DID_PREFIX)
    assert decode_did(did) == key


@given(st.binary(min_size=32, max_size=32))
def test_a_thumbprint_hashes_the_jwk_in_lexical_order(key: bytes) -> None:
    x = base64.urlsafe_b64encode(key).rstrip(b"=").decode()
    jwk = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": x}, separators=(",", ":")).encode()
    assert base64.urlsafe_b64decode(thumbprint(key) + "=") == sha256(jwk).digest()


GOOD = encode_did(public_key(1))


@pytest.mark.parametrize(
    ("comment", "did"),
    [
        ("empty", ""),
        ("prefix alone", DID_PREFIX),
        ("one character short", GOOD[:-1]),
        ("one character long", GOOD + "1"),
        ("final newline", GOOD[:-1] + "\n"),
        ("other letter case of the method", GOOD.replace("did:key", "did:KEY")),
        ("zero is not in the alphabet", GOOD[:-1] + "0"),
        ("capital O is not in the alphabet", GOOD[:-1] + "O"),
        ("capital I is not in the alphabet", GOOD[:-1] + "I"),
        ("small l is not in the alphabet", GOOD[:-1] + "l"),
        ("a letter that looks alike", GOOD[:-1] + "а"),
        ("a fragment instead of the end", GOOD[:-4] + "#key"),
        ("beyond the 34 bytes", DID_PREFIX + "z" * 44),
        ("another multicodec (X25519)", "did:key:z6LS" + GOOD[12:]),
        ("a lone surrogate", GOOD[:-1] + "\ud800"),
    ],
)
def test_no_other_spelling_is_a_did(comment: str, did: str) -> None:
    with pytest.raises(Malformed):
        decode_did(did)


def test_a_weak_key_has_no_did() -> None:
    mixed = curve.encode(curve.add(curve.multiply(7, curve.BASE), curve.torsion()[1]))
    second_spelling = curve.spell(curve.P + 3, 0)
    for key in [*sorted(SMALL_ORDER), mixed, second_spelling]:
        with pytest.raises(Malformed, match=r"weak|begins with"):
            decode_did(encode_did(key))


@given(st.text(alphabet="123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", min_size=44, max_size=44))
def test_whatever_decodes_encodes_to_the_same_text(tail: str) -> None:
    try:
        key = decode_did(DID_PREFIX + tail)
    except Malformed:
        return
    assert encode_did(key) == DID_PREFIX + tail
