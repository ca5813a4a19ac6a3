"""Operators, agents, API keys and trials as the auditor sees them: who may act, for whom, and how much."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from tests.verifier.maker import (
    ALICE,
    BEARER,
    BOB,
    CAROL,
    CUSTODIAL,
    DEPUTY,
    ENROLLER,
    HELPER,
    LIVE,
    OPERATOR,
    SESSION,
    STRANGER,
    TRIAL,
    TRIAL_AGENT,
    Json,
    Key,
    enrolment_proof,
)
from tests.verifier.scene import FIRST, NUMBERS, Found, Scene, Tell, advice, edit, found

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def on_trial(ledger: Scene) -> str:
    """A trial agent, enrolled by two entries; return the names that it may ask for."""
    ledger.issue(TRIAL, "trial")
    ledger.enrol(TRIAL_AGENT, TRIAL)
    return f"trial:{TRIAL_AGENT.did}"


def enrolment(agent: Key, digest: str, **more: Any) -> Json:
    return {"agent": agent.did, "keyDigest": digest, "proof": enrolment_proof(agent, digest), **more}


def not_enrolled(
    ledger: Scene, agent: Key, error: str, by: Key = OPERATOR, digest: str | None = None, **more: Any
) -> None:
    """An `agent.refused`; its leaf repeats nothing of the body but the agent."""
    body = {"agent": agent.did, **more} if digest is None else enrolment(agent, digest, **more)
    said = {"agent": agent.did, "error": error, "number": NUMBERS[error]}
    ledger.people.setdefault(ENROLLER.did, (ENROLLER.did, ENROLLER.did))
    ledger.decision("agent.refused", by, "agent.add", body, said)


def refuse(ledger: Scene, name: str, action: str, body: Json, error: str, by: Key = OPERATOR) -> None:
    repeated = ("keyDigest",) if "keyDigest" in body else ("operator", "agent")
    said: Json = {member: body[member] for member in repeated if member in body}
    ledger.decision(name, by, action, body, {**said, "error": error, "number": NUMBERS[error]})


# --- operators ---


def operator_added_by_an_agent(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY, by=ALICE, change=edit(onBehalfOf=ALICE.did))


def operator_added_by_a_removed_one(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.remove_operator(DEPUTY)
    ledger.operators.add(DEPUTY.did)
    ledger.add_operator(HELPER, by=DEPUTY)


def agent_made_operator(ledger: Scene) -> None:
    ledger.add_operator(ALICE)


def last_operator_removed(ledger: Scene) -> None:
    ledger.remove_operator(OPERATOR)


def operator_removed_that_was_none(ledger: Scene) -> None:
    ledger.remove_operator(DEPUTY)


def agent_acts_without_its_operator(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.add(HELPER, by=DEPUTY)
    ledger.remove_operator(DEPUTY)
    ledger.grant(HELPER, "lock:a")


def agent_keeps_its_lease_without_its_operator(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.add(HELPER, by=DEPUTY)
    ledger.grant(HELPER, "lock:a")
    ledger.remove_operator(DEPUTY)
    ledger.grant(ALICE, "lock:b")


def agent_taken_from_another_operator(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.add(ALICE, by=DEPUTY)


def agent_in_other_custody(ledger: Scene) -> None:
    ledger.add(ALICE, is_custodial=True)


def operator_made_agent(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.add(DEPUTY)


def agent_removed_twice(ledger: Scene) -> None:
    ledger.remove(ALICE)
    ledger.remove(ALICE)


# --- custody and names ---


def custody_left_out(ledger: Scene) -> None:
    ledger.add(CUSTODIAL, is_custodial=True)
    ledger.grant(CUSTODIAL, "lock:a", change=lambda leaf: leaf.pop("custody"))


def custody_invented(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a", change=edit(custody="gateway"))


def principal_wrong(ledger: Scene) -> None:
    ledger.grant(
        ALICE, "lock:a", change=lambda leaf: leaf.update(principal=BOB.did, endsIfIdleAtMs=leaf["expiresAtMs"])
    )


def on_behalf_of_another_operator(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.grant(ALICE, "lock:a", change=edit(onBehalfOf=DEPUTY.did))


# --- API keys ---


def enrolled_without_a_key(ledger: Scene) -> None:
    """The enroller adds an agent as if it were an operator."""
    ledger.operators.add(ENROLLER.did)
    ledger.add(HELPER, by=ENROLLER)


def enrolled_by_an_operator_with_a_key(ledger: Scene) -> None:
    ledger.issue(LIVE)
    members = {"agent": HELPER.did, "keyDigest": LIVE}
    ledger.decision("agent.added", OPERATOR, "agent.add", enrolment(HELPER, LIVE), members)


def enrolled_by_an_unknown_key(ledger: Scene) -> None:
    ledger.issued[LIVE] = (0, OPERATOR.did)
    ledger.enrol(HELPER, LIVE)


def enrolled_by_a_revoked_key(ledger: Scene) -> None:
    ledger.issue(LIVE)
    ledger.revoke(LIVE)
    ledger.enrol(HELPER, LIVE)


def enrolled_by_the_key_of_an_agent(ledger: Scene) -> None:
    ledger.add(CUSTODIAL, is_custodial=True)
    ledger.issue(BEARER, agent=CUSTODIAL)
    ledger.enrol(HELPER, BEARER)


def enrolled_by_the_key_of_a_removed_operator(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.issue(LIVE, by=DEPUTY)
    ledger.remove_operator(DEPUTY)
    ledger.enrol(HELPER, LIVE)


def trial_key_used_twice(ledger: Scene) -> None:
    on_trial(ledger)
    ledger.enrol(HELPER, TRIAL)


def enrolled_without_consent(ledger: Scene) -> None:
    ledger.issue(LIVE)
    ledger.enrol(HELPER, LIVE, proof=enrolment_proof(HELPER, TRIAL))


def enroller_takes_a_lease(ledger: Scene) -> None:
    ledger.grant(ENROLLER, "lock:a", change=edit(onBehalfOf=OPERATOR.did))


def key_issued_twice(ledger: Scene) -> None:
    ledger.issue(LIVE)
    ledger.issue(LIVE, "trial")


def key_for_an_agent_with_its_own_key(ledger: Scene) -> None:
    ledger.issue(BEARER, agent=ALICE)


def key_revoked_twice(ledger: Scene) -> None:
    ledger.issue(LIVE)
    ledger.revoke(LIVE)
    ledger.revoke(LIVE)


def key_revoked_by_an_agent(ledger: Scene) -> None:
    ledger.issue(LIVE)
    ledger.revoke(LIVE, by=ALICE, change=edit(onBehalfOf=ALICE.did))


def revocation_of_another_issue(ledger: Scene) -> None:
    ledger.issue(TRIAL, "trial")
    ledger.issue(LIVE)
    ledger.revoke(LIVE, change=edit(issuedSeq=6))


# --- trials ---


def trial_beyond_its_entries(ledger: Scene) -> None:
    """A refusal counts like a lease: three are allowed here."""
    name = on_trial(ledger)
    ledger.grant(TRIAL_AGENT, f"{name}/a")
    ledger.deny(TRIAL_AGENT, "outside_scope", "lock:a")
    ledger.release(TRIAL_AGENT, 8)
    ledger.grant(TRIAL_AGENT, f"{name}/b")


def trial_beyond_its_days(ledger: Scene) -> None:
    name = on_trial(ledger)
    ledger.time_ms += 7 * DAY_MS
    ledger.grant(TRIAL_AGENT, f"{name}/a")


def trial_of_thirty_six_entries(ledger: Scene) -> None:
    name = on_trial(ledger)
    for n in range(36):
        ledger.grant(TRIAL_AGENT, f"{name}/{n}")


def trial_enrolled_again_has_no_more_entries(ledger: Scene) -> None:
    name = on_trial(ledger)
    lease = ledger.grant(TRIAL_AGENT, f"{name}/a")
    ledger.returned(lease, ledger.remove(TRIAL_AGENT))
    ledger.enrol(TRIAL_AGENT, TRIAL)
    ledger.grant(TRIAL_AGENT, f"{name}/a")
    ledger.grant(TRIAL_AGENT, f"{name}/b")
    ledger.grant(TRIAL_AGENT, f"{name}/c")


def trial_enrolled_again_has_no_more_days(ledger: Scene) -> None:
    name = on_trial(ledger)
    ledger.time_ms += 6 * DAY_MS
    ledger.enrol(TRIAL_AGENT, TRIAL)
    ledger.time_ms += DAY_MS
    ledger.grant(TRIAL_AGENT, f"{name}/a")


def trial_outside_its_names(ledger: Scene) -> None:
    on_trial(ledger)
    ledger.grant(TRIAL_AGENT, "lock:a")


def trial_in_the_names_of_another(ledger: Scene) -> None:
    on_trial(ledger)
    ledger.grant(TRIAL_AGENT, f"trial:{ALICE.did}/a")


def trial_for_too_long(ledger: Scene) -> None:
    name = on_trial(ledger)
    ledger.grant(TRIAL_AGENT, f"{name}/a", ttl_ms=60_001)


def trial_renewed_for_too_long(ledger: Scene) -> None:
    name = on_trial(ledger)
    ledger.renew(TRIAL_AGENT, ledger.grant(TRIAL_AGENT, f"{name}/a"), ttl_ms=60_001)


def trial_hands_over(ledger: Scene) -> None:
    name = on_trial(ledger)
    ledger.hand_over(TRIAL_AGENT, ledger.grant(TRIAL_AGENT, f"{name}/a"), ALICE)


# --- refusals ---


def operator_refused_to_an_operator(ledger: Scene) -> None:
    refuse(ledger, "operator.refused", "operator.add", {"operator": DEPUTY.did}, "operator_required")


def operator_refused_though_the_key_is_free(ledger: Scene) -> None:
    refuse(ledger, "operator.refused", "operator.add", {"operator": DEPUTY.did}, "key_taken")


def dismissal_refused_as_the_last(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    refuse(ledger, "dismissal.refused", "operator.remove", {"operator": DEPUTY.did}, "operator_last")


def dismissal_refused_as_unknown(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    refuse(ledger, "dismissal.refused", "operator.remove", {"operator": DEPUTY.did}, "operator_not_found")


def enrolment_refused_as_taken(ledger: Scene) -> None:
    not_enrolled(ledger, ALICE, "key_taken")


def enrolment_refused_as_used(ledger: Scene) -> None:
    ledger.issue(LIVE)
    ledger.enrol(CAROL, LIVE)
    not_enrolled(ledger, HELPER, "apikey_used", ENROLLER, LIVE)


def enrolment_refused_as_unknown(ledger: Scene) -> None:
    ledger.issue(LIVE)
    not_enrolled(ledger, HELPER, "apikey_not_found", ENROLLER, LIVE)


def issue_refused_as_known(ledger: Scene) -> None:
    refuse(ledger, "apikey.refused", "apikey.issue", {"keyDigest": LIVE, "kind": "live"}, "apikey_known")


def issue_refused_without_such_an_agent(ledger: Scene) -> None:
    """The body decides that, and the leaf does not repeat the agent."""
    ledger.add(CUSTODIAL, is_custodial=True)
    body = {"keyDigest": BEARER, "kind": "live", "agent": CUSTODIAL.did}
    refuse(ledger, "apikey.refused", "apikey.issue", body, "agent_not_found")


def revocation_refused(ledger: Scene) -> None:
    ledger.issue(LIVE)
    refuse(ledger, "revocation.refused", "apikey.revoke", {"keyDigest": LIVE}, "apikey_not_found")


LIES: list[tuple[Tell, Found, dict[str, int]]] = [
    (operator_added_by_an_agent, [(6, "operator_required"), (6, "on_behalf_wrong")], {}),
    (operator_added_by_a_removed_one, [(8, "operator_removed")], {}),
    (agent_made_operator, [(6, "key_taken")], {}),
    (last_operator_removed, [(6, "operator_last")], {}),
    (operator_removed_that_was_none, [(6, "operator_not_found")], {}),
    (agent_acts_without_its_operator, [(9, "operator_removed")], {}),
    (agent_keeps_its_lease_without_its_operator, [(10, "return_missing")], {}),
    (agent_taken_from_another_operator, [(7, "key_taken")], {}),
    (agent_in_other_custody, [(6, "key_taken")], {}),
    (operator_made_agent, [(7, "key_taken")], {}),
    (agent_removed_twice, [(7, "agent_not_found")], {}),
    (custody_left_out, [(7, "custody_wrong")], {}),
    (custody_invented, [(6, "custody_wrong")], {}),
    (principal_wrong, [(6, "principal_wrong"), (6, "idle_wrong")], {}),
    (on_behalf_of_another_operator, [(7, "on_behalf_wrong")], {}),
    (enrolled_without_a_key, [(6, "operator_required")], {}),
    (enrolled_by_an_operator_with_a_key, [(7, "operator_required")], {}),
    (enrolled_by_an_unknown_key, [(6, "apikey_not_found")], {}),
    (enrolled_by_a_revoked_key, [(8, "apikey_not_found")], {}),
    (enrolled_by_the_key_of_an_agent, [(8, "apikey_not_found")], {}),
    (enrolled_by_the_key_of_a_removed_operator, [(9, "apikey_not_found")], {}),
    (trial_key_used_twice, [(8, "apikey_used")], {}),
    (enrolled_without_consent, [(7, "proof_invalid")], {}),
    (enroller_takes_a_lease, [(6, "agent_unknown"), (6, "on_behalf_wrong")], {}),
    (key_issued_twice, [(7, "apikey_known")], {}),
    (key_for_an_agent_with_its_own_key, [(6, "agent_not_found")], {}),
    (key_revoked_twice, [(8, "apikey_not_found")], {}),
    (key_revoked_by_an_agent, [(7, "operator_required"), (7, "on_behalf_wrong")], {}),
    (revocation_of_another_issue, [(8, "citation_wrong")], {}),
    (trial_beyond_its_entries, [(11, "trial_used_up")], {"trialDecisions": 3}),
    (trial_of_thirty_six_entries, [(43, "trial_used_up")], {}),
    (trial_enrolled_again_has_no_more_entries, [(14, "trial_used_up")], {"trialDecisions": 3}),
    (trial_beyond_its_days, [(8, "trial_over")], {}),
    (trial_enrolled_again_has_no_more_days, [(9, "trial_over")], {}),
    (trial_outside_its_names, [(8, "outside_scope")], {}),
    (trial_in_the_names_of_another, [(8, "outside_scope")], {}),
    (trial_for_too_long, [(8, "outside_scope")], {}),
    (trial_renewed_for_too_long, [(9, "outside_scope")], {}),
    (trial_hands_over, [(9, "outside_scope")], {}),
    (operator_refused_to_an_operator, [(6, "refusal_wrong")], {}),
    (operator_refused_though_the_key_is_free, [(6, "refusal_wrong")], {}),
    (dismissal_refused_as_the_last, [(7, "refusal_wrong")], {}),
    (dismissal_refused_as_unknown, [(7, "refusal_wrong")], {}),
    (enrolment_refused_as_taken, [(6, "refusal_wrong")], {}),
    (enrolment_refused_as_used, [(8, "refusal_wrong")], {}),
    (enrolment_refused_as_unknown, [(7, "refusal_wrong")], {}),
    (issue_refused_as_known, [(6, "refusal_wrong")], {}),
    (issue_refused_without_such_an_agent, [(7, "refusal_wrong")], {}),
    (revocation_refused, [(7, "refusal_wrong")], {}),
]


@pytest.mark.parametrize(("tell", "wanted", "parameters"), LIES, ids=[row[0].__name__ for row in LIES])
def test_a_lie_about_who_may_act_is_found_at_its_entry(tell: Tell, wanted: Found, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == wanted


# --- what only looks like a lie ---


def every_refusal_that_is_due(ledger: Scene) -> None:
    ledger.add(CUSTODIAL, is_custodial=True)
    refuse(ledger, "operator.refused", "operator.add", {"operator": DEPUTY.did}, "operator_required", ALICE)
    refuse(ledger, "operator.refused", "operator.add", {"operator": ALICE.did}, "key_taken")
    refuse(ledger, "operator.refused", "operator.add", {"operator": ENROLLER.did}, "key_taken")
    refuse(ledger, "dismissal.refused", "operator.remove", {"operator": OPERATOR.did}, "operator_required", ALICE)
    refuse(ledger, "dismissal.refused", "operator.remove", {"operator": DEPUTY.did}, "operator_not_found")
    refuse(ledger, "dismissal.refused", "operator.remove", {"operator": OPERATOR.did}, "operator_last")
    not_enrolled(ledger, HELPER, "operator_required", ALICE)
    not_enrolled(ledger, HELPER, "operator_required", ENROLLER)
    not_enrolled(ledger, HELPER, "operator_required", OPERATOR, LIVE)
    not_enrolled(ledger, OPERATOR, "key_taken")
    not_enrolled(ledger, ALICE, "key_taken", agentCustody="gateway")
    not_enrolled(ledger, HELPER, "apikey_not_found", ENROLLER, LIVE)
    not_enrolled(ledger, ALICE, "key_taken", ENROLLER, LIVE)  # said before that the API key is unknown
    on_trial(ledger)
    not_enrolled(ledger, HELPER, "apikey_used", ENROLLER, TRIAL)
    refuse(ledger, "apikey.refused", "apikey.issue", {"keyDigest": LIVE, "kind": "live"}, "operator_required", ALICE)
    refuse(ledger, "apikey.refused", "apikey.issue", {"keyDigest": TRIAL, "kind": "live"}, "apikey_known")
    body = {"keyDigest": BEARER, "kind": "live", "agent": ALICE.did}
    refuse(ledger, "apikey.refused", "apikey.issue", body, "agent_not_found")
    refuse(ledger, "revocation.refused", "apikey.revoke", {"keyDigest": TRIAL}, "operator_required", ALICE)
    refuse(ledger, "revocation.refused", "apikey.revoke", {"keyDigest": LIVE}, "apikey_not_found")
    ledger.no("beat.refused", ALICE, "session.beat", {}, "session_required")
    ledger.open_session(SESSION, ALICE)
    refuse(ledger, "operator.refused", "operator.add", {"operator": SESSION.did}, "key_taken")
    not_enrolled(ledger, SESSION, "key_taken")
    not_enrolled(ledger, STRANGER, "operator_required", SESSION)


def a_label_again(ledger: Scene) -> None:
    """By the same operator, or by an API key of it; and the key of an operator too."""
    ledger.add(ALICE)
    ledger.issue(LIVE)
    ledger.enrol(ALICE, LIVE)
    ledger.add_operator(DEPUTY)
    ledger.add_operator(DEPUTY, by=DEPUTY)


def taken_over_in_two_acts(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.remove(ALICE, by=DEPUTY)
    ledger.add(ALICE, by=DEPUTY)
    ledger.grant(ALICE, "lock:a")


def inherited_from_a_removed_operator(ledger: Scene) -> None:
    """An agent whose operator was removed stays enrolled; another operator may take it, or its own comes back."""
    ledger.add_operator(DEPUTY)
    ledger.add(HELPER, by=DEPUTY)
    ledger.add(STRANGER, by=DEPUTY)
    lease = ledger.grant(HELPER, "lock:a")
    ledger.returned(lease, ledger.remove_operator(DEPUTY))
    ledger.add(HELPER)
    ledger.grant(HELPER, "lock:a")
    ledger.add_operator(DEPUTY)
    ledger.grant(STRANGER, "lock:b")


def everybody_of_an_operator_at_once(ledger: Scene) -> None:
    """Its own session, its agent's session, then what these and the agent hold."""
    ledger.add_operator(DEPUTY)
    ledger.add(HELPER, by=DEPUTY)
    own = ledger.grant(HELPER, "lock:helper")
    ledger.open_session(SESSION, DEPUTY)
    lease = ledger.grant(SESSION, "lock:session", ttl_ms=HOUR_MS)
    ledger.open_session(STRANGER, DEPUTY, HELPER)
    ticket = ledger.queue(STRANGER, "lock:session")
    removed = ledger.remove_operator(DEPUTY)
    one = ledger.end_session(SESSION, "revoked", leases=1, causeSeq=removed)
    ledger.end_session(STRANGER, "revoked", tickets=1, causeSeq=removed)
    ledger.remove_ticket(ticket, "holder_gone")
    ledger.returned(own, removed)
    ledger.returned(lease, one)


