"""The client's commands: `tallystick join | lease | wait | run`.

Thin: arguments in, one verb of the agent, words or JSON out. What is in the way goes to standard error with what to do
next; with --json the outcome, good or bad, is one line on standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gateway.actions import ACTIONS
from gateway.client.agent import TTL_MS_DEFAULT, Agent
from gateway.client.errors import NotHeld
from gateway.client.exits import DONE, PROFILE
from gateway.client.join import join, read_root
from gateway.client.receipts import VerifiedReceipt
from gateway.client.run import Job, run
from gateway.client.seen import replace_file
from gateway.client.terminal import Handler, add_home, command_parser, home_option, patient, perform, sub_parser
from gateway.client.trust import HELD_TTL_MS_MIN
from gateway.client.words import facts, joined_text, objects, sentence, shown_moment, texts, wait_line
from verifier.entries import ACTION_BODIES, DID, LEASE_ID, TTL_MS_MAX, TTL_MS_MIN, check_resource
from verifier.verdict import escape
from verifier.wire import Malformed

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h)", re.ASCII)


def main(argv: Sequence[str]) -> int:
    """Run one command; `argv` begins with its name. Returns a code of exits.py, or the status of the run command."""
    parser, handler = _COMMANDS[argv[0]]()
    arguments = parser.parse_args(argv[1:])
    return perform(argv[0], handler, arguments)


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration such as 500ms, 30s, 5m or 1h; a bare number is refused."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 500ms, 30s, 5m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


# -- join --------------------------------------------------------------------------------------------------------------


def _join_parser() -> tuple[argparse.ArgumentParser, Handler]:
    parser = command_parser("join", "Make the profile with which this machine's agent speaks to a gateway.")
    parser.add_argument("url", metavar="URL", help="where the gateway listens, such as https://gateway.example")
    parser.add_argument(
        "--root", required=True, metavar="VKEY|@FILE",
        help="the ledger's root key, from its operator and not from the gateway itself",
    )  # fmt: skip
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, _join


async def _join(arguments: argparse.Namespace) -> int:
    joined = await join(arguments.url, read_root(arguments.root), arguments.home)
    if arguments.json:
        made = {"did": joined.did, "home": str(joined.home), "isDev": joined.is_dev, "origin": joined.origin}
        print(json.dumps({"ok": True, **made}))
    else:
        print(joined_text(joined, home_option(joined.home)))
    return DONE


# -- lease -------------------------------------------------------------------------------------------------------------


def _lease_parser() -> tuple[argparse.ArgumentParser, Handler]:
    parser = command_parser("lease", "Acquire, renew, release and list leases.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="acquire|renew|release|list")
    for name, action, handler in (
        ("acquire", "lease.acquire", _acquire),
        ("renew", "lease.renew", _renew),
        ("release", "lease.release", _release),
        ("list", "lease.list", _list),
    ):
        row = ACTIONS[action]
        verb = sub_parser(verbs, name, row.summary, row.description)
        _add_members(verb, action)
        verb.set_defaults(handler=handler)
    verbs.choices["acquire"].add_argument(
        "--wait", type=duration_ms, default=0, metavar="TIME", help="how long to wait for a held lease (default: not)"
    )
    verbs.choices["list"].add_argument(
        "--holder", default="me", metavar="DID", help="whose leases (default: this profile's)"
    )
    return parser, lambda arguments: _call(arguments.handler, arguments)


async def _call(handler: Handler, arguments: argparse.Namespace) -> int:
    return await handler(arguments)


def _add_members(parser: argparse.ArgumentParser, action: str) -> None:
    """Add what the entry table lets a body of `action` say; who and where come from the profile."""
    names = {member.name for member in ACTION_BODIES.get(action, ())}
    if "resource" in names:
        parser.add_argument("resources", nargs="+", metavar="RESOURCE", help="scheme:path, all of them or none")
    elif "leaseId" in names:
        parser.add_argument("resources", nargs="+", metavar="RESOURCE", help="what the lease is on, or its id")
    if "resource" in names and "leaseId" in names:
        parser.add_argument("--lease", metavar="ID", help="its id (default: looked up by what it is on)")
    if "ttlMs" in names:
        default = f"{TTL_MS_DEFAULT // 1000}s"
        parser.add_argument(
            "--ttl", type=duration_ms, default=TTL_MS_DEFAULT, metavar="TIME",
            help=f"how long it lasts: 1s to 1h (default {default})",
        )  # fmt: skip
    if names:
        parser.add_argument("--receipt", type=Path, metavar="FILE", help="write the receipt there")


async def _acquire(arguments: argparse.Namespace) -> int:
    _check_ttl(arguments.ttl)
    _check_receipt_path(arguments.receipt)
    async with patient(arguments.home) as agent:
        grant = await agent.acquire(arguments.resources, ttl_ms=arguments.ttl, wait_ms=arguments.wait)
    back = f"tallystick lease release {shlex.join(arguments.resources)}{home_option(arguments.home)}"
    return _done(arguments, grant.receipt, f"Give it back with:  {back}")


def _check_ttl(ttl_ms: int) -> None:
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise Malformed("--ttl: 1s to 1h")


async def _renew(arguments: argparse.Namespace) -> int:
    _check_ttl(arguments.ttl)
    _check_receipt_path(arguments.receipt)
    async with patient(arguments.home) as agent:
        lease_id, _ = await _find_lease(agent, arguments.resources)
        grant = await agent.renew(lease_id, ttl_ms=arguments.ttl)
    return _done(arguments, grant.receipt)


async def _release(arguments: argparse.Namespace) -> int:
    _check_receipt_path(arguments.receipt)
    async with patient(arguments.home) as agent:
        lease_id, names = arguments.lease, tuple(arguments.resources)
        if lease_id is None:
            lease_id, names = await _find_lease(agent, names)
        receipt = await agent.release(names, lease_id)
    return _done(arguments, receipt)


async def _find_lease(agent: Agent, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the id and resources of the lease meant: by its id, or by naming all it is on (in any order).

    The list is unverified; a lie in it costs a refusal or names a lease of our own, and the receipt says which.
    """
    leases = await agent.leases(is_patient=True)
    for lease in leases:
        found = texts(lease.get("resources"))
        if list(names) == [lease.get("leaseId")] or set(names) == set(found):
            return str(lease.get("leaseId")), found
    for name in names:
        if not LEASE_ID.check(name):
            check_resource(name)
    held = ", ".join(escape(" ".join(texts(lease.get("resources")))) for lease in leases)
    raise NotHeld(
        f"this key holds no lease that is exactly {' '.join(names)}; it holds: {held or 'nothing'}.\n"
        "It may have run out; acquire again."
    )


