"""Under which key each record lies, and what the store may do with those under a prefix.

Source: docs/protocol.md, records.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from gateway.core.records import Claim, Delay, Lease, Session, Ticket, Timed, UsageOf

TOKEN_KEY = "ledger/token"
HOLIDAY_KEY = "ledger/holiday"
DISPUTE_KEY = "ledger/dispute"
TICKETS_KEY = "ledger/tickets"  # how many there are
OPERATORS_KEY = "ledger/operators"  # how many are in force
ENROLLER_KEY = "ledger/enroller"
ROOT_KEY = "ledger/root"
RULES_KEY = "ledger/rules"
COSIGNED_KEY = "cosigned/newest"  # read at a start alone; no decision depends on it

# Hot records live in memory; cold ones are looked up in the store, by key, for each batch.
HOT_PREFIXES = (
    "agent/", "operator/", "key/", "apikey/", "session/", "quota/", "scheme/", "lease/", "delay/", "ticket/",
    "handover/", "edge/", "principal/", "wait/", "ask/", "usage/", "ledger/",
)  # fmt: skip
COLD_PREFIXES = ("ended/", "idem/", "nonce/", "burnt/", "cosigned/")
# Records the store may drop, in any order, once their due time is not after log time. What stands on resources has
# none: only a decision removes it.
EXPENDABLE_PREFIXES = ("wait/", "edge/", "ask/", "usage/", "session/", "ended/", "idem/", "nonce/", "burnt/")


def agent_key(did: str) -> str:
    return f"agent/{did}"


def operator_key(did: str) -> str:
    return f"operator/{did}"


def key_in_ledger(did: str) -> str:
    """Return the key of the record of a ledger's key, which is known by the did:key of its raw public key."""
    return f"key/{did}"


def keys_key(purpose: str) -> str:
    return f"ledger/keys/{purpose}"


def apikey_key(digest: str) -> str:
    return f"apikey/{digest}"


def session_key(did: str) -> str:
    return f"session/{did}"


def quota_key(did: str) -> str:
    return f"quota/{did}"


def lease_key(lease_id: str) -> str:
    return f"lease/{lease_id}"


def scheme_key(name: str) -> str:
    return f"scheme/{name}"


def delay_key(lease_id: str) -> str:
    return f"delay/{lease_id}"


def ticket_key(ticket_id: str) -> str:
    return f"ticket/{ticket_id}"


def handover_key(lease_id: str) -> str:
    return f"handover/{lease_id}"


def edge_key(actor: str) -> str:
    return f"edge/{actor}"


def principal_key(did: str) -> str:
    return f"principal/{did}"


def wait_key(principal: str, resource: str) -> str:
    return f"wait/{principal}/{resource}"


def usage_key(of: UsageOf, name: str) -> str:
    return f"usage/{of}/{name}"


def ended_key(name: str) -> str:
    """Return the key of an end: of a lease or ticket by its id, of a broken token by `broken_name`."""
    return f"ended/{name}"


def broken_name(fencing_token: int) -> str:
    return f"B{fencing_token}"


def idempotency_key(actor: str, key: str) -> str:
    return _spent_key("idem", actor, key)


def nonce_key(actor: str, nonce: str) -> str:
    return _spent_key("nonce", actor, nonce)


def burnt_key(approver: str, nonce: str) -> str:
    return _spent_key("burnt", approver, nonce)


def ask_key(ask_id: str) -> str:
    return f"ask/{ask_id}"


@lru_cache(maxsize=2_048)
def _spent_key(kind: str, actor: str, name: str) -> str:
    """Hashed to 16 bytes, because most records lie under such a key: it is short and of a plain alphabet.

    Who looks for two names of one place (2^64 hashes) finds them under their own key only. Asked three times for
    each request.
    """
    place = hashlib.sha256(f"{actor}\n{name}".encode()).hexdigest()[:32]
    return f"{kind}/{place}"


def claim_key(claim: Claim) -> str:
    match claim:
        case Lease():
            return lease_key(claim.lease_id)
        case Delay():
            return delay_key(claim.lease_id)
        case Ticket():
            return ticket_key(claim.ticket_id)


def timed_key(timed: Timed) -> str:
    return session_key(timed.did) if isinstance(timed, Session) else claim_key(timed)
