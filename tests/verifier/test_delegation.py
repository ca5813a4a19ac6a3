"""Statements of delegation: the stories, and that no input whatever makes the reader raise anything else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifier import maker
from tests.verifier.delegation_stories import HOUR_MS, INVALID, STORIES, Story, alone, chain, digest
from tests.verifier.maker import SESSION
from verifier.delegation import (
    chain_fault,
    enrolment_bytes,
    is_enrolment_proof,
    parse_delegations,
    statement_bytes,
    statement_digest,
)
from verifier.entries import MemberError
from verifier.wire import JsonValue, Malformed

AT_MS = maker.T0


def answer(story: Story) -> str | None:
    try:
        found = parse_delegations(story.build(AT_MS), SESSION.did)  # type: ignore[arg-type]
    except MemberError as error:
        return error.code
    return chain_fault(found, maker.ORIGIN, AT_MS + story.after_ms)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_chain_is_judged_as_its_story_says(story: Story) -> None:
    assert answer(story) == (story.refusal if story.is_stateless else None)


def test_no_two_stories_share_a_name_and_every_stateless_rule_has_one() -> None:
    assert len({story.name for story in STORIES}) == len(STORIES)
    told = {story.refusal for story in STORIES if story.is_stateless}
    rules = ("wrong_ledger", "too_deep", "wider", "longer", "expired", "invalid")
    assert told == {None, *(f"delegation_{rule}" for rule in rules)}


@pytest.mark.parametrize("story", [story for story in STORIES if story.refusal is None], ids=lambda story: story.name)
def test_a_session_may_do_what_the_last_statement_says(story: Story) -> None:
    last = parse_delegations(story.build(AT_MS), SESSION.did)[-1]  # type: ignore[arg-type]
    assert (last.verbs, last.resources) == (story.verbs, story.scope)


def test_the_first_rule_that_is_broken_is_the_one_that_is_named() -> None:
    """All at once; then each repaired in the order of the table."""
    other, late = "other.example/main", AT_MS + HOUR_MS + 1
    broken: dict[str, Any] = {"aud": other, "maxDepth": 0, "verbs": ["lease"]}
    child: dict[str, Any] = {"expiresAtMs": late}
    repairs: list[tuple[str, Callable[[], None]]] = [
        ("delegation_wrong_ledger", lambda: broken.update(aud=maker.ORIGIN)),
        ("delegation_too_deep", lambda: broken.update(maxDepth=1)),
        ("delegation_wider", lambda: child.update(verbs=["lease"])),
        ("delegation_longer", lambda: broken.update(expiresAtMs=late)),
    ]
    for wanted, repair in repairs:
        found = parse_delegations(chain(AT_MS, broken, child), SESSION.did)  # type: ignore[arg-type]
        assert chain_fault(found, maker.ORIGIN, late) == wanted
        repair()
    found = parse_delegations(chain(AT_MS, broken, child), SESSION.did)  # type: ignore[arg-type]
    assert chain_fault(found, maker.ORIGIN, late) == "delegation_expired"
    assert chain_fault(found, maker.ORIGIN, late - 1) is None


def test_the_bytes_that_are_signed_are_those_of_the_protocol() -> None:
    (one,) = alone(at_ms=AT_MS)
    assert statement_digest(one["statement"]).hex() == digest(one["statement"])
    assert statement_bytes(one["statement"]) == b"tallystick.delegation/1\n" + bytes.fromhex(digest(one["statement"]))


def test_a_fault_names_the_member_and_never_repeats_what_came() -> None:
    with pytest.raises(MemberError) as found:
        parse_delegations(alone(at_ms=AT_MS, aud="SECRET and more"), SESSION.did)  # type: ignore[arg-type]
    assert (found.value.code, found.value.member) == (INVALID, "delegations[0].statement.aud")
    assert "SECRET" not in str(found.value)


@pytest.mark.parametrize(
    "value",
    [None, 7, "x", {}, [], [1], [{}], [{"statement": {}}], [{"statement": [], "signature": "A" * 86 + "=="}],
     [{"statement": {}, "signature": "A" * 86 + "=="}] * 4],
)  # fmt: skip
def test_what_is_no_list_of_signed_statements_is_invalid(value: JsonValue) -> None:
    with pytest.raises(MemberError) as found:
        parse_delegations(value, SESSION.did)
    assert found.value.code == INVALID


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(ANY_JSON, st.sampled_from(["iss", "sub", "aud", "verbs", "resources", "notBeforeMs", "maxDepth", "parent"]))
def test_no_value_of_a_member_raises_anything_but_malformed(value: Any, name: str) -> None:
    items: Any = json.loads(json.dumps(chain(AT_MS)))
    items[0]["statement"][name] = value
    broken: Any
    for broken in (items, value, [{"statement": value, "signature": value}]):
        try:
            parse_delegations(broken, SESSION.did)
        except Malformed as error:
            assert str(error)


def proof_of(key: maker.Key, agent: str, key_digest: str, ledger: str = maker.ORIGIN) -> str:
    return maker.b64(key.sign(enrolment_bytes(agent, key_digest, ledger)))


def test_a_new_key_proves_that_it_wants_to_be_enrolled() -> None:
    did, key_digest = maker.CAROL.did, "5a" * 32
    good = proof_of(maker.CAROL, did, key_digest)
    assert is_enrolment_proof(did, key_digest, maker.ORIGIN, good)
    assert not is_enrolment_proof(did, "5b" * 32, maker.ORIGIN, good)
    assert not is_enrolment_proof(did, key_digest, "other.example/main", good)
    assert not is_enrolment_proof(maker.BOB.did, key_digest, maker.ORIGIN, good)
    assert not is_enrolment_proof(did, key_digest, maker.ORIGIN, proof_of(maker.BOB, did, key_digest))


def test_what_a_new_key_signs_is_what_the_protocol_says() -> None:
    document = maker.canonical({"agent": "a", "keyDigest": "d", "ledger": "o"})
    assert enrolment_bytes("a", "d", "o") == b"tallystick.enrolment/1\n" + hashlib.sha256(document).digest()


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=90))
def test_a_proof_is_good_or_not_but_never_an_error(agent: str, ledger: str, proof: str) -> None:
    assert not is_enrolment_proof(agent, ledger, ledger, proof)
    assert not is_enrolment_proof(maker.CAROL.did, "\ud800", ledger, "A" * 86 + "==")
