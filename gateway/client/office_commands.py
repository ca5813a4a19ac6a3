"""`tallystick operator add | remove | list` and `tallystick apikey issue | revoke | list`, signed by an operator."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gateway.actions import ACTIONS
from gateway.client.agent import Agent
from gateway.client.exits import DONE, shown
from gateway.client.outcome import add_receipt, check_receipt_path, done
from gateway.client.secret import check_new, read_token, write_token
from gateway.client.terminal import OPERATOR_HELP, Handler, command_parser, operating, patient, sub_parser
from gateway.client.words import standing
from keys.did import parse_public_key
from keys.token import KINDS, digest_of, new_token
from verifier.did import encode_did
from verifier.entries import DID, HASH, LABEL
from verifier.wire import JsonObject, Malformed

KEY_HELP = "a did:key, a vkey, or the text of an ssh-ed25519 public key"

# -- operator ----------------------------------------------------------------------------------------------------------


def operator_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick operator`."""
    parser = command_parser(
        "operator",
        "Say who else may do what operators do, or list that. Operators are equals: each may add and remove agents, "
        "API keys and operators. A removed operator's agents are refused and its sessions end; the last one stays.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="add|remove|list")
    for verb, handler in (("add", _add), ("remove", _remove), ("list", _list)):
        row = ACTIONS[f"operator.{verb}"]
        made = sub_parser(verbs, verb, row.summary, row.description, OPERATOR_HELP)
        made.set_defaults(handler=handler)
    for verb in ("add", "remove"):
        verbs.choices[verb].add_argument("key", metavar="DID", help=KEY_HELP)
        add_receipt(verbs.choices[verb])
    verbs.choices["add"].add_argument("--name", metavar="LABEL", help=f"a label for people: {LABEL.bound}")
    return parser, _run


async def _run(arguments: argparse.Namespace) -> int:
    check_receipt_path(getattr(arguments, "receipt", None))
    handler: Handler = arguments.handler
    with operating():
        return await handler(arguments)


async def _add(arguments: argparse.Namespace) -> int:
    did, name = did_of(arguments.key), checked_label(arguments.name)
    async with patient(arguments.home) as operator:
        receipt = await operator.add_operator(did, name)
    return done("operator add", arguments, receipt, f"{did} is an operator now, in a profile of its own.")


async def _remove(arguments: argparse.Namespace) -> int:
    did = did_of(arguments.key)
    async with patient(arguments.home) as operator:
        receipt = await operator.remove_operator(did)
    step = "Its agents are refused until another operator adds them, or it is added again."
    return done("operator remove", arguments, receipt, step)


async def _list(arguments: argparse.Namespace) -> int:
    async with Agent.open(arguments.home) as reader:
        operators = await reader.operators()
    if arguments.json:
        print(json.dumps({"ok": True, "operators": operators}))
        return DONE
    for row in operators:
        print(shown(f"{row.get('did')}  {row.get('name', '-')}  {standing(row)}"))
    return DONE


# -- apikey ------------------------------------------------------------------------------------------------------------


def apikey_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick apikey`."""
    parser = command_parser(
        "apikey",
        "Issue, revoke and list API keys. A live key lets programs enrol agents and read; with --agent it acts as one "
        "whose key the gateway keeps. A trial key lets one agent try the ledger. The ledger learns a digest only.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="issue|revoke|list")
    for verb, handler in (("issue", _issue), ("revoke", _revoke), ("list", _list_keys)):
        row = ACTIONS[f"apikey.{verb}"]
        made = sub_parser(verbs, verb, row.summary, row.description, OPERATOR_HELP)
        made.set_defaults(handler=handler)
    _add_issue(verbs.choices["issue"])
    verbs.choices["revoke"].add_argument(
        "key", metavar="DIGEST|@FILE", help="its digest, as apikey list shows it, or a file with the API key itself"
    )
    for verb in ("issue", "revoke"):
        add_receipt(verbs.choices[verb])
    return parser, _run


def _add_issue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kind", choices=KINDS, required=True, help="live: enrols and reads; trial: lets one agent try"
    )
    parser.add_argument("--name", metavar="LABEL", help=f"a label for people: {LABEL.bound}")
    parser.add_argument("--agent", metavar="DID", help="with live: act as this agent, whose key the gateway keeps")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the API key there, for you alone, and do not print it"
    )


async def _issue(arguments: argparse.Namespace) -> int:
    name = checked_label(arguments.name)
    if arguments.agent is not None and not DID.check(arguments.agent):
        raise Malformed(f"--agent: {DID.bound}")
    if arguments.agent is not None and arguments.kind == "trial":
        raise Malformed("--agent: a trial key belongs to no agent; leave it out, or issue a live key")
    check_new(arguments.out)
    token = new_token(arguments.kind)
    async with patient(arguments.home) as operator:
        receipt = await operator.issue_api_key(digest_of(token), arguments.kind, name=name, agent=arguments.agent)
    told = tell_token(token, arguments.out)
    step = told + ("" if arguments.agent else _next_of(arguments.kind))
    return done("apikey issue", arguments, receipt, step, {} if arguments.out else {"token": token})


def tell_token(token: str, path: Path | None) -> str:
    """Write a token to its file, or return the words that show it, once."""
    if path is None:
        return f"The API key, shown this once; nobody can read it again:\n\n  {token}\n"
    write_token(path, token)
    return f"The API key is in {path}, for you alone.\n"


def _next_of(kind: str) -> str:
    limits = "35 decisions in 7 days unless entry 0 says otherwise, on names below trial:<its DID>/."
    enrols = "Who has it enrols with:  tallystick agent enrol --key @FILE"
    return f"{enrols}\nThat agent has {limits}" if kind == "trial" else enrols


async def _revoke(arguments: argparse.Namespace) -> int:
    digest = arguments.key if HASH.check(arguments.key) else digest_of(read_token(arguments.key))
    async with patient(arguments.home) as operator:
        receipt = await operator.revoke_api_key(digest)
    step = "Agents that it enrolled stay: see tallystick agent list, and remove those that should not."
    return done("apikey revoke", arguments, receipt, step)


async def _list_keys(arguments: argparse.Namespace) -> int:
    async with Agent.open(arguments.home) as reader:
        rows = await reader.api_keys()
    if arguments.json:
        print(json.dumps({"ok": True, "apikeys": rows}))
        return DONE
    for row in rows:
        print(_key_line(row))
    if not rows:
        print("No API key was ever issued.")
    return DONE


def _key_line(row: JsonObject) -> str:
    bound = f"  for {row['agent']}" if "agent" in row else f"  used by {row['usedBy']}" if "usedBy" in row else ""
    ended = f"revoked by entry {row['revokedSeq']}" if "revokedSeq" in row else "in force"
    return shown(f"{row.get('keyDigest')}  {row.get('kind')}  {row.get('name', '-')}{bound}  {ended}")


# -- arguments ---------------------------------------------------------------------------------------------------------


def did_of(text: str) -> str:
    """Return the DID of a public key in any of the accepted spellings."""
    return encode_did(parse_public_key(text))


def checked_label(name: str | None) -> str | None:
    """Return a label fit for the ledger, or None."""
    if name is not None and not LABEL.check(name):
        raise Malformed(f"--name: {LABEL.bound}")
    return name
