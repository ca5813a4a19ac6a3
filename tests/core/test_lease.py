"""Leases in detail: what a grant says, who is in whose way, tokens, ends, and what a refusal advises."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.outcome import Recorded
from gateway.core.parameters import Parameters
from gateway.core.record_keys import wait_key
from gateway.core.records import Lease
from tests.core.book import Book, own_members
from tests.core.requests import NOW_MS, acquire, add, did_of, release, renew
from verifier.entries import Leaf

A, B, C, OP = (did_of(name) for name in ("A", "B", "C", "op"))


def plain(scheme: str) -> dict[str, Any]:
    """What a lease says of a scheme that nobody has set."""
    return {"class": "exclusive", "isFolding": False, "name": scheme}


def error_of(leaf: Leaf) -> str | None:
    error = leaf.value.get("error")
    return error if isinstance(error, str) else None


# --- grants ---------------------------------------------------------------------------------------------------------


def test_a_grant_says_everything_about_the_lease_and_is_kept_so() -> None:
    book = Book()
    leaf = book.entry(NOW_MS, acquire("A", "repo:b", "db:t", "repo:a", ttlMs=5_000, mode="write"))
    assert own_members(leaf) == {
        "resources": ["db:t", "repo:a", "repo:b"],
        "mode": "write",
        "schemes": [plain("db"), plain("repo")],
        "leaseId": "L5",
        "fencingToken": NOW_MS * 1_000,
        "ttlMs": 5_000,
        "expiresAtMs": NOW_MS + 5_000,
        "holdUntilMs": NOW_MS + 3_600_000,
    }
    assert (leaf.actor, leaf.principal, leaf.on_behalf_of, leaf.time_ms) == (A, A, OP, NOW_MS)
    expected = Lease(
        "L5", A, A, OP, ("db:t", "repo:a", "repo:b"), "write",
        NOW_MS * 1_000, 5, NOW_MS, 5_000, NOW_MS + 5_000, NOW_MS + 3_600_000,
    )  # fmt: skip
    assert book.leases() == {"L5": expected}


def test_the_ttl_is_30_seconds_unless_said_otherwise() -> None:
    book = Book()
    assert book.entry(NOW_MS, acquire("A", "repo:x")).value["ttlMs"] == 30_000
    assert book.entry(NOW_MS, renew("A", "L5")).value["ttlMs"] == 30_000


def test_a_set_is_all_or_nothing() -> None:
    """A refused set leaves no trace of its free part."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:m"))
    refused = book.entry(NOW_MS, acquire("B", "repo:l", "repo:m", "repo:n"))
    assert error_of(refused) == "lease_held"
    assert error_of(book.entry(NOW_MS, acquire("C", "repo:l", "repo:n"))) is None
    assert sorted(book.leases()) == ["L5", "L7"]


def test_a_set_of_256_names_is_one_lease_and_ends_as_one() -> None:
    book = Book()
    names = [f"repo:{n}" for n in range(256)]
    book.play(NOW_MS, acquire("A", *names))
    assert error_of(book.entry(NOW_MS, acquire("B", "repo:255"))) == "lease_held"
    book.play(NOW_MS, release("A", *names, leaseId="L5"))
    assert error_of(book.entry(NOW_MS, acquire("B", *names))) is None


