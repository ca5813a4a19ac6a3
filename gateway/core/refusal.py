"""The numbered table of refusals. Its order is their precedence and part of the protocol.

A refusal is a value, never an exception: somebody asked properly and the answer is no. A row's `name`
is the member `error` on the wire, its `number` is an identifier that is never reused, and its place in
TABLE says which refusal wins when several apply. The documents print this table and a test compares.

Source: docs/protocol.md 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Retry = Literal["never", "same_request", "new_request"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row of the table.

    `retry` tells a client what may help: nothing, the same request later, or a request signed anew
    under a fresh idempotency key. `is_receipted` is False for refusals that leave no entry, because a
    stranger or a replay must not be able to make the ledger grow. `advice` is the second sentence, for
    a person at a terminal.
    """

    name: str
    number: int
    status: int
    retry: Retry
    is_receipted: bool
    advice: str


OUTSIDE_WINDOW = Refusal(
    "outside_window", 101, 401, "new_request", False,
    "The signature is too old or from the future: set this machine's clock and sign again.",
)  # fmt: skip
AGENT_UNKNOWN = Refusal(
    "agent_unknown", 102, 401, "never", False,
    "This key is not enrolled here: ask an operator to run `tallystick agent add` with your DID.",
)  # fmt: skip
AGENT_REMOVED = Refusal(
    "agent_removed", 103, 403, "never", False,
    "An operator removed this key: ask them to enrol it again, or use another key.",
)  # fmt: skip
SESSION_EXPIRED = Refusal(
    "session_expired", 116, 403, "never", False,
    "The time of this session's delegation is over: open a new session with a new key.",
)  # fmt: skip
SESSION_ENDED = Refusal(
    "session_ended", 115, 403, "never", False,
    "This session was closed, revoked or idle for too long, and what it held was given back: open a new one, with a new"
    " key.",
)  # fmt: skip
OPERATOR_REMOVED = Refusal(
    "operator_removed", 117, 403, "never", False,
    "The operator that answers for this key was removed: ask another operator to enrol it.",
)  # fmt: skip
TRIAL_OVER = Refusal(
    "trial_over", 121, 403, "never", False,
    "The days of this trial are over: ask an operator to enrol a key of yours.",
)  # fmt: skip
UNKNOWN_HISTORY = Refusal(
    "unknown_history", 104, 409, "new_request", False,
    "The anchor is no checkpoint of this ledger: keep the one you hold, it may prove a second history,"
    " and post it to the ledger's dispute door.",
)  # fmt: skip
NONCE_REUSED = Refusal(
    "nonce_reused", 201, 409, "new_request", False,
    "This nonce was used before: sign the retry anew, with the same idempotency key.",
)  # fmt: skip
IDEMPOTENCY_MISMATCH = Refusal(
    "idempotency_mismatch", 202, 422, "never", False,
    "This idempotency key belongs to a different request: use a fresh key for new work.",
)  # fmt: skip
DELEGATION_WRONG_LEDGER = Refusal(
    "delegation_wrong_ledger", 107, 403, "never", False,
    "A delegation is for another ledger: have it signed for this one.",
)  # fmt: skip
DELEGATION_TOO_DEEP = Refusal(
    "delegation_too_deep", 108, 403, "never", False,
    "From operator to session there are two steps at most, and only a delegation of maxDepth 1 may be passed on.",
)  # fmt: skip
DELEGATION_WIDER = Refusal(
    "delegation_wider", 109, 403, "never", False,
    "A delegation gives more than its issuer has: name fewer verbs or narrower resources.",
)  # fmt: skip
DELEGATION_LONGER = Refusal(
    "delegation_longer", 110, 403, "never", False,
    "A delegation begins before or ends after the one above it: keep within its time.",
)  # fmt: skip
DELEGATION_EXPIRED = Refusal(
    "delegation_expired", 111, 403, "never", False,
    "The delegation is not valid at this time: have a new one signed.",
)  # fmt: skip
ISSUER_UNKNOWN = Refusal(
    "issuer_unknown", 112, 403, "never", False,
    "The first delegation must be signed by an operator or an agent of this ledger, the second by the agent that the"
    " first one names.",
)  # fmt: skip
ISSUER_REMOVED = Refusal(
    "issuer_removed", 113, 403, "never", False,
    "Who signed the delegation was removed from this ledger: ask an operator.",
)  # fmt: skip
SESSION_TAKEN = Refusal(
    "session_taken", 114, 409, "never", False,
    "This key already is or was something else here: make a fresh key for every session.",
)  # fmt: skip
TOO_MANY_SESSIONS = Refusal(
    "too_many_sessions", 119, 429, "new_request", False,
    "This agent has as many open sessions as one may, or too many that ended lately: close what is done, or wait.",
)  # fmt: skip
TRIAL_USED_UP = Refusal(
    "trial_used_up", 120, 429, "never", False,
    "This trial has no decision left, or fewer than a batch needs: ask an operator to enrol a key of yours.",
)  # fmt: skip
OPERATOR_REQUIRED = Refusal(
    "operator_required", 105, 403, "never", True,
    "Only an operator may do this: sign with an operator's key.",
)  # fmt: skip
AGENT_NOT_FOUND = Refusal(
    "agent_not_found", 106, 404, "never", True,
    "No such agent is enrolled: list the agents and check the DID.",
)  # fmt: skip
OPERATOR_NOT_FOUND = Refusal(
    "operator_not_found", 122, 404, "never", True,
    "No such operator is in force: list the operators and check the DID.",
)  # fmt: skip
OPERATOR_LAST = Refusal(
    "operator_last", 123, 409, "never", True,
    "A ledger needs an operator: add another one first.",
)  # fmt: skip
KEY_TAKEN = Refusal(
    "key_taken", 124, 409, "never", True,
    "This key has another role here, or belongs to another operator: remove it first, or use another key.",
)  # fmt: skip
APIKEY_NOT_FOUND = Refusal(
    "apikey_not_found", 125, 404, "never", True,
    "No such API key is in force for this: list the API keys, or issue one.",
)  # fmt: skip
APIKEY_KNOWN = Refusal(
    "apikey_known", 126, 409, "never", True,
    "This API key was issued before: make another one.",
)  # fmt: skip
APIKEY_USED = Refusal(
    "apikey_used", 127, 409, "never", True,
    "A trial key enrols one agent, and this one has: ask for another trial key.",
)  # fmt: skip
SESSION_UNKNOWN = Refusal(
    "session_unknown", 128, 404, "never", True,
    "No such session is known here: list the sessions and check the DID.",
)  # fmt: skip
SESSION_NOT_YOURS = Refusal(
    "session_not_yours", 129, 403, "never", True,
    "Only the session itself, its agent and operators may close it.",
)  # fmt: skip
SESSION_REQUIRED = Refusal(
    "session_required", 130, 403, "never", True,
    "Only a session says that it is present: open one, or leave it.",
)  # fmt: skip
KEY_KNOWN = Refusal(
    "key_known", 131, 409, "never", True,
    "This key has a role here, or had one: make a fresh key.",
)  # fmt: skip
KEY_NOT_COMMITTED = Refusal(
    "key_not_committed", 132, 403, "never", True,
    "The ledger names another key as the next one: announce that, or use the folder of the root it was made in.",
)  # fmt: skip
KEY_OVERLAP = Refusal(
    "key_overlap", 133, 409, "never", True,
    "Two keys of this purpose are in force already: retire one of them first.",
)  # fmt: skip
KEY_UNKNOWN = Refusal(
    "key_unknown", 134, 404, "never", True,
    "No such key of this purpose is in force: look at the published key document.",
)  # fmt: skip
KEY_LAST = Refusal(
    "key_last", 135, 409, "never", True,
    "This is the only key of its purpose in force: announce another one first.",
)  # fmt: skip
OUTSIDE_SCOPE = Refusal(
    "outside_scope", 118, 403, "never", True,
    "The delegation of this key does not cover that: keep to its resources, verbs and times, or ask for a wider one.",
)  # fmt: skip
NAME_NOT_ALLOWED = Refusal(
    "name_not_allowed", 301, 422, "never", True,
    "Only a scheme that is registered as unicode takes such a name: use ASCII, or ask an operator to set the scheme.",
)  # fmt: skip
MODE_NOT_ALLOWED = Refusal(
    "mode_not_allowed", 302, 422, "never", True,
    "An append-only resource is neither overwritten nor deleted: ask for read or append.",
)  # fmt: skip
SCHEME_BUSY = Refusal(
    "scheme_busy", 303, 409, "new_request", True,
    "Something of this scheme is held or waited for: change the scheme when all of it is free.",
)  # fmt: skip
LEDGER_DISPUTED = Refusal(
    "ledger_disputed", 401, 409, "never", True,
    "Two histories of this ledger are known, so nothing is granted: ask its operator.",
)  # fmt: skip
LEASE_UNKNOWN = Refusal(
    "lease_unknown", 402, 404, "never", True,
    "No such lease is known here: check the lease id, or acquire again.",
)  # fmt: skip
LEASE_NOT_YOURS = Refusal(
    "lease_not_yours", 403, 403, "never", True,
    "Another agent holds this lease: only its holder may renew or release it.",
)  # fmt: skip
LEASE_RELEASED = Refusal(
    "lease_released", 404, 409, "never", True,
    "This lease was released: a renewal never brings it back, acquire again.",
)  # fmt: skip
LEASE_EXPIRED = Refusal(
    "lease_expired", 405, 409, "new_request", True,
    "This lease ran out: stop the work it covered, then acquire again.",
)  # fmt: skip
LEASE_MISMATCH = Refusal(
    "lease_mismatch", 406, 409, "never", True,
    "This lease covers other resources: name exactly those it was granted for.",
)  # fmt: skip
NOT_HOLDER = Refusal(
    "not_holder", 407, 409, "new_request", True,
    "You hold no lease on exactly these resources: acquire first, or name the lease id.",
)  # fmt: skip
LEASE_HELD = Refusal(
    "lease_held", 408, 409, "new_request", True,
    "Another agent holds it: wait `retryAfterMs`, with some jitter, and ask again.",
)  # fmt: skip
LEASE_BROKEN = Refusal(
    "lease_broken", 410, 409, "never", True,
    "An operator broke this lease: stop the work it covered, and read the reason in the entry `endedSeq`.",
)  # fmt: skip
LEASE_TRANSFERRED = Refusal(
    "lease_transferred", 411, 409, "never", True,
    "This lease was handed over to another agent: stop the work it covered.",
)  # fmt: skip
LEASE_CHANGED = Refusal(
    "lease_changed", 412, 409, "never", True,
    "This lease got another mode and with it a new id and token: use those.",
)  # fmt: skip
LEASE_RETURNED = Refusal(
    "lease_returned", 418, 409, "never", True,
    "This lease was given back when the session or agent that held it ended: acquire again.",
)  # fmt: skip
TOKEN_STALE = Refusal(
    "token_stale", 413, 409, "new_request", True,
    "The lease with this token is gone: look again who holds the resource, and decide again.",
)  # fmt: skip
HOLD_EXCEEDED = Refusal(
    "hold_exceeded", 414, 409, "new_request", True,
    "You held this for as long as is allowed while others wait: release it, then stand in line again.",
)  # fmt: skip
LOCK_DELAYED = Refusal(
    "lock_delayed", 415, 409, "new_request", True,
    "The last holder did not give this back, so others are kept out until `delayUntilMs`: ask again then.",
)  # fmt: skip
NOT_OFFERED = Refusal(
    "not_offered", 416, 409, "never", True,
    "This lease was not offered to you: its holder or an operator has to offer it first.",
)  # fmt: skip
TOO_MANY_HELD = Refusal(
    "too_many_held", 417, 429, "new_request", True,
    "You hold as many resources as one agent may: release some, or name a sub-tree instead of its parts.",
)  # fmt: skip
QUEUED = Refusal(
    "queued", 501, 409, "new_request", True,
    "Others stand in line for it: ask again with `wait: true` to stand in line too.",
)  # fmt: skip
DEADLOCK = Refusal(
    "deadlock", 502, 409, "never", True,
    "Waiting would close the circle in `cycle`: release what you hold, then acquire in `acquireOrder`.",
)  # fmt: skip
QUEUE_FULL = Refusal(
    "queue_full", 503, 429, "new_request", True,
    "The line is as long as it may be: ask again after `retryAfterMs`.",
)  # fmt: skip
ALREADY_WAITING = Refusal(
    "already_waiting", 504, 409, "never", True,
    "You stand in line for it already: claim or cancel the ticket `ticketId`.",
)  # fmt: skip
TICKET_UNKNOWN = Refusal(
    "ticket_unknown", 505, 404, "never", True,
    "No such ticket is known here: check its id, or stand in line again.",
)  # fmt: skip
TICKET_NOT_YOURS = Refusal(
    "ticket_not_yours", 506, 403, "never", True,
    "Another agent stands in line with this ticket: only its holder may claim or cancel it.",
)  # fmt: skip
TICKET_ENDED = Refusal(
    "ticket_ended", 507, 409, "never", True,
    "This ticket was used, cancelled or has lapsed, as the entry `endedSeq` says: stand in line again if need be.",
)  # fmt: skip
FENCE_UNKNOWN = Refusal(
    "fence_unknown", 601, 403, "never", True,
    "This token is above your lease's and was never given for it: send the token that the lease has.",
)  # fmt: skip
STALE_FENCE = Refusal(
    "stale_fence", 602, 403, "never", True,
    "Your lease with this token is over, or has another token by now: stop the work, look who holds the resource, and"
    " acquire again.",
)  # fmt: skip
LEASE_TOO_NARROW = Refusal(
    "lease_too_narrow", 603, 403, "never", True,
    "Your lease does not cover all of these resources, or not in this mode: acquire what the work needs.",
)  # fmt: skip
LEASE_REQUIRED = Refusal(
    "lease_required", 604, 403, "never", True,
    "Only reading is admitted without a lease: acquire one, and send its id and token.",
)  # fmt: skip
ADMISSION_CONFLICT = Refusal(
    "admission_conflict", 605, 403, "new_request", True,
    "Another agent holds what you would touch: acquire it, or wait until its lease has ended.",
)  # fmt: skip
APPROVAL_WRONG = Refusal(
    "approval_wrong", 611, 403, "never", True,
    "An approval is for another ledger, agent, operation, arguments or rules: have exactly this action approved.",
)  # fmt: skip
APPROVER_UNFIT = Refusal(
    "approver_unfit", 612, 403, "never", True,
    "Approvers are keys in force, in their own custody, of distinct operators other than yours: ask another one.",
)  # fmt: skip
APPROVAL_EXPIRED = Refusal(
    "approval_expired", 613, 403, "never", True,
    "An approval is not valid at this time: ask for a new one.",
)  # fmt: skip
APPROVAL_USED = Refusal(
    "approval_used", 614, 403, "never", True,
    "An approval is good for one admission and was used: ask for a new one.",
)  # fmt: skip
APPROVAL_REQUIRED = Refusal(
    "approval_required", 615, 403, "never", True,
    "What can't be undone needs an approval: ask for one with `approval.ask`, and send it along.",
)  # fmt: skip
POLICY_ERROR = Refusal(
    "policy_error", 621, 403, "never", True,
    "The rules could not be evaluated, so nothing is allowed: tell an operator the sequence number.",
)  # fmt: skip
FORBIDDEN_BY_RULES = Refusal(
    "forbidden_by_rules", 622, 403, "never", True,
    "The rules in `matched` forbid this: read them with `tallystick rules show`.",
)  # fmt: skip
NOT_PERMITTED = Refusal(
    "not_permitted", 623, 403, "never", True,
    "No rule permits this: read the rules with `tallystick rules show`, or ask an operator.",
)  # fmt: skip
RULES_OUT_OF_TURN = Refusal(
    "rules_out_of_turn", 631, 409, "never", True,
    "Rule sets are numbered without a gap: look at the one in force, and load yours as the next.",
)  # fmt: skip
ASK_UNKNOWN = Refusal(
    "ask_unknown", 641, 404, "never", True,
    "No such request for approval is known here: check its id, or ask again.",
)  # fmt: skip
ASK_NOT_YOURS = Refusal(
    "ask_not_yours", 642, 403, "never", True,
    "Only an approver that it names may give or decline, and only who asked may withdraw.",
)  # fmt: skip
ASK_ENDED = Refusal(
    "ask_ended", 643, 409, "never", True,
    "This request for approval is over, as the entry `endedSeq` says where it is there: ask again if need be.",
)  # fmt: skip
TOO_MANY_ASKED = Refusal(
    "too_many_asked", 644, 429, "new_request", True,
    "You wait for as many approvals as one agent may: withdraw some, or wait.",
)  # fmt: skip
DECISION_FAILED = Refusal(
    "decision_failed", 901, 500, "new_request", True,
    "The gateway could not decide, so nothing was granted: tell its operator the sequence number.",
)  # fmt: skip

