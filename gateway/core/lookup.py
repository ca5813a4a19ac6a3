"""Records by what they are about, as the kind that lies there; those whose time has passed are not there."""

from __future__ import annotations

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
    RuleSet,
    Scheme,
    Session,
    Ticket,
    Usage,
    UsageOf,
    Waits,
)


def agent_at(view: Draft | View, did: str) -> Agent | None:
    record = view.get(agent_key(did))
    assert record is None or isinstance(record, Agent), "an agent key holds an agent"
    return record


def operator_at(view: Draft | View, did: str) -> Operator | None:
    """Return an operator, removed or in force."""
    record = view.get(operator_key(did))
    assert record is None or isinstance(record, Operator), "an operator key holds an operator"
    return record


def ledger_key_at(view: Draft | View, did: str) -> LedgerKey | None:
    """Return what is known of a raw key that signs, or signed, for the ledger."""
    record = view.get(key_in_ledger(did))
    assert record is None or isinstance(record, LedgerKey), "a place of keys holds a key of the ledger"
    return record


def keys_at(view: Draft | View, purpose: str) -> Keys:
    """Return the keys of a purpose in force."""
    record = view.get(keys_key(purpose))
    assert isinstance(record, Keys), "entry 0 names the first keys"
    return record


def apikey_at(view: Draft | View, digest: str) -> ApiKey | None:
    record = view.get(apikey_key(digest))
    assert record is None or isinstance(record, ApiKey), "an API key's key holds an API key"
    return record


def session_at(view: Draft | View, did: str) -> Session | None:
    """Return a session, open or ended."""
    record = view.get(session_key(did))
    assert record is None or isinstance(record, Session), "a session key holds a session"
    return record


def quota_at(view: Draft | View, did: str) -> Quota:
    """Return what a trial agent has used up; nothing before its first entry."""
    record = view.get(quota_key(did))
    assert record is None or isinstance(record, Quota), "a quota key holds a quota"
    return record or Quota(did, 0)


def lease_at(view: Draft | View, lease_id: str) -> Lease | None:
    record = view.get(lease_key(lease_id))
    assert record is None or isinstance(record, Lease), "a lease key holds a lease"
    return record


def ticket_at(view: Draft | View, ticket_id: str) -> Ticket | None:
    record = view.get(ticket_key(ticket_id))
    assert record is None or isinstance(record, Ticket), "a ticket key holds a ticket"
    return record


def handover_at(view: Draft | View, lease_id: str) -> Handover | None:
    record = view.get(handover_key(lease_id))
    assert record is None or isinstance(record, Handover), "a handover key holds an offer"
    return record


def scheme_at(view: Draft | View, name: str) -> Scheme | None:
    """Return what an operator set for a scheme, None for one that nobody has set."""
    record = view.get(scheme_key(name))
    assert record is None or isinstance(record, Scheme), "a scheme key holds a scheme"
    return record


def edge_at(view: Draft | View, actor: str, t_ms: int) -> Edge | None:
    """Return the refused acquire for which an actor counts as waiting at `t_ms`."""
    record = view.get(edge_key(actor))
    assert record is None or isinstance(record, Edge), "an edge key holds an edge"
    return record if record and t_ms < record.until_ms else None


def principal_at(view: Draft | View, did: str, parameters: Parameters) -> Principal:
    """Return what is counted of a principal; one that never did anything stands at the start."""
    record = view.get(principal_key(did))
    assert record is None or isinstance(record, Principal), "a principal key holds a principal"
    return record or Principal(did, parameters.trust_start, None, 0, 0, 0)


def counter_at(view: Draft | View, key: str) -> int:
    """Return a number of the ledger; 0 before it was first set."""
    record = view.get(key)
    assert record is None or isinstance(record, Counter), "a counter key holds a counter"
    return record.value if record else 0


def rule_set_at(view: Draft | View) -> RuleSet | None:
    """Return the rules in force; None before any were loaded."""
    record = view.get(RULES_KEY)
    assert record is None or isinstance(record, RuleSet), "the place of the rules holds a rule set"
    return record


def usage_at(view: Draft | View, of: UsageOf, name: str) -> Usage:
    """Return what was counted of somebody last, in whichever minute and day that was."""
    record = view.get(usage_key(of, name))
    assert record is None or isinstance(record, Usage), "a usage key holds usage"
    return record or Usage(0, 0, 0, 0, 0, 0, 0, 0)


def waits_at(view: Draft | View, principal: str, resource: str, t_ms: int) -> Waits | None:
    """Return the wait record that still counts at `t_ms`."""
    record = view.get(wait_key(principal, resource))
    assert record is None or isinstance(record, Waits), "a wait key holds waits"
    return record if record and t_ms < record.until_ms else None


def ended_at(view: Draft | View, name: str, t_ms: int) -> Ended | None:
    """Return how the lease or ticket of this id ended, as long as that is remembered at `t_ms`."""
    record = view.get(ended_key(name))
    assert record is None or isinstance(record, Ended), "an ended key holds an end"
    return record if record and t_ms < record.until_ms else None


def idempotency_at(view: Draft | View, actor: str, key: str, t_ms: int) -> Idempotency | None:
    """Return the decision under an idempotency key, as long as the key lives at `t_ms`."""
    record = view.get(idempotency_key(actor, key))
    assert record is None or isinstance(record, Idempotency), "an idempotency key holds a decision"
    return record if record and t_ms < record.until_ms else None


def nonce_at(view: Draft | View, actor: str, nonce: str, t_ms: int) -> Nonce | None:
    """Return the use of a nonce that could still be replayed at `t_ms`."""
    record = view.get(nonce_key(actor, nonce))
    assert record is None or isinstance(record, Nonce), "a nonce key holds a nonce"
    return record if record and t_ms < record.until_ms else None


def burnt_at(view: Draft | View, approver: str, nonce: str, t_ms: int) -> Burnt | None:
    """Return the use of an approval that could still be used again at `t_ms`."""
    record = view.get(burnt_key(approver, nonce))
    assert record is None or isinstance(record, Burnt), "a burnt key holds an approval that was used"
    return record if record and t_ms < record.until_ms else None


def pending_at(view: Draft | View, ask_id: str, t_ms: int) -> Pending | None:
    """Return an ask, live or over, as long as it is remembered at `t_ms`."""
    record = view.get(ask_key(ask_id))
    assert record is None or isinstance(record, Pending), "an ask key holds an ask"
    return record if record and t_ms < record.until_ms else None