def to_the_last_entry_of_a_trial(ledger: Scene) -> None:
    name = on_trial(ledger)
    for n in range(35):
        ledger.grant(TRIAL_AGENT, f"{name}/{n}", ttl_ms=60_000)


def to_the_last_moment_of_a_trial(ledger: Scene) -> None:
    name = on_trial(ledger)
    ledger.time_ms += 7 * DAY_MS - 1
    ledger.grant(TRIAL_AGENT, name, f"{name}/**")


def a_trial_that_became_more(ledger: Scene) -> None:
    """An operator enrols the key by itself, and the trial is over."""
    on_trial(ledger)
    ledger.add(TRIAL_AGENT)
    ledger.grant(TRIAL_AGENT, "lock:a", ttl_ms=HOUR_MS)
    ledger.open_session(SESSION, TRIAL_AGENT)


def custody_told(ledger: Scene) -> None:
    """By its own key's entries, not by those of its sessions."""
    ledger.add(CUSTODIAL, is_custodial=True)
    ledger.issue(BEARER, agent=CUSTODIAL)
    ledger.grant(CUSTODIAL, "lock:a")
    ledger.open_session(SESSION, CUSTODIAL)
    ledger.grant(SESSION, "lock:b")


def one_key_for_two_actors(ledger: Scene) -> None:
    """Nonces and idempotency keys are an actor's own, also among the sessions of one agent."""
    ledger.open_session(SESSION, ALICE)
    for n, key in enumerate((ALICE, SESSION)):
        ledger.grant(key, f"lock:{n}", idempotencyKey="once", nonce="n" * 22)


