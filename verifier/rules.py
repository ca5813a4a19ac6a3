"""What a rule may see, and how it is put to an engine: the same for the gateway and for whoever asks again later.

Everything goes over as values: texts, integers, and entities as objects of type and id, never as a piece of Cedar. The
schema is made from the table of facts, so a rule that names what is not there is refused when its set is loaded.
Names in a scheme that folds case are put in lower case, as they are compared. No engine is imported here.
Source: docs/protocol.md 39.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from verifier.entries import FACTS, MODES, key_of, rows_of, scheme_of
from verifier.wire import JsonObject, JsonValue

Fact: TypeAlias = int | str
MS_PER_MINUTE, MINUTES_PER_DAY = 60_000, 1_440
# What an engine descends into, counted before it sees a text: brackets in one another, and operators of one policy. In
# the stack of 512 KiB that some threads have, 48 brackets, 970 operators or 254 times `if` end a process.
NESTING_MAX, OPERATORS_MAX = 24, 480
_OPERATORS = ("&&", "||", "+", "-", "*", ".", "[")
BRANCH_WORDS, BRANCH_WEIGHT = ("if", "when", "unless"), 8  # operators that each of these words counts as

# Name in a rule's context, and Cedar's type. Those of a scheme are of the scheme of the resource that is asked about.
_OF_REQUEST = (("operation", "String"), ("argumentsDigest", "String"), ("cost", "Long"))
_OF_SCHEME = (("schemeCountMinute", "countMinute"), ("schemeCountDay", "countDay"), ("schemeCostDay", "costDay"))
_OF_TIME = (("timeMs", "Long"), ("minuteOfDay", "Long"), ("dayOfWeek", "Long"))
_OF_FACTS = tuple((fact.name, "Long" if fact.kind.schema["type"] == "integer" else "String") for fact in FACTS)
CONTEXT = (*_OF_REQUEST, *_OF_FACTS, *((name, "Long") for name, _ in _OF_SCHEME), *_OF_TIME)
SCHEMA = (
    "entity Operator;\n"
    "entity Scheme;\n"
    "entity Agent in [Operator] { name: String };\n"
    "entity Resource in [Resource, Scheme] { scheme: String, class: String, path: String };\n"
    "type Facts = {\n" + "".join(f"  {name}: {kind},\n" for name, kind in CONTEXT) + "};\n"
    "action " + ", ".join(f'"{mode}"' for mode in MODES) + " appliesTo {\n"
    "  principal: [Agent],\n  resource: [Resource],\n  context: Facts,\n};\n"
)


def operators_in(token: str) -> int:
    """Return how many operators a token of a rule set counts as. Source: docs/protocol.md 39.2."""
    return BRANCH_WEIGHT if token in BRANCH_WORDS else int(token in _OPERATORS)


class SchemeRow(NamedTuple):
    """A scheme of the resources, with what was admitted in it before."""

    name: str
    class_name: str
    is_folding: bool
    count_minute: int
    count_day: int
    cost_day: int


class Question(NamedTuple):
    """One admission as rules see it. `facts` are the table's, in its order; `resources` and `schemes` are sorted."""

    principal: str
    on_behalf_of: str
    operation: str
    resources: tuple[str, ...]
    mode: str
    arguments_digest: str
    cost: int
    time_ms: int
    facts: tuple[tuple[str, Fact], ...]
    schemes: tuple[SchemeRow, ...]


class Evaluation(NamedTuple):
    """What an engine is asked about one resource: request (principal, action, resource, context), and entities."""

    resource: str
    request: JsonObject
    entities: list[JsonObject]


