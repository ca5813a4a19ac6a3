"""What a rule set can see of a question, read from its parsed policies.

Two questions that a set can't tell apart have one answer, so the engine is asked once. A fact counts by the side of the
numbers that it is compared with, or by whether it is one of the texts it is compared with; whoever a policy asks about
counts by whether he is that one, or inside of it. Whatever is not of a known shape counts as a look at everything.

Sound because Cedar has no other way to a value than the four variables, their attributes, the literal entities of the
policy and what hangs on these; tests/rules/test_sight.py compares answers of one side with fresh ones.
Source: docs/protocol.md 39.6; Cedar's JSON policy format.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from verifier.wire import JsonObject, JsonValue

Uid: TypeAlias = tuple[str, str]
Fact: TypeAlias = int | str
Key: TypeAlias = tuple[object, ...]

PARTIES = ("principal", "resource")
_ORDER = ("<", "<=", ">", ">=")
_SAME = ("==", "!=")


class Named(NamedTuple):
    """An entity that a policy names: the variable it is compared with, "" where that is none, and whether by `in`."""

    variable: str
    uid: Uid
    is_in: bool = False


class Sight(NamedTuple):
    """What a set of policies looks at. Facts have the names of the context; attributes are `principal.name`, ….

    `cuts` has the numbers that a fact is compared with, in order, and `words` the texts; `whole` are facts whose value
    itself counts. `near` has, for each party, the entities that it is compared with, and `is_whole` names the parties
    whose every attribute counts. `sees_context`: all facts count.
    """

    cuts: Mapping[str, tuple[int, ...]]
    words: Mapping[str, frozenset[str]]
    whole: tuple[str, ...]
    near: Mapping[str, tuple[Uid, ...]]
    is_whole: frozenset[str]
    sees_context: bool
    named: tuple[Named, ...]
    """Every entity that is named, in order."""
    asked: tuple[tuple[str, str], ...]
    """Every attribute that a `has` asks for, with its variable."""
    compared: Mapping[str, frozenset[Fact]]
    """The numbers and texts that each fact is compared with, whether its value counts elsewhere or not."""

    def side(self, name: str, value: Fact) -> Fact | bool:
        """Return all that this set can tell of a fact's value."""
        if self.sees_context:
            return value
        if name in self.cuts and isinstance(value, int):
            cuts = self.cuts[name]
            return bisect_left(cuts, value) + bisect_right(cuts, value)
        if name in self.words and isinstance(value, str):
            return value if value in self.words[name] else False
        return value

    @property
    def facts(self) -> tuple[str, ...]:
        """Return the facts that count, sorted."""
        return tuple(sorted({*self.cuts, *self.words, *self.whole}))


def place(uid: Uid, parents: Iterable[Uid], near: Sequence[Uid]) -> Key:
    """Return, for each of the entities in `near`, whether it is `uid` itself (2), one above it (1), or neither (0)."""
    above = frozenset(parents) if near else frozenset()
    return tuple(2 if one == uid else int(one in above) for one in near)


def sight_of(policies: Iterable[JsonObject]) -> Sight:
    """Return what policies see, each in Cedar's JSON format."""
    seen = _Seen()
    for policy in policies:
        seen.scope(policy)
        seen.see(policy.get("conditions"))
    return seen.sight()


