"""Trials: thirty-five entries in seven days, under names of one's own, for a minute at a time."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.draft import Draft
from gateway.core.lookup import quota_at
from gateway.core.outcome import Context, Decision
from tests.core.book import DECIDERS, own_members
from tests.core.crew import Crew
from tests.core.requests import (
    accept,
    acquire,
    add,
    add_operator,
    batch,
    beat,
    cancel,
    chain,
    claim,
    did_of,
    enrol,
    open_session,
    release,
    remove,
    renew,
    transfer,
)

E, OP = did_of("E"), did_of("op")
WEEK_MS = 604_800_000
OWN = f"trial:{E}"


def trial() -> Crew:
    """Return a ledger in which E is a trial agent."""
    one = Crew()
    assert one.tell(enrol("E", one.key("k", "trial"))) == "agent.added"
    return one


def used(one: Crew) -> int:
    return quota_at(one.shelf, E).used


def use_up(one: Crew, left: int = 0) -> None:
    """Let E cause entries until so many are left."""
    while used(one) < 35 - left:
        assert one.tell(acquire("E", f"{OWN}/a", ttlMs=60_000)) in ("lease.granted", "lease.extended")


def test_the_thirty_fifth_entry_is_the_last_and_the_next_is_none() -> None:
    one = trial()
    assert one.agent("E").trial_until_ms == one.t_ms + WEEK_MS
    use_up(one, left=1)
    assert one.tell(acquire("E", f"{OWN}/a")) == "lease.extended"
    size = len(one.leaves)
    for asked in (acquire("E", f"{OWN}/a"), release("E", f"{OWN}/a"), beat("E"), add("E", "F")):
        assert one.refuses(asked) == "trial_used_up"
    assert len(one.leaves) == size
    assert sum(one.leaf(seq).actor == E for seq in range(size)) == 35


def test_refusals_count_as_they_are_entries() -> None:
    one = trial()
    for count, (asked, told) in enumerate(
        [
            (acquire("E", "repo:x"), "outside_scope"),
            (renew("E", "L999"), "lease_unknown"),
            (beat("E"), "session_required"),
            (add("E", "F"), "operator_required"),
        ],
        1,
    ):
        assert one.refuses(asked) == told
        assert used(one) == count


def test_what_makes_no_entry_is_free_and_so_are_replays_even_when_all_is_used_up() -> None:
    one = trial()
    first = one.now(acquire("E", f"{OWN}/a"))
    one.tell(first)
    one.tell(first.again())
    assert one.tell(first) == "nonce_reused"
    assert one.tell(acquire("E", f"{OWN}/b").but(idempotency_key=first.idempotency_key)) == "idempotency_mismatch"
    assert one.tell(acquire("E", f"{OWN}/b"), anchors_known=False) == "unknown_history"
    assert used(one) == 1
    use_up(one)
    assert one.tell(first.again()) == "replay"
    assert used(one) == 35


def test_a_failed_decision_is_an_entry_too() -> None:
    def failing(draft: Draft, request: Any, context: Context) -> Decision:
        raise ZeroDivisionError

    one = trial()
    assert one.tell(acquire("E", f"{OWN}/a"), deciders={**DECIDERS, "lease.acquire": failing}) == "decision_failed"
    assert used(one) == 1


@pytest.mark.parametrize(("ms", "told"), [(WEEK_MS - 1, "lease.granted"), (WEEK_MS, "trial_over")])
def test_a_trial_is_over_after_seven_days_of_log_time(ms: int, told: str) -> None:
    one = trial()
    first = one.now(acquire("E", f"{OWN}/z", ttlMs=1_000))
    one.tell(first)
    one.later(ms)
    assert one.tell(acquire("E", f"{OWN}/a")) == told
    if told == "trial_over":
        assert one.refuses(acquire("E", "repo:x")) == "trial_over"
        assert one.refuses(first.again()) == "trial_over", "whose time is over is told so, whatever it repeats"


def test_over_wins_over_used_up() -> None:
    one = trial()
    use_up(one)
    one.later(WEEK_MS)
    assert one.refuses(acquire("E", f"{OWN}/a")) == "trial_over"


@pytest.mark.parametrize(
    ("names", "members", "told"),
    [
        ([f"{OWN}/a"], {}, "lease.granted"),
        ([f"{OWN}/a/b", f"{OWN}/c/**"], {}, "lease.granted"),
        ([f"{OWN}/**"], {"ttlMs": 60_000}, "lease.granted"),
        ([f"{OWN}/a"], {"ttlMs": 60_001}, "outside_scope"),
        ([OWN], {}, "lease.granted"),  # a sub-tree covers its root
        (["trial:**"], {}, "outside_scope"),
        ([f"trial:{did_of('A')}/a"], {}, "outside_scope"),
        ([f"{OWN}x/a"], {}, "outside_scope"),
        ([f"{OWN}/a", "repo:x"], {}, "outside_scope"),
        (["repo:x"], {"wait": True}, "outside_scope"),
        ([f"repo:{E}/a"], {}, "outside_scope"),
    ],
)
def test_a_trial_agent_keeps_to_names_of_its_own_for_a_minute_at_most(
    names: list[str], members: dict[str, Any], told: str
) -> None:
    one = trial()
    assert one.tell(acquire("E", *names, **members)) == told


def test_a_minute_is_also_the_most_of_a_renewal() -> None:
    one = trial()
    lease_id = one.hold("E", f"{OWN}/a", ttlMs=60_000)
    assert one.tell(renew("E", lease_id, ttlMs=60_000)) == "lease.renewed"
    leaf = one.renew("E", lease_id, ttlMs=60_001)
    assert own_members(leaf)["error"] == "outside_scope"


def test_a_trial_agent_hands_nothing_over_and_takes_nothing_but_its_own() -> None:
    one = trial()
    mine = one.hold("E", f"{OWN}/a", ttlMs=60_000)
    token = one.leases()[mine].fencing_token
    assert one.refuses(transfer("E", mine, token, "A")) == "outside_scope"
    others = one.hold("A", "repo:x")
    one.tell(transfer("A", others, one.leases()[others].fencing_token, "E"))
    assert one.tell(accept("E", others)) == "outside_scope"
    own = one.hold("A", f"{OWN}/b")
    one.tell(transfer("A", own, one.leases()[own].fencing_token, "E"))
    assert one.tell(accept("E", own, ttlMs=60_001)) == "outside_scope"
    assert one.tell(accept("E", own, ttlMs=60_000)) == "lease.transferred"


def test_it_waits_claims_cancels_and_releases_like_anybody() -> None:
    one = trial()
    lease_id = one.hold("A", f"{OWN}/a")
    ticket = one.line("E", f"{OWN}/a", ttlMs=60_000)
    one.free("A", lease_id)
    assert one.tell(claim("E", ticket)) == "lease.claimed"
    assert one.tell(release("E", f"{OWN}/a")) == "lease.released"
    assert one.tell(cancel("E", ticket)) == "ticket_ended"
    assert used(one) == 4


@pytest.mark.parametrize("issuers", [("E",), ("op", "E")])
def test_a_trial_agent_has_no_sessions(issuers: tuple[str, ...]) -> None:
    one = trial()
    assert one.refuses(open_session("s", chain(*issuers, "s"))) == "delegation_wider"


# --- batches --------------------------------------------------------------------------------------------------------


def test_a_batch_counts_each_of_its_entries_and_is_decided_as_a_whole_or_not() -> None:
    one = trial()
    commands = [acquire("E", f"{OWN}/{n}") for n in range(4)]
    use_up(one, left=5)
    size = len(one.leaves)
    assert one.refuses(batch("E", *commands, acquire("E", f"{OWN}/z"))) == "trial_used_up"
    assert len(one.leaves) == size
    assert one.tell(batch("E", *commands)) == "batch.received"
    assert (len(one.leaves) - size, used(one)) == (5, 35)


def test_an_atomic_batch_that_is_refused_costs_its_one_entry() -> None:
    one = trial()
    assert one.refuses(batch("E", acquire("E", f"{OWN}/a"), acquire("E", "repo:x"), isAtomic=True)) == "outside_scope"
    assert used(one) == 1


# --- never refilled -------------------------------------------------------------------------------------------------


def test_enrolling_again_with_the_trial_key_gives_neither_decisions_nor_days() -> None:
    one = trial()
    until_ms = one.agent("E").trial_until_ms
    use_up(one, left=3)
    one.later(86_400_000)
    key = one.agent("E").key_digest
    assert key is not None
    assert one.tell(enrol("E", key, name="again")) == "agent.added"
    assert (used(one), one.agent("E").trial_until_ms) == (32, until_ms)
    one.tell(remove("op", "E"))
    assert one.tell(enrol("E", key)) == "agent.added"
    assert (used(one), one.agent("E").trial_until_ms) == (32, until_ms)
    assert one.tell(enrol("E", one.key("k2", "trial"))) == "agent.added", "nor does another trial key"
    assert (used(one), one.agent("E").trial_until_ms) == (32, until_ms)


def test_an_operators_own_word_or_a_live_key_ends_the_trial() -> None:
    for again in ("by operator", "by live key"):
        one = trial()
        use_up(one)
        asked = add("op", "E") if again == "by operator" else enrol("E", one.key("k2", "live"))
        assert one.tell(asked) == "agent.added"
        assert one.tell(acquire("E", "repo:x", ttlMs=600_000)) == "lease.granted"
        assert one.tell(open_session("s", chain("E", "s"))) == "session.opened"


def test_a_key_that_was_on_trial_and_became_an_operator_is_an_operator() -> None:
    one = trial()
    use_up(one)
    one.tell(remove("op", "E"))
    assert one.tell(add_operator("op", "E")) == "operator.added"
    assert one.tell(add("E", "F")) == "agent.added"
    assert one.tell(open_session("s", chain("E", "s"))) == "session.opened"
    assert one.tell(acquire("s", "repo:x", ttlMs=600_000)) == "lease.granted"
    assert used(one) == 35
