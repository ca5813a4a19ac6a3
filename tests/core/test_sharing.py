"""Names that overlap and modes that share: who may stand beside whom, and what is filed where to find out."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import lease
from gateway.core.draft import Draft
from gateway.core.expiry import EXPIRIES_MAX
from gateway.core.outcome import Context
from gateway.core.parameters import Parameters
from gateway.core.record_keys import lease_key
from gateway.core.records import Delay, Lease
from gateway.core.terms import filed_under, met_by
from tests.core.book import Shelf, own_members
from tests.core.hall import Crowd, Hall
from tests.core.requests import NOW_MS, acquire, batch, did_of, release, renew, set_scheme
from verifier.entries import MODES, key_of, overlaps

A, B, C = did_of("A"), did_of("B"), did_of("C")


def hall(scheme: str, class_name: str, **members: Any) -> Hall:
    made = Hall()
    assert "error" not in made.say(set_scheme("op", scheme, class_name, **members)).value
    return made


def error_of(one: Hall, name: str, *resources: str, mode: str = "write") -> str:
    return one.ask_for(name, *resources, mode=mode).text("error")


# --- names ----------------------------------------------------------------------------------------------------------

SEGMENT = st.sampled_from(["a", "b", "A", "ab", "\u00e4", "l" * 46, "L" * 46])
NAME = st.builds(
    lambda scheme, path, tail: f"{scheme}:" + "/".join([*path, *tail]),
    st.sampled_from(["r", "s"]),
    st.lists(SEGMENT, min_size=1, max_size=3),
    st.sampled_from([[], ["**"]]),
) | st.sampled_from(["r:**", "s:**"])


@given(NAME, NAME)
def test_what_overlaps_when_folded_is_found_by_its_words_and_nothing_else(held: str, asked: str) -> None:
    is_found = not set(filed_under(held)).isdisjoint(met_by(asked))
    assert is_found == overlaps(key_of(held, True), key_of(asked, True))


@pytest.mark.parametrize(
    ("held", "asked", "is_kept_out"),
    [
        ("repo:a/**", "repo:a/b/c", True),
        ("repo:a/b/c", "repo:a/**", True),
        ("repo:a/**", "repo:a", True),
        ("repo:a", "repo:a/**", True),
        ("repo:a/**", "repo:a/b/**", True),
        ("repo:**", "repo:x", True),
        ("repo:x", "repo:**", True),
        ("repo:a/**", "repo:ab", False),
        ("repo:a/**", "repo:b/a", False),
        ("repo:a/b/**", "repo:a", False),
        ("repo:**", "db:x", False),
        ("repo:a/**", "repo:A/b", False),
    ],
)
def test_a_sub_tree_is_one_name_and_covers_what_lies_in_it(held: str, asked: str, is_kept_out: bool) -> None:
    one = Hall()
    one.hold("A", held)
    assert one.ask_for("A", asked).text("error") == "", "one's own are never in one's way"
    one.free("A", max(one.leases(), key=lambda lease_id: int(lease_id[1:])))
    leaf = one.ask_for("B", "other:z", asked)
    conflict: Any = leaf.value.get("conflict", {})
    assert (leaf.text("error"), conflict.get("resource"), conflict.get("heldAs")) == (
        ("lease_held", asked, held) if is_kept_out else ("", None, None)
    )
    assert one.audited() == []


def test_of_several_names_that_meet_the_least_of_both_sides_is_told() -> None:
    one = Hall()
    one.hold("A", "repo:b/y", "repo:b/x", "repo:c")
    conflict = one.ask_for("B", "repo:c", "repo:b/**").value["conflict"]
    assert isinstance(conflict, dict) and (conflict["resource"], conflict["heldAs"]) == ("repo:b/**", "repo:b/x")


def test_a_scheme_that_folds_has_one_lease_for_each_spelling_and_shows_names_as_asked() -> None:
    one = hall("win", "exclusive", isFolding=True)
    lease_id = one.hold("A", "win:Src/Main.py")
    refused = one.ask_for("B", "win:src/MAIN.py")
    conflict: Any = refused.value["conflict"]
    assert (conflict["resource"], conflict["heldAs"]) == ("win:src/MAIN.py", "win:Src/Main.py")
    extended = one.ask_for("A", "win:SRC/main.py")
    assert (extended.text("leaseId"), extended.value["resources"]) == (lease_id, ["win:SRC/main.py"])
    assert extended.value["schemes"] == [{"class": "exclusive", "isFolding": True, "name": "win"}]
    assert one.leases()[lease_id].resources == ("win:Src/Main.py",)
    released = one.say(release("A", "win:src/main.py", leaseId=lease_id))
    assert (released.text("error"), released.value["resources"]) == ("", ["win:src/main.py"])
    assert error_of(one, "B", "win:**") == ""
    assert one.audited() == []


def test_a_name_beyond_ascii_needs_a_scheme_that_takes_it() -> None:
    one = hall("doc", "exclusive", isUnicode=True)
    assert error_of(one, "A", "repo:\u00e4") == "name_not_allowed"
    assert error_of(one, "A", "doc:\u00e4", "repo:x") == ""
    assert error_of(one, "B", "doc:**") == "lease_held"
    assert one.audited() == []


# --- modes ----------------------------------------------------------------------------------------------------------

SHARED = {
    "read-safe": {("read", "read")},
    "append-only": {("read", "read"), ("append", "append"), ("read", "append"), ("append", "read")},
    "exclusive": set[tuple[str, str]](),
    "irreversible": set[tuple[str, str]](),
}


@pytest.mark.parametrize("class_name", SHARED)
def test_a_class_says_whose_modes_share(class_name: str) -> None:
    for held, asked in product(MODES, repeat=2):
        one = hall("s", class_name)
        first = error_of(one, "A", "s:x", mode=held)
        if class_name == "append-only" and held in ("write", "delete"):
            assert first == "mode_not_allowed"
            continue
        expected = "" if (held, asked) in SHARED[class_name] else "lease_held"
        if class_name == "append-only" and asked in ("write", "delete"):
            expected = "mode_not_allowed"
        assert (first, error_of(one, "B", "s:x", mode=asked)) == ("", expected), (held, asked)


def test_one_name_of_a_set_that_excludes_is_enough() -> None:
    one = hall("doc", "read-safe")
    one.hold("A", "doc:x", "repo:y", mode="read")
    assert error_of(one, "B", "doc:x", mode="read") == ""
    leaf = one.ask_for("B", "doc:x", "repo:y", mode="read")
    conflict: Any = leaf.value["conflict"]
    assert (leaf.text("error"), conflict["resource"], conflict["mode"]) == ("lease_held", "repo:y", "read")


def test_a_writer_is_kept_out_by_every_reader_and_told_of_all() -> None:
    one = hall("doc", "read-safe")
    for name, ttl_ms in (("A", 9_000), ("B", 20_000), ("C", 20_000)):
        one.hold(name, "doc:x", mode="read", ttlMs=ttl_ms)
    leaf = one.ask_for("D", "doc:**")
    assert (leaf.value["holder"], leaf.value["conflicts"]) == (B, 3)


def test_another_mode_of_ones_own_is_another_lease() -> None:
    one = hall("doc", "read-safe")
    read, write = one.hold("A", "doc:x", mode="read"), one.hold("A", "doc:x", mode="write")
    assert read != write and one.hold("A", "doc:y") not in (read, write)
    assert error_of(one, "B", "doc:x", mode="read") == "lease_held"
    assert one.say(release("A", "doc:x")).text("leaseId") == write, "the newest of several goes first"
    assert error_of(one, "B", "doc:x", mode="read") == ""
    assert one.say(release("A", "doc:x")).text("leaseId") == read


# --- another mode for a lease ---------------------------------------------------------------------------------------


def test_a_lease_in_another_mode_is_a_new_lease_in_the_place_of_the_old() -> None:
    one = hall("doc", "read-safe")
    old = one.hold("A", "doc:x", mode="read", ttlMs=9_000)
    one.later(4_000)
    leaf = one.renew("A", old, mode="write", ttlMs=20_000)
    assert (leaf.type.split("/")[1], own_members(leaf)) == (
        "lease.changed",
        {
            "resources": ["doc:x"],
            "mode": "write",
            "schemes": [{"class": "read-safe", "isFolding": False, "name": "doc"}],
            "leaseId": f"L{leaf.seq}",
            "fencingToken": one.t_ms * 1_000,
            "ttlMs": 20_000,
            "expiresAtMs": one.t_ms + 20_000,
            "holdUntilMs": one.t_ms - 4_000 + 3_600_000,
            "fromLeaseId": old,
            "fromSeq": int(old[1:]),
        },
    )
    assert list(one.leases()) == [f"L{leaf.seq}"]
    assert one.renew("A", old).value["error"] == "lease_changed"
    assert one.audited() == []


def test_a_shorter_life_in_another_mode_is_what_was_asked_for() -> None:
    """Another than a renewal, which never shortens: it is a new lease with its own end."""
    one = hall("doc", "read-safe")
    leaf = one.renew("A", one.hold("A", "doc:x", ttlMs=60_000), mode="read", ttlMs=1_000)
    assert leaf.value["expiresAtMs"] == one.t_ms + 1_000


def test_a_reader_becomes_a_writer_only_alone_and_of_two_who_want_to_one_is_the_deadlock() -> None:
    """Scenario 38: two upgraders wait for each other for ever, unless the second is told."""
    one = hall("doc", "read-safe")
    first, second = one.hold("A", "doc:x", mode="read"), one.hold("B", "doc:x", mode="read")
    assert one.renew("A", first, mode="write").value["error"] == "lease_held"
    refused = one.renew("B", second, mode="write")
    assert (refused.value["error"], refused.value["waitingOn"], refused.value["acquireOrder"]) == (
        "deadlock", "doc:x", ["doc:x"],
    )  # fmt: skip
    one.free("B", second)
    assert one.renew("A", first, mode="write").type.split("/")[1] == "lease.changed"
    assert one.audited() == []


@pytest.mark.parametrize(("mode", "error"), [("delete", "queued"), ("append", ""), ("read", "")])
def test_only_a_weaker_mode_goes_past_those_in_line(mode: str, error: str) -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    one.line("B", "repo:x", mode="read")
    assert one.renew("A", lease_id, mode=mode).text("error") == error


def test_a_renewal_in_the_leases_own_mode_is_a_renewal() -> None:
    one = Hall()
    lease_id = one.hold("A", "repo:x")
    assert one.renew("A", lease_id, mode="write").type.split("/")[1] == "lease.renewed"


@pytest.mark.parametrize("what", ["nothing", "grants", "releases", "waits long"])
def test_a_refused_acquire_is_a_wait_until_its_actor_gets_or_gives_back_anything(what: str) -> None:
    one = Hall()
    one.hold("A", "repo:a")
    other = one.hold("A", "repo:other")
    one.hold("B", "repo:b")
    assert error_of(one, "A", "repo:b") == "lease_held"
    if what == "grants":
        one.hold("A", "repo:more")
    elif what == "releases":
        one.free("A", other)
    elif what == "waits long":
        one.later(10_000)
    assert error_of(one, "B", "repo:a") == ("deadlock" if what == "nothing" else "lease_held")
    assert one.audited() == []


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_a_principal_holds_so_many_names_and_no_more() -> None:
    one = Hall(held_per_principal=3)
    first = one.hold("A", "repo:a", "repo:b")
    assert error_of(one, "A", "repo:c", "repo:d") == "too_many_held"
    assert error_of(one, "A", "repo:a", "repo:b") == "", "an extension adds nothing"
    one.hold("A", "repo:c")
    assert error_of(one, "A", "repo:d") == "too_many_held"
    assert error_of(one, "B", "repo:d", "repo:e", "repo:f") == "", "each has its own bound"
    one.free("A", first)
    one.hold("A", "repo:a", "repo:b")
    assert one.audited() == []


def test_what_a_lease_left_closed_counts_until_it_is_open_again() -> None:
    one = Hall(held_per_principal=3, lock_delay_ms=5_000)
    one.hold("A", "repo:a", "repo:b", ttlMs=1_000)
    one.later(1_000)
    assert error_of(one, "A", "repo:c", "repo:d") == "too_many_held"
    again = one.hold("A", "repo:a")
    assert error_of(one, "A", "repo:c") == "too_many_held", "what is both held and closed counts twice"
    one.later(4_999)
    assert error_of(one, "A", "repo:c") == "too_many_held"
    one.later(1)
    one.hold("A", "repo:c", "repo:d")
    assert error_of(one, "A", "repo:e") == "too_many_held"
    one.free("A", again)
    assert error_of(one, "A", "repo:e") == "", "what is given back closes nothing"
    assert one.audited() == []


@pytest.mark.parametrize("holder", ["A", "s"])
def test_a_delay_that_is_over_does_not_count_though_the_sweeper_is_behind(holder: str) -> None:
    """Neither one's own nor that of a session."""
    one = Hall(held_per_principal=300, lock_delay_ms=5_000)
    one.open("s", "A")
    names = [f"repo:{number}" for number in range(200)]
    one.hold(holder, *names, ttlMs=1_000)
    one.later(1_000)
    for number in range(EXPIRIES_MAX):
        one.hold("B", f"db:{number}", ttlMs=4_000)
    one.t_ms += 5_000
    mark = len(one.leaves)
    assert error_of(one, "A", *(f"new:{number}" for number in range(150))) == ""
    assert len(one.told(mark)) == EXPIRIES_MAX + 1 and any(isinstance(it, Delay) for it in one.shelf.records.values())
    assert error_of(one, "A", *(f"other:{number}" for number in range(151))) == "too_many_held"
    assert one.audited() == []


