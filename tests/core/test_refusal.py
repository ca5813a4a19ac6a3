"""The refusal table is what the protocol says: rows, order, numbers, retry classes."""

from gateway.core.refusal import BY_NAME, TABLE

# (name, number, status, retry, receipted), in order of precedence.
PROTOCOL = [
    ("outside_window", 101, 401, "new_request", False),
    ("agent_unknown", 102, 401, "never", False),
    ("session_expired", 116, 403, "never", False),
    ("session_ended", 115, 403, "never", False),
    ("agent_removed", 103, 403, "never", False),
    ("operator_removed", 117, 403, "never", False),
    ("trial_over", 121, 403, "never", False),
    ("unknown_history", 104, 409, "new_request", False),
    ("nonce_reused", 201, 409, "new_request", False),
    ("idempotency_mismatch", 202, 422, "never", False),
    ("delegation_wrong_ledger", 107, 403, "never", False),
    ("delegation_too_deep", 108, 403, "never", False),
    ("delegation_wider", 109, 403, "never", False),
    ("delegation_longer", 110, 403, "never", False),
    ("delegation_expired", 111, 403, "never", False),
    ("issuer_unknown", 112, 403, "never", False),
    ("issuer_removed", 113, 403, "never", False),
    ("session_taken", 114, 409, "never", False),
    ("too_many_sessions", 119, 429, "new_request", False),
    ("trial_used_up", 120, 429, "never", False),
    ("operator_required", 105, 403, "never", True),
    ("agent_not_found", 106, 404, "never", True),
    ("operator_not_found", 122, 404, "never", True),
    ("operator_last", 123, 409, "never", True),
    ("key_taken", 124, 409, "never", True),
    ("apikey_not_found", 125, 404, "never", True),
    ("apikey_known", 126, 409, "never", True),
    ("apikey_used", 127, 409, "never", True),
    ("session_unknown", 128, 404, "never", True),
    ("session_not_yours", 129, 403, "never", True),
    ("session_required", 130, 403, "never", True),
    ("key_known", 131, 409, "never", True),
    ("key_not_committed", 132, 403, "never", True),
    ("key_overlap", 133, 409, "never", True),
    ("key_unknown", 134, 404, "never", True),
    ("key_last", 135, 409, "never", True),
    ("outside_scope", 118, 403, "never", True),
    ("ledger_disputed", 401, 409, "never", True),
    ("rules_out_of_turn", 631, 409, "never", True),
    ("scheme_busy", 303, 409, "new_request", True),
    ("name_not_allowed", 301, 422, "never", True),
    ("mode_not_allowed", 302, 422, "never", True),
    ("ticket_unknown", 505, 404, "never", True),
    ("ticket_not_yours", 506, 403, "never", True),
    ("ticket_ended", 507, 409, "never", True),
    ("ask_unknown", 641, 404, "never", True),
    ("ask_not_yours", 642, 403, "never", True),
    ("ask_ended", 643, 409, "never", True),
    ("lease_unknown", 402, 404, "never", True),
    ("lease_not_yours", 403, 403, "never", True),
    ("lease_released", 404, 409, "never", True),
    ("lease_expired", 405, 409, "new_request", True),
    ("lease_broken", 410, 409, "never", True),
    ("lease_transferred", 411, 409, "never", True),
    ("lease_changed", 412, 409, "never", True),
    ("lease_returned", 418, 409, "never", True),
    ("lease_mismatch", 406, 409, "never", True),
    ("not_holder", 407, 409, "new_request", True),
    ("token_stale", 413, 409, "new_request", True),
    ("not_offered", 416, 409, "never", True),
    ("hold_exceeded", 414, 409, "new_request", True),
    ("too_many_held", 417, 429, "new_request", True),
    ("already_waiting", 504, 409, "never", True),
    ("queue_full", 503, 429, "new_request", True),
    ("fence_unknown", 601, 403, "never", True),
    ("stale_fence", 602, 403, "never", True),
    ("lease_too_narrow", 603, 403, "never", True),
    ("lease_required", 604, 403, "never", True),
    ("admission_conflict", 605, 403, "new_request", True),
    ("approval_wrong", 611, 403, "never", True),
    ("approver_unfit", 612, 403, "never", True),
    ("approval_expired", 613, 403, "never", True),
    ("approval_used", 614, 403, "never", True),
    ("approval_required", 615, 403, "never", True),
    ("policy_error", 621, 403, "never", True),
    ("forbidden_by_rules", 622, 403, "never", True),
    ("not_permitted", 623, 403, "never", True),
    ("too_many_asked", 644, 429, "new_request", True),
    ("deadlock", 502, 409, "never", True),
    ("lease_held", 408, 409, "new_request", True),
    ("lock_delayed", 415, 409, "new_request", True),
    ("queued", 501, 409, "new_request", True),
    ("decision_failed", 901, 500, "new_request", True),
]


def test_the_table_is_the_protocols_row_for_row() -> None:
    assert [(r.name, r.number, r.status, r.retry, r.is_receipted) for r in TABLE] == PROTOCOL


def test_numbers_and_names_are_never_used_twice() -> None:
    assert len({row.number for row in TABLE}) == len({row.name for row in TABLE}) == len(TABLE)
    assert list(BY_NAME.values()) == list(TABLE)


def test_every_row_tells_a_person_what_to_do_in_one_sentence() -> None:
    assert [row.name for row in TABLE if not row.advice.endswith(".") or "\n" in row.advice] == []


def test_refusals_without_entry_come_before_all_others() -> None:
    """Nothing is written until every check that a stranger or a replay could fail is passed."""
    flags = [row.is_receipted for row in TABLE]
    assert flags == sorted(flags)