async def _list(arguments: argparse.Namespace) -> int:
    if arguments.holder != "me" and not DID.check(arguments.holder):
        raise Malformed(f"--holder: me, or {DID.bound}")
    async with Agent.open(arguments.home) as agent:
        leases = await agent.leases(arguments.holder)
    if arguments.json:
        print(json.dumps({"ok": True, "leases": leases}))
        return DONE
    if not leases:
        print("This key holds no lease." if arguments.holder == "me" else f"{arguments.holder} holds no lease.")
    for lease in leases:
        names = escape(" ".join(texts(lease.get("resources"))))
        until = lease.get("endsAtMs")
        print(f"{lease.get('leaseId')}  {names}  token {lease.get('fencingToken')}  until {shown_moment(until)}")
    return DONE


# -- wait --------------------------------------------------------------------------------------------------------------


def _wait_parser() -> tuple[argparse.ArgumentParser, Handler]:
    row = ACTIONS["coordination.wait"]
    parser = command_parser("wait", f"{row.summary}. {row.description}")
    parser.add_argument("resource", nargs="?", metavar="RESOURCE", help="only this one")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, _wait


async def _wait(arguments: argparse.Namespace) -> int:
    if arguments.resource is not None:
        check_resource(arguments.resource)
    async with Agent.open(arguments.home) as agent:
        view = await agent.wait_view(arguments.resource)
    if arguments.json:
        print(json.dumps({**view, "ok": True}))
        return DONE
    rows = objects(view.get("resources"))
    for row in rows:
        print(wait_line(row))
    if not rows:
        name = arguments.resource
        print("Nothing is held and nobody waits." if name is None else f"{name} is free, and nobody waits for it.")
    return DONE


