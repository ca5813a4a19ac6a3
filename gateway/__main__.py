"""`tallystick`: one table of commands, each imported only when it is asked for.

An agent's machine has neither SQLite tools nor metrics, a verifier's machine has no aiohttp: a command whose extra is
not installed prints the pip command instead of a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

EXIT_OK, EXIT_USAGE = 0, 2
OUR_PACKAGES = ("gateway", "keys", "verifier")


@dataclass(frozen=True, slots=True)
class Command:
    """A command: `entry` is module:function, called with the arguments after the command's name.

    With `passes_name` the function serves several commands and gets the name as its first argument.
    """

    summary: str
    extra: str
    entry: str
    passes_name: bool = False


COMMANDS: Mapping[str, Command] = {
    "init": Command("make a ledger: keys, entry 0, an operator's profile", "gateway", "gateway.administration:init"),
    "serve": Command("run the gateway; --dev makes a throw-away ledger", "gateway", "gateway.administration:serve"),
    "ledger": Command("check, export, back up, prune the ledger; figures", "gateway", "gateway.ledger_commands:ledger"),
    "db": Command("prepare and check a PostgreSQL database of ledgers", "gateway,postgres", "gateway.db:main"),
    "node": Command("make the data directory of one more gateway", "gateway,postgres", "gateway.node_commands:main"),
    "keys": Command("make, show, publish and check keys", "keys", "keys.__main__:main"),
    "keys rotate": Command("change the keys that sign for a ledger", "gateway", "gateway.key_commands:main", True),
    "keys retire": Command("end the older of two keys", "gateway", "gateway.key_commands:main", True),
    "keys compromise": Command("disown a key that others may have", "gateway", "gateway.key_commands:main", True),
    "agent": Command("make a key, enrol it; add, list and remove agents", "client", "gateway.enrolment:main"),
    "session": Command("act for an agent with a key of a short life", "client", "gateway.client.commands:main", True),
    "operator": Command("say who else is an operator", "client", "gateway.client.commands:main", True),
    "apikey": Command("issue, revoke and list API keys", "client", "gateway.client.commands:main", True),
    "join": Command("make an agent's profile for a gateway", "client", "gateway.client.commands:main", True),
    "lease": Command("take, renew, release, hand over, list leases", "client", "gateway.client.commands:main", True),
    "admit": Command("ask whether one act may be done now", "client", "gateway.client.commands:main", True),
    "approve": Command("say yes or no to another's act", "client", "gateway.client.commands:main", True),
    "usage": Command("see how much was admitted", "client", "gateway.client.commands:main", True),
    "receipt": Command(
        "show, upgrade, export a receipt; its private texts", "client", "gateway.client.commands:main", True
    ),
    "wait": Command("see who holds what and who waits; claim a ticket", "client", "gateway.client.commands:main", True),
    "run": Command("run a command while a lease is held", "client", "gateway.client.commands:main", True),
    "scheme": Command("say who may share the names of a scheme", "client", "gateway.client.commands:main", True),
    "rules": Command("write, check, try, load the rules of admission", "client", "gateway.client.commands:main", True),
    "trust": Command("see a key's trust and how it came about", "client", "gateway.client.commands:main", True),
    "guard": Command("hold commits and file edits to leases", "client", "gateway.guard.commands:main"),
    "guard hook": Command("answer a coding agent before a tool call", "client", "gateway.guard.hook:main"),
    "mcp": Command("serve an agent's tools to an MCP host, on stdio", "client", "gateway.mcp.bridge:main"),
    "witness": Command("run a witness that cosigns how far ledgers go", "client", "gateway.witness.commands:main"),
    "demo": Command("see all of it at work, and a flipped byte refused", "gateway", "gateway.demo.__main__:main"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage; `run` returns the command's own."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("-V", "--version"):
        print(f"tallystick {_version()}")
        return EXIT_OK
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return EXIT_OK if arguments else EXIT_USAGE
    both = " ".join(arguments[:2])
    name = both if both in COMMANDS else arguments[0]
    return _run(name, arguments[len(name.split(" ")) :])


def usage() -> str:
    """Return the overview of commands."""
    rows = "".join(f"  {name:<17}{command.summary}\n" for name, command in COMMANDS.items())
    return (
        "usage: tallystick COMMAND …\n\n"
        "Leases for AI agents, with a signed and provable receipt for every decision.\n\n"
        f"{rows}\n`tallystick COMMAND --help` explains one. The verifier is a program of its own: tallystick-verify."
    )


def _run(name: str, arguments: list[str]) -> int:
    command = COMMANDS.get(name)
    if command is None:
        print(f"tallystick: there is no command {name!r}\n\n{usage()}", file=sys.stderr)
        return EXIT_USAGE
    try:
        function = _load(command)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OUR_PACKAGES:
            raise
        print(
            f"tallystick {name}: {error.name} is not installed. Install what this command needs:\n"
            f"    pip install 'tallystick[{command.extra}]'",
            file=sys.stderr,
        )
        return EXIT_USAGE
    return function([name, *arguments] if command.passes_name else arguments)


def _load(command: Command) -> Callable[[Sequence[str]], int]:
    module, _, function = command.entry.partition(":")
    loaded: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
    return loaded


def _version() -> str:
    from importlib import metadata  # which takes longer to load than all of this file

    try:
        return metadata.version("tallystick")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
