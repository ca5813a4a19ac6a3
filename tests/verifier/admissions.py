"""A ledger in which things are admitted, approved and ruled on, made from the protocol's text alone, as maker.py.

What a rule set says of a question is typed by hand in each call: no engine helps here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.verifier import maker
from tests.verifier.maker import ALICE, BOB, CAROL, DEPUTY, OPERATOR, ORIGIN, SESSION, ZEROS, Json, Key, b64, canonical

ENGINE = "cedar/4.12.2"
ARGUMENTS = hashlib.sha256(b"what will be done").hexdigest()
Change = Callable[[Json], None]


def action_digest(agent: str, asked: Json, rules_digest: str, ledger: str = ORIGIN) -> str:
    """The SHA-256 of an action: of these eight members and no other."""
    names = ("argumentsDigest", "cost", "mode", "operation", "resources")
    said = {name: asked[name] for name in names} | {"agent": agent, "ledger": ledger, "rulesDigest": rules_digest}
    return hashlib.sha256(canonical(said)).hexdigest()


def signed_approval(said: Json, signer: Key) -> Json:
    message = b"tallystick.approval/1\n" + hashlib.sha256(canonical(said)).digest()
    return {"statement": said, "signature": b64(signer.sign(message))}


def row_of(signed: Json, operator: Key) -> Json:
    """What an admission says of a statement that it uses up."""
    said = signed["statement"]
    digest = hashlib.sha256(canonical(said)).hexdigest()
    return {"approver": said["approver"], "operator": operator.did, "nonce": said["nonce"], "digest": digest}


@dataclass
class Desk(maker.Ledger):
    """A ledger that counts what was admitted, and knows which rules are in force."""

    admitted: list[tuple[int, int, frozenset[str]]] = field(default_factory=list)  # timeMs, cost, whom it counts for
    rules: Json | None = None  # version, digest and mode of the set in force
    labels: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)  # texts of rule sets, by digest

    # --- rules ---

    def load(self, text: str, mode: str = "enforce", count: int = 1, change: Change | None = None, **over: Any) -> int:
        version = 1 + (0 if self.rules is None else self.rules["version"])
        body = {"rules": text, "rulesMode": mode, "rulesVersion": version}
        digest = hashlib.sha256(text.encode()).hexdigest()
        members = {"rulesVersion": version, "rulesMode": mode, "digest": digest, "engine": ENGINE, "count": count}
        self.rules, self.kept[digest] = {"version": version, "digest": digest, "mode": mode}, text
        return self.decision("rules.loaded", OPERATOR, "rules.load", body, {**members, **over}, change)

    @property
    def rules_digest(self) -> str:
        return ZEROS if self.rules is None else str(self.rules["digest"])

    def ruling(self, decision: str = "allow", *matched: str, obligations: Sequence[str] = ()) -> Json:
        said = {"engine": ENGINE, "decision": decision, "matched": [*matched], "obligations": [*obligations]}
        return {**(self.rules or {}), **said}

    # --- admissions ---

    def asked(self, operation: str, *resources: str, mode: str = "write", cost: int = 0, **over: Any) -> Json:
        """What an action is, in the words of the leaf."""
        said = {"operation": operation, "resources": sorted(resources), "mode": mode, "cost": cost}
        return {**said, "argumentsDigest": ARGUMENTS, **over}

    def counts(self, whom: str) -> tuple[int, int, int]:
        """How often, and at what cost, something was admitted for somebody in this minute and on this day."""
        mine = [(at_ms, cost) for at_ms, cost, counted in self.admitted if whom in counted]
        minute = sum(at_ms // 60_000 == self.time_ms // 60_000 for at_ms, _ in mine)
        day = [cost for at_ms, cost in mine if at_ms // 86_400_000 == self.time_ms // 86_400_000]
        return minute, len(day), sum(day)

    def scheme_rows(self, asked: Json) -> list[Json]:
        rows = []
        for name in sorted({name.split(":")[0] for name in asked["resources"]}):
            kind, is_folding = self.classes.get(name, ("exclusive", False))
            minute, day, cost = self.counts(f"scheme {name}")
            counted = {"countMinute": minute, "countDay": day, "costDay": cost}
            rows.append({"name": name, "class": kind, "isFolding": is_folding, **counted})
        return rows

    def facts(self, key: Key, lease: int | None, approvals: int = 0) -> Json:
        principal, operator = self.who(key.did)
        agent, behind = self.counts(principal), self.counts(f"operator {operator}")
        held = {} if lease is None else self.value(lease)
        granted_ms = held.get("grantedAtMs", held.get("timeMs", self.time_ms))
        return {
            "trust": self.trust.get(principal, (50_000, -1))[0],
            "approvals": approvals,
            "leaseState": "none" if lease is None else "live",
            "leaseMode": held.get("mode", "none"),
            "leaseAgeMs": self.time_ms - granted_ms,
            "leaseLeftMs": held.get("expiresAtMs", self.time_ms) - self.time_ms,
            "agentName": self.labels.get(principal, ""),
            "actorKind": "session" if key.did in self.sessions else "agent",
            "custody": "gateway" if principal in self.custodial else "agent",
            **dict(zip(("agentCountMinute", "agentCountDay", "agentCostDay"), agent, strict=True)),
            **dict(zip(("operatorCountMinute", "operatorCountDay", "operatorCostDay"), behind, strict=True)),
        }

    def fence(self, lease: int | None) -> Json:
        return {} if lease is None else self.later(lease, "leaseId", "fencingToken")

    def allowed(self, key: Key, asked: Json, lease: int | None = None, rows: Sequence[Json] = (), **over: Any) -> Json:
        """The members of an admission; it counts from then on. `rows` are those of approvals."""
        principal, operator = self.who(key.did)
        grant = {} if lease is None else {"grantSeq": self.value(lease).get("grantSeq", lease)}
        until_ms = min([self.time_ms + 60_000, *([] if lease is None else [self.value(lease)["expiresAtMs"]])])
        members = {
            **asked,
            "actionDigest": action_digest(principal, asked, self.rules_digest),
            **self.fence(lease),
            **grant,
            "facts": self.facts(key, lease, len(rows)),
            "schemes": self.scheme_rows(asked),
            **({} if self.rules is None else {"rules": self.ruling()}),
            **({"approvals": [*rows]} if rows else {}),
            "validUntilMs": until_ms,
            "uses": 1,
            **over,
        }
        schemes = {f"scheme {row['name']}" for row in members["schemes"]}
        self.admitted.append((self.time_ms, asked["cost"], frozenset({principal, f"operator {operator}", *schemes})))
        return members

    def body_of(self, asked: Json, lease: int | None = None, approvals: Sequence[Json] = ()) -> Json:
        given = {"approvals": [*approvals]} if approvals else {}
        return {**asked, **self.fence(lease), **given}

    def admit(self, key: Key, asked: Json, lease: int | None = None, approvals: Sequence[tuple[Json, Key]] = (),
              change: Change | None = None, **over: Any) -> int:  # fmt: skip
        """An admission. `approvals` are signed statements, each with the operator behind its approver."""
        body = over.pop("body_members", self.body_of(asked, lease, [signed for signed, _ in approvals]))
        rows = sorted((row_of(*given) for given in approvals), key=lambda row: str(row["operator"]))
        members = self.allowed(key, asked, lease, rows, **over)
        return self.decision("admission.allowed", key, "coordination.admit", body, members, change)

    def denied(self, asked: Json, error: str, number: int, lease: int | None = None, **over: Any) -> Json:
        """The members of a denial by anything but the rules."""
        return {**asked, **self.fence(lease), "error": error, "number": number, **over}

    def deny(self, key: Key, asked: Json, error: str, number: int, lease: int | None = None, **over: Any) -> int:
        body = over.pop("body_members", self.body_of(asked, lease, over.pop("approvals", ())))
        change = over.pop("change", None)
        members = self.denied(asked, error, number, lease, **over)
        return self.decision("admission.denied", key, "coordination.admit", body, members, change)

    def ruled_out(self, key: Key, asked: Json, error: str, number: int, lease: int | None, ruling: Json) -> int:
        """A denial by the rules, with all that they were told."""
        told = {"facts": self.facts(key, lease), "schemes": self.scheme_rows(asked), "rules": ruling}
        return self.deny(key, asked, error, number, lease, **told)

    # --- approvals ---

    def statement(self, approver: Key, agent: Key, asked: Json, /, **over: Any) -> Json:
        """An honest approval of an action for one hour; `over` replaces members, None leaves one out."""
        self.counter += 1
        said: Json = {
            "type": "tallystick/approval/1",
            "ledger": ORIGIN,
            "genesis": self.genesis,
            "agent": agent.did,
            "operation": asked["operation"],
            "actionDigest": action_digest(agent.did, asked, self.rules_digest),
            "argumentsDigest": asked["argumentsDigest"],
            "rulesDigest": self.rules_digest,
            "approver": approver.did,
            "nonce": f"approval-{self.counter:016}",
            "notBeforeMs": self.time_ms,
            "expiresAtMs": self.time_ms + 3_600_000,
            **over,
        }
        return {name: value for name, value in said.items() if value is not None}

    def approval(self, approver: Key, agent: Key, asked: Json, /, **over: Any) -> Json:
        return signed_approval(self.statement(approver, agent, asked, **over), approver)

    def ask(self, key: Key, asked: Json, *approvers: Key, quorum: int = 1, **over: Any) -> int:
        dids, digest = sorted(one.did for one in approvers), self.rules_digest
        body = {**asked, "approvers": dids, "quorum": quorum}
        members = {
            **body,
            "actionDigest": action_digest(self.who(key.did)[0], asked, digest),
            "rulesDigest": digest,
            "askId": f"A{len(self.leaves)}",
            "giveUpByMs": self.time_ms + 3_600_000,
        }
        return self.decision("approval.asked", key, "approval.ask", body, members, over.pop("change", None), **over)

    def give(self, approver: Key, ask: int, signed: Json, **over: Any) -> int:
        body, row = {"askId": f"A{ask}", "approval": signed}, row_of(signed, approver)
        members = {"askId": f"A{ask}", "askSeq": ask, **{name: row[name] for name in ("approver", "nonce", "digest")}}
        return self.decision(
            "approval.given", approver, "approval.give", body, {**members, **over.pop("members", {})}, **over
        )

    def decline(self, approver: Key, ask: int, **over: Any) -> int:
        body = {"askId": f"A{ask}", "reason": "not.now"}
        return self.decision("approval.declined", approver, "approval.decline", body, {**body, "askSeq": ask}, **over)

    def withdraw(self, key: Key, ask: int, **over: Any) -> int:
        body = {"askId": f"A{ask}"}
        return self.decision("approval.withdrawn", key, "approval.withdraw", body, {**body, "askSeq": ask}, **over)


RULES = f"""// Who works here, where, and what nobody may touch.
@id("writers") permit(
  principal in Operator::"{OPERATOR.did}", action in [Action::"read", Action::"write"],
  resource in Resource::"repo:app/**"
);
@id("no-secrets") forbid(principal, action, resource in Resource::"repo:app/secret/**");
@id("deployers") @obligation("tell:on-call") permit(principal, action, resource in Scheme::"deploy")
  when {{ context.approvals >= 1 }};
