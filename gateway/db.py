"""`tallystick db migrate | check | copy`: what may be said to it, which needs nothing installed.

Exit codes: 0 done or fit, 1 not done or not fit, 2 wrong usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gateway.administration import guarded
from gateway.config import DURABILITIES
from gateway.stores import with_psycopg


def main(argv: Sequence[str]) -> int:
    """Run one of the commands on a database."""
    arguments = _parser().parse_args(argv)
    codes: list[int] = []
    failed = guarded(f"db {arguments.command}", lambda: codes.append(_run(arguments)))
    return failed or codes[0]


def _run(arguments: argparse.Namespace) -> int:
    commands: Mapping[str, Callable[[argparse.Namespace], int]] = with_psycopg("gateway.db_commands").COMMANDS
    return commands[arguments.command](arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tallystick db", description="Prepare and check a PostgreSQL database.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="migrate|check|copy")
    change = commands.add_parser("migrate", help="make the schema, or bring it up to date; gateways never do")
    change.add_argument("--store", required=True, metavar="URL", help="postgresql://USER@HOST:PORT/DATABASE")
    check = commands.add_parser("check", help="say whether gateways may rely on it, and what to change")
    place = check.add_mutually_exclusive_group(required=True)
    place.add_argument("--store", metavar="URL", help="the database")
    place.add_argument(
        "--data", type=Path, metavar="DIR", help="a node's data directory: its database, and its ledger opened"
    )
    check.add_argument(
        "--durability", choices=DURABILITIES, help="what commits are to survive; default: the node's, or replicated"
    )
    copy = commands.add_parser(
        "copy",
        help="move a stopped ledger from its file into a database",
        description="Copy it byte for byte, open it there as a start would, put the file aside, then change the setting"
        " `store`. If it was stopped, run it again.",
    )
    copy.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data directory; gateway stopped")
    copy.add_argument("--store", required=True, metavar="URL", help="postgresql://USER@HOST:PORT/DATABASE")
    copy.add_argument("--durability", choices=DURABILITIES, default=DURABILITIES[0], help="default: replicated")
    return parser
