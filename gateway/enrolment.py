"""`tallystick agent add | list | remove`: the operator signs who may act, from any machine that has the profile."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.client.agent import Agent
from gateway.client.errors import ClientError
from gateway.client.profile import default_home
from keys.did import parse_public_key
from verifier.did import encode_did
from verifier.entries import LABEL
from verifier.wire import JsonObject, Malformed


def main(argv: Sequence[str]) -> int:
    """Run one command; 0 done, 1 refused or unreachable with a sentence on standard error, 2 wrong usage."""
    arguments = _parser().parse_args(argv)
    try:
        asyncio.run(_run(arguments))
    except (ClientError, Malformed) as error:
        print(f"tallystick agent {arguments.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tallystick agent", description="Enrol, list and remove the keys that may act; signed by the operator."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="add|list|remove")
    add = commands.add_parser("add", help="let a key act")
    add.add_argument("--name", metavar="LABEL", help=f"a label for people: {LABEL.bound}")
    listing = commands.add_parser("list", help="list every key that was ever enrolled")
    remove = commands.add_parser("remove", help="stop a key from acting; what it holds runs out")
    for command in (add, remove):
        command.add_argument("key", metavar="DID", help="a did:key, a vkey, or the text of an ssh-ed25519 public key")
    for command in (add, listing, remove):
        command.add_argument(
            "--home",
            type=Path,
            default=default_home(),
            metavar="DIR",
            help="the operator's profile, such as DATA/operator (default: $TALLYSTICK_HOME or ~/.tallystick)",
        )
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


async def _run(arguments: argparse.Namespace) -> None:
    async with Agent.open(arguments.home) as operator:
        if arguments.command == "list":
            _print_list(await operator.agents(), arguments.json)
            return
        did = encode_did(parse_public_key(arguments.key))
        if arguments.command == "add":
            receipt = await operator.add_agent(did, arguments.name)
        else:
            receipt = await operator.remove_agent(did)
        done = {"did": did, "seq": receipt.seq, "type": receipt.type}
        print(json.dumps(done) if arguments.json else f"{receipt.type.split('/')[1]} {did} (entry {receipt.seq})")


def _print_list(agents: list[JsonObject], is_json: bool) -> None:
    if is_json:
        print(json.dumps(agents, indent=2))
        return
    for agent in agents:
        standing = f"removed by entry {agent['removedSeq']}" if "removedSeq" in agent else "in force"
        print(f"{agent['did']}  {agent.get('name', '-')}  {standing}")