def make_question(principal: str, on_behalf_of: str, time_ms: int, members: JsonObject) -> Question:
    """Return the question that these members of an entry pose. ValueError names a fact that is missing."""
    facts, names = members.get("facts"), members.get("resources")
    if not isinstance(facts, dict) or not isinstance(names, list):
        raise ValueError("facts, resources: missing")
    return Question(
        principal=principal,
        on_behalf_of=on_behalf_of,
        operation=_text(members, "operation"),
        resources=tuple(map(str, names)),
        mode=_text(members, "mode"),
        arguments_digest=_text(members, "argumentsDigest"),
        cost=_number(members, "cost"),
        time_ms=time_ms,
        facts=tuple(
            (name, _text(facts, name) if kind == "String" else _number(facts, name)) for name, kind in _OF_FACTS
        ),
        schemes=tuple(map(_scheme_row, rows_of(members.get("schemes")))),
    )


def _scheme_row(row: JsonObject) -> SchemeRow:
    counts = (_number(row, name) for name in ("countMinute", "countDay", "costDay"))
    return SchemeRow(_text(row, "name"), _text(row, "class"), row.get("isFolding") is True, *counts)


def _text(value: JsonObject, name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise ValueError(f"{name}: missing, or no text")
    return found


def _number(value: JsonObject, name: str) -> int:
    found = value.get(name)
    if type(found) is not int:
        raise ValueError(f"{name}: missing, or no integer")
    return found


def evaluations(question: Question) -> Iterator[Evaluation]:
    """Yield what is to be evaluated, for each resource in turn. ValueError: a resource whose scheme has no row."""
    schemes = {row.name: (row, _context(question, row)) for row in question.schemes}  # one for all names of a scheme
    people = _people(question)
    for resource in question.resources:
        found = schemes.get(scheme_of(resource))
        if found is None:
            raise ValueError("schemes: the scheme of a resource is missing")
        row, context = found
        name = key_of(resource, row.is_folding)
        request: JsonObject = {
            "principal": _entity("Agent", question.principal),
            "action": _entity("Action", question.mode),
            "resource": _entity("Resource", name),
            "context": context,
        }
        yield Evaluation(resource, request, [*people, *_things(name, row)])


def _context(question: Question, row: SchemeRow) -> JsonObject:
    counts = (row.count_minute, row.count_day, row.cost_day)
    minute = question.time_ms // MS_PER_MINUTE
    return {
        "operation": question.operation,
        "argumentsDigest": question.arguments_digest,
        "cost": question.cost,
        **dict(question.facts),
        **{name: count for (name, _), count in zip(_OF_SCHEME, counts, strict=True)},
        "timeMs": question.time_ms,
        "minuteOfDay": minute % MINUTES_PER_DAY,
        "dayOfWeek": (minute // MINUTES_PER_DAY + 3) % 7 + 1,  # 1 January 1970 was a Thursday
    }


def _people(question: Question) -> list[JsonObject]:
    label = dict(question.facts)["agentName"]
    operator = _entity("Operator", question.on_behalf_of)
    return [
        {"uid": operator, "attrs": {}, "parents": []},
        {"uid": _entity("Agent", question.principal), "attrs": {"name": label}, "parents": [operator]},
    ]


def _things(name: str, row: SchemeRow) -> list[JsonObject]:
    path = name.partition(":")[2]
    kept: JsonObject = {"scheme": row.name, "class": row.class_name, "path": path}
    around: list[JsonValue] = [_entity("Resource", tree) for tree in trees_around(name)]
    return [
        {"uid": _entity("Scheme", row.name), "attrs": {}, "parents": []},
        {"uid": _entity("Resource", name), "attrs": kept, "parents": [*around, _entity("Scheme", row.name)]},
    ]


def _entity(kind: str, name: str) -> JsonObject:
    return {"type": kind, "id": name}


def trees_around(name: str) -> list[str]:
    """Return every sub-tree that covers a name, but not the name itself; the widest first.

    `repo:a/b` lies in `repo:**`, `repo:a/**` and, as its root, in `repo:a/b/**`. Source: docs/protocol.md 3.3.
    """
    scheme, _, path = name.partition(":")
    parts = path.removesuffix("/**").split("/") if path != "**" else []
    trees = [f"{scheme}:**", *(f"{scheme}:{'/'.join(parts[: n + 1])}/**" for n in range(len(parts)))]
    return [tree for tree in trees if tree != name]
