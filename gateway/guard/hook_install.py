"""`tallystick guard hook install | status`: the hook's command in a project's settings for one host.

What is written ends in `|| exit 2`: hosts let a call run when its hook can't be started, and block it for that code.
The command that gives everything back at the end has no such ending, for there it would keep the agent from stopping.
A settings file that is not plain JSON of the known form is left alone, and what to add to it is printed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.guard.hook_hosts import HOSTS, BadInput, Host, Json, JsonObject, parse_object
from gateway.guard.hook_options import DEADLINE_MS, TTL_MS, add_options

DONE, NOT_DONE = 0, 1
_MARK = "guard hook"  # what tells our command from others
_SLACK_S = 10  # the host's patience beyond our own deadline
_DEFAULTS = {"leases": "take", "unseen": "ask", "outside": "deny", "ttl": TTL_MS, "deadline": DEADLINE_MS}


def main(argv: Sequence[str]) -> int:
    """Run one of the two; returns 0, or 1 when it could not be written or is not there."""
    parser = argparse.ArgumentParser(prog=f"tallystick guard hook {argv[0]}", description=_DESCRIPTIONS[argv[0]])
    parser.add_argument("--host", choices=tuple(HOSTS), default="claude-code", help="whose (default claude-code)")
    parser.add_argument(
        "--project", type=Path, default=Path(), metavar="DIR", help="the project's folder (default: this one)"
    )
    if argv[0] == "status":
        said = parser.parse_args(argv[1:])
        return _status(HOSTS[said.host], said.project)
    parser.add_argument("--at-stop", action="store_true", help="give everything back after every turn, not at the end")
    parser.add_argument("--print", action="store_true", help="only print what to add")
    add_options(parser)
    said = parser.parse_args(argv[1:])
    return _install(HOSTS[said.host], said)


_DESCRIPTIONS = {
    "install": "Write the hook into a project's settings, beside what is there; other options become the command's.",
    "status": "Say whether the hook stands in a project's settings, and with which options.",
}


def command_of(said: argparse.Namespace) -> str:
    """Return the hook's command line with what was asked for, without defaults."""
    words = ["tallystick", "guard", "hook", "--host", said.host]
    if said.home is not None:
        words += ["--home", str(said.home)]
    for name, default in _DEFAULTS.items():
        if (value := getattr(said, name)) != default:
            words += [f"--{name}", f"{value}ms" if isinstance(default, int) else value]
    words += [word for name in ("admit", "fail_open", "say_allow") if getattr(said, name) for word in [f"--{name}"]]
    words = [word.replace("_", "-") if word.startswith("--") else word for word in words]
    for name in ("reads", "writes", "runs"):
        words += [word for row in getattr(said, name) for word in (f"--{name}", row)]
    return shlex.join(words)


def hooks_of(host: Host, command: str, timeout_s: int, is_at_stop: bool) -> JsonObject:
    """Return what to add to a host's settings: what is asked before a call, and what gives back at the end."""
    end = next((event for event in sorted(host.ends) if ("top" in event) is is_at_stop), next(iter(host.ends)))
    asked = f"{command} || exit 2"
    if host.name == "copilot":
        return {
            "version": 1,
            "hooks": {host.event: [_row("bash", asked, timeout_s)], end: [_row("bash", command, timeout_s)]},
        }
    timeout = timeout_s * (1_000 if host.name == "gemini-cli" else 1)
    before: JsonObject = {"matcher": ".*", "hooks": [_row("command", asked, timeout)]}
    after: JsonObject = {"hooks": [_row("command", command, timeout)]}
    return {"hooks": {host.event: [before], end: [after]}}


def _row(member: str, line: str, timeout: int) -> JsonObject:
    return {"type": "command", member: line, "timeoutSec" if member == "bash" else "timeout": timeout}


def _install(host: Host, said: argparse.Namespace) -> int:
    timeout_s = -(-said.deadline // 1_000) + _SLACK_S
    wanted = hooks_of(host, command_of(said), timeout_s, said.at_stop)
    path = said.project / host.settings
    if said.print:
        print(json.dumps(wanted, indent=2))
        return DONE
    try:
        merged = merge(_read(path), wanted)
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, json.dumps(merged, indent=2) + "\n")
    except (OSError, BadInput) as error:
        print(f"tallystick guard hook: {path} was left as it is: {error}. Add this to it:", file=sys.stderr)
        print(json.dumps(wanted, indent=2))
        return NOT_DONE
    print(f"{path}: {host.name} asks before each tool call. Start its sessions anew.")
    why = _unnamed(said.project)
    if why:
        print(f"It denies every edit so far, for {why}")
    return DONE


def _unnamed(project: Path) -> str:
    """Return why names of this project can't be made yet, and what to do; "" when they can."""
    from gateway.guard.git import Git, GitFailed  # these load the client, and run git
    from gateway.guard.settings import Unset, read_settings

    try:
        read_settings(Git(project, is_called_by_git=False))
    except (Unset, GitFailed) as error:
        return str(error)
    return ""


def _read(path: Path) -> JsonObject:
    try:
        return parse_object(path.read_bytes())
    except FileNotFoundError:
        return {}


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def merge(there: JsonObject, wanted: JsonObject) -> JsonObject:
    """Return settings with our rows in place of older ones of ours, and everything else as it is; BadInput."""
    found = there.get("hooks", {})
    ours = wanted["hooks"]
    if not isinstance(found, dict) or not isinstance(ours, dict):
        raise BadInput("hooks: is no object")
    events: JsonObject = {}
    for event, rows in found.items():
        if not isinstance(rows, list):
            raise BadInput(f"hooks.{event}: is no list")
        events[event] = [row for row in rows if not _is_ours(row)]
    for event, rows in ours.items():
        kept = events.get(event, [])
        assert isinstance(kept, list) and isinstance(rows, list), "looked at above"
        events[event] = [*kept, *rows]
    return {**wanted, **there, "hooks": {event: rows for event, rows in events.items() if rows}}


def commands_in(value: Json) -> list[str]:
    """Return the hook's own command lines anywhere in a piece of settings."""
    if isinstance(value, dict):
        lines = [value[name] for name in ("command", "bash") if name in value]
        here = [line for line in lines if isinstance(line, str) and _MARK in line]
        return here + [line for one in value.values() for line in commands_in(one)]
    if isinstance(value, list):
        return [line for one in value for line in commands_in(one)]
    return []


def _is_ours(row: Json) -> bool:
    """A row that holds our command and no other: somebody else's beside it stays."""
    inner = row.get("hooks") if isinstance(row, dict) else None
    count = len(inner) if isinstance(inner, list) else 1
    return len(commands_in(row)) == count


def _status(host: Host, project: Path) -> int:
    path = project / host.settings
    try:
        lines = commands_in(_read(path))
    except (OSError, BadInput) as error:
        print(f"{path} can't be read: {error}", file=sys.stderr)
        return NOT_DONE
    if not lines:
        print(f"{path}: the hook is not there. Add it with: tallystick guard hook install --host {host.name}")
        return NOT_DONE
    print(f"{path}: " + "\n".join(dict.fromkeys(lines)))
    return DONE