def test_a_hold_ends_when_others_wait_and_goes_on_when_they_do_not() -> None:
    one = Hall(max_hold_ms=10_000)
    lease_id = one.hold("A", "repo:x", ttlMs=60_000)
    one.later(10_000)
    assert one.renew("A", lease_id).text("error") == ""
    ticket = one.line("B", "repo:**")
    assert one.renew("A", lease_id).text("error") == "hold_exceeded"
    assert error_of(one, "A", "repo:x") == "hold_exceeded"
    one.cancel("B", ticket)
    assert one.renew("A", lease_id).text("error") == ""
    assert one.audited() == []


def test_who_waits_for_what_is_shared_ends_no_hold() -> None:
    one = Hall(max_hold_ms=10_000)
    one.say(set_scheme("op", "doc", "read-safe", maxHoldMs=10_000))
    lease_id = one.hold("A", "doc:x", mode="read", ttlMs=60_000)
    one.hold("C", "doc:y")
    one.later(10_000)
    one.line("B", "doc:x", "doc:y", mode="read")
    assert one.renew("A", lease_id).text("error") == ""


# --- what a draft finds ---------------------------------------------------------------------------------------------


def test_a_draft_finds_what_it_has_put_once_and_what_it_rolled_back_never() -> None:
    shelf = Shelf()
    old = Lease("L1", A, A, A, ("repo:a/b",), "write", 1, 1, 0, 1, 9, 9)
    shelf.records = {lease_key("L1"): old}
    draft = Draft(shelf)
    draft.put(lease_key("L1"), old._replace(expires_at_ms=99))
    assert list(draft.near("=repo:a/b")) == [lease_key("L1")]
    mark = draft.savepoint()
    draft.put(lease_key("L2"), old._replace(lease_id="L2", resources=("repo:a/b", "repo:c")))
    draft.put(lease_key("L2"), old._replace(lease_id="L2", resources=("repo:a/b", "repo:c"), mode="read"))
    assert sorted(draft.near("<repo:a/")) == [lease_key("L1"), lease_key("L2")]
    assert list(draft.near("=repo:c")) == [lease_key("L2")]
    draft.rollback(mark)
    assert list(draft.near("<repo:a/")) == [lease_key("L1")]
    assert list(draft.near("=repo:c")) == []
    draft.delete(lease_key("L1"))
    assert not any(draft.get(key) for key in draft.near("<repo:a/"))


