"""Batches as the auditor sees them: a header, then all answers, each re-decided; a refused one is rehearsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.verifier.judging import audit, pins
from tests.verifier.maker import ALICE, BOB, CAROL, SESSION, TRIAL, TRIAL_AGENT, Json, Key
from tests.verifier.scene import FIRST, NUMBERS, Found, Scene, Tell, edit, found, scene

HOUR_MS = 3_600_000
TWO = FIRST + 2  # the entry after a header and one answer


def ask(name: str, **more: Any) -> Json:
    return {"action": "lease.acquire", "resource": name, **more}


def renew(lease: int, **more: Any) -> Json:
    return {"action": "lease.renew", "leaseId": f"L{lease}", **more}


def let_go(name: str, **more: Any) -> Json:
    return {"action": "lease.release", "resource": name, **more}


def granted(ledger: Scene, header: int, name: str, **over: Any) -> int:
    return ledger.answer("lease.granted", header, ledger.new_lease(name), **over)


def pair(ledger: Scene, **over: Any) -> int:
    """A header for two names."""
    return ledger.batch(ALICE, ask("lock:a"), ask("lock:b"), **over)


def undone(ledger: Scene, key: Key, index: int, error: str, *commands: Json, **told: Any) -> int:
    """A `batch.refused` for the command at `index`."""
    body = {"commands": list(commands), "isAtomic": True}
    said = {"count": len(commands), "isAtomic": True, "index": index, "action": commands[index]["action"]}
    said |= {"error": error, "number": NUMBERS[error], **told}
    return ledger.decision("batch.refused", key, "batch.submit", body, said)


# --- where answers stand ---


def one_missing(ledger: Scene) -> None:
    granted(ledger, pair(ledger), "lock:a")
    ledger.grant(BOB, "lock:c")


def one_missing_at_the_end(ledger: Scene) -> None:
    granted(ledger, pair(ledger), "lock:a")


def one_index_left_out(ledger: Scene) -> None:
    header = pair(ledger)
    granted(ledger, header, "lock:a", change=lambda leaf: leaf["request"].update(index=1))


def cited_twice(ledger: Scene) -> None:
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    granted(ledger, header, "lock:b", change=lambda leaf: leaf["request"].update(index=0))


def swapped(ledger: Scene) -> None:
    """Each says where it stands, and answers the other command."""
    header = pair(ledger)
    granted(ledger, header, "lock:b")
    granted(ledger, header, "lock:a")


def one_too_many(ledger: Scene) -> None:
    header = pair(ledger)
    for name in ("lock:a", "lock:b", "lock:c"):
        granted(ledger, header, name)


def from_afar(ledger: Scene) -> None:
    """A command of a batch that was answered, cited once more, at the place that its index gives."""
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    granted(ledger, header, "lock:b")
    ledger.grant(BOB, "lock:c")
    granted(ledger, header, "lock:d")


def of_no_batch(ledger: Scene) -> None:
    seq = ledger.grant(BOB, "lock:c")
    granted(ledger, seq, "lock:a", change=edit(actor=ALICE.did, principal=ALICE.did))


def something_between(ledger: Scene) -> None:
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    ledger.grant(BOB, "lock:c")
    granted(ledger, header, "lock:b")


def an_expiry_between(ledger: Scene) -> None:
    old = ledger.grant(BOB, "lock:b", ttl_ms=1_000)
    ledger.time_ms += 1_000
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    ledger.expire(old)
    granted(ledger, header, "lock:b")


def an_offer_between(ledger: Scene) -> None:
    """Who waits for what the first command frees is served after the last."""
    lease = ledger.grant(ALICE, "lock:z")
    ticket = ledger.queue(BOB, "lock:z")
    header = ledger.batch(ALICE, let_go("lock:z"), ask("lock:b"))
    ledger.answer("lease.released", header, ledger.released(ALICE, lease))
    ledger.offer(ticket)
    granted(ledger, header, "lock:b")


def no_offer_after_the_last(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:z")
    ledger.queue(BOB, "lock:z")
    header = ledger.batch(ALICE, let_go("lock:z"), ask("lock:b"))
    ledger.answer("lease.released", header, ledger.released(ALICE, lease))
    granted(ledger, header, "lock:b")
    ledger.grant(CAROL, "lock:c")


# --- what answers say ---


def at_another_time(ledger: Scene) -> None:
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    ledger.time_ms += 1
    granted(ledger, header, "lock:b")


def by_another(ledger: Scene) -> None:
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    granted(ledger, header, "lock:b", change=edit(actor=BOB.did, principal=BOB.did))


def another_name(ledger: Scene) -> None:
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    granted(ledger, header, "lock:c")


def another_action(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:z")
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    ledger.answer("lease.renewed", header, ledger.renewed(lease))


def of_another_count(ledger: Scene) -> None:
    header = pair(ledger, change=edit(count=1))
    granted(ledger, header, "lock:a")


def refused_in_an_atomic_batch(ledger: Scene) -> None:
    held = ledger.grant(BOB, "lock:b")
    header = pair(ledger, is_atomic=True)
    granted(ledger, header, "lock:a")
    told = ledger.held(held, "lock:b")
    asked = {"resources": ["lock:b"], "mode": "write", "ttlMs": 30_000, "wait": False}
    ledger.answer("lease.refused", header, {**asked, "error": "lease_held", "number": 408, **told})


def granted_though_held(ledger: Scene) -> None:
    ledger.grant(BOB, "lock:b")
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    granted(ledger, header, "lock:b")


def granted_anew_within_a_batch(ledger: Scene) -> None:
    """The second command meets what the first has taken."""
    header = ledger.batch(ALICE, ask("lock:a"), ask("lock:a"))
    granted(ledger, header, "lock:a")
    granted(ledger, header, "lock:a")


def released_unseen(ledger: Scene) -> None:
    """Without a lease id none ends that was granted after the batch was signed."""
    ledger.time_ms += 1_000
    lease = ledger.grant(ALICE, "lock:a")
    signed_s = ledger.time_ms // 1_000 - 1
    header = ledger.batch(ALICE, let_go("lock:a"), created=signed_s, anchor_size=FIRST)
    ledger.answer("lease.released", header, ledger.released(ALICE, lease))


def overdue_before_the_header(ledger: Scene) -> None:
    ledger.grant(BOB, "lock:b", ttl_ms=1_000)
    ledger.time_ms += 1_000
    header = pair(ledger)
    granted(ledger, header, "lock:a")
    granted(ledger, header, "lock:b")


def outside_the_scope(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, resources=["lock:a"])
    header = ledger.batch(SESSION, ask("lock:a"), ask("lock:b"))
    granted(ledger, header, "lock:a")
    granted(ledger, header, "lock:b")


def idle_end_left_out(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    header = ledger.batch(SESSION, ask("lock:a"))
    granted(ledger, header, "lock:a", change=edit(endsIfIdleAtMs=ledger.time_ms + 1))


def trial_used_up(ledger: Scene) -> None:
    """Each answer counts, and the header."""
    ledger.issue(TRIAL, "trial")
    ledger.enrol(TRIAL_AGENT, TRIAL)
    name = f"trial:{TRIAL_AGENT.did}"
    header = ledger.batch(TRIAL_AGENT, *(ask(f"{name}/{n}", ttlMs=30_000) for n in range(3)))
    for n in range(3):
        granted(ledger, header, f"{name}/{n}")


def nonce_again(ledger: Scene) -> None:
    for name in ("lock:a", "lock:b"):
        granted(ledger, ledger.batch(ALICE, ask(name), nonce="n" * 22), name)


# --- refused as a whole ---


def refused_at_an_earlier_index(ledger: Scene) -> None:
    held = ledger.grant(BOB, "lock:b")
    undone(ledger, ALICE, 0, "lease_held", ask("lock:b"), ask("lock:b"), **ledger.held(held, "lock:b"))
    undone(ledger, ALICE, 1, "lease_held", ask("lock:b"), ask("lock:b"), **ledger.held(held, "lock:b"))


def refused_though_all_would_pass(ledger: Scene) -> None:
    held = ledger.grant(BOB, "lock:c")
    undone(ledger, ALICE, 1, "lease_held", ask("lock:a"), ask("lock:b"),
           **{**ledger.held(held, "lock:c"), "conflict": ledger.conflict(held, "lock:b")})  # fmt: skip


def refused_for_another_reason(ledger: Scene) -> None:
    ledger.grant(BOB, "lock:b")
    undone(ledger, ALICE, 1, "too_many_held", ask("lock:a"), ask("lock:b"))


def refused_with_another_conflict(ledger: Scene) -> None:
    held = ledger.grant(BOB, "lock:b")
    told = ledger.held(held, "lock:b", conflicts=2)
    undone(ledger, ALICE, 1, "lease_held", ask("lock:a"), ask("lock:b"), **told)


def refused_by_what_was_undone(ledger: Scene) -> None:
    """The batch took nothing in the end, so nothing of it is in anybody's way."""
    held = ledger.grant(BOB, "lock:b")
    undone(ledger, ALICE, 1, "lease_held", ask("lock:a"), ask("lock:b"), **ledger.held(held, "lock:b"))
    ledger.refuse(CAROL, held, "lock:a", change=edit(conflict=ledger.conflict(held, "lock:a", "lock:b")))


