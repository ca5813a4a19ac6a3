"""Keys of the ledger: announced, retired and disowned by the root, in an operator's request."""

from __future__ import annotations

from hashlib import sha256

import pytest

from gateway.core.intake import Rejection
from gateway.core.key import line_of
from gateway.core.lookup import keys_at, ledger_key_at
from gateway.core.records import Keys, LedgerKey
from tests.core.book import Book, own_members, vkey_of
from tests.core.crew import Crew
from tests.core.requests import (
    NOW_MS,
    Ask,
    add,
    add_operator,
    chain,
    did_of,
    enrol,
    key_note,
    key_of,
    open_session,
    remove,
    state_key,
)
from verifier.entries import Leaf

LOG, LOG_2, RECEIPT = vkey_of("log", "log"), vkey_of("log", "log 2"), vkey_of("receipt", "receipt")


def hash_of(name: str) -> str:
    return sha256(key_of(name).public_key).hexdigest()


def asked(one: Book, verb: str, purpose: str, name: str, following: str | None = None, by: str = "op") -> Ask:
    return state_key(by, verb, key_note(verb, purpose, name, one.imprint.genesis, following))


def say(one: Book, verb: str, purpose: str, name: str, following: str | None = None, by: str = "op") -> Leaf:
    leaf = one.entry(NOW_MS, asked(one, verb, purpose, name, following, by))
    one.audit()
    return leaf


def bounds(one: Book, name: str) -> tuple[int, int | None, str]:
    known = ledger_key_at(one.shelf, did_of(name))
    assert known is not None
    line = line_of(known)
    return line.from_size, line.to_size, line.status


def test_a_key_of_entry_0_signs_from_the_beginning() -> None:
    one = Book()
    assert bounds(one, "log") == (0, None, "active") and bounds(one, "receipt") == (0, None, "active")
    assert keys_at(one.shelf, "log") == Keys("log", (LOG.vkey,), None)


def test_an_announced_key_counts_from_the_next_entry_on_beside_the_older_one() -> None:
    one = Book()
    leaf = say(one, "announce", "log", "log 2", "log 3")
    assert (leaf.type, leaf.actor, leaf.principal) == ("tallystick/key.announced/1", did_of("op"), did_of("op"))
    assert own_members(leaf) == {
        "purpose": "log", "key": LOG_2.vkey, "next": hash_of("log 3"),
        "statement": key_note("announce", "log", "log 2", one.imprint.genesis, "log 3"),
    }  # fmt: skip
    assert bounds(one, "log 2") == (leaf.seq + 1, None, "active")
    assert keys_at(one.shelf, "log") == Keys("log", (LOG.vkey, LOG_2.vkey), hash_of("log 3"))
    assert keys_at(one.shelf, "receipt") == Keys("receipt", (RECEIPT.vkey,), None), "purposes have nothing in common"


def with_used_keys() -> Crew:
    """Beside the keys of entry 0: "log 2", announced, and "log", retired by it."""
    one = Crew()
    say(one, "announce", "log", "log 2")
    say(one, "retire", "log", "log")
    return one


@pytest.mark.parametrize("name", ["log", "log 2", "receipt", "root"])
def test_a_key_of_the_ledger_itself_never_gets_another_role(name: str) -> None:
    """What it signs as an agent or operator could else be taken for a checkpoint or a receipt (15.2)."""
    one = with_used_keys()
    live, custodial = one.key("k", "live"), add("op", name, agentCustody="gateway")
    assert one.refuses(add("op", name)) == one.refuses(custodial) == "key_taken"
    assert one.refuses(enrol(name, live)) == "key_taken"
    assert one.refuses(add_operator("op", name)) == "key_taken"
    assert one.refuses(open_session(name, chain("A", name))) == "session_taken"


def test_who_was_something_here_before_its_key_became_the_ledger_s_does_not_come_back() -> None:
    one = Crew()
    one.tell(remove("op", "A"))
    say(one, "announce", "log", "A")
    assert one.refuses(add("op", "A")) == "key_taken"


@pytest.mark.parametrize(("verb", "entry", "status"), [
    ("retire", "key.retired", "retired"), ("compromise", "key.compromised", "compromised"),
])  # fmt: skip
def test_a_key_that_ends_signs_up_to_the_entry_that_ends_it(verb: str, entry: str, status: str) -> None:
    one = Book()
    announced = say(one, "announce", "log", "log 2")
    assert "next" not in announced.value
    leaf = say(one, verb, "log", "log")
    assert leaf.type == f"tallystick/{entry}/1"
    assert own_members(leaf) == {
        "purpose": "log", "key": LOG.vkey, "announcedSeq": 0,
        "statement": key_note(verb, "log", "log", one.imprint.genesis),
    }  # fmt: skip
    assert bounds(one, "log") == (0, leaf.seq, status)
    assert keys_at(one.shelf, "log") == Keys("log", (LOG_2.vkey,), None)


def test_the_newer_of_two_keys_may_end_too_and_names_its_own_entry() -> None:
    one = Book()
    announced = say(one, "announce", "receipt", "r 2")
    leaf = say(one, "compromise", "receipt", "r 2")
    assert leaf.value["announcedSeq"] == announced.seq
    assert keys_at(one.shelf, "receipt").in_force == (RECEIPT.vkey,)


