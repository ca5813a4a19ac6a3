"""What a refusal tells: who, what exactly, for how long, and when to come back; and what it leaves behind."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from gateway.core.record_keys import edge_key, wait_key
from gateway.core.records import Edge, Waits
from tests.core.book import own_members
from tests.core.hall import Hall
from tests.core.requests import NOW_MS, accept, acquire, add, did_of, set_scheme, transfer
from verifier.entries import HELD_MEMBERS, Leaf

A, B = did_of("A"), did_of("B")
GROUP = set().union(*(set(told.always) | set(told.perhaps) for told in HELD_MEMBERS.values()))


def told(leaf: Leaf) -> dict[str, Any]:
    """Return what a refusal tells beside what was asked."""
    return {name: value for name, value in own_members(leaf).items() if name in GROUP | {"error", "number"}}


def test_a_lease_in_the_way_is_named_with_everything_one_needs_to_know() -> None:
    hall = Hall()
    hall.say(add("op", "A", name="builder-1"))
    lease = hall.hold("A", "repo:a", "repo:app/**", ttlMs=20_000)
    leaf = hall.ask_for("B", "repo:app/main.py", "repo:b", mode="read")
    assert told(leaf) == {
        "error": "lease_held",
        "number": 408,
        "holder": A,
        "holderName": "builder-1",
        "conflict": {
            "leaseId": lease,
            "resource": "repo:app/main.py",
            "heldAs": "repo:app/**",
            "fencingToken": hall.leases()[lease].fencing_token,
            "mode": "write",
            "grantedAtMs": NOW_MS,
            "expiresAtMs": NOW_MS + 20_000,
        },
        "conflicts": 1,
        "stampede": {"admitted": True, "waitMs": 25},
        "retryAfterMs": 25,
    }
    assert hall.audited() == []


def test_of_several_the_one_that_ends_last_is_named_and_all_are_counted() -> None:
    hall = Hall()
    hall.hold("A", "repo:a", ttlMs=20_000)
    hall.hold("B", "repo:b", ttlMs=30_000)
    hall.hold("C", "repo:c", ttlMs=30_000)
    hall.hold("D", "repo:d")
    leaf = hall.ask_for("D", "repo:a", "repo:b", "repo:c", "repo:d")
    assert (told(leaf)["holder"], told(leaf)["conflicts"]) == (B, 3)
    assert hall.audited() == []


def test_the_name_that_is_told_is_one_that_excludes() -> None:
    """Both have `doc:a` to read, which is no trouble; it is `slow:s` that keeps them apart."""
    hall = Hall()
    hall.say(set_scheme("op", "doc", "read-safe"))
    hall.hold("A", "doc:a", "slow:s", mode="read")
    leaf = hall.ask_for("B", "doc:a", "slow:s", mode="read")
    assert told(leaf)["conflict"]["resource"] == "slow:s"
    assert hall.shelf.records[edge_key(B)] == Edge(B, "slow:s", "read", leaf.seq, NOW_MS + 10_000)
    assert hall.audited() == []


def test_waits_double_up_to_a_bound_and_the_ninth_is_not_admitted() -> None:
    """Scenarios 2, 33: the advice spreads those who ask; from the ninth on it reaches to the end of the lease."""
    hall = Hall()
    hall.hold("A", "repo:x", ttlMs=60_000)
    seen = []
    for _ in range(10):
        leaf = hall.ask_for("B", "repo:x")
        seen.append((leaf.value["stampede"], leaf.number("retryAfterMs")))
    waits = [min(800, 25 * 2**n) for n in range(10)]
    assert seen[:8] == [({"admitted": True, "waitMs": wait}, wait) for wait in waits[:8]]
    assert seen[8:] == [({"admitted": False, "waitMs": 800}, 60_000)] * 2
    assert hall.audited() == []


def test_the_count_is_of_one_principal_and_one_name_and_a_pause_or_a_grant_ends_it() -> None:
    hall = Hall()
    lease = hall.hold("A", "repo:x", "repo:y")

    def wait_ms(name: str, resource: str) -> int:
        stampede = hall.ask_for(name, resource).value["stampede"]
        assert isinstance(stampede, dict) and isinstance(stampede["waitMs"], int)
        return stampede["waitMs"]

    assert [wait_ms("B", "repo:x") for _ in range(3)] == [25, 50, 100]
    assert wait_ms("B", "repo:y") == wait_ms("C", "repo:x") == 25
    hall.later(59_999)
    assert wait_ms("B", "repo:x") == 200
    hall.later(60_000)
    assert wait_ms("B", "repo:x") == 25
    hall.free("A", lease)
    mine = hall.hold("B", "repo:x")
    hall.free("B", mine)
    hall.hold("A", "repo:x")
    assert wait_ms("B", "repo:x") == 25
    assert hall.audited() == []


def test_all_that_is_not_now_counts_on_its_own_name() -> None:
    """A lease on the name that excludes, a ticket on the same, a delay and a full line on the first name asked for."""
    hall = Hall(lock_delay_ms=5_000, queue_per_resource=1)
    lease = hall.hold("A", "repo:x", "repo:z")
    ticket = hall.line("C", "repo:x")
    assert hall.ask_for("B", "repo:a", "repo:z").text("error") == "lease_held"
    assert hall.ask_for("B", "repo:a", "repo:x", wait=True).text("error") == "queue_full"
    hall.free("A", lease)
    queued = hall.ask_for("B", "repo:a", "repo:x")
    assert queued.text("error") == "queued" and hall.offered() == [ticket]
    hall.hold("E", "repo:m", ttlMs=1_000)
    hall.later(1_000)
    assert hall.ask_for("B", "repo:a", "repo:m").text("error") == "lock_delayed"
    counts = {one.resource: one.waits for one in hall.shelf.records.values() if isinstance(one, Waits)}
    assert counts == {"repo:z": 1, "repo:a": 2, "repo:x": 1}
    assert hall.shelf.records[wait_key(B, "repo:z")].lease_id == lease  # type: ignore[union-attr]
    assert hall.audited() == []


def test_a_delay_in_the_way_says_until_when_and_which_entry_began_it() -> None:
    hall = Hall(lock_delay_ms=5_000)
    hall.hold("A", "repo:x", ttlMs=1_000)
    hall.hold("C", "repo:y", ttlMs=2_000)
    hall.later(1_000)
    hall.later(1_000)
    ended = hall.leaf(len(hall.leaves) - 1)
    leaf = hall.ask_for("B", "repo:**")
    assert told(leaf) == {
        "error": "lock_delayed",
        "number": 415,
        "holder": did_of("C"),
        "delayUntilMs": hall.t_ms + 5_000,
        "endedSeq": ended.seq,
        "stampede": {"admitted": True, "waitMs": 25},
        "retryAfterMs": 5_000,
    }
    hall.later(4_990)
    assert hall.ask_for("B", "repo:y").number("retryAfterMs") == 25
    assert hall.ask_for("A", "repo:x").type.split("/")[1] == "lease.granted", "the former holder passes"
    assert hall.audited() == []


def test_a_ticket_in_the_way_is_the_first_that_stands_there() -> None:
    hall = Hall()
    lease = hall.hold("A", "repo:x")
    hall.t_ms += 100
    first = hall.line("C", "repo:x")
    hall.line("D", "repo:x")
    hall.free("A", lease)
    hall.t_ms += 900
    leaf = hall.ask_for("B", "repo:a", "repo:x")
    assert told(leaf) == {
        "error": "queued",
        "number": 501,
        "ahead": {
            "ticketId": first,
            "actor": did_of("C"),
            "resource": "repo:x",
            "mode": "write",
            "queuedAtMs": NOW_MS + 100,
        },
        "stampede": {"admitted": True, "waitMs": 25},
        "retryAfterMs": 25,
    }
    for _ in range(8):
        leaf = hall.ask_for("B", "repo:x")
    assert leaf.number("retryAfterMs") == 29_100, "what is left of the offer"
    assert hall.audited() == []


def test_a_full_line_spreads_those_who_come_back_by_their_own_nonce() -> None:
    """Integers only, and nothing but the signed request in it: an auditor reaches the same."""
    hall = Hall(queue_per_resource=1)
    hall.hold("A", "repo:x")
    hall.line("C", "repo:x", giveUpMs=3_600_000)
    seen = []
    for turn in range(9):
        ask = acquire("B", "repo:x", wait=True)
        leaf = hall.say(ask)
        base = min(60_000, 1_000 * 2**turn)
        high, low = sha256(ask.nonce.encode()).digest()[:2]
        assert leaf.number("retryAfterMs") == base + base * (256 * high + low) // 65_536 // 4
        seen.append(leaf.number("retryAfterMs") - base)
        assert leaf.value["stampede"] == {"admitted": turn < 8, "waitMs": min(800, 25 * 2**turn)}
    assert len(set(seen)) > 5 and all(0 <= more < 15_000 for more in seen)
    assert hall.audited() == []


@pytest.mark.parametrize("wait", [False, True])
def test_only_a_plain_refusal_is_a_wait(wait: bool) -> None:
    hall = Hall()
    hall.hold("A", "repo:x")
    hall.hold("B", "repo:y")
    hall.line("A", "repo:y")
    assert hall.ask_for("B", "repo:x", wait=wait).text("error") == "deadlock"
    assert (edge_key(B) in hall.shelf.records) is not wait


def test_the_latest_refusal_is_the_wait() -> None:
    hall = Hall()
    hall.hold("A", "repo:x", "repo:y")
    hall.ask_for("B", "repo:x")
    hall.t_ms += 5
    leaf = hall.ask_for("B", "repo:y", mode="read")
    assert hall.shelf.records[edge_key(B)] == Edge(B, "repo:y", "read", leaf.seq, NOW_MS + 10_005)


def test_a_change_of_mode_is_denied_like_an_acquire() -> None:
    hall = Hall()
    hall.say(set_scheme("op", "doc", "read-safe"))
    lease = hall.hold("A", "doc:a", mode="read")
    hall.hold("B", "doc:a", mode="read")
    leaf = hall.renew("A", lease, mode="write")
    assert set(told(leaf)) == {"error", "number", "holder", "conflict", "conflicts", "stampede", "retryAfterMs"}
    assert (leaf.entry_type.name, leaf.text("holder")) == ("renewal.refused", B)
    assert hall.audited() == []


def test_an_acceptance_is_denied_but_never_a_deadlock() -> None:
    """B waits for A, and A, to whom B's lease is offered, can't have it yet: the way out is not A's."""
    hall = Hall()
    hall.hold("A", "repo:z")
    lease = hall.hold("B", "repo:x")
    hall.hold("B", "repo:x/**", mode="read")
    hall.line("B", "repo:z")
    hall.say(transfer("B", lease, hall.leases()[lease].fencing_token, "A"))
    leaf = hall.say(accept("A", lease))
    assert (leaf.entry_type.name, leaf.text("error"), leaf.text("holder")) == ("acceptance.refused", "lease_held", B)
    assert hall.audited() == []


@pytest.mark.parametrize("error", ["lease_held", "lock_delayed", "queued", "queue_full", "deadlock"])
def test_every_refusal_tells_what_the_table_of_entries_says(error: str) -> None:
    hall = Hall(lock_delay_ms=5_000, queue_per_resource=1)
    hall.hold("A", "repo:x")
    hall.hold("B", "repo:y")
    match error:
        case "lease_held":
            leaf = hall.ask_for("B", "repo:x")
        case "lock_delayed":
            hall.hold("C", "repo:z", ttlMs=1_000)
            hall.later(1_000)
            leaf = hall.ask_for("B", "repo:z")
        case "queued":
            hall.line("D", "repo:y/**")
            leaf = hall.ask_for("C", "repo:y/a")
        case "queue_full":
            hall.line("C", "repo:x")
            leaf = hall.ask_for("D", "repo:x", wait=True)
        case _:
            hall.ask_for("A", "repo:y")
            leaf = hall.ask_for("B", "repo:x")
    members = set(told(leaf)) - {"error", "number"}
    always, perhaps = HELD_MEMBERS[error]
    assert leaf.text("error") == error
    assert set(always) <= members <= {*always, *perhaps}
    assert hall.audited() == []
