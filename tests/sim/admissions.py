"""Admissions as the specification says them: each under a token that is live (I3), within what rules leave (I16).

Written from the specification with loops, like all that the checker knows. Rules are of one kind, so that what they say
is a comparison of two numbers here and no question to an engine.
"""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from typing import Any

from tests.sim.book import RANK, Lease
from tests.sim.names import covers, scheme_of
from tests.sim.refusals import Ask, demand
from tests.sim.vault import Vault

Leaf = dict[str, Any]
MINUTE_MS, DAY_MS = 60_000, 86_400_000
_LIMITS = re.compile(r"agentCountMinute < ([0-9]+) .*operatorCostDay \+ context.cost > ([0-9]+) ", re.DOTALL)


def rules(few: int, dear: int) -> str:
    """Return a rule set: an agent may do so much in a minute, all of an operator's agents may cost so much in a day."""
    return (
        f'@id("few") permit(principal, action, resource) when {{ context.agentCountMinute < {few} }};\n'
        f'@id("dear") forbid(principal, action, resource) when {{ context.operatorCostDay + context.cost > {dear} }};\n'
    )


class Admissions(Vault):
    """Handlers of the entries about admissions and rules."""

    def __init__(self) -> None:
        super().__init__()
        self.version, self.mode, self.limits = 0, "", (0, 0)
        self.used_up: Counter[tuple[str, str, int]] = Counter()  # by what, whose, and window

    # -- rules --------------------------------------------------------------------------------------------------------

    def on_rules_loaded(self, leaf: Leaf) -> None:
        self.by_operator(leaf)
        text = leaf["body"]["rules"]
        demand(leaf["rulesVersion"] == self.version + 1, "rules", f"entry {leaf['seq']} is out of turn")
        demand(leaf["digest"] == sha256(text.encode()).hexdigest(), "rules", f"digest of entry {leaf['seq']}")
        found = _LIMITS.search(text)
        assert found is not None, "it is one of ours"
        self.version, self.mode, self.limits = self.version + 1, leaf["rulesMode"], (int(found[1]), int(found[2]))

    def on_rules_refused(self, leaf: Leaf) -> None:
        self.or_no_operator(leaf)
        self.refused(leaf, [], "")

    def refused_rules_out_of_turn(self, leaf: Leaf, _: object) -> None:
        demand(leaf["rulesVersion"] != self.version + 1, "rules", f"entry {leaf['seq']} refuses the next version")

    # -- admissions ---------------------------------------------------------------------------------------------------

    def on_admission_allowed(self, leaf: Leaf) -> None:
        book, seq, names = self.book, leaf["seq"], leaf["resources"]
        demand(not book.is_disputed, "I1", f"entry {seq} admits on a disputed ledger")
        self._fenced(leaf)
        others = book.leases_in_the_way(leaf["actor"], names, leaf["mode"])
        demand(not others, "I3", f"entry {seq} is admitted beside {[one.lease_id for one in others]}")
        is_final = any(book.scheme(name)["class"] == "irreversible" for name in names)
        demand(not is_final, "I3", f"entry {seq} can't be undone, and nobody approved")
        self._facts(leaf)
        demand(self._by_rules(leaf) is None, "I16", f"entry {seq} is allowed in spite of {self._by_rules(leaf)}")
        for place in self._places(leaf):
            self.used_up[place] += leaf["cost"] if place[0].startswith("cost") else 1

    def _fenced(self, leaf: Leaf) -> None:
        """I3: only under a live lease of the actor, with its token, as wide and as strong as what is done."""
        seq, lease = leaf["seq"], self.live(leaf.get("leaseId", ""))
        if "leaseId" not in leaf:
            demand(leaf["mode"] == "read", "I3", f"entry {seq} is no read, and shows no lease")
            return
        demand(lease, "I3", f"entry {seq} is admitted under a lease that is over")
        assert lease is not None
        told = (leaf["actor"], leaf["fencingToken"], leaf["grantSeq"])
        demand(told == (lease.actor, lease.token, lease.seq), "I3", f"entry {seq} shows another's lease or token")
        demand(self._is_wide(lease, leaf), "I3", f"entry {seq} is beyond its lease")
        until_ms = leaf["validUntilMs"]
        demand(leaf["timeMs"] < until_ms <= self.book.end_ms(lease), "I3", f"entry {seq} outlives its lease")

    def _is_wide(self, lease: Lease, leaf: Leaf) -> bool:
        keys, asked = self.book.keys(lease.names), self.book.keys(leaf["resources"])
        is_strong = RANK[lease.mode] >= RANK[leaf["mode"]]
        return is_strong and all(any(covers(wide, key) for wide in keys) for key in asked)

    def _places(self, leaf: Leaf) -> list[tuple[str, str, int]]:
        """Return under what an admission counts."""
        minute, day = leaf["timeMs"] // MINUTE_MS, leaf["timeMs"] // DAY_MS
        whose = [("agent", leaf["principal"]), ("operator", leaf["onBehalfOf"])]
        whose += [("scheme", name) for name in sorted({scheme_of(name) for name in leaf["resources"]})]
        rows = (((f"minute {of}", who, minute), (f"day {of}", who, day), (f"cost {of}", who, day)) for of, who in whose)
        return [place for row in rows for place in row]

    def _facts(self, leaf: Leaf) -> None:
        """What an entry tells of counts and trust is what there was before it."""
        places, facts = iter(self._places(leaf)), leaf["facts"]
        wanted = {
            f"{of}{name}": self.used_up[next(places)]
            for of in ("agent", "operator") for name in ("CountMinute", "CountDay", "CostDay")
        }  # fmt: skip
        wanted["trust"] = self.trusted(leaf["principal"]).value
        told = {name: facts[name] for name in wanted}
        demand(told == wanted, "I16", f"entry {leaf['seq']} tells {told}, not {wanted}")
        for row in leaf["schemes"]:
            counts = {name: self.used_up[next(places)] for name in ("countMinute", "countDay", "costDay")}
            demand(counts == {name: row[name] for name in counts}, "I16", f"entry {leaf['seq']} miscounts a scheme")

    def _by_rules(self, leaf: Leaf) -> str | None:
        """Return the denial that rules in force call for."""
        if self.mode != "enforce":
            return None
        few, dear = self.limits
        places = self._places(leaf)
        if self.used_up[places[5]] + leaf["cost"] > dear:
            return "forbidden_by_rules"
        return None if self.used_up[places[0]] < few else "not_permitted"

    def on_admission_denied(self, leaf: Leaf) -> None:
        self.refused(leaf, leaf["resources"], leaf["mode"])

    def refused_fence_unknown(self, leaf: Leaf, _: object) -> None:
        lease = self.live(leaf["leaseId"])
        is_so = lease is not None and leaf["fencingToken"] > lease.token
        demand(is_so, "I10", f"entry {leaf['seq']}: the token is known")

    def refused_stale_fence(self, leaf: Leaf, _: object) -> None:
        lease, seq = self.live(leaf["leaseId"]), leaf["seq"]
        demand(lease is None or leaf["fencingToken"] < lease.token, "I10", f"entry {seq}: the fence is not stale")
        live = [one for one in self.book.leases if self._meets(leaf, one)]
        newest = max((one.token for one in live), default=None)
        demand(leaf.get("currentToken") == newest, "I10", f"entry {seq} tells another token than {newest}")
        if lease is None:
            ended = self._ended(leaf)
            demand(ended is not None and ended.seq == leaf["endedSeq"], "I10", f"entry {seq} cites another end")

    def _meets(self, leaf: Leaf, lease: Lease) -> bool:
        return any(self.book.meets(name, held) for name in leaf["resources"] for held in lease.names)

    def refused_lease_too_narrow(self, leaf: Leaf, _: object) -> None:
        lease = self.live(leaf["leaseId"])
        demand(lease is not None and not self._is_wide(lease, leaf), "I10", f"entry {leaf['seq']}: it is wide enough")

    def refused_lease_required(self, leaf: Leaf, _: object) -> None:
        demand(leaf["mode"] != "read" and "leaseId" not in leaf, "I10", f"entry {leaf['seq']} needs no lease")

    def refused_admission_conflict(self, leaf: Leaf, ask: Ask) -> None:
        found = self.leases_in_the_way(leaf, ask)
        newest = max((one.token for one in found), default=None)
        demand(leaf["currentToken"] == newest, "I10", f"entry {leaf['seq']} names {leaf['currentToken']}")
        demand(leaf["holder"] in {one.actor for one in found}, "I10", f"entry {leaf['seq']} names another holder")

    def refused_approval_required(self, leaf: Leaf, _: object) -> None:
        is_final = any(self.book.scheme(name)["class"] == "irreversible" for name in leaf["resources"])
        demand(is_final, "I10", f"entry {leaf['seq']} can be undone")

    def refused_not_permitted(self, leaf: Leaf, _: object) -> None:
        self._facts(leaf)
        wanted = self._by_rules(leaf)
        demand(leaf["error"] == wanted, "I16", f"entry {leaf['seq']} is {leaf['error']}, not {wanted}")

    refused_forbidden_by_rules = refused_not_permitted