# -- run ---------------------------------------------------------------------------------------------------------------


def _run_parser() -> tuple[argparse.ArgumentParser, Handler]:
    parser = command_parser(
        "run",
        "Hold a lease while a command runs. The command finds TALLYSTICK_FENCING_TOKEN, TALLYSTICK_LEASE_ID, "
        "TALLYSTICK_RESOURCE and TALLYSTICK_RECEIPT (a file with the newest receipt) in its environment. Signals are "
        "passed on. When the lease is lost the command's process group gets SIGTERM and, before anybody else can have "
        "the lease, SIGKILL; so does what is left of the group when the command ends. What leaves the group (setsid, a "
        "daemon) is not stopped. One key holds a resource once on one machine: while another process with this "
        "profile holds it or waits for it, the command does not start, or waits as long as --wait says. The exit "
        "status is the command's, 128 + signal when one ended it.",
        "Put -- between the options and the command: tallystick run --resource R -- COMMAND …\n",
    )
    parser.add_argument(
        "--resource", action="append", required=True, dest="resources", metavar="R",
        help="scheme:path; give it several times for a set, all or none",
    )  # fmt: skip
    parser.add_argument(
        "--ttl", type=duration_ms, default=TTL_MS_DEFAULT, metavar="TIME",
        help=f"how long the lease outlives a crash of this machine: {HELD_TTL_MS_MIN // 1000}s to 1h, renewed at a "
        f"third (default {TTL_MS_DEFAULT // 1000}s)",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=duration_ms, default=0, metavar="TIME", help="how long to wait for a held lease (default: not)"
    )
    parser.add_argument("--receipt", type=Path, metavar="FILE", help="keep the newest receipt there")
    add_home(parser)
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --, with its arguments")
    return parser, _run


async def _run(arguments: argparse.Namespace) -> int:
    if not HELD_TTL_MS_MIN <= arguments.ttl <= TTL_MS_MAX:
        raise Malformed(f"--ttl: {HELD_TTL_MS_MIN // 1000}s to 1h; a second of it is margin")
    _check_receipt_path(arguments.receipt)
    job = Job(tuple(arguments.resources), tuple(arguments.command), arguments.ttl, arguments.wait, arguments.receipt)
    async with patient(arguments.home) as agent:
        return await run(agent, job)


# -- outcomes ---------------------------------------------------------------------------------------------------------


def _done(arguments: argparse.Namespace, receipt: VerifiedReceipt, next_step: str = "") -> int:
    unwritten = _write_receipt(arguments.receipt, receipt)
    code = PROFILE if unwritten else DONE
    if arguments.json:
        trouble = {"error": "receipt_not_written", "message": unwritten, "exitCode": code} if unwritten else {}
        print(json.dumps({"ok": not unwritten, **facts(receipt), **trouble}))
        return code
    print(sentence(receipt))
    if unwritten:
        print(f"tallystick lease: {unwritten}", file=sys.stderr)
    elif arguments.receipt is not None:
        home = arguments.home
        words = (str(arguments.receipt), "--root", f"@{home}/root.vkey", "--keys", f"{home}/keys.note")
        print(f"Check the receipt with:  tallystick-verify receipt {shlex.join(words)}")
    if next_step:
        print(next_step)
    return code


def _check_receipt_path(path: Path | None) -> None:
    """Malformed when the receipt could not be kept: better said before anything is decided than after."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise Malformed(f"--receipt: there is no folder {path.parent}; nothing was sent")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise Malformed(f"--receipt: {path} can't be written; nothing was sent")


def _write_receipt(path: Path | None, receipt: VerifiedReceipt) -> str:
    """Return why the receipt could not be written, or "": what was decided stands, and must still be told."""
    try:
        if path is not None:
            replace_file(path, receipt.data)
    except OSError as error:
        return f"entry {receipt.seq} was decided, and its receipt can't be written to {path}: {error.strerror}"
    return ""


_COMMANDS: Mapping[str, Callable[[], tuple[argparse.ArgumentParser, Handler]]] = {
    "join": _join_parser,
    "lease": _lease_parser,
    "wait": _wait_parser,
    "run": _run_parser,
}
