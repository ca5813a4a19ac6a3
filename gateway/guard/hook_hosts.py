"""What coding agents say before a tool call, and how they want to be answered: one row a host.

| host | says | wants |
| --- | --- | --- |
| `claude-code` | `hook_event_name` "PreToolUse", `tool_name`, `tool_input` | `hookSpecificOutput.permissionDecision` |
| `codex` | the same, with a `turn_id` | the same, but knows "deny" alone and fails open on the rest |
| `gemini-cli` | `hook_event_name` "BeforeTool" | `decision` and `reason` |
| `copilot` | `toolName` and `toolArgs`, without a name of the event | `permissionDecision` |

For all of them exit code 2 blocks, with the reason on standard error; exit code 0 with an object on standard output
decides; a call that is cut off, or ends in another way, lets the tool run. That a lease is held is no permission: it
leaves the host's own question to the person as it is, unless the command's --say-allow takes that away.

Source: the hosts' own references (docs/guards.md names them); decided in docs/adr/0052-a-hook-that-asks-first.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject = dict[str, Json]
INPUT_BYTES_MAX = 16_777_216  # a file that is written whole stands in it
DEPTH_MAX = 128
SESSION_CHARACTERS_MAX = 512
_ALLOW, _ASK, _DENY = "allow", "ask", "deny"


class BadInput(Exception):
    """What came on standard input is not one call of a tool; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Host:
    """A row of the table above. `ends`: events after which everything is given back."""

    name: str
    event: str
    ends: frozenset[str]
    tool: str = "tool_name"
    input: str = "tool_input"
    session: str = "session_id"
    is_asking: bool = True  # knows "ask"
    is_allowing: bool = True  # knows "allow"
    settings: str = ""  # the file in a project where its hooks stand


@dataclass(frozen=True, slots=True)
class Call:
    """One call: `kind` is "tool", "end" or "other"; the last is none of this hook's business."""

    host: Host
    kind: str
    session: str
    folder: str
    tool: str
    input: JsonObject


HOSTS: Mapping[str, Host] = {
    host.name: host
    for host in (
        Host("claude-code", "PreToolUse", frozenset(("SessionEnd", "Stop")), settings=".claude/settings.json"),
        Host(
            "codex", "PreToolUse", frozenset(("Stop",)), is_asking=False, is_allowing=False,
            settings=".codex/hooks.json",
        ),
        Host("gemini-cli", "BeforeTool", frozenset(("SessionEnd",)), settings=".gemini/settings.json"),
        Host(
            "copilot", "preToolUse", frozenset(("sessionEnd", "agentStop")), tool="toolName", input="toolArgs",
            session="sessionId", settings=".github/hooks/tallystick.json",
        ),
    )
}  # fmt: skip


# -- what is said ------------------------------------------------------------------------------------------------------


def parse_call(content: bytes, host_name: str | None) -> Call:
    """Return the call in one JSON object; BadInput. Members that no row names may be anything."""
    said = parse_object(content)
    host = HOSTS[host_name] if host_name else _host_of(said)
    session, folder = said.get(host.session), said.get("cwd")
    if not isinstance(session, str) or not 1 <= len(session) <= SESSION_CHARACTERS_MAX:
        raise BadInput(f"{host.session}: 1 to {SESSION_CHARACTERS_MAX} characters are needed")
    if not isinstance(folder, str) or not folder.startswith("/"):
        raise BadInput("cwd: an absolute path is needed")
    event, tool = said.get("hook_event_name", _unnamed_event(host, said)), said.get(host.tool)
    if event in host.ends:
        return Call(host, "end", session, folder, "", {})
    if event != host.event:
        if tool is not None and event is None:
            raise BadInput("hook_event_name is missing")
        return Call(host, "other", session, folder, "", {})
    if not isinstance(tool, str) or not tool:
        raise BadInput(f"{host.tool}: a name is needed")
    return Call(host, "tool", session, folder, tool, _input_of(said.get(host.input), host))


def _host_of(said: JsonObject) -> Host:
    event = said.get("hook_event_name")
    if event is None and ("sessionId" in said or "toolName" in said):
        return HOSTS["copilot"]
    if event == HOSTS["gemini-cli"].event:
        return HOSTS["gemini-cli"]
    return HOSTS["codex" if "turn_id" in said else "claude-code"]


def _unnamed_event(host: Host, said: JsonObject) -> str | None:
    """Copilot's own form names no event: what it holds tells which it is."""
    if host.session != "sessionId":
        return None
    if host.tool in said:
        return host.event
    return "sessionEnd" if "reason" in said else "agentStop" if "stopReason" in said else ""


def _input_of(value: Json, host: Host) -> JsonObject:
    if isinstance(value, str):  # arguments as text: those of an object, or of a tool that takes nothing else
        value = parse_object(value.encode("utf-8", "replace")) if value.lstrip()[:1] == "{" else {"input": value}
    if not isinstance(value, dict):
        raise BadInput(f"{host.input}: an object is needed")
    return value


def parse_object(content: bytes) -> JsonObject:
    """Return one JSON object, with each of its members there once; BadInput."""
    if len(content) > INPUT_BYTES_MAX:
        raise BadInput(f"more than {INPUT_BYTES_MAX:,} bytes")
    try:
        value: Json = json.loads(content.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadInput("it is not UTF-8") from error
    except RecursionError as error:
        raise BadInput("it is nested too deep") from error
    except ValueError as error:
        raise BadInput("it is not JSON" if isinstance(error, json.JSONDecodeError) else f"{error}"[:200]) from error
    if not isinstance(value, dict):
        raise BadInput("it is not a JSON object")
    if _is_deep(value):
        raise BadInput("it is nested too deep")
    return value


def _object(pairs: Sequence[tuple[str, Json]]) -> JsonObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member is there twice")
    return found


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is no number of JSON")


def _is_deep(value: Json) -> bool:
    level: list[Json] = [value]
    for _ in range(DEPTH_MAX):
        level = [inner for one in level if isinstance(one, dict | list) for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: dict[str, Json] | list[Json]) -> Sequence[Json]:
    return list(value.values()) if isinstance(value, dict) else value


# -- what is answered --------------------------------------------------------------------------------------------------


def answer(host: Host, decision: str, reason: str) -> JsonObject:
    """Return the host's object for "deny", "ask", "allow" or "pass", which leaves the host's own question open.

    A host that can't ask is told "deny": nobody is asked is no reason to go on.
    """
    if decision == _ASK and not host.is_asking:
        decision = _DENY
    if decision == _ALLOW and not host.is_allowing:
        decision = "pass"
    if host.event == "BeforeTool":
        return {"decision": _ALLOW if decision == "pass" else decision, "reason": reason}
    if host.event == "preToolUse":
        return _note(reason) if decision == "pass" else _decision(decision, reason)
    inner = _note(reason) if decision == "pass" else _decision(decision, reason)
    return {"hookSpecificOutput": {"hookEventName": host.event, **inner}}


def _decision(decision: str, reason: str) -> JsonObject:
    return {"permissionDecision": decision, "permissionDecisionReason": reason}


def _note(text: str) -> JsonObject:
    return {"additionalContext": text}


def warned(host: Host, said: JsonObject, warning: str) -> JsonObject:
    """Return an answer that also shows a warning to the person at the keyboard, where the host can."""
    return said if host.event == "preToolUse" else {**said, "systemMessage": warning}