def test_what_entry_0_committed_to_is_the_only_key_that_comes_next() -> None:
    one = Book(following={"log": "log 2"})
    assert one.leaf(0).value["nextKeys"] == {"log": hash_of("log 2")}
    leaf = say(one, "announce", "log", "thief")
    assert own_members(leaf) == {
        "purpose": "log", "key": vkey_of("log", "thief").vkey, "error": "key_not_committed", "number": 132,
    }  # fmt: skip
    assert leaf.type == "tallystick/announcement.refused/1"
    assert say(one, "announce", "receipt", "r 2").type == "tallystick/key.announced/1", "nothing was said of receipts"
    assert say(one, "announce", "log", "log 2").type == "tallystick/key.announced/1"
    say(one, "retire", "log", "log")
    assert say(one, "announce", "log", "any").type == "tallystick/key.announced/1", "it committed to none"


def test_each_announcement_replaces_the_commitment() -> None:
    one = Book(following={"log": "log 2"})
    say(one, "announce", "log", "log 2", "log 3")
    say(one, "retire", "log", "log")
    assert say(one, "announce", "log", "log 4").value["error"] == "key_not_committed"
    assert say(one, "announce", "log", "log 3").type == "tallystick/key.announced/1"


def test_at_most_two_keys_and_never_none_are_in_force() -> None:
    one = Book()
    assert say(one, "retire", "log", "log").value["error"] == "key_last"
    assert say(one, "compromise", "log", "log").value["error"] == "key_last"
    say(one, "announce", "log", "log 2")
    assert say(one, "announce", "log", "log 3").value["error"] == "key_overlap"
    assert bounds(one, "log") == (0, None, "active")
    assert ledger_key_at(one.shelf, did_of("log 3")) is None


@pytest.mark.parametrize("name", ["log", "receipt", "root", "enroller", "op", "A", "s", "op2"])
def test_a_key_that_has_a_role_does_not_get_another(name: str) -> None:
    one = Crew()
    one.open("s", "A")
    for purpose in ("log", "receipt"):
        leaf = one.say(asked(one, "announce", purpose, name))
        assert (leaf.type, leaf.value["error"]) == ("tallystick/announcement.refused/1", "key_known"), name


def test_a_key_never_comes_back_and_a_removed_agents_key_is_free() -> None:
    one = Book()
    say(one, "announce", "log", "log 2")
    say(one, "retire", "log", "log")
    assert say(one, "announce", "log", "log").value["error"] == "key_known"
    assert say(one, "announce", "receipt", "log").value["error"] == "key_known", "nor for another purpose"
    assert say(one, "retire", "log", "log").value["error"] == "key_unknown"
    one.entry(NOW_MS, remove("op", "A"))
    assert say(one, "announce", "log", "A").type == "tallystick/key.announced/1"


def test_only_operators_bring_a_statement() -> None:
    one = Crew()
    one.tell(add_operator("op", "op3"))
    for verb, entry in (("announce", "announcement"), ("retire", "retirement"), ("compromise", "disowning")):
        leaf = one.say(asked(one, verb, "log", "log", by="A"))
        assert own_members(leaf) == {
            "purpose": "log", "key": LOG.vkey, "error": "operator_required", "number": 105,
        }  # fmt: skip
        assert leaf.type == f"tallystick/{entry}.refused/1"
        assert one.refuses(asked(one, verb, "log", "log", by="stranger")) == "agent_unknown"
    assert one.say(asked(one, "announce", "log", "log 2", by="op3")).type == "tallystick/key.announced/1"


@pytest.mark.parametrize("spoilt", ["genesis", "root", "verb", "origin"])
def test_what_the_door_should_have_turned_away_decides_nothing(spoilt: str) -> None:
    one = Book()
    genesis = "0" * 64 if spoilt == "genesis" else one.imprint.genesis
    by = "thief" if spoilt == "root" else "root"
    origin = "other.example/x" if spoilt == "origin" else "gateway.example/main"
    verb = "retire" if spoilt == "verb" else "announce"
    note = key_note(verb, "log", "log 2", genesis, by=by, origin=origin)
    batch = one.build(NOW_MS, state_key("op", "announce", note))
    assert b"decision.failed" in batch.leaves[0] and not [key for key, *_ in batch.changes if key.startswith("key/")]


def test_a_body_without_a_statement_is_turned_away() -> None:
    one = Book()
    whole = asked(one, "announce", "log", "log 2")
    with pytest.raises(Rejection) as rejected:
        whole.but(body=whole.body.replace(b"statement", b"statemend")).signed()
    assert rejected.value.code in ("member_missing", "member_unknown")


def test_an_agent_may_be_enrolled_whatever_keys_there_are() -> None:
    one = Book()
    say(one, "announce", "log", "log 2")
    assert one.entry(NOW_MS, add("op", "E")).type == "tallystick/agent.added/1"
    assert isinstance(ledger_key_at(one.shelf, did_of("log 2")), LedgerKey)
