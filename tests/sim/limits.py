"""Rule sets of one kind, so that what they say is a comparison of numbers here and no question to an engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random

_NUMBERS = (
    ("few", "permit", "context.agentCountMinute < {}"),
    ("dear", "forbid", "context.operatorCostDay + context.cost > {}"),
    ("full", "forbid", "context.schemeCountDay >= {}"),
    ("trusted", "forbid", "context.trust < {}"),
    ("two", "forbid", 'resource.class == "irreversible" && context.approvals < {}'),
    ("odd", "forbid", "context.cost * {} < 0"),  # costs of more than 1 overflow: an error, never an allow
)
ODD = 1 << 62
_POLICY = re.compile(r'@id\("([a-z]+)"\)[^{]*\{[^;]*? ([0-9]+)( < 0)? \};')


@dataclass(frozen=True)
class Asked:
    """What a rule of ours may see of one admission; `schemes` has of each name the class and how often that day."""

    agent_count_minute: int
    operator_cost_day: int
    cost: int
    trust: int
    approvals: int
    schemes: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Limits:
    """A rule set in force, read back from its text: bounds by the id of the rule; a rule that is not there has none."""

    version: int
    mode: str
    text: str

    @property
    def digest(self) -> str:
        return sha256(self.text.encode()).hexdigest()

    @property
    def bounds(self) -> dict[str, int]:
        return {found[1]: int(found[2]) for found in _POLICY.finditer(self.text)}

    def says(self, asked: Asked) -> tuple[str, list[str]]:
        """Return decision and matched rules: an error about anything, else a deny of any name, else what permits."""
        bounds = self.bounds
        if asked.cost * bounds.get("odd", 0) >= 1 << 63:
            return "error", []
        permits = asked.agent_count_minute < bounds["few"]
        of_all = {
            "dear": asked.operator_cost_day + asked.cost > bounds.get("dear", 1 << 62),
            "trusted": asked.trust < bounds.get("trusted", 0),
        }
        forbids = {name for name, is_so in of_all.items() if is_so}
        for cls, count in asked.schemes:
            forbids |= {"full"} if count >= bounds.get("full", 1 << 62) else set()
            forbids |= {"two"} if cls == "irreversible" and asked.approvals < bounds.get("two", 0) else set()
        if forbids or not permits:
            return "deny", sorted(forbids)
        return "allow", ["few"]


def rules(**bounds: int) -> str:
    """Return a rule set with these bounds."""
    return "".join(
        f'@id("{name}") {effect}(principal, action, resource) when {{ {when.format(bounds[name])} }};\n'
        for name, effect, when in _NUMBERS
        if name in bounds
    )


def some_rules(rng: Random) -> str:
    """Return a rule set: how much an agent may in a minute, an operator's agents may cost in a day, and the like."""
    bounds = {"few": rng.choice([1, 2, 4, 8, 600]), "dear": rng.choice([4, 20, 400, 4_000])}
    if rng.random() < 0.4:
        bounds["full"] = rng.choice([5, 40, 300])
    if rng.random() < 0.3:
        bounds["trusted"] = rng.choice([1, 50_000, 50_050])
    if rng.random() < 0.3:
        bounds["two"] = 2
    if rng.random() < 0.2:
        bounds["odd"] = ODD
    return rules(**bounds)
