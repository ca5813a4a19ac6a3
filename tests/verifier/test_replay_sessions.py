"""Sessions as the auditor sees them: opened by a chain that holds, ended when they must, all given back once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.verifier import maker
from tests.verifier.delegation_stories import INVALID, STORIES, Story
from tests.verifier.judging import audit, of_ledger, pins, remarks
from tests.verifier.maker import (
    ALICE,
    BOB,
    CAROL,
    DEPUTY,
    HELPER,
    OPERATOR,
    OTHER_SESSION,
    SESSION,
    TRIAL,
    TRIAL_AGENT,
    Json,
    Key,
)
from tests.verifier.scene import FIRST, Found, Scene, Tell, edit, found, scene
from verifier.entries import parse_leaf
from verifier.replay.judged import judge_afar
from verifier.replay.relations import Relations

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
IDLE_MS = 120_000


def began(ledger: Scene, key: Key = SESSION, agent: Key = ALICE, name: str = "lock:a") -> int:
    """A session of an agent that holds one lease for long; return the grant."""
    ledger.open_session(key, agent)
    return ledger.grant(key, name, ttl_ms=HOUR_MS)


def died(ledger: Scene, *leases: int, tickets: tuple[int, ...] = (), key: Key = SESSION) -> int:
    """The session is idle for just long enough."""
    ledger.time_ms += IDLE_MS
    ended = ledger.end_session(key, "idle", leases=len(leases), tickets=len(tickets))
    ledger.give_back(ended, *leases, tickets=tickets)
    return ended


# --- chains ---


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_session_opens_exactly_by_a_chain_that_lets_it(story: Story) -> None:
    """The finding has the name of the refusal that was due."""
    ledger = scene()
    chain = story.build(ledger.time_ms)
    ledger.time_ms += story.after_ms
    verbs, scope = list(story.verbs), {} if story.scope is None else {"scope": list(story.scope)}

    def honest(leaf: Json) -> None:
        is_good = story.refusal is None
        leaf.update({"verbs": verbs, **scope} if is_good else {})
        leaf["verbs"] = [verb for verb in ("lease", "transfer") if verb in leaf["verbs"]] or ["lease"]
        for name in ("expiresAtMs", "endsIfIdleAtMs"):  # so that the leaf alone says nothing wrong
            leaf[name] = min(max(leaf[name], leaf["timeMs"] + 1), leaf["timeMs"] + 604_800_000)

    ledger.open_with(SESSION, chain, change=honest)
    codes = {code for _, seq, code in of_ledger(ledger) if seq == FIRST}
    if story.refusal is None:
        assert codes == set()
    elif story.refusal == INVALID:
        assert "body_malformed" in codes or INVALID in codes or "leaf_malformed" in codes
    else:
        assert story.refusal in codes, codes


def issued_by_a_removed_agent(ledger: Scene) -> None:
    ledger.remove(ALICE)
    ledger.open_session(SESSION, ALICE)


def issued_by_a_removed_operator(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.remove_operator(DEPUTY)
    ledger.operators.add(DEPUTY.did)
    ledger.open_session(SESSION, DEPUTY)


def issued_by_an_agent_whose_operator_was_removed(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.add(HELPER, by=DEPUTY)
    ledger.remove_operator(DEPUTY)
    ledger.open_session(SESSION, HELPER)


def issued_by_another_operators_agent(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.open_session(SESSION, DEPUTY, ALICE)


def issued_by_a_session(ledger: Scene) -> None:
    ledger.open_session(OTHER_SESSION, ALICE)
    ledger.open_session(SESSION, OTHER_SESSION)


def issued_by_a_trial_agent(ledger: Scene) -> None:
    ledger.issue(TRIAL, "trial")
    ledger.enrol(TRIAL_AGENT, TRIAL)
    ledger.open_session(SESSION, TRIAL_AGENT)


def opened_twice(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.open_session(SESSION, ALICE)


def opened_again_after_its_end(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.close(SESSION)
    ledger.open_session(SESSION, ALICE)


def opened_by_the_key_of_an_agent(ledger: Scene) -> None:
    ledger.open_session(BOB, ALICE)


def opened_by_the_key_of_an_operator(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.operators.discard(DEPUTY.did)
    ledger.open_session(DEPUTY, ALICE)


def one_too_many(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.open_session(HELPER, ALICE)
    ledger.open_session(OTHER_SESSION, ALICE)


def left(ledger: Scene, count: int, *issuers: Key, first: int = 100) -> None:
    """So many sessions are opened and closed, each for an hour."""
    for number in range(first, first + count):
        ledger.open_session(Key(number), *issuers, expiresAtMs=ledger.time_ms + HOUR_MS)
        ledger.close(Key(number))


def one_too_many_remembered(ledger: Scene) -> None:
    left(ledger, 31, ALICE)
    left(ledger, 1, OPERATOR, ALICE, first=131)
    ledger.open_session(SESSION, ALICE)


def one_too_many_remembered_with_open_ones(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    left(ledger, 31, ALICE)
    ledger.open_session(HELPER, ALICE)


def one_too_many_of_an_operator(ledger: Scene) -> None:
    left(ledger, 31, OPERATOR)
    ledger.open_session(SESSION, OPERATOR)
    ledger.open_session(HELPER, OPERATOR)


def remembered_of_others(ledger: Scene) -> None:
    left(ledger, 32, ALICE)
    left(ledger, 32, OPERATOR, first=200)
    ledger.open_session(SESSION, BOB)
    ledger.open_session(HELPER, OPERATOR, BOB)


def remembered_until(ms: int) -> Tell:
    def tell(ledger: Scene) -> None:
        left(ledger, 32, ALICE)
        ledger.time_ms += HOUR_MS + DAY_MS + ms
        ledger.open_session(SESSION, ALICE)

    tell.__name__ = f"remembered_until_{ms}"
    return tell


def opened_for_another_agent(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, change=edit(principal=BOB.did))


def opened_for_another_operator(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.open_session(SESSION, ALICE, change=edit(onBehalfOf=DEPUTY.did))


def opened_with_another_idle_end(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, change=edit(endsIfIdleAtMs=ledger.time_ms + IDLE_MS + 1))


OPENINGS: list[tuple[Tell, Found]] = [
    (issued_by_a_removed_agent, [(7, "issuer_removed")]),
    (issued_by_a_removed_operator, [(8, "issuer_removed")]),
    (issued_by_an_agent_whose_operator_was_removed, [(9, "issuer_removed")]),
    (issued_by_another_operators_agent, [(7, "issuer_differs"), (7, "issuer_unknown")]),
    (issued_by_a_session, [(7, "delegation_too_deep")]),
    (issued_by_a_trial_agent, [(8, "delegation_wider")]),
    (opened_twice, [(7, "session_taken")]),
    (opened_again_after_its_end, [(8, "session_taken")]),
    (opened_by_the_key_of_an_agent, [(6, "session_taken")]),
    (opened_by_the_key_of_an_operator, [(7, "session_taken")]),
    (one_too_many, [(8, "too_many_sessions")]),
    (one_too_many_remembered, [(70, "too_many_sessions")]),
    (one_too_many_remembered_with_open_ones, [(69, "too_many_sessions")]),
    (one_too_many_of_an_operator, [(69, "too_many_sessions")]),
    (remembered_of_others, []),
    (remembered_until(-1), [(70, "too_many_sessions")]),
    (remembered_until(0), []),
    (opened_for_another_agent, [(6, "issuer_differs"), (6, "principal_wrong")]),
    (opened_for_another_operator, [(7, "on_behalf_wrong")]),
    (opened_with_another_idle_end, [(6, "idle_wrong")]),
]


@pytest.mark.parametrize(("tell", "wanted"), OPENINGS, ids=[row[0].__name__ for row in OPENINGS])
def test_who_may_open_a_session_is_decided_again(tell: Tell, wanted: Found) -> None:
    assert found(tell, sessionsPerPrincipal=2) == wanted


# --- what a session may do ---


def acts_after_its_end(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.close(SESSION)
    ledger.grant(SESSION, "lock:a", change=lambda leaf: leaf.update(principal=ALICE.did))


def acts_after_its_time(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, expiresAtMs=ledger.time_ms + 1_000)
    ledger.time_ms += 1_000
    ledger.beat(SESSION, change=edit(endsIfIdleAtMs=ledger.time_ms + 1))


def acts_after_its_agent_was_removed(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.end_session(SESSION, "revoked", causeSeq=ledger.remove(ALICE))
    ledger.beat(SESSION)


def acts_after_its_operator_was_removed(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.open_session(SESSION, DEPUTY)
    ledger.end_session(SESSION, "revoked", causeSeq=ledger.remove_operator(DEPUTY))
    ledger.beat(SESSION)


def acts_though_it_had_died(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.time_ms += IDLE_MS
    ledger.beat(SESSION)


def acts_in_the_name_of_another(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.beat(SESSION, change=edit(principal=BOB.did))


def acts_for_another_operator(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.beat(SESSION, change=edit(onBehalfOf=CAROL.did))


def acts_as_an_operator(ledger: Scene) -> None:
    ledger.open_session(SESSION, OPERATOR)
    ledger.add(HELPER, by=SESSION, change=edit(principal=SESSION.did, onBehalfOf=SESSION.did))


def beats_without_being_one(ledger: Scene) -> None:
    ledger.sessions[ALICE.did] = (0, ledger.time_ms + HOUR_MS)
    ledger.beat(ALICE)


def granted_outside_its_scope(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, resources=["repo:app/**"])
    ledger.grant(SESSION, "repo:apple")


def granted_wider_than_its_scope(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, resources=["repo:app/**"])
    ledger.grant(SESSION, "repo:app/a", "repo:lib")


def queued_outside_its_scope(ledger: Scene) -> None:
    ledger.grant(BOB, "lock:a")
    ledger.open_session(SESSION, ALICE, resources=["repo:app/**"])
    ledger.queue(SESSION, "lock:a")


def granted_without_the_verb(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, verbs=["transfer"])
    ledger.grant(SESSION, "lock:a")


def offered_without_the_verb(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, verbs=["lease"])
    ledger.hand_over(SESSION, ledger.grant(SESSION, "lock:a"), BOB)


def accepted_outside_its_scope(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, resources=["repo:app/**"])
    ledger.accept(SESSION, ledger.hand_over(BOB, ledger.grant(BOB, "lock:a"), SESSION))


def refused_within_its_scope(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, resources=["repo:app/**"])
    ledger.deny(SESSION, "outside_scope", "repo:app/a")


def lease_without_its_idle_end(ledger: Scene) -> None:
    """A session of an operator is its own principal, so the leaf alone does not show it."""
    ledger.open_session(SESSION, OPERATOR)
    ledger.grant(SESSION, "lock:a", change=lambda leaf: leaf.pop("endsIfIdleAtMs"))


def lease_with_a_later_idle_end(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.grant(SESSION, "lock:a", ttl_ms=HOUR_MS, change=edit(endsIfIdleAtMs=ledger.time_ms + IDLE_MS + 1))


def lease_beyond_its_delegation(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, expiresAtMs=ledger.time_ms + 5_000)
    ledger.grant(SESSION, "lock:a", change=edit(endsIfIdleAtMs=ledger.time_ms + 30_000))


def idle_end_of_an_agent(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", change=edit(endsIfIdleAtMs=ledger.time_ms + 30_000))


def two_sessions_share_what_excludes(ledger: Scene) -> None:
    began(ledger)
    began(ledger, OTHER_SESSION)


def more_names_than_the_principal_may_hold(ledger: Scene) -> None:
    began(ledger)
    began(ledger, OTHER_SESSION, name="lock:b")
    ledger.grant(ALICE, "lock:c")


ACTS: list[tuple[Tell, Found, dict[str, int]]] = [
    (acts_after_its_end, [(8, "session_ended"), (8, "idle_wrong")], {}),
    (acts_after_its_time, [(7, "session_expired"), (7, "ending_missing"), (7, "idle_wrong")], {}),
    (acts_after_its_agent_was_removed, [(9, "session_ended"), (9, "idle_wrong")], {}),
    (acts_after_its_operator_was_removed, [(10, "session_ended"), (10, "idle_wrong")], {}),
    (acts_though_it_had_died, [(7, "ending_missing")], {}),
    (acts_in_the_name_of_another, [(7, "principal_wrong")], {}),
    (acts_for_another_operator, [(7, "on_behalf_wrong")], {}),
    (acts_as_an_operator, [(7, "on_behalf_wrong"), (7, "operator_required")], {}),
    (beats_without_being_one, [(6, "session_required"), (6, "idle_wrong")], {}),
    (granted_outside_its_scope, [(7, "outside_scope")], {}),
    (granted_wider_than_its_scope, [(7, "outside_scope")], {}),
    (queued_outside_its_scope, [(8, "outside_scope")], {}),
    (granted_without_the_verb, [(7, "outside_scope")], {}),
    (offered_without_the_verb, [(8, "outside_scope")], {}),
    (accepted_outside_its_scope, [(9, "outside_scope")], {}),
    (refused_within_its_scope, [(7, "refusal_wrong")], {}),
    (lease_without_its_idle_end, [(7, "idle_wrong")], {}),
    (lease_with_a_later_idle_end, [(7, "idle_wrong")], {}),
    (lease_beyond_its_delegation, [(7, "idle_wrong")], {}),
    (idle_end_of_an_agent, [(6, "idle_wrong")], {}),
    (two_sessions_share_what_excludes, [(9, "double_grant")], {}),
    (more_names_than_the_principal_may_hold, [(10, "too_many_held")], {"heldPerPrincipal": 2}),
]


@pytest.mark.parametrize(("tell", "wanted", "parameters"), ACTS, ids=[row[0].__name__ for row in ACTS])
def test_what_a_session_does_is_decided_again(tell: Tell, wanted: Found, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == wanted


# --- how it ends ---


def ended_one_ms_early(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.time_ms += IDLE_MS - 1
    ledger.end_session(SESSION, "idle")


def ended_though_it_was_heard(ledger: Scene) -> None:
    """Any entry of its own counts, a refusal too."""
    ledger.open_session(SESSION, ALICE, resources=["repo:**"])
    ledger.time_ms += 1_000
    ledger.deny(SESSION, "outside_scope", "lock:a")
    ledger.time_ms += IDLE_MS - 1
    ledger.end_session(SESSION, "idle")


def ended_in_the_holiday(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.time_ms += IDLE_MS
    ledger.start()
    ledger.time_ms += 29_999
    ledger.end_session(SESSION, "idle")


def ended_late(ledger: Scene) -> None:
    """Its lease is asked for after its time, and it is still there."""
    lease = began(ledger)
    ledger.time_ms += IDLE_MS
    ledger.refuse(BOB, lease, "lock:a")


def ended_twice(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    died(ledger)
    ledger.end_session(SESSION, "idle")


def ended_for_another_reason(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.time_ms += IDLE_MS
    ledger.end_session(SESSION, "expired")


def ended_as_idle_after_its_time(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE, expiresAtMs=ledger.time_ms + 1_000)
    ledger.time_ms += 1_000
    ledger.end_session(SESSION, "idle")


def revoked_by_nobody(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.end_session(SESSION, "revoked", causeSeq=3)


def revoked_by_another_removal(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.remove(ALICE)
    ledger.end_session(SESSION, "revoked", causeSeq=3)


def survives_its_agent(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.remove(ALICE)
    ledger.grant(BOB, "lock:a")


def closed_by_another(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.close(SESSION, BOB)


def closed_twice(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.close(SESSION)
    ledger.close(SESSION, ALICE)


def repeated_for_an_open_session(ledger: Scene) -> None:
    seq = ledger.open_session(SESSION, ALICE)
    said = {"session": SESSION.did, "endedSeq": seq}
    ledger.decision("closing.repeated", ALICE, "session.close", {"session": SESSION.did}, said)


def closing_refused_to_its_agent(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.no("closing.refused", ALICE, "session.close", {"session": SESSION.did}, "session_not_yours")


def unknown_though_it_was_one(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.close(SESSION)
    ledger.no("closing.refused", ALICE, "session.close", {"session": SESSION.did}, "session_unknown")


def beat_refused_to_a_session(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.no("beat.refused", SESSION, "session.beat", {}, "session_required")


def expired_before_its_session(ledger: Scene) -> None:
    """The lease runs out later than the session, so it is given back and no more."""
    ledger.open_session(SESSION, ALICE)
    lease = ledger.grant(SESSION, "lock:a", ttl_ms=IDLE_MS + 1)
    ledger.time_ms += IDLE_MS + 1
    ledger.expire(lease)


ENDS: list[tuple[Tell, Found]] = [
    (ended_one_ms_early, [(7, "ended_early")]),
    (ended_though_it_was_heard, [(8, "ended_early")]),
    (ended_in_the_holiday, [(9, "ended_early")]),
    (ended_late, [(8, "ending_missing")]),
    (ended_twice, [(8, "citation_wrong")]),
    (ended_for_another_reason, [(7, "ending_wrong")]),
    (ended_as_idle_after_its_time, [(7, "ending_wrong")]),
    (revoked_by_nobody, [(7, "ending_wrong"), (7, "ended_early")]),
    (revoked_by_another_removal, [(8, "citation_wrong")]),
    (survives_its_agent, [(8, "return_missing")]),
    (closed_by_another, [(7, "session_not_yours")]),
    (closed_twice, [(8, "citation_wrong")]),
    (repeated_for_an_open_session, [(7, "citation_wrong")]),
    (closing_refused_to_its_agent, [(7, "refusal_wrong")]),
    (unknown_though_it_was_one, [(8, "refusal_wrong")]),
    (beat_refused_to_a_session, [(7, "refusal_wrong")]),
    (expired_before_its_session, [(8, "ending_missing")]),
]


@pytest.mark.parametrize(("tell", "wanted"), ENDS, ids=[row[0].__name__ for row in ENDS])
def test_an_end_comes_once_and_not_before_its_time(tell: Tell, wanted: Found) -> None:
    assert found(tell) == wanted


# --- what it gives back ---


def nothing_given_back(ledger: Scene) -> None:
    began(ledger)
    ledger.close(SESSION, leases=1)
    ledger.grant(BOB, "lock:b")


def nothing_given_back_at_the_end(ledger: Scene) -> None:
    began(ledger)
    ledger.close(SESSION, leases=1)


def not_all_given_back(ledger: Scene) -> None:
    one = began(ledger)
    ledger.grant(SESSION, "lock:b")
    ledger.returned(one, ledger.close(SESSION, leases=2))
    ledger.grant(BOB, "lock:c")


def given_back_twice(ledger: Scene) -> None:
    lease = began(ledger)
    closed = ledger.leave(SESSION, lease)
    ledger.returned(lease, closed)


def given_back_in_wrong_order(ledger: Scene) -> None:
    one = began(ledger)
    two = ledger.grant(SESSION, "lock:b")
    ledger.leave(SESSION, two, one)


def given_back_a_moment_later(ledger: Scene) -> None:
    one = began(ledger)
    closed = ledger.close(SESSION, leases=1, tickets=0)
    ledger.time_ms += 1
    ledger.returned(one, closed)


def lease_before_ticket(ledger: Scene) -> None:
    one = began(ledger)
    ledger.grant(BOB, "lock:b", ttl_ms=HOUR_MS)
    ticket = ledger.queue(SESSION, "lock:b")
    closed = ledger.close(SESSION, leases=1, tickets=1)
    ledger.returned(one, closed)
    ledger.remove_ticket(ticket, "holder_gone")


def something_between(ledger: Scene) -> None:
    """What waits is served only when all is given back."""
    one = began(ledger)
    two = ledger.grant(SESSION, "lock:b")
    ticket = ledger.queue(BOB, "lock:a")
    closed = ledger.close(SESSION, leases=2)
    ledger.returned(one, closed)
    ledger.offer(ticket)
    ledger.returned(two, closed)


def given_back_by_a_session_that_lives(ledger: Scene) -> None:
    lease = began(ledger)
    ledger.returned(lease, 7)


def given_back_for_another_cause(ledger: Scene) -> None:
    """What a session held ended with the session, not with its agent."""
    lease = began(ledger)
    removed = ledger.remove(ALICE)
    ledger.end_session(SESSION, "revoked", leases=1, causeSeq=removed)
    ledger.returned(lease, removed)


def counted_wrong(ledger: Scene) -> None:
    lease = began(ledger)
    ledger.returned(lease, ledger.close(SESSION, leases=2))


def tickets_counted_wrong(ledger: Scene) -> None:
    ledger.grant(BOB, "lock:a", ttl_ms=HOUR_MS)
    ledger.open_session(SESSION, ALICE)
    ticket = ledger.queue(SESSION, "lock:a")
    ledger.close(SESSION, tickets=0)
    ledger.remove_ticket(ticket, "holder_gone")


def gone_though_it_waits(ledger: Scene) -> None:
    ledger.grant(BOB, "lock:a", ttl_ms=HOUR_MS)
    ledger.open_session(SESSION, ALICE)
    ledger.remove_ticket(ledger.queue(SESSION, "lock:a"), "holder_gone")


def trust_lost_twice(ledger: Scene) -> None:
    """Two leases that nobody gave back cost once."""
    one = began(ledger)
    two = ledger.grant(SESSION, "lock:b", ttl_ms=HOUR_MS)
    ledger.time_ms += IDLE_MS
    row = {"did": ALICE.did, "change": -10_000, "after": 40_000}
    ended = ledger.end_session(SESSION, "idle", leases=2, trust=[row])
    ledger.give_back(ended, one, two)


def trust_lost_for_nothing(ledger: Scene) -> None:
    """A session without leases that dies costs nothing; the count that would excuse it is wrong too."""
    ledger.open_session(SESSION, ALICE)
    ledger.time_ms += IDLE_MS
    ledger.end_session(SESSION, "idle", leases=1)


def trust_not_lost(ledger: Scene) -> None:
    lease = began(ledger)
    ledger.time_ms += IDLE_MS
    ended = ledger.entry(
        "session.ended",
        "gateway",
        {"session": SESSION.did, "openedSeq": 6, "reason": "idle", "leases": 1, "tickets": 0},
    )
    ledger.returned(lease, ended)


def delay_after_a_tidy_close(ledger: Scene) -> None:
    lease = began(ledger)
    ledger.returned(lease, ledger.close(SESSION, ALICE, leases=1), delayUntilMs=ledger.time_ms + 5_000)


def no_delay_after_an_operators_close(ledger: Scene) -> None:
    lease = began(ledger)
    ledger.returned(lease, ledger.close(SESSION, OPERATOR, leases=1))


def sessions_of_one_removal_out_of_order(ledger: Scene) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.open_session(OTHER_SESSION, ALICE)
    removed = ledger.remove(ALICE)
    ledger.end_session(OTHER_SESSION, "revoked", causeSeq=removed)
    ledger.end_session(SESSION, "revoked", causeSeq=removed)


def returned_named_by_another_word(ledger: Scene) -> None:
    lease = began(ledger)
    ledger.leave(SESSION, lease)
    ledger.renewal(ALICE, lease, "lease_returned")


RETURNS: list[tuple[Tell, Found, dict[str, int]]] = [
    (nothing_given_back, [(9, "return_missing")], {}),
    (nothing_given_back_at_the_end, [(8, "return_missing")], {}),
    (not_all_given_back, [(11, "return_missing")], {}),
    (given_back_twice, [(10, "citation_wrong")], {}),
    (given_back_in_wrong_order, [(10, "return_disordered")], {}),
    (lease_before_ticket, [(11, "return_disordered")], {}),
    (given_back_a_moment_later, [(9, "return_late")], {}),
    (something_between, [(12, "return_missing"), (13, "return_wrong")], {}),
    (given_back_by_a_session_that_lives, [(8, "leaf_malformed")], {}),
    (given_back_for_another_cause, [(10, "citation_wrong")], {}),
    (counted_wrong, [(8, "count_wrong")], {}),
    (tickets_counted_wrong, [(9, "count_wrong")], {}),
    (gone_though_it_waits, [(9, "removal_wrong")], {}),
    (trust_lost_twice, [(9, "trust_wrong")], {}),
    (trust_lost_for_nothing, [(7, "trust_wrong"), (7, "count_wrong")], {}),
    (trust_not_lost, [(8, "trust_wrong")], {}),
    (delay_after_a_tidy_close, [(9, "delay_wrong")], {"lockDelayMs": 5_000}),
    (no_delay_after_an_operators_close, [(9, "delay_wrong")], {"lockDelayMs": 5_000}),
    (sessions_of_one_removal_out_of_order, [(9, "return_disordered")], {}),
    (returned_named_by_another_word, [(10, "refusal_wrong")], {}),
]


@pytest.mark.parametrize(("tell", "wanted", "parameters"), RETURNS, ids=[row[0].__name__ for row in RETURNS])
def test_an_end_gives_everything_back_once_and_in_order(tell: Tell, wanted: Found, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == wanted


# --- what only looks like a lie ---


def called_as_its_agent(ledger: Scene) -> None:
    """A session without a label is told to others under that of the agent it acts for."""
    labelled = {"agent": ALICE.did, "name": "alice"}
    ledger.decision("agent.added", OPERATOR, "agent.add", labelled, labelled)
    lease = began(ledger)
    ledger.deny(BOB, "lease_held", "lock:a", holderName="alice", **ledger.held(lease, "lock:a"))


def two_sessions_of_one_agent(ledger: Scene) -> None:
    """Each has leases and tickets of its own; what they hold counts for their agent, and one may wait for the other."""
    lease = began(ledger)
    ledger.open_session(OTHER_SESSION, ALICE)
    ledger.deny(OTHER_SESSION, "lease_held", "lock:a", **ledger.held(lease, "lock:a"))
    ticket = ledger.queue(OTHER_SESSION, "lock:a")
    ledger.time_ms += 1_000
    ledger.leave(SESSION, lease)
    ledger.offer(ticket)
    ledger.claim(OTHER_SESSION, ticket)


def everything_at_a_removal(ledger: Scene) -> None:
    """An agent and two sessions of it: sessions first, then tickets, then leases, and then who waited for them."""
    own = ledger.grant(ALICE, "lock:own", ttl_ms=HOUR_MS)
    one = began(ledger)
    two = began(ledger, OTHER_SESSION, name="lock:b")
    waiter = ledger.queue(BOB, "lock:a")
    first = ledger.queue(OTHER_SESSION, "lock:a", position=2)
    second = ledger.queue(OTHER_SESSION, "lock:own")
    removed = ledger.remove(ALICE)
    end_one = ledger.end_session(SESSION, "revoked", leases=1, causeSeq=removed)
    end_two = ledger.end_session(OTHER_SESSION, "revoked", leases=1, tickets=2, causeSeq=removed)
    ledger.remove_ticket(first, "holder_gone")
    ledger.remove_ticket(second, "holder_gone")
    ledger.returned(own, removed)
    ledger.returned(one, end_one)
    ledger.returned(two, end_two)
    ledger.offer(waiter)


def closed_by_itself_without_delay(ledger: Scene) -> None:
    ledger.leave(SESSION, began(ledger))
    ledger.grant(BOB, "lock:a")


def ended_when_the_holiday_is_over(ledger: Scene) -> None:
    """In a holiday it acts again and lives on; its delegation's end takes away what it may do, not what it holds."""
    ledger.open_session(SESSION, ALICE)
    lease = ledger.grant(SESSION, "lock:a", ttl_ms=HOUR_MS)
    ledger.open_session(OTHER_SESSION, ALICE, expiresAtMs=ledger.time_ms + 130_000)
    other = ledger.grant(OTHER_SESSION, "lock:b", ttl_ms=HOUR_MS)
    ledger.time_ms += IDLE_MS
    ledger.start()
    ledger.time_ms += 29_999
    ledger.beat(SESSION)
    ledger.time_ms += 1
    ended = ledger.end_session(OTHER_SESSION, "expired", leases=1)
    ledger.returned(other, ended)
    ledger.time_ms += IDLE_MS - 1
    ended = ledger.end_session(SESSION, "idle", leases=1)
    ledger.returned(lease, ended)


