"""What can be set for the hook: its command's options, which stand in the host's settings, where a person sees them.

Nothing is read from the environment but the profile's folder, and nothing from the repository: whoever is guarded must
not set the guard.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.guard.hook_hosts import HOSTS
from gateway.guard.hook_tools import FILES, READS, SHELL, Tool

DEADLINE_MS, TTL_MS = 10_000, 300_000
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Settings:
    """The command's options. `unseen` and `outside` are "deny", "ask", or what lets it through."""

    home: Path | None
    host: str | None
    is_taking: bool
    unseen: str
    outside: str
    ttl_ms: int
    deadline_ms: int
    is_open: bool
    is_allowing: bool
    is_admitting: bool
    tools: Mapping[str, Tool]


def parse_settings(argv: Sequence[str]) -> Settings:
    """Return the settings on the command line; wrong ones end with 2, which blocks."""
    said = parser().parse_args(argv)
    tools = {**_rows(said.reads, lambda _: Tool(READS)), **_rows(said.writes, lambda member: Tool(FILES, (member,)))}
    tools |= _rows(said.runs, lambda member: Tool(SHELL, (member,)))
    return Settings(
        said.home, said.host, said.leases == "take", said.unseen, said.outside, said.ttl, said.deadline,
        said.fail_open, said.say_allow, said.admit, tools,
    )  # fmt: skip


def _rows(said: Sequence[str], make: Callable[[str], Tool]) -> dict[str, Tool]:
    pairs = [row.partition("=") for row in said]
    return {name: make(member) for name, _, member in pairs}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the hook itself."""
    made = argparse.ArgumentParser(
        prog="tallystick guard hook",
        description="Answer a coding agent that asks before it calls a tool: one JSON object on standard input, one on "
        "standard output. `tallystick guard hook install` writes it into a project's settings, `tallystick guard hook "
        "status` says whether it is there. "
        "docs/guards.md lists what it sees of a command line and what it doesn't.",
    )
    made.add_argument("--host", choices=tuple(HOSTS), help="who asks (default: told by what it says)")
    add_options(made)
    return made


def add_options(made: argparse.ArgumentParser) -> None:
    """Add what can be set, which `install` hands on."""
    made.add_argument(
        "--home", type=Path, metavar="DIR",
        help="the profile (default: $TALLYSTICK_HOME, the worktree's own note, or ~/.tallystick)",
    )  # fmt: skip
    made.add_argument(
        "--leases", choices=("take", "check"), default="take",
        help="take a lease on what is touched first and renew it, or only check that one is held (default take)",
    )  # fmt: skip
    made.add_argument(
        "--unseen", choices=("deny", "ask", "commit"), default="ask",
        help="when it can't see what a command writes: deny, ask the person, or leave it to the check at commit time; "
        "who can't be asked is denied (default ask)",
    )  # fmt: skip
    made.add_argument(
        "--outside", choices=("deny", "ask", "allow"), default="deny",
        help="for files in no work tree (default deny)",
    )  # fmt: skip
    made.add_argument("--ttl", type=_ttl, default=TTL_MS, metavar="TIME", help="of the leases: 10s to 1h (default 5m)")
    made.add_argument(
        "--deadline", type=_deadline, default=DEADLINE_MS, metavar="TIME",
        help="when the answer has to be there, else it is no: 1s to 55s, below the host's own (default 10s)",
    )  # fmt: skip
    made.add_argument("--fail-open", action="store_true", help="let a call through that can't be checked, and say so")
    made.add_argument(
        "--admit", action="store_true",
        help="ask for an admission of each call as well, so that rules in force decide, and every call has a receipt",
    )  # fmt: skip
    made.add_argument(
        "--say-allow", action="store_true",
        help="answer allow where a lease is held, which takes the host's own question away from the person",
    )  # fmt: skip
    for name, meaning in (("reads", "NAME"), ("writes", "NAME=MEMBER"), ("runs", "NAME=MEMBER")):
        made.add_argument(
            f"--{name}", action="append", default=[], type=_row if "=" in meaning else str, metavar=meaning,
            help=f"a tool that {name}" + (": the member of its input that has the path or the line" * ("=" in meaning)),
        )  # fmt: skip


def _row(text: str) -> str:
    name, equals, member = text.partition("=")
    if not name or not equals or not member:
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=MEMBER")
    return text


def _duration(text: str, least_ms: int, most_ms: int) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 500ms, 30s, 5m or 1h")
    duration_ms = int(match[1]) * _UNITS_MS[match[2]]
    if not least_ms <= duration_ms <= most_ms:
        raise argparse.ArgumentTypeError(f"{text!r}: {least_ms // 1000}s to {most_ms // 1000}s")
    return duration_ms


def _ttl(text: str) -> int:
    return _duration(text, 10_000, 3_600_000)


def _deadline(text: str) -> int:
    return _duration(text, 1_000, 55_000)
