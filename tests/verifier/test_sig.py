"""The strict Ed25519 rule: derived from the curve, pinned by vectors, and never wider than another library."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_core_ed25519_is_valid_point

from tests.vectors import curve
from tests.verifier.samples import public_key, sign
from tests.verifier.shared import cases, ours, published
from verifier import sig
from verifier.sig import SMALL_ORDER, is_strict_key, is_valid

Case = dict[str, Any]


def cryptography_accepts(key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def unpack(case: Case) -> tuple[bytes, bytes, bytes]:
    key, message, signature = (bytes.fromhex(case[name]) for name in ("publicKeyHex", "messageHex", "signatureHex"))
    return key, message, signature


def test_the_small_order_list_is_what_the_curve_gives() -> None:
    assert set(SMALL_ORDER) == curve.small_order_spellings()
    assert len(SMALL_ORDER) == 14
    assert (sig.P, sig.L) == (curve.P, curve.L)


def test_the_probe_at_import_is_a_point_of_order_two_times_l() -> None:
    assert curve.BASE is not None
    point = curve.add(curve.BASE, (0, curve.P - 1))
    assert sig._MIXED_ORDER_POINT == curve.encode(point)
    assert curve.multiply(curve.L, point) != curve.IDENTITY == curve.multiply(2 * curve.L, point)


@pytest.mark.parametrize("case", cases("ed25519.json"))
def test_a_signature_is_judged_as_typed(case: Case) -> None:
    key, message, signature = unpack(case)
    assert is_strict_key(key) is case["isStrictKey"]
    assert is_valid(key, message, signature) is case["isValid"]


def test_what_we_accept_cryptography_accepts_and_some_of_what_it_accepts_we_refuse() -> None:
    """The identity key among them: there one signature fits every message."""
    theirs_alone = []
    for case in ours("ed25519.json"):
        accepts = cryptography_accepts(*unpack(case))
        assert accepts or not case["isValid"]
        if accepts and not case["isValid"]:
            theirs_alone.append(case["comment"])
    assert "R is the identity, and the equation holds" in theirs_alone
    assert any(comment.startswith("a key of small order") for comment in theirs_alone)
    assert any(comment.startswith("a key of mixed order") for comment in theirs_alone)


def test_one_signature_of_the_identity_key_fits_every_message_in_a_lax_library() -> None:
    identity = curve.encode(curve.IDENTITY)
    signature = curve.sign_as(identity, 0, 7, b"")
    messages = [b"pay %d" % number for number in range(20)]
    assert all(cryptography_accepts(identity, message, signature) for message in messages)
    assert not any(is_valid(identity, message, signature) for message in messages)


def test_the_published_speccheck_cases_are_all_refused() -> None:
    """Case 3 passes the plain equation; its key lies outside the prime-order subgroup."""
    for case in published("ed25519_speccheck.json"):
        key, message, signature = (bytes.fromhex(case[name]) for name in ("pub_key", "message", "signature"))
        assert not is_valid(key, message, signature)
        assert not is_valid(key, message + b"x", signature)


def test_the_published_speccheck_cases_show_where_libraries_differ() -> None:
    rows = published("ed25519_speccheck.json")
    accepted = [
        number
        for number, case in enumerate(rows)
        if cryptography_accepts(*(bytes.fromhex(case[name]) for name in ("pub_key", "message", "signature")))
    ]
    assert accepted == [0, 1, 2, 3, 11]


def test_wycheproof_agrees_on_all_151_cases() -> None:
    judged = 0
    for group in published("ed25519_wycheproof.json")["testGroups"]:
        key = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            verdict = is_valid(key, bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"]))
            assert verdict is (case["result"] == "valid"), case
            judged += 1
    assert judged == 151


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200))
def test_an_honest_signature_of_another_library_is_valid(seed: bytes, message: bytes) -> None:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    key, signature = private.public_key().public_bytes_raw(), private.sign(message)
    assert is_strict_key(key)
    assert is_valid(key, message, signature)
    assert not is_valid(key, message + b"\x00", signature)


@given(st.integers(0, 511), st.integers(0, 255))
def test_any_bit_turned_in_signature_or_key_is_refused_here_and_there(bit: int, key_bit: int) -> None:
    key, message, signature = public_key(1), b"message", bytearray(sign(1, b"message"))
    signature[bit // 8] ^= 1 << bit % 8
    other_key = bytearray(key)
    other_key[key_bit // 8] ^= 1 << key_bit % 8
    assert not is_valid(key, message, bytes(signature))
    assert not is_valid(bytes(other_key), message, sign(1, message))
    assert not cryptography_accepts(key, message, bytes(signature))


@given(st.integers(1, curve.L - 1), st.integers(0, 7), st.integers(1, curve.L - 1), st.integers(0, 7))
def test_torsion_in_key_or_r_is_never_accepted_and_never_wider_than_cryptography(
    a: int, t: int, r: int, u: int
) -> None:
    torsion = curve.torsion()
    key = curve.encode(curve.add(curve.multiply(a, curve.BASE), torsion[t]))
    spelled_r = curve.encode(curve.add(curve.multiply(r, curve.BASE), torsion[u]))
    signature = curve.sign_as(key, a, r, b"m", spelled_r)
    assert is_strict_key(key) is (t == 0)
    assert is_valid(key, b"m", signature) is (t == 0 and u == 0)
    assert cryptography_accepts(key, b"m", signature) or not is_valid(key, b"m", signature)


@given(st.binary(max_size=70), st.binary(max_size=10), st.binary(max_size=70))
def test_no_bytes_make_a_check_raise(key: bytes, message: bytes, signature: bytes) -> None:
    assert is_valid(key, message, signature) is False
    assert is_strict_key(key) in (True, False)


@given(st.binary(min_size=32, max_size=32))
def test_a_strict_key_is_what_libsodium_and_the_curve_call_one(key: bytes) -> None:
    y = int.from_bytes(key, "little") & (2**255 - 1)
    point = curve.point_at(y) if y < curve.P else None
    on_curve = point is not None and curve.multiply(curve.L, point) == curve.IDENTITY and y != 1
    assert is_strict_key(key) is on_curve is crypto_core_ed25519_is_valid_point(key)


def test_the_rule_holds_by_itself_should_libsodium_ever_move_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a libsodium that accepts everything, our own checks of lengths, S, R and the key still refuse."""
    monkeypatch.setattr(sig, "crypto_sign_open", lambda signed, key: signed[64:])
    monkeypatch.setattr(sig, "crypto_core_ed25519_is_valid_point", lambda key: True)
    monkeypatch.setattr(sig, "is_strict_key", is_strict_key.__wrapped__)
    key, good = public_key(1), sign(1, b"m")
    canonical, p_itself = curve.spell(curve.P - 1, 0), curve.spell(curve.P, 1)
    last_s = (curve.L - 1).to_bytes(32, "little")
    assert is_valid(key, b"m", good)
    assert is_valid(key, b"m", good[:32] + last_s)
    assert canonical in SMALL_ORDER and p_itself in SMALL_ORDER
    refused_r = [*sorted(SMALL_ORDER), curve.spell(curve.P + 3, 0), curve.spell(curve.P + 18, 1)]
    assert [is_valid(key, b"m", r + good[32:]) for r in refused_r] == [False] * len(refused_r)
    assert [is_valid(r, b"m", good) for r in refused_r] == [False] * len(refused_r)
    for signature in (good[:63], good + b"\x00", good[:32] + curve.L.to_bytes(32, "little"), good[:32] + b"\xff" * 32):
        assert not is_valid(key, b"m", signature)
    for wrong in (key[:31], key + b"\x00", b""):
        assert not is_valid(wrong, b"m", good)
