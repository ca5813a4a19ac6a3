"""What leaves the house: a receipt, and the whole answer around it.

Pure. First answer and replay are made by the same function from the same stored bytes (leaf, signature, checkpoint
as first committed, path at that checkpoint's size), so they are equal, after a restart too. Everything an answer says
beside its receipt is read out of the leaf; it is a convenience for people, and clients take facts from the leaf only.
Source: docs/protocol.md, receipts.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import orjson

from gateway.core.refusal import BY_NAME
from verifier.entries import full_type
from verifier.proof import Proof, encode_proof
from verifier.receipt import PAYLOAD_TYPE
from verifier.wire import JsonObject, JsonValue

_REFUSAL_MEMBERS = (
    "leaseId", "ticketId", "holder", "holderName", "conflict", "conflicts", "ahead", "waitingOn", "cycle",
    "acquireOrder", "searchBounded", "stampede", "delayUntilMs", "retryAfterMs", "endedSeq",
)  # fmt: skip


def render(leaf: bytes, signature: bytes, checkpoint: bytes, path: Sequence[bytes], *, key_id: str) -> bytes:
    """Return the receipt file: exactly the member `receipt` of an answer.

    A DSSE envelope over the leaf, with a C2SP tlog-proof beside the signature. `path` proves the leaf in the tree of
    the note `checkpoint`; `key_id` names the key that made `signature`.
    """
    return _render(orjson.loads(leaf)["seq"], leaf, signature, checkpoint, path, key_id)


def answer(leaf: bytes, signature: bytes, checkpoint: bytes, path: Sequence[bytes], *, key_id: str) -> bytes:
    """Return the body of the HTTP answer to the request that caused `leaf`."""
    value: JsonObject = orjson.loads(leaf)
    facts = refusal_of(value) if "error" in value else {"ok": True, **_FACTS[str(value["type"])](value)}
    receipt = _render(value["seq"], leaf, signature, checkpoint, path, key_id)
    return b'%b,"receipt":%b}' % (orjson.dumps(facts)[:-1], receipt)


def _render(
    seq: JsonValue, leaf: bytes, signature: bytes, checkpoint: bytes, path: Sequence[bytes], key_id: str
) -> bytes:
    """Return the receipt's JSON. Base64 needs no escape, and what surrounds the path is made once for each note."""
    assert isinstance(seq, int), "a leaf carries its number"
    before, after = _proof_around(checkpoint)
    return b'{"payloadType":"%b","payload":"%b","signatures":[{"keyid":"%b","sig":"%b"}],"proof":"%b%d\\n%b%b"}' % (
        PAYLOAD_TYPE.encode(),
        b2a_base64(leaf, newline=False),
        key_id.encode(),
        b2a_base64(signature, newline=False),
        before,
        seq,
        b"".join(map(b2a_base64, path)).replace(b"\n", b"\\n"),
        after,
    )


@lru_cache(maxsize=16)
def _proof_around(checkpoint: bytes) -> tuple[bytes, bytes]:
    """Return what stands before the index and after the path in every proof to this note, escaped for JSON.

    A batch has one note, so the verifier's encoder runs once for it and not once for each receipt.
    """
    text = encode_proof(Proof(0, (), checkpoint)).decode()
    before, _, after = text.partition("0\n")
    return orjson.dumps(before)[1:-1], orjson.dumps(after)[1:-1]


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
    return {"agent": {name: leaf[member] for name, member in (("did", "agent"), ("name", "name")) if member in leaf}}


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
        full_type("agent.added"): _agent,
        full_type("agent.removed"): _agent,
    }
)
