"""API keys as text: made at random, checked without asking anybody, known by their digest."""

import hashlib
import zlib

import pytest

from keys.token import ALPHABET, KINDS, check_of, digest_of, kind_of, new_token


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_says_what_it_is_and_no_two_are_alike(kind: str) -> None:
    tokens = {new_token(kind) for _ in range(50)}
    assert len(tokens) == 50
    assert all(token.startswith(f"tsk_{kind}_") and len(token) == len(f"tsk_{kind}_") + 36 for token in tokens)
    assert {kind_of(token) for token in tokens} == {kind}


def test_the_check_is_crc_32_in_base_62_with_leading_zeros() -> None:
    start = "tsk_live_" + "0" * 30
    number = zlib.crc32(start.encode())
    value = 0
    for character in check_of(start):
        value = value * 62 + ALPHABET.index(character)
    assert value == number
    assert len(check_of(start)) == 6
    assert kind_of(start + check_of(start)) == "live"


def test_one_wrong_character_anywhere_is_noticed() -> None:
    token = new_token("trial")
    for at in range(len(token)):
        other = "x" if token[at] != "x" else "y"
        assert kind_of(token[:at] + other + token[at + 1 :]) is None


@pytest.mark.parametrize("text", ["", "tsk_live_", " ", "Bearer x", "tsk_live_" + "é" * 36, "tsk_dead_" + "0" * 36])
def test_other_texts_are_no_tokens(text: str) -> None:
    assert kind_of(text) is None
    assert kind_of(f"{new_token('live')}\n") is None


def test_a_ledger_knows_a_token_by_its_sha_256() -> None:
    token = new_token("live")
    assert digest_of(token) == hashlib.sha256(token.encode()).hexdigest()
