"""What a tool call writes: one row a tool, for the names that hosts use, and a suspicion for all others.

A tool without a row that looks like writing (its name, or a path beside a content in what it is given) is not let
through unread: the command's --writes and --reads give it a row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.guard.hook_hosts import Call, Json, JsonObject
from gateway.guard.shell import Reading, read
from gateway.guard.shell_options import Write

RUN_MS_MAX = 86_400_000  # longer than any lease
FILES, SHELL, PATCH, READS = "files", "shell", "patch", "reads"


@dataclass(frozen=True, slots=True)
class Tool:
    """`kind` says how its input is read; `members` may hold its paths, and one at least does, or its command line."""

    kind: str
    members: tuple[str, ...] = ()
    folder: str = ""  # the member that names the folder in which it runs
    patience: str = ""  # the member that says for how many milliseconds its host lets it run


@dataclass(slots=True)
class Touch:
    """What a call writes, why more can't be seen, whether it is a tool that can write at all, and how long it may take,
    as far as it says."""

    writes: list[Write] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    is_writing: bool = True
    run_ms: int = 0


class BadTool(Exception):
    """The input does not have what the tool's row says; the text names the member."""


_FILE = Tool(FILES, ("file_path", "path"))
TOOLS: Mapping[str, Tool] = {
    # Claude Code, and what others take over from it
    **dict.fromkeys(("Write", "Edit", "MultiEdit"), _FILE),
    "NotebookEdit": Tool(FILES, ("notebook_path",)),
    "Bash": Tool(SHELL, ("command",), patience="timeout"),
    **dict.fromkeys(
        (
            "Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoWrite", "TodoRead", "Task",
            "Agent", "TaskCreate", "TaskUpdate", "TaskGet", "TaskList", "TaskOutput", "TaskStop", "BashOutput",
            "KillShell", "AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "Skill", "ToolSearch", "LSP",
        ),
        Tool(READS),
    ),
    # Codex
    "apply_patch": Tool(PATCH, ("command", "input", "patch")),
    **dict.fromkeys(("shell", "local_shell", "exec_command"), Tool(SHELL, ("command", "cmd"), "workdir", "timeout_ms")),
    **dict.fromkeys(("update_plan", "view_image"), Tool(READS)),
    # Gemini CLI
    **dict.fromkeys(("write_file", "replace"), _FILE),
    "run_shell_command": Tool(SHELL, ("command",), "dir_path"),
    **dict.fromkeys(
        (
            "read_file", "read_many_files", "list_directory", "glob", "grep_search", "search_file_content",
            "google_web_search", "web_fetch", "write_todos", "ask_user", "activate_skill", "get_internal_docs",
            "enter_plan_mode", "exit_plan_mode", "complete_task", "update_topic", "tracker_create_task",
            "tracker_update_task", "list_mcp_resources", "read_mcp_resource",
        ),
        Tool(READS),
    ),
    # Copilot
    **dict.fromkeys(("create", "edit", "str_replace_editor"), _FILE),
    "bash": Tool(SHELL, ("command",)),
    **dict.fromkeys(("view", "grep", "rg", "web_search", "task", "update_todo", "report_intent"), Tool(READS)),
    # The reference file server of the Model Context Protocol; hosts put its name before these
    **dict.fromkeys(("edit_file", "create_directory"), _FILE),
    "move_file": Tool(FILES, ("source", "destination")),
}  # fmt: skip
_SERVED = re.compile(r"mcp__.+__(.+)|mcp_[^_]+_(.+)", re.DOTALL)
# Beginnings of words in a name, and members that hold a path or what is to stand there.
_WRITING = re.compile(
    r"(?:^|[^a-z])(?:write|edit|creat|delet|remov|mov|renam|patch|replac|insert|updat|sav|put|appl|touch|mkdir|copy|"
    r"upload|download|exec|shell|bash|command|terminal|script|run|git|commit|notebook|format|fix|generat|install|unzip|"
    r"extract)"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PATHS = frozenset("file_path filepath path paths file files filename notebook_path destination target_file".split())
_CONTENTS = frozenset("content contents text data body new_string new_text new_str edits patch diff code".split())
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\|[^/\\]*\\")
_PATCH_LINE = re.compile(r"\*\*\* (Add File|Update File|Delete File|Move to): (.+)")


def touch_of(call: Call, own: Mapping[str, Tool]) -> Touch:
    """Return what the call writes; BadTool when its input is not what the tool takes. `own` rows come first."""
    tool = own.get(call.tool) or _row(call)
    if tool is None:
        return _unknown(call)
    match tool.kind:
        case "reads":
            return Touch(is_writing=False)
        case "files":
            return Touch([Write(_absolute(path, call.folder)) for path in _paths(call.input, tool)])
        case "patch":
            return _patched(call, tool)
        case _:
            return _run(call, tool)


def _row(call: Call) -> Tool | None:
    """Return a tool's row; one of a server's is looked up by its own name, and only among those that write."""
    if call.tool in TOOLS:
        return TOOLS[call.tool]
    served = _SERVED.fullmatch(call.tool)
    name = (served[1] or served[2]) if served else ""
    found = TOOLS.get(name)
    return found if found is not None and found.kind == FILES else None


def _unknown(call: Call) -> Touch:
    members = {member.lower() for member in call.input}
    is_named_so = _WRITING.search(_CAMEL.sub("_", call.tool).lower()) is not None
    if not is_named_so and (_PATHS.isdisjoint(members) or _CONTENTS.isdisjoint(members)):
        return Touch(is_writing=False)
    name = shown(call.tool)
    return Touch(
        unseen=[f"{name} is a tool without a row, and looks like writing (give it one: --writes {name}=MEMBER, "
                f"or --reads {name})"]
    )  # fmt: skip


def _paths(given: JsonObject, tool: Tool) -> list[str]:
    paths: list[str] = []
    for member in tool.members:
        if member in given:
            paths += _texts(given[member], member)
    if not paths:
        raise BadTool(f"{tool.members[0]}: a path is needed")
    for path in paths:
        check_path(path)
    return paths


def _texts(value: Json, member: str) -> list[str]:
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(one, str) and one for one in found):
        raise BadTool(f"{member}: a path is needed")
    return [str(one) for one in found]