def test_a_rename_holds_both_names_also_of_files_that_are_not_there() -> None:
    """Scenario 30 (unarbos/arbos#522): create/create and rename a → b conflict like anything else."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:old", "repo:new"))
    assert [error_of(book.entry(NOW_MS, acquire("B", f"repo:{n}"))) for n in ("old", "new")] == ["lease_held"] * 2


def test_names_are_compared_byte_by_byte() -> None:
    """Scenario 24 (pi-agents#156): case matters, and a prefix is not a parent."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:src/a"))
    for other in ("repo:src/A", "repo:src/a.py", "repo:src", "db:src/a"):
        assert error_of(book.entry(NOW_MS, acquire("B", other))) is None


# --- the actor's own leases ------------------------------------------------------------------------------------------


def test_the_identical_set_extends_in_any_spelling_and_keeps_the_token() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:a", "repo:b", ttlMs=10_000))
    leaf = book.entry(NOW_MS + 4_000, acquire("A", "repo:b", "repo:a", ttlMs=20_000))
    assert leaf.type == "tallystick/lease.extended/1"
    assert own_members(leaf) == {
        "resources": ["repo:a", "repo:b"],
        "mode": "write",
        "schemes": [plain("repo")],
        "leaseId": "L5",
        "fencingToken": NOW_MS * 1_000,
        "ttlMs": 20_000,
        "grantedAtMs": NOW_MS,
        "expiresAtMs": NOW_MS + 24_000,
        "holdUntilMs": NOW_MS + 3_600_000,
        "grantSeq": 5,
    }
    assert book.leases()["L5"].expires_at_ms == NOW_MS + 24_000


@pytest.mark.parametrize("how", ["extend", "renew"])
def test_a_shorter_ttl_never_moves_the_end_back(how: str) -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=60_000))
    ask = acquire("A", "repo:x", ttlMs=1_000) if how == "extend" else renew("A", "L5", ttlMs=1_000)
    leaf = book.entry(NOW_MS + 1, ask)
    assert (leaf.value["ttlMs"], leaf.value["expiresAtMs"]) == (1_000, NOW_MS + 60_000)


def test_own_leases_never_stand_in_ones_way_but_are_other_leases() -> None:
    """Overlapping sets of one actor are leases of their own; each token is higher than the last."""
    book = Book()
    sets = [("repo:a", "repo:b"), ("repo:b", "repo:c"), ("repo:a",), ("repo:a", "repo:b", "repo:c")]
    leaves = [book.entry(NOW_MS, acquire("A", *names)) for names in sets]
    assert [leaf.type for leaf in leaves] == ["tallystick/lease.granted/1"] * 4
    assert [leaf.value["fencingToken"] for leaf in leaves] == [NOW_MS * 1_000 + n for n in range(4)]
    book.play(NOW_MS, release("A", *sets[0], leaseId="L5"))
    assert error_of(book.entry(NOW_MS, acquire("B", "repo:a"))) == "lease_held"
    assert error_of(book.entry(NOW_MS, acquire("B", "repo:b"))) == "lease_held"


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_follow_log_time_and_rise_by_one_within_a_millisecond() -> None:
    """Scenario 11 (ai-memory-mcp#3574): every new holding period has a greater fence."""
    book = Book()
    tokens = [book.entry(NOW_MS, acquire("A", f"repo:{n}")).number("fencingToken") for n in range(3)]
    book.play(NOW_MS, release("A", "repo:0"))
    tokens.append(book.entry(NOW_MS, acquire("B", "repo:0")).number("fencingToken"))
    tokens.append(book.entry(NOW_MS + 1, acquire("A", "repo:3")).number("fencingToken"))
    base = NOW_MS * 1_000
    assert tokens == [base, base + 1, base + 2, base + 3, base + 1_000]


def test_a_renewal_keeps_the_token() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x"))
    leaf = book.entry(NOW_MS + 5_000, renew("A", "L5", ttlMs=40_000))
    assert leaf.type == "tallystick/lease.renewed/1"
    assert (leaf.value["fencingToken"], leaf.value["leaseId"], leaf.value["grantSeq"]) == (NOW_MS * 1_000, "L5", 5)
    assert (leaf.value["grantedAtMs"], leaf.value["expiresAtMs"]) == (NOW_MS, NOW_MS + 45_000)