def a_lease_that_runs_out_first(ledger: Scene) -> None:
    """It costs trust as ever; the session goes on, and dies later without a lease, for nothing."""
    ledger.open_session(SESSION, ALICE)
    lease = ledger.grant(SESSION, "lock:a", ttl_ms=1_000)
    ledger.time_ms += 1_000
    ledger.expire(lease)
    ledger.time_ms += IDLE_MS - 1_000
    ledger.end_session(SESSION, "idle")


def closed_again(ledger: Scene) -> None:
    """By whom it may be closed; forgotten a day after its delegation is over, so that its key may be opened again."""
    ledger.open_session(SESSION, ALICE)
    closed = ledger.leave(SESSION)
    said = {"session": SESSION.did, "endedSeq": closed}
    for key in (ALICE, OPERATOR):
        ledger.decision("closing.repeated", key, "session.close", {"session": SESSION.did}, said)
    ledger.no("closing.refused", BOB, "session.close", {"session": SESSION.did}, "session_not_yours")
    ledger.no("closing.refused", BOB, "session.close", {"session": HELPER.did}, "session_unknown")
    ledger.time_ms += HOUR_MS + DAY_MS - 1
    ledger.decision("closing.repeated", ALICE, "session.close", {"session": SESSION.did}, said)
    ledger.time_ms += 1
    ledger.no("closing.refused", ALICE, "session.close", {"session": SESSION.did}, "session_unknown")
    ledger.open_session(SESSION, ALICE)