class _Seen:
    """Walks over policies and collects."""

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = {}
        self._texts: dict[str, set[str]] = {}
        self._whole: set[str] = set()
        self._near: dict[str, set[Uid]] = {party: set() for party in PARTIES}
        self._all_of: set[str] = set()  # variables
        self._named: list[Named] = []
        self._asked: list[tuple[str, str]] = []

    def sight(self) -> Sight:
        return Sight(
            cuts={name: tuple(sorted(found)) for name, found in self._numbers.items() if name not in self._whole},
            words={name: frozenset(found) for name, found in self._texts.items() if name not in self._whole},
            whole=tuple(sorted(self._whole)),
            near={party: tuple(sorted(found)) for party, found in self._near.items()},
            is_whole=frozenset(self._all_of & set(PARTIES)),
            sees_context="context" in self._all_of,
            named=tuple(self._named),
            asked=tuple(self._asked),
            compared={
                name: frozenset[Fact](self._texts.get(name, set())) | self._numbers.get(name, set())
                for name in {*self._texts, *self._numbers}
            },
        )

    def scope(self, policy: JsonObject) -> None:
        """Take in the head of a policy: who, what, on what."""
        for variable in ("principal", "action", "resource"):
            part = policy.get(variable)
            uids = _uids_below(part)
            if not isinstance(part, dict) or part.get("op") not in ("All", "==", "in", "is"):
                self._all_of |= {variable, *PARTIES}
            is_in = isinstance(part, dict) and (part.get("op") == "in" or "in" in part)
            for uid in uids:
                self._beside(Named(variable, uid, is_in))

    def see(self, node: JsonValue) -> None:
        """Take in an expression, or anything that holds some."""
        if isinstance(node, list):
            for item in node:
                self.see(item)
        if not isinstance(node, dict):
            return
        for shape in _SHAPES:
            if shape(self, node):
                return
        for item in node.values():
            self.see(item)

    def _beside(self, named: Named) -> None:
        """A variable is compared with an entity; what action is asked for counts anyway."""
        self._named.append(named)
        if named.variable in self._near:
            self._near[named.variable].add(named.uid)

    # -- shapes: each says whether a node is one of its kind, and takes it in then ------------------------------------

    def _variable(self, node: JsonObject) -> bool:
        name = node.get("Var")
        if not isinstance(name, str):
            return False
        self._all_of.add(name)
        return True

    def _attribute(self, node: JsonObject) -> bool:
        name = _fact(node)
        if name is None:
            return False
        self._whole.add(name)
        return True

    def _comparison(self, node: JsonObject) -> bool:
        """A fact beside a literal number or text, either way round."""
        for operator, left, right in _pairs(node, (*_ORDER, *_SAME)):
            name, value = _fact(left), _literal(right)
            if name is not None and isinstance(value, int) and not isinstance(value, bool):
                self._numbers.setdefault(name, set()).add(value)
                return True
            if name is not None and isinstance(value, str) and operator in _SAME:
                self._texts.setdefault(name, set()).add(value)
                return True
        return False

    def _has(self, node: JsonObject) -> bool:
        """Every attribute is always there, so asking whether it is tells nothing; and there are no tags."""
        asked = node.get("has", node.get("hasTag"))
        if len(node) != 1 or not isinstance(asked, dict):
            return False
        variable = _var(asked.get("left"))
        attribute = asked.get("attr") if "has" in node else "tags"
        if variable is None or not isinstance(attribute, str):
            return False
        self._asked.append((variable, attribute))
        return True

    def _membership(self, node: JsonObject) -> bool:
        """A variable beside literal entities; `is` asks for the type, which is always the same."""
        if len(node) == 1 and isinstance(asked := node.get("is"), dict) and (variable := _var(asked.get("left"))):
            for uid in _uids_below(asked.get("in")):
                self._beside(Named(variable, uid, True))
            return True
        pairs = (*_pairs(node, _SAME), *_pairs(node, ("in",))[:1])  # `in` has a left and a right
        for operator, left, right in pairs:
            variable, uids = _var(left), _entities(right)
            if variable in ("principal", "action", "resource") and uids is not None:
                for uid in uids:
                    self._beside(Named(variable, uid, operator == "in"))
                return True
        return False

    def _value(self, node: JsonObject) -> bool:
        """A literal: an entity that stands alone may be anybody's, and what hangs on it is seen."""
        if "Value" not in node or len(node) != 1:
            return False
        value = node["Value"]
        for uid in _uids_below(value):
            self._named.append(Named("", uid))
            self._all_of |= set(PARTIES)
        return not isinstance(value, dict | list)

    def _record(self, node: JsonObject) -> bool:
        """A record's names are anybody's, and must not be taken for operators."""
        made = node.get("Record")
        if len(node) != 1 or not isinstance(made, dict):
            return False
        for item in made.values():
            self.see(item)
        return True


_SHAPES: tuple[Callable[[_Seen, JsonObject], bool], ...] = (
    _Seen._record, _Seen._variable, _Seen._attribute, _Seen._comparison, _Seen._has, _Seen._membership, _Seen._value,
)  # fmt: skip


def _var(node: JsonValue) -> str | None:
    name = node.get("Var") if isinstance(node, dict) and len(node) == 1 else None
    return name if isinstance(name, str) else None


def _fact(node: JsonValue) -> str | None:
    """Return the name of a fact or attribute that a node reads directly from a variable."""
    read = node.get(".") if isinstance(node, dict) and len(node) == 1 else None
    if not isinstance(read, dict):
        return None
    variable, attribute = _var(read.get("left")), read.get("attr")
    if variable is None or not isinstance(attribute, str):
        return None
    return attribute if variable == "context" else f"{variable}.{attribute}"


def _literal(node: JsonValue) -> JsonValue:
    return node.get("Value") if isinstance(node, dict) and len(node) == 1 else None


def _pairs(node: JsonObject, operators: Sequence[str]) -> list[tuple[str, JsonValue, JsonValue]]:
    """Return the two sides of an operator, and the same the other way round; nothing for another node."""
    operator = next(iter(node), "")
    sides = node.get(operator)
    if len(node) != 1 or operator not in operators or not isinstance(sides, dict):
        return []
    left, right = sides.get("left"), sides.get("right")
    return [(operator, left, right), (operator, right, left)]


def _entities(node: JsonValue) -> list[Uid] | None:
    """Return a literal entity, or those of a set of literals alone; None for anything else."""
    if isinstance(node, dict) and len(node) == 1 and isinstance(items := node.get("Set"), list):
        found = [_entities(item) for item in items]
        return None if None in found else [uid for uids in found if uids for uid in uids]
    value = _literal(node)
    uid = _uid(value.get("__entity")) if isinstance(value, dict) else None
    return None if uid is None else [uid]


def _uids_below(node: JsonValue) -> list[Uid]:
    """Return every entity that is named anywhere in a node."""
    if isinstance(node, list):
        return [uid for item in node for uid in _uids_below(item)]
    if not isinstance(node, dict):
        return []
    uid = _uid(node)
    return [uid] if uid is not None else [found for item in node.values() for found in _uids_below(item)]


def _uid(node: JsonValue) -> Uid | None:
    if not isinstance(node, dict) or set(node) != {"type", "id"}:
        return None
    kind, name = node["type"], node["id"]
    return (kind, name) if isinstance(kind, str) and isinstance(name, str) else None