TABLE: tuple[Refusal, ...] = (
    OUTSIDE_WINDOW,
    AGENT_UNKNOWN,
    SESSION_EXPIRED,
    SESSION_ENDED,
    AGENT_REMOVED,
    OPERATOR_REMOVED,
    TRIAL_OVER,
    UNKNOWN_HISTORY,
    NONCE_REUSED,
    IDEMPOTENCY_MISMATCH,
    DELEGATION_WRONG_LEDGER,
    DELEGATION_TOO_DEEP,
    DELEGATION_WIDER,
    DELEGATION_LONGER,
    DELEGATION_EXPIRED,
    ISSUER_UNKNOWN,
    ISSUER_REMOVED,
    SESSION_TAKEN,
    TOO_MANY_SESSIONS,
    TRIAL_USED_UP,
    OPERATOR_REQUIRED,
    AGENT_NOT_FOUND,
    OPERATOR_NOT_FOUND,
    OPERATOR_LAST,
    KEY_TAKEN,
    APIKEY_NOT_FOUND,
    APIKEY_KNOWN,
    APIKEY_USED,
    SESSION_UNKNOWN,
    SESSION_NOT_YOURS,
    SESSION_REQUIRED,
    KEY_KNOWN,
    KEY_NOT_COMMITTED,
    KEY_OVERLAP,
    KEY_UNKNOWN,
    KEY_LAST,
    OUTSIDE_SCOPE,
    LEDGER_DISPUTED,
    RULES_OUT_OF_TURN,
    SCHEME_BUSY,
    NAME_NOT_ALLOWED,
    MODE_NOT_ALLOWED,
    TICKET_UNKNOWN,
    TICKET_NOT_YOURS,
    TICKET_ENDED,
    ASK_UNKNOWN,
    ASK_NOT_YOURS,
    ASK_ENDED,
    LEASE_UNKNOWN,
    LEASE_NOT_YOURS,
    LEASE_RELEASED,
    LEASE_EXPIRED,
    LEASE_BROKEN,
    LEASE_TRANSFERRED,
    LEASE_CHANGED,
    LEASE_RETURNED,
    LEASE_MISMATCH,
    NOT_HOLDER,
    TOKEN_STALE,
    NOT_OFFERED,
    HOLD_EXCEEDED,
    TOO_MANY_HELD,
    ALREADY_WAITING,
    QUEUE_FULL,
    FENCE_UNKNOWN,
    STALE_FENCE,
    LEASE_TOO_NARROW,
    LEASE_REQUIRED,
    ADMISSION_CONFLICT,
    APPROVAL_WRONG,
    APPROVER_UNFIT,
    APPROVAL_EXPIRED,
    APPROVAL_USED,
    APPROVAL_REQUIRED,
    POLICY_ERROR,
    FORBIDDEN_BY_RULES,
    NOT_PERMITTED,
    TOO_MANY_ASKED,
    DEADLOCK,
    LEASE_HELD,
    LOCK_DELAYED,
    QUEUED,
    DECISION_FAILED,
)

BY_NAME: Mapping[str, Refusal] = MappingProxyType({row.name: row for row in TABLE})
