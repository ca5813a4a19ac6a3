"""Is a refusal the one that the entries before call for, with everything that it tells?

A refusal takes something away, so it is judged like a grant.
Source: docs/protocol.md 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from verifier.entries import Leaf
from verifier.replay.decide import Refused
from verifier.replay.judged import Judged
from verifier.replay.stampede import Edge
from verifier.replay.state import State
from verifier.replay.things import Faults
from verifier.replay.wanted import break_of, wanted_by
from verifier.replay.ways import overlapping

_DISPUTED = {"ledger_disputed": 401}
_NAMES = {"name_not_allowed": 301, "mode_not_allowed": 302}
_OVER = {
    "lease_released": 404,
    "lease_expired": 405,
    "lease_broken": 410,
    "lease_transferred": 411,
    "lease_changed": 412,
}
_BY_ID = {"lease_unknown": 402, "lease_not_yours": 403, **_OVER}
_WAY = {"lease_held": 408, "lock_delayed": 415, "queued": 501}
_TICKET = {"ticket_unknown": 505, "ticket_not_yours": 506, "ticket_ended": 507}
_OPERATOR, _MANY, _STALE = {"operator_required": 105}, {"too_many_held": 417}, {"token_stale": 413}
# The errors that each type may carry, with their numbers.
ERRORS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "agent.refused": _OPERATOR,
        "removal.refused": {**_OPERATOR, "agent_not_found": 106},
        "scheme.refused": {**_OPERATOR, "scheme_busy": 303},
        "lease.refused": {
            **_DISPUTED,
            **_NAMES,
            "hold_exceeded": 414,
            **_MANY,
            "already_waiting": 504,
            "queue_full": 503,
            "deadlock": 502,
            **_WAY,
        },
        "renewal.refused": {
            **_DISPUTED,
            "mode_not_allowed": 302,
            **_BY_ID,
            "hold_exceeded": 414,
            "deadlock": 502,
            **_WAY,
        },
        "release.refused": {**_BY_ID, "lease_mismatch": 406, "not_holder": 407},
        "break.refused": {**_OPERATOR, **_STALE},
        "transfer.refused": {**_DISPUTED, **_BY_ID, **_STALE, "not_offered": 416},
        "acceptance.refused": {**_DISPUTED, "lease_unknown": 402, **_OVER, "not_offered": 416, **_MANY, **_WAY},
        "claim.refused": {**_DISPUTED, **_TICKET, **_MANY},
        "cancel.refused": _TICKET,
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
        "ahead": "ahead_wrong",
        "delayUntilMs": "delay_wrong",
        "ticketId": "citation_wrong",
        "endedSeq": "citation_wrong",
    }
)


def refusal_faults(state: State, leaf: Leaf, entry: Judged) -> Faults:
    """Yield (code, text) of what is wrong with an entry of a type in ERRORS."""
    name, error = leaf.entry_type.name, leaf.text("error")
    if ERRORS[name].get(error) != leaf.number("number"):
        yield "error_unknown", "error and number are not a refusal of this entry type (10.1)"
        return
    wanted = wanted_by(state, leaf, entry)
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
    if wanted.counted_on:
        state.stampede.count(leaf.principal, wanted.counted_on, leaf.time_ms)
    if wanted.mode:
        until_ms = leaf.time_ms + state.numbers["waitEdgeMs"]
        state.edges[leaf.actor] = Edge(wanted.counted_on, wanted.mode, until_ms)


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