def refused_as_over_though_it_lives(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "lock:a")
    undone(ledger, ALICE, 1, "lease_expired", ask("lock:b"), renew(lease))


LIES: list[tuple[Tell, Found, dict[str, int]]] = [
    (one_missing, [(8, "batch_broken")], {}),
    (one_missing_at_the_end, [(TWO - 1, "batch_broken")], {}),
    (one_index_left_out, [(7, "leaf_malformed")], {}),
    (cited_twice, [(8, "leaf_malformed")], {}),
    (swapped, [(7, "body_differs"), (8, "body_differs")], {}),
    (one_too_many, [(9, "batch_afar")], {}),
    (from_afar, [(10, "batch_afar")], {}),
    (of_no_batch, [(7, "batch_afar")], {}),
    (something_between, [(8, "batch_broken"), (9, "batch_afar")], {}),
    (an_expiry_between, [(7, "expiry_missing"), (9, "batch_broken"), (10, "batch_afar")], {}),
    (an_offer_between, [(10, "batch_broken"), (11, "batch_afar")], {}),
    (no_offer_after_the_last, [(11, "offer_missing")], {}),
    (at_another_time, [(8, "batch_differs")], {}),
    (by_another, [(8, "batch_differs")], {}),
    (another_name, [(8, "body_differs")], {}),
    (another_action, [(9, "body_differs")], {}),
    (of_another_count, [(6, "body_differs")], {}),
    (refused_in_an_atomic_batch, [(9, "batch_refusal_due")], {}),
    (granted_though_held, [(9, "double_grant")], {}),
    (granted_anew_within_a_batch, [(8, "not_extended")], {}),
    (released_unseen, [(8, "released_unseen")], {}),
    (overdue_before_the_header, [(7, "expiry_missing")], {}),
    (outside_the_scope, [(9, "outside_scope")], {}),
    (idle_end_left_out, [(8, "idle_wrong")], {}),
    (trial_used_up, [(11, "trial_used_up")], {"trialDecisions": 3}),
    (nonce_again, [(8, "nonce_reused")], {}),
    (refused_at_an_earlier_index, [(8, "refusal_wrong")], {}),
    (refused_though_all_would_pass, [(7, "refusal_wrong")], {}),
    (refused_for_another_reason, [(7, "refusal_wrong")], {}),
    (refused_with_another_conflict, [(7, "conflict_wrong")], {}),
    (refused_by_what_was_undone, [(8, "leaf_malformed")], {}),
    (refused_as_over_though_it_lives, [(7, "refusal_wrong")], {}),
]


