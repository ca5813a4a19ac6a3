"""A SigningKey signs as RFC 8032 says and shows its seed to nobody."""

from __future__ import annotations

import copy
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from keys.signing import SigningKey
from verifier.did import decode_did, thumbprint
from verifier.sig import is_strict_key, is_valid

# RFC 8032 7.1: seed, public key, message, signature.
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24"
        "655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aee"
        "b00d291612bb0c00",
    ),
]


@pytest.mark.parametrize(("seed", "public_key", "message", "signature"), RFC_8032)
def test_the_published_vectors_come_out_byte_for_byte(seed: str, public_key: str, message: str, signature: str) -> None:
    key = SigningKey(bytes.fromhex(seed))
    assert key.public_key.hex() == public_key
    assert key.sign(bytes.fromhex(message)).hex() == signature


def test_the_thumbprint_of_the_rfc_8037_key_is_the_published_one() -> None:
    """RFC 8037 A.3 uses the first key of RFC 8032."""
    assert thumbprint(SigningKey(bytes.fromhex(RFC_8032[0][0])).public_key) == (
        "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    )


def test_a_second_library_makes_the_same_key_and_signature_from_the_same_seed() -> None:
    for number in range(20):
        seed = bytes([number]) * 32
        key, other = SigningKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
        assert key.public_key == other.public_key().public_bytes_raw()
        assert key.sign(b"message") == other.sign(b"message")


def test_a_generated_key_is_strict_and_its_did_names_it() -> None:
    key = SigningKey.generate()
    assert is_strict_key(key.public_key)
    assert decode_did(key.did) == key.public_key
    assert is_valid(key.public_key, b"m", key.sign(b"m"))
    assert not is_valid(key.public_key, b"n", key.sign(b"m"))


def test_two_generated_keys_differ() -> None:
    assert SigningKey.generate().public_key != SigningKey.generate().public_key


def test_repr_names_the_public_half_only() -> None:
    seed = bytes(range(32))
    key = SigningKey(seed)
    assert repr(key) == f"SigningKey({key.did})"
    assert seed.hex() not in repr(key)


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_key_is_neither_copied_nor_pickled(take: object) -> None:
    assert callable(take)
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        take(SigningKey(bytes(32)))


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_seed_of_another_length_is_a_bug_whose_text_tells_the_length_only(length: int) -> None:
    with pytest.raises(AssertionError, match=f"an Ed25519 seed has 32 bytes, got {length}"):
        SigningKey(b"s" * length)
