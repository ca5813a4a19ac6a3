"""Admissions as the specification says them: each under a token that is live (I3), within what rules leave (I16).

Written from the specification with loops, like all that the checker knows. What the hard rules and the rules in force
call for is found anew for every entry, and it must be what the entry says: the first row of the table that speaks
against it, or that none does. Source: docs/protocol.md 37, 39.5.
"""

from __future__ import annotations

from typing import Any

from tests.sim.approvals import Approvals
from tests.sim.book import RANK, Lease
from tests.sim.limits import Asked, Limits
from tests.sim.names import covers, scheme_of
from tests.sim.refusals import Ask, demand

Leaf = dict[str, Any]
Places = list[tuple[str, str, int]]
MINUTE_MS, DAY_MS = 60_000, 86_400_000
BY_RULES = ("policy_error", "forbidden_by_rules", "not_permitted")


class Admissions(Approvals):
    """Handlers of the entries about admissions and rules."""

    def __init__(self) -> None:
        super().__init__()
        self.is_engine_flaky = False  # only then may a ruling be an error for which its rules give no reason
        self.unruled: list[int] = []  # the entries of which nobody can ask an engine again
        self.engine = ""  # that entries since the last start have named

    # -- rules --------------------------------------------------------------------------------------------------------

    def next_version(self) -> int:
        return 1 if self.book.limits is None else self.book.limits.version + 1

    def on_rules_loaded(self, leaf: Leaf) -> None:
        self.by_operator(leaf)
        limits = Limits(leaf["rulesVersion"], leaf["rulesMode"], leaf["body"]["rules"])
        demand(leaf["rulesVersion"] == self.next_version(), "rules", f"entry {leaf['seq']} is out of turn")
        demand(leaf["digest"] == limits.digest, "rules", f"digest of entry {leaf['seq']}")
        demand(leaf["count"] == len(limits.bounds), "rules", f"entry {leaf['seq']} counts {leaf['count']} rules")
        self.book.limits, self.engine = limits, leaf["engine"]

    def on_rules_refused(self, leaf: Leaf) -> None:
        self.or_no_operator(leaf)
        self.refused(leaf, [], "")

    def refused_rules_out_of_turn(self, leaf: Leaf, _: object) -> None:
        demand(leaf["rulesVersion"] != self.next_version(), "rules", f"entry {leaf['seq']} refuses the next version")

    # -- admissions ---------------------------------------------------------------------------------------------------

    def on_admission_allowed(self, leaf: Leaf) -> None:
        seq, book = leaf["seq"], self.book
        why = self._why_denied(leaf)
        demand(why is None, "I3", f"entry {seq} is allowed in spite of {why}")
        why = self._why_ruled_out(leaf)
        demand(why is None, "I16", f"entry {seq} is allowed in spite of {why}")
        self.burn(leaf)
        for place in self._places(leaf):
            book.used_up[place] += leaf["cost"] if place[0].startswith("cost") else 1
        if not self.is_rehearsal:
            self._tells(leaf)

    def on_admission_denied(self, leaf: Leaf) -> None:
        """A denial is the first that is due; it uses nothing up."""
        seq, error = leaf["seq"], leaf["error"]
        why = self._why_denied(leaf)
        wanted = self._why_ruled_out(leaf) if why is None else why
        demand(error == wanted, "I16" if error in BY_RULES else "I10", f"entry {seq} is {error}, not {wanted}")
        self._explains(leaf, Ask(leaf["resources"], leaf["mode"], None))
        for of, who in self._people(leaf):
            self.book.used_up[f"denied {of}", who, 0] += 1

    def _tells(self, leaf: Leaf) -> None:
        """What an allowance says of the lease, the action and its end is so."""
        book, seq, lease = self.book, leaf["seq"], self.live(leaf.get("leaseId", ""))
        demand(leaf["actionDigest"] == self.action_digest(leaf), "I3", f"entry {seq} admits another action")
        demand(leaf.get("grantSeq") == (lease.seq if lease else None), "I3", f"entry {seq} tells another grant")
        session = book.session(leaf["actor"])
        ends = [book.t_ms + book.rules["admissionMs"]]
        ends += [row["statement"]["expiresAtMs"] for row in leaf["body"].get("approvals", ())]
        ends += [] if lease is None else [book.end_ms(lease)]
        if session is not None and session.ended_seq is None:
            ends += [book.t_ms + book.rules["sessionIdleMs"], session.expires_ms]
        told = (leaf["validUntilMs"], leaf["uses"])
        demand(told == (min(ends), 1), "I3", f"entry {seq} is valid until {told}, not {min(ends)}")
        demand(leaf["timeMs"] < leaf["validUntilMs"], "I3", f"entry {seq} was never valid")

    # -- hard rules ---------------------------------------------------------------------------------------------------

    def _why_denied(self, leaf: Leaf) -> str | None:
        """Return the first hard rule that an admission breaks."""
        never = self.why_never(leaf)
        if never is not None:
            return never
        fence = self._why_unfenced(leaf) if "leaseId" in leaf else None
        if fence is not None:
            return fence
        if "leaseId" not in leaf and leaf["mode"] != "read":
            return "lease_required"
        if self.book.leases_in_the_way(leaf["actor"], leaf["resources"], leaf["mode"]):
            return "admission_conflict"
        approvals = self.why_unapproved(leaf)
        if approvals is not None:
            return approvals
        is_final = any(self.book.scheme(name)["class"] == "irreversible" for name in leaf["resources"])
        return "approval_required" if is_final and not leaf["body"].get("approvals") else None

    def _why_unfenced(self, leaf: Leaf) -> str | None:
        """I3: only under a live lease of the actor, with its token, as wide and as strong as what is done."""
        lease, ended = self.live(leaf["leaseId"]), self._ended(leaf)
        if lease is None and ended is None:
            return "lease_unknown"
        holder = lease.actor if lease is not None else ended.actor if ended is not None else ""
        if holder != leaf["actor"]:
            return "lease_not_yours"
        if lease is None or self.book.t_ms >= self.book.end_ms(lease):
            return "stale_fence"
        if leaf["fencingToken"] != lease.token:
            return "fence_unknown" if leaf["fencingToken"] > lease.token else "stale_fence"
        return None if self._is_wide(lease, leaf) else "lease_too_narrow"

    def _is_wide(self, lease: Lease, leaf: Leaf) -> bool:
        keys, asked = self.book.keys(lease.names), self.book.keys(leaf["resources"])
        is_strong = RANK[lease.mode] >= RANK[leaf["mode"]]
        return is_strong and all(any(covers(wide, key) for wide in keys) for key in asked)

    # -- counts -------------------------------------------------------------------------------------------------------

    def _people(self, leaf: Leaf) -> list[tuple[str, str]]:
        return [("agent", leaf["principal"]), ("operator", leaf["onBehalfOf"])]

    def _places(self, leaf: Leaf) -> Places:
        """Return under what an admission counts."""
        schemes = sorted({scheme_of(name) for name in leaf["resources"]})
        whose = [*self._people(leaf), *(("scheme", name) for name in schemes)]
        return [place for of, who in whose for place in windows(of, who, leaf["timeMs"])]

    def _count(self, what: str, who: str, leaf: Leaf) -> int:
        window_ms = {"minute": MINUTE_MS, "day": DAY_MS, "cost": DAY_MS}[what.split(" ")[0]]
        return self.book.used_up[what, who, leaf["timeMs"] // window_ms]

    def _facts(self, leaf: Leaf) -> None:
        """What an entry tells of counts, trust, approvals and its lease is what there was before it."""
        facts, lease, t_ms = leaf["facts"], self.live(leaf.get("leaseId", "")), leaf["timeMs"]
        wanted: Leaf = {
            f"{of}{name}": self._count(f"{what} {of}", who, leaf)
            for of, who in self._people(leaf)
            for name, what in (("CountMinute", "minute"), ("CountDay", "day"), ("CostDay", "cost"))
        }
        wanted |= {"trust": self.trusted(leaf["principal"]).value}
        wanted |= {"approvals": len(leaf["body"].get("approvals", ()))}
        wanted |= {"leaseState": "live" if lease else "none", "leaseMode": lease.mode if lease else "none"}
        wanted |= {"leaseAgeMs": t_ms - lease.granted_ms if lease else 0}
        wanted |= {"leaseLeftMs": self.book.end_ms(lease) - t_ms if lease else 0}
        wanted |= {"custody": leaf.get("custody", "agent")}
        told = {name: facts[name] for name in wanted}
        demand(told == wanted, "I16", f"entry {leaf['seq']} tells {told}, not {wanted}")
        for row in leaf["schemes"]:
            counts = {
                name: self._count(f"{what} scheme", row["name"], leaf)
                for name, what in (("countMinute", "minute"), ("countDay", "day"), ("costDay", "cost"))
            }
            demand(counts == {name: row[name] for name in counts}, "I16", f"entry {leaf['seq']} miscounts a scheme")
        names = sorted({scheme_of(name) for name in leaf["resources"]})
        demand([row["name"] for row in leaf["schemes"]] == names, "I16", f"entry {leaf['seq']} tells other schemes")

    # -- what rules leave ---------------------------------------------------------------------------------------------

    def _why_ruled_out(self, leaf: Leaf) -> str | None:
        """I16: return why the rules in force deny this, and look at what the entry says of them."""
        if "facts" in leaf:
            self._facts(leaf)
        limits = self.book.limits
        if limits is None:
            demand("rules" not in leaf, "rules", f"entry {leaf['seq']} tells of rules before there are any")
            return None
        decision, matched = limits.says(self._seen(leaf))
        if "facts" in leaf:
            decision, matched = self._told(leaf, limits, decision, matched)
        elif limits.mode == "enforce":
            decision = self._untold(leaf, decision)
        if limits.mode == "shadow" or decision == "allow":
            return None
        return "policy_error" if decision == "error" else "forbidden_by_rules" if matched else "not_permitted"

    def _untold(self, leaf: Leaf, decision: str) -> str:
        """A batch that is refused tells of no ruling; why it is an error nobody can ask again (40.3)."""
        is_error = leaf.get("error") == "policy_error"
        if is_error or not self.engine:
            self.unruled.append(leaf["endsBefore"] if "endsBefore" in leaf else leaf["seq"])
        return "error" if is_error and self.is_engine_flaky else decision

    def _seen(self, leaf: Leaf) -> Asked:
        schemes = [(self.book.scheme(name)["class"], scheme_of(name)) for name in leaf["resources"]]
        spent = self._count("cost operator", leaf["onBehalfOf"], leaf)
        return Asked(
            self._count("minute agent", leaf["principal"], leaf), spent,
            leaf["cost"], self.trusted(leaf["principal"]).value, len(leaf["body"].get("approvals", ())),
            [(cls, self._count("day scheme", name, leaf)) for cls, name in schemes],
        )  # fmt: skip

    def _told(self, leaf: Leaf, limits: Limits, decision: str, matched: list[str]) -> tuple[str, list[str]]:
        """Return the ruling that an entry tells; but for an engine that failed it is what the rules say."""
        told = leaf["rules"]
        in_force = (limits.version, limits.digest, limits.mode)
        is_by = (told["version"], told["digest"], told["mode"]) == in_force
        demand(is_by, "rules", f"entry {leaf['seq']} is by other rules than those in force")
        if self.is_engine_flaky and (told["engine"], told["decision"], told["matched"]) == ("none", "error", []):
            self.count("an engine that failed")
            self.unruled.append(leaf["seq"])
            return "error", []
        self.engine = told["engine"]
        ruling = (told["decision"], told["matched"], told["obligations"])
        demand(
            ruling == (decision, matched, []), "I16", f"entry {leaf['seq']} is ruled {ruling}, not {decision} {matched}"
        )
        return decision, matched

    # -- what a denial tells ------------------------------------------------------------------------------------------

    def _explains(self, leaf: Leaf, ask: Ask) -> None:
        match leaf["error"]:
            case "stale_fence":
                self._superseded(leaf)
            case "admission_conflict":
                found = self.leases_in_the_way(leaf, ask)
                newest = max(found, key=lambda one: one.token)
                told = (leaf["currentToken"], leaf["holder"])
                demand(told == (newest.token, newest.actor), "I10", f"entry {leaf['seq']} names {told}")

    def _superseded(self, leaf: Leaf) -> None:
        lease, seq = self.live(leaf["leaseId"]), leaf["seq"]
        live = [one for one in self.book.leases if self._meets(leaf, one)]
        newest = max(live, key=lambda one: one.token, default=None)
        before = leaf.get("endsBefore", 1 << 60)  # what was done in an atomic batch that is undone is no entry
        token = newest.token if newest and newest.seq < before else None
        demand(leaf.get("currentToken") == token, "I10", f"entry {seq} tells another token than {token}")
        holder = newest.actor if newest and newest.actor != leaf["actor"] else None
        demand(leaf.get("holder") == holder, "I10", f"entry {seq} tells another holder than {holder}")
        ended = self._ended(leaf) if lease is None else None
        cited = ended.seq if ended is not None and ended.seq < before else None
        demand(leaf.get("endedSeq") == cited, "I10", f"entry {seq} cites another end than {cited}")

    def _meets(self, leaf: Leaf, lease: Lease) -> bool:
        return any(self.book.meets(name, held) for name in leaf["resources"] for held in lease.names)


def windows(of: str, who: str, t_ms: int) -> Places:
    """Return what is counted of somebody: how often in a minute, in a day and ever, and the cost of these."""
    minute, day = t_ms // MINUTE_MS, t_ms // DAY_MS
    return [
        (f"minute {of}", who, minute), (f"day {of}", who, day), (f"cost {of}", who, day), (f"ever {of}", who, 0),
        (f"cost ever {of}", who, 0),
    ]  # fmt: skip
