"""The wait graph: a deadlock is told with its whole cycle, exactly when there is one by the order of the protocol."""

from __future__ import annotations

from typing import Any

import pytest

from tests.verifier.maker import ALICE, BOB, CAROL, Json, Key
from tests.verifier.scene import FIRST, Found, Scene, Tell, found

A, B = FIRST, FIRST + 1  # the leases of ALICE and BOB


def each_holds_one(ledger: Scene) -> None:
    """ALICE holds lock:a, BOB holds lock:b."""
    ledger.grant(ALICE, "lock:a")
    ledger.grant(BOB, "lock:b")


def row(ledger: Scene, key: Key, name: str, lease: int | None = None, **more: Any) -> Json:
    """A row of a cycle: `key` waits for `name`, that `lease` holds."""
    token = {} if lease is None else {"fencingToken": ledger.value(lease)["fencingToken"]}
    return {"actor": key.did, "resource": name, "mode": "write", **token, **more}


def circle(*rows: Json) -> Json:
    """What a deadlock tells of its cycle."""
    names = sorted({one["resource"] for one in rows})
    return {"waitingOn": rows[1]["resource"], "cycle": list(rows), "acquireOrder": names}


# --- what is allowed ---


def two_plain_refusals(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))
    told = circle(row(ledger, BOB, "lock:a", A), row(ledger, ALICE, "lock:b", B))
    ledger.deny(BOB, "deadlock", "lock:a", **ledger.held(A, "lock:a"), **told)


def a_plain_edge_ends(ledger: Scene) -> None:
    """By time; by a grant; by a release."""
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))
    ledger.time_ms += 10_000
    ledger.deny(BOB, "lease_held", "lock:a", **ledger.held(A, "lock:a"))
    ledger.grant(BOB, "lock:c")
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b", waits=1))
    other = ledger.grant(ALICE, "lock:d")
    ledger.deny(BOB, "lease_held", "lock:a", **ledger.held(A, "lock:a", waits=1))
    ledger.release(ALICE, other)
    ledger.deny(ALICE, "deadlock", "lock:b", **ledger.held(B, "lock:b", waits=2), **_back(ledger))


def _back(ledger: Scene) -> Json:
    return circle(row(ledger, ALICE, "lock:b", B), row(ledger, BOB, "lock:a", A))


def two_tickets(ledger: Scene) -> None:
    each_holds_one(ledger)
    ticket = ledger.queue(ALICE, "lock:b")
    told = circle(row(ledger, BOB, "lock:a", A), row(ledger, ALICE, "lock:b", B, ticketId=f"T{ticket}"))
    ledger.deny(BOB, "deadlock", "lock:a", wait=True, **ledger.held(A, "lock:a"), **told)
    own = f"T{len(ledger.leaves)}"
    rows = [row(ledger, BOB, "lock:a", A, ticketId=own), row(ledger, ALICE, "lock:b", B, ticketId=f"T{ticket}")]
    ledger.line(BOB, "lock:a", on_deadlock="wait", cycle=rows)


def a_plain_edge_keeps_nobody_out_of_a_line(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))
    ledger.queue(BOB, "lock:a")


def behind_somebody_in_line(ledger: Scene) -> None:
    """BOB holds b and waits for c behind ALICE, who waits for b: soft, so he may wait."""
    ledger.grant(ALICE, "lock:a")
    held = ledger.grant(BOB, "lock:b")
    ledger.grant(CAROL, "lock:c")
    first = ledger.queue(ALICE, "lock:b", "lock:c")
    own = f"T{len(ledger.leaves)}"
    rows = [row(ledger, BOB, "lock:c", ticketId=own, aheadId=f"T{first}")]
    rows.append(row(ledger, ALICE, "lock:b", held, ticketId=f"T{first}"))
    ledger.line(BOB, "lock:c", position=2, softCycle=True, cycle=rows)


def a_ring_of_others(ledger: Scene) -> None:
    """ALICE and BOB wait for each other; CAROL, who waits for ALICE, closes nothing."""
    each_holds_one(ledger)
    ledger.grant(CAROL, "lock:c")
    ticket = ledger.queue(ALICE, "lock:b")
    own = f"T{len(ledger.leaves)}"
    rows = [row(ledger, BOB, "lock:a", A, ticketId=own), row(ledger, ALICE, "lock:b", B, ticketId=f"T{ticket}")]
    ledger.line(BOB, "lock:a", on_deadlock="wait", cycle=rows)
    ledger.deny(CAROL, "lease_held", "lock:a", **ledger.held(A, "lock:a"))


