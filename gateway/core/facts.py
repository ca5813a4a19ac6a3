"""What an answer says beside its receipt, read out of the leaf: for people, and for programs that trust their gateway.

Pure, so that whoever has verified a leaf can say the same of it as the gateway does (the stdio bridge does so).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from gateway.core.refusal import BY_NAME, DECISION_FAILED
from verifier.entries import full_type
from verifier.wire import JsonObject

_REFUSAL_MEMBERS = (
    "leaseId", "ticketId", "holder", "holderName", "conflict", "conflicts", "ahead", "waitingOn", "cycle",
    "acquireOrder", "searchBounded", "stampede", "delayUntilMs", "retryAfterMs", "endedSeq", "currentToken", "askId",
    "rulesVersion", "index",
)  # fmt: skip
_OK, _DENIED = 200, 403
_ADMIT, _DENIAL = "coordination.admit", full_type("admission.denied")


def facts_of(leaf: JsonObject) -> JsonObject:
    """Return what an answer says beside its receipt."""
    if leaf["type"] == _DENIAL:
        return {**refusal_of(leaf), "allowed": False, **_ruled(leaf)}
    return refusal_of(leaf) if "error" in leaf else {"ok": True, **_FACTS[str(leaf["type"])](leaf)}


def result_of(leaf: JsonObject) -> JsonObject:
    """Return what the answer to a batch says of one command: what a single answer says, with its status and number."""
    return {**facts_of(leaf), "status": status_of(leaf), "seq": leaf["seq"]}


def status_of(leaf: JsonObject) -> int:
    """Return the status of the answer that an entry is: its refusal's, but what is not admitted is always forbidden."""
    if "error" not in leaf:
        return _OK
    row = BY_NAME[str(leaf["error"])]
    is_denied = leaf["type"] == _DENIAL or (leaf.get("action") == _ADMIT and row is not DECISION_FAILED)
    return _DENIED if is_denied else row.status


def lease_of(leaf: JsonObject) -> JsonObject:
    """Return the lease that a grant of any kind, an extension or a renewal speaks of."""
    return {
        "leaseId": leaf["leaseId"],
        **_resources(leaf),
        "holder": leaf["actor"],
        "fencingToken": leaf["fencingToken"],
        "mode": leaf["mode"],
        "ttlMs": leaf["ttlMs"],
        "grantedAtMs": leaf.get("grantedAtMs", leaf["timeMs"]),
        "expiresAtMs": leaf["expiresAtMs"],
        **_told(leaf, ("endsIfIdleAtMs",)),
    }


def refusal_of(leaf: JsonObject) -> JsonObject:
    """Return what a refusal says, in the shape of the seed: what, why, who is in the way, and what to do next."""
    row = BY_NAME[str(leaf["error"])]
    conflict = leaf.get("conflict")
    facts: JsonObject = {
        "ok": False,
        "error": row.name,
        "number": row.number,
        "message": row.advice,
        "retry": row.retry,
    }
    facts |= _told(leaf, _REFUSAL_MEMBERS)
    if isinstance(conflict, dict):
        facts["expiresAtMs"] = conflict["expiresAtMs"]
    return facts


def _told(leaf: JsonObject, names: Sequence[str]) -> JsonObject:
    """Return those of the members that the leaf has."""
    return {name: leaf[name] for name in names if name in leaf}


def _resources(leaf: JsonObject) -> JsonObject:
    """Return `resources`, and `resource` as well when there is one."""
    resources = leaf["resources"]
    if isinstance(resources, list) and len(resources) == 1:
        return {"resource": resources[0], "resources": resources}
    return {"resources": resources}


def _granted(leaf: JsonObject) -> JsonObject:
    return {"lease": lease_of(leaf)}


def _released(leaf: JsonObject) -> JsonObject:
    return {"released": {"leaseId": leaf["leaseId"], **_resources(leaf), "holder": leaf["actor"]}}


def _queued(leaf: JsonObject) -> JsonObject:
    ticket = {**_resources(leaf), **_told(leaf, ("mode", "ttlMs", "giveUpByMs"))}
    return {"ticket": {**_place(leaf), **ticket}, **_told(leaf, ("softCycle", "cycle", "searchBounded"))}


def _polled(leaf: JsonObject) -> JsonObject:
    return {"ticket": _place(leaf)}


def _place(leaf: JsonObject) -> JsonObject:
    return {**_told(leaf, ("ticketId", "position", "pollByMs")), "actor": leaf["actor"]}


def _cancelled(leaf: JsonObject) -> JsonObject:
    return {"cancelled": {"ticketId": leaf["ticketId"], "actor": leaf["actor"]}}


def _offered(leaf: JsonObject) -> JsonObject:
    return {"offer": {**_told(leaf, ("leaseId", "holder", "toDid", "reason")), "fencingToken": leaf["seenToken"]}}