def told_by_whose_lease_it_was(ledger: Scene) -> None:
    lease = began(ledger)
    closed = ledger.leave(SESSION, lease)
    ledger.renewal(BOB, lease, "lease_not_yours")
    ledger.no("acceptance.refused", BOB, "lease.accept", {"leaseId": f"L{lease}", "ttlMs": 30_000}, "lease_returned")
    assert closed


def within_its_scope(ledger: Scene) -> None:
    """What it holds it may renew and release; names and verbs are asked before anything else."""
    ledger.open_session(SESSION, ALICE, resources=["repo:app/**"], verbs=["lease"])
    held = ledger.grant(BOB, "lock:a")
    lease = ledger.grant(SESSION, "repo:app/a")
    ledger.deny(SESSION, "outside_scope", "lock:a")
    ledger.deny(SESSION, "outside_scope", "repo:app/b", "repo:lib", wait=True)
    token = ledger.value(lease)["fencingToken"]
    body = {"leaseId": f"L{lease}", "seenToken": token, "toDid": BOB.did, "reason": "x"}
    ledger.no("transfer.refused", SESSION, "lease.transfer", body, "outside_scope")
    ledger.hand_over(BOB, held, SESSION)
    ledger.acceptance(SESSION, held, "outside_scope")
    ledger.acceptance(SESSION, 3, "lease_unknown")
    ledger.renew(SESSION, lease)
    ledger.release(SESSION, lease)


