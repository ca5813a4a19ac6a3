"""Writes the generated tables of docs/ from the code: `make docs`, or `python -m tests.house.docs`.

A block stands between `<!-- generated: NAME -->` and `<!-- end generated -->`; BLOCKS says which function writes it.
The test beside this file compares, so a table in a document can't drift from the code.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gateway.actions import ACTIONS
from gateway.client.guards import refusing
from gateway.config import parameters_table, settings_table
from gateway.core import refusal
from gateway.core.lifecycle import LIFECYCLE, Event, Standing, Step
from gateway.mcp.tools import TOOLS, Tool
from gateway.web.problem import ROWS
from tests.guard import shell_table
from tests.house import example
from tests.stories import pages
from verifier.entries import (
    ACTION_BODIES,
    COMMAND_MEMBERS,
    COMMON_MEMBERS,
    ENTRY_TYPES,
    EVIDENCE_MEMBERS,
    ONE_OF,
    PARAMETER_DEFAULTS,
    EntryType,
    Member,
    body_value,
)
from verifier.verdict import VERDICTS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs/example"
STORIES = ROOT / "docs/stories"
DOCUMENTS = ("docs/protocol.md", "docs/settings.md", "docs/mcp.md", "docs/guards.md")
_BLOCK = re.compile(r"(<!-- generated: ([a-z]+) -->\n)(.*?)(<!-- end generated -->)", re.DOTALL)
_RETRY = {"never": "never", "same_request": "same request", "new_request": "new request"}


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; a vertical bar inside a cell is escaped."""

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"

    head = tuple(head)
    return line(head) + line("---" for _ in head) + "".join(map(line, rows))


def refusals() -> str:
    """The refusals in their order of precedence."""
    rows = (
        (f"`{r.name}`", r.number, r.status, _RETRY[r.retry], "yes" if r.is_receipted else "no", r.advice)
        for r in refusal.TABLE
    )
    return table(("error", "number", "status", "retry", "receipt", "what to do"), rows)


def problems() -> str:
    """The problems of the door."""
    rows = ((f"`{row.code}`", row.status, _RETRY[row.retry], row.title, row.advice) for row in ROWS.values())
    return table(("code", "status", "retry", "title", "what to do"), rows)


def actions() -> str:
    """What can be asked, by whom, and which entries it may write."""
    rows = (
        (f"`{a.name}`", f"`{a.method} {a.path}`", a.signer, a.summary, ", ".join(map(short, a.answers)) or "none")
        for a in ACTIONS.values()
    )
    return table(("action", "request", "signer", "what it does", "entries"), rows)


def bodies() -> str:
    """The members of each action's body."""
    rows: list[tuple[object, ...]] = []
    for action, members in ACTION_BODIES.items():
        one_of = ONE_OF.get(action, ())
        rows += [(f"`{action}`", f"`{m.name}`", m.kind.bound, need(action, m, one_of)) for m in members]
    return table(("action", "member", "bound", "needed"), rows)


def need(action: str, member: Member, one_of: tuple[str, ...]) -> str:
    """Say whether a member of a body must be there, and what stands for it when it is not."""
    if member.name in one_of:
        return f"exactly one of {' and '.join(f'`{name}`' for name in one_of)}"
    if member.is_required:
        return "yes"
    default = body_value(action, {}, member.name)
    return "no" if default is None else f"no; `{json.dumps(default)}`"


def common() -> str:
    """The members of every leaf, then those of the evidence."""
    rows = [
        (f"`{m.name}`", m.kind.bound, "yes" if m.is_required else "no") for m in COMMON_MEMBERS if m.name != "request"
    ]
    rows += [(f"`request.{m.name}`", m.kind.bound, "with a request") for m in EVIDENCE_MEMBERS]
    rows += [(f"`request.{m.name}`", m.kind.bound, "instead, in a command") for m in COMMAND_MEMBERS]
    return table(("member", "bound", "needed"), rows)


