"""`tallystick agent init | add | enrol | list | remove`: a key is made, and somebody who may says that it acts here.

Three ways lead to an agent. Its key is made where it works and an operator signs for it (`add DID`); or it brings an
API key and the gateway's enroller signs, for the operator that issued that (`enrol`); or, for programs that can't sign,
the gateway's machine keeps its key and an API key stands for it (`add --custodial`). What such an agent does says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.client.agent import Agent
from gateway.client.errors import ClientError, ProfileError
from gateway.client.exits import DONE, shown
from gateway.client.office_commands import KEY_HELP, checked_label, did_of, tell_token
from gateway.client.profile import ADDRESS, AGENT_KEY, default_home, open_profile
from gateway.client.receipts import VerifiedReceipt
from gateway.client.secret import check_new, read_token
from gateway.client.terminal import (
    OPERATOR_HELP,
    PROFILE_HELP,
    Handler,
    add_home,
    command_parser,
    home_option,
    operating,
    patient,
    perform,
)
from gateway.client.words import standing
from keys.files import CUSTODY, KeyFileError, load_key, new_key, new_key_in, passphrase_path
from keys.token import digest_of, kind_of, new_token
from verifier.entries import LABEL
from verifier.wire import JsonObject, Malformed

KEY_STAYS = "An API key that enrolled it stays in force and can enrol it again: tallystick apikey revoke stops that."


def main(argv: Sequence[str]) -> int:
    """Run one command; the exit code is one of gateway/client/exits.py."""
    arguments = _parser().parse_args(argv)
    return perform(f"agent {arguments.command}", _run, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("agent", "Make a key, let it act, list and remove the keys that may act.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(_HANDLERS))
    init = commands.add_parser("init", help="make a key and say its DID; needs no gateway")
    add = commands.add_parser("add", help="let a key act; signed by the operator")
    enrol = commands.add_parser("enrol", help="let this profile's key act, by an API key")
    listing = commands.add_parser("list", help="list every key that was ever enrolled")
    remove = commands.add_parser("remove", help="stop a key from acting; what it and its sessions hold is given back")
    remove.description = KEY_STAYS
    _add_custodial(add)
    remove.add_argument("key", metavar="DID", help=KEY_HELP)
    enrol.add_argument("--key", metavar="@FILE|TOKEN", dest="token", help="the API key (default: $TALLYSTICK_API_KEY)")
    for command in (add, enrol):
        command.add_argument("--name", metavar="LABEL", help=f"a label for people: {LABEL.bound}")
    for name, command in (("init", init), ("add", add), ("enrol", enrol), ("list", listing), ("remove", remove)):
        add_home(command, OPERATOR_HELP if name in ("add", "remove") else PROFILE_HELP)
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_custodial(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", nargs="?", metavar="DID", help=KEY_HELP)
    parser.add_argument(
        "--custodial", metavar="LABEL",
        help="instead of a DID: make an agent of this name whose key the gateway keeps, and an API key for it",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="with --custodial: the gateway's data directory, on its machine"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="with --custodial: write the API key there and do not print it"
    )


async def _run(arguments: argparse.Namespace) -> int:
    handler: Handler = _HANDLERS[arguments.command]
    return await handler(arguments)


# -- one's own key -----------------------------------------------------------------------------------------------------


async def _init(arguments: argparse.Namespace) -> int:
    home: Path = arguments.home
    is_new, is_joined = not os.path.lexists(home / AGENT_KEY), (home / ADDRESS).exists()  # noqa: ASYNC240  # a command
    did = _own_key(home / AGENT_KEY, is_new)
    if arguments.json:
        print(json.dumps({"ok": True, "did": did, "home": str(home), "isNew": is_new}))
        return DONE
    option = home_option(home)
    print(f"{did}\n{'Made' if is_new else 'Kept'} the key in {home / AGENT_KEY}. Next:")
    if not is_joined:
        print(f"  tallystick join URL --root VKEY{option}")
    print(f"  an operator lets it act:  tallystick agent add {did} --name LABEL")
    print(f"  or, with an API key:      tallystick agent enrol --key @FILE{option}")
    return DONE


def _own_key(path: Path, is_new: bool) -> str:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return (new_key(path, purpose="agent") if is_new else load_key(path, purpose="agent")).did
    except OSError as error:
        raise ProfileError(f"{path} can't be made: {error.strerror or error}") from error
    except KeyFileError as error:
        raise ProfileError(str(error)) from error


async def _enrol(arguments: argparse.Namespace) -> int:
    name, token = checked_label(arguments.name), read_token(arguments.token)
    async with patient(arguments.home) as agent:
        receipt = await agent.enrol(token, name)
    _print_change(agent.did, receipt, arguments.json)
    if not arguments.json:
        option = home_option(arguments.home)
        is_trial = kind_of(token) == "trial"
        if is_trial:
            print("On trial: 35 decisions in 7 days unless entry 0 says otherwise, on names below the one that")
            print("follows, a minute at a time. To enrol again brings none of them back.")
        resource, ttl = (f"trial:{agent.did}/demo", " --ttl 60s") if is_trial else ("lock:demo", "")
        print(f"Next:  tallystick lease acquire {resource}{ttl}{option}")
    return DONE


# -- the operator's work -----------------------------------------------------------------------------------------------


async def _add(arguments: argparse.Namespace) -> int:
    if (arguments.key is None) == (arguments.custodial is None):
        raise Malformed("name the key to add, or make a custodial one with --custodial LABEL --data DIR")
    if arguments.custodial is not None:
        return await _add_kept(arguments)
    if arguments.data is not None or arguments.out is not None:
        raise Malformed("--data, --out: only with --custodial")
    did, name = did_of(arguments.key), checked_label(arguments.name)
    with operating():
        async with patient(arguments.home) as operator:
            receipt = await operator.add_agent(did, name)
    _print_change(did, receipt, arguments.json)
    return DONE


async def _remove(arguments: argparse.Namespace) -> int:
    did = did_of(arguments.key)
    with operating():
        async with patient(arguments.home) as operator:
            receipt = await operator.remove_agent(did)
    _print_change(did, receipt, arguments.json)
    if not arguments.json:
        print(KEY_STAYS)
    return DONE


async def _list(arguments: argparse.Namespace) -> int:
    with operating():
        async with Agent.open(arguments.home) as reader:
            _print_list(await reader.agents(), arguments.json)
    return DONE


_HANDLERS: dict[str, Handler] = {"init": _init, "add": _add, "enrol": _enrol, "list": _list, "remove": _remove}


# -- custody -----------------------------------------------------------------------------------------------------------


async def _add_kept(arguments: argparse.Namespace) -> int:
    """Make a key that the gateway keeps, an agent of it, and an API key that stands for the agent."""
    name = arguments.name or arguments.custodial
    if not LABEL.check(name):
        raise Malformed(f"--custodial: {LABEL.bound}")
    if arguments.data is None or not (arguments.data / "keys").is_dir():
        raise Malformed("--data: the gateway's data directory, on the machine where it runs")
    home = _operators_home(arguments)
    check_new(arguments.out)
    token = new_token("live")
    with operating():
        async with patient(home) as operator:
            did = _make_kept(arguments.data / CUSTODY)
            with _forgotten_unless_added(arguments.data / CUSTODY, did, home):
                await operator.add_agent(did, name, is_custodial=True)
            try:
                receipt = await operator.issue_api_key(digest_of(token), "live", name=name, agent=did)
            except ClientError:
                again = f"tallystick apikey issue --kind live --agent {did}{home_option(home)}"
                print(f"The agent {did} is added. Issue its API key with:  {again}", file=sys.stderr)
                raise
    _print_kept(arguments, did, token, receipt, open_profile(home).address.url)
    return DONE


def _operators_home(arguments: argparse.Namespace) -> Path:
    """The operator's profile as it was made with the data directory, unless another one is named."""
    beside: Path = arguments.data / "operator"
    named: Path = arguments.home
    return beside if named == default_home() and (beside / ADDRESS).exists() else named


