"""A few lines of lease logic for the little gateway of world.py: leases in modes, sub-trees, a line, sessions.

Not the rules of the ledger (tests/core has those): no deadlocks, no delays, no bounds, no judging of statements. A test
that needs a refusal of such a kind scripts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from keys.signing import SigningKey
from tests.client.gate import Gate
from verifier.entries import ACTION_PATHS, key_of, may_share, overlaps, resources_of, scheme_of
from verifier.wire import JsonObject, JsonValue

Decision = tuple[str, JsonObject]
OPERATOR = SigningKey(bytes([9]) * 32).did  # of entry 0
HOLD_MS = 3_600_000
POLL_MS = 30_000
IDLE_MS = 120_000


@dataclass
class Live:
    """A lease as the little gateway knows it."""

    holder: str
    lease: JsonObject
    granted_at_ms: int
    expires_at_ms: int
    seq: int
    offered_to: str = ""
    offer_seq: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return resources_of(self.lease)

    @property
    def mode(self) -> str:
        return str(self.lease["mode"])


@dataclass
class Waiting:
    """A ticket: a place in the one line there is."""

    seq: int
    actor: str
    names: tuple[str, ...]
    mode: str
    ttl_ms: int
    poll_by_ms: int
    queued_at_ms: int

    @property
    def ticket_id(self) -> str:
        return f"T{self.seq}"


@dataclass
class Sitting:
    """A session as the little gateway knows it: `idle_by_ms` moves with each entry of its own."""

    did: str
    principal: str
    on_behalf_of: str
    seq: int
    expires_at_ms: int
    idle_by_ms: int
    ended_seq: int | None = None

    @property
    def ends_at_ms(self) -> int:
        return min(self.idle_by_ms, self.expires_at_ms)


@dataclass
class Desk:
    """Decides at `now_ms`, for the entry `seq`; `script` has decisions to be taken instead, first come first."""

    live: dict[str, Live] = field(default_factory=dict)
    line: list[Waiting] = field(default_factory=list)
    ended: dict[str, tuple[str, int]] = field(default_factory=dict)  # lease or ticket id: how, and by which entry
    script: list[Decision | Callable[[], Decision]] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)
    folding: set[str] = field(default_factory=set)
    sessions: dict[str, Sitting] = field(default_factory=dict)
    gate: Gate = field(default_factory=Gate)
    idle_ms: int = IDLE_MS
    refusals: int = 0
    now_ms: int = 0
    seq: int = 0

    def decide(self, path: str, body: JsonObject, actor: str) -> Decision:
        """Return the type and the members of the entry that answers a request."""
        self.tidy()
        if self.script:
            scripted = self.script.pop(0)
            return scripted() if callable(scripted) else scripted
        verb = next(name for name, where in ACTION_PATHS.items() if where == path).replace(".", "_")
        decided: Decision = getattr(self, f"_{verb}")(body, actor)
        return decided

    def tidy(self) -> None:
        """What ran out is gone, and so is what a session held that was not heard of for too long."""
        for sitting in self.sessions.values():
            if sitting.ended_seq is None and sitting.ends_at_ms <= self.now_ms:
                self._end(sitting)
        self.live = {key: live for key, live in self.live.items() if live.expires_at_ms > self.now_ms}
        for lapsed in [ticket for ticket in self.line if ticket.poll_by_ms <= self.now_ms]:
            self.line.remove(lapsed)
            self.ended[lapsed.ticket_id] = ("ticket_ended", self.seq - 1)

    def on(self, name: str) -> Live:
        """Return the live lease that overlaps a name."""
        return next(live for live in self.live.values() if any(self._meet(name, other) for other in live.names))

    # -- sessions ------------------------------------------------------------------------------------------------------

    def rejects(self, actor: str) -> str:
        """Return the code with which an actor is turned away before anything is decided, or ""."""
        sitting = self.sessions.get(actor)
        if sitting is None or (sitting.ended_seq is None and self.now_ms < sitting.expires_at_ms):
            return ""
        return "session_expired" if self.now_ms >= sitting.expires_at_ms else "session_ended"

    def hear(self, actor: str, members: JsonObject) -> JsonObject:
        """Note an entry of a session, and return the members with the end that a lease of it has by that."""
        sitting = self.sessions.get(actor)
        if sitting is None:
            return members
        sitting.idle_by_ms = self.now_ms + self.idle_ms
        expires_at_ms = members.get("expiresAtMs")
        if "fencingToken" not in members or not isinstance(expires_at_ms, int):
            return members
        return {**members, "endsIfIdleAtMs": min(expires_at_ms, sitting.ends_at_ms)}

    def _end(self, sitting: Sitting) -> int:
        """Give back what it holds; return how many leases that were."""
        sitting.ended_seq = self.seq
        mine = [key for key, live in self.live.items() if live.holder == sitting.did]
        for lease_id in mine:
            del self.live[lease_id]
            self.ended[lease_id] = ("lease_returned", self.seq)
        return len(mine)

    def _session_open(self, body: JsonObject, actor: str) -> Decision:
        rows = body["delegations"]
        assert isinstance(rows, list)
        statements = [row["statement"] for row in rows if isinstance(row, dict)]
        first, last = statements[0], statements[-1]
        assert isinstance(first, dict) and isinstance(last, dict)
        expires_at_ms = last["expiresAtMs"]
        assert isinstance(expires_at_ms, int)
        principal = actor if last["iss"] == OPERATOR else str(last["iss"])
        sitting = Sitting(actor, principal, OPERATOR, self.seq, expires_at_ms, self.now_ms + self.idle_ms)
        self.sessions[actor] = sitting
        asked = {"name": body["name"]} if "name" in body else {}
        scope = {"scope": last["resources"]} if "resources" in last else {}
        ends: JsonObject = {"expiresAtMs": expires_at_ms, "endsIfIdleAtMs": sitting.ends_at_ms}
        return "session.opened", {"verbs": last["verbs"], **scope, **ends, **asked}

    def _session_beat(self, body: JsonObject, actor: str) -> Decision:
        sitting = self.sessions.get(actor)
        if sitting is None:
            return "beat.refused", {"error": "session_required", "number": 130}
        activity = {"activity": body["activity"]} if "activity" in body else {}
        return "session.seen", {
            "endsIfIdleAtMs": min(self.now_ms + self.idle_ms, sitting.expires_at_ms), **activity,
        }  # fmt: skip

    def _session_close(self, body: JsonObject, actor: str) -> Decision:
        named = {"session": body["session"]}
        sitting = self.sessions.get(str(body["session"]))
        if sitting is None:
            return "closing.refused", {**named, "error": "session_unknown", "number": 128}
        if actor not in (sitting.did, sitting.principal, sitting.on_behalf_of):
            return "closing.refused", {**named, "error": "session_not_yours", "number": 129}
        if sitting.ended_seq is not None:
            return "closing.repeated", {**named, "endedSeq": sitting.ended_seq}
        why = {"reason": body["reason"]} if "reason" in body else {}
        count = self._end(sitting)
        return "session.closed", {**named, "openedSeq": sitting.seq, "leases": count, "tickets": 0, **why}

    # -- people --------------------------------------------------------------------------------------------------------

    def _agent_add(self, body: JsonObject, actor: str) -> Decision:
        return "agent.added", {
            name: body[name] for name in ("agent", "name", "agentCustody", "keyDigest") if name in body
        }

    def _agent_remove(self, body: JsonObject, actor: str) -> Decision:
        return "agent.removed", {"agent": body["agent"]}

    def _operator_add(self, body: JsonObject, actor: str) -> Decision:
        return "operator.added", {name: body[name] for name in ("operator", "name") if name in body}

    def _operator_remove(self, body: JsonObject, actor: str) -> Decision:
        return "operator.removed", {"operator": body["operator"]}

    def _apikey_issue(self, body: JsonObject, actor: str) -> Decision:
        return "apikey.issued", {name: body[name] for name in ("keyDigest", "kind", "agent", "name") if name in body}

    def _apikey_revoke(self, body: JsonObject, actor: str) -> Decision:
        return "apikey.revoked", {"keyDigest": body["keyDigest"], "issuedSeq": self.seq - 1}

    # -- admission (gate.py) -------------------------------------------------------------------------------------------

    def _coordination_admit(self, body: JsonObject, actor: str) -> Decision:
        return self.gate.admit(self, body, actor)

    def _approval_ask(self, body: JsonObject, actor: str) -> Decision:
        return self.gate.ask(self, body, actor)

    def _approval_give(self, body: JsonObject, actor: str) -> Decision:
        return self.gate.give(self, body, actor)

    def _approval_decline(self, body: JsonObject, actor: str) -> Decision:
        return self.gate.decline(self, body, actor)

    def _approval_withdraw(self, body: JsonObject, actor: str) -> Decision:
        return self.gate.withdraw(self, body, actor)

    # -- conflict ------------------------------------------------------------------------------------------------------

    def _meet(self, one: str, two: str) -> bool:
        return overlaps(*(key_of(name, scheme_of(name) in self.folding) for name in (one, two)))

    def _class(self, name: str) -> str:
        return self.classes.get(scheme_of(name), "exclusive")

    def _clash(self, names: tuple[str, ...], mode: str, others: tuple[str, ...], other_mode: str) -> list[str]:
        """Return which of `names` can't be had beside those others."""
        return [
            name
            for name in names
            if not may_share(self._class(name), mode, other_mode) and any(self._meet(name, other) for other in others)
        ]

    def _leases_in_the_way(self, names: tuple[str, ...], mode: str, actor: str) -> list[Live]:
        others = (live for live in self.live.values() if live.holder != actor)
        return [live for live in others if self._clash(names, mode, live.names, live.mode)]

    def _ahead(self, names: tuple[str, ...], mode: str, actor: str, before: int) -> list[Waiting]:
        others = (ticket for ticket in self.line if ticket.actor != actor and ticket.seq < before)
        return [ticket for ticket in others if self._clash(names, mode, ticket.names, ticket.mode)]

    def is_served(self, ticket: Waiting) -> bool:
        """Say whether a ticket's turn has come."""
        mine = (ticket.names, ticket.mode, ticket.actor)
        return not self._leases_in_the_way(*mine) and not self._ahead(*mine, ticket.seq)

    # -- leases --------------------------------------------------------------------------------------------------------

    def _lease_acquire(self, body: JsonObject, actor: str) -> Decision:
        names, mode, ttl_ms = resources_of(body), str(body.get("mode", "write")), _ttl(body)
        own = next((o for o in self.live.values() if (o.holder, o.names, o.mode) == (actor, names, mode)), None)
        if own is not None:
            return self._again("lease.extended", own, ttl_ms)
        held = self._leases_in_the_way(names, mode, actor)
        ahead = self._ahead(names, mode, actor, self.seq)
        if not held and not ahead:
            return "lease.granted", self._grant(names, mode, ttl_ms, actor)
        if body.get("wait") is True:
            return self._queue(names, mode, ttl_ms, actor, body)
        return self._refuse(names, mode, ttl_ms, held, ahead)

    def _grant(self, names: tuple[str, ...], mode: str, ttl_ms: int, actor: str) -> JsonObject:
        schemes: list[JsonValue] = [
            {"class": self.classes.get(scheme, "exclusive"), "isFolding": scheme in self.folding, "name": scheme}
            for scheme in sorted(set(map(scheme_of, names)))
        ]
        lease: JsonObject = {
            "resources": list(names), "mode": mode, "schemes": schemes, "leaseId": f"L{self.seq}",
            "fencingToken": self.now_ms * 1000 + self.seq, "ttlMs": ttl_ms, "expiresAtMs": self.now_ms + ttl_ms,
            "holdUntilMs": self.now_ms + HOLD_MS,
        }  # fmt: skip
        self.live[f"L{self.seq}"] = Live(actor, lease, self.now_ms, self.now_ms + ttl_ms, self.seq)
        return lease

    def _again(self, name: str, live: Live, ttl_ms: int) -> Decision:
        live.expires_at_ms = max(live.expires_at_ms, self.now_ms + ttl_ms)
        return name, {
            **live.lease, "ttlMs": ttl_ms, "expiresAtMs": live.expires_at_ms, "grantedAtMs": live.granted_at_ms,
            "grantSeq": live.seq,
        }  # fmt: skip

    def _refuse(
        self, names: tuple[str, ...], mode: str, ttl_ms: int, held: list[Live], ahead: list[Waiting]
    ) -> Decision:
        members: JsonObject = {"resources": list(names), "mode": mode, "ttlMs": ttl_ms, "wait": False}
        if held:
            return "lease.refused", members | self.held_by(held[0], names, mode) | {"conflicts": len(held)}
        first = ahead[0]
        wait_ms, is_admitted = self._stampede()
        asked = self._clash(names, mode, first.names, first.mode)[0]
        row: JsonObject = {
            "ticketId": first.ticket_id, "actor": first.actor, "resource": asked, "mode": first.mode,
            "queuedAtMs": first.queued_at_ms,
        }  # fmt: skip
        return "lease.refused", members | {
            "error": "queued", "number": 501, "ahead": row, "retryAfterMs": first.poll_by_ms - self.now_ms,
            "stampede": {"admitted": is_admitted, "waitMs": wait_ms},
        }  # fmt: skip

    def held_by(self, held: Live, names: tuple[str, ...], mode: str) -> JsonObject:
        """Return what a refusal says about the lease in the way."""
        wait_ms, is_admitted = self._stampede()
        asked = self._clash(names, mode, held.names, held.mode)[0]
        conflict: JsonObject = {
            "leaseId": held.lease["leaseId"], "resource": asked,
            "heldAs": next(name for name in held.names if self._meet(name, asked)),
            "fencingToken": held.lease["fencingToken"], "mode": held.mode, "grantedAtMs": held.granted_at_ms,
            "expiresAtMs": held.expires_at_ms,
        }  # fmt: skip
        return {
            "error": "lease_held", "number": 408, "holder": held.holder, "holderName": "worker-7",
            "conflict": conflict, "conflicts": 1, "stampede": {"admitted": is_admitted, "waitMs": wait_ms},
            "retryAfterMs": wait_ms if is_admitted else max(wait_ms, held.expires_at_ms - self.now_ms),
        }  # fmt: skip

    def _stampede(self) -> tuple[int, bool]:
        waits, self.refusals = self.refusals, self.refusals + 1
        return min(800, 25 * 2**waits), waits < 8

    def _lease_renew(self, body: JsonObject, actor: str) -> Decision:
        live, mode, ttl_ms = self.live.get(str(body["leaseId"])), body.get("mode"), _ttl(body)
        asked: JsonObject = {"leaseId": body["leaseId"], "ttlMs": ttl_ms} | ({"mode": mode} if mode else {})
        if live is None or live.holder != actor:
            error, seq = self.ended.get(str(body["leaseId"]), ("lease_expired", None))
            numbers = {
                "lease_expired": 405, "lease_broken": 410, "lease_transferred": 411, "lease_changed": 412,
                "lease_returned": 418,
            }  # fmt: skip
            ended: JsonObject = {} if seq is None else {"endedSeq": seq}
            return "renewal.refused", {**asked, "error": error, "number": numbers[error], **ended}
        if mode is None or mode == live.mode:
            return self._again("lease.renewed", live, ttl_ms)
        held = self._leases_in_the_way(live.names, str(mode), actor)
        if held:
            return "renewal.refused", asked | self.held_by(held[0], live.names, str(mode))
        return "lease.changed", self._follow(live, str(mode), ttl_ms, actor, "lease_changed")

    def _follow(self, live: Live, mode: str, ttl_ms: int, actor: str, how: str) -> JsonObject:
        """One lease ends and another takes its place."""
        old_id = str(live.lease["leaseId"])
        del self.live[old_id]
        self.ended[old_id] = (how, self.seq)
        return {**self._grant(live.names, mode, ttl_ms, actor), "fromLeaseId": old_id, "fromSeq": live.seq}

    def _lease_release(self, body: JsonObject, actor: str) -> Decision:
        names = resources_of(body)
        mine = (live for live in self.live.values() if live.holder == actor and live.names == names)
        live = self.live.get(str(body["leaseId"])) if "leaseId" in body else next(mine, None)
        if live is None:
            asked: JsonObject = {"leaseId": body["leaseId"]} if "leaseId" in body else {}
            error, number = ("lease_expired", 405) if asked else ("not_holder", 407)
            return "release.refused", {"resources": list(names), **asked, "error": error, "number": number}
        del self.live[str(live.lease["leaseId"])]
        return "lease.released", {
            "resources": list(names), "leaseId": live.lease["leaseId"], "fencingToken": live.lease["fencingToken"],
            "grantedAtMs": live.granted_at_ms, "grantSeq": live.seq,
        }  # fmt: skip

    def _lease_transfer(self, body: JsonObject, actor: str) -> Decision:
        asked = {name: value for name, value in body.items() if name not in ("ledger", "actorDid")}
        live = self.live[str(body["leaseId"])]
        if live.lease["fencingToken"] != body["seenToken"]:
            return "transfer.refused", {**asked, "error": "token_stale", "number": 413}
        live.offered_to, live.offer_seq = str(body["toDid"]), self.seq
        return "transfer.offered", {**asked, "holder": live.holder, "grantSeq": live.seq}

    def _lease_accept(self, body: JsonObject, actor: str) -> Decision:
        live = self.live[str(body["leaseId"])]
        if live.offered_to != actor:
            asked: JsonObject = {"leaseId": body["leaseId"], "ttlMs": _ttl(body)}
            return "acceptance.refused", {**asked, "error": "not_offered", "number": 416}
        giver: JsonObject = {"giver": live.holder, "offerSeq": live.offer_seq}
        return "lease.transferred", self._follow(live, live.mode, _ttl(body), actor, "lease_transferred") | giver

    def _lease_break(self, body: JsonObject, actor: str) -> Decision:
        asked = {name: value for name, value in body.items() if name not in ("ledger", "actorDid")}
        live = self.on(str(body["resource"]))
        lease_id = str(live.lease["leaseId"])
        if live.lease["fencingToken"] != body["seenToken"]:
            row = self.held_by(live, (str(body["resource"]),), "write")
            told = {name: row[name] for name in ("holder", "holderName", "conflict")}
            return "break.refused", {**asked, "error": "token_stale", "number": 413, **told}
        del self.live[lease_id]
        self.ended[lease_id] = ("lease_broken", self.seq)
        return "lease.broken", {
            **asked, "resources": list(live.names), "leaseId": lease_id, "fencingToken": live.lease["fencingToken"],
            "holder": live.holder, "grantSeq": live.seq, "grantedAtMs": live.granted_at_ms,
        }  # fmt: skip

    # -- the line ------------------------------------------------------------------------------------------------------

    def _queue(self, names: tuple[str, ...], mode: str, ttl_ms: int, actor: str, body: JsonObject) -> Decision:
        give_up_ms = body.get("giveUpMs", 3_600_000)
        assert isinstance(give_up_ms, int)
        ticket = Waiting(self.seq, actor, names, mode, ttl_ms, self.now_ms + POLL_MS, self.now_ms)
        self.line.append(ticket)
        return "wait.queued", {
            "resources": list(names), "mode": mode, "ttlMs": ttl_ms, "giveUpMs": give_up_ms,
            "ticketId": ticket.ticket_id, "pollByMs": ticket.poll_by_ms, "giveUpByMs": self.now_ms + give_up_ms,
            "position": len(self.line),
        }  # fmt: skip

    def ticket(self, ticket_id: JsonValue) -> Waiting | None:
        return next((ticket for ticket in self.line if ticket.ticket_id == ticket_id), None)

    def _wait_claim(self, body: JsonObject, actor: str) -> Decision:
        ticket = self.ticket(body["ticketId"])
        if ticket is None:
            return "claim.refused", self._ticket_ended(body)
        cited: JsonObject = {"ticketId": ticket.ticket_id, "ticketSeq": ticket.seq}
        if not self.is_served(ticket):
            ticket.poll_by_ms = self.now_ms + POLL_MS
            position = self.line.index(ticket) + 1
            return "wait.polled", {**cited, "pollByMs": ticket.poll_by_ms, "position": position}
        self.line.remove(ticket)
        self.ended[ticket.ticket_id] = ("ticket_ended", self.seq)
        return "lease.claimed", {**self._grant(ticket.names, ticket.mode, ticket.ttl_ms, actor), **cited}

    def _wait_cancel(self, body: JsonObject, actor: str) -> Decision:
        ticket = self.ticket(body["ticketId"])
        if ticket is None:
            return "cancel.refused", self._ticket_ended(body)
        self.line.remove(ticket)
        self.ended[ticket.ticket_id] = ("ticket_ended", self.seq)
        return "wait.cancelled", {"ticketId": ticket.ticket_id, "ticketSeq": ticket.seq}

    def _ticket_ended(self, body: JsonObject) -> JsonObject:
        ended = self.ended.get(str(body["ticketId"]))
        members: JsonObject = {"ticketId": body["ticketId"], "error": "ticket_ended", "number": 507}
        return members if ended is None else members | {"endedSeq": ended[1]}

    def _scheme_set(self, body: JsonObject, actor: str) -> Decision:
        asked = {name: value for name, value in body.items() if name not in ("ledger", "actorDid")}
        self.classes[str(body["name"])] = str(body["class"])
        return "scheme.set", {"lockDelayMs": 0, "maxHoldMs": HOLD_MS, **asked, "unicodeVersion": "14.0.0"}


def _ttl(body: JsonObject) -> int:
    ttl_ms = body.get("ttlMs", 30_000)
    assert isinstance(ttl_ms, int)
    return ttl_ms
