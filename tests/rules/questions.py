"""Questions as an admission poses them, made by the one function that the gateway and the auditor use."""

from typing import Any

from gateway.rules.cases import AGENT, OPERATOR, _question
from verifier.rules import Question, SchemeRow

SHOWN = (AGENT, OPERATOR)


def question(*resources: str, **said: Any) -> Question:
    """An ordinary write under a lease, on several names, with what is said to be different."""
    made = _question({**said, **({"resource": resources[0]} if resources else {})})
    if len(resources) < 2:
        return made
    rows = tuple(
        SchemeRow(name, "exclusive", False, 0, 0, 0) for name in sorted({name.partition(":")[0] for name in resources})
    )
    return made._replace(resources=tuple(sorted(resources)), schemes=rows)


def policy(effect: str, when: str = "true", *, name: str = "p", head: str = "principal, action, resource") -> str:
    """One policy with a condition."""
    return f'@id("{name}") {effect} ({head}) when {{ {when} }};'


ALL = policy("permit", name="all")