def by_two_users(ledger: Scene) -> None:
    """A later request with an older history: two processes use one key. Told once, and no fault of the gateway."""
    ledger.open_session(SESSION, ALICE)
    ledger.time_ms += 1_000
    ledger.beat(SESSION)
    for _ in range(2):
        ledger.time_ms += 1_000
        ledger.beat(SESSION, anchor_size=5)


def between_ones_own_keys(ledger: Scene) -> None:
    """From an agent to its session: nothing is held more, and trust is lost once."""
    lease = ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.open_session(SESSION, ALICE)
    accepted = ledger.accept(SESSION, ledger.hand_over(ALICE, lease, SESSION))
    ledger.time_ms += 30_000
    ledger.expire(accepted)


FINE: list[tuple[Tell, dict[str, int]]] = [
    (called_as_its_agent, {}),
    (two_sessions_of_one_agent, {}),
    (everything_at_a_removal, {}),
    (closed_by_itself_without_delay, {"lockDelayMs": 5_000}),
    (ended_when_the_holiday_is_over, {}),
    (a_lease_that_runs_out_first, {}),
    (closed_again, {}),
    (told_by_whose_lease_it_was, {}),
    (within_its_scope, {}),
    (by_two_users, {}),
    (between_ones_own_keys, {"heldPerPrincipal": 2}),
]


