"""Trust: a bounded number for each principal, moved by how it gives leases back. Its whole history is in the ledger.

A release after a real hold earns a little, an expiry costs ten times as much. What one window can earn is capped, so
that empty pairs of acquire and release never buy back a lease that was left to run out.

Source: docs/protocol.md 25; decisions.md §22.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.draft import Draft
from gateway.core.lookup import principal_at
from gateway.core.outcome import Context
from gateway.core.record_keys import principal_key
from gateway.core.records import Principal
from verifier.wire import JsonObject


def gain(draft: Draft, did: str, held_ms: int, context: Context) -> JsonObject:
    """Count a release by its holder after `held_ms`; return the member `trust` of its entry, if anything changed."""
    numbers = context.parameters
    before = principal_at(draft, did, numbers)
    if held_ms < numbers.trust_gain_hold_ms:
        return {}
    is_new_window = before.gained == 0 or context.t_ms >= before.gain_since_ms + numbers.trust_gain_window_ms
    since_ms, gained = (context.t_ms, 0) if is_new_window else (before.gain_since_ms, before.gained)
    change = min(numbers.trust_gain, numbers.trust_gain_max - gained, numbers.trust_max - before.trust)
    if change <= 0:
        return {}
    after = before._replace(gain_since_ms=since_ms, gained=gained + change)
    return {"trust": [_move(draft, after, change, context)]}


def lose(draft: Draft, dids: Iterable[str], context: Context) -> JsonObject:
    """Count an expiry against each of `dids`, and return the member `trust` of its entry, if anything changed."""
    rows: list[JsonObject] = []
    for did in dict.fromkeys(dids):
        before = principal_at(draft, did, context.parameters)
        change = -min(context.parameters.trust_loss, before.trust)
        if change:
            rows.append(_move(draft, before, change, context))
    return {"trust": [*rows]} if rows else {}


def _move(draft: Draft, principal: Principal, change: int, context: Context) -> JsonObject:
    """Change the trust of `principal` and return what the entry says: how much, the value after, the entry before."""
    after = principal._replace(trust=principal.trust + change, trust_seq=context.seq)
    draft.put(principal_key(principal.did), after)
    previous: JsonObject = {} if principal.trust_seq is None else {"previousSeq": principal.trust_seq}
    return {"did": principal.did, "change": change, "after": after.trust, **previous}