def test_a_number_that_a_refused_batch_gave_back_is_another_lease_and_found_as_such() -> None:
    """All at once: the next command's lease has the number of one that was undone, and stands on other names."""
    one = hall("win", "exclusive", isFolding=True)
    one.hold("B", "repo:held")
    mark = len(one.leaves)
    undone = batch("A", acquire("A", "win:x"), acquire("A", "repo:held"), isAtomic=True)
    one.run(one.t_ms, undone, acquire("C", "repo:free"), acquire("B", "win:x"), release("A", "repo:free"))
    assert one.types(mark) == ["batch.refused", "lease.granted", "lease.granted", "release.refused"]
    assert one.leaf(mark + 3).value["holder"] == C
    assert one.audited() == []


@pytest.mark.parametrize("how", ["released", "changed"])
def test_what_a_refused_batch_ended_itself_it_does_not_cite(how: str) -> None:
    """The entry would have the number of one that is never written, or of somebody else's."""
    one = hall("doc", "read-safe")
    lease_id = one.hold("A", "doc:x")
    ending = release("A", "doc:x", leaseId=lease_id) if how == "released" else renew("A", lease_id, mode="read")
    leaf = one.say(batch("A", ending, renew("A", lease_id), isAtomic=True))
    assert own_members(leaf) == {
        "count": 2, "isAtomic": True, "index": 1, "action": "lease.renew",
        "error": f"lease_{how}", "number": leaf.value["number"],
    }  # fmt: skip
    assert list(one.leases()) == [lease_id]
    one.free("A", lease_id)
    ended = len(one.leaves) - 1
    assert one.say(batch("A", renew("A", lease_id), isAtomic=True)).value["endedSeq"] == ended, "what stands is cited"
    assert one.audited() == []