def test_heartbeats_alone_keep_a_lease_for_five_ttls_and_say_so() -> None:
    """Scenario 5 (gascity#5213): a heartbeat that nobody reads is a placebo; each one moves the end and prints it."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=3_000))
    ends = []
    for beat in range(1, 6):
        t_ms = NOW_MS + beat * 2_900
        ends.append(book.entry(t_ms, renew("A", "L5", at_ms=t_ms, ttlMs=3_000)).value["expiresAtMs"])
    assert ends == [NOW_MS + beat * 2_900 + 3_000 for beat in range(1, 6)]
    assert "lease.expired" not in book.types()


# --- release ---------------------------------------------------------------------------------------------------------


def test_a_release_frees_at_once_and_names_the_lease_it_ended() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x"))
    leaf = book.entry(NOW_MS + 9, release("A", "repo:x", at_ms=NOW_MS))
    assert own_members(leaf) == {
        "resources": ["repo:x"],
        "leaseId": "L5",
        "fencingToken": NOW_MS * 1_000,
        "grantedAtMs": NOW_MS,
        "grantSeq": 5,
    }
    assert error_of(book.entry(NOW_MS + 9, acquire("B", "repo:x"))) is None


def test_repeating_a_finished_release_is_a_success_without_effect() -> None:
    """Scenario L13 (curator#1193): a lost answer to a release costs nothing, though somebody else holds it by now."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x"))
    book.play(NOW_MS, release("A", "repo:x", leaseId="L5"))
    book.play(NOW_MS, acquire("B", "repo:x"))
    before = book.leases()
    leaf = book.entry(NOW_MS, release("A", "repo:x", leaseId="L5"))
    assert leaf.type == "tallystick/release.repeated/1"
    assert own_members(leaf) == {"resources": ["repo:x"], "leaseId": "L5", "endedSeq": 6}
    assert book.leases() == before


def test_a_stale_lease_id_never_ends_the_lease_that_came_after() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=1_000))
    later = NOW_MS + 1_000
    book.play(later, acquire("A", "repo:x"))
    leaf = book.entry(later, release("A", "repo:x", leaseId="L5"))
    assert own_members(leaf) == {
        "resources": ["repo:x"], "leaseId": "L5", "error": "lease_expired", "number": 405, "endedSeq": 6,
    }  # fmt: skip
    assert list(book.leases()) == ["L7"]


@pytest.mark.parametrize(("early_ms", "is_touched"), [(1, False), (0, True)])
def test_a_release_without_id_never_touches_a_lease_granted_after_it_was_signed(
    early_ms: int, is_touched: bool
) -> None:
    """The bound is (created + 1) · 1000, because seconds are all that `created` says (security.md 2)."""
    book = Book()
    ask = release("A", "repo:x", at_ms=NOW_MS)
    granted_at = (ask.created + 1) * 1_000 - 1 + early_ms
    book.play(granted_at, acquire("A", "repo:x"))
    leaf = book.entry(granted_at, ask)
    assert (error_of(leaf) is None) == is_touched
    assert ("L5" in book.leases()) != is_touched


def test_a_release_of_what_another_holds_names_the_holder() -> None:
    book = Book()
    book.play(NOW_MS, acquire("B", "repo:x"))
    without_id = book.entry(NOW_MS, release("A", "repo:x"))
    with_id = book.entry(NOW_MS, release("A", "repo:x", leaseId="L5"))
    held: dict[str, Any] = {"resources": ["repo:x"], "holder": B}
    assert own_members(without_id) == {**held, "error": "not_holder", "number": 407}
    assert own_members(with_id) == {**held, "leaseId": "L5", "error": "lease_not_yours", "number": 403}


def test_how_anothers_lease_ended_is_nobody_elses_business() -> None:
    book = Book()
    book.play(NOW_MS, acquire("B", "repo:x"))
    book.play(NOW_MS, release("B", "repo:x"))
    leaf = book.entry(NOW_MS, renew("A", "L5"))
    assert own_members(leaf) == {"leaseId": "L5", "ttlMs": 30_000, "error": "lease_not_yours", "number": 403}


def test_an_end_is_remembered_for_a_day_and_then_unknown() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x"))
    book.play(NOW_MS, release("A", "repo:x"))
    last, forgotten = NOW_MS + 86_400_000 - 1, NOW_MS + 86_400_000
    assert own_members(book.entry(last, renew("A", "L5", at_ms=last))) == {
        "leaseId": "L5", "ttlMs": 30_000, "error": "lease_released", "number": 404, "endedSeq": 6,
    }  # fmt: skip
    assert error_of(book.entry(forgotten, renew("A", "L5", at_ms=forgotten))) == "lease_unknown"


# --- refusals and their advice ---------------------------------------------------------------------------------------