def _make_kept(folder: Path) -> str:
    """Return the DID of a new key in the folder, which only the gateway's user can read; the file is named by it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return new_key_in(folder, purpose=CUSTODY).did
    except (OSError, KeyFileError) as error:
        raise ProfileError(f"{folder} can't hold the key: {error}. Run this as the gateway's user.") from error


@contextmanager
def _forgotten_unless_added(folder: Path, did: str, home: Path) -> Iterator[None]:
    """Remove the key of an agent that did not come to be; when nobody knows whether it did, keep it and say so."""
    kept = folder / f"{did}.key"
    try:
        yield
    except BaseException as error:  # an interrupt leaves a request on its way
        if isinstance(error, Malformed) or (isinstance(error, ClientError) and not error.is_unknown):
            for path in (kept, passphrase_path(kept)):
                path.unlink(missing_ok=True)
        else:
            print(_doubt(did, kept, home_option(home)), file=sys.stderr)
        raise


def _doubt(did: str, kept: Path, option: str) -> str:
    return (
        f"It is not known whether the agent {did} was added, so its key is kept. Look with:  tallystick agent list"
        f"{option}\nIf it is there, issue its API key:  tallystick apikey issue --kind live --agent {did}{option}\n"
        f"If it is not, remove {kept} and {passphrase_path(kept)}, and add another."
    )


def _print_kept(arguments: argparse.Namespace, did: str, token: str, receipt: VerifiedReceipt, url: str) -> None:
    told = tell_token(token, arguments.out)
    if arguments.json:
        shown_once: JsonObject = {} if arguments.out else {"token": token}
        print(json.dumps({"ok": True, "did": did, "seq": receipt.seq, "type": receipt.type, **shown_once}))
        return
    print(
        f"added {did} and an API key for it (entry {receipt.seq}, verified). The gateway keeps its key; every entry of "
        f"it says so.\n{told}\nIts bearer takes a lease with:\n\n"
        f'  curl -sS {url}/api/v1/acp/coordination/lease -H "Authorization: Bearer $TALLYSTICK_API_KEY" \\\n'
        f'    -H \'Content-Type: application/json\' -d \'{{"resource":"lock:demo","ttlMs":30000}}\'\n\n'
        f"End it with:  tallystick apikey revoke {digest_of(token)}"
    )


# -- words -------------------------------------------------------------------------------------------------------------


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
        marks = [
            word
            for name, word in (("agentCustody", "kept by the gateway"), ("trialUntilMs", "on trial"))
            if name in agent
        ]
        print(shown("  ".join((str(agent.get("did")), str(agent.get("name", "-")), standing(agent), *marks))))
