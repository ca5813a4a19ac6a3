"""`tallystick agent add | list | remove`: the operator signs who may act, from any machine that has the profile."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from gateway.client.agent import Agent
from gateway.client.errors import NotEnrolled
from gateway.client.exits import DONE, shown
from gateway.client.receipts import VerifiedReceipt
from gateway.client.terminal import OPERATOR_HELP, add_home, command_parser, patient, perform
from keys.did import parse_public_key
from verifier.did import encode_did
from verifier.entries import LABEL
from verifier.wire import JsonObject, Malformed


def main(argv: Sequence[str]) -> int:
    """Run one command; the exit code is one of gateway/client/exits.py."""
    arguments = _parser().parse_args(argv)
    return perform(f"agent {arguments.command}", _run, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("agent", "Enrol, list and remove the keys that may act; signed by the operator.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="add|list|remove")
    add = commands.add_parser("add", help="let a key act")
    add.add_argument("--name", metavar="LABEL", help=f"a label for people: {LABEL.bound}")
    listing = commands.add_parser("list", help="list every key that was ever enrolled")
    remove = commands.add_parser("remove", help="stop a key from acting; what it holds runs out")
    for command in (add, remove):
        command.add_argument("key", metavar="DID", help="a did:key, a vkey, or the text of an ssh-ed25519 public key")
    for command in (add, listing, remove):
        add_home(command, OPERATOR_HELP)
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


async def _run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.command == "list":
            async with Agent.open(arguments.home) as reader:
                _print_list(await reader.agents(), arguments.json)
        else:
            await _change(arguments)
    except NotEnrolled as error:
        advice = "Use the operator's profile: --home DATA/operator"
        raise NotEnrolled(error.status, error.code, error.detail, advice) from error
    return DONE


async def _change(arguments: argparse.Namespace) -> None:
    did = encode_did(parse_public_key(arguments.key))
    name = arguments.name if arguments.command == "add" else None
    if name is not None and not LABEL.check(name):
        raise Malformed(f"--name: {LABEL.bound}")
    async with patient(arguments.home) as operator:
        if arguments.command == "add":
            receipt = await operator.add_agent(did, name)
        else:
            receipt = await operator.remove_agent(did)
    _print_change(did, receipt, arguments.json)


def _print_change(did: str, receipt: VerifiedReceipt, is_json: bool) -> None:
    if is_json:
        print(json.dumps({"ok": True, "did": did, "seq": receipt.seq, "type": receipt.type}))
    else:
        print(f"{receipt.type.split('/')[1]} {did} (entry {receipt.seq})")


def _print_list(agents: list[JsonObject], is_json: bool) -> None:
    if is_json:
        print(json.dumps({"ok": True, "agents": agents}))
        return
    if not agents:
        print("No key was ever enrolled.")
    for agent in agents:
        standing = f"removed by entry {agent['removedSeq']}" if "removedSeq" in agent else "in force"
        print(shown(f"{agent.get('did')}  {agent.get('name', '-')}  {standing}"))
