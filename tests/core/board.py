"""A crew with people who may approve: operators op2 and op3 with their agents X and Z, and Y."""

from __future__ import annotations

import hashlib
from typing import Any

from gateway.core.lookup import pending_at
from gateway.core.records import Pending
from tests.core.court import Judge
from tests.core.crew import Crew
from tests.core.requests import (
    GENESIS_ROOT,
    Ask,
    add,
    add_operator,
    admit,
    approved,
    decline,
    did_of,
    give,
    key_of,
    plead,
    set_scheme,
    with_approvals,
    withdraw,
)
from verifier.entries import Leaf

Approval = dict[str, Any]
OTHER = hashlib.sha256(b"something else").hexdigest()
# By members of a statement of approval: it names another place, agent or action than the one it is about.
BOUND: dict[str, dict[str, Any]] = {
    "ledger": {"ledger": "gateway.example/other"},
    "genesis": {"genesis": GENESIS_ROOT.hex()},
    "agent": {"agent": did_of("B")},
    "operation": {"operation": "file.delete"},
    "action": {"actionDigest": OTHER},
    "arguments": {"argumentsDigest": OTHER},
    "rules": {"rulesDigest": OTHER},
}


class Board(Crew):
    """A and B are agents of op and want something approved; X and Z answer to op2, Y to op3."""

    def __init__(self, **numbers: int) -> None:
        super().__init__(**numbers)
        self.rules = Judge()
        assert self.tell(add_operator("op", "op3")) == "operator.added"
        assert self.tell(add("op2", "Z")) == self.tell(add("op3", "Y")) == "agent.added"
        self.names |= {did_of(name): name for name in ("X", "Y", "Z")}
        assert self.tell(set_scheme("op", "db", "irreversible")) == "scheme.set"

    def hold(self, name: str, *resources: str, mode: str = "write", **members: Any) -> str:
        lease_id = super().hold(name, *resources, mode=mode, **members)
        self.held = lease_id, self.leases()[lease_id].fencing_token
        return lease_id

    def admission(self, name: str = "A", *resources: str, **members: Any) -> Ask:
        """Return what an actor wants admitted, now, under the lease that was taken last."""
        return self.now(admit(name, *(resources or ("db:x",)), **({"lease": self.held} | members)))

    def approval(self, by: str, one: Ask, **changes: Any) -> Approval:
        """Return the word of `by` that this may be done, from now on."""
        return approved(by, one, self.imprint.genesis, at_ms=self.t_ms, **changes)

    def admits(self, one: Ask, *approvals: Approval) -> str:
        """Say what comes of an admission that brings these approvals along."""
        return self.tell(with_approvals(one, *approvals)) if approvals else self.tell(one)

    # -- asking

    def plead(self, name: str, *of: str, resource: str = "db:x", **members: Any) -> str:
        """Ask for approval, which has to succeed, and return the id of the ask."""
        leaf = self.say(plead(name, resource, of=of, **members))
        assert leaf.type.split("/")[1] == "approval.asked", leaf.value
        return leaf.text("askId")

    def asking(self, name: str, *of: str, resource: str = "db:x", **members: Any) -> Leaf:
        """Ask for approval, and return what comes of it."""
        return self.say(plead(name, resource, of=of, **members))

    def word(self, by: str, ask_id: str, **changes: Any) -> Approval:
        """Return the approval that was asked for, by this approver."""
        asked = self.leaf(int(ask_id[1:]))
        assert asked.request is not None
        one = Ask("approval.ask", key_of(self.names[asked.principal]), asked.request["body"].encode(), "")
        digest = {"rules_digest": asked.text("rulesDigest")}
        return approved(by, one, self.imprint.genesis, at_ms=self.t_ms, **(digest | changes))

    def gives(self, by: str, ask_id: str, **changes: Any) -> str:
        return self.tell(give(by, ask_id, self.word(by, ask_id, **changes)))

    def declines(self, by: str, ask_id: str, **members: Any) -> str:
        return self.tell(decline(by, ask_id, **members))

    def withdraws(self, name: str, ask_id: str) -> str:
        return self.tell(withdraw(name, ask_id))

    def pending(self, ask_id: str) -> Pending | None:
        return pending_at(self.shelf, ask_id, self.t_ms)

    def how(self, ask_id: str) -> str:
        """Say how an ask stands: `open`, how it ended, or `lapsed`; nothing when nobody remembers it."""
        pending = self.pending(ask_id)
        if pending is None:
            return ""
        return pending.how or ("open" if pending.is_live(self.t_ms) else "lapsed")
