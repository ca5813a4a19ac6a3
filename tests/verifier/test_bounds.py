"""Bounds are inclusive, counted before anything is parsed, and deep inputs need no recursion."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.verifier.samples import ORIGIN, ROOT, log_line, signed, tree_of, witness
from verifier.checkpoint import checkpoint_text
from verifier.keyring import open_key_document
from verifier.note import encode_note, parse_note
from verifier.policy import is_quorum_met, parse_policy
from verifier.proof import parse_proof
from verifier.wire import PROOF_BYTES_MAX, TEXT_BYTES_MAX, Malformed, parse_json

TEXT = checkpoint_text(ORIGIN, 7, tree_of(7).root())
CASES: dict[str, tuple[Callable[[bytes], object], bytes, int]] = {
    "note": (parse_note, encode_note(log_line(TEXT)).rjust(TEXT_BYTES_MAX, b"a"), TEXT_BYTES_MAX),
    "policy": (parse_policy, b"\nquorum none\n".rjust(TEXT_BYTES_MAX, b"#"), TEXT_BYTES_MAX),
    "proof": (parse_proof, b"c2sp.org/tlog-proof@v1\nindex 0\n\n".ljust(PROOF_BYTES_MAX, b"a"), PROOF_BYTES_MAX),
}


@pytest.mark.parametrize("name", CASES)
def test_the_largest_input_is_read_and_one_byte_more_is_not(name: str) -> None:
    parse, largest, bytes_max = CASES[name]
    assert len(largest) == bytes_max
    parse(largest)
    larger = largest + b"a" if name == "proof" else largest[:1] + largest
    with pytest.raises(Malformed, match=str(bytes_max)):
        parse(larger)


def test_a_chain_of_two_thousand_groups_is_a_policy_and_is_evaluated_without_recursion() -> None:
    chain = "".join(f"group c{n + 1} any c{n}\n" for n in range(1, 2_000))
    policy = parse_policy(f"witness w {witness(1).vkey}\ngroup c1 any w\n{chain}quorum c2000\n".encode())
    assert is_quorum_met(policy, {"w"})
    assert not is_quorum_met(policy, set())
    assert not is_quorum_met(policy, {"c1999"})


def test_deep_nesting_and_long_numbers_are_refused_before_they_cost_anything() -> None:
    for hostile in (b'{"a":' + b"[" * 200_000, b'{"a":' * 40_000, b'{"a":' + b"9" * 200_000 + b"}"):
        with pytest.raises(Malformed):
            parse_json(hostile, bytes_max=262_144)


def test_a_key_document_larger_than_a_note_is_refused() -> None:
    with pytest.raises(Malformed, match=str(TEXT_BYTES_MAX)):
        open_key_document(signed("a\n" * 33_000, ROOT, 9), ROOT)