@pytest.mark.parametrize(("tell", "parameters"), FINE, ids=[row[0].__name__ for row in FINE])
def test_what_sessions_may_do_is_found_to_be_fine(tell: Tell, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == []


def test_a_shared_key_is_a_remark_told_once() -> None:
    ledger = scene()
    by_two_users(ledger)
    report = audit(ledger.export(), pins(ledger))
    shared = [finding for finding in report.findings if finding.code == "session_shared"]
    assert ([finding.seq for finding in shared], report.exit_code) == ([8], 0)
    assert "session_shared" not in remarks(audit(maker.staffed().export(), pins(maker.staffed())))


@pytest.mark.parametrize("tell", [opened_for_another_agent, granted_outside_its_scope, trust_lost_twice, by_two_users])
def test_other_processes_find_the_same(tell: Callable[[Scene], None]) -> None:
    ledger = scene()
    tell(ledger)
    reports = [audit(ledger.export(), pins(ledger), jobs=jobs) for jobs in (1, 2)]
    assert reports[0] == reports[1]


def test_sessions_leave_nothing_behind_when_their_delegations_are_over() -> None:
    """Memory follows live state: a year of sessions leaves those whose keys can't be opened again yet."""
    ledger, relations = scene(), Relations()
    for _ in range(5):
        lease = began(ledger)
        ledger.time_ms += 1_000
        ledger.leave(SESSION, lease)
        ledger.time_ms += HOUR_MS + DAY_MS
    ledger.grant(BOB, "lock:z")
    relations.open(parse_leaf(ledger.leaves[0]), bytes(32))
    for leaf_bytes in ledger.leaves:
        [entry] = judge_afar([leaf_bytes], frozenset((maker.AUTHORITY,)))
        assert entry.leaf is not None and list(relations.faults(entry.leaf, entry)) == []
    people = relations.state.people
    assert (people.sessions, people.open, people.of, people._forgettable) == ({}, {}, {}, [])
    assert not people.remembered