def two_upgraders(ledger: Scene) -> None:
    ledger.set_scheme("doc", "read-safe")
    one, two = ledger.grant(ALICE, "doc:a", mode="read"), ledger.grant(BOB, "doc:a", mode="read")
    ledger.renewal(ALICE, one, "lease_held", "write", **ledger.held(two, "doc:a"))
    told = circle(row(ledger, BOB, "doc:a", one), row(ledger, ALICE, "doc:a", two))
    ledger.renewal(BOB, two, "deadlock", "write", **ledger.held(one, "doc:a"), **told)


def bounded(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", searchBounded=True, **ledger.held(B, "lock:b"))


def who_holds_nothing_closes_nothing(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(CAROL, "lease_held", "lock:a", **ledger.held(A, "lock:a"))
    ledger.grant(CAROL, "lock:c")
    ledger.release(CAROL, len(ledger.leaves) - 1)
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))


def an_offer_that_would_close_a_cycle_passes_on(ledger: Scene) -> None:
    """CAROL lets c go. ALICE is first for it, but waits for BOB too, who waits for c: so it is offered to him."""
    each_holds_one(ledger)
    third = ledger.grant(CAROL, "lock:c")
    first = ledger.queue(ALICE, "lock:c")
    other = ledger.queue(ALICE, "lock:b")
    own = f"T{len(ledger.leaves)}"
    rows = [row(ledger, BOB, "lock:c", ticketId=own, aheadId=f"T{first}")]
    rows.append(row(ledger, ALICE, "lock:b", B, ticketId=f"T{other}"))
    second = ledger.line(BOB, "lock:c", position=2, softCycle=True, cycle=rows)
    ledger.release(CAROL, third)
    ledger.offer(second)
    ledger.deny(CAROL, "queued", "lock:c", **ledger.ahead(first, "lock:c"))
    ledger.cancel(ALICE, other)
    ledger.release(BOB, ledger.claim(BOB, second))
    ledger.offer(first)


ALLOWED: list[tuple[Tell, dict[str, int]]] = [
    (two_plain_refusals, {}),
    (a_plain_edge_ends, {}),
    (two_tickets, {}),
    (a_plain_edge_keeps_nobody_out_of_a_line, {}),
    (behind_somebody_in_line, {}),
    (a_ring_of_others, {}),
    (two_upgraders, {}),
    (bounded, {"deadlockNodes": 1}),
    (who_holds_nothing_closes_nothing, {}),
    (an_offer_that_would_close_a_cycle_passes_on, {}),
]


@pytest.mark.parametrize(("tell", "parameters"), ALLOWED, ids=[tell.__name__ for tell, _ in ALLOWED])
def test_what_waits_may_do(tell: Tell, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == []


# --- lies ---


def cycle_overlooked(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))
    ledger.deny(BOB, "lease_held", "lock:a", **ledger.held(A, "lock:a"))


def cycle_overlooked_in_line(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.queue(ALICE, "lock:b")
    ledger.queue(BOB, "lock:a")


def soft_cycle_overlooked(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.grant(BOB, "lock:b")
    ledger.grant(CAROL, "lock:c")
    ledger.queue(ALICE, "lock:b", "lock:c")
    ledger.queue(BOB, "lock:c", position=2)


def cycle_made_up(ledger: Scene) -> None:
    each_holds_one(ledger)
    told = circle(row(ledger, BOB, "lock:a", A), row(ledger, ALICE, "lock:b", B))
    ledger.deny(BOB, "deadlock", "lock:a", **ledger.held(A, "lock:a"), **told)


def cycle_of_dead_tickets(ledger: Scene) -> None:
    """ALICE's ticket is past its deadline, and nobody has asked for its names since."""
    each_holds_one(ledger)
    ledger.time_ms += 10_000
    ledger.renew(ALICE, A, 60_000)
    ticket = ledger.line(ALICE, "lock:b", give_up_ms=5_000)
    ledger.renew(BOB, B, 60_000)
    ledger.time_ms += 5_000
    told = circle(row(ledger, BOB, "lock:a", A), row(ledger, ALICE, "lock:b", B, ticketId=f"T{ticket}"))
    conflict = {**ledger.held(A, "lock:a")["conflict"], "expiresAtMs": ledger.value(8)["expiresAtMs"]}
    ledger.deny(BOB, "deadlock", "lock:a", **{**ledger.held(A, "lock:a"), "conflict": conflict}, **told)


def cycle_of_an_old_refusal(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))
    ledger.time_ms += 10_000
    told = circle(row(ledger, BOB, "lock:a", A), row(ledger, ALICE, "lock:b", B))
    ledger.deny(BOB, "deadlock", "lock:a", **ledger.held(A, "lock:a"), **told)


def cycle_with_another_token(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))
    told = circle(row(ledger, BOB, "lock:a", A), row(ledger, ALICE, "lock:b", A))
    ledger.deny(BOB, "deadlock", "lock:a", **ledger.held(A, "lock:a"), **told)


