"""`tallystick guard git | hook`: one table of guards, each imported only when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

DONE, USAGE = 0, 2  # exits.py of the client, which takes long to load
# Each is called with the arguments after its name and returns an exit code.
GUARDS: Mapping[str, tuple[str, str]] = {
    "git": ("compare what git commits and pushes with leases", "gateway.guard.git_run:main"),
    "hook": ("answer a coding agent that asks before a tool call", "gateway.guard.hook:main"),
}


def main(argv: Sequence[str]) -> int:
    """Run one guard and return its exit code."""
    if argv and argv[0] in GUARDS:
        return _load(GUARDS[argv[0]][1])(argv[1:])
    is_asked = bool(argv) and argv[0] in ("-h", "--help")
    print(_usage(), file=sys.stdout if is_asked else sys.stderr)
    return DONE if is_asked else USAGE


def _usage() -> str:
    rows = "".join(f"  {name:<6}{summary}\n" for name, (summary, _) in GUARDS.items())
    return f"usage: tallystick guard {'|'.join(GUARDS)} …\n\n{rows}\n`tallystick guard git --help` explains one."


def _load(entry: str) -> Callable[[Sequence[str]], int]:
    module, _, function = entry.partition(":")
    loaded: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
    return loaded