@pytest.mark.parametrize(("tell", "wanted", "parameters"), LIES, ids=[row[0].__name__ for row in LIES])
def test_a_lie_about_a_batch_is_found_at_its_entry(tell: Tell, wanted: Found, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == wanted


# --- what only looks like a lie ---


def a_mixed_batch(ledger: Scene) -> None:
    """Each command is decided after those before it: renewed, refused, released, and taken again."""
    old = ledger.grant(ALICE, "lock:a")
    held = ledger.grant(BOB, "lock:b")
    ledger.time_ms += 1_000
    commands = (renew(old), ask("lock:b"), let_go("lock:a", leaseId=f"L{old}"), ask("lock:a"), let_go("lock:a"))
    header = ledger.batch(ALICE, *commands)
    ledger.answer("lease.renewed", header, ledger.renewed(old))
    asked = {"resources": ["lock:b"], "mode": "write", "ttlMs": 30_000, "wait": False}
    told = ledger.held(held, "lock:b")
    ledger.answer("lease.refused", header, {**asked, "error": "lease_held", "number": 408, **told})
    ledger.answer("lease.released", header, ledger.released(ALICE, old))
    last = granted(ledger, header, "lock:a")
    ledger.answer("lease.released", header, ledger.released(ALICE, last))
    ledger.grant(CAROL, "lock:a")


def settled_after_the_last(ledger: Scene) -> None:
    """What one command frees and the next takes again is offered to nobody."""
    one, two = ledger.grant(ALICE, "lock:a"), ledger.grant(ALICE, "lock:b")
    first, second = ledger.queue(BOB, "lock:a"), ledger.queue(CAROL, "lock:b")
    header = ledger.batch(ALICE, let_go("lock:b"), let_go("lock:a"))
    ledger.answer("lease.released", header, ledger.released(ALICE, two))
    ledger.answer("lease.released", header, ledger.released(ALICE, one))
    ledger.offer(first)
    ledger.offer(second)


def one_that_failed(ledger: Scene) -> None:
    """An error in one command is its answer; the others are decided."""
    header = pair(ledger)
    failed = {"action": "lease.acquire", "error": "decision_failed", "number": 901}
    ledger.answer("decision.failed", header, failed)
    granted(ledger, header, "lock:b")


def heard_by_its_batch(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.time_ms += 119_999
    header = ledger.batch(SESSION, ask("lock:a", ttlMs=HOUR_MS))
    lease = ledger.answer("lease.granted", header, ledger.new_lease("lock:a", ttl_ms=HOUR_MS))
    ledger.time_ms += 120_000
    ledger.returned(lease, ledger.end_session(SESSION, "idle", leases=1))


def what_a_refused_batch_leaves(ledger: Scene) -> None:
    """Nothing: no lease, token, trust, ending or count. What it would have ended, extended or changed lives on."""
    held = ledger.grant(BOB, "lock:b", ttl_ms=HOUR_MS)
    old = ledger.grant(ALICE, "lock:a")
    kept = ledger.grant(ALICE, "lock:k")
    end_ms = ledger.time_ms + 30_000
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(held, "lock:b"))
    ledger.time_ms += 2_000
    commands = (ask("lock:c"), renew(kept), let_go("lock:a"), ask("lock:a"), let_go("lock:c"), ask("lock:b"))
    refused = undone(ledger, ALICE, 5, "lease_held", *commands, **ledger.held(held, "lock:b", waits=1))
    ledger.renewal(ALICE, refused + 1, "lease_unknown")  # the number that its first lease would have had
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(held, "lock:b", waits=1))
    ledger.release(ALICE, old)
    ledger.grant(CAROL, "lock:c")
    ledger.time_ms = end_ms
    ledger.expire(kept)


