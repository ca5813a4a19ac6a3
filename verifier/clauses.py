"""Which clause of docs/protocol.md each finding is about: a table, so that nobody has to believe a verdict.

A code stands here once, under the clause that says what must hold; a refusal's name, where it is a finding, under the
clause that demands the refusal. The first in the list of a clause is of the receipt's ladder, then come whole ledgers.
A test demands that every code used below verifier/ is here, and that every clause exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_BY_CLAUSE = {
    "2.3": "leaf_malformed",
    "3.6": "name_not_allowed",
    "3.7": "name_not_checked",
    "4.3": "components_wrong",
    "4.5": "authority_not_checked authority_wrong",
    "4.6": "content_type_wrong",
    "4.8": "anchor_root_not_checked anchor_root_wrong anchor_wrong",
    "4.10": "outside_window",
    "5.1": "target_wrong",
    "5.2": "body_malformed",
    "6.3": "refusal_due",
    "6.4": "decision_failed",
    "7.2": "lease_held double_grant hold_wrong ttl_wrong too_many_held",
    "7.3": "not_extended",
    "7.4": "end_wrong",
    "7.5": "released_unseen released_other not_holder lease_mismatch",
    "7.6": "stampede_wrong conflict_wrong holder_wrong",
    "7.7": "expired_early expiry_missing",
    "7.9": "mode_not_allowed",
    "7.11": "mode_differs",
    "7.12": "delay_ignored delay_wrong lock_delayed",
    "7.13": "hold_exceeded",
    "7.14": "already_over lease_unknown lease_not_yours lease_released lease_expired lease_broken lease_transferred"
    " lease_changed lease_returned",
    "8.1": "token_not_rising token_wrong",
    "9.2": "idempotency_key_reused",
    "9.3": "nonce_reused",
    "10.1": "error_unknown refusal_wrong",
    "12.4": "two_leaves",
    "12.5": "type_unknown",
    "12.6": "citation_wrong",
    "12.9": "granted_in_dispute ledger_disputed dispute_unproven",
    "13.1": "chain_broken",
    "13.2": "checkpoint_malformed two_roots checkpoint_differs",
    "13.5": "source_malformed too_long truncated",
    "14.1": "too_large envelope_malformed",
    "14.2": "signature_invalid signature_left_out receipt_key_unknown",
    "14.3": "proof_malformed",
    "15.6": "log_line_missing seq_outside_key size_outside_key size_not_checked receipt_key_compromised",
    "15.7": "key_statement_invalid",
    "15.8": "log_line_missing opening_key_wrong",
    "15.10": "key_known key_not_committed key_overlap key_unknown key_last",
    "16.2": "log_signature_invalid log_signature_missing origin_unknown witness_invalid origin_differs seq_differs"
    " genesis_differs genesis_not_checked no_lease expired other_unusable other_leaf_unproven"
    " not_included consistency_not_checked",
    "16.3": "not_witnessed signature_not_checked",
    "16.4": "usage unreadable pins_malformed",
    "16.5": "evidence_malformed evidence_missing actor_differs wrong_ledger body_differs request_signature_invalid"
    " issuer_differs action_digest_wrong rules_digest_wrong approval_differs approval_invalid approval_wrong"
    " approval_expired",
    "16.10": "key_compromised",
    "16.11": "private_other_leaf private_unknown private_differs private_malformed",
    "17.2": "root_differs empty",
    "17.4": "decisions_not_redecided",
    "17.5": "durability_wrong gap_wrong holiday_missing",
    "17.6": "record_wrong later_than_cosignature earlier_than_cosignature unwitnessed",
    "17.7": "position_refused",
    "17.8": "key_line_unannounced key_line_wrong key_document_older",
    "17.9": "expiry_overdue ends_outstanding",
    "18.1": "time_backwards",
    "18.3": "epoch_wrong",
    "18.4": "holiday_wrong",
    "23.1": "already_waiting ticket_differs deadline_wrong position_wrong queued_needlessly",
    "23.2": "queue_full",
    "23.3": "removal_missing removal_wrong removed_early",
    "23.4": "queue_jumped queued ahead_wrong",
    "23.5": "offer_missing offer_wrong offered_twice",
    "23.6": "claim_denied ticket_over ticket_unknown ticket_not_yours ticket_ended",
    "23.8": "reservation_missing reservation_wrong resumed_early resumption_missing resumption_wrong",
    "24.4": "deadlock",
    "24.5": "cycle_wrong",
    "25.1": "trust_wrong",
    "26.1": "scheme_wrong",
    "26.3": "scheme_busy",
    "26.4": "schemes_wrong",
    "27.1": "not_offered token_stale",
    "28.1": "principal_wrong on_behalf_wrong",
    "28.2": "agent_unknown agent_removed operator_removed operator_required session_unknown session_ended"
    " session_expired",
    "28.3": "delegation_invalid",
    "28.4": "delegation_wrong_ledger delegation_too_deep delegation_wider delegation_longer delegation_expired"
    " issuer_unknown issuer_removed session_taken too_many_sessions",
    "28.5": "outside_scope",
    "28.7": "operator_not_found operator_last",
    "28.8": "agent_not_found key_taken",
    "29.2": "idle_wrong ended_early ending_missing ending_wrong",
    "29.4": "return_disordered return_late return_missing return_wrong count_wrong",
    "29.5": "session_required session_not_yours",
    "29.6": "session_shared",
    "30.1": "apikey_known apikey_not_found",
    "30.2": "custody_wrong",
    "30.3": "proof_invalid apikey_used",
    "30.4": "trial_over trial_used_up",
    "31.2": "batch_afar batch_broken",
    "33.3": "two_hashes two_geneses prev_differs anchor_differs",
    "33.4": "consistency_not_proven origins_differ",
    "33.5": "compare_malformed evidence_differs",
    "31.4": "batch_refusal_due",
    "31.5": "batch_differs batch_malformed batch_missing batch_not_included batch_unexpected",
    "37.2": "fence_unknown stale_fence lease_too_narrow lease_required admission_conflict approval_required",
    "37.5": "fact_wrong",
    "37.6": "rules_wrong policy_error forbidden_by_rules not_permitted",
    "37.7": "valid_wrong approvals_wrong",
    "37.10": "rules_out_of_turn rules_invalid",
    "40.3": "ruling_wrong",
    "40.4": "rules_not_rederived",
}
CLAUSES: Mapping[str, str] = MappingProxyType(
    {code: clause for clause, codes in _BY_CLAUSE.items() for code in codes.split()}
)
