"""API keys: issued by operators, known by a digest, and gone for good when revoked."""

from __future__ import annotations

import pytest

from gateway.core.intake import Rejection
from gateway.core.lookup import apikey_at
from gateway.core.records import ApiKey
from tests.core.book import own_members
from tests.core.crew import Crew, digest
from tests.core.requests import add, add_operator, did_of, enrol, issue, remove, remove_operator, revoke

C, E, OP, OP2 = (did_of(name) for name in ("C", "E", "op", "op2"))
K = digest("k")


def test_issuing_is_an_entry_with_the_digest_and_never_the_key() -> None:
    one = Crew()
    leaf = one.say(issue("op", K, "live", name="ci"))
    assert (leaf.type, leaf.actor, leaf.on_behalf_of) == ("tallystick/apikey.issued/1", OP, OP)
    assert own_members(leaf) == {"keyDigest": K, "kind": "live", "name": "ci"}
    assert apikey_at(one.shelf, K) == ApiKey(K, "live", "ci", None, OP, leaf.seq)


def test_a_key_speaks_for_an_agent_whose_own_key_the_gateway_holds() -> None:
    one = Crew()
    one.tell(add("op", "C", agentCustody="gateway"))
    leaf = one.say(issue("op", K, "live", agent=C))
    assert own_members(leaf) == {"keyDigest": K, "kind": "live", "agent": C}
    key = apikey_at(one.shelf, K)
    assert key is not None and (key.agent, key.operator) == (C, OP)


@pytest.mark.parametrize("agent", ["A", "nobody", "s", "op", "gone", "another's"])
def test_no_key_speaks_for_who_keeps_its_own_key_or_has_another_operator(agent: str) -> None:
    one = Crew()
    one.tell(add("op2", "another's", agentCustody="gateway"))
    one.open("s", "A")
    one.tell(add("op", "gone", agentCustody="gateway"))
    one.tell(remove("op", "gone"))
    leaf = one.say(issue("op", K, "live", agent=did_of(agent)))
    assert own_members(leaf) == {"keyDigest": K, "error": "agent_not_found", "number": 106}
    assert one.refuses(issue("op", K, "live", agent=did_of(agent))) == "agent_not_found"


def test_a_trial_key_belongs_to_no_agent() -> None:
    with pytest.raises(Rejection) as rejected:
        issue("op", K, "trial", agent=E).signed()
    assert rejected.value.code == "member_conflict"


def test_a_digest_is_issued_once_whoever_issues_it_and_whatever_became_of_it() -> None:
    one = Crew()
    one.key("k", "live")
    for by in ("op", "op2"):
        assert one.refuses(issue(by, K, "trial")) == "apikey_known"
    one.tell(revoke("op", K))
    leaf = one.say(issue("op", K, "live"))
    assert own_members(leaf) == {"keyDigest": K, "error": "apikey_known", "number": 126}


def test_only_operators_issue_and_revoke() -> None:
    one = Crew()
    one.open("s", "op")
    for by in ("A", "s"):
        leaf = one.say(issue(by, K, "live"))
        assert own_members(leaf) == {"keyDigest": K, "error": "operator_required", "number": 105}
        assert one.refuses(revoke(by, K)) == "operator_required"
        assert one.types(-1) == ["revocation.refused"]


def test_any_operator_revokes_and_whom_it_enrolled_stays() -> None:
    one = Crew()
    one.key("k", "live", by="op2")
    issued = len(one.leaves) - 1
    one.tell(enrol("E", K))
    leaf = one.say(revoke("op", K))
    assert (leaf.type, own_members(leaf)) == ("tallystick/apikey.revoked/1", {"keyDigest": K, "issuedSeq": issued})
    assert one.tell(enrol("F", K)) == "apikey_not_found"
    assert one.ask_for("E", "repo:x").type == "tallystick/lease.granted/1"


def test_revoking_twice_or_what_was_never_issued_finds_nothing() -> None:
    one = Crew()
    one.key("k", "live")
    one.tell(revoke("op", K))
    for key in (K, digest("never")):
        leaf = one.say(revoke("op", key))
        assert own_members(leaf) == {"keyDigest": key, "error": "apikey_not_found", "number": 125}


def test_a_key_of_a_removed_operator_is_worth_nothing_until_that_is_added_again() -> None:
    one = Crew()
    one.key("k", "live", by="op2")
    one.tell(remove_operator("op", "op2"))
    assert one.refuses(enrol("E", K)) == "apikey_not_found"
    assert one.refuses(issue("op", K, "live")) == "apikey_known"
    one.tell(add_operator("op", "op2"))
    assert one.tell(enrol("E", K)) == "agent.added"
    assert one.agent("E").operator == OP2
    assert one.tell(revoke("op", K)) == "apikey.revoked"