def still_waiting(ledger: Scene) -> None:
    """A grant would have ended the wait for what refused its actor before; this one was undone: Bob meets a circle."""
    own, other = ledger.grant(ALICE, "lock:a"), ledger.grant(BOB, "lock:b")
    ledger.deny(ALICE, "lease_held", "lock:b", **ledger.held(other, "lock:b"))
    undone(ledger, ALICE, 1, "lease_held", ask("lock:c"), ask("lock:b"), **ledger.held(other, "lock:b", waits=1))
    cycle = [
        {"actor": key.did, "resource": name, "mode": "write", "fencingToken": ledger.value(lease)["fencingToken"]}
        for key, name, lease in ((BOB, "lock:a", own), (ALICE, "lock:b", other))
    ]
    told: Json = {"waitingOn": "lock:b", "cycle": cycle, "acquireOrder": ["lock:a", "lock:b"]}
    ledger.deny(BOB, "deadlock", "lock:a", **ledger.held(own, "lock:a"), **told)


def refusals_still_counted(ledger: Scene) -> None:
    """A lease that was undone is no grant, so what was counted before it counts on."""
    first, held = ledger.grant(BOB, "lock:a"), ledger.grant(BOB, "lock:b")
    ledger.deny(ALICE, "lease_held", "lock:a", **ledger.held(first, "lock:a"))
    ledger.release(BOB, first)
    undone(ledger, ALICE, 1, "lease_held", ask("lock:a"), ask("lock:b"), **ledger.held(held, "lock:b"))
    again = ledger.grant(BOB, "lock:a")
    ledger.deny(ALICE, "lease_held", "lock:a", **ledger.held(again, "lock:a", waits=1))


