"""Is a refusal the one that the entries before call for, with everything that it tells?

A refusal takes something away, so it is judged like a grant.
Source: docs/protocol.md 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from verifier.entries import BY_RULES, Leaf
from verifier.replay.admissions import denied_faults
from verifier.replay.decide import Refused
from verifier.replay.judged import Judged
from verifier.replay.keys import refused_key_faults
from verifier.replay.stampede import Edge
from verifier.replay.state import State
from verifier.replay.things import Faults
from verifier.replay.wanted import break_of, wanted_by
from verifier.replay.ways import overlapping

_OVER = ("lease_released", "lease_expired", "lease_broken", "lease_transferred", "lease_changed", "lease_returned")
_BY_ID = ("lease_unknown", "lease_not_yours", *_OVER)
_WAY = ("lease_held", "lock_delayed", "queued")
_TICKET = ("ticket_unknown", "ticket_not_yours", "ticket_ended")
_UNFIT = ("name_not_allowed", "mode_not_allowed")
_ASK = ("ask_unknown", "ask_not_yours", "ask_ended")
_APPROVAL = ("approval_wrong", "approver_unfit", "approval_expired", "approval_used")
# The errors that each type may carry; their numbers a leaf shows alone.
ERRORS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        name: frozenset(errors)
        for name, errors in (
            ("operator.refused", ("operator_required", "key_taken")),
            ("dismissal.refused", ("operator_required", "operator_not_found", "operator_last")),
            ("agent.refused", ("operator_required", "key_taken", "apikey_not_found", "apikey_used")),
            ("removal.refused", ("operator_required", "agent_not_found")),
            ("apikey.refused", ("operator_required", "apikey_known", "agent_not_found")),
            ("revocation.refused", ("operator_required", "apikey_not_found")),
            ("announcement.refused", ("operator_required", "key_known", "key_not_committed", "key_overlap")),
            ("retirement.refused", ("operator_required", "key_unknown", "key_last")),
            ("disowning.refused", ("operator_required", "key_unknown", "key_last")),
            ("beat.refused", ("session_required",)),
            ("closing.refused", ("session_unknown", "session_not_yours")),
            ("scheme.refused", ("operator_required", "scheme_busy")),
            (
                "lease.refused",
                (
                    "outside_scope",
                    "ledger_disputed",
                    "name_not_allowed",
                    "mode_not_allowed",
                    "hold_exceeded",
                    "too_many_held",
                    "already_waiting",
                    "queue_full",
                    "deadlock",
                    *_WAY,
                ),
            ),
            (
                "renewal.refused",
                ("outside_scope", "ledger_disputed", "mode_not_allowed", *_BY_ID, "hold_exceeded", "deadlock", *_WAY),
            ),
            ("release.refused", ("outside_scope", *_BY_ID, "lease_mismatch", "not_holder")),
            ("break.refused", ("operator_required", "token_stale")),
            ("transfer.refused", ("outside_scope", "ledger_disputed", *_BY_ID, "token_stale", "not_offered")),
            (
                "acceptance.refused",
                ("outside_scope", "ledger_disputed", "lease_unknown", *_OVER, "not_offered", "too_many_held", *_WAY),
            ),
            ("claim.refused", ("outside_scope", "ledger_disputed", *_TICKET, "too_many_held")),
            ("cancel.refused", ("outside_scope", *_TICKET)),
            (
                "admission.denied",
                (
                    "outside_scope",
                    "ledger_disputed",
                    "name_not_allowed",
                    "mode_not_allowed",
                    "lease_unknown",
                    "lease_not_yours",
                    "fence_unknown",
                    "stale_fence",
                    "lease_too_narrow",
                    "lease_required",
                    "admission_conflict",
                    *_APPROVAL,
                    "approval_required",
                    *BY_RULES,
                ),
            ),
            (
                "approval.refused",
                ("outside_scope", "ledger_disputed", *_UNFIT, "approver_unfit", "too_many_asked", "deadlock"),
            ),
            ("giving.refused", ("outside_scope", *_ASK, *_APPROVAL)),
            ("declining.refused", ("outside_scope", *_ASK, "approver_unfit")),
            ("withdrawal.refused", ("outside_scope", *_ASK)),
            ("rules.refused", ("operator_required", "rules_out_of_turn")),
        )
    }
)
# The code of a finding about a member that a refusal tells.
_CODES: Mapping[str, str] = MappingProxyType(
    {
        "holder": "holder_wrong",
        "holderName": "holder_wrong",
        "conflict": "conflict_wrong",
        "conflicts": "conflict_wrong",
        "stampede": "stampede_wrong",
        "retryAfterMs": "stampede_wrong",
        "waitingOn": "cycle_wrong",
        "cycle": "cycle_wrong",
        "acquireOrder": "cycle_wrong",
        "searchBounded": "cycle_wrong",
        "currentToken": "conflict_wrong",
        "ahead": "ahead_wrong",
        "delayUntilMs": "delay_wrong",
        "ticketId": "citation_wrong",
        "endedSeq": "citation_wrong",
    }
)
TOLD = ("error", *_CODES)
_OF_KEYS = ("announcement.refused", "retirement.refused", "disowning.refused")


def refusal_faults(state: State, leaf: Leaf, entry: Judged) -> Faults:
    """Yield (code, text) of what is wrong with an entry of a type in ERRORS; it counts for those that follow."""
    wanted = wanted_by(state, leaf, entry)
    if leaf.entry_type.name in _OF_KEYS:
        yield from refused_key_faults(state, entry.asked)
    if leaf.action == "coordination.admit":
        yield from denied_faults(state, leaf, entry)
    yield from told_faults(state, leaf, wanted)
    if not isinstance(wanted, Refused) or wanted.error != leaf.text("error"):
        return
    if wanted.counted_on:
        state.stampede.count(leaf.principal, wanted.counted_on, leaf.time_ms)
    if wanted.mode:
        until_ms = leaf.time_ms + state.numbers["waitEdgeMs"]
        state.edges[leaf.actor] = Edge(wanted.counted_on, wanted.mode, until_ms)


def told_faults(state: State, leaf: Leaf, wanted: object) -> Faults:
    """Is `wanted` the refusal that an entry states, and is what it tells right?"""
    name, error = leaf.entry_type.name, leaf.text("error")
    if error not in ERRORS[name]:
        yield "error_unknown", "error is not a refusal of this entry type (10.1)"
        return
    if not isinstance(wanted, Refused):
        yield "refusal_wrong", f"{error}, but the entries before call for no refusal (10.1)"
        return
    if error != wanted.error:
        yield "refusal_wrong", f"{error}, but the entries before call for {wanted.error} (10.1)"
        return
    skipped = {"claim.refused": "ticketId", "cancel.refused": "ticketId", "release.refused": "holder"}.get(name)
    wrong = [it for it in _CODES if it != skipped and leaf.value.get(it) != wanted.told.get(it)]
    for code, member in {_CODES[it]: it for it in reversed(wrong)}.items():
        yield code, f"{member} is not what the entries before say (10.3)"
    if name == "release.refused":
        yield from _holder_faults(state, leaf)


def repeat_faults(state: State, leaf: Leaf) -> Faults:
    """`release.repeated`, `break.repeated`: that lease was released, or broken, by the entry that is cited."""
    if leaf.entry_type.name == "break.repeated":
        wanted = break_of(state, leaf)
        if not isinstance(wanted, int) or wanted != leaf.number("endedSeq"):
            yield "citation_wrong", "endedSeq is not the break of the lease with this token (27.4)"
        return
    ended = state.ended(leaf.text("leaseId"))
    if ended is None or (ended.how, ended.actor, ended.seq) != ("released", leaf.actor, leaf.number("endedSeq")):
        yield "citation_wrong", "endedSeq is not the actor's release of this lease (7.5)"


def _holder_faults(state: State, leaf: Leaf) -> Faults:
    """A refused release names nobody but a holder of the lease, or of the names, that it asked for."""
    if "holder" not in leaf.value:
        return
    lease = state.lease.get(int((leaf.text("leaseId") or "L0")[1:]))
    found = overlapping(state, leaf) if "leaseId" not in leaf.value else [lease] if lease is not None else []
    if leaf.text("holder") not in {lease.actor for lease in found if state.is_live(lease)} - {leaf.actor}:
        yield "holder_wrong", "holder holds no live lease that the request names (7.5)"