def cycle_of_the_second_choice(ledger: Scene) -> None:
    """BOB asks for a and c of two holders who both wait for him; the lower token is told, and here it is not."""
    each_holds_one(ledger)
    third = ledger.grant(CAROL, "lock:c")
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))
    ledger.deny(CAROL, "lease_held", "lock:b", **ledger.held(B, "lock:b"))
    told = circle(row(ledger, BOB, "lock:c", third), row(ledger, CAROL, "lock:b", B))
    ledger.deny(BOB, "deadlock", "lock:a", "lock:c", **ledger.held(A, "lock:a", conflicts=2), **told)


def bounded_though_it_was_not(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", searchBounded=True, **ledger.held(B, "lock:b"))


def bound_not_told(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))


def kept_out_of_a_line_by_a_plain_edge(ledger: Scene) -> None:
    each_holds_one(ledger)
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(B, "lock:b"))
    told = circle(row(ledger, BOB, "lock:a", A), row(ledger, ALICE, "lock:b", B))
    ledger.deny(BOB, "deadlock", "lock:a", wait=True, **ledger.held(A, "lock:a"), **told)


def offered_though_it_closes_a_cycle(ledger: Scene) -> None:
    each_holds_one(ledger)
    third = ledger.grant(CAROL, "lock:c")
    first = ledger.queue(ALICE, "lock:c")
    other = ledger.queue(ALICE, "lock:b")
    rows = [row(ledger, BOB, "lock:c", ticketId=f"T{len(ledger.leaves)}", aheadId=f"T{first}")]
    rows.append(row(ledger, ALICE, "lock:b", B, ticketId=f"T{other}"))
    ledger.line(BOB, "lock:c", position=2, softCycle=True, cycle=rows)
    ledger.release(CAROL, third)
    ledger.offer(first)


def waited_out_without_asking(ledger: Scene) -> None:
    each_holds_one(ledger)
    ticket = ledger.queue(ALICE, "lock:b")
    own = f"T{len(ledger.leaves)}"
    rows = [row(ledger, BOB, "lock:a", A, ticketId=own), row(ledger, ALICE, "lock:b", B, ticketId=f"T{ticket}")]
    ledger.line(BOB, "lock:a", cycle=rows)


def waiting_on_something_else(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    held = ledger.grant(BOB, "lock:b", "lock:c")
    told = ledger.held(held, "lock:b")
    ledger.deny(ALICE, "lease_held", "lock:b", "lock:c", **told)
    rows = [row(ledger, BOB, "lock:a", A), row(ledger, ALICE, "lock:c", held)]
    ledger.deny(BOB, "deadlock", "lock:a", **ledger.held(A, "lock:a"), **circle(*rows))


LIES: list[tuple[Tell, Found, dict[str, int]]] = [
    (cycle_overlooked, [(9, "refusal_wrong")], {}),
    (cycle_overlooked_in_line, [(9, "cycle_wrong")], {}),
    (soft_cycle_overlooked, [(10, "cycle_wrong")], {}),
    (cycle_made_up, [(8, "refusal_wrong")], {}),
    (cycle_of_dead_tickets, [(11, "refusal_wrong")], {}),
    (cycle_of_an_old_refusal, [(9, "refusal_wrong")], {}),
    (cycle_with_another_token, [(9, "cycle_wrong")], {}),
    (cycle_of_the_second_choice, [(11, "cycle_wrong")], {}),
    (bounded_though_it_was_not, [(8, "cycle_wrong")], {}),
    (bound_not_told, [(8, "cycle_wrong")], {"deadlockNodes": 1}),
    (kept_out_of_a_line_by_a_plain_edge, [(9, "refusal_wrong")], {}),
    (offered_though_it_closes_a_cycle, [(13, "cycle_wrong")], {}),
    (waited_out_without_asking, [(9, "body_differs")], {}),
    (waiting_on_something_else, [(9, "cycle_wrong")], {}),
]


@pytest.mark.parametrize(("tell", "wanted", "parameters"), LIES, ids=[one[0].__name__ for one in LIES])
def test_a_lie_about_a_cycle_is_found_at_its_entry(tell: Tell, wanted: Found, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == wanted


def test_a_cycle_longer_than_may_be_told_is_none() -> None:
    """With names of a thousand bytes three rows are too many."""

    def tell(ledger: Scene) -> None:
        names = [f"lock:{'x/' * 20}{letter * 250}/{letter * 250}/{letter * 250}" for letter in "abc"]
        leases = [ledger.grant(key, name) for key, name in zip((ALICE, BOB, CAROL), names, strict=True)]
        for index, key in ((1, ALICE), (2, BOB)):
            ledger.deny(key, "lease_held", names[index], **ledger.held(leases[index], names[index]))
        told = ledger.held(leases[0], names[0])
        ledger.deny(CAROL, "lease_held", names[0], searchBounded=True, **told)

    assert found(tell) == []