def a_line_of_one_operator(ledger: Scene) -> None:
    """An operator alone has a queue for itself."""
    ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")
    ledger.queue(CAROL, "lock:a", position=2)
    ledger.open_session(SESSION, ALICE)
    ledger.deny(SESSION, "queue_full", "lock:a", wait=True, **full(ledger))


def a_line_of_two_operators(ledger: Scene) -> None:
    """Each has half of it, and in all half of what may be waiting."""
    ledger.add_operator(DEPUTY)
    ledger.add(HELPER, by=DEPUTY)
    ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")
    ledger.deny(CAROL, "queue_full", "lock:a", wait=True, **full(ledger))
    ledger.queue(HELPER, "lock:a", position=2)


def full(ledger: Scene) -> Json:
    """What the next refusal for a full queue tells: the wait is spread by its nonce."""
    nonce = f"nonce-{ledger.counter + 1:017}"
    spread = int.from_bytes(sha256(nonce.encode()).digest()[:2], "big")
    return {"stampede": advice(0)["stampede"], "retryAfterMs": 1_000 + 1_000 * spread // 262_144}


FINE: list[tuple[Tell, dict[str, int]]] = [
    (every_refusal_that_is_due, {}),
    (a_label_again, {}),
    (taken_over_in_two_acts, {}),
    (inherited_from_a_removed_operator, {}),
    (everybody_of_an_operator_at_once, {}),
    (to_the_last_entry_of_a_trial, {}),
    (to_the_last_moment_of_a_trial, {}),
    (a_trial_that_became_more, {}),
    (custody_told, {}),
    (one_key_for_two_actors, {}),
    (a_line_of_one_operator, {"queuePerResource": 2}),
    (a_line_of_two_operators, {"queuePerResource": 2}),
]


@pytest.mark.parametrize(("tell", "parameters"), FINE, ids=[row[0].__name__ for row in FINE])
def test_what_is_right_about_who_may_act_is_found_to_be_fine(tell: Tell, parameters: dict[str, int]) -> None:
    assert found(tell, **parameters) == []


def queued_beyond_the_operators_share(ledger: Scene) -> None:
    ledger.add_operator(DEPUTY)
    ledger.grant(ALICE, "lock:a")
    ledger.queue(BOB, "lock:a")
    ledger.queue(CAROL, "lock:a", position=2)


def queued_beyond_the_principals_bound(ledger: Scene) -> None:
    """Two sessions of one agent count together."""
    ledger.grant(BOB, "lock:a", "lock:b")
    for key in (SESSION, HELPER):
        ledger.open_session(key, ALICE)
    ledger.queue(SESSION, "lock:a")
    ledger.queue(HELPER, "lock:b")


BOUNDS: list[tuple[Tell, Found, dict[str, int]]] = [
    (queued_beyond_the_operators_share, [(9, "refusal_due")], {"queuePerResource": 2}),
    (queued_beyond_the_operators_share, [(9, "refusal_due")], {"queueTotal": 2}),
    (queued_beyond_the_principals_bound, [(FIRST + 4, "refusal_due")], {"queuePerPrincipal": 1}),
]


@pytest.mark.parametrize(("tell", "wanted", "parameters"), BOUNDS)
def test_a_line_is_shared_out_among_operators_and_principals(
    tell: Tell, wanted: Found, parameters: dict[str, int]
) -> None:
    assert found(tell, **parameters) == wanted
