"""Who may act in a ledger: entry 0's operators, and the agents they added and did not remove."""

from __future__ import annotations

from verifier.entries import Leaf
from verifier.replay.things import Faults


class People:
    """Fed with `agent.added` and `agent.removed`."""

    def __init__(self, operators: frozenset[str] = frozenset()) -> None:
        self.operators = operators
        self.agents: set[str] = set()
        self.labels: dict[str, str] = {}  # the last label of each agent, also of a removed one: its lease may live on

    def add(self, leaf: Leaf) -> None:
        agent = leaf.text("agent")
        self.agents.add(agent)
        self.labels.pop(agent, None)
        if "name" in leaf.value:
            self.labels[agent] = leaf.text("name")

    def remove(self, leaf: Leaf) -> None:
        self.agents.discard(leaf.text("agent"))

    def faults(self, leaf: Leaf) -> Faults:
        """May the actor of a request act? No ledger is excepted: under `--dev` too an operator adds an agent first."""
        if leaf.actor in self.operators:
            return
        if leaf.entry_type.actor_rule == "operator":
            yield "operator_required", "the actor is no operator of entry 0 (12.8)"
        elif leaf.actor not in self.agents:
            yield "agent_unknown", "the actor was not added, or was removed, before this entry (12.8)"