@id("overflow") forbid(principal, action, resource) when {{ context.cost * 9223372036854775807 < 0 }};
"""
NOBODY = '@id("nobody") forbid(principal, action, resource);\n'


def opened() -> Desk:
    """A ledger with a second operator, and an agent of his who may approve: seq 0 to 7."""
    desk = Desk()
    desk.open()
    desk.time_ms += 10
    desk.start()
    desk.time_ms += 1_000
    desk.add(ALICE)
    desk.add(BOB)
    desk.add_operator(DEPUTY)  # 5
    desk.add(CAROL, by=DEPUTY)  # 6
    desk.set_scheme("deploy", "irreversible")  # 7
    return desk


def day() -> Desk:
    """A day on which every entry about admissions, approvals and rules comes up."""
    desk = opened()
    asked = desk.asked
    desk.time_ms += 100
    lease = desk.grant(ALICE, "repo:app/**", ttl_ms=3_600_000)  # 8
    desk.time_ms += 10
    desk.admit(ALICE, asked("file.write", "repo:app/a.py", cost=5), lease)  # 9
    told: Json = {"holder": ALICE.did, "conflict": desk.conflict(lease, "repo:app/a.py", "repo:app/**")}
    told |= {"currentToken": desk.token}
    desk.deny(BOB, asked("file.read", "repo:app/a.py", mode="read"), "admission_conflict", 605, **told)  # 10
    desk.deny(BOB, asked("file.write", "repo:app/a.py"), "lease_required", 604)  # 11
    desk.load(RULES, count=4)  # 12
    late = {"rulesVersion": 1, "rulesMode": "enforce"}
    refused = {**late, "error": "rules_out_of_turn", "number": 631}
    desk.decision("rules.refused", OPERATOR, "rules.load", {**late, "rules": RULES}, refused)  # 13
    ruling = desk.ruling("allow", "writers")
    desk.admit(ALICE, asked("file.write", "repo:app/a.py", "repo:app/b.py"), lease, rules=ruling)  # 14
    ruling = desk.ruling("deny", "no-secrets")
    desk.ruled_out(ALICE, asked("file.write", "repo:app/secret/k"), "forbidden_by_rules", 622, lease, ruling)  # 15
    write = asked("file.write", "repo:app/a.py", cost=2)
    desk.ruled_out(ALICE, write, "policy_error", 621, lease, desk.ruling("error"))  # 16
    read = asked("file.read", "web:page", mode="read")
    desk.ruled_out(BOB, read, "not_permitted", 623, None, desk.ruling("deny"))  # 17
    desk.time_ms += 1_000
    approvals(desk)
    desk.load(NOBODY, "shadow")
    desk.admit(ALICE, asked("file.write", "repo:app/a.py"), lease, rules=desk.ruling("deny", "nobody"))
    fences(desk)
    batches(desk)
    return desk


def approvals(desk: Desk) -> None:
    """What goes live needs somebody else's word, which counts once."""
    asked = desk.asked("deploy.run", "deploy:prod")
    lease = desk.grant(ALICE, "deploy:prod", ttl_ms=3_600_000)
    desk.deny(ALICE, asked, "approval_required", 615, lease)
    ask = desk.ask(ALICE, asked, CAROL, DEPUTY)
    signed = desk.approval(CAROL, ALICE, asked)
    given = desk.give(CAROL, ask, signed)
    over = {"askId": f"A{ask}"}
    ended = {**over, "error": "ask_ended", "number": 643, "endedSeq": given}
    desk.decision("declining.refused", DEPUTY, "approval.decline", over, ended)
    ruling = desk.ruling("allow", "deployers", obligations=["tell:on-call"])
    desk.time_ms += 10
    desk.admit(ALICE, asked, lease, [(signed, DEPUTY)], rules=ruling)
    desk.deny(ALICE, asked, "approval_used", 614, lease, approvals=[signed])
    again = desk.ask(ALICE, asked, CAROL)
    desk.decline(CAROL, again)
    third = desk.ask(ALICE, asked, CAROL)
    over = {"askId": f"A{third}"}
    ended = {**over, "error": "ask_ended", "number": 643, "endedSeq": desk.withdraw(ALICE, third)}
    desk.decision("withdrawal.refused", ALICE, "approval.withdraw", over, ended)
    unknown = {"askId": "A3", "error": "ask_unknown", "number": 641}
    body = {"askId": "A3", "approval": desk.approval(CAROL, ALICE, asked)}
    desk.decision("giving.refused", CAROL, "approval.give", body, unknown)
    unfit = {**asked, "error": "approver_unfit", "number": 612}
    desk.decision("approval.refused", ALICE, "approval.ask", {**asked, "approvers": [BOB.did]}, unfit)


