"""What facts there are and what each can be; and the engine's own words of a fault in those of who writes rules.

Source: docs/protocol.md 39.1, 39.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches

from gateway.rules.sight import Fact, Named
from verifier.entries import (
    CLASS,
    COST,
    COUNT,
    DID,
    FACTS,
    HASH,
    MODES,
    OPERATION,
    SCHEME,
    Kind,
    key_of,
    resource_hint,
    scheme_of,
)
from verifier.rules import CONTEXT, MINUTES_PER_DAY

CONTEXT_NAMES = tuple(name for name, _ in CONTEXT)
ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "context": CONTEXT_NAMES,
    "principal": ("name",),
    "resource": ("scheme", "class", "path"),
}
ENTITIES = ("Agent", "Operator", "Resource", "Scheme", "Action")
FITTING: Mapping[str, tuple[str, ...]] = {"principal": ("Agent", "Operator"), "resource": ("Resource", "Scheme")}
NO_QUESTION = "its head fits no question: a principal is an Agent, in an Operator; a resource a Resource, in a Scheme"
_OWNERS: Mapping[str, str] = {"Agent": "principal", "Resource": "resource"}
_KINDS: Mapping[str, Kind] = {
    **{fact.name: fact.kind for fact in FACTS},
    **dict.fromkeys(("schemeCountMinute", "schemeCountDay", "schemeCostDay"), COUNT),
    "operation": OPERATION,
    "argumentsDigest": HASH,
    "cost": COST,
    "principal.name": next(fact.kind for fact in FACTS if fact.name == "agentName"),
    "resource.class": CLASS,
    "resource.scheme": SCHEME,
}
_RANGES: Mapping[str, tuple[int, int]] = {"minuteOfDay": (0, MINUTES_PER_DAY - 1), "dayOfWeek": (1, 7)}
_TYPES: Mapping[str, str] = {"Long": "a number", "String": "a text", "Bool": "a yes or no", "Set": "a set"}


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question that offers the known word which was meant most likely; nothing when none is near."""
    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[found[0]]}?" if found else ""


def never(name: str, value: Fact) -> str | None:
    """Return why a fact never is a value that it is compared with; None when it can be."""
    kind, written = _KINDS.get(name), name if "." in name else f"context.{name}"
    if isinstance(value, int):
        low, high = _range(name, kind)
        return None if low <= value <= high else f"{written} is {low:,} to {high:,}, so never {value:,}"
    if kind is None or kind.check(value):
        return None
    words = _words_of(kind)
    if words:
        return f'{written} is never "{value}"{nearest(value, words)} (it is one of {", ".join(words)})'
    return f'{written} is never "{value}": it is {kind.bound}'


def never_met(named: Named, is_folding: Callable[[str], bool]) -> str | None:
    """Return why an entity that a policy names is never the one asked about; None when it can be.

    `is_folding` says whether a scheme folds case: the names that are asked about are then in lower case.
    """
    kind, name = named.uid
    if kind not in ENTITIES or kind == "Action":
        return None  # the engine says so itself
    if not named.variable:
        return f'{kind}::"{name}" stands by itself: compare principal or resource with it, by == or in'
    fitting = FITTING.get(named.variable)
    if fitting is not None and kind not in fitting:
        return f"{named.variable} is compared with {'::… or '.join(fitting)}::…, never with {kind}::…"
    if kind in ("Agent", "Operator"):
        return None if DID.check(name) else f'{kind}::"{name}" is nobody: {kind.lower()}s are named by their did:key:z…'
    if kind == "Scheme":
        return None if SCHEME.check(name) else f'Scheme::"{name}" is none: a scheme is what stands before the colon'
    return _resource_fault(name, named.is_in, is_folding) if kind == "Resource" else None


def in_words(message: str) -> tuple[str, str]:
    """Return an engine's message as a sentence, and the word in the text that it is about, "" where it tells none."""
    message = re.sub(r"^(?:Policy parse error: )?(?:for policy `policy[0-9]+`, )?", "", message)
    for pattern, say in _SENTENCES:
        if found := re.fullmatch(pattern, message, re.DOTALL):
            return say(*found.groups()), found[1] if found.re.groups else ""
    quoted = re.search(r"`([^`]+)`", message)
    return message, quoted[1] if quoted else ""