def refused_for_what_it_did_itself(ledger: Scene) -> None:
    """The commands before are carried out: with the first name it holds too many for the second.

    An end that was undone is no entry, so none is named.
    """
    undone(ledger, ALICE, 1, "too_many_held", ask("lock:a"), ask("lock:b"))
    old = ledger.grant(ALICE, "lock:z")
    undone(ledger, ALICE, 1, "lease_changed", renew(old, mode="read"), renew(old))
    undone(ledger, ALICE, 1, "not_holder", let_go("lock:z"), let_go("lock:z"))


def refused_as_failed(ledger: Scene) -> None:
    """Nobody can tell whether a decision had to fail."""
    body = {"commands": [ask("lock:a")], "isAtomic": True}
    said = {"count": 1, "isAtomic": True, "index": 0, "action": "lease.acquire"}
    said |= {"error": "decision_failed", "number": 901}
    ledger.decision("batch.refused", ALICE, "batch.submit", body, said)


FINE: list[tuple[Tell, dict[str, int]]] = [
    (a_mixed_batch, {}),
    (settled_after_the_last, {}),
    (one_that_failed, {}),
    (heard_by_its_batch, {}),
    (what_a_refused_batch_leaves, {}),
    (still_waiting, {}),
    (refusals_still_counted, {}),
    (refused_for_what_it_did_itself, {"heldPerPrincipal": 1}),
    (refused_as_failed, {}),
]


@pytest.mark.parametrize(("tell", "parameters"), FINE, ids=[row[0].__name__ for row in FINE])
def test_what_batches_may_do_is_found_to_be_fine(tell: Tell, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == []


@pytest.mark.parametrize("tell", [swapped, refused_for_another_reason, a_mixed_batch, refused_with_another_conflict])
def test_other_processes_find_the_same(tell: Callable[[Scene], None]) -> None:
    """The commands travel with the header of their batch."""
    ledger = scene()
    tell(ledger)
    reports = [audit(ledger.export(), pins(ledger), jobs=jobs) for jobs in (1, 2)]
    assert reports[0] == reports[1]