def _broken(leaf: JsonObject) -> JsonObject:
    told = _told(leaf, ("resource", "leaseId", "holder", "reason", "delayUntilMs", "endedSeq"))
    return {"broken": {**told, "fencingToken": leaf["seenToken"]}}


def _scheme(leaf: JsonObject) -> JsonObject:
    return {"scheme": _told(leaf, ("name", "class", "isFolding", "isUnicode", "lockDelayMs", "maxHoldMs"))}


def _agent(leaf: JsonObject) -> JsonObject:
    return {"agent": {"did": leaf["agent"], **_told(leaf, ("name", "agentCustody"))}}


def _operator(leaf: JsonObject) -> JsonObject:
    return {"operator": {"did": leaf["operator"], **_told(leaf, ("name",))}}


def _key(leaf: JsonObject) -> JsonObject:
    return {"ledgerKey": _told(leaf, ("purpose", "key", "next", "announcedSeq"))}


def _apikey(leaf: JsonObject) -> JsonObject:
    return {"apikey": _told(leaf, ("keyDigest", "kind", "agent", "name"))}


def _session(leaf: JsonObject) -> JsonObject:
    told = _told(leaf, ("name", "verbs", "scope", "expiresAtMs", "endsIfIdleAtMs"))
    return {"session": {"did": leaf["actor"], "agent": leaf["principal"], **told}}


def _seen(leaf: JsonObject) -> JsonObject:
    return {"session": {"did": leaf["actor"], **_told(leaf, ("endsIfIdleAtMs", "activity"))}}


def _closed(leaf: JsonObject) -> JsonObject:
    return {"closed": _told(leaf, ("session", "openedSeq", "leases", "tickets", "reason", "endedSeq"))}


def _admitted(leaf: JsonObject) -> JsonObject:
    members = (
        "operation", "mode", "argumentsDigest", "cost", "actionDigest", "leaseId", "fencingToken", "approvals",
        "validUntilMs", "uses",
    )  # fmt: skip
    admission = {"seq": leaf["seq"], **_resources(leaf), **_told(leaf, members), "actor": leaf["actor"]}
    return {"allowed": True, "admission": admission, **_ruled(leaf)}


def _ruled(leaf: JsonObject) -> JsonObject:
    """Return what the rules said of an admission, and from which facts; `isPoliced` is false where no set decided."""
    rules = leaf.get("rules")
    if not isinstance(rules, dict):
        return {"isPoliced": False, "matched": [], "obligations": [], **_told(leaf, ("facts", "schemes"))}
    told = _told(rules, ("matched", "obligations"))
    return {"isPoliced": rules["mode"] == "enforce", **told, **_told(leaf, ("rules", "facts", "schemes"))}


def _asked(leaf: JsonObject) -> JsonObject:
    members = (
        "askId", "operation", "mode", "argumentsDigest", "cost", "actionDigest", "rulesDigest", "approvers", "quorum",
        "giveUpByMs",
    )  # fmt: skip
    return {"ask": {**_resources(leaf), **_told(leaf, members), "actor": leaf["actor"]}}


def _answered(leaf: JsonObject) -> JsonObject:
    return {"ask": {**_told(leaf, ("askId", "approver", "nonce", "digest", "reason")), "actor": leaf["actor"]}}


def _rules(leaf: JsonObject) -> JsonObject:
    return {"rules": _told(leaf, ("rulesVersion", "rulesMode", "digest", "engine", "count"))}


_FACTS: Mapping[str, Callable[[JsonObject], JsonObject]] = MappingProxyType(
    {
        full_type("lease.granted"): _granted,
        full_type("lease.extended"): _granted,
        full_type("lease.claimed"): _granted,
        full_type("lease.changed"): _granted,
        full_type("lease.transferred"): _granted,
        full_type("lease.renewed"): _granted,
        full_type("lease.released"): _released,
        full_type("release.repeated"): _released,
        full_type("wait.queued"): _queued,
        full_type("wait.polled"): _polled,
        full_type("wait.cancelled"): _cancelled,
        full_type("transfer.offered"): _offered,
        full_type("lease.broken"): _broken,
        full_type("break.repeated"): _broken,
        full_type("scheme.set"): _scheme,
        full_type("operator.added"): _operator,
        full_type("operator.removed"): _operator,
        full_type("agent.added"): _agent,
        full_type("agent.removed"): _agent,
        full_type("key.announced"): _key,
        full_type("key.retired"): _key,
        full_type("key.compromised"): _key,
        full_type("apikey.issued"): _apikey,
        full_type("apikey.revoked"): _apikey,
        full_type("session.opened"): _session,
        full_type("session.seen"): _seen,
        full_type("session.closed"): _closed,
        full_type("closing.repeated"): _closed,
        full_type("admission.allowed"): _admitted,
        full_type("approval.asked"): _asked,
        full_type("approval.given"): _answered,
        full_type("approval.declined"): _answered,
        full_type("approval.withdrawn"): _answered,
        full_type("rules.loaded"): _rules,
    }
)