def _resource_fault(name: str, is_in: bool, is_folding: Callable[[str], bool]) -> str | None:
    hint = resource_hint(name)
    if hint is not None:
        return f'Resource::"{name}" is no name: {hint}'
    folded = key_of(name, is_folding(scheme_of(name)))
    if folded != name:
        return f'Resource::"{name}" is never met: its scheme folds case, so write "{folded}"'
    is_tree = name.endswith(("/**", ":**"))
    if is_tree and not is_in:
        return f'no admission is for all of Resource::"{name}": write `in` instead of ==, for each name in it'
    if is_in and not is_tree:
        return f'`in` Resource::"{name}" is that one name alone: write == instead, or "{name}/**" for all below it too'
    return None


def _range(name: str, kind: Kind | None) -> tuple[int, int]:
    """Return the least and the greatest value of a number; any that the engine has where no table bounds it."""
    schema = {} if kind is None else kind.schema
    low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    assert isinstance(low, int) and isinstance(high, int), "a number is bounded by numbers"
    return _RANGES.get(name, (low, high))


def _words_of(kind: Kind) -> list[str]:
    words = kind.schema.get("enum")
    return list(map(str, words)) if isinstance(words, list) else []


def _no_fact(name: str, _action: str) -> str:
    return f"there is no fact `{name}`{nearest(name, CONTEXT_NAMES)} (all of them: tallystick rules schema)"


def _no_attribute(name: str, kind: str) -> str:
    known = ATTRIBUTES.get(_OWNERS.get(kind, ""), ())
    return f"{_OWNERS.get(kind, kind)} has no `{name}`{nearest(name, known)} (it has {', '.join(known) or 'nothing'})"


def _other_type(wanted: str, found: str) -> str:
    return f"here stands {_type(found)} where {_type(wanted)} is needed"


def _type(name: str) -> str:
    return "a record" if name.startswith("{") else _TYPES.get(name, name)


def _no_variable(name: str) -> str:
    hint = f"; facts are written context.{name}" if name in CONTEXT_NAMES else nearest(name, ATTRIBUTES)
    return f"`{name}` means nothing by itself{hint}"


def _unexpected(word: str) -> str:
    hints = {"and": "write &&", "or": "write ||", "not": "write !", "=": "write ==", ">": "write >= or <="}
    hint = f": {hints[word]}" if word in hints else ": numbers are whole" if word.isdigit() else ""
    return f"`{word}` can't stand here{hint}"


_SENTENCES: tuple[tuple[str, Callable[..., str]], ...] = (
    (r"attribute `(.+)` in context for Action::\"(.+)\" not found", _no_fact),
    (r"attribute `(.+)` on entity type `(.+)` not found", _no_attribute),
    (r"unrecognized entity type `(.+)`", lambda kind: f"there is no {kind}::{nearest(kind, ENTITIES)}"),
    (r"unrecognized action `Action::\"(.+)\"`", lambda mode: f'Action::"{mode}" is none of the modes'
     f"{nearest(mode, MODES)} (they are {', '.join(MODES)})"),
    (r"unable to find an applicable action given the policy scope constraints", lambda: NO_QUESTION),
    (r"unexpected type: expected (?:.*\b)?(Long|String|Bool) but saw (\w+)", _other_type),
    (r"the types (.+) and (.+) are not compatible", lambda left, right: f"{_type(left)} is compared or mixed with "
     f"{_type(right)}"),
    (r"(?:invalid variable: |invalid member access `)(\w+)(?:\..*)?", _no_variable),
    (r"unexpected token `(.+)`", _unexpected),
    (r"'(=)' is not a valid operator in Cedar", lambda sign: f"`{sign}` can't stand here: write =="),
    (r"unexpected end of input", lambda: "something is missing at the end"),
    (r"invalid policy effect: (.+)", lambda word: f"a policy begins with permit or forbid, not `{word}`"
     f"{nearest(word, ('permit', 'forbid'))}"),
    (r"invalid token", lambda: "there is a sign that Cedar does not have; texts stand between \" and \""),
)  # fmt: skip