def fences(desk: Desk) -> None:
    """A late writer with an old token; and a session that writes for its agent."""
    old = desk.grant(BOB, "lock:x", ttl_ms=1_000)
    desk.time_ms += 1_000
    ended = desk.expire(old)
    new = desk.grant(CAROL, "lock:x")
    named: Json = {"holder": CAROL.did, "conflict": desk.conflict(new, "lock:x"), "currentToken": desk.token}
    desk.deny(BOB, desk.asked("job.run", "lock:x"), "stale_fence", 602, old, **named, endedSeq=ended)
    desk.open_session(SESSION, ALICE, verbs=["admit", "lease"])
    held = desk.grant(SESSION, "repo:lib/a", ttl_ms=600_000)
    asked = desk.asked("file.write", "repo:lib/a")
    desk.admit(SESSION, asked, held, rules=desk.ruling("deny", "nobody"))


def circle() -> Desk:
    """ALICE holds what CAROL waits for, and asks CAROL for an approval: refused, or both would wait for ever."""
    desk = opened()
    desk.time_ms += 100
    desk.grant(ALICE, "lock:a")  # 8
    desk.grant(CAROL, "lock:b")  # 9
    ticket = desk.queue(CAROL, "lock:a")  # 10
    asked = desk.asked("deploy.run", "deploy:prod")
    rows = [
        {"actor": ALICE.did, "resource": "deploy:prod", "mode": "write", "askId": f"A{len(desk.leaves)}"},
        {"actor": CAROL.did, "resource": "lock:a", "mode": "write", "fencingToken": desk.value(8)["fencingToken"]},
    ]
    rows[1]["ticketId"] = f"T{ticket}"
    told = {"waitingOn": "lock:a", "cycle": rows, "acquireOrder": ["deploy:prod", "lock:a"]}
    body = {**asked, "approvers": [CAROL.did]}
    desk.decision(
        "approval.refused", ALICE, "approval.ask", body, {**asked, "error": "deadlock", "number": 502, **told}
    )  # 11
    return desk


def batches(desk: Desk) -> None:
    """Two admissions in one request."""
    read, write = desk.asked("file.read", "web:page", mode="read"), desk.asked("file.write", "web:page")
    commands = [{"action": "coordination.admit", **said} for said in (read, write)]
    header = desk.batch(BOB, *commands)
    ruling = desk.ruling("deny", "nobody")
    desk.answer("admission.allowed", header, desk.allowed(BOB, read, rules=ruling))
    desk.answer("admission.denied", header, desk.denied(write, "lease_required", 604))
    refused = {"count": 1, "isAtomic": True, "index": 0, "action": "coordination.admit"}
    body = {"commands": commands[1:], "isAtomic": True}
    members = {**refused, "error": "lease_required", "number": 604}
    desk.decision("batch.refused", BOB, "batch.submit", body, members)