def entries() -> str:
    """One row for each entry type."""
    rows = (
        (short(t.type), cause_of(t), t.actor_rule, ", ".join(map(marked, t.members)), ", ".join(t.cites) or "–")
        for t in ENTRY_TYPES.values()
    )
    return table(("type", "cause", "actor", "members beside the common ones", "cites once"), rows)


def cause_of(entry: EntryType) -> str:
    """The action whose request causes the entry, or who does."""
    if entry.cause == "gateway":
        return "gateway"
    return f"`{entry.action}`" if entry.action else "any action"


def marked(member: Member) -> str:
    """A member's name; a question mark says that it may be absent."""
    return f"`{member.name}{'' if member.is_required else '?'}`"


def short(entry_type: str) -> str:
    """`lease.granted` for tallystick/lease.granted/1."""
    return f"`{entry_type.split('/')[1]}`"


def parameters() -> str:
    """The parameters of entry 0."""
    return table(("parameter", "value"), ((f"`{name}`", f"{value:,}") for name, value in PARAMETER_DEFAULTS.items()))


def lifecycle() -> str:
    """What each event does to a lease in each standing."""
    rows = ((event.value, *(step_text(LIFECYCLE[standing, event]) for standing in Standing)) for event in Event)
    return table(("event", *(standing.value for standing in Standing)), rows)


def step_text(step: Step) -> str:
    """The entry of a step and why it is refused."""
    if step.entry is None:
        return "–"
    return f"`{step.entry}`" + (f", `{step.refusal.name}`" if step.refusal else "")


def verdicts() -> str:
    """The exit codes and when they are given."""
    return table(("exit code", "verdict"), VERDICTS.items())


def tools() -> str:
    """The tools for models and the actions they stand for."""
    rows = ((f"`{tool.name}`", f"`{tool.action.name}`", f"{tool.action.summary}.", marks_of(tool)) for tool in TOOLS)
    return table(("tool", "action", "what it does", "a host is told"), rows)


def marks_of(tool: Tool) -> str:
    """The hints of a tool in words."""
    hints = {
        "only reads": tool.is_reading,
        "gives something up": tool.is_destructive,
        "twice is once": tool.is_idempotent and not tool.is_reading,
    }
    return ", ".join(words for words, is_so in hints.items() if is_so) or "–"


def guarded() -> str:
    """What a guard in front of a service answers."""
    rows = ((f"`{row.code}`", row.status, row.title, row.advice) for row in refusing.ROWS.values())
    return table(("code", "status", "what it means", "what to do"), rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "example": example.example,
    "actions": actions,
    "bodies": bodies,
    "lifecycle": lifecycle,
    "refusals": refusals,
    "problems": problems,
    "common": common,
    "entries": entries,
    "parameters": parameters,
    "verdicts": verdicts,
    "settings": settings_table,
    "bounds": parameters_table,
    "tools": tools,
    "guarded": guarded,
    "hosts": shell_table.hosts,
    "handled": shell_table.handled,
    "seen": shell_table.seen,
}


def rendered(text: str) -> str:
    """Return the document with every block written anew; KeyError for a block nobody writes."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n{found[4]}", text)


def block_names(text: str) -> list[str]:
    """The names of a document's blocks, in order."""
    return [found[2] for found in _BLOCK.finditer(text)]


def write(path: Path, after: bytes) -> None:
    """Write a file that differs, and say so."""
    if not path.is_file() or path.read_bytes() != after:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(after)
        print(f"written: {path.relative_to(ROOT)}")


def main() -> int:
    """Write the documents and the files of the example and the stories; say which changed."""
    for name in DOCUMENTS:
        write(ROOT / name, rendered((ROOT / name).read_text("utf-8")).encode("utf-8"))
    for name, content in example.files().items():
        write(EXAMPLE / name, content)
    for name, content in pages.files().items():
        write(STORIES / name, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
