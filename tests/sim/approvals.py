"""Approvals as the specification says them: who may give one, for what, once; and the asks for them.

Every answer is compared with what the chapter calls for, written anew: the first reason there is, and no other.
Source: docs/protocol.md 38.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import orjson

from tests.sim.graph import fault_of_plea_cycle, plea_closes
from tests.sim.names import allowed
from tests.sim.pleas import Plea
from tests.sim.refusals import demand
from tests.sim.vault import Vault

Leaf = dict[str, Any]
ZEROS = "0" * 64
REMEMBERED = 16  # so many times the live ones may be remembered
GIVE_UP_MS = 3_600_000


class Approvals(Vault):
    """Handlers of the entries about asks, and what an admission's approvals are worth."""

    # -- what both sides of an approval name --------------------------------------------------------------------------

    def rules_digest(self) -> str:
        return ZEROS if self.book.limits is None else self.book.limits.digest

    def action_digest(self, leaf: Leaf) -> str:
        """Return the SHA-256 of exactly what would be done."""
        said = {name: leaf[name] for name in ("argumentsDigest", "cost", "mode", "operation")}
        said |= {"agent": leaf["principal"], "ledger": leaf["body"]["ledger"], "resources": sorted(leaf["resources"])}
        return digest_of(said | {"rulesDigest": self.rules_digest()})

    def fit(self, approver: str, own: str) -> str | None:
        """Return the operator for whom a key approves, None when it may not."""
        book, agent = self.book, self.book.agent(approver)
        if approver in book.operators:
            return None if approver == own else approver
        is_fit = agent is not None and agent.operator in book.operators and not agent.is_custodial
        if agent is None or not is_fit or agent.trial_until_ms is not None or agent.operator == own:
            return None
        return agent.operator

    def why_never(self, leaf: Leaf) -> str | None:
        """Return why this could not be done at all, whatever lease or approval is shown."""
        book, names = self.book, leaf["resources"]
        if self._is_outside(leaf):
            return "outside_scope"
        if book.is_disputed:
            return "ledger_disputed"
        if any(not name.isascii() and not book.scheme(name)["isUnicode"] for name in names):
            return "name_not_allowed"
        is_fit = all(allowed(book.scheme(name)["class"], leaf["mode"]) for name in names)
        return None if is_fit else "mode_not_allowed"

    def why_unapproved(self, leaf: Leaf) -> str | None:
        """Return what speaks against the approvals that came along with an admission."""
        given = [row["statement"] for row in leaf["body"].get("approvals", ())]
        wanted = self._bound(leaf["body"]["ledger"], leaf["principal"], leaf) | {
            "actionDigest": self.action_digest(leaf)
        }
        if any(one[name] != value for one in given for name, value in wanted.items()):
            return "approval_wrong"
        operators = [self.fit(one["approver"], leaf["onBehalfOf"]) for one in given]
        if None in operators or len(set(operators)) < len(operators):
            return "approver_unfit"
        return self._why_over(given)

    def _bound(self, origin: str, agent: str, what: Leaf) -> Leaf:
        return {
            "ledger": origin, "genesis": self._genesis, "agent": agent, "operation": what["operation"],
            "argumentsDigest": what["argumentsDigest"], "rulesDigest": self.rules_digest(),
        }  # fmt: skip

    def _why_over(self, given: list[Leaf]) -> str | None:
        t_ms, burnt = self.book.t_ms, self.book.burnt
        if not all(one["notBeforeMs"] <= t_ms < one["expiresAtMs"] for one in given):
            return "approval_expired"
        is_used = any(t_ms < burnt.get((one["approver"], one["nonce"]), 0) for one in given)
        return "approval_used" if is_used else None

    def burn(self, leaf: Leaf) -> None:
        """What came along with an admission is used up; its entry has a row for each, by operator."""
        given = [row["statement"] for row in leaf["body"].get("approvals", ())]
        for one in given:
            place = one["approver"], one["nonce"]
            is_used = self.book.t_ms < self.book.burnt.get(place, 0)
            demand(not is_used, "once", f"entry {leaf['seq']} uses an approval again")
            self.book.burnt[place] = one["expiresAtMs"]
        rows = [
            {
                "approver": one["approver"], "operator": self.fit(one["approver"], leaf["onBehalfOf"]),
                "nonce": one["nonce"], "digest": digest_of(one),
            }
            for one in given
        ]  # fmt: skip
        rows.sort(key=lambda row: str(row["operator"]))
        is_told = self.is_rehearsal or leaf.get("approvals", []) == rows
        demand(is_told, "once", f"entry {leaf['seq']} says approvals {leaf.get('approvals')}, not {rows}")

    # -- asking -------------------------------------------------------------------------------------------------------

    def on_approval_asked(self, leaf: Leaf) -> None:
        plea, seq = self._plea(leaf), leaf["seq"]
        self._answered_so(leaf, self._why_not_asked(leaf, plea))
        told = [leaf[name] for name in ("askId", "giveUpByMs", "actionDigest", "rulesDigest", "approvers", "quorum")]
        wanted = [
            plea.ask_id, plea.give_up_by_ms, plea.action_digest, plea.rules_digest, list(plea.approvers), plea.quorum
        ]  # fmt: skip
        demand(told == wanted, "approval", f"entry {seq} says {told}, not {wanted}")
        self.book.pleas[plea.ask_id] = plea

    def on_approval_refused(self, leaf: Leaf) -> None:
        plea = self._plea(leaf)
        if leaf["error"] != "deadlock":
            return self._answered_so(leaf, self._why_not_asked(leaf, plea))
        fault = fault_of_plea_cycle(self.book, leaf["cycle"], plea)
        demand(fault is None, "I11", f"entry {leaf['seq']} tells a cycle that is none: {fault}")
        self.count("asked into a circle")

    def _plea(self, leaf: Leaf) -> Plea:
        body, seq, t_ms = leaf["body"], leaf["seq"], leaf["timeMs"]
        own = leaf["onBehalfOf"]
        return Plea(
            f"A{seq}", seq, leaf["actor"], leaf["principal"], own, leaf["operation"], leaf["resources"], leaf["mode"],
            leaf["argumentsDigest"], self.action_digest(leaf), self.rules_digest(),
            {did: self.fit(did, own) or "" for did in sorted(body["approvers"])}, body.get("quorum", 1),
            t_ms + body.get("giveUpMs", GIVE_UP_MS),
        )  # fmt: skip

    def _why_not_asked(self, leaf: Leaf, plea: Plea) -> str | None:
        book, never = self.book, self.why_never(leaf)
        if never is not None:
            return never
        operators = plea.approvers.values()
        if "" in operators or len(set(operators)) < plea.quorum:
            return "approver_unfit"
        bound = book.rules["asksPerPrincipal"]
        known = [one for one in book.pleas.values() if one.principal == plea.principal and one.is_known(book.t_ms)]
        if sum(one.is_live(book.t_ms) for one in known) >= bound or len(known) >= REMEMBERED * bound:
            return "too_many_asked"
        is_bounded = book.rules["deadlockNodes"] < len(book.agents)  # then a search may have ended before the circle
        return "deadlock" if not is_bounded and plea_closes(book, plea) else None

    # -- answering ----------------------------------------------------------------------------------------------------

    def on_approval_given(self, leaf: Leaf) -> None:
        plea = self._answers(leaf)
        one = leaf["body"]["approval"]["statement"]
        told = (leaf["approver"], leaf["nonce"], leaf["digest"])
        demand(told == (one["approver"], one["nonce"], digest_of(one)), "approval", f"entry {leaf['seq']} says {told}")
        plea.given.append(leaf["actor"])
        if len({plea.approvers[one] for one in plea.given}) >= plea.quorum:
            plea.end(leaf["seq"], leaf["timeMs"])

    def on_approval_declined(self, leaf: Leaf) -> None:
        plea = self._answers(leaf)
        plea.declined.append(leaf["actor"])
        if not plea.is_enough():
            plea.end(leaf["seq"], leaf["timeMs"])

    def on_approval_withdrawn(self, leaf: Leaf) -> None:
        self._answers(leaf).end(leaf["seq"], leaf["timeMs"])

    def _answers(self, leaf: Leaf) -> Plea:
        """Return the live ask that an entry is about."""
        self._answered_so(leaf, self._why_not_answered(leaf))
        plea = self.book.pleas[leaf["askId"]]
        demand(leaf["askSeq"] == plea.seq, "approval", f"entry {leaf['seq']}: askSeq is not {plea.seq}")
        return plea

    def on_giving_refused(self, leaf: Leaf) -> None:
        self._answered_so(leaf, self._why_not_answered(leaf))
        if leaf["error"] == "ask_ended":
            ended_seq = self.book.pleas[leaf["askId"]].ended_seq
            demand(leaf.get("endedSeq") == ended_seq, "approval", f"entry {leaf['seq']}: endedSeq is not {ended_seq}")

    on_declining_refused = on_withdrawal_refused = on_giving_refused

    def _answered_so(self, leaf: Leaf, error: str | None) -> None:
        demand(leaf.get("error") == error, "approval", f"entry {leaf['seq']} says {leaf.get('error')}, not {error}")

    def _why_not_answered(self, leaf: Leaf) -> str | None:
        book, actor, plea = self.book, leaf["actor"], self.book.pleas.get(leaf["askId"])
        if self._is_outside(leaf):
            return "outside_scope"
        if plea is None or not plea.is_known(book.t_ms):
            return "ask_unknown"
        is_withdrawal = leaf["action"] == "approval.withdraw"
        if actor not in ([plea.actor] if is_withdrawal else plea.approvers):
            return "ask_not_yours"
        if not plea.is_live(book.t_ms):
            return "ask_ended"
        if is_withdrawal:
            return None
        has_answered = actor in (*plea.given, *plea.declined)
        if leaf["action"] == "approval.decline":
            return "approver_unfit" if has_answered else None
        return self._why_not_given(leaf, plea, has_answered=has_answered)

    def _why_not_given(self, leaf: Leaf, plea: Plea, *, has_answered: bool) -> str | None:
        actor, one = leaf["actor"], leaf["body"]["approval"]["statement"]
        what = {"operation": plea.operation, "argumentsDigest": plea.arguments_digest}
        wanted = self._bound(leaf["body"]["ledger"], plea.principal, what) | {
            "actionDigest": plea.action_digest, "rulesDigest": plea.rules_digest, "approver": actor
        }  # fmt: skip
        if any(one[name] != value for name, value in wanted.items()):
            return "approval_wrong"
        operator = plea.approvers[actor]
        is_fit = self.fit(actor, plea.operator) == operator
        if not is_fit or has_answered or operator in (plea.approvers[given] for given in plea.given):
            return "approver_unfit"
        return self._why_over([one])


def digest_of(value: Leaf) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
