"""Records by what they are about, as the kind that lies there; those whose time has passed are not there."""

from __future__ import annotations

from typing import TypeVar

from gateway.core.draft import Draft, View
from gateway.core.parameters import Parameters
from gateway.core.record_keys import (
    RULES_KEY,
    agent_key,
    apikey_key,
    ask_key,
    burnt_key,
    edge_key,
    ended_key,
    handover_key,
    idempotency_key,
    key_in_ledger,
    keys_key,
    lease_key,
    nonce_key,
    operator_key,
    principal_key,
    quota_key,
    scheme_key,
    session_key,
    ticket_key,
    usage_key,
    wait_key,
)
from gateway.core.records import (
    Agent,
    ApiKey,
    Burnt,
    Counter,
    Edge,
    Ended,
    Handover,
    Idempotency,
    Keys,
    Lease,
    LedgerKey,
    Nonce,
    Operator,
    Pending,
    Principal,
    Quota,
    Record,
    RuleSet,
    Scheme,
    Session,
    Ticket,
    Usage,
    UsageOf,
    Waits,
)

R = TypeVar("R", bound=Record)
T = TypeVar("T", Edge, Waits, Ended, Idempotency, Nonce, Burnt, Pending)


def _found(view: Draft | View, key: str, kind: type[R]) -> R | None:
    record = view.get(key)
    assert record is None or isinstance(record, kind), "under a key lies a record of its kind"
    return record


def _remembered(view: Draft | View, key: str, kind: type[T], t_ms: int) -> T | None:
    """Return what still counts at `t_ms`."""
    record = _found(view, key, kind)
    return record if record and t_ms < record.until_ms else None


def agent_at(view: Draft | View, did: str) -> Agent | None:
    return _found(view, agent_key(did), Agent)


def operator_at(view: Draft | View, did: str) -> Operator | None:
    """Return an operator, removed or in force."""
    return _found(view, operator_key(did), Operator)


def ledger_key_at(view: Draft | View, did: str) -> LedgerKey | None:
    """Return what is known of a raw key that signs, or signed, for the ledger."""
    return _found(view, key_in_ledger(did), LedgerKey)


def keys_at(view: Draft | View, purpose: str) -> Keys:
    """Return the keys of a purpose in force."""
    record = view.get(keys_key(purpose))
    assert isinstance(record, Keys), "entry 0 names the first keys"
    return record


def apikey_at(view: Draft | View, digest: str) -> ApiKey | None:
    return _found(view, apikey_key(digest), ApiKey)


def session_at(view: Draft | View, did: str) -> Session | None:
    """Return a session, open or ended."""
    return _found(view, session_key(did), Session)


def quota_at(view: Draft | View, did: str) -> Quota:
    """Return what a trial agent has used up; nothing before its first entry."""
    return _found(view, quota_key(did), Quota) or Quota(did, 0)


def lease_at(view: Draft | View, lease_id: str) -> Lease | None:
    return _found(view, lease_key(lease_id), Lease)


def ticket_at(view: Draft | View, ticket_id: str) -> Ticket | None:
    return _found(view, ticket_key(ticket_id), Ticket)


def handover_at(view: Draft | View, lease_id: str) -> Handover | None:
    return _found(view, handover_key(lease_id), Handover)


def scheme_at(view: Draft | View, name: str) -> Scheme | None:
    """Return what an operator set for a scheme, None for one that nobody has set."""
    return _found(view, scheme_key(name), Scheme)


def edge_at(view: Draft | View, actor: str, t_ms: int) -> Edge | None:
    """Return the refused acquire for which an actor counts as waiting at `t_ms`."""
    return _remembered(view, edge_key(actor), Edge, t_ms)


def principal_at(view: Draft | View, did: str, parameters: Parameters) -> Principal:
    """Return what is counted of a principal; one that never did anything stands at the start."""
    return _found(view, principal_key(did), Principal) or Principal(did, parameters.trust_start, None, 0, 0, 0)


def counter_at(view: Draft | View, key: str) -> int:
    """Return a number of the ledger; 0 before it was first set."""
    record = _found(view, key, Counter)
    return record.value if record else 0


def rule_set_at(view: Draft | View) -> RuleSet | None:
    """Return the rules in force; None before any were loaded."""
    return _found(view, RULES_KEY, RuleSet)


def usage_at(view: Draft | View, of: UsageOf, name: str) -> Usage:
    """Return what was counted of somebody last, in whichever minute and day that was."""
    return _found(view, usage_key(of, name), Usage) or Usage(0, 0, 0, 0, 0, 0, 0, 0)


def waits_at(view: Draft | View, principal: str, resource: str, t_ms: int) -> Waits | None:
    """Return the wait record that still counts at `t_ms`."""
    return _remembered(view, wait_key(principal, resource), Waits, t_ms)


def ended_at(view: Draft | View, name: str, t_ms: int) -> Ended | None:
    """Return how the lease or ticket of this id ended, as long as that is remembered at `t_ms`."""
    return _remembered(view, ended_key(name), Ended, t_ms)


def idempotency_at(view: Draft | View, actor: str, key: str, t_ms: int) -> Idempotency | None:
    """Return the decision under an idempotency key, as long as the key lives at `t_ms`."""
    return _remembered(view, idempotency_key(actor, key), Idempotency, t_ms)


def nonce_at(view: Draft | View, actor: str, nonce: str, t_ms: int) -> Nonce | None:
    """Return the use of a nonce that could still be replayed at `t_ms`."""
    return _remembered(view, nonce_key(actor, nonce), Nonce, t_ms)


def burnt_at(view: Draft | View, approver: str, nonce: str, t_ms: int) -> Burnt | None:
    """Return the use of an approval that could still be used again at `t_ms`."""
    return _remembered(view, burnt_key(approver, nonce), Burnt, t_ms)


def pending_at(view: Draft | View, ask_id: str, t_ms: int) -> Pending | None:
    """Return an ask, live or over, as long as it is remembered at `t_ms`."""
    return _remembered(view, ask_key(ask_id), Pending, t_ms)