def check_path(path: str) -> None:
    """BadTool for what is no path of this system."""
    if "\0" in path or (not path.isascii() and any("\ud800" <= letter <= "\udfff" for letter in path)):
        raise BadTool("a path with a character that no file name can have")
    if len(path) > 4_096:
        raise BadTool("a path of more than 4,096 characters")
    if _WINDOWS.match(path):
        raise BadTool(f"{shown(path)} is written as on Windows: write it with / and without a drive")


def _absolute(path: str, folder: str) -> str:
    return path if path.startswith("/") else f"{folder.rstrip('/')}/{path}"


def _run(call: Call, tool: Tool) -> Touch:
    folder = call.folder
    named = call.input.get(tool.folder) if tool.folder else None
    if named is not None:
        if not isinstance(named, str) or not named:
            raise BadTool(f"{tool.folder}: a path is needed")
        check_path(named)
        folder = _absolute(named, folder)
    line = _line(_first(call.input, tool.members))
    reading = Reading(unseen=["a command that is given bit by bit"]) if line is None else read(line, folder)
    for write in reading.writes:
        check_path(write.path)
    return Touch(reading.writes, reading.unseen, run_ms=_milliseconds(call.input.get(tool.patience)))


def _milliseconds(value: Json) -> int:
    """Return a duration that a call says, 0 for none that makes sense: the host decides what it makes of that."""
    return int(value) if isinstance(value, int | float) and 0 < value <= RUN_MS_MAX else 0


def _first(given: JsonObject, members: Sequence[str]) -> Json:
    present = [given[member] for member in members if member in given]
    if len(present) != 1:
        raise BadTool(f"{members[0]}: needed, once")
    return present[0]


def _line(value: Json) -> str | None:
    """Return a command line; of a list of arguments only `SHELL -c LINE` has one."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadTool("command: a line is needed")
    words = [str(one) for one in value]
    is_shell = len(words) == 3 and words[0].rpartition("/")[2] in ("bash", "sh", "zsh") and words[1] in ("-c", "-lc")
    return words[2] if is_shell else None


def _patched(call: Call, tool: Tool) -> Touch:
    """Return the files of a patch in the form `*** Update File: PATH`; one that names none can't be seen."""
    text = _first(call.input, tool.members)
    if not isinstance(text, str):
        raise BadTool(f"{tool.members[0]}: a patch is needed")
    found = [_PATCH_LINE.fullmatch(row.rstrip()) for row in text.split("\n")]
    rows = [row for row in found if row is not None]
    for row in rows:
        check_path(row[2])
    writes = [Write(_absolute(row[2], call.folder), is_gone=row[1] == "Delete File") for row in rows]
    return Touch(writes, [] if writes else ["a patch that names no file in a way this reader knows"])


def shown(text: str) -> str:
    """Return a name from outside, fit for one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:120])
