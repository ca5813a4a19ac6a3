"""A few lines of admission logic for the little gateway of world.py: fences, asks, approvals that are used once.

Not the rules of the ledger (tests/core has those): no conflicts, no rule sets, one operator of all approvers. A test
that needs another denial scripts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keys.signing import SigningKey
from verifier.approval import Approval, action_digest, parse_approvals
from verifier.entries import BODY_DEFAULTS, ZERO_HASH, resources_of, scheme_of
from verifier.wire import JsonObject, JsonValue

if TYPE_CHECKING:
    from tests.client.desk import Decision, Desk

APPROVING_OPERATOR = SigningKey(bytes([19]) * 32).did
ADMISSION_MS = 60_000
_COUNTS = ("CountMinute", "CountDay", "CostDay")
_NUMBERS: Mapping[str, int] = {
    "lease_required": 604, "stale_fence": 602, "approval_used": 614, "ask_unknown": 641, "ask_not_yours": 642,
    "ask_ended": 643,
}  # fmt: skip


@dataclass
class Asked:
    """A request for approval, and how it stands."""

    asker: str
    members: JsonObject
    seq: int
    given: dict[str, int] = field(default_factory=dict)
    state: str = "open"
    ended_seq: int | None = None


@dataclass
class Gate:
    """What was asked, and which nonces are burnt."""

    asks: dict[str, Asked] = field(default_factory=dict)
    burnt: set[str] = field(default_factory=set)
    rules: JsonObject | None = None  # what a rule set in force says of every admission

    def view(self, query: str) -> JsonObject:
        """Return the list of requests; only one by its id is asked for here."""
        ask_id = query.removeprefix("askId=")
        return {"ok": True, "approvals": [_row(ask_id, self.asks[ask_id])] if ask_id in self.asks else []}

    def admit(self, desk: Desk, body: JsonObject, actor: str) -> Decision:
        """Decide by the fence and the nonces alone."""
        approvals = parse_approvals(body["approvals"]) if "approvals" in body else ()
        said = _said("coordination.admit", body)
        held: JsonObject = {name: body[name] for name in ("leaseId", "fencingToken") if name in body}
        live = desk.live.get(str(body.get("leaseId")))
        if not held and said["mode"] != "read":
            return _refused("admission.denied", {**said, **held}, "lease_required")
        if held and (live is None or live.lease["fencingToken"] != body["fencingToken"]):
            ended = desk.ended.get(str(body["leaseId"]))
            told: JsonObject = {} if ended is None else {"endedSeq": ended[1]}
            return _refused("admission.denied", {**said, **held, **told}, "stale_fence")
        if self.burnt & {one.nonce for one in approvals}:
            return _refused("admission.denied", {**said, **held}, "approval_used")
        self.burnt |= {one.nonce for one in approvals}
        until_ms = min(desk.now_ms + ADMISSION_MS, *([live.expires_at_ms] if live else [desk.now_ms + ADMISSION_MS]))
        return "admission.allowed", {
            **said, **held, **({"grantSeq": live.seq} if live else {}), **_ruled(desk, said, actor),
            "facts": _facts(desk, live, len(approvals)), "validUntilMs": until_ms, "uses": 1,
            **({"approvals": [_used(one) for one in approvals]} if approvals else {}),
        }  # fmt: skip

    def ask(self, desk: Desk, body: JsonObject, actor: str) -> Decision:
        said = _said("approval.ask", body)
        give_up_ms = body.get("giveUpMs", BODY_DEFAULTS["approval.ask"]["giveUpMs"])
        assert isinstance(give_up_ms, int)
        ask_id = f"A{desk.seq}"
        members: JsonObject = {
            **said, "actionDigest": _digest(desk, said, actor), "rulesDigest": ZERO_HASH,
            "approvers": body["approvers"], "quorum": body.get("quorum", 1), "askId": ask_id,
            "giveUpByMs": desk.now_ms + give_up_ms,
        }  # fmt: skip
        self.asks[ask_id] = Asked(actor, members, desk.seq)
        return "approval.asked", members

    def give(self, desk: Desk, body: JsonObject, actor: str) -> Decision:
        asked = self.asks.get(str(body["askId"]))
        if asked is None or asked.state != "open":
            return self._over("giving.refused", body, asked)
        (one,) = parse_approvals([body["approval"]])
        asked.given[actor] = desk.seq
        if len(asked.given) == asked.members["quorum"]:
            asked.state, asked.ended_seq = "given", desk.seq
        named: JsonObject = {"askId": body["askId"], "askSeq": asked.seq, "approver": actor}
        return "approval.given", {**named, "nonce": one.nonce, "digest": one.digest}

    def decline(self, desk: Desk, body: JsonObject, actor: str) -> Decision:
        return self._end(desk, body, "declined", "declining.refused")

    def withdraw(self, desk: Desk, body: JsonObject, actor: str) -> Decision:
        return self._end(desk, body, "withdrawn", "withdrawal.refused")

    def _end(self, desk: Desk, body: JsonObject, how: str, refused: str) -> Decision:
        asked = self.asks.get(str(body["askId"]))
        if asked is None or asked.state != "open":
            return self._over(refused, body, asked)
        asked.state, asked.ended_seq = how, desk.seq
        why: JsonObject = {"reason": body["reason"]} if "reason" in body else {}
        return f"approval.{how}", {"askId": body["askId"], "askSeq": asked.seq, **why}

    def _over(self, entry: str, body: JsonObject, asked: Asked | None) -> Decision:
        if asked is None:
            return _refused(entry, {"askId": body["askId"]}, "ask_unknown")
        return _refused(entry, {"askId": body["askId"], "endedSeq": asked.ended_seq}, "ask_ended")


def _row(ask_id: str, asked: Asked) -> JsonObject:
    given: list[JsonValue] = [{"approver": did, "seq": seq} for did, seq in asked.given.items()]
    ended: JsonObject = {} if asked.ended_seq is None else {"endedSeq": asked.ended_seq}
    return {**asked.members, "askId": ask_id, "actor": asked.asker, "state": asked.state, "given": given, **ended}


def _said(action: str, body: JsonObject) -> JsonObject:
    defaults = BODY_DEFAULTS[action]
    named: JsonObject = {name: body.get(name, defaults.get(name)) for name in ("operation", "mode", "cost")}
    return {**named, "resources": [*resources_of(body)], "argumentsDigest": body["argumentsDigest"]}


def _digest(desk: Desk, said: JsonObject, actor: str) -> str:
    sitting = desk.sessions.get(actor)
    known: dict[str, Any] = dict(said)
    return action_digest(
        agent=sitting.principal if sitting else actor, ledger="gateway.example/main", operation=known["operation"],
        resources=known["resources"], mode=known["mode"], arguments_digest=known["argumentsDigest"], cost=known["cost"],
        rules_digest=ZERO_HASH if desk.gate.rules is None else str(desk.gate.rules["digest"]),
    )  # fmt: skip


def _ruled(desk: Desk, said: JsonObject, actor: str) -> JsonObject:
    names = resources_of(said)
    schemes: list[JsonValue] = [
        {
            "name": name, "class": desk.classes.get(name, "exclusive"), "isFolding": name in desk.folding,
            "countMinute": 0, "countDay": 0, "costDay": 0,
        }
        for name in sorted(set(map(scheme_of, names)))
    ]  # fmt: skip
    rules: JsonObject = {} if desk.gate.rules is None else {"rules": desk.gate.rules}
    return {"actionDigest": _digest(desk, said, actor), "schemes": schemes, **rules}


def _facts(desk: Desk, live: Any, approvals: int) -> JsonObject:
    counts: JsonObject = {f"{whose}{count}": 0 for whose in ("agent", "operator") for count in _COUNTS}
    return {
        "trust": 50_000, "approvals": approvals, "leaseState": "live" if live else "none",
        "leaseMode": live.mode if live else "none",
        "leaseAgeMs": desk.now_ms - live.granted_at_ms if live else 0,
        "leaseLeftMs": live.expires_at_ms - desk.now_ms if live else 0,
        "agentName": "", "actorKind": "agent", "custody": "agent", **counts,
    }  # fmt: skip


def _used(one: Approval) -> JsonObject:
    return {"approver": one.approver, "operator": APPROVING_OPERATOR, "nonce": one.nonce, "digest": one.digest}


def _refused(entry: str, members: JsonObject, error: str) -> Decision:
    told = {name: value for name, value in members.items() if value is not None}
    return entry, {**told, "error": error, "number": _NUMBERS[error]}