def test_a_refusal_names_the_holder_the_lease_and_the_wait() -> None:
    """Scenario L47 (terraform#17535): who, since when, until when, and what to do next."""
    book = Book(agents=("B",))
    book.play(NOW_MS, add("op", "A", NOW_MS, name="worker-1"))
    book.play(NOW_MS, acquire("A", "repo:x", "repo:y", ttlMs=9_000))
    leaf = book.entry(NOW_MS + 10, acquire("B", "repo:z", "repo:y", ttlMs=2_000))
    assert own_members(leaf) == {
        "resources": ["repo:y", "repo:z"],
        "mode": "write",
        "ttlMs": 2_000,
        "wait": False,
        "error": "lease_held",
        "number": 408,
        "holder": A,
        "holderName": "worker-1",
        "conflict": {
            "leaseId": "L3",
            "resource": "repo:y",
            "heldAs": "repo:y",
            "fencingToken": NOW_MS * 1_000,
            "mode": "write",
            "grantedAtMs": NOW_MS,
            "expiresAtMs": NOW_MS + 9_000,
        },
        "conflicts": 1,
        "stampede": {"admitted": True, "waitMs": 25},
        "retryAfterMs": 25,
    }


def test_of_several_conflicts_the_latest_end_is_named_then_the_lowest_token() -> None:
    book = Book()
    for name, resource, ttl_ms in (("A", "repo:a", 9_000), ("B", "repo:b", 20_000), ("C", "repo:c", 20_000)):
        book.play(NOW_MS, acquire(name, resource, ttlMs=ttl_ms))
    leaf = book.entry(NOW_MS, acquire("D", "repo:a", "repo:b", "repo:c"))
    assert (leaf.value["holder"], leaf.value["conflicts"]) == (B, 3)
    assert leaf.value["conflict"]["resource"] == "repo:b"  # type: ignore[index, call-overload]


def test_one_lease_in_the_way_on_many_names_is_one_conflict() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:a", "repo:b", "repo:c"))
    leaf = book.entry(NOW_MS, acquire("B", "repo:c", "repo:b"))
    assert leaf.value["conflicts"] == 1
    assert leaf.value["conflict"]["resource"] == "repo:b"  # type: ignore[index, call-overload]


def stampede(leaf: Leaf) -> tuple[bool, int, int]:
    advice = leaf.value["stampede"]
    assert isinstance(advice, dict)
    admitted, wait_ms, retry = advice["admitted"], advice["waitMs"], leaf.value["retryAfterMs"]
    assert isinstance(admitted, bool) and isinstance(wait_ms, int) and isinstance(retry, int)
    return admitted, wait_ms, retry


def test_the_stampede_doubles_to_its_maximum_and_admits_eight() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=60_000))
    seen = [stampede(book.entry(NOW_MS, acquire("B", "repo:x"))) for _ in range(10)]
    waits = [25, 50, 100, 200, 400, 800, 800, 800]
    assert seen == [(True, wait, wait) for wait in waits] + [(False, 800, 60_000)] * 2


