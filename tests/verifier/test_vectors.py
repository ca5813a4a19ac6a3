"""The committed vectors: made by their generator without a difference, and judged by the verifier as typed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.vectors.generate import HERE, files
from tests.verifier.samples import ROOT
from tests.verifier.shared import cases, content, ours
from verifier.checkpoint import parse_checkpoint
from verifier.consistency import consistency_text, parse_consistency
from verifier.delegation import chain_fault, parse_delegations
from verifier.entries import MemberError, check_resource, covers, key_of, overlaps
from verifier.keyring import key_document_text, open_key_document
from verifier.note import encode_note, parse_note, parse_vkey
from verifier.policy import is_quorum_met, parse_policy
from verifier.proof import encode_proof, parse_proof
from verifier.statement import KeyStatement, key_statement_text, open_key_statement
from verifier.wire import Malformed, encode_canonical, parse_canonical, parse_json

Case = dict[str, Any]


def is_accepted(parse: Callable[[Any], object], value: object) -> bool:
    try:
        parse(value)
    except Malformed as error:
        assert str(error), "a refusal says why"
        return False
    return True


def strict(data: bytes) -> object:
    return parse_json(data, bytes_max=65_536)


def canonical(data: bytes) -> object:
    return parse_canonical(data, bytes_max=65_536)


def test_the_generator_writes_the_committed_files_byte_for_byte() -> None:
    made = files()
    assert {name: (HERE / name).read_bytes() for name in made} == made


@pytest.mark.parametrize("name", sorted(set(files()) - {"merkle.json", "quorum.json", "overlap.json"}))
def test_every_file_holds_more_refused_cases_than_accepted_ones_and_names_each(name: str) -> None:
    verdicts = [case.get("isWellFormed", case.get("isValid", case.get("isStrict"))) for case in ours(name)]
    assert 0 < verdicts.count(True) < verdicts.count(False)
    assert all(case["comment"] for case in ours(name))


@pytest.mark.parametrize("case", cases("delegation.json"))
def test_a_chain_of_delegations_is_judged_as_typed(case: Case) -> None:
    try:
        chain = parse_delegations(case["delegations"], case["actorDid"])
    except MemberError as error:
        assert (error.code, case["isValid"]) == (case["error"], False)
        return
    assert chain_fault(chain, case["ledger"], case["timeMs"]) == case["error"]
    if case["isValid"]:
        scope = chain[-1].resources
        assert [*chain[-1].verbs] == case["verbs"] and (None if scope is None else [*scope]) == case["scope"]


@pytest.mark.parametrize("case", cases("json.json"))
def test_a_json_text_is_judged_as_typed(case: Case) -> None:
    assert is_accepted(strict, content(case)) is case["isStrict"]
    assert is_accepted(canonical, content(case)) is case["isCanonical"]


@pytest.mark.parametrize("case", cases("vkey.json"))
def test_a_vkey_is_judged_as_typed(case: Case) -> None:
    assert is_accepted(parse_vkey, case["vkey"]) is case["isWellFormed"]
    if case["isWellFormed"]:
        assert parse_vkey(case["vkey"]).vkey == case["vkey"]


@pytest.mark.parametrize("case", cases("note.json"))
def test_a_note_is_judged_as_typed(case: Case) -> None:
    assert is_accepted(parse_note, content(case)) is case["isWellFormed"]
    if case["isWellFormed"]:
        assert encode_note(parse_note(content(case))) == content(case)


@pytest.mark.parametrize("case", cases("checkpoint.json"))
def test_a_checkpoint_is_judged_as_typed(case: Case) -> None:
    assert is_accepted(parse_checkpoint, content(case)) is case["isWellFormed"]


@pytest.mark.parametrize("case", cases("proof.json"))
def test_a_proof_is_judged_as_typed(case: Case) -> None:
    assert is_accepted(parse_proof, content(case)) is case["isWellFormed"]
    if case["isWellFormed"]:
        assert encode_proof(parse_proof(content(case))) == content(case)


@pytest.mark.parametrize("case", cases("consistency.json"))
def test_a_consistency_proof_is_judged_as_typed(case: Case) -> None:
    assert is_accepted(parse_consistency, content(case)) is case["isWellFormed"]
    if case["isWellFormed"]:
        proof = parse_consistency(content(case))
        assert consistency_text(proof.old_size, proof.path, proof.note) == content(case)


@pytest.mark.parametrize("case", cases("statement.json"))
def test_a_statement_about_a_key_is_judged_as_typed(case: Case) -> None:
    root, genesis = parse_vkey(case["root"]), bytes.fromhex(case["genesisHex"])

    def opened(data: bytes) -> KeyStatement:
        return open_key_statement(data, root, case["origin"], genesis)

    assert is_accepted(opened, content(case)) is case["isWellFormed"]
    if case["isWellFormed"]:
        text = key_statement_text(opened(content(case)), case["origin"], genesis)
        assert text == parse_note(content(case)).text


@pytest.mark.parametrize("case", cases("policy.json"))
def test_a_policy_is_judged_as_typed(case: Case) -> None:
    assert is_accepted(parse_policy, content(case)) is case["isWellFormed"]


@pytest.mark.parametrize("case", cases("quorum.json"))
def test_a_quorum_is_met_as_typed(case: Case) -> None:
    assert is_quorum_met(parse_policy(content(case)), set(case["witnesses"])) is case["isMet"]


@pytest.mark.parametrize("case", cases("keys.json"))
def test_a_key_document_is_judged_as_typed(case: Case) -> None:
    assert is_accepted(lambda data: open_key_document(data, ROOT), content(case)) is case["isWellFormed"]
    if case["isWellFormed"]:
        document = open_key_document(content(case), ROOT)
        assert key_document_text(document) == parse_note(content(case)).text


@pytest.mark.parametrize("case", cases("names.json"))
def test_a_name_is_judged_as_typed(case: Case) -> None:
    assert is_accepted(check_resource, case["name"]) is case["isWellFormed"]


@pytest.mark.parametrize("case", cases("overlap.json"))
def test_two_names_overlap_as_typed(case: Case) -> None:
    a, b = (key_of(case[name], case["isFolding"]) for name in ("a", "b"))
    assert (overlaps(a, b), overlaps(b, a), covers(a, b)) == (case["overlaps"], case["overlaps"], case["aCoversB"])


def test_a_canonical_text_is_what_the_encoder_writes() -> None:
    for case in ours("json.json"):
        if case["isCanonical"]:
            assert encode_canonical(canonical(content(case))) == content(case)  # type: ignore[arg-type]