def test_what_was_put_and_taken_away_is_told_once() -> None:
    shelf = Shelf()
    old = Lease("L1", A, A, A, ("repo:a",), "write", 1, 1, 0, 1, 9, 9)
    shelf.records = {lease_key("L1"): old}
    draft = Draft(shelf)
    draft.delete(lease_key("L1"))
    new = old._replace(lease_id="L2")
    draft.put(lease_key("L2"), new)
    assert draft.take_stirred() == [old, new]
    assert draft.take_stirred() == []


def test_of_a_crowd_that_shares_a_name_ones_own_lease_is_found() -> None:
    one = Hall([f"a{n}" for n in range(70)])
    one.say(set_scheme("op", "doc", "read-safe"))
    ids = {name: one.hold(name, "doc:x", mode="read") for name in one.names.values()}
    extended = one.ask_for("a69", "doc:x", mode="read")
    assert (extended.type.split("/")[1], extended.text("leaseId")) == ("lease.extended", ids["a69"])
    assert one.say(renew("a3", ids["a3"])).text("error") == ""
    assert one.say(acquire("a5", "doc:x")).value["conflicts"] == 69


def looks(crowd: Crowd, asker: str, *resources: str) -> tuple[int, int]:
    """Return how many conflicts an acquire meets in a crowd, and how often it asks the view."""
    request = acquire(asker, *resources).signed()
    context = Context(NOW_MS, 20_000, Parameters())
    crowd.asked = 0
    decision = lease.acquire(Draft(crowd), request, context)
    conflicts = decision.members.get("conflicts", 0)
    assert isinstance(conflicts, int)
    return conflicts, crowd.asked


def test_a_plain_request_asks_no_more_in_a_crowd_than_alone() -> None:
    crowd = Crowd()
    alone = looks(crowd, "C", "repo:src/d7/free")
    for n in range(10_000):
        crowd.hold(did_of("AB"[n % 2]), n + 100, f"repo:src/d{n % 100}/f{n}")
    assert looks(crowd, "C", "repo:src/d7/free") == alone and alone[1] < 30
    conflicts, asked = looks(crowd, "C", "repo:src/d7/f7")
    assert conflicts == 1 and asked < 30
    assert looks(crowd, "C", "repo:src/d7/**")[0] == 100
    conflicts, asked = looks(crowd, "C", "repo:**")
    assert conflicts == 10_000 and asked < 10_100, "once for each that it meets"