def test_who_is_not_admitted_is_sent_past_the_end_of_the_lease() -> None:
    """Scenario 2 (openclaw#3030): the sum of advised waits must reach past the remaining lease."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=60_000))
    for _ in range(8):
        book.play(NOW_MS, acquire("B", "repo:x"))
    for t_ms, retry in ((NOW_MS + 10_000, 50_000), (NOW_MS + 59_500, 800)):
        assert stampede(book.entry(t_ms, acquire("B", "repo:x", at_ms=t_ms))) == (False, 800, retry)


def test_waits_are_counted_per_principal_and_resource_of_the_conflict() -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x"))
    book.play(NOW_MS, acquire("A", "repo:y"))
    asks = [("B", ["repo:x"]), ("B", ["repo:x"]), ("B", ["repo:y"]), ("C", ["repo:x"]), ("B", ["repo:w", "repo:x"])]
    waits = [stampede(book.entry(NOW_MS, acquire(name, *names)))[1] for name, names in asks]
    assert waits == [25, 50, 25, 25, 100]


@pytest.mark.parametrize(("pause_ms", "wait_ms"), [(59_999, 50), (60_000, 25)])
def test_the_count_starts_anew_after_a_minute_without_a_refusal(pause_ms: int, wait_ms: int) -> None:
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=600_000))
    book.play(NOW_MS, acquire("B", "repo:x"))
    t_ms = NOW_MS + pause_ms
    assert stampede(book.entry(t_ms, acquire("B", "repo:x", at_ms=t_ms)))[1] == wait_ms


def test_a_grant_forgets_the_waits_on_its_own_resources_only() -> None:
    book = Book()
    for resource in ("repo:x", "repo:y"):
        book.play(NOW_MS, acquire("A", resource))
        for name in ("B", "C"):
            book.play(NOW_MS, acquire(name, resource))
    book.play(NOW_MS, release("A", "repo:x"))
    book.play(NOW_MS, acquire("B", "repo:x"))
    left = sorted(key for key in book.shelf.records if key.startswith("wait/"))
    assert left == sorted([wait_key(C, "repo:x"), wait_key(B, "repo:y"), wait_key(C, "repo:y")])


def test_a_thousand_waits_are_as_cheap_as_nine() -> None:
    book = Book(parameters=Parameters(stampede_base_ms=1, stampede_max_ms=2**40))
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=3_600_000))
    for _ in range(40):
        leaf = book.entry(NOW_MS, acquire("B", "repo:x"))
    assert stampede(leaf)[1] == 2**32


# --- scenes of the field ---------------------------------------------------------------------------------------------


def test_the_holders_own_ttl_counts_not_the_contenders() -> None:
    """Scenario L23 (kubernetes#47671): the contender asks for 1 s and still waits for the holder's 60 s."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=60_000))
    t_ms = NOW_MS + 59_999
    assert error_of(book.entry(t_ms, acquire("B", "repo:x", at_ms=t_ms, ttlMs=1_000))) == "lease_held"


def test_the_first_contender_of_a_long_dead_lease_gets_it_at_once() -> None:
    """Scenario L20 (awslabs lock-client#42): nobody waits another full ttl."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=1_000))
    t_ms = NOW_MS + 500_000
    leaf = book.entry(t_ms, acquire("B", "repo:x", at_ms=t_ms))
    assert error_of(leaf) is None
    assert book.types(-2) == ["lease.expired", "lease.granted"]


def test_a_renewal_at_nine_tenths_of_the_ttl_holds() -> None:
    """Scenario 1 (meshcore-firmware#373): a lease is live until its stated end."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=10_000))
    t_ms = NOW_MS + 9_000
    assert error_of(book.entry(t_ms, renew("A", "L5", at_ms=t_ms, ttlMs=10_000))) is None
    t_ms = NOW_MS + 18_999
    assert error_of(book.entry(t_ms, acquire("B", "repo:x", at_ms=t_ms))) == "lease_held"


def test_no_renewal_brings_an_ended_lease_back() -> None:
    """Scenario L24 (kubernetes#44887): after a definite failure no later renewal of the same grant succeeds."""
    book = Book()
    book.play(NOW_MS, acquire("A", "repo:x", ttlMs=1_000))
    for t_ms in (NOW_MS + 1_000, NOW_MS + 2_000, NOW_MS + 3_000):
        assert error_of(book.entry(t_ms, renew("A", "L5", at_ms=t_ms))) == "lease_expired"
    assert book.leases() == {}


def test_a_lease_says_what_call_is_missing_when_renewed_before_it_is_acquired() -> None:
    """Scenario 6 (gascity#5516)."""
    book = Book()
    assert error_of(book.entry(NOW_MS, renew("A", "L5"))) == "lease_unknown"


def test_two_agents_on_one_resource_in_one_batch_exactly_one_is_granted() -> None:
    book = Book()
    batch = book.run(NOW_MS, *(acquire(name, "repo:x") for name in "DCBA"))
    assert batch.answers == (Recorded(5, 200), Recorded(6, 409), Recorded(7, 409), Recorded(8, 409))
    assert [lease.holder for lease in book.leases().values()] == [did_of("D")]
