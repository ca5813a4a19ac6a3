"""Writes verifier/js/entries.mjs from verifier/entries.py: python -m tests.js.table

Both verifiers read one table, so nobody copies members or bounds by hand. A kind whose check is a function of its own,
and a rule between members, go over as their names; verify.mjs has a function for each, and refuses to load without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verifier import entries, wire
from verifier.clauses import CLAUSES
from verifier.entries import Kind, Member

TARGET = Path(__file__).resolve().parents[2] / "verifier" / "js" / "entries.mjs"
HEAD = (
    "// Written by `python -m tests.js.table` from verifier/entries.py, and compared with it by a test: do not edit.\n"
)
Json = dict[str, Any]


class _Kinds:
    """Every kind by a name that is its own, with what JavaScript needs to check it."""

    def __init__(self) -> None:
        self.described: Json = {}
        self._names: dict[int, str] = {}
        self._by_schema: dict[int, list[Kind]] = {}
        for kind in {id(kind): kind for kind in _known_kinds()}.values():
            self._by_schema.setdefault(id(kind.schema), []).append(kind)

    def name_of(self, kind: Kind) -> str:
        if id(kind) not in self._names:
            count = sum(name.partition("#")[0] == kind.name for name in self.described)
            name = f"{kind.name}#{count}" if count else kind.name
            self._names[id(kind)] = name
            self.described[name] = None  # its place, before the kinds inside it
            self.described[name] = self._describe(kind)
        return self._names[id(kind)]

    def members(self, members: tuple[Member, ...]) -> Json:
        return {m.name + ("" if m.is_required else "?"): self.name_of(m.kind) for m in members}

    def _describe(self, kind: Kind) -> Json:
        schema: Json = kind.schema
        match kind.check.__qualname__.partition(".")[0]:
            case "_integer":
                return {"integer": [schema["minimum"], schema["maximum"]]}
            case "_text":
                return {"text": schema["pattern"], "max": schema["maxLength"]}
            case "_choice":
                return {"choice": schema["enum"]}
            case "_list" | "_sorted":
                return {"list": self._inside(schema["items"]), "count": [schema["minItems"], schema["maxItems"]],
                        "rises": schema.get("uniqueItems", False)}  # fmt: skip
            case "_object":
                names = [name + ("" if name in schema["required"] else "?") for name in schema["properties"]]
                return {"object": dict(zip(names, map(self._inside, schema["properties"].values()), strict=True))}
        return {"code": [schema["pattern"]] if kind.name == "resource" else [schema.get("maxLength", 0)]}

    def _inside(self, schema: Json) -> str:
        """The kind that a part of a schema came from: the table shares the objects, each with one kind here."""
        (kind,) = self._by_schema[id(schema)]
        return self.name_of(kind)


def _known_kinds() -> Iterator[Kind]:
    for value in vars(entries).values():
        if isinstance(value, Kind):
            yield value
            # An item that only a list knows is in no variable of its own.
            yield from (c.cell_contents for c in value.check.__closure__ or () if isinstance(c.cell_contents, Kind))
        elif isinstance(value, tuple) and value and isinstance(value[0], Member):
            yield from (member.kind for member in value)
    for row in entries.ENTRY_TYPES.values():
        yield from (member.kind for member in row.members)


def _entry_type(kinds: _Kinds, row: entries.EntryType) -> Json:
    rule = entries._SELF_RULES.get(row.type)
    return {
        "cause": row.cause,
        "action": row.action,
        "actor": row.actor_rule,
        "members": kinds.members(row.members),
        "repeats": entries._REPEATED.get(row.type, ()),
        "rule": None if rule is None else rule.__name__,
        "cited": entries._CITED[row.type],
        "till": entries._TILL[row.type],
    }


def table() -> Json:
    """Everything that a reader of one receipt takes from the table."""
    kinds = _Kinds()
    types = {row.type: _entry_type(kinds, row) for row in entries.ENTRY_TYPES.values()}
    bodies = {
        action: {"path": entries.ACTION_PATHS[action], "members": kinds.members(members)}
        for action, members in entries.ACTION_BODIES.items()
    }
    return {
        "limits": _limits(),
        "common": kinds.members(entries.COMMON_MEMBERS),
        "signed": kinds.members(entries.EVIDENCE_MEMBERS),
        "commanded": kinds.members(entries.COMMAND_MEMBERS),
        "delegation": kinds.members(entries.DELEGATION_MEMBERS),
        "approval": kinds.members(entries.APPROVAL_MEMBERS),
        "types": types,
        "actions": bodies,
        "commands": {action: kinds.members(members) for action, members in entries.COMMAND_BODIES.items()},
        "rows": {
            "scheme": kinds.name_of(entries._SCHEME_ROW),
            "cycle": kinds.name_of(entries._CYCLE_ROW),
            "delegations": kinds.name_of(entries.DELEGATIONS),
            "approval": kinds.name_of(entries.APPROVAL),
            "approvals": kinds.name_of(entries.APPROVALS),
            "counted": kinds.name_of(entries._COUNTED_ROW),
            "approved": kinds.name_of(entries._APPROVED_ROW),
            "origin": kinds.name_of(entries.ORIGIN),
            "authority": kinds.name_of(entries.AUTHORITY),
        },
        "oneOf": dict(entries.ONE_OF),
        "bodyRules": {action: rule.__name__ for action, rule in entries._BODY_RULES.items()},
        "defaults": {action: dict(values) for action, values in entries.BODY_DEFAULTS.items()},
        "filledIn": sorted(map(list, entries._FILLED_IN)),
        "refusals": dict(entries.REFUSAL_NUMBERS),
        "held": sorted(entries._GROUP),
        "byRules": dict(entries.BY_RULES),
        "told": {error: [*told] for error, told in entries.HELD_MEMBERS.items()},
        "grants": sorted(entries.GRANTS),
        "holding": sorted(entries.HOLDING),
        "batchActions": entries.BATCH_ACTIONS,
        "sentences": entries.SENTENCES,
        "moments": entries._MOMENTS,
        "clauses": _clauses(),
        "ignorable": entries._IGNORABLE.pattern,
        "kinds": kinds.described,
    }


def _clauses() -> Json:
    """The clauses of the codes that stand in quotes in the programs: those of whole ledgers are not its business."""
    programs = [path.read_text("utf-8") for path in TARGET.parent.glob("*.mjs") if path != TARGET]
    return {code: clause for code, clause in CLAUSES.items() if any(f'"{code}"' in text for text in programs)}


def _limits() -> Json:
    found = {**vars(wire), **vars(entries)}
    return {name: value for name, value in sorted(found.items()) if name.isupper() and type(value) is int}


def text() -> str:
    """The module: one row of each part a line."""
    parts = [f'"{name}":{_json(part) if isinstance(part, str) else _rows(part)}' for name, part in table().items()]
    return HEAD + "export default {\n" + ",\n".join(parts) + "\n};\n"


def _rows(part: Json | list[Any] | tuple[Any, ...]) -> str:
    if isinstance(part, dict):
        return "{\n" + ",\n".join(f" {_json(name)}:{_json(row)}" for name, row in part.items()) + "}"
    return "[\n" + ",\n".join(f" {_json(row)}" for row in part) + "]"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    TARGET.write_text(text(), "utf-8")
